"""Ranges live in tkc/ir/ranges.py, where the emitter may use them too; passes find them here."""
from tkc.ir.ranges import Range, Ranges, bounds, divisor, exactly  # noqa: F401
