"""fit-dots: a dot whose factors no shared memory holds walks along k, a part of the factors at a time.

    %a = tile.load %x[%m, %c0] : tile<100x1000xf32>                    for %k = 0 to 992 step 32, %sum = %c:
    %b = tile.load %y[%c0, %n] : tile<1000x7xf32>              ->        %p = tile.load %x[%m, %c0 + %k] : tile<100x32xf32>
    %d = tile.dot %a, %b, %c                                             %q = tile.load %y[%c0 + %k, %n] : tile<32x7xf32>
                                                                         yield tile.dot %p, %q, %sum
                                                                       and the 8 that are left, in one dot more

Factors are loads, perhaps transposed or converted, that nothing masks and between which and the dot nothing is written. Parts are as large as leaves room for four of
them, a multiple of 16 where that is possible. Dots in loops are left to their loops.
"""
from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Cast
from tkc.ir.rewrite import before, loop_of, replace
from tkc.ir.types import TileType
from tkc.passes import PassContext

PARTS = 4                               # of k that shared memory has room for at once: a ring runs ahead


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        for dot in [op for op in kernel.walk() if isinstance(op, tile.Dot)]:
            if loop_of(dot) is not None or dot.a.type.rank != 2: continue
            k, whole = dot.a.type.extents[1], dot.a.type.bytes + dot.b.type.bytes
            if whole <= context.target.shared_bytes or not all(_is_cut(v, dot) for v in (dot.a, dot.b)): continue
            size = max(1, context.target.shared_bytes * k // (PARTS * whole))
            size = min(64, size - size % 16) if size >= 16 else size
            _walk(dot, k, size)
            context.decisions.append(f"fit-dots: factors of {whole} bytes, and {context.target.name} has {context.target.shared_bytes} of shared memory: k = {k} in parts of {size}")


def _is_cut(factor: SSAValue, dot: tile.Dot) -> bool:
    """Whether parts of a factor can be loaded."""
    while isinstance(factor.owner, (tile.Transpose, Cast)): factor = factor.owner.arg
    load = factor.owner
    if not isinstance(load, tile.Load) or load.parent is not dot.parent or load.mask is not None or load.other is not None or any(isinstance(o.type, TileType) for o in load.offsets): return False
    op = load.next_op
    while op is not dot:
        if not (isinstance(op, tile.Load) or is_side_effect_free(op)): return False
        op = op.next_op
    return True


def _walk(dot: tile.Dot, k: int, size: int) -> None:
    constant = lambda n: before(dot, tile.Constant(n, i32)).result
    total, whole = dot.acc, k - k % size
    body = Block(arg_types=[i32, total.type])
    loop = before(dot, scf.ForOp(constant(0), constant(whole), constant(size), [total], Region(body)))
    end = scf.YieldOp()
    body.add_op(end)
    end.operands = [_part(dot, body.args[0], size, body.args[1], end)]
    total = loop.results[0]
    if k % size: total = _part(dot, constant(whole), k % size, total, dot)
    replace(dot, [total])


def _part(dot: tile.Dot, start: SSAValue, size: int, total: SSAValue, anchor: Operation) -> SSAValue:
    """A dot of `size` of k."""
    return before(anchor, tile.Dot(_cut(dot.a, 1, start, size, anchor), _cut(dot.b, 0, start, size, anchor), total, dot.precision.data)).result


def _cut(value: SSAValue, axis: int, start: SSAValue, size: int, anchor: Operation) -> SSAValue:
    """`size` from `start` on along an axis of a factor."""
    op, extents = value.owner, [size if a == axis else n for a, n in enumerate(value.type.extents)]
    match op:
        case tile.Transpose(): return before(anchor, tile.Transpose(_cut(op.arg, op.permutation.get_values()[axis], start, size, anchor), op.permutation.get_values())).result
        case Cast(): return before(anchor, Cast(_cut(op.arg, axis, start, size, anchor), TileType(extents, value.type.element))).result
    kept = [a for a, n in enumerate(op.extents.get_values()) if n >= 0]
    offsets, box = list(op.offsets), list(op.extents.get_values())
    offset = offsets[kept[axis]]
    by = start if offset.type == i32 else before(anchor, Cast(start, offset.type)).result
    offsets[kept[axis]], box[kept[axis]] = before(anchor, CLASSES["add"](offset, by)).result, size
    load = before(anchor, tile.Load(op.array, offsets, box))
    load.result.name_hint = value.name_hint
    return load.result
