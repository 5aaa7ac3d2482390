"""What is asserted: each claim with its mathematics, its test and the model that breaks it.

Importing this package is cheap; ``catalogue`` and ``find`` import torch.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from whyformer.errors import UsageError

if TYPE_CHECKING:
    from whyformer.claims.claim import Claim

CLAIM_IDS = (
    "routing.one-hop",
    "routing.window-depth",
    "routing.chain",
    "routing.gap-free",
    "routing.dilution",
    "routing.fading",
    "routing.forget-gates",
    "routing.state-decay",
    "routing.prefix-bag",
    "routing.induction",
    "routing.one-layer-limit",
    "routing.hops",
    "routing.capacity",
    "order.equivariance",
    "order.bias-automorphisms",
    "order.causal-mask",
    "order.repeated-token",
    "order.bag-of-words",
    "order.learned-rows",
    "order.sinusoid-rotation",
    "order.sinusoid-shift",
    "order.rotary-shift",
    "order.toeplitz-bias",
    "order.key-only-alibi",
)
"""The claims of the lab, in the order in which it tells them."""

_MODULES = (
    "routing.attention",
    "routing.recurrence",
    "routing.induction",
    "routing.one_layer",
    "routing.recall",
    "order.blindness",
    "order.masks",
    "order.positions",
)


def catalogue() -> dict[str, Claim]:
    """Every claim by its id, in the order of ``CLAIM_IDS``."""
    modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
    found = {claim.id: claim for module in modules for claim in module.CLAIMS}
    return {name: found[name] for name in CLAIM_IDS}


def find(id: str) -> Claim:  # noqa: A002
    """The claim of that id, or of that name where the act before the point is left out.

    Raises:
        UsageError: no claim has it; the line offers the nearest ids.
    """
    by_name = {claim.split(".")[1]: claim for claim in CLAIM_IDS}
    id = by_name.get(id, id)  # noqa: A001
    if id not in CLAIM_IDS:
        near = get_close_matches(id, CLAIM_IDS, n=3, cutoff=0.5)
        near += [by_name[name] for name in get_close_matches(id, by_name, n=3, cutoff=0.5)]
        offer = f"near it: {', '.join(dict.fromkeys(near))}" if near else "'whyformer claims' lists them"
        raise UsageError(f"claim {id!r}", f"is none of the {len(CLAIM_IDS)} claims", offer)
    return catalogue()[id]
