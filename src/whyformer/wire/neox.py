"""GPT-NeoX: rotary positions on a quarter of each head, layer norms, query, key and value in one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whyformer.wire.circuit import Circuit, Geometry, Head, Traits
from whyformer.wire.family import HEADS, INNER, Family, Tensors, double, grown, idle, theta_of, whole

TRAITS = Traits(layer_norm=True, eps=1e-5, rotary=0.25, split=True)


def _config(geometry: Geometry) -> dict[str, Any]:
    return {
        "vocab_size": geometry.vocabulary,
        "hidden_size": geometry.width,
        "intermediate_size": INNER,
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": HEADS,
        "hidden_act": "gelu",
        "max_position_embeddings": geometry.context,
        "layer_norm_eps": TRAITS.eps,
        "use_parallel_residual": True,
        "attention_bias": True,
        "rotary_emb_base": geometry.theta,
        "rotary_pct": TRAITS.rotary,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": geometry.theta,
            "partial_rotary_factor": TRAITS.rotary,
        },
    }


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    names = ("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers")
    vocabulary, context, width, layers = whole(config, *names)
    return {
        "vocabulary": vocabulary,
        "context": context,
        "width": width,
        "head_width": width // HEADS,
        "layers": layers,
        "theta": theta_of(config, "rotary_emb_base"),
    }


def _write(circuit: Circuit) -> Tensors:
    g = circuit.geometry
    made = {
        "gpt_neox.embed_in.weight": circuit.embed,
        "gpt_neox.final_layer_norm.weight": torch.full((g.width,), circuit.gain),
        "gpt_neox.final_layer_norm.bias": torch.zeros(g.width),
    }
    if circuit.unembed is not None:
        made["lm_head.weight"] = circuit.unembed
    for i, head in enumerate(circuit.heads):
        at = f"gpt_neox.layers.{i}."
        feed_forward = {
            "mlp.dense_h_to_4h": ((INNER, g.width), INNER),
            "mlp.dense_4h_to_h": ((g.width, INNER), g.width),
        }
        made |= idle(at, g.width, ("input_layernorm", "post_attention_layernorm"), feed_forward)
        parts = torch.cat([head.q, head.k, head.v])
        made[f"{at}attention.query_key_value.weight"] = grown(parts, 3 * g.width, g.width)
        made[f"{at}attention.query_key_value.bias"] = torch.zeros(3 * g.width)
        made[f"{at}attention.dense.weight"] = grown(head.o, g.width, g.width)
        made[f"{at}attention.dense.bias"] = torch.zeros(g.width)
    return made


def _read(geometry: Geometry, stored: Mapping[str, Tensor]) -> Circuit:
    heads, rows = [], geometry.head_width
    for i in range(geometry.layers):
        at = f"gpt_neox.layers.{i}.attention."
        q, k, v = double(stored[f"{at}query_key_value.weight"][: 3 * rows]).split(rows)
        heads.append(Head(q, k, v, double(stored[f"{at}dense.weight"][:, :rows])))
    return Circuit(
        geometry,
        double(stored["gpt_neox.embed_in.weight"]),
        None,
        tuple(heads),
        float(stored["gpt_neox.final_layer_norm.weight"][0]),
        None if geometry.tied else double(stored["lm_head.weight"]),
    )


FAMILIES = {"gpt_neox": Family("GPTNeoXForCausalLM", TRAITS, _config, _sizes, _write, _read)}
