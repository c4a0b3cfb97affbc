"""The runtime on a real GPU."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import BuiltinFunctionType

import pytest

from tests.runtime.kernels import add, grid, shift, strided
from tkc.ir.interface import Parameter
from tkc.runtime import driver
from tkc.runtime.arrays import ArrayInfo, contiguous
from tkc.runtime.jit import JitFunction
from tkc.runtime.tensor_maps import describe, encode

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("n", [1, 63, 64, 1009, 1 << 20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_torch(torch, n, dtype):
    x, y = (torch.randint(-50, 50, (n,), device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(x)
    add[grid](x, y, out, n)
    assert torch.equal(out, x + y)


def test_cupy():
    cupy = pytest.importorskip("cupy")
    x, out = cupy.arange(1000, dtype="float32"), cupy.zeros(1000, "float32")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        add[grid](x, x, out, 1000)
        stream.synchronize()
    assert bool((out == 2 * x).all())


def test_arrays_of_several_libraries_in_one_launch(torch):
    jax = pytest.importorskip("jax")
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    x, y, out = (
        jax.numpy.arange(100, dtype="float32"),
        torch.ones(100, device="cuda"),
        torch.empty(100, device="cuda"),
    )
    jax.block_until_ready(x)
    add[grid](x, y, out, 100)
    assert out.tolist() == [i + 1 for i in range(100)]


def test_the_current_stream_is_used(torch):
    """The launch waits for what its stream does, and only that."""
    x, out, side = (
        torch.zeros(1 << 20, device="cuda"),
        torch.zeros(1 << 20, device="cuda"),
        torch.cuda.Stream(),
    )
    torch.cuda.synchronize()
    for round in range(20):
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            x.fill_(round + 1)
            add[grid](x, x, out, 1 << 20)
            copy = out.clone()
        side.synchronize()
        assert (copy == 2 * (round + 1)).all()


def test_a_thread_without_a_context(torch):
    x, out, failed = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda"), []
    torch.cuda.synchronize()
    k = JitFunction(add.fn)

    def work():
        try:
            k[grid](x, x, out, 100)
        except Exception as e:
            failed.append(e)

    for _ in range(2):
        t = threading.Thread(target=work)
        t.start()
        t.join()
    torch.cuda.synchronize()
    assert not failed and (out == 2).all()


def test_views_and_overlaps(torch):
    x = torch.arange(200, device="cuda", dtype=torch.float32)
    out = torch.empty(64, device="cuda")
    shift[1](x[10:], 3, out)
    assert out.tolist() == list(range(13, 77))
    shift[1](x[::2], 0, out)
    assert out.tolist() == list(range(0, 128, 2))
    x_before = x.clone()
    shift[1](x, 100, x[:64])
    assert torch.equal(x[:64], x_before[100:164])


def test_launches_in_machine_code(torch):
    """Random calls of one kernel: arrays anywhere, of other strides, types and sizes, in place or
    not, in other streams, their results read at once.
    """
    k, pools, random_, side = (
        JitFunction(strided.fn),
        [torch.arange(1 << 16, device="cuda", dtype=torch.float32) % 97 for _ in range(2)],
        random.Random(1),
        torch.cuda.Stream(),
    )
    for round in range(300):
        n, kind, step, by = (
            random_.choice((64, 100, 1000)),
            random_.choice((torch.float32, torch.int32)),
            random_.choice((1, 1, 2)),
            random_.choice((1, 2, 16, 0.5, -0.0, 3.0)),
        )
        x, y = (
            pool.to(kind, copy=True)[random_.choice((0, 1, 64, 4096, 8191, 20000)) :][
                : n * step : step
            ]
            for pool in pools
        )
        out = random_.choice((x, y, torch.empty(n, device="cuda", dtype=kind)))
        torch.cuda.synchronize()
        with torch.cuda.stream(random_.choice((side, torch.cuda.default_stream()))):
            wanted = x + (y * by).to(kind)
            k[grid](x, y, out, n, by) if round % 3 else k[-(-n // 64)](x, y, out, n, by)
            assert torch.equal(out, wanted), (round, n, kind, step, by)
    assert type(k[16]) is BuiltinFunctionType


def test_a_prepared_launch_in_machine_code(torch):
    x, out, side = (
        torch.ones(256, device="cuda"),
        torch.zeros(256, device="cuda"),
        torch.cuda.Stream(),
    )
    launch = add.prepare(x, x, out, 256, grid=4)
    assert type(launch) is BuiltinFunctionType
    for stream in (torch.cuda.default_stream(), side) * 2:
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            x.add_(1)
            launch()
        stream.synchronize()
        assert torch.equal(out, 2 * x)


def test_a_parameter_and_a_graph_in_machine_code(torch):
    k, x = JitFunction(add.fn), torch.nn.Parameter(torch.ones(256, device="cuda"))
    out, side = torch.zeros(256, device="cuda"), torch.cuda.Stream()
    for _ in range(3):
        k[4](x, x, out, 256)
    assert type(k[4]) is BuiltinFunctionType and (out == 2).all()
    with torch.cuda.stream(side):
        for _ in range(2):
            k[4](x, x, out, 256)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            k[4](x, x, out, 256)
        with torch.no_grad():
            x.fill_(5)
        out.zero_()
        graph.replay()
        side.synchronize()
    assert (out == 10).all()


def test_text_that_the_driver_translates(torch, monkeypatch):
    monkeypatch.setenv("TKC_PTXAS", "/no/such")
    x, out = torch.ones(100, device="cuda"), torch.zeros(100, device="cuda")
    k = JitFunction(add.fn)
    k[grid](x, x, out, 100)
    assert (out == 2).all()


MAPS = [
    ((64, 64), 128, False, (4096, 4096)),
    ((64, 256), 128, True, (4096, 4096)),
    ((128, 64), 128, True, (1000, 64)),
    ((32, 32), 64, False, (33, 40)),
    ((16, 16), 32, False, (17, 24)),
    ((64, 48), 16, True, (100, 48)),
    ((64, 128), 0, False, (100, 128)),
    ((1, 1, 64, 64), 128, False, (2, 8, 1024, 64)),
    ((1, 1, 64, 128), 128, True, (2, 8, 1024, 128)),
    ((1, 8, 1, 64), 128, False, (3, 16, 5, 64)),
    ((256,), 0, False, (1 << 20,)),
    ((1, 1, 1, 64, 64), 128, False, (1, 2, 1, 70, 64)),
    ((8, 64), 128, False, (1, 64)),
    ((64, 64), 128, False, (1 << 20, 64)),
]


@pytest.mark.parametrize("box,swizzle,panelled,shape", MAPS)
def test_the_driver_accepts_every_map_that_the_host_checks_accept(
    torch, box, swizzle, panelled, shape
):
    torch.zeros(1, device="cuda")
    memory = torch.empty(1 << 20, device="cuda")
    array = ArrayInfo(memory.data_ptr() // 1024 * 1024, shape, contiguous(shape), "bfloat16", 0)
    made = encode(
        describe(
            Parameter(
                "map", "b8[128]", 0, element="bf16", box=box, swizzle=swizzle, panelled=panelled
            ),
            array,
            "x",
        )
    )
    assert len(made) == 128 and any(made)


def test_a_crash_is_reported_and_the_runtime_refuses_to_go_on(torch):
    program = """
import torch
from tests.runtime.kernels import add
from tkc.errors import DeviceError
from tkc.runtime import driver
x = torch.ones(64, device="cuda")
add[1 << 20](x, x, x, 1 << 26)
try: driver.synchronize()
except DeviceError as e: assert "dead until the process ends" in str(e), e
else: raise SystemExit("nothing was raised")
try: add[1](x, x, x, 64)
except DeviceError as e: assert "dead until the process ends" in str(e), e
else: raise SystemExit("went on")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-2000:]


def test_numpy_arrays_run_on_the_cpu_even_here():
    import numpy as np

    x, out = np.ones(70, np.float32), np.zeros(70, np.float32)
    add[grid](x, x, out, 70)
    assert (out == 2).all()


def test_the_device_is_described():
    assert driver.count() >= 1 and driver.name(0) and driver.target_of(0).startswith("sm_")
