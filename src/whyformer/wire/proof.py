"""The proof that a circuit does exact induction, from its weights alone.

The argument, step by step; each step is checked, and the first that fails is told.

1. Tokens. A coordinate of the embedding is a constant, a sign of the word, or a flag of the first token. All
   rows have one norm, so that the first norm of the model divides by a known power of two.
2. Layer 0. Its queries and keys read constants or positions only, so its scores are the same for all
   sequences: all distances are enumerated. The token before beats all others by more than 104 once rounding
   is taken off, so what is copied is that token's code, exactly. The first position copies its own.
3. It is copied to coordinates that were 0, and the residual stream has one norm again.
4. Layer 1. Content rows compare the query's word with the word before the key; one row raises the first
   token; a pair of constants may add a ramp. Over all words and all distances, a twin's successor beats the
   first token, and that one every other key, by more than 104 once rounding is taken off.
5. So what is copied is the code of the token after the twin, or of the first token where there is no twin;
   under ``recent`` older twins weigh a little. Its logit stands above all others by what codes differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.instruments.rounding import gamma, unit
from whyformer.wire import rotary, scores, stream
from whyformer.wire.circuit import DTYPES, Circuit, Head, Traits
from whyformer.wire.codes import largest_inner_product
from whyformer.wire.family import UnfitError
from whyformer.wire.stream import Stream

EXACT = 104.0
"""e^−104 is below half of the smallest float32, 2^−149: it is 0, and so is the weight of a key 104 behind."""


@dataclass(frozen=True)
class Proof:
    """What was proved.

    Attributes:
        rule: ``recent`` or ``agree``.
        logit_margin: by how much the right logit stands above all others, at least.
        layers: for each layer, what it does and its margins.
    """

    rule: str
    logit_margin: float
    layers: list[dict[str, Any]]


@dataclass(frozen=True)
class Angles:
    """The rotary frequency of each row of a head, the error of its table, and the row that it turns with."""

    theta: Float[Tensor, " rows"]
    error: Float[Tensor, " rows"]
    half: int


def angles(circuit: Circuit, traits: Traits) -> Angles:
    """The frequencies of a head's rows; rows beyond the rotary ones have 0."""
    geometry = circuit.geometry
    turned = int(geometry.head_width * traits.rotary)
    theta, error = (torch.zeros(geometry.head_width).double() for _ in range(2))
    if turned:
        table = rotary.frequencies(turned, geometry.theta or 1.0)
        theta[:turned] = table.double().repeat(2)
        error[:turned] = rotary.table_error(table, geometry.context, DTYPES[geometry.dtype]).repeat(2)
    return Angles(theta, error, turned // 2)


def prove(circuit: Circuit, traits: Traits) -> Proof:
    """All five steps.

    Raises:
        UnfitError: a step fails; the message says which, and where.
    """
    if len(circuit.heads) != 2:
        raise UnfitError(f"{len(circuit.heads)} layers: induction has two")
    turning = angles(circuit, traits)
    first = stream.tokens(circuit, traits.layer_norm)
    scale = first.scale("layer 0", traits.eps)
    head = stream.normed(circuit.heads[0], first, scale, traits.eps, "layer 0")
    told = [_previous(circuit, traits, head, first, scale, turning)]
    second = stream.after_copy(first, head, scale, traits.layer_norm, "layer 0")
    scale = second.scale("layer 1", traits.eps)
    head = stream.normed(circuit.heads[1], second, scale, traits.eps, "layer 1")
    matched = _matching(circuit, traits, head, second, scale, turning)
    told.append(matched)
    margin = _logits(circuit, traits, head, second, scale, matched)
    return Proof("recent" if matched["recency_step"] else "agree", margin, told)


def _previous(
    circuit: Circuit, traits: Traits, head: Head, before: Stream, scale: float, turning: Angles
) -> dict[str, Any]:
    """Step 2: the margin of the previous token, at every distance."""
    geometry, where = circuit.geometry, "layer 0"
    _, norm = scores.norm_errors(traits.layer_norm, geometry.width, before.ratio)
    dtype, root = DTYPES[geometry.dtype], math.sqrt(geometry.head_width)
    told: dict[str, Any] = {"layer": 0, "head": 0, "does": "looks at the previous token"}
    if circuit.positions is not None:
        margin, size = _digits(circuit.positions, head, before, scale, root)
        rounding = scores.stray(size, 0.0, len(size), dtype, norm)
    else:
        for name, weight in (("query", head.q), ("key", head.k)):
            if bool(weight[:, before.constant == 0].any()):
                raise UnfitError(f"{where}: its {name} reads a coordinate that holds no constant")
        q, k = ((weight * before.constant).sum(1) * scale for weight in (head.q, head.k))
        if bool(torch.stack([q, k])[:, 2 * turning.half :].any()):
            raise UnfitError(f"{where}: it scores by rows that no position turns")
        turned = slice(0, turning.half), slice(turning.half, 2 * turning.half)
        query, key = (torch.complex(part[turned[0]], part[turned[1]]) for part in (q, k))
        if bool(((query == 0) != (key == 0)).any()):
            raise UnfitError(f"{where}: a row of its query has no row of its key, or the other way round")
        size, phase = query.abs() * key.abs() / root, query.angle() - key.angle()
        theta = turning.theta[turned[0]]
        at = rotary.waves(size, phase, theta, max(2, geometry.reach))
        others = torch.cat([at[:1], at[2:]])
        margin = float(at[1] - others.max())
        nearest = int(others.argmax())
        told |= {"worst_distance": nearest + (nearest > 0), "rotary_base": geometry.theta}
        used = 2 * int((size > 0).sum())
        rounding = scores.stray(size, turning.error[turned[0]], used, dtype, norm)
    rounding *= 2  # of the two keys that are compared
    if margin - rounding < EXACT:
        raise UnfitError(
            f"{where}: the previous token leads by {margin:.1f}, {rounding:.1f} of it within rounding, "
            f"which is below {EXACT:g}"
        )
    return told | {"distances": geometry.reach, "margin": margin - rounding, "rounding": rounding}


def _digits(positions: Tensor, head: Head, before: Stream, scale: float, root: float) -> tuple[float, Tensor]:
    """Learned positions: the query's digits are those of the key one back, and no two keys have the same.

    Two different sets of signs differ in at least one, so the margin is twice the smallest weight.
    """
    for name, weight in (("query", head.q), ("key", head.k)):
        if int((weight != 0).sum(1).max()) > 1 or bool(weight[:, ~before.digits].any()):
            raise UnfitError(f"layer 0: a row of its {name} reads other than one digit of the position")
    rows = (head.q != 0).any(1)
    if not torch.equal(rows, (head.k != 0).any(1)):
        raise UnfitError("layer 0: a row of its query has no row of its key, or the other way round")
    query, key = (positions @ weight[rows].T * scale for weight in (head.q, head.k))
    packed = ((key > 0).long() << torch.arange(key.shape[1])).sum(1)
    if len(packed.unique()) < len(packed):
        raise UnfitError("layer 0: the keys of two positions are the same")
    off = ((query[1:] > 0) != (key[:-1] > 0)).any(1)
    if bool(off.any()):
        raise UnfitError(f"layer 0: the query of position {int(off.double().argmax()) + 1} looks elsewhere")
    size = query[0].abs() * key[0].abs() / root
    return 2 * float(size.min()), size


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


def _parts(head: Head, before: Stream, turning: Angles) -> list[Part]:
    """The rows of the head, in the parts that score together; rows that are 0 are left out."""
    kinds = {int(c): "word" for c in before.word} | {int(c): "flag" for c in before.flag}
    kinds |= {int(before.before[c]): "before" for c in before.word}
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
            raise UnfitError(f"layer 1: row {part.rows[0]} is read by its query or its key alone")
    return [part for part in parts if all(part.kinds)]


def _matching(
    circuit: Circuit, traits: Traits, head: Head, before: Stream, scale: float, turning: Angles
) -> dict[str, Any]:
    """Step 4: the gaps between twins, the first token and all other keys, at every distance."""
    geometry, where, root = circuit.geometry, "layer 1", math.sqrt(circuit.geometry.head_width)
    inner = largest_inner_product(circuit.embed[1:, before.word])
    if inner is None:
        raise UnfitError("the embedding: two ids have one word, or the words span too much to enumerate")
    sorts: dict[tuple[str, str], list[Part]] = {}
    for part in _parts(head, before, turning):
        asks, has = part.kinds
        sorts.setdefault((" and ".join(sorted(asks)), " and ".join(sorted(has))), []).append(part)
    known = [("word", "before"), ("constant", "flag"), ("constant", "constant"), ("constant", "digit")]
    for sort, parts in sorts.items():
        if sort not in known:
            raise UnfitError(
                f"{where}: row {parts[0].rows[0]} of its query reads {sort[0]}, of its key {sort[1]}"
            )
    content, flags, constants, digits = (sorts.get(sort, []) for sort in known)
    theta, error = turning.theta.tolist(), turning.error.tolist()
    words = _content(head, before, content, scale**2 / root, theta, inner)
    constant = before.constant * scale
    at = torch.arange(geometry.reach).double()
    alone = [len([read for read in part.has + part.asks if read]) == 2 for part in flags]
    if alone != [True]:
        raise UnfitError(f"{where}: not one row alone raises the first token")
    row = next(r for r, has in zip(flags[0].rows, flags[0].has, strict=True) if has)
    raised = float((head.q[row] @ constant) * (head.k[row] @ before.code[0])) * scale / root
    first = raised * torch.cos(theta[row] * at)
    places = [*(part.rows[0] for part in content[:: 2 // len(content[0].rows)]), row]
    ramp, size = torch.zeros(geometry.reach).double(), torch.zeros(0).double()
    if constants and all(len(part.rows) == 2 for part in constants):
        pairs = torch.tensor([part.rows for part in constants])
        query, key = (torch.complex(*(weight @ constant)[pairs].unbind(1)) for weight in (head.q, head.k))
        size, turned = query.abs() * key.abs() / root, pairs[:, 0].tolist()
        waves = torch.tensor([theta[row] for row in turned])
        ramp = rotary.waves(size, query.angle() - key.angle(), waves, geometry.reach)
        places += turned
    elif digits and circuit.positions is not None:
        rows = [part.rows[0] for part in digits]
        ramp, size = _steps(circuit.positions, head, rows, constant, scale, root)
        places += rows
    sizes = torch.cat([2 * words.weight, torch.tensor([abs(raised)]).double(), size])
    table = torch.tensor([error[row] for row in places]).double()
    copied, own = scores.norm_errors(traits.layer_norm, geometry.width, before.ratio)
    number = torch.arange(len(sizes)) - len(words.weight)
    norms = torch.where(number < 0, copied, own)
    products, dtype = 2 * len(sizes), DTYPES[geometry.dtype]
    strays = [
        scores.stray(sizes[some], table[some], products, dtype, norms[some])
        for some in (number != 0, number >= 0)
    ]
    strays[0] += own * abs(raised)  # the shift of a flag that is 0
    gaps, rounding = scores.gaps(words.match(at), words.others(at), first, ramp), sum(strays)
    for name, gap in (("a twin", gaps.twin), ("the first token", gaps.first)):
        if gap - rounding < EXACT:
            raise UnfitError(
                f"{where}: {name} leads by {gap:.1f}, {rounding:.1f} of it within rounding, "
                f"which is below {EXACT:g}"
            )
    return {
        "layer": 1,
        "head": 0,
        "does": "looks at the token after the twin of the present one",
        "code_length": len(before.word),
        "largest_inner_product": inner,
        "distances": geometry.reach,
        "twin_over_first": gaps.twin - rounding,
        "first_over_others": gaps.first - rounding,
        "recency_step": gaps.step - 2 * strays[0] if bool(ramp.any()) else None,
        "rounding": rounding,
    }


def _content(
    head: Head, before: Stream, parts: list[Part], scale: float, theta: list[float], inner: int
) -> scores.Content:
    """The content rows: each sign of the word against its own copy, both rows of a pair alike."""
    where = "layer 1"
    compared = [(a, b) for part in parts for a, b in zip(part.asks, part.has, strict=True) if a and b]
    rows = [row for part in parts for row in part.rows]
    if len(compared) != len(rows) or sorted(a[1] for a, _ in compared) != before.word.tolist():
        raise UnfitError(f"{where}: its content rows do not compare every sign of the word once")
    weight, half = [], 2 // len(parts[0].rows)
    for row, (asked, has) in zip(rows, compared, strict=True):
        if int(before.before[asked[1]]) != has[1]:
            raise UnfitError(f"{where}: row {row} compares two different signs of the word")
        weight.append((float(head.q[row, asked[1]]), float(head.k[row, has[1]])))
    units = [weight[i : i + 2] for i in range(0, len(weight), 2)]
    if len(weight) % 2 or any(pair[0] != pair[1] or min(pair[0]) <= 0 for pair in units):
        raise UnfitError(f"{where}: two content rows that score together weigh differently")
    old = float(before.copied[1].abs().max())
    sizes = torch.tensor([pair[0][0] * pair[0][1] for pair in units]).double() * scale * before.size * old
    return scores.Content(
        sizes, torch.tensor([theta[part.rows[0]] for part in parts[::half]]).double(), inner
    )


def _steps(
    positions: Tensor, head: Head, rows: list[int], constant: Tensor, scale: float, root: float
) -> tuple[Tensor, Tensor]:
    """A ramp of digits: the same step from each position to the next; by distance, and its parts' sizes."""
    factors = (head.q[rows] @ constant) * scale
    along = positions @ (factors @ head.k[rows])
    steps = along.diff()
    if bool((steps != steps[0]).any()):
        raise UnfitError(
            f"layer 1: the recency step to position {int((steps != steps[0]).double().argmax()) + 1} differs"
        )
    size = (factors[:, None] * head.k[rows] * positions[0]).sum(1).abs() / root
    return -float(steps[0]) / root * torch.arange(len(along)).double(), size


def _logits(
    circuit: Circuit, traits: Traits, head: Head, before: Stream, scale: float, matched: dict[str, Any]
) -> float:
    """Step 5: what the logits differ by, at least.

    With w the weight of the right key, at least, all codes of k signs and an inner product of at most μ, the
    copied code tells the right token from any other by w(k − μ) − (1 − w)·2k signs. Weights that do not sum
    to 1 exactly take 2kε, ε for their rounding to the dtype and a sum over the context. Where the code is
    copied onto the present token's own, that one takes 2k of its own signs.
    """
    geometry, k = circuit.geometry, matched["code_length"]
    dtype, inner = DTYPES[geometry.dtype], max(0, matched["largest_inner_product"])
    step, others = matched["recency_step"], 0.0
    if step is not None:
        if step <= 0:
            raise UnfitError(f"layer 1: a step of recency may be rounded away: {step:.2f} is left of it")
        others = 1 / math.expm1(step)
    weight = 1 / (1 + others)
    spread = 2 * unit(dtype) + gamma(geometry.reach, torch.float32)
    loud, read = _output(circuit, traits, head, before, scale)
    right = weight * (k - inner) - (1 - weight) * 2 * k - 2 * k * spread
    if geometry.tied:
        root = (math.sqrt(before.square) + loud * math.sqrt(k)) / math.sqrt(geometry.width)
        margin = (loud * right - before.size * 2 * k) * read / root
    else:
        root = math.sqrt((before.square + loud**2 * k) / geometry.width)
        margin = loud * right * read / root
    table = circuit.embed if circuit.unembed is None else circuit.unembed
    largest = float(table[[0, -1]].norm(dim=1).max()) * abs(circuit.gain) * math.sqrt(geometry.width)
    if geometry.tied and traits.scaled:
        largest /= math.sqrt(geometry.width)
    rounding = largest * (2 * gamma(geometry.width + 8, torch.float32) + 4 * unit(dtype))
    margin -= 2 * rounding
    if margin <= 0:
        raise UnfitError(f"the logits: the right one leads by {margin:.3g} at worst")
    return margin


def _output(
    circuit: Circuit, traits: Traits, head: Head, before: Stream, scale: float
) -> tuple[float, float]:
    """How loud a sign of the copied code is, and what one of its signs counts in a logit before the norm."""
    where, moved = "layer 1", stream.moves(head, scale, "layer 1")
    codes = torch.cat([before.word, before.flag]).tolist()
    to = {source: target for target, (source, _) in moved.items()}
    factors = {factor for _, factor in moved.values()}
    if sorted(to) != sorted(codes) or len(moved) != len(codes) or len(factors) != 1 or min(factors) <= 0:
        raise UnfitError(f"{where}: it does not copy every coordinate of a code alike")
    loud = factors.pop() * before.size
    targets = [to[c] for c in codes]
    if circuit.unembed is None:
        if targets != codes:
            raise UnfitError(f"{where}: it copies the code to coordinates that the logits do not read so")
        scaled = math.sqrt(circuit.geometry.width) if traits.scaled else 1.0
        return loud, before.size / scaled * circuit.gain
    if bool(before.taken[targets].any()):
        raise UnfitError(f"{where}: it writes to coordinates that are in use")
    read = circuit.unembed.clone()
    size = float(read[-1].abs().max())
    off = read[:, targets] - circuit.embed[:, codes] * (size / before.size)
    read[:, targets] = 0
    if bool((off != 0).any()) or bool((read != 0).any()):
        wrong = ((off != 0).any(1) | (read != 0).any(1)).nonzero()[0]
        raise UnfitError(f"the unembedding: id {int(wrong)} does not read the code that the id has")
    return loud, size * circuit.gain
