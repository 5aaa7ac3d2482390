"""Does a subject compute something else for long inputs, as rotary scaling beyond a trained length does?

Then a short call and a long one rightly disagree, and a difference between a prompt decoded step by step and
the same prompt read at once says nothing of the cache.
"""

from __future__ import annotations

from whyformer.instruments.agreement import Call, Comparison, Examiner, Run
from whyformer.subjects.subject import SubjectError

_SHORT = ((2, 3), (3, 4), (4, 6))
"""Lengths that lie below any trained length: a subject that depends on these has a fault of its own."""


def explains(examiner: Examiner, comparison: Comparison, bound: float) -> bool:
    """Whether the lengths of a comparison's calls alone account for its deviation.

    They do where one plain call over more inputs moves earlier outputs at the lengths of the comparison,
    though not at short ones, and though the content of the later inputs does not move them.

    Args:
        examiner: runs the subject.
        comparison: two runs that were found to differ.
        bound: what rounding explains of them.
    """
    widths = sorted(_widths(comparison.left) | _widths(comparison.right))
    most = widths[-1]
    row = comparison.pairs[0][0][0]
    ids = [i for call in comparison.left.calls for i in call.ids[row]]
    ids = (ids * (most // max(1, len(ids)) + 1))[:most]
    shorter = [width for width in widths[:-1] if width >= _SHORT[0][0]]
    picked = shorter[:: max(1, len(shorter) // 4)]
    try:
        if not any(_moves(examiner, ids, short, most, bound) for short in picked):
            return False
        return not any(_moves(examiner, ids, a, b, bound) for a, b in _SHORT if b < most)
    except SubjectError:
        return False


def _widths(run: Run) -> set[int]:
    """How many inputs have been read after each call."""
    read, widths = 0, set()
    for call in run.calls:
        read += len(call.ids[0])
        widths.add(read)
    return widths


def _moves(examiner: Examiner, ids: list[int], short: int, long: int, bound: float) -> bool:
    """Whether the length of one call moves outputs that the content of its later inputs leaves alone."""
    vocabulary = examiner.subject.traits.vocabulary
    other = [*ids[:short], *((i + 1) % vocabulary for i in ids[short:long])]
    alone, inside, changed = (Run((Call((tuple(row),)),)) for row in (ids[:short], ids[:long], other))
    places = tuple(((0, t), (0, t)) for t in range(short))
    by_content = examiner.deviation(Comparison(inside, changed, places)).size
    return by_content <= bound < examiner.deviation(Comparison(alone, inside, places)).size
