"""Packed documents: each kind of fault refuted on the path that has it, and its right twin held."""

import pytest
from faults_decoder import Decoder, Uncached
from faults_packing import PACKING, OffUnderAMask, PositionsSwallowed
from trying import tried

from whyformer.claims.audit.packing import CLAIMS, packing
from whyformer.claims.claim import prove
from whyformer.finding import Verdict


def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test():
    assert prove(CLAIMS[0], 31).counts


@pytest.mark.parametrize(("fault", "twin"), PACKING)
def test_each_kind_of_fault_is_refuted_and_its_right_twin_holds(fault, twin):
    found = tried(packing, fault)
    assert found.verdict is Verdict.REFUTED, found
    found = tried(packing, twin)
    assert found.verdict is Verdict.HOLDS, found


def test_the_paths_that_keep_documents_apart_are_named():
    found = tried(packing, OffUnderAMask)
    assert found.path["mask"] == "ones"
    assert "kept apart with mask none, cache off" in found.reason


def test_a_plain_decoder_keeps_nothing_apart():
    assert tried(packing, Decoder).verdict is Verdict.REFUTED


@pytest.mark.parametrize("module", [PositionsSwallowed, Uncached])
def test_without_positions_that_are_used_it_is_inapplicable(module):
    assert tried(packing, module).verdict is Verdict.INAPPLICABLE
