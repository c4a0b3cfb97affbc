"""Arrays whose address is the argument."""

import numpy as np
import pytest

import tkc
from tests.operations.case import DTYPES


@tkc.jit
def add(x: tkc.pointer, y: tkc.pointer, out: tkc.pointer, n, BLOCK: tkc.constexpr):
    at = tkc.program_id(0) * BLOCK + tkc.arange(BLOCK)
    inside = at < n
    tkc.store(out + at, tkc.load(x + at, mask=inside) + tkc.load(y + at, mask=inside), mask=inside)


@tkc.jit(pointers=True)
def rows(x, out, m, n, stride, M: tkc.constexpr, N: tkc.constexpr):
    """The sums of a matrix's rows, which lie `stride` elements apart."""
    i, j = tkc.arange(M), tkc.arange(N)
    mask = (i < m)[:, None] & (j < n)[None, :]
    tile = tkc.load(x + i[:, None] * stride + j[None, :], mask=mask)
    tkc.store(out + i, tkc.sum(tile, axis=1), mask=i < m)


@pytest.mark.parametrize("how", ["TKC_INTERPRET", "TKC_SIM", "cpu"])
@pytest.mark.parametrize("n", [1, 7, 100, 1000])
def test_sums(how, n, monkeypatch):
    if how != "cpu":
        monkeypatch.setenv(how, "1")
    for dtype in DTYPES if how == "cpu" else DTYPES[n % 3 :: 5]:
        x = (np.arange(n) % 13).astype(dtype)
        out = np.zeros(n, np.int32 if dtype == np.bool_ else dtype)
        add[tkc.cdiv(n, 128)](x, x[::-1].copy(), out, n, 128)
        want = x.astype(np.float64) + x[::-1].astype(np.float64)
        assert (out == want.astype(out.dtype)).all(), dtype


def test_a_view_with_strides():
    whole = np.random.default_rng(0).normal(size=(20, 64)).astype(np.float32)
    x, out = whole[3:16, 5:38], np.zeros(13, np.float32)
    rows[1](x, out, 13, 33, 64, 16, 64)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5)


def test_extents_are_no_part_of_what_is_compiled():
    before = len(add._compiled)
    for shape in ((3, 5), (15,), (16, 16), (1, 1, 128)):
        x = np.ones(shape, np.float32)
        add[1](x, x, np.zeros_like(x), x.size, 256)
    new = {s for (s, _), _ in add._compiled} - set()
    facts = {s.arguments[0][1] for s in new if s.arguments[0][1][1] == "float32"}
    assert len({f[:4] for f in facts}) == 1 and len(add._compiled) - before <= 6


def test_none_stays_none():
    @tkc.jit
    def fill(x: tkc.pointer, y: tkc.pointer):
        tkc.store(x, 2.0 if y is None else tkc.load(y))

    x = np.zeros(1, np.float32)
    fill[1](x, None)
    assert x[0] == 2
    fill[1](x, np.ones(1, np.float32))
    assert x[0] == 1


def test_bounds_are_known_from_the_launch(monkeypatch):
    x, out = np.ones(40, np.float32), np.zeros(40, np.float32)
    with pytest.raises(tkc.TrapError, match="outside of argument x"):
        add[1](x[:30], x, out, 31, 64, debug=True)
    with pytest.raises(tkc.TrapError, match="outside of argument out"):
        add[1](x, x, out[5:], 36, 64, debug=True)
    for how in ("TKC_INTERPRET", "TKC_SIM"):
        monkeypatch.setenv(how, "1")
        with pytest.raises(tkc.Error, match="has bytes 0 to 120"):
            add[1](x[:30].copy(), x, out, 31, 64)
        monkeypatch.delenv(how)


def test_refused():
    x = np.ones(8, np.float32)
    with pytest.raises(tkc.LaunchError, match="a negative stride puts elements before the first"):
        add[1](x[::-1], x, x, 8, 8)
    with pytest.raises(tkc.CompileError, match="pointers take"):

        @tkc.jit
        def wrong(x: tkc.pointer):
            tkc.store(x, x * 2)

        wrong[1](x)


@tkc.jit(pointers=True)
def product(a, b, c, M, N, K, sa, sb, sc, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    i = tkc.program_id(0) * BM + tkc.arange(BM)
    j = tkc.program_id(1) * BN + tkc.arange(BN)
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(0, K, BK):
        p = k + tkc.arange(BK)
        x = tkc.load(a + i[:, None] * sa + p[None, :], mask=(i < M)[:, None] & (p < K)[None, :])
        y = tkc.load(b + p[:, None] * sb + j[None, :], mask=(p < K)[:, None] & (j < N)[None, :])
        acc = tkc.dot(x, y, acc)
    tkc.store(
        c + i[:, None] * sc + j[None, :],
        acc.to(tkc.float16),
        mask=(i < M)[:, None] & (j < N)[None, :],
    )


def test_products_by_pointers_run_on_tensor_maps():
    h = "f16[4096, 4096]"
    sizes = ["i32:16"] * 6
    compiled = product.compile(h, h, h, *sizes, 128, 128, 64, target="sm_90a")
    assert any("3 accesses by pointers are blocks" in line for line in compiled.decisions)
    assert "wgmma" in compiled.ptx and "cp.async.bulk.tensor" in compiled.ptx
    for target in ("sm_80", "sm_89"):
        compiled = product.compile(h, h, h, *sizes, 128, 128, 64, target=target)
        assert not compiled.resources.spill_stores


@tkc.jit(pointers=True)
def grouped_product(a, b, c, M, N, K, sa, sb, sc, BM: tkc.constexpr, BK: tkc.constexpr):
    """Programs in groups of rows, rows and columns taken modulo the extents, pointers that move."""
    pid, wide = tkc.program_id(0), tkc.cdiv(N, BM)
    first = pid // (8 * wide) * 8
    high = tkc.minimum(tkc.cdiv(M, BM) - first, 8)
    row, column = first + (pid % (8 * wide)) % high, pid % (8 * wide) // high
    i = (row * BM + tkc.arange(BM)) % M
    j = (column * BM + tkc.arange(BM)) % N
    p = tkc.arange(BK)
    left, right = a + (i[:, None] * sa + p[None, :]), b + (p[:, None] * sb + j[None, :])
    acc = tkc.zeros((BM, BM))
    for k in tkc.range(0, tkc.cdiv(K, BK)):
        x = tkc.load(left, mask=p[None, :] < K - k * BK, other=0.0)
        acc = tkc.dot(x, tkc.load(right, mask=p[:, None] < K - k * BK, other=0.0), acc)
        left, right = left + BK, right + BK * sb
    i, j = row * BM + tkc.arange(BM), column * BM + tkc.arange(BM)
    mask = (i[:, None] < M) & (j[None, :] < N)
    tkc.store(c + (i[:, None] * sc + j[None, :]), acc.to(tkc.float16), mask=mask)


@pytest.mark.parametrize("semantics", ["torch", "triton"])
def test_indices_of_either_division_are_raised(semantics, monkeypatch):
    h = "f16[4096, 4096]"
    compiled = grouped_product.compile(
        h, h, h, *["i32:16"] * 6, 128, 64, target="sm_90a", semantics=semantics
    )
    assert any("3 accesses by pointers are blocks" in line for line in compiled.decisions)
    assert "wgmma" in compiled.ptx
    r = np.random.default_rng(0)
    a, b = (r.integers(-3, 4, s).astype(np.float16) for s in ((80, 96), (96, 48)))
    for how in ("TKC_NONE", "TKC_SIM"):
        monkeypatch.setenv(how, "1")
        c = np.zeros((80, 48), np.float16)
        grouped_product[6](a, b, c, 80, 48, 96, 96, 48, 48, 32, 32, semantics=semantics)
        assert (c == (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)).all()
