"""Faults of packing and of backends, each beside its right twin."""

import math

import torch
from faults_decoder import HEADS, WIDTH, Decoder, Uncached
from torch import nn
from torch.nn import functional


class Isolating(Decoder):
    """Keeps documents apart, told by positions that start anew, on every path."""

    told = None

    def forward(self, x, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False):
        self.told = None
        if past_key_values is None and self.tells(attention_mask, position_ids, use_cache):
            self.told = (position_ids == 0).cumsum(-1)
        return super().forward(x, attention_mask, position_ids, past_key_values, use_cache)

    def tells(self, mask, positions, use_cache):
        return positions is not None

    def allowed(self, queries, keys):
        ok = super().allowed(queries, keys)
        return ok if self.told is None else ok & (self.told[:, None, :, None] == self.told[:, None, None, :])


class IsolatingRelative(Isolating):
    learned, rotary = False, True


class OffUnderAMask(Isolating):
    def tells(self, mask, positions, use_cache):
        return positions is not None and mask is None


class OffUnderACache(Isolating):
    def tells(self, mask, positions, use_cache):
        return positions is not None and not use_cache


class NotIsolated(Decoder):
    def forward(self, x, position_ids=None):
        return super().forward(x, None, position_ids)


class IsolatingByOption(Isolating):
    def forward(self, x, position_ids=None, fused=False):
        return super().forward(x, None, position_ids)


class FusedSeesAll(Isolating):
    """The fused path forgets the documents' mask, and keeps the positions."""

    fused = False

    def forward(self, x, position_ids=None, fused=False):
        self.fused = fused
        return super().forward(x, None, position_ids)

    def tells(self, mask, positions, use_cache):
        return positions is not None and not self.fused


class PositionsSwallowed(Decoder):
    def forward(self, x, attention_mask=None, position_ids=None):
        return super().forward(x, attention_mask)


class Grouped(nn.Module):
    """Four query heads on two key heads; a fused path and one by hand."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def spread(self, x):
        return x.repeat_interleave(2, 1)

    def masked(self, ok):
        return ok

    def forward(self, x, attention_mask=None, fused=True):
        ok = torch.ones(x.shape[1], x.shape[1]).tril().bool()[None, None]
        if attention_mask is not None:
            ok = ok & attention_mask.bool()[:, None, None, :] | torch.eye(x.shape[1]).bool()
        q = self.q(x).view(*x.shape[:2], 4, -1).transpose(1, 2)
        k, v = (t.view(*x.shape[:2], 2, -1).transpose(1, 2) for t in self.kv(x).chunk(2, -1))
        if fused:
            k, v = (t.repeat_interleave(2, 1) for t in (k, v))
            return functional.scaled_dot_product_attention(q, k, v, ok).transpose(1, 2).flatten(2)
        k, v = self.spread(k), self.spread(v)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~self.masked(ok), -math.inf)
        return (functional.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


class GroupedTiled(Grouped):
    def spread(self, x):
        return x.repeat(1, 2, 1, 1)


class MaskIgnoredByHand(Grouped):
    def masked(self, ok):
        return torch.ones_like(ok[:1]).tril()


class WindowByHand(Uncached):
    """Right by hand, and wrong by half where the kernel is asked for its weights."""

    causal, right = False, 4

    def allowed(self, queries, keys):
        back = queries[:, None] - keys[None, :]
        return (back < 4) & (-back < self.right)

    def forward(self, x, attention_mask=None, output_attentions=False):
        return super().forward(x, attention_mask)


class WindowHalved(WindowByHand):
    def forward(self, x, attention_mask=None, output_attentions=False):
        self.right = 2 if output_attentions else 4
        return super().forward(x, attention_mask)


class Flash(Uncached):
    """Chooses its path by an attribute, as many small models do."""

    scale = None

    def __init__(self):
        super().__init__()
        self.flash = True

    def mix(self, q, k, v, ok, bias):
        if self.flash:
            return functional.scaled_dot_product_attention(q, k, v, ok)
        scores = q @ k.transpose(-1, -2) * (self.scale or q.shape[-1] ** -0.5)
        return functional.softmax(scores.masked_fill(~ok, -math.inf), -1) @ v


class FlashScaled(Flash):
    scale = 0.3


class Layers(nn.Module):
    """Torch's own encoder layer, which takes a fast path in eval mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)

    def forward(self, x, attention_mask=None):
        hidden = None if attention_mask is None else attention_mask == 0
        return self.layer(x, src_key_padding_mask=hidden)


class MeansAnother(Grouped):
    """Right: an option that changes what is computed, and says so."""

    def forward(self, x, bidirectional=False):
        y = super().forward(x)
        return y.flip(1) if bidirectional else y


PACKING = [
    (OffUnderAMask, Isolating), (OffUnderACache, Isolating), (NotIsolated, IsolatingRelative),
    (FusedSeesAll, IsolatingByOption),
]  # fmt: skip
BACKENDS = [
    (GroupedTiled, Grouped), (MaskIgnoredByHand, Grouped), (WindowHalved, WindowByHand), (FlashScaled, Flash),
]  # fmt: skip
