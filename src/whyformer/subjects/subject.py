"""One call signature for whatever is examined.

A probe never hands a subject floats: it hands ids of shape (batch, time). A subject that reads tokens
takes them as they are; one that reads vectors looks them up in a table of its own, drawn once from a
fixed seed. So every input, and with it every counterexample, is a few integers that fit on a page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from whyformer.errors import WhyformerError
from whyformer.finding import Value


class SubjectError(WhyformerError):
    """The subject raised, or returned what is no output; a claim that met it cannot say *holds*."""


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
        promises: claim id -> (value, what promises it).
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
        """Compute in another precision inside the block.

        Raises:
            SubjectError: the subject cannot be moved to it.
        """
        raise SubjectError(f"{self.name} in {dtype}", "its precision is its own", "examine it as it is")
        yield

    @property
    def native(self) -> torch.dtype:
        """The precision of the weights as they were given."""
        return self.dtype
