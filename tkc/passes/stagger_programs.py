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
from xdsl.ir import Block, Operation, OpResult, SSAValue

from tkc.ir import tile
from tkc.ir.rewrite import Builder, clone_slice, defining_slice, erase, only_if, rebuild_for
from tkc.ir.threads import Identity
from tkc.ir.values import is_side_effect_free, owner_op, terminator_of
from tkc.passes import PassContext
from tkc.passes.analysis.values import LOADS

COSTLY = (*LOADS, tile.Reduce, tile.Scan, tile.Sort, tile.Histogram, tile.Gather)


def run(module: ModuleOp, context: PassContext) -> None:
    """Staggers the loops over the programs of a thread block in kernels of co-resident programs."""
    for kernel in module.body.block.ops:
        if "together" not in kernel.attributes:
            continue
        for loop in [
            op
            for op in kernel.body.block.ops
            if isinstance(op, scf.ForOp) and isinstance(op.lb.owner, Identity)
        ]:
            if _stagger(loop):
                context.decisions.append(
                    "stagger-programs: a thread block publishes what its next program has for"
                    " others before it waits for what this one needs"
                )


def _stagger(loop: scf.ForOp) -> bool:
    """The loop over a block's programs, which runs at least once. False where a program publishes
    nothing before it waits.
    """
    body = loop.body.block
    ops = list(body.ops)[:-1]
    watching = (i for i, op in enumerate(ops) if any(map(tile.watches, op.walk())))
    cut = next(watching, 0)
    early, late = ops[:cut], ops[cut:]
    effects = [op for op in early if _has_effect(op)]
    if loop.iter_args or not effects or any(op.results for op in effects):
        return False
    carried = _carried(early, late)
    first = _FirstPart(body, effects, carried)
    build = Builder(ops[0])
    following = build.add(body.args[0], loop.step)
    exists = build.lt(following, loop.ub)
    after = first.write(build.select(exists, following, body.args[0]), ops[0], exists)
    rebuild_for(loop, (), first.write(loop.lb, loop, None))
    terminator_of(body).operands = after
    for old, new in zip(carried, body.args[1:], strict=True):
        old.replace_all_uses_with(new)
    for op in reversed(early):
        if op in effects or not any(r.first_use for r in op.results):
            erase(op)
    return True


def _has_effect(op: Operation) -> bool:
    """Whether an operation does more than compute and read."""
    return bool(op.regions) or not (is_side_effect_free(op) or isinstance(op, LOADS))


class _FirstPart:
    """What a program does before it waits: its effects, and what these and the second part need."""

    def __init__(self, body: Block, effects: list[Operation], carried: list[SSAValue]):
        read = [v for op in effects for inner in op.walk() for v in inner.operands]
        wanted = {*effects, *defining_slice([*carried, *read], body)}
        self.number, self.effects, self.carried = body.args[0], effects, carried
        self.ops = [op for op in body.ops if op in wanted]

    def write(self, number: SSAValue, anchor: Operation, exists: SSAValue | None) -> list[SSAValue]:
        """The first part of the program of a number, where it exists; what it hands on."""
        mapping: dict[SSAValue, SSAValue] = {self.number: number}
        for op in self.ops:
            clone_slice([op], mapping, anchor)
            if exists is not None and op in self.effects and anchor.prev_op is not None:
                only_if(exists, anchor.prev_op)
        return [mapping[v] for v in self.carried]


def _carried(early: list[Operation], late: list[Operation]) -> list[SSAValue]:
    """What the late operations need of the early ones and should not be done again."""
    found: list[OpResult] = []
    seen: set[SSAValue] = set()
    work = [v for op in late for inner in op.walk() for v in inner.operands]
    while work:
        v = work.pop()
        if v in seen or not isinstance(v, OpResult) or v.owner not in early:
            continue
        seen.add(v)
        if isinstance(v.owner, COSTLY):
            found.append(v)
        else:
            work += v.owner.operands
    place = {op: i for i, op in enumerate(early)}
    found.sort(key=lambda v: place[owner_op(v)])
    return [*found]
