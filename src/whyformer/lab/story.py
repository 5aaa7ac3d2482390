"""The lab: the claims told as a story, and your own input read by the two-layer circuit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from whyformer.claims import catalogue
from whyformer.claims.claim import Trial, prove
from whyformer.finding import Report, Verdict, overall
from whyformer.lab import drawings, own_input, words
from whyformer.lab.edges import edges
from whyformer.lab.opening import opening
from whyformer.lab.scene import Scene, act, claim_scene, judged, scene_view
from whyformer.report.terminal import ANSWERS, STYLES


@dataclass(frozen=True)
class Told:
    """What a run came to: the report, and its view for the terminal."""

    report: Report
    view: Iterable[RenderableType]


@dataclass(frozen=True)
class LabResult:
    """The whole lab as data.

    Attributes:
        seed: what every draw followed from.
        opening: the original lab's three steps.
        trials: every claim on its specimen and on its refuter, in the order of the story.
        edges: where the two facts end.
    """

    seed: int
    opening: tuple[Scene, ...]
    trials: tuple[Trial, ...]
    edges: tuple[Scene, ...]

    @property
    def report(self) -> Report:
        """A finding for each claim; the other steps stand in the subject, and weigh in the verdict."""
        findings = tuple(judged(trial) for trial in self.trials)
        steps = [*self.opening, *self.edges]
        return Report(
            subject={
                "name": "the specimens of the lab",
                "kind": "lab",
                "steps": [{"sentence": step.sentence, "verdict": step.verdict} for step in steps],
            },
            seed=self.seed,
            findings=findings,
            verdict=overall([finding.verdict for finding in findings] + [step.verdict for step in steps]),
        )


def run(seed: int) -> LabResult:
    """Try every claim on its specimen and on its refuter.

    Args:
        seed: 0 or more; two runs of one seed give the same result.
    """
    with torch.no_grad():
        trials = {name: prove(claim, seed) for name, claim in catalogue().items()}
        return LabResult(seed, tuple(opening(seed)), tuple(trials.values()), tuple(edges(trials, seed)))


def tell(seed: int) -> Told:
    """Run the lab, and tell it.

    One thread from here on, in this process: the tensors are tiny, and threads would wait for each other.
    """
    torch.set_num_threads(1)
    result = run(seed)
    return Told(result.report, story(result))


def story(result: LabResult) -> Iterator[RenderableType]:
    """The opening, two acts, the edges, and one verdict line."""
    yield Text(words.TITLE, "bold")
    yield Padding(Text(words.PROMISE), (1, 0))
    yield Padding(Text(words.LEGEND, "dim"), (0, 0, 1, 0))
    yield from act(*words.OPENING)
    yield from _numbered(result.opening)
    number = len(result.opening) + 1
    for name, title in words.ACTS.items():
        trials = [trial for trial in result.trials if trial.claim.id.startswith(name)]
        yield from act(*title)
        yield from _numbered(map(_scene, trials, [result.seed] * len(trials)), number)
        number += len(trials)
    yield from act(*words.EDGES)
    yield from _numbered(result.edges, number)
    yield from _verdict(result)


def read_own(
    seed: int,
    *,
    sequence: str | None,
    vocabulary: int | None,
    text: Path | None,
    by: own_input.By,
    context: int,
    progress: own_input.Progress | None = None,
) -> Told:
    """Let the two-layer circuit read a sequence, or else a text.

    Raises:
        UsageError: neither can be read as tokens, or the context cannot be held.
    """
    if text is None:
        tokens = own_input.read_sequence(sequence or "", vocabulary)
    else:
        tokens = own_input.read_file(text, by)
    reading = own_input.examine(tokens, context=context, progress=progress)
    findings = own_input.reading_findings(reading)
    report = Report(
        subject={
            "name": tokens.source,
            "kind": "own input",
            "unit": tokens.unit,
            "tokens": reading.length,
            "vocabulary": tokens.vocabulary,
            "context": context,
        },
        seed=seed,
        findings=findings,
        verdict=overall(finding.verdict for finding in findings),
    )
    answer = _answer(
        "It copied what followed each token's most recent twin, and nothing else", report.verdict
    )
    return Told(report, [Text(words.OWN_INPUT), own_input.reading_view(reading), Text(), answer])


def _scene(trial: Trial, seed: int) -> Scene:
    draw = drawings.BY_CLAIM.get(trial.claim.id)
    return claim_scene(trial, words.REMARKS[trial.claim.id], draw(seed) if draw else None)


def _numbered(scenes: Iterable[Scene], start: int = 1) -> Iterator[RenderableType]:
    for number, scene in enumerate(scenes, start):
        yield from scene_view(scene, str(number))


def _verdict(result: LabResult) -> Iterator[RenderableType]:
    """What failed, if anything did; then the one line that all of it comes to."""
    report = result.report
    for finding in report.findings:
        if finding.verdict is not Verdict.HOLDS:
            yield Text(
                f"{ANSWERS[finding.verdict]}: {finding.claim}: {finding.reason}", STYLES[finding.verdict]
            )
    hold = sum(trial.finding.verdict is Verdict.HOLDS for trial in result.trials)
    broken = sum(trial.refutation.verdict is Verdict.REFUTED for trial in result.trials)
    total = len(result.trials)
    yield Text(
        f"{hold} of {total} claims hold; the same tests say NO to {broken} of {total} models that break "
        f"them. Seed {result.seed}.\n"
    )
    yield _answer("One hop by content, order from positions or a mask", report.verdict)


def _answer(sentence: str, verdict: Verdict) -> Text:
    return Text.assemble((f"{sentence}: ", "bold"), (ANSWERS[verdict], STYLES[verdict]))
