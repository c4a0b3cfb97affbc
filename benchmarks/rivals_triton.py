"""The same kernels in Triton, as its tutorials write them."""

import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(
        out_ptr + i, tl.load(x_ptr + i, mask=inside) + tl.load(y_ptr + i, mask=inside), mask=inside
    )


def add(x, y, out, block=1024):
    add_kernel[(triton.cdiv(out.numel(), block),)](x, y, out, out.numel(), BLOCK=block)
    return out


@triton.jit
def blend_kernel(x_ptr, y_ptr, z_ptr, out_ptr, n, a, b, c, d, e, f, g, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(
        out_ptr + i,
        tl.load(x_ptr + i, mask=inside) * a
        + tl.load(y_ptr + i, mask=inside) * b
        + tl.load(z_ptr + i, mask=inside) * c
        + (d + e + f + g),
        mask=inside,
    )


@triton.jit
def softmax_kernel(x_ptr, out_ptr, stride, columns, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    inside = i < columns
    values = tl.load(x_ptr + row * stride + i, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(
        out_ptr + row * stride + i,
        (powers / tl.sum(powers, axis=0)).to(out_ptr.dtype.element_ty),
        mask=inside,
    )


def softmax(x, out):
    rows, columns = x.shape
    softmax_kernel[(rows,)](
        x, out, x.stride(0), columns, BLOCK=triton.next_power_of_2(columns), num_warps=8
    )
    return out


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    lda,
    ldb,
    ldc,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    pid, rows, columns = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * columns)
    height = min(rows - group * GROUP, GROUP)
    m = (group * GROUP + pid % (GROUP * columns) % height) * BM + tl.arange(0, BM)
    n = pid % (GROUP * columns) // height * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a, b = a_ptr + (m % M)[:, None] * lda + k[None, :], b_ptr + k[:, None] * ldb + (n % N)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        left = K - i * BK
        acc = tl.dot(
            tl.load(a, mask=k[None, :] < left, other=0.0),
            tl.load(b, mask=k[:, None] < left, other=0.0),
            acc,
        )
        a += BK
        b += BK * ldb
    tl.store(
        c_ptr + m[:, None] * ldc + n[None, :],
        acc.to(c_ptr.dtype.element_ty),
        mask=(m[:, None] < M) & (n[None, :] < N),
    )


def matmul(a, b, c, BM=128, BN=256, BK=64, GROUP=8, num_warps=8, num_stages=3):
    (M, K), N = a.shape, b.shape[1]
    matmul_kernel[(triton.cdiv(M, BM) * triton.cdiv(N, BN),)](
        a,
        b,
        c,
        M,
        N,
        K,
        a.stride(0),
        b.stride(0),
        c.stride(0),
        BM=BM,
        BN=BN,
        BK=BK,
        GROUP=GROUP,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return c


@triton.jit
def persistent_matmul_kernel(
    a_map,
    b_map,
    c_map,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    rows, columns, steps = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    for tile in tl.range(tl.program_id(0), rows * columns, BLOCKS, flatten=True):
        group = tile // (GROUP * columns)
        height = min(rows - group * GROUP, GROUP)
        m = (group * GROUP + tile % (GROUP * columns) % height) * BM
        n = tile % (GROUP * columns) // height * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(steps):
            acc = tl.dot(a_map.load([m, k * BK]), b_map.load([n, k * BK]).T, acc)
        # in halves: a whole tile does not fit beside the stages
        left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
        c_map.store([m, n], left.to(tl.bfloat16))
        c_map.store([m, n + BN // 2], right.to(tl.bfloat16))


def persistent_matmul(a, b, c, BM=128, BN=256, BK=64, GROUP=8, num_warps=8, num_stages=3):
    """A launch of a @ b.T into c by tensor maps, after Triton's tutorial 09 (persistent, with
    descriptors made on the host).
    """
    import torch
    from triton.tools.tensor_descriptor import TensorDescriptor

    (M, K), N = a.shape, b.shape[0]
    if M <= 64:
        BM = 64
    if N <= 128 or BM == 64:
        BN = 128
    blocks = min(
        torch.cuda.get_device_properties(a.device).multi_processor_count,
        triton.cdiv(M, BM) * triton.cdiv(N, BN),
    )
    maps = [
        TensorDescriptor.from_tensor(x, block)
        for x, block in ((a, [BM, BK]), (b, [BN, BK]), (c, [BM, BN // 2]))
    ]
    return lambda: persistent_matmul_kernel[(blocks,)](
        *maps,
        M,
        N,
        K,
        BM=BM,
        BN=BN,
        BK=BK,
        GROUP=GROUP,
        BLOCKS=blocks,
        num_warps=num_warps,
        num_stages=num_stages,
    )
