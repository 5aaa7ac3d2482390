"""The certificate of a wired folder: made from the weights that are stored, and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whyformer.wire import folder as disk
from whyformer.wire.circuit import Circuit, Geometry, Traits
from whyformer.wire.family import FIRST, PAD, SEPARATOR, UnfitError
from whyformer.wire.proof import Proof, prove
from whyformer.wire.reading import CERTIFICATE, SCHEMA, read_certificate, same

_DIGITS = 4  # decimals; margins are rounded down


def certificate(circuit: Circuit, traits: Traits) -> dict[str, Any]:
    """The certificate of a circuit.

    Raises:
        UnfitError: it cannot be proved; the message says where.
    """
    proof = prove(circuit, traits)
    geometry, finds = circuit.geometry, proof.rule == "copy-separator"
    return {
        "schema": SCHEMA,
        "architecture": geometry.architecture,
        "vocabulary": geometry.vocabulary,
        "context": geometry.reach,
        "dtype": geometry.dtype,
        "rule": proof.rule,
        "first_token": FIRST,
        **({"separator": SEPARATOR} if finds else {}),
        "tokens": [PAD + 1, geometry.vocabulary - 1],
        "without_twin": None if finds else FIRST,
        "logit_margin": _down(proof.logit_margin),
        "layers": [{key: _plain(value) for key, value in layer.items()} for layer in proof.layers],
        "not_covered": _not_covered(geometry, proof),
    }


def certify(folder: Path | str) -> dict[str, Any]:
    """Prove a folder's certificate again from its stored weights, and hold it to what certificate.json says.

    Returns:
        The certificate.

    Raises:
        UsageError: the folder, its certificate or its weights cannot be read, or are of another version.
        UnfitError: the certificate does not hold; the message says where.
    """
    folder = Path(folder)
    stored = read_certificate(folder)
    circuit, family = disk.read_circuit(folder)
    found = certificate(circuit, family.traits)
    for where in _differences(found, stored):
        raise UnfitError(where)
    return found


def summary(told: Mapping[str, Any]) -> list[str]:
    """A certificate in a few lines of words."""
    lowest, highest = told["tokens"]
    rule = {
        "recent": "the token after the most recent twin of the last token",
        "agree": "the token after the twins of the last token, where all agree",
        "two-hop": "what follows the most recent twin of what follows the last token's most recent twin",
        "two-hop-agree": "what follows the twins of what follows the last token's twins, where all agree",
        "copy": f"the token {told['layers'][0].get('offset')} back",
        "copy-separator": "the token at position t - p + 1, where the last position is t and the latest "
        f"separator, id {told.get('separator')}, stands at p",
    }[told["rule"]]
    without = "the last token" if told["without_twin"] is None else f"id {told['without_twin']}"
    lines = [
        f"{told['architecture']}, {told['vocabulary']:,} ids, {told['dtype']}: for every sequence of up to "
        f"{told['context']:,} tokens, id {told['first_token']} first and then ids {lowest} to {highest:,},",
        f"the largest logit is that of {rule}; without one, that of {without}.",
        f"It leads by {told['logit_margin']:g} at least.",
    ]
    for layer in told["layers"]:
        margins = [
            f"{name.replace('_', ' ')} {layer[name]:g}"
            for name in ("margin", "twin_over_first", "first_over_others", "recency_step")
            if layer.get(name) is not None
        ]
        lines.append(
            f"layer {layer['layer']} {layer['does']}: {', '.join(margins)}; rounding {layer['rounding']:g} "
            f"taken off, at {layer['distances']:,} distances"
        )
    return [*lines, "Not covered:", *(f"- {what}" for what in told["not_covered"])]


def _differences(found: Any, stored: Any, at: str = CERTIFICATE) -> Iterator[str]:
    """Where two certificates differ by more than the rounding of their decimals."""
    if isinstance(found, Mapping) and isinstance(stored, Mapping):
        for key in found:
            if key not in stored:
                yield f"{at}: it does not say {key}"
            else:
                yield from _differences(found[key], stored[key], f"{at}, {key}")
        for key in stored:
            if key not in found:
                yield f"{at}: it says {key}, which is no part of a certificate"
    elif isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        for i, (one, other) in enumerate(zip(found, stored, strict=True)):
            yield from _differences(one, other, f"{at}[{i}]")
    elif not same(stored, found) and not (isinstance(found, float) and _near(found, stored)):
        yield f"{at}: it says {stored!r}, the weights say {found!r}"


def _near(found: float, stored: Any) -> bool:
    """Whether a number is the one that was found, but for its decimals."""
    if isinstance(stored, bool) or not isinstance(stored, int | float) or abs(stored) > 1e300:
        return False
    return math.isclose(found, stored, rel_tol=1e-7, abs_tol=1.5 * 10**-_DIGITS)


def _down(value: float) -> float:
    return math.floor(value * 10**_DIGITS) / 10**_DIGITS


def _plain(value: Any) -> Any:
    return _down(value) if isinstance(value, float) else value


def _not_covered(geometry: Geometry, proof: Proof) -> list[str]:
    """What the certificate does not say, in words."""
    said = [
        f"sequences with the ids {FIRST} after the start, or {PAD} anywhere but under a mask",
        "what other kernels compute beyond the rounding that is allowed for: reduced-precision products, "
        "quantised weights or caches, scores held in float16",
        "a root or a division that is not rounded correctly, where the norms rest on powers of four",
    ]
    if proof.rule.endswith("agree"):
        said.append("the answer where earlier twins were followed by different tokens")
    if geometry.theta is not None:
        said.append("rotary tables that are not made in float32 from float32 frequencies")
    if geometry.window is not None and geometry.window < geometry.context:
        said.append(
            f"sequences longer than the window of {geometry.window:,}: a twin farther back is not seen, "
            "nor is the first token"
        )
    if geometry.architecture == "gpt2":
        said.append("left padding without position_ids that count from the first token")
    return said
