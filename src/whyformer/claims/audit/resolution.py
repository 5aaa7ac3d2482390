"""Are neighbouring positions told apart, far out and in the subject's own precision?"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from whyformer.claims.audit.consumed import apart, uses_positions, without
from whyformer.claims.audit.dependency import same_places
from whyformer.claims.audit.probing import Asked, Draws
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments.agreement import Call, Comparison, Examiner, Run
from whyformer.subjects.subject import SubjectError

MOST = 32_768
"""How many positions are tried where neither the question nor the subject says."""
_NEAR = 5
"""Positions of a neighbourhood, of which one is left out on each side."""
_BLOCK = 4
"""Rounding merges at least one pair in so many neighbours, from where it merges any."""
_OUTPUTS = 1 << 22
"""How many numbers a call may return, about: rows are handed over in parts."""


def resolution(asked: Asked, generator: torch.Generator) -> Finding:
    """order.resolution: move one input by one position, and look for any output that changes a bit."""
    return apart("order.resolution", asked, lambda: _resolved(asked, generator))


def _resolved(asked: Asked, generator: torch.Generator) -> Finding:
    examiner, claim = asked.examiner, "order.resolution"
    subject = examiner.subject
    if not subject.traits.positions:
        return without(claim, asked, "it takes no positions")
    if not uses_positions(examiner, ones=True):
        told = " under a mask of ones" if subject.traits.mask else ""
        return without(
            claim, asked, f"positions are swallowed: neighbouring ones exchanged{told}, no output changes"
        )
    declared = asked.value or subject.traits.max_length
    wanted = int(declared or MOST)
    with subject.precision(subject.native):
        taken = _taken(examiner, wanted)
        if taken < 2:
            return without(claim, asked, "it takes no positions beyond 0")
        tried = _places(taken, subject.traits.large, generator)
        draws = 1 if subject.traits.large else 3
        first = next(
            (p for p in sorted(_merged(examiner, tried, taken, draws)) if _alone(examiner, p, taken)), None
        )
        if first is not None:
            below = max((p for p in tried if p < first), default=-1)
            return _refuted(asked, _smallest(examiner, below, first, taken, draws), taken)
    dtype = str(subject.native).removeprefix("torch.")
    told = f"{len(tried)} pairs of neighbours below {taken}, powers of two and the last ones among them, "
    told += f"are told apart in {dtype}"
    if declared and taken < wanted:
        return without(
            claim, asked, f"{told}, and it takes no position from {taken} on", Verdict.INCONCLUSIVE
        )
    return Finding(
        claim=claim,
        value=asked.value,
        verdict=Verdict.HOLDS,
        strength=Strength.SAMPLED,
        measured={"neighbours": len(tried), "up_to": taken},
        path={"basis": asked.basis, "dtype": dtype},
        reason=told,
    )


def _run(examiner: Examiner, rows: list[tuple[int, ...]]) -> Run:
    """Short rows of content at these positions; under a mask of ones, so that no gap reads as packing."""
    ids = Draws(examiner, 2).grid(len(rows), len(rows[0]))
    ones = tuple((1,) * len(row) for row in rows) if examiner.subject.traits.mask else None
    return Run((Call(ids, ones, tuple(rows)),))


def _taken(examiner: Examiner, wanted: int) -> int:
    """How many positions the subject takes, up to those wanted."""

    def takes(count: int) -> bool:
        try:
            examiner.again(_run(examiner, [(0, count - 1)]))
        except SubjectError:
            return False
        return True

    if takes(wanted):
        return wanted
    low, high = 0, wanted
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if takes(middle) else (low, middle)
    return low


def _places(taken: int, large: bool, generator: torch.Generator) -> list[int]:
    """The positions to tell from the next."""
    powers = [1 << k for k in range(5 if large else 2, taken.bit_length())]
    around = (0, 1) if large else (-2, -1, 0, 1, 2)
    random = torch.randint(taken - 1, (4 if large else 8,), generator=generator).tolist()
    last = [taken - 2 - back for back in range(2 if large else _BLOCK)]
    wanted = {0, 1, 2, 3, *(p + d for p in powers for d in around), *random, *(p + 1 for p in random), *last}
    return sorted(p for p in wanted if 0 <= p < taken - 1)


def _settings(position: int, taken: int, large: bool) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """One input at a position, and at the next: the rows of both sides.

    It stands amid its neighbours, as the last and as an inner one, and alone far behind the first.
    """
    made = []
    for before in (3,) if large else (3, 1):
        start = max(0, min(position - before, taken - _NEAR))
        near = range(start, min(start + _NEAR, taken))
        sides = (tuple(p for p in near if p != left_out) for left_out in (position + 1, position))
        made.append(tuple((0,) * (_NEAR - 1 - len(side)) + side for side in sides))
    far = (0, 1, 2) if position > 2 else (0, 0, 0)
    made.append(((*far, position), (*far, position + 1)))
    return made  # type: ignore[return-value]


def _merged(examiner: Examiner, places: Iterable[int], taken: int, draws: int) -> set[int]:
    """The positions that no draw tells from the next, in any setting."""
    large = examiner.subject.traits.large
    sides = [
        (p, pair)
        for p in places
        if p < taken - 1
        for pair in _settings(p, taken, large)
        for _ in range(draws)
    ]
    part = max(8, _OUTPUTS // (_NEAR * examiner.subject.traits.vocabulary))
    apart_: set[int] = set()
    for start in range(0, len(sides), part):
        some = sides[start : start + part]
        left = examiner.again(_run(examiner, [pair[0] for _, pair in some]))
        right = examiner.again(_run(examiner, [pair[1] for _, pair in some]))
        differ = ~((left == right) | (left.isnan() & right.isnan())).flatten(1).all(1)
        apart_ |= {p for (p, _), told in zip(some, differ.tolist(), strict=True) if told}
    return {p for p, _ in sides} - apart_


def _alone(examiner: Examiner, position: int, taken: int) -> bool:
    """Whether no draw of many tells a position from the next, with no other position in the batch."""
    return bool(_merged(examiner, [position], taken, 8))


def _smallest(examiner: Examiner, below: int, first: int, taken: int, draws: int) -> int:
    """The smallest position that is merged with the next, by bisection from one where neighbours differ."""
    low, high = below, first
    while high - low > 1:
        middle = (low + high) // 2
        found = _merged(examiner, range(middle, middle + _BLOCK), taken, draws)
        alone = [p for p in sorted(found) if p < first and _alone(examiner, p, taken)]
        low, high = (low, middle) if alone else (middle, high)
        first = min([first, *alone])
    return first


def _refuted(asked: Asked, position: int, taken: int) -> Finding:
    examiner = asked.examiner
    dtype = str(examiner.subject.native).removeprefix("torch.")
    (left, right), *_ = _settings(position, taken, examiner.subject.traits.large)
    witness = Comparison(_run(examiner, [left]), _run(examiner, [right]), same_places(1, range(len(left))))
    return Finding(
        claim="order.resolution",
        value=asked.value,
        verdict=Verdict.REFUTED,
        measured={"position": position, "up_to": taken},
        path={"basis": asked.basis, "dtype": dtype},
        reason=f"positions {position} and {position + 1} give the same outputs to the last bit in {dtype}, "
        f"for every draw, amid their neighbours and far from the rest",
        counterexample={
            "position": position,
            "comparison": witness.as_data(),
            "agree": True,
            "deviation": examiner.deviation(witness).size,
        },
    )
