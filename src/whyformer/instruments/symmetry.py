"""Which permutations of the positions a map commutes with: f(πx) = πf(x), where (πx)_i = x_{π(i)}.

The permutations that hold for all x are a group. For an analytic map, as attention with GELU and layer norm
is, one x drawn from a density decides almost surely in exact arithmetic: the deviation is analytic in x, so
it vanishes everywhere or on a set of measure zero. Rounding is told apart by the bound that is passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations as orderings

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from whyformer.errors import UsageError
from whyformer.instruments.rounding import CLEAR
from whyformer.subjects.biases import Bias

LARGEST = 7
"""The most positions of which all permutations are tried: 5,040 of them."""

Map = Callable[[Tensor], Tensor]
"""From (batch, time, width) to (batch, time, anything)."""


@dataclass(frozen=True)
class Symmetry:
    """What came of trying permutations on a map.

    Attributes:
        permutations: those tried, (count, n).
        deviations: for each, the largest |f(πx) − πf(x)|.
        bound: the largest deviation that rounding explains; nothing is decided where it is not finite.
    """

    permutations: Int[Tensor, "count n"]
    deviations: Float[Tensor, " count"]
    bound: float

    @property
    def commutes(self) -> Bool[Tensor, " count"]:
        """Where rounding explains the deviation."""
        return (self.deviations <= self.bound) & math.isfinite(self.bound)

    @property
    def breaks(self) -> Bool[Tensor, " count"]:
        """Where the deviation is clearly beyond rounding."""
        return self.deviations > CLEAR * self.bound

    @property
    def decided(self) -> bool:
        """Whether every permutation either commutes or breaks."""
        return bool((self.commutes | self.breaks).all())

    @property
    def order(self) -> int:
        """How many of the permutations that were tried commute."""
        return int(self.commutes.sum())


@lru_cache(maxsize=LARGEST)
def permutations(n: int) -> Int[Tensor, "count n"]:
    """All permutations of n positions in lexicographic order, the identity first.

    Raises:
        UsageError: beyond 7 positions, where there are too many to try.
    """
    if not 1 <= n <= LARGEST:
        raise UsageError(
            f"all permutations of {n} positions", f"they are tried for 1 to {LARGEST}", "use sampled"
        )
    return torch.tensor(list(orderings(range(n))))


def _compare(f: Map, x: Tensor, order: Tensor, bound: float) -> Symmetry:
    """Each permutation on its own x, or all on one; every evaluation is in one batch."""
    moved = torch.gather(x.expand(len(order), -1, -1), 1, order[..., None].expand(-1, -1, x.shape[-1]))
    y = f(torch.cat((x, moved)))
    before, after = y[: len(x)].expand(len(order), -1, -1), y[len(x) :]
    deviation = after - torch.gather(before, 1, order[..., None].expand(-1, -1, y.shape[-1]))
    return Symmetry(order, deviation.abs().flatten(1).amax(1), bound)


def group(f: Map, x: Float[Tensor, "n width"], bound: float) -> Symmetry:
    """Try all n! permutations at one input, in one batch with the input itself.

    Args:
        f: the map.
        x: n ≤ 7 different tokens, drawn from a density.
        bound: how far two evaluations at x may differ by rounding. If f commutes with π, then the evaluation
            at πx does the same arithmetic at other places, so the bound at x is one at πx.

    Raises:
        UsageError: beyond 7 positions.
    """
    return _compare(f, x[None], permutations(len(x)), bound)


def sampled(
    f: Map,
    x: Float[Tensor, "draws n width"],
    bound: float,
    generator: torch.Generator,
) -> Symmetry:
    """Try one random permutation at each of many inputs, for any n.

    If the permutations that hold for all inputs are not all of them, they are at most half (Lagrange): so a
    draw shows a broken symmetry with a chance of at least 1/2, and N draws miss it with at most 2^−N, for an
    analytic map. ``rate_below`` says what N passes mean without that assumption.

    Args:
        f: the map.
        x: an input for each draw.
        bound: for two evaluations at any of the inputs, as for ``group``.
        generator: what the permutations are drawn from.
    """
    order = torch.stack([torch.randperm(x.shape[1], generator=generator) for _ in x])
    return _compare(f, x, order, bound)


def rate_below(draws: int, confidence: float) -> float:
    """The rate of violations that so many independent passes exclude: ln(1/δ)/N, confidence 1 − δ.

    If violations came at a rate p, then N passes in a row would have a chance (1 − p)^N ≤ e^(−pN).
    """
    return math.log(1 / (1 - confidence)) / draws


def automorphisms(bias: Bias, n: int) -> Bool[Tensor, " count"]:
    """Which permutations leave a bias as it is, up to a constant for each query: a softmax sees no more.

    π counts where, for each head and each i, B_{π(i)π(j)} − B_{ij} is the same number for all j, and the
    same keys are masked. Numbers are compared exactly.

    Returns:
        One truth value for each row of ``permutations(n)``.
    """
    order = permutations(n)
    table = bias(n)
    moved = table[:, order[:, :, None], order[:, None, :]]  # heads, count, i, j
    seen = table.isfinite()[:, None]
    same_mask = (moved.isfinite() == seen).flatten(2).all(-1)
    change = (moved - table[:, None]).where(seen & moved.isfinite(), math.nan)
    low, high = change.nan_to_num(math.inf).amin(-1), change.nan_to_num(-math.inf).amax(-1)
    return ((low >= high).all(-1) & same_mask).all(0)
