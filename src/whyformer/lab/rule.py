"""The rule of induction in symbols: what the circuit is held to, token by token, with dictionaries alone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple


class Answer(NamedTuple):
    """What the rule says of one token.

    Attributes:
        looked: the position after the most recent twin, or −1 without a twin.
        recent: the symbol there, or None without a twin.
        most: the symbol that most of the twins were followed by; None without a twin, or where several lead.
        tied: whether several symbols lead.
    """

    looked: int
    recent: int | None
    most: int | None
    tied: bool


@dataclass
class _Tally:
    """How often each symbol followed a token, and which symbols lead; every step takes constant time."""

    counts: dict[int, int] = field(default_factory=dict)
    with_count: dict[int, set[int]] = field(default_factory=dict)
    most: int = 0

    def add(self, symbol: int, by: int) -> None:
        """Count a symbol once more (1) or once less (−1)."""
        before = self.counts.get(symbol, 0)
        after = before + by
        if before:
            self.with_count[before].discard(symbol)
        if after:
            self.counts[symbol] = after
            self.with_count.setdefault(after, set()).add(symbol)
        else:
            del self.counts[symbol]
        if after > self.most or not self.with_count.get(self.most):
            self.most = after


class Rule:
    """Reads tokens one by one, and answers for each from the ``context`` tokens before it.

    Args:
        context: how many tokens before a token are searched for its twins.
    """

    def __init__(self, context: int) -> None:
        self._context = context
        self._position = -1
        self._kept: deque[int] = deque()
        self._latest: dict[
            int, tuple[int, int]
        ] = {}  # by token: the place after its latest twin, the symbol there
        self._followers: dict[int, _Tally] = {}

    def read(self, token: int) -> Answer:
        """The answer for the next token."""
        kept = self._kept
        kept.append(token)
        self._position += 1
        if len(kept) > 1:
            self._followers.setdefault(kept[-2], _Tally()).add(token, 1)
            self._latest[kept[-2]] = self._position, token
        if len(kept) > self._context + 1:
            oldest = kept.popleft()
            self._followers[oldest].add(kept[0], -1)
            if not self._followers[oldest].most:
                del self._followers[oldest], self._latest[oldest]
        tally = self._followers.get(token)
        if tally is None:
            return Answer(-1, None, None, False)
        leaders = tally.with_count[tally.most]
        tied = len(leaders) > 1
        return Answer(*self._latest[token], None if tied else next(iter(leaders)), tied)
