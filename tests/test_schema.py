"""Reports as JSON: the shipped schema, the same bytes, and files that are whole or not there."""

import json
import os
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyformer.errors import UsageError
from whyformer.finding import Finding, Report, Strength, Verdict
from whyformer.report import schema

HOLDS = Finding(
    claim="routing.reach",
    value=4,
    verdict=Verdict.HOLDS,
    strength=Strength.PROVED,
    measured=1.2e-15,
    bound=5.7e-14,
    bound_from="T1",
    path={"mask": "none"},
    reason="all pairs",
)
REFUTED = Finding(
    claim="order.blind",
    verdict=Verdict.REFUTED,
    measured={"swaps": 2},
    counterexample={"order": (1, 0), "words": "«déjà» \ud800"},
)
REPORT = Report(
    subject={"name": "toy", "kind": "module"}, seed=31, findings=(HOLDS, REFUTED), verdict=Verdict.REFUTED
)


def valid(data):
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    return [error.message for error in validator.iter_errors(data)]


def test_the_schema_is_a_json_schema():
    jsonschema.Draft202012Validator.check_schema(schema.json_schema())


@pytest.mark.parametrize(
    "report", [REPORT, replace(REPORT, timing={"all": 0.5}), replace(REPORT, findings=())]
)
def test_reports_are_valid(report):
    assert valid(json.loads(schema.to_bytes(report))) == []


def test_the_keys_are_the_contract():
    data = json.loads(schema.to_bytes(REPORT))
    assert list(data) == ["schema", "whyformer", "torch", "subject", "seed", "verdict", "findings"]
    keys = ["claim", "value", "verdict", "strength", "measured", "bound", "bound_from", "path"]
    assert list(data["findings"][0]) == [*keys, "reason", "counterexample"]
    assert data["findings"][1]["counterexample"]["order"] == [1, 0]


FAULTS = {
    "another schema": lambda data: data.update(schema="whyformer/report/2"),
    "an unknown key": lambda data: data.update(extra=1),
    "a negative seed": lambda data: data.update(seed=-1),
    "a subject without a name": lambda data: data["subject"].pop("name"),
    "an unknown verdict": lambda data: data.update(verdict="maybe"),
    "holds without a strength": lambda data: data["findings"][0].update(strength=None),
    "refuted with a strength": lambda data: data["findings"][1].update(strength="proved"),
    "a finding without a key": lambda data: data["findings"][0].pop("bound"),
    "a claim with its value": lambda data: data["findings"][0].update(claim="routing.reach=4"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_schema_refuses(fault):
    data = schema.as_dict(REPORT)
    FAULTS[fault](data)
    assert valid(data)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_no_figure_is_infinite(number):
    with pytest.raises(ValueError, match="JSON"):
        schema.to_bytes(replace(REPORT, findings=(HOLDS.but(measured=number),)))


@given(st.text(), st.floats(allow_nan=False, allow_infinity=False), st.integers(min_value=0))
def test_equal_reports_give_equal_bytes_that_read_back(words, number, seed):
    finding = HOLDS.but(measured={"number": number}, reason=words)
    first, second = (replace(REPORT, seed=seed, findings=(finding,)) for _ in range(2))
    assert schema.to_bytes(first) == schema.to_bytes(second)
    back = json.loads(schema.to_bytes(first))
    assert (back["seed"], back["findings"][0]["measured"], back["findings"][0]["reason"]) == (
        seed,
        {"number": number},
        words,
    )


def test_a_file_is_replaced_whole(tmp_path):
    target, link = tmp_path / "report.json", tmp_path / "link.json"
    target.write_text("old")
    link.symlink_to(target)
    schema.write_json(REPORT, link)
    assert link.is_symlink()
    assert target.read_bytes() == schema.to_bytes(REPORT)
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path):
    target = tmp_path / "report.json"
    target.write_text("old")
    with pytest.raises(ValueError, match="JSON"):
        schema.write_json(replace(REPORT, findings=(HOLDS.but(measured=float("nan")),)), target)
    assert (target.read_text(), list(tmp_path.iterdir())) == ("old", [target])


def test_looking_whether_a_file_can_be_written_leaves_nothing(tmp_path):
    schema.check_writable(tmp_path / "report.json")
    target = tmp_path / "old.json"
    target.write_text("old")
    schema.check_writable(target)
    assert (target.read_text(), list(tmp_path.iterdir())) == ("old", [target])


@pytest.mark.parametrize("name", [".", "missing/report.json", os.devnull, "x" * 300, "a\0b"])
def test_unwritable_places_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    for attempt in (lambda: schema.check_writable(Path(name)), lambda: schema.write_json(REPORT, Path(name))):
        with pytest.raises(UsageError, match="cannot be written"):
            attempt()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_file_is_refused(tmp_path):
    target = tmp_path / "report.json"
    target.touch(mode=0o444)
    with pytest.raises(UsageError, match="read-only"):
        schema.check_writable(target)
