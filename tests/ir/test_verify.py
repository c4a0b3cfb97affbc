"""A verification that remembers what was sound sees every change since."""

import pytest
from xdsl.dialects.builtin import IntegerAttr, StringAttr, f32, i64
from xdsl.ir import Block

from tkc.errors import VerifyError
from tkc.ir.text import parse
from tkc.ir.types import TileType
from tkc.ir.verify import Verified, verify

TEXT = """tile.kernel @k(%i: i32, %t: !tile.tile<4xf32>, %m: !tile.tile<4x8xf32>) {
  %y = tile.slice %t {offsets = array<i64: 0>} : (!tile.tile<4xf32>) -> !tile.tile<2xf32>
  %z = tile.reduce sum[%m] {axis = 1 : i64} : (!tile.tile<4x8xf32>) -> !tile.tile<4xf32>
  %w = tile.add %z, %t : !tile.tile<4xf32>
  tile.return
}"""


def changes():
    def operand(ops):
        ops["tile.add"].operands[0] = ops["tile.kernel"].body.block.args[2]

    def kind(ops):
        ops["tile.slice"].results[0]._type = TileType([8], f32)

    def changed(ops):
        ops["tile.reduce"].properties["axis"] = IntegerAttr(5, i64)

    def named(ops):
        ops["tile.reduce"].properties["kind"] = StringAttr("mean")

    def missing(ops):
        del ops["tile.reduce"].properties["axis"]

    def end(ops):
        ops["tile.return"].detach()

    def empty(ops):
        ops["tile.kernel"].body.add_block(Block())

    def order(ops):
        add = ops["tile.add"]
        block = add.parent
        add.detach()
        block.insert_op_before(add, ops["tile.slice"])

    return operand, kind, changed, named, missing, end, empty, order


@pytest.mark.parametrize("change", changes(), ids=lambda f: f.__name__)
def test_every_change_is_seen(change):
    module, verified = parse(TEXT), Verified()
    for _ in range(2):
        verify(module, "sound", verified)
    assert {op.name for op in verified} == {"tile.slice", "tile.reduce", "tile.add"}
    change({op.name: op for op in module.walk()})
    with pytest.raises(VerifyError) as fresh:
        verify(module, "broken")
    with pytest.raises(VerifyError) as again:
        verify(module, "broken", verified)
    assert str(fresh.value) == str(again.value)


def test_what_did_not_change_is_not_asked_again(monkeypatch):
    module, verified, asked = parse(TEXT), Verified(), []
    add = next(op for op in module.walk() if op.name == "tile.add")
    monkeypatch.setattr(type(add), "verify_", lambda self: asked.append(self))
    for _ in range(3):
        verify(module, "sound", verified)
    assert asked == [add]
    add.attributes["note"] = StringAttr("new")
    verify(module, "sound", verified)
    assert asked == [add, add]
