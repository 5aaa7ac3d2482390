"""Claims 14 to 24: each holds, its refuter is refuted by the same test, and so are other planted faults."""

import json
import math

import pytest
import torch
from torch import nn

from whyformer.claims.claim import generator_for, prove
from whyformer.claims.judging import PLANTED
from whyformer.claims.order import blindness, masks
from whyformer.claims.order import positions as placed
from whyformer.finding import Strength, Verdict
from whyformer.subjects import biases, positions
from whyformer.subjects.mechanisms import Attention, Stack

CLAIMS = {claim.id: claim for module in (blindness, masks, placed) for claim in module.CLAIMS}


def tried(claim_id, subject):
    return CLAIMS[claim_id].test(subject, generator_for(0, "draws"))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", [0, 31])
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_the_claim_holds_and_its_refuter_is_refuted(claim, seed):
    trial = prove(claim, seed)
    assert trial.counts
    assert trial.finding.verdict is Verdict.HOLDS, trial.finding
    assert trial.finding.strength is Strength.PROVED
    assert trial.refutation.verdict is Verdict.REFUTED, trial.refutation
    for finding in (trial.finding, trial.refutation):
        assert finding.claim == claim.id
        assert finding.reason
        assert finding.bound_from
        assert math.isfinite(finding.measured)
        assert math.isfinite(finding.bound)
    assert json.loads(json.dumps(trial.refutation.counterexample, allow_nan=False))
    assert prove(claim, seed) == trial


def test_there_are_eleven():
    assert len(CLAIMS) == 11
    assert all(claim_id.startswith("order.") for claim_id in CLAIMS)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": biases.causal},
        {"bias": biases.alibi(2, causal=False)},
        {"rotary": 1e4},
        {"positions": positions.sinusoidal(7, 4)},
        {"positions": 1e-4 * positions.learned(7, 4, generator())},
    ],
    ids=["causal", "alibi", "rotary", "sinusoids", "small rows"],
)
def test_whatever_orders_a_stack_is_caught(options):
    finding = tried("order.equivariance", Stack(4, 2, 2, generator=generator(), **options))
    assert finding.verdict is Verdict.REFUTED


def test_a_witness_can_be_replayed():
    stack = Stack(4, 2, 2, bias=biases.causal, generator=generator())
    found = tried("order.equivariance", stack)
    x = torch.tensor(found.counterexample["input"], dtype=torch.float64)
    order, at = found.counterexample["permutation"], found.counterexample["position"]
    with torch.no_grad():
        moved, kept = stack(x[order][None])[0, at], stack(x[None])[0, order[at]]
    # Other batch shapes may round differently, by far less than what is shown.
    torch.testing.assert_close(moved.tolist(), found.counterexample["permuted_first"], rtol=0, atol=1e-9)
    torch.testing.assert_close(kept.tolist(), found.counterexample["permuted_after"], rtol=0, atol=1e-9)
    assert (moved - kept).abs().max() == pytest.approx(found.measured, abs=1e-9)


def test_a_bound_that_is_lost_decides_nothing():
    deep = Stack(4, 12, 2, generator=generator())
    finding = tried("order.equivariance", deep)
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert finding.bound is None


def test_the_groups_are_of_the_known_orders():
    reason = prove(CLAIMS["order.bias-automorphisms"], 5).finding.reason
    for told in (
        "none 120",
        "query-only 120",
        ", causal 1,",
        "prefix of 3 6",
        "documents of 2 and 3 12",
        "both ways 2",
        "circulant 5",
        "symmetric circulant 10",
        "key-only 1",
        "ALiBi both ways 2",
        "ALiBi causal 1",
        "T5 signed 1",
        "T5 unsigned 2",
    ):
        assert told in reason


def test_a_prediction_that_is_too_small_is_caught_as_well():
    # The bias says causal, but what is computed is not masked: more commutes than predicted.
    class Unmasked(Attention):
        def scores(self, x, position_ids=None):
            return self.q(x)[:, None] @ self.k(x)[:, None].mT * self.scale

    layer = Unmasked(16, bias=biases.causal, generator=generator())
    finding = tried("order.bias-automorphisms", {"unmasked": layer})
    assert finding.verdict is Verdict.REFUTED
    assert finding.measured == 119
    assert finding.counterexample["predicted"] is False


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("mlp", [True, False])
def test_a_causal_mask_orders_any_stack(layers, mlp):
    stack = Stack(4, layers, 2, bias=biases.causal, mlp=mlp, generator=generator(layers))
    assert tried("order.causal-mask", stack).verdict is Verdict.HOLDS


@pytest.mark.parametrize("bias", [biases.none, biases.prefix(2), biases.window(3, causal=False)])
def test_other_masks_leave_a_symmetry(bias):
    finding = tried("order.causal-mask", Stack(4, 1, 2, bias=bias, generator=generator()))
    assert finding.verdict is Verdict.REFUTED
    assert finding.counterexample["permutation"] != list(range(7))


def test_a_window_is_ordered_but_its_outputs_depend_on_fewer_inputs():
    finding = tried("order.causal-mask", Stack(4, 1, 2, bias=biases.window(3), generator=generator()))
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "1, 2, 3, 3, 3, 3, 3" in finding.reason


def test_positions_count_copies():
    stack = Stack(8, 1, 2, bias=biases.causal, positions=positions.sinusoidal(24, 8), generator=generator())
    assert tried("order.repeated-token", stack).verdict is Verdict.REFUTED


def test_alibi_does_not_count_copies_either():
    stack = Stack(8, 1, 2, bias=biases.alibi(2), generator=generator())
    assert tried("order.repeated-token", stack).verdict is Verdict.HOLDS


def test_a_key_only_bias_is_not_relative():
    finding = tried("order.toeplitz-bias", {"ramp": biases.key_only(torch.arange(64.0))})
    assert finding.verdict is Verdict.REFUTED
    assert finding.counterexample["later"] - finding.counterexample["here"] == 1


def test_a_mask_that_is_not_relative_is_caught():
    finding = tried("order.toeplitz-bias", {"prefix": biases.prefix(3)})
    assert finding.verdict is Verdict.REFUTED
    assert finding.measured == 2  # 0 and 1 see 2, but 1 and 2 do not see 3
    assert finding.counterexample["later"] is None


def test_a_wrong_slope_is_not_alibi():
    wrong = biases.key_only(biases.alibi_slopes(4)[:, None] * torch.arange(32) * (1 + 1e-9))
    twins = masks.twins(biases.alibi(4), biases.add(biases.causal, wrong), generator())
    assert tried("order.key-only-alibi", twins).verdict is Verdict.REFUTED


@pytest.mark.parametrize("base", [50.0, 500.0, 2e4])
def test_sinusoids_of_another_base_are_not_called_a_failure(base):
    code = positions.sinusoidal(1000, 64, base=base)
    finding = tried("order.sinusoid-rotation", code)
    assert finding.verdict is Verdict.INCONCLUSIVE  # turned by other angles, yet by one linear map


@pytest.mark.parametrize(
    "fault",
    [
        torch.tensor([2.0, 1.0]).repeat(32).double(),
        0.999 ** torch.arange(1000, dtype=torch.float64)[:, None],
        torch.tensor([1 + 1e-6, 1.0], dtype=torch.float64).repeat(32),
    ],
    ids=["ellipses", "damped", "nearly circles"],
)
def test_a_linear_map_that_changes_lengths_is_not_orthogonal(fault):
    finding = tried("order.sinusoid-rotation", positions.sinusoidal(1000, 64) * fault)
    assert finding.verdict is Verdict.REFUTED
    before, later = finding.counterexample["product"], finding.counterexample["product_later"]
    assert abs(before - later) == finding.measured


def test_a_slightly_bent_code_is_caught():
    code = positions.sinusoidal(1000, 64)
    code[500] += 1e-6
    assert tried("order.sinusoid-rotation", code).verdict is Verdict.REFUTED


@pytest.mark.parametrize("table", [positions.learned(1012, 16, generator()), positions.sinusoidal(1012, 16)])
def test_added_rows_see_a_shift(table):
    model = placed.Placed(Attention(16, 2, generator=generator(1)), table)
    assert tried("order.rotary-shift", model).verdict is Verdict.REFUTED
    assert tried("order.sinusoid-shift", model).verdict is Verdict.HOLDS


def test_sinusoids_through_the_identity_still_see_a_shift_by_their_tokens():
    layer = Attention(16, generator=generator())
    with torch.no_grad():
        for part in (layer.q, layer.k):
            nn.init.eye_(part.weight)
    model = placed.Placed(layer, positions.sinusoidal(19, 16))
    assert tried("order.sinusoid-shift", model).verdict is Verdict.HOLDS


def test_rotary_in_float32_angles_is_seen_in_float64():
    layer = Attention(16, 2, rotary=1e4, angle_dtype=torch.float32, generator=generator())
    assert tried("order.rotary-shift", layer).verdict is Verdict.REFUTED


def test_positions_that_come_in_by_the_values_are_seen():
    # The scores are rotary and do not change; the values are turned as well, and the outputs change.
    class ValuesTurned(Attention):
        def forward(self, x, position_ids=None):
            values = self.turn(self.split(self.v(x)), position_ids)
            return self.o(self.merge(self.weights(x, position_ids) @ values))

    finding = tried("order.rotary-shift", ValuesTurned(16, 2, rotary=1e4, generator=generator()))
    assert finding.verdict is Verdict.REFUTED
    assert abs(finding.counterexample["output"] - finding.counterexample["shifted"]) == finding.measured > 0.1


def tiny(module, factor=1e-13):
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(factor)
    return module


def test_rows_that_differ_by_less_than_rounding_are_not_called_equal():
    rows = torch.ones(6, 16, dtype=torch.float64) + 1e-13 * torch.arange(6)[:, None]
    model = placed.Placed(Attention(16, 2, generator=generator()), rows)
    finding = tried("order.learned-rows", {"nearly equal": model})
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "are not decided" in finding.reason


def test_a_table_that_is_not_added_is_caught():
    class Forgotten(placed.Placed):
        def placed(self, x, position_ids=None):
            return x

    model = Forgotten(Attention(16, 2, generator=generator()), positions.learned(6, 16, generator(1)))
    finding = tried("order.learned-rows", {"forgotten": model})
    assert finding.verdict is Verdict.REFUTED
    assert finding.measured == 719


def test_a_bias_below_rounding_is_not_called_a_symmetry():
    faint = biases.key_only(1e-15 * torch.arange(5))
    finding = tried(
        "order.bias-automorphisms", {"faint": Attention(16, 2, bias=faint, generator=generator())}
    )
    assert finding.verdict is Verdict.INCONCLUSIVE


def test_a_mask_below_rounding_is_not_called_a_symmetry():
    stack = tiny(Stack(4, 1, 2, bias=biases.causal, mlp=False, generator=generator()))
    assert tried("order.causal-mask", stack).verdict is Verdict.INCONCLUSIVE


def test_sinusoids_below_rounding_are_not_called_blind_to_a_shift():
    table = 1e-15 * positions.sinusoidal(19, 16)
    model = placed.Placed(Attention(16, 2, generator=generator()), table)
    assert tried("order.sinusoid-shift", model).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [PLANTED, 1e-10, 1e-8])
def test_a_code_far_below_t1_is_not_called_nothing(size, seed):
    def stack(n, width, bias=None):
        code = size * positions.sinusoidal(n, width)
        return Stack(width, 2, 2, bias=bias, positions=code, generator=generator(seed))

    for claim_id, subject in (
        ("order.equivariance", stack(7, 4)),
        ("order.bag-of-words", blindness.Pooled(stack(6, 8))),
        ("order.repeated-token", stack(24, 8, biases.causal)),
    ):
        finding = tried(claim_id, subject)
        assert finding.verdict in (Verdict.INCONCLUSIVE, Verdict.REFUTED), claim_id
