"""Loops whose dots read what threads computed: recurrent states and scaled blocks that are written
to shared memory, blocks that dots and threads read, dots of different heights; with warp roles, and
the same at every level and as PTX.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tests.passes.stages import assembler
from tkc.ir import shared, tile
from tkc.ir.target import half_of, target
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument, Options
from tkc.passes import PassContext
from tkc.passes.pipeline import PIPELINE, with_room
from tkc.sim import level0, level4

CHUNK, D, DK, DV = 64, 128, 64, 64


def decayed(q, k, v, o, gamma):
    """Linear attention with a decay per head: a state goes round the loop, scaled."""
    head, column = tkc.program_id(0), tkc.program_id(1) * DV
    log_decay = tkc.log2(gamma[head])
    i = tkc.arange(0, CHUNK)
    distance = (i[:, None] - i[None, :]).to(tkc.float32)
    mask = tkc.where(distance >= 0, tkc.exp2(distance * log_decay), 0.0)
    up = tkc.exp2((i + 1).to(tkc.float32) * log_decay)
    down = tkc.exp2((CHUNK - 1 - i).to(tkc.float32) * log_decay)
    state = tkc.zeros((D, DV))
    for t in range(0, q.shape[1], CHUNK):
        qt = tkc.load(q, (head, t, 0), (None, CHUNK, D))
        kt = tkc.load(k, (head, t, 0), (None, CHUNK, D))
        vt = tkc.load(v, (head, t, column), (None, CHUNK, DV))
        s = tkc.dot(qt, kt.T) * mask
        out = tkc.dot(s.to(v.dtype), vt) + tkc.dot(qt, state.to(q.dtype)) * up[:, None]
        tkc.store(o[head], (t, column), out.to(o.dtype))
        scaled = (kt.to(tkc.float32) * down[:, None]).to(k.dtype)
        state = tkc.dot(scaled.T, vt, state * tkc.exp2(CHUNK * log_decay))


def state_space(x, dt, a, b, c, y):
    """Mamba-2's scan by chunks: the right operands are computed from loaded blocks."""
    head, batch = tkc.program_id(0), tkc.program_id(1)
    rate = a[head]
    state = tkc.zeros((D, DV))
    i = tkc.arange(0, CHUNK)
    for t in range(0, x.shape[1], CHUNK):
        steps = tkc.load(dt, (batch, t, head), (None, CHUNK, None))
        passed = tkc.cumsum(steps * rate, 0)
        whole = tkc.sum(steps * rate)
        bt = tkc.load(b, (batch, t, 0), (None, CHUNK, D))
        ct = tkc.load(c, (batch, t, 0), (None, CHUNK, D))
        block = tkc.load(x, (batch, t, head, 0), (None, CHUNK, None, DV))
        xt = (block.to(tkc.float32) * steps[:, None]).to(b.dtype)
        since = tkc.exp(passed[:, None] - passed[None, :])
        s = tkc.dot(ct, bt.T) * tkc.where(i[:, None] >= i[None, :], since, 0.0)
        old = tkc.dot(ct, state.to(b.dtype)) * tkc.exp(passed)[:, None]
        out = tkc.dot(s.to(b.dtype), xt) + old
        tkc.store(y, (batch, t, head, 0), out.to(y.dtype).reshape(1, CHUNK, 1, DV))
        left = (bt.to(tkc.float32) * tkc.exp(whole - passed)[:, None]).to(b.dtype)
        state = tkc.dot(left.T, xt, state * tkc.exp(whole))


def states(k, v, h, decay):
    """States before each chunk, by a decay of each position: the one dot waits for its right
    operand, which is computed, and for the state, which is scaled.
    """
    head = tkc.program_id(0)
    state = tkc.zeros((DK, DV))
    for t in range(0, k.shape[1], CHUNK):
        tkc.store(h[head], (t // CHUNK * DK, 0), state.to(h.dtype))
        passed = tkc.load(decay, (head, t), (None, CHUNK))
        whole = tkc.load(decay.ptr + head * k.shape[1] + tkc.minimum(t + CHUNK, k.shape[1]) - 1)
        kt = tkc.load(k, (head, t, 0), (None, CHUNK, DK))
        vt = tkc.load(v, (head, t, 0), (None, CHUNK, DV)).to(tkc.float32)
        scaled = (vt * tkc.exp2(whole - passed)[:, None]).to(v.dtype)
        state = tkc.dot(kt.T, scaled, state * tkc.exp2(whole))


def halves(*shape: int) -> ArrayArgument:
    strides = (*(Fact(8) for _ in shape[1:]), Fact(exact=1))
    return ArrayArgument(tkc.float16, ArrayFacts((Fact(),) * len(shape), strides, 16))


def whole(given: ArrayArgument) -> ArrayArgument:
    """Rows that end at multiples of 16 bytes, as a store by a tensor map needs."""
    shape = (*given.facts.shape[:-1], Fact(8))
    return replace(given, facts=replace(given.facts, shape=shape))


def floats(rank: int) -> ArrayArgument:
    strides = (*(Fact(1) for _ in range(rank - 1)), Fact(exact=1))
    return ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * rank, strides, 16))


def random(rng, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * 0.3).astype(np.float16)


def decayed_case(heads: int, steps: int) -> tuple[list, tuple[int, int, int], int, np.ndarray]:
    """Arguments, grid, which argument is the result, and what is expected there."""
    rng = np.random.default_rng(steps)
    q, k = random(rng, heads, steps, D), random(rng, heads, steps, D)
    v = random(rng, heads, steps, 2 * DV)
    gamma = (0.9 + 0.09 * rng.random(heads)).astype(np.float32)
    distance = np.arange(steps)[:, None] - np.arange(steps)[None, :]
    decay = np.where(distance >= 0, gamma[:, None, None] ** np.maximum(distance, 0), 0)
    q64, k64, v64 = (x.astype(np.float64) for x in (q, k, v))
    expected = (q64 @ k64.transpose(0, 2, 1) * decay) @ v64
    return [q, k, v, np.zeros_like(v), gamma], (heads, 2, 1), 3, expected


def state_space_case(heads: int, steps: int) -> tuple[list, tuple[int, int, int], int, np.ndarray]:
    rng = np.random.default_rng(steps)
    x = random(rng, 1, steps, heads, DV)
    b, c = random(rng, 1, steps, D), random(rng, 1, steps, D)
    dt = (np.abs(rng.standard_normal((1, steps, heads))) * 0.1).astype(np.float32)
    a = -rng.random(heads).astype(np.float32)
    x64, b64, c64, dt64 = (v.astype(np.float64) for v in (x, b, c, dt))
    state = np.zeros((1, heads, D, DV))
    out = np.zeros(x.shape)
    for t in range(steps):
        decay = np.exp(dt64[:, t] * a)[:, :, None, None]
        inputs = dt64[:, t][:, :, None] * x64[:, t]
        state = state * decay + b64[:, t][:, None, :, None] * inputs[:, :, None, :]
        out[:, t] = np.einsum("zn,zhnp->zhp", c64[:, t], state)
    return [x, dt, a, b, c, np.zeros_like(x)], (heads, 1, 1), 5, out


def states_case(heads: int, steps: int) -> tuple[list, tuple[int, int, int], int, np.ndarray]:
    """The decays of a chunk are sums of logarithms from its beginning."""
    rng = np.random.default_rng(steps)
    k, v = random(rng, heads, steps, DK), random(rng, heads, steps, DV)
    logs = (-0.02 * rng.random((heads, steps))).astype(np.float32)
    chunks = -(-steps // CHUNK)
    passed = np.concatenate(
        [np.cumsum(logs[:, c * CHUNK : (c + 1) * CHUNK], axis=1) for c in range(chunks)], axis=1
    )
    state, expected = np.zeros((heads, DK, DV)), np.zeros((heads, chunks * DK, DV))
    for t in range(steps):
        if t % CHUNK == 0:
            expected[:, t // CHUNK * DK :][:, :DK] = state
        outer = k[:, t, :, None].astype(np.float64) * v[:, t, None, :]
        state = state * np.exp2(logs[:, t].astype(np.float64))[:, None, None] + outer
    return [k, v, np.zeros(expected.shape, np.float16), passed], (heads, 1, 1), 2, expected


CASES = {
    states: (states_case, [*[halves(0, 0, 0)] * 2, whole(halves(0, 0, 0)), floats(2)]),
    decayed: (decayed_case, [halves(0, 0, 0)] * 4 + [floats(1)]),
    state_space: (
        state_space_case,
        [halves(0, 0, 0, 0), floats(3), floats(1), halves(0, 0, 0), halves(0, 0, 0)]
        + [whole(halves(0, 0, 0, 0))],
    ),
}


def lowered(fn, given: PassContext) -> tuple[ModuleOp, PassContext]:
    module = traced(fn, *CASES[fn][1])
    through(module, PIPELINE[-1], given)
    return module, given


def check(fn, steps: int, run) -> None:
    given, grid, result, expected = CASES[fn][0](2, steps)
    run(given, grid)
    error = np.abs(given[result].astype(np.float64) - expected).max()
    assert error <= 4e-3 * np.abs(expected).max()


@pytest.mark.parametrize("fn", list(CASES))
@assembler
def test_recurrent_states_have_roles(fn):
    module, given = with_room(lambda given: lowered(fn, given), target("sm_90a"), Options())
    assert given.has_roles
    data, *_ = CASES[fn][0](2, 192)
    resources = tkc.jit(fn).compile(*data, target="sm_90a").resources
    assert resources.spill_stores == 0
    assert not resources.notes
    for seed in range(2):
        check(fn, 192, lambda x, grid, seed=seed: level4.run(module, x, grid, seed))
    check(fn, 136, lambda x, grid: machine.run(module, x, grid))


@pytest.mark.parametrize("fn", list(CASES))
def test_before_and_behind_each_pass(fn):
    for last in ("simplify", "plan"):
        module = traced(fn, *CASES[fn][1])
        through(module, last, context("sm_90a"))
        check(fn, 136, lambda x, grid, module=module: level0.run(module, x, grid))


def test_each_operand_is_written_once_and_each_block_copied_once():
    module = traced(decayed, *CASES[decayed][1])
    through(module, "swizzle-shared", context("sm_90a"))
    written = [
        op
        for op in module.walk()
        if isinstance(op, shared.Write)
        and any(isinstance(use.operation, tile.Dot) for use in op.buffer.uses)
    ]
    copied = [op for op in module.walk() if isinstance(op, shared.Copy)]
    assert len(written) == 1
    assert len(copied) == 3


@pytest.mark.parametrize("fn", [decayed, states])
def test_blocks_that_share_a_multiprocessor_have_half_of_it_each(fn):
    data, *_ = CASES[fn][0](2, 192)
    compiled = tkc.jit(fn).compile(*data, target="sm_90a")
    assert any("2 blocks share a multiprocessor" in line for line in compiled.decisions)
    assert ".minnctapersm 2" in compiled.ptx
    assert compiled.interface.shared_bytes <= half_of(target("sm_90a").shared_bytes)


def test_axes_of_one_are_dropped_where_only_reshapes_show_them():
    module = traced(state_space, *CASES[state_space][1])
    through(module, "simplify", context("sm_90a"))
    stores = [op for op in module.walk() if isinstance(op, tile.Store)]
    assert [list(op.extents.get_values()) for op in stores] == [[-1, CHUNK, -1, DV]]
    assert not any(isinstance(op.value.owner, tile.Reshape) for op in stores)
    through_map = traced(state_space, *CASES[state_space][1])
    through(through_map, "swizzle-shared", context("sm_90a"))
    assert any(isinstance(op, shared.CopyOut) for op in through_map.walk())
