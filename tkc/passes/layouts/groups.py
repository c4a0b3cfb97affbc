"""Groups of tiles that share a layout, and the layout of each: the deciding half of select-layouts
(its docstring has the rules).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import islice, pairwise
from math import gcd, prod
from typing import TypeVar

from xdsl.dialects import scf
from xdsl.ir import BlockArgument, Operation, SSAValue

from tkc.ir import shared, tile
from tkc.ir.digits import LayoutError
from tkc.ir.elementwise import InlinePtx
from tkc.ir.layout import WARP, Layout, movement
from tkc.ir.plan import DotPlan, Plan
from tkc.ir.ranges import Ranges
from tkc.ir.reductions import FUNCTION
from tkc.ir.rewrite import loops_of
from tkc.ir.types import TileType, bits, element_of
from tkc.ir.values import (
    defining_op,
    extents_of,
    owner_op,
    reached,
    tile_type,
    yielded_by,
)
from tkc.passes.analysis.access import (
    CACHED_TILE_BYTES,
    Access,
    both_ways,
    in_runs,
    moved_value,
    tile_of,
    vectors_first,
)
from tkc.passes.analysis.parts import is_one_of_equal_parts, is_part_of_record, size_of_parts
from tkc.passes.analysis.values import (
    LOADS,
    POINTWISE,
    VIEWS,
    WRITES,
    BlockAccess,
    Kinds,
    PointerAccess,
    feeds_dot,
    in_workspace,
    tiles,
)
from tkc.passes.cuts.held import held_rows
from tkc.passes.layouts.dot_layouts import Layouts, of_dot
from tkc.passes.layouts.movers import (
    first_layouts,
    offsets_layout,
    one_thread,
    one_warp,
    slice_source,
    stretched,
)
from tkc.passes.layouts.relayout import casts_behind, read_layout
from tkc.passes.layouts.views import (
    Derive,
    View,
    backward,
    forward,
    part_of,
    through_part,
    through_views,
    view_of,
)
from tkc.passes.planning.operands import dense_of_operand, untransposed

# of a thread, for a tile that loops broadcast to another
MAX_BROADCAST_REGISTERS = 16
# along the axis of sums in a loop: a quarter of a warp's other lanes has an element of its own
MAX_LANES_OF_SUMS = 4

T = TypeVar("T")


@dataclass(frozen=True)
class Chosen:
    """A dot with its plan and the layouts of a, b and the accumulator."""

    plan: DotPlan
    layouts: Layouts


@dataclass(frozen=True)
class Relation:
    """The layout of group `source` suggests one for the group of `target`; suits: only where the
    target's loads and stores can be made so. reduced: the target is what a reduction leaves: where
    it is broadcast along the same axis again, each step of a recurrence would move it twice.
    loaded: only where the target is loaded: what is computed has a layout of its own.
    """

    source: SSAValue
    target: SSAValue
    derive: Derive
    suits: bool = False
    reduced: bool = False
    loaded: bool = False


Members = dict[SSAValue, list[int]]


def _lanes_along(extents: Sequence[int], axes: Iterable[int], warps: int) -> int:
    """How many lanes, a power of two, are left along axes by one for each element of the others."""
    least = -(-WARP * warps * prod(extents[axis] for axis in axes) // prod(extents))
    return 1 << (least - 1).bit_length()


class Groups:
    """Built once for a kernel at level 0; `assign` decides; then `layout(value)` answers."""

    def __init__(self, kernel: tile.Kernel, plan: Plan):
        self.plan, self.kinds, self.ranges = plan, Kinds(plan.warps), Ranges()
        self.parent: dict[SSAValue, SSAValue] = {}
        self.accesses: dict[Operation, Access] = {}
        # How many loads of tiles there are from each array.
        self.loads_of: Counter[SSAValue] = Counter()
        # Of any member: the loads and stores it meets, axes reduced or scanned, axes scanned.
        self.anchors: dict[SSAValue, list[Operation]] = {}
        self.reductions: Members = {}
        self.scans: Members = {}
        self.depths: Members = {}  # of the loops round each reduction or scan
        self.relations: list[Relation] = []
        self.dots: dict[Operation, Chosen] = {}
        self.concats: list[tile.Concat] = []
        # Parts of tiles that are stored in a workspace, or sent to another block.
        self.spilled_parts: list[tile.Slice] = []
        # Results of element-wise operations with a transposed operand, and that operand.
        self.viewing: list[tuple[SSAValue, SSAValue]] = []
        # Concats that are a choice of registers of dots' accumulators.
        self.joined: set[tile.Concat] = set()
        self.chosen: dict[SSAValue, Layout] = {}
        # How many of them have had their relations followed, and the relations of each source.
        self._propagated = 0
        self._relations_of: dict[SSAValue, list[int]] = {}
        self.members: list[SSAValue] = []
        # Of arrays in workspaces: a value that is stored there or loaded.
        self.in_workspaces: dict[SSAValue, SSAValue] = {}
        self.wanted: list[tuple[SSAValue, Layout]] = []
        ops = list(kernel.walk())
        # The layout of what these casts make may differ from that of what they are made of.
        self.recasts = {
            cast
            for op in ops
            if isinstance(op, tile.Dot) and (chosen := plan.dot(op)) and chosen.permuted
            for cast in casts_behind(op.a)
        }
        for op in ops:
            self._enter(op)
        # a thread finds in shared memory what it has copied there itself
        for rows in held_rows(kernel, lambda op: plan.load(op).path == "held", ()):
            self.tie(*(load.results[0] for load in rows.members))

    # ---- what ties values together
    def find(self, value: SSAValue) -> SSAValue:
        """The value that represents a value's group."""
        root = value
        while (up := self.parent.get(root, root)) is not root:
            root = up
        while value is not root:
            self.parent[value], value = root, self.parent.get(value, root)
        return root

    def tie(self, *values: SSAValue) -> None:
        """One layout for all of these that are data."""
        data = [v for v in tiles(values) if self.kinds.data(v)]
        self.members += data
        for a, b in pairwise(data):
            self.parent[self.find(b)] = self.find(a)

    def _enter(self, op: Operation) -> None:
        self.tie_alone(op)
        match op:
            case scf.ForOp() | scf.IfOp() | scf.WhileOp():
                self._enter_control(op)
            case tile.Dot():
                self._enter_dot(op)
            case tile.Concat():
                self.concats.append(op)
                self._enter_parts(op)
            case tile.Slice():
                self._enter_slice(op)
            case tile.Reduce():
                self._enter_reduction(op)
            case tile.Gather():
                self.tie(op.result, op.index)
            case InlinePtx():
                self.tie(*tiles((*op.results, *op.args)))
            case tile.ClusterSum():
                self.tie(op.result, *op.shares)
            case tile.Scan():
                self.tie(*op.results, *op.args)
                for a in op.results:
                    for axes in self.reductions, self.scans:
                        axes.setdefault(a, []).append(op.axis.value.data)
                    self.depths.setdefault(a, []).append(len(loops_of(op)))
            case _ if isinstance(op, BlockAccess | PointerAccess):
                self._enter_access(op)
            case _ if isinstance(op, POINTWISE):
                self._enter_pointwise(op)

    def _enter_control(self, op: scf.ForOp | scf.IfOp | scf.WhileOp) -> None:
        """What goes round a loop, and what either side of a branch yields, has one layout."""
        match op:
            case scf.ForOp():
                body = op.body.block
                for r, a, new, old in zip(
                    op.results, body.args[1:], yielded_by(body), op.iter_args, strict=True
                ):
                    self._carried(r, a, new, old)
            case scf.IfOp():
                ends = [yielded_by(region.block) for region in op.regions if region.blocks]
                for i, r in enumerate(op.results):
                    self._carried(r, *(end[i] for end in ends))
            case scf.WhileOp():
                before, after = op.before_region.block, op.after_region.block
                for a, old, new in zip(before.args, op.arguments, yielded_by(after), strict=True):
                    self._carried(a, old, new)
                for r, a, new in zip(op.results, after.args, yielded_by(before)[1:], strict=True):
                    self._carried(r, a, new)

    def _enter_dot(self, op: tile.Dot) -> None:
        plan = self.plan.dot(op) or DotPlan("fma", (self.plan.warps, 1), chunk=4)
        self.dots[op] = Chosen(plan, of_dot(op, plan))
        self.tie(op.result, op.acc)
        self._relate(op.result, op.acc)
        for operand, layout in zip((op.a, op.b), self.dots[op].layouts[:2], strict=True):
            if layout is None:
                continue
            for load, derive in self._small_loads(operand, tile_type(operand).size):
                with suppress(LayoutError):
                    self.wanted.append((load, derive(layout)))

    def _enter_slice(self, op: tile.Slice) -> None:
        """A part of a tile stays with the threads that have it; and where the parts of a record are
        wanted, that one access reads, there the whole is best.
        """
        if _is_spilled(op):
            self.spilled_parts.append(op)
            return
        self._show(op.arg, op.result, lambda layout: slice_source(op, layout, self.plan.warps)[1])
        if is_part_of_record(op):
            views, shown = self._views_of(op.arg)
            if self.kinds.data(shown) and self.kinds.data(op.result):
                derive = partial(through_views, (op, *views))
                self.relations.append(Relation(op.result, shown, derive, loaded=True))

    def _enter_parts(self, op: tile.Concat) -> None:
        """What is joined has the layout in which the whole is a choice of its registers; and the
        whole that in which it is a choice of the registers of parts as large as one another.
        """
        axis, offset, count = op.axis.value.data, 0, len(op.args)
        if len({extents_of(v) for v in op.args}) == 1:
            self._show(
                op.args[0], op.result, lambda layout: Layout.concat([layout] * count, axis)[0]
            )
        for value in op.args:
            extents = extents_of(value)
            steps, shown = self._views_of(value)
            part = partial(part_of, axis, offset, extents)
            offset += extents[axis]
            if self.kinds.data(shown):
                derive = partial(through_part, part, steps)
                self.relations.append(Relation(op.result, shown, derive, suits=True))

    def _enter_reduction(self, op: tile.Reduce) -> None:
        self.tie(*op.args)
        axis = op.axis.value.data
        if self.kinds.data(op.args[0]):
            # of several results, or places, all warps get all
            alone = len(op.results) == 1 and op.kind.data in FUNCTION
            for r in tiles(op.results):
                left = _left_of_warps if alone and _is_stored(r) else Layout.drop
                derive = partial(left, axis=axis)
                self.relations.append(Relation(op.args[0], r, derive, reduced=True))
        # by a function of the user's in the order of the axis, as a scan
        kinds = (self.reductions, self.scans) if op.combine is not None else (self.reductions,)
        for a in op.args:
            for axes in kinds:
                axes.setdefault(a, []).append(axis)
            self.depths.setdefault(a, []).append(len(loops_of(op)))

    def _enter_access(self, op: BlockAccess | PointerAccess) -> None:
        t = tile_of(op)
        if t is None:
            return
        if isinstance(op, (tile.Load, tile.Store)) and in_workspace(op):
            # loaded in the layout in which it was stored
            block = moved_value(op)
            self.tie(self.in_workspaces.setdefault(op.array, block), block)
        self.accesses[op] = Access.of(op, self.ranges, not self.plan.dots)
        if isinstance(op, (tile.Load, tile.LoadPointers)):
            self.loads_of[_memory_of(op)] += 1
        for v in tiles((*op.results, *op.operands)):
            if extents_of(v) == t.extents:
                self.anchors.setdefault(v, []).append(op)
        # a mask, and pointers that a loop moves, are where what they are of is wanted
        own = [op.mask]
        if isinstance(op, BlockAccess):
            self._gathers(op)
        else:
            own.append(op.pointers)
        moved = moved_value(op)
        for beside in own:
            if beside is None or not isinstance(beside.type, TileType):
                continue
            if self.kinds.data(beside) and self.kinds.data(moved):
                self.relations.append(Relation(moved, beside, lambda layout: layout))

    def _enter_pointwise(self, op: Operation) -> None:
        result = op.results[0]
        if not isinstance(result.type, TileType) or not self.kinds.data(result):
            return
        if op in self.recasts:
            self.relations.append(Relation(op.operands[0], result, lambda layout: layout))
        else:
            self.tie(result, *op.operands)
        for v in op.operands:
            self._relate(result, v)
            if isinstance(v.owner, tile.Reshape) and extents_of(v) == extents_of(result):
                self._show(v, result, lambda layout: layout)
            self.anchors.setdefault(result, []).extend(self._sunk_loads(v))
            if isinstance(v.owner, tile.Transpose):
                self.viewing.append((result, v))
            for load, derive in self._small_loads(v, result.type.size):
                self.relations.append(Relation(result, load, derive))

    def _gathers(self, op: BlockAccess) -> None:
        """Offsets that are tiles follow the block they address."""
        moved = moved_value(op)
        for axis, offset in enumerate(op.offsets):
            if not isinstance(offset.type, TileType):
                continue
            if self.kinds.data(offset) and self.kinds.data(moved):
                self.relations.append(Relation(moved, offset, partial(offsets_layout, op, axis)))

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
        """Where an operand is a view of data, the layout of that data follows from the result's."""
        if not isinstance(operand.type, TileType) or not self.kinds.view(operand):
            return
        steps, value = self._views_of(operand)
        if self.kinds.data(value):
            self.relations.append(Relation(result, value, partial(through_views, steps)))

    def _show(self, operand: SSAValue, result: SSAValue, derive: Derive) -> None:
        """Where a layout of a result follows from that of an operand: it does from the layout of
        what the operand shows, too.
        """
        views, shown = self._views_of(operand)

        def derived(layout: Layout) -> Layout:
            for view in reversed(views):
                layout = forward(view, layout)
            return derive(layout)

        if self.kinds.data(shown) and self.kinds.data(result):
            self.relations.append(Relation(shown, result, derived))

    def _views_of(self, value: SSAValue) -> tuple[list[View], SSAValue]:
        """The views that show a value, the last one first, and what they are of."""
        steps: list[View] = []
        while isinstance(value.type, TileType) and self.kinds.view(value):
            view = view_of(value)
            steps.append(view)
            value = view.arg
        return steps, value

    def _small_loads(self, value: SSAValue, whole: int) -> Iterator[tuple[SSAValue, Derive]]:
        """Loads of less than `whole` elements, small or copied by another role, from which a tile
        alone is computed, each with how its layout follows from the tile's: what is broadcast into
        a dot's operand is loaded in the layout that it needs.
        """
        left: list[tuple[SSAValue, tuple[View | tile.Slice, ...]]] = [(value, ())]
        while left:
            found, views = left.pop()
            op, t = found.owner, found.type
            if not isinstance(t, TileType) or self.kinds.cheap(found):
                continue
            if self.kinds.view(found) or is_one_of_equal_parts(op):
                assert isinstance(op, (*VIEWS, tile.Slice))
                left.append((op.arg, (*views, op)))
            elif isinstance(op, Operation) and self.kinds.sunk(found):
                left += [(v, views) for v in reversed(op.operands)]
                continue
            if not isinstance(op, LOADS) or not found.has_one_use() or t.size >= whole:
                continue
            if t.bytes <= CACHED_TILE_BYTES or self._is_copied(op):
                yield found, partial(through_views, views)

    def _sunk_loads(self, value: SSAValue) -> Iterator[Operation]:
        """The loads of whole tiles from which a value is computed that has no layout of its own: it
        is computed where it is used, best as they are loaded.
        """
        if not isinstance(value.type, TileType) or not self.kinds.sunk(value):
            return
        for source in tiles(owner_op(value).operands):
            op = source.owner
            if isinstance(op, LOADS) and extents_of(source) == extents_of(value):
                yield op
            yield from self._sunk_loads(source)

    # ---- deciding
    def assign(self) -> None:
        """Decides the layout of every group: those of dots first, then what follows from them, then
        the others, the largest first.
        """
        for found in self.reductions, self.scans, self.depths:
            self._gather(found)
        self._gather(self.anchors)
        self.relations.sort(key=lambda r: (-tile_type(r.source).size, not r.reduced))
        self._assign_dots()
        for op in self.spilled_parts:  # as each thread has them
            if (whole := self.chosen.get(self.find(op.arg))) is not None:
                self._suggest(op.result, slice_source(op, whole, self.plan.warps)[1])
        self._join()
        # What is computed of a transposed accumulator stays in the threads that have that.
        for result, view in self.viewing:
            image = self._image(view)
            if image is None or tile_type(view).size != tile_type(result).size:
                continue
            if self._is_of_accumulator(view):
                self._suggest(result, image)
        for value, layout in self.wanted:
            self._suggest(value, layout)
        self._propagate()
        depths = {root: self._depth(root) for root in dict.fromkeys(map(self.find, self.members))}
        for v in sorted(self.members, key=lambda v: self._urgency(v, depths)):
            root = self.find(v)
            if root not in self.chosen:
                self.chosen[root] = self._own(root)
                self._propagate()

    def _assign_dots(self) -> None:
        for op in sorted(self.dots, key=lambda op: -tile_type(op.results[0]).size):
            self._suggest(op.results[0], self.dots[op].layouts[2])
        for op, chosen in self.dots.items():  # a left operand that several dots share
            left, value = chosen.layouts[0], op.operands[0]
            if left is None or chosen.plan.instruction != "wgmma":
                continue
            views, value = self._views_of(value)
            with suppress(LayoutError):
                left = through_views(views, left)
                if self.kinds.data(value):
                    self._suggest(value, left)
        for op, chosen in self.dots.items():
            for i, source in enumerate((chosen.plan.a, chosen.plan.b)):
                if source == "relaid":
                    self._suggest_relayout(op.operands[i], 1 - i, chosen.plan.permuted)

    def _suggest(self, value: SSAValue, layout: Layout) -> None:
        """A layout for the group of a value, where it has none."""
        self.chosen.setdefault(self.find(value), layout)

    def _urgency(self, value: SSAValue, depths: dict[SSAValue, int]) -> tuple[int, bool, int]:
        """The order in which groups choose: by size, those of loads and stores first, in the
        deepest loops first. What is loaded to be taken apart counts as its parts.
        """
        root = self.find(value)
        return -size_of_parts(value), not self.anchors.get(root), -depths[root]

    def _suggest_relayout(self, operand: SSAValue, k: int, permuted: bool) -> None:
        """An operand that is relaid out is loaded in the layout in which that role reads it."""
        layout = read_layout(extents_of(operand), k, dense_of_operand(operand), permuted)
        value = operand
        while (view := defining_op(value, tile.Transpose)) is not None:
            layout = backward(view, layout)
            value = view.arg
        self._suggest(value, layout)

    def _is_of_accumulator(self, value: SSAValue) -> bool:
        while (view := defining_op(value, tile.Transpose)) is not None:
            value = view.arg
        return any(self.find(op.results[0]) is self.find(value) for op in self.dots)

    def _join(self) -> None:
        """Parts of one accumulator, side by side: what each thread has of them. A dot's own result
        has its dot's layout, whatever its group was given for another.
        """

        def has(v: SSAValue) -> Layout:
            dot = defining_op(v, tile.Dot)
            return self.chosen[self.find(v)] if dot is None else self.dots[dot].layouts[2]

        for op in self.concats:  # in program order: parts of parts first
            if any(self.find(a) not in self.chosen for a in op.args):
                continue
            try:
                layout = Layout.concat([has(a) for a in op.args], op.axis.value.data)[0]
            except LayoutError:
                continue
            if self.chosen.setdefault(self.find(op.result), layout) == layout:
                self.joined.add(op)

    def _gather(self, found: dict[SSAValue, list[T]]) -> None:
        """Moves what is noted at members to their groups."""
        for v in list(found):
            if (root := self.find(v)) is not v:
                found.setdefault(root, []).extend(found.pop(v))

    def _propagate(self) -> None:
        """Chooses for groups what follows from those that have a layout: relations are taken in
        order, again and again until none applies. Each is looked at once, when its source is new.
        """
        if not self._relations_of:
            for at, relation in enumerate(self.relations):
                self._relations_of.setdefault(self.find(relation.source), []).append(at)
        due: list[tuple[int, int]] = []  # which time round, and which relation

        def add_new(now: tuple[int, int]) -> None:
            new = islice(reversed(self.chosen), len(self.chosen) - self._propagated)
            for source in reversed(list(new)):
                for at in self._relations_of.get(source, ()):
                    heappush(due, (now[0] + (at <= now[1]), at))
            self._propagated = len(self.chosen)

        add_new((0, -1))
        while due:
            now = heappop(due)
            if self._follows(self.relations[now[1]]):
                add_new(now)

    def _follows(self, relation: Relation) -> bool:
        """Chooses the layout of a relation's target, if it has none and the relation gives one."""
        source, target = self.find(relation.source), self.find(relation.target)
        anchors = self.anchors.get(target, ())
        if target in self.chosen:
            return False
        try:
            derived = relation.derive(self.chosen[source])
        except LayoutError:
            return False
        if relation.loaded and not self._are_read_whole(anchors, derived):
            return False
        # a group that is no smaller, and has loads or stores, chooses for itself
        smaller = tile_type(target).size < tile_type(source).size and not relation.suits
        follows = smaller or all(
            relation.suits and self._is_copied(op) or self._fits(op, derived) for op in anchors
        )
        if follows:
            self.chosen[target] = derived
        return follows

    def _are_read_whole(self, anchors: Sequence[Operation], layout: Layout) -> bool:
        """Whether there are loads among these, and each reads as many neighbours at once in a
        layout as it could.
        """
        loads = [self.accesses[op] for op in anchors if isinstance(op, LOADS)]
        return bool(loads) and all(layout.vector(a.order[0], a.vector) >= a.vector for a in loads)

    def _depth(self, root: SSAValue) -> int:
        """Of the innermost loop in which a group meets a load or store; -1 where it meets none."""
        return max((len(loops_of(op)) for op in self.anchors.get(root, ())), default=-1)

    def _own(self, root: SSAValue) -> Layout:
        """By the views it is made of, or the axes it is reduced along, if that is in a loop deeper
        than any load or store it meets; by those; or blocked.
        """
        if (seen := self._of_deeper_views(root) or self._of_deeper_sums(root)) is not None:
            return seen
        t, ops = tile_type(root), self.anchors.get(root, [])
        if not ops:
            return self._default(t, self.reductions.get(root, ()))
        weights: Counter[tuple[int, ...]] = Counter()
        for op in ops:
            weights[self.accesses[op].order] += self.accesses[op].bytes
        order = max(weights, key=weights.__getitem__)
        accesses = [a for op in ops if (a := self.accesses[op]).order == order]
        widest = max(accesses, key=lambda a: a.vector)
        most = min(self._most_written(root), *map(self._most_at_once, ops))
        widest = replace(widest, vector=min(widest.vector, most))
        if widest.vector * widest.bits >= 32 and (other := self._transposed_store(root, order[0])):
            rows = order[0], widest.vector
            return both_ways(t.extents, rows, other, widest.bits, self.plan.warps)
        copied = all(isinstance(op, tile.Load) and feeds_dot(op.result) for op in ops)
        scanned = sorted(set(self.scans.get(root, ())))
        if scanned and order[0] not in scanned:
            # words, not vectors: a thread then has more of the scanned axis, which costs it least
            widest = replace(widest, vector=min(widest.vector, max(1, 32 // widest.bits)))
        found = self._of_access(root, widest, copied)
        for axis in scanned:
            found = in_runs(found, axis, axis == order[0] and not self._scanned_deeper(root))
        return found

    def _scanned_deeper(self, root: SSAValue) -> bool:
        """Whether loops deeper than any load or store of a group scan it."""
        return max(self.depths[root]) > self._depth(root)

    def _of_access(self, root: SSAValue, access: Access, copied: bool) -> Layout:
        """The layout in which a group is loaded or stored best. Warps keep off reduced axes, unless
        each would then hold much that loops broadcast along the others.
        """
        warps, split = self.plan.warps, self.plan.cluster_split
        found = access.layout(warps, self._reduced(root), not copied, split)
        axis = self._broadcast_deeper(root)
        if axis is None:
            return found
        spread = access.layout(warps, (), not copied, split)
        held, less = (layout.drop(axis).num_registers for layout in (found, spread))
        return spread if held > max(less, MAX_BROADCAST_REGISTERS) else found

    def _most_at_once(self, op: Operation) -> int:
        """Elements of a thread beside one another. Of more than 16 bytes that are added to memory,
        or stored, each instruction of a warp has a part of every sector alone; what is gathered
        element by element gains nothing by more.
        """
        width = self.accesses[op].bits
        gathered = self.accesses[op].vector == 1 and isinstance(op, tile.LoadPointers)
        return max(1, 128 // width) if gathered or not isinstance(op, LOADS) else 128

    def _most_written(self, root: SSAValue) -> int:
        """Elements that a thread writes at once where dots read a tile of a group that is computed:
        of more, its lanes would write to the same banks.
        """
        widths = [
            bits(element_of(operand.type))
            for op, chosen in self.dots.items()
            for operand, source in zip(op.operands, (chosen.plan.a, chosen.plan.b), strict=False)
            if source == "written" and self.find(untransposed(operand)) is root
        ]
        return 128 // max(widths, default=1)

    def _of_deeper_views(self, root: SSAValue) -> Layout | None:
        """The image of a view that an element-wise operation of a group reads, in a loop deeper
        than any load or store of the group; not one that gives each thread many more elements than
        its share, because several hold what is broadcast.
        """
        deepest, share = self._depth(root), tile_type(root).size // (32 * self.plan.warps)
        for v in self.members:
            op = v.owner
            if self.find(v) is not root or not isinstance(op, POINTWISE):
                continue
            if len(loops_of(op)) > deepest:
                for operand in tiles(op.operands):
                    seen = self._image(operand) if self.kinds.view(operand) else None
                    if seen and seen.num_registers <= max(share, MAX_BROADCAST_REGISTERS):
                        return seen
        return None

    def _of_deeper_sums(self, root: SSAValue) -> Layout | None:
        """The axes that loops deeper than any load or store of a group reduce, in each thread, if
        the others have an element for each thread, or for one in a few: sums in registers need no
        lanes, or few, and what is broadcast along the axes is computed once. Not in few lanes where
        a thread would load many elements that lie along the axes in every iteration.
        """
        deepest, extents = self._depth(root), extents_of(root)
        found = zip(self.reductions.get(root, ()), self.depths.get(root, ()), strict=True)
        deeper = {axis for axis, depth in found if depth > deepest}
        axes = sorted(deeper, key=lambda axis: (extents[axis], -axis))  # lanes along the last
        if not axes or root in self.scans:
            return None
        lanes = _lanes_along(extents, axes, self.plan.warps)
        if lanes > MAX_LANES_OF_SUMS:
            return None
        held = self._loaded_along(root, axes) * prod(extents[a] for a in axes) // lanes
        if lanes > 1 and held > MAX_BROADCAST_REGISTERS:
            return None
        return one_warp(extents, axes[-1], self.plan.warps, lanes, axes[:-1])

    def _loaded_along(self, root: SSAValue, axes: Sequence[int]) -> int:
        """How many tiles that lie along some of these axes are loaded in loops deeper than any load
        or store of a group, and broadcast along another to it.
        """
        deepest = self._depth(root)
        return len(
            {
                shown
                for v in self.members
                if isinstance(v.owner, POINTWISE) and self.find(v) is root
                for operand in tiles(v.owner.operands)
                if self._broadcast_along(operand, axes) is not None
                if self._is_loaded(shown := self._views_of(operand)[1], deepest)
            }
        )

    def _is_loaded(self, value: SSAValue, deepest: int) -> bool:
        """Whether a tile is computed of nothing but loads, in loops deeper than so many; maybe an
        iteration ahead.
        """

        def behind(found: SSAValue) -> Iterable[SSAValue]:
            op = found.owner
            if isinstance(found, BlockArgument) and isinstance(found.owner.parent_op(), scf.ForOp):
                return [yielded_by(found.owner)[found.index - 1]]
            passed = (*POINTWISE, *VIEWS, tile.Slice)
            return tiles(op.operands) if isinstance(op, passed) else ()

        ends = [v for v in reached([value], behind) if not tuple(behind(v))]
        data = [v.owner for v in ends if not self.kinds.cheap(v)]
        return any(isinstance(op, LOADS) and len(loops_of(op)) > deepest for op in data) and all(
            isinstance(op, LOADS) for op in data
        )

    def _transposed_store(self, root: SSAValue, fast: int) -> tuple[int, int] | None:
        """(axis, elements of a vector) of a store that writes a group's tile along another axis
        than `fast`, where the plan transposes in registers.
        """
        if not self.plan.register_transpose or self.reductions.get(root):
            return None
        for op, access in self.accesses.items():
            if not isinstance(op, tile.Store) or access.vector * access.bits < 32:
                continue
            axis, value = access.order[0], op.value
            while (view := defining_op(value, tile.Transpose)) is not None:
                axis, value = view.permutation.get_values()[axis], view.arg
            if value is op.value or axis == fast:
                continue
            if self.kinds.data(value) and self.find(value) is root:
                return axis, access.vector
        return None

    def _reduced(self, root: SSAValue) -> tuple[int, ...]:
        """The reduced axes that warps stay off: all, or where that leaves none, the one that is
        reduced most often.
        """
        axes = self.reductions.get(root, [])
        if len(set(axes)) < tile_type(root).rank:
            return tuple(sorted(set(axes), key=axes.count))
        return (max(axes, key=axes.count),) if axes else ()

    def _broadcast_deeper(self, root: SSAValue) -> int | None:
        """The axis along which loops deeper than any reduction of a group broadcast a tile to it:
        where warps keep off the reduced axes, each has all of that tile, in its registers.
        """
        deepest = max(self.depths.get(root, ()), default=None)
        if deepest is None or root in self.scans:
            return None
        found = (
            self._broadcast_along(operand, self.reductions[root])
            for v in self.members
            if isinstance(v.owner, POINTWISE) and self.find(v) is root
            if len(loops_of(v.owner)) > deepest
            for operand in tiles(v.owner.operands)
        )
        return next((axis for axis in found if axis is not None), None)

    def _broadcast_along(self, value: SSAValue, reduced: Sequence[int]) -> int | None:
        """The one axis along which data is broadcast to a value, unless that is a reduced one."""
        op = defining_op(value, tile.Broadcast)
        if op is None or not self.kinds.data(self._views_of(value)[1]):
            return None
        given, made = extents_of(op.arg), extents_of(value)
        along = [axis for axis, (a, b) in enumerate(zip(given, made, strict=True)) if a < b]
        return along[0] if len(along) == 1 and along[0] not in reduced else None

    def _default(self, t: TileType, reduced: Iterable[int] = ()) -> Layout:
        width = bits(element_of(t))
        access = Access(t.extents, width, tuple(reversed(range(t.rank))), max(1, 128 // width))
        axes = tuple(set(reduced))
        split = self.plan.cluster_split
        return access.layout(
            self.plan.warps, axes if len(axes) < t.rank else (), cluster_split=split
        )

    # ---- answers
    def layout(self, value: SSAValue) -> Layout:
        """The group's layout; for what is rematerialised, the layout in which that is easiest."""
        settled = tile_type(value).register_layout
        if settled is not None:
            return settled
        if not self.kinds.data(value):
            return self.image(value)
        return self.chosen[self.find(value)]

    def image(self, value: SSAValue) -> Layout:
        """A layout in which a view, or a cheap value, can be made."""
        return self._image(value) or self._default(tile_type(value))

    def _image(self, value: SSAValue) -> Layout | None:
        """What the layout of a view's operand becomes; None where that is not decided or not
        possible.
        """
        if self.kinds.cheap(value) or self.kinds.sunk(value):
            return None
        if self.kinds.data(value):
            return tile_type(value).register_layout or self.chosen.get(self.find(value))
        view = view_of(value)
        source = self._image(view.arg)
        if source is None:
            return None
        try:
            return forward(view, source)
        except LayoutError:
            return None

    def reduced(self, op: tile.Reduce) -> Layout:
        """The layout of a reduction's operands."""
        value = op.args[0]
        if self.kinds.data(value) or self._image(value):
            return self.layout(value)
        return self._default(tile_type(value), (op.axis.value.data,))

    def access(self, op: Operation) -> Layout | None:
        """The layout of a load's, store's or atomic's block: its pointers' if they have one, its
        value's if that does, its own otherwise. None where it moves a scalar.
        """
        if op not in self.accesses:
            return None
        access, plan = self.accesses[op], self.plan
        if isinstance(op, PointerAccess) and self.kinds.data(op.pointers):
            return self.layout(op.pointers)
        moved = moved_value(op)
        layout = self.layout(moved) if self.kinds.data(moved) else self._image(moved)
        if layout is None:
            return access.layout(plan.warps, cluster_split=plan.cluster_split)
        is_store = isinstance(op, (tile.Store, tile.AtomicBlock))
        if plan.register_transpose and is_store:
            layout = vectors_first(layout, access.order[0])
        # a tile that a cluster shares stays where it is; roles convert nothing between warps
        is_kept = plan.cluster_split[0] > 1 or is_store and plan.roles != "one"
        if is_kept or self._is_copied(op) or self._fits(op, layout):
            return layout
        return access.layout(plan.warps, cluster_split=plan.cluster_split)

    def _fits(self, op: Operation, layout: Layout) -> bool:
        """Whether a load or store is as good as it need be in a layout."""
        is_load = isinstance(op, (tile.Load, tile.LoadPointers))
        cached = is_load and self.loads_of[_memory_of(op)] > 1
        return self.accesses[op].fits(layout, self.plan.warps, cached)

    def _is_copied(self, op: Operation) -> bool:
        """Whether another role copies a load's block: threads only read it in shared memory."""
        return isinstance(op, tile.Load) and self.plan.load(op).path in ("tma", "cp_async")

    def moved(
        self, op: tile.Concat | tile.Sort | shared.SortFirst | tile.Flip | tile.Gather
    ) -> tuple[list[Layout], Layout]:
        """Layouts of operands and result of a concat, a sort (or the first of one), a flip or a
        gather.
        """
        t, warps = tile_type(op.result), self.plan.warps
        match op:
            case tile.Concat():
                axis = op.axis.value.data
                if op in self.joined:
                    return [self.layout(a) for a in op.args], self.layout(op.result)
                if (parts := self._parts(op)) is not None:
                    return parts, Layout.concat(parts, op.axis.value.data)[0]
                extents = [extents_of(a) for a in op.args]
                periods = {axis: gcd(*(e[axis] for e in extents))}
                parts = [stretched(e, bits(element_of(t)), periods, warps) for e in extents]
                return parts, Layout.concat(parts, axis)[0]
            case tile.Gather():
                layout = self.layout(op.result)
                return [self.layout(op.arg), layout], layout
            case shared.SortFirst():
                source, result = first_layouts(op, warps)
                return [source], result
            case tile.Flip():
                layout = one_thread(t.extents, op.axis.value.data, warps)
            case tile.Sort():
                layout = one_warp(t.extents, t.rank - 1, warps)
        return [layout], layout

    def _parts(self, op: tile.Concat) -> list[Layout] | None:
        """The layouts that a concat's operands have, if its result is a choice of their registers
        and each thread has what is wanted of it.
        """
        if not self.kinds.data(op.result):
            return None
        parts = [self.layout(a) for a in op.args]
        with suppress(LayoutError):
            joined = Layout.concat(parts, op.axis.value.data)[0]
            if movement(joined, self.layout(op.result)) in ("none", "registers"):
                return parts
        return None


# ---- questions about operations
def _is_stored(value: SSAValue) -> bool:
    """Whether a tile, and all that is computed of it element by element, goes nowhere but to
    memory.
    """
    seen: set[SSAValue] = set()
    left = [value]
    while left:
        found = left.pop()
        for use in found.uses:
            op = use.operation
            if isinstance(op, WRITES):
                continue
            if not isinstance(op, (*POINTWISE, tile.Reshape)):
                return False
            if tile_type(op.results[0]).size != tile_type(value).size:
                return False
            left += set(op.results) - seen
            seen |= set(op.results)
    return True


def _left_of_warps(layout: Layout, axis: int) -> Layout:
    """The layout of what a reduction leaves. Raises LayoutError where it passes through shared
    memory: threads read there what they need of it, in any layout.
    """
    if layout.warps_along(axis) > 1:
        raise LayoutError("warps meet")
    return layout.drop(axis)


def _is_spilled(op: tile.Slice) -> bool:
    """Whether a part of a tile is stored in a workspace, or sent to another block, and nothing else
    is done with it."""
    return all(
        isinstance(user := use.operation, tile.ClusterSum)
        or isinstance(user, tile.Store)
        and in_workspace(user)
        for use in op.result.uses
    )


def _memory_of(op: Operation) -> SSAValue:
    """The array that a load or store is of, or the first pointer behind its pointers."""
    found = op.operands[0]
    while isinstance(owner := found.owner, Operation) and owner.operands and not owner.regions:
        found = owner.operands[0]
    return found
