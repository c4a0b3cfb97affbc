"""Shared memory of a block: bytes, and for every 4 bytes who wrote and who read them last.

Cells are as small as a bank's word, so that two warps may write neighbours without a report, and
are found by byte address: what lies at the same place (a ring and an epilogue that reuses it, a
buffer and an mbarrier) is the same cell. Who wrote and read is kept for *areas*: cells that were
always accessed together.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from xdsl.ir import Operation

from tkc.ir.layout import Layout
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.truths import every
from tkc.sim.clocks import Clocks, Event
from tkc.sim.report import Violation, name_of

CELL = 4  # bytes
POISON_BYTE = 0xFF  # bytes of NaN in every float type, −1 as integers
UNSIGNED = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}  # by bytes
WarpRange = tuple[int, int] | None  # warps of an instance, from and to; None: all of them
ALL_WARPS: WarpRange = None


@lru_cache(512)
def places_of(memory: SharedLayout) -> np.ndarray:
    """Of each element, its number in memory counted from the buffer's first byte."""
    return memory.table() // memory.itemsize


@lru_cache(512)
def span_of(memory: SharedLayout) -> slice | np.ndarray:
    """The same places, in no order."""
    places = places_of(memory)
    low, high = int(places.min()), int(places.max()) + 1
    return slice(low, high) if high - low == places.size else places


def distinct(numbers: np.ndarray) -> np.ndarray:
    """Small whole numbers in their order, each once: np.unique, which sorts them."""
    there = np.zeros(int(numbers.max(initial=-1)) + 1, bool)
    there[numbers] = True
    return np.flatnonzero(there)


@lru_cache(4096)
def cells_of(
    memory: SharedLayout,
    held: Layout | None,
    part: WarpRange,
    write: bool,
    rank: int = 0,
    into: int = 0,
) -> np.ndarray:
    """The cells (relative to the one in which the buffer begins, `into` bytes from its start) of
    the elements that a part of the warps of block `rank` holds. What several hold, the first warp
    writes and all read."""
    offsets, mine = memory.table().reshape(-1) + into, elements_of(held, part, write, rank)
    cells = distinct(_words(offsets if mine is None else offsets[mine], memory.itemsize))
    if mine is None or not write or part is None or not part[0]:
        return cells
    before = cells_of(memory, held, (0, part[0]), False, rank, into)
    return np.setdiff1d(cells, before, assume_unique=True)


@lru_cache(4096)
def elements_of(
    held: Layout | None, part: WarpRange, write: bool, rank: int = 0, before: int | None = None
) -> np.ndarray | None:
    """Flat indices of the elements of a tile that a part of the warps of block `rank` accesses,
    None: all. What several hold, the first warp writes and all read; and, of the blocks from
    `before` on, the first block."""
    if held is None or held.num_warps == held.num_blocks == 1:
        return None if part is None or not part[0] or not write else np.empty(0, np.int64)
    if held.num_blocks == 1 and part is None:
        return None
    start, stop = (0, held.num_warps) if part is None else part
    mine = _held(held, start, stop, rank)
    if not write:
        return mine
    others = [
        _held(held, 0, start, rank),
        *(
            _held(held, 0, held.num_warps, r)
            for r in range(rank if before is None else before, rank)
        ),
    ]
    return np.setdiff1d(mine, np.concatenate(others))


def _held(held: Layout, start: int, stop: int, rank: int) -> np.ndarray:
    first = rank % held.num_blocks * held.num_warps
    coords = held.table()[first + start : first + min(stop, held.num_warps)].reshape(
        -1, len(held.shape)
    )
    return distinct(
        np.ravel_multi_index(coords[(coords < np.array(held.shape)).all(1)].T, held.shape)
    )


def _words(offsets: np.ndarray, itemsize: int) -> np.ndarray:
    return (offsets[:, None] // CELL + np.arange(max(1, itemsize // CELL))).reshape(-1)


class Areas:
    """A partition of cells into areas, as coarse as it can be so that every set of cells that was
    asked for is a union of areas. What is true of a cell is kept once an area, in arrays that grow
    as areas are split.
    """

    def __init__(self, cells: int):
        self.of = np.zeros(cells, np.int32)
        self.split_from = [0]  # of each area the one that its cells were of before
        # of each area: its cells; who wrote it last and at which epoch; whether a live mbarrier is
        # there
        self._keep(np.array([[cells], [0], [0], [0]], np.int64))
        self.readers: dict[int, int] = {}  # reader -> its row of `read`
        self.read = np.zeros((0, 1), np.int32)  # epoch of a reader's last read of each area
        # by a start and the id of cells: those (so that no others get the id), their areas, and how
        # many areas there were
        self.known: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, int]] = {}

    def _keep(self, areas: np.ndarray) -> None:
        """[4, areas]: what is kept of each."""
        self.all = areas
        self.sizes, self.writer, self.written, self.guarded = areas

    def among(self, start: int, cells: np.ndarray) -> np.ndarray:
        """The areas that cells (relative to start) are made of."""
        key = start, id(cells)
        known = self.known.get(key)
        if known is not None and known[2] == len(self.sizes):
            return known[1]
        areas = self._split(start + cells) if known is None else self._since(*known[1:])
        self.known[key] = cells, areas, len(self.sizes)
        return areas

    def _since(self, areas: np.ndarray, count: int) -> np.ndarray:
        """Areas that were `count` in all when they were found, with what was split from them: it
        lies among the same cells.
        """
        held = np.zeros(len(self.sizes), bool)
        held[areas] = True
        for area in range(count, len(self.sizes)):
            held[area] = held[self.split_from[area]]
        return np.flatnonzero(held)

    def _split(self, at: np.ndarray) -> np.ndarray:
        """The areas that `at` is made of: those of which it has a part are split."""
        of = self.of[at]
        within = np.bincount(of, minlength=len(self.sizes))
        areas = np.flatnonzero(within)
        old = areas[within[areas] < self.sizes[areas]]
        if not old.size:
            return areas
        self.split_from += old.tolist()
        new = np.arange(len(self.sizes))
        new[old] = len(self.sizes) + np.arange(old.size)
        self.of[at] = new[of]
        self._keep(np.concatenate([self.all, self.all[:, old]], 1))
        self.sizes[-old.size :] = within[old]
        self.sizes[old] -= within[old]
        self.read = np.concatenate([self.read, self.read[:, old]], 1)
        return np.sort(new[areas])

    def row(self, reader: int) -> np.ndarray:
        """The epochs of a reader's last reads, by area."""
        if reader not in self.readers:
            self.readers[reader] = len(self.readers)
            self.read = np.concatenate([self.read, np.zeros((1, len(self.sizes)), np.int32)])
        return self.read[self.readers[reader]]


class SharedMemory:
    """`size` bytes, poisoned, and who wrote and read them."""

    def __init__(self, size: int, clocks: Clocks):
        self.cells = -(-size // CELL)
        self.size, self.clocks = size, clocks
        self.bytes = np.full(self.cells * CELL, POISON_BYTE, np.uint8)
        self.areas = Areas(self.cells)

    # ---- values
    def elements(self, base: int, dtype: np.dtype) -> np.ndarray:
        """The bytes from a base on, as elements."""
        return self.bytes.view(dtype)[base // dtype.itemsize :]

    def load(self, base: int, memory: SharedLayout, dtype: np.dtype) -> np.ndarray:
        """The values of a buffer, in its shape."""
        return self.elements(base, dtype)[places_of(memory)]

    def store(
        self, base: int, memory: SharedLayout, values: np.ndarray, part: np.ndarray | None = None
    ) -> None:
        """Writes a buffer. part: flat indices of the elements that change (None: all)."""
        places, into = places_of(memory), self.elements(base, values.dtype)
        if part is None:
            into[places] = values
        else:
            into[places.reshape(-1)[part]] = values.reshape(-1)[part]

    def poison(self, base: int, memory: SharedLayout) -> None:
        """A copy to a buffer is in flight: what is read there is NaN or −1."""
        self.elements(base, UNSIGNED[memory.itemsize])[span_of(memory)] = (1 << memory.bits) - 1

    # ---- order
    def _areas(self, base: int, cells: np.ndarray, op: Operation, event: Event) -> np.ndarray:
        start = base // CELL
        if start + cells[0] < 0 or start + cells[-1] >= self.cells:
            raise Violation(
                "bounds",
                f"byte {(start + int(cells[-1])) * CELL} of {self.size} bytes of shared memory",
                op,
                (event.who,),
            )
        return self.areas.among(start, cells)

    def guard(self, base: int, cells: np.ndarray) -> None:
        """A live mbarrier is there."""
        self.areas.guarded[self.areas.among(base // CELL, cells)] = True

    def read(self, base: int, cells: np.ndarray, event: Event, op: Operation) -> None:
        """An access of cells (sorted, relative to the one that base is in): raises Violation if a
        write of one of them is not ordered before it.
        """
        if not cells.size:
            return
        at = self._areas(base, cells, op, event)
        self._check_writes(at, event, op, "reads")
        if self.clocks.hazards and not every(self.areas.writer[at] != 0):
            raise Violation(
                "uninitialized",
                f"{event.who} reads shared memory that nobody wrote",
                op,
                (event.who,),
            )
        self.areas.row(event.index)[at] = event.epoch

    def write(self, base: int, cells: np.ndarray, event: Event, op: Operation) -> None:
        """Likewise, against earlier reads too."""
        if not cells.size:
            return
        at, a = self._areas(base, cells, op, event), self.areas
        self._check_writes(at, event, op, "overwrites")
        if a.readers:
            latest = a.read[:, at].max(1)
            readers = list(a.readers)
            late = latest > event.reads_view[readers]
            i = int(late.argmax())
            if late[i]:
                reader, epoch = readers[i], int(latest[i])
                self._fail(
                    event, op, "overwrites", reader, epoch, "reads", event.fenced[reader] >= epoch
                )
        a.writer[at], a.written[at] = event.index, event.epoch

    def _check_writes(self, at: np.ndarray, event: Event, op: Operation, verb: str) -> None:
        guarded = self.areas.guarded[at]
        if guarded[guarded.argmax()]:
            raise Violation(
                "barrier", f"{event.who} {verb} the bytes of a live mbarrier", op, (event.who,)
            )
        writer, written = self.areas.writer[at], self.areas.written[at]
        late = event.view[writer] < written
        i = int(late.argmax())
        if late[i]:
            self._fail(
                event,
                op,
                verb,
                int(writer[i]),
                int(written[i]),
                "writes",
                event.fenced[writer[i]] >= written[i],
            )

    def _fail(
        self,
        event: Event,
        op: Operation,
        verb: str,
        other: int,
        epoch: int,
        did: str,
        fence: bool,
    ) -> None:
        """Of an access and an earlier one by `other`. fence: a proxy fence would order the two."""
        if not self.clocks.hazards:
            return
        earlier = name_of(self.clocks.at(other, epoch))
        who = agent = self.clocks.names[other]
        if other in self.clocks.slots:
            who, agent = "an asynchronous operation", earlier
        edge = "a fence.proxy.async" if fence else "an arrival and a wait, or a barrier,"
        raise Violation(
            "missing proxy fence" if fence else "race",
            f"{event.who} {verb} what {who} {did} in {earlier}; nothing orders the two: missing is"
            f" {edge} between them",
            op,
            (event.who, agent),
        )
