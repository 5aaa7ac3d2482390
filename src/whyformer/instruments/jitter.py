"""Measure what rounding does to a computation, by moving every elementary result by about one last place.

This is Monte Carlo arithmetic at the level of tensor operations: it needs nothing of the model's source, and
it follows the dtype of each operation, so a model that computes its angles or norms in float32 inside a
float64 forward is given the noise of float32 there and of float64 elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_EXACT = {
    "alias", "arange", "as_strided", "cat", "clone", "constant_pad_nd", "copy", "detach", "diagonal",
    "embedding", "empty", "empty_like", "expand", "eye", "fill", "flip", "full", "full_like", "gather",
    "index", "index_copy", "index_put", "index_select", "masked_fill", "maximum", "max", "min", "minimum",
    "neg", "new_empty", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "permute", "relu",
    "repeat", "reshape", "roll", "round", "scalar_tensor", "scatter", "select", "sign", "slice",
    "slice_scatter", "sort", "split", "split_with_sizes", "squeeze", "stack", "t", "topk", "transpose",
    "tril", "triu", "unbind", "unfold", "unsqueeze", "view", "where", "zero", "zeros", "zeros_like",
    "_local_scalar_dense", "_unsafe_view", "lift_fresh", "clamp", "clamp_min", "clamp_max", "abs", "amax",
    "amin", "select_scatter", "_reshape_alias", "bernoulli", "native_dropout", "rand", "randn", "rand_like",
    "randn_like",
}  # fmt: skip
"""Operations that move or choose numbers without rounding them."""

_SUMS = {"mm", "bmm", "addmm", "baddbmm", "convolution", "mv", "dot", "cumsum", "linear", "sum", "mean"}
"""Operations whose result may be far smaller than their terms: their operand is moved too."""


class Jitter(TorchDispatchMode):
    """Inside the block, every rounded result is moved by a random factor within one unit in the last place.

    Numbers that are whole stay as they are (masks, counts, most negative values), since those are exact.

    Args:
        seed: the draws follow from it.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation, with its operand and its result moved."""
        name = func._schema.name.split("::")[1]
        stem = name.rstrip("_")
        kwargs = kwargs or {}
        if stem == "_to_copy":
            return self._cast(func(*args, **kwargs), args[0])
        if stem in _EXACT:
            return func(*args, **kwargs)
        if stem in _SUMS or "attention" in stem:
            place = 1 if stem in {"addmm", "baddbmm"} else 0
            args = (*args[:place], self._moved(args[place]), *args[place + 1 :])
        result = func(*args, **kwargs)
        if name.endswith("_") and isinstance(result, Tensor):
            return result.copy_(self._moved(result)) if result.is_floating_point() else result
        if isinstance(result, (tuple, list)):
            return type(result)(self._moved(r) for r in result)
        return self._moved(result)

    def _cast(self, result: Any, source: Tensor) -> Any:
        narrower = source.is_floating_point() and result.dtype.is_floating_point
        return self._moved(result) if narrower and result.element_size() < source.element_size() else result

    def _moved(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or x.is_nested or not x.is_floating_point() or x.numel() == 0:
            return x
        noise = torch.empty(x.shape, dtype=torch.float32).uniform_(-1, 1, generator=self._generator)
        factor = (
            1 + noise.to(x.dtype if x.dtype == torch.float64 else torch.float32) * torch.finfo(x.dtype).eps
        )
        return torch.where(x == x.round(), x, (x * factor).to(x.dtype))
