"""Vector addition: programs, blocks and masks.

A kernel says what *one program* does; a launch runs a whole grid of programs, each with another
`program_id`. Here every program adds BLOCK neighbouring elements:

    elements    0 ............ 1023 | 1024 ........ 2047 | 2048 ....
    program             0           |         1          |     2

    n = 2500, BLOCK = 1024: three programs, the last one with a partial mask

`BLOCK` is a `constexpr`: a number known when the kernel is compiled, so that the compiler can give
each thread a fixed share of the block. `n` is an ordinary argument, known only at the launch, and
BLOCK need not divide it. Hence the mask: where it is false nothing is read and nothing is written.

`x.ptr + i` is a tile of addresses, one an element. The other form of `load`, which names an array
and a box in it, is in softmax.py.

On an H200, 2026-11-22, commit bc6c2fc, five shuffled rounds of `benchmarks/run.py examples`,
bfloat16:

    2^27 elements     add 189.7 us (4245 GB/s); with 2^30 elements 0.998 x torch (commit 9d0a9d3)
"""

import numpy as np
from _arrays import blank, largest_error, main, normal, on_device

import tkc


@tkc.jit
def add(x, y, out, n, BLOCK: tkc.constexpr = 1024):
    i = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    inside = i < n
    total = tkc.load(x.ptr + i, mask=inside) + tkc.load(y.ptr + i, mask=inside)
    tkc.store(out.ptr + i, total, mask=inside)


def grid(args):
    """As many programs as it takes; `args` are the arguments of the launch by name, constexprs
    included.
    """
    return tkc.cdiv(args["n"], args["BLOCK"])


def reference(x, y):
    return x.astype(np.float64) + y.astype(np.float64)


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def case(device, dtype, tolerance, n):
    hosts = [normal(n, dtype, seed) for seed in range(2)]
    x, y = (on_device(t, device) for t in hosts)
    out = blank(n, dtype, device)
    return {
        "name": "vector_add",
        "shape": (n,),
        "dtype": dtype,
        "tolerance": tolerance,
        "bytes": 3 * hosts[0].nbytes,
        "run": lambda: add[grid](x, y, out, n),
        "error": lambda: largest_error(out, reference(*hosts)),
    }


def cases(device, n=1 << 24):
    for dtype, tolerance in (("float32", 1e-7), ("bfloat16", 4e-3)):
        yield case(device, dtype, tolerance, n)


def kernels():
    array = "f32[16777216]"
    return [(add, {"x": array, "y": array, "out": array, "n": "i32:16", "BLOCK": 1024}, grid)]


if __name__ == "__main__":
    main(cases)
