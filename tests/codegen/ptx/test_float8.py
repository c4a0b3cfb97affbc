"""float8 on targets without instructions for it: every code, every rounding and every operation as
ml_dtypes and NumPy have them.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, traced
from tests.operations.case import E4M3, E5M2, compare, jitted
from tests.operations.table import CASES
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import target
from tkc.language.signature import Options
from tkc.passes import pipeline
from tkc.runtime import simulate
from tkc.runtime.specialize import Constant
from tkc.sim.ptx import run

NAMES = {E4M3: tkc.float8_e4m3, E5M2: tkc.float8_e5m2}
TARGETS = pytest.mark.parametrize("name", ["sm_80", "sm_89"])


def cast(x, out, N: tkc.constexpr):
    tkc.store(out, (0,), tkc.load(x, (0,), (N,)).to(out.dtype))


def through(name: str, source, kind, x: np.ndarray, into: np.dtype) -> np.ndarray:
    """Elements converted on a target."""
    module = traced(cast, array(source), array(kind), N=len(x))
    pipeline.run(module, target(name), Options())
    return run(emit(module, target(name)), [x, np.zeros(len(x), into)])[1]


@TARGETS
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_every_code(dtype, name):
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    for kind, into in (
        (tkc.float32, np.float32),
        (tkc.float16, np.float16),
        (tkc.bfloat16, ml_dtypes.bfloat16),
    ):
        found = through(name, NAMES[dtype], kind, codes, into)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(np.float64(found), np.float64(codes))
    # and moved as they are
    back = through(name, NAMES[dtype], NAMES[dtype], codes, dtype)
    assert (back.view(np.uint8) == codes.view(np.uint8)).all()


def moved_one_by_one(x, out, N: tkc.constexpr):
    for i in range(N):
        tkc.store(out, (i,), x[i])


def moved_as_what_is_absent(x, out, N: tkc.constexpr):
    tkc.store(out, (0,), tkc.load(x, (N,), (N,), other=tkc.load(x, (0,), (N,))))


def moved_where_a_mask_says_so(x, out, N: tkc.constexpr):
    i = tkc.arange(N)
    spare = tkc.load(x, (0,), (N,))
    tkc.store(out, (0,), tkc.load(x.ptr + i, mask=i % 3 == 1, other=spare))


def moved_twice(x, out, N: tkc.constexpr):
    i = tkc.arange(2 * N) // 2
    tkc.store(out, (0,), tkc.load(x.ptr + i).reshape(N, 2)[:, 0])


def moved_by_one_thread_each(x, out, N: tkc.constexpr):
    tkc.store(out, (0,), tkc.load(x.ptr + tkc.arange(N), sem="relaxed"))


@TARGETS
@pytest.mark.parametrize("dtype", NAMES, ids=str)
@pytest.mark.parametrize(
    "kernel",
    [
        moved_one_by_one,
        moved_as_what_is_absent,
        moved_where_a_mask_says_so,
        moved_twice,
        moved_by_one_thread_each,
    ],
)
def test_what_is_moved_is_not_rounded(kernel, dtype, name):
    """An infinity stays one."""
    codes = np.arange(256, dtype=np.uint8).view(dtype)
    module = traced(kernel, array(NAMES[dtype]), array(NAMES[dtype]), N=256)
    pipeline.run(module, target(name), Options())
    found = run(emit(module, target(name)), [codes, np.zeros(256, dtype)])[1]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.float64(found), np.float64(codes))


@TARGETS
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_every_rounding(dtype, name):
    """All numbers, all midpoints of neighbours and what lies beside these, too large ones,
    infinities, zeros of both signs.
    """
    all_of = np.sort(
        (v := np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32))[np.isfinite(v)]
    )
    middle, largest = (all_of[:-1] + all_of[1:]) / 2, np.float32(ml_dtypes.finfo(dtype).max)
    x = np.concatenate(
        [
            all_of,
            middle,
            np.nextafter(middle, np.float32(np.inf)),
            np.nextafter(middle, np.float32(-np.inf)),
            np.array(
                [np.inf, -np.inf, 1e30, -1e30, 1e-40, -1e-40, -0.0, largest * 1.01], np.float32
            ),
        ]
    )
    found, want = (
        through(name, tkc.float32, NAMES[dtype], x, dtype),
        np.clip(x, -largest, largest).astype(dtype),
    )
    assert (found.view(np.uint8) == want.view(np.uint8)).all()
    assert np.isnan(
        np.float32(through(name, tkc.float32, NAMES[dtype], np.full(4, np.nan, np.float32), dtype))
    ).all()


ROWS = [c for c in CASES if "float8" in c.name and "1000" not in c.name]


@pytest.mark.parametrize("part", range(8))
def test_every_operation_on_sm_80(part):
    """Rows of the table of operations."""
    for case in ROWS[part::32]:
        with np.errstate(all="ignore"):
            arguments = case.arguments(np.random.default_rng(sum(case.name.encode())))
            wanted = case.want(arguments)
        kernel = jitted(case.kernel)
        values, options = kernel._bind(**arguments, **case.options)
        infos = kernel._describe(values)
        module = simulate.level4_of(kernel, infos, tuple(options.items()), target("sm_80"))
        passed = [v for v, i in zip(values, infos, strict=False) if not isinstance(i, Constant)]
        machine.run(module, passed, (*case.grid, 1, 1)[:3])
        for name, want in wanted.items():
            compare(f"{case.name}: {name}", np.asarray(arguments[name]), want)


def several(x, y, out, N: tkc.constexpr):
    a, b = tkc.load(x, (0, 0), (N, N)), tkc.load(y, (0, 0), (N, N))
    tkc.store(
        out,
        (0, 0),
        (tkc.dot(a, b) * tkc.sigmoid(a.to(tkc.float32)) + tkc.max(b, axis=0)[None, :]).to(
            out.dtype
        ),
    )


@pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("dtype", NAMES, ids=str)
@pytest.mark.parametrize("name", ["sm_80", "sm_86"])
def test_they_assemble_clean(dtype, name):
    module = traced(several, *(array(NAMES[dtype], 2),) * 3, N=32)
    pipeline.run(module, target(name), Options())
    found = ptxas.assemble(emit(module, target(name)).text, name)
    assert found.clean, found.log
