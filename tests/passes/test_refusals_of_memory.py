"""What passes that move and join accesses to memory refuse, each asked directly, beside the nearest
thing that it takes.
"""

from types import SimpleNamespace

import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, traced
from tests.language.kernels import i32 as number
from tests.passes.kernels import aligned
from tkc.ir import shared, threads, tile
from tkc.ir.layout import blocked
from tkc.ir.origin import origin
from tkc.ir.plan import LoadPlan
from tkc.ir.rewrite import before
from tkc.ir.text import parse
from tkc.ir.types import TileType, f32
from tkc.ir.values import operations_in
from tkc.passes import (
    allocate_shared,
    fetch_ahead,
    insert_synchronization,
    pipeline_async_copies,
    schedule_programs,
    simplify,
)
from tkc.passes.analysis import alias, mapped
from tkc.passes.cuts import held
from tkc.passes.plan import kernel_of
from tkc.passes.schedule import expand as schedules
from tkc.passes.schedule.expand import End, LoopSchedule, broken_rules, expand

f1, f2, n1 = array(tkc.float32), aligned(tkc.float32, 2), array(tkc.int32)


# ---- loads of a loop in another iteration
def beside(x, flags, o, SEM: tkc.constexpr):
    for i in tkc.range(4):
        v = tkc.load(x, (i, 0), (1, 64))
        tkc.store(o, (i, 0), v + tkc.load(flags.ptr, sem=SEM))


@pytest.mark.parametrize("semantics", ["relaxed", "acquire"])
def test_nothing_is_read_ahead_of_an_acquire(semantics):
    module = traced(beside, f2, f1, f2, SEM=semantics)
    (load,), (loop,) = operations_in(module, tile.Load), operations_in(module, scf.ForOp)
    assert alias.unchanged(load, loop, ()) == (semantics == "relaxed")


def in_turn(x, flags, o, n, SAME: tkc.constexpr):
    for i in tkc.range(0, n, 2):
        v = tkc.load(x, (i, 0), (1, 64))
        v = v + tkc.load(flags.ptr, sem="relaxed")
        tkc.store(x if SAME else o, (i + 1, 0), v)


def of_rows(x, rows, o, n, LISTED: tkc.constexpr):
    at = tkc.load(rows, (0,), (64,)) if LISTED else 0
    for i in tkc.range(n):
        tkc.store(o, (i, 0), tkc.load(x, (at, i), (64, 64)))


@pytest.mark.parametrize("listed", [False, True])
def test_rows_that_are_listed_are_not_fetched_early(listed):
    module = traced(of_rows, f2, n1, f2, number(), LISTED=listed)
    load, (loop,) = operations_in(module, tile.Load)[-1], operations_in(module, scf.ForOp)
    assert fetch_ahead._may_be_early(load, loop, ()) != listed


@pytest.mark.parametrize("broken", [False, True])
def test_no_load_is_early_where_that_breaks_a_rule(monkeypatch, broken):
    module = traced(in_turn, f2, f1, f2, number(), SAME=False)
    (load,), (loop,) = operations_in(module, tile.Load), operations_in(module, scf.ForOp)
    monkeypatch.setattr(fetch_ahead, "broken_rules", lambda *given: ["one"] * broken)
    assert fetch_ahead._may_be_early(load, loop, ()) != broken


@pytest.mark.parametrize("own, ahead, may", [(True, 4, True), (False, 4, False), (True, 1, False)])
def test_programs_that_are_claimed_are_copied_for_as_far_as_they_are_known(
    monkeypatch, own, ahead, may
):
    at = pipeline_async_copies
    (loop,) = operations_in(traced(waiting, n1, number()), scf.WhileOp)
    alloc = shared.Alloc(buffer().result.type)
    loop.after_region.block.insert_op_before(alloc, loop.after_region.block.first_op)
    monkeypatch.setattr(at, "own_layout", lambda buffer: own or None)
    monkeypatch.setattr(at, "known_ahead", lambda loop: ahead)
    monkeypatch.setattr(at, "source_unchanged", lambda *given: True)
    monkeypatch.setattr(at, "counted_slice", lambda *given: [])
    given = SimpleNamespace(plan=SimpleNamespace(stages=2), overlaps=())
    copy = SimpleNamespace(buffer=alloc.result, operands=[])
    assert at._runs_ahead(copy, loop, given) == may


def of_views(x, o, n, WHICH: tkc.constexpr):
    for i in tkc.range(n):
        tkc.store(o, (i, 0), tkc.load(WHICH(x, i), (0, 0), (64, 64)))


@pytest.mark.parametrize("carried", [False, True])
def test_a_view_that_the_counter_chooses_may_not_be_there(carried):
    given = aligned(tkc.float32, 3), f2, number()
    module = traced(of_views, *given, WHICH=lambda x, i: x[i] if carried else x[0])
    (load,), (loop,) = operations_in(module, tile.Load), operations_in(module, scf.ForOp)
    view = load.array.owner
    if not carried:
        for op in list(loop.body.block.ops):
            if op in (view, *(v.owner for v in view.operands)):
                op.detach()
                before(loop, op)
    for end, may in (End.ANY, not carried), (End.CLAMP, not carried):
        step = schedules.Step(load, 1, end)
        assert schedules._may_be_loaded(step, loop) == may


def test_what_the_plan_knows_of_is_loaded_early():
    module = traced(beside, f2, f1, f2, SEM="relaxed")
    (load,) = operations_in(module, tile.Load)
    plan = SimpleNamespace(prefetch=False, early_small_loads=True, load=lambda op: LoadPlan())
    assert not fetch_ahead._wanted(load, plan)
    load.attributes["number"] = tile.IntegerAttr(0, tile.i64)
    assert fetch_ahead._wanted(load, plan)


def copying(x, y, lo, hi):
    for i in tkc.range(lo, hi):
        tkc.store(y, (i, 0), tkc.load(x, (i, 0), (1, 64)) + 1)


def simple():
    (loop,) = operations_in(traced(copying, f2, f2, number(), number()), scf.ForOp)
    body = list(loop.body.block.ops)[:-1]
    return loop, body, next(op for op in body if isinstance(op, tile.Load))


@pytest.mark.parametrize(
    "unbounded, end, legal",
    [
        (False, End.ANY, True),
        (True, End.ANY, False),
        (True, End.CLAMP, True),
    ],
)
def test_blocks_outside_of_unbounded_arrays_are_not_there(monkeypatch, unbounded, end, legal):
    monkeypatch.setattr(schedules, "is_unbounded", lambda array: unbounded)
    loop, body, load = simple()
    found = LoopSchedule.of(loop, [([load], 1, end), (body, 0, End.ANY)])
    assert (not list(broken_rules(loop, found))) == legal


@pytest.mark.parametrize("unbounded", [False, True])
def test_only_what_may_not_be_there_is_guarded(monkeypatch, unbounded):
    """Of a loop without iterations nothing is stored; a load gives what nobody reads."""
    monkeypatch.setattr(schedules, "is_unbounded", lambda array: unbounded)
    loop, body, load = simple()
    kernel = alias.kernel_around(loop)
    others = [op for op in body if op is not load]
    expand(loop, LoopSchedule.of(loop, [([load], 2, End.CLAMP), (others, 0, End.CLAMP)]))
    masks = [op.mask is not None for op in operations_in(kernel, tile.Load)]
    assert masks == ([True, True, False] if unbounded else [False] * 3)
    assert not operations_in(kernel, scf.IfOp)


@pytest.mark.parametrize("written", [False, True])
def test_a_wait_keeps_its_place_before_what_somebody_writes(written):
    def kernel(x, flags, o):
        v = tkc.load(x, (0, 0), (1, 64))
        tkc.store(x if written else o, (0, 0), v + tkc.load(flags.ptr, sem="relaxed"))

    module = traced(kernel, f2, f1, f2)
    (load,), (wait,) = operations_in(module, tile.Load), operations_in(module, tile.LoadPointers)
    assert schedules._may_conflict(load, wait, ()) == written
    assert schedules._may_conflict(wait, load, ()) == written


# ---- what is looked up
@pytest.mark.parametrize("same", [False, True])
def test_what_a_loop_changes_is_not_looked_up_ahead(same):
    module = traced(in_turn, f2, f1, f2, number(), SAME=same)
    (load,), (loop,) = operations_in(module, tile.Load), operations_in(module, scf.ForOp)
    of = SimpleNamespace(loop=loop, context=SimpleNamespace(overlaps=()))
    assert pipeline_async_copies._CopiesAhead._is_known(of, load) != same


def kept(x, addresses, o, KNOWN: tkc.constexpr):
    i = tkc.program_id(0)
    out = o if KNOWN else tkc.array(addresses[i], tkc.float32, (64,))
    tkc.store(out, (0,), tkc.load(x, (0,), (64,)))


@pytest.mark.parametrize("known", [False, True])
def test_what_is_stored_nobody_knows_where_may_be_what_programs_share(known):
    module = traced(kept, f1, array(tkc.uint64), f1, KNOWN=known)
    load = next(
        op for op in operations_in(module, tile.Load) if isinstance(op.result.type, TileType)
    )
    moved = schedule_programs._each_program(load.parent, True, ())
    assert (load not in moved) == known


# ---- tensor maps
def viewed(x, o, OF: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(OF(x), (0, 0), (64, 64)))


@pytest.mark.parametrize(
    "of, why",
    [
        (lambda x: x[1], ""),
        (lambda x: x[0:2][1], "part of one"),
        (lambda x: x[1][0:64], "part of one"),
    ],
)
def test_a_part_of_an_array_has_no_tensor_map(of, why):
    (load,) = operations_in(traced(viewed, aligned(tkc.float32, 3), f2, OF=of), tile.Load)
    found = mapped.unmapped(load)
    assert (why in found) if why else not found


@pytest.mark.parametrize("begins_before", [False, True])
def test_rows_outside_of_an_array_that_begins_before_its_memory(monkeypatch, begins_before):
    monkeypatch.setattr(mapped, "may_read_before_memory", lambda array: begins_before)
    (load,) = operations_in(traced(viewed, f2, f2, OF=lambda x: x), tile.Load)
    assert ("begins before its memory" in mapped.unmapped(load)) == begins_before


# ---- rows that stay
def in_parts(x, rows, o, AT: tkc.constexpr, STORE: tkc.constexpr):
    """Two loops over the parts of a row: which, may be known before the first, or behind it."""
    i = tkc.program_id(0)
    first = rows[i] if AT == "before" else i
    total = tkc.zeros((1,))
    for n in tkc.range(0, 4096, 512):
        total = total + tkc.sum(tkc.load(x, (first, n), (1, 512)), axis=1)
    second = rows[i] if AT == "behind" else first
    for n in tkc.range(0, 4096, 512):
        if STORE == "early":
            tkc.store(x, (second, n), tkc.zeros((1, 512)))
        v = tkc.load(x, (second, n), (1, 512)) * total[:, None]
        if STORE == "in place":
            tkc.store(x, (second, n), v)
        if STORE == "another":
            tkc.store(o, (second, n), v)
        if STORE == "next":
            tkc.store(x, (second, n + 512), v)
        if STORE == "half":
            tkc.store(x, (second, n), v[:, :256])


def members_of(at, store):
    module = traced(in_parts, f2, n1, f2, AT=at, STORE=store)
    loops = operations_in(module, scf.ForOp)
    loads = [op for op in operations_in(module, tile.Load) if op.parent_op() in loops]
    return loops, loads


@pytest.mark.parametrize("at, there", [("before", True), ("behind", False)])
def test_rows_that_are_chosen_behind_a_loop_are_not_read_before_it(at, there):
    loops, loads = members_of(at, "another")
    assert held._addressed_before(loads[1], loops[0]) == there
    assert held._may_be_held(loads[1:], loops[0], ()) == there


@pytest.mark.parametrize(
    "store, stay",
    [("in place", True), ("another", True), ("early", False), ("next", False), ("half", False)],
)
def test_rows_stay_until_each_part_of_them_is_written(store, stay):
    loops, loads = members_of("before", store)
    assert held._may_be_held(loads, loops[0], ()) == stay
    (written,) = (op for op in loops[1].walk() if isinstance(op, tile.Store))
    if store != "another":
        assert held._is_in_its_place(written, loads[1], ()) == stay
        number = origin(written.array).index
        assert not held._is_in_its_place(written, loads[1], ((number, number),))


# ---- buffers
S = '!tile.shared<1, 32x64xf32, "32x64xb32">'
HALF = '!tile.shared<1, 32x64xf16, "32x64xb16">'
T = f'!tile.tile<32x64xf32, "{blocked((32, 64), vector=4, warps=8)}">'
H = T.replace("f32", "f16")
BRANCHES = f"""tile.kernel @branches(%yes: i1) {{level = 3 : i64, warps = 8 : i64}} {{
  scf.if %yes {{
    %v = tkc_constant : {T}
    %s = tile.alloc : {S}
    tile.write %s, %v : ({S}, {T})
    %w = tile.read %s : ({S}) -> {T}
  }} else {{
    %v = tkc_constant : OTHER_TILE
    %s = tile.alloc : OTHER
    tile.write %s, %v : (OTHER, OTHER_TILE)
    READ
  }}
  tile.return
}}""".replace("tkc_constant", "tile.constant 1.0")


@pytest.mark.parametrize(
    "other, held_in, read, share",
    [(S, T, True, True), (HALF, H, True, False), (S, T, False, False)],
)
def test_branches_share_buffers_of_one_type_for_one_purpose(other, held_in, read, share):
    text = BRANCHES.replace("READ", f"%w = tile.read %s : ({other}) -> {held_in}" if read else "")
    module = parse(text.replace("OTHER_TILE", held_in).replace("OTHER", other))
    (branch,) = operations_in(module, scf.IfOp)
    allocate_shared._share_between_branches(branch)
    assert len(operations_in(module, shared.Alloc)) == (1 if share else 2)


def buffer() -> shared.Alloc:
    return operations_in(
        parse(BRANCHES.replace("READ", "").replace("OTHER_TILE", T).replace("OTHER", S)),
        shared.Alloc,
    )[0]


@pytest.mark.parametrize(
    "copies, posted, own", [(1, False, True), (2, False, False), (1, True, False)]
)
def test_which_buffers_one_instance_has_for_itself(copies, posted, own):
    role = threads.Role("consumer", 4, copies)
    role.body.block.add_op(alloc := shared.Alloc(buffer().result.type))
    role.body.block.add_op(shared.Read(alloc.result, TileType((32, 64), f32)))
    if posted:
        role.body.block.add_op(threads.BroadcastLoad(alloc.result))
    assert allocate_shared._is_of_one_instance(alloc) == own


@pytest.mark.parametrize("roles, bytes_", [(1, 8192), (2, 16384)])
def test_buffers_of_roles_that_run_at_once_share_no_bytes(roles, bytes_):
    """One after the other in the program they do."""
    (kernel,) = parse("tile.kernel @k() {level = 4 : i64, warps = 8 : i64} {\n  tile.return\n}").ops
    made = [threads.Role(name, 4) for name in ("consumer", "converter")[:roles]]
    before(kernel.body.block.first_op, threads.Roles(made))
    for i in range(2):
        block = made[i % roles].body.block
        block.add_op(alloc := shared.Alloc(buffer().result.type))
        block.add_op(shared.Read(alloc.result, TileType((32, 64), f32)))
    assert allocate_shared._place(allocate_shared.lifetimes(kernel, within_roles=True)) == bytes_


# ---- barriers
@pytest.mark.parametrize("everywhere", [False, True])
def test_no_barrier_of_a_block_orders_what_other_blocks_write(everywhere):
    alloc, one = shared.Alloc(buffer().result.type), tile.Constant(1.0, TileType((32, 64), f32))
    write = shared.Write(alloc.result, one.result, everywhere)
    assert [use.operation for use in alloc.result.uses] == [write]
    place = insert_synchronization.Place(alloc)
    assert insert_synchronization._is_ordered(threads.BlockBarrier(), place) != everywhere


def waiting(o, n):
    i, k = 0, n
    while i < n:
        i, k = k, i + 1
    tkc.store(o, (0,), tkc.full((4,), k, tkc.int32))


@pytest.mark.parametrize("swapped", [False, True])
def test_what_a_test_passes_on_in_another_order_is_not_what_is_carried(swapped):
    (loop,) = operations_in(traced(waiting, n1, number()), scf.WhileOp)
    test = loop.before_region.block.last_op
    if swapped:
        test.operands = [test.operands[0], *reversed(test.operands[1:])]
    assert len(insert_synchronization._carried(loop)) == (0 if swapped else 2)


def waiting_alone(o, n):
    i, k = 0, n
    while i < n:
        i, k = i + 1, k * 2
    tkc.store(o, (0,), tkc.full((4,), i, tkc.int32))


@pytest.mark.parametrize("swapped", [False, True])
def test_what_a_loop_of_claims_carries_for_nobody_goes_where_its_test_passes_all_on(swapped):
    kernel = kernel_of(traced(waiting_alone, n1, number()))
    (loop,) = operations_in(kernel, scf.WhileOp)
    test = loop.before_region.block.last_op
    if swapped:
        test.operands = [test.operands[0], *reversed(test.operands[1:])]
    assert simplify.sweep(kernel) != swapped
    (loop,) = operations_in(kernel, scf.WhileOp)
    assert len(loop.results) == (2 if swapped else 1)
    simplify.sweep(kernel)  # what that was computed of
    assert not simplify.sweep(kernel)
