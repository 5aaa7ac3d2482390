"""What the two heads' scores can be over all sequences, and how far rounding moves them.

The matching head scores a key by the word it carries against the query's word, turned by their distance. Per
pair of coordinates with the weight g and the frequency θ, a key at distance D adds

    2g cos θD where both signs agree, −2g cos θD where neither does, ±2g sin θD where one does.

``match`` sums the first: a key that carries the query's own word. ``others`` bounds every other word: with an
inner product of μ at most, the agreeing pairs outnumber the opposed ones by μ/2 at most, so for any λ ≥ 0

    score ≤ λμ/2 + Σ_f max(2g cos θD − λ, 2g |sin θD|, λ − 2g cos θD)        (weak duality),

and the least over several λ is taken. Coordinates that are not turned are pairs with θ = 0, where the bound
is gμ, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.instruments.rounding import gamma, unit

EXACT = 104.0
"""e^−104 is below half of the smallest float32, 2^−149: it is 0, and so is the weight of a key 104 behind."""
_BLOCK = 2**14
_MULTIPLIERS = torch.linspace(0.1, 1, 10).double()


@dataclass(frozen=True)
class Content:
    """The pairs of coordinates that a matching head compares: weights g, frequencies θ, and μ."""

    weight: Float[Tensor, " pairs"]
    theta: Float[Tensor, " pairs"]
    inner: int

    def _waves(self, at: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part in at.double().split(_BLOCK):
            angle = part[:, None] * self.theta.double()
            yield 2 * self.weight * angle.cos(), 2 * self.weight * angle.sin().abs()

    def match(self, at: Float[Tensor, " distances"]) -> Float[Tensor, " distances"]:
        """The score of a key that carries the query's word, at each distance."""
        return torch.cat([along.sum(-1) for along, _ in self._waves(at)])

    def others(self, at: Float[Tensor, " distances"]) -> Float[Tensor, " distances"]:
        """A bound on the score of a key that carries any other word, at each distance."""
        bounds = []
        for along, across in self._waves(at):
            best = torch.full((len(along),), torch.inf, dtype=torch.float64)
            for part in _MULTIPLIERS * 2 * self.weight.max():
                sides = torch.maximum(across, (along - part).abs()).sum(-1)
                best = torch.minimum(best, sides + part * self.inner / 2)
            bounds.append(best)
        return torch.cat(bounds)


def stray(
    size: Float[Tensor, " pairs"],
    table: Float[Tensor, " pairs"] | float,
    products: int,
    dtype: torch.dtype,
    norm: Tensor | float = 0.0,
) -> float:
    """How far one score may be from its exact value.

    A pair of size a = |q||k| times the head's scale may be rounded by 2u where the scale is taken into q and
    k first: 4u·a. Where positions turn it, twice, each turn is wrong by the table's error, and by 3u for four
    products and two sums: 2a(table + 3u). Norms that round add a·norm. The dot product adds γ_n Σa, n the
    products that are not 0, summed in float32 in any order. The score is then rounded to the dtype, scaled
    and rounded again, and the row's largest is taken away: 4u Σa.

    Args:
        size: a, by pair; only the pairs in which this key is not 0.
        table: by pair, from ``rotary.table_error``; 0 where nothing turns.
        products: n.
        dtype: of activations.
        norm: by pair, from ``norm_errors``.
    """
    u, total = unit(dtype), float(size.sum())
    table = torch.as_tensor(table).double()
    each = 2 * (2 * u + table + 3 * u * (table > 0)) + norm
    return float((size * each).sum()) + (gamma(products, torch.float32) + 4 * u) * total


def norm_errors(layer_norm: bool, width: int, ratio: float) -> tuple[float, float]:
    """The relative error that norms leave in a key, beyond what all tokens and positions share.

    A root-mean-square norm adds squares that are whole multiples of one power of two: its sum is exact in
    any order, a power of four times the width, and so are its mean and its root. A layer norm adds entries
    and squares that it may have shifted by a running mean. Its variance, of ``width`` summands, is within
    γ_width, its root within half of that, and 8 roundings follow: a scale that all entries share. Its mean is
    within γ_width of the root mean square: a shift that all entries share.

    The scale of the query is the same for all keys; it is left to the difference between 104 and 103.98,
    where e^−x is 0. The shift cancels in a product with a balanced word. It does not in a constant or a flag.

    Args:
        layer_norm: whether it is a layer norm.
        width: of the residual stream.
        ratio: the root mean square over the smallest entry that is read.

    Returns:
        The error of a copied word, which two norms have scaled, and that of a constant or a flag.
    """
    if not layer_norm:
        return 0.0, 0.0
    scale, shift = gamma(width // 2 + 8, torch.float32), gamma(width, torch.float32)
    return 2 * scale, scale + 2 * shift * ratio


def share(step: float | None, reach: int, dtype: torch.dtype) -> tuple[float, float]:
    """What the latest twin keeps of the weight, at least, and how far all weights are from a sum of 1.

    Older twins fall by ``step`` each, and below e^−104 they are exactly 0, so that few are summed; without a
    step all may agree. Each weight is rounded to the dtype, and the sum over n of them by γ_n.

    Args:
        step: the step of recency, rounding taken off; None without one.
        reach: how many positions a query sees.
        dtype: of activations.
    """
    number = reach if step is None else min(reach, int(EXACT / step) + 2)
    older = 0.0 if step is None else 1 / math.expm1(step)
    return 1 / (1 + older), 2 * unit(dtype) + gamma(number, torch.float32)


def blurred(
    layer_norm: bool, width: int, ratio: float, blur: float, dtype: torch.dtype
) -> tuple[float, float]:
    """The relative error of a score behind a head that may have mixed what agrees but for ``blur``.

    All that the head wrote is wrong by ``blur`` at most, and the norm's scale by as much, since less than all
    of its square was written; it now rounds, its sum by γ of half the width, and its result to the dtype.
    Query and key have both passed it. What was found has passed a layer norm once more than what was copied
    one back, and the mean that a layer norm takes away may be blurred.

    Args:
        layer_norm: whether the norm is a layer norm.
        width: of the residual stream.
        ratio: the root mean square over the smallest entry that is read.
        blur: the relative error of what the head wrote.
        dtype: of activations.

    Returns:
        The error of what is compared by content, and that of a constant or a flag.
    """
    copied, own = norm_errors(layer_norm, width, ratio)
    scale = blur / (1 - blur) + gamma(width // 2 + 8, torch.float32) + 2 * unit(dtype)
    shift = 2 * (blur + gamma(width, torch.float32)) * ratio if layer_norm else 0.0
    return math.expm1(1.5 * copied + blur + 2 * scale), math.expm1(own + 2 * (blur + scale) + shift)


@dataclass(frozen=True)
class Gaps:
    """By how much keys differ in score at worst, rounding not yet taken off.

    Attributes:
        twin: a twin's successor over the first token.
        first: the first token over every other key.
        step: a twin's successor over the same one position back.
    """

    twin: float
    first: float
    step: float


def gaps(
    match: Float[Tensor, " reach"],
    others: Float[Tensor, " reach"],
    first: Float[Tensor, " reach"],
    ramp: Float[Tensor, " reach"],
) -> Gaps:
    """The worst gaps over every query t and every key, from scores by distance.

    The first token stands at distance t, all other keys nearer; a twin's successor at t − 2 or nearer.

    Args:
        match: the score of a twin's successor by distance, without recency.
        others: that of any other key, at most.
        first: that of the first token.
        ramp: what recency adds, by distance.
    """
    twin, first, rest = match + ramp, first + ramp, others + ramp
    nearest = torch.cummin(twin, 0).values
    crowd = torch.cummax(rest, 0).values
    return Gaps(
        float((nearest[:-1] - first[1:]).min()),
        float((first[1:] - crowd[:-1]).min()),
        float((twin[:-1] - twin[1:]).min()),
    )
