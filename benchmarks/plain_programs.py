"""Products as users write them, with no schedule in the program: by pointers and masks in the form
of Triton's tutorial, and split-K, stream-K and a counter of tiles by atomics; beside cuBLAS.

Sums that several programs add to are float32 and of small whole numbers, so that every order gives
the same bits. What they are added to is zeroed before it is compared; the zeroing is not timed.
BENCH_ONLY=pointers-4096 in the environment picks contests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import tkc
from benchmarks import harness
from benchmarks.harness import Contest, Contestant, Runner, Wrong

BM, BK = 128, 64
BLOCKS = 132  # of the stream-K and counter forms: one for each multiprocessor of an H100 or H200


@tkc.jit
def by_pointers(
    a, b, c, M, N, K, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr, GROUP: tkc.constexpr
):
    """The product of Triton's tutorial: programs in groups, pointers that the loop moves."""
    pid = tkc.program_id(0)
    rows, columns = tkc.cdiv(M, BM), tkc.cdiv(N, BN)
    first = pid // (GROUP * columns) * GROUP
    size = tkc.minimum(rows - first, GROUP)
    m, n = first + pid % (GROUP * columns) % size, pid % (GROUP * columns) // size
    rm, rn, rk = m * BM + tkc.arange(BM), n * BN + tkc.arange(BN), tkc.arange(BK)
    ap = a.ptr + rm[:, None] * a.strides[0] + rk[None, :] * a.strides[1]
    bp = b.ptr + rk[:, None] * b.strides[0] + rn[None, :] * b.strides[1]
    acc = tkc.zeros((BM, BN))
    for k in range(tkc.cdiv(K, BK)):
        left = K - k * BK
        x = tkc.load(ap, mask=(rm[:, None] < M) & (rk[None, :] < left))
        y = tkc.load(bp, mask=(rk[:, None] < left) & (rn[None, :] < N))
        acc = tkc.dot(x, y, acc)
        ap += BK * a.strides[1]
        bp += BK * b.strides[0]
    cp = c.ptr + rm[:, None] * c.strides[0] + rn[None, :] * c.strides[1]
    tkc.store(cp, acc.to(c.dtype), mask=(rm[:, None] < M) & (rn[None, :] < N))


@tkc.jit
def wrapped(a, b, c, M, N, K, BN: tkc.constexpr, GROUP: tkc.constexpr):
    """The same with rows and columns modulo the extents, as the tutorial itself has them."""
    pid = tkc.program_id(0)
    rows, columns = tkc.cdiv(M, BM), tkc.cdiv(N, BN)
    first = pid // (GROUP * columns) * GROUP
    size = tkc.minimum(rows - first, GROUP)
    m, n = first + pid % (GROUP * columns) % size, pid % (GROUP * columns) // size
    rm, rn = (m * BM + tkc.arange(BM)) % M, (n * BN + tkc.arange(BN)) % N
    rk = tkc.arange(BK)
    ap = a.ptr + (rm[:, None] * a.strides[0] + rk[None, :] * a.strides[1])
    bp = b.ptr + (rk[:, None] * b.strides[0] + rn[None, :] * b.strides[1])
    acc = tkc.zeros((BM, BN))
    for k in range(tkc.cdiv(K, BK)):
        x = tkc.load(ap, mask=rk[None, :] < K - k * BK, other=0.0)
        y = tkc.load(bp, mask=rk[:, None] < K - k * BK, other=0.0)
        acc = tkc.dot(x, y, acc)
        ap += BK * a.strides[1]
        bp += BK * b.strides[0]
    cm, cn = m * BM + tkc.arange(BM), n * BN + tkc.arange(BN)
    cp = c.ptr + c.strides[0] * cm[:, None] + c.strides[1] * cn[None, :]
    tkc.store(cp, acc.to(c.dtype), mask=(cm[:, None] < M) & (cn[None, :] < N))


@tkc.jit
def split_k(a, b, c, SPLIT: tkc.constexpr, BN: tkc.constexpr):
    """Programs of one output tile take every so many-th step each, and add what they have."""
    m, n, z = tkc.program_id(0) * BM, tkc.program_id(1) * BN, tkc.program_id(2)
    acc = tkc.zeros((BM, BN))
    for k in range(z * BK, a.shape[1], BK * SPLIT):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.atomic_add(c, (m, n), acc)


@tkc.jit
def stream_k(a, b, c, total, per, BN: tkc.constexpr):
    """Programs take a stretch each of all steps of all output tiles."""
    steps, columns = tkc.cdiv(a.shape[1], BK), tkc.cdiv(b.shape[1], BN)
    at = tkc.program_id(0) * per
    stop = tkc.minimum(at + per, total)
    while at < stop:
        tile, first = at // steps, at % steps
        last = tkc.minimum(steps, first + stop - at)
        m, n = tile // columns * BM, tile % columns * BN
        acc = tkc.zeros((BM, BN))
        for k in range(first, last):
            x = tkc.load(a, (m, k * BK), (BM, BK))
            acc = tkc.dot(x, tkc.load(b, (k * BK, n), (BK, BN)), acc)
        if first == 0 and last == steps:
            tkc.store(c, (m, n), acc)
        else:
            tkc.atomic_add(c, (m, n), acc)
        at = at + (last - first)


@tkc.jit
def by_counter(a, b, c, counter, tiles, BN: tkc.constexpr):
    """Programs take output tiles from a counter."""
    columns = tkc.cdiv(b.shape[1], BN)
    t = tkc.atomic_add(counter.ptr, 1)
    while t < tiles:
        m, n = t // columns * BM, t % columns * BN
        acc = tkc.zeros((BM, BN))
        for k in range(0, a.shape[1], BK):
            acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
        tkc.store(c, (m, n), acc.to(c.dtype))
        t = tkc.atomic_add(counter.ptr, 1)


def contests(seed: int) -> Iterator[Contest]:
    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name, shape, launch in FORMS:
        if not only or name in only:
            yield contest(seed, name, shape, launch)


Launch = Callable[[Any, Any, Any], None]  # of a, b and the result


def pointers(a, b, c) -> None:
    (m, k), n = a.shape, b.shape[1]
    grid = tkc.cdiv(m, BM) * tkc.cdiv(n, 256)
    by_pointers[(grid,)](a, b, c, m, n, k, BM, 256, BK, 8)


def tutorial(a, b, c) -> None:
    (m, k), n = a.shape, b.shape[1]
    grid = tkc.cdiv(m, BM) * tkc.cdiv(n, 256)
    wrapped[(grid,)](a, b, c, m, n, k, 256, 8)


def split(a, b, c) -> None:
    grid = (tkc.cdiv(a.shape[0], BM), tkc.cdiv(b.shape[1], 128), 8)
    split_k[grid](a, b, c, 8, 128)


def stream(a, b, c) -> None:
    steps = tkc.cdiv(a.shape[0], BM) * tkc.cdiv(b.shape[1], 128) * tkc.cdiv(a.shape[1], BK)
    stream_k[(BLOCKS,)](a, b, c, steps, tkc.cdiv(steps, BLOCKS), 128)


def stream_in_phase(a, b, c) -> None:
    """Each program has a whole part of a tile's steps: those of a row or column of tiles are at the
    same k, and read the same operands at the same time.
    """
    tiles = tkc.cdiv(a.shape[0], BM) * tkc.cdiv(b.shape[1], 256)
    steps, parts = tkc.cdiv(a.shape[1], BK), max(1, BLOCKS // tiles)
    stream_k[(tiles * parts,)](a, b, c, tiles * steps, tkc.cdiv(steps, parts), 256)


def counter(columns: int) -> Launch:
    """The counter is set back by torch: its kernel is counted."""
    import torch

    number = torch.zeros(1, dtype=torch.int32, device="cuda")

    def launch(a, b, c) -> None:
        tiles = tkc.cdiv(a.shape[0], BM) * tkc.cdiv(b.shape[1], columns)
        number.zero_()
        by_counter[(BLOCKS,)](a, b, c, number, tiles, columns)

    return launch


FORMS = (
    ("pointers-4096", (4096, 4096, 4096), lambda: (pointers, "float16")),
    ("pointers-8192", (8192, 8192, 8192), lambda: (pointers, "float16")),
    ("pointers-4000", (4000, 4000, 4000), lambda: (pointers, "float16")),
    ("tutorial-4096", (4096, 4096, 4096), lambda: (tutorial, "float16")),
    ("tutorial-4000", (4000, 4000, 4000), lambda: (tutorial, "float16")),
    ("split-k", (1024, 1024, 16384), lambda: (split, "float32")),
    ("stream-k", (1024, 1024, 16384), lambda: (stream, "float32")),
    ("stream-k-in-phase", (1024, 1024, 16384), lambda: (stream_in_phase, "float32")),
    ("counter-1024", (1024, 1024, 16384), lambda: (counter(128), "float16")),
    ("counter-4096", (4096, 4096, 4096), lambda: (counter(256), "float16")),
)


def contest(seed: int, name: str, shape: tuple[int, int, int], form: Callable) -> Contest:
    import torch

    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(seed)
    a, b = (
        torch.randint(-2, 3, s, device="cuda", generator=generator).to(torch.float16)
        for s in ((m, k), (k, n))
    )
    transposed = b.t().contiguous()
    half = torch.empty(m, n, device="cuda", dtype=torch.float16)

    def ours() -> Runner:
        launch, dtype = form()
        out = torch.zeros(m, n, device="cuda", dtype=getattr(torch, dtype))
        launch(a, b, out)
        reference = a.double() @ b.double()
        if (error := harness.relative_error(out, reference)) > 1e-3:
            raise Wrong(f"relative error {error:.3g}")
        return Runner(lambda: launch(a, b, out))

    return Contest(
        f"plain-{name}",
        f"A plain program: {name}, {'x'.join(map(str, shape))} float16",
        (
            Contestant("tkc", ours, "ours", risky=True),
            Contestant("cuBLAS nn", lambda: Runner(lambda: torch.matmul(a, b, out=half))),
            Contestant(
                "cuBLAS nt", lambda: Runner(lambda: torch.matmul(a, transposed.t(), out=half))
            ),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=2 * m * n * k / 1e12,
        unit="TFLOP/s",
        figures=tuple(
            harness.speed_ratio("tkc", rival, 1 / 1.05) for rival in ("cuBLAS nn", "cuBLAS nt")
        ),
    )
