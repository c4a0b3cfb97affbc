"""How kernels.matmul launches products of odd shapes on a Hopper GPU: which kernels, of which
blocks, again and again. The driver is made up.
"""

from importlib import import_module

import numpy as np
import pytest

from tests.kernels.checks import launches
from tests.runtime.conftest import gpu  # noqa: F401
from tests.runtime.fake_driver import FakeTensor
from tkc.kernels import arrays, copies

M, grouped = (import_module(f"tkc.kernels.{name}") for name in ("matmul", "grouped"))


class Tensor(FakeTensor):
    """As much of a torch tensor as a product looks at."""

    def _like(self, shape, strides=None):
        return Tensor(shape, self.dtype.removeprefix("torch."), self._pointer, strides)

    def new_empty(self, shape, dtype=None):
        return Tensor(shape, (dtype or self.dtype).removeprefix("torch."))

    def new_empty_strided(self, shape, strides):
        return self._like(shape, strides)

    def __getitem__(self, index):
        return self._like((self.shape[0], 1), (1, 1))  # [:, None]

    @property
    def T(self):
        return self._like(self.shape[::-1], self._strides[::-1])


@pytest.fixture
def launched(gpu, monkeypatch):  # noqa: F811
    """A function (m, n, k, turned, dtype) -> what a product launches: the names of kernels, with
    their arrays and constants.
    """
    monkeypatch.setitem(arrays._libraries, Tensor, "torch")
    monkeypatch.setattr(arrays, "_dtype", lambda name, lib: f"torch.{name}")

    def run(m, n, k, turned=False, dtype="bfloat16", bias=None, result=None):
        a, b, c = (
            Tensor((m, k), dtype),
            Tensor((k, n), dtype, strides=(1, k) if turned else None),
            Tensor((m, n), result or dtype),
        )
        with launches() as first:
            M._launch(a, b, bias, None, c)
        with launches() as again:
            M._launch(a, b, bias, None, c)
        names = [kernel.__name__ for kernel, _, _ in first]
        assert names == [kernel.__name__ for kernel, _, _ in again]
        for (_, _, one), (_, _, two) in zip(first, again, strict=False):
            # what machine code tells launches by: an equal tuple is another
            assert all(one[n] is two[n] or type(one[n]) is int for n in one)
        return names, first

    return run


@pytest.mark.parametrize(
    "shape, kernels",
    [
        ((1024, 1024, 1024), ["_product"]),
        ((3000, 5000, 7000), ["_product"]),
        ((128, 100003, 256), ["_copies", "_product"]),
        ((8192, 1001, 16), ["_copies", "_product"]),
        ((17, 4096, 14336), ["_product"]),
        ((1009, 1013, 1019), ["_copies", "_product"]),
        ((8191, 8193, 8192), ["_copies", "_product"]),
        ((4096, 4096, 4097), ["_copies", "_product"]),
        ((64, 64, 65536), ["_partial", "_sum"]),
        ((256, 256, 100000), ["_partial", "_sum"]),
        ((67, 67, 65537), ["_partial", "_sum"]),
        ((1, 4096, 4096), ["_product"]),
        ((4096, 1, 4096), ["_rows"]),
        ((1, 1, 100000), ["_rows"]),
        ((1, 1, 1000000), ["_vector", "_total"]),
        ((1, 4097, 4096), ["_vector", "_total"]),
    ],
)
def test_what_is_launched(launched, shape, kernels):
    assert launched(*shape)[0] == kernels


@pytest.mark.parametrize(
    "shape", [(1024, 1024, 1024), (1009, 1013, 1019), (67, 67, 65537), (1, 4097, 4096)]
)
def test_launches_overlap(launched, shape):
    """Each begins while the one before it ends, and waits for it before it reads."""
    assert all(options["dependent"] is True for _, _, options in launched(*shape)[1])


@pytest.mark.parametrize("m, n, k", [(2048, 1001, 24), (512, 9001, 64), (2048, 1001, 18)])
def test_results_with_odd_rows_are_launched_as_they_are(launched, m, n, k):
    """Warps store whole runs of rows where they begin anywhere: of the transpose they would store
    columns, two bytes at once. Measured on an H200 of 12081 x 2671 x 24, 2026-11-28: 170 us.
    """
    _, calls = launched(m, n, k, turned=True)
    assert calls[-1][1][3].shape == (m, n)


@pytest.mark.parametrize(
    "shape",
    [
        (512, 512, 512),
        (511, 513, 515),
        (8192, 1001, 16),
        (64, 64, 8192),
        (1, 512, 512),
        (512, 1, 512),
    ],
)
def test_products_of_integers_are_launched(launched, shape):
    assert launched(*shape, dtype="int8", result="int32")[0][-1] == "_product"


@pytest.mark.parametrize("dtype, result", [("float8_e4m3fn", "bfloat16"), ("int8", "int32")])
def test_factors_of_8_bits_are_copied_to_rows_of_k(launched, dtype, result):
    """Where the product is large: tensor cores take 8 bits K first only, and to lay every block
    anew costs more than to do it once. Not where it is small, nor where they lie so.
    """
    names, calls = launched(8192, 8192, 8192, dtype=dtype, result=result)
    assert names == ["_copies", "_product"]
    (_, (x, p, y, _), constants), (_, (a, b, *_), _) = calls
    assert (
        constants["HOW"] == copies.ACROSS
        and y is None
        and x.stride() == p.stride() == a.stride() == (8192, 1)
        and b.stride() == (1, 8192)
    )
    assert (
        launched(8192, 8192, 8192, turned=True, dtype=dtype, result=result)[0]
        == launched(1024, 1024, 1024, dtype=dtype, result=result)[0]
        == ["_product"]
    )


def test_each_device_has_its_own_plan(launched):
    """What was found for a GPU is not what is launched for arrays of the same kind in the host's
    memory, or of another library.
    """
    assert launched(1009, 1013, 1019)[0] == ["_copies", "_product"]
    with launches() as found:
        M._launch(
            *(Tensor(shape, "bfloat16", device=-1) for shape in ((1009, 1019), (1019, 1013))),
            None,
            None,
            Tensor((1009, 1013), "bfloat16", device=-1),
        )
    assert [kernel.__name__ for kernel, _, _ in found] == ["_product"]

    class Other(np.ndarray):
        pass  # cupy's arrays have NumPy's element types

    assert (
        len(
            {
                grouped._like(x)
                for x in (
                    np.empty((2, 3)),
                    np.empty((2, 3)).view(Other),
                    Tensor((2, 3), "float64"),
                    Tensor((2, 3), "float64", device=1),
                    Tensor((2, 3), "float64", device=-1),
                )
            }
        )
        == 5
    )


def test_addresses_have_choices_of_their_own(launched):
    """What is chosen for arrays that begin elsewhere than at multiples of 16 bytes, which the
    hardware's own engine does not copy, is not kept for those that do. The products are too small
    for aligned copies.
    """

    def options(pointer):
        with launches() as found:
            M._launch(
                Tensor((192, 192), "bfloat16", pointer),
                Tensor((192, 192), "bfloat16", pointer),
                None,
                None,
                Tensor((192, 192), "bfloat16"),
            )
        return found[0][2]

    M._product._choices.clear()
    misaligned, aligned = options(0x1000_0002), options(0x1000_0000)
    assert "programs" in aligned and misaligned.get("roles") == "one"


def test_a_result_whose_rows_overlap_is_launched_as_it_is(launched):
    """Its transpose looks like itself."""
    with launches() as found:
        M._launch(
            Tensor((64, 32), "bfloat16"),
            Tensor((32, 64), "bfloat16"),
            None,
            None,
            Tensor((64, 64), "bfloat16", strides=(1, 1)),
        )
    assert [kernel.__name__ for kernel, _, _ in found] == ["_product"]


def test_shapes_are_not_remembered_without_end():
    assert M._shape_of.cache_info().maxsize == M.MAX_REMEMBERED_SHAPES


def test_copies_of_both_factors_are_one_launch(launched):
    """Their lines are whole: no block of the product's ends within one."""
    bias = Tensor((1013,))
    for n, given in ((1012, None), (1013, bias)):
        _, calls = launched(1009, n, 1019, bias=given)
        (_, (x, p, y, q), constants), (_, (a, b, biased, c, *_), _) = calls
        assert (
            (p, q) == (a, b)
            and p.stride() == (1024, 1)
            and q.stride() == (1024, 1)
            and constants["HOW"] == 0
            and c.stride() == (n, 1)
            and biased is given
        )
    _, [(_, (x, p, y, q), constants), _] = launched(1009, 1012, 1019, turned=True)
    assert (
        q.shape == (1024, 1012) and q.stride() == (1, 1024) and constants["HOW"] == 4 * copies.DOWN
    )
    _, [(_, (x, p, y, q), _), _] = launched(4096, 4096, 4097)  # the rows of b are aligned
    assert y is None and p.shape == (4096, 4160)


def test_rows_are_copied_in_blocks_as_wide_as_they_are(launched):
    """9855 rows of 39 in blocks of 32 x 256 took 3.8 us on an H200, of 128 x 64 2.2, 2026-11-28."""
    for lengths, block in (([39], (128, 64)), ([39, 119], (64, 128)), ([1019], (32, 256))):
        assert copies._block(lengths) == block
    names, [(_, _, constants), *_] = launched(4290, 6000, 119, turned=True)
    assert names[0] == "_copies" and (constants["ROWS"], constants["COLUMNS"]) == (64, 128)


def test_transposes_are_launched_where_the_model_finds_them_faster(launched, monkeypatch):
    """Operands, their copies, the bias and the result change places."""
    ways = []

    def cheaper(a, b, activation, c, in_parts, below=0.0):
        ways.append(c.stride())
        return [(len(ways) == 1, then) for _, then in of_both(a, b, activation, c, in_parts)]

    of_both = M._plans
    monkeypatch.setattr(M, "_plans", cheaper)
    bias = Tensor((1013,))
    with launches() as found:
        a, b, c = (
            Tensor(shape, "bfloat16") for shape in ((1009, 1016), (1016, 1013), (1009, 1013))
        )
        M._launch(a, b, bias, None, c)
    assert ways == [(1013, 1), (1, 1013)]
    _, (left, right, biased, out, *_), _ = found[-1]
    assert left.shape == (1013, 1016) and right.shape == (1016, 1009)
    assert biased.shape == (1013, 1) and out.stride() == (1, 1013)


def test_rows_of_a_dense_k_are_read_whole(launched):
    for shape, turned in ((4096, 1, 4096), False), ((1, 4096, 4096), True):
        names, [(_, (x, rows, *_), constants)] = launched(*shape, turned=turned)
        assert (
            names == ["_rows"]
            and x.shape == (1, 4096)
            and rows.shape == (4096, 4096)
            and rows.stride() == (4096, 1)
            and constants["BK"] == 4096
            and constants["STEPS"] == 1
        )
    _, [(_, _, constants)] = launched(4096, 1, 28672)
    assert constants["STEPS"] * constants["BK"] == 28672


def test_a_sum_has_as_many_parts_as_were_made(launched):
    _, [(_, (a, b, parts), made), (_, (again, *_), constants)] = launched(64, 64, 65536)
    assert (
        parts is again
        and parts.shape[0] == -(-65536 // made["DEPTH"]) <= constants["PARTS"] < 2 * parts.shape[0]
        and 64 <= parts.shape[0] <= 264
    )
