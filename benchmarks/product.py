"""The plain product of bfloat16 matrices through the passes for the device's own target, beside cuBLAS, at RIVALS' large shapes."""
from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner

SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (8192, 14336, 4096), (512, 8192, 8192), (4096, 4096, 512))
BLOCKS = ((128, 256, 64), (128, 192, 64), (128, 128, 64))


def contests(seed: int):
    for shape in SHAPES: yield contest(seed, shape)


def contest(seed: int, shape: tuple[int, int, int] = SHAPES[0]) -> Contest:
    import torch
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = (torch.randn(*s, device="cuda", dtype=torch.bfloat16, generator=generator) for s in ((m, k), (k, n)))
    turned, out = b.t().contiguous(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def ours(bm: int, bn: int, bk: int, **options) -> Runner:
        import tkc
        matmul = harness.example("matmul").matmul
        launch = matmul.prepare(a, b, out, RELU=False, BM=bm, BN=bn, BK=bk, **options, grid=(tkc.cdiv(m, bm), tkc.cdiv(n, bn)))
        return Runner(lambda: (launch(), out)[1], out)

    flops, size = 2 * m * n * k, "x".join(map(str, shape))
    return Contest(f"product-{size}", f"Product {size} bfloat16", (
        *(Contestant(f"tkc {'x'.join(map(str, blocks))}", lambda blocks=blocks: ours(*blocks), "ours", risky=True) for blocks in BLOCKS),
        Contestant("cuBLAS nn", lambda: Runner(lambda: torch.matmul(a, b, out=out), out)),
        Contestant("cuBLAS nt", lambda: Runner(lambda: torch.matmul(a, turned.t(), out=out), out)),
    ), harness.gpu_timer, harness.GPU_TIMING, lambda: a.double() @ b.double(), amount=flops / 1e12, unit="TFLOP/s")
