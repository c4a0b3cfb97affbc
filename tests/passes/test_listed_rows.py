"""Dots of blocks with several axes, whose rows are those of a matrix: windows of images, which
tensor maps copy and tensor cores read where they lie.
"""

from functools import cache, partial

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.kernels import BF16
from tests.passes.stages import LAST, assembler, assembles_clean, parses_back, run, without_threads
from tkc.ir.digits import LayoutError
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument

H, W, TAPS = 8, 16, 2  # of a program's positions; along each axis
IMAGES = ArrayArgument(
    tkc.bfloat16, ArrayFacts((Fact(),) * 3 + (Fact(8),), (Fact(8),) * 3 + (Fact(exact=1),), 16)
)
WEIGHTS = ArrayArgument(
    tkc.bfloat16, ArrayFacts((Fact(),) * 2 + (Fact(8),), (Fact(8),) * 2 + (Fact(exact=1),), 16)
)
ROWS = ArrayArgument(tkc.bfloat16, ArrayFacts((Fact(), Fact(8)), (Fact(8), Fact(exact=1)), 16))
PARTS = ArrayArgument(
    tkc.float32, ArrayFacts((Fact(),) * 2 + (Fact(8),), (Fact(8),) * 2 + (Fact(exact=1),), 16)
)


def windows(x, w, y, BN: tkc.constexpr, BK: tkc.constexpr, H: tkc.constexpr = H):
    """y[p] = Σ_t x[p + t - 1] w[t]ᵀ: a left operand; of few rows a right one, of the transpose."""
    parts = tkc.cdiv(x.shape[1], H)
    image, h = tkc.program_id(0) // parts, tkc.program_id(0) % parts * H
    n, acc = tkc.program_id(1) * BN, tkc.zeros((H * W, BN))
    for i in tkc.range(0, TAPS * TAPS * tkc.cdiv(x.shape[3], BK)):
        t, k = i % (TAPS * TAPS), i // (TAPS * TAPS) * BK
        seen = tkc.load(x[image], (h + t // TAPS - 1, t % TAPS - 1, k), (H, W, BK))
        weights = tkc.load(w, (n, t, k), (BN, None, BK))
        acc = tkc.dot(seen.reshape(H * W, BK), weights.T, acc)
    tkc.store(y, (tkc.program_id(0) * H * W, n), acc.to(y.dtype))


def of_weights(grad, x, parts, BM: tkc.constexpr, BN: tkc.constexpr):
    """Σ_p grad[p] x[p + t - 1]ᵀ of each tap and eight rows: a right operand."""
    t, m, n = tkc.program_id(0), tkc.program_id(1) * BM, tkc.program_id(2) * BN
    acc, strips = tkc.zeros((BM, BN)), tkc.cdiv(x.shape[1], H)
    for i in tkc.range(0, x.shape[0] * strips):
        image, h = i // strips, i % strips * H
        seen = tkc.load(x[image], (h + t // TAPS - 1, t % TAPS - 1, n), (H, W, BN))
        left = tkc.load(grad, (i * H * W, m), (H * W, BM))
        acc = tkc.dot(left.T, seen.reshape(H * W, BN), acc)
    tkc.store(parts[t], (m, n), acc)


def of_neighbours(grad, x, parts, BM: tkc.constexpr, BN: tkc.constexpr):
    """The same of a row of taps, which read rows of grad together: both operands are rows of a
    block of several axes."""
    down, m, n = tkc.program_id(0), tkc.program_id(1) * BM, tkc.program_id(2) * BN
    sums, strips = [tkc.zeros((BM, BN)) for _ in range(TAPS)], tkc.cdiv(x.shape[1], H)
    for i in tkc.range(0, x.shape[0] * strips):
        image, h = i // strips, i % strips * H
        left = tkc.load(grad[image], (h, 0, m), (H, W, BM)).reshape(H * W, BM)
        for t in range(TAPS):
            seen = tkc.load(x[image], (h + down - 1, t - 1, n), (H, W, BN))
            sums[t] = tkc.dot(left.T, seen.reshape(H * W, BN), sums[t])
    for t in range(TAPS):
        tkc.store(parts[down * TAPS + t], (m, n), sums[t])


@cache
def compiled(kernel, *arrays, **constants):
    return stages.compiled(traced(kernel, *arrays, **constants), cluster=(1, 1))


def forward():
    return compiled(windows, IMAGES, WEIGHTS, ROWS, BN=64, BK=64)


def swapped():
    return compiled(windows, IMAGES, WEIGHTS, ROWS, BN=64, BK=64, H=2)


def backward():
    return compiled(of_weights, ROWS, IMAGES, PARTS, BM=64, BN=128)


def together():
    return compiled(of_neighbours, IMAGES, IMAGES, PARTS, BM=64, BN=64)


def images(count: int, channels: int, outputs: int):
    """Images of 16 x 16, weights or gradients of small integers, and what is seen through taps."""
    rng = np.random.default_rng(channels)
    x = rng.integers(-2, 3, (count, 2 * H, W, channels)).astype(np.float32)
    around = np.pad(x, ((0, 0), (1, 0), (1, 0), (0, 0)))
    seen = [around[:, i : i + 2 * H, j : j + W] for i in range(TAPS) for j in range(TAPS)]
    w = rng.integers(-2, 3, (outputs, TAPS * TAPS, channels)).astype(np.float32)
    grad = rng.integers(-2, 3, (count * 2 * H * W, outputs)).astype(np.float32)
    return x, w, grad, [each.reshape(-1, channels) for each in seen]


def check_forward(module, count: int, channels: int, outputs: int, run=run, h=H, **how) -> None:
    x, w, _, seen = images(count, channels, outputs)
    y = np.full((count * 2 * H * W, outputs), np.nan, BF16)
    grid = 2 * count * H // h, -(-outputs // 64), 1
    run(module, [x.astype(BF16), w.astype(BF16), y], grid, **how)
    expected = sum(each @ w[:, t].T for t, each in enumerate(seen))
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(BF16).astype(np.float32))


def check_backward(
    module, count: int, channels: int, outputs: int, run=run, is_together=False, **how
) -> None:
    x, _, grad, seen = images(count, channels, outputs)
    parts = np.full((TAPS * TAPS, outputs, channels), np.nan, np.float32)
    grid = TAPS * TAPS, -(-outputs // 64), -(-channels // 128)
    given = grad.astype(BF16)
    if is_together:
        grid, given = (TAPS, grid[1], -(-channels // 64)), given.reshape(*x.shape[:3], outputs)
    run(module, [given, x.astype(BF16), parts], grid, **how)
    np.testing.assert_array_equal(parts, np.stack([grad.T @ each for each in seen]))


FORMS = {
    "left": (forward, check_forward),
    "swapped": (swapped, partial(check_forward, h=2)),
    "right": (backward, check_backward),
    "both": (together, partial(check_backward, is_together=True)),
}
form = pytest.mark.parametrize("name", FORMS)


@form
def test_every_level(name):
    made, check = FORMS[name]
    modules, _ = made()
    for module in without_threads(modules):
        check(module, 1, 72, 40)
    check(modules[LAST], 2, 72, 72, seed=1)


@form
def test_ptx(name):
    """What is outside an image is zero, and its rows lie where the tensor core looks for them."""
    made, check = FORMS[name]
    check(made()[0][LAST], 1, 72, 40, run=machine.run, seed=1, resident=1)


@form
@assembler
def test_ptxas(name):
    assembles_clean(FORMS[name][0]()[0][LAST])


@form
def test_tensor_maps_copy_windows_and_tensor_cores_read_them_there(name):
    modules, given = FORMS[name][0]()
    plan = given.plan
    assert plan.roles != "one" and {load.path for load in plan.loads} == {"tma"}
    assert all(dot.a == dot.b == "shared" for dot in plan.dots), plan.decisions
    parses_back(modules["swizzle-shared"])


def test_a_block_with_turned_rows_goes_through_registers():
    """Its rows do not follow one another in shared memory."""

    def turned(x, w, y, BN: tkc.constexpr, BK: tkc.constexpr):
        acc = tkc.zeros((H * W, BN))
        for k in tkc.range(0, x.shape[3], BK):
            seen = tkc.load(x[0], (0, 0, k), (W, H, BK)).permute(1, 0, 2)
            acc = tkc.dot(seen.reshape(H * W, BK), tkc.load(w, (0, 0, k), (BN, None, BK)).T, acc)
        tkc.store(y, (0, 0), acc.to(y.dtype))

    modules, _ = compiled(turned, IMAGES, WEIGHTS, ROWS, BN=64, BK=64)
    x, w, _, _ = images(1, 72, 64)
    y = np.full((H * W, 64), np.nan, BF16)
    run(modules[LAST], [x.astype(BF16), w.astype(BF16), y], (1, 1, 1), seed=1)
    expected = x[0, :W, :H].swapaxes(0, 1).reshape(H * W, -1) @ w[:, 0].T
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(BF16).astype(np.float32))


def test_layouts_of_rows():
    block = SharedLayout((4, 2, 64), 16, 128)
    rows = block.reshape((8, 64))
    assert rows == SharedLayout((8, 64), 16, 128) and rows.offset((5, 9)) == block.offset((2, 1, 9))
    for other, shape in (
        (block, (8, 32, 2)),
        (block, (4, 64)),
        (block.transpose((1, 0, 2)), (8, 64)),
    ):
        with pytest.raises(LayoutError, match="cannot be seen as"):
            other.reshape(shape)
