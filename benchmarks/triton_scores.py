"""Attention as people write it in Triton: with sinks, capped, of latents, in pages, by trees. The
cases are in triton_written_models.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def sink_attention(
    q,
    k,
    v,
    sinks,
    o,
    scale,
    S,
    H: tl.constexpr,
    G: tl.constexpr,
    WINDOW: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    """Causal attention, G heads for each of keys, with a learned score that has no value; of
    WINDOW keys alone, unless that is 0.
    """
    start, head, batch = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    own = (batch * H + head).to(tl.int64) * S * D
    keys = (batch * (H // G) + head // G).to(tl.int64) * S * D
    first = 0
    if WINDOW:
        first = tl.maximum(start - WINDOW + 1, 0) // BN * BN
    q_at = tl.make_block_ptr(q + own, (S, D), (D, 1), (start, 0), (BM, D), (1, 0))
    k_at = tl.make_block_ptr(k + keys, (D, S), (1, D), (0, first), (D, BN), (0, 1))
    v_at = tl.make_block_ptr(v + keys, (S, D), (D, 1), (first, 0), (BN, D), (1, 0))
    row = start + tl.arange(0, BM)
    m = tl.zeros((BM,), tl.float32) + tl.load(sinks + head).to(tl.float32) * LOG2E
    total = tl.full((BM,), 1.0, tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    x = tl.load(q_at, boundary_check=(0,), padding_option="zero")
    for n in range(first, start + BM, BN):
        s = tl.dot(x, tl.load(k_at, boundary_check=(1,), padding_option="zero"))
        column = n + tl.arange(0, BN)
        seen = row[:, None] >= column[None, :]
        if WINDOW:
            seen = seen & (row[:, None] - column[None, :] < WINDOW)
        s = tl.where(seen, s * (scale * LOG2E), float("-inf"))
        now = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        factor = tl.exp2(m - now)
        total = total * factor + tl.sum(p, 1)
        values = tl.load(v_at, boundary_check=(0,), padding_option="zero")
        acc = tl.dot(p.to(values.dtype), values, acc * factor[:, None])
        m = now
        k_at = tl.advance(k_at, (0, BN))
        v_at = tl.advance(v_at, (BN, 0))
    o_at = tl.make_block_ptr(o + own, (S, D), (D, 1), (start, 0), (BM, D), (1, 0))
    tl.store(o_at, (acc / total[:, None]).to(o.dtype.element_ty), boundary_check=(0,))


@triton.jit
def capped_attention(
    q, k, v, o, scale, cap, rows, S, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Causal attention whose scores are capped by tanh, by descriptors of all heads' rows."""
    start, first = tl.program_id(0) * BM, tl.program_id(1) * S
    q_of = tl.make_tensor_descriptor(q, [rows, D], [D, 1], [BM, D])
    k_of = tl.make_tensor_descriptor(k, [rows, D], [D, 1], [BN, D])
    v_of = tl.make_tensor_descriptor(v, [rows, D], [D, 1], [BN, D])
    o_of = tl.make_tensor_descriptor(o, [rows, D], [D, 1], [BM, D])
    x = q_of.load([first + start, 0])
    row = start + tl.arange(0, BM)
    m = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in tl.range(0, start + BM, BN):
        s = tl.dot(x, k_of.load([first + n, 0]).T) * scale
        s = cap * (2.0 * tl.sigmoid(2.0 * s / cap) - 1.0)
        s = tl.where(row[:, None] >= n + tl.arange(0, BN)[None, :], s, float("-inf"))
        now = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        factor = tl.exp(m - now)
        total = total * factor + tl.sum(p, 1)
        acc = acc * factor[:, None]
        acc = tl.dot(p.to(v.dtype.element_ty), v_of.load([first + n, 0]), acc)
        m = now
    o_of.store([first + start, 0], (acc / total[:, None]).to(o.dtype.element_ty))


@triton.jit
def latent_decoding(
    q,
    cache,
    part,
    lse,
    lengths,
    scale,
    S,
    PARTS,
    H: tl.constexpr,
    BH: tl.constexpr,
    BN: tl.constexpr,
    DV: tl.constexpr,
    DR: tl.constexpr,
):
    """A part of the attention of H heads to one latent a token, whose first DV numbers are also its
    value and whose last DR are turned by place.
    """
    batch, share = tl.program_id(0), tl.program_id(2)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    c, r = tl.arange(0, DV), DV + tl.arange(0, DR)
    row = q + (batch * H + h[:, None]) * (DV + DR)
    q_latent, q_turned = tl.load(row + c[None, :]), tl.load(row + r[None, :])
    length = tl.load(lengths + batch)
    size = tl.cdiv(tl.cdiv(length, PARTS), BN) * BN
    begin = share * size
    end = tl.minimum(begin + size, length)
    m = tl.full((BH,), float("-inf"), tl.float32)
    total = tl.zeros((BH,), tl.float32)
    acc = tl.zeros((BH, DV), tl.float32)
    if begin < end:
        for n in range(begin, end, BN):
            t = n + tl.arange(0, BN)
            rows = cache + (batch * S + t) * (DV + DR)
            latent = tl.load(rows[:, None] + c[None, :], mask=t[:, None] < end, other=0.0)
            turned = tl.load(rows[None, :] + r[:, None], mask=t[None, :] < end, other=0.0)
            s = tl.dot(q_latent, tl.trans(latent))
            s = tl.dot(q_turned, turned, s) * scale
            s = tl.where(t[None, :] < end, s, float("-inf"))
            now = tl.maximum(m, tl.max(s, 1))
            p = tl.exp(s - now[:, None])
            factor = tl.exp(m - now)
            total = total * factor + tl.sum(p, 1)
            acc = acc * factor[:, None] + tl.dot(p.to(latent.dtype), latent)
            m = now
        to = (batch * H + h) * PARTS + share
        tl.store(part + to[:, None] * DV + c[None, :], acc / total[:, None])
        tl.store(lse + to, m + tl.log(total))


@triton.jit
def latent_sum(part, lse, o, lengths, PARTS: tl.constexpr, BN: tl.constexpr, H, DV: tl.constexpr):
    """What the parts give together."""
    row, c, p = tl.program_id(0), tl.arange(0, DV), tl.arange(0, PARTS)
    length = tl.load(lengths + row // H)
    used = p * (tl.cdiv(tl.cdiv(length, PARTS), BN) * BN) < length
    e = tl.load(lse + row * PARTS + p, mask=used, other=float("-inf"))
    w = tl.exp(e - tl.max(e, 0))
    at = (row * PARTS + p[:, None]) * DV + c[None, :]
    x = tl.load(part + at, mask=used[:, None], other=0.0)
    y = tl.sum(x * w[:, None], 0) / tl.sum(w, 0)
    tl.store(o + row * DV + c, y.to(o.dtype.element_ty))


@triton.jit
def paged_decoding(
    q,
    k_cache,
    v_cache,
    table,
    lengths,
    slopes,
    o,
    scale,
    k_scale,
    v_scale,
    PAGES,
    WINDOW,
    KV: tl.constexpr,
    G: tl.constexpr,
    PAGE: tl.constexpr,
    BG: tl.constexpr,
    BN: tl.constexpr,
    D: tl.constexpr,
):
    """A token's attention to the last WINDOW keys of a float8 cache in pages, G heads for each of
    KV, with biases that fall with distance.
    """
    batch, kv = tl.program_id(0), tl.program_id(1)
    g, d = tl.arange(0, BG), tl.arange(0, D)
    head = kv * G + g
    here = g < G
    at = (batch * KV * G + head)[:, None] * D + d[None, :]
    x = tl.load(q + at, mask=here[:, None], other=0.0)
    slope = tl.load(slopes + head, mask=here, other=0.0)
    length = tl.load(lengths + batch)
    m = tl.full((BG,), float("-inf"), tl.float32)
    total = tl.zeros((BG,), tl.float32)
    acc = tl.zeros((BG, D), tl.float32)
    for n in range(tl.maximum(length - WINDOW, 0) // BN * BN, length, BN):
        t = n + tl.arange(0, BN)
        page = tl.load(table + batch * PAGES + t // PAGE, mask=t < length, other=0)
        rows = ((page * PAGE + t % PAGE) * KV + kv)[:, None] * D + d[None, :]
        keys = tl.load(k_cache + rows, mask=t[:, None] < length, other=0.0).to(x.dtype)
        s = tl.dot(x, keys.T) * (scale * k_scale)
        s += slope[:, None] * (t - length + 1)[None, :].to(tl.float32)
        s = tl.where(((t < length) & (t >= length - WINDOW))[None, :], s, -1.0e30)
        now = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        factor = tl.exp(m - now)
        total = total * factor + tl.sum(p, 1)
        values = tl.load(v_cache + rows, mask=t[:, None] < length, other=0.0).to(x.dtype)
        acc = acc * factor[:, None] + tl.dot(p.to(x.dtype), values)
        m = now
    y = acc * v_scale / total[:, None]
    tl.store(o + at, y.to(o.dtype.element_ty), mask=here[:, None])


@triton.jit
def tree_attention(
    q, k, v, mask, o, scale, PREFIX, H, BT: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """Attention of BT drafted tokens to a prefix and, where the mask says, to one another."""
    batch, head = tl.program_id(0), tl.program_id(1)
    t, d = tl.arange(0, BT), tl.arange(0, D)
    base = (batch * H + head).to(tl.int64) * (PREFIX + BT) * D
    mine = ((batch * H + head) * BT + t)[:, None] * D + d[None, :]
    x = tl.load(q + mine)
    m = tl.full((BT,), float("-inf"), tl.float32)
    total = tl.zeros((BT,), tl.float32)
    acc = tl.zeros((BT, D), tl.float32)
    for n in range(0, PREFIX, BN):
        c = n + tl.arange(0, BN)
        keys = tl.load(k + base + c[None, :] * D + d[:, None])
        s = tl.dot(x, keys) * scale
        now = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        factor = tl.exp(m - now)
        total = total * factor + tl.sum(p, 1)
        values = tl.load(v + base + c[:, None] * D + d[None, :])
        acc = acc * factor[:, None] + tl.dot(p.to(values.dtype), values)
        m = now
    c = PREFIX + tl.arange(0, BT)
    s = tl.dot(x, tl.load(k + base + c[None, :] * D + d[:, None])) * scale
    seen = tl.load(mask + (batch * BT + t[:, None]) * BT + t[None, :])
    s = tl.where(seen != 0, s, float("-inf"))
    now = tl.maximum(m, tl.max(s, 1))
    p = tl.exp(s - now[:, None])
    factor = tl.exp(m - now)
    total = total * factor + tl.sum(p, 1)
    values = tl.load(v + base + c[:, None] * D + d[None, :])
    acc = acc * factor[:, None] + tl.dot(p.to(values.dtype), values)
    tl.store(o + mine, (acc / total[:, None]).to(o.dtype.element_ty))
