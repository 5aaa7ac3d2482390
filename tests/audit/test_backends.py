"""Backends: each kind of fault refuted, its right twin held, and what may rightly differ left out."""

import pytest
import torch
from faults_decoder import Decoder
from faults_packing import BACKENDS, Flash, Grouped, Layers, MeansAnother, WindowByHand
from trying import tried

from whyformer.claims.audit.backends import CLAIMS, backends
from whyformer.claims.audit.options import only_the_path
from whyformer.claims.claim import prove
from whyformer.finding import Verdict
from whyformer.subjects.kernels import LAYERS, MATH
from whyformer.subjects.subject import Settings
from whyformer.subjects.torch_module import TorchModule


def width_of(module):
    return None if issubclass(module, Decoder) else 16


def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test():
    assert prove(CLAIMS[0], 31).counts


@pytest.mark.parametrize(("fault", "twin"), BACKENDS)
def test_each_kind_of_fault_is_refuted_and_its_right_twin_holds(fault, twin):
    found = tried(backends, fault, width=width_of(fault))
    assert found.verdict is Verdict.REFUTED, found
    found = tried(backends, twin, width=width_of(twin))
    assert found.verdict is Verdict.HOLDS, found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("module", [Layers, MeansAnother, Grouped, Flash])
def test_torch_own_ways_agree(module, dtype):
    assert tried(backends, module, width=width_of(module), dtype=dtype).verdict is Verdict.HOLDS


def test_one_way_alone_is_inapplicable():
    assert tried(backends, Decoder).verdict is Verdict.INAPPLICABLE


@pytest.mark.parametrize(
    ("module", "offered"),
    [(Layers, (LAYERS,)), (Grouped, (MATH,)), (Flash, (MATH, "flash=False")), (WindowByHand, ())],
)
def test_the_ways_that_a_module_offers_are_found(module, offered):
    kind = {"tokens": 32} if width_of(module) is None else {"width": 16}
    assert TorchModule(module(), **kind).traits.backends == offered


@pytest.mark.parametrize(("module", "backend"), [(Layers, LAYERS), (Flash, "flash=False")])
def test_a_backend_is_left_as_it_was(module, backend):
    kind = {"tokens": 32} if width_of(module) is None else {"width": 16}
    subject, ids = TorchModule(module(), **kind), torch.zeros(1, 3, dtype=torch.int64)
    before = torch.backends.mha.get_fastpath_enabled(), getattr(subject._given, "flash", None)
    subject.call(ids, settings=Settings(backend=backend))
    assert (torch.backends.mha.get_fastpath_enabled(), getattr(subject._given, "flash", None)) == before


@pytest.mark.parametrize(
    "option", ["need_weights", "output_attentions", "use_flash", "fused", "return_scores"]
)
def test_an_option_that_chooses_how_is_compared(option):
    assert only_the_path(option)


@pytest.mark.parametrize("option", ["bidirectional", "is_causal", "normalize", "use_positions", "reverse"])
def test_an_option_that_may_change_what_is_computed_is_not(option):
    assert not only_the_path(option)
