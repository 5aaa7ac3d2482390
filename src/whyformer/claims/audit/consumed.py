"""Whether a subject uses what it is handed: of a mask or cache that changes nothing, a claim says nothing.

Many models swallow an argument without a word, so each proof here is a comparison that *must* deviate: the
same inputs with the argument and without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from whyformer.claims.audit.probing import Asked, Draws, full
from whyformer.finding import Finding, Verdict
from whyformer.instruments.agreement import Call, Comparison, Examiner, Grid, Run
from whyformer.subjects.subject import SubjectError

_TIME = 8
"""The length of the inputs on which it is tried; half of them are padding, or lie in the cache."""


def agrees(examiner: Examiner, comparison: Comparison) -> bool:
    """Whether the two sides lie within what rounding explains.

    Raises:
        SubjectError: the subject raised.
    """
    size = examiner.deviation(comparison).size
    if size == 0 or (not comparison.one_shape and size <= examiner.plain_bound()):
        return True
    return size <= examiner.bound(comparison)


def without(claim: str, asked: Asked, reason: str, verdict: Verdict = Verdict.INAPPLICABLE) -> Finding:
    """A finding on a claim that could not be tried."""
    return Finding(
        claim=claim, value=asked.value, verdict=verdict, reason=reason, path={"basis": asked.basis}
    )


def apart(claim: str, asked: Asked, test: Callable[[], Finding]) -> Finding:
    """The finding of a test, or *inconclusive* where the subject raised on what the test rests on."""
    try:
        return test()
    except SubjectError as error:
        return without(claim, asked, str(error), Verdict.INCONCLUSIVE)


def short(examiner: Examiner, base: int = 2) -> Grid:
    """One short row, no longer than the subject takes."""
    limit = examiner.subject.traits.max_length
    return Draws(examiner, base).grid(1, _TIME if limit is None else min(_TIME, limit))


def uses_mask(examiner: Examiner) -> bool:
    """Whether masking half of a row, the first or the last, changes an output of the other half."""
    ids = short(examiner)
    time, half = len(ids[0]), len(ids[0]) // 2
    ones = Run((Call(ids, ((1,) * time,)),))
    first = ((0,) * half + (1,) * (time - half),)
    last = ((1,) * half + (0,) * (time - half),)
    for mask, times in ((first, range(half, time)), (last, range(half))):
        pairs = tuple(((0, t), (0, t)) for t in times)
        if not agrees(examiner, Comparison(Run((Call(ids, mask),)), ones, pairs)):
            return True
    return False


def sees_earlier(examiner: Examiner) -> bool:
    """Whether the last output depends on what precedes it."""
    ids = short(examiner)
    time = len(ids[0])
    other = Draws(examiner).other(ids, range(time - 1))
    return not agrees(examiner, Comparison(full(ids), full(other), (((0, time - 1), (0, time - 1)),)))


def sees_later(examiner: Examiner) -> bool:
    """Whether the first output depends on what follows it."""
    ids = short(examiner)
    other = Draws(examiner).other(ids, range(1, len(ids[0])))
    return not agrees(examiner, Comparison(full(ids), full(other), (((0, 0), (0, 0)),)))


def uses_cache(examiner: Examiner) -> bool:
    """Whether a step, or a chunk of three, with a cache differs from the same without one."""
    ids = short(examiner)
    time = len(ids[0])
    for step in (1, 3):
        if step >= time:
            continue
        prompt, rest = (tuple(ids[0][: time - step]),), (tuple(ids[0][time - step :]),)
        filled = Run((Call(prompt), Call(rest)), cached=True)
        empty = replace(filled, calls=(Call(rest),))
        pairs = tuple(((0, time - step + t), (0, t)) for t in range(step))
        if not agrees(examiner, Comparison(filled, empty, pairs)):
            return True
    return False


def uses_positions(examiner: Examiner, *, ones: bool = False) -> bool:
    """Whether positions whose distances are not those of 0, 1, 2, ... change an output: neighbours exchanged.

    In reverse all distances would stay, and with them every bias of the distance.

    Args:
        examiner: whose subject is asked.
        ones: whether to ask under a mask of ones, where it takes one: without a mask, positions that jump may
            be read as the borders of packed documents, by a subject that has no other use for them.
    """
    ids = short(examiner)
    time = len(ids[0])
    mask = ((1,) * time,) if ones and examiner.subject.traits.mask else None
    counted = Run((Call(ids, mask, (tuple(range(time)),)),))
    swapped = tuple(t ^ 1 if t ^ 1 < time else t for t in range(time))
    turned = Run((Call(ids, mask, (swapped,)),))
    pairs = tuple(((0, t), (0, t)) for t in range(time))
    return not agrees(examiner, Comparison(counted, turned, pairs))


def longest(examiner: Examiner, wanted: int) -> int:
    """The longest input that the subject takes, up to the length wanted."""
    limit = examiner.subject.traits.max_length
    length = wanted if limit is None else min(wanted, limit)
    while length > examiner.length:
        try:
            examiner.output(full(Draws(examiner, 2).grid(1, length)))
        except SubjectError:
            length = max(examiner.length, length * 3 // 4)
        else:
            break
    return length
