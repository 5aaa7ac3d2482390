"""``whyformer heads`` from outside: its data by schema, its views, and what it refuses in one line."""

import json
import sys

import jsonschema
import pytest

from decoders import decoder
from whyformer.cli import main
from whyformer.heads import examine
from whyformer.report.schema import json_schema

pytest.importorskip("transformers")
WORDS = [f"w{at}" for at in range(90)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A small decoder with a tokenizer, and others that cannot be scanned."""
    from tokenizers import Tokenizer, models, pre_tokenizers
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
    small = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1}
    state = AutoConfig.for_model("mamba", **small, state_size=4)
    AutoModelForCausalLM.from_config(state).save_pretrained(home / "mamba")
    two = {"vocab_size": 96, "d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 4}
    AutoModel.from_config(AutoConfig.for_model("t5", **two)).save_pretrained(home / "t5")
    bert = small | {"num_attention_heads": 4, "intermediate_size": 32}
    AutoModel.from_config(AutoConfig.for_model("bert", **bert)).save_pretrained(home / "bert")
    (home / "text.txt").write_text(" ".join([*WORDS[:12], *WORDS[40:44], *WORDS[2:9]]))
    (home / "short.txt").write_text("w1 w2 w3")
    (home / "empty.txt").write_text("")
    (home / "code.py").write_text("import torch\nlinear = torch.nn.Linear(2, 2)\n")
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


BAD = {
    "a state-space model": (["mamba"], "no softmax attention"),
    "an encoder with a decoder": (["t5"], "decoder"),
    "an encoder": (["bert"], "encoder"),
    "a length beyond the table": (["gpt2", "--length", "500"], "128 positions"),
    "a length beyond the table, asked for": (["gpt2", "--length", "140", "--beyond"], "beyond its 128"),
    "a length beyond the context": (["llama", "--length", "140"], "--beyond"),
    "a short length": (["llama", "--length", "7"], "--length 7"),
    "a length of 0": (["llama", "--length", "0"], "--length 0"),
    "a negative seed": (["llama", "--seed", "-1"], "0 or more"),
    "a text without a tokenizer": (["llama", "--text", "text.txt"], "tokenizer"),
    "a text without a repeat": (["words", "--text", "short.txt"], "repeats"),
    "an empty text": (["words", "--text", "empty.txt"], "empty"),
    "a missing text": (["words", "--text", "missing.txt"], "missing.txt"),
    "a missing folder": (["./missing"], "missing"),
    "code that is no model of transformers": (["code.py:linear"], "transformers"),
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
