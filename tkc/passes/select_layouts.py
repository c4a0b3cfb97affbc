"""select-layouts: level 0 to level 1. Every tile gets a layout, every dot its instruction,
`tile.convert` is put where two meet.

    %x = tile.load %a[%m, %k] {…} : tile<128x64xbf16>
    %y = tile.load %b[%k, %n] {…} : tile<64x128xbf16>
    %d = tile.dot %x, %y, %c {precision = ieee}
    tile.store %o[%m, %n] %d {…}
  becomes
    %x = tile.load … : tile<128x64xbf16, "blocked …">
    %u = tile.convert %x … : tile<128x64xbf16, "mma_a …">
    …
    %d = tile.dot %u, %v, %c {precision = ieee, instruction = mma}
    tile.store %o[%m, %n] %d {…}

How. Values that an operation or a loop ties to one layout form a *group* (element-wise operands and
results, what a loop carries). A group takes its layout from the strongest of

    1. an accumulator in it: the dot's, as planned
    2. a larger neighbour that it is broadcast to, or that it is reduced from: the neighbour's
       without the axis, so that row statistics and bias vectors meet their tile without moving; one
       as large, where what the group loads and stores comes in whole sectors there too
    3. the one axis it is reduced along in loops deeper than any load or store it meets: that axis
       in registers, where the others have an element for each thread
    4. the loads and stores it meets: coalesced, vectors as wide as alignment allows, warps off the
       axes to be reduced
    5. nothing: blocked

Then the program is rewritten: every operation gets its operands in the layouts it needs. Constants,
index arithmetic and masks are rematerialised in that layout; the operand of a transpose or
broadcast gets the layout from which the wanted one is free; anything else is converted right after
its definition, once for all users. Each conversion is reported with the scope in which its data
moves.

What the operations demand (what code generation and later passes may count on):

    element-wise, select, cast, dot accumulator, scan, atomics' operands
                    one layout for all operands and results
    transpose       result = operand.transpose(permutation), register for register
    broadcast, slice, concat
                    every thread holds what it needs: the result is a choice of registers
    reshape         the same, or (extents that do not nest) anything: it goes through shared memory
    reduce          result = operand.drop(axis)
    dot             the layouts of layouts/dot_layouts.py; `instruction` is set; fma is cut into
                    steps of few k, and so is mma where operands of all k, which are computed, do
                    not fit registers; tf32x3 into three dots
    sort            the axis inside one warp, padded to a power of two; result as operand
    sort_first      what is left of a sort where a slice takes its first elements: they are in the
                    registers of every thread of the row
    flip            the axis inside one thread; result as operand (a long flip is several short ones
                    of a reshaped tile)
    gather          the result's layout for the places; anything for what they are in
    gather offsets  a rank-1 tile of offsets has the block's layout along its axis (copies
                    elsewhere)
    loads, stores, histogram, print, assert, extract
                    anything; replicated elements are stored or counted once
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, StringAttr, i32
from xdsl.ir import Block, Operation, SSAValue, Use

from tkc.ir import shared, tile
from tkc.ir.digits import LayoutError
from tkc.ir.elementwise import CLASSES, Bitcast, InlinePtx
from tkc.ir.layout import Layout, movement
from tkc.ir.plan import DotPlan, LoadPlan, Plan, fill_ring, written_on
from tkc.ir.rewrite import Builder, after, before, erase_dead, replace, retype
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.text import location_of
from tkc.ir.types import TileType, bits
from tkc.ir.values import (
    Walk,
    defining_op,
    extents_of,
    first_of,
    layout_of,
    next_of,
    operations_in,
    owner_op,
    tile_type,
    tiles,
    without_recursion,
)
from tkc.passes import PassContext
from tkc.passes.analysis.mapped import layouts_of_operand, of_block
from tkc.passes.analysis.values import POINTWISE, VIEWS, BlockAccess
from tkc.passes.layouts.conversions import is_handed_on
from tkc.passes.layouts.groups import Groups
from tkc.passes.layouts.movers import (
    check_sort,
    factor_flip,
    first_of_sort,
    is_free,
    offsets_layout,
    reshape_layouts,
    slice_source,
)
from tkc.passes.layouts.relayout import operand_memory, permuted, relaid
from tkc.passes.layouts.views import backward
from tkc.passes.planning.converting import base_layout, operand_layout, untransposed_axis
from tkc.passes.planning.gathers import copier_layout
from tkc.passes.planning.operands import leaves, untransposed
from tkc.passes.planning.operands import source as load_of


def run(module: ModuleOp, context: PassContext) -> None:
    """Level 0 to level 1, in place."""
    for kernel in tile.kernels_of(module):
        context.plan = plan = context.plan or written_on(kernel) or Plan(kernel.warps)
        kernel.set_integer("warps", plan.warps)
        Selection(kernel, plan, context).run()
        kernel.set_integer("level", 1)


class Selection:
    """The rewriting of one kernel."""

    def __init__(self, kernel: tile.Kernel, plan: Plan, context: PassContext):
        self.kernel, self.plan, self.context = kernel, plan, context
        load_for_threads(kernel, plan)
        for op in list(kernel.walk()):
            if isinstance(op, tile.Flip):
                factor_flip(op)
            elif isinstance(op, tile.Sort) and not first_of_sort(op):
                check_sort(op)
        self.groups = Groups(kernel, plan)
        self.kinds = self.groups.kinds
        self.made: dict[tuple[SSAValue, Layout], SSAValue] = {}
        # indices of the role that copies by threads, and what the converter computes
        self.reloaded: dict[tuple[SSAValue, Layout], SSAValue] = {}
        # computed operands of dots, in shared memory, by whether K is permuted
        self.written: dict[tuple[SSAValue, SharedLayout, bool], SSAValue] = {}
        # by operand, its side and whether K is permuted: dots that read one alike read one stage
        self.relaid: dict[tuple[SSAValue, int, bool], SSAValue] = {}
        for op, chosen in self.groups.dots.items():
            sources = chosen.plan.a, chosen.plan.b
            for operand, source in zip(op.operands[:2], sources, strict=True):
                if source == "shared" and chosen.plan.instruction == "wgmma":
                    for value, memory in layouts_of_operand(operand):
                        retype(value, tile_type(value).with_layout(memory))

    def run(self) -> None:
        """Decides all layouts and rewrites the kernel."""
        self.groups.assign()
        for block in _blocks(self.kernel):
            for argument in block.args:
                self._settle(argument)
        every = list(self.kernel.walk())
        copied = [op for op in every if self._is_copied_by_threads(op)]
        # first: what indices and operands of other roles are made of has no layouts yet
        for load in copied:
            self._copied_by_threads(load)
        if self._convert_operands():
            erase_dead(self.kernel.body.block)  # what consumers would have made of them
        for op in every:
            if op not in copied and op.parent is not None:
                self._rewrite(op)
        erase_dead(self.kernel.body.block)

    def _convert_operands(self) -> bool:
        """Has dots read what the converter computes. True if it computes something."""
        for dot, chosen in self.groups.dots.items():
            for i, source in enumerate((chosen.plan.a, chosen.plan.b)):
                if source == "converted":
                    made = self._by_converter(dot, dot.operands[i], 1 - i, chosen.plan.rings[i])
                    dot.operands[i] = made
        return bool(self.written)

    # ---- types
    def _settle(self, value: SSAValue, layout: Layout | None = None) -> None:
        """Gives a value its layout, in place (xDSL would make another value)."""
        t = value.type
        if isinstance(t, TileType) and t.register_layout is None and t.shared_layout is None:
            retype(value, t.with_layout(layout or self.groups.layout(value)))

    def _layout(self, value: SSAValue) -> Layout:
        """The layout a value has, or is best made in."""
        return tile_type(value).register_layout or self.groups.layout(value)

    # ---- operands in layouts
    def operand(self, value: SSAValue, layout: Layout | None = None) -> SSAValue:
        """The value in that layout (its own where None); a scalar is itself."""
        return without_recursion(self._operand(value, layout))

    def _operand(self, value: SSAValue, layout: Layout | None) -> Walk[SSAValue]:
        if not isinstance(value.type, TileType):
            return value
        have, wanted = value.type.register_layout, layout or self._layout(value)
        if have == wanted:
            return value
        key = value, wanted
        if key not in self.made:
            if have is None or self.kinds.cheap(value):
                found = yield self._rematerialised(value, wanted)
            elif self._is_loaded_again(value, have, wanted):
                found = yield self._loaded_again(value, wanted)
            else:
                found = self._converted(value, wanted)
            self.made[key] = found
        return self.made[key]

    def _rematerialised(self, value: SSAValue, layout: Layout) -> Walk[SSAValue]:
        """A copy, in a layout, of a value that is cheap, a view, or sunk."""
        op = owner_op(value)
        assert not self.kinds.data(value), f"{value} is used before its layout is known"
        match op:
            case tile.Broadcast() | tile.Transpose():
                operands = [(yield self._operand(op.arg, backward(op, layout)))]
            case tile.Reshape():
                source, result = reshape_layouts(op, layout, self._layout(op.arg), self.plan.warps)
                if result != layout:
                    return self._converted((yield self._operand(value, result)), layout)
                operands = [(yield self._operand(op.arg, source))]
            case _:
                operands = []
                for v in op.operands:
                    operands.append((yield self._operand(v, layout)))
        return self._made_again(op, operands, layout)

    def _made_again(self, op: Operation, operands: Sequence[SSAValue], layout: Layout) -> SSAValue:
        """The result of an operation once more, of other operands and in another layout."""
        new = op.clone(dict(zip(op.operands, operands, strict=True)))
        retype(new.results[0], tile_type(op.results[0]).with_layout(layout))
        new.results[0].name_hint = op.results[0].name_hint
        return after(op, new).results[0]

    def _is_loaded_again(self, value: SSAValue, have: Layout, wanted: Layout) -> bool:
        """Whether threads that want a loaded tile in another layout load it once more, at once,
        rather than wait for one another.
        """
        op = value.owner
        if not isinstance(op, tile.Load | tile.LoadPointers) or tile.watches(op):
            return False
        return self._pays_to_load_again(op, have, wanted)

    def _pays_to_load_again(
        self, op: tile.Load | tile.LoadPointers, have: Layout, wanted: Layout
    ) -> bool:
        """Whether threads would have to wait for what they have in the caches: every warp has all
        of it in both layouts, and each thread loads what it wants at once.
        """
        width = bits(tile_type(op.results[0]).element)
        if movement(have, wanted) == "registers" or is_handed_on(have, wanted, width):
            return False
        run = max(map(wanted.vector, range(wanted.rank)))
        return (
            all(digit.axis < 0 for layout in (have, wanted) for digit in layout.warps)
            and self.plan.roles == "one"
            and self.plan.load(op).path == LoadPlan().path
            and wanted.num_registers <= min(run, self.plan.load(op).vector * 8 // width)
            and all(self.kinds.cheap(v) for v in tiles(op.operands))
        )

    def _loaded_again(self, value: SSAValue, layout: Layout) -> Walk[SSAValue]:
        op = owner_op(value)
        operands = []
        for v in op.operands:
            wanted = layout
            if isinstance(op, tile.Load) and isinstance(v.type, TileType):
                wanted = self._of_operand(op, v, layout)
            operands.append((yield self._operand(v, wanted)))
        return self._made_again(op, operands, layout)

    def _converted(self, value: SSAValue, layout: Layout) -> SSAValue:
        op = shared.Convert(value, tile_type(value).with_layout(layout))
        op.result.name_hint = value.name_hint
        owner = value.owner
        scope = _SCOPES[movement(layout_of(value), layout)]
        self._note(
            value,
            f"({_short(value)}) converted, data moves {scope}",
            owner if isinstance(owner, Operation) else self.kernel,
        )
        if isinstance(owner, Operation):
            return after(owner, op).result
        return before(first_of(owner), op).result

    def _note(self, value: SSAValue, what: str, op: Operation) -> None:
        place = location_of(op)
        where = f" ({place})" if place else ""
        name = value.name_hint or "a value"
        self.context.decisions.append(f"select-layouts: {name} {what}{where}")

    # ---- operations
    def _rewrite(self, op: Operation) -> None:
        """Operands of one operation in the layouts it needs, results with theirs."""
        if any(map(self._is_done, tiles(op.results))):
            return
        match op:
            case scf.ForOp() | scf.WhileOp() | scf.IfOp() | scf.YieldOp() | scf.ConditionOp():
                self._control(op)
            case tile.Dot():
                self._dot(op)
            case tile.Reduce():
                layout = self.groups.reduced(op)
                self._operands(op, [layout] * len(op.operands))
                for r in tiles(op.results):
                    self._settle(r, layout.drop(op.axis.value.data))
            case tile.Load() | tile.Store() | tile.AtomicBlock():
                self._block_access(op)
            case tile.LoadPointers() | tile.StorePointers() | tile.Atomic():
                self._in_one_layout(op, self.groups.access(op))
            case tile.Reshape():  # between extents that do not nest
                self._reshape(op)
            case tile.Slice():
                source, result = slice_source(op, self._layout(op.arg), self.plan.warps)
                self._operands(op, [source])
                self._finish(op, result)
            case tile.Concat() | tile.Sort() | shared.SortFirst() | tile.Flip() | tile.Gather():
                sources, result = self.groups.moved(op)
                self._operands(op, sources)
                self._finish(op, result)
            case tile.Histogram():
                self._operands(op, [self._layout(op.arg)] * len(op.operands))
                self._finish(op)
            case tile.Scan() | tile.ClusterSum() | InlinePtx() if tiles(op.operands):
                self._in_one_layout(op, self._layout(tiles(op.operands)[0]))
            case _ if isinstance(op, POINTWISE) and tiles(op.results):
                self._in_one_layout(op, self._layout(op.results[0]))
            case _:
                self._in_one_layout(op, None)

    def _is_done(self, value: SSAValue) -> bool:
        """Whether a tile is in shared memory, or is rematerialised where it is used."""
        return tile_type(value).shared_layout is not None or not self.kinds.data(value)

    def _in_one_layout(self, op: Operation, layout: Layout | None) -> None:
        """All operands and results in one layout (their own where None)."""
        self._operands(op, [layout] * len(op.operands))
        self._finish(op, layout)

    def _block_access(self, op: BlockAccess) -> None:
        layout = self.groups.access(op)
        if layout is not None:
            for i, v in enumerate(op.operands):
                if isinstance(v.type, TileType):
                    op.operands[i] = self.operand(v, self._of_operand(op, v, layout))
        if self.plan.rows and isinstance(op, tile.Store):
            self._in_rows(op)
        self._finish(op, layout)

    def _is_copied_by_threads(self, op: Operation) -> TypeGuard[tile.Load]:
        return isinstance(op, tile.Load) and self.plan.load(op).path == "cp_async"

    def _copied_by_threads(self, op: tile.Load) -> None:
        """Indices and mask in the layout of the role that copies a block."""
        memory = tile_type(op.result).shared_layout or of_block(op)
        layout = copier_layout(memory)
        for i, v in enumerate(op.operands):
            if isinstance(v.type, TileType):
                op.operands[i] = without_recursion(
                    self._recomputed(v, self._of_operand(op, v, layout))
                )
        self._finish(op, self.groups.access(op))

    def _recomputed(
        self, value: SSAValue, layout: Layout, base: Layout | None = None
    ) -> Walk[SSAValue]:
        """Indices of a role that copies, which loads what they are made of once more: each thread
        has those of its own rows, and asks no other. Or an operand that the converter computes;
        base: the layout of that.
        """
        if not isinstance(value.type, TileType) or self.kinds.cheap(value):
            return self.operand(value, layout)
        key = value, layout
        if key not in self.reloaded:
            op = owner_op(value)
            operands = []
            for v in op.operands:
                if not isinstance(v.type, TileType):
                    operands.append(v)
                    continue
                if isinstance(op, tile.Load):
                    wanted = self._of_operand(op, v, layout)
                else:
                    wanted = operand_layout(op, layout, base or layout)
                operands.append((yield self._recomputed(v, wanted, base)))
            self.reloaded[key] = self._made_again(op, operands, layout)
        return self.reloaded[key]

    def _reshape(self, op: tile.Reshape) -> None:
        self._in_one_layout(op, None)
        if not is_free(op):
            scope = _SCOPES["warps" if self.plan.warps > 1 else "lanes"]
            what = f"({_short(op.arg)}) reshaped to {_short(op.result)}, data moves {scope}"
            self._note(op.result, what, op)

    def _in_rows(self, store: tile.Store) -> None:
        """A tile that was transposed in registers is converted once more, so that warps write its
        rows as a whole. Its threads hold squares of vectors: rows that one of them holds are apart
        in shared memory, and those next to one another are of its neighbours, so that what lanes
        write at once is in other banks.
        """
        t, have, access = (
            tile_type(store.value),
            layout_of(store.value),
            self.groups.accesses[store],
        )
        n = 128 // access.bits
        if {_run(have, 0), _run(have, 1), access.vector} != {n}:
            return  # not transposed after all
        (rows, columns), order = t.extents, (2, 1, 0)
        split = (rows, columns // n, n)
        if access.order[0] == 1:
            split, order = (rows // n, n, columns), (1, 0, 2)
        wide = access.layout(self.plan.warps)
        try:
            near, far = have.reshape(split), wide.reshape(split)
        except LayoutError:
            return
        build = Builder(store)

        def reshaped(v: SSAValue, extents: tuple[int, ...], layout: Layout) -> SSAValue:
            return build(tile.Reshape(v, TileType(extents, t.element).with_layout(layout)))

        def transposed(v: SSAValue, layout: Layout) -> SSAValue:
            extents = tuple(extents_of(v)[a] for a in order)
            made = TileType(extents, t.element).with_layout(layout)
            return build(tile.Transpose(v, order, made))

        apart = transposed(reshaped(store.value, split, near), near.transpose(order))
        moved = self._converted(apart, far.transpose(order))
        whole = reshaped(transposed(moved, far), t.extents, wide)
        store.operands[list(store.operands).index(store.value)] = whole

    def _operands(self, op: Operation, layouts: Sequence[Layout | None]) -> None:
        for i, (value, layout) in enumerate(zip(op.operands, layouts, strict=True)):
            if isinstance(value.type, TileType):
                op.operands[i] = self.operand(value, layout)

    def _finish(self, op: Operation, layout: Layout | None = None) -> None:
        for result in tiles(op.results):
            self._settle(result, layout)

    def _of_operand(self, op: BlockAccess, value: SSAValue, layout: Layout) -> Layout:
        """A gather's offsets follow the block along their axis; everything else has the block's
        layout.
        """
        for axis, offset in enumerate(op.offsets):
            if offset is value:
                return offsets_layout(op, axis, layout)
        return layout

    def _control(
        self, op: scf.ForOp | scf.WhileOp | scf.IfOp | scf.YieldOp | scf.ConditionOp
    ) -> None:
        """What goes round a loop, or out of a branch, has the layout of what it becomes."""
        targets: Sequence[SSAValue]
        match op, op.parent_op():
            case scf.ForOp(), _:
                targets = [*op.operands[:3], *op.results]
            case scf.WhileOp(), _:
                targets = op.before_region.block.args
            case scf.IfOp(), _:
                targets = op.operands
            case scf.YieldOp(), (scf.ForOp() | scf.IfOp()) as parent:
                targets = parent.results
            case scf.ConditionOp(), scf.WhileOp() as parent:
                targets = [op.operands[0], *parent.results]
            case _, scf.WhileOp() as parent:
                targets = parent.before_region.block.args
            case _:
                raise TypeError(f"{op.name} is in no loop and no branch")
        layouts = [self._layout(t) if isinstance(t.type, TileType) else None for t in targets]
        self._operands(op, layouts)
        self._finish(op)

    def _dot(self, op: tile.Dot) -> None:
        chosen = self.groups.dots[op]
        plan, (a, b, acc) = chosen.plan, chosen.layouts
        if plan.instruction == "wgmma":
            self._wgmma(op, plan, a, acc)
        else:
            self._operands(op, [a, b, acc])
        for operand, source in (op.a, plan.a), (op.b, plan.b):
            if source == "shared" and plan.instruction == "mma":
                self._read_before(operand, op)
        self._settle(op.result, acc)
        op.properties["instruction"] = StringAttr(plan.instruction)
        if op.precision.data == "tf32x3" and plan.instruction == "mma":
            self._in_three(op)
        elif 0 < plan.chunk < extents_of(op.a)[-1]:
            self._in_steps(op, plan.chunk)

    def _wgmma(self, op: tile.Dot, plan: DotPlan, left: Layout | None, acc: Layout) -> None:
        op.operands[2] = self.operand(op.acc, acc)
        if left is not None:
            op.operands[0] = self.operand(op.a, left)
            if plan.permuted:
                op.operands[0] = permuted(op.a, 1, op)
        for i, source in enumerate((plan.a, plan.b)):
            if source == "relaid":
                load = load_of(op.operands[i])
                assert load is not None
                # where it is loaded, if that is outside the dot's loop, or if the step may then
                # overwrite what was read
                is_beside = load.parent is op.parent and not self.plan.copies_wait
                at = op if is_beside else next_of(load)
                way = op.operands[i], i, plan.permuted
                if way not in self.relaid:
                    self.relaid[way] = relaid(
                        load, op.operands[i], 1 - i, plan.permuted, at, plan.rings[i]
                    )
                op.operands[i] = self.relaid[way]
            elif source == "written":
                op.operands[i] = self._in_memory(
                    op, op.operands[i], 1 - i, plan.permuted and i == 0
                )

    def _by_converter(self, op: Operation, operand: SSAValue, k: int, ring: int) -> SSAValue:
        """An operand that the converter computes, in a stage of a ring; its transposes are views of
        that. All that it is made of is done once more, in layouts of that role. k: its axis that is
        K.
        """
        value, k = untransposed(operand), untransposed_axis(operand, k)
        t = tile_type(value)
        memory, layout = operand_memory(t, k), base_layout(value, k)
        key = value, memory, False
        if key not in self.written:
            held = without_recursion(self._recomputed(value, layout, layout))
            new = after(owner_op(held), shared.Convert(held, t.with_layout(memory)))
            new.result.name_hint = value.name_hint
            fill_ring(new, ring)
            self.written[key] = new.result
        return self._turned(op, operand, self.written[key])

    def _in_memory(self, op: tile.Dot, operand: SSAValue, k: int, is_permuted: bool) -> SSAValue:
        """A computed operand as a tile in shared memory, right behind where it is made; its
        transposes are views of that. k: its axis that is K; is_permuted: with K permuted.
        """
        value = untransposed(operand)
        t = tile_type(value)
        memory = operand_memory(t, untransposed_axis(operand, k))
        layout = self._layout(value)
        key = value, memory, is_permuted
        if key not in self.written:
            held = self.operand(value, layout)
            new = shared.Convert(held, t.with_layout(memory))
            new.result.name_hint = value.name_hint
            made = held.owner
            if isinstance(made, Operation):
                after(made, new)
            else:
                before(first_of(made), new)
            if is_permuted:
                new.operands[0] = permuted(held, k, new)
            self.written[key] = new.result
        return self._turned(op, operand, self.written[key])

    def _turned(self, op: Operation, operand: SSAValue, result: SSAValue) -> SSAValue:
        """The transposes of a dot's operand, of what it is without them, in shared memory."""
        view = defining_op(operand, tile.Transpose)
        if view is None:
            return result
        result = self._turned(op, view.arg, result)
        t, order = tile_type(result), tuple(view.permutation.get_values())
        assert t.shared_layout is not None
        extents = tuple(t.extents[a] for a in order)
        turned = TileType(extents, t.element).with_layout(t.shared_layout.transpose(order))
        return before(op, tile.Transpose(result, order, turned)).result

    def _read_before(self, operand: SSAValue, op: tile.Dot) -> None:
        """An operand's conversion, and the views of it, right before the dot: it is read in every
        iteration instead of held through all.
        """
        moved: list[shared.Convert | tile.Broadcast | tile.Transpose | tile.Reshape] = []
        while isinstance(made := operand.owner, (shared.Convert, *VIEWS)):
            if not operand.has_one_use():
                break
            moved.append(made)
            operand = made.arg
        if not moved or not isinstance(moved[-1], shared.Convert):
            return
        for made in reversed(moved):
            made.detach()
            before(op, made)
        self.made = {key: value for key, value in self.made.items() if value.owner not in moved}

    def _in_steps(self, op: tile.Dot, chunk: int) -> None:
        """One dot as several of few k each, its operands' registers sliced."""
        acc, k = op.acc, extents_of(op.a)[-1]
        for start in range(0, k, chunk):
            count = min(chunk, k - start)
            a = self._part(op, op.a, -1, start, count)
            b = self._part(op, op.b, -2, start, count)
            acc = before(op, tile.Dot(a, b, acc, op.precision.data, _instruction(op))).result
        replace(op, [acc])

    def _in_three(self, op: tile.Dot) -> None:
        """tf32x3: each operand is a tf32 and what that leaves; of the four products the one of the
        two rests is below float32's last bit.
        """
        build = Builder(op)

        def parts(v: SSAValue) -> tuple[SSAValue, SSAValue]:
            words = tile_type(v).with_element(i32)
            whole, mask = build(Bitcast(v, words)), build(tile.Constant(-1 << 13, words))
            high = build(Bitcast(build(CLASSES["and"](whole, mask)), v.type))
            return high, build(CLASSES["sub"](v, high))

        (a, a_rest), (b, b_rest) = parts(op.a), parts(op.b)
        acc = op.acc
        for x, y in (a_rest, b), (a, b_rest), (a, b):
            acc = build(tile.Dot(x, y, acc, "tf32", _instruction(op)))
        replace(op, [acc])

    def _part(self, op: tile.Dot, value: SSAValue, axis: int, start: int, count: int) -> SSAValue:
        """A slice of what an operand is a view of, or is computed of, as the operand: what converts
        it to its layout has slices as its users, each of which is read where it is used.
        """
        if (view := defining_op(value, tile.Transpose)) is not None:
            order = tuple(view.permutation.get_values())
            part = self._part(op, view.arg, order[axis], start, count)
            whole = tile_type(part)
            turned = TileType([whole.extents[a] for a in order], whole.element)
            turned = turned.with_layout(layout_of(part).transpose(order))
            return before(op, tile.Transpose(part, order, turned)).result
        made, t = value.owner, tile_type(value)
        if isinstance(made, POINTWISE) and value.has_one_use():
            parts = {
                v: self._part(op, v, axis, start, count)
                for v in made.operands
                if isinstance(v.type, TileType)
            }
            new = made.clone(parts)
            retype(new.results[0], tile_type(next(iter(parts.values()))).with_element(t.element))
            return before(op, new).results[0]
        offsets, extents = [0] * t.rank, list(t.extents)
        offsets[axis], extents[axis] = start, count
        layout, _ = layout_of(value).slice(offsets, extents)
        return before(op, tile.Slice(value, offsets, TileType(extents, t.element, layout))).result


def REAL(module: ModuleOp) -> bool:
    """Whether a product of the module is computed as three: the fourth, of what two tf32 leave, is
    left out, for it is below the last bit of a float32 (a fact of real numbers).
    """
    return any(isinstance(op, tile.Dot) and op.precision.data == "tf32x3" for op in module.walk())


def load_for_threads(kernel: tile.Kernel, plan: Plan) -> None:
    """A block that dots read in shared memory, and threads in registers, is loaded once more for
    each of the latter, under the same number: swizzle-shared makes one copy of them.
    """
    for load in operations_in(kernel, tile.Load):
        uses = list(leaves(load.result))
        in_registers = [leaf for leaf in uses if not _is_read_in_memory(leaf[0], plan)]
        if not in_registers or len(in_registers) == len(uses):
            continue
        for use, views in in_registers:
            value = after(load, load.clone()).results[0]
            for view in views:
                value = after(owner_op(value), view.clone({view.arg: value})).result
            use.operation.operands[use.index] = value


def _is_read_in_memory(use: Use, plan: Plan) -> bool:
    """Whether a use of a block is a dot's that reads it in shared memory."""
    op = use.operation
    if not isinstance(op, tile.Dot) or use.index > 1 or (chosen := plan.dot(op)) is None:
        return False
    return chosen.instruction == "wgmma" and (chosen.a, chosen.b)[use.index] == "shared"


def _run(layout: Layout, axis: int) -> int:
    """Neighbours along an axis in consecutive registers."""
    return next((d.extent for d in layout.registers if d.axis == axis and d.stride == 1), 1)


def _instruction(op: tile.Dot) -> str:
    assert op.instruction is not None
    return op.instruction.data


_SCOPES = {
    "none": "nowhere",
    "registers": "between registers",
    "lanes": "between lanes",
    "warps": "between warps",
    "blocks": "between blocks",
}


def _short(value: SSAValue) -> str:
    t = tile_type(value)
    return "x".join(map(str, t.extents)) + f" {t.element}"


def _blocks(kernel: tile.Kernel) -> Iterator[Block]:
    for op in kernel.walk():
        for region in op.regions:
            yield from region.blocks
