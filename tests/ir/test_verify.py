"""A verification that remembers what was sound sees every change since."""

import pytest
from xdsl.dialects.builtin import IntegerAttr, StringAttr, f32, i32, i64
from xdsl.ir import Block

from tkc.errors import VerifyError
from tkc.ir.elementwise import CLASSES
from tkc.ir.text import parse
from tkc.ir.types import TileType
from tkc.ir.verify import SOUND, Verified, verify

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
    SOUND.clear()
    module, verified, asked = parse(TEXT), Verified(), []
    add = next(op for op in module.walk() if op.name == "tile.add")
    monkeypatch.setattr(type(add), "verify_", lambda self: asked.append(self))
    for _ in range(3):
        verify(module, "sound", verified)
    assert asked == [add]
    add.attributes["note"] = StringAttr("new")
    verify(module, "sound", verified)
    assert asked == [add, add]
    verify(parse(TEXT), "another module")
    assert asked == [add, add]


LOOP = """tile.kernel @k(%n: i32, %x: f32, %c: i1) {
  %y = scf.for %j = %n to %n step %n iter_args(%s = %x) -> (f32) : i32 {
    %z = tile.add %s, %s : f32
    scf.yield %z : f32
  }
  scf.if %c {
    scf.yield
  }
  tile.return
}"""


def loop_changes():
    def yielded(ops):
        ops["scf.yield"].operands[0] = ops["scf.for"].body.block.args[0]

    def carried(ops):
        ops["scf.for"].body.block.args[1]._type = i32

    def counted(ops):
        ops["scf.for"].operands[0] = ops["tile.kernel"].body.block.args[1]

    def not_last(ops):
        ops["scf.yield"].detach()
        ops["scf.for"].body.block.insert_op_before(ops["scf.yield"], ops["tile.add"])

    def elsewhere(ops):
        ops["scf.yield"].detach()
        block = ops["tile.kernel"].body.block
        block.insert_op_before(ops["scf.yield"], block.last_op)

    def from_inside(ops):
        new = type(ops["tile.add"])(*ops["tile.add"].results * 2)
        ops["tile.kernel"].body.block.insert_op_after(new, ops["scf.for"])

    def no_argument(ops):
        block = ops["scf.for"].body.block
        block.erase_arg(block.args[0])

    return yielded, carried, counted, not_last, elsewhere, from_inside, no_argument


@pytest.mark.parametrize("change", loop_changes(), ids=lambda f: f.__name__)
def test_changes_round_and_in_a_loop_are_seen(change):
    """Though each of its operations is like one that was sound."""
    module, verified = parse(LOOP), Verified()
    for given in (module, parse(LOOP)):
        verify(given, "sound", verified)
    ops = {}
    for op in module.walk():
        ops.setdefault(op.name, op)
    change(ops)
    for remembered in (None, verified, verified):
        with pytest.raises(VerifyError):
            verify(module, "broken", remembered)


VOTE = """tile.kernel @k(%t: !tile.tile<4xi1>) {
  %c = tile.vote %t : (!tile.tile<4xi1>) -> i1
  scf.if %c {
    scf.yield
  }
  tile.return
}"""


def test_what_asks_a_vote_is_looked_at_each_time():
    module, verified = parse(VOTE), Verified()
    verify(module, "sound", verified)
    vote = next(op for op in module.walk() if op.name == "tile.vote")
    vote.parent.insert_op_after(CLASSES["and"](vote.result, vote.result), vote)
    with pytest.raises(VerifyError, match="only branches"):
        verify(module, "broken", verified)


OF_RUNS = '"8: - | 4:1@0 8:* | 2:4@0"'
OF_TOTALS = '"2: 2:1@0 | 32:* | 2:*"'
X, N = (f"!tile.tile<8x{t}, {OF_RUNS}>" for t in ("f32", "i32"))
T, J = (f"!tile.tile<2x{t}, {OF_TOTALS}>" for t in ("f32", "i32"))
RUNS = f"""tile.kernel @k(%x: {X}, %n: {N}, %q: f32) {{
  %p, %i, %t, %j = tile.scan_total combine[%x, %n] {{axis = 0 : i64}} \
: ({X}, {N}) -> ({X}, {N}, {T}, {J}) {{
  ^bb0(%a: f32, %b: i32, %c: f32, %d: i32):
    tile.yield[%c, %d] : (f32, i32)
  }}
  %y, %m = tile.scan_carry combine[%p, %i, %t, %j] {{axis = 0 : i64}} \
: ({X}, {N}, {T}, {J}) -> ({X}, {N}) {{
  ^bb0(%a_1: f32, %b_1: i32, %c_1: f32, %d_1: i32):
    tile.yield[%c_1, %d_1] : (f32, i32)
  }}
  tile.return
}}"""


def changes_of_runs():
    def fewer_results(total, carry, block):
        carry.operands = [carry.operands[0], carry.operands[2]]
        return "of 2 tiles has 2 results, not half as many"

    def another_element(total, carry, block):
        total.results[2]._type = total.results[3].type
        return "has totals of"

    def a_number(total, carry, block):
        carry.operands[2] = block.args[2]
        return "has totals of"

    def another_kind(total, carry, block):
        carry.properties["kind"] = StringAttr("xor")
        return "has no kind 'xor'"

    def prefixes_used_twice(total, carry, block):
        block.insert_op_after(CLASSES["add"](total.results[0], total.results[0]), total)
        return "to another operation than 'tile.scan_carry'"

    return fewer_results, another_element, a_number, another_kind, prefixes_used_twice


@pytest.mark.parametrize("change", changes_of_runs(), ids=lambda f: f.__name__)
def test_what_a_scan_over_warps_is_made_of(change):
    module, verified = parse(RUNS), Verified()
    kernel = next(op for op in module.walk() if op.name == "tile.kernel")
    kernel.set_integer("level", 2)
    verify(module, "sound", verified)
    total, carry = (op for op in module.walk() if op.name.startswith("tile.scan_"))
    message = change(total, carry, kernel.body.block)
    with pytest.raises(VerifyError, match=message):
        verify(module, "broken", verified)
