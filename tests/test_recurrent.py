"""Recurrent cells and dilated convolution against plain loops, torch's own LSTM and hand-made cases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from whyformer.claims.claim import generator_for
from whyformer.errors import UsageError
from whyformer.subjects.convolution import DilatedConvolution
from whyformer.subjects.recurrent import LSTM, DiagonalCell, VanillaRNN, orthogonal


def generator():
    return generator_for(31, "test_recurrent")


def random(*size, dtype=torch.float64):
    return torch.randn(*size, generator=generator(), dtype=dtype)


@pytest.mark.parametrize("gain", [0.9, 1.0, 1.1])
def test_the_gain_is_every_singular_value(gain):
    cell = VanillaRNN(7, gain, generator=generator())
    torch.testing.assert_close(torch.linalg.svdvals(cell.recurrent), gain * torch.ones(7).double())


def test_orthogonal_matrices_are_orthogonal():
    Q = orthogonal(9, generator())
    torch.testing.assert_close(Q @ Q.mT, torch.eye(9).double())


def test_vanilla_is_its_formula():
    cell, x = VanillaRNN(3, 0.9, generator=generator()), random(2, 5, 3)
    h = torch.zeros(2, 3).double()
    for t in range(5):
        h = torch.tanh(h @ cell.recurrent.T + x[:, t] @ cell.input.T)
    torch.testing.assert_close(cell(x)[:, -1], h)


def test_a_skip_reads_the_state_of_so_many_steps_before():
    cell, x = VanillaRNN(3, 0.9, linear=True, skip=2, generator=generator()), random(1, 4, 3)
    states = [torch.zeros(1, 3).double()]
    for t in range(4):
        h = states[-1] @ cell.recurrent.T + x[:, t] @ cell.input.T
        states.append(h + states[-2] @ cell.over.T if len(states) >= 2 else h)
    torch.testing.assert_close(cell(x), torch.stack(states[1:], 1))


def test_the_lstm_is_torchs_own():
    cell, x = LSTM(4, forget_bias=0.7, generator=generator()), random(3, 6, 4)
    theirs = nn.LSTM(4, 4, batch_first=True, dtype=torch.float64)
    order = [1, 0, 3, 2]  # theirs: input, forget, offer, output; ours: forget, input, output, offer
    with torch.no_grad():
        for name, ours in (("weight_ih_l0", cell.input), ("weight_hh_l0", cell.recurrent)):
            getattr(theirs, name).copy_(torch.cat([ours.chunk(4)[i] for i in order]))
        theirs.bias_ih_l0.copy_(torch.tensor([0, 0.7, 0, 0]).repeat_interleave(4))
        theirs.bias_hh_l0.zero_()
        torch.testing.assert_close(cell(x), theirs(x)[0])


def test_the_diagonal_cell_is_a_sum_of_powers():
    a, x = torch.tensor([0.5, -0.9, 1.0]).double(), random(1, 6, 3)
    cell = DiagonalCell(a, generator=generator())
    drive = x[0] @ cell.input.T
    expected = sum(a ** (5 - t) * drive[t] for t in range(6))
    torch.testing.assert_close(cell(x)[0, -1], expected)


def test_float32_weights_are_the_float64_ones_rounded():
    for make in (
        lambda dtype: VanillaRNN(3, 0.9, generator=generator(), dtype=dtype),
        lambda dtype: LSTM(3, generator=generator(), dtype=dtype),
        lambda dtype: DilatedConvolution(3, 2, generator=generator(), dtype=dtype),
    ):
        for low, high in zip(make(torch.float32).parameters(), make(torch.float64).parameters(), strict=True):
            assert torch.equal(low, high.float())


def test_no_cell_touches_the_global_generator():
    before = torch.random.get_rng_state()
    VanillaRNN(3, 1.0, generator=generator())
    LSTM(3, generator=generator())
    DilatedConvolution(3, 2, generator=generator())
    assert torch.equal(before, torch.random.get_rng_state())


@settings(max_examples=15, deadline=None)
@given(
    layers=st.integers(1, 3),
    kernel=st.integers(2, 3),
    time=st.integers(1, 30),
    dtype=st.sampled_from((32, 64)),
)
def test_a_dilated_convolution_reaches_exactly_its_reach(layers, kernel, time, dtype):
    dtype = torch.float32 if dtype == 32 else torch.float64
    net = DilatedConvolution(3, layers, kernel, generator=generator(), dtype=dtype)
    assert net.reach == kernel**layers
    x = random(1, time, 3, dtype=dtype)
    changed = x.repeat(time, 1, 1)
    changed[torch.arange(time), torch.arange(time)] += 1  # row j has input j changed
    moved = (net(changed) != net(x.repeat(time, 1, 1))).any(-1)
    at = torch.arange(time)
    back = at - at[:, None]  # row j, output i: i − j
    assert torch.equal(moved, (back >= 0) & (back < net.reach))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DilatedConvolution(3, 2, 1, generator=generator()),
        lambda: VanillaRNN(3, 1.0, skip=1, generator=generator()),
    ],
)
def test_unusable_shapes_are_refused_in_one_line(make):
    with pytest.raises(UsageError) as refused:
        make()
    assert "\n" not in str(refused.value)
