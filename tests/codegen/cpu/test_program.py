"""Running: threads, launch order, atomics, overlapping arguments, the object cache, bad launches,
prints and asserts.
"""

import json
import platform
import re
import threading
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from xdsl.builder import ImplicitBuilder
from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr, bf16, f16, f32, f64, i32, i64
from xdsl.ir import Block, Region

import tkc
from tests.language.kernels import array as described
from tests.language.kernels import attention, traced
from tests.language.kernels import f32 as number
from tests.sim.building import ELEMENTS, integer, kernel
from tkc.codegen.cpu import CpuProgram, compile, running, unpack
from tkc.codegen.cpu import program as program_module
from tkc.errors import CompileError, DeviceError, LaunchError
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.text import parse
from tkc.ir.types import ArrayFacts, ArrayType, Fact, PointerType, TileType
from tkc.sim.level0 import run

C = ew.CLASSES
DENSE = ArrayFacts((Fact(),), (Fact(1, 1),))


def add(n):
    def body(x, y, out):
        at = C["mul"](tile.ProgramId(0).result, integer(n)).result
        tile.Store(
            out,
            [at],
            C["add"](tile.Load(x, [at], (n,)).result, tile.Load(y, [at], (n,)).result).result,
            (n,),
        )

    return kernel([ArrayType(1, f32, DENSE)] * 3, body)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1009])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_element_once(n, threads):
    x, y = np.arange(2 * n, dtype=np.float32).reshape(2, n)
    out = np.full(n + 8, -1, np.float32)
    compile(add(64)).run([x, y, out[:n]], (-(-n // 64),), threads=threads)
    np.testing.assert_array_equal(out[:n], x + y)
    assert (out[n:] == -1).all()


def test_same_bits_with_any_number_of_threads():
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(2, 2, 100, 32)).astype(ml_dtypes.bfloat16) for _ in range(3))
    program = compile(
        traced(attention, *[described(tkc.bfloat16, 4)] * 4, number(), True, 32, BM=16, BN=32)
    )
    results = []
    for threads in (1, 2, 7, 2):
        out = np.zeros_like(q)
        program.run([q, k, v, out, 0.2], (7, 2, 2), threads=threads)
        results.append(out.tobytes())
    assert len(set(results)) == 1


def atomic(kind, t, n, expected=None):
    """Each program updates out[0 … 2] with n values."""

    def body(target, values, old):
        p = ew.PointerAdd(
            tile.Splat(tile.Pointer(target).result, TileType([n], PointerType(t))).result,
            C["mod"](
                tile.Arange(0, TileType([n], i32)).result,
                tile.Constant(3, TileType([n], i32)).result,
            ).result,
        ).result
        x = tile.Load(values, [tile.ProgramId(0).result, integer(0)], (-1, n)).result
        operands = [
            p,
            x,
            [] if expected is None else [tile.Constant(expected, TileType([n], t)).result],
            [],
        ]
        op = tile.Atomic(
            operands=operands,
            properties={"kind": StringAttr(kind)},
            result_types=[[TileType([n], t)]],
        )
        tile.Store(old, [tile.ProgramId(0).result, integer(0)], op.result, (-1, n))

    return kernel([ArrayType(1, t), ArrayType(2, t), ArrayType(2, t)], body)


@pytest.mark.parametrize("t", [i32, i64, f32, f64, f16, bf16], ids=str)
@pytest.mark.parametrize("kind", ["add", "max", "min", "exchange", "and", "xor", "compare"])
def test_atomics_of_one_program_are_the_simulator_s(kind, t):
    if kind in ("and", "xor") and t not in (i32, i64):
        return
    dtype = {v: k for k, v in ELEMENTS.items()}[t]
    random = np.random.default_rng(1)
    start, values = (
        random.integers(0, 9, 3).astype(dtype),
        random.integers(0, 9, (1, 20)).astype(dtype),
    )
    module, results = atomic(kind, t, 20, 4 if kind == "compare" else None), []
    for runner in (run, lambda m, a, g: compile(m).run(a, g)):
        out, old = start.copy(), np.zeros_like(values)
        runner(module, [out, values, old], (1,))
        results.append((out, old))
    for want, got in zip(*results, strict=False):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("t", [i32, f32, bf16], ids=str)
def test_atomics_lose_nothing_between_threads(t):
    dtype = {v: k for k, v in ELEMENTS.items()}[t]
    out = np.zeros(3, dtype)
    program, ones = compile(atomic("add", t, 3)), np.ones((60 if t == bf16 else 20000, 3), dtype)
    program.run([out, ones, np.zeros_like(ones)], (len(ones),), threads=4)
    assert (out.astype(int) == len(ones)).all()


def test_programs_that_wait_get_their_ids_in_launch_order():
    """A chain: program i waits until flag is i, then sets it to i + 1. With fewer threads than
    programs only launch order ends it.
    """

    def body(flag, out):
        me, p = tile.ProgramId(0).result, tile.Pointer(flag).result
        before, after = Block(), Block()
        with ImplicitBuilder(before):
            op = tile.LoadPointers(p)
            op.properties["semantics"] = StringAttr("acquire")
            scf.ConditionOp(C["ne"](op.result, me).result)
        with ImplicitBuilder(after):
            scf.YieldOp()
        scf.WhileOp([], [], Region(before), Region(after))
        tile.Store(
            out,
            [me],
            tile.Splat(
                tile.Load(out, [C["sub"](me, integer(1)).result], (-1,)).result, TileType([1], i32)
            ).result,
            (1,),
        )
        one = C["add"](tile.Load(out, [me], (-1,)).result, integer(1)).result
        tile.Store(out, [me], tile.Splat(one, TileType([1], i32)).result, (1,))
        tile.Atomic(
            operands=[p, C["add"](me, integer(1)).result, [], []],
            properties={"kind": StringAttr("exchange"), "semantics": StringAttr("release")},
            result_types=[[]],
        )

    program = compile(kernel([ArrayType(1, i32), ArrayType(1, i32)], body))
    assert program.metadata["waits"]
    flag, out = np.zeros(1, np.int32), np.zeros(300, np.int32)
    done = threading.Thread(target=lambda: program.run([flag, out], (300,), threads=3), daemon=True)
    done.start()
    done.join(60)
    assert not done.is_alive() and flag[0] == 300
    np.testing.assert_array_equal(out, np.arange(1, 301))


def test_overlapping_arguments_behave_as_one_memory():
    def body(x, out):
        a = tile.Load(x, [integer(0)], (20,)).result
        tile.Store(out, [integer(1)], a, (20,))

    module, both = kernel([ArrayType(1, f32, DENSE)] * 2, body), np.arange(40, dtype=np.float32)
    want = both.copy()
    run(module, [want[:30], want[2:]], (1,))
    compile(module, overlapping=True).run([both[:30], both[2:]], (1,))
    np.testing.assert_array_equal(both, want)
    with pytest.raises(LaunchError, match="share memory that it writes.*overlapping=True"):
        compile(module).run([both[:30], both[2:]], (1,))
    np.testing.assert_array_equal(both, want)


def added_in_place(x, rows, PLACES: tkc.constexpr):
    """Each element once more, of a block whose elements may be one in memory."""
    lanes, at = tkc.arange(64), tkc.load(rows, (0,), (64,))
    match PLACES:
        case "pointers":
            tkc.store(x.ptr + at, tkc.load(x.ptr + at) + 1)
        case "lanes":
            tkc.store(x.ptr + lanes, tkc.load(x.ptr + lanes) + 1)
        case "looked up":
            tkc.store(x, (at, 0), tkc.load(x, (at, 0), (64, 32)) + 1)
        case "in a row":
            tkc.store(x, (lanes, 0), tkc.load(x, (lanes, 0), (64, 32)) + 1)
        case "folded":
            a = tkc.array(x.ptr, tkc.float32, (64, 32), (0, 1))
            tkc.store(a, (0, 0), tkc.load(a, (0, 0), (64, 32)) + 1)
        case "argument":
            tkc.store(x, (0, 0), tkc.load(x, (0, 0), (64, 32)) + 1)


@pytest.mark.parametrize("places", ["pointers", "looked up", "folded", "argument"])
def test_elements_that_are_one_in_memory_are_loaded_before_any_is_stored(places):
    """A store of each as soon as it is loaded would count how often it is there."""
    x, rows = np.zeros((64, 32), np.float32), np.arange(64, dtype=np.int32) % 16
    if places == "argument":
        x = np.lib.stride_tricks.as_strided(x, x.shape, (0, 4))
    tkc.jit(added_in_place)[1](x, rows, places)
    assert x.max() == 1


@pytest.mark.parametrize("places", ["lanes", "in a row", "argument"])
def test_elements_that_are_known_to_differ_need_no_memory_beside_them(places):
    types = described(tkc.float32, 2), described(tkc.int32, 1)
    program = compile(traced(added_in_place, *types, PLACES=places))
    assert not program.metadata["workspace"]
    x = np.zeros((64, 32), np.float32)
    program.run([x, np.zeros(64, np.int32)], (1,))
    assert x.max() == 1 and x.sum() == (64 if places == "lanes" else x.size)


def test_views_of_any_strides():
    base = np.arange(400, dtype=np.float32)
    x, y, out = base[::3][:100], base[::-1][:100], np.zeros(100, np.float32)
    module = kernel(
        [ArrayType(1, f32)] * 3,
        lambda a, b, c: tile.Store(
            c,
            [integer(0)],
            C["sub"](
                tile.Load(a, [integer(0)], (100,)).result, tile.Load(b, [integer(0)], (100,)).result
            ).result,
            (100,),
        ),
    )
    compile(module).run([x, y, out], (1,))
    np.testing.assert_array_equal(out, x - y)


def test_pointers_of_two_rows_may_be_selected():
    """Each pointer is base + step·lane, which a selection element by element is not."""

    def row(array, t):
        return ew.PointerAdd(
            tile.Splat(tile.Pointer(array).result, TileType([20], PointerType(t))).result,
            tile.Arange(0, TileType([20], i32)).result,
        ).result

    def body(x, y, out):
        low = C["lt"](
            tile.Arange(0, TileType([20], i32)).result, tile.Constant(7, TileType([20], i32)).result
        ).result
        chosen = ew.Select(low, row(x, f32), row(y, f32)).result
        tile.Store(out, [integer(0)], tile.LoadPointers(chosen).result, (20,))

    module = kernel([ArrayType(1, f32, DENSE)] * 3, body)
    x, y, out = (np.arange(20, dtype=np.float32) + n for n in (0, 100, 200))
    compile(module).run([x, y, out], (1,))
    np.testing.assert_array_equal(out, np.where(np.arange(20) < 7, x, y))


def test_a_cached_object_runs_without_compiling():
    program = compile(add(64))
    x, out = np.ones(100, np.float32), np.zeros(100, np.float32)
    again = CpuProgram.from_objects(program.objects, json.loads(json.dumps(program.metadata)))
    again.run([x, x, out], (2,))
    assert (out == 2).all() and again.llvm == ""
    unpack(compile(add(64), overlapping=True).pack()).run([x, out, out], (2,))
    assert (out == 3).all()
    with pytest.raises(CompileError, match="another processor"):
        CpuProgram.from_objects(program.objects, {**program.metadata, "processor": "z80"})


@pytest.mark.parametrize(
    "arguments,grid,message",
    [
        ((1,), (1,), "takes 3 arguments, got 1"),
        (("x", "x", "d"), (1,), "has elements float64"),
        (("x", "x", "m"), (1,), "has rank 2"),
        (("x", "x", 3), (1,), "a NumPy array, got int"),
        (("x", "s", "x"), (1,), "strides"),
        (("x", "x", "r"), (1,), "read-only"),
        (("x", "x", "x"), (1, 1, 1, 1), "one to three"),
        (("x", "x", "x"), (-1,), "at least 0"),
        (("x", "x", "x"), (1 << 20, 1 << 20), "programs; at most"),
    ],
)
def test_bad_launches(arguments, grid, message):
    x = np.zeros(8, np.float32)
    named = {
        "x": x,
        "d": np.zeros(8),
        "m": np.zeros((2, 2), np.float32),
        "s": np.zeros(16, np.float32)[::2],
        "r": np.zeros(8, np.float32),
    }
    named["r"].flags.writeable = False
    with pytest.raises(LaunchError, match=message):
        compile(add(64)).run([named.get(a, a) for a in arguments], grid)


def test_scalars_of_every_type():
    for dtype, value in (
        ("i1", True),
        ("i8", -3),
        ("i16", -300),
        ("i64", 1 << 40),
        ("f32", 0.1),
        ("f64", 0.1),
        ("f16", 0.1),
        ("bf16", 0.1),
        ("ui8", 200),
    ):
        module = parse(f"""tile.kernel @k(%o: !tile.array<?x{dtype}>, %s: {dtype}) {{
          %z = tile.constant 0 : i32
          %t = tile.splat %s : ({dtype}) -> !tile.tile<3x{dtype}>
          tile.store %o[%z] %t {{extents = array<i64: 3>}} \
              : (!tile.array<?x{dtype}>, i32, !tile.tile<3x{dtype}>)
          tile.return
        }}""")
        t = module.body.block.first_op.arguments[1].type
        out = np.zeros(3, {v: k for k, v in ELEMENTS.items()}[t])
        compile(module).run([out, value], (1,))
        assert (out == np.asarray(value).astype(out.dtype)).all(), dtype


def test_prints_and_asserts():
    def body(x, n):
        tile.Print(
            operands=[[n, tile.Load(x, [integer(0)], (3,)).result]],
            properties={"text": StringAttr("n, x")},
        )
        tile.Assert(
            operands=[C["gt"](n, integer(0)).result],
            properties={"text": StringAttr("n must be positive")},
        )
        tile.Assert(
            operands=[
                C["lt"](
                    tile.Load(x, [integer(0)], (3,)).result,
                    tile.Constant(3.0, TileType([3], f32)).result,
                ).result
            ],
            properties={"text": StringAttr("x is large")},
        )

    program, said = compile(kernel([ArrayType(1, f32), i32], body)), []
    program.run([np.float32([0, 1, 2]), 5], (1,), out=said.append)
    assert said == ["n, x 5 [0. 1. 2.]"]
    with pytest.raises(DeviceError, match="n must be positive"):
        program.run([np.float32([0, 1, 2]), 0], (1,), out=said.append)
    with pytest.raises(DeviceError, match="x is large"):
        program.run([np.float32([0, 1, 3]), 1], (1,), out=said.append)


def test_levels_above_0_are_refused():
    module = add(64)
    module.body.block.first_op.set_integer("level", 1)
    with pytest.raises(CompileError, match="level 0"):
        compile(module)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86 processor")
def test_code_for_a_processor_without_avx512():
    """The blocking of 8 lanes, and masked accesses that such a processor has no instruction for;
    this one runs the code too.
    """
    random = np.random.default_rng(0)
    for dtype, t in (
        (np.float32, tkc.float32),
        (ml_dtypes.bfloat16, tkc.bfloat16),
        (np.float16, tkc.float16),
    ):
        q, k, v = (random.normal(size=(1, 2, 41, 16)).astype(dtype) for _ in range(3))
        out, want, module = (
            np.zeros_like(q),
            np.zeros_like(q),
            traced(attention, *[described(t, 4)] * 4, number(), True, 16, BM=16, BN=16),
        )
        compile(module, processor="haswell").run([q, k, v, out, 0.25], (3, 2, 1))
        run(module, [q, k, v, want, 0.25], (3, 2, 1))
        np.testing.assert_allclose(
            out.astype(float),
            want.astype(float),
            rtol=2e-2 if dtype != np.float32 else 1e-4,
            atol=1e-2 if dtype != np.float32 else 1e-5,
        )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86 processor")
@pytest.mark.parametrize("processor", [None, "haswell"])
def test_a_table_of_addresses_that_ends_within_a_tile(processor):
    """Pointers that a mask says are there are loaded as the integers of their size."""
    table = '!tile.array<?x!tile.ptr<f32>, "shape 1 strides =1 align 8">'
    array, pointers = '!tile.array<?xf32, "shape 1 strides =1 align 4">', "20x!tile.ptr<f32>"
    module = parse(f"""builtin.module {{ tile.kernel @k(%t: {table}, %y: {array}) {{
      %z = tile.constant 0 : i32
      %p = tile.load %t[%z] {{extents = array<i64: 20>}} : ({table}, i32) -> !tile.tile<{pointers}>
      %i = tile.arange 0 : !tile.tile<20xi32>
      %n = tile.constant 17 : !tile.tile<20xi32>
      %m = tile.lt %i, %n : !tile.tile<20xi32>
      %x = tile.load_pointers %p mask %m
        : (!tile.tile<{pointers}>, !tile.tile<20xi1>) -> !tile.tile<20xf32>
      tile.store %y[%z] %x {{extents = array<i64: 20>}} : ({array}, i32, !tile.tile<20xf32>)
      tile.return }} }}""")
    x, out = np.arange(1, 65, dtype=np.float32), np.zeros(20, np.float32)
    addresses = x.ctypes.data + 12 * np.arange(17)
    compile(module, processor=processor).run([addresses, out], (1,))
    assert (out[:17] == x[:51:3]).all() and not out[17:].any()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86 processor")
@pytest.mark.parametrize("dtype", [np.int8, np.float16, ml_dtypes.bfloat16, np.float32])
def test_accesses_that_no_instruction_masks_are_written_once(dtype):
    """A branch for each lane, which takes most of the time of compiling, stands once for all loads
    of a type and once for all stores. Lanes that are not there are left alone.
    """

    def sums(x, out):
        total = sum(tkc.load(x, (16 * i,), (16,)) for i in range(3))
        for i in range(3):
            tkc.store(out, (16 * i,), total)

    module = traced(sums, *[described(getattr(tkc, np.dtype(dtype).name), 1)] * 2)
    text = program_module.compile(module, processor="haswell")[2]
    for access in ("load", "store"):
        found = re.findall(
            rf"call [^@]*@.llvm.(?:masked.{access}.v16|x86.avx.mask{access}.ps)", text
        )
        assert len(found) == 1 if np.dtype(dtype).itemsize < 4 else len(found) >= 3
    x, out = np.arange(41).astype(dtype), np.full(53, 99, dtype)
    compile(module, processor="haswell").run([x, out[:41]], (1,))
    rows = np.pad(x, (0, 7)).reshape(3, 16)
    assert (out[:41] == np.tile(rows[0] + rows[1] + rows[2], 3)[:41]).all()
    assert (out[41:] == 99).all()


def test_a_while_loop_that_carries_tiles():
    """Both regions change the tile: doubled in the condition's, shifted in the body's; ended by its
    own maximum.
    """
    t = TileType([21], f32)

    def body(x, out, limit):
        before, after = Block(arg_types=[t, i32]), Block(arg_types=[t, i32])
        with ImplicitBuilder(before):
            twice = C["add"](before.args[0], before.args[0]).result
            scf.ConditionOp(
                C["lt"](tile.Reduce("max", twice, 0).result, limit).result,
                twice,
                C["add"](before.args[1], integer(1)).result,
            )
        with ImplicitBuilder(after):
            scf.YieldOp(
                C["add"](tile.Flip(after.args[0], 0).result, tile.Constant(1.0, t).result).result,
                after.args[1],
            )
        last, count = scf.WhileOp(
            [tile.Load(x, [integer(0)], (21,)).result, integer(0)],
            [t, i32],
            Region(before),
            Region(after),
        ).results
        tile.Store(
            out,
            [integer(0)],
            C["add"](last, ew.Cast(tile.Splat(count, TileType([21], i32)).result, t).result).result,
            (21,),
        )

    module = kernel([ArrayType(1, f32), ArrayType(1, f32), f32], body)
    for limit in (0.0, 100.0, 5000.0):
        x = np.arange(21, dtype=np.float32)
        want, got = np.zeros(21, np.float32), np.zeros(21, np.float32)
        run(module, [x, want, limit], (1,))
        compile(module).run([x, got, limit], (1,))
        np.testing.assert_array_equal(got, want)


def test_an_element_wise_kernel_needs_no_workspace_and_a_row_s_kernel_one_buffer():
    """What makes softmax run at the speed of memory: exponentials are kept in one row of scratch,
    everything else is computed where it is used.
    """
    assert compile(add(64)).metadata["workspace"] == 0

    def softmax(x, out):
        row = tile.Load(x, [tile.ProgramId(0).result, integer(0)], (-1, 1000)).result
        e = C["exp"](
            C["sub"](row, tile.Splat(tile.Reduce("max", row, 0).result, row.type).result).result
        ).result
        tile.Store(
            out,
            [tile.ProgramId(0).result, integer(0)],
            C["div"](e, tile.Splat(tile.Reduce("sum", e, 0).result, row.type).result).result,
            (-1, 1000),
        )

    assert compile(kernel([ArrayType(2, f32)] * 2, softmax)).metadata["workspace"] <= 4096 + 64


def test_a_program_whose_memory_newgvn_numbered_twice():
    """An LLVM with assertions aborted, and the process with it."""
    text = (Path(__file__).parent / "memory_numbered_twice.mlir").read_text()
    compile(parse(text))


def test_a_program_is_linked_once_however_many_threads_begin_with_it(monkeypatch):
    """Of two libraries one was unmapped while a thread ran in it (a crash from Python 3.12 on)."""
    linked, link = [], running.link

    def slow(*given):
        linked.append(given)
        time.sleep(0.05)
        return link(*given)

    monkeypatch.setattr(running, "link", slow)
    program, entries = compile(add(64)), set()
    threads = [threading.Thread(target=lambda: entries.add(id(program._entry))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(linked) == len(entries) == 1
