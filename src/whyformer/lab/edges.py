"""Where the two facts end: each edge computed, then shown on both of its sides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from rich.text import Text

from whyformer.claims.claim import Trial
from whyformer.claims.routing.dilution import edge
from whyformer.finding import Verdict
from whyformer.lab import drawings
from whyformer.lab.scene import Scene, judged
from whyformer.report.pictures import spark
from whyformer.report.terminal import comparison
from whyformer.subjects.handed_values import HandedValues
from whyformer.subjects.induction import InductionCircuit

SHARPNESS = 5.0


def edges(trials: Mapping[str, Trial], seed: int) -> Iterator[Scene]:
    """Dilution, twins, masks, recurrent nets that remember, and what one layer cannot do."""
    yield _dilution()
    yield _twins()
    yield _from_claim(
        "A causal mask already orders: no positions are needed.",
        trials["order.causal-mask"],
        "Token i sees i + 1 tokens, so no two places look alike: decoders without positions can work.",
    )
    yield _from_claim(
        "Some recurrent nets do not fade: what limits them is the size of their state.",
        trials["routing.capacity"],
        "How much of a signal is left, on a logarithmic scale: fading is a matter of gain and gates. But a "
        "state of b bits tells 2^b pasts apart, however well it keeps them.",
        drawings.not_fading(seed),
    )
    yield _from_claim(
        "One layer with one head cannot do the lookup; two layers can.",
        trials["routing.one-layer-limit"],
        "The old head seemed to, because someone else had moved its values. With nothing handed over, four "
        "sequences suffice to contradict any choice of weights.",
    )


def shares(rivals: int, sharpness: float) -> tuple[float, float]:
    """What the old head copies: the share of the right token, and of a wrong one that follows every rival.

    The sequence is ``0 1 2 2 … 2 0``, with ``rivals`` tokens that 2 follows; the answer is 1.
    """
    tokens = torch.tensor([0, 1] + [2] * rivals + [0])
    head = HandedValues(3, sharpness)
    right, wrong = head.logits(head.one_hot(tokens), tokens)[1:].tolist()
    return right, wrong


def _dilution() -> Scene:
    """The worst case: all rivals agree on one wrong token, so they win when there are e^Δ of them."""
    last = edge(SHARPNESS)
    inside, outside = shares(last, SHARPNESS), shares(last + 1, SHARPNESS)
    counts = [round(10 ** (exponent / 10)) for exponent in range(37)]
    curve = spark([shares(count, SHARPNESS)[0] for count in counts], 0, 1)
    drawing = Text.assemble(
        ("rivals  1         10        100       1,000   \n", "dim"),
        ("share   ", "dim"),
        (curve, "cyan"),
        "  of the right token\n",
        ("        " + " " * round(10 * math.log10(last)) + "↑", "yellow"),
        f" {last}",
    )
    return Scene(
        f"Softmax dilutes: if all rivals say the same wrong token, a match that scores {SHARPNESS:g} more "
        f"bears {last} of them, not {last + 1}.",
        Verdict.HOLDS if inside[0] > inside[1] and outside[0] < outside[1] else Verdict.REFUTED,
        "Any distance, yes; any length, no. Every token takes a little of the weight, and together they win.",
        (
            (
                "computed",
                f"the right token wins against fewer than e^{SHARPNESS:g} = {math.exp(SHARPNESS):.2f}.",
            ),
            (
                "shown",
                f"{last} rivals: {inside[0]:.4f} right, {inside[1]:.4f} wrong. {last + 1} rivals: "
                f"{outside[0]:.4f} right, {outside[1]:.4f} wrong.",
            ),
            ("sharper", f"the old head's match scores 30: it bears {math.exp(30):.2e} rivals."),
        ),
        drawing,
    )


def _twins() -> Scene:
    none, several = torch.tensor([4, 7, 2, 9]), torch.tensor([3, 1, 3, 1, 3, 2, 3])
    head = HandedValues(10)
    guess = head.logits(head.one_hot(none), none)
    mixed = head.logits(head.one_hot(several), several)
    recent, all_twins = InductionCircuit(10, 16), InductionCircuit(10, 16, recency=0)
    answers = [
        int(circuit(tokens[None])[0, -1].argmax())
        for circuit, tokens in ((recent, none), (recent, several), (all_twins, several))
    ]
    return Scene(
        "No twin, or several: whoever looks up has to say what then.",
        Verdict.HOLDS if answers == [10, 2, 1] and int(mixed.argmax()) == 1 else Verdict.REFUTED,
        "Softmax always sums to 1, so a head that finds nothing still answers, unless it is given "
        "something else to look at.",
        (
            (
                "no twin",
                f"4 7 2 9: the old head still copies something: {guess.max():.0%} each of "
                f'{_listed(guess)}. The circuit looks at its start token, which says "no earlier twin".',
            ),
            (
                "several",
                f"3 1 3 1 3 2 3: the old head mixes what followed them, {mixed[1]:.0%} 1 and "
                f"{mixed[2]:.0%} 2. The circuit leans to the recent: {answers[1]}; without that lean it "
                f"copies what most were followed by: {answers[2]}.",
            ),
        ),
    )


def _listed(shares: torch.Tensor) -> str:
    return ", ".join(str(token) for token, share in enumerate(shares.tolist()) if share > 0.01)


def _from_claim(sentence: str, trial: Trial, said: str, drawing: Text | None = None) -> Scene:
    """An edge that a claim has shown already: its figures in one line, and where to read more."""
    finding = judged(trial)
    shown = finding.reason or comparison(finding)
    return Scene(
        sentence,
        finding.verdict,
        said,
        (("shown", shown),),
        drawing,
        finding.claim,
    )
