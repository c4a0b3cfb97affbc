"""Results of dots share registers only where ptxas cannot take one for the other."""

import re

import ml_dtypes
import numpy as np
import pytest

import tkc
from tkc.codegen.ptx import ptxas, register_coalescing
from tkc.fuzz.merged_reads import merged_reads
from tkc.kernels import rwkv

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
