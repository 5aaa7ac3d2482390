"""Claims as assertions, for anyone's tests.

    from whyformer.testing import assert_causal

    def test_my_decoder_is_causal():
        assert_causal(MyDecoder(), tokens=32_000)

Each takes a torch module, a subject, or a TARGET as on the command line, with ``tokens`` or ``width`` where a
module needs it, and ``length`` and ``seed`` as an audit does. It passes where the claim holds. Where it is
refuted it fails with the smallest input that refutes it; where it is inconclusive or does not apply it fails
with the reason, since nothing was shown then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from whyformer.finding import Finding, Verdict

if TYPE_CHECKING:
    from torch import nn

    from whyformer.subjects.subject import Subject

    Model = Subject | nn.Module | str


class How(TypedDict, total=False):
    """How a model is examined: see :func:`whyformer.audit`."""

    tokens: int
    width: int
    length: int
    seed: int


class ClaimError(AssertionError):
    """A claim that does not hold.

    Attributes:
        finding: what came of it, with the counterexample where there is one.
    """

    def __init__(self, finding: Finding) -> None:
        from whyformer.report.terminal import finding_text

        value = "" if finding.value is None else f"={finding.value}"
        verdict = {Verdict.REFUTED: "is refuted", Verdict.INCONCLUSIVE: "is inconclusive"}
        said = verdict.get(finding.verdict, "does not apply")
        super().__init__(f"{finding.claim}{value} {said}\n{finding_text(finding)}")
        self.finding = finding

    def __reduce__(self) -> tuple[type[ClaimError], tuple[Finding]]:
        return type(self), (self.finding,)


def assert_holds(claim: str, model: Model, **how: Unpack[How]) -> Finding:
    """The claim holds for the model.

    Args:
        claim: an id of the audit, with its value where it takes one: ``routing.reach=16``.
        model: a torch module, a subject, or a TARGET.
        how: ``tokens`` or ``width``, ``length`` and ``seed``, as for :func:`whyformer.audit`.

    Returns:
        The finding that it holds.

    Raises:
        ClaimError: it is refuted, inconclusive or inapplicable.
        UsageError: the model or an argument cannot be used.
    """
    from whyformer.auditing import audit

    (finding,) = audit(model, claims=[claim], **how).findings
    if finding.verdict is not Verdict.HOLDS:
        raise ClaimError(finding)
    return finding


def assert_causal(model: Model, **how: Unpack[How]) -> None:
    """No output depends on a later input. See :func:`assert_holds`."""
    assert_holds("routing.causal", model, **how)


def assert_reach(model: Model, inputs: int, **how: Unpack[How]) -> None:
    """An output depends on at most the ``inputs`` latest, itself included. See :func:`assert_holds`."""
    assert_holds(f"routing.reach={inputs}", model, **how)


def assert_batch_invariant(model: Model, **how: Unpack[How]) -> None:
    """A row's output does not depend on the other rows, nor on how many there are."""
    assert_holds("routing.batch", model, **how)


def assert_padding_invariant(model: Model, **how: Unpack[How]) -> None:
    """Masked positions change nothing at real ones. See :func:`assert_holds`."""
    assert_holds("routing.padding", model, **how)


def assert_cache_consistent(model: Model, **how: Unpack[How]) -> None:
    """Token-by-token decoding equals the full forward. See :func:`assert_holds`."""
    assert_holds("routing.cache", model, **how)


def assert_chunks_consistent(model: Model, **how: Unpack[How]) -> None:
    """Chunked prefill equals the full forward. See :func:`assert_holds`."""
    assert_holds("routing.chunks", model, **how)


def assert_packing_isolated(model: Model, **how: Unpack[How]) -> None:
    """Documents packed in a row do not see each other. See :func:`assert_holds`."""
    assert_holds("routing.packing", model, **how)


def assert_order_blind(model: Model, **how: Unpack[How]) -> None:
    """The model is permutation-equivariant. See :func:`assert_holds`."""
    assert_holds("order.blind", model, **how)


def assert_order_sensitive(model: Model, **how: Unpack[How]) -> None:
    """The model can tell orders apart. See :func:`assert_holds`."""
    assert_holds("order.sensitive", model, **how)


def assert_shift_invariant(model: Model, **how: Unpack[How]) -> None:
    """Adding a constant to all positions changes nothing. See :func:`assert_holds`."""
    assert_holds("order.shift", model, **how)


def assert_positions_resolved(model: Model, positions: int | None = None, **how: Unpack[How]) -> None:
    """Neighbouring positions stay distinguishable up to ``positions``, in the model's own dtype."""
    assert_holds("order.resolution" if positions is None else f"order.resolution={positions}", model, **how)


def assert_lookup(model: Model, **how: Unpack[How]) -> None:
    """The model completes [.. A B .. A] with B, better than chance at every gap. See :func:`assert_holds`."""
    assert_holds("routing.lookup", model, **how)
