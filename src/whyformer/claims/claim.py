"""What a claim is: one falsifiable sentence, the instrument that tests it, and the model that breaks it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from whyformer.finding import Finding, Verdict


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One falsifiable sentence about a subject.

    Attributes:
        id: ``routing.NAME`` or ``order.NAME``.
        sentence: what is claimed, in one sentence.
        mathematics: the statement and its proof or bound, in plain text of several lines.
        instrument: which measurement tests it, in words.
        rule: when the verdict is *holds*, when *refuted*, in words.
        scope: how far *holds* reaches, in words ("all 5,040 permutations of 7 positions").
        breaks: the model for which it is false, in words.
        source: where it comes from, with what was checked of it.
        test: tries the claim on a subject; draws only from the generator.
        specimen: makes the subject for which it holds.
        refuter: makes the subject for which it is false.
    """

    id: str
    sentence: str
    mathematics: str
    instrument: str
    rule: str
    scope: str
    breaks: str
    source: str
    test: Callable[[Any, torch.Generator], Finding]
    specimen: Callable[[torch.Generator], Any]
    refuter: Callable[[torch.Generator], Any]


@dataclass(frozen=True)
class Trial:
    """A claim tried on its specimen and on its refuter.

    Attributes:
        claim: what was tried.
        finding: what came of the specimen.
        refutation: what came of the refuter.
    """

    claim: Claim
    finding: Finding
    refutation: Finding

    @property
    def counts(self) -> bool:
        """Whether the claim holds for the specimen and the same test refutes the refuter."""
        return self.finding.verdict is Verdict.HOLDS and self.refutation.verdict is Verdict.REFUTED


def generator_for(seed: int, name: str) -> torch.Generator:
    """A generator of its own for each name, so that no draw depends on what was run before it."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


def prove(claim: Claim, seed: int) -> Trial:
    """Try a claim on its specimen and on its refuter.

    Args:
        claim: what to try.
        seed: 0 or more; all draws follow from it and from the claim's id.
    """

    def tried(make: Callable[[torch.Generator], Any], role: str) -> Finding:
        subject = make(generator_for(seed, f"{claim.id}/{role}"))
        return claim.test(subject, generator_for(seed, f"{claim.id}/{role}/draws"))

    return Trial(claim, tried(claim.specimen, "specimen"), tried(claim.refuter, "refuter"))
