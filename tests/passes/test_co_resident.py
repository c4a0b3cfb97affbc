"""Co-resident programs: a block runs neighbours of axis 0, a warpgroup each, which share what
their loops load; right at every level, free of races, and refused where they have nothing to share.
"""

import re
from functools import cache

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.kernels.test_attention import attention as attention_in_float64
from tests.kernels.test_attention import near, operands
from tests.language.kernels import i32, traced
from tests.passes import stages
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    count,
    distinct,
    parses_back,
    role,
    run,
    survivors,
    without_threads,
)
from tests.passes.test_forced import is_forced, is_refused
from tests.passes.test_roles import array, integers
from tests.passes.test_roles_attention import Form, check, compiled, last
from tkc.ir import threads, tile
from tkc.ir.target import TARGETS
from tkc.kernels.attention import _attention
from tkc.language.signature import ArrayArgument
from tkc.passes.plan import kernel_of
from tkc.passes.planning.cost import Work
from tkc.passes.planning.numbers import Sizes
from tkc.sim import dataflow
from tkc.timing.predict import predict

MATRIX, ROW, TABLE = array(tkc.bfloat16), array(tkc.float32, 1), array(tkc.int32, 1)


def co_resident(count: int, *others: tuple) -> tuple:
    return (("roles", "co_resident"), ("programs", count), *others)


# --------------------------------------------------------------------------------------------------
FORMS = [
    Form(causal=causal, block=(64, 64), options=co_resident(3)) for causal in (False, True)
] + [
    Form(32, True, (64, 32), options=co_resident(4)),
    Form(causal=True, block=(64, 64), options=co_resident(2, ("num_stages", 2))),
    Form(block=(64, 64), options=co_resident(3, ("cross_tile_prologue", False))),
    Form(causal=True, block=(64, 64), options=co_resident(3, ("cross_tile_prologue", False))),
    Form(causal=True, block=(64, 32), options=co_resident(4, ("cross_tile_prologue", True))),
    Form(block=(64, 64), options=co_resident(3, ("left_operand", "registers"))),
    Form(causal=True, block=(64, 64), options=co_resident(2, ("epilogue", "direct"))),
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
BOTH = pytest.mark.parametrize("form", FORMS[:2], ids=["full", "causal"])


@EVERY
def test_every_level(form):
    assert is_forced(form.options, compiled(form)[1]), compiled(form)[1].decisions
    for module in without_threads(compiled(form)[0]):
        check(module, form, 131, 2 * form.block[1] + 5)
    for seed in range(3):
        check(last(form), form, 131, 2 * form.block[1] + 5, 2, seed=seed, resident=1 + seed)


@pytest.mark.parametrize("form", FORMS[:4], ids=lambda f: f.name)
def test_what_the_text_computes(form):
    check(last(form), form, 200, 2 * form.block[1] + 5, run=machine.run, seed=1)


@BOTH
@pytest.mark.parametrize("keys", [0, 1, 64, 65, 128, 320, 640])
def test_trip_counts(form, keys):
    """One program, two, and more than a tile group has; padding tiles behind the last or before the
    first.
    """
    for seed, (queries, heads) in enumerate(((64, 2), (100, 1), (250, 1))):
        check(last(form), form, queries, keys, heads, seed=seed)


@pytest.mark.parametrize("form", FORMS[1:4], ids=lambda f: f.name)
@pytest.mark.parametrize(
    "queries, keys", [(1, 1), (7, 200), (130, 130), (400, 300), (300, 400), (400, 70)]
)
def test_ragged_shapes(form, queries, keys):
    """Also rows that see no key at all (causal, more queries than keys)."""
    for resident in (1, 3):
        check(last(form), form, queries, keys, 2, seed=queries, resident=resident)


# --------------------------------------------------------------------------------------------------
GROUPS = pytest.mark.parametrize(
    "kind, count", [("causal", 3), ("causal", 4), ("window", 3), ("window", 2), ("full", 3)]
)


def tile_groups(kind: str, count: int):
    """The modules of a kernel whose programs grow, slide or are alike, and what checks them with so
    many programs.
    """
    if kind == "window":
        return windowed(co_resident(count), False)[0], lambda module, rows, **how: check_windowed(
            module, rows, 64 * rows - 7, 70, **how
        )
    form = Form(64, kind == "causal", (64, 64), options=co_resident(count))
    return compiled(form)[0], lambda module, rows, **how: check(
        module, form, 64 * rows - 7, 64 * rows - 7, **how
    )


@pytest.fixture
def ran(monkeypatch) -> list[int]:
    """The programs in the order in which they store what they computed: one member of all groups
    after the other.
    """
    found, store = [], dataflow.RULES[tile.Store]
    monkeypatch.setitem(
        dataflow.RULES,
        tile.Store,
        lambda machine, op, *values: (
            found.append(int(machine[op.offsets[0]]) // 64),
            store(machine, op, *values),
        )[1],
    )
    return found


@GROUPS
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_the_longest_programs_are_not_alone(kind, count, rows, ran):
    """Where programs grow along axis 0, as masks let them, groups end with it, and what is missing
    is missing from the first. Each program runs once.
    """
    modules, checked = tile_groups(kind, count)
    checked(modules["schedule-programs"], rows)
    number = -(-rows // count)
    missing, order = (
        (0, range(number)) if kind == "full" else (count * number - rows, range(number)[::-1])
    )
    assert ran == [
        place
        for member in range(count)
        for group in order
        if 0 <= (place := group * count + member - missing) < rows
    ]


@GROUPS
def test_tile_groups_with_padding_tiles(kind, count):
    """Of every number: in the simulator at each level, in every order of threads, and as text."""
    modules, checked = tile_groups(kind, count)
    for module in without_threads(modules):
        checked(module, count + 1)
    for rows in range(1, 2 * count + 1):
        checked(modules[LAST], rows, seed=rows, resident=1 + rows % 3)
    for rows in (1, count + 1):
        checked(modules[LAST], rows, run=machine.run)


@EVERY
def test_the_roles(form):
    module, plan = last(form), compiled(form)[1].plan
    producer, consumer = (role(module, name) for name in ("producer", "consumer"))
    outer, *inner = plan.rings
    assert (
        plan.dynamic_schedule
        and plan.warps == 4
        and consumer.instances == plan.programs == kernel_of(module).integer("members", 1)
        and outer in (plan.programs, 2 * plan.programs)
        and len(inner) == 2
    )
    assert not any(
        isinstance(op, threads.Identity) and op.what.data == "member" for op in module.walk()
    )
    arrivals = [op.count.value.data for op in module.walk() if isinstance(op, threads.MbarrierInit)]
    assert arrivals.count(4) == 1 and arrivals.count(4 * plan.programs) == 3, (
        "stages of Q are one program's, those of K, of V and of the claims every one's"
    )
    assert (
        not count(consumer, (threads.TmaLoad, threads.NextProgram))
        and not count(producer, (threads.DotAsync, threads.TmaStore))
        and not count(consumer, threads.Turn)
    )


def released(form) -> list[str]:
    """Where programs release the stages that they have of their own, in the order of the text: at
    the end of the loop over programs, or inside of what is in it.
    """
    loop = next(op for op in role(last(form), "consumer").body.block.ops if op.name == "scf.while")
    plan = compiled(form)[1].plan
    inits = [op for op in last(form).walk() if isinstance(op, threads.MbarrierInit)]
    arrivals = plan.warps if plan.members == 1 else 4  # of the warps that read such a stage
    barriers = next(op.barriers for op in inits if op.count.value.data == arrivals)
    return [
        "outside" if op.parent is loop.after_region.block else "inside"
        for op in role(last(form), "consumer").walk()
        if isinstance(op, threads.MbarrierArrive) and op.barriers is barriers
    ]


@pytest.mark.parametrize("others", [(), (("epilogue", "direct"), ("cross_tile_prologue", False))])
def test_stages_of_their_own_are_given_back_early(others):
    """Where the next program's Q has no stage, it is loaded while this one's results leave; where
    it has one, at the end.
    """
    single, double = (
        Form(block=(64, 64), options=co_resident(3, ("num_stages", n), *others)) for n in (2, 4)
    )
    assert compiled(single)[1].plan.rings[0] == 3 and compiled(double)[1].plan.rings[0] == 6
    assert set(released(single)) == {"inside"} and released(double) == ["outside"]


def test_the_stage_of_a_program_alone_is_given_back_at_its_end():
    form = Form(d=256, block=(128, 64))
    assert compiled(form)[1].plan.rings[0] == 1 and compiled(form)[1].plan.members == 1
    assert released(form) == ["outside"]


@BOTH
def test_every_text_parses_back(form):
    for module in distinct(compiled(form)[0]):
        parses_back(module)


@assembler
@pytest.mark.parametrize(
    "form",
    [
        *FORMS,
        Form(128, True, (64, 64), options=co_resident(3)),
        Form(128, True, (64, 64), options=co_resident(2)),
        Form(128, False, (64, 96), options=co_resident(2)),
    ],
    ids=lambda f: f.name,
)
def test_it_assembles_clean(form):
    assembles_clean(last(form))


@pytest.mark.parametrize("threes", [1, 5, 11])
def test_the_time_of_a_launch(threes):
    """What three programs share is copied once: no slower than three times the work of one, and no
    miracle.
    """
    sizes = Sizes(
        (3 * threes, 16, 1),
        ((1, 16, 192 * threes, 64),) + ((1, 16, 4096, 64),) * 2 + ((1, 16, 192 * threes, 64),),
    )
    alone = Form(block=(64, 64), options=(("roles", "cooperative"),))
    seconds = [
        predict(
            last(form),
            Work.of(kernel_of(compiled(form)[0]["plan"]), sizes),
            TARGETS["sm_90a"],
            sizes,
        ).seconds
        for form in (FORMS[0], alone)
    ]
    assert 0.2 < seconds[0] / seconds[1] < 1.5, seconds


# --------------------------------------------------------------------------------------------------
WINDOWS = {
    "full": {},
    "causal": dict(causal=True),
    "window": dict(causal=True, window=50),
    "wide window": dict(causal=True, window=200),
    "open window": dict(window=90),
    "soft cap": dict(softcap=3.0),
}


@pytest.mark.parametrize(
    "options, programs, fuse",
    [
        *((options, 3, None) for options in WINDOWS.values()),
        (WINDOWS["window"], 4, None),
        (WINDOWS["window"], 3, True),
        (WINDOWS["wide window"], 4, True),
        (WINDOWS["causal"], 3, False),
    ],
    ids=[*WINDOWS, "window, four", "window, fused", "wide window, four, fused", "causal, apart"],
)
def test_attention_of_the_library(options, programs, fuse, monkeypatch):
    """Two heads that share one of K and V. Both ends of a window move with the program: what the
    others see before and behind it is passed over.
    """
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    causal, window, cap = (
        options.get("causal", False),
        options.get("window"),
        options.get("softcap", 0.0),
    )
    for queries, keys in ((130, 0), (5, 1), (257, 300), (300, 130)):
        q, k, v = operands(1, 2, 1, queries, keys, 64, 32, "bfloat16")
        out, sums = (
            np.full((1, 2, queries, 32), np.nan, q.dtype),
            np.full((1, 2, queries), np.nan, np.float32),
        )
        args = q, k, v, out, sums, *[None] * 7, 0.125, cap or 1.0, window or 0
        named = dict(
            GROUP=2,
            CAUSAL=causal,
            WINDOW=window is not None,
            CAP=bool(cap),
            D=64,
            DV=32,
            BM=64,
            BN=64,
            programs=programs,
            **({} if fuse is None else dict(cross_tile_prologue=fuse)),
        )
        _attention[-(-queries // 64), 2, 1](*args, **named)
        near((out, sums), attention_in_float64(q, k, v, **options), "bfloat16")
    decisions = _attention.compile(*args, target="sm_90a", **named).decisions
    assert any("co_resident" in line for line in decisions)


@pytest.mark.parametrize(
    "options",
    [{}, dict(causal=True), dict(causal=True, window=70)],
    ids=["full", "causal", "window"],
)
def test_ragged_batches(options, monkeypatch):
    """A sequence's length is looked up when a group is claimed; of its programs those behind the
    sequence's end see nothing.
    """
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    causal, window, lengths = options.get("causal", False), options.get("window"), (70, 0, 1, 300)
    begins, tokens = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), sum(lengths)
    q, k, v = (
        x[0].swapaxes(0, 1).copy() for x in operands(1, 2, 1, tokens, tokens, 64, 64, "bfloat16")
    )
    out, sums = np.full((tokens, 2, 64), np.nan, q.dtype), np.full((2, tokens), np.nan, np.float32)
    args, named = (
        (q, k, v, out, sums, begins, *[None] * 6, 0.125, 1.0, window or 0),
        dict(
            GROUP=2,
            CAUSAL=causal,
            WINDOW=window is not None,
            CAP=False,
            D=64,
            DV=64,
            BM=64,
            BN=64,
            programs=3,
        ),
    )
    _attention[5, 2, 4](*args, **named)
    for start, end in zip(begins, begins[1:], strict=False):
        if start == end:
            continue
        alone = [np.ascontiguousarray(x[start:end].swapaxes(0, 1)[None]) for x in (q, k, v)]
        near(
            (out[start:end].swapaxes(0, 1)[None], sums[None, :, start:end]),
            attention_in_float64(*alone, **options),
            "bfloat16",
        )
    decisions = _attention.compile(*args, target="sm_90a", **named).decisions
    assert any("co_resident" in line for line in decisions)
    # what says where the next program's blocks are comes from memory
    assert not any("first dot is issued" in line for line in decisions)


# --------------------------------------------------------------------------------------------------
def gradient(q, g, k, v, w, o, low, high, BN: tkc.constexpr):
    """Three dots, of which two have left operands of the program's own; both ends of the loop as
    they are asked for.
    """
    i = tkc.program_id(0)
    rows, given, acc = (
        tkc.load(q, (i * 64, 0), (64, 64)),
        tkc.load(g, (i * 64, 0), (64, 64)),
        tkc.zeros((64, 64)),
    )
    for n in tkc.range(low * i // BN * BN, tkc.minimum(k.shape[0], high * i), BN):
        s, t = (
            tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T),
            tkc.dot(given, tkc.load(v, (n, 0), (BN, 64)).T),
        )
        acc = tkc.dot(
            tkc.where(s > t, 1.0, -1.0).to(tkc.bfloat16), tkc.load(w, (n, 0), (BN, 64)), acc
        )
    tkc.store(o, (i * 64, 0), acc + i.to(tkc.float32))


def sums(q, k, at, s, o, low, high, BN: tkc.constexpr):
    """One dot; each program looks up where its rows are, and reads by pointers, which lead outside
    of the array for a padding tile.
    """
    i = tkc.program_id(0)
    place, total = at[i] * 64, tkc.zeros((64,))
    rows, factor = tkc.load(q, (place, 0), (64, 64)), tkc.load(s.ptr + i * 64 + tkc.arange(64))
    for n in tkc.range(low * i // BN * BN, tkc.minimum(k.shape[0], high * i), BN):
        total = total + tkc.sum(tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T), axis=1)
    tkc.store(o, (place,), total * factor)


def moments(x, y, s, o, low, high, BN: tkc.constexpr):
    """A sum whose operands, which fill one ring together, are the same in all programs of axis 0,
    as many rows as each asks for.
    """
    i, n = tkc.program_id(0), tkc.program_id(1) * 64
    acc = tkc.zeros((64, 64))
    for k in tkc.range(low * i // BN * BN, tkc.minimum(x.shape[0], high * i), BN):
        acc = tkc.dot(tkc.load(x, (k, 0), (BN, 64)).T, tkc.load(y, (k, n), (BN, 64)), acc)
    tkc.store(o, (i * 64, n), acc * tkc.load(s, (i * 64,), (64,))[:, None])


ARGUMENTS = {
    gradient: (MATRIX,) * 5 + (array(tkc.float32),),
    sums: (MATRIX, MATRIX, TABLE, ROW, ROW),
    moments: (MATRIX, MATRIX, ROW, array(tkc.float32)),
}
# Ends of a program's loop, so many rows for each of its places: from 0 on; ends that leave a gap
# between the spans of neighbours; no iteration at all; only the first; more than there is.
SPANS = (0, 64), (40, 96), (130, 160), (32, 32), (96, 40), (33, 200)


@cache
def other(kernel, programs: int, **options):
    return stages.compiled(
        traced(kernel, *ARGUMENTS[kernel], i32(), i32(), BN=32),
        **dict(co_resident(programs)),
        **options,
    )


def check_other(
    module, kernel, places: int, rows: int, low: int, high: int, run=run, **how
) -> None:
    q, g, k, v, w = (
        integers(n, 64, dtype=tkc.bfloat16, seed=i)
        for i, n in enumerate((64 * places, 64 * places, rows, rows, rows))
    )
    walk = [
        (first := low * i // 32 * 32, first + max(0, -(-(min(rows, high * i) - first) // 32)) * 32)
        for i in range(places)
    ]
    y, factor = (
        integers(rows, 128, dtype=tkc.bfloat16, seed=7),
        np.float32(np.arange(64 * places) % 5 - 2),
    )
    at = np.random.default_rng(places).permutation(places).astype(np.int32)
    o = {
        gradient: np.full((64 * places, 64), np.nan, np.float32),
        sums: np.full(64 * places, np.nan, np.float32),
        moments: np.full((64 * places, 128), np.nan, np.float32),
    }[kernel]
    run(
        module,
        [
            *{gradient: (q, g, k, v, w), sums: (q, k, at, factor), moments: (k, y, factor)}[kernel],
            o,
            low,
            high,
        ],
        (places, 2 if kernel is moments else 1, 1),
        **how,
    )
    q, g, k, v, w, y = map(np.float64, (q, g, k, v, w, y))
    for i, (first, end) in enumerate(walk):
        own = slice(64 * i, 64 * i + 64)
        if kernel is gradient:
            want = (
                np.where(q[own] @ k[first:end].T > g[own] @ v[first:end].T, 1.0, -1.0)
                @ w[first:end]
                + i
            )
        elif kernel is moments:
            want = k[first:end].T @ y[first:end] * factor[own, None]
        else:
            mine, own = factor[own], slice(64 * at[i], 64 * at[i] + 64)
            want = (q[own] @ k[first:end].T).sum(1) * mine
        np.testing.assert_array_equal(o[own], want)


OTHERS = pytest.mark.parametrize(
    "kernel, programs",
    [(gradient, 3), (sums, 4), (moments, 3), (sums, 2)],
    ids=lambda x: getattr(x, "__name__", str(x)),
)


@OTHERS
def test_other_kernels(kernel, programs):
    modules, given = other(kernel, programs)
    assert is_forced(co_resident(programs), given), given.decisions
    for module in distinct(modules):
        parses_back(module)
    for module in without_threads(modules):
        check_other(module, kernel, 5, 300, 40, 96)
    for seed, (low, high) in enumerate(SPANS):
        check_other(modules[LAST], kernel, 7, 300, low, high, seed=seed, resident=1 + seed % 3)


@OTHERS
def test_what_the_text_of_others_computes(kernel, programs):
    for low, high in SPANS[1:5:2]:
        check_other(other(kernel, programs)[0][LAST], kernel, 5, 200, low, high, run=machine.run)


@assembler
@OTHERS
def test_others_assemble_clean(kernel, programs):
    assembles_clean(other(kernel, programs)[0][LAST])


def test_a_cluster_is_not_taken_for_a_tile_group():
    given = other(moments, 3, cluster=(1, 2))[1]
    assert (
        given.plan.roles == "co_resident"
        and given.plan.cluster == (1, 1)
        and is_refused("cluster", (1, 2), given)
    )
    check_other(other(moments, 3, cluster=(1, 2))[0][LAST], moments, 4, 200, 0, 64)


def scored(q, k, v, w, o, high, BN: tkc.constexpr):
    """What scores are added to is loaded: where the dot behind them is late, it is read an
    iteration before that one's right operand, and does not share its stages. A padding tile need
    not lie in the grid.
    """
    i, acc = tkc.program_id(0), tkc.zeros((64, 64))
    tkc.assume(i < tkc.num_programs(0))
    rows = tkc.load(q, (i * 64, 0), (64, 64))
    for n in tkc.range(0, tkc.minimum(k.shape[0], (i + 1) * high), BN):
        s = tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T) * 2.0 + tkc.load(w, (0, n), (64, BN))
        acc = tkc.dot(
            tkc.where(s > 0, 1.0, -1.0).to(tkc.bfloat16), tkc.load(v, (n, 0), (BN, 64)), acc
        )
    tkc.store(o, (i * 64, 0), acc)


SCORED = pytest.mark.parametrize(
    "options",
    [co_resident(3), co_resident(2, ("num_stages", 2)), (("roles", "cooperative"),)],
    ids=str,
)
SCORES = (5, 130, 40), (4, 700, 300), (7, 70, 33)


def check_scored(module, places: int, rows: int, high: int, run=run, **how) -> None:
    q, k, v = (
        integers(n, 64, dtype=tkc.bfloat16, seed=i) for i, n in enumerate((64 * places, rows, rows))
    )
    w, o = (
        integers(64, rows, dtype=tkc.float32, seed=5),
        np.full((64 * places, 64), np.nan, np.float32),
    )
    run(module, [q, k, v, w, o, high], (places, 1, 1), **how)
    x, y, z = map(np.float64, (q, k, v))
    want = [
        np.where(x[64 * i : 64 * i + 64] @ y[:end].T * 2 + w[:, :end] > 0, 1.0, -1.0) @ z[:end]
        for i in range(places)
        for end in [min(rows, -(-min(rows, high * (i + 1)) // 32) * 32)]
    ]
    np.testing.assert_array_equal(o, np.concatenate(want))


@SCORED
def test_what_is_added_to_scores(options):
    modules, given = stages.compiled(
        traced(
            scored, MATRIX, MATRIX, MATRIX, array(tkc.float32), array(tkc.float32), i32(), BN=32
        ),
        **dict(options),
    )
    assert is_forced(options, given) and given.plan.rotate and len(given.plan.rings) == 3, (
        given.decisions
    )
    for module in without_threads(modules):
        check_scored(module, *SCORES[0])
    for seed, shape in enumerate(SCORES):
        check_scored(modules[LAST], *shape, seed=seed, resident=1 + seed)


def walking(q, k, v, o, span, BN: tkc.constexpr):
    """A window: loops begin and end where programs stand."""
    i, acc = tkc.program_id(0), tkc.zeros((64, 64))
    rows = tkc.load(q, (i * 64, 0), (64, 64))
    for n in tkc.range(
        tkc.maximum(i * 64 - span, 0) // BN * BN, tkc.minimum(k.shape[0], i * 64 + 64), BN
    ):
        acc = tkc.dot(
            tkc.where(tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T) > 0, 1.0, -1.0).to(
                tkc.bfloat16
            ),
            tkc.load(v, (n, 0), (BN, 64)),
            acc,
        )
    tkc.store(o, (i * 64, 0), acc.to(o.dtype))


@cache
def windowed(options, wide: bool):
    given = ArrayArgument(tkc.bfloat16, MATRIX.facts, wide)
    return stages.compiled(traced(walking, *(given,) * 4, i32(), BN=32), **dict(options))


def check_windowed(module, places: int, rows: int, span: int, run=run, **how) -> None:
    q, k, v = (
        integers(n, 64, dtype=tkc.bfloat16, seed=i) for i, n in enumerate((64 * places, rows, rows))
    )
    o, want = np.full((64 * places, 64), np.nan, q.dtype), np.zeros((64 * places, 64))
    run(module, [q, k, v, o, span], (places, 1, 1), **how)
    x, y, z = map(np.float64, (q, k, v))
    for i in range(places):
        first = max(64 * i - span, 0) // 32 * 32
        end = min(rows, first + -(-max(min(rows, 64 * i + 64) - first, 0) // 32) * 32)
        if first < end:
            want[64 * i : 64 * i + 64] = (
                np.where(x[64 * i : 64 * i + 64] @ y[first:end].T > 0, 1.0, -1.0) @ z[first:end]
            )
    np.testing.assert_array_equal(o, want.astype(o.dtype))


SLIDING = (
    (5, 300, 70),
    (1, 64, 0),
    (7, 200, 31),
    (9, 600, 200),
    (4, 1, 64),
    (8, 512, 500),
    (3, 0, 10),
)


@pytest.mark.parametrize(
    "options",
    [co_resident(3), co_resident(2, ("num_stages", 4)), (("roles", "cooperative"),)],
    ids=str,
)
@pytest.mark.parametrize("wide", [False, True], ids=["", "more than 2^31 elements"])
def test_a_window(options, wide):
    """Also of arrays whose extents have 64 bits. The producer claims behind its loop."""
    modules, made = windowed(options, wide)
    assert is_forced(options, made), made.decisions
    claim, loops = (
        next(op for op in modules[LAST].walk() if isinstance(op, threads.NextProgram)),
        lambda block: [op for op in block.ops if op.name == "scf.for"],
    )
    if made.plan.members > 1:
        assert [loop.is_before_in_block(claim) for loop in loops(claim.parent)] == [True]
    for module in without_threads(modules):
        check_windowed(module, *SLIDING[0])
    for number, shape in enumerate((*SLIDING, SLIDING[0])):
        check_windowed(modules[LAST], *shape, seed=number, resident=1 + number % 3)


@pytest.mark.parametrize(
    "options, posted",
    [(co_resident(3), 5), (co_resident(2, ("num_stages", 4)), 5), ((("roles", "cooperative"),), 3)],
    ids=str,
)
def test_where_a_team_begins_and_ends_is_posted(options, posted):
    """With the program's number and place, which is all where there is no tile group. The bounds of
    the other programs are not computed again: their least and greatest take three operations for
    each of them.
    """
    consumer = role(windowed(options, False)[0][LAST], "consumer")
    top = next(
        op for op in consumer.body.block.ops if op.name == "scf.while"
    ).after_region.block.ops
    assert (
        count(consumer, threads.BroadcastLoad) == posted
        and sum(op.name == "tile.max" for op in top) <= 2
    )


@pytest.mark.parametrize("most", [0, 1])
def test_what_is_not_posted_everyone_works_out(most, monkeypatch):
    """Where a group ends alone, or neither that nor where it begins."""
    monkeypatch.setattr(
        "tkc.passes.warpgroups.dynamic_tile_scheduler.MAX_PRECOMPUTED_NUMBERS", most
    )
    modules, _ = windowed.__wrapped__(co_resident(3), False)
    assert count(role(modules[LAST], "consumer"), threads.BroadcastLoad) == 3 + most
    for number, shape in enumerate(SLIDING[:4]):
        check_windowed(modules[LAST], *shape, seed=number, resident=1 + number % 3)


def from_the_diagonal(q, k, v, o, BN: tkc.constexpr):
    """Loops end at one place. Where two programs begin takes fewer operations than a post and a
    fetch, where they end together takes that.
    """
    i, acc = tkc.program_id(0), tkc.zeros((64, 64))
    rows = tkc.load(q, (i * 64, 0), (64, 64))
    for n in tkc.range(i * 64, k.shape[0], BN):
        acc = tkc.dot(
            tkc.where(tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T) > 0, 1.0, -1.0).to(
                tkc.bfloat16
            ),
            tkc.load(v, (n, 0), (BN, 64)),
            acc,
        )
    tkc.store(o, (i * 64, 0), acc.to(o.dtype))


@pytest.mark.parametrize(
    "options", [co_resident(2), co_resident(3), co_resident(2, ("num_stages", 2))], ids=str
)
def test_loops_from_the_diagonal_on(options):
    modules, made = stages.compiled(
        traced(from_the_diagonal, *(MATRIX,) * 4, BN=32), **dict(options)
    )
    assert is_forced(options, made), made.decisions
    for number, (places, rows) in enumerate(
        ((5, 300), (1, 64), (4, 256), (3, 500), (5, 40), (2, 0))
    ):
        q, k, v = (
            integers(n, 64, dtype=tkc.bfloat16, seed=i)
            for i, n in enumerate((64 * places, rows, rows))
        )
        o = np.full((64 * places, 64), np.nan, q.dtype)
        run(modules[LAST], [q, k, v, o], (places, 1, 1), seed=number, resident=1 + number % 3)
        x, y, z = map(np.float64, (q, k, v))
        np.testing.assert_array_equal(
            o,
            np.concatenate(
                [
                    np.where(x[64 * i : 64 * i + 64] @ y[64 * i :].T > 0, 1.0, -1.0) @ z[64 * i :]
                    for i in range(places)
                ]
            ).astype(o.dtype),
        )


# --------------------------------------------------------------------------------------------------
def striding(q, k, at, s, o, low, high, BN: tkc.constexpr):
    """What a loop carries depends on what each iteration adds to it, too."""
    i, total, place = tkc.program_id(0), tkc.zeros((64,)), low * 0
    rows = tkc.load(q, (i * 64, 0), (64, 64))
    for _n in tkc.range(0, k.shape[0], BN):
        total = total + tkc.sum(tkc.dot(rows, tkc.load(k, (place, 0), (BN, 64)).T), axis=1)
        place = place + i * 8
    tkc.store(o, (i * 64,), total)


def own_rows(q, k, at, s, o, low, high, BN: tkc.constexpr):
    i, acc = tkc.program_id(0), tkc.zeros((64, 64))
    for n in tkc.range(0, q.shape[1], BN):
        acc = tkc.dot(
            (tkc.load(q, (i * 64, n), (64, BN)).to(tkc.float32) * 2).to(tkc.bfloat16),
            tkc.load(k, (n, 0), (BN, 64)),
            acc,
        )
    tkc.store(o, (i * 64,), tkc.sum(acc, axis=1))


def loaded(q, k, at, s, o, low, high, BN: tkc.constexpr):
    i, total = tkc.program_id(0), tkc.zeros((64,))
    rows = tkc.load(q, (i * 64, 0), (64, 64))
    for n in tkc.range(0, at[i], BN):
        total = total + tkc.sum(tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T), axis=1)
    tkc.store(o, (i * 64,), total)


def anywhere(q, k, at, s, o, low, high, BN: tkc.constexpr):
    i, total = tkc.program_id(0), tkc.zeros((64,))
    rows = tkc.load(q, (i * 64, 0), (64, 64))
    for n in tkc.range(low * i, k.shape[0], BN):
        total = total + tkc.sum(tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T), axis=1)
    tkc.store(o, (i * 64,), total)


def of_a_tile(q, k, at, s, o, low, high, BN: tkc.constexpr):
    """Warps find together where a program's loop ends."""
    i, total = tkc.program_id(0), tkc.zeros((64,))
    last = tkc.max(tkc.arange(64) - 63 + i, axis=0)
    rows = tkc.load(q, (i * 64, 0), (64, 64))
    for n in tkc.range(0, last % 4 * 64, BN):
        total = total + tkc.sum(tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T), axis=1)
    tkc.store(o, (i * 64,), total)


def keys_of(kernel, i: int, at: np.ndarray) -> slice:
    """The keys that a program of a kernel reads."""
    ends = {loaded: at[i], of_a_tile: i % 4 * 64}
    return slice(ends[kernel]) if kernel in ends else slice(5 * i, None)


APART = own_rows, striding, loaded, anywhere, of_a_tile


def check_apart(module, kernel, run=run, **how) -> None:
    q, k, at, o = (
        integers(320, 64, dtype=tkc.bfloat16, seed=0),
        integers(250, 64, dtype=tkc.bfloat16, seed=1),
        np.array([96, 0, 224, 32, 160], np.int32),
        np.full(320, np.nan, np.float32),
    )
    run(module, [q, k, at, o, o, 5, 0], (5, 1, 1), **how)
    x, y = map(np.float64, (q, k))
    if kernel is striding:
        want = np.concatenate(
            [
                sum(
                    (x[64 * i : 64 * i + 64] @ y[8 * i * n : 8 * i * n + 32].T).sum(1)
                    for n in range(8)
                )
                for i in range(5)
            ]
        )
    else:
        want = (
            2 * (x @ y[:64]).sum(1)
            if kernel is own_rows
            else np.concatenate(
                [(x[64 * i : 64 * i + 64] @ y[keys_of(kernel, i, at)].T).sum(1) for i in range(5)]
            )
        )
    np.testing.assert_array_equal(o, want)


@pytest.mark.parametrize(
    "kernel, reason",
    [
        (own_rows, "what a loop loads depends on axis 0"),
        (striding, "what a loop loads depends on axis 0"),
        (loaded, "bounds are loaded"),
        (anywhere, "do not begin whole steps apart"),
        (of_a_tile, "bounds are computed of a tile"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_programs_that_share_nothing(kernel, reason):
    modules, given = stages.compiled(
        traced(kernel, *ARGUMENTS[sums], i32(), i32(), BN=32), **dict(co_resident(3))
    )
    assert (
        given.plan.roles == "cooperative"
        and all(is_refused(*option, given) for option in co_resident(3))
        and all(reason in line for line in given.decisions if "'co-resident' is not used" in line)
    ), given.decisions
    check_apart(modules[LAST], kernel, seed=1)


@pytest.mark.parametrize(
    "form, said, reason",
    [
        (
            Form(block=(128, 64), options=(("programs", 3),)),
            ["programs"],
            "128 rows are not one warpgroup's",
        ),
        (
            Form(block=(64, 64), options=(("programs", 3), ("dynamic_schedule", False))),
            ["programs"],
            "assigned statically, as asked",
        ),
        (
            Form(block=(64, 64), options=(("programs", 3), ("num_warps", 8))),
            ["programs"],
            "8 compute warps, as asked",
        ),
        (Form(block=(64, 64), options=co_resident(1)), ["roles"], "co-resident with no other"),
        (
            Form(block=(64, 64), options=(("programs", 3), ("roles", "cooperative"))),
            ["programs"],
            "why its warpgroups share a program",
        ),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_what_cannot_be_had_is_said_once(form, said, reason):
    made = compiled(form)[1]
    assert made.plan.roles in ("cooperative", "one") and all(
        is_refused(name, dict(form.options)[name], made) for name in said
    ), made.decisions
    assert all(
        reason in line
        for line in made.decisions
        if any(f"{name} = " in line and "not used" in line for name in said)
    ), made.decisions
    if form.d == 64:
        check(last(form), form, 70, 133, seed=1)


@pytest.mark.parametrize(
    "form, count, reason",
    [
        (Form(128, True, (64, 64)), 3, ""),
        (Form(64, True, (64, 64)), 4, ""),
        (Form(64, True, (64, 128)), 2, ""),
        (Form(128, True, (64, 64), options=(("programs", 4),)), 3, "do not fit 112"),
        (Form(256, block=(64, 64), options=co_resident(3)), 2, "do not fit 160"),
        (Form(block=(64, 64), options=co_resident(5)), 4, "no registers for 5 warpgroups"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_as_many_as_there_are_registers_for(form, count, reason):
    """Unasked where loops walk over more or less with the program, as a causal mask's do; asked for
    four, three stand co-resident where registers hold no more.
    """
    made = compiled(form)[1]
    assert (
        made.plan.roles == "co_resident"
        and made.plan.programs == count
        and (
            not reason
            or any(
                is_refused("programs", dict(form.options)["programs"], made) and reason in line
                for line in made.decisions
            )
        )
    ), made.decisions


@pytest.mark.parametrize(
    "options",
    [
        (("programs", 1),),
        (("roles", "cooperative"),),
        (("num_warps", 4),),
        (("dynamic_schedule", False),),
    ],
    ids=str,
)
def test_who_asks_for_something_else_gets_it(options):
    assert (
        compiled(Form(causal=True, block=(64, 64), options=options))[1].plan.roles == "cooperative"
    )


@pytest.mark.parametrize(
    "form",
    [
        Form(block=(64, 64)),
        Form(causal=True, block=(128, 64)),
        Form(causal=True, block=(64, 64), options=(("num_warps", 4),)),
        Form(causal=True, block=(64, 64), options=(("dynamic_schedule", False),)),
    ],
    ids=lambda f: f.name,
)
def test_what_nobody_asked_for_is_not_explained(form):
    made = compiled(form)[1]
    assert made.plan.roles == "cooperative" and not any(
        "roles = " in line or "programs = " in line for line in made.decisions
    )


# --------------------------------------------------------------------------------------------------
# The dots that read a stage are the work of the whole warpgroup, and its leader has waited for
# them; what is passed over nobody reads.
RELEASED = {
    f"leader alone: mbarrier_arrive {ring} in consumer{nth}"
    for ring in ("empty", "empty 2", "empty 3", "empty 4")
    for nth in ("", ", 2", ", 3", ", 4")
}
# A slot of the claims is read before the stages of the same group's Q are given back (for the
# claims' own ring see tests/passes/test_dynamic_tile_scheduler.py). What is broadcast, is so before
# the copy of the group's last V is issued.
CLAIMS = {
    *(
        f"{change}: mbarrier_wait {ring} in producer{nth}"
        for ring in ("empty 3", "empty 4")
        for change in ("drop", "later")
        for nth in ("", ", 2")
    ),
    *(f"earlier: mbarrier_arrive {ring} in consumer" for ring in ("empty 3", "empty 4")),
    "earlier: mbarrier_arrive full 4 in producer",
}
# A group's own stages lie side by side and never go round their ring: there are as many, or twice
# as many.
SIDE_BY_SIDE = {
    f"{change}: {which}"
    for change in ("parity stays", "stages + 1")
    for which in ("ring_next empty in producer", "ring_next in consumer")
}
PASSED = {
    "earlier: mbarrier_arrive empty 2 in consumer, 4",
    "later: mbarrier_wait full 3 in consumer, 3",
    # K and V of a step that is passed over: nobody reads either, in whichever order they are waited
    # for and given back
}
OTHERS_SLAB = {"stage: stage unnamed in consumer"}  # each of two consumers has the other's subtile
# arrays of one type might overlap: what is loaded is so before anything is stored. These do not
OVERLAPPING = {"drop: block_barrier in consumer"}


def test_every_mutant_of_the_rings_is_found():
    """Where stages are few and heads, tails and whole programs are passed over. (Of what lies
    between, tests/passes/test_roles_attention.py has every mutant.)
    """
    form, known = (
        Form(causal=True, block=(64, 64), options=co_resident(2, ("num_stages", 2))),
        RELEASED | CLAIMS | SIDE_BY_SIDE | PASSED,
    )
    number, missed = survivors(
        last(form),
        *(
            lambda m, shape=shape, seed=seed: check(m, form, *shape, seed=seed)
            for seed, shape in enumerate(
                (
                    (128, 300, 2),
                    (192, 128, 2),
                    (320, 192, 1),
                    (64, 0, 3),
                    (64, 64, 4),
                    (128, 300, 1),
                )
            )
        ),
        among=re.compile("mbarrier|ring_next").search,
        known=known.__contains__,
    )
    assert number > 80 and not missed, missed


@pytest.mark.parametrize("kernel, known", [(moments, RELEASED | OVERLAPPING)], ids=["moments"])
def test_every_mutant_is_found(kernel, known):
    number, missed = survivors(
        other(kernel, 2, num_stages=2)[0][LAST],
        *(
            lambda m, shape=shape, seed=seed: check_other(m, kernel, *shape, seed=seed)
            for seed, shape in enumerate(((6, 300, 40, 96), (9, 400, 32, 32), (7, 300, 33, 200)))
        ),
        known=known.__contains__,
    )
    assert number > 100 and not missed, missed


# --------------------------------------------------------------------------------------------------
@tkc.jit
def again(x, w, o, N: tkc.constexpr):
    """A loop in a loop fills the ring."""
    p, total = tkc.load(x, (tkc.program_id(0) * N, 0), (N, N)) + 1, tkc.zeros((N, N))
    for _ in tkc.range(3):
        for k in tkc.range(0, w.shape[0], N):
            total = tkc.dot(p, tkc.load(w, (k, 0), (N, N)), total)
        p = p + 1
    tkc.store(o, (tkc.program_id(0) * N, 0), total)


def test_a_loop_in_a_loop_is_for_programs_alone(monkeypatch):
    for name, value in (("TKC_SIM", "1"), ("TKC_TARGET", "sm_90a")):
        monkeypatch.setenv(name, value)
    r = np.random.default_rng(0)
    x, w = (r.integers(-2, 3, (m, 64)).astype(ml_dtypes.bfloat16) for m in (192, 128))
    o = np.zeros((192, 64), np.float32)
    again[3](x, w, o, 64, programs=3)
    both = w.astype(np.float32).reshape(2, 64, 64).sum(0)
    assert (o == (3 * x.astype(np.float32) + 6) @ both).all()
