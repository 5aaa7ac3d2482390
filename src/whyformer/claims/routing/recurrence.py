"""What a gap costs a recurrent net: a factor a step, which fades, holds or grows as the cell is built."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy
import torch
from torch import Tensor

from whyformer.claims.claim import Claim
from whyformer.claims.judging import finite
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments import rounding, signal
from whyformer.subjects.recurrent import LSTM, Cell, DiagonalCell, VanillaRNN

WIDTH = 6
GAP = 32
SEQUENCES = 32
LONG = 128
CAUGHT = 1e-10
"""The smallest planted fault that the tests see refuted: a skip, a recurrence or a leak of this weight."""
RATE = 0.95
"""What claim 6 allows a cell to keep of a signal in one step, at most, by its weights."""


@dataclass(frozen=True)
class Deviation:
    """How far a measurement is from what the claim says, where it is worst.

    Attributes:
        measured: the distance.
        bound: the largest that rounding explains.
        where: the witness: place and values.
    """

    measured: float
    bound: float
    where: Mapping[str, Any] = field(default_factory=dict)


Measure = Callable[[Any, Tensor, Tensor], Deviation]
"""From a cell, its inputs (batch, time, width) and its first states (batch, state)."""


def worst(found: Tensor, expected: Tensor, bound: Tensor, scale: Tensor | float = 1.0) -> Deviation:
    """Where |found − expected| is largest against its bound; both over ``scale``, which is positive.

    Args:
        found: Jacobians, (gap, batch, rows, columns).
        expected: the same shape.
        bound: broadcasts to it, positive.
        scale: broadcasts to it.
    """
    distance = ((found - expected).abs() / scale).broadcast_to(found.shape)
    bounds = bound.broadcast_to(found.shape)
    at = int((distance / bounds).argmax())
    gap, sequence, row, column = (int(i) for i in numpy.unravel_index(at, found.shape))
    where = {"gap": gap + 1, "sequence": sequence, "row": row, "column": column}
    values = {"found": float(found.flatten()[at]), "expected": float(expected.flatten()[at])}
    return Deviation(float(distance.flatten()[at]), float(bounds.flatten()[at]), where | values)


def decide(
    claim: str, cell: Cell, measure: Measure, gap: int, bound_from: str, generator: torch.Generator
) -> Finding:
    """Measure a cell on random inputs and states in float64; measure again in float32 before refuting."""
    x = torch.randn(SEQUENCES, gap, cell.width, generator=generator, dtype=torch.float64)
    start = torch.randn(SEQUENCES, cell.state, generator=generator, dtype=torch.float64)
    worst = measure(cell, x, start)
    finding = Finding(
        claim=claim,
        verdict=Verdict.HOLDS,
        strength=Strength.SAMPLED,
        measured=finite(worst.measured),
        bound=finite(worst.bound),
        bound_from=bound_from,
        reason=f"every gap from 1 to {gap}, {SEQUENCES} random sequences: with 95 % confidence fewer than "
        f"1 sequence in {int(SEQUENCES / 3)} deviates; a planted fault of weight {CAUGHT:g} is caught",
    )
    if worst.measured <= worst.bound:
        return finding

    def deviation(dtype: torch.dtype) -> float:
        if dtype == x.dtype:
            return worst.measured
        return measure(copy.deepcopy(cell).to(dtype), x.to(dtype), start.to(dtype)).measured

    shrink = rounding.scaling(deviation).shrink
    if worst.measured > rounding.CLEAR * worst.bound and shrink < 0.5:
        return finding.but(
            verdict=Verdict.REFUTED,
            strength=None,
            counterexample=dict(worst.where),
            reason=f"at gap {worst.where['gap']} the Jacobian is {worst.where['found']:.3g} where the claim "
            f"says {worst.where['expected']:.3g}, in float32 as in float64",
        )
    return finding.but(
        verdict=Verdict.INCONCLUSIVE,
        strength=None,
        reason="no number came of it"
        if math.isnan(worst.measured)
        else f"above the bound, but not {rounding.CLEAR:g} times, or shrinking with precision",
    )


def _chain(cell: Cell, x: Tensor, start: Tensor) -> Deviation:
    steps = signal.step_jacobians(cell, x, start)
    through, product = signal.gap_jacobians(cell, x, start), signal.products(steps)
    # Two evaluations, each within the bound: of the norm of a difference, hence of every entry.
    return worst(through, product, 2 * signal.product_error(steps)[..., None, None])


def _chain_test(cell: Cell, generator: torch.Generator) -> Finding:
    bound_from = "T2 twice, autograd and product: running error in norm, γ_(d+2) a step"
    return decide("routing.chain", cell, _chain, GAP, bound_from, generator)


CHAIN = Claim(
    id="routing.chain",
    sentence="In a recurrent net a gap of g steps is a product of g factors, one a step.",
    mathematics="""\
h_t is a function of h_(t−1) and x_t alone. By the chain rule, for every gap g,

    ∂h_T/∂h_(T−g) = J_T · J_(T−1) ⋯ J_(T−g+1),    J_t = ∂h_t/∂h_(t−1).

Nothing of the past goes round a factor: what one step destroys is gone. Attention has one hop between any
two positions, whatever the gap (routing.one-hop, routing.gap-free).
The left side is computed by autograd through the whole run, the right side from g separate steps. Each
strays by at most e_g = ‖J‖₂ e_(g−1) + γ_(d+2) ‖P_(g−1)‖ ‖J‖ in the Frobenius norm, P the product so far.""",
    instrument="signal: Jacobians of every gap by autograd, against the product of one-step Jacobians",
    rule="holds when no entry differs by more than twice the rounding of the product; refuted when one "
    f"differs by {rounding.CLEAR:g} times that, in float32 too",
    scope=f"every gap from 1 to {GAP}, at {SEQUENCES} random sequences; for all inputs by the chain rule",
    breaks="an RNN that also reads the state of 3 steps before: a path that goes round the factors",
    source="the chain rule; the product is the starting point of Pascanu, Mikolov and Bengio 2013, "
    "arXiv 1211.5063 (abstract and opening read)",
    test=_chain_test,
    specimen=lambda generator: VanillaRNN(WIDTH, 1.0, generator=generator),
    refuter=lambda generator: VanillaRNN(WIDTH, 1.0, skip=3, generator=generator),
)


def contraction(cell: VanillaRNN) -> float:
    """An upper bound on ‖J_t‖₂ for every input and state: sup|φ′|·‖W‖₂; infinite where a skip goes round.

    ‖W‖₂² is the largest eigenvalue of WᵀW, at most its largest row sum of absolute values. The rounding of
    WᵀW, at most γ_d|W|ᵀ|W|, is added before the sum is taken.
    """
    if cell.skip is not None:
        return float("inf")
    W = cell.recurrent.detach()
    gram = (W.mT @ W).abs() + rounding.gamma(len(W), W.dtype) * (W.abs().mT @ W.abs())
    return cell.slope * float(gram.sum(-1).max()) ** 0.5


def _fading(cell: VanillaRNN, x: Tensor, start: Tensor) -> Deviation:
    left = signal.norms(signal.gap_jacobians(cell, x, start)).amax(-1)
    gaps = torch.arange(1, len(left) + 1)
    at = int((left / RATE**gaps).argmax())
    # To first order the computed norm exceeds ρ^g by ρ^g·g·d·γ_(d+2): T2 with ‖J‖₂ ≤ ρ and ‖J‖_F ≤ √d·ρ.
    slack = 1 + len(left) * cell.width * rounding.gamma(cell.width + 2, x.dtype)
    allowed = RATE ** (at + 1)
    where = {"gap": at + 1, "found": float(left[at]), "expected": allowed}
    return Deviation(float(left[at]), allowed * slack, where)


def _fading_test(cell: VanillaRNN, generator: torch.Generator) -> Finding:
    bound_from = f"{RATE:g}^g, and the rounding of g products"
    finding = decide("routing.fading", cell, _fading, LONG, bound_from, generator)
    if finding.verdict is not Verdict.HOLDS:
        return finding
    rate = contraction(cell)
    if not rate <= RATE:
        return finding.but(
            verdict=Verdict.INCONCLUSIVE,
            strength=None,
            reason=f"it faded on {SEQUENCES} sequences, but its weights allow a factor of {rate:.3g} a step",
        )
    return finding.but(
        strength=Strength.PROVED,
        reason=f"all inputs: no step keeps more than {rate:.6g}, by the weights, so no gap of {LONG} more "
        f"than {rate**LONG:.1e}; the bound shown is that of the gap where the margin was least",
    )


FADING = Claim(
    id="routing.fading",
    sentence=f"A vanilla RNN whose weights allow a factor of at most {RATE:g} a step forgets geometrically: "
    f"a gap of g steps leaves at most {RATE:g}^g of a signal, whatever the input.",
    mathematics=f"""\
With h_t = φ(W h_(t−1) + U x_t), a step's Jacobian is diag(φ′)·W, so ‖J_t‖₂ ≤ sup|φ′|·σ_max(W) = ρ at every
input and state, and the product over a gap has ‖∂h_T/∂h_(T−g)‖₂ ≤ ρ^g. With ρ ≤ {RATE:g} < 1 that fades.
The condition is what makes it true. A linear cell with W orthogonal has ρ = 1 and keeps every length for
ever; W beyond that grows; an LSTM with open forget gates and a state-space cell with |a| = 1 do not fade
either. That "recurrent nets forget" is a fact about their weights. The limit that no weights lift is
capacity (routing.capacity).
ρ is bounded from the weights: ‖W‖₂² ≤ ‖WᵀW‖_∞, with the rounding of WᵀW added.""",
    instrument="signal: spectral norms of the Jacobians of every gap; and one step's bound from the weights",
    rule=f"holds when the weights allow no step to keep more than {RATE:g}, and no norm measured exceeds "
    f"{RATE:g}^g; refuted when one exceeds it {rounding.CLEAR:g} times",
    scope=f"all inputs, by the bound on one step; measured at every gap from 1 to {LONG}, {SEQUENCES} random "
    "sequences",
    breaks="an orthogonal linear RNN, which keeps every length over every gap",
    source="Pascanu, Mikolov and Bengio 2013, arXiv 1211.5063 (abstract and opening read); the bound is "
    "derived here",
    test=_fading_test,
    specimen=lambda generator: VanillaRNN(WIDTH, 0.9, generator=generator),
    refuter=lambda generator: VanillaRNN(WIDTH, 1.0, linear=True, generator=generator),
)


def _forget(cell: LSTM, x: Tensor, start: Tensor) -> Deviation:
    cells = signal.gap_jacobians(cell, x, start)[..., : cell.width, : cell.width]
    with torch.no_grad():
        states = torch.stack(cell.unroll(x, start)[:-1])
        gates = cell.gates(x.transpose(0, 1), states[..., cell.width :])[0]
    kept = gates.flip(0).cumprod(0)  # gap, batch, width: the last g gates
    bound = torch.tensor(rounding.gamma(2 * len(kept), x.dtype), dtype=x.dtype)
    return worst(cells, torch.diag_embed(kept), bound, kept[..., None])


def _forget_test(cell: LSTM, generator: torch.Generator) -> Finding:
    bound_from = "γ_2g, relative to the product of the gates: g roundings on either side"
    return decide("routing.forget-gates", cell, _forget, GAP, bound_from, generator)


FORGET_GATES = Claim(
    id="routing.forget-gates",
    sentence="Where an LSTM's gates read the input alone, its cell carries a gap by the product of its "
    "forget gates, and by nothing else.",
    mathematics="""\
c_t = f_t∘c_(t−1) + i_t∘g_t. With W_h = 0 the gates f, i and g are functions of x_t alone, so

    ∂c_T/∂c_(T−g) = diag(f_T ∘ f_(T−1) ∘ ⋯ ∘ f_(T−g+1)).

Off the diagonal it is exactly 0: no rounding reaches there. With the gates at 1/2 the cell keeps 2^(−g);
with the gates at 1 it keeps all, which is why the gate's bias decides what an LSTM remembers.
With W_h ≠ 0 the gates read h_(t−1) = o∘tanh(c_(t−1)), which adds paths between coordinates: then the
product of the gates is one path of many.""",
    instrument="signal: the cells' part of the Jacobian of every gap by autograd, against the gates' product",
    rule="holds when every entry is within γ_2g of the gates' product, relative to its row's, and so exactly "
    "0 off the diagonal where that is 0; refuted when one is clearly beyond, in float32 too",
    scope=f"every gap from 1 to {GAP}, at {SEQUENCES} random sequences",
    breaks="an LSTM whose gates read its own output (W_h ≠ 0): entries off the diagonal appear",
    source="derived here from the cell's equations. Forget gates are due to Gers, Schmidhuber and Cummins "
    "2000; the cell of Hochreiter and Schmidhuber 1997 had none (read at second hand)",
    test=_forget_test,
    specimen=lambda generator: LSTM(WIDTH, forget_bias=1.0, recurrence=0.0, generator=generator),
    refuter=lambda generator: LSTM(WIDTH, forget_bias=1.0, generator=generator),
)

DECAYS = (1.0, -1.0, 0.99, 0.9, -0.9, 0.5)


def _decay(cell: DiagonalCell, x: Tensor, start: Tensor) -> Deviation:
    found = signal.gap_jacobians(cell, x, start)
    if not cell.decay.isfinite().all():
        return Deviation(math.nan, math.nan)
    poles, gaps = [Fraction(a) for a in cell.decay.tolist()], range(1, len(found) + 1)
    powers = torch.tensor([[float(a**g) for a in poles] for g in gaps], dtype=x.dtype)
    expected = torch.diag_embed(powers)[:, None].broadcast_to(found.shape)
    bound = torch.tensor([rounding.gamma(g + 1, x.dtype) for g in gaps], dtype=x.dtype)
    return worst(found, expected, bound[:, None, None, None], powers.abs()[:, None, :, None])


def _decay_test(cell: DiagonalCell, generator: torch.Generator) -> Finding:
    bound_from = "γ_(g+1), relative to a^g: g products, and one rounding of the exact power"
    return decide("routing.state-decay", cell, _decay, LONG, bound_from, generator)


STATE_DECAY = Claim(
    id="routing.state-decay",
    sentence="A diagonal state-space cell keeps |a|^g of a signal over a gap of g steps: all of it, for "
    "ever, where |a| = 1.",
    mathematics="""\
h_t = a∘h_(t−1) + U x_t is linear with a diagonal step, so ∂h_T/∂h_(T−g) = diag(a^g), at every input and
state: coordinates do not mix, the input does not matter, and what is left is |a|^g. At a = 0.99 a gap of 256
leaves 0.076; at a = ±1 it leaves 1, exactly, in floating point too. The pole a is real here; for a complex
one the modulus says the same.
a^g is computed in exact rational arithmetic from the a that the cell holds, then rounded once.""",
    instrument="signal: the Jacobian of every gap by autograd, against exact powers",
    rule="holds when every entry is within γ_(g+1) of a^g, relative to its row's, and exactly 0 off the "
    "diagonal; refuted when one is clearly beyond, in float32 too",
    scope=f"every gap from 1 to {LONG}, a in {{{', '.join(f'{a:g}' for a in DECAYS)}}}, at {SEQUENCES} "
    "random sequences",
    breaks="the same cell with tanh around its step: what it keeps depends on its state",
    source="derived here. That the modulus of the poles sets the memory of a linear recurrence is the theme "
    "of Orvieto et al. 2023, arXiv 2303.06349 (abstract read)",
    test=_decay_test,
    specimen=lambda generator: DiagonalCell(torch.tensor(DECAYS, dtype=torch.float64), generator=generator),
    refuter=lambda generator: DiagonalCell(
        torch.tensor(DECAYS, dtype=torch.float64), squash=True, generator=generator
    ),
)

CLAIMS = (CHAIN, FADING, FORGET_GATES, STATE_DECAY)
