"""Attention without positions or mask is blind to order."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from whyformer.claims.claim import Claim
from whyformer.claims.judging import PLANTED, TWICE, draw, equal, lowered, twice, witness
from whyformer.finding import Finding
from whyformer.instruments import rounding, symmetry
from whyformer.subjects import positions
from whyformer.subjects.mechanisms import Stack


class Comparison(nn.Module):
    """Adds Π_{i<j} (x_i − x_j), taken of the first coordinate, to every coordinate of every token.

    An odd permutation turns the sign of the product and an even one does not: so exactly half of all
    permutations commute with it, and no swap does.
    """

    def product(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch 1 1"]:
        """The product over all pairs of positions."""
        i, j = torch.triu_indices(x.shape[1], x.shape[1], 1)
        return (x[:, i, 0] - x[:, j, 0]).prod(-1)[:, None, None]

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """The tokens, each with the product added."""
        return x + self.product(x)


@rounding.forward.register
def _(
    module: Comparison, x: Tensor, error: Tensor | None = None, position_ids: Tensor | None = None
) -> Tensor:
    """P differences and P products, each rounded once, then a sum."""
    pairs = x.shape[1] * (x.shape[1] - 1) // 2
    return (
        rounding.gamma(2 * pairs, x.dtype) * module.product(x).abs()
        + rounding.unit(x.dtype) * module(x).abs()
    )


def _equivariant(subject: nn.Module, generator: torch.Generator) -> Finding:
    with torch.no_grad():
        x = draw(generator, symmetry.LARGEST, 4)
        found = symmetry.group(subject, x, twice(subject, x[None]))
        worst = int(found.deviations.argmax())
        where = witness(subject, x, found.permutations[worst])

    def in_float32() -> float:
        with torch.no_grad():
            return float(symmetry.group(lowered(subject), x.float(), 0.0).deviations.max())

    most = float(found.deviations[worst])
    reason = (
        f"{found.order:,} of all {len(found.permutations):,} permutations of {symmetry.LARGEST} positions "
        f"commute within T1; largest deviation {most:.1e}"
    )
    return equal("order.equivariance", most, found.bound, TWICE, reason, where, in_float32)


EQUIVARIANCE = Claim(
    id="order.equivariance",
    sentence="Bidirectional attention without positions is permutation-equivariant, whatever its depth.",
    mathematics="""\
Write (πx)_i = x_π(i). A head gives query i the values Σ_j e^{q_i·k_j} v_j / Σ_j e^{q_i·k_j}: i enters through
x_i alone, and the sums run over all j, so renaming the j changes nothing. Hence f(πx)_i = f(x)_π(i), that is
f(πx) = πf(x), for every π and every x.
Heads side by side, projections, MLP, layer norm and residual act on each position by itself, with the same
weights, so they commute with π as well; and what commutes can be composed. So the whole stack commutes with
all n! permutations, in exact arithmetic, at every n, width and depth.
The check computes all 5,040 permutations of 7 drawn tokens. The stack is analytic in x, so a π that failed
for some x would fail at almost every x: one drawn x decides. Trying one permutation would not: those that
commute are a group, and a proper subgroup can hold half of them (Lagrange). The refuter's does.""",
    instrument="symmetry: all permutations of 7 positions, in float64",
    rule="holds where every |f(πx) − πf(x)| is within T1, and shrinks from float32 to float64 as rounding "
    "does (T6); refuted where one is clearly above T1",
    scope="all 5,040 permutations of 7 positions at a generic input, where planted positions of "
    f"{PLANTED:.0e} are seen; by the proof, every n and every input",
    breaks="adding Π_{i<j}(x_i − x_j) to every token: even permutations commute, odd ones do not",
    source="Zaheer et al., Deep Sets (2017), on equivariance; Lee et al., Set Transformer (2019), on "
    "attention for sets (abstracts and summaries read)",
    test=_equivariant,
    specimen=lambda generator: Stack(4, 2, 2, generator=generator),
    refuter=lambda generator: Comparison(),
)


class Pooled(nn.Module):
    """The mean over positions of what a stack makes of them."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.stack = stack

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch width"]:
        """One vector for the whole sequence."""
        return self.stack(x).mean(-2)


@rounding.forward.register
def _(module: Pooled, x: Tensor, error: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
    own = rounding.gamma(x.shape[-2], x.dtype) * module.stack(x).abs().mean(-2)
    return rounding.forward(module.stack, x, error).mean(-2) + own


SENTENCES = ("dog bites man", "the dog bites the old man")


def _bag(subject: nn.Module, generator: torch.Generator) -> Finding:
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    table = draw(generator, len(words), 8)
    low_subject, low = lowered(subject), 0.0
    most, bound, tried, where = 0.0, 0.0, 0, {}
    with torch.no_grad():
        for sentence in SENTENCES:
            ids = torch.tensor([words.index(word) for word in sentence.split()])
            orders = symmetry.permutations(len(ids))
            read = subject(table[ids[orders]])
            apart = (read - read[0]).abs().amax(-1)
            in_float32 = low_subject(table.float()[ids[orders]])
            low = max(low, float((in_float32 - in_float32[0]).abs().max()))
            bound = max(bound, twice(subject, table[ids][None]))
            worst, tried = int(apart.argmax()), tried + len(orders)
            if not (math.isnan(most) or float(apart[worst]) <= most):
                most = float(apart[worst])
                other = " ".join(words[i] for i in ids[orders[worst]])
                one, two = read[0].tolist(), read[worst].tolist()
                where = {"sentence": sentence, "reordered": other, "reads": one, "reordered_reads": two}
    reason = f"'dog bites man' and {tried - 1} other orders of words read the same but for at most {most:.1e}"
    if most > rounding.CLEAR * bound:
        reason = f"'{where['sentence']}' and '{where['reordered']}' read differently, by {most:.1e}"
    return equal("order.bag-of-words", most, bound, TWICE, reason, where, lambda: low)


BAG_OF_WORDS = Claim(
    id="order.bag-of-words",
    sentence="Pooled attention without positions reads a bag of words: 'dog bites man' is 'man bites dog'.",
    mathematics="""\
Let g(x) = (1/n) Σ_i f(x)_i, with f(πx) = πf(x). Then g(πx) = (1/n) Σ_i f(x)_π(i) = g(x): a sum does not mind
the order of its terms. So what the pooled vector says of a sentence depends on which words are in it, and how
often, and on nothing else; no reading of it can tell who bites whom.
Positions p_i undo this: the token at i is then x_π(i) + p_i, which says more than which word it is.
The check reads every order of the words of two sentences, the second with one word twice.""",
    instrument="symmetry: all orders of 'dog bites man' and of 'the dog bites the old man', in float64",
    rule="holds where all orders read the same within T1, and what differs shrinks from float32 to float64 "
    "as rounding does (T6); refuted where two differ clearly",
    scope="all 6 and all 720 orders, with drawn word vectors, where planted positions of "
    f"{PLANTED:.0e} are seen; by the proof, every sentence",
    breaks="sinusoidal positions added to the words",
    source="Zaheer et al., Deep Sets (2017): functions of sets pool over their elements (summaries read)",
    test=_bag,
    specimen=lambda generator: Pooled(Stack(8, 2, 2, generator=generator)),
    refuter=lambda generator: Pooled(
        Stack(8, 2, 2, positions=positions.sinusoidal(6, 8), generator=generator)
    ),
)

CLAIMS = (EQUIVARIANCE, BAG_OF_WORDS)
