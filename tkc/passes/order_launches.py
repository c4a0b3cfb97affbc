"""order-launches: what says how launches of a stream overlap becomes an attribute of the kernel.

    tile.kernel @f(…) {                 ->    tile.kernel @f(…) {dependencies = ["wait"]} {
      tile.dependency wait                      …
      …

A launch with the option `dependent` has both. One with the option `beside` has nothing to wait for:
it waits at its end, so that what comes after it comes after both. To wait earlier than a program
says is right, and so is to let the next launch begin earlier: it waits for the whole of this one.
So no pass in between has anything to keep in order, and schedule-warpgroups writes both where
threads have set up what touches no global memory (`placed`).
"""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation

from tkc.ir import shared, threads, tile
from tkc.ir.rewrite import after, before, erase
from tkc.ir.values import is_side_effect_free, operations_in, terminator_of
from tkc.passes import PassContext

LAST = "last"  # of what a kernel says of its launch: it waits at its end
NEEDED = 90  # the compute capability from which on launches overlap
# what threads do before they touch global memory
SETUP = (
    shared.Alloc,
    threads.Barriers,
    threads.MbarrierInit,
    threads.Fence,
    threads.ClusterArrive,
    threads.ClusterWait,
)


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in tile.kernels_of(module):
        said = operations_in(kernel, tile.Dependency)
        kinds = {op.kind.data for op in said}
        for op in said:
            erase(op)
        if context.options.dependent:
            kinds = set(tile.DEPENDENCIES)
        if context.options.beside:
            kinds = kinds - {"wait"} | {LAST}
        if kinds and context.target.capability < NEEDED:
            context.decisions.append(
                f"order-launches: launches do not overlap on {context.target.name}"
            )
        elif kinds:
            kernel.attributes["dependencies"] = ArrayAttr(map(StringAttr, sorted(kinds)))
            if kinds != {"launch"}:
                context.decisions.append(
                    "order-launches: the launch may begin before the one before it has ended"
                )


def placed(kernel: tile.Kernel) -> None:
    """Writes a level-4 kernel's dependencies before the first operation that may touch global
    memory; the next launch may begin before this one waits. What waits last does so at its end.
    """
    kinds = kernel.attributes.get("dependencies")
    if isinstance(kinds, ArrayAttr):
        said = [kind.data for kind in kinds]
        first = next(op for op in kernel.body.block.ops if not _is_setup(op))
        for kind in said:
            if kind == LAST:
                after(_last(kernel), tile.Dependency("wait"))
            else:
                before(first, tile.Dependency(kind))


def _last(kernel: tile.Kernel) -> Operation:
    """What threads of a kernel do last: those of its first role, which copies and has few
    registers, or all of them, before they return. A launch lasts as long as any thread does.
    """
    roles = operations_in(kernel, threads.Role)
    found = roles[0].body.block.last_op if roles else None
    found = found or terminator_of(kernel.body.block).prev_op
    assert found is not None  # a kernel that launches beside another does something
    return found


def _is_setup(op: Operation) -> bool:
    return isinstance(op, SETUP) or (
        is_side_effect_free(op) and not op.regions and not isinstance(op, tile.Return)
    )
