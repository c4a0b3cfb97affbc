"""fit-dots: a dot whose operands no shared memory holds, or no registers on their way there, walks
along k, a part of the operands at a time.

Before, for k = 1000:

    %a = tile.load %x[%m, %c0] : tile<100x1000xf32>
    %b = tile.load %y[%c0, %n] : tile<1000x7xf32>
    %d = tile.dot %a, %b, %c

After, and the 8 that are left in one dot more behind the loop:

    for %k = 0 to 992 step 32, %acc = %c:
      %p = tile.load %x[%m, %c0 + %k] : tile<100x32xf32>
      %q = tile.load %y[%c0 + %k, %n] : tile<32x7xf32>
      yield tile.dot %p, %q, %acc

Operands are made of loads, perhaps masked, and of what is computed from them without combining
elements along k (`tkc/passes/cuts`). Parts are as large as leaves room for four of them, a multiple
of 16 where that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import Cast
from tkc.ir.rewrite import before, erase_dead, loop_of, replace
from tkc.ir.scratch import scratch_of
from tkc.ir.values import operations_in, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.alias import unseen
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut, operands_along_k
from tkc.passes.cuts.parts import Part, loop_over_parts
from tkc.passes.planning.splits import instruction_of

PARTS_IN_SHARED = 4  # parts of k that shared memory has room for at once: a ring runs ahead
MAX_REGISTER_BYTES = 32 << 10  # of an operand that passes through registers: 64 in each of 4 warps
MAX_PART = 64  # of k, where operands are copied to shared memory
MAX_COMPUTED_PART = 16  # of k, where threads compute operands, and hold them


def run(module: ModuleOp, context: PassContext) -> None:
    """Cuts every dot whose operands do not fit, where they can be cut along k."""
    for kernel in module.body.block.ops:
        room = context.room() - scratch_of(kernel)
        for dot in operations_in(kernel, tile.Dot):
            bytes_, fits = sum(_bytes(dot)), room <= 0 or sum(_bytes(dot)) <= room
            if fits and not _fills_registers(dot, context):
                continue
            try:
                cut = Cut.of_needs(operands_along_k(dot))
            except NotCut:
                continue
            if not all(unseen(load, dot, context.overlaps) for load in cut.loads):
                continue
            k, size = _k(dot), _part_size(dot, room, context)
            _loop_along_k(cut, dot, size)
            erase_dead(kernel.body.block)
            context.decisions.append(
                f"fit-dots: {_reason(bytes_, room, context)}: k = {k} in parts of {size}"
            )


def _k(dot: tile.Dot) -> int:
    return tile_type(dot.a).extents[-1]


def _bytes(dot: tile.Dot) -> tuple[int, int]:
    """Bytes of the left and of the right operand."""
    return tile_type(dot.a).bytes, tile_type(dot.b).bytes


def _reason(bytes_: int, room: int, context: PassContext) -> str:
    """Why operands of so many bytes are cut."""
    if bytes_ <= room:
        return f"operands of {bytes_} bytes pass through registers"
    left = " for them" if room < context.target.shared_bytes else ""
    return (
        f"operands of {bytes_} bytes, and {context.target.name} has {room} of shared memory{left}"
    )


def _part_size(dot: tile.Dot, room: int, context: PassContext) -> int:
    """How much of k a part has."""
    # a kernel that did not fit has no room to run ahead
    parts = 1 if "one" in context.lack else PARTS_IN_SHARED
    k = _k(dot)
    size = room * k // (parts * sum(_bytes(dot)))
    size = min(size, MAX_REGISTER_BYTES * k // max(_bytes(dot)) if loop_of(dot) is None else k)
    if size < 16:
        return max(1, size)
    most = MAX_PART if all(map(_is_copied, (dot.a, dot.b))) else MAX_COMPUTED_PART
    return min(most, size - size % 16)


def _fills_registers(dot: tile.Dot, context: PassContext) -> bool:
    """Whether an operand of multiply-adds would pass through registers, all of it at once, and fill
    them.
    """
    return (
        loop_of(dot) is None
        and instruction_of(dot, context.target.capability)[0] is None
        and max(_bytes(dot)) > MAX_REGISTER_BYTES
        and _k(dot) > 64
    )


def _is_copied(operand: SSAValue) -> bool:
    """Whether an operand goes to shared memory as it is loaded, not through registers."""
    while isinstance(op := operand.owner, (tile.Transpose, Cast)):
        operand = op.arg
    return isinstance(op, tile.Load) and op.mask is None


def _loop_along_k(cut: Cut, dot: tile.Dot, size: int) -> None:
    """Puts a loop over parts of k in place of a dot."""

    def write(
        start: SSAValue, n: int, totals: Sequence[SSAValue], anchor: Operation
    ) -> list[SSAValue]:
        part = Part(cut, start, n)
        a, b = (part.of(operand, axis, anchor) for operand, axis in operands_along_k(dot))
        return [before(anchor, tile.Dot(a, b, totals[0], dot.precision.data)).result]

    replace(dot, loop_over_parts(dot, _k(dot), size, [dot.acc], write))
