"""Random kernels, a fixed budget of them; the generator and the reducer."""

import ast
from dataclasses import fields, replace

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import i32

from tkc.errors import Error
from tkc.fuzz.check import FORCED, Variant, check, drawn_options, program_of
from tkc.fuzz.grammar import POLICIES, ArraySpec, Kernel
from tkc.fuzz.productions import KernelWriter, kernel
from tkc.fuzz.reducer import reduce
from tkc.ir import tile
from tkc.ir.text import parse, show
from tkc.ir.values import first_of
from tkc.passes import Free


@pytest.mark.parametrize("batch", range(30))
def test_kernels_agree_at_every_level(batch):
    """Ten kernels of few statements each; `python -m tkc.fuzz kernels --seeds A:B` runs more and
    longer ones.
    """
    for seed in range(10 * batch, 10 * batch + 10):
        k = kernel(seed, steps=1 + seed // 3 % 4)
        assert not [str(f) for f in check(k, brief=True) if f.kind != "refused"], (
            f"seed {seed}\n{k.source}"
        )


@pytest.mark.parametrize("change", ["nothing", "operand", "type", "attribute", "order", "place"])
def test_what_a_pass_changed_is_seen(change):
    """Kernels are run again after passes that changed them: in whatever way."""
    module = parse(BIG)
    before = program_of(module)
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    add, mul = next(op for op in module.walk() if op.name == "tile.add"), first_of(loop.body.block)
    match change:
        case "operand":
            mul.operands[1] = add.results[0]
        case "type":
            loop.body.block.args[0].name_hint = "other"
            loop.body.block.args[1]._type = i32
        case "attribute":
            loop.attributes["mark"] = i32
        case "order":
            constant = add.parent.first_op
            constant.detach()
            add.parent.insert_op_before(constant, add)
        case "place":
            mul.detach()
            add.parent.insert_op_before(mul, loop)
    assert (program_of(module) == before) == (change == "nothing")


def test_a_seed_is_a_kernel():
    for seed in range(20):
        a, b = kernel(seed), kernel(seed)
        assert a.source == b.source and a.grid == b.grid and a.numbers == b.numbers
        tables = {spec.name for spec in a.arrays if spec.order.endswith("addresses")}
        for (name, x), y in zip(a.arguments().items(), b.arguments().values(), strict=True):
            assert name in tables or np.array_equal(x, y)
    assert len({kernel(seed).source for seed in range(50)}) == 50


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_writes_python(policy):
    for seed in range(30):
        compile(kernel(seed, policy).source, "k", "exec")


def test_a_loop_whose_statements_came_to_nothing(monkeypatch):
    monkeypatch.setattr(KernelWriter, "step", lambda self, depth=2: None)
    writer = KernelWriter(0)
    writer.loop_body(1, [], "for i in tkc.range(3):")
    writer.line("x = 1")
    compile("def kernel():\n" + "\n".join(writer.lines), "k", "exec")


# ruff: noqa: E501 (the text of IR)
BIG = """
builtin.module {
  tile.kernel @k(%x: !tile.array<?x?xf32>, %y: !tile.array<?x?xf32>, %n: i32) {level = 0 : i64, argument_names = ["x", "y", "n"]} {
    %zero = tile.constant 0 : i32
    %one = tile.constant 1 : i32
    %t = tile.load %x[%zero, %n] {extents = array<i64: 8, 32>} : (!tile.array<?x?xf32>, i32, i32) -> !tile.tile<8x32xf32>
    %u = tile.add %t, %t : !tile.tile<8x32xf32>
    %r = scf.for %i = %zero to %n step %one iter_args(%a = %u) -> (!tile.tile<8x32xf32>) : i32 {
      %b = tile.mul %a, %t : !tile.tile<8x32xf32>
      %s = tile.sort %b : (!tile.tile<8x32xf32>) -> !tile.tile<8x32xf32>
      scf.yield %s : !tile.tile<8x32xf32>
    }
    %v = tile.neg %r : !tile.tile<8x32xf32>
    tile.store %y[%zero, %zero] %v {extents = array<i64: 8, 32>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<8x32xf32>)
    tile.return
  }
}
"""


def test_reduction():
    """What is left of a module whose fault is the sort, and of one whose fault is a loop that
    multiplies.
    """

    def has(*kinds):
        return lambda m: all(any(op.name == k for op in m.walk()) for k in kinds)

    small = reduce(parse(BIG), has("tile.sort"))
    assert (
        len(show(small).splitlines()) <= 9
        and has("tile.sort")(small)
        and not any(op.name in ("scf.for", "tile.load", "tile.store") for op in small.walk())
    )
    assert len(next(op for op in small.walk() if isinstance(op, tile.Kernel)).arguments) == 0
    small = reduce(parse(BIG), has("scf.for", "tile.mul"))
    assert len(show(small).splitlines()) <= 16 and not any(
        op.name == "tile.sort" for op in small.walk()
    )


def test_what_is_not_interesting_is_refused():
    with pytest.raises(Error, match="not interesting"):
        reduce(parse(BIG), lambda m: False)


BY_PROGRAM = """
import tkc

def kernel(w1, a2, o5, n0):
    p0 = tkc.program_id(0)
    v2 = tkc.zeros((64, 24), tkc.float32)
    v3 = tkc.load(w1[p0], (0, 0), (64, 64))
    for k in tkc.range(p0 % 3 * 64, n0 * 64, 64):
        v5 = tkc.dot(v3, tkc.load(a2, (0, k), (64, 64)))
        v6 = tkc.where((tkc.arange(64)[:, None] >= k + tkc.arange(64)[None, :]), v5 % 3, 0)
        v2 = tkc.dot(v6.to(tkc.float16), tkc.load(a2, (8, k), (24, 64)).T, v2)
    tkc.store(o5[p0], (0, 0,), v2)
"""


def test_padding_tiles_index_no_array_that_does_not_exist():
    """Four programs are co-resident, and the grid has one, with a matrix of its own."""
    arrays = [
        ArraySpec("w1", "float16", (1, 64, 64)),
        ArraySpec("a2", "float16", (64, 64)),
        ArraySpec("o5", "float32", (1, 64, 24)),
    ]
    k = Kernel(62, "roles", BY_PROGRAM, arrays, {"n0": 1}, (1,), None, 5)
    assert not check(k, chosen=[Variant("sm_90a", None, 5, each=False)])


SHOWN_INDEX = """
import tkc

def kernel(a0, a1, a2, o3, o5, n0, n1):
    p0 = tkc.program_id(0)
    p1 = tkc.argmax((tkc.arange(256) == p0 % 256).to(tkc.int32), axis=0)
    v3 = tkc.zeros((128, 16), tkc.float32)
    v4 = tkc.load(a0, (p1 * 128, 0), (128, 32))
    v5 = tkc.minimum(v4, 2)
    v6 = tkc.zeros((128,), tkc.float32)
    for k2 in tkc.range(0, 96, 32):
        v8 = tkc.dot(v5, tkc.load(a1[p0 % 2], (0, k2), (32, 32)))
        v10 = tkc.minimum(tkc.maximum(v8, -3), 3).to(tkc.float16)
        v12 = tkc.dot(v10, tkc.load(a0, (0, k2), (32, 32)))
        v13 = v12 % 4
        v6 = v6 + tkc.sum(v13, axis=1)
        v3 = tkc.dot(v13.to(tkc.float16), tkc.load(a2[p0 % 2], (k2, 8), (32, 16)), v3)
    tkc.store(o3[p0], (0, 0,), v4)
    tkc.store(o5[p0], (p0 * 32,), v6)
"""


def test_a_first_dot_whose_place_threads_exchange():
    """It was issued early for the next program, without what that writes to shared memory."""
    arrays = [
        ArraySpec("a0", "float16", (64, 8)),
        ArraySpec("a1", "float16", (2, 64, 40)),
        ArraySpec("a2", "float16", (2, 130, 8)),
        ArraySpec("o3", "float16", (2, 128, 32)),
        ArraySpec("o5", "float32", (2, 128)),
    ]
    k = Kernel(1, "roles", SHOWN_INDEX, arrays, {"n0": 3, "n1": 4}, (2,), None, 4)
    assert not check(k, chosen=[Variant("sm_90a", None, 4, each=False)])


APART = """
import tkc

def kernel(a1, o7, n0, n1):
    p0 = tkc.program_id(0)
    v5 = tkc.zeros((64, 64), tkc.int8)
    for k1 in tkc.range(0, p0 % 4 * 64, 64):
        v5 = tkc.maximum(v5, tkc.minimum(tkc.load(a1[1], (0, k1), (64, 64)), 2))
    tkc.store(o7[p0], (0, 0,), v5.to(tkc.int32))
"""


def test_bytes_of_a_row_that_are_not_one_threads():
    """Each thread was to copy 16 of them for itself, of which it held every fourth."""
    arrays = [
        ArraySpec("a1", "int8", (2, 64, 80)),
        ArraySpec("o7", "int32", (2, 63, 64), "T"),
    ]
    k = Kernel(1, "roles", APART, arrays, {"n0": 4, "n1": 4}, (2,), None, 4)
    assert not check(k, chosen=[Variant("sm_90a", None, 4, each=False)])


def test_a_row_that_is_stored_and_added_up_behind_that():
    """fit-rows had read the second row before the first one was stored."""
    assert not [str(f) for f in check(kernel(200122)) if f.kind != "refused"]


def test_no_value_has_the_name_of_a_parameter():
    """Seeds of which one had: a view that a kernel makes was named as an array that it writes."""
    for seed in (1, 261, 641, 901, 5751, 6201, 330008281, *range(100)):
        *_, function = ast.parse(kernel(seed).source).body
        assert isinstance(function, ast.FunctionDef)
        names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
        stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        assert stored.isdisjoint(a.arg for a in function.args.args), seed


def test_every_option_of_a_launch_is_drawn():
    """But hints, bounds of registers, and what says how launches meet."""
    names = {field.name for field in fields(Free)}
    left_out = {"suggested_warps", "maxnreg", "dependent", "beside", "debug"}
    assert set(FORCED) == names - left_out


@pytest.mark.parametrize("seed", range(20))
def test_a_stage_tells_of_its_variant(seed):
    """Of options that were forced too, from which `reduced` reads it back."""
    variant = Variant("sm_90a", None, 3, each=False, forced=drawn_options(seed))
    found = Variant.of(variant.label("plan"))
    assert found is not None and replace(found, each=False) == variant
