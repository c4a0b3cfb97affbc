"""Weights of 4 bits against float64: every kind and group, zero points, the layouts of checkpoints,
gradients, what the product becomes on GPUs.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, launches, numbers
from tkc import kernels
from tkc.kernels.packed import NF4

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
VALUES = {"nf4": np.array(NF4), "fp4": np.concatenate([FP4, -FP4]), "int4": np.arange(16.0)}
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # a word's codes, from the lowest bits up, are of these neighbours


def codes_of(n, k, seed=0):
    return np.random.default_rng(seed).integers(0, 16, (n, k)).astype(np.int32)


def decoded(codes, scales, zeros, kind, group):
    values = VALUES[kind][codes]

    def wide(x):
        return np.repeat(double(x), group, 1)[:, : codes.shape[1]]

    if kind == "int4":
        values = values - (8 if zeros is None else wide(zeros))
    return values * wide(scales)


CASES = [
    ("int4", 128, False, (37, 200, 72)),
    ("int4", 32, True, (1, 256, 130)),
    ("int4", 64, True, (5, 64, 24)),
    ("nf4", 64, False, (130, 96, 40)),
    ("fp4", 32, False, (16, 160, 33)),
    ("fp4", 16, False, (3, 48, 9)),
    ("int4", 256, False, (3, 300, 9)),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind, group, zeros, shape", CASES)
def test_products(kind, group, zeros, shape, dtype):
    m, k, n = shape
    x, codes = numbers((m, k), dtype), codes_of(n, k)
    groups = -(-k // group)
    scales = np.abs(numbers((n, groups), dtype, 1))
    zeros = codes_of(n, groups, 2).astype(x.dtype) if zeros else None
    words = kernels.pack_codes(codes)
    w = decoded(codes, scales, zeros, kind, group)
    back = kernels.dequantize_packed(words, scales, zeros, k, kind, group, dtype)
    close(back, w, dtype, ulps=1)
    bias = numbers((n,), seed=3)
    got = kernels.packed_matmul(x, words, scales, zeros, bias, kind, group)
    close(got, double(x) @ double(back).T + double(bias), dtype, ulps=8)
    close(
        kernels.packed_matmul(x[0], words, scales, zeros, None, kind, group),
        double(x[0]) @ double(back).T,
        dtype,
        ulps=8,
    )


@pytest.mark.parametrize("kind, group, zeros, shape", CASES[:5])
def test_float8_rows(kind, group, zeros, shape):
    """They are multiplied as bfloat16, and scaled behind the sum."""
    m, k, n = shape
    x, codes = numbers((2, m, k), "float8_e4m3fn"), codes_of(n, k)
    groups, of_rows = -(-k // group), np.abs(numbers((2, m), seed=4))
    scales = np.abs(numbers((n, groups), "float32", 1))
    zeros = codes_of(n, groups, 2).astype(scales.dtype) if zeros else None
    words, bias = kernels.pack_codes(codes), numbers((n,), seed=3)
    got = kernels.packed_matmul(x, words, scales, zeros, bias, kind, group, of_rows)
    w = kernels.dequantize_packed(words, scales, zeros, k, kind, group, "bfloat16")
    want = of_rows[..., None] * (double(x) @ double(w).T) + double(bias)
    close(got, want, "bfloat16", ulps=2)
    with pytest.raises(tkc.LaunchError, match="x_scales are of float8 rows, got bfloat16"):
        kernels.packed_matmul(
            x.astype("bfloat16"), words, scales, zeros, None, kind, group, of_rows
        )


def test_layouts_of_checkpoints():
    n, k, groups = 72, 96, 5
    codes, zeros = codes_of(n, k), codes_of(n, groups, 1)
    words = kernels.pack_codes(codes)

    def together(parts):
        return (
            sum(p.astype(np.int64) << 4 * i for i, p in enumerate(parts))
            .astype(np.uint32)
            .view(np.int32)
        )

    gptq = together([codes.T[i::8] for i in range(8)])
    awq = together([codes.T[:, i::8] for i in AWQ])
    low, high = (
        (codes[:, a::2] | codes[:, b::2] << 4).astype(np.uint8) for a, b in ((0, 1), (1, 0))
    )
    for form, source in ("gptq", gptq), ("awq", awq), ("low_first", low), ("high_first", high):
        assert np.array_equal(kernels.pack_codes(source, form), words), form
    less = (zeros - 1) % 16
    found = kernels.unpack_zeros(together([less.T[:, i::8] for i in range(8)]), "gptq", "float32")
    assert np.array_equal(found, less + 1)
    found = kernels.unpack_zeros(together([zeros.T[:, i::8] for i in AWQ]), "awq", "float32")
    assert np.array_equal(found, zeros)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("zero_points, exponents", [(False, False), (True, False), (False, True)])
def test_quantization_takes_the_nearest(kind, zero_points, exponents):
    if zero_points and kind != "int4":
        with pytest.raises(tkc.LaunchError, match="int4 alone"):
            kernels.quantize_packed(numbers((3, 5)), kind, 32, True)
        return
    w = numbers((37, 100))
    w[3, 32:64] = 0
    words, scales, zeros = kernels.quantize_packed(w, kind, 32, zero_points, exponents)
    zeros = zeros if zero_points else None
    got = kernels.dequantize_packed(words, scales, zeros, 100, kind, 32, "float32")
    step = np.repeat(double(scales), 32, 1)[:, :100]
    values = VALUES[kind] - (8 if kind == "int4" else 0)
    if zeros is not None:
        values = np.arange(-15.0, 16)
    if kind == "int4" and zeros is None:
        values = values[1:]  # -8 is not used
    nearest = np.abs(double(w)[:, :, None] - values * step[:, :, None]).min(2)
    assert (np.abs(double(got) - double(w)) <= nearest + 1e-5).all()
    if exponents:
        assert (np.log2(scales) % 1 == 0).all()


def test_bad_arguments_say_what_is_wrong():
    x, words = numbers((3, 64)), kernels.pack_codes(codes_of(8, 64))
    scales = numbers((8, 1))
    for change, said in (
        ({"kind": "int3"}, "kind is one of int4, nf4, fp4"),
        ({"group": 48}, "group is one of"),
        ({"group": 32}, r"scales: expected the shape \[8, 2\]"),
        ({"words": words[:, :8]}, r"words: expected the shape \[8, 16\]"),
        ({"words": words.astype(np.int32)}, "packed weights are int16"),
        ({"zeros": scales, "kind": "nf4"}, "zero points are of int4"),
    ):
        given = {"x": x, "words": words, "scales": scales, "group": 64} | change
        with pytest.raises(tkc.LaunchError, match=said):
            kernels.packed_matmul(**given)
    with pytest.raises(tkc.LaunchError, match="form is one of"):
        kernels.pack_codes(codes_of(8, 64), "other")
    assert kernels.packed_matmul(x[:0], words, scales, group=64).shape == (0, 8)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_in_threads(target, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", target)
    x, codes = numbers((16, 128), "bfloat16"), codes_of(64, 128)
    scales = np.abs(numbers((64, 2), "bfloat16", 1))
    words = kernels.pack_codes(codes)
    back = kernels.dequantize_packed(words, scales, None, 128, "int4", 64)
    close(back, decoded(codes, scales, None, "int4", 64), "bfloat16", ulps=1)
    got = kernels.packed_matmul(x, words, scales, group=64)
    close(got, double(x) @ double(back).T, "bfloat16", ulps=4)


@pytest.mark.parametrize("rows", [1, 256])
@pytest.mark.parametrize("kind, group, zeros", [("int4", 128, True), ("nf4", 64, False)])
def test_on_gpus(rows, kind, group, zeros):
    bf16 = numbers((), "bfloat16").dtype
    x, words = np.empty((rows, 4096), bf16), np.empty((14336, 1024), np.int16)
    scales = np.empty((14336, 4096 // group), bf16)
    z = scales if zeros else None
    assembles(lambda: kernels.packed_matmul(x, words, scales, z, None, kind, group))


def test_codes_become_operands_in_registers():
    """On Hopper: wgmma, and nothing moves between threads on the way."""
    bf16 = numbers((), "bfloat16").dtype
    x, words = np.empty((16, 4096), bf16), np.empty((8192, 1024), np.int16)
    scales = np.empty((8192, 32), bf16)
    with launches() as found:
        kernels.packed_matmul(x, words, scales)
    kernel, args, options = found[0]
    said = kernel.compile(*args, target="sm_90a", **options).decisions
    assert any("as its transpose, left operand in registers" in line for line in said)
    assert not any("data moves" in line for line in said)


def test_packing_on_gpus():
    w = np.empty((256, 1024), numbers((), "bfloat16").dtype)
    words, scales = np.empty((256, 256), np.int16), np.empty((256, 8), np.float32)

    def calls():
        kernels.quantize_packed(w, "int4", 128, True)
        kernels.quantize_packed(w, "nf4", 64)
        kernels.dequantize_packed(words, scales)
        kernels.pack_codes(np.empty((128, 256), np.int32), "gptq")
        kernels.pack_codes(np.empty((1024, 32), np.int32), "awq")
        kernels.pack_codes(np.empty((256, 512), np.uint8), "low_first")
        kernels.unpack_zeros(np.empty((8, 32), np.int32))

    assembles(calls)


def test_gradients_of_torch():
    torch = pytest.importorskip("torch")
    from tests.kernels.test_torch import DEVICE, same_gradients, tensors

    x, bias = tensors((5, 64), (8,))
    words = kernels.pack_codes(torch.tensor(codes_of(8, 64), device=DEVICE))
    scales = torch.rand(8, 2, device=DEVICE)
    w = kernels.dequantize_packed(words, scales, None, 64, "nf4", 32, "float32")
    same_gradients(
        lambda x, b: kernels.packed_matmul(x, words, scales, None, b, "nf4", 32),
        lambda x, b: x @ w.T + b,
        x,
        bias,
    )
