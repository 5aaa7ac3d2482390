"""Your own input: a sequence or a text is read by the two-layer induction circuit, token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxtyping import Int
from rich.console import RenderableType
from torch import Tensor

from whyformer.finding import Finding

CONTEXT = 8192
"""Tokens before a token, among which its twin is sought, unless told otherwise."""

By = Literal["words", "characters"]
Progress = Callable[[int, int], None]
"""Called with the tokens read so far and the tokens there are."""


@dataclass(frozen=True)
class Tokens:
    """What is read.

    Attributes:
        source: where it came from ("--sequence", or the file's name).
        unit: what one token is ("integer", "word" or "character").
        ids: the tokens, int64.
        vocabulary: how many symbols there are; every id is below it.
        labels: the symbol of each id, or None where the id is the symbol.
    """

    source: str
    unit: str
    ids: Int[Tensor, " time"]
    vocabulary: int
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Row:
    """One token as the circuit read it; positions count from 0.

    Attributes:
        position: of the token.
        token: its id.
        looked: the position that the matching head looked at, which follows the twin; None without a twin.
        copied: the id copied from there; None is "no earlier twin".
        copied_all: the id that most of the earlier twins were followed by; None without a twin or on a tie.
        followed: the id that came next; None for the last token.
    """

    position: int
    token: int
    looked: int | None
    copied: int | None
    copied_all: int | None
    followed: int | None


@dataclass(frozen=True)
class Reading:
    """What came of it: totals over every token, and a bounded number of rows.

    Attributes:
        tokens: what was read.
        context: how many tokens before a token are searched for its twin.
        rows: the last tokens, in order.
        length: tokens read.
        judged: tokens that another token follows, so that a copy can be right or wrong.
        twins: of the judged, those with an earlier twin in the context.
        recent_right: of those, the copies from the most recent twin that were what followed.
        all_right: the same, for what most of all the twins were followed by.
        all_tied: of those, the tokens whose twins named several symbols equally often; never counted right.
        disagreement: the first position where the circuit and the symbolic rule differ, with both answers;
            None where they agree at every token.
    """

    tokens: Tokens
    context: int
    rows: tuple[Row, ...]
    length: int
    judged: int
    twins: int
    recent_right: int
    all_right: int
    all_tied: int
    disagreement: dict[str, int | str | None] | None


def read_sequence(text: str, vocabulary: int | None = None) -> Tokens:
    """Integers between spaces or commas; without ``vocabulary``, one more than the largest of them.

    Raises:
        UsageError: it is empty, one token, not of integers, or an integer is out of range.
    """
    raise NotImplementedError


def read_file(path: Path | str, by: By = "words") -> Tokens:
    """The words or the characters of a UTF-8 file.

    Raises:
        UsageError: the file is missing, a directory, binary, not UTF-8, or has fewer than two tokens.
    """
    raise NotImplementedError


def examine(tokens: Tokens, *, context: int = CONTEXT, progress: Progress | None = None) -> Reading:
    """Stream the tokens through the circuit; memory is bounded by the context.

    Raises:
        UsageError: the context is below 1, or too long for the circuit's dtype.
    """
    raise NotImplementedError


def reading_findings(reading: Reading) -> tuple[Finding, ...]:
    """The circuit against the symbolic rule, at every token."""
    raise NotImplementedError


def reading_view(reading: Reading) -> RenderableType:
    """A table of the rows and the totals, in 80 columns, with the text's own markup escaped."""
    raise NotImplementedError
