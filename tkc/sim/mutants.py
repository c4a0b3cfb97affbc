"""Changes of a level-4 program that the simulator must notice: its own test.

`mutants(module)` gives (name, changed copy) for every operator at every place it applies. A mutant that no run can tell
from the original is *equivalent*; whoever runs mutants lists those, each with its reason.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32, i64
from xdsl.ir import Operation

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES

Change = Callable[[Operation], None]


def drop(op: Operation) -> None: op.detach(); op.erase()


def twice(op: Operation) -> None: op.parent.insert_op_after(op.clone(), op)


def earlier(op: Operation) -> None:
    """Before the nearest synchronising operation above it in its block."""
    before = op.prev_op
    while type(before) not in SYNCHRONISING: before = before.prev_op
    op.detach()
    before.parent.insert_op_before(op, before)


def later(op: Operation) -> None:
    after = op.next_op
    while type(after) not in SYNCHRONISING: after = after.next_op
    op.detach()
    after.parent.insert_op_after(op, after)


def add(name: str, n: int) -> Change:
    def change(op: Operation) -> None: op.properties[name] = IntegerAttr(op.properties[name].value.data + n, i64)
    return change


def operand(name: str, function: str, n: int) -> Change:
    """An operand with a function of it and a constant in its place."""
    def change(op: Operation) -> None:
        value = getattr(op, name)
        value = value if not isinstance(value, tuple) and not hasattr(value, "__len__") else value[0]
        constant = tile.Constant(n, i32)
        changed = CLASSES[function](value, constant.result)
        op.parent.insert_ops_before([constant, changed], op)
        op.operands[list(op.operands).index(value)] = changed.result
    return change


def other_kind(op: Operation) -> None: op.properties["kind"] = tile.StringAttr("block")


def own_block(op: Operation) -> None:
    """To this block of the cluster alone."""
    index = list(op.operands).index(op.to)
    rank, one = threads.Identity("cluster_rank"), tile.Constant(1, i32)
    mask = CLASSES["shl"](one.result, rank.result)
    op.parent.insert_ops_before([rank, one, mask], op)
    op.operands[index] = mask.result


T = threads
SYNCHRONISING = (T.Barrier, T.BarrierArrive, T.BlockBarrier, T.ClusterArrive, T.ClusterWait, T.Fence, T.MbarrierWait, T.MbarrierArrive, T.MbarrierExpect, T.BulkCommit, T.BulkWait,
                 T.CpCommit, T.CpWait, T.DotCommit, T.DotWait, T.TmaLoad, T.TmaStore, T.CpAsync, T.DotAsync, shared.Read, shared.Write)
DROPPED = (T.Barrier, T.BarrierArrive, T.BlockBarrier, T.ClusterArrive, T.ClusterWait, T.Fence, T.MbarrierInit, T.MbarrierWait, T.MbarrierArrive, T.MbarrierExpect, T.BulkCommit, T.BulkWait,
           T.CpCommit, T.CpWait, T.DotCommit, T.TmaLoad, T.TmaStore)


def _neighbour(op: Operation, step: str) -> bool:
    op = getattr(op, step)
    while op is not None and type(op) not in SYNCHRONISING: op = getattr(op, step)
    return op is not None


OPERATORS: dict[str, tuple[Change, Callable[[Operation], bool]]] = {
    "drop": (drop, lambda op: isinstance(op, DROPPED)),
    "twice": (twice, lambda op: isinstance(op, (T.MbarrierArrive, T.MbarrierExpect, T.MbarrierInit))),
    "earlier": (earlier, lambda op: isinstance(op, (T.MbarrierArrive, T.BarrierArrive, T.MbarrierExpect)) and _neighbour(op, "prev_op")),
    "later": (later, lambda op: isinstance(op, (T.MbarrierWait, T.Fence)) and _neighbour(op, "next_op")),
    "deeper": (add("pending", 1), lambda op: isinstance(op, (T.DotWait, T.BulkWait, T.CpWait))),
    "count + 1": (add("count", 1), lambda op: isinstance(op, T.MbarrierInit)),
    "count - 1": (add("count", -1), lambda op: isinstance(op, T.MbarrierInit) and op.count.value.data > 1),
    "threads + 32": (add("threads", 32), lambda op: isinstance(op, (T.Barrier, T.BarrierArrive))),
    "threads - 32": (add("threads", -32), lambda op: isinstance(op, (T.Barrier, T.BarrierArrive))),
    "bytes + 16": (add("bytes", 16), lambda op: isinstance(op, T.MbarrierExpect)),
    "bytes - 16": (add("bytes", -16), lambda op: isinstance(op, T.MbarrierExpect)),
    "parity": (operand("parity", "xor", 1), lambda op: isinstance(op, (T.MbarrierWait, T.MbarrierTest))),
    "stage": (operand("index", "xor", 1), lambda op: isinstance(op, (T.MbarrierWait, T.MbarrierArrive, T.MbarrierExpect, shared.Stage)) and len(op.index) > 0),
    "kind": (other_kind, lambda op: isinstance(op, T.Fence) and op.kind.data != "block"),
    "own block": (own_block, lambda op: isinstance(op, (T.MbarrierArrive, T.TmaLoad)) and op.to is not None),
}


def mutants(module: ModuleOp) -> Iterator[tuple[str, ModuleOp]]:
    """Every operator at every place; a name says operator, operation and its number in the module."""
    for number, original in enumerate(module.walk()):
        for name, (change, applies) in OPERATORS.items():
            if not applies(original): continue
            copy = module.clone()
            op = next(o for i, o in enumerate(copy.walk()) if i == number)
            change(op)
            yield f"{name}: {original.name.removeprefix('tile.')} #{number}", copy
