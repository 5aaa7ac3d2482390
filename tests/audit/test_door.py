"""The audit from outside: exit status, one line of error, the witness drawn, stored and replayed."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import torch

from whyformer import CallableSubject, Traits, audit, cli
from whyformer.auditing import PartialReportError, replay
from whyformer.errors import UsageError
from whyformer.report.schema import as_dict, json_schema

RIGHT = """
import torch
from torch import nn

class Right(nn.Module):
    '''A causal convolution over tokens.'''
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.conv = nn.Conv1d(8, 8, 3)
    def forward(self, x):
        h = self.table(x).transpose(1, 2)
        return self.conv(nn.functional.pad(h, self.pad())).transpose(1, 2)
    def pad(self):
        return (2, 0)

class Leaks(Right):
    def pad(self):
        return (1, 1)

class Needs(Right):
    def __init__(self, size):
        super().__init__()

class Raises(Right):
    def forward(self, x):
        raise RuntimeError("no\\nway")

class NotANumber(Right):
    def forward(self, x):
        return super().forward(x) / 0 * 0

class Nothing(Right):
    def forward(self, x):
        return None

class Shape(Right):
    def forward(self, x):
        return super().forward(x).transpose(0, 1)

class RaisesAlone(Right):
    def forward(self, x):
        if x.shape[0] > 1:
            raise RuntimeError("one row at a time")
        return super().forward(x)

instance, number = Right(), 3
def made():
    return Leaks()
def wrong():
    return 3
"""


@pytest.fixture
def code(tmp_path) -> str:
    file = tmp_path / "model.py"
    file.write_text(RIGHT)
    return str(file)


def run(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["whyformer", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    told = capsys.readouterr()
    return int(left.value.code or 0), told.out, told.err


@pytest.mark.parametrize(("name", "status"), [("Right", 0), ("instance", 0), ("Leaks", 1), ("made", 1)])
def test_exit_status(capsys, monkeypatch, code, name, status):
    asked = [
        "audit",
        f"{code}:{name}",
        "--tokens",
        "16",
        "--claim",
        "routing.causal",
        "--claim",
        "routing.reach=3",
    ]
    left, out, err = run(capsys, monkeypatch, *asked)
    assert (left, err) == (status, "")
    assert "routing.reach=3" in out


VALID = ["--tokens", "16"]
BAD = {
    "a missing file": ("gone.py:M", ["--tokens", "16"], "there is no file"),
    "a missing package": ("no_such_package_here:M", ["--tokens", "16"], "there is no package"),
    "no such name": ("{code}:Rigth", ["--tokens", "16"], "near it: Right"),
    "a name that needs arguments": ("{code}:Needs", ["--tokens", "16"], "size"),
    "no module": ("{code}:number", ["--tokens", "16"], "no module"),
    "a function that returns none": ("{code}:wrong", ["--tokens", "16"], "no module"),
    "a forward that raises": ("{code}:Raises", ["--tokens", "16"], "no"),
    "a forward that returns NaN": ("{code}:NotANumber", ["--tokens", "16"], "NaN"),
    "a forward that returns nothing": ("{code}:Nothing", ["--tokens", "16"], "NoneType"),
    "a forward of a wrong shape": ("{code}:Shape", ["--tokens", "16"], "shape"),
    "a vocabulary beyond the table": ("{code}:Right", ["--tokens", "99"], "index"),
    "vectors for a module of tokens": ("{code}:Right", ["--width", "8"], "say --tokens V"),
    "a file without a name, and a width": ("{code}", ["--width", "8"], "code is run only where NAME says"),
    "a target without a name": ("", ["--width", "8"], "it is empty"),
    "neither tokens nor width": ("{code}:Right", [], "--tokens V or --width D"),
    "a file without a name": ("{code}", ["--tokens", "16"], "NAME"),
    "an unknown claim": ("{code}:Right", [*VALID, "--claim", "routing.casual"], "routing.causal"),
    "a claim of the lab": ("{code}:Right", [*VALID, "--claim", "routing.dilution"], "lab"),
    "a value that does not parse": ("{code}:Right", [*VALID, "--claim", "routing.reach=x"], "whole number"),
    "a value that is missing": ("{code}:Right", [*VALID, "--claim", "routing.reach"], "whole number"),
    "a value that is not wanted": ("{code}:Right", [*VALID, "--claim", "routing.causal=3"], "no value"),
    "too short a length": ("{code}:Right", ["--tokens", "16", "--length", "1"], "two inputs"),
    "a negative seed": ("{code}:Right", ["--tokens", "16", "--seed", "-1"], "0 or more"),
    "a report in a missing folder": ("{code}:Right", ["--tokens", "16", "--json", "gone/r.json"], "--json"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(capsys, monkeypatch, code, case):
    target, options, said = BAD[case]
    left, out, err = run(capsys, monkeypatch, "audit", target.format(code=code), *options)
    assert (left, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_what_was_found_before_a_raise_is_told(capsys, monkeypatch, code):
    asked = ["--claim", "routing.causal", "--claim", "routing.batch"]
    left, out, _ = run(capsys, monkeypatch, "audit", f"{code}:RaisesAlone", "--tokens", "16", *asked)
    assert left == 3
    assert "one row at a time" in " ".join(out.split())


def test_a_witness_is_stored_drawn_and_replayed(capsys, monkeypatch, code, tmp_path):
    report = tmp_path / "report.json"
    asked = ["audit", f"{code}:Leaks", "--tokens", "16", "--claim", "routing.causal", "--json", str(report)]
    _, out, _ = run(capsys, monkeypatch, *asked)
    data = json.loads(report.read_bytes())
    jsonschema.validate(data, json_schema())
    (finding,) = data["findings"]
    assert finding["measured"] > finding["bound"]
    run_left = finding["counterexample"]["comparison"]["left"]["calls"]
    assert len(run_left) == 1
    assert len(run_left[0]["ids"][0]) == 2, "the shortest input that shows it"
    assert "x" in out.split("witness")[1]

    first = report.read_bytes()
    run(capsys, monkeypatch, *asked)
    assert report.read_bytes() == first, "the same call gives the same bytes"

    left, out, _ = run(capsys, monkeypatch, "replay", str(report))
    assert left == 1
    assert "refuted again" in out

    Path(code).write_text(RIGHT.replace("return (1, 1)", "return (2, 0)"))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    left, out, _ = run(capsys, monkeypatch, "replay", str(report))
    assert left == 0
    assert "met no more" in out


@pytest.mark.parametrize("content", [None, b"{", b"[]", b'{"schema": "whyformer/report/2"}'])
def test_a_report_that_cannot_be_replayed(capsys, monkeypatch, tmp_path, content):
    file = tmp_path / "report.json"
    if content is not None:
        file.write_bytes(content)
    left, out, err = run(capsys, monkeypatch, "replay", str(file))
    assert (left, out, err.count("\n")) == (2, "", 1)


def test_from_python_nothing_imports_torch_until_it_is_used():
    probe = """
import sys, whyformer
assert "torch" not in sys.modules
whyformer.audit
assert "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
    with pytest.raises(UsageError, match="tokens"):
        audit(torch.nn.Identity())


def test_a_model_of_transformers_is_examined_as_a_checkpoint_is():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=64, **small))
    report = audit(model, claims=["routing.cache", "routing.causal"])
    assert report.subject["kind"] == "checkpoint"
    assert [f.verdict for f in report.findings] == ["holds", "holds"]


TABLE = torch.randn(64, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def running_sum(ids, mask=None, cache=None, use_cache=False):
    """A causal subject that is no module: it adds up what it has read."""
    h = TABLE[ids] if mask is None else TABLE[ids] * mask[:, -ids.shape[1] :, None]
    y = h.cumsum(1) + (0 if cache is None else cache)
    return (y, y[:, -1:]) if use_cache else y


def test_a_subject_of_plain_callables():
    takes = Traits(vocabulary=64, mask=True, cache=True)
    report = audit(CallableSubject(running_sum, takes, dtype=torch.float64))
    promised = [f for f in report.findings if f.path["basis"] != "observed"]
    assert {f.claim.split(".")[1]: f.verdict for f in promised} == dict.fromkeys(
        ("batch", "padding", "cache", "chunks", "repeatable"), "holds"
    )
    wrong = CallableSubject(lambda ids: TABLE[ids].sum(1, keepdim=True).expand(-1, ids.shape[1], -1), takes)
    refuted = audit(wrong, claims=["routing.causal"])
    assert refuted.verdict == "refuted"
    (met,) = replay(as_dict(refuted), wrong)
    assert met[1] > met[0]["bound"]


def test_what_a_subject_of_the_user_raises_is_told_and_loses_nothing():
    def short(ids):
        if ids.shape[0] > 1:
            raise IndexError("one row at a time")
        return TABLE[ids]

    report = audit(CallableSubject(short, Traits(vocabulary=64)), claims=["routing.reach=1", "routing.batch"])
    assert "IndexError: one row at a time" in report.findings[1].reason


def test_a_subject_without_memory_keeps_what_was_found():
    def greedy(ids):
        if ids.shape[0] > 3:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return TABLE[ids]

    with pytest.raises(PartialReportError, match="memory") as left:
        audit(CallableSubject(greedy, Traits(vocabulary=64)), claims=["routing.causal", "routing.batch"])
    assert [f.claim for f in left.value.report.findings] == ["routing.causal"]


def test_a_length_that_the_subject_does_not_take_names_one_that_it_does():
    places = torch.nn.Embedding(16, 8)
    function = lambda ids: TABLE[ids].float() + places.weight[torch.arange(ids.shape[1])]  # noqa: E731
    with pytest.raises(UsageError, match="try --length 16"):
        audit(CallableSubject(function, Traits(vocabulary=64)))


def test_replay_counts_what_counted(capsys, monkeypatch, code, tmp_path):
    report = tmp_path / "report.json"
    left, _, _ = run(capsys, monkeypatch, "audit", f"{code}:Right", "--tokens", "16", "--json", str(report))
    again, out, _ = run(capsys, monkeypatch, "replay", str(report))
    assert (left, again) == (0, 0)
    assert "refuted again" in out, "what was only observed is shown, and fails nothing"
