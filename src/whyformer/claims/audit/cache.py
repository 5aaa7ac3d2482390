"""Claims that what is read piece by piece, through a cache, comes out as what is read at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from whyformer.claims.audit.consumed import apart, longest, sees_earlier, uses_cache, without
from whyformer.claims.audit.dependency import ordinary_length, same_places
from whyformer.claims.audit.probing import Asked, Draws, Probe, Sizes, pieces, settle
from whyformer.claims.audit.specimens import Decoder, decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding
from whyformer.instruments.agreement import Call, Comparison, Grid, Run

LONG = 64
"""How far small subjects are decoded, so that windows, rings and eviction are passed."""
VERY_LONG = 160
"""The same where only the last few inputs come one by one."""


def reading(ids: Grid, borders: Iterable[int], *, ones: bool, given: bool, cached: bool = True) -> Run:
    """A batch read in pieces, each with a mask of ones and counted positions where asked for."""
    calls, seen = [], 0
    for part in pieces(ids, borders):
        end = seen + len(part[0])
        mask = ((1,) * end,) * len(part) if ones else None
        positions = (tuple(range(seen, end)),) * len(part) if given else None
        calls.append(Call(part, mask, positions))
        seen = end
    return Run(tuple(calls), cached=cached)


def cache(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.cache: single steps after prompts of several lengths against the whole in one call."""
    return apart("routing.cache", asked, lambda: _rested("routing.cache", asked, _steps))


def chunks(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.chunks: a prompt read in chunks of several sizes against the same prompt in one call."""
    return apart("routing.chunks", asked, lambda: _rested("routing.chunks", asked, _chunks))


def _rested(claim: str, asked: Asked, probes: Callable[[Asked], Iterator[Probe]]) -> Finding:
    """The claim's finding, once it is shown that the cache is used where there is anything to keep."""
    examiner = asked.examiner
    if not examiner.subject.traits.cache:
        return without(claim, asked, "it has no cache to hand back")
    if not uses_cache(examiner) and sees_earlier(examiner):
        return without(
            claim, asked, "the cache that it is handed changes nothing, though earlier inputs matter"
        )
    holds = {
        "routing.cache": "prompts and single steps against one call, {n} ways",
        "routing.chunks": "prompts in chunks against one call, {n} ways",
    }
    return settle(claim, asked, probes(asked), holds[claim])


def _given(asked: Asked) -> list[tuple[bool, bool]]:
    """Whether a mask of ones and counted positions are handed in: each way that the subject takes."""
    traits = asked.examiner.subject.traits
    ways = [(False, False)] + ([(True, False)] if traits.mask else [])
    return ways + ([(traits.mask, True), (False, True)][: 1 + traits.mask] if traits.positions else [])


def _path(ones: bool, given: bool, **rest: Any) -> dict[str, Any]:
    return {
        "mask": "ones" if ones else "none",
        "positions": "given" if given else "left to the model",
        "cache": "on",
        **rest,
    }


def _steps(asked: Asked) -> Iterator[Probe]:
    examiner = asked.examiner

    def build(sizes: Sizes, _changed: tuple[int, ...]) -> Comparison | None:
        length, batch, first = sizes["length"], sizes["batch"], sizes["first"]
        if not 1 <= first <= length:
            return None
        ids = Draws(examiner, sizes["base"]).grid(batch, length)
        how = {"ones": bool(sizes["ones"]), "given": bool(sizes["given"])}
        return Comparison(
            reading(ids, range(first, length), **how),
            reading(ids, (), cached=False, **how),
            same_places(batch, range(length)),
        )

    def probe(batch: int, first: int, length: int, ones: bool, given: bool, base: int) -> Probe:
        sizes = {"length": length, "batch": batch, "first": first, "ones": int(ones),
                 "given": int(given), "base": base}  # fmt: skip
        return Probe(sizes, build, _path(ones, given), {"batch": 1, "first": 1, "length": 1})

    ways = _given(asked)
    if examiner.subject.traits.large:
        length = ordinary_length(examiner)
        yield probe(1, length, length, False, False, 0)
        yield probe(1, length - 4, length, False, False, 0)
        for base, (ones, given) in enumerate(ways):
            yield probe(1 + base % 2, 1 + 4 * base, min(length, 8 + 4 * base), ones, given, base)
        return
    long, very = longest(examiner, LONG), longest(examiner, VERY_LONG)
    middle = [(1, min(12, long)), (2, min(10, long)), (long // 2, min(long // 2 + 12, long))]
    for base, (ones, given) in enumerate(ways):
        for batch, (first, length) in ((b, m) for b in (1, 3) for m in middle):
            yield probe(batch, first, length, ones, given, base)
        yield probe(2, long, long, ones, given, base)
        yield probe(1 + 2 * (base % 2), 1, long, ones, given, base + 1)
        yield probe(1, max(1, long - 6), long, ones, given, 2)
        yield probe(1, max(1, very - 6), very, ones, given, 2)


def _borders(sizes: Sizes) -> list[int]:
    """Where a prompt is cut into pieces of two or more; empty where the sizes do not fit."""
    first, chunk, more, length = sizes["first"], sizes["chunk"], sizes["more"], sizes["length"]
    if first < 2 or chunk < 2 or chunk + more < 2:
        return []
    cuts, place = [], first
    while place < length:
        cuts.append(place)
        place += chunk + more * (len(cuts) % 2)
    return cuts[:-1] if cuts and length - cuts[-1] == 1 else cuts


def _chunks(asked: Asked) -> Iterator[Probe]:
    """Chunks of a prompt against one call, and the steps that follow against those after the whole prompt."""
    examiner = asked.examiner

    def build(sizes: Sizes, _changed: tuple[int, ...]) -> Comparison | None:
        length, batch, steps = sizes["length"], sizes["batch"], sizes["steps"]
        cuts = _borders(sizes)
        if not cuts:
            return None
        ids = Draws(examiner, sizes["base"]).grid(batch, length + steps)
        how = {"ones": bool(sizes["ones"]), "given": bool(sizes["given"])}
        after = range(length, length + steps)
        whole = reading(ids, after, cached=steps > 0, **how)
        times = after if steps else range(length)
        return Comparison(reading(ids, (*cuts, *after), **how), whole, same_places(batch, times))

    def probe(
        way: tuple[bool, bool], base: int, batch: int, *, first: int, chunk: int, length: int,
        more: int = 0, steps: int = 0,
    ) -> Probe:  # fmt: skip
        ones, given = way
        sizes = {"length": length, "batch": batch, "first": first, "chunk": chunk, "more": more,
                 "steps": steps, "ones": int(ones), "given": int(given), "base": base}  # fmt: skip
        path = _path(ones, given, compared="the steps that follow" if steps else "the prompt")
        least = {"batch": 1, "steps": min(1, steps), "more": 0, "first": 2, "chunk": 2, "length": 4}
        return Probe(sizes, build, path, least)

    ways = _given(asked)
    if examiner.subject.traits.large:
        length = ordinary_length(examiner)
        yield probe(ways[0], 0, 1, first=max(2, length // 2), chunk=7, length=length)
        for base, way in enumerate(ways):
            length = min(length, 16)
            yield probe(way, base, 1 + base % 2, first=max(2, 5 - base), chunk=3 + base, length=length)
        yield probe(ways[0], 2, 1, first=4, chunk=3, length=length - 2, steps=2)
        return
    long, very = longest(examiner, LONG) - 4, longest(examiner, VERY_LONG) - 4
    cuts = [(2, 2, 0), (3, 3, 0), (5, 5, 0), (7, 7, 0), (3, 4, 2), (max(2, long - 13), 5, -2)]
    for base, (way, batch) in enumerate((w, b) for w in ways for b in (1, 2)):
        for first, chunk, more in cuts:
            length = min(long, 24) if base and first < 8 else long
            yield probe(way, base % 3, batch, first=first, chunk=chunk, length=length, more=more)
        yield probe(way, base % 3, batch, first=3, chunk=4, length=min(long, 11))
        yield probe(way, base % 3, batch, first=5, chunk=4, length=min(long, 22), steps=3)
        yield probe(way, 2, batch, first=max(2, long - 9), chunk=3, length=long, steps=3)
        if batch == 1:
            yield probe(way, 2, 1, first=max(2, very - 50), chunk=23, length=very)


class _FirstForgotten(Decoder):
    """A single step on a cache does not see the first input."""

    def allowed(self, seen: int, time: int) -> Tensor:
        ok = super().allowed(seen, time)
        return ok & (torch.arange(seen + time) > 0) if seen and time == 1 else ok


class _ChunkUnmasked(Decoder):
    """Several inputs at once on a cache see each other, the later ones too."""

    def allowed(self, seen: int, time: int) -> Tensor:
        ok = super().allowed(seen, time)
        return torch.ones_like(ok) if seen and time > 1 else ok


CLAIMS = (
    Claim(
        id="routing.cache",
        sentence="Token-by-token decoding equals the full forward, with an empty and a filled cache.",
        mathematics="""\
Let f read x_0..x_{n-1} in one call, and let g read x_0..x_{k-1}, then one input a call with the cache that
the call before returned. For every k from 1 to n: g gives the outputs of f. What a step adds to the cache
and where it looks depend on what the cache holds, so prompts of one, of two, of half and of nearly all the
inputs are tried, up to lengths that pass windows, rings and eviction; k = n asks what use_cache alone does.
A cache must first be shown to change a step, where earlier inputs matter at all.""",
        instrument="agreement of a run of several calls, cache handed on, with one call",
        rule="refuted where an output differs by more than rounding explains; holds where none does; "
        "inapplicable where the cache changes nothing",
        scope=f"sampled: lengths up to {LONG}, and the last inputs of {VERY_LONG}; fewer of a dear subject; "
        "one row and three, a mask of ones and none, positions left and given",
        breaks="a step that misses a key, a position counted twice, a ring that is overwritten",
        source="the definition of a cache",
        test=cache,
        specimen=decoder(),
        refuter=decoder(_FirstForgotten),
    ),
    Claim(
        id="routing.chunks",
        sentence="Chunked prefill equals the full forward.",
        mathematics="""\
Let g read x in chunks of two inputs or more, the cache handed on. For every cut of x: g gives the outputs of
the one call f(x); and the steps that follow a prompt read in chunks are those that follow it read whole.
Chunks of one size and of two in turn are tried, and a first chunk that is nearly all. Single steps are left
to routing.cache: both sides of the second half take them alike, so that only the chunks are judged.""",
        instrument="agreement of a run of several calls, cache handed on, with one call",
        rule="refuted where an output differs by more than rounding explains; holds where none does; "
        "inapplicable where the cache changes nothing",
        scope=f"sampled: chunks of 2 to 23 inputs, lengths up to {VERY_LONG}; fewer of a dear subject; "
        "one row and two, a mask of ones and none, positions left and given",
        breaks="a chunk on a filled cache that is not masked",
        source="the definition of a cache",
        test=chunks,
        specimen=decoder(),
        refuter=decoder(_ChunkUnmasked),
    ),
)
