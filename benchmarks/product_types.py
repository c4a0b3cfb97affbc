"""Products of other element types than bfloat16 beside cuBLAS: float8 with fast, exact and
block-scaled sums (torch._scaled_mm), int8 (torch._int_mm), tf32, float32, and weights of 8 bits
(beside the bfloat16 product).

    python benchmarks/run.py product_types              every type and shape, by the protocol
    python benchmarks/product_types.py --types "fp8 fast" --shapes 8192x8192x8192 --seconds 40
                                                        a sweep over blocks: medians of short turns,
                                                        no claims
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import harness  # noqa: E402
from benchmarks.harness import Contest, Contestant, Runner  # noqa: E402

ROUNDS = 5
SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 14336, 4096), (64, 8192, 8192))


@dataclass(frozen=True)
class Kind:
    """A product of some types: operands (with a float64 result, less what is too large to keep),
    ours for a block, the rival, and blocks worth trying.
    """

    operands: Callable
    ours: Callable
    rivals: dict[str, Callable]
    blocks: tuple[tuple[tuple[int, int, int], dict], ...]
    reference: Callable
    tolerance: float = 1e-2
    shapes: tuple[tuple[int, int, int], ...] = SHAPES


def _generator(seed: int):
    import torch

    return torch.Generator("cuda").manual_seed(seed)


def _float8(m: int, n: int, k: int, seed: int):
    import torch

    generator = _generator(seed)
    a, b = (
        torch.randn(*s, device="cuda", generator=generator).to(torch.float8_e4m3fn)
        for s in ((m, k), (n, k))
    )
    return (
        a,
        b,
        torch.full((1,), 0.5, device="cuda"),
        torch.full((1,), 0.25, device="cuda"),
        torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
    )


def _ours_float8(exact: bool):
    def make(given, block, options):
        import tkc

        module, (bm, bn, bk), (a, b, sa, sb, c) = harness.example("float8_matmul"), block, given
        return module.matmul.prepare(
            a,
            b,
            sa,
            sb,
            c,
            EXACT=exact,
            BM=bm,
            BN=bn,
            BK=bk,
            **options,
            grid=(tkc.cdiv(c.shape[0], bm), tkc.cdiv(c.shape[1], bn)),
        )

    return make


def _block_scales(given) -> tuple:
    """A scale for 1 x 128 blocks of a, its columns dense as cuBLAS wants them, and for 128 x 128
    blocks of b.
    """
    a, b, sa, sb, _ = given
    return (
        sa.reshape(1, 1).expand(a.shape[1] // 128, a.shape[0]).contiguous().t(),
        sb.reshape(1, 1).expand(b.shape[0] // 128, b.shape[1] // 128).contiguous(),
    )


def _ours_blocks(given, block, options):
    import tkc

    module, (bm, bn, bk), (a, b, *_, c), options = (
        harness.example("float8_matmul"),
        block,
        given,
        dict(options),
    )
    sa, sb = _block_scales(given)
    if options.pop("scales", None) == "row-major":
        sa = sa.contiguous()
    return module.block_scaled_matmul.prepare(
        a,
        b,
        sa,
        sb,
        c,
        BM=bm,
        BN=bn,
        BK=bk,
        **options,
        grid=(tkc.cdiv(c.shape[0], bm), tkc.cdiv(c.shape[1], bn)),
    )


def _scaled_blocks(given):
    import torch

    (a, b, *_, c), (sa, sb) = given, _block_scales(given)
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=sa, scale_b=sb.t(), out_dtype=torch.bfloat16, out=c
    )


def _scaled(fast: bool):
    def make(given):
        import torch

        a, b, sa, sb, c = given
        return lambda: torch._scaled_mm(
            a, b.t(), scale_a=sa, scale_b=sb, out_dtype=torch.bfloat16, use_fast_accum=fast, out=c
        )

    return make


@cache
def _kernels():
    """The plain product, for the types that no example has."""
    import tkc

    @tkc.jit
    def product(
        a, b, c, KIND: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr
    ):
        m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
        acc = tkc.zeros((BM, BN), tkc.int32 if KIND == "int8" else tkc.float32)
        for k in tkc.range(0, a.shape[1], BK):
            y = (
                tkc.load(b, (k, n), (BK, BN))
                if KIND == "row-major"
                else tkc.load(b, (n, k), (BN, BK)).T
            )
            acc = tkc.dot(
                tkc.load(a, (m, k), (BM, BK)),
                y,
                acc,
                precision="tf32" if KIND == "tf32" else "ieee",
            )
        tkc.store(c, (m, n), acc.to(c.dtype))

    return product


def _two(dtype, out: str, scale: float = 1.0):
    def make(m: int, n: int, k: int, seed: int):
        import torch

        generator = _generator(seed)
        values = [
            torch.randn(*s, device="cuda", generator=generator) * scale for s in ((m, k), (n, k))
        ]
        return *(
            (
                x.round().clamp(-127, 127).to(getattr(torch, dtype))
                if dtype == "int8"
                else x.to(getattr(torch, dtype))
            )
            for x in values
        ), torch.empty(m, n, device="cuda", dtype=getattr(torch, out))

    return make


def _ours_two(kind: str):
    def make(given, block, options):
        import tkc

        a, b, c = given
        return _kernels().prepare(
            a,
            b,
            c,
            KIND=kind,
            BM=block[0],
            BN=block[1],
            BK=block[2],
            **options,
            grid=(tkc.cdiv(c.shape[0], block[0]), tkc.cdiv(c.shape[1], block[1])),
        )

    return make


def _torch_mm(allow_tf32: bool):
    def make(given):
        import torch

        a, b, c = given

        def run():
            torch.backends.cuda.matmul.allow_tf32 = allow_tf32
            torch.matmul(a, b.t(), out=c)

        return run

    return make


def _int_mm(given):
    import torch

    a, b, c = given
    return lambda: torch._int_mm(a, b.t(), out=c)


def _reference_two(given):
    return given[0].double() @ given[1].double().t()


def _weights(m: int, n: int, k: int, seed: int):
    import torch

    generator = _generator(seed)
    x, w = (torch.randn(*s, device="cuda", generator=generator) for s in ((m, k), (n, k)))
    return (
        x.bfloat16(),
        (w * 40).round().clamp(-127, 127).to(torch.int8),
        torch.full((n,), 0.025, device="cuda"),
        torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
    )


def _ours_weights(given, block, options):
    import tkc

    x, w, scale, y = given
    return harness.example("quantized_linear").linear.prepare(
        x,
        w,
        scale,
        y,
        BM=block[0],
        BN=block[1],
        BK=block[2],
        **options,
        grid=(tkc.cdiv(y.shape[0], block[0]), tkc.cdiv(y.shape[1], block[1])),
    )


def _bfloat16(given):
    import torch

    x, w, scale, y = given
    whole = (w.float() * scale[:, None]).bfloat16()
    return lambda: torch.matmul(x, whole.t(), out=y)


def _row_major(m: int, n: int, k: int, seed: int):
    import torch

    generator = _generator(seed)
    return *(
        torch.randn(*s, device="cuda", generator=generator).to(torch.float8_e4m3fn)
        for s in ((m, k), (k, n))
    ), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def _ours_row_major(given, block, options):
    """In a kernel's own blocks, whose layout changes as they come; without a block the library's
    call, which may copy b first.
    """
    import tkc

    a, b, c = given
    from tkc import kernels

    if not block:
        return lambda: kernels.matmul(a, b, out=c)
    return _kernels().prepare(
        a,
        b,
        c,
        KIND="row-major",
        BM=block[0],
        BN=block[1],
        BK=block[2],
        **options,
        grid=(tkc.cdiv(c.shape[0], block[0]), tkc.cdiv(c.shape[1], block[1])),
    )


def _transposed_first(given):
    import torch

    a, b, c = given
    one = torch.ones(1, device="cuda")
    return lambda: torch._scaled_mm(
        a,
        b.t().contiguous().t(),
        scale_a=one,
        scale_b=one,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
        out=c,
    )


def _reference_float8(given):
    a, b, sa, sb, _ = given
    return a.double() @ b.double().t() * (sa.double() * sb.double())


WIDE = ((128, 256, 128), (128, 128, 128), (256, 128, 128), (128, 192, 128), (64, 256, 128))
PARTIAL = ((128, 256, 128), (256, 128, 128), (128, 192, 128), (128, 128, 128))


def each(blocks, *options):
    return tuple(itertools.product(blocks, options))


LARGE = SHAPES[:3]
FREE, ALONE = {}, {"cluster": (1, 1)}
THIN = (
    *each(((64, 64, 128), (64, 128, 128), (64, 64, 256), (64, 32, 256)), FREE),
    *each(
        ((64, 64, 128), (64, 128, 128)),
        {"split_k": 2},
        {"split_k": 2, "roles": "pingpong"},
        {"split_k": 4, "roles": "pingpong"},
        {"stream_k": 4},
    ),
)
KINDS = {
    "fp8 fast": Kind(
        _float8,
        _ours_float8(False),
        {"cuBLAS fast": _scaled(True)},
        each(WIDE, FREE, ALONE),
        _reference_float8,
        shapes=LARGE,
    ),
    "fp8 thin": Kind(
        _float8,
        _ours_float8(False),
        {"cuBLAS fast": _scaled(True)},
        THIN,
        _reference_float8,
        shapes=(),
    ),
    "fp8 exact": Kind(
        _float8,
        _ours_float8(True),
        {"cuBLAS exact": _scaled(False)},
        each(PARTIAL, FREE, ALONE),
        _reference_float8,
        shapes=LARGE,
    ),
    "fp8 blocks": Kind(
        _float8,
        _ours_blocks,
        {"cuBLAS blocks": _scaled_blocks},
        ((PARTIAL[1], FREE), (PARTIAL[1], {"scales": "row-major", "cluster": (2, 1)}))
        + each(PARTIAL[1::2], ALONE)
        + (
            (PARTIAL[3], FREE),
            (PARTIAL[3], {"sum_parts": 1}),
            ((192, 128, 128), {"num_warps": 12, "sum_parts": 1}),
            ((192, 128, 128), {"num_warps": 12}),
        ),
        _reference_float8,
        shapes=LARGE,
    ),
    "fp8 row-major": Kind(
        _row_major,
        _ours_row_major,
        {"transpose, cuBLAS fast": _transposed_first},
        each(((), (256, 128, 128), (256, 128, 64), (128, 128, 128), (128, 256, 64)), FREE),
        lambda g: g[0].double() @ g[1].double(),
        shapes=LARGE[:1],
    ),
    "int8": Kind(
        _two("int8", "int32", 30),
        _ours_two("int8"),
        {"torch._int_mm": _int_mm},
        each(WIDE[:4], FREE),
        _reference_two,
        0.0,
        LARGE[:1],
    ),
    "tf32": Kind(
        _two("float32", "float32"),
        _ours_two("tf32"),
        {"cuBLAS tf32": _torch_mm(True)},
        each(((128, 256, 32), (128, 128, 32), (128, 192, 32)), FREE),
        _reference_two,
        1e-3,
        LARGE[:1],
    ),
    "fp32": Kind(
        _two("float32", "float32"),
        _ours_two("fp32"),
        {"cuBLAS fp32": _torch_mm(False)},
        each(((128, 128, 16), (128, 128, 32), (128, 64, 32)), FREE, {"num_warps": 8}),
        _reference_two,
        1e-5,
        (),
    ),
    "int8 weights": Kind(
        _weights,
        _ours_weights,
        {"cuBLAS bf16": _bfloat16},
        each(
            ((64, 64, 128), (256, 128, 64), (128, 128, 64), (64, 128, 128), (128, 128, 128)),
            ALONE,
            FREE,
        ),
        lambda g: g[0].double() @ g[1].double().t() * g[2],
        1e-2,
        SHAPES[3:],
    ),
}
CHOSEN = 2  # how many of the blocks the protocol races


def text(shape) -> str:
    return "x".join(map(str, shape))


def label(block, options) -> str:
    return " ".join(filter(None, ["tkc", text(block), *(f"{k}={v}" for k, v in options.items())]))


def contests(seed: int) -> Iterator[Contest]:
    for name in KINDS:
        for shape in KINDS[name].shapes:
            yield contest(seed, name, shape)


def contest(seed: int, name: str = "fp8 fast", shape: tuple[int, int, int] = SHAPES[0]) -> Contest:
    kind, (m, n, k) = KINDS[name], shape
    given = kind.operands(m, n, k, seed)

    def ours(block, options) -> Runner:
        launch = kind.ours(given, block, options)
        return Runner(lambda: (launch(), given[-1])[1], given[-1])

    def rival(make) -> Runner:
        run = make(given)
        return Runner(lambda: (run(), given[-1])[1], given[-1])

    return Contest(
        f"{name.replace(' ', '-')}-{text(shape)}",
        f"Product {text(shape)}, {name}",
        (
            *(Contestant(label(*b), lambda b=b: ours(*b), "ours") for b in kind.blocks[:CHOSEN]),
            *(
                Contestant(rival_name, lambda make=make: rival(make))
                for rival_name, make in kind.rivals.items()
            ),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        lambda: kind.reference(given),
        kind.tolerance,
        amount=2 * m * n * k / 1e12,
        unit="TFLOP/s",
        figures=tuple(
            harness.speed_ratio(label(*b), rival_name, 1.0)
            for b in kind.blocks[:1]
            for rival_name in kind.rivals
        ),
        worst_error=1.1,
    )


# ---- the sweep -----------------------------------------------------------------------------------
def sweep(names: list[str], shapes: list[tuple[int, int, int]], seconds: float) -> None:
    """Every block of every kind, right first, then a few shuffled rounds of short turns: what to
    race.
    """
    end = monotonic() + seconds
    for shape, name in itertools.product(shapes, names):
        kind, (m, n, k) = KINDS[name], shape
        given = kind.operands(m, n, k, 0)
        reference = kind.reference(given) if m * n * k <= 4096**3 else None
        runs: dict[str, Callable] = {}
        for rival_name, make in kind.rivals.items():
            runs[rival_name] = make(given)
        for block, options in kind.blocks:
            if monotonic() > end:
                break
            try:
                run = kind.ours(given, block, options)
                given[-1].fill_(77)
                run()
                if (
                    reference is not None
                    and (error := harness.relative_error(given[-1], reference)) > kind.tolerance
                ):
                    print(
                        f"{name} {text(shape)} {label(block, options)}: error {error:.3g}",
                        flush=True,
                    )
                    continue
                runs[label(block, options)] = run
            except Exception as e:
                print(
                    f"{name} {text(shape)} {label(block, options)}: {type(e).__name__}"
                    f" {str(e).splitlines()[0][:200]}",
                    flush=True,
                )
        rounds, shuffle = [], random.Random(0)
        while len(rounds) < ROUNDS and monotonic() < end:
            order = shuffle.sample(list(runs), len(runs))
            rounds.append({run: harness.gpu_timer(runs[run], 5, 20) for run in order})
        for run in runs if rounds else ():
            seconds = statistics.median(times[run] for times in rounds)
            ratio = statistics.median(
                min(times[r] for r in kind.rivals) / times[run] for times in rounds
            )
            print(
                f"{name:10} {text(shape):18} {run:45} {2 * m * n * k / seconds / 1e12:8.1f} TFLOP/s"
                f"  {seconds * 1e6:8.1f} us  {ratio:6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", default=",".join(KINDS), help="names of kinds, by commas")
    parser.add_argument("--shapes", default=",".join(map(text, SHAPES)))
    parser.add_argument("--seconds", type=float, default=60)
    asked = parser.parse_args()
    sweep(
        asked.types.split(","),
        [tuple(map(int, s.split("x"))) for s in asked.shapes.split(",")],
        asked.seconds,
    )
