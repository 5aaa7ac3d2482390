"""A small module that is right, for the audit's claims to hold of; one change makes each refuter."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from whyformer.claims.audit.probing import Asked
from whyformer.instruments.agreement import Examiner
from whyformer.subjects.torch_module import TorchModule

VOCABULARY, WIDTH, HEADS, LENGTH = 32, 16, 2, 12

Past = tuple[Tensor, Tensor, Tensor, Tensor]
"""Keys, values, which of them are real, and how many inputs each row has read."""


class Decoder(nn.Module):
    """One causal layer of attention over tokens, with rotary positions, a padding mask and a cache.

    What a subclass overrides is what makes it wrong.

    Args:
        generator: its weights are drawn from it.
        causal: whether an output sees no later input.
        window: how many inputs an output sees, itself included; None for all.
        rotary: whether positions turn the queries and keys.
    """

    def __init__(
        self,
        generator: torch.Generator,
        *,
        causal: bool = True,
        window: int | None = None,
        rotary: bool = True,
    ) -> None:
        super().__init__()
        self.causal, self.window, self.rotary = causal, window, rotary

        def draw(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64) / WIDTH**0.5)

        self.embed, self.head = draw(VOCABULARY, WIDTH), draw(WIDTH, VOCABULARY)
        self.q, self.k, self.v = draw(WIDTH, WIDTH), draw(WIDTH, WIDTH), draw(WIDTH, WIDTH)

    def forward(
        self,
        x: Int[Tensor, "batch time"],
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        """Logits of shape (batch, time, vocabulary), and the past where it is asked for."""
        seen = 0 if past_key_values is None else past_key_values[0].shape[2]
        real = torch.ones(x.shape[0], seen + x.shape[1], dtype=torch.bool)
        real = real if attention_mask is None else attention_mask.bool()
        if position_ids is None:
            position_ids = self.count(real)[:, seen:]
        h = self.embed[x]
        q, k, v = (self.heads(h @ w) for w in (self.q, self.k, self.v))
        if self.rotary:
            q, k = self.turn(q, position_ids), self.turn(k, position_ids)
        if past_key_values is not None:
            k, v = torch.cat([past_key_values[0], k], 2), torch.cat([past_key_values[1], v], 2)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        allowed = self.allowed(seen, x.shape[1]) & real[:, None, None, :] | self.itself(seen, x.shape[1])
        y = functional.softmax(scores.masked_fill(~allowed, -math.inf), -1) @ v
        logits = (h + y.transpose(1, 2).flatten(2)) @ self.head
        return (logits, (k, v)) if use_cache else logits

    def count(self, real: Tensor) -> Tensor:
        """The positions that the mask tells: real inputs counted from 0."""
        return (real.long().cumsum(-1) - 1).clamp(min=0)

    def heads(self, h: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch heads time head"]:
        """The width cut into heads."""
        return h.view(*h.shape[:2], HEADS, -1).transpose(1, 2)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys turned by their positions."""
        half = x.shape[-1] // 2
        angles = positions[:, None, :, None].to(x.dtype) * 100.0 ** (
            -torch.arange(half, dtype=x.dtype) / half
        )
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)

    def allowed(self, seen: int, time: int) -> Tensor:
        """Which keys the new queries may see, of shape (time, seen + time)."""
        back = torch.arange(seen, seen + time)[:, None] - torch.arange(seen + time)[None, :]
        ok = back >= 0 if self.causal else torch.ones_like(back, dtype=torch.bool)
        return ok & (back < self.window) if self.window else ok

    def itself(self, seen: int, time: int) -> Tensor:
        """Every query sees itself, so that a row of padding alone stays finite."""
        return torch.arange(seen, seen + time)[:, None] == torch.arange(seen + time)[None, :]


def decoder(cls: type[nn.Module] = Decoder, value: int | None = None, **options: Any) -> Any:
    """A maker of a subject for a claim to be tried on: a small module over tokens, in float64."""

    def make(generator: torch.Generator) -> Asked:
        subject = TorchModule(cls(generator, **options), tokens=VOCABULARY)
        seed = int(torch.randint(1 << 30, (1,), generator=generator))
        return Asked(Examiner(subject, LENGTH, seed), value, other=torch.float32)

    return make
