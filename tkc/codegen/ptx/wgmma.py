"""Asynchronous dots: wgmma, whose operands a 64-bit descriptor finds in shared memory.

    low word      (address of the operand & 0x3ffff) >> 4, leading byte offset          high word    stride byte offset, swizzle: a constant

The address is the start of shared memory, which the prologue turns into a descriptor once, plus
terms that simply add in units of 16 bytes:
the stage of a ring times its size, a slice's first row, the step along k, the block of 64 rows.  (In a cluster the address carries the
block's rank above bit 23: masked, or it would land in the leading offset.)  All of it is the same in every thread, and ptxas must see
that it is: then a step is the wgmma themselves and a few uniform additions.

An instance of several warpgroups deals its blocks of 64 rows out in turn. ptxas wants one
instruction's sum to fit what a thread has as the kernel begins, whatever setmaxnreg gives it later
(C7602): in blocks of many threads a wide sum is that of several instructions.
"""

from __future__ import annotations

from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.values import SharedView, Tile, registers_of
from tkc.codegen.ptx.writer import Operand
from tkc.ir import shared, threads, tile
from tkc.ir.fragments import wgmma_a, wgmma_accumulator
from tkc.ir.layout import LayoutError
from tkc.ir.shared_layout import Descriptor
from tkc.ir.types import bf16, bits, f8e4m3, f8e5m2, f16, f32, i8, i32, ui8

NAMES = {bf16: "bf16", f16: "f16", f32: "tf32", f8e4m3: "e4m3", f8e5m2: "e5m2", i8: "s8", ui8: "u8"}
SUMS = {f32: "f32", f16: "f16", i32: "s32"}
UNIT = 16  # bytes that a descriptor counts
OTHERS = 32  # registers that an instruction needs beside its sum


class Operands:
    """The descriptors of one operand of a dot in shared memory: low words by their distance from
    its start. share: the bytes from one warpgroup's rows to the next one's; 0 if all read the same.
    """

    def __init__(self, e: Emitter, view: SharedView, fields: Descriptor, share: int):
        self.e, low, w, root = e, fields.bits & 0xFFFFFFFF, e.w, view.root or view.base

        def make() -> str:
            start = w.op(
                "add.s32",
                "b32",
                w.op("and.b32", "b32", w.op("shr.u32", "b32", root, 4), 0x3FFF),
                low + view.offset // UNIT,
                type="u32",
            )
            return (
                w.op("mad.lo.u32", "b32", w.op("shr.u32", "b32", e.warp(), 2), share // UNIT, start)
                if share
                else start
            )

        start = (
            w.hoist(
                ("descriptor", root, low, view.offset, share, e.instance if share else None), make
            )
            if root == e.shared_base()
            else make()
        )
        for register, size in view.terms:
            start = w.op("mad.lo.u32", "b32", register, size // UNIT, start)
        self.base = w.new("b64")
        w.emit(f"mov.b64 {self.base}, {{{start}, {fields.bits >> 32}}}")

    def at(self, distance: int) -> str:
        """The descriptor of what lies that many bytes on."""
        return self.e.w.op("add.s64", "b64", self.base, distance // UNIT) if distance else self.base


def fields_of(e: Emitter, view: SharedView, axis: int) -> Descriptor:
    """axis: which of the operand's axes is K."""
    try:
        return view.memory.descriptor("k" if view.memory.fast == axis else "mn")
    except LayoutError as error:
        e.fail(str(error))


@emitter(threads.DotAsync)
def dot_async(e: Emitter, op: threads.DotAsync) -> None:
    w, t = e.w, op.result.type.tile
    (rows, k), n = op.a.type.extents, t.extents[1]
    groups = e.instance.warps // 4
    most, b = 2 * (e.target.at_entry(e.threads) - OTHERS), e.value(op.b)
    fields_b = fields_of(e, b, 0)
    # columns at which a descriptor may begin
    unit = max(8, b.memory.swizzle * 8 // bits(op.b.type.element)) if fields_b.major == "mn" else 8
    depth, width = (
        256 // bits(op.b.type.element),
        (
            n
            if n <= min(256, most)
            else next((x for x in range(min(256, most), 0, -1) if n % x == 0 and x % unit == 0), n)
        ),
    )
    if e.instance.warps % 4 or rows % (64 * groups) or k % depth or width % 8:
        e.fail(
            f"wgmma of {e.instance.warps} warps takes rows by {64 * max(groups, 1)}, columns by 8"
            f" and k by {depth}, not {rows}x{n}x{k}"
        )
    if {op.a.type.element, op.b.type.element} == {i8, ui8}:
        e.need("8.4")
    if t.register_layout != wgmma_accumulator(rows, n, groups):
        e.fail(f"a wgmma of {rows}x{n} cannot deliver the layout {t.register_layout}")
    registers = accumulator(e, op, t)
    a, right = e.value(op.a), Operands(e, b, fields_b, 0)
    held: list[str] = []
    if isinstance(a, Tile):
        if a.layout != wgmma_a(rows, k, groups, bits(a.element)):
            e.fail(f"the left operand of a dot is held as {a.layout}, not as wgmma reads it")
        left, fields_a, held = None, None, [w.register(r) for r in a.registers]
        if a.element == f32:
            held = [w.op("cvt.rna.tf32.f32", "b32", r) for r in held]
        elif _is_read(op):
            held = [w.op("mov.b32", "b32", r) for r in held]
        if held != a.registers:
            w.emit("wgmma.fence.sync.aligned")
    else:
        fields_a = fields_of(e, a, 1)
        left = Operands(e, a, fields_a, fields_a.rows64 if groups > 1 else 0)
    blocks, steps, columns = rows // (64 * groups), k // depth, n // width
    each, floats, wide = (
        len(registers) // (blocks * columns),
        t.element != i32,
        bits(op.b.type.element) == 16,
    )
    name = f"wgmma.mma_async.sync.aligned.m64n{width}k{depth}.{SUMS[t.element]}.{NAMES[op.a.type.element]}.{NAMES[op.b.type.element]}"

    def major(f):
        return f", {int(f.major == 'mn')}"

    for step in range(steps):
        used = (
            "1"
            if step or op.acc is not None and op.keep is None
            else "0"
            if op.acc is None
            else str(_truth(e.operand(op.keep)))
        )
        for block in range(blocks):
            if left is None:
                few = len(held) // (blocks * steps)
                first = f"{{{', '.join(held[(block * steps + step) * few :][:few])}}}"
            else:
                first = left.at(fields_a.k_offset(step) + block * groups * fields_a.rows64)
            for column in range(columns):
                at = (block * columns + column) * each
                second = right.at(
                    fields_b.k_offset(step)
                    + (b.memory.offset((0, column * width)) if column else 0)
                )
                signs = ", 1, 1" if floats else ""
                turns = (
                    (major(fields_a) if left is not None else "") + major(fields_b) if wide else ""
                )
                w.emit(
                    f"{name} {{{', '.join(registers[at : at + each])}}}, {first}, {second},"
                    f" {used}{signs}{turns}"
                )
    e.set(op.result, Tile.of(t, registers))


def _is_read(op: threads.DotAsync) -> bool:
    """Whether a left factor is what its block reads in shared memory: it is read while the dot
    before still reads its own, and so in other registers.
    """
    value = op.a
    while isinstance(value.owner, tile.Transpose):
        value = value.owner.arg
    return isinstance(value.owner, shared.Read) and value.owner.parent is op.parent


def accumulator(e: Emitter, op: threads.DotAsync, t) -> list[str]:
    """The registers of the sum: its home, in which the old sum already is (else it is copied there,
    and a note says so).
    """
    home = e.home(op.result)
    home = home or e.w.many(*registers_of(t))
    if op.acc is not None and (old := e.tile(op.acc).registers) != home:
        if any(isinstance(r, str) for r in old):
            e.notes.append(
                f"the accumulator {t} of a dot is copied: its old value is needed beside the new"
            )
        e.w.moves(list(zip(home, old, strict=False)))
        e.w.emit("wgmma.fence.sync.aligned")
    return home


def _truth(x: Operand) -> Operand:
    return x if isinstance(x, str) else int(x)


@emitter(threads.Undefined)
def undefined(e: Emitter, op: threads.Undefined) -> None:
    """Registers with nothing in them; zeroed once, before the role's loops, as older assemblers
    want to see a first value.
    """
    t = op.result.type.tile
    home = e.home(op.result) or e.w.many(*registers_of(t))
    e.values[op.result] = Tile.of(t, home)
    e.w.hoist(("undefined", tuple(home)), lambda: e.w.moves([(r, 0) for r in home]) or home[0])


@emitter(threads.DotCommit)
def commit(e: Emitter, op: threads.DotCommit) -> None:
    e.w.emit("wgmma.commit_group.sync.aligned")


@emitter(threads.DotWait)
def wait(e: Emitter, op: threads.DotWait) -> None:
    """The registers stay; what is ready may now be read."""
    e.w.emit(f"wgmma.wait_group.sync.aligned {op.pending.value.data}")
    for operand, result in zip(op.args, op.results, strict=False):
        e.set(result, e.tile(operand))
