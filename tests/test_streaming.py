"""Streamed attention against the pattern that the eager path computes, family by family."""

import pytest
import torch

from decoders import FAMILIES, FUSED, decoder
from whyformer.errors import UsageError
from whyformer.instruments import copying, kernels, quoting
from whyformer.instruments.kernels import Scoring, attend, pair_probability, place_probability
from whyformer.instruments.repeats import from_tokens
from whyformer.instruments.streaming import OWN, EnoughError, Streamed, run, watching

pytest.importorskip("transformers")
TIME = 24
CLOSE = 2e-5
"""What issue 5 allows between a streamed probability and the eager one."""


def every_pair(rows: int, time: int) -> torch.Tensor:
    return torch.stack(torch.meshgrid(*map(torch.arange, (rows, time, time)), indexing="ij")).flatten(1)


def tokens(rows: int = 2, time: int = TIME) -> torch.Tensor:
    return torch.randint(3, 96, (rows, time), generator=torch.Generator().manual_seed(1))


def streamed(model, ids, **options) -> tuple[dict, torch.Tensor, set[str]]:
    """The whole pattern of each layer, pair by pair, and the logits that came with it."""
    rows, time = ids.shape
    found = {}

    def watcher(layer):
        flat = layer.probability(every_pair(rows, time))
        found[layer.index] = flat.view(rows, time, time, -1).permute(0, 3, 1, 2)

    with torch.no_grad(), watching(model, watcher) as watch:
        logits = model(ids, use_cache=False, **options).logits
    return found, logits, watch.paths


def eager(model, ids, **options) -> list[torch.Tensor]:
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        found = model(ids, use_cache=False, output_attentions=True, **options).attentions
    model.config._attn_implementation = before
    return list(found)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_probabilities_equal_the_eager_pattern(family, padded):
    model, ids = decoder(family), tokens()
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :5] = 0
    found, _, _ = streamed(model, ids, attention_mask=mask)
    expected = eager(model, ids, attention_mask=mask)
    assert len(found) == len(expected) == 2
    real = mask.bool()[:, None, :, None]
    for index, pattern in enumerate(expected):
        assert ((found[index] - pattern).abs() * real).max() < CLOSE
        assert pattern.std() > 0.05  # far from uniform, so that the comparison says something


@pytest.mark.parametrize("family", ["zamba", "zamba2"])
def test_attention_that_blocks_share_is_told_block_by_block(family):
    model, ids = decoder(family), tokens()
    found, _, _ = streamed(model, ids)
    assert sorted(found) == [1, 3]  # the others are state-space layers
    for index, pattern in zip((1, 3), eager(model, ids), strict=True):
        assert (found[index] - pattern).abs().max() < CLOSE
    assert not found[1].equal(found[3])


@pytest.mark.parametrize("family", FUSED)
def test_the_output_is_bitwise_that_of_the_same_kernel(family):
    model, ids = decoder(family), tokens()
    for mask in (torch.ones_like(ids), (torch.arange(TIME) > 4).long().expand_as(ids)):
        with torch.no_grad():
            plain = model(ids, attention_mask=mask, use_cache=False).logits
        _, logits, paths = streamed(model, ids, attention_mask=mask)
        assert torch.equal(logits, plain)
        assert paths == {"fused kernel with log-sum-exp on cpu"}


@pytest.mark.parametrize("family", ["bloom", "gpt_neo"])
def test_a_model_that_attends_by_itself_is_read_at_its_own_softmax(family):
    model, ids = decoder(family), tokens()
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
    _, logits, paths = streamed(model, ids)
    assert torch.equal(logits, plain)
    assert paths == {OWN}


def test_a_window_is_honoured():
    found, _, _ = streamed(decoder("mistral"), tokens())
    back = torch.arange(TIME)[:, None] - torch.arange(TIME)
    for pattern in found.values():
        assert (pattern[..., (back >= 8) | (back < 0)] == 0).all()
        assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-5)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt_oss", "llama"])
def test_blocks_of_queries_change_nothing_but_rounding(family, monkeypatch):
    model, ids = decoder(family), tokens()
    mask = torch.ones_like(ids)
    mask[1, :7] = 0
    real = mask.bool()
    whole, logits, _ = streamed(model, ids, attention_mask=mask)
    monkeypatch.setattr(kernels, "BLOCK", 5 * 2 * TIME)
    monkeypatch.setattr(kernels, "GATHERED", 7 * 4 * 8)
    parts, other, _ = streamed(model, ids, attention_mask=mask)
    # float32 sums of 24 terms of size 1: 1e-5 is far above their rounding, and far below a wrong block.
    assert (logits - other)[real].abs().max() < 1e-5
    for index, pattern in whole.items():
        assert ((pattern - parts[index]).abs() * real[:, None, :, None]).max() < 1e-5


def test_packed_documents_do_not_see_each_other():
    ids = tokens(rows=1)
    places = torch.cat([torch.arange(10), torch.arange(14)])[None]
    found, _, _ = streamed(decoder("llama"), ids, position_ids=places)
    for pattern in found.values():
        assert (pattern[..., 10:, :10] == 0).all()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("additive", [False, True])
def test_a_mask_of_ones_own_is_honoured_and_a_row_that_sees_nothing_gives_nothing(family, additive):
    ids = tokens()
    seen = torch.ones(TIME, TIME, dtype=torch.bool).tril() & (torch.arange(TIME) != 3)
    seen[5] = False
    mask = seen.expand(2, 1, TIME, TIME)
    given = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if additive else mask
    found, _, _ = streamed(decoder(family), ids, attention_mask=given)
    for pattern in found.values():
        assert (pattern[..., ~seen] == 0).all()
        assert torch.allclose(pattern.sum(-1)[..., seen.any(-1)], torch.ones(()), atol=1e-5)


def test_the_model_is_left_as_it_was():
    model = decoder("llama").train()
    before = model.config._attn_implementation
    with pytest.raises(RuntimeError, match="of the watcher"):
        run(model, tokens(), _fail)
    assert model.training
    assert model.config._attn_implementation == before


def test_a_part_that_was_frozen_stays_so():
    model = decoder("llama").train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    with watching(model, lambda layer: None):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before


def _fail(layer):
    raise RuntimeError("of the watcher")


def test_a_run_ends_where_the_watcher_has_enough():
    seen = []

    def watcher(layer):
        seen.append(layer.index)
        raise EnoughError

    run(decoder("llama"), tokens(), watcher)
    assert seen == [0]


def test_a_replaced_output_is_what_the_model_goes_on_with():
    model, ids = decoder("llama"), tokens()

    def silence(layer):
        return torch.zeros_like(layer.output)

    with torch.no_grad():
        with watching(model, silence):
            silent = model(ids, use_cache=False).logits
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
        expected = model(ids, use_cache=False).logits
    assert torch.allclose(silent, expected, atol=1e-6)


def test_a_model_that_reckons_with_its_mask_is_told_so():
    with pytest.raises(UsageError, match="it reckons with its mask before it attends"):
        run(decoder("doge"), tokens(), lambda layer: None)


def test_a_model_without_softmax_attention_is_refused():
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("mamba", vocab_size=96, hidden_size=32, num_hidden_layers=1, state_size=4)
    with pytest.raises(UsageError, match="no softmax attention"):
        run(AutoModelForCausalLM.from_config(config), tokens(), lambda layer: None)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_kernels_agree_with_their_formula(cap, sinks, bias):
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, key, value = drawn(2, 6, 9, 8), drawn(2, 2, 9, 8), drawn(2, 2, 9, 5)
    seen = torch.rand(2, 1, 9, 9, generator=generator) < 0.7
    seen |= torch.eye(9, dtype=torch.bool)
    scoring = Scoring(
        scale=0.7,
        mask=seen,
        cap=cap,
        sinks=drawn(6) if sinks else None,
        bias=drawn(1, 6, 9, 9) if bias else None,
    )
    # Query head h reads key-value head h // 3.
    shared = torch.arange(6) // 3
    score = query @ key[:, shared].mT * 0.7
    score = score if cap is None else cap * torch.tanh(score / cap)
    score = score if scoring.bias is None else score + scoring.bias
    score = score.masked_fill(~seen, -torch.inf)
    if sinks:
        score = torch.cat([score, scoring.sinks.view(1, 6, 1, 1).expand(2, 6, 9, 1)], -1)
    pattern = score.softmax(-1)[..., :9]
    output, normaliser, _ = attend(query, key, value, scoring)
    # float64 throughout: a few rounding errors of sums of nine terms.
    assert torch.allclose(output, pattern @ value[:, shared], atol=1e-13)
    pairs = every_pair(2, 9)
    given = pair_probability(query, key, normaliser, scoring, pairs)
    assert torch.allclose(given.view(2, 9, 9, 6).permute(0, 3, 1, 2), pattern, atol=1e-13)


def test_float64_is_kept():
    model, ids = decoder("llama").double(), tokens()
    layers = []
    run(model, ids, layers.append)
    assert all(isinstance(layer, Streamed) for layer in layers)
    assert {layer.probability(every_pair(2, 4)).dtype for layer in layers} == {torch.float64}


@pytest.mark.parametrize("cap", [None, 50.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_scored_in_float32(dtype, cap):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (3 * torch.randn(1, 4, 64, 16, generator=generator).to(dtype) for _ in range(3))
    scoring = Scoring(scale=0.25, causal=True, cap=cap)
    score = query.double() @ key.double().mT * 0.25
    score = score if cap is None else cap * torch.tanh(score / cap)
    pattern = score.masked_fill(~torch.ones(64, 64, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    _, normaliser, _ = attend(query, key, value, scoring)
    found = pair_probability(query, key, normaliser, scoring, every_pair(1, 64))
    found = found.view(64, 64, 4).permute(2, 0, 1)
    # Half a unit of float16 at 1: what the better of the two dtypes could store of a probability at all.
    # Scores that are rounded to the dtype are off by 0.016 and 0.12 here.
    assert (found - pattern[0]).abs().max() < 2.0**-11
    itself = pattern[0].diagonal(dim1=1, dim2=2)[:, 1:]
    assert (place_probability(query, key, normaliser, scoring, 0)[0] - itself).abs().max() < 2.0**-11


def test_autocast_lowers_no_probability():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (3 * torch.randn(1, 4, 64, 16, generator=generator) for _ in range(3))
    scoring = Scoring(scale=0.25, causal=True)
    _, normaliser, _ = attend(query, key, value, scoring)
    with torch.autocast("cpu", torch.bfloat16):
        pairs = pair_probability(query, key, normaliser, scoring, every_pair(1, 64))
        places = place_probability(query, key, normaliser, scoring, 1)
    assert torch.equal(pairs, pair_probability(query, key, normaliser, scoring, every_pair(1, 64)))
    assert torch.equal(places, place_probability(query, key, normaliser, scoring, 1))


@pytest.mark.parametrize("turned", ["query", "key", "value"])
def test_numbers_of_a_head_that_lie_apart_are_not_given_to_a_fused_kernel(turned):
    generator = torch.Generator().manual_seed(0)
    parts = {name: torch.randn(1, 2, 16, 8, generator=generator) for name in ("query", "key", "value")}
    whole = attend(*parts.values(), Scoring(scale=0.25, causal=True))
    parts[turned] = parts[turned].mT.contiguous().mT
    apart = attend(*parts.values(), Scoring(scale=0.25, causal=True))
    # float32 sums of 16 terms of size 1.
    assert all((one - other).abs().max() < 1e-5 for one, other in zip(whole[:2], apart[:2], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_of_cuda_is_called_as_it_wants(masked, dtype, monkeypatch):
    """Without a device at hand: a stand-in takes what the kernel takes, and gives what it gives."""

    def stand_in(query, key, value, mask, wants_sum, dropout, causal, *, scale):
        assert wants_sum
        assert query.shape == key.shape == value.shape
        if mask is not None:
            # The kernel refuses rows of a mask that do not begin at multiples of 8, and other dtypes.
            assert (mask.shape, mask.dtype, dropout) == ((2, 4, 9, 9), query.dtype, 0.0)
            assert all(stride % 8 == 0 for stride in mask.stride()[:3])
        output, total, _ = attend(query, key, value, Scoring(scale=scale, causal=causal, mask=mask))
        return output, torch.nn.functional.pad(total, (0, 23), value=torch.inf), None, None

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_efficient_attention", stand_in)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, n, 9, 8, generator=generator).to(dtype) for n in (4, 2, 2))
    seen = (torch.rand(2, 1, 9, 9, generator=generator) < 0.7) | torch.eye(9, dtype=torch.bool)
    scoring = Scoring(scale=0.3, causal=not masked, mask=seen if masked else None)
    output, total = kernels._fused(kernels._fused_cuda, query, key, value, scoring)
    expected, expected_total, _ = attend(query, key, value, scoring)
    assert torch.equal(output, expected)
    assert torch.equal(total, expected_total)


def test_what_the_kernel_of_cuda_does_not_take_is_left_to_the_plain_one():
    wide = torch.empty(1, 2, 4, 8, dtype=torch.float64)
    assert not kernels._efficient(wide, wide[:, :1], wide[:, :1])


def test_a_mask_keeps_its_numbers_when_its_rows_are_aligned():
    mask = torch.randn(2, 1, 5, 9, generator=torch.Generator().manual_seed(0))
    aligned = kernels._aligned(mask)
    assert torch.equal(aligned, mask)
    assert aligned.stride() == (80, 80, 16, 1)


@pytest.mark.parametrize("which", ["copying", "quoting"])
def test_tokens_go_to_where_the_model_is(which, monkeypatch):
    met = []

    def watched(model, ids, watcher):
        met.append(ids.device.type)
        raise EnoughError

    sequences = from_tokens(torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9]]))
    model = decoder("llama").to("meta")
    call = {
        "copying": lambda: copying.copying(model, sequences.tokens[0], generator=torch.Generator()),
        "quoting": lambda: quoting.attention(model, sequences, [(0, 0)]),
    }[which]
    monkeypatch.setattr({"copying": copying, "quoting": quoting}[which], "run", watched)
    with pytest.raises(EnoughError):
        call()
    assert met == ["meta"]
