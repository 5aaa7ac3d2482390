"""What an option of a call is for, told by its name: another path to the same outputs, or other outputs."""

from __future__ import annotations

from whyformer.subjects.torch_module import ASKS_FOR_MORE

_CHOOSES_HOW = {
    "checkpoint", "checkpointing", "chunked", "chunkwise", "compile", "compiled", "cuda", "eager",
    "efficient", "explicit", "fast", "flash", "fused", "kernel", "kernels", "naive", "parallel", "recurrent",
    "reference", "scan", "sdpa", "sequential", "slow", "triton", "unfused", "unrolled", "vectorized",
    "weights", "xformers",
}  # fmt: skip
"""Words of an option that chooses how to compute; any other option may rightly change what is computed."""


def only_the_path(option: str) -> bool:
    """Whether an option's name says that it chooses how to compute, or asks for more to be returned."""
    words = option.lower().split("_")
    return words[0] in ASKS_FOR_MORE or bool(_CHOOSES_HOW & set(words))
