"""The catalogue walked: every fault refuted under its claims, every right twin held, no alarm rung."""

from pathlib import Path

import pytest

from catalogue import ALARMS, CAUSAL, FORMULA, ROWS, SOLVER, alarms, verdict_of
from whyformer.finding import Verdict

QUICK = {FORMULA, SOLVER, *CAUSAL}
"""What every run walks; test_padding, test_cache and the like try the rest of the modules there too."""
TRIALS = [
    pytest.param(row, claim, id=f"{row.name}-{claim}", marks=() if claim in QUICK else pytest.mark.slow)
    for row in ROWS
    for claim in row.claims
]
SEEDS = [31, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("row", "claim"), TRIALS)
def test_the_fault_is_found_and_its_right_twin_holds(row, claim, seed):
    assert verdict_of(row, claim, row.fault, seed) is row.verdict
    assert verdict_of(row, claim, row.twin, seed) is Verdict.HOLDS


@pytest.mark.slow
@pytest.mark.parametrize("seed", [31, 1])
@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm.name)
def test_what_only_looks_wrong_is_not_refuted(alarm, seed):
    assert not alarms(alarm, seed)


def test_every_kind_is_there_and_no_name_twice():
    assert {row.kind for row in ROWS} == set("ABCDEFGHJK")
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


def test_the_page_tells_of_every_row():
    page = (Path(__file__).parents[2] / "docs" / "catalogue.md").read_text(encoding="utf-8")
    for row in ROWS:
        for claim in row.claims:
            assert f"| {row.kind} | {row.words} | {claim} | {row.verdict.value} / holds |" in page
    for alarm in ALARMS:
        assert f"| {alarm.words} | none |" in page
