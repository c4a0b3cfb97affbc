"""The golden programs of tests/golden by the common protocol: beside cuBLAS, cuDNN and, where
BENCH_PROTOTYPES names their folder, the kernels written by hand for the same schedules
(gemm_ptx.py, attn_ptx.py). golden.py checks the programs over many shapes first.
"""

import os
from math import prod, sqrt

from benchmarks import golden, harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner

SIZES = (4096, 8192)
LENGTH, HEADS = 8192, 16


def contests(seed: int):
    for name in golden.PRODUCTS:
        for size in SIZES:
            yield product(name, (size,) * 3, seed)
    yield attention(LENGTH, seed)


def prototypes(name: str):
    """(of a product, of attention): functions that bind arrays; Runner-makers fail with one
    sentence where there is no folder.
    """
    if not (folder := os.environ.get("BENCH_PROTOTYPES")):
        raise FileNotFoundError(
            "BENCH_PROTOTYPES does not name the folder of gemm_ptx.py and attn_ptx.py"
        )
    return golden.load_prototypes(name, folder)


def product(name: str, shape: tuple[int, int, int], seed: int) -> Contest:
    import torch

    torch.manual_seed(seed)
    a, b, out, grid = golden.product(name, *shape)
    tile, order, _ = golden.PRODUCTS[name]
    other = b.T.contiguous()
    nt, nn = (b, other) if order == "nt" else (other, b)

    def runs(launch) -> Runner:
        return Runner(lambda: (launch(), out)[1], out)

    return Contest(
        f"golden-{name.replace('_', '-')}-{shape[0]}",
        f"Golden {name.replace('_', ' ')}, {' x '.join(map(str, shape))} bfloat16",
        (
            Contestant(
                "tkc golden",
                lambda: runs(golden.Golden(name).bind([a, b, out], grid)),
                "ours",
                risky=shape[0] == SIZES[0],
            ),
            Contestant("prototype", lambda: runs(prototypes(name)[0](a, b, out))),
            Contestant("cuBLAS nt", lambda: Runner(lambda: torch.matmul(a, nt.T, out=out), out)),
            Contestant("cuBLAS nn", lambda: Runner(lambda: torch.matmul(a, nn, out=out), out)),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        lambda: a.double() @ nn.double(),
        amount=2 * prod(shape) / 1e12,
        unit="TFLOP/s",
        figures=(harness.speed_ratio("tkc golden", "prototype", golden.FLOOR[name]),),
        notes=(f"Tiles of {tile[0]} x {tile[1]}, operands {order}.",),
    )


def attention(length: int, seed: int) -> Contest:
    import torch

    torch.manual_seed(seed)
    batch, d = max(1, 16384 // length), golden.HEAD
    q, k, v = (
        torch.randn(batch, length, HEADS, d, device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    out, lse = torch.empty_like(q), torch.empty(batch, HEADS, length, device="cuda")

    def ours() -> Runner:
        launch = golden.Golden("attention_forward").bind(
            [q, k, v, out, lse, 1 / sqrt(d)], (length // 128, HEADS, batch)
        )
        return Runner(lambda: (launch(), out)[1], out)

    def prototype() -> Runner:
        kernel = prototypes("attention_forward")[1](q, k, v)
        return Runner(lambda: (kernel(), kernel.o)[1], kernel.o)

    def cudnn() -> Runner:
        theirs = rivals_torch.attention(
            "CUDNN", *(t.transpose(1, 2).contiguous() for t in (q, k, v))
        )
        return Runner(lambda: theirs().transpose(1, 2))

    def reference():
        """A head at a time: all scores in float64 would fill the device."""
        want = torch.empty(q.shape, device="cuda", dtype=torch.float64)
        for b in range(batch):
            for h in range(HEADS):
                x, y, z = (t[b, :, h].double() for t in (q, k, v))
                want[b, :, h] = torch.softmax(x @ y.T / sqrt(d), 1) @ z
        return want

    return Contest(
        f"golden-attention-{length}",
        f"Golden attention forward, {batch} x {length} x {HEADS} x {d} bfloat16, all keys",
        (
            Contestant("tkc golden", ours, "ours", risky=True),
            Contestant("prototype", prototype),
            Contestant("cuDNN", cudnn),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=4 * batch * HEADS * length * length * d / 1e12,
        unit="TFLOP/s",
        figures=(
            harness.speed_ratio("tkc golden", "prototype", golden.FLOOR["attention_forward"]),
        ),
    )
