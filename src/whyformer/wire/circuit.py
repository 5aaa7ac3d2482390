"""What a wired checkpoint is, whatever its architecture calls the tensors: tables, heads, and few numbers.

Axes: vocabulary, width (of the residual stream), rows (of one head), context.

A layer has one head that acts; all else in it is zero. Weights are float64 copies of what is stored, which is
exact. A family (``llama``, ``gpt2``, ``neox``) turns a circuit into stored tensors and back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

UNIT = 64.0
"""The size of a sign in the residual stream: its square drowns the eps of every norm in float32."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Traits:
    """What of an architecture the wiring has to know.

    Attributes:
        layer_norm: layer norms, which need vectors of mean 0, in place of root-mean-square norms.
        eps: of the norms.
        rotary: the share of a head's rows that rotary positions turn; 0 for learned positions.
        split: whether a head's width is the residual stream's over the number of heads.
        query_norm: whether queries and keys are normed.
        scaled: whether embeddings are multiplied by the root of the width.
        untied, tied: which of the two the architecture can be.
        window: whether it can have a sliding window.
    """

    layer_norm: bool = False
    eps: float = 1e-6
    rotary: float = 1.0
    split: bool = False
    query_norm: bool = False
    scaled: bool = False
    untied: bool = True
    tied: bool = True
    window: bool = False


@dataclass(frozen=True)
class Geometry:
    """The sizes and settings that a config states.

    Attributes:
        architecture: a name in ``families.FAMILIES``.
        vocabulary: ids 0 to vocabulary − 1; 0 is the first token, 1 the pad.
        context: the longest sequence, first token included.
        width: of the residual stream.
        head_width: rows of a head.
        layers: how many.
        theta: the rotary base; None without rotary positions.
        dtype: a name in DTYPES.
        tied: whether the embedding is the unembedding too.
        window: how many latest positions a query sees, itself included; None for all.
    """

    architecture: str
    vocabulary: int
    context: int
    width: int
    head_width: int
    layers: int
    theta: float | None
    dtype: str
    tied: bool
    window: int | None = None

    @property
    def reach(self) -> int:
        """How many latest positions a query sees."""
        return self.context if self.window is None else min(self.window, self.context)


@dataclass(frozen=True)
class Head:
    """One attention head: rows of q, k, v read the normed residual stream, o writes to it.

    ``q_gain`` and ``k_gain`` are the weights of the norms on queries and keys, where there are such.
    """

    q: Float[Tensor, "rows width"]
    k: Float[Tensor, "rows width"]
    v: Float[Tensor, "rows width"]
    o: Float[Tensor, "width rows"]
    q_gain: Float[Tensor, " rows"] | None = None
    k_gain: Float[Tensor, " rows"] | None = None


@dataclass(frozen=True)
class Circuit:
    """A wired model.

    Attributes:
        embed: what a token puts into the residual stream, any scale of the architecture included.
        positions: what a position adds, where positions are learned; float32, since the table may be long.
        heads: one a layer.
        gain: the weight of the last norm, the same for all coordinates.
        unembed: what reads the logits; None where it is ``embed``, without the scale.
    """

    geometry: Geometry
    embed: Float[Tensor, "vocabulary width"]
    positions: Float[Tensor, "context width"] | None
    heads: tuple[Head, ...]
    gain: float
    unembed: Float[Tensor, "vocabulary width"] | None


def power_of_two(values: Tensor) -> bool:
    """Whether every value is 0, or plus or minus a power of two, so that multiplying by it rounds nothing."""
    mantissa = torch.frexp(values).mantissa.abs()
    return bool(((mantissa == 0) | (mantissa == 0.5)).all())
