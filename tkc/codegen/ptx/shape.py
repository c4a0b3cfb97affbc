"""Shape operations: which register holds which element, computed once from the layouts; almost no code.

A coordinate is a base that lanes and warps give (computed once, in the prologue) plus a constant of the register.
"""
from __future__ import annotations

from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.scalars import add, mul
from tkc.codegen.ptx.values import Tile, packing, registers_of, splat_bits if False else packing
