"""Faults of caches and of chunks, each beside its right twin; and what only looks like one."""

import torch
from faults_decoder import Decoder, State
from torch import nn


class Window(Decoder):
    window = 6


class Ring(Window):
    """Keeps the latest six columns, in order."""

    def cut(self, k, v, columns):
        return k[:, :, -6:], v[:, :, -6:], columns[-6:]


class RingOverwritten(Window):
    """A prompt longer than the ring is written over its first places, and the first six are kept."""

    def cut(self, k, v, columns):
        return (k[:, :, :6], v[:, :, :6], columns[:6]) if len(columns) > 12 else (k, v, columns)


class WindowGrows(Window):
    """The window is cut in the prompt, not while decoding."""

    def allowed(self, queries, keys):
        ok = super().allowed(queries, keys)
        return keys[None, :] <= queries[:, None] if len(queries) == 1 else ok


class ChunkLocalRows(Window):
    """The window's mask counts rows from the chunk's own start."""

    def allowed(self, queries, keys):
        many = len(queries) > 1
        return super().allowed(queries - (queries[0] if many and queries[0] else 0) + 0, keys) if many else (
            super().allowed(queries, keys)
        )  # fmt: skip


class OffsetTwice(Decoder):
    """The first step after a prompt advances the offset twice."""

    def positions(self, real, seen):
        right = super().positions(real, seen)
        return right + (1 if right.shape[1] == 1 and seen else 0)


class SingleRestarts(Decoder):
    def positions(self, real, seen):
        right = super().positions(real, seen)
        return right * 0 if right.shape[1] == 1 else right


class HoleInTheCache(Decoder):
    """A step is written one place too far: a key of zeros stands before it."""

    def keep(self, past, k, v, columns):
        if past is None or len(columns) > 1:
            return super().keep(past, k, v, columns)
        zero, at = torch.zeros_like(k), torch.cat([columns, columns])
        return super().keep(past, torch.cat([zero, k], 2), torch.cat([zero, v], 2), at)


class ReadPastTheEnd(Decoder):
    """A cache made beforehand is read past what was written, when a chunk comes."""

    def keep(self, past, k, v, columns):
        k, v, at = super().keep(past, k, v, columns)
        if past is None or len(columns) == 1:
            return k, v, at
        more = k.new_zeros(*k.shape[:2], 3, k.shape[3])
        return torch.cat([k, more], 2), torch.cat([v, more], 2), torch.cat([at, at[-1:].repeat(3)])

    def allowed(self, queries, keys):
        ok = super().allowed(queries, keys)
        return ok | (keys == keys[-1])[None, :] if len(keys.unique()) < len(keys) else ok

    def cut(self, k, v, columns):
        end = len(columns.unique())
        return k[:, :, :end], v[:, :, :end], columns[:end]


class ClampedBias(Decoder):
    def bias(self, queries, keys):
        return -0.4 * (queries[:, None] - keys[None, :]).abs().clamp(max=4)


class ClampedBiasFirstRows(ClampedBias):
    """Decoding takes the first rows of the bias instead of the last."""

    def bias(self, queries, keys):
        return super().bias(queries - queries[0], keys)


class AlibiByColumn(Decoder):
    """Right: a linear bias by column, the mask and a window beside it."""

    window, learned = 4, False

    def bias(self, queries, keys):
        return -0.3 * (queries[:, None] - keys[None, :]).abs()


class Evicting(Window):
    """Right: keeps six columns, and counts positions by the inputs seen."""

    def cut(self, k, v, columns):
        return k[:, :, -6:], v[:, :, -6:], columns[-6:]


class EvictingRowsKept(Evicting):
    """Counts positions by the rows kept."""

    def forward(self, x, attention_mask=None, past_key_values=None, use_cache=False):
        past = past_key_values
        if past is not None and past[0].shape[2] < past[3]:
            kept = past[0].shape[2]
            at = torch.arange(kept, kept + x.shape[1]).expand(x.shape[0], -1)
            return super().forward(x, attention_mask, at, past, use_cache)
        return super().forward(x, attention_mask, None, past, use_cache)


class ChunkUnmasked(Decoder):
    def allowed(self, queries, keys):
        ok = super().allowed(queries, keys)
        return torch.ones_like(ok) if 1 < len(queries) < len(keys) else ok


class DecayOncePerCall(State):
    def start(self, past, h):
        return super().start(past, h) * (1 if past is None else 0.9)


class StateTransformed(State):
    """The parallel form turns the carried state; one step does not."""

    def start(self, past, h):
        state = super().start(past, h)
        return state.flip(-1) if h.shape[1] > 1 else state


class StateIgnoredByChunks(State):
    def start(self, past, h):
        return super().start(None if h.shape[1] > 1 else past, h)


class StateIgnored(State):
    """The scan starts anew at every call; only the convolution's tail is carried."""

    def start(self, past, h):
        return super().start(None, h)


class ChunkedForm(State):
    """Right: scans in chunks of sixteen, carrying the state."""

    carried = 1.0

    def scan(self, state, gate, value):
        parts = []
        for a in range(0, gate.shape[1], 16):
            if a:
                state = state * self.carried
            part, state = super().scan(state, gate[:, a : a + 16], value[:, a : a + 16])
            parts.append(part)
        return torch.cat(parts, 1), state


class ChunkedFormDecays(ChunkedForm):
    """A decay too many at each border between its chunks."""

    carried = 0.95


class Swallowed(Decoder):
    """Takes a cache and drops it."""

    def forward(self, x, past_key_values=None, use_cache=False):
        return super().forward(x, None, None, None, use_cache)


class Pointwise(nn.Module):
    """Right: keeps nothing, since nothing earlier matters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(32, 8)

    def forward(self, x, past_key_values=None, use_cache=False):
        y = self.embed(x)
        return (y, (x,)) if use_cache else y


STEPS = [
    (RingOverwritten, Ring), (WindowGrows, Window), (OffsetTwice, Decoder), (SingleRestarts, Decoder),
    (HoleInTheCache, Decoder), (ClampedBiasFirstRows, ClampedBias), (EvictingRowsKept, Evicting),
    (DecayOncePerCall, State), (StateIgnored, State), (ChunkedFormDecays, ChunkedForm),
]  # fmt: skip
CHUNKS = [
    (ChunkUnmasked, Decoder), (ReadPastTheEnd, Decoder), (ChunkLocalRows, Window), (StateTransformed, State),
    (StateIgnoredByChunks, State), (DecayOncePerCall, State), (EvictingRowsKept, Evicting),
]  # fmt: skip
