"""The heads of a model for the terminal: a map, the best ones, what taking them out does, curves by gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from whyformer.report.pictures import spark
from whyformer.report.terminal import figure, picture, safe

SHADES = " ░▒▓█"
"""A map's cells, from 0 to 1 in equal steps of the square root, so that small scores show."""
WIDEST = 66
"""Cells that a line of the map has room for."""
BEST = 8
HIGH = 0.3


def heads_view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Views of the data of ``whyformer/heads/1``, one after the other."""
    subject = data["subject"]
    rows = data.get("rows", 1)
    yield Text(f"{safe(str(subject['name']))}: {len(data['heads']):,} heads", "bold")
    yield Text(f"{rows} sequences of {data['length']:,} tokens; {data['path']}; seed {data['seed']}", "dim")
    for kind, sentence in (
        ("induction", "to what followed an earlier twin"),
        ("previous", "to the token before"),
    ):
        yield ""
        yield Text.assemble((kind, "bold"), (f"  {sentence}; layers across, heads down", "dim"))
        yield picture(head_map(data["heads"], kind))
    yield Text.assemble(("the best induction heads", "bold"), (f"  {_clear(data['heads'])}", "dim"))
    yield best_table(data)
    if data.get("gaps"):
        yield ""
        yield Text.assemble(("by gap", "bold"), ("  how much of it is left, octave by octave", "dim"))
        yield picture(gap_curves(data))
    if data["ablation"]:
        yield Text.assemble(("taken out", "bold"), ("  loss on the second copy, in nats", "dim"))
        yield ablation_table(data)
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


def head_map(heads: Sequence[Mapping[str, Any]], kind: str) -> Text:
    """A cell for every head, darker for a higher score; a blank column is a layer without attention."""
    layers = 1 + max(head["layer"] for head in heads)
    count = 1 + max(head["head"] for head in heads)
    score = {(head["layer"], head["head"]): head[kind] for head in heads}
    cell = 2 if 2 * layers <= WIDEST else 1
    shown = min(layers, WIDEST)
    drawing = Text("   " + "".join(f"{at:<{10 * cell}}" for at in range(0, shown, 10)).rstrip(), "dim")
    for head in range(count):
        drawing.append(f"\n{head:>2} ", "dim")
        line = "".join(_shade(score.get((layer, head), 0.0)) * cell for layer in range(shown))
        drawing.append(line.rstrip(), "cyan")
    if shown < layers:
        drawing.append(f"\n   and {layers - shown} layers more", "dim")
    return drawing


def _shade(score: float) -> str:
    return SHADES[min(int(max(score, 0.0) ** 0.5 * len(SHADES)), len(SHADES) - 1)]


def best_table(data: Mapping[str, Any]) -> Table:
    """The best induction heads: their scores, the null, copying, and the loss with each alone taken out."""
    alone = {tuple(row["heads"][0]): row["loss"] for row in data["ablation"] if len(row["heads"]) == 1}
    table = _table("head", "induction", "95%", "null", "duplicate", "previous", "first", "copying", "without")
    for head in sorted(data["heads"], key=lambda head: -head["induction"])[:BEST]:
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
    return table


def gap_curves(data: Mapping[str, Any]) -> Text:
    """The model's lookup and each head's attention, by gap: one glyph an octave."""
    rows = [(_name(entry["head"]), entry) for entry in data["gaps"]]
    if data.get("lookup", {}).get("by_gap"):
        rows.insert(0, ("lookup", data["lookup"]))
    drawing = Text()
    for name, entry in rows:
        curve = entry["by_gap"]
        if not curve["value"]:
            continue
        last = f"{curve['value'][-1]:.2f} at gaps from {curve['least'][-1]:,}"
        reason = entry.get("falls_with")
        drawing.append(f"{name:<8}", "dim")
        drawing.append(spark(curve["value"], 0, 1), "cyan")
        drawing.append(f"  {last}" + (f"; falls with {_reason(reason)}\n" if reason else "\n"))
    drawing.rstrip()
    return drawing


def _reason(reason: str) -> str:
    return "distance and with dilution" if reason == "both" else reason


def ablation_table(data: Mapping[str, Any]) -> Table:
    """The loss by what was taken out; random draws are put together."""
    table = _table("taken out", "heads", "mode", "loss", "rise", left=1)
    baseline = data["ablation"][0]["baseline"]
    for row in data["ablation"]:
        if row.get("group") != "random":
            single = row.get("group") == "single"
            name = _name(row["heads"][0]) if single else f"best of {row.get('group', '')}"
            _loss_row(table, name, len(row["heads"]), row, baseline)
    for row in data.get("random", ()):
        low, high = row["interval"]
        name = f"random, {row['draws']} draws, 95%: {low:.2f}–{high:.2f}"
        _loss_row(table, name, row["heads"], row, baseline)
    table.add_row("nothing", "0", "", f"{baseline:.2f}", "")
    return table


def _loss_row(table: Table, name: str, heads: int, row: Mapping[str, Any], baseline: float) -> None:
    rise = f"{row['loss'] - baseline:+.2f}"
    table.add_row(name, str(heads), row["mode"], f"{row['loss']:.2f}", rise)


def composition_table(compositions: Sequence[Mapping[str, Any]]) -> Table:
    """The pairs whose score falls most by the keys."""
    table = _table("from", "to", "score", "its keys without", "its queries without", left=2)
    for pair in compositions[:BEST]:
        figures = (f"{pair[name]:.2f}" for name in ("score", "keys", "queries"))
        table.add_row(_name(pair["from"]), _name(pair["to"]), *figures)
    return table


def text_view(text: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Where a text repeats itself, and what the best heads give to what followed."""
    said = f"  {text['repeated']:,} of {text['tokens']:,} tokens have an earlier twin"
    yield Text.assemble(("your text", "bold"), (said, "dim"))
    table = _table("at", "twin", *map(_name, text["heads"]), "passage", left=0)
    for row in text["passages"]:
        words = " ".join(safe(row["words"]).split())
        shown = words if len(words) <= 32 else words[:31] + "…"
        table.add_row(str(row["at"]), str(row["twin"]), *(f"{x:.2f}" for x in row["attention"]), shown)
    table.add_row("all", "", *(f"{x:.2f}" for x in text["attention"]), "")
    yield table


def _name(head: Sequence[int]) -> str:
    return f"{head[0]}.{head[1]}"


def _table(*columns: str, left: int = 1) -> Table:
    """A plain table, its first columns set left and the others right."""
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    for at, column in enumerate(columns):
        table.add_column(
            column, justify="left" if at < left or column == "passage" else "right", no_wrap=True
        )
    return table
