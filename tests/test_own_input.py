import io
import os
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from whyformer.errors import UsageError
from whyformer.finding import Strength, Verdict
from whyformer.lab import own_input, tokens
from whyformer.lab.own_input import examine, read_file, read_sequence, reading_findings, reading_view
from whyformer.lab.rule import Rule
from whyformer.subjects.induction import InductionCircuit

FIRST = "4 7 2 9 7 5 3 8 2 9"
TEXT = "the cat sat on the mat; the cat's mat, the cat sat on the rug. "


def naive(tokens, context):
    """Twins, recent copies right, plurality copies right and ties, by looking at every earlier token."""
    twins = recent = most = ties = 0
    for i in range(len(tokens) - 1):
        followers = [tokens[p + 1] for p in range(max(0, i - context), i) if tokens[p] == tokens[i]]
        if followers:
            counts = Counter(followers)
            leaders = [symbol for symbol in counts if counts[symbol] == max(counts.values())]
            twins += 1
            recent += followers[-1] == tokens[i + 1]
            ties += len(leaders) > 1
            most += leaders == [tokens[i + 1]]
    return twins, recent, most, ties


def symbols(tokens):
    return [tokens.symbols[token] for token in tokens.ids()]


def shown(reading, **options):
    console = Console(file=io.StringIO(), width=80, highlight=False, markup=False, emoji=False, **options)
    console.print(reading_view(reading))
    return console.file.getvalue()


tokens_drawn = st.integers(1, 5).flatmap(lambda most: st.lists(st.integers(0, most), min_size=2, max_size=60))


@settings(deadline=None, max_examples=60)
@given(tokens_drawn, st.integers(1, 40))
def test_totals_against_a_naive_twin(tokens, context):
    reading = examine(read_sequence(" ".join(map(str, tokens))), context=context)
    assert reading.differing == 0
    assert reading.length == len(tokens)
    assert reading.judged == len(tokens) - 1
    found = reading.twins, reading.recent_right, reading.all_right, reading.all_tied
    assert found == naive(tokens, context)


@settings(deadline=None, max_examples=100)
@given(tokens_drawn, st.integers(1, 40))
def test_the_rule_against_a_naive_twin(tokens, context):
    rule = Rule(context)
    for i, token in enumerate(tokens):
        answer = rule.read(token)
        twins = [p for p in range(max(0, i - context), i) if tokens[p] == token]
        if not twins:
            assert answer == (-1, None, None, False)
            continue
        counts = Counter(tokens[p + 1] for p in twins).most_common()
        tied = len(counts) > 1 and counts[0][1] == counts[1][1]
        assert answer == (twins[-1] + 1, tokens[twins[-1] + 1], None if tied else counts[0][0], tied)


def test_a_text_longer_than_block_and_context():
    tokens = torch.randint(7, (1500,), generator=torch.Generator().manual_seed(5)).tolist()
    reading = examine(read_sequence(" ".join(map(str, tokens))), context=300)
    assert reading.differing == 0
    assert (reading.twins, reading.recent_right, reading.all_right, reading.all_tied) == naive(tokens, 300)
    assert len(reading.rows) == own_input.ROWS
    assert reading.rows[-1].position == 1499


@pytest.mark.slow
def test_a_long_text_with_the_default_context():
    tokens = torch.randint(40, (60_000,), generator=torch.Generator().manual_seed(9)).tolist()
    reading = examine(read_sequence(" ".join(map(str, tokens))))
    assert reading.differing == 0
    assert reading.twins == reading.judged - 40 + (tokens.index(tokens[-1]) == 59_999)


def test_memory_is_bounded_by_the_context(monkeypatch):
    largest = 0
    copy = InductionCircuit._copy

    def watched(self, scores, *others):
        nonlocal largest
        largest = max(largest, scores.numel())
        return copy(self, scores, *others)

    monkeypatch.setattr(InductionCircuit, "_copy", watched)
    examine(read_sequence("0 1 2 " * 700), context=64)
    assert largest <= 81 * (64 + 81)


def test_rows_say_where_the_head_looked_and_what_it_copied():
    rows = examine(read_sequence(FIRST)).rows
    last = rows[-1]
    assert (last.position, last.token, last.looked, last.copied, last.followed) == (9, 9, 4, 7, None)
    assert (rows[8].looked, rows[8].copied, rows[8].copied_all, rows[8].followed) == (3, 9, 9, 9)
    assert (rows[0].looked, rows[0].copied, rows[0].copied_all) == (None, None, None)


def test_symbols_with_large_numbers_cost_nothing():
    rows = examine(read_sequence("9000000000000 5 9000000000000")).rows
    assert (rows[-1].token, rows[-1].copied) == (9_000_000_000_000, 5)


def test_progress_is_told_and_ends_at_the_length():
    told = []
    examine(read_sequence("0 1 " * 300), context=100, progress=lambda done, of: told.append((done, of)))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (600, 600)


def test_finding_holds_and_is_refuted_by_a_circuit_that_copies_wrongly(monkeypatch):
    (finding,) = reading_findings(examine(read_sequence(FIRST)))
    assert (finding.verdict, finding.strength) == (Verdict.HOLDS, Strength.PROVED)
    assert finding.measured["twins"] == 2  # of the last token nobody knows what follows
    monkeypatch.setattr(InductionCircuit, "previous", lambda self, content, positions: content)
    reading = examine(read_sequence(FIRST))
    (finding,) = reading_findings(reading)
    assert finding.verdict is Verdict.REFUTED
    assert finding.counterexample["circuit"] != finding.counterexample["rule"]
    assert "differ" in shown(reading)


@pytest.mark.parametrize(
    ("text", "vocabulary", "says"),
    [
        ("", None, "empty"),
        ("  ", None, "empty"),
        ("4", None, "one token"),
        ("4 x 2", None, "not an integer"),
        ("4 2.5", None, "not an integer"),
        ("4 ٣", None, "not an integer"),
        ("4 -7 2", None, "negative"),
        ("4 12", 12, "0 to 11"),
        ("4 99999999999999999999", None, "above"),
        ("4 1 " + "9" * 5000, None, "above"),
        ("4 1 " + "9" * 35, None, "above"),
        ("4 -" + "9" * 35, None, "negative"),
        ("4 1", 0, "at least one symbol"),
    ],
)
def test_a_bad_sequence_is_one_line(text, vocabulary, says):
    with pytest.raises(UsageError) as caught:
        read_sequence(text, vocabulary)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300


def test_commas_and_spaces_part_integers():
    read = read_sequence("4,7, 2  9\n4", 12)
    assert symbols(read) == [4, 7, 2, 9, 4]
    assert read.vocabulary == 12
    assert read_sequence("0 3").vocabulary == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"word", "one token"),
        (b"a\0b c", "binary"),
        (b"ab \xff\xfe c", "byte 3"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, content, says):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_file(path)
    assert says in str(caught.value)


def test_a_missing_file_and_a_directory_are_one_line(tmp_path):
    for path, says in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "a directory"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(UsageError) as caught:
            read_file(path)
        assert says in str(caught.value)


def test_words_and_characters(tmp_path):
    path = tmp_path / "text"
    path.write_text("\ufeffDon't stop, don’t\n", encoding="utf-8")
    words = read_file(path)
    assert [words.label(token) for token in symbols(words)] == ["Don't", "stop", ",", "don’t"]
    characters = read_file(path, by="characters")
    assert "".join(characters.label(token) for token in symbols(characters)) == "Don't stop, don’t\n"
    assert (words.unit, characters.unit) == ("word", "character")


@pytest.mark.parametrize("context", [0, -1])
def test_a_context_below_one_is_refused(context):
    with pytest.raises(UsageError):
        examine(read_sequence(FIRST), context=context)


def test_the_view_fits_80_columns_and_escapes_what_the_text_holds(tmp_path):
    path = tmp_path / "text"
    path.write_text(
        "[bold] \x1b[31m x\ty \x07 " + "Donaudampfschiff 長い長い長い長い長い長い \u202e:smile: " * 3
    )
    for by in ("words", "characters"):
        reading = examine(read_file(path, by=by))
        for options in ({"color_system": None}, {"force_terminal": True, "color_system": "truecolor"}):
            text = shown(reading, **options)
            assert "\x07" not in text
            assert "\u202e" not in text
            assert "\x1b[31m x" not in text
        widths = [Console().measure(line).maximum for line in shown(reading, color_system=None).splitlines()]
        assert max(widths) <= 80


def test_the_view_tells_every_outcome(tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT * 2)
    text = " ".join(shown(examine(read_file(path)), color_system=None).split())
    for part in ("a tie", " yes ", " no ", "tokens before these", "the rule in symbols agree"):
        assert part in text
    text = " ".join(shown(examine(read_sequence("1 2 3")), color_system=None).split())
    assert "no earlier twin" in text
    assert "of the tokens that another follows, 0 of 2 (0.0%) had an earlier twin" in text
    assert "copying" not in text


@settings(deadline=None)
@given(st.text("ab '’.\n\u00e9長\u0301", max_size=40), st.integers(1, 7))
def test_words_do_not_depend_on_where_the_pieces_end(text, size):
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert list(tokens._words(pieces)) == tokens._WORD.findall(text)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_character_may_span_two_pieces(size, tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "_PIECE", size)
    path = tmp_path / "text"
    path.write_text("\ufeffé長 don’t 😀 don’t", encoding="utf-8")
    read = read_file(path)
    assert [read.label(token) for token in symbols(read)] == ["é長", "don’t", "😀", "don’t"]
    path.write_bytes("é長é長".encode() + b"\xff x")
    with pytest.raises(UsageError, match="byte 10 "):
        read_file(path)
    path.write_bytes("é長".encode()[:-1])
    with pytest.raises(UsageError, match="byte 2 "):
        read_file(path)


def test_memory_does_not_grow_with_the_text(tmp_path):
    def peak(times):
        path = tmp_path / f"{times}"
        path.write_text(TEXT * times)
        tracemalloc.start()
        try:
            reading = examine(read_file(path), context=64)
            return reading.length, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    (few, little), (many, much) = peak(1_100), peak(4_400)  # both longer than a piece
    assert many == 4 * few
    assert much < 1.2 * little + 50_000


def test_a_device_and_a_pipe_without_a_writer_are_refused_unopened(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        with pytest.raises(UsageError, match="not a regular file"):
            read_file(path)
    with pytest.raises(UsageError, match="is empty"):
        read_file("")


def test_a_pipe_that_was_handed_over_is_read_up_to_the_first_nul():
    for content, says in ((TEXT.encode(), None), (b"a b\0" + b"c" * 100_000, "binary"), (b"", "empty")):
        end, writer = os.pipe()
        with ThreadPoolExecutor(1) as pool:

            def write(writer=writer, content=content):
                with suppress(BrokenPipeError), os.fdopen(writer, "wb") as stream:
                    stream.write(content)

            done = pool.submit(write)
            try:
                if says is None:
                    assert examine(read_file(f"/dev/fd/{end}")).differing == 0
                else:
                    with pytest.raises(UsageError, match=says):
                        read_file(f"/dev/fd/{end}")
            finally:
                os.close(end)
            done.result()


def test_a_large_binary_file_is_left_at_its_first_piece(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(1 << 34)
    with pytest.raises(UsageError, match="binary"):
        read_file(path)


@pytest.mark.parametrize("later", ["a b c a", "a b", "a b a b a b"])
def test_a_text_that_changes_between_the_passes_is_told(later, tmp_path):
    path = tmp_path / "text"
    path.write_text("a b a b")
    read = read_file(path)
    path.write_text(later)
    with pytest.raises(UsageError, match="changed"):
        examine(read)
