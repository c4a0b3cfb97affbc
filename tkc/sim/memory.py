"""Shared memory of a block: bytes, and for every 4 bytes who wrote and who read them last.

Cells are as small as a bank's word, so that two warps may write neighbours without an alarm, and are found by byte address: what lies at the same
place (a ring and an epilogue that reuses it, a buffer and an mbarrier) is the same cell.
"""
from __future__ import annotations

from functools import lru_cache

import numpy as np
from xdsl.ir import Operation

from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout
from tkc.sim.clocks import Clocks, Event
from tkc.sim.report import Violation, name_of

CELL = 4
POISON = 0xFF                       # bytes of NaN in every float type, −1 as integers
ALL, LEADER, LAGGARD = "all", "leader", "laggard"


@lru_cache(4096)
def cells_of(memory: SharedLayout, held: Layout | None, part: str, write: bool) -> np.ndarray:
    """The cells (relative to the buffer) of the elements that a part of the warps holds: warp 0, or the others.

    What both hold, warp 0 writes and both read.
    """
    offsets = memory.table().reshape(-1)
    if held is not None and part != ALL and held.num_warps > 1:
        leader = np.unique(elements_of(held, slice(0, 1)))
        cells = np.unique(_words(offsets[leader], memory.itemsize))
        if part == LEADER: return cells
        rest = np.unique(_words(offsets[np.unique(elements_of(held, slice(1, None)))], memory.itemsize))
        return np.setdiff1d(rest, cells) if write else rest
    if part == LAGGARD: return np.empty(0, np.int64) if write else np.unique(_words(offsets, memory.itemsize))
    return np.unique(_words(offsets, memory.itemsize))


def elements_of(held: Layout, warps: slice) -> np.ndarray:
    """Flat indices of the elements that some warps hold."""
    coords = held.table()[warps].reshape(-1, len(held.shape))
    return np.ravel_multi_index(coords[(coords < np.array(held.shape)).all(1)].T, held.shape)


def _words(offsets: np.ndarray, itemsize: int) -> np.ndarray:
    return (offsets[:, None] // CELL + np.arange(max(1, itemsize // CELL))).reshape(-1)


class SharedMemory:
    """`size` bytes, poisoned; guarded: the cells of live mbarriers."""

    def __init__(self, size: int, clocks: Clocks):
        cells = -(-size // CELL)
        self.size, self.clocks, self.bytes = size, clocks, np.full(cells * CELL, POISON, np.uint8)
        self.writer, self.written = np.zeros(cells, np.int32), np.zeros(cells, np.int32)
        self.read_at: dict[int, np.ndarray] = {}                  # reader -> epoch of its last read of each cell
        self.guarded = np.zeros(cells, bool)

    # ---- values
    def index(self, base: int, memory: SharedLayout) -> np.ndarray: return (base + memory.table()) // memory.itemsize

    def load(self, base: int, memory: SharedLayout, dtype: np.dtype) -> np.ndarray: return self.bytes.view(dtype)[self.index(base, memory)]

    def store(self, base: int, memory: SharedLayout, values: np.ndarray) -> None: self.bytes.view(values.dtype)[self.index(base, memory)] = values

    def poison(self, base: int, memory: SharedLayout) -> None: self.bytes.view(f"u{memory.itemsize}")[self.index(base, memory)] = (1 << memory.bits) - 1

    # ---- order
    def _cells(self, base: int, cells: np.ndarray, op: Operation, event: Event):
        cells = base // CELL + cells
        if cells.size and (cells[0] < 0 or cells[-1] >= len(self.writer)):
            raise Violation("bounds", f"byte {int(cells[-1]) * CELL} of {self.size} bytes of shared memory", op, (event.who,))
        dense = cells.size and cells[-1] - cells[0] + 1 == cells.size
        return slice(int(cells[0]), int(cells[-1]) + 1) if dense else cells

    def read(self, base: int, cells: np.ndarray, event: Event, op: Operation) -> None:
        """An access of cells (sorted, relative to base): raises Violation if a write of one of them is not ordered before it."""
        if not cells.size: return
        at = self._cells(base, cells, op, event)
        self._check_writes(at, event, op, "reads")
        if self.clocks.hazards and not self.writer[at].all(): raise Violation("uninitialized", f"{event.who} reads shared memory that nobody wrote", op, (event.who,))
        if event.index not in self.read_at: self.read_at[event.index] = np.zeros_like(self.writer)
        self.read_at[event.index][at] = event.epoch

    def write(self, base: int, cells: np.ndarray, event: Event, op: Operation) -> None:
        """Likewise, against earlier reads too."""
        if not cells.size: return
        at = self._cells(base, cells, op, event)
        self._check_writes(at, event, op, "overwrites")
        for reader, epochs in self.read_at.items():
            latest = int(epochs[at].max())
            if latest > event.reads_view[reader]: self._fail(event, op, "overwrites", reader, latest, "reads", event.fenced[reader] >= latest)
        self.writer[at], self.written[at] = event.index, event.epoch

    def _check_writes(self, at, event: Event, op: Operation, verb: str) -> None:
        if self.guarded[at].any(): raise Violation("barrier", f"{event.who} {verb} the bytes of a live mbarrier", op, (event.who,))
        writer, written = self.writer[at], self.written[at]
        late = event.view[writer] < written
        if late.any():
            i = int(late.argmax())
            self._fail(event, op, verb, int(writer[i]), int(written[i]), "writes", event.fenced[writer[i]] >= written[i])

    def _fail(self, event: Event, op, verb: str, other: int, epoch: int, did: str, fence: bool) -> None:
        if not self.clocks.hazards: return
        who = self.clocks.names[other] if other not in self.clocks.slots else "an asynchronous operation"
        earlier = name_of(self.clocks.at(other, epoch))
        edge = "a fence.proxy.async between them" if fence else "an arrival and a wait, or a barrier, between them"
        raise Violation("missing proxy fence" if fence else "race", f"{event.who} {verb} what {who} {did} in {earlier}; nothing orders the two: missing is {edge}",
                        op, (event.who, who))
