"""What only looks like a fault: right modules, each of a kind that rang a false alarm somewhere."""

import math

import torch
from faults_causal import Causal, Layer
from faults_decoder import HEADS, VOCABULARY, WIDTH, Decoder, State, Uncached
from torch import nn
from torch.nn import functional


def halved():
    """A decoder in bfloat16."""
    return Decoder().bfloat16()


class Training(nn.Module):
    """Dropout and a batch norm, left in training mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layer = nn.Embedding(VOCABULARY, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.5)
        self.train()

    def forward(self, x):
        h = self.layer(self.embed(x))[0]
        return self.drop(self.norm(h.transpose(1, 2)).transpose(1, 2))


class NoNumberAtPads(Decoder):
    """What comes out at padding is no number."""

    def forward(self, x, attention_mask=None):
        y = super().forward(x, attention_mask)
        return y if attention_mask is None else torch.where(attention_mask[..., None] == 0, torch.nan, y)


class FloatIsland(Decoder):
    """Scores and softmax in float32, whatever the rest is computed in."""

    def mix(self, q, k, v, ok, bias):
        scores = q.float() @ k.float().transpose(-1, -2) / math.sqrt(q.shape[-1])
        return functional.softmax(scores.masked_fill(~ok, -math.inf), -1).to(v.dtype) @ v


class Prefix(Causal):
    """The first six inputs see each other; so do the two of an image, at 10 and 11."""

    class Seen(Layer):
        def seen(self, time):
            ok = super().seen(time)
            ok[:6, :6] = True
            ok[10:12, 10:12] = True
            return ok

    layer = Seen


class Encoder(Uncached):
    """Sees both ways."""

    causal = False


class Forecaster(Encoder):
    """Reads a history and placeholders for what is to come, each told by the whole of the row."""

    def forward(self, x):
        history = x.shape[1] - x.shape[1] // 4
        return super().forward(torch.cat([x[:, :history], torch.zeros_like(x[:, history:])], 1))


class Experts(Layer):
    """Each input goes to the expert that it likes best, however many go there."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def kept(self, chosen):
        return torch.ones_like(chosen, dtype=torch.bool)

    def forward(self, x):
        chosen = self.router(x).argmax(-1)
        y = torch.stack([expert(x) for expert in self.experts], 2)
        y = y.gather(2, chosen[..., None, None].expand(-1, -1, 1, WIDTH))[:, :, 0]
        return y * self.kept(chosen)[..., None]


class ExpertsOfCapacity(Experts):
    """An expert takes eight inputs of a batch, first come, first served."""

    def kept(self, chosen):
        flat = functional.one_hot(chosen.T.flatten(), 3)
        return (flat.cumsum(0) * flat).sum(-1).reshape(chosen.T.shape).T <= 8


class Interleaved(Decoder):
    """Rotary pairs are neighbours instead of halves, with weights permuted to match."""

    learned, rotary = False, True

    def turn(self, x, positions):
        order = torch.arange(x.shape[-1]).view(-1, 2).T.flatten()
        return super().turn(x[..., order], positions)[..., order.argsort()]


class Sink(Decoder):
    """A key of its own that takes what weight nothing else deserves."""

    def mix(self, q, k, v, ok, bias):
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~ok, -math.inf)
        weights = functional.softmax(functional.pad(scores, (1, 0), value=0.5), -1)[..., 1:]
        return weights @ v


class FirstAndLatest(Decoder):
    """Keeps the first input beside a window of the latest, in the mask and in the cache."""

    window = 5

    def allowed(self, queries, keys):
        return super().allowed(queries, keys) | (keys[None, :] == 0) & (queries[:, None] >= 0)

    def forward(self, x, past_key_values=None, use_cache=False):
        return super().forward(x, None, None, past_key_values, use_cache)


class Unordered(Decoder):
    """No positions, on purpose; the mask alone tells of order."""

    learned = False


class ASet(Uncached):
    """Attention both ways without positions."""

    learned, causal = False, False


class ScaledByLength(Decoder):
    """Angles shrink once the longest position of the call is past twelve (dynamic scaling)."""

    learned, rotary = False, True

    def turn(self, x, positions):
        longest = (positions.max() + 1).clamp(min=12)
        return super().turn(x, positions * (12 / longest.to(x.dtype)))


class Scattered(Decoder):
    """A fixed, random choice of earlier keys."""

    def allowed(self, queries, keys):
        drawn = (queries[:, None] * 7919 + keys[None, :] * 104_729) % 1_000_003 % 3 > 0
        return super().allowed(queries, keys) & (drawn | (queries[:, None] == keys[None, :]))

    def forward(self, x, past_key_values=None, use_cache=False):
        return super().forward(x, None, None, past_key_values, use_cache)


class OfBlocks(Decoder):
    """Each input sees its own block of four, and every fourth of the earlier ones."""

    def allowed(self, queries, keys):
        ok = (queries[:, None] // 4 == keys[None, :] // 4) | (keys[None, :] % 4 == 3)
        return super().allowed(queries, keys) & ok

    def forward(self, x, past_key_values=None, use_cache=False):
        return super().forward(x, None, None, past_key_values, use_cache)


class FewerKeys(Layer):
    """Half as many keys as queries, aligned at the end: the first queries see none, and are given zeros."""

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.qkv(x).chunk(3, -1))
        n = x.shape[1]
        k, v = k[:, :, : n // 2], v[:, :, : n // 2]
        ok = torch.ones(n, n // 2, dtype=torch.bool).tril(n // 2 - n)
        weights = functional.softmax((q @ k.transpose(-1, -2)).masked_fill(~ok, -math.inf), -1)
        return (torch.where(ok.any(-1, keepdim=True), weights, 0) @ v).transpose(1, 2).flatten(2)


class Gauged(Decoder):
    """Adds to every score of a row what its place in the call says: softmax takes it off again."""

    def bias(self, queries, keys):
        return 0.3 * (queries - queries[0])[:, None]


class Skipped(State):
    """A state whose output sees the present input, besides."""

    def forward(self, x, attention_mask=None, past_key_values=None, use_cache=False):
        y = super().forward(x, attention_mask, past_key_values, use_cache)
        own = self.head(self.embed(x))
        return (y[0] + own, y[1]) if use_cache else y + own


class Grouped(Decoder):
    """Both heads share the first one's keys and values."""

    def mix(self, q, k, v, ok, bias):
        one = [t[:, :1].repeat_interleave(HEADS, 1) for t in (k, v)]
        return super().mix(q, *one, ok, bias)
