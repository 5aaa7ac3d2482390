"""One architecture built, run once, and audited; whatever happens is told as data."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.zoo.families import build
from whyformer.auditing import audit
from whyformer.report.schema import as_dict
from whyformer.subjects.checkpoints import quiet
from whyformer.subjects.targets import subject_of

LENGTH = 24
"""Past every window of the shrunken families, which is 8 inputs."""
AUDITED, NOT_BUILT, CRASHED = "audited", "not built", "crashed"


def examine(family: str, *, few: bool = False) -> dict[str, Any]:
    """Build one architecture and audit it.

    Args:
        family: its name in transformers.
        few: whether to ask no more of it than of a model whose forwards are dear.

    Returns:
        ``family``, ``status``, ``seconds``, and ``said``, a line on what stopped it, or its ``report``.
    """
    torch.set_num_threads(1)
    start = time.perf_counter()

    def told(status: str, **rest: Any) -> dict[str, Any]:
        return {
            "family": family,
            "status": status,
            "seconds": round(time.perf_counter() - start, 1),
            "few": few,
            **rest,
        }

    try:
        model = build(family)
        with torch.inference_mode(), quiet():
            model(input_ids=torch.zeros(1, 2, dtype=torch.int64), use_cache=False)
    except Exception as error:
        return told(NOT_BUILT, said=_line(error))
    try:
        subject = subject_of(model, name=family)
        subject.traits = replace(subject.traits, large=few)
        report = audit(subject, length=LENGTH)
    except Exception as error:
        return told(CRASHED, said=_line(error))
    return told(AUDITED, report=as_dict(report))


def _line(error: Exception) -> str:
    """An exception in one line, its kind first."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def examine_into(family: str, few: bool, path: Path) -> None:
    """The same, written as JSON beside the path and then renamed to it."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(examine(family, few=few), indent=1, allow_nan=False))
    beside.rename(path)
