"""Induction by hand: two layers that complete [.. A B .. A] with B, by the most recent A.

Axes: batch, time (tokens), keys (what a head may look at), width (coordinates of a code).

Why the circuit is right for every sequence. Tokens and positions are written in ±1 binary digits: two equal
codes of w digits have the inner product w, two different ones at most w − 2. All scores are whole numbers,
and the constructor refuses a dtype in which one of them, or a partial sum, could be rounded.

Layer 1, the previous-token head. The query of position i is the code of i − 1, the key of position j the code
of j, both modulo 16, and a query sees the latest 16 positions. One key scores 1,600, all others at most 800,
and e^−800 is 0 in every dtype of torch: the head returns the code of the token before, exactly. Before the
first token stands a start token, whose code is zero.

Layer 2, the matching head. The score of query i and key j, where j is among the latest T positions, is

    κ·⟨code(x_i), code(x_{j−1})⟩ − r·(i − j),        and the start token scores σ.

A key that follows a twin (x_{j−1} = x_i) scores at least κw − r(T − 1); any other key at most κ(w − 2). With
the sharpness β = 2κ between them, the most recent such key weighs 1 against less than

    1/(e^r − 1) + T·e^{rT − β} + e^{−ℓ}

for all other keys together: older twins, other tokens, and the start token, which stands ℓ below the farthest
twin. Where this sum is below 1, the symbol that is copied is the one after the most recent twin. Without a
twin, the start token weighs 1 against at most T·e^{−ℓ}, and what is copied is "no earlier twin". The
constructor chooses β and ℓ and checks the inequality, rounding included. With r = 0 all twins weigh the same,
exactly, and the symbol that most of them were followed by gets the largest share.

That such a circuit is a previous-token head followed by a head that composes with it through its keys:
Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits" (read in summary). Digits, start token
and margins are this project's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from whyformer.errors import UsageError

BLOCK = 128
"""Queries at a time in a text: 128 × 8,192 float32 scores are 4 MiB."""
LOCAL = 16
"""Positions that the previous-token head sees."""
_DIGITS = LOCAL.bit_length() - 1
_LOCAL_SCALE = 400  # whole numbers up to 1,600 are exact in float16, and e^−800 is 0 in float64
_LEEWAY = 40  # e^−40 is 4e-18: what the start token and other tokens may weigh


def binary_code(
    numbers: Int[Tensor, "*shape"], width: int, dtype: torch.dtype
) -> Float[Tensor, "*shape width"]:
    """The lowest ``width`` binary digits as ±1: different numbers below 2^width differ in at least one."""
    digits = (numbers.unsqueeze(-1) >> torch.arange(width)) & 1
    return digits.to(dtype) * 2 - 1


def crowding(recency: float, context: int, sharpness: float) -> float:
    """What all keys but the most recent twin's can weigh together, where that one weighs 1.

    1/(e^r − 1) bounds the older twins, T·e^{rT − β} all other tokens; infinite without recency.
    """
    if recency == 0:
        return math.inf
    return 1 / math.expm1(recency) + context * math.exp(min(recency * context - sharpness, 700))


def lookup(
    query: Float[Tensor, " width"], keys: Float[Tensor, "keys width"], values: Float[Tensor, "keys depth"]
) -> Float[Tensor, " depth"]:
    """One query of softmax attention: two matrix-vector products, memory linear in the keys."""
    return torch.softmax(keys @ query, dim=0) @ values


@dataclass(frozen=True)
class Copies:
    """What a block of queries copied.

    Attributes:
        start: the position of the first query.
        looked: the position that each looked at, −1 for the start token; None without recency, where every
            twin is looked at alike.
        copied: the symbol with the largest share; ``vocabulary`` says "no earlier twin".
        tied: whether several symbols have that share; ``copied`` is then any of them.
    """

    start: int
    looked: Int[Tensor, " queries"] | None
    copied: Int[Tensor, " queries"]
    tied: Bool[Tensor, " queries"]


class InductionCircuit(nn.Module):
    """A previous-token head, then a matching head: the token after the most recent twin is copied.

    The module's docstring gives the proof. Symbols are 0 to vocabulary − 1; the symbol ``vocabulary`` is the
    answer "no earlier twin".

    Args:
        vocabulary: how many symbols there are, 1 or more.
        context: T, how many latest positions the matching head sees: the twin is sought among the T tokens
            before the query.
        recency: r, by how much the score falls with each position: 1 or more and the most recent twin wins; 0
            and all twins weigh the same.
        dtype: of every score, weight and share.

    Raises:
        UsageError: an argument is out of range, or the dtype would round a score or the shares too far.
    """

    def __init__(
        self, vocabulary: int, context: int, *, recency: int = 1, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        for name, value, least in (
            ("vocabulary", vocabulary, 1),
            ("context", context, 1),
            ("recency", recency, 0),
        ):
            if not isinstance(value, int) or value < least:
                raise UsageError(
                    f"{name} {value}", f"it is a whole number from {least} on", f"try {name} {least}"
                )
        self.vocabulary, self.context, self.recency, self.dtype = vocabulary, context, recency, dtype
        self.width = max(2, (vocabulary - 1).bit_length())
        leeway = math.ceil(math.log(context)) + _LEEWAY
        self.scale = math.ceil((recency * context + 2 * leeway) / 2)
        self.match = self.scale * self.width
        self.sink = self.scale * (self.width - 2) + leeway
        self._refuse_rounding()
        self.register_buffer("code", binary_code(torch.arange(vocabulary), self.width, dtype))

    code: Float[Tensor, "vocabulary width"]

    @property
    def sharpness(self) -> int:
        """β: how far a twin's score stands above any other token's at the same distance."""
        return 2 * self.scale

    def _refuse_rounding(self) -> None:
        """Refuse a dtype in which a score is not exact, or the shares' rounding could change the answer."""
        eps = torch.finfo(self.dtype).eps
        largest = self.match + self.sink + 2 * self.recency * (self.context + LOCAL)
        rounding = (
            (self.context + 8) * eps / 2
        )  # of a sum of shares: additions, and 4 units for exp and division
        crowd = crowding(self.recency, self.context, self.sharpness) + math.exp(-_LEEWAY)
        fits = max(largest, _LOCAL_SCALE * _DIGITS, self.context) * eps <= 2 and rounding < 1
        if not fits or (self.recency and crowd * (1 + rounding) >= 1 - rounding):
            raise UsageError(
                f"context {self.context:,} with {self.vocabulary:,} symbols",
                f"its scores reach {largest:,}, which {self.dtype} cannot hold without rounding",
                "shorten the context or widen the dtype",
            )

    @property
    def nothing(self) -> int:
        """The symbol that says "no earlier twin"."""
        return self.vocabulary

    def previous(
        self, content: Float[Tensor, "*batch time width"], positions: Int[Tensor, " time"]
    ) -> Float[Tensor, "*batch time width"]:
        """Layer 1: the code of the token before each position, where that position is among ``positions``."""
        key = binary_code(positions % LOCAL, _DIGITS, self.dtype)
        query = binary_code((positions - 1) % LOCAL, _DIGITS, self.dtype)
        behind = positions[:, None] - positions[None, :]
        scores = (_LOCAL_SCALE * query @ key.T).masked_fill((behind < 0) | (behind >= LOCAL), -math.inf)
        return torch.softmax(scores, dim=-1) @ content

    def queries(
        self, content: Float[Tensor, "*batch time width"], places: Int[Tensor, " time"]
    ) -> Float[Tensor, "*batch time width+3"]:
        """Layer 2's queries: my token; places are positions counted from any origin that the keys share."""
        behind = (-self.recency * places).to(self.dtype).expand(content.shape[:-1])
        ones = torch.ones_like(behind)
        return torch.cat([self.scale * content, torch.stack([ones, behind, ones], dim=-1)], dim=-1)

    def keys(
        self, previous: Float[Tensor, "*batch time width"], places: Int[Tensor, " time"]
    ) -> Float[Tensor, "*batch 1+time width+3"]:
        """Layer 2's keys: the start token, then the token before each position."""
        ahead = (self.recency * places).to(self.dtype).expand(previous.shape[:-1])
        rest = torch.stack([ahead, torch.ones_like(ahead), torch.zeros_like(ahead)], dim=-1)
        start = previous.new_zeros(*previous.shape[:-2], 1, self.width + 3)
        start[..., -1] = self.sink
        return torch.cat([start, torch.cat([previous, rest], dim=-1)], dim=-2)

    def scores(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time 1+time"]:
        """Layer 2's scores: column 0 is the start token, column 1 + j position j, −∞ where it is not seen."""
        self._refuse_tokens(tokens)
        batch, time = tokens.shape
        if time > self.context + LOCAL:  # a place beyond would outgrow what the constructor checked
            raise UsageError(
                f"{time:,} tokens at once",
                f"the circuit was built for a context of {self.context:,}",
                "use read(), which streams, or a longer context",
            )
        content = torch.cat([self.code.new_zeros(batch, 1, self.width), self.code[tokens]], dim=1)
        at = torch.arange(time)
        previous = self.previous(content, torch.arange(-1, time))[:, 1:]
        scores = self.queries(content[:, 1:], at) @ self.keys(previous, at).mT
        behind = at[:, None] - at[None, :]
        scores[..., 1:].masked_fill_((behind < 0) | (behind >= self.context), -math.inf)
        return scores

    def weights(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time 1+time"]:
        """Where the matching head looks: its weights on the start token, then on each position."""
        return torch.softmax(self.scores(tokens), dim=-1)

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time vocabulary+1"]:
        """The share of each symbol in what is copied; the last is "no earlier twin".

        Args:
            tokens: int64, each from 0 to vocabulary − 1.

        Raises:
            UsageError: a token is out of range, or there are more than the scores' exactness allows.
        """
        weights = self.weights(tokens)
        start = torch.full_like(tokens[:, :1], self.vocabulary)
        values = nn.functional.one_hot(torch.cat([start, tokens], dim=1), self.vocabulary + 1)
        return weights @ values.to(self.dtype)

    def read(self, tokens: Int[Tensor, " time"], block: int = BLOCK) -> Iterator[Copies]:
        """The same circuit over a text of any length, a block of queries at a time.

        Only the latest ``context`` keys are kept. Scores lie keys × queries, so that each pass over them runs
        along the queries; the block is small enough for them to stay in a processor's cache.

        Args:
            tokens: int64, each from 0 to vocabulary − 1.
            block: queries at a time.

        Yields:
            What each block copied, in order.

        Raises:
            UsageError: a token is out of range.
        """
        yield from self.stream(torch.split(tokens, min(block, self.context + LOCAL)))

    def stream(self, blocks: Iterable[Int[Tensor, " queries"]]) -> Iterator[Copies]:
        """``read`` for tokens that come in blocks of their own, of which only the latest keys are kept.

        Args:
            blocks: int64, tokens from 0 to vocabulary − 1, and no more than context + LOCAL in a block.

        Raises:
            UsageError: a token is out of range.
        """
        content = self.code.new_zeros(1, self.width)  # the start token
        previous, seen, scratch = content[:0], torch.empty(0, dtype=torch.int64), content[:0, 0]
        stop = 0
        for tokens in blocks:
            self._refuse_tokens(tokens)
            own, start = self.code[tokens], stop
            stop = start + len(own)
            content = torch.cat([content[-LOCAL:], own])
            fresh = self.previous(content, torch.arange(stop - len(content), stop))[-len(own) :]
            past = max(0, len(previous) - self.context + 1)
            previous, seen = torch.cat([previous[past:], fresh]), torch.cat([seen[past:], tokens])
            first = stop - len(previous)
            keys = self.keys(previous, torch.arange(first - start, len(own)))
            if len(scratch) < len(keys) * len(own):
                scratch = content.new_empty((self.context + len(own)) * len(own))
            scores = scratch[: len(keys) * len(own)].view(len(keys), len(own))
            torch.mm(keys, self.queries(own, torch.arange(len(own))).T, out=scores)
            self._hide(scores, start - first)
            yield self._copy(scores, seen, start)

    def _hide(self, scores: Float[Tensor, "1+keys queries"], before: int) -> None:
        """Mask in place what a query may not see, where ``before`` keys precede the first query's own."""
        queries = torch.arange(scores.shape[1])
        behind = queries[None, :] - queries[:, None]
        scores[-len(queries) :].masked_fill_(behind < 0, -math.inf)
        oldest = scores[1 : 1 + len(queries)]
        oldest.masked_fill_(behind + before >= self.context, -math.inf)

    def _copy(
        self, scores: Float[Tensor, "1+keys queries"], seen: Int[Tensor, " keys"], start: int
    ) -> Copies:
        """Softmax over the keys, in place and not yet divided by its sum, and the symbols' shares of it.

        Scores are exact, so the largest one also says how far behind the query its key stands. e^x is taken
        as 2^{x·log₂e}, which is faster far below 0; at 0, the score of the key that wins, it is 1 as well.
        """
        top = scores.amax(dim=0)
        scores.sub_(top).mul_(math.log2(math.e)).exp2_()
        met = torch.zeros(self.vocabulary, dtype=torch.bool)
        met[seen] = True
        symbols, row = met.nonzero().squeeze(1), met.cumsum(0)  # row 0 is left to the start token
        shares = scores.new_zeros(1 + len(symbols), scores.shape[1])
        shares[0] = scores[0]
        shares.index_add_(0, row[seen], scores[1:])
        most, winner = shares.max(dim=0)
        names = torch.cat([torch.tensor([self.nothing]), symbols])
        looked = None
        if self.recency:
            at = torch.arange(start, start + len(top))
            behind = ((self.match - top) / self.recency).long()
            looked = torch.where(top == self.sink, -1, at - behind)
        return Copies(start, looked, names[winner], (shares == most).sum(dim=0) > 1)

    def _refuse_tokens(self, tokens: Int[Tensor, "*batch time"]) -> None:
        """Refuse tokens out of range."""
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary:
            raise UsageError(
                f"tokens from {int(tokens.min())} to {int(tokens.max())}",
                f"the circuit knows 0 to {self.vocabulary - 1}",
                f"build it for a vocabulary of {int(tokens.max()) + 1}"
                if int(tokens.min()) >= 0
                else "count from 0",
            )
