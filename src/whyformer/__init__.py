"""Proves, with real tensors, why a transformer works, and shows where a model does not."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyformer.auditing import audit
    from whyformer.subjects.subject import CallableSubject, Output, Subject, Traits

__version__ = "0.1.0"
__all__ = ["CallableSubject", "Output", "Subject", "Traits", "__version__", "audit"]

_ROOMS = {
    "audit": "whyformer.auditing",
    "CallableSubject": "whyformer.subjects.subject",
    "Output": "whyformer.subjects.subject",
    "Subject": "whyformer.subjects.subject",
    "Traits": "whyformer.subjects.subject",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are used: importing whyformer alone imports no torch."""
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
