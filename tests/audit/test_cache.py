"""Caches and chunks: each kind of fault refuted, its right twin held, and nothing right refuted."""

import pytest
import torch
from faults_cache import CHUNKS, STEPS, AlibiByColumn, Pointwise, Swallowed
from faults_decoder import Decoder, State, Uncached
from faults_padding import TabledAngles
from torch import nn
from trying import tried

from whyformer.claims.audit.cache import CLAIMS, cache, chunks
from whyformer.claims.claim import prove
from whyformer.finding import Verdict


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test(claim):
    assert prove(claim, 31).counts


@pytest.mark.parametrize("fault", [fault for fault, _ in STEPS])
def test_each_fault_of_a_step_is_refuted(fault):
    found = tried(cache, fault)
    assert found.verdict is Verdict.REFUTED, found


@pytest.mark.parametrize("fault", [fault for fault, _ in CHUNKS])
def test_each_fault_of_a_chunk_is_refuted(fault):
    found = tried(chunks, fault)
    assert found.verdict is Verdict.REFUTED, found


TWINS = sorted({twin for _, twin in STEPS + CHUNKS} | {TabledAngles}, key=lambda module: module.__name__)


@pytest.mark.parametrize("module", [Decoder, State, AlibiByColumn, Pointwise])
@pytest.mark.parametrize("claim", [cache, chunks])
def test_what_is_right_holds(claim, module):
    found = tried(claim, module)
    assert found.verdict is Verdict.HOLDS, found


@pytest.mark.slow
@pytest.mark.parametrize("module", TWINS)
@pytest.mark.parametrize("claim", [cache, chunks])
def test_every_right_twin_holds(claim, module):
    found = tried(claim, module)
    assert found.verdict is Verdict.HOLDS, found


@pytest.mark.parametrize("claim", [cache, chunks])
def test_what_holds_in_float64_holds_in_its_own_float32(claim):
    assert tried(claim, Decoder, dtype=torch.float32).verdict is Verdict.HOLDS


@pytest.mark.parametrize("fault", [CHUNKS[0][0], CHUNKS[1][0]])
def test_a_fault_of_chunks_alone_is_none_of_single_steps(fault):
    assert tried(cache, fault).verdict is Verdict.HOLDS


@pytest.mark.parametrize("name", ["OffsetTwice", "SingleRestarts", "HoleInTheCache"])
def test_a_fault_of_single_steps_alone_is_none_of_chunks(name):
    fault = next(fault for fault, _ in STEPS if fault.__name__ == name)
    assert tried(chunks, fault).verdict is Verdict.HOLDS


@pytest.mark.parametrize("claim", [cache, chunks])
def test_a_cache_that_changes_nothing_is_inapplicable(claim):
    found = tried(claim, Swallowed)
    assert found.verdict is Verdict.INAPPLICABLE
    assert "changes nothing" in found.reason


def test_a_module_without_a_cache_is_inapplicable():
    assert tried(cache, Uncached).verdict is Verdict.INAPPLICABLE


class ShortTable(Decoder):
    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(30, 16)


def test_no_probe_is_longer_than_the_module_takes():
    assert tried(cache, ShortTable).verdict is Verdict.HOLDS
    assert tried(chunks, ShortTable).verdict is Verdict.HOLDS


class KeepsNothing(Decoder):
    def forward(self, x, past_key_values=None, use_cache=False):
        return super().forward(x)


def test_a_module_that_returns_no_cache_leaves_it_open():
    found = tried(cache, KeepsNothing)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "no cache came back" in found.reason


def test_a_counterexample_is_small():
    fault = next(fault for fault, _ in STEPS if fault.__name__ == "WindowGrows")
    sizes = tried(cache, fault).counterexample["sizes"]
    assert (sizes["batch"], sizes["length"]) == (1, 7)
