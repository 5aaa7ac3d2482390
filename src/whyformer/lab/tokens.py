"""Your own input as tokens: integers from the command line, or the words or characters of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from whyformer.errors import UsageError

By = Literal["words", "characters"]

_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
_LARGEST = 2**63 - 1
"""The largest symbol that int64 holds."""


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

    def label(self, token: int) -> str:
        """The symbol of an id, as it stood in the input."""
        return str(token) if self.labels is None else self.labels[token]


def read_sequence(text: str, vocabulary: int | None = None) -> Tokens:
    """Integers between spaces or commas; without ``vocabulary``, one more than the largest of them.

    Raises:
        UsageError: it is empty, one token, not of integers, or an integer is out of range.
    """
    if vocabulary is not None and vocabulary < 1:
        raise UsageError(f"a vocabulary of {vocabulary}", "there is at least one symbol", "try 12")
    ids = [_symbol(part) for part in text.replace(",", " ").split()]
    _refuse_short(len(ids), "--sequence", 'give two integers or more, as "4 7 2 4"')
    largest = max(ids)
    if vocabulary is not None and largest >= vocabulary:
        raise UsageError(
            f"symbol {largest} in --sequence",
            f"a vocabulary of {vocabulary} has the symbols 0 to {vocabulary - 1}",
            f"use a vocabulary of {largest + 1} or more",
        )
    return Tokens("--sequence", "integer", torch.tensor(ids), vocabulary or largest + 1)


def _symbol(part: str) -> int:
    """One symbol of a sequence."""
    mend = "use integers from 0 on"
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", part):
        raise UsageError(f"{part[:40]!r} in --sequence", "it is not an integer", mend)
    symbol = int(part)
    if symbol < 0:
        raise UsageError(f"symbol {symbol} in --sequence", "it is negative", mend)
    if symbol > _LARGEST:
        raise UsageError(f"symbol {symbol} in --sequence", f"it is above {_LARGEST}", "number them from 0")
    return symbol


def read_file(path: Path | str, by: By = "words") -> Tokens:
    """The words of a UTF-8 file, each punctuation mark for itself, or its characters.

    Raises:
        UsageError: the file is missing, a directory, unreadable, binary, not UTF-8, or has fewer than two
            tokens.
    """
    path = Path(path)
    text = _text(path)
    symbols = _WORD.findall(text) if by == "words" else text
    _refuse_short(len(symbols), str(path), f"give a text of two {by} or more")
    ids: dict[str, int] = {}
    tokens = torch.tensor(list(_numbered(symbols, ids)))
    return Tokens(path.name, by.removesuffix("s"), tokens, len(ids), tuple(ids))


def _numbered(symbols: Iterable[str], ids: dict[str, int]) -> Iterable[int]:
    """Each symbol's number, in the order of first appearance."""
    return (ids.setdefault(symbol, len(ids)) for symbol in symbols)


def _text(path: Path) -> str:
    """The file's text, or why it is none."""
    what, mend = f"--text {path}", "give a UTF-8 text file"
    try:
        if path.is_dir():
            raise UsageError(what, "it is a directory", mend)
        content = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(what, "there is no such file", mend) from None
    except (OSError, ValueError) as error:
        raise UsageError(what, f"it cannot be read ({error})", mend) from None
    if b"\0" in content:
        raise UsageError(what, "it is binary", mend)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(what, f"byte {error.start} is not UTF-8", mend) from None


def _refuse_short(length: int, what: str, mend: str) -> None:
    """Refuse what has no token, or one."""
    if length < 2:
        raise UsageError(what, "it has one token only" if length else "it is empty", mend)
