"""GPT-2: learned positions and layer norms; weights are stored input by output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whyformer.wire.circuit import Circuit, Geometry, Head, Traits
from whyformer.wire.family import HEADS, INNER, Family, Tensors, double, grown, idle, whole

TRAITS = Traits(layer_norm=True, eps=1e-5, rotary=0.0, split=True)


def _config(geometry: Geometry) -> dict[str, Any]:
    return {
        "vocab_size": geometry.vocabulary,
        "n_positions": geometry.context,
        "n_embd": geometry.width,
        "n_layer": geometry.layers,
        "n_head": HEADS,
        "n_inner": INNER,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": TRAITS.eps,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    vocabulary, context, width, layers = whole(config, "vocab_size", "n_positions", "n_embd", "n_layer")
    return {
        "vocabulary": vocabulary,
        "context": context,
        "width": width,
        "head_width": width // HEADS,
        "layers": layers,
        "theta": None,
    }


def _write(circuit: Circuit) -> Tensors:
    g = circuit.geometry
    made = {"transformer.wte.weight": circuit.embed, "transformer.ln_f.bias": torch.zeros(g.width)}
    if circuit.positions is not None:
        made["transformer.wpe.weight"] = circuit.positions
    made["transformer.ln_f.weight"] = torch.full((g.width,), circuit.gain)
    if circuit.unembed is not None:
        made["lm_head.weight"] = circuit.unembed
    for i, head in enumerate(circuit.heads):
        at = f"transformer.h.{i}."
        feed_forward = {"mlp.c_fc": ((g.width, INNER), INNER), "mlp.c_proj": ((INNER, g.width), g.width)}
        made |= idle(at, g.width, ("ln_1", "ln_2"), feed_forward)
        parts = [grown(part, g.width, g.width) for part in (head.q, head.k, head.v)]
        made[f"{at}attn.c_attn.weight"] = torch.cat(parts).T.contiguous()
        made[f"{at}attn.c_attn.bias"] = torch.zeros(3 * g.width)
        made[f"{at}attn.c_proj.weight"] = grown(head.o, g.width, g.width).T.contiguous()
        made[f"{at}attn.c_proj.bias"] = torch.zeros(g.width)
    return made


def _read(geometry: Geometry, stored: Mapping[str, Tensor]) -> Circuit:
    heads, rows = [], geometry.head_width
    for i in range(geometry.layers):
        at = f"transformer.h.{i}.attn."
        q, k, v = (part[:rows] for part in double(stored[f"{at}c_attn.weight"]).T.split(geometry.width))
        heads.append(Head(q, k, v, double(stored[f"{at}c_proj.weight"]).T[:, :rows]))
    return Circuit(
        geometry,
        double(stored["transformer.wte.weight"]),
        stored["transformer.wpe.weight"].float(),
        tuple(heads),
        float(stored["transformer.ln_f.weight"][0]),
        None if geometry.tied else double(stored["lm_head.weight"]),
    )


FAMILIES = {"gpt2": Family("GPT2LMHeadModel", TRAITS, _config, _sizes, _write, _read)}
