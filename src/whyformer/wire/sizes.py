"""The sizes of a matching head: which rows do what, which rotary base serves, and how loud each part is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer.wire import rotary, scores
from whyformer.wire.circuit import DTYPES, Geometry, Traits
from whyformer.wire.layout import Layout, digits_of

AIM = 125.0
"""The gap that is aimed at, rounding taken off; 104 is needed."""
STEP = 12.0
"""How far the score falls with each position back, under the rule ``recent``; it may be rounded by half."""
HOP_STEP = 16.0
"""The same between two hops, where older twins must weigh less than the norm's rounding."""
_ARC = 1.4  # the largest angle over the context that a ramp may turn: sin is monotone below π/2
THETAS = (1e4, 5e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16)
_APART = {
    False: 0.7,
    True: 0.9,
}  # of what words differ by, how much the base is to leave; more where it is dear
HEAD_WIDTHS = (64, 128, 256, 512)


class UnreachableError(Exception):
    """No wiring of this kind can be certified at the sizes that were asked."""


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


def choose(geometry: Geometry, traits: Traits, rule: str, room: Layout, inner: int) -> Geometry:
    """The head's width and the rotary base: the first that keeps words well apart, else the best."""
    widths: tuple[int, ...] = (room.width // 2,) if traits.split else HEAD_WIDTHS
    thetas = (geometry.theta,) if geometry.theta is not None or not traits.rotary else THETAS
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


def sizes(
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
    products, also = 2 * (half + 2 + digits_of(geometry)), [] if rows.ramp is None else [rows.ramp]
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
