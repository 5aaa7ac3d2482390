"""Wall time of fresh processes: the whole lab and its help, against importing torch and a one-file lab."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROUNDS = 7
ONE_FILE = Path(__file__).with_name("one_file_lab.py")
COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "one-file lab": [sys.executable, str(ONE_FILE)],
    "whyformer": [sys.executable, "-m", "whyformer"],
    "whyformer --help": [sys.executable, "-m", "whyformer", "--help"],
}
LIMITS = {
    "whyformer / import torch": 4.0,
    "whyformer / one-file lab": 3.0,
    "whyformer --help / import torch": 0.3,
}
"""The most that each ratio of ``main`` may be."""


def medians(commands: Mapping[str, Sequence[str]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median seconds of each command, in fresh processes, one of each in turn; a first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"NO_COLOR": "1"})
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def main() -> Iterator[tuple[str, float]]:
    """The ratios that ``LIMITS`` bounds, and the medians behind them."""
    found = medians(COMMANDS)
    for name in LIMITS:
        one, other = name.split(" / ")
        yield name, found[one] / found[other]
    for name, median in found.items():
        yield f"{name}, s", median
