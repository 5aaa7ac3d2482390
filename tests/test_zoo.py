"""The zoo: no architecture crashes the audit, and none is refuted of anything without a reason on file."""

import pytest

pytest.importorskip("transformers")

from bench.zoo import reasons, table
from bench.zoo.examine import AUDITED, NOT_BUILT, examine
from bench.zoo.families import FAMILIES, _every_kind, build, shrunken
from bench.zoo.reasons import Reason

from whyformer.claims import AUDIT_IDS

REPRESENTATIVE = (
    "llama", "mistral", "mixtral", "gemma2", "qwen3", "gpt2", "gpt_neox", "gpt_neo", "gptj", "falcon",
    "bloom", "mpt", "opt", "gpt_oss", "deepseek_v3", "cohere2", "bert", "bart", "mamba", "mamba2",
    "bamba", "rwkv", "recurrent_gemma", "xlnet", "openai-gpt",
)  # fmt: skip
"""One of each kind of positions, cache, state, window, mask and experts."""


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[] if family in REPRESENTATIVE else [pytest.mark.slow])
        for family in FAMILIES
    ],
)
def test_every_refutation_has_a_reason(family):
    result = examine(family, few=True)
    if result["status"] == NOT_BUILT:
        assert "\n" not in result["said"]
        pytest.skip(result["said"])
    assert table.troubles([result], reasons.load()) == []
    assert result["status"] == AUDITED


def test_the_representatives_are_25_that_exist():
    assert len(set(REPRESENTATIVE)) == 25
    assert set(REPRESENTATIVE) <= set(FAMILIES)


def test_a_model_is_small_and_the_same_at_every_call():
    first, again = build("mixtral"), build("mixtral")
    assert sum(p.numel() for p in first.parameters()) < 100_000
    for p, q in zip(first.parameters(), again.parameters(), strict=True):
        assert p.equal(q)


def test_as_few_layers_stay_as_show_every_kind():
    assert _every_kind(6, [["a", "a", "b", "a", "a", "b"]]) == [0, 2]
    assert _every_kind(6, [["a"] * 6, [0, 0, 0, 1, 1, 1]]) == [0, 3]
    assert _every_kind(6, [["a"] * 6]) == [0, 1]
    assert _every_kind(1, []) == [0]


def test_a_config_within_is_shrunken_too():
    from transformers import Gemma3Config

    small = shrunken(Gemma3Config, {"text_config": {"num_key_value_heads": 1}})
    assert small["text_config"].hidden_size == 32
    assert small["text_config"].num_key_value_heads == 1
    assert set(small["text_config"].layer_types) == {"sliding_attention", "full_attention"}


def finding(claim, verdict, path=None, reason=""):
    return {"claim": claim, "verdict": verdict, "path": path, "reason": reason}


def audited(family, *findings):
    report = {"verdict": "holds", "findings": list(findings)}
    return {"family": family, "status": "audited", "seconds": 1.0, "report": report}


def test_a_reason_fits_only_the_witness_that_it_is_told_of():
    known = (Reason("routing.cache", "fault", "Says.", "Shown.", ("a",), path={"positions": "left"}),)
    right = audited("a", finding("routing.cache", "refuted", {"positions": "left", "cache": "on"}))
    assert table.troubles([right], known) == []
    for wrong in (
        audited("b", finding("routing.cache", "refuted", {"positions": "left"})),
        audited("a", finding("routing.cache", "refuted", {"positions": "given"})),
        audited("a", finding("routing.chunks", "refuted", {"positions": "left"})),
    ):
        assert len(table.troubles([wrong], known)) == 1
        assert table.totals([wrong], known)["refuted without a reason"] == 1


def test_a_reason_that_is_no_longer_met_is_told():
    known = (Reason("routing.cache", "fault", "Says.", "Shown.", ("a", "b")),)
    results = [audited(name, finding("routing.cache", verdict)) for name, verdict in
               (("a", "refuted"), ("b", "holds"))]  # fmt: skip
    assert table.stale(results, known) == ["routing.cache: no longer refuted for 'Says.': b"]
    assert table.stale(results[:1], (Reason("routing.cache", "fault", "S.", "S.", ("*",), told=""),)) == []


def test_a_reason_may_rest_on_another_verdict():
    known = (
        Reason(
            "order.blind",
            "by design",
            "Says.",
            "Shown.",
            ("*",),
            with_={"order.sensitive": "holds"},
            told="moves",
        ),
    )
    blind = finding("order.blind", "refuted", {}, "it moves")
    assert table.troubles([audited("a", blind, finding("order.sensitive", "holds"))], known) == []
    assert table.troubles([audited("a", blind, finding("order.sensitive", "refuted"))], known)
    assert table.troubles([audited("a", {**blind, "reason": "else"})], known)


def test_a_crash_fails_the_run_and_what_is_not_built_does_not():
    crashed = {"family": "a", "status": "crashed", "said": "TypeError: no", "seconds": 1.0}
    assert table.troubles([crashed], ()) == ["a: crashed: TypeError: no"]
    assert table.troubles([{**crashed, "status": "not built"}], ()) == []


def test_the_page_gives_every_verdict_reason_and_witness():
    known = (
        Reason("routing.cache", "fault", "It forgets.", "Read.", ("a",), path={"cache": "on"}),
        Reason("order.shift", "by design", "A table.", "Read.", ("a", "b")),
    )
    results = [
        audited("a", finding("routing.cache", "refuted", {"cache": "on", "basis": "x"}, "1 | 2"),
                finding("order.shift", "holds")),
        audited("b", finding("routing.cache", "inapplicable"), finding("order.shift", "refuted")),
        audited("c", finding("order.shift", "inconclusive", {}, "too near")),
        {"family": "d", "status": "not built", "said": "no PIL", "seconds": 1.0},
    ]  # fmt: skip
    page = table.page(results, known, "5.0")
    for part in (
        "| a | [1](#r1) | ✓ |",
        "| b | – | [2](#r2) |",
        "| c |  | ? |",
        "| d | no PIL |",
        "| a | routing.cache | cache on | 1 \\| 2 |",
        "| c | order.shift | too near |",
        "`routing.cache`, fault, 1: It forgets. *Read.*",
    ):
        assert part in page
    assert "| refuted without a reason | 0 |" in page


def test_the_reasons_on_file_are_complete():
    for reason in reasons.load():
        assert reason.claim in AUDIT_IDS
        assert set(reason.families) <= {*FAMILIES, "*"}
        assert reason.says.endswith(".")
        assert reason.shown.endswith(".")
