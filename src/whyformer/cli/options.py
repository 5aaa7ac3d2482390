"""Options that several commands take, and what is refused of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.errors import UsageError

SEED = 31

Seed = Annotated[int, typer.Option(help="What every random draw follows from; 0 or more.")]


def path_option(option: str, told: str) -> Any:
    """An option that names a file. An empty name is refused: it would be the folder that one is in."""

    def path(given: str) -> Path:
        if not given:
            raise UsageError(f"{option} ''", "it is empty", "name a file")
        return Path(given)

    return typer.Option(help=told, parser=path, metavar="PATH")


def check_seed(seed: int) -> None:
    """Refuse a seed that no generator takes."""
    if seed < 0:
        raise UsageError(f"--seed {seed}", "a seed is 0 or more", f"try --seed {SEED}")


def check_kept(json: Path, target: str, text: Path | None) -> None:
    """Refuse a report in the place of what is read: the text, or a file of the target."""
    if text is not None and same_file(json, text):
        raise UsageError(f"--json {json}", "it would replace the text that is read", "name another file")
    place = Path(target.rpartition(":")[0] or target).expanduser()
    own = list(place.iterdir()) if place.is_dir() else [place]
    if json.exists() and any(same_file(json, path) for path in own):
        raise UsageError(f"--json {json}", "it would replace a file of the target", "name another file")


def same_file(one: Path, other: Path) -> bool:
    """Whether both name one file, by whatever links."""
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))
