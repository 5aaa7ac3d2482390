"""Attention as it streams by: what each layer of a transformer attended to, without a time × time pattern.

Under ``watching``, a model of transformers calls an attention function of ours for every layer, through the
interface that transformers keeps for it. The function runs the kernel that the model would have run, keeps
the logarithm of each query's normaliser, which fused kernels return beside the output, and shows the layer
to a watcher. From q, k and that logarithm the probability of any pair is exp(score − logsumexp); so memory
grows with time, not with its square, and the output is the kernel's own.

A model that calls no attention function of the interface (BLOOM, MPT, GPT-Neo, Falcon) is watched at the
softmax that it computes itself: its own pattern is read, one layer at a time.

Axes: batch, heads, kv (key-value heads, each shared by heads / kv queries), time (queries), keys, pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.errors import UsageError
from whyformer.instruments.kernels import Scoring, attend, pair_probability, place_probability
from whyformer.instruments.masks import Pairs, Rows, lazy_mask, reckoning
from whyformer.subjects.checkpoints import transformers

NAME = "whyformer"
"""The name under which the attention function is registered."""
OWN = "the model's own softmax, one pattern at a time"


class EnoughError(Exception):
    """Raised by a watcher that needs nothing of what the model has yet to compute."""


@dataclass(eq=False)
class Layer:
    """One layer's attention, while it is at hand; this kind shows the pattern of a model's own softmax.

    Attributes:
        index: which layer, from 0.
        path: the computation that gave it, in words.
        output: what the model goes on with; a watcher may return another. Here it is the pattern itself.
    """

    index: int
    path: str
    output: Float[Tensor, "batch heads time _"]

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return self.output.shape[1]

    def probability(self, pairs: Pairs) -> Float[Tensor, "pairs heads"]:
        """What each wanted query gives to its key, head by head; 0 where a mask hides it."""
        row, query, key = pairs
        return self.output[row, :, query, key]

    def at_place(self, back: int | None) -> Float[Tensor, "batch heads later"]:
        """What each query but the first gives to the key ``back`` (0 or 1) before it; for None, to key 0."""
        if back is None:
            return self.output[:, :, 1:, 0]
        return self.output.diagonal(-back, -2, -1)[..., 1 - back :]


@dataclass(eq=False)
class Streamed(Layer):
    """One layer's attention as queries, keys and normalisers; ``output`` is what each head read.

    Attributes:
        query: after rotation and normalisation, as the kernel got it.
        key: likewise.
        value: likewise.
        normaliser: the log-sum-exp of each query's scores.
        scoring: how scores follow from query and key.
        module: the attention module, where the interface tells it.
    """

    query: Float[Tensor, "batch heads time width"]
    key: Float[Tensor, "batch kv keys width"]
    value: Float[Tensor, "batch kv keys out"]
    normaliser: Float[Tensor, "batch heads time"]
    scoring: Scoring
    module: nn.Module | None = None

    @classmethod
    def of(
        cls,
        index: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scoring: Scoring,
        module: nn.Module | None = None,
    ) -> Streamed:
        """Attend, and keep what is needed to tell probabilities."""
        output, normaliser, path = attend(query, key, value, scoring)
        return cls(index, path, output, query, key, value, normaliser, scoring, module)

    def probability(self, pairs: Pairs) -> Float[Tensor, "pairs heads"]:
        """What each wanted query gives to its key, head by head; 0 where a mask hides it."""
        return pair_probability(self.query, self.key, self.normaliser, self.scoring, pairs)

    def at_place(self, back: int | None) -> Float[Tensor, "batch heads later"]:
        """What each query but the first gives to the key ``back`` (0 or 1) before it; for None, to key 0."""
        return place_probability(self.query, self.key, self.normaliser, self.scoring, back)


Watcher = Callable[[Layer], Tensor | None]
"""Is shown every layer; what it returns, if anything, takes the place of the layer's ``output``."""


@dataclass
class Watch:
    """A watcher at work, and what came by.

    Attributes:
        watcher: who is shown the layers.
        paths: the computations met.
        layers: how many layers came by in the present forward, or in the last one.
        block: which of the model's blocks is at work, where they can be told; attention that several blocks
            share does not know it by itself.
    """

    watcher: Watcher
    paths: set[str] = field(default_factory=set)
    layers: int = 0
    block: int | None = None
    _met: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """A forward begins."""
        self.layers, self.block = 0, None
        self._met.clear()

    @property
    def index(self) -> int:
        """The layer that attends now: the block at work, or as many as came by before."""
        return self.layers if self.block is None else self.block

    def show(self, layer: Layer) -> Tensor:
        """Show a layer, and return the output that the model goes on with.

        Raises:
            UsageError: this layer has attended before in this forward.
        """
        if layer.index in self._met:
            raise too_often(layer.index)
        self._met.add(layer.index)
        self.paths.add(layer.path)
        self.layers += 1
        other = self.watcher(layer)
        return layer.output if other is None else other


_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watching(model: nn.Module, watcher: Watcher) -> Iterator[Watch]:
    """Show every attention layer of the model's calls in this block to a watcher.

    The model computes as before: where its kernel is torch's fused one, bitwise the same. It is put into
    eval mode, and its attention implementation is set back at the end.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    _register()
    config: Any = model.config
    before = config._attn_implementation
    training = [module for module in model.modules() if module.training]
    model.eval()
    own = not _set(model, NAME)
    watch = Watch(watcher)
    token = _watch.set(watch)

    hooks = [getattr(model, "base_model", model).register_forward_pre_hook(lambda *_: watch.begin())]
    for index, block in enumerate(_blocks(model)):
        hooks.append(block.register_forward_pre_hook(lambda *_, at=index: setattr(watch, "block", at)))
    try:
        if own:
            with _OwnSoftmax(watch):
                yield watch
        else:
            yield watch
    finally:
        for hook in hooks:
            hook.remove()
        _watch.reset(token)
        _set(model, before)
        for module in training:
            module.training = True


def run(model: nn.Module, ids: Int[Tensor, "batch time"], watcher: Watcher, **options: Any) -> Watch:
    """Run a model's trunk, without its projection onto the vocabulary, and show its layers to a watcher.

    Args:
        model: a transformer of the transformers library.
        ids: what it reads.
        watcher: may raise ``EnoughError`` to end the run.
        options: further arguments of the model's forward (``attention_mask``, ``position_ids``).

    Raises:
        UsageError: the model has no softmax attention that could be watched.
    """
    trunk: Any = getattr(model, "base_model", model)
    with watching(trunk, watcher) as watch, torch.inference_mode(), suppress(EnoughError):
        trunk(ids, use_cache=False, **options)
    if not watch.layers:
        raise no_attention(model)
    return watch


def too_often(layer: int) -> UsageError:
    """The error for a model in which one layer attends again, or more of them than it declares."""
    why = "the model attends more often than it has layers, so heads cannot be told apart"
    return UsageError(f"layer {layer}", why, "name another model")


def no_attention(model: nn.Module) -> UsageError:
    """The error for a model in which no softmax attention was met."""
    name = type(model).__name__
    return UsageError(name, "it has no softmax attention to scan", "name a decoder whose layers attend")


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The outermost list of as many different modules as there are layers; empty where there is none."""
    config: Any = model.config
    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    lists = (list(module) for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((blocks for blocks in lists if len(set(blocks)) == len(blocks) == layers), [])


def _set(model: Any, name: str) -> bool:
    """Choose the attention implementation; whether the model goes by it."""
    if not getattr(model, "_can_set_attn_implementation", lambda: False)():
        return False
    model.set_attn_implementation(name)
    return model.config._attn_implementation == name


def _register() -> None:
    library = transformers()
    library.AttentionInterface.register(NAME, _attention)
    # A function without a mask function of its own name is handed no mask at all.
    library.AttentionMaskInterface.register(NAME, lazy_mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; the shapes are those of its interface."""
    mask: Tensor | Rows | None = attention_mask
    if attention_mask is not None and attention_mask.is_meta:
        mask = getattr(attention_mask, "rows", None)
        if mask is None:
            raise reckoning(type(module).__name__)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    scoring = Scoring(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        causal=bool(causal) and mask is None and query.shape[2] > 1,
        mask=mask,
        cap=softcap,
        sinks=s_aux,
        bias=position_bias,
    )
    watch = _watch.get()
    index = getattr(module, "layer_idx", None)
    if index is None or index < 0:
        index = 0 if watch is None else watch.index
    layer = Streamed.of(index, query, key, value, scoring, module)
    output = layer.output if watch is None else watch.show(layer)
    return output.transpose(1, 2).contiguous(), None


class _OwnSoftmax(TorchFunctionMode):
    """Watches a model that attends by itself: each softmax of a square pattern is a layer."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch, self.batch = watch, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            return self._fused(*args, **kwargs)
        result = func(*args, **kwargs)
        if name == "embedding" and result.dim() == 3:
            self.batch = result.shape[0]
        if name == "softmax" and result.dim() in (3, 4) and result.shape[-1] == result.shape[-2]:
            square = result.shape[-2:]
            # A pattern of three axes has rows and heads in one; the rows are those of the last embedding.
            pattern = result if result.dim() == 4 else result.reshape(self.batch, -1, *square)
            shown = self.watch.show(Layer(self.watch.index, OWN, pattern))
            return shown.reshape(result.shape)
        return result

    def _fused(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> Tensor:
        scoring = Scoring(
            scale=query.shape[-1] ** -0.5 if scale is None else scale, causal=is_causal, mask=attn_mask
        )
        return self.watch.show(Streamed.of(self.watch.index, query, key, value, scoring))
