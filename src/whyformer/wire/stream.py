"""What the residual stream holds before each layer, found from the weights and checked.

Steps 1 and 3 of the proof: that every vector of a layer has one norm, whatever the tokens are, and that the
first head only adds, on coordinates that were 0, the code of the token that it looks at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from whyformer.wire.circuit import Circuit, Head, power_of_two
from whyformer.wire.family import FIRST, SEPARATOR, UnfitError


@dataclass(frozen=True)
class Stream:
    """The vectors before a layer: a constant, the present token's code, and that of the token before.

    Attributes:
        word, flag: coordinates of the present token's code.
        before: for each of them, the coordinate that it was copied to from one back; −1 where it was not.
        found: likewise, from where a twin's successor was found.
        constant: what all vectors share, 0 elsewhere.
        code: the present token's part, for the first token and for one word.
        copied: the earlier token's part, for the first token and for one word.
        fetched: the part of the token that was found, likewise.
        taken: coordinates that are in use.
        digits: the coordinates of learned positions.
        mark: those of the mark that the first token and the separator have, where there is one.
        signs: the size of digits, of their copies, and of the mark; 0 elsewhere.
        square: the sum of squares of any vector.
    """

    word: Int[Tensor, " length"]
    flag: Int[Tensor, " flags"]
    before: Int[Tensor, " width"]
    found: Int[Tensor, " width"]
    constant: Float[Tensor, " width"]
    code: Float[Tensor, "2 width"]
    copied: Float[Tensor, "2 width"]
    fetched: Float[Tensor, "2 width"]
    taken: Bool[Tensor, " width"]
    digits: Bool[Tensor, " width"]
    mark: Bool[Tensor, " width"]
    signs: Float[Tensor, " width"]
    square: float

    @property
    def size(self) -> float:
        """The size of a sign of the present token's word."""
        return float(self.code[1].abs().max())

    @property
    def ratio(self) -> float:
        """The root mean square over the smallest entry."""
        entries = torch.cat([self.constant, self.code.flatten(), self.signs]).abs()
        return math.sqrt(self.square / len(self.constant)) / float(entries[entries > 0].min())

    def scale(self, where: str, eps: float) -> float:
        """What the norm multiplies by, a power of two."""
        mean = self.square / len(self.constant)
        if not power_of_four(mean):
            raise UnfitError(f"{where}: the vectors' mean square is {mean:g}, which is no power of four")
        if float(torch.tensor(mean + eps, dtype=torch.float32)) != mean:
            raise UnfitError(f"{where}: the norm's eps is not drowned by the vectors")
        return 1 / math.sqrt(mean)


def power_of_four(value: float) -> bool:
    """Whether the value is a power of four, so that its root is a power of two."""
    mantissa, exponent = math.frexp(value)
    return mantissa == 0.5 and exponent % 2 == 1


def tokens(circuit: Circuit, layer_norm: bool) -> Stream:
    """Step 1: coordinates of the embedding are constants, signs of words, the first token's flags or marks.

    A mark has one sign for the first token and the separator, and the other for all else.
    """
    table, where = circuit.embed, "the embedding"
    typical = table[1:].median(0).values
    share = (table[1:] == typical).double().mean(0)
    mark = (table[0] != 0) & (table[1] == -table[0])
    word = (typical != 0) & (share < 0.9) & ~mark
    flag = (typical == 0) & (table[0] != 0)
    constant = torch.where(word | flag | mark, 0, typical)
    rest = table - constant
    rest[:, word] = 0
    rest[0, flag] = 0
    rest[:, mark] += table[0, mark]
    rest[[[FIRST], [SEPARATOR]], mark] -= 2 * table[0, mark]
    _all_zero(rest, where, "differs from the other ids at coordinate")
    if not bool(word.any()) or not bool(flag.any()):
        raise UnfitError(f"{where}: it holds no words, or no flag of the first token")
    signs = table[:, word]
    size = float(signs[1:].abs().median())
    off = signs.abs() - size
    off[0] = signs[0]
    _all_zero(off, where, "is not made of signs: number")
    code = torch.zeros(2, table.shape[1]).double()
    code[0, flag], code[1, word] = table[0, flag], table[1, word]
    if code[0].square().sum() != code[1].square().sum() or not power_of_two(
        torch.cat([code, constant[None], table[:1]])
    ):
        raise UnfitError(f"{where}: id 0 has another norm than the words, or an entry is no power of two")
    if layer_norm and (bool((signs.sum(1) != 0).any()) or float(table[0].sum()) or float(constant.sum())):
        raise UnfitError(f"{where}: its rows do not sum to 0")
    digits, square = _positions(circuit.positions, layer_norm, table.shape[1])
    taken = word | flag | mark | (constant != 0)
    if bool((taken & digits).any()):
        raise UnfitError("the positions: they share a coordinate with the embedding")
    before = torch.full((table.shape[1],), -1)
    signs = torch.where(mark, table[0].abs(), 0)
    square += float((constant.square() + code[1].square() + signs.square()).sum())
    if circuit.positions is not None:
        signs += circuit.positions[0].abs()
    found = Stream(
        word.nonzero().squeeze(1),
        flag.nonzero().squeeze(1),
        before,
        before.clone(),
        constant,
        code,
        torch.zeros_like(code),
        torch.zeros_like(code),
        taken | digits,
        digits,
        mark,
        signs,
        square,
    )
    _exact(found, where)
    return found


def _all_zero(table: Tensor, where: str, what: str) -> None:
    """Fail at the first entry that is not 0, by its row."""
    if bool((table != 0).any()):
        row, column = (table != 0).nonzero()[0].tolist()
        raise UnfitError(f"{where}: id {row} {what} {column}")


def _positions(positions: Tensor | None, layer_norm: bool, width: int) -> tuple[Tensor, float]:
    """Learned positions are signs of one size: where they stand, and their sum of squares."""
    if positions is None:
        return torch.zeros(width, dtype=torch.bool), 0.0
    used = (positions != 0).any(0)
    sizes = positions[:, used].abs()
    size = float(sizes.median()) if sizes.numel() else 0.0
    if bool((sizes != size).any()):
        row = int((sizes != size).any(1).nonzero()[0])
        raise UnfitError(f"the positions: row {row} is not made of signs")
    if not power_of_two(torch.tensor(size)) or (layer_norm and bool((positions.sum(1) != 0).any())):
        raise UnfitError("the positions: a size is no power of two, or a row does not sum to 0")
    return used, float(used.sum()) * size**2


def _exact(stream: Stream, where: str) -> None:
    """A sum of squares, all multiples of the smallest, is exact in float32 below 2^24 of those."""
    entries = torch.cat([stream.constant, stream.code.flatten(), stream.copied.flatten()])
    entries = torch.cat([entries, stream.fetched.flatten()])
    if stream.square / float(entries[entries != 0].abs().min()) ** 2 >= 2**24:
        raise UnfitError(f"{where}: a sum of squares is not exact in float32")


def moves(head: Head, scale: float, where: str) -> dict[int, tuple[int, float]]:
    """What a head that looks at one position adds: for each coordinate, where it is read, and the factor.

    Each row of the value reads one coordinate, each coordinate is written from one row, and all weights are
    powers of two: nothing is rounded.
    """
    if int((head.v != 0).sum(1).max()) > 1 or int((head.o != 0).sum(1).max()) > 1:
        raise UnfitError(f"{where}: its value or output mixes coordinates")
    if not power_of_two(head.v) or not power_of_two(head.o):
        raise UnfitError(f"{where}: a weight of its value or output is no power of two")
    if not torch.equal((head.v != 0).any(1), (head.o != 0).any(0)):
        raise UnfitError(f"{where}: a row of its value is not written, or not read")
    both = head.o @ head.v * scale
    found = {}
    for to, source in (both != 0).nonzero().tolist():
        found[to] = (source, float(both[to, source]))
    return found


def after_copy(
    stream: Stream,
    head: Head,
    scale: float,
    layer_norm: bool,
    where: str,
    *,
    found: bool = False,
    digits: Tensor | None = None,
) -> Stream:
    """Step 3: the stream after a code was added: that of the token before, or of the one that was found.

    Or, where ``digits`` are given, which are the learned positions, some digits of the position looked at. It
    is exact where one position was looked at alone; where several were, ``scores.blurred`` bounds the rest.
    """
    parts = stream.code if digits is None else torch.where(stream.digits, stream.signs, 0).expand(2, -1)
    what = "a code" if digits is None else "a position"
    before = torch.full_like(stream.before, -1)
    copied = torch.zeros_like(stream.copied)
    constant, taken = stream.constant.clone(), stream.taken.clone()
    factors = set()
    for to, (source, factor) in moves(head, scale, where).items():
        if taken[to]:
            raise UnfitError(f"{where}: it writes to coordinate {to}, which is in use")
        taken[to] = True
        if stream.constant[source] != 0:
            constant[to] = stream.constant[source] * factor
        elif bool((parts[:, source] != 0).any()) and before[source] < 0:
            before[source] = to
            copied[:, to] = parts[:, source] * factor
            factors.add(factor)
        else:
            raise UnfitError(f"{where}: it copies coordinate {source}, which is no part of {what}")
    codes = torch.cat([stream.word, stream.flag])
    if len(factors) != 1 or (digits is None and bool((before[codes] < 0).any())):
        raise UnfitError(f"{where}: it does not copy every coordinate of {what} alike")
    uneven = digits is not None and bool((digits[:, before >= 0].sum(1) != 0).any())
    if layer_norm and (float(constant.sum()) != 0 or uneven):
        raise UnfitError(f"{where}: what it writes does not sum to 0")
    square = stream.square - float(stream.constant.square().sum()) + float(constant.square().sum())
    made: dict[str, Tensor] = {"found" if found else "before": before}
    if digits is None:
        made["fetched" if found else "copied"] = copied
    else:
        made["signs"] = stream.signs + copied[1]
    square += float(copied[1].square().sum())
    after = replace(stream, **made, constant=constant, taken=taken, square=square)
    _exact(after, where)
    return after


def normed(head: Head, stream: Stream, scale: float, eps: float, where: str) -> Head:
    """Queries and keys with the head's own norms taken in: each row over their common root mean square.

    A sign enters a square by its size alone, where no row mixes signs: one word stands for all. A key at
    position 0 has the first token as its own and before it; at position 1, before it only.
    """
    if head.q_gain is None or head.k_gain is None:
        return head
    made, holds = {}, stream.constant != 0
    holds |= (torch.cat([stream.code, stream.copied]) != 0).any(0)
    for name, weight, gain in (("q", head.q, head.q_gain), ("k", head.k, head.k_gain)):
        signs = torch.cat([stream.word, stream.before[stream.word].clamp(min=0)])
        mixed = (weight != 0).sum(1) * (weight[:, signs] != 0).any(1)
        cases = ((1, 1),) if name == "q" else ((1, 1), (1, 0), (0, 0))
        squares = {
            float(
                (weight @ (stream.constant + stream.code[own] + stream.copied[old]) * scale).square().mean()
            )
            for own, old in cases
        }
        mean = squares.pop()
        if bool(weight[:, ~holds].any()) or bool(gain[~weight.any(1)].any()):
            raise UnfitError(f"{where}: its {name} norm has a gain, or a weight, where nothing is read")
        if int(mixed.max()) > 1 or squares or not power_of_four(mean) or not power_of_two(weight):
            raise UnfitError(f"{where}: its {name} norm differs between tokens, or rounds")
        if float(torch.tensor(mean + eps, dtype=torch.float32)) != mean:
            raise UnfitError(f"{where}: the eps of its {name} norm is not drowned")
        made[name] = weight * (gain / math.sqrt(mean))[:, None]
    return replace(head, q=made["q"], k=made["k"])
