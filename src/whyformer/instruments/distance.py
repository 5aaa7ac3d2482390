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
    """

    least: tuple[int, ...]
    value: tuple[float, ...]


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
    distance = _curve(total[context], count[context])
    dilution = _curve(total[:, gap], count[:, gap])
    failing = [
        name for name, curve in (("distance", distance), ("dilution", dilution)) if _fails(curve.value)
    ]
    reason = "both" if len(failing) == 2 else failing[0] if failing else None
    return Falls(_curve(total.sum(0), count.sum(0)), distance, dilution, reason)


def _fails(values: tuple[float, ...]) -> bool:
    most = max(values, default=0.0)
    return most >= LEVEL and values[-1] < most / 2


def _curve(total: Float[Tensor, " octaves"], count: Int[Tensor, " octaves"]) -> Curve:
    kept = [
        (1 << at, float(t / n)) for at, (t, n) in enumerate(zip(total, count, strict=True)) if n >= FEWEST
    ]
    return Curve(tuple(least for least, _ in kept), tuple(value for _, value in kept))


def lookup(
    model: nn.Module, repeats: Repeats, *, most: int, generator: torch.Generator
) -> tuple[Float[Tensor, "contexts gaps"], Int[Tensor, "contexts gaps"]]:
    """How often the model's likeliest next token is the one that followed the twin: right answers, and asked.

    Args:
        model: a decoder with its language head.
        repeats: what it reads; only queries whose next token is the twin's successor are asked.
        most: how many queries are asked, drawn from those there are: each costs a row of logits.
        generator: draws them.
    """
    size = int(octave(torch.tensor([repeats.length])).item()) + 1
    order = torch.randperm(repeats.copied.shape[1], generator=generator)[:most].sort().values
    asked = Repeats(repeats.tokens, repeats.pairs, repeats.copied[:, order])
    row, query, twin = repeats.pairs
    nearest = torch.zeros(repeats.tokens.shape, dtype=torch.int64)
    nearest[row, query] = twin  # pairs are in order, so the latest twin is written last
    row, query = asked.copied
    cells = octave(query) * size + octave(query - nearest[row, query])
    right = torch.cat([(logits.argmax(-1) == answers).cpu() for logits, answers in predictions(model, asked)])
    total = torch.zeros(size * size, dtype=torch.float64).index_add_(0, cells, right.double())
    return total.view(size, size), torch.bincount(cells, minlength=size * size).view(size, size)
