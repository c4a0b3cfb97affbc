"""The numbers of one launch: what code does not know of its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import cast

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.rewrite import loops_of
from tkc.ir.types import bits
from tkc.ir.values import array_type, owner_op
from tkc.passes.analysis.access import bytes_of
from tkc.passes.analysis.program_axes import program_axes
from tkc.passes.analysis.scalars import computed

ASSUMED_TRIPS = 64  # of a loop whose trip count is not known


@dataclass(frozen=True)
class Sizes:
    """What a launch knows and code does not: programs along each axis, and of each argument its
    extents, or the number itself.
    """

    grid: tuple[int, int, int]
    arguments: tuple[tuple[int, ...] | int | float | None, ...] = ()


class Numbers:
    """Integers of a kernel as one launch has them, in a program in the middle of the grid."""

    def __init__(self, kernel: tile.Kernel, sizes: Sizes | None):
        self.sizes = sizes
        self.arguments: dict[SSAValue, tuple[int, ...] | int | float | None] = (
            dict(zip(kernel.body.block.args, sizes.arguments, strict=False)) if sizes else {}
        )

    def trips(self, loop: Operation) -> float:
        if not isinstance(loop, scf.ForOp):
            return ASSUMED_TRIPS
        low, high, step = map(self.of, (loop.lb, loop.ub, loop.step))
        if low is None or high is None or not step:
            return ASSUMED_TRIPS
        return max(0, ceil((high - low) / step))

    def bytes(self, argument: SSAValue) -> int:
        shape = self.arguments.get(argument)
        if not isinstance(shape, tuple):
            return 0
        return prod(shape) * bits(array_type(argument).element) // 8

    def inside(self, op: Operation) -> int:
        """Bytes of a block that are inside its array, which may be smaller than the block."""
        if not isinstance(op, tile.Load | tile.Store):
            return bytes_of(op)
        if not isinstance(shape := self.arguments.get(op.array), tuple):
            return bytes_of(op)
        return int(
            bytes_of(op)
            * prod(
                min(1, n / e) for n, e in zip(shape, op.extents.get_values(), strict=False) if e > 0
            )
        )

    def last(self, op: Operation) -> int:
        """Those of the last program along each axis on which the block's place depends, but for
        where its loops begin: their last steps alone may end beyond the array.
        """
        if not isinstance(op, tile.Load) or not isinstance(
            shape := self.arguments.get(op.array), tuple
        ):
            return self.inside(op)
        loops = [loop for loop in loops_of(op) if isinstance(loop, scf.ForOp)]
        counters = [loop.body.block.args[0] for loop in loops]
        parts = [
            ((n - 1) % e + 1) / e
            if n > e and program_axes([offset], given=counters)
            else min(1, n / e)
            for n, e, offset in zip(shape, op.extents.get_values(), op.offsets, strict=False)
            if e > 0
        ]
        return int(bytes_of(op) * prod(parts))

    def of(self, value: SSAValue) -> float | None:
        """The number, None where it is not known."""
        if isinstance(value, BlockArgument):
            known = self.arguments.get(value)
            if isinstance(known, int):
                return known
            loop = value.owner.parent_op()
            return self.of(loop.lb) if isinstance(loop, scf.ForOp) and value.index == 0 else None
        match op := owner_op(value):
            case tile.ProgramId() | tile.NumPrograms():
                if self.sizes is None:
                    return None
                n = self.sizes.grid[op.axis.value.data]
                return n // 2 if isinstance(op, tile.ProgramId) else n
            case tile.Dim():
                return self.extent(op)
        # of single numbers it makes a single number
        return cast("float | None", computed(op, self.of))

    def extent(self, op: tile.Dim) -> int | None:
        array, axis = op.operands[0], op.axis.value.data
        while isinstance(array.owner, tile.View):
            kinds = [k.data for k in array.owner.kinds]
            i = [place for place, kind in enumerate(kinds) if kind != "index"][axis]
            if kinds[i] != "all":
                return None
            array, axis = array.owner.array, i
        shape = self.arguments.get(array)
        return shape[axis] if isinstance(shape, tuple) else None
