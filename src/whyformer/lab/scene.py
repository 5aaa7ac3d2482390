"""One step of the story: a sentence, its answer, what was found, and a picture where looking is quicker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from whyformer.claims.claim import Trial
from whyformer.finding import Finding, Verdict
from whyformer.report import terminal
from whyformer.report.terminal import ANSWERS, STYLES


@dataclass(frozen=True)
class Scene:
    """One step of the story.

    Attributes:
        sentence: what is shown.
        verdict: whether it was.
        said: what it means, in a learner's words.
        lines: labels and what was found.
        drawing: the picture, or None.
        claim: the id of the claim that it tells, or "".
    """

    sentence: str
    verdict: Verdict
    said: str = ""
    lines: tuple[tuple[str, str | Text], ...] = ()
    drawing: Text | None = None
    claim: str = ""


def judged(trial: Trial) -> Finding:
    """The finding on a claim, with its refuter's outcome beside it.

    A claim that holds counts only where the same test refutes the refuter: a test that cannot fail shows
    nothing, so its finding becomes inconclusive.
    """
    finding, refutation = trial.finding, trial.refutation
    if finding.verdict is Verdict.REFUTED:
        return finding
    beside = {
        "subject": trial.claim.breaks,
        "verdict": str(refutation.verdict),
        "measured": refutation.measured,
        "bound": refutation.bound,
        "witness": refutation.counterexample,
    }
    if finding.verdict is Verdict.HOLDS and not trial.counts:
        reason = f"it holds, but the test did not refute what should break it ({trial.claim.breaks})"
        return finding.but(verdict=Verdict.INCONCLUSIVE, strength=None, reason=reason, counterexample=beside)
    return finding.but(counterexample=beside)


def claim_scene(trial: Trial, said: str, drawing: Text | None) -> Scene:
    """A claim as a step: figures, strength, and the refuter's figures beside them."""
    claim, finding, refutation = trial.claim, judged(trial), trial.refutation
    shown = terminal.comparison(refutation) or refutation.reason or ""
    lines: tuple[tuple[str, str | Text], ...] = (
        ("found", finding.reason or ""),
        ("measured", _with_source(finding)),
        (finding.strength or "reach", claim.scope),
        ("broken by", claim.breaks),
        ("", Text.assemble((ANSWERS[refutation.verdict], STYLES[refutation.verdict]), f" there: {shown}")),
    )
    return Scene(claim.sentence, finding.verdict, said, lines, drawing, claim.id)


def scene_view(scene: Scene, number: str = "") -> Iterator[RenderableType]:
    """The step in 80 columns."""
    yield terminal.heading(number, scene.sentence, scene.verdict, aside=scene.claim)
    if scene.said:
        yield Padding(Text(scene.said, "italic"), (0, 7, 0, 4))
    if scene.drawing is not None:
        yield terminal.picture(scene.drawing)
    yield terminal.rows(scene.lines)
    yield ""


def act(title: str, opening: str) -> Iterator[RenderableType]:
    """A heading across the page, and what the act is about."""
    yield Rule(Text(title, "bold cyan"), align="left", style="cyan", characters="─")
    yield Padding(Text(opening), (0, 0, 1, 0))


def _with_source(finding: Finding) -> str:
    compared = terminal.comparison(finding)
    return f"{compared} ({finding.bound_from})" if compared and finding.bound_from else compared
