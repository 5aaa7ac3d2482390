"""The pictures of the story: computed from the specimens themselves, never drawn from memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rich.text import Text

from whyformer.claims.claim import generator_for
from whyformer.instruments import rounding, signal
from whyformer.instruments.reach import reach
from whyformer.instruments.symmetry import group
from whyformer.report.pictures import bars, curves, reach_maps
from whyformer.subjects import biases
from whyformer.subjects.mechanisms import Attention, Stack
from whyformer.subjects.recurrent import LSTM, Cell, DiagonalCell, VanillaRNN

WIDTH = 4
GAP = 128
GAPS = range(3, GAP, 4)
"""Every fourth gap is drawn, 32 glyphs in all; index g − 1 holds gap g, so the last is the gap of 128."""


def one_hop(seed: int) -> Text:
    """What one layer of attention reaches: full, causal, and in a window of 3."""
    kinds = {"full": biases.none, "causal": biases.causal, "window of 3": biases.window(3)}
    return reach_maps({name: _reach(seed, 1, bias) for name, bias in kinds.items()})


def window_depth(seed: int) -> Text:
    """What a window of 3 reaches through one layer to four."""
    names = ("1 layer", "2 layers", "3 layers", "4 layers")
    return reach_maps({name: _reach(seed, int(name[0]), biases.window(3)) for name in names})


def gap_free(seed: int) -> Text:
    """The weight of one match among 32 keys, moved from right before the query to the farthest gap."""
    keys, generator = 32, generator_for(seed, "lab/gap-free")
    plain = Attention(WIDTH, generator=generator)
    falling = Attention(WIDTH, bias=lambda n: biases.alibi(8)(n)[:1], generator=generator)  # slope 1/2
    falling.load_state_dict(plain.state_dict())
    others = torch.randn(keys, WIDTH, dtype=torch.float64, generator=generator)
    match, query = torch.randn(2, 1, WIDTH, dtype=torch.float64, generator=generator)
    places = range(keys, -1, -1)
    x = torch.stack([torch.cat([others[:at], match, others[at:], query]) for at in places])
    rows = {
        name: [layer.weights(x)[row, 0, -1, at].item() for row, at in enumerate(places)]
        for name, layer in {"no positions": plain, "ALiBi": falling}.items()
    }
    top = max(max(weights) for weights in rows.values())
    return curves(rows, floor=top * 1e-6, ceiling=top, ends=f"at gap {keys + 1}")


def fading(seed: int) -> Text:
    """What is left of a signal in two vanilla nets, a contractive one and one that keeps lengths."""
    generator = generator_for(seed, "lab/fading")
    return _fade(
        seed,
        {
            "contractive, 0.9": VanillaRNN(WIDTH, 0.9, generator=generator),
            "orthogonal, 1.0": VanillaRNN(WIDTH, 1.0, linear=True, generator=generator),
        },
    )


def not_fading(seed: int) -> Text:
    """What is left of a signal in nets that keep it, beside their twins that do not."""
    generator = generator_for(seed, "lab/not-fading")

    def decay(a: float) -> DiagonalCell:
        return DiagonalCell(torch.full((WIDTH,), a), generator=generator)

    return _fade(
        seed,
        {
            "LSTM, half open": LSTM(WIDTH, forget_bias=0.0, generator=generator),
            "LSTM, open": LSTM(WIDTH, forget_bias=50.0, generator=generator),
            "state space, 0.9": decay(0.9),
            "state space, 1": decay(1.0),
            "expanding, 1.1": VanillaRNN(WIDTH, 1.1, linear=True, generator=generator),
        },
    )


def symmetry_groups(seed: int) -> Text:
    """How many of the 120 orders of 5 tokens a layer commutes with, bias by bias, tried one by one."""
    kinds = {
        "no mask": biases.none,
        "two documents": biases.documents((2, 3)),
        "prefix of 3": biases.prefix(3),
        "ALiBi both ways": biases.alibi(2, causal=False),
        "causal mask": biases.causal,
    }
    generator = generator_for(seed, "lab/groups")
    x = torch.randn(5, WIDTH, dtype=torch.float64, generator=generator)
    orders = {}
    for name, bias in kinds.items():
        layer = Attention(WIDTH, heads=2, bias=bias, generator=generator)
        orders[name] = group(layer, x, 2 * rounding.forward(layer, x[None]).max().item()).order
    return bars(orders, most=120)


def _fade(seed: int, cells: dict[str, Cell]) -> Text:
    x = torch.randn(1, GAP, WIDTH, dtype=torch.float64, generator=generator_for(seed, "lab/signal"))
    rows = {}
    for name, cell in cells.items():
        left = signal.norms(signal.gap_jacobians(cell, x, x.new_zeros(1, cell.state)))[:, 0]
        rows[name] = left[list(GAPS)].tolist()
    return curves(rows, floor=1e-9, ceiling=1e6, ends=f"at gap {GAP}")


def _reach(seed: int, layers: int, bias: biases.Bias, time: int = 12) -> list[list[bool]]:
    generator = generator_for(seed, f"lab/reach/{layers}")
    stack = Stack(WIDTH, layers, bias=bias, generator=generator)
    x = torch.randn(1, time, WIDTH, dtype=torch.float64, generator=generator)
    return reach(stack, x, generator).map.tolist()


BY_CLAIM: dict[str, Callable[[int], Text]] = {
    "routing.one-hop": one_hop,
    "routing.window-depth": window_depth,
    "routing.gap-free": gap_free,
    "routing.fading": fading,
    "order.bias-automorphisms": symmetry_groups,
}
"""The claims whose step has a picture, with what draws it from a seed."""
