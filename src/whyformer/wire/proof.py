"""The proof that a circuit does exact induction, or looks up twice, from its weights alone.

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

Two hops. Layer 1 writes what it copies to coordinates that were 0, and layer 2 is layer 1 again, with the
word that was found in place of the query's own. Where several twins agree, or older ones weigh a little, what
is written is right but for a small *blur*, and so is the norm after it; both are in the rounding. Where twins
disagree under ``agree`` the codes may cancel: such a key is louder, at most by what the norm then lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.wire import rotary, scores, stream
from whyformer.wire.circuit import Circuit, Head, Traits
from whyformer.wire.family import UnfitError
from whyformer.wire.layer import Blur, Layer, angles
from whyformer.wire.logits import logit_margin
from whyformer.wire.matching import matching, mixed
from whyformer.wire.scores import EXACT
from whyformer.wire.stream import Stream


@dataclass(frozen=True)
class Proof:
    """What was proved.

    Attributes:
        rule: ``recent``, ``agree``, ``two-hop`` or ``two-hop-agree``.
        logit_margin: by how much the right logit stands above all others, at least.
        layers: for each layer, what it does and its margins.
    """

    rule: str
    logit_margin: float
    layers: list[dict[str, Any]]


def prove(circuit: Circuit, traits: Traits) -> Proof:
    """All five steps; two layers are induction, three are two hops.

    Raises:
        UnfitError: a step fails; the message says which, and where.
    """
    number = len(circuit.heads)
    if number not in (2, 3):
        raise UnfitError(f"{number} layers: induction has two, two hops have three")
    turning, blur = angles(circuit, traits), Blur()
    layer = Layer.of(0, circuit, traits, turning, stream.tokens(circuit, traits.layer_norm), blur)
    told = [_previous(layer)]
    layer = Layer.of(1, circuit, traits, turning, layer.after(), blur)
    told.append(matching(layer))
    if number > 2:
        if traits.query_norm:
            raise UnfitError("layer 2: a norm on queries is not exact behind a head that may mix")
        after = layer.after(found=True)
        blur = mixed(layer, after, told[1])
        layer = Layer.of(2, circuit, traits, turning, after, blur)
        told.append(matching(layer))
    recent = {each["recency_step"] is not None for each in told[1:]}
    if len(recent) > 1:
        raise UnfitError("layer 2: of several twins it takes others than layer 1 does")
    words = ("recent", "agree") if number == 2 else ("two-hop", "two-hop-agree")
    return Proof(words[True not in recent], logit_margin(layer, told[-1]), told)


def _previous(layer: Layer) -> dict[str, Any]:
    """Step 2: the margin of the previous token, at every distance."""
    circuit, head, before, turning = layer.circuit, layer.head, layer.before, layer.turning
    geometry, where, root, dtype = circuit.geometry, layer.where, layer.root, layer.dtype
    _, norm = layer.norms()
    told: dict[str, Any] = {"layer": 0, "head": 0, "does": "looks at the previous token"}
    if circuit.positions is not None:
        margin, size = _digits(circuit.positions, head, before, layer.scale, root)
        rounding = scores.stray(size, 0.0, len(size), dtype, norm)
    else:
        for name, weight in (("query", head.q), ("key", head.k)):
            if bool(weight[:, before.constant == 0].any()):
                raise UnfitError(f"{where}: its {name} reads a coordinate that holds no constant")
        q, k = ((weight * before.constant).sum(1) * layer.scale for weight in (head.q, head.k))
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
