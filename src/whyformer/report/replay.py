"""Read a stored report, and show what its counterexamples come to when they are run again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from whyformer.errors import UsageError
from whyformer.finding import Verdict
from whyformer.report.schema import SCHEMA
from whyformer.report.terminal import figure, heading, rows
from whyformer.report.witness import witness_view


def read_report(path: Path) -> Mapping[str, Any]:
    """A report as data.

    Raises:
        UsageError: there is no such file, it is not JSON, or not of the schema ``whyformer/report/1``.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(str(path), error.strerror or "it cannot be read", "name a report") from error
    except ValueError as error:
        raise UsageError(str(path), "it is not JSON", "name a report that --json wrote") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UsageError(str(path), f"it is no report of the schema {SCHEMA}", "name one that --json wrote")
    return data


def stands(finding: Mapping[str, Any], deviation: float) -> bool:
    """Whether a refuted finding is refuted again by the deviation that is met now.

    Most witnesses are two runs that ought to agree and do not; those of *it can tell* claims are two runs
    that ought to differ, and agree.
    """
    bound = finding["bound"] or 0.0
    agree = bool(finding["counterexample"].get("agree"))
    return deviation <= bound if agree else deviation > bound


def counts(finding: Mapping[str, Any]) -> bool:
    """Whether a finding counts against its subject: what was only observed does not."""
    return (finding["path"] or {}).get("basis") != "observed"


def replay_view(met: Iterable[tuple[Mapping[str, Any], float]]) -> Iterator[RenderableType]:
    """Each counterexample with what was stored and what is met now."""
    for number, (finding, again) in enumerate(met, 1):
        bound = finding["bound"] or 0.0
        verdict = Verdict.REFUTED if stands(finding, again) else Verdict.HOLDS
        words = {Verdict.REFUTED: "refuted again", Verdict.HOLDS: "met no more"}
        drawn = witness_view(finding["counterexample"])
        stored = finding["measured"]
        now = figure(again) if isfinite(again) else "a number against none"
        was = figure(stored) if isinstance(stored, int | float) else "a number against none"
        yield heading(str(number), finding["claim"], verdict, words=words)
        yield rows([("stored", was), ("now", f"{now} against {figure(bound)}"), ("witness", drawn or Text())])
