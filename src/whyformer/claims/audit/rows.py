"""Claims about what else may change a row's outputs: not the other rows, and not the hour of the call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from whyformer.claims.audit.dependency import decoded, ordinary_length, same_places
from whyformer.claims.audit.probing import CLEAR, Asked, Draws, Probe, Sizes, full, settle
from whyformer.claims.audit.specimens import Decoder, decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments.agreement import Comparison, Grid


def batch(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.batch: a row alone, beside others, beside changed others, and in another place of the batch."""
    examiner = asked.examiner
    traits = examiner.subject.traits
    length = ordinary_length(examiner, 64 if traits.large else None)

    def build(sizes: Sizes, changed: tuple[int, ...]) -> Comparison | None:
        rows, row, time = sizes["batch"], sizes["row"], sizes["length"]
        if row >= rows or rows < 2:
            return None
        draws = Draws(examiner, sizes["base"])
        ids = draws.grid(rows, time)
        first, chunk = (time, 0) if sizes["steps"] == 0 else (max(1, time - sizes["steps"]), 1)
        beside = decoded(ids, first, chunk)
        times = range(time)
        way, place = _WAYS[sizes["way"]], row
        other: Grid
        if way == "alone":
            other, place = (ids[row],), 0
        elif way == "moved":
            other, place = (*ids[1:], ids[0]), (row - 1) % rows
        else:
            beside_it = (
                loud(rows, time)
                if way == "loud others"
                else Draws(examiner, sizes["base"] + 11).grid(rows, time)
            )
            other = tuple(ids[b] if b == row else beside_it[b] for b in range(rows))
        pairs = tuple(((row, t), (place, t)) for t in times)
        return Comparison(beside, decoded(other, first, chunk), pairs)

    def loud(rows: int, time: int) -> Grid:
        return tuple(tuple(traits.loud[(b + t) % len(traits.loud)] for t in range(time)) for b in range(rows))

    def probes() -> Iterator[Probe]:
        least = {"batch": 2, "row": 0, "steps": 0, "length": 1}
        left_out = ({"moved"} if traits.large else set()) | (set() if traits.loud else {"loud others"})
        ways = [(n, words) for n, words in enumerate(_WAYS) if words not in left_out]
        steps = (0,) if traits.large or not traits.cache else (0, min(3, length - 1))
        batches = (2, 3) if traits.large else (2, 3, 5, length, 17)
        for base, rows in enumerate(batches):
            for (way, words), step, row in product(ways, steps, (0, rows - 1)):
                sizes = {"length": length, "batch": rows, "row": row, "base": 2 * base,
                         "way": way, "steps": step}  # fmt: skip
                yield Probe(sizes, build, {"others": words, "cache": "on" if step else "off"}, least)

    return settle("routing.batch", asked, probes(), "a row beside others, {n} ways")


_WAYS = ("changed others", "alone", "moved", "loud others")


def repeatable(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.repeatable: the same call again, with other calls in between."""
    examiner = asked.examiner
    run = examiner.ordinary()
    first = examiner.output(run)
    worst = 0.0
    for _ in range(2):
        examiner.again(full(Draws(examiner, 3).grid(1, max(1, examiner.length // 2))))
        gap = (examiner.again(run).double() - first.double()).abs()
        worst = max(worst, float(gap.nan_to_num(torch.inf, torch.inf).max()))
    places = 1024.0
    bound = places * torch.finfo(first.dtype).eps * float(first.abs().max()) if worst else 0.0
    source = "1,024 last places of the largest output" if worst else "bitwise equality"
    common: dict[str, Any] = {
        "claim": "routing.repeatable",
        "measured": worst,
        "bound": bound,
        "bound_from": source,
        "path": {"basis": asked.basis},
    }
    if worst == 0:
        reason = "three equal calls, others between them, agree to the last bit"
        return Finding(**common, verdict=Verdict.HOLDS, strength=Strength.SAMPLED, reason=reason)
    if worst <= CLEAR * bound:
        reason = "equal calls differ, by no more than what rounding explains"
        return Finding(**common, verdict=Verdict.INCONCLUSIVE, reason=reason)
    witness = Comparison(run, run, same_places(1, range(examiner.length)))
    return Finding(
        **common,
        verdict=Verdict.REFUTED,
        reason=f"the same call three times, and outputs differ by {worst:.2g}",
        counterexample={"comparison": witness.as_data(), "deviation": worst},
    )


class MeanOfBatch(Decoder):
    """Takes the mean over the whole batch off every query."""

    def heads(self, h: Tensor) -> Tensor:
        """The width cut into heads, centred over the rows."""
        return super().heads(h - h.mean(0, keepdim=True) / 4)


class Counting(Decoder):
    """Adds to its logits how often it was called."""

    calls = 0

    def forward(self, *inputs: Any, **rest: Any) -> Any:
        """The decoder's logits, a little larger at every call."""
        self.calls += 1
        y = super().forward(*inputs, **rest)
        return (y[0] + self.calls, y[1]) if isinstance(y, tuple) else y + self.calls


CLAIMS = (
    Claim(
        id="routing.batch",
        sentence="A row's output does not depend on the other rows, nor on how many there are.",
        mathematics="""\
For every batch X and row r: f(X)_r = f(X')_r' for every batch X' that holds the same row at r'. It is tried
with other content beside the row, with the row alone, and with the row in another place. Only where the
batch has one shape on both sides are equal bits expected: kernels sum in another order for another shape.""",
        instrument="agreement of a row's outputs in two batches",
        rule="refuted where they differ by more than rounding explains; holds where none does",
        scope="sampled: batches of 2 to 17 rows, in one call and through the cache; 2 and 3 of a dear one",
        breaks="a stabiliser or a mean that is taken over the whole batch",
        source="the definition of a batch",
        test=batch,
        specimen=decoder(),
        refuter=decoder(MeanOfBatch),
    ),
    Claim(
        id="routing.repeatable",
        sentence="The same call twice gives the same output.",
        mathematics="""\
f(x) = f(x), whatever was called in between and whatever torch's own generator holds: the subject is in
eval mode, so nothing is drawn, and nothing is kept from one call to the next.""",
        instrument="three equal calls, with other calls between them",
        rule="holds where they agree to the last bit; refuted where they differ beyond rounding",
        scope="sampled: one input",
        breaks="a module that keeps count of its calls",
        source="the definition of a function",
        test=repeatable,
        specimen=decoder(),
        refuter=decoder(Counting),
    ),
)
