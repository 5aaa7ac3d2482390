"""The heads of a model for the terminal: a map, the best ones, what taking them out does, curves by gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whyformer.report.pictures import spark
from whyformer.report.terminal import figure, safe

SHADES = " ░▒▓█"
"""A map's cells, from 0 to 1 in equal steps of the square root, so that small scores show."""
ROOMY = 1000
"""Columns in which any table is whole: what it measures there is what it needs."""
BEST = 8
HIGH = 0.3
TENS = 10
PASSAGE, WORDS = 10, 32
"""Columns that a passage of a text is given at least, and at most."""


def heads_view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Views of the data of ``whyformer/heads/1``, one after the other."""
    subject = data["subject"]
    rows = data.get("rows", 1)
    yield Text(f"{safe(str(subject['name']))}: {_count(len(data['heads']), 'head')}", "bold")
    yield Text(
        f"{_count(rows, 'sequence')} of {data['length']:,} tokens; {data['path']}; seed {data['seed']}", "dim"
    )
    if data.get("null_length", data["length"]) < data["length"]:
        few = f"the null on {data['null_length']:,} tokens, at other places: there are too few different ones"
        yield Text(few, "dim")
    for kind, sentence in (
        ("induction", "to what followed an earlier twin"),
        ("previous", "to the token before"),
    ):
        yield ""
        yield Text.assemble((kind, "bold"), (f"  {sentence}; layers across, heads down", "dim"))
        yield Padding(HeadMap(data["heads"], kind), (1, 0, 0, 2))
    steps = ", ".join(f"{shade} from {(at / len(SHADES)) ** 2:.2g}" for at, shade in enumerate(SHADES) if at)
    yield Text(f"\n  {steps}", "dim")
    yield ""
    yield Text.assemble(("the best induction heads", "bold"), (f"  {_clear(data['heads'])}", "dim"))
    yield best_table(data)
    if data.get("gaps"):
        yield ""
        yield Text.assemble(("by gap", "bold"), (f"  {_by_gap(data)}", "dim"))
        yield gap_table(data)
    if data["ablation"]:
        yield ""
        yield Text.assemble(("taken out", "bold"), ("  loss on the second copy, in nats", "dim"))
        yield ablation_table(data)
        yield from _not_measured(data["ablation"])
    if data.get("compositions"):
        yield ""
        yield Text.assemble(
            ("composition", "bold"), ("  induction score when keys or queries come without a head", "dim")
        )
        yield composition_table(data["compositions"])
    if "text" in data:
        yield ""
        yield from text_view(data["text"])
    if "forwards" in data:
        cost = f"cost: as much as {figure(data['forwards'])} forwards of {data['length']:,} tokens"
        yield Text(f"\n{cost}", "dim")


def _clear(heads: Sequence[Mapping[str, Any]]) -> str:
    """How many heads match by more than sequences without repeats explain."""
    clear = [
        head["interval"]["induction"][0] > head["null"]["interval"]["induction"][1]
        for head in heads
        if "interval" in head
    ]
    high = sum(head["induction"] >= HIGH for head in heads)
    return f"{high} above {HIGH:g}; intervals clear of the null: {sum(clear)} of {len(heads)}"


class HeadMap:
    """A cell for every head, darker for a higher score; a blank column is a layer without attention.

    Layers that find no room in a line go on below, all heads again.

    Args:
        heads: the entries of ``whyformer/heads/1``.
        kind: which of their scores.
    """

    def __init__(self, heads: Sequence[Mapping[str, Any]], kind: str) -> None:
        self.layers, self.heads = (1 + max(head[name] for head in heads) for name in ("layer", "head"))
        self.score = {(head["layer"], head["head"]): head[kind] for head in heads}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(options.max_width - self._margin, 1)
        cell = 2 if 2 * self.layers <= room else 1
        fit = room // cell
        # Lines begin at tens, so that layers are easily counted.
        fit = fit if fit >= self.layers or fit < TENS else fit - fit % TENS
        for first in range(0, self.layers, fit):
            yield self._part(range(first, min(first + fit, self.layers)), cell)

    @property
    def _margin(self) -> int:
        return len(str(self.heads - 1)) + 1

    def _part(self, layers: range, cell: int) -> Text:
        """All heads of some layers."""
        scale = ""
        for layer in layers:
            if layer == layers[0] or layer % TENS == layers[0] % TENS == 0:
                scale = f"{scale:<{(layer - layers[0]) * cell}}{layer}"
        # A number that the last column has no room for is left out.
        scale = scale if len(scale) <= len(layers) * cell or len(layers) == 1 else scale.rpartition(" ")[0]
        drawing = Text(" " * self._margin + scale.rstrip(), "dim")
        for head in range(self.heads):
            drawing.append(f"\n{head:>{self._margin - 1}} ", "dim")
            line = "".join(_shade(self.score.get((layer, head), 0.0)) * cell for layer in layers)
            drawing.append(line.rstrip(), "cyan")
        return drawing


def _shade(score: float) -> str:
    return SHADES[min(int(max(score, 0.0) ** 0.5 * len(SHADES)), len(SHADES) - 1)]


def _not_measured(ablation: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """How many runs gave no loss, and why."""
    reasons = [row["reason"] for row in ablation if row["loss"] is None]
    for reason in dict.fromkeys(reasons):
        runs = _count(reasons.count(reason), "run")
        yield Text(f"{runs} not measured: {safe(reason)}", "dim")


def best_table(data: Mapping[str, Any]) -> Table:
    """The best induction heads, then those named: scores, the null, copying, and the loss without each.

    Where no head was taken out, there is no such loss, and no column for it.
    """
    single = (row for row in data["ablation"] if len(row["heads"]) == 1 and row["mode"] == "zero")
    alone = {tuple(row["heads"][0]): row["loss"] for row in single if row["loss"] is not None}
    table = _table("head", "induction", "95%", "null", "duplicate", "previous", "first", "copying", "without")
    order = sorted(data["heads"], key=lambda head: -head["induction"])
    named = [head for head in order[BEST:] if [head["layer"], head["head"]] in data.get("named", [])]
    for head in order[:BEST] + named:
        low, high = head.get("interval", {}).get("induction", (0.0, 1.0))
        copied = head.get("copying")
        loss = alone.get((head["layer"], head["head"]))
        table.add_row(
            _name((head["layer"], head["head"])),
            f"{head['induction']:.2f}",
            f"{low:.2f}–{high:.2f}",
            f"{head['null']['induction']:.3f}",
            *(f"{head[kind]:.2f}" for kind in ("duplicate", "previous", "first")),
            "–" if copied is None else f"{copied:.2f}",
            "–" if loss is None else f"{loss:.2f}",
        )
    if not data["ablation"]:
        table.columns.pop()
    return table


def _by_gap(data: Mapping[str, Any]) -> str:
    """What the curves show; past the declared context, positions can be what fails."""
    said = "what is left octave by octave, then with one of the two held"
    context = data.get("context")
    if context is None or data["length"] <= context:
        return said
    return f"{said}; beyond {context:,} tokens a fall with dilution may be one of positions"


def gap_table(data: Mapping[str, Any]) -> Table:
    """The model's lookup and each head's attention by gap, one glyph an octave, and why it falls.

    The last two columns tell distance from dilution: by gap in one octave of contexts, and by context in one
    octave of gaps.
    """
    rows = [(_name(entry["head"]), entry) for entry in data["gaps"]]
    if data.get("lookup", {}).get("by_gap"):
        rows.insert(0, ("lookup", data["lookup"]))
    at = (_held([entry.get(name, {}) for _, entry in rows]) for name in ("distance", "dilution"))
    context, gap = (f"{name} {where}" for name, where in zip(("context", "gap"), at, strict=True))
    begins = {
        which: min(
            (entry[which]["least"][0] for _, entry in rows if entry.get(which, {}).get("least")), default=1
        )
        for which in ("by_gap", "distance", "dilution")
    }
    table = _table("", "by gap", "last", "from", "falls with", context, gap, left=2)
    for column in table.columns[4:]:
        column.justify = "left"
    for name, entry in rows:
        curve = entry["by_gap"]
        if curve["value"]:
            last, least = f"{curve['value'][-1]:.2f}", f"{curve['least'][-1]:,}"
            drawn = [
                _spark(entry.get(which, {}), begins[which]) for which in ("by_gap", "distance", "dilution")
            ]
            table.add_row(name, drawn[0], last, least, entry.get("falls_with") or "", *drawn[1:])
    return table


def _held(curves: Sequence[Mapping[str, Any]]) -> str:
    """The octave in which all of them are held, or that each is held in one of its own."""
    places = {curve["held"] for curve in curves if "held" in curve}
    return f"{places.pop():,}" if len(places) == 1 else "held"


def _spark(curve: Mapping[str, Any], begin: int) -> Text:
    """A glyph for every octave from the first of the column on; one with too few queries is left blank."""
    glyphs = zip(curve.get("least", ()), spark(curve.get("value", ()), 0, 1), strict=True)
    drawn = ""
    for least, glyph in glyphs:
        drawn = drawn.ljust((least // begin).bit_length() - 1) + glyph
    return Text(drawn, "cyan")


def ablation_table(data: Mapping[str, Any]) -> Table:
    """The loss by what was taken out; random draws are put together."""
    table = _table("taken out", "heads", "mode", "loss", "95%", "rise", left=1)
    baseline = data["ablation"][0]["baseline"]
    for row in data["ablation"]:
        if row.get("group") != "random":
            _loss_row(table, _taken(row), len(row["heads"]), row, baseline)
    for row in data.get("random", ()):
        low, high = row["interval"]
        name = f"random, {row['draws']} draws"
        _loss_row(table, name, row["heads"], row, baseline, f"{low:.2f}–{high:.2f}")
    table.add_row("nothing", "0", "", f"{baseline:.2f}")
    return table


def _taken(row: Mapping[str, Any]) -> str:
    """What was taken out, in words."""
    group = row.get("group", "")
    if group == "single":
        return _name(row["heads"][0])
    return "those named" if group == "named" else f"best of {group}"


def _loss_row(
    table: Table, name: str, heads: int, row: Mapping[str, Any], baseline: float, interval: str = ""
) -> None:
    loss, rise = (
        ("–", "") if row["loss"] is None else (f"{row['loss']:.2f}", f"{row['loss'] - baseline:+.2f}")
    )
    table.add_row(name, str(heads), row["mode"], loss, interval, rise)


def composition_table(compositions: Sequence[Mapping[str, Any]]) -> Table:
    """The pairs whose score falls most by the keys."""
    table = _table("from", "to", "score", "its keys without", "its queries without", left=2)
    for pair in compositions[:BEST]:
        figures = (
            "–" if pair[name] is None else f"{pair[name]:.2f}" for name in ("score", "keys", "queries")
        )
        table.add_row(_name(pair["from"]), _name(pair["to"]), *figures)
    return table


def text_view(text: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Where a text repeats itself, and what the best heads give to what followed."""
    said = f"  {text['repeated']:,} of the {text['tokens']:,} tokens read have an earlier twin"
    yield Text.assemble(("your text", "bold"), (said, "dim"))
    table = _table("at", "twin", "passage", *map(_name, text["heads"]), left=0)
    for row in text["passages"]:
        words = " ".join(safe(row["words"]).split())
        shown = words if cell_len(words) <= WORDS else set_cell_size(words, WORDS - 1).rstrip() + "…"
        table.add_row(str(row["at"]), str(row["twin"]), shown, *(f"{x:.2f}" for x in row["attention"]))
    table.add_row("all", "", "", *(f"{x:.2f}" for x in text["attention"]))
    yield table
    yield Text("a passage: to what followed the one twin; all: to what followed any earlier twin", "dim")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _name(head: Sequence[int]) -> str:
    return f"{head[0]}.{head[1]}"


class _Whole(Table):
    """A table that leaves its last columns out where there is no room, and says so, rather than cut figures.

    A passage of a text is no figure: it is cut first.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column in self.columns:
            if column.header == "passage":
                longest = max(cell_len(str(cell)) for cell in column.cells)
                column.max_width = max(PASSAGE, longest - self._beyond(console, options))
        left_out: list[str] = []
        while len(self.columns) > 1 and self._beyond(console, options) > 0:
            left_out.insert(0, str(self.columns.pop().header))
        yield from super().__rich_console__(console, options)
        if left_out:
            yield Text(f"no room for: {', '.join(left_out)}", "dim")

    def _beyond(self, console: Console, options: ConsoleOptions) -> int:
        """How many columns the table wants that are not there; less than 0 where some are left."""
        return console.measure(self, options=options.update_width(ROOMY)).maximum - options.max_width


def _table(*columns: str, left: int = 1) -> Table:
    """A plain table, its first columns set left and the others right."""
    table = _Whole(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for at, column in enumerate(columns):
        table.add_column(
            column, justify="left" if at < left or column == "passage" else "right", no_wrap=True
        )
    return table
