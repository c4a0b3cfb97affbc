"""What a loop's next iteration loads of a dot's operands, fetched into the cache while the dot of
this one computes.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.ir import Block, SSAValue

from tkc.codegen.cpu import numbers
from tkc.codegen.cpu.planning import Planning
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import TileType
from tkc.ir.values import array_type, defining_op, tile_type

CACHE_LINE = 64  # bytes


@dataclass(frozen=True)
class Ahead:
    """Memory to fetch into the second-level cache while a kernel computes: `rows` of `lines` cache
    lines, `stride` bytes apart.
    """

    pointer: str
    stride: str
    rows: int
    lines: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.lines


def _all_known(numbers: list[int | None]) -> list[int] | None:
    known = [n for n in numbers if n is not None]
    return known if len(known) == len(numbers) else None


def growth(v: SSAValue, i: SSAValue) -> int | None:
    """How much a scalar grows when the loop's index grows by 1; None where that is not constant."""
    if v is i:
        return 1
    op = v.owner
    if isinstance(op, Block):
        return 0
    parts = _all_known([growth(x, i) for x in op.operands if not isinstance(x.type, TileType)])
    if parts is None:
        return None
    if not any(parts) and not op.regions:
        return 0
    if isinstance(op, (tile.Multiple, ew.Cast)):
        return parts[0]
    return _growth_of(op, parts) if isinstance(op, ew.Elementwise) else None


def _growth_of(op: ew.Elementwise, parts: list[int]) -> int | None:
    """`growth` of a function, from that of its operands."""
    match op.fn.name:
        case "add":
            return parts[0] + parts[1]
        case "sub":
            return parts[0] - parts[1]
        case "mul":
            pairs = zip(parts, reversed(op.operands), strict=True)
            constants = ((p, defining_op(v, tile.Constant)) for p, v in pairs)
            return next((p * int(c.number) for p, c in constants if c is not None), None)
    return None


class Prefetch(Planning):
    """The part of the lowering that finds what loops load next."""

    def ahead(self, v: SSAValue) -> Ahead | None:
        """What the loop's next iteration loads of this operand: a block that moves by a fixed step;
        None where it is none.
        """
        loop, op = self.block.parent_op(), self._loaded_block(v)
        if not isinstance(loop, scf.ForOp) or op is None:
            return None
        extents, facts = op.extents.get_values(), array_type(op.array).facts
        kept = [a for a, n in enumerate(extents) if n >= 0]
        along = next((a for a in reversed(kept) if facts.strides[a].exact == 1), None)
        steps = _all_known([growth(offset, self.block.args[0]) for offset in op.offsets])
        if along is None or steps is None or not any(steps):
            return None
        across = kept[0] if kept[1] == along else kept[1]
        f, array = self.f, self.env.array(op.array)
        size = numbers.size(tile_type(op.result).element)
        step, at = self.wide(loop.step), "0"
        for offset, part, stride in zip(op.offsets, steps, array.strides, strict=True):
            moved = f.add(self.wide(offset), f.mul(step, str(part)))
            at = f.add(at, f.mul(moved, stride))
        # may lie outside: never loaded from
        pointer = f.emit(f"getelementptr i8, ptr {array.pointer}, i64 {f.mul(at, str(size))}")
        return Ahead(
            pointer,
            f.mul(array.strides[across], str(size)),
            extents[across],
            -(-extents[along] * size // CACHE_LINE),
        )

    def _loaded_block(self, v: SSAValue) -> tile.Load | None:
        """The load of a block of two axes, in the loop being written, that an operand comes from
        unchanged but for its order and type.
        """
        while v not in self.env and isinstance(v.owner, (tile.Transpose, ew.Cast)):
            v = v.owner.arg
        op = defining_op(v, tile.Load)
        if op is None or v in self.env or tile_type(v).rank != 2:
            return None
        gathers = any(isinstance(x.type, TileType) for x in op.offsets)
        return None if gathers or op.parent_block() is not self.block else op
