"""Which inputs move which outputs: by gradient and by substitution, and frugally on long sequences.

Axes: ``base`` counts the inputs at which a map is examined, ``time`` its positions; a token sequence has no
further axis, a sequence of vectors has ``width``. A map takes ``(batch, time, ...)`` to the same.

Two outputs are compared only where both calls had one shape, so that the same kernels ran: what does not
reach an output leaves it bitwise the same (T0), but for the noise of two equal calls, which is measured.
A reach that is found is certain: one pair of inputs that differ at one position told the outputs apart, or a
gradient was not zero. A reach that is not found is certain only from the structure of the map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from whyformer.errors import UsageError

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Reach:
    """What was found of the inputs that move each output.

    Attributes:
        gradient: the pairs with a gradient that is not zero; all False where the inputs are tokens.
        substitution: the pairs where another input at ``time_in`` changed the output at ``time_out``.
        noise: the largest difference between two equal calls; 0.0 for a map that repeats bitwise.
    """

    gradient: Bool[Tensor, "time_out time_in"]
    substitution: Bool[Tensor, "time_out time_in"]
    noise: float

    @property
    def map(self) -> Bool[Tensor, "time_out time_in"]:
        """Both signals united.

        A gradient misses stationary points and hard choices; a substitution, what it happens to leave equal.
        """
        return self.gradient | self.substitution


def reach(
    f: Map,
    bases: Shaped[Tensor, "base time *width"],
    generator: torch.Generator,
    *,
    vocabulary: int | None = None,
    rows: int | None = None,
) -> Reach:
    """Examine a map at several inputs.

    Args:
        f: the map. Its rows are taken to be apart from each other, unless ``rows`` is 1.
        bases: where to examine it: vectors of float32 or float64, or token ids of int64.
        generator: draws the substitutes and the direction of the gradient.
        vocabulary: how many tokens there are; needed for token ids.
        rows: how many rows one call takes; all of them by default.
    """
    substitutes = substitutes_for(bases, generator, vocabulary)
    repeated = bases.repeat(len(substitutes) // len(bases), *[1] * (bases.dim() - 1))
    found, noise = by_substitution(f, repeated, substitutes, rows=rows)
    if not bases.is_floating_point():
        return Reach(torch.zeros_like(found), found, noise)
    return Reach(by_gradient(f, bases, generator, rows=rows), found, noise)


def substitutes_for(
    bases: Shaped[Tensor, "base time *width"],
    generator: torch.Generator,
    vocabulary: int | None = None,
) -> Shaped[Tensor, "two_bases time *width"]:
    """Two sets of inputs to put in place of those of ``bases``: fresh draws, then copies of the last input.

    The last input is what a head at the last position looks for, so its copy is a match where there was none.
    A token is never drawn as a substitute for itself.

    Raises:
        UsageError: token ids without a vocabulary of at least 2, or beyond it.
    """
    copies = bases[:, -1:].expand_as(bases)
    if bases.is_floating_point():
        fresh = torch.randn(bases.shape, generator=generator, dtype=bases.dtype)
        return torch.cat([fresh, copies])
    if vocabulary is None or vocabulary < 2 or int(bases.max()) >= vocabulary:
        what, why = f"a vocabulary of {vocabulary}", "tokens are replaced by others of the vocabulary"
        raise UsageError(what, why, f"give one of at least {max(2, int(bases.max()) + 1)}")
    step = torch.randint(1, vocabulary, bases.shape, generator=generator)
    return torch.cat([(bases + step) % vocabulary, copies])


def by_gradient(
    f: Map,
    bases: Float[Tensor, "base time width"],
    generator: torch.Generator,
    *,
    rows: int | None = None,
) -> Bool[Tensor, "time_out time_in"]:
    """The pairs where the output has a slope, a number other than zero, at any base.

    It is the slope of the output along a random direction of its width. One backward pass: the batch holds
    each base once for each output.
    """
    count, time = bases.shape[:2]
    with torch.enable_grad():
        # (time_out * base, time_in, width)
        x = bases.detach().repeat(time, 1, 1).requires_grad_()
        y = _call(f, x, rows)
        y = y.reshape(time, count, *y.shape[1:])
        if not y.requires_grad:
            return torch.zeros(time, time, dtype=torch.bool)
        own = torch.stack([y[i, :, i] for i in range(time)])
        direction = torch.randn(own.shape, generator=generator, dtype=own.dtype)
        (slope,) = torch.autograd.grad((own * direction).sum(), x, materialize_grads=True)
    slope = slope.reshape(time, count, time, -1)
    return ((slope != 0) & ~slope.isnan()).any(-1).any(1)


@torch.no_grad()
def by_substitution(
    f: Map,
    bases: Shaped[Tensor, "base time *width"],
    substitutes: Shaped[Tensor, "base time *width"],
    *,
    rows: int | None = None,
) -> tuple[Bool[Tensor, "time_out time_in"], float]:
    """The pairs where ``substitutes[b, j]`` in place of ``bases[b, j]`` changes the output, and the noise."""
    count, time = bases.shape[:2]
    # (base * time_in, time, ...): row (b, j) is base b, with another input at j
    before = bases.repeat_interleave(time, 0)
    after, each = before.clone(), torch.arange(time)
    after.view(count, time, *before.shape[1:])[:, each, each] = substitutes
    y = _call(f, before, rows)
    noise = _apart(y, _call(f, before, rows)).max().item()
    moved = _apart(y, _call(f, after, rows)) > noise
    return moved.view(count, time, time).any(0).T.contiguous(), noise


@dataclass(frozen=True)
class Dependencies:
    """What a frugal search found of the inputs that move one output.

    Attributes:
        positions: the inputs found, in ascending order.
        forwards: how many calls of the map it took.
        noise: the largest difference between two equal calls.
    """

    positions: tuple[int, ...]
    forwards: int
    noise: float


@torch.no_grad()
def dependencies(
    f: Map,
    base: Shaped[Tensor, " time *width"],
    substitute: Shaped[Tensor, " time *width"],
    *,
    output: int = -1,
    candidates: Sequence[int] | None = None,
    limit: int | None = None,
) -> Dependencies:
    """Find the inputs that move one output, in at most k(1 + ⌈log₂ T⌉) + 3 calls for k of T candidates.

    Replace the first m candidates: the output is that of the base at m = 0. Where it is another at m = T,
    bisection ends at an m where it still is the same and at m + 1 is not. Those two inputs differ at one
    position, which therefore moves the output: no assumption is made. Then the rest is searched alike.
    Missed is only what leaves the output equal when replaced together with others, at this base and this
    substitute: chance of measure zero for an analytic map at random inputs, but not for hard choices, so
    try several.

    Args:
        f: the map; it is called with a batch of one row, always of one shape.
        base: the input, vectors or token ids.
        substitute: what is put in place of it.
        output: the position of the output.
        candidates: the positions asked about, ascending; all by default.
        limit: stop when so many are found; 1 gives the earliest input in ⌈log₂ T⌉ + 3 calls.
    """
    rest = list(range(len(base)) if candidates is None else candidates)
    still = f(base[None])[:, output]
    noise = _apart(still[:, None], f(base[None])[:, output][:, None]).item()
    forwards = 2

    def moves(positions: Sequence[int]) -> bool:
        nonlocal forwards
        forwards += 1
        x = base.clone()
        x[positions] = substitute[positions]
        return _apart(still[:, None], f(x[None])[:, output][:, None]).item() > noise

    found: list[int] = []
    while rest and (limit is None or len(found) < limit) and moves(rest):
        same, other = 0, len(rest)
        while other - same > 1:
            middle = (same + other) // 2
            same, other = (same, middle) if moves(rest[:middle]) else (middle, other)
        found.append(rest[same])
        rest = rest[other:]
    return Dependencies(tuple(found), forwards, noise)


def _call(f: Map, x: Tensor, rows: int | None) -> Tensor:
    return f(x) if rows is None else torch.cat([f(part) for part in torch.split(x, rows)])


def _apart(
    a: Shaped[Tensor, "batch time *width"], b: Shaped[Tensor, "batch time *width"]
) -> Float[Tensor, "batch time"]:
    """The largest difference at each position; infinite where one is not a number and the other is."""
    a, b = a.flatten(2) if a.dim() > 2 else a[..., None], b.flatten(2) if b.dim() > 2 else b[..., None]
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a.double() - b.double()).abs().nan_to_num(torch.inf)).amax(-1)
