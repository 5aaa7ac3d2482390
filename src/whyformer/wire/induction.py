"""Exact induction in two layers: [.. A B .. A] is followed by B.

Layer 0, the previous-token head, scores by distance alone and looks one position back. With learned positions
it compares binary digits; with rotary ones it sums waves that all peak there (``rotary``). It copies that
token's code beside the present token's own.

Layer 1, the matching head, compares the present token's word with the word before each key, and copies the
code of the key's own token. Three parts make the score:

    content    g⟨word(x_i), word(x_{j−1})⟩, turned by the distance where positions are rotary,
    flag       f at the first token, so that it lies between twins and all others,
    ramp       falls by a step with each position back, under the rule ``recent``.

A twin's successor beats the first token, and the first token beats every other key, by more than 104: the
softmax gives those behind exactly 0 in float32. What is copied is the token after the twin, or the first
token where there is no twin. The sizes below aim at that; ``certificate`` proves it, from the weights.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from whyformer.wire import residual, rotary, scores
from whyformer.wire.circuit import DTYPES, Circuit, Geometry, Head, Traits
from whyformer.wire.codes import largest_inner_product
from whyformer.wire.copying import looking_back
from whyformer.wire.layout import (
    Layout,
    Written,
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
from whyformer.wire.sizes import HOP_STEP, STEP, Plan, UnreachableError, choose, plan, sizes

_WRITES = (Written("previous", size=2), Written("found"))


def build(asked: Geometry, traits: Traits, rule: str) -> Circuit:
    """The circuit for the sizes of ``asked``; widths and, where it is None, theta are chosen.

    Raises:
        UnreachableError: no sizes of the heads reach the gaps.
    """
    room = layout(asked, traits, learned(asked, traits), _WRITES[: asked.layers - 1])
    geometry, inner = replace(asked, width=room.width), largest_inner_product(room.words)
    if inner is None:
        raise UnreachableError
    geometry = choose(geometry, traits, rule, room, inner)
    turned = int(geometry.head_width * traits.rotary)
    theta = rotary.frequencies(turned, geometry.theta or 1.0)
    table = rotary.table_error(theta, geometry.context, DTYPES[geometry.dtype])
    rows = plan(geometry, traits, room, rule)
    layers = range(1, geometry.layers)  # first: they fail fast
    matching = [_matching(geometry, traits, room, rows, inner, table, layer) for layer in layers]
    heads = (looking_back(geometry, traits, room, table), *matching)
    places = None if traits.rotary else positions(geometry, room, back(geometry, 1))
    return finished(geometry, traits, room, heads, places)


def _matching(
    geometry: Geometry, traits: Traits, room: Layout, rows: Plan, inner: int, table: Tensor, layer: int
) -> Head:
    """Layer 1, or 2: finds the word, or the word found, before a key, and copies the key's own code."""
    step = STEP if geometry.layers == 2 else HOP_STEP
    root, half = math.sqrt(geometry.head_width), int(geometry.head_width * traits.rotary) // 2
    ramp, fall = 0.0, 0.0
    if rows.ramp is not None and half:
        arc = float(rows.theta[rows.ramp])
        ramp = step / (math.sin(arc * (geometry.reach - 1)) - math.sin(arc * (geometry.reach - 2)))
        fall = ramp * math.sin(arc * (geometry.reach - 1))
    elif rows.ramp is not None:
        ramp = power(step / 2 * root) / root
        fall = 2 * ramp * geometry.reach
    ratio, louder = 2**layer * room.scale, 1.0
    norms = scores.norm_errors(traits.layer_norm, geometry.width, ratio)
    if layer > 1:
        dtype = DTYPES[geometry.dtype]
        kept, spread = scores.share(step - 2 if rows.ramp is not None else None, geometry.reach, dtype)
        norms = scores.blurred(traits.layer_norm, geometry.width, ratio, spread + 2 * (1 - kept), dtype)
        mean = geometry.width * ratio**2
        louder = 1.0 if rows.ramp is not None else math.sqrt(mean / (mean - room.words.shape[1]))
    weight, flag = sizes(geometry, rows, inner, ramp, fall, table, norms, louder)
    queries, keys = {}, {}
    for i, row in enumerate(rows.content):
        queries[row] = read(room, layer, weight * root, "word" if layer == 1 else "found", i)
        keys[row] = read(room, layer, 1, "previous", i)
    queries[rows.flag] = read(room, layer, flag * root / room.flags[0], "ballast")
    keys[rows.flag] = read(room, layer, 1, "flag")
    if rows.ramp is not None and half:
        keys[rows.ramp] = read(room, layer, math.sqrt(ramp * root), "ballast")
        queries[rows.ramp + half] = read(room, layer, math.sqrt(ramp * root), "ballast")
    elif rows.ramp is not None:
        for digit in range(len(room.at["here"])):
            queries[rows.ramp + digit] = read(room, layer, ramp * root * 2**digit, "ballast")
            keys[rows.ramp + digit] = read(room, layer, 1, "here", digit)
    if traits.query_norm:
        _even_out(room, keys, geometry.head_width)
    moves = copying(room, geometry, layer)
    return Head(
        **residual.matching(geometry.head_width, room.width, queries, keys, ones(traits, room, layer)),
        **residual.moving(geometry.head_width, room.width, moves),
    )


def _even_out(room: Layout, keys: dict[int, Reading], rows: int) -> None:
    """Give every key one norm: the word before it, or, at the first two positions, flags in its place.

    The key at position 0 reads the first token's own flags; the key at position 1, where that token stands
    before, reads the flags of the word before less its own, which is 0 at position 0. Constants fill up what
    is lacking to one a row. All these rows have the gain 0, but for the first flag.
    """
    k = room.words.shape[1]
    constants = len(keys) - k - 1
    free = [row for row in range(rows) if row not in keys]
    for i in range(len(room.flags)):
        own, before = read(room, 1, 0, "flag", i), read(room, 1, 0, "previous", k + i)
        (at, coefficient), (other, half) = own.terms[0], before.terms[0]
        keys[free.pop()] = Reading(0, ((other, half), (at, -coefficient)))
        if i:
            keys[free.pop()] = own
    lacking = residual.fill(rows - k - constants, balanced=False)
    at, coefficient = read(room, 1, 0, "ballast").terms[0]
    for row in free:
        keys[row] = Reading(0, ((at, lacking.pop() * coefficient),) if lacking else ())
