"""What steps of warp roles refuse: what a producer and its consumers do early, late or together.
Each is asked directly, beside the nearest thing that it takes.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import StringAttr, i1, i32
from xdsl.ir import Block, Region

import tkc
from tests.language.kernels import attention, traced
from tests.language.kernels import f32 as scalar
from tests.language.kernels import i32 as number
from tests.passes.arrays import f1, f2, h2, n1
from tests.passes.kernels import aligned, context, through
from tkc.errors import VerifyError
from tkc.ir import shared, threads, tile
from tkc.ir.layout import Layout, blocked
from tkc.ir.plan import LoadPlan, fill_ring
from tkc.ir.rewrite import before
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.types import SharedType, TileType, f32
from tkc.ir.values import operations_in
from tkc.passes import rotate_loops, stagger_programs, swizzle_shared
from tkc.passes.pipeline import PIPELINE
from tkc.passes.warpgroups import (
    broadcasts,
    carried_dots,
    co_resident,
    consuming,
    cross_tile_prologue,
    epilogue_stores,
    lookahead,
    pingpong,
    written_operands,
)

T = TileType((64, 64), f32)


def constant(n=0, t=i32):
    return tile.Constant(n, t)


def looping(*carried):
    """A loop in a block of its own, that carries some values."""
    around = Block([lb := constant(), ub := constant(8), step := constant(1), *carried])
    body = Block(arg_types=[i32, *(op.result.type for op in carried)])
    loop = scf.ForOp(lb, ub, step, [op.result for op in carried], Region(body))
    around.add_op(loop)
    return loop, body


# ---- the next program's head
def stream(head=(), late=(), needed=(), places=(), branch=None):
    """Of a program that begins with a wait, unless told otherwise."""
    return SimpleNamespace(
        head=list(head), late=list(late), needed=set(needed), places=list(places), branch=branch
    )


def passing(*more):
    loop, body = looping()
    body.add_ops([*more, scf.YieldOp()])
    return loop


def test_heads_are_straight_code_of_what_is_known_early():
    possible, one = cross_tile_prologue.Stream.possible, constant()
    assert possible(stream([one]))
    assert not possible(stream())
    assert not possible(stream([passing()]))
    assert possible(stream([one], [constant()]))
    assert not possible(stream([one], [threads.BlockBarrier()]))
    assert possible(stream([one], [passing(constant())]))
    assert not possible(stream([one], [passing(threads.BlockBarrier())]))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("needed", [False, True])
def test_what_a_head_needs_is_known_at_each_place(early, needed):
    first, place, second = constant(1), threads.BlockBarrier(), constant(2)
    way = Block([first, place, second, scf.YieldOp(first if early else second)])
    branch = scf.IfOp(constant(1, i1), [i32], Region(way), Region(Block([constant()])))
    given = stream([constant()], needed=branch.results if needed else (), places=[place])
    given.branch = branch
    assert cross_tile_prologue.Stream.possible(given) == (early or not needed)


@pytest.mark.parametrize("refuses", ["", "loads", "dots", "apart"])
def test_a_head_is_early_in_both_roles_or_in_none(monkeypatch, refuses):
    at = cross_tile_prologue
    done = []
    monkeypatch.setattr(at, "_programs", lambda role: role)
    for name, role in ("_producers", "loads"), ("_consumers", "dots"):
        made = SimpleNamespace(possible=lambda role=role: refuses != role)
        monkeypatch.setattr(at, name, lambda programs, made=made: made)
    monkeypatch.setattr(at, "_is_apart", lambda loads: refuses != "apart")
    monkeypatch.setattr(at, "_stream", done.append)
    monkeypatch.setattr(at, "_ahead", done.append)
    assert at.overlap_epilogue(None, None) == (not refuses)
    assert len(done) == (0 if refuses else 2)


@pytest.mark.parametrize("begins, pending, has", [(1, 0, True), (0, 0, False), (1, 1, False)])
def test_consumers_begin_with_dots_and_end_with_none_in_flight(monkeypatch, begins, pending, has):
    body = Block([one := constant()])
    ways = (Region(Block([scf.YieldOp()])) for _ in range(2))
    branch = scf.IfOp(constant(1, i1), [], *ways)
    loop = SimpleNamespace(after_region=SimpleNamespace(block=body))
    monkeypatch.setattr(cross_tile_prologue, "_around", lambda body, kind: branch)
    monkeypatch.setattr(cross_tile_prologue, "_head_before", lambda branch: [one] * begins)
    end = threads.DotWait(pending, [])
    monkeypatch.setattr(cross_tile_prologue, "_last_wait", lambda block: end)
    made = lambda loop, branch, head, ends: SimpleNamespace(passes=[], head=head)  # noqa: E731
    monkeypatch.setattr(cross_tile_prologue, "Stream", made)
    assert (cross_tile_prologue._consumers(loop) is not None) == has


# ---- the next stage
@pytest.mark.parametrize("steps, asks", [(1, True), (2, False)])
def test_the_next_stage_is_asked_for_where_it_is_the_next_iterations(steps, asks):
    loop, body = looping(constant(), constant())
    ring = threads.Barriers(3)
    before(loop, ring)
    _, stage, parity = body.args
    body.add_op(threads.MbarrierWait(ring.result, stage, parity))
    for _ in range(steps):
        step = threads.RingNext(stage, parity, 3)
        body.add_op(step)
        stage, parity = step.results
    body.add_ops([threads.DotWait(0, []), tile.Constant(0.0, T), scf.YieldOp(stage, parity)])
    role = threads.Role("consumer", 4)
    around = loop.parent
    for op in list(around.ops):
        op.detach()
        role.body.block.add_op(op)
    lookahead.look_ahead(role)
    assert bool(operations_in(role, threads.MbarrierTest)) == asks


# ---- sums that run on
@pytest.mark.parametrize(
    "more, touched, outside, depth, runs",
    [
        ((), False, False, 2, True),
        ((None,), False, False, 2, False),
        ((), True, False, 2, False),
        ((), False, True, 2, False),
        ((), False, False, 1, False),
    ],
)
def test_which_sums_run_on(monkeypatch, more, touched, outside, depth, runs):
    loop, body = looping(constant(0.0, T))
    carried, buffer = body.args[1], constant(0.0, T)
    before(loop, buffer)
    dot = tile.Dot(buffer.result, buffer.result, carried)
    issued = tile.Dot(buffer.result, buffer.result, carried)
    body.add_ops([start := constant(), issued, dot, scf.YieldOp(dot.result)])
    monkeypatch.setattr(carried_dots, "written_by", lambda dot: [])
    monkeypatch.setattr(carried_dots, "is_touched_later", lambda dot: touched)
    monkeypatch.setattr(carried_dots, "_computed_of", lambda dot, block: set())
    monkeypatch.setattr(carried_dots, "_computes", lambda op: False)
    stages = [(SimpleNamespace(stages=depth), None, loop.parent if outside else body)]
    flight = SimpleNamespace(dot=dot, issued=issued, before=more, stages=stages)
    assert carried_dots._runs_on(flight, start) == runs


# ---- what reads a stage
@pytest.mark.parametrize("instruction", ["wgmma", "mma"])
def test_only_dots_in_flight_give_their_stages_back_themselves(monkeypatch, instruction):
    def product(a, b, o):
        tkc.store(o, (0, 0), tkc.dot(tkc.load(a, (0, 0), (64, 32)), tkc.load(b, (0, 0), (32, 64))))

    (dot,) = operations_in(traced(product, h2, h2, f2), tile.Dot)
    dot.instruction = StringAttr(instruction)
    stage = SimpleNamespace(parent=dot.parent)
    monkeypatch.setattr(consuming, "_filled_by_others", lambda dot, rings: [stage])
    here = SimpleNamespace(block=dot.parent, rings={}, readers=[])
    consuming.Overlap._note_readers(here)
    assert here.readers == ([(stage, dot)] if instruction == "wgmma" else [])


# ---- operands that threads write
S = SharedType(1, (64, 64), f32, SharedLayout((64, 64), 32))


@pytest.mark.parametrize(
    "numbered, first, nested, can",
    [
        (False, True, False, True),
        (True, True, False, False),
        (False, False, False, False),
        (False, True, True, False),
    ],
)
def test_which_buffers_warpgroups_exchange(numbered, first, nested, can):
    loop, body = looping()
    acc = before(loop, tile.Constant(0.0, T)).result
    body.add_op(alloc := shared.Alloc(S))
    write = shared.Write(alloc.result, acc)
    dot = tile.Dot(alloc.result, alloc.result, acc)
    if numbered:
        fill_ring(write, 0)
    if nested:
        body.add_op(yes := constant(1, i1))
        inner = scf.IfOp(yes, [], Region(Block([dot, scf.YieldOp()])))
        body.add_ops([write, inner])
    else:
        body.add_ops([write, dot] if first else [dot, write])
    body.add_op(scf.YieldOp())
    assert written_operands.can_exchange(alloc) == can


# ---- programs that take turns
def in_steps(x, counts, o, n, LAST: tkc.constexpr):
    for p in tkc.range(n):
        total = tkc.zeros((64,))
        k = 0
        for _ in tkc.range(2):
            for _ in tkc.range(0, LAST(p, k, counts), 1):
                total = total + tkc.load(x, (0,), (64,))
            k = k + 1
        tkc.store(o, (p, 0), total[None, :])


@pytest.mark.parametrize(
    "last, depends",
    [
        (lambda p, k, counts: p + 1, False),
        (lambda p, k, counts: counts[p], True),
        (lambda p, k, counts: k, True),
    ],
)
def test_steps_that_others_make_follow_from_their_program(last, depends):
    module = traced(in_steps, f1, n1, f2, number(), LAST=last)
    loop, _, inner = operations_in(module, scf.ForOp)
    anchor = loop.body.block.last_op
    steps = pingpong._Steps(loop, anchor, loop.body.block.args[0])
    if not depends:
        assert steps._trips(inner).type == i32
        return
    with pytest.raises(VerifyError, match="depend on more than the program"):
        steps._trips(inner)


# ---- programs beside each other
class Loop(scf.ForOp):
    """One of which only what is in it counts."""

    def __init__(self, *found):
        self.found = found

    def walk(self):
        return iter(self.found)


class Copy(shared.CopyAsync):
    def __init__(self):
        pass


@pytest.mark.parametrize("rings", [("one", "other"), ("one", "one")])
def test_one_loop_fills_a_ring(monkeypatch, rings):
    copies = Copy(), Copy()
    names = dict(zip(map(id, copies), rings, strict=True))
    monkeypatch.setattr(co_resident, "ring_of", lambda copy: names[id(copy)])
    loops = [Loop(copy) for copy in copies]
    if len({*rings}) == 2:
        assert list(co_resident.shared_by(Loop(*loops))) == [*rings]
        return
    with pytest.raises(VerifyError, match="two loops fill one ring"):
        co_resident.shared_by(Loop(*loops))


def test_a_counter_is_no_stage_of_a_ring():
    loop, body = looping(constant(), constant())
    outer = Block(arg_types=[i32, i32])
    loop.operands = [*loop.operands[:3], *outer.args]
    here = SimpleNamespace(body=outer)
    assert co_resident.Consumer._carried(here, body.args[1]) == (*outer.args,)
    with pytest.raises(VerifyError, match="not what its loops carry"):
        co_resident.Consumer._carried(here, body.args[0])


# ---- what programs tell each other
def telling(words, o, n, CARRIED: tkc.constexpr, CHOSEN: tkc.constexpr):
    total = 0
    for i in tkc.range(n):
        said = 1
        if CHOSEN and i > 2:
            said = tkc.load(o.ptr + i)
        tkc.store(words.ptr + i, said, sem="release")
        told = tkc.load(words.ptr + i, sem="acquire")
        if CARRIED:
            total = total + told
        tkc.store(o, (i,), total if CARRIED else told)


@pytest.mark.parametrize(
    "carried, chosen, may", [(False, False, True), (True, False, False), (False, True, False)]
)
def test_what_is_told_early_is_neither_carried_nor_chosen(carried, chosen, may):
    module = traced(telling, n1, n1, number(), CARRIED=carried, CHOSEN=chosen)
    (loop,) = operations_in(module, scf.ForOp)
    assert (stagger_programs._schedule(loop) is not None) == may


@pytest.mark.parametrize("broken", [False, True])
def test_no_dot_is_late_where_that_breaks_a_rule(monkeypatch, broken):
    at = context("sm_90a")
    b4 = aligned(tkc.bfloat16, 4)
    module = traced(attention, *(b4,) * 4, scalar(), CAUSAL=False, D=64, BM=64, BN=64)
    through(module, PIPELINE[PIPELINE.index("rotate-loops") - 1], at)
    monkeypatch.setattr(rotate_loops, "broken_rules", lambda *given: ["one"] * broken)
    rotate_loops.run(module, at)
    assert any("rotate-loops: a dot" in line for line in at.decisions) != broken


# ---- numbers beside dots
@pytest.mark.parametrize("how, posted", [("", 1), ("a branch", 0), ("an effect", 0)])
def test_numbers_are_broadcast_of_which_little_is_made_early(monkeypatch, how, posted):
    def kernel(x, o):
        tkc.store(o, (0,), tkc.full((4,), x[0] + 1, tkc.float32))

    module = traced(kernel, f1, f1)
    (load,) = operations_in(module, tile.Load)
    (added,) = (op for op in module.walk() if op.name == "tile.add")
    if how == "a branch":
        yes = before(added, constant(1, i1)).result
        before(added, scf.IfOp(yes, [], Region(Block([added.clone(), scf.YieldOp()]))))
    if how == "an effect":
        before(added, tile.Store(load.array, load.offsets, load.result, [-1]))
    before(added.next_op, shared.WaitCopies([], 0))
    monkeypatch.setattr(broadcasts, "_planned", lambda kernel, plan: [load])
    monkeypatch.setattr(broadcasts, "_posted", lambda *given: "ring")
    kernel_op = SimpleNamespace(body=SimpleNamespace(block=load.parent))
    assert len(broadcasts.insert_broadcasts(kernel_op, None)) == posted


# ---- parts of warpgroups
def test_a_column_has_no_parts():
    """Nor is it divided by the number of warpgroups."""
    held = blocked((128, 1), vector=1, warps=8)
    with np.errstate(all="raise"):
        part = epilogue_stores.own_part(Layout.parse(str(held)))
    assert part is None or part.axis == 0


# ---- blocks in shared memory
@pytest.mark.parametrize(
    "moved, matrix, wanted, kept",
    [
        ("registers", True, False, True),
        ("lanes", True, False, False),
        ("registers", False, False, False),
        ("registers", True, True, False),
    ],
)
def test_threads_keep_what_matrices_can_be_read_in_alone(monkeypatch, moved, matrix, wanted, kept):
    def kernel(x, o):
        tkc.store(o, (0, 0), tkc.load(x, (0, 0), (64, 64)))

    module = traced(kernel, f2, f2)
    (load,) = operations_in(module, tile.Load)
    (store,) = operations_in(module, tile.Store)
    own, other = (blocked((64, 64), vector=v, warps=4) for v in (4, 2))
    convert = before(store, shared.Convert(load.result, TileType((64, 64), f32, other)))
    store.operands = [convert.result if isinstance(v.type, TileType) else v for v in store.operands]
    at = swizzle_shared
    monkeypatch.setattr(at, "_copied", lambda op, memory, context: shared.Alloc(S).result)
    monkeypatch.setattr(at, "of_block", lambda op: None)
    monkeypatch.setattr(at, "layout_of", lambda value: own)
    monkeypatch.setattr(at, "movement", lambda src, dst: moved)
    is_matrix = {own: matrix, other: wanted}
    monkeypatch.setattr(at, "matrix_access", lambda layout, *of: 1 if is_matrix[layout] else None)
    made = lambda buffer, t, user, context: before(user, tile.Constant(0.0, t)).result  # noqa: E731
    monkeypatch.setattr(at, "read", made)
    at._staged(load, None)
    assert bool(operations_in(module, shared.Convert)) == kept


def changed(x, o, n, SAME: tkc.constexpr):
    for i in tkc.range(n):
        tkc.store(x if SAME else o, (i + 1, 0), tkc.load(x, (i, 0), (1, 64)))


@pytest.mark.parametrize("path, same, fixed", [("own", 0, 1), ("own", 1, 0), ("held", 1, 1)])
def test_a_copy_is_early_of_what_is_held_or_stays(monkeypatch, path, same, fixed):
    (load,) = operations_in(traced(changed, f2, f2, number(), SAME=bool(same)), tile.Load)
    monkeypatch.setattr(swizzle_shared, "_planned", lambda op, context: LoadPlan(path))
    assert swizzle_shared._is_fixed(load, SimpleNamespace(overlaps=())) == bool(fixed)
