"""The residual stream as named subspaces, and heads stated by what they match and what they move.

Why norms are harmless. A norm divides a vector by the root of its mean square. Here every vector of a layer
has the same mean square, a power of four: the norm is a division by one known power of two, exact in every
dtype. What a vector lacks of that square is filled with constants, *ballast*, which also serve as the ones
that queries and keys read a constant from. Entries come in pairs of opposite sign where the norm takes the
mean away first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.wire.circuit import UNIT

_NORMED = 64.0  # the size of each row before a norm on queries and keys


def fill(amount: int, *, balanced: bool) -> list[int]:
    """Powers of two whose squares sum to ``amount``: its digits in base 4; twice half of it where balanced.

    Raises:
        ValueError: an odd amount cannot be balanced.
    """
    if balanced:
        if amount % 2:
            raise ValueError(f"{amount} is odd")
        return [sign * value for value in fill(amount // 2, balanced=False) for sign in (1, -1)]
    values, size = [], 1
    while amount:
        amount, digit = divmod(amount, 4)
        values += [size] * digit
        size *= 2
    return values[::-1]


@dataclass
class Residual:
    """Subspaces of the residual stream by name, each a list of coordinates, allotted in order."""

    at: dict[str, list[int]] = field(default_factory=dict)
    width: int = 0

    def add(self, name: str, size: int) -> list[int]:
        """The next ``size`` coordinates."""
        self.at[name] = list(range(self.width, self.width + size))
        self.width += size
        return self.at[name]

    def __getitem__(self, name: str) -> list[int]:
        return self.at[name]


@dataclass(frozen=True)
class Reading:
    """One row of a query or key: ``value`` times a sum of coordinates, each with its coefficient.

    The coefficients make the sum 1 or −1, or a number of units.
    """

    value: float
    terms: tuple[tuple[int, float], ...]


def matching(
    rows: int,
    width: int,
    queries: Mapping[int, Reading],
    keys: Mapping[int, Reading],
    one: Reading | None,
) -> dict[str, Tensor]:
    """The query and key weights in which row r of the query reads ``queries[r]``, and so for keys.

    Args:
        rows: the head's width.
        width: of the residual stream.
        queries: by row; other rows are 0.
        keys: likewise.
        one: where the architecture norms queries and keys, a constant 1 that fills the other rows: all
            vectors are then of one norm, which is divided out, and the gain of the norm holds the value.
    """
    made: dict[str, Tensor] = {}
    for name, readings in (("q", queries), ("k", keys)):
        weight, gain = torch.zeros(rows, width).double(), torch.zeros(rows).double()
        for row in range(rows):
            reading = readings.get(row, one)
            if reading is None:
                continue
            gain[row] = reading.value if row in readings else 0
            for coordinate, coefficient in reading.terms:
                weight[row, coordinate] = coefficient * (reading.value if one is None else _NORMED)
        made[name] = weight
        if one is not None:
            made[f"{name}_gain"] = gain
    return made


def moving(
    rows: int, width: int, moves: Sequence[tuple[int, Sequence[tuple[int, float]]]]
) -> dict[str, Tensor]:
    """The value and output weights that move coordinates: row r of the value reads the r-th source.

    Args:
        rows: the head's width.
        width: of the residual stream.
        moves: a source, and the coordinates that it goes to with their factors.
    """
    v, o = torch.zeros(rows, width).double(), torch.zeros(width, rows).double()
    for row, (source, targets) in enumerate(moves):
        v[row, source] = 1
        for target, factor in targets:
            o[target, row] = factor
    return {"v": v, "o": o}


def codes(
    words: Float[Tensor, "words length"], flags: Sequence[int], width: int, at: Residual
) -> Float[Tensor, "vocabulary width"]:
    """The embedding: id 0 is the first token, with flags in place of a word; each other id has its word."""
    table = torch.zeros(len(words) + 1, width).double()
    table[1:, at["word"]] = words.double() * UNIT
    table[0, at["flag"]] = torch.tensor(flags).double() * UNIT
    return table
