"""Your own input: a sequence or a text is read by the two-layer induction circuit, token by token.

Beside the circuit, the same rule is followed with dictionaries alone (``rule.py``), and the two are compared
at every token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from whyformer.errors import UsageError
from whyformer.finding import Finding, Strength, Verdict
from whyformer.lab.rule import Answer, Rule
from whyformer.lab.tokens import By, Tokens, read_file, read_sequence
from whyformer.report.terminal import rows, safe
from whyformer.subjects.induction import BLOCK, LOCAL, Copies, InductionCircuit

__all__ = [
    "CONTEXT",
    "By",
    "Progress",
    "Reading",
    "Row",
    "Tokens",
    "examine",
    "read_file",
    "read_sequence",
    "reading_findings",
    "reading_view",
]

CONTEXT = 8192
"""Tokens before a token, among which its twin is sought, unless told otherwise."""
ROWS = 24
"""Tokens that are shown one by one: the last ones."""

Progress = Callable[[int, int], None]
"""Called with the tokens read so far and the tokens there are."""


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
        differing: tokens at which the circuit and the rule in symbols differ.
        disagreement: the first of them, with both answers; None where they agree at every token.
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
    differing: int
    disagreement: Mapping[str, Any] | None


def examine(tokens: Tokens, *, context: int = CONTEXT, progress: Progress | None = None) -> Reading:
    """Stream the tokens through the circuit, once with recency and once with all twins alike.

    Memory is bounded by the context and by the symbols that occur, not by the length.

    Raises:
        UsageError: the context is below 1, or too long for float32; or the text can no longer be read.
    """
    if context < 1:
        raise UsageError(f"a context of {context}", "a twin is sought among 1 token or more", "try 8192")
    names, rule = tokens.symbols, Rule(context)
    twins = recent_right = all_right = all_tied = differing = 0
    disagreement: dict[str, Any] | None = None
    shown: deque[Row] = deque(maxlen=ROWS)
    latest: deque[int] = deque(maxlen=64)

    answers = chain(_answers(tokens, min(context, tokens.length), progress), [None])
    for position, (now, after) in enumerate(pairwise(answers)):
        assert now is not None
        (token, answer), followed = now, None if after is None else after[0]
        latest.append(token)
        expected = rule.read(token)
        if answer != expected:
            differing += 1
            if disagreement is None:
                both = {"circuit": answer._asdict(), "rule": expected._asdict()}
                disagreement = {"position": position, "token": token, "ids": list(latest)} | both
        if followed is not None and answer.recent is not None:
            twins += 1
            recent_right += answer.recent == followed
            all_right += answer.most == followed
            all_tied += answer.tied
        if position >= tokens.length - ROWS:
            ids_of_row = (answer.recent, answer.most, followed)
            named = [None if each is None else names[each] for each in ids_of_row]
            looked = None if answer.looked < 0 else answer.looked
            shown.append(Row(position, names[token], looked, *named))
    return Reading(
        tokens=tokens,
        context=context,
        rows=tuple(shown),
        length=tokens.length,
        judged=tokens.length - 1,
        twins=twins,
        recent_right=recent_right,
        all_right=all_right,
        all_tied=all_tied,
        differing=differing,
        disagreement=disagreement,
    )


def _answers(tokens: Tokens, context: int, progress: Progress | None) -> Iterator[tuple[int, Answer]]:
    """Each token's id, and what the circuit says of it, in order."""
    recent, every = (InductionCircuit(len(tokens.symbols), context, recency=recency) for recency in (1, 0))
    blocks = tokens.blocks(min(BLOCK, context + LOCAL))
    for ids, latest, most in _side_by_side(recent, every, blocks):
        assert latest.looked is not None
        columns = (ids, latest.looked, latest.copied, most.copied, most.tied)
        for token, looked, copied, leading, tied in zip(*(each.tolist() for each in columns), strict=True):
            yield (
                token,
                Answer(
                    looked,
                    None if copied == recent.nothing else copied,
                    None if tied or leading == every.nothing else leading,
                    tied,
                ),
            )
        if progress is not None:
            progress(latest.start + len(ids), tokens.length)


def _side_by_side(
    first: InductionCircuit, second: InductionCircuit, blocks: Iterable[Tensor]
) -> Iterator[tuple[Tensor, Copies, Copies]]:
    """Blocks with what two circuits make of them: a thread for each, one block ahead of whoever takes them.

    Torch is kept to one thread in each meanwhile: blocks are small, and its own threads would wait for each
    other at every step.
    """
    threads = torch.get_num_threads()
    feeds: tuple[deque[Tensor], deque[Tensor]] = deque(), deque()
    # A stream takes one block for each of its copies, and that block is fed to it just before.
    one, other = (
        circuit.stream(iter(feed.popleft, None)) for circuit, feed in zip((first, second), feeds, strict=True)
    )
    asked: deque[tuple[Tensor, Future[Copies], Future[Copies]]] = deque()
    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for block in chain(blocks, [None]):
                ready = [(ids, copies.result(), others.result()) for ids, copies, others in asked]
                asked.clear()
                if block is not None:
                    for feed in feeds:
                        feed.append(block)
                    asked.append((block, pool.submit(next, one), pool.submit(next, other)))
                yield from ready
        finally:
            torch.set_num_threads(threads)


def reading_findings(reading: Reading) -> tuple[Finding, ...]:
    """The circuit against the rule in symbols, at every token: where it looked, what it copied, twice."""
    agrees = reading.differing == 0
    where = f"at all {reading.length:,} tokens" if agrees else f"except at {reading.differing:,} tokens"
    return (
        Finding(
            claim="routing.induction",
            verdict=Verdict.HOLDS if agrees else Verdict.REFUTED,
            strength=Strength.PROVED if agrees else None,
            measured={
                "tokens": reading.length,
                "differing": reading.differing,
                "judged": reading.judged,
                "twins": reading.twins,
                "recent_right": reading.recent_right,
                "all_right": reading.all_right,
                "all_tied": reading.all_tied,
            },
            path={"context": reading.context, "dtype": "float32"},
            reason=f"the circuit looked and copied as the rule in symbols does {where} of this input",
            counterexample=reading.disagreement,
        ),
    )


def reading_view(reading: Reading) -> RenderableType:
    """A table of the rows and the totals, in 80 columns; what a terminal would obey is spelled out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name, numeric in _COLUMNS:
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for row in reading.rows:
        table.add_row(*_cells(row, reading.tokens))
    skipped = reading.length - len(reading.rows)
    before = Text(f"… {skipped:,} tokens before these are counted below\n", "dim") if skipped else Text("")
    return Group(before, table, Text(""), rows(_totals(reading)))


_COLUMNS = (
    ("at", True),
    ("token", False),
    ("looked at", True),
    ("copied", False),
    ("all twins", False),
    ("came next", False),
    ("right", False),
)
_WIDEST = 11
"""Columns of the terminal that a symbol may take, so that a row fits into 80."""


def _cells(row: Row, tokens: Tokens) -> list[Text]:
    """One row: the copy is judged by the most recent twin."""

    def symbol(token: int | None, without: str) -> Text:
        return Text(without, "dim") if token is None else _shown(tokens.label(token))

    if row.looked is None:
        looked, copied, most = Text("–", "dim"), Text("no earlier twin", "dim"), Text("–", "dim")
    else:
        looked = Text(f"{row.looked:,}")
        copied, most = symbol(row.copied, ""), symbol(row.copied_all, "a tie")
    right = Text("–", "dim")
    if row.copied is not None and row.followed is not None:
        right = Text("yes", "green") if row.copied == row.followed else Text("no", "red")
    followed = symbol(row.followed, "the end")
    return [Text(f"{row.position:,}"), symbol(row.token, ""), looked, copied, most, followed, right]


def _shown(label: str) -> Text:
    """A symbol in a table's cell: blanks in quotes, long words cut."""
    text = safe(label)
    shown = Text(repr(text) if text.isspace() else text)
    shown.truncate(_WIDEST, overflow="ellipsis")
    return shown


def _totals(reading: Reading) -> list[tuple[str, str | Text]]:
    """What the whole input came to, in words."""

    def share(part: int, whole: int) -> str:
        return f"{part:,} of {whole:,}" + (f" ({part / whole:.1%})" if whole else "")

    tokens, twins = reading.tokens, reading.twins
    agree = "agree" if not reading.differing else f"differ at {reading.differing:,}, so do not agree,"
    lines: list[tuple[str, str | Text]] = [
        ("input", f"{tokens.source}: {reading.length:,} {tokens.unit}s, {tokens.vocabulary:,} symbols"),
        (
            "twins",
            f"of the tokens that another follows, {share(twins, reading.judged)} had an earlier twin among "
            f"the {reading.context:,} before them",
        ),
    ]
    if twins:
        lines += [
            (
                "recent",
                f"copying from the most recent twin was right for {share(reading.recent_right, twins)}",
            ),
            (
                "all twins",
                f"copying what most twins were followed by was right for {share(reading.all_right, twins)}; "
                f"{reading.all_tied:,} ties are not counted right",
            ),
        ]
    return [*lines, ("circuit", f"it and the rule in symbols {agree} over all {reading.length:,} tokens")]
