"""The three steps of the lab that whyformer grew out of, on its own two sequences, told as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import torch
from rich.text import Text

from whyformer.claims.claim import generator_for
from whyformer.finding import Verdict
from whyformer.instruments import rounding
from whyformer.lab.scene import Scene
from whyformer.report.pictures import attention_rows
from whyformer.report.terminal import figure
from whyformer.subjects.handed_values import HandedValues
from whyformer.subjects.induction import InductionCircuit

VOCABULARY = 12
FIRST = (4, 7, 2, 9, 7, 5, 3, 8, 2, 9)
"""The query is 9, at index 9; its twin is at index 3, and 7 followed it."""
WIDENED = (2, 9, 1, 3, 5, 6, 8, 0, 11, 10, 4, 7, 2)
"""The query is 2, at index 12; its twin is at index 0, and 9 followed it."""


def opening(seed: int) -> Iterator[Scene]:
    """The lookup, the lookup over a wider gap, and the shuffle."""
    yield _lookup()
    yield _wider()
    yield _shuffle(seed)


def _lookup() -> Scene:
    read, last = _read(FIRST), len(FIRST) - 1
    slope = _slope(read.twin + 1, read.answer)
    return Scene(
        f"Find what followed the last {FIRST[last]}'s earlier twin: copy {read.answer}.",
        read.verdict,
        f"The {FIRST[last]} at index {last} asks. Its twin is at index {read.twin}, a gap of "
        f"{last - read.twin}, and {read.answer} came next.",
        (
            (
                "old head",
                f"looks at the twin, index {read.twin}, and copies {read.old}: but only because its values "
                f"were handed over already shifted by one place. The {read.answer} itself, at index "
                f"{read.twin + 1}, has no say: the slope of the answer along it is {slope:.0e}.",
            ),
            (
                "circuit",
                "two layers that are handed nothing. The first notes at each place what stood just before; "
                f"the second looks for the place that follows a {FIRST[last]}: index {read.looked}. It "
                f"copies the {read.circuit} from there.",
            ),
        ),
        read.drawing,
    )


def _wider() -> Scene:
    read, last = _read(WIDENED), len(WIDENED) - 1
    return Scene(
        f"Widen the gap to {last - read.twin}: still one hop, copy {read.answer}.",
        read.verdict,
        f"The {WIDENED[last]} at index {last} asks, its twin is at index {read.twin}. No token "
        "in between has to carry anything.",
        (
            ("old head", f"looks at index {read.twin}, copies {read.old}."),
            ("circuit", f"looks at index {read.looked}, copies {read.circuit}."),
        ),
        read.drawing,
    )


def _shuffle(seed: int) -> Scene:
    """Bare attention, identity projections, against every permutation of its positions; T1 bounds it."""
    x = torch.randn(6, 8, dtype=torch.float64, generator=generator_for(seed, "lab/shuffle"))
    orders = torch.tensor(list(permutations(range(len(x)))))
    shuffled = x[orders]

    def bare(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).softmax(-1) @ x

    explained = rounding.attention(shuffled, shuffled, shuffled, scale=1.0).output * 2
    strayed = (bare(shuffled) - bare(x)[orders]).abs()
    at_all = (bare(shuffled) - bare(x)).abs().amax((1, 2))
    # A map that ignored its input would pass as well, so every order but the given one must change something.
    moved = bool((at_all[1:] > rounding.CLEAR * explained.max()).all())
    return Scene(
        "Shuffle the tokens: bare attention shuffles its answers, and that is all.",
        Verdict.HOLDS if moved and bool((strayed <= explained).all()) else Verdict.REFUTED,
        "It has no idea of who came first. A decoder's causal mask gives it one, though, without any "
        "positions: see Act 2.",
        (
            (
                "found",
                f"in all {len(orders):,} orders of {len(x)} tokens the answers move along with the tokens, "
                f"to within {figure(strayed.max().item())}; rounding explains "
                f"{figure(explained.max().item())} (T1, float64).",
            ),
        ),
    )


@dataclass(frozen=True)
class _Read:
    """One sequence, read by the old head and by the two-layer circuit.

    Attributes:
        twin: the index of the last token's latest earlier twin. answer: the token after it.
        old: what the old head copies. looked, circuit: where the circuit looks, and what it copies.
        drawing: where both look.
    """

    twin: int
    answer: int
    old: int
    looked: int
    circuit: int
    drawing: Text

    @property
    def verdict(self) -> Verdict:
        """Whether both copy the answer, and the circuit from where it stands."""
        right = self.old == self.circuit == self.answer and self.looked == self.twin + 1
        return Verdict.HOLDS if right else Verdict.REFUTED


def _read(sequence: tuple[int, ...]) -> _Read:
    tokens, last = torch.tensor(sequence), len(sequence) - 1
    head, circuit = HandedValues(VOCABULARY), InductionCircuit(VOCABULARY, len(sequence))
    x = head.one_hot(tokens)
    looks = circuit.weights(tokens[None])[0, -1, 1:]  # column 0 is the start token
    twin = max(at for at in range(last) if sequence[at] == sequence[last])
    return _Read(
        twin,
        sequence[twin + 1],
        int(head.logits(x, tokens).argmax()),
        int(looks.argmax()),
        int(circuit(tokens[None])[0, -1].argmax()),
        attention_rows(
            [str(token) for token in sequence],
            {"old head": head.weights(x).tolist(), "circuit": looks[:-1].tolist()},
            last,
        ),
    )


def _slope(at: int, answer: int) -> float:
    """How much the old head's answer moves with the token that it seems to copy: |∂ logit / ∂ row|."""
    head, tokens = HandedValues(VOCABULARY), torch.tensor(FIRST)
    with torch.enable_grad():
        x = head.one_hot(tokens).requires_grad_()
        (slope,) = torch.autograd.grad(head.logits(x, tokens)[answer], x)
    return slope[at].norm().item()
