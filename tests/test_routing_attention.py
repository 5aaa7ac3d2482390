"""Claims 1, 2, 4, 5 and 9: each holds, its refuter is refuted, and its figures are those of a naive twin."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.claims.claim import generator_for, prove
from whyformer.claims.routing import attention as routing
from whyformer.claims.routing import dilution
from whyformer.errors import UsageError
from whyformer.finding import Strength, Verdict
from whyformer.subjects import biases
from whyformer.subjects.convolution import DilatedConvolution
from whyformer.subjects.mechanisms import Attention, Stack


@pytest.mark.parametrize("seed", [0, 31])
@pytest.mark.parametrize("claim", routing.CLAIMS, ids=lambda claim: claim.id)
def test_the_claim_holds_and_its_refuter_is_refuted(claim, seed):
    trial = prove(claim, seed)
    assert trial.finding.verdict is Verdict.HOLDS, trial.finding
    assert trial.finding.strength is Strength.PROVED
    assert trial.refutation.verdict is Verdict.REFUTED, trial.refutation
    assert trial.refutation.counterexample
    for finding in (trial.finding, trial.refutation):
        assert math.isfinite(finding.measured)
        assert math.isfinite(finding.bound)


@pytest.mark.parametrize(("kernel", "layers", "time"), [(2, 1, 5), (2, 3, 11), (3, 2, 12)])
def test_dilated_convolutions_reach_by_powers(kernel, layers, time):
    g = torch.Generator().manual_seed(0)
    module = DilatedConvolution(8, layers, kernel, generator=g)
    expected = routing.Expected("dilated", module, routing.band(kernel**layers - 1, time))
    assert routing.linked_as_expected("routing.window-depth", [expected], g).verdict is Verdict.HOLDS


def test_a_hop_that_the_mask_forbids_is_seen_too():
    g = generator_for(0, "leak")
    leak = routing.Expected("leak", Attention(8, bias=biases.none, generator=g), torch.ones(4, 4).tril() > 0)
    finding = routing.linked_as_expected("routing.one-hop", [leak], g)
    assert finding.verdict is Verdict.REFUTED
    assert finding.measured == 12  # 6 pairs above the diagonal, in two dtypes
    assert finding.counterexample["linked"] is True


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 9), st.integers(0, 2**31))
def test_window_depth_at_drawn_sizes(window, layers, time, seed):
    g = torch.Generator().manual_seed(seed)
    stack = Stack(8, layers, 2, bias=biases.window(window), generator=g)
    expected = routing.Expected("stack", stack, routing.band(layers * (window - 1), time))
    assert routing.linked_as_expected("routing.window-depth", [expected], g).verdict is Verdict.HOLDS


def test_the_value_gradient_is_that_of_the_weighted_sum():
    g = torch.Generator().manual_seed(0)
    layer = Attention(8, 2, bias=biases.causal, generator=g)
    x = torch.randn(3, 5, 8, generator=g, dtype=torch.float64)
    at = torch.tensor([0, 2, 4])
    values = layer.v(x).detach()

    def from_values(v):
        return layer.o(layer.merge(layer.weights(x) @ layer.split(v)))[:, -1]

    slopes = torch.autograd.functional.jacobian(from_values, values)
    naive = torch.stack([slopes[b, :, b, at[b]] for b in range(3)])
    torch.testing.assert_close(routing.value_gradients(layer, x, at), naive, rtol=1e-13, atol=1e-14)


def test_a_rotary_head_is_not_gap_free():
    g = torch.Generator().manual_seed(1)
    layer = Attention(8, bias=biases.causal, rotary=1e4, generator=g)
    assert routing.gap_moves_nothing(layer, g).verdict is Verdict.REFUTED


def test_positions_end_the_bag_of_the_prefix():
    g = torch.Generator().manual_seed(1)
    rows = 0.1 * torch.randn(6, 8, generator=g, dtype=torch.float64)
    stack = Stack(8, 1, 2, bias=biases.causal, positions=rows, generator=g)
    finding = routing.prefix_order_is_lost(stack, g)
    assert finding.verdict is Verdict.REFUTED
    assert sorted(finding.counterexample["order"]) == list(range(6))


@pytest.mark.parametrize(("sharpness", "last"), [(-3, 0), (0, 0), (1, 2), (5, 148), (30, 10686474581524)])
def test_the_edge(sharpness, last):
    assert dilution.edge(sharpness) == last


@given(st.floats(-20, 700).filter(lambda sharpness: not 0 < sharpness < 1e-300))
def test_the_edge_is_where_the_exponential_is_passed(sharpness):
    last = dilution.edge(sharpness)
    with localcontext() as context:
        context.prec = 400
        grown = Decimal(sharpness).exp()
    assert last < grown or last == 0
    assert last + 1 >= grown


@given(st.floats(0.1, 20))
def test_the_margin_changes_sign_at_the_edge(sharpness):
    last = dilution.edge(sharpness)
    assert dilution.margin(sharpness, last) >= 0 >= dilution.margin(sharpness, last + 1)
    for n in (0, last, last + 1):
        w = dilution.weight(sharpness, n)
        assert dilution.margin(sharpness, n) == pytest.approx(2 * w - 1, abs=1e-14)


@pytest.mark.parametrize("sharpness", [math.nan, math.inf, -math.inf, 701.0])
def test_a_sharpness_without_an_edge(sharpness):
    with pytest.raises(UsageError, match="sharpness"):
        dilution.edge(sharpness)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharpness", [0.8, 2.0, 3.3, 5.0])
def test_real_tensors_turn_at_the_edge(sharpness, dtype):
    last = dilution.edge(sharpness)
    for n, wins in ((last, True), (last + 1, False)):
        layer = dilution.Lookup(sharpness).layer(n + 1, dtype)
        for position in (0, n // 2):
            x = dilution.beside(-torch.ones(n + 1, dtype=dtype), position)
            y = layer(x[None])[0, -1]
            assert (y[dilution.MATCH] > y[dilution.OTHER]).item() is wins


def test_rivals_that_disagree_do_not_win_past_the_edge():
    # The edge is where all of them together weigh more; they copy one token in the worst case only.
    last = dilution.edge(5.0)
    x = dilution.beside(-torch.ones(last + 11, dtype=torch.float64))
    x[1::2, dilution.OTHER] = 0
    layer = dilution.Lookup(5.0).layer(len(x))
    y = layer(x[None])[0, -1]
    assert layer.weights(x[None])[0, 0, -1, 0] < 0.5
    assert y[dilution.MATCH] > y[dilution.OTHER]
    for claim in (dilution.DILUTION.sentence, dilution.DILUTION.rule):
        assert "loses" not in claim


def test_a_head_sharper_than_it_says_is_refuted_by_its_weight():
    class Sharper(dilution.Lookup):
        def layer(self, keys, dtype=torch.float64):
            return dilution.Lookup(self.sharpness + 1e-9).layer(keys, dtype)

    finding = dilution.law_of_dilution(Sharper(5.0), torch.Generator().manual_seed(0))
    assert finding.verdict is Verdict.REFUTED
    assert 0 < finding.measured < 1e-9
