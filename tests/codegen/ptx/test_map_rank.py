"""Tensor maps have five dimensions at most: an array of rank 5 leaves none for panels."""

import re

import tkc


@tkc.jit
def of_rank_5(a, w, y, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    total = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, w.shape[0], BK):
        left = tkc.load(a, (0, 1, 2, 0, k), (None, None, None, BM, BK))
        total = tkc.dot(left, tkc.load(w, (k, 0), (BK, BN)), total)
    tkc.store(y, (0, 0), total)


def test_a_block_of_rank_5_comes_by_several_copies():
    made = of_rank_5.compile(
        "bf16[2, 2, 3, 64, 256]",
        "bf16[256, 64]",
        "f32[64, 64]",
        BM=64,
        BN=64,
        BK=128,
        target="sm_90a",
    )
    ranks = set(re.findall(r"cp\.async\.bulk\.tensor\.(\d)d\.shared", made.ptx))
    assert ranks == {"5", "2"}, ranks
