"""Claims about what an output may depend on: nothing later, and nothing too far back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from whyformer.claims.audit.probing import Asked, Draws, Probe, Sizes, full, pieces, settle
from whyformer.claims.audit.specimens import decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding
from whyformer.instruments.agreement import Call, Comparison, Examiner, Grid, Place, Run
from whyformer.subjects.subject import PLAIN, Settings

Pairs = tuple[tuple[Place, Place], ...]


def same_places(batch: int, times: Sequence[int], rows: Sequence[int] | None = None) -> Pairs:
    """The pairs that compare each output with itself, at these times of these rows."""
    return tuple(((b, t), (b, t)) for b in (range(batch) if rows is None else rows) for t in times)


def settings_of(asked: Asked) -> list[Settings]:
    """Every way in which the subject can be run, the plain one first; one of each kind."""
    traits = asked.examiner.subject.traits
    ways = [PLAIN]
    ways += [Settings(options=((name, not default),)) for name, default in traits.options]
    ways += [Settings(backend=backend) for backend in traits.backends]
    if traits.dropout:
        ways.append(Settings(train=True))
    return ways


def ordinary_length(examiner: Examiner, most: int | None = None) -> int:
    """The examiner's length, cut to what the subject takes."""
    limit = examiner.subject.traits.max_length
    length = examiner.length if limit is None else min(examiner.length, limit)
    return length if most is None else min(length, most)


def changed_later(examiner: Examiner, settings: Settings) -> Probe:
    """Two runs that differ only after a cut: the outputs up to the cut ought to be equal."""

    def build(sizes: Sizes, changed: tuple[int, ...]) -> Comparison | None:
        length, batch, cut = sizes["length"], sizes["batch"], sizes["cut"]
        places = [t for t in changed if cut < t < length]
        if not places or cut < 0:
            return None
        draws = Draws(examiner, sizes["base"])
        ids = draws.grid(batch, length)
        right = draws.other(ids, places, sizes["base"] + 1)
        times = range(cut + 1)
        return Comparison(
            full(ids, settings=settings), full(right, settings=settings), same_places(batch, times)
        )

    return Probe({}, build, settings.words(), {"batch": 1, "length": 2, "cut": 0})


def causal(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.causal: change everything after a cut, and look at every output up to it."""
    examiner = asked.examiner
    length = ordinary_length(examiner)

    def probes() -> Iterator[Probe]:
        def at(settings: Settings, base: int, batch: int, cuts: Sequence[int]) -> Iterator[Probe]:
            made = changed_later(examiner, settings)
            for cut in cuts:
                sizes = {"length": length, "batch": batch, "cut": cut, "base": base}
                yield replace(made, sizes=sizes, changed=tuple(range(cut + 1, length)))

        every = list(range(length - 1))
        if examiner.subject.traits.large:
            few = sorted({0, 1, 2, 3, length // 3, length // 2, length // 2 + 1, length - 2} & set(every))
            yield from at(PLAIN, 0, 1, few)
            yield from at(PLAIN, 1, 2, few[len(few) // 2 :: 3])
            return
        yield from at(PLAIN, 0, 1, every)
        for base, batch in ((1, 2), (2, 3)):
            yield from at(PLAIN, base, batch, every)
        some = every[:: max(1, len(every) // 8)]
        for settings in settings_of(asked)[1:]:
            yield from at(settings, 0, 2, some)
        for scale in (10.0, 100.0):
            yield from at(Settings(scale=scale), 0, 1, some)

    return settle(
        "routing.causal", asked, probes(), f"everything after a cut changed, {{n}} cuts at length {length}"
    )


def reach(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.reach=N: change all that lies N or more back, in the prompt, in chunks and in decoding."""
    examiner, back = asked.examiner, int(asked.value or 1)
    traits = examiner.subject.traits
    length = max(examiner.length, back + 8 if traits.large else 2 * back + 8)
    if traits.max_length is not None:
        length = min(length, traits.max_length)

    def build(sizes: Sizes, changed: tuple[int, ...]) -> Comparison | None:
        time, cut, chunk = sizes["length"], sizes["cut"], sizes["chunk"]
        places = [t for t in changed if t < cut]
        if not places or cut + back > time:
            return None
        draws = Draws(examiner, sizes["base"])
        ids = draws.grid(sizes["batch"], time)
        right = draws.other(ids, places, sizes["base"] + 1)
        # An output that sees `back` inputs, itself included, sees none before its own time - back + 1.
        times = range(cut + back - 1, time)
        first = sizes["first"]
        return Comparison(
            decoded(ids, first, chunk), decoded(right, first, chunk), same_places(sizes["batch"], times)
        )

    def probes() -> Iterator[Probe]:
        last = length - back
        cuts = sorted({1, max(1, last // 2), last} if last > 0 else set())
        ways = [(length, 0)]
        if traits.cache:
            ways += [(length - 4, 1), (length // 2, 5)] if traits.large else [
                (1, 1), (length // 2, 1), (length - 4, 1), (3, 3), (length // 2, 5), (back + 3, 2)
            ]  # fmt: skip
        least = {"batch": 1, "length": back + 1, "cut": 1, "first": 1}
        for first, chunk in ways:
            path = {} if chunk == 0 else {"cache": "on", "prompt": first, "chunk": chunk}
            for base, cut in enumerate(cuts):
                sizes = {"length": length, "batch": 1 + base % 2, "cut": cut, "base": base,
                         "first": first, "chunk": chunk}  # fmt: skip
                yield Probe(sizes, build, path, least, tuple(range(cut)))

    return settle("routing.reach", asked, probes(), f"everything {back} or more back changed, {{n}} ways")


def decoded(ids: Grid, first: int, chunk: int) -> Run:
    """A batch read in one call (chunk 0), or a prompt of ``first`` and then chunks with the cache."""
    if chunk == 0:
        return full(ids)
    borders = range(first, len(ids[0]), chunk)
    return Run(tuple(Call(part) for part in pieces(ids, borders)), cached=True)


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
        scope="sampled: all cuts of a few inputs, every way of running the subject; some of a dear one",
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
        scope="sampled: three cuts, in one call, in chunks and one by one",
        breaks="a layer that sees one input more than N",
        source="the definition of a window; its reach through L layers is claim routing.window-depth",
        test=reach,
        specimen=decoder(window=4, value=4),
        refuter=decoder(window=5, value=4),
    ),
)
