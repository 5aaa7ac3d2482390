"""Why a claim is refuted of an architecture: read from reasons.toml, and matched to what was found.

A reason is told once, for a claim, for the architectures named, and only for a witness that fits it: so a new
fault is not hidden behind the reason of an old one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("reasons.toml")
KINDS = ("by design", "fault")


@dataclass(frozen=True)
class Reason:
    """Why a claim is refuted.

    Attributes:
        claim: the claim's id.
        kind: one of ``KINDS``.
        says: one sentence.
        shown: how it was established.
        families: the architectures that it is known of, or "*" where what the finding tells is enough.
        path: what the finding's call path must hold for the reason to be this one.
        told: what the finding's own reason must contain.
        with_: claim -> verdict that must have been found of the same architecture.
    """

    claim: str
    kind: str
    says: str
    shown: str
    families: tuple[str, ...]
    path: Mapping[str, Any] | None = None
    told: str = ""
    with_: Mapping[str, str] | None = None

    def fits(self, family: str, finding: Mapping[str, Any], verdicts: Mapping[str, str]) -> bool:
        """Whether it explains this finding."""
        path = finding["path"] or {}
        return (
            finding["claim"] == self.claim
            and (self.families == ("*",) or family in self.families)
            and all(path.get(name) == value for name, value in (self.path or {}).items())
            and self.told in (finding["reason"] or "")
            and all(verdicts.get(claim) == verdict for claim, verdict in (self.with_ or {}).items())
        )


def load(file: Path = FILE) -> tuple[Reason, ...]:
    """The reasons on file.

    Raises:
        ValueError: one names no kind, or no architectures, or all of them and nothing that must be told.
    """
    reasons = []
    for given in tomllib.loads(file.read_text(encoding="utf-8"))["reason"]:
        families = tuple(given.pop("families", "").split())
        reason = Reason(families=families, with_=given.pop("with", None), **given)
        blanket = families == ("*",) and not (reason.told or reason.with_)
        if reason.kind not in KINDS or not families or blanket:
            raise ValueError(f"a reason for {reason.claim} names no kind, or not what it is for")
        reasons.append(reason)
    return tuple(reasons)


def explained(
    results: Iterable[Mapping[str, Any]], reasons: tuple[Reason, ...]
) -> dict[tuple[str, str], Reason | None]:
    """The reason of every refutation, by architecture and claim; None where there is none."""
    found: dict[tuple[str, str], Reason | None] = {}
    for result in results:
        findings = result.get("report", {}).get("findings", ())
        verdicts = {f["claim"]: f["verdict"] for f in findings}
        for finding in findings:
            if finding["verdict"] == "refuted":
                family = result["family"]
                fitting = (r for r in reasons if r.fits(family, finding, verdicts))
                found[family, finding["claim"]] = next(fitting, None)
    return found
