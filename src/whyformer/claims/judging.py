"""What claims share: the bound for a module, the witness of a permutation, and verdicts on figures.

A violation that is seen refutes. That nothing is seen refutes nothing by itself, for rounding hides what is
small: a permutation *seen to commute* counts against a prediction only where it can be said that it would
have been seen to break, or that it commutes exactly.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments import rounding, symmetry

TWICE = "T1, carried through the module at this input in float64, for two evaluations"


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def twice(module: nn.Module, x: Tensor) -> float:
    """How far two evaluations of a module at x, (batch, time, width), may differ by rounding."""
    return 2 * float(rounding.forward(module, x).max())


def lowered(module: nn.Module) -> nn.Module:
    """The module in float32, its weights rounded; the given one stays as it is."""
    return copy.deepcopy(module).float()


def witness(module: nn.Module, x: Tensor, order: Tensor) -> dict[str, Any]:
    """The input, the permutation and the position where f(πx) and πf(x) differ most, with both rows."""
    moved, expected = module(x[order][None])[0], module(x[None])[0][order]
    at = int((moved - expected).abs().amax(-1).argmax())
    return {
        "input": x.tolist(),
        "permutation": order.tolist(),
        "position": at,
        "permuted_first": moved[at].tolist(),
        "permuted_after": expected[at].tolist(),
    }


def finite(figure: float) -> float | None:
    """The figure, or None where it is lost: findings hold no infinity."""
    return figure if math.isfinite(figure) else None


PLANTED = 1e-12
"""A planted code of this size is not called nothing, where float32 is asked as well."""


def equal(
    claim: str,
    measured: float,
    bound: float,
    bound_from: str,
    reason: str,
    counterexample: Mapping[str, Any],
    in_float32: Callable[[], float] | None = None,
) -> Finding:
    """The verdict on a figure that the claim says is nothing but rounding.

    It holds up to the bound, is refuted above ``rounding.CLEAR`` times the bound, and is undecided between,
    as where the bound is lost to overflow. A bound that is carried through norms and an MLP may lie far above
    the rounding that is there: ``in_float32`` measures the same in float32, and what is left of that in
    float64, if rounding made it, bounds the figure as well (T6). Above that it is undecided.
    """
    found = Finding(
        claim=claim,
        verdict=Verdict.INCONCLUSIVE,
        measured=finite(measured),
        bound=finite(bound),
        bound_from=bound_from,
        reason=reason,
    )
    if measured <= bound < math.inf:
        if in_float32 is None:
            return found.but(verdict=Verdict.HOLDS, strength=Strength.PROVED)
        floor = rounding.shrunk(in_float32())
        told = f"T6, {rounding.CLEAR:g} times what rounding leaves of float32's deviation; T1 is {bound:.1e}"
        found = found.but(bound=finite(min(floor, bound)), bound_from=told)
        if measured <= floor:
            return found.but(verdict=Verdict.HOLDS, strength=Strength.PROVED)
        return found.but(reason=f"{reason}; it does not shrink with precision as rounding does")
    if measured > rounding.CLEAR * bound:
        return found.but(verdict=Verdict.REFUTED, counterexample=counterexample)
    return found


@dataclass(frozen=True)
class Prediction:
    """Which permutations a map is said to commute with, and what is known of the others.

    Attributes:
        name: of the map.
        map: from (batch, time, width) to the same.
        x: a drawn input, (time, width).
        commutes: what is predicted of each of ``symmetry.permutations(time)``.
        effect: tells how far each would deviate at ``x`` if the mathematics of the claim described the map.
        exact: the permutations that are known to commute exactly, by the map's own numbers.
        told: what a witness says beside the input and the permutation.
    """

    name: str
    map: nn.Module
    x: Float[Tensor, "time width"]
    commutes: Bool[Tensor, " count"]
    effect: Callable[[], Float[Tensor, " count"]]
    exact: Bool[Tensor, " count"]
    told: Mapping[str, Any]


def as_predicted(claim: str, predictions: Iterable[Prediction]) -> Finding:
    """Every permutation against what is predicted of it; measured is the number of wrong predictions.

    It is refuted where a permutation breaks that should commute, and where one commutes that should break, if
    it commutes exactly or would by the claim have deviated clearly. One that should break and is seen to
    commute, but would deviate by no more than rounding, decides nothing.
    """
    wrong = undecided = tried = 0
    inside, outside, bound, orders, first = 0.0, math.inf, 0.0, [], None
    for each in predictions:
        explained = twice(each.map, each.x[None])
        found = symmetry.group(each.map, each.x, explained)
        missed = found.commutes & ~each.commutes
        if missed.any():
            missed &= each.exact | (each.effect() > rounding.CLEAR * explained)
        differs = torch.where(each.commutes, found.breaks, missed)
        agrees = torch.where(each.commutes, found.commutes, found.breaks)
        wrong, bound = wrong + int(differs.sum()), max(bound, explained)
        undecided, tried = undecided + int((~differs & ~agrees).sum()), tried + len(differs)
        inside = max(inside, float(found.deviations[each.commutes].max()))
        if not each.commutes.all():
            outside = min(outside, float(found.deviations[~each.commutes].min()))
        orders.append(f"{each.name} {found.order}")
        if first is None and differs.any():
            at = int(differs.nonzero()[0])
            says = {"predicted": bool(each.commutes[at]), "commutes": bool(found.commutes[at])}
            first = {**each.told, **says} | witness(each.map, each.x, found.permutations[at])
    reason = (
        f"{tried - wrong - undecided:,} of {tried:,} permutations as predicted: {', '.join(orders)} commute"
    )
    reason += f"; those that should deviate by at most {inside:.1e}, others by at least {outside:.1e}"
    if undecided:
        reason += f"; {undecided:,} are not decided"
    result = Finding(
        claim=claim,
        verdict=Verdict.INCONCLUSIVE,
        measured=wrong,
        bound=0,
        bound_from=f"the prediction is exact; to commute is to deviate by at most {bound:.1e}, {TWICE}",
        reason=reason,
    )
    if first is not None:
        return result.but(verdict=Verdict.REFUTED, counterexample=first)
    return result if undecided else result.but(verdict=Verdict.HOLDS, strength=Strength.PROVED)
