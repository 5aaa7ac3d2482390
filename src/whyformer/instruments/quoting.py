"""Where a text repeats itself, and which heads attend to what followed the first time."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from whyformer.errors import UsageError
from whyformer.instruments.ablation import Head
from whyformer.instruments.repeats import Repeats
from whyformer.instruments.streaming import EnoughError, Layer, run

MOST = 12
"""Passages that are told."""


def passages(pairs: Int[Tensor, "3 pairs"]) -> list[tuple[int, int, int]]:
    """The longest stretches of one row that come back, as (query, twin, tokens); none overlaps another."""
    there = {(query, twin) for _, query, twin in pairs.T.tolist()}
    found = []
    for query, twin in there:
        if (query - 1, twin - 1) not in there:
            size = 1
            while (query + size, twin + size) in there:
                size += 1
            found.append((query, twin, size))
    found.sort(key=lambda passage: (-passage[2], passage[0], -passage[1]))
    kept: list[tuple[int, int, int]] = []
    taken: set[int] = set()
    for query, twin, size in found:
        span = range(query, query + size)
        if taken.isdisjoint(span):
            taken.update(span)
            kept.append((query, twin, size))
    return kept


def attention(model: nn.Module, repeats: Repeats, heads: list[Head]) -> Float[Tensor, "pairs heads"]:
    """What some heads give to the successor of each twin.

    Raises:
        UsageError: it is not a number.
    """
    repeats = repeats.to(next(model.parameters()).device)
    row, query, twin = repeats.pairs
    pairs = torch.stack([row, query, twin + 1])
    found = torch.zeros(pairs.shape[1], len(heads), dtype=torch.float64)
    last = max(layer for layer, _ in heads)

    def watcher(layer: Layer) -> None:
        here = [at for at, (index, _) in enumerate(heads) if index == layer.index]
        if here:
            found[:, here] = layer.probability(pairs)[:, [heads[at][1] for at in here]].to(found)
        if layer.index == last:
            raise EnoughError

    run(model, repeats.tokens, watcher)
    if found.isnan().any():
        raise UsageError("the text", "attention to it is not a number", "look for NaN in the weights")
    return found


def quotations(model: nn.Module, repeats: Repeats, heads: list[Head], tokenizer: Any) -> dict[str, Any]:
    """The repeated passages of one row, in words, and what each head gives to their successors.

    Args:
        model: a decoder of the transformers library.
        repeats: one row.
        heads: whose attention is told.
        tokenizer: gives the words back.
    """
    given = attention(model, repeats, heads)
    place = {(query, twin): at for at, (_, query, twin) in enumerate(repeats.pairs.T.tolist())}
    told = []
    for query, twin, size in sorted(passages(repeats.pairs)[:MOST]):
        at = [place[query + step, twin + step] for step in range(size)]
        words = tokenizer.decode(repeats.tokens[0, query : query + size].tolist())
        told.append(
            {
                "at": query,
                "twin": twin,
                "tokens": size,
                "words": words,
                "attention": [round(min(x, 1.0), 6) for x in given[at].mean(0).tolist()],
            }
        )
    asking = repeats.pairs[1].unique().numel()
    return {
        "tokens": repeats.length,
        "repeated": asking,
        "heads": [list(head) for head in heads],
        "attention": [round(min(x, 1.0), 6) for x in (given.sum(0) / asking).tolist()],
        "passages": told,
    }
