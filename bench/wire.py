"""Wiring and certifying at the sizes that are promised: seconds, megabytes on disk, memory at most.

Each size runs in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SIZES = {
    "llama 1000 1024": 20.0,
    "llama 32000 8192": 60.0,
    "gpt2 50257 131072": 180.0,
    "llama 128256 32768 --theta 500000": 180.0,
    "llama 32000 131072": 240.0,
    "llama 1000 1048576": 3600.0,
}
"""Architecture, vocabulary, context and options; the most seconds that wiring and certifying may take."""
MEMORY = 4096.0
"""The most memory, in MiB."""
PARTS = ("wired, seconds", "certified, seconds", "on disk, MiB", "over its tables", "memory, MiB")
LIMITS = {f"{size}: wired and certified, seconds": limit for size, limit in SIZES.items()}
LIMITS |= {f"{size}: memory, MiB": MEMORY for size in SIZES}
LIMITS |= {f"{size}: over its tables": 1.1 for size in SIZES if int(size.split()[1]) >= 32000}
"""A file is its embedding, and unembedding or positions, and little else where the vocabulary is large."""


def main() -> Iterator[tuple[str, float]]:
    """Every figure of every size, by name."""
    for size in SIZES:
        command = [sys.executable, "-m", "bench.wire", *size.split()]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        told = dict(zip(PARTS, map(float, done.stdout.split()), strict=True))
        told["wired and certified, seconds"] = told["wired, seconds"] + told["certified, seconds"]
        yield from ((f"{size}: {name}", value) for name, value in told.items())


def measure(architecture: str, vocabulary: int, context: int, theta: float | None) -> tuple[float, ...]:
    """The figures of PARTS, of one size."""
    from safetensors.torch import load_file

    from whyformer.wire import certify, wire

    with tempfile.TemporaryDirectory() as at:
        out = Path(at) / "model"
        start = time.perf_counter()
        wire(architecture, vocabulary=vocabulary, context=context, theta=theta, out=out)
        wired = time.perf_counter()
        certify(out)
        certified = time.perf_counter()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        weights = out / "model.safetensors"
        tables = [
            tensor.nbytes for tensor in load_file(weights).values() if len(tensor) in (vocabulary, context)
        ]
        size = weights.stat().st_size
    return wired - start, certified - wired, size / 2**20, size / sum(tables), memory


if __name__ == "__main__":
    architecture, vocabulary, context, *rest = sys.argv[1:]
    print(*measure(architecture, int(vocabulary), int(context), float(rest[1]) if rest else None))
