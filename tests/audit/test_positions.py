"""Positions shifted, left out, and far away: each kind of fault refuted, and its right twin held."""

import math

import pytest
import torch
from positional import VOCABULARY, WIDTH, Learned, Small, rotated, tried

from whyformer.claims.audit import positions as claims
from whyformer.claims.audit.positions import CLAIMS, positions, shift
from whyformer.claims.audit.resolution import resolution
from whyformer.claims.claim import prove
from whyformer.finding import Strength, Verdict
from whyformer.instruments.agreement import Comparison, Examiner
from whyformer.subjects.torch_module import TorchModule


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: c.id)
@pytest.mark.parametrize("seed", [31, 2])
def test_the_specimen_holds_and_the_refuter_is_refuted_by_the_same_test(claim, seed):
    trial = prove(claim, seed)
    assert trial.counts, (trial.finding, trial.refutation)


# order.shift


class Float32Angles(Small):
    """Angles in float32, whatever the model computes in."""

    def angles(self, positions, dtype):
        return super().angles(positions, torch.float32)


class Float32Table(Small):
    """Cosines and sines tabled once, in float32; nothing of the call shows how coarse they are."""

    def made(self):
        angles = Small.angles(self, torch.arange(65_536), torch.float32)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turn(self, x, positions):
        return rotated(x, self.cos[positions], self.sin[positions])


class Distance(Small):
    """A bias of the distance alone (ALiBi), from the positions."""

    def turn(self, x, positions):
        return x

    def bias(self, queries, keys):
        return -0.3 * (queries[:, :, None] - keys[:, None, :]).abs().to(self.head.weight.dtype)


class ScaledByLength(Small):
    """Angles scaled by the longest position of the call, once it passes 64 (dynamic NTK)."""

    def longest(self, positions):
        return positions.max()

    def angles(self, positions, dtype):
        longest = (self.longest(positions) + 1).to(dtype).clamp(min=64)
        return super().angles(positions, dtype) * (64 / longest)[..., None]


class ScaledByRow(ScaledByLength):
    """The same, each row by its own longest position."""

    def longest(self, positions):
        return positions.max(-1, keepdim=True).values


class Sinusoid(Small):
    """Sinusoids added to the inputs: absolute positions."""

    def add(self, h, positions):
        angles = self.angles(positions, h.dtype)
        return h + torch.cat([angles.sin(), angles.cos()], -1)


class Mirrored(Small):
    """Keys turned the other way: scores depend on the sum of positions."""

    def forward(self, x, position_ids=None):
        return super().forward(x, None, position_ids)

    def turn(self, x, positions):
        self.turns = getattr(self, "turns", 0) + 1
        return super().turn(x, positions if self.turns % 2 else -positions)


class KeysLeft(Small):
    """Rotary applied to the queries alone."""

    def turn(self, x, positions):
        self.turns = getattr(self, "turns", 0) + 1
        return super().turn(x, positions) if self.turns % 2 else x


class Clamped(Small):
    """Positions cut at 500."""

    def angles(self, positions, dtype):
        return super().angles(positions.clamp(max=500), dtype)


@pytest.mark.parametrize("module", [Small, Float32Angles, Float32Table, Distance], ids=lambda m: m.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", [31, 1, 2, 3])
def test_what_counts_distances_alone_holds_under_shifts(module, dtype, seed, monkeypatch):
    monkeypatch.setattr(claims, "SHIFTS", (1, 7, 64, 1000, 20_000))
    found = tried(shift, module(seed), dtype=dtype, seed=seed)
    assert found.verdict is Verdict.HOLDS, found
    assert "20000" in found.reason


@pytest.mark.parametrize("module", [Learned, Sinusoid, Mirrored, KeysLeft, Clamped], ids=lambda m: m.__name__)
@pytest.mark.parametrize("seed", [31, 1])
def test_what_knows_absolute_positions_is_refuted_under_shifts(module, seed):
    subject = module(seed)
    found = tried(shift, subject, seed=seed)
    assert found.verdict is Verdict.REFUTED, found
    witness = found.counterexample
    assert witness["sizes"]["batch"] == 1
    assert witness["sizes"]["length"] <= 2
    again = TorchModule(subject, tokens=VOCABULARY)
    with again.precision(torch.float64):
        met = Examiner(again, 24, 0).deviation(Comparison.from_data(witness["comparison"])).size
    assert met == witness["deviation"]


@pytest.mark.parametrize("module", [ScaledByLength, ScaledByRow], ids=lambda m: m.__name__)
def test_angles_that_scale_with_the_length_are_no_fault(module):
    found = tried(shift, module())
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "length-dependent" in found.reason


def test_a_table_is_not_refuted_for_its_end_but_for_its_rows():
    class Short(Learned):
        rows = 24

    found = tried(shift, Short())
    assert found.verdict is Verdict.REFUTED
    assert found.counterexample["sizes"]["shift"] == 1


def test_a_bfloat16_table_is_not_refuted_by_its_own_rounding():
    found = tried(shift, Float32Table().bfloat16(), dtype=torch.float64)
    assert found.verdict is not Verdict.REFUTED
    assert tried(shift, Learned().bfloat16()).verdict is Verdict.REFUTED


@pytest.mark.parametrize("claim", [shift, positions, resolution])
def test_positions_that_are_not_taken_or_swallowed_leave_nothing_to_claim(claim):
    class Untaken(Small):
        def forward(self, x):
            return super().forward(x)

    class Swallowed(Small):
        def forward(self, x, attention_mask=None, position_ids=None):
            return super().forward(x, attention_mask)

    for module, why in ((Untaken, "takes no positions"), (Swallowed, "swallowed")):
        found = tried(claim, module())
        assert found.verdict is Verdict.INAPPLICABLE
        assert why in found.reason


# order.positions


class Columns(Learned):
    """Counts columns, padding or not."""

    def counted(self, x, mask, seen):
        return super().counted(x, None, seen)


class ColumnsTurned(Small):
    """Counts columns; only distances matter, so nothing is wrong with it."""

    def counted(self, x, mask, seen):
        return super().counted(x, None, seen)


class OneForAll(Learned):
    """The first row's positions for every row while decoding."""

    def counted(self, x, mask, seen):
        found = super().counted(x, mask, seen)
        return found[:1].expand_as(found) if seen else found


class Twice(Learned):
    """The offset advances twice on the first step after the prompt."""

    def counted(self, x, mask, seen):
        found = super().counted(x, mask, seen)
        return found + 1 if seen and x.shape[1] == 1 else found


class Inside(Learned):
    """The running sum is taken over the call's own part of the mask."""

    def counted(self, x, mask, seen):
        return super().counted(x, None if mask is None else mask[:, seen:], 0) + (seen if mask is None else 0)


class AtPadId(Learned):
    """Positions from the ids that are not the pad's, so that a real token of that id stops the count."""

    pad = 0

    def counted(self, x, mask, seen):
        if seen:
            return super().counted(x, mask, seen)
        return (x.ne(self.pad).long().cumsum(-1) - 1).clamp(min=0)


class OverBatch(Learned):
    """The table runs along the batch instead of along time, when positions are left to it."""

    def counted(self, x, mask, seen):
        return torch.arange(x.shape[0])[:, None].expand(x.shape)


class FromTwo(Learned):
    """Counts from 2, as a table whose first rows are kept for padding."""

    def made(self):
        self.table = torch.nn.Embedding(self.rows, WIDTH, padding_idx=1)

    def counted(self, x, mask, seen):
        return super().counted(x, mask, seen) + 2


class Encoder(Columns):
    """Sees both ways and counts columns: it is padded on the right."""

    causal = False

    def forward(self, x, attention_mask=None, position_ids=None):
        return super().forward(x, attention_mask, position_ids)


@pytest.mark.parametrize(
    "module", [Small, Learned, ColumnsTurned, FromTwo, Encoder, Distance], ids=lambda m: m.__name__
)
@pytest.mark.parametrize(("dtype", "seed"), [(torch.float64, 31), (torch.float64, 1), (torch.float32, 2)])
def test_positions_counted_right_equal_those_given(module, dtype, seed):
    found = tried(positions, module(seed), dtype=dtype, seed=seed)
    assert found.verdict is Verdict.HOLDS, found


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (Columns, {"mask": "left padding"}),
        (OneForAll, {"mask": "left padding", "cache": "on"}),
        (Twice, {"cache": "on"}),
        (Inside, {"cache": "on"}),
        (AtPadId, {}),
        (OverBatch, {}),
    ],
    ids=lambda m: getattr(m, "__name__", ""),
)
@pytest.mark.parametrize("seed", [31, 1])
def test_positions_counted_wrong_are_refuted_where_they_are(module, where, seed):
    found = tried(positions, module(seed), seed=seed)
    assert found.verdict is Verdict.REFUTED, found
    assert where.items() <= found.path.items()


@pytest.mark.parametrize("pad", [1, 2, VOCABULARY - 1])
def test_the_restart_is_found_at_other_special_ids(pad):
    class Elsewhere(AtPadId):
        pass

    Elsewhere.pad = pad
    assert tried(positions, Elsewhere()).verdict is Verdict.REFUTED


class Inverted(Learned):
    """The mask is multiplied into the positions the wrong way round: under it real inputs lose theirs."""

    def forward(self, x, attention_mask=None, position_ids=None):
        if attention_mask is not None:
            given = self.counted(x, None, 0) if position_ids is None else position_ids
            position_ids = given * (1 - attention_mask)
        return super().forward(x, attention_mask, position_ids)


class SwallowedInSteps(Learned):
    """Uses the positions that it is given with the prompt, and none that come with a step."""

    def forward(self, x, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False):
        given = None if past_key_values is not None else position_ids
        return super().forward(x, attention_mask, given, past_key_values, use_cache)


@pytest.mark.parametrize(
    ("module", "where"), [(Inverted, "mask of ones"), (SwallowedInSteps, "in steps")], ids=str
)
def test_positions_swallowed_on_one_path_leave_it_open(module, where):
    found = tried(positions, module())
    assert found.verdict is Verdict.INCONCLUSIVE, found
    assert where in found.reason


# order.resolution


class ThroughHalf(Small):
    dtype = torch.bfloat16

    def angles(self, positions, dtype):
        return super().angles(positions.to(self.dtype), dtype)


class ThroughFloat16(ThroughHalf):
    dtype = torch.float16


class Window(Small):
    """Sees four inputs."""

    def allowed(self, queries, keys):
        return super().allowed(queries, keys) & (keys[None, :] > queries[:, None] - 4)


class Pairs(Small):
    """Positions from 1,000 on are counted in pairs."""

    def angles(self, positions, dtype):
        return super().angles(torch.where(positions < 1000, positions, positions // 2 * 2), dtype)


class Steep(Distance):
    """A bias that underflows a few positions away."""

    def bias(self, queries, keys):
        return 30 * super().bias(queries, keys)


@pytest.mark.parametrize(
    ("module", "first"), [(ThroughHalf, 256), (ThroughFloat16, 2048), (Clamped, 500), (Pairs, 1000)]
)
@pytest.mark.parametrize("seed", [31, 1])
def test_merged_positions_are_refuted_at_the_smallest(module, first, seed):
    found = tried(resolution, module(seed), seed=seed)
    assert found.verdict is Verdict.REFUTED
    assert found.measured["position"] == first
    assert found.counterexample["deviation"] == 0
    assert tried(resolution, module(seed), value=first, seed=seed).verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("module", "dtype"),
    [(m, torch.float32) for m in (Small, Float32Angles, Window, Distance, Steep)]
    + [(Float32Angles, torch.bfloat16)],
)
@pytest.mark.parametrize("seed", [31, 1])
def test_positions_told_apart_hold_far_out_and_in_low_precision(module, dtype, seed):
    found = tried(resolution, module(seed).to(dtype), seed=seed)
    assert found.verdict is Verdict.HOLDS, found
    assert found.strength is Strength.SAMPLED
    assert found.measured["up_to"] == 32_768
    assert found.path["dtype"] == str(dtype).removeprefix("torch.")


def test_rotary_angles_in_the_dtype_of_a_bfloat16_model_are_refuted():
    found = tried(resolution, Small().bfloat16())
    assert found.verdict is Verdict.REFUTED
    assert found.measured["position"] <= 256


class OnlyPacked(Small):
    """Positions are of no use but to tell packed documents apart, and only where no mask is given."""

    def turn(self, x, positions):
        return x

    def bias(self, queries, keys):
        document = (queries.diff(dim=-1, prepend=queries[:, :1] - 1) != 1).cumsum(-1)
        other = document[:, :, None] != document[:, None, :]
        return other * -1e9 if self.packed else 0

    def forward(self, x, attention_mask=None, position_ids=None, **rest):
        self.packed = attention_mask is None and position_ids is not None and not rest
        return super().forward(x, attention_mask, position_ids, **rest)


def test_positions_that_only_tell_documents_apart_resolve_nothing_and_are_no_fault():
    found = tried(resolution, OnlyPacked())
    assert found.verdict is Verdict.INAPPLICABLE
    assert "under a mask of ones" in found.reason
    assert tried(positions, OnlyPacked()).verdict is not Verdict.REFUTED


@pytest.mark.parametrize("rows", [2, 3, 24, 512])
def test_a_table_is_tried_up_to_its_end(rows):
    class Sized(Learned):
        pass

    Sized.rows = max(rows, 24)
    found = tried(resolution, Sized(), value=rows if rows < 24 else None)
    assert found.verdict is Verdict.HOLDS
    assert found.measured["up_to"] == rows
    beyond = tried(resolution, Sized(), value=2 * Sized.rows)
    assert beyond.verdict is Verdict.INCONCLUSIVE
    assert "no position from" in beyond.reason


def test_the_allowance_covers_what_float32_tables_do():
    subject = TorchModule(Float32Table(), tokens=VOCABULARY)
    with subject.precision(torch.float64):
        examiner = Examiner(subject, 24, 31)
        allowance, _ = claims.float32_angles(examiner, 24)
        ids = tuple(tuple(range(24)) for _ in range(1))
        for by in (1, 100, 10_000, 60_000):
            made = Comparison(
                claims._at(ids, claims._counted(1, 24)),
                claims._at(ids, claims._counted(1, 24, by)),
                claims.same_places(1, range(24)),
            )
            assert 0 < examiner.deviation(made).size < allowance(made)
            assert math.isfinite(allowance(made))
