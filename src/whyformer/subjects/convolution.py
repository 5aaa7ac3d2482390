"""A stack of dilated causal convolutions: every layer looks a fixed set of steps back.

Axes: batch, time, width.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from whyformer.errors import UsageError


class DilatedConvolution(nn.Module):
    """Residual layers of causal convolution; layer l looks 0, d, 2d, … steps back, with d = kernel^l.

    Output i depends on the inputs i − reach + 1 … i, each of them, and on no other: the sums of one tap per
    layer are the numbers below kernel^layers written in base ``kernel``. A tap that would fall before the
    start reads zeros.

    Args:
        width: coordinates of a token.
        layers: how many.
        kernel: taps of each layer, 2 or more.
        generator: what the weights are drawn from, normal with variance 1/fan-in.
        dtype: of the weights.

    Attributes:
        reach: kernel^layers, the latest inputs that an output depends on, its own included.

    Raises:
        UsageError: for a kernel of fewer than 2 taps.
    """

    def __init__(
        self,
        width: int,
        layers: int,
        kernel: int = 2,
        *,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        if kernel < 2:
            raise UsageError(f"kernel {kernel}", "a layer of one tap looks at no other position", "try 2")
        self.kernel, self.reach = kernel, kernel**layers
        fan_in = kernel * width
        drawn = torch.randn(layers, width, fan_in, generator=generator, dtype=torch.float64) / fan_in**0.5
        self.weight = nn.Parameter(drawn.to(dtype))

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        """Run every layer. One matrix product a position: no tap mixes in what it does not read."""
        time = x.shape[-2]
        for layer, weight in enumerate(self.weight):
            back = [tap * self.kernel**layer for tap in range(self.kernel)]
            taps = [functional.pad(x, (0, 0, steps, 0))[..., :time, :] for steps in back]
            x = x + torch.tanh(torch.cat(taps, -1) @ weight.mT)
        return x
