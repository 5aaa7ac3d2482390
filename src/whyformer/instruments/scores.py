"""How large do attention scores become? Read off what is handed to softmax, whoever wrote the attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Scores(TorchDispatchMode):
    """Inside the block, the largest score of any attention is noted; masks are negative, and do not count.

    Where a fused kernel keeps its scores to itself, it is the product of the longest query and key.

    Attributes:
        largest: the largest score so far; 0 where none was met.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation, and look at what it was given."""
        name = func._schema.name.split("::")[1]
        if name in {"_softmax", "_safe_softmax"}:
            self._note(args[0].max())
        elif "dot_product" in name:
            query, key = args[:2]
            longest = query.norm(dim=-1).max() * key.norm(dim=-1).max()
            self._note(longest / query.shape[-1] ** 0.5)
        return func(*args, **(kwargs or {}))

    def _note(self, score: Tensor) -> None:
        self.largest = max(self.largest, float(torch.nan_to_num(score.double(), 0.0, 1e300, 0.0)))
