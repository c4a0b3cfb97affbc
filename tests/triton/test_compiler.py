"""Kernels compiled for types and launched as Inductor does, and what it asks of a driver."""

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl
from tkc.errors import CompileError, DeviceError
from tkc.triton.backends import backends
from tkc.triton.compiler import ASTSource, make_backend
from tkc.triton.runtime import driver
from tkc.triton.runtime.driver import GPUTarget

ON_HOST = GPUTarget("cpu", 0, 0)


@triton.jit
def scaled(x, o, by, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_assert(by < 100, "too much")
    tl.store(o + i, tl.load(x + i, mask=i < n) * by, mask=i < n)


def compiled(target, **options):
    types = {"x": "*fp32", "o": "*fp32", "by": "i32", "n": "i32", "BLOCK": "constexpr"}
    attributes = {(0,): [["tt.divisibility", 16]], (3,): [["tt.divisibility", 16]]}
    return triton.compile(ASTSource(scaled, types, {"BLOCK": 64}, attributes), target, options)


def launched(binary, by):
    x = np.arange(112, dtype=np.float32)
    o = np.zeros_like(x)
    hooks = None, None
    binary.run(2, 1, 1, 0, binary.function, binary.packed_metadata, None, *hooks, x, o, by, 112, 64)
    return x, o


def test_compiled_for_types_and_launched():
    binary = compiled(ON_HOST, num_warps=8, debug=False)
    x, o = launched(binary, 3)
    assert (o == 3 * x).all()
    assert binary.metadata.num_warps == 8 and binary.src.fn is scaled
    assert (binary.n_regs, binary.n_spills, binary.shared) == (0, 0, 0)
    assert int(binary.hash, 16) and binary.hash != compiled(ON_HOST, debug=True).hash


def test_debug_of_a_compilation_keeps_assertions():
    launched(compiled(ON_HOST), 100)
    with pytest.raises(DeviceError, match="too much"):
        launched(compiled(ON_HOST, debug=True), 100)


def test_compiled_for_a_gpu():
    binary = compiled(GPUTarget("cuda", 90, 32))
    assert ".target sm_90a" in binary.asm["ptx"] and binary.n_regs > 0


@triton.jit
def picked(x, target, grid, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(target + i) + grid)


def test_parameters_with_the_names_of_a_compilation():
    x, target = np.zeros(64, np.float32), np.ones(64, np.float32)
    binary = picked[(1,)](x, target, 2, BLOCK=64)
    assert (x == 3).all()
    assert ".target sm_90a" in binary.asm["ptx"]


def test_backends():
    made = make_backend(GPUTarget("cuda", 90, 32))
    assert made.parse_options({"num_warps": 2}).num_warps == 2
    assert made.hash() != make_backend(ON_HOST).hash()
    with pytest.raises(CompileError, match="not for hip"):
        make_backend(GPUTarget("hip", "gfx942", 64))


def test_the_driver_is_switched_as_inductor_does(monkeypatch):
    monkeypatch.setattr(driver.active, "on_host", False, raising=False)
    driver.driver.set_active(backends["cpu"].driver())
    assert driver.active.get_current_target().backend == "cpu"
    monkeypatch.setattr("tkc.runtime.driver.available", lambda: False)
    with pytest.raises(DeviceError, match="no GPU"):
        driver.driver.set_active(backends["nvidia"].driver())
    with pytest.raises(DeviceError, match="own driver"):
        driver.driver.set_active(object())


def test_kernels_of_a_library_take_part():
    """Inductor's lie in modules of torch, and so do the functions that they combine by."""
    space = {"__name__": "torch._inductor.made", "triton": triton, "tl": tl}
    source = """
@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)

@triton.jit
def largest(x, o, N: tl.constexpr):
    tl.store(o, tl.reduce(tl.load(x + tl.arange(0, N)), 0, larger))
"""
    import linecache

    linecache.cache["<made>"] = len(source), None, source.splitlines(True), "<made>"
    exec(compile(source, "<made>", "exec"), space)
    x, o = np.random.default_rng(0).normal(size=64).astype(np.float32), np.zeros(1, np.float32)
    space["largest"][(1,)](x, o, N=64)
    assert o[0] == x.max()
