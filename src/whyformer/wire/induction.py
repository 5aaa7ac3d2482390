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
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.wire import residual, rotary, scores
from whyformer.wire.circuit import DTYPES, UNIT, Circuit, Geometry, Head, Traits
from whyformer.wire.codes import largest_inner_product, shortest
from whyformer.wire.residual import Reading, Residual

AIM = 125.0
"""The gap that is aimed at, rounding taken off; 104 is needed."""
STEP = 12.0
"""How far the score falls with each position back, under the rule ``recent``; it may be rounded by half."""
HOP_STEP = 16.0
"""The same between two hops, where older twins must weigh less than the norm's rounding."""
_COPY = {
    False: 4,
    True: 16,
}  # how large a copied code is written, in units: louder where it shares coordinates
_ARC = 1.4  # the largest angle over the context that a ramp may turn: sin is monotone below π/2
_THETAS = (1e4, 5e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16)
_APART = {
    False: 0.7,
    True: 0.9,
}  # of what words differ by, how much the base is to leave; more where it is dear
_HEAD_WIDTHS = (64, 128, 256, 512)


WRITTEN = ("previous", "found")
"""What the layers write that is not the last."""


class UnreachableError(Exception):
    """No wiring of this kind can be certified at the sizes that were asked."""


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
    k, digits = words.shape[1], _digits(geometry) if not traits.rotary else 0
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
        written = [residual.fill(square - 4 * k, balanced=even)]
        if geometry.layers > 2:
            written.append(residual.fill(4 * square - k, balanced=even))
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


def build(asked: Geometry, traits: Traits, rule: str) -> Circuit:
    """The circuit for the sizes of ``asked``; widths and, where it is None, theta are chosen.

    Raises:
        UnreachableError: no sizes of the heads reach the gaps.
    """
    room = layout(asked, traits)
    geometry, inner = replace(asked, width=room.width), largest_inner_product(room.words)
    if inner is None:
        raise UnreachableError
    geometry = _choose(geometry, traits, rule, room, inner)
    embed = residual.codes(room.words, room.flags, room.width, room.at)
    embed[:, room.at["ballast"]] = torch.tensor(room.ballast).double() * UNIT
    turned = int(geometry.head_width * traits.rotary)
    theta = rotary.frequencies(turned, geometry.theta or 1.0)
    table = rotary.table_error(theta, geometry.context, DTYPES[geometry.dtype])
    rows = plan(geometry, traits, room, rule)
    layers = range(1, geometry.layers)  # first: they fail fast
    matching = [_matching(geometry, traits, room, rows, inner, table, layer) for layer in layers]
    heads = (_previous(geometry, traits, room, table), *matching)
    unembed = None
    if not geometry.tied:
        unembed = torch.zeros_like(embed)
        unembed[:, room.at["copied"]] = embed[:, room.code] / UNIT
    gain = 1.0 if not geometry.tied else (math.sqrt(room.width) if traits.scaled else 1.0) / UNIT
    positions = None if traits.rotary else _positions(geometry, room)
    return Circuit(geometry, embed, positions, heads, gain, unembed)


def _digits(geometry: Geometry) -> int:
    return max(1, (geometry.context - 1).bit_length())


def _positions(geometry: Geometry, room: Layout) -> Float[Tensor, "context width"]:
    """The digits of a position and of the one before it, each beside its negative."""
    table = torch.zeros(geometry.context, room.width)
    for name, back in (("here", 0), ("before", 1)):
        at = room.at[name]
        numbers = torch.arange(geometry.context) - back
        bits = ((numbers[:, None] >> torch.arange(len(at))) & 1) * 2.0 - 1
        table[:, at] = bits * UNIT
        table[:, room.at[f"not {name}"]] = -bits * UNIT
    return table.double()


@dataclass(frozen=True)
class Plan:
    """Which rows of the matching head do what, and the frequency that turns each; 0 where none does."""

    content: list[int]
    flag: int
    ramp: int | None
    theta: Tensor

    def apart(self, inner: int, reach: int) -> tuple[float, float, float]:
        """At weight 1: the least score of a twin, the most of another word, and the flag's least wave."""
        half = len(self.content) // 2
        content = scores.Content(torch.ones(half).double(), self.theta[self.content[:half]], inner)
        probe = torch.linspace(0, reach - 1, 200).double()
        wave = math.cos(float(self.theta[self.flag]) * (reach - 1))
        return float(content.match(probe).min()), float(content.others(probe).max()), wave


def plan(geometry: Geometry, traits: Traits, room: Layout, rule: str) -> Plan:
    """Content and flag in the slowest pairs or outside the rotary rows; the ramp where one turns an arc."""
    k, rows = room.words.shape[1], geometry.head_width
    turned = int(rows * traits.rotary)
    theta = torch.zeros(rows)
    if not turned:
        return Plan(list(range(k)), k, k + 1 if rule == "recent" else None, theta)
    half = turned // 2
    theta[:half] = theta[half:turned] = rotary.frequencies(turned, geometry.theta or 1.0)
    free, ramp = list(range(half)), None
    if rule == "recent":
        ramp = min(free, key=lambda f: _bend(float(theta[f]) * geometry.reach))
        if _bend(float(theta[ramp]) * geometry.reach) == math.inf:
            raise UnreachableError
        free.remove(ramp)
    if turned < rows:
        return Plan(list(range(turned, turned + k)), turned + k, ramp, theta)
    if len(free) < k // 2 + 1:
        raise UnreachableError
    content = free[-1 - k // 2 : -1]
    return Plan(content + [f + half for f in content], free[-1], ramp, theta)


def _bend(arc: float) -> float:
    """What a ramp costs that turns this angle over the context, in units of its least step times the context.

    The least step of sin is at the far end: the ramp's range is tan(arc)/arc, which content must outdo twice,
    and its amplitude 1/(arc·cos arc). Both are rounded.
    """
    return 2 * math.tan(arc) / arc + 1 / (arc * math.cos(arc)) if arc < _ARC else math.inf


def _choose(geometry: Geometry, traits: Traits, rule: str, room: Layout, inner: int) -> Geometry:
    """The head's width and the rotary base: the first that keeps words well apart, else the best."""
    widths: tuple[int, ...] = (room.width // 2,) if traits.split else _HEAD_WIDTHS
    thetas = (geometry.theta,) if geometry.theta is not None or not traits.rotary else _THETAS
    k, b = room.words.shape[1], len(room.flags)
    widths = tuple(w for w in widths if w >= k + 4 + (2 * b if traits.query_norm else 0))
    enough = _APART[rule == "recent" or geometry.dtype == "bfloat16"]
    best, found = 0.0, None
    for theta in thetas:
        for width in widths[:2] if len(thetas) > 1 else widths:
            tried = replace(geometry, head_width=width, theta=theta)
            try:
                match, others, wave = plan(tried, traits, room, rule).apart(inner, geometry.reach)
            except UnreachableError:
                continue
            apart = (match * wave - others) / (k - inner)
            if apart > enough:
                return tried
            if apart > best:
                best, found = apart, tried
    if found is None:
        raise UnreachableError
    return found


def _read(room: Layout, layer: int, value: float, name: str, i: int = 0) -> Reading:
    """A reading of the i-th coordinate of a subspace, as the layer's norm leaves it."""
    size = abs(room.ballast[i]) if name == "ballast" else 2 if name == "previous" else 1
    return Reading(value, ((room.at[name][i], room.scale * 2**layer / size),))


def _previous(geometry: Geometry, traits: Traits, room: Layout, table: Tensor) -> Head:
    """Layer 0: looks one back, and copies what stands there."""
    rows, root = geometry.head_width, math.sqrt(geometry.head_width)
    queries, keys = {}, {}
    digits = len(room.at["here"])
    if digits:
        dtype = DTYPES[geometry.dtype]
        _, norm = scores.norm_errors(traits.layer_norm, room.width, room.scale)
        lost = 2 * scores.stray(torch.ones(digits).double(), 0.0, digits, dtype, norm)
        if lost >= 2:
            raise UnreachableError
        weight = _power(AIM / (2 - lost) * root)
        for digit in range(digits):
            queries[digit] = _read(room, 0, weight, "before", digit)
            keys[digit] = _read(room, 0, 1, "here", digit)
    if traits.rotary:
        turned = int(rows * traits.rotary)
        theta, dtype = rotary.frequencies(turned, geometry.theta or 1.0), DTYPES[geometry.dtype]
        _, norm = scores.norm_errors(traits.layer_norm, room.width, room.scale)
        each = zip(torch.eye(len(theta)).double(), table, strict=True)
        cost = torch.tensor([2 * scores.stray(one, error, turned, dtype, norm) for one, error in each])
        share, margin = rotary.amplitudes(theta, geometry.reach, cost)
        if margin <= 0:
            raise UnreachableError
        size = (share * AIM / margin * root).sqrt()
        for f, (a, step) in enumerate(zip(size.tolist(), theta.tolist(), strict=True)):
            if a > 0:
                queries[f] = _read(room, 0, a * math.cos(step), "ballast")
                queries[f + turned // 2] = _read(room, 0, -a * math.sin(step), "ballast")
                keys[f] = _read(room, 0, a, "ballast")
    return Head(
        **residual.matching(rows, room.width, queries, keys, _one(traits, room, 0)),
        **residual.moving(rows, room.width, _copying(room, 0)),
    )


def _copying(room: Layout, layer: int) -> list[tuple[int, list[tuple[int, float]]]]:
    """What a layer moves that is not the last: the code of the token it looks at, and a constant to many."""
    up, name, size = room.scale * 2**layer * UNIT, WRITTEN[layer], (2, 1)[layer]
    moves = [(c, [(p, size * up)]) for c, p in zip(room.code, room.at[name], strict=True)]
    fills = zip(room.at[f"{name} ballast"], room.written[layer], strict=True)
    moves.append((room.at["ballast"][0], [(c, value * up / room.ballast[0]) for c, value in fills]))
    return moves


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
        ramp = _power(step / 2 * root) / root
        fall = 2 * ramp * geometry.reach
    ratio, louder = 2**layer * room.scale, 1.0
    norms = scores.norm_errors(traits.layer_norm, geometry.width, ratio)
    if layer > 1:
        dtype = DTYPES[geometry.dtype]
        kept, spread = scores.share(step - 2 if rows.ramp is not None else None, geometry.reach, dtype)
        norms = scores.blurred(traits.layer_norm, geometry.width, ratio, spread + 2 * (1 - kept), dtype)
        mean = geometry.width * ratio**2
        louder = 1.0 if rows.ramp is not None else math.sqrt(mean / (mean - room.words.shape[1]))
    weight, flag = _sizes(geometry, rows, inner, ramp, fall, table, norms, louder)
    queries, keys = {}, {}
    for i, row in enumerate(rows.content):
        queries[row] = _read(room, layer, weight * root, "word" if layer == 1 else "found", i)
        keys[row] = _read(room, layer, 1, "previous", i)
    queries[rows.flag] = _read(room, layer, flag * root / room.flags[0], "ballast")
    keys[rows.flag] = _read(room, layer, 1, "flag")
    if rows.ramp is not None and half:
        keys[rows.ramp] = _read(room, layer, math.sqrt(ramp * root), "ballast")
        queries[rows.ramp + half] = _read(room, layer, math.sqrt(ramp * root), "ballast")
    elif rows.ramp is not None:
        for digit in range(len(room.at["here"])):
            queries[rows.ramp + digit] = _read(room, layer, ramp * root * 2**digit, "ballast")
            keys[rows.ramp + digit] = _read(room, layer, 1, "here", digit)
    if traits.query_norm:
        _even_out(room, keys, geometry.head_width)
    into = room.code if geometry.tied else room.at["copied"]
    loud = ratio * ratio / 2 * UNIT * _COPY[geometry.tied]
    moves = [(c, [(to, loud)]) for c, to in zip(room.code, into, strict=True)]
    if layer < geometry.layers - 1:
        moves = _copying(room, layer)
    return Head(
        **residual.matching(geometry.head_width, room.width, queries, keys, _one(traits, room, layer)),
        **residual.moving(geometry.head_width, room.width, moves),
    )


def _power(value: float) -> float:
    """The next power of two."""
    return 2.0 ** math.ceil(math.log2(value))


def _one(traits: Traits, room: Layout, layer: int) -> Reading | None:
    return _read(room, layer, 1, "ballast") if traits.query_norm else None


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
        own, before = _read(room, 1, 0, "flag", i), _read(room, 1, 0, "previous", k + i)
        (at, coefficient), (other, half) = own.terms[0], before.terms[0]
        keys[free.pop()] = Reading(0, ((other, half), (at, -coefficient)))
        if i:
            keys[free.pop()] = own
    lacking = residual.fill(rows - k - constants, balanced=False)
    at, coefficient = _read(room, 1, 0, "ballast").terms[0]
    for row in free:
        keys[row] = Reading(0, ((at, lacking.pop() * coefficient),) if lacking else ())


def _sizes(
    geometry: Geometry,
    rows: Plan,
    inner: int,
    ramp: float,
    fall: float,
    table: Tensor,
    norms: tuple[float, float],
    louder: float,
) -> tuple[float, float]:
    """The weight of content and the size of the flag: each of the two gaps is AIM, rounding taken off.

    With M the least score of a twin, N the most of another word and c the flag's least wave, at weight 1:
    gM − f is the one gap, fc − gN − fall the other, both G where g = (G(1 + c) + fall)/(Mc − N).
    """
    match, others, wave = rows.apart(inner, geometry.reach)
    half, others = len(rows.content) // 2, others * louder
    if match * wave <= others:
        raise UnreachableError
    errors = torch.zeros(geometry.head_width).double()
    errors[: 2 * len(table)] = table.repeat(2)
    dtype, (copied, own) = DTYPES[geometry.dtype], norms
    products, also = 2 * (half + 2 + _digits(geometry)), [] if rows.ramp is None else [rows.ramp]
    gap = AIM
    for _ in range(60):
        weight = (gap * (1 + wave) + fall) / (match * wave - others)
        flag = weight * match - gap
        need = AIM + own * flag
        for size, places, norm in (
            ([2 * weight] * half, rows.content[:half], copied),
            ([flag], [rows.flag], own),
        ):
            sizes = torch.tensor(size + [ramp] * len(also)).double()
            each = torch.tensor([norm] * len(size) + [own] * len(also)).double()
            need += scores.stray(sizes, errors[places + also], products, dtype, each)
        if need <= gap * 1.001:
            return weight, flag
        gap = need
    raise UnreachableError
