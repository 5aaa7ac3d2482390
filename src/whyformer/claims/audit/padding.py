"""The claim that masked positions change nothing at real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.claims.audit.consumed import agrees, apart, sees_later, uses_mask, without
from whyformer.claims.audit.dependency import ordinary_length, settings_of
from whyformer.claims.audit.probing import Asked, Draws, Probe, Sizes, full, settle
from whyformer.claims.audit.specimens import Decoder, decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding, Verdict
from whyformer.instruments.agreement import Call, Comparison, Examiner, Grid, Place, Run
from whyformer.subjects.subject import PLAIN, Settings, SubjectError

ID = "routing.padding"
_LEFT, _RIGHT = 0, 1
_SIDES = ("left", "right")
_CONTENTS = ("random", "the pad id", "real inputs of the row", "inputs of unusual size")
_RANDOM, _PAD_ID, _REAL, _LOUD = range(4)


@dataclass(frozen=True)
class Layout:
    """Rows of unequal length in one grid of columns, and what is decoded after them.

    Attributes:
        lengths: the real inputs of each row before any step; 0 for a row that is wholly masked.
        width: the columns.
        side: where the padding lies.
        steps: single inputs that follow, each real unless the row is wholly masked.
        told: whether a mask is given; without it the pad id tells.
        given: whether positions are given, from the mask's running sum.
    """

    lengths: tuple[int, ...]
    width: int
    side: int
    steps: int = 0
    told: bool = True
    given: bool = False

    def start(self, row: int) -> int:
        """The column of a row's first real input."""
        return self.width - self.lengths[row] if self.side == _LEFT else 0

    def mask(self, steps: int) -> Grid:
        """1 for what is real, after so many steps."""
        return tuple(
            tuple(int(self.start(b) <= c < self.start(b) + n) for c in range(self.width))
            + (int(n > 0),) * steps
            for b, n in enumerate(self.lengths)
        )

    def positions(self, steps: int) -> Grid:
        """The running sum of the mask, less one; 0 where that is negative."""
        rows = (torch.tensor(row).cumsum(0) - 1 for row in self.mask(steps))
        return tuple(tuple(row.clamp(min=0).tolist()) for row in rows)

    def places(self, row: int) -> list[Place]:
        """The places of a row's real outputs, in order."""
        first = self.start(row)
        columns = [*range(first, first + self.lengths[row]), *range(self.width, self.width + self.steps)]
        return [(row, c) for c in columns if self.lengths[row]]

    def run(self, real: Grid, pads: Grid, settings: Settings = PLAIN) -> Run:
        """The real inputs of each row among the pads of as wide a grid, and then the steps."""
        rows = []
        for b, n in enumerate(self.lengths):
            if n == 0:
                rows.append(pads[b])
                continue
            row, first = list(pads[b]), self.start(b)
            row[first : first + n], row[self.width :] = real[b][:n], real[b][n : n + self.steps]
            rows.append(tuple(row))
        calls = []
        for step in range(self.steps + 1):
            seen, end = (0 if step == 0 else self.width + step - 1), self.width + step
            mask = self.mask(step) if self.told else None
            at = tuple(row[seen:end] for row in self.positions(step)) if self.given else None
            calls.append(Call(tuple(row[seen:end] for row in rows), mask, at))
        return Run(tuple(calls), cached=self.steps > 0, settings=settings)


class _Prober:
    """Builds the comparisons of the claim from sizes.

    Args:
        examiner: whose subject reads them.
        told: whether a mask is given; without it the pad id tells.
    """

    def __init__(self, examiner: Examiner, told: bool) -> None:
        self.examiner, self.told = examiner, told
        self.traits = examiner.subject.traits

    def layout(self, sizes: Sizes) -> Layout | None:
        lengths = tuple(sizes["length"] - sizes["gap"] * b for b in range(sizes["batch"]))
        width = sizes["length"] + sizes["pads"]
        limit = self.traits.max_length
        if min(lengths) < 1 or (limit is not None and width + sizes["steps"] > limit):
            return None
        return Layout(
            lengths + (0,) * sizes["empty"],
            width,
            sizes["side"],
            sizes["steps"],
            self.told,
            bool(sizes["given"]),
        )

    def real(self, layout: Layout, base: int) -> Grid:
        """What each row holds: never the pad id, which a model may tell by itself."""
        pad, most = self.traits.pad, max(2, self.traits.vocabulary - len(self.traits.loud))
        rows = Draws(self.examiner, base).grid(len(layout.lengths), layout.width + layout.steps)
        return tuple(tuple((i + 1) % most if i == pad else i for i in row) for row in rows)

    def pads(self, layout: Layout, contents: int, base: int) -> Grid:
        """What stands in the masked columns."""
        batch, wide = len(layout.lengths), layout.width + layout.steps
        if contents == _PAD_ID:
            return ((self.traits.pad,) * wide,) * batch
        if contents == _LOUD:
            return (tuple(self.traits.loud[c % len(self.traits.loud)] for c in range(wide)),) * batch
        if contents == _REAL:
            return tuple(row[::-1] for row in self.real(layout, base))
        return Draws(self.examiner, base + 101).grid(batch, wide)

    def alone(self, sizes: Sizes, _changed: tuple[int, ...]) -> Comparison | None:
        """A row among padding, and other rows, against the same row by itself and without a mask."""
        layout = self.layout(sizes)
        if layout is None or sizes["row"] >= sizes["batch"]:
            return None
        real = self.real(layout, sizes["base"])
        row, n = sizes["row"], layout.lengths[sizes["row"]]
        single = Layout((n,), n, layout.side, layout.steps, False, layout.given)
        ids = (real[row][: n + layout.steps],)
        pairs = tuple(zip(layout.places(row), single.places(0), strict=True))
        padded = layout.run(real, self.pads(layout, sizes["contents"], sizes["base"]))
        return Comparison(padded, single.run(ids, ids), pairs)

    def contents(self, settings: Settings = PLAIN) -> Any:
        """A maker: the same rows among padding of two contents."""

        def build(sizes: Sizes, _changed: tuple[int, ...]) -> Comparison | None:
            layout = self.layout(sizes)
            if layout is None:
                return None
            real = self.real(layout, sizes["base"])
            left, right = (
                layout.run(real, self.pads(layout, contents, sizes["base"]), settings)
                for contents in (sizes["contents"], sizes["other"])
            )
            places = [place for row in range(sizes["batch"]) for place in layout.places(row)]
            return Comparison(left, right, tuple((place, place) for place in places))

        return build

    def probe(self, build: Any, common: Sizes, settings: Settings = PLAIN, /, **more: int) -> Probe:
        """A probe with its call path; what is not said has its plainest value."""
        sizes = {
            "length": 1, "batch": 1, "row": 0, "pads": 0, "gap": 0, "empty": 0, "side": _LEFT,
            "contents": _PAD_ID, "given": 0, "steps": 0, "base": 2,
        } | {**common, **more}  # fmt: skip
        two = f" against {_CONTENTS[sizes['other']]}" if "other" in sizes else ""
        path = {
            "mask": "given" if self.told else "none, told by the pad id",
            "padding": _SIDES[sizes["side"]] if sizes["pads"] or sizes["gap"] else "none",
            "pads": _CONTENTS[sizes["contents"]] + two,
            "positions": "from the mask's running sum" if sizes["given"] else "left to the model",
            "cache": "on" if sizes["steps"] else "off",
            **settings.words(),
        }
        least = {"empty": 0, "row": 0, "batch": 1}
        least |= {"steps": 1} if sizes["steps"] else {}
        least |= {"pads": min(1, sizes["pads"])} | ({} if sizes["pads"] else {"gap": min(1, sizes["gap"])})
        return Probe(sizes, build, path, least | {"length": 1})


def _allowance(asked: Asked) -> Callable[[Comparison], float]:
    """What float32 explains where inputs stand at other columns, and a float64 model may count columns.

    Its angles may have been tabled in float32 before the call: as relative positions they agree, but only as
    far as they were rounded, and no operation of the call tells.
    """
    examiner = asked.examiner

    def allowance(comparison: Comparison) -> float:
        moved = any(a[1] != b[1] for a, b in comparison.pairs)
        given = comparison.left.calls[0].positions is not None
        if given or not moved or examiner.subject.dtype != torch.float64 or asked.other != torch.float32:
            return 0.0
        with examiner.subject.precision(torch.float32):
            return examiner.plain_bound()

    return allowance


def padding(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.padding: rows among padding against the same rows alone, and among other padding."""
    traits = asked.examiner.subject.traits
    if traits.mask:
        return apart(ID, asked, lambda: _masked(asked))
    if not traits.padded:
        return without(ID, asked, "it takes no mask, and no id is set apart for padding")
    if asked.basis != "asked":
        return without(ID, asked, "it takes no mask; that its pad id hides is tried when it is asked")
    return apart(ID, asked, lambda: _settled(asked, _probes(asked, False, (0,))))


_TABLED = "where columns are counted, the same in float32, in which angles may have been tabled"
_HOLDS = "rows among padding against the same rows alone or among other padding, {n} ways"


def _settled(asked: Asked, probes: Iterator[Probe]) -> Finding:
    return settle(ID, asked, probes, _HOLDS, allowance=_allowance(asked), allowed=_TABLED)


def _masked(asked: Asked) -> Finding:
    """The claim on a subject that takes a mask.

    Left padding with the positions left to the model is asked of whoever decodes: a prompt is padded on its
    left. A model that sees both ways and keeps no cache is padded on its right; what it makes of padding on
    its left, positions left out, is said, and refutes nothing.
    """
    examiner = asked.examiner
    traits = examiner.subject.traits
    encoder = not traits.cache and sees_later(examiner)
    left_out = (_LEFT,) if encoder or not traits.left_padding else ()

    def tried(given: tuple[int, ...]) -> Finding:
        return _settled(asked, _probes(asked, True, given, left_out))

    finding = tried((0, 1) if traits.positions else (0,))
    if finding.verdict is Verdict.REFUTED:
        if not uses_mask(examiner):
            return finding.but(reason=f"the mask is ignored; {finding.reason}")
        left_alone = (finding.path or {}).get("positions") == "left to the model"
        if left_alone and traits.positions and tried((1,)).verdict is Verdict.HOLDS:
            return finding.but(
                reason=f"{finding.reason}; with positions given from the mask's running sum it holds"
            )
    elif finding.verdict is Verdict.HOLDS:
        if not uses_mask(examiner):
            return without(ID, asked, "the mask changes nothing, and neither does padding")
        left = _Prober(examiner, True)
        made = left.probe(left.alone, {}, length=min(8, examiner.length), pads=3).comparison()
        if left_out and made is not None and not agrees(examiner, made):
            needs = "needs positions given" if traits.positions else "is not for it"
            return finding.but(reason=f"{finding.reason}; left padding {needs}")
    return finding


def _probes(
    asked: Asked, told: bool, given: tuple[int, ...], left_out: tuple[int, ...] = ()
) -> Iterator[Probe]:
    """All probes, the cheap ones first; ``left_out`` are the sides not tried without positions."""
    examiner = asked.examiner
    make = _Prober(examiner, told)
    traits = examiner.subject.traits
    length = ordinary_length(examiner, 16 if traits.large else 24)
    length = max(2, min(length, (traits.max_length or length + 16) - 10))
    beside = _rows_are_apart(examiner, length)
    for positions in given:
        for side in (_LEFT, _RIGHT):
            # Padding on the right moves no position, so a dear subject is not asked twice.
            asked_before = traits.large and positions == 1 and side == _RIGHT and 0 in given
            if not asked_before and (positions or side not in left_out):
                yield from _on_side(make, length, {"side": side, "given": positions}, beside)
        if told:
            yield make.probe(make.alone, {"given": positions}, length=length)
        if traits.cache:
            yield from _decoded(make, length, positions, beside)
    if told and not traits.large:
        yield from _other_ways(make, asked, length)


def _on_side(make: _Prober, length: int, common: dict[str, int], beside: bool) -> Iterator[Probe]:
    """A row alone, with much padding and little, among other contents, and beside other rows."""
    yield make.probe(make.alone, common, length=length, pads=5)
    if not make.traits.large:
        yield make.probe(make.alone, common, length=max(2, length // 4), pads=9, base=3)
    if make.told:
        yield from _other_contents(make, length, common)
    if beside:
        yield from _unequal(make, length, common)


def _rows_are_apart(examiner: Examiner, length: int) -> bool:
    """Whether rows without padding keep apart: where they do not, routing.batch is at fault."""
    ids = Draws(examiner, 2).grid(3, length)
    for row in (0, 2):
        pairs = tuple(((row, t), (0, t)) for t in range(length))
        if not agrees(examiner, Comparison(full(ids), full((ids[row],)), pairs)):
            return False
    return True


def _other_contents(make: _Prober, length: int, common: dict[str, int]) -> Iterator[Probe]:
    pairs = [(_PAD_ID, _RANDOM), (_PAD_ID, _REAL)] + ([(_PAD_ID, _LOUD)] if make.traits.loud else [])
    for contents, other in pairs[:1] if make.traits.large else pairs:
        yield make.probe(make.contents(), common, length=length, pads=4, contents=contents, other=other)


def _unequal(make: _Prober, length: int, common: dict[str, int]) -> Iterator[Probe]:
    """Rows of unequal length, the first without padding; then with a row that is all padding."""
    contents = _RANDOM if make.told else _PAD_ID
    gap = max(1, (length - 1) // 3)
    for row in _rows(make):
        yield make.probe(make.alone, common, length=length, batch=3, gap=gap, row=row, contents=contents)
    if make.told and not make.traits.large:
        for row in range(2):
            yield make.probe(make.alone, common, length=length, batch=2, gap=2, row=row, empty=1)


def _rows(make: _Prober) -> tuple[int, ...]:
    """The rows of three that are looked at: the one without padding, and those with it."""
    return (0, 2) if make.traits.large else (0, 1, 2)


def _decoded(make: _Prober, length: int, given: int, beside: bool) -> Iterator[Probe]:
    """A padded prompt, then single steps: left, rows together, and right where a hole does no harm.

    A prompt padded on its right leaves a hole before the first step. Whoever counts columns (windows,
    distances) may see the hole, so it is tried on very short rows, and on a model that takes positions only
    where the hole does no harm in one call; its contents may matter nowhere.
    """
    steps = 3 if make.traits.large else 5
    common = {"given": given, "steps": steps, "contents": _PAD_ID if not make.told else _RANDOM}
    yield make.probe(make.alone, common, length=length, pads=3)
    if beside:
        gap = max(1, (length - 1) // 3)
        for row in _rows(make):
            yield make.probe(make.alone, common, length=length, batch=3, gap=gap, row=row)
    if not make.told:
        return
    yield make.probe(make.contents(), common, length=length, pads=3, other=_PAD_ID)
    common |= {"side": _RIGHT}
    yield make.probe(make.contents(), common, length=length, pads=3, other=_PAD_ID)
    if (make.traits.positions and not given) or not _hole_is_harmless(make):
        return
    common |= {"steps": 1}
    yield make.probe(make.alone, common, length=2, pads=1)
    if beside:
        yield make.probe(make.alone, common, length=3, batch=2, gap=1, row=1)


def _hole_is_harmless(make: _Prober) -> bool:
    """Whether one call over a row with a masked hole in it equals the row without.

    A kernel or a window that counts columns rightly sees the hole, however well it is masked.
    """
    given = ((0, 1, 1, 2),), ((0, 1, 2),)
    holed_at, plain_at = given if make.traits.positions else (None, None)
    real = make.real(Layout((3,), 3, _RIGHT), 2)[0]
    holed = Call(((*real[:2], make.traits.pad, real[2]),), ((1, 1, 0, 1),), holed_at)
    plain = Call((real,), None, plain_at)
    pairs = (((0, 0), (0, 0)), ((0, 1), (0, 1)), ((0, 3), (0, 2)))
    try:
        return agrees(make.examiner, Comparison(Run((holed,)), Run((plain,)), pairs))
    except SubjectError:
        return False


def _other_ways(make: _Prober, asked: Asked, length: int) -> Iterator[Probe]:
    """Other contents on every other path, and with raised scores, where a finite mask may leak."""
    ways = [*settings_of(asked)[1:], Settings(scale=10.0), Settings(scale=100.0)]
    for settings in ways:
        for side in (_LEFT, _RIGHT):
            yield make.probe(
                make.contents(settings), {}, settings, length=length, batch=2, gap=2, pads=3, side=side,
                other=_LOUD if make.traits.loud else _RANDOM,
            )  # fmt: skip


class _PaddingSeen(Decoder):
    """Every query sees all before it, padding or not."""

    def itself(self, seen: int, time: int) -> Tensor:
        return self.allowed(seen, time)


CLAIMS = (
    Claim(
        id=ID,
        sentence="Masked positions change nothing at real ones.",
        mathematics="""\
For every row x, and every row x' that holds x's inputs in order among masked ones: the outputs of f(x', mask)
at the real places are those of f(x). It is tried with the padding on the left, on the right and nowhere; in a
row alone, beside rows of other lengths, and beside a row that is all padding; with padding of several
contents; and with single steps decoded through the cache after a padded prompt. Outputs at padding may be
anything. Where only the padding's content differs the two runs have one shape, so equal bits are expected;
elsewhere kernels sum in another order.""",
        instrument="agreement of a row's real outputs with those of the row alone, and among other padding",
        rule="refuted where a real output moves beyond rounding, or is no number; holds where none does; "
        "inapplicable where neither the mask nor the padding changes anything",
        scope="sampled: both sides, rows of three lengths, four contents, positions left and given",
        breaks="attention that sees the padding; positions counted from column 0; a state that it enters",
        source="the definition of a padding mask",
        test=padding,
        specimen=decoder(),
        refuter=decoder(_PaddingSeen),
    ),
)
