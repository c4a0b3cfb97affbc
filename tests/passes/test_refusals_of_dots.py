"""What plans of dots, of their operands and of their results refuse, each predicate asked directly,
beside the nearest thing that it takes.
"""

from types import SimpleNamespace

import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, traced
from tests.language.kernels import i32 as number
from tests.passes.arrays import f1, f2, h2, n1
from tests.passes.kernels import aligned, context
from tkc.ir import tile
from tkc.ir.layout import blocked
from tkc.ir.types import TileType, f32
from tkc.ir.values import operations_in
from tkc.passes import match_heights, plan, split_sums
from tkc.passes.analysis import alias
from tkc.passes.cuts.axes import NotCut
from tkc.passes.cuts.cut import Cut
from tkc.passes.layouts import accumulator_stores, conversions, epilogue_subtiles
from tkc.passes.layouts.epilogue_subtiles import StoredResult
from tkc.passes.plan import kernel_of
from tkc.passes.planning import gathers, hopper, operands, rings
from tkc.passes.planning.roles import dots, memory, programs, results, sharing
from tkc.passes.programs import split_k


# ---- which dots
def of_heights(a, b, o, SHORT: tkc.constexpr, SUM: tkc.constexpr, OTHERS: tkc.constexpr):
    """A dot of some rows, which may add to what a loop carries, and others beside it."""
    acc, sums = tkc.zeros((SHORT, 64)), [tkc.zeros((rows, 64)) for rows, _ in OTHERS]
    for k in tkc.range(0, 4096, 64):
        x = tkc.load(b, (k, 0), (64, 64))
        y = tkc.dot(tkc.load(a, (0, k), (SHORT, 64)), x, acc if SUM else None)
        acc = y if SUM else acc + y
        for i, (rows, carried) in enumerate(OTHERS):
            z = tkc.dot(tkc.load(a, (0, k), (rows, 64)), x, sums[i] if carried else None)
            sums[i] = z if carried else sums[i] + z
    tkc.store(o, (0, 0), acc)
    for total in sums:
        tkc.store(o, (0, 0), total)


@pytest.mark.parametrize(
    "rows, summed, others, short",
    [
        (64, False, ((128, True),), True),
        (64, False, ((128, True), (64, False)), True),
        (64, True, ((128, True),), False),
        (128, False, ((128, True),), False),
        (64, False, ((64, False),), False),
        (64, False, ((128, True), (64, True)), False),
    ],
)
def test_which_dots_have_rows_for_one_warpgroup_beside_others(rows, summed, others, short):
    given = {"SHORT": rows, "SUM": summed, "OTHERS": others}
    dot = operations_in(traced(of_heights, h2, h2, f2, **given), tile.Dot)[0]
    assert operands._is_short(dot) == short


def of_batches(a, b, o, BATCH: tkc.constexpr):
    zeros, one = ((0, 0, 0), (2,)) if BATCH else ((0, 0), ())
    x = tkc.load(b, zeros, (*one, 32, 64))
    for rows in (64, 128):
        tkc.store(o, zeros, tkc.dot(tkc.load(a, zeros, (*one, rows, 32)), x))


@pytest.mark.parametrize("batch", [False, True])
def test_dots_of_batches_are_neither_short_nor_turned(batch):
    half, full = (aligned(dtype, 2 + batch) for dtype in (tkc.float16, tkc.float32))
    found = operations_in(traced(of_batches, half, half, full, BATCH=batch), tile.Dot)
    assert operands._is_short(found[0]) != batch
    tall = SimpleNamespace(acc=tile.Constant(0, TileType((64, 128, *[2] * batch), f32)).result)
    high = SimpleNamespace(acc=tile.Constant(0, TileType((128, 64, *[2] * batch), f32)).result)
    assert (match_heights.chosen([tall, high]) == [tall]) != batch


@pytest.mark.parametrize("turned", [False, True])
def test_what_follows_a_transposed_dot_is_transposed_too(turned):
    def kernel(a, b, o):
        x = tkc.dot(tkc.load(a, (0, 0), (64, 64)), tkc.load(b, (0, 0), (64, 64)))
        tkc.store(o, (0, 0), (x.T if turned else x) * 2)

    module = traced(kernel, h2, h2, f2)
    (dot,), (store,) = operations_in(module, tile.Dot), operations_in(module, tile.Store)
    here = SimpleNamespace(results={dot.result})
    assert match_heights.Transposes._follows(here, store.value) == turned


@pytest.mark.parametrize("made, all_", [((True, True), True), ((True, False), False)])
def test_warpgroups_make_the_left_operands_of_all_dots_or_of_none(monkeypatch, made, all_):
    monkeypatch.setattr(sharing, "made_from", lambda dot, options: dot)
    held = SimpleNamespace(held=True)
    request = SimpleNamespace(has_third_role=False, dots=made, options=None, sides=lambda dot: held)
    assert sharing.make_operands(request) == all_


# ---- parts of k
def summed(a, b, o, flags, IN: tkc.constexpr, BEFORE: tkc.constexpr, BEHIND: tkc.constexpr):
    if BEFORE:
        tkc.store(flags, (0,), tkc.zeros((4,)))
    acc = tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 64):
        acc = tkc.dot(tkc.load(a, (0, k), (64, 64)), tkc.load(b, (k, 0), (64, 64)), acc)
        if IN:
            tkc.store(flags, (k,), tkc.zeros((4,)))
    BEHIND(o, flags, acc)


def stored(o, flags, acc):
    tkc.store(o, (0, 0), acc)


def stored_and_told(o, flags, acc):
    tkc.store(o, (0, 0), acc)
    tkc.store(flags, (0,), tkc.zeros((4,)))


def stored_with_sums(o, flags, acc):
    tkc.store(o, (0, 0), acc)
    tkc.store(flags, (0,), tkc.sum(acc, axis=1))


def stored_of_sums(o, flags, acc):
    tkc.store(o, (0, 0), acc)
    tkc.store(flags, (0,), tkc.sum(acc, axis=1) * 2)


@pytest.mark.parametrize(
    "inside, before, why",
    [
        (False, False, ""),
        (True, False, "its loop has effects"),
        (False, True, "something has an effect before its loop"),
    ],
)
def test_which_loops_programs_share(inside, before, why):
    module = traced(summed, h2, h2, f2, f1, IN=inside, BEFORE=before, BEHIND=stored)
    assert split_k.undivided(kernel_of(module), operations_in(module, tile.Dot)) == why


@pytest.mark.parametrize(
    "behind, parts, shared",
    [
        (stored, 2, True),
        (stored, 3, False),
        (stored_and_told, 2, False),
        (stored_with_sums, 2, False),
        (stored_of_sums, 2, False),
    ],
)
def test_programs_finish_shares_of_what_is_computed_element_by_element(behind, parts, shared):
    module = traced(summed, h2, h2, f2, f1, IN=False, BEFORE=False, BEHIND=behind)
    (loop,) = operations_in(module, scf.ForOp)
    assert (split_k.why_not_shared(loop, parts, 1, ()) == "") == shared


@pytest.mark.parametrize(
    "inside, by_rows, meet", [(False, True, True), (True, True, False), (False, False, False)]
)
def test_which_parts_of_k_are_blocks_of_a_cluster(inside, by_rows, meet):
    module = traced(summed, h2, h2, f2, f1, IN=inside, BEFORE=False, BEHIND=stored)
    request = SimpleNamespace(
        options=SimpleNamespace(split_k=2, cluster=None, roles=None),
        kernel=kernel_of(module),
        dots=operations_in(module, tile.Dot),
        loops=operations_in(module, scf.ForOp),
        by_rows=by_rows,
        sides=lambda dot: SimpleNamespace(swapped=False),
        overlaps=(),
    )
    assert sharing._parts_may_meet(request) == meet


def test_nothing_is_cut_of_what_is_not_used():
    module = traced(summed, h2, h2, f2, f1, IN=False, BEFORE=False, BEHIND=lambda o, flags, x: None)
    (loop,) = operations_in(module, scf.ForOp)
    with pytest.raises(NotCut):
        Cut.of_uses(loop.results[0], 1, ())


def in_turn(a, b, o, BEGIN: tkc.constexpr):
    total = tkc.zeros((64, 64))
    for k in tkc.range(tkc.program_id(0) * BEGIN, a.shape[1], 256):
        total = tkc.dot(tkc.load(a, (0, k), (64, 64)), tkc.load(b, (k, 0), (64, 64)), total)
    tkc.atomic_add(o, (0, 0), total)


@pytest.mark.parametrize("begin, takes", [(64, True), (48, False)])
def test_steps_in_turn_are_a_number_of_programs(begin, takes):
    (loop,) = operations_in(traced(in_turn, h2, h2, f2, BEGIN=begin), scf.ForOp)
    assert sharing._takes_steps_in_turn(loop) == takes


# ---- sums in parts
def in_chains(a, b, o, CHAIN: tkc.constexpr):
    acc = tkc.zeros((256, 256))
    for k in tkc.range(0, a.shape[1], 64):
        x, y = tkc.load(a, (0, k), (256, 64)), tkc.load(b, (k, 0), (64, 256))
        acc = acc + tkc.dot(x, y) if CHAIN else tkc.dot(x, y, acc)
    tkc.store(o, (0, 0), acc)


@pytest.mark.parametrize("chain", [False, True])
def test_what_goes_straight_round_a_loop_has_no_parts(chain):
    (dot,) = operations_in(traced(in_chains, h2, h2, f2, CHAIN=chain), tile.Dot)
    assert split_sums._of_rows(dot) == chain
    assert split_sums.axis_of(dot, 2) == (0 if chain else 1)
    assert operands.parts_of(dot, 4, 256) == ((2, 2) if chain else (1, 1))


# ---- the order of k
def of_a_result(q, k, v, o, TURNED: tkc.constexpr):
    """The scores of a product, in 8 bits, are the left operand of another."""
    s = tkc.dot(tkc.load(q, (0, 0), (64, 64)), tkc.load(k, (0, 0), (64, 64)).T).to(v.dtype)
    block = tkc.load(v, (0, 0), (64, 64))
    tkc.store(o, (0, 0), tkc.dot(s, block.T if TURNED else block))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_what_is_written_keeps_its_order_of_k_where_the_right_operand_does(turned, shared):
    e2 = aligned(tkc.float8_e4m3, 2)
    *_, dot = operations_in(traced(of_a_result, e2, e2, e2, f2, TURNED=turned), tile.Dot)
    options = {"roles": "cooperative", "split_warps": (4, 2)} if shared else {}
    given = context("sm_90a", swap_dots=False, **options).options
    assert operands.Sides.of(dot, given).written[0] == shared
    assert operands.permuted(dot, given) == (not shared or not turned)


def in_a_row(a, b, o, TURNED: tkc.constexpr):
    """Three products, of which the second one's left operand is turned, or the third one's."""
    x, y = tkc.load(a, (0, 0), (64, 64)), tkc.load(b, (0, 0), (64, 64))
    one = tkc.dot(x, y).to(a.dtype)
    two = tkc.dot(one if TURNED else one.T, y).to(a.dtype)
    tkc.store(o, (0, 0), tkc.dot(two.T if TURNED else two, y))


@pytest.mark.parametrize("turned", [False, True])
def test_what_a_product_is_of_may_be_turned(turned):
    *_, last = operations_in(traced(in_a_row, h2, h2, f2, TURNED=turned), tile.Dot)
    assert operands._is_turned_result(last.a) == turned


# ---- programs beside each other
def walked(a, b, o, rows, FIRST: tkc.constexpr, LAST: tkc.constexpr):
    i, total = tkc.program_id(0), tkc.zeros((64, 64))
    for k in tkc.range(FIRST(i, rows), LAST(i, rows), 64):
        total = tkc.dot(tkc.load(a, (0, k), (64, 64)), tkc.load(b, (k, 0), (64, 64)), total)
    tkc.store(o, (i * 64, 0), total)


def found(i, rows):
    return tkc.sum((tkc.load(rows, (0,), (64,)) < i).to(tkc.int32)) * 64


@pytest.mark.parametrize(
    "first, last, why",
    [
        (lambda i, rows: 0, lambda i, rows: i * 64, ""),
        (lambda i, rows: 0, lambda i, rows: rows[0] * 64, ""),
        (lambda i, rows: 0, lambda i, rows: rows[i] * 64, "bounds are loaded from a place"),
        (lambda i, rows: 0, found, "bounds are computed of a tile"),
        (lambda i, rows: i * 32, lambda i, rows: i * 64, "do not begin whole steps apart"),
    ],
)
def test_programs_share_copies_of_steps_that_each_knows(first, last, why):
    module = traced(walked, h2, h2, f2, n1, FIRST=first, LAST=last)
    loop = next(op for op in operations_in(module, scf.ForOp))
    request = SimpleNamespace(
        operand_loads=[op for op in operations_in(module, tile.Load) if op.parent_op() is loop]
    )
    said = sharing._apart_by_steps(request, loop)
    assert (why in said) if why else not said


def test_what_makes_a_number_of_a_tile():
    module = traced(walked, h2, h2, f2, n1, FIRST=lambda i, rows: 0, LAST=found)
    loaded = next(
        op for op in operations_in(module, tile.Load) if isinstance(op.result.type, TileType)
    )
    (compared,) = (op for op in module.walk() if op.name == "tile.lt")
    (summed_up,) = operations_in(module, tile.Reduce)
    given = loaded, compared, operations_in(module, tile.ProgramId)[0], summed_up
    assert list(map(sharing._is_of_a_tile, given)) == [False, False, False, True]


@pytest.mark.parametrize("unbounded", [False, True])
def test_no_program_beside_others_reads_addresses_that_nothing_bounds(monkeypatch, unbounded):
    monkeypatch.setattr(sharing, "is_unbounded", lambda array: unbounded)
    module = traced(walked, h2, h2, f2, n1, FIRST=lambda i, rows: 0, LAST=lambda i, rows: 64)
    (loop,) = operations_in(module, scf.ForOp)
    request = SimpleNamespace(
        claims=False,
        options=SimpleNamespace(programs=2),
        operand_loads=[op for op in operations_in(module, tile.Load) if op.parent_op() is loop],
        overlaps=(),
    )
    assert bool(sharing._apart_by_loop(request, loop)) == unbounded


@pytest.mark.parametrize("in_parts", [False, True])
def test_no_program_of_a_part_runs_beside_others(monkeypatch, in_parts):
    monkeypatch.setattr(sharing, "written_operands", lambda dots, options: [])
    request = SimpleNamespace(
        rows=64, has_third_role=False, dots=[], options=None, operand_loads=[], lone_loop=None
    )
    assert bool(sharing._apart_by_operands(request, in_parts)) == in_parts


@pytest.mark.parametrize("again", [False, True])
def test_warpgroups_together_read_no_operand_again(monkeypatch, again):
    monkeypatch.setattr(sharing, "is_read_again", lambda load: again)
    module = traced(walked, h2, h2, f2, n1, FIRST=lambda i, rows: 0, LAST=lambda i, rows: 64)
    both = SimpleNamespace(written=(False, False), held=False)
    request = SimpleNamespace(dots=operations_in(module, tile.Dot), sides=lambda dot: both)
    assert bool(sharing._together_by_dots(request)) == again


# ---- roles
@pytest.mark.parametrize(
    "groups, others, has", [(1, False, True), (2, False, True), (4, False, False), (2, True, False)]
)
def test_a_third_role_has_registers_and_reads_as_it_relays(monkeypatch, groups, others, has):
    monkeypatch.setattr(dots, "_is_read_by_others", lambda load: others)
    load = SimpleNamespace(result=tile.Constant(0, TileType((64, 64), f32)).result)
    request = SimpleNamespace(
        has_third_role=True, relaid=[load], converted=[], copied_by_threads=[]
    )
    if has:
        assert dots._third_role(request, groups)
        return
    with pytest.raises(dots.NoRoles):
        dots._third_role(request, groups)


@pytest.mark.parametrize(
    "members, option, first, pays",
    [(3, True, 0, True), (3, True, 1, False), (1, True, 1, True), (1, None, 1, False)],
)
def test_no_first_dot_is_early_behind_blocks_of_other_programs(members, option, first, pays):
    begin = (lambda i, rows: i * 64) if first else (lambda i, rows: 0)
    module = traced(walked, h2, h2, f2, n1, FIRST=begin, LAST=lambda i, rows: 4096)
    options = SimpleNamespace(cross_tile_prologue=option, debug=0)
    request = SimpleNamespace(lone_loop=operations_in(module, scf.ForOp)[0], options=options)
    given = SimpleNamespace(members=members, consumers=1), None, None
    assert programs._prologue_pays(request, *given) == pays


@pytest.mark.parametrize("overlaps, can", [((), True), (((0, 2),), False)], ids=str)
def test_no_first_dot_is_early_of_what_programs_write(overlaps, can):
    module = traced(walked, h2, h2, f2, n1, FIRST=lambda i, rows: 0, LAST=lambda i, rows: 64)
    loads = operations_in(module, tile.Load)
    request = SimpleNamespace(
        dots=operations_in(module, tile.Dot),
        options=context("sm_90a").options,
        has_third_role=False,
        copies_wait=False,
        operand_loads=loads,
        overlaps=overlaps,
    )
    execution = SimpleNamespace(late=request.dots)
    assert programs._can_begin_next(request, execution, [{*loads}]) == can


@pytest.mark.parametrize(
    "waits, inside, searched", [(True, False, 1), (True, True, 0), (False, True, 1)]
)
def test_no_dot_is_late_of_what_its_loop_stores(monkeypatch, waits, inside, searched):
    module = traced(summed, h2, h2, f2, f1, IN=inside, BEFORE=False, BEHIND=stored)
    monkeypatch.setattr(dots, "best_stages", lambda *given: "found")
    monkeypatch.setattr(dots, "_may_run_late", lambda *given: True)
    request = SimpleNamespace(
        options=SimpleNamespace(rotate=None),
        context=context("sm_90a"),
        dots_by_block=[operations_in(module, tile.Dot)],
        copies_wait=waits,
    )
    assert len(dots._searched(request, SimpleNamespace(groups=1), False)) == searched


# ---- memory
@pytest.mark.parametrize("least, taken, again", [(64, 1, True), (128, 1, False), (64, 2, False)])
def test_operands_take_turns_where_that_needs_less(monkeypatch, least, taken, again):
    tried = []

    def division(request, sharing, execution, rings, written):
        tried.append(written)
        if len(tried) == 1:
            raise memory.NoRoles("no room")
        return SimpleNamespace(decided=lambda: written)

    monkeypatch.setattr(memory, "_Division", division)
    monkeypatch.setattr(memory, "written_bytes", lambda written, kernel: least)
    written = [tile.Constant(0, TileType((4, 8), f32)).result]
    request, execution = SimpleNamespace(kernel=None), SimpleNamespace(written=written)
    given = request, SimpleNamespace(programs=taken), execution, None
    if again:
        assert memory.BlockMemory.of(*given) == least
        return
    with pytest.raises(memory.NoRoles):
        memory.BlockMemory.of(*given)


@pytest.mark.parametrize("in_cluster, share", [(True, 32), (False, 0)])
def test_blocks_of_a_cluster_store_shares(in_cluster, share):
    of = SimpleNamespace(
        sharing=SimpleNamespace(in_cluster=in_cluster, split_k=2),
        request=SimpleNamespace(dots=[None], sides=lambda dot: SimpleNamespace(n=64)),
    )
    assert memory._Division._share(of) == share


def of_columns(x, o):
    tkc.store(o, (0,), tkc.sum(tkc.load(x, (0, 0), (64, 32)), axis=0))


@pytest.mark.parametrize("rows", [64, 32])
def test_reductions_along_the_rows_of_a_sum(rows):
    (reduce,) = operations_in(traced(of_columns, f2, f1), tile.Reduce)
    assert memory._is_along_rows(reduce, rows) == (rows == 64)


# ---- blocks that are copied
def with_biases(a, b, s, o):
    """Blocks beside the dots of a loop."""
    acc = tkc.zeros((64, 64))
    for k in tkc.range(0, a.shape[1], 64):
        x, y = tkc.load(a, (0, k), (64, 64)), tkc.load(b, (k, 0), (64, 64))
        acc = acc + tkc.dot(x, y) + tkc.dot(x + x, y) * tkc.load(s, (0, k), (64, 64))
    tkc.store(o, (0, 0), acc)


@pytest.mark.parametrize(
    "dtype, store, copied",
    [(tkc.int32, False, True), (tkc.int8, False, False), (tkc.int32, True, False)],
)
def test_a_producer_reads_numbers_of_32_bits_that_stay(dtype, store, copied):
    def kernel(a, b, s, places, o):
        acc = tkc.zeros((64, 64))
        for k in tkc.range(0, a.shape[1], 64):
            x = tkc.load(s, (places[k // 64].to(tkc.int32) * 64,), (64,))
            acc = acc + tkc.dot(tkc.load(a, (0, k), (64, 64)), tkc.load(b, (k, 0), (64, 64))) * x
        tkc.store(o, (0, 0), acc)
        if store:
            tkc.store(places, (0,), tkc.zeros((4,), places.dtype))

    module = traced(kernel, h2, h2, f1, array(dtype), f2)
    (loop,), loads = operations_in(module, scf.ForOp), operations_in(module, tile.Load)
    own = [op for op in loads if len(op.offsets) == 2]
    assert (
        any(
            isinstance(op.result.type, TileType) for op in rings._copied_ahead(loop, own, False, ())
        )
        == copied
    )


@pytest.mark.parametrize("late, ring", [(False, 1), (True, None)])
def test_a_ring_of_what_a_late_dot_s_result_is_scaled_by(late, ring):
    module = traced(with_biases, h2, h2, f2, f2)
    (loop,), (_, last) = operations_in(module, scf.ForOp), operations_in(module, tile.Dot)
    a, b, beside = operations_in(module, tile.Load)
    of = rings._RingOfDots(loop, {0: [a], 1: [b]}, [last] if late else [])
    assert of.before_use(beside) == ring


@pytest.mark.parametrize(
    "mapped, unreachable, by_threads",
    [("a mask", "", True), ("", "", False), ("a mask", "short rows", False)],
)
def test_which_blocks_threads_copy(monkeypatch, mapped, unreachable, by_threads):
    monkeypatch.setattr(gathers, "unmapped", lambda load: mapped)
    monkeypatch.setattr(gathers, "unreachable", lambda load: unreachable)
    assert gathers.copied_by_threads(None) == by_threads


@pytest.mark.parametrize("tiles, more, too_much", [(100, 0, False), (101, 0, True), (100, 1, True)])
def test_sums_that_one_warpgroup_has_no_registers_for(monkeypatch, tiles, more, too_much):
    """Of all tiles, or of a loop's accumulators beside the rest."""
    given = context("sm_90a")
    sums = given.target.assembler.straight_live + more
    monkeypatch.setattr(hopper, "results_of_dots", lambda kernel: 512 * tiles)
    monkeypatch.setattr(hopper, "_carried_sums", lambda program: 512 * sums)
    request = SimpleNamespace(dots=[None, None], loops=[])
    monkeypatch.setattr(hopper.RoleRequest, "of", lambda *given: request)
    made = SimpleNamespace(registers=(100,))
    program = SimpleNamespace(kernel=None)
    assert bool(hopper._too_much_for_one(program, given, None, made)) == too_much


@pytest.mark.parametrize("count, some", [(133, True), (264, False), (132, False), (100, False)])
def test_parts_of_a_wave_that_is_not_full(count, some):
    parts = [SimpleNamespace(trips=1000, dots=True)]
    work, device = SimpleNamespace(grid=(count,), parts=parts), context("sm_90a").target
    assert device.multiprocessors == 132
    assert bool(plan._shares_of_a_wave(work, device)) == some


# ---- results
def copied(x, o, TRANSPOSED: tkc.constexpr):
    y = tkc.load(x, (0, 0), (64, 64))
    tkc.store(o, (0, 0), y.T if TRANSPOSED else y)


@pytest.mark.parametrize("dtype, cut", [(tkc.float16, True), (tkc.float32, False)])
def test_results_of_32_bits_have_no_subtiles(dtype, cut):
    given = aligned(dtype, 2)
    (store,) = operations_in(traced(copied, given, given, TRANSPOSED=False), tile.Store)
    assert (epilogue_subtiles.subtile(StoredResult(store, False), 1, 64) is not None) == cut


@pytest.mark.parametrize("by_columns", [False, True])
def test_threads_store_rows_that_their_warpgroup_has(by_columns):
    (store,) = operations_in(traced(copied, f2, f2, TRANSPOSED=False), tile.Store)
    assert results.is_stored_by_threads(StoredResult(store, False, by_columns)) != by_columns


def of_planes(x, o):
    tkc.store(o, (0, 0, 0), tkc.load(x, (0, 0, 0), (64, 64, 1)))


@pytest.mark.parametrize("planes", [False, True])
def test_a_tensor_map_stores_what_is_dense_along_rows_of_a_matrix(monkeypatch, planes):
    monkeypatch.setattr(results, "unmapped", lambda op: "")
    monkeypatch.setattr(results, "dense_of_block", lambda op: 1)
    given = aligned(tkc.float32, 2 + planes)
    module = traced(of_planes, given, given) if planes else traced(copied, given, given, False)
    (store,) = operations_in(module, tile.Store)
    assert results.is_stored_by_map(store) != planes


@pytest.mark.parametrize(
    "shape, groups, shares",
    [((64, 64), 2, True), ((64, 64), 1, False), ((64, 24), 2, False), ((1, 64, 64), 2, False)],
)
def test_which_results_share_columns(monkeypatch, shape, groups, shares):
    monkeypatch.setattr(accumulator_stores, "wgmma_accumulators", lambda *given: [None])
    op = SimpleNamespace(value=tile.Constant(0, TileType(shape, f32)).result)
    assert accumulator_stores._Stores._shares_columns(SimpleNamespace(groups=groups), op) == shares


def either(x, o, n, LOOPS: tkc.constexpr):
    y = tkc.load(x, (0, 0), (64, 64))
    for i in tkc.range(n) if LOOPS else [n]:
        if i > 3:
            tkc.store(o, (0, 0), y)
        else:
            tkc.store(o, (0, 0), y + 1)


@pytest.mark.parametrize("loops", [False, True])
def test_stores_of_other_iterations_are_not_instead(loops):
    one, other = operations_in(traced(either, f2, f2, number(), LOOPS=loops), tile.Store)
    assert alias.is_alternative(one, other)
    assert accumulator_stores._is_instead(one, other) != loops


def columns_listed(x, places, o, LISTED: tkc.constexpr):
    at = tkc.load(places, (0,), (64,)) if LISTED else 0
    tkc.store(o, (0, 0), tkc.load(x, (0, at), (64, 64)))


@pytest.mark.parametrize("listed", [False, True])
def test_columns_that_are_listed_are_not_copied(monkeypatch, listed):
    monkeypatch.setattr(conversions, "is_read_as_well", lambda *given: False)
    monkeypatch.setattr(conversions, "_wanted", lambda load: None)
    asked = []
    monkeypatch.setattr(conversions, "dense_of_block", lambda load: asked.append(load) or 1)
    module = traced(columns_listed, f2, n1, f2, LISTED=listed)
    load = next(op for op in operations_in(module, tile.Load) if len(op.offsets) == 2)
    assert conversions._copy_width(load, blocked((64, 64), 4, 4), context("sm_80")) == 0
    assert bool(asked) != listed
