"""Your own input as tokens: integers from the command line, or the words or characters of a file.

A text is never held: one pass numbers its symbols, and each further pass reads it again, piece by piece.
"""

from __future__ import annotations

import codecs
import re
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from whyformer.errors import UsageError

By = Literal["words", "characters"]

_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
_UP_TO_A_BORDER = re.compile(r".*(?:[^\w'’]|['’](?=\W))", re.DOTALL)
"""All up to the last place where no word can go on: after a blank or a mark, or between two marks."""
_PIECE = 1 << 16
"""Bytes that are read at a time."""
_LARGEST = 2**63 - 1
"""The largest symbol that int64 holds."""
_OPEN_ALREADY = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Paths of what this process was handed open, as by ``--text <(...)``: a pipe is meant there."""


@dataclass(frozen=True)
class Tokens:
    """What is read.

    Attributes:
        source: where it came from ("--sequence", or the file's name).
        unit: what one token is ("integer", "word" or "character").
        length: how many tokens there are.
        vocabulary: how many symbols there may be; every symbol is below it.
        symbols: the symbols that occur; a token's id is its symbol's place among them.
        ids: starts reading, and gives the id of each token in order.
        labels: how each symbol stood in the input, by id; None where it is the number itself.
    """

    source: str
    unit: str
    length: int
    vocabulary: int
    symbols: Sequence[int]
    ids: Callable[[], Iterable[int]]
    labels: tuple[str, ...] | None = None

    def label(self, symbol: int) -> str:
        """A symbol as it stood in the input."""
        return str(symbol) if self.labels is None else self.labels[symbol]

    def blocks(self, size: int) -> Iterator[Int[Tensor, " tokens"]]:
        """The ids, int64, so many at a time."""
        ids = iter(self.ids())
        while block := list(islice(ids, size)):
            yield torch.tensor(block)


def read_sequence(text: str, vocabulary: int | None = None) -> Tokens:
    """Integers between spaces or commas; without ``vocabulary``, one more than the largest of them.

    Raises:
        UsageError: it is empty, one token, not of integers, or an integer is out of range.
    """
    if vocabulary is not None and vocabulary < 1:
        raise UsageError(f"a vocabulary of {vocabulary}", "there is at least one symbol", "try 12")
    read = [_symbol(part) for part in text.replace(",", " ").split()]
    _refuse_short(len(read), "--sequence", 'give two integers or more, as "4 7 2 4"')
    symbols = sorted(set(read))
    largest = symbols[-1]
    if vocabulary is not None and largest >= vocabulary:
        raise UsageError(
            f"symbol {largest} in --sequence",
            f"a vocabulary of {vocabulary} has the symbols 0 to {vocabulary - 1}",
            f"use a vocabulary of {largest + 1} or more",
        )
    number = {symbol: at for at, symbol in enumerate(symbols)}
    ids = [number[symbol] for symbol in read]
    return Tokens("--sequence", "integer", len(ids), vocabulary or largest + 1, symbols, lambda: ids)


def _symbol(part: str) -> int:
    """One symbol of a sequence."""
    mend = "use integers from 0 on"
    shown = part if len(part) <= 40 else f"{part[:40]}…"
    if not re.fullmatch(r"[+-]?[0-9]+", part):
        raise UsageError(f"{shown!r} in --sequence", "it is not an integer", mend)
    if part.startswith("-") and part.strip("-0"):
        raise UsageError(f"symbol {shown} in --sequence", "it is negative", mend)
    digits = part.lstrip("+-0") or "0"
    # Python refuses to convert thousands of digits, and 20 are too many already.
    if len(digits) >= 20 or int(digits) > _LARGEST:
        raise UsageError(f"symbol {shown} in --sequence", f"it is above {_LARGEST}", "number them from 0")
    return int(digits)


def read_file(path: Path | str, by: By = "words") -> Tokens:
    """The words of a UTF-8 file, each punctuation mark for itself, or its characters.

    It is read once here, to number the symbols, and again whenever its ids are asked for; what is kept is a
    number for each symbol. What can be read once only, as a pipe, is copied to a temporary file first.

    Raises:
        UsageError: the file is missing, a directory, a device, unreadable, binary, not UTF-8, or has fewer
            than two tokens; or, where its ids are read, it is another text by then.
    """
    what, numbers, length = f"--text {str(path) or repr('')}", dict[str, int](), 0
    opened = _opener(Path(path), str(path), what)

    def symbols() -> Iterator[str]:
        with _told(what), opened() as stream:
            texts = _decoded(stream, what)
            yield from _words(texts) if by == "words" else chain.from_iterable(texts)

    def ids() -> Iterator[int]:
        left = length
        for symbol in symbols():
            left -= 1
            if left < 0 or symbol not in numbers:
                break
            yield numbers[symbol]
        if left:
            raise UsageError(what, "it changed while it was read", "give a text that stays as it is")

    for symbol in symbols():
        numbers.setdefault(symbol, len(numbers))
        length += 1
    _refuse_short(length, what, f"give a text of two {by} or more")
    vocabulary = len(numbers)
    unit = by.removesuffix("s")
    return Tokens(Path(path).name, unit, length, vocabulary, range(vocabulary), ids, tuple(numbers))


def _opener(path: Path, given: str, what: str) -> Callable[[], AbstractContextManager[BinaryIO]]:
    """How to open the text for each pass over it."""
    mend = "give a UTF-8 text file"
    if not given:
        raise UsageError(what, "it is empty", "name a file")
    with _told(what):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(what, "it is a directory", mend)
        if stat.S_ISREG(mode):
            return lambda: path.open("rb")
        if not given.startswith(_OPEN_ALREADY):
            raise UsageError(what, "it is not a regular file", mend)
        spool = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the opener)
        with path.open("rb", buffering=0) as pipe:
            while piece := pipe.read(_PIECE):
                _refuse_binary(piece, what)
                spool.write(piece)

    def again() -> AbstractContextManager[BinaryIO]:
        spool.seek(0)
        return nullcontext(spool)

    weakref.finalize(again, spool.close)
    return again


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What goes wrong while a text is read, in one line."""
    mend = "give a UTF-8 text file"
    try:
        yield
    except FileNotFoundError:
        raise UsageError(what, "there is no such file", mend) from None
    except MemoryError:
        raise UsageError(what, "its symbols do not fit into memory", "read it --by characters") from None
    except (OSError, ValueError) as error:
        raise UsageError(what, f"it cannot be read ({error})", mend) from None


def _decoded(stream: BinaryIO, what: str) -> Iterator[str]:
    """The text piece by piece, without a byte order mark."""
    decoder, at, begun = codecs.getincrementaldecoder("utf-8")(), 0, False
    while True:
        piece = stream.read(_PIECE)
        _refuse_binary(piece, what)
        carried = len(decoder.getstate()[0])
        try:
            text = decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            where = at - carried + error.start
            raise UsageError(what, f"byte {where} is not UTF-8", "give a UTF-8 text file") from None
        yield text if begun else text.removeprefix("\ufeff")
        begun = begun or bool(text)
        if not piece:
            return
        at += len(piece)


def _refuse_binary(piece: bytes, what: str) -> None:
    if b"\0" in piece:
        raise UsageError(what, "it is binary", "give a UTF-8 text file")


def _words(texts: Iterable[str]) -> Iterator[str]:
    """The words and marks of a text in pieces, where a word may go on in the next piece."""
    begun: list[str] = []
    for text in texts:
        border = _UP_TO_A_BORDER.match(text)
        if border is None:
            begun.append(text)
            continue
        yield from _WORD.findall("".join([*begun, border[0]]))
        begun = [text[border.end() :]]
    yield from _WORD.findall("".join(begun))


def _refuse_short(length: int, what: str, mend: str) -> None:
    """Refuse what has no token, or one."""
    if length < 2:
        raise UsageError(what, "it has one token only" if length else "it is empty", mend)
