"""Sequences to drill an engine with, each with what the certificate promises to follow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from whyformer.wire.wired import Wired

_GOES_ON = 4  # tokens that an engine decodes, in every other round
_LEAST = 3  # a first token, and two words


@dataclass(frozen=True)
class Case:
    """A prompt, and the tokens that must follow it one after another.

    Attributes:
        kind: how it was made.
        prompt: ids, first token included.
        answers: one or more ids.
    """

    kind: str
    prompt: tuple[int, ...]
    answers: tuple[int, ...]


def promised(wired: Wired, kind: str, prompt: Sequence[int], new: int) -> Case | None:
    """The case of a prompt; None where nothing is promised to follow it.

    It ends early where the promise does: at a token that no sequence may hold, or at the context's end.
    """
    low, high = wired.tokens
    sequence = list(prompt)
    answers: list[int] = []
    while len(answers) < new and len(sequence) <= wired.context:
        answer = wired.answer(sequence)
        if answer is None:
            break
        answers.append(answer)
        sequence.append(answer)
        if not low <= answer <= high:
            break
    return Case(kind, tuple(prompt), tuple(answers)) if answers else None


def twins(wired: Wired, sequence: Sequence[int]) -> list[int]:
    """Where the last token stood before; for a copy, the place before the one that is copied."""
    if wired.separator is not None:
        last, p = len(sequence) - 1, wired.separated(sequence)
        return [last - p] if p else []
    if wired.offset is not None:
        return [at for at in [len(sequence) - 2 - wired.offset] if at >= 0]
    start = 0 if wired.first is None else 1
    return [at for at in range(start, len(sequence) - 1) if sequence[at] == sequence[-1]]


def lengths(longest: int) -> list[int]:
    """Powers of two and their neighbours, up to the longest, where blocks and chunks begin and end."""
    near = {2**p + step for p in range(longest.bit_length() + 1) for step in (-1, 0, 1)}
    return sorted(n for n in near | {longest, _LEAST} if _LEAST <= n <= longest)


class Draws:
    """Draws sequences for a wired folder.

    Args:
        wired: the folder.
        nearest: the token whose word is most like another's.
        generator: of every draw.
    """

    def __init__(self, wired: Wired, nearest: Callable[[int], int], generator: torch.Generator) -> None:
        self._wired, self._nearest, self._generator = wired, nearest, generator
        low, high = wired.tokens
        self._low, self._size = low, high - low + 1

    def below(self, bound: int) -> int:
        """A whole number from 0."""
        return int(torch.randint(bound, (), generator=self._generator))

    def _some(self, count: int) -> list[int]:
        """Different tokens."""
        drawn = torch.randperm(self._size, generator=self._generator)[:count]
        return (drawn + self._low).tolist()

    def _filler(self, count: int, without: Sequence[int]) -> list[int]:
        """Tokens that may repeat, none of which is ``without``."""
        pool = [token for token in self._some(2 + self.below(30) + len(without)) if token not in without]
        at = torch.randint(len(pool), (count,), generator=self._generator)
        return [pool[i] for i in at.tolist()]

    def random(self, n: int) -> list[int]:
        """Words of a small or a large alphabet."""
        pool = self._some((2, 5, 30, self._size)[self.below(4)])
        return [pool[i] for i in torch.randint(len(pool), (n,), generator=self._generator).tolist()]

    def _at_gap(self, n: int, gap: int) -> list[int]:
        """One twin of the last word, that many back."""
        word = self._some(1)
        before, between = self._filler(n - gap - 1, word), self._filler(gap - 1, word)
        return [*before, *word, *between, *word]

    def some_gap(self, n: int) -> list[int]:
        """One twin, at a gap that is as likely to be short as long."""
        return self._at_gap(n, min(n - 1, 1 + self.below(2 ** (1 + self.below(n.bit_length())))))

    def any_gap(self, n: int) -> list[int]:
        """One twin, anywhere."""
        return self._at_gap(n, 1 + self.below(n - 1))

    def gap_1(self, n: int) -> list[int]:
        """The last word twice in a row."""
        return self._at_gap(n, 1)

    def longest_gap(self, n: int) -> list[int]:
        """The first word is the last one too."""
        return self._at_gap(n, n - 1)

    def nearest(self, n: int) -> list[int]:
        """The first word is the last one too; between them is nothing but the word most like it."""
        word, follower = self._some(2)
        body = [word, follower, *[self._nearest(word)] * n]
        return [*body[: n - 1], word]

    def adjacent_twins(self, n: int) -> list[int]:
        """Twins side by side: A A C … A."""
        word = self._some(1)
        before = self._filler(self.below(max(1, n - 3)), word)
        return (before + word * 2 + self._filler(n, word))[: n - 1] + word

    def many_twins(self, n: int) -> list[int]:
        """Every other word is the last one; the others are all the same, or differ if the latest counts."""
        word = self._some(1)
        others = self._filler(n, word)
        if self._wired.agreeing:
            others = others[:1] * n
        mixed = [token for other in others for token in (*word, other)]
        return mixed[-(n - 1) :] + word

    def no_twin(self, n: int) -> list[int]:
        """The last word never stood before."""
        word = self._some(1)
        return self._filler(n - 1, word) + word

    def _words(self, n: int) -> list[int]:
        """Words that may repeat, no separator among them."""
        return self._filler(n, [self._low])

    def _separated(self, n: int, p: int) -> list[int]:
        """One separator, at position p of the sequence."""
        return [*self._words(p - 1), self._low, *self._words(n - p)]

    def one_separator(self, n: int) -> list[int]:
        """It stands anywhere."""
        return self._separated(n, 1 + self.below(n))

    def early_separator(self, n: int) -> list[int]:
        """It is as likely to be near the start as far from it."""
        return self._separated(n, min(n, 1 + self.below(2 ** (1 + self.below(n.bit_length())))))

    def separator_first(self, n: int) -> list[int]:
        """Nothing stands before it."""
        return self._separated(n, 1)

    def separator_last(self, n: int) -> list[int]:
        """All stands before it."""
        return self._separated(n, n)

    def several_separators(self, n: int) -> list[int]:
        """They stand anywhere, few or many."""
        words, rate = self._words(n), 1 + self.below(n)
        return [self._low if self.below(rate) < 2 else word for word in words]

    def no_separator(self, n: int) -> list[int]:
        """Nothing is copied."""
        return self._words(n)

    def like_words(self, n: int) -> list[int]:
        """One separator, among two words that are most like each other."""
        word = self._filler(1, [self._low])[0]
        pair = (word, self._nearest(word))
        p = 1 + self.below(n)
        return [self._low if at == p else pair[self.below(2)] for at in range(1, n + 1)]

    def copied(self, n: int) -> list[int]:
        """A prefix, and as much of its copy as there is room for: what an engine would have gone on with."""
        prefix = [*self._words(self.below(n)), self._low]
        return (prefix * n)[:n]


KINDS = (
    Draws.random,
    Draws.some_gap,
    Draws.any_gap,
    Draws.gap_1,
    Draws.longest_gap,
    Draws.nearest,
    Draws.adjacent_twins,
    Draws.many_twins,
    Draws.no_twin,
)

SEPARATED = (
    Draws.random,
    Draws.one_separator,
    Draws.early_separator,
    Draws.separator_first,
    Draws.separator_last,
    Draws.several_separators,
    Draws.no_separator,
    Draws.like_words,
    Draws.copied,
)


def cases(wired: Wired, draws: Draws, *, length: int, count: int) -> list[Case]:
    """Every kind in turn, one round after another: at the full length in two rounds, at another in the third.

    In every other round several tokens are to follow.

    Args:
        wired: the folder.
        draws: its sequences.
        length: the longest sequence, what is decoded of it included, up to the last token that is read.
        count: how many; what is promised nothing is drawn again.
    """
    made: list[Case] = []
    shorter = lengths(length)
    kinds = KINDS if wired.separator is None else SEPARATED
    for i in range(4 * count):
        if len(made) == count:
            break
        rounds = i // len(kinds)
        n = length if rounds % 3 < 2 else shorter[draws.below(len(shorter))]
        new = _GOES_ON if rounds % 2 and n >= _LEAST + _GOES_ON else 1
        draw = kinds[i % len(kinds)]
        words = draw(draws, n - new + 1 - (wired.first is not None))
        start = [] if wired.first is None else [wired.first]
        case = promised(wired, draw.__name__, [*start, *words], new)
        if case is not None:
            made.append(case)
    return made
