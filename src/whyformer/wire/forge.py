"""``wire``: choose sizes, build, prove, write; or refuse, with the largest context that can be certified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from whyformer.errors import UsageError
from whyformer.wire import copying, induction, llamacpp, reading, replacing, separator
from whyformer.wire import folder as disk
from whyformer.wire.certificate import certificate
from whyformer.wire.circuit import DTYPES, Geometry
from whyformer.wire.families import find
from whyformer.wire.family import LEAST, MOST, Family, UnfitError
from whyformer.wire.proof import LAYERS
from whyformer.wire.sizes import UnreachableError

RULES = ("recent", "agree")
CIRCUITS = {
    "induction": RULES,
    "two-hop": ("two-hop", "two-hop-agree"),
    "copy": ("copy", "copy-separator"),
}
"""The circuits by name, and what a certificate calls their rules: one for each of RULES; of the copy, the one
with a prefix of a fixed length, and the one that finds its separator."""
Progress = Callable[[str], None]


def wire(
    architecture: str,
    *,
    vocabulary: int,
    context: int,
    out: Path | str,
    circuit: str = "induction",
    prefix: int | None = None,
    rule: str | None = None,
    dtype: str = "float32",
    tied: bool | None = None,
    theta: float | None = None,
    window: int | None = None,
    gguf: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a checkpoint that does exact induction, looks up twice, or copies, with its certificate.

    Args:
        architecture: one of ``families.FAMILIES``.
        vocabulary: how many ids, the first token and the pad among them.
        context: the longest sequence, the first token included.
        out: the folder to write.
        circuit: a name in CIRCUITS.
        prefix: how many tokens stand before the separator, for the copy; any number where None, which needs
            learned positions.
        rule: which of several twins counts: the most ``recent``, or any where they ``agree``; the first of
            the two that can be certified where None.
        dtype: "float32" or "bfloat16".
        tied: whether the embedding is the unembedding; what the architecture is known for where None.
        theta: the rotary base; the first that serves where None.
        window: a sliding window, for architectures that have one.
        gguf: write the same model as a GGUF file too, for llama.cpp.
        force: replace a folder that was wired before.
        progress: told what is being done.

    Returns:
        The certificate.

    Raises:
        UsageError: an argument is out of range, or no such checkpoint can be certified.
        MissingExtraError: safetensors is not installed, or gguf where it is asked for.
    """
    out = Path(out)
    name, family = find(architecture)
    tied = name in ("gpt2", "gemma") if tied is None else tied
    _check(name, family, vocabulary, context, rule, dtype, tied, theta, window)
    prefix = _check_circuit(name, family, context, circuit, rule, prefix)
    replacing.check_free(out, force)
    named = _rules(circuit, rule, prefix)
    asked = Geometry(name, vocabulary, context, 0, 0, LAYERS[named[0]], theta, dtype, tied, window)
    reading.check_library()
    if gguf:
        llamacpp.check_library()
    say = progress or (lambda _: None)
    for tried in named:
        say(f"choosing and proving, rule {tried}")
        made = attempt(asked, family, tried, prefix)
        if made is not None:
            say("writing")
            disk.write(out, made, family, gguf=gguf)
            say("")
            return made.certificate
    raise _refusal(asked, family, named[-1], prefix, say)


def attempt(asked: Geometry, family: Family, rule: str, prefix: int | None = None) -> disk.Made | None:
    """What was built and proved, for a rule as certificates call it; None where it cannot be certified."""
    try:
        if rule == "copy-separator":
            built = separator.build(asked, family.traits)
        elif prefix is not None:
            built = copying.build(asked, family.traits, prefix)
        else:
            built = induction.build(asked, family.traits, "agree" if rule.endswith("agree") else "recent")
        stored = disk.tensors(built, family)
        circuit = family.read(built.geometry, stored)
        proved = certificate(circuit, family.traits)
    except (UnreachableError, UnfitError):
        return None
    return disk.Made(circuit, stored, proved) if proved["rule"] == rule else None


def largest(asked: Geometry, family: Family, rule: str, prefix: int | None, say: Progress) -> int:
    """A context below the one asked that was certified, where one more was not; 0 where there is none."""
    low, high = LEAST - 1, asked.context
    while high - low > 1:
        middle = (low + high) // 2 if low >= LEAST else max(LEAST, high // 2)
        say(f"trying a context of {middle:,}")
        tried = replace(asked, context=middle)
        fits = None if prefix is None else min(prefix, (middle - 2) // 2)
        if attempt(tried, family, rule, fits) is None:
            high = middle
        else:
            low = middle
    return low if low >= LEAST else 0


def _refusal(asked: Geometry, family: Family, rule: str, prefix: int | None, say: Progress) -> UsageError:
    """What can be certified in place of what was asked."""
    can = largest(asked, family, rule, prefix, say)
    what = f"{asked.architecture} with {asked.vocabulary:,} tokens at context {asked.context:,}"
    why = f"no margin can be certified there under the rule {rule} in {asked.dtype}"
    others = ["--rule agree"] if rule in ("recent", "two-hop") else []
    if asked.theta is not None:
        why += f" with the rotary base {asked.theta:g}"
        others.append("another --theta")
    if asked.dtype != "float32":
        others.append("--dtype float32")
    ways = [f"--context {can}, the largest that can"] * (can > 0) + others
    return UsageError(what, why, f"try {', or '.join(ways) or 'fewer tokens'}")


def _rules(circuit: str, rule: str | None, prefix: int | None) -> list[str]:
    """What a certificate may call the rule, best first."""
    named = CIRCUITS[circuit]
    if circuit == "copy":
        return [named[prefix is None]]
    return [named[RULES.index(rule)]] if rule else list(named)


def _check_circuit(
    name: str, family: Family, context: int, circuit: str, rule: str | None, prefix: int | None
) -> int | None:
    """How many tokens are to be copied, where that is fixed."""
    if circuit not in CIRCUITS:
        raise UsageError(f"--circuit {circuit}", "it is no circuit", f"choose one of {', '.join(CIRCUITS)}")
    if circuit != "induction" and family.traits.query_norm:
        why = f"{name} norms its queries and keys, which fits induction alone"
        raise UsageError(f"--circuit {circuit}", why, "wire another architecture")
    if circuit != "copy":
        if prefix is not None:
            raise UsageError(
                f"--prefix {prefix}", f"{circuit} has none", "leave it out, or add --circuit copy"
            )
        return None
    if rule is not None:
        raise UsageError(f"--rule {rule}", "a copy has no twins to choose from", "leave it out")
    most = (context - 2) // 2
    if prefix is None:
        if family.traits.rotary:
            why = f"it copies positions, and the values of {name} carry none, since they are rotary"
            way = f"add --prefix N, 1 to {most}, or wire gpt2"
            raise UsageError("--circuit copy without --prefix", why, way)
        return None
    if not 1 <= prefix <= most:
        why = f"at context {context} it is 1 to {most}: it stands there twice, with a separator"
        raise UsageError(f"--prefix {prefix}", why, f"try --prefix {most}")
    return prefix


def _check(
    name: str,
    family: Family,
    vocabulary: int,
    context: int,
    rule: str | None,
    dtype: str,
    tied: bool,
    theta: float | None,
    window: int | None,
) -> None:
    """Refuse arguments that no checkpoint can have."""
    for option, value in (("--vocab", vocabulary), ("--context", context)):
        if not LEAST <= value <= MOST:
            near = LEAST if value < LEAST else MOST
            raise UsageError(f"{option} {value}", f"it is {LEAST} to {MOST:,}", f"try {option} {near}")
    if rule is not None and rule not in RULES:
        raise UsageError(f"--rule {rule}", "it is no rule", "choose recent or agree")
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype}", "weights are float32 or bfloat16", "choose one of them")
    if (tied and not family.traits.tied) or (not tied and not family.traits.untied):
        this, other = ("--tied", "--untied") if tied else ("--untied", "--tied")
        raise UsageError(this, f"{name} is not made so", f"leave it out, or use {other}")
    if theta is not None and not (family.traits.rotary and 1 < theta < 1e30):
        why = "a rotary base is above 1" if family.traits.rotary else f"{name} has learned positions"
        raise UsageError(f"--theta {theta:g}", why, "leave it out")
    if window is not None and (not family.traits.window or window < LEAST):
        why = f"a window is {LEAST} or more" if family.traits.window else f"{name} has no window"
        raise UsageError(f"--window {window}", why, "leave it out, or wire mistral")
