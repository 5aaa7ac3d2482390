"""Wired checkpoints in stock transformers: every promised position is right, by the promised margin."""

import random

import pytest
import torch

from whyformer.wire import Wired, certify, scores, wire
from whyformer.wire.circuit import UNIT

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

VOCABULARY, CONTEXT = 140, 96
CASES = {
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", {"tied": False, "rule": "agree"}),
    "gpt2 bfloat16": ("gpt2", {"dtype": "bfloat16"}),
    "llama": ("llama", {}),
    "llama agree": ("llama", {"rule": "agree"}),
    "llama tied bfloat16": ("llama", {"tied": True, "dtype": "bfloat16"}),
    "llama 3 geometry": ("llama", {"theta": 5e5}),
    "mistral window": ("mistral", {"window": 64}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {"tied": True}),
    "qwen3": ("qwen3", {}),
    "qwen3 bfloat16": ("qwen3", {"dtype": "bfloat16"}),
    "gemma": ("gemma", {}),
    "gemma bfloat16": ("gemma", {"dtype": "bfloat16"}),
    "neox": ("neox", {}),
    "neox bfloat16": ("gpt-neox", {"dtype": "bfloat16"}),
    "gpt2 two-hop": ("gpt2", {"circuit": "two-hop"}),
    "llama two-hop": ("llama", {"circuit": "two-hop"}),
    "llama two-hop agree": ("llama", {"circuit": "two-hop", "rule": "agree"}),
    "llama two-hop bfloat16": ("llama", {"circuit": "two-hop", "dtype": "bfloat16", "tied": True}),
    "qwen2 two-hop": ("qwen2", {"circuit": "two-hop"}),
    "mistral two-hop window": ("mistral", {"circuit": "two-hop", "window": 64}),
    "gemma two-hop": ("gemma", {"circuit": "two-hop"}),
    "neox two-hop": ("neox", {"circuit": "two-hop"}),
    "gpt2 separator": ("gpt2", {"circuit": "copy"}),
    "gpt2 separator untied": ("gpt2", {"circuit": "copy", "tied": False}),
    "gpt2 copy": ("gpt2", {"circuit": "copy", "prefix": 47}),
    "gpt2 copy bfloat16": ("gpt2", {"circuit": "copy", "dtype": "bfloat16", "prefix": 20}),
    "llama copy": ("llama", {"circuit": "copy", "prefix": 47}),
    "llama copy bfloat16": ("llama", {"circuit": "copy", "dtype": "bfloat16", "prefix": 47}),
    "llama copy tied": ("llama", {"circuit": "copy", "tied": True, "prefix": 1}),
    "qwen2 copy": ("qwen2", {"circuit": "copy", "prefix": 30}),
    "mistral copy": ("mistral", {"circuit": "copy", "window": 64, "prefix": 40}),
    "gemma copy": ("gemma", {"circuit": "copy", "prefix": 47}),
    "neox copy": ("neox", {"circuit": "copy", "prefix": 47}),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    made = {}

    def get(case):
        if case not in made:
            out = tmp_path_factory.mktemp("wired") / "model"
            name, options = CASES[case]
            wire(name, vocabulary=VOCABULARY, context=CONTEXT, out=out, **options)
            model = transformers.AutoModelForCausalLM.from_pretrained(out)
            made[case] = Wired.open(out), model.eval()
        return made[case]

    return get


def sequences(wired, count=6):
    """Random ones over few and many tokens, and hard ones: gap 1, the longest gap, many twins, none."""
    rng, (low, high), length = random.Random(7), wired.tokens, wired.context
    ids = list(range(low, high + 1))
    rest = ids[2:] * 2
    made = [
        [rng.choice(ids[: rng.choice([2, 5, 30, len(ids)])]) for _ in range(length - 1)] for _ in range(count)
    ]
    made += [
        [ids[0], ids[0], *rest[: length - 3]],
        [ids[0], ids[1], *rest[: length - 4], ids[0]],
        [ids[0], ids[1]] * (length // 2 - 1),
        [ids[0]] * (length - 1),
        ids[: length - 1],
        [*ids[:2], *[nearest(wired, ids[0])] * (length - 4), ids[0]],
    ]
    return [[wired.first, *sequence] for sequence in made]


def nearest(wired, token):
    """The token whose word is most like another's, by the stored embedding."""
    from safetensors.torch import load_file

    stored = load_file(wired.path / "model.safetensors")
    table = next(
        stored[name].float()
        for name in stored
        if name.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight"))
    )
    products = table @ table[token]
    products[[0, 1, token]] = -torch.inf
    return int(products.argmax())


def margins(logits, answers):
    """By how much each promised logit leads."""
    kept = [(i, a) for i, a in enumerate(answers) if a is not None]
    assert kept
    rows = logits[[i for i, _ in kept]].float()
    right = torch.tensor([a for _, a in kept])[:, None]
    own = rows.gather(1, right)
    return own.squeeze(1) - rows.scatter(1, right, -torch.inf).amax(1)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_every_promised_position_is_right(case, implementation, played):
    wired, model = played(case)
    model.set_attn_implementation(implementation)
    for sequence in sequences(wired):
        logits = model(torch.tensor([sequence]), use_cache=False).logits[0]
        assert margins(logits, wired.answers(sequence)).min() >= wired.margin


@pytest.mark.parametrize(
    "case",
    ["gpt2", "llama", "qwen3", "neox", "gemma bfloat16", "llama two-hop", "llama copy", "gpt2 separator"],
)
@torch.no_grad()
def test_cache_and_chunks_change_nothing_that_is_promised(case, played):
    wired, model = played(case)
    for sequence in sequences(wired, 1):
        ids, answers = torch.tensor([sequence]), wired.answers(sequence)
        for size in (1, 7):
            cache, parts = transformers.DynamicCache(config=model.config), []
            for at in range(0, ids.shape[1], size):
                parts.append(model(ids[:, at : at + size], cache=cache, use_cache=True).logits[0])
            assert margins(torch.cat(parts), answers).min() >= wired.margin


@pytest.mark.parametrize(
    "case", ["gpt2", "llama", "mistral", "neox", "llama two-hop", "llama copy", "gpt2 separator"]
)
@torch.no_grad()
def test_left_padded_batches_are_right(case, played):
    wired, model = played(case)
    rows = [sequence[:length] for sequence, length in zip(sequences(wired), (96, 40, 17, 3), strict=False)]
    longest = max(map(len, rows))
    ids = torch.tensor([[1] * (longest - len(row)) + row for row in rows])
    mask = (ids != 1).long()
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=places, use_cache=False).logits
    for row, got in zip(rows, logits, strict=True):
        assert margins(got[-len(row) :], wired.answers(row)).min() >= wired.margin


@pytest.mark.parametrize("case", ["gpt2", "llama", "qwen2", "gemma", "neox"])
@torch.no_grad()
def test_text_in_text_out_goes_on_for_ever(case, played):
    wired, model = played(case)
    # transformers 5 puts its own class in place of the one that a Qwen2 folder names
    loader = transformers.PreTrainedTokenizerFast if case == "qwen2" else transformers.AutoTokenizer
    tokenizer = loader.from_pretrained(wired.path)
    words = tokenizer.convert_ids_to_tokens([5, 9, 7])
    assert len(set(words)) == 3
    asked = tokenizer(" ".join([*words, *words]), return_tensors="pt")
    assert asked["input_ids"][0].tolist() == [0, 5, 9, 7, 5, 9, 7]
    made = model.generate(**asked, max_new_tokens=60)[0].tolist()
    assert made == [0, *[5, 9, 7] * 22]
    assert tokenizer.decode(made, skip_special_tokens=True) == " ".join(words * 22)


@torch.no_grad()
def test_layer_0_looks_one_back_and_layer_1_at_the_twins_successor(played):
    """The weights are exactly one-hot where the certificate says so."""
    _, model = played("llama agree")
    model.set_attn_implementation("eager")
    sequence = [0, *range(10, 60), 30]
    first, second = model(torch.tensor([sequence]), output_attentions=True, use_cache=False).attentions
    last = len(sequence)
    assert torch.equal(first[0, 0, 1:].argmax(-1), torch.arange(last - 1))
    assert (first[0, 0, 1:].amax(-1) == 1).all()
    assert second[0, 0, -1, sequence.index(30) + 1] == 1
    assert (second[0, 0, :-1, 0] == 1).all()


@torch.no_grad()
def test_without_its_parts_the_lookup_is_lost(played):
    """The control: cut layer 0's output, and the answers are wrong where there is a twin."""
    wired, model = played("llama")
    sequence = [0, *[11, 12, 13, 14, 15] * 4]
    answers = wired.answers(sequence)
    assert margins(model(torch.tensor([sequence])).logits[0], answers).min() > 0
    weight = model.model.layers[0].self_attn.o_proj.weight
    kept = weight.clone()
    weight.zero_()
    assert margins(model(torch.tensor([sequence])).logits[0], answers)[6:].max() < 0
    weight.copy_(kept)


@torch.no_grad()
def test_two_hops_are_two_lookups(played):
    """[.. A B .. B C .. A] gives C, whatever stands between; cut the second lookup, and it is lost."""
    wired, model = played("llama two-hop")
    rng = random.Random(5)
    for _ in range(20):
        a, b, c, *rest = rng.sample(range(2, VOCABULARY), 60)
        i, j = rng.randint(0, 20), rng.randint(22, 50)
        sequence = [0, *rest[:i], a, b, *rest[i:j], b, c, *rest[j:], a]
        assert wired.answer(sequence) == c
        assert int(model(torch.tensor([sequence])).logits[0, -1].argmax()) == c
    weight = model.model.layers[1].self_attn.o_proj.weight
    kept = weight.clone()
    weight.zero_()
    assert int(model(torch.tensor([sequence])).logits[0, -1].argmax()) != c
    weight.copy_(kept)


@pytest.mark.parametrize("case", ["llama two-hop", "llama two-hop agree", "llama two-hop bfloat16"])
@torch.no_grad()
def test_what_the_first_hop_leaves_is_blurred_no_more_than_is_allowed_for(case, played):
    """All entries before layer 2 are whole units but for what several twins blur."""
    wired, model = played(case)
    dtype = model.dtype
    step = certify(wired.path)["layers"][1]["recency_step"]
    kept, spread = scores.share(step, wired.context, dtype)
    for pattern in ([5], [5, 6], [5, 6, 7, 8, 9]):
        sequence = [0, *(pattern * wired.context)[: wired.context - 1]]
        held = model(torch.tensor([sequence]), output_hidden_states=True).hidden_states[2][0].double()
        right = (held / UNIT).round() * UNIT
        assert ((held - right).abs() <= right.abs() * (spread + 2 * (1 - kept))).all()


@pytest.mark.parametrize("case", ["gpt2 copy", "llama copy", "llama copy bfloat16", "neox copy"])
@torch.no_grad()
def test_a_prefix_goes_on_after_the_separator(case, played):
    """Whatever the prefix is, the same token many times included, and whatever the separator is."""
    wired, model = played(case)
    rng, n = random.Random(3), wired.offset
    assert n == (CONTEXT - 2) // 2
    for few in (1, 2, 5, 100):
        prefix = [rng.randint(2, 1 + few) for _ in range(n)]
        asked = torch.tensor([[0, *prefix, VOCABULARY - 1]])
        made = model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=n)
        assert made[0, n + 2 :].tolist() == prefix


def test_answers_are_those_of_the_naive_rule(played):
    for case in (
        "llama", "llama agree", "llama two-hop", "llama two-hop agree", "llama copy", "gpt2 separator",
    ):  # fmt: skip
        wired, _ = played(case)
        for sequence in sequences(wired, 2):
            assert wired.answers(sequence) == [wired.answer(sequence[: i + 1]) for i in range(len(sequence))]
