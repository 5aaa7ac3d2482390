"""Attention kernels that also give the log-sum-exp of each query's scores.

The fused kernels of torch compute it on the way and return it; where neither of them takes the call (soft
caps, sinks, values of another width than the keys), a plain one works through the queries in blocks.

Axes: batch, heads, kv (key-value heads), time (queries), keys, width, pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FUSED = "fused kernel with log-sum-exp"
PLAIN = "plain attention, in blocks of queries"
BLOCK = 1 << 22
"""The most scores, of all heads (or for a mask, of all rows), that are held at once."""
ALIGNED = 16
"""Numbers to which the rows of a mask are aligned for CUDA; 8 are enough for some versions of torch."""
GATHERED = 1 << 19
"""The most numbers of a row's queries that are taken at once: they fit a processor's cache."""

_SHARED_KEYS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether the fused CPU kernel takes fewer key-value heads than heads; checked on torch 2.13."""


class Lazy(Protocol):
    """A mask that is built in parts."""

    def block(self, first: int, last: int, low: int, high: int) -> Tensor:
        """The mask of queries first … last − 1 and keys low … high − 1, True where seen."""

    def lowest(self, first: int) -> int:
        """A key below which no query from ``first`` on sees anything."""

    def visible(self, pairs: Tensor) -> Tensor:
        """Whether each (row, query, key) is seen."""


@dataclass(frozen=True, eq=False)
class Scoring:
    """How a score follows from a query and a key.

    Attributes:
        scale: factor on their product.
        causal: whether a query sees the keys up to its own place only.
        mask: what it sees beyond that: True for a pair that is seen, or numbers to add; or built in parts.
        cap: scores go through cap · tanh(score / cap).
        sinks: one more score for each head, of a key that holds nothing.
        bias: numbers to add before the mask.
    """

    scale: float
    causal: bool = False
    mask: Tensor | Lazy | None = None
    cap: float | None = None
    sinks: Float[Tensor, " heads"] | None = None
    bias: Float[Tensor, "_ _ time keys"] | None = None

    @property
    def plain(self) -> bool:
        """Whether a score is the scaled product and a mask, and nothing else."""
        return self.cap is None and self.sinks is None and self.bias is None

    def capped(self, score: Tensor) -> Tensor:
        """The score after its soft cap."""
        return score if self.cap is None else self.cap * torch.tanh(score / self.cap)


def attend(
    query: Float[Tensor, "batch heads time width"],
    key: Float[Tensor, "batch kv keys width"],
    value: Float[Tensor, "batch kv keys out"],
    scoring: Scoring,
) -> tuple[Float[Tensor, "batch heads time out"], Float[Tensor, "batch heads time"], str]:
    """What each head reads, the log-sum-exp of its scores, and the computation that was taken, in words."""
    fusible = scoring.plain and key.shape[-1] == value.shape[-1]
    # The fused kernels take the numbers of one head as neighbours in memory, and do not look.
    fusible = fusible and all(part.stride(-1) == 1 for part in (query, key, value))
    if fusible and query.device.type == "cpu":
        return *_fused(_fused_cpu, query, key, value, scoring), f"{FUSED} on cpu"
    if fusible and query.device.type == "cuda" and _efficient(query, key, value):
        return *_fused(_fused_cuda, query, key, value, scoring), f"{FUSED} on cuda"
    return *_plain(query, key, value, scoring), PLAIN


def _fused(kernel: Any, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """One call of the kernel, or with a mask built in parts, one for every block of queries."""
    mask, scale = scoring.mask, scoring.scale
    if mask is None or isinstance(mask, Tensor):
        added = None if mask is None else _additive(mask, query)
        return kernel(query, key, value, added, scoring.causal, scale)
    batch, time, keys = query.shape[0], query.shape[2], key.shape[2]
    size = max(1, min(time, BLOCK // (batch * keys)))
    parts = []
    for first in range(0, time, size):
        last = min(time, first + size)
        # A block that holds every query is the call that torch itself would make, bitwise.
        low, high = (0, keys) if size == time else (mask.lowest(first), keys - time + last)
        added = _additive(mask.block(first, last, low, high), query)
        q, k, v = query[:, :, first:last], key[:, :, low:high], value[:, :, low:high]
        parts.append(kernel(q, k, v, added, False, scale))
    if len(parts) == 1:
        return parts[0]
    outputs, normalisers = zip(*parts, strict=True)
    return torch.cat(outputs, 2), torch.cat(normalisers, 2)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add: 0 where seen, −∞ where not."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(~mask, -torch.inf)


def _fused_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    if not _SHARED_KEYS:
        key, value = _spread(key, query), _spread(value, query)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )


def _fused_cuda(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The memory-efficient kernel, which takes float32 and masks; its log-sum-exp is padded at the end."""
    time = query.shape[2]
    if mask is not None:
        mask = _aligned(mask.to(query.dtype)).expand(query.shape[0], query.shape[1], time, key.shape[2])
    output, normaliser, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, _spread(key, query), _spread(value, query), mask, True, 0.0, causal, scale=scale
    )
    return output, normaliser[..., :time]


def _efficient(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the memory-efficient kernel takes these: not float64, for one, nor every width of a head."""
    cuda = torch.backends.cuda
    spread = _spread(key, query), _spread(value, query)
    return cuda.can_use_efficient_attention(cuda.SDPAParams(query, *spread, None, 0.0, False, False))


def _aligned(mask: Tensor) -> Tensor:
    """The mask in rows whose beginnings lie apart by a multiple of ``ALIGNED``, as torch lays it out too."""
    keys = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, -keys % ALIGNED)).contiguous()[..., :keys]


def _spread(shared: Tensor, query: Tensor) -> Tensor:
    """Keys or values of each key-value head, repeated for those that share it: head h reads ⌊h·kv/heads⌋."""
    return shared.repeat_interleave(query.shape[1] // shared.shape[1], 1)


def _plain(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    batch, heads, time, _ = query.shape
    keys = key.shape[2]
    key, value = _spread(key, query), _spread(value, query)
    output = query.new_empty(batch, heads, time, value.shape[-1])
    exact = torch.promote_types(query.dtype, torch.float32)
    normaliser = torch.empty(batch, heads, time, dtype=exact, device=query.device)
    turned = key.to(exact).mT
    size = max(1, BLOCK // (batch * heads * keys))
    for first in range(0, time, size):
        last = min(time, first + size)
        score = scoring.capped(query[:, :, first:last].to(exact) @ turned * scoring.scale)
        if scoring.bias is not None:
            score = score + scoring.bias[..., first:last, :keys]
        seen = _seen(scoring, first, last, keys, score)
        score = score if seen is None else score + seen
        total = score.logsumexp(-1)
        if scoring.sinks is not None:
            total = torch.logaddexp(total, scoring.sinks.to(total).view(1, -1, 1))
        # A query that sees nothing reads nothing.
        weights = (score - total[..., None]).exp_().nan_to_num_(0.0)
        output[:, :, first:last] = weights.to(value.dtype) @ value
        normaliser[:, :, first:last] = total
    return output, normaliser


def _seen(scoring: Scoring, first: int, last: int, keys: int, like: Tensor) -> Tensor | None:
    """What the mask adds to the scores of a block of queries."""
    if scoring.causal:
        place = torch.arange(keys, device=like.device)
        return _additive(place <= torch.arange(first, last, device=like.device)[:, None], like)
    if scoring.mask is None:
        return None
    if isinstance(scoring.mask, Tensor):
        return _additive(scoring.mask[..., first:last, :keys], like)
    return _additive(scoring.mask.block(first, last, 0, keys), like)


def pair_probability(
    query: Float[Tensor, "batch heads time width"],
    key: Float[Tensor, "batch kv keys width"],
    normaliser: Float[Tensor, "batch heads time"],
    scoring: Scoring,
    pairs: Int[Tensor, "3 pairs"],
) -> Float[Tensor, "pairs heads"]:
    """exp(score − log-sum-exp) of each (row, query, key), in float32 or better; 0 where a mask hides it.

    Scores of half precision are computed in float32, as the kernels do whose log-sum-exp is subtracted.
    """
    # One axis of rows and times, along which each index is one stretch of memory.
    q, k, total = (part.flatten(0, 1) for part in _by_time(query, key, normaliser))
    found = torch.empty(pairs.shape[1], query.shape[1], dtype=normaliser.dtype, device=query.device)
    size = _gathered(query)
    for start in range(0, pairs.shape[1], size):
        row, at, to = pairs[:, start : start + size]
        asking = row * query.shape[2] + at
        keys = k.index_select(0, row * key.shape[2] + to)
        score = _product(q.index_select(0, asking), keys, found).flatten(1)
        score = scoring.capped(score * scoring.scale)
        if scoring.bias is not None:
            score = score + _picked(scoring.bias, row, at, to)
        if isinstance(scoring.mask, Tensor) and scoring.mask.dtype != torch.bool:
            score = score + _picked(scoring.mask, row, at, to)
        found[start : start + size] = (score - total.index_select(0, asking)).exp()
    hidden = _hidden(scoring, pairs)
    return found if hidden is None else found.masked_fill_(hidden, 0.0)


def place_probability(
    query: Float[Tensor, "batch heads time width"],
    key: Float[Tensor, "batch kv keys width"],
    normaliser: Float[Tensor, "batch heads time"],
    scoring: Scoring,
    back: int | None,
) -> Float[Tensor, "batch heads later"]:
    """What each query but the first gives to the key ``back`` (0 or 1) before it; for None, to key 0.

    The same as ``pair_probability`` of those pairs; under a plain causal mask slices do, and nothing is
    gathered.
    """
    batch, heads, time, _ = query.shape
    if not scoring.causal or scoring.bias is not None:
        places = torch.arange(1, time, device=query.device)
        at = places.repeat(batch)
        row = torch.arange(batch, device=query.device).repeat_interleave(time - 1)
        pairs = torch.stack([row, at, at * 0 if back is None else at - back])
        found = pair_probability(query, key, normaliser, scoring, pairs)
        return found.view(batch, time - 1, heads).transpose(1, 2)
    found = normaliser.new_empty(batch, time - 1, heads)
    q, k, total = _by_time(query, key, normaliser)
    size = _gathered(query)
    for first in range(1, time, size):
        last = min(time, first + size)
        keys = k[:, :1] if back is None else k[:, first - back : last - back]
        score = scoring.capped(_product(q[:, first:last], keys, found).flatten(2) * scoring.scale)
        found[:, first - 1 : last - 1] = (score - total[:, first:last]).exp()
    return found.transpose(1, 2)


def _by_time(
    query: Float[Tensor, "batch heads time width"],
    key: Float[Tensor, "batch kv keys width"],
    normaliser: Float[Tensor, "batch heads time"],
) -> tuple[
    Float[Tensor, "batch time kv shared width"],
    Float[Tensor, "batch keys kv width"],
    Float[Tensor, "batch time heads"],
]:
    """Each with its times before its heads, and the heads of a query by the key that they share."""
    shared = query.unflatten(1, (key.shape[1], -1))
    return shared.movedim(-2, 1), key.transpose(1, 2), normaliser.transpose(1, 2)


def _gathered(query: Float[Tensor, "_ heads _ width"]) -> int:
    """How many queries are taken at once."""
    return max(1, GATHERED // (query.shape[1] * query.shape[3]))


def _product(
    query: Float[Tensor, "*_ kv shared width"], key: Float[Tensor, "*_ kv width"], like: Tensor
) -> Float[Tensor, "*_ kv shared"]:
    """Each query times the key of its head, in the dtype of ``like``, whatever autocast says."""
    with torch.autocast(query.device.type, enabled=False):
        return (query.to(like.dtype) @ key.to(like.dtype)[..., None])[..., 0]


def _picked(added: Tensor, row: Tensor, at: Tensor, to: Tensor) -> Float[Tensor, "pairs _"]:
    """The entries of (1 or batch, 1 or heads, time, keys) at the pairs."""
    return added[row if added.shape[0] > 1 else torch.zeros_like(row), :, at, to]


def _hidden(scoring: Scoring, pairs: Tensor) -> Bool[Tensor, "pairs _"] | None:
    """The pairs that the mask hides, for some heads or for all; a row that sees nothing gives nothing."""
    mask = scoring.mask
    if scoring.causal:
        return (pairs[2] > pairs[1])[:, None]
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        return ~mask.visible(pairs)[:, None]
    seen = _picked(mask, *pairs)
    return ~seen if seen.dtype == torch.bool else seen == -torch.inf
