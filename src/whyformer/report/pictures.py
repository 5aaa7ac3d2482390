"""Small pictures for the terminal: a row of attention, a map of reach, curves and bars.

Each is a function of numbers that returns text; ``terminal.ascii_twin`` has a twin for every glyph used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

from whyformer.report.terminal import figure

EIGHTHS = "▁▂▃▄▅▆▇█"
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}


def spark(values: Sequence[float], low: float, high: float) -> str:
    """One glyph a value, its height from ``low`` to ``high``; what lies outside is clipped."""
    span = high - low
    steps = (math.floor((value - low) / span * (len(EIGHTHS) - 1) + 0.5) if span else 0 for value in values)
    return "".join(EIGHTHS[min(max(step, 0), len(EIGHTHS) - 1)] for step in steps)


def attention_rows(tokens: Sequence[str], rows: Mapping[str, Sequence[float]], query: int) -> Text:
    """The tokens of a sequence, and under each a bar for the weight that the query gives to it, head by head.

    Args:
        tokens: the sequence, already safe to print.
        rows: the head's name and its weights, from 0 to 1; tokens past the end of them are not looked at.
        query: the position that asks; it stands in brackets.
    """
    cells = [f"[{token}]" if at == query else token for at, token in enumerate(tokens)]
    width = max(map(len, cells)) + 1
    name_width = max(map(len, rows)) + 2
    picture = Text(" " * name_width)
    for at, cell in enumerate(cells):
        picture.append(cell.center(width), "bold cyan" if at == query else "")
    for name, weights in rows.items():
        picture.append("\n" + name.ljust(name_width), "dim")
        for weight in weights:
            bar = spark([weight], 0, 1) * max(width - 2, 1)
            picture.append(bar.center(width), "green" if weight > 0.5 else "dim")
    return picture


def reach_map(reaches: Sequence[Sequence[bool]]) -> list[str]:
    """A square that is dark where an output (row) depends on an input (column), two rows to a line."""
    blank = [False] * len(reaches[0])
    rows = [list(row) for row in reaches] + [blank] * (len(reaches) % 2)
    return [
        "".join(_HALVES[bool(top), bool(bottom)] for top, bottom in zip(*pair, strict=True))
        for pair in zip(rows[::2], rows[1::2], strict=True)
    ]


def reach_maps(maps: Mapping[str, Sequence[Sequence[bool]]]) -> Text:
    """Several maps of reach side by side, each under its name."""
    columns = [(name, reach_map(reaches)) for name, reaches in maps.items()]
    widths = [max(len(name), *map(len, lines)) + 4 for name, lines in columns]
    picture = Text()
    for (name, _), width in zip(columns, widths, strict=True):
        picture.append(name.ljust(width), "dim")
    for at in range(max(len(lines) for _, lines in columns)):
        picture.append("\n")
        for (_, lines), width in zip(columns, widths, strict=True):
            picture.append((lines[at] if at < len(lines) else "").ljust(width), "cyan")
    return picture


def curves(rows: Mapping[str, Sequence[float]], *, floor: float, ceiling: float, ends: str) -> Text:
    """Curves on a logarithmic scale, one a line, each ending in its last value.

    Args:
        rows: the curve's name and its values, 0 or more.
        floor: what the lowest glyph stands for; smaller values are drawn as it.
        ceiling: what the highest glyph stands for.
        ends: what the last value is ("at gap 256").
    """
    low, high = math.log10(floor), math.log10(ceiling)
    name_width = max(map(len, rows)) + 2
    picture = Text()
    for name, values in rows.items():
        heights = [math.log10(value) if value > 0 else low for value in values]
        picture.append(name.ljust(name_width), "dim")
        picture.append(spark(heights, low, high), "cyan")
        picture.append(f"  {figure(values[-1])} {ends}\n")
    picture.rstrip()
    return picture


def bars(rows: Mapping[str, int], most: int, width: int = 40) -> Text:
    """Counts as bars, the full width for ``most``; a count above 0 shows at least a sliver."""
    name_width = max(map(len, rows)) + 2
    picture = Text()
    for name, count in rows.items():
        filled = math.ceil(width * count / most)
        picture.append(name.ljust(name_width), "dim")
        picture.append("█" * filled, "cyan")
        picture.append(f" {count:,}\n")
    picture.rstrip()
    return picture
