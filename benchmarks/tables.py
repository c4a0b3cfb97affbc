"""Makes the table of choices that tkc.kernels.matmul is shipped with: every shape tuned on the GPU
at hand, the choice and its time written down.

    python benchmarks/tables.py --out tkc/kernels/tables/h200.json --seconds 120
    python benchmarks/tables.py --shapes 4096x4096x4096,64x8192x8192 --orders nn,nt --budget 3

Shapes that a table has are kept unless --again is given; it is written after each shape, so that a
run that ends early leaves what it found.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks.product import SHAPES  # noqa: E402

ROWS, WEIGHTS = (
    (16, 64, 128, 256, 512, 1024, 2048, 4096),
    (
        (4096, 4096),
        (14336, 4096),
        (4096, 14336),
        (8192, 8192),
    ),
)


def shapes() -> list[tuple[int, int, int]]:
    """RIVALS' shapes, then rows of activations times weights of common models."""
    return list(dict.fromkeys([*SHAPES, *((m, n, k) for n, k in WEIGHTS for m in ROWS)]))


def operands(shape: tuple[int, int, int], order: str, dtype):
    import torch

    m, n, k = shape

    def made(rows, columns, turned):
        return (
            torch.randn(columns, rows, device="cuda", dtype=dtype).t()
            if turned
            else torch.randn(rows, columns, device="cuda", dtype=dtype)
        )

    return (
        made(m, k, order[0] == "t"),
        made(k, n, order[1] == "t"),
        torch.empty(m, n, device="cuda", dtype=dtype),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default=str(ROOT / "tkc" / "kernels" / "tables" / "h200.json"))
    parser.add_argument("--shapes", default=",".join("x".join(map(str, s)) for s in shapes()))
    parser.add_argument("--orders", default="nn,nt")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of measuring a shape")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="no further shape begins after so long"
    )
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    import torch

    from tkc.kernels.matmul import _grid, _key, _product

    os.environ["TKC_AUTOTUNE"], _product.budget, began = "1", options.budget, time.monotonic()
    if not Path(options.out).exists() or options.again:
        _product._path = None  # not the table it comes with
    for order in options.orders.split(","):
        for shape in (tuple(map(int, s.split("x"))) for s in options.shapes.split(",")):
            if time.monotonic() - began > options.seconds:
                print(f"no time for {shape}")
                continue
            a, b, out = operands(shape, order, getattr(torch, options.dtype))
            choice = _product.choose(a, b, None, out, ACTIVATION=None, grid=_grid, measure=True)
            _product.export_table(options.out)
            rate = 2e-12 * shape[0] * shape[1] * shape[2] / choice.seconds
            print(
                f"{_key({'a': a, 'b': b, 'c': out}):36} {rate:6.1f} TFLOP/s  {choice.source:8}"
                f" {choice.config}  | {'; '.join(choice.others[:3])}",
                flush=True,
            )
            del a, b, out
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
