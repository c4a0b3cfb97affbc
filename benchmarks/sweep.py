"""Many plans of the plain product at many shapes, cheaply: a row a plan and shape, for calibrating
the cost model and for finding tables.

    python benchmarks/sweep.py --out sweep.csv --seconds 100 python benchmarks/sweep.py --shapes
    8192x8192x8192,512x8192x8192 --plans 128x256x64:cluster=2x1:raster=8,128x128x64

Plans are compiled first, in as many processes as there are cores, into the disk cache. Then, shape
by shape, every plan and cuBLAS take turns in shuffled rounds of a few launches each, the L2 cache
flushed by writing before each one; the figure is the median over the rounds. No ratios and no
quartiles: this ranks, harness.py judges. With --hot a turn is 100 ms of launches, after which power
decides, not what a cool device does for a moment; and each plan has its speed beside the better
cuBLAS of each round, with quartiles. A plan whose result differs from cuBLAS's by more than 1 % is
in the table without a time. What raises or is refused is named at the end.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks import harness  # noqa: E402

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


def plans() -> list[dict]:
    """Blocks by one program or two at once, with and without a cluster; rasters where they might
    matter.
    """
    together = [
        (128, 256),
        (256, 128),
        (256, 192),
        (256, 208),
        (128, 192),
        (128, 128),
        (256, 160),
        (64, 256),
    ]
    in_turn = [
        (128, 192),
        (128, 208),
        (128, 176),
        (128, 160),
        (128, 128),
        (128, 96),
        (128, 64),
        (64, 256),
        (64, 192),
        (64, 128),
        (64, 64),
        (192, 128),
    ]
    found = [
        dict(block=(*b, 64), programs=n, cluster=c)
        for n, blocks in ((1, together), (2, in_turn))
        for b in blocks
        for c in ((1, 1), (2, 1))
        if c == (1, 1) or b[0] * b[1] >= 128 * 128
    ]
    found += [
        dict(block=(m, n, 128), programs=p, cluster=(1, 1))
        for m, n, p in (
            (128, 128, 1),
            (128, 64, 2),
            (64, 128, 2),
            (64, 64, 2),
            (64, 112, 2),
            (64, 32, 2),
        )
    ]
    return (
        found
        + [
            dict(block=(128, n, 64), programs=p, cluster=(1, 1), raster=r)
            for n, p in ((256, 1), (192, 2), (128, 2))
            for r in (4, 16)
        ]
        + [dict(block=(64, 64, 64), programs=1, cluster=(1, 1))]
    )


def spelled(plan: dict) -> str:
    parts = ["x".join(map(str, plan["block"]))] + [
        f"{k}={'x'.join(map(str, v)) if isinstance(v, tuple) else v}"
        for k, v in plan.items()
        if k != "block"
    ]
    return ":".join(parts)


def read(text: str) -> dict:
    block, *rest = text.split(":")

    def value(v):
        return (
            tuple(map(int, v.split("x")))
            if "x" in v
            else int(v)
            if v.isdigit()
            else {"True": True, "False": False}.get(v, v)
        )

    return dict(block=tuple(map(int, block.split("x")))) | {
        k: value(v) for k, v in (part.split("=") for part in rest)
    }


def compiled(plan: dict, shape: tuple[int, int, int], majors: str) -> str | None:
    """Compiles and assembles into the disk cache; what was wrong, or None."""
    try:
        from tkc.runtime.launch import cubin

        m, n, k = shape
        (bm, bn, bk), options = (
            plan["block"],
            {name: v for name, v in plan.items() if name != "block"},
        )
        b = f"bf16[{k}, {n}]" if majors == "nn" else f"bf16[{k}:1, {n}:{k}]"
        cubin(
            harness.example("matmul").matmul.compile(
                f"bf16[{m}, {k}]",
                b,
                f"bf16[{m}, {n}]",
                RELU=False,
                BM=bm,
                BN=bn,
                BK=bk,
                **options,
                target="sm_90a",
            )
        )
    except Exception as e:
        return f"{type(e).__name__}: {e}".splitlines()[0]
    return None


def measure(
    shape, chosen: list[dict], majors: str, rounds: int, launches: int, hot: bool, say
) -> list[dict]:
    import torch

    import tkc

    matmul, (m, n, k) = harness.example("matmul").matmul, shape
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (
        torch.randn(*s, device="cuda", dtype=torch.bfloat16, generator=generator)
        for s in ((m, k), (k, n))
    )
    turned = b.t().contiguous()
    right, out = (
        b if majors == "nn" else turned.t(),
        torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
    )
    filler, want = (
        torch.zeros(harness.FLUSH_BYTES // 4, dtype=torch.int32, device="cuda"),
        torch.matmul(a, b),
    )
    runs, times, wrong = (
        {
            "cuBLAS nn": lambda: torch.matmul(a, b, out=out),
            "cuBLAS nt": lambda: torch.matmul(a, turned.t(), out=out),
        },
        {},
        {},
    )
    for plan in chosen:
        (bm, bn, bk), options = (
            plan["block"],
            {name: v for name, v in plan.items() if name != "block"},
        )
        try:
            launch = matmul.prepare(
                a,
                right,
                out,
                RELU=False,
                BM=bm,
                BN=bn,
                BK=bk,
                **options,
                grid=(tkc.cdiv(m, bm), tkc.cdiv(n, bn)),
            )
            harness.poison(out)
            launch()
            torch.cuda.synchronize()
        except tkc.Error as e:
            wrong[spelled(plan)] = str(e).splitlines()[0]
            continue
        if not float((out.float() - want.float()).norm() / want.float().norm()) < 1e-2:
            wrong[spelled(plan)] = "a wrong result"
            continue
        runs[spelled(plan)] = launch
    times = {name: [] for name in runs}
    shuffle = random.Random(0)
    for _ in range(rounds):
        order = list(runs)
        shuffle.shuffle(order)
        if hot:
            for name in order:
                times[name].append(harness.gpu_timer(runs[name]) * 1e6)
            continue
        marks = []
        for name in order:
            for _ in range(launches):
                filler.zero_()
                begin, end = (
                    torch.cuda.Event(enable_timing=True),
                    torch.cuda.Event(enable_timing=True),
                )
                begin.record()
                runs[name]()
                end.record()
                marks.append((name, begin, end))
        torch.cuda.synchronize()
        for name, begin, end in marks:
            times[name].append(begin.elapsed_time(end) * 1e3)
    for name, why in wrong.items():
        say(f"{m}x{n}x{k} {name}: {why}")
    best = [min(pair) for pair in zip(times["cuBLAS nn"], times["cuBLAS nt"], strict=False)]
    ratios = (
        {
            name: harness.Quartiles.of([b / x for b, x in zip(best, t, strict=False)])
            for name, t in times.items()
        }
        if hot
        else {}
    )

    def beside(name):
        return (
            {
                "x cuBLAS": round(ratios[name].median, 4),
                "lower quartile": round(ratios[name].low, 4),
                "upper quartile": round(ratios[name].high, 4),
            }
            if hot
            else {}
        )

    return [
        dict(
            shape="x".join(map(str, shape)),
            plan=name,
            us=round(statistics.median(t), 3),
            tflops=round(2e-6 * m * n * k / statistics.median(t), 2),
        )
        | beside(name)
        for name, t in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="sweep.csv")
    parser.add_argument("--shapes", default=",".join("x".join(map(str, s)) for s in SHAPES))
    parser.add_argument(
        "--plans", help="128x256x64:cluster=2x1:raster=8,… (default: a grid of them)"
    )
    parser.add_argument("--majors", choices=("nn", "nt"), default="nn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--launches", type=int, default=2)
    parser.add_argument("--hot", action="store_true", help="turns of 100 ms")
    parser.add_argument(
        "--seconds", type=float, default=100, help="no further shape begins after so long"
    )
    options = parser.parse_args()
    began, say = time.monotonic(), lambda text: print(text, flush=True)
    shapes = [tuple(map(int, s.split("x"))) for s in options.shapes.split(",")]
    chosen = [read(p) for p in options.plans.split(",")] if options.plans else plans()
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        jobs = [
            (plan, shape, pool.submit(compiled, plan, shape, options.majors))
            for shape in shapes
            for plan in chosen
        ]
        for plan, _, job in jobs:
            if why := job.result():
                say(f"{spelled(plan)}: {why}")
    say(f"{len(jobs)} compiled in {time.monotonic() - began:.1f} s")
    with open(options.out, "w", newline="") as file:
        table = csv.DictWriter(
            file,
            (
                "shape",
                "plan",
                "us",
                "tflops",
                *(("x cuBLAS", "lower quartile", "upper quartile") if options.hot else ()),
            ),
        )
        table.writeheader()
        for shape in shapes:
            if time.monotonic() - began > options.seconds:
                say(f"no time for {shape}")
                continue
            rows = sorted(
                measure(
                    shape,
                    chosen,
                    options.majors,
                    options.rounds,
                    options.launches,
                    options.hot,
                    say,
                ),
                key=lambda r: r["us"],
            )
            table.writerows(rows)
            file.flush()
            say(
                f"{rows[0]['shape']:>20}  "
                + "  ".join(
                    f"{r['plan']} {r['tflops']:.0f}" for r in rows if r["plan"].startswith("cuBLAS")
                )
                + "   |   "
                + "  ".join(
                    f"{r['plan']} {r['tflops']:.0f}"
                    + (f" ({r['x cuBLAS']:.3f})" if options.hot else "")
                    for r in rows
                    if not r["plan"].startswith("cuBLAS")
                )[:500]
            )
    say(f"{time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
