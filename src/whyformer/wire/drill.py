"""``drill``: play sequences with a promised answer through an engine, and show the smallest that it fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from whyformer.errors import UsageError
from whyformer.wire import folder as disk
from whyformer.wire.cases import Draws, cases, twins
from whyformer.wire.engines import Engine, find
from whyformer.wire.family import UnfitError
from whyformer.wire.shrink import Failure, fault, play, shrink
from whyformer.wire.wired import Wired

SCHEMA = "whyformer/drill/1"
Progress = Callable[[str], None]


@dataclass
class Score:
    """How many tokens were asked and how many were right, by gap, by length and by the rule's clause."""

    by: dict[str, dict[str, Counter[str]]] = field(
        default_factory=lambda: {"gap": {}, "length": {}, "rule": {}}
    )
    asked: int = 0
    right: int = 0

    def add(self, wired: Wired, sequence: Sequence[int], right: bool) -> None:
        """Count the token that follows a sequence."""
        found = twins(wired, sequence)
        gap = _span(len(sequence) - 1 - found[-1]) if found else "no twin"
        for name, bucket in (
            ("gap", gap),
            ("length", _span(len(sequence))),
            ("rule", _clause(wired, sequence, found)),
        ):
            self.by[name].setdefault(bucket, Counter()).update(asked=1, right=int(right))
        self.asked += 1
        self.right += right

    def table(self, name: str) -> list[dict[str, Any]]:
        """Its rows, from the smallest span to the largest; all that is asked is promised."""
        rows = sorted(self.by[name].items(), key=lambda row: (not row[0][0].isdigit(), _low(row[0]), row[0]))
        return [{name: bucket, "promised": tally["asked"], "right": tally["right"]} for bucket, tally in rows]


def drill(
    folder: Path | str,
    engine: str | Engine = "transformers",
    *,
    length: int | None = None,
    count: int = 200,
    seed: int = 31,
    chunk: int | None = None,
    words: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Play sequences through an engine, and hold what it answers to the certificate.

    Args:
        folder: a wired folder; ``certify`` proves that its certificate holds.
        engine: a name that ``engines.find`` knows, or a function.
        length: the longest sequence; by default the certificate's context, and one less for a server, which
            counts the answer too.
        count: how many sequences.
        seed: what every draw follows from.
        chunk: see ``engines.find``.
        words: see ``engines.find``.
        progress: told what is being done.

    Returns:
        The report, plain data by the schema ``whyformer/drill/1``. Its ``failure`` is None where every
        promise was kept.

    Raises:
        UsageError: the folder, the engine or a number cannot be used.
        MissingExtraError: a library that is needed is not installed.
    """
    wired = Wired.open(folder)
    server = isinstance(engine, str) and engine.startswith("openai:")
    longest = wired.context - server
    if longest < 4:
        why = (
            f"a server counts the answer into its context of {wired.context}, and less than 4 tokens are left"
        )
        raise UsageError(str(folder), why, "wire one of a longer context")
    length = longest if length is None else length
    if not 4 <= length <= wired.context:
        why = f"sequences have 4 to {wired.context:,} tokens, which the certificate covers"
        raise UsageError(f"--length {length}", why, f"try --length {longest}")
    if count < 1:
        raise UsageError(f"--count {count}", "it is 1 or more", "leave it out")
    name = engine if isinstance(engine, str) else getattr(engine, "__name__", "engine")
    call = find(engine, wired, chunk=chunk, words=words) if isinstance(engine, str) else engine
    say = progress or (lambda _: None)
    draws = Draws(wired, _nearest(wired), torch.Generator().manual_seed(seed))
    drawn = cases(wired, draws, length=length, count=count)
    score, first = Score(), None
    for done, (case, heard) in enumerate(play(call, drawn)):
        say(f"{done + 1:,} of {len(drawn):,} sequences")
        failure = fault(case, heard)
        last = case if failure is None else failure.case
        for i in range(len(last.answers)):
            wrong = failure is not None and i == len(last.answers) - 1
            score.add(wired, [*last.prompt, *last.answers[:i]], not wrong)
        if failure is not None and (first is None or failure.length < first.length):
            first = failure
    smallest = first
    if first is not None:
        say("making the failure smaller")
        smallest = shrink(wired, call, first)
    say("")
    return {
        "schema": SCHEMA,
        "folder": str(folder),
        "engine": name,
        "seed": seed,
        "length": length,
        "sequences": len(drawn),
        "certificate": {
            "context": wired.context,
            "rule": wired.rule,
            "dtype": wired.dtype,
            "logit_margin": wired.margin,
        },
        "promised": score.asked,
        "right": score.right,
        **{f"by_{table}": score.table(table) for table in score.by},
        "failure": None if smallest is None or first is None else _told(wired, smallest, first.length),
    }


def lines(report: dict[str, Any]) -> list[str]:
    """A report in words."""
    told, failure = report["certificate"], report["failure"]
    made = [
        f"{report['engine']}: {report['right']:,} of {report['promised']:,} promised tokens right, in "
        f"{report['sequences']:,} sequences of up to {report['length']:,} tokens.",
        f"The certificate promises them all, up to {told['context']:,} tokens: rule {told['rule']}, "
        f"{told['dtype']}, leading by {told['logit_margin']:g} at least.",
    ]
    for name in ("gap", "length", "rule"):
        made.append(f"{'by ' + name:<22}{'promised':>10}{'right':>10}")
        made += [
            f"  {row[name]:<20}{row['promised']:>10,}{row['right']:>10,}" for row in report[f"by_{name}"]
        ]
    if failure is None:
        return [*made, "Every promise was kept."]
    return [
        *made,
        f"The first failure, made smaller: {failure['length']:,} tokens (it had {failure['found_at']:,}), "
        f"{failure['kind'].replace('_', ' ')}, gap {failure['gap'] or 'none'}.",
        f"  prompt   {_short(failure['prompt'])}",
        f"  promised {_short(failure['promised'])}",
        f"  answered {_short(failure['answered'])}"
        + (" (−1 is what is no word of the tokenizer)" if -1 in failure["answered"] else ""),
    ]


def _told(wired: Wired, failure: Failure, found_at: int) -> dict[str, Any]:
    case = failure.case
    sequence = [*case.prompt, *case.answers[:-1]]
    found = twins(wired, sequence)
    return {
        "kind": case.kind,
        "found_at": found_at,
        "length": len(sequence),
        "gap": len(sequence) - 1 - found[-1] if found else None,
        "prompt": list(case.prompt),
        "promised": list(case.answers),
        "answered": list(failure.heard),
    }


def _nearest(wired: Wired) -> Callable[[int], int]:
    """The token whose word is most like another's, from the stored embedding.

    Raises:
        UsageError: the weights are not those of a wired model.
    """
    try:
        circuit, _ = disk.read_circuit(wired.path)
    except UnfitError as error:
        raise UsageError(str(wired.path), str(error), "see 'whyformer certify', or wire it again") from error
    low, high = wired.tokens
    table = circuit.embed[low : high + 1].float()

    def nearest(token: int) -> int:
        products = table @ table[token - low]
        products[token - low] = -torch.inf
        return low + int(products.argmax())

    return nearest


def _span(value: int) -> str:
    """The powers of two that a number lies between: "1", "2-3", "4-7"."""
    low = 1 << (value.bit_length() - 1)
    return f"{low:,}" if low == 1 else f"{low:,}-{2 * low - 1:,}"


def _low(span: str) -> int:
    head = span.split("-")[0].replace(",", "")
    return int(head) if head.isdigit() else 0


def _clause(wired: Wired, sequence: Sequence[int], found: Sequence[int]) -> str:
    """What of the rule the answer rests on."""
    if wired.separator is not None:
        number = sequence.count(wired.separator)
        return ("no separator", "one separator", "several separators")[min(number, 2)]
    if len(found) < 2:
        return "one twin" if found else "no twin"
    return "twins agree" if len({sequence[at + 1] for at in found}) == 1 else "twins differ"


def _short(ids: Sequence[int]) -> str:
    """Ids in a line, the same one many times as "7 (×40)"."""
    said: list[tuple[int, int]] = []
    for token in ids:
        if said and said[-1][0] == token:
            said[-1] = (token, said[-1][1] + 1)
        else:
            said.append((token, 1))
    parts = [str(token) if times == 1 else f"{token} (×{times})" for token, times in said]
    if len(parts) > 60:
        parts = [*parts[:30], f"… {len(parts) - 60} more …", *parts[-30:]]
    return " ".join(parts) or "nothing"
