"""Rows of a batch: each kind of fault refuted, its right twin held, and nothing right refuted."""

import pytest
import torch
from faults_causal import ROWS, VECTORS, Slots, StabiliserCancels, of
from faults_decoder import Decoder, State
from faults_packing import Layers
from torch import nn
from trying import tried

from whyformer.claims.audit.rows import CLAIMS, batch, repeatable
from whyformer.claims.claim import prove
from whyformer.finding import Verdict

SEEDS = [31, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
RIGHT = sorted({twin for _, twin in ROWS} | {Decoder, State, of(StabiliserCancels), Layers},
               key=lambda module: module.__name__)  # fmt: skip


def width_of(module):
    return 16 if issubclass(module, (*VECTORS, Layers)) else None


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test(claim):
    assert prove(claim, 31).counts


@pytest.mark.parametrize("fault", [fault for fault, _ in ROWS])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_fault_of_rows_is_refuted(fault, seed):
    found = tried(batch, fault, width=width_of(fault), seed=seed)
    assert found.verdict is Verdict.REFUTED, found


@pytest.mark.parametrize("module", RIGHT)
@pytest.mark.parametrize("seed", SEEDS)
def test_its_right_twin_holds(module, seed):
    found = tried(batch, module, width=width_of(module), seed=seed)
    assert found.verdict is Verdict.HOLDS, found
    assert tried(repeatable, module, width=width_of(module), seed=seed).verdict is Verdict.HOLDS


def test_slots_that_run_out_are_shown_by_the_fewest_rows():
    for name, rows in (("SlotByModulo", 5), ("SlotOfSixteen", 17)):
        fault = next(fault for fault, _ in ROWS if fault.__name__ == name)
        found = tried(batch, fault)
        assert found.counterexample["sizes"]["batch"] == rows, found


@pytest.mark.parametrize("module", [Slots, Layers, Decoder])
def test_what_holds_in_float64_holds_in_its_own_float32(module):
    found = tried(batch, module, width=width_of(module), dtype=torch.float32)
    assert found.verdict is Verdict.HOLDS, found


class OnlyByHand(Decoder):
    """Centred over the batch where the weights are asked for."""

    asked = False

    def mix(self, q, k, v, ok, bias):
        return super().mix(q - q.mean(0) if self.asked else q, k, v, ok, bias)

    def forward(self, x, output_attentions=False):
        self.asked = output_attentions
        return super().forward(x)


def test_a_fault_of_one_path_is_refuted_there():
    found = tried(batch, OnlyByHand)
    assert found.verdict is Verdict.REFUTED
    assert found.path["output_attentions"] is True


class InTraining(nn.Module):
    """Right once eval() is called, which the audit does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.drop = nn.GRU(16, 16, batch_first=True), nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.drop(self.norm(self.layer(x)[0].transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("claim", [batch, repeatable])
def test_training_mode_left_on_is_no_fault(claim):
    assert tried(claim, InTraining, width=16).verdict is Verdict.HOLDS


class Drawing(Decoder):
    def forward(self, x):
        return super().forward(x) + torch.randn(())


def test_what_draws_anew_is_refuted_as_unrepeatable_and_not_judged_otherwise():
    assert tried(repeatable, Drawing).verdict is Verdict.REFUTED
    assert tried(batch, Drawing).verdict is Verdict.INCONCLUSIVE
