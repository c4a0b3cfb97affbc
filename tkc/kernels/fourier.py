"""Fourier transforms and long convolutions as products with Monarch's factors.

    x of N = n₁ n₂ elements as a matrix X [n₁, n₂], F the matrix of a transform over √n:
    B = ((F₁ X) ∘ T) F₂,  T[k, j] = exp(−2πi j k / N),  √N B[k₁, k₂] is element k₁ + n₁ k₂ of it
    X = F̄₁ ((B F̄₂) ∘ T̄)                                                  the inverse of that

A convolution multiplies B with that of the filter in between, in whatever order its elements are
(Fu et al., 2024). Two rows that have one filter are the two parts of one complex row. Longer rows
than a program holds are cut once more, X [m, N / m]: a launch before transforms and twists columns,
one behind does the inverse, and rows of N / m are what a program has. Factors over √n keep numbers
as large as they are, so that short floats are multiplied in float16; float32 by three products of
tf32.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, prod, sqrt

import tkc
from tkc.kernels.arrays import Array, contiguous, dtype_of, empty, floats, matrix, power, same_shape
from tkc.kernels.operator import operator

LEAST = 256  # elements of a transform
MOST = {True: 1 << 17, False: 1 << 14}  # of short floats, of float32
HELD = {True: 4096, False: 512}  # that a program's registers hold
HELD_BESIDE_SUMS = {True: 2048, False: 512}
OF_FOUR_WARPS = {True: 1024, False: 512}
MIN_SIDE, SIDES = 16, (16, 64)  # of a factor; rows and columns that a program makes of it
COLUMNS = {True: 64, False: 16}  # of a program that transforms columns
Complex = tuple


# ---- complex tiles: pairs of real ones -----------------------------------------------------------
def _dot(a, b, SHORT):
    """The product of two complex matrices."""
    kind = tkc.float16 if SHORT else tkc.float32
    (p, q), (r, s) = ((x.to(kind), y.to(kind)) for x, y in (a, b))
    how = "ieee" if SHORT else "tf32x3"
    re = tkc.dot(-q, s, tkc.dot(p, r, precision=how), precision=how)
    return re, tkc.dot(q, r, tkc.dot(p, s, precision=how), precision=how)


def _times(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _conjugate(a, wanted=True):
    return (a[0], -a[1]) if wanted else a


def _forward(x, factors, SHORT, CONJUGATE=False):
    first, twist, second = (_conjugate(f, CONJUGATE) for f in factors)
    return _dot(_times(_dot(first, x, SHORT), twist), second, SHORT)


def _inverse(b, factors, SHORT):
    first, twist, second = map(_conjugate, factors)
    return _dot(first, _times(_dot(b, second, SHORT), twist), SHORT)


def _factors_of(re, im, N1, N2):
    """F₁, T and F₂ of a program's transform."""
    return [
        tuple(tkc.load(t[at], (0, 0), extents) for t in (re, im))
        for at, extents in ((0, (N1, N1)), (1, (N1, N2)), (2, (N2, N2)))
    ]


def _elements(N1, N2, pitch):
    """Where a row's elements are as a matrix."""
    return tkc.arange(N1)[:, None] * pitch + tkc.arange(N2)[None, :]


def _part(x, pair, row, i, length):
    """A row's elements i below a length, of the pair's image if there is one; else zeros."""
    there = pair < x.shape[0]
    source = x[tkc.where(there, pair, 0), row]
    inside = (i < length) & there
    return tkc.load(source.ptr + i * source.strides[0], mask=inside).to(tkc.float32)


def _put_part(x, pair, row, i, length, values):
    there = pair < x.shape[0]
    target = x[tkc.where(there, pair, 0), row]
    inside = (i < length) & there
    tkc.store(target.ptr + i * target.strides[0], values.to(x.dtype), mask=inside)


@tkc.jit
def _factor(re, im, n, scale, ROWS: tkc.constexpr, N: tkc.constexpr):
    """scale exp(−2πi r c / n) of a matrix."""
    row, column = tkc.program_id(0) * ROWS, tkc.program_id(1) * N
    r, c = (row + tkc.arange(ROWS))[:, None], (column + tkc.arange(N))[None, :]
    angle = (r * c % n).to(tkc.float32) * (-2 * pi) / n
    tkc.store(re, (row, column), tkc.cos(angle) * scale)
    tkc.store(im, (row, column), tkc.sin(angle) * scale)


@tkc.jit
def _filtered(
    re,
    im,
    filter_re,
    filter_im,
    t_re,
    t_im,
    out_re,
    out_im,
    length,
    CONJUGATE: tkc.constexpr,
    SHORT: tkc.constexpr,
    N1: tkc.constexpr,
    N2: tkc.constexpr,
):
    """A complex row times its filter, both transformed, and back."""
    row, pair, i = tkc.program_id(0), tkc.program_id(1), _elements(N1, N2, N2)
    factors = _factors_of(t_re, t_im, N1, N2)
    b = _forward(tuple(_part(x, pair, row, i, length) for x in (re, im)), factors, SHORT)
    f = tuple(tkc.load(x[row], (0, 0), (N1, N2)) for x in (filter_re, filter_im))
    y = _inverse(_times(b, _conjugate(f, CONJUGATE)), factors, SHORT)
    _put_part(out_re, pair, row, i, length, y[0])
    _put_part(out_im, pair, row, i, length, y[1])


@tkc.jit
def _correlated(
    re,
    im,
    grad_re,
    grad_im,
    t_re,
    t_im,
    out_re,
    out_im,
    length,
    kept,
    scale,
    SHORT: tkc.constexpr,
    N1: tkc.constexpr,
    N2: tkc.constexpr,
):
    """What the filter's gradient is: the sum over pairs of one, conjugate, times the other."""
    row, i, factors = tkc.program_id(0), _elements(N1, N2, N2), _factors_of(t_re, t_im, N1, N2)
    total = tkc.zeros((N1, N2)), tkc.zeros((N1, N2))
    for pair in tkc.range(0, re.shape[0]):
        x = _forward(tuple(_part(v, pair, row, i, length) for v in (re, im)), factors, SHORT)
        parts = tuple(_part(v, pair, row, i, length) for v in (grad_re, grad_im))
        more = _times(_conjugate(x), _forward(parts, factors, SHORT))
        total = total[0] + more[0], total[1] + more[1]
    y = _inverse(total, factors, SHORT)
    _put_part(out_re, 0, row, i, kept, y[0] * scale)
    _put_part(out_im, 0, row, i, kept, y[1] * scale)


@tkc.jit
def _spectrum(
    re,
    im,
    t_re,
    t_im,
    out_re,
    out_im,
    length,
    scale,
    m,
    CONJUGATE: tkc.constexpr,
    ORDERED: tkc.constexpr,
    SHORT: tkc.constexpr,
    N1: tkc.constexpr,
    N2: tkc.constexpr,
):
    """Transforms of rows: as a filter has them, or ORDERED as a transform gives them, where m rows
    are one.
    """
    row, i, factors = tkc.program_id(0), _elements(N1, N2, N2), _factors_of(t_re, t_im, N1, N2)
    x = tuple(_part(v, 0, row, i, length) for v in (re, im))
    b = _forward(x, factors, SHORT, CONJUGATE)
    if ORDERED:
        at = (tkc.arange(N1)[:, None] + tkc.arange(N2)[None, :] * N1) * m + row % m
        for target, values in ((out_re, b[0]), (out_im, b[1])):
            tkc.store(target[row // m].ptr + at, values * scale)
    else:
        tkc.store(out_re[row], (0, 0), b[0] * scale)
        tkc.store(out_im[row], (0, 0), b[1] * scale)


@tkc.jit
def _columns(
    re,
    im,
    t_re,
    t_im,
    out_re,
    out_im,
    length,
    INVERSE: tkc.constexpr,
    CONJUGATE: tkc.constexpr,
    SHORT: tkc.constexpr,
    M: tkc.constexpr,
    N: tkc.constexpr,
):
    """Columns of rows [M, inner]: transformed and twisted, or the inverse."""
    column, row, pair = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2)
    inner = t_re.shape[2]
    i = _elements(M, N, inner) + column
    f = tuple(tkc.load(t[0], (0, 0), (M, M)) for t in (t_re, t_im))
    twist = tuple(tkc.load(t[1], (0, column), (M, N)) for t in (t_re, t_im))
    f, twist = (_conjugate(v, INVERSE or CONJUGATE) for v in (f, twist))
    x = tuple(_part(v, pair, row, i, M * inner if INVERSE else length) for v in (re, im))
    y = _dot(f, _times(x, twist), SHORT) if INVERSE else _times(_dot(f, x, SHORT), twist)
    for target, values in ((out_re, y[0]), (out_im, y[1])):
        _put_part(target, pair, row, i, length if INVERSE else M * inner, values)


# --------------------------------------------------------------------------------------------------
class Transform:
    """How rows of n elements, a power of two, are transformed: m columns' launch if it is more than
    1, then n₁ x n₂ in a program. Its tables are made when it is.
    """

    def __init__(self, like: Array, n: int, short: bool, held: dict[bool, int]):
        self.n, self.short = n, short
        self.m = 1 if n <= held[short] else max(MIN_SIDE, n // held[short])
        self.inner = n // self.m
        self.n1 = 1 << (self.inner.bit_length() // 2)
        self.n2 = self.inner // self.n1
        self.like = like
        self.inside = self._tables(self.n1, self.n2, 3)
        self.around = self._tables(self.m, self.inner, 2) if self.m > 1 else None

    def _tables(self, rows: int, columns: int, count: int) -> tuple[Array, Array]:
        """F of `rows`, the twist, and F of `columns`, in one array each part."""
        side = max(rows, columns)
        found = tuple(empty(self.like, (count, rows, side), "float32") for _ in range(2))
        shapes = ((rows, rows), (rows, columns), (columns, columns))[:count]
        for at, (r, c) in enumerate(shapes):
            n, scale = (rows * columns, 1.0) if at == 1 else (r, 1 / sqrt(r))
            parts = (t[at, :r, :c] for t in found)
            _factor[tkc.cdiv(r, SIDES[0]), tkc.cdiv(c, SIDES[1])](
                *parts, n, scale, ROWS=SIDES[0], N=SIDES[1]
            )
        return found

    @property
    def options(self) -> dict:
        """Of a program that holds rows."""
        warps = {"num_warps": 8} if self.inner > OF_FOUR_WARPS[self.short] else {}
        return {"SHORT": self.short, "N1": self.n1, "N2": self.n2, **warps}

    def cut(self, parts: Complex, length: int, conjugate: bool = False) -> tuple[Complex, int]:
        """Rows [images, rows, elements] of a program's length, and how many elements they have."""
        if self.m == 1:
            return parts, length
        images, rows = parts[0].shape[:2]
        made = tuple(empty(self.like, (images, rows, self.n), "float32") for _ in range(2))
        self._columns(parts, made, length, False, conjugate)
        return tuple(self.rows_of(v) for v in made), self.inner

    def joined(self, parts: Complex, out: Complex, length: int) -> None:
        """The inverse, into rows of the results."""
        images, rows = parts[0].shape[0], parts[0].shape[1] // self.m
        whole = tuple(v.reshape((images, rows, self.n)) for v in parts)
        self._columns(whole, out, length, True, False)

    def rows_of(self, whole: Array) -> Array:
        """Rows of programs of whole rows."""
        images, rows = whole.shape[:2]
        return whole.reshape((images, rows * self.m, self.inner))

    def made(self, images: int, rows: int) -> Complex:
        """Rows of programs that are joined later."""
        shape = (images, rows * self.m, self.inner)
        return tuple(empty(self.like, shape, "float32") for _ in range(2))

    def _columns(
        self, parts: Complex, out: Complex, length: int, inverse: bool, conjugate: bool
    ) -> None:
        assert self.around is not None
        (images, rows), columns = out[0].shape[:2], COLUMNS[self.short]
        _columns[tkc.cdiv(self.inner, columns), rows, images](
            *parts,
            *self.around,
            *out,
            length,
            INVERSE=inverse,
            CONJUGATE=conjugate,
            SHORT=self.short,
            M=self.m,
            N=columns,
        )

    def spectrum(self, rows: Array, length: int) -> Complex:
        """Of filters [rows, length], as programs multiply them."""
        parts, held = self.cut((rows[None], rows[None][:0]), length)
        count = parts[0].shape[1]
        out = tuple(empty(self.like, (count, self.n1, self.n2), "float32") for _ in range(2))
        _spectrum[count](
            *parts,
            *self.inside,
            *out,
            held,
            sqrt(self.n),
            self.m,
            CONJUGATE=False,
            ORDERED=False,
            **self.options,
        )
        return out


def _pairs(x: Array) -> Complex:
    """Every second image as the real part, the others as the imaginary one."""
    return x[0::2], x[1::2]


def _checked(u: Array, k: Array, causal: bool) -> int:
    """Elements of the transform. Raises LaunchError where shapes do not fit."""
    floats(u, k)
    if len(u.shape) != 3 or len(k.shape) != 2 or k.shape[0] != u.shape[1]:
        raise tkc.LaunchError(
            "fft_conv: u is [batch, channels, length] and k [channels, length], got"
            f" {list(u.shape)} and {list(k.shape)}"
        )
    length = u.shape[2]
    if not 1 <= k.shape[1] <= max(length, 1):
        raise tkc.LaunchError(
            f"fft_conv: k has 1 to {length} elements, as many as u at most, got {k.shape[1]}"
        )
    n = max(LEAST, power(2 * length)) if causal else length
    most = MOST[dtype_of(u) != "float32"]
    if n > most or n < LEAST or n != power(n):
        raise tkc.LaunchError(
            f"fft_conv: a circular length is a power of two from {LEAST} to {most}, a causal one at"
            f" most {most // 2}, got {length}; pad u, or cut it in parts"
        )
    return n


@operator
def fft_conv(u: Array, k: Array, causal: bool = True) -> Iterator[Array]:
    """y[b, d, t] = Σ_s k[d, s] u[b, d, t − s], of u's element type.

    u: [batch, channels, length]; k: [channels, at most length]. causal: what is before u is 0, any
    length up to 2^16 (float32: 2^13); else u goes round, its length a power of two from 256 to
    twice that. Short floats are multiplied in float16. Differentiable with torch. Raises
    LaunchError where shapes do not fit.
    """
    n = _checked(u, k, causal)
    out = empty(u, u.shape)
    yield out
    if 0 not in u.shape:
        _convolve(contiguous(u), contiguous(k), out, n, False)


def _convolve(u: Array, k: Array, out: Array, n: int, conjugate: bool) -> None:
    """Launches a convolution, or the correlation that is the gradient of u."""
    how, length = Transform(u, n, dtype_of(u) != "float32", HELD), u.shape[2]
    spectrum = how.spectrum(k, k.shape[1])
    parts, held = how.cut(_pairs(u), length)
    images, rows = parts[0].shape[:2]
    results = _pairs(out) if how.m == 1 else how.made(images, u.shape[1])
    _filtered[rows, images](
        *parts, *spectrum, *how.inside, *results, held, CONJUGATE=conjugate, **how.options
    )
    if how.m > 1:
        how.joined(results, _pairs(out), length)


@operator
def fft_conv_backward(
    grad: Array, u: Array, k: Array, causal: bool = True
) -> Iterator[tuple[Array, Array]]:
    """The gradients of fft_conv's u and k."""
    n = _checked(u, k, causal)
    same_shape(grad=grad, u=u)
    du, dk = empty(u, u.shape), empty(k, k.shape)
    yield du, dk
    if 0 in u.shape:
        return
    grad, u = contiguous(grad), contiguous(u)
    _convolve(grad, contiguous(k), du, n, True)
    how, length = Transform(u, n, dtype_of(u) != "float32", HELD_BESIDE_SUMS), u.shape[2]
    (parts, held), (grads, _) = (how.cut(_pairs(x), length) for x in (u, grad))
    rows, scale = parts[0].shape[1], sqrt(n)
    whole = dk[None]
    results = (whole, whole[:0]) if how.m == 1 else how.made(1, u.shape[1])
    kept = min(held, k.shape[1]) if how.m == 1 else held
    _correlate(how, (parts, grads, results), rows, (held, kept), scale)
    if how.m > 1:
        how.joined(results, (whole, whole[:0]), k.shape[1])


def _correlate(
    how: Transform, arrays: tuple, rows: int, lengths: tuple[int, int], scale: float
) -> None:
    parts, grads, results = arrays
    _correlated[rows](*parts, *grads, *how.inside, *results, *lengths, scale, **how.options)


@fft_conv.backward(saves="u k causal")
def _(saved, grad):
    du, dk = fft_conv_backward(grad.to(saved.u.dtype), saved.u, saved.k, saved.causal)
    return du, dk if saved.needs["k"] else None, None


@operator
def fft(
    real: Array, imaginary: Array | None = None, inverse: bool = False
) -> Iterator[tuple[Array, Array]]:
    """The discrete Fourier transform along the last axis, or its inverse: real and imaginary part,
    float32 [..., N] for N a power of two from 256 to 2^17 (of float32: 2^14). Short floats are
    multiplied in float16.
    Raises LaunchError for other lengths.
    """
    floats(real, imaginary)
    same_shape(real=real, imaginary=imaginary)
    n = real.shape[-1] if len(real.shape) else 0
    most = MOST[dtype_of(real) != "float32"]
    if n != power(n) or not LEAST <= n <= most:
        raise tkc.LaunchError(
            f"fft: a row has a power of two from {LEAST} to {most}, got {n}; pad it"
        )
    out = tuple(empty(real, real.shape, "float32") for _ in range(2))
    yield out
    rows = matrix(contiguous(real))[None]
    other = rows[:0] if imaginary is None else matrix(contiguous(imaginary))[None]
    if not rows.shape[1]:
        return
    how = Transform(rows, n, dtype_of(real) != "float32", HELD)
    parts, held = how.cut((rows, other), n, inverse)
    count = prod(parts[0].shape[:2])
    _spectrum[count](
        *parts,
        *how.inside,
        *(matrix(v) for v in out),
        held,
        1 / sqrt(n) if inverse else sqrt(n),
        how.m,
        CONJUGATE=inverse,
        ORDERED=True,
        **how.options,
    )
