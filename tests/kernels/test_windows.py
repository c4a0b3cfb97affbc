"""Convolutions against float64: one to three axes, strides, paddings, dilations, channels by
themselves, gradients of x and weights, what they become on GPUs.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, launches, numbers, torch_with_ops
from tkc import kernels
from tkc.kernels import windows
from tkc.kernels.windows import ONES, Convolution

BF16 = numbers((), "bfloat16").dtype

# images, positions, channels, outputs, taps, stride, padding, dilation
CASES = {
    "three by three": ((2, (9, 7), 20, 24), (3, 3), 1, 1, 1),
    "strides": ((1, (10, 11), 16, 33), (3, 2), (2, 3), (1, 0), 1),
    "dilated": ((2, (12, 9), 8, 5), (3, 3), 2, 2, (2, 3)),
    "one axis": ((3, (21,), 3, 7), (4,), 3, 2, 1),
    "three axes": ((1, (4, 5, 6), 9, 8), (2, 3, 2), (1, 2, 1), (0, 1, 1), 1),
    "pointwise": ((2, (5, 3), 17, 12), (1, 1), 1, 0, 1),
    "gaps": ((1, (9, 9), 8, 8), (1, 1), 2, 0, 1),
    "many taps": ((1, (18, 33), 4, 3), (17, 31), 1, 1, 1),
}
EACH = {
    "each channel": ((2, (9, 7), 70, 70), (3, 3), 1, 1, 1),
    "each channel, strides": ((1, (11, 8), 5, 5), (2, 3), (2, 1), (1, 2), 1),
    "each channel, many taps": ((1, (18, 33), 3, 3), (17, 31), 1, 1, 1),
}


def of_axes(value, rank):
    return (value,) * rank if isinstance(value, int) else value


def reference(x, w, stride, padding, dilation, each, grad):
    """The result, and the gradients of x and w, tap by tap in float64."""
    rank = x.ndim - 2
    stride, padding, dilation = (of_axes(v, rank) for v in (stride, padding, dilation))
    padded = np.pad(double(x), ((0, 0), *((p, p) for p in padding), (0, 0)))
    out = [
        (n - d * (t - 1) - 1) // s + 1
        for n, t, s, d in zip(padded.shape[1:-1], w.shape[1:-1], stride, dilation, strict=True)
    ]
    y, dx, dw = np.zeros((len(x), *out, len(w))), np.zeros(padded.shape), np.zeros(w.shape)
    grad = np.zeros(y.shape) if grad is None else double(grad)
    for tap in np.ndindex(*w.shape[1:-1]):
        seen = (slice(None),) + tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilation, stride, out, strict=True)
        )
        part, one = padded[seen], double(w[(slice(None), *tap)])
        if each:
            y += part * one[:, 0]
            dx[seen] += grad * one[:, 0]
            dw[(slice(None), *tap, 0)] = (grad * part).reshape(-1, len(w)).sum(0)
        else:
            y += part @ one.T
            dx[seen] += grad @ one
            dw[(slice(None), *tap)] = np.tensordot(grad, part, (range(rank + 1),) * 2)
    inside = tuple(slice(p, n - p) for p, n in zip(padding, padded.shape[1:-1], strict=True))
    return y, dx[(slice(None), *inside)], dw


@pytest.mark.parametrize("name", [*CASES, *EACH])
def test_convolution(name):
    (images, size, channels, outputs), taps, stride, padding, dilation = (CASES | EACH)[name]
    dtype = "bfloat16" if name in ("strides", "each channel") else "float32"
    rank, each = len(size), name in EACH
    x = numbers((images, *size, channels), dtype)
    w = numbers((outputs, *taps, 1 if each else channels), dtype, 1)
    bias = numbers((outputs,), dtype, 2)
    got = kernels.conv(x, w, bias, stride, padding, dilation)
    grad = numbers(got.shape, dtype, 3)
    y, dx, dw = reference(x, w, stride, padding, dilation, each, grad)
    close(got, y + double(bias), dtype, ulps=16)
    given = [
        n
        for v, one in ((stride, 1), (padding, 0), (dilation, 1))
        for n in ((one,) * (3 - rank) + tuple(of_axes(v, rank)))
    ]
    of_x, of_w = kernels.conv_backward(grad, x, w, *given)
    close(of_x, dx, dtype, ulps=16)
    close(of_w, dw, dtype, ulps=16)


def test_boxes_of_positions():
    """Positions in a row that are a block of their images, as a tensor map copies it."""
    x, w = numbers((2, 8, 16, 20)), numbers((24, 3, 3, 20), seed=1)
    found = Convolution((1, 8, 16), (1, 3, 3), ONES, (0, 1, 1), ONES)
    rows, whole, taps = x.reshape(-1, 20), x[:, None], w.reshape(24, 9, 20)
    for bm, box in ((64, (1, 4, 16)), (8, (1, 1, 8))):
        y = np.empty((len(rows), 24), x.dtype)
        sizes = *found.out, *found.size, *found.out
        windows._windows.kernel[len(rows) // bm, 1](
            *(rows, whole, taps, None, y, 2, *sizes),
            **dict(PHASES=(found.forward(),), BACK=False, ACTIVATION=None),
            **dict(BM=bm, BN=32, BK=16, BOX=box),
        )
        grad, parts = numbers(y.shape, seed=2), np.empty((1, 24, 9, 20), np.float32)
        windows._of_weights[1, 1, 9](
            *(grad, rows, whole, parts, *found.out, *found.size, len(rows)),
            **dict(S=found.forward(), BM=32, BN=32, BK=bm, BOX=box),
        )
        expected, _, dw = reference(x, w, 1, 1, 1, False, grad.reshape(2, 8, 16, 24))
        close(y.reshape(expected.shape), expected, ulps=16)
        close(parts.reshape(dw.shape), dw, ulps=16)


def test_results_that_are_apart_are_no_block_of_rows():
    """A gradient's positions are a box of what they see, but its results are every second row."""
    x, w = np.empty((16, 64, 64, 320), BF16), np.empty((320, 3, 3, 320), BF16)
    grad = np.empty((16, 32, 32, 320), BF16)
    with launches("sm_90a") as found:
        kernels.conv_backward(grad, x, w, 1, 2, 2, 0, 1, 1, of_weight=False)
    assert len(found) == 1 and found[0][1][-1] == ()


@pytest.mark.parametrize(
    "count, grid, box",
    [
        (128, (1, 64, 64), (1, 2, 64)),
        (64, (9, 128, 128), (1, 1, 64)),
        (256, (3, 16, 16), (1, 16, 16)),
        (128, (4, 8, 8), (2, 8, 8)),
        (128, (1, 56, 56), ()),
        (128, (1, 6, 64), (1, 2, 64)),
        (256, (1, 6, 64), ()),
        (224, (1, 56, 56), (1, 4, 56)),
        (112, (1, 28, 28), (1, 4, 28)),
        (128, (1, 7, 7), ()),
    ],
)
def test_positions_in_a_row_that_are_a_box(count, grid, box):
    x, steps = np.empty((1, 1)), Convolution(grid, ONES, ONES, (0, 0, 0), ONES).forward()
    with tkc.handed(lambda *_: None, "sm_90a"):
        assert windows._box(count, grid, steps, x) == box
    assert windows._box(count, grid, steps, x) == ()  # a CPU's target has no tensor maps


def test_activations_and_bad_arguments():
    x, w = numbers((1, 5, 6, 4)), numbers((3, 3, 3, 4), seed=1)
    y, *_ = reference(x, w, 1, 1, 1, False, None)
    close(kernels.conv(x, w, padding=1, activation="relu"), np.maximum(y, 0), ulps=16)
    assert kernels.conv(x[:0], w, padding=1).shape == (0, 5, 6, 3)
    for change, said in (
        ({"weight": w[..., :3]}, "weight has 3 channels and x 4"),
        ({"weight": w[0]}, "1 to 3 axes"),
        ({"weight": w.astype(np.float16)}, "one element type"),
        ({"stride": 0}, "strides and dilations are 1 or more"),
        ({"stride": (1, 1, 1)}, "integers, or 2 of them"),
        ({"dilation": 4}, "do not fit x"),
        ({"bias": numbers((4,))}, r"bias: expected the shape \[3\]"),
        ({"activation": "tan"}, "activation is None or one of"),
    ):
        with pytest.raises(tkc.LaunchError, match=said):
            kernels.conv(**({"x": x, "weight": w} | change))


@pytest.mark.parametrize("stride", [1, 2])
def test_on_gpus(stride):
    x, w = np.empty((16, 64, 64, 320), BF16), np.empty((320, 3, 3, 320), BF16)
    grad = np.empty((16, 64 // stride, 64 // stride, 320), BF16)

    def calls():
        kernels.conv(x, w, None, stride, 1, activation="silu")
        kernels.conv_backward(grad, x, w, 1, stride, stride, 0, 1, 1)

    assembles(calls)


def test_each_channel_on_gpus():
    x, w = np.empty((16, 64, 64, 320), BF16), np.empty((320, 3, 3, 1), BF16)

    def calls():
        kernels.conv(x, w, padding=1)
        kernels.conv_backward(x, x, w, 1, 1, 1, 0, 1, 1)

    assembles(calls)


@pytest.mark.parametrize("size, channels", [(64, 320), (56, 64), (14, 256), (7, 512)])
def test_products_run_on_wgmma(size, channels):
    """Also where a block has other heights than wgmma's, and is computed as its transpose."""
    x, w = np.empty((64, size, size, channels), BF16), np.empty((channels, 3, 3, channels), BF16)
    with launches() as found:
        kernels.conv(x, w, padding=1)
        kernels.conv_backward(x, x, w, 1, 1, 1, 0, 1, 1)
    for kernel, args, options in found[:3]:
        compiled = kernel.compile(*args, target="sm_90a", **options)
        assert "wgmma" in compiled.ptx, compiled.decisions


def test_gradients_of_torch():
    torch = torch_with_ops()
    from tests.kernels.test_torch import same_gradients, tensors

    def plain(x, w, b):
        moved = torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), b, stride=2, padding=1
        )
        return torch.nn.functional.silu(moved.permute(0, 2, 3, 1))

    x, w, b = tensors((2, 7, 6, 5), (4, 3, 3, 5), (4,))
    same_gradients(
        lambda x, w, b: kernels.conv(x, w, b, 2, 1, activation="silu"),
        plain,
        x,
        w,
        b,
        tolerance=1e-4,
    )
    with torch.no_grad():
        given = x, w, b, 1, 2, 2, 0, 1, 1, 1, 1, 1
        torch.library.opcheck(torch.ops.tkc.conv, given)
