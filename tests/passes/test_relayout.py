"""Operands of 8 bits that are relaid out on their way to the tensor cores: products of every major,
and attention whose probabilities are float8.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from math import e, inf, log2

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import f32, traced
from tests.passes.kernels import context, through
from tests.passes.stages import mutants_of_converter
from tests.passes.test_product_types import Case, check, compiled, last
from tests.runtime.test_arrays_without_maps import failures
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir.fragments import matrix_access, permuted_k, wgmma_a, wgmma_a_permuted
from tkc.ir.layout import movement
from tkc.ir.shared_layout import SharedLayout
from tkc.ir.target import target
from tkc.ir.text import parse, show
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.layouts import relayout
from tkc.passes.pipeline import PIPELINE
from tkc.sim import dataflow, level4
from tkc.sim.report import Violation

E4, E5, LOG2E = tkc.float8_e4m3, tkc.float8_e5m2, log2(e)


# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("extents", "k", "dense"),
    [
        ((128, 128), 0, 1),
        ((64, 96), 0, 1),
        ((32, 64), 0, 1),
        ((128, 64), 1, 0),
        ((192, 32), 1, 0),
        ((128, 128), 0, 0),
        ((64, 128), 1, 1),
    ],
)
@pytest.mark.parametrize("turn", [False, True], ids=["in order", "permuted"])
def test_layouts(extents, k, dense, turn):
    """Every element once; matrices where N is dense; K in fours (sixteens where it is dense) behind
    the views, and nothing crosses threads.
    """
    assert relayout.fits(extents, k, dense)
    read = relayout.read_layout(extents, k, dense, turn)
    at = read.table().reshape(-1, 2)
    assert (
        len(at) == len(np.unique(at, axis=0)) == extents[0] * extents[1]
        and read.num_warps == relayout.RELAYOUT_WARPS
    )
    order = permuted_k(extents[k]) if turn else range(extents[k])
    slot = np.argsort(order)
    seen = read
    if turn:
        split = (*extents[:k], extents[k] // 16, 2, 4, 2, *extents[k + 1 :])
        seen = (
            read.reshape(split)
            .transpose([*range(k), k, k + 2, k + 1, k + 3, *range(k + 4, len(split))])
            .reshape(extents)
        )
        moved = read.table().copy()
        moved[..., k] = slot[moved[..., k]]
        assert (seen.table() == moved).all()
    written = relayout.written_layout(seen, k)
    assert movement(seen, written) in ("none", "registers") and written.vector(k, 16) >= (
        16 if dense == k else 4
    )
    source, goal = (
        SharedLayout.widest(extents, 8, (dense, 1 - dense)),
        SharedLayout.widest(extents, 8, (k, 1 - k)),
    )
    if dense != k:
        assert (
            matrix_access(read, source, 8).trans
            and matrix_access(written, goal, 8, store=True) is not None
        )
        if extents[k] >= 128:
            assert (
                matrix_access(written, goal, 8, store=True).conflicts == 1
                and matrix_access(written, goal, 8).conflicts == 2
            )
        if turn and source.swizzle == 128:
            assert matrix_access(read, source, 8).conflicts == 1


def test_a_permuted_left_operand_is_a_choice_of_registers():
    a = wgmma_a_permuted(64, 128)
    assert a.reshape((64, 8, 2, 4, 2)).transpose((0, 1, 3, 2, 4)).reshape((64, 128)) == wgmma_a(
        64, 128, bits=8
    )


# --------------------------------------------------------------------------------------------------
THREE = (("num_stages", 3),)
MAJORS = [
    Case(E4, E4, (64, 64, 64), "fast", options=THREE),
    Case(E4, E5, (64, 96, 32), "fast", options=THREE),
    Case(E4, E4, (128, 64, 128), "exact", "a", options=THREE),
    Case(E4, E4, (128, 64, 64), "fast b.T", "b", options=THREE),
    Case(tkc.int8, tkc.int8, (64, 64, 64), "fast", "a", tkc.int32, options=THREE),
]
EVERY = pytest.mark.parametrize("case", MAJORS, ids=lambda c: c.name)


@EVERY
def test_products_at_every_level(case):
    (BM, BN, BK), (modules, given) = case.block, compiled(case)
    assert given.plan.roles == "cooperative" and "relaid" in (
        given.plan.dots[0].a,
        given.plan.dots[0].b,
    ), given.decisions
    for name in ("select-layouts", "pipeline-async-copies"):
        check(modules[name], case, BM + 5, BN + 9, 2 * BK - 7)
    for steps in (0, 1, given.plan.stages - 1, given.plan.stages + 1):
        check(last(case), case, BM + 5, BN - 7, steps * BK - 3 * (steps > 0), seed=steps)
    check(last(case), case, BM, BN + 9, 2 * BK, seed=1, resident=2)
    assert show(parse(show(last(case)))) == show(last(case))


@pytest.mark.parametrize("case", MAJORS[1:3], ids=lambda c: c.name)
def test_what_the_text_computes(case):
    """The PTX itself, whose bytes change places: with words exchanged between the halves of a warp
    where K is long enough.
    """
    check(
        last(case),
        case,
        case.block[0] + 5,
        case.block[1] - 7,
        2 * case.block[2] - 7,
        run=machine.run,
    )


@pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    "case", [Case(E4, E4, (128, 256, 128), "fast"), MAJORS[2]], ids=lambda c: c.name
)
def test_products_assemble_clean(case):
    assembled = ptxas.assemble(emit(last(case), target("sm_90a")).text, "sm_90a")
    assert assembled.clean, assembled.log


@pytest.mark.parametrize(
    "case", [MAJORS[0], MAJORS[2], Case(E4, E4, (256, 128, 64), "fast")], ids=lambda c: c.name
)
def test_products_are_read_as_matrices(case):
    """Sixteen bytes of shared memory to a lane and an instruction, not one; and one more
    instruction for each four bytes that change places.
    """
    converter = emit(last(case), target("sm_90a")).text.split("---- converter")[1]
    words = (case.block[0] * ("a" in case.turned) + case.block[1]) * case.block[2] // (4 * 128)
    assert (
        converter.count("ldmatrix.sync.aligned.m8n8.x4.trans") == words // 4
        and converter.count("prmt") == words
        and "ld.shared" not in converter
    )


# A's ring has as many stages as B's and comes first: a role that may fill a stage of it knows that
# B's of the same number was read and relaid out.
IMPLIED = {
    "drop: mbarrier_wait empty 3 in converter",
    "later: mbarrier_wait empty 3 in converter",
    "leader alone: mbarrier_arrive empty 2 in converter",
}


def test_mutants_of_the_converter_are_found():
    case = Case(E4, E4, (64, 64, 32), "fast", options=(("num_stages", 2),))
    module, missed, tried = last(case), set(), 0
    for label, mutant in mutants_of_converter(module):
        tried += 1
        for shape, seed in [((128, 64, 128), 0), ((64, 64, 32), 0), ((64, 192, 64), 1)]:
            try:
                check(mutant, case, *shape, seed=seed)
            except (Violation, AssertionError):
                break
        else:
            missed.add(label)
    assert tried > 35 and missed <= IMPLIED, missed - IMPLIED


# --------------------------------------------------------------------------------------------------
def attention(
    q,
    k,
    v,
    o,
    qs,
    ks,
    vs,
    scale,
    CAUSAL: tkc.constexpr,
    TURNED: tkc.constexpr,
    D: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    m, h, b = tkc.program_id(0) * BM, tkc.program_id(1), tkc.program_id(2)
    q, k, v, o, keys = q[b, h], k[b, h], v[b, h], o[b, h], k.shape[2]
    c, shift = scale * LOG2E * qs[h] * ks[h], keys - q.shape[0]
    rows, qi = m + tkc.arange(BM) + shift, tkc.load(q, (m, 0), (BM, D))
    top, total, acc = tkc.full((BM,), -inf), tkc.zeros((BM,)), tkc.zeros((BM, D))
    for n in tkc.range(0, tkc.minimum(keys, m + BM + shift) if CAUSAL else keys, BN):
        cols = n + tkc.arange(BN)
        keep = cols[None, :] < keys
        if CAUSAL:
            keep = keep & (rows[:, None] >= cols[None, :])
        s = tkc.where(keep, tkc.dot(qi, tkc.load(k, (n, 0), (BN, D)).T), -inf)
        new = tkc.maximum(top, tkc.max(s, axis=1) * c)
        base = tkc.where(new == -inf, 0, new)
        p, shrink = tkc.exp2(s * c - base[:, None] + 4), tkc.exp2(top - base)
        total = total * shrink + tkc.sum(p, axis=1)
        acc = tkc.dot(
            p.to(v.dtype),
            tkc.load(v, (0, n), (D, BN)).T if TURNED else tkc.load(v, (n, 0), (BN, D)),
            acc * shrink[:, None],
        )
        top = new
    tkc.store(
        o, (m, 0), (tkc.where(total[:, None] > 0, acc / total[:, None], 0) * vs[h]).to(o.dtype)
    )


@dataclass(frozen=True)
class Form:
    causal: bool = False
    turned: bool = False  # V comes as [D, keys]
    d: int = 64
    block: tuple[int, int] = (64, 64)
    options: tuple = ()

    @property
    def name(self) -> str:
        return " ".join(
            [
                f"d {self.d}",
                "x".join(map(str, self.block)),
                *["causal"] * self.causal,
                *["turned"] * self.turned,
            ]
        )


@cache
def made(form: Form):
    def array(t):
        return ArrayArgument(t, ArrayFacts((Fact(),) * 4, (Fact(16),) * 3 + (Fact(exact=1),), 16))

    scales = ArrayArgument(tkc.float32, ArrayFacts((Fact(),), (Fact(exact=1),), 16))
    module, stages = (
        traced(
            attention,
            *(array(E4),) * 3,
            array(tkc.bfloat16),
            *(scales,) * 3,
            f32(),
            CAUSAL=form.causal,
            TURNED=form.turned,
            D=form.d,
            BM=form.block[0],
            BN=form.block[1],
        ),
        {},
    )
    given = through(
        module,
        PIPELINE[-1],
        context("sm_90a", **dict(form.options)),
        lambda name, module: stages.setdefault(name, module.clone()),
    )
    return stages, given


def errors(
    module, form: Form, queries: int, keys: int, heads: int = 1, seed: int = 0, run=None, **how
) -> tuple[float, float]:
    """Of the kernel and of its scheme in NumPy, against float64: relative norms."""
    rng, f8, d = np.random.default_rng(seed), ml_dtypes.float8_e4m3fn, form.d
    q, k, v = (
        rng.standard_normal((1, heads, -(-max(n, 1) // 16) * 16, d)).astype(f8)
        for n in (queries, keys, keys)
    )
    qs, ks, vs = (rng.uniform(0.5, 1.5, heads).astype(np.float32) for _ in range(3))
    q, k, given = (
        q[:, :, :queries],
        k[:, :, :keys],
        np.ascontiguousarray(v.swapaxes(2, 3))[..., :keys] if form.turned else v[:, :, :keys],
    )
    o, scale = np.full((1, heads, queries, d), np.nan, ml_dtypes.bfloat16), d**-0.5
    run = run or (dataflow.run if module.body.block.first_op.level < 4 else level4.run)
    run(
        module, [q, k, given, o, qs, ks, vs, scale], (-(-queries // form.block[0]), heads, 1), **how
    )
    q, k, v = (np.float64(x) for x in (q, k, v[:, :, :keys]))
    s = q @ k.swapaxes(-1, -2) * scale * (qs * ks)[:, None, None]
    if form.causal:
        s = np.where(np.arange(queries)[:, None] + keys - queries >= np.arange(keys), s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(top == -np.inf, 0, top))
    total = p.sum(-1, keepdims=True)

    def over(x):
        return np.divide(x @ v, total, out=np.zeros_like(q), where=total > 0) * vs[:, None, None]

    want, scheme = over(p), over(np.float64((p * 16).astype(f8)) / 16).astype(ml_dtypes.bfloat16)
    size = max(np.linalg.norm(want), 1e-30)
    return tuple(float(np.linalg.norm(np.float64(x) - want) / size) for x in (o, scheme))


def right(module, form: Form, *shape, **how) -> None:
    ours, scheme = errors(module, form, *shape, **how)
    assert ours <= 1.5 * scheme + 1e-12, (ours, scheme)


FORMS = [
    Form(options=THREE),
    Form(causal=True, options=THREE),
    Form(turned=True, d=32, options=THREE),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)
def test_attention(form):
    stages, given = made(form)
    kernel = stages[PIPELINE[-1]]
    assert (
        given.plan.rotate
        and given.plan.dots[1].permuted
        and (given.plan.dots[1].a, given.plan.dots[1].b) == ("registers", "relaid")
    )
    assert not any("between lanes" in line or "between warps" in line for line in given.decisions)
    for name in ("select-layouts", "pipeline-async-copies"):
        right(stages[name], form, 67, 133)
    for keys in (0, 1, 2 * form.block[1], 4 * form.block[1] + 3):
        right(kernel, form, 64, keys, 1 + (keys < 10), seed=keys)
    right(kernel, form, 130, 100, 1, seed=5, resident=2)
    right(kernel, form, 65, 33, 1, seed=6)


@pytest.mark.parametrize("form", FORMS[1:], ids=lambda f: f.name)
def test_a_first_dot_that_a_third_role_prepares_is_not_issued_early(form):
    early = replace(form, options=(("cross_tile_prologue", True), ("dynamic_schedule", True)))
    assert not made(early)[1].plan.cross_tile_prologue


def test_what_the_text_of_attention_computes():
    form = Form(d=32, block=(64, 128), options=THREE)
    right(made(form)[0][PIPELINE[-1]], form, 70, 150, seed=7, run=machine.run)


@pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    "form",
    [Form(causal=True, d=128, block=(128, 128)), Form(d=64, block=(128, 128), turned=True)],
    ids=lambda f: f.name,
)
def test_attention_assembles_clean(form):
    """No spill, no serialized dots; a thread's probabilities are packed where they are: the only
    shuffles are those of row statistics.
    """
    text = emit(made(form)[0][PIPELINE[-1]], target("sm_90a")).text
    assembled = ptxas.assemble(text, "sm_90a")
    assert assembled.clean, assembled.log
    consumer = text.split("---- consumer")[1].split("---- converter")[0]
    assert "prmt" not in consumer and "ldmatrix" not in consumer


# --------------------------------------------------------------------------------------------------
@tkc.jit
def gated(a, w, v, y):
    """Two sums of one loop, of which each has a right operand that is not dense along k."""
    m, n = tkc.program_id(0) * 64, tkc.program_id(1) * 64
    g, u = tkc.zeros((64, 64)), tkc.zeros((64, 64))
    for k in range(0, a.shape[1], 32):
        x = tkc.load(a, (m, k), (64, 32))
        g = tkc.dot(x, tkc.load(w, (k, n), (32, 64)), g)
        u = tkc.dot(x, tkc.load(v, (k, n), (32, 64)), u)
    tkc.store(y, (m, n), g + 2 * u)


def test_of_several_sums_the_consumers_lay_operands_out(monkeypatch):
    """Copies by tensor maps run ahead, and threads write what they brought K-major."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(3)
    a, w, v = (rng.integers(-3, 4, shape) for shape in ((64, 96), (96, 128), (96, 128)))
    given = [x.astype(ml_dtypes.float8_e4m3fn) for x in (a, w, v)]
    given.append(np.zeros((64, 128), np.float32))
    made = gated.compile(*given, target="sm_90a")
    assert "wgmma.mma_async" in made.ptx
    assert sum("the consumers lay a block of 32x64 out" in d for d in made.decisions) == 2
    maps = {p.argument for p in made.interface.parameters if p.kind == "map"}
    assert {0, 1, 2} <= maps
    gated[(1, 2)](*given)
    np.testing.assert_array_equal(given[-1], a @ w + 2 * (a @ v))
    given[-1][:] = 0
    assert not failures(gated, *given, target="sm_90a", grid=(1, 2, 1))


@tkc.jit
def kept(a, w, y, LOOP: tkc.constexpr):
    """The left operand is not dense along k, and is loaded before the loop, or there is none."""
    m = tkc.program_id(0) * 64
    x = tkc.load(a, (0, m), (32, 64)).T
    for n in tkc.range(0, w.shape[1], 32) if LOOP else (0, 32):
        tkc.store(y, (m, n), tkc.dot(x, tkc.load(w, (0, n), (32, 32))))


@pytest.mark.parametrize("loop", [True, False], ids=["loop", "none"])
def test_an_operand_is_laid_out_where_it_is_loaded(loop, monkeypatch):
    """Once a program, by the role that does it; of one beside its dot, too."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(3)
    a, w = (rng.integers(-3, 4, shape) for shape in ((32, 192), (32, 64)))
    given = [x.astype(ml_dtypes.float8_e4m3fn) for x in (a, w)]
    given += [np.zeros((192, 64), np.float32), loop]
    made = kept.compile(*given, target="sm_90a")
    assert any("are relaid by a warpgroup" in d for d in made.decisions), made.decisions
    assert not any("the consumers load" in d for d in made.decisions)
    # who relays gives the stages back alone, where consumers read none of them
    text = made.stages["schedule-warpgroups"]
    released = set(re.findall(r"mbarrier_init %empty\w* \{count = (\d+)", text))
    assert released == {str(relayout.RELAYOUT_WARPS)}
    kept[3](*given)
    np.testing.assert_array_equal(given[2], a.T @ w)
    given[2][:] = 0
    assert not failures(kept, *given, target="sm_90a", grid=(3, 1, 1))


@tkc.jit
def read_beside(a, w, y, z, LOOP: tkc.constexpr):
    """What is relaid for a dot the consumers compute with, too."""
    m = tkc.program_id(0) * 64
    x = tkc.load(a, (m, 0), (64, 32))
    for n in tkc.range(0, w.shape[1], 32) if LOOP else (0,):
        block = tkc.load(w, (0, n), (32, 32))
        tkc.store(y, (m, n), tkc.dot(x, block))
        if tkc.program_id(0) == 0:
            tkc.store(z, (0, n), block.to(tkc.float32) * 2)


@pytest.mark.parametrize("loop", [True, False], ids=["loop", "none"])
@pytest.mark.parametrize("stages", [1, 3])
def test_consumers_wait_for_what_they_read_beside_the_role(loop, stages, monkeypatch):
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(3)
    a, w = (rng.integers(-3, 4, shape) for shape in ((192, 32), (32, 256 if loop else 32)))
    given = [x.astype(ml_dtypes.float8_e4m3fn) for x in (a, w)]
    given += [np.zeros((192, w.shape[1]), np.float32), np.zeros(w.shape, np.float32), loop]
    made = read_beside.compile(*given, target="sm_90a", num_stages=stages)
    if stages > 1:
        assert any("relaid by a warpgroup" in d for d in made.decisions), made.decisions
    read_beside[3](*given, num_stages=stages)
    np.testing.assert_array_equal(given[2], a @ w)
    np.testing.assert_array_equal(given[3], 2 * w)
    given[2][:], given[3][:] = 0, 0
    assert not failures(read_beside, *given, target="sm_90a", grid=(3, 1, 1))


@tkc.jit
def read_by_eight_warps(a, w, y, z):
    m = tkc.program_id(0) * 128
    total, most = tkc.zeros((128, 64), tkc.int32), tkc.zeros((32, 64), tkc.int8)
    x = tkc.load(a, (m, 0), (128, 32))
    for k in range(0, w.shape[0], 32):
        block = tkc.load(w, (k, 0), (32, 64))
        total = tkc.dot(x, block, total)
        most = tkc.maximum(most, block)
    tkc.store(y, (m, 0), total)
    tkc.store(z, (0, 0), most[0:1, :] if m > 0 else most[1:2, :])


@pytest.mark.parametrize("stages", [1, 3])
def test_two_warpgroups_do_not_read_as_the_role_does(stages, monkeypatch):
    """Four warps have what is relaid in other threads than eight."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(3)
    a, w = (rng.integers(-3, 4, shape).astype(np.int8) for shape in ((128, 32), (96, 64)))
    given = [a, w, np.zeros((128, 64), np.int32), np.zeros((1, 64), np.int8)]
    read_by_eight_warps[1](*given, num_stages=stages)
    blocks = w.reshape(3, 32, 64).astype(np.int32)
    np.testing.assert_array_equal(given[2], sum(a.astype(np.int32) @ b for b in blocks))
    np.testing.assert_array_equal(given[3], np.maximum(blocks.max(0), 0)[1:2])


@tkc.jit
def thrice(a, w, y, z):
    """Three dots of an iteration that are in flight at once read one operand that is relaid."""
    m = tkc.program_id(0) * 64
    some, all = tkc.zeros((64, 32)), tkc.zeros((64, 32))
    for k in range(0, w.shape[0], 32):
        x = tkc.load(a, (k, m), (32, 64)).T
        left, right = (tkc.load(w, (0, k), (32, 32)).T, tkc.load(w, (64, k), (32, 32)).T)
        some = some + tkc.dot(x, right, tkc.dot(x, left))
        all = tkc.dot(x, right, all)
    tkc.store(y, (m, 0), some)
    tkc.store(z, (m, 0), all)


def test_dots_that_read_an_operand_alike_read_one_stage(monkeypatch):
    """Each with a stage of its own waited for ever, where a ring has two."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(3)
    a, w = rng.integers(-3, 4, (96, 128)), rng.integers(-3, 4, (96, 96))
    given = [x.astype(ml_dtypes.float8_e4m3fn) for x in (a, w)]
    given += [np.zeros((128, 32), np.float32) for _ in range(2)]
    made = thrice.compile(*given, target="sm_90a", num_stages=2)
    assert any("relaid by a warpgroup" in d for d in made.decisions), made.decisions
    thrice[2](*given, num_stages=2)
    np.testing.assert_array_equal(given[2], a.T @ (w[:32] + w[64:]).T)
    np.testing.assert_array_equal(given[3], a.T @ w[64:].T)


@tkc.jit
def latents(q, x, y, D: tkc.constexpr, BN: tkc.constexpr):
    """One block is the right operand of two dots: as it is, and relaid."""
    m = tkc.program_id(0) * 64
    qi, acc = tkc.load(q, (m, 0), (64, D)), tkc.zeros((64, D))
    for n in tkc.range(0, x.shape[0], BN):
        block = tkc.load(x, (n, 0), (BN, D))
        acc = tkc.dot(tkc.dot(qi, block.T).to(x.dtype), block, acc * 0.5)
    tkc.store(y, (m, 0), acc)


@pytest.mark.parametrize(
    "d, options",
    [
        (64, dict(rotate=False)),
        (64, {}),
        (256, dict(roles="cooperative", split_warps=(4, 2))),
    ],
    ids=["one block", "a block for each", "columns shared"],
)
def test_a_block_is_read_as_it_is_and_relaid(d, options, monkeypatch):
    """Two roles read a stage, and both say when they have; where warpgroups share columns, each
    reads its part of what was relaid, and what they write for one another is in its order.
    """
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(3)
    q = np.where(rng.random((128, d)) < 4 / d, rng.integers(-1, 2, (128, d)), 0)
    x = rng.integers(-1, 2, (192, d))
    given = [v.astype(ml_dtypes.float8_e4m3fn) for v in (q, x)]
    given += [np.zeros((128, d), np.float32), d, 64]
    made = latents.compile(*given, target="sm_90a", **options)
    assert any("the right operand is relaid" in line for line in made.decisions), made.decisions
    want = np.zeros((128, d))
    for n in range(0, 192, 64):
        s = (q @ x[n : n + 64].T).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
        want = want * 0.5 + s @ x[n : n + 64]
    latents[2](*given, **options)
    np.testing.assert_array_equal(given[2], want)
    if not options:
        given[2][:] = 0
        assert not failures(latents, *given, target="sm_90a", grid=(2, 1, 1))
