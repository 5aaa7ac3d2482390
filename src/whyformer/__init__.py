"""Proves, with real tensors, why a transformer works, and shows where a model does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyformer.auditing import audit

__version__ = "0.1.0"
__all__ = ["__version__", "audit"]


def __getattr__(name: str) -> Any:
    """``whyformer.audit``, imported when it is used: importing whyformer alone imports no torch."""
    if name == "audit":
        from whyformer.auditing import audit

        return audit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
