"""Find, check and load a checkpoint; nothing of it is ever run, and nothing of it is left to chance.

A folder or a hub id holds safetensors; a ``.gguf`` file is converted once. What would load by unpickling, by
code of its own, or with weights drawn at random where some are missing, is refused in one line.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import math
import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whyformer.errors import MissingExtraError, UsageError

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack")
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_LAYOUT = 2
"""What a converted folder holds: another number leaves the folders of earlier versions unread."""
_CAUSAL_NAMES = ("ForCausalLM", "LMHeadModel")
_BENIGN = ("pooler.",)
"""Weights that are read after the last hidden state only; many encoders are stored without them."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model, and what its files say.

    Attributes:
        model: in eval mode, its weights in float32, or in float64 where they are stored so.
        stored: the dtype of the stored weights.
        architecture: the class that it was loaded as.
        decoder: whether it was loaded as a causal language model.
        converted: whether the weights come from a GGUF file, which holds them quantised.
        folder: where its files lie; None for a model that was in memory.
    """

    model: Any
    stored: torch.dtype
    architecture: str
    decoder: bool
    converted: bool = False
    folder: Path | None = None


def cache_home() -> Path:
    """Where converted weights are kept: ``WHYFORMER_CACHE``, or the platform's cache folder."""
    told = os.environ.get("WHYFORMER_CACHE")
    if told:
        return Path(told)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "whyformer"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "whyformer"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whyformer"


def open_checkpoint(target: str) -> Checkpoint:
    """Load what a TARGET names.

    Args:
        target: a folder, a ``.gguf`` file, or a hub id that is in the hub's cache. Nothing is fetched
            unless the environment says ``HF_HUB_OFFLINE=0``.

    Raises:
        UsageError: it is not there, not whole, not safe, or no model that reads and predicts tokens.
        MissingExtraError: transformers is not installed.
    """
    path = Path(target).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        folder = _converted(target, path)
    elif path.is_file():
        mend = f"name its folder, {path.parent}" if path.suffix == ".safetensors" else "name a folder"
        raise UsageError(target, "it is a file, and neither code nor GGUF", mend)
    else:
        folder = path if path.is_dir() else _from_hub(target)
    config = _config(target, folder)
    stored = _stored(target, folder)
    return _load(target, folder, config, stored, path.suffix == ".gguf")


def transformers() -> Any:
    """The library, imported when it is first needed.

    Raises:
        MissingExtraError: it is not installed.
    """
    return _extra("transformers")


def _extra(library: str) -> Any:
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        raise MissingExtraError(library, "hf") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's log, warnings and progress bars off the terminal inside the block."""
    speech = transformers().utils.logging
    level, bars = speech.get_verbosity(), speech.is_progress_bar_enabled()
    speech.set_verbosity(logging.CRITICAL)
    speech.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        speech.set_verbosity(level)
        if bars:
            speech.enable_progress_bar()


def _from_hub(target: str) -> Path:
    parts = target.split("/")
    if target.endswith(".gguf") or not all(parts) or len(parts) > 2 or target[0] in ".~":
        raise UsageError(target, "there is no such folder or file", "check the path")
    transformers()
    hub = import_module("huggingface_hub")
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() not in {"0", "FALSE", "NO", "OFF"}
    wanted = ["*.json", "*.safetensors"]
    try:
        with quiet():
            return Path(hub.snapshot_download(target, allow_patterns=wanted, local_files_only=offline))
    except Exception as error:
        if offline:
            why = "it is neither a folder here nor a model in the hub's cache"
            mend = f"check the name, or fetch it: hf download {target}"
            raise UsageError(target, why, mend) from error
        raise UsageError(target, _said(error), "check the name and the network") from error


def _config(target: str, folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        if (folder / "adapter_config.json").is_file():
            raise UsageError(target, "it holds an adapter, and no model", "merge it into its model first")
        raise UsageError(target, "there is no config.json in it", "name the folder of a checkpoint")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(target, "its config.json is no JSON", "store the checkpoint anew") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise UsageError(target, "its config.json names no model_type", "store the checkpoint anew")
    if "auto_map" in config:
        raise UsageError(
            target,
            "it asks for code of its own (auto_map), which is never run",
            "name your own code as file.py:NAME",
        )
    if "quantization_config" in config:
        raise UsageError(
            target, "its weights are quantised", "examine the ones before quantisation, or a GGUF file"
        )
    return config


def _stored(target: str, folder: Path) -> torch.dtype:
    """The dtype that most stored numbers have; every shard is opened, and must be whole."""
    safetensors = _extra("safetensors")
    count: Counter[str] = Counter()
    for name in _shards(target, folder):
        if not (folder / name).is_file():
            raise UsageError(target, f"its shard {name} is missing", "copy or fetch it again")
        try:
            with safetensors.safe_open(str(folder / name), framework="pt") as shard:
                for key in shard.keys():  # noqa: SIM118
                    piece = shard.get_slice(key)
                    count[piece.get_dtype()] += math.prod(piece.get_shape())
        except Exception as error:
            raise UsageError(
                target, f"{name} is damaged: {_said(error)}", "copy or fetch it again"
            ) from error
    floats = {name: size for name, size in count.items() if name in _DTYPES}
    if not floats:
        raise UsageError(target, f"its weights are {', '.join(count) or 'none'}", "store them as floats")
    return _DTYPES[max(floats, key=lambda name: floats[name])]


def _shards(target: str, folder: Path) -> list[str]:
    """The names of the files that the weights ought to lie in."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        return [single.name]
    if index.is_file():
        try:
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise UsageError(target, f"its {index.name} is unreadable", "store it anew") from error
    pickled = sorted(f.name for f in folder.iterdir() if f.suffix in _PICKLES)
    if pickled:
        raise UsageError(
            target,
            f"its weights are pickled ({pickled[0]}), and loading those can run code",
            "store them as safetensors",
        )
    raise UsageError(target, "there is no model.safetensors in it", "name the folder of a checkpoint")


def _load(target: str, folder: Path, raw: dict[str, Any], stored: torch.dtype, converted: bool) -> Checkpoint:
    library = transformers()
    common: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    dtype = torch.float64 if stored is torch.float64 else torch.float32
    with quiet():
        try:
            config = library.AutoConfig.from_pretrained(folder, **common)
        except Exception as error:
            kind = raw["model_type"]
            known = import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES
            why = _said(error) if kind in known else f"transformers does not know the architecture {kind!r}"
            mend = "store the checkpoint anew" if kind in known else "name your own code as file.py:NAME"
            raise UsageError(target, why, mend) from error
        check_one_input(target, config)
        decoder = _is_decoder(config, raw)
        loader = library.AutoModelForCausalLM if decoder else library.AutoModel
        try:
            model, info = loader.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **common,
            )
        except ImportError as error:
            raise UsageError(target, _said(error), "install what it names") from error
        except Exception as error:
            raise UsageError(target, _said(error), "its config and its weights must match") from error
    if info["mismatched_keys"]:
        key, stored_shape, shape = min(info["mismatched_keys"])
        why = f"its weights do not fit its config ({key} is {tuple(stored_shape)}, not {tuple(shape)})"
        raise UsageError(target, why, "store the checkpoint anew")
    _whole(target, info)
    return Checkpoint(model.eval(), stored, type(model).__name__, decoder, converted, folder)


def in_memory(model: nn.Module) -> Checkpoint:
    """A model of transformers that is already loaded, as what :func:`open_checkpoint` would give.

    Args:
        model: it is put into eval mode; one of low precision is copied to float32, which is exact.

    Raises:
        UsageError: it is an encoder with a decoder.
    """
    name, config = type(model).__name__, getattr(model, "config", None)
    check_one_input(name, config)
    stored = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    held = copy.deepcopy(model).float() if stored.itemsize < 4 else model
    return Checkpoint(held.eval(), stored, name, name.endswith(_CAUSAL_NAMES))


def check_one_input(name: str, config: Any) -> None:
    """Refuse an encoder with a decoder.

    Raises:
        UsageError: it is one.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            name, "it is an encoder with a decoder, which reads two inputs", "examine either half"
        )


def _whole(target: str, info: dict[str, Any]) -> None:
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(_BENIGN))
    if missing:
        why = f"{len(missing)} of its weights are missing ({missing[0]}), and would be drawn at random"
        raise UsageError(target, why, "store the checkpoint whole")


def _said(error: BaseException) -> str:
    """What an exception says, its kind and all its lines in one."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:240]


def _is_decoder(config: Any, raw: dict[str, Any]) -> bool:
    """Whether it is to be loaded with its language head: by its stored class, else by its config.

    A decoder that reads images too is stored as one class with its head (Gemma 3), which the library's own
    table of causal models names.
    """
    causal = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in causal:
        return False
    stored = (raw.get("architectures") or [""])[0]
    if not stored:
        return getattr(config, "is_decoder", True)
    return stored.endswith(_CAUSAL_NAMES) or stored == causal[type(config)].__name__


def _converted(target: str, path: Path) -> Path:
    """The folder with a GGUF file's weights as safetensors and its tokenizer; made once per content."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise UsageError(target, "it does not begin as a GGUF file does", "copy or fetch it again")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    library = transformers()
    for needed in ("gguf", "accelerate"):
        _extra(needed)
    home = cache_home() / "gguf"
    folder = home / f"{digest}-{library.__version__}-{_LAYOUT}"
    if (folder / "config.json").is_file():
        return folder
    beside = home / f"{folder.name}.{os.getpid()}"
    try:
        with quiet(), redirect_stderr(io.StringIO()):  # for a progress bar that none can switch off
            model, info = library.AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=torch.float32,
                local_files_only=True,
                output_loading_info=True,
            )
            _whole(target, info)
            model.hf_quantizer = None  # its weights are floats by now, and may be stored
            del model.config.quantization_config
            for name in ("is_quantized", "quantization_method"):
                model.__dict__.pop(name, None)
            home.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(beside)
            with suppress(Exception):  # a model can be examined without its tokenizer
                tokenizer = library.AutoTokenizer.from_pretrained(
                    path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False
                )
                tokenizer.save_pretrained(beside)
        if not folder.exists():
            beside.rename(folder)
    except UsageError:
        raise
    except OSError as error:
        mend = f"fetch the file again, or see that {home} can be written"
        raise UsageError(target, _said(error), mend) from error
    except Exception as error:
        raise UsageError(target, f"it is no whole GGUF ({_said(error)})", "fetch the file again") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder
