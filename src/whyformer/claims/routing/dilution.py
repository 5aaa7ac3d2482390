"""Dilution: how many distractors a head of given sharpness survives, from the formula and with real tensors.

Sharpness is Δ: how far the score of the match stands above that of every distractor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.claims.claim import Claim
from whyformer.claims.judging import finite
from whyformer.errors import UsageError
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments import rounding
from whyformer.subjects.mechanisms import Attention

SHARPEST = 700.0
"""The largest sharpness that is answered for: e^700 still is a float64."""


def edge(sharpness: float) -> int:
    """The most distractors that a match outweighs together, in the worst case: the largest n with n < e^Δ.

    The match weighs 1/(1 + n e^(−Δ)) beside n distractors that all stand Δ below it, and all of them weigh
    the rest; the match weighs more exactly where n < e^Δ. e^Δ is computed to 30 digits after the point, and
    is no integer for any float Δ other than 0 (Lindemann), so that the answer is exact.

    >>> edge(5.0)
    148

    Raises:
        UsageError: a sharpness that is no number, or above 700.
    """
    if not -math.inf < sharpness <= SHARPEST:
        raise UsageError(f"sharpness {sharpness}", "no edge is computed for it", f"give {SHARPEST:g} at most")
    if 0 < sharpness < 0.5:
        return 1  # 1 < e^Δ < 2, though the digits may not show it
    with localcontext() as context:
        context.prec = 40 + int(max(0.0, sharpness))
        grown = Decimal(sharpness).exp()
        return max(0, int(grown.to_integral_value(ROUND_CEILING)) - 1)


def weight(sharpness: float, distractors: int) -> float:
    """The match's weight beside so many equal distractors: 1/(1 + n e^(−Δ)), the least that it can be."""
    if distractors == 0:
        return 1.0
    return 1 / (1 + math.exp(min(SHARPEST, math.log(distractors) - sharpness)))


def margin(sharpness: float, distractors: int) -> float:
    """The match's weight less that of all distractors: tanh((Δ − ln n)/2), negative past the edge."""
    return 1.0 if distractors == 0 else math.tanh((sharpness - math.log(distractors)) / 2)


MATCH, OTHER = 2, 3
"""The coordinates of the two tokens that may be copied."""


@dataclass(frozen=True)
class Lookup:
    """A head whose scores stay within ± ``sharpness``/2, if it keeps its promise.

    Its tokens have 4 coordinates: whether it asks, its likeness to what is asked for, from −1 to 1, and one
    for each of two tokens to copy.

    Attributes:
        sharpness: the largest difference of two scores.
        grows: whether the scores are multiplied by the logarithm of the number of keys, breaking the promise.
    """

    sharpness: float
    grows: bool = False

    def layer(self, keys: int, dtype: torch.dtype = torch.float64) -> Attention:
        """The head as a layer of attention, for so many keys."""
        scale = self.sharpness / 2 * (math.log(keys) if self.grows else 1.0)
        # The generator is only what a layer is made with: every weight is set below.
        layer = Attention(4, scale=scale, generator=torch.Generator(), dtype=dtype)
        with torch.no_grad():
            for part in (layer.q, layer.k, layer.v):
                part.weight.zero_()
            layer.q.weight[0, 0] = layer.k.weight[0, 1] = 1
            layer.v.weight[MATCH, MATCH] = layer.v.weight[OTHER, OTHER] = 1
            layer.o.weight.copy_(torch.eye(4))
        return layer


def beside(likeness: Float[Tensor, " keys"], position: int = 0) -> Float[Tensor, "keys 4"]:
    """A match at ``position`` beside distractors of the given likeness, the last of which asks.

    All distractors copy one token, the worst case. The likeness at ``position`` is made that of the match, 1.
    """
    x = torch.zeros(len(likeness), 4, dtype=likeness.dtype)
    x[-1, 0] = 1
    x[:, 1], x[:, OTHER] = likeness, 1
    x[position, 1:] = torch.tensor([1.0, 1.0, 0.0])
    return x


@dataclass(frozen=True)
class Meeting:
    """A head beside so many distractors, against the law.

    Attributes:
        distractors: how many.
        weight: the match's, beside equal distractors.
        law: the weight that the law gives it there.
        apart: by how much the law is broken: beside equal distractors, or by drawn scores.
        limit: the largest ``apart`` that rounding explains.
        right: whether the match's token wins over the others' beside equal distractors; None where the
            margin is within twice its error.
    """

    distractors: int
    weight: float
    law: float
    apart: float
    limit: float
    right: bool | None


@torch.no_grad()
def meet(head: Lookup, distractors: int, generator: torch.Generator) -> Meeting:
    """Put a match beside equal distractors and beside drawn ones, at a drawn position, in real tensors."""
    position = int(torch.randint(distractors, (), generator=generator))
    drawn = 2 * torch.rand(distractors + 1, generator=generator, dtype=torch.float64) - 1
    x = torch.stack([beside(-torch.ones_like(drawn), position), beside(drawn, position)])
    layer = head.layer(distractors + 1)
    equal, among = layer.weights(x)[:, 0, -1, position].tolist()
    error = rounding.attention_layer(layer, x)
    law = weight(head.sharpness, distractors)
    # Among drawn scores, those bounds hold that meet beside equal ones: by the gap, and by the promise.
    drawn[position] = -1
    least = weight(layer.scale * (1 - drawn.max().item()), distractors)
    y, y_error = layer(x)[0, -1], rounding.forward(layer, x)[0, -1]
    ahead, doubt = (y[MATCH] - y[OTHER]).item(), 2 * (y_error[MATCH] + y_error[OTHER]).item()
    return Meeting(
        distractors,
        equal,
        law,
        max(abs(equal - law), among - law, least - among),
        error.weights[:, 0, -1, position].max().item() + _formula_error(head.sharpness, distractors),
        None if abs(ahead) <= doubt else ahead > 0,
    )


def _formula_error(sharpness: float, distractors: int) -> float:
    """How far ``weight`` may stray: Δ − ln n bears (|Δ| + 5 ln n)u, and w moves by at most a quarter of it.

    exp, the sum and the quotient add 6u more. The logarithm is assumed to be within 4u, as exp is.
    """
    u = rounding.unit(torch.float64)
    return u * ((abs(sharpness) + 5 * math.log(distractors)) / 4 + 6)


def law_of_dilution(head: Lookup, generator: torch.Generator) -> Finding:
    """Compare weights and answers with the law, on both sides of the edge and with drawn scores."""
    last = edge(head.sharpness)
    met = [meet(head, n, generator) for n in sorted({1, 2, 10, last, last + 1, 2 * last})]
    # What is no number counts as the worst, and decides nothing.
    worst = max(met, key=lambda each: math.inf if math.isnan(each.apart) else each.apart / each.limit)
    common: dict[str, Any] = {"claim": "routing.dilution", "measured": finite(worst.apart)}
    common |= {
        "bound": finite(worst.limit),
        "bound_from": "T1 on the weight, and the rounding of the formula",
    }
    on_law = worst.apart <= worst.limit
    if on_law and all(each.right is (each.distractors <= last) for each in met):
        reason = (
            f"beside {last} distractors that all copy one token the match wins, beside {last + 1} it loses: "
        )
        reason += f"e^{head.sharpness:g} = {math.exp(head.sharpness):.2f}"
        return Finding(verdict=Verdict.HOLDS, strength=Strength.PROVED, reason=reason, **common)
    wrong = [each for each in met if each.right is (each.distractors > last)]
    shown = wrong[0] if on_law and wrong else worst
    if shown is worst and not worst.apart > rounding.CLEAR * worst.limit:
        return Finding(verdict=Verdict.INCONCLUSIVE, reason="too near the bound to tell", **common)
    witness = {
        "distractors": shown.distractors,
        "weight": shown.weight,
        "law": shown.law,
        "right": shown.right,
    }
    reason = f"beside {shown.distractors} distractors the match weighs {shown.weight:.3g}"
    reason += f", by the law {shown.law:.3g}"
    return Finding(verdict=Verdict.REFUTED, reason=reason, counterexample=witness, **common)


DILUTION = Claim(
    id="routing.dilution",
    sentence="A head of bounded scores is diluted: beside more than e^Δ distractors, its match weighs less "
    "than all of them together.",
    mathematics="""\
A match Δ above each of n distractors weighs w = 1/(1 + Σ_j e^(s_j − s)) ≥ 1/(1 + n e^(−Δ)), with equality
where all stand exactly Δ below. Scores within ±B differ by at most 2B, so w ≤ 1/(1 + n e^(−2B)): at
Δ = 2B both meet. Where all distractors copy one other token, it weighs 1 − w, and the match wins exactly
while n < e^Δ. At Δ = 5, e^Δ = 148.41: 148 distractors are survived and 149 are not. At Δ = 30 the edge is
10,686,474,581,524. No sharpness is enough for any length; scores that grow with ln n are.""",
    instrument="a head set by hand with Δ = 5, its weight and its answer beside 1 to 296 distractors",
    rule="holds where weights meet the law within T1 and the answer turns exactly at the edge; else refuted",
    scope="the worst case over all distractors, by formula; shown in tensors on both sides of the edge",
    breaks="scores multiplied by the logarithm of the number of keys: the match is never diluted",
    source="derived here; Veličković et al., arXiv:2410.01104, prove that bounded logits must disperse",
    test=law_of_dilution,
    specimen=lambda _generator: Lookup(5.0),
    refuter=lambda _generator: Lookup(5.0, grows=True),
)
