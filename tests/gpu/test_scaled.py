"""tkc.kernels.scaled_matmul and quantize_blocks on a GPU against torch in float64: every kind of
scales, ragged ends, memory orders.
"""

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.test_library import near, normal  # noqa: E402
from tkc import kernels  # noqa: E402

pytestmark = pytest.mark.gpu
SHAPES = [
    (1, 1, 1),
    (33, 65, 130),
    (129, 257, 1000),
    (300, 1, 4099),
    (1, 300, 4096),
    (1024, 1024, 2048),
    (1000, 997, 1500),
    (4096, 4096, 512),
    (64, 4096, 4096),
]


def scales(kind: str, m: int, k: int, seed: int):
    """Of a factor [m, k], and the scale of each of its elements."""
    down, across = {
        "whole": (1, 1),
        "each": (m, 1),
        "1": (m, -(-k // 128)),
        "128": (-(-m // 128), -(-k // 128)),
    }[kind]
    s = (
        torch.rand(down, across, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
        * 3
        + 0.25
    )
    rows, columns = {"whole": (m, k), "each": (1, k), "1": (1, 128), "128": (128, 128)}[kind]
    return s, s.double().repeat_interleave(rows, 0)[:m].repeat_interleave(columns, 1)[:, :k]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "one, two",
    [
        ("whole", "whole"),
        ("each", "each"),
        ("whole", "each"),
        ("1", "128"),
        ("128", "1"),
        ("128", "128"),
        ("1", "1"),
    ],
)
def test_every_kind_of_scales(shape, one, two):
    m, n, k = shape
    a, w, bias = (
        normal(m, k).to(torch.float8_e4m3fn),
        normal(n, k, seed=1).to(torch.float8_e5m2),
        normal(n, seed=2),
    )
    (sa, ta), (sb, tb) = scales(one, m, k, 3), scales(two, n, k, 4)
    want = (a.double() * ta) @ (w.double() * tb).t()

    def columns(s):
        return s.t().contiguous().t()

    for x, y, p, q in (
        (a, w.t(), columns(sa), sb.t()),
        (a, w.t(), sa, columns(sb).t()),
        (columns(a), w.t().contiguous(), columns(sa), sb.t()),
    ):
        near(kernels.scaled_matmul(x, y, p, q, dtype="float32"), want, 1e-3)
        near(
            kernels.scaled_matmul(x, y, p, q, bias, "relu"), torch.relu(want + bias.double()), 4e-3
        )
        near(kernels.scaled_matmul(x, y, p, q, exact=False), want, 4e-3 if k < 2048 else 2e-2)


@pytest.mark.parametrize("shape", [(129, 257, 1000), (1024, 1024, 2048)], ids=str)
def test_integers(shape):
    m, n, k = shape
    a, w = (torch.randint(-127, 128, s, device="cuda", dtype=torch.int8) for s in ((m, k), (n, k)))
    (sa, ta), (sb, tb) = scales("each", m, k, 3), scales("each", n, k, 4)
    near(
        kernels.scaled_matmul(a, w.t(), sa, sb.t(), dtype="float32"),
        (a.double() * ta) @ (w.double() * tb).t(),
        1e-6,
    )


@pytest.mark.parametrize("shape", [(1, 1), (131, 257), (4096, 4096), (1000, 130)], ids=str)
@pytest.mark.parametrize("rows", [1, 128])
def test_quantized_in_blocks(shape, rows):
    x = normal(*shape)
    q, s = kernels.quantize_blocks(x, rows)
    whole = s.repeat_interleave(rows, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]
    near(q.double() * whole.double(), x.double(), 0.04)
    assert rows > 1 or s.stride() == (1, -(-shape[0] // 4) * 4)
