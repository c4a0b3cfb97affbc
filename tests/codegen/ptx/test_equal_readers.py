"""Results of dots share registers only where ptxas cannot take one for the other."""

import re

import ml_dtypes
import numpy as np
import pytest

import tkc
from tkc.codegen.ptx import ptxas, register_coalescing
from tkc.codegen.ptx.emit import emit
from tkc.fuzz.merged_reads import merged_reads
from tkc.ir.target import TARGETS
from tkc.ir.text import parse
from tkc.kernels import rwkv
from tkc.language.signature import Options
from tkc.passes import PassContext
from tkc.passes.pipeline import PIPELINE, module_of

DOTS = 4  # of one block: two pairs, each read by one multiplication with the same weights


def text_of_pairs() -> str:
    """The PTX of a kernel that stores weights * dot for four dots, one after the other."""
    operands = [np.zeros((1, 64, 1, 64), ml_dtypes.bfloat16) for _ in range(12)]
    lower, ends = np.zeros((1, 64, 1, 64), np.float32), np.zeros((1, 1, 64), np.float32)
    given = (*operands[:5], None, *operands[5:8], lower, *operands[8:], ends, 1.0)
    sizes = {"C": 64, "K": 64, "SHORT": 64, "num_warps": 8}
    fresh = tkc.jit(rwkv._pairs.fn)  # compiled anew, whatever was compiled before
    return fresh.compile(*given, **sizes, target="sm_90a").ptx


def accumulators(text: str) -> list[str]:
    """The registers of each wgmma."""
    return re.findall(r"wgmma\.mma_async\S* (\{[^}]*\})", text)


def test_dots_that_are_read_alike_have_their_own_registers():
    text = text_of_pairs()
    assert not list(merged_reads(text))
    assert len(set(accumulators(text))) >= DOTS // 2  # the others may take turns


@tkc.jit
def whole_then_in_parts(a, b, c, y):
    left, right = tkc.load(a, (0, 0), (128, 32)), tkc.load(b, (0, 0), (32, 32))
    first = tkc.dot(tkc.minimum(left, 2), tkc.maximum(right, 0)) % 3
    below = tkc.arange(128)[:, None] >= tkc.arange(32)[None, :]
    right = tkc.maximum(tkc.load(c, (0, 0), (32, 32)), 0)
    second = tkc.dot(tkc.where(below, first, 0).to(tkc.float16), right) % 3
    tkc.store(y, (0, 0), tkc.where(below, second, 0).to(tkc.float16))


def test_a_dot_that_is_read_in_parts_is_read_as_one_that_is_read_whole():
    a, b, c, y = (np.zeros((n, 32), np.float16) for n in (128, 32, 32, 128))
    text = whole_then_in_parts.compile(a, b, c, y, num_warps=4, target="sm_90a").ptx
    assert "wgmma" in text and not list(merged_reads(text))


@pytest.mark.skipif(ptxas.find("nvdisasm") is None, reason="nvdisasm is not installed")
@pytest.mark.parametrize("apart", [True, False])
def test_ptxas_keeps_every_dot(monkeypatch, apart):
    """Without the rule ptxas drops one: where a later release keeps all, the rule can go."""
    monkeypatch.setenv("TKC_CACHE", "0")
    if not apart:
        monkeypatch.setattr(register_coalescing, "read_alike", lambda left, right: False)
    text = text_of_pairs()
    code = ptxas.disassemble(ptxas.assemble(text, "sm_90a").cubin)
    kept = len(re.findall(r"HGMMA\.64x\d+x16\.F32", code))
    assert bool(list(merged_reads(text))) is not apart
    assert (kept == len(accumulators(text))) is apart


def test_numbers_of_lines():
    text = """
        wgmma.mma_async.sync.aligned.m64n8k16 {%r0, %r1}, %d0, %d1, 0;
        mul.f32 %r2, %r9, %r0;
        SEPARATE
        wgmma.mma_async.sync.aligned.m64n8k16 {%r0, %r1}, %d0, %d2, 0;
        mul.f32 %r3, %r9, %r0;
        mul.f32 %r4, %r9, %r0;
    """
    assert list(merged_reads(text)) == [(3, 6), (3, 7)]
    for separate in ("$next:", "@%p0 st.shared.b32 [%r8], %r2;", "@%p0 bra $next;"):
        assert not list(merged_reads(text.replace("SEPARATE", separate)))
    other = text.replace("SEPARATE", "add.f32 %r9, %r9, %r9;")
    assert not list(merged_reads(other))


def test_a_loop_that_may_be_unrolled_merges_with_itself():
    text = """
        $loop:
        wgmma.mma_async.sync.aligned.m64n8k16 {%r0, %r1}, %d0, %d1, 0;
        mul.f32 %r2, %r9, %r0;
        @%p0 bra $loop;
    """
    assert list(merged_reads(text)) == [(4, 4)]
    assert not list(merged_reads(text.replace("$loop:", '$loop:\n.pragma "nounroll";', 1)))
    assert not list(merged_reads(text.replace("mul", "@%p1 st.shared.b32 [%r8], %r3;\nmul")))


IN_FLIGHT = """
builtin.module {
  tile.kernel @kernel(
      %a: !tile.array<?x?xf16>, %b: !tile.array<?x?xf16>,
      %c: !tile.array<?x?xf16, "shape 128 16 strides 16 =1 align 16">,
      %d: !tile.array<?x?xf16, "shape 128 16 strides 16 =1 align 16">, %n: i32
  ) {level = 0 : i64, argument_names = ["a", "b", "c", "d", "n"]} {
    %0 = tile.constant 0 : i32
    %1 = tile.load %a[%0, %0] {extents = array<i64: 16, 16>}
        : (!tile.array<?x?xf16>, i32, i32) -> !tile.tile<16x16xf16>
    %2 = tile.load %b[%0, %0] {extents = array<i64: 16, 16>}
        : (!tile.array<?x?xf16>, i32, i32) -> !tile.tile<16x16xf16>
    %3 = tile.constant 1.000000e+00 : !tile.tile<64x16xf16>
    %4 = tile.constant 0.000000e+00 : !tile.tile<64x16xf32>
    %5 = tile.dot %3, %1, %4 {precision = "ieee"}
        : (!tile.tile<64x16xf16>, !tile.tile<16x16xf16>, !tile.tile<64x16xf32>)
        -> !tile.tile<64x16xf32>
    %6 = tile.dot %3, %2, %4 {precision = "ieee"}
        : (!tile.tile<64x16xf16>, !tile.tile<16x16xf16>, !tile.tile<64x16xf32>)
        -> !tile.tile<64x16xf32>
    %7 = tile.ge %5, %4 : !tile.tile<64x16xf32>
    %8 = tile.cast %6 : !tile.tile<64x16xf32> to !tile.tile<64x16xf16>
    tile.store %c[%n, %0] %8 {extents = array<i64: 64, 16>}
        : (!tile.array<?x?xf16, "shape 128 16 strides 16 =1 align 16">, i32, i32,
           !tile.tile<64x16xf16>)
    tile.store %d[%0, %0] %8 mask %7 {extents = array<i64: 64, 16>}
        : (!tile.array<?x?xf16, "shape 128 16 strides 16 =1 align 16">, i32, i32,
           !tile.tile<64x16xf16>, !tile.tile<64x16xi1>)
    tile.return
  }
}
"""


def text_in_flight() -> str:
    module = parse(IN_FLIGHT)
    context = PassContext(TARGETS["sm_90a"], Options(num_warps=8, num_stages=2))
    for name in PIPELINE:
        module_of(name).run(module, context)
    return emit(module, TARGETS["sm_90a"]).text


def test_a_dot_in_flight_is_not_copied_where_an_earlier_one_is_waited_for():
    """The second dot's result is read twice alike, whole and by subtile, both times of one dot,
    so that ptxas may merge the two. A fault until 2026-11-29 (random kernel 24003909): the result
    had other registers behind the first wait than before it, and was copied in flight.
    """
    text = text_in_flight()
    second = accumulators(text)[1].strip("{}").split(", ")
    flight = text[text.index("wgmma.wait_group.sync.aligned 1") :]
    flight = flight[: flight.index("wgmma.wait_group.sync.aligned 0")]
    assert "setp" in flight and not any(re.search(rf"{r}\b", flight) for r in second)


def test_a_dot_in_flight_that_must_be_copied_is_waited_for(monkeypatch):
    monkeypatch.setattr(register_coalescing, "read_alike", lambda left, right: True)
    waits = re.findall(r"wgmma\.wait_group\S* (\d)", text_in_flight())
    assert waits == ["0", "0"]
