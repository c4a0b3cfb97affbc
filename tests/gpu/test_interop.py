"""Launches among what else runs on a GPU: graphs, streams, threads."""

import threading

import numpy as np
import pytest

import tkc
from tests.runtime.kernels import add, grid

torch = pytest.importorskip("torch")


@tkc.jit
def product(a, b, c, BM: tkc.constexpr = 64, BN: tkc.constexpr = 64, BK: tkc.constexpr = 64):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


def test_a_graph_of_launches_is_replayed():
    x, y, out = (torch.full((1000,), v, device="cuda") for v in (1.0, 2.0, 0.0))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        add[grid](x, y, out, 1000)  # loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add[grid](x, y, out, 1000)
        add[grid](out, y, x, 1000)
    for i in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert (out == 3 + 4 * i).all() and (x == 5 + 4 * i).all(), i


def test_a_kernel_with_tensor_maps_is_captured():
    a, b = (torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.zeros(256, 256, device="cuda")
    product[4, 4](a, b, c)
    want = c.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product[4, 4](a, b, c)
    c.zero_()
    graph.replay()
    assert torch.equal(c, want)
    a.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(c, 2 * want)


def test_many_streams_at_once():
    streams = [torch.cuda.Stream() for _ in range(8)]
    outs = []
    for i, s in enumerate(streams):
        with torch.cuda.stream(s):
            x = torch.full((100_003,), float(i), device="cuda")
            out = torch.empty_like(x)
            for _ in range(5):
                add[grid](x, x, out, 100_003)
                add[grid](out, x, out, 100_003)
            outs.append(out)
    torch.cuda.synchronize()
    assert all((o == 3 * i).all() for i, o in enumerate(outs))


def test_sixteen_threads():
    failed, k = [], tkc.jit(add.fn)

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for n in range(1, 40, 3):
                    x = torch.full((n * 37,), float(seed), device="cuda")
                    out = torch.empty_like(x)
                    k[grid](x, x, out, n * 37)
                    if not (out == 2 * seed).all():
                        failed.append((seed, n))
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_numpy_and_torch_in_one_process():
    for _ in range(3):
        x, out = np.ones(100, np.float32), np.zeros(100, np.float32)
        add[grid](x, x, out, 100)
        y, o = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
        add[grid](y, y, o, 100)
        assert (out == 2).all() and (o == 2).all()
