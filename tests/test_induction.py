import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from whyformer.claims.claim import prove
from whyformer.claims.routing.induction import INDUCTION, circuit, completes
from whyformer.errors import UsageError
from whyformer.finding import Verdict
from whyformer.subjects.induction import LOCAL, InductionCircuit, binary_code, crowding, lookup


def naive(tokens, context):
    """For each token: the place after its most recent twin, the symbol there, and how often each followed."""
    answers = []
    for i, token in enumerate(tokens):
        twins = [p for p in range(max(0, i - context), i) if tokens[p] == token]
        followers = [tokens[p + 1] for p in twins]
        counts = {symbol: followers.count(symbol) for symbol in followers}
        answers.append((twins[-1] + 1 if twins else -1, followers[-1] if twins else None, counts))
    return answers


def streamed(tokens, vocabulary, context, recency, block, dtype=torch.float32):
    made = InductionCircuit(vocabulary, context, recency=recency, dtype=dtype)
    blocks = list(made.read(torch.tensor(tokens), block))
    assert [each.start for each in blocks] == [
        sum(len(before.copied) for before in blocks[:n]) for n in range(len(blocks))
    ]
    looked = None if not recency else torch.cat([each.looked for each in blocks]).tolist()
    return (
        looked,
        torch.cat([e.copied for e in blocks]).tolist(),
        torch.cat([e.tied for e in blocks]).tolist(),
    )


texts = st.integers(1, 5).flatmap(
    lambda vocabulary: st.tuples(
        st.just(vocabulary), st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=70)
    )
)


@settings(deadline=None, max_examples=60)
@given(texts, st.integers(1, 40), st.integers(1, 50), st.integers(1, 3))
def test_reading_copies_from_the_most_recent_twin(text, context, block, recency):
    vocabulary, tokens = text
    looked, copied, tied = streamed(tokens, vocabulary, context, recency, block)
    expected = naive(tokens, context)
    assert looked == [after for after, _, _ in expected]
    assert copied == [vocabulary if symbol is None else symbol for _, symbol, _ in expected]
    assert not any(tied)


@settings(deadline=None, max_examples=60)
@given(texts, st.integers(1, 40), st.integers(1, 50))
def test_reading_without_recency_copies_the_plurality(text, context, block):
    vocabulary, tokens = text
    _, copied, tied = streamed(tokens, vocabulary, context, 0, block)
    for said, tie, (_, _, counts) in zip(copied, tied, naive(tokens, context), strict=True):
        leaders = [symbol for symbol in counts if counts[symbol] == max(counts.values())] or [vocabulary]
        assert said in leaders
        assert tie == (len(leaders) > 1)


@settings(deadline=None, max_examples=30)
@given(texts, st.integers(1, 40), st.sampled_from([torch.float16, torch.float32, torch.float64]))
def test_forward_agrees_with_reading_and_with_the_naive_twin(text, context, dtype):
    vocabulary, tokens = text
    tokens = tokens[: context + LOCAL]
    made = InductionCircuit(vocabulary, context, dtype=dtype)
    shares = made(torch.tensor([tokens]))[0]
    _, copied, _ = streamed(tokens, vocabulary, context, 1, 7, dtype)
    assert shares.shape == (len(tokens), vocabulary + 1)
    assert shares.argmax(-1).tolist() == copied
    assert copied == [vocabulary if symbol is None else symbol for _, symbol, _ in naive(tokens, context)]
    assert torch.allclose(
        shares.sum(-1), torch.ones(len(tokens), dtype=dtype), atol=64 * torch.finfo(dtype).eps
    )


def test_all_twins_weigh_exactly_the_same_without_recency():
    tokens = [0, 1, 0, 2, 0, 1, 0, 1, 0]
    shares = InductionCircuit(3, 16, recency=0, dtype=torch.float64)(torch.tensor([tokens]))[0, -1]
    assert torch.allclose(shares, torch.tensor([0, 0.75, 0.25, 0], dtype=torch.float64), rtol=0, atol=1e-15)


def test_the_context_s_border_is_exact():
    for gap, expected in ((8, 1), (9, 2)):
        tokens = [0, 1, *[1] * (gap - 2), 0]
        assert streamed(tokens, 2, 8, 1, 4)[1][-1] == expected


def test_the_previous_token_head_is_exact_and_knows_the_start():
    made = InductionCircuit(11, 64)
    tokens = torch.arange(60) % 11
    content = torch.cat([torch.zeros(1, made.width), made.code[tokens]])
    previous = made.previous(content, torch.arange(-1, 60))[1:]
    assert torch.equal(previous, content[:-1])


def test_nothing_comes_from_a_later_token():
    made = InductionCircuit(5, 32)
    tokens = torch.randint(5, (1, 30), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 20:] = (changed[0, 20:] + 1) % 5
    assert torch.equal(made(tokens)[:, :20], made(changed)[:, :20])


def test_codes_of_different_numbers_differ_in_a_digit():
    codes = binary_code(torch.arange(64), 6, torch.float64)
    products = codes @ codes.T
    assert torch.equal(products.diagonal(), torch.full((64,), 6.0, dtype=torch.float64))
    assert products.fill_diagonal_(-6).max() == 4


@pytest.mark.parametrize(("recency", "context"), [(1, 8192), (2, 100), (1, 1)])
def test_the_inequality_bounds_the_weights_that_are_there(recency, context):
    """The worst text: every key follows a twin, and all but the most recent agree on another symbol."""
    made = InductionCircuit(2, context, recency=recency, dtype=torch.float64)
    bound = crowding(recency, context, made.sharpness)
    assert bound < 1
    length = min(context, 300)
    scores = made.scores(torch.zeros(1, length, dtype=torch.int64))[0, -1]
    others = (scores - scores.max()).exp().sum() - 1
    assert 0 <= others <= bound + math.exp(-40)


def test_crowding_is_that_of_the_claim():
    assert crowding(1, 8, 60) == pytest.approx(1 / (math.e - 1) + 8 * math.exp(8 - 60))
    assert crowding(0, 8, 60) == math.inf
    assert crowding(1, 8, 8) > 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"vocabulary": 0, "context": 8},
        {"vocabulary": 3, "context": 0},
        {"vocabulary": 3, "context": 8, "recency": -1},
        {"vocabulary": 3, "context": 8, "recency": 0.5},
        {"vocabulary": 3, "context": 8, "dtype": torch.bfloat16},
        {"vocabulary": 3, "context": 1000, "dtype": torch.float16},
        {"vocabulary": 3, "context": 10_000_000},
        {"vocabulary": 3, "context": 200_000, "recency": 40},
    ],
)
def test_what_cannot_be_proved_is_refused(arguments):
    with pytest.raises(UsageError) as caught:
        InductionCircuit(**arguments)
    assert "\n" not in str(caught.value)


def test_float64_carries_what_float32_cannot():
    assert InductionCircuit(3, 10_000_000, dtype=torch.float64).sharpness > 10_000_000


@pytest.mark.parametrize("tokens", [[[0, 3]], [[-1, 0]], [[0] * (8 + LOCAL + 1)]])
def test_tokens_out_of_range_are_refused(tokens):
    with pytest.raises(UsageError):
        InductionCircuit(3, 8)(torch.tensor(tokens))
    if len(tokens[0]) == 2:
        with pytest.raises(UsageError):
            next(InductionCircuit(3, 8).read(torch.tensor(tokens[0])))


def test_a_place_where_layer_2_could_look_is_where_it_looks():
    made = InductionCircuit(12, 16)
    weights = made.weights(torch.tensor([[4, 7, 2, 9, 7, 5, 3, 8, 2, 9]]))[0]
    assert weights[-1].argmax() == 1 + 4
    assert weights[5].argmax() == 0
    assert torch.equal(weights[:, 1:].triu(1), torch.zeros(10, 10))


def test_lookup_is_softmax_attention_of_one_query():
    generator = torch.Generator().manual_seed(3)
    query, keys, values = (torch.randn(size, generator=generator) for size in ((4,), (9, 4), (9, 3)))
    naive_weights = [math.exp(float(key @ query)) for key in keys]
    expected = sum(weight * value for weight, value in zip(naive_weights, values, strict=True)) / sum(
        naive_weights
    )
    assert torch.allclose(lookup(query, keys, values), expected, atol=1e-6)


def test_claim_holds_and_its_refuter_is_refuted():
    trial = prove(INDUCTION, 31)
    assert trial.counts
    assert "9,301 of 9,301" in trial.finding.reason  # 3,124 of 4 symbols and 6,177 of 3
    witness = trial.refutation.counterexample
    shares = circuit(recency=0)(torch.tensor([witness["sequence"]]))[0, -1]
    assert int(shares.argmax()) == witness["says"] != witness["expected"]
    assert witness["expected"] == naive(witness["sequence"], 8)[-1][1]


@pytest.mark.parametrize("fault", ["match", "start", "previous"])
def test_claim_catches_planted_faults(fault):
    made = circuit(recency=1)
    if fault == "match":  # two symbols share a code
        made.code[2] = made.code[1]
    elif fault == "start":  # the start token outweighs a twin
        made.sink = made.match
    else:  # the token itself in place of the token before it
        made.previous = lambda content, positions: content
    assert completes(made, torch.Generator()).verdict is Verdict.REFUTED
