"""Shared-memory layouts: coordinates of a tile -> byte offset, the XOR swizzle included.

A warp that reads a column of a row-major tile accesses one bank 32 times over. Hopper's layout
against that, common to TMA, wgmma, ldmatrix and tkc, has two steps. A tile is first cut into
*panels* as wide as the swizzle (128 bytes are 64 elements of 16 bits); each panel is stored row
after row, and panel after panel:

       64x128xb16 swizzle 128           offset = panel * 8192 + row * 128 + column % 64 * 2
       +-----------+-----------+
       |  panel 0  |  panel 1  |  64 rows
       +-----------+-----------+        8192: the bytes of one panel = `panel_stride`

Then the 16-byte chunks of each row change places: chunk c of row r goes to place c ^ (r % 8), so
that any eight chunks of a column or row lie in eight different bank groups.

       place       0  1  2  3  4  5  6  7
       row 0       0  1  2  3  4  5  6  7
       row 1       1  0  3  2  5  4  7  6
       row 2       2  3  0  1  6  7  4  5
       row 3       3  2  1  0  7  6  5  4
       row 4       4  5  6  7  0  1  2  3
       row 5       5  4  7  6  1  0  3  2
       row 6       6  7  4  5  2  3  0  1
       row 7       7  6  5  4  3  2  1  0

In bits of the offset, for every width of swizzle:

       ... 9 8 7 | 6 5 4 | 3 2 1 0        128: [4, 7) ^= [7, 10)    repeats after 1024 bytes
           +-+-+   +-+-+                   64: [4, 6) ^= [7, 9)                    512
             |       ^                     32: [4, 5) ^= [7, 8)                    256
             +--XOR--+

The bytes after which the pattern repeats are the *atom*; a buffer starts at a multiple of it, so
the XOR of an offset is the XOR of the address. Everything whose offset is a multiple of the atom (a
stage of a ring, 64 rows, a panel) is simply added. Without a swizzle the tile is dense, or has
`pad` spare bytes after each row.

Of a tile that the blocks of a cluster deal out along its fastest axis (`spread` of them), each has
its own part: the buffer is as small as that, and a column stands where it stands in the part.

A swizzle of 16 is panels of one chunk and nothing to XOR: the "no swizzle" of wgmma and TMA, for
tiny operands.

>>> tile = SharedLayout((64, 128), 16, swizzle=128)
>>> tile.offset((1, 0)), tile.offset((1, 8)), tile.offset((0, 64)), tile.bytes
(144, 128, 8192, 16384)

The sixth step of 16 elements along k is 32 bytes into the second panel:

>>> tile.descriptor("k").k_offset(5)
8224
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd, prod
from typing import Any, TypeVar

import numpy as np

from tkc.ir.digits import LayoutError, parse_shape, shape_text
from tkc.ir.layout import Layout

N = TypeVar("N", int, np.ndarray)
BANKS, WORD, CHUNK = 32, 4, 16
SWIZZLES = {0: 0, 16: 0, 32: 1, 64: 2, 128: 3}  # width in bytes -> bits that are XORed
LAYOUT_CODES = {16: 0, 128: 1, 64: 2, 32: 3}  # bits 62-63 of a wgmma descriptor


@dataclass(frozen=True)
class SharedLayout:
    """Coordinates -> byte offset in shared memory.  The module's docstring teaches it.

    `strides` and `panel_stride` are derived; a sub-tile made by `slice` keeps those of its parent.
    """

    shape: tuple[int, ...]
    bits: int  # of an element: 8, 16, 32, 64 or 128
    swizzle: int = 0  # width of a panel in bytes, 0: no panels
    order: tuple[int, ...] = ()  # axes, fastest first; default: the last axis is fastest
    pad: int = 0  # spare bytes after each row of the fastest axis; only without swizzle
    spread: int = 1  # blocks of a cluster that have a part of the fastest axis each; only dense
    strides: tuple[int, ...] = ()  # bytes per step of each axis, inside a panel
    panel_stride: int = 0  # bytes from panel to panel

    def __post_init__(self) -> None:
        rank = len(self.shape)
        self._set(shape=tuple(self.shape), order=tuple(self.order) or tuple(reversed(range(rank))))
        if wrong := next(self._wrong(), None):
            raise LayoutError(wrong)
        if not self.strides:
            self._set(strides=self._dense())
        if not self.panel_stride:
            rows = prod(self.shape) // self.shape[self.fast]
            self._set(panel_stride=-(-rows * self.swizzle // self.atom) * self.atom)

    @cached_property
    def _hash(self) -> int:
        return hash(
            (
                *(self.shape, self.bits, self.swizzle, self.order, self.pad, self.spread),
                *(self.strides, self.panel_stride),
            )
        )

    def __hash__(self) -> int:
        """Computed once: types have layouts, and types are looked up all the time."""
        return self._hash

    def _wrong(self) -> Iterator[str]:
        """What is wrong with the fields that are given."""
        rank = len(self.shape)
        if rank == 0 or any(n < 1 for n in self.shape):
            yield (
                "a tile in shared memory has extents of at least 1, but the shape is"
                f" {shape_text(self.shape)}"
            )
        if self.bits not in (8, 16, 32, 64, 128):
            yield f"elements in shared memory have 8, 16, 32, 64 or 128 bits, not {self.bits}"
        if self.swizzle not in SWIZZLES:
            yield f"a swizzle is {', '.join(map(str, SWIZZLES))} bytes wide, not {self.swizzle}"
        if sorted(self.order) != list(range(rank)):
            yield (
                f"order {self.order} does not list the {rank} axes of a {shape_text(self.shape)}"
                " tile"
            )
        if self.pad and self.swizzle or self.pad < 0:
            yield f"a pad of {self.pad} bytes does not go with swizzle {self.swizzle}"
        if not self._can_be_dealt_out():
            yield (
                f"{self.spread} blocks cannot deal out a row of {self.shape[self.fast]}: it is"
                " dense, and their parts are equal"
            )

    def _can_be_dealt_out(self) -> bool:
        is_dense = not self.swizzle and not self.pad
        parts_are_equal = self.spread >= 1 and self.shape[self.fast] % self.spread == 0
        return self.spread == 1 or is_dense and parts_are_equal

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _dense(self) -> tuple[int, ...]:
        strides = {self.fast: self.itemsize}
        step = self.swizzle or self.row * self.itemsize + self.pad
        for axis in self.order[1:]:
            strides[axis], step = step, step * self.shape[axis]
        return tuple(strides[axis] for axis in range(len(self.shape)))

    @staticmethod
    def widest(
        shape: Sequence[int], bits: int, order: Sequence[int] = (), most: int = 128
    ) -> SharedLayout:
        """With the widest swizzle whose panels the fastest axis fills (16-bit 128x64: 128 bytes;
        128x40: 16).
        """
        row = shape[order[0] if order else -1] * bits // 8
        swizzle = max(
            width for width in SWIZZLES if width <= most and (width == 0 or row % width == 0)
        )
        return SharedLayout(tuple(shape), bits, swizzle, tuple(order))

    # ---- sizes
    # ----------------------------------------------------------------------------------------------

    @property
    def fast(self) -> int:
        """The fastest axis."""
        return self.order[0]

    @property
    def itemsize(self) -> int:
        return self.bits // 8

    @property
    def panel(self) -> int:
        """Elements of the fastest axis in one panel."""
        return self.swizzle // self.itemsize or self.row

    @property
    def row(self) -> int:
        """Elements of the fastest axis that a block has."""
        return self.shape[self.fast] // self.spread

    @property
    def num_panels(self) -> int:
        return -(-self.row // self.panel)

    @property
    def atom(self) -> int:
        """Bytes after which the XOR pattern repeats: what is added to an address must be a
        multiple.
        """
        return 8 * self.swizzle if SWIZZLES[self.swizzle] else max(self.swizzle, 1)

    @cached_property
    def alignment(self) -> int:
        """Of the buffer's first byte."""
        return max(self.atom, CHUNK)

    @cached_property
    def bytes(self) -> int:
        """From the first byte to the last, for a dense tile everything it occupies."""
        row = self.swizzle or self.row * self.itemsize + self.pad
        slow = sum((self.shape[a] - 1) * self.strides[a] for a in self.order[1:])
        return (self.num_panels - 1) * self.panel_stride + slow + row

    # ---- where an element is
    # --------------------------------------------------------------------------------------

    def offset(self, coord: Sequence[int]) -> int:
        """The byte offset of an element."""
        panel, column = divmod(
            coord[self.fast] % self.row if self.spread > 1 else coord[self.fast], self.panel
        )
        at = (
            panel * self.panel_stride
            + column * self.itemsize
            + sum(coord[a] * self.strides[a] for a in self.order[1:])
        )
        return self.swizzled(at)

    def offsets(self, coords: np.ndarray) -> np.ndarray:
        """`offset` for an integer array [..., rank] of coordinates."""
        coords = np.asarray(coords)
        panel, column = np.divmod(
            coords[..., self.fast] % self.row if self.spread > 1 else coords[..., self.fast],
            self.panel,
        )
        slow = sum((coords[..., a] * self.strides[a] for a in self.order[1:]), 0)
        return self.swizzled(panel * self.panel_stride + column * self.itemsize + slow)

    def swizzled(self, at: N) -> N:
        """The XOR alone, of an integer or an array: what maps a plain panel offset to its place."""
        return at ^ (at >> 7 & (1 << SWIZZLES[self.swizzle]) - 1) << 4

    def table(self) -> np.ndarray:
        """The offset of every element, an array of `shape`."""
        return self._table

    @cached_property
    def _table(self) -> np.ndarray:
        table = self.offsets(np.moveaxis(np.indices(self.shape), 0, -1))
        table.flags.writeable = False
        return table

    def linear(self, axis: int) -> tuple[int, int]:
        """(step, bytes): moving by any multiple of `step` along `axis` adds that multiple of
        `bytes`, swizzle or not.
        """
        if axis % len(self.shape) == self.fast:
            return (self.panel, self.panel_stride) if self.swizzle else (1, self.itemsize)
        stride = self.strides[axis]
        step = self.atom // gcd(self.atom, stride)
        return step, step * stride

    # ---- algebra
    # ----------------------------------------------------------------------------------------------

    def transpose(self, perm: Sequence[int]) -> SharedLayout:
        """The same bytes seen with axis i = axis perm[i] of this tile."""
        perm = list(perm)
        if sorted(perm) != list(range(len(self.shape))):
            raise LayoutError(
                f"{tuple(perm)} does not permute the axes of a {shape_text(self.shape)} tile"
            )
        return replace(
            self,
            shape=tuple(self.shape[a] for a in perm),
            strides=tuple(self.strides[a] for a in perm),
            order=tuple(perm.index(a) for a in self.order),
        )

    def slice(self, offsets: Sequence[int], sizes: Sequence[int]) -> tuple[SharedLayout, int]:
        """The sub-tile at `offsets`, as a layout in the parent's memory, and the byte offset where
        it starts.
        """
        for axis, (offset, size, extent) in enumerate(zip(offsets, sizes, self.shape, strict=True)):
            step, _ = self.linear(axis)
            if size < 1 or offset < 0 or offset + size > extent:
                raise LayoutError(
                    f"the slice [{offset}, {offset + size}) leaves axis {axis} of extent {extent}"
                )
            if offset % step:
                raise LayoutError(
                    f"a slice at {offset} along axis {axis} cuts through a swizzle atom: "
                    f"it must start at a multiple of {step}"
                )
        return replace(self, shape=tuple(sizes), panel_stride=self.panel_stride), self.offset(
            offsets
        )

    def reshape(self, shape: Sequence[int]) -> SharedLayout:
        """The same bytes under other extents: any of a dense tile, of one with panels those of its
        slow axes. Raises LayoutError where rows do not follow one another.
        """
        shape, rows = tuple(shape), SharedLayout(self.shape, self.bits, self.swizzle)
        is_same = not self.swizzle or shape[-1] == self.shape[-1]
        if prod(shape) != prod(self.shape) or self != rows or not is_same:
            raise LayoutError(f"{self} cannot be seen as a {shape_text(shape)} tile")
        return SharedLayout(shape, self.bits, self.swizzle)

    def drop(self, axis: int) -> SharedLayout:
        """Without an axis of extent 1, at the same bytes."""
        axis %= len(self.shape)
        if self.shape[axis] != 1 or axis == self.fast:
            raise LayoutError(
                f"axis {axis} of {self} cannot be dropped: only a slow axis of extent 1 can"
            )
        return replace(
            self,
            shape=self.shape[:axis] + self.shape[axis + 1 :],
            strides=self.strides[:axis] + self.strides[axis + 1 :],
            order=tuple(a - (a > axis) for a in self.order if a != axis),
            panel_stride=self.panel_stride,
        )

    # ---- wgmma
    # ----------------------------------------------------------------------------------------------

    def descriptor(self, major: str) -> Descriptor:
        """The matrix descriptor of a 2-D wgmma operand whose fastest axis is K (`"k"`) or M or N
        (`"mn"`).
        """
        if len(self.shape) != 2 or not self.swizzle:
            raise LayoutError(
                f"wgmma reads 2-D tiles in panels of 16, 32, 64 or 128 bytes, not {self}"
            )
        if self.strides[self.order[1]] != self.swizzle:
            raise LayoutError(f"wgmma reads panels whose rows follow each other, not {self}")
        rows8 = 8 * self.swizzle
        code, wide = LAYOUT_CODES[self.swizzle], self.swizzle > CHUNK
        if major == "k":
            per_panel = max(self.swizzle // 32, 1)
            panel = self.panel_stride * (1 if wide else 2)
            return Descriptor(
                major,
                CHUNK if wide else self.panel_stride,
                rows8,
                code,
                32,
                per_panel,
                panel,
                8 * rows8,
            )
        if major != "mn":
            raise LayoutError(f"the major of a wgmma operand is 'k' or 'mn', not {major!r}")
        if self.bits != 16:
            raise LayoutError(
                f"wgmma reads {self.bits}-bit operands K-major only; MN-major needs 16-bit elements"
            )
        lbo, sbo = (self.panel_stride, rows8) if wide else (rows8, self.panel_stride)
        return Descriptor(
            major, lbo, sbo, code, 2 * rows8, 1, 2 * rows8, 64 // self.panel * self.panel_stride
        )

    # ---- bank conflicts
    # ----------------------------------------------------------------------------------------------

    def conflicts(self, coords: np.ndarray, access: int) -> int:
        """`conflicts` of the lanes [..., 32] that access the elements at `coords` [..., 32, rank],
        `access` bytes each.
        """
        coords = np.asarray(coords)
        inside = (coords < np.array(self.shape)).all(-1)
        return conflicts(np.where(inside, self.offsets(coords), -1), access)

    # ---- text
    # ----------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        plain = SharedLayout(self.shape, self.bits, self.swizzle, self.order, self.pad, self.spread)
        words = [f"{shape_text(self.shape)}xb{self.bits}"]
        words += [f"swizzle {self.swizzle}"] * bool(self.swizzle)
        words += [f"order {shape_text(self.order)}"] * (
            self.order != tuple(reversed(range(len(self.shape))))
        )
        words += [f"pad {self.pad}"] * bool(self.pad)
        words += [f"spread {self.spread}"] * (self.spread > 1)
        words += [f"strides {shape_text(self.strides)}"] * (self.strides != plain.strides)
        words += [f"panel_stride {self.panel_stride}"] * (self.panel_stride != plain.panel_stride)
        return " ".join(words)

    @staticmethod
    def parse(text: str) -> SharedLayout:
        """The inverse of `str`: "64x128xb16 swizzle 128 order 0x1"."""
        head, *words = text.split() or [""]
        match = re.fullmatch(r"(\d+(?:x\d+)*)xb(\d+)", head)
        options = dict(zip(words[::2], words[1::2], strict=False))
        known = {"swizzle", "order", "pad", "spread", "strides", "panel_stride"}
        if not match or len(words) % 2 or not options.keys() <= known:
            raise LayoutError(
                f"cannot read the shared layout {text!r}: expected 64x128xb16 [swizzle 128] [order"
                " 1x0] [pad 16]"
            )
        values = {key: parse_shape(value) for key, value in options.items()}
        tuples: dict[str, Any] = {
            key: value if key in ("order", "strides") else value[0] for key, value in values.items()
        }
        return SharedLayout(parse_shape(match[1]), int(match[2]), **tuples)


@dataclass(frozen=True)
class Descriptor:
    """A wgmma matrix descriptor without its address: fields in bytes, and how far to move for the
    next K or M/N.
    """

    major: str  # "k" or "mn"
    lbo: int  # leading byte offset (swizzled K-major: ignored by the hardware)
    sbo: int  # stride byte offset
    code: int  # swizzle: 0 none, 1 128B, 2 64B, 3 32B
    # bytes to the next instruction's K (16 elements of 16 bits, 32 of 8, 8 of 32) inside a panel
    k_bytes: int
    k_per_panel: int  # so many such steps,
    k_panel: int  # then this many bytes to the next panel
    rows64: int  # bytes to the next 64 of M or N

    def k_offset(self, step: int) -> int:
        """Bytes from the operand's start to its K step number `step`."""
        panel, inner = divmod(step, self.k_per_panel)
        return panel * self.k_panel + inner * self.k_bytes

    @property
    def bits(self) -> int:
        """The 64-bit descriptor of address 0: add (address & 0x3ffff) >> 4."""
        return self.lbo >> 4 << 16 | self.sbo >> 4 << 32 | self.code << 62


def conflicts(addresses: np.ndarray, access: int) -> int:
    """The most passes that any phase of a warp's access needs; 1 is free of bank conflicts.

    `addresses` [..., lanes] are the lanes' byte addresses (-1: inactive). The hardware serves 128
    bytes at a time: 32 lanes of up to 4 bytes, 16 of 8 or 8 of 16. In such a phase each of the 32
    banks gives one 4-byte word a pass, to as many lanes as read that word. (ldmatrix and stmatrix:
    one phase a matrix, 16 bytes a lane.)
    """
    if access not in (1, 2, 4, 8, 16):
        raise LayoutError(
            f"a lane accesses 1, 2, 4, 8 or 16 bytes of shared memory at once, not {access}"
        )
    addresses = np.asarray(addresses)
    lanes = min(128 // max(access, WORD), addresses.shape[-1])
    first = _different(addresses.reshape(-1, lanes) // WORD, max(access // WORD, 1))[:, :, None]
    words = np.where(first < 0, -1, first + np.arange(max(access // WORD, 1))).reshape(
        len(first), -1
    )
    words.sort(axis=1)
    fresh = words >= 0
    fresh[:, 1:] &= words[:, 1:] != words[:, :-1]
    loads = np.bincount(np.nonzero(fresh)[0] * BANKS + words[fresh] % BANKS, minlength=1)
    return max(int(loads.max()), 1)


def _different(phases: np.ndarray, width: int) -> np.ndarray:
    """Of phases [phases, lanes], each lane with the first of the `width` words that it accesses,
    one for all where they differ by what only exchanges the banks: a sum, or bits turned over.
    """
    if not phases.size or phases.min() < 0 or (phases % width).any():
        return phases
    for apart in (np.bitwise_xor, np.subtract):
        lanes = apart(phases, phases[:, :1])
        if (lanes == lanes[0]).all():
            return phases[:1]
    return phases


@lru_cache(4096)
def conflicts_of(layout: Layout, shared: SharedLayout, vector: int) -> int:
    """The worst bank conflict when each thread moves its tile in accesses of `vector` consecutive
    registers.
    """
    if layout.shape != shared.shape:
        raise LayoutError(
            f"a {shape_text(layout.shape)} tile in registers is not the {shape_text(shared.shape)}"
            " tile in shared memory"
        )
    if vector > 1 and layout.vector(shared.fast, vector, straddle=True) != vector:
        raise LayoutError(
            f"{layout} does not hold {vector} neighbours along axis {shared.fast} in consecutive"
            " registers"
        )
    starts = layout.table()[:, :, ::vector].swapaxes(1, 2)
    return shared.conflicts(starts, vector * shared.itemsize)


@lru_cache(4096)
def exchange_of(layout: Layout, shared: SharedLayout, vector: int) -> tuple[int, int] | None:
    """How stores of `vector` consecutive registers meet no bank twice where they would: (b, c) if
    lanes whose bit b is set make access i ^ 2 ** c where the others make access i. None where they
    meet none as they are, or would however they did it.
    """
    starts = layout.table()[:, :, ::vector].swapaxes(1, 2)
    access, count = vector * shared.itemsize, starts.shape[1]
    if layout.is_padded or shared.conflicts(starts, access) == 1:
        return None
    for lane in range(5):
        for bit in range((count - 1).bit_length()):
            if count % (2 << bit):
                continue
            if shared.conflicts(exchanged(starts, lane, bit), access) == 1:
                return lane, bit
    return None


def exchanged(accesses: np.ndarray, lane: int, bit: int) -> np.ndarray:
    """Of [warps, accesses, lanes, …], those that each lane makes at once: `exchange_of`."""
    numbers = np.arange(accesses.shape[1])[:, None] ^ ((np.arange(32) >> lane & 1) << bit)
    return accesses[:, numbers, np.arange(32)]
