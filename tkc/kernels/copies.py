"""How matrices lie in memory, and copies of them in rows that begin at multiples of 16 bytes, which
Hopper's own engine copies on: of one matrix, or of both factors of a product in one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import gcd, prod

import tkc
from tkc.kernels.arrays import Array, dtype_of, empty, library, power

BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}
# multiply-adds from which aligned copies of an operand pay, and from which they are weighed
MIN_WORK = 1 << 28
MIN_WEIGHED_WORK = 1 << 23
# rows or columns that share an operand, from which they do
MIN_SHARED = 16
# of a program that copies: elements, and those of a row, at least and at most
ELEMENTS, NARROWEST, WIDEST = 8192, 64, 256
# of one that copies rows to columns
TRANSPOSE_BLOCK = 64, 128
# how a matrix is copied: its rows are dense, its columns, or rows are copied to the rows of a
# transpose
ALONG, DOWN, ACROSS = range(3)


@tkc.jit
def _copies(x, p, y, q, HOW: tkc.constexpr, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    """One matrix copied to another, or two in one launch, the first one's programs first. HOW: of
    the first one, and times 4 of the second, ALONG, DOWN or ACROSS.
    """
    program, one, two = tkc.program_id(0), HOW % 4, HOW // 4
    if y is None:
        _moved(x, p, program, one, ROWS, COLUMNS)
    else:
        first = tkc.cdiv(x.shape[one == DOWN], ROWS) * tkc.cdiv(x.shape[one != DOWN], COLUMNS)
        if program < first:
            _moved(x, p, program, one, ROWS, COLUMNS)
        else:
            _moved(y, q, program - first, two, ROWS, COLUMNS)


def _moved(x, out, program, how, rows, columns):
    across = tkc.cdiv(x.shape[how != DOWN], columns)
    i, j = program // across * rows, program % across * columns
    if how == ALONG:
        tkc.store(out, (i, j), tkc.load(x, (i, j), (rows, columns)))
    elif how == DOWN:
        tkc.store(out, (j, i), tkc.load(x, (j, i), (columns, rows)))
    else:
        tkc.store(out, (j, i), tkc.load(x, (i, j), (rows, columns)).T)


# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Laid:
    """A matrix that is not there, at a multiple of 16 bytes: its type, extents, and strides in
    elements.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    span: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        axes = (f"{n}:{s}" for n, s in zip(self.shape, self.strides, strict=True))
        return f"{self.dtype}[{', '.join(axes)}]"


def strides_of(x: Array) -> tuple[int, ...]:
    """In elements."""
    if hasattr(x, "span"):
        return x.strides  # a description: what assembling is given
    if library(x) == "torch":
        return tuple(x.stride())
    if not hasattr(x, "strides"):
        return tuple(prod(x.shape[i + 1 :]) for i in range(len(x.shape)))  # jax's
    return tuple(s // x.dtype.itemsize for s in x.strides)


def at_once(x: Array) -> int:
    """Elements of which rows of a matrix, or of each of a batch, begin at multiples in memory, as
    many as 16 bytes have at most.
    """
    size = BYTES.get(dtype_of(x), 4)
    rows = (s * size for s, n in zip(strides_of(x), x.shape, strict=False) if s != 1 and n != 1)
    place = 0 if hasattr(x, "span") or on_host(x) else _address(x)
    return max(1, gcd(16, place, *rows) // size)


def is_odd(x: Array) -> bool:
    """Whether rows of a matrix, or of one of a batch, do not start at multiples of 16 bytes."""
    return at_once(x) * BYTES.get(dtype_of(x), 4) % 16 != 0


def aligned(x: Array, shared: int, work: int) -> Array:
    """The matrix, or where it is worth while a copy whose rows start at multiples of 16 bytes.
    shared: how often each element is used.
    """
    return (
        copier([x], [_is_transposed(x)])(x)[0]
        if shared >= MIN_SHARED and work >= MIN_WORK and unaligned(x)
        else x
    )


def unaligned(x: Array) -> bool:
    """Whether the rows (or columns) of a matrix on a GPU start elsewhere than at multiples of 16
    bytes, where the hardware's own engine does not copy them.
    """
    if len(x.shape) != 2 or on_host(x):
        return False
    pitch, dense = _pitch(x)
    return dense != 1 or pitch * BYTES[dtype_of(x)] % 16 != 0 or _address(x) % 16 != 0


def narrow(c: Array) -> bool:
    """Whether rows of a result on a GPU do not start at multiples of two elements."""
    return (
        not on_host(c)
        and strides_of(c)[1] == 1 < min(*c.shape, strides_of(c)[0])
        and (strides_of(c)[0] % 2 == 1 or _address(c) % (2 * BYTES.get(dtype_of(c), 4)) != 0)
    )


def _is_transposed(x: Array) -> bool:
    return strides_of(x)[1] != 1 and min(x.shape) > 1


def _pitch(x: Array) -> tuple[int, int]:
    outer, inner = strides_of(x)
    return (inner, outer) if _is_transposed(x) else (outer, inner)


def _unfit(x: Array, inner: int) -> bool:
    """Whether Hopper's engines do not take a factor on a GPU as it lies: for its rows, or because
    it has 8 bits and another axis is dense than `inner`, along which sums run.
    """
    return not on_host(x) and (
        unaligned(x) or BYTES[dtype_of(x)] == 1 and _is_transposed(x) == inner and min(x.shape) > 1
    )


def odd_factors(a: Array, b: Array, work: int) -> list[bool]:
    """Which of two factors are worth a copy that Hopper's engines take as it lies. work:
    multiply-adds, at least.
    """
    (m, k), n = a.shape, b.shape[1]
    return [
        shared >= MIN_SHARED and m * n * k >= work and _unfit(x, inner)
        for x, shared, inner in ((a, n, 1), (b, m, 0))
    ]


def fitting(a: Array, b: Array) -> list[Array]:
    """Two factors, or where it is worth while copies that Hopper's engines take as they lie, made
    in one launch.
    """
    odd = odd_factors(a, b, MIN_WORK)
    given = [
        (x, has_dense_columns(x, inner))
        for x, o, inner in zip((a, b), odd, (1, 0), strict=False)
        if o
    ]
    made = iter(copier(*zip(*given, strict=False))(*(x for x, _ in given))) if given else iter(())
    return [next(made) if o else x for x, o in zip((a, b), odd, strict=False)]


def has_dense_columns(x: Array, inner: int) -> bool:
    """Whether the columns of an aligned copy of a factor are dense, not its rows: as they are, but
    of 8 bits what sums run along.
    """
    return inner == 0 if BYTES[dtype_of(x)] == 1 else _is_transposed(x)


def padded_pitch(x: Array, columns: bool) -> int:
    """Elements from one row of an aligned copy to the next: whole lines of 128 bytes, rows that cut
    sectors are slow to copy. columns: these are dense in the copy.
    """
    line = 128 // BYTES[dtype_of(x)]
    return -(-x.shape[0 if columns else 1] // line) * line


def filled_shape(x: Array, columns: bool) -> tuple[int, ...]:
    """Extents of an aligned copy of a matrix: of whole lines of 128 bytes where blocks of copies
    are as wide, and rows are copied to rows.
    """
    n, m = x.shape
    if columns != _is_transposed(x) or 128 // BYTES[dtype_of(x)] > NARROWEST:
        return n, m
    pitch = padded_pitch(x, columns)
    return (pitch, m) if columns else (n, pitch)


def _length(x: Array) -> int:
    """Elements of a row, or of a column where these are dense."""
    return x.shape[0 if _is_transposed(x) else 1]


def _block(lengths: Iterable[int]) -> tuple[int, int]:
    """Rows and columns of a program that copies rows of so many elements."""
    width = min(WIDEST, max(NARROWEST, *map(power, lengths)))
    return ELEMENTS // width, width


def copier(given: Sequence[Array], columns: Sequence[bool], *, filled: bool = False) -> Callable:
    """A function of one matrix or two like these, that copies them in one launch to rows (or
    columns, where these are to be dense) that start at multiples of 16 bytes. filled: the copies
    have the extents of `filled_shape`, with zeros at the ends of rows: tensor maps fill up blocks
    more slowly than they copy.
    """
    turned, steps = (
        tuple(map(_is_transposed, given)),
        [
            (1, padded_pitch(x, c)) if c else (padded_pitch(x, c), 1)
            for x, c in zip(given, columns, strict=False)
        ],
    )
    how = [
        ACROSS if t != c else DOWN if t else ALONG for t, c in zip(turned, columns, strict=False)
    ]
    height, width = TRANSPOSE_BLOCK if ACROSS in how else _block(map(_length, given))
    programs = sum(
        tkc.cdiv(n, height) * tkc.cdiv(m, width)
        for n, m in (x.shape[::-1] if t else x.shape for x, t in zip(given, turned, strict=False))
    )

    def fresh(x, column, steps):
        shape = filled_shape(x, column) if filled else tuple(x.shape)
        if hasattr(x, "new_empty_strided"):
            return x.new_empty_strided(shape, steps)
        n, m = shape[::-1] if column else shape
        out = empty(x, (n, max(steps)))[:, :m]
        return out.T if column else out

    def run(*arrays):
        made, operands = list(map(fresh, arrays, columns, steps)), []
        for x, out, t, h in zip(arrays, made, turned, how, strict=False):
            operands += [x.T if h == ACROSS and t else x, out.T if h == ACROSS and not t else out]
        _copies[programs](
            *operands,
            *([None] * (4 - len(operands))),
            HOW=sum(h << 2 * i for i, h in enumerate(how)),
            ROWS=height,
            COLUMNS=width,
            dependent=True,
        )
        return made

    return run


def on_host(x: Array) -> bool:
    return library(x) == "numpy" or library(x) == "torch" and not x.is_cuda or library(x) == "jax"


def _address(x: Array) -> int:
    return x.data_ptr() if library(x) == "torch" else x.data.ptr
