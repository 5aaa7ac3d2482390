"""Masks of transformers, built a few queries at a time, so that none of time × time is held.

Axes: batch, queries, keys, pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from whyformer.errors import UsageError

Pairs = Int[Tensor, "3 pairs"]
"""Wanted (row of the batch, query, key)."""


def _masks() -> Any:
    """What transformers builds its masks with."""
    return import_module("transformers.masking_utils")


@dataclass(frozen=True, eq=False)
class Rows:
    """A mask that is built a few queries at a time, by the code of transformers itself.

    Attributes:
        arguments: what ``sdpa_mask`` is called with.
        function: says of (row, head, query, key) whether it is seen; None where it cannot be asked so.
        padding: the keys that are real, or None.
        local: how many keys back a query can see, or None.
    """

    arguments: dict[str, Any]
    function: Callable[..., Tensor] | None
    padding: Bool[Tensor, "batch keys"] | None
    local: int | None
    _asked: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def block(self, first: int, last: int, low: int, high: int) -> Bool[Tensor, "batch 1 queries keys"]:
        """The mask of queries first … last − 1 and keys low … high − 1."""
        own = self.arguments
        place = {"q_length": last - first, "q_offset": own["q_offset"] + first}
        place |= {"kv_length": high - low, "kv_offset": own["kv_offset"] + low}
        return _masks().sdpa_mask(**own | place, allow_is_causal_skip=False)

    def lowest(self, first: int) -> int:
        """A key below which no query from ``first`` on sees anything."""
        if self.local is None:
            return 0
        shift = self.arguments["q_offset"] - self.arguments["kv_offset"]
        return max(0, first + shift - self.local + 1)

    def visible(self, pairs: Pairs) -> Bool[Tensor, " pairs"]:
        """Whether each pair is seen; the first two answers are kept, since every layer asks the same."""
        for asked, seen in self._asked:
            if asked is pairs:
                return seen
        row, query, key = pairs
        if self.function is None:
            own = self.arguments
            seen = self.block(0, own["q_length"], 0, own["kv_length"])[row, 0, query, key]
        else:
            at, to = query + self.arguments["q_offset"], key + self.arguments["kv_offset"]
            seen = self.function(row, torch.zeros_like(row), at, to)
            if self.padding is not None:
                seen = seen & self.padding[row, to]
        if len(self._asked) < 2:
            self._asked.append((pairs, seen))
        return seen


def lazy_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor | None:
    """A mask for the attention function: None where it is plainly causal, or a placeholder with ``Rows``.

    The placeholder has the shape of the mask and no memory; a model that reckons with it instead of
    passing it on is told so when its attention function finds no ``Rows`` on it.
    """
    masks = _masks()
    function = mask_function or masks.causal_mask_function
    own = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": int(q_offset),
        "kv_offset": int(kv_offset),
        "attention_mask": attention_mask,
        "use_vmap": use_vmap,
        "device": device,
    }
    # Whether transformers would leave the mask out does not depend on the function: ask with a small one.
    skip = {"allow_is_causal_skip": allow_is_causal_skip, "local_size": local_size}
    if masks.sdpa_mask(**own | {"use_vmap": False}, **skip, mask_function=_always) is None:
        return None
    shape = (batch_size, 1, q_length, kv_length)
    placeholder = torch.empty(shape, dtype=torch.bool, device="meta").as_subclass(_Placeholder)
    padding = masks.prepare_padding_mask(attention_mask, kv_length, int(kv_offset))
    placeholder.rows = Rows(  # type: ignore[attr-defined]
        own | {"mask_function": function}, None if use_vmap else function, padding, local_size
    )
    return placeholder


class _Placeholder(Tensor):
    """A mask without memory, which says in one line why it cannot be reckoned with."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise reckoning("the model") from error


def reckoning(name: str) -> UsageError:
    """The error for a model that wants its whole mask before it attends."""
    why = "it reckons with its mask before it attends, so the mask cannot be built in parts"
    return UsageError(name, why, "scan a model that passes its mask on")


def _always(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return torch.ones((1, 1, 1, 1), dtype=torch.bool, device=query.device)
