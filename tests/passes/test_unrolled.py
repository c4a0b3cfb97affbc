"""Loops that Python unrolls: what lives together counts, not what all of it adds up to."""

import pytest

import tkc

TARGETS = ("sm_80", "sm_89", "sm_90a")


@tkc.jit
def product(a, b, c, K: tkc.constexpr):
    acc = tkc.zeros((64, 64))
    for k in range(0, K, 32):
        acc = tkc.dot(tkc.load(a, (0, k), (64, 32)), tkc.load(b, (k, 0), (32, 64)), acc)
    tkc.store(c, (0, 0), acc)


@tkc.jit
def added(a, b, c, K: tkc.constexpr):
    acc = tkc.zeros((64, 64))
    for k in range(0, K, 32):
        acc += tkc.dot(tkc.load(a, (0, k), (64, 32)), tkc.load(b, (k, 0), (32, 64))) * 0.5
    tkc.store(c, (0, 0), acc)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", [product, added])
@pytest.mark.parametrize("k", [768, 1024])
def test_operands_of_an_unrolled_loop_take_turns_in_shared_memory(kernel, k, target):
    found = kernel.compile(f"f16[64, {k}]", f"f16[{k}, 64]", "f32[64, 64]", k, target=target)
    shared = next(line for line in found.decisions if line.startswith("allocate-shared"))
    assert int(shared.split()[-1]) <= 4 * (64 * 32 * 2), shared


@pytest.mark.parametrize("k, roles", [(256, True), (768, False)])
def test_few_rings_are_carried(k, roles):
    """Each dot outside of a loop has a ring: many of them would fill the registers."""
    given = f"f16[64, {k}]", f"f16[{k}, 64]", "f32[64, 64]", k
    said = "\n".join(product.compile(*given, target="sm_90a").decisions)
    assert ("a producer warp" in said) == roles
    assert ("the operands of its dots take 24 rings" in said) != roles


@tkc.jit
def convolution(
    x,
    w,
    y,
    R: tkc.constexpr,
    S: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """An implicit product: x [N, H, W, C], w [R, S, C, K], y [N, P, Q, K], loaded by pointers."""
    N, H, W, C = x.shape
    _, P, Q, K = y.shape
    rm, n = tkc.program_id(0) * BM + tkc.arange(0, BM), tkc.program_id(1) * BN
    image, p, q = rm // (P * Q), rm // Q % P, rm % Q
    acc = tkc.zeros((BM, BN))
    rc, rn = tkc.arange(0, BK), n + tkc.arange(0, BN)
    for rs in range(R * S):
        h, column = p + rs // S - 1, q + rs % S - 1
        inside = (h >= 0) & (h < H) & (column >= 0) & (column < W) & (image < N)
        base = ((image * H + h) * W + column) * C
        for c in range(0, C, BK):
            a = tkc.load(
                x.ptr + base[:, None] + (c + rc)[None, :],
                mask=inside[:, None] & (c + rc < C)[None, :],
            )
            b = tkc.load(
                w.ptr + (rs * C + c + rc)[:, None] * K + rn[None, :],
                mask=(c + rc < C)[:, None] & (rn < K)[None, :],
            )
            acc = tkc.dot(a, b, acc)
    tkc.store(
        y.ptr + rm[:, None] * K + rn[None, :],
        acc.to(y.dtype),
        mask=(rm < N * P * Q)[:, None] & (rn < K)[None, :],
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("blocks", [(128, 128, 64), (64, 64, 32), (64, 128, 64)], ids=str)
def test_a_convolution_by_pointers_in_an_unrolled_loop(blocks, target):
    """Nine loops, one behind the other, each with operands of its own."""
    x, w = "f16[32, 56, 56, 256]", "f16[3, 3, 256, 256]"
    assert convolution.compile(x, w, x, 3, 3, *blocks, target=target).ptx
