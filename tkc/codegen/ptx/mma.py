"""tile.dot in registers: tensor-core mma.sync, and plain multiply-adds.

    mma    fragments of fragments.py: operands of instruction (m, n, k) are consecutive registers.
           k outermost: consecutive instructions have different accumulators
    fma    each thread has the rows of a and the columns of b that its accumulators need

The result has a destination or new registers; the accumulator is read by the first k-step only, so
none is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

import numpy as np
from xdsl.ir import Attribute, SSAValue

from tkc.codegen.ptx.conversions import cast
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.values import Tile, compute_class, compute_type, registers_of
from tkc.codegen.ptx.writer import Operand, braced
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Bitcast
from tkc.ir.fragments import mma_a, mma_accumulator, mma_b
from tkc.ir.types import bf16, bits, f8e4m3, f8e5m2, f16, f32, i8, i32, is_float, ui8
from tkc.ir.values import defining_op, tile_type

NAMES: dict[Attribute, str] = {
    f16: "f16",
    bf16: "bf16",
    f8e4m3: "e4m3",
    f8e5m2: "e5m2",
    i8: "s8",
    ui8: "u8",
    f32: "tf32",
    i32: "s32",
}
K_OF_INSTRUCTION = {8: 32, 16: 16, 32: 8}  # by the bits of an element of the operands


@emitter(tile.Dot)
def dot(e: Emitter, op: tile.Dot) -> None:
    """A dot of operands in registers. Raises CompileError for layouts that do not fit."""
    a, b, acc = (e.tile(v) for v in (op.a, op.b, op.acc))
    t = tile_type(op.result)
    into = e.destination(op.result) or e.w.many(*registers_of(t))
    match op.instruction.data if op.instruction is not None else "fma":
        case "mma":
            mma(e, op, a, b, acc, into)
        case "fma":
            fma(e, a, b, acc, into)
        case other:
            e.fail(f"a dot by '{other}' is no instruction on registers: wgmma is tile.dot_async")
    e.set(op.result, Tile.of(t, into))


# ---- tensor cores
def _check(e: Emitter, a: Tile, b: Tile, acc: Tile) -> None:
    """Raises CompileError for operands that mma does not take."""
    width, warps, k = bits(a.element), e.instance.warps, a.layout.shape[-1]
    if width not in K_OF_INSTRUCTION:
        e.fail(f"mma takes elements of 8, 16 or 32 bits, not {a.element}")
    if not any(fits(a, b, acc, m, warps // m) for m in range(1, warps + 1) if warps % m == 0):
        e.fail(
            f"mma needs fragments: a {a.layout}, b {b.layout} and the accumulator {acc.layout} are"
            f" not those of {warps} warps"
        )
    if width == 8 and is_float(a.element):
        if not e.target.fp8:
            e.fail(
                f"float8 products need sm_89 or newer, not {e.target.name}: convert the operands to"
                " bfloat16"
            )
        e.need("8.4")
    if k % K_OF_INSTRUCTION[width]:
        e.fail(f"mma steps through k by {K_OF_INSTRUCTION[width]}, but k is {k}: pad the operands")


def mma(e: Emitter, op: tile.Dot, a: Tile, b: Tile, acc: Tile, into: list[str]) -> None:
    """The instructions of a dot on tensor cores."""
    w, width = e.w, bits(a.element)
    _check(e, a, b, acc)
    step = K_OF_INSTRUCTION[width]
    batches, ks = prod(a.layout.shape[:-2]), a.layout.shape[-1] // step
    ms = a.count * width // 32 // (4 * batches * ks)
    ns = b.count * width // 32 // (2 * batches * ks)
    per_c = 2 if bits(acc.element) == 16 else 4
    accumulator = "f16" if acc.element == f16 else "f32" if is_float(acc.element) else "s32"
    types = f"{accumulator}.{NAMES[a.element]}.{NAMES[b.element]}.{accumulator}"
    name = f"mma.sync.aligned.m16n8k{step}.row.col.{types}"
    if width == 32:
        passes = _tf32_passes(e, op, a, b)
    else:
        passes = [([w.register(r) for r in a.registers], [w.register(r) for r in b.registers])]
    source = into
    if any(r not in into for r in acc.registers):
        source = [w.register(r) for r in acc.registers]
    counts = range(batches), range(ms), range(ns)
    for step_k, (ra, rb), batch, m, n in product(range(ks), passes, *counts):
        first = per_c * ((batch * ms + m) * ns + n)
        c = slice(first, first + per_c)
        start = source if step_k == 0 and ra is passes[0][0] else into
        x = ra[4 * ((batch * ms + m) * ks + step_k) :][:4]
        y = rb[2 * ((batch * ks + step_k) * ns + n) :][:2]
        w.emit(f"{name} {braced(into[c])}, {braced(x)}, {braced(y)}, {braced(start[c])}")


def fits(a: Tile, b: Tile, acc: Tile, wm: int, wn: int) -> bool:
    """Whether the layouts are fragments for warps of wm rows and wn columns; batch after batch in
    registers.
    """
    (*batch, m, k), n, width = a.layout.shape, b.layout.shape[-1], bits(a.element)
    parts = [mma_accumulator(m, n, wm, wn), mma_a(m, k, wm, wn, width), mma_b(k, n, wm, wn, width)]
    for extent in reversed(batch):
        parts = [p.expand(0).broadcast(0, extent) for p in parts]
    return [acc.layout, a.layout, b.layout] == parts


def _tf32_passes(e: Emitter, op: tile.Dot, a: Tile, b: Tile) -> list[tuple[list[str], list[str]]]:
    """float32 operands as tf32; tf32x3: each as the sum of two, the product of the small ones left
    out, small products first.
    """
    w = e.w

    def large(xs: Iterable[Operand]) -> list[str]:
        return [w.op("cvt.rna.tf32.f32", "b32", w.register(x)) for x in xs]

    def cut(value: SSAValue, xs: Iterable[Operand]) -> list[str]:
        return [w.register(x) for x in xs] if _is_tf32(value) else large(xs)

    def small(xs: Sequence[Operand], ys: Sequence[str]) -> list[str]:
        differences = (
            w.op("sub.rn.f32", "b32", w.register(x), y) for x, y in zip(xs, ys, strict=True)
        )
        return large(differences)

    match op.precision.data:
        case "tf32":
            return [(cut(op.a, a.registers), cut(op.b, b.registers))]
        case "tf32x3":
            ha, hb = large(a.registers), large(b.registers)
            return [(small(a.registers, ha), hb), (ha, small(b.registers, hb)), (ha, hb)]
        case other:
            e.fail(
                f"tensor cores do not compute float32 products with precision '{other}': that is a"
                " dot by fma"
            )


def _is_tf32(value: SSAValue) -> bool:
    """Whether the program itself cuts the mantissas to those of a tf32: the conversion, which is
    several instructions, would change nothing."""
    words = defining_op(value, Bitcast)
    masked = None if words is None else defining_op(words.arg, CLASSES["and"])
    if masked is None:
        return False
    masks = (defining_op(operand, tile.Constant) for operand in masked.operands)
    return any(mask is not None and not int(mask.number) & (1 << 13) - 1 for mask in masks)


# ---- multiply-adds
def fma(e: Emitter, a: Tile, b: Tile, acc: Tile, into: list[str]) -> None:
    """The instructions of a dot without tensor cores."""
    t, w = acc.element, e.w
    if acc.pack > 1 or bits(t) < 32:
        e.fail(f"a dot by fma accumulates in 32 or 64 bits, not in {t}")
    rank, k = acc.layout.rank, a.layout.shape[-1]
    rows = operand_registers(e, a, acc, rank - 1)
    columns = operand_registers(e, b, acc, rank - 2)
    w.moves(zip(into, acc.registers, strict=True))
    kind, cls = compute_type(t), compute_class(t)
    name = f"fma.rn.{kind}" if is_float(t) else f"mad.lo.{kind}"
    for j in range(k):
        left = {r: cast(e, e.element(a, r), a.element, t) for r in dict.fromkeys(rows[j])}
        right = {
            r: w.register(cast(e, e.element(b, r), b.element, t), cls)
            for r in dict.fromkeys(columns[j])
        }
        for i, register in enumerate(into):
            x, y = left[rows[j][i]], right[columns[j][i]]
            w.op(name, cls, y, x, register, type=kind, into=register)


def operand_registers(e: Emitter, operand: Tile, acc: Tile, axis: int) -> list[list[int]]:
    """[k][accumulator register] -> the operand's register with the accumulator's coordinates, its
    axis `axis`, which is summed over, being k.
    """
    # [warps, lanes, registers, rank]
    have, want = (
        operand.layout.table(),
        acc.layout.table().copy(),
    )
    index = {tuple(at): r for r, at in reversed(list(enumerate(have[0, 0].tolist())))}
    real = np.all(want < np.array(acc.layout.shape), axis=-1)
    lists = []
    for j in range(operand.layout.shape[axis]):
        want[..., axis] = j
        chosen = [index.get(tuple(at)) for at in want[0, 0].tolist()]
        spare = next((r for r in chosen if r is not None), 0)
        filled = [spare if r is None else r for r in chosen]
        if not (np.all(have[:, :, filled] == want, axis=-1) | ~real).all():
            e.fail(
                f"a dot by fma needs the operands' lines in each thread: {operand.layout} does not"
                f" hold those of {acc.layout}"
            )
        lists.append(filled)
    return lists
