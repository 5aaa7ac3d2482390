"""What was found of the zoo, as a page: architecture × claim, with the reason of every refutation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.zoo.examine import AUDITED, CRASHED, NOT_BUILT
from bench.zoo.reasons import Reason, explained
from whyformer.claims import AUDIT_IDS

Result = Mapping[str, Any]
_SIGNS = {"holds": "✓", "inconclusive": "?", "inapplicable": "–"}


def line(result: Result) -> str:
    """One result in a line."""
    if result["status"] != AUDITED:
        return f"{result['family']}: {result['status']}: {result['said']}"
    refuted = [f["claim"] for f in result["report"]["findings"] if f["verdict"] == "refuted"]
    return f"{result['family']}: {', '.join(refuted) or 'nothing'} refuted, {result['seconds']:g} s"


def troubles(results: Sequence[Result], reasons: tuple[Reason, ...]) -> list[str]:
    """What fails the run: each crash, and each refutation without a reason, in a line."""
    crashed = [line(r) for r in results if r["status"] == CRASHED]
    findings = {(r["family"], f["claim"]): f for r in results for f in _findings(r)}
    without = [key for key, reason in explained(results, reasons).items() if reason is None]
    return crashed + [
        f"{family}: {claim} is refuted and nothing says why: {_path(findings[family, claim])}: "
        f"{findings[family, claim]['reason']}"
        for family, claim in without
    ]


def stale(results: Sequence[Result], reasons: tuple[Reason, ...]) -> list[str]:
    """Each reason on file that names an architecture which is refuted of nothing that it fits, in a line."""
    given = explained(results, reasons)
    lines = []
    for reason in reasons:
        met = {family for (family, _), found in given.items() if found is reason}
        left = sorted(set(reason.families) - met - {"*"})
        if left:
            lines.append(f"{reason.claim}: no longer refuted for {reason.says!r}: {' '.join(left)}")
    return lines


def totals(results: Sequence[Result], reasons: tuple[Reason, ...]) -> dict[str, int]:
    """The figures that the zoo is measured by."""
    status = Counter(r["status"] for r in results)
    given = explained(results, reasons)
    verdicts = Counter(f["verdict"] for r in results for f in _findings(r))
    return {
        "architectures": len(results),
        "audited": status[AUDITED],
        "crashed": status[CRASHED],
        "not built": status[NOT_BUILT],
        "findings that hold": verdicts["holds"],
        "refuted by design": sum(r is not None and r.kind == "by design" for r in given.values()),
        "refuted, a fault": sum(r is not None and r.kind == "fault" for r in given.values()),
        "refuted without a reason": sum(r is None for r in given.values()),
        "inconclusive": verdicts["inconclusive"],
        "inapplicable": verdicts["inapplicable"],
    }


def page(results: Sequence[Result], reasons: tuple[Reason, ...], version: str) -> str:
    """The whole page in Markdown."""
    given = explained(results, reasons)
    few = any(r.get("few") for r in results)
    used = [reason for reason in reasons if any(found is reason for found in given.values())]
    number = {id(reason): n for n, reason in enumerate(used, 1)}
    audited = [r for r in results if r["status"] == AUDITED]
    claims = [c for c in AUDIT_IDS if any(f["claim"] == c for r in audited for f in _findings(r))]
    parts = [
        _HEAD.format(
            version=version,
            few=" with as few probes as a model is that is dear to run" if few else "",
            command="python -m bench.zoo --few" if few else "make zoo",
        ),
        _grid(("", "count"), [(name, str(count)) for name, count in totals(results, reasons).items()]),
        "## Verdicts\n\n✓ holds, – does not apply, ? inconclusive; a number is the reason of a refutation.\n",
        _grid(
            ("architecture", *(c.split(".")[1] for c in claims)),
            [(r["family"], *(_cell(r, c, given, number) for c in claims)) for r in audited],
        ),
        "## Reasons\n",
        "\n".join(_told(n, reason, given) for n, reason in enumerate(used, 1)) + "\n",
        "## Witnesses of the faults\n",
        _grid(("architecture", "claim", "call path", "what was met"), _witnesses(audited, given)),
        "## Inconclusive\n",
        _grid(("architecture", "claim", "why"), _open(audited)),
        "## Not built\n",
        _grid(
            ("architecture", "what stopped it"),
            [(r["family"], r["said"]) for r in results if r["status"] == NOT_BUILT],
        ),
    ]
    return "\n".join(parts)


_HEAD = """# The zoo

Every causal-LM architecture of transformers {version}, shrunken to about 30,000 weights and audited{few}.
This page is made by `{command}`, which fails where an audit crashes or a refutation has no reason.
"""


def _findings(result: Result) -> Sequence[Mapping[str, Any]]:
    return result.get("report", {}).get("findings", ())


def _cell(
    result: Result, claim: str, given: Mapping[tuple[str, str], Reason | None], number: Mapping[int, int]
) -> str:
    finding = next((f for f in _findings(result) if f["claim"] == claim), None)
    if finding is None:
        return ""
    if finding["verdict"] != "refuted":
        return _SIGNS[finding["verdict"]]
    reason = given[result["family"], claim]
    return "**!**" if reason is None else f"[{number[id(reason)]}](#r{number[id(reason)]})"


def _told(n: int, reason: Reason, given: Mapping[tuple[str, str], Reason | None]) -> str:
    count = sum(r is reason for r in given.values())
    return f'<a id="r{n}"></a>{n}. `{reason.claim}`, {reason.kind}, {count}: {reason.says} *{reason.shown}*\n'


def _witnesses(
    audited: Sequence[Result], given: Mapping[tuple[str, str], Reason | None]
) -> list[tuple[str, ...]]:
    rows = []
    for result in audited:
        for finding in _findings(result):
            reason = given.get((result["family"], finding["claim"]))
            if reason is not None and reason.kind == "fault":
                rows.append((result["family"], finding["claim"], _path(finding), finding["reason"]))
    return rows


def _open(audited: Sequence[Result]) -> list[tuple[str, ...]]:
    return [
        (r["family"], f["claim"], f["reason"])
        for r in audited
        for f in _findings(r)
        if f["verdict"] == "inconclusive"
    ]


def _path(finding: Mapping[str, Any]) -> str:
    left_out = ("basis", "dtype")
    return ", ".join(f"{k} {v}" for k, v in (finding["path"] or {}).items() if k not in left_out)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return "\n".join([row(head), "|" + "---|" * len(head), *map(row, rows)]) + "\n"
