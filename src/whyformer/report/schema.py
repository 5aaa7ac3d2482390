"""A report as JSON, by the schema ``whyformer/report/1``; equal reports give equal bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from whyformer import __version__
from whyformer.errors import UsageError
from whyformer.finding import Finding, Report

SCHEMA = "whyformer/report/1"


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain JSON data, keys in the order of the schema; ``timing`` only where there is one."""
    data = {
        "schema": SCHEMA,
        "whyformer": __version__,
        "torch": version("torch"),
        "subject": report.subject,
        "seed": report.seed,
        "verdict": report.verdict,
        "findings": [_finding(finding) for finding in report.findings],
    }
    if report.timing:
        data["timing"] = report.timing
    return _plain(data)


def to_bytes(report: Report) -> bytes:
    """The report as UTF-8 JSON, which ends in a newline.

    Raises:
        ValueError: a figure is NaN or infinite, which JSON cannot carry.
    """
    text = json.dumps(as_dict(report), indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "backslashreplace")


def json_schema(name: str = "report-1") -> dict[str, Any]:
    """The JSON Schema (2020-12) of ``whyformer/report/1``, or another, as it is shipped."""
    return json.loads(files("whyformer.report").joinpath(f"schemas/{name}.json").read_bytes())


def write_json(report: Report, path: Path) -> None:
    """Write the report whole or not at all: beside its place first, then renamed into it.

    Raises:
        UsageError: nothing can be written there; see ``check_writable``.
    """
    replace_file(path, to_bytes(report))


def write_data(data: Mapping[str, Any], path: Path) -> None:
    """Write plain data whole or not at all, as ``write_json`` does a report.

    Raises:
        UsageError: nothing can be written there; see ``check_writable``.
        ValueError: a figure is NaN or infinite, which JSON cannot carry.
    """
    text = json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False)
    replace_file(path, (text + "\n").encode("utf-8", "backslashreplace"))


def check_writable(path: Path, option: str = "--json") -> None:
    """Find out, before long work, whether a file can be written there; leaves nothing behind.

    Raises:
        UsageError: the folder is missing or closed, or the path is a folder, a device or read-only.
    """
    replace_file(path, None, option)


def replace_file(path: Path, content: bytes | None, option: str = "--json") -> None:
    """Put the content in the file's place, whole or not at all; without content only try what that takes.

    Raises:
        UsageError: nothing can be written there; the line names the option.
    """
    try:
        target = path.resolve()
        if target.is_dir():
            raise IsADirectoryError("it is a folder")
        if target.exists() and not target.is_file():
            raise OSError("it is not a regular file")
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError("it is read-only")
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with part.open("xb") as stream:
                stream.write(content or b"")
            if content is not None:
                part.replace(target)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        mend = "name a file in a folder that you can write to"
        raise UsageError(f"{option} {str(path)!r}", f"cannot be written: {why}", mend) from error


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "claim": finding.claim,
        "value": finding.value,
        "verdict": finding.verdict,
        "strength": finding.strength,
        "measured": finding.measured,
        "bound": finding.bound,
        "bound_from": finding.bound_from,
        "path": finding.path,
        "reason": finding.reason,
        "counterexample": finding.counterexample,
    }


def _plain(data: Any) -> Any:
    """Mappings as dicts, sequences as lists, enumerations as their strings."""
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return str(data) if isinstance(data, str) else data
