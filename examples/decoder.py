"""A tiny decoder to try the audit on, and the same with a fault that tests on short inputs do not see."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH = 64, 32


class Decoder(nn.Module):
    """One layer of causal attention with learned positions, a padding mask and a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(512, WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False):
        seen = 0 if past_key_values is None else past_key_values[0].shape[1]
        if attention_mask is None:
            attention_mask = torch.ones(x.shape[0], seen + x.shape[1], dtype=torch.int64)
        if position_ids is None:
            position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, seen:]
        h = self.tokens(x) + self.places(position_ids)
        q, k, v = self.qkv(h).chunk(3, -1)
        if past_key_values is not None:
            k, v = torch.cat([past_key_values[0], k], 1), torch.cat([past_key_values[1], v], 1)
        at = torch.arange(k.shape[1])
        itself = at == at[seen:, None]
        allowed = self.visible(at, at[seen:, None]) & attention_mask[:, None, :].bool() | itself
        scores = (q @ k.transpose(1, 2) / WIDTH**0.5).masked_fill(~allowed, float("-inf"))
        y = self.head(h + functional.softmax(scores, -1) @ v)
        return (y, (k, v)) if use_cache else y

    def visible(self, keys, queries):
        return keys <= queries


class Leaky(Decoder):
    """Sees to the end of the block of four that it stands in: causal only at the blocks' borders."""

    def visible(self, keys, queries):
        return keys // 4 <= queries // 4
