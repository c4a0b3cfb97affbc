"""Changes of a level-4 program that the simulator must report: the test of the simulator itself.

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
from typing import Any

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i32, i64
from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.types import BarriersType
from tkc.ir.values import block_of, enclosing, owner_op, previous_of, shared_type, type_of
from tkc.sim import rank_mutants
from tkc.sim.blocks import addresses_of

Change = Callable[[Any], None]  # of an operation of the classes that it applies to
# operations that name an mbarrier, or a stage, of a ring
OfRing = (
    threads.MbarrierWait
    | threads.MbarrierArrive
    | threads.MbarrierExpect
    | threads.Send
    | shared.Stage
)
Commit = threads.CpCommit | threads.DotCommit | threads.BulkCommit


def drop(op: Operation) -> None:
    op.detach()
    op.erase()


def twice(op: Operation) -> None:
    block_of(op).insert_op_after(op.clone(), op)


def earlier(op: Operation) -> None:
    """Before the nearest synchronising operation above it in its block."""
    before = previous_of(op)
    while type(before) not in SYNCHRONISING:
        before = previous_of(before)
    op.detach()
    block_of(before).insert_op_before(op, before)


def later(op: Operation) -> None:
    """Behind the next operation of its block that it protects."""
    after = _next_use(op)
    assert after is not None, "there is one where this change applies"
    op.detach()
    block_of(after).insert_op_after(op, after)


def add(name: str, n: int) -> Change:
    """Adds a number to a property that is one."""

    def change(op: Operation) -> None:
        old = op.properties[name]
        assert isinstance(old, IntegerAttr)
        op.properties[name] = IntegerAttr(old.value.data + n, i64)

    return change


def computed(op: Operation, value: SSAValue, *steps: tuple[str, int]) -> None:
    """An operand replaced by functions of it and constants."""
    at, result = list(op.operands).index(value), value
    for function, n in steps:
        constant = tile.Constant(n, i32)
        changed = CLASSES[function](result, constant.result)
        block_of(op).insert_ops_before([constant, changed], op)
        result = changed.result
    op.operands[at] = result


def other_parity(op: threads.MbarrierWait | threads.MbarrierTest) -> None:
    computed(op, op.parity, ("xor", 1))


def stage_before(op: OfRing) -> None:
    stages = _stages(op)
    computed(op, op.index[0], ("add", stages - 1), ("mod", stages))


def other_kind(op: Operation) -> None:
    op.properties["kind"] = tile.StringAttr("block")


def own_block(op: threads.MbarrierArrive | threads.TmaLoad) -> None:
    """To this block of the cluster alone."""
    assert op.to is not None, "it goes to several blocks"
    index = list(op.operands).index(op.to)
    rank, one = threads.Identity("cluster_rank"), tile.Constant(1, i32)
    mask = CLASSES["shl"](one.result, rank.result)
    block_of(op).insert_ops_before([rank, one, mask], op)
    op.operands[index] = mask.result


def alias(op: Operation) -> None:
    """A ring on the bytes of the ring before it."""
    kernel, before = enclosing(op, tile.Kernel), _memory_before(op)
    assert isinstance(kernel, tile.Kernel) and before is not None
    addresses, _ = addresses_of(kernel)
    for each, at in addresses.items():
        each.properties["offset"] = IntegerAttr(at, i64)  # everything else stays where it is
    op.properties["offset"] = IntegerAttr(addresses[before], i64)


def leader_alone(op: Operation) -> None:
    """The first warp arrives for all: as often as there are warps, without waiting for others."""
    role = enclosing(op, T.Role, tile.Kernel)
    del op.properties["each"]
    if isinstance(role, T.Role):
        warps = role.warps.value.data
    else:
        assert isinstance(role, tile.Kernel)
        warps = role.warps
    for _ in range(warps - 1):
        twice(op)


def parity_stays(op: threads.RingNext) -> None:
    op.next_parity.replace_all_uses_with(op.parity)


def first_parity(op: threads.MbarrierWait) -> None:
    computed(op, op.parity, ("and", 0))


def other_mask(op: threads.CpAsync) -> None:
    """Copies what is masked off, and nothing else."""
    assert op.mask is not None, "it has a mask"
    inverted = CLASSES["not"](op.mask)
    block_of(op).insert_op_before(inverted, op)
    op.operands[list(op.operands).index(op.mask)] = inverted.results[0]


def commit_early(op: Commit) -> None:
    """Before the last operation of its group."""
    last = _last_of_group(op)
    assert last is not None, "its group is not empty"
    op.detach()
    block_of(last).insert_op_before(op, last)


T = threads
# barriers, waits, arrivals, commits, and the copies that they count
SYNCHRONIZATION = (
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
    T.TmaLoad,
    T.TmaStore,
    T.Send,
)
ACCESSES = (shared.Read, shared.Write, T.BroadcastStore, T.BroadcastLoad)
SYNCHRONISING = (*SYNCHRONIZATION, T.DotWait, T.CpAsync, T.DotAsync, *ACCESSES)
DROPPED = (*SYNCHRONIZATION, T.MbarrierInit)
# what a wait or a fence protects
USES = (T.TmaLoad, T.TmaStore, T.CpAsync, T.DotAsync, T.Send, *ACCESSES, T.MbarrierArrive)
# what an arrival or a barrier follows that must not come before it
PROTECTED = (T.MbarrierWait, T.DotWait, T.Barrier, T.BlockBarrier, T.DotAsync, *ACCESSES)


def _stages(op: OfRing) -> int:
    """Of the ring that an operation names."""
    if isinstance(op, shared.Stage):
        return shared_type(op.ring).stages
    return type_of(op.barriers, BarriersType).stages


def _before(op: Operation, kinds: tuple[type[Operation], ...]) -> Operation | None:
    """The nearest operation of these classes above another in its block."""
    found = op.prev_op
    while found is not None and not isinstance(found, kinds):
        found = found.prev_op
    return found


def _memory_before(op: Operation) -> Operation | None:
    return _before(op, (shared.Alloc, T.Barriers))


def _is_ring(op: Operation | None) -> bool:
    """What is live as long as the loop that uses it: no other ring may have its bytes."""
    return isinstance(op, T.Barriers) or isinstance(op, shared.Alloc) and op.result.type.stages > 1


def _last_of_group(op: Commit) -> Operation | None:
    kinds: dict[type[Operation], type[Operation]] = {
        T.CpCommit: T.CpAsync,
        T.DotCommit: T.DotAsync,
        T.BulkCommit: T.TmaStore,
    }
    return _before(op, (kinds[type(op)],))


def _next_use(op: Operation) -> Operation | None:
    found = op.next_op
    while found is not None and not isinstance(found, USES):
        found = found.next_op
    return found


def _waits_before(op: Operation) -> bool:
    return isinstance(_before(op, SYNCHRONISING), PROTECTED)


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
                and op.kind.data in ("async_shared", "async_global", "dot")
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
            and _stages(op) > 1
        ),
    ),
    "kind": (other_kind, lambda op: isinstance(op, T.Fence) and op.kind.data != "block"),
    "alias": (alias, lambda op: _is_ring(op) and _is_ring(_memory_before(op))),
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
    **rank_mutants.OPERATORS,
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
    names = _names(module)
    seen: Counter[str] = Counter()
    for number, op in enumerate(module.walk()):
        what = _described(op, names)
        seen[what] += 1
        label = what if seen[what] == 1 else f"{what}, {seen[what]}"
        for name, (_, applies) in OPERATORS.items():
            if applies(op):
                yield Place(f"{name}: {label}", name, number)


def _names(module: ModuleOp) -> dict[Operation, str]:
    """Of each ring and buffer: its name in the text, the later ones of a name with their number."""
    names: dict[Operation, str] = {}
    seen: Counter[str] = Counter()
    for op in module.walk():
        if not isinstance(op, (shared.Alloc, T.Barriers)):
            continue
        base = re.sub(r"_\d+$", "", op.result.name_hint or "") or "unnamed"
        seen[base] += 1
        names[op] = base if seen[base] == 1 else f"{base} {seen[base]}"
    return names


def _described(op: Operation, names: dict[Operation, str]) -> str:
    """An operation by its kind, the ring or buffer that it is about, and its role."""
    role, about = enclosing(op, T.Role), _subject(op, names)
    words = [
        op.name.removeprefix("tile."),
        op.kind.data if isinstance(op, T.Fence) else "",
        names[about] if about is not None else "",
        f"in {role.sym_name.data}" if isinstance(role, T.Role) else "",
    ]
    return " ".join(filter(None, words))


def _subject(op: Operation, names: dict[Operation, str]) -> Operation | None:
    """The ring or buffer that an operation is about."""
    if op in names:
        return op
    for v in op.operands:
        if isinstance(v.owner, Operation) and v.owner in names:
            return v.owner
    if not isinstance(op, T.RingNext):
        return None
    # the ring whose stage it counts
    users = [use.operation for use in op.stage.uses]
    rings = [
        owner_op(user.barriers)
        for user in users
        if isinstance(user, (T.MbarrierWait, T.MbarrierExpect))
    ]
    return min(rings, key=lambda ring: names[ring], default=None)


def mutated(module: ModuleOp, place: Place) -> ModuleOp:
    """A copy with the change."""
    copy = module.clone()
    OPERATORS[place.operator][0](next(islice(copy.walk(), place.number, None)))
    return copy


def mutants(module: ModuleOp) -> Iterator[tuple[str, ModuleOp]]:
    """Labels and changed copies."""
    for place in places(module):
        yield place.label, mutated(module, place)
