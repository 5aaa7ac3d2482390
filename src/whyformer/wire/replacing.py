"""Where a wired folder goes: what is not ours is never removed, and it is there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whyformer.errors import UsageError
from whyformer.wire.llamacpp import FILE
from whyformer.wire.reading import CERTIFICATE, CONFIG, WEIGHTS, read_json

FILES = {
    WEIGHTS, CONFIG, CERTIFICATE, FILE, "generation_config.json", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip
"""All that a wired folder may hold."""
_PREFIX = ".wired-"  # of a folder that is being written


def check_free(out: Path, force: bool) -> None:
    """Find out, before long work, whether a folder can be written there; leaves nothing behind.

    A folder is replaced only if ``force`` says so and it is empty, or all that it holds was wired.

    Raises:
        UsageError: it exists, holds something else, or has no folder to stand in that can be written to.
    """
    at = _place(out)
    if not at.parent.is_dir():
        raise UsageError(f"--out {out}", f"there is no folder {out.parent}", "make it first")
    try:
        there = os.path.lexists(at) or bool(at.lstat())
    except FileNotFoundError:
        there = False
    except OSError as error:
        raise _unwritable(out, error) from error
    if there:
        _check_ours(out, at, force)
    try:
        Path(tempfile.mkdtemp(prefix=_PREFIX, dir=at.parent)).rmdir()
    except OSError as error:
        raise _unwritable(out, error) from error


def _check_ours(out: Path, at: Path, force: bool) -> None:
    """Refuse to replace what exists, unless it is to be replaced and was wired."""
    if not force:
        raise UsageError(f"--out {out}", "it exists, and is kept", "name another folder, or add --force")
    if at == Path.cwd() or at in Path.cwd().parents:
        raise UsageError(f"--out {out}", "you stand in it, and it is kept", "go to another folder first")
    held = {path.name for path in at.iterdir()} if at.is_dir() else {at.name}
    if (held and not _was_wired(at)) or not at.is_dir():
        raise UsageError(f"--out {out}", "it is not a wired folder, and is kept", "name another folder")
    if held - FILES:
        why = f"{min(held - FILES)} in it was not wired, and it is kept"
        raise UsageError(f"--out {out}", why, "move that away, or name another folder")


def _was_wired(folder: Path) -> bool:
    """Whether a certificate of any version of ours lies in the folder."""
    try:
        return str(read_json(folder / CERTIFICATE).get("schema")).startswith("whyformer/certificate/")
    except UsageError:
        return False


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """A folder beside the output, that takes its place when all is written; what stood there goes last.

    Raises:
        OSError: it cannot be written, or cannot take that place; what stood there is still there.
    """
    at = _place(out)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=at.parent))
    aside = made.with_name(f"{made.name}.old")
    try:
        made.chmod(0o755)
        yield made
        if os.path.lexists(at):
            at.rename(aside)
        made.rename(at)
    finally:
        if not os.path.lexists(at) and aside.exists():
            aside.rename(at)
        for left in (made, aside):
            shutil.rmtree(left, ignore_errors=True)


def _place(out: Path) -> Path:
    """Where a path leads, links followed: the folder itself has a name and stands in a folder."""
    return Path(os.path.realpath(out))


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(f"--out {out}", f"it cannot be written: {error.strerror}", "name another folder")
