"""What a certificate must say so that it can be played: right or not, it is of the right kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from whyformer.errors import UsageError
from whyformer.wire.circuit import DTYPES
from whyformer.wire.families import FAMILIES
from whyformer.wire.family import LEAST, MOST
from whyformer.wire.proof import LAYERS
from whyformer.wire.reading import CERTIFICATE, read_certificate


def _size(_told: Mapping[str, Any], value: Any) -> bool:
    return type(value) is int and LEAST <= value <= MOST


def _token(told: Mapping[str, Any], value: Any) -> bool:
    """An id before those that a sequence may use, or null."""
    return value is None or (type(value) is int and 0 <= value < told["tokens"][0])


def _layers(told: Mapping[str, Any], value: Any) -> bool:
    """Layers, the first of which says how far it looks back where that is the rule; a separator likewise."""
    if not isinstance(value, list) or not value or not all(isinstance(layer, dict) for layer in value):
        return False
    offset, separator = value[0].get("offset"), told.get("separator")
    if told["rule"] == "copy-separator":
        low, high = told["tokens"]
        return offset is None and type(separator) is int and low <= separator <= high
    if told["rule"] != "copy":
        return offset is None and separator is None
    return separator is None and type(offset) is int and 0 < offset < told["context"]


_USABLE: dict[str, Callable[[Mapping[str, Any], Any], bool]] = {
    "architecture": lambda _told, value: isinstance(value, str) and value in FAMILIES,
    "vocabulary": _size,
    "context": _size,
    "dtype": lambda _told, value: isinstance(value, str) and value in DTYPES,
    "rule": lambda _told, value: isinstance(value, str) and value in LAYERS,
    "tokens": lambda told, value: (
        isinstance(value, list)
        and [type(token) for token in value] == [int, int]
        and 0 <= value[0] < value[1] < told["vocabulary"]
    ),
    "first_token": _token,
    "without_twin": _token,
    "logit_margin": lambda _told, value: type(value) in (int, float) and 0 < value < 1e30,
    "layers": _layers,
}
"""What each key of a certificate may say, in an order in which each may rest on those before it."""


def playable(folder: Path) -> dict[str, Any]:
    """The certificate of a folder.

    Raises:
        UsageError: there is none, it is of another version, or it says what no certificate says.
    """
    told = read_certificate(folder)
    for key, usable in _USABLE.items():
        if key not in told or not usable(told, told[key]):
            why = f"{key} is {told[key]!r}" if key in told else f"it does not say {key}"
            raise UsageError(str(folder / CERTIFICATE), why, "see 'whyformer certify', or wire it again")
    return told
