"""Every example's cases at sizes a GPU is made for, beside torch's own: the tables that stand in
the examples.

    python benchmarks/run.py examples                            all of them
    BENCH_ONLY=softmax,matmul_steps benchmarks/run.py examples   some

A case is what `tkc demo` runs (tkc/tools/demo.py), which has checked it against float64 at smaller
sizes; here nothing is compared, only timed. The cases of an example of steps, and of float8_matmul,
race one another. Making the numbers takes this process longer than timing them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from benchmarks import harness, rivals_torch
from benchmarks.harness import Contest, Contestant, Runner

N = 1 << 27
SIZES: dict[str, tuple[dict, ...]] = {
    "attention": ({"batch": 4, "heads": 16, "sequence": 4096, "d": 128},),
    "attention_steps": ({"heads": 16, "sequence": 4096, "d": 128},),
    "float8_attention": ({"batch": 2, "heads": 16, "sequence": 8192, "d": 128},),
    "matmul": ({"size": 4096},),
    "matmul_steps": ({"size": 8192}, {"size": 4096, "k": 512}),
    "float8_matmul": ({"size": 8192},),
    "quantized_linear": ({"size": 4096},),
    "gated_mlp": ({"rows": 8192, "columns": 14336, "k": 4096},),
    "softmax": ({"rows": 32768, "columns": 4096},),
    "layer_norm": ({"rows": 32768, "columns": 4096},),
    "vector_add": ({"n": N},),
    "dropout": ({"n": N},),
    "histogram": ({"n": N},),
    "cumulative_sum": ({"n": N},),
}
TOGETHER = "matmul_steps", "attention_steps", "float8_matmul"
TYPES = "float32", "bfloat16"  # of cases that differ in nothing else, the second is raced


def rivals(name: str, shape: tuple[int, ...], causal: bool) -> dict[str, Callable]:
    """torch's own for an example, by name: functions that make what is timed."""
    import torch
    import torch.nn.functional as F

    def normal(*s):
        return torch.randn(*s, device="cuda", dtype=torch.bfloat16)

    x = (
        normal(*shape)
        if name in ("vector_add", "softmax", "layer_norm", "dropout", "cumulative_sum")
        else None
    )
    y, w = (
        normal(*shape) if name == "vector_add" else None,
        (normal(shape[-1]) if name == "layer_norm" else None),
    )
    named = {
        "vector_add": lambda: x + y,
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, shape[-1:], w, w),
        "dropout": lambda: F.dropout(x, 0.25),
        "cumulative_sum": lambda: torch.cumsum(x, 0),
    }
    if name in named:
        return {"torch": lambda: named[name]} | (
            {}
            if y is not None
            else {"copy of as many bytes": lambda: partial(torch.empty_like(x).copy_, x)}
        )
    if name == "histogram":
        whole = torch.randint(0, 256, shape, device="cuda", dtype=torch.int32)
        return {"torch.bincount": lambda: lambda: torch.bincount(whole, minlength=256)}
    if name == "gated_mlp":
        m, n, k = shape
        x, gate, up, both = normal(m, k), normal(k, n), normal(k, n), normal(k, 2 * n)
        torch._dynamo.reset()  # of other sizes it would become one for all
        fused = torch.compile(lambda g, u: F.silu(g) * u, dynamic=False)
        return {
            "cuBLAS and torch.compile": lambda: lambda: fused(x @ gate, x @ up),
            "one product of both by cuBLAS, and torch.compile": lambda: (
                lambda: fused(*(x @ both).chunk(2, 1))
            ),
        }
    if "matmul" in name or name == "quantized_linear":
        m, n, k = shape
        if name == "float8_matmul":
            a, b, one = (
                normal(m, k).to(torch.float8_e4m3fn),
                normal(n, k).to(torch.float8_e4m3fn),
                torch.ones((), device="cuda"),
            )
            return {
                "cuBLAS, fast sums": lambda: (
                    lambda: torch._scaled_mm(
                        a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
                    )
                ),
                "cuBLAS, exact sums": lambda: (
                    lambda: torch._scaled_mm(
                        a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=False
                    )
                ),
            }
        a, b = normal(m, k), normal(k, n)

        def product():
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            return lambda: torch.matmul(a, b, out=out)

        return {"cuBLAS (bfloat16)": product}
    q, k, v = (normal(*shape) for _ in range(3))
    return {"cuDNN (bfloat16)": lambda: rivals_torch.attention("CUDNN", q, k, v, is_causal=causal)}


def contests(seed: int):
    only = set(filter(None, os.environ.get("BENCH_ONLY", "").split(",")))
    for name, sizes in SIZES.items():
        for size in sizes if not only or name in only else ():
            cases = [
                c
                for c in harness.example(name).cases("cuda", **size)
                if not (
                    name
                    in (
                        "vector_add",
                        "softmax",
                        "layer_norm",
                        "dropout",
                        "cumulative_sum",
                        "matmul",
                        "attention",
                    )
                    and c["dtype"] == TYPES[0]
                )
            ]
            for together in [cases] if name in TOGETHER else [[c] for c in cases]:
                yield contest(name, together)


def contest(name: str, cases: list[dict]) -> Contest:
    case = cases[0]
    text, causal = " x ".join(map(str, case["shape"])), "causal" in case["name"]
    bytes_, flops = case.get("bytes"), case.get("flops")
    others = rivals(name, case["shape"], causal)
    variant = "-causal" * causal + "-int8" * ("int8" in case["name"])
    return Contest(
        f"example-{name}-{text.replace(' ', '')}{variant}",
        f"examples/{name}.py{', causal' * causal}, {text} {case['dtype']}",
        (
            *(Contestant(f"tkc, {c['name']}", lambda c=c: Runner(c["run"]), "ours") for c in cases),
            *(
                Contestant(
                    rival,
                    lambda make=make: Runner(make()),
                    "bound" if rival.startswith("copy") else "rival",
                )
                for rival, make in others.items()
            ),
        ),
        harness.gpu_timer,
        harness.GPU_TIMING,
        amount=flops / 1e12 if flops else bytes_ / 1e9,
        unit="TFLOP/s" if flops else "GB/s",
    )
