"""Audit every architecture, one process each, and write docs/zoo.md: ``python -m bench.zoo``.

What was found is kept in .cache/zoo, so a run that was stopped goes on where it was; ``--fresh`` forgets it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import transformers

from bench.zoo import reasons, table
from bench.zoo.examine import examine_into
from bench.zoo.families import FAMILIES

KEPT = Path(".cache/zoo")
PAGE = Path("docs/zoo.md")


def _run(families: list[str], folder: Path, few: bool, jobs: int, limit: float) -> None:
    """Audit what the folder does not hold yet, so many at a time."""
    waiting = [family for family in families if not (folder / f"{family}.json").is_file()]
    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":
        context.set_forkserver_preload(["bench.zoo.examine"])  # type: ignore[attr-defined]
    running: dict[str, tuple[Any, float]] = {}
    total = len(waiting)
    done = 0
    while waiting or running:
        while waiting and len(running) < jobs:
            family = waiting.pop(0)
            process = context.Process(target=examine_into, args=(family, few, folder / f"{family}.json"))
            process.start()
            running[family] = (process, time.monotonic())
        time.sleep(0.05)
        for family, (process, since) in list(running.items()):
            over = time.monotonic() - since > limit
            if process.is_alive() and not over:
                continue
            if process.is_alive():
                process.kill()
            process.join()
            del running[family]
            path = folder / f"{family}.json"
            if not path.is_file():
                said = f"it took longer than {limit:g} s" if over else f"it ended with {process.exitcode}"
                path.write_text(json.dumps({"family": family, "status": "crashed", "seconds": limit,
                                            "few": few, "said": said}))  # fmt: skip
            done += 1
            if sys.stderr.isatty():
                print(f"{done}/{total} {table.line(json.loads(path.read_text()))}", file=sys.stderr)


def main() -> int:
    """Run, write the page, print the totals; 1 where something crashed or is refuted without a reason."""
    parser = argparse.ArgumentParser(prog="python -m bench.zoo", description=__doc__)
    parser.add_argument("families", nargs="*", help="which; all by default, and then the page is written")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes at a time")
    parser.add_argument("--limit", type=float, default=900, help="seconds for each")
    parser.add_argument("--few", action="store_true", help="few probes, as for a model that is dear to run")
    parser.add_argument("--fresh", action="store_true", help="forget what was found before")
    given = parser.parse_args()
    unknown = sorted(set(given.families) - set(FAMILIES))
    if unknown:
        parser.error(f"transformers {transformers.__version__} has no architecture {unknown[0]!r}")
    folder = KEPT / f"{transformers.__version__}{'-few' if given.few else ''}"
    chosen = given.families or list(FAMILIES)
    if given.fresh:
        for family in chosen:
            (folder / f"{family}.json").unlink(missing_ok=True)
        if not given.families:
            shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    _run(chosen, folder, given.few, given.jobs, given.limit)
    results = [json.loads((folder / f"{family}.json").read_text()) for family in chosen]
    known = reasons.load()
    if not given.families:
        for words in table.stale(results, known):
            print(words)
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(table.page(results, known, transformers.__version__), encoding="utf-8")
    troubles = table.troubles(results, known)
    for words in troubles:
        print(words)
    for name, count in table.totals(results, known).items():
        print(f"{count:6} {name}")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
