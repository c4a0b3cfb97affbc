"""A cumulative sum in one pass over memory: programs that wait for one another.

    out[i] = x[0] + … + x[i]

Every program scans its own block, and then needs the sum of all that comes before it.  Two passes would read the array twice.  Here each program
publishes the sum of its block in global memory and waits for those it needs (Merrill and Garland, 2016):

    program       0     1     2     3  |  4     5     6     7  |  8        groups of 4
    publishes    s0    s1    s2    s3     s4    s5    s6    s7
    program 6 adds       s4 + s5  and what program 3 published of its whole group: the sum of everything up to its end

So a program waits for neighbours, which run at the same time, and a chain of waits has one link a group.  The order of additions does not depend
on who was first: the same bits every time.

*Waiting* is a `while` loop round a load with sem="acquire".  Programs that wait get their ids in the order in which they start, so that nobody waits for
one that has not begun; the compiler neither moves loads over an acquire nor runs such programs in another order.

*A word carries number and status.*  A store of 64 bits happens at once: 0 is "nothing yet", else the upper half is 1 and the lower half is the number.
So no fence is needed between the number and a flag.
"""
import numpy as np
from _arrays import blank, largest_error, main, normal, on_device

import tkc


def publish(at, number): tkc.store(at, number.to(tkc.uint32, bitcast=True).to(tkc.int64) | (1 << 32), sem="release")


def wait_for(at, mask):
    """The numbers at these addresses, once all are there; 0 where the mask is false."""
    words = tkc.load(at, mask=mask, other=1 << 32, sem="acquire")
    lowest = tkc.min(words)
    while lowest < 1 << 32:
        words = tkc.load(at, mask=mask, other=1 << 32, sem="acquire")
        lowest = tkc.min(words)
    return words.to(tkc.uint32).to(tkc.float32, bitcast=True)


@tkc.jit
def cumulative_sum(x, out, sums, prefixes, N: tkc.constexpr, GROUP: tkc.constexpr):
    block = tkc.program_id(0)
    values = tkc.load(x, (block * N,), (N,)).to(tkc.float32)
    own, group, lanes, one = tkc.sum(values), block // GROUP, tkc.arange(GROUP), tkc.arange(1)
    publish(sums.ptr + block, own)
    before = tkc.sum(wait_for(sums.ptr + (group * GROUP + lanes), lanes < block % GROUP))
    before = before + tkc.sum(wait_for(prefixes.ptr + (group - 1 + one), one < group))
    if block % GROUP == GROUP - 1: publish(prefixes.ptr + group, before + own)
    tkc.store(out, (block * N,), (tkc.cumsum(values) + before).to(out.dtype))


def grid(args): return tkc.cdiv(args["x"].shape[0], args["N"])


def reference(x): return np.cumsum(x.astype(np.float64))


# ---- what `tkc demo` runs -------------------------------------------------------------------------------------------------
def case(device, dtype, tolerance, n, block, group):
    host = normal(n, dtype)
    x, out, blocks = on_device(host, device), blank(n, dtype, device), -(-n // block)
    sums, prefixes = (on_device(np.zeros(size, np.int64), device) for size in (blocks, -(-blocks // group)))

    def run():
        sums[:], prefixes[:] = 0, 0
        cumulative_sum[grid](x, out, sums, prefixes, N=block, GROUP=group)
    return {"name": "cumulative_sum", "shape": (n,), "dtype": dtype, "tolerance": tolerance, "bytes": 2 * host.nbytes, "run": run,
            "error": lambda: largest_error(out, reference(host))}


def cases(device, n=1 << 22, block=8192, group=64):
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 8e-3)):
        yield case(device, dtype, tolerance, n, block, group)


def kernels():
    array = "bf16[4194304]"
    return [(cumulative_sum, {"x": array, "out": array, "sums": "i64[512]", "prefixes": "i64[8]", "N": 8192, "GROUP": 64}, grid)]


if __name__ == "__main__": main(cases)
