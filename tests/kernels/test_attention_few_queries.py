"""Attention of few queries, whose keys several programs share, and of rows of more columns than a
warpgroup holds.
"""

import numpy as np
import pytest

import tkc
from tests.kernels.checks import launches
from tests.kernels.test_attention import attention, near, operands, zeros
from tkc import kernels
from tkc.codegen.ptx.ptxas import find


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize("d", [264, 320, 384, 512])
@pytest.mark.parametrize("options", [{}, dict(causal=True)])
def test_more_columns_than_a_warpgroup_holds(d, options, monkeypatch):
    """Two share them; by their threads, too."""
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a")
    with launches() as found:
        kernels.attention(*[zeros(2, 8, 512, d)] * 3, **options)
    ((kernel, args, how),) = found
    compiled = kernel.compile(*args, target="sm_90a", **how)
    assert "wgmma" in compiled.ptx and compiled.resources.clean, compiled.resources.log
    if d == 264:
        for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
            monkeypatch.setenv(name, value)
        arrays = operands(1, 1, 1, 70, 90, d, d, "bfloat16")
        got = kernels.attention(*arrays, with_lse=True, **options)
        near(got, attention(*arrays, **options), "bfloat16")


@pytest.mark.parametrize("heads, shared, queries", [(2, 1, 5), (6, 2, 40)])
@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(causal=True, window=600)])
def test_few_queries_deal_out_their_keys(heads, shared, queries, options, monkeypatch):
    """Blocks of them would be few; with the threads of a GPU simulated."""
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a")
    arrays = operands(1, heads, shared, queries, 700, 32, 16, "bfloat16")
    with launches() as found:
        kernels.attention(*arrays, **options)
    assert [kernel.__name__ for kernel, *_ in found] == ["_decode", "_combine"]
    got = kernels.attention(*arrays, with_lse=True, **options)
    near(got, attention(*arrays, **options), "bfloat16")


@pytest.mark.parametrize(
    "shape, options",
    [
        ((2, 64, 64, 5, 700, 32, 32), {}),
        ((1, 2, 2, 5, 500, 32, 32), {}),
        ((1, 2, 2, 5, 700, 32, 32), dict(sinks=np.zeros(2, np.float32))),
        ((1, 2, 2, 5, 700, 32, 32), dict(rows=64)),
        ((1, 2, 2, 800, 700, 32, 32), dict(causal=True)),
    ],
    ids=["many programs", "few keys", "sinks", "as asked", "rows that see nothing"],
)
def test_others_do_not(shape, options, monkeypatch):
    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a")
    with launches() as found:
        kernels.attention(*operands(*shape, "bfloat16"), **options)
    assert [kernel.__name__ for kernel, *_ in found] == ["_attention"]
