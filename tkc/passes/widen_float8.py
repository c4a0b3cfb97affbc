"""widen-float8: dots of float8 on targets whose tensor cores have none are dots of float16, which
holds every float8 exactly.

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
from tkc.ir.types import TileType, element_of, f8e4m3, f8e5m2
from tkc.ir.values import tile_type
from tkc.passes import PassContext

REAL = True  # a cast keeps a number, not its residue


def run(module: ModuleOp, context: PassContext) -> None:
    """Casts the operands of float8 dots, where the target has no tensor cores for them."""
    if context.target.fp8:
        return
    for op in module.walk():
        if not isinstance(op, tile.Dot):
            continue
        if not {element_of(v.type) for v in (op.a, op.b)} <= {f8e4m3, f8e5m2}:
            continue
        for i, operand in enumerate((op.a, op.b)):
            wide = before(op, Cast(operand, TileType(tile_type(operand).shape, f16)))
            wide.result.name_hint = operand.name_hint
            op.operands[i] = wide.result
        context.decisions.append(
            f"widen-float8: {context.target.name} multiplies no float8; the operands of a dot"
            " become float16, exactly"
        )
