"""Whether a head raises the token that it reads: the copying score of its output."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from whyformer.instruments.heads import heads_of
from whyformer.instruments.streaming import Layer, Streamed, run

SAMPLE = 128
"""Tokens whose values are looked at; each is compared with all others."""
_PROJECTIONS = ("o_proj", "out_proj", "dense", "c_proj", "attn_out", "wo")


def copying(
    model: nn.Module, tokens: Int[Tensor, " time"], *, generator: torch.Generator
) -> Float[Tensor, "layers heads"]:
    """How far each head raises the very token that it reads, from −1 to 1; 0 is chance.

    What a head would write if it attended to one position alone, its value there through the output
    projection, the final normalisation and the unembedding, gives direct logits. The score is
    2·P(the token read gets more than another token of the sequence) − 1: the idea of the copying score of
    Olsson et al. (2022), as a rank, which no scale or common shift can change.

    It fails in several ways. It leaves out all later layers, so a head that writes for another head to read,
    as a previous-token head does, may score anything. A value in a deep layer holds more than its own token,
    so a head may raise the token of a neighbour and score low while it copies. And heads that copy what is
    rarely attended to score as high as those that matter. Read it beside the ablation.

    Args:
        model: a decoder with its language head.
        tokens: distinct at most positions.
        generator: chooses the positions.

    Returns:
        NaN where a layer does not attend, its projections cannot be told, or what it writes overflows.
    """
    layers, heads = heads_of(model)
    found = torch.full((layers, heads), torch.nan, dtype=torch.float64)
    own: Any = model
    embedding = own.get_output_embeddings()
    if embedding is None:
        return found
    norm = _final_norm(getattr(model, "base_model", model), embedding.weight.shape[1])
    if norm is None:
        return found
    tokens = tokens.to(embedding.weight.device)
    place = torch.randperm(len(tokens), generator=generator)[:SAMPLE].to(tokens.device)
    rows = embedding.weight[tokens[place]]
    other = tokens[place][:, None] != tokens[place]

    def watcher(layer: Layer) -> None:
        if not isinstance(layer, Streamed) or layer.module is None:
            return
        value = layer.value[0, :, place]
        value = value.repeat_interleave(layer.heads // len(value), 0)
        out = _projection(layer.module, layer.heads * value.shape[-1])
        if out is None or out.shape[1] != rows.shape[1]:
            return
        written = value @ out.view(layer.heads, -1, out.shape[1])
        raised = (norm(written) - norm(torch.zeros_like(written))) @ rows.T
        above = raised.diagonal(dim1=1, dim2=2)[..., None] > raised
        score = 2 * (above & other).sum((1, 2)).double() / other.sum() - 1
        found[layer.index] = score.where(raised.isfinite().all((1, 2)), torch.nan)

    run(model, tokens[None], watcher)
    return found


def _projection(module: nn.Module, width: int) -> Float[Tensor, "width out"] | None:
    """The weight of an attention module's output projection, inputs first."""
    for name, child in module.named_children():
        weight = getattr(child, "weight", None)
        if name in _PROJECTIONS and isinstance(weight, Tensor) and weight.dim() == 2:
            # A Linear holds (out, in); GPT-2's Conv1D holds (in, out).
            weight = weight.T if isinstance(child, nn.Linear) else weight
            return weight if weight.shape[0] == width else None
    return None


def _final_norm(trunk: nn.Module, width: int) -> nn.Module | None:
    """The last normalisation of that width that stands in no layer."""
    outside = [
        module
        for name, module in trunk.named_modules()
        if "Norm" in type(module).__name__
        and not any(part.isdigit() for part in name.split("."))
        and all(weight.numel() == width for weight in module.parameters())
    ]
    return outside[-1] if outside else None
