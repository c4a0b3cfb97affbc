"""Tensor maps, and copies of boxes between global and shared memory that one thread issues."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import ml_dtypes
import numpy as np

from tkc.ir.interface import Parameter, map_fields
from tkc.sim.ptx.barriers import deliver, mbarrier
from tkc.sim.ptx.machine import Machine, require, rule
from tkc.sim.ptx.memory import RANK
from tkc.sim.ptx.text import Instruction, Unknown

ELEMENTS = {
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
ALIGNMENT = 128  # of a box in shared memory
# of a swizzle's width: which of the bits from 7 on meet those from 4 on
XORED = {
    0: 0,
    32: 1,
    64: 3,
    128: 7,
}


@dataclass(frozen=True)
class TensorMap:
    """Innermost dimension first; strides in bytes, of every dimension."""

    element: str
    size: int
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


def tensor_map(p: Parameter, arguments: Sequence, address: int) -> TensorMap:
    """The map of an array argument, or of what the kernel makes of it, from what the interface
    says. arguments: of the launch; address: of the map's argument.
    """
    given = arguments[p.argument]
    size = given.itemsize

    def leaf(kind: str, argument: int, axis: int) -> int:
        value = arguments[argument]
        if kind == "scalar":
            return int(value)
        return value.shape[axis] if kind == "shape" else value.strides[axis] // value.itemsize

    steps = [s // size for s in given.strides]
    offset, shape, strides = p.array(given.shape, steps, leaf)
    address += offset * size
    dims = map_fields(p, shape, [s * size for s in strides], size)
    require(
        address % 16 == 0
        and all(s % 16 == 0 for n, s, _ in dims[1:] if n > 1)
        and dims[0][1] == size,
        "an array that no tensor map can describe",
    )
    return TensorMap(
        p.element, size, address, *(tuple(d[k] for d in dims) for k in range(3)), p.swizzle
    )


def swizzled(at: np.ndarray, width: int) -> np.ndarray:
    """Where the hardware puts what belongs at an address."""
    return at ^ (at >> 7 & XORED[width]) << 4


@dataclass(frozen=True)
class Box:
    """Bytes of a box: where each element lies in global memory (where it is inside the array), and
    in shared memory from the box's first byte on.
    """

    map: TensorMap
    source: np.ndarray
    inside: np.ndarray

    def places(self, m: Machine, at: int) -> np.ndarray:
        """[elements, bytes]: indices of shared memory, for a box that begins at an address."""
        first = int(m.shared.index(np.array([at]), prod(self.map.box) * self.map.size, None)[0])
        offset = at & (1 << RANK) - 1
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


def box_of(m: Machine, i: Instruction, operand: str, thread: int) -> Box:
    """The box that a thread names: [map, {coordinates}]."""
    base, coordinates = re.fullmatch(r"\[\s*(\S+?)\s*,\s*\{(.*)\}\s*\]", operand).groups()
    found = m.launch.maps.get(int(m.read(base, "u64")[thread]))
    require(found is not None, "the address of no tensor map")
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
    # innermost first, which varies fastest
    index = np.indices(found.box[::-1]).reshape(dims, -1)[::-1] + np.array(starts)[:, None]
    inside = ((index >= 0) & (index < np.array(found.extents)[:, None])).all(0)
    return Box(found, found.address + (index * np.array(found.strides)[:, None]).sum(0), inside)


# ---- from global memory
# --------------------------------------------------------------------------------------------------
@rule("cp.async.bulk.tensor")
def copy(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    for thread in np.flatnonzero(mask):
        (load if "mbarrier::complete_tx::bytes" in i.parts else store)(m, i, int(thread))


def load(m: Machine, i: Instruction, thread: int) -> None:
    """Blocks of the mask get the box at the same place, and their own barrier at the same place its
    bytes.
    """
    where, what, signal, *more = i.operands
    box, at, barrier = (
        box_of(m, i, what, thread),
        int(m.address(where)[thread]),
        int(m.address(signal)[thread]),
    )
    require(at % ALIGNMENT == 0, f"a box in shared memory begins at a multiple of {ALIGNMENT}")
    ranks = [at >> RANK]
    if "multicast::cluster" in i.name:
        ranks = [r for r in range(16) if int(m.read(more[0], "u16")[thread]) >> r & 1]
    require(bool(ranks) and max(ranks) < m.blocks, "a copy for blocks that the cluster has not")

    def own(address, rank):
        return address & (1 << RANK) - 1 | rank << RANK

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
            data = (data.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.uint8)
        for places, signal in targets:
            m.shared.bytes[places] = data
            deliver(m, signal, data.size)

    m.landing.append(lands)


@rule("prefetch.tensormap")
def prefetch(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    require(
        all(int(a) in m.launch.maps for a in m.address(i.operands[0])[mask]),
        "the address of no tensor map",
    )


# ---- to global memory
# --------------------------------------------------------------------------------------------------
@dataclass
class Stores:
    """The stores of one thread: groups of functions that read shared memory and give one that
    writes global memory; `read`: those whose source has been read.
    """

    open: list[Callable[[], Callable[[], None]]] = field(default_factory=list)
    groups: list[list[Callable[[], Callable[[], None]]]] = field(default_factory=list)
    read: list[list[Callable[[], None]]] = field(default_factory=list)


def stores(m: Machine) -> dict[int, Stores]:
    if "stores" not in m.state:
        m.state["stores"] = {}
        m.ended.append(lambda mask: finished(m, mask))
    return m.state["stores"]


def finished(m: Machine, mask: np.ndarray) -> None:
    """Threads end: what they stored reaches memory, what still reads shared memory may read
    anything.
    """
    for thread, s in stores(m).items():
        if not mask[thread]:
            continue
        require(
            not s.open and not s.groups,
            "a thread ends while its stores may still read shared memory",
        )
        for group in s.read:
            settle(group)
        s.read = []


def settle(group: list[Callable[[], None]]) -> None:
    for write in group:
        write()


@rule("cp.reduce.async.bulk.tensor")
def reduce(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    for thread in np.flatnonzero(mask):
        store(m, i, int(thread))


def store(m: Machine, i: Instruction, thread: int) -> None:
    what, where = i.operands
    box, at = box_of(m, i, what, thread), int(m.address(where)[thread])
    require(at % ALIGNMENT == 0, f"a box in shared memory begins at a multiple of {ALIGNMENT}")
    require(at >> RANK == m.rank[thread], "a store from another block's shared memory")
    update = (
        {"add": np.add, "min": np.minimum, "max": np.maximum}[i.parts[-2]]
        if i.name.startswith("cp.reduce")
        else None
    )
    if update and box.map.element not in ELEMENTS:
        raise Unknown(f"a reduction of {box.map.element}")
    places = box.places(m, at)

    def reads() -> Callable[[], None]:
        data, index = (
            m.shared.bytes[places[box.inside]],
            box.source[box.inside][:, None] + np.arange(box.map.size),
        )

        def writes() -> None:
            memory, t = m.launch.memory.bytes, ELEMENTS.get(box.map.element)
            memory[index] = (
                update(memory[index].view(t), data.view(t)).astype(t).view(np.uint8)
                if update
                else data
            )

        return writes

    stores(m).setdefault(thread, Stores()).open.append(reads)


@rule("cp.async.bulk.commit_group")
def commit(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    for thread in np.flatnonzero(mask):
        s = stores(m).setdefault(int(thread), Stores())
        s.groups.append(s.open)
        s.open = []


@rule("cp.async.bulk.wait_group")
def wait(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """All but the last groups have been read; without `.read` they are also in memory."""
    pending = int(i.operands[0])
    for thread in np.flatnonzero(mask):
        s = stores(m).setdefault(int(thread), Stores())
        while len(s.groups) > pending:
            s.read.append([read() for read in s.groups.pop(0)])
        if "read" in i.parts:
            continue
        while len(s.read) + len(s.groups) > pending:
            settle(s.read.pop(0))
