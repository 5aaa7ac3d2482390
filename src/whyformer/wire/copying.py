"""A head that looks back by a fixed number of positions, and the copy of a prefix that it makes alone.

The offset is 1 in the previous-token head. With n tokens before a separator, [x₁ .. xₙ SEP] goes on x₁ .. xₙ
where each position copies the token n back: the separator x₁, x₁ x₂. One layer does it, whatever the tokens
are, the same one many times included. While there are not n tokens behind, the first token is looked at: its
key has a flag in place of the waves of position, which lies between the peak and all else.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from whyformer.instruments.rounding import unit
from whyformer.wire import residual, rotary, scores
from whyformer.wire.circuit import DTYPES, Circuit, Geometry, Head, Traits
from whyformer.wire.layout import (
    Layout,
    back,
    copying,
    finished,
    layout,
    learned,
    ones,
    positions,
    power,
    read,
)
from whyformer.wire.residual import Reading
from whyformer.wire.sizes import AIM, HEAD_WIDTHS, THETAS, UnreachableError

_SLOW = 0.98  # the least that the flag's wave may fall to, where the base can be chosen


def build(asked: Geometry, traits: Traits, offset: int) -> Circuit:
    """The circuit that copies the token ``offset`` back; widths and, where it is None, theta are chosen.

    Raises:
        UnreachableError: no sizes of the head reach the gaps.
    """
    room = layout(asked, traits, learned(asked, traits), ())
    geometry = _choose(replace(asked, width=room.width), traits, room)
    turned = int(geometry.head_width * traits.rotary)
    theta = rotary.frequencies(turned, geometry.theta or 1.0)
    table = rotary.table_error(theta, geometry.context, DTYPES[geometry.dtype])
    head = looking_back(geometry, traits, room, table, offset, flagged=True)
    places = None if traits.rotary else positions(geometry, room, back(geometry, offset))
    return finished(geometry, traits, room, (head,), places)


def _choose(geometry: Geometry, traits: Traits, room: Layout) -> Geometry:
    """The narrowest head with room for a code, and the first base whose slowest wave falls little."""
    if not traits.rotary:
        return replace(geometry, head_width=room.width // 2)
    coarse = 2 * (geometry.dtype == "bfloat16")  # more waves make up for coarse ones
    widths = (room.width // 2,) if traits.split else HEAD_WIDTHS[coarse:]
    tried = [
        replace(geometry, head_width=width, theta=theta)
        for theta in (THETAS if geometry.theta is None else (geometry.theta,))
        for width in widths
        if width > len(room.code)
    ]
    best = max(tried, key=lambda each: _slow(each, traits))
    return next((each for each in tried if _slow(each, traits) > _SLOW), best)


def _slow(geometry: Geometry, traits: Traits) -> float:
    """What the slowest wave falls to over the reach; 1 where a row is not turned."""
    if traits.rotary < 1:
        return 1.0
    slowest = float(rotary.frequencies(geometry.head_width, geometry.theta or 1.0)[-1])
    return math.cos(min(math.pi, slowest * (geometry.reach - 1)))


def looking_back(
    geometry: Geometry,
    traits: Traits,
    room: Layout,
    table: Tensor,
    offset: int = 1,
    *,
    flagged: bool = False,
) -> Head:
    """Layer 0: looks ``offset`` back, and copies what stands there.

    Args:
        geometry: its head width and theta chosen.
        traits: of the architecture.
        room: the residual stream.
        table: the error of the rotary table, by pair.
        offset: how far back.
        flagged: whether the first token is looked at where nothing stands so far back.

    Raises:
        UnreachableError: rounding or the waves leave no gap.
    """
    sized = _waves if traits.rotary else _digits
    queries, keys = sized(geometry, traits, room, table, offset, flagged)
    return Head(
        **residual.matching(geometry.head_width, room.width, queries, keys, ones(traits, room, 0)),
        **residual.moving(geometry.head_width, room.width, copying(room, geometry, 0)),
    )


def _digits(
    geometry: Geometry, traits: Traits, room: Layout, _table: Tensor, _offset: int, _flagged: bool
) -> tuple[dict[int, Reading], dict[int, Reading]]:
    """Learned positions: the digits of the position looked back to, against those of the key's own."""
    digits, dtype = len(room.at["here"]), DTYPES[geometry.dtype]
    _, norm = scores.norm_errors(traits.layer_norm, room.width, room.scale)
    lost = 2 * scores.stray(torch.ones(digits).double(), 0.0, digits, dtype, norm)
    if lost >= 2:
        raise UnreachableError
    weight = power(AIM / (2 - lost) * math.sqrt(geometry.head_width))
    queries = {digit: read(room, 0, weight, "before", digit) for digit in range(digits)}
    return queries, {digit: read(room, 0, 1, "here", digit) for digit in range(digits)}


def _waves(
    geometry: Geometry, traits: Traits, room: Layout, table: Tensor, offset: int, flagged: bool
) -> tuple[dict[int, Reading], dict[int, Reading]]:
    """Rotary positions: waves that all peak at the offset, and a flag in the slowest pair or beyond them."""
    root, turned = math.sqrt(geometry.head_width), int(geometry.head_width * traits.rotary)
    theta, dtype = rotary.frequencies(turned, geometry.theta or 1.0), DTYPES[geometry.dtype]
    used = len(theta) - (flagged and turned == geometry.head_width)
    _, norm = scores.norm_errors(traits.layer_norm, room.width, room.scale)
    stored = 2 * unit(dtype)  # by which waves no longer peak together: query and key are rounded once
    each = [
        stored + scores.stray(one, error, turned, dtype, norm)
        for one, error in zip(torch.eye(len(theta)).double(), table, strict=True)
    ]
    stray = torch.tensor(each[:used]).double()
    farthest = max(offset, geometry.reach - 1 - offset)
    share, margin = rotary.amplitudes(theta[:used], farthest + 2, 2 * stray)
    loud, flag = AIM / margin if margin > 0 else 0.0, 0.0
    if flagged:
        wave, lost = _slow(geometry, traits), max(each) + 3 * norm
        ratio, kept = (wave - lost) / (1 + lost), 1 - float(share @ stray)
        left = kept * ratio - 1 + margin
        loud = AIM * (1 + ratio) / left if left > 0 else 0.0
        flag = (loud * kept - AIM) / (1 + lost)
    if loud <= 0:
        raise UnreachableError
    queries, keys = {}, {}
    constant, first = read(room, 0, 1, "ballast"), read(room, 0, 1, "flag").terms[0]
    without = ((first[0], -first[1] / room.flags[0]),) if flagged else ()
    for f, (a, step) in enumerate(zip((share * loud * root).sqrt().tolist(), theta.tolist(), strict=False)):
        if a > 0:
            queries[f] = replace(constant, value=a * math.cos(offset * step))
            queries[f + turned // 2] = replace(constant, value=-a * math.sin(offset * step))
            keys[f] = Reading(a, constant.terms + without)
    if flagged:
        row = used if used < len(theta) else turned
        queries[row] = replace(constant, value=flag * root / room.flags[0])
        keys[row] = read(room, 0, 1, "flag")
    return queries, keys
