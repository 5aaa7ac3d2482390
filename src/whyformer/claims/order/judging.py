"""What the claims about order share: the bound for a module, the witness, and the verdict on one figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments import rounding

TWICE = "T1, carried through the module at this input in float64, for two evaluations"


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def twice(module: nn.Module, x: Tensor) -> float:
    """How far two evaluations of a module at x, (batch, time, width), may differ by rounding."""
    return 2 * float(rounding.forward(module, x).max())


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


def equal(
    claim: str, measured: float, bound: float, bound_from: str, reason: str, counterexample: Mapping[str, Any]
) -> Finding:
    """The verdict on a figure that the claim says is nothing but rounding.

    It holds up to the bound, is refuted above ``rounding.CLEAR`` times the bound, and is undecided between,
    as where the bound is lost to overflow.
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
        return found.but(verdict=Verdict.HOLDS, strength=Strength.PROVED)
    if measured > rounding.CLEAR * bound:
        return found.but(verdict=Verdict.REFUTED, counterexample=counterexample)
    return found
