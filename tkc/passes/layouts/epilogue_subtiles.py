"""Results are stored in epilogue subtiles: 64 rows a warpgroup by as many columns as a swizzle is
wide, each computed, written to shared memory and stored before the next.

    %y = relu(%acc + %bias)
    tile.store %c[%m, %n] %y
  becomes, for the first 64 columns,
    %p = tile.slice %acc …
    %q = tile.slice %bias …
    tile.write %subtile, relu(%p + %q)
    tile.copy_out …
  and so on for the next 64.

What is the transpose of what warpgroups hold leaves likewise, by lines of memory: so many columns
of the accumulator, all of its rows.

`subtile` and `subtile_bytes` are the geometry, for the plan and for swizzle-shared. `Parts` makes a
subtile's part of a result: the slice moves through element-wise operations, broadcasts and loads up
to where a tile must be whole, so that a warpgroup holds its accumulator and one subtile of whatever
the epilogue adds to it. A load that a subtile needs is issued while the subtile before is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.rewrite import Builder, before, loops_of, retype
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import (
    Walk,
    block_of,
    extents_of,
    index_of,
    is_side_effect_free,
    layout_of,
    owner_of,
    owner_op,
    reached,
    shared_type,
    tile_type,
    tiles,
    without_recursion,
    yielded_by,
)
from tkc.passes.analysis.alias import Overlaps, is_folded, may_meet
from tkc.passes.analysis.mapped import of_block
from tkc.passes.analysis.values import POINTWISE

# What ends a program: results are stored, or added to what is there.
ResultStore = tile.Store | tile.AtomicBlock
ROWS_PER_WARPGROUP = 64
SWIZZLE_BYTES = (128, 64, 32)
SWIZZLE_LINES = 8  # after which a swizzle repeats
# Of a consumer's thread, for its accumulator, the loads of a subtile and the subtile itself.
EPILOGUE_REGISTERS_PER_THREAD = 232
# Registers of a thread that a long epilogue computes with.
LONG_EPILOGUE_REGISTERS = 24
# Operations on an element from which on an epilogue is long: it is computed for a few columns at a
# time. One that is not a single instruction counts as so many.
LONG_EPILOGUE_OPERATIONS = 6
LONG_EPILOGUE_COLUMNS = 8
SINGLE_INSTRUCTIONS = {
    f"tile.{name}"
    for name in (
        *("add", "sub", "mul", "max", "min", "fmax", "fmin", "neg", "fma", "cast", "select"),
    )
}
# Operations with several live values for each element: in a wide subtile ptxas interleaves more
# elements than registers hold.
MANY_REGISTERS = {"tile.erf"}


class StoredResult(NamedTuple):
    """A store of a program's result; whether the result is the transpose of what warpgroups hold,
    and whether they share its columns where it is not.
    """

    op: ResultStore
    transposed: bool
    by_columns: bool = False

    @staticmethod
    def of(op: ResultStore, swapped: bool = False, by_columns: bool = False) -> StoredResult:
        """swapped: the dots will be computed as their transposes."""
        return StoredResult(op, _is_transpose(op.value) != swapped, by_columns)


def subtile(store: StoredResult, groups: int, widest: int) -> tuple[int, int] | None:
    """Rows and columns of the subtiles of a store's tile, where warpgroups share its rows (then at
    most the widest columns, but no less than a swizzle has) or, of a transpose, its columns (then
    at most so many rows). Where they share the columns of what is no transpose, the tile is one.
    None if it is stored from registers.
    """
    t = store.op.value.type
    if not isinstance(t, TileType) or t.rank != 2:
        return None
    if bits(t.element) not in _subtile_widths(store):
        return None
    rows, (m, n) = ROWS_PER_WARPGROUP * groups, t.extents
    if store.by_columns:
        fits = not store.transposed and m == ROWS_PER_WARPGROUP
        return (m, n) if fits and panel_bytes(store, groups) else None
    if store.transposed:
        lines = lines_of_subtile(m, widest)
        return (lines, rows) if lines and n % rows == 0 else None
    swizzles = [8 * swizzle // bits(t.element) for swizzle in SWIZZLE_BYTES]
    columns = _widest(swizzles, max(widest, swizzles[-1]), n)
    return (rows, columns) if columns and m % rows == 0 else None


def _subtile_widths(store: StoredResult) -> tuple[int, ...]:
    """Bits of the elements that are stored in subtiles: only matrices of 16 are transposed on
    their way to shared memory.
    """
    if isinstance(store.op, tile.AtomicBlock):
        return 16, 32
    return (16,) if store.transposed else (8, 16)


def panel_bytes(store: StoredResult, groups: int) -> int:
    """The widest swizzle of which each warpgroup writes whole panels of a subtile, where they share
    its columns; 0 if there is none.
    """
    t = tile_type(store.op.value)
    part, rest = divmod(t.extents[1] * bits(t.element) // 8, groups)
    return 0 if rest else _widest(SWIZZLE_BYTES, max(SWIZZLE_BYTES), part)


def lines_of_subtile(lines: int, most: int) -> int:
    """Lines that a transpose of so many stores at once: as many as divide them, in whole swizzles;
    0 if none do.
    """
    return _widest(range(most // SWIZZLE_LINES * SWIZZLE_LINES, 0, -SWIZZLE_LINES), most, lines)


def _widest(sizes: Sequence[int], most: int, whole: int) -> int:
    """The first of these sizes, of at most so many, that divides the whole; 0 if none does."""
    return next((size for size in sizes if size <= most and whole % size == 0), 0)


class _Turned(NamedTuple):
    """Of a tile: whether it is computed of a dot's result, and whether it is the transpose of what
    that is, or of what else it is computed of.
    """

    of_dot: bool
    transposed: bool


def _is_transpose(value: SSAValue) -> bool:
    """Whether a tile is computed of the transpose of a dot's result, and not of one as it is; of a
    tile that no dot makes, whether of any transpose.
    """
    return without_recursion(_turned(value, {})).transposed


def _turned(value: SSAValue, known: dict[SSAValue, _Turned]) -> Walk[_Turned]:
    """known: of tiles that several others are computed of."""
    if value in known:
        return known[value]
    op = value.owner
    if isinstance(op, tile.Transpose):
        of_dot, transposed = yield _turned(op.arg, known)
        found = _Turned(of_dot, not transposed and tile_type(op.arg).rank == 2)
    elif isinstance(op, POINTWISE):
        parts = []
        for v in tiles(op.operands):
            parts.append((yield _turned(v, known)))
        of_dots = [part.transposed for part in parts if part.of_dot]
        transposed = all(of_dots) if of_dots else any(part.transposed for part in parts)
        found = _Turned(bool(of_dots), transposed)
    else:
        made = reached([value], _computed_of)
        found = _Turned(any(isinstance(v.owner, tile.Dot) for v in made), False)
    known[value] = found
    return found


def _computed_of(value: SSAValue) -> Sequence[SSAValue]:
    """The tiles, of as many axes, that a tile is computed of, around loops and out of branches."""
    op = value.owner
    match op:
        case Block() if isinstance(loop := op.parent_op(), scf.ForOp) and index_of(value):
            i = index_of(value) - 1
            found = [loop.iter_args[i], yielded_by(op)[i]]
        case scf.ForOp():
            i = index_of(value)
            found = [op.iter_args[i], yielded_by(op.body.block)[i]]
        case scf.IfOp():
            found = [yielded_by(region.block)[index_of(value)] for region in op.regions]
        case Operation() if not op.regions and not isinstance(op, tile.Dot):
            found = [v for v in tiles(op.operands) if tile_type(v).rank == tile_type(value).rank]
        case _:
            found = []
    return found


def subtile_of(store: StoredResult, groups: int, widest: int) -> tuple[int, int]:
    """Rows and columns of the subtiles of a store that has some."""
    found = subtile(store, groups, widest)
    assert found is not None
    return found


def widest_subtile(
    stores: Sequence[ResultStore],
    accumulator: int,
    registers: int = EPILOGUE_REGISTERS_PER_THREAD,
) -> int:
    """Columns of a subtile, where a thread has so many registers and its accumulator takes some of
    them: fewer where the epilogue loads or computes much for each.
    """
    takes_many = any(op.name in MANY_REGISTERS for op in epilogue_of(stores))
    fitting = (32, 16) if takes_many else (64, 32, 16)
    return next((c for c in fitting if epilogue_registers(stores, accumulator, c) <= registers), 16)


def epilogue_registers(stores: Sequence[ResultStore], accumulator: int, columns: int = 16) -> int:
    """Registers of a thread with an accumulator of so many, while subtiles of so many columns are
    stored.
    """
    within = epilogue_of(stores)
    computing = LONG_EPILOGUE_REGISTERS if is_long(within) else 0
    loads = [op for op in within if isinstance(op, tile.Load)]
    return accumulator + computing + load_registers(loads, columns) + columns // 4


def load_registers(loads: Sequence[tile.Load], columns: int) -> int:
    """Registers of a thread for what loads bring for that many columns of 64 rows: half a register
    a column; of a vector, half as many again.
    """
    matrices = sum(
        isinstance(op.result.type, TileType) and sum(n > 1 for n in op.result.type.extents) == 2
        for op in loads
    )
    return matrices * columns // 2 + (len(loads) - matrices) * columns // 4


def is_long(within: Iterable[Operation]) -> bool:
    """Whether an epilogue computes so much for an element that it does so for few at once."""
    computed = [
        op
        for op in within
        if isinstance(op, POINTWISE) and isinstance(op.results[0].type, TileType)
    ]
    operations = sum(
        1 if op.name in SINGLE_INSTRUCTIONS else LONG_EPILOGUE_OPERATIONS for op in computed
    )
    return operations >= LONG_EPILOGUE_OPERATIONS


def subtile_buffers(store: StoredResult, groups: int, widest: int, planned: int) -> int:
    """Buffers that a store's subtiles use in turn: as many as planned where that divides the
    subtiles of a program (the wait for a subtile counts back by subtiles).
    """
    rows, columns = subtile_of(store, groups, widest)
    m, n = extents_of(store.op.value)
    return planned if (m // rows) * (n // columns) % planned == 0 else 1


def subtile_bytes(stores: Sequence[StoredResult], groups: int, widest: int, planned: int) -> int:
    """Shared memory for the subtiles of a program's stores."""
    return sum(
        subtile_buffers(store, groups, widest, planned)
        * prod(subtile_of(store, groups, widest))
        * (bits(element_of(store.op.value.type)) // 8)
        for store in stores
    )


def reusable_loads(
    stores: Sequence[StoredResult],
    loads: Sequence[tile.Load],
    loop: Operation,
    groups: int,
    widest: int,
) -> list[tile.Load]:
    """For each store a load of its own whose buffer its subtiles fit, panel by panel: of as many
    rows, and read in the loop alone, so that the buffer is free when results are stored; empty
    where one has none.
    """
    found: list[tile.Load] = []
    for store in stores:
        op = store.op
        if loop.parent is not op.parent or not loop.is_before_in_block(op):
            return []
        subtiles = subtile_of(store, groups, widest)
        fitting = (
            load
            for load in loads
            if load not in found
            and load.parent is op.parent
            and _fits(store, subtiles, load)
            and _is_used_within(load.result, loop)
        )
        load = next(fitting, None)
        if load is None:
            return []
        found.append(load)
    return found


def _fits(store: StoredResult, subtiles: tuple[int, int], load: tile.Load) -> bool:
    """Whether the subtiles of a store have the layout of a load's block in shared memory."""
    (rows, columns), block, stored = subtiles, tile_type(load.result), tile_type(store.op.value)
    if store.transposed:
        return False
    if not block.extents[0] == stored.extents[0] == rows:
        return False
    if block.extents[1] < stored.extents[1] or block.element != stored.element:
        return False
    memory = of_block(load)
    return memory.fast == 1 and memory.swizzle == columns * bits(stored.element) // 8


def _is_used_within(value: SSAValue, loop: Operation) -> bool:
    """Whether a tile, or what is a view of it, is used in a loop alone."""
    for use in value.uses:
        op = use.operation
        is_view = isinstance(op, (tile.Transpose, tile.Slice))
        if not loop.is_ancestor(op) and not (is_view and _is_used_within(op.results[0], loop)):
            return False
    return True


def epilogue_of(stores: Sequence[ResultStore]) -> set[Operation]:
    """The operations whose every use ends in those stores: what may be computed part by part."""
    found: set[Operation] = set(stores)
    work = [v.owner for op in stores for v in op.operands]
    while work:
        op = work.pop()
        if isinstance(op, Block) or op in found:
            continue
        if all(use.operation in found for r in op.results for use in r.uses):
            found.add(op)
            work += [v.owner for v in op.operands]
    return found


# Where a part begins, and its extents.
Area = tuple[tuple[int, ...], tuple[int, ...]]
# By axis of a value the one of a store's tile that runs along it; None where its extent is 1.
Axes = tuple[int | None, ...]


class _Reader(NamedTuple):
    """A store of whose tile each part needs a part of a load's block, along these axes."""

    store: ResultStore
    axes: Axes


# Reads a part of a buffer, of this type, from where it begins on, before an operation.
ReadPart = Callable[[SSAValue, tuple[int, ...], TileType, Operation], SSAValue]


class Parts:
    """The parts of the values that some stores need. `of(value, area, anchor)` makes one before the
    anchor; what was made is kept. Where an epilogue computes much, a part is concatenated of pieces
    of a few columns each, so that what one needs is no longer live before the next. Of a block that
    a ring brought a part is read at a time (read_part).
    """

    def __init__(
        self, stores: Sequence[ResultStore], overlaps: Overlaps, read_part: ReadPart | None = None
    ):
        self.overlaps, self.read_part = overlaps, read_part
        self.within = epilogue_of(stores)
        self.readers = self._readers_of_loads(stores)
        self.loads = {op for op in self.within if isinstance(op, tile.Load) and self._may_move(op)}
        self.long = is_long(self.within)
        self.made: dict[tuple, SSAValue] = {}

    def of(self, value: SSAValue, area: Area, anchor: Operation) -> SSAValue:
        """A part of a value, computed before the anchor."""
        (row, column), (rows, columns) = area
        piece = LONG_EPILOGUE_COLUMNS
        is_cut = self.long and columns > piece and columns % piece == 0
        if not is_cut or layout_of(value).period(1) > piece:
            return self._part(value, area, area, anchor)
        pieces = [
            self._part(value, ((row, at), (rows, piece)), area, anchor)
            for at in range(column, column + columns, piece)
        ]
        return before(anchor, tile.Concat(pieces, 1, _type_of_part(value, area))).result

    def offset(self, offset: SSAValue, start: int, count: int, anchor: Operation) -> SSAValue:
        """Where so many elements from one on along an axis of a block are in its array."""
        if isinstance(offset.type, TileType):
            line = (start,), (count,)
            return self._part(offset, line, line, anchor)
        return advanced(offset, start, anchor)

    def fetch(self, value: SSAValue, area: Area, anchor: Operation) -> None:
        """Issues the loads among a part's sources, before the part is computed."""

        def behind(part: tuple[SSAValue, Area]) -> list[tuple[SSAValue, Area]]:
            return list(reversed(self._behind(*part)))  # those of the first operand come first

        for found, part in reached([(value, area)], behind):
            if found.owner in self.loads and part[1] != extents_of(found):
                self._part(found, part, part, anchor)

    def _behind(self, value: SSAValue, area: Area) -> list[tuple[SSAValue, Area]]:
        """Of what a part is computed, element by element or as a view."""
        op = value.owner
        if isinstance(op, Block) or op not in self.within:
            return []
        if isinstance(op, (*POINTWISE, tile.Splat)):
            return [(v, area) for v in tiles(op.operands)]
        source = shown(op, area)
        return [] if source is None else [(op.operands[0], source)]

    def _part(self, value: SSAValue, area: Area, whole: Area, anchor: Operation) -> SSAValue:
        """A part; what it loads is loaded for the whole that it belongs to."""
        if not isinstance(value.type, TileType) or area[1] == value.type.extents:
            return value
        if (value.owner in self.loads or self._is_read(value)) and area != whole:
            offsets = tuple(a - b for a, b in zip(area[0], whole[0], strict=True))
            loaded = self._part(value, whole, whole, anchor)
            return self._slice(loaded, (offsets, area[1]), anchor)
        key = value, area, anchor.parent
        made = self.made.get(key)
        # stores of transposes come last, wherever they are: what was made may be behind the anchor
        if made is None or not owner_op(made).is_before_in_block(anchor):
            made = self.made[key] = self._make(value, area, whole, anchor)
        return made

    def _make(self, value: SSAValue, area: Area, whole: Area, anchor: Operation) -> SSAValue:
        op = value.owner
        if isinstance(op, Block) or op not in self.within:
            return self._slice(value, area, anchor)
        result = _type_of_part(value, area)
        match op:
            case tile.Constant() | tile.Splat():
                return self._clone(op, list(op.operands), result, anchor)
            case tile.Load() if op in self.loads:
                return self._load(op, area, result, anchor)
            case _ if isinstance(op, POINTWISE):
                operands = [self._part(v, area, whole, anchor) for v in op.operands]
                return self._clone(op, operands, result, anchor)
        source, source_of_whole = shown(op, area), shown(op, whole)
        if source is None or source_of_whole is None:
            return self._slice(value, area, anchor)
        operand = self._part(op.operands[0], source, source_of_whole, anchor)
        return self._clone(op, [operand], result, anchor)

    def _slice(self, value: SSAValue, area: Area, anchor: Operation) -> SSAValue:
        if area[1] == extents_of(value):
            return value
        if self.read_part and self._is_read(value):
            return self._read(value, area, anchor, self.read_part)
        return before(anchor, tile.Slice(value, area[0], _type_of_part(value, area))).result

    def _read(
        self, value: SSAValue, area: Area, anchor: Operation, read_part: ReadPart
    ) -> SSAValue:
        """A part of a ring's block: of whole panels, which a swizzle does not let be divided."""
        buffer = owner_of(value, shared.Read).buffer
        panels = _panels_around(area, shared_type(buffer).memory)
        if panels == area:
            return read_part(buffer, area[0], _type_of_part(value, area), anchor)
        whole = value
        if panels[1] != extents_of(value):
            whole = self._part(value, panels, panels, anchor)
        offsets = tuple(a - b for a, b in zip(area[0], panels[0], strict=True))
        return before(anchor, tile.Slice(whole, offsets, _type_of_part(value, area))).result

    def _is_read(self, value: SSAValue) -> bool:
        """Whether a value is what a ring brought, for these stores alone."""
        return isinstance(value.owner, shared.Read) and value.owner in self.within

    def _clone(
        self, op: Operation, operands: list[SSAValue], result: TileType, anchor: Operation
    ) -> SSAValue:
        new = op.clone(dict(zip(op.operands, operands, strict=True)))
        retype(new.results[0], result)
        return before(anchor, new).results[0]

    def _load(self, op: tile.Load, area: Area, result: TileType, anchor: Operation) -> SSAValue:
        kept = iter(zip(*area, strict=True))
        offsets, extents = list(op.offsets), list(op.extents.get_values())
        for axis, n in enumerate(extents):
            if n >= 0:
                start, extents[axis] = next(kept)
                offsets[axis] = advanced(offsets[axis], start, anchor)
        new = tile.Load(op.array, offsets, extents, None, op.other, result)
        new.attributes |= op.attributes
        new.result.name_hint = op.result.name_hint
        return before(anchor, new).result

    def _readers_of_loads(self, stores: Sequence[ResultStore]) -> dict[Operation, list[_Reader]]:
        """By load the stores that parts of its block are made for."""
        found: dict[Operation, list[_Reader]] = {}
        for store in stores:
            axes = tuple(range(tile_type(store.value).rank))
            kept = (
                v for v, n in zip(store.offsets, store.extents.get_values(), strict=True) if n >= 0
            )
            work: list[tuple[SSAValue, Axes]] = [
                (store.value, axes),
                *([] if store.mask is None else [(store.mask, axes)]),
                *((offset, (axis,)) for axis, offset in enumerate(kept)),
            ]
            for value, shows in reached(work, lambda part: self._sources(*part)):
                if isinstance(value.owner, tile.Load):
                    found.setdefault(value.owner, []).append(_Reader(store, shows))
        return found

    def _sources(self, value: SSAValue, axes: Axes) -> list[tuple[SSAValue, Axes]]:
        """Of which values, along which axes of a store's tile, parts of one are made."""
        op = value.owner
        if isinstance(op, Block) or op not in self.within:
            return []
        if isinstance(op, (*POINTWISE, tile.Splat)):
            return [(v, axes) for v in tiles(op.operands)]
        shows = _result_axes(op)
        if shows is None:
            return []
        return [(op.operands[0], tuple(None if i is None else axes[i] for i in shows))]

    def _may_move(self, load: tile.Load) -> bool:
        """Whether a block may be loaded while other parts of the results are stored: no mask, no
        gather, and what is stored is elsewhere, or at the same place and so not this part.
        """
        operands = [*load.offsets, *([] if load.other is None else [load.other])]
        if load.mask is not None or any(isinstance(v.type, TileType) for v in operands):
            return False
        order = {op: i for i, op in enumerate(block_of(load).walk())}
        return not any(self._may_write(op, load, order) for op in order)

    def _may_write(self, op: Operation, load: tile.Load, order: dict[Operation, int]) -> bool:
        """Whether an operation may write to another part of what a load reads, or to this part
        before it is read. order: of the operations behind the load in its block, and in these.
        """
        if isinstance(op, tile.Store):
            if op.array is load.array and list(op.offsets) == list(load.offsets):
                return (
                    op.extents != load.extents
                    or is_folded(op.array, self.overlaps)
                    or order[load] < order[op]
                    and not self._is_over_what_was_read(op, load, order)
                )
            return may_meet(op, load, self.overlaps)
        return isinstance(op, (tile.StorePointers, tile.Atomic, tile.AtomicBlock))

    def _is_over_what_was_read(
        self, store: tile.Store, load: tile.Load, order: dict[Operation, int]
    ) -> bool:
        """Whether a store of the block that a load reads writes no part that is read later: where
        it is made once, for the last of the tiles that are computed of that block, of each part of
        which the part of the block lies in the same place.
        """
        return loops_of(store) == loops_of(load) and all(
            order[reader.store] <= order[store]
            and all(axis in (None, i) for i, axis in enumerate(reader.axes))
            for reader in self.readers.get(load, ())
        )


def _panels_around(area: Area, memory: SharedLayout) -> Area:
    """The least part of a buffer that has another, and begins and ends where a slice may."""
    starts, ends = [], []
    for axis, (start, count) in enumerate(zip(*area, strict=True)):
        step, _ = memory.linear(axis)
        starts.append(start // step * step)
        ends.append(min(memory.shape[axis], -(-(start + count) // step) * step))
    return tuple(starts), tuple(b - a for a, b in zip(starts, ends, strict=True))


def _type_of_part(value: SSAValue, area: Area) -> TileType:
    layout, _ = layout_of(value).slice(*area)
    return TileType(area[1], element_of(value.type), layout)


def shown(op: Operation, area: Area) -> Area | None:
    """The part of a view's operand that a part of its result shows, if there is one."""
    axes = _result_axes(op)
    if axes is None:
        return None
    offsets, sizes = area
    return (
        tuple(0 if i is None else offsets[i] for i in axes),
        tuple(1 if i is None else sizes[i] for i in axes),
    )


def _result_axes(op: Operation) -> list[int | None] | None:
    """For each axis of a view's operand the axis of its result that runs along it, None where its
    extent is 1; None where parts of the result are not parts of the operand.
    """
    match op:
        case tile.Broadcast():
            return [None if n == 1 else i for i, n in enumerate(extents_of(op.arg))]
        case tile.Transpose():
            order = op.permutation.get_values()
            return [order.index(i) for i in range(len(order))]
        case tile.Reshape():
            old, new = extents_of(op.arg), extents_of(op.result)
            wide = [i for i, n in enumerate(new) if n > 1]
            if [n for n in old if n > 1] == [new[i] for i in wide]:
                found = iter(wide)
                return [next(found) if n > 1 else None for n in old]
    return None


def neighbours(
    stores: Sequence[ResultStore], kind: Callable[[ResultStore], object], overlaps: Overlaps
) -> list[list[ResultStore]]:
    """Stores of one kind that follow each other with nothing between that could observe their
    order, to memory that they do not share.
    """
    found: list[list[ResultStore]] = []
    for op in stores:
        last = found[-1][-1] if found else None
        is_next = last is not None and last.parent is op.parent and kind(last) == kind(op)
        if is_next and _may_interleave(found[-1], op, overlaps):
            found[-1].append(op)
        else:
            found.append([op])
    return found


def _may_interleave(
    stores: Sequence[ResultStore], following: ResultStore, overlaps: Overlaps
) -> bool:
    """Whether parts of a store may be written between parts of those before it."""

    def is_apart(access: Operation) -> bool:
        return not any(may_meet(store, access, overlaps) for store in stores)

    op = stores[-1].next_op
    while op is not None and op is not following:
        if op.regions:
            return False
        is_other_load = isinstance(op, tile.Load) and is_apart(op)
        if not is_other_load and not is_side_effect_free(op):
            return False
        op = op.next_op
    return is_apart(following)


def advanced(offset: SSAValue, by: int, anchor: Operation) -> SSAValue:
    """The sum of an offset and a constant."""
    return Builder(anchor).add(offset, by) if by else offset
