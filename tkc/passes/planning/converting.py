"""Operands that a role of its own computes for the tensor cores, iterations ahead of them.

    for n:
      k = load K[n]                  the producer copies
      k = k · rsqrt(sum(k², 1))      the converter reads a stage, computes, and writes a stage of
      s = dot(q, kᵀ)                 another ring; the consumers wait for that alone

Where consumers compute what wgmma reads in shared memory, this stands between their dots: all of
them write, meet, and only then multiply. The converter (layouts/relayout.py) is in nobody's way,
and to the search for late dots the operand is as good as loaded.

What it can compute: element by element, with reductions of tiles of the operand's extents, of what
the loop loads and nothing that it carries, of numbers and small tiles that the loop does not
change. What the loop loads comes through a ring that tensor maps fill; nothing but dots may read
what is computed on the way. What it has before the loop it loads itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects import scf
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import tile
from tkc.ir.digits import LayoutError
from tkc.ir.layout import WARP, Layout
from tkc.ir.target import Target
from tkc.ir.types import TileType
from tkc.ir.values import is_side_effect_free, owner_op, reached, tile_type, tiles
from tkc.passes import LaunchOptions
from tkc.passes.analysis.alias import Overlaps, kernel_around, unchanged
from tkc.passes.analysis.mapped import unmapped
from tkc.passes.analysis.remembered import mark, remembered, unmark
from tkc.passes.analysis.values import LEAVES, POINTWISE, VIEWS, Kinds
from tkc.passes.layouts.relayout import (
    MAX_OPERAND_ELEMENTS,
    RELAYOUT_WARPS,
    computed_layout,
    operand_memory,
)
from tkc.passes.layouts.views import backward
from tkc.passes.planning import demands
from tkc.passes.planning.gathers import loaded_by_consumers
from tkc.passes.planning.operands import (
    CONVERTED,
    MAX_BESIDE_BYTES,
    Sides,
    leaves,
    operands_here,
    untransposed,
)

# of a load that no loop may carry for the next iteration: another role makes it, too
STAYS = "stays"
# of a thread of the converter, for addresses, stages and what a chain of operations has under way
CONVERTER_REGISTERS = 40


@dataclass(frozen=True)
class Conversion:
    """An operand that the converter may compute: its value without its transposes, the operations
    of its loop that make it, and the blocks that a ring brings for it.
    """

    value: SSAValue
    ops: tuple[Operation, ...]
    loads: tuple[tile.Load, ...]

    @property
    def registers(self) -> int:
        """Of a thread of the converter: what it reads of blocks, the widest tile that it makes of
        them, and the rest.
        """
        made = [tile_type(r).bytes for op in self.ops for r in op.results if _is_tile(r)]
        read = sum(tile_type(load.result).bytes for load in self.loads)
        return (read + max(made, default=0)) // (4 * WARP * RELAYOUT_WARPS) + CONVERTER_REGISTERS


def conversions(
    dots: Sequence[tile.Dot], options: LaunchOptions, overlaps: Overlaps
) -> list[Conversion]:
    """The operands of some dots that consumers write, and the converter could compute. What one of
    them is made of nothing else but these may be made of.
    """
    found: dict[SSAValue, Conversion] = {}
    for dot in dots:
        for operand, k in _written(dot, options):
            made = _conversion(operand, k, dot, overlaps)
            if made is not None:
                found.setdefault(made.value, made)
    while found:
        inside = {op for made in found.values() for op in made.ops}
        read = {v for v, made in found.items() if not _is_closed(made, inside, set(found))}
        if not read:
            break
        found = {v: made for v, made in found.items() if v not in read}
    return list(found.values())


def loads_behind(value: SSAValue) -> set[Operation]:
    """The loads of tiles that an operand is computed of, in its loop or before that."""
    behind = reached([value], _tiles_behind)
    return {owner_op(v) for v in behind if isinstance(v.owner, tile.Load)}


def converted(
    dots: Iterable[tile.Dot], options: LaunchOptions, overlaps: Overlaps
) -> list[Conversion]:
    """The operands of some dots that the converter computes, each once."""
    found: dict[SSAValue, Conversion] = {}
    for dot in dots:
        both = Sides.of(dot, options)
        for operand, k, is_converted in zip(
            (both.left, both.right), (both.left_k, both.right_k), both.converted, strict=True
        ):
            if is_converted and (made := _conversion(operand, k, dot, overlaps)) is not None:
                found.setdefault(made.value, made)
    return list(found.values())


def convert_operand(value: SSAValue) -> None:
    """Has the converter compute an operand."""
    mark(owner_op(value), CONVERTED, UnitAttr())


def keep_operand(value: SSAValue) -> None:
    """Has the consumers compute it, as without a converter."""
    unmark(owner_op(value), CONVERTED)


def operand_layout(op: Operation, layout: Layout, base: Layout) -> Layout:
    """The layout in which the converter has the operands of an operation of whose result it has
    this one. base: that of the dot's operand, in which what is reduced is. Raises LayoutError where
    threads would need what others have.
    """
    if isinstance(op, VIEWS):
        return backward(op, layout)
    if isinstance(op, tile.Reduce):
        same = base.shape == tile_type(op.args[0]).extents
        if not same or base.drop(op.axis.value.data) != layout:
            raise LayoutError("what is reduced is no tile of the operand's extents")
        return base
    return layout


def base_layout(value: SSAValue, k: int) -> Layout:
    """That in which the converter makes a dot's operand, without its transposes. k: its axis that
    is K. Raises LayoutError where it has none.
    """
    t, kinds = tile_type(value), Kinds(RELAYOUT_WARPS)
    behind = reached([value], lambda v: [] if kinds.cheap(v) else _tiles_behind(v))
    axes = {v.owner.axis.value.data for v in behind if isinstance(v.owner, tile.Reduce)}
    return computed_layout(t, operand_memory(t, k).fast, frozenset(axes))


def untransposed_axis(operand: SSAValue, axis: int) -> int:
    """An axis of an operand as one of what it is the transpose of."""
    while isinstance(view := operand.owner, tile.Transpose):
        operand, axis = view.arg, view.permutation.get_values()[axis]
    return axis


def converter_clocks(
    made: Sequence[Conversion], late: Collection[tile.Dot], target: Target
) -> tuple[float, float]:
    """Of an iteration, in which the converter computes, and until it has shown tensor cores what it
    has made: it waits for blocks and for room, reads, computes, writes, and fences that. late: dots
    that are, for which an operand of others is made once more.
    """
    engines, work, whole = target.engines, 0.0, 0.0
    for each in made:
        ops = [op for op in each.ops if op not in each.loads]
        moved = [each.value, *(load.result for load in each.loads)]
        times = len({use.operation in late for use, _ in leaves(each.value)})
        mine = demands.of(ops, engines, RELAYOUT_WARPS).alone
        moving = sum(tile_type(v).bytes for v in moved) / engines.shared
        work += times * mine
        whole += times * (mine + moving + 3 * engines.wait)
    return work, whole


# ---- what it can compute
def _written(dot: tile.Dot, options: LaunchOptions) -> list[tuple[SSAValue, int]]:
    """The operands of a dot that threads write to shared memory, and which axis of each is K."""
    both = Sides.of(dot, options)
    if both.swapped:  # transposes move through what makes the operand
        return []
    sides = (both.left, both.left_k, both.written[0]), (both.right, both.right_k, both.written[1])
    return [(operand, k) for operand, k, is_written in sides if is_written]


@remembered
def _conversion(operand: SSAValue, k: int, dot: tile.Dot, overlaps: Overlaps) -> Conversion | None:
    """How the converter could compute a dot's operand; None where it cannot."""
    value, loop = untransposed(operand), dot.parent_op()
    if not isinstance(loop, scf.ForOp) or tile_type(value).size > MAX_OPERAND_ELEMENTS:
        return None
    ops = _computed(value, loop, overlaps)
    if ops is None or not _have_layouts(value, untransposed_axis(operand, k)):
        return None
    loads = [op for op in ops if isinstance(op, tile.Load) and _is_tile(op.result)]
    if not loads or any(unmapped(op) or loaded_by_consumers(op) for op in loads):
        return None
    return Conversion(value, ops, tuple(loads))


def _computed(value: SSAValue, loop: scf.ForOp, overlaps: Overlaps) -> tuple[Operation, ...] | None:
    """The operations of a loop that make a tile, in their order; None where the converter cannot do
    one of them, or have what they take.
    """
    body, kernel = loop.body.block, kernel_around(loop)
    made = set(reached([value], lambda v: operands_here(v.owner, body)))
    ops = {v.owner for v in made if isinstance(v.owner, Operation)}
    if any(isinstance(v.owner, Block) and v is not body.args[0] for v in made):
        return None  # it is carried
    outside = {v for op in ops for v in op.operands if v.owner not in {*ops, body}}
    is_done = all(_is_done(op, loop, overlaps) for op in ops)
    if not is_done or not all(_is_small_and_given(v, kernel, overlaps) for v in outside):
        return None
    return tuple(op for op in body.ops if op in ops)


def _is_done(op: Operation, loop: scf.ForOp, overlaps: Overlaps) -> bool:
    """Whether the converter can do an operation of a loop."""
    if isinstance(op, tile.Load):
        return unchanged(op, loop, overlaps)
    if isinstance(op, tile.Reduce):
        return len(op.results) == 1 and _is_tile(op.results[0])
    if op.regions:
        return False
    has_tiles = any(map(_is_tile, (*op.operands, *op.results)))
    return isinstance(op, (*POINTWISE, *VIEWS, *LEAVES)) if has_tiles else _is_of_numbers(op)


def _is_small_and_given(value: SSAValue, kernel: Operation, overlaps: Overlaps) -> bool:
    """Whether the converter can have what an operand is computed of outside of its loop: numbers
    that each warp can compute, none of them of a tile, whose elements others have; and what is
    computed, element by element, of small blocks that nothing changes.
    """

    def is_given(v: SSAValue) -> bool:
        op = v.owner
        if isinstance(op, Block):  # an argument, or what a loop counts
            around = op.parent_op()
            return around is kernel or isinstance(around, scf.ForOp) and v is op.args[0]
        if isinstance(op, tile.Load):
            return (not _is_tile(v) or _is_small(v)) and unchanged(op, kernel, overlaps)
        if _is_tile(v):
            return isinstance(op, (*POINTWISE, *VIEWS, *LEAVES))
        return not any(map(_is_tile, op.operands)) and _is_of_numbers(op)

    def behind(v: SSAValue) -> Sequence[SSAValue]:
        return v.owner.operands if isinstance(v.owner, Operation) and not v.owner.regions else ()

    return all(map(is_given, reached([value], behind)))


def _is_of_numbers(op: Operation) -> bool:
    """Whether any thread can do an operation without tiles, as often as it likes."""
    return is_side_effect_free(op) and not op.regions and not isinstance(op, tile.LoadPointers)


def _tiles_behind(value: SSAValue) -> list[SSAValue]:
    """The tiles that one is computed of."""
    owner = value.owner
    return tiles(owner.operands) if isinstance(owner, Operation) and not owner.regions else []


def _is_tile(value: SSAValue) -> bool:
    return isinstance(value.type, TileType)


def _is_small(value: SSAValue) -> bool:
    return tile_type(value).bytes <= MAX_BESIDE_BYTES


def _have_layouts(value: SSAValue, k: int) -> bool:
    """Whether threads of the converter have what they need of all that a tile is made of, and ask
    others but where a warp reduces rows. k: the tile's axis that is K.
    """
    try:
        base = base_layout(value, k)
        seen, work = set[tuple[SSAValue, Layout]](), [(value, base)]
        while work:
            at = work.pop()
            v, layout = at
            if at in seen:
                continue
            seen.add(at)
            op = owner_op(v)
            if isinstance(op, tile.Load) and tiles(op.operands):
                return False  # places of rows, or a mask
            work += [(x, operand_layout(op, layout, base)) for x in tiles(op.operands)]
    except LayoutError:
        return False
    return True


def _is_closed(made: Conversion, inside: set[Operation], ends: set[SSAValue]) -> bool:
    """Whether nothing else is computed of what an operand is made of: inside, of all operands; all
    of its own readers are dots beside it.
    """
    kinds = Kinds(RELAYOUT_WARPS)
    for op in made.ops:
        tile_made = [r for r in op.results if _is_tile(r)]
        if isinstance(op, tile.Load) or not tile_made or all(map(kinds.cheap, tile_made)):
            continue
        value = tile_made[0]
        if value in ends:
            if not _is_read_by_dots(value):
                return False
        elif any(use.operation not in inside for use in value.uses):
            return False
    return True


def _is_read_by_dots(value: SSAValue) -> bool:
    block = owner_op(value).parent
    return all(
        isinstance(use.operation, tile.Dot) and use.index < 2 and use.operation.parent is block
        for use, _ in leaves(value)
    )
