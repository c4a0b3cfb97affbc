"""Whole kernels on a GPU against the specification, at odd shapes."""

import ml_dtypes
import numpy as np
import pytest

import tests.language.kernels as K
import tkc
from tests.gpu.device import both

R = np.random.default_rng(1)
BF16, F16, F32, F64 = ml_dtypes.bfloat16, np.float16, np.float32, np.float64
NEAR = {BF16: 2e-2, F16: 2e-3, F32: 2e-5, F64: 1e-12}


def floats(*shape, dtype=F32):
    return R.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", [BF16, F16, F32, F64, np.int32, np.int8])
@pytest.mark.parametrize("n", [1, 7, 1024, 1025, 100003])
def test_add(n, dtype):
    x, y = (R.integers(-50, 50, n).astype(dtype) for _ in range(2))
    both(K.add, (-(-n // 1024),), x, y, np.zeros(n, dtype), n)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(
    "M, N, k",
    [(1, 1, 1), (128, 128, 64), (130, 200, 96), (77, 33, 200), (256, 256, 0), (257, 136, 1000)],
)
@pytest.mark.parametrize("blocks", [(128, 128, 32), (64, 32, 16), (128, 256, 64)])
def test_matmul(dtype, M, N, k, blocks):
    bm, bn, bk = blocks
    both(
        K.matmul,
        (-(-M // bm), -(-N // bn)),
        floats(M, k, dtype=dtype),
        floats(k, N, dtype=dtype),
        np.full((M, N), 7, dtype),
        BM=bm,
        BN=bn,
        BK=bk,
        rtol=NEAR[dtype],
        atol=NEAR[dtype] * max(1, k) ** 0.5,
    )


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5])
def test_rings_of_any_depth_at_any_trip_count(stages, steps):
    k = 32 * steps
    both(
        K.matmul,
        (1, 1),
        floats(64, k, dtype=BF16),
        floats(k, 64, dtype=BF16),
        np.full((64, 64), 7, BF16),
        BM=64,
        BN=64,
        BK=32,
        rtol=2e-2,
        atol=0.2,
        num_stages=stages,
    )


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("Sq, Sk, D", [(128, 128, 64), (200, 200, 64), (77, 300, 32), (1, 5, 128)])
def test_attention(dtype, causal, Sq, Sk, D):
    q, k, v = (
        floats(1, 2, Sq, D, dtype=dtype),
        floats(1, 2, Sk, D, dtype=dtype),
        floats(1, 2, Sk, D, dtype=dtype),
    )
    both(
        K.attention,
        (-(-Sq // 64), 2, 1),
        q,
        k,
        v,
        np.zeros_like(q),
        D**-0.5,
        causal,
        D,
        BM=64,
        BN=64,
        rtol=5 * NEAR[dtype],
        atol=NEAR[dtype],
    )


@pytest.mark.parametrize("M, N, rows", [(5, 7, 1), (13, 37, 4), (9, 1000, 4), (4, 4096, 1)])
def test_layer_norm_backward(M, N, rows):
    x, w, dy = floats(M, N), floats(N), floats(M, N)
    both(
        K.layer_norm_bwd,
        (2,),
        x,
        w,
        dy,
        x.mean(1),
        1 / np.sqrt(x.var(1) + 1e-5),
        np.zeros_like(x),
        np.zeros((2, N), F32),
        np.zeros((2, N), F32),
        N,
        ROWS=rows,
        rtol=1e-3,
        atol=1e-4,
    )


def test_split_k():
    a, b = floats(100, 500, dtype=BF16), floats(500, 70, dtype=BF16)
    both(
        K.split_k,
        (2, 2, 3),
        a,
        b,
        np.zeros((100, 70), F32),
        3,
        BM=64,
        BN=64,
        BK=32,
        rtol=1e-3,
        atol=1e-2,
    )


def test_histogram():
    both(
        K.histogram,
        (4,),
        R.integers(-2, 12, 1000).astype(np.int32),
        np.zeros(10, np.int32),
        10,
        BLOCK=256,
    )


@pytest.mark.parametrize("V, n", [(64, 50), (4096, 3000)])
def test_cross_entropy(V, n):
    both(
        K.cross_entropy,
        (3,),
        floats(3, n),
        np.array([4, -1, n - 1], np.int32),
        np.zeros(3, F32),
        V,
        rtol=1e-3,
        atol=1e-5,
    )


def test_window_sinks():
    q, k, v = (floats(1, 2, 200, 64, dtype=BF16) for _ in range(3))
    both(
        K.window_sinks,
        (4, 2, 1),
        q,
        k,
        v,
        np.zeros_like(q),
        floats(2),
        0.25 * K.LOG2E,
        100,
        64,
        BM=64,
        BN=64,
        rtol=5e-2,
        atol=2e-2,
    )


def test_mamba2():
    B, T, H, P, N, L = 1, 100, 2, 32, 64, 32
    both(
        K.mamba2,
        (B, H),
        floats(B, T, H, P),
        np.abs(floats(B, T, H)),
        -np.abs(floats(H)),
        floats(B, T, N),
        floats(B, T, N),
        np.zeros((B, T, H, P), F32),
        L=L,
        N=N,
        P=P,
        rtol=1e-2,
        atol=1e-2,
    )


def test_paged_decode():
    B, H, G, D, page, pages = 2, 2, 4, 64, 16, 40
    q, kc, vc = (
        floats(B, H * G, D, dtype=BF16),
        floats(pages, H, page, D, dtype=BF16),
        floats(pages, H, page, D, dtype=BF16),
    )
    table, lengths = (
        np.stack([R.permutation(pages)[:16] for _ in range(B)]).astype(np.int32),
        np.array([200, 121], np.int32),
    )
    both(
        K.paged_decode,
        (B, H, 2),
        q,
        kc,
        vc,
        table,
        lengths,
        np.zeros((B, H * G, 2, D), F32),
        np.zeros((B, H * G, 2), F32),
        0.25 * K.LOG2E,
        D,
        G,
        page,
        BN=32,
        SPAN=128,
        rtol=2e-2,
        atol=2e-2,
    )


# ------------------------------------------------------------------------------------------------ r
def reduce_rows(x, o, KIND: tkc.constexpr, M: tkc.constexpr, N: tkc.constexpr, AXIS: tkc.constexpr):
    v = tkc.load(x, (0, 0), (M, N))
    tkc.store(o, (0,), getattr(tkc, KIND)(v, axis=AXIS))


@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("shape", [(1, 1), (16, 33), (64, 128), (3, 1000), (7, 4096)])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(kind, shape, axis):
    x = floats(*shape)
    out = np.zeros(shape[1 - axis], np.int32 if kind.startswith("arg") else F32)
    both(
        reduce_rows,
        (1,),
        x,
        out,
        kind,
        *shape,
        axis,
        rtol=1e-5 if kind == "sum" else 0,
        atol=1e-4 if kind == "sum" else 0,
    )


def scan_rows(x, o, M: tkc.constexpr, N: tkc.constexpr, AXIS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.cumsum(tkc.load(x, (0, 0), (M, N)), axis=AXIS))


@pytest.mark.parametrize("shape", [(1, 1), (16, 33), (64, 128), (3, 1000)])
@pytest.mark.parametrize("axis", [0, 1])
def test_scans(shape, axis):
    both(scan_rows, (1,), R.integers(-9, 9, shape).astype(F32), np.zeros(shape, F32), *shape, axis)


# --------------------------------------------------------------------------------------------------
UNARY = [
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tanh",
    "erf",
    "floor",
    "ceil",
    "abs",
]


def unary(x, o, FN: tkc.constexpr, N: tkc.constexpr):
    tkc.store(o, (0,), getattr(tkc, FN)(tkc.load(x, (0,), (N,))))


@pytest.mark.parametrize("fn", UNARY)
@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_unary(fn, dtype):
    x = (
        np.abs(floats(257, dtype=F32)) + 0.01
        if fn in ("log", "log2", "sqrt", "rsqrt")
        else floats(257) * 3
    )
    both(
        unary,
        (1,),
        x.astype(dtype),
        np.zeros(257, dtype),
        fn,
        257,
        rtol={F32: 3e-6, BF16: 1e-2, F16: 2e-3}[dtype],
        atol={F32: 2e-6, BF16: 1e-2, F16: 2e-3}[dtype],
    )


def casts(x, o, N: tkc.constexpr):
    tkc.store(o, (0,), tkc.load(x, (0,), (N,)).to(o.dtype))


@pytest.mark.parametrize(
    "source", [np.bool_, np.int8, np.uint8, np.int32, np.int64, F16, BF16, F32, F64]
)
@pytest.mark.parametrize("to", [np.int8, np.uint8, np.int32, np.int64, F16, BF16, F32, F64])
def test_casts(source, to):
    x = R.integers(0, 2 if source is np.bool_ else 100, 131).astype(source)
    both(casts, (1,), x, np.zeros(131, to), 131)


def integers(x, y, o, N: tkc.constexpr):
    a, b = tkc.load(x, (0,), (N,)), tkc.load(y, (0,), (N,))
    tkc.store(o, (0, 0), (a // b)[None, :])
    tkc.store(o, (1, 0), (a % b)[None, :])
    tkc.store(o, (2, 0), tkc.maximum(a, b)[None, :])
    tkc.store(o, (3, 0), (a ^ b)[None, :])
    tkc.store(o, (4, 0), (a << 2)[None, :])


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32])
def test_integers(dtype):
    low = 0 if np.dtype(dtype).kind == "u" else -30
    x, y = R.integers(low, 30, 97).astype(dtype), R.integers(1, 9, 97).astype(dtype)
    if low:
        y[::3] *= -1
    both(integers, (1,), x, y, np.zeros((5, 97), dtype), 97)


def transposed(x, o, M: tkc.constexpr, N: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (M, N)).T)


@pytest.mark.parametrize("shape", [(32, 64), (7, 33), (128, 128)])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_transpose(shape, dtype):
    both(transposed, (1,), floats(*shape, dtype=dtype), np.zeros(shape[::-1], dtype), *shape)
