"""The residual stream of a circuit: which subspaces it has, what fills its norm, and how a layer reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.wire import residual
from whyformer.wire.circuit import UNIT, Circuit, Geometry, Head, Traits
from whyformer.wire.codes import shortest
from whyformer.wire.residual import Reading, Residual

WRITTEN = ("previous", "found")
"""What the layers write that is not the last."""
_LOUD = {False: 4, True: 16}  # how large the answer is written: louder where it shares coordinates


@dataclass(frozen=True)
class Layout:
    """The residual stream: its subspaces, and the power of two that the first norm divides by, in units."""

    at: Residual
    width: int
    scale: int
    words: Tensor
    flags: list[int]
    ballast: list[int]
    written: list[list[int]]

    @property
    def code(self) -> list[int]:
        """The coordinates of a token's own code: its word, and the first token's flags."""
        return self.at["word"] + self.at["flag"]


def layout(geometry: Geometry, traits: Traits) -> Layout:
    """The narrowest residual stream with room for all subspaces and their ballast.

    Each layer but the last doubles the root mean square by what it writes: a code and constants.
    """
    even = traits.layer_norm
    words = shortest(geometry.vocabulary - 1, balanced=even)
    k, digits = words.shape[1], digits_of(geometry) if not traits.rotary else 0
    flags = residual.fill(k, balanced=even)
    width, scale = 0, 1
    while True:
        width += 64
        if (not even and width & (width - 1)) or (traits.scaled and math.isqrt(width) ** 2 != width):
            continue
        own = k + 4 * digits
        scale = 1
        while width * scale**2 <= own:
            scale *= 2
        ballast = residual.fill(width * scale**2 - own, balanced=even)
        square = 3 * width * scale**2
        amounts = (square - 4 * k, 4 * square - k)[: geometry.layers - 1]
        written = [residual.fill(amount, balanced=even) for amount in amounts]
        at = Residual()
        for name, size in (("word", k), ("flag", len(flags)), ("ballast", len(ballast))):
            at.add(name, size)
        for name in ("here", "not here", "before", "not before"):
            at.add(name, digits)
        for name, fills in zip(WRITTEN, written, strict=False):
            at.add(name, k + len(flags))
            at.add(f"{name} ballast", len(fills))
        if not geometry.tied:
            at.add("copied", k + len(flags))
        rows = k + 1 + digits if not traits.rotary else math.ceil((k + 1) / (1 - traits.rotary / 1.0001))
        if at.width <= width and (not traits.split or 2 * max(rows, k + len(flags) + 1) <= width):
            return Layout(at, width, scale, words, flags, ballast, written)


def digits_of(geometry: Geometry) -> int:
    """How many binary digits a position has."""
    return max(1, (geometry.context - 1).bit_length())


def positions(geometry: Geometry, room: Layout, offset: int) -> Float[Tensor, "context width"]:
    """The digits of a position, and of the one that it looks back to, each beside its negative."""
    table = torch.zeros(geometry.context, room.width)
    for name, back in (("here", 0), ("before", offset)):
        at = room.at[name]
        numbers = (torch.arange(geometry.context) - back).clamp(min=0)
        bits = ((numbers[:, None] >> torch.arange(len(at))) & 1) * 2.0 - 1
        table[:, at] = bits * UNIT
        table[:, room.at[f"not {name}"]] = -bits * UNIT
    return table


def read(room: Layout, layer: int, value: float, name: str, i: int = 0) -> Reading:
    """A reading of the i-th coordinate of a subspace, as the layer's norm leaves it."""
    size = abs(room.ballast[i]) if name == "ballast" else 2 if name == "previous" else 1
    return Reading(value, ((room.at[name][i], room.scale * 2**layer / size),))


def copying(room: Layout, geometry: Geometry, layer: int) -> list[tuple[int, list[tuple[int, float]]]]:
    """What a layer moves: the code of the token it looks at, and, but for the last, a constant to many."""
    ratio = room.scale * 2**layer
    if layer == geometry.layers - 1:
        into = room.code if geometry.tied else room.at["copied"]
        loud = ratio**2 / 2 * UNIT * _LOUD[geometry.tied]
        return [(c, [(to, loud)]) for c, to in zip(room.code, into, strict=True)]
    up, name, size = ratio * UNIT, WRITTEN[layer], (2, 1)[layer]
    moves = [(c, [(p, size * up)]) for c, p in zip(room.code, room.at[name], strict=True)]
    fills = zip(room.at[f"{name} ballast"], room.written[layer], strict=True)
    moves.append((room.at["ballast"][0], [(c, value * up / room.ballast[0]) for c, value in fills]))
    return moves


def ones(traits: Traits, room: Layout, layer: int) -> Reading | None:
    """The constant 1 that fills rows, where the architecture norms queries and keys."""
    return read(room, layer, 1, "ballast") if traits.query_norm else None


def power(value: float) -> float:
    """The next power of two."""
    return 2.0 ** math.ceil(math.log2(value))


def finished(
    geometry: Geometry, traits: Traits, room: Layout, heads: tuple[Head, ...], offset: int = 1
) -> Circuit:
    """The circuit of these heads, with its tables."""
    embed = residual.codes(room.words, room.flags, room.width, room.at)
    embed[:, room.at["ballast"]] = torch.tensor(room.ballast).double() * UNIT
    unembed = None
    if not geometry.tied:
        unembed = torch.zeros_like(embed)
        unembed[:, room.at["copied"]] = embed[:, room.code] / UNIT
    gain = 1.0 if not geometry.tied else (math.sqrt(room.width) if traits.scaled else 1.0) / UNIT
    table = None if traits.rotary else positions(geometry, room, offset)
    return Circuit(geometry, embed, table, heads, gain, unembed)
