"""What one attention layer of one head cannot do: four sequences of which it completes three at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from whyformer.claims.claim import Claim
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments import rounding
from whyformer.subjects.mechanisms import Attention
from whyformer.subjects.reader import Reader, drawn, one_head, two_heads, two_layers

SEQUENCES = ("ABDCA", "DBACA", "ACDBA", "DCABA")
ANSWERS = ("B", "C", "C", "B")
_LETTERS = "ABCD"
DRAWS = 32

tokens = torch.tensor([[_LETTERS.index(letter) for letter in sequence] for sequence in SEQUENCES])
"""The four sequences as token ids, (sequence, time)."""
_SIGN = torch.tensor([1.0 if answer == "B" else -1.0 for answer in ANSWERS], dtype=torch.float64)


@dataclass(frozen=True)
class Choice:
    """How a reader chooses between B and C, before any norm, which changes no sign.

    Attributes:
        lead: the logit of B less that of C, for each sequence.
        error: how far each may stray by rounding.
        residual: |g₁ + g₄ − g₂ − g₃| of the first layer's first head, g being the lead divided by the weight
            that the query gives itself.
        residual_bound: the largest residual that rounding explains, in a reader of one layer and one head.
    """

    lead: Float[Tensor, " sequence"]
    error: Float[Tensor, " sequence"]
    residual: float
    residual_bound: float

    @property
    def right(self) -> Bool[Tensor, " sequence"]:
        """Where the right one of B and C leads by more than rounding."""
        return self.lead * _SIGN > self.error


@torch.no_grad()
def choose(reader: Reader) -> Choice:
    """Read the four sequences, with a running bound on the error (T1 through each layer).

    What the first layer reads is taken as given: a token at a place is the same rounded row in all of them.
    """
    x, u = reader.embedded(tokens), rounding.unit(torch.float64)
    layers = cast(Sequence[Attention], reader.layers)
    own = layers[0].weights(x)[:, 0, -1, -1]
    own_error = rounding.attention_layer(layers[0], x).weights[:, 0, -1, -1]
    bears = torch.zeros_like(x)
    for layer in layers:
        bears = bears + rounding.forward(layer, x, bears)
        x = x + layer(x)
        bears = bears + u * x.abs()
    apart = reader.readout[1] - reader.readout[2]
    lead = x[:, -1] @ apart
    error = (bears[:, -1] + rounding.gamma(len(apart) + 1, x.dtype) * x[:, -1].abs()) @ apart.abs()
    whole = lead / own
    bound = (error / own + whole.abs() * (own_error / own + 4 * u)).sum()
    return Choice(lead, error, (whole * _SIGN).sum().abs().item(), bound.item())


def three_at_most(readers: Sequence[Reader], _generator: torch.Generator) -> Finding:
    """Count how many of the four sequences each reader completes, and check the identity that limits it."""
    choices = [choose(reader) for reader in readers]
    best = max(choices, key=lambda choice: int(choice.right.sum()))
    most = int(best.right.sum())
    common: dict[str, Any] = {"claim": "routing.one-layer-limit", "measured": most, "bound": 3}
    common |= {"bound_from": "g(ABDCA) + g(DCABA) = g(DBACA) + g(ACDBA) gives one of the four the wrong sign"}
    if most == len(SEQUENCES):
        leads = dict(zip(SEQUENCES, best.lead.tolist(), strict=True))
        witness = {"answers": dict(zip(SEQUENCES, ANSWERS, strict=True)), "logit_of_B_less_that_of_C": leads}
        reason = "all four sequences are completed"
        return Finding(verdict=Verdict.REFUTED, reason=reason, counterexample=witness, **common)
    used = torch.tensor([choice.residual / choice.residual_bound for choice in choices]).max().item()
    if not used <= 1:
        reason = f"the identity fails, by {used:.1g} times what rounding explains: not a reader of the family"
        return Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, **common)
    beside = int(choose(two_layers()).right.sum())
    reason = f"of {len(readers)} readers the best completes {most} of 4, and one of two layers {beside}; the "
    reason += f"identity holds in each of one, within {used:.1g} of what rounding explains"
    if beside < len(SEQUENCES):
        return Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, **common)
    return Finding(verdict=Verdict.HOLDS, strength=Strength.PROVED, reason=reason, **common)


ONE_LAYER_LIMIT = Claim(
    id="routing.one-layer-limit",
    sentence="One attention layer of one head completes at most 3 of 4 sequences that two layers complete.",
    mathematics="""\
The sequences: ABDCA → B, DBACA → C, ACDBA → C, DCABA → B. Let e_j be what the token at place j is embedded
as, s_j the score of the last query, an A at the fifth place, for key j, and u = R_B − R_C the difference of
two rows of the readout. The logit of B less that of C, times the denominator Σ_j exp(s_j) > 0 (and times the
norm, > 0), is
    g = Σ_j exp(s_j) u·(O V e_j + e_5),
a sum of terms that each depend on one token and its place, for the last token is the same in all four. At
each place, ABDCA and DCABA have together the tokens of DBACA and ACDBA: {A,D}, {B,C}, {D,A}, {C,B}, {A}.
So g(ABDCA) + g(DCABA) = g(DBACA) + g(ACDBA). The left should be above 0 and the right below: one is wrong.
This is so at any width and precision, for any positions and biases. An MLP after it is not covered.""",
    instrument="the sign of B over C in each sequence, and g from the head's own weights",
    rule="refuted where a reader completes all four; holds where none does and the identity is within T1",
    scope=f"every such reader, by the identity, which is checked on {DRAWS} drawn ones and on one that is "
    "set by hand to complete three",
    breaks="a second head: two denominators; as well a shift of the keys by one token, or a second layer",
    source="derived for this project; for growing sizes see Sanford, Hsu and Telgarsky, arXiv:2408.14332",
    test=three_at_most,
    specimen=lambda generator: [one_head(), *(drawn(generator) for _ in range(DRAWS))],
    refuter=lambda _generator: [two_heads()],
)

CLAIMS = (ONE_LAYER_LIMIT,)
