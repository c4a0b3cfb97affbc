"""Global memory of a launch, and the shared memory of the blocks of a cluster, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tkc.ir.truths import every
from tkc.sim.ptx.faults import Unknown, require

FIRST_ADDRESS = 4096  # of global memory; below it nothing lies
FIRST_BYTES = 1 << 16  # of memory, which grows with what is put there
MAX_BYTES = 1 << 30  # of an array, which is copied
RESERVED_BYTES = 1024  # of each block's shared memory: the system's
RANK_SHIFT = 24  # the bit from which on an address in shared memory says which block's it is


@dataclass
class Memory:
    """Global memory: arrays at addresses of their own."""

    bytes: np.ndarray = field(default_factory=lambda: np.zeros(FIRST_BYTES, np.uint8))
    used: int = FIRST_ADDRESS

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
        if large := [n for low, high in spans if (n := high - low) > MAX_BYTES]:
            raise Unknown(f"an array of {large[0]} bytes")
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
                here, moved = self.get(at, array), np.zeros(array.shape, bool)
                for (low, high), by in shift.items():
                    inside = (array >= low) & (array < high) & ~moved  # of several that overlap
                    # modulo 2^64: unsigned arrays take no negative Python integer
                    here[inside] += np.int64(by).astype(array.dtype)
                    moved |= inside
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
    found: Any = array
    while (found := getattr(found, "base", None)) is not None:  # NumPy's own objects between views
        array = found if isinstance(found, np.ndarray) else array
    return array


class Shared:
    """The shared memory of the blocks of a cluster, one after the other. An address has the block's
    rank above bit 23, the system's bytes come before ours.
    """

    def __init__(self, blocks: int, size: int):
        self.blocks = blocks
        self.limit = RESERVED_BYTES + size
        self.stride = RESERVED_BYTES + -(-size // 1024) * 1024 + 1024
        self.bytes = np.zeros(blocks * self.stride, np.uint8)

    def start(self, rank: np.ndarray) -> np.ndarray:
        """The address of the first byte of the memory of blocks."""
        return rank << RANK_SHIFT | RESERVED_BYTES

    def index(self, at: np.ndarray, size: int, rank: np.ndarray | None) -> np.ndarray:
        """Where addresses lie in `bytes`. rank: of the blocks whose own memory they must be (None:
        any of the cluster).
        """
        at = np.asarray(at)
        block, offset = at >> RANK_SHIFT, at & (1 << RANK_SHIFT) - 1
        require(
            every(
                (block < self.blocks) & (offset >= RESERVED_BYTES) & (offset + size <= self.limit)
            ),
            "an access outside memory",
        )
        require(
            rank is None or every(block == rank),
            "an access to another block's shared memory through the window of its own",
        )
        return block * self.stride + offset
