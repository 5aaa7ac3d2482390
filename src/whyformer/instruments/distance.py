"""Attention and lookup by gap: what falls with distance, and what with dilution.

Cells are octaves: a context of 2^c … 2^(c+1) − 1 tokens before the query, a gap of 2^g … 2^(g+1) − 1 back to
the twin. Along a row of cells the context is held and the distance grows; along a column the distance is held
and the context, with it the number of keys that compete, grows.

Axes: layers, heads, contexts, gaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from whyformer.instruments.ablation import predictions
from whyformer.instruments.heads import octave
from whyformer.instruments.repeats import Repeats

FEWEST = 16
"""A cell with fewer queries is left out: its mean says little."""
LEVEL = 0.1
"""A mean that nowhere reaches this is no routing that could fail: even attention falls as keys are added."""


@dataclass(frozen=True)
class Curve:
    """A mean by octave, where there are enough queries.

    Attributes:
        least: the least gap, or context, of each octave.
        value: the mean in it.
        count: how many queries that is the mean of; they come in pieces of 2 to 16 tokens.
        held: the least context, or gap, of the octave in which the other is held; None where it is not.
    """

    least: tuple[int, ...]
    value: tuple[float, ...]
    count: tuple[int, ...]
    held: int | None = None


@dataclass(frozen=True)
class Falls:
    """How a mean moves with the gap and with the context.

    Attributes:
        by_gap: over all contexts.
        distance: by gap, within the largest context.
        dilution: by context, within the gaps that most contexts share.
        reason: "distance", "dilution" or "both", where one of the last two curves falls; or None.
    """

    by_gap: Curve
    distance: Curve
    dilution: Curve
    reason: str | None


@dataclass(frozen=True, eq=False)
class Lookup:
    """How often a model's likeliest next token was the one that followed the twin.

    Attributes:
        right: right answers by context and gap.
        count: how many were asked: as many as there are in the rare cells, and alike in all others.
        there: how many could have been asked.
    """

    right: Float[Tensor, "contexts gaps"]
    count: Int[Tensor, "contexts gaps"]
    there: Int[Tensor, "contexts gaps"]

    @property
    def accuracy(self) -> float | None:
        """The share of right answers over all that could have been asked, cell by cell; None without any."""
        met = self.count > 0
        each, weight = self.right[met] / self.count[met], self.there[met]
        return float((each * weight).sum() / weight.sum()) if met.any() else None


def falls(total: Float[Tensor, "contexts gaps"], count: Int[Tensor, "contexts gaps"]) -> Falls:
    """Tell distance from dilution, each while the other is held.

    A curve falls where its largest value is a tenth or more, and its last less than half of that.

    Args:
        total: the sum over the queries of each cell.
        count: how many there are.
    """
    enough = count >= FEWEST
    context = max((int(c) for c in enough.sum(1).nonzero()), default=0)
    gap = int(enough.sum(0).argmax())
    distance = _curve(total[context], count[context], 1 << context)
    dilution = _curve(total[:, gap], count[:, gap], 1 << gap)
    failing = [
        name for name, curve in (("distance", distance), ("dilution", dilution)) if _fails(curve.value)
    ]
    reason = "both" if len(failing) == 2 else failing[0] if failing else None
    return Falls(_curve(total.sum(0), count.sum(0)), distance, dilution, reason)


def _fails(values: tuple[float, ...]) -> bool:
    most = max(values, default=0.0)
    return most >= LEVEL and values[-1] < most / 2


def _curve(
    total: Float[Tensor, " octaves"], count: Int[Tensor, " octaves"], held: int | None = None
) -> Curve:
    kept = [
        (1 << at, float(t / n), int(n))
        for at, (t, n) in enumerate(zip(total, count, strict=True))
        if n >= FEWEST
    ]
    least, value, queries = zip(*kept, strict=True) if kept else ((), (), ())
    return Curve(least, value, queries, held)


def lookup(model: nn.Module, repeats: Repeats, *, most: int, generator: torch.Generator) -> Lookup:
    """Ask a model, where a token comes back, what comes next.

    Far twins are few, so the queries are drawn evenly over the cells of context and gap, not over the tokens.

    Args:
        model: a decoder with its language head.
        repeats: what it reads; only queries whose next token is the twin's successor are asked.
        most: how many queries are asked, drawn from those there are: each costs a row of logits.
        generator: draws them.
    """
    size = int(octave(torch.tensor([repeats.length])).item()) + 1
    row, query, twin = repeats.pairs
    nearest = torch.zeros(repeats.tokens.shape, dtype=torch.int64)
    nearest[row, query] = twin  # pairs are in order, so the latest twin is written last
    row, query = repeats.copied
    cells = octave(query) * size + octave(query - nearest[row, query])
    chosen = _evenly(cells, most, generator)
    asked = Repeats(repeats.tokens, repeats.pairs, repeats.copied[:, chosen])
    answers = [(logits.argmax(-1) == answers).cpu() for logits, answers in predictions(model, asked)]
    right = torch.zeros(size * size, dtype=torch.float64)
    right.index_add_(0, cells[chosen], torch.cat(answers).double())
    counts = (torch.bincount(which, minlength=size * size) for which in (cells[chosen], cells))
    return Lookup(*(table.view(size, size) for table in (right, *counts)))


def _evenly(cells: Int[Tensor, " queries"], most: int, generator: torch.Generator) -> Int[Tensor, " chosen"]:
    """At most so many places, in order: of each cell all, or as many as of any other, give or take one."""
    drawn = torch.randperm(len(cells), generator=generator)
    by_cell = drawn[cells[drawn].argsort(stable=True)]
    counts = torch.bincount(cells)
    begins = counts.cumsum(0) - counts
    turn = torch.arange(len(cells)) - begins[cells[by_cell]]  # how many of its cell are drawn before
    return by_cell[turn.argsort(stable=True)[:most]].sort().values
