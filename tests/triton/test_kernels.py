"""Kernels as Triton's users write them: on the CPU against NumPy, and compiled for Hopper, where
pointers become blocks that tensor maps copy and wgmma multiplies.
"""

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl
from tests.triton import kernels
from tkc.errors import CompileError
from tkc.triton.tools.tensor_descriptor import TensorDescriptor

rng = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


def hopper(launched, wgmma=True):
    """What a launch compiles to for Hopper: without spills, with wgmma and tensor maps."""
    compiled = launched.compiled_for("sm_90a")
    assert compiled.resources.clean, compiled.resources
    assert ("wgmma.mma_async" in compiled.ptx) is wgmma
    assert ("cp.async.bulk.tensor" in compiled.ptx) is wgmma
    return compiled


def test_add():
    x, y, out = normal(1000), normal(1000), np.zeros(1000, np.float32)
    launched = kernels.add[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](
        x, y, out, 1000, BLOCK=256, num_warps=4
    )
    assert (out == x + y).all()
    assert "tile.load_pointers" in launched.asm["ttir"]
    assert any(d.startswith("hints: num_warps = 4") for d in launched.decisions)
    hopper(launched, wgmma=False)


def test_softmax():
    x, out = normal(37, 100), np.zeros((37, 100), np.float32)
    launched = kernels.softmax[(8,)](out, x, 100, 100, 37, 100, BLOCK=128)
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, powers / powers.sum(1, keepdims=True), atol=1e-6)
    hopper(launched, wgmma=False)


def matmul(m, n, k, activation=""):
    a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16)
    c = np.zeros((m, n), np.float16)
    launched = kernels.matmul[
        lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)
    ](a, b, c, m, n, k, k, 1, n, 1, n, 1, ACTIVATION=activation)
    exact = a.astype(np.float32) @ b.astype(np.float32)
    if activation:
        exact = np.where(exact >= 0, exact, 0.01 * exact)
    np.testing.assert_allclose(c, exact, atol=0.02, rtol=2e-3)
    return launched


def test_matmul_by_pointers():
    launched = matmul(256, 256, 128)
    hopper(launched)
    assert "raise-pointers: 3 accesses by pointers are blocks of arrays" in launched.decisions_for(
        "sm_90a"
    )


def test_matmul_of_odd_extents_with_an_activation():
    matmul(200, 136, 96, "leaky_relu")


def test_layer_norm():
    m, n = 37, 200
    x, w, b = normal(m, n), rng.random(n, np.float32), rng.random(n, np.float32)
    y, mean, rstd = np.zeros_like(x), np.zeros(m, np.float32), np.zeros(m, np.float32)
    launched = kernels.layer_norm[(m,)](x, y, w, b, mean, rstd, n, n, 1e-5, BLOCK=128)
    xhat = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, xhat * w + b, atol=1e-5)
    hopper(launched, wgmma=False)
    dy, dx, groups = normal(m, n), np.zeros_like(x), 4
    lock = np.zeros(2 * groups, np.int32)
    dw, db = np.zeros((groups, n), np.float32), np.zeros((groups, n), np.float32)
    launched = kernels.layer_norm_dx[(m,)](
        dx, dy, dw, db, x, w, mean, rstd, lock, n, n, GROUP=groups, BLOCK=256
    )
    wdy = w * dy
    c1, c2 = (xhat * wdy).mean(1, keepdims=True), wdy.mean(1, keepdims=True)
    np.testing.assert_allclose(dx, (wdy - (xhat * c1 + c2)) * rstd[:, None], atol=1e-5)
    hopper(launched, wgmma=False)
    final_dw, final_db = np.zeros(n, np.float32), np.zeros(n, np.float32)
    launched = kernels.layer_norm_dwdb[(triton.cdiv(n, 64),)](
        dw, db, final_dw, final_db, groups, n, BM=32, BN=64
    )
    np.testing.assert_allclose(final_dw, (dy * xhat).sum(0), atol=1e-4)
    np.testing.assert_allclose(final_db, dy.sum(0), atol=1e-4)
    hopper(launched, wgmma=False)


@pytest.mark.parametrize("stage", [1, 3], ids=["full", "causal"])
def test_attention(stage):
    z, h, n, d, bm, bn = 1, 2, 256, 64, 128, 64
    q, k, v = (normal(z * h * n, d, dtype=np.float16) for _ in range(3))
    o, m = np.zeros_like(q), np.zeros((z * h, n), np.float32)
    blocks = (bm, bn, bn, bm)
    descriptors = [
        TensorDescriptor.from_tensor(t, [b, d]) for t, b in zip((q, k, v, o), blocks, strict=True)
    ]
    launched = kernels.attention[(n // bm, z * h)](
        0.5, m, z, h, *descriptors, n, HEAD_DIM=d, BM=bm, BN=bn, STAGE=stage
    )
    qf, kf, vf = (t.astype(np.float64).reshape(z * h, n, d) for t in (q, k, v))
    scores = qf @ kf.transpose(0, 2, 1) * 0.5
    if stage == 3:
        scores = np.where(np.tril(np.ones((n, n))), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    exact = powers / powers.sum(-1, keepdims=True) @ vf
    np.testing.assert_allclose(o.reshape(z * h, n, d), exact, atol=2e-3)
    hopper(launched)


def operands():
    a, b = normal(512, 256, dtype=np.float16), normal(384, 256, dtype=np.float16)
    return a, b, np.zeros((512, 384), np.float16), a.astype(np.float32) @ b.T.astype(np.float32)


def test_persistent_matmul_with_descriptors_of_the_host():
    a, b, c, exact = operands()
    a_desc, b_desc = (TensorDescriptor.from_tensor(t, [128, 64]) for t in (a, b))
    c_desc = TensorDescriptor.from_tensor(c, [128, 128])
    launched = kernels.matmul_persistent[(6,)](
        a_desc, b_desc, c_desc, 512, 384, 256, BM=128, BN=128, BK=64, GROUP=8, PROGRAMS=6
    )
    np.testing.assert_allclose(c, exact, atol=0.02, rtol=2e-3)
    hopper(launched)


def test_matmul_with_descriptors_of_the_kernel():
    a, b, c, exact = operands()
    launched = kernels.matmul_device_descriptors[(4, 3)](
        a, b, c, 512, 384, 256, BM=128, BN=128, BK=64
    )
    np.testing.assert_allclose(c, exact, atol=0.02, rtol=2e-3)
    hopper(launched)


def test_matmul_with_block_pointers():
    a, b, c, exact = operands()
    turned = np.ascontiguousarray(b.T)
    launched = kernels.matmul_block_pointers[(4, 3)](
        a, turned, c, 512, 384, 256, 256, 384, 384, BM=128, BN=128, BK=64
    )
    np.testing.assert_allclose(c, exact, atol=0.02, rtol=2e-3)
    hopper(launched)


def padded(*shape):
    """Rows that begin at multiples of 16 bytes, and end anywhere."""
    rows, columns = shape
    return normal(rows, -(-columns // 8) * 8 + 8, dtype=np.float16)[:, :columns]


@pytest.mark.parametrize("simulated", [False, True], ids=["CPU", "simulated"])
@pytest.mark.parametrize("kernel", ["grouped_by_pointers", "grouped_by_descriptors"])
def test_products_of_operands_in_tables(kernel, simulated, monkeypatch):
    """One has no steps. A role of threads copies, for nothing is known on the host."""
    if simulated:
        monkeypatch.setenv("TKC_SIM", "1")
        monkeypatch.setenv("TKC_TARGET", "sm_90a")
    sizes = [(200, 136, 100), (64, 70, 0), (130, 60, 68)]
    a = [padded(m, k) for m, _, k in sizes]
    b = [padded(n, k) if "descr" in kernel else padded(k, n) for _, n, k in sizes]
    c = [padded(m, n) for m, n, _ in sizes]
    tables = [np.array([x.ctypes.data for x in several]) for several in (a, b, c)]
    rows = np.array([x.strides[0] // 2 for of in zip(a, b, c, strict=True) for x in of], np.int32)
    launched = getattr(kernels, kernel)[(2,)](
        *tables, np.array(sizes, np.int32), rows, 3, PROGRAMS=2, BM=128, BN=64, BK=64
    )
    for x, y, z in zip(a, b, c, strict=True):
        exact = x.astype(np.float32) @ (y.T if "descr" in kernel else y).astype(np.float32)
        np.testing.assert_allclose(z, exact, atol=0.03, rtol=2e-3)
    compiled = launched.compiled_for("sm_90a")
    assert compiled.resources.clean, compiled.resources
    assert "wgmma.mma_async" in compiled.ptx and "cp.async.cg.shared.global" in compiled.ptx
    assert any(d.startswith("plan: copies wait for what programs") for d in compiled.decisions)


@triton.jit
def copied_from_a_table(table, out, BLOCK: tl.constexpr):
    at = tl.load(table).to(tl.pointer_type(tl.float32)) + tl.arange(0, BLOCK)
    tl.multiple_of(at, 16)
    tl.store(out + tl.arange(0, BLOCK), tl.load(at))


def test_a_promise_of_pointers_is_used():
    """A statement of its own is one, too: as Triton marks the operand."""
    x, out = normal(1024), np.zeros(1024, np.float32)
    launched = copied_from_a_table[(1,)](np.array([x.ctypes.data]), out, BLOCK=1024)
    assert (out == x).all()
    assert "ld.global.v4" in hopper(launched, wgmma=False).ptx


@triton.jit(repr=lambda found: f"named_{found.signature['n']}_{found.constants['BLOCK']}")
def named(out, n, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), n)


def test_what_a_launch_says_of_itself():
    out = np.zeros(16, np.int64)
    launched = named[(1,)](out, 2**40, BLOCK=16)
    assert (out == 2**40).all()
    assert launched.name == "named_i64_16"
    assert ".target sm_90a" in launched.asm["ptx"]  # also of a launch in host memory
    with pytest.raises(AssertionError, match="power of 2"):
        named[(1,)](out, 3, BLOCK=16, num_warps=3)


def test_a_kernel_defined_in_a_function_takes_another_source():
    @triton.jit
    def kernel(out):
        if given:
            tl.store(out, VALUE)  # noqa: F821  replaced before it is launched
        else:
            tl.store(out, later)  # a cell that is still empty

    given = tl.constexpr(True)

    kernel._unsafe_update_src(kernel.src.replace("VALUE", "4"))
    out = np.zeros(1, np.int32)
    kernel[(1,)](out)
    later = 5
    assert out[0] == later - 1


@triton.jit
def added_to_bytes(out):
    block = tl.make_tensor_descriptor(out, [4, 16], [16, 1], [4, 16])
    block.atomic_add([0, 0], tl.zeros((4, 16), tl.int8))


def test_descriptors_add_what_copies_of_blocks_add():
    with pytest.raises(CompileError, match="atomic_add of a descriptor takes"):
        added_to_bytes[(1,)](np.zeros((4, 16), np.int8))


@triton.jit
def too_few(out):
    tl.store(out + tl.arange(0, 4), tl.arange(0, 8).reshape(4))


def test_warmup_compiles():
    with pytest.raises(CompileError, match="tl.arange"):
        too_few.warmup(np.zeros(4, np.int32), grid=(1,))


@triton.jit
def doubled_value(x):
    return x * 2


@triton.jit
def tripled_value(x):
    return x * 3


@triton.jit
def stores_doubled(out):
    tl.store(out, doubled_value(1.0))


@triton.jit
def stores_by(out, F: tl.constexpr):
    tl.store(out, F(1.0))


@triton.jit
def stores_one(out):
    tl.store(out, 1.0)


@triton.jit
def stores_two(out):
    tl.store(out, 2.0)


def test_a_function_that_takes_another_source_is_another_one_in_kernels(monkeypatch):
    monkeypatch.setattr(doubled_value, "fn", doubled_value.fn)  # as it was, afterwards
    out = np.zeros(1, np.float32)
    for factor in (2, 4):
        doubled_value._unsafe_update_src(f"def doubled_value(x):\n    return x * {factor}\n")
        for _ in range(2):
            out[:] = 0
            stores_doubled[(1,)](out)
            assert out[0] == factor
            stores_by[(1,)](out, doubled_value)
            assert out[0] == factor


def test_a_kernel_whose_code_is_replaced_in_place_runs_the_new_one(monkeypatch):
    out = np.zeros(1, np.float32)
    stores_one[(1,)](out)
    assert out[0] == 1
    stores_by[(1,)](out, tripled_value)
    assert out[0] == 3
    monkeypatch.setattr(stores_one.fn, "__code__", stores_two.fn.__code__)
    stores_one[(1,)](out)
    assert out[0] == 2
    monkeypatch.setattr(tripled_value.fn, "__code__", doubled_value.fn.__code__)
    stores_by[(1,)](out, tripled_value)
    assert out[0] == 2
