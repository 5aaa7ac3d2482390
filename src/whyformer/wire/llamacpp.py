"""A wired model as a GGUF file, for llama.cpp.

The tensors are those of the checkpoint under GGUF's names, with what llama.cpp lays out in another way:

- ``llama``: it turns neighbouring rows of a query or key by one angle, where transformers turns a row and the
  one half a head further. Rows are reordered for it. (Qwen and Gemma are read as transformers lays them out.)
- ``gpt2``: a weight is stored output by input.
- ``gptneox``: all queries come first, then all keys and all values, where transformers goes head by head;
  and the unembedding is stored, tied or not.
- ``gemma``: the weight of a norm is stored whole.
- ``qwen2``: its heads are as wide together as the residual stream, so heads that are 0 are left out or added.

Vectors and positions are in float32, matrices in the checkpoint's dtype. There is no tokenizer: llama.cpp has
none of whole words, so the file says ``no_vocab`` and is played by ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from whyformer.errors import MissingExtraError, UsageError
from whyformer.wire.circuit import Geometry, Traits
from whyformer.wire.family import HEADS, INNER, Tensors

FILE = "model.gguf"
_NAMES = {"mistral": "llama", "gpt_neox": "gptneox"}
"""What GGUF calls an architecture, where it is another name; a window beyond the reach changes nothing."""
_EMBEDDINGS = ("token_embd.weight", "output.weight")


def check_library() -> None:
    """Refuse to start without what writes the file.

    Raises:
        MissingExtraError: gguf is not installed.
    """
    if find_spec("gguf") is None:
        raise MissingExtraError("gguf", "wire")


def write(path: Path, geometry: Geometry, traits: Traits, stored: Tensors) -> None:
    """Write the file.

    Args:
        path: of the file.
        geometry: sizes and settings.
        traits: of the architecture.
        stored: the checkpoint's tensors, by transformers' names.

    Raises:
        OSError: it cannot be written.
        UsageError: llama.cpp reads no such sizes.
    """
    if not _heads(geometry):
        sizes = f"heads of {geometry.head_width} rows in a width of {geometry.width}"
        why = f"llama.cpp reads no qwen2 with {sizes}"
        raise UsageError("--gguf", why, "wire llama or qwen3")
    gguf = import_module("gguf")
    architecture = _NAMES.get(geometry.architecture, geometry.architecture)
    writer = gguf.GGUFWriter(None, architecture)
    half = gguf.GGMLQuantizationType.BF16
    _settings(writer, geometry, traits)
    coarse = geometry.dtype == "bfloat16"
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if coarse else gguf.LlamaFileType.ALL_F32)
    for name, tensor in laid_out(architecture, geometry, stored):
        values = tensor.float().contiguous().numpy()
        if coarse and tensor.dim() > 1 and not name.startswith("position"):
            writer.add_tensor(name, gguf.quantize(values, half), raw_dtype=half)
        else:
            writer.add_tensor(name, values)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def laid_out(architecture: str, geometry: Geometry, stored: Tensors) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors as llama.cpp reads them.

    Args:
        architecture: GGUF's name of it.
        geometry: sizes.
        stored: the checkpoint's tensors, by transformers' names.
    """
    gguf = import_module("gguf")
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(kind, geometry.layers)
    for theirs, tensor in stored.items():
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        part = name.split(".")[-2]
        if architecture == "llama" and part in ("attn_q", "attn_k"):
            tensor = neighbours(tensor, geometry.head_width)
        elif architecture == "qwen2" and part == "attn_q":
            tensor = pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, geometry.width - len(tensor)))
        elif architecture == "qwen2" and part == "attn_output":
            tensor = pad(tensor, (0, geometry.width - tensor.shape[1]))
        elif architecture == "gpt2" and part not in ("token_embd", "position_embd", "output"):
            tensor = tensor.T if tensor.dim() > 1 else tensor
        elif architecture == "gptneox" and part == "attn_qkv":
            by_head = tensor.unflatten(0, (HEADS, 3, geometry.head_width))
            tensor = by_head.transpose(0, 1).flatten(0, 2)
        elif architecture == "gemma" and part.endswith("norm"):
            tensor = tensor.float() + 1
        yield name, tensor
        if architecture == "gptneox" and geometry.tied and name == _EMBEDDINGS[0]:
            yield _EMBEDDINGS[1], tensor


def neighbours(weight: Tensor, head_width: int) -> Tensor:
    """Rows reordered so that those which rotary positions turn together stand side by side."""
    return weight.unflatten(0, (-1, 2, head_width // 2)).transpose(1, 2).flatten(0, 2)


def _heads(geometry: Geometry) -> int:
    """How many query heads are stored; only the first is not 0."""
    return geometry.width // geometry.head_width if geometry.architecture == "qwen2" else HEADS


def _settings(writer: Any, geometry: Geometry, traits: Traits) -> None:
    """What a GGUF file says of a model beside its tensors."""
    writer.add_name(f"wired-{geometry.architecture}")
    writer.add_context_length(geometry.reach)
    writer.add_embedding_length(geometry.width)
    writer.add_block_count(geometry.layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(_heads(geometry))
    writer.add_head_count_kv(HEADS if traits.split else 1)
    writer.add_key_length(geometry.head_width)
    writer.add_value_length(geometry.head_width)
    writer.add_vocab_size(geometry.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    if geometry.theta is not None:
        writer.add_rope_freq_base(geometry.theta)
        writer.add_rope_dimension_count(int(geometry.head_width * traits.rotary))
    if traits.layer_norm:
        writer.add_layer_norm_eps(traits.eps)
    else:
        writer.add_layer_norm_rms_eps(traits.eps)
    if geometry.architecture == "gpt_neox":
        writer.add_parallel_residual(True)
