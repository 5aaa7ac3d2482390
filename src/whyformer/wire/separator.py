"""The copy of what stands before a separator, wherever that stands: learned positions, three layers.

At position t, with the latest separator at p (or p = 0, the first token, where there is none), the answer is
the token at s = t − p + 1: after [x₁ .. xₙ SEP] come x₁ .. xₙ, then the separator, then x₁ again. Where s is
beyond t the answer is the token at t itself. Tokens are never compared, so repeats do not matter.

Positions are written in binary digits, ±1 each, so that a head can read a number as a sum of digits. What it
cannot do is subtract digit by digit; but the product of the number s, of the query, and j, of the key, is a
score: 2sj − j² is largest at j = s. Its range grows with the square of the context while its steps stay 1,
and a layer norm rounds. So s is found in two layers, as a clock's hands find a minute:

    layer 0   finds the separator: a mark of the token, and a ramp; it copies the digits of p.
    layer 1   finds the block of B positions that holds s; it copies the high digits, those of the block.
    layer 2   finds s within that block; it copies the token.

With v and w the numbers of the block and of the place within it, each less its mean, z = s less the mean of
all positions, and m(2ᵇ − 1 − m) of the high and of the low digits, *far* and *near*, as digits too:

    layer 1   2zv + B·far                 is −B(v − z/B)², but for what all keys share
    layer 2   2(z − B·v_found)w + near    is −(w − (z − B·v_found))², likewise
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from whyformer.wire import residual, scores
from whyformer.wire.circuit import UNIT, Circuit, Geometry, Head, Traits
from whyformer.wire.family import FIRST, SEPARATOR
from whyformer.wire.layout import Layout, Written, copying, digits_of, finished, layout, positions, power
from whyformer.wire.residual import Reading
from whyformer.wire.sizes import AIM, UnreachableError

Terms = tuple[tuple[int, float], ...]


def build(asked: Geometry, traits: Traits) -> Circuit:
    """The circuit for the sizes of ``asked``, an architecture of learned positions; widths are chosen.

    Raises:
        UnreachableError: what norms round outdoes the steps of the scores.
    """
    digits = digits_of(asked)
    low = min(range(1, digits), key=lambda low: _lost(digits, low))
    signs = {"mark": 1, "here": digits, "near": 2 * low - 2, "far": 2 * (digits - low) - 2}
    room = layout(asked, traits, signs, (Written("since", digits), Written("block", digits - low)))
    norm, _ = scores.norm_errors(traits.layer_norm, room.width, room.scale)
    if norm * _lost(digits, low) >= 1:
        raise UnreachableError
    geometry = replace(asked, width=room.width, head_width=room.width // 2)
    at = torch.arange(geometry.context)
    numbers = {"here": at, "near": _bend(at % 2**low, low), "far": _bend(at >> low, digits - low)}
    heads = (_latest(geometry, room), _block(geometry, room, low), _place(geometry, room, low))
    circuit = finished(geometry, traits, room, heads, positions(geometry, room, numbers))
    marks = torch.full((geometry.vocabulary,), -UNIT).double()
    marks[[FIRST, SEPARATOR]] = UNIT
    circuit.embed[:, room.at["mark"][0]] = marks
    circuit.embed[:, room.at["not mark"][0]] = -marks
    return circuit


def _lost(digits: int, low: int) -> float:
    """What a lead may lose, in steps, for each part that two norms are wrong by: two scores' sizes.

    Those are an eighth of a square at most: in layer 1 of all positions, over the block's; in layer 2, which
    has passed three norms, of the block's.
    """
    return 2 * max(2.0 ** (2 * digits - low), 1.5 * 4.0**low) / 8


def _weight(geometry: Geometry) -> float:
    """The step of a score, with room for what is rounded: three quarters of it may be lost."""
    return power(4 * AIM * math.sqrt(geometry.head_width))


def _bend(number: Int[Tensor, " context"], digits: int) -> Int[Tensor, " context"]:
    """What a number's square, about its mean, falls short of its largest: it has 2·digits − 2 digits."""
    return number * (2**digits - 1 - number)


def _latest(geometry: Geometry, room: Layout) -> Head:
    """Layer 0: a mark outdoes a ramp over all positions."""
    step = _weight(geometry)
    loud = step * 2 ** (digits_of(geometry) + 1)
    queries = {0: Reading(loud, _constant(room, 0)), 1: Reading(step, _constant(room, 0))}
    keys = {0: Reading(1, _number(room, 0, "mark")), 1: Reading(1, _number(room, 0, "here"))}
    return _head(geometry, room, 0, queries, keys, room.at["here"] + room.at["not here"])


def _block(geometry: Geometry, room: Layout, low: int) -> Head:
    """Layer 1: the first position of the block; a key with a low digit that is 1 stands back."""
    weight = _weight(geometry)
    high = range(low, digits_of(geometry))
    low_digits = tuple(term for b in range(low) for term in _number(room, 1, "here", [b]))
    queries = {
        0: Reading(2 * weight, _sought(geometry, room, 1)),
        1: Reading(weight * 2**low, _constant(room, 1)),
        2: Reading(-weight, _constant(room, 1)),
    }
    keys = {
        0: Reading(1, _number(room, 1, "here", high)),
        1: Reading(1, _bent(room, 1, "far", digits_of(geometry) - low)),
        2: Reading(1, low_digits),
    }
    sources = [room.at[name][b] for name in ("here", "not here") for b in high]
    return _head(geometry, room, 1, queries, keys, sources)


def _place(geometry: Geometry, room: Layout, low: int) -> Head:
    """Layer 2: the place in the block; a key of another block stands back by its digits."""
    weight, digits = _weight(geometry), digits_of(geometry)
    within = _sought(geometry, room, 2) + _number(room, 2, "block", times=-(2.0**low))
    queries = {0: Reading(2 * weight, within), 1: Reading(weight, _constant(room, 2))}
    keys = {
        0: Reading(1, _number(room, 2, "here", range(low))),
        1: Reading(1, _bent(room, 2, "near", low)),
    }
    for row, b in enumerate(range(low, digits), start=2):
        queries[row] = Reading(4 * weight, _number(room, 2, "block", [b - low]))
        keys[row] = Reading(1, _number(room, 2, "here", [b]))
    return _head(geometry, room, 2, queries, keys, None)


def _head(
    geometry: Geometry,
    room: Layout,
    layer: int,
    queries: dict[int, Reading],
    keys: dict[int, Reading],
    sources: list[int] | None,
) -> Head:
    """The head that these rows make."""
    return Head(
        **residual.matching(geometry.head_width, room.width, queries, keys, None),
        **residual.moving(geometry.head_width, room.width, copying(room, geometry, layer, sources)),
    )


def _number(
    room: Layout, layer: int, name: str, digits: Iterable[int] | None = None, *, times: float = 1
) -> Terms:
    """A number less its mean, from its digits and their negatives: what a norm shifts cancels."""
    ratio, terms = room.scale * 2**layer, []
    for i, b in enumerate(range(len(room.at[name])) if digits is None else digits):
        part = times * ratio * 2**i / 4
        terms += [(room.at[name][b], part), (room.at[f"not {name}"][b], -part)]
    return tuple(terms)


def _bent(room: Layout, layer: int, name: str, digits: int) -> Terms:
    """What ``_bend`` made, less what makes the scores of the keys looked at as often positive as negative."""
    return _number(room, layer, name) + _constant(room, layer, -(4.0**digits) / 4)


def _constant(room: Layout, layer: int, value: float = 1) -> Terms:
    """A constant, from the ballast and its negative."""
    part = value * room.scale * 2**layer / room.ballast[0] / 2
    return ((room.at["ballast"][0], part), (room.at["ballast"][1], -part))


def _sought(geometry: Geometry, room: Layout, layer: int) -> Terms:
    """The place s = t − p + 1, less the mean of all positions."""
    mean = (2 ** digits_of(geometry) - 1) / 2
    apart = _number(room, layer, "here") + _number(room, layer, "since", times=-1)
    return apart + _constant(room, layer, 1 - mean)
