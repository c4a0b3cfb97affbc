"""Global memory of a simulated launch: the arguments' own bytes, found by address.

A pointer is an int64: the number of its buffer in the upper 16 bits, the offset in bytes from the
buffer's first element (plus 2⁴⁷) in the lower 48. So buffers are 2⁴⁸ apart, an offset beyond
one is never inside another, and a tile of pointers is an ordinary array. The addresses that
users put in tables are those of the host (`array.ctypes.data`); `of_host` and `to_host` translate.
Of an array that a kernel makes of such an address, and that is no argument, `adopted` finds the
bytes in this process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from xdsl.ir import Operation

from tkc.ir.truths import every, some
from tkc.sim.errors import BadArgument, OffsetOverflow, OutOfBounds

SHIFT, MIDDLE = 48, 1 << 47
WRAPPED = -1  # the pointer that an offset gives which wrapped


@dataclass(frozen=True)
class Buffer:
    """Bytes [low, high) relative to the first element; `owner` keeps them alive. is_foreign: they
    are no argument, but were found by an address.
    """

    data: np.ndarray
    host: int  # address of the first element
    low: int
    owner: np.ndarray
    name: str
    is_foreign: bool = False

    @property
    def high(self) -> int:
        return self.low + self.data.size


def numbers_of(pointers: np.ndarray) -> list[int]:
    """The buffers that pointers point into (what is none has a number too)."""
    if not pointers.size:
        return []
    low, high = int(pointers.min()) >> SHIFT, int(pointers.max()) >> SHIFT
    return [low] if low == high else np.unique(pointers >> SHIFT).tolist()


def _by_buffer(
    pointers: np.ndarray, live: np.ndarray
) -> Iterator[tuple[int, np.ndarray, Any, int, int]]:
    """Of each buffer that live pointers point into: its number, those pointers, which they are,
    and the lowest and the highest of them.
    """
    touched = pointers if (everything := every(live)) else pointers[live]
    if not touched.size:
        return
    low, high = int(touched.min()), int(touched.max())
    if low >> SHIFT == high >> SHIFT:
        yield low >> SHIFT, touched, ... if everything else live, low, high
        return
    for number in numbers_of(touched):
        which = live & (pointers >> SHIFT == number)
        own = pointers[which]
        yield number, own, which, int(own.min()), int(own.max())


def _mapping(address: int) -> tuple[int, int, bool]:
    """The memory of this process around an address that can be read: its first byte, the one behind
    its last, and whether it can be written. Nothing where there is none, or nobody can say.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return 0, 0, False
    found, end, writes = 0, 0, True
    for line in lines:  # by address
        span, permissions = line.split()[:2]
        low, high = (int(part, 16) for part in span.split("-"))
        if end and (low != end or permissions[0] != "r"):
            break  # behind the end of what is one piece around the address
        if end or low <= address < high and permissions[0] == "r":
            found, end = found or low, high
            writes = writes and permissions[1] == "w"
    return found, end, writes and end > 0


@dataclass
class Touched:
    """Which bytes of each buffer, by its number, a run has read and which it has written."""

    read: dict[int, np.ndarray] = field(default_factory=dict)
    written: dict[int, np.ndarray] = field(default_factory=dict)

    def note(self, number: int, size: int, at: np.ndarray, itemsize: int, write: bool) -> None:
        """An access to elements of a buffer of `size` bytes. at: which of its elements."""
        held = self.written if write else self.read
        if number not in held:
            held[number] = np.zeros(size, np.uint8)
        whole = held[number][: size // itemsize * itemsize].view(f"V{itemsize}")
        whole[at] = np.void(b"\1" * itemsize)

    def beyond(self, other: Touched, buffers: Iterable[int]) -> tuple[int, int, bool] | None:
        """The first byte of some buffers that this run touches and another does not: buffer, byte,
        and whether it is written. What the other one writes may be read.
        """
        for number in buffers:
            for write, own in ((False, self.read), (True, self.written)):
                if number not in own:
                    continue
                more = own[number].astype(bool)
                for there in (other.written,) if write else (other.read, other.written):
                    if number in there:
                        more &= there[number] == 0
                if more.any():
                    return number, int(more.argmax()), write
        return None


class GlobalMemory:
    """Buffers by address."""

    def __init__(self, in_place: bool = False, touched: Touched | None = None) -> None:
        """in_place: what `adopted` finds is written, not a copy of it; touched: notes what is read
        and written.
        """
        self.in_place, self.touched = in_place, touched
        self.buffers: list[Buffer] = []
        self.workspaces: dict[Operation, int] = {}  # pointers
        self.stores = 0

    def register(self, array: np.ndarray, name: str = "") -> int:
        """The pointer to the array's first element; the array's own bytes are used, in place."""
        host = array.ctypes.data
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (host, host)
        data = np.empty(0, np.uint8)
        if high > low:
            data = np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))
        self.buffers.append(
            Buffer(data, host, low - host, array, name or f"buffer {len(self.buffers)}")
        )
        if len(self.buffers) >= 1 << 15:
            raise BadArgument("at most 32767 buffers can be registered")
        return (len(self.buffers) << SHIFT) + MIDDLE

    def adopted(
        self, pointer: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
    ) -> int:
        """The pointer to the first element of an array that a kernel makes: of a host address that
        lies in no buffer, with a buffer of the array's bytes, as many as are memory of this
        process. An address outside of that stays as it is.
        """
        ends = [(n - 1) * s * itemsize for n, s in zip(shape, strides, strict=True)]
        low, high = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + itemsize
        if min(shape, default=1) < 1 or not self._is_foreign(pointer, low, high):
            return pointer
        address = int(self.to_host(np.array(pointer)))
        start, stop, writes = _mapping(address)
        start = max(address + low, start)
        size = (min(address + high, stop) - start) // itemsize * itemsize
        if size <= 0:
            return pointer
        array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
        data = array if self.in_place else array.copy()
        data.flags.writeable = writes
        owner, name = data.view(f"u{itemsize}"), f"the memory at address {address:#x}"
        self.buffers.append(Buffer(data, address, start - address, owner, name, True))
        return (len(self.buffers) << SHIFT) + MIDDLE

    def _is_foreign(self, pointer: int, low: int, high: int) -> bool:
        """Whether bytes [low, high) around a pointer lie in no buffer, or beyond one of what is no
        argument.
        """
        if not 0 < pointer >> SHIFT <= len(self.buffers):
            return not pointer >> SHIFT
        b = self.buffers[(pointer >> SHIFT) - 1]
        at = (pointer & (1 << SHIFT) - 1) - MIDDLE
        return b.is_foreign and (at + low < b.low or at + high > b.high)

    def of_host(self, addresses: np.ndarray) -> np.ndarray:
        """Host addresses as pointers; what lies in no buffer stays as it is (and cannot be
        accessed), and what lies in several, which are views of one another, is in the largest.
        """
        out = np.array(addresses).astype(np.int64)
        given = out.copy()
        for i, b in sorted(enumerate(self.buffers, 1), key=lambda found: found[1].data.size):
            inside = (given >= b.host + b.low) & (given < b.host + b.high)
            out[inside] = given[inside] - b.host + (i << SHIFT) + MIDDLE
        return out

    def to_host(self, pointers: np.ndarray) -> np.ndarray:
        """The inverse of `of_host`."""
        bases = np.array(
            [0, *(b.host - MIDDLE - (i << SHIFT) for i, b in enumerate(self.buffers, 1))], np.int64
        )
        number = np.asarray(pointers) >> SHIFT
        return pointers + bases[np.where((number > 0) & (number < len(bases)), number, 0)]

    def _parts(
        self, pointers: np.ndarray, live: np.ndarray, dtype: np.dtype, write: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
        """The buffers touched: (elements of the buffer, indices, which of the pointers)."""
        for number, own, which, low, high in _by_buffer(pointers, live):
            if number == WRAPPED >> SHIFT:
                raise OffsetOverflow(
                    "an offset of an element that is accessed wraps in the integer type of the"
                    " program"
                )
            if not 0 < number <= len(self.buffers):
                raise OutOfBounds(f"address {int(own.flat[0]):#x} belongs to no argument")
            b = self.buffers[number - 1]
            start = (number << SHIFT) + MIDDLE + b.low
            at = own - start
            if low < start or high + dtype.itemsize > start + b.data.size:
                bad = np.asarray(at)[(at < 0) | (at + dtype.itemsize > b.data.size)][0] + b.low
                raise OutOfBounds(
                    f"{'write' if write else 'read'} of {dtype.itemsize} bytes at byte {int(bad)}"
                    f" of {b.name}, which has bytes {b.low} to {b.high}"
                )
            if write and not b.owner.flags.writeable:
                raise BadArgument(f"{b.name} is read-only but the kernel writes it")
            if some(at & dtype.itemsize - 1 != 0):
                raise OutOfBounds(f"misaligned access of {dtype.itemsize} bytes in {b.name}")
            index = at >> dtype.itemsize.bit_length() - 1
            if self.touched is not None:
                self.touched.note(number, b.data.size, index, dtype.itemsize, write)
            elements = b.data[: b.data.size // dtype.itemsize * dtype.itemsize].view(dtype)
            yield elements, index, which

    def load(
        self,
        pointers: np.ndarray,
        live: np.ndarray,
        dtype: np.dtype,
        other: np.ndarray | float = 0,
    ) -> np.ndarray:
        """One element of each live pointer, `other` elsewhere."""
        parts = list(self._parts(pointers, live, dtype, False))
        if len(parts) == 1 and parts[0][2] is ...:
            return np.asarray(parts[0][0][parts[0][1]])
        out = np.array(np.broadcast_to(np.asarray(other).astype(dtype), pointers.shape))
        for elements, at, which in parts:
            out[which] = elements[at]
        return out

    def store(self, pointers: np.ndarray, live: np.ndarray, values: np.ndarray) -> None:
        """One element to each live pointer; of two to one address the last wins."""
        for elements, at, which in self._parts(pointers, live, values.dtype, True):
            elements[at] = values[which]
            self.stores += 1
