"""The adapter of Hugging Face models on shrunken families: what it discovers, and that float64 is float64."""

import pytest
import torch
from shrunken import FAMILIES, VOCABULARY, built, subject

from whyformer.claims.audit.dependency import decoded, same_places
from whyformer.claims.audit.probing import Draws, full
from whyformer.errors import UsageError
from whyformer.instruments.agreement import Call, Comparison, Examiner, Run
from whyformer.subjects.checkpoints import Checkpoint
from whyformer.subjects.huggingface import HuggingFace
from whyformer.subjects.subject import Settings, SubjectError

TIME = 14
CACHES = {"rwkv": "state", "openai-gpt": None, "bert": None, "xlnet": None}
COUNTING = {"bamba"}
"""Families whose positions restart at every call unless they are given."""


@pytest.fixture(scope="module", params=FAMILIES)
def examiner(request):
    return Examiner(subject(request.param), TIME, seed=31)


def agree(examiner, comparison):
    """In float64, within what rounding in float64 explains, and that far below float32's last place."""
    with examiner.subject.precision(torch.float64):
        deviation, bound = examiner.deviation(comparison).size, examiner.bound(comparison)
    assert deviation <= bound
    assert bound < 1e-9
    return True


def test_traits_follow_from_the_signature_and_the_config(examiner):
    name, traits = examiner.subject.name, examiner.subject.traits
    assert traits.vocabulary == VOCABULARY
    assert examiner.subject._cache_name == CACHES.get(name, "cache")
    assert traits.cache == (CACHES.get(name, "cache") is not None)
    assert traits.positions == (name not in {"bloom", "mamba2", "rwkv", "xlnet"})
    assert ("routing.causal" in traits.promises) == (name not in {"bert", "xlnet"})
    assert ("routing.cache" in traits.promises) == (name not in {"openai-gpt", "bert", "xlnet"})
    assert traits.promises.get("routing.reach", (None,))[0] == (15 if name == "mistral" else None)
    assert traits.left_padding == (name != "bert")
    assert not traits.large


def test_backends_are_those_that_can_be_chosen(examiner):
    name, subject = examiner.subject.name, examiner.subject
    none = {"gemma2", "openai-gpt", "bloom", "mamba2", "rwkv", "xlnet"}
    assert subject.traits.backends == (() if name in none else ("eager", "sdpa"))
    before = subject._model.config._attn_implementation
    run = full(Draws(examiner, 2).grid(2, TIME))
    for backend in subject.traits.backends:
        chosen = full(run.calls[0].ids, settings=Settings(backend=backend))
        assert agree(examiner, Comparison(run, chosen, same_places(2, range(TIME))))
    assert subject._model.config._attn_implementation == before


def test_steps_with_the_cache_equal_the_full_forward(examiner):
    subject = examiner.subject
    if "routing.cache" not in subject.traits.promises:
        pytest.skip("it has no cache")
    ids = Draws(examiner, 2).grid(1, TIME)
    steps = decoded(ids, 6, 1)
    if subject.name in COUNTING:
        at = [tuple(range(6)), *((t,) for t in range(6, TIME))]
        steps = Run(tuple(Call(c.ids, None, (p,)) for c, p in zip(steps.calls, at, strict=True)), cached=True)
    assert agree(examiner, Comparison(full(ids), steps, same_places(1, range(TIME))))


def test_the_cache_is_used_and_a_second_run_begins_afresh(examiner):
    subject = examiner.subject
    if "routing.cache" not in subject.traits.promises:
        pytest.skip("it has no cache")
    ids = Draws(examiner, 2).grid(1, 6)
    other = Draws(examiner).other(ids, range(5))
    with subject.precision(torch.float64):
        first, there = (examiner.again(decoded(x, 5, 1)) for x in (ids, other))
        again = examiner.again(decoded(ids, 5, 1))
    assert (first[:, 5] - there[:, 5]).abs().max() > 1e-3
    assert torch.equal(first, again)


def test_float64_mode_keeps_the_weights_and_the_default_dtype(examiner):
    subject = examiner.subject
    weights = [(p.data_ptr(), p.dtype) for p in subject._model.parameters()]
    with subject.precision(torch.float64):
        y = subject.call(torch.tensor(Draws(examiner, 2).grid(1, TIME))).y
        assert subject.dtype is torch.float64
    assert y.dtype is torch.float64
    assert weights == [(p.data_ptr(), p.dtype) for p in subject._model.parameters()]
    assert torch.get_default_dtype() is torch.float32


def test_float64_mode_equals_a_model_that_is_moved_to_float64():
    tame = subject("gpt2")  # it has no float32 islands
    ids = torch.arange(TIME)[None]
    with tame.precision(torch.float64):
        y = tame.call(ids).y
    with torch.no_grad():
        naive = built("gpt2").double()(ids).logits
    torch.testing.assert_close(
        y, naive, rtol=0, atol=64 * torch.finfo(torch.float64).eps * float(naive.abs().max())
    )


def test_large_products_are_cut_into_pieces(monkeypatch):
    ids = torch.arange(TIME)[None]
    tame = subject("llama")
    with tame.precision(torch.float64):
        whole = tame.call(ids).y
        monkeypatch.setattr("whyformer.subjects.float64._ROWS", 100)
        pieces = tame.call(ids).y
    torch.testing.assert_close(
        pieces, whole, rtol=0, atol=64 * torch.finfo(torch.float64).eps * float(whole.abs().max())
    )


def test_bfloat16_weights_are_moved_up_exactly_and_back_to_be_run_as_they_are():
    low = built("llama").to(torch.bfloat16)
    stored = [p.detach().clone() for p in low.parameters()]
    sub = HuggingFace(Checkpoint(low.float(), torch.bfloat16, "LlamaForCausalLM", True), name="llama")
    assert sub.native is torch.bfloat16
    assert sub.describe()["dtype"] == "bfloat16"
    assert sub.describe()["upcast"] == "bfloat16 weights moved up to float32, which is exact"
    ids = torch.arange(TIME)[None]
    before = sub.call(ids).y
    with sub.precision(torch.bfloat16):
        assert sub.call(ids).y.dtype is torch.bfloat16
        for p, kept in zip(sub._model.parameters(), stored, strict=True):
            assert torch.equal(p, kept)
    assert torch.equal(sub.call(ids).y, before)
    with pytest.raises(SubjectError, match="not stored so"), sub.precision(torch.float16):
        pass


def test_vocabulary_is_the_table():
    model = built("gpt2")
    made = Checkpoint(model, torch.float32, "GPT2LMHeadModel", True)
    assert HuggingFace(made, name="gpt2", tokens=10).traits.vocabulary == 10
    for tokens in (0, VOCABULARY + 1):
        with pytest.raises(UsageError, match=f"--tokens {tokens}: gpt2 has {VOCABULARY} of them"):
            HuggingFace(made, name="gpt2", tokens=tokens)


def test_what_it_cannot_do_is_said():
    sub = subject("gemma2")
    ids = torch.arange(TIME)[None]
    for settings in (Settings(train=True), Settings(backend="sdpa")):
        with pytest.raises(SubjectError):
            sub.call(ids, settings=settings)
    with pytest.raises(SubjectError, match="IndexError"):
        sub.call(ids + VOCABULARY)
