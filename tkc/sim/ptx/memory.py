"""Global memory, shared memory of a cluster, and what moves bytes between them and registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tkc.sim.ptx.machine import SIZE, TYPES, Machine, require, rule
from tkc.sim.ptx.text import Instruction

FIRST = 4096  # of global memory; below it nothing lies
RESERVED, RANK = (
    1024,
    24,
    # of shared memory: bytes that are the system's; the bit from which on an address says which
    # block
)


@dataclass
class Memory:
    """Global memory: arrays at addresses of their own."""

    bytes: np.ndarray = field(default_factory=lambda: np.zeros(1 << 24, np.uint8))
    used: int = FIRST

    def put(self, array: np.ndarray) -> int:
        """Copies all bytes from an array's first to its last; the address of its first element, as
        aligned as the array's own is.
        """
        return self.put_all([array])[0]

    def put_all(self, arrays: Sequence[np.ndarray]) -> list[int]:
        """As `put`, of arrays that may share memory, which they then share here too. Addresses of
        host memory in arrays of 64-bit integers become the addresses here.
        """
        spans = [
            np.lib.array_utils.byte_bounds(a) if a.size else (a.ctypes.data, a.ctypes.data)
            for a in arrays
        ]
        shift = self._place(sorted(span for span in spans if span[0] < span[1]))
        places = []
        for array, (low, high) in zip(arrays, spans, strict=True):
            if not array.size:
                places.append(self._reserve(low, low))
                continue
            at, base = low + shift[low, high], _base(array)
            self.bytes[at : at + high - low] = np.ndarray(
                high - low, np.uint8, base, low - base.ctypes.data
            )
            places.append(at + array.ctypes.data - low)
        for array, at in zip(arrays, places, strict=True):
            if array.size and array.dtype in (np.int64, np.uint64):
                here = self.get(at, array)
                for (low, high), by in shift.items():
                    # modulo 2^64: unsigned arrays take no negative Python integer
                    here[(array >= low) & (array < high)] += np.int64(by).astype(array.dtype)
        return places

    def _place(self, spans: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Reserves memory for spans of host addresses, in order; by how much each moves."""
        shift: dict[tuple[int, int], int] = {}
        group: list[tuple[int, int]] = []
        for span in [*spans, None]:
            if span is not None and (not group or span[0] < max(high for _, high in group)):
                group.append(span)
                continue
            if group:
                low = group[0][0]
                by = self._reserve(low, max(high for _, high in group)) - low
                shift |= dict.fromkeys(group, by)
            group = [span] if span is not None else []
        return shift

    def _reserve(self, low: int, high: int) -> int:
        """Memory for a span of host addresses, as aligned as they are."""
        at = -(-self.used // 256) * 256 + 256 + low % 256
        self.used = at + high - low + 256
        if self.used > self.bytes.size:
            self.bytes = np.concatenate([self.bytes, np.zeros(self.used, np.uint8)])
        return at

    def get(self, at: int, like: np.ndarray) -> np.ndarray:
        """An array of the same strides, where it lies here."""
        return (
            np.ndarray(like.shape, like.dtype, self.bytes, at, like.strides) if like.size else like
        )


def _base(array: np.ndarray) -> np.ndarray:
    """The bytes that an array lies in."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Shared:
    """The shared memory of the blocks of a cluster, one after the other. An address has the block's
    rank above bit 23, the system's bytes come before ours.
    """

    def __init__(self, blocks: int, size: int):
        self.blocks, self.limit, self.stride = (
            blocks,
            RESERVED + size,
            RESERVED + -(-size // 1024) * 1024 + 1024,
        )
        self.bytes = np.zeros(blocks * self.stride, np.uint8)

    def start(self, rank):
        return rank << RANK | RESERVED

    def index(self, at: np.ndarray, size: int, rank: np.ndarray | None) -> np.ndarray:
        """Where addresses lie in `bytes`. rank: of the blocks whose own memory they must be (None:
        any of the cluster).
        """
        at = np.asarray(at)
        block, offset = at >> RANK, at & (1 << RANK) - 1
        require(
            ((block < self.blocks) & (offset >= RESERVED) & (offset + size <= self.limit)).all(),
            "an access outside memory",
        )
        require(
            rank is None or (block == rank).all(),
            "an access to another block's shared memory through the window of its own",
        )
        return block * self.stride + offset


def place(
    m: Machine, name: str, at: np.ndarray, size: int, mask: np.ndarray, align: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, index in them) of accesses; index 0 for the threads that make none."""
    require((at[mask] % (align or size) == 0).all(), f"misaligned access of {size} bytes")
    if ".shared" in name:
        found = np.zeros(m.n, np.int64)
        found[mask] = m.shared.index(
            at[mask], size, None if "shared::cluster" in name else m.rank[mask]
        )
        return m.shared.bytes, found
    memory = m.launch.memory.bytes
    require(
        (at[mask] >= FIRST).all() and (at[mask] + size <= len(memory)).all(),
        "an access outside memory",
    )
    return memory, np.where(mask, at, 0)


@rule("ld.param")
def load_parameter(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    number, t, size = (
        m.launch.parameters[m.program.parameters.index(i.operands[1][1:-1])],
        TYPES[i.kind],
        SIZE[i.kind],
    )
    whole = isinstance(number, (np.integer, int)) and np.dtype(t).kind != "f"
    m.write(
        i.operands[0],
        (
            np.full(m.n, int(number) & (1 << size * 8) - 1, f"u{size}")
            if whole
            else np.full(m.n, np.array(number).astype(t))
        ),
        mask,
    )


@rule("ld", "st")
def move(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    loads, size = i.parts[0] == "ld", SIZE[i.kind]
    registers, where = i.operands if loads else i.operands[::-1]
    registers = registers if isinstance(registers, list) else [registers]
    space, at = place(m, i.name, m.address(where), size * len(registers), mask)
    index = at[:, None] + np.arange(size)
    for r in registers:
        if loads:
            m.write(r, space[index].view(f"u{size}")[:, 0], mask)
        else:
            space[index[mask]] = (
                np.ascontiguousarray(m.read(r, f"u{8 * size}"))[mask]
                .view(np.uint8)
                .reshape(-1, size)
            )
        index = index + size


# ---- copies of threads
# --------------------------------------------------------------------------------------------------
class Copies:
    """The cp.async of all threads: they land when their thread waits for their group."""

    def __init__(self, n: int):
        self.pending, self.groups = [], np.zeros(n, np.int64)

    def land(self, m: Machine, mask: np.ndarray, before: np.ndarray) -> None:
        """The copies of threads whose group has a number below `before`."""
        kept = []
        for waiting, group, target, data in self.pending:
            now = waiting & mask & (group < before)
            if now.any():
                m.shared.bytes[target[now]] = data(now)
            if (rest := waiting & ~now).any():
                kept.append((rest, group, target, data))
        self.pending = kept


def copies(m: Machine) -> Copies:
    return m.state.setdefault("copies", Copies(m.n))


@rule("cp.async.ca", "cp.async.cg")
def copy(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    size, c = int(i.operands[2]), copies(m)
    read = (
        m.read(i.operands[3], "u32").astype(np.int64) if len(i.operands) > 3 else np.full(m.n, size)
    )
    _, target = place(m, ".shared", m.address(i.operands[0]), size, mask)
    memory, source = place(m, ".global", m.address(i.operands[1]), size, mask & (read > 0))
    target, source, inside = (
        target[:, None] + np.arange(size),
        source[:, None] + np.arange(size),
        np.arange(size) < read[:, None],
    )
    m.shared.bytes[target[mask]] = 0xFF
    c.pending.append(
        (
            mask,
            c.groups.copy(),
            target,
            lambda now: np.where(inside[now], memory[np.where(inside[now], source[now], 0)], 0),
        )
    )


@rule("cp.async.commit_group")
def commit(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    copies(m).groups += mask


@rule("cp.async.wait_group")
def wait_group(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    copies(m).land(m, mask, copies(m).groups - int(i.operands[0]))


@rule("cp.async.wait_all")
def wait_all(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    copies(m).land(m, mask, copies(m).groups + 1)


# ---- atomics
# --------------------------------------------------------------------------------------------------
UPDATES = {
    "add": lambda old, v: old + v[0],
    "min": lambda old, v: min(old, v[0]),
    "max": lambda old, v: max(old, v[0]),
    "and": lambda old, v: old & v[0],
    "or": lambda old, v: old | v[0],
    "xor": lambda old, v: old ^ v[0],
    "exch": lambda old, v: v[0],
    "cas": lambda old, v: v[1] if old == v[0] else old,
    "inc": lambda old, v: old.dtype.type(0) if old >= v[0] else old + old.dtype.type(1),
}


@rule("atom", "red")
def atomic(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    operation, size, t = next(p for p in i.parts if p in UPDATES), SIZE[i.kind], TYPES[i.kind]
    into, where, *values = i.operands if i.parts[0] == "atom" else (None, *i.operands)
    space, at = place(m, i.name, m.address(where), size, mask)
    values, old = [m.read(v, i.kind) for v in values], np.zeros(m.n, t)
    for k in np.flatnonzero(mask):
        cell = space[at[k] : at[k] + size].view(t)
        old[k] = cell[0]
        cell[0] = UPDATES[operation](cell[0], [v[k] for v in values])
    if into:
        m.write(into, old, mask)


@rule("mapa")
def mapa(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """The same place in another block's shared memory."""
    m.write(
        i.operands[0],
        m.read(i.operands[1], "u32") & np.uint32((1 << RANK) - 1)
        | m.read(i.operands[2], "u32") << np.uint32(RANK),
        mask,
    )


@rule("cvta")
def cvta(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    m.write(i.operands[0], m.read(i.operands[1], i.kind), mask)


@rule("fence", "membar", "prefetch")
def nothing(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    """Order is for level 4 to judge."""
