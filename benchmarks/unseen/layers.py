"""Layers of models, and linear algebra by blocks. A part of the unseen kernels."""

from __future__ import annotations

import math
from typing import Any

import tkc
from benchmarks.unseen.operands import Called, Operands, case, over


@tkc.jit
def adapters(
    x,
    w,
    down,
    up,
    which,
    y,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    R: tkc.constexpr,
):
    """x w + (x down[i]) up[i]: blocks of rows have adapters of their own, by number."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    i = which[tkc.program_id(0)]
    acc, low = tkc.zeros((BM, BN)), tkc.zeros((BM, R))
    for k in range(0, x.shape[1], BK):
        rows = tkc.load(x, (m, k), (BM, BK))
        acc = tkc.dot(rows, tkc.load(w, (k, n), (BK, BN)), acc)
        low = tkc.dot(rows, tkc.load(down, (i, k, 0), (None, BK, R)), low)
    acc = tkc.dot(low.to(x.dtype), tkc.load(up, (i, 0, n), (None, R, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


@tkc.jit
def norm_between(x, w, gain, shift, v, y, BM: tkc.constexpr, H: tkc.constexpr, BK: tkc.constexpr):
    """Two layers with a layer norm between them: relu(norm(x w)) v."""
    m = tkc.program_id(0) * BM
    h = tkc.zeros((BM, H))
    for k in range(0, x.shape[1], BK):
        h = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(w, (k, 0), (BK, H)), h)
    mean = tkc.sum(h, 1) / H
    h -= mean[:, None]
    h *= tkc.rsqrt(tkc.sum(h * h, 1) / H + 1e-5)[:, None]
    h = h * tkc.load(gain, (0,), (H,))[None, :] + tkc.load(shift, (0,), (H,))[None, :]
    h = tkc.maximum(h, 0).to(x.dtype)
    for n in range(0, y.shape[1], 64):
        tkc.store(y, (m, n), tkc.dot(h, tkc.load(v, (0, n), (H, 64))).to(y.dtype))


@tkc.jit
def convolution_in_time(x, w, bias, y, TAPS: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr):
    """y[b, t] = silu(bias + sum over s of x[b, t + s - TAPS + 1] w[s]), causal."""
    t, n, b = tkc.program_id(0) * BM, tkc.program_id(1) * BN, tkc.program_id(2)
    acc = tkc.zeros((BM, BN))
    for s in range(TAPS):
        for c in range(0, x.shape[2], 64):
            rows = tkc.load(x, (b, t + s - (TAPS - 1), c), (None, BM, 64))
            acc = tkc.dot(rows, tkc.load(w, (s, c, n), (None, 64, BN)), acc)
    acc += tkc.load(bias, (n,), (BN,)).to(tkc.float32)[None, :]
    tkc.store(y[b], (t, n), (acc * tkc.sigmoid(acc)).to(y.dtype))


@tkc.jit
def gated_recurrence(x, u, h0, y, BM: tkc.constexpr, D: tkc.constexpr):
    """A GRU over time: x [T, 3, B, D] holds the inputs' parts; u [3, D, D]."""
    m = tkc.program_id(0) * BM
    h = tkc.load(h0, (m, 0), (BM, D)).to(tkc.float32)
    reset, update, new = (tkc.load(u, (i, 0, 0), (None, D, D)) for i in range(3))
    for t in range(x.shape[0]):
        xr, xz, xn = (
            tkc.load(x, (t, i, m, 0), (None, None, BM, D)).to(tkc.float32) for i in range(3)
        )
        state = h.to(u.dtype)
        r, z = tkc.sigmoid(xr + tkc.dot(state, reset)), tkc.sigmoid(xz + tkc.dot(state, update))
        n = tkc.tanh(xn + r * tkc.dot(state, new))
        h = (1 - z) * n + z * h
        tkc.store(y[t], (m, 0), h.to(y.dtype))


@tkc.jit
def fourier_256(xr, xi, fr, fi, tr, ti, yr, yi, ROWS: tkc.constexpr):
    """The Fourier transform of rows of 256 = 16 x 16: two products with the 16 x 16 transform, and
    factors between them.
    """
    m = tkc.program_id(0) * ROWS
    f, g = tkc.load(fr, (0, 0), (16, 16)), tkc.load(fi, (0, 0), (16, 16))
    a = tkc.load(xr, (m, 0), (ROWS, 256)).reshape(ROWS, 16, 16).permute(0, 2, 1)
    b = tkc.load(xi, (m, 0), (ROWS, 256)).reshape(ROWS, 16, 16).permute(0, 2, 1)
    a, b = a.reshape(ROWS * 16, 16), b.reshape(ROWS * 16, 16)
    r, i = tkc.dot(a, f) - tkc.dot(b, g), tkc.dot(a, g) + tkc.dot(b, f)
    c, d = tkc.load(tr, (0, 0), (16, 16)), tkc.load(ti, (0, 0), (16, 16))
    r, i = r.reshape(ROWS, 16, 16), i.reshape(ROWS, 16, 16)
    r, i = r * c - i * d, r * d + i * c
    a = r.permute(0, 2, 1).reshape(ROWS * 16, 16).to(xr.dtype)
    b = i.permute(0, 2, 1).reshape(ROWS * 16, 16).to(xr.dtype)
    r, i = tkc.dot(a, f) - tkc.dot(b, g), tkc.dot(a, g) + tkc.dot(b, f)
    r, i = r.reshape(ROWS, 16, 16).permute(0, 2, 1), i.reshape(ROWS, 16, 16).permute(0, 2, 1)
    tkc.store(yr, (m, 0), r.reshape(ROWS, 256).to(yr.dtype))
    tkc.store(yi, (m, 0), i.reshape(ROWS, 256).to(yi.dtype))


@tkc.jit
def winograd(x, u, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """F(2, 3) along time: x [T/2 + 1, 2, C], u [4, C, K] transformed weights, y [T/2, 2, K]."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    p, q, r, s = (tkc.zeros((BM, BN)) for _ in range(4))
    for k in range(0, x.shape[2], BK):
        a = tkc.load(x, (m, 0, k), (BM, None, BK))
        b = tkc.load(x, (m, 1, k), (BM, None, BK))
        c = tkc.load(x, (m + 1, 0, k), (BM, None, BK))
        d = tkc.load(x, (m + 1, 1, k), (BM, None, BK))
        p = tkc.dot(a - c, tkc.load(u, (0, k, n), (None, BK, BN)), p)
        q = tkc.dot(b + c, tkc.load(u, (1, k, n), (None, BK, BN)), q)
        r = tkc.dot(c - b, tkc.load(u, (2, k, n), (None, BK, BN)), r)
        s = tkc.dot(b - d, tkc.load(u, (3, k, n), (None, BK, BN)), s)
    tkc.store(y, (m, 0, n), (p + q + r).to(y.dtype)[:, None, :])
    tkc.store(y, (m, 1, n), (q - r - s).to(y.dtype)[:, None, :])


@tkc.jit
def reflections(v, t, a, K: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr):
    """a - v (t (v^T a)): a block of K Householder reflections on all columns of a."""
    n = tkc.program_id(0) * BN
    w = tkc.zeros((K, BN))
    for m in range(0, a.shape[0], BM):
        w = tkc.dot(tkc.load(v, (m, 0), (BM, K)).T, tkc.load(a, (m, n), (BM, BN)), w)
    w = tkc.dot(tkc.load(t, (0, 0), (K, K)), w.to(v.dtype)).to(v.dtype)
    for m in range(0, a.shape[0], BM):
        block = tkc.load(a, (m, n), (BM, BN)).to(tkc.float32)
        block -= tkc.dot(tkc.load(v, (m, 0), (BM, K)), w)
        tkc.store(a, (m, n), block.to(a.dtype))


@tkc.jit
def orthogonalized(g, y, STEPS: tkc.constexpr, N: tkc.constexpr):
    """Newton and Schulz's iteration of a matrix of N x N, as the optimizer Muon takes it."""
    i = tkc.program_id(0)
    x = tkc.load(g, (i, 0, 0), (None, N, N)).to(tkc.float32)
    x = x / (tkc.sqrt(tkc.sum(x * x)) + 1e-7)
    for _ in range(STEPS):
        h = x.to(g.dtype)
        a = tkc.dot(h, h.T).to(g.dtype)
        b = -4.775 * a.to(tkc.float32) + 2.0315 * tkc.dot(a, a)
        x = 3.4445 * x + tkc.dot(b.to(g.dtype), h)
    tkc.store(y[i], (0, 0), x.to(y.dtype))


@tkc.jit
def weight_and_bias_gradient(
    x, dy, dw, db, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr
):
    """dw = x^T dy and db = the sum of dy's rows, by the programs of the first row of blocks."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, total = tkc.zeros((BM, BN)), tkc.zeros((BN,))
    for k in range(0, x.shape[0], BK):
        grad = tkc.load(dy, (k, n), (BK, BN))
        acc = tkc.dot(tkc.load(x, (k, m), (BK, BM)).T, grad, acc)
        total += tkc.sum(grad.to(tkc.float32), 0)
    tkc.store(dw, (m, n), acc.to(dw.dtype))
    if tkc.program_id(0) == 0:
        tkc.store(db, (n,), total)


@case("adapters by blocks of rows")
def _(o: Operands) -> Called:
    m, n, k, r, count = o.of(8192, 256), o.of(4096, 136), o.of(4096, 128), 32, 8
    x, w = o.normal(m, k), o.normal(k, n, scale=0.02)
    down, up = o.normal(count, k, r, scale=0.02), o.normal(count, r, n)
    which, y = o.integers(0, count, over(m, 128)), o.empty(m, n)

    def function(x: Any, w: Any, down: Any, up: Any, which: Any) -> Any:
        low = o.torch.bmm(x.view(-1, 128, k), down[which.long()])
        return x @ w + o.torch.bmm(low, up[which.long()]).view(m, n)

    return Called(
        lambda: adapters[over(m, 128), over(n, 128)](x, w, down, up, which, y, 128, 128, 64, r),
        (y,),
        function,
        (x, w, down, up, which),
        2 * m * n * (k + r) + 2 * m * k * r,
    )


@case("two layers with a norm between")
def _(o: Operands) -> Called:
    m, k, h, n = o.of(32768, 200), o.of(1024, 128), 256, o.of(1024, 128)
    x, w, v = o.normal(m, k), o.normal(k, h, scale=0.05), o.normal(h, n, scale=0.05)
    gain, shift, y = o.floats(h), o.floats(h), o.empty(m, n)

    def function(x: Any, w: Any, gain: Any, shift: Any, v: Any) -> Any:
        f = o.torch.nn.functional
        middle = f.layer_norm((x @ w).to(gain.dtype), (h,), gain, shift)
        return f.relu(middle).to(x.dtype) @ v

    return Called(
        lambda: norm_between[over(m, 128)](x, w, gain, shift, v, y, 128, h, 64),
        (y,),
        function,
        (x, w, gain, shift, v),
        2 * m * h * (k + n),
        tolerance=2e-2,
    )


@case("convolution in time")
def _(o: Operands) -> Called:
    b, t, c, n, taps = o.of(8, 2), o.of(4096, 150), o.of(512, 128), o.of(512, 72), 5
    x, w, bias = o.normal(b, t, c), o.normal(taps, c, n, scale=0.02), o.normal(n)
    y = o.empty(b, t, n)

    def function(x: Any, w: Any, bias: Any) -> Any:
        f = o.torch.nn.functional
        h = f.conv1d(f.pad(x.transpose(1, 2), (taps - 1, 0)), w.permute(2, 1, 0), bias)
        return f.silu(h).transpose(1, 2)

    return Called(
        lambda: convolution_in_time[over(t, 128), over(n, 128), b](x, w, bias, y, taps, 128, 128),
        (y,),
        function,
        (x, w, bias),
        2 * b * t * c * n * taps,
    )


@case("gated recurrence")
def _(o: Operands) -> Called:
    t, b, d = o.of(512, 5), o.of(8192, 70), 64
    x, u, h = o.normal(t, 3, b, d), o.normal(3, d, d, scale=0.1), o.normal(b, d)
    y = o.empty(t, b, d)

    def function(x: Any, u: Any, h: Any) -> Any:
        out = []
        for part in x:
            r, z = o.torch.sigmoid(part[0] + h @ u[0]), o.torch.sigmoid(part[1] + h @ u[1])
            h = (1 - z) * o.torch.tanh(part[2] + r * (h @ u[2])) + z * h
            out.append(h)
        return o.torch.stack(out)

    return Called(
        lambda: gated_recurrence[over(b, 64)](x, u, h, y, 64, d),
        (y,),
        function,
        (x, u, h),
        6 * t * b * d * d,
        tolerance=2e-2,
    )


@case("Fourier transform of 256")
def _(o: Operands) -> Called:
    m, rows_ = o.of(65536, 20), 8
    x = o.normal(m, 256, dtype="float16"), o.normal(m, 256, dtype="float16")
    y = o.empty(m, 256, dtype="float16"), o.empty(m, 256, dtype="float16")
    at = o.torch.arange(16, device=o.device).double()
    angle = -2 * math.pi * at[:, None] * at[None, :]
    tables = [
        f(angle / n).to(t)
        for n, t in ((16, x[0].dtype), (256, o.torch.float32))
        for f in (o.torch.cos, o.torch.sin)
    ]

    def function(a: Any, b: Any) -> Any:
        whole = o.torch.complex(*((a, b) if a.dtype.itemsize == 8 else (a.float(), b.float())))
        found = o.torch.fft.fft(whole)
        return found.real, found.imag

    return Called(
        lambda: fourier_256[over(m, rows_)](*x, *tables, *y, rows_),
        y,
        function,
        x,
        16 * m * 256 * 16,
    )


@case("Winograd's convolution in time")
def _(o: Operands) -> Called:
    t, c, n = o.of(16384, 200), o.of(512, 64), o.of(512, 72)
    x, u, y = o.normal(t // 2 + 1, 2, c), o.normal(4, c, n, scale=0.05), o.empty(t // 2, 2, n)

    def function(x: Any, u: Any) -> Any:
        a, b, c, d = x[:-1, 0], x[:-1, 1], x[1:, 0], x[1:, 1]
        p, q, r, s = (a - c) @ u[0], (b + c) @ u[1], (c - b) @ u[2], (b - d) @ u[3]
        return o.torch.stack((p + q + r, q - r - s), 1)

    return Called(
        lambda: winograd[over(t // 2, 64), over(n, 128)](x, u, y, 64, 128, 64),
        (y,),
        function,
        (x, u),
        4 * t * c * n,
        tolerance=2e-2,
    )


@case("Householder reflections")
def _(o: Operands) -> Called:
    m, n, k = o.of(2048, 200), o.of(16384, 100), 64
    v, t, a = o.normal(m, k, scale=0.03), o.normal(k, k, scale=0.1), o.normal(m, n)
    first = a.clone()
    return Called(
        lambda: reflections[over(n, 64)](v, t, a, k, 128, 64),
        (a,),
        lambda v, t, a: a - v @ (t @ (v.T @ a)),
        (v, t, first),
        4 * m * n * k,
        reset=lambda: a.copy_(first),
    )


@case("orthogonalized matrices")
def _(o: Operands) -> Called:
    count, n, steps = o.of(1056, 3), 128, 5
    g, y = o.normal(count, n, n), o.empty(count, n, n)

    def function(g: Any) -> Any:
        x = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
        for _ in range(steps):
            a = x @ x.mT
            x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
        return x

    return Called(
        lambda: orthogonalized[count](g, y, steps, n),
        (y,),
        function,
        (g,),
        6 * steps * count * n**3,
        tolerance=5e-2,
    )


@case("gradients of weights and bias")
def _(o: Operands) -> Called:
    rows_, m, n = o.of(8192, 200), o.of(4096, 136), o.of(4096, 136)
    x, dy = o.normal(rows_, m), o.normal(rows_, n)
    dw, db = o.empty(m, n), o.empty(n, dtype="float32")
    return Called(
        lambda: weight_and_bias_gradient[over(m, 128), over(n, 128)](x, dy, dw, db, 128, 128, 64),
        (dw, db),
        lambda x, dy: (x.T @ dy, dy.sum(0)),
        (x, dy),
        2 * rows_ * m * n,
    )
