"""Register layouts: which thread holds which element of a tile, as plain integer arithmetic.

A tile is an n-dimensional box of elements. The hardware has four places to spread it over: the
registers of a thread, the 32 lanes of a warp, the warps of a block and the blocks of a cluster. A
`Layout` answers one question,

    (register, lane, warp, block)  ->  coordinates of the element held there

and every other question (which threads own an element, may this load be vectorised, does a
conversion need shared memory) is arithmetic on the answer. The map goes from hardware to tile, not
back, because an element may have several owners (*replication*: a row maximum that every thread of
a row holds) but a register holds exactly one element.


Digits
------
As 3723 seconds are 1 h 2 min 3 s: seconds, minutes and hours are *digits* of extent 60, 60 and 24,
and each moves time by its stride 1, 60 and 3600. A layout does the same to each hardware index: it
is written in digits, least significant first, and a `Digit(extent, axis, stride)` of value v moves
the coordinate on `axis` by v * stride. Extents are any whole number, so twelve warps, 96 columns or
wgmma's n = 176 need no special case.

Take the accumulator of `mma.m16n8k16`, a tile of 16 x 8 in one warp, four registers a thread:

    16x8: 2:1@1 2:8@0 | 4:2@1 8:1@0 | -             registers | lanes | warps;   extent:stride@axis

    register r = r0 + 2 r1          row    = 8 r1 + l1
    lane     l = l0 + 4 l1          column = r0 + 2 l0

    r0, the lower bit of the register: the next column
    r1, the upper bit of the register: eight rows on
    l0 = lane % 4: two columns on
    l1 = lane / 4: the next row

Cell by cell, "lane.register":

              col 0    1    2    3    4    5    6    7
     row  0     0.0  0.1  1.0  1.1  2.0  2.1  3.0  3.1
     row  1     4.0  4.1  5.0  5.1  6.0  6.1  7.0  7.1
       ...
     row  7    28.0 28.1 29.0 29.1 30.0 30.1 31.0 31.1
     row  8     0.2  0.3  1.2  1.3  2.2  2.3  3.2  3.3
       ...
     row 15    28.2 28.3 29.2 29.3 30.2 30.3 31.2 31.3

Every fragment of NVIDIA's manuals is such a line (fragments.py). A wgmma accumulator of 64 x 256 is

    64x256: 2:1@1 2:8@0 32:8@1 | 4:2@1 8:1@0 | 4:16@0

the same picture, repeated 32 times to the right by registers and 4 times down by warps.


Three rules
-----------
*Each axis is a number system.* Sorted by stride, the digits of one axis are strides 1, e0, e0 e1,
...; so the coordinates fill a box (`padded_shape`) and each is reached exactly once, apart from
replication.

*Padding.* `shape` may be smaller than the box: 7 rows are held in a box of 8. Coordinates >= shape
are padding; what a register holds there is undefined.

*Replication.* A digit `extent:*` (axis -1) moves nothing: its copies hold the same element.
Reducing a tile over an axis turns the lane and warp digits of that axis into replication, which is
why a row statistic meets its tile again without moving any data:

>>> acc = Layout.parse("64x256: 2:1@1 2:8@0 32:8@1 | 4:2@1 8:1@0 | 4:16@0")
>>> print(acc.drop(1))
64: 2:8@0 | 4:* 8:1@0 | 4:16@0
>>> print(acc.operand_of_broadcast((64, 1)))
64x1: 2:8@0 | 4:* 8:1@0 | 4:16@0
>>> acc.coords(register=5, lane=6, warp=2), acc.butterfly(1)
((33, 13), (1, 2))
>>> movement(acc, blocked((64, 256), vector=8, warps=4)), movement(acc, acc)
('warps', 'none')

Coordinates add up: coords(r, l, w, b) = offsets of r + of l + of w + of b, digit by digit, without
carries. Code generation uses that: lane and warp make one runtime base, the register becomes a
constant in the address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, wraps
from itertools import product
from math import gcd, prod
from typing import Any, TypeVar, cast

import numpy as np

from tkc.ir.digits import (
    Digit,
    LayoutError,
    bits_of,
    canonical,
    copies,
    digits_text,
    divide,
    matching_axes,
    offset_table,
    parse_digit,
    parse_shape,
    shape_text,
    total,
)

Method = TypeVar("Method", bound=Callable[..., Any])

WARP = 32
SECTIONS = ("registers", "lanes", "warps", "blocks")


def _remembered(method: Method) -> Method:
    """A method whose results are kept: of the few layouts of a program a compilation asks the same
    again and again. Sequences among the arguments may be lists.
    """
    known = lru_cache(1 << 12)(method)

    @wraps(method)
    def found(*given: Any, **named: Any) -> Any:
        return known(*[tuple(a) if type(a) is list else a for a in given], **named)

    return cast(Method, found)


@dataclass(frozen=True)
class Layout:
    """(register, lane, warp, block of the cluster) -> coordinates of a tile.  The module's
    docstring teaches it.
    """

    shape: tuple[int, ...]
    registers: tuple[Digit, ...]
    lanes: tuple[Digit, ...]
    warps: tuple[Digit, ...]
    blocks: tuple[Digit, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        for name in SECTIONS:
            object.__setattr__(self, name, canonical(getattr(self, name), len(self.shape)))
        if any(extent < 1 for extent in self.shape):
            raise LayoutError(
                f"a tile's extents are at least 1, but the shape is {shape_text(self.shape)}"
            )
        lanes = total(self.lanes)
        if lanes != WARP:
            raise LayoutError(
                f"the lane digits must multiply to {WARP}, but {digits_text(self.lanes)} give"
                f" {lanes}"
            )
        for axis, (extent, size) in enumerate(zip(self.shape, self.padded_shape, strict=False)):
            if size < extent:
                raise LayoutError(
                    f"the digits of axis {axis} reach {size} coordinates, but the tile has {extent}"
                    " of them"
                )

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.registers, self.lanes, self.warps, self.blocks))

    def __hash__(self) -> int:
        """Computed once: types have layouts, and types are looked up all the time."""
        return self._hash

    # ---- sizes
    # ----------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def num_registers(self) -> int:
        return total(self.registers)

    @cached_property
    def num_warps(self) -> int:
        return total(self.warps)

    @cached_property
    def num_blocks(self) -> int:
        return total(self.blocks)

    @cached_property
    def padded_shape(self) -> tuple[int, ...]:
        """The box that the digits fill; raises if an axis is not a number system."""
        box = []
        for axis in range(self.rank):
            size = 1
            for digit in sorted(self.digits(axis), key=lambda digit: digit.stride):
                if digit.stride != size:
                    raise LayoutError(
                        f"digit {digit} leaves a gap or an overlap on axis {axis}: expected stride"
                        f" {size}"
                    )
                size *= digit.extent
            box.append(size)
        return tuple(box)

    @property
    def is_padded(self) -> bool:
        return self.padded_shape != self.shape

    @property
    def register_replication(self) -> int:
        return total(d for d in self.registers if d.axis < 0)

    @property
    def lane_replication(self) -> int:
        return total(d for d in self.lanes if d.axis < 0)

    @property
    def warp_replication(self) -> int:
        return total(d for d in self.warps if d.axis < 0)

    @property
    def block_replication(self) -> int:
        return total(d for d in self.blocks if d.axis < 0)

    def digits(self, axis: int, sections: Iterable[str] = SECTIONS) -> tuple[Digit, ...]:
        """The digits that move along `axis`, section by section."""
        return tuple(d for name in sections for d in getattr(self, name) if d.axis == axis)

    # ---- which thread and register hold what
    # ---------------------------------------------------------------------------------------

    def coords(self, register: int, lane: int, warp: int, block: int = 0) -> tuple[int, ...]:
        """The coordinates of the element held there (>= shape: padding)."""
        at = [0] * self.rank
        for name, index in zip(SECTIONS, (register, lane, warp, block), strict=False):
            for digit in getattr(self, name):
                index, value = divmod(index, digit.extent)
                if digit.axis >= 0:
                    at[digit.axis] += value * digit.stride
            if index:
                raise LayoutError(
                    f"the index into {name} is beyond the {total(getattr(self, name))} of this"
                    " layout"
                )
        return tuple(at)

    def offsets(self, section: str) -> np.ndarray:
        """[count, rank]: how far each index of one section moves the coordinates; the four
        sections' offsets add up.
        """
        return self._offsets[section]

    @cached_property
    def _offsets(self) -> dict[str, np.ndarray]:
        return {name: offset_table(getattr(self, name), self.rank) for name in SECTIONS}

    def table(self) -> np.ndarray:
        """[blocks * warps, lanes, registers, rank]: `coords` of everything (computed once,
        read-only).
        """
        return self._table

    @cached_property
    def _table(self) -> np.ndarray:
        registers, lanes, warps, blocks = (self._offsets[name] for name in SECTIONS)
        units = (blocks[:, None] + warps[None, :]).reshape(len(blocks) * len(warps), self.rank)
        table = units[:, None, None] + lanes[None, :, None] + registers[None, None, :]
        table.flags.writeable = False
        return table

    def owners(self, coord: Sequence[int]) -> tuple[tuple[int, int, int, int], ...]:
        """Every (register, lane, warp, block) that holds the element; more than one where it is
        replicated.
        """
        if len(coord) != self.rank or not all(
            0 <= c < n for c, n in zip(coord, self.padded_shape, strict=False)
        ):
            raise LayoutError(
                f"{tuple(coord)} is no coordinate of a {shape_text(self.padded_shape)} tile"
            )
        indices = []
        for name in SECTIONS:
            found, weight = [0], 1
            for digit in getattr(self, name):
                values = (
                    range(digit.extent)
                    if digit.axis < 0
                    else [coord[digit.axis] // digit.stride % digit.extent]
                )
                found = [base + value * weight for value in values for base in found]
                weight *= digit.extent
            indices.append(found)
        registers, lanes, warps, blocks = indices
        return tuple(product(registers, lanes, warps, blocks))

    def vector(self, axis: int, most: int | None = None, straddle: bool = False) -> int:
        """How many consecutive registers run contiguously along `axis`: a power of two, at most
        `most`.

        Registers [i v, (i + 1) v) hold coordinates [c, c + v) with c a multiple of v, for every
        thread and every i. Unless `straddle`, each such group lies wholly inside the tile or wholly
        in the padding.
        """
        axis %= self.rank
        run = (
            self.registers[0].extent
            if self.registers and self.registers[0] == Digit(self.registers[0].extent, axis, 1)
            else 1
        )
        run = run if straddle else gcd(run, self.shape[axis])
        run &= -run
        return run if most is None else min(run, 1 << most.bit_length() - 1)

    def inside(self, register: int) -> bool | None:
        """True if a register holds an element in every thread, False if padding in every thread,
        else None.
        """
        if not self.is_padded:
            return True
        real = (self.table()[:, :, register] < np.array(self.shape, int)).all(-1)
        return bool(real.all()) if real.all() or not real.any() else None

    # ---- what a reduction needs
    # -------------------------------------------------------------------------------

    def butterfly(self, axis: int) -> tuple[int, ...]:
        """The lane masks of `shfl.bfly` that combine all lanes along `axis`, least first."""
        masks, weight = [], 1
        for digit in self.lanes:
            if digit.axis == axis % self.rank:
                masks += [weight << bit for bit in range(digit.extent.bit_length() - 1)]
            weight *= digit.extent
        return tuple(masks)

    def warps_along(self, axis: int) -> int:
        """How many different warps share one line along `axis` (1: a reduction stays inside the
        warp).
        """
        return total(self.digits(axis % self.rank, ["warps"]))

    def blocks_along(self, axis: int) -> int:
        """How many blocks of the cluster share one line along `axis`."""
        return total(self.digits(axis % self.rank, ["blocks"]))

    @_remembered
    def register_groups(self, axis: int) -> tuple[tuple[int, ...], ...]:
        """For each register of `drop(axis)`, the registers here that fold into it, in order along
        the axis; of several with one element the first.
        """
        axis %= self.rank
        here = self.offsets("registers")
        line = {tuple(at): i for i, at in enumerate(self.drop(axis).offsets("registers").tolist())}
        groups: list[list[int]] = [[] for _ in line]
        first: dict[tuple[int, ...], int] = {}
        for register, at in enumerate(here.tolist()):
            first.setdefault(tuple(at), register)
        for register in sorted(first.values(), key=lambda r: here[r, axis]):
            at = here[register].tolist()
            groups[line[(*at[:axis], *at[axis + 1 :])]].append(register)
        return tuple(map(tuple, groups))

    # ---- algebra: each result is the layout of another tile, in the same threads
    # ------------------------------

    def _rebuild(
        self, shape: Sequence[int], change: Callable[[Digit, str], Iterable[Digit]]
    ) -> Layout:
        """The layout of `shape` with every digit replaced by `change(digit, section)`."""
        return Layout(
            tuple(shape),
            *(tuple(n for d in getattr(self, name) for n in change(d, name)) for name in SECTIONS),
        )

    @_remembered
    def transpose(self, perm: Sequence[int]) -> Layout:
        """Axis i of the result is axis perm[i] of this tile."""
        if sorted(perm) != list(range(self.rank)):
            raise LayoutError(
                f"{tuple(perm)} does not permute the {self.rank} axes of a {shape_text(self.shape)}"
                " tile"
            )
        return self._rebuild(
            [self.shape[a] for a in perm],
            lambda d, _: [d if d.axis < 0 else replace(d, axis=list(perm).index(d.axis))],
        )

    @_remembered
    def drop(self, axis: int) -> Layout:
        """The result of reducing over `axis`: lanes, warps and blocks along it hold copies; its
        registers are gone.
        """
        axis = self._axis(axis)

        def change(digit: Digit, section: str) -> list[Digit]:
            if digit.axis == axis:
                return [] if section == "registers" else [copies(digit.extent)]
            return [replace(digit, axis=digit.axis - (digit.axis > axis))]

        registers = tuple(d for d in self.registers if d.axis >= 0)  # one copy is enough
        return replace(self, registers=registers)._rebuild(
            self.shape[:axis] + self.shape[axis + 1 :], change
        )

    def per_warp(self, axis: int) -> Layout:
        """Of what each warp's part of `axis` comes to, an element for each warp along it (of those
        of all blocks that share it), in their order: lanes hold copies, registers lose the axis.
        """
        axis = self._axis(axis)
        along = sorted(self.digits(axis, ["warps", "blocks"]), key=lambda d: d.stride)
        steps = {d: total(along[:i]) for i, d in enumerate(along)}

        def change(digit: Digit, section: str) -> list[Digit]:
            if digit.axis != axis:
                return [digit]
            if section in ("warps", "blocks"):
                return [replace(digit, stride=steps[digit])]
            return [] if section == "registers" else [copies(digit.extent)]

        count = total(along)
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        return self._rebuild(shape, change)

    def per_lane(self, axis: int) -> Layout:
        """The same, but lanes along `axis` hold no copies as far as a thread has several elements:
        each has some of them, those with the largest strides dealt out. `per_warp` where that takes
        digits that are no powers of two, or coordinates beyond the tile.
        """
        found = self.per_warp(axis)
        others = [i for i in range(self.rank) if i != axis]
        if any(self.shape[i] != self.padded_shape[i] for i in others):
            return found
        try:
            lanes, held = bits_of(self.lanes), bits_of(found.registers)
        except LayoutError:
            return found
        free = [i for i, bit in enumerate(lanes) if bit.axis == axis]
        own = [bit for bit in held if bit.axis >= 0]
        dealt = own[max(0, len(own) - len(free)) :]
        lanes = [copies(2) if bit.axis == axis else bit for bit in lanes]
        for i, bit in zip(free, dealt, strict=False):
            lanes[i] = bit
        registers = tuple(bit for bit in held if bit not in dealt)
        return replace(found, registers=registers, lanes=tuple(lanes))

    def expand(self, axis: int) -> Layout:
        """A new axis of extent 1 in front of `axis`."""
        axis = axis + self.rank + 1 if axis < 0 else axis
        if not 0 <= axis <= self.rank:
            raise LayoutError(f"a {shape_text(self.shape)} tile cannot get a new axis {axis}")
        return self._rebuild(
            self.shape[:axis] + (1,) + self.shape[axis:],
            lambda d, _: [replace(d, axis=d.axis + (d.axis >= axis))],
        )

    def broadcast(self, axis: int, extent: int) -> Layout:
        """`axis` (of extent 1) repeated: every thread holds the repetition in its own registers."""
        axis = self._axis(axis)
        if self.padded_shape[axis] != 1:
            raise LayoutError(
                f"axis {axis} of {self} cannot be broadcast: it holds {self.padded_shape[axis]}"
                " coordinates, not 1"
            )
        shape = self.shape[:axis] + (extent,) + self.shape[axis + 1 :]
        return replace(self, shape=shape, registers=(*self.registers, Digit(extent, axis, 1)))

    @_remembered
    def operand_of_broadcast(self, operand_shape: Sequence[int]) -> Layout:
        """The layout in which an operand of that shape meets this result by choosing registers only
        (`register_map`).
        """
        lead = self.rank - len(operand_shape)
        if lead < 0 or any(
            n not in (1, m) for n, m in zip(operand_shape, self.shape[lead:], strict=False)
        ):
            raise LayoutError(
                f"a {shape_text(operand_shape)} tile does not broadcast to {shape_text(self.shape)}"
            )
        kept = [a for a in range(lead, self.rank) if operand_shape[a - lead] == self.shape[a]]

        def change(digit: Digit, section: str) -> list[Digit]:
            if digit.axis in kept:
                return [replace(digit, axis=digit.axis - lead)]
            return [] if section == "registers" else [copies(digit.extent)]

        return self._rebuild(operand_shape, change)

    def operand_along(self, axis: int) -> Layout:
        """The layout in which a tile of one axis meets this one's by choosing registers only: as
        `operand_of_broadcast`, without the other axes, which may be padded.
        """

        def change(digit: Digit, section: str) -> list[Digit]:
            if digit.axis == axis:
                return [replace(digit, axis=0)]
            return [] if section == "registers" else [copies(digit.extent)]

        return self._rebuild((self.shape[axis],), change)

    @_remembered
    def reshape(self, shape: Sequence[int]) -> Layout:
        """The same elements in row-major order under another shape, each in the same register."""
        shape = tuple(shape)
        if prod(shape) != prod(self.shape):
            raise LayoutError(
                f"a {shape_text(self.shape)} tile cannot be reshaped to {shape_text(shape)}: the"
                " sizes differ"
            )
        moved: dict[
            int, tuple[int, list[tuple[int, int]]]
        ] = {}  # axis -> its row-major stride, the new axes of its group
        for old, new in matching_axes(self.shape, shape):
            if old and len(old) == len(new) == 1:
                moved[old[0]] = 1, [(new[0], self.padded_shape[old[0]])]
                continue
            stride = 1
            for axis in reversed(old):
                moved[axis] = stride, [(a, shape[a]) for a in reversed(new)]
                stride *= self.shape[axis]
                if axis != old[0] and self.padded_shape[axis] != self.shape[axis]:
                    raise LayoutError(
                        f"axis {axis} of {self} is padded, so it cannot be merged with the axes"
                        " before it"
                    )

        def change(digit: Digit, _: str) -> Iterable[Digit]:
            if digit.axis < 0:
                return [digit]
            scale, axes = moved[digit.axis]
            return divide(digit.extent, digit.stride * scale, axes)

        try:
            return self._rebuild(shape, change)
        except (
            LayoutError
        ):  # 13:1@1 2:1@0 of a 2x13 tile count to 26, which divides among the axes of 13x2
            return Layout(
                shape,
                *(tuple(self._reshaped_whole(getattr(self, name), moved)) for name in SECTIONS),
            )

    @staticmethod
    def _reshaped_whole(
        digits: Sequence[Digit], moved: dict[int, tuple[int, list[tuple[int, int]]]]
    ) -> Iterable[Digit]:
        """Digits of a section under new axes; neighbours that go on counting are divided as one."""
        runs: list[tuple[int, int, list[tuple[int, int]] | None]] = []
        for digit in digits:
            scale, axes = moved[digit.axis] if digit.axis >= 0 else (1, None)
            extent, stride = digit.extent, digit.stride * scale
            if axes and runs and runs[-1][2] == axes and runs[-1][0] * runs[-1][1] == stride:
                extent, stride = runs[-1][0] * extent, runs.pop()[1]
            runs.append((extent, stride, axes))
        for extent, stride, axes in runs:
            yield from [copies(extent)] if axes is None else divide(extent, stride, axes)

    @_remembered
    def slice(self, offsets: Sequence[int], sizes: Sequence[int]) -> tuple[Layout, tuple[int, ...]]:
        """The sub-tile at `offsets` if it is a choice of registers: its layout, and which register
        each of its is.
        """
        registers = list(self.registers)
        for axis, (offset, size, extent) in enumerate(zip(offsets, sizes, self.shape, strict=True)):
            if size < 1 or offset < 0 or offset + size > extent:
                raise LayoutError(
                    f"the slice [{offset}, {offset + size}) leaves axis {axis} of extent {extent}"
                )
            if (offset, size) == (0, extent):
                continue
            period = self.period(axis)
            if offset % period:
                raise LayoutError(
                    f"a slice at {offset} along axis {axis} cuts through lanes or warps: "
                    f"it must start at a multiple of {period}"
                )
            start, count = offset // period, -(-size // period)
            for digit in sorted(
                (d for d in registers if d.axis == axis and d.stride >= period),
                key=lambda d: d.stride,
            ):
                whole = start % digit.extent == 0 and count % digit.extent == 0
                extent = digit.extent if whole else count
                start, count = (start // extent, count // extent) if whole else (0, 1)
                registers[registers.index(digit)] = replace(digit, extent=extent)
        part = replace(self, shape=tuple(sizes), registers=tuple(registers))
        where = _register_at(self)
        return part, tuple(
            where[tuple(at)] for at in (part.offsets("registers") + np.array(offsets, int)).tolist()
        )

    @staticmethod
    def concat(parts: Sequence[Layout], axis: int) -> tuple[Layout, tuple[tuple[int, int], ...]]:
        """Tiles side by side along `axis`, joined by registers: the layout, and the (part,
        register) of each register.
        """
        first, axis = parts[0], parts[0]._axis(axis)
        period = first.period(axis)

        def core(part: Layout) -> Layout:
            registers = tuple(d for d in part.registers if d.axis != axis or d.stride < period)
            return replace(
                part,
                shape=(*part.shape[:axis], period, *part.shape[axis + 1 :]),
                registers=registers,
            )

        for part in parts:
            if part.rank != first.rank or part.period(axis) != period or core(part) != core(first):
                raise LayoutError(
                    f"{part} and {first} cannot be joined along axis {axis}: their threads differ"
                )
        if any(part.shape[axis] % period for part in parts[:-1]):
            raise LayoutError(
                f"all but the last part must be multiples of {period} along axis {axis} to be"
                " joined by registers"
            )
        extents = [part.shape[axis] for part in parts]
        if all(part == first for part in parts) and first.padded_shape[axis] == extents[0]:
            base, digit = first, Digit(len(parts), axis, extents[0])
        else:
            base, digit = (
                core(first),
                Digit(sum(-(-extent // period) for extent in extents), axis, period),
            )
        shape = (*first.shape[:axis], sum(extents), *first.shape[axis + 1 :])
        whole = replace(base, shape=shape, registers=(*base.registers, digit))
        starts, where = np.cumsum([0, *extents[:-1]]), [_register_at(part) for part in parts]
        sources = []
        for at in whole.offsets("registers").tolist():
            number = int(np.searchsorted(starts, at[axis], "right")) - 1
            at[axis] -= int(starts[number])
            sources.append((number, where[number][tuple(at)]))
        return whole, tuple(sources)

    def across_blocks(self, count: int, axis: int | None = None) -> Layout:
        """The tile of `count` blocks of a cluster side by side along `axis`, or copies of one tile
        in each.
        """
        if axis is None:
            return replace(self, blocks=(*self.blocks, copies(count)))
        axis = self._axis(axis)
        if self.padded_shape[axis] != self.shape[axis]:
            raise LayoutError(f"axis {axis} of {self} is padded, so blocks cannot continue it")
        shape = (*self.shape[:axis], self.shape[axis] * count, *self.shape[axis + 1 :])
        return replace(
            self, shape=shape, blocks=(*self.blocks, Digit(count, axis, self.shape[axis]))
        )

    def within_block(self, axis: int) -> Layout:
        """What one block of a cluster holds of a tile that all of them deal out along `axis`: the
        inverse of `across_blocks`.
        """
        axis = self._axis(axis)
        shape = tuple(n // self.num_blocks if a == axis else n for a, n in enumerate(self.shape))
        if self.blocks != (Digit(self.num_blocks, axis, shape[axis]),):
            raise LayoutError(f"the blocks of {self} do not deal out axis {axis}")
        return replace(self, shape=shape, blocks=())

    def period(self, axis: int) -> int:
        """Along `axis`, threads repeat after this many coordinates; beyond it there are only
        registers.
        """
        return max((d.stride * d.extent for d in self.digits(axis, SECTIONS[1:])), default=1)

    def _axis(self, axis: int) -> int:
        if not -self.rank <= axis < self.rank:
            raise LayoutError(f"a {shape_text(self.shape)} tile has no axis {axis}")
        return axis % self.rank

    # ---- text
    # ----------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        sections = [self.registers, self.lanes, self.warps] + [self.blocks] * bool(self.blocks)
        return f"{shape_text(self.shape)}: " + " | ".join(map(digits_text, sections))

    @staticmethod
    def parse(text: str) -> Layout:
        """The inverse of `str`."""
        head, _, body = text.partition(": ")
        sections = [part.split() for part in body.split("|")]
        if len(sections) not in (3, 4):
            raise LayoutError(
                f"a layout has sections 'registers | lanes | warps [| blocks]', but {text!r} has"
                f" {len(sections)}"
            )
        return Layout(
            parse_shape(head),
            *(tuple(map(parse_digit, part)) if part != ["-"] else () for part in sections),
        )


@lru_cache(1024)
def _register_at(layout: Layout) -> dict[tuple[int, ...], int]:
    """Offset of a register -> the first register with that offset."""
    return {
        tuple(at): r for r, at in reversed(list(enumerate(layout.offsets("registers").tolist())))
    }


# ---- between two layouts of one tile
# --------------------------------------------------------------------------


@lru_cache(4096)
def register_map(src: Layout, dst: Layout) -> tuple[int, ...] | None:
    """For each register of `dst` the register of `src` with the same element in the same thread;
    None if data must move.

    The tile of `src` may broadcast to that of `dst`.  Padding in `dst` needs nothing.
    """
    held, wanted = elements_of_both(src, dst)
    ignored = wanted < 0
    both = min(src.num_registers, dst.num_registers)
    stays = ((held[:, :both] == wanted[:, :both]) | ignored[:, :both]).all(0)
    found: dict[int, dict[int, int]] = {}
    answer = []
    for register, thread in enumerate((~ignored).argmax(0).tolist()):
        if register < both and stays[register] or ignored[thread, register]:
            answer.append(register if register < both else 0)
            continue
        if thread not in found:
            found[thread] = {e: r for r, e in reversed(list(enumerate(held[thread].tolist())))}
        answer.append(found[thread].get(int(wanted[thread, register]), -1))
    if -1 in answer or not ((held[:, answer] == wanted) | ignored).all():
        return None
    return tuple(answer)


@lru_cache(4096)
def movement(src: Layout, dst: Layout) -> str:
    """The least scope in which a conversion finds its data: "none", "registers", "lanes", "warps"
    (or "blocks").
    """
    chosen = register_map(src, dst)
    if chosen is not None:
        return "none" if chosen == tuple(range(src.num_registers)) else "registers"
    held, wanted = elements_of_both(src, dst)
    for scope, units in ("lanes", dst.num_warps * dst.num_blocks), ("warps", dst.num_blocks):
        if all(
            np.isin(need[need >= 0], have).all()
            for have, need in zip(held.reshape(units, -1), wanted.reshape(units, -1), strict=False)
        ):
            return scope
    return "blocks"


def elements_of_both(src: Layout, dst: Layout) -> tuple[np.ndarray, np.ndarray]:
    """[threads, registers] for both: the number, in row-major order of `src`, of the element held
    or wanted; -1: padding.
    """
    if (src.num_warps, src.num_blocks) != (dst.num_warps, dst.num_blocks):
        raise LayoutError(
            f"{src} and {dst} are in different threads, so their registers cannot be compared"
        )
    lead = dst.rank - src.rank
    if lead < 0 or any(n not in (1, m) for n, m in zip(src.shape, dst.shape[lead:], strict=False)):
        raise LayoutError(
            f"a {shape_text(src.shape)} tile is not, and does not broadcast to, one of"
            f" {shape_text(dst.shape)}"
        )
    # an axis of one element is the same element everywhere
    steps = [prod(src.shape[i + 1 :]) if n > 1 else 0 for i, n in enumerate(src.shape)]
    return _numbers(src, steps), _numbers(dst, [0] * lead + steps)


def _numbers(layout: Layout, steps: Sequence[int]) -> np.ndarray:
    """[threads, registers]: the sum of the coordinates, each times its step; -1: padding."""
    registers, lanes, warps, blocks = (layout.offsets(name) @ np.array(steps) for name in SECTIONS)
    threads = (blocks[:, None, None] + warps[:, None] + lanes).ravel()
    numbers = threads[:, None] + registers
    if not layout.is_padded:
        return numbers
    real = (layout.table() < np.array(layout.shape, int)).all(-1)
    return np.where(real.reshape(numbers.shape), numbers, -1)


# ---- constructors
# -----------------------------------------------------------------------------------------------


@lru_cache(4096)
def blocked(
    shape: tuple[int, ...],
    vector: int,
    warps: int | tuple[int, ...],
    order: tuple[int, ...] | None = None,
    threads_per: tuple[int, ...] | None = None,
) -> Layout:
    """A coalesced layout: `vector` neighbours along the fastest axis a thread, then lanes, warps
    and registers outward.

    `order` names the axes, fastest first (default: the last axis is fastest). `threads_per` and a
    tuple of `warps` say how many lanes and warps go along each axis. Otherwise the fewest registers
    are taken, give or take an eighth, and among those the longest contiguous run: 96 columns in
    vectors of 8 get 4 lanes three times rather than 16 lanes of which 4 idle, but 1000 get 32
    lanes. Threads that a small tile leaves over hold copies.
    """
    rank, order = len(shape), order or tuple(reversed(range(len(shape))))
    if sorted(order) != list(range(rank)):
        raise LayoutError(
            f"order {order} does not list the {rank} axes of a {shape_text(shape)} tile"
        )
    all_warps = warps if isinstance(warps, int) else prod(warps)
    if rank == 0:
        return Layout((), (), (copies(WARP),), (copies(all_warps),))
    if threads_per and WARP % prod(threads_per):
        raise LayoutError(
            f"{shape_text(threads_per)} lanes along the axes do not divide the {WARP} lanes of a"
            " warp"
        )
    vector = min(vector, 1 << (shape[order[0]] - 1).bit_length())
    vectors = [vector if axis == order[0] else 1 for axis in range(rank)]
    rest = [-(-n // v) for n, v in zip(shape, vectors, strict=True)]
    lanes, units = _cheapest_split(rest, warps, order, threads_per)
    registers, lane_digits, warp_digits = [Digit(vector, order[0], 1)], [], []
    for a in order:
        step = vectors[a] * lanes[a]
        lane_digits.append(Digit(lanes[a], a, vectors[a]))
        warp_digits.append(Digit(units[a], a, step))
        registers.append(Digit(-(-shape[a] // (step * units[a])), a, step * units[a]))
    return Layout(
        shape,
        tuple(registers),
        (*lane_digits, copies(WARP // prod(lanes))),
        (*warp_digits, copies(all_warps // prod(units))),
    )


def _cheapest_split(
    extents: list[int],
    warps: int | tuple[int, ...],
    order: tuple[int, ...],
    threads_per: tuple[int, ...] | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lanes and warps along each axis: the longest runs along the first axes of the order, of the
    splits that take at most an eighth more registers than the fewest.
    """
    found = []
    for lanes in [threads_per] if threads_per else _splits(WARP, extents):
        left = [-(-n // p) for n, p in zip(extents, lanes, strict=False)]
        for units in _splits(warps, left) if isinstance(warps, int) else [warps]:
            registers = prod(-(-n // p) for n, p in zip(left, units, strict=False))
            runs = [*(lanes[a] for a in order), *(units[a] for a in order)]
            found.append((registers, runs, lanes, units))
    fewest = min(registers for registers, *_ in found)
    cheap = (split for split in found if 8 * split[0] <= 9 * fewest)
    _, _, lanes, units = max(cheap, key=lambda split: (split[1], -split[0]))
    return lanes, units


def rows(
    shape: tuple[int, ...], vector: int, warps: int, threads_per_row: int, axis: int = -1
) -> Layout:
    """For reductions over `axis`: that many threads (a power of two up to 32 * warps) share one
    line along it.
    """
    axis %= len(shape)
    lanes = min(threads_per_row, WARP)
    along = threads_per_row // lanes
    if lanes * along != threads_per_row or WARP % lanes or warps % along:
        raise LayoutError(
            f"{threads_per_row} threads do not share one row: a power of two up to {WARP * warps}"
            " would"
        )
    order = (axis, *(a for a in reversed(range(len(shape))) if a != axis))
    others = [n for a, n in enumerate(shape) if a != axis]
    across = max(_splits(WARP // lanes, others), key=lambda split: tuple(reversed(split)))
    left = [-(-n // p) for n, p in zip(others, across, strict=False)]
    beyond = max(_splits(warps // along, left), key=lambda split: tuple(reversed(split)))
    layout = blocked(
        shape,
        vector,
        (*beyond[:axis], along, *beyond[axis:]),
        order,
        (*across[:axis], lanes, *across[axis:]),
    )
    return replace(layout, warps=(*layout.warps, copies(warps // layout.num_warps)))


def _splits(count: int, extents: Sequence[int]) -> list[tuple[int, ...]]:
    """The ways to spread `count` threads over axes, none with half or more of its threads idle; the
    rest hold copies.
    """
    if not extents:
        return [()]
    return [
        (p, *more)
        for p in range(1, count + 1)
        if count % p == 0 and p < 2 * extents[0]
        for more in _splits(count // p, extents[1:])
    ]
