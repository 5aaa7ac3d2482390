"""Which ways torch has of computing a module's attention, and how to choose one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

MATH, LAYERS = "sdpa math", "no fast path"
_FAST = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
_SWITCHES = {
    "eager", "efficient", "fast", "flash", "fused", "kernel", "kernels", "naive", "sdpa", "triton", "xformers"
}  # fmt: skip
"""Words in the name of a boolean attribute that chooses how, and not what, a module computes."""


class _Recorder(TorchDispatchMode):
    """Inside the block, the names of all operations are noted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


def backends_of(module: nn.Module, x: Tensor) -> tuple[str, ...]:
    """The ways of computing attention that a module offers beside its default one.

    ``sdpa math`` where it calls torch's scaled_dot_product_attention, which else picks a fused kernel;
    ``no fast path`` where torch's encoder layers or multi-head attention take theirs; and ``NAME=VALUE`` for
    each boolean attribute that is named for a kernel, turned over, where the module still runs.

    Args:
        module: in eval mode.
        x: a short input that it reads.
    """
    names = _operations(module, x)
    if names is None:
        return ()
    offered = []
    if any("scaled_dot_product" in name for name in names):
        offered.append(MATH)
    if names & set(_FAST):
        offered.append(LAYERS)
    switches = [f"{name}={not value}" for name, value in sorted(_switches(module).items())]
    return (*offered, *(s for s in switches if _operations(module, x, s) is not None))


def enter_backend(stack: ExitStack, module: nn.Module, backend: str) -> None:
    """Have a module use a backend of :func:`backends_of` until the stack is left."""
    if backend == MATH:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
    elif backend == LAYERS:
        stack.enter_context(_layer_by_layer())
    else:
        name, _, value = backend.partition("=")
        stack.enter_context(_switched(module, name, value == "True"))


def _operations(module: nn.Module, x: Tensor, backend: str | None = None) -> set[str] | None:
    """The operations of one call, or None where it raises: that is told when the module is examined."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if backend is not None:
            enter_backend(stack, module, backend)
        recorder = stack.enter_context(_Recorder())
        try:
            module(x)
        except Exception:
            return None
    return recorder.names


def _switches(module: nn.Module) -> dict[str, bool]:
    """The boolean attributes that are named for a kernel, with the value in the first part that has one."""
    found: dict[str, bool] = {}
    for part in module.modules():
        if type(part).__module__.startswith("torch."):
            continue
        for name, value in vars(part).items():
            if isinstance(value, bool) and _SWITCHES & set(name.lower().split("_")):
                found.setdefault(name, value)
    return found


@contextmanager
def _switched(module: nn.Module, name: str, value: bool) -> Iterator[None]:
    parts = [part for part in module.modules() if isinstance(vars(part).get(name), bool)]
    before = [getattr(part, name) for part in parts]
    try:
        for part in parts:
            setattr(part, name, value)
        yield
    finally:
        for part, was in zip(parts, before, strict=True):
            setattr(part, name, was)


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
