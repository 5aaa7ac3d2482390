"""A wired folder on disk: config, weights, words and certificate, written beside and renamed, read safely."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from whyformer.errors import MissingExtraError, UsageError
from whyformer.wire import llamacpp
from whyformer.wire.circuit import DTYPES, Circuit, Geometry
from whyformer.wire.families import FAMILIES
from whyformer.wire.family import FIRST, PAD, Family, Tensors, UnfitError

WEIGHTS, CERTIFICATE = "model.safetensors", "certificate.json"
_SYLLABLES = [c + v for c in "bdfghjklmnprstvz" for v in ("a", "e", "i", "o", "u")]
_INERT = {
    "_name_or_path", "transformers_version", "torch_dtype", "initializer_range", "use_cache",
    "pretraining_tp", "classifier_dropout", "max_window_layers", "output_attentions", "output_hidden_states",
    "return_dict", "summary_type", "summary_use_proj", "summary_proj_to_labels", "summary_first_dropout",
    "id2label", "label2id", "problem_type", "chunk_size_feed_forward", "is_encoder_decoder",
    "hidden_activation",
}  # fmt: skip
_OLDER = {"rope_theta", "rotary_emb_base", "rotary_pct"}  # said again in rope_parameters


def word(token: int) -> str:
    """The word of an id, of syllables; ids 0 and 1 are the first token and the pad."""
    if token in (FIRST, PAD):
        return ("<s>", "<pad>")[token]
    said, number = "", token
    while number or len(said) < 4:
        number, digit = divmod(number, len(_SYLLABLES))
        said = _SYLLABLES[digit] + said
    return said


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


def tensors(circuit: Circuit, family: Family) -> Tensors:
    """The tensors as they are stored."""
    dtype = DTYPES[circuit.geometry.dtype]
    return {name: tensor.to(dtype).contiguous() for name, tensor in family.write(circuit).items()}


def read_config(folder: Path) -> tuple[Geometry, Family]:
    """The geometry that a config states; nothing in the config may say more than a wired one does.

    Raises:
        UsageError: there is no config that can be read.
        UnfitError: it is not a wired one; the message names the key.
    """
    raw = read_json(folder / "config.json")
    name = raw.get("model_type")
    if name not in FAMILIES:
        raise UnfitError(f"config.json: model_type is {name!r}")
    family = FAMILIES[name]
    dtype = raw.get("dtype", raw.get("torch_dtype"))
    if dtype not in DTYPES:
        raise UnfitError(f"config.json: dtype is {dtype!r}, not float32 or bfloat16")
    geometry = Geometry(
        architecture=name, dtype=dtype, tied=raw.get("tie_word_embeddings") is True, **family.sizes(raw)
    )
    expected = config(geometry, family)
    for key, value in expected.items():
        if key not in raw and (key in _OLDER or value is None or (key == "dtype" and dtype)):
            continue
        if raw.get(key) != value:
            raise UnfitError(f"config.json: {key} is {raw.get(key)!r}, not {value!r}")
    for key, value in raw.items():
        plain = key == "layer_types" and set(value) == {"full_attention"}
        if key not in expected and key not in _INERT and value and not plain:
            raise UnfitError(f"config.json: {key} is {value!r}, which is no setting of a wired model")
    return geometry, family


def read_circuit(folder: Path) -> tuple[Circuit, Family]:
    """The circuit in a folder. What was read must write the same tensors, so that no weight is unread.

    Raises:
        UsageError: there are no weights that can be read.
        UnfitError: a tensor is missing, too much, or not what a wired model stores; the message names it.
    """
    geometry, family = read_config(folder)
    stored = read_weights(folder / WEIGHTS)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    for name, tensor in stored.items():
        if tensor.dtype != DTYPES[geometry.dtype]:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UnfitError(f"{name}: it is stored as {kind}, not {geometry.dtype}")
        if not bool(tensor.isfinite().all()):
            raise UnfitError(f"{name}: it holds a number that is not finite")
    try:
        circuit = family.read(geometry, stored)
        again = tensors(circuit, family)
    except (KeyError, RuntimeError, ValueError, IndexError) as error:
        raise UnfitError(f"{WEIGHTS}: {error} does not fit config.json") from error
    for name, tensor in again.items():
        if shapes.get(name) != tensor.shape:
            raise UnfitError(f"{name}: its shape is {tuple(shapes.get(name, ()))}, not {tuple(tensor.shape)}")
        if not torch.equal(stored[name], tensor):
            at = (stored[name] != tensor).nonzero()[0].tolist()
            raise UnfitError(
                f"{name}{at}: it is {float(stored[name][tuple(at)]):g}, where a wired model has none"
            )
    if set(stored) - set(again):
        raise UnfitError(f"{min(set(stored) - set(again))}: a wired model has no such tensor")
    return circuit, family


def read_weights(path: Path) -> Tensors:
    """All tensors of a safetensors file.

    Raises:
        UsageError: it is missing or damaged.
        MissingExtraError: safetensors is not installed.
    """
    check_library()
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(str(path), f"it cannot be read: {error}", "wire the folder again") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        UsageError: there is none that can be read.
    """
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(str(path), f"it cannot be read: {error}", "name a folder that was wired") from error
    if not isinstance(found, dict):
        raise UsageError(str(path), "it is no JSON object", "name a folder that was wired")
    return found


def check_free(out: Path, force: bool) -> None:
    """Refuse an output folder that exists, unless it may be replaced; it is then one that was wired.

    Raises:
        UsageError: it exists, is no wired folder, or has no folder to stand in.
    """
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}", f"there is no folder {out.parent}", "make it first")
    if not out.exists():
        return
    if not force:
        raise UsageError(f"--out {out}", "it exists, and is kept", "name another folder, or add --force")
    if not (out / CERTIFICATE).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}", "it is not a wired folder, and is kept", "name another folder")


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """A folder beside the output, that takes its place when all is written."""
    made = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        made.chmod(0o755)
        yield made
        if out.exists():
            shutil.rmtree(out)
        made.replace(out)
    finally:
        if made.exists():
            shutil.rmtree(made, ignore_errors=True)


@dataclass(frozen=True)
class Made:
    """A circuit, the tensors that store it, and the certificate that was proved from those."""

    circuit: Circuit
    tensors: Tensors
    certificate: dict[str, Any]


def check_library() -> None:
    """Refuse to start without what writes weights.

    Raises:
        MissingExtraError: safetensors is not installed.
    """
    if find_spec("safetensors") is None:
        raise MissingExtraError("safetensors", "wire")


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
                ("config.json", config(g, family)),
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
