"""cp.async: each thread copies 4, 8 or 16 bytes at a time from global to shared memory, past its
registers.

What lies outside the array, or is masked, is filled with zeros: the copy reads 0 of its bytes; with
anything else by a store.  Where no 4 bytes may move together the copy goes through registers, which
is slower and just as right: a wait and a barrier follow either way.
"""

from __future__ import annotations

from collections.abc import Callable

from tkc.codegen.ptx.access import Group, both, load_tile, store_tile
from tkc.codegen.ptx.blocks import Block, mask_of
from tkc.codegen.ptx.coordinates import is_first_copy
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import otherwise
from tkc.codegen.ptx.integers import is_narrow, mul
from tkc.codegen.ptx.shared_memory import plain_groups
from tkc.codegen.ptx.traps import access, span_of
from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir import threads
from tkc.ir.digits import Digit, copies
from tkc.ir.layout import Layout
from tkc.ir.types import TileType, bits
from tkc.ir.values import array_type


@emitter(threads.CpAsync)
def cp_async(e: Emitter, op: threads.CpAsync) -> None:
    """Starts the copy of a block of an array to a buffer."""
    view, element = e.view(op.buffer), array_type(op.array).element
    size, shape = bits(element) // 8, view.memory.shape
    most = op.vector.value.data if op.vector is not None else threads.CP_ASYNC_BYTES
    layout = op.layout_among(e.instance.warps, view.memory)
    block = Block(e, op, layout)
    width, place = plain_groups(e, layout, view)
    fills_with_zeros = op.other is None  # simplify drops zeros, but not -0.0
    v = min(block.vector(most, op.mask, cut=fills_with_zeros), width)
    if v * size < 4:
        e.notes.append(
            f"the copy of {'x'.join(map(str, shape))}x{element} goes through registers: only"
            f" {v * size} bytes may move together"
        )
        t, absent = TileType(shape, element, layout), otherwise(e, op.other)
        value = load_tile(e, t, v, lambda r: block.group(r, op.mask), absent, "global")
        return store_tile(e, value, width, place, "shared")
    if width % v:
        e.fail(f"a copy of {v} elements at once into a buffer that takes {width}")
    cut = v > block.vector(most, op.mask)
    Copy(e, op, block, v, v * size, fills_with_zeros, cut).emit(place)


class Copy:
    """The instructions of a copy by `v` elements, which are so many bytes. cut: some of them may
    lie behind the array's end.
    """

    def __init__(
        self,
        e: Emitter,
        op: threads.CpAsync,
        block: Block,
        v: int,
        size: int,
        fills_with_zeros: bool,
        cut: bool,
    ):
        self.e, self.op, self.block, self.v, self.size = e, op, block, v, size
        self.cut, self.fills_with_zeros = cut, fills_with_zeros
        self.there: dict[str, Integer] = {}  # by what is left of the array, in elements
        self.bounds = span_of(e, op.array) if e.debug else None
        self.first = is_first_copy(e, block.layout)
        # the operand of the instruction, by predicate and how many bytes there are where it holds
        self.sizes: dict[tuple[Operand, Operand], str] = {(True, size): ""}

    def emit(self, place: Callable[[int], Group]) -> None:
        """Each element once; `place`: where those from a register on lie in the buffer."""
        offsets = self.block.layout.offsets("registers").tolist()
        seen = set()
        for r in range(0, len(offsets), self.v):
            at = tuple(offsets[r])
            if at not in seen:
                seen.add(at)
                self._vector(r, place(r))

    def _vector(self, r: int, target: Group) -> None:
        """The elements from a register on."""
        e, op = self.e, self.op
        held = both(e, self.block.held(r), mask_of(e, op.mask, r))
        if target.held is False:
            return
        if not self.fills_with_zeros:
            if held is not True:
                mine = both(e, target.held, self.first)
                _filled(e, op, target, both(e, mine, opposite(e, held)), r, self.v)
            if held is False:
                return
        bytes_read = self._bytes_read(held, r)
        source, guard = Group(*self.block.address(r)), both(e, target.held, self.first)
        if not self.fills_with_zeros:
            guard = both(e, guard, held)
        if e.debug:
            checked = Group(source.address, source.offset, both(e, guard, held))
            least = self.size // self.v if self.cut else self.size
            access(e, checked, least, "copies", self.bounds)
        with e.w.predicated(guard):
            e.w.emit(
                f"cp.async.{'cg' if self.size == 16 else 'ca'}.shared.global {target.text},"
                f" {source.text}, {self.size}{bytes_read}"
            )

    def _bytes_read(self, held: Operand, r: int) -> str:
        """The operand that says how many bytes are read, where that is not all of them."""
        if held is False:
            return ", 0"
        if not self.fills_with_zeros:
            return ""
        there = self._bytes_there(r) if self.cut else self.size
        if (held, there) not in self.sizes:
            read = there
            if held is not True:
                read = self.e.w.op("selp.b32", "b32", there, 0, held)
            self.sizes[held, there] = f", {read}"
        return self.sizes[held, there]

    def _bytes_there(self, r: int) -> Operand:
        """The bytes of a vector that lie before the array's end, of one that begins there."""
        w, left = self.e.w, self.block.left(r)
        if not isinstance(left, str):
            return max(0, min(left, self.v)) * self.size // self.v
        if left not in self.there:
            if is_narrow(left):
                count: Integer = w.op("min.s32", "b32", left, self.v)
            else:
                count = w.op("cvt.u32.u64", "b32", w.op("min.s64", "b64", left, self.v))
            self.there[left] = mul(self.e, count, self.size // self.v)
        return self.there[left]


def opposite(e: Emitter, held: Operand) -> Operand:
    """Not a truth value that may be known."""
    if not isinstance(held, str):
        return not held
    return e.w.memo(("not", held), lambda: e.w.op("not.pred", "pred", held))


def _filled(e: Emitter, op: threads.CpAsync, target: Group, where: Operand, r: int, v: int) -> None:
    """What is there instead of absent elements."""
    warps = copies(e.instance.warps)
    layout = Layout((v,), (Digit(v, 0, 1),), (copies(32),), (warps,))
    spare = otherwise(e, op.other)
    t = TileType((v,), array_type(op.array).element, layout)
    value = e.build(t, [spare(r + i) for i in range(v)], exact=True)
    place = Group(target.address, target.offset, where)
    store_tile(e, value, v, lambda _: place, "shared")


@emitter(threads.CpCommit)
def cp_commit(e: Emitter, op: threads.CpCommit) -> None:
    """Ends a group of copies."""
    e.w.emit("cp.async.commit_group")


@emitter(threads.CpWait)
def cp_wait(e: Emitter, op: threads.CpWait) -> None:
    """Waits until few enough groups are pending."""
    n = op.pending.value.data
    e.w.emit("cp.async.wait_all" if n == 0 else f"cp.async.wait_group {n}")
