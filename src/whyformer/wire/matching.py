"""Step 4 of the proof: a matching head's rows, sorted by what they read, and the gaps between its scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.wire import rotary, scores
from whyformer.wire.codes import largest_inner_product
from whyformer.wire.family import UnfitError
from whyformer.wire.layer import Blur, Layer
from whyformer.wire.scores import EXACT
from whyformer.wire.stream import Stream

_SOUGHT = {1: "the present one", 2: "what was found"}


@dataclass(frozen=True)
class Part:
    """Rows of the matching head that score together: a pair that turns, or one row that does not.

    Attributes:
        rows: the rows.
        asks, has: what the query and the key read there: a kind of coordinate for each row, or none.
    """

    rows: tuple[int, ...]
    asks: list[tuple[str, int] | None]
    has: list[tuple[str, int] | None]

    @property
    def kinds(self) -> tuple[set[str], set[str]]:
        """The kinds that are read, by the query and by the key."""
        return {each[0] for each in self.asks if each}, {each[0] for each in self.has if each}


def _parts(layer: Layer) -> list[Part]:
    """The rows of the head, in the parts that score together; rows that are 0 are left out."""
    head, before, turning = layer.head, layer.before, layer.turning
    kinds = {int(c): "word" for c in before.word} | {int(c): "flag" for c in before.flag}
    kinds |= {int(before.before[c]): "before" for c in before.word}
    kinds |= {int(c): "found" for c in before.found[before.word] if c >= 0}
    kinds |= {int(c): "constant" for c in before.constant.nonzero()}
    kinds |= {int(c): "digit" for c in before.digits.nonzero()}

    def reads(weight: Tensor, row: int) -> tuple[str, int] | None:
        at = weight[row].nonzero().squeeze(1).tolist()
        if not at:
            return None
        return ("a mixture" if len(at) > 1 else kinds.get(at[0], "nothing known"), at[0])

    rows = [(f, f + turning.half) for f in range(turning.half)]
    alone = [(row,) for row in range(2 * turning.half, len(head.q))]
    parts = [
        Part(unit, [reads(head.q, r) for r in unit], [reads(head.k, r) for r in unit])
        for unit in [*rows, *alone]
    ]
    for part in parts:
        if any(part.kinds) and not all(part.kinds):
            raise UnfitError(f"{layer.where}: row {part.rows[0]} is read by its query or its key alone")
    return [part for part in parts if all(part.kinds)]


def matching(layer: Layer) -> dict[str, Any]:
    """Step 4: the gaps between twins, the first token and all other keys, at every distance.

    Raises:
        UnfitError: a row is read that no score of this kind has, or a gap is too small.
    """
    head, before, reach = layer.head, layer.before, layer.circuit.geometry.reach
    code = words(layer)
    content, flags, *ramps = _sorted(layer)
    compared = _content(layer, content, code["largest_inner_product"])
    alone = [len([read for read in part.has + part.asks if read]) == 2 for part in flags]
    if alone != [True]:
        raise UnfitError(f"{layer.where}: not one row alone raises the first token")
    row = next(r for r, has in zip(flags[0].rows, flags[0].has, strict=True) if has)
    constant, at = before.constant * layer.scale, torch.arange(reach).double()
    raised = float((head.q[row] @ constant) * (head.k[row] @ before.code[0])) * layer.scale / layer.root
    first = raised * torch.cos(layer.turning.theta[row] * at)
    ramp, size, turned = _ramp(layer, *ramps)
    places = [*(part.rows[0] for part in content[:: 2 // len(content[0].rows)]), row, *turned]
    sizes = torch.cat([2 * compared.weight, torch.tensor([abs(raised)]).double(), size])
    copied, own = layer.norms()
    number = torch.arange(len(sizes)) - len(compared.weight)
    norms, table = torch.where(number < 0, copied, own), layer.turning.error[places]
    strays = [
        scores.stray(sizes[some], table[some], 2 * len(sizes), layer.dtype, norms[some])
        for some in (number != 0, number >= 0)
    ]
    strays[0] += own * abs(raised)  # the shift of a flag that is 0
    others = compared.others(at).clamp(min=0) * layer.blur.louder  # 0: a key, or a query, without a word
    gaps, rounding = scores.gaps(compared.match(at), others, first, ramp), sum(strays)
    for name, gap in (("a twin", gaps.twin), ("the first token", gaps.first)):
        if gap - rounding < EXACT:
            raise UnfitError(
                f"{layer.where}: {name} leads by {gap:.1f}, {rounding:.1f} of it within rounding, "
                f"which is below {EXACT:g}"
            )
    step = gaps.step - 2 * strays[0] if bool(ramp.any()) else None
    if step is not None and step <= 0:
        raise UnfitError(f"{layer.where}: a step of recency may be rounded away: {step:.2f} is left of it")
    return {
        "layer": layer.index,
        "head": 0,
        "does": f"looks at the token after the twin of {_SOUGHT[layer.index]}",
        **code,
        "distances": reach,
        "twin_over_first": gaps.twin - rounding,
        "first_over_others": gaps.first - rounding,
        "recency_step": step,
        "rounding": rounding,
    }


def words(layer: Layer) -> dict[str, Any]:
    """How long words are, and the largest inner product of two.

    Raises:
        UnfitError: two ids have one word, or there are too many to enumerate.
    """
    inner = largest_inner_product(layer.circuit.embed[1:, layer.before.word])
    if inner is None:
        raise UnfitError("the embedding: two ids have one word, or the words span too much to enumerate")
    return {"code_length": len(layer.before.word), "largest_inner_product": inner}


def mixed(layer: Layer, after: Stream, matched: dict[str, Any]) -> Blur:
    """The blur that a matching head leaves. Where twins disagree, it wrote a mixture of codes, or 0."""
    step = matched["recency_step"]
    kept, spread = scores.share(step, layer.circuit.geometry.reach, layer.dtype)
    code = float(after.fetched[1].square().sum())
    louder = 1.0 if step is not None else math.sqrt(after.square / (after.square - code))
    return Blur(spread + 2 * (1 - kept), louder)


def _sorted(layer: Layer) -> list[list[Part]]:
    """The parts of the head that compare words, raise the first token, and make a ramp of waves or digits."""
    sorts: dict[tuple[str, str], list[Part]] = {}
    for part in _parts(layer):
        asks, has = part.kinds
        sorts.setdefault((" and ".join(sorted(asks)), " and ".join(sorted(has))), []).append(part)
    sought = "word" if layer.index == 1 else "found"
    known = [(sought, "before"), ("constant", "flag"), ("constant", "constant"), ("constant", "digit")]
    for sort, parts in sorts.items():
        if sort not in known:
            raise UnfitError(
                f"{layer.where}: row {parts[0].rows[0]} of its query reads {sort[0]}, of its key {sort[1]}"
            )
    return [sorts.get(sort, []) for sort in known]


def _ramp(layer: Layer, waves: list[Part], digits: list[Part]) -> tuple[Tensor, Tensor, list[int]]:
    """What recency adds, by distance; the sizes of its parts, and a row of each."""
    head, circuit = layer.head, layer.circuit
    constant = layer.before.constant * layer.scale
    if waves and all(len(part.rows) == 2 for part in waves):
        pairs = torch.tensor([part.rows for part in waves])
        query, key = (torch.complex(*(weight @ constant)[pairs].unbind(1)) for weight in (head.q, head.k))
        size, rows = query.abs() * key.abs() / layer.root, pairs[:, 0].tolist()
        theta, reach = layer.turning.theta[rows], circuit.geometry.reach
        return rotary.waves(size, query.angle() - key.angle(), theta, reach), size, rows
    if digits and circuit.positions is not None:
        rows = [part.rows[0] for part in digits]
        return *_steps(layer, circuit.positions, rows, constant), rows
    return torch.zeros(circuit.geometry.reach).double(), torch.zeros(0).double(), []


def _content(layer: Layer, parts: list[Part], inner: int) -> scores.Content:
    """The content rows: each sign of the word against its own copy, both rows of a pair alike."""
    head, before, where = layer.head, layer.before, layer.where
    own = before.word if layer.index == 1 else before.found[before.word]
    twin = dict(zip(own.tolist(), before.before[before.word].tolist(), strict=True))
    size = float((before.code if layer.index == 1 else before.fetched)[1].abs().max())
    compared = [(a, b) for part in parts for a, b in zip(part.asks, part.has, strict=True) if a and b]
    rows = [row for part in parts for row in part.rows]
    if len(compared) != len(rows) or sorted(a[1] for a, _ in compared) != sorted(twin):
        raise UnfitError(f"{where}: its content rows do not compare every sign of the word once")
    weight, half = [], 2 // len(parts[0].rows)
    for row, (asked, has) in zip(rows, compared, strict=True):
        if twin[asked[1]] != has[1]:
            raise UnfitError(f"{where}: row {row} compares two different signs of the word")
        weight.append((float(head.q[row, asked[1]]), float(head.k[row, has[1]])))
    units = [weight[i : i + 2] for i in range(0, len(weight), 2)]
    if len(weight) % 2 or any(pair[0] != pair[1] or min(pair[0]) <= 0 for pair in units):
        raise UnfitError(f"{where}: two content rows that score together weigh differently")
    old = float(before.copied[1].abs().max())
    sizes = (
        torch.tensor([pair[0][0] * pair[0][1] for pair in units]).double()
        * size
        * old
        * layer.scale**2
        / layer.root
    )
    return scores.Content(sizes, layer.turning.theta[[part.rows[0] for part in parts[::half]]], inner)


def _steps(layer: Layer, positions: Tensor, rows: list[int], constant: Tensor) -> tuple[Tensor, Tensor]:
    """A ramp of digits: the same step from each position to the next; by distance, and its parts' sizes."""
    head = layer.head
    factors = (head.q[rows] @ constant) * layer.scale
    positions, keys = positions[:, layer.before.digits].double(), head.k[rows][:, layer.before.digits]
    along = positions @ (factors @ keys)
    steps = along.diff()
    off = steps != steps[0]
    if bool(off.any()):
        raise UnfitError(
            f"{layer.where}: the recency step to position {int(off.long().argmax()) + 1} differs"
        )
    size = (factors[:, None] * keys * positions[0]).sum(1).abs() / layer.root
    return -float(steps[0]) / layer.root * torch.arange(len(along)).double(), size
