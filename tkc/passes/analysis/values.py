"""Which tiles need a home, and which can be made anew in any layout: the analysis under
select-layouts.

cheap     computed from constants, aranges and scalars alone (indices, pointers, most masks): made where they are wanted
view      a transpose, broadcast or reshape of something else: what it asks of its operand follows from what is asked of it (a reshape between extents
          that do not nest moves elements between threads: its result is data)
sunk      element by element of loads, wanted by one dot alone (a dequantization, a scaling): computed in the operand's layout
data      everything else
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.threads import Workspace
from tkc.ir.types import TileType
from tkc.passes.layouts.movers import crosses

LEAVES = (tile.Constant, tile.Splat, tile.Arange)
VIEWS = (tile.Broadcast, tile.Transpose, tile.Reshape)
POINTWISE = (ew.Elementwise, ew.Select, ew.Cast, ew.Bitcast, ew.PointerAdd, tile.Multiple)
LOADS = (tile.Load, tile.LoadPointers)


def in_workspace(op: tile.Load | tile.Store) -> bool:
    """Whether a block is one of an array in a workspace of the launch."""
    return isinstance(op.array.owner, tile.MakeArray) and isinstance(
        op.array.owner.pointer.owner, Workspace
    )


def tiles(values) -> list[SSAValue]:
    return [v for v in values if isinstance(v.type, TileType)]


class Kinds:
    """Classifies the tiles of a kernel; remembers the answers."""

    def __init__(self, warps: int = 4):
        self.warps = warps
        self._cheap: dict[SSAValue, bool] = {}
        self._sunk: dict[SSAValue, bool] = {}

    def cheap(self, value: SSAValue) -> bool:
        known = self._cheap.get(value)
        if known is None:
            owner = value.owner
            known = self._cheap[value] = (
                isinstance(owner, LEAVES)
                or isinstance(owner, (*VIEWS, *POINTWISE))
                and not self._moved(owner)
                and all(map(self.cheap, tiles(owner.operands)))
            )
        return known

    def _moved(self, owner: Operation) -> bool:
        return isinstance(owner, tile.Reshape) and crosses(owner, self.warps)

    def view(self, value: SSAValue) -> bool:
        return (
            isinstance(value.owner, VIEWS)
            and not self._moved(value.owner)
            and not self.cheap(value)
        )

    def sunk(self, value: SSAValue) -> bool:
        known = self._sunk.get(value)
        if known is None:
            known = (
                isinstance(value.owner, POINTWISE)
                and not self.cheap(value)
                and feeds_dot(value)
                and self._bottoms(value)
            )
            self._sunk[value] = known
        return known

    def _bottoms(self, value: SSAValue) -> bool:
        """Whether it comes from loads that nothing else uses."""
        if self.cheap(value):
            return True
        owner = value.owner
        if isinstance(owner, LOADS):
            return value.has_one_use()
        return (
            isinstance(owner, (*VIEWS, *POINTWISE))
            and not self._moved(owner)
            and value.has_one_use()
            and all(map(self._bottoms, tiles(owner.operands)))
        )

    def data(self, value: SSAValue) -> bool:
        return not (self.cheap(value) or self.view(value) or self.sunk(value))


def feeds_dot(value: SSAValue) -> bool:
    """Whether its one use is as a factor of a dot, element-wise operations and views between."""
    if not value.has_one_use():
        return False
    use = value.first_use
    op = use.operation
    if isinstance(op, tile.Dot):
        return use.index < 2
    return isinstance(op, (*VIEWS, *POINTWISE)) and feeds_dot(op.results[0])


def dots_fed(load: Operation) -> list[tuple[tile.Dot, int, bool]]:
    """The dots a load's result is a factor of: the dot, which operand, and whether only views lie
    between.
    """
    found, seen = [], set()

    def follow(value: SSAValue, plain: bool) -> None:
        if (value, plain) in seen:
            return  # of values each of which takes the one before twice there are a great many ways
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
