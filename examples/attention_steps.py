"""Attention in steps: from three kernels and a matrix of scores to one kernel without it.

    naive     scores = Q K^T; softmax of its rows; probabilities V
              the matrix of sequence^2 numbers is written twice and read twice
    whole     one program holds BM rows of scores, all columns
              nothing is written, but a row must fit in registers
    online    the columns come in blocks: a row's largest score so far, its sum and its weighted
              sum of V are corrected whenever a larger score appears
    final     attention.py: masks too; and kernels.attention, which adds grouped heads, windows
              and ragged batches, and chooses its blocks

What the compiler does with the last two on Hopper (attention.compile(...).decisions says so, and
benchmarks/attention.py measures it):

    rings                 a producer warp copies blocks of K and V ahead of their use, across
                          programs too
    rotate-loops          the product with V is taken one iteration late, beside the next product
                          with K: the tensor cores have work while exponentials are computed
    ping-pong             two warpgroups alternate: one multiplies while the other is in its softmax
    relax-stabilizers     the running maximum only keeps powers small: it is brought up to date
                          where a row's sum gets large, which is rare
    split-masked-loops    a causal mask is computed in the blocks that the diagonal cuts, not in
                          those below it
    schedule-programs     causal programs differ in length: the longest begin, and blocks take the
                          next one from a counter

None of this is in the source, and none of it knows that this is attention.

On an H200, 2026-11-22, commit 8434850, eight shuffled rounds of `benchmarks/run.py examples`,
1 x 16 x 4096 x 128 bfloat16:

    naive                1060.0 us (130 TFLOP/s)
    online                189.7    (725)
    final                 188.4    (730)
    kernels.attention     189.9    (724)
    cuDNN                 230.8    (596)
"""

from math import e, inf, log2

from _arrays import blank, largest_error, main, normal, on_device
from attention import attention, reference
from attention import grid as final_grid

import tkc
from tkc import kernels as library

LOG2E = log2(e)


# ---- naive: three kernels ------------------------------------------------------------------------
@tkc.jit
def scores(q, k, s, scale, D: tkc.constexpr, BM: tkc.constexpr = 64, BN: tkc.constexpr = 64):
    m, n, h = tkc.program_id(0) * BM, tkc.program_id(1) * BN, tkc.program_id(2)
    tkc.store(
        s[h],
        (m, n),
        scale * tkc.dot(tkc.load(q[h], (m, 0), (BM, D)), tkc.load(k[h], (n, 0), (BN, D)).T),
    )


@tkc.jit
def rows(s, p, N: tkc.constexpr):
    m, h = tkc.program_id(0), tkc.program_id(1)
    x = tkc.load(s[h], (m, 0), (1, N), other=-inf)
    powers = tkc.exp(x - tkc.max(x, axis=1)[:, None])
    tkc.store(p[h], (m, 0), (powers / tkc.sum(powers, axis=1)[:, None]).to(p.dtype))


@tkc.jit
def weighted(p, v, o, D: tkc.constexpr, BM: tkc.constexpr = 64, BK: tkc.constexpr = 64):
    m, h = tkc.program_id(0) * BM, tkc.program_id(1)
    acc = tkc.zeros((BM, D))
    for n in tkc.range(0, v.shape[1], BK):
        acc = tkc.dot(tkc.load(p[h], (m, n), (BM, BK)), tkc.load(v[h], (n, 0), (BK, D)), acc)
    tkc.store(o[h], (m, 0), acc.to(o.dtype))


# ---- whole: all columns at once ------------------------------------------------------------------
@tkc.jit
def whole(q, k, v, o, scale, D: tkc.constexpr, N: tkc.constexpr, BM: tkc.constexpr = 16):
    m, h = tkc.program_id(0) * BM, tkc.program_id(1)
    s = tkc.dot(tkc.load(q[h], (m, 0), (BM, D)), tkc.load(k[h], (0, 0), (N, D)).T) * scale
    s = tkc.where((tkc.arange(N) < k.shape[1])[None, :], s, -inf)
    p = tkc.exp(s - tkc.max(s, axis=1)[:, None])
    acc = tkc.dot(p.to(v.dtype), tkc.load(v[h], (0, 0), (N, D)))
    tkc.store(o[h], (m, 0), (acc / tkc.sum(p, axis=1)[:, None]).to(o.dtype))


# ---- online: columns in blocks -------------------------------------------------------------------
@tkc.jit
def online(q, k, v, o, scale, D: tkc.constexpr, BM: tkc.constexpr = 128, BN: tkc.constexpr = 128):
    m, h = tkc.program_id(0) * BM, tkc.program_id(1)
    q, k, v, o = q[h], k[h], v[h], o[h]
    c, qi = scale * LOG2E, tkc.load(q, (m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        inside = (n + tkc.arange(BN))[None, :] < k.shape[0]
        s = tkc.where(inside, tkc.dot(qi, tkc.load(k, (n, 0), (BN, D)).T), -inf)
        new = tkc.maximum(top, tkc.max(s, axis=1) * c)
        p, shrink = tkc.exp2(s * c - new[:, None]), tkc.exp2(top - new)
        total = total * shrink + tkc.sum(p, axis=1)
        acc = tkc.dot(p.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc * shrink[:, None])
        top = new
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def cases(device, heads=8, sequence=512, d=64):
    hosts = [normal((1, heads, sequence, d), "bfloat16", seed) for seed in range(3)]
    arrays, scale, blocks = (
        [on_device(t, device) for t in hosts],
        d**-0.5,
        lambda n: tkc.cdiv(sequence, n),
    )
    q, k, v = (t[0] for t in arrays)
    size = 1 << (sequence - 1).bit_length()
    s, p = (
        blank((heads, sequence, sequence), "float32", device),
        blank((heads, sequence, sequence), "bfloat16", device),
    )
    outs = {
        name: blank(hosts[0].shape, "bfloat16", device)
        for name in ("naive", "whole", "online", "final", "library")
    }

    def naive():
        scores[blocks(64), blocks(64), heads](q, k, s, scale, D=d)
        rows[sequence, heads](s, p, N=size)
        weighted[blocks(64), heads](p, v, outs["naive"][0], D=d)

    def last():
        outs["library"] = library.attention(*arrays)

    runs = {
        "naive": naive,
        "online": lambda: online[blocks(128), heads](q, k, v, outs["online"][0], scale, D=d),
        "library": last,
        "final": lambda: attention[final_grid](
            *arrays, outs["final"], scale, CAUSAL=False, D=d, BM=128, BN=128
        ),
    }
    if size <= 256:
        runs["whole"] = lambda: whole[blocks(16), heads](
            q, k, v, outs["whole"][0], scale, D=d, N=max(size, 16)
        )
    for name in ("naive", "whole", "online", "final", "library"):
        if name in runs:
            yield {
                "name": f"attention, {name}",
                "shape": hosts[0].shape,
                "dtype": "bfloat16",
                "tolerance": 2e-2,
                "flops": 4 * heads * sequence * sequence * d,
                "run": runs[name],
                "error": lambda name=name: largest_error(
                    outs[name], reference(*hosts, scale, False)
                ),
            }


def kernels():
    array, square, full = "bf16[8, 512, 64]", "bf16[8, 512, 512]", "f32[8, 512, 512]"
    three, block = (
        {"q": array, "k": array, "v": array, "o": array, "scale": "f32", "D": 64},
        {
            "BM": 128,
            "BN": 128,
        },
    )
    return [
        (
            scores,
            {"q": array, "k": array, "s": full, "scale": "f32", "D": 64, "BM": 64, "BN": 64},
            (8, 8, 8),
        ),
        (rows, {"s": full, "p": square, "N": 512}, (512, 8)),
        (weighted, {"p": square, "v": array, "o": array, "D": 64, "BM": 64, "BK": 64}, (8, 8)),
        (
            whole,
            {n: x.replace("512", "256") if isinstance(x, str) else x for n, x in three.items()}
            | {"N": 256, "BM": 16},
            (16, 8),
        ),
        (online, three | block, (4, 8)),
    ]


if __name__ == "__main__":
    main(cases)
