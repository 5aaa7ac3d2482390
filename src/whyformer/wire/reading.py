"""What lies in a wired folder: JSON that says one thing to all readers, and weights beside no others."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whyformer.errors import MissingExtraError, UsageError
from whyformer.wire.family import Tensors, UnfitError

WEIGHTS, CONFIG, CERTIFICATE = "model.safetensors", "config.json", "certificate.json"
SCHEMA = "whyformer/certificate/1"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, in which no key stands twice and every number is finite: all readers agree on it.

    Raises:
        UsageError: there is none that can be read.
    """
    try:
        found = json.loads(path.read_text("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError:
        raise UsageError(str(path), "it is nested too deeply", "name a folder that was wired") from None
    except (OSError, ValueError) as error:
        raise UsageError(str(path), f"it cannot be read: {error}", "name a folder that was wired") from error
    if not isinstance(found, dict):
        raise UsageError(str(path), "it is no JSON object", "name a folder that was wired")
    return found


def read_certificate(folder: Path) -> dict[str, Any]:
    """What certificate.json says, of this version.

    Raises:
        UsageError: there is none that can be read, or it is of another version.
    """
    if not folder.is_dir():
        raise UsageError(str(folder), "it is no folder", "name a folder that 'whyformer wire' wrote")
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UsageError(str(folder), f"it holds no {CERTIFICATE}", "name a folder that was wired")
    told = read_json(path)
    if told.get("schema") != SCHEMA:
        why = f"its schema is {told.get('schema')!r}, and {SCHEMA} is read"
        raise UsageError(str(path), why, "wire the folder again")
    return told


def read_weights(folder: Path) -> Tensors:
    """All tensors of a folder's safetensors file, beside which there must be no others.

    Raises:
        UsageError: it is missing or damaged.
        UnfitError: there are weights beside it.
        MissingExtraError: safetensors is not installed.
    """
    check_library()
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    for path in sorted(folder.iterdir()):
        other = path.name.endswith((".safetensors", ".safetensors.index.json")) and path.name != WEIGHTS
        if other or path.name == "adapter_config.json":
            why = "which an engine may load in its place or on top of it"
            raise UnfitError(f"{path.name}: there are weights beside {WEIGHTS}, {why}")
    path = folder / WEIGHTS
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(str(path), f"it cannot be read: {error}", "wire the folder again") from error


def check_library() -> None:
    """Refuse to start without what reads and writes weights.

    Raises:
        MissingExtraError: safetensors is not installed.
    """
    if find_spec("safetensors") is None:
        raise MissingExtraError("safetensors", "wire")


def same(said: Any, meant: Any) -> bool:
    """Whether two values of JSON are the same to every reader: true is not 1, and 2.0 is not 2.

    A whole number may stand where a fraction is meant.
    """
    if isinstance(meant, dict):
        return (
            isinstance(said, dict)
            and said.keys() == meant.keys()
            and all(map(same, said.values(), (meant[key] for key in said)))
        )
    if isinstance(meant, list):
        return isinstance(said, list) and len(said) == len(meant) and all(map(same, said, meant))
    return said == meant and (type(said) is type(meant) or (type(said) is int and type(meant) is float))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands in it twice")
        found[key] = value
    return found


def _no_number(said: str) -> None:
    raise ValueError(f"{said} is no number of JSON")
