"""The claims as a list, and one claim explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from whyformer.claims.claim import Claim

SOURCE_WIDTH = 100
"""Prose in the sources is wrapped somewhere beyond this column, and at 110 at the latest."""


def all_claims(catalogues: Mapping[str, Mapping[str, Claim]]) -> Iterator[RenderableType]:
    """Ids and sentences, under the title of each catalogue, in its order."""
    for title, catalogue in catalogues.items():
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan", no_wrap=True, width=max(map(len, catalogue)))
        table.add_column(ratio=1)
        for claim in catalogue.values():
            table.add_row(claim.id, Text(claim.sentence))
        yield Text(f"{title}\n", "dim")
        yield table
        yield ""
    yield Text("'whyformer claims ID' explains one.", "dim")


def one_claim(claim: Claim) -> Iterator[RenderableType]:
    """All that is known of a claim, under headings of its own."""
    yield Text(claim.id, "bold cyan")
    yield Text(claim.sentence, "bold")
    for title, words in (
        ("Mathematics", claim.mathematics),
        ("Measured by", claim.instrument),
        ("Rule", claim.rule),
        ("Reach", claim.scope),
        ("Broken by", claim.breaks),
        ("Source", claim.source),
    ):
        yield Text(f"\n{title}", "dim")
        yield Padding(Text(reflowed(words)), (0, 0, 0, 2))


def reflowed(text: str) -> str:
    """Prose for any width: a line goes on in the next where the next word would not have fitted on it.

    Formulas on lines of their own, which are shorter, stay as they stand.
    """
    lines = text.strip("\n").split("\n")
    flowing = lines[:1]
    for before, line in pairwise(lines):
        wrapped = line[:1].strip() and len(before) + 1 + len(line.split(" ")[0]) > SOURCE_WIDTH
        if wrapped:
            flowing[-1] += f" {line}"
        else:
            flowing.append(line)
    return "\n".join(flowing)
