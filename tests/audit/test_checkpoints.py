"""Checkpoints that load, and every way in which one cannot be used: one line each."""

import json
import os
import sys

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from shrunken import built

from whyformer.auditing import audit, replay
from whyformer.errors import MissingExtraError, UsageError
from whyformer.report.schema import as_dict
from whyformer.subjects import checkpoints
from whyformer.subjects.checkpoints import cache_home, open_checkpoint
from whyformer.subjects.huggingface import load_checkpoint
from whyformer.subjects.targets import load

IDS = torch.arange(9)[None]


@pytest.fixture(scope="module")
def model():
    return built("llama")


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "whole")
    return tmp_path / "whole"


def edited(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def reweighted(folder, change):
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


def refused(target):
    with pytest.raises(UsageError) as caught:
        load_checkpoint(str(target))
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{target}: ")
    assert line.count(";") >= 1
    return line


def test_a_whole_folder_is_loaded_as_it_was_stored(folder, model, capfd):
    subject = load(str(folder))
    assert subject.describe() == {
        "name": "whole",
        "kind": "checkpoint",
        "target": str(folder),
        "architecture": "LlamaForCausalLM",
        "dtype": "float32",
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    with torch.inference_mode():
        assert torch.equal(subject.call(IDS).y, model(IDS).logits)
    assert capfd.readouterr() == ("", "")


def test_a_witness_is_replayed_from_the_report_alone(folder):
    report = as_dict(audit(str(folder), claims=["routing.packing"], length=12))
    found = report["findings"][0]
    assert found["verdict"] == "refuted"
    ((_, deviation),) = replay(json.loads(json.dumps(report)))
    assert deviation == pytest.approx(found["measured"], rel=1e-6)


def test_shards_are_loaded_and_a_missing_or_damaged_one_is_named(folder, model, tmp_path):
    model.save_pretrained(tmp_path / "cut", max_shard_size="20KB")
    shards = sorted((tmp_path / "cut").glob("*.safetensors"))
    assert len(shards) > 2
    with torch.inference_mode():
        assert torch.equal(load_checkpoint(str(tmp_path / "cut")).call(IDS).y, model(IDS).logits)
    shards[1].write_bytes(shards[1].read_bytes()[:-8])
    assert f"{shards[1].name} is damaged" in refused(tmp_path / "cut")
    shards[1].unlink()
    assert f"shard {shards[1].name} is missing" in refused(tmp_path / "cut")
    (tmp_path / "cut" / "model.safetensors.index.json").write_text("{")
    assert "unreadable" in refused(tmp_path / "cut")


@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\xff" * 64])
def test_damaged_weights_are_refused(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    assert "is damaged" in refused(folder)


def test_weights_that_would_be_drawn_at_random_are_refused(folder, capfd):
    gone = "model.layers.1.mlp.up_proj.weight"
    reweighted(folder, lambda weights: {k: v for k, v in weights.items() if k != gone})
    assert f"1 of its weights are missing ({gone})" in refused(folder)
    assert capfd.readouterr() == ("", "")


def test_weights_of_another_shape_are_refused(folder):
    edited(folder, intermediate_size=80)
    assert "its weights do not fit its config (model.layers.0.mlp.down_proj.weight" in refused(folder)


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    assert "there is no model.safetensors" in refused(folder)
    torch.save({}, folder / "pytorch_model.bin")
    assert "pickled (pytorch_model.bin)" in refused(folder)


def test_remote_code_is_refused_and_never_run(folder):
    (folder / "mine.py").write_text("raise SystemExit('it was run')")
    edited(folder, auto_map={"AutoModelForCausalLM": "mine.Mine"})
    assert "asks for code of its own" in refused(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "zzznet"}, "does not know the architecture 'zzznet'"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder with a decoder"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"num_hidden_layers": "two"}, "two"),
        ({"num_hidden_layers": 3}, "are missing (model.layers.2."),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_configs_that_cannot_be_used_are_refused(folder, changes, said):
    edited(folder, **changes)
    assert said in refused(folder)


def test_what_is_no_checkpoint_is_refused(folder, tmp_path):
    assert "no such folder" in refused(tmp_path / "nowhere")
    assert "name its folder" in refused(folder / "model.safetensors")
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused(tmp_path / "empty")
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    assert "an adapter" in refused(tmp_path / "empty")
    (folder / "config.json").write_text("{")
    assert "no JSON" in refused(folder)


def test_a_model_that_reads_no_tokens_is_refused(tmp_path):
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4)
    transformers.ViTModel(config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="ViTModel reads no tokens"):
        load_checkpoint(str(tmp_path))


def test_an_encoder_stored_without_its_pooler_is_loaded(tmp_path):
    encoder = built("bert")
    encoder.save_pretrained(tmp_path)
    reweighted(tmp_path, lambda weights: {k: v for k, v in weights.items() if "pooler" not in k})
    with torch.inference_mode():
        assert torch.equal(load_checkpoint(str(tmp_path)).call(IDS).y, encoder(IDS).last_hidden_state)


def test_bfloat16_is_moved_up_exactly(folder):
    reweighted(folder, lambda weights: {k: v.to(torch.bfloat16) for k, v in weights.items()})
    subject = load_checkpoint(str(folder))
    assert subject.native is torch.bfloat16
    assert subject.describe()["upcast"].startswith("bfloat16 weights moved up to float32")
    stored = load_file(folder / "model.safetensors")["model.norm.weight"]
    assert torch.equal(subject._model.model.norm.weight, stored.float())


def test_a_hub_id_is_taken_from_the_cache_and_never_fetched(folder, tmp_path, monkeypatch):
    import huggingface_hub.constants

    def no_network(*_args, **_rest):
        raise AssertionError("the network was tried")

    monkeypatch.setattr("socket.socket.connect", no_network)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert "nor a model in the hub's cache" in refused("someone/model")
    there = tmp_path / "hub" / "models--someone--model"
    (there / "refs").mkdir(parents=True)
    (there / "refs" / "main").write_text("0" * 40)
    (there / "snapshots").mkdir()
    folder.rename(there / "snapshots" / ("0" * 40))
    assert load_checkpoint("someone/model").describe()["target"] == "someone/model"


def test_without_transformers_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'whyformer\[hf\]'"):
        load_checkpoint(str(folder))


def test_the_cache_folder_is_the_one_named_or_the_platforms(monkeypatch, tmp_path):
    monkeypatch.setenv("WHYFORMER_CACHE", str(tmp_path))
    assert cache_home() == tmp_path
    monkeypatch.delenv("WHYFORMER_CACHE")
    monkeypatch.setattr(checkpoints.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_home() == tmp_path / "xdg" / "whyformer"


@pytest.fixture
def gguf_file(tmp_path, model, monkeypatch):
    """A small Llama as a GGUF file: rotary rows of queries and keys interleaved, as that format has them."""
    monkeypatch.setenv("WHYFORMER_CACHE", str(tmp_path / "kept"))
    config = model.config
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        array = weight.numpy().astype(np.float32)
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:
                halves = array.reshape(heads, 2, -1, array.shape[1])
                array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_converted_once_and_kept(gguf_file, model, tmp_path, capfd):
    subject = load_checkpoint(str(gguf_file))
    assert subject.name == "small"
    assert subject.describe()["converted"] == "from GGUF"
    with torch.inference_mode():
        assert torch.equal(subject.call(IDS).y, model(IDS).logits)
    kept = list((tmp_path / "kept" / "gguf").iterdir())
    assert len(kept) == 1
    os.utime(kept[0] / "model.safetensors", (0, 0))
    open_checkpoint(str(gguf_file))
    assert (kept[0] / "model.safetensors").stat().st_mtime == 0
    assert capfd.readouterr() == ("", "")


def test_a_gguf_file_that_is_none_or_is_cut_short_is_refused(gguf_file, tmp_path):
    content = gguf_file.read_bytes()
    other, cut = "does not begin as a GGUF", "it is no whole GGUF ("
    for bad, why in (
        (b"", other),
        (b"GGML" + content[4:], other),
        (content[: len(content) // 2], cut),
        (content[:40], cut),
    ):
        gguf_file.write_bytes(bad)
        assert why in refused(gguf_file)
    assert not list(tmp_path.glob("kept/gguf/*"))
    assert "no such folder or file" in refused(tmp_path / "nowhere.gguf")
