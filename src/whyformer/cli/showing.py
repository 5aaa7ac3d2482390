"""What a command shows: views on stdout, progress and one line of complaint on stderr."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from whyformer.errors import UsageError
from whyformer.finding import Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

EXIT = {Verdict.HOLDS: 0, Verdict.INAPPLICABLE: 0, Verdict.REFUTED: 1, Verdict.INCONCLUSIVE: 3}
"""Exit status by verdict; an unusable call or target gives 2, an interruption 130."""


def show(parts: Iterable[RenderableType]) -> None:
    """Print at most 80 columns wide, in colour where the terminal has it; quiet when nobody reads on."""
    from rich.console import Console

    from whyformer.report.encodings import carried
    from whyformer.report.terminal import WIDTH

    if sys.stdout is None:
        raise UsageError("the output", "it is closed", "send it to a terminal or to a file")
    encoding = sys.stdout.encoding or "utf-8"
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = min(console.width, WIDTH)
    try:
        for part in parts:
            with console.capture() as captured:
                console.print(carried(part, encoding))
            sys.stdout.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))
        sys.stdout.flush()
    except OSError as error:
        # Python flushes stdout once more at exit: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            why = f"cannot be written: {error.strerror}"
            raise UsageError("the output", why, "send it to a terminal or to a file with room") from error


def say(line: str, status: int) -> int:
    """One line on stderr, whatever was in it; returns the status to exit with."""
    if sys.stderr is None:
        return status
    from whyformer.report.terminal import safe

    sys.stderr.write(f"whyformer: {safe(' '.join(line.split()))}\n")
    sys.stderr.flush()
    return status


def on_a_terminal() -> bool:
    """Whether somebody watches what is written to stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def progress(read: int, total: int) -> None:
    """How much of a long text is read, on a line of stderr that whatever comes next writes over."""
    sys.stderr.write(f"{read / total:4.0%} read\r" if read < total else " " * 9 + "\r")
    sys.stderr.flush()


def trying(claim: str, done: int, total: int) -> None:
    """Which claim is tried, on a line of stderr that whatever comes next writes over."""
    line = f"{done + 1}/{total} {claim}" if claim else ""
    sys.stderr.write(f"{line:<40}\r" if claim else " " * 40 + "\r")
    sys.stderr.flush()


def doing(step: str) -> None:
    """What is done, on a line of stderr that whatever comes next writes over."""
    sys.stderr.write(f"{step:<50}\r" if step else " " * 50 + "\r")
    sys.stderr.flush()


@contextmanager
def importing() -> Iterator[None]:
    """Leave at once on Ctrl-C: what is raised inside an import of torch, other code may catch and forget."""

    def leave(_signal: int, _frame: object) -> None:
        os._exit(say("interrupted", 130))

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
