"""A right tiny decoder with its positions in the open, for faults of position to change in one place each."""

import math

import torch
from torch import nn

from whyformer.claims.audit.probing import Asked
from whyformer.finding import Finding
from whyformer.instruments.agreement import Examiner
from whyformer.subjects.torch_module import TorchModule

VOCABULARY, WIDTH = 64, 16


class Small(nn.Module):
    """One layer of causal attention with rotary positions; mask, positions and cache are taken."""

    causal = True

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.made()
        with torch.no_grad():
            for p in (self.q.weight, self.k.weight, self.v.weight):
                p.mul_(2)

    def made(self):
        pass

    def counted(self, x, mask, seen):
        """The positions of this call's inputs."""
        if mask is not None:
            return (mask.long().cumsum(-1) - 1).clamp(min=0)[:, seen:]
        return torch.arange(seen, seen + x.shape[1]).expand(x.shape)

    def add(self, h, positions):
        return h

    def angles(self, positions, dtype):
        frequencies = 100.0 ** (-torch.arange(WIDTH // 2, dtype=dtype) / (WIDTH // 2))
        return positions[..., None].to(dtype) * frequencies

    def turn(self, x, positions):
        angles = self.angles(positions, x.dtype)
        return rotated(x, angles.cos(), angles.sin())

    def bias(self, queries, keys):
        return 0

    def allowed(self, queries, keys):
        return keys[None, :] <= queries[:, None] if self.causal else torch.ones(len(queries), len(keys)) > 0

    def forward(self, x, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False):
        past = past_key_values
        seen = 0 if past is None else past[0].shape[1]
        positions = self.counted(x, attention_mask, seen) if position_ids is None else position_ids
        h = self.add(self.embed(x), positions)
        q, k, v = self.turn(self.q(h), positions), self.turn(self.k(h), positions), self.v(h)
        keys = positions
        if past is not None:
            k, v, keys = (torch.cat([a, b], 1) for a, b in zip(past, (k, v, positions), strict=True))
        columns = torch.arange(k.shape[1])
        ok = self.allowed(columns[seen:], columns)[None]
        if attention_mask is not None:
            ok = ok & attention_mask.bool()[:, None, :] | (columns[seen:, None] == columns)[None]
        scores = q @ k.transpose(1, 2) / math.sqrt(WIDTH) + self.bias(positions, keys)
        y = torch.softmax(scores.masked_fill(~ok, -math.inf), -1) @ v
        logits = self.head(h + y)
        return (logits, (k, v, keys)) if use_cache else logits


def rotated(x, cos, sin):
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Learned(Small):
    """A table of learned positions; no rotary ones."""

    rows = 512

    def made(self):
        self.table = nn.Embedding(self.rows, WIDTH)

    def add(self, h, positions):
        return h + self.table(positions)

    def turn(self, x, positions):
        return x


def tried(test, module, *, length=24, seed=31, value=None, dtype=torch.float64, kind=None) -> Finding:
    """What a claim's test says of a module, judged in a precision and confirmed in float32."""
    subject = TorchModule(module, **(kind or {"tokens": VOCABULARY}))
    other = torch.float32 if dtype == torch.float64 else None
    with subject.precision(dtype):
        return test(
            Asked(Examiner(subject, length, seed), value, other=other), torch.Generator().manual_seed(seed)
        )
