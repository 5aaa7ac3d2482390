"""Claims as assertions: they pass where a claim holds, and else fail with the witness or the reason."""

import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from whyformer import testing
from whyformer.errors import UsageError
from whyformer.finding import Verdict

TOKENS, WIDTH = 16, 8


class Convolution(nn.Module):
    """Causal over three tokens; where it leaks, the next one is seen."""

    pads = (2, 0)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.conv = nn.Embedding(TOKENS, WIDTH), nn.Conv1d(WIDTH, TOKENS, 3)

    def forward(self, x):
        return self.conv(nn.functional.pad(self.table(x).transpose(1, 2), self.pads)).transpose(1, 2)


class Leaks(Convolution):
    pads = (1, 1)


class Running(nn.Module):
    """The mean of what was read, with a mask, a cache and positions that only shift."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(TOKENS, WIDTH)

    def forward(self, x, attention_mask=None, past_key_values=None, use_cache=False):
        h = self.table(x)
        real = torch.ones_like(x) if attention_mask is None else attention_mask[:, -x.shape[1] :]
        total, count = (0, 0) if past_key_values is None else past_key_values
        sums = total + (h * real[..., None]).cumsum(1)
        counts = count + real.cumsum(1)[..., None]
        y = torch.tanh(h + sums / counts.clamp(min=1))
        return (y, (sums[:, -1:], counts[:, -1:])) if use_cache else y


class Apart(nn.Module):
    """Documents are told apart by positions that start anew."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(TOKENS, WIDTH)

    def forward(self, x, position_ids=None):
        h = self.table(x)
        at = torch.arange(x.shape[1]).expand(x.shape) if position_ids is None else position_ids
        told = (at == 0).cumsum(1)
        ok = (told[:, :, None] == told[:, None]) & torch.ones(x.shape[1], x.shape[1]).tril().bool()
        bias = -0.3 * (at[:, :, None] - at[:, None]).to(h.dtype)
        scores = (h @ h.transpose(1, 2) + bias).masked_fill(~ok, -torch.inf)
        return torch.softmax(scores, -1) @ h


class LooksUp(nn.Module):
    """Names what followed the latest earlier twin."""

    def forward(self, x):
        time = torch.arange(x.shape[1])
        twin = (x[:, :, None] == x.roll(1, 1)[:, None]) & (time > 0) & (time[None, :] <= time[:, None])
        at = torch.where(twin, time, -1).amax(-1).clamp(min=0)
        return nn.functional.one_hot(x.gather(1, at), 64).float()


HOLD = [
    (testing.assert_causal, (Convolution(),), {"tokens": TOKENS}),
    (testing.assert_reach, (Convolution(), 3), {"tokens": TOKENS}),
    (testing.assert_batch_invariant, (Convolution(),), {"tokens": TOKENS}),
    (testing.assert_padding_invariant, (Running(),), {"tokens": TOKENS}),
    (testing.assert_cache_consistent, (Running(),), {"tokens": TOKENS}),
    (testing.assert_chunks_consistent, (Running(),), {"tokens": TOKENS}),
    (testing.assert_packing_isolated, (Apart(),), {"tokens": TOKENS}),
    (testing.assert_shift_invariant, (Apart(),), {"tokens": TOKENS}),
    (testing.assert_positions_resolved, (Apart(), 64), {"tokens": TOKENS}),
    (testing.assert_order_sensitive, (Convolution(),), {"tokens": TOKENS}),
    (testing.assert_order_blind, (nn.Linear(WIDTH, WIDTH),), {"width": WIDTH}),
    (testing.assert_lookup, (LooksUp(),), {"tokens": 64}),
]


@pytest.mark.parametrize(("assertion", "model", "how"), HOLD, ids=lambda a: getattr(a, "__name__", ""))
def test_it_passes_where_the_claim_holds(assertion, model, how):
    assertion(*model, **how, length=12)


@pytest.mark.parametrize(
    ("assertion", "model", "claim"),
    [
        (testing.assert_causal, (Leaks(),), "routing.causal"),
        (testing.assert_reach, (Convolution(), 2), "routing.reach"),
        (testing.assert_order_blind, (Convolution(),), "order.blind"),
        (testing.assert_lookup, (Convolution(),), "routing.lookup"),
    ],
    ids=lambda a: getattr(a, "__name__", ""),
)
def test_it_fails_with_the_witness_where_it_is_refuted(assertion, model, claim):
    with pytest.raises(testing.ClaimError) as failed:
        assertion(*model, tokens=TOKENS, length=12)
    found = failed.value.finding
    assert (found.claim, found.verdict) == (claim, Verdict.REFUTED)
    assert str(failed.value).startswith(claim)
    assert str(failed.value).splitlines()[0].endswith(" is refuted")
    assert "witness" in str(failed.value)
    assert found.counterexample


def test_what_does_not_apply_shows_nothing_and_fails_with_the_reason():
    with pytest.raises(testing.ClaimError, match="has no cache") as failed:
        testing.assert_cache_consistent(Convolution(), tokens=TOKENS)
    assert failed.value.finding.verdict is Verdict.INAPPLICABLE


def test_the_finding_comes_back_and_follows_from_the_seed():
    one, two = (testing.assert_holds("routing.causal", Convolution(), tokens=TOKENS, seed=7) for _ in "ab")
    assert one == two
    assert one.verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("claim", "model", "how", "said"),
    [
        ("routing.casual", Convolution(), {"tokens": TOKENS}, "routing.causal"),
        ("routing.causal", Convolution(), {}, "tokens"),
        ("routing.causal", "gone.py:Model", {"tokens": TOKENS}, "there is no file"),
    ],
)
def test_what_cannot_be_used_is_no_failed_claim(claim, model, how, said):
    with pytest.raises(UsageError, match=said):
        testing.assert_holds(claim, model, **how)


def test_importing_it_imports_no_torch():
    probe = "import sys, whyformer.testing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def test_a_claim_error_crosses_processes_and_says_its_verdict():
    with pytest.raises(testing.ClaimError, match=r"routing.reach=1 is refuted") as left:
        testing.assert_reach(Convolution(), 1, tokens=TOKENS)
    again = pickle.loads(pickle.dumps(left.value))
    assert again.finding == left.value.finding


@pytest.mark.parametrize(
    ("model", "how"),
    [
        (None, {"tokens": 8}),
        (Convolution, {"tokens": 8}),
        (Convolution(), {"tokens": "8"}),
        (Convolution(), {"tokens": 8, "seed": "a"}),
    ],
)
def test_arguments_that_cannot_be_used_are_one_line(model, how):
    with pytest.raises(UsageError) as left:
        testing.assert_causal(model, **how)
    assert "\n" not in str(left.value)


def test_a_module_is_left_training_where_it_was():
    model = Convolution().train()
    testing.assert_causal(model, tokens=TOKENS)
    assert model.training
