"""Products of other element types than bfloat16 beside cuBLAS: float8 with fast and exact sums, by torch._scaled_mm.

    python benchmarks/run.py product_types              every type and shape, by the protocol
    python benchmarks/product_types.py --types "fp8 fast" --shapes 8192x8192x8192 --seconds 40        a sweep over blocks: medians of short turns, no claims
"""
from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

if __name__ == "__main__": sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import harness  # noqa: E402
from benchmarks.harness import Contest, Contestant, Runner  # noqa: E402

ROUNDS = 5
SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 14336, 4096), (64, 8192, 8192))


@dataclass(frozen=True)
class Kind:
    """A product of some types: operands (with a float64 result, less what is too large to keep), ours for a block, the rival, and blocks worth trying."""
    operands: Callable
    ours: Callable
    rivals: dict[str, Callable]
    blocks: tuple[tuple[tuple[int, int, int], dict], ...]
    reference: Callable
    tolerance: float = 1e-2


def _generator(seed: int):
    import torch
    return torch.Generator("cuda").manual_seed(seed)


def _float8(m: int, n: int, k: int, seed: int):
    import torch
    generator = _generator(seed)
    a, b = (torch.randn(*s, device="cuda", generator=generator).to(torch.float8_e4m3fn) for s in ((m, k), (n, k)))
    return a, b, torch.full((1,), 0.5, device="cuda"), torch.full((1,), 0.25, device="cuda"), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def _ours_float8(exact: bool):
    def make(given, block, options):
        import tkc
        module, (bm, bn, bk), (a, b, sa, sb, c) = harness.example("float8_matmul"), block, given
        return module.matmul.prepare(a, b, sa, sb, c, EXACT=exact, BM=bm, BN=bn, BK=bk, **options, grid=(tkc.cdiv(c.shape[0], bm), tkc.cdiv(c.shape[1], bn)))
    return make


def _ours_blocks(given, block, options):
    import torch

    import tkc
    module, (bm, bn, bk), (a, b, sa, sb, c) = harness.example("float8_matmul"), block, given
    sa, sb = (sa.reshape(1, 1).expand(a.shape[0], a.shape[1] // 128).contiguous(), sb.reshape(1, 1).expand(b.shape[0] // 128, b.shape[1] // 128).contiguous())
    return module.block_scaled_matmul.prepare(a, b, sa, sb, c, BM=bm, BN=bn, BK=bk, **options, grid=(tkc.cdiv(c.shape[0], bm), tkc.cdiv(c.shape[1], bn)))


def _scaled(fast: bool):
    def make(given):
        import torch
        a, b, sa, sb, c = given
        return lambda: torch._scaled_mm(a, b.t(), scale_a=sa, scale_b=sb, out_dtype=torch.bfloat16, use_fast_accum=fast, out=c)
    return make


def _reference_float8(given):
    a, b, sa, sb, _ = given
    return a.double() @ b.double().t() * (sa.double() * sb.double())


WIDE = ((128, 256, 128), (256, 128, 128), (128, 192, 128), (128, 128, 128), (64, 256, 128))
PARTIAL = ((128, 256, 128), (256, 128, 128), (128, 192, 128), (128, 128, 128))
each = lambda blocks, *options: tuple(itertools.product(blocks, options))
FREE, ALONE = {}, {"cluster": (1, 1)}
KINDS = {
    "fp8 fast": Kind(_float8, _ours_float8(False), {"cuBLAS fast": _scaled(True)}, each(WIDE, FREE, ALONE), _reference_float8),
    "fp8 exact": Kind(_float8, _ours_float8(True), {"cuBLAS exact": _scaled(False)}, each(PARTIAL, FREE, ALONE), _reference_float8),
    "fp8 blocks": Kind(_float8, _ours_blocks, {"cuBLAS exact": _scaled(False)}, each(PARTIAL[1::2], FREE, ALONE), _reference_float8),
}
CHOSEN = {"fp8 fast": 1, "fp8 exact": 1, "fp8 blocks": 1}          # how many of the blocks the protocol races


def text(shape) -> str: return "x".join(map(str, shape))
def label(block, options) -> str: return " ".join(["tkc", text(block), *(f"{k}={v}" for k, v in options.items())])


def contests(seed: int) -> Iterator[Contest]:
    for name in KINDS:
        for shape in SHAPES: yield contest(seed, name, shape)


def contest(seed: int, name: str = "fp8 fast", shape: tuple[int, int, int] = SHAPES[0]) -> Contest:
    kind, (m, n, k) = KINDS[name], shape
    given = kind.operands(m, n, k, seed)

    def ours(block, options) -> Runner:
        launch = kind.ours(given, block, options)
        return Runner(lambda: (launch(), given[-1])[1], given[-1])

    def rival(make) -> Runner:
        run = make(given)
        return Runner(lambda: (run(), given[-1])[1], given[-1])
    return Contest(f"{name.replace(' ', '-')}-{text(shape)}", f"Product {text(shape)}, {name}", (
        *(Contestant(label(*b), lambda b=b: ours(*b), "ours", risky=True) for b in kind.blocks[:CHOSEN[name]]),
        *(Contestant(rival_name, lambda make=make: rival(make)) for rival_name, make in kind.rivals.items()),
    ), harness.gpu_timer, harness.GPU_TIMING, lambda: kind.reference(given), kind.tolerance, amount=2 * m * n * k / 1e12, unit="TFLOP/s")


# ---- the sweep --------------------------------------------------------------------------------------------------------------
def sweep(names: list[str], shapes: list[tuple[int, int, int]], seconds: float) -> None:
    """Every block of every kind, right first, then a few shuffled rounds of short turns: what to race."""
    end = monotonic() + seconds
    for shape, name in itertools.product(shapes, names):
        kind, (m, n, k) = KINDS[name], shape
        given = kind.operands(m, n, k, 0)
        reference = kind.reference(given) if m * n * k <= 4096 ** 3 else None
        runs: dict[str, Callable] = {}
        for rival_name, make in kind.rivals.items(): runs[rival_name] = make(given)
        for block, options in kind.blocks:
            if monotonic() > end: break
            try:
                run = kind.ours(given, block, options)
                given[-1].fill_(77)
                run()
                if reference is not None and (error := harness.relative_error(given[-1], reference)) > kind.tolerance: print(f"{name} {text(shape)} {label(block, options)}: error {error:.3g}", flush=True); continue
                runs[label(block, options)] = run
            except Exception as e: print(f"{name} {text(shape)} {label(block, options)}: {type(e).__name__} {str(e).splitlines()[0][:200]}", flush=True)
        rounds, shuffle = [], random.Random(0)
        while len(rounds) < ROUNDS and monotonic() < end:
            order = shuffle.sample(list(runs), len(runs))
            rounds.append({run: harness.gpu_timer(runs[run], 5, 20) for run in order})
        for run in runs if rounds else ():
            seconds = statistics.median(times[run] for times in rounds)
            ratio = statistics.median(min(times[r] for r in kind.rivals) / times[run] for times in rounds)
            print(f"{name:10} {text(shape):18} {run:45} {2 * m * n * k / seconds / 1e12:8.1f} TFLOP/s  {seconds * 1e6:8.1f} us  {ratio:6.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default=",".join(KINDS), help="names of kinds, by commas")
    parser.add_argument("--shapes", default=",".join(map(text, SHAPES)))
    parser.add_argument("--seconds", type=float, default=60)
    asked = parser.parse_args()
    sweep(asked.types.split(","), [tuple(map(int, s.split("x"))) for s in asked.shapes.split(",")], asked.seconds)
