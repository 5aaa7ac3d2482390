"""The bounds T0, T1 and T3 to T6: none is exceeded, and none is so loose that a small fault would hide."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.errors import UsageError
from whyformer.instruments import rounding
from whyformer.subjects import biases, positions
from whyformer.subjects.mechanisms import Attention, Stack


def draw(seed, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def pair(make):
    """The same module in float32 and in float64, of the very same weights."""
    low = make(torch.Generator().manual_seed(0), torch.float32)
    high = make(torch.Generator().manual_seed(0), torch.float64)
    high.load_state_dict(low.state_dict())
    return low, high


def test_units_and_gamma():
    assert rounding.unit(torch.float64) == 2.0**-53
    assert rounding.unit(torch.float32) == 2.0**-24
    assert rounding.unit(torch.bfloat16) == 2.0**-8
    assert rounding.gamma(8, torch.float32) == pytest.approx(8 * 2.0**-24, rel=1e-6)
    with pytest.raises(UsageError, match="float64"):
        rounding.gamma(256, torch.bfloat16)


def test_bitwise_means_dtype_and_shape_as_well():
    a = torch.tensor([1.0, 2.0])
    assert rounding.identical(a, a.clone())
    assert not rounding.identical(a, a.double())
    assert not rounding.identical(a, torch.nextafter(a, a + 1))
    assert not rounding.identical(a, a[:1])


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 12),
    d=st.sampled_from([1, 2, 8, 17]),
    sharpness=st.sampled_from([0.1, 1.0, 5.0]),
    causal=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_one_layer_in_float32_stays_within_t1_of_float64(n, d, sharpness, causal, seed):
    q, k, v = (draw(seed + i, 2, n, d, dtype=torch.float32) for i in range(3))
    bias = biases.causal(n) if causal else None

    def attend(dtype):
        s = q.to(dtype) @ k.to(dtype).mT * sharpness
        w = (s if bias is None else s + bias.to(dtype)).softmax(-1)
        return w, w @ v.to(dtype)

    error = rounding.attention(q, k, v, bias, scale=sharpness)
    for low, high, bound in zip(attend(torch.float32), attend(torch.float64), error[1:], strict=True):
        assert ((low.double() - high).abs() <= bound.double()).all()
    assert error.output.isfinite().all()


def test_t1_is_as_tight_as_stated():
    x = draw(1, 1, 6, 8)
    for dtype, most in ((torch.float32, 2e-4), (torch.float64, 4e-13)):
        z = x.to(dtype)
        assert 2 * rounding.attention(z, z, z, scale=8**-0.5).output.max() < most


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": biases.alibi(2)},
        {"rotary": 1e4},
        {"bias": biases.causal, "positions": positions.sinusoidal(9, 8)},
        {"mlp": False},
        {"norm": False},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
@pytest.mark.parametrize("layers", [1, 2])
def test_a_stack_in_float32_stays_within_its_running_bound(options, layers):
    low, high = pair(lambda g, dtype: Stack(8, layers, 2, generator=g, dtype=dtype, **options))
    x = draw(5, 16, 6, 8, dtype=torch.float32)
    with torch.no_grad():
        apart = (low(x).double() - high(x.double())).abs()
        assert (apart <= rounding.forward(low, x)).all()
        assert rounding.forward(high, x.double()).max() < 1e-5  # far below what any fault here does


def test_an_error_that_is_handed_in_is_passed_on():
    stack = Stack(8, 2, 2, bias=biases.causal, rotary=1e4, generator=torch.Generator().manual_seed(2))
    x, step = draw(3, 4, 6, 8), 1e-6
    with torch.no_grad():
        moved = (stack(x + step * draw(4, 4, 6, 8).sign()) - stack(x)).abs()
        assert (moved <= rounding.forward(stack, x, torch.full_like(x, step))).all()
        assert (moved > rounding.forward(stack, x)).any()


def test_a_module_without_a_rule_is_refused():
    with pytest.raises(UsageError, match="ReLU"):
        rounding.forward(torch.nn.ReLU(), torch.zeros(1, 1, 1))


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_layer_norm_and_gelu_within_their_bounds(offset):
    x = draw(7, 200, 16, dtype=torch.float32) + offset
    none = torch.zeros_like(x)
    norm, gelu = torch.nn.functional.layer_norm, torch.nn.functional.gelu
    assert ((norm(x, (16,)).double() - norm(x.double(), (16,))).abs() <= rounding.layer_norm(x, none)).all()
    wide = x * 4
    assert ((gelu(wide).double() - gelu(wide.double())).abs() <= rounding.gelu(wide, none)).all()


@settings(max_examples=20, deadline=None)
@given(shift=st.integers(1, 400), width=st.sampled_from([2, 16, 64]), start=st.integers(0, 5000))
def test_t3_covers_the_turn_of_sinusoids(shift, width, start):
    code = positions.sinusoidal(500, width, start=start)
    apart = (positions.rotate(code, torch.tensor([-shift]))[:-shift] - code[shift:]).abs().max()
    assert apart <= rounding.shifted_waves(start + 499, shift, 1.0, torch.float64)


@pytest.mark.parametrize("angle_dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shift", [1, 37, 1000])
def test_t4_covers_a_shift_of_rotary_scores(angle_dtype, shift):
    q, k, ids = draw(1, 20, 32), draw(2, 20, 32), torch.arange(20)

    def scores(at):
        turn = [positions.rotate(z, at, 1e4, angle_dtype) for z in (q, k)]
        return turn[0] @ turn[1].mT

    apart = (scores(ids + shift) - scores(ids)).abs()
    assert (apart <= rounding.rotary_score(q, k, shift, angle_dtype)).all()
    if angle_dtype is torch.bfloat16 and shift == 1000:
        assert apart.max() > 1000 * rounding.rotary_score(q, k, shift).max()


def test_t5_counts_a_margin_of_more_than_two_errors():
    logits = torch.tensor([[3.0, 1.0, 0.0], [3.0, 2.5, 0.0]])
    assert rounding.decisive(logits, 0.5).tolist() == [True, False]
    assert rounding.decisive(logits, 1.0).tolist() == [False, False]
    assert rounding.decisive(logits, torch.full((2, 3), 0.2)).tolist() == [True, True]


def test_t6_tells_rounding_from_a_violation():
    def swapped(model_for):
        def deviation(dtype):
            x = draw(3, 1, 6, 8).to(dtype)
            model, order = model_for(dtype), torch.tensor([1, 0, 2, 3, 4, 5])
            with torch.no_grad():
                return float((model(x[:, order]) - model(x)[:, order]).abs().max())

        return deviation

    def stack(dtype, table=None):
        g = torch.Generator().manual_seed(1)
        return Stack(8, 8, 2, positions=table, generator=g, dtype=dtype)

    blind = rounding.scaling(swapped(stack))
    ordered = rounding.scaling(swapped(lambda dtype: stack(dtype, 1e-4 * draw(9, 6, 8))))
    assert blind.shrink > 0.8
    assert abs(ordered.shrink) < 0.1
    assert rounding.scaling(lambda dtype: 0.0).shrink == 1.0
    assert rounding.scaling(lambda dtype: 0.0 if dtype is torch.float32 else 1.0).shrink == 0.0


def test_layers_with_projections_bound_scores_weights_and_values():
    low, high = pair(
        lambda g, dtype: Attention(8, 2, bias=biases.alibi(2), rotary=1e4, generator=g, dtype=dtype)
    )
    x = draw(8, 5, 7, 8, dtype=torch.float32)
    with torch.no_grad():
        error = rounding.attention_layer(low, x)
        apart = (low.weights(x).double() - high.weights(x.double())).abs()
        scores = (low.scores(x).double() - high.scores(x.double())).abs().nan_to_num(0.0)
    assert (apart <= error.weights).all()
    assert (scores <= error.scores).all()
    assert not math.isinf(float(error.scores.max()))
