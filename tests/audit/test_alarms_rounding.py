"""What passes for rounding, and what does not: on models that are right, and beside them on faulty ones."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from whyformer import audit

TIME = 24


class Mixer(nn.Module):
    """Embeds 64 tokens; a subclass mixes the vectors h of shape (batch, time, 16)."""

    def __init__(self, faulty=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.faulty = nn.Embedding(64, 16), faulty

    def forward(self, x):
        return self.mix(self.embed(x))


def verdicts(model, *claims, **more):
    return {f.claim: f.verdict for f in audit(model, tokens=64, claims=claims, **more).findings}


class MultiHead(Mixer):
    """Torch's own attention, whose causal mask is forgotten where the weights are asked for."""

    def __init__(self, faulty):
        super().__init__(faulty)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x, need_weights=False):
        h, later = self.embed(x), torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        seen = None if self.faulty and need_weights else later
        y, weights = self.attend(+h, +h, +h, attn_mask=seen, need_weights=need_weights)
        return (y, weights) if need_weights else y


@pytest.mark.parametrize(("faulty", "verdict"), [(True, "refuted"), (False, "holds")])
def test_torchs_attention_is_judged(faulty, verdict):
    met = verdicts(MultiHead(faulty), "routing.causal", "routing.backends")
    assert set(met.values()) == {verdict}


class NoModes(Mixer):
    """Refuses to run where operations are watched, as jitter watches them."""

    def mix(self, h):
        if torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            raise RuntimeError("not here")
        y = h.cumsum(1)
        return y + 1e-3 * h.mean((0, 1)) if self.faulty else y + 0 * h.mean((0, 1))


@pytest.mark.parametrize(("faulty", "verdict"), [(True, "refuted"), (False, "holds")])
def test_what_raises_under_jitter_alone_is_judged(faulty, verdict):
    assert verdicts(NoModes(faulty), "routing.batch")["routing.batch"] == verdict


class KeptState(Mixer):
    """Starts a request from the state that the last one left, where it is faulty."""

    state = None

    def forward(self, x, past_key_values=None, use_cache=False):
        h = self.embed(x)
        if not use_cache:
            return h.cumsum(1)
        state = past_key_values if past_key_values is not None else torch.zeros_like(h[:, :1])
        if self.faulty and self.state is not None and self.state.shape == state.shape:
            state = self.state.to(h.dtype)
        y = h.cumsum(1) + state
        self.state = y[:, -1:]
        return y, self.state


def test_state_that_is_kept_between_requests_is_no_rounding():
    met = verdicts(KeptState(True), "routing.cache", "routing.repeatable")
    assert met == {"routing.cache": "inconclusive", "routing.repeatable": "refuted"}
    met = verdicts(KeptState(False), "routing.cache", "routing.repeatable")
    assert set(met.values()) == {"holds"}


class RandomSight(Mixer):
    """Causal attention to inputs drawn anew at every call, sharp enough to come out the same often."""

    def mix(self, h):
        time = h.shape[1]
        seen = (torch.rand(time, time) < 0.5).tril() | torch.eye(time, dtype=torch.bool)
        return (h @ h.transpose(1, 2)).masked_fill(~seen, -math.inf).softmax(-1) @ h


@pytest.mark.parametrize("seed", [7, 31])
def test_random_attention_refutes_repeatable_alone(seed):
    met = verdicts(RandomSight().double(), "routing.causal", "routing.repeatable", seed=seed)
    assert met == {"routing.causal": "inconclusive", "routing.repeatable": "refuted"}


class Stabilised(Mixer):
    """Causal linear attention that takes one maximum over all times off its keys, which cancels out."""

    def __init__(self, faulty=False):
        super().__init__(faulty)
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        with torch.no_grad():
            self.k.weight.mul_(6)

    def mix(self, h):
        q, k = self.q(h).softmax(-1), self.k(h)
        top = k.amax((1, 2), keepdim=True)
        k = (k - top).exp()
        state = torch.einsum("btk,btv->btkv", k, self.v(h)).cumsum(1)
        y = torch.einsum("btk,btkv->btv", q, state)
        return y if self.faulty else y / torch.einsum("btk,btk->bt", q, k.cumsum(1))[..., None]


class WholeRowMaximum(Stabilised):
    """Softmax by hand: the maximum of all scores is taken off before the later ones are struck out."""

    def mix(self, h):
        scores = self.q(h) @ self.k(h).transpose(1, 2) / 4
        scores = scores.softmax(-1).log() if self.faulty else scores - scores.amax(-1, keepdim=True)
        weights = scores.exp().tril()
        return weights / (1 if self.faulty else weights.sum(-1, keepdim=True)) @ self.v(h)


@pytest.mark.parametrize("model", [Stabilised, WholeRowMaximum])
def test_a_stabiliser_that_cancels_is_no_leak(model):
    for seed in (7, 31):
        assert verdicts(model(), "routing.causal", seed=seed)["routing.causal"] in {"holds", "inconclusive"}
    assert verdicts(model(True), "routing.causal")["routing.causal"] == "refuted"


class NoNorms(Mixer):
    """Two layers of attention without norms, whose mask is a finite number."""

    def __init__(self, masked):
        super().__init__()
        self.masked = masked
        self.ways = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def mix(self, h):
        later = torch.ones(h.shape[1], h.shape[1], dtype=h.dtype).triu(1) * self.masked
        for way, out in zip(self.ways, self.outs, strict=True):
            q, k, v = way(h).chunk(3, -1)
            h = h + out((q @ k.transpose(1, 2) / 4 + later).softmax(-1) @ v)
        return h


@pytest.mark.parametrize(("masked", "verdict"), [(-1e9, "holds"), (-50.0, "refuted")])
def test_a_finite_mask_is_asked_for_no_more_than_layers_can_raise(masked, verdict):
    assert verdicts(NoNorms(masked), "routing.causal")["routing.causal"] == verdict


class MaskOnOnePath(Mixer):
    """Ignores a mask on its default path, where it is faulty, and uses it on the other."""

    def forward(self, x, attention_mask=None, use_sdpa=True):
        h = self.embed(x)
        added = torch.zeros(1, 1, 1, dtype=h.dtype)
        if attention_mask is not None:
            added = (1 - attention_mask[:, None].to(h.dtype)) * -1e30
        if use_sdpa:
            time = x.shape[1]
            added = None if self.faulty else added.expand(len(x), time, time)
            return functional.scaled_dot_product_attention(h, h, h, attn_mask=added)
        return (h @ h.transpose(1, 2) / 4 + added).softmax(-1) @ h


@pytest.mark.parametrize(("faulty", "verdict"), [(True, "refuted"), (False, "holds")])
def test_a_mask_that_one_path_ignores_is_met(faulty, verdict):
    assert verdicts(MaskOnOnePath(faulty), "routing.backends")["routing.backends"] == verdict


class CoarseAngles(Mixer):
    """Rotary positions whose angles are counted in bfloat16."""

    def forward(self, x, position_ids=None):
        h = self.embed(x)
        places = torch.arange(x.shape[1])[None] if position_ids is None else position_ids
        slow = (10000.0 ** (-torch.arange(8) / 8)).bfloat16()
        angles = (places[..., None].bfloat16() * slow).float()
        c, s = angles.cos().to(h.dtype), angles.sin().to(h.dtype)
        a, b = h.chunk(2, -1)
        turned = torch.cat([a * c - b * s, a * s + b * c], -1)
        scores = turned @ turned.transpose(1, 2) / 4
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -math.inf).softmax(-1) @ h


@pytest.mark.parametrize("seed", [7, 31])
def test_positions_of_low_precision_are_used_all_the_same(seed):
    assert verdicts(CoarseAngles(), "order.resolution=1000", seed=seed)["order.resolution"] == "refuted"
