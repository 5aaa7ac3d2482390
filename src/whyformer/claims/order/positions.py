"""What positions let attention see of order, and which of them see only differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from whyformer.claims.claim import Claim
from whyformer.claims.judging import Prediction, as_predicted, draw, equal, finite, twice
from whyformer.finding import Finding, Strength, Verdict
from whyformer.instruments import rounding, symmetry
from whyformer.subjects import positions
from whyformer.subjects.mechanisms import Attention

WIDTH = 16


class Placed(nn.Module):
    """Attention on tokens with rows of a table added by position.

    Args:
        attention: the layer.
        table: a row for each position, (positions, width).
    """

    def __init__(self, attention: Attention, table: Float[Tensor, "n width"]) -> None:
        super().__init__()
        self.attention, self.table = attention, table

    def placed(
        self, x: Float[Tensor, "batch time width"], position_ids: Int[Tensor, " time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """The tokens with their rows added."""
        return x + (self.table[: x.shape[1]] if position_ids is None else self.table[position_ids])

    def forward(
        self, x: Float[Tensor, "batch time width"], position_ids: Int[Tensor, " time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Attend. Positions count from 0 where none are given."""
        return self.attention(self.placed(x, position_ids))


@rounding.forward.register
def _(module: Placed, x: Tensor, error: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
    x = module.placed(x, position_ids)
    own = rounding.unit(x.dtype) * x.abs()
    return rounding.forward(module.attention, x, own if error is None else own + error)


ROWS = 6


def _tables(generator: torch.Generator) -> dict[str, Tensor]:
    """Learned rows for ``ROWS`` positions, some of them equal, by name."""
    rows = positions.learned(ROWS, WIDTH, generator)
    equals = {
        "all different": range(ROWS),
        "two equal": (0, 1, 2, 3, 1, 5),
        "three equal": (0, 1, 2, 1, 1, 5),
    }
    equals |= {"two pairs": (0, 1, 0, 1, 4, 5), "all equal": (0,) * ROWS}
    return {name: rows[list(which)] for name, which in equals.items()}


def _unread_swaps(model: Placed) -> Bool[Tensor, " count"]:
    """The permutations that change rows only where no projection looks: every product with a weight is 0."""
    rows, layer = model.table, model.attention
    changed = (rows[symmetry.permutations(len(rows))] != rows).to(rows.dtype)
    looked = torch.cat([part.weight for part in (layer.q, layer.k, layer.v)]) != 0
    return (changed @ looked.to(rows.dtype).mT == 0).flatten(1).all(-1)


def _rows_effect(model: Placed, x: Float[Tensor, "n width"]) -> Float[Tensor, " count"]:
    """How far each permutation deviates by changing the rows alone: g(πx + P) against g(πx + πP)."""
    orders = symmetry.permutations(ROWS)
    apart = model.attention(x[orders] + model.table) - model.attention(x[orders] + model.table[orders])
    return apart.abs().flatten(1).amax(-1)


def _swaps(subject: Mapping[str, Placed], generator: torch.Generator) -> Finding:
    orders = symmetry.permutations(ROWS)

    def predictions() -> Iterator[Prediction]:
        for name, model in subject.items():
            x = draw(generator, ROWS, WIDTH)
            expected = (model.table[orders] == model.table).flatten(1).all(-1)
            told = {"rows": name, "table": model.table.tolist()}
            yield Prediction(
                name, model, x, expected, partial(_rows_effect, model, x), _unread_swaps(model), told
            )

    with torch.no_grad():
        return as_predicted("order.learned-rows", predictions())


def _learned(generator: torch.Generator) -> dict[str, Placed]:
    return {
        name: Placed(Attention(WIDTH, 2, generator=generator), table)
        for name, table in _tables(generator).items()
    }


def _unread(generator: torch.Generator) -> dict[str, Placed]:
    """Rows that differ in the last two coordinates only, which no projection reads."""
    layer = Attention(WIDTH, 2, generator=generator)
    with torch.no_grad():
        for part in (layer.q, layer.k, layer.v):
            part.weight[:, -2:] = 0
    table = positions.learned(ROWS, WIDTH, generator)
    table[:, :-2] = 0
    return {"all different, unread": Placed(layer, table)}


LEARNED_ROWS = Claim(
    id="order.learned-rows",
    sentence="Learned absolute positions leave only the swaps of positions whose rows are equal.",
    mathematics="""\
The layer is f(x) = g(x + P), g attention without positions, which commutes with every π. So
f(πx) = g(πx + P) and πf(x) = g(πx + πP): they are equal for all x if πP = P, that is if π moves each position
to one with an equal row. There are m₁!·m₂!·… such π, for groups of m₁, m₂, … equal rows.
Conversely, let P_π(i) ≠ P_i for some i. Where QᵀK is a large multiple of the identity and the tokens are
long and far apart, each query sees itself alone: output i is OV(x_π(i) + P_i) against OV(x_π(i) + P_π(i)),
and they differ. Both sides are analytic, so they differ for almost all weights and almost all x. So n
different rows leave 1 permutation of n!.
Generic is needed: rows that differ only where no projection looks order nothing. The refuter's do.""",
    instrument="symmetry: all 720 permutations of 6 positions, against those that keep the table, in float64",
    rule="holds where for every table both sets are equal; refuted where a swap of equal rows clearly "
    "breaks, or another commutes that does so exactly, or that the rows would clearly break",
    scope="5 tables, from all rows different to all equal, 720 permutations each, at a generic input",
    breaks="rows that differ only in coordinates that no projection reads: all 720 commute",
    source="derived for this project",
    test=_swaps,
    specimen=_learned,
    refuter=_unread,
)

CODE_LENGTH, CODE_WIDTH = 1000, 64
SHIFTS = (1, 7, 100, 500)


def _turned(code: Float[Tensor, "n width"], shift: int) -> Float[Tensor, "n width"]:
    """R_k of each row: pairs are (sin, cos), which a shift turns the other way than an angle turns (x, y)."""
    return positions.rotate(code, torch.tensor([-shift]))


def _best_linear(code: Float[Tensor, "n width"], shift: int) -> Float[Tensor, "rows width"]:
    """Where the best of all linear maps, by least squares, puts each row that has one ``shift`` later."""
    # By singular values: the default driver's pivoting goes wrong on nearly dependent columns.
    return code[:-shift] @ torch.linalg.lstsq(code[:-shift], code[shift:], driver="gelsd").solution


def _one_map(subject: Float[Tensor, "n width"], generator: torch.Generator) -> Finding:
    n, width = subject.shape
    eye = torch.eye(width, dtype=subject.dtype)
    bound = rounding.shifted_waves(n - 1, max(SHIFTS), 1.0, subject.dtype)
    turns = [_turned(eye, shift) for shift in SHIFTS]
    straight = max(float((turn @ turn.mT - eye).abs().max()) for turn in turns)
    apart = max(float((_turned(subject, k)[:-k] - subject[k:]).abs().max()) for k in SHIFTS)
    result = Finding(
        claim="order.sinusoid-rotation",
        verdict=Verdict.INCONCLUSIVE,
        measured=finite(apart),
        bound=bound,
        bound_from=f"T3 at {n} positions and shifts up to {max(SHIFTS)}, in float64",
        reason=f"turned by R_k, {n} positions land within {apart:.1e} of those k later (k = "
        f"{', '.join(map(str, SHIFTS))}); R_k is orthogonal within {straight:.1e}",
    )
    if max(apart, straight) <= bound:
        return result.but(verdict=Verdict.HOLDS, strength=Strength.PROVED)
    if not subject.isfinite().all():
        return result.but(reason="the code has entries that are no numbers")
    missed = [_best_linear(subject, k) - subject[k:] for k in SHIFTS]
    fitted, shift, miss = max(
        ((float(miss.square().mean().sqrt()), k, miss) for k, miss in zip(SHIFTS, missed, strict=True)),
        key=lambda one: one[0],
    )
    if fitted <= rounding.CLEAR * bound:
        return _isometry(result, subject, bound)
    at = int(miss.norm(dim=-1).argmax())
    there = subject[shift:][at]
    where = {"shift": shift, "position": at, "fitted": (there + miss[at]).tolist(), "code": there.tolist()}
    reason = f"the best of all linear maps misses by {fitted:.2f}, root mean square, at shift {shift}"
    return result.but(verdict=Verdict.REFUTED, measured=fitted, reason=reason, counterexample=where)


def _isometry(result: Finding, code: Float[Tensor, "n width"], bound: float) -> Finding:
    """A linear map moves the code: refuted where none that does is orthogonal, for products p·q change.

    Rows within ``bound`` of R p and R q, coordinate by coordinate, have a product within 2√d·bound·‖p‖ and
    what two dot products are rounded by.
    """
    length, width = float(code.norm(dim=-1).max()), code.shape[1]
    limit = 2 * width**0.5 * bound * length + 2 * rounding.gamma(width, code.dtype) * length**2
    gram = code @ code.mT
    most, shift, apart = max(
        ((float(apart.max()), k, apart) for k in SHIFTS for apart in [(gram[k:, k:] - gram[:-k, :-k]).abs()]),
        key=lambda one: one[0],
    )
    if most <= rounding.CLEAR * limit:
        return result
    p, q = divmod(int(apart.argmax()), len(apart))
    where = {"shift": shift, "positions": [p, q], "product": float(gram[p, q])}
    where["product_later"] = float(gram[p + shift, q + shift])
    reason = f"a linear map fits, but not an orthogonal one: products of two positions change by {most:.2g}, "
    return result.but(
        verdict=Verdict.REFUTED,
        measured=most,
        bound=limit,
        bound_from="T3 in both rows of a product, and its rounding",
        reason=f"{reason}at shift {shift}",
        counterexample=where,
    )


SINUSOID_ROTATION = Claim(
    id="order.sinusoid-rotation",
    sentence="In the sinusoidal code, moving by k is one orthogonal map, the same at every position.",
    mathematics="""\
A pair of coordinates of position p is (sin pω, cos pω). By the addition formulas,
    sin (p + k)ω =  sin pω cos kω + cos pω sin kω
    cos (p + k)ω = −sin pω sin kω + cos pω cos kω,
which is a turn of the pair by kω: a matrix that knows k and ω but not p. With one block a frequency,
PE(p + k) = R_k PE(p), and R_kᵀR_k = I since sin² + cos² = 1. So lengths and angles between positions depend
on their distance alone: PE(p)·PE(q) = Σ cos (p − q)ω.
The check must have many more positions than coordinates: any n − k ≤ d rows in general position are mapped
onto any others by some matrix. It takes 1,000 positions of 64 coordinates.""",
    instrument="the largest |R_k PE(p) − PE(p + k)| of 1,000 positions; the best linear fit; in float64",
    rule="holds where R_k is within T3; refuted where even the best linear map is clearly beyond it, or "
    "where products PE(p)·PE(q) change clearly with a shift, as no orthogonal map lets them",
    scope="1,000 positions, 64 coordinates, shifts of 1, 7, 100 and 500; by the proof, all of them",
    breaks="a learned code: no linear map moves it",
    source="Vaswani et al., Attention Is All You Need (2017), section 3.5: it is linear (passage read)",
    test=_one_map,
    specimen=lambda generator: positions.sinusoidal(CODE_LENGTH, CODE_WIDTH),
    refuter=lambda generator: positions.learned(CODE_LENGTH, CODE_WIDTH, generator),
)

TIME = 12
INPUTS = 3

FAR_ABOVE = 1e6
"""How many times its bound the effect of positions must be, for a shift that moves nothing to refute."""


def _layer(subject: Attention | Placed) -> Attention:
    return subject.attention if isinstance(subject, Placed) else subject


def _scores(subject: Attention | Placed, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The scores at given positions, (batch, heads, time, time), and how far one evaluation may stray."""
    layer = _layer(subject)
    if not isinstance(subject, Placed):
        return layer.scores(x, ids), rounding.attention_layer(layer, x, None, ids).scores
    placed = subject.placed(x, ids)
    own = rounding.unit(x.dtype) * placed.abs()
    return layer.scores(placed), rounding.attention_layer(layer, placed, own).scores


def _place(apart: Tensor, shift: int, before: Tensor, after: Tensor) -> dict[str, int | float]:
    at = torch.unravel_index(apart.argmax(), apart.shape)
    names = ("sequence", "head", "query", "key")
    place = {"shift": shift, **dict(zip(names, map(int, at), strict=True))}
    return {**place, "score": float(before[at]), "shifted": float(after[at])}


def _shift_seen(subject: Attention | Placed, generator: torch.Generator) -> Finding:
    x, ids, shift = draw(generator, INPUTS, TIME, WIDTH), torch.arange(TIME), 7
    with torch.no_grad():
        before, stray = _scores(subject, x, ids)
        after, again = _scores(subject, x, ids + shift)
        reversed_, _ = _scores(subject, x, ids.flip(0))
    apart, bound = (after - before).abs(), float((stray + again).max())
    most = float(apart.max())
    # How far positions reach at all: what their reversal changes, at the input where that is least.
    effect = float((reversed_ - before).abs().flatten(1).amax(-1).min())
    bare = positions.sinusoidal(TIME + shift, WIDTH)
    gram = bare @ bare.mT
    alone = float((gram[shift:, shift:] - gram[:TIME, :TIME]).abs().max())
    result = Finding(
        claim="order.sinusoid-shift",
        verdict=Verdict.INCONCLUSIVE,
        measured=finite(most),
        bound=finite(bound),
        bound_from="T1 for the scores of two evaluations, in float64; to hold, a score must change by more",
        reason=f"a shift by {shift} changes a score by {most:.2g}, a reversal by {effect:.2g}; the bare "
        f"PE·PE changes by {alone:.1e}",
    )
    if most > rounding.CLEAR * bound:
        return result.but(verdict=Verdict.HOLDS, strength=Strength.PROVED)
    if most <= bound and effect > FAR_ABOVE * bound:
        place = _place(apart, shift, before, after)
        return result.but(verdict=Verdict.REFUTED, counterexample=place | {"input": x.tolist()})
    return result


SINUSOID_SHIFT = Claim(
    id="order.sinusoid-shift",
    sentence="Adding sinusoids to tokens does not make attention a matter of differences of positions alone.",
    mathematics="""\
With M = QᵀK, the score of tokens x, y at i, j is (x + p_i)ᵀM(y + p_j), which is
    xᵀMy + xᵀMp_j + p_iᵀMy + p_iᵀMp_j.
By order.sinusoid-rotation a shift turns p_i to R p_i. The last term becomes p_iᵀRᵀMR p_j, the same for all
shifts and positions only if M commutes with the turns, as a multiple of the identity does: bare sinusoids,
M = I, give Σ cos (i − j)ω. A generic M does not. And the second term becomes xᵀMR p_j, which changes with the
shift whatever M is, unless xᵀM = 0: it holds a token against a place, not against a distance.
So one input and one shift that move a score prove it. Rotary positions turn queries and keys instead, after
the projections, where only RᵀR = I is left; see order.rotary-shift.""",
    instrument="the scores of 12 tokens at positions from 0, from 7 and reversed, every pair, in float64",
    rule="holds where a score changes clearly more than T1; refuted where none changes more than T1 though "
    f"a reversal of the positions changes one by {FAR_ABOVE:.0e} times that, at each of {INPUTS} inputs",
    scope="a drawn layer and 3 inputs, shown by example; by the proof, almost all weights and inputs",
    breaks="rotary positions: their scores do not change",
    source="derived for this project",
    test=_shift_seen,
    specimen=lambda generator: Placed(
        Attention(WIDTH, 2, generator=generator), positions.sinusoidal(TIME + 7, WIDTH)
    ),
    refuter=lambda generator: Attention(WIDTH, 2, rotary=1e4, generator=generator),
)

FAR = (1, 7, 100, 1000)


def _shift_unseen(subject: Attention | Placed, generator: torch.Generator) -> Finding:
    x, ids, layer = draw(generator, 1, TIME, WIDTH), torch.arange(TIME), _layer(subject)
    tried, told = [], f"shifts by {', '.join(map(str, FAR))}"
    with torch.no_grad():
        before, _ = _scores(subject, x, ids)
        placed = subject.placed(x, ids) if isinstance(subject, Placed) else x
        q, k = layer.split(layer.q(placed)) * layer.scale, layer.split(layer.k(placed))
        for shift in FAR:
            after, _ = _scores(subject, x, ids + shift)
            bound = float(rounding.rotary_score(q, k, shift).max())
            tried.append((float((after - before).abs().max()), bound, shift, after))
        most, bound, shift, after = max(tried, key=lambda one: one[0] / one[1])
        result = equal(
            "order.rotary-shift",
            most,
            bound,
            f"T4 at shift {shift} for {TIME} tokens, angles and vectors in float64",
            f"{told} change a score by at most {most:.1e}, at {shift}",
            _place((after - before).abs(), shift, before, after) | {"input": x[0].tolist()},
        )
        outputs = _outputs_shifted(subject, x, ids)
        for verdict in (Verdict.REFUTED, Verdict.INCONCLUSIVE):
            for found in (result, outputs):
                if found.verdict is verdict:
                    return found
        few = draw(generator, 5, WIDTH)
        group = symmetry.group(subject, few, twice(subject, few[None]))
    return result.but(
        reason=f"{result.reason}, and an output by {outputs.measured:.1e} (T1 explains {outputs.bound:.1e}); "
        f"of 120 permutations of 5 positions, {group.order} commutes"
    )


def _outputs_shifted(subject: Attention | Placed, x: Tensor, ids: Tensor) -> Finding:
    """The outputs at shifted positions against those from 0: positions may come in beside the scores."""
    before, stray = subject(x, ids), float(rounding.forward(subject, x, None, ids).max())
    tried = []
    for shift in FAR:
        apart = (subject(x, ids + shift) - before).abs()
        bound = stray + float(rounding.forward(subject, x, None, ids + shift).max())
        tried.append((float(apart.max()), bound, shift, apart))
    most, bound, shift, apart = max(tried, key=lambda one: one[0] / one[1])
    _, at, coordinate = (int(i) for i in torch.unravel_index(apart.argmax(), apart.shape))
    where = {"shift": shift, "position": at, "coordinate": coordinate, "input": x[0].tolist()}
    values = {"output": float(before[0, at, coordinate])}
    values["shifted"] = float(subject(x, ids + shift)[0, at, coordinate])
    reason = f"a shift by {shift} changes an output by {most:.2g}"
    bound_from = f"T1 for the outputs at positions from 0 and from {shift}, in float64"
    return equal("order.rotary-shift", most, bound, bound_from, reason, where | values)


ROTARY_SHIFT = Claim(
    id="order.rotary-shift",
    sentence="Rotary scores depend on i − j alone, so outputs do not change when all positions are shifted.",
    mathematics="""\
Queries and keys are turned by their position: q_i becomes R_i q_i, with a block of angle iω for each pair.
Turns of one plane add: R_iᵀR_j = R_(j−i). So (R_i q)·(R_j k) = qᵀR_iᵀR_j k = qᵀR_(j−i)k, in which i and j
occur only as j − i. Adding s to all positions changes no score, no weight and no output.
Order is seen all the same: R_(j−i) and R_(i−j) differ, so for generic weights not even the reversal
commutes, and the only permutation left is the identity.
This is exact arithmetic. An angle pω is a product, rounded by u·pω: in float64 nothing at p = 1,000,
but in bfloat16 u = 2⁻⁸, and the numbers beyond 256 are not even all there. The refuter's scores change.""",
    instrument="scores and outputs of 12 tokens at positions shifted by up to 1,000, every pair, in float64",
    rule="holds where no score changes by more than T4 and no output by more than T1; refuted where one "
    "changes clearly more",
    scope="2 heads, 12 tokens, shifts of 1, 7, 100 and 1,000, a drawn input; by the proof, all of them",
    breaks="rotary angles computed in bfloat16 (learned absolute positions are refuted as well)",
    source="Su et al., RoFormer (2021): relative position by rotation (abstract read)",
    test=_shift_unseen,
    specimen=lambda generator: Attention(WIDTH, 2, rotary=1e4, generator=generator),
    refuter=lambda generator: Attention(
        WIDTH, 2, rotary=1e4, angle_dtype=torch.bfloat16, generator=generator
    ),
)

CLAIMS = (LEARNED_ROWS, SINUSOID_ROTATION, SINUSOID_SHIFT, ROTARY_SHIFT)
