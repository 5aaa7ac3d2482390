"""What heads cause: the loss where a token comes back, with heads taken out, and keys that others wrote.

A head is taken out at its output, before the layer's output projection: set to zero, or to its mean over
rows and positions, which leaves the head's constant contribution in place.

Axes: batch, rows, heads, time, pairs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from whyformer.errors import UsageError
from whyformer.instruments.heads import heads_of
from whyformer.instruments.repeats import Repeats
from whyformer.instruments.streaming import EnoughError, Layer, Streamed, Watcher, run, watching

Head = tuple[int, int]
"""Layer and head, from 0."""
Mode = Literal["zero", "mean"]
TOKENS = 512
"""Tokens that one call with logits reads, where rows are short."""


@dataclass(frozen=True)
class Ablation:
    """The loss with some heads taken out.

    Attributes:
        heads: which.
        mode: what took the place of their outputs.
        loss: mean negative log-likelihood, in nats, of the tokens that a lookup would predict; None where
            the model without these heads gives no finite one, as half precision may.
        baseline: the same with every head in place.
        reason: why there is no loss.
    """

    heads: tuple[Head, ...]
    mode: Mode
    loss: float | None
    baseline: float
    reason: str | None = None


class NotFiniteError(UsageError):
    """The model gives logits, or a loss, that are not finite numbers."""


@dataclass(frozen=True)
class Composition:
    """How an induction head's score depends on what an earlier head wrote.

    Attributes:
        source: the earlier head, whose output is set to zero.
        target: the induction head.
        score: its induction score as it is.
        keys: the same when only its keys come from the run without the source; NaN where that run overflows.
        queries: the same when only its queries do.
    """

    source: Head
    target: Head
    score: float
    keys: float
    queries: float


class Ablator:
    """A model, sequences with repeats, and the loss on what comes back.

    Args:
        model: a decoder of the transformers library, with its language head.
        repeats: what it reads.

    Raises:
        NotFiniteError: with every head in place, the loss is not finite.

    Attributes:
        baseline: the loss with every head in place.
        calls: how often all rows were read.
    """

    def __init__(self, model: nn.Module, repeats: Repeats) -> None:
        if not repeats.copied.shape[1]:
            raise UsageError("the loss on repeats", "no token is followed by the one it once had", "lengthen")
        self.model, self.repeats = model, repeats
        self.layers, self.heads = heads_of(model)
        self.calls = 0
        self.means: dict[int, Float[Tensor, "heads width"]] = {}
        self.baseline = self._loss(self._average)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What can take the place of a head: a model that attends by itself shows no outputs to average."""
        return ("zero", "mean") if self.means else ("zero",)

    def without(self, heads: Iterable[Head], mode: Mode = "zero") -> Ablation:
        """Take heads out.

        Raises:
            UsageError: there is no such head, or no mean for it.
        """
        taken = tuple(heads)
        for layer, head in taken:
            if not (0 <= layer < self.layers and 0 <= head < self.heads):
                why = f"there are {self.layers} layers of {self.heads} heads, counted from 0"
                raise UsageError(f"head {layer}.{head}", why, "name one of them")
        if mode not in self.modes:
            raise UsageError(f"mode {mode}", "this model attends by itself", "take heads out by zero")

        def watcher(layer: Layer) -> Tensor | None:
            here = [head for index, head in taken if index == layer.index]
            if not here:
                return None
            output = layer.output.clone()
            output[:, here] = self.means[layer.index][here][:, None] if mode == "mean" else 0.0
            return output

        try:
            return Ablation(taken, mode, self._loss(watcher), self.baseline)
        except NotFiniteError as error:
            return Ablation(taken, mode, None, self.baseline, f"{error.what}: {error.why}")

    def _average(self, layer: Layer) -> None:
        if isinstance(layer, Streamed):
            share = len(layer.output) / len(self.repeats.tokens)
            mean = layer.output.mean((0, 2)) * share
            self.means[layer.index] = self.means.get(layer.index, 0.0) + mean

    def _loss(self, watcher: Watcher) -> float:
        self.calls += 1
        total = 0.0
        with watching(self.model, watcher):
            for logits, answers in predictions(self.model, self.repeats):
                total += torch.nn.functional.cross_entropy(logits.double(), answers, reduction="sum").item()
        if not math.isfinite(total):
            raise NotFiniteError("the loss", f"it is {total}", "look at the logits of the model")
        return total / self.repeats.copied.shape[1]


def predictions(model: nn.Module, repeats: Repeats) -> Iterator[tuple[Tensor, Tensor]]:
    """For each batch of rows, the logits (copied, vocabulary) at its copied queries, and the next tokens.

    Raises:
        NotFiniteError: a logit is NaN.
    """
    rows, length = repeats.tokens.shape
    batch = max(1, TOKENS // length)
    chosen = "logits_to_keep" in inspect.signature(model.forward).parameters
    device = next(model.parameters(), repeats.tokens).device
    for first in range(0, rows, batch):
        part = repeats.part(slice(first, first + batch)).to(device)
        row, query = part.copied
        kept, place = query.unique(return_inverse=True)
        with torch.inference_mode():
            if chosen:
                logits = model(part.tokens, use_cache=False, logits_to_keep=kept).logits[row, place]
            else:
                logits = model(part.tokens, use_cache=False).logits[row, query]
        if logits.isnan().any():
            raise NotFiniteError("the logits", "some are not a number", "look for NaN in the weights")
        yield logits, part.tokens[row, query + 1]


def random_heads(
    heads: Sequence[Head], count: int, *, apart: Sequence[Head], generator: torch.Generator
) -> list[Head]:
    """So many of the heads at random, none of those in ``apart``; fewer where there are no more."""
    drawn = [heads[at] for at in torch.randperm(len(heads), generator=generator).tolist()]
    return [head for head in drawn if head not in apart][:count]


def compositions(
    model: nn.Module, repeats: Repeats, sources: Sequence[Head], targets: Sequence[Head]
) -> list[Composition]:
    """How much of each target's induction score hangs on each source in a layer before it.

    The source's output is set to zero, and the keys (or the queries) that the target's layer then computes
    are patched into the target's attention, which otherwise is as it was. A fall by the keys shows that the
    source writes, directly or through what lies between, what the target looks for; compare K-composition
    in Elhage et al., "A Mathematical Framework for Transformer Circuits" (2021). For a model that attends
    by itself there is nothing to patch, and the list is empty.
    """
    if not targets:
        return []
    last = max(layer for layer, _ in targets)
    clean: dict[int, Streamed] = {}

    def keep(layer: Layer) -> None:
        if isinstance(layer, Streamed) and any(layer.index == index for index, _ in targets):
            clean[layer.index] = layer
        if layer.index == last:
            raise EnoughError

    repeats = repeats.to(next(model.parameters()).device)
    run(model, repeats.tokens, keep)
    found: list[Composition] = []
    for source in sources:
        behind = {layer for layer, _ in targets if layer > source[0] and layer in clean}
        if behind:
            patched = _without(model, repeats, source, behind)
            found += [
                Composition(
                    source, target, *_scores(clean[target[0]], patched[target[0]], target[1], repeats)
                )
                for target in targets
                if target[0] in behind
            ]
    return found


def _without(model: nn.Module, repeats: Repeats, source: Head, wanted: set[int]) -> dict[int, Streamed]:
    """The wanted layers of a run in which the source's output is zero."""
    found: dict[int, Streamed] = {}

    def watcher(layer: Layer) -> Tensor | None:
        if isinstance(layer, Streamed) and layer.index in wanted:
            found[layer.index] = layer
            if len(found) == len(wanted):
                raise EnoughError
        if layer.index != source[0]:
            return None
        output = layer.output.clone()
        output[:, source[1]] = 0.0
        return output

    run(model, repeats.tokens, watcher)
    return found


def _scores(clean: Streamed, patched: Streamed, head: int, repeats: Repeats) -> tuple[float, float, float]:
    """A head's induction score as it is, with the other run's keys, and with its queries."""
    row, query, twin = repeats.pairs
    pairs = torch.stack([row, query, twin + 1])
    asking = pairs[:2].unique(dim=1).shape[1]

    def score(q: Tensor, k: Tensor) -> float:
        layer = Streamed.of(clean.index, q, k, clean.value, clean.scoring)
        return layer.probability(pairs)[:, head].sum().item() / asking

    return score(clean.query, clean.key), score(clean.query, patched.key), score(patched.query, clean.key)
