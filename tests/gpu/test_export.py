"""Exported kernels on a GPU: C that a C compiler builds against the driver, launched without
Python, gives what NumPy gives.
"""

import numpy as np
import pytest

from benchmarks.harness import example
from tests.gpu import c_program
from tkc.runtime import driver
from tkc.runtime.export import export

needs_c = pytest.mark.skipif(
    c_program.CC is None or c_program.headers() is None, reason="no C compiler, or no cuda.h"
)
example("vector_add")
from _arrays import largest_error, normal, numpy_type  # noqa: E402


def blank(shape, dtype):
    return np.full(shape, np.nan, numpy_type(dtype))


def spelled(argument) -> str:
    """An argument's type as `export` reads it: `bf16[2, 3]`, `i32`, `f32`."""
    if isinstance(argument, np.ndarray):
        element = {"float32": "f32", "bfloat16": "bf16"}[argument.dtype.name]
        return f"{element}[{', '.join(map(str, argument.shape))}]"
    return "i32" if isinstance(argument, int) else "f32"


def products(m, n, k, dtype="bfloat16", **constants):
    a, b = normal((m, k), dtype, 0), normal((k, n), dtype, 1)
    reference = (
        np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)
        if constants["RELU"]
        else a.astype(np.float32) @ b.astype(np.float32)
    )
    return (
        example("matmul").matmul,
        {"a": a, "b": b, "c": blank((m, n), dtype)},
        constants,
        "c",
        reference,
        4e-3,
    )


def attentions(batch, heads, sequence, d, causal):
    q, k, v = (normal((batch, heads, sequence, d), "bfloat16", seed) for seed in range(3))
    return (
        example("attention").attention,
        {"q": q, "k": k, "v": v, "o": blank(q.shape, "bfloat16"), "scale": d**-0.5},
        {"CAUSAL": causal, "D": d},
        "o",
        example("attention").reference(q, k, v, d**-0.5, causal),
        1e-2,
    )


def sums(n, dtype):
    x, y = normal(n, dtype, 0), normal(n, dtype, 1)
    return (
        example("vector_add").add,
        {"x": x, "y": y, "out": blank(n, dtype), "n": n},
        {"BLOCK": 1024},
        "out",
        x.astype(np.float64) + y.astype(np.float64),
        4e-3 if dtype == "bfloat16" else 1e-7,
    )


CASES = {
    "add": lambda: sums(100_003, "float32"),
    "add of bfloat16": lambda: sums(1 << 20, "bfloat16"),
    "matmul": lambda: products(1000, 1024, 512, RELU=True),
    "matmul of float32": lambda: products(300, 200, 100, "float32", RELU=True),
    "matmul, wide": lambda: products(2048, 2048, 1024, RELU=False, BN=256),
    "attention": lambda: attentions(2, 8, 600, 64, False),
    "causal attention": lambda: attentions(1, 8, 1024, 128, True),
}


@needs_c
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_c_runs_it(tmp_path, name, target):
    if target == "sm_90a" and driver.capability(0) != 90:
        pytest.skip("this GPU runs no code for sm_90a")
    kernel, arguments, constants, out, reference, tolerance = CASES[name]()
    extents = (
        *np.atleast_1d(
            kernel.fn.__globals__["grid"](
                {p.name: p.default for p in kernel.parameters} | arguments | constants
            )
        ).tolist(),
        1,
        1,
    )[:3]
    given = {n: spelled(a) for n, a in arguments.items()}
    export(kernel, **given, **constants, target=target, path=tmp_path, name="k")
    said, found = c_program.run(tmp_path, "k", arguments, extents)
    assert largest_error(found[out], reference) <= tolerance
    assert (
        len(said) == 3
        and all(line.startswith("1 k: ") for line in said)
        and "multiple of" in said[0]
        and "grid is too large" in said[2]
    ), said
    for n, a in arguments.items():
        if isinstance(a, np.ndarray) and n != out:
            np.testing.assert_array_equal(found[n].view(np.uint8), a.view(np.uint8))
