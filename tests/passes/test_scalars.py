"""Scalars as numbers: integers, and what they become in float32 on the way to another integer."""

import numpy as np
import pytest
from xdsl.dialects.builtin import f32, i32, i64

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES, Cast
from tkc.passes.analysis.scalars import computed


def known(op, **given):
    """What an operation computes, where constants are what is given for them."""

    def number(v):
        return (
            given[name]
            if isinstance(v.owner, tile.Constant) and (name := str(v.owner.number)) in given
            else computed(v.owner, number)
        )

    return computed(op, number)


@pytest.mark.parametrize(
    "a, b, want", [(20, 8, 2), (20, 5, 4), (7, 8, 0), ((1 << 40) + 1, 1 << 20, 1 << 20), (1, 3, 0)]
)
def test_a_quotient_by_way_of_float32(a, b, want):
    x, y = (Cast(tile.Constant(n, i64).result, f32) for n in (a, b))
    quotient = Cast(CLASSES["div_rn"](x.result, y.result).result, i32)
    assert known(quotient) == want and isinstance(known(quotient), int)


def test_of_all_programs_at_once():
    x, y = (Cast(tile.Constant(n, i32).result, f32) for n in (100, 3))
    quotient = Cast(
        CLASSES["min"](CLASSES["div_rn"](x.result, y.result).result, x.result).result, i32
    )
    found = known(quotient, **{"100": np.array([9, 10, 11, 12])})
    assert found.dtype == np.int64 and found.tolist() == [3, 3, 3, 4]


def test_what_is_not_known():
    x = Cast(tile.Constant(2, i32).result, f32)
    assert known(CLASSES["exp2"](x.result)) is None
