"""The writer of software pipelines: random loops by random legal schedules give what they gave, the
rules of what is legal refuse what they are for, and without one of them something goes wrong.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.language.kernels import array, i32, traced
from tests.passes.stages import parses_back, run
from tkc.errors import VerifyError
from tkc.ir import tile
from tkc.ir.values import is_side_effect_free
from tkc.ir.verify import verify
from tkc.passes import pipeline_async_copies
from tkc.passes.analysis import alias
from tkc.passes.schedule import expand as schedules
from tkc.passes.schedule.expand import End, LoopSchedule, Step, broken_rules, expand

ROWS = 12  # of each array; loads behind them give zeros
TRIPS = 0, 1, 2, 4


# ---- random loops --------------------------------------------------------------------------------
def body(rng: np.random.Generator) -> Callable:
    """What an iteration does, written while the kernel is traced: reads, arithmetic and writes of
    rows that follow from the counter, from what is loaded or from what the loop carries.
    """
    codes = [tuple(map(int, rng.integers(0, 1 << 16, 4))) for _ in range(rng.integers(4, 10))]

    def iteration(x, y, z, i, a, b, c):
        rows, values = [i, i + 1, i + 1, c], [a, b]
        for kind, p, q, r in codes:
            at, u, v = rows[p % len(rows)], values[q % len(values)], values[r % len(values)]
            match kind % 7:
                case 0 | 1:
                    values.append(tkc.load((x, y, z)[q % 3], (at, 0), (1, 4)))
                case 2:
                    tkc.store((y, z)[q % 2], (at, 0), v)
                case 3:
                    values.append(u + v)
                case 4:
                    values.append(tkc.maximum(u * 3 - v, u))
                case 5:
                    rows.append((at + r % 3) % ROWS)
                case 6:
                    rows.append(tkc.load(x, (at % ROWS, p % 4), (None, None)) % ROWS)
        return (*(values[n % len(values)] for n in codes[0][:2]), rows[codes[0][2] % len(rows)])

    return iteration


def counted(x, y, z, out, lo, hi, step, BODY: tkc.constexpr):
    a, b, c = tkc.load(x, (1, 0), (1, 4)), tkc.load(x, (2, 0), (1, 4)), lo + 0
    for i in tkc.range(lo, hi, step):
        a, b, c = BODY(x, y, z, i, a, b, c)
    tkc.store(out, (0, 0), a)
    tkc.store(out, (1, 0), b + c)


def module_of(rng: np.random.Generator):
    return traced(counted, *(array(tkc.int32, 2),) * 4, *(i32(),) * 3, BODY=body(rng))


def loop_of(module):
    return next(op for op in module.walk() if isinstance(op, scf.ForOp))


def results(module, trips: int, step: int) -> list[np.ndarray]:
    rng = np.random.default_rng(trips)
    arrays = [rng.integers(-9, 9, (ROWS, 4)).astype(np.int32) for _ in range(4)]
    run(module, [*arrays, 1, 1 + trips * step, step], (1, 1, 1))
    return arrays


# ---- random schedules ----------------------------------------------------------------------------
def schedule(rng: np.random.Generator, loop) -> LoopSchedule:
    """Stages in which what is used early is made early, in an order that mixes them; most are legal
    where the loop writes nothing.
    """
    ops = list(loop.body.block.ops)[:-1]
    peel, depth = bool(rng.integers(2)), int(rng.integers(1, 3))
    depth = 1 if peel else depth
    early: dict = {}
    for op in reversed(ops):
        users = [early.get(use.operation, 0) for r in op.results for use in r.uses]
        early[op] = max(*users, int(rng.integers(-depth, depth + 1)), 0)
    clamp, guard = rng.integers(2, size=2)
    plain = End.GUARD if peel else End.CLAMP if clamp else End.ANY

    def end(op) -> End:
        if not op.results or guard and isinstance(op, tile.Load):
            return End.GUARD
        return End.ANY if peel and early[op] and not rng.integers(9) else plain

    left, groups = ops.copy(), []
    while left:
        # another stage's operations may go first
        first = [op for op in left if rng.integers(3)] or left
        stage = early[first[0]]
        some = [op for op in first if early[op] == stage]
        groups += [([op], stage, end(op)) for op in some]
        left = [op for op in left if op not in some]
    again = is_side_effect_free if rng.integers(2) else (lambda op: False)
    how = {"peel": True, "counts_back": bool(rng.integers(2))} if peel else {}
    return LoopSchedule.of(loop, groups, again, **how)


def is_legal(loop, found: LoopSchedule) -> bool:
    return not any(broken_rules(loop, found))


def tried(seeds: range) -> Iterator[bool]:
    """Of random loops by random schedules that are legal: whether each gives the same."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        module = module_of(rng)
        loop = loop_of(module)
        plans = [found for _ in range(12) if (found := schedule(rng, loop)).depth]
        found = next((p for p in plans if is_legal(loop, p)), None)
        if found is None:
            continue
        step = int(rng.integers(1, 3))
        want = {trips: results(module, trips, step) for trips in TRIPS}
        try:
            expand(loop, found)
            verify(module, "expand")
            yield all(
                np.array_equal(x, y)
                for trips in TRIPS
                for x, y in zip(results(module, trips, step), want[trips], strict=True)
            )
        except (VerifyError, KeyError):
            yield False


@pytest.mark.parametrize("block", range(3))
def test_a_legal_schedule_gives_what_the_loop_gave(block):
    """Bit for bit, with no iteration, fewer than are early, and more."""
    same = list(tried(range(100 * block, 100 * block + 40)))
    assert len(same) >= 8 and all(same)


MUTANTS = {
    "order": ("_swapped", lambda *_: iter(())),
    "what meets": ("_may_conflict", lambda *_: False),
    "ends": ("_is_harmless", lambda *_: True),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_is_needed(monkeypatch, name):
    """Without it some schedule that is then legal gives another program."""
    monkeypatch.setattr(schedules, *MUTANTS[name])
    assert not all(tried(range(400)))


# ---- what each rule refuses ----------------------------------------------------------------------
def copying(x, y, lo, hi, step):
    for i in tkc.range(lo, hi, step):
        tkc.store(y, (i, 0), tkc.load(x, (i, 0), (1, 4)) + 1)


def simple():
    module = traced(copying, *(array(tkc.int32, 2),) * 2, *(i32(),) * 3)
    loop = loop_of(module)
    ops = list(loop.body.block.ops)[:-1]
    return loop, ops, next(op for op in ops if isinstance(op, tile.Load)), ops[-1]


def of(early: dict, ops: list, end: End = End.ANY) -> LoopSchedule:
    return LoopSchedule(tuple(Step(op, early.get(op, 0), end) for op in ops))


def test_what_is_read_is_made_before():
    loop, ops, load, _ = simple()
    with pytest.raises(VerifyError, match="expand: .* is done behind what reads it"):
        expand(loop, LoopSchedule(tuple(map(Step, reversed(ops)))))


def test_what_is_handed_on_is_made():
    module = module_of(np.random.default_rng(0))
    with pytest.raises(VerifyError, match="effects, and is done 0 times|behind what reads it"):
        expand(loop_of(module), LoopSchedule(()))


def test_effects_are_done_once():
    loop, ops, _, store = simple()
    twice = LoopSchedule((*map(Step, ops), Step(store)))
    assert "tile.store has effects, and is done 2 times" in broken_rules(loop, twice)
    with pytest.raises(VerifyError, match="done 0 times"):
        expand(loop, LoopSchedule(tuple(map(Step, ops[:-1]))))


@pytest.mark.parametrize("overlaps, legal", [((), True), (((0, 1),), False)])
def test_a_load_passes_no_store_to_what_it_may_read(overlaps, legal):
    loop, ops, load, _ = simple()
    found = LoopSchedule.of(loop, [([load], 1, End.ANY), (ops, 0, End.ANY)])
    assert legal == (not list(broken_rules(loop, found, overlaps)))


def test_loads_that_meet_no_store_on_their_way_may_be_early():
    """Behind the store of the iteration before."""
    loop, ops, load, _ = simple()
    found = LoopSchedule.of(loop, [(ops[-1:], 0, End.ANY), ([load], 1, End.ANY)])
    assert not list(broken_rules(loop, found, ((0, 1),)))


@pytest.mark.parametrize("end, legal", [(End.ANY, False), (End.CLAMP, True), (End.GUARD, True)])
def test_effects_of_iterations_that_do_not_exist_are_guarded(end, legal):
    loop, ops, *_ = simple()
    found = LoopSchedule(tuple(Step(op, 1, end if op is ops[-1] else End.CLAMP) for op in ops))
    assert legal == (not list(broken_rules(loop, found)))


def test_loops_are_peeled_by_one_iteration():
    loop, ops, *_ = simple()
    deep = LoopSchedule(tuple(Step(op, 2, End.GUARD) for op in ops), peel=True)
    assert "a counted loop is peeled by one iteration" in broken_rules(loop, deep)


# ---- what it looks like --------------------------------------------------------------------------
def test_the_first_picture():
    loop, ops, load, _ = simple()
    kernel = alias.kernel_around(loop)
    others = [op for op in ops if op is not load]
    found = LoopSchedule.of(loop, [([load], 1, End.CLAMP), (others, 0, End.ANY)])
    new = expand(loop, found)
    assert len(new.iter_args) == 1 and isinstance(new.iter_args[0].owner, tile.Load)
    names = [op.name for op in new.body.block.ops]
    assert names[:3] == ["tile.add", "tile.lt", "tile.select"]
    assert names.count("tile.load") == 1 and names.index("tile.load") < names.index("tile.store")
    parses_back(kernel.parent_op())


def test_the_second_picture():
    """What is late of the last iteration stands behind the loop, under a branch."""
    loop, ops, load, store = simple()
    late = [(ops[:-1], 1, End.GUARD), (ops[-1:], 0, End.GUARD)]
    new = expand(loop, LoopSchedule.of(loop, late, lambda op: False, peel=True))
    around = [op.name for op in new.parent.ops]
    assert isinstance(new.parent_op(), scf.IfOp)
    assert around.index("tile.load") < around.index("scf.for") < around.index("tile.store")


# ---- copies through rings ------------------------------------------------------------------------
@tkc.jit
def nested(x, y, out, n, m, N: tkc.constexpr):
    """Copies of an outer loop and of one in it, both of which run ahead."""
    total = tkc.zeros((N, N))
    for i in tkc.range(0, n):
        a = tkc.load(x[i], (0, 0), (N, N))
        for j in tkc.range(0, m):
            total = tkc.dot(a, tkc.load(y[j], (0, 0), (N, N)), total)
    tkc.store(out, (0, 0), total)


NESTED = dict(x="f16[8, 64, 64]", y="f16[8, 64, 64]", out="f32[64, 64]", n="i32", m="i32", N=64)


def simulated(monkeypatch) -> tuple[np.ndarray, ...]:
    """Arguments of launches, which are then simulated."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_80")
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-2, 3, (8, 64, 64)).astype(np.float16) for _ in range(2))
    return x, y, np.ones((64, 64), np.float32)


@pytest.mark.parametrize("trips", [(0, 2), (2, 0), (3, 4), (8, 1)])
def test_loops_in_one_another_both_run_ahead(trips, monkeypatch):
    said = nested.compile(**NESTED, target="sm_80").decisions
    assert sum("1 copies of a loop" in line for line in said) == 2
    x, y, out = simulated(monkeypatch)
    nested[1](x, y, out, *trips, N=64)
    left, right = (v[:n].astype(np.float32).sum(0) for v, n in zip((x, y), trips, strict=True))
    np.testing.assert_array_equal(out, left @ right)


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_stage_is_not_filled_before_it_is_read(is_asked, monkeypatch):
    """Where the writer does not look, the program races."""
    schedule = pipeline_async_copies._CopiesAhead._schedule

    def too_early(self, *given):
        self.ahead += 1
        return schedule(self, *given)

    monkeypatch.setattr(pipeline_async_copies._CopiesAhead, "_schedule", too_early)
    if is_asked:
        with pytest.raises(VerifyError, match="read reads a stage behind what fills it again"):
            nested.compile(**NESTED, target="sm_80", num_stages=3)
        return
    monkeypatch.setattr(schedules, "_rings", lambda *_: iter(()))
    x, y, out = simulated(monkeypatch)
    with pytest.raises(tkc.Error):
        nested[1](x, y, out, 2, 5, N=64, num_stages=4)
