"""tile.dot in registers: tensor-core mma.sync, and plain multiply-adds.

    mma    fragments of fragments.py: operands of instruction (m, n, k) are consecutive registers.  k outermost: consecutive
           instructions have different accumulators
    fma    each thread has the rows of a and the columns of b that its accumulators need

The result has a home or new registers; the accumulator is read by the first k-step only, so none is
copied.
"""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from tkc.codegen.ptx.conversions import cast
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.values import Tile, compute_class, compute_type, registers_of
from tkc.ir import tile
from tkc.ir.fragments import mma_a, mma_accumulator, mma_b
from tkc.ir.types import bf16, bits, f8e4m3, f8e5m2, f16, f32, i8, i32, is_float, ui8

NAMES = {
    f16: "f16",
    bf16: "bf16",
    f8e4m3: "e4m3",
    f8e5m2: "e5m2",
    i8: "s8",
    ui8: "u8",
    f32: "tf32",
    i32: "s32",
}
K = {8: 32, 16: 16, 32: 8}


@emitter(tile.Dot)
def dot(e: Emitter, op: tile.Dot) -> None:
    a, b, acc = (e.tile(v) for v in (op.a, op.b, op.acc))
    t = op.result.type
    kind, count = registers_of(t)
    into = e.home(op.result) or e.w.many(kind, count)
    match op.instruction.data if op.instruction is not None else "fma":
        case "mma":
            mma(e, op, a, b, acc, into)
        case "fma":
            fma(e, a, b, acc, into)
        case other:
            e.fail(f"a dot by '{other}' is no instruction on registers: wgmma is tile.dot_async")
    e.set(op.result, Tile.of(t, into))


# ---- tensor cores
# --------------------------------------------------------------------------------------------------
def mma(e: Emitter, op: tile.Dot, a: Tile, b: Tile, acc: Tile, into: list[str]) -> None:
    w, width = e.w, bits(a.element)
    *batch, k = (*a.layout.shape[:-2], a.layout.shape[-1])
    batches = prod(batch)
    step = K.get(width) or e.fail(f"mma takes elements of 8, 16 or 32 bits, not {a.element}")
    if not any(
        fits(a, b, acc, wm, e.instance.warps // wm)
        for wm in range(1, e.instance.warps + 1)
        if e.instance.warps % wm == 0
    ):
        e.fail(
            f"mma needs fragments: a {a.layout}, b {b.layout} and the accumulator {acc.layout} are"
            f" not those of {e.instance.warps} warps"
        )
    if width == 8 and is_float(a.element):
        if not e.target.fp8:
            e.fail(
                f"float8 products need sm_89 or newer, not {e.target.name}: convert the operands to"
                " bfloat16"
            )
        e.need("8.4")
    per_c = 2 if bits(acc.element) == 16 else 4
    ks, ms, ns = (
        -(-k // step),
        a.count * width // 32 // (4 * batches * -(-k // step)),
        b.count * width // 32 // (2 * batches * -(-k // step)),
    )
    accumulator = "f16" if acc.element == f16 else "f32" if is_float(acc.element) else "s32"
    name = f"mma.sync.aligned.m16n8k{step}.row.col.{accumulator}.{NAMES[a.element]}.{NAMES[b.element]}.{accumulator}"
    passes = (
        _parts(e, op, a, b)
        if width == 32
        else [([w.register(r) for r in a.registers], [w.register(r) for r in b.registers])]
    )
    if k % step:
        e.fail(f"mma steps through k by {step}, but k is {k}: pad the operands")
    source = (
        [w.register(r) for r in acc.registers]
        if any(r not in into for r in acc.registers)
        else into
    )
    for j, (ra, rb), n, i, l in product(range(ks), passes, range(batches), range(ms), range(ns)):
        c = slice(per_c * ((n * ms + i) * ns + l), per_c * ((n * ms + i) * ns + l + 1))
        start = source if j == 0 and ra is passes[0][0] else into
        x, y = ra[4 * ((n * ms + i) * ks + j) :][:4], rb[2 * ((n * ns + l) * ks + j) :][:2]
        w.emit(f"{name} {_braced(into[c])}, {_braced(x)}, {_braced(y)}, {_braced(start[c])}")


def fits(a: Tile, b: Tile, acc: Tile, wm: int, wn: int) -> bool:
    """Whether the layouts are fragments for warps of wm rows and wn columns; batch after batch in
    registers.
    """
    (*batch, m, k), n, width = a.layout.shape, b.layout.shape[-1], bits(a.element)
    parts = mma_accumulator(m, n, wm, wn), mma_a(m, k, wm, wn, width), mma_b(k, n, wm, wn, width)
    for extent in reversed(batch):
        parts = tuple(p.expand(0).broadcast(0, extent) for p in parts)
    return (acc.layout, a.layout, b.layout) == parts


def _parts(e: Emitter, op: tile.Dot, a: Tile, b: Tile) -> list[tuple[list[str], list[str]]]:
    """float32 operands as tf32; tf32x3: each as the sum of two, the product of the small ones left
    out, small products first.
    """
    w = e.w

    def large(xs):
        return [w.op("cvt.rna.tf32.f32", "b32", w.register(x)) for x in xs]

    def small(xs, ys):
        return [
            w.op("cvt.rna.tf32.f32", "b32", w.op("sub.rn.f32", "b32", w.register(x), y))
            for x, y in zip(xs, ys, strict=False)
        ]

    match op.precision.data:
        case "tf32":
            return [(large(a.registers), large(b.registers))]
        case "tf32x3":
            ha, hb = large(a.registers), large(b.registers)
            return [(small(a.registers, ha), hb), (ha, small(b.registers, hb)), (ha, hb)]
        case other:
            e.fail(
                f"tensor cores do not compute float32 products with precision '{other}': that is a"
                " dot by fma"
            )


def _braced(registers: list[str]) -> str:
    return f"{{{', '.join(registers)}}}"


# ---- multiply-adds
# --------------------------------------------------------------------------------------------------
def fma(e: Emitter, a: Tile, b: Tile, acc: Tile, into: list[str]) -> None:
    t, w = acc.element, e.w
    if acc.pack > 1 or bits(t) < 32:
        e.fail(f"a dot by fma accumulates in 32 or 64 bits, not in {t}")
    rank, k = acc.layout.rank, a.layout.shape[-1]
    rows, columns = (
        operand_registers(e, a, acc, rank - 1, rank - 1),
        operand_registers(e, b, acc, rank - 2, rank - 2),
    )
    w.moves(list(zip(into, acc.registers, strict=False)))
    kind = compute_type(t)
    name = f"fma.rn.{kind}" if is_float(t) else f"mad.lo.{kind}"
    for j in range(k):
        left = {r: cast(e, e.element(a, r), a.element, t) for r in dict.fromkeys(rows[j])}
        right = {
            r: w.register(cast(e, e.element(b, r), b.element, t), compute_class(t))
            for r in dict.fromkeys(columns[j])
        }
        for i, register in enumerate(into):
            x, y = left[rows[j][i]], right[columns[j][i]]
            w.op(name, compute_class(t), y, x, register, type=kind, into=register)


def operand_registers(
    e: Emitter, operand: Tile, acc: Tile, summed: int, replaced: int
) -> list[list[int]]:
    """[k][accumulator register] -> the operand's register with the accumulator's coordinates, axis
    `replaced` being k; `summed`: the operand's axis that is summed over."""
    have, want = (
        operand.layout.table(),
        acc.layout.table().copy(),
    )  # [warps, lanes, registers, rank]
    index = {tuple(at): r for r, at in reversed(list(enumerate(have[0, 0].tolist())))}
    real = (want < np.array(acc.layout.shape)).all(-1)
    lists = []
    for j in range(operand.layout.shape[summed]):
        want[..., replaced] = j
        chosen = [index.get(tuple(at)) for at in want[0, 0].tolist()]
        spare = next((r for r in chosen if r is not None), 0)
        chosen = [spare if r is None else r for r in chosen]
        if not ((have[:, :, chosen] == want).all(-1) | ~real).all():
            e.fail(
                f"a dot by fma needs the operands' lines in each thread: {operand.layout} does not"
                f" hold those of {acc.layout}"
            )
        lists.append(chosen)
    return lists
