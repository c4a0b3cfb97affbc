"""Launches like one that was made before: the same results with less work, and what makes a call
one of another form.
"""

import gc
import weakref

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl
from tests.runtime.fake_driver import FakeTensor
from tests.triton import kernels
from tkc.errors import LaunchError
from tkc.triton.errors import InvalidOption
from tkc.triton.runtime.jit import JITFunction
from tkc.triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def shifted(x, o, n, shift, BLOCK: tl.constexpr, DTYPE: tl.constexpr = tl.float32):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n) + shift // 2
    tl.store(o + i, value.to(DTYPE), mask=i < n)


SCALE = 1


@triton.jit
def rescaled(x, o, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o + i, tl.load(x + i) * SCALE)


@pytest.fixture
def formed(monkeypatch):
    """Counts launches that take the long way."""
    found, formed = [], JITFunction._formed
    monkeypatch.setattr(
        JITFunction, "_formed", lambda self, *a: (found.append(self), formed(self, *a))[1]
    )
    return found


def launch(x, shift, **options):
    o = options.pop("o", None)
    o = np.zeros_like(x) if o is None else o
    done = shifted[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](
        x, o, len(x), shift, BLOCK=options.pop("BLOCK", 64), **options
    )
    return o, done


def test_a_launch_like_an_earlier_one_takes_the_short_way(formed):
    x = np.arange(100, dtype=np.float32)
    o = np.zeros_like(x)
    for shift in (6, 7, 6, 1 << 40, 7, 6, 1 << 40):
        o, done = launch(x, shift, o=o)
        assert (o == x + np.float32(shift // 2)).all()
    assert len(formed) == 3
    assert done.options == {} and "tile.load_pointers" in done.asm["ttir"]


def test_launches_alike_give_back_one_kernel_that_keeps_no_array():
    x = np.arange(64, dtype=np.float32)
    given = rescaled[(1,)](x, o := np.zeros_like(x), N=64)
    again = rescaled[(1,)](x, o, N=64)
    assert again is rescaled[(1,)](x, o, N=64) and "tile.load_pointers" in again.asm["ttir"]
    assert again.name == given.name == "rescaled" and again.form == given.form
    short = rescaled[(1,)](x, o, N=32)
    assert short.form != again.form and rescaled.run(x, o, N=32, grid=(1,)).form == short.form
    kept = weakref.ref(o)
    del o
    gc.collect()
    assert kept() is None


def test_a_sign_makes_another_form():
    x = np.arange(100, dtype=np.float32)
    before = len(shifted.kernels)
    for shift in (7, -7, 7, -7):
        o, _ = launch(x, shift)
        assert (o == x + int(shift / 2)).all()  # towards zero, as Triton divides
    assert len(shifted.kernels) <= before + 2


def test_what_a_kernel_reads_is_looked_at_again(formed, monkeypatch):
    x, o = np.ones(4, np.float32), np.zeros(4, np.float32)
    for scale in (2, 2, 3):
        monkeypatch.setitem(globals(), "SCALE", scale)
        rescaled[(1,)](x, o, N=4)
        assert (o == scale).all()
    assert len(formed) == 2


def test_options_and_dtypes(formed):
    x = np.arange(100, dtype=np.float32)
    launch(x, 3, num_warps=4)
    with pytest.raises(InvalidOption, match="power of 2"):
        launch(x, 3, num_warps=3)
    o, done = launch(x, 3, num_warps=8)
    assert (o == x + 1).all() and done.options == {"num_warps": 8}
    launch(x, 3, DTYPE=tl.int32)
    o, _ = launch(x + 0.5, 3, DTYPE=tl.int32)
    assert (o == x + 1).all()
    with pytest.raises(LaunchError, match="neither a parameter nor an option"):
        launch(x, 3, warps=3)


def test_checks_are_asked_for_at_any_launch(monkeypatch):
    x = np.arange(100, dtype=np.float32)
    launch(x, 3)
    assert "debug" not in launch(x, 3)[1]._values
    monkeypatch.setenv("TRITON_DEBUG", "1")
    assert launch(x, 3)[1]._values["debug"]


def test_hooks_are_called_at_every_launch():
    calls = []
    shifted.add_pre_run_hook(lambda *args, **kwargs: calls.append(kwargs))
    x = np.arange(100, dtype=np.float32)
    try:
        launch(x, 3)
        launch(x, 3)
    finally:
        shifted.pre_run_hooks.clear()
    assert len(calls) == 2


@triton.jit
def doubled(a, o, BLOCK: tl.constexpr):
    o.store([0, 0], a.load([0, 0]) * 2)


def test_blocks_of_descriptors_make_another_form():
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    for rows in (2, 4, 2, 4):
        o = np.zeros_like(x)
        given = (TensorDescriptor.from_tensor(t, [rows, 16]) for t in (x, o))
        doubled[(1,)](*given, BLOCK=rows)
        assert (o[:rows] == 2 * x[:rows]).all() and not o[rows:].any()
    assert len(doubled.kernels) == 2


@triton.jit
def chosen(x, o, num_stages: tl.constexpr):
    tl.store(o, tl.load(x) + num_stages)


def test_a_parameter_may_have_an_options_name():
    x, o = np.ones(1, np.int32), np.zeros(1, np.int32)
    for stages in (2, 3, 2):
        chosen[(1,)](x, o, num_stages=stages)
        assert o[0] == 1 + stages
        chosen[(1,)](x, o, stages)
        assert o[0] == 1 + stages


class _Numbers(FakeTensor):
    """A tensor over an array of NumPy."""

    def __init__(self, array: np.ndarray):
        super().__init__(array.shape, str(array.dtype), array.ctypes.data, device=-1)
        self.data = array

    def element_size(self) -> int:
        return self.data.itemsize

    def numel(self) -> int:
        return self.data.size


def test_arrays_taken_as_another_type_are_launched_again_and_again():
    x, y = np.arange(4, dtype=np.int16) - 2, np.zeros(4, np.int16)
    given = [triton.reinterpret(_Numbers(a), tl.uint16) for a in (x, x, y)]
    for _ in range(3):
        kernels.add[(1,)](*given, 4, BLOCK=4)
        np.testing.assert_array_equal(y, 2 * x)
        x += 1


@triton.jit
def widened(x, o, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i).to(tl.float32))


def test_bytes_are_taken_as_float8():
    """A type whose name in Triton is not that of tkc; what the launch gives knows it, too."""
    x, o = np.array([0x38, 0x40, 0xB8, 0x00], np.uint8), np.zeros(4, np.float32)
    given = triton.reinterpret(_Numbers(x), tl.float8e4nv)
    for _ in range(2):
        o[:] = 9
        done = widened[(1,)](given, o, BLOCK=4)
        np.testing.assert_array_equal(o, [1, 2, -1, 0])
    assert "e4m3" in done.compiled_for("sm_90a").ptx


@triton.jit
def after_another(x, o, n, BLOCK: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)
    tl.extra.cuda.gdc_launch_dependents()


def test_launches_that_overlap_wait_before_they_read():
    x = np.arange(100, dtype=np.float32)
    o, copy = np.zeros_like(x), np.zeros_like(x)
    after_another[(2,)](x, o, 100, BLOCK=64)
    done = after_another[(2,)](o, copy, 100, BLOCK=64, launch_pdl=True)
    assert (copy == x).all()
    found = done.compiled_for("sm_90a")
    assert found.interface.dependent and "griddepcontrol.launch_dependents" in found.ptx
    _, plain = launch(x, 6)
    _, early = launch(x, 6, launch_pdl=True)
    assert not plain.compiled_for("sm_90a").interface.dependent
    assert early.compiled_for("sm_90a").interface.dependent  # although it does not say so
