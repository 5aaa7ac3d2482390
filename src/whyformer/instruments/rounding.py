"""What rounding can explain: bounds T0 to T6 on how far floating point may stray from the mathematics.

With u the unit roundoff of a dtype, γ_k = ku/(1 − ku) bounds the relative error of k roundings in a row, and
|fl(a·b) − a·b| ≤ γ_d |a|·|b| for a dot product of length d in any order of summation (the standard model of
floating point, in Higham's notation). All bounds are first order: products of two errors are left out, so a
deviation is *explained* below its bound and *clear* only above ``CLEAR`` times it.

Elementary functions are not specified by IEEE 754: exp, sin, cos and erf are assumed to be within 4u.

Every bound on one evaluation is to be added for each evaluation that is compared: twice for two. T2, for a
product of Jacobians, stands with them in ``signal``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from whyformer.errors import UsageError
from whyformer.subjects.mechanisms import Attention, Block, Stack
from whyformer.subjects.positions import frequencies

CLEAR = 10.0
"""How many times its bound a deviation must be to refute: room for the second order and the assumption."""

ELEMENTARY = 4
"""The assumed error of exp, sin, cos and erf, in unit roundoffs."""


def unit(dtype: torch.dtype) -> float:
    """The unit roundoff u: half the distance from 1 to the next number of the dtype."""
    return torch.finfo(dtype).eps / 2


def gamma(k: int, dtype: torch.dtype) -> float:
    """γ_k = ku/(1 − ku), the bound on the relative error of k roundings.

    Raises:
        UsageError: when ku is 1 or more, where the bound says nothing.
    """
    ku = k * unit(dtype)
    if ku >= 1:
        raise UsageError(f"{k} roundings in {dtype}", "no bound is left", "compute in float64")
    return ku / (1 - ku)


def identical(a: Tensor, b: Tensor) -> bool:
    """T0: equal shapes, dtypes and numbers, for values that one kernel computes from equal inputs."""
    return a.dtype == b.dtype and torch.equal(a, b)


class AttentionError(NamedTuple):
    """Bounds on one evaluation of softmax attention.

    Attributes:
        scores: of the scores, elementwise; 0 where a key is masked.
        weights: of the weights, elementwise.
        output: of the weighted values, elementwise.
    """

    scores: Float[Tensor, "*batch time time"]
    weights: Float[Tensor, "*batch time time"]
    output: Float[Tensor, "*batch time d"]


def attention(
    q: Float[Tensor, "*batch time d"],
    k: Float[Tensor, "*batch time d"],
    v: Float[Tensor, "*batch time d"],
    bias: Float[Tensor, "*heads time time"] | None = None,
    *,
    scale: float,
    errors: tuple[Tensor, Tensor, Tensor] | None = None,
) -> AttentionError:
    """T1: how far one evaluation of softmax(scale·qkᵀ + bias)·v may stray.

    A score strays by δ = scale·γ_{d+1}|q|·|k| + u|s|, the dot product and its scaling, then the bias. Taking
    the row's largest score away rounds once more, by u|s − max s|, and exp adds 4u: so a numerator is
    wrong by a factor within 1 ± ρ, ρ = e^(2 max δ + u max|s − max s| + 4u) − 1, maxima over the row's visible
    keys. The denominator, a sum of n such, is within ρ + γ_n, and the division within u. Hence
    |ΔW| ≤ (2ρ + γ_n + 2u)W and |Δ(WV)| ≤ (2ρ + 2γ_n + 3u)·W|V|. Errors that q, k and v already bear
    add scale·(|Δq||k| + |q||Δk|) to δ, and W|Δv| to the output.

    Underflow adds at most the smallest normal number to a numerator, a weight and each term of a sum.

    Assumption: exp within 4u.
    """
    dtype = q.dtype
    u, n = unit(dtype), k.shape[-2]
    logits = q @ k.mT * scale
    s = logits if bias is None else logits + bias.to(dtype)
    stray = scale * gamma(q.shape[-1] + 1, dtype) * (q.abs() @ k.abs().mT)
    if errors is not None:
        stray = stray + scale * (errors[0] @ k.abs().mT + q.abs() @ errors[1].mT)
    seen = s.isfinite()
    stray = (stray + u * s.abs()).where(seen, 0)
    delta = stray.amax(-1, keepdim=True)
    fall = (s.amax(-1, keepdim=True) - s).where(seen, 0).amax(-1, keepdim=True)
    rho = torch.expm1(2 * delta + u * fall + ELEMENTARY * u)
    weights = s.softmax(-1)
    tiny = torch.finfo(dtype).tiny
    output = (2 * rho + 2 * gamma(n, dtype) + 3 * u) * (weights @ v.abs())
    output = output + 2 * tiny * (n + v.abs().sum(-2, keepdim=True))
    if errors is not None:
        output = output + weights @ errors[2]
    return AttentionError(stray, (2 * rho + gamma(n, dtype) + 2 * u) * weights + 2 * tiny, output)


@singledispatch
def forward(
    module: nn.Module,
    x: Float[Tensor, "batch time width"],
    error: Float[Tensor, "batch time width"] | None = None,
    position_ids: Int[Tensor, "*batch time"] | None = None,
) -> Float[Tensor, "batch time width"]:
    """T1 through a whole module: how far one evaluation of it may stray, elementwise.

    A running error analysis at ``x``, first order: each step passes on the error that it is handed, times
    its derivative, and adds its own rounding. Other modules join with ``@forward.register``.

    Args:
        module: an Attention, a Block or a Stack.
        x: what it is applied to.
        error: what ``x`` already bears; nothing where None.
        position_ids: as the module takes them.

    Raises:
        UsageError: for a module without a rule.
    """
    raise UsageError(
        f"the rounding of {type(module).__name__}",
        "no rule is known for it",
        "register one with forward.register",
    )


@forward.register
def _(
    module: Attention, x: Tensor, error: Tensor | None = None, position_ids: Tensor | None = None
) -> Tensor:
    weighted = attention_layer(module, x, error, position_ids)
    mixed = module.merge(module.weights(x, position_ids) @ module.split(module.v(x)))
    return linear(module.o, mixed, module.merge(weighted.output))


def attention_layer(
    module: Attention, x: Tensor, error: Tensor | None = None, position_ids: Tensor | None = None
) -> AttentionError:
    """T1 for a layer with projections: its scores, its weights, and its heads' values before they are mixed.

    Axes: batch, heads, time, then time again for scores and weights, the head's width for values.
    """
    parts = [module.split(part(x)) for part in (module.q, module.k, module.v)]
    errors = [module.split(linear(part, x, error)) for part in (module.q, module.k, module.v)]
    for i in (0, 1):
        errors[i] = _turned(module, parts[i], errors[i], position_ids)
        parts[i] = module.turn(parts[i], position_ids)
    q, k, v = parts
    return attention(
        q, k, v, module.bias(x.shape[-2]), scale=module.scale, errors=(errors[0], errors[1], errors[2])
    )


def _turned(module: Attention, x: Tensor, error: Tensor, position_ids: Tensor | None) -> Tensor:
    """The error of rotary positions.

    An angle is a position times a frequency, each perhaps rounded: 2u|angle|, by the unit roundoff of the
    angle's dtype; sin and cos add 4u, and turning a pair two roundings.
    """
    if module.rotary is None:
        return error
    u = unit(x.dtype)
    v = max(unit(module.angle_dtype or x.dtype), u)
    last = x.shape[-2] - 1 if position_ids is None else int(position_ids.abs().max())
    angle = last * frequencies(x.shape[-1], module.rotary).to(x.dtype)
    pairs = (x[..., 0::2].abs() + x[..., 1::2].abs()) * ((2 * angle + ELEMENTARY) * v + 3 * u)
    pairs = pairs + error[..., 0::2] + error[..., 1::2]
    return pairs.repeat_interleave(2, -1)


@forward.register
def _(module: Block, x: Tensor, error: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
    bears = torch.zeros_like(x) if error is None else error
    normed = layer_norm(x, bears) if module.norm else bears
    bears = bears + forward(module.attention, module.normed(x), normed, position_ids)
    x = x + module.attention(module.normed(x), position_ids)
    bears = bears + unit(x.dtype) * x.abs()
    if module.up is not None and module.down is not None:
        normed = layer_norm(x, bears) if module.norm else bears
        up = module.up(module.normed(x))
        bent = gelu(up, linear(module.up, module.normed(x), normed))
        hidden = nn.functional.gelu(up)
        bears = bears + linear(module.down, hidden, bent)
        bears = bears + unit(x.dtype) * (x + module.down(hidden)).abs()
    return bears


@forward.register
def _(module: Stack, x: Tensor, error: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
    bears = torch.zeros_like(x) if error is None else error
    x = module.placed(x, position_ids)
    if module.positions is not None:
        bears = bears + unit(x.dtype) * x.abs()
    for block in module.blocks:
        bears = forward(block, x, bears, position_ids)
        x = block(x, position_ids)
    return bears


def linear(layer: nn.Linear, x: Float[Tensor, "*any fan_in"], error: Tensor | None = None) -> Tensor:
    """A linear map without bias: γ_(fan in)·|W||x|, and |W| times the error that x bears."""
    size = layer.weight.detach().abs()
    stray = gamma(layer.in_features, x.dtype) * x.abs()
    return nn.functional.linear(stray if error is None else stray + error, size)


def gelu(x: Tensor, error: Tensor) -> Tensor:
    """GELU, x·Φ(x): 1.13 times the error that x bears, since |GELU′| < 1.13, and 8u|x| of its own.

    Φ = (1 + erf)/2 is absolutely within 4u·½ and a few roundings, however much it cancels.
    """
    return 1.13 * error + 8 * unit(x.dtype) * x.abs()


def layer_norm(x: Float[Tensor, "*any width"], error: Tensor, eps: float = 1e-5) -> Tensor:
    """The layer norm y = (x − μ)/σ without learned scale, σ² = mean (x − μ)² + eps.

    With c = x − μ: |Δc| ≤ |Δx| + mean|Δx| + γ_w mean|x|, and |Δσ²| ≤ 2 mean(|c||Δc|) + γ_(2w) mean x²,
    which covers the variance taken as a mean of squares less the square of the mean. Then
    |Δy| ≤ |Δc|/σ + |y|(|Δσ²|/2σ² + 3u) + 3u(|x| + |μ|)/σ, which covers y taken as x/σ − μ/σ.
    """
    u, width = unit(x.dtype), x.shape[-1]
    mean = x.mean(-1, keepdim=True)
    c = x - mean
    square = c.square().mean(-1, keepdim=True) + eps
    sigma = square.sqrt()
    bears = error + error.mean(-1, keepdim=True) + gamma(width, x.dtype) * x.abs().mean(-1, keepdim=True)
    spread = 2 * (c.abs() * bears).mean(-1, keepdim=True)
    spread = spread + gamma(2 * width, x.dtype) * x.square().mean(-1, keepdim=True)
    own = c.abs() / sigma * (spread / (2 * square) + 3 * u)
    return bears / sigma + own + 3 * u * (x.abs() + mean.abs()) / sigma


def shifted_waves(last: int, shift: int, fastest: float, dtype: torch.dtype) -> float:
    """T3: how far R_k·PE(p) and PE(p + k) may differ: u(2P + k)ω + 4 eps, P ≥ p + k.

    The three angles (p + k)ω, pω and kω are products, each rounded once, which moves a wave by u times
    its angle. The waves themselves, within u each, and the turn of a pair are within 4 eps = 8u.

    Args:
        last: P, the largest position.
        shift: k.
        fastest: ω, the largest frequency, in radians a step.
        dtype: of angles and waves.

    Assumption: sin and cos within u, one unit in the last place of a result below 1.
    """
    u = unit(dtype)
    return u * (2 * last + shift) * fastest + 8 * u


def rotary_score(
    q: Float[Tensor, "*batch time d"],
    k: Float[Tensor, "*batch time d"],
    shift: int,
    angle_dtype: torch.dtype | None = None,
) -> Float[Tensor, "*batch time time"]:
    """T4: how far the scores q·k of two evaluations may differ, at positions i, j < n and at i + s, j + s.

    ‖q‖‖k‖(6u′(2n + s) + 8u + 2γ_d), u′ of the angles and u of the vectors. A pair turned by an angle that is
    wrong by ε moves by ε times its length; the four angles are wrong by at most 2u′(4n + 2s) together, at
    frequencies of 1 radian or less; what remains of 6u′(2n + s) is for sin and cos. The dot products add
    γ_d each.

    Args:
        q: queries before the turn, with scale if any.
        k: keys before the turn.
        shift: s.
        angle_dtype: of the angles; that of ``q`` where None.
    """
    n, d = q.shape[-2:]
    v = unit(angle_dtype or q.dtype)
    length = q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :]
    return length * (6 * v * (2 * n + shift) + 8 * unit(q.dtype) + 2 * gamma(d, q.dtype))


def decisive(
    logits: Float[Tensor, "*batch choices"], error: Float[Tensor, "*batch choices"] | float
) -> Bool[Tensor, "*batch"]:
    """T5: where the largest logit leads the second by more than twice the error, so that argmax counts.

    Args:
        logits: at least two choices.
        error: what each logit may bear, elementwise or at most.
    """
    best = logits.topk(2, -1).values
    most = error if isinstance(error, float) else error.amax(-1)
    return best[..., 0] - best[..., 1] > 2 * most


class Scaling(NamedTuple):
    """A deviation in two precisions.

    Attributes:
        low: in float32.
        high: in float64.
        shrink: log(low/high) over log(u32/u64): about 1 where rounding made it, about 0 where it is real.
    """

    low: float
    high: float
    shrink: float


def scaling(deviation: Callable[[torch.dtype], float]) -> Scaling:
    """T6: precision scaling, for maps too deep or too dark for a bound of their own.

    Rounding shrinks by u32/u64 = 2^29 from float32 to float64; a violation stays where it is.

    Args:
        deviation: computes it in the dtype that it is given, of the same input and weights.
    """
    low, high = deviation(torch.float32), deviation(torch.float64)
    if high == 0:
        return Scaling(low, high, 1.0)
    if low == 0:
        return Scaling(low, high, 0.0)
    return Scaling(low, high, math.log2(low / high) / 29)


def shrunk(low: float) -> float:
    """T6 as a floor: the most that is left in float64 of a float32 deviation that rounding made.

    2^−29 of it by the unit roundoffs, and ``CLEAR`` times that: two draws of rounding errors are not alike.

    Args:
        low: the deviation in float32, of the same input and weights.
    """
    return CLEAR * low * unit(torch.float64) / unit(torch.float32)
