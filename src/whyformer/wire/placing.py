"""Steps 2 to 4 of the proof of a separator's copy: heads that compare numbers, at every pair of positions.

All queries and keys read constants and digits, and layer 0 the mark, so no score depends on a word. Layer 0
asks the same of all keys. In the layers behind it a query's rows are linear in t − p, which is checked at
every position; so they depend on s = t − p + 1 alone, and on what the layer before found for it. All pairs
of an s and a key are enumerated, exactly, in float64; nothing rests on what the numbers mean.

Rounding. A norm multiplies a vector by a scale and shifts it: both are bounded as in ``scores.norm_errors``,
and grow by as much with each norm that digits have passed. Each of the two scales takes its share of a score;
what else is wrong with a query is multiplied by what two keys differ by, what is wrong with a key by the
query; sums of n products are within γ_n. A shift counts where the weights of a row do not sum to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from whyformer.instruments.rounding import gamma, unit
from whyformer.wire import scores
from whyformer.wire.family import UnfitError
from whyformer.wire.layer import Layer
from whyformer.wire.scores import EXACT

_BLOCK = 256  # queries at a time


@dataclass(frozen=True)
class Rows:
    """What a head's rows read, at each position, as exact numbers.

    Attributes:
        constant: of the query, whatever the position is.
        own, since, found: of the query, from the digits of its own position, of the separator's, and of what
            layer 1 found, by position.
        keys: of the key, by position, without a mark.
        mark: what the mark of the first token and the separator adds to a key; all others have the negative.
        size: the most that a key's row can sum up to, each part taken positive.
        asked_error, key_error: how far a row may be off, beyond a scale that all rows share.
        scale: how far that is from 1.
    """

    constant: Float[Tensor, " rows"]
    own: Float[Tensor, "context rows"]
    since: Float[Tensor, "context rows"]
    found: Float[Tensor, "context rows"]
    keys: Float[Tensor, "context rows"]
    mark: Float[Tensor, " rows"]
    size: Float[Tensor, " rows"]
    asked_error: Float[Tensor, " rows"]
    key_error: Float[Tensor, " rows"]
    scale: float


@dataclass(frozen=True)
class Places:
    """Where a layer looks, for every s: an inner one, at t or before it, and one at the edge, s = t + 1."""

    inner: Int[Tensor, " context"]
    edge: Int[Tensor, " context"]


def latest(layer: Layer) -> dict[str, Any]:
    """Layer 0: the latest separator, else the first token, leads.

    A marked key over a marked one before it leads by the least step of the ramp; over a key without a mark,
    by two marks less all of the ramp.

    Raises:
        UnfitError: a query reads other than constants, or a margin is too small.
    """
    rows = _rows(layer)
    if bool((rows.own != 0).any()):
        raise UnfitError(f"{layer.where}: its query reads a position")
    along, mark = rows.keys @ rows.constant, float(rows.mark @ rows.constant)
    steps = along.diff()
    gap, at = min(
        (float(steps.min()), int(steps.argmin()) + 1),
        (2 * mark - float(along.max() - along.min()), int(along.argmax())),
    )
    lost = float(rows.asked_error @ rows.size) + rows.scale * (float(along.abs().max()) + mark + gap)
    rounding = _rounding(layer, rows, rows.constant[None]) + 2 * lost / layer.root
    _wide_enough(layer, "the latest separator", f"at position {at}", gap / layer.root, rounding)
    return _told(
        layer, "looks at the latest separator, else at the first token", gap / layer.root - rounding, rounding
    )


def placed(layer: Layer, before: Places | None) -> tuple[Places, dict[str, Any]]:
    """Layers 1 and 2: where each s is looked for, and by how much that leads.

    Args:
        layer: the layer.
        before: where the layer before it looked, if it is layer 2, which must find s itself.

    Raises:
        UnfitError: a query is not linear in t − p, looks elsewhere, or leads by too little.
    """
    rows = _rows(layer)
    slope = rows.own[1] - rows.own[0]
    for name, table, step in (("own", rows.own, slope), ("the separator's", rows.since, -slope)):
        off = (table.diff(dim=0) != step).any(1)
        if bool(off.any()):
            first = int(off.long().argmax()) + 1
            raise UnfitError(f"{layer.where}: a query is not linear in {name} position, at {first}")
    context = len(rows.keys)
    sought = rows.constant + rows.own[0] + rows.since[0] + slope * torch.arange(context)[:, None]
    at = torch.arange(1, context + 1)
    asked = {"inner": sought[:-1], "edge": sought}  # s = context has no query behind it
    last = {"inner": torch.full_like(at, context)[:-1], "edge": at}
    if before is not None:
        asked = {name: asked[name] + rows.found[getattr(before, name)] for name in asked}
    found, leads = {}, []
    for name in asked:
        found[name], lead = _enumerated(layer, rows, asked[name], last[name])
        leads.append(lead)
    left, gap, worst = min(leads)
    what = "the block that holds the place to copy" if before is None else "the place to copy"
    _wide_enough(layer, what, f"for the place {worst}", gap, gap - left)
    for name, right in (("inner", at[:-1]), ("edge", at - 1)):
        off = found[name] > right if before is None else found[name] != right
        if bool(off.any()):
            s = int(off.long().argmax()) + 1
            raise UnfitError(
                f"{layer.where}: for the place {s} it looks at position {int(found[name][s - 1])}"
            )
    return Places(**found), _told(layer, f"looks at {what}", left, gap - left)


def _enumerated(
    layer: Layer, rows: Rows, asked: Float[Tensor, "queries rows"], last: Int[Tensor, " queries"]
) -> tuple[Int[Tensor, " queries"], tuple[float, float, int]]:
    """Where each query looks among the keys before ``last``; the worst lead, less rounding and with it.

    It stops where that is too small.
    """
    rounding, found, worst = _rounding(layer, rows, asked), [], (torch.inf, torch.inf, 0)
    for part in range(0, len(asked), _BLOCK):
        winners, gap, lost = _leads(rows, asked[part : part + _BLOCK], last[part : part + _BLOCK])
        least = int((gap - lost).argmin())
        left = float(gap[least] - lost[least]) / layer.root - rounding
        worst = min(worst, (left, float(gap[least]) / layer.root, part + least + 1))
        found.append(winners)
        if left < EXACT:
            break
    return torch.cat(found), worst


def _leads(
    rows: Rows, asked: Float[Tensor, "some rows"], last: Int[Tensor, " some"]
) -> tuple[Int[Tensor, " some"], Float[Tensor, " some"], Float[Tensor, " some"]]:
    """The key that each query looks at, its lead over the worst other, and what of that may be lost.

    An error of the query is lost times what two keys differ by. With scales of keys and the query that are
    wrong by δ at most, a gap g at a score S becomes g − δ(|S| + |S − g| + g) at least, or g − 2δ(|S| + g).
    """
    scores = asked @ rows.keys.T
    scores[torch.arange(len(rows.keys)) >= last[:, None]] = -torch.inf
    best, winners = scores.max(1, keepdim=True)
    gap = (best - scores).scatter(1, winners, torch.inf)
    lost = 2 * rows.scale * (best.abs() + torch.where(gap.isinf(), 0, gap))
    for key, error in zip(rows.keys.T, rows.asked_error.tolist(), strict=True):
        if error:
            lost += error * (key - key[winners]).abs()
    worst = (gap - lost).argmin(1, keepdim=True)
    return winners.squeeze(1), gap.gather(1, worst).squeeze(1), lost.gather(1, worst).squeeze(1)


def _rows(layer: Layer) -> Rows:
    """What the rows read.

    Raises:
        UnfitError: they read a word, a flag, or what no circuit of this kind reads.
    """
    head, before, positions = layer.head, layer.before, layer.circuit.positions
    if positions is None:
        raise UnfitError(f"{layer.where}: a separator is found by learned positions, and there are none")
    digits = before.digits.nonzero().squeeze(1)
    sources = [digits, *((at >= 0).nonzero().squeeze(1) for at in (before.before, before.found))]
    targets = [digits, before.before[sources[1]], before.found[sources[2]]]
    constant = (before.constant != 0) & (layer.circuit.embed[1] != 0)  # not what a layer wrote
    for name, weight, may in (
        ("query", head.q, [constant, *targets]),
        ("key", head.k, [constant, digits, before.mark] if layer.index == 0 else [constant, digits]),
    ):
        stray = weight.clone()
        for coordinates in may:
            stray[:, coordinates] = 0
        if bool((stray != 0).any()):
            row, at = stray.nonzero()[0].tolist()
            raise UnfitError(
                f"{layer.where}: row {row} of its {name} reads coordinate {at}, which is no number"
            )
    if not torch.equal((head.q != 0).any(1), (head.k != 0).any(1)):
        raise UnfitError(f"{layer.where}: a row of its query has no row of its key, or the other way round")
    table = positions.double() * layer.scale

    def read(weight: Tensor, source: Tensor, target: Tensor) -> Tensor:
        return table[:, source] * (before.signs[target] / before.signs[source]) @ weight[:, target].T

    own, since, found = (read(head.q, *each) for each in zip(sources, targets, strict=True))
    shared, mark = before.constant * layer.scale, torch.where(before.mark, layer.circuit.embed[0], 0)
    size, key_error, scale = _errors(layer, head.k, [])
    return Rows(
        head.q @ shared,
        own,
        since,
        found,
        read(head.k, digits, digits) + head.k @ shared,
        head.k @ mark * layer.scale,
        size,
        _errors(layer, head.q, targets[1:])[1],
        key_error,
        scale,
    )


def _errors(layer: Layer, weight: Tensor, copies: list[Tensor]) -> tuple[Tensor, Tensor, float]:
    """Of each row, its size and its error but for a scale that all rows share; and that of the scale."""
    before, width = layer.before, layer.circuit.geometry.width
    passed = layer.index + 1  # norms
    shift = passed * gamma(width, torch.float32)
    scale = passed * gamma(width // 2 + 8, torch.float32) + shift**2
    parts = weight.abs() * (before.constant + before.signs).abs() * layer.scale
    size = parts.sum(1)
    number = (weight != 0).sum(1).tolist()
    each = torch.tensor([gamma(8 + n, torch.float32) for n in number]).double() + 2 * unit(layer.dtype)
    error = size * each + weight.sum(1).abs() * shift
    for at in copies:
        error += parts[:, at].sum(1) * scale
        error += (weight[:, at] * before.signs[at]).sum(1).abs() * layer.scale * before.ratio * shift
    second = 1 + 4 * unit(layer.dtype) + 1e-3  # products of two errors
    return size, error * second, scale * second


def _rounding(layer: Layer, rows: Rows, asked: Float[Tensor, "some rows"]) -> float:
    """How far two keys' scores may move apart, but for what is wrong with the query."""
    most = asked.abs().amax(0) + rows.asked_error
    used = (most > 0) & (rows.size > 0)
    sizes = (most * rows.size / layer.root)[used]
    return 2 * scores.stray(sizes, 0.0, len(sizes), layer.dtype, (rows.key_error / rows.size)[used])


def _wide_enough(layer: Layer, what: str, where: str, gap: float, rounding: float) -> None:
    """Refuse a lead that is too small.

    Raises:
        UnfitError: it is.
    """
    if gap - rounding < EXACT:
        raise UnfitError(
            f"{layer.where}: {what} leads by {gap:.1f} {where}, {rounding:.1f} of it within rounding, "
            f"which is below {EXACT:g}"
        )


def _told(layer: Layer, does: str, margin: float, rounding: float) -> dict[str, Any]:
    """What is told of a layer."""
    told = {"layer": layer.index, "head": 0, "does": does, "distances": layer.circuit.geometry.reach}
    return told | {"margin": margin, "rounding": rounding}
