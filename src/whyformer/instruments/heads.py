"""Every head of a transformer scored for routing: whom it attends to, and whether it matches content.

Scores are mean probabilities, from 0 to 1. Where a query can have several targets, their probabilities are
added (a row sum), so a head that divides its attention among all twins is not marked down. Targets follow
from equal tokens, not from a diagonal of the pattern: where gaps vary, a head that looks a fixed number of
places back scores low. The kinds:

- ``induction``: from a token to the successor of an earlier twin, over the tokens that have one. Olsson et
  al., "In-context Learning and Induction Heads" (2022), call it prefix matching.
- ``duplicate``: to the earlier twin itself, over the same tokens. Wang et al., "Interpretability in the
  Wild" (2022), name these heads.
- ``previous``: to the token just before, over all but the first.
- ``first``: to the first token of the sequence, over all but the first: where idle heads rest.
- ``current``: to the token itself, over all but the first.

Axes: rows, layers, heads, kinds, pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from whyformer.errors import UsageError
from whyformer.instruments.repeats import Repeats
from whyformer.instruments.streaming import EnoughError, Layer, run, too_often

KINDS = ("induction", "duplicate", "previous", "first", "current")
TOKENS = 2048
"""Tokens that one call reads: rows are batched up to it, and a longer row goes alone."""
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t at 97.5% for 1 to 15 degrees of freedom; 2.13 is kept beyond, which is on the safe side."""


@dataclass(frozen=True, eq=False)
class Scan:
    """The scores of every head.

    Attributes:
        scores: a layer without softmax attention holds NaN.
        near: the sum of induction probabilities by context and gap; see ``octave``.
        count: how many queries each of those cells has.
        paths: the computations that gave the probabilities, in words.
        calls: forward calls made.
    """

    scores: Float[Tensor, "rows layers heads kinds"]
    near: Float[Tensor, "layers heads contexts gaps"]
    count: Int[Tensor, "contexts gaps"]
    paths: tuple[str, ...]
    calls: int

    @property
    def shown(self) -> list[tuple[int, int]]:
        """The (layer, head) of every head that attended, in their order."""
        return [(layer, head) for layer, head in (~self.mean(KINDS[0]).isnan()).nonzero().tolist()]

    def mean(self, kind: str) -> Float[Tensor, "layers heads"]:
        """The mean over rows."""
        return self.scores[..., KINDS.index(kind)].mean(0)

    def interval(self, kind: str) -> Float[Tensor, "two layers heads"]:
        """A 95% interval of the mean over rows by Student's t; all of [0, 1] for a single row."""
        each = self.scores[..., KINDS.index(kind)]
        if len(each) < 2:
            return torch.stack([torch.zeros_like(each[0]), torch.ones_like(each[0])])
        return torch.stack(mean_interval(each)).clamp(0, 1)

    def best(self, kind: str, count: int) -> list[tuple[int, int]]:
        """The (layer, head) of the highest means, best first; equal ones in their order."""
        mean = self.mean(kind).nan_to_num(-1.0)
        order = mean.flatten().argsort(descending=True, stable=True)[:count]
        return [divmod(int(at), mean.shape[1]) for at in order if mean.flatten()[at] >= 0]


def mean_interval(values: Float[Tensor, " draws *_"]) -> tuple[Tensor, Tensor]:
    """The 95% interval of the mean of two or more independent draws, by Student's t."""
    draws = len(values)
    half = values.std(0) * STUDENT[min(draws - 1, len(STUDENT)) - 1] / math.sqrt(draws)
    return values.mean(0) - half, values.mean(0) + half


def octave(number: Int[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
    """⌊log₂ n⌋: cells 2^c … 2^(c+1) − 1 of a context or a gap of 1 or more."""
    return torch.log2(number.double()).floor().long()


def heads_of(model: nn.Module) -> tuple[int, int]:
    """How many layers a model has, and how many heads each.

    Raises:
        UsageError: its config tells of no heads.
    """
    config: Any = model.config
    config = config.get_text_config()
    layers, heads = (getattr(config, name, None) for name in ("num_hidden_layers", "num_attention_heads"))
    if not isinstance(layers, int) or not isinstance(heads, int):
        raise UsageError(
            type(model).__name__, "it has no softmax attention to scan", "name a decoder whose layers attend"
        )
    return layers, heads


def scan(model: nn.Module, repeats: Repeats) -> Scan:
    """Score every head on sequences with repeats; memory grows with their length, not with its square.

    It costs less than the plain forward: nothing is projected onto the vocabulary, and the run ends with the
    last layer's scores.

    Args:
        model: a decoder of the transformers library.
        repeats: what it reads, and the pairs that count.

    Raises:
        UsageError: the model has no softmax attention, or what it gives is not a number.
    """
    layers, heads = heads_of(model)
    rows, length = repeats.tokens.shape
    size = octave(torch.tensor([length])).item() + 1
    # The tables are laid out before the forwards: small blocks kept between its big ones would cost memory.
    table = torch.full((rows, layers, heads, len(KINDS)), torch.nan, dtype=torch.float64)
    near = torch.zeros(layers, int(size) ** 2, heads, dtype=torch.float64)
    cells = octave(repeats.pairs[1]) * int(size) + octave(repeats.pairs[1] - repeats.pairs[2])
    count = torch.bincount(cells, minlength=int(size) ** 2).view(int(size), -1)
    paths: set[str] = set()
    batch, calls = max(1, TOKENS // length), 0
    device = next(model.parameters(), table).device
    for first in range(0, rows, batch):
        part = repeats.part(slice(first, first + batch)).to(device)
        watch = run(model, part.tokens, _Scorer(part, table[first : first + batch], near, int(size)))
        paths |= watch.paths
        calls += 1
    shape = (layers, int(size), int(size), heads)
    return Scan(table, near.view(shape).permute(0, 3, 1, 2), count, tuple(sorted(paths)), calls)


class _Scorer:
    """Adds up what each layer gives to the wanted pairs."""

    def __init__(self, repeats: Repeats, table: Tensor, near: Tensor, size: int) -> None:
        self.table, self.near = table, near
        row, query, twin = repeats.pairs
        self.duplicate = repeats.pairs
        self.induction = torch.stack([row, query, twin + 1])
        # The tables stay where they were laid out, wherever the model is.
        row, query, twin = (index.cpu() for index in (row, query, twin))
        self.row, self.cells = row, octave(query) * size + octave(query - twin)
        self.rows, self.time = repeats.tokens.shape
        asking = torch.zeros(self.rows, self.time, dtype=torch.bool)
        asking[row, query] = True
        self.asking = asking.sum(1)[:, None]

    def __call__(self, layer: Layer) -> None:
        if layer.index >= self.table.shape[1]:
            raise too_often(layer.index)
        if layer.output.shape[2] != self.time:
            why = f"it attends from {layer.output.shape[2]} places and reads {self.time} tokens"
            raise UsageError(f"layer {layer.index}", why, "name a model that adds none of its own")
        into = self.table[:, layer.index]
        if layer.heads != into.shape[1]:
            raise UsageError(
                f"layer {layer.index}",
                f"it has {layer.heads} heads, the config says {into.shape[1]}",
                "name another model",
            )
        found = layer.probability(self.induction).to(self.table)
        self.near[layer.index].index_add_(0, self.cells, found)
        into[..., 0] = self._by_row(found) / self.asking
        into[..., 1] = self._by_row(layer.probability(self.duplicate).to(self.table)) / self.asking
        for kind, back in (("previous", 1), ("first", None), ("current", 0)):
            into[..., KINDS.index(kind)] = layer.at_place(back).double().mean(-1)
        if not into.isfinite().all():
            raise UsageError(
                f"layer {layer.index}", "its attention is not a number", "look for NaN in the weights"
            )
        if layer.index == self.table.shape[1] - 1:
            raise EnoughError

    def _by_row(self, found: Float[Tensor, "pairs heads"]) -> Float[Tensor, "rows heads"]:
        return found.new_zeros(self.rows, found.shape[1]).index_add_(0, self.row, found)
