"""Walk the catalogue of faults and write docs/catalogue.md: ``python -m bench.catalogue``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "audit")]

import catalogue as faults  # noqa: E402
from bench import public_tools  # noqa: E402
from whyformer.finding import Verdict  # noqa: E402

KINDS = {
    "A": "causality", "B": "padding", "C": "rows of a batch", "D": "caches and chunks", "E": "packing",
    "F": "windows", "G": "backends and masked rows", "H": "positions and order", "J": "data of lookups",
    "K": "carried states",
}  # fmt: skip


INTRODUCTION = """\
# The catalogue of faults

Written by `python -m bench.catalogue`, which tries every module of `tests/audit/catalogue.py`. Each fault
is of a kind that was met in public bug reports, rebuilt as a small module beside a right twin. It counts as
found where each claim named refutes it. *The formula* is a comparison of a table with its paper's, which no
call of a subject can stand for. Where positions are swallowed, *inapplicable* is the right answer: nothing
can be said of packing then. Scores of heads (kind I) are measurements, and have tests of their own.

"""
BESIDE = """\
are the public tools that come nearest, each asked by its own
documented use; `bench/public_tools.py` says how. They do other things besides, and are made for other ends:
what a tool has no check for is not counted against it, and *not run* is a call that raised in it. A single
trial of theirs stands where the audit makes dozens."""


def judged(row: faults.Row, claim: str, module: Any) -> str:
    """What whyformer says of one module under one claim."""
    return faults.verdict_of(row, claim, module).value


def tried(trial: public_tools.Trial, module: Any, reads: tuple[str, int]) -> str:
    """What a public tool says: holds, refuted, or why it could not be run."""
    try:
        return "holds" if trial(module, reads) else "refuted"
    except public_tools.NoCheckError:
        return "no check"
    except Exception as error:  # whatever stops another tool is a result of this bench
        return f"not run: {type(error).__name__}"


def walk(tools: dict[str, dict[str, public_tools.Trial]]) -> list[dict[str, Any]]:
    """Every row under every claim: the verdict on the fault and on the twin, by each tool."""
    found = []
    for row in faults.ROWS:
        for claim in row.claims:
            said = {"whyformer": (judged(row, claim, row.fault), judged(row, claim, row.twin))}
            for tool, offers in tools.items():
                if claim in offers and row.verdict is Verdict.REFUTED:
                    both = tuple(tried(offers[claim], m, row.reads) for m in (row.fault, row.twin))
                    said |= {} if "no check" in both else {tool: both}
            found.append({"row": row, "claim": claim, "said": said})
    return found


def rung(tools: dict[str, dict[str, public_tools.Trial]]) -> list[dict[str, Any]]:
    """Every right module that looks wrong: the claims that refute it, by each tool."""
    found = []
    for alarm in faults.ALARMS:
        said = {"whyformer": (faults.alarms(alarm), len(alarm.claims))}
        for tool, offers in tools.items():
            asked = [claim for claim in alarm.claims if claim in offers]
            said[tool] = (
                [c for c in asked if tried(offers[c], alarm.module, alarm.reads) == "refuted"],
                len(asked),
            )
        found.append({"alarm": alarm, "said": said})
    return found


def figures(walked: list[dict[str, Any]], kind: str, tool: str) -> tuple[int, int, int]:
    """Of a kind and a tool: faults found, faults asked, and twins refuted.

    Whyformer must say what is expected under every claim named; of another tool one check is enough.
    """
    here = [w for w in walked if w["row"].kind == kind and tool in w["said"]]
    found: dict[str, list[bool]] = {}
    for w in here:
        found.setdefault(w["row"].name, []).append(w["said"][tool][0] == w["row"].verdict.value)
    enough = all if tool == "whyformer" else any
    wrong = {w["row"].name for w in here if w["said"][tool][1] == "refuted"}
    return sum(enough(each) for each in found.values()), len(found), len(wrong)


def page(walked: list[dict[str, Any]], alarms: list[dict[str, Any]], tools: list[str]) -> str:
    """The document."""
    columns = ["whyformer", *tools]
    lines = INTRODUCTION.splitlines()
    lines += _notes(tools)
    lines += [
        "## By kind",
        "",
        "Faults found, of those that the tool has a check for; and right twins refuted.",
        "",
    ]
    lines += ["| kind | " + " | ".join(f"{c}: found | twins refuted" for c in columns) + " |"]
    lines += ["|---|" + "---|---|" * len(columns)]
    total = {c: [0, 0, 0] for c in columns}
    for kind, words in KINDS.items():
        cells = []
        for c in columns:
            found, of, wrong = figures(walked, kind, c)
            total[c] = [a + b for a, b in zip(total[c], (found, of, wrong), strict=True)]
            cells += [f"{found} of {of}" if of else "no check", str(wrong) if of else ""]
        lines += [f"| {kind} {words} | " + " | ".join(cells) + " |"]
    sums = " | ".join(f"**{f} of {o}** | **{w}**" for f, o, w in total.values())
    lines += [f"| **all** | {sums} |", ""]
    lines += ["## What only looks wrong", "", "Right modules, and the claims that were refuted of them.", ""]
    lines += ["| module | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for a in alarms:
        cells = [", ".join(a["said"][c][0]) or ("none" if a["said"][c][1] else "no check") for c in columns]
        lines += [f"| {a['alarm'].words} | " + " | ".join(cells) + " |"]
    lines += [
        "",
        "## Every fault",
        "",
        "The verdict on the fault, and after the stroke on its right twin.",
        "",
    ]
    lines += [
        "| kind | what is wrong | claim | " + " | ".join(columns) + " |",
        "|---|---|---|" + "---|" * len(columns),
    ]
    for w in walked:
        cells = [" / ".join(w["said"][c]) if c in w["said"] else "no check" for c in columns]
        lines += [f"| {w['row'].kind} | {w['row'].words} | {w['claim']} | " + " | ".join(cells) + " |"]
    return "\n".join(lines) + "\n"


def _notes(tools: list[str]) -> list[str]:
    if not tools:
        return ["pytest-torch and pangolinn were not installed, so they were not tried.", ""]
    return [f"{' and '.join(tools)} {BESIDE}", ""]


def main() -> int:
    torch.set_num_threads(1)
    start = time.perf_counter()
    tools = public_tools.installed()
    walked, alarms = walk(tools), rung(tools)
    text = page(walked, alarms, list(tools))
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs" / "catalogue.md").write_text(text, encoding="utf-8")
    missed = [w["row"].name for w in walked if w["said"]["whyformer"] != (w["row"].verdict.value, "holds")]
    false = [a["alarm"].name for a in alarms if a["said"]["whyformer"][0]]
    print(f"{len(faults.ROWS)} faults, {len(missed)} not found or with a twin that does not hold: {missed}")
    print(f"{len(alarms)} right modules, {len(false)} alarms: {false}")
    print(f"{time.perf_counter() - start:.0f} s; tools beside: {', '.join(tools) or 'none'}")
    return 1 if missed or false else 0


if __name__ == "__main__":
    sys.exit(main())
