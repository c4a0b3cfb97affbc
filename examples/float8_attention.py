"""Attention in 8 bits: what changes when Q, K, V and the probabilities are float8, in plain Python.

    out = softmax(Q K^T * scale) V      Q = qs[h] * q, K = ks[h] * k, V = vs[h] * v
                                        q, k, v: float8_e4m3 [batch, heads, sequence, D]

Float8 halves the bytes and doubles the tensor core's rate. Next to examples/attention.py three
lines differ:

**Scales.** A tensor is kept as float8 times a scale, here one a head. Those of Q and K are factors
of every score, so they join `scale`; that of V is a factor of the result. Neither is in the loop.

**Probabilities.** The second product wants float8 on both sides, so the powers are rounded to
float8: three bits behind the point, from 2^-9 to 448. A softmax's powers go from 0 to 1, which
leaves more than eight of these binary orders unused. `LIFT` makes every power twice as large (the
row's sum too, so the quotient stays) and small ones keep one bit more. Not more than twice: the
compiler lets a running maximum fall behind as long as a row's powers of one block add up to 2^8 at
most (relax-stabilizers), and 128 columns of 2 do.

**Sums** stay in float32, `acc` in the tensor core. `total` is of the powers as they are multiplied,
after rounding: the weights of a row add up to one, and what one power has too much or too little
moves the result only as far as its value is from the row's mean. A row of few keys needs that: a
power that is not the largest of its first block may be half of the row, and rounded by a sixteenth.

V is another matter: Hopper multiplies float8 only where K is the dense axis of both operands, and V
[keys, D] is dense along D. Nothing is to be done about it here. The compiler has a warpgroup of its
own lay each block of V anew on its way, and counts the keys in the order in which a thread has the
powers, so that these never leave their registers (`tkc report` shows both among the decisions).

What is lost is in the roundings of Q, K and V to three bits, and then of the powers: with normal
numbers an error of 2.6e-2 of the result, against 2.3e-3 in bfloat16. What is won, on an H200
(commit 4f74f71, D = 128, 16 heads, batch * sequence = 16384, `tkc.kernels.attention`, which is this
loop with more options; benchmarks/results):

    sequence            1024    8192    16384    8192 causal
    float8              785     914     932      834 TFLOP/s
    bfloat16            664     738     745      665
    cuDNN, bfloat16     570     632     630      563
"""

from math import e, inf, log2

import numpy as np
from _arrays import blank, largest_error, main, normal, on_device

import tkc

LOG2E, LIFT = log2(e), 1


@tkc.jit
def float8_attention(
    q,
    k,
    v,
    qs,
    ks,
    vs,
    o,
    scale,
    CAUSAL: tkc.constexpr,
    D: tkc.constexpr,
    BM: tkc.constexpr = 128,
    BN: tkc.constexpr = 128,
):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    q, k, v, o = q[b, h], k[b, h], v[b, h], o[b, h]
    c, shift = scale * qs[h] * ks[h] * LOG2E, k.shape[0] - q.shape[0]
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
        p, shrink = tkc.exp2(s * c - (base - LIFT)[:, None]), tkc.exp2(top - base)
        p = p.to(v.dtype)
        total = total * shrink + tkc.sum(p.to(tkc.float32), axis=1)
        acc = tkc.dot(p, tkc.load(v, (n, 0), (BN, D)), acc * shrink[:, None])
        top = new
    tkc.store(o, (m, 0), tkc.where(total[:, None] > 0, acc / total[:, None] * vs[h], 0).to(o.dtype))


def grid(args):
    batch, heads, sequence, _ = args["q"].shape
    return tkc.cdiv(sequence, args["BM"]), heads, batch


def reference(q, k, v, qs, ks, vs, scale, causal):
    """Of what the arrays hold, in float64: the roundings of the powers are the kernel's error."""
    q, k, v = (t.astype(np.float64) * by[:, None, None] for t, by in ((q, qs), (k, ks), (v, vs)))
    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers @ v / powers.sum(axis=-1, keepdims=True)


# ---- what `tkc demo` runs ------------------------------------------------------------------------
def case(device, causal, batch, heads, sequence, d):
    hosts = [normal((batch, heads, sequence, d), "float8_e4m3fn", seed) for seed in range(3)] + [
        np.linspace(low, 1, heads, dtype=np.float32) for low in (0.5, 0.25, 2)
    ]
    arrays, o, scale = (
        [on_device(t, device) for t in hosts],
        blank(hosts[0].shape, "bfloat16", device),
        d**-0.5,
    )
    return {
        "name": "float8 attention" + causal * " causal",
        "shape": hosts[0].shape,
        "dtype": "float8_e4m3fn",
        "tolerance": 4e-2,
        "flops": 4 * batch * heads * sequence * sequence * d // (1 + causal),
        "run": lambda: float8_attention[grid](*arrays, o, scale, CAUSAL=causal, D=d),
        "error": lambda: largest_error(o, reference(*hosts, scale, causal)),
    }


def cases(device, batch=2, heads=8, sequence=1024, d=128):
    for causal in (False, True):
        yield case(device, causal, batch, heads, sequence, d)


def kernels():
    """(kernel, stand-ins for its arguments, grid), for tools that only compile."""
    array, each = "e4m3[2, 8, 1024, 128]", "f32[8]"
    return [
        (
            float8_attention,
            {
                "q": array,
                "k": array,
                "v": array,
                "qs": each,
                "ks": each,
                "vs": each,
                "o": "bf16[2, 8, 1024, 128]",
                "scale": "f32",
                "CAUSAL": False,
                "D": 128,
                "BM": 128,
                "BN": 64,
            },
            grid,
        )
    ]


if __name__ == "__main__":
    main(cases)
