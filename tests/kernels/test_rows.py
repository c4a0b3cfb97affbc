"""Long rows for every target: the kernels that hold whole rows assemble without a spill, and
convert nothing of a row's size, where a row fits a block, a cluster, or neither.

50257 columns: rows whose neighbours in memory no vector of 16 bytes begins with, while the weights'
do. An sm_90a deals such a row out over a cluster, so that whatever did not lie as the row does
would have to fit one block's shared memory; an sm_80 has no clusters and reads it in parts, and so
does an sm_89 with rows of 32768, for blocks of 1024 threads leave a third of it idle. `python -m
tests.kernels.test_rows` assembles everything: all of the kernels, lengths, element types and
targets.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np
import pytest

from tests.kernels.checks import launches, numbers
from tkc import kernels
from tkc.codegen.ptx.ptxas import find

LENGTHS, TYPES, EVERY = (
    (1000, 4096, 8192, 16384, 32768, 50257, 65536, 131072, 262144),
    ("bfloat16", "float32"),
    ("sm_80", "sm_89", "sm_90a"),
)
statistics, classes = np.empty(37, np.float32), np.empty(37, np.int64)
CALLS = {
    "softmax": lambda x, w: kernels.softmax(x),
    "log_softmax": lambda x, w: kernels.log_softmax(x),
    "softmax_backward": lambda x, w: kernels.softmax_backward(x, x),
    "log_softmax_backward": lambda x, w: kernels.log_softmax_backward(x, x),
    "layer_norm": lambda x, w: kernels.layer_norm(x, w, w),
    "rms_norm": lambda x, w: kernels.rms_norm(x, w),
    "add_layer_norm": lambda x, w: kernels.add_layer_norm(x, x, w, w),
    "add_rms_norm": lambda x, w: kernels.add_rms_norm(x, x, w),
    "layer_norm_backward": lambda x, w: kernels.layer_norm_backward(x, x, w),
    "rms_norm_backward": lambda x, w: kernels.rms_norm_backward(x, x, w),
    "add_layer_norm_backward": lambda x, w: kernels.layer_norm_backward(x, x, w, x),
    "add_rms_norm_backward": lambda x, w: kernels.rms_norm_backward(x, x, w, x),
    "cross_entropy": lambda x, w: kernels.cross_entropy(x, classes),
    "cross_entropy_": lambda x, w: kernels.cross_entropy_(x, classes),
    "cross_entropy_backward": lambda x, w: kernels.cross_entropy_backward(
        statistics, x, classes, statistics
    ),
    "quantize_rows": lambda x, w: kernels.quantize_rows(x),
    "topk": lambda x, w: kernels.topk(x, 8),
    "cumsum": lambda x, w: kernels.cumsum(x),
    "swiglu_backward": lambda x, w: kernels.swiglu_backward(x, x, x),
}
DEMANDING = [
    "softmax",
    "softmax_backward",
    "layer_norm",
    "add_rms_norm",
    "layer_norm_backward",
    "add_rms_norm_backward",
    "cross_entropy_",
]
HARD = [("sm_90a", 50257), ("sm_90a", 131072), ("sm_80", 50257), ("sm_89", 32768)]


def compiled(name: str, columns: int, dtype: str, target: str, first: bool = False) -> list:
    """What a call launches (the first of it)."""
    element = numbers((), dtype).dtype
    with launches() as found:
        CALLS[name](np.empty((37, columns), element), np.empty(columns, element))
    return [
        kernel.compile(*arguments, target=target, **options)
        for kernel, arguments, options in (found[:1] if first else found)
    ]


@pytest.mark.parametrize(
    "name, columns, target",
    [
        *((name, n, t) for name, (t, n) in product(DEMANDING, HARD)),
        ("layer_norm", 131071, "sm_90a"),
        ("layer_norm", 4099, "sm_80"),
        ("add_rms_norm", 4099, "sm_90a"),
    ],
)
def test_long_rows(name, columns, target):
    (found,) = compiled(name, columns, "bfloat16", target, first=True)
    assert not [d for d in found.decisions if "converted" in d], found.decisions
    if find("ptxas"):
        assert found.resources.clean, found.resources.log


def _trial(case: tuple) -> list[str]:
    return [
        f"{' '.join(map(str, case))}: {each.name}, {each.resources.spill_stores} bytes spilled;"
        f" {each.decisions}"
        for each in compiled(*case)
        if not each.resources.clean
    ]


def main() -> None:
    cases = list(product(CALLS, LENGTHS, TYPES, EVERY))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = [line for lines in pool.map(_trial, cases, chunksize=8) for line in lines]
    print("\n".join([*found, f"{len(cases)} calls, {len(found)} kernels that spill"]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
