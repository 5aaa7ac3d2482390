"""Where no number comes of a subject, every claim is undecided: NaN is neither a YES nor a NO."""

import dataclasses
import json
import math
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from whyformer.claims import CLAIM_IDS, catalogue
from whyformer.claims.claim import generator_for
from whyformer.finding import Verdict

WITHOUT_NUMBERS = {"routing.hops", "routing.capacity", "order.toeplitz-bias"}
"""Their specimens are whole numbers or functions."""


def poisoned(subject):
    """The subject with NaN in a weight of each module, or in a row of a tensor; how many were met."""
    if isinstance(subject, nn.Module):
        weights = [*subject.parameters(), *subject.buffers()]
        weights = [weight for weight in weights if weight.is_floating_point() and weight.numel()]
        with torch.no_grad():
            for weight in weights:
                weight[(0,) * weight.dim()] = math.nan
        return len(weights)
    if isinstance(subject, torch.Tensor):
        subject[(0,) * subject.dim()] = math.nan
        return 1
    if dataclasses.is_dataclass(subject):
        return sum(poisoned(getattr(subject, field.name)) for field in dataclasses.fields(subject))
    parts = subject.values() if isinstance(subject, Mapping) else subject
    return sum(map(poisoned, parts)) if isinstance(parts, (list, tuple, type({}.values()))) else 0


@pytest.mark.parametrize("name", [name for name in CLAIM_IDS if name not in WITHOUT_NUMBERS])
def test_nan_is_neither_yes_nor_no(name):
    claim = catalogue()[name]
    subject = claim.specimen(generator_for(0, name))
    if not poisoned(subject):
        pytest.skip("no weights")
    finding = claim.test(subject, generator_for(0, "draws"))
    assert finding.verdict is Verdict.INCONCLUSIVE
    json.dumps(dataclasses.asdict(finding), allow_nan=False)
