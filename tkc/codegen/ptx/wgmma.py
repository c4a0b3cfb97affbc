"""Asynchronous dots: wgmma, whose operands a 64-bit descriptor finds in shared memory.

    low word      (address of the operand & 0x3ffff) >> 4, leading byte offset
    high word     stride byte offset, swizzle: a constant

The address is the start of shared memory, which the prologue turns into a descriptor once, plus
terms that simply add in units of 16 bytes: the stage of a ring times its size, a slice's first row,
the step along k, the block of 64 rows.  (In a cluster the address carries the block's rank above
bit 23: masked, or it would land in the leading offset.)  All of it is the same in every thread, and
ptxas must see that it is: then a step is the wgmma themselves and a few uniform additions.

The blocks of 64 rows are distributed over the warpgroups of an instance in turn. ptxas wants one
instruction's accumulator to fit what a thread has as the kernel begins, whatever setmaxnreg sets
later (C7602): in blocks of many threads a wide accumulator is that of several instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Attribute, SSAValue

from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.register_coalescing import in_flight
from tkc.codegen.ptx.values import SharedView, Tile, layout_of, registers_of
from tkc.codegen.ptx.writer import braced
from tkc.ir import shared, threads, tile
from tkc.ir.fragments import paired, wgmma_a, wgmma_accumulators
from tkc.ir.layout import LayoutError
from tkc.ir.shared_layout import Descriptor
from tkc.ir.types import SharedType, TileType, bf16, bits, f8e4m3, f8e5m2, f16, f32, i8, i32, ui8
from tkc.ir.values import defining_op, pending_type, shared_type, tile_type

NAMES: dict[Attribute, str] = {
    bf16: "bf16",
    f16: "f16",
    f32: "tf32",
    f8e4m3: "e4m3",
    f8e5m2: "e5m2",
    i8: "s8",
    ui8: "u8",
}
ACCUMULATOR_NAMES: dict[Attribute, str] = {f32: "f32", f16: "f16", i32: "s32"}
DESCRIPTOR_UNIT_BYTES = 16


class Operands:
    """The descriptors of one operand of a dot in shared memory: low words by their distance from
    its start. share: the bytes from one warpgroup's rows (of the right operand: columns) to the
    next one's; 0 if all read the same.
    """

    def __init__(self, e: Emitter, view: SharedView, fields: Descriptor, share: int):
        self.e, self.view, self.fields = e, view, fields
        low, w, root = fields.bits & 0xFFFFFFFF, e.w, view.root or view.base
        unit = DESCRIPTOR_UNIT_BYTES

        def make() -> str:
            address = w.op("and.b32", "b32", w.op("shr.u32", "b32", root, 4), 0x3FFF)
            start = w.op("add.s32", "b32", address, low + view.offset // unit, type="u32")
            if not share:
                return start
            group = w.op("shr.u32", "b32", e.warp(), 2)
            return w.op("mad.lo.u32", "b32", group, share // unit, start)

        key = "descriptor", root, low, view.offset, share, e.instance if share else None
        start = w.hoist(key, make) if root == e.shared_base() else make()
        for register, size in view.terms:
            start = w.op("mad.lo.u32", "b32", register, size // unit, start)
        self.base = w.new("b64")
        w.emit(f"mov.b64 {self.base}, {{{start}, {fields.bits >> 32}}}")

    @property
    def major(self) -> str:
        """The modifier that says which axis is fast."""
        return f", {int(self.fields.major == 'mn')}"

    def at(self, distance: int) -> str:
        """The descriptor of what lies that many bytes on."""
        if not distance:
            return self.base
        return self.e.w.op("add.s64", "b64", self.base, distance // DESCRIPTOR_UNIT_BYTES)


def fields_of(e: Emitter, view: SharedView, axis: int) -> Descriptor:
    """axis: which of the operand's axes is K. Raises CompileError where no descriptor says how the
    buffer is laid out.
    """
    try:
        return view.memory.descriptor("k" if view.memory.fast == axis else "mn")
    except LayoutError as error:
        e.fail(str(error))


@dataclass(frozen=True)
class Shape:
    """A dot of rows x k by k x n as instructions of 64 x width x depth, by so many warpgroups that
    share its rows, and along_n that share its columns. is_paired: rows are in the order of
    tkc.ir.fragments.paired.
    """

    rows: int
    n: int
    k: int
    width: int
    depth: int
    groups: int
    along_n: int
    is_paired: bool

    @staticmethod
    def of(e: Emitter, op: threads.DotAsync, fields_b: Descriptor) -> Shape:
        """Raises CompileError for a shape that wgmma does not take."""
        t, b = accumulator_type(op), e.view(op.b)
        (rows, k), n = _operand_type(op.a).extents, t.extents[1]
        width_bits = bits(_operand_type(op.b).element)
        along_n = next((d.extent for d in layout_of(t).warps if d.axis == 1), 1)
        groups, depth = max(1, e.instance.warps // 4 // along_n), 256 // width_bits
        n //= along_n
        # columns at which a descriptor may begin
        unit = max(8, b.memory.swizzle * 8 // width_bits) if fields_b.major == "mn" else 8
        if along_n > 1 and n % unit:
            e.fail(
                f"a warpgroup's {n} columns of a right operand begin inside one of its panels of"
                f" {unit}"
            )
        width = e.target.dot_width(n, unit, e.threads)
        if e.instance.warps % 4 or rows % (64 * groups) or k % depth or width % 8:
            e.fail(
                f"wgmma of {e.instance.warps} warps takes rows by {64 * groups}, columns by"
                f" {8 * along_n} and k by {depth}, not {rows}x{t.extents[1]}x{k}"
            )
        fragments = wgmma_accumulators(rows, t.extents[1], groups, along_n)
        if layout_of(t) not in fragments:
            e.fail(f"a wgmma of {rows}x{t.extents[1]} cannot deliver the layout {layout_of(t)}")
        is_paired = layout_of(t) == fragments[1]
        return Shape(rows, n, k, width, depth, groups, along_n, is_paired)

    def share_of_columns(self, b: SharedView) -> int:
        """The bytes from one warpgroup's columns of the right operand to the next one's."""
        return b.memory.offset((0, self.n)) if self.along_n > 1 else 0

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows of one warpgroup."""
        return self.rows // (64 * self.groups)

    @property
    def steps(self) -> int:
        """Instructions along k."""
        return self.k // self.depth

    @property
    def columns(self) -> int:
        """Instructions along n, of one warpgroup."""
        return self.n // self.width


def accumulator_type(op: threads.DotAsync | threads.Undefined) -> TileType:
    """The type of the tile that a dot computes. Raises TypeError for another type."""
    t = pending_type(op.result).tile
    if not isinstance(t, TileType):
        raise TypeError(f"expected a pending tile, got {t}")
    return t


def _operand_type(value: SSAValue) -> TileType | SharedType:
    """The type of an operand, in registers or in shared memory."""
    return tile_type(value) if isinstance(value.type, TileType) else shared_type(value)


@emitter(threads.DotAsync)
def dot_async(e: Emitter, op: threads.DotAsync) -> None:
    """The instructions of an asynchronous dot; wgmma reads the left operand from registers or from
    shared memory, the right one from shared memory.
    """
    t, a, b = accumulator_type(op), e.value(op.a), e.view(op.b)
    left_element, right_element = _operand_type(op.a).element, _operand_type(op.b).element
    fields_b = fields_of(e, b, 0)
    shape = Shape.of(e, op, fields_b)
    if {left_element, right_element} == {i8, ui8}:
        e.need("8.4")
    registers = accumulator(e, op, t)
    right = Operands(e, b, fields_b, shape.share_of_columns(b))
    left: Operands | list[str]
    if isinstance(a, Tile):
        left = _held_operand(e, op, a, shape)
    else:
        view = e.view(op.a)
        fields_a = fields_of(e, view, 1)
        left = Operands(e, view, fields_a, fields_a.rows64 if shape.groups > 1 else 0)
    signs = ", 1, 1" if t.element != i32 else ""
    majors = ""
    if bits(right_element) == 16:
        majors = (left.major if isinstance(left, Operands) else "") + right.major
    size = len(registers) // (shape.blocks * shape.columns)
    types = f"{ACCUMULATOR_NAMES[t.element]}.{NAMES[left_element]}.{NAMES[right_element]}"
    name = f"wgmma.mma_async.sync.aligned.m64n{shape.width}k{shape.depth}.{types}"
    for step in range(shape.steps):
        used = _adds(e, op, step)
        for block in range(shape.blocks):
            first = _left_operand(left, shape, step, block)
            for column in range(shape.columns):
                at = (block * shape.columns + column) * size
                start = b.memory.offset((0, column * shape.width)) if column else 0
                second = right.at(fields_b.k_offset(step) + start)
                w = braced(registers[at : at + size])
                e.w.emit(f"{name} {w}, {first}, {second}, {used}{signs}{majors}")
    e.set(op.result, Tile.of(t, registers))


def _left_operand(left: Operands | list[str], shape: Shape, step: int, block: int) -> str:
    """Registers, or a descriptor, of a block of rows at a step along k."""
    if isinstance(left, Operands):
        fields = left.fields
        return left.at(fields.k_offset(step) + block * shape.groups * fields.rows64)
    size = len(left) // (shape.blocks * shape.steps)
    return braced(left[(block * shape.steps + step) * size :][:size])


def _adds(e: Emitter, op: threads.DotAsync, step: int) -> str:
    """Whether an instruction adds to the accumulator: 0, 1 or a predicate."""
    if step or op.acc is not None and op.keep is None:
        return "1"
    if op.acc is None or op.keep is None:
        return "0"
    keep = e.operand(op.keep)
    return keep if isinstance(keep, str) else str(int(keep))


def _held_operand(e: Emitter, op: threads.DotAsync, a: Tile, shape: Shape) -> list[str]:
    """The registers of a left operand."""
    w = e.w
    fragment = wgmma_a(shape.rows, shape.k, shape.groups, bits(a.element))
    if a.layout != (paired(fragment) if shape.is_paired else fragment):
        e.fail(f"the left operand of a dot is held as {a.layout}, not as wgmma reads it")
    held = [w.register(r) for r in a.registers]
    if a.element == f32:
        held = [w.op("cvt.rna.tf32.f32", "b32", r) for r in held]
    elif _is_read(op):
        held = [w.op("mov.b32", "b32", r) for r in held]
    if held != a.registers:
        w.emit("wgmma.fence.sync.aligned")
    return held


def _is_read(op: threads.DotAsync) -> bool:
    """Whether a left operand is read from shared memory in the dot's own block: it is read while
    the dot before still reads its own, and so needs other registers.
    """
    value = op.a
    while (transpose := defining_op(value, tile.Transpose)) is not None:
        value = transpose.arg
    read = defining_op(value, shared.Read)
    return read is not None and read.parent is op.parent


def accumulator(e: Emitter, op: threads.DotAsync, t: TileType) -> list[str]:
    """The registers of the accumulator: its destination, in which the old value already is (else it
    is copied there, and a note says so).
    """
    into = e.destination(op.result) or e.w.many(*registers_of(t))
    if op.acc is not None and (old := e.tile(op.acc).registers) != into:
        if any(isinstance(r, str) for r in old):
            e.notes.append(
                f"the accumulator {t} of a dot is copied: its old value is needed beside the new"
            )
        e.w.moves(zip(into, old, strict=True))
        e.w.emit("wgmma.fence.sync.aligned")
    return into


@emitter(threads.Undefined)
def undefined(e: Emitter, op: threads.Undefined) -> None:
    """Registers with nothing in them; zeroed once, before the role's loops, as older assemblers
    require a first value.
    """
    t = accumulator_type(op)
    registers = e.destination(op.result) or e.w.many(*registers_of(t))
    e.values[op.result] = Tile.of(t, registers)
    key = "undefined", tuple(registers)
    e.w.hoist(key, lambda: e.w.moves((r, 0) for r in registers))


@emitter(threads.Accumulator)
def held_accumulator(e: Emitter, op: threads.Accumulator) -> None:
    """The tile's registers, or where register coalescing has the accumulator."""
    e.set(op.result, e.tile(op.arg))


@emitter(threads.DotCommit)
def commit(e: Emitter, op: threads.DotCommit) -> None:
    """Ends a group of dots."""
    e.w.emit("wgmma.commit_group.sync.aligned")


@emitter(threads.DotWait)
def wait(e: Emitter, op: threads.DotWait) -> None:
    """The registers stay; what is ready may now be read. Where a dot in flight would have to be
    copied it is waited for, too.
    """
    stays = all(
        e.destination(r) == e.destination(a)
        for a, r in zip(op.args, op.results, strict=True)
        if in_flight(r)
    )
    e.w.emit(f"wgmma.wait_group.sync.aligned {op.pending.value.data if stays else 0}")
    for operand, result in zip(op.args, op.results, strict=True):
        e.set(result, e.tile(operand))
