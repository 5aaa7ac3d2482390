"""Memories that take in key-value pairs and are asked for a value: b bits for ever, or a cache that grows.

Axes: count (sequences side by side), words. States, keys and values are int64; pair i has key i.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from whyformer.errors import UsageError


@runtime_checkable
class Memory(Protocol):
    """What is written pair by pair and then read.

    Attributes:
        vocabulary: values are 0 … vocabulary − 1.
        bits: the size that its state is said to have, however many pairs are written.
    """

    vocabulary: int
    bits: int

    def empty(self, count: int) -> Int[Tensor, "count words"]:
        """The states before any pair."""

    def write(
        self, state: Int[Tensor, "count words"], key: int, value: Int[Tensor, " count"]
    ) -> Int[Tensor, "count more"]:
        """The states after one pair more; all that is kept of the past is in them."""

    def read(self, state: Int[Tensor, "count words"], key: int) -> Int[Tensor, " count"]:
        """What each state answers for a key."""


class RegisterMachine:
    """A state of b bits that keeps the values of as many keys as fit, and answers 0 for the others.

    The values of keys 0, 1, … are the digits, base ``vocabulary``, of one number below 2^bits.

    Args:
        bits: of the state, 62 at most.
        vocabulary: how many values there are, 2 or more.

    Attributes:
        capacity: the pairs that fit, the largest c with vocabulary^c ≤ 2^bits.

    Raises:
        UsageError: for bits outside 0 … 62, or a vocabulary below 2.
    """

    def __init__(self, bits: int, vocabulary: int) -> None:
        if not 0 <= bits <= 62:
            raise UsageError(f"{bits} bits", "a register is one int64 of 62 usable bits", "try 0 to 62")
        if vocabulary < 2:
            raise UsageError(f"a vocabulary of {vocabulary}", "it says nothing", "try 2 or more")
        self.bits, self.vocabulary = bits, vocabulary
        self.capacity = 0
        while vocabulary ** (self.capacity + 1) <= 2**bits:
            self.capacity += 1

    def empty(self, count: int) -> Int[Tensor, "count 1"]:
        """Registers of zeros."""
        return torch.zeros(count, 1, dtype=torch.int64)

    def write(
        self, state: Int[Tensor, "count 1"], key: int, value: Int[Tensor, " count"]
    ) -> Int[Tensor, "count 1"]:
        """Set one digit, where it fits."""
        return state + value[:, None] * self.vocabulary**key if key < self.capacity else state

    def read(self, state: Int[Tensor, "count 1"], key: int) -> Int[Tensor, " count"]:
        """One digit; 0 where it did not fit."""
        if key >= self.capacity:
            return torch.zeros_like(state[:, 0])
        return state[:, 0] // self.vocabulary**key % self.vocabulary


class KeyValueCache:
    """What attention keeps: every value, one word more a pair. Its state has no fixed size.

    Args:
        vocabulary: how many values there are.
        counted: the pairs after which its size was taken; ``bits`` is right until then, and no longer.
    """

    def __init__(self, vocabulary: int, counted: int) -> None:
        self.vocabulary, self.bits = vocabulary, math.ceil(counted * math.log2(vocabulary))

    def empty(self, count: int) -> Int[Tensor, "count 0"]:
        """Caches of no words."""
        return torch.empty(count, 0, dtype=torch.int64)

    def write(
        self, state: Int[Tensor, "count words"], key: int, value: Int[Tensor, " count"]
    ) -> Int[Tensor, "count more"]:
        """Append the value: keys come in order, so key i is word i."""
        return torch.cat([state, value[:, None]], 1)

    def read(self, state: Int[Tensor, "count words"], key: int) -> Int[Tensor, " count"]:
        """The word of the key."""
        return state[:, key]
