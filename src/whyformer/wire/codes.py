"""Token codes: ±1 words whose inner products are all small, so that a dot product tells tokens apart.

The words are those of the second-order Reed-Muller code RM(2, m): the values of all polynomials of degree 2
over m bits, at all 2^m points, written as ±1. Two different polynomials of degree 2 differ at no fewer than a
quarter of the points (the code's minimum distance, 2^(m−2)), so two words of length k = 2^m have an inner
product of k/2 at most. All entries are ±1: exact in every dtype, and every word has the same norm.

Nothing rests on that theorem here: ``largest_inner_product`` finds the bound from the words.
"""

from __future__ import annotations

from itertools import combinations

import torch
from jaxtyping import Float, Int

LENGTHS = (8, 16, 32, 64)
"""Word lengths; 64 gives 4,194,304 words."""
_BLOCK = 2**16  # polynomials at a time


def generators(length: int) -> Int[torch.Tensor, "monomials length"]:
    """The monomials of degree 0, 1 and 2 at all points, as bits: the constant first, then the linear ones."""
    points = torch.arange(length)
    bits = [(points >> i) & 1 for i in range(length.bit_length() - 1)]
    return torch.stack([torch.ones_like(points), *bits, *(a * b for a, b in combinations(bits, 2))])


def words(count: int, length: int, *, balanced: bool = False) -> Int[torch.Tensor, "words length"] | None:
    """The first words of RM(2, log₂ length), int8.

    Args:
        count: how many.
        length: k, a power of two.
        balanced: only words that sum to 0, as a layer norm needs them.

    Returns:
        The words, or None where the code has fewer.
    """
    rows = generators(length)
    found, have = [], 0
    total = 2 ** len(rows)
    for start in range(0, total, _BLOCK):
        labels = torch.arange(start, min(start + _BLOCK, total))
        chosen = (labels[:, None] >> torch.arange(len(rows))) & 1
        block = (1 - 2 * ((chosen.float() @ rows.float()).long() & 1)).to(torch.int8)
        if balanced:
            block = block[block.sum(1, dtype=torch.int64) == 0]
        found.append(block)
        have += len(block)
        if have >= count:
            return torch.cat(found)[:count]
    return None


def shortest(count: int, *, balanced: bool = False) -> Int[torch.Tensor, "words length"]:
    """The words of the shortest code that has enough of them.

    Raises:
        ValueError: no length has.
    """
    for length in LENGTHS:
        found = words(count, length, balanced=balanced)
        if found is not None:
            return found
    raise ValueError(f"no code of {count:,} words")


def largest_inner_product(code: Float[torch.Tensor, "words length"]) -> int | None:
    """A bound on the inner product of any two different words, from the words alone.

    Two ±1 words with w signs different have the inner product k − 2w, and their signs differ by a word of
    the space that all words span over GF(2). That space is found by elimination and enumerated: its smallest
    weight, 0 left out, bounds w from below for every pair.

    Returns:
        The bound; None where two words are equal, or the space has more than 2^24 words.
    """
    length = code.shape[1]
    packed = ((code < 0).long() << torch.arange(length)).sum(1)
    if len(packed.unique()) < len(packed):
        return None
    span, rest = packed.new_zeros(1), packed.clone()
    for bit in range(length):
        has = (rest >> bit) & 1 == 1
        if has.any():
            if len(span) == 2**24:
                return None
            pivot = rest[has][0]
            rest = torch.where(has, rest ^ pivot, rest)
            span = torch.cat([span, span ^ pivot])
    return length - 2 * int(_weight(span)[1:].min()) if len(span) > 1 else -length


def _weight(words: Int[torch.Tensor, " words"]) -> Int[torch.Tensor, " words"]:
    """How many bits are set: within fields of 2, 4 and 8 bits, then over the bytes."""
    total = torch.zeros_like(words)
    for half in (words & 0xFFFFFFFF, (words >> 32) & 0xFFFFFFFF):
        x = half - ((half >> 1) & 0x55555555)
        x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
        x = (x + (x >> 4)) & 0x0F0F0F0F
        total += (x & 0xFF) + ((x >> 8) & 0xFF) + ((x >> 16) & 0xFF) + (x >> 24)
    return total
