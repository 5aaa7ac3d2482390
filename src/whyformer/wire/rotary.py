"""Rotary positions: what a score of two constants can say of the distance, and how far its table is rounded.

A pair of coordinates is turned by the angle pθ at position p. The score of a query at i and a key at j, each
the same at every position, is therefore a sum of waves of the distance D = i − j alone,

    S(D) = Σ_f a_f cos(θ_f D + φ_f),        a_f = |q_f||k_f|.

The previous-token head turns its query back by one step, φ_f = −θ_f: all waves then peak at D = 1. Which
amplitudes a_f raise that peak highest above every other distance is a linear program; ``amplitudes`` solves
it. Any a_f make a correct head as long as the margin, which is enumerated over all distances, is positive.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK = 2**14  # positions at a time
_STEPS = 4000


def frequencies(width: int, theta: float) -> Float[Tensor, " pairs"]:
    """θ_f = theta^(−2f/width), in float32, by the same operations as in transformers' default rotary."""
    return 1.0 / (theta ** (torch.arange(0, width, 2, dtype=torch.float) / width))


def table_error(
    theta: Float[Tensor, " pairs"],
    context: int,
    dtype: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
) -> Float[Tensor, " pairs"]:
    """How far a turn strays from e^{ipθ}, at most over all positions: max_p |cos + i·sin − e^{ipθ}|.

    The table is made as engines make it: p·θ in float32, its cosine and sine in float32, both cast to the
    dtype. It is compared with float64 at every position below ``context``. Another library's cosine may be
    off by one unit more: that unit, 2^−23, is added.
    """
    worst = torch.zeros(len(theta), dtype=torch.float64)
    for start in range(0, context, _BLOCK):
        at = torch.arange(start, min(start + _BLOCK, context))
        angles = at.float()[:, None] * theta
        exact = at.double()[:, None] * theta.double()
        off = torch.hypot(
            angles.cos().to(dtype).double() - exact.cos(), angles.sin().to(dtype).double() - exact.sin()
        )
        worst = torch.maximum(worst, off.amax(0))
        if progress is not None:
            progress(start + len(at), context)
    return worst + 2.0**-23


def waves(
    amplitude: Float[Tensor, " pairs"],
    phase: Float[Tensor, " pairs"],
    theta: Float[Tensor, " pairs"],
    context: int,
) -> Float[Tensor, " context"]:
    """S(D) = Σ_f a_f cos(θ_f D + φ_f) at every distance below ``context``, in float64."""
    return torch.cat(
        [
            torch.cos(
                torch.arange(at, min(at + _BLOCK, context)).double()[:, None] * theta.double()
                + phase.double()
            )
            @ amplitude.double()
            for at in range(0, context, _BLOCK)
        ]
    )


def amplitudes(
    theta: Float[Tensor, " pairs"], context: int, cost: Float[Tensor, " pairs"]
) -> tuple[Float[Tensor, " pairs"], float]:
    """The amplitudes, of sum 1, with the largest certified margin at D = 1 over every other distance.

    Maximise the least, over distances D ≠ 1, of Σ_f a_f (1 − cos θ_f(D − 1) − cost_f), where ``cost`` is what
    rounding takes. It is a matrix game; its dual, max Σy with Pᵀy ≤ 1, is solved by the simplex method, each
    step letting in the distance that is worst at the present amplitudes, so that P is never copied.

    Returns:
        The amplitudes and the margin, which may be 0 or less.
    """
    pairs = len(theta)
    away = torch.arange(1, max(2, context - 1)).double()  # |D − 1|; distance 0 looks like distance 2
    payoff = (
        torch.cat([2 - torch.cos(part[:, None] * theta.double()).float() for part in away.split(_BLOCK)])
        - cost.float()
    )
    payoff.clamp_(min=1e-3)  # positive, by the 1 that was added; a margin below −1 is no margin
    inverse = torch.eye(pairs, dtype=torch.float64)
    level = torch.ones(pairs, dtype=torch.float64)  # the basic variables
    price = torch.zeros(pairs, dtype=torch.float64)  # a distance in the basis is worth 1, a slack 0
    for _ in range(_STEPS):
        worth = price @ inverse
        value, entering = (payoff @ worth.float()).min(0)
        slack, at = worth.min(0)
        if min(float(value) - 1, float(slack)) > -1e-6:
            break
        if value - 1 < slack:
            column, gain = inverse @ payoff[entering].double(), 1.0
        else:
            column, gain = inverse[:, at].clone(), 0.0
        ratio = torch.where(column > 1e-12, level / column, torch.inf)
        leaving = int(ratio.argmin())
        inverse[leaving] /= column[leaving]
        level[leaving] /= column[leaving]
        column[leaving] = 0
        inverse -= column[:, None] * inverse[leaving]
        level -= column * level[leaving]
        price[leaving] = gain
    best = (price @ inverse).clamp(min=0)
    best = best / best.sum()
    return best, float((payoff @ best.float()).min()) - 1
