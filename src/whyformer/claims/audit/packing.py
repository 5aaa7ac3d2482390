"""The claim that documents packed in one row do not see each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whyformer.claims.audit.consumed import apart, longest, uses_positions, without
from whyformer.claims.audit.dependency import ordinary_length, same_places, settings_of
from whyformer.claims.audit.probing import Asked, Draws, Probe, Sizes, settle
from whyformer.claims.audit.specimens import Decoder, decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding, Verdict
from whyformer.instruments.agreement import Call, Comparison, Examiner, Grid, Run
from whyformer.subjects.subject import PLAIN, Settings

ID = "routing.packing"
LONG = 136
"""The longest packed row of a subject that is not dear."""
Way = tuple[bool, bool, Settings]
"""Whether a mask of ones is given, whether a cache is asked for, and how the subject is run."""


def packed(ids: Grid, lengths: tuple[int, ...], way: Way) -> Run:
    """Rows that each hold documents of these lengths, told by positions that start anew at 0."""
    ones, cached, settings = way
    positions = tuple(t for n in lengths for t in range(n))
    mask = ((1,) * len(positions),) * len(ids) if ones else None
    return Run((Call(ids, mask, (positions,) * len(ids)),), cached, settings)


def packing(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.packing: one document changed, and each document against itself alone, on every call path."""
    return apart(ID, asked, lambda: _packing(asked))


def _packing(asked: Asked) -> Finding:
    traits = asked.examiner.subject.traits
    if not traits.positions:
        return without(ID, asked, "it takes no positions, so nothing tells the documents")
    if not uses_positions(asked.examiner):
        return without(ID, asked, "the positions that it is given change nothing")
    ways = [
        (ones, cached, PLAIN)
        for cached in ((False, True) if traits.cache else (False,))
        for ones in ((False, True) if traits.mask else (False,))
    ]
    if not traits.large:
        ways += [(False, False, s) for s in settings_of(asked)[1:] if not s.train]
    holds = "each of two or three documents changed, and each against itself alone, {n} ways"
    finding = settle(ID, asked, (p for way in ways for p in _probes(asked, way)), holds)
    if finding.verdict is not Verdict.REFUTED:
        return finding
    apart_on = [w for w in ways if settle(ID, asked, _probes(asked, w), "").verdict is Verdict.HOLDS]
    if apart_on:
        kept = "; with ".join(", ".join(f"{k} {v}" for k, v in _path(way).items()) for way in apart_on)
        return finding.but(reason=f"{finding.reason}; documents are kept apart with {kept}")
    return finding


def _path(way: Way) -> dict[str, Any]:
    ones, cached, settings = way
    return {"mask": "ones" if ones else "none", "cache": "on" if cached else "off", **settings.words()}


def _splits(examiner: Examiner, length: int, way: Way) -> list[tuple[int, int, int]]:
    """The lengths of two documents or three; on the plain way two long ones too, past chunks of 16 to 64."""
    splits = [(length // 2, length - length // 2, 0), (max(1, length // 3), max(1, length // 4), 3)]
    if examiner.subject.traits.large:
        return splits[:1]
    long = longest(examiner, LONG) if way[2] == PLAIN else 0
    return splits + ([(long // 2 + 2, long - long // 2 - 2, 0)] if long > 2 * length else [])


def _probes(asked: Asked, way: Way) -> Iterator[Probe]:
    examiner = asked.examiner

    def documents(sizes: Sizes) -> tuple[int, ...]:
        return tuple(n for n in (sizes["first"], sizes["second"], sizes["third"]) if n)

    def other(sizes: Sizes, _changed: tuple[int, ...]) -> Comparison | None:
        """Another document ``at`` the place named, and the outputs of all the rest."""
        lengths, at = documents(sizes), sizes["at"]
        if at >= len(lengths) or len(lengths) < 2:
            return None
        start, total = sum(lengths[:at]), sum(lengths)
        inside = range(start, start + lengths[at])
        draws = Draws(examiner, sizes["base"])
        ids = draws.grid(sizes["batch"], total)
        times = [t for t in range(total) if t not in inside]
        changed = draws.other(ids, inside, sizes["base"] + 1)
        return Comparison(
            packed(ids, lengths, way), packed(changed, lengths, way), same_places(sizes["batch"], times)
        )

    def alone(sizes: Sizes, _changed: tuple[int, ...]) -> Comparison | None:
        """The document ``at`` the place named against itself alone."""
        lengths, at = documents(sizes), sizes["at"]
        if at >= len(lengths):
            return None
        start, n = sum(lengths[:at]), lengths[at]
        ids = Draws(examiner, sizes["base"]).grid(sizes["batch"], sum(lengths))
        own = tuple(row[start : start + n] for row in ids)
        pairs = tuple(((b, start + t), (b, t)) for b in range(sizes["batch"]) for t in range(n))
        return Comparison(packed(ids, lengths, way), packed(own, (n,), way), pairs)

    large = examiner.subject.traits.large
    length = ordinary_length(examiner, 16 if large else 24)
    least = {"batch": 1, "third": 0, "first": 1, "second": 1}
    for base, (first, second, third) in enumerate(_splits(examiner, length, way)):
        for batch in (1,) if large else (1, 2):
            sizes = {"first": first, "second": second, "third": third, "batch": batch, "base": base + 1}
            places = range(3 if third else 2)
            for at in places[:1] if large else places:
                yield Probe({**sizes, "at": at}, other, {**_path(way), "document": "another beside"}, least)
            for at in places[1:] if large else places:
                yield Probe({**sizes, "at": at}, alone, {**_path(way), "document": "alone"}, least)


class _Isolating(Decoder):
    """Keeps apart the documents that restarting positions tell, within one call."""

    documents: Tensor | None = None

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        self.documents = None
        if position_ids is not None and past_key_values is None:
            self.documents = (position_ids == 0).cumsum(-1)
        return super().forward(x, attention_mask, position_ids, past_key_values, use_cache)

    def allowed(self, seen: int, time: int) -> Tensor:
        ok = super().allowed(seen, time)
        if self.documents is None:
            return ok
        return ok & (self.documents[:, None, :, None] == self.documents[:, None, None, :])


CLAIMS = (
    Claim(
        id=ID,
        sentence="Documents packed in a row do not see each other.",
        mathematics="""\
Documents d_1, d_2, ... stand in one row, told by positions that start anew at 0. For every i: the outputs at
d_i are those of f(d_i) alone, and so are the same whatever the others hold. It is tried without a mask and
with a mask of ones, with and without a cache asked for, and on every other path of the subject: where packing
is inferred from positions, one of these may silently switch it off. Positions must first be shown to change
something.""",
        instrument="agreement of a document's outputs with those of the document alone, and beside others",
        rule="refuted where an output moves beyond rounding on any call path; the reason names the paths "
        "that keep documents apart; holds where none does; inapplicable where positions change nothing",
        scope="sampled: two and three documents, one row and two, every call path",
        breaks="positions that start anew under a plain causal mask",
        source="the definition of a block-diagonal mask",
        test=packing,
        specimen=decoder(_Isolating),
        refuter=decoder(),
    ),
)
