"""The largest attention score, read off softmax and off fused kernels."""

import pytest
import torch
from torch.nn import functional

from whyformer.instruments.scores import Scores


def test_the_largest_score_is_read_and_masks_do_not_count():
    scores = torch.tensor([[3.0, -1e9], [5.0, 2.0]])
    with torch.no_grad(), Scores() as seen:
        scores.softmax(-1)
        (scores - 20).softmax(-1)
    assert seen.largest == 5.0


def test_a_fused_kernel_is_bounded_by_its_longest_query_and_key():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 6, 8, generator=generator) for _ in range(2))
    with torch.no_grad(), Scores() as seen:
        functional.scaled_dot_product_attention(q, k, k, is_causal=True)
    largest = float((q @ k.transpose(2, 3)).max() / 8**0.5)
    longest = float(q.norm(dim=-1).max() * k.norm(dim=-1).max() / 8**0.5)
    assert largest <= seen.largest == pytest.approx(longest)


def test_where_there_is_no_attention_there_is_no_score():
    with torch.no_grad(), Scores() as seen:
        torch.ones(3) @ torch.ones(3)
    assert seen.largest == 0
