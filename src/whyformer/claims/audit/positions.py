"""Claims about the positions that a subject is given: shifted together, left out, and far away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from whyformer.claims.audit.consumed import agrees, apart, sees_later, uses_mask, uses_positions, without
from whyformer.claims.audit.dependency import ordinary_length, same_places
from whyformer.claims.audit.probing import CLEAR, Asked, Draws, Probe, Sizes, pieces, settle
from whyformer.claims.audit.resolution import resolution
from whyformer.claims.audit.specimens import Decoder, decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding, Verdict
from whyformer.instruments.agreement import Call, Comparison, Examiner, Grid, Run
from whyformer.subjects.subject import SubjectError

SHIFTS = (1, 7, 64, 1000)
"""How far all positions are moved together, as far as the subject takes them."""
_DEAR = 32
"""The longest input of a dear subject here: positions need no long content."""

Allowance = Callable[[Comparison], float]


def shift(asked: Asked, generator: torch.Generator) -> Finding:
    """order.shift: the same inputs at positions 0, 1, 2, ... and at all of them moved alike."""
    return apart("order.shift", asked, lambda: _unused("order.shift", asked) or _shifted(asked))


def positions(asked: Asked, generator: torch.Generator) -> Finding:
    """order.positions: positions left out, and the same positions given."""
    return apart("order.positions", asked, lambda: _unused("order.positions", asked) or _given(asked))


def _unused(claim: str, asked: Asked) -> Finding | None:
    """The finding on a subject without positions, or one that swallows them."""
    examiner = asked.examiner
    if not examiner.subject.traits.positions:
        return without(claim, asked, "it takes no positions")
    if not uses_positions(examiner):
        return without(
            claim, asked, "positions are swallowed: neighbouring ones exchanged, no output changes"
        )
    return None


def float32_angles(examiner: Examiner, length: int) -> tuple[Allowance, str]:
    """What positions explain that were turned into angles in float32, before the call or within.

    An angle p·f that is rounded to float32 is off by up to p·f·u, u = 2⁻²⁴: as much as if the position were
    off by p·u. Moving each position by 1, its neighbour's way, moves the outputs by what is measured here;
    so p·u on each of the two sides moves them by about 2·p·u of that. Four times as much is allowed, since
    another input may respond more than the one that is measured. A table of such angles stays as coarse when
    the subject is moved to float64, and no operation of the call shows it.
    """
    ids = Draws(examiner, 2).grid(1, length)
    counted = tuple(range(length))
    swapped = tuple(t ^ 1 if t ^ 1 < length else t for t in counted)
    pairs = same_places(1, counted)
    moved = examiner.deviation(Comparison(_at(ids, (counted,)), _at(ids, (swapped,)), pairs)).size

    def allowance(comparison: Comparison) -> float:
        calls = (*comparison.left.calls, *comparison.right.calls)
        most = max(max(map(max, call.positions)) for call in calls if call.positions)
        return 4 * moved * (1 + most) * torch.finfo(torch.float32).eps

    return allowance, "angles that were rounded to float32"


def _at(ids: Grid, at: Grid, mask: bool = False) -> Run:
    return Run((Call(ids, tuple((1,) * len(row) for row in ids) if mask else None, at),))


def _counted(batch: int, length: int, start: int = 0) -> Grid:
    return (tuple(range(start, start + length)),) * batch


def _shifted(asked: Asked) -> Finding:
    examiner = asked.examiner
    traits = examiner.subject.traits
    length, shifts = _accepted(examiner, ordinary_length(examiner, _DEAR if traits.large else None))
    if not shifts:
        return without("order.shift", asked, "it accepts no positions beyond those of its input")
    allowance, allowed = float32_angles(examiner, length)

    def build(sizes: Sizes, changed: tuple[int, ...]) -> Comparison | None:
        batch, time, mask = sizes["batch"], sizes["length"], bool(sizes["mask"])
        ids = Draws(examiner, sizes["base"]).grid(batch, time)
        left = _at(ids, _counted(batch, time), mask)
        return Comparison(
            left, _at(ids, _counted(batch, time, sizes["shift"]), mask), same_places(batch, range(time))
        )

    def probes() -> Iterator[Probe]:
        masks = (0, 1) if traits.mask else (0,)
        for by in shifts:
            for base, batch, mask in ((0, 1, 0), (2, 3, masks[-1]), (1, 2, 0), (4, 1, masks[-1])):
                sizes = {"length": length, "batch": batch, "base": base, "mask": mask, "shift": by}
                path = {"mask": "ones" if mask else "none"}
                yield Probe(sizes, build, path, {"batch": 1, "length": 1, "shift": 1})
                if traits.large and base:
                    break

    told = f"all positions moved by {', '.join(map(str, shifts))} at length {length}, {{n}} ways"
    found = settle("order.shift", asked, probes(), told, allowance=allowance, allowed=allowed)
    if found.verdict is Verdict.REFUTED and found.counterexample and found.bound is not None:
        sizes = found.counterexample["sizes"]
        if _by_length(examiner, sizes, CLEAR * found.bound):
            return found.but(
                verdict=Verdict.INCONCLUSIVE,
                counterexample=None,
                reason=f"length-dependent: moved by {sizes['shift']}, outputs change, and they do not while "
                f"another input holds the longest position; angles that scale with the length do so",
            )
        return _in_own_precision(asked, found, sizes["shift"] + sizes["length"], length)
    return found


def _accepted(examiner: Examiner, length: int) -> tuple[int, list[int]]:
    """The shifts that the subject takes, and the length at which it does: halved where it takes none."""
    limit = examiner.subject.traits.max_length
    while length > 0:
        found: list[int] = []
        for wanted in SHIFTS:
            by = wanted if limit is None else min(wanted, limit - length)
            while by > max([0, *found]):
                try:
                    examiner.output(_at(Draws(examiner, 2).grid(1, length), _counted(1, length, by)))
                except SubjectError:
                    by //= 2
                else:
                    found.append(by)
                    break
        if found:
            return length, found
        length //= 2
    return 0, []


def _by_length(examiner: Examiner, sizes: Sizes, bound: float) -> bool:
    """Whether the shift changes nothing once the longest position of the call is held fast.

    It is held by a second row, or by a last input of the same row, which a causal subject does not see.
    """
    time, by, mask = sizes["length"], sizes["shift"], bool(sizes["mask"])
    row, other = Draws(examiner, sizes["base"]).grid(2, time + 1)
    near, far = tuple(range(time)), tuple(range(by, by + time))
    rows = (row[:time], other[:time])
    held = (
        (_at(rows, (near, far), mask), _at(rows, (far, far), mask)),
        (_at((row,), ((*near, by + time),), mask), _at((row,), ((*far, by + time),), mask)),
    )
    for left, right in held:
        try:
            if examiner.deviation(Comparison(left, right, same_places(1, range(time)))).size <= bound:
                return True
        except SubjectError:
            continue
    return False


def _in_own_precision(asked: Asked, found: Finding, most: int, length: int) -> Finding:
    """The refutation, unless tables kept in the subject's own low precision explain it."""
    eps = torch.finfo(asked.examiner.subject.native).eps
    single = torch.finfo(torch.float32).eps
    if eps <= single or not isinstance(found.measured, float):
        return found
    allowance, _ = float32_angles(asked.examiner, length)
    told = Comparison.from_data((found.counterexample or {})["comparison"])
    explained = allowance(told) * eps / single
    if found.measured > explained:
        return found
    return found.but(
        verdict=Verdict.INCONCLUSIVE,
        bound=explained,
        counterexample=None,
        reason=f"a difference of {found.measured:.2g} at positions below {most}, and angles that were "
        f"rounded to the subject's own precision explain {explained:.2g}",
    )


def _given(asked: Asked) -> Finding:
    examiner = asked.examiner
    traits = examiner.subject.traits
    length = ordinary_length(examiner, _DEAR if traits.large else None)
    plain = {"length": length, "batch": 1, "base": 2, "mask": 0, "pads": 0, "hole": 0,
             "first": length, "chunk": 0}  # fmt: skip
    origin = next((o for o in (0, 1, traits.pad + 1) if _fits(examiner, _both(examiner, plain, (), o))), 0)

    def build(sizes: Sizes, changed: tuple[int, ...]) -> Comparison | None:
        return _both(examiner, sizes, changed, origin)

    allowance, allowed = float32_angles(examiner, length)
    # Whatever sees both ways is padded on the right, and may count columns.
    left = traits.mask and traits.left_padding and length > 2 and uses_mask(examiner)
    left = left and (traits.cache or not sees_later(examiner))

    def probes() -> Iterator[Probe]:
        least = {"batch": 1, "length": 1, "first": 1, "pads": 1 if left else 0}
        for sizes, changed in _ways(examiner, plain, left):
            path: dict[str, Any] = {"positions": "left out, and given"}
            path["mask"] = "left padding" if sizes["pads"] else "ones" if sizes["mask"] else "none"
            if sizes["chunk"]:
                path |= {"cache": "on", "chunk": sizes["chunk"]}
            yield Probe(sizes, build, path, least if sizes["pads"] else {**least, "pads": 0}, changed)

    counted = "" if origin == 0 else f", counted from {origin} as it counts"
    told = f"positions left out, and given{counted}, {{n}} ways: {'padded on the left, ' if left else ''}"
    told += "with the cache, and in one call" if traits.cache else "in one call"
    found = settle("order.positions", asked, probes(), told, allowance=allowance, allowed=allowed)
    if found.verdict is Verdict.HOLDS:
        ways = {"under a mask of ones": {"mask": 1}} if traits.mask else {}
        if traits.cache and length > 4:
            ways["in steps with the cache"] = {"first": length - 4, "chunk": 1}
        for words, way in ways.items():
            if _swallowed(examiner, build({**plain, **way}, ())):
                why = f"positions are used, but swallowed {words}, where to give them says nothing"
                return found.but(verdict=Verdict.INCONCLUSIVE, strength=None, reason=why)
    return found


def _swallowed(examiner: Examiner, comparison: Comparison | None) -> bool:
    """Whether neighbouring positions of the later calls, or of the only one, can be exchanged unnoticed."""
    if comparison is None:
        return False
    run = comparison.right
    first, *later = run.calls
    kept, moved = ((first,), later) if later else ((), [first])
    at = [place for call in moved for place in (call.positions or ((),))[0]]
    swapped = iter(at[t ^ 1 if t ^ 1 < len(at) else t] for t in range(len(at)))
    calls = tuple(Call(c.ids, c.mask, (tuple(next(swapped) for _ in c.ids[0]),)) for c in moved)
    other = Run((*kept, *calls), run.cached, run.settings)
    return examiner.deviation(Comparison(run, other, comparison.pairs)).size <= examiner.plain_bound()


def _fits(examiner: Examiner, comparison: Comparison | None) -> bool:
    try:
        return comparison is not None and agrees(examiner, comparison)
    except SubjectError:
        return False


def _both(examiner: Examiner, sizes: Sizes, changed: tuple[int, ...], origin: int) -> Comparison | None:
    """A run without positions, and the same with them; compared at its real inputs."""
    time, batch, most = sizes["length"], sizes["batch"], sizes["pads"]
    if most >= time:
        return None
    pad = examiner.subject.traits.pad
    ids, mask, at, pairs = [], [], [], []
    for b, drawn in enumerate(Draws(examiner, sizes["base"]).grid(batch, time)):
        pads = most if batch == 1 else most * (batch - 1 - b) // (batch - 1)
        # Only base 0 and the holes hold the pad's id as content.
        clean = tuple(i + 1 if sizes["base"] and i == pad else i for i in drawn)
        real = (sizes["hole"] if t in changed else clean[t - pads] for t in range(pads, time))
        ids.append((pad,) * pads + tuple(real))
        mask.append((0,) * pads + (1,) * (time - pads))
        at.append((origin,) * pads + tuple(range(origin, origin + time - pads)))
        pairs += [((b, t), (b, t)) for t in range(pads, time)]
    borders = list(range(sizes["first"], time, sizes["chunk"])) if sizes["chunk"] else []
    told = bool(sizes["mask"] or most)
    without_, with_, seen = [], [], 0
    for part, where in zip(pieces(tuple(ids), borders), pieces(tuple(at), borders), strict=True):
        seen += len(part[0])
        given = tuple(row[:seen] for row in mask) if told else None
        without_.append(Call(part, given))
        with_.append(Call(part, given, where))
    cached = bool(sizes["chunk"])
    return Comparison(Run(tuple(without_), cached), Run(tuple(with_), cached), tuple(pairs))


Way = tuple[dict[str, int], tuple[int, ...]]
"""The sizes to try, and the places that hold the id named by ``hole``."""


def _ways(examiner: Examiner, plain: dict[str, int], left: bool) -> Iterator[Way]:
    """In one call: several batches, ids that a model may take for padding, and padding on the left."""
    traits, length = examiner.subject.traits, plain["length"]
    batches: tuple[tuple[int, int], ...] = ((1, 0), (3, 0), (length, 2), (2, 4))
    padded: tuple[int, ...] = (1, 3, 5)
    holes = dict.fromkeys([traits.pad, *traits.special])
    if traits.large:
        batches, padded, holes = ((1, 2),), (2,), {traits.pad: None}
    some = tuple(range(2, length, 5))
    for mask in (0, 1) if traits.mask else (0,):
        for batch, base in batches:
            yield {**plain, "batch": batch, "base": base, "mask": mask}, ()
        for hole in holes:
            yield {**plain, "batch": 2, "hole": hole, "mask": mask}, some
    for batch in padded if left else ():
        way = {**plain, "batch": batch, "mask": 1, "pads": max(1, length // 4)}
        yield way, ()
        if not traits.large:
            yield {**way, "hole": traits.pad}, some
    if traits.cache:
        yield from _cached_ways(examiner, plain, left)


def _cached_ways(examiner: Examiner, plain: dict[str, int], left: bool) -> Iterator[Way]:
    """A prompt, and steps or chunks after it; the one that asks the most first."""
    traits, length = examiner.subject.traits, plain["length"]
    for first, chunk in ((length - 4, 1), (1, 1), (3, 3), (length // 2, 5)):
        if not 1 <= first < length:
            continue
        ways = [{"batch": 2, "mask": int(traits.mask)}, {"batch": 1, "mask": 0}]
        if left:
            ways = [{"batch": 2, "mask": 1, "pads": min(max(1, length // 4), first)}, *ways]
        for way in ways[:1] if traits.large else ways:
            yield {**plain, **way, "first": first, "chunk": chunk}, ()
        if traits.large:
            return


class Growing(Decoder):
    """Its queries and keys grow with their positions."""

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys turned, and made longer, by their positions."""
        return super().turn(x, positions) * (1 + positions / 64)[:, None, :, None]


class Restarting(Decoder):
    """Counts from 0 again in every call, whatever its cache holds."""

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        """The decoder's logits at positions that start anew."""
        if position_ids is None:
            position_ids = torch.arange(x.shape[1]).expand(x.shape)
        return super().forward(x, attention_mask, position_ids, past_key_values, use_cache)


class Halved(Decoder):
    """Its positions pass through bfloat16, which holds 8 bits of them."""

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys turned by rounded positions."""
        return super().turn(x, positions.to(torch.bfloat16).to(torch.int64))


CLAIMS = (
    Claim(
        id="order.shift",
        sentence="Adding a constant to all positions changes nothing.",
        mathematics="""\
Let f(x, p) read inputs x at positions p. The claim is f(x, p + c) = f(x, p) for every constant c: only the
distances p_i − p_j count, as with rotary positions, ⟨R(p_i)q, R(p_j)k⟩ = ⟨q, R(p_j − p_i)k⟩, and with biases
of the distance. Angles p·f rounded to float32 are off by up to p·f·2⁻²⁴, which grows with p: as much is
allowed. Where angles are scaled by the longest position of a call, a shift changes that scale; with the
longest position held fast, what is left is judged as length-dependent and not as a fault.""",
        instrument="agreement of two runs whose positions differ by a constant",
        rule="refuted where they differ by more than rounding explains, unless the length alone explains it",
        scope="sampled: shifts by 1, 7, 64 and 1,000, as far as the subject takes them, on several inputs",
        breaks="queries and keys that grow with their positions; a table of learned positions",
        source="Su et al. 2021, RoFormer, for rotary positions; the definition otherwise",
        test=shift,
        specimen=decoder(),
        refuter=decoder(Growing),
    ),
    Claim(
        id="order.positions",
        sentence="Positions left to the model equal the same positions given.",
        mathematics="""\
Let p(m) be the running sum of the mask m less one: 0, 1, 2, ... over the real inputs, whatever their ids, and
over what a cache holds as well. The claim is f(x, m) = f(x, m, p(m)) at every real input: in one call, under
padding on the left, and call by call with the cache. A subject that counts from another number than 0 is
given positions from there.""",
        instrument="agreement of a run without positions and one with them",
        rule="refuted where they differ beyond rounding; inapplicable where positions are swallowed",
        scope="sampled: batches of 1 and more, unequal padding, prompts and chunks of several sizes",
        breaks="positions that start from 0 again in every call",
        source="the convention of causal language models in transformers",
        test=positions,
        specimen=decoder(),
        refuter=decoder(Restarting),
    ),
    Claim(
        id="order.resolution",
        sentence="Neighbouring positions stay distinguishable up to N, in the model's dtype.",
        mathematics="""\
For every p < N − 1: with one input at p, or the same one at p + 1, and all else alike, some output differs in
at least one bit. A number of b significant bits holds every whole number up to 2^b and not 2^b + 1, so
positions that pass through bfloat16 (b = 8) collide from 256 on, in float16 (b = 11) from 2,048 on.
The input is moved amid its nearest neighbours, as a query and as a key, and alone far from the rest, so that
a window, or a bias that fades with the distance, hides nothing.""",
        instrument="bitwise comparison of two runs in which one input's position differs by one",
        rule="refuted at the smallest position, by bisection, where no draw differs; holds where all do",
        scope="sampled: powers of two, their neighbours, the last positions and random ones, several draws",
        breaks="positions that pass through bfloat16",
        source="the definition of floating-point numbers: whole numbers are exact up to 2^b",
        test=resolution,
        specimen=decoder(value=4096),
        refuter=decoder(Halved, value=4096),
    ),
)
