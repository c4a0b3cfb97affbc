"""Rows of odd length, whose neighbours in memory no vector of 16 bytes begins with, while the weights' do: every kernel of whole rows compiles for GPUs, and converts nothing of a row's size.

A row of 50257 is dealt out over a cluster, so that whatever did not lie as the row does would have to fit one block's shared memory.
"""
import numpy as np
import pytest

from tests.kernels.checks import launches, numbers
from tkc import kernels
from tkc.codegen.ptx.ptxas import find

BF16 = numbers((), "bfloat16").dtype
x, w, statistics, t = (lambda n: np.empty((37, n), BF16)), (lambda n: np.empty(n, BF16)), np.empty(37, np.float32), np.empty(37, np.int64)
CALLS = {
    "softmax": lambda n: kernels.softmax(x(n)), "softmax_backward": lambda n: kernels.softmax_backward(x(n), x(n)),
    "layer_norm": lambda n: kernels.layer_norm(x(n), w(n), w(n)), "add_rms_norm": lambda n: kernels.add_rms_norm(x(n), x(n), w(n)), "layer_norm_backward": lambda n: kernels.layer_norm_backward(x(n), x(n), w(n)),
    "cross_entropy_": lambda n: kernels.cross_entropy_(x(n), t), "cross_entropy_backward": lambda n: kernels.cross_entropy_backward(statistics, x(n), t, statistics),
    "quantize_rows": lambda n: kernels.quantize_rows(x(n)),
}


@pytest.mark.parametrize("name, columns, target", [*((name, 50257, "sm_90a") for name in CALLS), ("layer_norm", 131071, "sm_90a"), ("layer_norm", 4099, "sm_80"), ("add_rms_norm", 4099, "sm_90a"), ("layer_norm", 50257, "sm_80")])
def test_rows_of_odd_length(name, columns, target):
    with launches() as found: CALLS[name](columns)
    compiled, *_ = [kernel.compile(*arguments, target=target, **options) for kernel, arguments, options in found]
    assert not [d for d in compiled.decisions if "converted" in d], compiled.decisions
    if find("ptxas") and (target, columns) != ("sm_80", 50257): assert compiled.resources.clean, compiled.resources.log          # (an sm_80 has no clusters: a thread of it holds too much of such a row)
