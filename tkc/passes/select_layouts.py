"""select-layouts: level 0 to level 1. Every tile gets a layout, every dot its instruction,
`tile.convert` stands where two meet.

    %x = tile.load %a[%m, %k] {…} : tile<128x64xbf16>            %x = tile.load … : tile<128x64xbf16, "blocked …">
    %y = tile.load %b[%k, %n] {…} : tile<64x128xbf16>            %u = tile.convert %x … : tile<128x64xbf16, "mma_a …">
    %d = tile.dot %x, %y, %c {precision = ieee}          ->      …
    tile.store %o[%m, %n] %d {…}                                 %d = tile.dot %u, %v, %c {precision = ieee, instruction = mma}
                                                                 tile.store %o[%m, %n] %d {…}

How. Values that an operation or a loop ties to one layout form a *group* (element-wise operands and
results, what a loop carries). A group takes its layout from the strongest of

    1. an accumulator in it: the dot's, as planned
    2. a larger neighbour that it is broadcast to, or that it is reduced from: the neighbour's
       without the axis, so that row statistics and bias vectors meet their tile without moving; one
       as large, where what the group loads and stores comes in whole sectors there too
    3. the loads and stores it meets: coalesced, vectors as wide as alignment allows, warps off the
       axes to be reduced
    4. nothing: blocked

Then the program is rewritten: every operation asks for its operands in the layouts it needs.
Constants, index arithmetic and masks are made anew in the layout asked for; a transpose or
broadcast asks its operand for the layout that gives the wanted one for nothing; anything else is
converted right behind its definition, once for all who ask. Each conversion is reported with the
scope in which its data moves.

What the operations demand (what code generation and later passes may count on):

    element-wise, select, cast, dot accumulator, scan, atomics' operands    one layout for all operands and results
    transpose             result = operand.transpose(permutation), register for register
    broadcast, slice, concat             every thread holds what it needs: the result is a choice of registers
    reshape               the same, or (extents that do not nest) anything: it goes through shared memory
    reduce                result = operand.drop(axis)
    dot                   the layouts of layouts/dot_layouts.py; `instruction` is set; fma is cut into steps of few k, tf32x3 into three dots
    sort                  the axis inside one warp, padded to a power of two; result as operand
    sort_first            what is left of a sort where a slice takes its first elements: they are in the registers of every thread of the row
    flip                  the axis inside one thread; result as operand (a long flip is several short ones of a reshaped tile)
    gather offsets        a rank-1 tile of offsets has the block's layout along its axis (copies elsewhere)
    loads, stores, histogram, print, assert, extract    anything; replicated elements are stored or counted once
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, StringAttr, i32
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import LayoutError
from tkc.ir.elementwise import CLASSES, Bitcast, InlinePtx
from tkc.ir.layout import Layout, movement
from tkc.ir.plan import Plan, written_on
from tkc.ir.rewrite import after, before, erase_dead, replace, retype
from tkc.ir.text import location_of
from tkc.ir.types import TileType, element_of
from tkc.passes import PassContext
from tkc.passes.analysis.mapped import of_block
from tkc.passes.analysis.values import POINTWISE, VIEWS, tiles
from tkc.passes.layouts.groups import Groups, backward
from tkc.passes.layouts.movers import (
    factor_flip,
    first_of_sort,
    is_free,
    offsets_layout,
    reshape_layouts,
    slice_source,
)
from tkc.passes.layouts.relayout import permuted, relaid
from tkc.passes.planning.factors import source as load_of


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        context.plan = plan = context.plan or written_on(kernel) or Plan(kernel.warps)
        kernel.set_integer("warps", plan.warps)
        Selection(kernel, plan, context).run()
        kernel.set_integer("level", 1)


class Selection:
    """The rewriting of one kernel."""

    def __init__(self, kernel: tile.Kernel, plan: Plan, context: PassContext):
        self.kernel, self.plan, self.context = kernel, plan, context
        for op in list(kernel.walk()):
            if isinstance(op, tile.Flip):
                factor_flip(op)
            elif isinstance(op, tile.Sort):
                first_of_sort(op)
        self.groups = Groups(kernel, plan)
        self.kinds = self.groups.kinds
        self.made: dict[tuple[SSAValue, Layout], SSAValue] = {}
        for op, chosen in self.groups.dots.items():
            for factor, source in (op.a, chosen.plan.a), (op.b, chosen.plan.b):
                if source == "shared" and chosen.plan.instruction == "wgmma":
                    _in_shared_memory(factor)

    def run(self) -> None:
        self.groups.assign()
        for block in _blocks(self.kernel):
            for argument in block.args:
                self._settle(argument)
        for op in list(self.kernel.walk()):
            self._rewrite(op)
        erase_dead(self.kernel.body.block)

    # ---- types
    def _settle(self, value: SSAValue, layout: Layout | None = None) -> None:
        """Gives a value its layout, in place (xDSL would make another value)."""
        if (
            isinstance(value.type, TileType)
            and value.type.register_layout is None
            and value.type.shared_layout is None
        ):
            retype(value, value.type.with_layout(layout or self.groups.layout(value)))

    def _layout(self, value: SSAValue) -> Layout:
        """The layout a value has, or is best made in."""
        return value.type.register_layout or self.groups.layout(value)

    # ---- asking for operands
    def ask(self, value: SSAValue, layout: Layout | None = None) -> SSAValue:
        """The value in that layout (its own where None); a scalar is itself."""
        if not isinstance(value.type, TileType):
            return value
        layout = layout or self._layout(value)
        if value.type.register_layout == layout:
            return value
        key = value, layout
        if key not in self.made:
            self.made[key] = (
                self._make(value, layout)
                if value.type.register_layout is None
                else self._convert(value, layout)
            )
        return self.made[key]

    def _make(self, value: SSAValue, layout: Layout) -> SSAValue:
        """Makes a cheap, viewed or sunk value anew."""
        op = value.owner
        assert isinstance(op, Operation) and not self.kinds.data(value), (
            f"{value} is used before its layout is known"
        )
        match op:
            case tile.Broadcast() | tile.Transpose():
                operands = [self.ask(op.arg, backward(op, layout))]
            case tile.Reshape():
                source, result = reshape_layouts(op, layout, self._layout(op.arg), self.plan.warps)
                if result != layout:
                    return self._convert(self.ask(value, result), layout)
                operands = [self.ask(op.arg, source)]
            case _:
                operands = [self.ask(v, layout) for v in op.operands]
        new = op.clone({old: new for old, new in zip(op.operands, operands, strict=False)})
        retype(new.results[0], value.type.with_layout(layout))
        new.results[0].name_hint = value.name_hint
        return after(op, new).results[0]

    def _convert(self, value: SSAValue, layout: Layout) -> SSAValue:
        source = value.type.register_layout
        op = shared.Convert(value, value.type.with_layout(layout))
        op.result.name_hint = value.name_hint
        scope = movement(source, layout)
        self._note(
            value,
            f"({_short(value.type)}) converted, data moves {_SCOPES[scope]}",
            value.owner if isinstance(value.owner, Operation) else self.kernel,
        )
        return (
            before(value.owner.first_op, op)
            if isinstance(value.owner, Block)
            else after(value.owner, op)
        ).result

    def _note(self, value: SSAValue, what: str, op: Operation) -> None:
        place = location_of(op)
        self.context.decisions.append(
            f"select-layouts: {value.name_hint or 'a value'} {what}"
            + (f" ({place})" if place else "")
        )

    # ---- operations
    def _rewrite(self, op: Operation) -> None:
        """Operands of one operation in the layouts it needs, results with theirs."""
        if any(
            isinstance(r.type, TileType)
            and (r.type.shared_layout is not None or not self.kinds.data(r))
            for r in op.results
        ):
            return  # settled, or made on demand
        ask, own = self.ask, self._layout
        match op:
            case tile.Dot():
                self._dot(op)
            case scf.ForOp():
                for i, v in enumerate(op.iter_args):
                    op.operands[3 + i] = ask(
                        v, own(op.results[i]) if isinstance(v.type, TileType) else None
                    )
                self._finish(op)
            case scf.WhileOp():
                self._operands(
                    op,
                    [
                        own(a) if isinstance(a.type, TileType) else None
                        for a in op.before_region.block.args
                    ],
                )
                self._finish(op)
            case scf.IfOp():
                self._finish(op)
            case scf.YieldOp() | scf.ConditionOp():
                self._terminator(op)
            case tile.Reduce():
                layout = self.groups.reduced(op)
                self._operands(op, [layout] * len(op.operands))
                for r in tiles(op.results):
                    self._settle(r, layout.drop(op.axis.value.data))
            case tile.Load() | tile.Store() | tile.AtomicBlock():
                layout = self.groups.access(op)
                for i, v in enumerate(op.operands):
                    if isinstance(v.type, TileType):
                        op.operands[i] = ask(v, self._of_operand(op, v, layout))
                if self.plan.rows and isinstance(op, tile.Store):
                    self._in_rows(op)
                self._finish(op, layout)
            case tile.LoadPointers() | tile.StorePointers() | tile.Atomic():
                layout = self.groups.access(op)
                self._operands(op, [layout] * len(op.operands))
                self._finish(op, layout)
            case tile.Reshape():  # between extents that do not nest
                self._operands(op, [None])
                self._finish(op)
                if not is_free(op):
                    self._note(
                        op.result,
                        f"({_short(op.arg.type)}) reshaped to {_short(op.result.type)}, data moves"
                        f" {_SCOPES['warps' if self.plan.warps > 1 else 'lanes']}",
                        op,
                    )
            case tile.Slice():
                source, result = slice_source(op, own(op.arg), self.plan.warps)
                self._operands(op, [source])
                self._finish(op, result)
            case tile.Concat() | tile.Sort() | shared.SortFirst() | tile.Flip():
                sources, result = self.groups.moved(op)
                self._operands(op, sources)
                self._finish(op, result)
            case tile.Scan() | InlinePtx() if tiles(op.operands):
                layout = own(tiles(op.operands)[0])
                self._operands(op, [layout] * len(op.operands))
                self._finish(op, layout)
            case tile.Histogram():
                layout = own(op.arg)
                self._operands(op, [layout] * len(op.operands))
                self._finish(op)
            case _ if (
                isinstance(op, POINTWISE)
                and op.results
                and isinstance(op.results[0].type, TileType)
            ):
                layout = own(op.results[0])
                self._operands(op, [layout] * len(op.operands))
                self._finish(op, layout)
            case _:
                self._operands(op, [None] * len(op.operands))
                self._finish(op)

    def _in_rows(self, store: tile.Store) -> None:
        """A tile that was turned in registers is converted once more, so that warps write its rows
        as a whole. Its threads hold squares of vectors: rows that one of them holds stand apart in
        shared memory, and those beside one another are of its neighbours, so that what lanes write
        at once is in other banks.
        """
        t, access = store.value.type, self.groups.accesses[store]
        have, n, fast = t.register_layout, 128 // access.bits, access.order[0]

        def run(axis):
            return next((d.extent for d in have.registers if d.axis == axis and d.stride == 1), 1)

        if {run(0), run(1), access.vector} != {n}:
            return  # not turned after all
        split, order = (
            ((t.extents[0] // n, n, t.extents[1]), (1, 0, 2))
            if fast == 1
            else ((t.extents[0], t.extents[1] // n, n), (2, 1, 0))
        )
        wide = access.layout(self.plan.warps)
        try:
            near, far = have.reshape(split), wide.reshape(split)
        except LayoutError:
            return

        def reshaped(v, extents, layout):
            return before(
                store, tile.Reshape(v, TileType(extents, t.element).with_layout(layout))
            ).result

        def transposed(v: SSAValue, layout: Layout) -> SSAValue:
            made = before(store, tile.Transpose(v, order))
            retype(
                made.result,
                TileType(tuple(v.type.extents[a] for a in order), t.element).with_layout(layout),
            )
            return made.result

        apart = transposed(reshaped(store.value, split, near), near.transpose(order))
        moved = self._convert(apart, far.transpose(order))
        whole = reshaped(transposed(moved, far), t.extents, wide)
        store.operands[list(store.operands).index(store.value)] = whole

    def _operands(self, op: Operation, layouts: list[Layout | None]) -> None:
        for i, (value, layout) in enumerate(zip(op.operands, layouts, strict=False)):
            if isinstance(value.type, TileType):
                op.operands[i] = self.ask(value, layout)

    def _finish(self, op: Operation, layout: Layout | None = None) -> None:
        for result in tiles(op.results):
            self._settle(result, layout)

    def _of_operand(self, op: Operation, value: SSAValue, layout: Layout) -> Layout:
        """A gather's offsets follow the block along their axis; everything else has the block's
        layout.
        """
        for axis, offset in enumerate(op.offsets):
            if offset is value:
                return offsets_layout(op, axis, layout)
        return layout

    def _terminator(self, op: Operation) -> None:
        parent = op.parent_op()
        match parent, op:
            case scf.ForOp(), _:
                targets = parent.results
            case scf.IfOp(), _:
                targets = parent.results
            case scf.WhileOp(), scf.ConditionOp():
                targets = [op.operands[0], *parent.results]
            case _:
                targets = parent.before_region.block.args
        self._operands(
            op, [self._layout(t) if isinstance(t.type, TileType) else None for t in targets]
        )

    def _dot(self, op: tile.Dot) -> None:
        chosen = self.groups.dots[op]
        a, b, acc = chosen.layouts
        if chosen.plan.instruction == "wgmma":
            op.operands[2] = self.ask(op.acc, acc)
            if a is not None:
                op.operands[0] = self.ask(op.a, a)
            if a is not None and chosen.plan.permuted:
                op.operands[0] = permuted(op.a, 1, op)
            for i, source in enumerate((chosen.plan.a, chosen.plan.b)):
                if source == "relaid":
                    op.operands[i] = relaid(
                        load_of(op.operands[i]), op.operands[i], 1 - i, chosen.plan.permuted, op
                    )
        else:
            self._operands(op, [a, b, acc])
        for factor, source in (op.a, chosen.plan.a), (op.b, chosen.plan.b):
            if source == "shared" and chosen.plan.instruction == "mma":
                self._bring(factor, op)
        self._settle(op.result, acc)
        op.properties["instruction"] = StringAttr(chosen.plan.instruction)
        if op.precision.data == "tf32x3" and chosen.plan.instruction == "mma":
            return self._in_three(op)
        k, chunk = op.a.type.extents[-1], chosen.plan.chunk
        if chosen.plan.instruction == "fma" and 0 < chunk < k:
            self._in_steps(op, chunk)

    def _bring(self, factor: SSAValue, op: tile.Dot) -> None:
        """A factor's conversion, and the views behind it, right before the dot: it is read in every
        iteration instead of held through all.
        """
        moved = []
        while isinstance(factor.owner, (shared.Convert, *VIEWS)) and factor.has_one_use():
            moved.append(factor.owner)
            factor = factor.owner.arg
        if not moved or not isinstance(moved[-1], shared.Convert):
            return
        for made in reversed(moved):
            made.detach()
            before(op, made)
        self.made = {key: value for key, value in self.made.items() if value.owner not in moved}

    def _in_steps(self, op: tile.Dot, chunk: int) -> None:
        """One dot as several of few k each, its operands' registers sliced."""
        total, k = op.acc, op.a.type.extents[-1]
        for start in range(0, k, chunk):
            count = min(chunk, k - start)
            parts = [self._part(op, v, axis, start, count) for v, axis in ((op.a, -1), (op.b, -2))]
            step = tile.Dot(*parts, total, op.precision.data, op.instruction.data)
            total = before(op, step).result
        replace(op, [total])

    def _in_three(self, op: tile.Dot) -> None:
        """tf32x3: each factor is a tf32 and what that leaves; of the four products the one of the
        two rests is below float32's last bit.
        """

        def make(new):
            return before(op, new).results[0]

        def parts(v: SSAValue) -> tuple[SSAValue, SSAValue]:
            whole = TileType(v.type.shape, i32, v.type.layout)
            kept = make(
                CLASSES["and"](make(Bitcast(v, whole)), make(tile.Constant(-1 << 13, whole)))
            )
            high = make(Bitcast(kept, v.type))
            return high, make(CLASSES["sub"](v, high))

        (a, a_rest), (b, b_rest) = parts(op.a), parts(op.b)
        total = op.acc
        for x, y in (a_rest, b), (a, b_rest), (a, b):
            total = make(tile.Dot(x, y, total, "tf32", op.instruction.data))
        replace(op, [total])

    def _part(self, op: tile.Dot, value: SSAValue, axis: int, start: int, count: int) -> SSAValue:
        t = value.type
        axis %= t.rank
        offsets = [start if a == axis else 0 for a in range(t.rank)]
        extents = [count if a == axis else n for a, n in enumerate(t.extents)]
        layout, _ = t.register_layout.slice(offsets, extents)
        return before(op, tile.Slice(value, offsets, TileType(extents, t.element, layout))).result


def _in_shared_memory(factor: SSAValue) -> None:
    """A factor that wgmma reads where it was copied: the load's block in the widest swizzle of the
    axis that is dense in memory, and views of that.
    """
    views = []
    while isinstance(factor.owner, (tile.Transpose, tile.Slice)):
        views.append(factor.owner)
        factor = factor.owner.arg
    memory = of_block(factor.owner)
    retype(factor, factor.type.with_layout(memory))
    for op in reversed(views):
        memory = (
            memory.transpose(tuple(op.permutation.get_values()))
            if isinstance(op, tile.Transpose)
            else memory.slice(op.offsets.get_values(), op.result.type.extents)[0]
        )
        retype(op.result, op.result.type.with_layout(memory))


_SCOPES = {
    "none": "nowhere",
    "registers": "between registers",
    "lanes": "between lanes",
    "warps": "between warps",
    "blocks": "between blocks",
}


def _short(t: TileType) -> str:
    return "x".join(map(str, t.extents)) + f" {element_of(t)}"


def _blocks(kernel: tile.Kernel):
    yield kernel.body.block
    for op in kernel.walk():
        for region in op.regions:
            for block in region.blocks:
                if block is not kernel.body.block:
                    yield block
