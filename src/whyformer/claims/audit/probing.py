"""How an audit's claim is tried: probes that can be shrunk, one rule for the verdict, one form of witness.

A claim says that some pairs of outputs are equal. Each of its probes is a set of sizes (length, batch, cut,
pads, chunk, ...) from which a comparison is built; so a refuting probe is shrunk by making its sizes smaller,
and whatever refutes is a comparison that can be stored and run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite
from typing import Any

import torch

from whyformer.claims.audit import lengths
from whyformer.finding import Finding, Strength, Value, Verdict
from whyformer.instruments.agreement import Call, Comparison, Deviation, Examiner, Grid, Run
from whyformer.subjects.subject import SubjectError

CLEAR = 8.0
"""A deviation between the bound and CLEAR times the bound is too near to it to judge."""
SHRANK = 2.0**20
"""A deviation this many times smaller in float64 than in float32 is rounding (which shrinks 2**29)."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Asked:
    """A subject with what is asked of it: what an audit's claim is tried on.

    Attributes:
        examiner: runs the subject, in the precision that the audit has chosen.
        value: the claim's parameter, as 4 in ``routing.reach=4``.
        basis: "asked", "promised by ..." or "observed".
        other: a second precision to confirm a refutation in, or None where the subject has only one.
    """

    examiner: Examiner
    value: Value = None
    basis: str = "asked"
    other: torch.dtype | None = None


@dataclass(frozen=True)
class Probe:
    """A comparison that still has its sizes.

    Attributes:
        sizes: the numbers that it is built from.
        build: makes the comparison; None where the sizes do not fit together.
        path: the call path, in words.
        least: the smallest value that each size may be shrunk to, in the order of shrinking; what is
            not named stays.
        changed: the places whose content differs between the two sides, to be thinned out one by one.
    """

    sizes: Sizes
    build: Callable[[Sizes, tuple[int, ...]], Comparison | None]
    path: Mapping[str, Any] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    changed: tuple[int, ...] = ()

    def comparison(self) -> Comparison | None:
        """The comparison of these sizes."""
        return self.build(self.sizes, self.changed)


class Draws:
    """Ids for inputs: the same for the same name and sizes, whatever was drawn before.

    A longer draw begins with the shorter one of the same row, so that shrinking a length keeps the content.

    Args:
        examiner: whose subject reads them.
        base: which of several inputs; base 0 mixes in the special ids, odd ones repeat a few ids often.
    """

    def __init__(self, examiner: Examiner, base: int = 0) -> None:
        self._traits, self._seed, self._base = examiner.subject.traits, examiner.seed, base

    def row(self, row: int, length: int) -> tuple[int, ...]:
        """The ids of one row."""
        traits = self._traits
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._base * 1009 + row)
        ordinary = traits.vocabulary - len(traits.loud)
        few = self._base % 2 == 1
        pool = torch.randint(ordinary, (4,), generator=generator).tolist()
        draws = torch.randint(1 << 30, (length,), generator=generator).tolist()
        if few:
            return tuple(pool[draw % 4] for draw in draws)
        special = traits.special if self._base == 0 else ()
        return tuple(
            special[draw % len(special)] if special and place % 5 == 3 else draw % ordinary
            for place, draw in enumerate(draws)
        )

    def grid(self, batch: int, length: int) -> Grid:
        """The ids of a batch."""
        return tuple(self.row(b, length) for b in range(batch))

    def other(self, ids: Grid, places: Iterable[int], step: int = 1) -> Grid:
        """The same ids, each of the places named holding another id in every row."""
        at, ordinary = set(places), self._traits.vocabulary - len(self._traits.loud)
        if ordinary < 2:
            return ids
        move = 1 + (step * 7919) % (ordinary - 1)
        return tuple(tuple((i + move) % ordinary if t in at else i for t, i in enumerate(row)) for row in ids)


def pieces(ids: Grid, borders: Iterable[int]) -> tuple[Grid, ...]:
    """A batch cut along time at the borders."""
    edges = [0, *borders, len(ids[0])]
    return tuple(tuple(row[a:b] for row in ids) for a, b in pairwise(edges) if b > a)


def full(ids: Grid, **rest: Any) -> Run:
    """One call over a whole batch, without a cache."""
    return Run((Call(ids),), **rest)


def settle(
    claim: str,
    asked: Asked,
    probes: Iterable[Probe],
    holds: str,
    *,
    allowance: Callable[[Comparison], float] | None = None,
    allowed: str = "",
) -> Finding:
    """Try the probes in turn and give the finding.

    The first probe that deviates beyond what rounding explains, in every precision there is, is shrunk,
    reproduced, and makes the verdict *refuted*. A deviation too near to the bound, one that shrinks with
    precision, or a probe that the subject raised on, leaves *inconclusive*.

    Args:
        claim: the claim's id.
        asked: the subject and what is asked of it.
        probes: what to try, cheapest first; drawn lazily, so that a refutation ends the work.
        holds: what was tried, for the reason of a finding that holds; "{n}" is the number of probes.
        allowance: the least bound of a comparison, for rounding that was done before the calls.
        allowed: where that comes from, in words.
    """
    examiner, bound_from = asked.examiner, f"{_BOUND}; or {allowed}" if allowed else _BOUND
    tried, worst, bound, doubt = 0, 0.0, 0.0, ""
    if examiner.noise:
        doubt = f"two equal calls already differ by {examiner.noise:.1e}"
    source: dict[str, Any] = {}
    for probe in probes:
        comparison = probe.comparison()
        if comparison is None:
            continue
        try:
            size, limit = _measure(examiner, comparison, allowance)
            tried += 1
            if size <= limit:
                if size >= worst:
                    worst, bound = size, limit
                continue
            verdict, why = _confirm(asked, comparison, size, limit)
            if verdict is Verdict.REFUTED:
                return _refuted(claim, asked, probe, limit).but(bound_from=bound_from)
            doubt, worst, bound, source = why, size, limit, _words(probe)
        except SubjectError as error:
            doubt, source = doubt or str(error), source or _words(probe)
    common: dict[str, Any] = {"claim": claim, "value": asked.value}
    measured: dict[str, Any] = {
        "measured": worst if isfinite(worst) else None,
        "bound": bound,
        "bound_from": bound_from,
    }
    if doubt:
        path = {"basis": asked.basis} | ({"probe": source} if source else {})
        return Finding(**common, **measured, verdict=Verdict.INCONCLUSIVE, reason=doubt, path=path)
    if not tried:
        return Finding(
            **common,
            verdict=Verdict.INAPPLICABLE,
            reason="no probe fits this subject",
            path={"basis": asked.basis},
        )
    dtype = str(examiner.subject.dtype).removeprefix("torch.")
    least = (
        f"a deviation above {bound * CLEAR:.1e} would have refuted it" if bound else "equal to the last bit"
    )
    reason = f"{holds.replace('{n}', str(tried))}; {least}"
    path = {"basis": asked.basis, "dtype": dtype}
    return Finding(
        **common, **measured, verdict=Verdict.HOLDS, strength=Strength.SAMPLED, reason=reason, path=path
    )


_BOUND = "every operation of both runs moved by one last place of its own dtype, the largest effect times 32"


def _words(probe: Probe) -> dict[str, Any]:
    return {**probe.path, **{k: v for k, v in probe.sizes.items() if k != "base"}}


def _measure(
    examiner: Examiner, comparison: Comparison, allowance: Callable[[Comparison], float] | None
) -> tuple[float, float]:
    """The deviation, and a bound that is only as dear as it must be."""
    size = examiner.deviation(comparison).size
    if size == 0:
        return size, 0.0
    allowed = 0.0 if allowance is None else allowance(comparison)
    if size <= allowed:
        return size, allowed
    if not comparison.one_shape:
        quick = examiner.plain_bound()
        if size <= quick:
            return size, quick
    return size, max(allowed, examiner.bound(comparison))


def _confirm(asked: Asked, comparison: Comparison, size: float, bound: float) -> tuple[Verdict, str]:
    examiner = asked.examiner
    again = Examiner(examiner.subject, examiner.length, examiner.seed, keep_bytes=0)
    repeat = again.deviation(comparison).size
    examiner.forwards, examiner.read = examiner.forwards + again.forwards, examiner.read + again.read
    if not (repeat == size or abs(repeat - size) <= bound):
        return Verdict.INCONCLUSIVE, f"the deviation does not repeat: {size:.1e}, then {repeat:.1e}"
    if size <= CLEAR * bound:
        return (
            Verdict.INCONCLUSIVE,
            f"the deviation {size:.1e} is within {CLEAR:g} times what rounding explains",
        )
    if not comparison.one_shape and lengths.explains(examiner, comparison, bound):
        return Verdict.INCONCLUSIVE, "length-dependent: longer calls are computed otherwise, cache or none"
    if asked.other is None or size == torch.inf:
        return Verdict.REFUTED, ""
    try:
        with examiner.subject.precision(asked.other):
            coarse = examiner.deviation(comparison).size
    except SubjectError:
        return Verdict.REFUTED, ""
    if coarse > SHRANK * size:
        return Verdict.INCONCLUSIVE, (
            f"the deviation shrinks with precision: {coarse:.1e} in {asked.other}, {size:.1e} here".replace(
                "torch.", ""
            )
        )
    return Verdict.REFUTED, ""


def _refuted(claim: str, asked: Asked, probe: Probe, bound: float) -> Finding:
    examiner = asked.examiner

    def refutes(smaller: Probe) -> bool:
        comparison = smaller.comparison()
        if comparison is None:
            return False
        try:
            return examiner.deviation(comparison).size > CLEAR * bound
        except SubjectError:
            return False

    small = shrink(probe, refutes)
    comparison = small.comparison()
    if comparison is None:
        raise AssertionError("a shrunk probe refutes, so it builds")
    apart = examiner.deviation(comparison)
    at = replace(comparison, pairs=(apart.pair,))
    return Finding(
        claim=claim,
        value=asked.value,
        verdict=Verdict.REFUTED,
        measured=apart.size if isfinite(apart.size) else None,
        bound=bound,
        bound_from=_BOUND,
        path={
            "basis": asked.basis,
            "dtype": str(examiner.subject.dtype).removeprefix("torch."),
            **small.path,
        },
        reason=_told(apart),
        counterexample={
            "sizes": dict(small.sizes),
            "changed": list(small.changed),
            "comparison": at.as_data(),
            "left": _number(apart.left),
            "right": _number(apart.right),
            "entry": apart.entry,
            "deviation": _number(apart.size),
        },
    )


def _told(apart: Deviation) -> str:
    (row, time), (other_row, other_time) = apart.pair
    here = f"output {time} of row {row}"
    there = "" if apart.pair[0] == apart.pair[1] else f" against output {other_time} of row {other_row}"
    size = "a number against none" if not isfinite(apart.size) else f"a difference of {apart.size:.2g}"
    return f"{here}{there}: {apart.left:.6g} and {apart.right:.6g}, {size}"


def _number(x: float) -> float | str:
    return x if isfinite(x) else str(x)


def shrink(probe: Probe, refutes: Callable[[Probe], bool], budget: int = 200) -> Probe:
    """A smaller probe that still refutes: the changed places thinned out, then every size lowered in turn.

    Args:
        probe: one that refutes.
        refutes: whether a probe still does.
        budget: how many probes to try at the most.
    """
    left = budget

    def still(candidate: Probe) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and refutes(candidate)

    while left > 0:
        before = probe
        probe = _thin(probe, still)
        for name, least in probe.least.items():
            probe = _lower(probe, name, least, still)
        if probe == before:
            break
    return probe


def _lower(probe: Probe, name: str, least: int, still: Callable[[Probe], bool]) -> Probe:
    """The size lowered as far as it goes: to the least at once, else by ever smaller steps."""
    step = probe.sizes[name] - least
    while step > 0:
        lower = probe.sizes[name] - step
        candidate = replace(probe, sizes={**probe.sizes, name: lower})
        if name == "length" and probe.changed:
            within = tuple(place for place in probe.changed if place < lower)
            candidate = replace(candidate, changed=within or (lower - 1,))
        if candidate.sizes[name] >= least and still(candidate):
            probe = candidate
            step = min(step, probe.sizes[name] - least)
        else:
            step //= 2
    return probe


def _thin(probe: Probe, still: Callable[[Probe], bool]) -> Probe:
    """The changed places halved while either half still refutes, then dropped one by one."""
    while len(probe.changed) > 1:
        half = len(probe.changed) // 2
        for part in (probe.changed[half:], probe.changed[:half]):
            candidate = replace(probe, changed=part)
            if still(candidate):
                probe = candidate
                break
        else:
            break
    for place in probe.changed if len(probe.changed) > 1 else ():
        candidate = replace(probe, changed=tuple(p for p in probe.changed if p != place))
        if candidate.changed and still(candidate):
            probe = candidate
    return probe
