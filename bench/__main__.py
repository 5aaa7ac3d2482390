"""Measure, print every figure beside its limit as it comes, and exit with 1 where one is over it.

``python -m bench`` runs the parts that take seconds; ``python -m bench heads wire`` names others, which take
minutes.
"""

import sys

from bench import heads, lookup, startup, wire

PARTS = {"startup": startup, "lookup": lookup, "heads": heads, "wire": wire}
QUICK = ("startup", "lookup")


def main() -> int:
    over = 0
    for part in map(PARTS.__getitem__, sys.argv[1:] or QUICK):
        for name, figure in part.main():
            limit = part.LIMITS.get(name)
            within = limit is None or figure <= limit
            over += not within
            told = f"{name:<66} {figure:10.3f}"
            if limit is not None:
                told += f" limit {limit:g}{'' if within else ' NO'}"
            print(told, flush=True)
    return 1 if over else 0


sys.exit(main())
