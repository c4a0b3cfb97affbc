"""Global memory of a simulated launch: the arguments' own bytes, found by address.

A pointer is an int64: the number of its buffer in the upper 16 bits, the offset in bytes from the
buffer's first element (plus 2⁴⁷) in the lower 48. So buffers are 2⁴⁸ apart and no pointer strays
from one into another unnoticed, and a tile of pointers is an ordinary array. The addresses that
users put in tables are those of the host (`array.ctypes.data`); `of_host` and `to_host` translate.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from tkc.sim.errors import BadArgument, OffsetOverflow, OutOfBounds

SHIFT, MIDDLE = 48, 1 << 47
WRAPPED = -1  # the pointer that an offset gives which wrapped


@dataclass(frozen=True)
class Buffer:
    """Bytes [low, high) relative to the first element; `owner` keeps them alive."""

    data: np.ndarray
    host: int  # address of the first element
    low: int
    owner: np.ndarray
    name: str

    @property
    def high(self) -> int:
        return self.low + self.data.size


def numbers_of(pointers: np.ndarray) -> list[int]:
    """The buffers that pointers point into (what is none has a number too)."""
    if not pointers.size:
        return []
    low, high = int(pointers.min()) >> SHIFT, int(pointers.max()) >> SHIFT
    return [low] if low == high else np.unique(pointers >> SHIFT).tolist()


class GlobalMemory:
    """Buffers by address."""

    def __init__(self) -> None:
        self.buffers, self.workspaces, self.stores = [], {}, 0

    def register(self, array: np.ndarray, name: str = "") -> int:
        """The pointer to the array's first element; the array's own bytes are used, in place."""
        host = array.ctypes.data
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (host, host)
        data = (
            np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8)
            if high > low
            else np.empty(0, np.uint8)
        )
        self.buffers.append(
            Buffer(data, host, low - host, array, name or f"buffer {len(self.buffers)}")
        )
        if len(self.buffers) >= 1 << 15:
            raise BadArgument("at most 32767 buffers can be registered")
        return (len(self.buffers) << SHIFT) + MIDDLE

    def of_host(self, addresses: np.ndarray) -> np.ndarray:
        """Host addresses as pointers; what lies in no buffer stays as it is (and cannot be
        accessed).
        """
        out = np.array(addresses).astype(np.int64)
        given = out.copy()
        for i, b in enumerate(self.buffers, 1):
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

    def _parts(self, pointers: np.ndarray, live: np.ndarray, dtype: np.dtype, write: bool):
        """The buffers touched: (elements of the buffer, indices, which of the pointers)."""
        touched = pointers if (everything := bool(live.all())) else pointers[live]
        numbers = numbers_of(touched)
        for number in numbers:
            if number == WRAPPED >> SHIFT:
                raise OffsetOverflow(
                    "an offset of an element that is accessed wraps in the integer type of the"
                    " program"
                )
            which = (
                live & (pointers >> SHIFT == number)
                if len(numbers) > 1
                else ...
                if everything
                else live
            )
            if not 0 < number <= len(self.buffers):
                raise OutOfBounds(
                    f"address {int(pointers[which].flat[0]):#x} belongs to no argument"
                )
            b = self.buffers[number - 1]
            at = (touched if len(numbers) == 1 else pointers[which]) - (
                (number << SHIFT) + MIDDLE + b.low
            )
            if at.min() < 0 or at.max() + dtype.itemsize > b.data.size:
                bad = np.asarray(at)[(at < 0) | (at + dtype.itemsize > b.data.size)][0] + b.low
                raise OutOfBounds(
                    f"{'write' if write else 'read'} of {dtype.itemsize} bytes at byte {int(bad)}"
                    f" of {b.name}, which has bytes {b.low} to {b.high}"
                )
            if write and not b.owner.flags.writeable:
                raise BadArgument(f"{b.name} is read-only but the kernel writes it")
            if (at & dtype.itemsize - 1).any():
                raise OutOfBounds(f"misaligned access of {dtype.itemsize} bytes in {b.name}")
            yield (
                b.data[: b.data.size // dtype.itemsize * dtype.itemsize].view(dtype),
                at >> dtype.itemsize.bit_length() - 1,
                which,
            )

    def load(self, pointers: np.ndarray, live: np.ndarray, dtype: np.dtype, other=0) -> np.ndarray:
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
