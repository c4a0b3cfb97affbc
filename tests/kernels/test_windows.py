"""Convolutions against float64: one to three axes, strides, paddings, dilations, channels by
themselves, gradients of x and weights, what they become on GPUs.
"""

from math import prod

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
    "one channel": ((2, (7, 5), 1, 6), (3, 3), 1, 1, 1),
    "one channel, strides": ((1, (9,), 1, 9), (1,), 2, 4, 2),
    "nothing is seen": ((1, (1,), 4, 3), (1,), 2, 1, 1),
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


# images, positions, taps, strides, a box of them
BOXES = {
    "rows": (2, (8, 16), (3, 3), (1, 1), (1, 4, 16)),
    "part of a row": (2, (8, 16), (3, 3), (1, 1), (1, 1, 8)),
    "several images": (4, (6, 10), (3, 3), (1, 1), (2, 3, 5)),
    "strides": (2, (8, 12), (3, 3), (2, 3), (2, 2, 4)),
    "strides, one axis": (4, (24,), (5,), (3,), (2, 4)),
    "a stride along one axis": (2, (8, 12), (5, 3), (2, 1), (1, 2, 6)),
    "three axes": (2, (4, 6, 8), (1, 3, 3), (1, 1, 1), (1, 2, 3, 8)),
}


@pytest.mark.parametrize("name", BOXES)
def test_boxes_of_positions(name):
    """Positions that are a block of their images, as tensor maps copy it."""
    images, size, taps, stride, box = BOXES[name]
    channels, outputs, rank, lead = 20, 24, len(size), ONES[len(size) :]
    x = numbers((images, *size, channels))
    w = numbers((outputs, *taps, channels), seed=1)
    padding = tuple(t // 2 for t in taps)
    found = Convolution(
        (*lead, *size), (*lead, *taps), (*lead, *stride), (*(0,) * len(lead), *padding), ONES
    )
    grad = numbers((images, *found.out[3 - rank :], outputs), seed=2)
    expected, dx, dw = reference(x, w, stride, padding, 1, False, grad)
    seen, every, rows = windows._by_phases(x, stride), prod(taps), prod(box)
    count = grad.size // outputs // rows
    weights = w.reshape(outputs, every, channels)
    blocks = dict(ACTIVATION=None, BN=32, BK=16, BM=rows, BOX=box, RANK=rank)

    in_a_row = windows._is_in_a_row(box, found.out[3 - rank :])
    if in_a_row:
        y = np.empty((grad.size // outputs, outputs), x.dtype)
        sizes = *found.out, *found.size, *found.out
        windows._windows.kernel[count, 1](
            *(x.reshape(-1, channels), seen, weights, None, y, images, *sizes),
            **dict(PHASES=(found.forward(),), BACK=False),
            **blocks,
        )
        close(y.reshape(expected.shape), expected, ulps=16)

    grids, steps = zip(*found.phases(), strict=True)
    assert len(set(grids)) == 1
    if in_a_row or prod(stride) > 1:
        of_x = np.empty((x.size // channels, channels), x.dtype)
        windows._windows.kernel[count, 1, len(steps)](
            *(grad.reshape(-1, outputs), grad, weights, None, of_x, images),
            *(*grids[0], *found.out, *found.size),
            **dict(PHASES=steps, BACK=True),
            **blocks,
        )
        close(of_x.reshape(dx.shape), dx, ulps=16)

    for together, parts in ((1, 1), (taps[-1], 2)):
        sums = np.empty((parts, outputs, every, channels), np.float32)
        windows._of_weights_by_boxes[1, 1, every // together * parts](
            *(grad, seen, sums, images, *found.out, channels),
            tkc.cdiv(count, parts),
            **dict(S=found.forward(), BM=32, BN=32, BOX=box, TAPS=together),
        )
        close(sums.sum(0).reshape(dw.shape), dw, ulps=16)


@pytest.mark.parametrize(
    "count, images, grid, box, is_in_a_row",
    [
        (128, 2, (1, 64, 64), (1, 1, 2, 64), True),
        (64, 1, (9, 128, 128), (1, 1, 1, 64), True),
        (256, 3, (3, 16, 16), (1, 1, 16, 16), True),
        (128, 5, (4, 8, 8), (1, 2, 8, 8), True),
        (128, 64, (28, 28), (8, 4, 4), False),
        (112, 64, (28, 28), (1, 4, 28), True),
        (224, 3, (56, 56), (1, 4, 56), True),
        (64, 64, (7, 7), (64, 1, 1), False),
        (98, 64, (7, 7), (2, 7, 7), True),
        (64, 48, (7, 7), (), False),
        (64, 6, (7, 7), (), False),
        (16, 8, (30,), (8, 2), False),
    ],
)
def test_boxes_that_fill_a_grid(count, images, grid, box, is_in_a_row):
    assert windows._box(count, images, grid) == box
    assert not box or windows._is_in_a_row(box, grid) == is_in_a_row


def test_arrays_that_tensor_maps_copy_by_phases():
    x, thin = np.empty((1, 8)), np.empty((1, 3))
    with tkc.handed(lambda *_: None, "sm_90a"):
        assert windows._mapped((56, 56), (2, 2), x) and windows._mapped((7, 8, 9), ONES, x)
        assert not windows._mapped((56, 56), (2, 2), x, thin)  # rows of no 16 bytes
        assert not windows._mapped((55, 56), (2, 2), x)  # positions of a phase are not as many
        assert not windows._mapped((8, 8, 8), (2, 2, 2), x)  # seven axes
    assert not windows._mapped((56, 56), (2, 2), x)  # a CPU's target has no tensor maps


@pytest.mark.parametrize("size", [56, 55])
def test_gradients_with_strides_on_gpus(size):
    """By boxes where each phase has as many positions, gathered where not."""
    x, w = np.empty((64, size, size, 128), BF16), np.empty((128, 3, 3, 128), BF16)
    grad = np.empty((64, 28, 28, 128), BF16)
    with launches("sm_90a") as found:
        kernels.conv_backward(grad, x, w, 1, 2, 2, 0, 1, 1)
    (of_x, args, _), (of_w, *_), *_ = found
    boxed = size % 2 == 0
    assert (of_x.__name__, of_w.__name__) == (
        "_windows",
        "_of_weights_by_boxes" if boxed else "_of_weights",
    )
    assert bool(args[-2]) == boxed


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
