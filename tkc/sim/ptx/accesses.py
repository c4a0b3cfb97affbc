"""Loads, stores, copies of threads and atomics: what moves bytes between memories and registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tkc.ir.truths import every, some
from tkc.sim.ptx.faults import require
from tkc.sim.ptx.kinds import KIND_BYTES, KIND_TYPES
from tkc.sim.ptx.machine import ClusterMachine, rule
from tkc.sim.ptx.memory import FIRST_ADDRESS, RANK_SHIFT
from tkc.sim.ptx.text import Instruction


def place(
    m: ClusterMachine,
    name: str,
    at: np.ndarray,
    size: int,
    mask: np.ndarray,
    align: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, index in them) of accesses; index 0 for the threads that make none."""
    live = at[mask]
    require(every(live % (align or size) == 0), f"misaligned access of {size} bytes")
    if ".shared" in name:
        found = np.zeros(m.n, np.int64)
        found[mask] = m.shared.index(
            live, size, None if "shared::cluster" in name else m.rank[mask]
        )
        return m.shared.bytes, found
    memory = m.launch.memory.bytes
    require(
        every(live >= FIRST_ADDRESS) and every(live + size <= len(memory)),
        "an access outside memory",
    )
    return memory, np.where(mask, at, 0)


@rule("ld.param")
def load_parameter(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    number = m.launch.parameters[m.program.parameters.index(i.operands[1][1:-1])]
    t, size = KIND_TYPES[i.kind], KIND_BYTES[i.kind]
    if isinstance(number, (np.integer, int)) and np.dtype(t).kind != "f":
        value = np.full(m.n, int(number) & (1 << size * 8) - 1, f"u{size}")
        value = value.view(_held(i.kind, size))
    else:
        value = np.full(m.n, np.array(number).astype(t))
    m.write(i.operands[0], value, mask)


def _held(kind: str, size: int) -> str:
    """What a wider register has of a number: its sign too, or zeros."""
    return f"{'i' if kind[0] == 's' else 'u'}{size}"


@rule("ld", "st")
def move(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    loads, size = i.parts[0] == "ld", KIND_BYTES[i.kind]
    registers, where = i.operands if loads else i.operands[::-1]
    registers = registers if isinstance(registers, list) else [registers]
    space, at = place(m, i.name, m.address(where), size * len(registers), mask)
    held = _held(i.kind, size)
    if loads:
        index = at[:, None] + np.arange(size * len(registers))
        for r, value in zip(registers, space[index].view(held).T, strict=True):
            m.write(r, value, mask)
        return
    index = at[mask, None] + np.arange(size)
    for r in registers:
        value = np.ascontiguousarray(m.read(r, f"u{8 * size}"))[mask]
        space[index] = value.view(np.uint8).reshape(-1, size)
        index = index + size


# ---- copies of threads
# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PendingCopy:
    """One cp.async of the threads that have not waited for it. group: of each thread, the number of
    its group; target: [threads, bytes], indices of shared memory; data: the bytes of some threads.
    """

    threads: np.ndarray
    group: np.ndarray
    target: np.ndarray
    data: Callable[[np.ndarray], np.ndarray]


class ThreadCopies:
    """The cp.async of all threads: they land when their thread waits for their group."""

    def __init__(self, m: ClusterMachine):
        self.pending: list[PendingCopy] = []
        self.groups = np.zeros(m.n, np.int64)  # that each thread has committed

    def land(self, m: ClusterMachine, mask: np.ndarray, before: np.ndarray) -> None:
        """The copies of threads whose group has a number below `before`."""
        kept = []
        for copy in self.pending:
            now = copy.threads & mask & (copy.group < before)
            if some(now):
                m.shared.bytes[copy.target[now]] = copy.data(now)
            if some(rest := copy.threads & ~now):
                kept.append(replace(copy, threads=rest))
        self.pending = kept

    def taken(self, mask: np.ndarray) -> list[PendingCopy]:
        """The copies that threads have not waited for, which something else will land."""
        parts = [
            (replace(c, threads=c.threads & on), on is mask)
            for c in self.pending
            for on in (mask, ~mask)
        ]
        self.pending = [copy for copy, mine in parts if not mine and some(copy.threads)]
        return [copy for copy, mine in parts if mine and some(copy.threads)]


@rule("cp.async.ca", "cp.async.cg")
def copy(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    size, copies = int(i.operands[2]), m.state_of(ThreadCopies)
    read = (
        m.read(i.operands[3], "u32").astype(np.int64) if len(i.operands) > 3 else np.full(m.n, size)
    )
    _, target = place(m, ".shared", m.address(i.operands[0]), size, mask)
    memory, source = place(m, ".global", m.address(i.operands[1]), size, mask & (read > 0))
    target = target[:, None] + np.arange(size)
    source = source[:, None] + np.arange(size)
    inside = np.arange(size) < read[:, None]
    m.shared.bytes[target[mask]] = 0xFF

    def data(now: np.ndarray) -> np.ndarray:
        return np.where(inside[now], memory[np.where(inside[now], source[now], 0)], 0)

    copies.pending.append(PendingCopy(mask, copies.groups.copy(), target, data))


@rule("cp.async.commit_group")
def commit(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    m.state_of(ThreadCopies).groups += mask


@rule("cp.async.wait_group")
def wait_group(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    copies = m.state_of(ThreadCopies)
    copies.land(m, mask, copies.groups - int(i.operands[0]))


@rule("cp.async.wait_all")
def wait_all(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    copies = m.state_of(ThreadCopies)
    copies.land(m, mask, copies.groups + 1)


# ---- atomics
# --------------------------------------------------------------------------------------------------
UPDATES: dict[str, Callable[[Any, list[Any]], Any]] = {
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
def atomic(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    if i.kind.endswith("x2") or isinstance(i.operands[-1], list):
        return add_neighbours(m, i, mask)
    operation = next(p for p in i.parts if p in UPDATES)
    size, t = KIND_BYTES[i.kind], KIND_TYPES[i.kind]
    into, where, *values = i.operands if i.parts[0] == "atom" else (None, *i.operands)
    space, at = place(m, i.name, m.address(where), size, mask)
    values, old = [m.read(v, i.kind) for v in values], np.zeros(m.n, t)
    for k in np.flatnonzero(mask):
        cell = space[at[k] : at[k] + size].view(t)
        old[k] = cell[0]
        cell[0] = UPDATES[operation](cell[0], [v[k] for v in values])
    if into:
        m.write(into, old, mask)


def add_neighbours(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """Pairs of 16-bit elements, or elements of 32 bits; neighbours are registers in braces."""
    where, registers = i.operands
    registers = registers if isinstance(registers, list) else [registers]
    size, t = 4 * len(registers), KIND_TYPES[i.kind.removesuffix("x2")]
    space, at = place(m, i.name, m.address(where), size, mask)
    values = np.stack([m.read(r, "b32") for r in registers], 1).view(t)
    for k in np.flatnonzero(mask):
        cells = space[at[k] : at[k] + size].view(t)
        cells += values[k]


@rule("mapa")
def mapa(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """The same place in another block's shared memory."""
    m.write(
        i.operands[0],
        m.read(i.operands[1], "u32") & np.uint32((1 << RANK_SHIFT) - 1)
        | m.read(i.operands[2], "u32") << np.uint32(RANK_SHIFT),
        mask,
    )


@rule("cvta")
def cvta(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    m.write(i.operands[0], m.read(i.operands[1], i.kind), mask)


@rule("fence", "membar", "prefetch", "griddepcontrol")
def nothing(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    """Which accesses are ordered is checked on level 4, not here; launches follow one another."""
