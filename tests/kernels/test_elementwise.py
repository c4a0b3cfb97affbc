"""Activations, dropout, rotary, Adam and quantization against float64; odd sizes; compiled for
GPUs.
"""

from math import erf, sqrt

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import FLAT, assembles, close, double, launches, numbers
from tkc import kernels

BF16 = np.dtype(ml_dtypes.bfloat16)
ERF = np.vectorize(erf, otypes=[np.float64])


def gelu(x):
    return 0.5 * x * (1 + ERF(x / sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + np.exp(-x))


def derivative(f, x, h=1e-5):
    return (f(x + h) - f(x - h)) / (2 * h)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", FLAT)
def test_activations(shape, dtype):
    x, gate, grad = (numbers(shape, dtype, i, scale=2) for i in range(3))
    a, b, g = map(double, (x, gate, grad))
    for ours, f, gated, extra in (
        (kernels.gelu, gelu, kernels.geglu, ("none",)),
        (kernels.gelu, gelu_tanh, kernels.geglu, ("tanh",)),
        (kernels.silu, silu, kernels.swiglu, ()),
    ):
        close(ours(x, *extra), f(a), ulps=8)
        close(gated(x, gate, *extra), f(a) * b, ulps=8)
        backward, backward_gated = (
            getattr(kernels, ours.name + "_backward"),
            getattr(kernels, gated.name + "_backward"),
        )
        close(backward(grad, x, *extra), g * derivative(f, a), ulps=64)
        for got, want in zip(
            backward_gated(grad, x, gate, *extra), (g * b * derivative(f, a), g * f(a)), strict=True
        ):
            close(got, want, ulps=64)


def test_activations_of_large_numbers():
    x = np.array([-1e30, -100, -20, 0, 20, 100, 1e30], np.float32)
    for f in (kernels.gelu, lambda x: kernels.gelu(x, "tanh"), kernels.silu):
        close(f(x), np.where(x > 0, x, 0), ulps=4)
    with pytest.raises(tkc.LaunchError, match="'none' or 'tanh'"):
        kernels.gelu(x, "erf")
    with pytest.raises(tkc.LaunchError, match="expected one shape"):
        kernels.swiglu(x, x[1:])


@pytest.mark.parametrize("shape", FLAT)
def test_dropout(shape):
    x = np.ones(shape, np.float32)
    y = kernels.dropout(x, 0.25, 7)
    assert y.shape == x.shape and np.isin(y, np.float32([0, 4 / 3])).all()
    assert (kernels.dropout(x, 0.25, 7) == y).all()
    assert (kernels.dropout(x, 0.0, 7) == x).all() and not kernels.dropout(x, 1.0, 7).any()


def test_dropout_is_philox():
    x, seed = np.ones(100_003, np.float32), (5 << 32) + 9
    y = kernels.dropout(x, 0.25, seed)
    assert (
        abs((y == 0).mean() - 0.25) < 0.005 and not (y == kernels.dropout(x, 0.25, seed + 1)).all()
    )
    assert abs(np.corrcoef(y[:-1], y[1:])[0, 1]) < 0.01
    # element i: word i % 4 of call i // 4
    words = np.array([philox(q, seed) for q in range(16)]).reshape(-1)
    assert ((words >> 8) * 2.0**-24 >= 0.25).tolist() == (y[:64] != 0).tolist()
    with pytest.raises(tkc.LaunchError, match="0 to 1"):
        kernels.dropout(x, 1.5, 1)


def philox(counter, seed):
    c, k = [counter, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "shape, half",
    [
        ((2, 5, 3, 64), 32),
        ((1, 7, 33, 80), 16),
        ((2, 3, 1, 6), 3),
        ((0, 3, 2, 8), 4),
        ((1, 1, 5, 24), 6),
    ],
)
def test_rotary(shape, half, interleaved):
    x, angles = numbers(shape), numbers((shape[1] + 2, half), seed=1)
    cos, sin = np.cos(angles), np.sin(angles)
    c, s = double(cos)[: shape[1], None], double(sin)[: shape[1], None]
    first, second = (
        (np.s_[..., 0 : 2 * half : 2], np.s_[..., 1 : 2 * half : 2])
        if interleaved
        else (np.s_[..., :half], np.s_[..., half : 2 * half])
    )
    want, a, b = double(x), double(x)[first], double(x)[second]
    want[first], want[second] = a * c - b * s, b * c + a * s
    y = kernels.rotary(x, cos, sin, interleaved)
    close(y, want)
    close(kernels.rotary(y, cos, sin, interleaved, True), double(x), ulps=16)
    with pytest.raises(tkc.LaunchError, match="cos and sin are"):
        kernels.rotary(x, cos[:0], sin[:0])


@pytest.mark.parametrize("shape", FLAT)
@pytest.mark.parametrize("dtype, master", [("float32", False), ("bfloat16", True)])
def test_adam(shape, dtype, master):
    p, m, v = numbers(shape, dtype), np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    whole = p.astype(np.float32) if master else None
    P, M, V = double(p), double(m), double(v)
    for t in range(1, 4):
        grad = numbers(shape, dtype, t)
        g = double(grad)
        M, V = 0.9 * M + 0.1 * g, 0.99 * V + 0.01 * g * g
        P = P * (1 - 1e-2 * 0.1) - 1e-2 * (M / (1 - 0.9**t)) / (np.sqrt(V / (1 - 0.99**t)) + 1e-8)
        kernels.adam_(p, grad, m, v, t, 1e-2, 0.9, 0.99, weight_decay=0.1, master=whole)
    close(whole if master else p, P, "float32", ulps=16)
    close(p, P)
    close(m, M, ulps=16)
    with pytest.raises(tkc.LaunchError, match="t counts steps from 1"):
        kernels.adam_(p, p, m, v, 0)


@pytest.mark.parametrize("step", ["adam_", "lion_"])
def test_optimizers_of_channels_last(step):
    """Arrays of one memory order, whatever it is; the gradient in any."""
    grad, *held = (numbers((4, 3, 5, 5), seed=i) for i in range(4 if step == "adam_" else 3))
    numbers_of = (1,) if step == "adam_" else ()
    held = [abs(x) for x in held]
    want = [x.copy() for x in held]
    getattr(kernels, step)(want[0], grad, *want[1:], *numbers_of)
    turned = [np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) for x in held]
    for given in (grad, np.asfortranarray(grad)):
        found = [x.copy(order="K") for x in turned]
        getattr(kernels, step)(found[0], given, *found[1:], *numbers_of)
        assert all(np.array_equal(a, b) for a, b in zip(found, want, strict=True))
    with pytest.raises(tkc.LaunchError, match="one memory order"):
        getattr(kernels, step)(turned[0], grad, *held[1:], *numbers_of)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 31), (7, 1025), (2, 3, 257)])
def test_quantize(shape, dtype):
    x, most = (
        numbers(shape, scale=5),
        {"int8": 127, "float8_e4m3": 448, "float8_e5m2": 57344}[dtype],
    )
    step = {"int8": 1 / 254, "float8_e4m3": 2.0**-4, "float8_e5m2": 2.0**-3}[dtype] * 1.01
    q, scale = kernels.quantize(x, dtype)
    assert scale.shape == (1,) and q.shape == x.shape
    top = np.abs(x).max(initial=0)
    close(scale, np.array([top / most if top else 1]))
    assert (
        np.abs(double(kernels.dequantize(q, scale, "float32")) - x)
        <= step * (top if dtype == "int8" else np.abs(x) + top / most)
    ).all()
    q, scales = kernels.quantize_rows(x, dtype)
    tops = np.abs(x).max(-1, initial=0)
    close(scales, np.where(tops > 0, tops / most, 1))
    assert (
        np.abs(double(kernels.dequantize(q, scales, "float32")) - x)
        <= step * (tops[..., None] if dtype == "int8" else np.abs(x) + tops[..., None] / most)
    ).all()


def test_quantizing_zeros():
    for f in kernels.quantize, kernels.quantize_rows:
        q, scale = f(np.zeros((3, 5), np.float32))
        assert not double(q).any() and (scale == 1).all()
    with pytest.raises(tkc.LaunchError, match="quantization is to"):
        kernels.quantize(np.zeros(3, np.float32), "int4")


@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e5m2", "int8"])
@pytest.mark.parametrize("top", [1e-45, 1e-42, 1e-38, 1e-36, 1e-30, 1e38, 3.4e38])
def test_quantizing_numbers_at_the_ends_of_float32(top, dtype):
    """No scale is 0 or infinite, and no 0 becomes NaN."""
    x = np.array([[top, 0, -top / 2, 0]], np.float32)
    for q, scale in (
        kernels.quantize(x, dtype),
        kernels.quantize_rows(x, dtype),
        kernels.quantize_blocks(x, 1, 4, dtype),
    ):
        assert 0 < scale.item() < np.inf
        error = np.abs(double(q) * double(scale) - double(x)).max()
        assert error <= top / 8 + 2.0**-107


def test_a_step_may_be_a_number_of_numpy():
    made = []
    for t, lr in (3, 0.01), (np.int64(3), np.float64(0.01)):
        arrays = [np.ones(33, np.float32) for _ in range(4)]
        kernels.adam_(*arrays, t, lr)
        made.append(arrays[0])
    assert np.array_equal(*made)


def test_integers_are_refused_where_floats_are_meant():
    x, w, rows = np.zeros((4, 8), np.int32), np.ones(8, np.float32), np.zeros(4, np.int64)
    angles = np.zeros((4, 2), np.float32)
    for call in (
        lambda: kernels.gelu(x),
        lambda: kernels.silu_backward(x, x),
        lambda: kernels.swiglu(x, x),
        lambda: kernels.geglu_backward(x, x, x),
        lambda: kernels.dropout(x, 0.5, 1),
        lambda: kernels.softmax(x),
        lambda: kernels.log_softmax_backward(x, x),
        lambda: kernels.layer_norm(x, w),
        lambda: kernels.add_rms_norm(x, x),
        lambda: kernels.rms_norm_backward(x, x),
        lambda: kernels.cross_entropy(x, rows),
        lambda: kernels.cross_entropy_(x, rows),
        lambda: kernels.rotary(x[None, :, None], angles, angles),
        lambda: kernels.adam_(x, x, x, x, 1),
        lambda: kernels.quantize(x),
        lambda: kernels.quantize_rows(x),
    ):
        with pytest.raises(
            tkc.LaunchError, match="expected elements of a float type, got int32; convert the array"
        ):
            call()


def test_on_gpus():
    x, p = np.empty((1024, 4096), BF16), np.empty((1024, 4096), np.float32)
    assembles(
        lambda: (
            kernels.gelu(x),
            kernels.geglu_backward(x, x, x, "tanh"),
            kernels.swiglu(x, x),
            kernels.swiglu_backward(x, x, x),
            kernels.dropout(x, 0.1, 5),
        )
    )
    assembles(
        lambda: (
            kernels.adam_(x, x.copy(), p, p.copy(), 3, master=p.copy()),
            kernels.quantize(x),
            kernels.quantize_rows(x, "int8"),
            kernels.dequantize(x.astype(np.int8), np.ones(1, np.float32)),
        ),
        ("sm_90a",),
    )
    heads, angles = np.empty((2, 512, 32, 128), BF16), np.empty((512, 64), np.float32)
    assembles(
        lambda: (kernels.rotary(heads, angles, angles), kernels.rotary(heads, angles, angles, True))
    )
    with launches() as found:
        kernels.rotary(heads, angles, angles)
    ((kernel, args, options),) = found
    # halves of a head, 16 bytes at a time
    assert not any(
        "moves" in line for line in kernel.compile(*args, target="sm_90a", **options).decisions
    )
