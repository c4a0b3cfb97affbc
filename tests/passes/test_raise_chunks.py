"""raise-pointers: chunks of rows, the last of which is a part of one, as only the program knows.
Rows count from the end of a chunk, and the array begins where memory does all the same: the copy
engine reads its first address for rows outside of it. Where a sequence is shorter than a chunk it
would begin before, and the launch takes the plan without tensor maps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import i32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler, assembles_clean
from tests.passes.test_raise_pointers import BK, BM, BN, ROWS, numbers, remaining, wide
from tkc.codegen.ptx.emit import emit
from tkc.errors import MapError
from tkc.ir.target import target
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.runtime.arrays import describe
from tkc.runtime.launch import mapped_array
from tkc.runtime.specialize import ScalarInfo
from tkc.sim import level0, level4
from tkc.sim.ptx import tensor_maps
from tkc.sim.ptx.faults import Fault, Unknown


def states(a, b, c, S, A0, A1, A2, B0, B1, B2, M, N, K):
    """Batches, heads and chunks of S rows, which are summed up; more axes than a tensor map has,
    but that chunks of S rows and rows are counted along one. Blocks are twice as wide as a: the
    second box of each lies behind its rows.
    """
    z, head = tkc.program_id(0), tkc.program_id(1)
    chunk = z // 2
    batch = z - chunk * 2
    rows = tkc.minimum(S, K - chunk * S)
    rm, rn, rk = tkc.arange(2 * BM), tkc.arange(BN), tkc.arange(BK)
    ap = a.ptr + batch * A0 + chunk * S * A1 + head * A2
    bp = b.ptr + batch * B0 + chunk * S * B1 + head * B2
    acc = tkc.zeros((2 * BM, BN))
    for k in range(0, rows, BK):
        steps = k + rk
        av = tkc.load(
            ap + rm[:, None] + steps[None, :] * A1,
            mask=(rm[:, None] < M) & (steps[None, :] < rows),
        )
        bv = tkc.load(
            bp + steps[:, None] * B1 + rn[None, :],
            mask=(steps[:, None] < rows) & (rn[None, :] < N),
        )
        acc = tkc.dot(av, bv, acc)
    cp = c.ptr + batch * c.strides[0] + chunk * c.strides[1] + head * c.strides[2]
    inside = (rm[:, None] < M) & (rn[None, :] < N)
    tkc.store(cp + rm[:, None] * c.strides[3] + rn[None, :], acc.to(c.dtype), mask=inside)


def state_data(m: int, n: int, k: int) -> list:
    m, n = min(m, BM), min(n, BN)
    a, b = numbers(2, k, 3, m, pad=8), numbers(2, k, 3, n, seed=1, pad=8)
    c = np.zeros((2, -(-k // ROWS), 3, m, n), np.float16)
    strides = (step // x.itemsize for x in (a, b) for step in x.strides[:3])
    return [a, b, c, ROWS, *strides, m, n, k]


def of_states(given: list) -> np.ndarray:
    a, b, c, rows, *_ = given
    each = [
        np.einsum("bkhm,bkhn->bhmn", *(wide(x)[:, i * rows : (i + 1) * rows] for x in (a, b)))
        for i in range(c.shape[1])
    ]
    return np.stack(each, 1)


def module(divisor: int = 1):
    """Traced for rows, and a number of them in a chunk, that are multiples of `divisor`."""
    facts = [
        ArrayFacts((Fact(),) * rank, (*(Fact(divisor),) * (rank - 1), Fact(exact=1)), 16)
        for rank in (4, 4, 5)
    ]
    arrays = [ArrayArgument(tkc.float16, fact) for fact in facts]
    sizes = [*[i32(divisor)] * 7, i32(), i32(divisor), i32(divisor)]
    return traced(states, *arrays, *(replace(size, nonnegative=True) for size in sizes))


def grid(k: int) -> tuple[int, int, int]:
    return 2 * -(-k // ROWS), 3, 1


@pytest.mark.parametrize("shape", [(64, 64, 160), (8, 40, 200), (63, 13, 45)], ids=str)
def test_states_are_the_same(shape):
    def check(made, run) -> None:
        given = state_data(*shape)
        run(made, given)
        np.testing.assert_array_equal(given[2], of_states(given).astype(np.float16))

    at = grid(shape[2])
    check(module(), lambda made, given: level0.run(made, given, at))
    raised = module()
    through(raised, "raise-pointers", context("sm_90a"))
    assert remaining(raised) == 0
    check(raised, lambda made, given: level0.run(made, given, at))
    for name in ("sm_80", "sm_90a"):
        made = module(8 if not (shape[0] % 8 or shape[1] % 8 or shape[2] % 8) else 1)
        through(made, PIPELINE[-1], context(name))
        check(made, lambda made, given: level4.run(made, given, at, 1))


@pytest.mark.parametrize("k", (2 * ROWS, 2 * ROWS + 24))
@assembler
def test_maps_begin_where_memory_does(k):
    """Also where rows of the last chunk's last block lie outside."""
    made = module(8)
    through(made, PIPELINE[-1], context("sm_90a"))
    assembles_clean(made)
    maps = [p for p in emit(made, target("sm_90a")).interface.parameters if p.kind == "map"]
    assert len(maps) == 3
    given = state_data(64, 64, k)
    assert [mapped_array(p, infos(given)).pointer for p in maps[:2]] == [
        describe(x).pointer for x in given[:2]
    ]
    machine.run(made, given, grid(k))
    np.testing.assert_array_equal(given[2], of_states(given).astype(np.float16))


def infos(given: list) -> list:
    return [describe(x) if isinstance(x, np.ndarray) else ScalarInfo(x, "int32", 1) for x in given]


def test_what_is_shorter_than_a_chunk_has_no_maps(monkeypatch):
    made = module(8)
    through(made, PIPELINE[-1], context("sm_90a"))
    maps = [p for p in emit(made, target("sm_90a")).interface.parameters if p.kind == "map"]
    given = state_data(64, 64, ROWS - 16)
    with pytest.raises(MapError, match="begins before its memory"):
        mapped_array(maps[0], infos(given))
    with pytest.raises(Unknown, match="begins before its memory"):
        machine.run(made, given, grid(ROWS - 16))
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    tkc.jit(states)[grid(ROWS - 16)](*given)
    np.testing.assert_array_equal(given[2], of_states(given).astype(np.float16))


def test_rows_outside_of_what_begins_before_memory_are_a_fault(monkeypatch):
    """What an H200 does: the copy engine reads the array's first address for them."""
    made = module(8)
    through(made, PIPELINE[-1], context("sm_90a"))
    k = 2 * ROWS + 24
    given = state_data(64, 64, k)
    described = tensor_maps.TensorMap

    def moved(*fields):
        return described(*fields[:-1], True)

    monkeypatch.setattr(tensor_maps, "TensorMap", moved)
    with pytest.raises(Fault, match="its first address"):
        machine.run(made, given, grid(k))
