"""Groups of tiles that must share a layout, and the layout of each: the deciding half of
select-layouts (its docstring has the rules).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import LayoutError
from tkc.ir.elementwise import InlinePtx
from tkc.ir.layout import Layout
from tkc.ir.plan import DotPlan, Plan
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import loops_of
from tkc.ir.types import TileType, bits, element_of
from tkc.passes.analysis.access import (
    CACHED_TILE_BYTES,
    Access,
    BlockAccess,
    PointerAccess,
    both_ways,
    in_runs,
    tile_of,
    vectors_first,
)
from tkc.passes.analysis.values import LOADS, POINTWISE, Kinds, feeds_dot, in_workspace, tiles
from tkc.passes.layouts.dot_layouts import of_dot
from tkc.passes.layouts.movers import (
    first_layouts,
    offsets_layout,
    one_thread,
    one_warp,
    slice_source,
    stretched,
)
from tkc.passes.layouts.relayout import casts_behind, read_layout
from tkc.passes.planning.factors import dense_of_factor


@dataclass(frozen=True)
class Chosen:
    """A dot with its plan and the layouts of a, b and the accumulator."""

    plan: DotPlan
    layouts: tuple[Layout | None, Layout | None, Layout]  # None: in shared memory


@dataclass(frozen=True)
class Relation:
    """The layout of group `source` suggests one for the group of `target`."""

    source: SSAValue
    target: SSAValue
    derive: Callable[[Layout], Layout]


class Groups:
    """Built once for a kernel at level 0; `assign` decides; then `layout(value)` answers."""

    def __init__(self, kernel: tile.Kernel, plan: Plan):
        self.plan, self.kinds, self.ranges = plan, Kinds(plan.warps), Ranges()
        self.parent: dict[SSAValue, SSAValue] = {}
        self.accesses: dict[Operation, Access] = {}
        self.anchors: dict[
            SSAValue, list[Operation]
        ] = {}  # of any member: the loads and stores it meets
        self.reductions: dict[SSAValue, list[int]] = {}  # of any member: axes reduced or scanned
        self.scans: dict[SSAValue, list[int]] = {}  # of any member: axes scanned
        self.relations: list[Relation] = []
        self.dots: dict[Operation, Chosen] = {}
        self.concats: list[tile.Concat] = []
        self.kept: list[tile.Slice] = []  # parts of tiles that are put aside
        self.viewing: list[
            tuple[SSAValue, SSAValue]
        ] = []  # results of element-wise operations with a transposed operand
        self.joined: set[tile.Concat] = set()  # those that are a choice of registers of dots' sums
        self.chosen: dict[SSAValue, Layout] = {}
        self.members: list[SSAValue] = []
        self.aside: dict[
            SSAValue, SSAValue
        ] = {}  # of arrays in workspaces: a value that is stored there or loaded
        self.wanted: list[tuple[SSAValue, Layout]] = []
        ops = list(kernel.walk())
        planned = ((op, plan.dot(op)) for op in ops if isinstance(op, tile.Dot))
        self.apart = {
            cast
            for op, chosen in planned
            if chosen and chosen.permuted
            for cast in casts_behind(op.a)
        }  # what they make need not lie as what they are made of
        for op in ops:
            self._enter(op)

    # ---- what ties values together
    def find(self, value: SSAValue) -> SSAValue:
        root = value
        while (up := self.parent.get(root, root)) is not root:
            root = up
        while value is not root:
            self.parent[value], value = root, self.parent.get(value, root)
        return root

    def tie(self, *values: SSAValue) -> None:
        """One layout for all of these that are data."""
        data = [v for v in tiles(values) if self.kinds.data(v)]
        for v in data:
            self.members.append(v)
        for a, b in zip(data, data[1:], strict=False):
            self.parent[self.find(b)] = self.find(a)

    def _enter(self, op: Operation) -> None:
        self.tie_alone(op)
        match op:
            case scf.ForOp():
                end = op.body.block.last_op
                for i, r in enumerate(op.results):
                    self._carried(r, op.body.block.args[1 + i], end.operands[i], op.iter_args[i])
            case scf.IfOp():
                for i, r in enumerate(op.results):
                    self._carried(r, *(region.block.last_op.operands[i] for region in op.regions))
            case scf.WhileOp():
                before, after = op.before_region.block, op.after_region.block
                for i, a in enumerate(before.args):
                    self._carried(a, op.arguments[i], after.last_op.operands[i])
                for i, r in enumerate(op.results):
                    self._carried(r, after.args[i], before.last_op.operands[1 + i])
            case tile.Dot():
                plan = self.plan.dot(op) or DotPlan("fma", (self.plan.warps, 1), chunk=4)
                self.dots[op] = Chosen(plan, of_dot(op, plan))
                self.tie(op.result, op.acc)
                self._relate(op.result, op.acc)
                for factor, layout in zip((op.a, op.b), self.dots[op].layouts, strict=False):
                    if layout is not None:
                        self._follow_sunk(factor, layout, factor.type.size)
            case tile.Concat():
                self.concats.append(op)
            case tile.Slice() if all(
                isinstance(use.operation, tile.Store) and in_workspace(use.operation)
                for use in op.result.uses
            ):
                self.kept.append(op)
            case tile.Reduce():
                self.tie(*op.args)
                axis = op.axis.value.data
                for r in tiles(op.results):
                    if self.kinds.data(op.args[0]):
                        self.relations.append(
                            Relation(op.args[0], r, lambda layout: layout.drop(axis))
                        )
                for a in op.args:
                    self.reductions.setdefault(a, []).append(axis)
            case InlinePtx():
                self.tie(*tiles((*op.results, *op.args)))
            case tile.Scan():
                self.tie(*op.results, *op.args)
                for a in op.results:
                    for axes in self.reductions, self.scans:
                        axes.setdefault(a, []).append(op.axis.value.data)
            case _ if isinstance(op, BlockAccess | PointerAccess) and tile_of(op) is not None:
                if isinstance(op, (tile.Load, tile.Store)) and in_workspace(
                    op
                ):  # what is put aside comes back as it was
                    block = op.value if isinstance(op, tile.Store) else op.result
                    self.tie(self.aside.setdefault(op.array, block), block)
                self.accesses[op] = Access.of(op, self.ranges, not self.plan.dots)
                for v in (*op.results, *op.operands):
                    if isinstance(v.type, TileType) and v.type.extents == tile_of(op).extents:
                        self.anchors.setdefault(v, []).append(op)
                if isinstance(op, BlockAccess):
                    self._gathers(op)
            case _ if (
                isinstance(op, POINTWISE) and tiles(op.results) and self.kinds.data(op.results[0])
            ):
                if op in self.apart:
                    self.relations.append(
                        Relation(op.operands[0], op.results[0], lambda layout: layout)
                    )
                else:
                    self.tie(op.results[0], *op.operands)
                for v in op.operands:
                    self._relate(op.results[0], v)
                    if isinstance(v.owner, tile.Transpose):
                        self.viewing.append((op.results[0], v))

    def _gathers(self, op: Operation) -> None:
        """Offsets that are tiles follow the block they address."""
        moved = op.result if isinstance(op, tile.Load) else op.value
        for axis, offset in enumerate(op.offsets):
            if (
                isinstance(offset.type, TileType)
                and self.kinds.data(offset)
                and self.kinds.data(moved)
            ):
                self.relations.append(
                    Relation(
                        moved, offset, lambda layout, axis=axis: offsets_layout(op, axis, layout)
                    )
                )

    def tie_alone(self, op: Operation) -> None:
        """Every data value is in some group."""
        for v in tiles(op.results):
            self.tie(v)
        for region in op.regions:
            for block in region.blocks:
                for v in tiles(block.args):
                    self.tie(v)

    def _carried(self, *values: SSAValue) -> None:
        self.tie(*values)
        for v in values[1:]:
            self._relate(values[0], v)

    def _relate(self, result: SSAValue, operand: SSAValue) -> None:
        """Where an operand is a view of data, what the result's layout asks of that data."""
        if not isinstance(operand.type, TileType) or not self.kinds.view(operand):
            return
        steps, value = [], operand
        while isinstance(value.type, TileType) and self.kinds.view(value):
            steps.append(value.owner)
            value = value.owner.arg
        if not self.kinds.data(value):
            return

        def derive(layout: Layout) -> Layout:
            for op in steps:
                layout = backward(op, layout)
            return layout

        self.relations.append(Relation(result, value, derive))

    def _follow_sunk(self, value: SSAValue, layout: Layout, whole: int) -> None:
        """Small loads that are broadcast into a dot's factor are made where they are wanted."""
        if not isinstance(value.type, TileType) or self.kinds.cheap(value):
            return
        op = value.owner
        if self.kinds.view(value):
            try:
                self._follow_sunk(op.arg, backward(op, layout), whole)
            except LayoutError:
                return
        elif self.kinds.sunk(value):
            for v in op.operands:
                self._follow_sunk(v, layout, whole)
        elif (
            isinstance(op, LOADS)
            and value.has_one_use()
            and value.type.size < whole
            and value.type.bytes <= CACHED_TILE_BYTES
        ):
            self.wanted.append((value, layout))

    # ---- deciding
    def assign(self) -> None:
        def size(v):
            return v.type.size

        for found in self.anchors, self.reductions, self.scans:
            self._gather(found)
        self.relations.sort(key=lambda r: -size(r.source))
        for op in sorted(self.dots, key=lambda op: -size(op.result)):
            self.chosen.setdefault(self.find(op.result), self.dots[op].layouts[2])
        for op, chosen in self.dots.items():  # a left factor that several dots share
            if (
                chosen.layouts[0] is not None
                and chosen.plan.instruction == "wgmma"
                and self.kinds.data(op.a)
            ):
                self.chosen.setdefault(self.find(op.a), chosen.layouts[0])
        for op, chosen in self.dots.items():
            for i, source in enumerate((chosen.plan.a, chosen.plan.b)):
                if source == "relaid":
                    self._read_anew(op.operands[i], 1 - i, chosen.plan.permuted)
        for op in self.kept:  # as each thread has them
            if (whole := self.chosen.get(self.find(op.arg))) is not None:
                self.chosen.setdefault(
                    self.find(op.result), slice_source(op, whole, self.plan.warps)[1]
                )
        self._join()
        for (
            result,
            view,
        ) in self.viewing:  # what is computed of a transposed sum stays where that is
            if (
                (seen := self._image(view)) is not None
                and view.type.size == result.type.size
                and self._of_sum(view)
            ):
                self.chosen.setdefault(self.find(result), seen)
        for value, layout in self.wanted:
            self.chosen.setdefault(self.find(value), layout)
        self._propagate()
        for v in sorted(
            self.members,
            key=lambda v: (
                -size(v),
                len(self.anchors.get(self.find(v), ())) == 0,
                -self._depth(self.find(v)),
            ),
        ):
            root = self.find(v)
            if root not in self.chosen:
                self.chosen[root] = self._own(root)
                self._propagate()

    def _read_anew(self, factor: SSAValue, k: int, turn: bool) -> None:
        """A factor that is laid anew is loaded as the role that does it reads it."""
        dense, value = dense_of_factor(factor), factor
        layout = read_layout(factor.type.extents, k, dense, turn)
        while isinstance(value.owner, tile.Transpose):
            layout = backward(value.owner, layout)
            value = value.owner.arg
        self.chosen.setdefault(self.find(value), layout)

    def _of_sum(self, value: SSAValue) -> bool:
        while isinstance(value.owner, tile.Transpose):
            value = value.owner.arg
        return any(self.find(op.result) is self.find(value) for op in self.dots)

    def _join(self) -> None:
        """Parts of one sum, side by side: what each thread has of them. A dot's own result has its
        dot's layout, whatever its group was given for another.
        """

        def has(v):
            return (
                self.dots[v.owner].layouts[2] if v.owner in self.dots else self.chosen[self.find(v)]
            )

        for op in self.concats:  # in program order: parts of parts first
            if any(self.find(a) not in self.chosen for a in op.args):
                continue
            try:
                layout = Layout.concat([has(a) for a in op.args], op.axis.value.data)[0]
            except LayoutError:
                continue
            if self.chosen.setdefault(self.find(op.result), layout) == layout:
                self.joined.add(op)

    def _gather(self, found: dict) -> None:
        """Moves what is noted at members to their groups."""
        for v in list(found):
            if (root := self.find(v)) is not v:
                found.setdefault(root, []).extend(found.pop(v))

    def _propagate(self) -> None:
        changed = True
        while changed:
            changed = False
            for relation in self.relations:
                source, target = self.find(relation.source), self.find(relation.target)
                if source not in self.chosen or target in self.chosen:
                    continue
                try:
                    derived = relation.derive(self.chosen[source])
                except LayoutError:
                    continue
                if target.type.size >= source.type.size and not all(
                    self.accesses[op].fits(derived, self.plan.warps)
                    for op in self.anchors.get(target, ())
                ):
                    continue  # it knows better itself
                self.chosen[target], changed = derived, True

    def _depth(self, root: SSAValue) -> int:
        """Of the innermost loop in which a group meets a load or store; -1 where it meets none."""
        return max((len(loops_of(op)) for op in self.anchors.get(root, ())), default=-1)

    def _own(self, root: SSAValue) -> Layout:
        """By the views it is made of, if that is in a loop deeper than any load or store it meets;
        by those; or blocked.
        """
        ops, t, deepest = self.anchors.get(root, []), root.type, self._depth(root)
        for v in self.members:
            if (
                self.find(v) is root
                and isinstance(v.owner, POINTWISE)
                and len(loops_of(v.owner)) > deepest
            ):
                for operand in tiles(v.owner.operands):
                    if self.kinds.view(operand) and (seen := self._image(operand)) is not None:
                        return seen
        if not ops:
            return self._default(t, self.reductions.get(root, ()))
        weights: dict[tuple[int, ...], int] = {}
        for op in ops:
            weights[self.accesses[op].order] = (
                weights.get(self.accesses[op].order, 0) + self.accesses[op].bytes
            )
        order = max(weights, key=weights.get)
        widest = max(
            (self.accesses[op] for op in ops if self.accesses[op].order == order),
            key=lambda a: a.vector,
        )
        if (
            self.plan.register_transpose
            and widest.vector * widest.bits >= 32
            and (other := self._turned(root, order[0]))
            and t.rank > 1
            and not self.reductions.get(root)
        ):
            return both_ways(
                t.extents, (order[0], widest.vector), other, widest.bits, self.plan.warps
            )
        copied = all(isinstance(op, tile.Load) and feeds_dot(op.result) for op in ops)
        found = widest.layout(
            self.plan.warps, self._reduced(root), not copied, self.plan.cluster_split
        )
        for axis in sorted(set(self.scans.get(root, ()))):
            found = in_runs(found, axis)
        return found

    def _turned(self, root: SSAValue, fast: int) -> tuple[int, int] | None:
        """(axis, elements of a vector) of a store that writes a group's tile along another axis
        than `fast`.
        """
        for op, access in self.accesses.items():
            if not isinstance(op, tile.Store) or access.vector * access.bits < 32:
                continue
            axis, value = access.order[0], op.value
            while isinstance(value.owner, tile.Transpose):
                axis, value = value.owner.permutation.get_values()[axis], value.owner.arg
            if (
                value is not op.value
                and self.kinds.data(value)
                and self.find(value) is root
                and axis != fast
            ):
                return axis, access.vector
        return None

    def _reduced(self, root: SSAValue) -> tuple[int, ...]:
        axes = self.reductions.get(root, [])
        return (
            tuple(sorted(set(axes), key=axes.count))
            if len(set(axes)) < root.type.rank
            else tuple({max(axes, key=axes.count)})
            if axes
            else ()
        )

    def _default(self, t: TileType, reduced=()) -> Layout:
        width = bits(element_of(t))
        return Access(
            t.extents, width, tuple(reversed(range(t.rank))), max(1, 128 // width)
        ).layout(
            self.plan.warps,
            tuple(set(reduced)) if len(set(reduced)) < t.rank else (),
            cluster_split=self.plan.cluster_split,
        )

    # ---- answers
    def layout(self, value: SSAValue) -> Layout:
        """The group's layout; for what is made on demand, the layout in which it is made most
        easily.
        """
        if value.type.register_layout is not None:
            return value.type.register_layout
        if not self.kinds.data(value):
            return self.image(value)
        return self.chosen[self.find(value)]

    def image(self, value: SSAValue) -> Layout:
        """A layout in which a view, or a cheap value, can be made."""
        return self._image(value) or self._default(value.type)

    def _image(self, value: SSAValue) -> Layout | None:
        """What the layout of a view's operand becomes; None where that is not decided or not
        possible.
        """
        if self.kinds.cheap(value) or self.kinds.sunk(value):
            return None
        if self.kinds.data(value):
            return value.type.register_layout or self.chosen.get(self.find(value))
        source = self._image(value.owner.arg)
        if source is None:
            return None
        try:
            return forward(value.owner, source)
        except LayoutError:
            return None

    def reduced(self, op: tile.Reduce) -> Layout:
        """The layout of a reduction's operands."""
        value = op.args[0]
        return (
            self.layout(value)
            if self.kinds.data(value) or self._image(value)
            else self._default(value.type, (op.axis.value.data,))
        )

    def access(self, op: Operation) -> Layout | None:
        """The layout of a load's, store's or atomic's block: its pointers' if they have one, its
        value's if that does, its own otherwise.
        """
        if op not in self.accesses:
            return None
        access = self.accesses[op]
        if isinstance(op, PointerAccess) and self.kinds.data(op.pointers):
            return self.layout(op.pointers)
        moved = op.result if isinstance(op, (tile.Load, tile.LoadPointers)) else op.value
        have = self.layout(moved) if self.kinds.data(moved) else self._image(moved)
        # roles convert nothing between warps
        kept = (
            self.plan.cluster_split[0] > 1
            or isinstance(op, tile.Store)
            and self.plan.roles != "one"
        )
        if have is not None and self.plan.register_transpose and isinstance(op, tile.Store):
            have = vectors_first(have, access.order[0])
        if have is not None and (kept or self._by_map(op) or access.fits(have, self.plan.warps)):
            return have
        return access.layout(self.plan.warps, cluster_split=self.plan.cluster_split)

    def _by_map(self, op: Operation) -> bool:
        """Whether a tensor map copies a load's block: threads only read it where it then lies."""
        return (
            isinstance(op, tile.Load)
            and "number" in op.attributes
            and self.plan.loads[op.attributes["number"].value.data].path == "tma"
        )

    def moved(self, op: Operation) -> tuple[list[Layout], Layout]:
        """Layouts of the operands and the result of a concat, sort (or the first of one) or flip."""
        t = op.results[0].type
        match op:
            case tile.Concat():
                axis = op.axis.value.data
                if op in self.joined:
                    return [self.layout(a) for a in op.args], self.layout(op.result)
                step = gcd(*(a.type.extents[axis] for a in op.args))
                parts = [
                    stretched(a.type.extents, bits(element_of(t)), {axis: step}, self.plan.warps)
                    for a in op.args
                ]
                return parts, Layout.concat(parts, axis)[0]
            case shared.SortFirst():
                source, result = first_layouts(op, self.plan.warps)
                return [source], result
            case tile.Flip():
                layout = one_thread(t.extents, op.axis.value.data, self.plan.warps)
            case _:
                layout = one_warp(t.extents, t.rank - 1, self.plan.warps)
        return [layout], layout


# ---- views


def backward(op: Operation, layout: Layout) -> Layout:
    """The operand's layout from which a view's result in `layout` is free."""
    match op:
        case tile.Broadcast():
            return layout.operand_of_broadcast(op.arg.type.extents)
        case tile.Transpose():
            permutation = op.permutation.get_values()
            return layout.transpose([permutation.index(i) for i in range(len(permutation))])
        case _:
            return layout.reshape(op.arg.type.extents)


def forward(op: Operation, layout: Layout) -> Layout:
    """The layout of a view's result where its operand is in `layout`."""
    match op:
        case tile.Broadcast():
            for axis, (old, new) in enumerate(
                zip(op.arg.type.extents, op.result.type.extents, strict=False)
            ):
                if old != new:
                    layout = layout.broadcast(axis, new)
            return layout
        case tile.Transpose():
            return layout.transpose(op.permutation.get_values())
        case _:
            return layout.reshape(op.result.type.extents)
