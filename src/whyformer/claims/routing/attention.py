"""What one layer of attention routes, and what a window, a bias or a second layer changes of it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from whyformer.claims.claim import Claim
from whyformer.claims.judging import equal, finite
from whyformer.claims.routing.dilution import DILUTION
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments import rounding
from whyformer.instruments.reach import Reach, reach
from whyformer.subjects import biases
from whyformer.subjects.biases import Bias
from whyformer.subjects.mechanisms import Attention, Stack

WIDTH = 8
DTYPES = (torch.float64, torch.float32)
BITWISE = "T0: a pair is linked or not; outputs that are not linked are bitwise equal"


@dataclass(frozen=True)
class Expected:
    """A map with the pairs of positions that the claim says it links.

    Attributes:
        name: what the map is, in words.
        module: from (batch, time, width) to the same.
        links: True where the output at the row's position depends on the input at the column's.
    """

    name: str
    module: nn.Module
    links: Bool[Tensor, "time time"]


def reach_in(module: nn.Module, time: int, dtype: torch.dtype, generator: torch.Generator) -> Reach:
    """The reach of a module cast to ``dtype``, at a random base of ``time`` vectors.

    One base is enough here: the modules are analytic, so that a link is missed with probability 0.
    """
    cast = copy.deepcopy(module).to(dtype)
    base = torch.randn(1, time, WIDTH, generator=generator, dtype=dtype)
    return reach(cast, base, generator)


def linked_as_expected(claim: str, subjects: Sequence[Expected], generator: torch.Generator) -> Finding:
    """Compare reach maps, pair by pair and in both dtypes, with what is expected; any difference refutes."""
    wrong, pairs, first = 0, 0, None
    for expected in subjects:
        for dtype in DTYPES:
            found = reach_in(expected.module, len(expected.links), dtype, generator)
            differs = found.map != expected.links
            wrong, pairs = wrong + int(differs.sum()), pairs + differs.numel()
            if first is None and differs.any():
                i, j = (int(at) for at in differs.nonzero()[0])
                linked = bool(found.map[i, j])
                first = {"model": expected.name, "dtype": str(dtype), "output": i, "input": j}
                first |= {"linked": linked, "expected": not linked}
    common: dict[str, Any] = {"claim": claim, "measured": wrong, "bound": 0, "bound_from": BITWISE}
    reason = f"{pairs - wrong} of {pairs} pairs of positions as expected, in float64 and float32"
    if not all(weight.isfinite().all() for each in subjects for weight in each.module.parameters()):
        reason = "a map has weights that are no numbers"
        return Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, **common)
    if first is not None:
        return Finding(verdict=Verdict.REFUTED, reason=reason, counterexample=first, **common)
    return Finding(verdict=Verdict.HOLDS, strength=Strength.PROVED, reason=reason, **common)


HOP_TIME = 12


def _layers(generator: torch.Generator, both_ways: Bias, causal: Bias) -> tuple[Expected, ...]:
    every = torch.ones(HOP_TIME, HOP_TIME, dtype=torch.bool)
    return (
        Expected("both ways", Attention(WIDTH, 2, bias=both_ways, generator=generator), every),
        Expected("causal", Attention(WIDTH, 2, bias=causal, generator=generator), every.tril()),
    )


ONE_HOP = Claim(
    id="routing.one-hop",
    sentence="One layer of full attention links every visible pair of positions, in one hop.",
    mathematics="""\
y_i = O Σ_j w_ij V x_j, where w_i is the softmax of the scores of query i, and M_ij = 1 where i may see j.
M_ij = 0: the score is −∞ and w_ij exactly 0, and y_i reads x_j through nothing else: ∂y_i/∂x_j = 0.
M_ij = 1: ∂y_i/∂x_j is analytic in the weights, and is w_ij O V ≠ 0 where Q = 0, so it vanishes on a set of
weights of measure zero only. Hence the support of ∂y_i/∂x_j is M, for almost all weights and any length.""",
    instrument="reach: gradient and substitution, in float64 and float32",
    rule="holds where the reach map is the mask, pair by pair; refuted where one pair differs",
    scope="every pair of 12 positions, both ways and causal; the zeros follow from the mask at every input",
    breaks="a sliding window of 4 keys: a pair further apart is not linked in one hop",
    source="Vaswani et al., Attention Is All You Need (2017), Table 1: a maximum path length of O(1)",
    test=lambda subject, generator: linked_as_expected("routing.one-hop", subject, generator),
    specimen=lambda generator: _layers(generator, biases.none, biases.causal),
    refuter=lambda generator: _layers(generator, biases.window(4, causal=False), biases.window(4)),
)

WINDOW, DEPTH = 3, 5
DEEP_TIME = DEPTH * (WINDOW - 1) + 3


def band(reach_back: int, time: int = DEEP_TIME) -> Bool[Tensor, "time time"]:
    """The pairs where the input is the output's own or one of the ``reach_back`` before it."""
    every = torch.ones(time, time, dtype=torch.bool)
    return every.tril() & every.triu(-reach_back)


def windowed(generator: torch.Generator, depth: int, last: Bias) -> Expected:
    """A stack of windowed layers, but for the last, which has the bias ``last``."""

    def stack(layers: int, bias: Bias) -> Stack:
        return Stack(WIDTH, layers, 2, bias=bias, generator=generator)

    module = nn.Sequential(stack(depth - 1, biases.window(WINDOW)), stack(1, last))
    return Expected(f"{depth} layers", module, band(depth * (WINDOW - 1)))


WINDOW_DEPTH = Claim(
    id="routing.window-depth",
    sentence="L layers with windows of w keys reach exactly L(w − 1) positions back, and no further.",
    mathematics="""\
One layer: y_i reads x_j for i − w < j ≤ i, and nothing else (norm, MLP and residual keep the position).
By induction, L layers read at most the sums of L such steps: 0 ≤ i − j ≤ L(w − 1). No path is longer; the
paths of a pair within reach add up to an analytic function of the weights. That it is not 0 throughout, the
drawn tensors witness for the sizes tried; there each such pair is linked for almost all weights.
A dilated convolution of kernel k has k^L − 1 in its place.""",
    instrument="reach: gradient and substitution, in float64 and float32",
    rule="holds where each reach map is the band of width L(w − 1), pair by pair; refuted where one differs",
    scope="every pair of 13 positions, w = 3, L = 1 to 5; the zeros follow from the windows at every input",
    breaks="one global layer in the stack: it reaches the first position at any depth",
    source="Vaswani et al., Attention Is All You Need (2017), Table 1: restricted attention, O(n/r) hops",
    test=lambda subject, generator: linked_as_expected("routing.window-depth", subject, generator),
    specimen=lambda generator: [
        windowed(generator, depth, biases.window(WINDOW)) for depth in range(1, DEPTH + 1)
    ],
    refuter=lambda generator: [windowed(generator, 2, biases.causal)],
)

GAP_TIME = 48


def value_gradients(layer: Attention, x: Tensor, at: Tensor) -> Tensor:
    """∂y_last/∂v at position ``at[b]`` of each row: (batch, width of y, width of v)."""
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: object, value: Tensor) -> Tensor:
        kept.append(value.detach().requires_grad_())
        return kept[0]

    hook = layer.v.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            y = layer(x)[:, -1].sum(0)
            rows = [torch.autograd.grad(each, kept[0], retain_graph=True)[0] for each in y]
    finally:
        hook.remove()
    return torch.stack(rows, 1)[torch.arange(len(x)), :, at]


def gap_moves_nothing(layer: Attention, generator: torch.Generator) -> Finding:
    """Move one key through every position, the others staying in order, and watch its value's gradient."""
    others = torch.randn(GAP_TIME - 1, WIDTH, generator=generator, dtype=torch.float64)
    match = torch.randn(WIDTH, generator=generator, dtype=torch.float64)
    at = torch.arange(GAP_TIME - 1)
    x = torch.stack([torch.cat([others[:m], match[None], others[m:]]) for m in at])
    slopes = value_gradients(layer, x, at)
    # What the mathematics gives: w·O, with the weight that the match has right before the query.
    error = rounding.attention_layer(layer, x).weights[at, 0, -1, at]
    weight = layer.weights(x)[at, 0, -1, at].detach()
    apart = (slopes - weight[-1] * layer.o.weight.detach()).abs().amax((1, 2))
    largest = layer.o.weight.detach().abs().max()
    limit = (error + error[-1] + 2 * rounding.unit(x.dtype) * weight[-1]) * largest
    worst = int((apart / limit).argmax())
    witness = {
        "gap": GAP_TIME - 1 - worst,
        "weight": weight[worst].item(),
        "weight_at_gap_1": weight[-1].item(),
    }
    return equal(
        "routing.gap-free",
        apart[worst].item(),
        limit[worst].item(),
        "T1 on the two weights, times the largest entry of O",
        f"∂y/∂v of one match at each of {len(at)} gaps, {GAP_TIME} keys",
        witness,
    )


GAP_FREE = Claim(
    id="routing.gap-free",
    sentence="Among N keys, what a match passes on, forward and back, does not depend on how far away it is.",
    mathematics="""\
y = O Σ_j w_j v_j gives ∂y/∂v_m = w_m O: one factor, whatever the gap. Without positions or a bias on
distance, w_m = exp(s_m)/Σ_j exp(s_j), and the scores s_j = q·k_j know the keys, not where they stand. Moving
a key permutes the sum and changes nothing. (More keys do change w_m: that is routing.dilution.)""",
    instrument="autograd through the values, one match moved through every position of 48",
    rule="holds where no ∂y/∂v_m differs from w O by more than T1; refuted beyond 10 times T1",
    scope="every gap from 1 to 47; one draw of the keys decides for almost all, the map being analytic",
    breaks="ALiBi: its bias takes the weight of a key down with each step of distance",
    source="derived for this project",
    test=gap_moves_nothing,
    specimen=lambda generator: Attention(WIDTH, bias=biases.causal, generator=generator),
    refuter=lambda generator: Attention(WIDTH, bias=biases.alibi(1), generator=generator),
)

BAG_TIME = 6


def prefix_order_is_lost(stack: Stack, generator: torch.Generator) -> Finding:
    """Try every order of what precedes the last position, and compare its output, in both dtypes."""
    orders = torch.tensor([[*order, BAG_TIME - 1] for order in permutations(range(BAG_TIME - 1))])
    x = torch.randn(BAG_TIME, WIDTH, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        y = stack(x[orders])[:, -1]
        error = rounding.forward(stack, x[orders])[:, -1]
        low = copy.deepcopy(stack).float()(x[orders].float())[:, -1]
    apart, limit = (y - y[0]).abs(), error + error[0]
    worst = int((apart / limit).amax(-1).argmax())
    at = int((apart / limit)[worst].argmax())
    kept = int((apart <= limit).all(-1).sum())
    common: dict[str, Any] = {"claim": "routing.prefix-bag", "measured": finite(apart[worst, at].item())}
    common |= {"bound": finite(limit[worst, at].item()), "bound_from": "T1, once for each of the two outputs"}
    reason = (
        f"{kept} of {len(orders)} orders of the {BAG_TIME - 1} earlier tokens leave the last output as it is"
    )
    if kept == len(orders):
        return Finding(verdict=Verdict.HOLDS, strength=Strength.PROVED, reason=reason, **common)
    # A violation stands in float32 as in float64; rounding would grow by 2^29.
    stands = (low[worst] - low[0]).abs()[at] <= 2 * apart[worst, at]
    if apart[worst, at] <= rounding.CLEAR * limit[worst, at] or not stands:
        return Finding(verdict=Verdict.INCONCLUSIVE, reason=f"{reason}: near the bound", **common)
    witness = {"order": orders[worst].tolist(), "coordinate": at}
    witness |= {"output": y[worst, at].item(), "output_in_order": y[0, at].item()}
    return Finding(verdict=Verdict.REFUTED, reason=reason, counterexample=witness, **common)


def _causal(generator: torch.Generator, layers: int) -> Stack:
    return Stack(WIDTH, layers, 2, bias=biases.causal, generator=generator)


PREFIX_BAG = Claim(
    id="routing.prefix-bag",
    sentence="In one causal layer without positions, the last output sees what came before, not its order.",
    mathematics="""\
y_n = x_n + O Σ_{j≤n} w_j V x_j, w the softmax of q_n·k_j over all j ≤ n, then a function of y_n alone. For a
permutation π of the first n − 1 positions, the sums run over the same terms in another order, so that
y_n(πx) = y_n(x). With a second layer this ends: its keys are outputs of the first at j < n, which saw
only the x_i with i ≤ j.""",
    instrument="the last output under every permutation of the earlier tokens, in float64 and float32",
    rule="holds where all stay within T1; refuted beyond 10 times T1 where float32 shows the same deviation",
    scope="all 120 orders of 5 tokens; one draw of them decides for almost all, the map being analytic",
    breaks="two causal layers: the first writes what came before each token into it",
    source="derived for this project",
    test=prefix_order_is_lost,
    specimen=lambda generator: _causal(generator, 1),
    refuter=lambda generator: _causal(generator, 2),
)

CLAIMS = (ONE_HOP, WINDOW_DEPTH, GAP_FREE, DILUTION, PREFIX_BAG)
