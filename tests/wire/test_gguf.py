"""The GGUF file of a wired model, read by another reader, by transformers and by llama.cpp."""

import ctypes
import importlib.util
import json
import shutil

import pytest
import torch

from whyformer.errors import MissingExtraError, UsageError
from whyformer.subjects.checkpoints import quiet
from whyformer.wire import certify, wire
from whyformer.wire.circuit import Geometry
from whyformer.wire.drill import drill
from whyformer.wire.engines import greedy
from whyformer.wire.families import FAMILIES
from whyformer.wire.llamacpp import write

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

CASES = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tied": True}),
    "llama bfloat16": ("llama", {"dtype": "bfloat16"}),
    "mistral": ("mistral", {"window": 40}),
    "qwen2": ("qwen2", {}),
    "qwen2 of another width": ("qwen2", {"vocabulary": 3000}),
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", {}),
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", {"tied": False}),
    "neox": ("gpt_neox", {}),
    "neox tied": ("gpt_neox", {"tied": True}),
    "llama two-hop": ("llama", {"circuit": "two-hop"}),
    "neox two-hop": ("gpt_neox", {"circuit": "two-hop"}),
    "gpt2 copy": ("gpt2", {"circuit": "copy", "prefix": 31}),
    "gpt2 separator": ("gpt2", {"circuit": "copy"}),
    "qwen2 copy": ("qwen2", {"circuit": "copy", "prefix": 31}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def get(case, rule=None):
        if (case, rule) not in made:
            name, options = CASES[case]
            made[case, rule] = out = tmp_path_factory.mktemp("wired") / "model"
            wire(name, **{"vocabulary": 64, "context": 64, "out": out, "rule": rule, "gguf": True, **options})
        return made[case, rule]

    return get


def turn(x, theta, interleaved):
    """Rotary positions on (batch, time, heads, rows): of neighbours, or of rows half the width apart."""
    pairs = x.shape[-1] // 2
    frequency = 1 / theta ** (torch.arange(pairs) / pairs)
    angles = torch.arange(x.shape[1])[:, None, None] * frequency
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.split(pairs, -1)
    cos, sin = angles.cos(), angles.sin()
    turned = a * cos - b * sin, a * sin + b * cos
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


class Reader:
    """A model in a few lines, written from llama.cpp's layout: tensors by name, nothing of transformers."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.facts = {key: field.contents() for key, field in reader.fields.items()}
        self.kind = self.facts["general.architecture"]
        self.t = {
            tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
            for tensor in reader.tensors
        }

    def fact(self, key, default=None):
        return self.facts.get(f"{self.kind}.{key}", default)

    def norm(self, x, name):
        weight, bias = self.t[f"{name}.weight"], self.t.get(f"{name}.bias")
        if bias is None:
            eps = self.fact("attention.layer_norm_rms_epsilon")
            return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)
        return torch.nn.functional.layer_norm(
            x, weight.shape, weight, bias, self.fact("attention.layer_norm_epsilon")
        )

    def linear(self, x, name):
        return torch.nn.functional.linear(x, self.t[f"{name}.weight"], self.t.get(f"{name}.bias"))

    def attention(self, x, at):
        rows = self.fact("attention.key_length")
        if f"{at}.attn_qkv.weight" in self.t:
            parts = self.linear(x, f"{at}.attn_qkv").chunk(3, -1)
        else:
            parts = [self.linear(x, f"{at}.attn_{name}") for name in "qkv"]
        q, k, v = (part.unflatten(-1, (-1, rows)) for part in parts)
        if f"{at}.attn_q_norm.weight" in self.t:
            q, k = self.norm(q, f"{at}.attn_q_norm"), self.norm(k, f"{at}.attn_k_norm")
        theta, turned = self.fact("rope.freq_base"), self.fact("rope.dimension_count")
        if theta is not None:
            q, k = (
                torch.cat([turn(y[..., :turned], theta, self.kind == "llama"), y[..., turned:]], -1)
                for y in (q, k)
            )
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.linear(out.transpose(1, 2).flatten(2), f"{at}.attn_output")

    def __call__(self, prompts, new):
        ids = torch.tensor([list(prompt) for prompt in prompts])
        for _ in range(new):
            x = self.t["token_embd.weight"][ids]
            x = x * x.shape[-1] ** 0.5 if self.kind == "gemma" else x
            if "position_embd.weight" in self.t:
                x = x + self.t["position_embd.weight"][: ids.shape[1]]
            for i in range(self.fact("block_count")):
                x = x + self.attention(self.norm(x, f"blk.{i}.attn_norm"), f"blk.{i}")
            logits = (
                self.norm(x[:, -1], "output_norm")
                @ self.t.get("output.weight", self.t["token_embd.weight"]).mT
            )
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        return ids[:, -new:].tolist()


@pytest.mark.parametrize("case", CASES)
def test_a_reader_that_knows_only_the_layout_keeps_every_promise(case, folders):
    reader = Reader(folders(case) / "model.gguf")
    assert drill(folders(case), reader, count=40)["failure"] is None
    for name, tensor in reader.t.items():
        assert ".ffn_" not in name or ".ffn_norm" in name or not tensor.any()
    told = json.loads((folders(case) / "certificate.json").read_text())
    assert reader.fact("context_length") == told["context"]
    assert reader.fact("vocab_size") == told["vocabulary"] == len(reader.t["token_embd.weight"])
    certify(folders(case))


def test_rows_left_as_transformers_has_them_are_found(folders):
    reader = Reader(folders("llama") / "model.gguf")
    reader.kind = "qwen2"
    reader.facts = {key.replace("llama.", "qwen2."): value for key, value in reader.facts.items()}
    assert drill(folders("llama"), reader, count=40)["failure"] is not None


@pytest.mark.parametrize("case", ["llama", "llama tied", "llama bfloat16"])
def test_transformers_reads_the_file_and_keeps_every_promise(case, folders):
    """Of the other architectures it reads no head width from such files, or none at all."""
    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folders(case), gguf_file="model.gguf"
        ).eval()
    assert model.config.head_dim == Reader(folders(case) / "model.gguf").fact("attention.key_length")
    assert drill(folders(case), greedy(model), count=40)["failure"] is None


def test_bfloat16_is_stored_as_such_and_vectors_in_float32(folders):
    tensors = {t.name: t for t in gguf.GGUFReader(folders("llama bfloat16") / "model.gguf").tensors}
    kinds = gguf.GGMLQuantizationType
    assert tensors["blk.0.attn_q.weight"].tensor_type == kinds.BF16
    assert tensors["blk.0.attn_norm.weight"].tensor_type == kinds.F32


def test_the_heads_of_a_qwen2_are_as_wide_as_llama_cpp_wants_them(folders, tmp_path):
    reader = Reader(folders("qwen2") / "model.gguf")
    width = reader.fact("embedding_length")
    assert reader.fact("attention.head_count") * reader.fact("attention.key_length") == width
    assert (
        reader.t["blk.0.attn_q.weight"].shape == reader.t["blk.0.attn_output.weight"].shape == (width, width)
    )
    wide = Geometry("qwen2", 64, 64, 64, 128, 2, 1e4, "float32", False)
    with pytest.raises(UsageError, match="128 rows"):
        write(tmp_path / "m.gguf", wide, FAMILIES["qwen2"].traits, {})


def test_without_the_library_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("whyformer.wire.llamacpp.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"whyformer\[wire\]"):
        wire("llama", vocabulary=64, context=64, out=tmp_path / "m", gguf=True)
    assert not list(tmp_path.iterdir())


def quantised(path, kind):
    """The GGUF file at the path, in its place, by llama.cpp's own quantiser."""
    library = importlib.import_module("llama_cpp")
    settings = library.llama_model_quantize_default_params()
    settings.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind}")
    whole = path.rename(path.with_name("whole.gguf"))
    status = library.llama_model_quantize(bytes(whole), bytes(path), ctypes.byref(settings))
    whole.unlink()
    assert status == 0


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.parametrize("kind", ["as written", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("case", CASES)
def test_llama_cpp_keeps_every_promise(case, kind, folders, tmp_path):
    """It answers as transformers does wherever something is promised: both as the certificate says.

    Four bits are too coarse for the steps of ``recent``, but not for the margins of ``agree``.
    """
    if case == "gpt2 separator" and kind in ("F16", "Q4_0"):
        pytest.skip(
            "it reckons with positions: its weights are too large for F16, Q4_0 is too coarse for them"
        )
    twins = CASES[case][1].get("circuit") != "copy"
    wired = folders(case, "agree" if kind == "Q4_0" and twins else None)
    folder = shutil.copytree(wired, tmp_path / "model")
    if kind != "as written":
        quantised(folder / "model.gguf", kind)
        size = (folder / "model.gguf").stat().st_size
        assert size < (wired / "model.gguf").stat().st_size or "bfloat16" in case
    assert drill(folder, "llama.cpp", count=60)["failure"] is None
