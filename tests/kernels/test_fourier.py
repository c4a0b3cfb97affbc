"""Fourier transforms and convolutions by them against NumPy's in float64: in one program and cut in
columns, odd numbers of images, short filters, gradients.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, double, numbers
from tkc import kernels

BF16 = numbers((), "bfloat16").dtype


def near(got, want, tolerance):
    assert got.shape == want.shape
    assert np.abs(double(got) - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("n", [256, 2048, 8192])
def test_transforms(n):
    x, y = numbers((2, n)), numbers((2, n), seed=1)
    re, im = kernels.fft(x, y)
    want = np.fft.fft(double(x) + 1j * double(y))
    near(re, want.real, 1e-5)
    near(im, want.imag, 1e-5)
    back = kernels.fft(re, im, inverse=True)
    near(back[0], double(x), 1e-5)
    near(back[1], double(y), 1e-5)
    real = kernels.fft(x)
    near(real[0], np.fft.fft(double(x)).real, 1e-5)


def reference(u, k, grad, causal):
    """The result and the gradients, by transforms in float64."""
    u, k, g, length = double(u), double(k), double(grad), u.shape[2]
    n = 2 * length if causal else length
    a, b, c = (np.fft.rfft(x, n) for x in (u, k, g))
    y = np.fft.irfft(a * b, n)[..., :length]
    du = np.fft.irfft(c * b.conj(), n)[..., :length]
    dk = np.fft.irfft((c * a.conj()).sum(0), n)[..., : k.shape[1]]
    return y, du, dk


@pytest.mark.parametrize(
    "shape, taps, causal",
    [((3, 2, 100), 100, True), ((2, 3, 256), 40, False), ((1, 1, 3000), 3000, True)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolutions(shape, taps, causal, dtype):
    u, k = numbers(shape, dtype), numbers((shape[1], taps), dtype, 1)
    grad = numbers(shape, dtype, 2)
    y, du, dk = reference(u, k, grad, causal)
    tolerance = 1e-5 if dtype == "float32" else 8e-3
    near(kernels.fft_conv(u, k, causal), y, tolerance)
    found = kernels.fft_conv_backward(grad, u, k, causal)
    near(found[0], du, tolerance)
    near(found[1], dk, tolerance)


@pytest.mark.parametrize("length", [200, 3000])
@pytest.mark.parametrize("size", [1e-9, 1e5], ids=["small", "large"])
def test_sizes_that_float16_has_not(size, length):
    """bfloat16 has more exponents than what it is multiplied in."""
    u, k = numbers((3, 1, length)) * size, numbers((1, length), seed=1) * size
    u, k = u.astype(BF16), k.astype(BF16)
    y, du, dk = reference(u, k, u, True)
    near(kernels.fft_conv(u, k), y, 8e-3)
    found = kernels.fft_conv_backward(u, u, k)
    near(found[0], du, 8e-3)
    near(found[1], dk, 8e-3)
    row = np.concatenate([u[0], u[0]], -1)[..., :256] if length < 256 else u[0][..., :2048]
    near(kernels.fft(row)[0], np.fft.fft(double(row)).real, 8e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_filters_whose_spectrum_is_large(dtype):
    """Sums of all elements, whose transforms are beyond float16 where the results are not."""
    u, k = (
        np.ones((2, 1, 1000), numbers((), dtype).dtype),
        np.ones((1, 1000), numbers((), dtype).dtype),
    )
    near(kernels.fft_conv(u, k), reference(u, k, u, True)[0], 8e-3)


@pytest.mark.parametrize("length", [300, 3000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_is_as_exact_beside_a_larger_one(dtype, length):
    """Two rows of a batch are the parts of one complex row."""
    u = [numbers((1, 2, length)), numbers((1, 2, length), seed=2) * 1e-4, numbers((1, 2, length))]
    u = np.concatenate(u).astype(numbers((), dtype).dtype)
    k = numbers((2, length), dtype, 1)
    y, found = reference(u, k, u, True)[0], kernels.fft_conv(u, k)
    for i in range(3):
        near(found[i], y[i], 8e-3 if dtype == "bfloat16" else 1e-4)


def test_bad_arguments_say_what_is_wrong():
    u, k = numbers((1, 2, 100)), numbers((2, 100))
    assert kernels.fft_conv(u[:0], k).shape == (0, 2, 100)
    with pytest.raises(tkc.LaunchError, match="a power of two from 256"):
        kernels.fft_conv(u, k, causal=False)
    with pytest.raises(tkc.LaunchError, match="k has 1 to 100 elements"):
        kernels.fft_conv(u, numbers((2, 101)))
    with pytest.raises(tkc.LaunchError, match=r"u is \[batch, channels, length\]"):
        kernels.fft_conv(u[0], k)
    with pytest.raises(tkc.LaunchError, match="a row has a power of two"):
        kernels.fft(u)


@pytest.mark.parametrize("length", [1024, 8192])
@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=str)
def test_on_gpus(length, dtype):
    u, k = np.empty((16, 64, length), dtype), np.empty((64, length), dtype)

    def calls():
        kernels.fft_conv(u, k)
        kernels.fft_conv_backward(u, u, k)
        kernels.fft(u)

    assembles(calls)


def test_gradients_of_torch():
    torch = pytest.importorskip("torch")
    from tests.kernels.test_torch import same_gradients, tensors

    def plain(u, k):
        n = 2 * u.shape[-1]
        return torch.fft.irfft(torch.fft.rfft(u, n) * torch.fft.rfft(k, n), n)[..., : u.shape[-1]]

    same_gradients(kernels.fft_conv, plain, *tensors((2, 2, 60), (2, 60)), tolerance=1e-3)
