"""Step 2 of the proof: a head that looks back by one number of positions, whatever the tokens are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.instruments.rounding import gamma
from whyformer.wire import rotary, scores
from whyformer.wire.family import UnfitError
from whyformer.wire.layer import Layer
from whyformer.wire.scores import EXACT


def looking_back(layer: Layer) -> tuple[int, dict[str, Any]]:
    """The offset n, and what is told of the margin, which holds at every distance.

    A query with n positions behind it looks n back; any other looks at the first token. Keys of words are
    the same but for their distance; that of the first token may differ by its flags.

    Raises:
        UnfitError: a score depends on a word, or the margin is too small.
    """
    _, norm = layer.norms()
    reach = layer.circuit.geometry.reach
    told: dict[str, Any] = {}
    if layer.circuit.positions is not None:
        offset, margin, size = _digits(layer.circuit.positions, layer)
        rounding = 2 * scores.stray(size, 0.0, len(size), layer.dtype, norm)  # two keys are compared
    else:
        seen = _waves(layer)
        offset, others = int(seen.words.argmax()), seen.words.clone()
        others[offset] = -torch.inf
        crowd = torch.cummax(others, 0).values[:-1]
        first, peak = seen.first[1:], seen.words[offset]
        at = torch.arange(1, len(others))
        lead = torch.where(at > offset, peak - torch.maximum(first, crowd), first - crowd)
        margin = float(lead.min())
        told |= {"worst_distance": int(others.argmax()), "rotary_base": layer.circuit.geometry.theta}
        rounding = _rounding(layer, seen, norm)
    if margin - rounding < EXACT:
        what = "the previous token" if offset == 1 else f"the token {offset} back, or the first,"
        raise UnfitError(
            f"{layer.where}: {what} leads by {margin:.1f}, {rounding:.1f} of it within rounding, "
            f"which is below {EXACT:g}"
        )
    does: dict[str, Any] = {"layer": layer.index, "head": 0, "does": "looks at the previous token"}
    if len(layer.circuit.heads) == 1:
        does |= {"does": f"looks at the token {offset} back, else at the first", "offset": offset}
    return offset, does | told | {"distances": reach, "margin": margin - rounding, "rounding": rounding}


@dataclass(frozen=True)
class Scores:
    """Scores by distance, of a word and of the first token, and the parts that they have.

    Attributes:
        words, first: the scores.
        sizes: of a word's parts, and of the first token's.
        flags: of what the first token's flags add to each part, alone.
        error: of the rotary table, by part.
    """

    words: Float[Tensor, " reach"]
    first: Float[Tensor, " reach"]
    sizes: tuple[Float[Tensor, " parts"], Float[Tensor, " parts"]]
    flags: Float[Tensor, " parts"]
    error: Float[Tensor, " parts"]


def _rounding(layer: Layer, seen: Scores, norm: float) -> float:
    """How far two scores may move apart: two words', or a word's and the first token's.

    A flag that a word lacks may hold the shift of a layer norm. The first token's key adds constants and
    flags, which may cancel: the sum of the two is within γ₂ of their sizes, and their norms' errors stay.
    """
    used = 2 * len(seen.error)
    word, first = (scores.stray(size, seen.error, used, layer.dtype, norm) for size in seen.sizes)
    mixed = (seen.flags > 0) & (seen.sizes[0] > 0)
    word += norm * float(seen.flags.sum())
    first += (norm + gamma(2, torch.float32)) * float((seen.sizes[0] + seen.flags)[mixed].sum())
    return word + max(word, first)


def _waves(layer: Layer) -> Scores:
    """Rotary positions: the query reads constants, the key constants and flags, both by the same rows."""
    head, before, half = layer.head, layer.before, layer.turning.half
    constant = before.constant != 0
    for name, weight, may in (
        ("query", head.q, constant),
        ("key", head.k, constant | (before.code[0] != 0)),
    ):
        if bool(weight[:, ~may].any()):
            raise UnfitError(f"{layer.where}: its {name} reads a coordinate that holds no constant")
    query = (head.q * before.constant).sum(1) * layer.scale
    shared = (head.k * before.constant).sum(1) * layer.scale
    own = (head.k * before.code[0]).sum(1) * layer.scale
    alone = slice(2 * half, None)
    if bool(shared[alone].any()):
        raise UnfitError(f"{layer.where}: it scores by rows that no position turns")

    def pairs(rows: Tensor) -> Tensor:
        return torch.complex(rows[:half], rows[half : 2 * half])

    asked = torch.cat([pairs(query).abs(), query[alone].abs()])
    has = torch.cat([pairs(shared).abs() + pairs(own).abs(), own[alone].abs()])
    if bool(((asked == 0) != (has == 0)).any()):
        raise UnfitError(f"{layer.where}: a row of its query has no row of its key, or the other way round")
    theta, reach = layer.turning.theta[:half], max(2, layer.circuit.geometry.reach)
    each, sizes = [], []
    for key in (shared, shared + own):
        parts = torch.cat([pairs(key).abs(), key[alone].abs()])
        sizes.append(asked * parts / layer.root)
        size = sizes[-1][:half]
        phase = pairs(query).angle() - pairs(key).angle()
        still = float(query[alone] @ key[alone]) / layer.root
        each.append(rotary.waves(size, phase, theta, reach) + still)
    error = torch.cat([layer.turning.error[:half], layer.turning.error[alone]])
    flags = asked * torch.cat([pairs(own).abs(), own[alone].abs()]) / layer.root
    return Scores(each[0], each[1], (sizes[0], sizes[1]), flags, error)


def _digits(positions: Tensor, layer: Layer) -> tuple[int, float, Tensor]:
    """Learned positions: the query's digits are those of one key, and no two keys have the same.

    Two different sets of signs differ in at least one, so the margin is twice the smallest weight. With fewer
    positions behind it than the offset, the digits are those of position 0.
    """
    head, before, where = layer.head, layer.before, layer.where
    for name, weight in (("query", head.q), ("key", head.k)):
        if int((weight != 0).sum(1).max()) > 1 or bool(weight[:, ~before.digits].any()):
            raise UnfitError(f"{where}: a row of its {name} reads other than one digit of the position")
    rows = (head.q != 0).any(1)
    if not torch.equal(rows, (head.k != 0).any(1)):
        raise UnfitError(f"{where}: a row of its query has no row of its key, or the other way round")
    table = positions[:, before.digits].double()
    query, key = (table @ weight[rows][:, before.digits].T * layer.scale for weight in (head.q, head.k))
    place = torch.arange(key.shape[1])
    asked, has = (((part > 0).long() << place).sum(1) for part in (query, key))
    if len(has.unique()) < len(has):
        raise UnfitError(f"{where}: the keys of two positions are the same")
    last = len(asked) - 1
    found = (has == asked[last]).nonzero()
    offset = last - int(found[0]) if len(found) else 1
    off = asked != has[(torch.arange(last + 1) - offset).clamp(min=0)]
    off[0] = False  # it sees itself alone
    if bool(off.any()):
        raise UnfitError(f"{where}: the query of position {int(off.long().argmax())} looks elsewhere")
    size = query[0].abs() * key[0].abs() / layer.root
    return offset, 2 * float(size.min()), size
