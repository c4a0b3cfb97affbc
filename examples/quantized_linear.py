"""A linear layer with weights of 8 bits: a dot one of whose operands is computed on its way.

Weights take most of the memory of a language model, and where few rows of x meet them, most of the
time: 8 bits instead of 16 halve both. They are stored as int8 (or float8) with a scale for each
output, and multiplied in bfloat16:

    y[m, n] = sum over k of x[m, k] * (w[n, k] in bfloat16)  *  scale[n]

The kernel says just that. The compiler sees that one factor is computed element by element: its
blocks come through shared memory as they are, 8 bits wide, and become bfloat16 in the registers
from which the tensor core reads its left factor, while the dot before is under way. Here it is the
right operand that is computed, so the dot is taken as its transpose, (w x.T).T. The same holds for
any element-wise computation: relu(a), a * s, a + b.

On an H200, 2026-11-22, four shuffled rounds of `benchmarks/run.py examples` (commit 02963b6), and
eight of `product_types` (8434850):

    rows x outputs x inputs     weights of int8        float8        cuBLAS, all bfloat16
    64 x 8192 x 8192            34.0 us (64 x 64 x 128)              46.7
    4096 x 4096 x 4096          254.0                  244.7         190.8
"""

import numpy as np
from _arrays import blank, largest_error, main, normal, on_device

import tkc


@tkc.jit
def linear(
    x, w, scale, y, BM: tkc.constexpr = 128, BN: tkc.constexpr = 128, BK: tkc.constexpr = 64
):
    """y = x w.T * scale for x [M, K], w [N, K] of 8 bits, scale [N]."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, x.shape[1], BK):
        weights = tkc.load(w, (n, k), (BN, BK)).T.to(x.dtype)
        acc = tkc.dot(tkc.load(x, (m, k), (BM, BK)), weights, acc)
    acc = acc * tkc.load(scale, (n,), (BN,))[None, :]
    tkc.store(y, (m, n), acc.to(y.dtype))


def grid(args):
    rows, columns = args["y"].shape
    return tkc.cdiv(rows, args["BM"]), tkc.cdiv(columns, args["BN"])


def reference(x, w, scale):
    return x.astype(np.float64) @ w.astype(np.float64).T * scale


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def case(device, kind, size):
    x, scale = normal((size, size), "bfloat16", 0), np.abs(normal((size,), "float32", 2))
    w = normal((size, size), "float32", 1)
    w = (
        np.clip(np.rint(w * 40), -127, 127).astype(np.int8)
        if kind == "int8"
        else w.astype(normal((1,), kind).dtype)
    )
    arrays, y = (
        [on_device(t, device) for t in (x, w, scale)],
        blank((size, size), "bfloat16", device),
    )
    return {
        "name": f"weights of {kind}",
        "shape": (size, size, size),
        "dtype": "bfloat16",
        "tolerance": 4e-3,
        "flops": 2 * size**3,
        "run": lambda: linear[grid](*arrays, y),
        "error": lambda: largest_error(y, reference(x, w, scale)),
    }


def cases(device, size=1024):
    for kind in ("int8", "float8_e4m3fn"):
        yield case(device, kind, size)


def kernels():
    x, blocks = "bf16[1024, 1024]", {"BM": 128, "BN": 128, "BK": 64}
    return [(linear, {"x": x, "w": "i8[1024, 1024]", "scale": "f32[1024]", "y": x} | blocks, grid)]


if __name__ == "__main__":
    main(cases)
