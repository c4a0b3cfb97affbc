"""Miscompiles and hangs that users of other tile compilers reported, each in a kernel of our own
that has what made theirs fail.

`case("triton #8139", …)` names the thread: an issue or pull request of a project on GitHub
(PROJECTS). Every kernel runs on the CPU, at every level of the passes, and at level 4 in the
simulator that finds races, deadlocks and lapped phases, with one stage and with several, and has to
give what level 0 gives, to the bit (all numbers are whole).
"""

import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.language.kernels import matmul
from tkc.errors import CompileError
from tkc.fuzz.check import Comparison, Variant, wrong
from tkc.ir.target import TARGETS
from tkc.language.trace import trace
from tkc.runtime.specialize import ScalarInfo, Specialization, argument, facts, signature

BF16, F16, F32, I8, I32 = ml_dtypes.bfloat16, np.float16, np.float32, np.int8, np.int32
CASES: list = []
PROJECTS = {
    "triton": "triton-lang/triton",
    "tilelang": "tile-ai/tilelang",
    "TLX": "facebookexperimental/triton",
    "facebookexperimental": "facebookexperimental/triton",
    "ROCm/triton": "ROCm/triton",
    "intel": "intel/intel-xpu-backend-for-triton",
    "cutile": "NVIDIA/cutile-python",
}


def whole(*shape, dtype=F32, low=-3, high=4, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def blank(*shape, dtype=F32):
    return np.full(shape, 7, dtype)


@dataclass
class Case:
    threads: str
    fn: object
    make: object
    constants: dict
    grid: tuple
    # of the arguments: what the last array must be, by another way than level 0
    expected: object = None


def case(threads: str, make, grid=(1,), expected=None, **constants):
    """Adds a case of the kernel below it; `make()` gives its arguments by name."""

    def add(fn):
        CASES.append(Case(threads, fn, make, constants, grid, expected))
        return fn

    return add


def product(m, n, k, dtype=BF16, stride=0):
    wide = whole(m, k + stride, dtype=dtype)
    return lambda: dict(a=wide[:, :k], b=whole(k, n, dtype=dtype, seed=1), c=blank(m, n))


# ------------------------------------------------------------------------------------------- loops
for threads, m, n, k, dtype, stride in [
    ("tilelang #2566: one iteration", 32, 32, 16, BF16, 0),
    ("triton #2868: hang with one stage", 32, 32, 48, F16, 0),
    ("no iteration at all", 32, 32, 0, BF16, 0),
    ("tilelang #2567: row stride no multiple of 16 bytes", 32, 32, 48, BF16, 3),
    ("triton #10474, #11736: stages of odd bytes", 17, 9, 40, BF16, 0),
    ("tilelang #2603: n is 8 more than a multiple of 16", 32, 24, 64, BF16, 0),
    ("tilelang #2433: n % 8 drops tiles", 40, 37, 32, BF16, 0),
    ("triton #5161, #4739: k % BK != 0 needs the mask", 32, 32, 41, BF16, 0),
    ("triton #7899: float8 product", 32, 32, 64, ml_dtypes.float8_e4m3fn, 0),
    ("triton #1190, #4603: float32 is float32", 32, 32, 32, F32, 0),
    ("triton #3722, #8898: extents that are no power of two", 48, 40, 24, BF16, 0),
]:
    case(
        threads,
        product(m, n, k, dtype, stride),
        (-(-m // 32), -(-n // 32)),
        lambda a, b, c: np.float64(a) @ np.float64(b),
        BM=32,
        BN=32,
        BK=16,
    )(matmul)


@case(
    "triton #4116: fragments of 8 bits",
    lambda: dict(
        a=whole(32, 64, dtype=I8), b=whole(64, 24, dtype=I8, seed=1), c=blank(32, 24, dtype=I32)
    ),
    expected=lambda a, b, c: I32(a) @ I32(b),
)
def of_bytes(a, b, c):
    acc = tkc.zeros((32, 24), tkc.int32)
    for k in tkc.range(0, a.shape[1], 32):
        acc = tkc.dot(tkc.load(a, (0, k), (32, 32)), tkc.load(b, (k, 0), (32, 24)), acc)
    tkc.store(c, (0, 0), acc)


def steps(n, width=32):
    return lambda: dict(
        x=whole(16, width * 8), y=whole(16, width * 8, seed=3), n=n, o=blank(16, width)
    )


@case("triton #8139, TLX #912: a load used under a condition in a pipelined loop", steps(5))
@case("tilelang #374: order of barriers under a condition", steps(1))
def conditional_use(x, y, n, o):
    acc = tkc.zeros((16, 32))
    for i in tkc.range(0, n):
        v = tkc.load(x, (0, i * 32), (16, 32))
        if i % 2 == 1:
            acc = acc + v
    tkc.store(o, (0, 0), acc)


@case(
    "triton #8259: store and load of one address in a pipelined loop",
    lambda: dict(w=whole(16, 160), n=5, o=blank(16, 16)),
)
@case(
    "tilelang #2668: write before a read of the round before",
    lambda: dict(w=whole(16, 160, seed=5), n=3, o=blank(16, 16)),
)
def store_then_load(w, n, o):
    total = tkc.zeros((16, 16))
    for i in tkc.range(0, n):
        v = tkc.load(w, (0, i * 16), (16, 16))
        tkc.store(w, (0, i * 16 + 16), v + 1)
        total = total + v
    tkc.store(o, (0, 0), total)


def swapped_lines(x, y, n, o, FIRST: tkc.constexpr):
    acc = tkc.zeros((16, 16))
    for i in tkc.range(0, n * 16, 16):
        if FIRST:
            a = tkc.load(x, (0, i), (16, 16))
            b = tkc.load(y, (0, i), (16, 16))
        else:
            b = tkc.load(y, (0, i), (16, 16))
            a = tkc.load(x, (0, i), (16, 16))
        acc = tkc.dot(a.to(tkc.bfloat16), b.to(tkc.bfloat16), acc)
    tkc.store(o, (0, 0), acc)


for first in (True, False):
    case("triton #6691: the order of lines matters", steps(4, 16), FIRST=first)(swapped_lines)


@case(
    "tilelang #2595: a read hoisted over an atomic addition",
    lambda: dict(w=whole(32, dtype=I32), n=4, o=blank(32, dtype=I32)),
)
def atomic_then_load(w, n, o):
    total = tkc.zeros((32,), tkc.int32)
    for i in tkc.range(0, n):
        tkc.atomic_add(w, (0,), tkc.arange(32) + i)
        total = total + tkc.load(w, (0,), (32,))
    tkc.store(o, (0,), total)


@case(
    "tilelang #2505: groups of one, two and three copies",
    lambda: dict(x=whole(16, 96, dtype=BF16), y=whole(96, 16, dtype=BF16), n=6, o=blank(16, 16)),
)
def groups_of_copies(x, y, n, o):
    acc, other = tkc.zeros((16, 16)), tkc.zeros((16, 16))
    for i in tkc.range(0, n * 16, 16):
        a = tkc.load(x, (0, i), (16, 16))
        acc = tkc.dot(a, tkc.load(y, (i, 0), (16, 16)), acc)
        other = tkc.dot(a, tkc.load(y, (96 - 16 - i, 0), (16, 16)), other)
    tkc.store(o, (0, 0), acc - other)


@case(
    "triton #10035, tilelang #2613: two loops use the rings, the second tile of a program",
    lambda: dict(x=whole(32, 64, dtype=BF16), y=whole(64, 16, dtype=BF16), o=blank(32, 16)),
)
@case(
    "tilelang #2416: shared memory used again",
    lambda: dict(x=whole(32, 16, dtype=BF16), y=whole(16, 16, dtype=BF16), o=blank(32, 16)),
)
def two_tiles(x, y, o):
    for m in tkc.range(0, 32, 16):
        acc = tkc.zeros((16, 16))
        for k in tkc.range(0, x.shape[1], 16):
            acc = tkc.dot(tkc.load(x, (m, k), (16, 16)), tkc.load(y, (k, 0), (16, 16)), acc)
        tkc.store(o, (m, 0), acc)


@case(
    "triton #7262, #9610: a buffer is read by threads, then written by copies again",
    lambda: dict(x=whole(32, 128, dtype=BF16), o=blank(32, 32)),
)
@case(
    "tilelang #2703, #2699: a product of its own transpose",
    lambda: dict(x=whole(32, 32, dtype=BF16), o=blank(32, 32)),
)
def gram(x, o):
    acc = tkc.zeros((32, 32))
    for k in tkc.range(0, x.shape[1], 32):
        v = tkc.load(x, (0, k), (32, 32))
        acc = tkc.dot(v, v.T, acc)
    tkc.store(o, (0, 0), acc)


@case(
    "tilelang #2634, #1850, #1863: registers to shared memory to a product",
    lambda: dict(x=whole(32, 32, dtype=BF16), y=whole(32, 32, dtype=BF16, seed=1), o=blank(32, 32)),
)
@case(
    "triton #1910: a product of a product, warps laid out in two runs",
    lambda: dict(
        x=whole(32, 32, dtype=BF16, low=-1, high=2),
        y=whole(32, 32, dtype=BF16, seed=2),
        o=blank(32, 32),
    ),
)
def chained(x, y, o):
    a, b = tkc.load(x, (0, 0), (32, 32)), tkc.load(y, (0, 0), (32, 32))
    tkc.store(o, (0, 0), tkc.dot((tkc.dot(a, b) % 8).to(tkc.bfloat16), b.T))


# --------------------------------------------------------------------------------------------------
@case(
    "triton #10453, tilelang #2643: rows to columns and back",
    lambda: dict(x=whole(24, 40), o=blank(40, 24)),
)
def turned(x, o):
    v = tkc.load(x, (0, 0), (24, 40))
    tkc.store(o, (0, 0), (v - tkc.max(v, axis=1)[:, None]).T + tkc.sum(v, axis=0)[:, None])


@case(
    "intel #7962: a load made again must not see a later store",
    lambda: dict(x=whole(32, 32), o=blank(32, 32)),
)
def load_before_store(x, o):
    v = tkc.load(x, (0, 0), (32, 32))
    tkc.store(x, (0, 0), v + 100)
    tkc.store(o, (0, 0), v.T + tkc.sum(v, axis=0)[None, :])


@case(
    "tilelang #2547: a reduction to one element and back",
    lambda: dict(x=whole(7, 5), o=blank(1, 1)),
)
def to_one(x, o):
    tkc.store(o, (0, 0), tkc.sum(tkc.load(x, (0, 0), (7, 5)), axis=1, keep_dims=True)[3:4])


@case(
    "triton #656, #7191, cutile #19: slices and parts of tiles",
    lambda: dict(x=whole(16, 48), o=blank(16, 48)),
)
def parts(x, o):
    v = tkc.load(x, (0, 0), (16, 48))
    tkc.store(o, (0, 0), tkc.cat([v[:, 32:], v[:, 16:32], v[:, :16]], axis=1))


@case("triton #1093: an arange of 7", lambda: dict(x=whole(9), o=blank(9)))
def seven(x, o):
    i = tkc.arange(7) + 1
    tkc.store(o.ptr + i, tkc.load(x.ptr + i))


@case(
    "a scan of a prime extent",
    lambda: dict(x=whole(3, 37), o=blank(3, 37)),
    expected=lambda x, o: np.cumsum(x, 1),
)
def scan_of_37(x, o):
    tkc.store(o, (0, 0), tkc.cumsum(tkc.load(x, (0, 0), (3, 37)), axis=1))


# -------------------------------------------------------------------------------------------------
@case(
    "facebookexperimental #2902, #2895, triton #737: what is masked is not what was there before",
    lambda: dict(x=whole(16, 160), n=5, o=blank(16, 32)),
    grid=(1,),
)
def stale(x, n, o):
    acc = tkc.zeros((16, 32))
    for i in tkc.range(0, n):
        cols = i * 32 + tkc.arange(32)
        acc = acc + tkc.load(x, (0, i * 32), (16, 32), mask=(cols < 150 - 16 * i)[None, :])
    tkc.store(o, (0, 0), acc)


@case("tilelang #2955: j % K is not j", lambda: dict(x=whole(64), o=blank(64)))
def modulo(x, o):
    j = tkc.arange(64) - 20
    tkc.store(o, (0,), tkc.load(x, (j % 24,), (64,)) + j // 24)


@case(
    "triton #11583: a store past the inner extent",
    lambda: dict(x=whole(32, 32, dtype=BF16), o=blank(40, 48, dtype=BF16)[3:20, 5:26]),
)
def clipped(x, o):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (32, 32)))


@case(
    "triton #5161: filling with something else than zero",
    lambda: dict(x=whole(5, 9), o=blank(16, 16)),
)
def filled(x, o):
    tkc.store(o, (0, 0), tkc.load(x, (-2, -3), (16, 16), other=9.0))


@case("an array without elements", lambda: dict(x=blank(0, 4), o=blank(4, 4)))
def nothing(x, o):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (4, 4), other=5.0))


# --------------------------------------------------------------------------------------------------
@case(
    "tilelang #2560, #3027: folding in a wider type would not wrap",
    lambda: dict(x=whole(32, dtype=I8, low=100, high=127), o=blank(32, dtype=I32)),
)
def wraps(x, o):
    v = tkc.load(x, (0,), (32,))
    tkc.store(o, (0,), (v + 100 + 100).to(tkc.int32) + (v * 3).to(tkc.int32))


@case(
    "ROCm/triton #830: re-association must not create an overflow",
    lambda: dict(x=whole(64), n=1 << 30, o=blank(64)),
)
def reassociated(x, n, o):
    i = (tkc.arange(64).to(tkc.int64) + n) + n - n - n
    tkc.store(o.ptr + i, tkc.load(x.ptr + i))


@case(
    "triton #832, #1058, #6748: products of offsets beyond 2^31",
    lambda: dict(x=whole(4, 4), n=70_000, o=blank(4, 4)),
)
def large_offsets(x, n, o):
    far = n.to(tkc.int64) * n
    r, c = tkc.arange(4), tkc.arange(4)
    inside = (far + r < far + 4)[:, None] & (c < 4)[None, :]
    tkc.store(
        o.ptr + r[:, None] * 4 + c[None, :],
        tkc.load(x.ptr + (far + r - far)[:, None] * 4 + c[None, :], mask=inside),
    )


@case(
    "division and remainder floor for negative numbers",
    lambda: dict(x=whole(64, dtype=I32, low=-40, high=40), o=blank(64, dtype=I32)),
    expected=lambda x, o: x // -7 * 100 + x % -7,
)
def floored(x, o):
    v = tkc.load(x, (0,), (64,))
    tkc.store(o, (0,), v // -7 * 100 + v % -7)


# --------------------------------------------------------------------------------------------------
@case(
    "triton #11153: a value that one side of a branch leaves as it is",
    lambda: dict(x=whole(32), n=2, o=blank(32)),
)
@case("triton #11153: and the other side", lambda: dict(x=whole(32), n=9, o=blank(32)))
def one_sided(x, n, o):
    v = tkc.load(x, (0,), (32,))
    w = v
    if n > 3:
        w = v * 2
    for i in tkc.range(0, n):
        v, w = w, v + i
    tkc.store(o, (0,), v * 100 + w)


@case(
    "tilelang #2793, triton #7322: a loop that does not run leaves what was there",
    lambda: dict(x=whole(32), n=0, o=blank(32)),
)
def no_round(x, n, o):
    v = tkc.load(x, (0,), (32,))
    while n > 0:
        v = v + tkc.max(v)
        n = n - 1
    tkc.store(o, (0,), v)


@case("tilelang #2443, #2556: few warps have elements", lambda: dict(x=whole(3), o=blank(3)))
def three(x, o):
    v = tkc.load(x, (0,), (3,))
    tkc.store(o, (0,), tkc.sum(v) - tkc.sort(v))


def module_of(c: Case):
    given = c.make()
    infos = {
        n: argument(v, n, False) if isinstance(v, np.ndarray) else ScalarInfo(v, "int32")
        for n, v in given.items()
    }
    return trace(
        c.fn,
        signature(
            Specialization(
                (
                    *((n, facts(i)) for n, i in infos.items()),
                    *((n, ("constant", v)) for n, v in c.constants.items()),
                )
            )
        ),
    )


@pytest.mark.parametrize("c", CASES, ids=lambda c: f"{c.threads} ({c.fn.__name__})")
def test_upstream_bug(c):
    runs = Comparison(module_of(c), c.make, c.grid)
    if c.expected:
        given = c.make()
        last = list(given)[-1]
        assert (
            wrong(
                {last: np.asarray(c.expected(**given)).astype(given[last].dtype)},
                {last: runs.want[last]},
            )
            is None
        )
    found = (
        [f for f in [runs.cpu()] if f]
        + list(runs.passes(Variant("sm_80" if "float8" not in c.threads else "sm_89", 4, 3)))
        + list(runs.passes(Variant("sm_90a", 4, 1, each=False)))
        + list(runs.passes(Variant("sm_90a", None, 4, each=False)))
    )
    assert not found, "\n".join(map(str, found))


def threads_of(c: Case) -> set[tuple[str, str]]:
    """(project, number) of each thread that a case names."""
    found, project = set(), ""
    for name, number in re.findall(r"([\w/-]+)(?= #)|#(\d+)", c.threads.partition(":")[0]):
        project = name or project
        if number:
            found.add((PROJECTS[project], number))
    return found


def test_there_are_forty():
    """Cases that name a thread, and threads."""
    named = [c for c in CASES if threads_of(c)]
    assert len(named) >= 40 and len(set().union(*map(threads_of, named))) >= 55


# -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "threads, body, words",
    [
        (
            "tilelang #2570: a type error is no internal error",
            lambda x: tkc.dot(tkc.zeros((4, 4)), tkc.zeros((4, 4), tkc.bfloat16)),
            "one dtype",
        ),
        (
            "triton #1137: shapes that do not broadcast",
            lambda x: tkc.zeros((4,)) + tkc.zeros((5,)),
            "do not broadcast",
        ),
        (
            "cutile #53: a mask of numbers",
            lambda x: tkc.load(x, (0,), (4,), mask=tkc.arange(4)),
            "truth values",
        ),
        ("triton #1372: an empty arange", lambda x: tkc.arange(0), "empty"),
        (
            "cutlass #3429: a tile assigned to in part",
            lambda x: tkc.zeros((4,)).__setitem__(0, 1),
            "assigned to",
        ),
        (
            "triton #10910: an axis that is not there",
            lambda x: tkc.sum(tkc.zeros((4,)), axis=3),
            "axis 3",
        ),
    ],
)
def test_refused(threads, body, words):
    def kernel(x):
        body(x)

    info = argument(np.zeros(4, F32), "x", False)
    with pytest.raises(CompileError, match=words):
        trace(kernel, signature(Specialization((("x", facts(info)),))))


def test_an_operation_of_another_machine_is_refused_by_us():
    """tilelang #2344: float8 products on sm_80 die in the assembler there."""
    c = next(c for c in CASES if "float8" in c.threads)
    found = list(
        Comparison(module_of(c), c.make, c.grid).passes(Variant("sm_80", 4, 2, each=False))
    )
    assert "sm_80" in TARGETS and (
        not found or found[0].kind == "refused" and "float8" in found[0].message
    )
