"""Changes of a level-4 program that the simulator must notice: its own test.

`mutants(module)` gives (name, changed copy) for every operator at every place it applies. A mutant
that no run can tell from the original is *equivalent*; whoever runs mutants lists those, each with
its reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32, i64
from xdsl.ir import Operation

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.sim import level4

Change = Callable[[Operation], None]


def drop(op: Operation) -> None:
    op.detach()
    op.erase()


def twice(op: Operation) -> None:
    op.parent.insert_op_after(op.clone(), op)


def earlier(op: Operation) -> None:
    """Before the nearest synchronising operation above it in its block."""
    before = op.prev_op
    while type(before) not in SYNCHRONISING:
        before = before.prev_op
    op.detach()
    before.parent.insert_op_before(op, before)


def later(op: Operation) -> None:
    """Behind the next operation of its block that it protects."""
    after = _next_use(op)
    op.detach()
    after.parent.insert_op_after(op, after)


def add(name: str, n: int) -> Change:
    def change(op: Operation) -> None:
        op.properties[name] = IntegerAttr(op.properties[name].value.data + n, i64)

    return change


def computed(op: Operation, value, *steps: tuple[str, int]) -> None:
    """An operand replaced by functions of it and constants."""
    at, result = list(op.operands).index(value), value
    for function, n in steps:
        new = [
            constant := tile.Constant(n, i32),
            changed := CLASSES[function](result, constant.result),
        ]
        op.parent.insert_ops_before(new, op)
        result = changed.result
    op.operands[at] = result


def other_parity(op: Operation) -> None:
    computed(op, op.parity, ("xor", 1))


def stage_before(op: Operation) -> None:
    stages = _ring(op).type.stages
    computed(op, op.index[0], ("add", stages - 1), ("mod", stages))


def other_kind(op: Operation) -> None:
    op.properties["kind"] = tile.StringAttr("block")


def own_block(op: Operation) -> None:
    """To this block of the cluster alone."""
    index = list(op.operands).index(op.to)
    rank, one = threads.Identity("cluster_rank"), tile.Constant(1, i32)
    mask = CLASSES["shl"](one.result, rank.result)
    op.parent.insert_ops_before([rank, one, mask], op)
    op.operands[index] = mask.result


def alias(op: Operation) -> None:
    """A ring on the bytes of the ring before it."""
    kernel = op
    while not isinstance(kernel, tile.Kernel):
        kernel = kernel.parent_op()
    addresses, _ = level4.addresses_of(kernel)
    for each, at in addresses.items():
        each.properties["offset"] = IntegerAttr(at, i64)  # everything else stays where it is
    op.properties["offset"] = IntegerAttr(addresses[_room_before(op)], i64)


def leader_alone(op: Operation) -> None:
    """The first warp arrives for all: as often as there are warps, without waiting for others."""
    role = op
    while not isinstance(role, (T.Role, tile.Kernel)):
        role = role.parent_op()
    del op.properties["each"]
    for _ in range((role.warps.value.data if isinstance(role, T.Role) else role.warps) - 1):
        twice(op)


def parity_stays(op: Operation) -> None:
    op.results[1].replace_all_uses_with(op.parity)


def first_parity(op: Operation) -> None:
    computed(op, op.parity, ("and", 0))


def other_mask(op: Operation) -> None:
    """Copies what is masked off, and nothing else."""
    inverted = CLASSES["not"](op.mask)
    op.parent.insert_op_before(inverted, op)
    op.operands[list(op.operands).index(op.mask)] = inverted.results[0]


def commit_early(op: Operation) -> None:
    """Before the last operation of its group."""
    last = _last_of_group(op)
    op.detach()
    last.parent.insert_op_before(op, last)


T = threads
SYNCHRONISING = (
    T.Barrier,
    T.BarrierArrive,
    T.BlockBarrier,
    T.ClusterArrive,
    T.ClusterWait,
    T.Fence,
    T.MbarrierWait,
    T.MbarrierArrive,
    T.MbarrierExpect,
    T.BulkCommit,
    T.BulkWait,
    T.CpCommit,
    T.CpWait,
    T.DotCommit,
    T.DotWait,
    T.TmaLoad,
    T.TmaStore,
    T.CpAsync,
    T.DotAsync,
    T.Send,
    shared.Read,
    shared.Write,
    T.BroadcastStore,
    T.BroadcastLoad,
)
DROPPED = (
    T.Barrier,
    T.BarrierArrive,
    T.BlockBarrier,
    T.ClusterArrive,
    T.ClusterWait,
    T.Fence,
    T.MbarrierInit,
    T.MbarrierWait,
    T.MbarrierArrive,
    T.MbarrierExpect,
    T.BulkCommit,
    T.BulkWait,
    T.CpCommit,
    T.CpWait,
    T.DotCommit,
    T.TmaLoad,
    T.TmaStore,
    T.Send,
)


USES = (
    T.TmaLoad,
    T.TmaStore,
    T.CpAsync,
    T.DotAsync,
    T.Send,
    shared.Read,
    shared.Write,
    T.BroadcastStore,
    T.BroadcastLoad,
    T.MbarrierArrive,
)


def _ring(op: Operation):
    return op.ring if isinstance(op, shared.Stage) else op.barriers


def _room_before(op: Operation) -> Operation | None:
    op = op.prev_op
    while op is not None and not isinstance(op, (shared.Alloc, T.Barriers)):
        op = op.prev_op
    return op


def _is_ring(op: Operation | None) -> bool:
    """Live as long as the loop that goes round it, so that no other ring may have its bytes."""
    return isinstance(op, T.Barriers) or isinstance(op, shared.Alloc) and op.result.type.stages > 1


def _last_of_group(op: Operation) -> Operation | None:
    kind, op = (
        {T.CpCommit: T.CpAsync, T.DotCommit: T.DotAsync, T.BulkCommit: T.TmaStore}[type(op)],
        op.prev_op,
    )
    while op is not None and not isinstance(op, kind):
        op = op.prev_op
    return op


def _next_use(op: Operation) -> Operation | None:
    op = op.next_op
    while op is not None and not isinstance(op, USES):
        op = op.next_op
    return op


def _waits_before(op: Operation) -> bool:
    op = op.prev_op
    while op is not None and type(op) not in SYNCHRONISING:
        op = op.prev_op
    return isinstance(
        op,
        (
            T.MbarrierWait,
            T.DotWait,
            T.Barrier,
            T.BlockBarrier,
            T.DotAsync,
            shared.Read,
            shared.Write,
            T.BroadcastStore,
            T.BroadcastLoad,
        ),
    )


OPERATORS: dict[str, tuple[Change, Callable[[Operation], bool]]] = {
    "drop": (drop, lambda op: isinstance(op, DROPPED)),
    "twice": (
        twice,
        lambda op: isinstance(op, (T.MbarrierArrive, T.MbarrierExpect, T.MbarrierInit)),
    ),
    "earlier": (
        earlier,
        lambda op: (
            isinstance(op, (T.MbarrierArrive, T.BarrierArrive, T.MbarrierExpect))
            and _waits_before(op)
        ),
    ),
    "later": (
        later,
        lambda op: (
            (
                isinstance(op, T.MbarrierWait)
                or isinstance(op, T.Fence)
                and op.kind.data in ("async_shared", "dot")
            )
            and _next_use(op) is not None
        ),
    ),
    "deeper": (add("pending", 1), lambda op: isinstance(op, (T.DotWait, T.BulkWait, T.CpWait))),
    "count + 1": (add("count", 1), lambda op: isinstance(op, T.MbarrierInit)),
    "count - 1": (
        add("count", -1),
        lambda op: isinstance(op, T.MbarrierInit) and op.count.value.data > 1,
    ),
    "threads + 32": (add("threads", 32), lambda op: isinstance(op, (T.Barrier, T.BarrierArrive))),
    "threads - 32": (add("threads", -32), lambda op: isinstance(op, (T.Barrier, T.BarrierArrive))),
    "bytes + 16": (add("bytes", 16), lambda op: isinstance(op, T.MbarrierExpect)),
    "bytes - 16": (add("bytes", -16), lambda op: isinstance(op, T.MbarrierExpect)),
    "parity": (other_parity, lambda op: isinstance(op, (T.MbarrierWait, T.MbarrierTest))),
    "stage": (
        stage_before,
        lambda op: (
            isinstance(
                op, (T.MbarrierWait, T.MbarrierArrive, T.MbarrierExpect, T.Send, shared.Stage)
            )
            and len(op.index) > 0
            and _ring(op).type.stages > 1
        ),
    ),
    "kind": (other_kind, lambda op: isinstance(op, T.Fence) and op.kind.data != "block"),
    "alias": (alias, lambda op: _is_ring(op) and _is_ring(_room_before(op))),
    "leader alone": (
        leader_alone,
        lambda op: isinstance(op, T.MbarrierArrive) and op.each is not None,
    ),
    "parity stays": (
        parity_stays,
        lambda op: isinstance(op, T.RingNext) and any(True for _ in op.results[1].uses),
    ),
    "first parity": (
        first_parity,
        lambda op: (
            isinstance(op, T.MbarrierWait) and not isinstance(op.parity.owner, tile.Constant)
        ),
    ),
    "stages + 1": (add("stages", 1), lambda op: isinstance(op, T.RingNext)),
    "mask": (other_mask, lambda op: isinstance(op, T.CpAsync) and op.mask is not None),
    "commit early": (
        commit_early,
        lambda op: (
            isinstance(op, (T.CpCommit, T.DotCommit, T.BulkCommit))
            and _last_of_group(op) is not None
        ),
    ),
    "own block": (
        own_block,
        lambda op: isinstance(op, (T.MbarrierArrive, T.TmaLoad)) and op.to is not None,
    ),
}


@dataclass(frozen=True)
class Place:
    """A mutant: the operator, the number of the operation in the text, and a label that stays while
    the program changes elsewhere: "drop: mbarrier_wait empty 2 in producer, 3" is of the third wait
    in the producer for the second ring of mbarriers named empty."""

    label: str
    operator: str
    number: int


def places(module: ModuleOp) -> Iterator[Place]:
    """Every operator at every place."""
    names, seen = _names(module), Counter()
    for number, op in enumerate(module.walk()):
        what = _described(op, names)
        seen[what] += 1
        label = what if seen[what] == 1 else f"{what}, {seen[what]}"
        for name, (_, applies) in OPERATORS.items():
            if applies(op):
                yield Place(f"{name}: {label}", name, number)


def _names(module: ModuleOp) -> dict[Operation, str]:
    """Of each ring and buffer: its name in the text, the later ones of a name with their number."""
    names, seen = {}, Counter()
    for op in module.walk():
        if not isinstance(op, (shared.Alloc, T.Barriers)):
            continue
        base = re.sub(r"_\d+$", "", op.result.name_hint or "") or "unnamed"
        seen[base] += 1
        names[op] = base if seen[base] == 1 else f"{base} {seen[base]}"
    return names


def _described(op: Operation, names: dict[Operation, str]) -> str:
    """An operation by its kind, the ring or buffer that it is about, and its role."""
    role = op.parent_op()
    while role is not None and not isinstance(role, T.Role):
        role = role.parent_op()
    about = op if op in names else next((v.owner for v in op.operands if v.owner in names), None)
    if about is None and isinstance(op, T.RingNext):  # the ring whose stage it turns
        about = min(
            (
                use.operation.barriers.owner
                for use in op.stage.uses
                if isinstance(use.operation, (T.MbarrierWait, T.MbarrierExpect))
            ),
            key=lambda ring: names[ring],
            default=None,
        )
    words = [
        op.name.removeprefix("tile."),
        op.kind.data if isinstance(op, T.Fence) else "",
        names.get(about, ""),
        f"in {role.sym_name.data}" if role is not None else "",
    ]
    return " ".join(filter(None, words))


def mutated(module: ModuleOp, place: Place) -> ModuleOp:
    """A copy with the change."""
    copy = module.clone()
    OPERATORS[place.operator][0](next(islice(copy.walk(), place.number, None)))
    return copy


def mutants(module: ModuleOp) -> Iterator[tuple[str, ModuleOp]]:
    """Labels and changed copies."""
    for place in places(module):
        yield place.label, mutated(module, place)
