"""A cumulative sum in one pass over memory: programs that wait for one another.

    out[i] = x[0] + … + x[i]

Every program scans its own block, and then needs the sum of all that comes before it. Two passes
would read the array twice. Here each program publishes one word in global memory and waits for
those it needs (Merrill and Garland, 2016):

    program       0     1     2     3  |  4     5     6     7  |  8        groups of 4
    word         s0    s1    s2    S3     s4    s5    s6    S7
    program 6 adds                 S3  +  s4  + s5

    s: the sum of a block; S: the sum of everything up to the end of a group

So a program waits for neighbours, which run at the same time, and loads all of their words at once;
a chain of waits has one link a group. The order of additions does not depend on which program was
first: the same bits every time.

*Waiting* is a `while` loop round a load with sem="relaxed": such a load reads memory again each
time. Programs that wait get their ids in the order in which they start, so that none waits for one
that has not begun; the compiler does not run such programs in another order.

*A word carries number and status.* A store of 64 bits happens at once: 0 is "nothing yet", else the
upper half is 1 and the lower half is the number. So nothing need be ordered: no fence stands
between the number and a flag, and nothing waits for one.

On an H200, 2026-11-22, commit bc6c2fc, five shuffled rounds of `benchmarks/run.py examples`,
bfloat16:

    2^27 elements     cumulative_sum 219.6 us (2445 GB/s)      a copy 131.9      torch.cumsum 537.3

`tkc.kernels.cumsum`, whose blocks take one program after the other, took 1162 us for 2^30 elements,
where a copy takes 1006 (commit 736e74f).
"""

import numpy as np
from _arrays import blank, largest_error, main, normal, on_device

import tkc

READY = 1 << 32  # of a word with a number in it


def publish(at, number):
    tkc.store(at, number.to(tkc.uint32, bitcast=True).to(tkc.int64) | READY, sem="relaxed")


def sum_of_words(at, wanted):
    """The sum of the numbers at these addresses, once all that are wanted are there."""
    words = tkc.load(at, mask=wanted, other=READY, sem="relaxed")
    while not tkc.all(words >= READY):
        words = tkc.load(at, mask=words < READY, other=words, sem="relaxed")
    return tkc.sum(words.to(tkc.uint32).to(tkc.float32, bitcast=True))


@tkc.jit
def cumulative_sum(x, out, words, N: tkc.constexpr, GROUP: tkc.constexpr):
    block, back = tkc.program_id(0), tkc.arange(GROUP)
    values = tkc.load(x, (block * N,), (N,)).to(tkc.float32)
    scanned, own, place = tkc.cumsum(values), tkc.sum(values), block % GROUP
    if place < GROUP - 1:
        publish(words.ptr + block, own)
    before = sum_of_words(words.ptr + (block - 1 - back), (back <= place) & (back < block))
    if place == GROUP - 1:
        publish(words.ptr + block, before + own)
    tkc.store(out, (block * N,), (scanned + before).to(out.dtype))


def grid(args):
    return tkc.cdiv(args["x"].shape[0], args["N"])


def reference(x):
    return np.cumsum(x.astype(np.float64))


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def case(device, dtype, tolerance, n, block, group):
    host = normal(n, dtype)
    x, out, blocks = on_device(host, device), blank(n, dtype, device), -(-n // block)
    words = on_device(np.zeros(blocks, np.int64), device)

    def run():
        words[:] = 0
        cumulative_sum[grid](x, out, words, N=block, GROUP=group)

    return {
        "name": "cumulative_sum",
        "shape": (n,),
        "dtype": dtype,
        "tolerance": tolerance,
        "bytes": 2 * host.nbytes,
        "run": run,
        "error": lambda: largest_error(out, reference(host)),
    }


def cases(device, n=1 << 22, block=8192, group=256):
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 8e-3)):
        yield case(device, dtype, tolerance, n, block, group)


def kernels():
    array = "bf16[4194304]"
    return [
        (
            cumulative_sum,
            {"x": array, "out": array, "words": "i64[512]", "N": 8192, "GROUP": 256},
            grid,
        )
    ]


if __name__ == "__main__":
    main(cases)
