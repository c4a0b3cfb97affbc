"""Results leave in subtiles: 64 rows a warpgroup by as many columns as a swizzle is wide, each
computed, written and sent before the next.

    %y = relu(%acc + %bias)                      %p = tile.slice %acc …;  %q = tile.slice %bias …        64 columns
    tile.store %c[%m, %n] %y             ->      tile.write %subtile, relu(%p + %q);  tile.copy_out …
                                                 … the next 64

`subtile` and `subtile_bytes` are the geometry, for the plan and for swizzle-shared. `Parts` makes a
subtile's part of a result: the slice moves through element-wise operations, broadcasts and loads up to
where a tile must be whole, so that a warpgroup holds its sum and one subtile of whatever the epilogue
adds to it. A load that a subtile needs is made while the subtile before is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import before, retype
from tkc.ir.types import TileType, bits, is_float
from tkc.passes.analysis.mapped import of_block
from tkc.passes.analysis.values import POINTWISE

GROUP_ROWS, SWIZZLES = 64, (128, 64, 32)
# of a consumer's thread, for its sum, the loads of a subtile and the subtile itself,
REGISTERS = 232
# and what a long epilogue computes with: one of six operations on an element, or one that is not
BUSY = 24
LONG = 6  # among these; such an epilogue is computed for 8 columns at once
DEEP = {
    "tile.erf"
    # have several values of an element at once: of a subtile 64 columns wide ptxas works at more
    # elements
    # side by side than registers hold
}
SHORT, PIECE = (
    {
        f"tile.{name}"
        for name in ("add", "sub", "mul", "max", "min", "neg", "fma", "cast", "select")
    },
    8,
)


def subtile(store: tile.Store, groups: int, widest: int) -> tuple[int, int] | None:
    """Rows and columns (at most the widest) in which a store's tile leaves, where warpgroups share
    its rows; None if it leaves from registers.
    """
    t = store.value.type
    if (
        not isinstance(t, TileType)
        or t.rank != 2
        or not is_float(t.element)
        or bits(t.element) != 16
    ):
        return None
    rows, (m, n) = GROUP_ROWS * groups, t.extents
    columns = next((c for c in _columns(t) if c <= widest and n % c == 0), 0)
    return (rows, columns) if columns and m % rows == 0 else None


def _columns(t: TileType) -> list[int]:
    return [8 * w // bits(t.element) for w in SWIZZLES]


def widest(stores: Sequence[tile.Store], held: int, most: int = REGISTERS) -> int:
    """Columns of a subtile, beside a sum of so many registers a thread that has at most so many: fewer
    where the epilogue loads or computes much for each.
    """
    fitting = (32, 16) if any(op.name in DEEP for op in chain(stores)) else (64, 32, 16)
    return next((c for c in fitting if beside(stores, held, c) <= most), 16)


def beside(stores: Sequence[tile.Store], held: int, columns: int = 16) -> int:
    """Registers of a thread with a sum of so many, while subtiles leave."""
    within = chain(stores)
    return (
        held
        + (BUSY if lasting(within) else 0)
        + burden([op for op in within if isinstance(op, tile.Load)], columns)
        + columns // 4
    )


def burden(loads: Sequence[tile.Load], columns: int) -> int:
    """Registers of a thread for what loads bring for that many columns of 64 rows: half a register
    a column; of a vector, half as many again.
    """
    whole = sum(
        isinstance(op.result.type, TileType) and sum(n > 1 for n in op.result.type.extents) == 2
        for op in loads
    )
    return whole * columns // 2 + (len(loads) - whole) * columns // 4


def lasting(within: set[Operation]) -> bool:
    """Whether an epilogue computes so much for an element that it does so for few at once."""
    return (
        sum(
            1 if op.name in SHORT else LONG
            for op in within
            if isinstance(op, POINTWISE) and isinstance(op.results[0].type, TileType)
        )
        >= LONG
    )


def turns(store: tile.Store, groups: int, widest: int, most: int) -> int:
    """Subtiles that a store's parts take in turn: as many as planned where that closes within a
    program (the wait for a subtile counts back by subtiles).
    """
    (rows, columns), (m, n) = subtile(store, groups, widest), store.value.type.extents
    return most if (m // rows) * (n // columns) % most == 0 else 1


def subtile_bytes(stores: Sequence[tile.Store], groups: int, widest: int, most: int) -> int:
    """Shared memory for the subtiles of a program's stores."""
    return sum(
        turns(op, groups, widest, most) * rows * columns * bits(op.value.type.element) // 8
        for op in stores
        for rows, columns in [subtile(op, groups, widest)]
    )


def vacated(
    stores: Sequence[tile.Store],
    loads: Sequence[tile.Load],
    loop: Operation,
    groups: int,
    widest: int,
) -> list[tile.Load]:
    """For each store a load of its own whose buffer its subtiles fit, panel by panel: of as many rows,
    and read in the loop alone, so that nobody needs it when results leave; empty where one has
    none.
    """
    found: list[tile.Load] = []
    for op in stores:
        rows, columns = subtile(op, groups, widest)

        def fits(load):
            return (
                load not in found
                and load.parent is op.parent
                and load.result.type.extents[0] == op.value.type.extents[0] == rows
                and load.result.type.extents[1] >= op.value.type.extents[1]
                and load.result.type.element == op.value.type.element
                and (memory := of_block(load)).fast == 1
                and memory.swizzle == columns * bits(op.value.type.element) // 8
                and _within(load.result, loop)
            )

        if (
            (load := next(filter(fits, loads), None)) is None
            or loop.parent is not op.parent
            or not loop.is_before_in_block(op)
        ):
            return []
        found.append(load)
    return found


def _within(value: SSAValue, loop: Operation) -> bool:
    """Whether a tile, or what is a view of it, is used in a loop alone."""
    return all(
        loop.is_ancestor(use.operation)
        or isinstance(use.operation, (tile.Transpose, tile.Slice))
        and _within(use.operation.results[0], loop)
        for use in value.uses
    )


def chain(stores: Sequence[tile.Store]) -> set[Operation]:
    """The operations whose every use ends in those stores: what may be computed part by part."""
    found: set[Operation] = set(stores)
    work = [v.owner for op in stores for v in op.operands]
    while work:
        op = work.pop()
        if (
            isinstance(op, Block)
            or op in found
            or not all(use.operation in found for r in op.results for use in r.uses)
        ):
            continue
        found.add(op)
        work += [v.owner for v in op.operands]
    return found


Area = tuple[tuple[int, ...], tuple[int, ...]]  # where a part begins, and its extents


class Parts:
    """The parts of the values that some stores need. `of(value, area, anchor)` makes one before the
    anchor; what was made is kept. Where an epilogue computes much, a part is put together of pieces
    of a few columns each, so that what one needs is gone before the next.
    """

    def __init__(self, stores: Sequence[tile.Store]):
        self.within = chain(stores)
        self.loads = {op for op in self.within if isinstance(op, tile.Load) and self._may_move(op)}
        self.long = lasting(self.within)
        self.made: dict[tuple, SSAValue] = {}

    def of(self, value: SSAValue, area: Area, anchor: Operation) -> SSAValue:
        (row, column), (rows, columns) = area
        if (
            not self.long
            or columns % PIECE
            or columns == PIECE
            or value.type.register_layout.period(1) > PIECE
        ):
            return self._part(value, area, area, anchor)
        pieces = [
            self._part(value, ((row, at), (rows, PIECE)), area, anchor)
            for at in range(column, column + columns, PIECE)
        ]
        layout, _ = value.type.register_layout.slice(*area)
        return before(
            anchor, tile.Concat(pieces, 1, TileType(area[1], value.type.element, layout))
        ).result

    def fetch(self, value: SSAValue, area: Area, anchor: Operation) -> None:
        """Makes the loads among a part's sources, so that they are on their way before the part is
        computed.
        """
        op = value.owner
        if (
            not isinstance(value.type, TileType)
            or area[1] == value.type.extents
            or op not in self.within
        ):
            return
        if op in self.loads:
            self._part(value, area, area, anchor)
        elif isinstance(op, (*POINTWISE, tile.Splat)):
            for v in op.operands:
                self.fetch(v, area, anchor)
        elif (source := shown(op, area)) is not None:
            self.fetch(op.operands[0], source, anchor)

    def _part(self, value: SSAValue, area: Area, whole: Area, anchor: Operation) -> SSAValue:
        """A part; what it loads is loaded for the whole that it belongs to."""
        if not isinstance(value.type, TileType) or area[1] == value.type.extents:
            return value
        if value.owner in self.loads and area != whole:
            return self._slice(
                self._part(value, whole, whole, anchor),
                ((tuple(a - b for a, b in zip(area[0], whole[0], strict=False))), area[1]),
                anchor,
            )
        key = value, area, anchor.parent
        if (made := self.made.get(key)) is None or not made.owner.is_before_in_block(anchor):
            made = self.made[key] = self._make(
                value, area, whole, anchor
            )  # stores of transposes come last, wherever they stand
        return made

    def _make(self, value: SSAValue, area: Area, whole: Area, anchor: Operation) -> SSAValue:
        op, t = value.owner, value.type
        if op not in self.within:
            return self._slice(value, area, anchor)
        layout, _ = t.register_layout.slice(*area)
        result = TileType(area[1], t.element, layout)
        match op:
            case tile.Constant() | tile.Splat():
                return self._clone(op, list(op.operands), result, anchor)
            case tile.Load() if op in self.loads:
                return self._load(op, area, result, anchor)
            case _ if isinstance(op, POINTWISE):
                return self._clone(
                    op, [self._part(v, area, whole, anchor) for v in op.operands], result, anchor
                )
            case _ if (source := shown(op, area)) is not None:
                return self._clone(
                    op,
                    [self._part(op.operands[0], source, shown(op, whole), anchor)],
                    result,
                    anchor,
                )
        return self._slice(value, area, anchor)

    def _slice(self, value: SSAValue, area: Area, anchor: Operation) -> SSAValue:
        if area[1] == value.type.extents:
            return value
        layout, _ = value.type.register_layout.slice(*area)
        return before(
            anchor, tile.Slice(value, area[0], TileType(area[1], value.type.element, layout))
        ).result

    def _clone(
        self, op: Operation, operands: list[SSAValue], result: TileType, anchor: Operation
    ) -> SSAValue:
        new = op.clone(dict(zip(op.operands, operands, strict=False)))
        retype(new.results[0], result)
        return before(anchor, new).results[0]

    def _load(self, op: tile.Load, area: Area, result: TileType, anchor: Operation) -> SSAValue:
        kept = iter(zip(*area, strict=False))
        offsets, extents = list(op.offsets), list(op.extents.get_values())
        for axis, n in enumerate(extents):
            if n < 0:
                continue
            start, extents[axis] = next(kept)
            offsets[axis] = moved(offsets[axis], start, anchor)
        new = tile.Load(op.array, offsets, extents, None, op.other, result)
        new.attributes |= op.attributes
        new.result.name_hint = op.result.name_hint
        return before(anchor, new).result

    def _may_move(self, load: tile.Load) -> bool:
        """Whether a block may be loaded while other parts of the results leave: no mask, no gather,
        and what is stored is elsewhere, or at the same place and so not this part."""
        if (
            load.mask is not None
            or any(isinstance(o.type, TileType) for o in load.offsets)
            or load.other is not None
            and isinstance(load.other.type, TileType)
        ):
            return False
        for op in load.parent.walk():
            if isinstance(op, (tile.StorePointers, tile.Atomic, tile.AtomicBlock)):
                return False
            if (
                isinstance(op, tile.Store)
                and op.array is load.array
                and (list(op.offsets) != list(load.offsets) or op.extents != load.extents)
            ):
                return False
        return True


def shown(op: Operation, area: Area) -> Area | None:
    """Which part of a view's operand a part of its result shows, if it is one."""
    if not isinstance(op, (tile.Broadcast, tile.Reshape, tile.Transpose)):
        return None
    have, (at, size) = op.arg.type.extents, area
    match op:
        case tile.Broadcast():
            return tuple(0 if n == 1 else a for n, a in zip(have, at, strict=False)), tuple(
                1 if n == 1 else s for n, s in zip(have, size, strict=False)
            )
        case tile.Transpose():
            order = op.permutation.get_values()
            return tuple(at[order.index(i)] for i in range(len(order))), tuple(
                size[order.index(i)] for i in range(len(order))
            )
    wide = [i for i, n in enumerate(op.result.type.extents) if n > 1]
    if [n for n in have if n > 1] != [op.result.type.extents[i] for i in wide]:
        return None
    found = iter(wide)
    where = [next(found) if n > 1 else None for n in have]
    return tuple(0 if i is None else at[i] for i in where), tuple(
        1 if i is None else size[i] for i in where
    )


def neighbours(stores: Sequence[tile.Store], kind: Callable) -> list[list[tile.Store]]:
    """Stores of one kind that follow each other with nothing between that could see their order."""
    found: list[list[tile.Store]] = []
    for op in stores:
        last = found[-1][-1] if found else None
        if (
            last is None
            or last.parent is not op.parent
            or kind(last) != kind(op)
            or not _adjacent(last, op)
        ):
            found.append([op])
        else:
            found[-1].append(op)
    return found


def _adjacent(first: tile.Store, second: tile.Store) -> bool:
    op = first.next_op
    while op is not second:
        if (
            op.regions
            or not is_side_effect_free(op)
            and not (isinstance(op, tile.Load) and op.array is not first.array)
        ):
            return False
        op = op.next_op
    return first.array is not second.array


def moved(offset: SSAValue, by: int, anchor: Operation) -> SSAValue:
    """An offset and a constant."""
    return (
        before(
            anchor, CLASSES["add"](offset, before(anchor, tile.Constant(by, offset.type)).result)
        ).result
        if by
        else offset
    )
