"""The catalogue: what goes wrong in models, each beside what is right, and what only looks wrong.

A row names a fault in words, the module that has it, its right twin, and the claims that must refute the one
and hold of the other. Kinds: A causality, B padding, C rows of a batch, D caches and chunks, E packing,
F windows, G backends and masked rows, H positions and order, J data of lookups, K carried states.
Kind I, scores of heads, is about measurements and not about modules: the scan of heads has its own tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faults_cache as cached
import faults_causal as causal
import faults_order as tables
import faults_packing as packed
import faults_padding as padded
import right_modules as right
import test_order as sets
import test_positions as placed
import torch
from faults_causal import of
from faults_decoder import Decoder, State, Uncached
from positional import Learned, Small
from trying import tried

from whyformer.auditing import audit
from whyformer.claims import audit_catalogue
from whyformer.finding import Verdict
from whyformer.instruments.recall import hop
from whyformer.subjects.targets import subject_of

FORMULA = "the formula"
"""What no subject can tell of itself: a table beside the one that the paper's formula gives."""
SOLVER = "a right solver and a blind guess"
"""Data are right where a solver that looks up answers all, and one answer for all gets few."""


@dataclass(frozen=True)
class Row:
    """A fault, its right twin, and what tells them apart.

    Attributes:
        kind: its letter.
        words: what is wrong.
        fault: makes the faulty module.
        twin: makes the right one.
        claims: ids, FORMULA or SOLVER: each refutes the fault and holds of the twin.
        verdict: what the fault is given.
        reads: tokens or width.
    """

    kind: str
    words: str
    fault: Callable[..., Any]
    twin: Callable[..., Any]
    claims: tuple[str, ...]
    verdict: Verdict = Verdict.REFUTED
    reads: tuple[str, int] = ("tokens", 32)

    @property
    def name(self) -> str:
        """Kind and module."""
        return f"{self.kind}-{self.fault.__name__}"


@dataclass(frozen=True)
class Alarm:
    """A right module that an audit might take for a wrong one.

    Attributes:
        words: why it might.
        module: makes it.
        claims: what it is asked beside all that it promises; none of it may be refuted.
        reads: tokens or width.
        promised: whether it is asked what it promises too; by design, a capacity ties the rows of a batch.
    """

    words: str
    module: Callable[..., Any]
    claims: tuple[str, ...] = ("routing.causal", "routing.batch", "routing.repeatable")
    reads: tuple[str, int] = ("tokens", 32)
    promised: bool = True

    @property
    def name(self) -> str:
        """The module's name."""
        return self.module.__name__


def settled(claim: str, module: Callable[..., Any], reads: tuple[str, int], seed: int) -> Verdict:
    """What one claim says of one module."""
    generator = torch.Generator().manual_seed(seed)
    if claim == SOLVER:
        rows, asked = module(generator)
        solved = sum(
            int(said[t]) == answer for said, (_, t, answer) in zip(_said(rows, asked), asked, strict=True)
        )
        commonest = max(sum(answer == a for *_, a in asked) for *_, answer in asked)
        fair = solved == len(asked) and commonest < len(asked) / 4
        return Verdict.HOLDS if fair else Verdict.REFUTED
    name, _, value = claim.partition("=")
    kind, size = reads
    return tried(
        audit_catalogue()[name].test,
        module,
        width=size if kind == "width" else None,
        tokens=size,
        seed=seed,
        length=sets.LENGTH if name.startswith("order.") and kind == "width" else 24,
        value=int(value) if value else None,
    ).verdict


def _said(rows: torch.Tensor, asked: list[tuple[int, int, int]]) -> torch.Tensor:
    return hop(rows)[[b for b, *_ in asked]]


def verdict_of(row: Row, claim: str, module: Callable[..., Any], seed: int = 31) -> Verdict:
    """What one of a row's claims says of its fault, or of its twin."""
    if claim == FORMULA:
        return Verdict.HOLDS if torch.equal(module(), row.twin()) else Verdict.REFUTED
    return settled(claim, module, row.reads, seed)


def alarms(alarm: Alarm, seed: int = 31) -> list[str]:
    """The claims that refute a right module, of those that it is asked and those that it promises."""
    kind = {alarm.reads[0]: alarm.reads[1]}
    findings = list(audit(alarm.module(), claims=alarm.claims, seed=seed, **kind).findings)
    if alarm.promised:
        named = {claim.partition("=")[0] for claim in alarm.claims}
        promises = subject_of(alarm.module(), **kind).traits.promised
        more = [claim for claim in promises if claim not in named]
        findings += audit(alarm.module(), claims=more, seed=seed, **kind).findings if more else ()
    return [f.claim for f in findings if f.verdict is Verdict.REFUTED]


VECTORS = ("width", 16)
TOKENS_64 = ("tokens", 64)
CAUSAL, PADDING, BATCH = ("routing.causal",), ("routing.padding",), ("routing.batch",)
CACHE, CHUNKS, PACKING = ("routing.cache",), ("routing.chunks",), ("routing.packing",)
BACKENDS, REACH, POSITIONS = ("routing.backends",), ("routing.reach=6",), ("order.positions",)
BLIND = ("order.blind",)

ROWS = (
    Row("A", "the mask is on the fused path alone; where weights are asked for there is none",
        causal.MaskOnTheFusedPathOnly, causal.WeightsAsked, CAUSAL),
    Row("A", "the slow path, taken while dropout is on, forgets the mask",
        causal.MaskForgottenUnderDropout, causal.WeightsInTraining, CAUSAL),
    Row("A", "a padding mask takes the place of the causal one",
        causal.PaddingInsteadOfCausality, Uncached, CAUSAL),
    Row("A", "no mask for several inputs at once on a cache that holds some",
        cached.ChunkUnmasked, Decoder, CHUNKS),
    Row("A", "linear attention divides by the sum over all keys",
        of(causal.LinearOverAllKeys), of(causal.Linear), CAUSAL),
    Row("A", "a gate from the mean of the whole sequence", of(causal.GatedByAll), of(causal.Gated), CAUSAL),
    Row("A", "a dilated convolution padded as if it had no dilation",
        of(causal.DilatedTooLittle), of(causal.Dilated), CAUSAL),
    Row("A", "a strided convolution padded too little",
        of(causal.StridedTooLittle), of(causal.Strided), CAUSAL),
    Row("A", "the causal padding is on another axis", of(causal.PlanePaddedAcross), of(causal.Plane), CAUSAL),
    Row("A", "softmax over the whole sequence, then a cumulative sum",
        of(causal.SoftmaxThenSum), of(causal.CumulativeSoftmax), CAUSAL),
    Row("A", "keys pooled by blocks, the present block seen too",
        of(causal.CurrentBlockSeen), of(causal.Blocks), CAUSAL),
    Row("A", "the same with blocks of 64, from the second block on",
        of(causal.LongBlocksSeen), of(causal.LongBlocks), CAUSAL),
    Row("A", "heads cut by a view without a transpose", of(causal.HeadsOfTime), of(causal.Layer), CAUSAL),
    Row("A", "the result of masked_fill is dropped", of(causal.Dropped), of(causal.Layer), CAUSAL),
    Row("A", "the mask is of the other side of the diagonal",
        of(causal.Transposed), of(causal.Layer), CAUSAL),
    Row("A", "a finite mask that raised scores pass", of(causal.LowMask), of(causal.LowestMask), CAUSAL),
    Row("A", "the mask is one diagonal off", of(causal.OneTooMany), of(causal.Layer), CAUSAL),
    Row("A", "the last input is seen by everyone", of(causal.LeavesTheLast), of(causal.Layer), CAUSAL),
    Row("A", "a mask made for 48 inputs, and none beyond", of(causal.UpToALength), of(causal.Layer), CAUSAL),
    Row("A", "a mask made for 200 inputs, and none beyond", of(causal.UpTo200), of(causal.Layer), CAUSAL),
    Row("A", "one head of a layer has no mask", of(causal.OneHead), of(causal.Layer), CAUSAL),
    Row("A", "one layer of four has no mask", causal.OneLayerUnmasked, causal.Deep, CAUSAL),

    Row("B", "learned positions counted by column under left padding",
        padded.ColumnPositions, Decoder, PADDING),
    Row("B", "the same in a module without a cache", padded.ColumnPositionsUncached, Uncached, PADDING),
    Row("B", "one position for all rows while decoding", padded.OnePositionForAllRows, Decoder, PADDING),
    Row("B", "padding told by embeddings of zero, once positions are added",
        padded.ByZeroEmbedding, padded.ById, PADDING),
    Row("B", "padding enters an average", padded.PadsInTheMean, padded.Mean, PADDING),
    Row("B", "padding enters a group norm over time", padded.PadsInTheNorm, padded.Mean, PADDING),
    Row("B", "padding enters a long convolution", padded.LongConvolution, padded.Mean, PADDING),
    Row("B", "a state model's convolution sees padding", padded.ConvolutionSeesPads, State, PADDING),
    Row("B", "a state model's scan sees padding", padded.ScanSeesPads, State, PADDING),
    Row("B", "the state that a padded prompt leaves ends with its padding",
        padded.PrefillKeepsPads, State, PADDING),
    Row("B", "the mask is multiplied into positions the wrong way round",
        padded.InvertedPositions, Decoder, PADDING),
    Row("B", "a finite mask that scores pass", padded.FiniteMask, padded.FarMask, PADDING),
    Row("B", "the mask of the prompt is forgotten while decoding",
        padded.MaskOfThePromptOnly, Decoder, PADDING),
    Row("B", "the mask is taken and ignored", padded.MaskIgnored, Uncached, PADDING),
    Row("B", "the mask is forgotten where weights are asked for",
        padded.MaskForgottenWithWeights, padded.MaskWithWeights, PADDING),

    Row("C", "rows first handed to a layer that expects time first",
        causal.BatchFirstForgotten, causal.BatchFirst, BATCH, reads=VECTORS),
    Row("C", "the same with a recurrence", causal.RecurrentOverRows, causal.Recurrent, BATCH, reads=VECTORS),
    Row("C", "a stabiliser that is the maximum over the batch",
        of(causal.StabilisedByBatch), of(causal.Stabilised), BATCH),
    Row("C", "a slot for the request's number modulo four, between calls",
        causal.SlotByModulo, causal.Slots, BATCH),
    Row("C", "the same modulo sixteen, within a call", causal.SlotOfSixteen, causal.Slots, BATCH),
    Row("C", "statistics of the batch in eval mode", causal.NormOverRows, causal.Causal, BATCH),

    Row("D", "a ring overwritten by a prompt longer than the window",
        cached.RingOverwritten, cached.Ring, CACHE),
    Row("D", "the offset advances twice on the first step", cached.OffsetTwice, Decoder, CACHE),
    Row("D", "a step is written one place too far", cached.HoleInTheCache, Decoder, CACHE),
    Row("D", "positions restart for an input of length 1", cached.SingleRestarts, Decoder, CACHE),
    Row("D", "no position for an input of length 1", causal.SingleWithoutPosition, Decoder, CACHE),
    Row("D", "decoding takes the first rows of a clamped bias",
        cached.ClampedBiasFirstRows, cached.ClampedBias, CACHE),
    Row("D", "a relative bias ignores how much the cache holds",
        causal.RelativeBiasFromTheStart, causal.RelativeBias, CACHE + CHUNKS),
    Row("D", "the running sum is taken of the call's part of the mask",
        padded.OffsetSlicedInside, Decoder, PADDING),
    Row("D", "a cache made beforehand is read past what was written", cached.ReadPastTheEnd, Decoder, CHUNKS),
    Row("D", "an evicting cache counts positions by the rows kept",
        cached.EvictingRowsKept, cached.Evicting, CACHE + CHUNKS),

    Row("E", "a mask of ones switches the isolation of documents off",
        packed.OffUnderAMask, packed.Isolating, PACKING),
    Row("E", "a cache switches it off", packed.OffUnderACache, packed.Isolating, PACKING),
    Row("E", "positions restart and nothing isolates", packed.NotIsolated, packed.IsolatingRelative, PACKING),
    Row("E", "the fused path drops the documents' mask",
        packed.FusedSeesAll, packed.IsolatingByOption, PACKING),
    Row("E", "positions that are given are swallowed: nothing can be said",
        packed.PositionsSwallowed, packed.Isolating, PACKING, Verdict.INAPPLICABLE),

    Row("F", "a window of one more", causal.WindowOneMore, cached.Window, REACH),
    Row("F", "the cache keeps one more than the window", causal.CacheNotCut, causal.CacheCut, CACHE + REACH),
    Row("F", "a window in the prompt, none while decoding", cached.WindowGrows, cached.Window, CACHE + REACH),
    Row("F", "the window's mask counts rows from the chunk's start",
        cached.ChunkLocalRows, cached.Window, CHUNKS),
    Row("F", "the window is forgotten in long prompts", causal.WindowOfShortPrompts, cached.Window, REACH),
    Row("F", "a window both ways that is lopsided on one path",
        packed.WindowHalved, packed.WindowByHand, BACKENDS),

    Row("G", "a row without keys makes the batch no number", padded.EmptyRowSpreads, Decoder, PADDING),
    Row("G", "what is no number at padding spreads through the next layer",
        causal.NoNumberSpreads, causal.PaddedTwice, PADDING),
    Row("G", "grouped heads are tiled on one path, interleaved on the other",
        packed.GroupedTiled, packed.Grouped, BACKENDS, reads=VECTORS),
    Row("G", "one path ignores the mask", packed.MaskIgnoredByHand, packed.Grouped, BACKENDS, reads=VECTORS),
    Row("G", "one path has another scale", packed.FlashScaled, packed.Flash, BACKENDS),

    Row("H", "frequencies with a floored exponent",
        tables.frequencies_of_a_floor, tables.frequencies, (FORMULA,)),
    Row("H", "frequencies divided by half the width",
        tables.frequencies_of_the_whole_width, tables.frequencies, (FORMULA,)),
    Row("H", "slopes of a linear bias counted from 0", tables.slopes_from_0, tables.slopes, (FORMULA,)),
    Row("H", "buckets of one side used both ways", tables.buckets_one_sided, tables.buckets, (FORMULA,)),
    Row("H", "buckets of the two sides exchanged", tables.buckets_after_first, tables.buckets, (FORMULA,)),
    Row("H", "one rotary base for layers that need two",
        tables.rotary_of_one_base, tables.rotary_of_layers, (FORMULA,)),
    Row("H", "the rotary of a mixed stack on the wrong layers",
        tables.rotary_of_other_layers, tables.rotary_of_layers, (FORMULA,)),
    Row("H", "a long context's factor applied twice", tables.stretched_twice, tables.stretched, (FORMULA,)),
    Row("H", "the shift of a causal relative table used both ways",
        tables.relative_shifted, tables.relative, (FORMULA,)),
    Row("H", "the table of positions runs along the batch",
        causal.TableOverRows, causal.TableOverTime, BATCH),
    Row("H", "the same, where positions can be given", placed.OverBatch, Learned, POSITIONS, reads=TOKENS_64),
    Row("H", "positions restart at a real input whose id is the pad's", placed.AtPadId, Learned, POSITIONS,
        reads=TOKENS_64),
    Row("H", "positions counted by column", placed.Columns, Learned, POSITIONS, reads=TOKENS_64),
    Row("H", "the first row's positions for all", placed.OneForAll, Learned, POSITIONS, reads=TOKENS_64),
    Row("H", "rotary angles through a half precision", placed.ThroughHalf, Small, ("order.resolution",),
        reads=TOKENS_64),
    Row("H", "rotary on queries alone", placed.KeysLeft, Small, ("order.shift",), reads=TOKENS_64),
    Row("H", "a set whose weights belong to places", sets.WeightsOfLength, sets.Pooled, BLIND, reads=VECTORS),
    Row("H", "a set with a stray bias on one member", sets.StrayBias, sets.Pooled, BLIND, reads=VECTORS),
    Row("H", "a set with a norm whose gains belong to places",
        sets.NormOfPlaces, sets.Pooled, BLIND, reads=VECTORS),

    Row("J", "targets shifted once too often", tables.data_shifted, tables.data, (SOLVER,)),
    Row("J", "answers read one place late", tables.data_asked_late, tables.data, (SOLVER,)),
    Row("J", "starts put before, and the places kept", tables.data_with_two_starts, tables.data, (SOLVER,)),
    Row("J", "answers that a blind guess has", tables.data_given_away, tables.data, (SOLVER,)),

    Row("K", "the chunked form decays once too often at each border",
        cached.ChunkedFormDecays, cached.ChunkedForm, CACHE),
    Row("K", "each chunk is divided by its own normaliser", causal.NormOfTheChunk, causal.Matrix, CACHE),
    Row("K", "the state decays once more at every call", cached.DecayOncePerCall, State, CACHE + CHUNKS),
    Row("K", "the parallel form turns the carried state, one step does not",
        cached.StateTransformed, State, CHUNKS),
    Row("K", "the carried state is read transposed", causal.MatrixTransposed, causal.Matrix, CACHE),
    Row("K", "the same, by the parallel form alone", causal.MatrixTransposedByChunks, causal.Matrix, CHUNKS),
    Row("K", "the scan ignores the carried state", cached.StateIgnored, State, CACHE),
    Row("K", "the scan of several inputs ignores it", cached.StateIgnoredByChunks, State, CHUNKS),
)  # fmt: skip
"""Every fault."""

CACHED = ("routing.causal", "routing.batch", "routing.cache", "routing.chunks")
DECODES = ("routing.causal", "routing.batch", "routing.padding", "routing.cache", "routing.chunks")
ALARMS = (
    Alarm("low precision", right.halved, DECODES),
    Alarm("float32 inside a float64 model", right.FloatIsland, DECODES),
    Alarm("dropout and a batch norm, left in training mode", right.Training),
    Alarm("outputs at padding that are no number", right.NoNumberAtPads),
    Alarm("a prefix and an image that are seen both ways on purpose", right.Prefix, ("routing.batch",)),
    Alarm("an option to see both ways", packed.MeansAnother, reads=VECTORS),
    Alarm("an encoder", right.Encoder, ("routing.batch", "routing.padding")),
    Alarm("a forecaster that sees placeholders", right.Forecaster, ("routing.batch",)),
    Alarm("experts without a capacity", of(right.Experts)),
    Alarm(
        "experts with a capacity, asked for causality", of(right.ExpertsOfCapacity), CAUSAL, promised=False
    ),
    Alarm(
        "rotary pairs that are neighbours, with weights permuted",
        right.Interleaved,
        (*DECODES, "order.shift"),
    ),
    Alarm("a sink that takes spare attention", right.Sink, DECODES),
    Alarm("a first input that is always kept", right.FirstAndLatest, CACHED),
    Alarm("a decoder without positions", right.Unordered, DECODES),
    Alarm("a set without positions", right.ASet, ("routing.batch", "routing.padding", "order.blind")),
    Alarm(
        "rotary that scales with the length",
        right.ScaledByLength,
        ("routing.causal", "order.shift", "routing.batch"),
    ),
    Alarm("random sparse attention", right.Scattered, CACHED),
    Alarm("block-sparse attention", right.OfBlocks, CACHED),
    Alarm("more queries than keys, the first without any", of(right.FewerKeys), ("routing.batch",)),
    Alarm("a constant added to all scores of a query", right.Gauged, DECODES),
    Alarm("a stabiliser of the batch that cancels", of(causal.StabiliserCancels)),
    Alarm("a state whose output sees the present input", right.Skipped, (*DECODES, "routing.repeatable")),
    Alarm("packing that is not isolated, where nobody says so", Decoder, DECODES),
    Alarm("heads that share keys and values", right.Grouped, DECODES),
    Alarm("a linear bias by column, beside a mask and a window", cached.AlibiByColumn, DECODES),
    Alarm("angles from a table in float32", padded.TabledAngles, DECODES),
    Alarm("nothing carried, since nothing earlier matters", cached.Pointwise),
)
"""What is right, and must not be refuted."""
