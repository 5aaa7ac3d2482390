"""Measure, print every figure beside its limit, and exit with 1 where one is over it.

``python -m bench`` runs the parts that take seconds; ``python -m bench heads`` names others, which take long.
"""

import sys

from bench import heads, lookup, startup

PARTS = {"startup": startup, "lookup": lookup, "heads": heads}
QUICK = ("startup", "lookup")


def main() -> int:
    over = 0
    for part in map(PARTS.__getitem__, sys.argv[1:] or QUICK):
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
