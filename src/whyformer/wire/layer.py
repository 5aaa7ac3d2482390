"""One layer of a wired model as its proof sees it: the head, the stream before it, the angles, the blur."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.wire import rotary, scores, stream
from whyformer.wire.circuit import DTYPES, Circuit, Head, Traits
from whyformer.wire.stream import Stream


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


@dataclass(frozen=True)
class Blur:
    """How far the stream is from what it ought to be, behind a head that may have mixed.

    Attributes:
        found: the relative error of what the head wrote, where it is decided.
        louder: what vectors may be multiplied by where it is not decided.
    """

    found: float = 0.0
    louder: float = 1.0


@dataclass(frozen=True)
class Layer:
    """One layer, with what is known before it.

    Attributes:
        index: its number, from 0.
        circuit, traits: the model.
        turning: the angles of positions.
        head: its head, norms of queries and keys taken in.
        before: the stream before it, not yet normed.
        scale: what its norm multiplies by.
        blur: how far the stream is from ``before``.
    """

    index: int
    circuit: Circuit
    traits: Traits
    turning: Angles
    head: Head
    before: Stream
    scale: float
    blur: Blur

    @classmethod
    def of(
        cls, index: int, circuit: Circuit, traits: Traits, turning: Angles, before: Stream, blur: Blur
    ) -> Layer:
        """The layer of that number.

        Raises:
            UnfitError: a norm before it or in it is not exact.
        """
        where = f"layer {index}"
        scale = before.scale(where, traits.eps)
        head = stream.normed(circuit.heads[index], before, scale, traits.eps, where)
        return cls(index, circuit, traits, turning, head, before, scale, blur)

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"layer {self.index}"

    @property
    def root(self) -> float:
        """What scores are divided by."""
        return math.sqrt(self.circuit.geometry.head_width)

    @property
    def dtype(self) -> torch.dtype:
        """Of activations."""
        return DTYPES[self.circuit.geometry.dtype]

    def norms(self) -> tuple[float, float]:
        """The relative error that norms leave: in what is compared by content, in a constant or a flag."""
        norm, width = self.traits.layer_norm, self.circuit.geometry.width
        if not self.blur.found:
            return scores.norm_errors(norm, width, self.before.ratio)
        return scores.blurred(norm, width, self.before.ratio, self.blur.found, self.dtype)

    def after(self, *, found: bool = False, digits: bool = False) -> Stream:
        """The stream after it, when it copies one code, or digits of one position."""
        return stream.after_copy(
            self.before,
            self.head,
            self.scale,
            self.traits.layer_norm,
            self.where,
            found=found,
            digits=self.circuit.positions if digits else None,
        )
