"""Small readers of four tokens A, B, C, D at five positions: attention only, and a linear readout.

Some are drawn: one layer, one head; one of them is set by hand. Three more are set by hand and do what no
such reader can, each by one thing more: a second head, a shift of the keys by one token, a second layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from whyformer.subjects import biases
from whyformer.subjects.biases import Bias
from whyformer.subjects.mechanisms import Attention

TOKENS, TIME = 4, 5


class Reader(nn.Module):
    """Tokens and positions, added; attention layers, each added to its input; a linear readout.

    Args:
        embedding: one row a token, (token, width).
        positions: one row a position, (time, width).
        layers: the attention.
        readout: one row a token, (token, width).
        norm: whether the last stream is divided by its root mean square.
        shift: what every position takes of its left neighbour, (width, width); nothing where None.
    """

    def __init__(
        self,
        embedding: Float[Tensor, "token width"],
        positions: Float[Tensor, "time width"],
        layers: Sequence[Attention],
        readout: Float[Tensor, "token width"],
        *,
        norm: bool = False,
        shift: Float[Tensor, "width width"] | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Parameter(embedding), nn.Parameter(positions)
        self.layers, self.readout = nn.ModuleList(layers), nn.Parameter(readout)
        self.norm, self.shift = norm, shift

    def embedded(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """What the first layer reads."""
        x = self.embedding[tokens] + self.positions[: tokens.shape[1]]
        if self.shift is None:
            return x
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        return x + before @ self.shift.mT

    def stream(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time width"]:
        """What the readout reads, before the norm."""
        x = self.embedded(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return x

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time token"]:
        """The logits of the next token."""
        x = self.stream(tokens)
        if self.norm:
            x = x / x.square().mean(-1, keepdim=True).sqrt()
        return x @ self.readout.mT


def drawn(generator: torch.Generator, heads: int = 1, dtype: torch.dtype = torch.float64) -> Reader:
    """A reader of one layer: width, sharpness, bias, positions, norm and every weight are drawn."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def below(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    width = 2 * heads * (1 + below(8))
    table = normal(heads, TIME, TIME)
    kinds: tuple[Bias, ...] = (biases.none, biases.causal, biases.alibi(heads), lambda _n: table)
    layer = Attention(
        width,
        heads,
        bias=kinds[below(len(kinds))],
        rotary=1e4 if below(2) else None,
        scale=0.5 + below(6),
        generator=generator,
        dtype=dtype,
    )
    embedding, positions, readout = normal(TOKENS, width), normal(TIME, width), normal(TOKENS, width)
    return Reader(embedding, positions, [layer], readout, norm=bool(below(2)))


# The coordinates of the readers that are set by hand: the token, the token before, the position, the answer.
_TOKEN, _BEFORE, _PLACE, _ANSWER, _WIDTH = 0, 4, 8, 13, 18
_A, _B, _C, _D = range(TOKENS)


def _wired(layers: Sequence[Attention], shift: Tensor | None = None) -> Reader:
    """A reader of one-hot tokens and positions, which reads the answer's coordinates out."""
    every = torch.eye(_WIDTH, dtype=torch.float64)
    embedding, positions, readout = (
        every[start : start + rows].clone()
        for start, rows in ((_TOKEN, TOKENS), (_PLACE, TIME), (_ANSWER, TOKENS))
    )
    return Reader(embedding, positions, layers, readout, shift=shift)


def _blank(heads: int, bias: Bias) -> Attention:
    """A layer with every weight 0 and a scale of 1."""
    # The generator is only what a layer is made with: its weights are set to 0.
    layer = Attention(_WIDTH, heads, bias=bias, scale=1.0, generator=torch.Generator())
    for part in (layer.q, layer.k, layer.v, layer.o):
        nn.init.zeros_(part.weight)
    return layer


@torch.no_grad()
def _copy(layer: Attention, source: int, target: int, tokens: Sequence[int], first: int = 0) -> None:
    """Let a head, whose rows start at ``first``, carry tokens from one block of coordinates to another."""
    for row, token in enumerate(tokens, first):
        layer.v.weight[row, source + token] = layer.o.weight[target + token, row] = 1


@torch.no_grad()
def one_head() -> Reader:
    """One layer, one head, which completes as many of the four as one can: three.

    It looks at the first two places and at its own alike; A and B speak for B, C and D for C, and its own
    place twice for C. So it says B only where both places speak for B.
    """
    layer = _blank(1, biases.causal)
    layer.q.weight[0, _PLACE + TIME - 1] = 1
    layer.k.weight[0, _PLACE : _PLACE + TIME] = torch.tensor([20.0, 20.0, 0.0, 0.0, 20.0])
    layer.v.weight[0, [_TOKEN + _A, _TOKEN + _B]] = 1
    layer.v.weight[1, [_TOKEN + _C, _TOKEN + _D]] = 1
    layer.v.weight[1, _PLACE + TIME - 1] = 2
    layer.o.weight[_ANSWER + _B, 0] = layer.o.weight[_ANSWER + _C, 1] = 1
    return _wired([layer])


@torch.no_grad()
def two_heads() -> Reader:
    """One layer, two heads, each of which copies one place unless an A stands where it looks for one.

    Where an A is at the first position, the answer is at the second; else it is at the fourth. One head
    looks at the fourth place, but more at an A in the first, of which it copies nothing; the other at the
    second, but more at an A in the third. A softmax denominator of its own is what gives each its switch.
    """
    layer = _blank(2, biases.causal)
    # For each head, what the key of each place scores, before an A adds 10.
    places = ((0, -30, -30, 5, -30), (-30, 5, 0, -30, -30))
    for head, scores in enumerate(places):
        first = head * _WIDTH // 2
        layer.q.weight[first, _PLACE + TIME - 1] = 1
        layer.k.weight[first, _TOKEN + _A] = 10
        layer.k.weight[first, _PLACE : _PLACE + TIME] = torch.tensor(scores, dtype=torch.float64)
        _copy(layer, _TOKEN, _ANSWER, (_B, _C), first)
    return _wired([layer])


@torch.no_grad()
def _match(layer: Attention) -> None:
    """Let the query of a token look for keys that came after the same token, and copy what stands there."""
    for token in range(TOKENS):
        layer.q.weight[token, _TOKEN + token] = 1
        layer.k.weight[token, _BEFORE + token] = 20
    _copy(layer, _TOKEN, _ANSWER, (_B, _C))


@torch.no_grad()
def shifted_keys() -> Reader:
    """One layer, one head, and keys that know the token before: the shift is part of the architecture."""
    layer = _blank(1, biases.causal)
    _match(layer)
    shift = torch.zeros(_WIDTH, _WIDTH, dtype=torch.float64)
    shift[_BEFORE : _BEFORE + TOKENS, _TOKEN : _TOKEN + TOKENS] = torch.eye(TOKENS)
    return _wired([layer], shift)


@torch.no_grad()
def two_layers() -> Reader:
    """Two layers of one head: the first writes the token before into each position, the second matches."""
    previous, match = _blank(1, biases.causal), _blank(1, biases.causal)
    for place in range(1, TIME):
        previous.q.weight[place, _PLACE + place] = 1
        previous.k.weight[place, _PLACE + place - 1] = 20
    for token in range(TOKENS):
        previous.v.weight[token, _TOKEN + token] = previous.o.weight[_BEFORE + token, token] = 1
    _match(match)
    return _wired([previous, match])
