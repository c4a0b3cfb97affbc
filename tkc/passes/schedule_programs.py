"""schedule-programs: maps blocks to programs: rasterization, persistent loops, clusters,
co-resident programs, split-K and stream-K.

The program ids of the kernel become those of the program whose turn it is (programs/order.py). With
a raster of 2:

    %m = tile.program_id 0        %m = (id / (2·N))·2 + id mod (2·N) mod 2
    %n = tile.program_id 1   ->   %n = id mod (2·N) / 2
                                  where id = program_id 0 + program_id 1 · num_programs 0

A persistent plan makes the programs of a block an ordinary outer loop, so that copies of the next
program overlap the end of this one. The blocks of a cluster take neighbours along axis 0, or along
both axes; where the grid ends inside a cluster, a padding tile computes and stores nothing
(programs/tile_groups.py):

    %t0 = tile.identity cluster
    scf.for %t = %t0 to %clusters_of_programs step (tile.identity clusters) {
      %m = …·2 + (tile.identity cluster_rank)        %n = …
      body;  stores under scf.if %m < num_programs 0
    }

With `dynamic_schedule`, blocks claim programs one by one (programs/dynamic_tile_scheduler.py). With
`split_k`, so many consecutive programs share an output tile (programs/split_k.py). With `stream_k`,
all blocks share the programs of the last wave (programs/stream_k.py).
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import scf
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, ModuleOp, UnitAttr, i64
from xdsl.ir import Block, Operation

from tkc.ir import tile
from tkc.ir.plan import Plan
from tkc.ir.rewrite import Builder, replace
from tkc.ir.types import TileType
from tkc.ir.values import first_of, is_side_effect_free, operations_in, parent_of, terminator_of
from tkc.passes import PassContext
from tkc.passes.analysis.alias import Overlaps, accessed, is_number_of_all, overlapping
from tkc.passes.analysis.program_axes import sources
from tkc.passes.analysis.values import WRITES
from tkc.passes.programs.order import in_groups
from tkc.passes.programs.persistent import Programs
from tkc.passes.programs.tile_groups import guard_effects


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        plan = context.plan
        if plan is None:
            continue
        if plan.cluster_split[0] > 1:
            _in_clusters(kernel, plan.cluster_split[0])
            kernel.attributes["spread"] = UnitAttr()
        if plan.persistent:
            _persistent(kernel, plan, context)
        elif plan.raster > 1:
            _raster(kernel, plan.raster)


def _in_clusters(kernel: tile.Kernel, size: int) -> None:
    kernel.attributes["cluster"] = _integers(size, 1)


def _integers(*numbers: int) -> ArrayAttr[IntegerAttr]:
    return ArrayAttr([IntegerAttr(n, i64) for n in numbers])


def _raster(kernel: tile.Kernel, group: int) -> None:
    ids = [op for op in operations_in(kernel, tile.ProgramId) if op.axis.value.data < 2]
    if not ids:
        return
    build = Builder(first_of(kernel.body.block))
    x, y, rows, columns = (
        build(op)
        for op in (tile.ProgramId(0), tile.ProgramId(1), tile.NumPrograms(0), tile.NumPrograms(1))
    )
    place = in_groups(build, build.add(build.mul(y, rows), x), rows, columns, build.number(group))
    place[0].name_hint, place[1].name_hint = "program_0", "program_1"
    for op in ids:
        replace(op, [place[op.axis.value.data]])


def _persistent(kernel: tile.Kernel, plan: Plan, context: PassContext) -> None:
    """The whole program as the body of a loop over the programs of a block; what no program id
    reaches stays before it.
    """
    inside = _in_each_program(kernel, plan, context)
    if not inside:
        return
    ids = operations_in(kernel, tile.ProgramId)
    programs = Programs.of(kernel, plan, inside, ids, context)
    loop = programs.loop(inside, ids, context)
    loop.body.args[0].name_hint = "program"
    for i, v in enumerate(loop.place):
        v.name_hint = f"program_{i}"
    for op in ids:
        replace(op, [loop.place[op.axis.value.data]])
    programs.divide(loop, context)
    if loop.real is not None:
        sizes = (plan.members * plan.cluster[0], plan.cluster[1])
        padded = [v for v, n in zip(loop.place, sizes, strict=False) if n > 1]
        guard_effects(loop.body, loop.real, padded, context)
    _note(kernel, plan, context)


def _in_each_program(kernel: tile.Kernel, plan: Plan, context: PassContext) -> list[Operation]:
    """What of a kernel is done in each of a block's programs, in order."""
    if plan.dots:
        return _beside_dots(kernel, context.overlaps)
    return _each_program(kernel.body.block, plan.resident_operands, context.overlaps)


def _note(kernel: tile.Kernel, plan: Plan, context: PassContext) -> None:
    """What later passes and the launch must know of the programs, and what the user may."""
    if plan.members > 1:
        kernel.set_integer("members", plan.members)
    if plan.stream_k:
        kernel.set_integer("split", plan.stream_k)
        context.decisions.append(
            "schedule-programs: the last wave's programs are shared by all blocks, in at most"
            f" {plan.stream_k} parts each; the last one to finish adds them in order"
        )
    if plan.split_k > 1:
        kernel.set_integer("split", plan.split_k)
        who = "each adds a share of" if plan.parts_in_cluster else "the last one adds"
        context.decisions.append(
            f"schedule-programs: {plan.split_k} programs share an output tile; {who} their parts"
            " in order"
        )
    if plan.parts_in_cluster:
        _in_clusters(kernel, plan.split_k)
    if plan.cluster != (1, 1):
        _in_clusters(kernel, plan.cluster[0] * plan.cluster[1])
        kernel.attributes["cluster_programs"] = _integers(*plan.cluster)
    kernel.attributes["persistent"] = UnitAttr()
    if tile.waits_for_programs(kernel):
        kernel.attributes["together"] = UnitAttr()
    if plan.cluster_split[0] > 1:
        kernel.set_integer("split", plan.cluster_split[0])


def _beside_dots(kernel: tile.Kernel, overlaps: Overlaps) -> list[Operation]:
    """What programs with dots do: how long loops run is read once, where all run as long, so that
    it is known of programs which others run.
    """
    loops = operations_in(kernel, scf.ForOp)
    counts = sources(bound for loop in loops for bound in (loop.lb, loop.ub, loop.step))

    def shared(op: Operation) -> bool:
        return is_side_effect_free(op) or op in counts and is_number_of_all(op, overlaps)

    return _dependent(kernel.body.block, shared)


def _dependent(block: Block, shared: Callable[[Operation], bool]) -> list[Operation]:
    """The operations of a kernel that a program id reaches, or that programs do not share (that
    have effects), in order.
    """
    moved: set[Operation] = set()
    for op in block.ops:
        if not isinstance(op, tile.Return) and (
            isinstance(op, tile.ProgramId)
            or op.regions
            or not shared(op)
            or any(v.owner in moved for v in op.operands)
        ):
            moved.add(op)
    return [op for op in block.ops if op in moved]


def _each_program(block: Block, keep: bool, overlaps: Overlaps) -> list[Operation]:
    """The same for programs without dots, whose tiles fill the registers: indices, masks and what
    is computed of blocks that all programs share are made anew in each; the blocks themselves are
    read once where the plan keeps them."""
    kernel = parent_of(terminator_of(block), tile.Kernel)
    written = [accessed(op) for op in operations_in(kernel, WRITES)]

    def shared(op: Operation) -> bool:
        if isinstance(op, tile.Load):
            return (
                keep
                and (array := accessed(op)) is not None
                and None not in written
                and overlapping(array, overlaps).isdisjoint(written)
            )
        return is_side_effect_free(op) and not any(isinstance(r.type, TileType) for r in op.results)

    return _dependent(block, shared)
