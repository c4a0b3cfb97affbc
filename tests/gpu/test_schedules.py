"""Products on a GPU whose consumers take programs in turn, whose blocks share a block of the
output, and whose epilogues leave subtile by subtile: right, and the same bits every time.
"""

import itertools

import pytest

import tkc
from tests.passes.test_epilogues import EPILOGUES, fused
from tests.passes.test_roles import product

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="no Hopper"
)

plain, whole = tkc.jit(product), tkc.jit(fused)
SHAPES = [
    (2300, 2100, 1000),
    (77, 296, 200),
    (1000, 1096, 72),
    (129, 264, 8),
    (640, 2048, 2048),
    (64, 512, 4104),
]
PLANS = [
    ((128, 192, 64), {}),
    ((128, 128, 64), {}),
    ((128, 128, 64), dict(cluster=(1, 1), programs=2)),
    ((128, 128, 64), dict(programs=1)),
    ((128, 256, 64), {}),
    ((64, 128, 64), {}),
    ((64, 64, 64), dict(split_k=2)),
    ((64, 64, 64), dict(split_k=8)),
    ((64, 64, 64), dict(split_k=8, cluster=(1, 1))),
    ((128, 96, 64), dict(split_k=3)),
    ((40, 64, 64), dict(split_k=5)),
    ((128, 128, 64), dict(split_k=3)),
    ((128, 192, 64), dict(split_k=4)),
    ((64, 128, 64), dict(split_k=4, roles="pingpong")),
    ((128, 256, 64), dict(stream_k=4)),
    ((128, 128, 64), dict(stream_k=4, roles="pingpong")),
    ((256, 192, 64), dict(stream_k=3)),
    ((128, 256, 64), dict(serpentine=True, retain=True, raster=2, cluster=(2, 1))),
    ((128, 128, 64), dict(serpentine=True, stream_k=2)),
    ((128, 128, 64), dict(serpentine=True, programs=2, raster=4)),
    ((128, 256, 64), dict(cluster=(2, 2))),
    ((128, 128, 64), dict(cluster=(1, 2), programs=2)),
    ((128, 192, 64), dict(cluster=(4, 1), programs=1)),
    ((256, 128, 64), dict(cluster=(1, 4), raster=2, serpentine=True)),
    ((64, 64, 64), dict(cluster=(2, 4))),
    ((128, 128, 64), dict(stream_k=3, cluster=(2, 1), programs=1)),
    ((64, 64, 64), dict(stream_k=4, cluster=(2, 2), roles="pingpong")),
    ((64, 64, 64), dict(retain=True, cluster=(1, 1))),
]


def normal(*shape, scale=1.0, dtype=torch.bfloat16):
    return (torch.randn(shape, device="cuda") * scale).to(dtype)


def launched(launch, outputs, times: int = 5) -> None:
    """Poisoned outputs, several launches at once in the stream, equal bits."""
    first = None
    for _ in range(times):
        for o in outputs:
            o.fill_(float("nan"))
        launch()
        launch()
        torch.cuda.synchronize()
        first = first or [o.clone() for o in outputs]
        assert all(
            torch.equal(o.view(torch.uint8), f.view(torch.uint8))
            for o, f in zip(outputs, first, strict=False)
        )


def distance(found, want) -> float:
    return float((found.double() - want).norm() / want.norm())


@pytest.mark.parametrize(("block", "options"), PLANS, ids=str)
@pytest.mark.parametrize("majors", ["nn", "nt"])
def test_products(block, options, majors):
    torch.manual_seed(0)
    BM, BN, BK = block
    for m, n, k in SHAPES:
        a, b, bias = normal(m, k), normal(*((k, n) if majors == "nn" else (n, k))), normal(n)
        c, d = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in "cd")
        launch = plain.prepare(
            a,
            b,
            bias,
            c,
            d,
            BM=BM,
            BN=BN,
            BK=BK,
            MAJORS=majors,
            EPILOGUE="",
            **options,
            grid=(tkc.cdiv(m, BM), tkc.cdiv(n, BN)),
        )
        launched(launch, [c])
        assert distance(c, a.double() @ (b if majors == "nn" else b.T).double()) < 3e-3, (m, n, k)


@pytest.mark.parametrize(
    "options",
    [
        dict(programs=1),
        dict(programs=2),
        dict(serpentine=True, programs=1),
        dict(split_k=2),
        dict(roles="one"),
    ],
    ids=str,
)
def test_a_factor_of_more_than_two_to_the_31_elements(options):
    """4.4 GB: offsets have 64 bits, coordinates and stages 32."""
    torch.manual_seed(0)
    m, n, k = 530_000, 128, 4104
    a, b, bias, c = (
        torch.empty(m, k, device="cuda", dtype=torch.bfloat16),
        normal(k, n),
        normal(n),
        torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
    )
    for rows in a.split(1 << 16):
        rows.normal_()
    plain.prepare(
        a,
        b,
        bias,
        c,
        c,
        BM=128,
        BN=128,
        BK=64,
        MAJORS="nn",
        EPILOGUE="",
        **options,
        grid=(tkc.cdiv(m, 128), 1),
    )()
    for part in (slice(0, 200), slice(m // 2, m // 2 + 200), slice(m - 200, m)):
        assert distance(c[part], a[part].double() @ b.double()) < 3e-3


@pytest.mark.parametrize(
    ("block", "options"), [p for p in PLANS if p[1] != dict(split_k=8)], ids=str
)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_epilogues(block, options, epilogue):
    torch.manual_seed(0)
    BM, BN, BK = block
    for m, n, k in ((1000, 1096, 320), (512, 768, 512)):
        a, b, bias, scale, r = (
            normal(m, k),
            normal(k, n, scale=k**-0.5),
            normal(n),
            normal(m, dtype=torch.float32),
            normal(m, n),
        )
        kept = normal(m, n)
        c, d = kept.clone(), torch.empty_like(r)
        grid = tkc.cdiv(m, BM), tkc.cdiv(n, BN)
        sums = torch.empty((grid[0], n) if "columns" in epilogue else (m, grid[1]), device="cuda")
        launch = whole.prepare(
            a,
            b,
            bias,
            scale,
            r,
            c,
            d,
            sums,
            BM=BM,
            BN=BN,
            BK=BK,
            EPILOGUE=epilogue,
            **options,
            grid=grid,
        )
        if "in place" in epilogue:
            launch()
        else:
            launched(
                launch,
                [
                    c,
                    *([d] if "second" in epilogue else []),
                    *([sums] if "columns" in epilogue or "rows" in epilogue else []),
                ],
            )
        torch.cuda.synchronize()
        x = a.double() @ b.double()
        if "scale" in epilogue:
            x = x * scale.double()[:, None]
        if "bias" in epilogue:
            x = x + bias.double()
        if "second" in epilogue:
            assert distance(d, x) < 3e-3
        if "tanh" in epilogue:
            x = torch.nn.functional.gelu(x, approximate="tanh")
        if "erf" in epilogue:
            x = torch.nn.functional.gelu(x)
        if "silu" in epilogue:
            x = torch.nn.functional.silu(x)
        if "gate" in epilogue:
            x = x * r.double()
        if "residual" in epilogue:
            x = x + r.double()
        if "in place" in epilogue:
            x = x + kept.double()
        assert distance(c, x) < 3e-3, (m, n, k)
        if "columns" in epilogue:
            assert distance(sums, torch.stack([part.sum(0) for part in x.split(BM)])) < 1e-3
        if "rows" in epilogue:
            assert distance(sums, torch.stack([part.sum(1) for part in x.split(BN, 1)], 1)) < 1e-3


def test_parts_of_a_block_while_other_streams_run():
    """Counters and parts are of a stream; launches in several at once do not meet."""
    torch.manual_seed(0)
    m, n, k = 256, 256, 8192
    a, b, bias = normal(m, k), normal(k, n), normal(n)
    want, streams = a.double() @ b.double(), [torch.cuda.Stream() for _ in range(3)]
    outputs = [
        torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(6)
    ]
    torch.cuda.synchronize()
    for _, (out, stream) in itertools.product(range(4), zip(outputs, streams * 2, strict=False)):
        with torch.cuda.stream(stream):
            plain[(4, 4)](
                a, b, bias, out, out, BM=64, BN=64, BK=64, MAJORS="nn", EPILOGUE="", split_k=8
            )
    torch.cuda.synchronize()
    assert (
        all(torch.equal(out, outputs[0]) for out in outputs) and distance(outputs[0], want) < 3e-3
    )
