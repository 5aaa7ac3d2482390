"""Models that are right, or only look wrong, beside the fault that each could be taken for."""

import math

import pytest
import torch
from positional import Small
from torch import nn
from torch.nn import functional

from whyformer import audit


class ScaledByLength(Small):
    """Rotary angles that slow down for inputs longer than 16, as dynamic scaling does."""

    def angles(self, positions, dtype):
        return super().angles(positions, dtype) * min(1.0, 16 / (int(positions.max()) + 1))


class ScaledAndShifted(ScaledByLength):
    """The same, and steps that count their position once too often."""

    def counted(self, x, mask, seen):
        return super().counted(x, mask, seen) + (seen > 0)


@pytest.mark.parametrize("claim", ["routing.cache", "routing.chunks"])
def test_scaling_that_depends_on_length_is_no_fault_of_the_cache(claim):
    (finding,) = audit(ScaledByLength(), tokens=64, claims=[claim]).findings
    assert finding.verdict == "inconclusive"
    assert "length-dependent" in finding.reason


@pytest.mark.parametrize("claim", ["routing.cache", "routing.chunks"])
def test_a_fault_of_the_cache_shows_beside_such_scaling(claim):
    (finding,) = audit(ScaledAndShifted(), tokens=64, claims=[claim]).findings
    assert finding.verdict == "refuted"


class SlowPath(nn.Module):
    """Causal attention whose slow path, taken as ``slow`` says, forgets the mask."""

    def __init__(self, forgets=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.forgets, self.chance = nn.Embedding(64, 16), forgets, 0.1

    def attend(self, x, slow):
        h = self.embed(x)
        scores = h @ h.transpose(1, 2) / 4
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        if not (slow and self.forgets):
            scores = scores.masked_fill(later, -math.inf)
        weights = scores.softmax(-1)
        return functional.dropout(weights, self.chance, self.training) @ h


class WhereWeightsAreAskedFor(SlowPath):
    def forward(self, x, output_attentions=None):
        y = self.attend(x, output_attentions)
        return (y, None) if output_attentions else y


class WhereDropoutIsOn(SlowPath):
    def forward(self, x):
        return self.attend(x, self.training)


@pytest.mark.parametrize("model", [WhereWeightsAreAskedFor, WhereDropoutIsOn])
@pytest.mark.parametrize(("forgets", "verdict"), [(True, "refuted"), (False, "holds")])
def test_the_slow_path_is_found_however_it_is_taken(model, forgets, verdict):
    assert audit(model(forgets), tokens=64, claims=["routing.causal"]).verdict == verdict


class Float64Alone(SlowPath):
    """Holds a float64 table that no cast reaches, so float32 raises."""

    table = torch.randn(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def forward(self, x):
        return self.attend(x, True) @ self.table


def test_a_fault_is_refuted_in_the_one_precision_that_there_is():
    assert audit(Float64Alone(), tokens=64, claims=["routing.causal"]).verdict == "refuted"
