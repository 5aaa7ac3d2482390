"""Wiring and certifying at the sizes that are promised: seconds, megabytes on disk, memory at most.

Each size runs in a process of its own, so that its memory is its own. Without arguments only the smallest is
measured; ``python -m bench.wire all`` measures all.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
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


def main(sizes: tuple[str, ...] = ("llama 1000 1024",)) -> dict[str, float]:
    """Every figure of these sizes, by name."""
    figures: dict[str, float] = {}
    for size in sizes:
        done = subprocess.run(
            [sys.executable, "-m", "bench.wire", "one", *size.split()],
            check=True,
            capture_output=True,
            text=True,
        )
        told = dict(zip(PARTS, map(float, done.stdout.split()), strict=True))
        told["wired and certified, seconds"] = told["wired, seconds"] + told["certified, seconds"]
        figures |= {f"{size}: {name}": value for name, value in told.items()}
    return figures


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


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["one"]:
        architecture, vocabulary, context, *rest = arguments[1:]
        theta = float(rest[1]) if rest else None
        print(*measure(architecture, int(vocabulary), int(context), theta))
        return 0
    figures = main(tuple(SIZES)) if arguments == ["all"] else main()
    over = [name for name, limit in LIMITS.items() if figures.get(name, 0.0) > limit]
    for name, figure in figures.items():
        print(
            f"{name:<62} {figure:10.2f}",
            f"limit {LIMITS[name]:g}" if name in LIMITS else "",
            "NO" * (name in over),
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
