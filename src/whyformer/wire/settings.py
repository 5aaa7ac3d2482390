"""config.json: what a geometry's says, and which geometry one states that says nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whyformer.wire.circuit import DTYPES, Geometry, Traits
from whyformer.wire.families import FAMILIES
from whyformer.wire.family import FIRST, HEADS, LEAST, MOST, PAD, Family, UnfitError
from whyformer.wire.proof import LAYERS
from whyformer.wire.reading import CONFIG, read_json, same

_INERT = {
    "_name_or_path", "transformers_version", "initializer_range", "use_cache", "classifier_dropout",
    "max_window_layers", "summary_activation", "summary_type", "summary_use_proj", "summary_proj_to_labels",
    "summary_first_dropout", "id2label", "label2id", "problem_type", "chunk_size_feed_forward",
}  # fmt: skip
"""Keys that play no part in the logits, whatever they say."""
_NEUTRAL = {
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "pretraining_tp": 1,
    "add_cross_attention": False,
    "reorder_and_upcast_attn": False,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "return_dict": True,
    "use_bidirectional_attention": None,
    "sliding_window": None,
    "rope_scaling": None,
    "hidden_activation": None,
}
"""Keys that transformers may write too, and what they must say; what any other key would do is not known."""
_OLDER = {"rope_theta", "rotary_emb_base", "rotary_pct"}  # said again in rope_parameters


def config(geometry: Geometry, family: Family) -> dict[str, Any]:
    """The whole config.json."""
    shared = {
        "architectures": [family.model_class],
        "model_type": geometry.architecture,
        "dtype": geometry.dtype,
        "bos_token_id": FIRST,
        "pad_token_id": PAD,
        "eos_token_id": None,
        "tie_word_embeddings": geometry.tied,
    }
    return shared | family.config(geometry)


def read_config(folder: Path) -> tuple[Geometry, Family]:
    """The geometry that a config states; nothing in the config may say more than a wired one does.

    Raises:
        UsageError: there is no config that can be read.
        UnfitError: it is not a wired one; the message names the key.
    """
    raw = read_json(folder / CONFIG)
    name = raw.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnfitError(f"{CONFIG}: model_type is {name!r}")
    family = FAMILIES[name]
    dtype = raw.get("dtype", raw.get("torch_dtype"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UnfitError(f"{CONFIG}: dtype is {dtype!r}, not float32 or bfloat16")
    geometry = Geometry(
        architecture=name, dtype=dtype, tied=raw.get("tie_word_embeddings") is True, **family.sizes(raw)
    )
    _check_sizes(geometry, family.traits)
    expected = config(geometry, family)
    for key, value in expected.items():
        if key not in raw and (key in _OLDER or value is None or key == "dtype"):
            continue
        if not same(raw.get(key), value):
            raise UnfitError(f"{CONFIG}: {key} is {raw.get(key)!r}, not {value!r}")
    neutral: dict[str, Any] = _NEUTRAL | {"torch_dtype": dtype}
    if not family.traits.window:
        neutral["layer_types"] = ["full_attention"] * geometry.layers
    _check_others({key: value for key, value in raw.items() if key not in expected}, neutral)
    return geometry, family


def _check_sizes(geometry: Geometry, traits: Traits) -> None:
    """Refuse sizes that no wired model has; the weights must then have them."""
    widths = (geometry.width, geometry.head_width)
    turned = int(geometry.head_width * traits.rotary)
    if max(widths) > MOST or turned % 2 or (traits.split and geometry.width % HEADS):
        raise UnfitError(
            f"{CONFIG}: a width of {widths[0]} and heads of {widths[1]}, which no wired model has"
        )
    for what, size in (("vocabulary", geometry.vocabulary), ("context", geometry.reach)):
        if not LEAST <= size <= MOST:
            raise UnfitError(f"{CONFIG}: a {what} of {size:,}; a wired model's is {LEAST} to {MOST:,}")
    if geometry.context > MOST or geometry.layers > max(LAYERS.values()):
        why = f"a context of {geometry.context:,}, {geometry.layers:,} layers"
        raise UnfitError(f"{CONFIG}: {why}; a wired model has at most {MOST:,} and {max(LAYERS.values())}")


def _check_others(others: Mapping[str, Any], neutral: Mapping[str, Any]) -> None:
    """Refuse what a wired config does not say, unless it is known to change nothing."""
    for key, value in others.items():
        if key in _INERT or (key in neutral and same(value, neutral[key])):
            continue
        why = f"not {neutral[key]!r}" if key in neutral else "which is no setting of a wired model"
        raise UnfitError(f"{CONFIG}: {key} is {value!r}, {why}")
