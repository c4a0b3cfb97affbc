"""Contiguity lives in tkc/ir/axis_info.py, where the emitter may use it too; passes find it here."""
from tkc.ir.axis_info import Along, contiguity  # noqa: F401
