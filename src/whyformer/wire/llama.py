"""Llama and its kin, Mistral, Qwen2, Qwen3 and Gemma: one layout, and a table of differences.

Grouped heads: two query heads share one key and value head. Gemma stores a norm's weight less 1, and
multiplies embeddings by the root of the width, which is here a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whyformer.wire.circuit import Circuit, Geometry, Head, Traits
from whyformer.wire.family import HEADS, INNER, Family, Tensors, double, grown, theta_of, whole


@dataclass(frozen=True)
class Kin:
    """How one architecture of the kin differs.

    Attributes:
        traits: what the wiring must know.
        biased: the projections that have a bias, stored as 0.
        offset: what a norm's stored weight lacks.
        keys: what its config has beyond Llama's.
    """

    traits: Traits
    biased: tuple[str, ...] = ()
    offset: float = 0.0
    keys: Mapping[str, Any] | None = None


KIN = {
    "llama": Kin(Traits(), keys={"attention_bias": False, "mlp_bias": False}),
    "mistral": Kin(Traits(window=True)),
    "qwen2": Kin(Traits(), biased=("q", "k", "v"), keys={"use_sliding_window": False}),
    "qwen3": Kin(Traits(query_norm=True), keys={"attention_bias": False, "use_sliding_window": False}),
    "gemma": Kin(
        Traits(scaled=True, untied=False),
        offset=1.0,
        keys={"attention_bias": False, "hidden_act": "gelu_pytorch_tanh"},
    ),
}


def _config(kin: Kin, geometry: Geometry) -> dict[str, Any]:
    made = {
        "vocab_size": geometry.vocabulary,
        "hidden_size": geometry.width,
        "intermediate_size": INNER,
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": geometry.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": geometry.context,
        "rms_norm_eps": kin.traits.eps,
        "rope_theta": geometry.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": geometry.theta},
    }
    if kin.traits.window:
        made["sliding_window"] = geometry.window
    return made | dict(kin.keys or {})


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("vocab_size", "max_position_embeddings", "hidden_size", "head_dim", "num_hidden_layers")
    window = config.get("sliding_window")
    return {
        **dict(
            zip(
                ("vocabulary", "context", "width", "head_width", "layers"), whole(config, *names), strict=True
            )
        ),
        "theta": theta_of(config, "rope_theta"),
        "window": None if window is None else whole(config, "sliding_window")[0],
    }


def _write(kin: Kin, circuit: Circuit) -> Tensors:
    g = circuit.geometry
    ones = torch.full((g.width,), 1 - kin.offset)
    made = {
        "model.embed_tokens.weight": circuit.embed / (math.sqrt(g.width) if kin.traits.scaled else 1),
        "model.norm.weight": torch.full((g.width,), circuit.gain - kin.offset),
    }
    if circuit.unembed is not None:
        made["lm_head.weight"] = circuit.unembed
    for i, head in enumerate(circuit.heads):
        at = f"model.layers.{i}."
        made[f"{at}input_layernorm.weight"] = ones.clone()
        made[f"{at}post_attention_layernorm.weight"] = ones.clone()
        made[f"{at}self_attn.q_proj.weight"] = grown(head.q, HEADS * g.head_width, g.width)
        made[f"{at}self_attn.k_proj.weight"] = head.k
        made[f"{at}self_attn.v_proj.weight"] = head.v
        made[f"{at}self_attn.o_proj.weight"] = grown(head.o, g.width, HEADS * g.head_width)
        for name in kin.biased:
            rows = g.head_width * (HEADS if name == "q" else 1)
            made[f"{at}self_attn.{name}_proj.bias"] = torch.zeros(rows)
        if head.q_gain is not None and head.k_gain is not None:
            made[f"{at}self_attn.q_norm.weight"] = head.q_gain
            made[f"{at}self_attn.k_norm.weight"] = head.k_gain
        for name, shape in (("gate", (INNER, g.width)), ("up", (INNER, g.width)), ("down", (g.width, INNER))):
            made[f"{at}mlp.{name}_proj.weight"] = torch.zeros(shape)
    return made


def _read(kin: Kin, geometry: Geometry, stored: Mapping[str, Tensor]) -> Circuit:
    heads, rows = [], geometry.head_width
    for i in range(geometry.layers):
        at = f"model.layers.{i}.self_attn."
        gains = {
            f"{name}_gain": double(stored[f"{at}{name}_norm.weight"])
            for name in "qk"
            if kin.traits.query_norm
        }
        heads.append(
            Head(
                double(stored[f"{at}q_proj.weight"][:rows]),
                double(stored[f"{at}k_proj.weight"]),
                double(stored[f"{at}v_proj.weight"]),
                double(stored[f"{at}o_proj.weight"][:, :rows]),
                **gains,
            )
        )
    embed = double(stored["model.embed_tokens.weight"])
    return Circuit(
        geometry,
        embed * (math.sqrt(geometry.width) if kin.traits.scaled else 1),
        None,
        tuple(heads),
        float(stored["model.norm.weight"][0]) + kin.offset,
        None if geometry.tied else double(stored["lm_head.weight"]),
    )


FAMILIES = {
    name: Family(
        f"{name.capitalize()}ForCausalLM",
        kin.traits,
        partial(_config, kin),
        _sizes,
        partial(_write, kin),
        partial(_read, kin),
    )
    for name, kin in KIN.items()
}
