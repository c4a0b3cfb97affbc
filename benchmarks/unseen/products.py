"""Products of matrices with something about them. A part of the unseen kernels."""

from __future__ import annotations

from typing import Any

import tkc
from benchmarks.unseen.operands import Called, Operands, case, over


@tkc.jit
def small_products(a, b, c, N: tkc.constexpr):
    """c[i] = a[i] b[i], a matrix of N x N for each program."""
    i = tkc.program_id(0)
    left = tkc.load(a, (i, 0, 0), (None, N, N))
    right = tkc.load(b, (i, 0, 0), (None, N, N))
    tkc.store(c[i], (0, 0), tkc.dot(left, right).to(c.dtype))


@tkc.jit
def rank_k_update(a, c, alpha, beta, B: tkc.constexpr, BK: tkc.constexpr):
    """c = alpha a a^T + beta c, symmetric: blocks under the diagonal, each stored twice."""
    i, j = tkc.program_id(0) * B, tkc.program_id(1) * B
    if j <= i:
        acc = tkc.zeros((B, B))
        for k in range(0, a.shape[1], BK):
            rows, columns = tkc.load(a, (i, k), (B, BK)), tkc.load(a, (j, k), (B, BK))
            acc = tkc.dot(rows, columns.T, acc)
        new = alpha * acc + beta * tkc.load(c, (i, j), (B, B)).to(tkc.float32)
        tkc.store(c, (i, j), new.to(c.dtype))
        if j < i:
            tkc.store(c, (j, i), new.T.to(c.dtype))


@tkc.jit
def solve_by_blocks(low, inverse, b, x, B: tkc.constexpr, BN: tkc.constexpr):
    """L x = b by blocks of B rows, whose diagonal blocks' inverses are given."""
    n = tkc.program_id(0) * BN
    for i in range(0, b.shape[0], B):
        rest = tkc.load(b, (i, n), (B, BN)).to(tkc.float32)
        for j in range(0, i, B):
            rest -= tkc.dot(tkc.load(low, (i, j), (B, B)), tkc.load(x, (j, n), (B, BN)))
        found = tkc.dot(tkc.load(inverse, (i, 0), (B, B)), rest.to(b.dtype))
        tkc.store(x, (i, n), found.to(x.dtype))


def halves(x):
    """A tile of float32 as the sum of two of bfloat16."""
    high = x.to(tkc.bfloat16)
    return high, (x - high.to(tkc.float32)).to(tkc.bfloat16)


@tkc.jit
def product_of_floats(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A product of float32 by three of bfloat16."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        ah, al = halves(tkc.load(a, (m, k), (BM, BK)))
        bh, bl = halves(tkc.load(b, (k, n), (BK, BN)))
        acc = tkc.dot(al, bh, tkc.dot(ah, bl, tkc.dot(ah, bh, acc)))
    tkc.store(c, (m, n), acc)


@tkc.jit
def complex_product(
    ar, ai, br, bi, cr, ci, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr
):
    """(ar + i ai) (br + i bi), real and imaginary parts apart."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    real, imaginary = tkc.zeros((BM, BN)), tkc.zeros((BM, BN))
    for k in range(0, ar.shape[1], BK):
        a, b = tkc.load(ar, (m, k), (BM, BK)), tkc.load(ai, (m, k), (BM, BK))
        c, d = tkc.load(br, (k, n), (BK, BN)), tkc.load(bi, (k, n), (BK, BN))
        real = tkc.dot(a, c, real) - tkc.dot(b, d)
        imaginary = tkc.dot(a, d, tkc.dot(b, c, imaginary))
    tkc.store(cr, (m, n), real.to(cr.dtype))
    tkc.store(ci, (m, n), imaginary.to(ci.dtype))


@tkc.jit
def product_of_blocks_scaled(x, w, sw, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """x is made int8 a block of BK at a time; w is int8 with a scale for each BK x BN of it."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, x.shape[1], BK):
        rows = tkc.load(x, (m, k), (BM, BK)).to(tkc.float32)
        s = tkc.maximum(tkc.max(tkc.abs(rows), 1), 1e-8) / 127
        q = tkc.round(rows / s[:, None]).to(tkc.int8)
        part = tkc.dot(q, tkc.load(w, (n, k), (BN, BK)).T).to(tkc.float32)
        acc += part * (s * sw[k // BK, tkc.program_id(1)])[:, None]
    tkc.store(y, (m, n), acc.to(y.dtype))


def gelu(x):
    return 0.5 * x * (1 + tkc.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@tkc.jit
def int8_gelu(x, w, sx, sw, bias, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """gelu of a product of int8, scaled by rows and columns, with a bias."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.int32)
    for k in range(0, x.shape[1], BK):
        acc = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(w, (n, k), (BN, BK)).T, acc)
    h = acc.to(tkc.float32) * tkc.load(sx, (m,), (BM,))[:, None] * tkc.load(sw, (n,), (BN,))
    h += tkc.load(bias, (n,), (BN,))[None, :].to(tkc.float32)
    tkc.store(y, (m, n), gelu(h).to(y.dtype))


@tkc.jit
def product_and_squares(x, w, y, squares, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """x w, and the sum of squares of each row of it, for a norm that comes next."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, x.shape[1], BK):
        acc = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(w, (k, n), (BK, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))
    tkc.atomic_add(squares, (m,), tkc.sum(acc * acc, 1))


@case("batch of small products")
def _(o: Operands) -> Called:
    n, s = o.of(16384, 5), 64
    a, b, c = o.normal(n, s, s), o.normal(n, s, s), o.empty(n, s, s)
    return Called(
        lambda: small_products[n](a, b, c, s),
        (c,),
        lambda a, b: a @ b,
        (a, b),
        2 * n * s**3,
    )


@case("symmetric rank-k update")
def _(o: Operands) -> Called:
    n, k = o.of(4096, 200), o.of(4096, 72)
    a, c = o.normal(n, k), o.normal(n, n)
    c = (c + c.T).contiguous()
    first = c.clone()
    g = over(n, 128)
    return Called(
        lambda: rank_k_update[g, g](a, c, 0.5, 0.25, 128, 64),
        (c,),
        lambda a, c: 0.5 * (a @ a.T) + 0.25 * c,
        (a, first),
        n * n * k,
        reset=lambda: c.copy_(first),
    )


@case("triangular solve by blocks")
def _(o: Operands) -> Called:
    n, m, B = o.of(2048, 192), o.of(8192, 100), 64
    low = o.normal(n, n, scale=0.02 if o.large else 0.1).tril(-1)
    diagonal = o.torch.eye(B, device=o.device).repeat(n // B, 1, 1)
    if o.real:
        for i in range(n // B):
            part = slice(i * B, i * B + B)
            diagonal[i] += low[part, part].float()
        inverse = o.torch.linalg.inv(diagonal).reshape(n, B).to(low.dtype)
    else:
        inverse = o.normal(n, B)
    b, x = o.normal(n, m), o.empty(n, m)

    def function(low: Any, b: Any) -> Any:
        whole = low + o.torch.eye(n, device=low.device, dtype=low.dtype)
        wide = o.torch.float64 if low.dtype == o.torch.float64 else o.torch.float32
        return o.torch.linalg.solve_triangular(whole.to(wide), b.to(wide), upper=False).to(b.dtype)

    return Called(
        lambda: solve_by_blocks[over(m, 128)](low, inverse, b, x, B, 128),
        (x,),
        function,
        (low, b),
        n * n * m,
        tolerance=3e-2,
    )


@case("product of float32 by three")
def _(o: Operands) -> Called:
    n, k = o.of(4096, 136), o.of(4096, 72)
    a, b, c = o.floats(n, k), o.floats(k, n), o.empty(n, n, dtype="float32")
    g = over(n, 128)
    return Called(
        lambda: product_of_floats[g, g](a, b, c, 128, 128, 32),
        (c,),
        lambda a, b: a @ b,
        (a, b),
        6 * n * n * k,
        tolerance=1e-4,
    )


@case("complex product")
def _(o: Operands) -> Called:
    n = o.of(4096, 136)
    a = tuple(o.normal(n, n) for _ in range(4))
    c = o.empty(n, n), o.empty(n, n)

    def function(ar: Any, ai: Any, br: Any, bi: Any) -> Any:
        return ar @ br - ai @ bi, ar @ bi + ai @ br

    g = over(n, 128)
    return Called(
        lambda: complex_product[g, g](*a, *c, 128, 128, 64),
        c,
        function,
        a,
        8 * n**3,
    )


@case("product of blocks, quantized on the way")
def _(o: Operands) -> Called:
    m, n, k = o.of(4096, 136), o.of(4096, 136), o.of(4096, 256)
    x, w = o.normal(m, k), o.integers(-127, 128, n, k, dtype="int8")
    sw, y = o.floats(over(k, 128), over(n, 128)).abs(), o.empty(m, n)

    def function(x: Any, w: Any, sw: Any) -> Any:
        wide = sw.repeat_interleave(128, 0)[:k].repeat_interleave(128, 1)[:, :n]
        return (x.to(sw.dtype) @ (w.T.to(sw.dtype) * wide)).to(x.dtype)

    return Called(
        lambda: product_of_blocks_scaled[over(m, 128), over(n, 128)](x, w, sw, y, 128, 128, 128),
        (y,),
        function,
        (x, w, sw),
        2 * m * n * k / 2,
        tolerance=5e-2,
    )


@case("int8 product with gelu")
def _(o: Operands) -> Called:
    m, n, k = o.of(8192, 136), o.of(8192, 136), o.of(4096, 128)
    x, w = o.integers(-99, 99, m, k, dtype="int8"), o.integers(-99, 99, n, k, dtype="int8")
    sx, sw = o.floats(m).abs() * 1e-3, o.floats(n).abs() * 1e-2
    bias, y = o.normal(n), o.empty(m, n)

    def function(x: Any, w: Any, sx: Any, sw: Any, bias: Any) -> Any:
        if x.is_cuda:
            h = o.torch._int_mm(x, w.T) * sx[:, None] * sw + bias
        else:
            h = (x.to(sx.dtype) @ w.T.to(sx.dtype)) * sx[:, None] * sw + bias
        return o.torch.nn.functional.gelu(h, approximate="tanh").to(bias.dtype)

    return Called(
        lambda: int8_gelu[over(m, 128), over(n, 128)](x, w, sx, sw, bias, y, 128, 128, 64),
        (y,),
        function,
        (x, w, sx, sw, bias),
        m * n * k,
    )


@case("product and sums of squares")
def _(o: Operands) -> Called:
    m, n, k = o.of(8192, 136), o.of(4096, 136), o.of(4096, 128)
    x, w = o.normal(m, k), o.normal(k, n, scale=0.02)
    y, squares = o.empty(m, n), o.empty(m, dtype="float32")

    def function(x: Any, w: Any) -> Any:
        y = x @ w
        wide = y if y.dtype.itemsize == 8 else y.float()
        return y, (wide * wide).sum(1)

    return Called(
        lambda: product_and_squares[over(m, 128), over(n, 128)](x, w, y, squares, 128, 128, 64),
        (y, squares),
        function,
        (x, w),
        2 * m * n * k,
        reset=squares.zero_,
    )
