"""Products of bfloat16 matrices whose sizes nobody chose: drawn log-uniformly, half of them
multiples of 64, a quarter of 8, a quarter anything; B dense along n (nn) or along k (nt).
`kernels.matmul` by default, with no table of tuned choices, beside cuBLAS with both orders of B.

    python benchmarks/product_drawn.py --count 100 --seed 7 --out drawn.csv
    python benchmarks/product_drawn.py --shapes 192x4096x22016:nn,300x4096x4096:nt

Every choice is compiled first, in as many processes as there are cores. Then, shape by shape,
contestants take turns in shuffled rounds; the L2 cache is flushed by writing before each launch. A
product that takes less than SHORT is a CUDA graph of GRAPH launches, whose time is divided by as
many: host overhead is nobody's. Ratios are taken inside a round, over the better order of cuBLAS.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks import harness  # noqa: E402

LEAST, LARGEST = 16, 16384  # extents that are drawn
MULTIPLES = (64, 64, 8, 1)  # of which an extent is one, each equally likely
SHORT, GRAPH = 10e-6, 20  # seconds; launches
LISTED = (
    *((192, 4096, 22016), (300, 4096, 4096), (1536, 1536, 1536), (7000, 7000, 7000)),
    *((5120, 5120, 5120), (2048, 11008, 4096), (2560, 2560, 2560), (4000, 4000, 4000)),
    *((237, 58, 1494), (136, 69, 1150), (4258, 924, 22), (693, 6290, 44)),
    *((11136, 448, 1536), (488, 13336, 2656), (2536, 56, 1960)),
)  # shapes at which the default was once far behind


@dataclass(frozen=True)
class Product:
    m: int
    n: int
    k: int
    majors: str  # "nn" or "nt": B dense along n, along k

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}:{self.majors}"

    @classmethod
    def read(cls, text: str) -> Product:
        shape, _, majors = text.partition(":")
        m, n, k = map(int, shape.split("x"))
        return cls(m, n, k, majors or "nn")

    @property
    def aligned(self) -> bool:
        """Whether rows of all three arrays are whole 16 bytes."""
        return all(d % 8 == 0 for d in (self.n, self.k))


def drawn(seed: int, count: int) -> list[Product]:
    """The first products of a seed."""
    source, found = random.Random(seed), []
    for _ in range(count):
        multiple = source.choice(MULTIPLES)
        m, n, k = (_extent(source, multiple) for _ in range(3))
        found.append(Product(m, n, k, source.choice(("nn", "nt"))))
    return found


def _extent(source: random.Random, multiple: int) -> int:
    exact = math.exp(source.uniform(math.log(LEAST), math.log(LARGEST)))
    return max(1, round(exact / multiple)) * multiple


# ---- measuring
def without_tables() -> None:
    """What a user's call would get on a GPU that nobody tuned for."""
    from tkc.kernels.matmul import _product

    _product._path = None


def arrays(product: Product) -> tuple[Any, Any, Any, Any]:
    """A, B in each of its orders, and where results go."""
    import torch

    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (
        torch.randn(*s, device="cuda", dtype=torch.bfloat16, generator=generator)
        for s in ((product.m, product.k), (product.k, product.n))
    )
    out = torch.empty(product.m, product.n, device="cuda", dtype=torch.bfloat16)
    return a, b, b.t().contiguous().t(), out


def prepared(product: Product) -> str | None:
    """Compiles what the planner chooses into the disk cache; what was wrong, or None."""
    try:
        import torch

        from tkc import kernels

        without_tables()
        a, b, turned, out = arrays(product)
        kernels.matmul(a, b if product.majors == "nn" else turned, out=out)
        torch.cuda.synchronize()
    except Exception as error:
        return f"{product}: {type(error).__name__}: {error}".splitlines()[0]
    return None


def measured(product: Product, rounds: int) -> dict[str, Any]:
    """Times of each contestant over the rounds, as a row of the table."""
    import torch

    from tkc import kernels

    a, b, turned, out = arrays(product)
    right = b if product.majors == "nn" else turned
    runs: dict[str, Callable[[], Any]] = {
        "tkc": lambda: kernels.matmul(a, right, out=out),
        "cuBLAS nn": lambda: torch.matmul(a, b, out=out),
        "cuBLAS nt": lambda: torch.matmul(a, turned, out=out),
    }
    want = a.double() @ b.double()
    harness.poison(out)
    error = harness.relative_error(runs["tkc"](), want)
    del want
    if not error < 1e-2:
        raise harness.Wrong(f"{product}: relative error {error:.3g}")
    filler = torch.zeros(harness.FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    times = _rounds(runs, filler, 3, 1)
    short = min(map(statistics.median, times.values())) < SHORT
    if short:
        runs = {name: harness.recorded(run, GRAPH).run for name, run in runs.items()}
    times = _rounds(runs, filler, rounds, GRAPH if short else 1)
    ratios = harness.Quartiles.of(
        [min(nn, nt) / ours for ours, nn, nt in zip(*(times[name] for name in runs), strict=True)]
    )
    return {
        "product": str(product),
        "graph": short,
        **{name: round(statistics.median(t) * 1e6, 2) for name, t in times.items()},
        "ratio": round(ratios.median, 4),
        "low": round(ratios.low, 4),
        "high": round(ratios.high, 4),
        "error": f"{error:.2e}",
    }


def _rounds(
    runs: dict[str, Callable[[], Any]], filler: Any, rounds: int, launches: int
) -> dict[str, list[float]]:
    """Seconds of a launch, one number a round and contestant: the lesser of two turns."""
    import torch

    shuffle, marks = random.Random(0), []
    for round_ in range(rounds):
        order = list(runs) * 2
        shuffle.shuffle(order)
        for name in order:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            filler.zero_()
            begin.record()
            runs[name]()
            end.record()
            marks.append((name, round_, begin, end))
    torch.cuda.synchronize()
    times = {name: [math.inf] * rounds for name in runs}
    for name, round_, begin, end in marks:
        seconds = begin.elapsed_time(end) / 1e3 / launches
        times[name][round_] = min(times[name][round_], seconds)
    return times


# ---- what is said of all
def summary(rows: list[dict[str, Any]]) -> str:
    """Geometric means, the 5th percentile and the worst."""
    ratios = sorted(row["ratio"] for row in rows)
    aligned = [row["ratio"] for row in rows if Product.read(row["product"]).aligned]
    lines = [
        f"{len(ratios)} products: geometric mean {statistics.geometric_mean(ratios):.3f},"
        f" 5th percentile {ratios[len(ratios) // 20]:.3f}, worst {ratios[0]:.3f}"
    ]
    if aligned:
        mean = statistics.geometric_mean(aligned)
        lines.append(f"{len(aligned)} with rows of whole 16 bytes: geometric mean {mean:.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--shapes", help="192x4096x22016:nn,…; `listed`: those of LISTED, both ways"
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", default="drawn.csv")
    parser.add_argument(
        "--seconds", type=float, default=200, help="no further shape begins after so long"
    )
    options = parser.parse_args()
    began = time.monotonic()
    if options.shapes == "listed":
        products = [Product(*shape, majors) for shape in LISTED for majors in ("nn", "nt")]
    elif options.shapes:
        products = [Product.read(text) for text in options.shapes.split(",")]
    else:
        products = drawn(options.seed, options.count)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, len(os.sched_getaffinity(0)) - 1), mp_context=spawn) as pool:
        for why in filter(None, pool.map(prepared, products)):
            print(why, flush=True)
    print(f"{len(products)} compiled in {time.monotonic() - began:.1f} s", flush=True)
    without_tables()
    rows: list[dict[str, Any]] = []
    for product in products:
        if time.monotonic() - began > options.seconds:
            print(f"no time for {product} and what follows", flush=True)
            break
        try:
            rows.append(measured(product, options.rounds))
        except Exception as error:
            print(f"{product}: {type(error).__name__}: {error}".splitlines()[0], flush=True)
    with open(options.out, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    for row in sorted(rows, key=lambda row: row["ratio"]):
        print(
            f"{row['product']:24} {row['tkc']:9.2f} us  cuBLAS {row['cuBLAS nn']:9.2f}"
            f" {row['cuBLAS nt']:9.2f}  {row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        )
    print(summary(rows))


if __name__ == "__main__":
    main()
