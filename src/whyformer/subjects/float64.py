"""Compute in float64 on weights that stay in float32, and without the float32 islands of a model's own code.

Many models write float32 into their forward (angles of rotary positions, norms, softmax), and keep it when
the module is moved to float64. Each such island puts a floor of 1e-7 under every comparison. Inside
:class:`Float64` each torch call gets its float32 tensors moved up first, which is exact, so that nothing
is rounded to float32 on the way, and no second copy of the weights is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_AS_IT_IS = {
    "__get__", "__set__", "__len__", "_is_view", "data_ptr", "dim", "is_complex", "is_contiguous",
    "is_floating_point", "ndimension", "numel", "register_hook", "size", "storage_offset", "stride",
    "untyped_storage",
}  # fmt: skip
"""What reads no numbers."""

_WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"}
"""What writes into its first argument, beside the names that end in one underscore."""

_ROWS = 1 << 22
"""How many entries of a weight are moved up at a time, where it has more."""


class Float64(TorchFunctionMode):
    """Inside the block, float32 is float64: for tensors, for dtypes that are named, and for new tensors.

    A module that is run in it must have been built outside.
    """

    def __enter__(self) -> Float64:
        """Make float64 the dtype of new tensors too."""
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Give the former dtype back."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self._before)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one call on float64."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "embedding":  # the rows that are looked up are moved, not the table
            return _up(func(*args, **kwargs))
        if name == "float":
            return args[0].double()
        writes = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
        if name in _AS_IT_IS or "out" in kwargs:
            return func(*args, **kwargs)
        if writes and args[0].dtype is torch.float32:  # a float32 tensor that is kept stays one
            return func(args[0], *_down(args[1:]), **{key: _down(value) for key, value in kwargs.items()})
        if name == "linear" and len(args) >= 2 and args[1].dtype is torch.float32 and args[1].numel() > _ROWS:
            return _linear(*args, **kwargs)
        return func(*_up(args), **{key: _up(value) for key, value in kwargs.items()})


def _up(x: Any) -> Any:
    return _moved(x, torch.float32, torch.float64)


def _down(x: Any) -> Any:
    return _moved(x, torch.float64, torch.float32)


def _moved(x: Any, source: torch.dtype, goal: torch.dtype) -> Any:
    """Every tensor of the source's dtype in the goal's, and the dtype itself where it is named."""
    if isinstance(x, Tensor):
        return x.to(goal) if x.dtype is source else x
    if x is source:
        return goal
    if type(x) in (list, tuple):
        return type(x)(_moved(item, source, goal) for item in x)
    return x


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product x W^T + b, so many rows of W at a time that little of it is held twice."""
    rows = max(1, _ROWS // weight.shape[1])
    parts = [nn.functional.linear(_up(x), part.double()) for part in weight.split(rows)]
    y = torch.cat(parts, dim=-1)
    return y if bias is None else y + _up(bias)


class _Seen(TorchDispatchMode):
    """Notes whether any operation returned float32."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.float32 = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            self.float32 |= isinstance(x, Tensor) and x.dtype is torch.float32
        return result


def has_islands(run: Callable[[], Any]) -> bool:
    """Whether any operation of a run that ought to be in float64 returns float32."""
    with _Seen() as seen:
        run()
    return seen.float32
