"""The lab's own doors: run it, and look its claims up."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli.options import SEED, Seed, check_seed, path_option, same_file
from whyformer.cli.showing import EXIT, importing, on_a_terminal, progress, show
from whyformer.errors import UsageError

CONTEXT = 8192


class Unit(StrEnum):
    """What one token of a text is."""

    WORDS = "words"
    CHARACTERS = "characters"


def lab(
    seed: Seed = SEED,
    sequence: Annotated[
        str | None, typer.Option(help="Your own tokens, as integers: '4 7 2 9 7 5 3 8 2 9'.")
    ] = None,
    vocab: Annotated[
        int | None, typer.Option(help="How many symbols --sequence may use: 0 to VOCAB-1.", min=1)
    ] = None,
    text: Annotated[Path | None, path_option("--text", "Your own text, a UTF-8 file.")] = None,
    by: Annotated[
        Unit | None,
        typer.Option(help="What one token of --text is: words (unless told otherwise) or characters."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help=f"How many tokens back a twin is sought; {CONTEXT:,} unless told otherwise."),
    ] = None,
    json: Annotated[
        Path | None, path_option("--json", "Write the report there, by whyformer/report/1.")
    ] = None,
) -> int:
    """Prove routing and order, and show beside each proof the model that breaks it.

    With --sequence or --text, the two-layer induction circuit reads your own input instead.
    """
    check_seed(seed)
    _check_own_input(sequence, text, vocab, by, context)
    if json is not None and text is not None and same_file(json, text):
        raise UsageError(f"--json {json}", "it would replace the text that is read", "name another file")
    if json is not None:
        from whyformer.report.schema import check_writable

        check_writable(json)

    with importing():
        from whyformer.lab import story

    if sequence is None and text is None:
        told = story.tell(seed)
    else:
        told = story.read_own(
            seed,
            sequence=sequence,
            vocabulary=vocab,
            text=text,
            by="characters" if by is Unit.CHARACTERS else "words",
            context=CONTEXT if context is None else context,
            progress=progress if on_a_terminal() else None,
        )
    if json is not None:
        from whyformer.report.schema import write_json

        write_json(told.report, json)
    show(told.view)
    return EXIT[told.report.verdict]


def claims(
    claim: Annotated[str | None, typer.Argument(help="The id of one claim, to explain it.")] = None,
) -> int:
    """List the claims, or explain one: its mathematics, its test, what breaks it, its source."""
    with importing():
        from whyformer import claims as registry
        from whyformer.lab import listing

        if claim is None:
            told = listing.all_claims(
                {
                    "Proved by the lab": registry.catalogue(),
                    "Tried by the audit on any model": registry.audit_catalogue(),
                }
            )
        else:
            told = listing.one_claim(registry.find(claim))
    show(told)
    return 0


def _check_own_input(
    sequence: str | None, text: Path | None, vocab: int | None, by: Unit | None, context: int | None
) -> None:
    """Refuse two inputs, and an option that says how an input is read which is not there."""
    if sequence is not None and text is not None:
        raise UsageError("--sequence with --text", "one input is read at a time", "leave one of them out")
    for option, value, needs, there in (
        ("--vocab", vocab, "--sequence", sequence is not None),
        ("--by", by, "--text", text is not None),
        ("--context", context, "--sequence or --text", sequence is not None or text is not None),
    ):
        if value is not None and not there:
            raise UsageError(option, f"it says how {needs} is read", f"add {needs}, or leave it out")
