"""The pictures against what they must show: a mask, a band, a group, a curve that falls or does not."""

import pytest
import torch

from whyformer.instruments.symmetry import automorphisms
from whyformer.lab import drawings
from whyformer.report.pictures import EIGHTHS, reach_maps
from whyformer.subjects import biases


@pytest.fixture(autouse=True)
def _without_gradients():
    """As the lab draws them."""
    with torch.no_grad():
        yield


def band(back: int, ahead: int = 0) -> list[list[bool]]:
    return [[i - back <= j <= i + ahead for j in range(12)] for i in range(12)]


@pytest.mark.parametrize("seed", [0, 31])
def test_one_hop_shows_the_masks(seed):
    expected = {"full": band(12, 12), "causal": band(12), "window of 3": band(2)}
    assert str(drawings.one_hop(seed)) == str(reach_maps(expected))


@pytest.mark.parametrize("seed", [0, 31])
def test_depth_shows_bands_that_grow_by_2(seed):
    expected = dict(
        zip(("1 layer", "2 layers", "3 layers", "4 layers"), map(band, (2, 4, 6, 8)), strict=True)
    )
    assert str(drawings.window_depth(seed)) == str(reach_maps(expected))


def test_the_groups_are_the_automorphisms():
    drawn = [int(line.rsplit(maxsplit=1)[1]) for line in str(drawings.symmetry_groups(31)).splitlines()]
    alibi = biases.alibi(2, causal=False)
    kinds = (biases.none, biases.documents((2, 3)), biases.prefix(3), alibi, biases.causal)
    assert drawn == [int(automorphisms(bias, 5).sum()) for bias in kinds]


def test_a_match_keeps_its_weight_without_positions_and_loses_it_with_alibi():
    plain, falling = (line[14:47] for line in str(drawings.gap_free(31)).splitlines())
    assert len(set(plain)) == 1
    heights = [EIGHTHS.index(glyph) for glyph in falling]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == 7
    assert heights[-1] == 0


@pytest.mark.parametrize(("draw", "verdicts"), [(drawings.fading, "fk"), (drawings.not_fading, "fkfke")])
def test_curves_fall_keep_or_grow(draw, verdicts):
    for line, verdict in zip(str(draw(31)).splitlines(), verdicts, strict=True):
        left = float(line.rsplit("  ", 1)[1].split()[0].replace(",", ""))
        assert {"f": left < 1e-5, "k": 0.1 < left < 10, "e": left > 1e4}[verdict], line


def test_a_seed_draws_the_same_twice():
    for draw in (*drawings.BY_CLAIM.values(), drawings.not_fading):
        assert draw(5) == draw(5)
