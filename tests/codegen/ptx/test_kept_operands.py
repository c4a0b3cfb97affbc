"""Left operands in registers that a loop reads in every iteration are read behind it by other than
wgmma, lest ptxas before 13.1 overwrite them.
"""

import re

import numpy as np
import pytest

import tkc
from tkc.fuzz.lost_operands import lost_operands


@tkc.jit
def normed(x):
    x = x.to(tkc.float32)
    return (x * tkc.rsqrt(tkc.sum(x * x, 1) + 1e-6)[:, None]).to(tkc.bfloat16)


@tkc.jit
def by_cosines(q, k, o, N, D: tkc.constexpr):
    x = normed(tkc.load(q, (0, 0), (64, D)))
    acc = tkc.zeros((64, D), tkc.float32)
    for n in range(0, N, 64):
        y = tkc.load(k, (n, 0), (64, D))
        acc = tkc.dot(tkc.exp(tkc.dot(x, normed(y).T) - 1).to(q.dtype), y, acc)
    tkc.store(o, (0, 0), acc)


@tkc.jit
def by_cosines_of_several(q, k, o, N, H, D: tkc.constexpr):
    acc = tkc.zeros((64, D), tkc.float32)
    for h in range(H):
        x = (tkc.load(q, (h * 64, 0), (64, D)).to(tkc.float32) * 0.5).to(q.dtype)
        for n in range(0, N, 64):
            y = tkc.load(k, (n, 0), (64, D))
            acc = tkc.dot(tkc.exp(tkc.dot(x, y.T) - 1).to(q.dtype), y, acc)
    tkc.store(o, (0, 0), acc)


@tkc.jit
def in_two_loops(q, k, o, N, H, D: tkc.constexpr):
    x = (tkc.load(q, (0, 0), (64, D)).to(tkc.float32) * 0.5).to(q.dtype)
    acc = tkc.zeros((64, D), tkc.float32)
    for h in range(H):
        for n in range(0, N, 64):
            y = tkc.load(k, (h * N + n, 0), (64, D))
            acc = tkc.dot(tkc.exp(tkc.dot(x, y.T) - 1).to(q.dtype), y, acc)
    tkc.store(o, (0, 0), acc)


def text_of(kernel, *numbers: str) -> str:
    """The PTX of a kernel, compiled anew."""
    arrays = "bf16[4096, 64]", "bf16[4096, 64]", "f32[64, 64]"
    fresh = tkc.jit(kernel.fn)
    return fresh.compile(*arrays, *numbers, D=64, num_warps=4, target="sm_90a").ptx


@pytest.mark.parametrize(
    ("kernel", "numbers"),
    [(by_cosines, 1), (by_cosines_of_several, 2), (in_two_loops, 2)],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_an_operand_that_a_loop_found_is_read_behind_it(kernel, numbers):
    text = text_of(kernel, *["i32"] * numbers)
    assert not list(lost_operands(text))
    never = re.search(r"setp.eq.u32 (%p\d+), %r\d+, 0;\s+@\1 st.shared", text)[1]
    without = "\n".join(line for line in text.splitlines() if f"@{never} " not in line)
    lost = {register for _, register in lost_operands(without)}
    assert len(lost) == 64 * 64 // 128 // 2  # two elements a register


def test_what_a_loop_carries_needs_no_read():
    text = "$a:\nwgmma.mma_async.x {%r1}, {%r2}, %d1, 1;\nmov.b32 %r2, %r3;\n@%p1 bra $a;\n"
    assert not list(lost_operands(text))
    assert list(lost_operands(text.replace("mov.b32 %r2", "mov.b32 %r4"))) == [(2, "%r2")]


def test_a_read_counts_unless_the_register_was_written_before_it():
    loop = "$a:\nwgmma.mma_async.x {%r1}, {%r2}, %d1, 1;\n@%p1 bra $a;\n"
    assert not list(lost_operands(loop + "@%p2 st.shared.b32 [%r9], %r2;\n"))
    assert not list(lost_operands(loop + "add.s32 %r2, %r2, 1;\n"))
    assert list(lost_operands(loop + "mov.b32 %r2, 0;\nst.shared.b32 [%r9], %r2;\n"))
    assert list(lost_operands(loop + "wgmma.mma_async.x {%r1}, {%r2}, %d1, 1;\n"))
    assert not list(lost_operands("wgmma.mma_async.x {%r1}, {%r2}, %d1, 1;\n"))
    assert not list(lost_operands(loop.replace("{%r2}", "%d2")))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [128, 4096])
def test_what_is_multiplied_stays(rows):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(rows)
    q, k = (torch.tensor(rng.standard_normal((n, 64))).bfloat16().cuda() for n in (64, rows))
    o = torch.empty(64, 64, device="cuda")
    by_cosines[1](q, k, o, rows, D=64, num_warps=4)
    x, y = (t.double() / t.double().norm(dim=1, keepdim=True) for t in (q, k))
    want = (x @ y.T - 1).exp() @ k.double()
    assert ((o - want).norm() / want.norm()).item() < 0.02
