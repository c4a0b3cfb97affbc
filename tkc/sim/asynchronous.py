"""Level 4: what moves and multiplies: TMA, cp.async, shared memory and registers, asynchronous
dots.

A copy is checked against the clocks when it is issued, and happens (`Copy.act`) when the scheduler
says so.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import lru_cache
from math import prod
from operator import mul

import numpy as np

from tkc.ir import shared, tile
from tkc.ir.fragments import matrix_access
from tkc.ir.layout import Layout, LayoutError
from tkc.ir.shared_layout import SharedLayout, conflicts_of
from tkc.ir.types import MapType, SharedType, TileType, bits
from tkc.sim import level0
from tkc.sim.clocks import ASYNC, GENERIC
from tkc.sim.engine import Copy, Wait
from tkc.sim.global_order import READS, UPDATES, WRITES
from tkc.sim.instance import WARP, Agent, Buffer, Dot
from tkc.sim.level0 import dtype_of, rounded
from tkc.sim.memory import ALL, Part, cells_of, elements_of
from tkc.sim.report import Violation

# a scalar at the start of a buffer, and its cells
SCALAR, FIRST = (
    SharedLayout((1,), 32),
    np.arange(1),
)


# --------------------------------------------------------------------------------------------------
def box(
    m, op, memory: SharedLayout, further: int = 0
) -> tuple[np.ndarray, np.ndarray, SharedLayout]:
    """Global addresses of a box, which of them exist, and how it lies in shared memory. further:
    along the axis that warpgroups share.
    """
    source, t = m[op.map].array, m[op.map].type
    if (
        source.pointer * 1 % 16
        or any(
            s * source.dtype.itemsize % 16
            for s, n in zip(source.strides[:-1], source.shape, strict=False)
            if n > 1
        )
        or source.shape[-1] > 1
        and source.strides[-1] != 1
    ):
        raise Violation(
            "alignment",
            "a tensor map takes arrays whose rows are dense and start at multiples of 16 bytes,"
            f" not strides {source.strides}",
        )
    lands = landing(t, memory)
    if prod(memory.shape) != t.size:
        raise Violation(
            "bounds", f"a box of {list(t.extents)} and a buffer of {list(memory.shape)}"
        )
    starts, pitches = (
        [m.offset(o) for o in op.offsets],
        tuple(s * source.dtype.itemsize for s in source.strides),
    )
    if further:
        starts[op.axis.value.data] += further
    if t.panelled and t.extents[-1] > t.panel and starts[-1] % t.panel:
        raise Violation(
            "alignment",
            f"a box of a map with panels starts at a multiple of {t.panel} columns, not at"
            f" {starts[-1]}",
        )
    at = relative(t.extents, pitches) + (source.pointer + sum(map(mul, starts, pitches)))
    inside = [
        (min(max(-start, 0), n), max(min(bound - start, n), 0))
        for start, n, bound in zip(starts, t.extents, source.shape, strict=False)
    ]
    return at.reshape(lands.shape), existing(t.extents, tuple(inside)).reshape(lands.shape), lands


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


def aligned(buffer: Buffer, base: int) -> None:
    need = max(128, buffer.layout.atom)
    if base % (need if buffer.layout.swizzle > 16 else 128):
        raise Violation(
            "alignment", f"TMA needs shared memory at a multiple of {need} bytes, not at {base}"
        )


def tma_load(m, op):
    buffer, address, targets, agent = (
        m[op.buffer],
        m.address(op.barriers, op.index),
        m.targets(op.to),
        m.leader,
    )
    pointers, live, lands = box(m, op, buffer.layout)
    aligned(buffer, buffer.base)
    yield None
    event, cells, places = (
        m.block.cluster.clocks.start(agent.knows, ASYNC, op, agent.name),
        cells_of(lands, None, ALL, True),
        [],
    )
    m.ordered(READS, event, op, pointers, live)
    for rank in targets:
        block = m.block.cluster.at(rank)
        m.mbarrier(address, agent, op, rank, far=True)
        block.memory.write(buffer.base, cells, event, op)
        block.memory.poison(buffer.base, lands)
        block.visits.append((event.index, event.epoch, op))
        places.append(block)
    left = list(places)

    def land() -> None:  # each block's bytes arrive on their own
        block = left.pop(m.launch.scheduler.random.randrange(len(left)))
        if block.over:
            raise Violation(
                "pending at exit", f"a copy arrives in block {block.rank} after its end", op
            )
        values = m.memory.load(pointers, live, dtype_of(m[op.map].type.element))
        block.memory.store(buffer.base, lands, level0.tf32(values) if m[op.map].tf32 else values)
        block.mbarriers[address].deliver(
            m.block.cluster.clocks.end(event), m[op.map].type.bytes, op
        )

    for _ in targets:
        m.launch.scheduler.start(Copy(land, op))
    return ()


REDUCTIONS = {"add": np.add, "max": np.maximum, "min": np.minimum}


def tma_store(m, op):
    whole = m[op.buffer]
    if op.each is None:
        yield from send(m, op, m.leader, whole, box(m, op, whole.layout))
        return ()
    rows, rest = m[op.map].type.extents[op.axis.value.data], whole.layout.shape[1:]
    shares = []
    for group in range(m.groups):
        memory, start = whole.layout.slice([group * rows, *[0] * len(rest)], [rows, *rest])
        shares.append(
            (
                Buffer(
                    whole.memory,
                    whole.base + start,
                    SharedType(1, [rows, *rest], whole.type.element, memory),
                ),
                box(m, op, memory, group * rows),
            )
        )

    def action(agent: Agent) -> Generator:
        if agent.first:
            yield from send(m, op, agent, *shares[agent.group])

    yield from m.both(op, action)
    return ()


def send(m, op, agent: Agent, buffer: Buffer, places: tuple[np.ndarray, np.ndarray, SharedLayout]):
    """A buffer to a box of an array."""
    kind, (pointers, live, lands) = op.reduce.data if op.reduce else None, places
    aligned(buffer, buffer.base)
    yield None
    event = m.block.cluster.clocks.start(agent.knows, ASYNC, op, agent.name)
    buffer.memory.read(buffer.base, cells_of(lands, None, ALL, False), event, op)
    element = op.map.type.element
    m.ordered(
        UPDATES if kind else WRITES,
        event,
        op,
        pointers,
        live,
        changed=lambda: (
            buffer.memory.load(buffer.base, lands, dtype_of(element))
            != m.memory.load(pointers, live, dtype_of(element))
        ).reshape(-1),
    )

    def act() -> None:
        values = buffer.memory.load(buffer.base, lands, dtype_of(element))
        if kind:
            values = rounded(
                REDUCTIONS[kind](
                    level0.widened(m.memory.load(pointers, live, dtype_of(element))),
                    level0.widened(values),
                ),
                element,
            )
        m.memory.store(pointers, live, values)

    agent.bulk.open.append((m.launch.scheduler.start(Copy(act, op)), event))


def commit(groups: str, everyone: bool):
    def step(m, op):
        def action(agent: Agent) -> Generator:
            getattr(agent, groups).commit()
            yield None

        if groups == "dots":
            m.dot_fence = False
        if everyone or getattr(op, "each", None) is not None:
            yield from m.both(op, action)
        else:
            yield from action(m.leader)
        return ()

    return step


def bulk_wait(m, op):
    pending = op.pending.value.data

    def action(agent: Agent) -> Generator:
        waited = agent.bulk.beyond(pending)
        yield Wait(lambda: all(copy.done for copy, _ in waited), lambda: "its bulk stores", op)
        for _, event in waited:
            agent.learn(m.block.cluster.clocks.end(event))
        agent.bulk.drop(pending)

    if op.each is not None:
        yield from m.both(op, action)
    else:
        yield from action(m.leader)
    return ()


def cp_async(m, op):
    buffer, pointers_live = m[op.buffer], level0.block(m, op)
    held = op.threads.data if op.threads is not None else None
    other = 0 if op.other is None else m[op.other]

    mine = elements_of(held, ALL, False, m.block.rank) if buffer.layout.spread > 1 else None

    def act() -> None:
        buffer.memory.store(
            buffer.base,
            buffer.layout,
            m.memory.load(*pointers_live, dtype_of(buffer.type), other).reshape(
                buffer.layout.shape
            ),
            mine,
        )

    copy = Copy(act, op)

    def action(agent: Agent) -> Generator:
        yield None
        event = m.block.cluster.clocks.start(agent.knows, GENERIC, op, agent.name)
        cells = (
            cells_of(buffer.layout, held, agent.part, True, m.block.rank)
            if held is not None
            else coalesced(buffer.layout, m.warps, agent.part)
        )
        buffer.memory.write(buffer.base, cells, event, op)
        if agent is m.leader:
            m.ordered(READS, event, op, *pointers_live)
        if agent is m.leader:
            buffer.memory.poison(buffer.base, buffer.layout)
            m.launch.scheduler.start(copy)
        agent.copies.open.append((copy, event))

    yield from m.both(op, action)
    return ()


def coalesced(layout: SharedLayout, warps: int, part: Part) -> np.ndarray:
    """The cells that a part of the warps copies, 16 bytes a thread, thread after thread along the
    rows.
    """
    cells = layout.table().reshape(-1, layout.shape[-1]) // 4
    chunk = max(1, 16 // layout.itemsize)
    thread = (
        np.arange(cells.shape[0])[:, None] * -(-cells.shape[1] // chunk)
        + np.arange(cells.shape[1]) // chunk
    ) % (warps * WARP)
    if part is ALL:
        return np.unique(cells)
    start, stop = (WARP * warp for warp in part)
    return np.setdiff1d(
        np.unique(cells[(thread >= start) & (thread < stop)]), np.unique(cells[thread < start])
    )


def cp_wait(m, op):
    pending = op.pending.value.data

    def action(agent: Agent) -> Generator:
        waited = agent.copies.beyond(pending)
        yield Wait(lambda: all(copy.done for copy, _ in waited), lambda: "its copies", op)
        for _, event in waited:
            agent.knows[GENERIC] = np.maximum(
                agent.knows[GENERIC], m.block.cluster.clocks.end(event)[GENERIC]
            )
        agent.copies.drop(pending)

    yield from m.both(op, action)
    return ()


# --------------------------------------------------------------------------------------------------
def _place(m, op):
    return (
        level0.live_pointers(m, op)
        if isinstance(op, (tile.LoadPointers, tile.StorePointers, tile.Atomic))
        else level0.block(m, op)
    )


def global_access(kind: str, rule):
    """Each warp those elements that it holds; the values move when the leader gets there. A load or
    store with semantics is atomic.
    """
    reads = kind == READS

    def step(m, op):
        pointers, live = _place(m, op)
        t, out, told = (op.result if reads else op.value).type, [], []
        # one thread's result, which all then have
        given = (
            kind == UPDATES
            and not isinstance(t, TileType)
            and getattr(op, "result", None) is not None
            and op.result.first_use is not None
        )
        how = UPDATES if getattr(op, "semantics", None) is not None else kind
        held = t.register_layout if isinstance(t, TileType) else None

        def changed() -> np.ndarray:
            new = np.broadcast_to(level0.stored(m, t, m[op.value]), live.shape)
            old, new = (
                np.ascontiguousarray(x).reshape(live.size, 1).view(np.uint8)
                for x in (m.memory.load(pointers, live, new.dtype), new)
            )
            return (old != new).any(1)

        def action(agent: Agent) -> Generator:
            yield None
            first = agent is m.leader
            m.ordered(
                how,
                agent.access(op),
                op,
                pointers,
                live,
                elements_of(held, agent.part, not reads, m.block.rank, 0),
                changed if how == WRITES else None,
                first or how == READS,
                agent,
            )
            if first:
                out.append(rule(m, op))
                told.append(agent.knows[GENERIC].copy())
            elif given:
                np.maximum(agent.knows[GENERIC], told[0], out=agent.knows[GENERIC])

        yield from m.both(op, action)
        return out[0]

    return step


def store(m, op) -> None:
    """What this block holds of a tile that a cluster deals out."""
    (pointers, live), t = level0.block(m, op), op.value.type
    if (
        isinstance(t, TileType)
        and t.register_layout is not None
        and t.register_layout.num_blocks > 1
    ):
        mine = np.zeros(live.size, bool)
        mine[elements_of(t.register_layout, ALL, True, m.block.rank, 0)] = True
        live = live & mine.reshape(live.shape)
    m.memory.store(pointers, live, np.broadcast_to(level0.stored(m, t, m[op.value]), live.shape))


# --------------------------------------------------------------------------------------------------
def claims(m, op, buffer: Buffer, held) -> None:
    """The bank conflicts that the compiler claims of an access are those of some way to make it: by
    matrices, or by vectors of one width.
    """
    if op.conflicts is None or op in m.launch.claimed or held is None:
        return
    m.launch.claimed.add(op)
    claimed, found = (
        op.conflicts.value.data,
        sorted(ways(held, buffer.layout, isinstance(op, shared.Write))),
    )
    if found and claimed not in found:
        raise Violation(
            "conflicts",
            f"{claimed}-way bank conflicts are claimed of an access of {buffer.layout} that has"
            f" {' or '.join(map(str, found))}",
            op,
            (m.leader.name,),
        )


@lru_cache(1024)
def ways(held: Layout, memory: SharedLayout, store: bool = False) -> set[int]:
    """Degrees of bank conflict with which a tile in this layout can be moved."""
    if held.shape != memory.shape:
        return set()
    plans, degrees = (
        [matrix_access(held, memory, memory.bits, how) for how in {False, store}],
        set(),
    )
    degrees.update(plan.conflicts for plan in plans if plan is not None)
    for vector in (1, 2, 4, 8, 16):
        if vector * memory.itemsize > 16 or held.num_registers % vector:
            continue
        try:
            degrees.add(conflicts_of(held, memory, vector))
        except LayoutError:
            continue
    return degrees


def read(m, op):
    buffer = m[op.buffer]
    claims(m, op, buffer, op.result.type.register_layout)

    def action(agent: Agent) -> Generator:
        yield None
        m.buffer_access(agent, buffer, agent.access(op), op, op.result.type.register_layout)

    yield from m.both(op, action)
    return buffer.memory.load(buffer.base, buffer.layout, dtype_of(buffer.type)).reshape(
        op.result.type.extents
    )


def write(m, op):
    buffer, value = m[op.buffer], np.asarray(m[op.value])
    claims(m, op, buffer, op.value.type.register_layout)

    def action(agent: Agent) -> Generator:
        yield None
        event = agent.access(op)
        for block in m.block.cluster.blocks if op.everywhere is not None else [m.block]:
            if block.over:
                raise Violation(
                    "pending at exit",
                    f"{agent.name} writes to shared memory of block {block.number}, which has"
                    " ended",
                    op,
                    (agent.name,),
                )
            if m.launch.hazards and block is not m.block and event.view[block.agents[0].index] == 0:
                raise Violation(
                    "not begun",
                    f"{agent.name} writes to shared memory of block {block.number}, which may not"
                    " have begun: missing is a barrier of the cluster before it",
                    op,
                    (agent.name,),
                )
            there = replace(buffer, memory=block.memory)
            m.buffer_access(agent, there, event, op, op.value.type.register_layout, write=True)
            if agent.first:
                there.memory.store(
                    there.base,
                    there.layout,
                    value.reshape(there.layout.shape),
                    m.share(agent, op.value.type.register_layout),
                )

    yield from m.both(op, action)
    return ()


def exchanged(m, op):
    """Registers to every block, each of whose barriers counts what arrives."""
    buffer, value, held, address = (
        m[op.buffer],
        np.asarray(m[op.value]),
        op.value.type.register_layout,
        m.address(op.barriers, op.index),
    )
    cluster = m.block.cluster

    def action(agent: Agent) -> Generator:
        yield None
        event = cluster.clocks.start(agent.knows, GENERIC, op, agent.name)
        mine = elements_of(held, agent.part, True, m.block.rank, 0)
        size = (value.size if mine is None else mine.size) * buffer.layout.itemsize
        if not size:
            return
        for block in cluster.blocks:
            m.mbarrier(address, agent, op, block.rank)
            m.buffer_access(
                agent, replace(buffer, memory=block.memory), event, op, held, write=True
            )
            block.visits.append((event.index, event.epoch, op))

            def land(block=block) -> None:
                if block.over:
                    raise Violation(
                        "pending at exit",
                        f"what {agent.name} sends arrives in block {block.rank} after its end",
                        op,
                    )
                block.memory.store(
                    buffer.base, buffer.layout, value.reshape(buffer.layout.shape), mine
                )
                block.mbarriers[address].deliver(cluster.clocks.end(event), size, op)

            m.launch.scheduler.start(Copy(land, op))
        agent.tick()

    yield from m.both(op, action)
    return ()


def post(m, op):
    box, value = m[op.box], m[op.value]
    yield None
    m.block.memory.write(box.base, FIRST, m.leader.access(op), op)
    box.memory.store(box.base, SCALAR, np.asarray([value], np.int32))
    return ()


def fetch(m, op):
    box = m[op.box]

    def action(agent: Agent) -> Generator:
        yield None
        box.memory.read(box.base, FIRST, agent.access(op), op)

    yield from m.both(op, action)
    return box.memory.load(box.base, SCALAR, np.dtype(np.int32))[0]


def stage(m, op, ring, *_):
    at = m.offset(op.index[0]) if op.index else 0
    if not 0 <= at < ring.type.stages:
        raise Violation("bounds", f"stage {at} of a ring of {ring.type.stages}")
    return Buffer(ring.memory, ring.base + at * ring.type.stage_bytes, op.result.type)


def shared_slice(m, op, buffer, *_):
    starts = [m.offset(o) for o in op.offsets]
    try:
        _, start = buffer.layout.slice(
            starts,
            (
                [*op.result.type.extents]
                if len(op.result.type.extents) == len(starts)
                else [1] * len(starts)
            ),
        )
    except LayoutError as e:
        raise Violation("bounds", str(e)) from None
    return Buffer(buffer.memory, buffer.base + start, op.result.type)


# --------------------------------------------------------------------------------------------------
def dot_async(m, op):
    a, b, acc = m[op.a], m[op.b], m[op.acc] if op.acc is not None else None
    keep, result = op.keep is None or bool(m[op.keep]), op.result.type.tile
    agents, before = len(m.agents), m.last_dot
    m.last_dot = dot = Dot(m.block.cluster.clocks.matrix())

    def act() -> None:
        if not m.launch.products:
            dot.value = (
                (acc.value if isinstance(acc, Dot) else acc)
                if acc is not None
                else np.zeros(result.extents, dtype_of(result))
            )
            return
        x, y = (
            v.memory.load(v.base, v.layout, dtype_of(v.type)) if isinstance(v, Buffer) else v
            for v in (a, b)
        )
        old = acc.value if isinstance(acc, Dot) else acc
        new = level0.product(x, y, "tf32")
        dot.value = rounded(
            new if old is None or not keep else level0.accumulated(old) + new, result
        )

    dot.copy = Copy(act, op, lambda: dot.issued == agents and (before is None or before.copy.done))

    def action(agent: Agent) -> Generator:
        yield None
        if agent is m.leader and not m.dot_fence:
            raise Violation(
                "missing dot fence",
                f"{agent.name} starts a group of asynchronous dots without a fence dot",
                op,
                (agent.name,),
            )
        event = m.block.cluster.clocks.start(agent.knows, ASYNC, op, agent.name)
        for operand in (a, b):
            if isinstance(operand, Buffer):
                m.buffer_access(agent, operand, event, op, whole=True)
        np.maximum(dot.knows, agent.knows, out=dot.knows)
        np.maximum(dot.knows, m.block.cluster.clocks.end(event), out=dot.knows)
        agent.tick()
        agent.dots.open.append(dot)
        dot.issued += 1
        if agent is m.leader:
            m.launch.scheduler.start(dot.copy)

    yield from m.both(op, action)
    if op.acc is not None and isinstance(op.acc.type, TileType):
        m.adding[op.acc] = dot
    return dot


def dot_wait(m, op):
    pending = op.pending.value.data

    def action(agent: Agent) -> Generator:
        waited = agent.dots.beyond(pending)
        yield Wait(lambda: all(d.copy.done for d in waited), lambda: "its dots", op)
        for d in waited:
            agent.learn(d.knows)
            d.waited = d.waited or agent is m.leader
        agent.dots.drop(pending)

    yield from m.both(op, action)
    out = []
    for operand, result in zip(op.args, op.results, strict=False):
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
