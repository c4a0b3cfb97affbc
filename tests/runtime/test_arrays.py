"""Descriptions of arrays from every source, and what a specialization makes of them."""

import ctypes
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.fake_driver import FakeTensor
from tkc.errors import LaunchError
from tkc.runtime.arrays import ArrayInfo, contiguous, describe, from_text
from tkc.runtime.specialize import (
    Constant,
    ScalarInfo,
    argument,
    facts,
    options_of,
    overlaps,
    unspecialized,
)


class CudaArray:
    """An array on a GPU of a library that knows __cuda_array_interface__ alone."""

    def __init__(self, shape, typestr, strides=None, pointer=0x2000):
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "strides": strides,
            "data": (pointer, False),
            "version": 3,
        }
        self.device = 0


class Capsule:
    """An array of a library that knows DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__()


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint16",
        "int64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
    ],
)
def test_numpy(dtype):
    x = np.zeros((3, 5, 7), getattr(ml_dtypes, dtype, dtype))[:, ::2, ::-1]
    info = describe(x)
    assert (
        info.shape == (3, 3, 7)
        and info.strides == (35, 14, -1)
        and info.pointer == x.ctypes.data
        and info.device == -1
    )
    assert info.dtype == {"bool": "bool_", "float8_e4m3fn": "float8_e4m3"}.get(dtype, dtype)


@pytest.mark.parametrize(
    "cut", [np.s_[:], np.s_[::-1], np.s_[1:, ::2], np.s_[:, 3:3], np.s_[2, ::-2], np.s_[0, 0:1]]
)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.bool_])
def test_the_description_gives_the_same_memory(cut, dtype):
    x = np.arange(35).reshape(5, 7).astype(dtype)[cut]
    again = describe(x).numpy()
    assert again.dtype == x.dtype and np.array_equal(again, x)
    again[...] = 1
    assert (x == x.dtype.type(1)).all()


def test_read_only_stays_read_only():
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    assert not describe(x).numpy().flags.writeable
    assert not describe(b"1234").writeable and describe(bytearray(4)).writeable


@pytest.mark.parametrize(
    "dtype,name",
    [
        ("bfloat16", "bfloat16"),
        ("float8_e4m3fn", "float8_e4m3"),
        ("bool", "bool_"),
        ("uint32", "uint32"),
    ],
)
def test_torch(dtype, name):
    info = describe(FakeTensor((4, 6), dtype, strides=(1, 4)))
    assert (info.dtype, info.shape, info.strides, info.device) == (name, (4, 6), (1, 4), 0)
    assert describe(FakeTensor((4,), dtype, device=-1)).device == -1


def test_cuda_array_interface():
    info = describe(CudaArray((4, 6), "<f4", (48, 8)))
    assert (info.pointer, info.strides, info.dtype, info.device) == (0x2000, (12, 2), "float32", 0)
    assert describe(CudaArray((4, 6), "<f2")).strides == (6, 1)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4),
        np.zeros((2, 3), np.float64)[:, ::2],
        np.ones(3, np.bool_),
    ],
)
def test_dlpack(x):
    info = describe(Capsule(x))
    assert (info.pointer, info.shape, info.strides, info.device) == (
        x.ctypes.data,
        x.shape,
        tuple(s // x.itemsize for s in x.strides),
        -1,
    )


def test_the_buffer_protocol():
    import array

    info = describe(array.array("d", [1, 2, 3]))
    assert (info.dtype, info.shape) == ("float64", (3,))
    assert describe((ctypes.c_float * 5)()).dtype == "float32"


@pytest.mark.parametrize(
    "bad,message",
    [
        (np.zeros(3, np.complex64), "complex64"),
        (np.zeros(3, ">f4"), "big-endian"),
        (memoryview(np.zeros(3, ">f4")), "big-endian"),
        (CudaArray((4,), ">f4"), "big-endian"),
        (np.zeros(3, ml_dtypes.float8_e4m3), "float8_e4m3fn"),
        (np.ma.masked_array(np.zeros(3), [0, 1, 0]), "filled"),
        (np.zeros(3, "U4"), "not supported"),
        (object(), "expected an array"),
        (CudaArray((4,), "<f4", (6,)), "no multiple"),
        (FakeTensor((4,), "complex64"), "complex64"),
    ],
)
def test_what_has_no_meaning_is_refused(bad, message):
    with pytest.raises(LaunchError, match=message):
        describe(bad, "argument x of k")


def test_a_view_of_numbers_of_the_other_sign_is_refused():
    torch = pytest.importorskip("torch")
    x = torch.randn(4, dtype=torch.complex64)
    with pytest.raises(LaunchError, match="resolve_neg"):
        describe(x.conj().imag)
    assert describe(x.conj().imag.resolve_neg()).shape == describe(x.imag).shape


def test_other_devices_are_refused():
    t = FakeTensor((4,))
    t.device.type = "mps"
    with pytest.raises(LaunchError, match="move it to cuda or cpu"):
        describe(t)


@given(st.lists(st.integers(0, 5), max_size=4), st.data())
def test_a_span_holds_every_element(shape, data):
    strides = [data.draw(st.integers(-9, 9)) for _ in shape]
    info = ArrayInfo(1 << 20, tuple(shape), tuple(strides), "float32")
    offsets = [
        4 * sum(i * s for i, s in zip(index, strides, strict=False)) for index in np.ndindex(*shape)
    ]
    assert info.span == ((min(offsets), max(offsets) + 4) if offsets else (0, 0))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=6))
def test_overlaps_against_every_pair(arrays):
    infos = [ArrayInfo(4 * p, (n,), (1,), "float32") for p, n in arrays]

    def meet(a, b):
        return (
            a.span[1]
            and b.span[1]
            and a.pointer < b.pointer + b.span[1]
            and b.pointer < a.pointer + a.span[1]
        )

    assert overlaps(infos) == tuple(
        (i, j)
        for i in range(len(infos))
        for j in range(i + 1, len(infos))
        if meet(infos[i], infos[j])
    )


@given(st.integers(0, 1 << 40), st.sampled_from(["float32", "bfloat16", "int8", "float64"]))
def test_facts_are_true(n, dtype):
    info = ArrayInfo(n, (n,), (n,), dtype)
    _, _, ((divisor, exact),), _, align, wide = facts(info)
    assert n % divisor == 0 and exact in (None, n) and (exact is not None) == (n <= 1)
    assert align == math.gcd(n, 16) and wide == (
        n > 0 and ((n - 1) * n + 1) * info.itemsize >= 1 << 31
    )


def test_sixteen_bytes_are_noticed():
    for dtype, n in (("float32", 4), ("bfloat16", 8), ("int8", 16), ("float64", 2)):
        assert facts(ArrayInfo(0, (3, n), (n, 1), dtype))[3][0] == (n, None)


@pytest.mark.parametrize(
    "shape,strides,wide",
    [
        ((1 << 29,), (1,), True),
        (((1 << 29) - 1,), (1,), False),
        ((2, 2), (1 << 29, 1), True),
        ((0, 1 << 30), (1 << 30, 1), False),
        ((0, 1 << 40), (1 << 40, 1), True),  # its second extent is read all the same
        ((1 << 32,), (0,), True),
        ((1, 64), (1 << 29, 1), True),
        ((1, 64), ((1 << 29) - 1, 1), False),
        ((3,), (-(1 << 30),), True),
    ],
)
def test_wide_offsets(shape, strides, wide):
    assert facts(ArrayInfo(0, shape, strides, "float32"))[-1] == wide


@pytest.mark.parametrize(
    "value,expected",
    [
        (1, Constant(1)),
        (None, Constant(None)),
        (2, ScalarInfo(2, "int32")),
        (True, ScalarInfo(True, "bool_")),
        (-1 << 31, ScalarInfo(-1 << 31, "int32")),
        (1 << 31, ScalarInfo(1 << 31, "int64")),
        (1 << 63, ScalarInfo(1 << 63, "uint64")),
        (0.5, ScalarInfo(0.5, "float32")),
        (1.0, ScalarInfo(1.0, "float32")),
        (np.float64(2), ScalarInfo(2.0, "float32")),
        (np.float16(2), ScalarInfo(2.0, "float16")),
        (np.uint8(1), ScalarInfo(1, "uint8")),
        ("i64", ScalarInfo(None, "int64", 1)),
        ("i32:16", ScalarInfo(None, "int32", 16)),
        ("i32+", ScalarInfo(None, "int32", 1, True)),
        ("i64+:16", ScalarInfo(None, "int64", 16, True)),
    ],
)
def test_numbers(value, expected):
    assert argument(value, "n", False) == expected


@pytest.mark.parametrize(
    "value",
    [1 << 64, -(1 << 63) - 1, "f31", "x[4", "f32[4, a]", "f32[-1]", "i32:x", "f32+", "u32+"],
)
def test_numbers_and_texts_that_are_none(value):
    with pytest.raises(LaunchError):
        argument(value, "n", False)


def test_multiples_of_sixteen():
    assert [facts(argument(n, "n", False))[2] for n in (0, 16, -32, 8, 17)] == [16, 16, 16, 1, 1]


def test_signs():
    """Of an integer whose type has one; what stands for a number says it itself."""
    numbers = (0, 7, -1, 1 << 40, np.int8(-3), np.uint8(3), 2.5, True, "i32", "i32+")
    signs = [facts(argument(n, "n", False))[3] for n in numbers]
    assert signs == [True, True, False, True, False, False, False, False, False, True]
    assert facts(unspecialized(argument(7, "n", False)))[3] is False


@given(st.lists(st.integers(0, 9), max_size=5))
def test_texts_stand_for_contiguous_arrays(shape):
    info = from_text(f"bf16[{', '.join(map(str, shape))}]")
    assert (
        info.shape == tuple(shape)
        and info.strides == contiguous(tuple(shape))
        and info.dtype == "bfloat16"
    )


def test_texts_with_strides():
    assert from_text("f32[64:1, 32:64]").strides == (1, 64)


@pytest.mark.parametrize(
    "given,message",
    [
        ({"num_warp": 4}, "num_warp"),
        ({"num_warps": 0}, ">= 1"),
        ({"num_warps": 64}, "at most 32"),
        ({"cluster": 2}, "pair"),
        ({"num_stages": 2.5}, "got 2.5"),
        ({"left_operand": "memory"}, "registers or shared"),
        ({"epilogue": True}, "tma, shared or direct"),
        ({"store_columns": 48}, "8, 16, 32 or 64"),
        ({"store_columns": 64.0}, "got 64.0"),
        ({"split_warps": 4}, "pair"),
        ({"swap_dots": 1}, "True or False"),
        ({"dynamic_schedule": "yes"}, "True or False"),
        ({"prefetch": 0}, "True or False"),
        ({"subtiles": -1}, ">= 0"),
    ],
)
def test_options_that_are_none(given, message):
    with pytest.raises(LaunchError, match=message):
        options_of(given, "k")
