"""Certificates: what they state, and that a checkpoint which was changed has none any more."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
import torch

pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file

from whyformer.cli import main
from whyformer.errors import UsageError
from whyformer.report.schema import json_schema
from whyformer.wire import certify, wire
from whyformer.wire.family import UnfitError

ARCHITECTURES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gpt_neox")
CIRCUITS = {"copy": {"circuit": "copy", "prefix": 31}, "separator": {"circuit": "copy"}}
KEYS = [
    "schema", "architecture", "vocabulary", "context", "dtype", "rule", "first_token", "tokens",
    "without_twin", "logit_margin", "layers", "not_covered",
]  # fmt: skip


@pytest.fixture(scope="module")
def wired(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("wired") / "model"
            architecture, _, circuit = name.partition(" ")
            options = CIRCUITS.get(circuit, {"circuit": circuit or "induction"})
            wire(architecture, vocabulary=60, context=64, out=made[name], **options)
        return made[name]

    return get


@pytest.fixture
def copy(wired, tmp_path):
    def get(name):
        return Path(shutil.copytree(wired(name), tmp_path / name))

    return get


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_certificate_has_the_contracts_keys_and_holds(name, wired):
    told = json.loads((wired(name) / "certificate.json").read_text())
    assert list(told) == KEYS
    assert told == certify(wired(name))
    assert told["schema"] == "whyformer/certificate/1"
    assert (told["architecture"], told["vocabulary"], told["context"]) == (name, 60, 64)
    assert (told["first_token"], told["tokens"], told["without_twin"]) == (0, [2, 59], 0)
    assert told["logit_margin"] > 1
    assert [layer["layer"] for layer in told["layers"]] == [0, 1]
    jsonschema.validate(told, json_schema("certificate-1"))


@pytest.mark.parametrize("name", ["llama copy", "gpt2 copy", "gpt_neox copy"])
def test_a_copy_has_a_certificate_of_its_own(name, wired):
    told = json.loads((wired(name) / "certificate.json").read_text())
    assert list(told) == KEYS
    assert told == certify(wired(name))
    assert (told["rule"], told["without_twin"]) == ("copy", 0)
    assert [layer["offset"] for layer in told["layers"]] == [31]
    jsonschema.validate(told, json_schema("certificate-1"))


def test_a_copy_after_a_separator_names_it(wired):
    told = json.loads((wired("gpt2 separator") / "certificate.json").read_text())
    assert [key for key in told if key != "separator"] == KEYS
    assert told == certify(wired("gpt2 separator"))
    assert (told["rule"], told["separator"], told["without_twin"]) == ("copy-separator", 2, None)
    assert told["tokens"] == [2, 59]
    assert [layer["layer"] for layer in told["layers"]] == [0, 1, 2]
    assert min(layer["margin"] for layer in told["layers"]) > 104


@pytest.mark.parametrize("name", ["llama two-hop", "gpt2 two-hop", "gpt_neox two-hop"])
def test_two_hops_have_a_certificate_of_their_own(name, wired):
    told = json.loads((wired(name) / "certificate.json").read_text())
    assert list(told) == KEYS
    assert told == certify(wired(name))
    assert (told["rule"], told["without_twin"]) == ("two-hop", 0)
    assert [layer["layer"] for layer in told["layers"]] == [0, 1, 2]
    assert min(layer["recency_step"] for layer in told["layers"][1:]) > 10
    jsonschema.validate(told, json_schema("certificate-1"))


@pytest.mark.parametrize(
    "name",
    [*ARCHITECTURES, "llama two-hop", "gpt2 two-hop", "llama copy", "gpt2 copy", "gpt2 separator"],
)
def test_one_weight_changed_in_any_tensor_is_found(name, copy):
    """Every tensor in turn: one weight a little larger, one 0 that is no more; the message names a place."""
    folder = copy(name)
    path = folder / "model.safetensors"
    stored = load_file(path)
    generator = torch.Generator().manual_seed(3)
    for tensor in stored:
        flat = stored[tensor].flatten()
        at = int(torch.randint(len(flat), (), generator=generator))
        loud = int(flat.abs().argmax())
        for where, value in ((at, flat[at] + 0.25), (loud, flat[loud] * 1.0625 + 0.001)):
            changed = flat.clone()
            changed[where] = value
            save_file(stored | {tensor: changed.view_as(stored[tensor]).contiguous()}, path)
            with pytest.raises(UnfitError) as told:
                certify(folder)
            assert len(str(told.value)) > 20
    save_file(stored, path)
    certify(folder)


def test_a_checkpoint_in_float16_has_no_certificate(copy):
    folder = copy("llama")
    path = folder / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
    with pytest.raises(UnfitError, match="stored as float16"):
        certify(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    with pytest.raises(UnfitError, match="dtype"):
        certify(folder)


CONFIGS = {
    "another base": {"rope_theta": 2e4, "rope_parameters": {"rope_type": "default", "rope_theta": 2e4}},
    "a scaling": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    "an older scaling": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "a longer context": {"max_position_embeddings": 20000},
    "another eps": {"rms_norm_eps": 1e-5},
    "another width of heads": {"head_dim": 128},
    "an unknown setting": {"attention_chunk_size": 8},
    "another architecture": {"model_type": "olmo"},
    "a bias": {"attention_bias": True},
}


@pytest.mark.parametrize("change", CONFIGS)
def test_another_setting_has_no_certificate(change, copy):
    folder = copy("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | CONFIGS[change]))
    with pytest.raises(UnfitError):
        certify(folder)


def test_a_certificate_that_promises_more_does_not_hold(copy):
    folder = copy("gpt2")
    told = json.loads((folder / "certificate.json").read_text())
    for key, value in (("logit_margin", told["logit_margin"] + 1), ("tokens", [0, 59]), ("rule", "agree")):
        (folder / "certificate.json").write_text(json.dumps(told | {key: value}))
        with pytest.raises(UnfitError, match=key):
            certify(folder)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_saved_again_by_transformers_keeps_its_certificate(name, copy):
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    folder = copy(name)
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)
    certify(folder)


def test_what_cannot_be_certified_is_refused_with_the_largest_that_can(tmp_path):
    asked = {"vocabulary": 60, "rule": "recent"}
    with pytest.raises(UsageError, match="the largest that can") as told:
        wire("gpt2", context=5000, out=tmp_path / "no", **asked)
    largest = int(str(told.value).split("--context ")[1].split(",")[0])
    assert not (tmp_path / "no").exists()
    assert wire("gpt2", context=largest, out=tmp_path / "yes", **asked)["rule"] == "recent"
    with pytest.raises(UsageError, match=f"--context {largest}, "):
        wire("gpt2", context=largest + 1, out=tmp_path / "no", **asked)
    with pytest.raises(UsageError, match="--rule agree, or --dtype float32"):
        wire("llama", context=400, out=tmp_path / "no", dtype="bfloat16", **asked)


@pytest.mark.parametrize("edge", [3, 4, 5, 6, 9, 100])
def test_the_largest_context_is_found_wherever_it_is(edge, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "whyformer.wire.forge.attempt", lambda asked, *_: True if asked.context <= edge else None
    )
    for context in range(edge + 1, 120, 7):
        with pytest.raises(UsageError) as told:
            wire("gpt2", vocabulary=8, context=max(4, context), out=tmp_path / "no", rule="agree")
        named = f"try --context {edge}, the largest that can"
        assert (named in str(told.value)) == (edge >= 4)


def test_a_stock_base_is_kept_and_states_its_reach(tmp_path):
    told = wire("llama", vocabulary=500, context=1024, out=tmp_path / "m", theta=10000.0, rule="agree")
    assert told["layers"][0]["rotary_base"] == 10000
    with pytest.raises(UsageError, match="rotary base 10000"):
        wire("llama", vocabulary=500, context=60000, out=tmp_path / "n", theta=10000.0, rule="agree")


BAD = {
    "an unknown architecture": (["bert"], "gpt2, llama"),
    "a vocabulary of 2": (["llama", "--vocab", "2"], "--vocab"),
    "a context of 0": (["llama", "--context", "0"], "--context"),
    "a folder in a missing one": (["llama", "--out", "missing/m"], "missing"),
    "a folder that exists": (["llama", "--out", "old"], "--force"),
    "a folder that was not wired": (["llama", "--out", "old", "--force"], "not a wired folder"),
    "an unknown rule": (["llama", "--rule", "latest"], "recent or agree"),
    "an unknown dtype": (["llama", "--dtype", "float16"], "bfloat16"),
    "a base for GPT-2": (["gpt2", "--theta", "5e5"], "learned positions"),
    "a window for Llama": (["llama", "--window", "8"], "mistral"),
    "an untied Gemma": (["gemma", "--untied"], "--tied"),
    "an unknown circuit": (["llama", "--circuit", "three-hop"], "induction, two-hop, copy"),
    "a prefix without a copy": (["llama", "--prefix", "3"], "--circuit copy"),
    "a prefix too long": (["llama", "--circuit", "copy", "--prefix", "40"], "--prefix 31"),
    "a separator for Llama": (["llama", "--circuit", "copy"], "--prefix N, 1 to 31, or wire gpt2"),
    "a separator for GPT-NeoX": (["neox", "--circuit", "copy"], "--prefix N, 1 to 31, or wire gpt2"),
    "a rule for a copy": (["llama", "--circuit", "copy", "--rule", "recent"], "leave it out"),
    "two hops for Qwen3": (["qwen3", "--circuit", "two-hop"], "another architecture"),
}


def run(arguments, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["whyformer", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr()


@pytest.mark.parametrize("case", BAD)
def test_an_unusable_call_says_so_in_one_line(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept").write_text("kept")
    arguments, hint = BAD[case]
    given = {"--vocab": "60", "--context": "64", "--out": "new"}
    rest = [part for pair in given.items() if pair[0] not in arguments for part in pair]
    status, told = run(["wire", *arguments, *rest], capsys, monkeypatch)
    assert (status, told.out, told.err.count("\n")) == (2, "", 1)
    assert hint in told.err
    assert (tmp_path / "old" / "kept").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_the_commands_wire_replace_certify_and_tell_what_broke(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "model"
    arguments = ["wire", "llama", "--vocab", "60", "--context", "64", "--out", str(folder)]
    assert run(arguments, capsys, monkeypatch)[0] == 0
    assert run([*arguments, "--force"], capsys, monkeypatch)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    status, told = run(["certify", str(folder)], capsys, monkeypatch)
    assert status == 0
    assert "certificate holds" in told.out
    stored = load_file(folder / "model.safetensors")
    stored["model.layers.0.mlp.up_proj.weight"][3, 4] = 0.5
    save_file(stored, folder / "model.safetensors")
    status, told = run(["certify", str(folder)], capsys, monkeypatch)
    assert status == 1
    assert "model.layers.0.mlp.up_proj.weight[3, 4]" in told.out
    told = json.loads((folder / "certificate.json").read_text())
    (folder / "certificate.json").write_text(json.dumps(told | {"schema": "whyformer/certificate/0"}))
    status, told = run(["certify", str(folder)], capsys, monkeypatch)
    assert status == 2
    assert "schema" in told.err
    for missing in (tmp_path, tmp_path / "nowhere"):
        assert run(["certify", str(missing)], capsys, monkeypatch)[0] == 2
