"""The permutations that a map commutes with: all of them, some of them, and against naive twins."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.errors import UsageError
from whyformer.instruments import rounding, symmetry
from whyformer.subjects import biases
from whyformer.subjects.mechanisms import Attention


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(bias, seed=0):
    return Attention(16, 2, bias=bias, generator=torch.Generator().manual_seed(seed))


def measured(f, x):
    with torch.no_grad():
        return symmetry.group(f, x, 2 * float(rounding.forward(f, x[None]).max()))


def test_all_permutations_in_order():
    assert symmetry.permutations(3).tolist() == [list(p) for p in itertools.permutations(range(3))]
    assert len(symmetry.permutations(7)) == 5040
    for n in (0, 8):
        with pytest.raises(UsageError, match="1 to 7"):
            symmetry.permutations(n)


@pytest.mark.parametrize(
    "bias", [biases.none, biases.causal, biases.prefix(2), biases.window(2, causal=False)]
)
@pytest.mark.parametrize("n", [1, 3, 5])
def test_group_is_the_loop_over_permutations(bias, n):
    f, x = layer(bias), draw(n, n, 16)
    found = measured(f, x)
    with torch.no_grad():
        for order, commutes, deviation in zip(
            itertools.permutations(range(n)), found.commutes, found.deviations, strict=True
        ):
            apart = (f(x[list(order)][None])[0] - f(x[None])[0][list(order)]).abs().max()
            assert bool(commutes) == bool(apart <= found.bound)
            assert deviation == pytest.approx(float(apart), abs=1e-13)
    assert found.decided


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 6), seed=st.integers(0, 10**6), levels=st.integers(1, 3), masked=st.booleans())
def test_what_commutes_are_the_automorphisms_and_a_group(n, seed, levels, masked):
    # Few different numbers, so that there are automorphisms beside the identity.
    table = torch.randint(levels, (1, n, n), generator=torch.Generator().manual_seed(seed)).double()
    if masked:
        hidden = (table == 0) & ~torch.eye(n, dtype=torch.bool)
        table = table.masked_fill(hidden, -math.inf)
    expected = symmetry.automorphisms(lambda _: table, n)
    found = measured(layer(lambda _: table, seed), draw(seed, n, 16))
    assert torch.equal(found.commutes, expected)
    assert torch.equal(found.breaks, ~expected)
    members = {tuple(p) for p in found.permutations[found.commutes].tolist()}
    assert tuple(range(n)) in members
    assert all(tuple(a[i] for i in b) in members for a in members for b in members)
    assert math.factorial(n) % found.order == 0


def naive_automorphism(table, order):
    """Whether B_{π(i)π(j)} − B_ij is one number for all j that i sees, and the masks agree."""
    for head in table.tolist():
        for i, row in enumerate(head):
            changes = set()
            for j, number in enumerate(row):
                moved = head[order[i]][order[j]]
                if math.isinf(moved) != math.isinf(number):
                    return False
                if not math.isinf(number):
                    changes.add(moved - number)
            if len(changes) > 1:
                return False
    return True


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 5), heads=st.integers(1, 2), seed=st.integers(0, 10**6))
def test_automorphisms_are_those_of_the_definition(n, heads, seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(3, (heads, n, n), generator=g).double()
    table = torch.where(table == 2, -math.inf, table) + torch.randint(2, (heads, n, 1), generator=g)
    got = symmetry.automorphisms(lambda _: table, n)
    assert got.tolist() == [naive_automorphism(table, p) for p in symmetry.permutations(n).tolist()]


def test_a_map_that_half_of_all_permutations_keep():
    def f(x):
        i, j = torch.triu_indices(x.shape[1], x.shape[1], 1)
        return x + (x[:, i, :1] - x[:, j, :1]).prod(1, keepdim=True)

    found = symmetry.group(f, draw(1, 5, 2), 1e-12)
    assert found.order == 60
    swaps = [sum(a != b for a, b in enumerate(p)) == 2 for p in found.permutations.tolist()]
    assert not (found.commutes & torch.tensor(swaps)).any()
    # One drawn permutation misses it half the time, N of them with 2^-N.
    draws = symmetry.sampled(f, draw(2, 400, 5, 2), 1e-12, torch.Generator().manual_seed(3))
    assert 150 < draws.order < 250


def test_drawn_permutations_beyond_seven_positions():
    x, g = draw(4, 24, 20, 16), torch.Generator().manual_seed(5)
    for bias, order in ((biases.none, 24), (biases.causal, 0)):
        f = layer(bias)
        with torch.no_grad():
            found = symmetry.sampled(f, x, 2 * float(rounding.forward(f, x).max()), g)
        assert found.permutations.shape == (24, 20)
        assert found.order == order
        assert found.decided
    assert symmetry.rate_below(300, 0.95) == pytest.approx(0.00999, abs=1e-4)


@pytest.mark.parametrize("bound", [math.inf, math.nan])
def test_without_a_finite_bound_nothing_is_decided(bound):
    found = symmetry.group(layer(biases.none), draw(6, 3, 16), bound)
    assert not found.commutes.any()
    assert not found.decided


def test_nan_outputs_decide_nothing():
    found = symmetry.group(lambda x: x * math.nan, draw(6, 3, 16), 1.0)
    assert not found.decided
