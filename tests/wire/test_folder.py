"""A wired folder: what certify reads of it, and what is never removed when one is written."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file

from whyformer.errors import UsageError
from whyformer.wire import Wired, certify, wire
from whyformer.wire.drill import drill
from whyformer.wire.family import UnfitError
from whyformer.wire.replacing import FILES, beside

ARCHITECTURES = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gpt_neox")
SIZES = {"vocabulary": 8, "context": 12}


@pytest.fixture(scope="module")
def wired(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("wired") / "model"
            wire(name, out=made[name], **SIZES)
        return made[name]

    return get


@pytest.fixture
def copy(wired, tmp_path):
    def get(name="llama"):
        return Path(shutil.copytree(wired(name), tmp_path / name))

    return get


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


UNKNOWN = {
    "attention to the future": {"is_causal": False},
    "no layers, by another name": {"num_hidden_layers": 0},
    "an empty setting": {"quantization_config": {}},
    "0 for a setting": {"attention_chunk_size": 0},
    "an encoder": {"is_encoder_decoder": True},
    "tuples": {"return_dict": False},
    "layer types that are none": {"layer_types": 3},
    "too many layer types": {"layer_types": ["full_attention"] * 4},
    "a window by layer": {"layer_types": ["sliding_attention"] * 2},
    "a size that is a fraction": {"vocab_size": 8.0},
    "true for 1": {"pad_token_id": True},
    "false for 0": {"bos_token_id": False},
    "another dtype, as older versions say it": {"torch_dtype": "float16"},
    "no context": {"max_position_embeddings": 1, "n_positions": 1},
    "a width that no machine holds": {"hidden_size": 10**30, "n_embd": 2**62},
    "an odd width of heads": {"head_dim": 63, "hidden_size": 6, "n_embd": 7},
    "a context that no machine holds": {"max_position_embeddings": 2**60, "n_positions": 2**60},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("change", UNKNOWN)
def test_a_setting_that_is_not_known_to_change_nothing_has_no_certificate(change, name, copy):
    folder = copy(name)
    edit(folder / "config.json", **UNKNOWN[change])
    with pytest.raises(UnfitError, match=r"config\.json"):
        certify(folder)


def test_a_window_that_sees_one_position_has_no_certificate(copy):
    folder = copy("mistral")
    edit(folder / "config.json", sliding_window=1)
    with pytest.raises(UnfitError, match="4 to"):
        certify(folder)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "gpt_neox"])
def test_a_tensor_of_another_shape_has_no_certificate(name, copy):
    """Every tensor in turn, shorter, longer, flat and empty; the message names it."""
    folder = copy(name)
    stored = load_file(folder / "model.safetensors")
    for tensor, held in stored.items():
        for other in (held[:-1], torch.cat([held, held]), held.flatten()[0], held[:0], held[None]):
            save_file(stored | {tensor: other.clone().contiguous()}, folder / "model.safetensors")
            with pytest.raises(UnfitError, match=tensor):
                certify(folder)


@pytest.mark.parametrize(
    "beside", ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "adapter_config.json"]
)
def test_weights_beside_the_weights_have_no_certificate(beside, copy):
    folder = copy()
    (folder / beside).write_text("{}")
    with pytest.raises(UnfitError, match=beside):
        certify(folder)


AMBIGUOUS = {
    "a key twice": '{"schema": "whyformer/certificate/1", "logit_margin": 99, "logit_margin": 1}',
    "NaN": '{"schema": "whyformer/certificate/1", "logit_margin": NaN}',
    "infinity": '{"schema": "whyformer/certificate/1", "logit_margin": -Infinity}',
    "a pit": "[" * 100_000,
    "nothing": "",
    "a list": "[]",
}


@pytest.mark.parametrize("name", ["certificate.json", "config.json"])
@pytest.mark.parametrize("case", AMBIGUOUS)
def test_json_that_readers_may_read_differently_is_not_read(case, name, copy):
    folder = copy()
    (folder / name).write_text(AMBIGUOUS[case])
    with pytest.raises(UsageError, match=name):
        certify(folder)


OTHERWISE = {
    "a fraction for a size": ("context", 12.0),
    "false for the first token": ("first_token", False),
    "a margin beyond numbers": ("logit_margin", 10**400),
    "a margin in words": ("logit_margin", "13"),
    "true for a margin": ("logit_margin", True),
    "a promise more": ("also", None),
    "a rule in a list": ("rule", ["recent"]),
}


@pytest.mark.parametrize("case", OTHERWISE)
def test_a_certificate_of_other_types_does_not_hold(case, copy):
    folder = copy()
    key, value = OTHERWISE[case]
    edit(folder / "certificate.json", **{key: value})
    with pytest.raises(UnfitError, match=key):
        certify(folder)


def test_a_certificate_that_leaves_a_key_out_does_not_hold(copy):
    folder = copy()
    told = json.loads((folder / "certificate.json").read_text())
    for key in set(told) - {"schema"}:
        less = {name: value for name, value in told.items() if name != key}
        (folder / "certificate.json").write_text(json.dumps(less))
        with pytest.raises(UnfitError, match=key):
            certify(folder)
        if key != "not_covered":
            with pytest.raises(UsageError, match=key):
                Wired.open(folder)


UNPLAYABLE = [
    ("architecture", "bert"), ("vocabulary", 0), ("vocabulary", []), ("context", -5), ("context", 12.0),
    ("context", 10**30), ("dtype", "float16"), ("rule", "latest"), ("rule", None), ("tokens", [2]),
    ("tokens", [7, 2]), ("tokens", ["a", "b"]), ("tokens", {}), ("tokens", [2, 8]), ("first_token", 5),
    ("first_token", "x"), ("without_twin", 3), ("logit_margin", None), ("logit_margin", -1.0), ("layers", []),
    ("layers", {}), ("layers", [3]), ("layers", [{"offset": 2}]),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), UNPLAYABLE)
def test_what_no_certificate_says_is_not_played(key, value, copy):
    folder = copy()
    edit(folder / "certificate.json", **{key: value})
    with pytest.raises(UsageError, match=key):
        drill(folder, lambda prompts, new: [[0] * new for _ in prompts])


NOT_COVERED = {
    "nothing": [],
    "no first token": [3, 4, 3],
    "the first token again": [0, 3, 0, 3],
    "the pad": [0, 3, 1, 3],
    "an id that there is not": [0, 8, 4, 8],
    "one too long": [0, *[3] * 12],
}


@pytest.mark.parametrize("case", NOT_COVERED)
def test_nothing_is_answered_where_nothing_is_promised(case, wired):
    promise, sequence = Wired.open(wired("llama")), NOT_COVERED[case]
    assert promise.answer(sequence) is None
    every = [promise.answer(sequence[: i + 1]) for i in range(len(sequence))]
    assert promise.answers(sequence) == every


def test_ids_are_ids_however_they_are_held(wired):
    promise = Wired.open(wired("llama"))
    ids = torch.tensor([0, 3, 4, 3])
    assert promise.answers(ids) == [0, 0, 0, 4]
    assert (promise.answer(ids), type(promise.answer(ids))) == (4, int)


def tree(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def kept(folder, out, match):
    """Nothing is changed, and the message says so."""
    before = tree(folder)
    with pytest.raises(UsageError, match=match):
        wire("llama", out=out, force=True, **SIZES)
    assert tree(folder) == before


def test_only_what_was_wired_is_replaced(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copy()
    (folder / "notes.txt").write_text("mine")
    kept(tmp_path, folder, "notes.txt in it was not wired")
    (folder / "notes.txt").unlink()
    edit(folder / "certificate.json", schema="x509")
    kept(tmp_path, folder, "not a wired folder")
    (tmp_path / "file").write_text("mine")
    kept(tmp_path, tmp_path / "file", "not a wired folder")
    (tmp_path / "empty").mkdir()
    wire("llama", out="empty", force=True, **SIZES)
    assert {path.name for path in (tmp_path / "empty").iterdir()} < FILES


def test_a_folder_is_replaced_by_whatever_path_names_it(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copy()
    (tmp_path / "link").symlink_to(folder)
    for out in ("llama/", "llama/../llama", "link", str(folder)):
        os.utime(folder, (0, 0))
        wire("llama", out=out, force=True, **SIZES)
        assert folder.stat().st_mtime > 0
        certify(folder)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "llama"]
    monkeypatch.chdir(folder)
    kept(tmp_path, Path(), "you stand in it")
    certify(folder)


def test_where_nothing_can_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("whyformer.wire.forge.attempt", lambda *_: pytest.fail("it began"))
    for out in (tmp_path / ("a" * 300), tmp_path / "missing" / "model", Path("/proc/model")):
        with pytest.raises(UsageError, match="--out"):
            wire("llama", out=out, **SIZES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_what_is_broken_off_leaves_what_stood_there(error, copy, tmp_path, monkeypatch):
    folder = copy()
    writing = beside(folder)
    (writing.__enter__() / "half").write_text("written")
    assert not writing.__exit__(error, error(), None)
    certify(folder)
    rename = Path.rename

    def refused(self, target):
        if self.suffix != ".old" and target == folder:
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(error), beside(folder):
        pass
    certify(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["llama"]
