"""Dots whose operands have no second stage in shared memory walk along k together."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.kernels import aligned, context, through
from tests.passes.stages import LAST, assembler, level
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.errors import VerifyError
from tkc.ir import tile
from tkc.ir.target import target
from tkc.ir.values import operations_in, tile_type
from tkc.passes import Free, stream_operands
from tkc.passes.pipeline import PIPELINE, with_room
from tkc.sim import dataflow, level0, level4

BF16 = ml_dtypes.bfloat16
T, D = 64, 128  # rows of a program; a state is D x D
b2, f2 = aligned(tkc.bfloat16, 2), aligned(tkc.float32, 2)


# ---- kernels
def gradients(v, y, h, dh, q, k, dq, dk, T: tkc.constexpr, D: tkc.constexpr):
    """Of a chunk of a recurrence, from states of float32: three dots along D, two behind them."""
    i = tkc.program_id(0)
    x, dy = tkc.load(v, (i * T, 0), (T, D)), tkc.load(y, (i * T, 0), (T, D))
    state = tkc.load(h, (i * D, 0), (D, D)).T.to(v.dtype)  # rows are dense along D
    its = tkc.load(dh, (i * D, 0), (D, D)).T.to(v.dtype)
    scores = tkc.dot(dy, x.T)
    of_q, of_k = tkc.dot(dy, state), tkc.dot(x, its)
    p = tkc.where(tkc.arange(T)[:, None] >= tkc.arange(T), scores, 0).to(v.dtype)
    of_q = tkc.dot(p, tkc.load(k, (i * T, 0), (T, D)), of_q)
    of_k = tkc.dot(p.T, tkc.load(q, (i * T, 0), (T, D)), of_k)
    tkc.store(dq, (i * T, 0), of_q.to(dq.dtype))
    tkc.store(dk, (i * T, 0), of_k.to(dk.dtype))


def long_gradients(v, y, h, dh, q, k, dq, dk, T: tkc.constexpr, D: tkc.constexpr):
    """The same of states of more columns, by a loop over D of them at a time."""
    i = tkc.program_id(0)
    scores, of_q, of_k = tkc.zeros((T, T)), tkc.zeros((T, D)), tkc.zeros((T, D))
    for n in tkc.range(0, v.shape[1], D):
        x, dy = tkc.load(v, (i * T, n), (T, D)), tkc.load(y, (i * T, n), (T, D))
        state = tkc.load(h, (i * D, n), (D, D)).T.to(v.dtype)
        its = tkc.load(dh, (i * D, n), (D, D)).T.to(v.dtype)
        scores = tkc.dot(dy, x.T, scores)
        of_q, of_k = tkc.dot(dy, state, of_q), tkc.dot(x, its, of_k)
    p = tkc.where(tkc.arange(T)[:, None] >= tkc.arange(T), scores, 0).to(v.dtype)
    of_q = tkc.dot(p, tkc.load(k, (i * T, 0), (T, D)), of_q)
    of_k = tkc.dot(p.T, tkc.load(q, (i * T, 0), (T, D)), of_k)
    tkc.store(dq, (i * T, 0), of_q.to(dq.dtype))
    tkc.store(dk, (i * T, 0), of_k.to(dk.dtype))


def values(q, k, y, h, w, o, T: tkc.constexpr, D: tkc.constexpr):
    """Three dots along D, with numbers to begin with; states are dense along columns."""
    i = tkc.program_id(0)
    x = tkc.load(k, (i * T, 0), (T, D))
    scores = tkc.dot(x, tkc.load(q, (i * T, 0), (T, D)).T, tkc.full((T, T), 0.5, tkc.float32))
    state, other = (tkc.load(s, (i * D, 0), (D, D)).to(k.dtype) for s in (h, w))
    total = tkc.dot(x, state, tkc.full((T, D), 0.25, tkc.float32))
    total = total - tkc.dot(x, other)
    p = tkc.where(tkc.arange(T)[:, None] <= tkc.arange(T), scores, 0).to(k.dtype)
    tkc.store(o, (i * T, 0), tkc.dot(p, tkc.load(y, (i * T, 0), (T, D)), total).to(o.dtype))


KERNELS = {
    "gradients": (gradients, "bbffbb", 2),
    "long_gradients": (long_gradients, "bbffbb", 2),
    "values": (values, "bbbff", 1),
}


def module_of(kernel, kinds: str, results: int):
    arrays = [b2 if kind == "b" else f2 for kind in kinds]
    return traced(kernel, *arrays, *[b2] * results, T=T, D=D)


@cache
def stages_of(name: str) -> tuple:
    """The module after every pass, by the pass's name, and the context: of a plan that leaves the
    passes behind it as much shared memory as they need.
    """

    def attempt(made) -> tuple:
        stages: dict = {}
        module = module_of(*KERNELS[name])
        through(module, LAST, made, lambda at, after: stages.setdefault(at, after.clone()))
        return stages, made

    return with_room(attempt, target("sm_90a"), Free())


def given(kinds: str, results: int, programs: int, seed: int, columns: int = 2 * D) -> list:
    """Small integers, of which every sum is exact in float32, and in bfloat16 before the last."""
    rng = np.random.default_rng(seed)
    rows = {"b": T * programs, "f": D * programs}
    arrays = [
        rng.integers(-1, 2, (rows[kind], columns)).astype(BF16 if kind == "b" else np.float32)
        for kind in kinds
    ]
    return [*arrays, *(np.zeros((T * programs, D), BF16) for _ in range(results))]


def check(module, name: str, run, programs: int = 2, columns: int = 2 * D) -> None:
    """What a module leaves of random arrays, beside what the kernel means."""
    kernel, kinds, results = KERNELS[name]
    level0.run(
        module_of(kernel, kinds, results),
        want := given(kinds, results, programs, 0, columns),
        (programs,),
    )
    run(module, got := given(kinds, results, programs, 0, columns), (programs, 1, 1))
    for a, b in zip(got[-results:], want[-results:], strict=True):
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=0.01, atol=0.01)
        assert np.abs(np.float64(b)).max() > 1


# ---- what becomes of a program
@pytest.mark.parametrize(
    ("name", "dots", "loads"),
    [("gradients", 3, 4), ("long_gradients", 3, 4), ("values", 3, 4)],
    ids=lambda x: str(x),
)
def test_dots_walk_along_k_together(name, dots, loads):
    """One loop over parts of k, of all iterations of one that there was; of what its dots read
    nothing is loaded whole.
    """
    stages, made = stages_of(name)
    before, after = stages["match-heights"], stages["stream-operands"]
    around = [op for op in before.walk() if isinstance(op, scf.ForOp)]
    (loop,) = [op for op in after.walk() if isinstance(op, scf.ForOp)]
    assert len(around) == (name == "long_gradients")
    assert [tile_type(dot.a).extents[-1] for dot in operations_in(loop, tile.Dot)] == [32] * dots
    inside = operations_in(loop, tile.Load)
    assert len(inside) == loads and len(loop.results) == dots
    whole = [op for op in operations_in(before, tile.Load)]
    assert len(operations_in(after, tile.Load)) == len(whole)
    assert any(line.startswith("stream-operands: ") for line in made.decisions)
    assert made.plan.roles != "one" and made.plan.stages > 1


def test_a_block_of_another_loop_stays_whole():
    """What is loaded before a loop is not loaded again for each of its iterations."""

    def kept(v, h, o, T: tkc.constexpr, D: tkc.constexpr):
        x, total = tkc.load(v, (0, 0), (T, 2 * D)), tkc.zeros((T, D))
        for n in tkc.range(0, 4 * D, 2 * D):
            state = tkc.load(h, (n, 0), (2 * D, D)).to(v.dtype)
            total = tkc.dot(x, state, total)
        tkc.store(o, (0, 0), total.to(o.dtype))

    module = traced(kept, b2, f2, b2, T=T, D=D)
    through(module, "stream-operands", context("sm_90a"))
    assert sum(isinstance(op, scf.ForOp) for op in module.walk()) == 1


def test_an_operand_that_many_tiles_are_made_of_is_looked_at_once():
    """Of each of sixty steps the one before is read twice: 2⁶⁰ ways lead to the load."""

    def halved(a, b, c):
        x, total = tkc.load(a, (0, 0), (T, 64)), tkc.zeros((T, D))
        for _ in range(60):
            x = x + tkc.minimum(x, 1.0) * 0.5
        tkc.store(c, (0, 0), tkc.dot(x, tkc.load(b, (0, 0), (64, D)), total))

    module = traced(halved, b2, b2, f2)
    dots = operations_in(level0.kernel_of(module), tile.Dot)
    assert len(stream_operands._loads_of(dots)) == 2


@pytest.mark.parametrize("name", KERNELS)
def test_each_level_computes_the_same(name):
    """By data flow up to level 3, then by threads in random schedules, which must be ordered."""
    stages, _ = stages_of(name)
    for at in PIPELINE[PIPELINE.index("stream-operands") :]:
        module = stages[at]
        if level(module) == 0:
            check(module, name, level0.run)
        elif level(module) < 4:
            check(module, name, dataflow.run)
    for seed in range(2):
        check(stages[LAST], name, lambda m, data, grid, s=seed: level4.run(m, data, grid, s), 3)


@pytest.mark.parametrize("columns", [D, 3 * D])
def test_a_loop_takes_all_of_its_parts(columns):
    check(
        stages_of("long_gradients")[0]["stream-operands"], "long_gradients", level0.run, 2, columns
    )


@pytest.mark.parametrize("name", KERNELS)
def test_its_ptx_computes_the_same(name):
    check(stages_of(name)[0][LAST], name, machine.run, 1)


@assembler
@pytest.mark.parametrize("name", KERNELS)
def test_the_assembler_spills_nothing(name):
    program = emit(stages_of(name)[0][LAST], target("sm_90a"))
    logs = [ptxas.assemble(text, "sm_90a") for text in (program.text, program.roomy)]
    assert any(log.clean for log in logs), logs[0].log


# ---- what stays as it is
def plain(v, h, o, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """Roles have one stage of each block as it is."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N))
    tkc.store(o, (0, 0), tkc.dot(x, state.to(v.dtype)).to(o.dtype))


def read_twice(v, h, o, most, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """The state is also summed up, whole."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N))
    tkc.store(o, (0, 0), tkc.dot(x, state.to(v.dtype)).to(o.dtype))
    tkc.store(most, (0, 0), tkc.sum(state, axis=0)[None, :])


def of_another(v, h, o, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """The state is normed along k."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N))
    state = state / tkc.max(state, axis=0)[None, :]
    tkc.store(o, (0, 0), tkc.dot(x, state.to(v.dtype)).to(o.dtype))


def written_between(v, h, o, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """What is stored may be of the state that was loaded before."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N))
    tkc.store(h, (0, 0), tkc.zeros((K, N)))
    tkc.store(o, (0, 0), tkc.dot(x, state.to(v.dtype)).to(o.dtype))


def in_a_chain(v, h, w, o, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """The second dot reads the first one's result: it does not walk, and not with the first one."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N)).to(v.dtype)
    y = tkc.dot(x, state).to(v.dtype)
    z = tkc.dot(y, tkc.load(w, (0, 0), (N, K)).to(v.dtype))
    tkc.store(o, (0, 0), z.to(o.dtype))


def added_to(v, h, w, o, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """The second dot adds to what is computed of the first one's result: it begins with zeros."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N)).to(v.dtype)
    y = tkc.abs(tkc.dot(x, state))
    z = tkc.dot(tkc.load(o, (0, 0), (T, K)), tkc.load(w, (0, 0), (K, N)).to(v.dtype), y)
    tkc.store(o, (0, 0), z.to(o.dtype))


def used_between(v, h, w, o, p, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """The first dot's result is stored where the second one's numbers to begin with are loaded."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N)).to(v.dtype)
    y, other = tkc.load(p, (0, 0), (T, K)), tkc.load(w, (0, 0), (K, N)).to(v.dtype)
    tkc.store(o, (0, 0), tkc.dot(x, state).to(o.dtype))
    total = tkc.load(o, (0, 0), (T, N)).to(tkc.float32)
    tkc.store(p, (0, 0), tkc.dot(y, other, total).to(p.dtype))


def loaded_late(v, h, w, o, p, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """The second dot's operand is loaded from where the first one's result is stored."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N)).to(v.dtype)
    tkc.store(o, (0, 0), tkc.dot(x, state).to(o.dtype))
    y, other = tkc.load(o, (0, 0), (T, K)), tkc.load(w, (0, 0), (K, N)).to(v.dtype)
    tkc.store(p, (0, 0), tkc.dot(y, other).to(p.dtype))


def stored_apart(v, h, o, p, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """The second dot stands, and its operand is loaded, behind a store of other rows of the first
    one's result.
    """
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N)).to(v.dtype)
    tkc.store(o, (0, 0), tkc.dot(x, state).to(o.dtype))
    y = tkc.load(v, (tkc.program_id(0) + T, 0), (T, K))
    tkc.store(p, (0, 0), tkc.dot(y, state).to(p.dtype))


def of_many(v, h, w, o, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr, COUNT: tkc.constexpr):
    """Accumulators of 64 registers a thread of a warpgroup each."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N)).to(v.dtype)
    total = tkc.dot(x, state)
    for i in tkc.static_range(COUNT - 1):
        y = tkc.load(w, (0, i * N), (K, N)).to(v.dtype)
        total = tkc.maximum(total, tkc.dot(x, y))
    tkc.store(o, (0, 0), total.to(o.dtype))


def of_two_axes(v, h, w, o, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """A state is multiplied along its rows and, by another dot, along its columns."""
    x, state = tkc.load(v, (0, 0), (T, K)), tkc.load(h, (0, 0), (K, N)).to(v.dtype)
    z = tkc.load(w, (0, 0), (T, N))
    tkc.store(o, (0, 0), tkc.dot(x, state).to(o.dtype))
    tkc.store(o, (T, 0), tkc.dot(z, state.T).to(o.dtype))


def begun_with(v, h, w, o, T: tkc.constexpr, K: tkc.constexpr, N: tkc.constexpr):
    """A block is what one dot begins with, and what another multiplies."""
    begin = tkc.load(w, (0, 0), (T, N))
    x, state = tkc.load(v, (0, 0), (T, N)), tkc.load(h, (0, 0), (N, N)).to(v.dtype)
    other = tkc.load(h, (N, 0), (N, N)).to(v.dtype)
    tkc.store(o, (0, 0), tkc.dot(x, state, begin).to(o.dtype))
    tkc.store(o, (T, 0), tkc.dot(begin.to(v.dtype), other).to(o.dtype))


def sums(v, h, w, o, p, T: tkc.constexpr, D: tkc.constexpr, KIND: tkc.constexpr):
    """Two sums of a loop, which may do, carry or count by something else."""
    one, two, count = tkc.zeros((T, D)), tkc.zeros((T, D)), 0
    end = v.shape[1].to(tkc.int64) if KIND == "long" else v.shape[1]
    for n in tkc.range(end * 0, end, D):
        x = tkc.load(v, (0, n), (T, D))
        one = tkc.dot(x, tkc.load(h, (n, 0), (D, D)).to(v.dtype), one)
        two = tkc.dot(x, tkc.load(w, (n, 0), (D, D)).to(v.dtype), two)
        if KIND == "carries":
            count = count + 2
        if KIND == "stores":
            tkc.store(p, (0, n), tkc.full((T, D), 1, p.dtype))
    tkc.store(o, (0, 0), (one - two + count).to(o.dtype))


@pytest.mark.parametrize(
    ("kind", "step"), [("adds", 32), ("carries", D), ("stores", D), ("long", D)], ids=str
)
def test_a_loop_that_does_more_than_add_up_stays(kind, step):
    module = traced(sums, b2, f2, f2, b2, b2, T=T, D=D, KIND=kind)
    through(module, "stream-operands", context("sm_90a"))
    dots = operations_in(module, tile.Dot)
    assert [tile_type(dot.a).extents[-1] for dot in dots] == [step] * 2


def walked(kernel, kinds: str, machine_: str = "sm_90a", K: int = 256, **options) -> list[int]:
    """How many dots each loop has behind the pass."""
    module = traced(kernel, *(b2 if kind == "b" else f2 for kind in kinds), T=T, K=K, N=D)
    through(module, "stream-operands", context(machine_, **options))
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    return [len(operations_in(loop, tile.Dot)) for loop in loops]


@pytest.mark.parametrize(
    ("kernel", "kinds", "dots"),
    [
        (plain, "bfb", []),
        (read_twice, "bfbf", []),
        (of_another, "bfb", []),
        (written_between, "bfb", []),
        (in_a_chain, "bfbb", [1]),
        (added_to, "bfbb", [2]),
        (used_between, "bfbbb", [2]),
        (loaded_late, "bfbbb", [1]),
        (stored_apart, "bfbb", [2]),
        (of_two_axes, "bfbb", []),
        (begun_with, "bffb", [1]),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_others_read_or_write_stays_whole(kernel, kinds, dots):
    assert walked(kernel, kinds) == dots


@pytest.mark.parametrize(
    "options",
    [{"machine_": "sm_80"}, {"roles": "one"}, {"num_stages": 1}, {"K": 64}],
    ids=lambda options: str(*options.values()),
)
def test_only_roles_copy_ahead_what_has_one_stage(options):
    assert walked(stored_apart, "bfbb", **options) == []


@pytest.mark.parametrize(("count", "warps"), [(4, 8), (6, 4)])
def test_two_warpgroups_share_more_accumulators_than_one_holds(count, warps):
    """Of four each has half of the columns; six are too many for two: they do not walk."""
    module = traced(of_many, *[b2] * 4, T=T, K=256, N=D, COUNT=count)
    made = through(module, "plan", context("sm_90a"))
    loops = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    assert [len(operations_in(loop, tile.Dot)) for loop in loops] == [count] * (warps == 8)
    said = "they share the columns of each dot"
    assert any(said in line for line in made.decisions) == (warps == 8)
    assert made.plan.warps == warps
    assert not any("'cooperative' is not used" in line for line in made.decisions)


def sums_of(v, w, o, T: tkc.constexpr, N: tkc.constexpr, COUNT: tkc.constexpr):
    """Products with so many matrices, by a loop."""
    totals = [tkc.zeros((T, N)) for _ in range(COUNT)]
    for k in tkc.range(0, v.shape[1], 64):
        x = tkc.load(v, (tkc.program_id(0) * T, k), (T, 64))
        totals = [tkc.dot(x, tkc.load(w, (k, i * N), (64, N)), t) for i, t in enumerate(totals)]
    for i, total in enumerate(totals):
        tkc.store(o, (tkc.program_id(0) * T, i * N), total.to(o.dtype))


@pytest.mark.parametrize(("count", "warps"), [(2, 4), (3, 8)])
def test_accumulators_of_a_loop_leave_registers_for_the_rest(count, warps):
    made = through(traced(sums_of, b2, b2, b2, T=T, N=D, COUNT=count), "plan", context("sm_90a"))
    said = any("accumulators of 192 registers a thread of one" in d for d in made.decisions)
    assert made.plan.warps == warps and said == (warps == 8), made.decisions


# ---- mutants of what is checked
@pytest.mark.parametrize(
    ("check_", "answer", "kernel", "kinds"),
    [
        ("unseen", True, written_between, "bfb"),
        ("_is_pure", True, used_between, "bfbbb"),
        ("_may_stand", True, loaded_late, "bfbbb"),
    ],
)
def test_what_is_not_checked_is_computed_wrong(check_, answer, kernel, kinds, monkeypatch):
    monkeypatch.setattr(stream_operands, check_, lambda *given: answer)
    # whatever is planned
    monkeypatch.setattr(stream_operands, "_why_not", lambda *given: "")
    monkeypatch.setattr(stream_operands, "planned", lambda *given: (None, ""))
    arrays = [b2 if kind == "b" else f2 for kind in kinds]
    rng = np.random.default_rng(0)
    data = [
        rng.integers(-1, 2, (256, 256)).astype(BF16 if kind == "b" else np.float32)
        for kind in kinds
    ]
    module = traced(kernel, *arrays, T=T, K=256, N=D)
    level0.run(module.clone(), want := [x.copy() for x in data], (1,))
    with pytest.raises((VerifyError, AssertionError)):
        through(module, "stream-operands", context("sm_90a"))
        level0.run(module, data, (1,))
        for got, wanted in zip(data, want, strict=True):
            np.testing.assert_array_equal(got, wanted)
