"""Kernels whose programs talk to one another, and others that the table of operations has no row
for.
"""

import tkc


@tkc.jit
def chained(flag, out, n):
    """Program i waits until i - 1 has said that it is done, then adds one to what that one left."""
    i = tkc.program_id(0)
    while tkc.load(flag.ptr, sem="acquire", scope="gpu") < i:
        pass
    before = tkc.load(out.ptr + tkc.maximum(i - 1, 0))
    tkc.store(out.ptr + i, before + tkc.where(i > 0, 3, 7))
    tkc.store(flag.ptr, i + 1, sem="release", scope="gpu")


@tkc.jit
def of_the_next(x, y):
    i, n = tkc.program_id(0), tkc.num_programs(0)
    tkc.store(y, i * 256, tkc.load(x, (i + 1) % n * 256, (256,)) + 1)


@tkc.jit
def last_one(parts, arrived, total, x, N: tkc.constexpr):
    """The program that arrives last sums what all left."""
    i, n = tkc.program_id(0), tkc.num_programs(0)
    tkc.store(parts, (i,), tkc.sum(tkc.load(x, (i * N,), (N,))))
    if tkc.atomic_add(arrived.ptr, 1, sem="acq_rel") == n - 1:
        tkc.store(total, (0,), tkc.sum(tkc.load(parts, (0,), (64,))))
        tkc.store(arrived, (0,), 0)


@tkc.jit
def far(x, out, row, BLOCK: tkc.constexpr = 16):
    """Blocks and pointers at offsets beyond 32 bits."""
    k = tkc.arange(BLOCK)
    tkc.store(out, (0,), tkc.load(x, (row, 0), (None, BLOCK)))
    tkc.store(out, (BLOCK,), tkc.load(x.ptr + row * x.strides[0] + k))
    tkc.store(x, (row, 1), (k + 3).to(x.dtype)[None, :])


@tkc.jit
def noisy(scale, seed, bits, uniform, normal, N: tkc.constexpr):
    i = tkc.arange(N)
    a, b, c, d = tkc.philox(seed, i)
    for k, word in enumerate((a, b, c, d)):
        tkc.store(bits, (k, 0), word[None, :])
    tkc.store(uniform, (0,), tkc.rand(seed, i))
    tkc.store(normal, (0,), tkc.randn(seed, i) * scale)


@tkc.jit
def telling(x, n):
    tkc.device_assert(n < 100, "n is small")
    tkc.print("n is", n, "and", tkc.load(x, (0,), (2,)))


@tkc.jit
def in_place(x, y, n, BLOCK: tkc.constexpr = 64):
    """y may be a part of x: then each block is read before it is written, and later ones after."""
    for k in tkc.range(0, n, BLOCK):
        tkc.store(y, (k,), tkc.load(x, (k,), (BLOCK,)) + 1)


@tkc.jit
def beyond(x, out, start):
    """An axis of more than 2^31 elements: its block at a 64-bit offset, its end, and a view of its
    last part.
    """
    v = x[start:]
    tkc.store(out, (0,), tkc.load(x, (start,), (32,)))
    tkc.store(out, (32,), tkc.load(v, (0,), (32,)))
    tkc.store(out, (64,), tkc.full((1,), v.shape[0]).to(out.dtype))
    tkc.store(x, (start + 1,), tkc.full((64,), 9, x.dtype))
