"""How much of a state is left after a gap: Jacobians of a recurrent net, by autograd and step by step.

Axes: batch, time, width; gap (index g − 1 holds the gap of g steps); state by state (output before input).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from whyformer.instruments.rounding import gamma
from whyformer.subjects.recurrent import Cell


def _copies(start: Tensor) -> Tensor:
    """One copy of each state for each of its coordinates, so that one backward pass reads a Jacobian."""
    return start[:, None].repeat(1, start.shape[-1], 1)


def _diagonal(copies: Tensor) -> Tensor:
    """The sum of output i of copy i: its gradient at the copies is the Jacobian, row by row."""
    return copies.diagonal(dim1=-2, dim2=-1).sum()


def gap_jacobians(
    cell: Cell, x: Float[Tensor, "batch time width"], start: Float[Tensor, "batch state"]
) -> Float[Tensor, "gap batch state state"]:
    """∂h_T/∂h_{T−g} for every gap g from 1 to T, by autograd through the whole run.

    All paths count, those of a skip over time included. One run and one backward pass: copy i of each state
    is differentiated for output i alone.

    Args:
        cell: what is run.
        x: T inputs.
        start: the first state.
    """
    with torch.enable_grad():
        states = cell.unroll(x[:, None], _copies(start).requires_grad_())
        gradients = torch.autograd.grad(_diagonal(states[-1]), states[:-1])
    return torch.stack(gradients[::-1])


def step_jacobians(
    cell: Cell, x: Float[Tensor, "batch time width"], start: Float[Tensor, "batch state"]
) -> Float[Tensor, "gap batch state state"]:
    """∂h_t/∂h_{t−1} of each step alone, older states held fixed; the last step first.

    Computed at the states of the run that ``gap_jacobians`` makes, in the same shapes: the same numbers.
    """
    with torch.no_grad():
        states = cell.unroll(x[:, None], _copies(start))
    jacobians: list[Tensor] = []
    for t, now in enumerate(x[:, None].unbind(-2)):
        with torch.enable_grad():
            last = states[t].detach().requires_grad_()
            after = cell.step(now, [*states[:t], last])
            jacobians += torch.autograd.grad(_diagonal(after), last)
    return torch.stack(jacobians[::-1])


def products(steps: Float[Tensor, "gap batch state state"]) -> Float[Tensor, "gap batch state state"]:
    """J_T ⋯ J_{T−g+1} for every gap g: the gap's Jacobian, where a step reads the last state alone."""
    running = [steps[0]]
    for step in steps[1:]:
        running.append(running[-1] @ step)
    return torch.stack(running)


def product_error(steps: Float[Tensor, "gap batch state state"]) -> Float[Tensor, "gap batch"]:
    """How far one evaluation of the product may stray, in the Frobenius norm: T2, by running analysis.

    With P_g = P_{g−1} J and entries of J that bear two roundings, |fl(P̂J) − P̂J| ≤ γ_{d+2}|P̂||J|, so

        e_g = ‖J‖₂·e_{g−1} + γ_{d+2}·‖P̂_{g−1}‖_F·‖J‖_F,    e_0 = 0.

    The elementwise form γ_{g(d+2)}·Π|J_t| is true as well, and useless over a long gap: Π|J_t| grows as
    about (√d)^g where the product itself keeps its length. The terms are first order, and ‖J‖₂ is computed.

    Assumption: an entry of J is one weight times one slope, as in a vanilla or a diagonal cell. An LSTM's
    entries are sums, whose terms may cancel: for it this is an estimate.
    """
    largest = norms(steps)
    length = torch.linalg.matrix_norm(steps)
    before = torch.linalg.matrix_norm(products(steps)).roll(1, 0)
    before[0] = steps.shape[-1] ** 0.5  # P_0 is the identity
    fresh = gamma(steps.shape[-1] + 2, steps.dtype) * before * length
    errors = [fresh[0]]
    for norm, new in zip(largest[1:], fresh[1:], strict=True):
        errors.append(norm * errors[-1] + new)
    return torch.stack(errors)


def norms(jacobians: Float[Tensor, "*any state state"]) -> Float[Tensor, "*any"]:
    """The largest singular value of each: the most that a signal can keep of its length.

    All NaN where an entry is NaN or infinite, of which the decomposition makes nothing.
    """
    if not jacobians.isfinite().all():
        return jacobians.new_full(jacobians.shape[:-2], torch.nan)
    return torch.linalg.matrix_norm(jacobians, ord=2)
