"""Decoders of the transformers library: the model, the tokens to draw from, and its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from whyformer.errors import UsageError
from whyformer.subjects import targets
from whyformer.subjects.checkpoints import Checkpoint, check_one_input, open_checkpoint, quiet, transformers
from whyformer.subjects.huggingface import HuggingFace


@dataclass(frozen=True)
class Decoder:
    """A decoder that can be scanned.

    Attributes:
        model: a model of the transformers library.
        subject: what a report says of it.
        ids: the tokens that sequences are drawn from: all but special ones.
        start: what its tokenizer puts before a text, if anything.
        context: the longest input that it declares, or None.
        tokenizer: what reads a text, if there is one.
    """

    model: Any
    subject: dict[str, Any]
    ids: Int[Tensor, " ids"]
    start: int | None
    context: int | None
    tokenizer: Any = None


def load_decoder(target: str, seed: int) -> Decoder:
    """The decoder that a TARGET names.

    Raises:
        UsageError: it is none, or no model of transformers.
    """
    if targets.is_code(target):
        model: Any = targets.load_module(target, seed).eval()
        if not hasattr(getattr(model, "config", None), "get_text_config"):
            why = "it is no model of transformers, whose attention can be watched"
            raise UsageError(target, why, "name a checkpoint, or code that returns such a model")
        check_one_input(target, model.config)
        if model.get_output_embeddings() is None:
            raise UsageError(
                target, "it has no language head, which predicts tokens", "name the whole decoder"
            )
        architecture = type(model).__name__
        decoder = not any(kind.__name__.endswith("ForMaskedLM") for kind in type(model).__mro__)
        checkpoint = Checkpoint(model, next(model.parameters()).dtype, architecture, decoder)
        name = target.rpartition(":")[2]
    else:
        checkpoint = open_checkpoint(target)
        path = Path(target).expanduser()
        name = path.resolve().name if path.exists() else target
    if not checkpoint.decoder:
        if checkpoint.model.config.get_text_config() is not checkpoint.model.config:
            why = f"{checkpoint.architecture} reads more than tokens, and loads without its language head"
            raise UsageError(target, why, "store its language model by itself")
        raise UsageError(target, f"{checkpoint.architecture} is an encoder", "name a decoder")
    told = HuggingFace(checkpoint, name=name, target=target)
    tokenizer = None if targets.is_code(target) else _tokenizer(target, checkpoint)
    special = set(told.traits.special) | set(getattr(tokenizer, "all_special_ids", ()))
    # A model may embed more tokens than it can predict (CPM-Ant: prompts).
    known = min(told.traits.vocabulary, len(checkpoint.model.get_output_embeddings().weight))
    ids = torch.tensor([i for i in range(known) if i not in special])
    return Decoder(
        checkpoint.model, told.describe(), ids, _start(tokenizer), told.traits.max_length, tokenizer
    )


def _tokenizer(target: str, checkpoint: Checkpoint) -> Any:
    """The tokenizer beside a checkpoint, or None."""
    path = Path(target).expanduser()
    place = checkpoint.folder if checkpoint.converted or path.is_dir() else target
    try:
        with quiet():
            return transformers().AutoTokenizer.from_pretrained(
                str(place), local_files_only=True, trust_remote_code=False
            )
    except Exception:
        # Whatever ails the tokenizer, the model can be scanned without; a text cannot, and is told so.
        return None


def _start(tokenizer: Any) -> int | None:
    """The one token that the tokenizer puts before any text."""
    if tokenizer is None:
        return None
    ids, special = tokenizer("a")["input_ids"], tokenizer.all_special_ids
    return ids[0] if ids and ids[0] in special else None
