"""Kernels of the sixth set whose loops carry a state along strings and series. See
triton_products.
"""

import triton
import triton.language as tl


@triton.jit
def best_paths(score, move, y, back, T, N: tl.constexpr):
    """Viterbi: the best score of each state at the end, and where each step came from. score:
    [B, T, N], move: [N, N] to by from.
    """
    batch = tl.program_id(0)
    to, of = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    n = tl.arange(0, N)
    step = tl.load(move + to * N + of)
    state = tl.load(score + batch * T * N + n)
    for t in range(1, T):
        best, place = tl.max(step + state[None, :], 1, return_indices=True)
        tl.store(back + (batch * T + t) * N + n, place.to(tl.uint8))
        state = best + tl.load(score + (batch * T + t) * N + n)
    tl.store(y + batch * N + n, state)


@triton.jit
def _sum_of_exponentials(a, b):
    most = tl.maximum(a, b)
    return most + tl.log(1.0 + tl.exp(tl.minimum(a, b) - most))


@triton.jit
def ctc_forward(logp, label, length, loss, T, V, L, S: tl.constexpr):
    """The loss of a connectionist temporal classification: states along labels and blanks, step by
    step. logp: [B, T, V], blank 0; label: [B, L].
    """
    batch, s = tl.program_id(0), tl.arange(0, S)
    states = 2 * L + 1
    odd = (s % 2 == 1) & (s < states)
    own = tl.load(label + batch * L + s // 2, mask=odd, other=0)
    before = tl.load(label + batch * L + s // 2 - 1, mask=odd & (s > 1), other=0)
    skips = odd & (s > 1) & (own != before)
    steps = tl.load(length + batch)
    logp += batch * T * V
    state = tl.where(s < 2, tl.load(logp + own), -1e30)
    for t in range(1, steps):
        one = tl.where(s > 0, tl.gather(state, tl.maximum(s - 1, 0), 0), -1e30)
        two = tl.where(skips, tl.gather(state, tl.maximum(s - 2, 0), 0), -1e30)
        state = _sum_of_exponentials(_sum_of_exponentials(state, one), two)
        state += tl.load(logp + t * V + own)
    end = tl.max(tl.where(s == states - 1, state, -1e30), 0)
    other = tl.max(tl.where(s == states - 2, state, -1e30), 0)
    tl.store(loss + batch, -_sum_of_exponentials(end, other))


@triton.jit
def local_alignments(a, b, y, M, N: tl.constexpr, MATCH, MISS, GAP):
    """Smith and Waterman: the best score of a local alignment of two strings, an antidiagonal at a
    time. a: [B, N], b: [B, M].
    """
    pair, i = tl.program_id(0), tl.arange(0, N)
    own = tl.load(a + pair * N + i)
    once, twice = tl.zeros((N,), tl.int32), tl.zeros((N,), tl.int32)
    best = tl.zeros((N,), tl.int32)
    for step in range(M + N - 1):
        j = step - i
        inside = (j >= 0) & (j < M)
        other = tl.load(b + pair * M + j, mask=inside, other=255)
        up = tl.where(i > 0, tl.gather(once, tl.maximum(i - 1, 0), 0), 0)
        corner = tl.where(i > 0, tl.gather(twice, tl.maximum(i - 1, 0), 0), 0)
        now = corner + tl.where(own == other, MATCH, MISS)
        now = tl.maximum(now, tl.maximum(once, up) + GAP)
        now = tl.where(inside, tl.maximum(now, 0), 0)
        best = tl.maximum(best, now)
        twice = once
        once = now
    tl.store(y + pair, tl.max(best, 0))
