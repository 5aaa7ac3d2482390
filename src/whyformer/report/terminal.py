"""Findings and reports for the terminal: rich renderables that read well in 80 columns, coloured or not."""

from __future__ import annotations

import codecs
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whyformer.finding import Finding, Report, Verdict
from whyformer.report.witness import witness_view

WIDTH = 80
"""Text is never set wider than this, however wide the terminal."""

STYLES = {
    Verdict.HOLDS: "bold green",
    Verdict.REFUTED: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.INAPPLICABLE: "dim",
}
ANSWERS = {
    Verdict.HOLDS: "YES",
    Verdict.REFUTED: "NO",
    Verdict.INCONCLUSIVE: "UNSURE",
    Verdict.INAPPLICABLE: "–",
}

_ASCII = str.maketrans(
    dict(zip("▁▂▃▄▅▆▇█▀─·•–—−‑×‘’“”⟨⟩", '_.:-=+*#"-.*---' + "-x''\"\"<>", strict=True))
    | {"░": ".", "▒": "+", "▓": "*"}
    | {
        "…": "...",
        "⋯": "...",
        "≤": "<=",
        "≥": ">=",
        "≠": "!=",
        "≡": "==",
        "≈": "~",
        "→": "->",
        "⇒": "=>",
        "⇔": "<=>",
    }
    | {"↦": "|->", "←": "<-", "↑": "^", "√": "sqrt", "∞": "infinity", "∈": "in", "∉": "not in", "∘": "o"}
    | {"⌊": "floor(", "⌋": ")", "⌈": "ceil(", "⌉": ")", "∂": "d", "∇": "grad", "Π": "prod", "∏": "prod"}
    | {"Σ": "sum", "∑": "sum", "‖": "|", "′": "'", "±": "+-", "∀": "for all", "∃": "exists", "∝": "~"}
    | {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "Δ": "Delta", "ε": "eps", "θ": "theta"}
    | {"κ": "kappa", "λ": "lambda", "μ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "π": "pi"}
    | {"ω": "omega", "Ω": "Omega", "Θ": "Theta"}
    | {subscript: f"_{digit}" for digit, subscript in enumerate("₀₁₂₃₄₅₆₇₈₉")}
)
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ]+")


def ascii_twin(text: str) -> str:
    """The text in ASCII: each glyph that whyformer draws has a twin, letters lose their accents.

    What has no twin becomes ``?``.
    """
    text = _RAISED.sub(lambda raised: f"^{unicodedata.normalize('NFKC', raised[0])}", text)
    plain = unicodedata.normalize("NFKD", text.translate(_ASCII)).translate(_ASCII)
    letters = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return letters.encode("ascii", "replace").decode("ascii")


def _encode_twin(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return ascii_twin(error.object[error.start : error.end]), error.end


ENCODING_ERRORS = "whyformer.ascii"
"""The error handler that lets a stream write the ASCII twin of what its encoding cannot carry."""
codecs.register_error(ENCODING_ERRORS, _encode_twin)


def safe(text: str) -> str:
    """Text from outside, fit to print on one line: what a terminal would obey is spelled out instead."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


def figure(number: float) -> str:
    """A number in a few characters: whole numbers in full, rounding errors as ``1.2e-15``."""
    if float(number).is_integer() and abs(number) < 1e9:
        return f"{int(number):,}"
    if 1e3 <= abs(number) < 1e6:
        return f"{number:,.0f}"
    return f"{number:.3g}" if 1e-3 <= abs(number) < 1e3 else f"{number:.1e}"


def figures(measured: float | Mapping[str, Any] | None) -> str:
    """What was measured, in words: one number, or named ones."""
    if measured is None:
        return ""
    if isinstance(measured, Mapping):
        return ", ".join(
            f"{safe(str(name)).replace('_', ' ')} {_short(value)}" for name, value in measured.items()
        )
    return figure(measured)


def heading(
    number: str,
    sentence: str,
    verdict: Verdict,
    *,
    aside: str = "",
    words: Mapping[Verdict, str] = ANSWERS,
) -> Table:
    """A line that gives the sentence, something dim beside it, and at its right edge the answer."""
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(width=3, justify="right", style="dim")
    line.add_column(ratio=1)
    line.add_column(justify="right", min_width=6)
    said = Text.assemble((safe(sentence), "bold"), (f"  {safe(aside)}" if aside else "", "dim"))
    line.add_row(number, said, Text(words[verdict], STYLES[verdict]))
    return line


def rows(lines: Iterable[tuple[str, str | Text]]) -> Padding:
    """Labelled lines under a heading; a line without text is left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(width=9, style="dim", no_wrap=True)
    table.add_column(ratio=1)
    for label, text in lines:
        if text:
            table.add_row(label, Text(safe(text)) if isinstance(text, str) else text)
    return Padding(table, (0, 0, 0, 4))


@dataclass(frozen=True)
class Picture:
    """A drawing whose lines stand whole or not at all: broken ones would show something else."""

    drawing: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = max(map(cell_len, self.drawing.plain.splitlines()), default=0)
        yield self.drawing if width <= options.max_width else Text(f"(a picture, {width} wide)", "dim")


def picture(drawing: Text) -> Padding:
    """A picture under its heading, set off by an empty line on both sides."""
    return Padding(Picture(drawing), (1, 0, 1, 6))


def comparison(finding: Finding) -> str:
    """What was measured, and the bound that it was compared with."""
    return " against ".join(filter(None, (figures(finding.measured), figures(finding.bound))))


def finding_rows(finding: Finding) -> list[tuple[str, str | Text]]:
    """The lines that tell a finding: why, and unless it plainly holds, figures, call path and witness."""
    path = {name: word for name, word in (finding.path or {}).items() if name != "basis"}
    lines: list[tuple[str, str | Text]] = [("why", finding.reason or "")]
    if finding.verdict in (Verdict.HOLDS, Verdict.INAPPLICABLE):
        return [*lines, ("strength", finding.strength or "")]
    source = f" ({finding.bound_from})" if finding.bound_from else ""
    lines += [("measured", comparison(finding) + source), ("path", figures(path))]
    if finding.counterexample:
        drawn = witness_view(finding.counterexample)
        lines.append(("witness", drawn if drawn is not None else figures(finding.counterexample)))
    return lines


def finding_view(finding: Finding, number: str = "") -> Group:
    """One finding under its claim's id, with its verdict in a word."""
    value = "" if finding.value is None else f"={figure(finding.value)}"
    words = {verdict: str(verdict) for verdict in Verdict}
    title = f"{finding.claim}{value}"
    basis = str((finding.path or {}).get("basis", ""))
    return Group(
        heading(number, title, finding.verdict, aside=basis, words=words), rows(finding_rows(finding))
    )


def finding_text(finding: Finding) -> str:
    """One finding in plain text of 80 columns, for files and for messages."""
    text = io.StringIO()
    Console(file=text, width=WIDTH, color_system=None, highlight=False).print(finding_view(finding))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def report_view(report: Report) -> Iterator[RenderableType]:
    """The findings of a report, then what they cost, and the verdict in one line."""
    for number, finding in enumerate(report.findings, 1):
        yield finding_view(finding, str(number))
        yield ""
    told = report.subject
    if "forwards" in told:
        plain = f"as dear as {told['cost']:,.0f} plain ones of length {told['length']}"
        cost = f"{told['forwards']:,} calls, {plain}"
        yield Text(f"{cost}; seed {report.seed}", "dim")
    yield Text.assemble(f"{safe(str(told.get('name', '')))}: ", (str(report.verdict), STYLES[report.verdict]))


def _short(value: Any, most: int = 12) -> str:
    """A witness's value on one line: numbers as figures, long lists cut with a count of what is left out."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int | float):
        return figure(value)
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{safe(str(name))} {_short(item)}" for name, item in value.items()) + ")"
    if isinstance(value, list | tuple):
        left_out = len(value) - most
        shown = " ".join(_short(item) for item in value[:most])
        return f"[{shown} … {left_out} more]" if left_out > 0 else f"[{shown}]"
    return safe(str(value))
