"""Attention, its biases and its positions against naive twins."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.errors import UsageError
from whyformer.subjects import biases, positions
from whyformer.subjects.mechanisms import Attention, Stack


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def naive_attention(layer, x, ids):
    """One sequence, with loops over heads, queries and keys."""
    n, width = x.shape
    d = width // layer.heads
    bias = layer.bias(n).expand(layer.heads, n, n)
    q, k, v = ((x @ part.weight.T).detach() for part in (layer.q, layer.k, layer.v))
    mixed = torch.zeros_like(x)
    for h in range(layer.heads):
        own = slice(h * d, (h + 1) * d)
        for i in range(n):
            numerators = []
            for j in range(n):
                a, b = q[i, own].clone(), k[j, own].clone()
                if layer.rotary is not None:
                    a, b = (turned(z, int(p), layer.rotary) for z, p in ((a, ids[i]), (b, ids[j])))
                numerators.append(math.exp(float(a @ b) * layer.scale + float(bias[h, i, j])))
            for j in range(n):
                mixed[i, own] += numerators[j] / sum(numerators) * v[j, own]
    return mixed @ layer.o.weight.T


def turned(z, position, base):
    out = z.clone()
    for pair in range(len(z) // 2):
        angle = position * base ** (-2 * pair / len(z))
        a, b = z[2 * pair], z[2 * pair + 1]
        out[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
        out[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 6),
    heads=st.sampled_from([1, 2, 3]),
    rotary=st.sampled_from([None, 10.0, 1e4]),
    bias=st.sampled_from([None, biases.causal, biases.window(2), biases.prefix(2)]),
    start=st.integers(0, 50),
    seed=st.integers(0, 10**6),
)
def test_attention_is_the_sum_that_it_stands_for(n, heads, rotary, bias, start, seed):
    g = generator(seed)
    layer = Attention(4 * heads, heads, bias=bias, rotary=rotary, generator=g)
    x, ids = torch.randn(2, n, 4 * heads, generator=g, dtype=torch.float64), torch.arange(start, start + n)
    y = layer(x, ids)
    for row in range(2):
        torch.testing.assert_close(y[row], naive_attention(layer, x[row], ids), rtol=1e-11, atol=1e-11)
    weights = layer.weights(x, ids)
    assert weights.shape == (2, heads, n, n)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, heads, n, dtype=torch.float64))
    torch.testing.assert_close(layer(x, ids.expand(2, n)), y)


def test_a_stack_is_its_parts_in_order():
    g = generator()
    stack = Stack(8, 2, 2, bias=biases.causal, positions=positions.learned(9, 8, g), generator=g)
    x = torch.randn(3, 5, 8, generator=g, dtype=torch.float64)
    want = x + stack.positions[:5]
    for block in stack.blocks:
        norm = torch.nn.LayerNorm(8, dtype=torch.float64)
        want = want + block.attention(norm(want))
        want = want + torch.nn.functional.gelu(norm(want) @ block.up.weight.T) @ block.down.weight.T
    torch.testing.assert_close(stack(x), want)
    torch.testing.assert_close(stack(x, torch.arange(5)), want)
    assert not torch.allclose(stack(x, torch.arange(2, 7)), want)


def test_bare_stacks_have_no_mlp_and_no_norm():
    stack = Stack(8, 1, mlp=False, norm=False, generator=generator())
    x = torch.randn(1, 4, 8, dtype=torch.float64, generator=generator(1))
    torch.testing.assert_close(stack(x), x + stack.blocks[0].attention(x))


def test_weights_come_from_the_generator_alone():
    before = torch.random.get_rng_state()
    one = Stack(8, 2, 2, generator=generator(3))
    two = Stack(8, 2, 2, generator=generator(3), dtype=torch.float32)
    assert torch.equal(before, torch.random.get_rng_state())
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a.float(), b)


@pytest.mark.parametrize(
    ("bias", "seen"),
    [
        (biases.none, ["111", "111", "111"]),
        (biases.causal, ["100", "110", "111"]),
        (biases.prefix(2), ["110", "110", "111"]),
        (biases.documents((1, 2)), ["100", "011", "011"]),
        (biases.window(2), ["100", "110", "011"]),
        (biases.window(2, causal=False), ["110", "111", "011"]),
    ],
)
def test_masks_row_by_row(bias, seen):
    table = bias(3)
    assert table.dtype is torch.float64
    assert table.shape == (1, 3, 3)
    assert ["".join(str(int(cell)) for cell in row) for row in table[0].isfinite()] == seen
    assert not table[table.isfinite()].any()


def test_ramps_and_rings():
    row = torch.tensor([5.0, 6.0, 7.0])
    assert biases.circulant(row)(3).tolist() == [[[5, 6, 7], [7, 5, 6], [6, 7, 5]]]
    assert biases.key_only(row)(2).tolist() == [[[5, 6], [5, 6]]]
    assert biases.key_only(torch.stack((row, -row)))(2)[1].tolist() == [[-5, -6], [-5, -6]]
    both = biases.add(biases.causal, biases.key_only(row))(3)
    assert both.tolist() == [[[5, -math.inf, -math.inf], [5, 6, -math.inf], [5, 6, 7]]]
    assert biases.alibi(8)(3)[0].tolist() == [[0, -math.inf, -math.inf], [-0.5, 0, -math.inf], [-1, -0.5, 0]]
    assert biases.alibi(8, causal=False)(2)[7].tolist() == [[0, -(2.0**-8)], [-(2.0**-8), 0]]


def naive_t5_bucket(distance, buckets, signed):
    """The bucket of a distance i − j, with ``buckets`` in the whole table."""
    side = 0
    if signed:
        buckets //= 2
        side = buckets if distance < 0 else 0
    distance, exact = abs(distance), buckets // 2
    if distance < exact:
        return side + distance
    wide = exact + int(math.log(distance / exact) / math.log(128 / exact) * (buckets - exact))
    return side + min(wide, buckets - 1)


@pytest.mark.parametrize("signed", [True, False])
def test_t5_buckets(signed):
    table = torch.arange(32.0)[None]
    bias = biases.t5(table, signed)(200)[0]
    for i, j in [(0, 0), (5, 0), (0, 5), (60, 3), (3, 60), (199, 0), (0, 199), (17, 0), (0, 9)]:
        assert bias[i, j] == naive_t5_bucket(i - j, 32, signed)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Attention(7, 2, generator=generator()),
        lambda: Attention(6, 2, rotary=1e4, generator=generator()),
        lambda: biases.window(0),
        lambda: biases.documents((2, 3))(4),
        lambda: biases.circulant(torch.zeros(3))(4),
        lambda: biases.key_only(torch.zeros(3))(4),
        lambda: biases.t5(torch.zeros(1, 3)),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(call):
    with pytest.raises(UsageError) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rotary_is_the_naive_turn(dtype):
    x = torch.randn(5, 6, dtype=dtype, generator=generator())
    got = positions.rotate(x, torch.arange(3, 8), 100.0)
    want = torch.stack([turned(x[i], i + 3, 100.0) for i in range(5)])
    torch.testing.assert_close(got, want)
    coarse = positions.rotate(x, torch.arange(1000, 1005), 100.0, torch.bfloat16)
    assert coarse.dtype is dtype
    assert not torch.allclose(coarse, positions.rotate(x, torch.arange(1000, 1005), 100.0), atol=0.1)


def test_sinusoids_by_the_formula():
    code = positions.sinusoidal(4, 6, base=50.0, start=9)
    for p in range(4):
        for pair in range(3):
            angle = (9 + p) / 50.0 ** (2 * pair / 6)
            assert code[p, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-14)
            assert code[p, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-14)
