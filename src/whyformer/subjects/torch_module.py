"""A torch module as a subject, by the call convention that its signature shows.

``forward(x, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False)``: only ``x`` is
required, and what the signature lacks, the module does not support. Parameters that hide in ``**kwargs`` do
not count, unless a class that the module inherits from names them: many models swallow an unknown one without
a word.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from whyformer.errors import UsageError
from whyformer.finding import Value
from whyformer.subjects.float64 import Float64, has_islands
from whyformer.subjects.kernels import backends_of, enter_backend
from whyformer.subjects.subject import (
    PLAIN,
    Output,
    Settings,
    Subject,
    SubjectError,
    Traits,
    failure,
    raised,
    read_output,
)

SYMBOLS = 64
"""How many different vectors a subject of a width is shown."""
LOUD = 4
"""How many of them are 30 times as long as the rest."""
LARGE = 20_000_000
"""Parameters from which a forward counts as dear."""
CONVENTION = ("attention_mask", "position_ids", "past_key_values", "use_cache")
ASKS_FOR_MORE = frozenset({"output", "return", "need", "needs", "with", "get"})
"""A first word of an option that asks for more to be returned, whichever way that is computed."""


class TorchModule(Subject):
    """A module under examination: set to eval, copied to each precision that is asked for.

    Args:
        module: what is examined; it is put into eval mode.
        tokens: the vocabulary, where it reads int64 tokens of shape (batch, time).
        width: the width, where it reads floats of shape (batch, time, width).
        name: what a reader calls it.
        target: where it was loaded from, so that a report can be replayed.

    Raises:
        UsageError: neither or both of ``tokens`` and ``width``; or a forward that takes no input.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        tokens: int | None = None,
        width: int | None = None,
        name: str | None = None,
        target: str | None = None,
    ) -> None:
        if (tokens is None) == (width is None):
            raise UsageError(
                name or type(module).__name__,
                "it reads tokens or vectors, and which is not said",
                "give --tokens V or --width D, one of them",
            )
        self.name = name or type(module).__name__
        self.target, self._width, self._tokens = target, width, tokens
        self._given = module.eval()
        floats = [p.dtype for p in module.parameters() if p.dtype.is_floating_point]
        self._native = floats[0] if floats else torch.float32
        self.dtype = self._native
        self._copies: dict[torch.dtype, nn.Module] = {self._native: self._given}
        self._islands: bool | None = None
        if width is not None:
            generator = torch.Generator().manual_seed(0)
            self._table = torch.randn(SYMBOLS, width, generator=generator, dtype=torch.float64)
            self._table[SYMBOLS - LOUD :] *= 30
        self.traits = self._discover()

    def _discover(self) -> Traits:
        parameters = inspect.signature(self._given.forward).parameters
        named = [p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        named += _handed_on(self._given, {p.name for p in named})
        if not named and not any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
            raise UsageError(self.name, "its forward takes no input", "give it forward(x, ...)")
        needed = [p.name for p in named[1:] if p.default is p.empty]
        if needed:
            raise UsageError(
                self.name, f"its forward also needs {', '.join(needed)}", "give those a default, or wrap it"
            )
        names = {p.name for p in named[1:]}
        options = tuple(
            (p.name, bool(p.default))
            for p in named[1:]
            if _is_switch(p) and p.name not in CONVENTION and p.name != "return_dict"
        )
        size = sum(p.numel() for p in self._given.parameters())
        promises: dict[str, tuple[Value, str]] = {}
        if "attention_mask" in names:
            promises["routing.padding"] = (None, "attention_mask in the signature")
        if {"past_key_values", "use_cache"} <= names:
            for claim in ("routing.cache", "routing.chunks"):
                promises[claim] = (None, "past_key_values in the signature")
        padded = [_pad_of(part) for part in self._given.modules()]
        special = {0, 1, 2, (self._tokens or 1) - 1} | {p for p in padded if p is not None}
        plain = self._tokens is not None
        return Traits(
            vocabulary=self._tokens if self._tokens is not None else SYMBOLS,
            loud=() if plain else tuple(range(SYMBOLS - LOUD, SYMBOLS)),
            special=tuple(sorted(i for i in special if i < (self._tokens or 0))),
            mask="attention_mask" in names,
            positions="position_ids" in names,
            cache={"past_key_values", "use_cache"} <= names,
            options=options,
            backends=backends_of(self._given, self._sample()),
            dropout=self._has_dropout(),
            pad=next((p for p in padded if p is not None), 0),
            padded=plain and any(p is not None for p in padded),
            promises=promises,
            large=size >= LARGE,
        )

    def _has_dropout(self) -> bool:
        """Whether training mode draws something, the same from the same seed, and changes nothing else."""
        if any(isinstance(part, nn.modules.batchnorm._NormBase) for part in self._given.modules()):
            return False  # its running statistics would change
        ids = torch.arange(4)[None] % (self._tokens or SYMBOLS)
        try:
            plain = self.call(ids).y
            first, again = (self.call(ids, settings=Settings(train=True)).y for _ in range(2))
        except SubjectError:
            return False
        return not torch.equal(plain, first) and torch.equal(first, again)

    def _sample(self) -> Tensor:
        """A short input, to see how the module goes about it."""
        if self._tokens is not None:
            return torch.zeros(1, 4, dtype=torch.int64)
        return self._table[None, :4].to(self._native)

    def describe(self) -> dict[str, Any]:
        """Name, kind, target, what it reads, its own precision and its size."""
        said: dict[str, Any] = {"name": self.name, "kind": "module", "target": self.target}
        said["tokens" if self._tokens is not None else "width"] = self._tokens or self._width
        said["dtype"] = str(self._native).removeprefix("torch.")
        said["parameters"] = sum(p.numel() for p in self._given.parameters())
        return said

    @property
    def native(self) -> torch.dtype:
        """The precision of the weights as they were given."""
        return self._native

    @contextmanager
    def precision(self, dtype: torch.dtype) -> Iterator[None]:
        """Compute on a copy of the module in another precision inside the block.

        Where a short run in float64 meets float32 on its way, that is float64 too inside the block.
        """
        if dtype not in self._copies:
            try:
                self._copies[dtype] = copy.deepcopy(self._given).to(dtype)
            except Exception as error:
                raise SubjectError(f"{self.name} in {dtype}", raised(error), "examine it as it is") from error
        if dtype is torch.float64 and self._islands is None:
            self._islands = self._has_islands()
        before, self.dtype = self.dtype, dtype
        try:
            yield
        finally:
            self.dtype = before

    def _has_islands(self) -> bool:
        x = self._sample()
        module = self._copies[torch.float64]
        try:
            with torch.no_grad():
                return has_islands(lambda: module(x.double() if x.is_floating_point() else x))
        except Exception:  # a module that cannot be run says so when it is called
            return False

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
        """Run the module once; see :meth:`Subject.call`."""
        module = self._copies[self.dtype]
        x: Tensor = ids if self._tokens is not None else self._table[ids].to(self.dtype)
        given: dict[str, Any] = dict(settings.options)
        if mask is not None:
            given["attention_mask"] = mask
        if positions is not None:
            given["position_ids"] = positions
        if use_cache:
            given.update(use_cache=True, past_key_values=cache)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            _enter(stack, module, settings)
            if self.dtype is torch.float64 and self._islands:
                stack.enter_context(Float64())
            try:
                result = module(x, **given)
            except (Exception, SystemExit) as error:
                raise failure(self.name, x.shape, error) from error
        return read_output(self.name, result, ids, use_cache)


def _handed_on(module: nn.Module, known: set[str]) -> list[inspect.Parameter]:
    """The parameters with a default that ``**kwargs`` may hand on to a forward that the module inherits."""
    found: dict[str, inspect.Parameter] = {}
    for cls in type(module).__mro__:
        if cls is nn.Module or "forward" not in vars(cls):
            continue
        parameters = list(inspect.signature(vars(cls)["forward"]).parameters.values())
        for p in parameters:
            if p.default is not p.empty and p.name not in known:
                found.setdefault(p.name, p)
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return list(found.values())


@contextmanager
def _scaled(module: nn.Module, factor: float) -> Iterator[None]:
    weights = [p for n, p in module.named_parameters() if p.dim() >= 2 and "embed" not in n]
    kept = [w.detach().clone() for w in weights]
    try:
        for w in weights:
            w.data.mul_(factor)
        yield
    finally:
        for w, k in zip(weights, kept, strict=True):
            w.data.copy_(k)


@contextmanager
def _training(module: nn.Module) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module.train()
        try:
            yield
        finally:
            module.eval()


def _enter(stack: ExitStack, module: nn.Module, settings: Settings) -> None:
    if settings.scale != 1:
        stack.enter_context(_scaled(module, settings.scale))
    if settings.train:
        stack.enter_context(_training(module))
    if settings.backend is not None:
        enter_backend(stack, module, settings.backend)


def _pad_of(part: nn.Module) -> int | None:
    """The id that a module tells its padding by, where it names one."""
    for name in ("padding_idx", "pad_token_id", "pad_id", "pad_idx", "pad"):
        found = getattr(part, name, None)
        if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
            return found
    return None


def _is_switch(parameter: inspect.Parameter) -> bool:
    """Whether it is a boolean option: by its default, or where that is None by its annotation or its name."""
    if parameter.default is None:
        words = parameter.name.split("_")
        return "bool" in str(parameter.annotation) or words[0] in ASKS_FOR_MORE
    return isinstance(parameter.default, bool)
