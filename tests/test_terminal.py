"""What findings and pictures look like: snapshots in 80 columns, of fixed figures; nothing here varies."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group
from rich.text import Text

from whyformer.finding import Finding, Report, Strength, Verdict
from whyformer.report import pictures, terminal

FINDINGS = (
    Finding(
        claim="routing.reach",
        value=4,
        verdict=Verdict.HOLDS,
        strength=Strength.PROVED,
        measured=1.23e-15,
        bound=5.7e-14,
        bound_from="T1 on both outputs",
        path={"mask": "none", "cache": "on"},
        reason="all 5,040 permutations of 7 positions, one by one, and none of them moved an output",
    ),
    Finding(
        claim="routing.padding",
        verdict=Verdict.REFUTED,
        measured={"left": 2.5, "right_padding": 0},
        bound=1e-6,
        counterexample={
            "tokens": tuple(range(40)),
            "text": "[bold]\x1b[31m\n",
            "rows": [{"at": 3}],
            "ok": True,
        },
    ),
    Finding(claim="order.shift", verdict=Verdict.INCONCLUSIVE, bound=0.0, reason="repeat runs differ"),
    Finding(claim="order.positions", verdict=Verdict.INAPPLICABLE, reason="it takes no positions"),
)
REPORT = Report(
    subject={"name": "toy \x1b[0m", "kind": "module"}, seed=31, findings=FINDINGS, verdict=Verdict.REFUTED
)


def shown(renderable, **options) -> str:
    stream = io.StringIO()
    options = {"width": terminal.WIDTH, "highlight": False, "color_system": None, "_environ": {}} | options
    Console(file=stream, **options).print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


def test_a_report(snapshot):
    assert shown(Group(*terminal.report_view(REPORT))) == snapshot


def test_a_report_in_colour(snapshot):
    assert (
        shown(Group(*terminal.report_view(REPORT)), color_system="truecolor", force_terminal=True) == snapshot
    )


def test_the_pictures(snapshot):
    drawn = {
        "attention": pictures.attention_rows(
            ["4", "7", "11", "4"], {"old": [1.0, 0.0, 0.0], "new": [0.0, 0.6, 0.4]}, 3
        ),
        "reach": pictures.reach_maps(
            {"causal": [[j <= i for j in range(5)] for i in range(5)], "none": [[False] * 2] * 2}
        ),
        "curves": pictures.curves(
            {"falls": [10.0**-k for k in range(12)], "gone": [1.0, 0.0]},
            floor=1e-9,
            ceiling=1.0,
            ends="at 12",
        ),
        "bars": pictures.bars({"all": 120, "six": 6, "none": 0}, most=120),
    }
    assert "\n\n".join(f"{name}\n{shown(picture)}" for name, picture in drawn.items()) == snapshot


def test_nothing_from_outside_steers_the_terminal_or_the_markup():
    text = shown(Group(*terminal.report_view(REPORT)))
    assert "\x1b" not in text
    assert "[bold]\\x1b[31m\\n" in text


@given(st.text())
def test_safe_text_is_printable_on_one_line_and_keeps_what_was(text):
    assert terminal.safe(text).isprintable()
    if text.isprintable():
        assert terminal.safe(text) == text


@given(st.text())
def test_every_text_has_an_ascii_twin(text):
    assert terminal.ascii_twin(text).isascii()


def test_every_glyph_that_is_drawn_has_a_twin_of_its_own():
    glyphs = pictures.EIGHTHS + "▀▄█"
    twins = [terminal.ascii_twin(glyph) for glyph in pictures.EIGHTHS]
    assert len(set(twins)) == len(twins)
    assert all(len(terminal.ascii_twin(glyph)) == 1 and terminal.ascii_twin(glyph) != "?" for glyph in glyphs)


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        ("2⁻⁸ ≤ x²", "2^-8 <= x^2"),
        ("log₂k", "log_2k"),
        ("Veličković", "Velickovic"),
        ("qkᵀ", "qk^T"),
        ("語", "?"),
    ],
)
def test_ascii_twins(text, twin):
    assert terminal.ascii_twin(text) == twin


def test_the_error_handler_writes_twins_where_it_must():
    assert "a × ▁█ ≤ é 語".encode("latin-1", terminal.ENCODING_ERRORS) == "a × _# <= é ?".encode("latin-1")
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", terminal.ENCODING_ERRORS)


@given(st.lists(st.floats(0, 1), min_size=1), st.floats(0, 0.9))
def test_a_spark_is_as_high_as_its_value(values, low):
    heights = [pictures.EIGHTHS.index(glyph) for glyph in pictures.spark(values, low, 1)]
    assert len(heights) == len(values)
    for value, height in zip(values, heights, strict=True):
        assert abs(height - max(0, (value - low) / (1 - low) * 7)) <= 0.5 + 1e-9


@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1))
)
def test_a_map_of_reach_reads_back(rows):
    halves = {"▀": (True, False), "▄": (False, True), "█": (True, True), " ": (False, False)}
    lines = [[halves[glyph] for glyph in line] for line in pictures.reach_map(rows)]
    back = [[pair[half] for pair in line] for line in lines for half in (0, 1)]
    assert back[: len(rows)] == rows
    assert not any(map(any, back[len(rows) :]))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (5040, "5,040"),
        (0.5, "0.5"),
        (1.23e-15, "1.2e-15"),
        (-3.14159, "-3.14"),
        (1.07e13, "1.1e+13"),
    ],
)
def test_figures(number, text):
    assert terminal.figure(number) == text


def test_bars_never_hide_a_count():
    assert "█" in str(pictures.bars({"one": 1}, most=10**6))
    assert math.isclose(str(pictures.bars({"all": 7}, most=7)).count("█"), 40)
    assert isinstance(pictures.bars({"none": 0}, most=7), Text)


def test_a_picture_stands_whole_or_not_at_all():
    for width, whole in ((26, True), (25, False)):
        console = Console(file=io.StringIO(), width=width, color_system=None)
        console.print(terminal.picture(Text("abcdefghij" * 2 + "\nrow two")))
        assert ("abcdefghij" * 2 in console.file.getvalue()) is whole
        assert ("row two" in console.file.getvalue()) is whole
