"""tkc.gather: in every way of running, beside dots, and what is refused."""

import numpy as np
import pytest

import tkc


@tkc.jit
def rotated(x, out, M: tkc.constexpr, N: tkc.constexpr):
    """Row i rotated by i, and the columns reversed."""
    tile = tkc.load(x, (0, 0), (M, N))
    place = (tkc.arange(N)[None, :] + tkc.arange(M)[:, None]) % N
    turned = tkc.gather(tile, place, axis=1)
    tkc.store(
        out,
        (0, 0),
        tkc.gather(turned, M - 1 - tkc.arange(M)[:, None] + tkc.zeros((M, N), tkc.int32), 0),
    )


@pytest.mark.parametrize("how", ["cpu", "TKC_INTERPRET", "TKC_SIM", "TKC_VALIDATE"])
@pytest.mark.parametrize("m, n", [(1, 1), (7, 100), (32, 64)])
def test_every_way(how, m, n, monkeypatch):
    monkeypatch.setenv(how if how != "cpu" else "TKC_NONE", "1")
    x, out = np.random.rand(m, n).astype(np.float32), np.zeros((m, n), np.float32)
    rotated[1](x, out, m, n)
    assert (out == np.stack([np.roll(row, -i) for i, row in enumerate(x)])[::-1]).all()


@tkc.jit
def routed(a, b, rows, out, K, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """The rows of a product in another order."""
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(0, K, BK):
        acc = tkc.dot(tkc.load(a, (0, k), (BM, BK)), tkc.load(b, (k, 0), (BK, BN)), acc)
    place = tkc.load(rows, (0,), (BM,))
    moved = tkc.gather(acc, tkc.broadcast_to(place[:, None], (BM, BN)), 0)
    tkc.store(out, (0, 0), moved.to(out.dtype))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_beside_dots(target, monkeypatch):
    r = np.random.default_rng(0)
    a, b = (r.integers(-3, 4, s).astype(np.float16) for s in ((64, 128), (128, 64)))
    rows, out = r.permutation(64).astype(np.int32), np.zeros((64, 64), np.float32)
    monkeypatch.setenv("TKC_TARGET", target)
    for how in ("TKC_SIM", "TKC_NONE"):
        monkeypatch.setenv(how, "1")
        out[:] = 0
        routed[1](a, b, rows, out, 128, 64, 64, 64)
        assert (out == (a.astype(np.float32) @ b.astype(np.float32))[rows]).all()
        monkeypatch.delenv(how)
    compiled = routed.compile(a, b, rows, out, 128, 64, 64, 64, target=target)
    assert not compiled.resources.spill_stores


def test_refused():
    def wrong(x, out, AXIS: tkc.constexpr, SHAPE: tkc.constexpr, DTYPE: tkc.constexpr):
        tile = tkc.load(x, (0, 0), (4, 8))
        tkc.store(out, (0, 0), tkc.gather(tile, tkc.zeros(SHAPE, DTYPE), AXIS))

    x = np.zeros((4, 8), np.float32)
    for axis, shape, dtype, words in (
        (0, (4, 9), tkc.int32, "other extents"),
        (0, (4,), tkc.int32, "rank of the tile"),
        (2, (4, 8), tkc.int32, "axis 2"),
        (0, (4, 8), tkc.float32, "are integers"),
    ):
        with pytest.raises(tkc.CompileError, match=words):
            tkc.jit(wrong)[1](x, x, axis, shape, dtype)
