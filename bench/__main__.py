"""Measure, print the ratios, and exit with 1 where one is over its limit."""

import sys

from bench.startup import startup

sys.exit(0 if startup() else 1)
