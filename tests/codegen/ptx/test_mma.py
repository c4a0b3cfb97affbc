"""Products in registers: every mma instruction, several warps, and multiply-adds; on the little
machine, and through ptxas.
"""

import ml_dtypes
import numpy as np
import pytest

from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.errors import CompileError
from tkc.ir.digits import Digit, copies
from tkc.ir.dtypes import BY_NUMPY
from tkc.ir.fragments import mma_a, mma_accumulator, mma_b
from tkc.ir.layout import Layout, blocked
from tkc.ir.target import target
from tkc.ir.text import parse
from tkc.sim.ptx import run

E4, E5, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16


def product(da, db, dc, m, n, k, layouts, instruction="mma", precision="ieee", steps=1):
    """c = a b, `steps` times added up in a loop."""
    ta, tb, tc = (BY_NUMPY[np.dtype(d)].ir for d in (da, db, dc))

    def array(s, t):
        return f'!tile.array<?x?x{t}, "shape ={s[0]} ={s[1]} strides ={s[1]} =1 align 16">'

    def tile(s, t, layout):
        return f'!tile.tile<{s[0]}x{s[1]}x{t}, "{layout}">'

    a, b, c = (
        tile((m, k), ta, layouts[0]),
        tile((k, n), tb, layouts[1]),
        tile((m, n), tc, layouts[2]),
    )

    def load(name, s, t, full):
        return (
            f"%{name} = tile.load %a{name}[%z, %z] {{extents = array<i64: {s[0]}, {s[1]}>}} :"
            f" ({array(s, t)}, i32, i32) -> {full}"
        )

    zero = "0" if str(tc)[0] in "iu" else "0.0"
    aa, ab, ac = array((m, k), ta), array((k, n), tb), array((m, n), tc)
    options = f'{{precision = "{precision}", instruction = "{instruction}"}}'
    return f"""builtin.module {{
    tile.kernel @product(%aa: {aa}, %ab: {ab}, %ac: {ac})
        {{warps = {layouts[2].num_warps} : i64, level = 4 : i64}} {{
      %z = tile.constant 0 : i32 %one = tile.constant 1 : i32 %steps = tile.constant {steps} : i32
      {load("a", (m, k), ta, a)}
      {load("b", (k, n), tb, b)}
      %start = tile.constant {zero} : {c}
      %r = scf.for %i = %z to %steps step %one iter_args(%acc = %start) -> ({c}) : i32 {{
        %d = tile.dot %a, %b, %acc {options} : ({a}, {b}, {c}) -> {c}
        scf.yield %d : {c} }}
      tile.store %ac[%z, %z] %r {{extents = array<i64: {m}, {n}>}} : ({ac}, i32, i32, {c})
      tile.return }} }}"""


def fragments(m, n, k, wm, wn, width):
    return mma_a(m, k, wm, wn, width), mma_b(k, n, wm, wn, width), mma_accumulator(m, n, wm, wn)


def numbers(shape, dtype, seed):
    r = np.random.default_rng(seed)
    d = np.dtype(dtype)
    return (
        r.integers(-8 if d.kind == "i" else 0, 8, shape).astype(d)
        if d.kind in "iu"
        else (r.integers(-8, 8, shape) / 4).astype(d)
    )


def check(text, da, db, dc, m, n, k, steps, machine, tolerance=0.0):
    program = emit(parse(text), target(machine))
    a, b = numbers((m, k), da, 0), numbers((k, n), db, 1)
    if 0 < tolerance < 2e-3:
        a, b = (x * np.float32(1.2345) for x in (a, b))
    got = run(program, [a, b, np.zeros((m, n), dc)])[2].astype(np.float64)
    want = steps * (a.astype(np.float64) @ b.astype(np.float64))
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max()
    if ptxas.find("ptxas"):
        found = ptxas.assemble(program.text, machine)
        assert found.clean, found.log
    return program.text


@pytest.mark.parametrize(
    "da, db, dc, machine",
    [
        (np.float16, np.float16, np.float32, "sm_80"),
        (BF16, BF16, np.float32, "sm_80"),
        (np.float16, np.float16, np.float16, "sm_80"),
        (np.int8, np.int8, np.int32, "sm_80"),
        (np.uint8, np.int8, np.int32, "sm_86"),
        (E4, E4, np.float32, "sm_89"),
        (E5, E4, np.float32, "sm_90a"),
    ],
)
@pytest.mark.parametrize(
    "m, n, k, warps", [(16, 8, 32, (1, 1)), (64, 32, 64, (2, 2)), (32, 64, 96, (1, 4))]
)
def test_tensor_cores(da, db, dc, machine, m, n, k, warps):
    layouts = fragments(m, n, k, *warps, np.dtype(da).itemsize * 8)
    text = check(
        product(da, db, dc, m, n, k, layouts, steps=3),
        da,
        db,
        dc,
        m,
        n,
        k,
        3,
        machine,
        2e-3 if dc == np.float16 else 0,
    )
    assert "mma.sync.aligned.m16n8k" in text


@pytest.mark.parametrize("precision, tolerance", [("tf32", 1e-3), ("tf32x3", 1e-6)])
def test_float32_on_tensor_cores(precision, tolerance):
    m, n, k = 32, 16, 24
    check(
        product(
            np.float32,
            np.float32,
            np.float32,
            m,
            n,
            k,
            fragments(m, n, k, 2, 1, 32),
            precision=precision,
            steps=2,
        ),
        np.float32,
        np.float32,
        np.float32,
        m,
        n,
        k,
        2,
        "sm_80",
        tolerance,
    )


def rows_and_columns(m, n, k, warps):
    """Operands of a dot by fma: each thread has the lines that its accumulators need."""
    acc = blocked((m, n), 4, warps)

    def line(axis):
        def own(digits):
            return tuple(d if d.axis == axis else copies(d.extent) for d in digits)

        registers = tuple(d for d in acc.registers if d.axis == axis)
        return Layout(
            (m, k) if axis == 0 else (k, n),
            (*registers, Digit(k, 1 - axis, 1)),
            own(acc.lanes),
            own(acc.warps),
        )

    return line(0), line(1), acc


@pytest.mark.parametrize(
    "da, dc",
    [
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int32, np.int32),
        (BF16, np.float32),
        (np.int8, np.int32),
        (np.float16, np.float32),
    ],
)
@pytest.mark.parametrize("m, n, k", [(16, 32, 4), (8, 8, 3), (1, 64, 5)])
def test_multiply_adds(da, dc, m, n, k):
    check(
        product(da, da, dc, m, n, k, rows_and_columns(m, n, k, 2), "fma", steps=2),
        da,
        da,
        dc,
        m,
        n,
        k,
        2,
        "sm_80",
    )


def test_what_no_instruction_takes():
    wrong = product(
        BF16,
        BF16,
        np.float32,
        16,
        8,
        32,
        (*fragments(16, 8, 32, 1, 1, 16)[:2], blocked((16, 8), 4, 1)),
    )
    with pytest.raises(CompileError, match="fragments"):
        emit(parse(wrong), target("sm_80"))
    eight = product(E4, E4, np.float32, 16, 8, 32, fragments(16, 8, 32, 1, 1, 8))
    with pytest.raises(CompileError, match="sm_89"):
        emit(parse(eight), target("sm_80"))
