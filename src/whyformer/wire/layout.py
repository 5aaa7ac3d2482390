"""The residual stream of a circuit: which subspaces it has, what fills its norm, and how a layer reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from whyformer.wire import residual
from whyformer.wire.circuit import UNIT, Circuit, Geometry, Head, Traits
from whyformer.wire.codes import shortest
from whyformer.wire.residual import Reading, Residual

_LOUD = {False: 4, True: 16}  # how large the answer is written: louder where it shares coordinates


@dataclass(frozen=True)
class Written:
    """What a layer that is not the last writes: signs, and constants that fill the norm up.

    Attributes:
        name: of its subspace.
        digits: how many digits, each beside its negative; None for a token's code.
        size: of its signs, in units.
        fills: the constants.
    """

    name: str
    digits: int | None = None
    size: int = 1
    fills: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """The residual stream: its subspaces, and the power of two that the first norm divides by, in units."""

    at: Residual
    width: int
    scale: int
    words: Tensor
    flags: list[int]
    ballast: list[int]
    written: list[Written]

    @property
    def code(self) -> list[int]:
        """The coordinates of a token's own code: its word, and the first token's flags."""
        return self.at["word"] + self.at["flag"]


def layout(geometry: Geometry, traits: Traits, signs: Mapping[str, int], writes: Sequence[Written]) -> Layout:
    """The narrowest residual stream with room for all subspaces and their ballast.

    Each layer but the last doubles the root mean square by what it writes: a code or digits, and constants.

    Args:
        geometry: sizes; the width is chosen here.
        traits: of the architecture.
        signs: the digits that stand beside the word, by the name of their subspace; of each there is a
            negative, in a subspace of the name with "not" before it.
        writes: what each layer but the last writes, without the constants.
    """
    even = traits.layer_norm
    words = shortest(geometry.vocabulary - 1, balanced=even)
    k = words.shape[1]
    flags = residual.fill(k, balanced=even)
    coded = k + len(flags)
    moved = max(coded, *(2 * (write.digits or 0) for write in writes), 0)
    width, scale = 0, 1
    while True:
        width += 64
        if (not even and width & (width - 1)) or (traits.scaled and math.isqrt(width) ** 2 != width):
            continue
        own = k + 2 * sum(signs.values())
        scale = 1
        while width * scale**2 <= own:
            scale *= 2
        ballast = residual.fill(width * scale**2 - own, balanced=even)
        at, written = Residual(), []
        for name, size in (("word", k), ("flag", len(flags)), ("ballast", len(ballast))):
            at.add(name, size)
        _beside(at, signs)
        for layer, write in enumerate(writes):
            lacking = 3 * width * (scale * 2**layer) ** 2
            if write.digits is None:
                at.add(write.name, coded)
            else:
                _beside(at, {write.name: write.digits})
            signed = k if write.digits is None else 2 * write.digits
            fills = residual.fill(lacking - signed * write.size**2, balanced=even)
            written.append(replace(write, fills=tuple(fills)))
            at.add(f"{write.name} ballast", len(fills))
        if not geometry.tied:
            at.add("copied", coded)
        rows = k + 1 + signs.get("here", 0)
        if traits.rotary:
            rows = math.ceil((k + 1) / (1 - traits.rotary / 1.0001))
        if at.width <= width and (not traits.split or 2 * max(rows, moved + 1) <= width):
            return Layout(at, width, scale, words, flags, ballast, written)


def _beside(at: Residual, signs: Mapping[str, int]) -> None:
    """Allot digits, each beside its negative."""
    for name, digits in signs.items():
        at.add(name, digits)
        at.add(f"not {name}", digits)


def digits_of(geometry: Geometry) -> int:
    """How many binary digits a position has."""
    return max(1, (geometry.context - 1).bit_length())


def learned(geometry: Geometry, traits: Traits) -> dict[str, int]:
    """The digits of learned positions: of a position, and of the one that it looks back to."""
    return {} if traits.rotary else dict.fromkeys(("here", "before"), digits_of(geometry))


def back(geometry: Geometry, offset: int) -> dict[str, Int[Tensor, " context"]]:
    """The numbers of ``learned``, at each position."""
    at = torch.arange(geometry.context)
    return {"here": at, "before": (at - offset).clamp(min=0)}


def positions(
    geometry: Geometry, room: Layout, numbers: Mapping[str, Int[Tensor, " context"]]
) -> Float[Tensor, "context width"]:
    """The digits of numbers, each beside its negative."""
    table = torch.zeros(geometry.context, room.width)
    for name, number in numbers.items():
        at = room.at[name]
        bits = ((number[:, None] >> torch.arange(len(at))) & 1) * 2.0 - 1
        table[:, at] = bits * UNIT
        table[:, room.at[f"not {name}"]] = -bits * UNIT
    return table


def read(room: Layout, layer: int, value: float, name: str, i: int = 0) -> Reading:
    """A reading of the i-th coordinate of a subspace, as the layer's norm leaves it."""
    sizes = {write.name: write.size for write in room.written}
    size = abs(room.ballast[i]) if name == "ballast" else sizes.get(name, 1)
    return Reading(value, ((room.at[name][i], room.scale * 2**layer / size),))


def copying(
    room: Layout, geometry: Geometry, layer: int, sources: Sequence[int] | None = None
) -> list[tuple[int, list[tuple[int, float]]]]:
    """What a layer moves: the code of the token it looks at, and, but for the last, a constant to many.

    Args:
        room: the residual stream.
        geometry: sizes.
        layer: its number.
        sources: the coordinates of digits and of their negatives, where it moves those in place of a code.
    """
    ratio = room.scale * 2**layer
    if layer == geometry.layers - 1:
        into = room.code if geometry.tied else room.at["copied"]
        loud = ratio**2 / 2 * UNIT * _LOUD[geometry.tied]
        return [(c, [(to, loud)]) for c, to in zip(room.code, into, strict=True)]
    up, write = ratio * UNIT, room.written[layer]
    into = room.at[write.name] if sources is None else room.at[write.name] + room.at[f"not {write.name}"]
    moves = [(c, [(to, write.size * up)]) for c, to in zip(sources or room.code, into, strict=True)]
    fills = zip(room.at[f"{write.name} ballast"], write.fills, strict=True)
    moves.append((room.at["ballast"][0], [(c, value * up / room.ballast[0]) for c, value in fills]))
    return moves


def ones(traits: Traits, room: Layout, layer: int) -> Reading | None:
    """The constant 1 that fills rows, where the architecture norms queries and keys."""
    return read(room, layer, 1, "ballast") if traits.query_norm else None


def power(value: float) -> float:
    """The next power of two."""
    return 2.0 ** math.ceil(math.log2(value))


def finished(
    geometry: Geometry, traits: Traits, room: Layout, heads: tuple[Head, ...], table: Tensor | None
) -> Circuit:
    """The circuit of these heads, with its tables; ``table`` is that of learned positions."""
    embed = residual.codes(room.words, room.flags, room.width, room.at)
    embed[:, room.at["ballast"]] = torch.tensor(room.ballast).double() * UNIT
    unembed = None
    if not geometry.tied:
        unembed = torch.zeros_like(embed)
        unembed[:, room.at["copied"]] = embed[:, room.code] / UNIT
    gain = 1.0 if not geometry.tied else (math.sqrt(room.width) if traits.scaled else 1.0) / UNIT
    return Circuit(geometry, embed, table, heads, gain, unembed)
