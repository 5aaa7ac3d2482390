"""What a mask or a bias lets attention see of order, without positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from whyformer.claims.claim import Claim
from whyformer.claims.judging import (
    PLANTED,
    TWICE,
    Prediction,
    as_predicted,
    draw,
    equal,
    finite,
    lowered,
    twice,
    witness,
)
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments import rounding, symmetry
from whyformer.instruments.reach import reach
from whyformer.subjects import biases
from whyformer.subjects.biases import Bias
from whyformer.subjects.mechanisms import Attention, Stack

RING = 5
"""Positions on which the groups of many biases are compared."""

WIDTH = 16
"""Two heads of 8: at least as wide as there are positions, which the proof needs."""


def zoo(generator: torch.Generator) -> dict[str, Bias]:
    """Biases with groups of many sizes on ``RING`` positions, by name."""
    row = draw(generator, RING)
    near, far = draw(generator, 2).tolist()
    buckets = draw(generator, 2, 32)
    return {
        "none": biases.none,
        "query-only": lambda n: biases.key_only(row)(n).mT,
        "causal": biases.causal,
        "prefix of 3": biases.prefix(3),
        "documents of 2 and 3": biases.documents((2, 3)),
        "window of 2, both ways": biases.window(2, causal=False),
        "window of 2, causal": biases.window(2),
        "circulant": biases.circulant(row),
        "symmetric circulant": biases.circulant(torch.tensor([0.0, near, far, far, near])),
        "key-only": biases.key_only(row),
        "ALiBi both ways": biases.alibi(2, causal=False),
        "ALiBi causal": biases.alibi(2),
        "T5 signed": biases.t5(buckets),
        "T5 unsigned": biases.t5(buckets, signed=False),
    }


def _by_formula(layer: Attention, bias: Float[Tensor, "heads n n"], x: Float[Tensor, "n width"]) -> Tensor:
    """What the claim's mathematics makes of x with a bias, whatever the layer itself computes."""
    q, k, v = (layer.split(part(x)) for part in (layer.q, layer.k, layer.v))
    return layer.o(layer.merge((q @ k.mT * layer.scale + bias).softmax(-1) @ v))


def _effect(layer: Attention, x: Float[Tensor, "n width"]) -> Float[Tensor, " count"]:
    """How far each permutation moves the outputs by changing the bias alone, in the claim's mathematics."""
    bias, orders = layer.bias(len(x)), symmetry.permutations(len(x))
    # Query π(i) of x sees B_π(i)π(j) where the token π(j) of πx sees B_ij: so B moved back is what differs.
    back = orders.argsort(-1)
    moved = bias[:, back[:, :, None], back[:, None, :]].transpose(0, 1)
    apart = _by_formula(layer, moved, x) - _by_formula(layer, bias, x)
    return apart.abs().flatten(1).amax(-1)


def _automorphic(subject: Mapping[str, Attention], generator: torch.Generator) -> Finding:
    def predictions() -> Iterator[Prediction]:
        for name, layer in subject.items():
            x = draw(generator, RING, WIDTH)
            expected = symmetry.automorphisms(layer.bias, RING)
            nothing = torch.zeros_like(expected)
            yield Prediction(name, layer, x, expected, partial(_effect, layer, x), nothing, {"bias": name})

    with torch.no_grad():
        return as_predicted("order.bias-automorphisms", predictions())


def _layers(generator: torch.Generator, rotary: float | None) -> dict[str, Attention]:
    return {
        name: Attention(WIDTH, 2, bias=bias, rotary=rotary, generator=generator)
        for name, bias in zoo(generator).items()
    }


BIAS_AUTOMORPHISMS = Claim(
    id="order.bias-automorphisms",
    sentence="Without positions, attention commutes with exactly the permutations that its bias ignores.",
    mathematics="""\
Let B be the bias, −∞ where masked, and s_ij the score that the tokens x_i and x_j give. Query i of πx weighs
token x_π(j) by softmax_j(s_π(i)π(j) + B_ij); query π(i) of x weighs it by softmax_j(s_π(i)π(j) + B_π(i)π(j)).
If B_π(i)π(j) − B_ij is the same number for all j, for each i and each head, the two softmaxes are equal, for
softmax ignores a constant: then f(πx) = πf(x) for all x. Such π are the automorphisms of the bias.
Conversely, let the heads be at least n wide and the weights generic: the n values V x_j of a head are
linearly independent and O is injective, so equal outputs have equal weights. The logarithm of their ratio,
B_π(i)π(j) − B_ij less a constant of i, must then vanish for all j: the group is this one and no larger.
A mask is a bias of 0 and −∞: causal, documents, prefixes and windows are cases of one rule.""",
    instrument="symmetry: all 120 permutations of 5 positions, against those of the bias, in float64",
    rule="holds where for every bias both sets are equal; refuted where an automorphism clearly breaks, or "
    "another permutation commutes that by the formula would clearly break",
    scope="14 biases, all 120 permutations each, at a generic input; by the proof, every bias, and every n "
    "up to the width of a head",
    breaks="rotary positions: order comes in by another door than the bias",
    source="derived for this project",
    test=_automorphic,
    specimen=lambda generator: _layers(generator, None),
    refuter=lambda generator: _layers(generator, 1e4),
)


def _ignored(subject: Stack, n: int) -> Bool[Tensor, " count"]:
    """The permutations that commute exactly: the positions and every layer's bias ignore them."""
    kept = torch.ones(len(symmetry.permutations(n)), dtype=torch.bool)
    if subject.positions is not None:
        rows = subject.positions[:n]
        kept &= (rows[symmetry.permutations(n)] == rows).flatten(1).all(-1)
    for layer in subject.modules():
        if isinstance(layer, Attention):
            kept &= symmetry.automorphisms(layer.bias, n)
            if layer.rotary is not None:
                kept[1:] = False
    return kept


def _ordered(subject: Stack, generator: torch.Generator) -> Finding:
    n = symmetry.LARGEST
    with torch.no_grad():
        x = draw(generator, n, 4)
        found = symmetry.group(subject, x, twice(subject, x[None]))
        ignored = _ignored(subject, n) & found.commutes
        ignored[0] = False
        exact = ignored.any()
        nearest = int(ignored.nonzero()[0]) if exact else 1 + int(found.deviations[1:].argmin())
        where = witness(subject, x, found.permutations[nearest])
    counts = reach(subject, x[None], generator).map.sum(-1).tolist()
    result = Finding(
        claim="order.causal-mask",
        verdict=Verdict.INCONCLUSIVE,
        measured=finite(float(found.deviations[1:].min())),
        bound=finite(found.bound),
        bound_from=f"{TWICE}; every permutation but the identity must deviate by clearly more",
        reason=f"{found.order:,} of all {len(found.permutations):,} permutations of {n} positions commute; "
        f"the {n} outputs depend on {', '.join(map(str, counts))} inputs",
    )
    if exact:
        return result.but(verdict=Verdict.REFUTED, counterexample=where)
    if found.breaks[1:].all() and counts == list(range(1, n + 1)):
        return result.but(verdict=Verdict.HOLDS, strength=Strength.PROVED)
    return result


CAUSAL_MASK = Claim(
    id="order.causal-mask",
    sentence="A causal mask leaves attention no symmetry: without positions, it is not blind to order.",
    mathematics="""\
With a causal mask, output i depends on the inputs 0 to i and, for generic weights, on every one of them: on
exactly i + 1 inputs. Suppose f(πx) = πf(x) for all x, that is f(πx)_i = f(x)_π(i). Renaming inputs does not
change how many of them matter: the left side depends on i + 1 inputs, the right side on π(i) + 1. So
π(i) = i for every i, and π is the identity. Depth does not matter, nor MLP, norm or residual.
So "positions are required" is false of decoders. What one causal layer still cannot tell its last output is
the order of the tokens before the last; see routing.prefix-bag.""",
    instrument="symmetry: all permutations of 7 positions; reach: the inputs of each output; in float64",
    rule="holds where all but the identity deviate clearly and output i has i + 1 inputs; refuted where "
    "another permutation commutes that, besides, every layer's bias ignores exactly",
    scope="all 5,040 permutations of 7 positions at a generic input; by the proof, every n",
    breaks="a mask that is causal only after a prefix of 3: it commutes with all 6 orders of the prefix",
    source="derived for this project; that such models learn positions: Haviv et al. (2022), arXiv "
    "2203.16634 (abstract read)",
    test=_ordered,
    specimen=lambda generator: Stack(4, 2, 2, bias=biases.causal, generator=generator),
    refuter=lambda generator: Stack(4, 2, 2, bias=biases.prefix(3), generator=generator),
)


class Started(nn.Module):
    """A stack that puts a token of its own in front, and drops its output."""

    def __init__(self, stack: Stack, start: Float[Tensor, " width"]) -> None:
        super().__init__()
        self.stack = stack
        self.start: Tensor
        self.register_buffer("start", start)

    def after(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch longer width"]:
        """The sequence with the token in front."""
        return torch.cat((self.start.expand(len(x), 1, -1), x), 1)

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """The outputs at the given tokens."""
        return self.stack(self.after(x))[:, 1:]


@rounding.forward.register
def _(module: Started, x: Tensor, error: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
    bears = None if error is None else torch.cat((torch.zeros_like(error[:, :1]), error), 1)
    return rounding.forward(module.stack, module.after(x), bears)[:, 1:]


REPEATS, COPIES = 24, 3


def _uncounted(subject: nn.Module, generator: torch.Generator) -> Finding:
    tokens = draw(generator, COPIES, 1, 8)
    with torch.no_grad():
        x = tokens.expand(-1, REPEATS, -1).contiguous()
        y, bound = subject(x), twice(subject, x)
    apart = (y - y[:, :1]).abs().amax(-1)

    def in_float32() -> float:
        with torch.no_grad():
            low = lowered(subject)(x.float())
        return float((low - low[:, :1]).abs().max())

    token, at = divmod(int(apart.argmax()), REPEATS)
    most = float(apart.max())
    where = {
        "token": tokens[token, 0].tolist(),
        "position": at,
        "output": y[token, at].tolist(),
        "first_output": y[token, 0].tolist(),
    }
    reason = (
        f"{REPEATS} copies of a token, {COPIES} tokens: outputs differ from the first by at most {most:.1e}"
    )
    return equal("order.repeated-token", most, bound, TWICE, reason, where, in_float32)


REPEATED_TOKEN = Claim(
    id="order.repeated-token",
    sentence="Causal attention without positions cannot count: copies of one token all look the same.",
    mathematics="""\
Let every input be the token t. Query i attends to i + 1 keys with one and the same score: each weighs
1/(i + 1), and the values, all V t, average to V t whatever i is. So the layer gives every position the same
output. MLP, norm and residual act on each position alone and keep equal things equal; the next layer again
sees copies of one token. By induction all outputs are equal, at any depth, for any number of copies.
So the mask orders only what differs. One different token in front is enough to count by: it weighs
e^a/(e^a + i e^b), which falls with i. That is why constructions without positions use a start token.""",
    instrument="the outputs of 2 layers at 24 copies of a token, against the first of them, in float64",
    rule="holds where they are equal within T1, and what differs shrinks from float32 to float64 as rounding "
    "does (T6); refuted where one differs clearly",
    scope=f"24 copies of 3 drawn tokens, 2 layers, where planted positions of {PLANTED:.0e} are seen; by "
    "the proof, every token, number and depth",
    breaks="a start token in front",
    source="derived for this project; the start token as a counter: Kazemnejad et al. (2023), arXiv "
    "2305.19466, Theorem 1 (a summary read)",
    test=_uncounted,
    specimen=lambda generator: Stack(8, 2, 2, bias=biases.causal, generator=generator),
    refuter=lambda generator: Started(
        Stack(8, 2, 2, bias=biases.causal, generator=generator), draw(generator, 8)
    ),
)

SPAN = 64
"""Positions at which a bias is compared with itself a step later."""

MIRROR = 6
"""Positions of which all permutations are tried on a bias."""


def _toeplitz(subject: Mapping[str, Bias], generator: torch.Generator) -> Finding:
    wrong, lost, first, orders = 0, False, None, []
    for name, bias in subject.items():
        table = bias(SPAN)
        lost |= bool(table.isnan().any())
        here, later = table[:, :-1, :-1], table[:, 1:, 1:]
        wrong += int((here != later).sum())
        orders.append(f"{name} {int(symmetry.automorphisms(bias, MIRROR).sum())}")
        if first is None and not rounding.identical(here, later):
            head, i, j = (int(at) for at in (here != later).nonzero()[0])
            first = {"bias": name, "head": head, "query": i, "key": j}
            first |= {"here": finite(float(here[head, i, j])), "later": finite(float(later[head, i, j]))}
    result = Finding(
        claim="order.toeplitz-bias",
        verdict=Verdict.INCONCLUSIVE,
        measured=wrong,
        bound=0,
        bound_from="T0: equal distances must have equal numbers, bit for bit",
        reason=f"{wrong:,} pairs of {SPAN} positions differ from the pair one later; of all permutations of "
        f"{MIRROR} positions, these are ignored: {', '.join(orders)}",
    )
    if lost:
        return result.but(reason="a bias has entries that are no numbers")
    if first is not None:
        return result.but(verdict=Verdict.REFUTED, counterexample=first)
    return result.but(verdict=Verdict.HOLDS, strength=Strength.PROVED)


def _relative(generator: torch.Generator) -> dict[str, Bias]:
    buckets = draw(generator, 2, 32)
    return {
        "ALiBi causal": biases.alibi(2),
        "ALiBi both ways": biases.alibi(2, causal=False),
        "T5 signed": biases.t5(buckets),
        "T5 unsigned": biases.t5(buckets, signed=False),
        "window of 3": biases.window(3),
    }


def _of_rows(generator: torch.Generator) -> dict[str, Bias]:
    rows = draw(generator, SPAN, 4)
    return {"products of learned rows": lambda n: (rows[:n] @ rows[:n].mT)[None]}


TOEPLITZ_BIAS = Claim(
    id="order.toeplitz-bias",
    sentence="ALiBi, T5 and window biases depend on the distance alone, so no shift is seen.",
    mathematics="""\
A bias with B_ij = b(i − j) has B_(i+s)(j+s) = B_ij for every s: its table is constant along diagonals
(Toeplitz). Scores are token products plus B, so positions enter only through differences, and moving all of
them by s changes no score. It is enough to compare each pair with the pair one later: the rest follows.
Order is seen all the same. If a permutation leaves B as it is up to a constant of i, that constant is 0, as
j = i shows; so where b tells all distances apart it keeps every |i − j|, and is the identity or the reversal.
ALiBi both ways, and T5 on |i − j|, keep the reversal: 2 permutations, so they cannot tell a text from its
mirror. T5 with a sign, or a causal mask, keeps the identity only.""",
    instrument="the table of each bias against itself one step later, bit for bit; its group on 6 positions",
    rule="holds where both tables are equal bit for bit (T0); refuted where one number differs",
    scope="every pair of 64 positions, 5 biases; by the formula, every length",
    breaks="the bias that learned absolute positions make, p_i·p_j",
    source="Press et al., Train Short, Test Long (2022), for ALiBi's slopes (summaries read); the rest "
    "derived for this project",
    test=_toeplitz,
    specimen=_relative,
    refuter=_of_rows,
)


@dataclass(frozen=True)
class Twins:
    """Two layers with the same weights and different biases."""

    first: Attention
    second: Attention


def twins(first: Bias, second: Bias, generator: torch.Generator) -> Twins:
    """A layer of 4 heads, and its copy with another bias."""
    state = generator.get_state()
    one = Attention(WIDTH, 4, bias=first, generator=generator)
    return Twins(one, Attention(WIDTH, 4, bias=second, generator=generator.set_state(state)))


def _same_weights(subject: Twins, generator: torch.Generator) -> Finding:
    x = draw(generator, 1, 32, WIDTH)
    with torch.no_grad():
        first, second = subject.first.weights(x), subject.second.weights(x)
        errors = [rounding.attention_layer(layer, x).weights for layer in (subject.first, subject.second)]
    apart = (first - second).abs()
    _, head, i, j = (int(at) for at in torch.unravel_index(apart.argmax(), apart.shape))
    where = {"input": x[0].tolist(), "head": head, "query": i, "key": j}
    where |= {"first": float(first[0, head, i, j]), "second": float(second[0, head, i, j])}
    most = float(apart.max())
    reason = f"4 heads, all pairs of 32 positions: weights differ by at most {most:.1e}"
    bound_from = "T1 for the weights of two evaluations, at this input in float64"
    return equal(
        "order.key-only-alibi", most, float((errors[0] + errors[1]).max()), bound_from, reason, where
    )


def _ramp(n: int) -> Float[Tensor, "4 n n"]:
    return biases.key_only(biases.alibi_slopes(4)[:, None] * torch.arange(n, dtype=torch.float64))(n)


KEY_ONLY_ALIBI = Claim(
    id="order.key-only-alibi",
    sentence="Causal ALiBi is a bias of the key alone: +m·j in place of −m·(i − j).",
    mathematics="""\
For query i, the bias is −m(i − j) = m·j − m·i over the keys j ≤ i that it sees. The term −m·i is the same
for all of them, and softmax ignores a constant: e^(s + c)/Σ e^(s + c) = e^s/Σ e^s. So the weights are those
of the bias m·j, which no query enters: the number can be added once, when the key is stored.
Both ways it fails: −m|i − j| is m·j − m·i for j ≤ i but m·i − m·j for j > i: no constant mends both.
So a decoder with ALiBi is not relative by its bias alone: the mask makes it so.""",
    instrument="the weights of two layers with equal projections and either bias, every pair, in float64",
    rule="holds where all weights are equal within T1; refuted where one differs clearly",
    scope="4 heads, 32 positions, a drawn input; by the proof, every input",
    breaks="ALiBi both ways",
    source="derived for this project",
    test=_same_weights,
    specimen=lambda generator: twins(biases.alibi(4), biases.add(biases.causal, _ramp), generator),
    refuter=lambda generator: twins(biases.alibi(4, causal=False), _ramp, generator),
)

CLAIMS = (BIAS_AUTOMORPHISMS, CAUSAL_MASK, REPEATED_TOKEN, TOEPLITZ_BIAS, KEY_ONLY_ALIBI)
