"""Every causal language model that transformers knows, shrunken by rules on its config.

A family's default config is read as data: a size with a known name is replaced by a small one, a list with
one entry a layer is cut to as few layers as show every kind of layer, and a config within the config is
shrunken the same way. The sizes, and what the rules do not know, stand in ``sizes``, as data. Nothing is
fetched, and no code but the library's own is run.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)

from bench.zoo.sizes import EDITS, SMALL
from whyformer.subjects.checkpoints import quiet

FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
"""The names of all of them."""

SPREAD = 32**-0.5
"""The least standard deviation of a weight matrix: outputs then depend on inputs as in a trained model."""

_LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers",
    "num_decoder_layers", "num_encoder_layers", "num_blocks",
)  # fmt: skip
_LEAST_LAYERS = 2


def shrunken(kind: type[transformers.PretrainedConfig], edits: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a small config of this class.

    Args:
        kind: a config class; its defaults are read.
        edits: what stands for this family, over the rules; a dict edits the config within of that name.
    """
    default = kind(**edits.get("with", {}))
    inner = kind.sub_configs
    stated = {
        name: value for name, value in vars(default).items() if not name.startswith("_") and name not in inner
    }
    small = {name: SMALL[name] for name, value in stated.items() if name in SMALL and value is not None}
    layers = next((stated[name] for name in _LAYERS if isinstance(stated.get(name), int)), None)
    if layers is not None:
        lists = {
            name: value
            for name, value in stated.items()
            if isinstance(value, (list, tuple))
            and len(value) == layers
            and list(value) != list(range(layers))
        }
        kept = _every_kind(layers, list(lists.values()))
        small |= {name: len(kept) for name in _LAYERS if isinstance(stated.get(name), int)}
        small |= {name: [value[i] for i in kept] for name, value in lists.items()}
    if "kv_lora_rank" in small:  # latent attention: every head has keys, and angles turn a part of it
        small["num_key_value_heads"] = small["num_attention_heads"]
        if stated.get("head_dim") == stated.get("qk_rope_head_dim"):
            small["head_dim"] = small["qk_rope_head_dim"]
    for name, part in inner.items():
        within = getattr(default, name, None)
        if isinstance(within, transformers.PretrainedConfig):
            made = type(within)
            del part
            small[name] = made(**shrunken(made, edits.get(name, {})))
    plain = {name: value for name, value in edits.items() if name not in inner and name != "with"}
    return {**edits.get("with", {}), **small, **plain}


def _every_kind(layers: int, lists: list[Any]) -> list[int]:
    """As few layers as show every entry of every list, the early ones first, and two at least."""
    seen: set[tuple[int, str]] = set()
    kept = []
    for i in range(layers):
        kinds = {(n, str(entries[i])) for n, entries in enumerate(lists)}
        if not kinds <= seen:
            kept.append(i)
            seen |= kinds
    for i in range(layers):
        if len(kept) >= min(layers, _LEAST_LAYERS):
            break
        if i not in kept:
            kept.append(i)
    return sorted(kept)


def build(family: str, seed: int = 0) -> transformers.PreTrainedModel:
    """A small model of the family in eval mode, in float32, the same at every call.

    Raises:
        Exception: whatever the library raises on the shrunken config.
    """
    kind = CONFIG_MAPPING[family]
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = kind(**shrunken(kind, EDITS.get(family, {})))
        wanted = MODEL_FOR_CAUSAL_LM_MAPPING[kind].config_class
        within = (getattr(config, name, None) for name in kind.sub_configs)
        config = next((part for part in within if type(part) is wanted), config)
        model = MODEL_FOR_CAUSAL_LM_MAPPING[kind]._from_config(config).float().eval()
    _wake(model, torch.Generator().manual_seed(seed))
    return model


def _wake(model: nn.Module, generator: torch.Generator) -> None:
    """Raise small weight matrices to ``SPREAD``, and move vectors that are all one number off it a little.

    As they are drawn, scores are near 0, projections often 0 and biases always, and much would be hidden.
    The row of the pad id is drawn too: scores of a row of zeros tie, and which of them are chosen is open.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                row = torch.randn(module.embedding_dim, generator=generator)
                module.weight[module.padding_idx] = row * float(module.weight.std())
        for name, p in model.named_parameters():
            if not p.dtype.is_floating_point or p.numel() < 2 or "A_log" in name:
                continue
            spread = float(p.std())
            if p.dim() < 2 and spread == 0:
                p.add_(torch.randn(p.shape, generator=generator), alpha=0.1 * abs(float(p[0])) or 0.1)
            elif p.dim() >= 2 and spread < 1e-6:
                p.add_(torch.randn(p.shape, generator=generator), alpha=SPREAD)
            elif p.dim() >= 2 and spread < SPREAD:
                p.mul_(SPREAD / spread)
