"""The audit of real models, from packages that carry their weights: SmolLM2-135M and all-MiniLM-L6-v2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from models import minilm, smollm2
from whyformer.auditing import audit
from whyformer.finding import Verdict
from whyformer.subjects.checkpoints import open_checkpoint

HOLDS, REFUTED, INAPPLICABLE = Verdict.HOLDS, Verdict.REFUTED, Verdict.INAPPLICABLE
BUDGET = 120
"""What a full audit at length 128 may cost, in plain forwards of that length."""
MEMORY = 1.5
"""Its memory, as a multiple of one plain forward's."""
LENGTH = 128

MEASURED = """
import json, sys
from pathlib import Path
import torch
from whyformer.auditing import audit
from whyformer.report.schema import as_dict
from whyformer.subjects.targets import load

torch.set_num_threads(1)
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

subject = load(sys.argv[1])
for _ in range(2):
    subject.call(torch.arange(128)[None])
plain = peak()
report = as_dict(audit(subject, length=128))
print(json.dumps({"report": report, "plain": plain, "peak": peak()}))
"""


def verdicts(report):
    return {finding.claim: finding.verdict for finding in report.findings}


def test_minilm_sees_both_ways_and_keeps_its_promises():
    report = audit(minilm(), length=16)
    found = verdicts(report)
    assert report.verdict is HOLDS
    for claim in ("routing.padding", "routing.batch", "routing.repeatable", "order.sensitive"):
        assert found[claim] is HOLDS, claim
    for claim in ("routing.causal", "order.blind", "order.shift"):
        assert found[claim] is REFUTED, claim
    for claim in ("routing.cache", "routing.chunks"):
        assert found[claim] is INAPPLICABLE, claim
    assert report.subject["architecture"] == "BertModel"
    padding = next(f for f in report.findings if f.claim == "routing.padding")
    assert "left padding needs positions given" in padding.reason


@pytest.fixture(scope="module")
def measured():
    """A full audit of SmolLM2, once its weights are converted, in a process that says nothing else."""
    open_checkpoint(smollm2())
    command = [sys.executable, "-c", MEASURED, smollm2()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.slow
def test_smollm2_keeps_what_a_decoder_promises(measured):
    report = measured["report"]
    found = {f["claim"]: f for f in report["findings"]}
    assert report["verdict"] == "holds"
    promised = ("causal", "padding", "batch", "repeatable", "cache", "chunks")
    for claim in [f"routing.{name}" for name in promised] + ["order.shift", "order.positions"]:
        assert found[claim]["verdict"] == "holds", claim
    for name in promised:
        assert found[f"routing.{name}"]["path"]["basis"].startswith("promised by")
    assert found["order.sensitive"]["verdict"] == "holds"
    assert found["order.blind"]["verdict"] == "refuted"
    gaps = found["routing.lookup"]["measured"]["by_gap"]
    assert {2, 16, 64} <= {row["gap"] for row in gaps}
    assert all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in gaps)


@pytest.mark.slow
def test_smollm2_costs_no_more_than_its_budget(measured):
    assert 0 < measured["report"]["subject"]["cost"] <= BUDGET


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_smollm2_takes_little_more_memory_than_a_forward(measured):
    assert measured["peak"] <= MEMORY * measured["plain"]
