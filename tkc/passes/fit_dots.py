"""fit-dots: a dot whose factors no shared memory holds, or no registers on their way there, walks
along k, a part of the factors at a time.

    %a = tile.load %x[%m, %c0] : tile<100x1000xf32>                    for %k = 0 to 992 step 32, %sum = %c:
    %b = tile.load %y[%c0, %n] : tile<1000x7xf32>              ->        %p = tile.load %x[%m, %c0 + %k] : tile<100x32xf32>
    %d = tile.dot %a, %b, %c                                             %q = tile.load %y[%c0 + %k, %n] : tile<32x7xf32>
                                                                         yield tile.dot %p, %q, %sum
                                                                       and the 8 that are left, in
                                                                       one dot more

Factors are made of loads, perhaps masked, and of what is computed of them without looking along k
(`tkc/passes/cuts`). Parts are as large as leaves room for four of them, a multiple of 16 where that
is possible.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.rewrite import before, erase_dead, loop_of, replace
from tkc.ir.shared import scratch
from tkc.passes import PassContext
from tkc.passes.analysis.memory import unseen
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut, Part, factors
from tkc.passes.plan import instruction_of

PARTS = 4  # of k that shared memory has room for at once: a ring runs ahead
PASSING = 32 << 10  # bytes: of four warps, 64 registers a thread


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        room, parts = (
            context.room() - sum(map(scratch, kernel.walk())),
            (1 if "one" in context.lack else PARTS),
        )  # a kernel that did not fit has no room to run ahead
        for dot in [op for op in kernel.walk() if isinstance(op, tile.Dot)]:
            k, whole = dot.a.type.extents[-1], dot.a.type.bytes + dot.b.type.bytes
            if (whole <= room or room <= 0) and not _passes(dot, context):
                continue
            try:
                cut = Cut.of_needs(factors(dot))
            except NotCut:
                continue
            if not all(unseen(load, dot, context.overlaps) for load in cut.loads):
                continue
            size = max(
                1,
                min(
                    room * k // (parts * whole),
                    (
                        PASSING * k // max(dot.a.type.bytes, dot.b.type.bytes)
                        if loop_of(dot) is None
                        else k
                    ),
                ),
            )
            size = (
                min(64 if all(map(_plain, (dot.a, dot.b))) else 16, size - size % 16)
                if size >= 16
                else size
            )
            _walk(cut, dot, k, size)
            erase_dead(kernel.body.block)
            context.decisions.append(
                f"fit-dots: factors of {whole} bytes, and {context.target.name} has {room} of"
                f" shared memory{' for them' * (room < context.target.shared_bytes)}: k = {k} in"
                f" parts of {size}"
                if whole > room
                else (
                    f"fit-dots: factors of {whole} bytes pass through registers: k = {k} in parts"
                    f" of {size}"
                )
            )


def _passes(dot: tile.Dot, context: PassContext) -> bool:
    """Whether a factor of multiply-adds would pass through registers, all of it at once, and fill
    them.
    """
    return (
        loop_of(dot) is None
        and instruction_of(dot, context.target.capability)[0] is None
        and max(dot.a.type.bytes, dot.b.type.bytes) > PASSING
        and dot.a.type.extents[-1] > 64
    )


def _plain(factor: SSAValue) -> bool:
    """Whether a factor goes through no registers: what is computed is held by threads, so its parts
    are small.
    """
    while isinstance(factor.owner, (tile.Transpose, Cast)):
        factor = factor.owner.arg
    return isinstance(factor.owner, tile.Load) and factor.owner.mask is None


def _walk(cut: Cut, dot: tile.Dot, k: int, size: int) -> None:
    def constant(n):
        return before(dot, tile.Constant(n, i32)).result

    total, whole = dot.acc, k - k % size
    body = Block(arg_types=[i32, total.type])
    loop = before(
        dot, scf.ForOp(constant(0), constant(whole), constant(size), [total], Region(body))
    )
    end = scf.YieldOp()
    body.add_op(end)
    end.operands = [_part(cut, dot, body.args[0], size, body.args[1], end)]
    total = loop.results[0]
    if k % size:
        total = _part(cut, dot, constant(whole), k % size, total, dot)
    replace(dot, [total])


def _part(
    cut: Cut, dot: tile.Dot, start: SSAValue, size: int, total: SSAValue, anchor: Operation
) -> SSAValue:
    """A dot of `size` of k."""
    part = Part(cut, start, size)
    a, b = (part.of(factor, axis, anchor) for factor, axis in factors(dot))
    return before(anchor, tile.Dot(a, b, total, dot.precision.data)).result
