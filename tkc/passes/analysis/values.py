"""Which tiles need a layout of their own, and which are rematerialised in any layout: the analysis
under select-layouts.

cheap     computed from constants, aranges and scalars alone (indices, pointers, most masks):
          rematerialised where they are used
view      a transpose, broadcast or reshape of something else: the layout of its operand follows
          from its own (a reshape between extents that do not nest moves elements between threads:
          its result is data)
sunk      element by element of loads, used by one dot alone (a dequantization, a scaling): computed
          in the operand's layout
data      everything else
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.threads import Workspace
from tkc.ir.types import TileType
from tkc.ir.values import defining_op, operands_first, owner_op, reached, tiles
from tkc.passes.analysis.remembered import remembered
from tkc.passes.layouts.movers import crosses

LEAVES = (tile.Constant, tile.Splat, tile.Arange)
VIEWS = (tile.Broadcast, tile.Transpose, tile.Reshape)
POINTWISE = (ew.Elementwise, ew.Select, ew.Cast, ew.Bitcast, ew.PointerAdd, tile.Multiple)
LOADS = (tile.Load, tile.LoadPointers)
WRITES = (tile.Store, tile.AtomicBlock, tile.StorePointers, tile.Atomic)
BlockAccess = tile.Load | tile.Store | tile.AtomicBlock
PointerAccess = tile.LoadPointers | tile.StorePointers | tile.Atomic
# elements of which one thread computes a number while copies are under way
MAX_HELD = 256


@cache
def is_computed_by(kind: type) -> bool:
    """Whether operations of a class are views or element-wise. xDSL's classes are abstract base
    classes, for which isinstance is slow where it fails.
    """
    return issubclass(kind, (*VIEWS, *POINTWISE))


def computed_of(value: SSAValue) -> Iterator[SSAValue]:
    """A value, and what is computed of it element by element."""

    def users(v: SSAValue) -> list[SSAValue]:
        ops = [use.operation for use in v.uses]
        return [op.results[0] for op in ops if is_computed_by(op.__class__)]

    return reached([value], users)


def in_workspace(op: tile.Load | tile.Store) -> bool:
    """Whether a block is one of an array in a workspace of the launch."""
    made = defining_op(op.array, tile.MakeArray)
    return made is not None and isinstance(made.pointer.owner, Workspace)


def tiles_behind(number: Operation) -> list[SSAValue] | None:
    """The tiles of which a number is computed, if that takes straight-line code and so few elements
    that a thread can hold each; else None.
    """
    found: list[SSAValue] = []
    work = list(number.operands)
    while work:
        value = work.pop()
        if value in found or not isinstance(value.type, TileType):
            continue
        if isinstance(value.owner, Block) or value.owner.regions or value.type.size > MAX_HELD:
            return None
        found.append(value)
        work += value.owner.operands
    return found


class Kinds:
    """Classifies the tiles of a kernel; remembers the answers."""

    def __init__(self, warps: int = 4):
        self.warps = warps
        self._cheap: dict[SSAValue, bool] = {}
        self._sunk: dict[SSAValue, bool] = {}
        self._feeds_dot: dict[SSAValue, bool] = {}
        self._from_loads: dict[SSAValue, bool] = {}

    def cheap(self, value: SSAValue) -> bool:
        """Whether a tile is computed from constants, aranges and scalars alone."""
        if (known := self._cheap.get(value)) is not None:
            return known
        for at in operands_first(value, self._computed_from, self._cheap):
            self._cheap[at] = isinstance(at.owner, LEAVES) or (
                self._is_computed(at) and all(map(self._cheap.__getitem__, self._computed_from(at)))
            )
        return self._cheap[value]

    def _is_computed(self, value: SSAValue) -> bool:
        """Whether a tile is computed element by element, or is a view."""
        owner = value.owner
        return is_computed_by(owner.__class__) and not self._moves(owner)

    def _computed_from(self, value: SSAValue) -> list[SSAValue]:
        """The tiles that such a tile is computed from; none of other values."""
        return tiles(owner_op(value).operands) if self._is_computed(value) else []

    def _moves(self, owner: Operation | Block) -> bool:
        return isinstance(owner, tile.Reshape) and crosses(owner, self.warps)

    def view(self, value: SSAValue) -> bool:
        """Whether a tile is a view of data."""
        owner = value.owner
        return isinstance(owner, VIEWS) and not self._moves(owner) and not self.cheap(value)

    def sunk(self, value: SSAValue) -> bool:
        """Whether a tile is computed from loads, for one operand of a dot alone."""
        known = self._sunk.get(value)
        if known is None:
            known = self._sunk[value] = (
                isinstance(value.owner, POINTWISE)
                and not self.cheap(value)
                and feeds_dot(value, self._feeds_dot)
                and self._is_from_loads(value)
            )
        return known

    def _is_from_loads(self, value: SSAValue) -> bool:
        """Whether it is computed from loads that nothing else uses."""

        def operands(at: SSAValue) -> list[SSAValue]:
            ends = self.cheap(at) or not at.has_one_use()
            return [] if ends else self._computed_from(at)

        for at in operands_first(value, operands, self._from_loads):
            self._from_loads[at] = self.cheap(at) or (
                at.has_one_use()
                and (
                    isinstance(at.owner, LOADS)
                    or self._is_computed(at)
                    and all(map(self._from_loads.__getitem__, operands(at)))
                )
            )
        return self._from_loads[value]

    def data(self, value: SSAValue) -> bool:
        """Whether a tile is in registers, in one layout of its own."""
        return not (self.cheap(value) or self.view(value) or self.sunk(value))


def feeds_dot(value: SSAValue, memo: dict[SSAValue, bool] | None = None) -> bool:
    """Whether its one use is as an operand of a dot, element-wise operations and views between.
    memo: what earlier questions found.
    """
    memo = {} if memo is None else memo
    path: list[SSAValue] = []
    found = False
    while value not in memo:
        path.append(value)
        use = value.first_use
        if use is None or not value.has_one_use():
            break
        op = use.operation
        if not is_computed_by(op.__class__):
            found = isinstance(op, tile.Dot) and use.index < 2
            break
        value = op.results[0]
    else:
        found = memo[value]
    memo.update(dict.fromkeys(path, found))
    return found


@remembered
def feeding_dots(kernel: tile.Kernel) -> set[SSAValue]:
    """The values that operands of dots are made of, element-wise operations and views between: all
    of which `dots_fed` finds a dot.
    """
    found: set[SSAValue] = set()
    for op in reversed(list(kernel.walk())):
        if isinstance(op, tile.Dot):
            found.update(op.operands[:2])
        elif is_computed_by(op.__class__) and op.results[0] in found:
            found.update(op.operands)
    return found


def dots_fed(load: Operation) -> list[tuple[tile.Dot, int, bool]]:
    """The dots of which a load's result is an operand: the dot, the operand's index, and whether
    only views are between.
    """
    found: list[tuple[tile.Dot, int, bool]] = []
    seen: set[tuple[SSAValue, bool]] = set()
    path = [(iter(load.results[0].uses), True)]
    while path:
        uses, plain = path[-1]
        use = next(uses, None)
        if use is None:
            path.pop()
            continue
        op = use.operation
        if isinstance(op, tile.Dot) and use.index < 2:
            found.append((op, use.index, plain))
        elif is_computed_by(op.__class__):
            at = op.results[0], plain and isinstance(op, VIEWS)
            if at not in seen:
                seen.add(at)
                path.append((iter(at[0].uses), at[1]))
    return found
