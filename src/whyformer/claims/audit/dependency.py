"""Claims about what an output may depend on: nothing later, and nothing too far back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from whyformer.claims.audit.consumed import longest
from whyformer.claims.audit.options import only_the_path
from whyformer.claims.audit.probing import Asked, Draws, Probe, Sizes, full, pieces, settle
from whyformer.claims.audit.specimens import decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding
from whyformer.instruments.agreement import Call, Comparison, Examiner, Grid, Place, Run
from whyformer.subjects.subject import PLAIN, Settings, SubjectError

Pairs = tuple[tuple[Place, Place], ...]
LONG = 601
"""The longest input of a subject that is not dear: past masks and blocks of 512, and no multiple of any."""


def same_places(batch: int, times: Sequence[int], rows: Sequence[int] | None = None) -> Pairs:
    """The pairs that compare each output with itself, at these times of these rows."""
    return tuple(((b, t), (b, t)) for b in (range(batch) if rows is None else rows) for t in times)


def settings_of(asked: Asked) -> list[Settings]:
    """Every path to the subject's outputs, the plain one first; one of each kind.

    An option that may rightly change what is computed, as ``bidirectional``, is no path.
    """
    traits = asked.examiner.subject.traits
    ways = [PLAIN]
    ways += [Settings(options=((n, not default),)) for n, default in traits.options if only_the_path(n)]
    ways += [Settings(backend=backend) for backend in traits.backends]
    if traits.dropout:
        ways.append(Settings(train=True))
    return ways


def ordinary_length(examiner: Examiner, most: int | None = None) -> int:
    """The examiner's length, cut to what the subject takes."""
    limit = examiner.subject.traits.max_length
    length = examiner.length if limit is None else min(examiner.length, limit)
    return length if most is None else min(length, most)


def changed_later(examiner: Examiner, settings: Settings, masked: bool = False) -> Probe:
    """Two runs that differ only after a cut: the outputs up to the cut ought to be equal.

    Where ``masked``, both are given a mask whose last ``pads`` columns are padding.
    """

    def build(sizes: Sizes, changed: tuple[int, ...]) -> Comparison | None:
        length, batch, cut, pads = sizes["length"], sizes["batch"], sizes["cut"], sizes["pads"]
        places = [t for t in changed if cut < t < length]
        if not places or not 0 <= cut < length - pads:
            return None
        draws = Draws(examiner, sizes["base"])
        ids = draws.grid(batch, length)
        right = draws.other(ids, places, sizes["base"] + 1)
        mask = ((1,) * (length - pads) + (0,) * pads,) * batch if masked else None
        left, other = (Run((Call(x, mask),), settings=settings) for x in (ids, right))
        return Comparison(left, other, same_places(batch, range(cut + 1)))

    path = settings.words() | ({"mask": "given"} if masked else {})
    return Probe({}, build, path, {"batch": 1, "length": 2, "cut": 0, "pads": 0})


def causal(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.causal: change everything after a cut, and look at every output up to it."""
    examiner = asked.examiner
    length = ordinary_length(examiner)
    large = examiner.subject.traits.large
    long = longest(examiner, 2 * length + 1 if large else LONG)
    probes = _few_cuts(examiner, length, long) if large else _cuts(asked, length, long)
    holds = f"everything after a cut changed, {{n}} cuts at length {length} and up to {long}"
    return settle("routing.causal", asked, probes, holds)


def _few_cuts(examiner: Examiner, length: int, long: int) -> Iterator[Probe]:
    few = {0, 1, 2, 3, length // 3, length // 2, length // 2 + 1, length - 2} & set(range(length - 1))
    cuts = sorted(few)
    yield from _cut(changed_later(examiner, PLAIN), length, 0, 1, cuts)
    yield from _cut(changed_later(examiner, PLAIN), length, 1, 2, cuts[len(cuts) // 2 :: 3])
    yield from _masked(examiner, length, [length // 2])
    yield from _cut(changed_later(examiner, PLAIN), long, 2, 1, [long // 2] if long > length else [])


def _cuts(asked: Asked, length: int, long: int) -> Iterator[Probe]:
    examiner = asked.examiner
    plain, every = changed_later(examiner, PLAIN), range(length - 1)
    for base, batch in enumerate((1, 2, 3)):
        yield from _cut(plain, length, base, batch, every)
    some = every[:: max(1, len(every) // 8)]
    for settings in settings_of(asked)[1:]:
        yield from _cut(changed_later(examiner, settings), length, 0, 2, some)
    yield from _masked(examiner, length, some)
    for scale in (10.0, 100.0):
        yield from _cut(changed_later(examiner, Settings(scale=scale)), length, 0, 1, some)
    for time in sorted({min(time, long) for time in (3, 65, 130, LONG)} - {length}):
        # Near the end, and at three quarters, a half and a quarter of the way, off the borders of blocks.
        cuts = sorted({time - 2, 3 * time // 4 + 2, time // 2 + 1, time // 4 + 1})
        yield from _cut(plain, time, 2, 1, cuts)


def _cut(
    made: Probe, length: int, base: int, batch: int, cuts: Sequence[int], pads: int = 0
) -> Iterator[Probe]:
    for cut in cuts:
        sizes = {"length": length, "batch": batch, "cut": cut, "base": base, "pads": pads}
        yield replace(made, sizes=sizes, changed=tuple(range(cut + 1, length)))


def _masked(examiner: Examiner, length: int, cuts: Sequence[int]) -> Iterator[Probe]:
    """Masks: one of ones may count as none, so one with padding too; a subject that raises is not asked."""
    made = changed_later(examiner, PLAIN, masked=True)
    for pads in (0, 2) if examiner.subject.traits.mask else ():
        probes = list(_cut(made, length, 1, 2, [cut for cut in cuts if cut < length - 2], pads))
        if probes and _runs(examiner, probes[0]):
            yield from probes


def _runs(examiner: Examiner, probe: Probe) -> bool:
    """Whether the subject takes what a probe hands it."""
    comparison = probe.comparison()
    try:
        if comparison is not None:
            examiner.output(comparison.left)
    except SubjectError:
        return False
    return True


def reach(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.reach=N: change all that lies N or more back, in the prompt, in chunks and in decoding."""
    examiner, back = asked.examiner, int(asked.value or 1)
    traits = examiner.subject.traits
    length = max(examiner.length, back + 8 if traits.large else 2 * back + 8)
    if traits.max_length is not None:
        length = min(length, traits.max_length)
    probes = _earlier(asked, length, back)
    return settle("routing.reach", asked, probes, f"everything {back} or more back changed, {{n}} ways")


def _earlier(asked: Asked, length: int, back: int) -> Iterator[Probe]:
    examiner = asked.examiner
    traits = examiner.subject.traits

    def at(time: int, first: int, chunk: int, settings: Settings = PLAIN) -> Iterator[Probe]:
        last = time - back
        made = changed_earlier(examiner, back, settings)
        path = made.path if chunk == 0 else {**made.path, "cache": "on", "prompt": first, "chunk": chunk}
        for base, cut in enumerate(sorted({1, max(1, last // 2), last} if last > 0 else set())):
            sizes = {"length": time, "batch": 1 + base % 2, "cut": cut, "base": base,
                     "first": first, "chunk": chunk}  # fmt: skip
            yield replace(made, sizes=sizes, path=path, changed=tuple(range(cut)))

    yield from at(length, length, 0)
    ways = [(length - 4, 1), (length // 2, 5)]
    ways += [] if traits.large else [(1, 1), (length // 2, 1), (3, 3), (back + 3, 2)]
    for first, chunk in ways if traits.cache else ():
        yield from at(length, first, chunk)
    if traits.large:
        return
    for settings in settings_of(asked)[1:]:
        yield from at(length, length, 0, settings)
    long = longest(examiner, max(LONG, length))
    if long > length:
        yield from at(long, long, 0)
        yield from at(long, long - 4, 1) if traits.cache else ()


def changed_earlier(examiner: Examiner, back: int, settings: Settings) -> Probe:
    """Two runs that differ only before a cut: the outputs ``back`` or more after it ought to be equal."""

    def build(sizes: Sizes, changed: tuple[int, ...]) -> Comparison | None:
        time, cut, first, chunk = sizes["length"], sizes["cut"], sizes["first"], sizes["chunk"]
        places = [t for t in changed if t < cut]
        if not places or cut + back > time:
            return None
        draws = Draws(examiner, sizes["base"])
        ids = draws.grid(sizes["batch"], time)
        right = draws.other(ids, places, sizes["base"] + 1)
        # An output that sees `back` inputs, itself included, sees none before its own time - back + 1.
        pairs = same_places(sizes["batch"], range(cut + back - 1, time))
        return Comparison(decoded(ids, first, chunk, settings), decoded(right, first, chunk, settings), pairs)

    return Probe({}, build, settings.words(), {"batch": 1, "length": back + 1, "cut": 1, "first": 1})


def decoded(ids: Grid, first: int, chunk: int, settings: Settings = PLAIN) -> Run:
    """A batch read in one call (chunk 0), or a prompt of ``first`` and then chunks with the cache."""
    if chunk == 0:
        return full(ids, settings=settings)
    borders = range(first, len(ids[0]), chunk)
    return Run(tuple(Call(part) for part in pieces(ids, borders)), cached=True, settings=settings)


CLAIMS = (
    Claim(
        id="routing.causal",
        sentence="No output depends on a later input.",
        mathematics="""\
For every input x, cut c and change of x after c: y_i is the same for every i <= c.
A leak from j into i, i < j, is met by every cut c with i <= c < j; so where all cuts are tried, a leak of
any distance is met by as many cuts as it is long, and one that spans a cut is met by changing all that
lies after the cut at once. The inputs that carry it are then found by halving what was changed.""",
        instrument="agreement of two runs of one shape that differ after a cut",
        rule="refuted where an output up to the cut moves beyond rounding; holds where none does",
        scope="sampled: all cuts of a few inputs, some of long ones, on every path; fewer of a dear one",
        breaks="attention without a causal mask",
        source="Vaswani et al. 2017: the mask that keeps a position from attending to later ones",
        test=causal,
        specimen=decoder(),
        refuter=decoder(causal=False),
    ),
    Claim(
        id="routing.reach",
        sentence="An output depends on at most the N latest inputs, itself included.",
        mathematics="""\
For every input x and cut c, and change of x before c: y_i is the same for every i >= c + N - 1.
L layers that each see w inputs reach L(w - 1) + 1 of them. It is tried on the prompt and on what is
decoded through the cache, since a window that is cut in two places can be cut at two lengths.""",
        instrument="agreement of two runs of one shape that differ before a cut",
        rule="refuted where an output N or more later moves beyond rounding; holds where none does",
        scope="sampled: three cuts, in one call, in chunks and one by one, at up to 601 inputs",
        breaks="a layer that sees one input more than N",
        source="the definition of a window; its reach through L layers is claim routing.window-depth",
        test=reach,
        specimen=decoder(window=4, value=4),
        refuter=decoder(window=5, value=4),
    ),
)
