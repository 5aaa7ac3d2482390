"""The copy after a separator: every pair of positions, margins as an engine has them, and planted changes."""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from whyformer.errors import UsageError
from whyformer.instruments.rounding import gamma
from whyformer.wire import Wired, certify, wire
from whyformer.wire.family import UnfitError

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
safetensors = pytest.importorskip("safetensors.torch")

VOCABULARY = 90
SEPARATOR = 2


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    kept = {}

    def get(context):
        if context not in kept:
            out = tmp_path_factory.mktemp("wired") / "model"
            wire("gpt2", vocabulary=VOCABULARY, context=context, out=out, circuit="copy")
            model = transformers.AutoModelForCausalLM.from_pretrained(out)
            kept[context] = Wired.open(out), model.eval()
        return kept[context]

    return get


def with_separators(context, places, rng):
    """Words, and separators at some places; 0 stands for none."""
    words = [0, *(rng.randint(3, VOCABULARY - 1) for _ in range(context - 1))]
    return [SEPARATOR if at and at in places else word for at, word in enumerate(words)]


@pytest.mark.parametrize("context", [4, 9, 70, 96])
@torch.no_grad()
def test_every_place_is_copied_after_a_separator_anywhere(context, made):
    """All queries t and separators p: the weights are one-hot at p, in the block, and at the place itself."""
    _, model = made(context)
    model.set_attn_implementation("eager")
    rng = random.Random(1)
    ids = torch.tensor([with_separators(context, [p], rng) for p in range(context)])
    out = model(ids, output_attentions=True, use_cache=False)
    first, _, last = (weights[:, 0] for weights in out.attentions)
    t, p = torch.arange(context), torch.arange(context)[:, None]
    latest = torch.where(t >= p, p, 0)
    place = torch.minimum(t - latest + 1, t)
    for weights, at in ((first, latest), (last, place)):
        assert torch.equal(weights.gather(2, at[..., None]).squeeze(2), torch.ones(context, context))
    assert torch.equal(out.logits.argmax(-1), ids.gather(1, place))


def leads(model, sequence, norms=0.0):
    """By how much, in each layer, the key that is looked at leads, at the worst position; and the logits.

    ``norms``: each vector's norm is made wrong by as much as the proof allows for, times this: its scale and
    its shift, each up or down.
    """
    parts, hooks, width = [], [], model.config.n_embd
    signs = torch.Generator().manual_seed(1)

    def keep(_module, _inputs, out):
        parts.append(out[0])

    def blur(_module, _inputs, out):
        scale, shift = torch.randint(2, (2, out.shape[1], 1), generator=signs) * 2.0 - 1
        wide = gamma(width, torch.float32), gamma(width // 2 + 8, torch.float32)
        return out * (1 + norms * wide[1] * scale) + norms * wide[0] * shift

    for block in model.transformer.h:
        hooks.append(block.attn.c_attn.register_forward_hook(keep))
        if norms:
            hooks.append(block.ln_1.register_forward_hook(blur))
    logits = model(torch.tensor([sequence]), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    found, rows = [], width // 2
    for part in parts:
        scores = part[:, :rows] @ part[:, width : width + rows].T / rows**0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        best = scores[1:].topk(2).values
        found.append(float((best[:, 0] - best[:, 1]).min()))
    return found, logits


@pytest.mark.parametrize("norms", [0.0, 1.0])
@pytest.mark.parametrize("context", [96, 1000, pytest.param(4000, marks=pytest.mark.slow)])
@torch.no_grad()
def test_scores_lead_by_the_margins_of_the_certificate(context, norms, made):
    """Queries and keys of the stock model, products in float32; norms as they are, or as wrong as allowed."""
    wired, model = made(context)
    margins = [layer["margin"] for layer in certify(wired.path)["layers"]]
    rng = random.Random(context)
    for places in ([], [1], [context // 2], [context - 2, context - 1], rng.sample(range(context), 9)):
        sequence = with_separators(context, places, rng)
        found, logits = leads(model, sequence, norms)
        assert all(lead >= margin for lead, margin in zip(found, margins, strict=True))
        answers = torch.tensor(wired.answers(sequence))[:, None]
        own = logits.gather(1, answers).squeeze(1)
        assert (own - logits.scatter(1, answers, -torch.inf).amax(1)).min() >= wired.margin


@torch.no_grad()
def test_norms_that_are_more_wrong_than_allowed_break_the_margins(made):
    wired, model = made(1000)
    margins = [layer["margin"] for layer in certify(wired.path)["layers"]]
    found, _ = leads(model, with_separators(1000, range(700, 1000), random.Random(2)), 16.0)
    assert all(lead < margin for lead, margin in zip(found, margins, strict=True))


@pytest.mark.parametrize("words", [1, 2, 40])
@torch.no_grad()
def test_a_prefix_of_any_length_goes_on_for_ever(words, made):
    """Words that repeat within the prefix, and a later separator, after which the copy begins anew."""
    _, model = made(96)
    rng = random.Random(words)
    for length in (1, 2, 7, 31):
        prefix = [rng.randint(3, 2 + words) for _ in range(length)]
        again = [*prefix, SEPARATOR]
        asked = torch.tensor([[0, *again]])
        new = 95 - len(again)
        gone = model.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=new)
        assert gone[0, 1:].tolist() == (again * 96)[:95]
        anew = torch.tensor([[0, *again, *prefix[: length // 2], 77, SEPARATOR]])
        gone = model.generate(anew, attention_mask=torch.ones_like(anew), max_new_tokens=length + 1)
        assert gone[0, anew.shape[1] :].tolist() == again


@torch.no_grad()
def test_without_its_block_the_place_is_lost(made):
    """The control: each layer is needed."""
    wired, model = made(96)
    sequence = with_separators(96, [40], random.Random(4))
    answers = torch.tensor(wired.answers(sequence))
    assert torch.equal(model(torch.tensor([sequence])).logits[0].argmax(-1), answers)
    for block in model.transformer.h:
        kept = block.attn.c_proj.weight.clone()
        block.attn.c_proj.weight.zero_()
        assert not torch.equal(model(torch.tensor([sequence])).logits[0].argmax(-1), answers)
        block.attn.c_proj.weight.copy_(kept)


def digits(table, number):
    """The columns of the positions that hold the bits of a number, and those of their negatives."""
    found = []
    for b in range(int(number.max()).bit_length()):
        bits = ((number >> b) & 1) * 2.0 - 1
        for sign in (1, -1):
            found += (table == 64 * sign * bits[:, None]).all(0).nonzero().flatten().tolist()[:1]
    return found


def flipped(stored, name, row, columns):
    stored[name][row, columns] *= -1


def swapped(stored, name, rows):
    stored[name][list(rows)] = stored[name][list(rows[::-1])].clone()


WTE, WPE = "transformer.wte.weight", "transformer.wpe.weight"
AT = torch.arange(96)


def marks(stored):
    table = stored[WTE]
    return ((table[0] == -table[1]) & (table[0] != 0)).nonzero().flatten().tolist()


def turned_back(stored):
    """Layer 1 seeks t + p: the part of the separator's position with its sign turned."""
    weight = stored["transformer.h.1.attn.c_attn.weight"]
    own = digits(stored[WPE], AT)
    since = [c for c in weight[:, 0].nonzero().flatten().tolist() if c not in own][:14]
    weight[since, 0] *= -1


def a_mark_read_in_layer_1(stored):
    weight = stored["transformer.h.1.attn.c_attn.weight"]
    weight[marks(stored)[0], weight.shape[1] // 3] = 2.0**-20


def a_filler_read_in_layer_1(stored):
    """A constant that layer 0 wrote, with the error of its norm."""
    weight = stored["transformer.h.1.attn.c_attn.weight"]
    unread = (stored[WTE] == 0).all(0) & (stored[WPE] == 0).all(0)
    written = stored["transformer.h.0.attn.c_proj.weight"].abs().amax(0)
    weight[int((unread * written).argmax()), 0] = 2.0**-20


CHANGES = {
    "a filler read in layer 1": (a_filler_read_in_layer_1, "layer 1: row 0 of its query reads"),
    "a mark read in layer 1": (a_mark_read_in_layer_1, "layer 1: row 0 of its key reads"),
    "a digit of position 37": (
        lambda s: flipped(s, WPE, 37, digits(s[WPE], AT)[:2]),
        "layer 0.* at position 37",
    ),
    "two positions swapped": (lambda s: swapped(s, WPE, (20, 21)), "layer 0.* at position 21"),
    "a bend of position 50": (
        lambda s: flipped(s, WPE, 50, digits(s[WPE], AT % 32 * (31 - AT % 32))[4:6]),
        "layer 2",
    ),
    "a bend of a block": (
        lambda s: flipped(s, WPE, 64, digits(s[WPE], (AT // 32) * (3 - AT // 32))[2:4]),
        "layer 1",
    ),
    "a mark on a word": (lambda s: flipped(s, WTE, 9, marks(s)), "id 9"),
    "no mark on the separator": (lambda s: flipped(s, WTE, 2, marks(s)), "id 2"),
    "two words swapped, and their marks": (lambda s: swapped(s, WTE, (2, 8)), "id 2"),
    "layer 1 seeks elsewhere": (turned_back, "layer 1"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_keeps_every_norm_is_found(change, made, tmp_path):
    folder = Path(shutil.copytree(made(96)[0].path, tmp_path / "m"))
    stored = safetensors.load_file(folder / "model.safetensors")
    make, where = CHANGES[change]
    kept = {name: tensor.clone() for name, tensor in stored.items()}
    make(stored)
    assert any(not torch.equal(stored[name], kept[name]) for name in kept)
    safetensors.save_file(stored, folder / "model.safetensors")
    with pytest.raises(UnfitError, match=where):
        certify(folder)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_no_certificate(dtype, made, tmp_path):
    folder = Path(shutil.copytree(made(96)[0].path, tmp_path / "m"))
    stored = safetensors.load_file(folder / "model.safetensors")
    safetensors.save_file({name: t.to(dtype) for name, t in stored.items()}, folder / "model.safetensors")
    with pytest.raises(UnfitError, match="stored as"):
        certify(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}))
    with pytest.raises(UnfitError, match="within rounding" if dtype == torch.bfloat16 else "dtype"):
        certify(folder)


def test_what_norms_round_bounds_the_context(tmp_path):
    asked = {"vocabulary": 60, "circuit": "copy", "out": tmp_path / "m"}
    with pytest.raises(UsageError, match="--dtype float32"):
        wire("gpt2", context=64, dtype="bfloat16", **asked)
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_the_largest_context_is_told(tmp_path):
    asked = {"vocabulary": 60, "circuit": "copy", "out": tmp_path / "m"}
    with pytest.raises(UsageError, match="the largest that can") as told:
        wire("gpt2", context=9000, **asked)
    largest = int(str(told.value).split("--context ")[1].split(",")[0])
    assert largest > 4000
    assert wire("gpt2", context=largest, **asked)["rule"] == "copy-separator"
