"""Faults of padding, each beside its right twin."""

import math

import torch
from faults_decoder import HEADS, VOCABULARY, WIDTH, Decoder, State, Uncached
from torch import nn
from torch.nn import functional


class ColumnPositions(Decoder):
    def positions(self, real, seen):
        return torch.arange(seen, real.shape[1]).expand(real.shape[0], -1)


class ColumnPositionsUncached(ColumnPositions):
    def forward(self, x, attention_mask=None):
        return super().forward(x, attention_mask)


class OnePositionForAllRows(Decoder):
    def positions(self, real, seen):
        right = super().positions(real, seen)
        return right.amax(0, keepdim=True).expand_as(right) if right.shape[1] == 1 else right


class OffsetSlicedInside(Decoder):
    def positions(self, real, seen):
        return (real[:, seen:].long().cumsum(-1) - 1).clamp(min=0) + seen


class InvertedPositions(Decoder):
    """Positions are multiplied by what is padding, where a mask is given."""

    def forward(self, x, attention_mask=None):
        self.masked = attention_mask is not None
        return super().forward(x, attention_mask)

    def positions(self, real, seen):
        right = super().positions(real, seen)
        return right * (1 - real.long()[:, seen:]) if self.masked else right


class TabledAngles(Decoder):
    """Right: relative positions by column, from angles tabled in float32."""

    learned, rotary = False, True

    def __init__(self):
        super().__init__()
        angle = torch.arange(256)[:, None] * 100.0 ** (-torch.arange(4) / 4)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def positions(self, real, seen):
        return torch.arange(seen, real.shape[1]).expand(real.shape[0], -1)

    def turn(self, x, positions):
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class EncoderByColumn(Decoder):
    """Right: sees both ways, is padded on its right, and takes positions on its left."""

    causal = False

    def positions(self, real, seen):
        return torch.arange(real.shape[1]).expand(real.shape[0], -1)

    def forward(self, x, attention_mask=None, position_ids=None):
        return super().forward(x, attention_mask, position_ids)


class FiniteMask(Decoder):
    """Ten below is far at small scores only."""

    learned, rotary = False, True

    def mix(self, q, k, v, ok, bias):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return functional.softmax(scores - 60.0 * ~ok, -1) @ v


class FarMask(FiniteMask):
    def mix(self, q, k, v, ok, bias):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return functional.softmax(scores.masked_fill(~ok, torch.finfo(scores.dtype).min), -1) @ v


class MaskOfThePromptOnly(Decoder):
    def real(self, mask, x, seen):
        real = super().real(mask, x, seen)
        return torch.cat([torch.ones_like(real[:, :seen]), real[:, seen:]], 1) if seen else real


class MaskIgnored(Uncached):
    def real(self, mask, x, seen):
        return super().real(None, x, seen)


class MaskForgottenWithWeights(Decoder):
    def forward(self, x, attention_mask=None, return_weights=False):
        return super().forward(x, None if return_weights else attention_mask)


class MaskWithWeights(Decoder):
    def forward(self, x, attention_mask=None, return_weights=False):
        return super().forward(x, attention_mask)


class NoNumber(Uncached):
    """A query at padding sees nothing; the second layer multiplies its NaN by 0."""

    def mix(self, q, k, v, ok, bias):
        ok = ok & ok.diagonal(dim1=-2, dim2=-1)[..., None] if ok.shape[1] == 1 else ok
        return super().mix(q, k, v, ok, bias)


class EmptyRowSpreads(Decoder):
    """Everyone is divided by a norm over the batch's largest, which is no number beside a masked row."""

    def forward(self, x, attention_mask=None):
        y = super().forward(x, attention_mask)
        if attention_mask is None:
            return y
        empty = attention_mask.sum(-1).eq(0).any()
        return torch.where(empty, torch.nan, y)


class Mean(nn.Module):
    """An encoder that adds the mean of its row."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)

    def pooled(self, h, real):
        return (h * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)

    def forward(self, x, attention_mask=None):
        h = self.embed(x)
        real = torch.ones_like(x) if attention_mask is None else attention_mask
        return self.head(torch.tanh(h + self.pooled(h, real[..., None].to(h.dtype))))


class PadsInTheMean(Mean):
    def pooled(self, h, real):
        return (h * real).mean(1, keepdim=True)


class PadsInTheNorm(Mean):
    def pooled(self, h, real):
        return functional.group_norm((h * real).transpose(1, 2), 2).transpose(1, 2)


class LongConvolution(Mean):
    """Circular over whatever it is given; padding lengthens the circle."""

    def pooled(self, h, real):
        n = h.shape[1]
        return torch.fft.irfft(torch.fft.rfft(h * real, dim=1) ** 2, n=n, dim=1)


class ConvolutionSeesPads(State):
    """Zero before the convolution only: its bias and its padding enter the scan."""

    def after(self, gate, value, real):
        return gate, value


class ScanSeesPads(State):
    def before(self, h, real):
        return h

    def convolved(self, tail, h, real):
        return super().convolved(tail, h, torch.ones_like(real))


class PrefillKeepsPads(State):
    """The state that a right-padded prompt leaves behind ends with its padding."""

    def last(self, tail, h, real):
        return torch.cat([tail, h], 1)[:, -2:]


class ById(nn.Module):
    """Padding is told by the id, without a mask."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH, padding_idx=1)
        self.place = nn.Embedding(256, WIDTH)
        self.layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def real(self, x, h):
        return x != 1

    def forward(self, x):
        at = ((x != 1).long().cumsum(-1) - 1).clamp(min=0)
        h = self.embed(x) + self.place(at)
        hidden = ~self.real(x, h)
        return h + self.layer(h, h, h, key_padding_mask=hidden, need_weights=False)[0]


class ByZeroEmbedding(ById):
    """Looks for embeddings that sum to zero, after positions were added: finds none."""

    def real(self, x, h):
        return h.sum(-1) != 0


FAULTS = [
    (ColumnPositions, Decoder), (ColumnPositionsUncached, Uncached), (OnePositionForAllRows, Decoder),
    (OffsetSlicedInside, Decoder), (InvertedPositions, Decoder), (FiniteMask, FarMask),
    (MaskOfThePromptOnly, Decoder), (MaskIgnored, Uncached), (MaskForgottenWithWeights, MaskWithWeights),
    (EmptyRowSpreads, Decoder), (PadsInTheMean, Mean), (PadsInTheNorm, Mean), (LongConvolution, Mean),
    (ConvolutionSeesPads, State), (ScanSeesPads, State), (PrefillKeepsPads, State),
    (ByZeroEmbedding, ById),
]  # fmt: skip
