"""A checkpoint in, every head's routing out: scores, causes, and how far they hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whyformer.claims.claim import generator_for
from whyformer.errors import UsageError, WhyformerError
from whyformer.instruments import ablation, distance, repeats
from whyformer.instruments.ablation import Ablation, Ablator, Head
from whyformer.instruments.copying import copying
from whyformer.instruments.heads import KINDS, Scan, heads_of, mean_interval, scan
from whyformer.instruments.quoting import quotations
from whyformer.instruments.repeats import Repeats
from whyformer.subjects.checkpoints import quiet
from whyformer.subjects.decoders import Decoder, load_decoder
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
ASKED = 2048
"""Queries at which the model's lookup is asked: some thirty for each cell of context and gap at 8,192."""


def examine(
    target: str,
    *,
    length: int | None = None,
    seed: int = SEED,
    text: Path | None = None,
    heads: Sequence[Head] = (),
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
        heads: (layer, head) to tell of beside the best: by gap, taken out alone and together, on the text.
        ablate: whether heads are taken out; it is the dear part.
        beyond: whether the length may pass the declared context.
        progress: told what is done next.

    Returns:
        Plain data by the schema ``whyformer/heads/1``.

    Raises:
        UsageError: the target has no softmax attention that can be scanned, the length does not fit, or
            there is no such head.
    """
    tell = progress or (lambda _: None)
    words = None if text is None else _words(text)
    tell("loading")
    examined = load_decoder(target, seed)
    named = _named(examined, heads)
    length = _length(examined, length, beyond)
    read = None if text is None or words is None else _read(examined, text, words, length)

    def draw(name: str) -> torch.Generator:
        return generator_for(seed, f"heads.{name}")

    sequences = repeats.scattered(ROWS, length, examined.ids, start=examined.start, generator=draw("rows"))
    tell("scanning")
    found = _scan(examined, target, sequences)
    _check_attending(found, named)
    tell("scanning without repeats")
    rows = _without_repeats(examined, sequences, draw("null"))
    null = scan(examined.model, rows)
    copied = copying(examined.model, sequences.tokens[0], generator=draw("copying"))
    # The scan, the lookup, a row for the copying score, and the null.
    forwards = 2 * ROWS + 1 + rows.tokens.numel() / length
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "subject": examined.subject,
        "length": length,
        "context": examined.context,
        "seed": seed,
        "path": "; ".join(found.paths),
        "rows": ROWS,
        "null_length": rows.length,
        "heads": _heads(found, null, copied),
    }
    tell("asking the model")
    data["lookup"] = _lookup(examined, sequences, draw("lookup"))
    data["named"] = [list(head) for head in named]
    data["gaps"] = [_gaps(found, head) for head in _joined(found.best("induction", BEST), named)]
    data["ablation"], data["compositions"] = [], []
    if ablate:
        copy = _copy(examined, length, draw("copy"))
        data["ablation"], calls = _ablations(examined, found, copy, named, draw("random"), tell)
        data["random"] = _random(data["ablation"])
        tell("patching keys")
        sources, aims = (_joined(found.best(*kind), named) for kind in (("previous", BEST), ("induction", 3)))
        data["compositions"] = _compositions(examined, copy, sources, aims)
        # Heads that feed none of the aims, or a model that attends by itself, are not patched.
        calls += 1 + len({tuple(pair["from"]) for pair in data["compositions"]})
        forwards += calls * copy.tokens.numel() / length
    if read is not None:
        tell("reading the text")
        shown = _joined(found.best("induction", 4), named)
        data["text"] = quotations(examined.model, read, shown, examined.tokenizer)
        forwards += read.length / length
    data["forwards"] = round(forwards, 1)
    tell("")
    return data


def _named(examined: Decoder, heads: Sequence[Head]) -> list[Head]:
    """The heads that were asked for, each once.

    Raises:
        UsageError: the model has no heads, or not these.
    """
    layers, count = heads_of(examined.model)
    for layer, head in heads:
        if not (0 <= layer < layers and 0 <= head < count):
            why = f"there are {layers} layers of {count} heads, counted from 0"
            raise UsageError(f"head {layer}.{head}", why, "name one of them")
    return list(dict.fromkeys((layer, head) for layer, head in heads))


def _check_attending(found: Scan, named: list[Head]) -> None:
    """Refuse a named head in a layer that does not attend.

    Raises:
        UsageError: there is one.
    """
    for layer, head in named:
        if (layer, head) not in found.shown:
            there = ", ".join(str(at) for at in dict(found.shown))
            raise UsageError(f"head {layer}.{head}", f"layer {layer} has no softmax", f"layers {there} have")


def _joined(best: list[Head], named: list[Head]) -> list[Head]:
    """The best heads, and the named ones that are not among them."""
    return best + [head for head in named if head not in best]


def _length(examined: Decoder, length: int | None, beyond: bool) -> int:
    context, room = examined.context, 2 * (len(examined.ids) - repeats.PIECE)
    name = str(examined.subject["name"])
    if room < repeats.SHORTEST:
        why = f"it has {len(examined.ids)} ordinary tokens, too few for repeats and sequences without"
        raise UsageError(name, why, f"name a decoder with {repeats.SHORTEST} or more")
    if context is not None and context < repeats.SHORTEST and not beyond:
        why = f"the {context} positions that it declares have no room for repeats"
        raise UsageError(name, why, "name another decoder, or add --beyond where they are computed")
    if length is None:
        length = max(min(LENGTH, context or LENGTH, room), repeats.SHORTEST)
    if length < repeats.SHORTEST:
        raise UsageError(
            f"--length {length}", "it has no room for repeats", f"try {repeats.SHORTEST} or more"
        )
    if context is not None and length > context and not beyond:
        why = f"the model declares {context:,} positions"
        mend = f"try {min(context, room):,}"
        if length <= room:
            mend += ", or add --beyond where they are computed"
        raise UsageError(f"--length {length:,}", why, mend)
    if length > room:
        why = f"the model has {len(examined.ids):,} ordinary tokens, too few for repeats of that length"
        raise UsageError(f"--length {length:,}", why, f"try {room:,}")
    return length


def _scan(examined: Decoder, target: str, sequences: Repeats) -> Scan:
    """The first call of the model on a whole sequence: what it raises is told in one line."""
    try:
        return scan(examined.model, sequences)
    except WhyformerError:
        raise
    except Exception as error:
        context = examined.context
        if context is not None and sequences.length > context:
            why = f"the model has no positions beyond its {context:,}"
            mend = f"try {context:,}" if context >= repeats.SHORTEST else "name another decoder"
            raise UsageError(f"--length {sequences.length:,}", why, mend) from error
        raise UsageError(target, raised(error), "run it by itself to see why") from error


def _without_repeats(examined: Decoder, sequences: Repeats, generator: torch.Generator) -> Repeats:
    """The same places without repeats; where there are too few ids, shorter sequences of other places."""
    ids = examined.ids
    if sequences.length > len(ids):
        sequences = repeats.scattered(ROWS, len(ids), ids, start=examined.start, generator=generator)
    return repeats.without_repeats(sequences, ids, generator=generator)


def _heads(found: Scan, null: Scan, copied: Tensor) -> list[dict[str, Any]]:
    mean, none = ({kind: each.mean(kind) for kind in KINDS} for each in (found, null))
    interval, around = ({kind: each.interval(kind) for kind in KINDS} for each in (found, null))
    table = []
    for layer, head in found.shown:
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


def _copy(examined: Decoder, length: int, generator: torch.Generator) -> Repeats:
    period = min(PERIOD, (length - 1) // 2, len(examined.ids))
    return repeats.periodic(ROWS, period, examined.ids, start=examined.start, generator=generator)


def _ablations(
    examined: Decoder,
    found: Scan,
    copy: Repeats,
    named: list[Head],
    generator: torch.Generator,
    tell: Callable[[str], None],
) -> tuple[list[dict[str, Any]], int]:
    """The best heads of two kinds, random ones in several draws, single ones, and those named together."""
    ablator = Ablator(examined.model, copy)
    induction, previous = (found.best(kind, BEST) for kind in ("induction", "previous"))
    sets: list[tuple[str, list[Head], ablation.Mode]] = []
    for group, best in (("induction", induction), ("previous", previous)):
        sets += [(group, best[:k], "zero") for k in (1, 2, 4, BEST) if k <= len(best)]
        sets += [(group, best, "mean") for _ in ablator.modes[1:]]
    for _ in range(DRAWS):
        drawn = ablation.random_heads(found.shown, len(induction), apart=induction, generator=generator)
        sets += [("random", drawn, mode) for mode in ablator.modes if drawn]
    singles = induction + [head for head in previous[:4] if head not in induction]
    sets += [("single", [head], "zero") for head in _joined(singles, named)[1:]]
    if len(named) > 1:
        sets += [("named", named, mode) for mode in ablator.modes]
    told = []
    for group, taken, mode in sets:
        tell(f"taking out {len(taken)} of {group}")
        told.append(_told(group, ablator.without(taken, mode)))
    return told, ablator.calls


def _random(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean loss of the random draws, mode by mode, with its 95% interval over them."""
    found = []
    for mode in ("zero", "mean"):
        drawn = [row for row in told if row["group"] == "random" and row["mode"] == mode]
        rows = [row for row in drawn if row["loss"] is not None]
        if len(rows) > 1:
            losses = torch.tensor([row["loss"] for row in rows], dtype=torch.float64)
            low, high = (round(max(end.item(), 0.0), 6) for end in mean_interval(losses))
            heads, loss = len(rows[0]["heads"]), round(losses.mean().item(), 6)
            found.append(
                {"heads": heads, "mode": mode, "draws": len(rows), "loss": loss, "interval": [low, high]}
            )
    return found


def _told(group: str, done: Ablation) -> dict[str, Any]:
    told = {
        "group": group,
        "heads": [list(head) for head in done.heads],
        "mode": done.mode,
        "loss": None if done.loss is None else round(done.loss, 6),
        "baseline": round(done.baseline, 6),
    }
    return told if done.reason is None else told | {"reason": done.reason}


def _compositions(
    examined: Decoder, copy: Repeats, sources: list[Head], aims: list[Head]
) -> list[dict[str, Any]]:
    found = ablation.compositions(examined.model, copy, sources, aims)
    found.sort(key=lambda pair: math.inf if math.isnan(pair.keys) else pair.keys - pair.score)
    named = ({"from": list(c.source), "to": list(c.target), **asdict(c)} for c in found)
    return [
        {"from": c["from"], "to": c["to"]}
        | {name: None if math.isnan(c[name]) else _rounded(c[name]) for name in ("score", "keys", "queries")}
        for c in named
    ]


def _lookup(examined: Decoder, rows: Repeats, generator: torch.Generator) -> dict[str, Any]:
    asked = distance.lookup(examined.model, rows, most=ASKED, generator=generator)
    accuracy = None if asked.accuracy is None else _rounded(asked.accuracy)
    return {"accuracy": accuracy, "asked": int(asked.count.sum())} | _falls(asked.right, asked.count)


def _gaps(found: Scan, head: Head) -> dict[str, Any]:
    return {"head": list(head)} | _falls(found.near[head], found.count)


def _falls(total: Tensor, count: Tensor) -> dict[str, Any]:
    told = distance.falls(total, count)
    curves = {name: getattr(told, name) for name in ("by_gap", "distance", "dilution")}
    plain = {
        name: {
            "least": list(curve.least),
            "value": [_rounded(x) for x in curve.value],
            "count": list(curve.count),
        }
        | ({} if curve.held is None else {"held": curve.held})
        for name, curve in curves.items()
    }
    return plain | {"falls_with": told.reason}


def _words(text: Path) -> str:
    """What a text says.

    Raises:
        UsageError: it cannot be read, or there is nothing in it.
    """
    try:
        words = text.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--text {text}", why, "name a UTF-8 text") from error
    if not words.strip():
        raise UsageError(f"--text {text}", "it is empty", "name another")
    return words


def _read(examined: Decoder, text: Path, words: str, length: int) -> Repeats:
    """The first tokens of a text, and what repeats in them.

    Raises:
        UsageError: it gives no tokens of the model, or none of them comes twice.
    """
    if examined.tokenizer is None:
        raise UsageError(
            f"--text {text}", "the checkpoint has no tokenizer that loads", "store one beside it"
        )
    with quiet():
        ids = examined.tokenizer(words)["input_ids"][:length]
    if not ids:
        raise UsageError(f"--text {text}", "the tokenizer finds no tokens in it", "name another")
    rows = len(examined.model.get_input_embeddings().weight)
    if max(ids) >= rows:
        why = f"the tokenizer gives token {max(ids):,}, the model has {rows:,}"
        raise UsageError(f"--text {text}", why, "store the model's own tokenizer beside it")
    known = repeats.from_tokens(torch.tensor([ids])) if len(set(ids)) < len(ids) else None
    usual = (
        None if known is None else known.pairs[:, torch.isin(torch.tensor(ids)[known.pairs[1]], examined.ids)]
    )
    if known is None or usual is None or not usual.shape[1]:
        raise UsageError(f"--text {text}", f"nothing repeats in its {len(ids)} tokens", "name a longer text")
    return Repeats(known.tokens, usual, known.copied)
