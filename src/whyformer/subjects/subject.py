"""One call signature for whatever is examined.

A probe never hands a subject floats: it hands ids of shape (batch, time). A subject that reads tokens
takes them as they are; one that reads vectors looks them up in a table of its own, drawn once from a
fixed seed. So every input, and with it every counterexample, is a few integers that fit on a page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from whyformer.errors import WhyformerError
from whyformer.finding import Value

_CACHES = ("past_key_values", "cache", "cache_params", "state", "past", "mems")


class SubjectError(WhyformerError):
    """The subject raised, or returned what is no output; a claim that met it cannot say *holds*."""


def raised(error: BaseException) -> str:
    """An exception in one line: its type, and the first line of what it says."""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0][:200]}" if first else type(error).__name__


def failure(name: str, shape: Sequence[int], error: BaseException) -> Exception:
    """What a subject's raise comes to: a SubjectError, or a MemoryError where the memory is used up.

    Args:
        name: what the subject is called.
        shape: the shape of its input.
        error: what it raised.
    """
    if isinstance(error, SubjectError | MemoryError):
        return error
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
        return MemoryError(str(error))
    what = f"{name} on an input of shape {tuple(shape)}"
    return SubjectError(what, raised(error), "run that call by itself to see why")


@dataclass(frozen=True)
class Settings:
    """How a subject is run, beside its input.

    Attributes:
        backend: the attention backend by the subject's own name, or None for its default.
        options: boolean options of the call and their values, by name.
        train: whether dropout is on; its draws then repeat from call to call.
        scale: factor on every weight matrix, to raise attention scores.
    """

    backend: str | None = None
    options: tuple[tuple[str, bool], ...] = ()
    train: bool = False
    scale: float = 1.0

    def words(self) -> dict[str, Any]:
        """What differs from the default, as a call path."""
        said: dict[str, Any] = dict(self.options)
        if self.backend is not None:
            said["backend"] = self.backend
        if self.train:
            said["mode"] = "train, dropout repeated"
        if self.scale != 1:
            said["weights"] = f"times {self.scale:g}"
        return said


PLAIN = Settings()


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a subject takes, and what it promises.

    Attributes:
        vocabulary: ids run from 0 to vocabulary - 1.
        loud: ids of inputs of unusual size, kept out of ordinary draws.
        special: ids that a model may treat apart (padding, end of text), put into draws on purpose.
        mask: whether a padding mask can be given.
        positions: whether position ids can be given.
        cache: whether a cache can be asked for and handed back.
        options: boolean options of the call beyond those, with their defaults.
        backends: the attention backends to choose from.
        dropout: whether there is dropout that can be switched on without changing anything else.
        max_length: the longest input, or None where nothing states one.
        pad: the id that stands for padding.
        padded: whether the subject itself sets that id apart.
        promises: claim id -> (value, what promises it), beside what every subject promises.
        large: whether a forward is dear, so that probes are to be few.
        left_padding: whether padding may stand on the left with the mask alone; encoders count on the right.
    """

    vocabulary: int
    loud: tuple[int, ...] = ()
    special: tuple[int, ...] = ()
    mask: bool = False
    positions: bool = False
    cache: bool = False
    options: tuple[tuple[str, bool], ...] = ()
    backends: tuple[str, ...] = ()
    dropout: bool = False
    max_length: int | None = None
    pad: int = 0
    padded: bool = False
    promises: Mapping[str, tuple[Value, str]] = field(default_factory=dict)
    large: bool = False
    left_padding: bool = True

    @property
    def promised(self) -> dict[str, tuple[Value, str]]:
        """All that is promised: by every model, by what this one takes, by ``promises``, whose words win."""
        every = ("routing.batch", "routing.repeatable")
        promised: dict[str, tuple[Value, str]] = dict.fromkeys(every, (None, "every model"))
        if self.mask:
            promised["routing.padding"] = (None, "a padding mask")
        if self.cache:
            promised |= dict.fromkeys(("routing.cache", "routing.chunks"), (None, "a cache"))
        return promised | dict(self.promises)


@dataclass(frozen=True)
class Output:
    """What one call returned: y of shape (batch, time, ·), and the cache where one was asked for."""

    y: Float[Tensor, "batch time out"]
    cache: Any = None


class Subject(ABC):
    """What is examined.

    Attributes:
        name: what a reader calls it.
        traits: what it takes and promises.
        dtype: the precision that it computes in now.
    """

    name: str
    traits: Traits
    dtype: torch.dtype

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The report's ``subject``: plain data, with at least ``name`` and ``kind``."""

    @abstractmethod
    def call(
        self,
        ids: Int[Tensor, "batch time"],
        *,
        mask: Int[Tensor, "batch seen"] | None = None,
        positions: Int[Tensor, "batch time"] | None = None,
        cache: Any = None,
        use_cache: bool = False,
        settings: Settings = PLAIN,
    ) -> Output:
        """Run the subject once.

        Args:
            ids: what it reads.
            mask: 1 for a real input, 0 for padding, over the cache and this call together.
            positions: the position of each input.
            cache: what an earlier call returned, or None.
            use_cache: whether to return a cache.
            settings: how to run it.

        Raises:
            SubjectError: the subject raised, or returned no finite-shaped output.
        """

    @contextmanager
    def precision(self, dtype: torch.dtype) -> Iterator[None]:
        """Compute in another precision inside the block; a subject that has but one takes that alone.

        Raises:
            SubjectError: the subject cannot be moved to it.
        """
        if dtype is not self.dtype:
            raise SubjectError(f"{self.name} in {dtype}", "its precision is its own", "examine it as it is")
        yield

    @property
    def native(self) -> torch.dtype:
        """The precision of the weights as they were given."""
        return self.dtype


def read_output(name: str, result: Any, ids: Tensor, use_cache: bool) -> Output:
    """The outputs and the cache in what a forward returned.

    Args:
        name: what the subject is called, for the error.
        result: a tensor, ``(y, past, ...)``, or a mapping or object with ``logits`` or ``last_hidden_state``.
        ids: what it read; y must have its batch and time.
        use_cache: whether a cache is looked for.

    Raises:
        SubjectError: nothing of that kind was returned, or y has another batch or time.
    """
    y, cache = result, None
    if isinstance(result, tuple):
        y = result[0] if result else None
        cache = result[1] if use_cache and len(result) > 1 else None
    elif not isinstance(result, Tensor) and result is not None:
        y = _first(result, ("logits", "last_hidden_state"))
        cache = _first(result, _CACHES) if use_cache else None
    if not isinstance(y, Tensor):
        raise SubjectError(name, f"its forward returned {type(y).__name__}", "return y of shape (B, T, ...)")
    if y.dim() < 2 or tuple(y.shape[:2]) != tuple(ids.shape):
        raise SubjectError(
            name,
            f"it returned shape {tuple(y.shape)} for an input of {tuple(ids.shape)}",
            "return (B, T, ...)",
        )
    return Output(y.flatten(2) if y.dim() > 2 else y.unsqueeze(2), cache)


def _first(result: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        found = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if found is not None:
            return found
    return None


class CallableSubject(Subject):
    """A subject made of a plain function, for what is no torch module.

    Args:
        function: ``function(ids, **given) -> y``, or ``(y, cache)`` under ``use_cache=True``; ids is int64
            of shape (batch, time), y of shape (batch, time, ·). It is handed ``mask``, ``positions``, and
            ``cache`` with ``use_cache``, only where ``traits`` says that it takes them.
        traits: what it takes and promises.
        name: what a reader calls it.
        dtype: the precision that it computes in.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        traits: Traits,
        *,
        name: str = "function",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.function, self.traits, self.name, self.dtype = function, traits, name, dtype

    def describe(self) -> dict[str, Any]:
        """Name, kind and vocabulary; a report on it is replayed by handing the subject over again."""
        return {"name": self.name, "kind": "callable", "target": None, "tokens": self.traits.vocabulary}

    def call(
        self,
        ids: Int[Tensor, "batch time"],
        *,
        mask: Int[Tensor, "batch seen"] | None = None,
        positions: Int[Tensor, "batch time"] | None = None,
        cache: Any = None,
        use_cache: bool = False,
        settings: Settings = PLAIN,
    ) -> Output:
        """Call the function once; see :meth:`Subject.call`. Settings do not apply."""
        given: dict[str, Any] = {}
        if mask is not None:
            given["mask"] = mask
        if positions is not None:
            given["positions"] = positions
        if use_cache:
            given.update(cache=cache, use_cache=True)
        try:
            with torch.no_grad():
                result = self.function(ids, **given)
        except Exception as error:
            raise failure(self.name, ids.shape, error) from error
        return read_output(self.name, result, ids, use_cache)
