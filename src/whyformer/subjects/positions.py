"""Positions: vectors that are added to the tokens, and the rotary turn of queries and keys."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def frequencies(width: int, base: float = 1e4) -> Float[Tensor, " half"]:
    """Radians a step of each pair of coordinates: base^(−2i/width), from 1 down; float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def learned(n: int, width: int, generator: torch.Generator) -> Float[Tensor, "n width"]:
    """A row of its own for each position, standard normal as before training; float64."""
    return torch.randn(n, width, generator=generator, dtype=torch.float64)


def sinusoidal(n: int, width: int, base: float = 1e4, start: int = 0) -> Float[Tensor, "n width"]:
    """Sine and cosine of position times frequency, a pair of coordinates for each frequency; float64.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.5.

    Args:
        n: how many positions, from ``start`` on.
        width: how many coordinates, even.
        base: the ratio between the fastest frequency and the slowest, nearly.
        start: the first position.
    """
    angle = torch.arange(start, start + n, dtype=torch.float64)[:, None] * frequencies(width, base)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)


def rotate(
    x: Float[Tensor, "*any time width"],
    positions: Int[Tensor, "*some time"],
    base: float = 1e4,
    angle_dtype: torch.dtype | None = None,
) -> Float[Tensor, "*any time width"]:
    """Turn each pair of coordinates by its position times its frequency (rotary positions).

    Su et al., "RoFormer" (2021). Pairs are neighbours: coordinates 2i and 2i + 1.

    Args:
        x: queries or keys, of even width.
        positions: broadcast against the axes of ``x`` before the last.
        base: as for ``sinusoidal``.
        angle_dtype: the dtype in which positions are multiplied by frequencies; that of ``x`` where None.
    """
    dtype = angle_dtype or x.dtype
    angle = positions.to(dtype)[..., None] * frequencies(x.shape[-1], base).to(dtype)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
