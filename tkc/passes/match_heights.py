"""match-heights: of dots with different numbers of rows, those that have as many columns as the
others have rows are computed as their transposes.

    s = dot(q, kᵀ)                       64 x 128          sᵀ = dot(k, qᵀ)                128 x 64
    p = exp2(s - l[:, None])                               pᵀ = exp2(sᵀ - l[None, :])
    dv = dot(pᵀ, do, dv)                128 x 128    ->    dv = dot(pᵀ, do, dv)
    dq = dot(p, k)                       64 x 128          dq = dot(kᵀ, pᵀ)ᵀ

Warpgroups share the rows of all dots of a program alike, 64 each: where a dot has but 64, one
warpgroup holds all of them. So this is done where more rows are then common to all. What is
computed of such a result, element by element, is computed of its transpose, and becomes an operand
in the registers where it is. For targets with wgmma.
"""

from __future__ import annotations

from math import gcd

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.rewrite import after, before, erase, retype
from tkc.ir.types import TileType
from tkc.ir.values import first_of, made_of, operations_in, reached, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.values import POINTWISE
from tkc.passes.simplify import run as simplify

ROWS = 64  # of a warpgroup's part of a dot
MAX_ROWS = 256  # that warpgroups of a block share
COLUMNS = 8  # of a dot: a multiple of them


def run(module: ModuleOp, context: PassContext) -> None:
    """Transposes dots of each kernel, and says so."""
    if not context.target.wgmma:
        return
    for kernel in tile.kernels_of(module):
        turned = chosen(operations_in(kernel, tile.Dot))
        if not turned:
            continue
        transposes = Transposes()
        for dot in turned:
            transposes.turn(dot)
        for op in operations_in(kernel, tile.Transpose):
            transposes.sink(op)
        simplify(module, context)
        context.decisions.append(
            f"match-heights: {len(turned)} dots are computed as their transposes, so that all have"
            " rows for more warpgroups"
        )


def chosen(dots: list[tile.Dot]) -> list[tile.Dot]:
    """The dots to transpose; none where no more rows would be common to all."""
    if any(tile_type(dot.acc).rank != 2 for dot in dots):
        return []
    heights = [_rows(dot) for dot in dots]
    tall = max(heights, default=0)
    if tall % ROWS or tall > MAX_ROWS:
        return []
    turned = [dot for dot in dots if _rows(dot) < tall == _columns(dot) and _is_free(dot)]
    then = [tall if dot in turned else _rows(dot) for dot in dots]
    return turned if gcd(*then) > gcd(*heights) else []


def _is_free(dot: tile.Dot) -> bool:
    """Whether a dot begins from zero, and its rows may be columns."""
    zero = dot.acc.owner
    return isinstance(zero, tile.Constant) and zero.number == 0 and _rows(dot) % COLUMNS == 0


def _rows(dot: tile.Dot) -> int:
    return tile_type(dot.acc).extents[0]


def _columns(dot: tile.Dot) -> int:
    return tile_type(dot.acc).extents[1]


def _turned_type(t: TileType) -> TileType:
    return TileType(t.extents[::-1], t.element)


class Transposes:
    """The transposes of a kernel's tiles, each made once, right behind the tile."""

    def __init__(self) -> None:
        self.made: dict[SSAValue, SSAValue] = {}
        self.results: set[SSAValue] = set()  # of transposed dots

    def turn(self, dot: tile.Dot) -> None:
        """A dot as the transpose of its transpose."""
        left, right = self.of(dot.b), self.of(dot.a)
        zero = before(dot, tile.Constant(0, _turned_type(tile_type(dot.acc))))
        new = before(dot, tile.Dot(left, right, zero.result, dot.precision.data))
        new.attributes |= dot.attributes
        self.results.add(new.result)
        whole = before(dot, tile.Transpose(new.result, (1, 0))).result
        whole.name_hint = dot.result.name_hint
        dot.result.replace_all_uses_with(whole)
        erase(dot)

    def sink(self, op: tile.Transpose) -> None:
        """A transpose of what is computed of a transposed dot, as the same of the dot itself."""
        if op.result.first_use and op.arg not in self.results and self._follows(op.arg):
            op.result.replace_all_uses_with(self.of(op.arg))

    def _follows(self, value: SSAValue) -> bool:
        """Whether a value is computed, element by element, of a transposed dot's result."""
        behind = reached([value], lambda v: made_of(v) if isinstance(v.owner, POINTWISE) else ())
        turned = (v.owner.arg for v in behind if isinstance(v.owner, tile.Transpose))
        return not self.results.isdisjoint(turned)

    def of(self, value: SSAValue) -> SSAValue:
        """The transpose of a tile of two axes; a scalar is itself."""
        if not isinstance(value.type, TileType):
            return value
        if value not in self.made:
            self.made[value] = self._make(value, value.type)
        return self.made[value]

    def _make(self, value: SSAValue, t: TileType) -> SSAValue:
        op, turned = value.owner, _turned_type(t)
        new: Operation
        match op:
            case tile.Transpose():
                return op.arg
            case tile.Constant():
                new = tile.Constant(op.number, turned)
            case tile.Splat():
                new = tile.Splat(op.arg, turned)
            case tile.Broadcast() if tile_type(op.arg).rank == 2:
                new = tile.Broadcast(self.of(op.arg), turned)
            case tile.Reshape() if 1 in t.extents:
                new = tile.Reshape(op.arg, turned)
            case _ if isinstance(op, POINTWISE):
                new = op.clone({v: self.of(v) for v in op.operands})
                retype(new.results[0], turned)
            case _:
                new = tile.Transpose(value, (1, 0))
        new.results[0].name_hint = value.name_hint
        placed = before(first_of(op), new) if isinstance(op, Block) else after(op, new)
        return placed.results[0]
