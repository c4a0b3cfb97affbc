"""swap-dots: a dot as its own transpose, where the plan says so: (bᵀ aᵀ)ᵀ.

wgmma's left operand may be in registers, its right one not; so a right operand that is computed
(weights of 8 bits, made bfloat16) has to become the left one. The transposes move to where they
cost nothing: through element-wise operations down to the loads, whose blocks are in shared memory
as they are, and up to the uses of the accumulator, where they choose registers:

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
from tkc.ir.rewrite import Builder, after, before, erase, rebuild_for, retype
from tkc.ir.types import TileType
from tkc.ir.values import index_of, parent_of, terminator_of, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.values import POINTWISE


def run(module: ModuleOp, context: PassContext) -> None:
    """Swaps the dots that the plan says."""
    if context.plan is None:
        return
    for dot in [op for op in module.walk() if isinstance(op, tile.Dot)]:
        chosen = context.plan.dot(dot)
        if chosen is not None and chosen.swap:
            number = number_of(dot)
            _swap(dot)
            context.decisions.append(f"swap-dots: dot {number} is computed as its transpose")


def _swap(dot: tile.Dot) -> None:
    """A dot whose accumulator only goes round its loop and starts from zero."""
    loop, acc = parent_of(dot, scf.ForOp), dot.acc
    body, index, count = loop.body.block, index_of(acc) - 1, len(loop.iter_args)
    zero = before(loop, tile.Constant(0, _transposed_type(tile_type(dot.result)))).result
    loop = rebuild_for(loop, range(count), [zero])
    carried = body.args[-1]
    carried.name_hint = acc.name_hint
    left, right = transposed(dot.b, dot), transposed(dot.a, dot)
    new = tile.Dot(left, right, carried, dot.precision.data)
    new.attributes |= dot.attributes
    before(dot, new)
    end = terminator_of(body)
    yielded = list(end.operands)
    yielded[index] = body.args[1 + index]
    end.operands = [*yielded, new.result]
    erase(dot)
    whole = after(loop, tile.Transpose(loop.results[-1], (1, 0))).result
    loop.results[index].replace_all_uses_with(whole)
    rebuild_for(loop, [i for i in range(count + 1) if i != index])


def _transposed_type(t: TileType) -> TileType:
    return TileType(t.extents[::-1], t.element)


def transposed(value: SSAValue, anchor: Operation) -> SSAValue:
    """The transpose of a tile of two axes, the same element-wise operations on transposes."""
    if not isinstance(value.type, TileType):
        return value
    op, t, build = value.owner, _transposed_type(value.type), Builder(anchor)
    match op:
        case tile.Transpose():
            return op.arg
        case tile.Constant():
            return build(tile.Constant(op.number, t))
        case tile.Splat():
            return build(tile.Splat(op.arg, t))
        case tile.Broadcast() if tile_type(op.arg).rank == 2:
            return build(tile.Broadcast(transposed(op.arg, anchor), t))
        case tile.Reshape() if 1 in value.type.extents:
            return build(tile.Reshape(op.arg, t))
        case _ if isinstance(op, POINTWISE) and op.parent is anchor.parent:
            new = op.clone({v: transposed(v, anchor) for v in op.operands})
            retype(new.results[0], t)
            return build(new)
        case _:
            return build(tile.Transpose(value, (1, 0)))
