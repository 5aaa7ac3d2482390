"""Additive biases of attention scores, masks included: what is added to the score of query i and key j.

Axes: heads (1 where every head shares the bias), then query i, then key j. A key that a query may not see
has −∞. Every bias is float64; attention casts it to the dtype of its scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.errors import UsageError

Bias = Callable[[int], Float[Tensor, "heads n n"]]
"""From a number of positions to the bias of its scores."""


def _distance(n: int) -> Float[Tensor, "n n"]:
    """How far query i stands after key j: i − j."""
    at = torch.arange(n, dtype=torch.float64)
    return at[:, None] - at[None, :]


def _where(seen: Tensor) -> Float[Tensor, "1 n n"]:
    """0 where a key is seen, −∞ where it is not."""
    return torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -math.inf)[None]


def none(n: int) -> Float[Tensor, "1 n n"]:
    """No bias: every query sees every key."""
    return torch.zeros(1, n, n, dtype=torch.float64)


def causal(n: int) -> Float[Tensor, "1 n n"]:
    """A query sees itself and the keys before it."""
    return _where(_distance(n) >= 0)


def prefix(p: int) -> Bias:
    """The first ``p`` positions see each other; the later ones are causal."""
    return lambda n: _where((_distance(n) >= 0) | (torch.arange(n) < p)[None, :])


def documents(lengths: Sequence[int]) -> Bias:
    """Documents packed in a row, of the given lengths, that do not see each other.

    Raises:
        UsageError: when the bias is asked for another number of positions than the lengths sum to.
    """
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))

    def bias(n: int) -> Float[Tensor, "1 n n"]:
        _require(n, len(owner), f"documents of lengths {list(lengths)}")
        return _where(owner[:, None] == owner[None, :])

    return bias


def window(w: int, causal: bool = True) -> Bias:
    """A query sees the ``w`` latest keys, itself included; or, both ways, those nearer than ``w``."""
    if w < 1:
        raise UsageError(f"a window of {w}", "a query sees at least itself", "give 1 or more")

    def bias(n: int) -> Float[Tensor, "1 n n"]:
        distance = _distance(n)
        return _where((distance.abs() < w) & ((distance >= 0) | (not causal)))

    return bias


def circulant(row: Float[Tensor, " n"]) -> Bias:
    """Positions on a ring: the bias is ``row[(j − i) mod n]``, for n = len(row) positions."""

    def bias(n: int) -> Float[Tensor, "1 n n"]:
        _require(n, len(row), "a circulant bias")
        return row.double()[(-_distance(n)).long() % n][None]

    return bias


def key_only(row: Float[Tensor, "*heads n"]) -> Bias:
    """The bias is ``row[j]``, or ``row[h, j]`` by head, whichever query asks; for n positions or fewer."""

    def bias(n: int) -> Float[Tensor, "heads n n"]:
        if n > row.shape[-1]:
            _require(n, row.shape[-1], "a key-only bias")
        rows = row.double().reshape(-1, 1, row.shape[-1])[..., :n]
        return rows.expand(-1, n, -1)

    return bias


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """What a step of distance costs in each head: 2^(−8h/heads), h from 1 to ``heads``."""
    return torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], dtype=torch.float64)


def alibi(heads: int, causal: bool = True) -> Bias:
    """Head h of H subtracts 2^(−8h/H) for each step of distance, h from 1 to H; causal, or both ways.

    The slopes are those of Press et al., "Train Short, Test Long" (2022), for H a power of 2.
    """
    slopes = alibi_slopes(heads)

    def bias(n: int) -> Float[Tensor, "heads n n"]:
        distance = _distance(n)
        ramp = -slopes[:, None, None] * distance.abs()
        return ramp.masked_fill(distance < 0, -math.inf) if causal else ramp

    return bias


def t5(table: Float[Tensor, "heads buckets"], signed: bool = True) -> Bias:
    """A learned number for each bucket of distance, as in T5.

    Half of the buckets hold one distance each; the other half widen with the logarithm of the distance, up
    to 128, and the last holds all beyond. Signed, keys before and after have half of the table each;
    unsigned, they share it.
    """
    buckets = table.shape[-1] // 2 if signed else table.shape[-1]
    if buckets < 2:
        raise UsageError(
            f"a T5 table of {table.shape[-1]} buckets", "each side needs at least 2", "give a wider table"
        )
    exact = buckets // 2

    def bias(n: int) -> Float[Tensor, "heads n n"]:
        distance = _distance(n)
        far = distance.abs()
        scale = (far.clamp(min=exact) / exact).log() / math.log(128 / exact)
        wide = (exact + (scale * (buckets - exact)).long()).clamp(max=buckets - 1)
        bucket = torch.where(far < exact, far.long(), wide)
        return table.double()[:, bucket + buckets * ((distance < 0) & signed)]

    return bias


def add(*biases: Bias) -> Bias:
    """The sum of biases: a mask and a ramp, as ``add(causal, key_only(row))``."""

    def bias(n: int) -> Float[Tensor, "heads n n"]:
        total = biases[0](n)
        for other in biases[1:]:
            total = total + other(n)
        return total

    return bias


def _require(n: int, made_for: int, what: str) -> None:
    if n != made_for:
        raise UsageError(
            f"{what} on {n} positions", f"it is made for {made_for}", f"give {made_for} positions"
        )
