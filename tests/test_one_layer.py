"""Claim 11: no drawn or trained reader of one layer and one head completes all four; three kinds do."""

from collections import Counter

import pytest
import torch

from whyformer.claims.claim import prove
from whyformer.claims.routing import one_layer
from whyformer.finding import Strength, Verdict
from whyformer.subjects import biases
from whyformer.subjects.mechanisms import Attention
from whyformer.subjects.reader import Reader, drawn, one_head, shifted_keys, two_heads, two_layers

ANSWERS = torch.tensor(["ABCD".index(answer) for answer in one_layer.ANSWERS])


@pytest.mark.parametrize("seed", [0, 31])
def test_the_claim_holds_and_its_refuter_is_refuted(seed):
    trial = prove(one_layer.ONE_LAYER_LIMIT, seed)
    assert trial.finding.verdict is Verdict.HOLDS, trial.finding
    assert trial.finding.strength is Strength.PROVED
    assert trial.refutation.verdict is Verdict.REFUTED
    assert trial.refutation.measured == 4


def test_three_are_reached_by_one_layer_and_four_by_two(monkeypatch):
    assert int(one_layer.choose(one_head()).right.sum()) == 3
    finding = prove(one_layer.ONE_LAYER_LIMIT, 0).finding
    assert (finding.measured, finding.bound) == (3, 3)
    assert "one of two layers 4" in finding.reason
    # A second layer that completed no more would leave the sentence without its other half.
    monkeypatch.setattr(one_layer, "two_layers", one_head)
    assert prove(one_layer.ONE_LAYER_LIMIT, 0).finding.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("make", [two_heads, shifted_keys, two_layers])
def test_one_thing_more_completes_all_four(make):
    reader = make()
    assert torch.equal(reader(one_layer.tokens)[:, -1].argmax(-1), ANSWERS)
    finding = one_layer.three_at_most([reader], torch.Generator())
    assert finding.verdict is Verdict.REFUTED
    leads = finding.counterexample["logit_of_B_less_that_of_C"]
    assert [lead > 0 for lead in leads.values()] == [answer == "B" for answer in one_layer.ANSWERS]


def test_the_four_sequences_have_the_same_tokens_at_each_place_by_pairs():
    first, second, third, fourth = one_layer.SEQUENCES
    for place in range(5):
        assert Counter(first[place] + fourth[place]) == Counter(second[place] + third[place])


def test_the_answers_follow_the_earlier_twin():
    for sequence, answer in zip(one_layer.SEQUENCES, one_layer.ANSWERS, strict=True):
        assert sequence[sequence.index(sequence[-1]) + 1] == answer
        assert sequence[:-1].count(sequence[-1]) == 1


def test_the_numerator_is_a_sum_over_tokens_and_places():
    """A naive twin of g, from scores and values one key at a time."""
    g = torch.Generator().manual_seed(3)
    for reader in (drawn(g) for _ in range(20)):
        (layer,) = reader.layers
        x = reader.embedded(one_layer.tokens)
        apart = reader.readout[1] - reader.readout[2]
        scores = layer.scores(x)[:, 0, -1]
        whole = []
        for row, score in zip(x, scores, strict=True):
            terms = [
                (score[j] - score[-1]).exp() * (layer.o(layer.v(row[j])) + row[-1]) @ apart for j in range(5)
            ]
            whole.append(sum(terms))
        choice = one_layer.choose(reader)
        own = layer.weights(x)[:, 0, -1, -1]
        torch.testing.assert_close(torch.stack(whole), choice.lead / own, rtol=1e-9, atol=1e-9)
        assert choice.residual <= choice.residual_bound


def test_a_second_head_breaks_the_identity_though_it_completes_no_more():
    g = torch.Generator().manual_seed(0)
    readers = [drawn(g, heads=2) for _ in range(8)]
    assert max(int(one_layer.choose(reader).right.sum()) for reader in readers) < 4
    assert one_layer.three_at_most(readers, g).verdict is Verdict.INCONCLUSIVE


def test_the_norm_changes_no_choice():
    g = torch.Generator().manual_seed(4)
    for reader in (drawn(g) for _ in range(20)):
        logits = reader(one_layer.tokens)[:, -1]
        lead = one_layer.choose(reader).lead
        assert torch.equal(logits[:, 1] > logits[:, 2], lead > 0)


def trained(heads, seed, steps=250):
    """The most sequences that a reader completes while it is trained on all four, until it has them all."""
    g = torch.Generator().manual_seed(seed)
    width = 16

    def normal(rows):
        return torch.randn(rows, width, generator=g, dtype=torch.float64)

    layer = Attention(width, heads, bias=biases.causal, generator=g)
    reader = Reader(normal(4), normal(5), [layer], normal(4))
    optimiser = torch.optim.Adam(reader.parameters(), lr=0.05)
    best = 0
    for _ in range(steps):
        logits = reader(one_layer.tokens)[:, -1]
        best = max(best, int((logits.argmax(-1) == ANSWERS).sum()))
        if best == 4:
            break
        loss = torch.nn.functional.cross_entropy(logits, ANSWERS)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return best


@pytest.mark.slow
def test_training_one_head_stops_at_three_and_two_heads_do_not():
    assert max(trained(1, seed) for seed in range(3)) == 3
    assert any(trained(2, seed) == 4 for seed in range(4))
