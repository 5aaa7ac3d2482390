"""The scan of a model's heads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli.options import SEED, Seed, check_kept, check_seed, path_option
from whyformer.cli.showing import doing, on_a_terminal, show
from whyformer.errors import UsageError


def heads(
    target: Annotated[
        str,
        typer.Argument(help="A checkpoint (a folder, a hub id, a .gguf file), or code: path/file.py:NAME."),
    ],
    length: Annotated[int | None, typer.Option(help="Tokens of each sequence; 512 unless told.")] = None,
    seed: Seed = SEED,
    text: Annotated[
        Path | None, path_option("--text", "A text of yours, to scan beside drawn tokens.")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(help="A head to tell of beside the best; give it again for more.", metavar="LAYER.HEAD"),
    ] = None,
    scan_only: Annotated[bool, typer.Option("--scan-only", help="Take no heads out: the dear part.")] = False,
    beyond: Annotated[
        bool, typer.Option("--beyond", help="Let --length pass the context that the model declares.")
    ] = False,
    json: Annotated[Path | None, path_option("--json", "Write the data there, by whyformer/heads/1.")] = None,
) -> int:
    """Scan every head of a model for routing, and test by ablation what is found."""
    check_seed(seed)
    named = [_place(name) for name in head or ()]
    if json is not None:
        from whyformer.report.schema import check_writable

        check_kept(json, target, text)
        check_writable(json)

    from whyformer.heads import examine
    from whyformer.malloc import keep_freed_memory

    keep_freed_memory()
    data = examine(
        target,
        length=length,
        seed=seed,
        text=text,
        heads=named,
        ablate=not scan_only,
        beyond=beyond,
        progress=doing if on_a_terminal() else None,
    )
    if json is not None:
        from whyformer.report.schema import write_data

        write_data(data, json)
    from whyformer.report.heads import heads_view

    show(heads_view(data))
    return 0


def _place(name: str) -> tuple[int, int]:
    """The layer and head that a name such as 17.3 tells."""
    found = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", name, re.ASCII)
    if found is None:
        raise UsageError(f"--head {name!r}", "it names no head", "write layer and head from 0, as 17.3")
    return int(found[1]), int(found[2])
