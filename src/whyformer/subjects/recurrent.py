"""Recurrent cells: vanilla, LSTM, diagonal state space. What they know of the past is their state.

Axes: batch, time, width; ``state`` is what a cell carries from step to step, as wide as ``cell.state``.
Weights are drawn from the generator that is passed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from whyformer.errors import UsageError


def orthogonal(
    width: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "width width"]:
    """A random orthogonal matrix: the Q of a normal matrix, computed in float64."""
    drawn = torch.randn(width, width, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.to(dtype)


def _normal(rows: int, columns: int, generator: torch.Generator, dtype: torch.dtype) -> nn.Parameter:
    """A map whose entries have variance 1/columns, drawn in float64 whatever the dtype."""
    drawn = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return nn.Parameter((drawn / columns**0.5).to(dtype))


class Cell(nn.Module, ABC):
    """A recurrent net, given by one step.

    Attributes:
        width: coordinates of an input, and of an output.
        state: coordinates of a state; the output is the last ``width`` of them.
    """

    width: int
    state: int

    @abstractmethod
    def step(
        self, x: Float[Tensor, "... width"], past: Sequence[Float[Tensor, "... state"]]
    ) -> Float[Tensor, "... state"]:
        """The next state, from the input and the states so far, the latest last."""

    def unroll(
        self, x: Float[Tensor, "... time width"], start: Float[Tensor, "... state"]
    ) -> list[Float[Tensor, "... state"]]:
        """The states from ``start`` on, time + 1 of them."""
        states = [start]
        for now in x.unbind(-2):
            states.append(self.step(now, states))
        return states

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """The outputs of every step, from a state of zeros."""
        start = x.new_zeros(*x.shape[:-2], self.state)
        return torch.stack(self.unroll(x, start)[1:], -2)[..., -self.width :]


class VanillaRNN(Cell):
    """h_t = φ(W h_{t−1} + U x_t), with W = gain·orthogonal, so that every singular value of W is the gain.

    Args:
        width: coordinates of inputs and states.
        gain: below 1 the cell is contractive; at 1, and linear, it keeps lengths; above, it expands.
        linear: φ is the identity instead of tanh.
        skip: where given, h_{t−skip} is added inside φ too, through an orthogonal matrix of its own: an RNN
            with a skip over time, whose step is no longer a function of the last state alone.
        generator: what the weights are drawn from.
        dtype: of the weights.

    Attributes:
        recurrent: W. input: U. slope: sup|φ′|, which is 1 for both choices of φ.

    Raises:
        UsageError: for a skip of fewer than 2 steps.
    """

    slope = 1.0

    def __init__(
        self,
        width: int,
        gain: float,
        *,
        linear: bool = False,
        skip: int | None = None,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if skip is not None and skip < 2:
            raise UsageError(f"a skip of {skip} steps", "the last state is read already", "try 2 or more")
        self.width = self.state = width
        self.linear, self.skip = linear, skip
        self.recurrent = nn.Parameter((gain * orthogonal(width, generator)).to(dtype))
        self.input = _normal(width, width, generator, dtype)
        self.over = None if skip is None else nn.Parameter(orthogonal(width, generator, dtype))

    def step(
        self, x: Float[Tensor, "... width"], past: Sequence[Float[Tensor, "... state"]]
    ) -> Float[Tensor, "... state"]:
        """One step; the skip reads nothing before there is a state so old."""
        drive = past[-1] @ self.recurrent.mT + x @ self.input.mT
        if self.skip is not None and self.over is not None and len(past) >= self.skip:
            drive = drive + past[-self.skip] @ self.over.mT
        return drive if self.linear else torch.tanh(drive)


class LSTM(Cell):
    """c_t = f_t∘c_{t−1} + i_t∘g_t, h_t = o_t∘tanh(c_t), the gates from x_t and h_{t−1}.

    Args:
        width: coordinates of inputs, cells and outputs.
        forget_bias: what is added inside every forget gate: −50 shuts it, 0 halves, 50 holds all.
        recurrence: what W_h, by which the gates read h_{t−1}, is multiplied by; 0 leaves gates of x_t alone.
        generator: what the weights are drawn from.
        dtype: of the weights.

    Attributes:
        state: 2·width, the cells c before the outputs h.
    """

    def __init__(
        self,
        width: int,
        *,
        forget_bias: float = 0.0,
        recurrence: float = 1.0,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.width, self.state, self.forget_bias = width, 2 * width, forget_bias
        self.input = _normal(4 * width, width, generator, dtype)
        self.recurrent = _normal(4 * width, width, generator, dtype)
        with torch.no_grad():
            self.recurrent.mul_(recurrence)

    def gates(
        self, x: Float[Tensor, "... width"], h: Float[Tensor, "... width"]
    ) -> tuple[Float[Tensor, "... width"], ...]:
        """Forget, input and output gate, each in [0, 1], and what is offered to the cell, in [−1, 1]."""
        forget, enter, leave, offer = (x @ self.input.mT + h @ self.recurrent.mT).chunk(4, -1)
        opened = (forget + self.forget_bias).sigmoid()
        return opened, enter.sigmoid(), leave.sigmoid(), offer.tanh()

    def step(
        self, x: Float[Tensor, "... width"], past: Sequence[Float[Tensor, "... state"]]
    ) -> Float[Tensor, "... state"]:
        """One step of cells and outputs."""
        c, h = past[-1].chunk(2, -1)
        forget, enter, leave, offer = self.gates(x, h)
        c = forget * c + enter * offer
        return torch.cat([c, leave * c.tanh()], -1)


class DiagonalCell(Cell):
    """A diagonal state-space cell: h_t = a∘h_{t−1} + U x_t, each coordinate on its own.

    Args:
        decay: a, (width,), the real poles; 1 and −1 forget nothing.
        squash: tanh goes around the step: no longer a state-space cell, and no longer linear.
        generator: what U is drawn from.
        dtype: of the weights.

    Attributes:
        decay: a.
    """

    decay: Tensor

    def __init__(
        self,
        decay: Float[Tensor, " width"],
        *,
        squash: bool = False,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.width = self.state = decay.shape[0]
        self.squash = squash
        self.register_buffer("decay", decay.to(dtype))
        self.input = _normal(self.width, self.width, generator, dtype)

    def step(
        self, x: Float[Tensor, "... width"], past: Sequence[Float[Tensor, "... state"]]
    ) -> Float[Tensor, "... state"]:
        """One step of every coordinate."""
        drive = self.decay * past[-1] + x @ self.input.mT
        return drive.tanh() if self.squash else drive
