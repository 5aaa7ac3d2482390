"""Float64 without islands: what it moves up, what it leaves alone, and when a module is run in it."""

import pytest
import torch
from torch import nn

from whyformer.subjects.float64 import Float64, has_islands
from whyformer.subjects.torch_module import TorchModule

IDS = torch.arange(7)[None] % 5


class Islands(nn.Module):
    """A softmax and a table of angles in float32, whatever the module's dtype; or, tame, in its own."""

    def __init__(self, tame=False):
        super().__init__()
        torch.manual_seed(0)
        self.tame = tame
        self.embed, self.head = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.embed(x)
        wide = h.dtype if self.tame else torch.float32
        angles = torch.arange(x.shape[1], dtype=wide) / 3
        scores = torch.softmax(h @ h.mT, -1, dtype=wide).to(h.dtype)
        return self.head(scores @ h + angles.cos()[:, None].to(h.dtype))


def test_islands_are_found_and_done_away_with():
    wild, tame = Islands().double(), Islands(tame=True).double()
    with torch.inference_mode():
        assert has_islands(lambda: wild(IDS))
        assert not has_islands(lambda: tame(IDS))
        sunk, naive = wild(IDS), tame(IDS)
    subject = TorchModule(Islands(), tokens=5)
    with subject.precision(torch.float64):
        y = subject.call(IDS).y
    assert 1e-9 < (sunk - naive).abs().max() < 1e-5
    assert (y - naive).abs().max() < 1e-14
    assert torch.get_default_dtype() is torch.float32


def test_a_module_without_islands_is_run_as_it_is():
    subject = TorchModule(Islands(tame=True), tokens=5)
    with subject.precision(torch.float64):
        assert subject._islands is False
        y = subject.call(IDS).y
    with torch.inference_mode():
        assert torch.equal(y, Islands(tame=True).double()(IDS))


def test_new_tensors_and_named_dtypes_are_float64():
    with Float64():
        made = [torch.zeros(2), torch.arange(3) / 2, torch.tensor(0.1), torch.ones(2, dtype=torch.float32)]
        made += [torch.arange(3).float(), torch.ones(2).to(torch.float32)]
        assert torch.arange(3).dtype is torch.int64
        assert torch.ones(2, dtype=torch.bfloat16).dtype is torch.bfloat16
    assert {x.dtype for x in made} == {torch.float64}
    assert float(made[2]) == 0.1


def test_what_is_written_in_place_is_not_lost():
    kept = torch.zeros(3)
    third = torch.tensor(1 / 3, dtype=torch.float64)
    with Float64():
        kept.add_(third)
        kept[0] = third
        kept *= 3
        kept.index_add_(0, torch.tensor([1]), torch.ones(1).to(kept))
    assert kept.dtype is torch.float32
    torch.testing.assert_close(kept, torch.tensor([1.0, 2.0, 1.0]))


def test_the_default_dtype_is_given_back_after_an_error():
    with pytest.raises(ZeroDivisionError), Float64():
        raise ZeroDivisionError
    assert torch.get_default_dtype() is torch.float32
