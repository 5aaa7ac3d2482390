"""The words, the waves and the bounds on scores, each beside a naive twin."""

import itertools

import pytest
import torch

from whyformer.instruments.rounding import unit
from whyformer.wire import codes, rotary, scores
from whyformer.wire.circuit import power_of_two


@pytest.mark.parametrize(("count", "balanced"), [(64, False), (127, False), (300, True), (2048, False)])
def test_words_are_as_far_apart_as_the_bound_says(count, balanced):
    code = codes.shortest(count, balanced=balanced)
    assert code.shape[0] == count
    assert set(code.flatten().tolist()) == {-1, 1}
    products = code.float() @ code.float().T
    products.fill_diagonal_(-torch.inf)
    bound = codes.largest_inner_product(code)
    assert products.max() <= bound <= code.shape[1] // 2
    assert not balanced or not code.sum(1).any()


def test_equal_words_and_scattered_words_have_no_small_bound():
    code = codes.shortest(100)
    assert codes.largest_inner_product(torch.cat([code, code[:1]])) is None
    code[7, 3] *= -1
    assert codes.largest_inner_product(code) > code.shape[1] // 2


@pytest.mark.parametrize("length", [8, 16])
def test_the_span_is_enumerated_rightly(length):
    """The bound is met where the words are the whole code, which is linear."""
    size = 2 ** len(codes.generators(length))
    code = codes.words(min(size, 1024), length).float()
    products = code @ code.T
    products.fill_diagonal_(-torch.inf)
    assert int(products.max()) == codes.largest_inner_product(code)


def test_a_whole_power_of_two_is_told():
    assert power_of_two(torch.tensor([0.0, -0.25, 1, 1024]))
    assert not power_of_two(torch.tensor([3.0]))


@pytest.mark.parametrize(("width", "theta", "context"), [(8, 1e4, 40), (16, 1e4, 300), (64, 5e5, 500)])
def test_amplitudes_are_the_best_there_are(width, theta, context):
    """By duality: no mixture of amplitudes beats the margin, as random ones and the corners show."""
    table = rotary.frequencies(width, theta)
    cost = torch.zeros(len(table))
    share, margin = rotary.amplitudes(table, context, cost)
    assert share.sum().item() == pytest.approx(1)

    def least(mix):
        at = rotary.waves(mix, -table.double(), table, context)
        return float(at[1] - torch.cat([at[:1], at[2:]]).max())

    assert least(share) == pytest.approx(margin, abs=1e-5)
    assert margin > 0.05
    generator = torch.Generator().manual_seed(5)
    near = share * torch.empty(300, len(share)).uniform_(0.8, 1.25, generator=generator)
    wild = torch.empty(300, len(share)).exponential_(generator=generator)
    for mix in [*near, *wild, *torch.eye(len(share))]:
        assert least(mix.double() / mix.sum()) <= margin + 1e-5


def test_a_cost_moves_the_amplitudes_away():
    table = rotary.frequencies(16, 1e4)
    free, margin = rotary.amplitudes(table, 200, torch.zeros(8))
    dear = torch.zeros(8)
    dear[int(free.argmax())] = 1
    moved, less = rotary.amplitudes(table, 200, dear)
    assert moved[free.argmax()] < free.max()
    assert less < margin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_error_of_a_table_covers_each_of_its_turns(dtype):
    table = rotary.frequencies(16, 1e4)
    at = torch.arange(500)
    angles = at.float()[:, None] * table
    exact = torch.polar(torch.ones(500, 8).double(), at.double()[:, None] * table.double())
    turn = torch.complex(angles.cos().to(dtype).double(), angles.sin().to(dtype).double())
    off, bound = (turn - exact).abs().amax(0), rotary.table_error(table, 500, dtype)
    assert (off <= bound).all()
    assert (bound <= off + 2.0**-22).all()


def test_scores_of_all_words_at_all_distances_stay_within_their_bounds():
    """Every pair of 128 words of 8 signs, turned by every distance, against ``match`` and ``others``."""
    code = codes.words(128, 8).double()
    theta = torch.tensor([0.01, 0.006, 0.004, 0.001]).double()
    weight = torch.tensor([1.0, 0.5, 2, 1]).double()
    content = scores.Content(weight, theta, codes.largest_inner_product(code))
    vectors = torch.complex(code[:, :4], code[:, 4:])
    at = torch.arange(0, 120, 7).double()
    match, others = content.match(at), content.others(at)
    for i, distance in enumerate(at):
        turned = vectors * torch.polar(weight, theta * distance)
        products = (turned @ vectors.mH).real
        assert torch.allclose(products.diagonal(), match[i].expand(128))
        products.fill_diagonal_(-torch.inf)
        assert products.max() <= others[i] + 1e-9
    still = scores.Content(torch.ones(4).double(), torch.zeros(4).double(), content.inner)
    assert still.others(at[:1]).item() == pytest.approx(content.inner)


def test_gaps_are_those_of_every_query_and_key():
    generator = torch.Generator().manual_seed(1)
    match, others, first, ramp = (torch.rand(9, generator=generator).double() for _ in range(4))
    told = scores.gaps(match, others, first, ramp)
    twin, far, rest = match + ramp, first + ramp, others + ramp
    pairs = [(t, d) for t in range(1, 9) for d in range(t)]
    assert told.twin == pytest.approx(min(float(twin[d] - far[t]) for t, d in pairs))
    assert told.first == pytest.approx(min(float(far[t] - rest[d]) for t, d in pairs))
    assert told.step == pytest.approx(min(float(a - b) for a, b in itertools.pairwise(twin)))


@pytest.mark.parametrize("step", [0.5, 6.0, 12.0, 16.0])
def test_the_latest_twin_keeps_its_share_of_the_weight(step):
    """Of 5,000 twins, each a step farther back; in float32 few of them have a weight at all."""
    kept, spread = scores.share(step, 5000, torch.float32)
    fall = -step * torch.arange(5000).double()
    assert kept <= fall.softmax(0)[0] <= kept + 1e-12
    weights = fall.float().softmax(0)
    assert abs(float(weights.double().sum()) - 1) <= spread
    assert int((weights > 0).sum()) <= 104 / step + 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_as_an_engine_takes_them_stay_within_their_rounding(dtype):
    """Turned queries and keys in the dtype, products summed in float32, both orders of scaling."""
    width, context, root = 32, 400, 32**0.5
    table = rotary.frequencies(width, 1e4)
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn(width, generator=generator).mul(8).to(dtype) for _ in range(2))
    at = torch.arange(context)
    angles = torch.cat([at.float()[:, None] * table] * 2, -1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def turned(x):
        swapped = torch.cat([-x[16:], x[:16]])
        return x * cos + swapped * sin

    z = [torch.complex(x[:16].double(), x[16:].double()) for x in (q, k)]
    size = z[0].abs() * z[1].abs() / root
    exact = rotary.waves(size, z[0].angle() - z[1].angle(), table, context)
    bound = scores.stray(size, rotary.table_error(table, context, dtype), width, dtype)
    last, keys = turned(q)[-1], turned(k)
    plain = (keys @ last) * (1 / root)
    spread = (keys * root**-0.5) @ (last * root**-0.5)
    for got in (plain, spread):
        off = (got.double() - exact.flip(0)).abs().max()
        assert off <= bound
        assert off > bound * unit(torch.float32)
