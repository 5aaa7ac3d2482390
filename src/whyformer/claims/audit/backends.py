"""The claim that every way of computing the same thing gives the same outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from whyformer.claims.audit.consumed import apart, longest, uses_mask, without
from whyformer.claims.audit.dependency import ordinary_length
from whyformer.claims.audit.options import only_the_path
from whyformer.claims.audit.probing import Asked, Draws, Probe, Sizes, pieces, settle
from whyformer.claims.audit.specimens import Decoder, decoder
from whyformer.claims.claim import Claim
from whyformer.finding import Finding
from whyformer.instruments.agreement import Call, Comparison, Place, Run
from whyformer.subjects.subject import PLAIN, Settings

ID = "routing.backends"
LONG = 72
"""The longest input: past the chunks of 16, 32 and 64 in which parallel forms are commonly computed."""


def backends(asked: Asked, generator: torch.Generator) -> Finding:
    """routing.backends: each backend, and each option that only changes the path, against the plain call."""
    return apart(ID, asked, lambda: _backends(asked))


def _backends(asked: Asked) -> Finding:
    traits = asked.examiner.subject.traits
    ways = [Settings(backend=backend) for backend in traits.backends]
    ways += [Settings(options=((n, not default),)) for n, default in traits.options if only_the_path(n)]
    if not ways:
        return without(ID, asked, "it offers one way of computing its outputs, and no other")
    masked = traits.mask and uses_mask(asked.examiner)
    names = ", ".join(f"{k} {v}" for way in ways for k, v in way.words().items())
    return settle(ID, asked, _probes(asked, ways, masked), f"{names} against the plain call, {{n}} ways")


_PLAIN, _LEFT, _RIGHT, _CACHED = range(4)
_KINDS = ("plain", "padded on the left", "padded on the right", "decoded through the cache")


def _real(sizes: Sizes) -> list[Place]:
    """The places that are no padding: row b has (b + 1) times ``pads`` of it."""
    length, pads = sizes["length"], sizes["pads"]
    rows = [(b, pads * (b + 1)) for b in range(sizes["batch"])]
    if sizes["kind"] == _LEFT:
        return [(b, c) for b, padded in rows for c in range(padded, length)]
    return [(b, c) for b, padded in rows for c in range(length - padded)]


def _run(asked: Asked, sizes: Sizes, settings: Settings) -> Run:
    length, batch, kind = sizes["length"], sizes["batch"], sizes["kind"]
    ids = Draws(asked.examiner, sizes["base"]).grid(batch, length)
    if kind == _CACHED:
        steps = range(length - sizes["steps"], length)
        return Run(tuple(Call(part) for part in pieces(ids, steps)), True, settings)
    if kind == _PLAIN:
        return Run((Call(ids),), settings=settings)
    real = set(_real(sizes))
    mask = tuple(tuple(int((b, c) in real) for c in range(length)) for b in range(batch))
    return Run((Call(ids, mask),), settings=settings)


def _probes(asked: Asked, ways: list[Settings], masked: bool) -> Iterator[Probe]:
    examiner = asked.examiner
    traits = examiner.subject.traits

    def against(settings: Settings) -> Any:
        def build(sizes: Sizes, _changed: tuple[int, ...]) -> Comparison | None:
            if sizes["length"] <= max(sizes["steps"], sizes["pads"] * sizes["batch"]):
                return None
            pairs = tuple((place, place) for place in _real(sizes))
            return Comparison(_run(asked, sizes, settings), _run(asked, sizes, PLAIN), pairs)

        return build

    length = ordinary_length(examiner, 24)
    most = length if traits.large else longest(examiner, LONG)
    kinds = [(_PLAIN, length, 1), (_PLAIN, most, 2)]
    kinds += [(_LEFT, length, 2), (_RIGHT, length, 2)] if masked else []
    kinds += [(_CACHED, length, 2)] if traits.cache else []
    for settings in ways:
        for base, (kind, time, batch) in enumerate(kinds):
            sizes = {"length": time, "batch": batch, "kind": kind, "base": base,
                     "pads": min(3, (time - 1) // 2) if kind in (_LEFT, _RIGHT) else 0,
                     "steps": min(3, time - 1) if kind == _CACHED else 0}  # fmt: skip
            least = {"batch": 1, "steps": min(1, sizes["steps"]), "pads": min(1, sizes["pads"]), "length": 1}
            yield Probe(sizes, against(settings), {**settings.words(), "input": _KINDS[kind]}, least)


class _TwoPaths(Decoder):
    """Attention by torch's fused kernel, or by hand."""

    def forward(self, x: Tensor, fused: bool = True) -> Tensor:  # type: ignore[override]
        h = self.embed[x]
        q, k, v = (self.heads(h @ w) for w in (self.q, self.k, self.v))
        if fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            allowed = self.allowed(0, x.shape[1])
            y = functional.softmax(scores.masked_fill(~allowed, -torch.inf), -1) @ v
        return (h + y.transpose(1, 2).flatten(2)) @ self.head


CLAIMS = (
    Claim(
        id=ID,
        sentence="The attention backends that the model offers agree.",
        mathematics="""\
For every input x, backend b and option o that only chooses how to compute: f_b(x) = f(x) and f_o(x) = f(x) at
every real place. It is tried plain, among padding and through the cache, since a mask that is built for one
kernel is often rebuilt for another. What stands at padding is not compared: a row with nothing to see may be
anything. An option counts where its name says that it chooses how to compute or asks for more to be returned;
any other may rightly change the outputs, and is left out.""",
        instrument="agreement of two runs that differ by how they are computed",
        rule="refuted where a real output differs by more than rounding explains; holds where none does; "
        "inapplicable where there is one way only",
        scope=f"sampled: inputs up to {LONG}, one row and two",
        breaks="a window that only one of two paths knows",
        source="the definition of a backend",
        test=backends,
        specimen=decoder(_TwoPaths),
        refuter=decoder(_TwoPaths, window=4),
    ),
)
