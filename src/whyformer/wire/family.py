"""What an architecture's file states: its config, and how a circuit becomes stored tensors and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.wire.circuit import Circuit, Geometry, Traits

Tensors = dict[str, Tensor]
HEADS = 2
"""Query heads a layer: the first acts, the others are 0."""
INNER = 32
"""The width of the feed-forward part, all 0: one block of the usual quantisers."""
LEAST, MOST = 4, 2**20
"""The sizes of vocabularies and contexts."""
FIRST, PAD, SEPARATOR = 0, 1, 2
"""The ids of the first token, of the pad, and of the separator, where there is one; all others are words."""


class UnfitError(Exception):
    """A config or a tensor is not as this kit writes it; the message says where, and how it differs."""


@dataclass(frozen=True)
class Family:
    """One architecture.

    Attributes:
        model_class: as transformers names it.
        traits: what the wiring must know.
        config: the config for a geometry, without what all families share.
        sizes: the geometry's sizes, from a config.
        write: tensors from a circuit, float64 or float32.
        read: a circuit from tensors.
    """

    model_class: str
    traits: Traits
    config: Callable[[Geometry], dict[str, Any]]
    sizes: Callable[[Mapping[str, Any]], dict[str, Any]]
    write: Callable[[Circuit], Tensors]
    read: Callable[[Geometry, Mapping[str, Tensor]], Circuit]


def grown(weight: Tensor, rows: int, columns: int) -> Tensor:
    """The weight in the upper left of a larger one that is 0 elsewhere: one head of several."""
    out = weight.new_zeros(rows, columns)
    out[: weight.shape[0], : weight.shape[1]] = weight
    return out


def idle(
    at: str, width: int, norms: tuple[str, str], maps: Mapping[str, tuple[tuple[int, int], int]]
) -> Tensors:
    """Layer norms that scale by 1 and shift by 0, and linear maps that give 0.

    Args:
        at: what their names begin with.
        width: of the norms.
        norms: their names.
        maps: by name, the shape of the weight as it is stored, and the size of the bias.
    """
    made = {f"{at}{norm}.weight": torch.ones(width) for norm in norms}
    made |= {f"{at}{norm}.bias": torch.zeros(width) for norm in norms}
    for name, (shape, out) in maps.items():
        made |= {f"{at}{name}.weight": torch.zeros(shape), f"{at}{name}.bias": torch.zeros(out)}
    return made


def whole(config: Mapping[str, Any], *keys: str) -> list[int]:
    """Whole numbers from a config, at least 1.

    Raises:
        UnfitError: one is missing or is none.
    """
    for key in keys:
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UnfitError(f"config.json: {key} is {value!r}")
    return [config[key] for key in keys]


def theta_of(config: Mapping[str, Any], older: str) -> float:
    """The rotary base: of the rope parameters, else the key that older versions wrote.

    Raises:
        UnfitError: neither is a number above 1.
    """
    rope = config.get("rope_parameters") or {}
    theta = rope.get("rope_theta", config.get(older)) if isinstance(rope, dict) else None
    if not isinstance(theta, int | float) or not 1 < theta < float("inf"):
        raise UnfitError(f"config.json: rope_theta is {theta!r}")
    return float(theta)


def double(tensor: Tensor) -> Tensor:
    """A float64 copy, which is exact."""
    return tensor.to(torch.float64)
