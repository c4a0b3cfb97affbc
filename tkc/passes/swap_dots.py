"""swap-dots: a dot as its own transpose, where the plan says so: (bᵀ aᵀ)ᵀ.

wgmma's left factor may be in registers, its right one not; so a right factor that is computed
(weights of 8 bits, made bfloat16) has to become the left one. The transposes move to where they
cost nothing: through element-wise operations down to the loads, which land in shared memory as they
are, and up to the uses of the sum, where they choose registers:

    for k, acc:                                            for k, accᵀ:
      w = cast(load b)                                       wᵀ = cast((load b)ᵀ)
      acc = dot(load a, w, acc)                     ->       accᵀ = dot(wᵀ, (load a)ᵀ, accᵀ)
    store acc                                              store (accᵀ)ᵀ
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.plan import number_of
from tkc.ir.rewrite import after, before, erase, rebuild_for, retype
from tkc.ir.types import TileType
from tkc.passes import PassContext
from tkc.passes.analysis.values import POINTWISE


def run(module: ModuleOp, context: PassContext) -> None:
    if context.plan is None:
        return
    for kernel in module.body.block.ops:
        for dot in [op for op in kernel.walk() if isinstance(op, tile.Dot)]:
            if not (chosen := context.plan.dot(dot)) or not chosen.swap:
                continue
            _swap(dot)
            context.decisions.append(
                f"swap-dots: dot {number_of(dot)} is computed as its transpose"
            )


def _swap(dot: tile.Dot) -> None:
    """A dot whose sum just goes round its loop and starts from zero."""
    loop: scf.ForOp = dot.parent_op()
    body, index, count, whole = (
        loop.body.block,
        dot.acc.index - 1,
        len(loop.iter_args),
        dot.result.type,
    )
    zero = before(loop, tile.Constant(0, _turned_type(whole))).result
    loop = rebuild_for(loop, range(count), [zero])
    carried = body.args[-1]
    carried.name_hint = dot.acc.name_hint
    new = tile.Dot(turned(dot.b, dot), turned(dot.a, dot), carried, dot.precision.data)
    new.attributes |= dot.attributes
    before(dot, new)
    body.last_op.operands = [
        *(body.args[1 + i] if i == index else v for i, v in enumerate(body.last_op.operands)),
        new.result,
    ]
    erase(dot)
    loop.results[index].replace_all_uses_with(
        after(loop, tile.Transpose(loop.results[-1], (1, 0))).result
    )
    rebuild_for(loop, [i for i in range(count + 1) if i != index])


def _turned_type(t: TileType) -> TileType:
    return TileType(t.extents[::-1], t.element)


def turned(value: SSAValue, anchor: Operation) -> SSAValue:
    """The transpose of a tile of two axes, the same element-wise operations on transposes."""
    op = value.owner
    if not isinstance(value.type, TileType):
        return value
    t = _turned_type(value.type)
    match op:
        case tile.Transpose():
            return op.arg
        case tile.Constant():
            return before(anchor, tile.Constant(op.number, t)).result
        case tile.Splat():
            return before(anchor, tile.Splat(op.arg, t)).result
        case tile.Broadcast() if op.arg.type.rank == 2:
            return before(anchor, tile.Broadcast(turned(op.arg, anchor), t)).result
        case tile.Reshape() if 1 in op.result.type.extents:
            return before(anchor, tile.Reshape(op.arg, t)).result
        case _ if isinstance(op, POINTWISE) and op.parent is anchor.parent:
            new = op.clone({v: turned(v, anchor) for v in op.operands})
            retype(new.results[0], t)
            return before(anchor, new).results[0]
        case _:
            return before(anchor, tile.Transpose(value, (1, 0))).result
