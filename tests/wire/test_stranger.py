"""A stranger's tools read the wiring back from a wired checkpoint: the audit, and the scan of its heads."""

import math

import pytest

from whyformer.auditing import audit
from whyformer.finding import Verdict
from whyformer.wire import wire

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

CLAIMS = [f"routing.{name}" for name in ("causal", "batch", "cache", "chunks", "padding", "lookup")]
PREVIOUS, INDUCTION = (0, 0), (1, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("wired") / "model"
            wire(name, vocabulary=120, context=64, out=made[name])
        return made[name]

    return get


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_an_audit_finds_all_that_is_promised(name, folder):
    report = audit(str(folder(name)), claims=CLAIMS)
    assert {found.claim: found.verdict for found in report.findings} == dict.fromkeys(CLAIMS, Verdict.HOLDS)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_scan_of_the_heads_finds_both_layers_and_that_either_is_needed(name, folder):
    heads = pytest.importorskip("whyformer.heads")
    told = heads.examine(str(folder(name)))
    assert told["lookup"]["accuracy"] == 1
    scores = {(head["layer"], head["head"]): head for head in told["heads"]}
    assert set(scores) == {(layer, head) for layer in (0, 1) for head in (0, 1)}
    for kind, wired in (("previous", PREVIOUS), ("induction", INDUCTION)):
        assert scores[wired][kind] > 0.999
        assert max(score[kind] for at, score in scores.items() if at != wired) < 0.1
    assert scores[INDUCTION]["copying"] == 1
    loss = {
        tuple(map(tuple, done["heads"])): done["loss"] for done in told["ablation"] if done["mode"] == "zero"
    }
    intact = told["ablation"][0]["baseline"]
    assert intact < 0.1
    for wired in (PREVIOUS, INDUCTION):
        assert loss[wired,] > math.log(119)  # a guess among all words, or worse
    for idle in ((0, 1), (1, 1)):
        assert loss[idle,] == pytest.approx(intact)
    made = {(tuple(pair["from"]), tuple(pair["to"])): pair for pair in told["compositions"]}
    assert made[PREVIOUS, INDUCTION]["keys"] < 0.01 < 0.99 < made[PREVIOUS, INDUCTION]["queries"]
