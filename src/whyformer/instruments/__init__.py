"""How a subject is measured: numbers, with what rounding can explain, and never a verdict."""
