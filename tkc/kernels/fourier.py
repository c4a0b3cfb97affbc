"""Fourier transforms and long convolutions as products with Monarch's factors.

    x of N = n₁ n₂ elements as a matrix X [n₁, n₂], F the matrix of a transform over √n:
    B = ((F₁ X) ∘ T) F₂,  T[k, j] = exp(−2πi j k / N),  √N B[k₁, k₂] is element k₁ + n₁ k₂ of it
    X = F̄₁ ((B F̄₂) ∘ T̄)                                                  the inverse of that

A convolution multiplies B with that of the filter in between, in whatever order its elements are
(Fu et al., 2024). Two rows that have one filter are the two parts of one complex row. Longer rows
than a program holds are cut once more, X [m, N / m]: a launch before transforms and twists columns,
one behind does the inverse, and rows of N / m are what a program has. Factors over √n keep numbers
as large as they are, so that short floats are multiplied in float16, by a power of two that makes
the greatest of a program about 1; float32 by three products of tf32.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import pi, sqrt

import tkc
from tkc.kernels.arrays import Array, contiguous, dtype_of, empty, floats, matrix, power, same_shape
from tkc.kernels.attention_blocks import has_wgmma
from tkc.kernels.blocks import PROGRAMS
from tkc.kernels.operator import operator

MIN_LENGTH = 256  # elements of a transform
MAX_LENGTH = {True: 1 << 17, False: 1 << 14}  # of short floats, of float32
# That a program's registers hold, and what four warps do: of short floats, of float32, and of short
# ones where tensor cores read what all programs share in shared memory. WHOLE: of a row that is not
# cut, which more warps hold without registers to spare.
HELD: dict[bool | str, int] = {True: 2048, False: 512, "wgmma": 4096}
WHOLE: dict[bool | str, int] = {**HELD, "wgmma": 8192}
HELD_BESIDE_SUMS: dict[bool | str, int] = {True: 2048, False: 512, "wgmma": 2048}
OF_FOUR_WARPS: dict[bool | str, int] = {True: 1024, False: 512, "wgmma": 4096}
MIN_SIDE, SIDES = 16, (16, 64)  # of a factor; rows and columns that a program makes of it
MIN_ROWS = {True: 64, False: 16}  # that tensor cores take best
COLUMNS = {True: 64, False: 16}  # of a program that transforms columns
POWERS_AT_ONCE = 2048  # elements of a row whose greatest is sought


# ---- complex tiles: pairs of real ones; factors: real part, imaginary one, and that negated ------
def _multiplied(SHORT):
    """In what products are, and how."""
    return (tkc.float16, "ieee") if SHORT else (tkc.float32, "tf32x3")


def _signed(factor, which, part):
    """A factor's matrix and what is multiplied with it; of one that is not there the opposite, and
    what is multiplied negated.
    """
    return (factor[3 - which], -part) if factor[which] is None else (factor[which], part)


def _from_left(factor, x, SHORT):
    """factor x"""
    kind, how = _multiplied(SHORT)
    r, s = (part.to(kind) for part in x)
    (minus, below), (im, beside) = _signed(factor, 2, s), _signed(factor, 1, r)
    real = tkc.dot(minus, below, tkc.dot(factor[0], r, precision=how), precision=how)
    return real, tkc.dot(im, beside, tkc.dot(factor[0], s, precision=how), precision=how)


def _from_right(x, factor, SHORT):
    """x factor"""
    kind, how = _multiplied(SHORT)
    r, s = (part.to(kind) for part in x)
    (minus, below), (im, beside) = _signed(factor, 2, s), _signed(factor, 1, r)
    real = tkc.dot(below, minus, tkc.dot(r, factor[0], precision=how), precision=how)
    return real, tkc.dot(beside, im, tkc.dot(s, factor[0], precision=how), precision=how)


def _times(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _power_over(most):
    """A power of two that makes a number about 1, and the opposite one, for all exponents."""
    exponent = most.to(tkc.int32, bitcast=True) & (255 << 23)
    exponent = tkc.minimum(tkc.maximum(exponent, 1 << 23), 253 << 23)
    down = ((254 << 23) - exponent).to(tkc.float32, bitcast=True)
    return down, exponent.to(tkc.float32, bitcast=True)


def _near_1(x, SHORT):
    """Complex numbers of which the greatest part is about 1, and what undoes that; None where
    nothing needs to be done.
    """
    if not SHORT:
        return x, None
    down, up = _power_over(tkc.max(tkc.maximum(abs(x[0]), abs(x[1]))))
    return _scaled(x, down), up


def _scaled(x, by):
    return x if by is None else (x[0] * by, x[1] * by)


def _conjugate(a, wanted=True):
    return (a[0], -a[1]) if wanted else a


def _conjugate_factor(factor, wanted=True):
    return (factor[0], factor[2], factor[1]) if wanted else factor


def _forward(x, factors, SHORT, CONJUGATE=False):
    """B, of the first rows of X, below which there are zeros."""
    (first, second), twist = (
        [_conjugate_factor(f, CONJUGATE) for f in factors[:2]],
        _conjugate(factors[2], CONJUGATE),
    )
    x, undo = _near_1(x, SHORT)
    b = _from_right(_times(_from_left(first, x, SHORT), twist), second, SHORT)
    return _scaled(b, undo)


def _inverse(b, factors, SHORT):
    """The first rows of X."""
    first, second = (_conjugate_factor(f) for f in factors[:2])
    b, undo = _near_1(b, SHORT)
    x = _times(_from_right(b, second, SHORT), _conjugate(factors[2]))
    turned = [None if f is None else f.T for f in first]  # F₁ is its transpose
    return _scaled(_from_left(turned, x, SHORT), undo)


def _factor_of(factor, extents):
    """A factor's matrices; of float32, which take registers, not the negated one."""
    found = [tkc.load(factor[i], (0, 0), extents) for i in range(2)]
    return *found, None if factor.dtype.bits == 32 else tkc.load(factor[2], (0, 0), extents)


def _factors_of(factors, twist, R, N1, N2):
    """F₁, of which R columns, F₂ and T of a program's transform."""
    first, second = (
        _factor_of(factors[at], extents) for at, extents in ((0, (N1, R)), (1, (N2, N2)))
    )
    return first, second, [tkc.load(twist[i], (0, 0), (N1, N2)) for i in range(2)]


def _source(x, other, image, part):
    """The array of real parts of an image, or of imaginary ones, and the number in it: of every
    second image, or in another array.
    """
    return (x, 2 * image + part) if other is None else ((x, other)[part], image)


def _elements(source, image, row, extents, column):
    """Where a row's elements are, as a matrix that begins at a column, and which there are. source:
    an array of rows and of how many elements one of the matrix has.
    """
    array, pitch, length = source
    there = image < array.shape[0]
    i = tkc.arange(extents[0])[:, None] * pitch + (column + tkc.arange(extents[1]))[None, :]
    line = array[tkc.where(there, image, 0), row]
    return line.ptr + i * line.strides[0], (i < length) & there


def _parts(x, other, image, row, extents, column, pitch, length):
    """A row's elements below a length, as a matrix; zeros where there are none."""
    found = []
    for part in range(2):
        array, at = _source(x, other, image, part)
        if array.ndim == 4:
            values = tkc.load(array, (at, row, 0, column), (None, None, *extents))
        else:
            places, inside = _elements((array, pitch, length), at, row, extents, column)
            values = tkc.load(places, mask=inside)
        found.append(values.to(tkc.float32))
    return tuple(found)


def _put_parts(x, image, row, column, pitch, length, values):
    for part in range(2):
        array, at = _source(x, None, image, part)
        given = values[part].to(x.dtype)
        if array.ndim == 4:
            tkc.store(array, (at, row, 0, column), given[None, None])
        else:
            places, inside = _elements((array, pitch, length), at, row, given.shape, column)
            tkc.store(places, given, mask=inside)


def _images(x):
    return tkc.cdiv(x.shape[0], 2)


@tkc.jit
def _tables(factors, twist, n1, n2, ROWS: tkc.constexpr, N: tkc.constexpr):
    """exp(−2πi r c / n): F of n₁ over its root, T, and F of n₂."""
    row, column, which = tkc.program_id(0) * ROWS, tkc.program_id(1) * N, tkc.program_id(2)
    r, c = (row + tkc.arange(ROWS))[:, None], (column + tkc.arange(N))[None, :]
    n = tkc.where(which == 0, n1, tkc.where(which == 1, n1 * n2, n2))
    angle = (r * c % n).to(tkc.float32) * (-2 * pi) / n
    re, im = tkc.cos(angle), tkc.sin(angle)
    if which == 1:
        tkc.store(twist[0], (row, column), re)
        tkc.store(twist[1], (row, column), im)
    else:
        scale = 1 / tkc.sqrt(n.to(tkc.float32))
        target = factors[which // 2]
        tkc.store(target[0], (row, column), (re * scale).to(factors.dtype))
        tkc.store(target[1], (row, column), (im * scale).to(factors.dtype))
        tkc.store(target[2], (row, column), (-im * scale).to(factors.dtype))


@tkc.jit
def _filtered(
    x,
    filter_re,
    filter_im,
    factors,
    twist,
    out,
    length,
    EACH: tkc.constexpr,
    APART: tkc.constexpr,
    CONJUGATE: tkc.constexpr,
    SHORT: tkc.constexpr,
    R: tkc.constexpr,
    N1: tkc.constexpr,
    N2: tkc.constexpr,
):
    """Complex rows times their filter, both transformed, and back. APART: the parts of a row are
    two rows of numbers, of which each has its own power of two.
    """
    row, first = tkc.program_id(0), tkc.program_id(1) * EACH
    factors = _factors_of(factors, twist, R, N1, N2)
    for image in tkc.range(first, tkc.minimum(first + EACH, _images(x))):
        parts = _parts(x, None, image, row, (R, N2), 0, N2, length)
        powers = [_power_over(tkc.max(abs(part))) for part in parts] if APART else []
        if APART:
            parts = parts[0] * powers[0][0], parts[1] * powers[1][0]
        b = _forward(parts, factors, SHORT)
        f = tuple(tkc.load(v[row], (0, 0), (N1, N2)) for v in (filter_re, filter_im))
        y = _inverse(_times(b, _conjugate(f, CONJUGATE)), factors, SHORT)
        if APART:
            y = y[0] * powers[0][1], y[1] * powers[1][1]
        _put_parts(out, image, row, 0, N2, length, y)


@tkc.jit
def _correlated(
    x,
    grad,
    factors,
    twist,
    out,
    length,
    kept,
    scale,
    SHORT: tkc.constexpr,
    R: tkc.constexpr,
    N1: tkc.constexpr,
    N2: tkc.constexpr,
):
    """What the filter's gradient is: the sum over images of one, conjugate, times the other."""
    row, factors = tkc.program_id(0), _factors_of(factors, twist, R, N1, N2)
    total = tkc.zeros((N1, N2)), tkc.zeros((N1, N2))
    for image in tkc.range(0, _images(x)):
        a, b = (
            _forward(_parts(v, None, image, row, (R, N2), 0, N2, length), factors, SHORT)
            for v in (x, grad)
        )
        more = _times(_conjugate(a), b)
        total = total[0] + more[0], total[1] + more[1]
    y = _inverse(total, factors, SHORT)
    _put_parts(out, 0, row, 0, N2, kept, (y[0] * scale, y[1] * scale))


@tkc.jit
def _spectrum(
    x,
    other,
    factors,
    twist,
    out_re,
    out_im,
    length,
    scale,
    m,
    CONJUGATE: tkc.constexpr,
    ORDERED: tkc.constexpr,
    SHORT: tkc.constexpr,
    R: tkc.constexpr,
    N1: tkc.constexpr,
    N2: tkc.constexpr,
):
    """Transforms of rows: as a filter has them, or ORDERED as a transform gives them, where m rows
    are one.
    """
    row, factors = tkc.program_id(0), _factors_of(factors, twist, R, N1, N2)
    given = _parts(x, other, 0, row, (R, N2), 0, N2, length)
    b = _forward(given, factors, SHORT, CONJUGATE)
    if ORDERED:
        at = (tkc.arange(N1)[:, None] + tkc.arange(N2)[None, :] * N1) * m + row % m
        for target, values in ((out_re, b[0]), (out_im, b[1])):
            tkc.store(target[row // m].ptr + at, values * scale)
    else:
        tkc.store(out_re[row], (0, 0), b[0] * scale)
        tkc.store(out_im[row], (0, 0), b[1] * scale)


@tkc.jit
def _powers(x, out, N: tkc.constexpr):
    """Of each row of numbers a power of two that makes the greatest about 1, and the opposite."""
    row, image = tkc.program_id(0), tkc.program_id(1)
    most = tkc.zeros((N,))
    for i in tkc.range(0, x.shape[2], N):
        most = tkc.maximum(most, abs(tkc.load(x[image, row], (i,), (N,)).to(tkc.float32)))
    powers = _power_over(tkc.max(most))
    for i in range(2):
        tkc.store(out.ptr + (image * x.shape[1] + row) * 2 + i, powers[i])


def _with_powers(values, powers, image, row, which):
    """Both parts of a row, each by its own power of two."""
    found = []
    for part in range(2):
        at = tkc.minimum(2 * image + part, powers.shape[0] - 1)
        found.append(values[part] * tkc.load(powers, (at, row, which), (None,) * 3))
    return tuple(found)


@tkc.jit
def _columns(
    x,
    other,
    powers,
    factors,
    twist,
    out,
    length,
    EACH: tkc.constexpr,
    INVERSE: tkc.constexpr,
    CONJUGATE: tkc.constexpr,
    SHORT: tkc.constexpr,
    M: tkc.constexpr,
    N: tkc.constexpr,
):
    """Columns of rows [M, inner]: transformed and twisted, or the inverse. powers: of the rows that
    are the parts of complex ones, if each has its own.
    """
    column, row, first = tkc.program_id(0) * N, tkc.program_id(1), tkc.program_id(2) * EACH
    inner = twist.shape[2]
    f = _factor_of(factors[0], (M, M))
    turn = [tkc.load(twist[part], (0, column), (M, N)) for part in range(2)]
    f, turn = _conjugate_factor(f, INVERSE or CONJUGATE), _conjugate(turn, INVERSE or CONJUGATE)
    for image in tkc.range(first, tkc.minimum(first + EACH, _images(out))):
        held = M * inner if INVERSE else length
        parts = _parts(x, other, image, row, (M, N), column, inner, held)
        if powers is not None and not INVERSE:
            parts = _with_powers(parts, powers, image, row, 0)
        parts, undo = _near_1(_times(parts, turn) if INVERSE else parts, SHORT)
        y = _from_left(f, parts, SHORT)
        y = _scaled(y if INVERSE else _times(y, turn), undo)
        if powers is not None and INVERSE:
            y = _with_powers(y, powers, image, row, 1)
        _put_parts(out, image, row, column, inner, length if INVERSE else M * inner, y)


# --------------------------------------------------------------------------------------------------
class Transform:
    """How rows of n elements, a power of two, are transformed: m columns' launch if it is more than
    1, then n₁ x n₂ in a program. Its tables are made when it is. Images are two arrays [1, rows,
    elements], of real and imaginary parts, or, of conv, one of every second image each.
    """

    def __init__(self, like: Array, n: int, short: bool, held: dict[bool | str, int]):
        self.n, self.short = n, short
        how = "wgmma" if short and has_wgmma(tkc.target_of(like)) else short
        self.four_warps = OF_FOUR_WARPS[how]
        whole = WHOLE if held is HELD else held
        self.m = 1 if n <= whole[how] else max(MIN_SIDE, n // held[how])
        self.inner = n // self.m
        rows = min(MIN_ROWS[short], self.inner // MIN_SIDE)
        self.n1 = max(rows, 1 << (self.inner.bit_length() // 2))
        self.n2 = self.inner // self.n1
        self.like, self.kind = like, "float16" if short else "float32"
        self.between = str(dtype_of(like)) if short else "float32"  # of what is between launches
        self.inside = self._tables(self.n1, self.n2, 3, max(self.n1, self.n2))
        self.around = self._tables(self.m, self.inner, 2, self.m) if self.m > 1 else None

    def _tables(self, rows: int, columns: int, count: int, side: int) -> tuple[Array, Array]:
        """F of `rows` and of `columns` (not of 2 tables), each with the imaginary part negated once
        more; and the twist.
        """
        factors = empty(self.like, (count - 1, 3, side, side), self.kind)
        twist = empty(self.like, (2, rows, columns), "float32")
        of = tkc.cdiv(max(rows, side), SIDES[0]), tkc.cdiv(max(columns, side), SIDES[1])
        _tables[*of, count](factors, twist, rows, columns, ROWS=SIDES[0], N=SIDES[1])
        return factors, twist

    def options(self, held: int, looped: bool = False) -> dict:
        """Of a program that has rows, of which so many elements are not zero. looped: it does
        nothing but transform one after the other.
        """
        most = self.four_warps if looped else OF_FOUR_WARPS[self.short]
        warps = {"num_warps": 8} if self.inner > most else {}
        rows = min(self.n1, max(MIN_ROWS[self.short], power(tkc.cdiv(held, self.n2))))
        return {"SHORT": self.short, "R": rows, "N1": self.n1, "N2": self.n2, **warps}

    def cut(
        self,
        x: Array,
        other: Array | None,
        length: int,
        conjugate: bool = False,
        powers: Array | None = None,
    ) -> tuple[Array, Array | None, int]:
        """Images [images, rows, elements] of a program's length, and how many elements of a row are
        not zero. powers: of rows that are the parts of complex ones, if each has its own.
        """
        if self.m == 1:
            return x, other, length
        images = x.shape[0] if other is None else 2 * x.shape[0]
        made = self.made(images, x.shape[1])
        whole = made.reshape((made.shape[0], x.shape[1], self.n))
        self._columns((x, other), powers, whole, length, False, conjugate)
        return made, None, self.inner

    def powers(self, x: Array) -> Array | None:
        """Of rows [images, rows, elements] that are cut: powers of two, so that none is less exact
        beside a larger one (`_filtered` has its own).
        """
        if self.m == 1:
            return None
        found = empty(self.like, (*x.shape[:2], 2), "float32")
        _powers[x.shape[1], x.shape[0]](x, found, N=POWERS_AT_ONCE)
        return found

    def joined(self, images: Array, out: Array, length: int, powers: Array | None = None) -> None:
        """The inverse, into rows of the results."""
        whole = images.reshape((images.shape[0], images.shape[1] // self.m, self.n))
        self._columns((whole, None), powers, out, length, True, False)

    def made(self, images: int, rows: int) -> Array:
        """Rows of programs of whole rows, for an even number of images."""
        return empty(self.like, (images + images % 2, rows * self.m, self.inner), self.between)

    def _columns(
        self,
        images: tuple[Array, Array | None],
        powers: Array | None,
        out: Array,
        length: int,
        inverse: bool,
        conjugate: bool,
    ) -> None:
        assert self.around is not None
        columns, rows = COLUMNS[self.short], out.shape[1]
        strips = tkc.cdiv(self.inner, columns)
        each, parts = _share(tkc.cdiv(out.shape[0], 2), strips * rows)
        _columns[strips, rows, parts](
            *(_lines(x, self.inner) for x in images),
            powers,
            *self.around,
            _lines(out, self.inner),
            length,
            EACH=each,
            INVERSE=inverse,
            CONJUGATE=conjugate,
            SHORT=self.short,
            M=self.m,
            N=columns,
        )

    def spectrum(self, rows: Array, length: int) -> tuple[Array, Array]:
        """Of filters [rows, length], as programs multiply them."""
        x, other, held = self.cut(rows[None], None, length)
        count = x.shape[1]
        out = tuple(empty(self.like, (count, self.n1, self.n2), "float32") for _ in range(2))
        _spectrum[count](
            _lines(x, self.n2),
            _lines(other, self.n2),
            *self.inside,
            *out,
            held,
            sqrt(self.n),
            self.m,
            CONJUGATE=False,
            ORDERED=False,
            **self.options(held),
        )
        return out[0], out[1]


def _lines(x: Array | None, width: int) -> Array | None:
    """Rows [images, rows, elements] as matrices of lines so wide, which are blocks of memory; as
    they are where a row is no whole number of lines.
    """
    if x is None or x.shape[2] % width:
        return x
    return x.reshape((*x.shape[:2], x.shape[2] // width, width))


def _share(images: int, programs: int) -> tuple[int, int]:
    """How many images a program has one after the other, of so many programs for each, and in how
    many parts they then come: tables are read once for each part.
    """
    each = tkc.cdiv(images, min(images, tkc.cdiv(2 * PROGRAMS, programs)))
    return each, tkc.cdiv(images, each)


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
    n = max(MIN_LENGTH, power(2 * length)) if causal else length
    most = MAX_LENGTH[dtype_of(u) != "float32"]
    if n > most or n < MIN_LENGTH or n != power(n):
        raise tkc.LaunchError(
            f"fft_conv: a circular length is a power of two from {MIN_LENGTH} to {most}, a causal"
            f" one at most {most // 2}, got {length}; pad u, or cut it in parts"
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
    powers = how.powers(u)
    x, _, held = how.cut(u, None, length, powers=powers)
    result = out if how.m == 1 else how.made(u.shape[0], u.shape[1])
    each, parts = _share(tkc.cdiv(u.shape[0], 2), x.shape[1])
    _filtered[x.shape[1], parts](
        _lines(x, how.n2),
        *spectrum,
        *how.inside,
        _lines(result, how.n2),
        held,
        EACH=each,
        APART=how.m == 1,
        CONJUGATE=conjugate,
        **how.options(held, True),
    )
    if how.m > 1:
        how.joined(result, out, length, powers)


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
    (x, _, held), (g, _, _) = (how.cut(v, None, length) for v in (u, grad))
    whole = dk[None]
    result, kept = (whole, k.shape[1]) if how.m == 1 else (how.made(1, u.shape[1]), held)
    _correlated[x.shape[1]](
        *(_lines(v, how.n2) for v in (x, g)),
        *how.inside,
        _lines(result, how.n2),
        held,
        kept,
        sqrt(n),
        **how.options(max(held, kept)),
    )
    if how.m > 1:
        how.joined(result, whole, k.shape[1])


@fft_conv.backward(saves="u k causal")
def _(saved, grad):
    return fft_conv_backward(grad.to(saved.u.dtype), saved.u, saved.k, saved.causal)


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
    most = MAX_LENGTH[dtype_of(real) != "float32"]
    if n != power(n) or not MIN_LENGTH <= n <= most:
        raise tkc.LaunchError(
            f"fft: a row has a power of two from {MIN_LENGTH} to {most}, got {n}; pad it"
        )
    out = tuple(empty(real, real.shape, "float32") for _ in range(2))
    yield out
    rows = matrix(contiguous(real))[None]
    other = None if imaginary is None else matrix(contiguous(imaginary))[None]
    if not rows.shape[1]:
        return
    how = Transform(rows, n, dtype_of(real) != "float32", HELD)
    x, other, held = how.cut(rows, other, n, inverse)
    _spectrum[x.shape[1]](
        _lines(x, how.n2),
        _lines(other, how.n2),
        *how.inside,
        *(matrix(v) for v in out),
        held,
        1 / sqrt(n) if inverse else sqrt(n),
        how.m,
        CONJUGATE=inverse,
        ORDERED=True,
        **how.options(held),
    )
