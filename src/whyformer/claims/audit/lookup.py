"""Does it complete [.. A B .. A] with B? The accuracy by gap, against chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import Any

import torch
from torch import Tensor

from whyformer.claims.audit.consumed import apart, without
from whyformer.claims.audit.dependency import ordinary_length
from whyformer.claims.audit.probing import Asked, full
from whyformer.claims.audit.specimens import VOCABULARY, Decoder, decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments.agreement import Examiner
from whyformer.instruments.recall import hop

CONFIDENCE = 0.99
"""That all the limits of a finding hold together: each gap's is held to a share of what is left."""
ROWS = {False: 256, True: 12}
"""Sequences, by whether a forward is dear."""
_SPACING = 8
"""A sequence asks one question for so many inputs."""
_PART = 1 << 22
"""How many numbers a call may return, about: rows are handed over in parts."""


@dataclass(frozen=True)
class Question:
    """A sequence of distinct ids, but for queries that return after their gaps; one of the queries.

    Attributes:
        row: which of the sequences.
        place: where the query returns.
        gap: how far back it stood before.
        answer: the id that followed it there.
        candidates: how many other ids precede the place, any of which a guess may name.
    """

    row: int
    place: int
    gap: int
    answer: int
    candidates: int


def lookup(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.lookup: ask for what followed an earlier id, at controlled gaps."""
    return apart("routing.lookup", asked, lambda: _looked_up(asked, generator))


def _looked_up(asked: Asked, generator: torch.Generator) -> Finding:
    examiner, claim = asked.examiner, "routing.lookup"
    subject, traits = examiner.subject, examiner.subject.traits
    if "width" in subject.describe():
        return without(claim, asked, "it reads vectors, and names no token")
    reads = set(range(traits.vocabulary)) - set(traits.loud) - set(traits.special) - {traits.pad}
    length = min(ordinary_length(examiner), len(reads))
    if length < 4:
        return without(claim, asked, f"{len(reads)} ordinary ids leave no room for a gap")
    width = examiner.output(examiner.ordinary()).shape[2]
    if width < traits.vocabulary:
        return without(claim, asked, f"{width} outputs name none of {traits.vocabulary} tokens")
    rows, questions = sequences(sorted(reads), length, ROWS[traits.large], generator)
    said = _said(examiner, rows, width)
    right, drawn = Counter[int](), Counter(q.gap for q in questions)
    for q in questions:
        right[q.gap] += int(said[q.row, q.place]) == q.answer
    chance = {g: 1 / min(q.candidates for q in questions if q.gap == g) for g in drawn}
    risk = (1 - CONFIDENCE) / len(drawn)
    figures, above = [], []
    for gap in sorted(drawn):
        low, high = interval(right[gap], drawn[gap], risk)
        accuracy = right[gap] / drawn[gap]
        told = {"accuracy": accuracy, "low": low, "high": high, "chance": chance[gap]}
        rounded = {name: round(figure, 4) for name, figure in told.items()}
        figures.append({"gap": gap, **rounded, "draws": drawn[gap]})
        if low > chance[gap]:
            above.append(gap)
    measured = {
        "accuracy": round(right.total() / len(questions), 4),
        "draws": len(questions),
        "by_gap": figures,
    }
    common: dict[str, Any] = {
        "claim": claim,
        "measured": measured,
        "bound": max(chance.values()),
        "bound_from": "a guess among the other ids that precede the query",
        "path": {"basis": asked.basis, "dtype": str(subject.dtype).removeprefix("torch.")},
    }
    curve = ", ".join(f"{f['accuracy']:.0%} at gap {f['gap']}" for f in figures)
    sure = f"with {CONFIDENCE:.0%} confidence for all gaps together"
    if len(above) == len(drawn):
        reason = f"{curve}; each above chance, {sure}"
        return Finding(**common, verdict=Verdict.HOLDS, strength=Strength.SAMPLED, reason=reason)
    if above:
        reason = f"{curve}; above chance at {', '.join(map(str, above))} only, {sure}"
        return Finding(**common, verdict=Verdict.INCONCLUSIVE, reason=reason)
    least = max(_least_seen(drawn[g], chance[g], risk) for g in drawn)
    wrong = next(q for q in questions if int(said[q.row, q.place]) != q.answer)
    return Finding(
        **common,
        verdict=Verdict.REFUTED,
        reason=f"{curve}; no gap is above chance, {sure}: an accuracy of {least:.0%} would have been",
        counterexample=_witness(examiner, rows[wrong.row], wrong, width),
    )


def sequences(
    ids: list[int], length: int, count: int, generator: torch.Generator
) -> tuple[list[tuple[int, ...]], list[Question]]:
    """Sequences whose ids are all distinct, but for queries that return after a gap.

    The gaps are powers of two and the longest there is room for; every sequence asks as many questions as fit
    apart, in its second half, and the gaps take turns. The ids are drawn without replacement, so the answer
    is told by nothing but the earlier query, and stands at no fixed distance over the gaps.

    Args:
        ids: what to draw from, ``length`` or more.
        length: of each sequence, 4 or more.
        count: how many sequences.
        generator: what they are drawn from.
    """
    gaps = sorted({*(1 << k for k in range(1, length) if 1 << k < length - 1), length - 2})
    asked = max(1, length // _SPACING)
    rows, questions, turn = [], [], 0
    for row in range(count):
        shuffled = torch.randperm(len(ids), generator=generator).tolist()
        content = [ids[i] for i in shuffled[:length]]
        taken: set[int] = set()
        placed: list[tuple[int, int]] = []
        for _ in range(asked):
            gap = gaps[turn % len(gaps)]
            turn += 1
            # Neither the query, its twin nor the answer may serve another question; 0 stays as it is.
            free = [
                q for q in range(max(gap + 1, length // 2), length) if not taken & {q - gap, q - gap + 1, q}
            ]
            if free:
                q = free[int(torch.randint(len(free), (1,), generator=generator))]
                taken |= {q - gap, q - gap + 1, q}
                placed.append((q, gap))
        for q, gap in placed:
            content[q] = content[q - gap]
        rows.append(tuple(content))
        questions += [
            Question(row, q, gap, content[q - gap + 1], len(set(content[:q])) - 1) for q, gap in placed
        ]
    return rows, questions


def _said(examiner: Examiner, rows: list[tuple[int, ...]], width: int) -> Tensor:
    """The token named at each place of each row, of shape (rows, time)."""
    part = max(1, _PART // (len(rows[0]) * width))

    def parts() -> Iterator[Tensor]:
        for start in range(0, len(rows), part):
            yield examiner.again(full(tuple(rows[start : start + part]))).argmax(-1)

    return torch.cat(list(parts()))


def _witness(examiner: Examiner, row: tuple[int, ...], wrong: Question, width: int) -> dict[str, Any]:
    """A short sequence that is completed wrongly: A B A, else from the twin to the query, else the whole."""
    query, twin = row[wrong.place], wrong.place - wrong.gap
    tries = (
        ((query, wrong.answer, query), 2),
        (row[twin : wrong.place + 1], wrong.gap),
        (row, wrong.place),
    )
    for ids, place in tries:
        said = int(_said(examiner, [ids], width)[0, place])
        if said != wrong.answer:
            break
    return {"ids": list(ids), "place": place, "answer": wrong.answer, "said": said}


def _tail(k: int, n: int, p: float) -> float:
    """The probability of k or more successes in n draws of probability p."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


def interval(k: int, n: int, risk: float) -> tuple[float, float]:
    """The limits of Clopper and Pearson on a probability, each wrong with at most the risk given.

    Args:
        k: successes.
        n: draws, 1 or more.
        risk: the probability, for each limit, that it is wrong.
    """

    def where(exceeds: Any) -> float:
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if exceeds(middle) else (middle, high)
        return low

    lower = 0.0 if k == 0 else where(lambda p: _tail(k, n, p) > risk)
    upper = 1.0 if k == n else where(lambda p: 1 - _tail(k + 1, n, p) < risk)
    return lower, upper


def _least_seen(n: int, chance: float, risk: float) -> float:
    """The smallest accuracy in n draws whose lower limit lies above chance."""
    return next((k / n for k in range(1, n + 1) if _tail(k, n, chance) <= risk), 1.0)


class Induction(Decoder):
    """Names the token after the latest earlier twin of each input, as an induction circuit does."""

    def forward(self, x: Tensor, *rest: Any, **more: Any) -> Tensor:
        """Logits of shape (batch, time, vocabulary): one for that token, nothing for the others."""
        found = hop(x)
        named = torch.nn.functional.one_hot(found.clamp(min=0), VOCABULARY).to(self.embed.dtype)
        return named * (found >= 0)[..., None]


CLAIMS = (
    Claim(
        id="routing.lookup",
        sentence="It completes [.. A B .. A] with B.",
        mathematics="""\
In a sequence of distinct tokens, but for a query A that returns after a gap, the token that followed A
before is the one completion that the sequence tells. A guess among the other tokens that precede the query
is right once in their number, whatever the vocabulary; the tokens are drawn without replacement, so nothing
but the earlier A tells the answer. The limits on each gap's accuracy are those of Clopper and Pearson, and
hold for all gaps together.""",
        instrument="the largest output at the query, over sequences with controlled gaps",
        rule="holds where every gap's lower limit is above chance, refuted where none is; else inconclusive",
        scope="sampled: gaps of powers of two and the longest one, at one length; confidence 99 %",
        breaks="attention that was never trained to look anything up",
        source="Clopper and Pearson 1934 for the limits; the task is that of induction heads",
        test=lookup,
        specimen=decoder(Induction),
        refuter=decoder(),
    ),
)
