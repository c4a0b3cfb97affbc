"""Operands that a role of its own computes: keys that are normed, scaled, or turned on their way to
their dot; values that are gated; both operands of a product.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes.kernels import context, through
from tests.passes.stages import mutants_of_converter
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir import threads
from tkc.ir.target import target
from tkc.ir.text import parse, show
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.pipeline import PIPELINE
from tkc.passes.planning import hopper
from tkc.sim import dataflow, level4
from tkc.sim.report import Violation

BF16 = ml_dtypes.bfloat16


# ---- kernels
def normed(q, k, v, heat, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Attention by cosines: keys are normed in the loop."""
    m = tkc.program_id(0) * BM
    hot, x = heat[0], tkc.load(q, (m, 0), (BM, D))
    total, acc = tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        y = tkc.load(k, (n, 0), (BN, D)).to(tkc.float32)
        y = y * tkc.rsqrt(tkc.sum(y * y, axis=1) + 1e-6)[:, None]
        e = tkc.exp((tkc.dot(x, y.to(q.dtype).T) - 1.0) * hot)
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc)
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


def paged(q, k, v, table, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Blocks of keys and values lie where a table says."""
    m = tkc.program_id(0) * BM
    x, total, acc = tkc.load(q, (m, 0), (BM, D)), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for i in range(table.shape[0]):
        n = table[i] * BN
        y = tkc.load(k, (n, 0), (BN, D)).to(tkc.float32)
        y = y * tkc.rsqrt(tkc.sum(y * y, axis=1) + 1e-6)[:, None]
        e = tkc.exp(tkc.dot(x, y.to(q.dtype).T))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc)
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


def twice(q, k, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr, RAW: tkc.constexpr):
    """Values are the keys, normed or as they are: another dot, late, reads what is computed, or
    what that is computed of.
    """
    m = tkc.program_id(0) * BM
    x, total, acc = tkc.load(q, (m, 0), (BM, D)), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        z = tkc.load(k, (n, 0), (BN, D))
        y = z.to(tkc.float32)
        y = (y * tkc.rsqrt(tkc.sum(y * y, axis=1) + 1e-6)[:, None]).to(q.dtype)
        e = tkc.exp(tkc.dot(x, y.T))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(q.dtype), z if RAW else y, acc)
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


def begun(q, k, w, scale, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """A dot before the loop, too, and scales that threads load before it."""
    m = tkc.program_id(0) * BM
    x = tkc.dot(tkc.load(q, (m, 0), (BM, D)), tkc.load(w, (0, 0), (D, D))).to(q.dtype)
    total, acc = tkc.zeros((BM,)), tkc.zeros((BM, D))
    s = tkc.load(scale, (0,), (D,))
    for n in tkc.range(0, k.shape[0], BN):
        y = (tkc.load(k, (n, 0), (BN, D)).to(tkc.float32) * s[None, :]).to(q.dtype)
        e = tkc.exp(tkc.dot(x, y.T))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(q.dtype), y, acc)
    tkc.store(o, (m, 0), (acc / total[:, None] * s[None, :]).to(o.dtype))


def masked(q, k, v, heat, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """The same of so many keys as there are, causal: the last blocks go through a mask."""
    m = tkc.program_id(0) * BM
    hot, x, rows = heat[0], tkc.load(q, (m, 0), (BM, D)), m + tkc.arange(BM)
    total, acc = tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, tkc.minimum(k.shape[0], m + BM), BN):
        y = tkc.load(k, (n, 0), (BN, D)).to(tkc.float32)
        y = y * tkc.rsqrt(tkc.sum(y * y, axis=1) + 1e-6)[:, None]
        cols = n + tkc.arange(BN)
        keep = (cols < k.shape[0])[None, :] & (rows[:, None] >= cols[None, :])
        e = tkc.exp(tkc.where(keep, (tkc.dot(x, y.to(q.dtype).T) - 1.0) * hot, -tkc.inf))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(v.dtype), tkc.load(v, (n, 0), (BN, D)), acc)
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


def scaled(q, k, v, ks, weight, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Keys and values of 8 bits; keys have scales of rows, that the loop loads, and values of
    columns, that it does not change.
    """
    m = tkc.program_id(0) * BM
    x, w = tkc.load(q, (m, 0), (BM, D)), tkc.load(weight, (0,), (D,))
    total, acc = tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        y = tkc.load(k, (n, 0), (BN, D)).to(tkc.float32) * tkc.load(ks, (n,), (BN,))[:, None]
        e = tkc.exp(tkc.dot(x, y.to(q.dtype).T))
        total = total + tkc.sum(e, axis=1)
        z = tkc.load(v, (n, 0), (BN, D)).to(tkc.float32) * w[None, :]
        acc = tkc.dot(e.to(q.dtype), z.to(q.dtype), acc)
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


def turned(q, k, v, cos, sin, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Keys by rotary embedding: two operands of the same two blocks and two more."""
    m = tkc.program_id(0) * BM
    x, y = (tkc.load(q, (m, half * D), (BM, D)) for half in (0, 1))
    total, acc = tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        c, s = (tkc.load(t, (n, 0), (BN, D)) for t in (cos, sin))
        a, b = (tkc.load(k, (n, half * D), (BN, D)).to(tkc.float32) for half in (0, 1))
        z = tkc.dot(x, (a * c - b * s).to(q.dtype).T)
        e = tkc.exp(tkc.dot(y, (a * s + b * c).to(q.dtype).T, z))
        total = total + tkc.sum(e, axis=1)
        acc = tkc.dot(e.to(q.dtype), tkc.load(v, (n, 0), (BN, D)), acc)
    tkc.store(o, (m, 0), (acc / total[:, None]).to(o.dtype))


def gated(q, k, a, b, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """Values are the product of two blocks, of which one goes through an activation."""
    m = tkc.program_id(0) * BM
    x, acc = tkc.load(q, (m, 0), (BM, D)), tkc.zeros((BM, D))
    for n in tkc.range(0, k.shape[0], BN):
        e = tkc.exp(tkc.dot(x, tkc.load(k, (n, 0), (BN, D)).T))
        g = tkc.load(b, (n, 0), (BN, D)).to(tkc.float32)
        g = tkc.load(a, (n, 0), (BN, D)).to(tkc.float32) * g / (1 + tkc.exp(-g))
        acc = tkc.dot(e.to(q.dtype), g.to(q.dtype), acc)
    tkc.store(o, (m, 0), acc.to(o.dtype))


def both(x, w, g, o, BM: tkc.constexpr, BN: tkc.constexpr, D: tkc.constexpr):
    """A product of which consumers compute the left operand."""
    m, acc = tkc.program_id(0) * BM, tkc.zeros((BM, BN))
    for n in tkc.range(0, w.shape[0], D):
        y = tkc.load(g, (n, 0), (D, BN)).to(tkc.float32)
        y = tkc.load(w, (n, 0), (D, BN)).to(tkc.float32) * y / (1 + tkc.exp(-y))
        z = tkc.maximum(tkc.load(x, (m, n), (BM, D)).to(tkc.float32), 0)
        acc = tkc.dot(z.to(x.dtype), y.to(x.dtype), acc)
    tkc.store(o, (m, 0), acc.to(o.dtype))


# ---- what they compute
def softmax_of(s, values):
    e = np.exp(s)
    return e @ values / np.maximum(e.sum(1, keepdims=True), 1e-30)


def silu(x):
    return x / (1 + np.exp(-x))


def right_normed(q, k, v, heat):
    k = k / np.sqrt((k * k).sum(1, keepdims=True) + 1e-6)
    return softmax_of((q @ k.T - 1) * heat, v)


def right_paged(q, k, v, table):
    k = k / np.sqrt((k * k).sum(1, keepdims=True) + 1e-6)
    at = (np.int64(table)[:, None] * 64 + np.arange(64)).ravel()
    return softmax_of(q @ k[at].T, v[at])


def right_twice(q, k):
    y = k / np.sqrt((k * k).sum(1, keepdims=True) + 1e-6)
    return softmax_of(q @ y.T, y)


def right_raw(q, k):
    return softmax_of(q @ (k / np.sqrt((k * k).sum(1, keepdims=True) + 1e-6)).T, k)


def right_begun(q, k, w, scale):
    x = (q @ w).astype(BF16).astype(np.float64)
    return softmax_of(x @ (k * scale).T, k * scale) * scale


def right_masked(q, k, v, heat):
    k = k / np.sqrt((k * k).sum(1, keepdims=True) + 1e-6)
    keep = np.tri(len(q), len(k), dtype=bool)
    return softmax_of(np.where(keep, (q @ k.T - 1) * heat, -np.inf), v)


def right_scaled(q, k, v, ks, weight):
    return softmax_of(q @ (k * ks[:, None]).T, v * weight)


def right_turned(q, k, v, cos, sin):
    (x, y), (a, b) = (np.split(t, 2, axis=1) for t in (q, k))
    return softmax_of(x @ (a * cos - b * sin).T + y @ (a * sin + b * cos).T, v)


def right_gated(q, k, a, b):
    return np.exp(q @ k.T) @ (a * silu(b))


def right_both(x, w, g):
    return np.maximum(x, 0) @ (w * silu(g))


@dataclass(frozen=True)
class Case:
    """A kernel, the shapes of its arrays for so many rows m and n, and what it computes."""

    kernel: Callable
    want: Callable
    shapes: Callable[[int, int, int], list[tuple[tuple[int, ...], Any]]]
    operands: int
    block: tuple[int, int] = (128, 64)
    d: int = 32
    results: Callable[[int, int], tuple[int, int]] | None = None
    options: tuple = field(default=(("num_stages", 3),))
    constants: tuple = ()

    @property
    def name(self) -> str:
        return self.kernel.__name__


F32, I8, I32 = np.float32, np.int8, np.int32
CASES = [
    Case(
        normed,
        right_normed,
        lambda m, n, d: [((m, d), BF16), ((n, d), BF16), ((n, d), BF16), ((1,), F32)],
        1,
    ),
    Case(
        scaled,
        right_scaled,
        lambda m, n, d: [((m, d), BF16), ((n, d), I8), ((n, d), I8), ((n,), F32), ((d,), F32)],
        2,
    ),
    Case(
        turned,
        right_turned,
        lambda m, n, d: [
            ((m, 2 * d), BF16),
            ((n, 2 * d), BF16),
            ((n, d), BF16),
            ((n, d), F32),
            ((n, d), F32),
        ],
        2,
    ),
    Case(
        paged,
        right_paged,
        lambda m, n, d: [((m, d), BF16), ((n, d), BF16), ((n, d), BF16), ((n // 64 + 2,), I32)],
        1,
    ),
    Case(gated, right_gated, lambda m, n, d: [((m, d), BF16), *[((n, d), BF16)] * 3], 1),
    Case(
        both,
        right_both,
        lambda m, n, d: [((m, n), BF16), ((n, 64), BF16), ((n, 64), BF16)],
        1,
        results=lambda m, d: (m, 64),
    ),
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
TYPES = {BF16: tkc.bfloat16, F32: tkc.float32, I8: tkc.int8, I32: tkc.int32}


def array(shape: tuple[int, ...], dtype: Any) -> ArrayArgument:
    last = len(shape) - 1
    strides = (Fact(16),) * last + (Fact(exact=1),)
    return ArrayArgument(TYPES[dtype], ArrayFacts((Fact(),) * (last + 1), strides, 16))


@cache
def made(case: Case) -> tuple[dict[str, Any], Any]:
    """The modules after each pass, and the context; the model may not say that it does not pay."""
    shapes = case.shapes(128, 128, case.d)
    module = traced(
        case.kernel,
        *(array(*given) for given in shapes),
        array((128, 128), BF16),
        BM=case.block[0],
        BN=case.block[1],
        D=case.d,
        **dict(case.constants),
    )
    stages: dict[str, Any] = {}
    kept = hopper.LEAST_CONVERTER_GAIN
    hopper.LEAST_CONVERTER_GAIN = -inf
    try:
        given = through(
            module,
            PIPELINE[-1],
            context("sm_90a", **dict(case.options)),
            lambda name, module: stages.setdefault(name, module.clone()),
        )
    finally:
        hopper.LEAST_CONVERTER_GAIN = kept
    return stages, given


def last(case: Case) -> Any:
    return made(case)[0][PIPELINE[-1]]


def check(module: Any, case: Case, m: int, n: int, seed: int = 0, run: Any = None, **how) -> None:
    """The result of m rows over n others, beside float64."""
    rng = np.random.default_rng(seed)
    given = [
        (
            rng.integers(0, n // 64, shape)
            if t is I32
            else rng.integers(-8, 9, shape)
            if t is I8
            else rng.standard_normal(shape) / 2
        ).astype(t)
        for shape, t in case.shapes(m, n, case.d)
    ]
    given = [x / 8 if x.dtype == F32 and x.ndim == 1 and len(x) > 1 else x for x in given]
    rows, columns = case.results(m, case.d) if case.results else (m, case.d)
    result = np.full((rows, columns), np.nan, BF16)
    if module.body.block.first_op.level < 4:
        run = dataflow.run
    elif run is None:
        run, how = level4.run, {"seed": seed, **how}
    run(module, [*given, result], (-(-m // case.block[0]), 1, 1), **how)
    want = case.want(*map(np.float64, given))
    np.testing.assert_allclose(np.float64(result), want, atol=0.02 * np.abs(want).max() + 1e-6)


# ---- tests
def planned(kernel: Callable, *shapes: tuple, **constants: int) -> Any:
    """The plan of a kernel of such arrays, as the model says."""
    arrays = [array(*given) for given in shapes]
    return through(traced(kernel, *arrays, **constants), "plan", context("sm_90a"))


@pytest.mark.parametrize(
    ("case", "d"),
    [(CASES[0], 64), (CASES[1], 64), (CASES[2], 32), (CASES[4], 64)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_the_model_takes_the_converter_where_it_pays(case, d):
    shapes = [*case.shapes(4096, 4096, d), ((4096, d), BF16)]
    given = planned(case.kernel, *shapes, BM=128, BN=64, D=d)
    assert any("the converter computes operands" in line for line in given.decisions)
    assert given.plan.rotate, given.decisions  # what waits for it may be late


def test_a_product_of_computed_operands_is_the_consumers():
    """The model sees too little gain for registers and stages that a converter takes."""
    shapes = [*CASES[5].shapes(4096, 4096, 64), ((4096, 64), BF16)]
    given = planned(both, *shapes, BM=128, BN=64, D=64)
    assert any("consumers compute operands" in line for line in given.decisions)
    assert given.plan.dots[0].b == "written" and len(given.plan.registers) == 2


def transformed(a, k, v, b, g, w, u, BM: tkc.constexpr, D: tkc.constexpr):
    """A triangle times keys and values, which are scaled by rows: two loops over columns."""
    m = tkc.program_id(0) * BM
    x, scale = tkc.load(a, (m, 0), (BM, BM)), tkc.load(b, (m,), (BM,))
    for n in tkc.range(0, D, 64):
        y = (tkc.load(v, (m, n), (BM, 64)) * scale[:, None]).to(v.dtype)
        tkc.store(u, (m, n), tkc.dot(x, y).to(u.dtype))
    decay = tkc.exp2(tkc.load(g, (m,), (BM,)))
    for n in tkc.range(0, D, 64):
        y = (tkc.load(k, (m, n), (BM, 64)) * scale[:, None] * decay[:, None]).to(k.dtype)
        tkc.store(w, (m, n), tkc.dot(x, y).to(w.dtype))


def test_blocks_that_share_a_multiprocessor_compute_operands_in_turn():
    """What one block's consumers compute, they compute under the other one's dots: the converter,
    whose block has a multiprocessor alone, saves nothing.
    """
    rows = ((4096, 128), BF16)
    shapes = ((4096, 64), BF16), rows, rows, ((4096,), BF16), ((4096,), F32), rows, rows
    given = planned(transformed, *shapes, BM=64, D=128)
    assert any("consumers compute operands" in line for line in given.decisions), given.decisions
    assert given.plan.blocks == 2 and {dot.b for dot in given.plan.dots} == {"written"}


def test_what_is_asked_for_goes_first():
    """Programs of the last wave are not shared where a role computes an operand."""
    plan = made(replace(CASES[5], options=(("stream_k", 3),)))[1].plan
    assert plan.stream_k == 3 and plan.dots[0].b == "written"
    plan = made(replace(CASES[5], options=(("split_k", 2),)))[1].plan
    assert plan.split_k == 2 and plan.dots[0].b == "converted"


def other(q, k, v, o, KIND: tkc.constexpr):
    """Keys that are computed of what the converter has not, or for more than dots."""
    x, acc, more = tkc.load(q, (0, 0), (128, 64)), tkc.zeros((128, 64)), tkc.zeros((64,))
    carried = tkc.zeros((64, 64))
    for n in tkc.range(0, k.shape[0], 64):
        y = tkc.load(k, (n, 0), (64, 64)).to(tkc.float32)
        if KIND == "carried":
            y = y + carried
            carried = carried + 1
        elif KIND == "of both axes":
            y = y * tkc.sum(y, axis=1)[:, None] * tkc.sum(y, axis=0)[None, :]
        elif KIND == "of a number":
            y = y * tkc.sum(y)
        elif KIND == "of a scan":
            y = tkc.cumsum(y, axis=1)
        elif KIND == "read beside":
            more = more + tkc.sum(y * 2, axis=1)
        elif KIND == "of a column":
            y = y * tkc.load(v, (n, 0), (64, 1)).to(tkc.float32)  # no tensor map copies it
        elif KIND == "of rows":
            rows = tkc.load(v, (n, 0), (64, 1)).to(tkc.int32)
            y = y + tkc.load(k, (tkc.reshape(rows, (64,)), 0), (64, 64)).to(tkc.float32)
        e = tkc.exp(tkc.dot(x, (y * 2).to(q.dtype).T))
        acc = tkc.dot(e.to(q.dtype), tkc.load(v, (n, 0), (64, 64)), acc)
    tkc.store(o, (0, 0), (acc + tkc.sum(more)).to(o.dtype))


KINDS = (
    "carried",
    "of both axes",
    "of a number",
    "of a scan",
    "read beside",
    "of a column",
    "of rows",
)


@pytest.mark.parametrize("kind", [*KINDS, "plain"])
def test_what_the_converter_cannot_compute(kind):
    given = planned(other, *[((4096, 64), BF16)] * 4, KIND=kind)
    said = any("compute operands" in d or "computes operands" in d for d in given.decisions)
    assert said == (kind == "plain"), given.decisions


@EVERY
def test_the_converter_computes_operands(case):
    _, given = made(case)
    sources = [source for dot in given.plan.dots for source in (dot.a, dot.b)]
    assert sources.count("converted") == case.operands, given.decisions
    assert "written" not in sources and given.plan.registers[2:]


@EVERY
def test_at_every_level(case):
    stages, _ = made(case)
    for name in ("plan", "rotate-loops", "select-layouts", "swizzle-shared"):
        check(stages[name], case, 128, 192)
    check(stages["pipeline-async-copies"], case, 128, 128)
    assert show(parse(show(last(case)))) == show(last(case))


@EVERY
def test_the_roles_run_in_any_order(case):
    for blocks in (1, 2, 3, 4, 7):
        check(last(case), case, 128, 64 * blocks, seed=blocks)
    check(last(case), case, 256, 128, seed=1, resident=2)
    check(last(case), case, 512, 192, seed=2, resident=1)


MASKED = Case(masked, right_masked, CASES[0].shapes, 1)


@pytest.mark.parametrize(("rows", "keys"), [(200, 200), (130, 70), (256, 193), (64, 333)])
def test_loops_with_a_masked_end(rows, keys):
    """What is cut off a loop converts its own blocks, in the same rings."""
    assert [dot.b for dot in made(MASKED)[1].plan.dots] == ["converted", "shared"]
    check(last(MASKED), MASKED, rows, keys, seed=rows)
    check(last(MASKED), MASKED, rows, keys, seed=keys, resident=2)


def two(m, n, d):
    return [((m, d), BF16), ((n, d), BF16)]


def of_begun(m, n, d):
    return [((m, d), BF16), ((n, d), BF16), ((d, d), BF16), ((d,), F32)]


STATIC = ("num_stages", 3), ("dynamic_schedule", False)
BEGUN = Case(begun, right_begun, of_begun, 2, options=STATIC)


def test_what_is_loaded_before_the_loop_stays_there():
    """No loop over programs carries it: the converter has a part of its own."""
    plan = made(BEGUN)[1].plan
    assert [dot.b for dot in plan.dots][1:] == ["converted"] * 2
    for blocks in (1, 2, 5):
        check(last(BEGUN), BEGUN, 384, 64 * blocks, seed=blocks)


NORMED_TWICE = Case(twice, right_twice, two, 2, constants=(("RAW", False),))
RAW_BESIDE = Case(twice, right_raw, two, 1, constants=(("RAW", True),))


@pytest.mark.parametrize("case", [NORMED_TWICE, RAW_BESIDE], ids=["normed", "raw"])
def test_another_dot_reads_what_the_converter_does(case):
    sources = [dot.b for dot in made(case)[1].plan.dots]
    assert sources.count("converted") == case.operands and made(case)[1].plan.rotate
    for blocks in (1, 2, 3, 5):
        check(last(case), case, 256, 64 * blocks, seed=blocks)
    check(last(case), case, 384, 192, seed=3, resident=2)
    check(last(case), case, 128, 192, run=machine.run)


@EVERY
def test_what_the_text_computes(case):
    check(last(case), case, 128, 192, run=machine.run)


@pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")
@EVERY
def test_the_text_assembles_clean(case):
    assembled = ptxas.assemble(emit(last(case), target("sm_90a")).text, "sm_90a")
    assert assembled.clean, assembled.log


def roles_of(module: Any) -> dict[str, threads.Role]:
    return {op.sym_name.data: op for op in module.walk() if isinstance(op, threads.Role)}


@EVERY
def test_the_converter_meets_no_other_warps(case):
    names = {op.name for op in roles_of(last(case))["converter"].walk()}
    assert not any("barrier" in name and "mbarrier" not in name for name in names), names
    assert not names & {"tile.dot", "tile.dot_async", "tile.tma_load"}


def test_what_each_role_does():
    """The converter reads a stage and writes one; consumers wait for what it has written alone."""
    case = replace(CASES[0], options=(("num_stages", 3), ("rotate", False)))
    stages, _ = made(case)
    before = [op.name for op in stages["plan"].walk() if not op.regions]
    assert before.count("tile.load") == 4 and "tile.rsqrt" in before
    roles = roles_of(stages["schedule-warpgroups"])
    moves = "mbarrier_wait", "read", "rsqrt", "write", "fence", "mbarrier_arrive"
    loop = [op for op in roles["converter"].walk() if isinstance(op, scf.ForOp)][-1]
    done = [op.name.removeprefix("tile.") for op in loop.body.block.ops]
    assert [name for name in done if name in moves] == [
        "mbarrier_wait",
        "read",
        "rsqrt",
        "mbarrier_wait",
        "write",
        "fence",
        "mbarrier_arrive",
        "mbarrier_arrive",
    ]
    assert "tile.rsqrt" not in {op.name for op in roles["consumer"].walk()}
    assert "tile.rsqrt" not in {op.name for op in roles["producer"].walk()}


# Of two operands that one dot after the other reads, the first one's ring has as many stages: where
# it is free, the second one's is.
IMPLIED = {
    f"{change}: mbarrier_wait empty 6 in converter{place}"
    for change in ("drop", "later")
    for place in ("", ", 2")
}


@pytest.mark.parametrize("case", [CASES[0], CASES[2]], ids=lambda case: case.name)
def test_mutants_of_the_converter_are_found(case):
    """Every change of what the converter waits for, says and fences, and of what others count of
    it, breaks a rule or a result in some schedule.
    """
    case = replace(case, options=(("num_stages", 2), ("dynamic_schedule", False)))
    module, missed, tried = last(case), set(), 0
    for label, mutant in mutants_of_converter(module):
        tried += 1
        for rows, blocks, seed in (128, 3, 0), (384, 1, 0), (384, 3, 1), (512, 2, 2), (128, 7, 3):
            try:
                check(mutant, case, rows, 64 * blocks, seed=seed)
            except (Violation, AssertionError):
                break
        else:
            missed.add(label)
    assert tried > 20 and missed <= IMPLIED, (tried, missed - IMPLIED)
