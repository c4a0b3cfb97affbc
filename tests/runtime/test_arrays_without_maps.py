"""Arrays that no tensor map can describe: empty ones, and ones with a stride that is not positive.
The plan asks for no map of an argument like that, and a launch that meets one among the arrays that
the kernel makes takes a plan without maps.
"""

import struct

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.runtime.fake_driver import FakeTensor
from tkc.errors import LaunchError
from tkc.fuzz.check import Comparison, Variant
from tkc.ir.interface import Interface, Parameter
from tkc.language.trace import trace
from tkc.runtime import driver, launch
from tkc.runtime.jit import JitFunction
from tkc.runtime.specialize import facts, signature

M, N, K = 128, 128, 256


@tkc.jit
def product(a, b, c, K: tkc.constexpr = K):
    i, total = tkc.program_id(0), tkc.zeros((128, 128), tkc.float32)
    for k in tkc.range(0, K, 64):
        block = tkc.load(a, (i * 128, k), (128, 64))
        total = tkc.dot(block, tkc.load(b, (k, 0), (64, 128)), acc=total)
    tkc.store(c, (i * 128, 0), total.to(tkc.bfloat16))


@tkc.jit
def by_pointers(a, b, c, M, stride, K: tkc.constexpr = K):
    rows, columns, steps = tkc.arange(128), tkc.arange(128), tkc.arange(64)
    left = a.ptr + rows[:, None] * stride + steps[None, :]
    right = b.ptr + steps[:, None] * 128 + columns[None, :]
    total = tkc.zeros((128, 128), tkc.float32)
    for _ in tkc.range(K // 64):
        x = tkc.load(left, mask=rows[:, None] < M, other=0.0)
        total = tkc.dot(x, tkc.load(right), acc=total)
        left += 64
        right += 64 * 128
    out = c.ptr + rows[:, None] * 128 + columns[None, :]
    tkc.store(out, total.to(tkc.bfloat16), mask=rows[:, None] < M)


@pytest.fixture
def launched(gpu, monkeypatch):
    """The interfaces of the kernels that were loaded."""
    found, loading = [], launch.load

    def load(compiled, device):
        found.append(compiled.interface)
        gpu.sizes = [p.size for p in compiled.interface.parameters]
        return loading(compiled, device)

    monkeypatch.setattr(launch, "load", load)
    return found


def maps(interface):
    return [p.argument for p in interface.parameters if p.kind == "map"]


def matrices(a_shape, a_strides=None):
    return [
        FakeTensor(a_shape, "bfloat16", 0x1000_0000, a_strides),
        FakeTensor((K, N), "bfloat16", 0x2000_0000),
        FakeTensor((a_shape[0], N), "bfloat16", 0x3000_0000),
    ]


@pytest.mark.parametrize(
    "shape,strides,mapped",
    [
        ((M, K), None, True),
        ((M, K), (-K, 1), False),
        ((M, K), (0, 1), False),
        ((1, K), (0, 1), True),
        ((1, K), (-K, 1), True),
        ((0, K), None, False),
    ],
    ids=["dense", "upwards", "one row again and again", "one row", "one row upwards", "no rows"],
)
def test_the_plan_asks_for_no_map_of_an_argument_that_has_none(
    gpu, launched, shape, strides, mapped
):
    JitFunction(product.fn)[1](*matrices(shape, strides))
    (interface,) = launched
    assert (0 in maps(interface)) == mapped
    assert len(gpu.named("launch")) == 1


@pytest.mark.parametrize("m,stride", [(0, K), (M, -K), (M, 0)])
def test_a_launch_that_cannot_map_what_the_kernel_makes_takes_a_plan_without_maps(
    gpu, launched, m, stride
):
    k, arrays = JitFunction(by_pointers.fn), matrices((M, K))
    k[1](*arrays, 96, K)
    assert maps(launched[-1])
    for _ in range(2):
        k[1](*arrays, m, stride)
        assert not maps(launched[-1])
    k[1](*arrays, 80, K)
    assert len(gpu.named("launch")) == 4


def test_a_negative_stride_is_passed_as_it_is(gpu):
    function = driver.load(b"// text", "k", 0)
    x = FakeTensor((4, 8), strides=(-72, 1))
    for kind in ("u64", "s64"):
        gpu.sizes = [8]
        interface = Interface("k", "sm_90a", 128, parameters=(Parameter("stride", kind, 0, 0),))
        launch.launch(interface, function, [x], (1,))
        assert gpu.named("launch")[-1][-1] == [struct.pack("<q", -72)]


def test_a_stride_that_does_not_fit_is_refused(gpu):
    interface = Interface("k", "sm_90a", 128, parameters=(Parameter("stride", "s32", 0, 0),))
    x = FakeTensor((4, 8), strides=(1 << 40, 1))
    with pytest.raises(LaunchError, match="does not fit"):
        launch.launch(interface, driver.load(b"// text", "k", 0), [x], (1,))


def numbers(*shape):
    values = np.random.default_rng(sum(shape)).integers(-3, 4, shape)
    return values.astype(ml_dtypes.bfloat16)


def failures(kernel, *args, target, grid=(1, 1, 1), **options):
    """What the compiled kernel, its text for the GPU included, gives otherwise than level 0."""
    values, _ = kernel.bound(*args)
    infos = kernel._describe(values)
    module = trace(kernel.fn, signature(kernel._specialize(infos, ())))
    names = [n for n, i in zip(kernel.names, infos, strict=True) if facts(i)[0] != "constant"]
    given = dict(zip(kernel.names, values, strict=True))
    runs = Comparison(module, lambda: {n: given[n] for n in names}, grid, 1e-2)
    return [str(f) for f in runs.passes(Variant(target, None, 2, each=False, **options))]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "a",
    [
        numbers(M, K)[::-1],
        np.broadcast_to(numbers(1, K), (M, K)),
        numbers(0, K),
        numbers(M, 2 * K)[:, ::-2],
    ],
    ids=["upwards", "one row again and again", "no rows", "leftwards"],
)
def test_they_give_what_level_0_gives(a, target):
    assert not failures(product, a, numbers(K, N), numbers(len(a), N), target=target)


@pytest.mark.parametrize("m,stride", [(0, K), (M, 0), (77, K)])
def test_pointers_give_what_level_0_gives(m, stride):
    args = (numbers(M, K), numbers(K, N), numbers(M, N), m, stride)
    assert not failures(by_pointers, *args, target="sm_90a")
