"""Products of ragged groups of rows with a matrix each, as layers of experts have them:
tkc.kernels.grouped_matmul beside torch._grouped_mm and a loop of products.

    python benchmarks/run.py product_grouped    three models' up-projections, by the protocol
    python benchmarks/product_grouped.py        a sweep over blocks, with and without ping-pong:
                                                medians, no claims
"""

from __future__ import annotations

import random
import statistics
import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import harness  # noqa: E402
from benchmarks.harness import Contest, Contestant, Runner  # noqa: E402

# rows, k, n, groups
SHAPES = (
    (8192, 4096, 14336, 8),
    (16384, 2048, 768, 128),
    (32768, 7168, 2048, 64),
    (64, 4096, 14336, 8),
)
BLOCKS = ((128, 256), (256, 128), (128, 128), (128, 192), (64, 256), (64, 128))


def operands(shape, seed: int):
    """a, b of torch's layout [G, N, K] turned, ends; groups of very different sizes."""
    import torch

    m, k, n, count = shape
    generator = torch.Generator("cuda").manual_seed(seed)

    def made(*s):
        return torch.randn(*s, device="cuda", dtype=torch.bfloat16, generator=generator)

    share = torch.rand(count, generator=torch.Generator().manual_seed(seed)) + 0.2
    ends = (share.cumsum(0) / share.sum() * m).round().to(torch.int32)
    ends[-1] = m
    return (
        made(m, k),
        made(count, n, k).transpose(1, 2),
        ends.cuda(),
        torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
    )


def loop(a, b, ends, out):
    """A product a group; what a program does that knows where groups end on the host."""
    import torch

    limits = [0, *ends.tolist()]

    def run():
        for g, (start, end) in enumerate(zip(limits, limits[1:], strict=False)):
            torch.matmul(a[start:end], b[g], out=out[start:end])
        return out

    return Runner(run, out)


def contests(seed: int):
    for shape in SHAPES:
        yield contest(seed, shape)


def contest(seed: int, shape=SHAPES[0]) -> Contest:
    import torch

    from tkc import kernels

    a, b, ends, out = operands(shape, seed)
    m, k, n, count = shape
    limits = [0, *ends.tolist()]

    def reference():
        return torch.cat(
            [
                a[s:e].double() @ b[g].double()
                for g, (s, e) in enumerate(zip(limits, limits[1:], strict=False))
            ]
        )

    return Contest(
        f"grouped-{'x'.join(map(str, (m, n, k)))}-of-{count}",
        f"Product of {count} ragged groups, {m} x {n} x {k} bfloat16",
        (
            Contestant("tkc", lambda: Runner(lambda: kernels.grouped_matmul(a, b, ends)), "ours"),
            Contestant(
                "torch._grouped_mm", lambda: Runner(lambda: torch._grouped_mm(a, b, offs=ends))
            ),
            Contestant("a loop of cuBLAS", lambda: loop(a, b, ends, out)),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=2 * m * n * k / 1e12,
        unit="TFLOP/s",
    )


def sweep(shapes=SHAPES, rounds: int = 5) -> None:
    import torch

    from tkc import kernels
    from tkc.kernels.grouped import _grid, _grouped, table

    for shape in shapes:
        a, b, ends, out = operands(shape, 0)
        m, k, n, count = shape
        runs = {
            "torch._grouped_mm": partial(torch._grouped_mm, a, b, offs=ends),
            "tkc": partial(kernels.grouped_matmul, a, b, ends),
        }
        want = kernels.grouped_matmul(a, b, ends)
        for bm, bn in BLOCKS:
            try:
                run = _grouped.kernel.prepare(
                    a,
                    b,
                    table(out, ends, k, bm, bn),
                    out.fill_(77),
                    BM=bm,
                    BN=bn,
                    BK=64,
                    grid=_grid,
                )
                run()
                if (error := harness.relative_error(out, want.double())) > 1e-2:
                    print(f"{shape} {bm}x{bn}: error {error:.3g}")
                    continue
                runs[f"{bm}x{bn}x64"] = run
            except Exception as e:
                print(
                    f"{shape} {bm}x{bn}: {type(e).__name__} {str(e).splitlines()[0][:200]}",
                    flush=True,
                )
        times = [
            {
                name: harness.gpu_timer(runs[name], 5, 20)
                for name in random.Random(i).sample(list(runs), len(runs))
            }
            for i in range(rounds)
        ]
        for name in sorted(runs, key=lambda r: statistics.median(t[r] for t in times)):
            seconds = statistics.median(t[name] for t in times)
            print(
                f"{'x'.join(map(str, shape)):22} {name:28} {2 * m * n * k / seconds / 1e12:7.1f}"
                f" TFLOP/s {seconds * 1e6:9.1f} us",
                flush=True,
            )


if __name__ == "__main__":
    sweep()
