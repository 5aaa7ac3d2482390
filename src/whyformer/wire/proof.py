"""The proof that a circuit does exact induction, or looks up twice, from its weights alone.

The argument, step by step; each step is checked, and the first that fails is told.

1. Tokens. A coordinate of the embedding is a constant, a sign of the word, or a flag of the first token. All
   rows have one norm, so that the first norm of the model divides by a known power of two.
2. Layer 0. Its queries and keys read constants or positions only, so its scores are the same for all
   sequences: all distances are enumerated. The token before beats all others by more than 104 once rounding
   is taken off, so what is copied is that token's code, exactly. The first position copies its own.
3. It is copied to coordinates that were 0, and the residual stream has one norm again.
4. Layer 1. Content rows compare the query's word with the word before the key; one row raises the first
   token; a pair of constants may add a ramp. Over all words and all distances, a twin's successor beats the
   first token, and that one every other key, by more than 104 once rounding is taken off.
5. So what is copied is the code of the token after the twin, or of the first token where there is no twin;
   under ``recent`` older twins weigh a little. Its logit stands above all others by what codes differ.

Two hops. Layer 1 writes what it copies to coordinates that were 0, and layer 2 is layer 1 again, with the
word that was found in place of the query's own. Where several twins agree, or older ones weigh a little, what
is written is right but for a small *blur*, and so is the norm after it; both are in the rounding. Where twins
disagree under ``agree`` the codes may cancel: such a key is louder, at most by what the norm then lacks.

The copy. Layer 0 looks back by another number than 1, and writes for the logits: steps 1, 2 and 5.

The copy after a separator. Step 1 finds a mark beside the word, which the first token and the separator have.
Layer 0 looks at the latest of those, layer 1 at the block of positions that holds the place to copy, layer 2
at that place (``placing``); the first two copy digits of a position in place of a code: steps 1, 3 and 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whyformer.wire import stream
from whyformer.wire.circuit import Circuit, Traits
from whyformer.wire.family import UnfitError
from whyformer.wire.layer import Blur, Layer, angles
from whyformer.wire.logits import logit_margin
from whyformer.wire.looking import looking_back
from whyformer.wire.matching import matching, mixed, words
from whyformer.wire.placing import latest, placed

LAYERS = {"copy": 1, "recent": 2, "agree": 2, "two-hop": 3, "two-hop-agree": 3, "copy-separator": 3}
"""The rules by name, and how many layers each has."""


@dataclass(frozen=True)
class Proof:
    """What was proved.

    Attributes:
        rule: a name in LAYERS.
        logit_margin: by how much the right logit stands above all others, at least.
        layers: for each layer, what it does and its margins.
    """

    rule: str
    logit_margin: float
    layers: list[dict[str, Any]]


def prove(circuit: Circuit, traits: Traits) -> Proof:
    """All five steps; one layer is the copy, two are induction, three are two hops.

    Raises:
        UnfitError: a step fails; the message says which, and where.
    """
    number = len(circuit.heads)
    if number not in LAYERS.values():
        raise UnfitError(f"{number} layers: a wired model has 1 to {max(LAYERS.values())}")
    turning, blur = angles(circuit, traits), Blur()
    layer = Layer.of(0, circuit, traits, turning, stream.tokens(circuit, traits.layer_norm), blur)
    if bool(layer.before.mark.any()):
        return _separator(layer)
    offset, back = looking_back(layer)
    if number == 1:
        told = [back | words(layer)]
        return Proof("copy", logit_margin(layer, told[0]), told)
    if offset != 1:
        raise UnfitError(f"layer 0: it looks {offset} back, not at the previous token")
    layer = Layer.of(1, circuit, traits, turning, layer.after(), blur)
    told = [back, matching(layer)]
    if number == 3:
        if traits.query_norm:
            raise UnfitError("layer 2: a norm on queries is not exact behind a head that may mix")
        after = layer.after(found=True)
        blur = mixed(layer, after, told[1])
        layer = Layer.of(2, circuit, traits, turning, after, blur)
        told.append(matching(layer))
    recent = {each["recency_step"] is not None for each in told[1:]}
    if len(recent) > 1:
        raise UnfitError("layer 2: of several twins it takes others than layer 1 does")
    named = [rule for rule, layers in LAYERS.items() if layers == number]
    return Proof(named[True not in recent], logit_margin(layer, told[-1]), told)


def _separator(layer: Layer) -> Proof:
    """The copy after a separator, from its layer 0."""
    circuit, traits = layer.circuit, layer.traits
    if len(circuit.heads) != LAYERS["copy-separator"]:
        raise UnfitError(f"{len(circuit.heads)} layers: the copy after a separator has 3")
    told, places = [latest(layer)], None
    for index in (1, 2):
        after = layer.after(found=index == 2, digits=True)
        layer = Layer.of(index, circuit, traits, layer.turning, after, layer.blur)
        places, margins = placed(layer, places)
        told.append(margins)
    told[-1] |= words(layer)
    return Proof("copy-separator", logit_margin(layer, told[-1]), told)
