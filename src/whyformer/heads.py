"""A checkpoint in, every head's routing out: scores, causes, and how far they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from whyformer.claims.claim import generator_for
from whyformer.errors import UsageError
from whyformer.instruments import ablation, distance, repeats
from whyformer.instruments.ablation import Ablation, Ablator, Head
from whyformer.instruments.copying import copying
from whyformer.instruments.heads import KINDS, Scan, heads_of, mean_interval, scan
from whyformer.instruments.quoting import quotations
from whyformer.instruments.repeats import Repeats
from whyformer.subjects import targets
from whyformer.subjects.checkpoints import Checkpoint, open_checkpoint, quiet
from whyformer.subjects.huggingface import HuggingFace
from whyformer.subjects.subject import raised

SEED = 31
SCHEMA = "whyformer/heads/1"
LENGTH = 512
"""Tokens of a sequence, unless told otherwise or the context is shorter."""
ROWS = 4
PERIOD = 64
"""The most tokens of the copy on which heads are taken out."""
BEST = 8
DRAWS = 6
"""How many sets of random heads are taken out: single draws differ much."""
ASKED = 512
"""Queries at which the model's lookup is asked."""


@dataclass(frozen=True)
class Examined:
    """A decoder that can be scanned.

    Attributes:
        model: a model of the transformers library.
        subject: what a report says of it.
        ids: the tokens that sequences are drawn from: all but special ones.
        start: what its tokenizer puts before a text, if anything.
        context: the longest input that it declares, or None.
        tokenizer: what reads a text, if there is one.
    """

    model: Any
    subject: dict[str, Any]
    ids: Int[Tensor, " ids"]
    start: int | None
    context: int | None
    tokenizer: Any = None


def examine(
    target: str,
    *,
    length: int | None = None,
    seed: int = SEED,
    text: Path | None = None,
    ablate: bool = True,
    beyond: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Scan every head of a decoder, and try by ablation what was found.

    Args:
        target: a folder, a hub id, a GGUF file, or code that gives a model of transformers.
        length: tokens of each sequence; the cost grows with it.
        seed: every draw follows from it.
        text: a text to scan beside the drawn sequences.
        ablate: whether heads are taken out; it is the dear part.
        beyond: whether the length may pass the declared context.
        progress: told what is done next.

    Returns:
        Plain data by the schema ``whyformer/heads/1``.

    Raises:
        UsageError: the target has no softmax attention that can be scanned, or the length does not fit.
    """
    tell = progress or (lambda _: None)
    tell("loading")
    examined = load(target, seed)
    length = _length(examined, length, beyond)
    read = None if text is None else _read(examined, text, length)

    def draw(name: str) -> torch.Generator:
        return generator_for(seed, f"heads.{name}")

    sequences = repeats.scattered(ROWS, length, examined.ids, start=examined.start, generator=draw("rows"))
    tell("scanning")
    found = _scan(examined, target, sequences)
    tell("scanning without repeats")
    null = _null(examined, length, draw("null"))
    copied = copying(examined.model, sequences.tokens[0], generator=draw("copying"))
    forwards = 3 * ROWS + 1.0  # the scan, its null, the lookup, and a row for the copying score
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "subject": examined.subject,
        "length": length,
        "seed": seed,
        "path": "; ".join(found.paths),
        "rows": ROWS,
        "heads": _heads(found, null, copied),
    }
    tell("asking the model")
    data["lookup"] = _lookup(examined, sequences, draw("lookup"))
    data["gaps"] = [_gaps(found, head) for head in found.best("induction", BEST)]
    data["ablation"], data["compositions"] = [], []
    if ablate:
        copy = _copy(examined, length, draw("copy"))
        data["ablation"], calls = _ablations(examined, found, copy, draw("random"), tell)
        data["random"] = _random(data["ablation"])
        tell("patching keys")
        sources, aims = found.best("previous", BEST), found.best("induction", 3)
        data["compositions"] = _compositions(examined, copy, sources, aims)
        forwards += (calls + 1 + len(sources)) * copy.tokens.numel() / length
    data["forwards"] = round(forwards, 1)
    if read is not None:
        tell("reading the text")
        data["text"] = quotations(examined.model, read, found.best("induction", 4), examined.tokenizer)
    tell("")
    return data


def load(target: str, seed: int = SEED) -> Examined:
    """The decoder that a TARGET names.

    Raises:
        UsageError: it is none, or no model of transformers.
    """
    if targets.is_code(target):
        model = targets.load_module(target, seed).eval()
        if not hasattr(getattr(model, "config", None), "get_text_config"):
            why = "it is no model of transformers, whose attention can be watched"
            raise UsageError(target, why, "name a checkpoint, or code that returns such a model")
        checkpoint = Checkpoint(model, next(model.parameters()).dtype, type(model).__name__, decoder=True)
        name = target.rpartition(":")[2]
    else:
        checkpoint = open_checkpoint(target)
        path = Path(target).expanduser()
        name = path.resolve().name if path.exists() else target
    if not checkpoint.decoder:
        raise UsageError(target, f"{checkpoint.architecture} is an encoder", "name a decoder")
    heads_of(checkpoint.model)
    told = HuggingFace(checkpoint, name=name, target=target)
    tokenizer = None if targets.is_code(target) else _tokenizer(target)
    special = set(told.traits.special) | set(getattr(tokenizer, "all_special_ids", ()))
    ids = torch.tensor([i for i in range(told.traits.vocabulary) if i not in special])
    return Examined(
        checkpoint.model, told.describe(), ids, _start(tokenizer), told.traits.max_length, tokenizer
    )


def _tokenizer(target: str) -> Any:
    """The tokenizer beside a checkpoint, or None."""
    path = Path(target).expanduser()
    if path.is_file():
        return None
    try:
        with quiet():
            library = import_module("transformers")
            return library.AutoTokenizer.from_pretrained(
                str(path) if path.is_dir() else target, local_files_only=True, trust_remote_code=False
            )
    except Exception:
        # Whatever ails the tokenizer, the model can be scanned without; a text cannot, and is told so.
        return None


def _start(tokenizer: Any) -> int | None:
    """The one token that the tokenizer puts before any text."""
    if tokenizer is None:
        return None
    ids, special = tokenizer("a")["input_ids"], tokenizer.all_special_ids
    return ids[0] if ids and ids[0] in special else None


def _length(examined: Examined, length: int | None, beyond: bool) -> int:
    context, room = examined.context, 2 * (len(examined.ids) - repeats.PIECE)
    if length is None:
        length = min(LENGTH, context or LENGTH, max(room, repeats.SHORTEST))
    if length < repeats.SHORTEST:
        raise UsageError(
            f"--length {length}", "it has no room for repeats", f"try {repeats.SHORTEST} or more"
        )
    if context is not None and length > context and not beyond:
        why = f"the model declares {context:,} positions"
        raise UsageError(
            f"--length {length:,}", why, f"try {context:,}, or add --beyond where they are computed"
        )
    return length


def _scan(examined: Examined, target: str, sequences: Repeats) -> Scan:
    """The first call of the model on a whole sequence: what it raises is told in one line."""
    try:
        return scan(examined.model, sequences)
    except (IndexError, RuntimeError) as error:
        context = examined.context
        if context is not None and sequences.length > context:
            why = f"the model has no positions beyond its {context:,}"
            raise UsageError(f"--length {sequences.length:,}", why, f"try {context:,}") from error
        raise UsageError(target, raised(error), "run it by itself to see why") from error


def _null(examined: Examined, length: int, generator: torch.Generator) -> Scan:
    """The same heads on sequences without repeats, as long as the vocabulary allows."""
    length = min(length, len(examined.ids))
    rows = repeats.scattered(ROWS, length, examined.ids, start=examined.start, generator=generator)
    return scan(examined.model, repeats.without_repeats(rows, examined.ids, generator=generator))


def _heads(found: Scan, null: Scan, copied: Tensor) -> list[dict[str, Any]]:
    mean, none = ({kind: each.mean(kind) for kind in KINDS} for each in (found, null))
    interval, around = ({kind: each.interval(kind) for kind in KINDS} for each in (found, null))
    _, layers, heads, _ = found.scores.shape
    table = []
    for layer in range(layers):
        if mean["induction"][layer].isnan().any():
            continue
        for head in range(heads):
            at = (..., layer, head)
            row: dict[str, Any] = {"layer": layer, "head": head}
            row |= {kind: _rounded(mean[kind][at]) for kind in KINDS}
            row["interval"] = {kind: _rounded(interval[kind][at]) for kind in KINDS}
            row["null"] = {kind: _rounded(none[kind][at]) for kind in KINDS}
            row["null"]["interval"] = {kind: _rounded(around[kind][at]) for kind in KINDS}
            row["copying"] = None if copied[at].isnan() else _rounded(copied[at])
            table.append(row)
    return table


def _rounded(value: Tensor | float) -> Any:
    """Six digits after the point; float32 attention has no more to say. Never beyond [−1, 1] by rounding."""
    numbers = torch.as_tensor(value, dtype=torch.float64).clamp(-1, 1)
    return [round(x, 6) for x in numbers.tolist()] if numbers.dim() else round(numbers.item(), 6)


def _copy(examined: Examined, length: int, generator: torch.Generator) -> Repeats:
    period = min(PERIOD, (length - 1) // 2, len(examined.ids))
    return repeats.periodic(ROWS, period, examined.ids, start=examined.start, generator=generator)


def _ablations(
    examined: Examined, found: Scan, copy: Repeats, generator: torch.Generator, tell: Callable[[str], None]
) -> tuple[list[dict[str, Any]], int]:
    """The best heads of two kinds, random ones in several draws, and single heads."""
    ablator = Ablator(examined.model, copy)
    _, layers, heads, _ = found.scores.shape
    induction, previous = (found.best(kind, BEST) for kind in ("induction", "previous"))
    sets: list[tuple[str, list[Head], ablation.Mode]] = []
    for group, best in (("induction", induction), ("previous", previous)):
        sets += [(group, best[:k], "zero") for k in (1, 2, 4, BEST) if k <= len(best)]
        sets += [(group, best, "mean") for _ in ablator.modes[1:]]
    for _ in range(DRAWS):
        drawn = ablation.random_heads(layers, heads, len(induction), apart=induction, generator=generator)
        sets += [("random", drawn, mode) for mode in ablator.modes if drawn]
    singles = induction + [head for head in previous[:4] if head not in induction]
    sets += [("single", [head], "zero") for head in singles[1:]]
    told = []
    for group, taken, mode in sets:
        tell(f"taking out {len(taken)} of {group}")
        told.append(_told(group, ablator.without(taken, mode)))
    return told, ablator.calls


def _random(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean loss of the random draws, mode by mode, with its 95% interval over them."""
    found = []
    for mode in ("zero", "mean"):
        rows = [row for row in told if row["group"] == "random" and row["mode"] == mode]
        if len(rows) > 1:
            losses = torch.tensor([row["loss"] for row in rows], dtype=torch.float64)
            low, high = (round(max(end.item(), 0.0), 6) for end in mean_interval(losses))
            heads, loss = len(rows[0]["heads"]), round(losses.mean().item(), 6)
            found.append(
                {"heads": heads, "mode": mode, "draws": len(rows), "loss": loss, "interval": [low, high]}
            )
    return found


def _told(group: str, done: Ablation) -> dict[str, Any]:
    return {
        "group": group,
        "heads": [list(head) for head in done.heads],
        "mode": done.mode,
        "loss": round(done.loss, 6),
        "baseline": round(done.baseline, 6),
    }


def _compositions(
    examined: Examined, copy: Repeats, sources: list[Head], aims: list[Head]
) -> list[dict[str, Any]]:
    found = ablation.compositions(examined.model, copy, sources, aims)
    found.sort(key=lambda pair: pair.keys - pair.score)
    named = ({"from": list(c.source), "to": list(c.target), **asdict(c)} for c in found)
    return [
        {"from": c["from"], "to": c["to"]}
        | {name: _rounded(c[name]) for name in ("score", "keys", "queries")}
        for c in named
    ]


def _lookup(examined: Examined, rows: Repeats, generator: torch.Generator) -> dict[str, Any]:
    total, count = distance.lookup(examined.model, rows, most=ASKED, generator=generator)
    right, asked = total.sum().item(), int(count.sum())
    return {"accuracy": _rounded(right / asked) if asked else None, "asked": asked} | _falls(total, count)


def _gaps(found: Scan, head: Head) -> dict[str, Any]:
    return {"head": list(head)} | _falls(found.near[head], found.count)


def _falls(total: Tensor, count: Tensor) -> dict[str, Any]:
    told = distance.falls(total, count)
    curves = {name: getattr(told, name) for name in ("by_gap", "distance", "dilution")}
    plain = {
        name: {"least": list(curve.least), "value": [_rounded(x) for x in curve.value]}
        for name, curve in curves.items()
    }
    return plain | {"falls_with": told.reason}


def _read(examined: Examined, text: Path, length: int) -> Repeats:
    """The first tokens of a text, and what repeats in them.

    Raises:
        UsageError: it cannot be read, or nothing in it comes twice.
    """
    if examined.tokenizer is None:
        raise UsageError(
            f"--text {text}", "the checkpoint has no tokenizer that loads", "store one beside it"
        )
    try:
        words = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--text {text}", why, "name a UTF-8 text") from error
    with quiet():
        ids = examined.tokenizer(words)["input_ids"][:length]
    if not ids or max(ids) > int(examined.ids.max()):
        raise UsageError(
            f"--text {text}", "it is empty, or its tokenizer is of another model", "name another"
        )
    known = repeats.from_tokens(torch.tensor([ids])) if len(set(ids)) < len(ids) else None
    usual = (
        None if known is None else known.pairs[:, torch.isin(torch.tensor(ids)[known.pairs[1]], examined.ids)]
    )
    if known is None or usual is None or not usual.shape[1]:
        raise UsageError(f"--text {text}", f"nothing repeats in its {len(ids)} tokens", "name a longer text")
    return Repeats(known.tokens, usual, known.copied)
