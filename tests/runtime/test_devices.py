"""Several devices in one process, on a made-up driver: each has its modules, workspaces and
streams. tests/gpu/test_devices.py does it with two GPUs.
"""

import sys
import threading
from types import SimpleNamespace

import pytest

from tests.runtime.fake_driver import FakeTensor
from tests.runtime.kernels import add
from tkc.errors import LaunchError
from tkc.ir.interface import Interface, Parameter
from tkc.runtime import driver
from tkc.runtime.jit import JitFunction
from tkc.runtime.launch import launch


def on(device: int, n: int = 256):
    return [
        FakeTensor((n,), pointer=0x1000_0000 * (i + 1) + (device << 40), device=device)
        for i in range(3)
    ]


def launched(fake) -> list[int]:
    return [c[1] - 1 for c in fake.named("launch")]


@pytest.mark.parametrize("current", [0, 1, 2, 7])
def test_launches_alternate_between_devices(gpus, current):
    """Whichever context is current, none, one of theirs or somebody else's, and it stays so."""
    k, gpus.current = JitFunction(add.fn), [current]
    for d in (1, 0, 1, 1, 0):
        k[4](*on(d), 256)
    assert launched(gpus) == [1, 0, 1, 1, 0] and gpus.current == [current or 2]
    assert [c[1] for c in gpus.named("cuModuleLoadDataEx")] == [2, 1] and len(
        k._compiled
    ) == 1  # loaded once for each, compiled once for both
    prepared = [k.prepare(*on(d), 256, grid=4) for d in (0, 1)]
    for again in prepared * 2:
        again()
    assert launched(gpus)[5:] == [0, 1, 0, 1] and len(gpus.named("cuModuleLoadDataEx")) == 2


def test_the_stream_is_that_of_the_arrays_device(gpus, monkeypatch):
    streams = {0: 0x500, 1: 0x900}
    monkeypatch.setitem(
        sys.modules,
        "torch",
        SimpleNamespace(
            Tensor=FakeTensor, _C=SimpleNamespace(_cuda_getCurrentRawStream=streams.__getitem__)
        ),
    )
    k = JitFunction(add.fn)
    for d in (0, 1, 0):
        k[4](*on(d), 256)
    streams[1] = 0xA00
    for d in (1, 0):
        k[4](*on(d), 256)
    assert [c[1:3] for c in gpus.named("launch")] == [
        (1, 0x500),
        (2, 0x900),
        (1, 0x500),
        (2, 0xA00),
        (1, 0x500),
    ]


def test_workspaces_are_allocated_where_they_are_used(gpus):
    i = Interface(
        "k",
        "sm_90a",
        128,
        parameters=(Parameter("pointer", "u64", 0), Parameter("workspace", "u64", bytes=64)),
    )
    functions = [driver.load(b"// text", "k", d) for d in (0, 1)]
    for d in (1, 0, 1):
        launch(i, functions[d], [on(d)[0]], (1,))
    assert [c[1] for c in gpus.named("allocated in")] == [2, 1] and launched(gpus) == [1, 0, 1]


def test_a_thread_for_each_device(gpus):
    class Own(list):
        """The contexts of the calling thread, as the driver keeps them."""

        local = threading.local()

        def of(self):
            return self.local.__dict__.setdefault("stack", [0])

        def __getitem__(self, i):
            return self.of()[i]

        def __setitem__(self, i, v):
            self.of()[i] = v

        def append(self, v):
            self.of().append(v)

        def pop(self):
            return self.of().pop()

    gpus.current, k, failed = Own(), JitFunction(add.fn), []

    def work(d):
        try:
            for _ in range(50):
                k[4](*on(d), 256)
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(d % 2,)) for d in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed and sorted(launched(gpus)) == [0] * 100 + [1] * 100


def test_arrays_of_two_devices_are_refused(gpus):
    (x, y, _), (_, _, out) = on(0), on(1)
    with pytest.raises(LaunchError, match="one device, got cuda:0, cuda:1; move them to one"):
        JitFunction(add.fn)[4](x, y, out, 256)
    assert not launched(gpus)
