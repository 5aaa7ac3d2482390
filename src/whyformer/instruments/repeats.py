"""Sequences with repeats, where they are, and the same sequences without them.

A head is read as matching only where it could not know the place: repeated pieces come back in another
order, so gaps vary, and a null sequence has the same places without the match.

Axes: rows, time, pairs. Token ids are int64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from whyformer.errors import UsageError

PIECE = 16
"""The most tokens that come back in one piece; a piece has at least 2."""
EARLY = 0.35
"""The chance at the beginning of a row that what comes is a repeat; at its end it is 1 less this."""
SHORTEST = 32
"""The least length that has room for repeats."""


@dataclass(frozen=True, eq=False)
class Repeats:
    """Sequences, and which of their positions to relate.

    Attributes:
        tokens: what a model reads.
        pairs: (row, query, twin) for every query with the same token at an earlier place, the twin; ordered
            by row and query. The successor of a twin, twin + 1, comes before the query.
        copied: the (row, query) whose next token is the one after their twin, so that a model that looks
            it up predicts right.
    """

    tokens: Int[Tensor, "rows time"]
    pairs: Int[Tensor, "3 pairs"]
    copied: Int[Tensor, "2 copied"]

    @property
    def length(self) -> int:
        """Tokens of each row."""
        return self.tokens.shape[1]

    def to(self, device: torch.device) -> Repeats:
        """The same on a device."""
        return Repeats(self.tokens.to(device), self.pairs.to(device), self.copied.to(device))

    def part(self, rows: slice) -> Repeats:
        """Some of the rows."""
        first, last, _ = rows.indices(len(self.tokens))
        return Repeats(
            self.tokens[rows], *(_between(which, first, last) for which in (self.pairs, self.copied))
        )


def _between(which: Tensor, first: int, last: int) -> Tensor:
    kept = which[:, (which[0] >= first) & (which[0] < last)].clone()
    kept[0] -= first
    return kept


def twins(tokens: Int[Tensor, "rows time"]) -> Int[Tensor, "3 pairs"]:
    """Every (row, query, key) of equal tokens with key + 1 < query, ordered by row and query.

    A token that repeats at once has no pair with its neighbour: the successor of that twin would be the query
    itself. Memory is that of the pairs, not of time squared.
    """
    time = tokens.shape[1]
    order = tokens.argsort(dim=1, stable=True)
    sorted_tokens = tokens.gather(1, order)
    found = []
    for lag in range(1, time):
        same = sorted_tokens[:, lag:] == sorted_tokens[:, :-lag]
        row, at = same.nonzero(as_tuple=True)
        if not len(row):
            break
        found.append(torch.stack([row, order[row, at + lag], order[row, at]]))
    if not found:
        return torch.empty(3, 0, dtype=torch.int64)
    pairs = torch.cat(found, 1)
    pairs = pairs[:, pairs[2] + 1 < pairs[1]]
    place = (pairs[0] * time + pairs[1]) * time + pairs[2]
    return pairs[:, place.argsort()]


def from_tokens(tokens: Int[Tensor, "rows time"]) -> Repeats:
    """What repeats in given tokens.

    Raises:
        UsageError: in one of the rows, nothing does.
    """
    pairs = twins(tokens)
    if len(pairs[0].unique()) < len(tokens):
        raise UsageError("the tokens", "none of them comes twice", "give more of them")
    row, query, twin = pairs
    inside = query + 1 < tokens.shape[1]
    after = tokens[row, (query + 1).clamp(max=tokens.shape[1] - 1)]
    right = inside & (after == tokens[row, twin + 1])
    return Repeats(tokens, pairs, pairs[:2, right].unique(dim=1))


def scattered(
    rows: int, length: int, ids: Int[Tensor, " ids"], *, start: int | None, generator: torch.Generator
) -> Repeats:
    """Rows where every other piece of 2 to 16 tokens, or nearly so, is an earlier one that comes back, once.

    Gaps are drawn evenly on a logarithmic scale, from 2 to the context at hand, so at every context there are
    near and far twins. Pieces come back more readily toward the end than at the beginning, so that early ones
    are left for the farthest gaps. No token comes more than twice, and the first one not again.

    Args:
        rows: how many.
        length: tokens of each, 32 or more.
        ids: the tokens to draw from, without replacement.
        start: a token to begin each row with; None for one of the drawn.
        generator: what they are drawn from.

    Raises:
        UsageError: the length is too small, or there are too few ids.
    """
    if length < SHORTEST:
        raise UsageError(f"length {length}", "it has no room for repeats", f"try {SHORTEST} or more")
    if len(ids) < _needed(length):
        why = f"it needs {_needed(length):,} different tokens, and there are {len(ids):,}"
        raise UsageError(f"length {length:,}", why, "give more tokens, or shorten it")
    return from_tokens(torch.stack([_scatter(length, ids, start, generator) for _ in range(rows)]))


def _needed(length: int) -> int:
    """Ids with which repeats never run out: half of them come back, and one piece may be under way."""
    return length // 2 + PIECE


def _scatter(length: int, ids: Tensor, start: int | None, generator: torch.Generator) -> Tensor:
    """One row of ``scattered``."""
    fresh = ids[torch.randperm(len(ids), generator=generator)]
    fresh = fresh if start is None else fresh[fresh != start]
    row = torch.empty(length, dtype=torch.int64)
    row[0] = fresh[0] if start is None else start
    at, used = 1, int(start is None)
    waiting: list[tuple[int, int]] = []  # where pieces that have not come back begin, and their sizes
    while at < length:
        chance, place = torch.rand(2, generator=generator).tolist()
        size = int(torch.randint(2, PIECE + 1, (), generator=generator))
        if waiting and (chance < EARLY + (1 - 2 * EARLY) * at / length or used >= length // 2):
            gap = 2 * (at / 2) ** place
            begin, size = min(waiting, key=lambda piece: abs(at - piece[0] - gap))
            waiting.remove((begin, size))
            piece = row[begin : begin + size].clone()
        else:
            piece = fresh[used : used + size]
            waiting.append((at, len(piece)))
            used += len(piece)
        piece = piece[: length - at]
        row[at : at + len(piece)] = piece
        at += len(piece)
    return row


def periodic(
    rows: int, period: int, ids: Int[Tensor, " ids"], *, start: int | None, generator: torch.Generator
) -> Repeats:
    """Rows of ``period`` distinct tokens, twice, after ``start`` if there is one: every gap is the period.

    Raises:
        UsageError: there are too few ids.
    """
    if not 2 <= period <= len(ids):
        raise UsageError(f"period {period}", f"there are {len(ids)} tokens", "try one from 2 to as many")
    drawn = torch.stack([ids[torch.randperm(len(ids), generator=generator)[:period]] for _ in range(rows)])
    begin = [] if start is None else [torch.full((rows, 1), start)]
    return from_tokens(torch.cat([*begin, drawn, drawn], 1))


def without_repeats(repeats: Repeats, ids: Int[Tensor, " ids"], *, generator: torch.Generator) -> Repeats:
    """The same rows and pairs, where each query's token is replaced by one that comes nowhere else.

    Raises:
        UsageError: there are too few ids.
    """
    tokens = repeats.tokens.clone()
    for index, row in enumerate(tokens):
        queries = repeats.pairs[1, repeats.pairs[0] == index].unique()
        fresh = ids[~torch.isin(ids, row)]
        if len(fresh) < len(queries):
            why = f"{len(ids)} tokens are too few for {len(row)} different ones"
            raise UsageError("sequences without repeats", why, "shorten them")
        row[queries] = fresh[torch.randperm(len(fresh), generator=generator)[: len(queries)]]
    return Repeats(tokens, repeats.pairs, repeats.copied)
