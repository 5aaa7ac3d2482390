"""Recall: questions whose answers are known, solvers right by construction, and guesses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.claims.claim import generator_for
from whyformer.errors import UsageError
from whyformer.instruments import recall

SEEDS = st.integers(0, 999)


def generator(seed=31):
    return generator_for(seed, "test_recall")


def naive_find(tokens):
    """Per position, by two loops."""
    return [
        max((j for j in range(1, i + 1) if tokens[j - 1] == tokens[i]), default=-1)
        for i in range(len(tokens))
    ]


def naive_hop(tokens, k):
    once, ends = naive_find(tokens), []
    for at in range(len(tokens)):
        for _ in range(k):
            at = once[at] if at >= 0 else -1
        ends.append(tokens[at] if at >= 0 else -1)
    return ends


@settings(max_examples=60, deadline=None)
@given(tokens=st.lists(st.integers(0, 3), min_size=1, max_size=14), k=st.integers(0, 6))
def test_hops_are_the_naive_ones(tokens, k):
    batch = torch.tensor([tokens, tokens[::-1]])
    assert recall.find(batch).tolist() == [naive_find(tokens), naive_find(tokens[::-1])]
    assert recall.hop(batch, k).tolist() == [naive_hop(tokens, k), naive_hop(tokens[::-1], k)]


def test_sequences_are_all_of_them_once():
    found = recall.sequences(3, 4)
    assert found.shape == (81, 4)
    assert len({tuple(row) for row in found.tolist()}) == 81
    assert recall.sequences(2, 1).tolist() == [[0], [1]]


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=st.integers(3, 9),
    gap=st.integers(2, 12),
    more=st.integers(0, 8),
    repeats=st.integers(1, 4),
    seed=SEEDS,
)
def test_induction_is_what_it_says(vocabulary, gap, more, repeats, seed):
    distractors = gap - 2 + more
    asked = recall.induction(
        20, vocabulary, gap=gap, distractors=distractors, repeats=repeats, generator=generator(seed)
    )
    for row, where, answer in zip(
        asked.tokens.tolist(), asked.where.tolist(), asked.answers.tolist(), strict=True
    ):
        assert len(row) == distractors + 2 * repeats + 1
        assert where == [len(row) - 1]
        assert all(0 <= token < vocabulary for token in row)
        twins = [i for i, token in enumerate(row[:-1]) if token == row[-1]]
        assert len(twins) == repeats
        assert twins[-1] == len(row) - 1 - gap
        assert row[twins[-1] + 1] == answer[0] != row[-1]
        assert all(row[twin + 1] not in (answer[0], row[-1]) for twin in twins[:-1])


@settings(max_examples=40, deadline=None)
@given(
    queries=st.integers(1, 4),
    more=st.integers(0, 3),
    spare=st.integers(0, 3),
    values=st.integers(1, 5),
    seed=SEEDS,
)
def test_associative_is_what_it_says(queries, more, spare, values, seed):
    pairs = queries + more
    asked = recall.associative(
        10, pairs=pairs, queries=queries, keys=pairs + spare, values=values, generator=generator(seed)
    )
    for row, where, answers in zip(
        asked.tokens.tolist(), asked.where.tolist(), asked.answers.tolist(), strict=True
    ):
        table = dict(zip(row[: 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        assert len(table) == pairs
        assert len({row[i] for i in where}) == queries
        assert [table[row[i]] for i in where] == answers
        assert all(pairs + spare <= value < asked.vocabulary for value in table.values())


QUESTIONS = {
    "induction": lambda: recall.induction(500, 6, gap=5, distractors=20, generator=generator()),
    "repeats": lambda: recall.induction(500, 6, gap=5, distractors=20, repeats=4, generator=generator()),
    "associative": lambda: recall.associative(
        500, pairs=6, queries=3, keys=8, values=5, generator=generator()
    ),
    "hops": lambda: recall.hops(200, 20, 5, 1, generator=generator()),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_solver_right_by_construction_scores_one(name):
    asked = QUESTIONS[name]()
    assert recall.score(recall.hop, asked).accuracy == 1


@pytest.mark.parametrize("k", [1, 2, 5])
def test_k_hops_need_k_hops(k):
    asked = recall.hops(200, 20, 5, k, generator=generator())
    assert recall.score(lambda tokens: recall.hop(tokens, k), asked).accuracy == 1
    assert recall.score(lambda tokens: recall.hop(tokens, k + 1), asked).accuracy < 0.9


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_uniform_guess_scores_chance(name):
    asked = QUESTIONS[name]()
    draws = generator_for(7, "guess")
    low = asked.vocabulary - asked.choices  # the answers are the last tokens

    def guess(tokens):
        return torch.randint(low, asked.vocabulary, tokens.shape, generator=draws)

    score = recall.score(guess, asked)
    spread = (score.chance * (1 - score.chance) / score.asked) ** 0.5
    assert abs(score.accuracy - score.chance) < 4 * spread


def test_taking_another_twin_is_an_error():
    asked = QUESTIONS["repeats"]()

    def earliest(tokens):
        twin = (tokens[:, :-1] == tokens[:, -1:]).int().argmax(-1, keepdim=True)
        return tokens.gather(1, twin + 1).expand_as(tokens)

    assert recall.score(earliest, asked).right == 0


def test_a_question_without_answer_does_not_count():
    tokens = torch.tensor([[0, 1, 0]])
    at = torch.arange(3)[None]
    asked = recall.Questions(tokens, at, recall.hop(tokens), vocabulary=2, choices=2)
    assert recall.score(recall.hop, asked) == recall.Score(1, 1, 0.5)
    none = recall.Questions(tokens[:, :2], at[:, :2], recall.hop(tokens[:, :2]), vocabulary=2, choices=2)
    with pytest.raises(UsageError):
        recall.score(recall.hop, none)


@pytest.mark.parametrize(
    "ask",
    [
        lambda g: recall.induction(1, 2, gap=2, distractors=3, generator=g),
        lambda g: recall.induction(1, 5, gap=1, distractors=3, generator=g),
        lambda g: recall.induction(1, 5, gap=9, distractors=3, generator=g),
        lambda g: recall.induction(1, 5, gap=2, distractors=3, repeats=0, generator=g),
        lambda g: recall.associative(1, pairs=3, queries=4, keys=5, values=2, generator=g),
        lambda g: recall.associative(1, pairs=6, queries=4, keys=5, values=2, generator=g),
        lambda g: recall.hops(1, 5, 2, -1, generator=g),
    ],
)
def test_numbers_that_do_not_fit_are_refused_in_one_line(ask):
    with pytest.raises(UsageError) as refused:
        ask(generator())
    assert "\n" not in str(refused.value)
