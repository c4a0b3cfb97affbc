"""widen-float8: products of float8 on targets whose tensor cores have none are products of float16,
which holds every float8 exactly.

  %d = tile.dot %a, %b, %c : (tile<64x64xf8E4M3FN>, tile<64x64xf8E5M2>, …)            sm_80
becomes
  %x = tile.cast %a : (tile<64x64xf8E4M3FN>) -> tile<64x64xf16>
  %y = tile.cast %b : (tile<64x64xf8E5M2>) -> tile<64x64xf16>
  %d = tile.dot %x, %y, %c : (tile<64x64xf16>, tile<64x64xf16>, …)
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, f16

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.rewrite import before
from tkc.ir.types import TileType, f8e4m3, f8e5m2
from tkc.passes import PassContext

REAL = True  # a cast keeps a number, not its residue


def run(module: ModuleOp, context: PassContext) -> None:
    if context.target.fp8:
        return
    for op in module.walk():
        if not isinstance(op, tile.Dot) or not {op.a.type.element, op.b.type.element} <= {
            f8e4m3,
            f8e5m2,
        }:
            continue
        for i, factor in enumerate((op.a, op.b)):
            wide = before(op, Cast(factor, TileType(factor.type.shape, f16)))
            wide.result.name_hint = factor.name_hint
            op.operands[i] = wide.result
        context.decisions.append(
            f"widen-float8: {context.target.name} multiplies no float8; the factors of a dot become"
            " float16, exactly"
        )
