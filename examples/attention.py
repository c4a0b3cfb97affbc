"""Attention: two products and a softmax that never sees a whole row.

    out = softmax(Q K^T * scale) V      per batch b and head h
                                        Q, K, V, out: [batch, heads, sequence, D]

The matrix of scores has sequence^2 elements; writing it to memory is what makes attention slow. A
program takes BM rows of Q and walks over K and V in blocks of BN. For each of its rows it holds
three things: the largest score so far (`top`), the sum of exponentials relative to it (`total`) and
their weighted sum of V (`acc`). When a block raises the maximum from `top` to `new`, what has been
summed so far shrinks by the factor 2^(top - new):

    block 0     block 1     block 2
    [ scores ]  [ scores ]  [ scores ]          total <- total * 2^(top - new) + sum of 2^(s - new)
       top ------> new -------> new             acc   <- acc   * 2^(top - new) + 2^(s - new) V

Exponentials are powers of two of scores times c = scale * log2(e): one multiplication instead of
two, and exact.

*Views.* `q[b, h]` is the matrix of one batch and head, an array like any other; nothing is copied.

*Masks.* `keep` drops the columns behind the end of K (their loads read as 0, which is a score like
any other) and, if CAUSAL, those behind the row's own position. With more keys than queries the
queries are the last ones: row m stands at m + shift. The causal loop ends where every column is
masked in every row of the block. A row whose columns are all masked has new = -inf; `base` keeps
inf - inf out of it, and the last line gives it zeros.

On an H200, 2026-11-22, commit 8434850, eight shuffled rounds of `benchmarks/run.py examples`,
bfloat16, with its blocks of 128 x 128:

    4 x 16 x 4096 x 128     attention 770.0 us (714 TFLOP/s)     causal 427.0 (644)
                            cuDNN     930.2    (591)                    539.8 (509)

attention_steps.py leads here from the plainest version; kernels.attention has more options and
chooses its blocks.
"""

from math import e, inf, log2

import numpy as np
from _arrays import blank, largest_error, main, normal, on_device

import tkc

LOG2E = log2(e)


@tkc.jit
def attention(
    q,
    k,
    v,
    o,
    scale,
    CAUSAL: tkc.constexpr,
    D: tkc.constexpr,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 128,
):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    q, k, v, o = q[b, h], k[b, h], v[b, h], o[b, h]
    c, shift = scale * LOG2E, k.shape[0] - q.shape[0]  # scale > 0
    rows, qi = m + tkc.arange(BM) + shift, tkc.load(q, (m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, tkc.minimum(k.shape[0], m + BM + shift) if CAUSAL else k.shape[0], BN):
        cols = n + tkc.arange(BN)
        keep = cols[None, :] < k.shape[0]
        if CAUSAL:
            keep = keep & (rows[:, None] >= cols[None, :])
        s = tkc.where(keep, tkc.dot(qi, tkc.load(k, (n, 0), (BN, D)).T), -inf)
        new = tkc.maximum(top, tkc.max(s, axis=1) * c)
        base = tkc.where(new == -inf, 0, new)
        p, shrink = tkc.exp2(s * c - base[:, None]), tkc.exp2(top - base)
        total = total * shrink + tkc.sum(p, axis=1)
        acc = tkc.dot(p.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc * shrink[:, None])
        top = new
    tkc.store(o, (m, 0), (acc * tkc.where(total > 0, 1 / total, 0)[:, None]).to(o.dtype))


def grid(args):
    batch, heads, sequence, _ = args["q"].shape
    return tkc.cdiv(sequence, args["BM"]), heads, batch


def reference(q, k, v, scale, causal):
    q, k, v = (t.astype(np.float64) for t in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        rows, columns = scores.shape[-2:]
        scores = np.where(np.tri(rows, columns, columns - rows, dtype=bool), scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = powers.sum(axis=-1, keepdims=True)
    return powers @ v / np.where(total > 0, total, 1)


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def case(device, dtype, causal, block, tolerance, batch, heads, sequence, d):
    hosts = [normal((batch, heads, sequence, d), dtype, seed) for seed in range(3)]
    q, k, v = (on_device(t, device) for t in hosts)
    o, scale = blank(hosts[0].shape, dtype, device), d**-0.5
    return {
        "name": "attention" + causal * " causal",
        "shape": hosts[0].shape,
        "dtype": dtype,
        "tolerance": tolerance,
        "flops": 4 * batch * heads * sequence * sequence * d // (1 + causal),
        "run": lambda: attention[grid](q, k, v, o, scale, CAUSAL=causal, D=d, BM=block, BN=block),
        "error": lambda: largest_error(o, reference(*hosts, scale, causal)),
    }


def cases(device, batch=2, heads=8, sequence=1024, d=64):
    for dtype, causal, block, tolerance in (
        ("bfloat16", False, 128, 1e-2),
        ("bfloat16", True, 128, 1e-2),
        ("float32", False, 64, 1e-5),
    ):
        yield case(device, dtype, causal, block, tolerance, batch, heads, sequence, d)


def kernels():
    array = "bf16[2, 8, 1024, 64]"
    return [
        (
            attention,
            {
                "q": array,
                "k": array,
                "v": array,
                "o": array,
                "scale": "f32",
                "CAUSAL": False,
                "D": 64,
                "BM": 128,
                "BN": 128,
            },
            grid,
        )
    ]


if __name__ == "__main__":
    main(cases)
