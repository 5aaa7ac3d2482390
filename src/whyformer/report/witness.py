"""A stored counterexample, drawn as a reader would draw it: two runs, what differs, where it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

MOST = 24
"""How many inputs of a row are drawn; around the place that matters where there are more."""

MARK = "bold red"


def witness_view(counterexample: Mapping[str, Any]) -> Text | None:
    """The drawing of a counterexample that holds two runs; None for any other.

    Two runs of one shape that differ in their ids are drawn as a reach map: a row an output, a column an
    input, ``x`` where the changed input moves the output. Others are drawn as their calls, one a line.
    """
    told = counterexample.get("comparison")
    if not told:
        return None
    left, right = told["left"], told["right"]
    (row, time), (other_row, other_time) = told["pairs"][0]
    lines = [
        *_run("left", left, row, time),
        *_run("right", right, other_row, other_time, against=_flat(left, row)),
    ]
    changed = _changed(left, right, row, other_row)
    if changed and time == other_time:
        lines += [Text(), *_map(changed, time, _length(left))]
    return Text("\n").join(lines)


def _run(
    name: str, run: Mapping[str, Any], row: int, time: int, against: Sequence[int] | None = None
) -> list[Text]:
    """The calls of a run: the ids of the row that matters, what differs and the output in question marked."""
    lines, start = [], 0
    calls = run["calls"]
    for number, call in enumerate(calls):
        ids = call["ids"][row]
        label = name if number == 0 else ""
        line = Text(f"{label:<6} ", "dim")
        first = max(0, min(time - start - MOST // 2, len(ids) - MOST)) if len(ids) > MOST else 0
        line.append("… " if first else "")
        for at, token in enumerate(ids[first : first + MOST], first):
            differs = against is not None and len(against) > start + at and against[start + at] != token
            line.append(f"{token}", MARK if differs else "")
            line.append("<" if start + at == time else "", MARK)
            line.append(" ")
        line.append("…" if first + MOST < len(ids) else "")
        for extra in ("mask", "positions"):
            if call.get(extra) is not None:
                line.append(f"  {extra} {_brief(call[extra][row])}", "dim")
        lines.append(line)
        start += len(ids)
        if number == 5 and len(calls) > 7:
            lines.append(Text(f"{'':<6} … {len(calls) - 6} calls more, one input each or so", "dim"))
            break
    rows = len(calls[0]["ids"])
    if rows > 1:
        lines[0].append(f"  row {row} of {rows}", "dim")
    return lines


def _map(changed: list[int], output: int, length: int) -> list[Text]:
    """The reach map of one witness: outputs down, inputs across, the pairs that leak marked."""
    around = sorted({0, output, *changed, length - 1})
    low, high = max(0, around[0]), min(length, max(around[-1] + 1, 2))
    if high - low > MOST:
        low = max(0, min(output, *changed) - 1)
        high = min(length, low + MOST)
    lines = [Text(f"{'':<7}input ", "dim").append(" ".join(f"{t % 10}" for t in range(low, high)))]
    for place in (output,) if high - low > 8 else range(low, high):
        line = Text(f"output {place:>5} ", "dim")
        for at in range(low, high):
            leak = place == output and at in changed
            line.append("x " if leak else "· ", MARK if leak else "dim")
        lines.append(line)
    return lines


def _changed(left: Mapping[str, Any], right: Mapping[str, Any], row: int, other: int) -> list[int]:
    a, b = _flat(left, row), _flat(right, other)
    return [t for t, (x, y) in enumerate(zip(a, b, strict=True)) if x != y] if len(a) == len(b) else []


def _flat(run: Mapping[str, Any], row: int) -> list[int]:
    return [token for call in run["calls"] for token in call["ids"][row]]


def _length(run: Mapping[str, Any]) -> int:
    return sum(len(call["ids"][0]) for call in run["calls"])


def _brief(numbers: Sequence[int]) -> str:
    shown = " ".join(map(str, numbers[:MOST]))
    return shown + (" …" if len(numbers) > MOST else "")
