"""Attributes that are made, compared and hashed in fewer calls are what xDSL's are."""

import itertools

import pytest
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    IntAttr,
    IntegerAttr,
    IntegerType,
    NoneAttr,
    Signedness,
    StringAttr,
    f32,
    f64,
    i32,
    i64,
)
from xdsl.ir import Data
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from tkc.ir.attributes import extents_attribute, integer
from tkc.ir.layout import blocked
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import (
    ArrayType,
    LayoutAttr,
    MapType,
    PendingType,
    PointerType,
    SharedType,
    TileType,
)

LAYOUT, OTHER = (blocked((64, 32), vector=v, warps=4) for v in (1, 2))
SHARED = SharedLayout((64, 32), 32)
# each twice, by the same or by other means, different from all others
PAIRS = {
    "tile": (lambda: TileType((64, 32), f32), lambda: TileType([64, 32], f32, NoneAttr())),
    "element": (lambda: TileType((64, 32), f64), lambda: TileType((64, 32), f32).with_element(f64)),
    "extents": (lambda: TileType((32, 64), f32), lambda: TileType(iter((32, 64)), f32)),
    "layout": (
        lambda: TileType((64, 32), f32, LAYOUT),
        lambda: TileType(ArrayAttr([IntAttr(64), IntAttr(32)]), f32, LayoutAttr(LAYOUT)),
    ),
    "other layout": (
        lambda: TileType((64, 32), f32, OTHER),
        lambda: TileType((64, 32), f32, LAYOUT).with_layout(OTHER),
    ),
    "shared tile": (lambda: TileType((64, 32), f32, SHARED),) * 2,
    "pointer": (lambda: PointerType(f32),) * 2,
    "array": (lambda: ArrayType(2, f32), lambda: ArrayType(IntAttr(2), f32)),
    "ring": (lambda: SharedType(2, (64, 32), f32, SHARED),) * 2,
    "buffer": (
        lambda: SharedType(1, (64, 32), f32, SHARED),
        lambda: SharedType(2, (64, 32), f32, SHARED).single(),
    ),
    "pending": (lambda: PendingType(TileType((64, 32), f32, LAYOUT)),) * 2,
    "map": (lambda: MapType((64, 32), f32, 64), lambda: MapType([64, 32], f32, IntAttr(64), False)),
    "panelled map": (lambda: MapType((64, 32), f32, 64, True),) * 2,
    "integer": (lambda: IntegerAttr(3, i32), lambda: integer(3, i32)),
    "wide integer": (lambda: IntegerAttr(3, i64), lambda: integer(3, i64)),
    "float": (lambda: FloatAttr(3.0, f32),) * 2,
    "NaN": (lambda: FloatAttr(float("nan"), f32),) * 2,
    "signless": (lambda: IntegerType(24), lambda: IntegerType(IntAttr(24))),
    "unsigned": (lambda: IntegerType(24, Signedness.UNSIGNED),) * 2,
    "text": (lambda: StringAttr("64"),) * 2,
    "number": (lambda: IntAttr(64),) * 2,
    "numbers": (lambda: extents_attribute((64, 32)), lambda: ArrayAttr(map(IntAttr, (64, 32)))),
    "list": (lambda: DenseArrayBase.from_list(i64, [64, 32]),) * 2,
    "short list": (lambda: DenseArrayBase.from_list(i32, [64, 32]),) * 2,
}


@pytest.mark.parametrize("pair", PAIRS)
def test_equal_attributes(pair):
    one, other = (make() for make in PAIRS[pair])
    assert one == other and hash(one) == hash(other) and str(one) == str(other)
    parts = one.data if isinstance(one, Data) else one.parameters
    again = type(one).new(parts)
    assert one == again and hash(one) == hash(again)


def test_different_attributes():
    for (_, (one, _)), (_, (other, _)) in itertools.combinations(PAIRS.items(), 2):
        assert one() != other() and other() != one()
    assert TileType((64, 32), f32) != "64x32" and IntegerType(24) != f32 and IntAttr(1) != 1


def test_equal_types_are_one():
    for pair in ("tile", "element", "extents", "layout", "other layout", "ring", "array", "map"):
        one, other = (make() for make in PAIRS[pair])
        assert one is other


def test_wrong_types_are_refused_each_time():
    for _ in range(2):
        with pytest.raises(TypeError, match="positional argument"):
            TileType((64, 32))
        with pytest.raises(VerifyException):
            PendingType(f32)


def test_texts_are_printed_once(monkeypatch):
    t = TileType((7, 3), f32)
    text = str(t)
    monkeypatch.setattr(Printer, "print_attribute", None)
    assert str(t) == text == "!tile.tile<7x3xf32>"


def test_integers_wrap():
    assert integer(-1, i32) == IntegerAttr(-1, i32)
    assert integer((1 << 32) + 5, i32) == IntegerAttr(5, i32)
    assert DenseArrayBase.from_list(i64, [3, -1]).get_values() == (3, -1)
