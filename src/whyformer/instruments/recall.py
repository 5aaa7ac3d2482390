"""Recall: sequences that ask for something seen before, and how many of the answers are right.

Axes: batch, time, asked (the questions of a sequence). Tokens are int64 from 0; −1 stands for no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from whyformer.errors import UsageError

Solver = Callable[[Int[Tensor, "batch time"]], Int[Tensor, "batch time"]]
"""What is asked: from tokens to the token predicted at each position, −1 where it says that there is none."""


@dataclass(frozen=True)
class Questions:
    """Sequences with questions, whose answers are known.

    Attributes:
        tokens: below ``vocabulary``.
        where: the positions at which to predict.
        answers: the right token for each; −1 where there is none, and the question does not count.
        vocabulary: how many tokens there are.
        choices: how many tokens can be an answer; a uniform guess among them is right once in so many.
    """

    tokens: Int[Tensor, "batch time"]
    where: Int[Tensor, "batch asked"]
    answers: Int[Tensor, "batch asked"]
    vocabulary: int
    choices: int


@dataclass(frozen=True)
class Score:
    """How many of the questions that have an answer were answered right.

    Attributes:
        right: answered right.
        asked: had an answer.
        chance: the accuracy of a uniform guess.
    """

    right: int
    asked: int
    chance: float

    @property
    def accuracy(self) -> float:
        """The fraction answered right."""
        return self.right / self.asked


def score(solver: Solver, questions: Questions) -> Score:
    """Ask a solver.

    Raises:
        UsageError: where no question has an answer.
    """
    said = solver(questions.tokens).gather(-1, questions.where)
    counted = questions.answers >= 0
    asked = int(counted.sum())
    if not asked:
        raise UsageError("recall", "no question has an answer", "draw longer or more sequences")
    return Score(int((said == questions.answers)[counted].sum()), asked, 1 / questions.choices)


def sequences(vocabulary: int, time: int) -> Int[Tensor, "batch time"]:
    """Every sequence, vocabulary^time of them, in the order of counting."""
    return torch.cartesian_prod(*[torch.arange(vocabulary)] * time).reshape(-1, time)


def find(tokens: Int[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
    """One hop from each position i: the latest j ≤ i whose previous token equals token i; −1 for none."""
    time = tokens.shape[-1]
    place = torch.arange(time)
    # batch, query i, key j: the token before j, for j ≥ 1
    match = tokens[:, :, None] == torch.cat([tokens[:, :1] * 0 - 1, tokens[:, :-1]], -1)[:, None]
    match &= place <= place[:, None]
    return torch.where(match, place, -1).amax(-1)


def hop(tokens: Int[Tensor, "batch time"], k: int = 1) -> Int[Tensor, "batch time"]:
    """The token k hops from each position, by going hop by hop; −1 where the chain ends before.

    With k = 1 this is the token after the latest earlier twin: the solver of induction that is right by
    construction.

    Raises:
        UsageError: for a negative k.
    """
    if k < 0:
        raise UsageError(f"k = {k}", "a chain has no negative length", "try 1")
    once = find(tokens)
    at = torch.arange(tokens.shape[-1]).expand_as(tokens)
    for _ in range(k):
        at = torch.where(at < 0, -1, once.gather(-1, at.clamp(min=0)))
    return torch.where(at < 0, -1, tokens.gather(-1, at.clamp(min=0)))


def induction(
    count: int,
    vocabulary: int,
    *,
    gap: int,
    distractors: int,
    repeats: int = 1,
    generator: torch.Generator,
) -> Questions:
    """Sequences [… A C … A B … A]: what followed the latest A?

    Each has the query A last, its latest twin ``gap`` positions before it, ``repeats`` twins in all, each
    with its successor, and ``distractors`` other tokens that are not A: distractors + 2·repeats + 1 tokens.
    The twins before the latest stand at random places and are followed by other tokens than the answer, so
    that taking the wrong twin is an error. Answers are uniform over all tokens but A.

    Args:
        count: sequences.
        vocabulary: tokens, 3 or more.
        gap: from the query back to its latest twin, 2 or more.
        distractors: at least gap − 2, which stand inside the gap.
        repeats: earlier twins, 1 or more.
        generator: what they are drawn from.

    Raises:
        UsageError: where the numbers do not fit one another.
    """
    if vocabulary < 3:
        raise UsageError(
            f"a vocabulary of {vocabulary}", "it holds no query, answer and rival", "try 3 or more"
        )
    if repeats < 1:
        raise UsageError(f"{repeats} repeats", "the query has no earlier twin", "try 1 or more")
    if gap < 2 or distractors < gap - 2:
        raise UsageError(
            f"gap {gap} with {distractors} distractors",
            "the gap holds the answer and gap − 2 distractors",
            f"try a gap from 2 to {max(distractors, 0) + 2}",
        )
    last = distractors + 2 * repeats

    def drawn(below: int, *size: int) -> Tensor:
        return torch.randint(below, size, generator=generator)

    query = drawn(vocabulary, count, 1)
    # Adding 1 … vocabulary − 1 to a token, modulo the vocabulary, gives every other token.
    tokens = (query + 1 + drawn(vocabulary - 1, count, last + 1)) % vocabulary
    answer = tokens[:, last - gap + 1].clone()
    tokens[:, [last - gap, last]] = query
    earlier = repeats - 1
    if earlier:
        places = last - gap - earlier  # a twin and its successor count as one place
        order = torch.rand(count, places, generator=generator).argsort(-1)
        twins = order[:, :earlier].sort(-1).values + torch.arange(earlier)
        # Neither the query (offset 0) nor the answer (its offset): one of the vocabulary − 2 others.
        offset = (answer[:, None] - query) % vocabulary
        rival = 1 + drawn(vocabulary - 2, count, earlier)
        rival = rival + (rival >= offset)
        tokens.scatter_(1, twins, query.expand(count, earlier))
        tokens.scatter_(1, twins + 1, (query + rival) % vocabulary)
    return Questions(
        tokens, torch.full((count, 1), last), answer[:, None], vocabulary=vocabulary, choices=vocabulary
    )


def associative(
    count: int, *, pairs: int, queries: int, keys: int, values: int, generator: torch.Generator
) -> Questions:
    """Sequences k₁v₁ … k_m v_m q₁ … q_n: at each query, which value came after that key?

    Keys are tokens 0 … keys − 1, values the ``values`` tokens after them, uniform. The keys of a sequence are
    distinct, and so are its queries.

    Args:
        count: sequences.
        pairs: m.
        queries: n, at most m.
        keys: at least m.
        values: 1 or more.
        generator: what they are drawn from.

    Raises:
        UsageError: where the numbers do not fit one another.
    """
    if not 1 <= queries <= pairs <= keys or values < 1:
        raise UsageError(
            f"{queries} queries of {pairs} pairs of {keys} keys and {values} values",
            "distinct queries are some of the pairs, and distinct pairs some of the keys",
            "keep 1 ≤ queries ≤ pairs ≤ keys and 1 ≤ values",
        )
    key = torch.rand(count, keys, generator=generator).argsort(-1)[:, :pairs]
    value = keys + torch.randint(values, (count, pairs), generator=generator)
    picked = torch.rand(count, pairs, generator=generator).argsort(-1)[:, :queries]
    listed = torch.stack([key, value], -1).flatten(1)
    tokens = torch.cat([listed, key.gather(1, picked)], 1)
    where = (2 * pairs + torch.arange(queries)).expand(count, queries)
    return Questions(tokens, where, value.gather(1, picked), vocabulary=keys + values, choices=values)


def hops(count: int, time: int, vocabulary: int, k: int, *, generator: torch.Generator) -> Questions:
    """Uniform sequences that ask at every position for the token k hops away; −1 where the chain ends.

    Args:
        count: sequences.
        time: tokens of each.
        vocabulary: tokens.
        k: hops, as in ``hop``.
        generator: what they are drawn from.
    """
    tokens = torch.randint(vocabulary, (count, time), generator=generator)
    where = torch.arange(time).expand(count, time)
    return Questions(tokens, where, hop(tokens, k), vocabulary=vocabulary, choices=vocabulary)
