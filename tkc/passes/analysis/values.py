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

from collections.abc import Iterable

from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.threads import Workspace
from tkc.ir.types import TileType
from tkc.ir.values import defining_op
from tkc.passes.layouts.movers import crosses

LEAVES = (tile.Constant, tile.Splat, tile.Arange)
VIEWS = (tile.Broadcast, tile.Transpose, tile.Reshape)
POINTWISE = (ew.Elementwise, ew.Select, ew.Cast, ew.Bitcast, ew.PointerAdd, tile.Multiple)
LOADS = (tile.Load, tile.LoadPointers)
WRITES = (tile.Store, tile.AtomicBlock, tile.StorePointers, tile.Atomic)
BlockAccess = tile.Load | tile.Store | tile.AtomicBlock
PointerAccess = tile.LoadPointers | tile.StorePointers | tile.Atomic


def in_workspace(op: tile.Load | tile.Store) -> bool:
    """Whether a block is one of an array in a workspace of the launch."""
    made = defining_op(op.array, tile.MakeArray)
    return made is not None and isinstance(made.pointer.owner, Workspace)


def tiles(values: Iterable[SSAValue]) -> list[SSAValue]:
    """Those of some values that are tiles."""
    return [v for v in values if isinstance(v.type, TileType)]


class Kinds:
    """Classifies the tiles of a kernel; remembers the answers."""

    def __init__(self, warps: int = 4):
        self.warps = warps
        self._cheap: dict[SSAValue, bool] = {}
        self._sunk: dict[SSAValue, bool] = {}

    def cheap(self, value: SSAValue) -> bool:
        """Whether a tile is computed from constants, aranges and scalars alone."""
        known = self._cheap.get(value)
        if known is None:
            owner = value.owner
            known = self._cheap[value] = isinstance(owner, LEAVES) or (
                isinstance(owner, (*VIEWS, *POINTWISE))
                and not self._moves(owner)
                and all(map(self.cheap, tiles(owner.operands)))
            )
        return known

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
                and feeds_dot(value)
                and self._is_from_loads(value)
            )
        return known

    def _is_from_loads(self, value: SSAValue) -> bool:
        """Whether it is computed from loads that nothing else uses."""
        if self.cheap(value):
            return True
        owner = value.owner
        if isinstance(owner, LOADS):
            return value.has_one_use()
        return (
            isinstance(owner, (*VIEWS, *POINTWISE))
            and not self._moves(owner)
            and value.has_one_use()
            and all(map(self._is_from_loads, tiles(owner.operands)))
        )

    def data(self, value: SSAValue) -> bool:
        """Whether a tile is in registers, in one layout of its own."""
        return not (self.cheap(value) or self.view(value) or self.sunk(value))


def feeds_dot(value: SSAValue) -> bool:
    """Whether its one use is as an operand of a dot, element-wise operations and views between."""
    use = value.first_use
    if use is None or not value.has_one_use():
        return False
    op = use.operation
    if isinstance(op, tile.Dot):
        return use.index < 2
    return isinstance(op, (*VIEWS, *POINTWISE)) and feeds_dot(op.results[0])


def dots_fed(load: Operation) -> list[tuple[tile.Dot, int, bool]]:
    """The dots of which a load's result is an operand: the dot, the operand's index, and whether
    only views are between.
    """
    found: list[tuple[tile.Dot, int, bool]] = []
    seen: set[tuple[SSAValue, bool]] = set()

    def follow(value: SSAValue, plain: bool) -> None:
        # without `seen` a chain of values that each use the one before twice takes exponential time
        if (value, plain) in seen:
            return
        seen.add((value, plain))
        for use in value.uses:
            op = use.operation
            if isinstance(op, tile.Dot) and use.index < 2:
                found.append((op, use.index, plain))
            elif isinstance(op, VIEWS):
                follow(op.results[0], plain)
            elif isinstance(op, POINTWISE):
                follow(op.results[0], False)

    follow(load.results[0], True)
    return found
