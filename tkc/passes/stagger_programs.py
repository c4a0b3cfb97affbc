"""stagger-programs: where programs wait for one another, a thread block begins its next one before
it waits, so that what other programs wait for is published early.

Before:

    for %p = %first to %programs step %s {
      %x = tile.load …[%p]
      %own = tile.reduce sum[cast %x]
      publish %own
      %before = … wait …
      … %x, %own, %before …
    }

After:

    publish(first: %x)
    for %p … carrying %x, %own {
      %next = %p + %s, or %p in the last iteration
      %x' = tile.load …[%next]
      %own' = tile.reduce …
      publish %own' if there is a next one
      %before = … wait …                     for what was published an iteration ago
      … %x, %own, %before …
      yield %x', %own'
    }

The first part of a program, up to where it reads what other programs write, runs one iteration
early. Of what the second part needs of it, loaded values and results of reductions and scans are
carried, as narrow as they were loaded; the rest is computed again. Programs are in no order but
that of waiting, and the first part does not wait, so that the first of all unfinished programs
never waits for one of its own thread block.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from tkc.ir import tile
from tkc.ir.values import is_side_effect_free
from tkc.passes import PassContext
from tkc.passes.analysis.values import LOADS
from tkc.passes.schedule.expand import End, LoopSchedule, expand, surely_runs

COSTLY = (*LOADS, tile.Reduce, tile.Scan, tile.Sort, tile.Histogram, tile.Gather)


def run(module: ModuleOp, context: PassContext) -> None:
    """Staggers the loops over the programs of a thread block in kernels of co-resident programs."""
    for kernel in module.body.block.ops:
        if "together" not in kernel.attributes:
            continue
        for loop in filter(surely_runs, list(kernel.body.block.ops)):
            if (schedule := _schedule(loop)) is not None:
                expand(loop, schedule, context.overlaps)
                context.decisions.append(
                    "stagger-programs: a thread block publishes what its next program has for"
                    " others before it waits for what this one needs"
                )


def _schedule(loop: scf.ForOp) -> LoopSchedule | None:
    """What a program does before it waits, one program early; of that it computes again what costs
    little. None where a program publishes nothing before it waits.
    """
    ops = list(loop.body.block.ops)[:-1]
    watching = (i for i, op in enumerate(ops) if any(map(tile.watches, op.walk())))
    cut = next(watching, 0)
    effects = [op for op in ops[:cut] if _has_effect(op)]
    if loop.iter_args or not effects or any(op.results for op in effects):
        return None
    first = [op for op in ops[:cut] if op in effects or isinstance(op, COSTLY)]
    groups = (first, 1, End.CLAMP), (ops[cut:], 0, End.CLAMP)
    return LoopSchedule.of(loop, groups, lambda op: not _has_effect(op) and op not in first)


def _has_effect(op: Operation) -> bool:
    """Whether an operation does more than compute and read."""
    return bool(op.regions) or not (is_side_effect_free(op) or isinstance(op, LOADS))
