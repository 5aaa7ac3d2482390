"""Softmax attention of several heads, and stacks of it: plain mathematics, any bias, any positions.

Axes: batch, heads, time, width; queries before keys. Weights are drawn from the generator that is passed,
normal with variance 1/fan-in, so that a standard normal input gives scores of variance about 1.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from whyformer.errors import UsageError
from whyformer.subjects import biases
from whyformer.subjects.biases import Bias
from whyformer.subjects.positions import rotate


class _Linear(nn.Linear):
    """A linear map without bias, drawn from a generator instead of from the global one."""

    def __init__(self, fan_in: int, fan_out: int, generator: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__(fan_in, fan_out, bias=False, dtype=dtype)
        with torch.no_grad():
            # Drawn in float64, so that models of two dtypes are the same up to rounding.
            drawn = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.float64)
            self.weight.copy_(drawn / fan_in**0.5)

    def reset_parameters(self) -> None:
        """Leave the global generator alone."""


class Attention(nn.Module):
    """One layer of softmax attention: no residual, no norm.

    Head h gives query i the values Σ_j softmax_j(scale·q_i·k_j + B_ij) v_j; ``o`` mixes the heads.

    Args:
        width: coordinates of a token, a multiple of ``heads``.
        heads: how many heads, of width/heads coordinates each.
        bias: what is added to the scores; nothing where None.
        rotary: the base of rotary positions; none where None.
        scale: what the dot products are multiplied by; 1/√(head width) where None.
        angle_dtype: the dtype of rotary angles; that of the input where None.
        generator: what the weights are drawn from.
        dtype: of the weights.

    Attributes:
        q, k, v, o: linear maps without bias, from width to width.

    Raises:
        UsageError: when the heads do not divide the width, or rotary pairs do not fit a head.
    """

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        bias: Bias | None = None,
        rotary: float | None = None,
        scale: float | None = None,
        angle_dtype: torch.dtype | None = None,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(
                f"width {width}", f"{heads} heads do not divide it", f"try {heads * (width // heads + 1)}"
            )
        if rotary is not None and width // heads % 2:
            raise UsageError(
                f"heads of width {width // heads}", "rotary positions turn pairs", "make it even"
            )
        self.width, self.heads = width, heads
        self.bias, self.rotary, self.angle_dtype = bias or biases.none, rotary, angle_dtype
        self.scale = (width // heads) ** -0.5 if scale is None else scale
        self.q, self.k, self.v, self.o = (_Linear(width, width, generator, dtype) for _ in range(4))

    def split(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch heads time d"]:
        """Give each head its own coordinates."""
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-3, -2)

    def merge(self, x: Float[Tensor, "batch heads time d"]) -> Float[Tensor, "batch time width"]:
        """Put the coordinates of the heads side by side."""
        return x.transpose(-3, -2).flatten(-2)

    def turn(
        self, x: Float[Tensor, "batch heads time d"], position_ids: Int[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch heads time d"]:
        """Rotary positions, where the layer has them, on queries or keys."""
        if self.rotary is None:
            return x
        ids = torch.arange(x.shape[-2]) if position_ids is None else position_ids[..., None, :]
        return rotate(x, ids, self.rotary, self.angle_dtype)

    def scores(
        self, x: Float[Tensor, "batch time width"], position_ids: Int[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch heads time time"]:
        """What the softmax is taken of, the bias included."""
        q = self.turn(self.split(self.q(x)), position_ids)
        k = self.turn(self.split(self.k(x)), position_ids)
        return q @ k.mT * self.scale + self.bias(x.shape[-2]).to(x.dtype)

    def weights(
        self, x: Float[Tensor, "batch time width"], position_ids: Int[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch heads time time"]:
        """How much of each key's value every query takes; each row sums to 1."""
        return self.scores(x, position_ids).softmax(-1)

    def forward(
        self, x: Float[Tensor, "batch time width"], position_ids: Int[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Attend. Positions count from 0 where none are given."""
        return self.o(self.merge(self.weights(x, position_ids) @ self.split(self.v(x))))


class Block(nn.Module):
    """Attention and, where asked, an MLP, each added to its input and each after a norm where asked."""

    def __init__(
        self, attention: Attention, *, mlp: bool, norm: bool, generator: torch.Generator, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.attention, self.norm = attention, norm
        width = attention.width
        self.up = _Linear(width, 4 * width, generator, dtype) if mlp else None
        self.down = _Linear(4 * width, width, generator, dtype) if mlp else None

    def normed(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """The layer norm without learned scale, or the input itself."""
        return functional.layer_norm(x, x.shape[-1:]) if self.norm else x

    def forward(
        self, x: Float[Tensor, "batch time width"], position_ids: Int[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """One step of the residual stream."""
        x = x + self.attention(self.normed(x), position_ids)
        if self.up is not None and self.down is not None:
            x = x + self.down(functional.gelu(self.up(self.normed(x))))
        return x


class Stack(nn.Module):
    """Pre-norm residual blocks of attention and MLP, after positions where given; no last norm.

    Args:
        width: coordinates of a token, a multiple of ``heads``.
        layers: how many blocks.
        heads: how many heads in each.
        bias: what every layer adds to its scores; nothing where None.
        rotary: the base of rotary positions in every layer; none where None.
        positions: rows that are added to the tokens by position, (positions, width); none where None.
        mlp: whether blocks have an MLP of 4·width units, with GELU.
        norm: whether blocks normalise (layer norm, without learned scale).
        generator: what the weights are drawn from.
        dtype: of the weights.
    """

    def __init__(
        self,
        width: int,
        layers: int,
        heads: int = 1,
        *,
        bias: Bias | None = None,
        rotary: float | None = None,
        positions: Float[Tensor, "n width"] | None = None,
        mlp: bool = True,
        norm: bool = True,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(
                Attention(width, heads, bias=bias, rotary=rotary, generator=generator, dtype=dtype),
                mlp=mlp,
                norm=norm,
                generator=generator,
                dtype=dtype,
            )
            for _ in range(layers)
        )
        self.positions: Tensor | None
        self.register_buffer("positions", None if positions is None else positions.to(dtype))

    def placed(
        self, x: Float[Tensor, "batch time width"], position_ids: Int[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """The tokens with their positions added."""
        if self.positions is None:
            return x
        return x + (self.positions[: x.shape[-2]] if position_ids is None else self.positions[position_ids])

    def forward(
        self, x: Float[Tensor, "batch time width"], position_ids: Int[Tensor, "*batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Run every block. Positions count from 0 where none are given."""
        x = self.placed(x, position_ids)
        for block in self.blocks:
            x = block(x, position_ids)
        return x
