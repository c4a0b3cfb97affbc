"""Stores of what warpgroups hold as a dot's accumulator: part by part, in subtiles through shared
memory, or from registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import i32
from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import Digit
from tkc.ir.elementwise import CLASSES
from tkc.ir.fragments import wgmma_accumulators
from tkc.ir.layout import WARP, Layout
from tkc.ir.plan import Plan, number_of
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import before, erase, loops_of
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import SharedType, TileType, bits, element_of
from tkc.ir.values import extents_of, layout_of, operations_in, shared_type, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.access import Access
from tkc.passes.analysis.alias import is_alternative, is_of_programs, may_meet
from tkc.passes.analysis.mapped import may_lie_before
from tkc.passes.layouts.buffers import offsets_of_parts, read, view, written
from tkc.passes.layouts.epilogue_subtiles import (
    EPILOGUE_REGISTERS_PER_THREAD,
    LONG_EPILOGUE_REGISTERS,
    ROWS_PER_WARPGROUP,
    SWIZZLE_BYTES,
    Parts,
    ResultStore,
    StoredResult,
    load_registers,
    neighbours,
    panel_bytes,
    subtile,
    subtile_buffers,
    subtile_of,
)
from tkc.passes.layouts.movers import offsets_layout
from tkc.passes.planning.roles.results import (
    is_stored_by_map,
    is_stored_by_threads,
    subtile_stores,
)

MAX_COLUMNS = 64  # of a part that is stored from registers


def store_in_parts(kernel: tile.Kernel, plan: Plan, context: PassContext) -> None:
    """Replaces the stores of accumulators by stores of their parts."""
    _Stores(kernel, plan, context).run()


class _Stores:
    """The stores of a kernel whose warpgroups share the rows of a program's results."""

    def __init__(self, kernel: tile.Kernel, plan: Plan, context: PassContext):
        self.kernel, self.plan, self.context = kernel, plan, context
        self.groups = plan.warps // 4
        self.ranges = Ranges()
        self.large = [
            op
            for op in kernel.walk()
            if isinstance(op, (tile.Store, tile.AtomicBlock))
            and isinstance(op.value.type, TileType)
        ]
        self.parts = Parts(self.large, context.overlaps, self._read_part)

    def run(self) -> None:
        """Replaces each store of an accumulator."""
        self._replace_stores()
        for op in operations_in(self.kernel, shared.Read):
            if op.result.first_use is None:  # it was read part by part
                erase(op)

    def _read_part(
        self, buffer: SSAValue, offsets: tuple[int, ...], part: TileType, at: Operation
    ) -> SSAValue:
        """A part of what a buffer holds, in registers."""
        return read(view(buffer, offsets, part.extents, at), part, at, self.context)

    def _replace_stores(self) -> None:
        stores = [op for op in self.large if self._is_accumulator(op, False)]
        shared = [op for op in self.large if self._shares_columns(op)]
        transposed = [op for op in self.large if self._is_accumulator(op, True)]
        in_subtiles = self._in_subtiles([*stores, *shared], transposed)
        free = self._free_buffers()

        def kind(op: ResultStore) -> object:
            geometry = None
            if op in in_subtiles:
                geometry = subtile(self._stored(op), self.groups, self.plan.columns)
            return geometry, extents_of(op.value)

        for op in shared:
            if op in in_subtiles:
                self._through_subtiles([op], free)
        for together in neighbours(stores, kind, self.context.overlaps):
            if together[0] in in_subtiles:
                self._through_subtiles(together, free)
            else:
                self._from_registers(together, False)
        for together in neighbours(transposed, kind, self.context.overlaps):
            if together[0] in in_subtiles:
                self._through_subtiles(together, free)
            else:
                self._from_registers(together, True)

    def _in_subtiles(
        self, stores: list[ResultStore], transposed: list[ResultStore]
    ) -> set[ResultStore]:
        """Those of accumulators' stores that go through shared memory. A warpgroup stores its rows
        when it has written them: not to memory to which another warpgroup's threads may have stored
        before; and threads not to memory to which others may have. What the plan took for the other
        way round stays in registers.
        """
        fitting = [
            op
            for together, is_transposed in ((stores, False), (transposed, True))
            for op in together
            if self._stored(op).transposed is is_transposed
        ]
        others = [op for op in self.large if op not in fitting]
        return {
            op
            for op in fitting
            if self.plan.epilogue != "direct"
            and (
                self._is_alone(op, others)
                if self._is_by_map(op)
                else is_stored_by_threads(self._stored(op)) and self._is_alone(op, self.large)
            )
            and subtile(self._stored(op), self.groups, self.plan.columns)
        }

    def _is_alone(self, op: ResultStore, others: Sequence[ResultStore]) -> bool:
        """Whether none of the others may store to the same memory in the same program."""
        return not any(
            may_meet(op, o, self.context.overlaps) and not _is_instead(o, op)
            for o in others
            if o is not op
        )

    def _is_by_map(self, op: ResultStore) -> bool:
        return self.plan.epilogue == "tma" and is_stored_by_map(op)

    def _stored(self, op: ResultStore) -> StoredResult:
        return StoredResult.of(op, by_columns=self._shares_columns(op))

    def _shares_columns(self, op: ResultStore) -> bool:
        """Whether warpgroups that share the rows of other results share the columns of this one."""
        t = tile_type(op.value)
        if t.rank != 2 or self.groups == 1 or t.extents[1] % (8 * self.groups):
            return False
        m, n = t.extents
        return t.register_layout in wgmma_accumulators(m, n, 1, self.groups)

    def _is_accumulator(self, op: ResultStore, transposed: bool) -> bool:
        """Whether a tile has the layout of a dot's accumulator, or of that of a swapped dot."""
        t = tile_type(op.value)
        if t.rank != 2:
            return False
        m, n = reversed(t.extents) if transposed else t.extents
        if m % (ROWS_PER_WARPGROUP * self.groups) or n % 8:
            return False
        layouts = wgmma_accumulators(m, n, self.groups)
        if transposed:
            return t.register_layout in [layout.transpose((1, 0)) for layout in layouts]
        return t.register_layout in layouts

    def _free_buffers(self) -> dict[ResultStore, SSAValue]:
        """The operand stages that results reuse: each its own, also where one planned before it is
        stored from registers.
        """
        copied = [
            copy.buffer
            for number in self.plan.reuse_operand_stages
            for copy in self.kernel.walk()
            if isinstance(copy, shared.Copy) and number_of(copy) == number
        ]
        stores = subtile_stores(self.kernel, {ROWS_PER_WARPGROUP * self.groups}, self.groups)
        return dict(zip((store.op for store in stores), copied, strict=False))

    def _through_subtiles(
        self, stores: list[ResultStore], free: dict[ResultStore, SSAValue]
    ) -> None:
        """Through one or two buffers a store, in turn, or through operand stages that are free; a
        part's loads are issued before the part before it is stored, where registers allow.
        """
        plan, anchor, t = self.plan, stores[-1], tile_type(stores[0].value)
        first = self._stored(stores[0])
        size = subtile_of(first, self.groups, plan.columns)
        m, n = t.extents
        places = offsets_of_parts((m, n), size)
        in_turn = len(places)
        if plan.subtiles:
            in_turn = subtile_buffers(first, self.groups, plan.columns, plan.subtiles)
        reuse = plan.reuse_operand_stages
        buffers = [
            _panels(free[op], size, op)
            if reuse
            else _alternate(size, in_turn, op, panel_bytes(first, self.groups) * first.by_columns)
            for op in stores
        ]
        columns = size[0] if first.transposed else size[1]
        loads = load_registers(list(self.parts.loads), columns)
        registers = t.size // (128 * self.groups) + 2 * loads + columns // 4
        limit = EPILOGUE_REGISTERS_PER_THREAD - LONG_EPILOGUE_REGISTERS
        copied = sum(map(self._is_by_map, stores))  # the others leave by threads, without a copy
        ahead = plan.split_k == 1 and registers <= limit
        for i, at in enumerate(places):
            for place in places[i : i + 1 + ahead]:
                for op in stores:
                    self.parts.fetch(op.value, (place, size), anchor)
            for op, turn in zip(stores, buffers, strict=True):
                buffer, part = turn[i % in_turn], self.parts.of(op.value, (at, size), anchor)
                written(buffer, part, anchor, self.context)
                offsets, extents = self._part_of(op, at, size, anchor)
                if not self._is_by_map(op):
                    rows = tile_type(part).with_layout(self._by_rows(op, size))
                    whole = read(buffer, rows, anchor, self.context)
                    _with_offsets(before(anchor, tile.Store(op.array, offsets, whole, extents)))
                    continue
                if may_lie_before(op):
                    offsets = [self._not_before(offset, anchor) for offset in offsets]
                pending = in_turn * copied
                kind = op.kind.data if isinstance(op, tile.AtomicBlock) else None
                before(anchor, shared.CopyOut(op.array, offsets, buffer, extents, pending, kind))
        for op in stores:
            erase(op)

    def _by_rows(self, op: ResultStore, size: tuple[int, int]) -> Layout:
        """Of a part: neighbours in lanes, of rows that the warp holds of the accumulator."""
        vector = Access.of(op, Ranges(), ragged=True).vector
        (m, n), across = size, min(WARP, size[1] // vector)
        down, warps = WARP // across, 4 * self.groups
        height = ROWS_PER_WARPGROUP * self.groups // warps
        return Layout(
            size,
            (
                Digit(vector, 1, 1),
                Digit(n // (vector * across), 1, vector * across),
                Digit(height // down, 0, down),
                Digit(m // (height * warps), 0, height * warps),
            ),
            (Digit(across, 1, vector), Digit(down, 0, 1)),
            (Digit(warps, 0, height),),
        )

    def _not_before(self, offset: SSAValue, anchor: Operation) -> SSAValue:
        """The offset; of a block before its array one far behind it, where nothing is written."""
        known = self.ranges.offset(offset)
        if known is not None and known.lo >= 0:
            return offset
        rest = before(anchor, tile.Constant((1 << 31) - 1, offset.type)).result
        return before(anchor, CLASSES["and"](offset, rest)).result

    def _from_registers(self, stores: list[ResultStore], transposed: bool) -> None:
        """As many columns at once as a subtile has: what is computed for one part is no longer live
        before the next.
        """
        anchor, (m, n) = stores[-1], extents_of(stores[0].value)
        most = self.plan.columns if self.plan.epilogue == "direct" else MAX_COLUMNS
        across = m if transposed else n
        columns = next(c for c in (64, 32, 16, 8) if c <= most and across % c == 0)
        rows = ROWS_PER_WARPGROUP * self.groups
        size = (columns, rows) if transposed else (rows, columns)
        if (m, n) == size:
            return
        for at in offsets_of_parts((m, n), size):
            for op in stores:
                self._store_part(op, at, size, anchor)
        for op in stores:
            erase(op)

    def _store_part(
        self, op: ResultStore, at: tuple[int, int], size: tuple[int, int], anchor: ResultStore
    ) -> None:
        offsets, extents = self._part_of(op, at, size, anchor)
        value = self.parts.of(op.value, (at, size), anchor)
        mask = None if op.mask is None else self.parts.of(op.mask, (at, size), anchor)
        if isinstance(op, tile.AtomicBlock):
            before(anchor, tile.AtomicBlock(op.kind.data, op.array, offsets, value, extents, mask))
        else:
            before(anchor, tile.Store(op.array, offsets, value, extents, mask))

    def _part_of(
        self, op: ResultStore, at: tuple[int, int], size: tuple[int, int], anchor: ResultStore
    ) -> tuple[list[SSAValue], list[int]]:
        """Offsets and extents of a part of a store's block: `at` and `size` along the axes it
        keeps.
        """
        kept = iter(zip(at, size, strict=True))
        offsets, extents = list(op.offsets), list(op.extents.get_values())
        for axis, count in enumerate(extents):
            if count >= 0:
                start, extents[axis] = next(kept)
                offsets[axis] = self.parts.offset(offsets[axis], start, extents[axis], anchor)
        return offsets, extents


def _is_instead(op: Operation, other: Operation) -> bool:
    """Whether a program that executes one of two operations does not execute the other one."""
    around = [loop for loop in loops_of(op) if loop.is_ancestor(other)]
    return is_alternative(op, other) and all(map(is_of_programs, around))


def _with_offsets(store: tile.Store) -> None:
    """Gives the numbers of rows that a store has to the threads that store these rows."""
    for axis, offset in enumerate(store.offsets):
        if not isinstance(offset.type, TileType):
            continue
        wanted = offsets_layout(store, axis, layout_of(store.value))
        if layout_of(offset) != wanted:
            moved = before(store, shared.Convert(offset, offset.type.with_layout(wanted)))
            store.operands[store.operands.index(offset)] = moved.result


def _alternate(
    shape: tuple[int, int], count: int, store: ResultStore, panel: int = 0
) -> list[SSAValue]:
    """Buffers for parts of a store's tile, in panels of so many bytes; 0: the widest."""
    element = element_of(store.value.type)
    swizzle = panel or min(max(SWIZZLE_BYTES), shape[1] * bits(element) // 8)
    t = SharedType(1, shape, element, SharedLayout(shape, bits(element), swizzle))
    return [before(store, shared.Alloc(t)).result for _ in range(count)]


def _panels(buffer: SSAValue, shape: tuple[int, int], store: ResultStore) -> list[SSAValue]:
    """The panels of a buffer, one for each part of a store's tile."""
    t, memory = tile_type(store.value), shared_type(buffer).memory
    zero = before(store, tile.Constant(0, i32)).result
    found: list[SSAValue] = []
    for at in range(0, t.extents[1], shape[1]):
        part = SharedType(1, shape, t.element, memory.slice((0, at), shape)[0])
        column = before(store, tile.Constant(at, i32)).result
        found.append(before(store, shared.SharedSlice(buffer, [zero, column], part)).result)
    return found
