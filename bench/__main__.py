"""Measure, print every figure beside its limit, and exit with 1 where one is over it."""

import sys

from bench import lookup, startup


def main() -> int:
    over = 0
    for part in (startup, lookup):
        for name, figure in part.main().items():
            limit = part.LIMITS.get(name)
            within = limit is None or figure <= limit
            over += not within
            print(
                f"{name:<52} {figure:10.3f}",
                "" if limit is None else f"limit {limit:g}",
                "" if within else "NO",
            )
    return 1 if over else 0


sys.exit(main())
