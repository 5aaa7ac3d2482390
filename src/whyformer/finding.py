"""What comes of trying claims on a subject: verdicts, findings, and the report that holds them.

Data only: nothing here measures, judges or prints, and nothing imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

Value = int | float | None
"""The parameter of a claim, as 4 in ``routing.reach=4``."""


class Verdict(StrEnum):
    """What a claim's rule says of a subject."""

    HOLDS = "holds"
    REFUTED = "refuted"
    INCONCLUSIVE = "inconclusive"
    INAPPLICABLE = "inapplicable"


class Strength(StrEnum):
    """How far a verdict of *holds* reaches."""

    PROVED = "proved"
    """Exhaustive over a finite set, or a bound over all inputs."""
    SAMPLED = "sampled"
    """Drawn at random; the finding's reason gives the draws and the confidence."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A claim tried on a subject.

    Attributes:
        claim: the claim's id, without its value.
        verdict: what the claim's rule says.
        value: the claim's parameter, or None.
        strength: how far *holds* reaches; None for every other verdict.
        measured: the figure that is compared with ``bound``, or named figures where one is not enough.
        bound: the largest value of ``measured`` that rounding explains, or the limit that it is held to.
        bound_from: where the bound comes from, in words.
        path: the call path, as ``{"mask": "none", "cache": "on"}``.
        reason: why this verdict, in one sentence.
        counterexample: the witness that refutes, as data that can be replayed.
    """

    claim: str
    verdict: Verdict
    value: Value = None
    strength: Strength | None = None
    measured: float | Mapping[str, Any] | None = None
    bound: float | None = None
    bound_from: str | None = None
    path: Mapping[str, Any] | None = None
    reason: str | None = None
    counterexample: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.verdict is Verdict.HOLDS) != (self.strength is not None):
            raise ValueError(f"{self.claim}: 'holds', and nothing else, states its strength")

    def but(self, **changes: Any) -> Finding:
        """The same finding with some attributes changed."""
        return replace(self, **changes)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on several findings: the worst of them, where *inapplicable* weighs nothing."""
    met = set(verdicts)
    for verdict in (Verdict.REFUTED, Verdict.INCONCLUSIVE, Verdict.HOLDS):
        if verdict in met:
            return verdict
    return Verdict.INAPPLICABLE


@dataclass(frozen=True, kw_only=True)
class Report:
    """Findings about one subject.

    Attributes:
        subject: what was examined, as data: at least its ``name`` and ``kind``.
        seed: the seed that every draw was made from.
        findings: one a claim, in the order in which they were asked.
        verdict: the verdict on all of them.
        timing: seconds by name; the only part that differs between two equal calls.
    """

    subject: Mapping[str, Any]
    seed: int
    findings: tuple[Finding, ...]
    verdict: Verdict
    timing: Mapping[str, float] = field(default_factory=dict)
