"""Softmax of 32768 rows of 4096 bfloat16 elements."""

from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner
from benchmarks.vector_add import copy

ROWS, COLUMNS = 32768, 4096


def contest(seed: int, rows: int = ROWS, columns: int = COLUMNS) -> Contest:
    import torch

    x = torch.randn(
        rows,
        columns,
        device="cuda",
        dtype=torch.bfloat16,
        generator=torch.Generator("cuda").manual_seed(seed),
    )
    out = torch.empty_like(x)

    def ours(**options) -> Runner:
        softmax = harness.example("softmax").softmax
        return Runner(lambda: (softmax[(rows,)](x, out, COLUMNS=columns, **options), out)[1], out)

    def triton() -> Runner:
        from benchmarks import rivals_triton

        return Runner(lambda: rivals_triton.softmax(x, out), out)

    return Contest(
        "softmax",
        f"Softmax, {rows} x {columns} bfloat16",
        (
            Contestant("tkc", lambda: ours(), "ours", risky=True),
            Contestant("tkc 4 warps", lambda: ours(num_warps=4), "ours"),
            Contestant("torch", lambda: Runner(lambda: torch.softmax(x, dim=1))),
            *rivals_torch.compiled(lambda: torch.softmax(x, dim=1)),
            Contestant("triton", triton),
            Contestant("copy of as many bytes", lambda: Runner(copy(2 * x.numel())), "bound"),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        lambda: torch.softmax(x.double(), dim=1),
        amount=4 * x.numel() / 1e9,
        unit="GB/s",
        figures=tuple(harness.speed_ratio("tkc", name, 1.0) for name in rivals_torch.MODES),
    )
