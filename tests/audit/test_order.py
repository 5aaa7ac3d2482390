"""Order told apart, or not: right sets are blind, and what only looks like a set is refuted."""

import pytest
import torch
from positional import VOCABULARY, WIDTH, Learned, Small, tried
from torch import nn

from whyformer.claims.audit.order import CLAIMS, blind, sensitive
from whyformer.claims.claim import prove
from whyformer.finding import Strength, Verdict
from whyformer.instruments.agreement import Comparison, Examiner
from whyformer.subjects.torch_module import TorchModule

LENGTH = 12
VECTORS = {"width": WIDTH}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test(claim):
    trial = prove(claim, 31)
    assert trial.counts, (trial.finding, trial.refutation)


class Pooled(nn.Module):
    """A right set: each output from its input and the mean and maximum of all."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.own, self.mean, self.most = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def pooled(self, x):
        return self.mean(x.mean(1, keepdim=True)) + self.most(x.amax(1, keepdim=True))

    def forward(self, x):
        return torch.tanh(self.own(x) + self.pooled(x))


class Attending(Small):
    """A right set: attention both ways, without positions."""

    causal = False

    def turn(self, x, positions):
        return x

    def forward(self, x):
        return super().forward(x)


class Encoded(nn.Module):
    """Torch's own encoder layer, which has no positions."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class NormedTogether(Pooled):
    """A norm over the whole set, the same for each of its members."""

    def pooled(self, x):
        return super().pooled(nn.functional.layer_norm(x, x.shape[1:]))


class Single(Pooled):
    """A float32 island: the mean is taken in single precision."""

    def pooled(self, x):
        return self.mean(x.float().mean(1, keepdim=True).to(x.dtype))


class WeightsOfLength(Pooled):
    """Mixes the members by a weight for each place."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.places = nn.Linear(LENGTH, LENGTH)

    def pooled(self, x):
        return self.places(x.transpose(1, 2)).transpose(1, 2)


class StrayBias(Pooled):
    """A bias on the first member alone."""

    def pooled(self, x):
        first = torch.zeros_like(x)
        first[:, 0, 3] = 1e-3
        return super().pooled(x) + first


class StrayAtLast(StrayBias):
    """A bias on the last member alone."""

    def pooled(self, x):
        return super().pooled(x.flip(1)).flip(1)


class NormOfPlaces(Pooled):
    """A norm whose gains belong to places."""

    def __init__(self, seed=0):
        super().__init__(seed)
        self.gain = nn.Parameter(1 + 0.1 * torch.randn(64, 1))

    def pooled(self, x):
        return super().pooled(x) + self.gain[: x.shape[1]] * x


class Running(Pooled):
    """The mean of what came before."""

    def pooled(self, x):
        return self.mean(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])


class FarPlaces(Pooled):
    """Right up to the working length; a place of its own for whatever lies beyond."""

    def pooled(self, x):
        late = (torch.arange(x.shape[1]) > LENGTH + 4).to(x.dtype)
        return super().pooled(x) + late[:, None]


RIGHT = [Pooled, Encoded, NormedTogether, Single, nn.Identity]
WRONG = [WeightsOfLength, StrayBias, StrayAtLast, NormOfPlaces, Running, FarPlaces]


@pytest.mark.parametrize("module", RIGHT, ids=lambda m: m.__name__)
@pytest.mark.parametrize(("dtype", "seed"), [(torch.float64, 31), (torch.float32, 1)])
def test_right_sets_are_blind_and_not_sensitive(module, dtype, seed):
    options = {"length": LENGTH, "kind": VECTORS, "dtype": dtype, "seed": seed}
    assert tried(blind, module(), **options).verdict is Verdict.HOLDS
    found = tried(sensitive, module(), **options)
    assert found.verdict is Verdict.REFUTED
    assert found.counterexample["agree"]
    assert Comparison.from_data(found.counterexample["comparison"]).left.calls


@pytest.mark.parametrize("seed", [31, 2])
def test_attention_without_positions_is_blind_on_tokens_too(seed):
    assert tried(blind, Attending(seed), length=LENGTH, seed=seed).verdict is Verdict.HOLDS


@pytest.mark.parametrize("module", WRONG, ids=lambda m: m.__name__)
@pytest.mark.parametrize("seed", [31, 1])
def test_sets_that_are_none_are_refuted_by_one_exchange(module, seed):
    found = tried(blind, module(seed), length=LENGTH, kind=VECTORS, seed=seed)
    assert found.verdict is Verdict.REFUTED, found
    assert len(found.counterexample["changed"]) == 1
    assert found.counterexample["sizes"]["batch"] == 1
    if module not in (WeightsOfLength, FarPlaces):
        assert found.counterexample["sizes"]["length"] == 2


def test_a_set_of_one_size_is_left_open_with_the_reason():
    class OneSize(Pooled):
        def forward(self, x):
            if x.shape[1] != LENGTH:
                raise ValueError("made for twelve")
            return super().forward(x)

    found = tried(blind, OneSize(), length=LENGTH, kind=VECTORS)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "made for twelve" in found.reason
    assert tried(sensitive, OneSize(), length=LENGTH, kind=VECTORS).verdict is Verdict.REFUTED


def test_weights_that_fit_one_length_alone_are_sensitive_there():
    assert tried(sensitive, WeightsOfLength(), length=LENGTH, kind=VECTORS).verdict is Verdict.HOLDS


class Unordered(Small):
    """Causal, without positions: one layer."""

    def turn(self, x, positions):
        return x


class FarSighted(Small):
    """The last three inputs are seen, and no others."""

    def allowed(self, queries, keys):
        return super().allowed(queries, keys) & (keys[None, :] > queries[:, None] - 4)


@pytest.mark.parametrize(
    ("module", "reach"),
    [(Small, LENGTH - 1), (Learned, LENGTH - 1), (Unordered, 0), (FarSighted, 4)],
)
@pytest.mark.parametrize("seed", [31, 1])
def test_a_model_that_knows_order_holds_with_a_witness_and_its_reach(module, reach, seed):
    subject = module(seed)
    found = tried(sensitive, subject, length=LENGTH, seed=seed)
    assert found.verdict is Verdict.HOLDS
    assert found.strength is Strength.PROVED
    assert found.measured["swap_reach"] == reach
    assert (found.measured["last_by_order"] > 1e-9) == (reach > 0)
    again = TorchModule(subject, tokens=VOCABULARY)
    with again.precision(torch.float64):
        witness = Comparison.from_data(found.counterexample["comparison"])
        assert Examiner(again, LENGTH, 0).deviation(witness).size == found.measured["deviation"]


def test_a_table_along_the_batch_tells_no_order_apart():
    class OverBatch(Attending):
        def __init__(self, seed=0):
            super().__init__(seed)
            self.table = nn.Embedding(64, WIDTH)

        def add(self, h, positions):
            return h + self.table.weight[: h.shape[0], None]

    class OverTime(OverBatch):
        def add(self, h, positions):
            return h + self.table.weight[: h.shape[1]]

    assert tried(sensitive, OverBatch(), length=LENGTH).verdict is Verdict.REFUTED
    assert tried(sensitive, OverTime(), length=LENGTH).verdict is Verdict.HOLDS


def test_a_module_that_draws_anew_is_not_judged():
    class Unstored(nn.Module):
        def forward(self, x):
            return x + torch.randn(1)

    assert tried(blind, Unstored(), kind=VECTORS, length=LENGTH).verdict is Verdict.INCONCLUSIVE
