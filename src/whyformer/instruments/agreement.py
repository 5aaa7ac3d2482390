"""Do two ways of running a subject give the same outputs? The deviation, and what rounding explains of it.

Every claim of the audit is put as a :class:`Comparison`: two runs, and the outputs of each that ought to be
equal. A run is a list of calls that hand a cache from one to the next, so that decoding, chunks, padding and
a changed input are all the same kind of thing, and each is data that can be stored and run again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.instruments.jitter import Jitter
from whyformer.subjects.subject import PLAIN, Output, Settings, Subject, SubjectError, failure

Grid = tuple[tuple[int, ...], ...]
"""Integers of shape (batch, time), hashable."""

SAFETY = 32.0
"""How many times the largest of a few jittered deviations counts as explained by rounding.

A jittered run moves each elementary result by up to one unit in the last place; a reordered sum of k terms
can move it by up to k units and typically by its square root, which 32 covers to k = 1,024 in the typical
case. Real faults stand orders of magnitude above it in float64.
"""


_BLOCK = 1 << 20
"""How many numbers are compared at a time: outputs over a large vocabulary fill the memory by themselves."""


@dataclass(frozen=True)
class Call:
    """One call: ids, and mask and positions where they are given."""

    ids: Grid
    mask: Grid | None = None
    positions: Grid | None = None


@dataclass(frozen=True)
class Run:
    """Calls in turn on one subject; where ``cached``, each hands its cache to the next."""

    calls: tuple[Call, ...]
    cached: bool = False
    settings: Settings = PLAIN

    @property
    def shape(self) -> Hashable:
        """All but the content: the calls' sizes, what they were given beside ids, and how they are run."""
        calls = tuple((len(c.ids), len(c.ids[0]), c.mask, c.positions) for c in self.calls)
        return calls, self.cached, self.settings

    def as_data(self) -> dict[str, Any]:
        """The run as plain data, for a stored counterexample."""
        calls = []
        for call in self.calls:
            row: dict[str, Any] = {"ids": [list(r) for r in call.ids]}
            if call.mask is not None:
                row["mask"] = [list(r) for r in call.mask]
            if call.positions is not None:
                row["positions"] = [list(r) for r in call.positions]
            calls.append(row)
        data: dict[str, Any] = {"calls": calls, "cached": self.cached}
        if self.settings != PLAIN:
            data["settings"] = {
                "backend": self.settings.backend,
                "options": dict(self.settings.options),
                "train": self.settings.train,
                "scale": self.settings.scale,
            }
        return data

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Run:
        """The run that :meth:`as_data` described."""

        def grid(rows: list[list[int]] | None) -> Grid | None:
            return None if rows is None else tuple(tuple(int(i) for i in row) for row in rows)

        given = data.get("settings")
        settings = PLAIN
        if given:
            settings = Settings(
                given["backend"], tuple(given["options"].items()), given["train"], given["scale"]
            )
        calls = tuple(
            Call(grid(c["ids"]) or (), grid(c.get("mask")), grid(c.get("positions"))) for c in data["calls"]
        )
        return Run(calls, data["cached"], settings)


Place = tuple[int, int]
"""An output: its row and its time, counted over all calls of a run."""


@dataclass(frozen=True)
class Comparison:
    """Two runs and the outputs that ought to be equal, pair by pair."""

    left: Run
    right: Run
    pairs: tuple[tuple[Place, Place], ...]

    @property
    def one_shape(self) -> bool:
        """Whether the two runs differ by content alone, so that right ones agree to the last bit."""
        return self.left.shape == self.right.shape

    def as_data(self) -> dict[str, Any]:
        """The comparison as plain data."""
        pairs = [[list(a), list(b)] for a, b in self.pairs]
        return {"left": self.left.as_data(), "right": self.right.as_data(), "pairs": pairs}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Comparison:
        """The comparison that :meth:`as_data` described."""
        pairs = tuple(((a[0], a[1]), (b[0], b[1])) for a, b in data["pairs"])
        return Comparison(Run.from_data(data["left"]), Run.from_data(data["right"]), pairs)


@dataclass(frozen=True)
class Deviation:
    """How far a comparison's outputs lie apart.

    Attributes:
        size: the largest absolute difference; infinity where one side is not finite and the other is.
        pair: the pair of places where it is met.
        left: the output on the left there, at its most different entry.
        right: the same on the right.
        entry: the index of that entry along the output's last axis.
    """

    size: float
    pair: tuple[Place, Place]
    left: float
    right: float
    entry: int


class Examiner:
    """Runs a subject for the instruments, shares what was run before, and counts the cost.

    Args:
        subject: what is examined.
        length: the length of an ordinary input.
        seed: what draws and jitter follow from.
        keep_bytes: how many bytes of outputs are kept for later claims.

    Attributes:
        forwards: calls of the subject so far.
        cost: the same in plain forwards of ``length``: inputs read, divided by ``length``.
    """

    def __init__(self, subject: Subject, length: int, seed: int, keep_bytes: int = 1 << 26) -> None:
        self.subject, self.length, self.seed = subject, length, seed
        self.forwards, self.read = 0, 0
        self._kept: OrderedDict[tuple[Run, torch.dtype], Tensor] = OrderedDict()
        self._keep_bytes = keep_bytes
        self._plain_bound: dict[torch.dtype, float] = {}
        self._noise: dict[torch.dtype, float] = {}

    def ordinary(self) -> Run:
        """One row of ordinary ids, of the examiner's length, in one call."""
        generator = torch.Generator().manual_seed(self.seed)
        traits = self.subject.traits
        ids = torch.randint(traits.vocabulary - len(traits.loud), (1, self.length), generator=generator)
        return Run((Call((tuple(ids[0].tolist()),)),))

    @property
    def noise(self) -> float:
        """By how much two equal calls differ, whatever was run in between; 0 where they repeat."""
        dtype = self.subject.dtype
        if dtype not in self._noise:
            run = self.ordinary()
            gap = (self.output(run).double() - self._execute(run).double()).abs()
            self._noise[dtype] = float(gap.nan_to_num(0.0, 0.0, 0.0).max())
        return self._noise[dtype]

    @property
    def cost(self) -> float:
        """Inputs read so far, in forwards of ``length``."""
        return self.read / self.length

    def output(self, run: Run) -> Float[Tensor, "batch time out"]:
        """The outputs of all calls of a run, joined along time; kept, so that claims share them."""
        key = (run, self.subject.dtype)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        y = self._execute(run)
        self._kept[key] = y
        while sum(t.nbytes for t in self._kept.values()) > self._keep_bytes and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return y

    def again(self, run: Run) -> Float[Tensor, "batch time out"]:
        """The same, run anew whatever was kept."""
        return self._execute(run)

    def _execute(self, run: Run) -> Tensor:
        cache, outputs = None, []
        for call in run.calls:
            ids = torch.tensor(call.ids, dtype=torch.int64)
            self.forwards += 1
            self.read += ids.numel()
            result = self._called(
                ids,
                mask=None if call.mask is None else torch.tensor(call.mask, dtype=torch.int64),
                positions=None if call.positions is None else torch.tensor(call.positions, dtype=torch.int64),
                cache=cache if run.cached else None,
                use_cache=run.cached,
                settings=run.settings,
            )
            cache = result.cache
            if run.cached and cache is None:
                raise SubjectError("use_cache=True", "no cache came back", "return (y, past) when it is set")
            outputs.append(result.y)
        return torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]

    def _called(self, ids: Tensor, **given: Any) -> Output:
        """One call; whatever a subject of the user's own raises is told as a SubjectError."""
        try:
            return self.subject.call(ids, **given)
        except Exception as error:
            raise failure(self.subject.name, ids.shape, error) from error

    def deviation(self, comparison: Comparison) -> Deviation:
        """How far the two sides lie apart, in the subject's present precision."""
        left, right = self.output(comparison.left), self.output(comparison.right)
        blocks = _blocks(comparison.pairs, left.shape[2])
        return max((_apart(_at(left, b, 0), _at(right, b, 1), b) for b in blocks), key=lambda d: d.size)

    def bound(self, comparison: Comparison, draws: int = 2) -> float:
        """What rounding explains of a comparison: SAFETY times the most that jitter moves its difference.

        Both sides are run under the same jitter, and the difference between them is compared with the one
        that was found without. Every elementary operation moves by up to one unit in the last place of *its
        own* dtype, so a float32 island inside a float64 model raises the bound to what that island deserves;
        and where two runs of one shape differ by content alone, what they share cancels, so that a leak far
        below the island's noise still stands out.
        """
        left, right = self.output(comparison.left), self.output(comparison.right)
        worst = 0.0
        for draw in range(draws):
            with Jitter(self.seed + 7919 * draw):
                moved_left = self._execute(comparison.left)
            with Jitter(self.seed + 7919 * draw):
                moved_right = self._execute(comparison.right)
            for block in _blocks(comparison.pairs, left.shape[2]):
                base = _at(left, block, 0).double() - _at(right, block, 1).double()
                moved = _at(moved_left, block, 0).double() - _at(moved_right, block, 1).double()
                worst = max(worst, float((moved - base).abs().nan_to_num(0.0, 0.0, 0.0).max()))
        return SAFETY * worst

    def plain_bound(self) -> float:
        """What rounding explains of an ordinary run's outputs; measured once a precision."""
        dtype = self.subject.dtype
        if dtype not in self._plain_bound:
            run = self.ordinary()
            base = self.output(run)
            with Jitter(self.seed):
                moved = (self._execute(run) - base).abs()
            self._plain_bound[dtype] = SAFETY * float(moved.nan_to_num(0.0, 0.0, 0.0).max())
        return self._plain_bound[dtype]


def _blocks(pairs: tuple[tuple[Place, Place], ...], width: int) -> Iterator[tuple[tuple[Place, Place], ...]]:
    """The pairs, so many at a time that their outputs are few numbers."""
    step = max(1, _BLOCK // max(1, width))
    for start in range(0, len(pairs), step):
        yield pairs[start : start + step]


def _at(y: Tensor, pairs: tuple[tuple[Place, Place], ...], side: int) -> Float[Tensor, "pairs out"]:
    rows = torch.tensor([pair[side][0] for pair in pairs])
    times = torch.tensor([pair[side][1] for pair in pairs])
    return y[rows, times]


def _apart(left: Tensor, right: Tensor, pairs: tuple[tuple[Place, Place], ...]) -> Deviation:
    same = (left == right) | (left.isnan() & right.isnan())
    gap = torch.where(same, 0.0, (left.double() - right.double()).abs()).nan_to_num(torch.inf, torch.inf)
    flat = int(gap.argmax())
    row, entry = divmod(flat, gap.shape[1])
    return Deviation(
        float(gap[row, entry]), pairs[row], float(left[row, entry]), float(right[row, entry]), entry
    )
