"""Step 5 of the proof: by how much the right logit leads."""

from __future__ import annotations

import math
from typing import Any

import torch

from whyformer.instruments.rounding import gamma, unit
from whyformer.wire import scores, stream
from whyformer.wire.circuit import DTYPES
from whyformer.wire.family import UnfitError
from whyformer.wire.layer import Layer


def logit_margin(layer: Layer, matched: dict[str, Any]) -> float:
    """What the logits differ by, at least.

    With w the weight of the right key, at least, all codes of k signs and an inner product of at most μ, the
    copied code tells the right token from any other by w(k − μ) − (1 − w)·2k signs. Weights that do not sum
    to 1 exactly take 2kε, ε for their rounding to the dtype and a sum over the context. Where the code is
    copied onto the present token's own, that one takes 2k of its own signs, and 2 for each of a mark. A blur
    before the layer is added to ε, and to the last norm.

    Raises:
        UnfitError: the output or the unembedding is not that of a code, or no margin is left.
    """
    circuit, traits, before, blur = layer.circuit, layer.traits, layer.before, layer.blur
    geometry, k = circuit.geometry, matched["code_length"]
    dtype, inner = DTYPES[geometry.dtype], max(0, matched["largest_inner_product"])
    weight, spread = scores.share(matched.get("recency_step"), geometry.reach, dtype)
    high = blur.louder
    if blur.found:
        _, off = layer.norms()
        spread, high = spread + off, high + off
    loud, read = _output(layer)
    right = weight * (k - inner) - (1 - weight) * 2 * k - 2 * k * spread
    if geometry.tied:
        root = (math.sqrt(before.square) + loud * math.sqrt(k)) * high / math.sqrt(geometry.width)
        own = 2 * (before.size * k + float(before.signs[before.mark].square().sum()) / before.size)
        margin = (loud * right - own) * read / root
    else:
        root = math.sqrt((before.square + loud**2 * k) / geometry.width) * high
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


def _output(layer: Layer) -> tuple[float, float]:
    """How loud a sign of the copied code is, and what one of its signs counts in a logit before the norm."""
    circuit, before, where = layer.circuit, layer.before, layer.where
    moved = stream.moves(layer.head, layer.scale, where)
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
        scaled = math.sqrt(circuit.geometry.width) if layer.traits.scaled else 1.0
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
