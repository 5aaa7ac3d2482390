"""A right decoder, open at every joint where the faults of padding, caches and packing sit."""

import math

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS = 32, 16, 2


class Decoder(nn.Module):
    """Attention over tokens with learned positions; each method is one joint, and each fault mends one wrong.

    The past holds keys, values, the column of each key, and how many columns were read.
    """

    window: int | None = None
    learned, rotary, causal = True, False, True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(256, WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, VOCABULARY)
        with torch.no_grad():
            self.qkv.weight.mul_(2)

    def positions(self, real, seen):
        return (real.long().cumsum(-1) - 1).clamp(min=0)[:, seen:]

    def allowed(self, queries, keys):
        back = queries[:, None] - keys[None, :]
        ok = back >= 0 if self.causal else torch.ones_like(back, dtype=torch.bool)
        return ok & (back < self.window) if self.window else ok

    def bias(self, queries, keys):
        return 0.0

    def keep(self, past, k, v, columns):
        if past is None:
            return k, v, columns
        return torch.cat([past[0], k], 2), torch.cat([past[1], v], 2), torch.cat([past[2], columns])

    def cut(self, k, v, columns):
        return k, v, columns

    def real(self, mask, x, seen):
        return torch.ones(x.shape[0], seen + x.shape[1], dtype=torch.bool) if mask is None else mask.bool()

    def turn(self, x, positions):
        half = x.shape[-1] // 2
        angle = positions[:, None, :, None].to(x.dtype) * 100.0 ** (-torch.arange(half, dtype=x.dtype) / half)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def mix(self, q, k, v, ok, bias):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
        return functional.softmax(scores.masked_fill(~ok, -math.inf), -1) @ v

    def forward(self, x, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False):
        past = past_key_values
        seen = 0 if past is None else past[3]
        real = self.real(attention_mask, x, seen)
        positions = self.positions(real, seen) if position_ids is None else position_ids
        h = self.embed(x) + (self.place(positions) if self.learned else 0)
        q, k, v = (t.view(*x.shape, HEADS, -1).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        if self.rotary:
            q, k = self.turn(q, positions), self.turn(k, positions)
        columns = torch.arange(seen, seen + x.shape[1])
        k, v, keys = self.keep(past, k, v, columns)
        itself = columns[:, None] == keys[None, :]
        ok = (
            self.allowed(columns, keys) & real[:, None, None, :][..., keys.clamp(max=real.shape[1] - 1)]
            | itself
        )
        y = self.mix(q, k, v, ok, self.bias(columns, keys))
        y = self.head(h + y.transpose(1, 2).flatten(2))
        return (y, (*self.cut(k, v, keys), seen + x.shape[1])) if use_cache else y


class Uncached(Decoder):
    """The same without a cache and without positions to be given."""

    def forward(self, x, attention_mask=None):
        return super().forward(x, attention_mask)


class State(nn.Module):
    """A gated recurrence over tokens behind a short causal convolution, with a mask and a state."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.conv = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.randn(3, WIDTH) / 2)
        self.gate, self.value, self.head = (nn.Linear(WIDTH, n) for n in (WIDTH, WIDTH, VOCABULARY))

    def before(self, h, real):
        return h * real

    def after(self, gate, value, real):
        return torch.where(real.bool(), gate, 1.0), value * real

    def tail(self, past, h):
        return h.new_zeros(h.shape[0], 2, WIDTH) if past is None else past[0]

    def start(self, past, h):
        return h.new_zeros(h.shape[0], WIDTH) if past is None else past[1]

    def last(self, tail, h, real):
        """The two latest real inputs of each row, which the next call's convolution starts from."""
        rows = zip(torch.cat([tail, h], 1), real[..., 0].bool(), strict=True)
        return torch.stack([torch.cat([row[:2], row[2:][ok]])[-2:] for row, ok in rows])

    def convolved(self, tail, h, real):
        """Every tap takes the latest real inputs before it."""
        out = torch.zeros_like(h)
        for b, ok in enumerate(real[..., 0].bool()):
            row = torch.cat([tail[b], h[b][ok]])
            out[b][ok] = sum(self.conv[i] * row[i : len(row) - 2 + i] for i in range(3))
        return out

    def scan(self, state, gate, value):
        states = []
        for t in range(gate.shape[1]):
            state = gate[:, t] * state + (1 - gate[:, t]) * value[:, t]
            states.append(state)
        return torch.stack(states, 1), state

    def forward(self, x, attention_mask=None, past_key_values=None, use_cache=False):
        h = self.embed(x)
        real = torch.ones_like(x) if attention_mask is None else attention_mask[:, -x.shape[1] :]
        real = real[..., None].to(h.dtype)
        h = self.before(h, real)
        tail = self.tail(past_key_values, h)
        c = self.convolved(tail, h, real)
        gate, value = self.after(torch.sigmoid(self.gate(c)), torch.tanh(self.value(c)), real)
        states, state = self.scan(self.start(past_key_values, h), gate, value)
        y = self.head(states + h)
        return (y, (self.last(tail, h, real), state)) if use_cache else y
