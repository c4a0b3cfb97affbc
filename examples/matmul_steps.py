"""The product in steps: ten lines, what each keyword of a launch does, and how to choose none.

The kernel is the one of matmul.py, and nothing below changes it. On a GPU with tensor-core
warpgroups (Hopper) the compiler makes this of it: a producer warp copies blocks of A and B into a
ring of shared memory by tensor maps, warpgroups multiply them from there, and blocks stay on their
multiprocessor, taking one program after the other. What the keywords narrow:

    roles       "one": no producer, cp.async and mma.sync, as on older GPUs
                "cooperative": two warpgroups share a program
                "pingpong": each warpgroup has a program of its own
    programs    2 is ping-pong: one stores its results while the other multiplies, so that short
                loops cost nothing; with 1 a block twice as large fits
    cluster     (2, 1): two blocks of one column share every block of B, each reads half of it
    num_stages  how many steps the producer is ahead; too few and the tensor cores wait for memory
    raster      so many rows of programs run together before the next column: what is in flight
                shares rows and columns in the L2 cache
    serpentine  every second program of a block walks k backwards: it begins with what the one
                before it left in the cache
    retain      the cache keeps a raster's rows longer than its columns
    stream_k    the programs of the last wave, too few for all blocks, are shared by all of them,
                in so many parts at most
    BM, BN, BK  are the kernel's own: the block of C that one program computes, and the k of one
                step

`python examples/matmul_steps.py 8192` times each on the GPU at hand,
`python examples/matmul_steps.py 4096 512` where loops are short; all plans that were measured on an
H200 are in benchmarks/results/product_plans.csv. On an H200, 2026-11-22, commit bc6c2fc, five
shuffled rounds of `benchmarks/run.py examples`, TFLOP/s:

                          8192 x 8192 x 8192     4096 x 4096 x 512
    as it is                     661                    603
    roles=one                    371                    255
    one program                  666                    562
    two programs                 711                    558
    one, 256 wide                711                    540
    no cluster                   691                    546
    two stages                   302                    306
    raster 1                     544                    583
    there and back               719                    556
    shared last wave             689                    525
    autotune                     708                    612
    tkc.kernels                  712                    412 (*)
    bias and GELU                684                    458 (*)
    cuBLAS, bare                 692                    505

    (*) the host's time; the first reaches 611 in a race of its own, commit 736e74f

`matmul.compile(...).decisions` says what was chosen where nothing was asked for, and what was
rejected. Blocks and keywords together are for `tkc.autotune`: the cost model ranks them for the
sizes of a launch, the best are compiled side by side and measured, the choice is kept on disk. With
`measure=False` the model's first is taken, which is what `tkc.kernels.matmul` does; it also takes
batches, vectors, every memory order, and an epilogue, here bias and GELU, which costs next to
nothing.
"""

import sys

import numpy as np
from _arrays import blank, largest_error, main, normal, on_device, on_host
from matmul import grid, matmul

import tkc
from tkc import kernels as library

STEPS = {  # name: launch keywords
    "as it is": {},
    "roles=one": {"roles": "one"},
    "one program": {"programs": 1},
    "two programs": {"programs": 2, "BN": 192},
    "one, 256 wide": {"programs": 1, "BN": 256},
    "no cluster": {"programs": 1, "BN": 256, "cluster": (1, 1)},
    "two stages": {"num_stages": 2},
    "raster 1": {"raster": 1},
    "there and back": {"programs": 2, "BN": 192, "raster": 16, "serpentine": True, "retain": True},
    "shared last wave": {"programs": 1, "BN": 256, "stream_k": 2},
}

tuned = tkc.autotune(
    [
        tkc.Config(BM=m, BN=n, BK=64)
        for m, n in ((128, 256), (128, 192), (128, 128), (256, 128), (64, 128))
    ]
)(matmul)


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def case(name, run, out, want, size, k):
    return {
        "name": name,
        "shape": (size, size, k),
        "dtype": "bfloat16",
        "tolerance": 4e-3,
        "flops": 2 * size * size * k,
        "run": run,
        "error": lambda: largest_error(out(), want()),
    }


def cases(device, size=1024, k=None):
    k = k or size
    hosts = [
        normal(shape, "bfloat16", seed)
        for seed, shape in enumerate(((size, k), (k, size), (size,)))
    ]
    (a, b, bias), c = (on_device(t, device) for t in hosts), blank((size, size), "bfloat16", device)
    kept = {}

    def product():
        if "want" not in kept:
            kept["want"] = on_host(hosts[0]).astype(np.float32) @ on_host(hosts[1]).astype(
                np.float32
            )
        return kept["want"]

    def gelu():
        z = product() + hosts[2].astype(np.float32)
        return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))

    for name, keywords in STEPS.items():
        if device == "cpu" and keywords:
            continue  # the CPU has no schedules to choose from
        yield case(
            name,
            lambda keywords=keywords: matmul[grid](a, b, c, RELU=False, **keywords),
            lambda: c,
            product,
            size,
            k,
        )
    yield case("autotune", lambda: tuned[grid](a, b, c, RELU=False), lambda: c, product, size, k)
    yield case("tkc.kernels", lambda: library.matmul(a, b, out=c), lambda: c, product, size, k)
    yield case(
        "bias and GELU",
        lambda: library.matmul(a, b, bias, "gelu_tanh", out=c),
        lambda: c,
        gelu,
        size,
        k,
    )


def kernels():
    array = "bf16[1024, 1024]"
    return [
        (
            matmul,
            {"a": array, "b": array, "c": array, "RELU": False, "BM": 128, "BN": 192, "BK": 64},
            grid,
        )
    ]


if __name__ == "__main__":
    main(lambda device: cases(device, *map(int, sys.argv[1:])))
