"""Several GPUs in one process: each has its modules, workspaces and streams. Skipped where there is
one; tests/runtime/test_devices.py has the same on a made-up driver.
"""

import threading

import pytest

import tkc
from tests.runtime.kernels import add, grid
from tkc import kernels
from tkc.runtime.jit import JitFunction

torch = pytest.importorskip("torch")

from tests.gpu.test_interop import product  # noqa: E402

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
DEVICES = [f"cuda:{d}" for d in range(torch.cuda.device_count())]


def normal(*shape, device, dtype=torch.bfloat16):
    return torch.randn(shape, device=device).to(dtype)


@pytest.mark.parametrize("current", DEVICES[:2])
def test_launches_alternate(current):
    """Whichever device is the current one; a kernel is compiled once and loaded on each."""
    k = JitFunction(add.fn)
    with torch.cuda.device(current):
        arrays = [
            [torch.full((1000,), float(d + 1), device=name), torch.zeros(1000, device=name)]
            for d, name in enumerate(DEVICES)
        ]
        prepared = [k.prepare(x, x, out, 1000, grid=16) for x, out in arrays]
        for step in range(20):
            for x, out in arrays:
                k[grid](x, out, out, 1000)
            for x, out in reversed(arrays):
                k[grid](x, out, out, 1000)
            assert all((out == 2 * (step + 1) * (d + 1)).all() for d, (_, out) in enumerate(arrays))
        for again in prepared * 2:
            again()
        assert all(
            (out == 2 * (d + 1)).all() for d, (_, out) in enumerate(arrays)
        ) and torch.cuda.current_device() == int(current[-1])
    # an argument given twice is a specialization of its own
    assert len(k._compiled) == 2 and len(k._loaded) == 2 * len(DEVICES)


@pytest.mark.parametrize("device", DEVICES)
def test_tensor_maps_clusters_and_workspaces(device):
    """Another device may be the current one: a product by tensor maps, rows over clusters, programs
    that wait for one another.
    """
    a, b, c = (normal(256, 256, device=device) for _ in range(3))
    product[4, 4](a, b, c)
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-1)
    for m, n, k in ((512, 512, 512), (64, 128, 8192)):
        a, b = normal(m, k, device=device), normal(k, n, device=device)
        torch.testing.assert_close(
            kernels.matmul(a, b).float(), (a.double() @ b.double()).float(), rtol=2e-2, atol=0.3
        )
    x = normal(64, 131072, device=device)
    torch.testing.assert_close(
        kernels.softmax(x).float(), torch.softmax(x.float(), -1), rtol=2e-2, atol=1e-6
    )
    whole = torch.randint(-2, 3, (1 << 20,), device=device, dtype=torch.int32)
    for _ in range(3):
        assert torch.equal(kernels.cumsum(whole), whole.cumsum(0).int())
    q = normal(1, 4, 512, 64, device=device)
    torch.testing.assert_close(
        kernels.attention(q, q, q).float(),
        torch.nn.functional.scaled_dot_product_attention(q, q, q).float(),
        rtol=2e-2,
        atol=2e-2,
    )


def test_each_device_has_a_current_stream():
    """A launch waits for what its own device's stream was given before, and for nothing of the
    other's.
    """
    x, out = torch.zeros(1 << 20, device=DEVICES[1]), torch.zeros(1 << 20, device=DEVICES[1])
    y, there = torch.ones(1000, device=DEVICES[0]), torch.zeros(1000, device=DEVICES[0])
    add[grid](x, x, out, 1 << 20), add[grid](y, y, there, 1000)  # loaded
    torch.cuda.synchronize(1)
    side = torch.cuda.Stream(DEVICES[1])
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        x.fill_(3)
        add[grid](x, x, out, 1 << 20)
        add[grid](y, y, there, 1000)  # the first device's own stream
        assert (there == 2).all()
    assert torch.cuda.current_device() == 0
    side.synchronize()
    assert (out == 6).all()


def test_a_thread_for_each_device():
    k, failed = JitFunction(add.fn), []

    def work(d):
        try:
            for n in range(1, 2000, 97):
                x = torch.full((n,), float(d + 1), device=DEVICES[d])
                out = torch.zeros_like(x)
                k[grid](x, x, out, n)
                if not (out == 2 * d + 2).all():
                    failed.append((d, n))
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(d % len(DEVICES),)) for d in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_arrays_of_two_devices_are_refused():
    x, y = torch.ones(10, device=DEVICES[0]), torch.ones(10, device=DEVICES[1])
    with pytest.raises(tkc.LaunchError, match="one device, got cuda:0, cuda:1"):
        add[grid](x, y, x, 10)
    add[grid](y, y, y, 10)
    assert (y == 2).all()
