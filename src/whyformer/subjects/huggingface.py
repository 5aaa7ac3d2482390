"""A Hugging Face checkpoint as a subject, by its signature, its config and what two short calls show.

Every model swallows an unknown keyword without a word, so an argument counts only where the signature names
it, and a cache only where a call with it returns one, or fills the one that it was handed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from whyformer.errors import UsageError
from whyformer.finding import Value
from whyformer.subjects.checkpoints import Checkpoint, open_checkpoint, quiet
from whyformer.subjects.float64 import Float64
from whyformer.subjects.subject import (
    PLAIN,
    Output,
    Settings,
    Subject,
    SubjectError,
    Traits,
    failure,
    raised,
    read_output,
)
from whyformer.subjects.torch_module import LARGE

_CACHES = ("cache", "past_key_values", "cache_params", "state", "past_buckets_states")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "context_length")
_BACKENDS = ("eager", "sdpa")
"""What runs on a CPU without a compiler."""
_BOTH_WAYS = {"cpmant", "xlnet"}
"""Families of the causal mapping whose attention sees both ways by design."""


def load_checkpoint(target: str, *, tokens: int | None = None) -> HuggingFace:
    """The subject that a folder, a hub id or a GGUF file holds.

    Args:
        target: what to load; see :func:`~whyformer.subjects.checkpoints.open_checkpoint`.
        tokens: how many of its ids are used, where not all of them.

    Raises:
        UsageError: it cannot be loaded safely and whole, reads no tokens, or has fewer than ``tokens``.
        MissingExtraError: transformers is not installed.
    """
    path = Path(target).expanduser()
    name = path.stem if path.is_file() else path.resolve().name if path.is_dir() else target
    return HuggingFace(open_checkpoint(target), name=name, target=target, tokens=tokens)


@dataclass(frozen=True)
class _Held:
    """A cache, and what the modules keep beside it: (module, attribute) -> tensor."""

    cache: Any
    kept: dict[tuple[str, str], Tensor]


class HuggingFace(Subject):
    """A checkpoint under examination: eval mode, float32 or float64, nothing drawn.

    In float64 the weights stay as they are and are moved up call by call. A ``settings.scale`` is ignored:
    a checkpoint's weights are what is examined. A cache that a call was handed is used up by it.

    Args:
        checkpoint: the model and what its files say.
        name: what a reader calls it.
        target: where it was loaded from, so that a report can be replayed.
        tokens: how many of its ids are used; all by default.

    Raises:
        UsageError: the model reads no tokens, or has fewer than ``tokens``.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, name: str, target: str | None = None, tokens: int | None = None
    ) -> None:
        self.name, self.target = name, target
        self._checkpoint = checkpoint
        self._model: Any = checkpoint.model
        self._config = self._model.config.get_text_config()
        self._named = set(inspect.signature(self._model.forward).parameters)
        if "input_ids" not in self._named:
            raise UsageError(name, f"{checkpoint.architecture} reads no tokens", "name a language model")
        table = _table(self._model, self._config)
        if tokens is not None and not 1 <= tokens <= table:
            raise UsageError(f"--tokens {tokens}", f"{name} has {table} of them", "leave it out")
        self._loaded = next(p.dtype for p in self._model.parameters() if p.dtype.is_floating_point)
        self.dtype = self._loaded
        self._causal = _is_causal(self._config, checkpoint.decoder)
        self._cache_name = next((name for name in _CACHES if name in self._named), None)
        self._own_cache = self._local_mask = False
        self._state: dict[tuple[str, str], Tensor | None] = {}
        with quiet():
            self._discover_cache()
            backends = self._discover_backends()
        self.traits = self._discover(tokens or table, backends)

    def _discover_cache(self) -> None:
        """The cache's name, who makes it, and what the modules keep beside it.

        Where later inputs are seen, what was read before cannot be final: such a model has no cache here.
        """
        if self._cache_name is None or not self._causal:
            self._cache_name = None
            return
        before = _attributes(self._model)
        ids = torch.zeros(1, 2, dtype=torch.int64)
        try:
            cache = self.call(ids, use_cache=True).cache.cache
            if cache is None:
                self._own_cache = True
                cache = self.call(ids, use_cache=True).cache.cache
        except SubjectError:
            cache = None
        if next(_tensors(cache), None) is None:
            self._cache_name = None
            return
        after = _attributes(self._model)
        self._state = {key: before[key] for key in after if after[key] is not before[key]}
        layers = getattr(cache, "layers", ())
        self._local_mask = len(layers) > 0 and not any(hasattr(layer, "keys") for layer in layers)

    def _discover_backends(self) -> tuple[str, ...]:
        found = []
        for backend in _BACKENDS:
            try:
                with self._backend(backend):
                    found.append(backend)
            except SubjectError:
                continue
        return tuple(found) if len(found) > 1 else ()

    def _discover(self, vocabulary: int, backends: tuple[str, ...]) -> Traits:
        config, names = self._config, self._named
        parameters = inspect.signature(self._model.forward).parameters.values()
        options = tuple(
            (p.name, p.default)
            for p in parameters
            if isinstance(p.default, bool) and not p.name.startswith(("output_", "return_", "use_"))
        )
        ids = {key: value for key, value in config.to_dict().items() if key.endswith("_token_id")}
        special = {i for value in ids.values() for i in (value if isinstance(value, list) else [value])}
        usable = {i for i in special if isinstance(i, int) and 0 <= i < vocabulary}
        pad = ids.get("pad_token_id")
        positions = "position_ids" in names
        return Traits(
            vocabulary=vocabulary,
            special=tuple(sorted(usable)),
            mask="attention_mask" in names,
            positions=positions,
            cache=self._cache_name is not None,
            options=options,
            backends=backends,
            max_length=_longest(self._model, config),
            pad=pad if pad in usable else min(usable, default=0),
            promises=self._promises(),
            large=self._size >= LARGE,
            left_padding=self._causal or not positions,
        )

    def _promises(self) -> dict[str, tuple[Value, str]]:
        said: dict[str, tuple[Value, str]] = {}
        if self._causal:
            said["routing.causal"] = (None, f"the architecture {self._checkpoint.architecture}")
        if "attention_mask" in self._named:
            said["routing.padding"] = (None, "attention_mask in the signature")
        if self._cache_name is not None:
            for claim in ("routing.cache", "routing.chunks"):
                said[claim] = (None, f"{self._cache_name} in the signature")
        window = _window(self._config)
        if self._causal and window is not None:
            layers = self._config.num_hidden_layers
            said["routing.reach"] = (layers * (window - 1) + 1, f"windows of {window} in {layers} layers")
        return said

    @property
    def _size(self) -> int:
        return sum(p.numel() for p in self._model.parameters())

    def describe(self) -> dict[str, Any]:
        """Name, kind, target, architecture, the dtype of the stored weights, size, and what was moved up."""
        stored = _word(self._checkpoint.stored)
        said: dict[str, Any] = {
            "name": self.name,
            "kind": "checkpoint",
            "target": self.target,
            "architecture": self._checkpoint.architecture,
            "dtype": stored,
            "parameters": self._size,
        }
        if self._checkpoint.converted:
            said["converted"] = "from GGUF"
        if self._loaded != self._checkpoint.stored:
            said["upcast"] = f"{stored} weights moved up to {_word(self._loaded)}, which is exact"
        return said

    @property
    def native(self) -> torch.dtype:
        """The precision of the stored weights."""
        return self._checkpoint.stored

    @contextmanager
    def precision(self, dtype: torch.dtype) -> Iterator[None]:
        """Compute in another precision inside the block: float64, as loaded, or as stored.

        Float64 keeps no second copy of the weights, and does away with the model's float32 islands.
        """
        with ExitStack() as stack:
            if dtype not in {self._loaded, torch.float64}:
                if dtype != self._checkpoint.stored:
                    mend = "examine it in float32 or float64"
                    raise SubjectError(
                        f"{self.name} in {_word(dtype)}", "its weights are not stored so", mend
                    )
                stack.enter_context(_lowered(self._model, dtype))
            before, self.dtype = self.dtype, dtype
            try:
                yield
            finally:
                self.dtype = before

    def call(
        self,
        ids: Int[Tensor, "batch time"],
        *,
        mask: Int[Tensor, "batch seen"] | None = None,
        positions: Int[Tensor, "batch time"] | None = None,
        cache: Any = None,
        use_cache: bool = False,
        settings: Settings = PLAIN,
    ) -> Output:
        """Run the model once; see :meth:`Subject.call`."""
        given: dict[str, Any] = dict(settings.options)
        if positions is not None:
            given["position_ids"] = positions
        if mask is not None:
            # A pure state model has no columns of the past to mask: it takes the mask of this call alone.
            given["attention_mask"] = mask[:, -ids.shape[1] :] if self._local_mask else mask
        if self._cache_name is not None or "use_cache" in self._named:
            given["use_cache"] = (
                use_cache  # left out, it may be on, and a cache changes how documents are told
            )
        handed = cache.cache if cache is not None else self._fresh_cache() if use_cache else None
        if handed is not None:
            given[self._cache_name or ""] = handed
        self._restore(cache)
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(quiet())
            self._enter(stack, settings)
            try:
                result = self._model(input_ids=ids, **given)
            except Exception as error:
                raise failure(self.name, ids.shape, error) from error
        y = read_output(self.name, result, ids, use_cache=False).y
        return Output(y, self._hold(result, handed) if use_cache else None)

    def _fresh_cache(self) -> Any:
        if not self._own_cache:
            return None
        return import_module("transformers").DynamicCache(config=self._config)

    def _hold(self, result: Any, handed: Any) -> _Held:
        returned = result.get(self._cache_name) if hasattr(result, "get") else None
        modules = dict(self._model.named_modules())
        kept = {(m, name): getattr(modules[m], name) for m, name in self._state}
        return _Held(
            handed if returned is None else returned,
            {key: value.clone() for key, value in kept.items() if isinstance(value, Tensor)},
        )

    def _restore(self, cache: _Held | None) -> None:
        """Put back what the modules kept after the call that returned this cache, or before any call."""
        if not self._state:
            return
        modules = dict(self._model.named_modules())
        for (module, name), first in self._state.items():
            value = first if cache is None else cache.kept.get((module, name))
            setattr(modules[module], name, value.clone() if isinstance(value, Tensor) else value)

    def _enter(self, stack: ExitStack, settings: Settings) -> None:
        if settings.train:
            raise SubjectError(self.name, "a checkpoint is examined in eval mode", "leave train out")
        if settings.backend is not None:
            stack.enter_context(self._backend(settings.backend))
        if self.dtype is torch.float64 and self._loaded is not torch.float64:
            stack.enter_context(_eager_experts(self._model))
            stack.enter_context(Float64())

    @contextmanager
    def _backend(self, name: str) -> Iterator[None]:
        before = self._model.config._attn_implementation
        try:
            self._model.set_attn_implementation(name)
        except (ValueError, ImportError) as error:
            raise SubjectError(f"backend {name}", raised(error), "choose another") from error
        try:
            if self._model.config._attn_implementation != name:
                raise SubjectError(f"backend {name}", f"{self.name} keeps its own", "leave it out")
            yield
        finally:
            if self._model.config._attn_implementation != before:
                self._model.set_attn_implementation(before)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _table(model: Any, config: Any) -> int:
    """How many ids the model has an embedding for."""
    try:
        return model.get_input_embeddings().weight.shape[0]
    except (NotImplementedError, AttributeError):
        return config.vocab_size


def _longest(model: nn.Module, config: Any) -> int | None:
    """The declared context, less what a position table keeps for padding."""
    stated = next((v for name in _LENGTHS if isinstance(v := getattr(config, name, None), int)), None)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "position" in name and module.padding_idx is not None:
            rows = module.num_embeddings - module.padding_idx - 1
            stated = rows if stated is None else min(stated, rows)
    return stated if stated is not None and stated > 0 else None


def _is_causal(config: Any, decoder: bool) -> bool:
    """Whether the architecture promises that no output depends on a later input."""
    causal = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in causal or not (decoder or getattr(config, "is_decoder", True)):
        return False
    if config.model_type in _BOTH_WAYS or getattr(config, "causal", True) is False:
        return False
    prefix = getattr(getattr(config, "attn_config", None), "prefix_lm", False)
    return not (prefix or getattr(config, "use_bidirectional_attention", False))


def _window(config: Any) -> int | None:
    """The window that every layer has; None where there is none, or layers are mixed."""
    if getattr(config, "use_sliding_window", True) is False:
        return None
    kinds = set(getattr(config, "layer_types", None) or {"sliding_attention"})
    if kinds == {"sliding_attention"}:
        window = getattr(config, "sliding_window", None)
    elif kinds == {"chunked_attention"}:
        window = getattr(config, "attention_chunk_size", None)
    else:
        return None
    return window if isinstance(window, int) and window > 0 else None


def _attributes(model: nn.Module) -> dict[tuple[str, str], Any]:
    """What the modules hold as plain attributes that are, or may become, tensors."""
    return {
        (name, attribute): value
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if value is None or isinstance(value, Tensor)
    }


def _tensors(cache: Any) -> Iterator[Tensor]:
    """Every tensor in a cache, however it is nested."""
    if isinstance(cache, Tensor):
        yield cache
    elif isinstance(cache, dict):
        for item in cache.values():
            yield from _tensors(item)
    elif isinstance(cache, (list, tuple)):
        for item in cache:
            yield from _tensors(item)
    elif hasattr(cache, "__dict__"):
        yield from _tensors(vars(cache))


@contextmanager
def _eager_experts(model: Any) -> Iterator[None]:
    """Experts one by one, where the model has any: the grouped product has no float64."""
    before = getattr(model.config, "_experts_implementation", None)
    if before in {None, "eager"}:
        yield
        return
    model.set_experts_implementation("eager")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


@contextmanager
def _lowered(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """The weights in the lower precision that they were stored in, in place and without a loss."""
    changed: list[tuple[nn.Parameter, Tensor | None, torch.dtype]] = []
    try:
        for p in model.parameters():
            if p.dtype.is_floating_point and p.dtype != dtype:
                low = p.data.to(dtype)
                exact = bool((low.to(p.dtype) == p.data).all())
                changed.append((p, None if exact else p.data, p.dtype))
                p.data = low
        yield
    finally:
        for p, kept, before in changed:
            p.data = p.data.to(before) if kept is None else kept
