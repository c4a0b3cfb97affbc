"""Copies of boxes between global and shared memory that one thread issues."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tkc.ir.target import ROW_ALIGNMENT
from tkc.sim.ptx.barriers import deliver, mbarrier
from tkc.sim.ptx.faults import Fault, Unknown, require
from tkc.sim.ptx.kinds import tf32_bits
from tkc.sim.ptx.machine import ClusterMachine, rule
from tkc.sim.ptx.memory import RANK_SHIFT
from tkc.sim.ptx.tensor_maps import TensorMap, swizzled
from tkc.sim.ptx.text import Instruction

BOX_OPERAND = re.compile(r"\[\s*(\S+?)\s*,\s*\{(.*)\}\s*\]")
# the NumPy type of each element type of the IR that a reduction can combine
REDUCED_TYPES: dict[str, type[Any]] = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "tf32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "ui8": np.uint8,
    "i16": np.int16,
    "ui16": np.uint16,
    "i32": np.int32,
    "ui32": np.uint32,
    "i64": np.int64,
    "ui64": np.uint64,
}
BOX_ALIGNMENT = 128  # bytes, of a box in shared memory


@dataclass(frozen=True)
class Box:
    """Bytes of a box: where each element lies in global memory (where it is inside the array), and
    in shared memory from the box's first byte on. written: elements that a store writes, which go
    on to a multiple of 16 bytes behind the end of a row.
    """

    map: TensorMap
    source: np.ndarray
    inside: np.ndarray
    written: np.ndarray

    def places(self, m: ClusterMachine, at: int) -> np.ndarray:
        """[elements, bytes]: indices of shared memory, for a box that begins at an address."""
        first = int(m.shared.index(np.array([at]), prod(self.map.box) * self.map.size, None)[0])
        offset = at & (1 << RANK_SHIFT) - 1
        return (
            first
            - offset
            + swizzled(
                offset
                + np.arange(prod(self.map.box))[:, None] * self.map.size
                + np.arange(self.map.size),
                self.map.swizzle,
            )
        )


def box_of(m: ClusterMachine, i: Instruction, operand: str, thread: int) -> Box:
    """The box that a thread names: [map, {coordinates}]."""
    named = BOX_OPERAND.fullmatch(operand)
    if named is None:
        raise Unknown(f"the operand {operand}")
    base, coordinates = named.groups()
    found = m.launch.maps.get(int(m.read(base, "u64")[thread]))
    if found is None:
        raise Fault("the address of no tensor map")
    starts = [int(m.read(c.strip(), "s32")[thread]) for c in coordinates.split(",")]
    dims = next(int(p[:-1]) for p in i.parts if re.fullmatch(r"[1-5]d", p))
    require(
        len(starts) == dims == len(found.box),
        f"{len(starts)} coordinates, of a map with {len(found.box)} dimensions",
    )
    require(
        not found.swizzle or found.box[0] * found.size == found.swizzle,
        f"a row of {found.box[0] * found.size} bytes under a swizzle of {found.swizzle}",
    )
    require(
        starts[0] * found.size % ROW_ALIGNMENT == 0,
        f"a box begins at a multiple of {ROW_ALIGNMENT} bytes of a row, not at element {starts[0]}",
    )
    require(
        "mbarrier::complete_tx::bytes" in i.parts or min(starts) >= 0,
        f"a box is written to {starts}, before its array",
    )
    # innermost first, which varies fastest
    index = np.indices(found.box[::-1]).reshape(dims, -1)[::-1] + np.array(starts)[:, None]
    ends = np.array(found.extents)[:, None]
    inside = ((index >= 0) & (index < ends)).all(0)
    unit = ROW_ALIGNMENT // found.size
    ends[0] = -(-ends[0] // unit) * unit
    written = ((index >= 0) & (index < ends)).all(0)
    source = found.address + (index * np.array(found.strides)[:, None]).sum(0)
    return Box(found, source, inside, written)


# ---- from global memory
# --------------------------------------------------------------------------------------------------
@rule("cp.async.bulk.tensor")
def copy(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    for thread in np.flatnonzero(mask):
        (load if "mbarrier::complete_tx::bytes" in i.parts else store)(m, i, int(thread))


def load(m: ClusterMachine, i: Instruction, thread: int) -> None:
    """Blocks of the mask get the box at the same place, and their own barrier at the same place its
    bytes.
    """
    where, what, signal, *more = i.operands
    box = box_of(m, i, what, thread)
    require(
        not box.map.before or bool(box.inside.reshape(-1, box.map.box[0]).any(1).all()),
        "rows outside of an array, for which the copy engine reads its first address: that lies"
        " before its memory",
    )
    at, barrier = int(m.address(where)[thread]), int(m.address(signal)[thread])
    require(
        at % BOX_ALIGNMENT == 0, f"a box in shared memory begins at a multiple of {BOX_ALIGNMENT}"
    )
    ranks = [at >> RANK_SHIFT]
    if "multicast::cluster" in i.name:
        ranks = [r for r in range(16) if int(m.read(more[0], "u16")[thread]) >> r & 1]
    require(bool(ranks) and max(ranks) < m.blocks, "a copy for blocks that the cluster has not")

    def own(address: int, rank: int) -> int:
        return address & (1 << RANK_SHIFT) - 1 | rank << RANK_SHIFT

    targets = [
        (
            box.places(m, own(at, r)),
            mbarrier(m, int(m.shared.index(np.array([own(barrier, r)]), 8, None)[0])),
        )
        for r in ranks
    ]
    for places, _ in targets:
        m.shared.bytes[places] = 0xFF

    def lands() -> None:
        memory = m.launch.memory.bytes
        data = np.where(
            box.inside[:, None],
            memory[np.where(box.inside, box.source, 0)[:, None] + np.arange(box.map.size)],
            0,
        ).astype(np.uint8)
        if box.map.element == "tf32":
            data = tf32_bits(data.view(np.uint32)).view(np.uint8)
        for places, signal in targets:
            m.shared.bytes[places] = data
            deliver(m, signal, data.size)

    m.copies.append(lands)


@rule("prefetch.tensormap")
def prefetch(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    require(
        all(int(a) in m.launch.maps for a in m.address(i.operands[0])[mask]),
        "the address of no tensor map",
    )


# ---- to global memory
# --------------------------------------------------------------------------------------------------
Write = Callable[[], None]
ReadSource = Callable[[], Write]


@dataclass
class ThreadStores:
    """The stores of one thread: the current group and the committed ones, as functions that read
    shared memory and give one that writes global memory; `read`: those whose source has been read.
    """

    open: list[ReadSource] = field(default_factory=list)
    groups: list[list[ReadSource]] = field(default_factory=list)
    read: list[list[Write]] = field(default_factory=list)


class BoxStores:
    """The stores of boxes that threads issued, by thread."""

    def __init__(self, m: ClusterMachine):
        self.by_thread: dict[int, ThreadStores] = {}
        m.ended.append(self.finish)

    def of(self, thread: int) -> ThreadStores:
        """The stores of one thread."""
        return self.by_thread.setdefault(thread, ThreadStores())

    def finish(self, mask: np.ndarray) -> None:
        """Threads end: what they stored reaches memory, what still reads shared memory may read
        anything.
        """
        for thread, s in self.by_thread.items():
            if not mask[thread]:
                continue
            require(
                not s.open and not s.groups,
                "a thread ends while its stores may still read shared memory",
            )
            for group in s.read:
                settle(group)
            s.read = []


def settle(group: list[Write]) -> None:
    """Writes global memory."""
    for write in group:
        write()


@rule("cp.reduce.async.bulk.tensor")
def reduce(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    for thread in np.flatnonzero(mask):
        store(m, i, int(thread))


def store(m: ClusterMachine, i: Instruction, thread: int) -> None:
    what, where = i.operands
    box, at = box_of(m, i, what, thread), int(m.address(where)[thread])
    require(
        at % BOX_ALIGNMENT == 0, f"a box in shared memory begins at a multiple of {BOX_ALIGNMENT}"
    )
    require(at >> RANK_SHIFT == m.rank[thread], "a store from another block's shared memory")
    update = (
        {"add": np.add, "min": np.minimum, "max": np.maximum}[i.parts[-2]]
        if i.name.startswith("cp.reduce")
        else None
    )
    if update and box.map.element not in REDUCED_TYPES:
        raise Unknown(f"a reduction of {box.map.element}")
    places, written = box.places(m, at), box.written

    def reads() -> Write:
        data = m.shared.bytes[places[written]]
        index = box.source[written][:, None] + np.arange(box.map.size)

        def writes() -> None:
            memory = m.launch.memory.bytes
            if update is None:
                memory[index] = data
                return
            t = REDUCED_TYPES[box.map.element]
            memory[index] = update(memory[index].view(t), data.view(t)).astype(t).view(np.uint8)

        return writes

    m.state_of(BoxStores).of(thread).open.append(reads)


@rule("cp.async.bulk.commit_group")
def commit(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    for thread in np.flatnonzero(mask):
        s = m.state_of(BoxStores).of(int(thread))
        s.groups.append(s.open)
        s.open = []


@rule("cp.async.bulk.wait_group")
def wait(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """All but the last groups have been read; without `.read` they are also in memory."""
    pending = int(i.operands[0])
    for thread in np.flatnonzero(mask):
        s = m.state_of(BoxStores).of(int(thread))
        while len(s.groups) > pending:
            s.read.append([read() for read in s.groups.pop(0)])
        if "read" in i.parts:
            continue
        while len(s.read) + len(s.groups) > pending:
            settle(s.read.pop(0))
