"""What can be looked up: k hops by doubling in log k layers, and no more than the bits that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from whyformer.claims.claim import Claim
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments.recall import hop, sequences
from whyformer.subjects.hops import HopCircuit
from whyformer.subjects.memory import KeyValueCache, Memory, RegisterMachine

SIZES = ((2, 9), (3, 5))
"""Vocabulary and length of the sequences that are tried, all of them."""
HOPS = 8


def depth(k: int) -> int:
    """⌊log₂k⌋ + 2, in whole numbers: one more than the binary digits of k."""
    return k.bit_length() + 1


def follows(circuit: HopCircuit, sizes: Sequence[tuple[int, int]] = SIZES, most: int = HOPS) -> Finding:
    """Compare a circuit with hop-by-hop following, on every sequence of some sizes and every k up to a most.

    Args:
        circuit: for a vocabulary that covers the sizes'.
        sizes: vocabulary and length.
        most: the largest k.
    """
    cases, wrong = 0, 0
    first: dict[str, Any] | None = None
    for k in range(1, most + 1):
        layers = len(circuit.plan(k))
        if layers > depth(k):
            first = first or {"k": k, "layers": layers, "allowed": depth(k)}
        for vocabulary, time in sizes:
            tokens = sequences(vocabulary, time)
            said, right = circuit(tokens, k), hop(tokens, k)
            differs = said != right
            cases, wrong = cases + len(tokens), wrong + int(differs.any(-1).sum())
            if first is None and differs.any():
                row, position = differs.nonzero()[0].tolist()
                first = {
                    "sequence": tokens[row].tolist(),
                    "k": k,
                    "position": position,
                    "said": int(said[row, position]),
                    "right": int(right[row, position]),
                }
    finding = Finding(
        claim="routing.hops",
        verdict=Verdict.HOLDS,
        strength=Strength.PROVED,
        measured=wrong,
        bound=0,
        bound_from="T0: scores are whole numbers, exact in float32, and the largest leads by 1 or more",
        reason=f"{cases:,} cases (every sequence, k = 1 to {most}), every position of each: {wrong:,} wrong",
    )
    if first is None:
        return finding
    return finding.but(verdict=Verdict.REFUTED, strength=None, counterexample=first)


HOP = Claim(
    id="routing.hops",
    sentence="Hard attention follows a chain of k lookups in ⌊log₂k⌋ + 2 layers.",
    mathematics="""\
One hop goes from a token to what followed its latest earlier twin. A chain of k hops, taken one a layer,
needs k + 1 layers. Doubling needs fewer: every position carries a pointer to the place m hops away, and one
layer of attention makes it 2m hops (look up, by position, the pointer of the place pointed to) or 2m + 1
(look up, by content, one hop from there, and take that place's pointer). The binary digits of k, the highest
first, say which; one layer before them gives each position its previous token:

    1 + (⌊log₂k⌋ + 1) layers.

Each layer is one head with linear queries, keys and values over one-hot registers, and its largest score is
unique, so softmax at a high enough sharpness does the same. The induction on m proves it for every length
and vocabulary; the weights are checked on all sequences of some sizes.
Whether fewer layers could do is another question. No lower bound is claimed here: the refuter shows that
*this* circuit needs its last layer, and no more than that.""",
    instrument="recall: k hops on every sequence, against following the chain hop by hop",
    rule="holds when no position of any sequence differs, in no more than ⌊log₂k⌋ + 2 layers; refuted by one "
    "that differs, or by a layer more",
    scope="; ".join(f"all {v**t:,} sequences of {t} tokens from {v}" for v, t in SIZES)
    + f"; each k from 1 to {HOPS}, each position",
    breaks="the same circuit without its last layer: it stops at ⌊k/2⌋ hops",
    source="Sanford, Hsu and Telgarsky 2024, arXiv 2402.09268 (abstract read): logarithmic depth suffices; "
    "the construction is derived here",
    test=lambda circuit, _: follows(circuit),
    specimen=lambda _: HopCircuit(vocabulary=3),
    refuter=lambda _: HopCircuit(vocabulary=3, fewer=1),
)

BITS = 6
VALUES = 4
PAIRS = 5


@dataclass(frozen=True)
class Recalled:
    """What a memory makes of every list of values of one length.

    Attributes:
        pairs: the length.
        lists: how many there are.
        right: how many are read back whole.
        states: how many states they end in.
        confused: two lists that end in one state; None where each has its own.
    """

    pairs: int
    lists: int
    right: int
    states: int
    confused: tuple[list[int], list[int]] | None


def write_all(memory: Memory, pairs: int) -> Recalled:
    """Write every list of so many values, and read every key."""
    lists = sequences(memory.vocabulary, pairs)
    state = memory.empty(len(lists))
    for key in range(pairs):
        state = memory.write(state, key, lists[:, key])
    read = torch.stack([memory.read(state, key) for key in range(pairs)], -1)
    distinct, which = torch.unique(state, dim=0, return_inverse=True)
    order = which.argsort(stable=True)
    same = (which[order[1:]] == which[order[:-1]]).nonzero()
    confused = None
    if len(same):
        at = int(same[0])
        confused = lists[order[at]].tolist(), lists[order[at + 1]].tolist()
    return Recalled(pairs, len(lists), int((read == lists).all(-1).sum()), len(distinct), confused)


def remembers(memory: Memory, pairs: int = PAIRS) -> Finding:
    """Hold a memory to the bits that it is said to have, for every list of 1 to ``pairs`` values."""
    most = 2**memory.bits
    tried = [write_all(memory, count) for count in range(1, pairs + 1)]
    over = next((one for one in tried if one.right > most), None)
    last = over or tried[-1]
    told = f"{last.right:,} of {last.lists:,} lists of {last.pairs} pairs are read back whole"
    if last.confused:
        first, second = last.confused
        key = next(i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
        told += f"; {first} and {second} end in one state, and key {key} tells them apart"
    finding = Finding(
        claim="routing.capacity",
        verdict=Verdict.HOLDS,
        strength=Strength.PROVED,
        measured=last.right,
        bound=most,
        bound_from=f"2^{memory.bits} states, each of which answers with one list; exact whole numbers",
        reason=told,
    )
    if over is None:
        return finding
    witness = {"pairs": over.pairs, "recalled": over.right, "at_most": most, "states": over.states}
    return finding.but(verdict=Verdict.REFUTED, strength=None, counterexample=witness)


CAPACITY = Claim(
    id="routing.capacity",
    sentence="A state of b bits recalls for certain at most b/log₂V pairs, however it is built or trained.",
    mathematics="""\
m pairs with known keys and values from V are one of V^m lists. After reading one, all that is kept is one of
2^b states, and a state answers each key in one way: it reads back one list whole, and no other. So at most
2^b of the V^m lists are read back whole:

    P(all m right) ≤ 2^b / V^m   for uniform values;   all of them only if m ≤ b/log₂V.

Beyond that two lists end in one state, and some key tells them apart: on one of them the answer is wrong. A
machine that draws its answers at random is an average of such machines, and no better.
It is tight: a register machine that keeps the first ⌊b/log₂V⌋ values and answers 0 for the rest meets the
bound. It holds for every net with a state of fixed size, window and convolution states counted; but a state
of 512 float32 numbers has 16,384 bits, so nothing is seen of it in a small experiment. A cache that grows has
no b.""",
    instrument="recall: every list of values is written and read back; lists and states are counted",
    rule="holds when no more than 2^b lists of any length are read back whole; refuted when more are",
    scope=f"all lists of 1 to {PAIRS} values from {VALUES}, a state of {BITS} bits",
    breaks=f"a key-value cache, which had {BITS} bits after {BITS // 2} pairs and grows with each pair more",
    source="counting, derived here. Jelassi et al. 2024, arXiv 2402.01032 (abstract read), say so of copying "
    "by models of a fixed-size state",
    test=lambda memory, _: remembers(memory),
    specimen=lambda _: RegisterMachine(BITS, VALUES),
    refuter=lambda _: KeyValueCache(VALUES, counted=BITS // 2),
)

CLAIMS = (HOP, CAPACITY)
