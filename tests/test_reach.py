"""The reach instrument: against a naive double loop, on planted dependencies, and its frugal search."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.errors import UsageError
from whyformer.instruments.reach import by_gradient, by_substitution, dependencies, reach, substitutes_for

DTYPES = st.sampled_from([torch.float32, torch.float64])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def planted(links):
    """A nonlinear map whose output i reads exactly the inputs j with links[i, j]."""

    def f(x):
        return torch.einsum("ij,bjd->bid", links.to(x.dtype), torch.sin(x))

    return f


def naive(f, bases, substitutes):
    """One input at a time, one call a row, in two loops."""
    count, time = bases.shape[:2]
    found = torch.zeros(time, time, dtype=torch.bool)
    for b in range(count):
        before = f(bases[b : b + 1])[0]
        for j in range(time):
            x = bases[b : b + 1].clone()
            x[0, j] = substitutes[b, j]
            after = f(x)[0]
            for i in range(time):
                found[i, j] |= not torch.equal(before[i], after[i])
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), DTYPES, st.integers(0, 2**31))
def test_every_planted_link_is_found_and_no_other(time, width, count, dtype, seed):
    g = seeded(seed)
    links = torch.rand(time, time, generator=g) < 0.4
    bases = torch.randn(count, time, width, generator=g, dtype=dtype)
    found = reach(planted(links), bases, g)
    assert torch.equal(found.gradient, links)
    assert torch.equal(found.substitution, links)
    assert found.noise == 0.0


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.sampled_from([None, 1, 4]), DTYPES, st.integers(0, 2**31))
def test_substitution_agrees_with_the_naive_double_loop(time, count, rows, dtype, seed):
    g = seeded(seed)
    links = torch.rand(time, time, generator=g) < 0.4
    bases = torch.randn(count, time, 3, generator=g, dtype=dtype)
    substitutes = torch.randn(count, time, 3, generator=g, dtype=dtype)
    found, _ = by_substitution(planted(links), bases, substitutes, rows=rows)
    assert torch.equal(found, naive(planted(links), bases, substitutes))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 7), st.integers(2, 5), st.integers(0, 2**31))
def test_tokens(time, vocabulary, seed):
    g = seeded(seed)
    links = torch.rand(time, time, generator=g) < 0.4
    table = torch.randn(vocabulary, 3, generator=g, dtype=torch.float64)
    bases = torch.randint(vocabulary, (2, time), generator=g)
    found = reach(lambda ids: planted(links)(table[ids]), bases, g, vocabulary=vocabulary)
    assert torch.equal(found.map, links)
    assert not found.gradient.any()


def test_a_token_never_stands_in_for_itself():
    bases = torch.randint(3, (50, 20), generator=seeded())
    fresh, copies = substitutes_for(bases, seeded(1), 3).chunk(2)
    assert (fresh != bases).all()
    assert fresh.min() == 0
    assert fresh.max() == 2
    assert torch.equal(copies, bases[:, -1:].expand(50, 20))


@pytest.mark.parametrize("vocabulary", [None, 1, 3])
def test_a_vocabulary_that_is_too_small(vocabulary):
    with pytest.raises(UsageError, match="at least 4"):
        reach(lambda ids: ids, torch.tensor([[0, 3]]), seeded(), vocabulary=vocabulary)


def test_a_stationary_point_hides_from_the_gradient_only():
    def f(x):  # y_1 = x_0² x_1, at x_0 = 0
        return torch.stack([x[:, 0], x[:, 0] ** 2 * x[:, 1]], 1)

    base = torch.tensor([[[0.0], [1.0]]])
    found = reach(f, base, seeded())
    assert not found.gradient[1, 0]
    assert found.substitution[1, 0]
    assert found.map[1, 0]


def test_absorption_hides_from_the_substitution_only():
    def f(x):  # a step of one is lost beside 2^60, its slope is not
        return x + 2.0**60 + torch.zeros_like(x).index_copy(1, torch.tensor([1]), x[:, :1])

    x = torch.ones(1, 2, 1)
    found, noise = by_substitution(f, x, x + 1)
    assert noise == 0.0
    assert not found.any()
    assert by_gradient(f, x, seeded()).tolist() == [[True, False], [True, True]]


def test_a_detached_path_and_a_hard_choice_are_found_by_substitution():
    def f(x):
        hard = (x.detach().sum((1, 2)) > 0).to(x.dtype)[:, None, None]
        return torch.cat([x[:, :1], x[:, 1:] + hard], 1)

    bases = torch.randn(6, 2, 2, generator=seeded(), dtype=torch.float64)
    found = reach(f, bases, seeded(1))
    assert found.gradient.tolist() == [[True, False], [False, True]]
    assert found.substitution.tolist() == [[True, False], [True, True]]


def test_a_map_that_reads_nothing():
    bases = torch.randn(1, 3, 2, generator=seeded())
    assert not reach(torch.ones_like, bases, seeded()).map.any()
    assert not reach(lambda x: torch.ones_like(x) + 0 * x.detach(), bases, seeded()).map.any()


def test_a_slope_that_is_no_number_shows_nothing():
    def f(x):  # the slope of the root is infinite at 0, and infinity times zero is not a number
        return x + 0 * x.flip(1).sqrt()

    assert not by_gradient(f, torch.zeros(1, 2, 1), seeded()).any()


def test_rows_that_see_each_other_are_kept_apart_by_rows_of_one():
    def f(x):
        return x + x.mean(0, keepdim=True)

    bases = torch.randn(1, 3, 2, generator=seeded(), dtype=torch.float64)
    assert torch.equal(reach(f, bases, seeded(), rows=1).map, torch.eye(3, dtype=torch.bool))


def test_noise_is_measured_and_is_no_reach():
    noise = seeded(5)

    def f(x):
        return x + 1e-6 * torch.rand(x.shape, generator=noise, dtype=x.dtype)

    x = torch.zeros(1, 3, 4, dtype=torch.float64)
    found, floor = by_substitution(f, x, x + 1)
    assert 0 < floor <= 1e-6
    assert found.diagonal().all()


def test_an_output_that_becomes_no_number_has_changed():
    x = torch.ones(1, 2, 1)
    found, noise = by_substitution(lambda x: x / x, x, torch.zeros_like(x))
    assert noise == 0.0
    assert torch.equal(found, torch.eye(2, dtype=torch.bool))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(0, 6), DTYPES, st.integers(0, 2**31))
def test_the_frugal_search_finds_all_within_its_count(time, many, dtype, seed):
    g = seeded(seed)
    calls = 0
    wanted = sorted(torch.randperm(time, generator=g)[:many].tolist())

    def f(x):
        nonlocal calls
        calls += 1
        assert x.shape == (1, time, 2)
        return x.sin()[:, wanted].sum(1, keepdim=True).expand_as(x)

    base, substitute = (torch.randn(time, 2, generator=g, dtype=dtype) for _ in range(2))
    found = dependencies(f, base, substitute)
    assert list(found.positions) == wanted
    assert found.forwards == calls <= len(wanted) * (1 + math.ceil(math.log2(time))) + 3

    calls = 0
    earliest = dependencies(f, base, substitute, limit=1)
    assert list(earliest.positions) == wanted[:1]
    assert earliest.forwards == calls <= math.ceil(math.log2(time)) + 3


def test_the_frugal_search_finds_what_only_two_together_change():
    def both(ids):  # the output moves only where both inputs are 1
        return (ids[:, :1] * ids[:, 2:3]).expand_as(ids)

    found = dependencies(both, torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long))
    assert found.positions == (2,)  # by the pair of inputs [1 1 0 0] and [1 1 1 0]


def test_the_frugal_search_asks_only_about_its_candidates():
    x = torch.randn(16, 2, generator=seeded(), dtype=torch.float64)
    found = dependencies(lambda x: x.cumsum(1), x, x + 1, output=7, candidates=range(8, 16))
    assert found.positions == ()
    assert found.forwards == 3
