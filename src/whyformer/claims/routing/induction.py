"""What two layers can do with tokens and positions alone: complete [.. A B .. A] by the most recent A."""

from __future__ import annotations

import math
from typing import Any

import torch

from whyformer.claims.claim import Claim
from whyformer.claims.judging import finite
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments.recall import hop, sequences
from whyformer.instruments.rounding import ELEMENTARY, gamma, unit
from whyformer.subjects.induction import InductionCircuit

SIZES = ((4, 6), (3, 8))
"""Symbols and tokens of the sequences that are tried, all of each."""


def circuit(recency: int) -> InductionCircuit:
    """A circuit for both sizes, in float64."""
    symbols, lengths = zip(*SIZES, strict=True)
    return InductionCircuit(max(symbols), max(lengths), recency=recency, dtype=torch.float64)


def share_error(keys: int, dtype: torch.dtype) -> float:
    """T1 for a share whose scores are exact: (2ρ + 2γ_n + 3u)·W|V| with ρ = e^{4u} − 1 and W|V| ≤ 1."""
    return 2 * math.expm1(ELEMENTARY * unit(dtype)) + 2 * gamma(keys, dtype) + 3 * unit(dtype)


def completes(subject: InductionCircuit, generator: torch.Generator) -> Finding:
    """Read every sequence of the sizes, and ask at every token; T5 decides what counts as an answer."""
    right = asked = completed = twins = 0
    least, wrong, unsure = math.inf, None, 0
    for vocabulary, time in SIZES:
        tokens = sequences(vocabulary, time)
        truth = hop(tokens)
        answer = truth.where(truth >= 0, subject.nothing)
        shares = subject(tokens)
        named = shares.gather(-1, answer[..., None]).squeeze(-1)
        rival = shares.scatter(-1, answer[..., None], -1.0).amax(-1)
        margin, floor = named - rival, 2 * share_error(1 + time, subject.dtype)
        least = torch.tensor([least, margin.min().item()]).min().item()
        right, asked = right + int((margin > floor).sum()), asked + margin.numel()
        unsure += int((~(margin.abs() > floor)).sum())
        completed += int((margin[:, -1] > floor)[truth[:, -1] >= 0].sum())
        twins += int((truth[:, -1] >= 0).sum())
        if wrong is None and (margin < -floor).any():
            row, at = (int(part) for part in (margin < -floor).nonzero()[0])
            wrong = {"sequence": tokens[row, : at + 1].tolist(), "says": int(shares[row, at].argmax())}
            wrong |= {"expected": int(answer[row, at]), "margin": margin[row, at].item()}
    floor = 2 * share_error(1 + max(time for _, time in SIZES), subject.dtype)
    common: dict[str, Any] = {"claim": "routing.induction", "measured": finite(least), "bound": floor}
    common["bound_from"] = "T5: twice the error of a share, T1, which the lead of the right share must exceed"
    reason = (
        f"{completed:,} of {twins:,} sequences with an earlier twin completed, and {right:,} of {asked:,} "
        f"tokens answered right; the least lead of a right share is {least:.2g}"
    )
    if wrong is not None:
        return Finding(verdict=Verdict.REFUTED, reason=reason, counterexample=wrong, **common)
    if unsure:
        reason = f"{reason}; at {unsure:,} tokens the lead is within rounding"
        return Finding(verdict=Verdict.INCONCLUSIVE, reason=reason, **common)
    return Finding(verdict=Verdict.HOLDS, strength=Strength.PROVED, reason=reason, **common)


INDUCTION = Claim(
    id="routing.induction",
    sentence="Two layers, from tokens and positions alone, complete every [.. A B .. A] with what followed "
    "the most recent A.",
    mathematics="""\
Layer 1 gives each position the code of the token before it. Layer 2 scores query i and key j by
κ⟨code(x_i), code(x_{j−1})⟩ − r(i − j), and the start token by σ. Codes are w binary digits ±1: the inner
product is w for equal tokens and at most w − 2 for others, so β = 2κ lies between a twin and the rest. The
key after the most recent twin weighs 1 against, in all,
    1/(e^r − 1) for older twins + T·e^{rT − β} for other tokens + e^{−ℓ} for the start token,
and where this sum is below 1 the symbol after the most recent twin has the largest share, for every sequence
of up to T tokens. Without a twin the start token weighs 1 against at most T·e^{−ℓ}: "no earlier twin".
The circuit chooses β and ℓ by T, and refuses a dtype in which a score would be rounded. With r = 0 the
shares are those of all twins' successors, and the most frequent one leads, not the most recent.""",
    instrument="the circuit's shares at every token, against one hop found by comparing the tokens",
    rule="holds where every right share leads by more than rounding (T5); refuted where a wrong one does",
    scope="all 4,096 sequences of 6 tokens of 4 symbols and all 6,561 of 8 tokens of 3, at every token; "
    "beyond, by the inequality that the constructor checks",
    breaks="no recency (r = 0): several twins are averaged, and the most frequent successor wins",
    source="Elhage et al., A Mathematical Framework for Transformer Circuits (2021): a previous-token head, "
    "then a head that composes with it (read in summary); codes, margins and proof are this project's own",
    test=completes,
    specimen=lambda generator: circuit(recency=1),
    refuter=lambda generator: circuit(recency=0),
)

CLAIMS = (INDUCTION,)
