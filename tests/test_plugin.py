"""The pytest plugin from outside: a test for each claim, the witness, and one line for a bad target."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
import torch._dynamo  # noqa: F401  torch imports it late and once; pytester forgets what a run inside imports

from whyformer import pytest_plugin, testing
from whyformer.report.schema import json_schema

pytest_plugins = ["pytester"]

CODE = """
import torch
from torch import nn

class Right(nn.Module):
    pads = (2, 0)
    def __init__(self):
        super().__init__()
        self.table, self.conv = nn.Embedding(16, 8), nn.Conv1d(8, 8, 3)
    def forward(self, x):
        return self.conv(nn.functional.pad(self.table(x).transpose(1, 2), self.pads)).transpose(1, 2)

class Leaks(Right):
    pads = (1, 1)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Run pytest in a folder of its own, with this plugin alone: the result."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.path.joinpath("model.py").write_text(CODE)

    def go(*arguments):
        common = ("-p", "whyformer.pytest_plugin", "--whyformer-tokens", "16", "--whyformer-length", "8")
        return pytester.runpytest_inprocess(*common, *arguments)

    return go


def test_every_promise_is_a_test_without_a_file(run):
    done = run("--whyformer-model", "model.py:Right", "-v")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*model.py:Right*routing.batch*PASSED*", "*routing.repeatable*PASSED*"])


def test_a_claim_that_is_asked_fails_with_the_witness(run):
    asked = ("--whyformer-claim", "routing.causal", "--whyformer-claim", "routing.reach=1")
    done = run("--whyformer-model", "model.py:Leaks", *asked)
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["routing.causal is refuted", "*witness*"])
    done.stdout.no_fnmatch_line("*Traceback*")
    done.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_what_does_not_apply_is_skipped_with_the_reason(run):
    done = run("--whyformer-model", "model.py:Right", "--whyformer-claim", "routing.cache", "-rs")
    done.assert_outcomes(skipped=1)
    done.stdout.fnmatch_lines(["*it has no cache to hand back*"])


@pytest.mark.parametrize(
    ("target", "asked", "said"),
    [
        ("gone.py:M", (), "*gone.py:M*there is no file*"),
        ("model.py:Rigth", (), "*Rigth*near it: Right*"),
        ("model.py", (), "*NAME*"),
        ("model.py:Right", ("--whyformer-claim", "routing.casual"), "*routing.casual*routing.causal*"),
        ("model.py:Right", ("--whyformer-width", "8"), "*--whyformer-tokens V or --whyformer-width D*"),
    ],
)
def test_a_target_that_does_not_load_fails_with_one_line(run, target, asked, said):
    done = run("--whyformer-model", target, *asked)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines([said])
    done.stdout.no_fnmatch_line("*Traceback*")
    done.stdout.no_fnmatch_line("*Error:*")


def test_tests_of_files_run_beside_it(run, pytester):
    pytester.makepyfile("def test_own():\n    pass")
    run("--whyformer-model", "model.py:Right").assert_outcomes(passed=3)
    run().assert_outcomes(passed=1)


def test_a_claim_is_chosen_by_its_name(run):
    run("--whyformer-model", "model.py:Right", "-k", "repeatable").assert_outcomes(passed=1, deselected=1)


def test_junit_and_json_come_out(run, pytester):
    targets = ("--whyformer-model", "model.py:Right", "--whyformer-model", "model.py:Leaks")
    asked = ("--whyformer-claim", "routing.causal")
    done = run(*targets, *asked, "--junitxml", "junit.xml", "--whyformer-json", "report.json")
    done.assert_outcomes(passed=1, failed=1)
    cases = ElementTree.parse(pytester.path / "junit.xml").getroot().iter("testcase")
    assert [(case.get("name"), case.find("failure") is not None) for case in cases] == [
        ("routing.causal", False),
        ("routing.causal", True),
    ]
    for number, verdict in ((1, "holds"), (2, "refuted")):
        report = json.loads(pytester.path.joinpath(f"report-{number}.json").read_bytes())
        jsonschema.validate(report, json_schema())
        assert report["verdict"] == verdict


def test_starting_up_imports_no_torch(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "whyformer.pytest_plugin", str(tmp_path)]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_page_names_every_option_and_every_assertion():
    page = (Path(__file__).parents[1] / "docs" / "pytest.md").read_text(encoding="utf-8")
    options = re.findall(r'"(--whyformer-[a-z]+)"', inspect.getsource(pytest_plugin))
    assert len(set(options)) == 7
    assert all(f"`{option} " in page for option in options)
    assert all(f"`{name}(" in page for name in vars(testing) if name.startswith("assert_"))
