"""Products and convolutions in Triton's language as its users write them: those of the eighth set
without softmax. See triton_mixers.
"""

import triton
import triton.language as tl


def _configs(*choices):
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, warps, stages in choices
    ]


@triton.autotune(
    _configs((64, 128, 128, 4, 3), (128, 128, 128, 8, 3), (64, 64, 128, 4, 4)), key=["M", "N", "K"]
)
@triton.jit
def int8_by_4_bits(
    x,
    packed,
    group_scale,
    group_zero,
    x_scale,
    w_scale,
    y,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """y = x wᵀ of int8 and weights of 4 bits that whole scales and zeros for BK = 128 of a row make
    int8; rows of x and of w have scales of their own. packed: [N, K / 2], the lower half first.
    """
    i, j = tl.program_id(0), tl.program_id(1)
    rm, rn = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    rk, rp = tl.arange(0, BK), tl.arange(0, BK // 2)
    x_at = x + rm[:, None] * K + rk[None, :]
    w_at = packed + rn[:, None] * (K // 2) + rp[None, :]
    acc = tl.zeros((BM, BN), tl.int32)
    for k in range(0, K // BK):
        a = tl.load(x_at, mask=rm[:, None] < M, other=0)
        pairs = tl.load(w_at)
        both = tl.join(pairs & 15, pairs >> 4).reshape(BN, BK).to(tl.int8)
        scale = tl.load(group_scale + rn * (K // BK) + k)[:, None]
        zero = tl.load(group_zero + rn * (K // BK) + k)[:, None]
        acc = tl.dot(a, tl.trans(both * scale - zero), acc, out_dtype=tl.int32)
        x_at += BK
        w_at += BK // 2
    by_row = tl.load(x_scale + rm, mask=rm < M, other=0.0)
    out = acc.to(tl.float32) * by_row[:, None] * tl.load(w_scale + rn)[None, :]
    at = y + rm[:, None] * N + rn[None, :]
    tl.store(at, out.to(y.dtype.element_ty), mask=rm[:, None] < M)


@triton.autotune(
    _configs((128, 128, 64, 8, 3), (64, 128, 64, 4, 3), (128, 64, 64, 4, 4)),
    key=["PIXELS", "C", "F"],
    reset_to_zero=["dw"],
)
@triton.jit
def gradients_of_taps(
    x,
    dy,
    dw,
    PIXELS,
    Y,
    X,
    C,
    F,
    SPLIT: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Gradients of the weights of a convolution of 3 x 3 with a border: a program adds what SPLIT
    parts of the pixels, of all images, give it. x: [B, Y, X, C], dy: [B, Y, X, F], dw: [9, C, F].
    """
    tap, part = tl.program_id(0) % 9, tl.program_id(0) // 9
    rm, rn = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(2) * BN + tl.arange(0, BN)
    down, right = tap // 3 - 1, tap % 3 - 1
    each = tl.cdiv(tl.cdiv(PIXELS, SPLIT), BK) * BK
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(part * each, tl.minimum(part * each + each, PIXELS), BK):
        p = start + tl.arange(0, BK)
        i, j = p // X % Y + down, p % X + right
        here = (p < PIXELS) & (i >= 0) & (i < Y) & (j >= 0) & (j < X)
        near = p + down * X + right
        a = tl.load(
            x + near[None, :] * C + rm[:, None], mask=here[None, :] & (rm[:, None] < C), other=0.0
        )
        b = tl.load(
            dy + p[:, None] * F + rn[None, :],
            mask=(p[:, None] < PIXELS) & (rn[None, :] < F),
            other=0.0,
        )
        acc = tl.dot(a, b, acc)
    at = dw + (tap * C + rm[:, None]) * F + rn[None, :]
    tl.atomic_add(at, acc, mask=(rm[:, None] < C) & (rn[None, :] < F))


@triton.autotune(
    _configs((128, 128, 32, 4, 4), (128, 128, 64, 8, 3), (128, 64, 64, 4, 3)), key=["C", "F"]
)
@triton.jit
def transposed_convolution(
    x,
    w,
    bias,
    y,
    IMAGES,
    Y,
    X,
    C,
    F,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A transposed convolution of 4 x 4 in steps of 2 with a border of 1, to images twice as large:
    a program has pixels of odd or even lines and columns, which 2 x 2 taps reach. w: [4, 4, C, F].
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    rn, rk = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    odd_i, odd_j = tl.program_id(2) // 2, tl.program_id(2) % 2
    image, i, j = m // (Y * X), m // X % Y, m % X
    acc = tl.zeros((BM, BN), tl.float32)
    for tap in range(4):
        r, s = tap // 2, tap % 2
        near_i, near_j = i + odd_i - 1 + r, j + odd_j - 1 + s
        here = (near_i >= 0) & (near_i < Y) & (near_j >= 0) & (near_j < X) & (image < IMAGES)
        own = x + ((image * Y + near_i) * X + near_j) * C
        taps = w + ((3 - odd_i - 2 * r) * 4 + 3 - odd_j - 2 * s) * C * F
        for k in range(0, C, BK):
            a = tl.load(own[:, None] + k + rk[None, :], mask=here[:, None], other=0.0)
            b = tl.load(taps + (k + rk[:, None]) * F + rn[None, :], mask=rn[None, :] < F, other=0.0)
            acc = tl.dot(a, b, acc)
    acc += tl.load(bias + rn, mask=rn < F, other=0.0)[None, :]
    to = ((image * 2 * Y + 2 * i + odd_i) * 2 * X + 2 * j + odd_j)[:, None] * F + rn[None, :]
    mask = (image[:, None] < IMAGES) & (rn[None, :] < F)
    tl.store(y + to, acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def toeplitz_convolution(
    q, k, v, filters, skip, y, T, GROUPS, LENGTH: tl.constexpr, BC: tl.constexpr
):
    """q (filter * (k v) + skip k v) of sequences [B, T, GROUPS, BC]: a causal filter of LENGTH taps
    for each group, whose Toeplitz matrices of two blocks of time are multiplied.
    """
    block, group, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i, j, c = tl.arange(0, LENGTH), tl.arange(0, LENGTH), tl.arange(0, BC)
    apart = i[:, None] - j[None, :]
    filters += group * LENGTH
    near = tl.load(filters + apart, mask=apart >= 0, other=0.0)
    far = tl.load(filters + apart + LENGTH, mask=apart < 0, other=0.0)
    t = block * LENGTH + j[:, None]
    own = ((batch * T + t).to(tl.int64) * GROUPS + group) * BC + c[None, :]
    before = own - LENGTH * GROUPS * BC
    inside = (t < T) & (c[None, :] < BC)
    u = tl.load(k + own, mask=inside, other=0.0) * tl.load(v + own, mask=inside, other=0.0)
    acc = tl.dot(near, u)
    earlier = (t >= LENGTH) & (t < T + LENGTH) & (c[None, :] < BC)
    past = tl.load(k + before, mask=earlier, other=0.0)
    past *= tl.load(v + before, mask=earlier, other=0.0)
    acc = tl.dot(far, past, acc)
    acc += tl.load(skip + group * BC + c)[None, :] * u
    out = acc * tl.load(q + own, mask=inside, other=0.0)
    tl.store(y + own, out.to(y.dtype.element_ty), mask=inside)


@triton.jit
def residual_codes(
    x,
    books,
    norms,
    codes,
    rest,
    N,
    BOOKS: tl.constexpr,
    CODES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    """Which vector of each book is nearest to what the books before left of a row, and what is left
    at last. books: [BOOKS, CODES, D], norms: their squares' sums.
    """
    m, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    inside = m[:, None] < N
    left = tl.load(x + m[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32)
    for book in range(BOOKS):
        a = left.to(books.dtype.element_ty)
        least = tl.full((BM,), float("inf"), tl.float32)
        best = tl.zeros((BM,), tl.int32)
        for start in range(0, CODES, BN):
            at = book * CODES + start + n
            b = tl.load(books + at[None, :] * D + d[:, None])
            far = tl.load(norms + at)[None, :] - 2.0 * tl.dot(a, b)
            now, which = tl.min(far, 1, return_indices=True)
            best = tl.where(now < least, start + which, best)
            least = tl.minimum(now, least)
        left -= tl.load(books + (book * CODES + best[:, None]) * D + d[None, :])
        tl.store(codes + m * BOOKS + book, best, mask=m < N)
    tl.store(rest + m[:, None] * D + d[None, :], left, mask=inside)
