"""Sums, cumulative sums, top-k, histograms, transposes and embeddings against NumPy; every schedule
gives the same bits.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, close, double, numbers
from tkc import kernels
from tkc.kernels import scans

BF16 = numbers((), "bfloat16").dtype


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (5, 31), (2, 8191), (2, 8193), (1_500_007,)])
def test_cumsum(shape, reverse):
    # sums of small integers are exact
    whole = np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)
    turn = (lambda x: x[..., ::-1]) if reverse else lambda x: x
    np.testing.assert_array_equal(
        kernels.cumsum(whole, reverse=reverse), turn(np.cumsum(turn(whole), -1))
    )
    np.testing.assert_array_equal(
        kernels.cumsum(whole.astype(np.int32), reverse=reverse),
        turn(np.cumsum(turn(whole).astype(np.int32), -1)),
    )
    x = numbers(shape)
    close(kernels.cumsum(x, reverse=reverse), turn(np.cumsum(turn(double(x)), -1)), ulps=64)


@pytest.mark.parametrize("length", [0, 5, 8193])
def test_flags_add_up(length):
    flags = np.random.default_rng(0).integers(0, 2, (2, length)).astype(bool)
    counts = kernels.cumsum(flags)
    assert counts.dtype == np.int32
    np.testing.assert_array_equal(counts, np.cumsum(flags, -1))


def test_cumsum_along_any_axis_gives_the_same_bits_again():
    x = numbers((3, 5, 7))
    for axis in range(3):
        close(kernels.cumsum(x, axis), np.cumsum(double(x), axis), ulps=16)
    x = numbers((700_001,))
    assert (kernels.cumsum(x) == kernels.cumsum(x)).all()
    with pytest.raises(tkc.LaunchError, match="32 bits or fewer"):
        kernels.cumsum(x.astype(np.float64))


def test_a_long_cumsum_is_bound_by_memory_on_paper():
    """An H200 issues 132 x 4 instructions a clock and moves 4 bytes of an element at 4.2 TB/s: 26
    instructions an element's share of a warp at 1.65 GHz. Six blocks fit a multiprocessor's
    registers.
    """
    n, block = 1 << 30, scans.PART_ELEMENTS
    compiled = scans._cumsum.compile(
        f"bf16[1, {n}]",
        f"bf16[1, {n}]",
        f"u64[1, {n // block}]",
        REVERSE=False,
        N=block,
        GROUP=scans.GROUP_PROGRAMS,
        target="sm_90a",
    )
    instructions = sum(
        line.strip().endswith(";") and not line.strip().startswith((".", "//"))
        for line in compiled.ptx.split("$for", 1)[1].splitlines()
    )
    assert (
        instructions * compiled.interface.threads / block <= 18
        and "membar" not in compiled.ptx
        and "fence" not in compiled.ptx
    )
    assert (
        compiled.resources.clean
        and compiled.resources.registers <= 80
        and compiled.interface.threads == 128
        and compiled.interface.together
    )


@pytest.mark.parametrize("shape", [(0,), (1,), (7, 1025), (3_000_017,)])
def test_sum(shape):
    x = numbers(shape)
    assert (
        kernels.sum(x).shape == ()
        and abs(float(kernels.sum(x)) - double(x).sum()) <= 1e-6 * np.abs(double(x)).sum()
    )
    whole = np.random.default_rng(0).integers(-1 << 30, 1 << 30, shape)
    assert (
        int(kernels.sum(whole)) == whole.sum()
        and int(kernels.sum(whole.astype(np.int32))) == whole.sum()
    )


@pytest.mark.parametrize(
    "shape, k",
    [((1, 1), 1), ((3, 31), 31), ((2, 1025), 7), ((3, 5000), 300), ((2, 3001), 1024), ((0, 5), 2)],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_topk(shape, k, dtype):
    x = (
        numbers(shape, "float32", scale=100).astype(np.int32)
        if dtype == "int32"
        else numbers(shape, dtype)
    )
    values, indices = kernels.topk(x, k)
    order = np.argsort(-double(x), -1, kind="stable")[..., :k]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize(
    "shape, k", [((5, 256), 8), ((2, 20_011), 50), ((1, 131072), 64), ((2, 4097), 1)]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "int8"])
def test_topk_of_vocabularies_and_experts(shape, k, dtype):
    """Few different numbers, so that most are equal: the first of them wins. A row of nothing but
    the lowest.
    """
    rng = np.random.default_rng(0)
    x = (
        rng.integers(-9, 9, shape)
        if dtype in ("float32", "bfloat16", "int8")
        else rng.integers(0, 9, shape)
    ).astype(numbers((), dtype).dtype)
    x[0, 7] = x[-1, -1] = 13
    if shape[0] > 1:
        x[1] = -np.inf if "float" in dtype else np.iinfo(dtype).min
    values, indices = kernels.topk(x, k)
    order = np.argsort(-double(x), -1, kind="stable")[..., :k]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("columns", [100, 9000])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_topk_takes_any_nan_for_the_largest(columns, dtype):
    x = numbers((1, columns), dtype)
    x[0, [11, 60, 99]] = -np.nan, np.inf, np.nan
    values, indices = kernels.topk(x, 4)
    assert (
        indices[0, :3].tolist() == [11, 99, 60]
        and np.isnan(double(values[0, :2])).all()
        and values[0, 2] == np.inf
    )


def test_topk_of_nan_and_infinities():
    x = np.array([[1, np.nan, -np.inf, np.inf, -0.0, 0.0]], np.float32)
    values, indices = kernels.topk(x, 6)
    assert (
        indices.tolist() == [[1, 3, 0, 5, 4, 2]]
        and np.isnan(values[0, 0])
        and values[0, 1] == np.inf
    )
    np.testing.assert_array_equal(kernels.topk(x.T, 2, axis=0)[1], [[1], [3]])
    with pytest.raises(tkc.LaunchError, match="k is 1 to 6"):
        kernels.topk(x, 7)


@pytest.mark.parametrize("n", [0, 1, 4097, 1_200_007])
def test_histogram(n):
    x = np.random.default_rng(0).integers(-3, 300, n).astype(np.int32)
    np.testing.assert_array_equal(
        kernels.histogram(x, 257), np.bincount(x[(x >= 0) & (x < 257)], minlength=257)
    )
    x = np.random.default_rng(1).integers(-300, 300, n).astype(np.float32) / 128  # exact in float32
    np.testing.assert_array_equal(kernels.histogram(x, 64, -2, 2), np.histogram(x, 64, (-2, 2))[0])
    with pytest.raises(tkc.LaunchError, match="low < high"):
        kernels.histogram(x, 3, 1.0, 1.0)


def test_a_histogram_of_more_than_a_bin_holds_is_refused():
    x = np.broadcast_to(np.int32(1), (1 << 31,))
    with pytest.raises(tkc.LaunchError, match="add up the histograms"):
        kernels.histogram(x, 4)


def test_the_ends_of_a_histogram_are_in_it_and_nothing_beyond():
    """However the places of the ends are rounded."""
    random = np.random.default_rng(0)
    for _ in range(100):
        low, width = np.float32(random.normal(size=2) * 10.0 ** random.integers(-3, 4, 2))
        high, bins = low + abs(width), int(random.integers(1, 300))
        around = [
            np.nextafter(end, np.float32(way * np.inf)) for end, way in ((low, -1), (high, 1))
        ]
        counts = kernels.histogram(np.array([low, high, *around]), bins, float(low), float(high))
        wanted = np.zeros(bins)
        wanted[0] += 1
        wanted[-1] += 1
        np.testing.assert_array_equal(counts, wanted)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (65, 131), (3, 64, 63), (2, 2, 5, 200)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_transpose(shape, dtype):
    x = (100 * numbers(shape)).astype(numbers((), dtype).dtype)
    y = kernels.transpose(x)
    np.testing.assert_array_equal(y, x.swapaxes(-1, -2))
    assert y.flags.c_contiguous
    with pytest.raises(tkc.LaunchError, match="rank 1"):
        kernels.transpose(x.reshape(-1))


@pytest.mark.parametrize(
    "rows, columns, shape",
    [(1, 1, (1,)), (50, 70, (3, 33)), (7, 1025, (301,)), (5, 3, (0,)), (11, 17, ())],
)
def test_embedding(rows, columns, shape):
    table, indices = numbers((rows, columns)), np.random.default_rng(0).integers(0, rows, shape)
    indices = np.asarray(indices)
    np.testing.assert_array_equal(kernels.embedding(table, indices), table[indices])
    grad, want = numbers((*indices.shape, columns), seed=1), np.zeros((rows, columns))
    np.add.at(want, indices.reshape(-1), double(grad).reshape(-1, columns))
    close(kernels.embedding_backward(grad, indices, rows), want, ulps=64)
    without = want.copy()
    without[0] = 0
    close(kernels.embedding_backward(grad, indices, rows, 0), without, ulps=64)
    outside = np.array([-1, 0, rows])
    np.testing.assert_array_equal(
        kernels.embedding(table, outside), np.stack([0 * table[0], table[0], 0 * table[0]])
    )


def test_on_gpus():
    x = np.empty((4096, 4096), BF16)
    assembles(
        lambda: (
            kernels.cumsum(x.reshape(-1)),
            kernels.cumsum(x, reverse=True),
            kernels.sum(x),
            kernels.transpose(x),
            kernels.histogram(np.empty(1 << 20, np.int32), 256),
        )
    )
    assembles(
        lambda: (
            kernels.topk(np.empty((64, 256), BF16), 8),
            kernels.topk(np.empty((4, 131072), BF16), 64),
        ),
        ("sm_90a",),
    )
    assembles(
        lambda: (
            kernels.topk(x, 50),
            kernels.embedding(x, np.zeros(1000, np.int64)),
            kernels.embedding_backward(x[:1000], np.zeros(1000, np.int64), 4096),
        )
    )
