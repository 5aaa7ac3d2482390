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
    from whyformer.finding import Value

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

AUDIT_IDS = (
    "routing.causal",
    "routing.reach",
    "routing.batch",
    "routing.padding",
    "routing.cache",
    "routing.chunks",
    "routing.packing",
    "routing.backends",
    "routing.repeatable",
    "routing.lookup",
    "order.sensitive",
    "order.blind",
    "order.shift",
    "order.positions",
    "order.resolution",
)
"""The claims of the audit, which can be tried on any subject."""

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


_AUDIT_MODULES = (
    "audit.dependency",
    "audit.rows",
    "audit.padding",
    "audit.cache",
    "audit.packing",
    "audit.backends",
    "audit.lookup",
    "audit.order",
    "audit.positions",
)

_VALUED = {"routing.reach": 1, "order.resolution": 2}
"""The claims that take a value, and its least."""


def catalogue() -> dict[str, Claim]:
    """The claims of the lab by their ids, in the order of ``CLAIM_IDS``."""
    return _gathered(_MODULES, CLAIM_IDS)


def audit_catalogue() -> dict[str, Claim]:
    """The claims of the audit by their ids, in the order of ``AUDIT_IDS``."""
    return _gathered(_AUDIT_MODULES, AUDIT_IDS)


def find(id: str) -> Claim:  # noqa: A002
    """The claim of that id, the lab's or the audit's, or of that name where no other claim has it.

    Raises:
        UsageError: no claim has it; the line offers the nearest ids.
    """
    known = CLAIM_IDS + AUDIT_IDS
    named = [claim for claim in known if claim.split(".")[1] == id]
    id = named[0] if len(named) == 1 else id  # noqa: A001
    if id not in known:
        raise UsageError(f"claim {id!r}", f"is none of the {len(known)} claims", _near(id, known))
    return (audit_catalogue() if id in AUDIT_IDS else catalogue())[id]


def parse(asked: str) -> tuple[Claim, Value]:
    """A claim of the audit and its value, from ``routing.causal`` or ``routing.reach=16``.

    Raises:
        UsageError: no claim of the audit has that id, or the value does not parse.
    """
    id_, equals, text = asked.partition("=")
    if id_ not in AUDIT_IDS:
        why = (
            "is a claim of the lab, not of the audit" if id_ in CLAIM_IDS else "is none of the audit's claims"
        )
        raise UsageError(f"claim {id_!r}", why, _near(id_, AUDIT_IDS))
    claim = audit_catalogue()[id_]
    if id_ not in _VALUED:
        if equals:
            raise UsageError(f"claim {asked!r}", f"{id_} takes no value", f"write {id_}")
        return claim, None
    if not equals and id_ == "order.resolution":
        return claim, None
    least = _VALUED[id_]
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise UsageError(
            f"claim {asked!r}", f"its value is a whole number, {least} or more", f"write {id_}=16"
        )
    return claim, int(text)


def _gathered(modules: tuple[str, ...], ids: tuple[str, ...]) -> dict[str, Claim]:
    claims = (claim for name in modules for claim in import_module(f"{__name__}.{name}").CLAIMS)
    found = {claim.id: claim for claim in claims}
    return {name: found[name] for name in ids}


def _near(id_: str, known: tuple[str, ...]) -> str:
    by_name = {claim.split(".")[1]: claim for claim in known}
    near = get_close_matches(id_, known, n=3, cutoff=0.5)
    near += [by_name[name] for name in get_close_matches(id_, by_name, n=3, cutoff=0.5)]
    return f"near it: {', '.join(dict.fromkeys(near))}" if near else "'whyformer claims' lists them"
