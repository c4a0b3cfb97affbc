"""Matrix product with a fused ReLU: a loop that carries a tile, and an epilogue for nothing.

One program computes a block of BM x BN elements of C = relu(A B). It walks along K in steps of BK,
and each step multiplies a BM x BK block of A with a BK x BN block of B into an accumulator:

                     BN                   for k in range(0, K, BK):
                   +----+                     acc += A[m : m + BM, k : k + BK]
            K    B |    |  BK at a time              @ B[k : k + BK, n : n + BN]
                   +----+
        +------+   +----+
     BM | A    |   | C  |                 `tkc.dot(a, b, acc)` is acc + a @ b in float32,
        +------+   +----+                 on the tensor cores where there are any.

`acc` is an ordinary Python name that is assigned again in the loop: the compiler sees that the loop
carries it. Nothing here speaks of shared memory, swizzles, stages or warps; that is the compiler's
part, and `matmul.compile(...).decisions` tells what it chose and why.

The blocks need not divide anything: `load` reads zeros outside of A and B, which add nothing, and
`store` writes nothing outside of C. RELU is a constexpr, so the `if` below is decided while the
kernel is traced and leaves no branch behind.

On an H200, 2026-11-22, commit bc6c2fc, five shuffled rounds of `benchmarks/run.py examples`,
bfloat16, 4096 x 4096 x 4096:

    matmul, with its ReLU and blocks of 128 x 128     198.8 us (691 TFLOP/s)
    cuBLAS, without the ReLU                          191.6    (718)

matmul_steps.py shows what blocks and keywords make of it.
"""

import numpy as np
from _arrays import blank, largest_error, main, normal, on_device

import tkc


@tkc.jit
def matmul(
    a,
    b,
    c,
    RELU: tkc.constexpr = True,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 128,
    BK: tkc.constexpr = 64,
):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    if RELU:
        acc = tkc.maximum(acc, 0)
    tkc.store(c, (m, n), acc.to(c.dtype))


def grid(args):
    rows, columns = args["c"].shape
    return tkc.cdiv(rows, args["BM"]), tkc.cdiv(columns, args["BN"])


def reference(a, b):
    return np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0)


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def case(device, dtype, tolerance, size):
    hosts = [normal((size, size), dtype, seed) for seed in range(2)]
    a, b = (on_device(t, device) for t in hosts)
    c = blank((size, size), dtype, device)
    return {
        "name": "matmul",
        "shape": (size, size, size),
        "dtype": dtype,
        "tolerance": tolerance,
        "flops": 2 * size**3,
        "run": lambda: matmul[grid](a, b, c),
        "error": lambda: largest_error(c, reference(*hosts)),
    }


def cases(device, size=1024):
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 4e-3)):
        yield case(device, dtype, tolerance, size)


def kernels():
    array = "bf16[1024, 1024]"
    return [
        (
            matmul,
            {"a": array, "b": array, "c": array, "RELU": True, "BM": 128, "BN": 128, "BK": 64},
            grid,
        )
    ]


if __name__ == "__main__":
    main(cases)
