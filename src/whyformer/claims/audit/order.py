"""Claims about the order of the inputs: told apart, or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from whyformer.claims.audit.dependency import ordinary_length
from whyformer.claims.audit.probing import CLEAR, Asked, Draws, Probe, Sizes, full, settle
from whyformer.claims.audit.specimens import decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments.agreement import Comparison, Examiner


def blind(asked: Asked, generator: torch.Generator) -> Finding:
    """order.blind: permute the inputs, and the outputs ought to be permuted alike."""
    examiner = asked.examiner
    length = ordinary_length(examiner)
    lengths = [2, 3, 5, length] if length > 5 else list(range(2, length + 1))
    lengths += [length - 1, 2 * length + 1]
    limit = examiner.subject.traits.max_length
    fit = [n for n in dict.fromkeys(lengths) if n >= 2 and (limit is None or n <= limit)]
    holds = f"{{n}} permutations at lengths {', '.join(map(str, sorted(fit)))}: neighbours, cycles and others"
    return settle("order.blind", asked, permutations(examiner, fit), holds)


def sensitive(asked: Asked, generator: torch.Generator) -> Finding:
    """order.sensitive: look for one permutation that the outputs do not follow."""
    examiner = asked.examiner
    length = ordinary_length(examiner)
    # On a dear subject the cheap lengths come first; elsewhere the working length says all, and a subject
    # that is made for one length is not asked for another.
    lengths = [3, 8, length] if examiner.subject.traits.large else [length]
    told = settle("order.sensitive", asked, permutations(examiner, [n for n in lengths if n <= length]), "")
    if told.verdict is Verdict.REFUTED:
        figures, words = last_output(examiner, length)
        return told.but(
            verdict=Verdict.HOLDS,
            strength=Strength.PROVED,
            measured={"deviation": told.measured, **figures},
            reason=f"permuted inputs, and an output that does not follow: {told.reason}; {words}",
        )
    if told.verdict is not Verdict.HOLDS:
        return told
    probe = next(p for p in permutations(examiner, [length]) if len(p.changed) == length - 1)
    comparison = probe.comparison()
    alike = None if comparison is None else comparison.as_data()
    return told.but(
        verdict=Verdict.REFUTED,
        strength=None,
        reason=f"no order is told apart at length {length}: exchanged neighbours, cycles and other "
        f"permutations of several inputs only permute the outputs; a deviation above "
        f"{CLEAR * (told.bound or 0.0):.1e} would have shown",
        counterexample={
            "sizes": dict(probe.sizes),
            "changed": list(probe.changed),
            "comparison": alike,
            "agree": True,
            "deviation": told.measured,
        },
    )


def permutations(examiner: Examiner, lengths: list[int]) -> Iterator[Probe]:
    """Neighbours exchanged, cycles, and other permutations, on several inputs of each length.

    A permutation is put as exchanges in turn, input t with an earlier one: its neighbour, so that all of
    them together are a cycle, or one drawn from the probe's ``far``. Whatever refutes is so thinned out to
    few exchanges, mostly to one.
    """

    def build(sizes: Sizes, changed: tuple[int, ...]) -> Comparison | None:
        length, batch = sizes["length"], sizes["batch"]
        order = list(range(length))
        draws = torch.Generator().manual_seed(sizes["far"])
        earlier = torch.randint(1 << 30, (length,), generator=draws).tolist()
        for t in changed:
            if not 0 < t < length:
                return None
            other = earlier[t] % t if sizes["far"] else t - 1
            order[t], order[other] = order[other], order[t]
        ids = Draws(examiner, sizes["base"]).grid(batch, length)
        moved = tuple(tuple(row[place] for place in order) for row in ids)
        if moved == ids:
            return None
        pairs = tuple(((b, place), (b, t)) for b in range(batch) for t, place in enumerate(order))
        return Comparison(full(ids), full(moved), pairs)

    large, working = examiner.subject.traits.large, ordinary_length(examiner)
    for length in lengths:
        every = list(range(1, length))
        some = [length // 2, length - 1] if large else every[:: max(1, length // 6)]
        inputs = ((0, 1), (2, 3), (1, 2)) if length == working and not large else ((0, 1),)
        for base, batch in inputs:
            singles = every if length <= 8 or (base == 0 and length == working and not large) else some
            for far, places in [(0, (t,)) for t in singles] + [(far, tuple(every)) for far in (0, 1, 2)]:
                sizes = {"length": length, "batch": batch, "base": base, "far": far}
                yield Probe(sizes, build, {}, {"batch": 1, "length": 2}, places)


def last_output(examiner: Examiner, length: int) -> tuple[Mapping[str, Any], str]:
    """How far the last output depends on the order of what precedes it: figures, and a sentence."""
    (row,) = Draws(examiner, 2).grid(1, length)
    pair = (((0, length - 1), (0, length - 1)),)

    def apart(other: tuple[int, ...]) -> float:
        return examiner.deviation(Comparison(full((row,)), full((other,)), pair)).size

    floor = CLEAR * examiner.plain_bound()
    by_order = apart((*row[-2::-1], row[-1]))
    if not by_order > floor:
        words = f"the last of {length} outputs does not change with the order of what precedes it"
        return {"last_by_order": by_order, "swap_reach": 0}, words
    backs = range(length - 1, 1, -1)
    if examiner.subject.traits.large:
        backs = [back for back in backs if back == length - 1 or back & (back - 1) == 0]  # type: ignore[assignment]
    for back in backs:
        t = length - 1 - back
        other = (*row[:t], row[t + 1], row[t], *row[t + 2 :])
        if other != row and apart(other) > floor:
            words = (
                f"the last of {length} outputs moves by {by_order:.2g} with the order of what precedes it, "
                f"and through an exchange of neighbours as far as {back} back"
            )
            return {"last_by_order": by_order, "swap_reach": back}, words
    words = f"the last of {length} outputs moves by {by_order:.2g} with the order of what precedes it"
    return {"last_by_order": by_order, "swap_reach": 0}, words


_MATHEMATICS = """\
f is blind to order where f(πx) = πf(x) for every permutation π of the inputs x. Exchanged neighbours
generate all permutations: if f follows each of them on every input, it follows their products, so it is
enough to try them, on several inputs. A cycle and others are tried beside them, since inputs are sampled.
A sum in another order is rounded otherwise, so blind outputs are not equal to the last bit."""

CLAIMS = (
    Claim(
        id="order.sensitive",
        sentence="It can tell orders apart: for some permutation π, f(πx) ≠ πf(x).",
        mathematics=_MATHEMATICS
        + """
One permutation that f does not follow, beyond what rounding explains, proves that f is not blind. How far
the last output depends on the order of what precedes it is measured beside: a causal mask alone makes f
sensitive, and yet leaves the last output of one layer blind to the order of its prefix.""",
        instrument="agreement of permuted outputs with the outputs of permuted inputs",
        rule="holds where one permutation is not followed, which is the witness; refuted where each is",
        scope="proved by its witness; a refutation is by search: all exchanges of neighbours at one length",
        breaks="attention without positions and without a mask",
        source="the definition of permutation equivariance; exchanged neighbours generate S_n",
        test=sensitive,
        specimen=decoder(),
        refuter=decoder(causal=False, rotary=False),
    ),
    Claim(
        id="order.blind",
        sentence="It is permutation-equivariant: f(πx) = πf(x) for every permutation π.",
        mathematics=_MATHEMATICS,
        instrument="agreement of permuted outputs with the outputs of permuted inputs",
        rule="refuted where one permutation is not followed beyond rounding; holds where every one is",
        scope="sampled: exchanges of neighbours, cycles and others at short, ordinary and longer lengths",
        breaks="a causal mask, or positions",
        source="the definition of permutation equivariance; exchanged neighbours generate S_n",
        test=blind,
        specimen=decoder(causal=False, rotary=False),
        refuter=decoder(rotary=False),
    ),
)
