"""What products promise beside their races at thirteen shapes (product.py) and twenty
(product_odd.py): what an epilogue costs, that the speed lasts, that thin products read at the
memory's rate, the fastest and the exact sums of float8, and the time from a kernel's trace to
machine code.

    python benchmarks/run.py product_figures                        all of it
    BENCH_ONLY=sustained,thin benchmarks/run.py product_figures     by the beginning of its name
"""

from __future__ import annotations

import os

from benchmarks import harness, product_types
from benchmarks.harness import Contest, Contestant, Figure, Runner

# name in tkc.kernels, in torch, and what it may cost over the bare product
EPILOGUES = (
    ("gelu_tanh", "tanh", 1.02),
    ("gelu", "none", 1.04),
)
THIN = (64, 8192, 8192), (16, 14336, 4096)
LAUNCHES = 400


def contests(seed: int):
    only = tuple(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name, make in (
        *((f"epilogue-{e[0]}", lambda e=e: epilogue(seed, *e)) for e in EPILOGUES),
        ("sustained", lambda: sustained(seed)),
        *((f"thin-{_text(s)}", lambda s=s: thin(seed, s)) for s in THIN),
        *(
            (name.replace(" ", "-"), lambda name=name: product_types.contest(seed, name))
            for name in ("fp8 fast", "fp8 exact")
        ),
        ("assembly", lambda: assembly(seed)),
    ):
        if not only or name.startswith(only):
            yield make()


def _text(shape) -> str:
    return "x".join(map(str, shape))


def _normal(seed: int, *shapes):
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    return [
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)
        for shape in shapes
    ]


def _libraries(a, b, out) -> tuple[Contestant, ...]:
    """cuBLAS with either order of b."""
    import torch

    turned = b.t().contiguous()
    return Contestant(
        "cuBLAS nn", lambda: Runner(lambda: torch.matmul(a, b, out=out), out)
    ), Contestant("cuBLAS nt", lambda: Runner(lambda: torch.matmul(a, turned.t(), out=out), out))


def at_most(name: str, of: tuple[str, ...], bound: float, text: str) -> Figure:
    """A time at most so many times the least of others'."""
    return Figure(
        text, (name, *of), lambda t: t[name] / min(t[x] for x in of), bound, at_least=False
    )


def epilogue(
    seed: int, ours: str, approximate: str, bound: float, shape=(8192, 14336, 4096)
) -> Contest:
    import torch

    from tkc import kernels

    m, n, k = shape
    a, b, bias = _normal(seed, (m, k), (k, n), (n,))
    out, other = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    gelu = torch.nn.functional.gelu

    def reference():
        return torch.cat(
            [
                gelu(part.double() @ b.double() + bias.double(), approximate=approximate)
                for part in a.split(1024)
            ]
        )

    return Contest(
        f"epilogue-{ours}-{_text(shape)}",
        f"Product {_text(shape)} bfloat16, bias and GELU ({approximate})",
        (
            Contestant(
                "tkc",
                lambda: Runner(lambda: kernels.matmul(a, b, bias, ours, out=out), out),
                "ours",
            ),
            Contestant(
                "tkc, bare", lambda: Runner(lambda: kernels.matmul(a, b, out=other), other), "bound"
            ),
            Contestant(
                "torch",
                lambda: Runner(lambda: gelu(torch.addmm(bias, a, b), approximate=approximate)),
            ),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        reference,
        amount=2 * m * n * k / 1e12,
        unit="TFLOP/s",
        figures=(
            at_most(
                "tkc", ("tkc, bare",), bound, f"at most {bound:g} x the time of the bare product"
            ),
        ),
    )


def sustained(seed: int, shape=(8192, 8192, 8192)) -> Contest:
    """So many launches in a row, of which nobody cools the device."""
    import torch

    from tkc import kernels

    m, n, k = shape
    a, b = _normal(seed, (m, k), (k, n))
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def row(run) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        begin.record()
        for _ in range(LAUNCHES):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / LAUNCHES

    return Contest(
        f"sustained-{_text(shape)}",
        f"Product {_text(shape)} bfloat16, {LAUNCHES} launches in a row",
        (
            Contestant("tkc", lambda: Runner(lambda: kernels.matmul(a, b, out=out), out), "ours"),
            *_libraries(a, b, out),
        ),
        row,
        f"GPU events round {LAUNCHES} launches, divided by them",
        lambda: a.double() @ b.double(),
        amount=2 * m * n * k / 1e12,
        unit="TFLOP/s",
        figures=tuple(
            harness.speed_ratio("tkc", rival, 1.0) for rival in ("cuBLAS nn", "cuBLAS nt")
        ),
        worst_error=1.1,
    )


def thin(seed: int, shape) -> Contest:
    import torch

    from tkc import kernels

    m, n, k = shape
    a, b = _normal(seed, (m, k), (k, n))
    out, same = (
        torch.empty(m, n, device="cuda", dtype=torch.bfloat16),
        _normal(seed, (m * k + k * n,))[0],
    )
    sums = "tkc, the sum of as many bytes", "torch, likewise"
    return Contest(
        f"thin-{_text(shape)}",
        f"Product {_text(shape)} bfloat16, the cache flushed by reading",
        (
            Contestant("tkc", lambda: Runner(lambda: kernels.matmul(a, b, out=out), out), "ours"),
            *_libraries(a, b, out),
            Contestant(sums[0], lambda: Runner(lambda: kernels.sum(same)), "bound"),
            Contestant(sums[1], lambda: Runner(lambda: same.sum()), "bound"),
        ),
        harness.gpu_timer_read_flush,
        "GPU events, L2 flushed by reading 256 MiB, median of 50",
        lambda: a.double() @ b.double(),
        amount=2 * (m * k + k * n + m * n) / 1e9,
        unit="GB/s",
        figures=(
            at_most("tkc", ("cuBLAS nn", "cuBLAS nt"), 1.0, "at most cuBLAS's time"),
            at_most("tkc", sums, 1.15, "at most 1.15 x the time of a sum that reads as many bytes"),
        ),
        worst_error=1.1,
    )


def assembly(seed: int) -> Contest:
    """Trace, passes, PTX and cubin of a kernel that nobody has compiled, in a process that has
    compiled another.
    """
    import tkc
    from tkc.runtime.launch import cubin

    matmul = harness.example("matmul").matmul

    def build() -> None:
        fresh = tkc.jit(matmul.fn)  # knows of no earlier compilation
        cubin(
            fresh.compile(
                "bf16[8192, 4096]",
                "bf16[4096, 8192]",
                "bf16[8192, 8192]",
                RELU=False,
                BM=128,
                BN=256,
                BK=64,
                target="sm_90a",
            )
        )

    def prepared() -> Runner:
        os.environ["TKC_CACHE"] = "0"
        build()
        return Runner(build)

    return Contest(
        "assembly",
        "Trace to cubin of matmul for sm_90a, blocks of 128 x 256 x 64",
        (Contestant("tkc", prepared, "ours"),),
        lambda run: harness.host_timer(run, 1),
        "Wall time in a process that has compiled before, no cache",
        figures=(harness.time_at_most("tkc", 0.8, "0.8 s at most"),),
    )
