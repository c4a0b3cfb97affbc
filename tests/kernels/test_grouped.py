"""tkc.kernels.grouped_matmul: groups of every size against NumPy, what it becomes on Hopper,
gradients with torch.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import close, double, numbers, torch_with_ops
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tests.passes.test_roles import array, integers, result, role
from tkc import kernels
from tkc.ir import threads
from tkc.kernels.grouped import _grid, _grouped, table
from tkc.passes.pipeline import PIPELINE
from tkc.sim import level4

# empty groups, whole blocks, rows of none, an end past the last row
ENDS = [
    ([7, 7, 30, 41], 41),
    ([0, 0, 5], 5),
    ([64, 128], 131),
    ([90, 95, 400], 100),
]
BF16 = ml_dtypes.bfloat16


def groups(ends, m: int) -> list[slice]:
    ends = np.maximum.accumulate(np.minimum(ends, m))
    return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]


def expected(a, b, ends):
    out = np.zeros((a.shape[0], b.shape[2]))
    for g, rows in enumerate(groups(ends, a.shape[0])):
        out[rows] = double(a[rows]) @ double(b[g])
    return out


@pytest.mark.parametrize("ends, m", ENDS)
def test_groups(ends, m):
    dtype = "float32" if m % 2 else "bfloat16"
    a, b = numbers((m, 24), dtype), numbers((len(ends), 24, 40), dtype, seed=1)
    close(
        kernels.grouped_matmul(a, b, np.array(ends, np.int32)), expected(a, b, ends), dtype, ulps=16
    )
    close(
        kernels.grouped_matmul(
            a, np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2), np.array(ends)
        ),
        expected(a, b, ends),
        dtype,
        ulps=16,
    )
    grad = numbers((m, 40), dtype, seed=2)
    want = np.stack([double(a[rows]).T @ double(grad[rows]) for rows in groups(ends, m)])
    close(kernels.grouped_outer(a, grad, np.array(ends)), want, dtype, ulps=16)


def test_many_groups_and_types():
    rng = np.random.default_rng(0)
    ends = np.cumsum(rng.integers(0, 9, 200)).astype(np.int32)
    a, b = numbers((int(ends[-1]) + 3, 16)), numbers((200, 16, 8), seed=1)
    close(kernels.grouped_matmul(a, b, ends), expected(a, b, ends), ulps=16)
    i, j = (
        rng.integers(-9, 9, (20, 16)).astype(np.int8),
        rng.integers(-9, 9, (2, 16, 8)).astype(np.int8),
    )
    found = kernels.grouped_matmul(i, j, np.array([11, 20]))
    assert found.dtype == np.int32 and np.array_equal(
        found, expected(i.astype(np.int32), j.astype(np.int32), [11, 20])
    )
    assert (
        kernels.grouped_matmul(
            numbers((4, 3), "bfloat16"),
            numbers((1, 3, 2), "bfloat16"),
            np.array([4]),
            dtype="float32",
        ).dtype
        == np.float32
    )


@pytest.mark.parametrize(
    "a, b, ends",
    [
        ((0, 3), (2, 3, 4), 2),
        ((5, 0), (2, 0, 4), 2),
        ((5, 3), (2, 3, 0), 2),
        ((5, 3), (0, 3, 4), 0),
    ],
)
def test_empty(a, b, ends):
    found = kernels.grouped_matmul(numbers(a), numbers(b), np.zeros(ends, np.int32))
    assert found.shape == (a[0], b[2]) and not found.any()


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(a=(4, 5)), "transpose one"),
        (dict(b=(3, 4)), "takes a .M, K., b .G, K, N."),
        (dict(ends=np.array([4])), "give one end a matrix"),
        (dict(ends=np.array([1.0, 2])), "int32 or int64"),
        (dict(b=np.zeros((2, 6, 3), BF16)), "convert one"),
    ],
)
def test_what_cannot_be_is_refused(change, words):
    given = dict(a=(4, 6), b=(2, 6, 3), ends=np.array([1, 4])) | change
    with pytest.raises(tkc.LaunchError, match=words):
        kernels.grouped_matmul(*(numbers(x) if isinstance(x, tuple) else x for x in given.values()))


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_outer_products_take_their_own_rows(target, monkeypatch):
    """NaN in the rows of no group, and of one group: no other sum has one. In threads, too."""
    if target != "cpu":
        monkeypatch.setenv("TKC_SIM", "1")
        monkeypatch.setenv("TKC_TARGET", target)
    a, b, ends = (
        numbers((60, 24), "bfloat16"),
        numbers((60, 40), "bfloat16", seed=1),
        np.array([21, 21, 33, 50]),
    )
    want = np.stack([double(a[rows]).T @ double(b[rows]) for rows in groups(ends, 60)])
    for x in (a, b):
        x[21:33] = x[50:] = np.nan
    found = double(kernels.grouped_outer(a, b, ends))
    assert np.isnan(found[2]).all() and not found[1].any()
    close(found[[0, 3]].astype(BF16), want[[0, 3]], "bfloat16", ulps=16)


@pytest.mark.parametrize("block", [(64, 32, 32), (128, 64, 32), (64, 64, 64)], ids=str)
def test_ragged_groups_on_hoppers_engines(block):
    """Under the happens-before check, in random schedules; ends that do not ascend leave empty
    groups.
    """
    BM, BN, BK = block
    given = context("sm_90a")
    module = traced(
        _grouped.kernel.fn,
        *(array(tkc.bfloat16, rank) for rank in (2, 3)),
        array(tkc.int32),
        result(tkc.bfloat16),
        BM=BM,
        BN=BN,
        BK=BK,
    )
    through(module, PIPELINE[-1], given)
    kernel = module.body.block.first_op
    assert (
        given.plan.roles == "cooperative"
        and given.plan.dynamic_schedule
        and any(isinstance(op, threads.TmaStore) for op in role(kernel, "consumer").walk())
    )
    for i, (ends, m) in enumerate(
        (
            ([BM, BM + 5, BM + 5, 2 * BM + 9], 2 * BM + 20),
            ([2 * BM], 2 * BM),
            ([90, 60, 400], 100),
            ([66, 99, 137], 200),
        )
    ):
        a, b, c = (
            integers(*shape, dtype=tkc.bfloat16, seed=i)
            for i, shape in enumerate(((m, 72), (len(ends), 72, 40), (m, 40)))
        )
        places = table(c, np.array(ends), 72, BM, BN)
        c[...] = np.nan
        level4.run(
            module,
            [a, b, places, c],
            (*_grid(dict(a=a, b=b, c=c, BM=BM, BN=BN)), 1, 1),
            seed=i,
            resident=1 + i,
        )
        assert np.array_equal(double(c), double(expected(a, b, ends).astype(BF16)))


def test_it_assembles_clean_for_the_shapes_of_experts():
    for m, k, n, _count, b in (
        (8192, 4096, 14336, 8, "bf16[8, 4096, 14336]"),
        (16384, 2048, 768, 128, "bf16[128:1572864, 2048:1, 768:2048]"),
    ):
        arguments = f"bf16[{m}, {k}]", b, "i32[5, 4096]", f"bf16[{m}, {n}]"
        config = _grouped.choose(*arguments, grid=_grid, target="sm_90a").config
        compiled = _grouped.kernel.compile(*arguments, **dict(config.items), target="sm_90a")
        assert "wgmma" in compiled.ptx and not [
            line for line in compiled.decisions if "is not used" in line
        ]
        from tkc.codegen.ptx.ptxas import find

        if find("ptxas"):
            assert compiled.resources.clean, compiled.resources.log


def test_gradients():
    torch = torch_with_ops()
    from tests.kernels.test_torch import DEVICE, same_gradients, tensors

    a, b = tensors((20, 12), (3, 12, 9))
    ends = torch.tensor([6, 6, 17], device=DEVICE, dtype=torch.int32)

    def plain(a, b):
        return torch.cat(
            [
                *(a[rows] @ b[g] for g, rows in enumerate(groups(ends.tolist(), 20))),
                torch.zeros(3, 9, device=DEVICE),
            ]
        )

    same_gradients(lambda a, b: kernels.grouped_matmul(a, b, ends), plain, a, b, tolerance=2e-4)
    torch.library.opcheck(torch.ops.tkc.grouped_matmul, (a, b, ends))
