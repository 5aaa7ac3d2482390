"""Jacobians over a gap, against torch's own and against plain loops."""

from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.claims.claim import generator_for
from whyformer.instruments import rounding, signal
from whyformer.subjects.recurrent import LSTM, DiagonalCell, VanillaRNN

CELLS = {
    "contractive": lambda g, t: VanillaRNN(4, 0.9, generator=g, dtype=t),
    "orthogonal": lambda g, t: VanillaRNN(4, 1.0, linear=True, generator=g, dtype=t),
    "expanding": lambda g, t: VanillaRNN(4, 1.1, linear=True, generator=g, dtype=t),
    "lstm": lambda g, t: LSTM(3, generator=g, dtype=t),
    "diagonal": lambda g, t: DiagonalCell(torch.tensor([0.9, -1.0]), generator=g, dtype=t),
    "skip": lambda g, t: VanillaRNN(4, 0.9, skip=3, generator=g, dtype=t),
}


def case(name, time, dtype=torch.float64, batch=2, seed=0):
    g = generator_for(seed, f"test_signal/{name}")
    cell = CELLS[name](g, dtype)
    x = torch.randn(batch, time, cell.width, generator=g, dtype=dtype)
    return cell, x, torch.randn(batch, cell.state, generator=g, dtype=dtype)


@pytest.mark.parametrize("name", CELLS)
def test_gap_jacobians_are_those_of_torch(name):
    cell, x, start = case(name, 5)
    found = signal.gap_jacobians(cell, x, start)
    for sequence in range(2):
        states = cell.unroll(x[sequence], start[sequence])
        for gap in range(1, 6):
            older = states[: 5 - gap]

            def last(state, older=older, sequence=sequence, gap=gap):
                run = [*older, state]
                for now in x[sequence, 5 - gap :]:
                    run.append(cell.step(now, run))
                return run[-1]

            expected = torch.autograd.functional.jacobian(last, states[5 - gap])
            torch.testing.assert_close(found[gap - 1, sequence], expected)


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(("contractive", "orthogonal", "expanding", "diagonal")),
    time=st.integers(1, 24),
    dtype=st.sampled_from((torch.float32, torch.float64)),
    seed=st.integers(0, 99),
)
def test_the_gap_is_the_product_of_its_steps_within_rounding(name, time, dtype, seed):
    cell, x, start = case(name, time, dtype, seed=seed)
    steps = signal.step_jacobians(cell, x, start)
    product = signal.products(steps)
    distance = torch.linalg.matrix_norm(signal.gap_jacobians(cell, x, start) - product)
    bound = signal.product_error(steps)
    assert (distance <= 2 * bound).all()


def test_the_sums_inside_an_lstms_step_stray_little_more():
    cell, x, start = case("lstm", 24, batch=16)
    steps = signal.step_jacobians(cell, x, start)
    distance = torch.linalg.matrix_norm(signal.gap_jacobians(cell, x, start) - signal.products(steps))
    assert (distance <= rounding.CLEAR * 2 * signal.product_error(steps)).all()


def test_products_and_their_error_against_exact_arithmetic():
    cell, x, start = case("orthogonal", 40, torch.float32)
    steps = signal.step_jacobians(cell, x, start)
    exact = torch.eye(4).double()
    for gap, step in enumerate(steps[:, 0].double()):
        exact = exact @ step
        distance = torch.linalg.matrix_norm(signal.products(steps)[gap, 0].double() - exact)
        assert distance <= signal.product_error(steps)[gap, 0]


def test_the_elementwise_bound_says_nothing_over_a_long_gap():
    cell, x, start = case("orthogonal", 256)
    steps = signal.step_jacobians(cell, x, start)
    assert signal.product_error(steps)[-1].max() < 1e-11
    # T2 elementwise is γ_g(d+2) times the product of the steps' absolute values, which grows with the gap.
    product = reduce(torch.matmul, steps[:, 0].flip(0).abs())
    elementwise = rounding.gamma(256 * (cell.width + 2), steps.dtype) * product
    assert elementwise.max() > 1


def test_a_skip_goes_round_the_product():
    cell, x, start = case("skip", 8)
    steps = signal.step_jacobians(cell, x, start)
    far = signal.gap_jacobians(cell, x, start) - signal.products(steps)
    assert far[:2].abs().max() <= 2 * signal.product_error(steps)[:2].max()
    assert far[2].abs().max() > 0.1


def test_norms_over_a_gap_of_256():
    def left(cell):
        g = generator_for(0, "norms")
        x = torch.randn(1, 256, cell.width, generator=g, dtype=torch.float64)
        start = torch.zeros(1, cell.state, dtype=torch.float64)
        return float(signal.norms(signal.gap_jacobians(cell, x, start))[-1, 0])

    g = generator_for(0, "cells")
    assert left(VanillaRNN(8, 0.9, linear=True, generator=g)) == pytest.approx(0.9**256, rel=1e-10)
    assert left(VanillaRNN(8, 1.0, linear=True, generator=g)) == pytest.approx(1, rel=1e-10)
    assert left(VanillaRNN(8, 1.1, linear=True, generator=g)) == pytest.approx(1.1**256, rel=1e-10)
    assert left(DiagonalCell(torch.tensor([0.99, 0.5]), generator=g)) == pytest.approx(0.99**256, rel=1e-5)
    assert left(LSTM(8, forget_bias=0.0, recurrence=0.0, generator=g)) < 1e-30
    assert left(LSTM(8, forget_bias=50.0, recurrence=0.0, generator=g)) >= 1
