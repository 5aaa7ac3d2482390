"""Lookup by gap: right solvers score 1, guesses score chance, and the data give nothing away."""

import pytest
import torch
from positional import VOCABULARY, Small, tried
from torch import nn

from whyformer.claims.audit.lookup import CLAIMS, interval, lookup, sequences
from whyformer.claims.claim import prove
from whyformer.finding import Strength, Verdict
from whyformer.instruments.recall import hop


@pytest.mark.parametrize("seed", [31, 1, 2, 3])
def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test(seed):
    (claim,) = CLAIMS
    assert prove(claim, seed).counts


def named(ids, vocabulary=VOCABULARY):
    """Logits that name these ids."""
    return nn.functional.one_hot(ids.clamp(min=0), vocabulary).float()


class Solver(nn.Module):
    def forward(self, x):
        return named(hop(x))


class Guess(nn.Module):
    """Names one of the tokens before the query, at random but the same for the same tokens."""

    def forward(self, x):
        time = x.shape[1]
        spread = (x * 7919 + x.cumsum(1) * 104_729) % 1_000_003
        return named(x.gather(1, spread % torch.arange(1, time + 1).clamp(min=1)))


class Stripe(nn.Module):
    """Names what stands seven before: a diagonal stripe, which is right at gap 8 and nowhere else."""

    def forward(self, x):
        return named(x.roll(7, 1))


class Previous(nn.Module):
    """Names the token before."""

    def forward(self, x):
        return named(x.roll(1, 1))


class ShortOnly(nn.Module):
    """Looks up, but no further back than 4."""

    def forward(self, x):
        time = torch.arange(x.shape[1])
        twin = x[:, :, None] == x.roll(1, 1)[:, None]
        near = twin & (time[None, :] <= time[:, None]) & (time[None, :] > time[:, None] - 4) & (time > 0)
        found = torch.where(near, time, -1).amax(-1)
        return named(torch.where(found < 0, 0, x.gather(1, found.clamp(min=0))))


@pytest.mark.parametrize("seed", [31, 1, 2])
def test_a_right_solver_scores_one_at_every_gap(seed):
    found = tried(lookup, Solver(), seed=seed)
    assert found.verdict is Verdict.HOLDS
    assert found.strength is Strength.SAMPLED
    assert found.measured["accuracy"] == 1
    assert [f["gap"] for f in found.measured["by_gap"]] == [2, 4, 8, 16, 22]
    assert all(f["accuracy"] == 1 and f["low"] > f["chance"] for f in found.measured["by_gap"])


@pytest.mark.parametrize("seed", [31, 1, 2])
def test_a_guess_scores_chance_and_is_refuted(seed):
    found = tried(lookup, Guess(), seed=seed)
    assert found.verdict is Verdict.REFUTED
    for figures in found.measured["by_gap"]:
        assert figures["low"] <= figures["chance"] <= figures["high"]
    witness = found.counterexample
    said = Guess()(torch.tensor([witness["ids"]]))[0, witness["place"]].argmax()
    assert int(said) == witness["said"] != witness["answer"]


@pytest.mark.parametrize(
    ("module", "right"), [(Stripe, {8}), (Previous, {2}), (ShortOnly, {2, 4})], ids=lambda m: str(m)[:20]
)
def test_what_is_right_at_some_gaps_alone_is_left_open(module, right):
    found = tried(lookup, module())
    assert found.verdict is Verdict.INCONCLUSIVE
    assert {f["gap"] for f in found.measured["by_gap"] if f["accuracy"] == 1} == right


def test_an_untrained_decoder_is_refuted_by_a_short_sequence():
    found = tried(lookup, Small())
    assert found.verdict is Verdict.REFUTED
    assert len(found.counterexample["ids"]) == 3


class Narrow(Small):
    def forward(self, x):
        return super().forward(x)[..., : VOCABULARY // 2]


def test_what_reads_vectors_or_names_no_tokens_is_not_asked():
    found = tried(lookup, nn.Identity(), kind={"width": VOCABULARY})
    assert found.verdict is Verdict.INAPPLICABLE
    assert "vectors" in found.reason
    found = tried(lookup, Narrow())
    assert found.verdict is Verdict.INAPPLICABLE
    assert "32 outputs" in found.reason


@pytest.mark.parametrize("length", [4, 5, 8, 24, 61, 128])
def test_the_data_give_the_answer_away_by_nothing_else(length):
    ids = list(range(100, 300))
    rows, questions = sequences(ids, length, 40, torch.Generator().manual_seed(7))
    assert {q.gap for q in questions} >= {2, length - 2}
    places = {}
    for q in questions:
        row = rows[q.row]
        assert row[q.place] == row[q.place - q.gap]
        assert row[q.place - q.gap + 1] == q.answer
        assert set(row) <= set(ids)
        # Nothing but the twin stands twice before the query, and the answer stands there once.
        assert row[: q.place].count(row[q.place]) == 1
        assert row[: q.place].count(q.answer) == 1
        assert q.candidates == len(set(row[: q.place])) - 1
        places.setdefault(q.gap, set()).add(q.place)
    by_solver = hop(torch.tensor(rows))
    assert all(int(by_solver[q.row, q.place]) == q.answer for q in questions)
    if length >= 24:
        assert all(len(met) > 1 for gap, met in places.items() if gap <= length // 2)


def test_the_limits_are_those_of_clopper_and_pearson():
    # One success of ten at 2.5 % a side, and none of ten: 0.0025, 0.4450; 0, 1 - 0.025^(1/10).
    assert interval(1, 10, 0.025) == pytest.approx((0.0025286, 0.4450161), abs=1e-6)
    assert interval(0, 10, 0.025) == pytest.approx((0, 1 - 0.025**0.1), abs=1e-9)
    assert interval(10, 10, 0.025) == pytest.approx((0.025**0.1, 1), abs=1e-9)
