"""Kernels of many kinds, as users write them, with no schedule in the program, and the arguments
that each is compiled for: what `python -m benchmarks.breadth` compiles, beside the products of
plain_programs.py, the recurrences of plain_recurrences.py and the gradients of plain_gradients.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tkc
from benchmarks import plain_gradients, plain_programs, plain_recurrences
from tkc.runtime.jit import JitFunction


@tkc.jit
def int8_scaled(a, w, sa, sw, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """A product of int8 with a scale per row and per channel; w [N, K]."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.int32)
    for k in range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(w, (n, k), (BN, BK)).T, acc)
    out = acc.to(tkc.float32) * tkc.load(sa, (m,), (BM,))[:, None]
    tkc.store(c, (m, n), (out * tkc.load(sw, (n,), (BN,))[None, :]).to(c.dtype))


@tkc.jit
def int4_joined(
    a, packed, scales, c, G: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr
):
    """Weights of 4 bits, two rows a byte; G rows share a scale."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        p = tkc.load(packed, (k // 2, n), (BK // 2, BN))
        low, high = (p & 0xF).to(tkc.int8) - 8, (p >> 4).to(tkc.int8) - 8
        w = tkc.join(low, high).permute(0, 2, 1).reshape(BK, BN)
        s = tkc.load(scales, (k // G, n), (None, BN))
        w = (w.to(tkc.float32) * s.to(tkc.float32)[None, :]).to(a.dtype)
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), w, acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def int4_gathered(
    a, packed, scales, c, G: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr
):
    """Weights of 4 bits, eight rows in 32 bits, each gathered and shifted (AWQ, GPTQ)."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    rn, rk = n + tkc.arange(0, BN), tkc.arange(0, BK)
    acc = tkc.zeros((BM, BN))
    shift = (rk % 8 * 4)[:, None]
    for k in range(0, a.shape[1], BK):
        at = packed.ptr + ((k + rk) // 8)[:, None] * packed.strides[0] + rn[None, :]
        q = tkc.load(at, mask=(rn < c.shape[1])[None, :])
        w = ((q >> shift) & 0xF) - 8
        s = tkc.load(scales, (k // G, n), (None, BN))
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), w.to(a.dtype) * s[None, :], acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def convolution(
    x,
    w,
    y,
    R: tkc.constexpr,
    S: tkc.constexpr,
    PAD: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """Implicit product by pointers: x [N, H, W, C], w [R, S, C, K], y [N, P, Q, K]."""
    images, height, width, channels = x.shape
    _, P, Q, K = y.shape
    rm, rn = tkc.program_id(0) * BM + tkc.arange(0, BM), tkc.program_id(1) * BN + tkc.arange(0, BN)
    image, p, q = rm // (P * Q), rm // Q % P, rm % Q
    acc, rc = tkc.zeros((BM, BN)), tkc.arange(0, BK)
    for rs in range(R * S):
        h, column = p + rs // S - PAD, q + rs % S - PAD
        inside = (h >= 0) & (h < height) & (column >= 0) & (column < width) & (image < images)
        base = ((image * height + h) * width + column) * channels
        for c in range(0, channels, BK):
            left = c + rc < channels
            a = tkc.load(
                x.ptr + base[:, None] + (c + rc)[None, :], mask=inside[:, None] & left[None, :]
            )
            b = tkc.load(
                w.ptr + (rs * channels + c + rc)[:, None] * K + rn[None, :],
                mask=left[:, None] & (rn < K)[None, :],
            )
            acc = tkc.dot(a, b, acc)
    at = y.ptr + rm[:, None] * K + rn[None, :]
    tkc.store(at, acc.to(y.dtype), mask=(rm < images * P * Q)[:, None] & (rn < K)[None, :])


@tkc.jit
def convolution_by_rows(
    x,
    w,
    y,
    height,
    width,
    P,
    Q,
    R: tkc.constexpr,
    S: tkc.constexpr,
    PAD: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """The same by rows of x [N H W, C] that a tile of numbers names; -1 reads as zero."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    rm = m + tkc.arange(BM)
    image, p, q = rm // (P * Q), rm // Q % P, rm % Q
    channels = x.shape[1]
    acc = tkc.zeros((BM, BN))
    for k in range(0, R * S * channels, BK):
        rs, c = k // channels, k % channels
        h, column = p + rs // S - PAD, q + rs % S - PAD
        inside = (h >= 0) & (h < height) & (column >= 0) & (column < width)
        row = tkc.where(inside, (image * height + h) * width + column, -1)
        acc = tkc.dot(tkc.load(x, (row, c), (BM, BK)), tkc.load(w, (k, n), (BK, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


@tkc.jit
def sinkhorn(a, b, scores, u, steps, M: tkc.constexpr, N: tkc.constexpr):
    """A loop of products: u = a / (K v), v = b / (K^T u), for 64 columns of u and v at once."""
    at = tkc.program_id(0)
    kernel = tkc.load(scores, (at, 0, 0), (None, M, N))
    wanted = tkc.load(a, (at, 0, 0), (None, M, 64)).to(tkc.float32)
    given = tkc.load(b, (at, 0, 0), (None, N, 64)).to(tkc.float32)
    left, right = tkc.full((M, 64), 1.0), tkc.full((N, 64), 1.0)
    for _ in range(steps):
        left = wanted / tkc.dot(kernel, right.to(scores.dtype))
        right = given / tkc.dot(kernel.T, left.to(scores.dtype))
    tkc.store(u[at], (0, 0), left)


@tkc.jit
def gram_schmidt(q, x, y, M: tkc.constexpr, N: tkc.constexpr):
    """A block of columns made orthogonal to those before it: x - Q (Q^T x), block by block."""
    panel = tkc.program_id(0)
    block = tkc.load(x, (panel, 0, 0), (None, M, N)).to(tkc.float32)
    for j in range(0, q.shape[2], 64):
        basis = tkc.load(q, (panel, 0, j), (None, M, 64))
        share = tkc.dot(basis.T, block.to(q.dtype))
        block = block - tkc.dot(basis, share.to(q.dtype))
    tkc.store(y[panel], (0, 0), block.to(y.dtype))


@tkc.jit
def contraction(t, s, y, P: tkc.constexpr, Q: tkc.constexpr, BN: tkc.constexpr):
    """y[i j, n] = sum over k, l of t[i, k, j, l] s[k, l, n]: tensors of rank 4."""
    i, j = tkc.program_id(0) * P, tkc.program_id(1) * Q
    n = tkc.program_id(2) * BN
    acc = tkc.zeros((P * Q, BN))
    for k in range(t.shape[1]):
        for e in range(0, t.shape[3], 64):
            block = tkc.load(t, (i, k, j, e), (P, None, Q, 64)).reshape(P * Q, 64)
            acc = tkc.dot(block, tkc.load(s, (k, e, n), (None, 64, BN)), acc)
    tkc.store(y, (i, j, n), acc.to(y.dtype).reshape(P, Q, BN))


@tkc.jit
def perceptron(x, w, v, y, BM: tkc.constexpr, H: tkc.constexpr, D: tkc.constexpr):
    """Two products in one kernel: gelu(x W) V, the middle a part of its columns at a time."""
    m = tkc.program_id(0) * BM
    acc = tkc.zeros((BM, D))
    for j in range(0, w.shape[1], H):
        hidden = tkc.zeros((BM, H))
        for k in range(0, x.shape[1], 64):
            block = tkc.load(x, (m, k), (BM, 64))
            hidden = tkc.dot(block, tkc.load(w, (k, j), (64, H)), hidden)
        hidden = 0.5 * hidden * (1 + tkc.erf(hidden * 0.7071067811865476))
        acc = tkc.dot(hidden.to(x.dtype), tkc.load(v, (j, 0), (H, D)), acc)
    tkc.store(y, (m, 0), acc.to(y.dtype))


@tkc.jit
def bilinear(x, w, z, keep, y, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """x W z^T where a mask in memory says so: two products of which one feeds the other."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    left = tkc.zeros((BM, D))
    for k in range(0, x.shape[1], 64):
        left = tkc.dot(tkc.load(x, (m, k), (BM, 64)), tkc.load(w, (k, 0), (64, D)), left)
    scores = tkc.dot(left.to(x.dtype), tkc.load(z, (n, 0), (BN, D)).T)
    here = tkc.load(keep, (m, n), (BM, BN)) != 0
    tkc.store(y, (m, n), tkc.where(here, scores, 0.0).to(y.dtype))


@tkc.jit
def under_conditions(a, b, table, y, BM: tkc.constexpr, BN: tkc.constexpr):
    """A block-sparse product: a table in memory says which steps there are."""
    row, n = tkc.program_id(0), tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], 64):
        if table[row, k // 64] != 0:
            x = tkc.load(a, (row * BM, k), (BM, 64))
            acc = tkc.dot(x, tkc.load(b, (k, n), (64, BN)), acc)
    tkc.store(y, (row * BM, n), acc.to(y.dtype))


@tkc.jit
def until_converged(a, x, y, tolerance, M: tkc.constexpr):
    """A while loop round a dot: Newton's iteration for an inverse, until it is close."""
    at = tkc.program_id(0)
    matrix = tkc.load(a, (at, 0, 0), (None, M, M))
    inverse = tkc.load(x, (at, 0, 0), (None, M, M)).to(tkc.float32)
    i = tkc.arange(M)
    unit = tkc.where(i[:, None] == i[None, :], 1.0, 0.0)
    error, left = tolerance + 1.0, 30
    while (error > tolerance) & (left > 0):
        rest = unit - tkc.dot(inverse.to(a.dtype), matrix)
        inverse = inverse + tkc.dot(rest.to(a.dtype), inverse.to(a.dtype))
        error, left = tkc.max(tkc.max(tkc.abs(rest), axis=1), axis=0), left - 1
    tkc.store(y[at], (0, 0), inverse)


@tkc.jit
def after_signals(a, b, c, ready, done, BM: tkc.constexpr, BN: tkc.constexpr):
    """A product that waits for the program that makes its rows, and says when a tile is there."""
    row, n = tkc.program_id(0), tkc.program_id(1) * BN
    while tkc.load(ready.ptr + row, sem="acquire") == 0:
        pass
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], 64):
        x = tkc.load(a, (row * BM, k), (BM, 64))
        acc = tkc.dot(x, tkc.load(b, (k, n), (64, BN)), acc)
    tkc.store(c, (row * BM, n), acc.to(c.dtype))
    tkc.atomic_add(done.ptr + row, 1, sem="release")


@tkc.jit
def recurrent(x, w, r, h, BM: tkc.constexpr, D: tkc.constexpr):
    """A recurrent network's layer: h = tanh(x W + h R), step by step, the state in the loop."""
    m = tkc.program_id(0) * BM
    recur, weights = tkc.load(r, (0, 0), (D, D)), tkc.load(w, (0, 0), (D, D))
    state = tkc.zeros((BM, D), x.dtype)
    for t in range(x.shape[0]):
        total = tkc.dot(tkc.load(x, (t, m, 0), (None, BM, D)), weights)
        state = tkc.tanh(tkc.dot(state, recur, total)).to(x.dtype)
        tkc.store(h[t], (m, 0), state)


@dataclass(frozen=True)
class Kind:
    """A kernel and what it is compiled for: arguments (arrays as types and extents), grid."""

    name: str
    kernel: JitFunction
    arguments: tuple[Any, ...]
    grid: tuple[int, ...]


def _halves(*shape: int) -> str:
    return f"f16{list(shape)}"


def _floats(*shape: int) -> str:
    return f"f32{list(shape)}"


def _products() -> Iterator[Kind]:
    n, bn = 4096, 256
    square = (_halves(n, n),) * 3
    tiles = (n // plain_programs.BM) * (n // bn)
    numbers = (n, n, n, plain_programs.BM, bn, plain_programs.BK, 8)
    yield Kind("product by pointers", plain_programs.by_pointers, (*square, *numbers), (tiles,))
    wrapped = (*square, n, n, n, bn, 8)
    yield Kind("product by pointers, modulo", plain_programs.wrapped, wrapped, (tiles,))
    deep = (_halves(1024, 16384), _halves(16384, 1024), _floats(1024, 1024))
    yield Kind("split-K by atomics", plain_programs.split_k, (*deep, 8, 128), (8, 8, 8))
    work = (64 * 256, 64 * 256 // 132 + 1, 128)
    yield Kind("stream-K by atomics", plain_programs.stream_k, (*deep, *work), (132,))
    counted = (*deep, "i32[1]", 64, 128)
    yield Kind("tiles from a counter", plain_programs.by_counter, counted, (132,))
    bytes_ = (f"i8[{n}, {n}]", f"i8[{n}, {n}]", _floats(n), _floats(n), f"bf16[{n}, {n}]")
    yield Kind("int8, scaled", int8_scaled, (*bytes_, 128, 128, 64), (32, 32))
    four = (64, 128, 128, 64)
    joined = (_halves(n, n), f"u8[{n // 2}, {n}]", _halves(n // 64, n), _halves(n, n), *four)
    yield Kind("int4, joined", int4_joined, joined, (32, 32))
    gathered = (_halves(n, n), f"i32[{n // 8}, {n}]", _halves(n // 64, n), _halves(n, n), *four)
    yield Kind("int4, gathered", int4_gathered, gathered, (32, 32))


def _attention() -> Iterator[Kind]:
    heads, rows, d = 32, 2048, 128
    block, vector = _halves(heads, rows, d), _floats(heads, rows)
    given = (block,) * 4 + (vector,) * 2
    keys = (*given, block, block, "f32", 64, 128, d)
    yield Kind(
        "attention backward, dK dV", plain_gradients.gradients_of_keys, keys, (rows // 128, heads)
    )
    queries = (*given, block, "f32", 128, 64, d)
    yield Kind(
        "attention backward, dQ", plain_gradients.gradient_of_queries, queries, (rows // 128, heads)
    )
    added = (*given, _floats(heads, rows, d), block, block, "f32", 64, 128, d)
    yield Kind(
        "attention backward, dQ added", plain_gradients.gradients_added, added, (rows // 128, heads)
    )


def _convolutions() -> Iterator[Kind]:
    pixels, tile = 32 * 56 * 56, (3, 3, 1, 128, 128, 64)
    image = _halves(32, 56, 56, 256)
    grid = (pixels // 128, 2)
    by_pointers = (image, _halves(3, 3, 256, 256), image, *tile)
    yield Kind("convolution by pointers", convolution, by_pointers, grid)
    rows, weights = _halves(pixels, 256), _halves(9 * 256, 256)
    by_rows = (rows, weights, rows, 56, 56, 56, 56, *tile)
    yield Kind("convolution by rows", convolution_by_rows, by_rows, grid)


def _recurrences() -> Iterator[Kind]:
    states = "bf16[64, 4096, 128]"
    linear = (*(states,) * 4, "f32[64]", 64, 128, 64)
    yield Kind("linear attention", plain_recurrences.linear_attention, linear, (64, 2))
    heads, narrow = "bf16[8, 4096, 32, 64]", "bf16[8, 4096, 128]"
    scan = (heads, "f32[8, 4096, 32]", "f32[32]", narrow, narrow, heads, 64, 128, 64)
    yield Kind("state space", plain_recurrences.state_space, scan, (32, 8))
    layer = (_halves(512, 8448, 128), _halves(128, 128), _halves(128, 128))
    yield Kind("recurrent layer", recurrent, (*layer, _halves(512, 8448, 128), 64, 128), (132,))


def _others() -> Iterator[Kind]:
    wide, narrow = _halves(512, 128, 128), _halves(512, 128, 64)
    transport = (narrow, narrow, wide, _floats(512, 128, 64), 100, 128, 128)
    yield Kind("Sinkhorn", sinkhorn, transport, (512,))
    panels = (_halves(512, 128, 1024), narrow, narrow, 128, 64)
    yield Kind("Gram-Schmidt", gram_schmidt, panels, (512,))
    tensors = (_halves(64, 16, 128, 128), _halves(16, 128, 1024), _halves(64, 128, 1024))
    yield Kind("contraction of rank 4", contraction, (*tensors, 2, 64, 128), (32, 2, 8))
    layers = (_halves(8192, 512), _halves(512, 2048), _halves(2048, 128), _halves(8192, 128))
    yield Kind("perceptron", perceptron, (*layers, 128, 64, 128), (64,))
    form = (_halves(4096, 1024), _halves(1024, 128), _halves(4096, 128), "i8[4096, 4096]")
    yield Kind("masked bilinear", bilinear, (*form, _halves(4096, 4096), 128, 128, 128), (32, 32))
    sparse = (_halves(4096, 4096), _halves(4096, 4096), "i32[32, 64]", _halves(4096, 4096))
    yield Kind("under conditions", under_conditions, (*sparse, 128, 128), (32, 32))
    yield Kind("while", until_converged, (wide, wide, _floats(512, 128, 128), 1e-3, 128), (512,))
    signals = (*(_halves(4096, 4096),) * 3, "i32[32]", "i32[32]", 128, 128)
    yield Kind("waits and signals", after_signals, signals, (32, 32))


FAMILIES: tuple[Callable[[], Iterator[Kind]], ...] = (
    _products,
    _attention,
    _convolutions,
    _recurrences,
    _others,
)


def kinds() -> Iterator[Kind]:
    """All of them."""
    for family in FAMILIES:
        yield from family()
