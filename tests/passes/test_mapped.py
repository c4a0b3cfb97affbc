"""Which blocks a tensor map can describe, and why others it cannot."""

import pytest

import tkc
from tests.language.kernels import traced
from tkc.ir import tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.analysis.mapped import unmapped


def block(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, COLUMNS)))


def column(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, None))[:, None])


def scattered(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (tkc.arange(ROWS) * 2, 0), (ROWS, COLUMNS)))


def described(align: int, row: int, last: int | None = 1) -> ArrayArgument:
    """A matrix whose rows are a multiple of so many elements apart."""
    strides = (Fact(row), Fact(1) if last is None else Fact(exact=last))
    return ArrayArgument(tkc.float16, ArrayFacts((Fact(), Fact()), strides, align))


@pytest.mark.parametrize(
    "fn, columns, array, why",
    [
        (block, 64, described(16, 8), ""),
        (block, 64, described(8, 8), "multiples of 16 bytes"),
        (block, 64, described(16, 4), "multiples of 16 bytes"),
        (block, 8, described(16, 8), "narrower than a swizzle"),
        (block, 64, described(16, 8, None), "neither rows nor columns"),
        (column, 64, described(16, 8), "neither rows nor columns"),
        (block, 512, described(16, 8), ""),
    ],
)
def test_what_a_tensor_map_describes(fn, columns, array, why):
    module = traced(fn, array, array, ROWS=64, COLUMNS=columns)
    (load,) = [op for op in module.walk() if isinstance(op, tile.Load)]
    reason = unmapped(load)
    assert (why in reason) if why else not reason, reason


def test_rows_that_are_gathered_are_no_box():
    module = traced(scattered, described(16, 8), described(16, 8), ROWS=64, COLUMNS=64)
    (load,) = [op for op in module.walk() if isinstance(op, tile.Load)]
    assert unmapped(load)
