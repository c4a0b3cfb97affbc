"""Numbers that a role computes of tiles, as a producer does that looks up where a block lies: each
thread computes them alone. A step of roles.py.

A tile is laid out over the lanes and warps of the consumers. Of a producer one thread runs, and
other roles have another number of warps: in their copies each thread holds the whole tile, which
has few elements (`tiles_behind`), or each warp, where its lanes reduce together what is one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.digits import Digit, copies
from tkc.ir.layout import WARP, Layout, blocked
from tkc.ir.rewrite import before, retype
from tkc.ir.types import TileType
from tkc.ir.values import defining_op, tile_type
from tkc.passes.analysis.values import tiles_behind


def reduce_alone(role: threads.Role) -> None:
    """Has a role other than the consumers reduce tiles to numbers without other warps."""
    for op in list(role.walk()):
        if isinstance(op, tile.Reduce) and not isinstance(op.results[0].type, TileType):
            _reduce_alone(op)


def hold_whole(role: threads.Role) -> None:
    """Gives each thread of a role, or each warp, the whole of the tiles of which it computes
    numbers.
    """
    behind = _behind_numbers(role)
    wanted: set[Operation | Block] = {v.owner for tiles in behind.values() for v in tiles or ()}
    by_thread = {v for op, tiles in behind.items() if not _by_lanes(op, role) for v in tiles or ()}
    held: dict[SSAValue, SSAValue] = {}
    for op in list(role.walk()):
        if behind.get(op) is not None:
            op.operands = [held.get(v, v) for v in op.operands]
        elif op in wanted and isinstance(op, shared.Convert):
            held[op.result] = held[op.arg]
        elif op in wanted:
            warps = role.warps.value.data
            held |= _copied(op, held, lambda v: _whole if v in by_thread else _in_lanes, warps)


def _copied(
    op: Operation,
    held: Mapping[SSAValue, SSAValue],
    lay: Callable[[SSAValue], Callable[[TileType, int], Layout]],
    warps: int,
) -> dict[SSAValue, SSAValue]:
    """The results of a copy of an operation, by its own. held: what stands for its operands; lay:
    how each result lies in so many warps.
    """
    copy = before(op, op.clone(dict(held)))
    for old, new in zip(op.results, copy.results, strict=True):
        retype(new, tile_type(new).with_layout(lay(old)(tile_type(new), warps)))
    return dict(zip(op.results, copy.results, strict=True))


def _behind_numbers(role: threads.Role) -> dict[Operation, list[SSAValue] | None]:
    """The tiles of which each number that a role computes of tiles is made; None: too large."""
    return {
        op: tiles_behind(op)
        for op in role.walk()
        if isinstance(op, (tile.Reduce, tile.Extract))
        and not isinstance(op.results[0].type, TileType)
    }


def _reduce_alone(op: tile.Reduce) -> None:
    """A number of what warps of the consumers hand one another, as one of what each of them had,
    where that is a tile that a thread holds:

        %p = tile.reduce_partial max %x      tile.write %s, %p
        %y = tile.read %s                    tile.reduce max[%y]     ->     tile.reduce max[%x]
    """
    as_it_was: dict[Operation, list[SSAValue]] = {}
    work: list[Operation] = [op]
    while work:
        user = work.pop()
        if user in as_it_was:
            continue
        as_it_was[user] = list(user.operands)
        user.operands = list(map(_handed_on, user.operands))
        part = user.operands[0].owner if isinstance(user, tile.Reduce) else None
        if isinstance(part, shared.ReducePartial):
            user.operands = list(map(_handed_on, part.args))
        of_tiles = [v.owner for v in user.operands if isinstance(v.type, TileType)]
        work += [owner for owner in of_tiles if isinstance(owner, Operation)]
    if tiles_behind(op) is None:
        for user, operands in as_it_was.items():
            user.operands = operands


def _handed_on(value: SSAValue) -> SSAValue:
    """A tile that is read in shared memory as the one that was written there for that."""
    while (read := defining_op(value, shared.Read)) is not None:
        writes = [u.operation for u in read.buffer.uses if isinstance(u.operation, shared.Write)]
        writes = [write for write in writes if write.parent is read.parent]
        if len(writes) != 1:
            break
        value = writes[0].value
    return value


def _by_lanes(op: Operation, role: threads.Role) -> bool:
    """Whether the lanes of each warp of a role reduce one line together."""
    several = role.single is None and isinstance(op, tile.Reduce) and op.combine is None
    return several and all(tile_type(v).rank == 1 for v in tiles_behind(op) or ())


def _in_lanes(t: TileType, warps: int) -> Layout:
    """The elements of a line over the lanes of each warp, a few beside one another in each."""
    one = blocked(t.extents, max(1, t.extents[0] // WARP), 1)
    return replace(one, warps=(copies(warps),))


def _whole(t: TileType, warps: int) -> Layout:
    """All elements in the registers of each thread of so many warps."""
    digits = [Digit(n, axis, 1) for axis, n in enumerate(t.extents) if n > 1]
    return Layout(t.extents, tuple(reversed(digits)), (copies(WARP),), (copies(warps),))
