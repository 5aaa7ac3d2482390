"""A wired folder on disk: config, weights, words and certificate, written whole, and read as a circuit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from whyformer.errors import UsageError
from whyformer.wire import llamacpp
from whyformer.wire.circuit import DTYPES, Circuit, Geometry, Head
from whyformer.wire.family import FIRST, PAD, Family, Tensors, UnfitError
from whyformer.wire.reading import CERTIFICATE, CONFIG, WEIGHTS, read_weights
from whyformer.wire.replacing import beside
from whyformer.wire.settings import config, read_config

_SYLLABLES = [c + v for c in "bdfghjklmnprstvz" for v in ("a", "e", "i", "o", "u")]


def word(token: int) -> str:
    """The word of an id, of syllables; ids 0 and 1 are the first token and the pad."""
    if token in (FIRST, PAD):
        return ("<s>", "<pad>")[token]
    said, number = "", token
    while number or len(said) < 4:
        number, digit = divmod(number, len(_SYLLABLES))
        said = _SYLLABLES[digit] + said
    return said


def tensors(circuit: Circuit, family: Family) -> Tensors:
    """The tensors as they are stored."""
    dtype = DTYPES[circuit.geometry.dtype]
    return {name: tensor.to(dtype).contiguous() for name, tensor in family.write(circuit).items()}


def read_circuit(folder: Path) -> tuple[Circuit, Family]:
    """The circuit in a folder. What was read must write the same tensors, so that no weight is unread.

    Raises:
        UsageError: there are no weights that can be read.
        UnfitError: a tensor is missing, too much, or not what a wired model stores; the message names it.
    """
    geometry, family = read_config(folder)
    stored = read_weights(folder)
    _check_stored(stored, shapes(geometry, family), geometry.dtype)
    circuit = family.read(geometry, stored)
    for name, tensor in tensors(circuit, family).items():
        if not torch.equal(stored[name], tensor):
            at = (stored[name] != tensor).nonzero()[0].tolist()
            raise UnfitError(
                f"{name}{at}: it is {float(stored[name][tuple(at)]):g}, where a wired model has none"
            )
    return circuit, family


def shapes(geometry: Geometry, family: Family) -> dict[str, torch.Size]:
    """Every tensor that is stored, by name, and its shape; no memory is taken for it."""
    g, traits = geometry, family.traits
    with torch.device("meta"):
        rows, gain = torch.empty(g.head_width, g.width), torch.empty(g.head_width)
        gains = (gain, gain) if traits.query_norm else (None, None)
        table = torch.empty(g.vocabulary, g.width)
        blank = Circuit(
            g,
            table,
            None if traits.rotary else torch.empty(g.context, g.width),
            tuple(Head(rows, rows, rows, rows.T, *gains) for _ in range(g.layers)),
            1.0,
            None if g.tied else table,
        )
        return {name: tensor.shape for name, tensor in family.write(blank).items()}


def _check_stored(stored: Tensors, meant: dict[str, torch.Size], dtype: str) -> None:
    """Refuse a tensor that is missing, too much, of another shape or dtype, or not finite."""
    if stored.keys() - meant.keys():
        raise UnfitError(f"{min(stored.keys() - meant.keys())}: a wired model has no such tensor")
    for name, shape in meant.items():
        if name not in stored:
            raise UnfitError(f"{name}: it is missing")
        if stored[name].shape != shape:
            raise UnfitError(f"{name}: its shape is {tuple(stored[name].shape)}, not {tuple(shape)}")
        if stored[name].dtype != DTYPES[dtype]:
            kind = str(stored[name].dtype).removeprefix("torch.")
            raise UnfitError(f"{name}: it is stored as {kind}, not {dtype}")
        if not bool(stored[name].isfinite().all()):
            raise UnfitError(f"{name}: it holds a number that is not finite")


@dataclass(frozen=True)
class Made:
    """A circuit, the tensors that store it, and the certificate that was proved from those."""

    circuit: Circuit
    tensors: Tensors
    certificate: dict[str, Any]


def write(out: Path, made: Made, family: Family, *, gguf: bool = False) -> None:
    """Write all files of a wired model, and a GGUF file among them where asked.

    Raises:
        UsageError: they cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    g = made.circuit.geometry
    special = {"bos_token_id": FIRST, "pad_token_id": PAD, "eos_token_id": None}
    try:
        with beside(out) as at:
            save_file(made.tensors, at / WEIGHTS, metadata={"format": "pt"})
            (at / WEIGHTS).chmod(0o644)
            if gguf:
                llamacpp.write(at / llamacpp.FILE, g, family.traits, made.tensors)
            for name, content in (
                (CONFIG, config(g, family)),
                ("generation_config.json", {**special, "do_sample": False}),
                ("tokenizer.json", tokenizer(g.vocabulary)),
                ("tokenizer_config.json", _tokenizer_config(g.context)),
                (CERTIFICATE, made.certificate),
            ):
                text = json.dumps(content, indent=2, ensure_ascii=False)
                (at / name).write_text(text + "\n", "utf-8")
    except (OSError, SafetensorError) as error:
        raise UsageError(f"--out {out}", f"it cannot be written: {error}", "name another folder") from error


def tokenizer(vocabulary: int) -> dict[str, Any]:
    """A tokenizer.json of words parted by spaces: the first token before a text, the pad for what is none."""
    first = {"id": word(FIRST), "ids": [FIRST], "tokens": [word(FIRST)]}
    pieces = [{"SpecialToken": {"id": word(FIRST), "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": word(i), **special} for i in (FIRST, PAD)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": pieces,
            "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {word(FIRST): first},
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word(i): i for i in range(vocabulary)},
            "unk_token": word(PAD),
        },
    }


def _tokenizer_config(context: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": word(FIRST),
        "pad_token": word(PAD),
        "model_max_length": context,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
