"""Claims 3, 6, 7 and 8: they hold, their refuters are refuted, and what lies between is told apart."""

import pytest
import torch

from whyformer.claims.claim import generator_for, prove
from whyformer.claims.routing import recurrence
from whyformer.finding import Strength, Verdict
from whyformer.subjects.recurrent import LSTM, DiagonalCell, VanillaRNN


def tried(claim, cell, seed=0):
    return claim.test(cell, generator_for(seed, "draws"))


def generator():
    return generator_for(0, "test_claims_recurrence")


@pytest.mark.parametrize("seed", [0, 31, 77])
@pytest.mark.parametrize("claim", recurrence.CLAIMS, ids=lambda claim: claim.id)
def test_the_claim_holds_and_its_refuter_is_refuted(claim, seed):
    trial = prove(claim, seed)
    assert trial.counts
    assert trial.finding.measured <= trial.finding.bound
    assert trial.refutation.measured > 1e6 * trial.refutation.bound or claim is recurrence.FADING
    assert trial.refutation.counterexample["gap"] >= 1
    assert trial == prove(claim, seed)


@pytest.mark.parametrize(
    "cell",
    [
        VanillaRNN(5, 0.8, generator=generator()),
        VanillaRNN(5, 1.0, linear=True, generator=generator()),
        VanillaRNN(5, 1.2, linear=True, generator=generator()),
        LSTM(3, generator=generator()),
        DiagonalCell(torch.tensor([0.9, -1.0]), generator=generator()),
        DiagonalCell(torch.tensor([0.9, -1.0]), squash=True, generator=generator()),
    ],
)
def test_every_cell_without_a_skip_is_a_chain(cell):
    assert tried(recurrence.CHAIN, cell).verdict is Verdict.HOLDS


@pytest.mark.parametrize("weight", [1e-3, recurrence.CAUGHT])
def test_a_faint_skip_is_caught(weight):
    cell = VanillaRNN(5, 1.0, linear=True, skip=3, generator=generator())
    with torch.no_grad():
        cell.over.mul_(weight)
    assert tried(recurrence.CHAIN, cell).verdict is Verdict.REFUTED


def test_a_skip_that_rounding_could_explain_is_not_judged_refuted():
    cell = VanillaRNN(5, 1.0, linear=True, skip=3, generator=generator())
    with torch.no_grad():
        cell.over.mul_(1e-16)
    assert tried(recurrence.CHAIN, cell).verdict is not Verdict.REFUTED


def test_fading_is_proved_by_the_weights():
    found = tried(recurrence.FADING, VanillaRNN(6, 0.9, generator=generator()))
    assert found.strength is Strength.PROVED
    cell = VanillaRNN(6, 0.9, generator=generator())
    largest = float(torch.linalg.svdvals(cell.recurrent.detach()).max())
    assert largest <= recurrence.contraction(cell) <= largest * (1 + 1e-12)


def test_a_cell_that_only_happened_to_fade_is_inconclusive():
    # Large inputs saturate tanh: the signal dies on these sequences, and on no account of the weights.
    cell = VanillaRNN(6, 1.0, generator=generator())
    with torch.no_grad():
        cell.input.mul_(100)
    found = tried(recurrence.FADING, cell)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "allow" in found.reason


def test_a_contractive_cell_that_keeps_more_than_the_sentence_allows_is_not_what_it_speaks_of():
    cell = VanillaRNN(6, 0.97, generator=generator())
    assert recurrence.contraction(cell) < 1
    assert tried(recurrence.FADING, cell).verdict is not Verdict.HOLDS
    assert "contractive" not in recurrence.FADING.sentence
    assert f"a factor of at most {recurrence.RATE:g}" in recurrence.FADING.sentence


@pytest.mark.parametrize("gain", [1.0, 1.05])
def test_linear_cells_that_keep_or_grow_do_not_fade(gain):
    cell = VanillaRNN(6, gain, linear=True, generator=generator())
    assert tried(recurrence.FADING, cell).verdict is Verdict.REFUTED


def test_a_contraction_with_a_skip_has_no_bound_from_its_weights():
    assert recurrence.contraction(VanillaRNN(4, 0.5, skip=2, generator=generator())) == float("inf")


@pytest.mark.parametrize("bias", [-1.0, 0.0, 5.0, 50.0])
def test_every_forget_bias_is_carried_by_its_gates(bias):
    cell = LSTM(4, forget_bias=bias, recurrence=0.0, generator=generator())
    assert tried(recurrence.FORGET_GATES, cell).verdict is Verdict.HOLDS


def test_a_faint_recurrence_is_caught():
    cell = LSTM(4, forget_bias=1.0, recurrence=recurrence.CAUGHT, generator=generator())
    assert tried(recurrence.FORGET_GATES, cell).verdict is Verdict.REFUTED


def test_a_decay_off_by_little_is_caught():
    class Leaky(DiagonalCell):
        def step(self, x, past):
            return super().step(x, past) * (1 - recurrence.CAUGHT)

    cell = Leaky(torch.tensor([1.0, 0.9]), generator=generator())
    assert tried(recurrence.STATE_DECAY, cell).verdict is Verdict.REFUTED


def test_worst_weighs_each_distance_against_its_own_bound():
    found, expected = torch.zeros(2, 1, 1, 2), torch.tensor([[[[1.0, 0.0]]], [[[0.0, 0.5]]]])
    bound = torch.tensor([10.0, 1.0])[:, None, None, None]
    deviation = recurrence.worst(found, expected, bound)
    assert (deviation.measured, deviation.bound) == (0.5, 1.0)
    assert deviation.where == {"gap": 2, "sequence": 0, "row": 0, "column": 1, "found": 0.0, "expected": 0.5}
