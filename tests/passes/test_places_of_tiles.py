"""Where an operand lies, how many steps a loop has, or whether it is run, is computed of a tile.
A thread of a producer reduces a few hundred elements alone, so that it knows the number too; for
others warps exchange elements, and there are no roles. Each kernel runs in the simulator, which
sees every race.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned, context, through
from tkc.ir import threads
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level0

BF16 = ml_dtypes.bfloat16
PROGRAMS = 5


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")


def summed(a, b, row, end, total, N):
    """`total` and the product of N rows of a and b, up to where k ends."""
    for k in tkc.range(0, end, 64):
        left = tkc.load(a, (row, k), (N, 64))
        total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
    return total


@tkc.jit
def place(table, a, b, c, NUMBER: tkc.constexpr, SIZE: tkc.constexpr, N: tkc.constexpr):
    """The rows of the left operand are those of the number."""
    m = tkc.program_id(0)
    total = summed(a, b, NUMBER(table, m, SIZE) * N, a.shape[1], tkc.zeros((N, N)), N)
    tkc.store(c, (m * N, 0), total.to(c.dtype))


@tkc.jit
def steps(table, a, b, c, NUMBER: tkc.constexpr, SIZE: tkc.constexpr, N: tkc.constexpr):
    """A loop ends where the number says, which is where the array ends."""
    m = tkc.program_id(0)
    end = NUMBER(table, m, SIZE) - m + a.shape[1]
    total = summed(a, b, m * N, end, tkc.zeros((N, N)), N)
    tkc.store(c, (m * N, 0), total.to(c.dtype))


@tkc.jit
def uneven(table, a, b, c, NUMBER: tkc.constexpr, SIZE: tkc.constexpr, N: tkc.constexpr):
    """Programs have different numbers of steps, which are claimed the longest first."""
    m = tkc.program_id(0)
    end = (NUMBER(table, m, SIZE) % 3 + 1) * 64
    total = summed(a, b, m * N, end, tkc.zeros((N, N)), N)
    tkc.store(c, (m * N, 0), total.to(c.dtype))


@tkc.jit
def branch(table, a, b, c, NUMBER: tkc.constexpr, SIZE: tkc.constexpr, N: tkc.constexpr):
    """The loop is run where the number is the program's, which it is."""
    m, total = tkc.program_id(0), tkc.zeros((N, N))
    if NUMBER(table, m, SIZE) == m:
        total = summed(a, b, m * N, a.shape[1], total, N)
    tkc.store(c, (m * N, 0), total.to(c.dtype))


@tkc.jit
def place_in_loop(table, a, b, c, NUMBER: tkc.constexpr, SIZE: tkc.constexpr, N: tkc.constexpr):
    """Each step asks for the number: what the table holds of it is loaded in the loop."""
    m, total = tkc.program_id(0), tkc.zeros((N, N))
    for k in tkc.range(0, a.shape[1], 64):
        left = tkc.load(a, (NUMBER(table, m, SIZE) * N, k), (N, 64))
        total = tkc.dot(left, tkc.load(b, (k, 0), (64, N)), total)
    tkc.store(c, (m * N, 0), total.to(c.dtype))


@tkc.jit
def result(table, a, b, c, NUMBER: tkc.constexpr, SIZE: tkc.constexpr, N: tkc.constexpr):
    """The consumers alone need it."""
    m = tkc.program_id(0)
    total = summed(a, b, m * N, a.shape[1], tkc.zeros((N, N)), N)
    tkc.store(c, (NUMBER(table, m, SIZE) * N, 0), total.to(c.dtype))


def searched(table, m, size):
    """As one finds the group of a row."""
    return tkc.sum((tkc.load(table, (0,), (size,)) <= m).to(tkc.int32), axis=0)


def largest(table, m, size):
    return tkc.max(tkc.arange(size) // size + m, axis=0)


def alike(table, m, size):
    """What all programs add to their numbers."""
    return m + tkc.max(tkc.arange(size) // size, axis=0)


def of_a_matrix(table, m, size):
    square = tkc.arange(size).reshape(2, size // 2) // size + m
    return tkc.max(tkc.max(square, axis=1), axis=0)


def taken(table, m, size):
    return (tkc.load(table, (0,), (size,)) - 1 + m)[0]


def counted(table, m, size):
    """The last of running sums."""
    return tkc.cumsum(tkc.arange(size) // (size - 1), axis=0)[size - 1] + m - 1


def sorted_first(table, m, size):
    return tkc.sort(tkc.load(table, (0,), (size,)), descending=True)[size - 1] + m - 1


def nearest(table, m, size):
    """Where the table has the number."""
    return tkc.argmin(tkc.abs(tkc.load(table, (0,), (size,)) - 1 - m), axis=0)


@tkc.jit
def first_largest(a, i, b, j):
    is_first = (a > b) | (a == b) & (i < j)
    return tkc.where(is_first, a, b), tkc.where(is_first, i, j)


def by_a_function(table, m, size):
    """The same by a function of the user's, of values and their places."""
    distance = tkc.abs(tkc.load(table, (0,), (size,)) - 1 - m)
    return tkc.reduce((-distance, tkc.arange(size)), 0, first_largest)[1]


@tkc.jit
def composed(a, b, c, d):
    return a * c, b * c + d


def by_steps(table, m, size):
    """What steps x -> f x + g come to, one after the other: the last one's g, for its f is 0."""
    at = tkc.load(table, (0,), (size,))
    return tkc.reduce((tkc.where(at == size, 0, 3), at + m - size), 0, composed)[1]


def cut(table, m, size):
    """Of half of a tile, which is no tile that warps hold as they hold the whole."""
    return tkc.max(tkc.load(table, (0,), (size,))[size // 4 : size // 2]) - size // 2 + m


def backwards(table, m, size):
    return tkc.min(tkc.flip(tkc.load(table, (0,), (size,))) * tkc.arange(size)) + m


KERNELS = (place, steps, uneven, branch, result)
NUMBERS = (searched, largest, alike, of_a_matrix, taken, counted, sorted_first)
EXCHANGED = (nearest, by_a_function, by_steps, cut, backwards)


@pytest.mark.parametrize("options", [{}, {"dynamic_schedule": True}, {"num_warps": 8}], ids=str)
@pytest.mark.parametrize("size", [8, 32, 64, 256])
@pytest.mark.parametrize("number", NUMBERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.fn.__name__)
def test_products(kernel, number, size, options):
    n, r = 64, np.random.default_rng(size)
    a, b = (r.integers(-2, 3, s).astype(BF16) for s in ((PROGRAMS * n, 192), (192, n)))
    if kernel is uneven:
        a *= np.arange(192) // 64 <= np.repeat(np.arange(PROGRAMS), n)[:, None] % 3
    c, table = np.zeros((PROGRAMS * n, n), BF16), np.arange(1, size + 1, dtype=np.int32)
    given = table, a, b, c, number, size, n
    kernel[PROGRAMS](*given, **options)
    assert (c == (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16)).all()


@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize(
    "kernel, number",
    [
        *((kernel, number) for number in EXCHANGED for kernel in (place, uneven, place_in_loop)),
        *((place_in_loop, number) for number in NUMBERS),
    ],
    ids=lambda f: getattr(f, "fn", f).__name__,
)
def test_numbers_that_warps_exchange_elements_for(kernel, number, size):
    test_products(kernel, number, size, {})


def read(table, m, size):
    return tkc.load(table, (m,), (1,))[0] - 1


@pytest.mark.parametrize("warps", [None, 8])
@pytest.mark.parametrize("size", [8, 32, 256])
@pytest.mark.parametrize(
    "number",
    [searched, largest, read, nearest, by_a_function, by_steps],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize(
    "kernel", [place, uneven, branch, place_in_loop], ids=lambda k: k.fn.__name__
)
def test_one_thread_of_a_producer_knows_the_number(kernel, number, size, warps):
    """In PTX, whose shuffles take elements from lanes that a producer does not have."""
    n, r = 64, np.random.default_rng(size)
    a, b = (r.integers(-2, 3, s).astype(BF16) for s in ((PROGRAMS * n, 192), (192, n)))
    given = [np.arange(1, size + 1, dtype=np.int32), a, b, np.zeros((PROGRAMS * n, n), BF16)]
    numbers, rows = array(tkc.int32), aligned(tkc.bfloat16, 2)
    module = traced(kernel.fn, numbers, rows, rows, rows, number, size, n)
    wants = [x.copy() for x in given]
    level0.run(module, wants, (PROGRAMS, 1, 1))
    through(module, PIPELINE[-1], context("sm_90a", num_warps=warps))
    assert any(isinstance(op, threads.Roles) for op in module.walk())
    machine.run(module, given, (PROGRAMS, 1, 1))
    assert (given[-1] == wants[-1]).all()


@pytest.mark.parametrize(
    "number, size, roles",
    [(searched, 8, True), (searched, 256, True), (searched, 512, False), (taken, 8, False)],
    ids=["8", "256", "512", "element"],
)
def test_roles_where_each_warp_knows_the_number(number, size, roles):
    arrays = f"i32[{size}]", "bf16[320, 128]", "bf16[128, 64]", "bf16[320, 64]"
    compiled = place.compile(*arrays, NUMBER=number, SIZE=size, N=64, target="sm_90a")
    why = (
        "where an operand lies, or whether it is read, is computed of a tile through shared memory"
    )
    assert any("a producer of" in line for line in compiled.decisions) == roles
    assert any(why in line for line in compiled.decisions) != roles


@tkc.jit
def beside_maxima(a, b, c, N: tkc.constexpr):
    """A loop in a loop carries maxima of rows, on which no place depends."""
    m, total = tkc.program_id(0), tkc.zeros((N, N))
    largest = tkc.zeros(N)
    for turn in tkc.range(0, a.shape[0], N):
        for k in tkc.range(0, a.shape[1], 64):
            left = tkc.load(a, (turn, k), (N, 64))
            total = tkc.dot(left, tkc.load(b, (k, m * N), (64, N)), total)
            largest = tkc.maximum(largest, tkc.max(total, axis=1))
    tkc.store(c, (0, m * N), (total + largest[:, None]).to(c.dtype))


def test_what_a_loop_carries_says_no_place():
    made = beside_maxima.compile(
        "bf16[128,192]", "bf16[192,256]", "bf16[64,256]", N=64, target="sm_90a"
    )
    assert not any("where an operand lies" in line for line in made.decisions), made.decisions
