"""What a wired folder promises, as data: for whatever plays it through an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from whyformer.wire.playable import playable


@dataclass(frozen=True)
class Wired:
    """A wired folder.

    Attributes:
        path: the folder.
        architecture: its model type.
        vocabulary: how many ids there are.
        context: the longest sequence that the certificate covers, the first token included.
        dtype: of the weights.
        rule: which of several twins counts, ``recent`` or ``agree``; ``two-hop`` and ``two-hop-agree``
            look up what was found once more; ``copy`` and ``copy-separator`` have no twins.
        first: the id that every sequence starts with, or None.
        tokens: the lowest and the highest id that a sequence may use.
        without_twin: the answer where the last token has no earlier twin, or None where it is not defined.
        margin: by how much the right logit leads, at least.
        offset: how far back a ``copy`` looks; None under other rules.
        separator: the id whose latest place p a ``copy-separator`` finds, 0 where it does not stand: at
            position t the token at t − p + 1 follows, or that at t where this is beyond.
    """

    path: Path
    architecture: str
    vocabulary: int
    context: int
    dtype: str
    rule: str
    first: int | None
    tokens: tuple[int, int]
    without_twin: int | None
    margin: float
    offset: int | None = None
    separator: int | None = None

    @classmethod
    def open(cls, path: Path | str) -> Wired:
        """Read the certificate of a folder; ``certify`` proves that it holds.

        Raises:
            UsageError: there is none, it is of another version, or it says what no certificate says.
        """
        path = Path(path)
        told = playable(path)
        return cls(
            path,
            told["architecture"],
            told["vocabulary"],
            told["context"],
            told["dtype"],
            told["rule"],
            told["first_token"],
            (told["tokens"][0], told["tokens"][1]),
            told["without_twin"],
            told["logit_margin"],
            told["layers"][0].get("offset"),
            told.get("separator"),
        )

    @property
    def hops(self) -> int:
        """How many times a twin's successor is looked up."""
        return 2 if self.rule.startswith("two-hop") else 1

    @property
    def agreeing(self) -> bool:
        """Whether nothing is promised where twins were followed by different tokens."""
        return self.rule.endswith("agree")

    def covered(self, sequence: Sequence[int]) -> int:
        """How many tokens of a sequence, from its start, make one that the certificate covers."""
        low, high = self.tokens
        for at, token in enumerate(sequence[: self.context]):
            fits = token == self.first if at == 0 and self.first is not None else low <= token <= high
            if not fits:
                return at
        return min(len(sequence), self.context)

    def answer(self, sequence: Sequence[int]) -> int | None:
        """The id that must follow a sequence, whose first token is in it; None where nothing is promised."""
        sequence = [int(token) for token in sequence]
        if not sequence or self.covered(sequence) < len(sequence):
            return None
        if self.separator is not None:
            last = len(sequence) - 1
            return sequence[min(last, last - self.separated(sequence) + 1)]
        if self.offset is not None:
            return sequence[-1 - self.offset] if len(sequence) > self.offset else self.without_twin
        found = sequence[-1]
        start = 0 if self.first is None else 1
        for _ in range(self.hops):
            after = [sequence[j + 1] for j in range(start, len(sequence) - 1) if sequence[j] == found]
            if not after:
                return self.without_twin
            if self.agreeing and len(set(after)) > 1:
                return None
            found = after[-1]
        return found

    def answers(self, sequence: Sequence[int]) -> list[int | None]:
        """The answer at every position, None where nothing is promised; in time linear in the sequence."""
        ids = [int(token) for token in sequence]
        covered = self.covered(ids)
        return [*self._answers(ids[:covered]), *[None] * (len(ids) - covered)]

    def _answers(self, sequence: Sequence[int]) -> list[int | None]:
        if self.offset is not None:
            few = [self.without_twin] * min(self.offset, len(sequence))
            return [*few, *sequence[: max(0, len(sequence) - self.offset)]]
        if self.separator is not None:
            places = (at if token == self.separator else 0 for at, token in enumerate(sequence))
            return [sequence[min(at, at - p + 1)] for at, p in enumerate(accumulate(places, max))]
        latest: dict[int, int] = {}
        agreed: dict[int, bool] = {}
        found: list[int | None] = []
        start = 0 if self.first is None else 1
        for at, token in enumerate(sequence):
            if at > start:
                before = sequence[at - 1]
                agreed[before] = agreed.get(before, True) and latest.get(before, token) == token
                latest[before] = token
            found.append(self._looked_up(token, latest, agreed))
        return found

    def separated(self, sequence: Sequence[int]) -> int:
        """The place of the latest separator, 0 where there is none."""
        return max((at for at, token in enumerate(sequence) if token == self.separator), default=0)

    def _looked_up(self, token: int, latest: dict[int, int], agreed: dict[int, bool]) -> int | None:
        for _ in range(self.hops):
            if token not in latest:
                return self.without_twin
            if self.agreeing and not agreed[token]:
                return None
            token = latest[token]
        return token
