"""Padding: each kind of fault refuted, its right twin held, and nothing right refuted."""

import pytest
import torch
from faults_cache import AlibiByColumn, Evicting, Ring, Window
from faults_decoder import Decoder
from faults_packing import Layers
from faults_padding import FAULTS, ColumnPositions, EncoderByColumn, MaskIgnored, TabledAngles
from trying import tried

from whyformer.claims.audit.padding import CLAIMS, padding
from whyformer.claims.claim import prove
from whyformer.finding import Verdict
from whyformer.instruments.agreement import Comparison, Examiner
from whyformer.subjects.torch_module import TorchModule

RIGHT = sorted({twin for _, twin in FAULTS} | {AlibiByColumn, Evicting, Ring, Window, TabledAngles},
               key=lambda module: module.__name__)  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test(claim):
    assert prove(claim, 31).counts


@pytest.mark.parametrize("fault", [fault for fault, _ in FAULTS])
def test_each_kind_of_fault_is_refuted(fault):
    found = tried(padding, fault)
    assert found.verdict is Verdict.REFUTED, found


@pytest.mark.parametrize("module", RIGHT)
def test_its_right_twin_holds(module):
    found = tried(padding, module)
    assert found.verdict is Verdict.HOLDS, found


@pytest.mark.parametrize("module", [Decoder, TabledAngles])
def test_what_holds_in_float64_holds_in_its_own_float32(module):
    assert tried(padding, module, dtype=torch.float32).verdict is Verdict.HOLDS


def test_torch_own_layer_holds_on_its_fast_path_too():
    assert tried(padding, Layers, width=16).verdict is Verdict.HOLDS


def test_that_given_positions_mend_it_is_said():
    found = tried(padding, ColumnPositions)
    assert found.path["positions"] == "left to the model"
    assert "with positions given from the mask's running sum it holds" in found.reason


def test_an_encoder_that_needs_positions_on_its_left_holds_and_it_is_said():
    found = tried(padding, EncoderByColumn)
    assert found.verdict is Verdict.HOLDS
    assert "left padding needs positions given" in found.reason


def test_an_ignored_mask_is_named():
    assert "the mask is ignored" in tried(padding, MaskIgnored).reason


class Pointwise(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(32, 8)

    def forward(self, x, attention_mask=None):
        return self.embed(x)


def test_a_mask_that_changes_nothing_where_padding_does_not_either_is_inapplicable():
    assert tried(padding, Pointwise).verdict is Verdict.INAPPLICABLE


def test_the_pad_id_alone_is_tried_only_when_it_is_asked():
    fault = FAULTS[-1][0]
    assert tried(padding, fault, basis="observed").verdict is Verdict.INAPPLICABLE


class Plain(Pointwise):
    def forward(self, x):
        return self.embed(x)


def test_a_module_that_knows_no_padding_is_inapplicable():
    assert tried(padding, Plain).verdict is Verdict.INAPPLICABLE


def test_a_counterexample_is_small_and_deviates_when_it_is_run_again():
    found = tried(padding, ColumnPositions)
    sizes = found.counterexample["sizes"]
    assert (sizes["batch"], sizes["length"], sizes["pads"]) == (1, 1, 1)
    subject = TorchModule(ColumnPositions(), tokens=32)
    again = Examiner(subject, 24, 0).deviation(Comparison.from_data(found.counterexample["comparison"]))
    assert again.size > 1e-3


class CannotBePadded(Decoder):
    def forward(self, x, attention_mask=None):
        if attention_mask is not None and not attention_mask.all():
            raise ValueError("no padding here")
        return super().forward(x)


def test_a_module_that_raises_on_padding_leaves_it_open():
    found = tried(padding, CannotBePadded)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "no padding here" in found.reason
