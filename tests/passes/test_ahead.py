"""What keeps the tensor cores busy between two iterations and between two programs: stages asked
for ahead, iterations written once for each way through a mask, late claims, sections.
"""

import re

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.codegen.ptx.test_register_coalescing import loops
from tests.language.kernels import array, i32, traced
from tests.passes.stages import LAST, compiled, count, role
from tests.passes.test_roles_attention import Form, check, last
from tests.passes.test_roles_attention import compiled as attention
from tkc.codegen.ptx.emit import emit
from tkc.ir import shared, threads, tile
from tkc.ir.target import target
from tkc.passes import fetch_ahead
from tkc.passes.programs import order
from tkc.sim import level4


def loop_of(module) -> scf.ForOp:
    """A consumer's loop over K and V."""
    return next(
        op
        for op in role(module, "consumer").walk()
        if isinstance(op, scf.ForOp) and count(op, threads.DotAsync) > 1
    )


@pytest.mark.parametrize(
    "form", [Form(128), Form(128, True), Form(block=(128, 64), causal=True)], ids=lambda f: f.name
)
def test_a_loop_asks_for_its_next_stage(form):
    loop = loop_of(last(form))
    wait = next(op for op in loop.body.block.ops if isinstance(op, threads.MbarrierWait))
    assert (
        "ahead" in loop.attributes
        and wait.unless is loop.body.block.args[-1]
        and count(loop, threads.MbarrierTest) >= 1
    )
    text = emit(last(form), attention(form)[1].target).text
    body = next(body for body in loops(text) if "mbarrier.test_wait" in body)
    # whether there is another iteration is known before its dots
    again = re.findall(r"@(%p\d+)", body)[-1]
    test = re.search(rf"setp\.lt\.[su]32 {again},", body)
    assert test is not None and test.start() < body.index("wgmma.mma_async")


@pytest.mark.parametrize("form", [Form(128), Form(128, True)], ids=lambda f: f.name)
def test_each_way_through_a_mask_is_written_once(form):
    loop = loop_of(last(form))
    branch = next(op for op in loop.body.block.ops if isinstance(op, scf.IfOp))
    for region in branch.regions:
        waits = [
            op.pending.value.data for op in region.block.ops if isinstance(op, threads.DotWait)
        ]
        assert (
            waits == [1, 0]
            and count(region.block.parent_op(), threads.DotAsync) == 2
            and sum(isinstance(op, threads.DotAsync) for op in region.block.ops) == 1
        )
    assert (
        isinstance(loop.body.block.last_op.operands[-1].owner, scf.IfOp)
        and branch.next_op is loop.body.block.last_op
    )
    # both ways leave the sums where they were
    assert not any("copied" in note for note in emit(last(form), attention(form)[1].target).notes)


def test_few_registers_have_no_room_for_it():
    module = last(Form(32, block=(256, 32), options=(("num_warps", 16),)))
    assert "ahead" not in loop_of(module).attributes and not count(module, threads.MbarrierTest)


def test_programs_are_claimed_late_and_told_briefly():
    """Behind the program's loop, before it waits for the last stage; the consumers hear its number
    and place, and fetch them before results leave.
    """
    module = last(Form(128, True, options=(("cross_tile_prologue", False),)))
    producer, consumer = role(module, "producer"), role(module, "consumer")
    claims = [op for op in producer.walk() if isinstance(op, threads.NextProgram)]
    branch = claims[0].parent_op()
    assert [op.parent for op in claims] == [region.block for region in branch.regions]
    kinds = (scf.ForOp, threads.NextProgram, threads.MbarrierArrive, threads.TmaLoad)
    loads, nothing = (
        [type(op) for op in region.block.ops if isinstance(op, kinds)] for region in branch.regions
    )
    assert loads == [threads.TmaLoad, *kinds] and nothing == [*kinds[1:3]]
    assert (
        count(producer, threads.BroadcastStore)
        == 2 * count(consumer, threads.BroadcastLoad)
        == 2 * 4
    )
    fetch = next(op for op in consumer.walk() if isinstance(op, threads.BroadcastLoad))
    ops = list(fetch.parent.ops)
    assert not any(isinstance(op, shared.Write) for op in ops[: ops.index(fetch)]) and any(
        isinstance(op, shared.Write) for op in ops[ops.index(fetch) :]
    )


@pytest.mark.parametrize("heads, fit", [(5, 2), (7, 3), (4, 4), (3, 2), (1, 2)])
def test_the_last_section_takes_what_is_left(monkeypatch, heads, fit):
    """Sections of `fit` heads, the last of up to twice as many: every program still runs once."""
    form, keys = Form(block=(64, 64), causal=True), 192
    room = fit * 2 * keys * form.d * 2 + 1  # K and V
    monkeypatch.setattr(order, "SECTION_DIVISOR", target("sm_90a").cache // room)
    module = compiled(attention(form)[0]["simplify"].clone())[0][LAST]
    check(module, form, 192, keys, heads, seed=heads, resident=3)


def compare(x, o, n, limit, N: tkc.constexpr):
    index = n + tkc.arange(N)
    below = tkc.where(index[None, :] < limit, 1, 0) + tkc.where(
        index[None, :] >= tkc.load(x, (0,), (4,))[:, None], 2, 0
    )
    tkc.store(o, (0, 0), below)


@pytest.mark.parametrize("limit", [-1 << 31, -1, 0, 1, 37, 64, (1 << 31) - 1])
@pytest.mark.parametrize("name", ["sm_80", "sm_90a"])
def test_indices_are_compared_by_their_distance(limit, name):
    """One difference, saturated, against constants: also where the true one would not fit in 32
    bits.
    """

    def at_zero(x, o, limit, N: tkc.constexpr):
        compare(x, o, 0, limit, N)

    module = compiled(traced(at_zero, array(tkc.int32, 1), array(tkc.int32, 2), i32(), N=64), name)[
        0
    ][LAST]
    x, o = np.array([limit, 5, (1 << 31) - 1, -1 << 31], np.int32), np.zeros((4, 64), np.int32)
    machine.run(module, [x, o, limit], (1, 1, 1))
    index = np.arange(64)
    assert (o == (index < limit) + 2 * (index >= x[:, None].astype(np.int64))).all()
    assert "sub.sat.s32" in emit(module, target(name)).text


@pytest.mark.parametrize("limit", [-1 << 31, -64, -1, 0, 1, 17, 63, (1 << 31) - 1])
def test_differences_of_indices_are_compared_by_theirs(limit):
    """What a window asks of rows and columns: one difference for all elements of a row, and no
    subtraction for each.
    """

    def window(o, limit, N: tkc.constexpr):
        rows, columns = tkc.program_id(0) * N + tkc.arange(N), tkc.arange(N)
        tkc.store(
            o,
            (tkc.program_id(0) * N, 0),
            tkc.where(rows[:, None] - columns[None, :] < limit, 1, 0)
            + tkc.where(rows[:, None] - columns[None, :] >= limit, 2, 0),
        )

    module = compiled(traced(window, array(tkc.int32, 2), i32(), N=64), "sm_90a")[0][LAST]
    o = np.zeros((128, 64), np.int32)
    machine.run(module, [o, limit], (2, 1, 1))
    assert (o == np.where(np.arange(128)[:, None] - np.arange(64) < limit, 1, 2)).all()


@tkc.jit
def views_of_what_is_fetched(x, rows, o, C: tkc.constexpr, D: tkc.constexpr):
    total = tkc.zeros((D, D))
    for t in tkc.range(0, x.shape[0], C):
        tile = tkc.load(x, (t, 0), (C, D))
        tkc.store(o[t // C], (0, 0), total)
        scale = tkc.load(rows, (t, 3), (C, None))
        total = tkc.dot((tile * scale[:, None]).to(tile.dtype).T, tile, total)


def test_views_stay_where_they_are():
    """What is fetched ahead moves what is small and made of it; a view is no value of registers."""
    arrays = (array(tkc.bfloat16, 2), array(tkc.float32, 2), array(tkc.float32, 3))
    module = traced(views_of_what_is_fetched, *arrays, C=64, D=64)
    loop = next(op for op in module.walk() if isinstance(op, scf.ForOp))
    assert any(op.name == "tile.view" for op in loop.body.block.ops)
    loads = {op.result for op in loop.body.block.ops if isinstance(op, tile.Load)}
    early = [op.name for op in fetch_ahead._used_early(loop.body.block, loads)]
    assert early and "tile.view" not in early


def indexed(x, at, o, N: tkc.constexpr, GATHERED: tkc.constexpr):
    total = tkc.zeros((N, 64))
    for k in tkc.range(0, x.shape[0], N):
        rows = k + tkc.arange(N) % 4 if GATHERED else k
        total = total + tkc.load(x, (rows, 0), (N, 64))
    tkc.store(o, (0, 0), total)


@pytest.mark.parametrize("gathered", [False, True])
def test_rows_that_are_gathered_are_not_fetched_ahead(gathered):
    """Their indices would take registers beside them."""
    given = array(tkc.float32, 2), array(tkc.int32), array(tkc.float32, 2)
    module = traced(indexed, *given, N=16, GATHERED=gathered)
    (loop,) = (op for op in module.walk() if isinstance(op, scf.ForOp))
    (load,) = (op for op in module.walk() if isinstance(op, tile.Load))
    assert fetch_ahead._may_be_early(load, loop, ()) == (not gathered)


def listed(x, rows, o, n):
    total = tkc.zeros((1, 64))
    for i in tkc.range(n):
        at, scale = tkc.load(rows, (i, 0), (None, None)), tkc.load(rows, (i, 1), (None, None))
        total = total + tkc.load(x, (at, 0), (1, 64)) * scale.to(tkc.float32)
    tkc.store(o, (0, 0), total)


def test_what_says_where_a_block_is_is_not_fetched_ahead():
    """A copy of that block that runs farther ahead needs it as early."""
    given = array(tkc.float32, 2), array(tkc.int32, 2), array(tkc.float32, 2), i32()
    module = traced(listed, *given)
    (loop,) = (op for op in module.walk() if isinstance(op, scf.ForOp))
    place, scale, _ = (op for op in module.walk() if isinstance(op, tile.Load))
    assert not fetch_ahead._may_be_early(place, loop, ())
    assert fetch_ahead._may_be_early(scale, loop, ())


def updated(x, rows, o, C: tkc.constexpr):
    sum_ = o.ptr
    for t in tkc.range(0, x.shape[0], C):
        add = tkc.load(rows, (t,), (None,))
        tkc.store(sum_, 0.0)
        before = tkc.atomic_add(sum_, add)
        tkc.store(sum_ + 1 + t, before)


def test_an_update_of_what_is_fetched_keeps_its_place():
    """Behind the store that it follows, though it is small and made of what is fetched."""
    given = array(tkc.float32, 2), array(tkc.float32), array(tkc.float32)
    module = traced(updated, *given, C=64)
    (loop,) = (op for op in module.walk() if isinstance(op, scf.ForOp))
    (load,) = (op for op in module.walk() if isinstance(op, tile.Load))
    assert not fetch_ahead._used_early(loop.body.block, {load.result})


def scaled_in_place(x):
    """A row is scaled by its sum, in place."""
    row = tkc.load(x, (tkc.program_id(0), 0), (1, 512))
    tkc.store(x, (tkc.program_id(0), 0), row * tkc.sum(row, axis=1)[:, None])


@pytest.mark.parametrize("clusters", [1, 2])
def test_no_program_reads_behind_the_last_one_what_another_writes(clusters):
    """Its place would be that of an earlier program, which another block may have under way."""
    modules, given = compiled(
        traced(scaled_in_place, array(tkc.float32, 2)),
        persistent=True,
        prefetch=True,
        num_ctas=clusters,
    )
    assert given.plan.prefetch
    x = np.random.default_rng(0).integers(-2, 3, (3, 512)).astype(np.float32)
    for seed in range(3):
        got = x.copy()
        level4.run(modules[LAST], [got], (3, 1, 1), seed=seed, resident=2)
        np.testing.assert_array_equal(got, x * x.sum(1, keepdims=True))
