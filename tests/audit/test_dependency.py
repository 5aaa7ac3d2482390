"""Causality and reach: each kind of fault refuted, its right twin held, and nothing right refuted."""

import pytest
import torch
from faults_cache import Window
from faults_causal import CAUSAL, REACH, Causal, MaskOnTheFusedPathOnly, PaddingInsteadOfCausality, Plane, of
from faults_decoder import Decoder, State
from faults_packing import MeansAnother
from torch import nn
from trying import tried

from whyformer.claims.audit.dependency import CLAIMS, causal, reach, settings_of
from whyformer.claims.audit.probing import Asked
from whyformer.claims.claim import prove
from whyformer.finding import Verdict
from whyformer.instruments.agreement import Comparison, Examiner
from whyformer.subjects.torch_module import TorchModule

SEEDS = [31, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
RIGHT = sorted({twin for _, twin in CAUSAL} | {Decoder, State}, key=lambda module: module.__name__)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test(claim):
    assert prove(claim, 31).counts


@pytest.mark.parametrize("fault", [fault for fault, _ in CAUSAL])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_fault_of_causality_is_refuted(fault, seed):
    found = tried(causal, fault, seed=seed)
    assert found.verdict is Verdict.REFUTED, found


@pytest.mark.parametrize("module", RIGHT)
@pytest.mark.parametrize("seed", SEEDS)
def test_its_right_twin_holds(module, seed):
    found = tried(causal, module, seed=seed)
    assert found.verdict is Verdict.HOLDS, found


@pytest.mark.parametrize(("fault", "twin"), REACH)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_one_too_long_is_refuted_wherever_it_is(fault, twin, seed):
    found = tried(reach, fault, seed=seed, value=6)
    assert found.verdict is Verdict.REFUTED, found
    assert tried(reach, twin, seed=seed, value=6).verdict is Verdict.HOLDS


@pytest.mark.parametrize(("value", "verdict"), [(5, Verdict.REFUTED), (6, Verdict.HOLDS), (7, Verdict.HOLDS)])
def test_the_reach_is_told_to_the_input(value, verdict):
    assert tried(reach, Window, value=value).verdict is verdict


def test_the_path_of_a_leak_is_named():
    found = tried(causal, MaskOnTheFusedPathOnly)
    assert found.path["output_attentions"] is True
    found = tried(causal, PaddingInsteadOfCausality)
    assert found.path["mask"] == "given"
    sizes = found.counterexample["sizes"]
    assert (sizes["batch"], sizes["length"], sizes["cut"], sizes["pads"]) == (1, 2, 0, 0)


def test_a_leak_beyond_a_length_is_shrunk_to_that_length():
    fault = next(fault for fault, _ in CAUSAL if fault.__name__ == "UpToALength")
    found = tried(causal, fault)
    assert found.counterexample["sizes"]["length"] == 49
    assert len(found.counterexample["changed"]) == 1
    again = Examiner(TorchModule(fault(), tokens=32), 24, 0)
    assert again.deviation(Comparison.from_data(found.counterexample["comparison"])).size > 1e-4


class Short(Decoder):
    """Right, and as long as its table of positions, which nothing states."""

    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(40, 16)


class NeverPadded(Decoder):
    """Right: raises where padding is given."""

    def forward(self, x, attention_mask=None):
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("no padding here")
        return super().forward(x)


class Drawing(Decoder):
    """Drops inputs whatever the mode."""

    def mix(self, q, k, v, ok, bias):
        return nn.functional.dropout(super().mix(q, k, v, ok, bias), 0.3, training=True)


@pytest.mark.parametrize("module", [Short, NeverPadded])
def test_what_a_subject_cannot_take_is_not_asked(module):
    assert tried(causal, module).verdict is Verdict.HOLDS


def test_an_option_to_see_both_ways_is_no_fault():
    assert tried(causal, MeansAnother, width=16).verdict is Verdict.HOLDS


def test_what_draws_anew_at_every_call_is_not_judged():
    assert tried(causal, Drawing).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("module", [Decoder, of(Plane)])
def test_what_holds_in_float64_holds_in_its_own_float32(module):
    assert tried(causal, module, dtype=torch.float32).verdict is Verdict.HOLDS


def test_only_paths_to_the_same_outputs_are_tried():
    class Options(Causal):
        def forward(self, x, need_weights=False, bidirectional=False):
            return super().forward(x)

    asked = Asked(Examiner(TorchModule(Options(), tokens=32), 24, 31))
    assert [way.words() for way in settings_of(asked)] == [{}, {"need_weights": True}]
