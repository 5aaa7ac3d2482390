"""The audit of a model, and a stored report played again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from whyformer.cli.options import SEED, Seed, check_seed, path_option
from whyformer.cli.showing import EXIT, importing, on_a_terminal, show, trying
from whyformer.errors import WhyformerError


def audit(
    target: Annotated[
        str,
        typer.Argument(help="path/file.py:NAME, package.module:NAME, or a checkpoint."),
    ],
    tokens: Annotated[
        int | None, typer.Option(help="A module that reads tokens: how many there are.", min=1)
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="A module that reads vectors: how wide they are.", min=1)
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(help="A claim to try, ID or ID=VALUE; give it again for more."),
    ] = None,
    length: Annotated[int | None, typer.Option(help="How long an ordinary input is.")] = None,
    seed: Seed = SEED,
    json: Annotated[
        Path | None, path_option("--json", "Write the report there, by whyformer/report/1.")
    ] = None,
    junit: Annotated[Path | None, path_option("--junit", "Write the findings there, as JUnit XML.")] = None,
) -> int:
    """Try claims on any model, and show the smallest input that breaks it."""
    check_seed(seed)
    for option, path in (("--json", json), ("--junit", junit)):
        if path is not None:
            from whyformer.report.schema import check_writable

            check_writable(path, option)

    with importing():
        from whyformer.auditing import PartialReportError
        from whyformer.auditing import audit as examine

    failure: WhyformerError | None = None
    try:
        report = examine(
            target,
            claims=claim or (),
            tokens=tokens,
            width=width,
            length=length,
            seed=seed,
            progress=trying if on_a_terminal() else None,
        )
    except PartialReportError as error:
        report, failure = error.report, error
    if json is not None:
        from whyformer.report.schema import write_json

        write_json(report, json)
    if junit is not None:
        from whyformer.report.junit import write_junit

        write_junit(report, junit)
    from whyformer.report.terminal import report_view

    show(report_view(report))
    if failure is not None:
        raise failure
    return EXIT[report.verdict]


def replay(
    report: Annotated[Path, typer.Argument(help="A report that an audit wrote with --json.")],
) -> int:
    """Run the counterexamples of a stored report again, on the target that it names."""
    from whyformer.report.replay import counts, read_report, replay_view, stands

    told = read_report(report)
    with importing():
        from whyformer.auditing import replay as run_again
    met = run_again(told)
    show(replay_view(met))
    return 1 if any(stands(*each) and counts(each[0]) for each in met) else 0
