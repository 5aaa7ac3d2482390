"""Faults that begin at a size, and rows that displace each other by design."""

import math

import pytest
import torch
from torch import nn

from whyformer import audit


class Sized(nn.Module):
    """Causal attention over 64 tokens; a subclass says what goes wrong, and from which size on."""

    def __init__(self, faulty):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.faulty = nn.Embedding(64, 16), faulty

    def attend(self, x, seen):
        h = self.embed(x)
        return (h @ h.transpose(1, 2) / 4).masked_fill(~seen, -math.inf).softmax(-1) @ h


def earlier(x):
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()


class Paths(Sized):
    """A chunked path that loses what lies before its second chunk of 128."""

    def forward(self, x, chunked=True):
        place = torch.arange(x.shape[1])
        lost = (place[:, None] >= 256) & (place < 128)
        return self.attend(x, earlier(x) & ~lost if chunked and self.faulty else earlier(x))


class PaddedBlocks(Sized):
    """Sees padding that lies a block of 32 or more back."""

    def forward(self, x, attention_mask=None):
        place = torch.arange(x.shape[1])
        real = torch.ones_like(x) if attention_mask is None else attention_mask
        real = (real[:, None] > 0) | torch.eye(x.shape[1], dtype=torch.bool)
        if self.faulty:
            real = real | (place[:, None] // 32 - place // 32 > 0)
        return self.attend(x, earlier(x) & real)


class PackedBlocks(Sized):
    """Looks at where documents begin within the block of 64 alone."""

    def forward(self, x, position_ids=None):
        place = torch.arange(x.shape[1])
        begun = place[None] if position_ids is None else position_ids
        document = (begun == 0).cumsum(1)
        one = document[:, :, None] == document[:, None]
        if self.faulty:
            one = one | (place[:, None] // 64 - place // 64 > 0)
        return self.attend(x, earlier(x) & one)


class Slots(Sized):
    """Keeps its rows' sums in 64 slots, and starts each in what the row before it in the slot has left."""

    def forward(self, x):
        sums = self.embed(x).cumsum(1)
        if not self.faulty:
            return sums
        lost = torch.cat([torch.zeros_like(sums[:64, -1]), sums[:-64, -1]])[: len(x)]
        return sums + lost[:, None]


@pytest.mark.parametrize(
    ("model", "claim"),
    [
        (Paths, "routing.backends"),
        (PaddedBlocks, "routing.padding"),
        (PackedBlocks, "routing.packing"),
        (Slots, "routing.batch"),
    ],
)
@pytest.mark.parametrize(("faulty", "verdict"), [(True, "refuted"), (False, "holds")])
def test_a_fault_that_begins_at_a_size_is_met(model, claim, faulty, verdict):
    (finding,) = audit(model(faulty), tokens=64, claims=[claim]).findings
    assert finding.verdict == verdict


class Experts(nn.Module):
    """Four experts that take so many inputs of a batch; ``mixed`` lets the rest of the batch flow in too."""

    def __init__(self, mixed):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.gate, self.mixed = nn.Embedding(64, 16), nn.Linear(16, 4), mixed
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        h = self.embed(x)
        flat = h.flatten(0, 1)
        top, chosen = self.gate(flat).softmax(-1).max(-1)
        y = torch.zeros_like(flat)
        for n, expert in enumerate(self.experts):
            taken = (chosen == n).nonzero()[:, 0][: len(flat) // 4 + 1]
            y = y.index_add(0, taken, expert(flat[taken]) * top[taken, None])
        return (flat + y).view_as(h) + (1e-3 * flat.mean(0) if self.mixed else 0)


def test_rows_that_displace_each_other_do_so_by_design():
    (finding,) = audit(Experts(False), tokens=64, claims=["routing.batch"]).findings
    assert finding.verdict == "inconclusive"
    assert "by design" in finding.reason


def test_what_flows_between_rows_beside_that_is_refuted():
    (finding,) = audit(Experts(True), tokens=64, claims=["routing.batch"]).findings
    assert finding.verdict == "refuted"
