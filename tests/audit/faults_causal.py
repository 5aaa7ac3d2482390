"""Faults of causality, of windows, of batches and of carried states, each beside its right twin."""

import math

import torch
from faults_cache import Window
from faults_decoder import HEADS, VOCABULARY, WIDTH, Decoder, Uncached
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """Causal attention over vectors, open where its mask is made and used."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        with torch.no_grad():
            self.qkv.weight.mul_(2)

    def heads(self, x):
        return x.view(*x.shape[:2], HEADS, -1).transpose(1, 2)

    def seen(self, time):
        return torch.ones(time, time, dtype=torch.bool).tril()

    def fill(self, scores, ok):
        return scores.masked_fill(~ok, -math.inf)

    def weights(self, scores, ok):
        return functional.softmax(self.fill(scores, ok), -1)

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        y = self.weights(scores, self.seen(scores.shape[-1])) @ v
        return y.transpose(1, 2).reshape(x.shape)


class Causal(nn.Module):
    """Tokens in, logits out: layers of a kind with a residual around each."""

    layer, layers = Layer, 1

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.mixers = nn.ModuleList(self.layer() for _ in range(self.layers))

    def mixed(self, h):
        for mixer in self.mixers:
            h = h + mixer(h)
        return h

    def forward(self, x):
        return self.head(self.mixed(self.embed(x)))


def of(layer):
    """A model of one layer of this kind, named after it."""
    return type(layer.__name__, (Causal,), {"layer": layer, "__doc__": layer.__doc__})


# The mask of a path.


class WeightsAsked(Causal):
    """Right: a path by hand where the weights are asked for."""

    def mixed(self, h):
        for mixer in self.mixers:
            q, k, v = (mixer.heads(t) for t in mixer.qkv(h).chunk(3, -1))
            if self.slow():
                y = mixer.weights(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), self.by_hand(mixer, h))
                y = y @ v
            else:
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + y.transpose(1, 2).flatten(2)
        return h

    asked = False

    def slow(self):
        return self.asked

    def by_hand(self, mixer, h):
        return mixer.seen(h.shape[1])

    def forward(self, x, output_attentions=False):
        self.asked = output_attentions
        return super().forward(x)


class MaskOnTheFusedPathOnly(WeightsAsked):
    def by_hand(self, mixer, h):
        return torch.ones(h.shape[1], h.shape[1], dtype=torch.bool)


class WeightsInTraining(WeightsAsked):
    """Right: the slow path is taken while dropout is on."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def slow(self):
        return self.training

    def mixed(self, h):
        return super().mixed(self.drop(h))

    def forward(self, x):
        return Causal.forward(self, x)


class MaskForgottenUnderDropout(WeightsInTraining):
    by_hand = MaskOnTheFusedPathOnly.by_hand


class PaddingInsteadOfCausality(Uncached):
    """Where a padding mask is given it takes the place of the causal one."""

    def forward(self, x, attention_mask=None):
        self.given = attention_mask is not None
        return super().forward(x, attention_mask)

    def allowed(self, queries, keys):
        ok = super().allowed(queries, keys)
        return torch.ones_like(ok) if self.given else ok


class Dropped(Layer):
    """The result of masked_fill is thrown away."""

    def fill(self, scores, ok):
        scores.masked_fill(~ok, -math.inf)
        return scores


class Transposed(Layer):
    """The mask is of the wrong side of the diagonal, the diagonal itself beside it."""

    def seen(self, time):
        return torch.ones(time, time, dtype=torch.bool).triu()


class HeadsOfTime(Layer):
    """Heads cut by a view without a transpose: each is a slice of time."""

    def heads(self, x):
        return x.reshape(x.shape[0], HEADS, x.shape[1], -1)


class LowMask(Layer):
    """A constant far below ordinary scores is added: raised scores pass it."""

    def fill(self, scores, ok):
        return scores - 100.0 * ~ok


class LowestMask(Layer):
    """Right: the lowest number there is."""

    def fill(self, scores, ok):
        return scores.masked_fill(~ok, torch.finfo(scores.dtype).min)


class OneTooMany(Layer):
    """Sees the next input too."""

    def seen(self, time):
        return torch.ones(time, time, dtype=torch.bool).tril(1)


class UpToALength(Layer):
    """A mask made once, for 48 inputs; whatever is longer is not masked beyond it."""

    size = 48

    def seen(self, time):
        ok = torch.ones(time, time, dtype=torch.bool)
        ok[: self.size, : self.size] = ok[: self.size, : self.size].tril()
        return ok


class UpTo200(UpToALength):
    size = 200


class LeavesTheLast(Layer):
    """The mask is off by the length: the last input is seen by everyone."""

    def seen(self, time):
        ok = super().seen(time)
        ok[:, -1] = True
        return ok


class Deep(Causal):
    """Right: four layers."""

    layers = 4


class OneLayerUnmasked(Deep):
    """The mask fails in the last of four layers."""

    def __init__(self):
        super().__init__()
        self.mixers[3] = Dropped()


class OneHead(Layer):
    """One of the heads is not masked."""

    def fill(self, scores, ok):
        both = ok.repeat(HEADS, 1, 1)
        both[-1] = True
        return super().fill(scores, both)


# Other mixers than softmax attention.


class Linear(Layer):
    """Right: attention by a kernel, normalised over what was seen."""

    def total(self, k):
        return k.cumsum(2)

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.qkv(x).chunk(3, -1))
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        state = torch.einsum("bhtk,bhtv->bhtkv", k, v).cumsum(2)
        norm = torch.einsum("bhtk,bhtk->bht", q, self.total(k).expand_as(k))
        y = torch.einsum("bhtk,bhtkv->bhtv", q, state) / norm[..., None]
        return y.transpose(1, 2).flatten(2)


class LinearOverAllKeys(Linear):
    """The norm is the sum over all keys."""

    def total(self, k):
        return k.sum(2, keepdim=True)


class Gated(Layer):
    """Right: a gate from the mean of what was read."""

    def mean(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]

    def forward(self, x):
        return torch.sigmoid(self.mean(x)) * super().forward(x)


class GatedByAll(Gated):
    """The gate is made of the mean of the whole sequence."""

    def mean(self, x):
        return x.mean(1, keepdim=True)


class CumulativeSoftmax(Layer):
    """Right: the running softmax of one score an input."""

    def share(self, score):
        weight = (score - score.amax(1, keepdim=True)).exp()
        return weight, weight.cumsum(1)

    def forward(self, x):
        score, _, v = self.qkv(x).chunk(3, -1)
        weight, total = self.share(score)
        return (weight * v).cumsum(1) / total


class SoftmaxThenSum(CumulativeSoftmax):
    """Softmax over the whole sequence, and then a cumulative sum."""

    def share(self, score):
        return functional.softmax(score, 1), 1


class Blocks(Layer):
    """Right: keys are means of blocks of four, and a block is seen once it is finished."""

    block = 4

    def seen(self, time):
        at = torch.arange(time)
        finished = (torch.arange(-(-time // self.block)) + 1) * self.block
        return finished[None, :] <= at[:, None] + 1

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.qkv(x).chunk(3, -1))
        pad = -x.shape[1] % self.block
        k, v = (functional.pad(t, (0, 0, 0, pad)).unflatten(2, (-1, self.block)).mean(3) for t in (k, v))
        k, v = (torch.cat([t, torch.zeros_like(t[:, :, :1])], 2) for t in (k, v))
        ok = torch.cat([self.seen(x.shape[1]), torch.ones(x.shape[1], 1, dtype=torch.bool)], 1)
        return (self.weights(q @ k.transpose(-1, -2), ok) @ v).transpose(1, 2).flatten(2)


class CurrentBlockSeen(Blocks):
    """The block that is being read is seen already."""

    def seen(self, time):
        at = torch.arange(time) // self.block
        return torch.arange(-(-time // self.block))[None, :] <= at[:, None]


class LongBlocksSeen(CurrentBlockSeen):
    """The same, with blocks of 64, of which the first is still masked."""

    block = 64

    def seen(self, time):
        ok = super().seen(time)
        ok[: self.block] = Blocks.seen(self, time)[: self.block]
        return ok


class LongBlocks(Blocks):
    block = 64


class Dilated(nn.Module):
    """Right: a dilated convolution, padded on the left by all that it reaches."""

    dilation, stride, short = 3, 1, 0

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, stride=self.stride, dilation=self.dilation)

    def forward(self, x):
        reach = 2 * self.dilation
        h = functional.pad(x.transpose(1, 2), (reach - self.short, self.short))
        return self.conv(h).repeat_interleave(self.stride, 2)[..., : x.shape[1]].transpose(1, 2)


class DilatedTooLittle(Dilated):
    """Padded for a convolution without dilation."""

    short = 4


class Strided(Dilated):
    """Right: every second output is kept, for the two inputs from its own on."""

    stride, dilation = 2, 1


class StridedTooLittle(Strided):
    short = 1


class Plane(nn.Module):
    """Right: a convolution over time and width, padded on the left of time."""

    pads = (1, 1, 2, 0)

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3)

    def forward(self, x):
        return self.conv(functional.pad(x[:, None], self.pads))[:, 0]


class PlanePaddedAcross(Plane):
    """The causal padding is on the axis of width."""

    pads = (2, 0, 1, 1)


CAUSAL = [
    (MaskOnTheFusedPathOnly, WeightsAsked), (MaskForgottenUnderDropout, WeightsInTraining),
    (PaddingInsteadOfCausality, Uncached), (of(LinearOverAllKeys), of(Linear)),
    (of(GatedByAll), of(Gated)), (of(DilatedTooLittle), of(Dilated)), (of(StridedTooLittle), of(Strided)),
    (of(PlanePaddedAcross), of(Plane)), (of(SoftmaxThenSum), of(CumulativeSoftmax)),
    (of(CurrentBlockSeen), of(Blocks)), (of(LongBlocksSeen), of(LongBlocks)), (of(HeadsOfTime), of(Layer)),
    (of(Dropped), of(Layer)), (of(Transposed), of(Layer)), (of(LowMask), of(LowestMask)),
    (of(OneTooMany), of(Layer)), (of(LeavesTheLast), of(Layer)), (of(UpToALength), of(Layer)),
    (of(UpTo200), of(Layer)), (of(OneHead), of(Layer)), (OneLayerUnmasked, Deep),
]  # fmt: skip


class PaddedLayer(Layer):
    """Right: padding is seen by nobody but itself."""

    real = None

    def seen(self, time):
        ok = super().seen(time)
        return ok if self.real is None else ok & self.real[:, None, None, :] | self.itself(time)

    def itself(self, time):
        return torch.eye(time, dtype=torch.bool)


class PaddedTwice(Causal):
    """Right: two layers with a mask for padding."""

    layer, layers = PaddedLayer, 2

    def forward(self, x, attention_mask=None):
        for mixer in self.mixers:
            mixer.real = None if attention_mask is None else attention_mask.bool()
        return super().forward(x)


class NothingToSee(PaddedLayer):
    """Padding on the left sees nothing, and is no number after the softmax."""

    def itself(self, time):
        return torch.zeros(time, time, dtype=torch.bool)


class NoNumberSpreads(PaddedTwice):
    """What is no number at padding is multiplied by zero in the next layer, and spreads."""

    layer = NothingToSee


# Windows.


class WindowOneMore(Window):
    def allowed(self, queries, keys):
        back = queries[:, None] - keys[None, :]
        return (back >= 0) & (back <= self.window)


class CacheCut(Decoder):
    """Right: a step sees what the cache keeps, which is the window."""

    window = 6

    def allowed(self, queries, keys):
        if len(queries) == 1 and len(keys) > 1:
            return torch.ones(1, len(keys), dtype=torch.bool)
        return super().allowed(queries, keys)

    kept = 5

    def cut(self, k, v, columns):
        return k[:, :, -self.kept :], v[:, :, -self.kept :], columns[-self.kept :]


class CacheNotCut(CacheCut):
    """The cache keeps one input more than a step may see beside itself."""

    kept = 6


class WindowOfShortPrompts(Window):
    """The window is forgotten in prompts longer than a hundred."""

    def allowed(self, queries, keys):
        ok = super().allowed(queries, keys)
        return queries[:, None] >= keys[None, :] if len(queries) > 100 else ok


REACH = [(WindowOneMore, Window), (CacheNotCut, CacheCut), (WindowOfShortPrompts, Window)]
"""Under routing.reach=6."""


# Batches.


class BatchFirst(nn.Module):
    """Right: torch's own layer over vectors, told that rows come first."""

    first = True

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=self.first)

    def forward(self, x):
        return self.layer(x)


class BatchFirstForgotten(BatchFirst):
    first = False


class Recurrent(BatchFirst):
    """Right: torch's own recurrence."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(WIDTH, WIDTH, batch_first=self.first)

    def forward(self, x):
        return self.layer(x)[0]


class RecurrentOverRows(Recurrent):
    first = False


class Stabilised(Linear):
    """Right: keys are exponentials, less the first key's largest entry of each row."""

    def largest(self, k):
        return k[:, :, :1].amax((1, 2, 3), keepdim=True)

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.qkv(x).chunk(3, -1))
        q, k = q.exp(), (k - self.largest(k)).exp() + 1e-2
        state = torch.einsum("bhtk,bhtv->bhtkv", k, v).cumsum(2)
        y = (
            torch.einsum("bhtk,bhtkv->bhtv", q, state)
            / torch.einsum("bhtk,bhtk->bht", q, k.cumsum(2))[..., None]
        )
        return y.transpose(1, 2).flatten(2)


class StabilisedByBatch(Stabilised):
    """The largest entry of the whole batch."""

    def largest(self, k):
        return k[:, :, :1].max()


class StabiliserCancels(Layer):
    """Right: the largest score of the batch is taken off, and cancels in the quotient."""

    def weights(self, scores, ok):
        weight = (scores - scores.max()).exp() * ok
        return weight / weight.sum(-1, keepdim=True)


class Slots(nn.Module):
    """Right: a recurrence whose state lies in a slot for each request, between the calls too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.gate, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def slot(self, requests):
        return requests

    def written(self, slots, x):
        table = x.new_zeros(int(slots.max()) + 1, WIDTH)
        table[slots] = x
        return table

    def forward(self, x, past_key_values=None, use_cache=False):
        h = self.embed(x)
        gate, value = torch.sigmoid(self.gate(h)), torch.tanh(self.value(h))
        slots = self.slot(torch.arange(x.shape[0]))
        table = past_key_values
        state, ys = h.new_zeros(x.shape[0], WIDTH) if table is None else table[slots], []
        for t in range(x.shape[1]):
            state = self.step(slots, state, gate[:, t], value[:, t])
            ys.append(state)
        y = self.head(torch.stack(ys, 1))
        return (y, self.written(slots, state)) if use_cache else y

    def step(self, slots, state, gate, value):
        return gate * state + (1 - gate) * value


class SlotByModulo(Slots):
    """Four slots, one for each request by its number modulo four; met between the calls alone."""

    capacity = 4

    def slot(self, requests):
        return requests % self.capacity


class SlotOfSixteen(SlotByModulo):
    """Sixteen slots, used within a call too."""

    capacity = 16

    def step(self, slots, state, gate, value):
        return self.written(slots, super().step(slots, state, gate, value))[slots]


class TableOverTime(Causal):
    """Right: a table of positions along time."""

    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(512, WIDTH)

    def placed(self, h):
        return self.place.weight[: h.shape[1]]

    def mixed(self, h):
        return super().mixed(h + self.placed(h))


class TableOverRows(TableOverTime):
    """The table runs along the batch."""

    def placed(self, h):
        return self.place.weight[: h.shape[0], None]


class NormOverRows(Causal):
    """Centred and scaled by the statistics of the batch, in eval mode too."""

    def mixed(self, h):
        return super().mixed((h - h.mean((0, 1))) / (h.std((0, 1)) + 1))


ROWS = [
    (BatchFirstForgotten, BatchFirst), (RecurrentOverRows, Recurrent),
    (of(StabilisedByBatch), of(Stabilised)), (SlotByModulo, Slots), (SlotOfSixteen, Slots),
    (TableOverRows, TableOverTime), (NormOverRows, Causal),
]  # fmt: skip
VECTORS = (BatchFirst, nn.Identity)
"""What reads vectors; all else here reads tokens."""


# Carried states.


class Matrix(nn.Module):
    """Right: a state of one matrix a row, read in chunks of eight, each carried on from the last."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def start(self, past, many):
        return past

    def norm(self, k, total):
        return total + k.cumsum(1)

    def decay(self, time):
        return torch.ones(time)

    def forward(self, x, past_key_values=None, use_cache=False):
        h = self.embed(x)
        q, k, v = self.qkv(h).chunk(3, -1)
        q, k = q.exp(), k.exp()
        if past_key_values is None:
            state, total = h.new_zeros(len(h), WIDTH, WIDTH), h.new_zeros(len(h), 1, WIDTH)
        else:
            state, total = self.start(past_key_values[0], x.shape[1] > 1), past_key_values[1]
        ys = []
        for a in range(0, x.shape[1], 8):
            b, c, d = (t[:, a : a + 8] for t in (q, k, v))
            states = state[:, None] + torch.einsum("btk,btv->btkv", c, d).cumsum(1)
            totals = self.norm(c, total)
            ys.append(torch.einsum("btk,btkv->btv", b, states) / (b * totals).sum(-1, keepdim=True))
            state, total = states[:, -1], total + c.sum(1, keepdim=True)
        y = self.head(h + torch.cat(ys, 1))
        return (y, (state, total)) if use_cache else y


class MatrixTransposed(Matrix):
    """The carried matrix is read transposed, by one step and by many."""

    def start(self, past, many):
        return past.transpose(1, 2)


class MatrixTransposedByChunks(Matrix):
    """The parallel form reads the carried matrix transposed, one step does not."""

    def start(self, past, many):
        return past.transpose(1, 2) if many else past


class NormOfTheChunk(Matrix):
    """Each chunk is divided by its own sum of keys, not by all that was read."""

    def norm(self, k, total):
        return k.cumsum(1)


class RelativeBias(Decoder):
    """Right: a learned bias of the distance, up to twelve."""

    learned = False

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(13))

    def bias(self, queries, keys):
        return self.table[(queries[:, None] - keys[None, :]).clamp(0, 12)]


class RelativeBiasFromTheStart(RelativeBias):
    """The length of the cache is not added to the queries' places."""

    def bias(self, queries, keys):
        return super().bias(queries - queries[0], keys)


class SingleWithoutPosition(Decoder):
    """No position is added to an input of length 1."""

    def forward(self, x, attention_mask=None, past_key_values=None, use_cache=False):
        self.learned = x.shape[1] > 1
        return super().forward(x, attention_mask, None, past_key_values, use_cache)


CARRIED = [
    (MatrixTransposed, Matrix), (NormOfTheChunk, Matrix), (RelativeBiasFromTheStart, RelativeBias),
    (SingleWithoutPosition, Decoder),
]  # fmt: skip
"""Under routing.cache."""
CHUNKED = [(MatrixTransposedByChunks, Matrix), (RelativeBiasFromTheStart, RelativeBias)]
"""Under routing.chunks."""
