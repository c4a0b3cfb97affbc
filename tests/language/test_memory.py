"""Arrays, views, loads, stores and atomics in the simulator against NumPy."""

import mmap
import sys

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tkc.ir.text import show
from tkc.sim.level0 import run

f, i = tkc.float32, tkc.int32
R = np.random.default_rng(2)


def floats(*shape):
    return R.standard_normal(shape).astype(np.float32)


def test_views_of_views_and_their_bounds():
    def kernel(x, out, a, b):
        v = x[a][1:b][:, 2:]
        tkc.store(out, (0, 0), tkc.load(v, (0, 0), (8, 8), other=-1.0))
        tkc.store(out, (8, 0), v.shape[0])
        tkc.store(out, (8, 1), v.shape[1])
        tkc.store(out, (8, 2), v[1, 0])
        tkc.store(out, (8, 3), x[a, 0, -1])

    x, out = floats(3, 5, 6), np.zeros((9, 8), np.float32)
    run(traced(kernel, array(f, 3), array(f, 2), i32(), i32()), [x, out, 2, 4], (1, 1, 1))
    want = np.full((8, 8), -1, np.float32)
    want[:3, :4] = x[2, 1:4, 2:]
    np.testing.assert_array_equal(out[:8], want)
    np.testing.assert_array_equal(out[8, :4], [3, 4, x[2, 2, 2], x[2, 0, 5]])


def test_exact_facts_are_python_numbers():
    seen = []

    def kernel(x):
        seen.append((x.shape[0], x.strides[1], x[0].shape[0], x[0:3].shape[0], tuple(x.shape[1:])))

    traced(kernel, array(f, 2, shape=(8, 4), strides=(4, 1)))
    assert seen == [(8, 1, 4, 3, (4,))]


def test_facts_of_views():
    def kernel(x, a):
        tkc.load(x[a], (0,), (4,))
        tkc.load(x[2:], (0, 0), (4, 4))
        tkc.load(x[a : a + 4], (0, 0), (4, 4))

    text = show(traced(kernel, array(f, 2, shape=(None, 8), strides=(8, 1), align=64), i32()))
    assert (
        '"shape =8 strides =1 align 32"' in text
        and '"shape 1 =8 strides =8 =1 align 64"' in text
        and '"shape 1 =8 strides =8 =1 align 32"' in text
    )


def test_a_view_begins_and_ends_at_what_divides_its_bounds():
    """Behind a number that is known to be a multiple: so its elements move 16 bytes at a time."""

    def kernel(x, a):
        n = tkc.multiple_of(a, 8)
        tkc.load(x[:, n : 2 * n], (0, 0), (4, 4))
        tkc.load(x[2 * n], (0,), (4,))

    text = show(traced(kernel, array(f, 2, shape=(None, 64), strides=(64, 1), align=128), i32()))
    assert (
        '"shape 1 8 strides =64 =1 align 32"' in text and '"shape =64 strides =1 align 128"' in text
    )


def test_wide_arrays_have_wide_extents():
    def kernel(x, out):
        for k in tkc.range(x.shape[0]):
            tkc.store(out, (k,), x[k])

    text = show(traced(kernel, array(f, wide=True), array(f)))
    assert "tile.dim %x, 0" in text and ": i64 {" in text and "-> i64" in text


def test_dropped_axes_and_scalars():
    def kernel(x, out):
        column = tkc.load(x, (0, 2), (4, None))
        tkc.store(out, (1, 0), column[None, :])
        tkc.store(out, (0, 3), 5)
        tkc.store(out, (2, 0), tkc.load(x, (1, 1), (None, None)))

    x, out = floats(4, 4), np.zeros((3, 4), np.float32)
    run(traced(kernel, array(f, 2), array(f, 2)), [x, out], (1, 1, 1))
    np.testing.assert_array_equal(out, [[0, 0, 0, 5], x[:, 2], [x[1, 1], 0, 0, 0]])


def test_gather_and_scatter():
    def kernel(x, rows, out):
        at = tkc.load(rows, (0,), (4,))
        tkc.store(out, (at, 0), tkc.load(x, (at, 1), (4, 3)))

    x, rows, out = floats(6, 4), np.array([5, 0, 9, 3], np.int32), np.zeros((6, 3), np.float32)
    run(traced(kernel, array(f, 2), array(i), array(f, 2)), [x, rows, out], (1, 1, 1))
    want = np.zeros_like(out)
    want[[5, 0, 3]] = x[[5, 0, 3], 1:]
    np.testing.assert_array_equal(out, want)


def test_masks_and_other():
    def kernel(x, out, n):
        k = tkc.arange(8)
        tkc.store(
            out,
            (0, 0),
            tkc.load(x, (0,), (8,), mask=k % 2 == 0, other=k.to(tkc.float32))[None, :],
            mask=(k < n)[None, :],
        )
        tkc.store(out.ptr + 8 + k, tkc.load(x.ptr + k, mask=k < n, other=-1), mask=True)

    x, out = floats(8), np.zeros((2, 8), np.float32)
    run(traced(kernel, array(f), array(f, 2), i32()), [x, out, 5], (1, 1, 1))
    k = np.arange(8)
    np.testing.assert_array_equal(
        out, [np.where(k < 5, np.where(k % 2 == 0, x, k), 0), np.where(k < 5, x, -1)]
    )


def test_atomics():
    def kernel(out, old):
        k = tkc.arange(8)
        before = tkc.atomic_add(out.ptr + k % 2, k)
        tkc.store(old, (0,), before)
        tkc.atomic_max(out, (2,), k[:2] + 5)
        tkc.atomic_xor(out.ptr + 4, 6, sem="relaxed", scope="block")
        tkc.store(old.ptr + 8, tkc.atomic_cas(out.ptr + 5, 0, 9))
        tkc.store(old.ptr + 9, tkc.atomic_xchg(out.ptr + 5, 4))

    out, old = np.zeros(6, np.int32), np.zeros(10, np.int32)
    run(traced(kernel, array(i), array(i)), [out, old], (1, 1, 1))
    np.testing.assert_array_equal(out, [12, 16, 5, 6, 6, 4])
    np.testing.assert_array_equal(old[8:], [0, 9])


def test_acquire_and_release():
    def kernel(flag, out):
        while tkc.load(flag.ptr, sem="acquire", scope="gpu") == 0:
            pass
        tkc.store(out.ptr, 3, sem="release")

    text = show(traced(kernel, array(i), array(i)))
    assert (
        'semantics = "acquire"' in text and 'semantics = "release"' in text and "scf.while" in text
    )
    with pytest.raises(tkc.CompileError, match="sem"):
        traced(lambda flag: tkc.load(flag.ptr, sem="release"), array(i))


def test_short_circuit_guards_a_load():
    def kernel(x, out, n):
        if n < 4 and x[n] > 0:
            tkc.store(out, (0,), 1)

    text = show(traced(kernel, array(i), array(i), i32()))
    assert text.index("scf.if") < text.index("tile.load")


def test_arrays_made_in_the_kernel():
    def kernel(x, out, n):
        v = tkc.array(x.ptr + 2, tkc.float32, (n, 3))
        assert v.strides[1] == 1 and v.strides[0] == 3
        tkc.store(out, (0, 0), tkc.load(v, (0, 0), (4, 4)))

    x, out = floats(20), np.zeros((4, 4), np.float32)
    run(traced(kernel, array(f), array(f, 2), i32()), [x, out, 2], (1, 1, 1))
    want = np.zeros((4, 4), np.float32)
    want[:2, :3] = x[2:8].reshape(2, 3)
    np.testing.assert_array_equal(out, want)


def test_pointers_carried_by_a_loop():
    def kernel(x, out, n):
        p, total = x.ptr + tkc.arange(4), tkc.zeros((4,))
        for _k in tkc.range(n):
            total = total + tkc.load(p)
            p = p + 4
        tkc.store(out, (0,), total)

    x, out = floats(12), np.zeros(4, np.float32)
    run(traced(kernel, array(f), array(f), i32()), [x, out, 3], (1, 1, 1))
    np.testing.assert_allclose(out, x.reshape(3, 4).sum(0), rtol=1e-6)


def test_debugging():
    printed = []

    def kernel(out, n):
        tkc.device_assert(n > 0, "n is positive")
        tkc.assume(n < 100)
        tkc.print("n is", n, 7)
        m = tkc.multiple_of(n, 2)
        for k in tkc.range(0, m, num_stages=3):
            tkc.store(out, (k,), 1)

    module = traced(kernel, array(i), i32())
    run(module, [np.zeros(8, np.int32), 4], (1, 1, 1), out=lambda *a: printed.append(a))
    assert printed and "num_stages = 3" in show(module)
    with pytest.raises(Exception, match="n is positive"):
        run(module, [np.zeros(8, np.int32), -2], (1, 1, 1))


@tkc.jit
def _far(x, out, first, B: tkc.constexpr, N: tkc.constexpr):
    at = (tkc.program_id(0) + first) * B
    found = tkc.load(x, (at,), (N,))
    tkc.store(out, (0, 0), found[None, :])
    tkc.store(out, (1, 0), tkc.load(x, (at + tkc.arange(N),), (N,))[None, :])
    tkc.store(out, (2, 0), tkc.load(x[at : at + N], (0,), (N,))[None, :])
    tkc.store(out, (3, 0), x[at + 1])
    tkc.store(x, (at + N,), found + 1)
    tkc.atomic_add(x, (at + 2 * N,), found)


@tkc.jit
def _far_columns(x, out, first, B: tkc.constexpr, N: tkc.constexpr):
    tkc.store(out, (0, 0), tkc.load(x, (0, (tkc.program_id(0) + first) * B), (1, N)))


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is not there until it is used")
@pytest.mark.parametrize("first", [5, (1 << 21) + 3, (1 << 22) + 7])
def test_places_that_32_bits_do_not_hold(first):
    """Numbers of programs, int32, times a block lie behind 2³¹ and 2³² elements of a row."""
    lazily = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    x = np.frombuffer(mmap.mmap(-1, 4 * ((1 << 32) + (1 << 14)), flags=lazily), np.int32)
    at, out, numbers = first * 1024, np.zeros((4, 8), np.int32), np.arange(1, 9)
    x[at : at + 8] = numbers
    _far[1](x, out, first, B=1024, N=8)
    assert (out[:3] == numbers).all() and out[3, 0] == 2
    assert (x[at + 8 : at + 16] == numbers + 1).all()
    assert (x[at + 16 : at + 24] == numbers).all()
    _far_columns[1](x.reshape(1, -1), out[3:], first, B=1024, N=8)
    assert (out[3] == numbers).all()
