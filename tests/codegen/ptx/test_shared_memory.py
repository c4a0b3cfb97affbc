"""tile.write and tile.read: the addresses that are emitted are those of SharedLayout, whatever the
layouts and swizzle.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.codegen.ptx.shared_memory import split
from tkc.ir.dtypes import BY_NAME
from tkc.ir.fragments import mma_a, mma_accumulator, mma_b
from tkc.ir.layout import Layout, blocked
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.target import target
from tkc.ir.text import parse
from tkc.sim.ptx import run

TYPES = {8: "int8", 16: "float16", 32: "float32", 64: "float64"}


def trip(
    shape,
    dtype,
    there: Layout,
    memory: SharedLayout,
    back: Layout,
    machine="sm_90a",
    transposed=False,
):
    """Loads a tile, writes it as `there`, reads it as `back` (of the transposed buffer, if so) and
    stores it.
    """
    t, (m, n) = BY_NAME[dtype].ir, shape
    out = (n, m) if transposed else shape

    def array(s):
        return f'!tile.array<?x?x{t}, "shape ={s[0]} ={s[1]} strides ={s[1]} =1 align 16">'

    def tile(s, layout):
        return f'!tile.tile<{s[0]}x{s[1]}x{t}, "{layout}">'

    buffer = f'!tile.shared<1, {m}x{n}x{t}, "{memory}">'
    turned = f'!tile.shared<1, {n}x{m}x{t}, "{memory.transpose((1, 0))}">'
    turn = (
        f"%u = tile.shared_transpose %s {{permutation = array<i64: 1, 0>}} : ({buffer}) -> {turned}"
        if transposed
        else ""
    )
    a, o = array(shape), array(out)
    x, y = tile(shape, there), tile(out, back)
    read, held = ("%u", turned) if transposed else ("%s", buffer)
    attributes = f"warps = {there.num_warps} : i64, shared_bytes = {memory.bytes + 1024} : i64"
    text = f"""builtin.module {{
    tile.kernel @trip(%a: {a}, %o: {o}) {{{attributes}, level = 4 : i64}} {{
      %z = tile.constant 0 : i32
      %s = tile.alloc 1024 : {buffer}
      %x = tile.load %a[%z, %z] {{extents = array<i64: {m}, {n}>}} : ({a}, i32, i32) -> {x}
      tile.write %s, %x : ({buffer}, {x})
      tile.block_barrier
      {turn}
      %y = tile.read {read} : ({held}) -> {y}
      tile.store %o[%z, %z] %y {{extents = array<i64: {out[0]}, {out[1]}>}} : ({o}, i32, i32, {y})
      tile.return }} }}"""
    program = emit(parse(text), target(machine))
    x = np.arange(m * n).reshape(shape).astype(BY_NAME[dtype].numpy)
    got = run(program, [x, np.zeros(out, x.dtype)])[1]
    assert np.array_equal(got, x.T if transposed else x)
    return program.text


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_two_layouts(data):
    width, swizzle = (
        data.draw(st.sampled_from([8, 16, 32, 64])),
        data.draw(st.sampled_from([0, 16, 32, 64, 128])),
    )
    columns = data.draw(
        st.sampled_from(
            [8, 40, 64, 128]
            if swizzle == 0
            else [max(swizzle, 16) * 8 // width, 2 * swizzle * 8 // width]
        )
    )
    shape = data.draw(st.sampled_from([1, 7, 16, 32, 96])), columns
    pad = data.draw(st.sampled_from([0, 16])) if swizzle == 0 else 0
    memory, warps = (
        SharedLayout(shape, width, swizzle, pad=pad),
        data.draw(st.sampled_from([1, 2, 4])),
    )
    layouts = [
        blocked(
            shape,
            data.draw(st.sampled_from([1, 2, 4, 8, 16])),
            warps,
            data.draw(st.sampled_from([(1, 0), (0, 1)])),
        )
        for _ in range(2)
    ]
    trip(
        shape,
        TYPES[width],
        layouts[0],
        memory,
        layouts[1],
        data.draw(st.sampled_from(["sm_80", "sm_90a"])),
    )


@pytest.mark.parametrize("swizzle", [0, 16, 32, 64, 128])
@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
@pytest.mark.parametrize("warps", [(1, 1), (2, 2), (4, 1)])
def test_fragments(dtype, swizzle, warps):
    """Accumulators out by stmatrix, operands in by ldmatrix, plain and transposed."""
    bits = BY_NAME[dtype].bits
    shape = (64, 128 * 8 // bits)
    memory = SharedLayout(shape, bits, swizzle, pad=16 if swizzle == 0 else 0)
    there = mma_accumulator(*shape, *warps)
    a = trip(shape, dtype, there, memory, mma_a(*shape, *warps, bits=bits))
    b = trip(shape, dtype, there, memory, mma_b(*shape, *warps, bits=bits))
    turned = trip(
        shape, dtype, there, memory, mma_b(*shape[::-1], *warps, bits=bits), transposed=True
    )
    assert "ldmatrix" in a and "ldmatrix" in turned
    if dtype == "float16":
        assert "stmatrix" in a and ".trans" in b
    if dtype == "float16" and swizzle == 128:
        assert a.count("xor.b32") <= 20, "the swizzle is hoisted: one XOR a distinct place"


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_split_says_where_everything_is(data):
    memory = SharedLayout((64, 64), 16, data.draw(st.sampled_from([32, 64, 128])))
    layout = data.draw(
        st.sampled_from(
            [
                blocked((64, 64), 8, 4),
                mma_a(64, 64, 2, 2),
                mma_b(64, 64, 2, 2),
                blocked((64, 64), 1, 2, (0, 1)),
            ]
        )
    )
    offsets = memory.offsets(layout.table()).reshape(-1, layout.num_registers)
    for i, p in enumerate(split(offsets, memory.atom)):
        assert np.array_equal(offsets[:, i], (offsets[:, p.base] ^ p.flip) + p.step)


@pytest.mark.skipif(
    ptxas.find("ptxas") is None, reason="ptxas is not installed (pip install nvidia-cuda-nvcc)"
)
def test_it_assembles():
    memory = SharedLayout((64, 64), 16, 128)
    found = ptxas.assemble(
        trip((64, 64), "float16", mma_accumulator(64, 64, 4), memory, mma_a(64, 64, 4)), "sm_90a"
    )
    assert found.clean, found.log


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("start", range(0, 15))
def test_a_slice_that_begins_between_vectors(start, known):
    """Of 2 of 16 elements, at a place that is known or given: an access of both needs it to be
    even.
    """
    pair, whole = "2: 2:1@0 | 32:* | 1:*", "16: - | 16:1@0 2:* | 1:*"
    array = '!tile.array<?xf32, "shape 1 strides =1 align 16">'
    held = f'!tile.tile<16xf32, "{whole}">'
    buffer, part = '!tile.shared<1, 16xf32, "16xb32">', '!tile.shared<1, 2xf32, "2xb32">'
    text = f"""builtin.module {{
    tile.kernel @cut(%a: {array}, %o: {array}, %given: i32)
        {{warps = 1 : i64, level = 4 : i64, shared_bytes = 64 : i64}} {{
      %z = tile.constant 0 : i32
      %n = tile.constant {start} : i32
      %s = tile.alloc 0 : {buffer}
      %x = tile.load %a[%z] {{extents = array<i64: 16>}} : ({array}, i32) -> {held}
      tile.write %s, %x : ({buffer}, {held})
      tile.block_barrier
      %c = tile.shared_slice %s[{"%n" if known else "%given"}] : ({buffer}, i32) -> {part}
      %y = tile.read %c : ({part}) -> !tile.tile<2xf32, "{pair}">
      tile.store %o[%z] %y {{extents = array<i64: 2>}} : ({array}, i32, !tile.tile<2xf32, "{pair}">)
      tile.return }} }}"""
    program, x = emit(parse(text), target("sm_80")), np.arange(16, dtype=np.float32)
    assert ("ld.shared.v2" in program.text) == (known and start % 2 == 0)
    assert run(program, [x, np.zeros(2, np.float32), start])[1].tolist() == [start, start + 1]
