"""Layers as users write them, with no schedule in the program: a convolution whose rows are
gathered, a product with a low-rank product added (LoRA), two products of which one feeds the other,
and weights of 4 bits; beside cuDNN, cuBLAS and what the same takes as plain products.

BENCH_ONLY=convolution in the environment picks contests whose names contain one of the words.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import tkc
from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Figure, Runner, Wrong
from benchmarks.plain_kinds import convolution, convolution_by_rows, int4_gathered, int4_joined

BM, BK = 128, 64
CHECKED = 256  # rows that are compared with float64
MAX_ERROR = 1e-2  # relative
COPY = 4.24e12  # bytes a second of a copy on an H200, of which weights of 4 bits are asked 0.75


@tkc.jit
def product(a, b, c, BN: tkc.constexpr):
    """The bare product, by blocks."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def low_rank(x, w, a, b, y, R: tkc.constexpr, BN: tkc.constexpr):
    """x W + (x A) B in one kernel: every program makes its rows of x A."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc, narrow = tkc.zeros((BM, BN)), tkc.zeros((BM, R))
    for k in range(0, x.shape[1], BK):
        rows = tkc.load(x, (m, k), (BM, BK))
        acc = tkc.dot(rows, tkc.load(w, (k, n), (BK, BN)), acc)
        narrow = tkc.dot(rows, tkc.load(a, (k, 0), (BK, R)), narrow)
    acc = tkc.dot(narrow.to(x.dtype), tkc.load(b, (0, n), (R, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


@tkc.jit
def narrow_product(x, a, t, R: tkc.constexpr, ROWS: tkc.constexpr):
    """x A, the first of two launches."""
    m = tkc.program_id(0) * ROWS
    acc = tkc.zeros((ROWS, R))
    for k in range(0, x.shape[1], 128):
        acc = tkc.dot(tkc.load(x, (m, k), (ROWS, 128)), tkc.load(a, (k, 0), (128, R)), acc)
    tkc.store(t, (m, 0), acc.to(t.dtype))


@tkc.jit
def product_and_narrow(x, w, t, b, y, R: tkc.constexpr, BN: tkc.constexpr):
    """x W + t B, the second."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in range(0, x.shape[1], BK):
        acc = tkc.dot(tkc.load(x, (m, k), (BM, BK)), tkc.load(w, (k, n), (BK, BN)), acc)
    acc = tkc.dot(tkc.load(t, (m, 0), (BM, R)), tkc.load(b, (0, n), (R, BN)), acc)
    tkc.store(y, (m, n), acc.to(y.dtype))


@tkc.jit
def chained(x, w, v, y, ROWS: tkc.constexpr, H: tkc.constexpr, BN: tkc.constexpr):
    """(x W) V in one kernel, the middle of all its columns in registers."""
    m = tkc.program_id(0) * ROWS
    middle = tkc.zeros((ROWS, H))
    for k in range(0, x.shape[1], BK):
        middle = tkc.dot(tkc.load(x, (m, k), (ROWS, BK)), tkc.load(w, (k, 0), (BK, H)), middle)
    left = middle.to(x.dtype)
    for n in range(0, v.shape[1], BN):
        tkc.store(y, (m, n), tkc.dot(left, tkc.load(v, (0, n), (H, BN))).to(y.dtype))


Make = Callable[[int], tuple[dict[str, Callable[[], Runner]], tuple[str, ...], float]]


def contests(seed: int) -> Iterator[Contest]:
    only = [word for word in os.environ.get("BENCH_ONLY", "").split(",") if word]
    for name, make in FORMS.items():
        if not only or any(word in name for word in only):
            yield make(seed, name)


def _random(seed: int, dtype: str) -> Callable[..., Any]:
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> Any:
        values = torch.randn(*shape, device="cuda", generator=generator) * scale
        return values.to(getattr(torch, dtype))

    return random


def _checked(launch: Callable[[], Any], error: Callable[[], float]) -> Callable[[], Runner]:
    """A contestant whose launch is compared once, before it is timed."""

    def make() -> Runner:
        launch()
        if not (found := error()) <= MAX_ERROR:
            raise Wrong(f"relative error {found:.3g}")
        return Runner(launch)

    return make


def _contest(
    name: str,
    title: str,
    ours: dict[str, Callable[[], Runner]],
    rivals: dict[str, Callable[[], Any]],
    operations: float,
    figures: tuple[Figure, ...],
) -> Contest:
    made = tuple(Contestant(each, make, "ours", risky=True) for each, make in ours.items())
    others = tuple(
        Contestant(each, lambda run=run: Runner(run), "rival") for each, run in rivals.items()
    )
    return Contest(
        f"plain-{name}",
        f"A plain program: {title}",
        (*made, *others),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=operations / 1e12,
        unit="TFLOP/s",
        figures=figures,
    )


def _convolution(seed: int, name: str) -> Contest:
    """3 x 3 of 32 images of 56 x 56, 256 channels to 256."""
    import torch
    from torch.nn.functional import conv2d

    images, size, channels, blocks = 32, 56, 256, (128, 256, 64)
    random = _random(seed, "float16")
    x, w = random(images, size, size, channels), random(3, 3, channels, channels, scale=0.02)
    y = torch.empty_like(x)
    nchw, kcrs = x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)
    rival = kcrs.contiguous(memory_format=torch.channels_last)
    rows = images * size * size
    grid = (rows // blocks[0], channels // blocks[1])

    def by_rows() -> None:
        flat = x.view(rows, channels), w.view(9 * channels, channels), y.view(rows, channels)
        convolution_by_rows[grid](*flat, size, size, size, size, 3, 3, 1, *blocks)

    def by_pointers() -> None:
        convolution[grid](x, w, y, 3, 3, 1, *blocks)

    def error() -> float:
        wanted = conv2d(nchw[-1:].double(), kcrs.double(), padding=1)
        return harness.relative_error(y[-1:], wanted.permute(0, 2, 3, 1))

    launches = {"by rows": by_rows, "by pointers": by_pointers}
    chosen = {n: _checked(f, error) for n, f in launches.items() if n.split()[-1] in name}
    return _contest(
        name,
        f"{name}, 3 x 3, 32 x 56 x 56 x 256 to 256, float16",
        chosen,
        {"cuDNN": lambda: conv2d(nchw, rival, padding=1)},
        2 * rows * 9 * channels * channels,
        tuple(harness.speed_ratio(each, "cuDNN", 1 / 1.15) for each in chosen),
    )


def _low_rank(rank: int) -> Callable[[int, str], Contest]:
    def make(seed: int, name: str) -> Contest:
        import torch

        m, n, k, bn = 8192, 14336, 4096, 256
        random = _random(seed, "bfloat16")
        x, w = random(m, k), random(k, n, scale=0.02)
        a, b = random(k, rank, scale=0.02), random(rank, n)
        t = torch.empty(m, rank, dtype=x.dtype, device="cuda")
        y, z = torch.empty(m, n, dtype=x.dtype, device="cuda"), x.new_empty(m, n)
        grid = (m // BM, n // bn)

        def one() -> None:
            low_rank[grid](x, w, a, b, y, rank, bn)

        def two() -> None:
            narrow_product[(m // 64,)](x, a, t, rank, 64)
            product_and_narrow[grid](x, w, t, b, y, rank, bn)

        def error() -> float:
            some, (w64, a64, b64) = x[-CHECKED:].double(), (v.double() for v in (w, a, b))
            return harness.relative_error(y[-CHECKED:], some @ w64 + (some @ a64) @ b64)

        bare = {
            "bare": lambda: product[grid](x, w, z, bn),
            "cuBLAS, bare": lambda: torch.matmul(x, w, out=z),
        }
        return _contest(
            name,
            f"x W + (x A) B, 8192 x 14336 x 4096, rank {rank}, bfloat16",
            {"one launch": _checked(one, error), "two launches": _checked(two, error)},
            bare,
            2 * m * n * k,
            (
                harness.speed_ratio("one launch", "bare", 1 / (1.1 if rank <= 16 else 1.3)),
                harness.speed_ratio("two launches", "bare", 1 / 1.04),
            ),
        )

    return make


def _chained(seed: int, name: str) -> Contest:
    import torch

    m, k, h, n, rows = 8192, 512, 128, 512, 64
    random = _random(seed, "float16")
    x, w, v = random(m, k), random(k, h, scale=0.05), random(h, n, scale=0.1)
    t, y, z = x.new_empty(m, h), x.new_empty(m, n), x.new_empty(m, n)

    def one() -> None:
        chained[(m // rows,)](x, w, v, y, rows, h, 128)

    def two() -> None:
        product[(m // BM, 1)](x, w, t, h)
        product[(m // BM, n // 128)](t, v, z, 128)

    def cublas() -> None:
        torch.matmul(torch.matmul(x, w, out=t), v, out=z)

    def error() -> float:
        middle = (x.double() @ w.double()).half().double()
        return harness.relative_error(y, middle @ v.double())

    return _contest(
        name,
        "(x W) V, 8192 x 512 x 128 x 512, float16",
        {"one launch": _checked(one, error)},
        {"two launches": two, "cuBLAS, two": cublas},
        2 * m * h * (k + n),
        (
            harness.speed_ratio("one launch", "two launches", 1 / 0.8),
            harness.speed_ratio("one launch", "cuBLAS, two", 1 / 0.8),
        ),
    )


def _four_bits(rows: int, blocks: tuple[int, int, int]) -> Callable[[int, str], Contest]:
    def make(seed: int, name: str) -> Contest:
        import torch

        m, n, k, group = rows, 28672, 4096, 128
        random = _random(seed, "bfloat16")
        a, scales = random(m, k), random(k // group, n, scale=0.1).abs()
        generator = torch.Generator("cuda").manual_seed(seed)
        q = torch.randint(0, 16, (k, n), dtype=torch.int32, device="cuda", generator=generator)
        pairs = (q[0::2] | (q[1::2] << 4)).to(torch.uint8)
        eights = sum((q[i::8] << (4 * i) for i in range(1, 8)), q[0::8].clone())
        y, z = a.new_empty(m, n), a.new_empty(m, n)
        grid = (tkc.cdiv(m, blocks[0]), n // blocks[1])
        dense = ((q - 8).float() * scales.float().repeat_interleave(group, 0)).to(a.dtype)
        del q

        def joined() -> None:
            int4_joined[grid](a, pairs, scales, y, group, *blocks)

        def gathered() -> None:
            int4_gathered[grid](a, eights, scales, y, group, *blocks)

        def error() -> float:
            return harness.relative_error(y[-CHECKED:], a[-CHECKED:].double() @ dense.double())

        moved = pairs.nbytes + scales.nbytes + a.nbytes + y.nbytes
        ours = {"joined": joined, "gathered": gathered}
        figures = (
            tuple(
                harness.time_at_most(
                    each, 3e-6 + moved / (0.75 * COPY), f"{each}: 3 us and its bytes at 3.18 TB/s"
                )
                for each in ours
            )
            if m < BM
            else tuple(harness.speed_ratio(each, "cuBLAS, bfloat16", 0.9) for each in ours)
        )
        return _contest(
            name,
            f"weights of 4 bits, {m} x {n} x {k}, bfloat16",
            {each: _checked(launch, error) for each, launch in ours.items()},
            {"cuBLAS, bfloat16": lambda: torch.matmul(a, dense, out=z)},
            2 * m * n * k,
            figures,
        )

    return make


FORMS: dict[str, Callable[[int, str], Contest]] = {
    "convolution-by-rows": _convolution,
    "convolution-by-pointers": _convolution,
    "low-rank-16": _low_rank(16),
    "low-rank-64": _low_rank(64),
    "chained": _chained,
    "int4-16": _four_bits(16, (16, 128, 128)),
    "int4-2048": _four_bits(2048, (256, 128, 64)),
}
