"""Kernels as Triton's users write them."""

import tkc.triton as triton
import tkc.triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    start = tl.program_id(axis=0) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def softmax(out, source, source_stride, out_stride, rows, columns, BLOCK: tl.constexpr):
    first = tl.program_id(0)
    for row in tl.range(first, rows, tl.num_programs(0), num_stages=2):
        offsets = tl.arange(0, BLOCK)
        mask = offsets < columns
        x = tl.load(source + row * source_stride + offsets, mask=mask, other=-float("inf"))
        powers = tl.exp(x - tl.max(x, axis=0))
        total = tl.sum(powers, axis=0)
        tl.store(out + row * out_stride + offsets, powers / total, mask=mask)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.autotune(
    configs=[
        triton.Config({"BM": 128, "BN": 256, "BK": 64, "GROUP": 8}, num_stages=3, num_warps=8),
        triton.Config({"BM": 64, "BN": 128, "BK": 32, "GROUP": 8}, num_stages=4, num_warps=4),
    ],
    key=["M", "N", "K"],
)
@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr = "",
):
    pid = tl.program_id(axis=0)
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    in_group = GROUP * num_n
    group = pid // in_group
    first_m = group * GROUP
    size_m = min(num_m - first_m, GROUP)
    pid_m = first_m + ((pid % in_group) % size_m)
    pid_n = (pid % in_group) // size_m
    tl.assume(pid_m >= 0)
    tl.assume(pid_n >= 0)
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    columns = (pid_n * BN + tl.arange(0, BN)) % N
    k_offsets = tl.arange(0, BK)
    a_ptrs = a_ptr + (rows[:, None] * stride_am + k_offsets[None, :] * stride_ak)
    b_ptrs = b_ptr + (k_offsets[:, None] * stride_bk + columns[None, :] * stride_bn)
    accumulator = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=k_offsets[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_ptrs, mask=k_offsets[:, None] < K - k * BK, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    if ACTIVATION == "leaky_relu":
        accumulator = leaky_relu(accumulator)
    c = accumulator.to(c_ptr.dtype.element_ty)
    rows_c = pid_m * BM + tl.arange(0, BM)
    columns_c = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * rows_c[:, None] + stride_cn * columns_c[None, :]
    tl.store(c_ptrs, c, mask=(rows_c[:, None] < M) & (columns_c[None, :] < N))


@triton.jit
def layer_norm(X, Y, W, B, Mean, Rstd, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for at in range(0, N, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        total += tl.load(X + columns, mask=columns < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for at in range(0, N, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        x = tl.load(X + columns, mask=columns < N, other=0.0).to(tl.float32)
        x = tl.where(columns < N, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for at in range(0, N, BLOCK):
        columns = at + tl.arange(0, BLOCK)
        mask = columns < N
        w = tl.load(W + columns, mask=mask)
        b = tl.load(B + columns, mask=mask)
        x = tl.load(X + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(Y + columns, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_dx(
    DX,
    DY,
    DW,
    DB,
    X,
    W,
    Mean,
    Rstd,
    Lock,
    stride,
    N,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """dx, and partial sums of dw and db under a lock for each group of rows."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    X += row * stride
    DY += row * stride
    DX += row * stride
    lock_id = row % GROUP
    Lock += lock_id
    Count = Lock + GROUP
    DW = DW + lock_id * N + columns
    DB = DB + lock_id * N + columns
    x = tl.load(X + columns, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + columns, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + columns, mask=mask).to(tl.float32)
    mean = tl.load(Mean + row)
    rstd = tl.load(Rstd + row)
    xhat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    tl.store(DX + columns, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    partial_dw = (dy * xhat).to(w.dtype)
    partial_db = dy.to(w.dtype)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    count = tl.load(Count)
    if count == 0:
        tl.atomic_xchg(Count, 1)
    else:
        partial_dw += tl.load(DW, mask=mask)
        partial_db += tl.load(DB, mask=mask)
    tl.store(DW, partial_dw, mask=mask)
    tl.store(DB, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


@triton.jit
def layer_norm_dwdb(DW, DB, OUT_W, OUT_B, M, N, BM: tl.constexpr, BN: tl.constexpr):
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    dw = tl.zeros((BM, BN), dtype=tl.float32)
    db = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, M, BM):
        rows = i + tl.arange(0, BM)
        mask = (rows[:, None] < M) & (columns[None, :] < N)
        offsets = rows[:, None] * N + columns[None, :]
        dw += tl.load(DW + offsets, mask=mask, other=0.0)
        db += tl.load(DB + offsets, mask=mask, other=0.0)
    tl.store(OUT_W + columns, tl.sum(dw, axis=0), mask=columns < N)
    tl.store(OUT_B + columns, tl.sum(db, axis=0), mask=columns < N)


@triton.jit
def _attend(
    acc,
    l_i,
    m_i,
    q,
    desc_k,
    desc_v,
    offset_y,
    start_m,
    qk_scale,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGE: tl.constexpr,
    offs_m: tl.constexpr,
    offs_n: tl.constexpr,
    N_CTX: tl.constexpr,
):
    if STAGE == 1:
        lo, hi = 0, start_m * BM
    elif STAGE == 2:
        lo, hi = start_m * BM, (start_m + 1) * BM
        lo = tl.multiple_of(lo, BM)
    else:
        lo, hi = 0, N_CTX
    at = offset_y + lo
    for start_n in tl.range(lo, hi, BN):
        start_n = tl.multiple_of(start_n, BN)
        k = desc_k.load([at, 0]).T
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= (start_n + offs_n[None, :])
            qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            m_ij = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, None]
        p = tl.math.exp2(qk)
        alpha = tl.math.exp2(m_i - m_ij)
        l_ij = tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = desc_v.load([at, 0])
        acc = tl.dot(p.to(v.dtype), v, acc)
        l_i = l_i * alpha + l_ij
        m_i = m_ij
        at += BN
    return acc, l_i, m_i


@triton.jit
def attention(
    sm_scale,
    M,
    Z,
    H,
    desc_q,
    desc_k,
    desc_v,
    desc_o,
    N_CTX,
    HEAD_DIM: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGE: tl.constexpr,
):
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    offset_y = off_hz * N_CTX
    qo_offset_y = offset_y + start_m * BM
    offs_m = start_m * BM + tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    m_i = tl.zeros([BM], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BM], dtype=tl.float32) + 1.0
    acc = tl.zeros([BM, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = desc_q.load([qo_offset_y, 0])
    if STAGE & 1:
        acc, l_i, m_i = _attend(
            acc,
            l_i,
            m_i,
            q,
            desc_k,
            desc_v,
            offset_y,
            start_m,
            qk_scale,
            BM,
            BN,
            4 - STAGE,
            offs_m,
            offs_n,
            N_CTX,
        )
    if STAGE & 2:
        acc, l_i, m_i = _attend(
            acc,
            l_i,
            m_i,
            q,
            desc_k,
            desc_v,
            offset_y,
            start_m,
            qk_scale,
            BM,
            BN,
            2,
            offs_m,
            offs_n,
            N_CTX,
        )
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    tl.store(M + off_hz * N_CTX + offs_m, m_i)
    desc_o.store([qo_offset_y, 0], acc.to(desc_o.dtype))


@triton.jit
def _place(tile, in_group, num_m, GROUP: tl.constexpr):
    group = tile // in_group
    first_m = group * GROUP
    size_m = min(num_m - first_m, GROUP)
    return first_m + (tile % size_m), (tile % in_group) // size_m


@triton.jit
def matmul_persistent(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    start = tl.program_id(axis=0)
    num_m = tl.cdiv(M, BM)
    num_n = tl.cdiv(N, BN)
    k_tiles = tl.cdiv(K, BK)
    for tile in tl.range(start, num_m * num_n, PROGRAMS, flatten=True):
        pid_m, pid_n = _place(tile, GROUP * num_n, num_m, GROUP)
        accumulator = tl.zeros((BM, BN), dtype=tl.float32)
        for ki in range(k_tiles):
            a = a_desc.load([pid_m * BM, ki * BK])
            b = b_desc.load([pid_n * BN, ki * BK])
            accumulator = tl.dot(a, b.T, accumulator)
        c_desc.store([pid_m * BM, pid_n * BN], accumulator.to(c_desc.dtype))


@triton.jit
def matmul_device_descriptors(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    at_m = tl.program_id(0) * BM
    at_n = tl.program_id(1) * BN
    accumulator = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = a_desc.load([at_m, k])
        b = b_desc.load([at_n, k])
        accumulator = tl.dot(a, b.T, accumulator)
    c_desc.store([at_m, at_n], accumulator.to(tl.float16))


@triton.jit
def matmul_block_pointers(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_bk,
    stride_cm,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    at_m = tl.program_id(0) * BM
    at_n = tl.program_id(1) * BN
    a = tl.make_block_ptr(a_ptr, (M, K), (stride_am, 1), (at_m, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr, (K, N), (stride_bk, 1), (0, at_n), (BK, BN), (1, 0))
    accumulator = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        accumulator += tl.dot(tl.load(a, boundary_check=(0, 1)), tl.load(b, boundary_check=(0, 1)))
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(c_ptr, (M, N), (stride_cm, 1), (at_m, at_n), (BM, BN), (1, 0))
    tl.store(c, accumulator.to(tl.float16), boundary_check=(0, 1))


@triton.jit
def grouped_by_pointers(
    a_table,
    b_table,
    c_table,
    sizes,
    rows,
    groups,
    PROGRAMS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Products of several sizes; where their operands are is in tables."""
    tile = tl.program_id(0)
    end = 0
    for g in range(groups):
        m, n, k = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        begin = end
        across = tl.cdiv(n, BN)
        end += tl.cdiv(m, BM) * across
        while tile < end:
            row_a, row_b = tl.load(rows + g * 3), tl.load(rows + g * 3 + 1)
            a = tl.load(a_table + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_table + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_table + g).to(tl.pointer_type(tl.float16))
            rm = (tile - begin) // across * BM + tl.arange(0, BM)
            rn = (tile - begin) % across * BN + tl.arange(0, BN)
            rk = tl.arange(0, BK)
            a_at = a + rm[:, None] * row_a + rk[None, :]
            b_at = b + rk[:, None] * row_b + rn[None, :]
            total = tl.zeros((BM, BN), dtype=tl.float32)
            for left in range(k, 0, -BK):
                tl.multiple_of(a_at, [16, 16])
                tl.multiple_of(b_at, [16, 16])
                x = tl.load(a_at, mask=(rm[:, None] < m) & (rk[None, :] < left), other=0.0)
                y = tl.load(b_at, mask=(rk[:, None] < left) & (rn[None, :] < n), other=0.0)
                total = tl.dot(x, y, total)
                a_at += BK
                b_at += BK * row_b
            c_at = c + rm[:, None] * tl.load(rows + g * 3 + 2) + rn[None, :]
            tl.store(c_at, total.to(tl.float16), mask=(rm[:, None] < m) & (rn[None, :] < n))
            tile += PROGRAMS


@triton.jit
def grouped_by_descriptors(
    a_table,
    b_table,
    c_table,
    sizes,
    rows,
    groups,
    PROGRAMS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """The same, with descriptors made of what the tables say; the right operands are transposed."""
    tile = tl.program_id(0)
    end = 0
    for g in range(groups):
        m, n, k = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        begin = end
        across = tl.cdiv(n, BN)
        end += tl.cdiv(m, BM) * across
        if tile < end:
            a = tl.make_tensor_descriptor(
                tl.load(a_table + g).to(tl.pointer_type(tl.float16)),
                shape=[m, k],
                strides=[tl.load(rows + g * 3), 1],
                block_shape=[BM, BK],
            )
            b = tl.make_tensor_descriptor(
                tl.load(b_table + g).to(tl.pointer_type(tl.float16)),
                shape=[n, k],
                strides=[tl.load(rows + g * 3 + 1), 1],
                block_shape=[BN, BK],
            )
            c = tl.make_tensor_descriptor(
                tl.load(c_table + g).to(tl.pointer_type(tl.float16)),
                shape=[m, n],
                strides=[tl.load(rows + g * 3 + 2), 1],
                block_shape=[BM, BN],
            )
            while tile < end:
                at_m = (tile - begin) // across * BM
                at_n = (tile - begin) % across * BN
                total = tl.zeros((BM, BN), dtype=tl.float32)
                for at_k in range(0, k, BK):
                    total = tl.dot(a.load([at_m, at_k]), b.load([at_n, at_k]).T, total)
                c.store([at_m, at_n], total.to(tl.float16))
                tile += PROGRAMS
