"""tkc.kernels on a GPU against torch in float64: rows over clusters, ragged ends, programs that
wait, sums over rows, the same bits again.
"""

from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from benchmarks.harness import bits, same  # noqa: E402
from benchmarks.memory_plans import planned  # noqa: E402
from tests.gpu.device import on_gpu  # noqa: E402
from tests.gpu.sanitized import flat, library, numbers, unset  # noqa: E402
from tkc import kernels  # noqa: E402

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16


def normal(*shape, dtype=BF16, seed=0):
    return torch.randn(
        *shape, device="cuda", dtype=dtype, generator=torch.Generator("cuda").manual_seed(seed)
    )


def near(got, want, tolerance=4e-3):
    error = float((got.double() - want).norm() / want.norm())
    assert error <= tolerance, f"relative error {error:.1e}"


@pytest.mark.parametrize(
    "columns", [64, 1000, 4096, 4099, 8192, 32768, 50257, 65536, 131071, 131072, 262144]
)
def test_rows_of_every_length(columns):
    x, g, w, b = (
        normal(37, columns),
        normal(37, columns, seed=1),
        normal(columns, seed=2),
        normal(columns, seed=3),
    )
    near(kernels.softmax(x), torch.softmax(x.double(), -1))
    near(kernels.log_softmax(x), torch.log_softmax(x.double(), -1))
    near(kernels.layer_norm(x, w, b), F.layer_norm(x.double(), (columns,), w.double(), b.double()))
    near(kernels.rms_norm(x, w), F.rms_norm(x.double(), (columns,), w.double(), 1e-6))
    y = torch.softmax(x.float(), -1)
    near(
        kernels.softmax_backward(g.float(), y),
        y.double() * (g.double() - (g.double() * y.double()).sum(-1, keepdim=True)),
        1e-5,
    )
    t = torch.randint(0, columns, (37,), device="cuda")
    near(kernels.cross_entropy(x, t)[0], F.cross_entropy(x.double(), t, reduction="none"), 1e-5)
    p = torch.softmax(x.double(), -1)
    p[torch.arange(37), t] -= 1
    logits = x.clone()
    near(kernels.cross_entropy_(logits, t), F.cross_entropy(x.double(), t, reduction="none"), 1e-5)
    near(logits, p)
    q, scales = kernels.quantize_rows(x)
    near(kernels.dequantize(q, scales, "float32"), x.double(), 0.04)


@pytest.mark.parametrize("rows, columns", [(1031, 1000), (4096, 4096), (777, 8192), (64, 32768)])
def test_gradients_of_norms(rows, columns):
    x, g, w, b = (
        normal(rows, columns),
        normal(rows, columns, seed=1),
        normal(columns, seed=2),
        normal(columns, seed=3),
    )
    for ours, norm in (
        (kernels.layer_norm_backward, lambda x, w, b: F.layer_norm(x, (columns,), w, b)),
        (kernels.rms_norm_backward, lambda x, w, b: F.rms_norm(x, (columns,), w, 1e-6)),
    ):
        leaves = [v.double().requires_grad_() for v in (x, w, b)]
        want = torch.autograd.grad(norm(*leaves), leaves, g.double(), allow_unused=True)
        for got, right in zip(ours(g, x, w), want, strict=False):
            near(got, right, 1e-2)
        for got, again in zip(ours(g, x, w), ours(g, x, w), strict=False):
            assert torch.equal(got, again)


@pytest.mark.parametrize("n", [1, 7, 4097, 1_000_003, 8191 * 4099, 1 << 22])
def test_flat_arrays_of_every_length(n):
    x, y = normal(n), normal(n, seed=1)
    near(kernels.swiglu(x, y), F.silu(x.double()) * y.double())
    near(kernels.gelu(x), F.gelu(x.double()))
    assert torch.equal(kernels.dropout(x, 0.0, 5), x)
    p, g, m, v = (
        normal(n, dtype=torch.float32),
        normal(n, seed=1),
        *(torch.zeros(n, device="cuda") for _ in range(2)),
    )
    q = p.clone().requires_grad_()
    q.grad = g.float()
    torch.optim.AdamW([q], lr=1e-2).step()
    kernels.adam_(p, g, m, v, 1, 1e-2, weight_decay=1e-2)
    near(p, q.detach().double(), 1e-5)
    near(kernels.sum(x.float()).reshape(1) + n, x.double().sum().reshape(1) + n, 1e-5)


@pytest.mark.parametrize("n", [20_011, 1 << 24, 40_000_003])
def test_cumulative_sums(n):
    whole = torch.randint(-2, 3, (n,), device="cuda", dtype=torch.int32)
    for _ in range(3):
        assert torch.equal(kernels.cumsum(whole), whole.cumsum(0).int())
    x = normal(n, dtype=torch.float32)
    first = kernels.cumsum(x)
    near(first, x.double().cumsum(0), 1e-4)
    for _ in range(5):
        assert torch.equal(kernels.cumsum(x), first)


def test_embedding_and_topk():
    table, i = normal(5000, 1024), torch.randint(0, 5000, (70_000,), device="cuda")
    assert torch.equal(kernels.embedding(table, i), table[i])
    g = normal(70_000, 1024, seed=1)
    near(
        kernels.embedding_backward(g, i, 5000),
        torch.zeros(5000, 1024, device="cuda", dtype=torch.double).index_add_(0, i, g.double()),
        1e-2,
    )
    x = normal(33, 50_257, dtype=torch.float32)
    for got, want in zip(kernels.topk(x, 50), x.topk(50), strict=False):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    "shape, k", [((5000, 256), 8), ((17, 131072), 64), ((17, 50_257), 50), ((3, 2048), 500)]
)
def test_the_largest_of_short_numbers(shape, k):
    """Many are equal in 16 bits: the first wins."""
    values, indices = kernels.topk(x := normal(*shape), k)
    want = (-x.double()).sort(dim=-1, stable=True)
    assert torch.equal(indices, want.indices[:, :k]) and torch.equal(
        values.double(), -want.values[:, :k]
    )


@pytest.mark.parametrize(
    "columns, options", [(1000, {}), (4096, {}), (32768, {"num_warps": 32}), (131072, {})]
)
def test_persistent_programs(columns, options):
    """More rows than blocks, so that each takes several."""
    x = normal(3001, columns)
    near(
        planned(lambda: kernels.softmax(x), {"persistent": True, **options}).run(),
        torch.softmax(x.double(), -1),
    )


@pytest.mark.parametrize(
    "columns, options",
    [
        (4096, {"num_stages": 3}),
        (32768, {}),
        (32752, {"num_stages": 2}),
        (32768, {"num_ctas": 4, "num_warps": 8, "num_stages": 3}),
        (131072, {}),
        (131056, {"num_ctas": 8, "num_warps": 8, "num_stages": 2}),
    ],
)
def test_programs_that_stream_through_blocks(columns, options):
    """Through rings that threads fill for themselves, ragged rows too; what all programs read is
    read once. In place, and with the rows of two arrays.
    """
    x, y, w, b = (
        normal(1501, columns),
        normal(1501, columns, seed=1),
        normal(columns),
        normal(columns, seed=1),
    )

    def run(call):
        return planned(call, {"persistent": True, **options}).run()

    near(run(lambda: kernels.softmax(x)), torch.softmax(x.double(), -1))
    near(
        run(lambda: kernels.layer_norm(x, w, b)),
        torch.nn.functional.layer_norm(x.double(), (columns,), w.double(), b.double()),
    )
    near(
        run(lambda: kernels.add_rms_norm(x, y, w)),
        torch.nn.functional.rms_norm((x + y).double(), (columns,), w.double(), 1e-6),
    )
    classes = torch.randint(0, columns, (1501,), device="cuda")
    want = torch.nn.functional.cross_entropy(x.double(), classes, reduction="none")
    near(run(lambda: kernels.cross_entropy_(x, classes)), want)


@pytest.mark.parametrize("rows, columns", [(1000, 4096), (4096, 136)])
def test_a_transpose_in_registers(rows, columns):
    x = normal(3, rows, columns)
    assert torch.equal(
        planned(lambda: kernels.transpose(x), {"register_transpose": True}).run(), x.transpose(1, 2)
    )


def with_unset_memory(call, byte):
    """The arrays of a result, where memory that nobody has set holds this byte everywhere."""
    with unset(byte):
        return flat(call(lambda *args, **kwargs: on_gpu(numbers(*args, **kwargs))))


@contextmanager
def sums_in_order(asked: bool):
    torch.use_deterministic_algorithms(asked, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", library())
def test_nothing_depends_on_what_nobody_wrote(name):
    """Results are the same whatever their memory held before, and that of what is passed from
    launch to launch; initcheck does not see what the tensor memory accelerator stores.
    """
    with sums_in_order(name == "attention_backward"):
        found = [
            [bits(a.reshape(-1)) for a in with_unset_memory(library()[name], byte)]
            for byte in (0xFF, 0x5A)
        ]
    assert len(found[0]) == len(found[1]) and all(map(same, *found))


def test_gradients_added_in_any_order_depend_on_nothing_unset():
    """What the test above does with sums in order, where blocks add to dQ as they come."""
    gradients = library()["attention_backward"]
    for first, second in zip(*(with_unset_memory(gradients, b) for b in (0xFF, 0x5A)), strict=True):
        near(first, second.double())


def test_every_row_of_groups_is_written_by_tensor_maps():
    """Where the tensor memory accelerator stores whole blocks and threads the rest: what initcheck
    takes for never written.
    """
    from tkc.kernels import grouped

    a, b, ends = (
        normal(200, 72),
        normal(3, 72, 40, seed=1),
        torch.tensor([66, 99, 137], device="cuda", dtype=torch.int32),
    )
    c = torch.full((200, 40), torch.nan, device="cuda", dtype=BF16)
    grouped._grouped.kernel[grouped._grid](
        a, b, grouped.table(c, ends, 72, 64, 64), c, BM=64, BN=64, BK=64, cluster=(1, 1), programs=1
    )
    near(
        c[:137],
        torch.cat(
            [
                a[rows].double() @ b[g].double()
                for g, rows in enumerate((slice(66), slice(66, 99), slice(99, 137)))
            ]
        ),
    )
    assert not c[137:].any()


@pytest.mark.parametrize(
    "shape", [(1024, 512, 512), (1000, 997, 1500), (8192, 4096, 2048)], ids=str
)
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_products_of_8_bits_in_every_memory_order(shape, order, dtype):
    """As they lie, relaid by a role, or copied to rows of k first: small integers, exactly."""
    m, n, k = shape
    a, b = (
        torch.randint(-3, 4, s, device="cuda").to(getattr(torch, dtype)) for s in ((m, k), (k, n))
    )
    a, b = (x.t().contiguous().t() if o == "t" else x for x, o in zip((a, b), order, strict=False))
    got = kernels.matmul(a, b, dtype="int32" if dtype == "int8" else "float32")
    assert torch.equal(got.double(), a.double() @ b.double())
