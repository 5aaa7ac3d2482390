"""The architectures that can be wired."""

from __future__ import annotations

from whyformer.errors import UsageError
from whyformer.wire import gpt2, llama, neox
from whyformer.wire.family import Family

FAMILIES: dict[str, Family] = gpt2.FAMILIES | llama.FAMILIES | neox.FAMILIES
"""By model type, as transformers names it."""


def find(name: str) -> tuple[str, Family]:
    """The family of that name; ``neox`` and ``gpt-neox`` mean ``gpt_neox``.

    Raises:
        UsageError: there is none.
    """
    plain = name.lower().replace("-", "").replace("_", "")
    for known, family in FAMILIES.items():
        if plain in (known.replace("_", ""), known.removeprefix("gpt_")):
            return known, family
    offered = ", ".join(FAMILIES)
    raise UsageError(f"architecture {name}", "it is not one that can be wired", f"choose one of {offered}")
