"""Global memory of a simulated launch: the arguments' own bytes, found by address.

A pointer is an int64: the number of its buffer in the upper 16 bits, the offset in bytes from the buffer's first element
(plus 2⁴⁷) in the lower 48. So buffers are 2⁴⁸ apart and no pointer strays from one into another unnoticed, and a tile of pointers is an
ordinary array. The addresses that users put in tables are those of the host (`array.ctypes.data`); `of_host` and `to_host` translate.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from tkc.sim.errors import BadArgument, OffsetOverflow, OutOfBounds

SHIFT, MIDDLE = 48, 1 << 47
WRAPPED = -1                        # the pointer that an offset gives which wrapped


@dataclass(frozen=True)
class Buffer:
    """Bytes [low, high) relative to the first element; `owner` keeps them alive."""
    data: np.ndarray
    host: int                   # address of the first element
    low: int
    owner: np.ndarray
    name: str

    @property
    def high(self) -> int: return self.low + self.data.size


class GlobalMemory:
    """Buffers by address."""

    def __init__(self) -> None: self.buffers: list[Buffer] = []

    def register(self, array: np.ndarray, name: str = "") -> int:
        """The pointer to the array's first element; the array's own bytes are used, in place."""
        host = array.ctypes.data
        low, high = np.lib.array_utils.byte_bounds(array) if array.size else (host, host)
        data = np.frombuffer((ctypes.c_char * (high - low)).from_address(low), np.uint8) if high > low else np.empty(0, np.uint8)
        self.buffers.append(Buffer(data, host, low - host, array, name or f"buffer {len(self.buffers)}"))
        if len(self.buffers) >= 1 << 15: raise BadArgument("at most 32767 buffers can be registered")
        return (len(self.buffers) << SHIFT) + MIDDLE

    def of_host(self, addresses: np.ndarray) -> np.ndarray:
        """Host addresses as pointers; what lies in no buffer stays as it is (and cannot be accessed)."""
        out = np.array(addresses).astype(np.int64)
        given = out.copy()
        for i, b in enumerate(self.buffers, 1):
            inside = (given >= b.host + b.low) & (given < b.host + b.high)
            out[inside] = given[inside] - b.host + (i << SHIFT) + MIDDLE
        return out

    def to_host(self, pointers: np.ndarray) -> np.ndarray:
        """The inverse of `of_host`."""
        bases = np.array([0, *(b.host - MIDDLE - (i << SHIFT) for i, b in enumerate(self.buffers, 1))], np.int64)
        number = np.asarray(pointers) >> SHIFT
        return pointers + bases[np.where((number > 0) & (number < len(bases)), number, 0)]

    def _parts(self, pointers: np.ndarray, live: np.ndarray, dtype: np.dtype, write: bool):
        """The buffers touched: (elements of the buffer, indices, which of the pointers)."""
        for number in np.unique(pointers[live] >> SHIFT):
            if number == WRAPPED >> SHIFT: raise OffsetOverflow("an offset of an element that is accessed wraps in the integer type of the program")
            which = live & (pointers >> SHIFT == number)
            if not 0 < number <= len(self.buffers): raise OutOfBounds(f"address {int(pointers[which][0]):#x} belongs to no argument")
            b = self.buffers[number - 1]
            at = pointers[which] - (int(number) << SHIFT) - MIDDLE
            bad = (at < b.low) | (at + dtype.itemsize > b.high)
            if bad.any(): raise OutOfBounds(f"{'write' if write else 'read'} of {dtype.itemsize} bytes at byte {int(at[bad][0])} of {b.name}, which has bytes {b.low} to {b.high}")
            if write and not b.owner.flags.writeable: raise BadArgument(f"{b.name} is read-only but the kernel writes it")
            if ((at - b.low) % dtype.itemsize).any(): raise OutOfBounds(f"misaligned access of {dtype.itemsize} bytes in {b.name}")
            yield b.data[:b.data.size // dtype.itemsize * dtype.itemsize].view(dtype), (at - b.low) // dtype.itemsize, which

    def load(self, pointers: np.ndarray, live: np.ndarray, dtype: np.dtype, other=0) -> np.ndarray:
        """One element of each live pointer, `other` elsewhere."""
        out = np.array(np.broadcast_to(np.asarray(other).astype(dtype), pointers.shape))
        for elements, at, which in self._parts(pointers, live, dtype, False): out[which] = elements[at]
        return out

    def store(self, pointers: np.ndarray, live: np.ndarray, values: np.ndarray) -> None:
        """One element to each live pointer; of two to one address the last wins."""
        for elements, at, which in self._parts(pointers, live, values.dtype, True): elements[at] = values[which]
