"""``whyformer heads`` from outside: its data by schema, its views, and what it refuses in one line."""

import io
import json
import re
import sys

import jsonschema
import pytest
import torch
from rich.console import Console

from decoders import decoder
from models import smollm2
from whyformer.cli import main
from whyformer.errors import UsageError
from whyformer.heads import examine
from whyformer.report.heads import HeadMap, best_table, gap_table, heads_view, text_view
from whyformer.report.schema import json_schema
from whyformer.subjects.decoders import load_decoder

pytest.importorskip("transformers")
WORDS = [f"w{at}" for at in range(90)]
CODE = """
import torch
from test_heads import overflowing
from transformers import BertConfig, BertForMaskedLM, BertModel, LlamaForCausalLM, T5Config
from transformers import T5ForConditionalGeneration

linear = torch.nn.Linear(2, 2)
half = overflowing()
trunk = half.model
small = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
masked = BertForMaskedLM(BertConfig(**small, intermediate_size=32))
encoder = masked.bert
both = T5ForConditionalGeneration(T5Config(vocab_size=96, d_model=32, d_ff=32, num_layers=1, num_heads=4))


class Failing(LlamaForCausalLM):
    def __init__(self):
        super().__init__(half.config)
        self.model.forward = self.fails

    def fails(self, *_, **__):
        raise KeyError("of its own")
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A small decoder with a tokenizer, and others that cannot be scanned."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast

    home = tmp_path_factory.mktemp("checkpoints")
    for name in ("llama", "bloom", "gpt2"):
        decoder(name).save_pretrained(home / name)
    decoder("llama").save_pretrained(home / "words")
    specials = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    vocabulary = specials | {word: at for at, word in enumerate(WORDS, start=4)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(home / "words")
    decoder("llama").save_pretrained(home / "last")  # the start of a text has the highest id
    last = {word: at for at, word in enumerate([*specials, *WORDS[:-1], "<bos>"])} | {"<s>": 1}
    tokenizer = Tokenizer(models.WordLevel(last, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 93)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", unk_token="<unk>").save_pretrained(
        home / "last"
    )
    hybrid = {"num_hidden_layers": 4, "num_attention_heads": 12, "num_key_value_heads": 2}
    hybrid |= {"attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 1, "use_mamba_kernels": False}
    hybrid |= {"vocab_size": 96, "hidden_size": 48, "intermediate_size": 32, "mamba_dt_rank": 4}
    torch.manual_seed(31)
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model("jamba", **hybrid, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    ).save_pretrained(home / "jamba")
    decoder("llama", num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1).save_pretrained(
        home / "one"
    )
    even = decoder("llama")
    with torch.no_grad():
        for layer in even.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    even.save_pretrained(home / "uniform")
    decoder("llama", vocab_size=20).save_pretrained(home / "few")
    decoder("llama", max_position_embeddings=16).save_pretrained(home / "tight")
    decoder("gpt2", n_positions=16).save_pretrained(home / "tight_table")
    small = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1}
    state = AutoConfig.for_model("mamba", **small, state_size=4)
    AutoModelForCausalLM.from_config(state).save_pretrained(home / "mamba")
    two = {"vocab_size": 96, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4}
    AutoModel.from_config(AutoConfig.for_model("t5", **two)).save_pretrained(home / "t5")
    bert = small | {"num_attention_heads": 4, "intermediate_size": 32}
    AutoModel.from_config(AutoConfig.for_model("bert", **bert)).save_pretrained(home / "bert")
    for name in ("layers", "logits"):
        broken = decoder("llama")
        weight = broken.model.layers[1].self_attn.q_proj if name == "layers" else broken.lm_head
        with torch.no_grad():
            weight.weight.fill_(torch.nan)
        broken.save_pretrained(home / f"nan_{name}")
    (home / "text.txt").write_text(" ".join([*WORDS[:12], *WORDS[40:44], *WORDS[2:9]]))
    (home / "short.txt").write_text("w1 w2 w3")
    (home / "empty.txt").write_text("")
    (home / "code.py").write_text(CODE)
    return home


def called(monkeypatch, capsys, folder, *arguments):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["whyformer", "heads", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    out, complaint = capsys.readouterr()
    return exit_.value.code, out, complaint


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_the_data_fits_its_schema_and_repeats(folders, family, monkeypatch, capsys, tmp_path):
    wanted = ("--length", "48", "--json")
    one = called(monkeypatch, capsys, folders, family, *wanted, str(tmp_path / "one.json"))
    two = called(monkeypatch, capsys, folders, family, *wanted, str(tmp_path / "two.json"))
    assert one[0] == two[0] == 0
    assert one[1] == two[1]
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    data = json.loads((tmp_path / "one.json").read_text())
    jsonschema.validate(data, json_schema("heads-1"))
    assert data["schema"] == "whyformer/heads/1"
    assert data["length"] == 48
    assert [(h["layer"], h["head"]) for h in data["heads"]] == [(i, j) for i in range(2) for j in range(4)]
    groups = {row["group"] for row in data["ablation"]}
    assert groups == {"induction", "previous", "random", "single"} - (
        {"random"} if len(data["heads"]) <= 8 else set()
    )
    assert bool(data["compositions"]) == (family == "llama")
    assert max(map(len, one[1].splitlines())) <= 80


def test_the_schema_is_itself_valid_and_refuses_what_it_should(folders):
    schema = json_schema("heads-1")
    jsonschema.Draft202012Validator.check_schema(schema)
    data = examine(str(folders / "llama"), length=32, ablate=False)
    jsonschema.validate(data, schema)
    assert data["ablation"] == []
    data["heads"][0]["induction"] = 1.5
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_a_text_is_scanned_for_its_own_repeats(folders, monkeypatch, capsys, tmp_path):
    report = str(tmp_path / "text.json")
    status, out, _ = called(
        monkeypatch, capsys, folders, "words", "--scan-only", "--text", "text.txt", "--json", report
    )
    assert status == 0
    data = json.loads((tmp_path / "text.json").read_text())
    jsonschema.validate(data, json_schema("heads-1"))
    (passage,) = data["text"]["passages"]
    assert (passage["at"], passage["twin"], passage["tokens"]) == (16, 2, 7)
    assert passage["words"].split() == WORDS[2:9]
    assert "your text" in out
    assert "w2 w3" in out


def test_a_text_may_hold_a_special_token_of_the_highest_id(folders):
    data = examine(str(folders / "last"), length=48, ablate=False, text=folders / "text.txt")
    (passage,) = data["text"]["passages"]
    assert (passage["at"], passage["twin"], passage["tokens"]) == (17, 3, 7)


def test_random_heads_are_those_of_layers_that_attend(folders):
    data = examine(str(folders / "jamba"), length=48)
    assert {head["layer"] for head in data["heads"]} == {2}
    taken = [head for row in data["ablation"] if row["group"] == "random" for head in row["heads"]]
    assert {layer for layer, _ in taken} == {2}


def test_the_loss_without_a_head_is_that_of_zero(folders):
    data = examine(str(folders / "one"), length=48)
    zero, mean = ([r["loss"] for r in data["ablation"] if r["mode"] == mode] for mode in ("zero", "mean"))
    assert f"{zero[0]:.2f}" != f"{mean[0]:.2f}"
    (without,) = best_table(data).columns[-1].cells
    assert without == f"{zero[0]:.2f}"


@pytest.mark.parametrize(("length", "null"), [(80, 80), (120, 93)])
def test_the_null_is_read_at_the_same_places_where_the_ids_allow(folders, length, null, monkeypatch, capsys):
    data = examine(str(folders / "uniform"), length=length, ablate=False)
    assert data["null_length"] == null
    assert data["forwards"] == pytest.approx(9 + 4 * null / length, abs=0.051)
    same = [head["induction"] == pytest.approx(head["null"]["induction"], abs=1e-5) for head in data["heads"]]
    assert all(same) if null == length else not any(same)  # even attention knows the places alone
    out = called(monkeypatch, capsys, folders, "uniform", "--length", str(length), "--scan-only")[1]
    assert ("the null on 93 tokens" in out) == (null < length)


def test_a_narrow_terminal_shows_whole_columns_and_names_every_head(folders, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = called(monkeypatch, capsys, folders, "llama", "--length", "48")
    lines = out.splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.startswith("head "))
    assert lines[at].split() == ["head", "induction", "95%", "null"]
    assert " ".join(lines[at + 9 : at + 11]) == "no room for: duplicate, previous, first, copying, without"
    assert sorted(line.split()[0] for line in lines[at + 1 : at + 9]) == [
        f"{layer}.{head}" for layer in range(2) for head in range(4)
    ]
    assert "…" not in out
    assert any(line.split() == ["taken", "out", "heads", "mode", "loss"] for line in lines)
    assert max(map(len, lines)) <= 40


def test_a_loss_without_each_has_a_column_where_heads_were_taken_out(folders):
    data = examine(str(folders / "llama"), length=48)
    assert best_table(data).columns[-1].header == "without"
    assert best_table(data | {"ablation": []}).columns[-1].header == "copying"


def test_an_octave_without_queries_is_left_blank():
    full = {"least": [2, 4, 8, 16], "value": [1.0, 1.0, 0.0, 0.0]}
    holes = {"least": [4, 32], "value": [1.0, 0.0]}
    curves = {"by_gap": full, "distance": full, "dilution": holes}
    others = {"by_gap": holes, "distance": holes, "dilution": holes}
    table = gap_table({"gaps": [{"head": [0, 0]} | curves, {"head": [0, 1]} | others]})
    drawn = [[cell.plain for cell in table.columns[at].cells] for at in (1, 5, 6)]
    assert drawn == [["██▁▁", " █  ▁"], ["██▁▁", " █  ▁"], ["█  ▁", "█  ▁"]]


def test_a_passage_is_cut_before_a_figure(folders):
    data = examine(str(folders / "words"), length=48, ablate=False, text=folders / "text.txt")
    for width, figures in ((40, 3), (33, 2), (27, 1)):
        text = io.StringIO()
        Console(file=text, width=width, color_system=None).print(*text_view(data["text"]), sep="\n")
        lines = text.getvalue().splitlines()
        (row,) = (line for line in lines if line.lstrip().startswith("16 "))
        assert len(re.findall(r" \d\.\d\d\b", row)) == figures
        assert "w2 w3" in row
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [12, 20, 40, 60, 80])
def test_a_map_that_finds_no_room_goes_on_below(width):
    layers, heads = 74, 12
    every = [
        {"layer": layer, "head": head, "induction": ((layer + head) % 5 / 5) ** 2}
        for layer in range(layers)
        for head in range(heads)
    ]
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(HeadMap(every, "induction"))
    lines = text.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    parts = [lines[at : at + heads + 1] for at in range(0, len(lines), heads + 1)]
    sizes = [max(len(line) for line in part[1:]) - 3 for part in parts]
    assert sum(sizes) == layers
    for head in range(heads):
        cells = "".join(f"{part[1 + head][3:]:<{size}}" for part, size in zip(parts, sizes, strict=True))
        assert cells == "".join(" ░▒▓█"[(layer + head) % 5] for layer in range(layers))
    begins = [int(part[0].split()[0]) for part in parts]
    assert begins == [sum(sizes[:at]) for at in range(len(parts))]


def test_a_named_head_is_told_of_beside_the_best(folders, monkeypatch, capsys, tmp_path):
    deep = decoder("llama", num_hidden_layers=5)
    deep.save_pretrained(tmp_path / "deep")
    plain = examine(str(tmp_path / "deep"), length=48)
    best = {tuple(entry["head"]) for entry in plain["gaps"]}
    others = [(h["layer"], h["head"]) for h in plain["heads"] if (h["layer"], h["head"]) not in best]
    names = [f"{layer}.{head}" for layer, head in (others[0], others[-1])]
    report = tmp_path / "named.json"
    options = ["--length", "48", "--head", names[0], "--head", names[1], "--head", names[0]]
    status, out, _ = called(monkeypatch, capsys, tmp_path, "deep", *options, "--json", str(report))
    assert status == 0
    data = json.loads(report.read_text())
    jsonschema.validate(data, json_schema("heads-1"))
    assert data["named"] == [list(others[0]), list(others[-1])]
    assert [entry["head"] for entry in data["gaps"][-2:]] == data["named"]
    singles = [row["heads"][0] for row in data["ablation"] if row["group"] == "single"]
    assert all(head in singles for head in data["named"])
    together = [row for row in data["ablation"] if row["group"] == "named"]
    assert [row["mode"] for row in together] == ["zero", "mean"]
    assert all(row["heads"] == data["named"] for row in together)
    table = out[out.index("the best induction heads") : out.index("by gap")]
    assert {line.split()[0] for line in table.splitlines()[-3:] if line} == set(names)
    # What is told of the others is what is told without naming any.
    assert data["heads"] == plain["heads"]
    assert [row for row in data["ablation"] if row["group"] in ("induction", "random")] == [
        row for row in plain["ablation"] if row["group"] in ("induction", "random")
    ]


def test_a_run_that_overflows_is_told_and_the_rest_stands(folders, monkeypatch):
    monkeypatch.chdir(folders)
    data = examine("code.py:half", length=48)
    jsonschema.validate(data, json_schema("heads-1"))
    json.dumps(data, allow_nan=False)
    singles = {tuple(row["heads"][0]): row for row in data["ablation"] if len(row["heads"]) == 1}
    assert {head for head, row in singles.items() if row["loss"] is None} <= {(1, 0), (1, 1)}
    failed = [row for row in data["ablation"] if row["loss"] is None]
    assert failed
    assert {row["reason"] for row in failed} == {"the logits: some are not a number"}
    text = io.StringIO()
    Console(file=text, width=80).print(*heads_view(data), sep="\n")
    assert f"{len(failed)} run{'s' * (len(failed) > 1)} not measured: the logits" in text.getvalue()


def test_the_cost_counts_the_text(folders):
    with_text, without = (
        examine(str(folders / "words"), length=48, ablate=False, text=text)
        for text in (folders / "text.txt", None)
    )
    assert with_text["forwards"] == pytest.approx(without["forwards"] + 23 / 48, abs=0.1)


VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 28, "patch_size": 14}


def test_a_decoder_that_reads_images_too_is_scanned_as_its_language_model(tmp_path):
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    alone = decoder("gemma3_text")
    config = Gemma3Config(text_config=alone.config.to_dict(), vision_config=VISION, mm_tokens_per_image=4)
    both = Gemma3ForConditionalGeneration(config)
    both.model.language_model.load_state_dict(alone.model.state_dict())
    both.lm_head.load_state_dict(alone.lm_head.state_dict())
    for name, model in (("alone", alone), ("both", both)):
        model.save_pretrained(tmp_path / name)
    one, other = (examine(str(tmp_path / name), length=48) for name in ("alone", "both"))
    assert other["subject"]["architecture"] == "Gemma3ForConditionalGeneration"
    for part in ("heads", "lookup", "ablation", "compositions"):
        assert one[part] == other[part]


def test_one_that_loads_without_its_language_head_is_refused_for_what_it_is(tmp_path):
    from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

    text = decoder("llama").config
    config = LlavaConfig(text_config=text, vision_config=CLIPVisionConfig(**VISION), image_token_index=90)
    LlavaForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="LlavaModel reads more than tokens") as raised:
        examine(str(tmp_path), length=48)
    assert "encoder" not in str(raised.value)


@pytest.mark.parametrize("family", ["llama", "bloom", "jamba"])
def test_the_cost_is_what_the_model_reads(family, folders):
    read = []

    def count(module, arguments):
        if isinstance(module, torch.nn.Embedding):
            read.append(arguments[0].numel())

    def begin(said):
        """A model that keeps states is tried on two tokens when it is loaded; what counts comes after."""
        if said == "scanning":
            read.clear()

    hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        stated = examine(str(folders / family), length=48, progress=begin)["forwards"]
    finally:
        hook.remove()
    assert stated == pytest.approx(sum(read) / 48, abs=0.051)


def test_tokens_that_a_model_cannot_predict_are_not_drawn(tmp_path, monkeypatch):
    (tmp_path / "more.py").write_text(
        "import torch\nfrom decoders import decoder\n\nmodel = decoder('llama')\n"
        "model.model.embed_tokens = torch.nn.Embedding(300, 32)\n"
    )
    monkeypatch.chdir(tmp_path)
    read = load_decoder("more.py:model", 0)
    assert read.ids.max() == 95
    assert examine("more.py:model", length=48, ablate=False)["lookup"]["asked"]


@pytest.mark.parametrize("options", [["--scan-only"], []])
def test_one_blank_line_stands_between_two_parts(options, folders, monkeypatch, capsys):
    _, out, _ = called(monkeypatch, capsys, folders, "llama", "--length", "48", *options)
    assert "\n\n" in out
    assert "\n\n\n" not in out


def test_past_the_context_the_view_says_what_else_may_fail(folders, monkeypatch, capsys):
    _, out, _ = called(monkeypatch, capsys, folders, "llama", "--length", "140", "--beyond", "--scan-only")
    assert "beyond 128 tokens" in " ".join(out.split())
    _, out, _ = called(monkeypatch, capsys, folders, "llama", "--length", "128", "--scan-only")
    assert "beyond" not in out


@pytest.mark.slow
def test_a_gguf_file_brings_its_tokenizer(folders):
    data = examine(smollm2(), length=64, ablate=False, text=folders / "text.txt")
    jsonschema.validate(data, json_schema("heads-1"))
    assert data["text"]["tokens"] > 30


def test_nobody_need_watch(folders, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    status, out, _ = called(monkeypatch, capsys, folders, "llama", "--scan-only", "--length", "48")
    assert (status, out[:5]) == (0, "llama")


BAD = {
    "a state-space model": (["mamba"], "no softmax attention"),
    "an encoder with a decoder": (["t5"], "decoder"),
    "an encoder": (["bert"], "encoder"),
    "a length beyond the table": (["gpt2", "--length", "500"], "128 positions"),
    "a length beyond the table, asked for": (["gpt2", "--length", "140", "--beyond"], "beyond its 128"),
    "a length beyond the context": (["llama", "--length", "140"], "--beyond"),
    "a length beyond context and vocabulary": (["words", "--length", "200"], "128 positions; try 128\n"),
    "a target without a name": ([""], "it is empty"),
    "code without a name in it": (["code.py"], "say code.py:NAME"),
    "a vocabulary too small": (["few"], "decoder with 32 or more"),
    "a length beyond the vocabulary": (["words", "--length", "200", "--beyond"], "try 152"),
    "a context too short": (["tight"], "no room for repeats; name another decoder"),
    "a context too short for a length": (["tight", "--length", "16"], "name another decoder"),
    "a table too short": (["tight_table", "--beyond"], "beyond its 16; name another decoder"),
    "a short length": (["llama", "--length", "7"], "--length 7"),
    "a length of 0": (["llama", "--length", "0"], "--length 0"),
    "a negative seed": (["llama", "--seed", "-1"], "0 or more"),
    "a text without a tokenizer": (["llama", "--text", "text.txt"], "tokenizer"),
    "a text without a repeat": (["words", "--text", "short.txt"], "repeats"),
    "an empty text": (["words", "--text", "empty.txt"], "empty"),
    "a missing text": (["words", "--text", "missing.txt"], "missing.txt"),
    "a missing text, before the model is loaded": (["./missing", "--text", "missing.txt"], "missing.txt"),
    "a text without a name": (["words", "--text", ""], "--text '': it is empty"),
    "a report without a name": (["words", "--json", ""], "--json '': it is empty"),
    "a missing folder": (["./missing"], "missing"),
    "a head beyond the layers": (["llama", "--head", "2.0"], "head 2.0: there are 2 layers of 4 heads"),
    "a head beyond the heads": (["llama", "--head", "0.1", "--head", "1.4"], "head 1.4: there are 2 layers"),
    "a head in a layer that does not attend": (["jamba", "--length", "48", "--head", "1.0"], "layers 2 have"),
    "a head without a layer": (["llama", "--head", "3"], "--head '3': it names no head"),
    "a head that is no number": (["llama", "--head", "1.x"], "it names no head"),
    "a head of a state-space model": (["mamba", "--head", "0.0"], "no softmax attention"),
    "code that is no model of transformers": (["code.py:linear"], "transformers"),
    "code that gives a trunk": (["code.py:trunk"], "no language head"),
    "code that gives an encoder": (["code.py:encoder"], "no language head"),
    "code that gives an encoder with a head": (["code.py:masked"], "is an encoder"),
    "code that gives an encoder with a decoder": (["code.py:both"], "reads two inputs"),
    "code that raises what it likes": (["code.py:Failing"], "of its own"),
    "a layer of NaN": (["nan_layers"], "layer 1: its attention is not a number"),
    "logits of NaN": (["nan_logits", "--scan-only"], "not a number"),
    "a report over the text": (["words", "--text", "text.txt", "--json", "./text.txt"], "the text that is"),
    "a report over a checkpoint's file": (["llama", "--json", "llama/config.json"], "file of the target"),
    "a report over code": (["code.py:linear", "--json", "code.py"], "file of the target"),
    "a report in a missing folder": (["llama", "--json", "missing/x.json"], "--json"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_scanned_says_so_in_one_line(case, folders, monkeypatch, capsys):
    arguments, hint = BAD[case]
    status, out, complaint = called(monkeypatch, capsys, folders, *arguments)
    assert (status, out) == (2, "")
    assert complaint.startswith("whyformer: ")
    assert complaint.count("\n") == 1
    assert hint in complaint


def test_a_computed_position_may_pass_the_context_on_request(folders):
    data = examine(str(folders / "llama"), length=140, ablate=False, beyond=True)
    assert data["length"] == 140
