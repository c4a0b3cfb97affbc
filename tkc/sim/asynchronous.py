"""Level 4: what moves and multiplies: TMA, cp.async, shared memory and registers, asynchronous
dots.

A copy is checked against the clocks when it is issued, and happens (`Copy.act`) when the scheduler
says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from operator import mul
from typing import Any

import numpy as np
from xdsl.ir import Operation, SSAValue

from tkc.ir import shared, threads, tile
from tkc.ir.fragments import matrix_access
from tkc.ir.host_values import argument_number
from tkc.ir.layout import Layout, LayoutError
from tkc.ir.shared_layout import SharedLayout, conflicts_of, exchange_of
from tkc.ir.target import ROW_ALIGNMENT
from tkc.ir.types import MapType, SharedType, TileType, bits
from tkc.ir.values import defining_op, tile_type, type_of
from tkc.sim import level0
from tkc.sim.blocks import Agent, BlockState, Buffer, Dot, Groups
from tkc.sim.clocks import ASYNC, GENERIC, GLOBAL, Event
from tkc.sim.engine import Copy, Steps, Wait, all_done
from tkc.sim.errors import SimulationError
from tkc.sim.global_order import (
    ACQUIRES,
    READS,
    RELEASES,
    UPDATES,
    WRITES,
    GlobalAccess,
    semantics_of,
)
from tkc.sim.instance import Instance
from tkc.sim.level0 import Array, dtype_of, rounded
from tkc.sim.memory import ALL_WARPS, cells_of, elements_of
from tkc.sim.products import tf32
from tkc.sim.report import Violation
from tkc.sim.synchronization import before_release

SCALAR_LAYOUT = SharedLayout((1,), 32)
SCALAR_CELLS = np.arange(1)  # of a scalar at the start of a buffer
Box = tuple[np.ndarray, np.ndarray, SharedLayout]


# --------------------------------------------------------------------------------------------------
def box(
    m: Instance,
    op: threads.TmaLoad | threads.TmaStore,
    memory: SharedLayout,
    further: int = 0,
) -> Box:
    """Global addresses of a box, which of them exist, and how it lies in shared memory. further:
    along the axis that warpgroups share.
    """
    source, t = m[op.map].array, m[op.map].type
    check_described(source, _is_argument(op.map))
    lands = landing(t, memory)
    if prod(memory.shape) != t.size:
        raise Violation(
            "bounds", f"a box of {list(t.extents)} and a buffer of {list(memory.shape)}"
        )
    starts = [m.offset(o) for o in op.offsets]
    pitches = tuple(s * source.dtype.itemsize for s in source.strides)
    if isinstance(op, threads.TmaStore) and op.axis is not None:
        starts[op.axis.value.data] += further
    if t.panelled and t.extents[-1] > t.panel and starts[-1] % t.panel:
        raise Violation(
            "alignment",
            f"a box of a map with panels starts at a multiple of {t.panel} columns, not at"
            f" {starts[-1]}",
        )
    if starts[-1] * source.dtype.itemsize % ROW_ALIGNMENT:
        raise Violation(
            "alignment",
            f"a box begins at a multiple of {ROW_ALIGNMENT} bytes of a row, not at element"
            f" {starts[-1]}: the accelerator raises an illegal instruction",
        )
    if isinstance(op, threads.TmaStore) and min(starts) < 0:
        raise Violation(
            "bounds",
            f"a box is written to {starts}, before its array: the accelerator raises an illegal"
            " instruction",
        )
    at = relative(t.extents, pitches) + (source.pointer + sum(map(mul, starts, pitches)))
    ends = list(source.shape)
    if isinstance(op, threads.TmaStore):  # to the end of 16 bytes in which a row ends
        unit = ROW_ALIGNMENT // source.dtype.itemsize
        ends[-1] = -(-ends[-1] // unit) * unit
    inside = [
        (min(max(-start, 0), n), max(min(bound - start, n), 0))
        for start, n, bound in zip(starts, t.extents, ends, strict=False)
    ]
    return at.reshape(lands.shape), existing(t.extents, tuple(inside)).reshape(lands.shape), lands


def _is_argument(map: SSAValue) -> bool:
    """Whether a map is of an argument of the kernel, of which the plan knows what a map takes; for
    an array that the kernel makes a launch can choose another plan.
    """
    made = defining_op(map, threads.TensorMap)
    return made is not None and argument_number(made.operands[0]) is not None


def check_described(array: Array, is_argument: bool) -> None:
    """Raises Violation where no tensor map can describe an array. Of an empty one all copies are
    zeros here; the specialization of a launch with one asks for no map.
    """
    sizes = zip(array.strides, array.shape, strict=True)
    if is_argument and any(s <= 0 and n > 1 for s, n in sizes):
        raise Violation(
            "alignment",
            f"a tensor map takes arrays with positive strides, not {array.strides}",
        )
    size = array.dtype.itemsize
    rows = zip(array.strides[:-1], array.shape, strict=False)
    aligned = array.pointer % 16 == 0 and all(s * size % 16 == 0 for s, n in rows if n > 1)
    if not aligned or array.shape[-1] > 1 and array.strides[-1] != 1:
        raise Violation(
            "alignment",
            "a tensor map takes arrays whose rows are dense and start at multiples of 16 bytes,"
            f" not strides {array.strides}",
        )


@lru_cache(1024)
def landing(t: MapType, memory: SharedLayout) -> SharedLayout:
    """How a box lies in shared memory: as its map says; where it is wider than a panel, as the
    buffer, for it takes one copy a panel.
    """
    slim = [n for i, n in enumerate(t.extents) if any(e > 1 for e in t.extents[: i + 1])] or [1]
    lands = SharedLayout(tuple(slim), bits(t.element), t.swizzle)
    return (
        memory
        if lands.num_panels > 1 and not t.panelled and len(slim) == len(memory.shape)
        else lands
    )


@lru_cache(256)
def relative(extents: tuple[int, ...], pitches: tuple[int, ...]) -> np.ndarray:
    """Bytes from the first element of a box to each."""
    return sum(
        (
            axis * pitch
            for axis, pitch in zip(
                np.ix_(*(np.arange(n, dtype=np.int64) for n in extents)), pitches, strict=False
            )
        ),
        np.zeros(extents, np.int64),
    )


@lru_cache(256)
def existing(extents: tuple[int, ...], inside: tuple[tuple[int, int], ...]) -> np.ndarray:
    """Which elements of a box exist: from, to along each axis."""
    live = np.zeros(extents, bool)
    live[tuple(slice(*span) for span in inside)] = True
    live.flags.writeable = False
    return live


def check_aligned(buffer: Buffer) -> None:
    """Raises Violation where the tensor memory accelerator cannot copy to or from a buffer."""
    need = max(128, buffer.layout.atom)
    if buffer.base % (need if buffer.layout.swizzle > 16 else 128):
        raise Violation(
            "alignment",
            f"TMA needs shared memory at a multiple of {need} bytes, not at {buffer.base}",
        )


def tma_load(m: Instance, op: threads.TmaLoad) -> Steps:
    buffer, agent, clocks = m[op.buffer], m.leader, m.block.cluster.clocks
    address, targets = m.address(op.barriers, op.index), m.targets(op.to)
    pointers, live, lands = box(m, op, buffer.layout)
    check_aligned(buffer)
    yield None
    event = clocks.start(agent.knows, ASYNC, op, agent.name)
    cells = cells_of(lands, None, ALL_WARPS, True)
    left = []  # blocks in which the box has not arrived
    fetched = clocks.start(agent.knows, GLOBAL, op, agent.name)
    m.ordered(GlobalAccess(READS, fetched, op, pointers, live))
    for rank in targets:
        block = m.block.cluster.at(rank)
        m.mbarrier(address, agent, op, rank, far=True)
        block.memory.write(buffer.base, cells, event, op)
        block.memory.poison(buffer.base, lands)
        block.remote_accesses.append((event.index, event.epoch, op))
        left.append(block)

    def land() -> None:  # each block's bytes arrive on their own
        block = left.pop(m.launch.scheduler.random.randrange(len(left)))
        if block.over:
            raise Violation(
                "pending at exit", f"a copy arrives in block {block.rank} after its end", op
            )
        source = m[op.map]
        values = m.memory.load(pointers, live, dtype_of(source.type.element))
        block.memory.store(buffer.base, lands, tf32(values) if source.tf32 else values)
        known = np.maximum(clocks.end(event), clocks.end(fetched))
        block.mbarriers[address].deliver(known, source.type.bytes, op)

    for _ in targets:
        m.launch.scheduler.start(Copy(land, op))
    return ()


REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


def tma_store(m: Instance, op: threads.TmaStore) -> Steps:
    whole = m[op.buffer]
    if op.each is None or op.axis is None:
        yield from store_box(m, op, m.leader, whole, box(m, op, whole.layout))
        return ()
    further = m[op.map].type.extents[op.axis.value.data]
    shares: list[tuple[Buffer, Box]] = []
    for group in range(m.groups):
        memory, start = op.share(whole.layout, group)
        t = SharedType(1, memory.shape, whole.type.element, memory)
        share = Buffer(whole.memory, whole.base + start, t)
        shares.append((share, box(m, op, memory, group * further)))

    def action(agent: Agent) -> Steps:
        if agent.first:
            yield from store_box(m, op, agent, *shares[agent.group])

    yield from m.both(op, action)
    return ()


def store_box(
    m: Instance, op: threads.TmaStore, agent: Agent, buffer: Buffer, places: Box
) -> Steps:
    """A buffer to a box of an array."""
    kind, (pointers, live, lands) = op.reduce.data if op.reduce else None, places
    element, memory = type_of(op.map, MapType).element, buffer.memory
    dtype = dtype_of(element)
    check_aligned(buffer)
    yield None
    clocks = m.block.cluster.clocks
    event = clocks.start(agent.knows, ASYNC, op, agent.name)
    written = clocks.start(agent.knows, GLOBAL, op, agent.name)
    memory.read(buffer.base, cells_of(lands, None, ALL_WARPS, False), event, op)

    def changed() -> np.ndarray:
        new, old = memory.load(buffer.base, lands, dtype), m.memory.load(pointers, live, dtype)
        return (new != old).reshape(-1)

    how = UPDATES if kind else WRITES
    m.ordered(GlobalAccess(how, written, op, pointers, live, changed=changed))

    def act() -> None:
        values = memory.load(buffer.base, lands, dtype)
        if kind:
            old = level0.widened(m.memory.load(pointers, live, dtype))
            values = rounded(REDUCTIONS[kind](old, level0.widened(values)), element)
        m.memory.store(pointers, live, values)

    agent.bulk.open.append((m.launch.scheduler.start(Copy(act, op)), event, written))


def groups_of(
    agent: Agent, op: threads.BulkCommit | threads.CpCommit | threads.DotCommit
) -> Groups[Any]:
    """What an operation commits of what an agent has issued."""
    if isinstance(op, threads.BulkCommit):
        return agent.bulk
    return agent.copies if isinstance(op, threads.CpCommit) else agent.dots


def commit(m: Instance, op: threads.BulkCommit | threads.CpCommit | threads.DotCommit) -> Steps:
    def action(agent: Agent) -> Steps:
        groups_of(agent, op).commit()
        yield None

    if isinstance(op, threads.DotCommit):
        m.dot_fence = False
    alone = isinstance(op, threads.BulkCommit) and op.each is None
    yield from action(m.leader) if alone else m.both(op, action)
    return ()


def bulk_wait(m: Instance, op: threads.BulkWait) -> Steps:
    pending = op.pending.value.data

    def action(agent: Agent) -> Steps:
        waited = agent.bulk.beyond(pending)
        yield Wait(all_done(copy for copy, _, _ in waited), lambda: "its bulk stores", op)
        clocks = m.block.cluster.clocks
        for _, event, _ in waited:
            agent.learn(clocks.end(event))
        agent.unwritten.extend([w for _, _, w in group] for group in agent.bulk.drop(pending))
        if op.read is None:
            later = max(0, pending - len(agent.bulk.closed))
            while len(agent.unwritten) > later:
                for written in agent.unwritten.popleft():
                    agent.learn(clocks.end(written))

    yield from m.both(op, action) if op.each is not None else action(m.leader)
    return ()


def cp_async(m: Instance, op: threads.CpAsync) -> Steps:
    buffer, (pointers, live) = m[op.buffer], level0.block(m, op)
    layout = buffer.layout
    held = op.layout_among(m.warps, layout)
    other = 0 if op.other is None else m[op.other]
    mine = (
        elements_of(held, ALL_WARPS, False, m.block.rank)
        if op.threads is not None and layout.spread > 1
        else None
    )

    def act() -> None:
        values = m.memory.load(pointers, live, dtype_of(buffer.type), other)
        buffer.memory.store(buffer.base, layout, values.reshape(layout.shape), mine)

    copy = Copy(act, op)

    def action(agent: Agent) -> Steps:
        yield None
        event = m.block.cluster.clocks.start(agent.knows, GENERIC, op, agent.name)
        cells = cells_of(layout, held, agent.part, True, m.block.rank)
        buffer.memory.write(buffer.base, cells, event, op)
        own = elements_of(held, agent.part, True, m.block.rank)
        there = (
            live if own is None else live & np.isin(np.arange(live.size), own).reshape(live.shape)
        )
        m.ordered(GlobalAccess(READS, event, op, pointers, there))
        if agent is m.leader:
            buffer.memory.poison(buffer.base, layout)
            m.launch.scheduler.start(copy)
        agent.copies.open.append((copy, event))

    yield from m.both(op, action)
    return ()


def cp_wait(m: Instance, op: threads.CpWait) -> Steps:
    pending = op.pending.value.data

    def action(agent: Agent) -> Steps:
        waited = agent.copies.beyond(pending)
        yield Wait(all_done(copy for copy, _ in waited), lambda: "its copies", op)
        for _, event in waited:
            agent.knows[GENERIC] = np.maximum(
                agent.knows[GENERIC], m.block.cluster.clocks.end(event)[GENERIC]
            )
        agent.copies.drop(pending)

    yield from m.both(op, action)
    return ()


# --------------------------------------------------------------------------------------------------
Accessing = (
    tile.Load | tile.LoadPointers | tile.Store | tile.StorePointers | tile.Atomic | tile.AtomicBlock
)


def reads_global(m: Instance, op: tile.Load | tile.LoadPointers) -> Steps:
    return global_access(m, op, READS, op.result, lambda: level0.load(m, op))


def stores_block(m: Instance, op: tile.Store) -> Steps:
    return global_access(m, op, WRITES, op.value, lambda: store(m, op))


def stores_pointers(m: Instance, op: tile.StorePointers) -> Steps:
    return global_access(m, op, WRITES, op.value, lambda: level0.store(m, op))


def updates_pointers(m: Instance, op: tile.Atomic) -> Steps:
    return global_access(m, op, UPDATES, op.value, lambda: level0.atomic(m, op))


def updates_block(m: Instance, op: tile.AtomicBlock) -> Steps:
    return global_access(m, op, UPDATES, op.value, lambda: level0.atomic_block(m, op))


def global_access(
    m: Instance, op: Accessing, kind: str, value: SSAValue, rule: Callable[[], Any]
) -> Steps:
    """Each warp accesses those elements that it holds of a value, which is loaded or stored; all of
    them move when the leader gets there, by a rule of level 0.

    A load or store with semantics is atomic. Of a scalar that others write meanwhile one thread
    does the load or the update, and tells the others; before a release all warps meet.
    """
    t = value.type
    (pointers, live), reads = level0.places_of(m, op), kind == READS
    held = t.register_layout if isinstance(t, TileType) else None
    how = UPDATES if op.properties.get("semantics") is not None else kind
    alone = how == UPDATES and not isinstance(t, TileType)  # one thread does it
    # its result, which all then have, or what it acquires
    given = alone and (
        isinstance(op, tile.LoadPointers)
        or isinstance(op, tile.Atomic)
        and (
            op.result is not None
            and op.result.first_use is not None
            or semantics_of(op) in ACQUIRES
        )
    )
    out: list[Any] = []
    told: list[np.ndarray] = []  # what the leader knew when it had its result
    differs: list[np.ndarray] = []  # what the leader's operation changes

    def changed() -> np.ndarray:
        return differs[0]

    def differing() -> np.ndarray:
        new = np.broadcast_to(level0.stored(m, value), live.shape)
        try:
            old = m.memory.load(pointers, live, new.dtype)
        except SimulationError:  # the store will complain
            return np.ones(live.size, bool)
        return (bytes_of(old, live.size) != bytes_of(new, live.size)).any(1)

    def action(agent: Agent) -> Steps:
        yield None
        first = agent is m.leader
        own = elements_of(held, agent.part, not reads or alone, m.block.rank, 0)
        event, check = agent.access(op), changed if how == WRITES else None
        if first and how == WRITES and m.launch.options.hazards:
            differs.append(differing())
        m.ordered(GlobalAccess(how, event, op, pointers, live, own, check, agent))
        if first:
            out.append(rule())
            told.append(agent.knows[GENERIC].copy())
            agent.tick()
        elif given:
            np.maximum(agent.knows[GENERIC], told[0], out=agent.knows[GENERIC])

    if how == UPDATES and semantics_of(op) in RELEASES and "alone" not in op.attributes:
        yield from before_release(m, op)
    yield from m.both(op, action)
    return out[0]


def bytes_of(x: np.ndarray, count: int) -> np.ndarray:
    """[elements, bytes]"""
    return np.ascontiguousarray(x).reshape(count, 1).view(np.uint8)


def store(m: Instance, op: tile.Store) -> None:
    """What this block holds of a tile that a cluster deals out."""
    (pointers, live), t = level0.block(m, op), op.value.type
    held = t.register_layout if isinstance(t, TileType) else None
    if held is not None and held.num_blocks > 1:
        mine = np.zeros(live.size, bool)
        mine[elements_of(held, ALL_WARPS, True, m.block.rank, 0)] = True
        live = live & mine.reshape(live.shape)
    m.memory.store(pointers, live, np.broadcast_to(level0.stored(m, op.value), live.shape))


# --------------------------------------------------------------------------------------------------
def check_conflicts(
    m: Instance, op: shared.Read | shared.Write, buffer: Buffer, held: Layout | None
) -> None:
    """Raises Violation where the bank conflicts that the compiler claims of an access are not those
    of any way to make it: by matrices, or by vectors of one width.
    """
    if op.conflicts is None or held is None or op in m.launch.checked_conflicts:
        return
    m.launch.checked_conflicts.add(op)
    claimed = op.conflicts.value.data
    found = sorted(possible_conflicts(held, buffer.layout, isinstance(op, shared.Write)))
    if found and claimed not in found:
        raise Violation(
            "conflicts",
            f"{claimed}-way bank conflicts are claimed of an access of {buffer.layout} that has"
            f" {' or '.join(map(str, found))}",
            op,
            (m.leader.name,),
        )


@lru_cache(1024)
def possible_conflicts(held: Layout, memory: SharedLayout, store: bool = False) -> set[int]:
    """Degrees of bank conflict with which a tile in this layout can be moved: by matrices, or by
    vectors, of which some lanes may store theirs in another order.
    """
    if held.shape != memory.shape:
        return set()
    plans = [matrix_access(held, memory, memory.bits, how) for how in {False, store}]
    degrees = {plan.conflicts for plan in plans if plan is not None}
    for vector in (1, 2, 4, 8, 16):
        if vector * memory.itemsize > 16 or held.num_registers % vector:
            continue
        try:
            degrees.add(conflicts_of(held, memory, vector))
            if store and memory.bits == 32 and exchange_of(held, memory, vector) is not None:
                degrees.add(1)
        except LayoutError:
            continue
    return degrees


def read(m: Instance, op: shared.Read) -> Steps:
    buffer, held = m[op.buffer], op.result.type.register_layout
    check_conflicts(m, op, buffer, held)

    def action(agent: Agent) -> Steps:
        yield None
        m.buffer_access(agent, buffer, agent.access(op), op, held)

    if not m.launch.options.hazards:
        # a barrier may be missing here, while the leader reads what its other warps write
        yield Wait(lambda: m.idle, lambda: "its other warps", op)
    yield from m.both(op, action)
    values = buffer.memory.load(buffer.base, buffer.layout, dtype_of(buffer.type))
    return values.reshape(op.result.type.extents)


def write(m: Instance, op: shared.Write) -> Steps:
    buffer, value, held = m[op.buffer], np.asarray(m[op.value]), tile_type(op.value).register_layout
    check_conflicts(m, op, buffer, held)

    def action(agent: Agent) -> Steps:
        yield None
        event = agent.access(op)
        for block in m.block.cluster.blocks if op.everywhere is not None else [m.block]:
            check_present(m, agent, block, event, op)
            there = replace(buffer, memory=block.memory)
            m.buffer_access(agent, there, event, op, held, write=True)
            if agent.first:
                values = value.reshape(there.layout.shape)
                there.memory.store(there.base, there.layout, values, m.share(agent, held))

    yield from m.both(op, action)
    return ()


def check_present(
    m: Instance, agent: Agent, block: BlockState, event: Event, op: Operation
) -> None:
    """Raises Violation where a block that an agent writes to may not have begun, or has ended."""
    if block.over:
        raise Violation(
            "pending at exit",
            f"{agent.name} writes to shared memory of block {block.number}, which has ended",
            op,
            (agent.name,),
        )
    hazards = m.launch.options.hazards
    if hazards and block is not m.block and event.view[block.agents[0].index] == 0:
        raise Violation(
            "not begun",
            f"{agent.name} writes to shared memory of block {block.number}, which may not"
            " have begun: missing is a barrier of the cluster before it",
            op,
            (agent.name,),
        )


def send(m: Instance, op: threads.Send) -> Steps:
    """Registers to every block, or to one, whose barrier counts what arrives."""
    buffer, value, held = m[op.buffer], np.asarray(m[op.value]), tile_type(op.value).register_layout
    address, cluster = m.address(op.barriers, op.index), m.block.cluster

    def action(agent: Agent) -> Steps:
        yield None
        event = cluster.clocks.start(agent.knows, GENERIC, op, agent.name)
        # of what goes to all blocks, the first one that holds an element sends it
        before = 0 if op.to is None else None
        mine = elements_of(held, agent.part, True, m.block.rank, before)
        size = (value.size if mine is None else mine.size) * buffer.layout.itemsize
        if not size:
            return

        def land(block: BlockState) -> None:
            if block.over:
                raise Violation(
                    "pending at exit",
                    f"what {agent.name} sends arrives in block {block.rank} after its end",
                    op,
                )
            values = value.reshape(buffer.layout.shape)
            block.memory.store(buffer.base, buffer.layout, values, mine)
            block.mbarriers[address].deliver(cluster.clocks.end(event), size, op)

        only = None if op.to is None else int(m[op.to])
        for block in cluster.blocks if only is None else [cluster.blocks[only]]:
            m.mbarrier(address, agent, op, block.rank)
            there = replace(buffer, memory=block.memory)
            m.buffer_access(agent, there, event, op, held, write=True)
            block.remote_accesses.append((event.index, event.epoch, op))
            m.launch.scheduler.start(Copy(partial(land, block), op))
        agent.tick()

    yield from m.both(op, action)
    return ()


def broadcast_store(m: Instance, op: threads.BroadcastStore) -> Steps:
    box, value = m[op.box], m[op.value]
    yield None
    m.block.memory.write(box.base, SCALAR_CELLS, m.leader.access(op), op)
    box.memory.store(box.base, SCALAR_LAYOUT, np.asarray([value], np.int32))
    return ()


def broadcast_load(m: Instance, op: threads.BroadcastLoad) -> Steps:
    box = m[op.box]

    def action(agent: Agent) -> Steps:
        yield None
        box.memory.read(box.base, SCALAR_CELLS, agent.access(op), op)

    yield from m.both(op, action)
    return box.memory.load(box.base, SCALAR_LAYOUT, np.dtype(np.int32))[0]


def stage(m: Instance, op: shared.Stage, ring: Buffer, *_: Any) -> Buffer:
    at = m.offset(op.index[0]) if op.index else 0
    if not 0 <= at < ring.type.stages:
        raise Violation("bounds", f"stage {at} of a ring of {ring.type.stages}")
    return Buffer(ring.memory, ring.base + at * ring.type.stage_bytes, op.result.type)


def shared_slice(m: Instance, op: shared.SharedSlice, buffer: Buffer, *_: Any) -> Buffer:
    starts, extents = [m.offset(o) for o in op.offsets], op.result.type.extents
    taken = extents if len(extents) == len(starts) else [1] * len(starts)
    try:
        start = buffer.layout.slice(starts, taken)[1]
    except LayoutError as e:
        raise Violation("bounds", str(e)) from None
    return Buffer(buffer.memory, buffer.base + start, op.result.type)


# --------------------------------------------------------------------------------------------------
def dot_async(m: Instance, op: threads.DotAsync) -> Steps:
    a, b, acc = m[op.a], m[op.b], m[op.acc] if op.acc is not None else None
    keep, result = op.keep is None or bool(m[op.keep]), op.result.type.tile
    agents, before, clocks = len(m.agents), m.last_dot, m.block.cluster.clocks
    m.last_dot = dot = Dot([clocks.matrix() for _ in range(m.groups)])

    def act() -> None:
        old = acc.value if isinstance(acc, Dot) else acc
        if not m.launch.options.products:
            dot.value = np.zeros(result.extents, dtype_of(result)) if old is None else old
            return
        new = level0.product(operand_values(a), operand_values(b), "tf32")
        if old is not None and keep:
            new = level0.accumulated(old) + new
        dot.value = rounded(new, result)

    copy = Copy(act, op, lambda: dot.issued == agents and (before is None or before.done))
    dot.copy = copy

    def action(agent: Agent) -> Steps:
        yield None
        if agent is m.leader and not m.dot_fence:
            raise Violation(
                "missing dot fence",
                f"{agent.name} starts a group of asynchronous dots without a fence dot",
                op,
                (agent.name,),
            )
        event = clocks.start(agent.knows, ASYNC, op, agent.name)
        for operand in (a, b):
            if isinstance(operand, Buffer):
                m.buffer_access(agent, operand, event, op, whole=True)
        knows = dot.knows[agent.group]
        np.maximum(knows, agent.knows, out=knows)
        np.maximum(knows, clocks.end(event), out=knows)
        agent.tick()
        agent.dots.open.append(dot)
        dot.issued += 1
        if agent is m.leader:
            m.launch.scheduler.start(copy)

    yield from m.both(op, action)
    if op.acc is not None and isinstance(op.acc.type, TileType):
        m.adding[op.acc] = dot
    return dot


def operand_values(operand: Buffer | np.ndarray) -> np.ndarray:
    """What a dot multiplies: a buffer's contents, or a tile."""
    if not isinstance(operand, Buffer):
        return operand
    return operand.memory.load(operand.base, operand.layout, dtype_of(operand.type))


def dot_wait(m: Instance, op: threads.DotWait) -> Steps:
    pending = op.pending.value.data

    def action(agent: Agent) -> Steps:
        waited = agent.dots.beyond(pending)
        yield Wait(all_done(waited), lambda: "its dots", op)
        for d in waited:
            agent.learn(d.knows[agent.group])
            d.waited = d.waited or agent is m.leader
        agent.dots.drop(pending)

    yield from m.both(op, action)
    out = []
    for operand, result in zip(op.args, op.results, strict=True):
        d = m[operand]
        if isinstance(result.type, TileType) and not d.waited:
            raise Violation(
                "not waited",
                f"{m.name} reads an accumulator whose dots are among the {pending} groups in"
                " flight, or not committed",
                op,
                (m.leader.name,),
            )
        out.append(d.value if isinstance(result.type, TileType) else d)
    return tuple(out)
