"""Claims 12 and 13: k hops in log k layers, and no more recalled than the bits that are kept."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.claims.claim import generator_for, prove
from whyformer.claims.routing import recall as claims
from whyformer.errors import UsageError
from whyformer.finding import Strength, Verdict
from whyformer.instruments.recall import hop, sequences
from whyformer.subjects.hops import HopCircuit
from whyformer.subjects.memory import KeyValueCache, RegisterMachine


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.id)
def test_the_claim_holds_and_its_refuter_is_refuted(claim):
    trial = prove(claim, 31)
    assert trial.counts
    assert trial.finding.strength is Strength.PROVED
    assert trial.refutation.counterexample


@settings(max_examples=40, deadline=None)
@given(vocabulary=st.integers(1, 6), time=st.integers(1, 40), k=st.integers(1, 40), seed=st.integers(0, 999))
def test_the_circuit_follows_any_chain(vocabulary, time, k, seed):
    tokens = torch.randint(vocabulary, (8, time), generator=generator_for(seed, "hops"))
    assert torch.equal(HopCircuit(vocabulary)(tokens, k), hop(tokens, k))


def test_the_circuit_follows_a_chain_through_a_long_sequence():
    tokens = torch.randint(40, (1, 700), generator=generator_for(0, "long"))
    assert torch.equal(HopCircuit(40)(tokens, 11), hop(tokens, 11))


@pytest.mark.parametrize(("k", "layers"), [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (1000, 11)])
def test_the_layers_are_those_of_the_claim(k, layers):
    assert len(HopCircuit(2).plan(k)) == claims.depth(k) == layers


def test_all_56584_cases():
    found = claims.follows(HopCircuit(3), ((3, 8), (2, 9)))
    assert found.verdict is Verdict.HOLDS
    assert found.reason.startswith("56,584 cases")


def test_one_layer_fewer_fails_in_the_counted_cases():
    tokens = sequences(2, 9)
    short = HopCircuit(2, fewer=1)
    assert torch.equal(short(tokens, 4), hop(tokens, 2))
    assert int((short(tokens, 4) != hop(tokens, 4)).any(-1).sum()) == 438
    assert int((short(tokens, 4) != hop(tokens, 4))[:, -1].sum()) == 112
    assert int((short(tokens, 5) != hop(tokens, 5))[:, -1].sum()) == 240


def test_a_layer_too_many_is_refuted_though_every_answer_is_right():
    class Idle(HopCircuit):
        def plan(self, k):
            previous, *digits = super().plan(k)
            return [previous, "position", *digits]  # twice no hop is no hop

    found = claims.follows(Idle(3))
    assert found.verdict is Verdict.REFUTED
    assert found.measured == 0
    assert found.counterexample == {"k": 1, "layers": 3, "allowed": 2}


@pytest.mark.parametrize("k", [0, -1])
def test_no_hops_are_refused(k):
    with pytest.raises(UsageError):
        HopCircuit(2)(torch.zeros(1, 3, dtype=torch.int64), k)


@pytest.mark.parametrize(("bits", "vocabulary"), [(4, 4), (6, 2), (5, 3), (0, 2), (7, 5)])
def test_registers_recall_what_fits_and_no_more(bits, vocabulary):
    machine = RegisterMachine(bits, vocabulary)
    assert vocabulary**machine.capacity <= 2**bits < vocabulary ** (machine.capacity + 1)
    for pairs in range(1, machine.capacity + 3):
        found = claims.write_all(machine, pairs)
        assert found.right == vocabulary ** min(pairs, machine.capacity)
        assert found.states <= 2**bits
        assert (found.confused is None) == (pairs <= machine.capacity)
    assert claims.remembers(machine, 4).verdict is Verdict.HOLDS


def test_as_many_bits_as_the_lists_need_recall_all_of_them():
    found = claims.write_all(RegisterMachine(bits=8, vocabulary=4), 4)
    assert found.right == found.lists == 256


class Automaton:
    """A b-bit machine with random transitions and random answers."""

    def __init__(self, bits, vocabulary, pairs, generator):
        self.bits, self.vocabulary = bits, vocabulary
        self.moves = torch.randint(2**bits, (pairs, 2**bits, vocabulary), generator=generator)
        self.says = torch.randint(vocabulary, (pairs, 2**bits), generator=generator)

    def empty(self, count):
        return torch.zeros(count, 1, dtype=torch.int64)

    def write(self, state, key, value):
        return self.moves[key][state[:, 0], value][:, None]

    def read(self, state, key):
        return self.says[key][state[:, 0]]


@settings(max_examples=50, deadline=None)
@given(
    bits=st.integers(0, 4), vocabulary=st.integers(2, 4), pairs=st.integers(1, 4), seed=st.integers(0, 9999)
)
def test_no_machine_of_b_bits_recalls_more(bits, vocabulary, pairs, seed):
    machine = Automaton(bits, vocabulary, pairs, generator_for(seed, "automaton"))
    assert claims.remembers(machine, pairs).verdict is Verdict.HOLDS


def test_the_confused_lists_do_end_in_one_state():
    machine = RegisterMachine(4, 4)
    first, second = claims.write_all(machine, 3).confused
    assert first != second
    ends = []
    for values in (first, second):
        state = machine.empty(1)
        for key, value in enumerate(values):
            state = machine.write(state, key, torch.tensor([value]))
        ends.append(state.tolist())
    assert ends[0] == ends[1]


def test_a_cache_is_right_until_its_size_was_taken():
    cache = KeyValueCache(4, counted=3)
    assert claims.remembers(cache, 3).verdict is Verdict.HOLDS
    found = claims.remembers(cache, 4)
    assert found.verdict is Verdict.REFUTED
    assert found.counterexample == {"pairs": 4, "recalled": 256, "at_most": 64, "states": 256}


@pytest.mark.parametrize(("bits", "vocabulary"), [(63, 2), (-1, 2), (4, 1)])
def test_registers_that_cannot_be_are_refused(bits, vocabulary):
    with pytest.raises(UsageError):
        RegisterMachine(bits, vocabulary)
