"""Kernels with roles on a GPU: programs side by side, what is added to scores before a late dot, a
sum beside its transpose.
"""

import numpy as np
import pytest

# before tkc.kernels, which registers its operators with a torch that is there
torch = pytest.importorskip("torch")

import tkc  # noqa: E402
from tests.gpu import device  # noqa: E402
from tests.passes import test_co_resident as here  # noqa: E402
from tests.passes import test_epilogues as epilogues  # noqa: E402
from tkc.kernels.attention import _attention  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="no Hopper"
)


def on_gpu(kernel, **options):
    """Something that takes a simulator's place: launches the kernel itself, with copies of what the
    arrays and what lies around them hold, and reads back what it wrote.
    """
    fn = tkc.jit(kernel)

    def run(module, args: list, grid: tuple, **how) -> None:
        there = [_copied(x) if isinstance(x, np.ndarray) else x for x in args]
        fn[grid](*there, **options)
        torch.cuda.synchronize()
        for x, copy in zip(args, there, strict=False):
            if isinstance(x, np.ndarray):
                x[...] = device.back(copy.contiguous(), x.dtype)

    return run


def _copied(x: np.ndarray):
    """With the strides that it has in the array around it."""
    around = x
    while isinstance(around.base, np.ndarray):
        around = around.base
    return device.on_gpu(around.copy())[tuple(map(slice, x.shape))]


@here.OTHERS
def test_other_kernels(kernel, programs):
    run = on_gpu(kernel, BN=32, **dict(here.co_resident(programs)))
    for low, high in here.SPANS:
        for places, rows in ((5, 300), (200, 1000)):
            here.check_other(None, kernel, places, rows, low, high, run=run)


@here.SCORED
def test_what_is_added_to_scores(options):
    run = on_gpu(here.scored, BN=32, **dict(options))
    for shape in (*here.SCORES, (300, 1000, 20)):
        here.check_scored(None, *shape, run=run)


@pytest.mark.parametrize("kernel", here.APART, ids=lambda kernel: kernel.__name__)
def test_programs_that_share_nothing(kernel):
    here.check_apart(None, kernel, run=on_gpu(kernel, BN=32, **dict(here.co_resident(3))))


@epilogues.SUM_AND_TRANSPOSE
def test_a_sum_and_its_transpose(first, out):
    epilogues.check_sum_and_transpose(None, out, run=on_gpu(epilogues.sum_and_transpose(first)))


@pytest.mark.parametrize("rows", [1, 64, 128, 200, 448, 1000])
@pytest.mark.parametrize("d, count", [(64, 4), (128, 3)])
@pytest.mark.parametrize("window", [None, 100])
def test_tile_groups_with_padding_tiles(rows, d, count, window):
    """Of every number, before the first program; fewer groups than blocks and more."""
    scale = d**-0.5
    for heads in (1, 80):
        q, k, v = (
            torch.randn(
                1,
                heads,
                rows,
                d,
                device="cuda",
                dtype=torch.bfloat16,
                generator=torch.Generator("cuda").manual_seed(i),
            )
            for i in range(3)
        )
        out, sums = (
            torch.full_like(q, float("nan")),
            torch.full((1, heads, rows), float("nan"), device="cuda"),
        )
        for _ in range(3):  # the counter of claims starts over
            _attention[-(-rows // 64), heads, 1](
                q,
                k,
                v,
                out,
                sums,
                *[None] * 7,
                scale,
                1.0,
                window or 0,
                GROUP=1,
                CAUSAL=True,
                WINDOW=window is not None,
                CAP=False,
                D=d,
                DV=d,
                BM=64,
                BN=64,
                programs=count,
            )
        i = torch.arange(rows, device="cuda")
        scores = (q.float() @ k.float().mT * scale).masked_fill(
            (i[:, None] < i) | (i[:, None] - i >= (window or rows)), -torch.inf
        )
        torch.testing.assert_close(
            out.float(), scores.softmax(-1) @ v.float(), rtol=2e-2, atol=2e-2
        )
        torch.testing.assert_close(sums, scores.logsumexp(-1), rtol=1e-3, atol=2e-3)
