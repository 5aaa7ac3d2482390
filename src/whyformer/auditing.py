"""A subject and claims in, a report out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from whyformer import claims as registry
from whyformer.claims.audit.probing import Asked
from whyformer.claims.claim import Claim, generator_for
from whyformer.errors import UsageError, WhyformerError
from whyformer.finding import Finding, Report, Value, Verdict, overall
from whyformer.instruments.agreement import Comparison, Examiner
from whyformer.subjects.subject import Subject, SubjectError
from whyformer.subjects.targets import load, subject_of

SEED = 31
LENGTH = {False: 24, True: 64}
"""The length of an ordinary input, by whether a forward is dear."""


class PartialReportError(WhyformerError):
    """The audit could not go on; what it had found is in ``report``."""

    def __init__(self, error: WhyformerError, report: Report) -> None:
        super().__init__(error.what, error.why, error.mend)
        self.report = report


@dataclass(frozen=True)
class Question:
    """A claim to try: its id, its value, and why it is tried.

    Attributes:
        claim: the claim.
        value: its parameter, or None.
        basis: "asked", "promised by ..." or "observed"; what is only observed fails nothing.
    """

    claim: Claim
    value: Value
    basis: str


def audit(
    subject: Subject | nn.Module | str,
    *,
    claims: Iterable[str] = (),
    tokens: int | None = None,
    width: int | None = None,
    length: int | None = None,
    seed: int = SEED,
    progress: Callable[[str, int, int], None] | None = None,
) -> Report:
    """Try claims on a subject.

    Args:
        subject: what is examined: a subject, a torch module, or a TARGET as on the command line.
        claims: ids, as ``routing.causal`` or ``routing.reach=16``; none asks for all that the subject
            promises and observes the rest.
        tokens: the vocabulary of a module that reads tokens.
        width: the width of a module that reads vectors.
        length: the length of an ordinary input.
        seed: every draw follows from it.
        progress: told the claim at hand, how many are done, and how many there are.

    Raises:
        UsageError: an argument cannot be used, or the subject cannot be run at all.
        PartialReportError: the subject, or the machine, gave out on the way; it carries what was found.
    """
    _check(subject, {"tokens": tokens, "width": width, "length": length, "seed": seed})
    wanted = [registry.parse(name) for name in claims]
    if isinstance(subject, nn.Module):
        with _modes_kept(subject):
            made = subject_of(subject, tokens=tokens, width=width)
            return _audited(made, wanted, length, seed, progress)
    if isinstance(subject, str):
        subject = load(subject, tokens=tokens, width=width, seed=seed)
    return _audited(subject, wanted, length, seed, progress)


def _audited(
    subject: Subject,
    wanted: list[tuple[Claim, Value]],
    length: int | None,
    seed: int,
    progress: Callable[[str, int, int], None] | None,
) -> Report:
    if subject.traits.vocabulary < 2:
        raise UsageError(subject.name, "with one token nothing can be changed", "give it two or more")
    questions = _questions(subject, wanted)
    examiner = Examiner(subject, _length(subject, length), seed)
    findings: list[Finding] = []

    def report() -> Report:
        counted = [f.verdict for f, q in zip(findings, questions, strict=False) if q.basis != "observed"]
        verdict = _verdict(counted, bool(wanted))
        cost = {"length": examiner.length, "forwards": examiner.forwards, "cost": round(examiner.cost, 2)}
        return Report(
            subject={**subject.describe(), **cost}, seed=seed, findings=tuple(findings), verdict=verdict
        )

    with _threads(subject), _precision(examiner) as other:
        _run_once(examiner)
        for done, question in enumerate(questions):
            if progress is not None:
                progress(question.claim.id, done, len(questions))
            asked = Asked(examiner, question.value, question.basis, other)
            try:
                findings.append(question.claim.test(asked, generator_for(seed, question.claim.id)))
            except SubjectError as error:
                findings.append(_raised(question, error))
            except (WhyformerError, MemoryError) as error:
                raise PartialReportError(_as_usage(error, subject), report()) from error
    if progress is not None:
        progress("", len(questions), len(questions))
    return report()


def _check(subject: object, numbers: Mapping[str, object]) -> None:
    """Refuse what is no subject, and numbers that are none."""
    if not isinstance(subject, Subject | nn.Module | str):
        name = getattr(subject, "__name__", type(subject).__name__)
        mend = f"build it: {name}()" if isinstance(subject, type) else "give a module, a subject or a TARGET"
        raise UsageError(name, "it is neither a module, a subject nor a TARGET", mend)
    for name, number in numbers.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise UsageError(f"{name}={number!r}", "it is no whole number", f"give {name} as one")


@contextmanager
def _modes_kept(module: nn.Module) -> Iterator[None]:
    """Leave every part of the user's module training, or not, as it was."""
    before = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        for part, training in before.items():
            part.training = training


def replay(
    report: Mapping[str, Any], subject: Subject | None = None
) -> tuple[tuple[Mapping[str, Any], float], ...]:
    """Run every counterexample of a report again.

    Args:
        report: the report as data, by ``whyformer/report/1``.
        subject: what to run them on; without it, the target that the report names is loaded.

    Returns:
        Each refuted finding that stores two runs, with the deviation that is met now.

    Raises:
        UsageError: the report names no target that can be loaded, or holds no counterexample.
    """
    told = report["subject"]
    refuted = [f for f in report["findings"] if (f["counterexample"] or {}).get("comparison")]
    if not refuted:
        raise UsageError("the report", "it holds no counterexample that can be run", "audit the subject anew")
    if subject is None:
        if not told.get("target"):
            raise UsageError(
                "the report", "it names no target to load", "give the subject itself, from Python"
            )
        kind = {"tokens": told.get("tokens"), "width": told.get("width")} if told["kind"] == "module" else {}
        subject = load(told["target"], **kind, seed=report["seed"])
    met = []
    for finding in refuted:
        comparison = Comparison.from_data(finding["counterexample"]["comparison"])
        examiner = Examiner(subject, told["length"], report["seed"])
        dtype = (finding["path"] or {}).get("dtype")
        with subject.precision(getattr(torch, dtype)) if dtype else _precision(examiner):
            met.append((finding, examiner.deviation(comparison).size))
    return tuple(met)


def _questions(subject: Subject, wanted: list[tuple[Claim, Value]]) -> list[Question]:
    if wanted:
        return [Question(claim, value, "asked") for claim, value in wanted]
    promised = subject.traits.promised
    promises, rest = [], []
    for claim in registry.audit_catalogue().values():
        if claim.id in promised:
            value, by = promised[claim.id]
            promises.append(Question(claim, value, f"promised by {by}"))
        elif claim.id != "routing.reach":
            rest.append(Question(claim, None, "observed"))
    return promises + rest


def _verdict(verdicts: list[Verdict], asked: bool) -> Verdict:
    """The verdict on what counts; a claim that was asked by name and does not apply leaves it open."""
    said = overall(verdicts)
    if asked and said is Verdict.HOLDS and Verdict.INAPPLICABLE in verdicts:
        return Verdict.INCONCLUSIVE
    return said


def _length(subject: Subject, length: int | None) -> int:
    limit = subject.traits.max_length
    if length is None:
        length = LENGTH[subject.traits.large]
        return length if limit is None else min(length, limit)
    if length < 2:
        raise UsageError(
            f"--length {length}", "order and routing need two inputs at least", "try --length 24"
        )
    if limit is not None and length > limit:
        raise UsageError(
            f"--length {length}", f"{subject.name} takes {limit} at most", f"try --length {limit}"
        )
    return length


@contextmanager
def _threads(subject: Subject) -> Iterator[None]:
    """One thread for small subjects: on their tensors, threads would only wait for each other."""
    before = torch.get_num_threads()
    if not subject.traits.large:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _precision(examiner: Examiner) -> Iterator[torch.dtype | None]:
    """The best precision that the subject can be judged in; yields a second one to confirm in, if any.

    Small subjects are judged in float64 and confirmed in float32; dear ones the other way round. Low
    precisions are never judged in: their weights are moved up, which is exact.
    """
    subject = examiner.subject
    best, other = torch.float64, torch.float32
    if subject.traits.large:
        best, other = other, best
    for first, second in ((best, other), (other, None)):
        try:
            with subject.precision(first):
                subject.call(torch.zeros(1, examiner.length, dtype=torch.int64))
        except SubjectError:
            continue
        with subject.precision(first):
            yield second
        return
    yield None


def _run_once(examiner: Examiner) -> None:
    """One plain forward, and the highest id: whoever fails here cannot be examined at all."""
    subject = examiner.subject
    try:
        y = examiner.output(examiner.ordinary())
        top = torch.full((1, examiner.length), subject.traits.vocabulary - 1, dtype=torch.int64)
        subject.call(top)
    except SubjectError as error:
        raise UsageError(error.what, error.why, _mend(examiner, error)) from error
    except MemoryError as error:
        raise _as_usage(error, subject) from error
    if not bool(y.isfinite().all()):
        raise UsageError(subject.name, "it returns NaN or infinity on an ordinary input", "mend it first")


def _mend(examiner: Examiner, error: SubjectError) -> str:
    """What to try where the very first call fails: a shorter input that works, or the other kind of input."""
    subject = examiner.subject
    for length in (16, 8, 4, 2):
        with suppress(SubjectError):
            if length < examiner.length:
                subject.call(torch.zeros(1, length, dtype=torch.int64))
                return f"it runs on {length} inputs: try --length {length}"
    told = subject.describe()
    if told.get("width"):
        return "if it reads tokens, say --tokens V"
    return f"check that it reads {told['tokens']} tokens" if told.get("tokens") else error.mend


def _raised(question: Question, error: SubjectError) -> Finding:
    return Finding(
        claim=question.claim.id,
        value=question.value,
        verdict=Verdict.INCONCLUSIVE,
        path={"basis": question.basis},
        reason=str(error),
    )


def _as_usage(error: Exception, subject: Subject) -> WhyformerError:
    if isinstance(error, WhyformerError):
        return error
    return UsageError(subject.name, "the memory is used up", "try a smaller --length")
