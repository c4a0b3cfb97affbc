"""Kernels with data, to run before and after a pass: `CASES` by name. Each stands for a way in
which programs differ.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import tkc
from tests.language.kernels import add, array, attention, f32, i32, inf, mamba2, matmul, traced
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact
from tkc.ir.verify import Verified, verify
from tkc.language.signature import ArrayArgument
from tkc.passes import Free, PassContext
from tkc.passes.pipeline import PIPELINE, module_of
from tkc.sim import dataflow

BF16 = ml_dtypes.bfloat16


def softmax(x, o, ROWS: tkc.constexpr, N: tkc.constexpr):
    m = tkc.program_id(0) * ROWS
    v = tkc.where(
        (tkc.arange(N) < x.shape[1])[None, :], tkc.load(x, (m, 0), (ROWS, N)).to(tkc.float32), -inf
    )
    e = tkc.exp(v - tkc.max(v, axis=1)[:, None])
    tkc.store(o, (m, 0), (e / tkc.sum(e, axis=1)[:, None]).to(o.dtype))


def group_norm(x, o, M: tkc.constexpr, N: tkc.constexpr):
    """Sums along both axes, of rows that warps share."""
    v = tkc.load(x, (tkc.program_id(0) * M, 0), (M, N)).to(tkc.float32)
    mean = tkc.sum(v, axis=(0, 1)) / (M * N)
    most = tkc.max(tkc.abs(v), axis=(0, 1))
    tkc.store(o, (tkc.program_id(0) * M, 0), ((v - mean) / most).to(o.dtype))


def layer_norm_bwd(x, w, dy, dx, pw, N: tkc.constexpr, ROWS: tkc.constexpr = 4):
    wv, sw = tkc.load(w, (0,), (N,)).to(tkc.float32), tkc.zeros((N,))
    for r in tkc.range(tkc.program_id(0) * ROWS, x.shape[0], tkc.num_programs(0) * ROWS):
        xv, g = (tkc.load(a, (r, 0), (ROWS, N)).to(tkc.float32) for a in (x, dy))
        gw = g * wv[None, :]
        c1 = tkc.sum(xv * gw, axis=1) / x.shape[1]
        tkc.store(dx, (r, 0), (gw - xv * c1[:, None]).to(dx.dtype))
        sw = sw + tkc.sum(g * xv, axis=0)
    tkc.store(pw, (tkc.program_id(0), 0), sw[None, :])


def pointers(x, o, n, M: tkc.constexpr, N: tkc.constexpr):
    """Triton's form: tiles of pointers, moved in a loop; the result is stored transposed."""
    r, c = tkc.arange(M), tkc.arange(N)
    p = x.ptr + r[:, None] * x.strides[0] + c[None, :]
    total = tkc.zeros((M, N))
    for k in tkc.range(0, n, N):
        total = total + tkc.load(p, mask=(k + c)[None, :] < n).to(tkc.float32)
        p = p + N
    tkc.store(o.ptr + c[:, None] * o.strides[0] + r[None, :], total.T)


def dequant(x, w, s, o, M: tkc.constexpr, N: tkc.constexpr, K: tkc.constexpr):
    """Weights of 8 bits, scaled on their way into the dot."""
    wv = tkc.load(w, (0, 0), (K, N)).to(tkc.bfloat16) * tkc.load(s, (0,), (N,))[None, :]
    tkc.store(o, (0, 0), tkc.dot(tkc.load(x, (0, 0), (M, K)), wv))


def shapes(x, o, N: tkc.constexpr):
    """A scan, slices, a flip, a concatenation."""
    v = tkc.load(x, (0, 0), (8, N))
    left, right = v[:, : N // 2], v[:, N // 2 :]
    y = tkc.cat([right, left], axis=1) + tkc.flip(v, axis=1)
    tkc.store(o, (0, 0), tkc.cumsum(y, axis=1) + v[3, 2])


def gather(x, index, o, ROWS: tkc.constexpr, N: tkc.constexpr):
    rows = tkc.load(index, (0,), (ROWS,))
    tkc.store(o, (0, 0), tkc.load(x, (rows, 0), (ROWS, N)))


def conditional(x, o, n, N: tkc.constexpr):
    """Tiles that an `if` and a `while` carry."""
    v = tkc.load(x, (0,), (N,))
    if n > 3:
        v = v * 2
    i = 0
    while i < n:
        v = v + tkc.max(v)
        i = i + 1
    tkc.store(o, (0,), v)


@dataclass
class Case:
    """A traced function, its arguments (arrays, numbers) and a grid; `tolerance` relative to the
    largest result.
    """

    fn: Callable
    signature: tuple
    constants: dict[str, Any]
    data: Callable[[], list]
    grid: tuple
    tolerance: float = 0.0
    outputs: tuple[int, ...] = (-1,)
    options: dict = field(default_factory=dict)

    def module(self):
        return traced(self.fn, *self.signature, **self.constants)

    def run(self, module) -> list[np.ndarray]:
        data = self.data()
        dataflow.run(module, data, self.grid)
        return [data[i] for i in self.outputs]


def normal(*shape, dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(dtype)


def blank(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def aligned(dtype, rank: int) -> ArrayArgument:
    """An array of matrices whose extents and strides are multiples of 16, as most are."""
    return ArrayArgument(
        dtype,
        ArrayFacts(
            (Fact(),) * (rank - 2) + (Fact(16),) * 2,
            (Fact(16),) * (rank - 1) + (Fact(exact=1),),
            16,
        ),
    )


b2, f1, f2 = array(tkc.bfloat16, 2, strides=(None, 1)), array(tkc.float32), array(tkc.float32, 2)
b4 = array(tkc.bfloat16, 4)


def h3(t):
    return array(t, 3)


def product(m, n, k, BM, BN, BK, dtype=BF16, out=None, **options):
    kind = {
        BF16: tkc.bfloat16,
        np.float32: tkc.float32,
        np.int8: tkc.int8,
        np.float16: tkc.float16,
    }[dtype]
    make = aligned if m % 16 == n % 16 == k % 16 == 0 else array
    signature = (make(kind, 2), make(kind, 2), make(kind if out is None else out, 2))

    def data():
        return [
            (normal(m, k) * 8).astype(dtype),
            (normal(k, n, seed=1) * 8).astype(dtype),
            np.zeros((m, n), dtype),
        ]

    return Case(
        matmul,
        signature,
        dict(BM=BM, BN=BN, BK=BK),
        data,
        (-(-m // BM), -(-n // BN)),
        0.02 if dtype is BF16 else 1e-5,
        options=options,
    )


def attended(sequence, d, BM, BN, causal, dtype=BF16):
    kind = tkc.bfloat16 if dtype is BF16 else tkc.float32

    def data():
        return [
            *(normal(1, 2, sequence, d, dtype=dtype, seed=i) for i in range(3)),
            np.zeros((1, 2, sequence, d), dtype),
            0.25,
        ]

    return Case(
        attention,
        (*((aligned if sequence % 16 == 0 else array)(kind, 4),) * 4, f32()),
        dict(CAUSAL=causal, D=d, BM=BM, BN=BN),
        data,
        (-(-sequence // BM), 2, 1),
        0.02,
        (3,),
    )


CASES = {
    "add": Case(
        add,
        (f1, f1, f1, i32(16)),
        dict(BLOCK=1024),
        lambda: [normal(2000), normal(2000, seed=1), blank(2000), 2000],
        (2,),
        outputs=(2,),
    ),
    "add, odd": Case(
        add,
        (f1, f1, f1, i32()),
        dict(BLOCK=1000),
        lambda: [normal(1777), normal(1777, seed=1), blank(1777), 1777],
        (2,),
        outputs=(2,),
    ),
    "add of one": Case(
        add,
        (f1, f1, f1, i32()),
        dict(BLOCK=1),
        lambda: [normal(3), normal(3, seed=1), blank(3), 3],
        (3,),
        outputs=(2,),
    ),
    "group norm": Case(
        group_norm,
        (b2, b2),
        dict(M=6, N=512),
        lambda: [normal(12, 512, dtype=BF16), blank(12, 512, dtype=BF16)],
        (2,),
        0.01,
    ),
    "softmax": Case(
        softmax,
        (b2, b2),
        dict(ROWS=4, N=1024),
        lambda: [normal(7, 1000, dtype=BF16), blank(7, 1000, dtype=BF16)],
        (2,),
        0.01,
    ),
    "softmax of 7": Case(
        softmax, (f2, f2), dict(ROWS=3, N=7), lambda: [normal(5, 7), blank(5, 7)], (2,), 1e-6
    ),
    "one row": Case(
        softmax,
        (f2, f2),
        dict(ROWS=1, N=4096),
        lambda: [normal(2, 4001), blank(2, 4001)],
        (2,),
        1e-6,
    ),
    "layer norm backward": Case(
        layer_norm_bwd,
        (b2, array(tkc.bfloat16), b2, b2, f2),
        dict(N=96),
        lambda: [
            normal(13, 96, dtype=BF16),
            normal(96, dtype=BF16, seed=2),
            normal(13, 96, dtype=BF16, seed=1),
            blank(13, 96, dtype=BF16),
            blank(2, 96),
        ],
        (2,),
        0.02,
        (3, 4),
    ),
    "product": product(208, 144, 96, 128, 128, 32),
    "product, thin": product(5, 70, 64, 16, 64, 32),
    "product, k of 7": product(33, 20, 21, 16, 16, 7, np.float32),
    "product, float32": product(70, 50, 64, 64, 32, 32, np.float32),
    "product, float16": product(64, 64, 64, 64, 64, 64, np.float16),
    "attention": attended(144, 64, 64, 64, False),
    "attention, causal": attended(130, 32, 64, 32, True),
    "attention, float32": attended(70, 16, 32, 32, False, np.float32),
    "attention of few rows": attended(40, 64, 4, 32, False),
    "pointers": Case(
        pointers,
        (f2, f2, i32(16)),
        dict(M=16, N=64),
        lambda: [normal(16, 160), blank(64, 16), 160],
        (1,),
        1e-6,
        (1,),
    ),
    "dequantized": Case(
        dequant,
        (b2, array(tkc.int8, 2), array(tkc.bfloat16), f2),
        dict(M=32, N=64, K=64),
        lambda: [
            normal(32, 64, dtype=BF16),
            (normal(64, 64) * 50).astype(np.int8),
            normal(64, dtype=BF16, seed=3),
            blank(32, 64),
        ],
        (1,),
        1e-5,
    ),
    "shapes": Case(shapes, (f2, f2), dict(N=64), lambda: [normal(8, 64), blank(8, 64)], (1,), 1e-6),
    "shapes, odd": Case(
        shapes, (f2, f2), dict(N=6), lambda: [normal(8, 6), blank(8, 6)], (1,), 1e-6
    ),
    "gather": Case(
        gather,
        (f2, array(tkc.int32), f2),
        dict(ROWS=8, N=96),
        lambda: [normal(40, 96), np.arange(8, dtype=np.int32) * 5, blank(8, 96)],
        (1,),
        0,
    ),
    "mamba2": Case(
        mamba2,
        (b4, h3(tkc.float32), f1, h3(tkc.bfloat16), h3(tkc.bfloat16), b4),
        dict(L=32, N=64, P=32),
        lambda: [
            normal(1, 64, 2, 32, dtype=BF16),
            abs(normal(1, 64, 2)),
            -abs(normal(2)),
            normal(1, 64, 64, dtype=BF16),
            normal(1, 64, 64, dtype=BF16, seed=4),
            blank(1, 64, 2, 32, dtype=BF16),
        ],
        (1, 2),
        0.02,
    ),
    "conditional": Case(
        conditional,
        (f1, f1, i32()),
        dict(N=200),
        lambda: [normal(200), blank(200), 5],
        (1,),
        1e-6,
        (1,),
    ),
}


def context(name="sm_80", **options) -> PassContext:
    return PassContext(target(name), Free(**options))


def through(
    module, last: str, given: PassContext | None = None, each: Callable | None = None
) -> PassContext:
    """Runs the passes up to and with `last`, verifying after each."""
    given, verified = given or context(), Verified()
    for name in PIPELINE[: PIPELINE.index(last) + 1]:
        module_of(name).run(module, given)
        verify(module, f"after {name}", verified)
        if each:
            each(name, module)
    return given


def same(got, want, tolerance: float) -> None:
    for g, w in zip(got, want, strict=True):
        g, w = (np.asarray(x, np.float64) for x in (g, w))
        largest = np.abs(w).max() or 1
        assert np.isfinite(g).all() and np.abs(g - w).max() <= tolerance * largest, (
            f"off by {np.abs(g - w).max() / largest:.2g} of the largest result"
        )
