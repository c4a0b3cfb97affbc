"""Products of 8-bit floats: what to do about sums and scales, in plain Python.

Float8 halves the bytes and doubles the tensor core's rate, and asks for two decisions:

**How sums are kept.** Hopper's tensor core adds float8 products with fewer bits than float32 has.
`tkc.dot(a, b, acc)` leaves the whole sum there: the fastest, good for inference. `acc + tkc.dot(a,
b)` adds up only one block of K there and the rest in float32: about as exact as a float32 sum. The
two lines look alike because they mean the same; the compiler keeps them apart for float8 alone.

**Where the scales go.** A tensor is stored as float8 times a scale: one for all of it, one a row,
or one a block of 128. A scale that does not depend on k is a factor of the result. One that does
belongs inside the loop, on the block's partial sum:

    a: [M, K], its scales sa: [M, K / 128]
    b: [N, K], its scales sb: [N / 128, K / 128]

    for k in blocks of 128:
        acc = acc + dot(a[m, k], b[n, k].T) * (sa[m, k] * sb[n, k])

Hopper multiplies float8 only where K is the dense axis of both operands, so `b` is stored as [N, K]
(as torch.nn.Linear does) and its block transposed, or passed as `w.T`; either way nothing is
copied.

On an H200, 2026-11-22, commit 02963b6, four shuffled rounds of `benchmarks/run.py examples`,
8192 x 8192 x 8192:

    one scale a tensor              833.5 us (1319 TFLOP/s)     cuBLAS, fast sums    855.0 (1286)
    one scale a row, exact sums     896.6    (1226)             cuBLAS, exact sums   864.8 (1271)
    scales of blocks               1147.0     (958)
"""

import numpy as np
from _arrays import blank, largest_error, main, normal, on_device

import tkc


@tkc.jit
def matmul(
    a,
    b,
    sa,
    sb,
    c,
    EXACT: tkc.constexpr = False,
    ROWS: tkc.constexpr = False,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 256,
    BK: tkc.constexpr = 128,
):
    """c = (a b.T) * sa * sb: sa [M] and sb [N] scale rows if ROWS, else sa [1] and sb [1] whole
    tensors.
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        x, y = tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (n, k), (BN, BK)).T
        acc = acc + tkc.dot(x, y) if EXACT else tkc.dot(x, y, acc)
    scale = (
        tkc.load(sa, (m,), (BM,))[:, None] * tkc.load(sb, (n,), (BN,))[None, :]
        if ROWS
        else sa[0] * sb[0]
    )
    tkc.store(c, (m, n), (acc * scale).to(c.dtype))


@tkc.jit
def block_scaled_matmul(
    a, b, sa, sb, c, BM: tkc.constexpr = 256, BN: tkc.constexpr = 128, BK: tkc.constexpr = 128
):
    """c = a b.T, where sa [M, K / 128] scales 1 x 128 blocks of a, and sb [N / 128, K / 128] 128 x
    128 blocks of b.
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        scale = tkc.load(sa, (m, k // 128), (BM, None))[:, None] * sb[n // 128, k // 128]
        acc = acc + tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (n, k), (BN, BK)).T) * scale
    tkc.store(c, (m, n), acc.to(c.dtype))


def grid(args):
    rows, columns = args["c"].shape
    return tkc.cdiv(rows, args["BM"]), tkc.cdiv(columns, args["BN"])


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def reference(a, b, sa, sb):
    """By blocks of 128 along k where the scales have a second axis."""
    a, b, sa, sb = (x.astype(np.float64) for x in (a, b, sa, sb))
    if sa.ndim == 1:
        return a @ b.T * sa[:, None] * sb

    def wide(scales, rows, shape):
        return np.repeat(np.repeat(scales, rows, axis=0), 128, axis=1)[: shape[0], : shape[1]]

    return (a * wide(sa, 1, a.shape)) @ (b * wide(sb, 128, b.shape)).T


def case(device, name, kernel, scales, size, **options):
    dtype = "float8_e4m3fn"
    hosts = [normal((size, size), dtype, seed) for seed in range(2)]
    hosts += [
        np.abs(normal(shape, "float32", 2 + i)) + np.float32(0.5) for i, shape in enumerate(scales)
    ]
    arrays, c = [on_device(t, device) for t in hosts], blank((size, size), "bfloat16", device)
    return {
        "name": name,
        "shape": (size, size, size),
        "dtype": dtype,
        "tolerance": 5e-3,
        "flops": 2 * size**3,
        "run": lambda: kernel[grid](*arrays, c, **options),
        "error": lambda: largest_error(c, reference(*hosts)),
    }


def cases(device, size=1024):
    blocks = -(-size // 128)
    yield case(device, "one scale a tensor", matmul, ((1,), (1,)), size)
    yield case(
        device,
        "one scale a row, exact sums",
        matmul,
        ((size,), (size,)),
        size,
        EXACT=True,
        ROWS=True,
        BN=128,
    )
    yield case(
        device, "scales of blocks", block_scaled_matmul, ((size, blocks), (blocks, blocks)), size
    )


def kernels():
    """(kernel, stand-ins for its arguments, grid), for tools that only compile."""
    array, given = "e4m3[1024, 1024]", {"BM": 128, "BN": 128, "BK": 128}
    return [
        (
            matmul,
            {
                "a": array,
                "b": array,
                "sa": "f32[1]",
                "sb": "f32[1]",
                "c": "bf16[1024, 1024]",
                "EXACT": False,
                "ROWS": False,
            }
            | given,
            grid,
        ),
        (
            block_scaled_matmul,
            {
                "a": array,
                "b": array,
                "sa": "f32[1024, 8]",
                "sb": "f32[8, 8]",
                "c": "bf16[1024, 1024]",
            }
            | given,
            grid,
        ),
    ]


if __name__ == "__main__":
    main(cases)
