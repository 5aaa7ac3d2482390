"""The one-layer head of the lab that whyformer grew out of: its values are handed over already shifted."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from whyformer.subjects.induction import lookup


@dataclass(frozen=True)
class HandedValues:
    """One head that matches a token's earlier twin, where someone else looked up what followed it.

    Query and keys are one-hot tokens. The value at position i is token i+1, which no weight brought there:
    the caller's list did. So it attends as a duplicate-token head does, to the twin itself, and it answers
    as an induction head does, with the twin's successor.

    Attributes:
        vocabulary: how many symbols there are.
        sharpness: the score of a match; every other score is 0.
    """

    vocabulary: int
    sharpness: float = 30.0

    def one_hot(self, tokens: Int[Tensor, " time"]) -> Float[Tensor, "time vocabulary"]:
        """Tokens as float64 rows that match themselves only."""
        return functional.one_hot(tokens, self.vocabulary).double()

    def weights(self, x: Float[Tensor, "time vocabulary"]) -> Float[Tensor, " earlier"]:
        """How much the last token attends to each earlier one; it is kept from itself by hand."""
        return (x[:-1] @ x[-1] * self.sharpness).softmax(-1)

    def logits(
        self, x: Float[Tensor, "time vocabulary"], tokens: Int[Tensor, " time"]
    ) -> Float[Tensor, " vocabulary"]:
        """What the last token copies.

        Args:
            x: the embedded tokens, which give query and keys.
            tokens: the same tokens as a list, which gives the shifted values.
        """
        return lookup(self.sharpness * x[-1], x[:-1], self.one_hot(tokens[1:]))
