"""Kernels on many small matrices in Triton's language as its users write them: those of the sixth
set without tl.dot. See triton_products.
"""

import triton
import triton.language as tl


@triton.jit
def cholesky(a, y, N: tl.constexpr):
    """The Cholesky factor of each of many small matrices, column by column in registers."""
    r, c = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    own = tl.program_id(0) * N * N + r * N + c
    left = tl.load(a + own)
    out = tl.zeros((N, N), tl.float32)
    for j in range(N):
        column = tl.sum(tl.where(c == j, left, 0.0), 1)
        pivot = tl.sum(tl.where(tl.arange(0, N) == j, column, 0.0), 0)
        column = tl.where(tl.arange(0, N) >= j, column * tl.rsqrt(pivot), 0.0)
        out = tl.where(c == j, column[:, None], out)
        left -= column[:, None] * column[None, :]
    tl.store(y + own, out)


@triton.jit
def solved_forward(a, b, y, N: tl.constexpr, R: tl.constexpr):
    """a y = b with lower triangles a of N, R right sides each: a row of y at a time."""
    n, r = tl.arange(0, N), tl.arange(0, R)
    batch = tl.program_id(0)
    left = tl.load(b + batch * N * R + n[:, None] * R + r[None, :])
    out = tl.zeros((N, R), tl.float32)
    for i in range(N):
        column = tl.load(a + batch * N * N + n * N + i, mask=n >= i, other=0.0)
        pivot = tl.load(a + batch * N * N + i * N + i)
        row = tl.sum(tl.where(n[:, None] == i, left, 0.0), 0) / pivot
        out = tl.where(n[:, None] == i, row[None, :], out)
        left -= column[:, None] * row[None, :]
    tl.store(y + batch * N * R + n[:, None] * R + r[None, :], out)


@triton.jit
def inverses(a, y, COUNT, N: tl.constexpr, BB: tl.constexpr):
    """Inverses of BB matrices at once by Gauss and Jordan, in place, without pivots searched."""
    b = tl.program_id(0) * BB + tl.arange(0, BB)[:, None, None]
    r, c = tl.arange(0, N)[None, :, None], tl.arange(0, N)[None, None, :]
    at = (b * N + r) * N + c
    m = tl.load(a + at, mask=b < COUNT, other=1.0)
    m = tl.where(b < COUNT, m, tl.where(r == c, 1.0, 0.0))
    for i in range(N):
        row = tl.sum(tl.where(r == i, m, 0.0), 1)[:, None, :]
        column = tl.sum(tl.where(c == i, m, 0.0), 2)[:, :, None]
        pivot = tl.sum(tl.where(c == i, row, 0.0), 2)[:, :, None]
        row = tl.where(c == i, 1.0, row) / pivot
        m = tl.where(c == i, 0.0, m)
        m = tl.where(r == i, row, m - column * row)
    tl.store(y + at, m, mask=b < COUNT)


@triton.jit
def tiny_products(x, z, y, N: tl.constexpr, BB: tl.constexpr):
    """Products of matrices too small for tl.dot: sums over a broadcast axis."""
    b = tl.program_id(0) * BB + tl.arange(0, BB)[:, None, None, None]
    i = tl.arange(0, N)[None, :, None, None]
    j = tl.arange(0, N)[None, None, :, None]
    k = tl.arange(0, N)[None, None, None, :]
    u = tl.load(x + (b * N + i) * N + k)
    v = tl.load(z + (b * N + k) * N + j)
    out = tl.sum(u.to(tl.float32) * v.to(tl.float32), 3)
    own = tl.program_id(0) * BB + tl.arange(0, BB)[:, None, None]
    at = (own * N + tl.arange(0, N)[None, :, None]) * N + tl.arange(0, N)[None, None, :]
    tl.store(y + at, out.to(y.dtype.element_ty))
