"""Product of 4096 x 4096 bfloat16 matrices on mma.sync: the program for sm_80, run on whatever GPU
is there.
"""

from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

SIZE = 4096


def contest(seed: int, size: int = SIZE) -> Contest:
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = (
        torch.randn(size, size, device="cuda", dtype=torch.bfloat16, generator=generator)
        for _ in range(2)
    )
    out = torch.empty_like(a)

    def ours(bm: int, bn: int, bk: int, **options) -> Runner:
        import tkc

        matmul = harness.example("matmul").matmul
        constants = dict(RELU=False, BM=bm, BN=bn, BK=bk)
        grid = tkc.cdiv(size, bm), tkc.cdiv(size, bn)
        launch = matmul.prepare(a, b, out, **constants, **options, grid=grid, target="sm_80")
        return Runner(lambda: (launch(), out)[1], out)

    def triton() -> Runner:
        from benchmarks import rivals_triton

        return Runner(lambda: rivals_triton.matmul(a, b, out), out)

    return Contest(
        "matmul-mma",
        f"Product {size}^3 bfloat16, compiled for sm_80",
        (
            Contestant("tkc", lambda: ours(128, 256, 64), "ours", risky=True),
            Contestant("tkc 128x128x64", lambda: ours(128, 128, 64), "ours", risky=True),
            Contestant("tkc 128x128x32", lambda: ours(128, 128, 32), "ours", risky=True),
            Contestant("cuBLAS (wgmma)", lambda: Runner(lambda: torch.matmul(a, b, out=out), out)),
            Contestant("triton (wgmma)", triton),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        lambda: a.double() @ b.double(),
        amount=2 * size**3 / 1e12,
        unit="TFLOP/s",
        figures=(
            harness.Figure(
                "tkc at 300 TFLOP/s or more", ("tkc",), lambda t: 2 * size**3 / t["tkc"] / 1e12, 300
            ),
        ),
        notes=(
            (
                "The rivals use the instructions of sm_90a; mma.sync reaches about two thirds of"
                " their rate on this chip."
            ),
        ),
    )
