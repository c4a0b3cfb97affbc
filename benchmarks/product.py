"""Products of bfloat16 matrices at RIVALS' thirteen shapes: tkc.kernels.matmul as it is and tuned,
beside cuBLAS with both orders of B and Triton's persistent kernel. BENCH_ONLY=64x8192x8192 in the
environment picks shapes."""

import os

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

SHAPES = (
    (16384, 16384, 16384),
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (8192, 14336, 4096),
    (8192, 4096, 14336),
    (512, 8192, 8192),
    (4096, 4096, 512),
    (8192, 8192, 64),
    (4000, 4000, 4000),
    (64, 8192, 8192),
    (16, 14336, 4096),
)


def contests(seed: int):
    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for shape in SHAPES:
        if not only or "x".join(map(str, shape)) in only:
            yield contest(seed, shape)


def contest(seed: int, shape: tuple[int, int, int] = SHAPES[1], rivals: bool = True) -> Contest:
    import torch

    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = (
        torch.randn(*s, device="cuda", dtype=torch.bfloat16, generator=generator)
        for s in ((m, k), (k, n))
    )
    turned, out = b.t().contiguous(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def default() -> Runner:
        from tkc import kernels

        return Runner(lambda: kernels.matmul(a, b, out=out), out)

    def tuned(operand=b) -> Runner:
        from tkc.kernels.matmul import _grid, _product

        config = _product.choose(
            a, operand, None, out, ACTIVATION=None, grid=_grid, measure=True
        ).config
        launch = _product.kernel.prepare(
            a, operand, None, out, ACTIVATION=None, **dict(config.items), grid=_grid
        )
        return Runner(lambda: (launch(), out)[1], out)

    def triton() -> Runner:
        from benchmarks import rivals_triton

        launch = rivals_triton.persistent_matmul(a, turned, out)
        return Runner(lambda: (launch(), out)[1], out)

    aligned, flops, size = n % 8 == k % 8 == 0, 2 * m * n * k, "x".join(map(str, shape))
    return Contest(
        f"product-{size}",
        f"Product {size} bfloat16",
        (
            Contestant("tkc", default, "ours"),
            *([Contestant("tkc tuned", tuned, "ours")] if rivals else []),
            Contestant("cuBLAS nn", lambda: Runner(lambda: torch.matmul(a, b, out=out), out)),
            Contestant(
                "cuBLAS nt", lambda: Runner(lambda: torch.matmul(a, turned.t(), out=out), out)
            ),
            *([Contestant("Triton TMA", triton)] if rivals and aligned else []),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        lambda: a.double() @ b.double(),
        amount=flops / 1e12,
        unit="TFLOP/s",
        figures=tuple(
            harness.speed_ratio(ours, rival, 1.0 if rivals else 0.95)
            for ours in (["tkc tuned"] if rivals else ["tkc"])
            for rival in ("cuBLAS nn", "cuBLAS nt", *(["Triton TMA"] if rivals and aligned else []))
        ),
        worst_error=1.1,
    )
