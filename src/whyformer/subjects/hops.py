"""The k-hop circuit: hard attention that follows a chain of k twins in ⌊log₂k⌋ + 2 layers.

Axes: batch, time, width. Position 0 is a start token that the circuit adds; tokens stand at 1 … n.

One hop goes from i to find(i), the latest j ≤ i whose *previous* token equals token i, or to 0 where there is
none; 0 stays. So token find(i) is what followed the twin of token i. Each position carries a pointer p(i),
find iterated m times, and the token there. One layer of attention turns m into

* 2m, when it looks up **by position**: attend to j = p(i), read p(j);
* 2m + 1, when it looks up **by content**: attend to j = find(p(i)), the latest j ≤ p(i) whose previous token
  equals the token at p(i), and read p(j).

The binary digits of k, the highest first, say which: 0 by position, 1 by content. From m = 0 they build k,
in ⌊log₂k⌋ + 1 layers; one layer before them gives every position its previous token.

The scores by content are whole numbers below 3N, with N = n + 1, so exact in float32 below 2^24:

    score_ij = N·[previous(j) = token(p(i))] + N·[j ≤ p(i)] + j, and position 0 matches every token.

A key that fails either condition has at most N + n < 2N; position 0 has 2N; one that meets both has 2N + j.
So the largest score is unique and is the one wanted: hard attention needs no tie-break.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from whyformer.errors import UsageError


def hard_attention(
    query: Float[Tensor, "batch time d"],
    key: Float[Tensor, "batch time d"],
    value: Float[Tensor, "batch time e"],
) -> Float[Tensor, "batch time e"]:
    """Every query takes the value of the key that it scores highest."""
    best = (query @ key.mT).argmax(-1, keepdim=True)
    return value.gather(-2, best.expand(*best.shape[:-1], value.shape[-1]))


@dataclass(frozen=True)
class HopCircuit:
    """Follows k twins by hard attention.

    Attributes:
        vocabulary: tokens are 0 … vocabulary − 1.
        fewer: layers that are left out at the end; with any, the circuit stops at fewer hops than k.
    """

    vocabulary: int
    fewer: int = 0

    def plan(self, k: int) -> list[str]:
        """What each layer does: ``previous`` first, then ``content`` or ``position`` for each digit of k.

        Raises:
            UsageError: for a k below 1.
        """
        if k < 1:
            raise UsageError(f"k = {k}", "there is no hop to follow", "try 1 or more")
        digits = ["content" if digit == "1" else "position" for digit in f"{k:b}"]
        layers = ["previous", *digits]
        return layers[: len(layers) - self.fewer]

    def __call__(self, tokens: Int[Tensor, "batch time"], k: int) -> Int[Tensor, "batch time"]:
        """The token k hops from each position, −1 where the chain ends before.

        Args:
            tokens: below ``vocabulary``.
            k: how many hops, 1 or more.
        """
        batch, time = tokens.shape
        size = time + 1
        # Token `vocabulary` is the start's own; positions are one-hot rows.
        begun = functional.pad(tokens, (1, 0), value=self.vocabulary)
        token = functional.one_hot(begun, self.vocabulary + 1).float()
        place = torch.eye(size).expand(batch, size, size)
        upto = torch.ones(size, size).tril()  # row p is 1 at the positions up to p
        rank = torch.arange(size).float().expand(batch, size)[..., None]
        previous = torch.zeros_like(token)
        pointer, pointed = place, token  # m = 0: every position points to itself
        for layer in self.plan(k):
            if layer == "previous":
                before = place.roll(1, -2)  # row i is the position before i
                previous = hard_attention(before, place, token)
                previous[:, 0] = 1  # the start is matched by every token
                continue
            query, key = pointer, place
            if layer == "content":
                query = torch.cat([size * pointed, size * (pointer @ upto), torch.ones_like(rank)], -1)
                key = torch.cat([previous, place, rank], -1)
            taken = hard_attention(query, key, torch.cat([pointer, pointed], -1))
            pointer, pointed = taken[..., :size], taken[..., size:]
        answer = pointed[:, 1:].argmax(-1)
        return torch.where(answer == self.vocabulary, -1, answer)
