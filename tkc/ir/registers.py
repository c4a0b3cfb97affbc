"""Which values lie in the same registers of the threads."""

from xdsl.ir import SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import shared, tile
from tkc.ir.types import TileType

WARPGROUP_REGISTER = 4 * 128  # bytes: one register of each thread of a warpgroup
# Their results are registers of their operands.
ALIASES = (
    tile.Reshape,
    tile.Transpose,
    tile.Slice,
    tile.Concat,
    tile.Broadcast,
    tile.Flip,
    tile.Multiple,
    shared.Convert,
    shared.SpreadPartial,
    ew.Bitcast,
)


def sources(value: SSAValue) -> set[SSAValue]:
    """The values whose registers hold a tile: itself, or what it shows the registers of."""
    if not isinstance(value.owner, ALIASES):
        return {value}
    shown = [v for v in value.owner.operands if isinstance(v.type, TileType)]
    return set().union(*map(sources, shown))
