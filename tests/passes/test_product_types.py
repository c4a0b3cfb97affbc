"""Products of every element type and major through Hopper's engines: the same at every level, free
of races, and clean in the assembler.

Numbers are small integers: their sums are exact in any accumulator, and every result has one right
value.
"""

import re
from dataclasses import dataclass, replace
from functools import cache, partial

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    count,
    distinct,
    parses_back,
    run,
    survivors,
    without_threads,
)
from tkc.codegen.ptx.emit import emit
from tkc.ir import shared, threads, tile
from tkc.ir.layout import movement
from tkc.ir.types import ArrayFacts, Fact, MapType
from tkc.ir.values import layout_of
from tkc.language.signature import ArrayArgument

NUMPY = {
    tkc.bfloat16: ml_dtypes.bfloat16,
    tkc.float16: np.float16,
    tkc.float32: np.float32,
    tkc.float8_e4m3: ml_dtypes.float8_e4m3fn,
    tkc.float8_e5m2: ml_dtypes.float8_e5m2,
    tkc.int8: np.int8,
    tkc.uint8: np.uint8,
    tkc.int32: np.int32,
}
E4, E5 = tkc.float8_e4m3, tkc.float8_e5m2


def product(
    a,
    b,
    sa,
    sb,
    c,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    FORM: tkc.constexpr,
    PRECISION: tkc.constexpr = "ieee",
):
    """FORM: "fast" or "exact" sums; "b.T": b is [N, K]; scales "per-row", "blocks" (1 x 128 of a,
    128 x 128 of b) or "vectors" (1 x 128 of both).
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.int32 if a.dtype.is_int and "blocks" not in FORM else tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        x = tkc.load(a, (m, k), (BM, BK))
        y = tkc.load(b, (n, k), (BN, BK)).T if "b.T" in FORM else tkc.load(b, (k, n), (BK, BN))
        if "blocks" in FORM:
            scale = tkc.load(sa, (m, k // 128), (BM, None))[:, None] * tkc.load(
                sb, (n // 128, k // 128), (None, None)
            )
            acc = acc + tkc.dot(x, y).to(acc.dtype) * scale
        elif "vectors" in FORM:
            acc = (
                acc
                + tkc.dot(x, y)
                * tkc.load(sa, (m, k // 128), (BM, None))[:, None]
                * tkc.load(sb, (n, k // 128), (BN, None))[None, :]
            )
        elif "exact" in FORM:
            acc = acc + tkc.dot(x, y)
        else:
            acc = tkc.dot(x, y, acc, precision=PRECISION)
    if "per-row" in FORM:
        acc = (
            acc
            * tkc.load(sa, (m, 0), (BM, None))[:, None]
            * tkc.load(sb, (n, 0), (BN, None))[None, :]
        )
    tkc.store(c, (m, n), acc.to(c.dtype))


@dataclass(frozen=True)
class Case:
    """How a product is written. `turned`: arguments that are the transposes of row-major arrays, as
    `x.T` of torch.
    """

    a: object
    b: object
    block: tuple[int, int, int] = (128, 128, 128)
    form: str = "fast b.T"
    turned: str = ""
    out: object = tkc.bfloat16
    precision: str = "ieee"
    options: tuple = ()

    @property
    def name(self) -> str:
        kinds = f"{self.a.name} x {self.b.name}"
        return " ".join(
            [
                kinds,
                "x".join(map(str, self.block)),
                self.form,
                *(f"{t}-turned" for t in self.turned),
                *([f"to {self.out.name}"] if self.out is not tkc.bfloat16 else []),
                *([self.precision] if self.precision != "ieee" else []),
                *(f"{k} {v}" for k, v in self.options),
            ]
        )

    def shape_of(self, which: str, m: int, n: int, k: int) -> tuple[int, int]:
        return {
            "a": (m, k),
            "b": (n, k) if "b.T" in self.form else (k, n),
            "sa": (m, max(-(-k // 128), 1)),
            "c": (m, n),
            "sb": (
                (-(-n // 128), -(-k // 128)) if "blocks" in self.form else (n, max(-(-k // 128), 1))
            ),
        }[which]


ALONE = (("cluster", (1, 1)),)
HALF = (128, 128, 64)
CASES = [
    *(
        Case(t, t, HALF, "fast", turned)
        for t in (tkc.bfloat16, tkc.float16)
        for turned in ("a", "b", "ab")
    ),
    Case(tkc.bfloat16, tkc.bfloat16, (128, 256, 64), "fast", "b"),
    Case(tkc.bfloat16, tkc.bfloat16, (64, 64, 64), "fast", "ab", options=ALONE),
    Case(tkc.bfloat16, tkc.bfloat16, HALF, "fast b.T", "b"),
    Case(E4, E4),
    Case(E4, E4, (128, 256, 128)),
    Case(E5, E4),
    Case(E4, E5, form="fast", turned="b"),
    Case(E5, E5, (64, 128, 128), options=ALONE),
    Case(E4, E4, (128, 192, 64), options=ALONE),
    Case(E4, E4, form="exact b.T"),
    Case(E4, E4, (128, 192, 128), "exact", "b"),
    Case(E5, E5, (64, 128, 128), "exact b.T", options=ALONE),
    Case(E4, E4, (64, 192, 128), "exact b.T", options=(("num_warps", 4),)),
    Case(E4, E4, (128, 256, 128), "exact b.T"),
    Case(E4, E4, (256, 128, 128), "exact b.T"),
    Case(E4, E4, (256, 64, 64), "exact", "b", options=ALONE),
    Case(E5, E5, (256, 128, 128), "blocks b.T", options=(("num_stages", 2),)),
    Case(E4, E4, form="fast per-row b.T", out=tkc.float32),
    Case(E4, E4, form="fast per-row b.T"),
    Case(E4, E4, form="blocks b.T"),
    Case(E4, E4, form="vectors b.T"),
    Case(E4, E4, (128, 128, 128), "blocks", "b", options=ALONE),
    Case(tkc.bfloat16, tkc.bfloat16, HALF, "exact"),
    Case(tkc.int8, tkc.int8, out=tkc.int32),
    Case(tkc.int8, tkc.int8, (128, 256, 128), "fast per-row b.T", out=tkc.float32),
    Case(tkc.uint8, tkc.uint8, (64, 128, 64), "fast per-row", "b", options=ALONE),
    *(
        Case(tkc.int8, tkc.int8, block, "blocks b.T", out=tkc.float32)
        for block in ((128, 128, 128), (256, 128, 128))
    ),
    *(
        Case(
            tkc.float32,
            tkc.float32,
            block,
            "fast b.T",
            out=tkc.float32,
            precision="tf32",
            options=options,
        )
        for block, options in (((128, 128, 32), ()), ((128, 256, 32), ALONE), ((64, 64, 64), ALONE))
    ),
    *(
        Case(tkc.float32, tkc.float32, block, form, turned, tkc.float32, "tf32", options)
        for block, form, turned, options in (
            ((128, 128, 32), "fast", "", ()),
            ((256, 128, 32), "fast", "", ALONE),
            ((128, 64, 32), "fast b.T", "a", ALONE),
            ((64, 64, 32), "fast", "", ALONE),
        )
    ),
]
EVERY = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def array(dtype, turned: bool = False, exact: bool = True) -> ArrayArgument:
    """Extents of any size; rows (of a turned array: columns) begin at multiples of 16 bytes."""
    strides = (Fact(128 // dtype.bits), Fact(exact=1))
    return ArrayArgument(dtype, ArrayFacts((Fact(),) * 2, strides[::-1] if turned else strides, 16))


def result(dtype) -> ArrayArgument:
    """Rows end at multiples of 16 bytes too: a store by a tensor map ends there."""
    given = array(dtype)
    return replace(given, facts=replace(given.facts, shape=(Fact(), Fact(128 // dtype.bits))))


@cache
def compiled(case: Case):
    BM, BN, BK = case.block
    loose = ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 4))
    module = traced(
        product,
        array(case.a, "a" in case.turned),
        array(case.b, "b" in case.turned),
        loose,
        loose,
        result(case.out),
        BM=BM,
        BN=BN,
        BK=BK,
        FORM=case.form,
        PRECISION=case.precision,
    )
    return stages.compiled(module, **dict(case.options))


def integers(shape, dtype, seed: int, turned: bool = False) -> np.ndarray:
    """In rows of a multiple of 16 bytes, of which only the front is shown."""
    rows, columns = shape[::-1] if turned else shape
    around = np.full((max(rows, 1), -(-columns // 16) * 16 or 16), 1, NUMPY[dtype]) * NUMPY[dtype](
        97
    )
    around[:rows, :columns] = np.random.default_rng(seed).integers(
        0 if dtype is tkc.uint8 else -3, 4, (rows, columns)
    )
    return around[:rows, :columns].T if turned else around[:rows, :columns]


def check(module, case: Case, m: int, n: int, k: int, run=run, **how) -> None:
    compare(case, m, n, k, partial(run, module, **how))


def compare(case: Case, m: int, n: int, k: int, launch) -> None:
    """Launches a product of small integers and compares it, element by element, with what it has to
    be.
    """
    a, b = (
        integers(case.shape_of(name, m, n, k), kind, i, name in case.turned)
        for i, (name, kind) in enumerate((("a", case.a), ("b", case.b)))
    )
    sa, sb = (
        2.0
        ** np.random.default_rng(i).integers(-1, 2, case.shape_of(name, m, n, k)).astype(np.float32)
        for i, name in enumerate(("sa", "sb"))
    )
    wide = -(-n // 16) * 16  # columns of the result, of which the last ones are sums of nothing
    c = integers((m, wide), case.out, 5)
    c[...] = 77
    launch([a, b, sa, sb, c], (-(-m // case.block[0]), -(-n // case.block[1]), 1))
    right = np.float64(b.T if "b.T" in case.form else b)
    if "blocks" in case.form:
        steps = range(0, k, 128)
        want = sum(
            (
                np.float64(a[:, s : s + 128])
                @ right[s : s + 128]
                * sa[:, s // 128, None]
                * np.repeat(sb[:, s // 128], 128)[None, :n]
                for s in steps
            ),
            np.zeros((m, n)),
        )
    elif "vectors" in case.form:
        want = sum(
            (
                (np.float64(a[:, s : s + 128]) @ right[s : s + 128])
                * sa[:, s // 128, None]
                * sb[:, s // 128]
                for s in range(0, k, 128)
            ),
            np.zeros((m, n)),
        )
    else:
        want = np.float64(a) @ right
    if "per-row" in case.form:
        want = want * sa[:, :1] * sb[:, 0]
    want = np.pad(want, ((0, 0), (0, wide - n)))
    np.testing.assert_array_equal(c, want.astype(c.dtype))


def last(case: Case):
    return compiled(case)[0][LAST]


@EVERY
def test_every_level(case):
    """Level 0 against every level that the passes make of it; level 4 with the happens-before
    check.
    """
    BM, BN, BK = case.block
    for module in without_threads(compiled(case)[0]):
        check(module, case, BM + 5, BN - 7, 2 * BK - 7)
    check(last(case), case, BM + 5, BN + 9, 3 * BK - 7, seed=1)


SPELLED = [
    c
    for c in CASES
    if c.options == ALONE or "blocks" in c.form or c.a in (tkc.int8, E5) and c.b in (tkc.int8, E4)
]


@pytest.mark.parametrize("case", SPELLED, ids=lambda c: c.name)
def test_what_the_text_computes(case):
    check(
        last(case),
        case,
        case.block[0] + 5,
        case.block[1] // 2 + 9,
        3 * case.block[2] - 7,
        run=machine.run,
        resident=1,
    )


@EVERY
def test_trip_counts(case):
    (BM, BN, BK), deep = case.block, compiled(case)[1].plan.stages
    for steps in sorted({0, 1, 2, deep - 1, deep, deep + 1}):
        check(last(case), case, 2 * BM, BN, steps * BK, seed=steps)


@pytest.mark.parametrize("form", ["fast", "fast b.T"])
def test_wide_sums_of_three_warpgroups(form):
    """In several instructions, each of which begins where a panel of row-major columns does."""
    case = Case(
        tkc.bfloat16,
        tkc.bfloat16,
        (192, 224, 64),
        form,
        options=(("num_warps", 12), ("cluster", (1, 1)), ("num_stages", 2)),
    )
    check(last(case), case, 197, 233, 131, run=machine.run, resident=1)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if not c.options and c.block in ((128, 128, 128), HALF, (128, 128, 32))],
    ids=lambda c: c.name,
)
def test_on_the_cpu(case):
    """Machine code for this machine, made of the same level 0."""
    kernel, (BM, BN, BK) = tkc.jit(product), case.block
    for shape in (7, 13, 31), (130, 129, 150):
        compare(
            case,
            *shape,
            lambda arrays, grid: kernel[grid](
                *arrays, BM=BM, BN=BN, BK=BK, FORM=case.form, PRECISION=case.precision
            ),
        )


@pytest.mark.parametrize("case", [c for c in CASES if c.block[1] == 128], ids=lambda c: c.name)
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 13, 31), (129, 65, 133)], ids=str)
def test_ragged(case, shape):
    check(last(case), case, *shape, seed=3)


@EVERY
def test_the_engines_are_used(case):
    """No copy of a factor, no other instruction than wgmma; the sums of a loop in one accumulator
    unless the kernel asks for partial ones.
    """
    modules, given = compiled(case)
    kernel = last(case).body.block.first_op
    assert given.plan.roles in ("cooperative", "pingpong"), given.decisions
    # 32 bits that are not K-major, which a thread reads into registers
    held = case.a is tkc.float32 and (case.form == "fast" or "a" in case.turned)
    assert (given.plan.dots[0].a == "registers") == held and given.plan.dots[0].swap == (
        held and case.form == "fast"
    )
    assert count(kernel, threads.DotAsync) == given.plan.dots[0].parts[0] and not count(
        kernel, (tile.Dot, shared.Convert) if held else (tile.Dot, shared.Read, shared.Convert)
    )
    assert (given.plan.dots[0].parts == (1, 1)) == (
        case.a.bits > 8 or "fast" in case.form or case.block[1] < 128 and case.block[0] < 256
    )
    for module in distinct(modules):
        parses_back(module)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            Case(tkc.float32, tkc.float32, (128, 128, 32), "fast", "a", tkc.float32, "tf32"),
            "K-major only",
        ),
        (Case(E4, E4, (64, 256, 256), "fast"), "K-major only"),
        (Case(tkc.float32, tkc.float32, form="fast b.T", out=tkc.float32), "its float32 is tf32"),
        (
            Case(tkc.float32, tkc.float32, form="fast b.T", out=tkc.float32, precision="tf32x3"),
            "not planned",
        ),
    ],
    ids=lambda c: getattr(c, "name", ""),
)
def test_other_majors_of_32_bits_have_one_role(case, said):
    _, given = compiled(case)
    assert given.plan.roles == "one" and any(said in line for line in given.decisions), (
        given.decisions
    )


def test_large_factors_of_32_bits_walk_along_k():
    """Two stages of 131072 bytes do not fit shared memory."""
    case = Case(tkc.float32, tkc.float32, form="fast", out=tkc.float32, precision="tf32")
    _, given = compiled(case)
    assert given.has_roles
    assert any("k = 128 in parts of 32" in line for line in given.decisions), given.decisions


@assembler
@EVERY
def test_it_assembles_clean(case):
    assembles_clean(last(case))


def test_partial_sums_stay_whole_where_asked():
    """One dot as wide as the block, not one for each half of its columns."""
    case = Case(
        E4, E4, (128, 128, 128), "blocks b.T", options=(("sum_parts", 1), ("num_stages", 2))
    )
    assert (
        compiled(case)[1].plan.dots[0].parts == (1, 1) and count(last(case), threads.DotAsync) == 1
    )
    for seed in range(2):
        check(last(case), case, 133, 137, 3 * 128 - 7, seed=seed)


def test_parts_of_rows_take_turns_in_the_same_registers():
    """Scales of rows do not hinder a cut along rows, whose instructions stay 128 columns wide; and
    the second dot waits in its text until the first one's registers are read.
    """
    case = Case(E4, E4, (256, 128, 128), "blocks b.T", options=(("num_stages", 3),))
    module, given = last(case), compiled(case)[1]
    assert given.plan.dots[0].parts == (2, 1) and any(
        "2 parts of its rows" in line for line in given.decisions
    )
    sums = {
        re.search(r"m64n(\d+)k32.*?\{(.*?)\}", line).groups()
        for line in emit(module, given.target).text.splitlines()
        if "wgmma.mma_async" in line
    }
    assert len(sums) == 1 and next(iter(sums))[0] == "128"
    assembles_clean(module)
    vectors = Case(E4, E4, (256, 128, 128), "vectors b.T", options=(("num_stages", 3),))
    assert any("parts of its columns" in line for line in compiled(vectors)[1].decisions)


def test_scales_that_a_loop_reads_again_stay_in_the_cache():
    """256 rows of scales lie in as many lines, of which the next steps read more: so much of the
    cache is left to them that they are there. 128 rows fit what all of shared memory leaves.
    """

    def lines(rows):
        return [
            line
            for line in compiled(Case(E4, E4, (rows, 128, 128), "blocks b.T"))[1].decisions
            if "L1 cache" in line
        ]

    assert len(lines(256)) == 1 and "32768 bytes of lines" in lines(256)[0] and not lines(128)
    assert compiled(Case(E4, E4, (256, 128, 128), "blocks b.T"))[1].plan.rings == (3,)


# --------------------------------------------------------------------------------------------------
def computed(
    a, b, s, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr, FORM: tkc.constexpr
):
    """FORM names what is done to a ("relu", "scaled" by rows, "cast" to b's type) or to b
    ("weights": cast to a's type), and "b.T", "a.T".
    """
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, c.shape[0] * 0 + (a.shape[0] if "a.T" in FORM else a.shape[1]), BK):
        x = tkc.load(a, (k, m), (BK, BM)).T if "a.T" in FORM else tkc.load(a, (m, k), (BM, BK))
        y = tkc.load(b, (n, k), (BN, BK)).T if "b.T" in FORM else tkc.load(b, (k, n), (BK, BN))
        if "cast" in FORM:
            x = x.to(b.dtype)
        if "relu" in FORM:
            x = tkc.maximum(x, 0)
        if "scaled" in FORM:
            x = x * tkc.load(s, (m, k // BK), (BM, None))[:, None].to(x.dtype)
        if "weights" in FORM:
            y = y.to(a.dtype)
        if "grouped" in FORM:
            y = y * tkc.load(s, (n, k // BK), (BN, None))[None, :].to(y.dtype)
        if "after" in FORM:
            acc = acc + tkc.dot(x, y) * tkc.load(s, (m, k // BK), (BM, None))[:, None]
        else:
            acc = tkc.dot(x, y, acc, precision="tf32")
    tkc.store(c, (m, n), acc.to(c.dtype))


@dataclass(frozen=True)
class Computed:
    a: object
    b: object
    form: str
    block: tuple[int, int, int] = (128, 128, 64)
    turned: str = ""
    options: tuple = ()

    @property
    def name(self) -> str:
        return " ".join(
            [
                f"{self.a.name} x {self.b.name}",
                "x".join(map(str, self.block)),
                self.form,
                *(f"{t}-turned" for t in self.turned),
                *(f"{k} {v}" for k, v in self.options),
            ]
        )


BF, I8 = tkc.bfloat16, tkc.int8
COMPUTED = [
    Computed(BF, BF, "relu"),
    Computed(BF, BF, "relu a.T b.T"),
    Computed(BF, BF, "scaled", turned="b"),
    Computed(I8, BF, "cast"),
    Computed(I8, BF, "cast a.T", options=ALONE),
    Computed(E4, BF, "cast scaled relu"),
    Computed(I8, BF, "cast after b.T"),
    Computed(I8, tkc.float32, "cast b.T", (128, 128, 32)),
    Computed(E4, tkc.float16, "cast", (64, 64, 64), options=ALONE),
]
WEIGHTS = [
    Computed(BF, I8, "weights b.T"),
    Computed(BF, I8, "weights", turned="b"),
    Computed(BF, I8, "weights"),
    Computed(BF, E4, "weights grouped b.T", (64, 128, 128)),
    Computed(tkc.float16, E5, "weights b.T", (16, 64, 128), options=ALONE),
    Computed(BF, I8, "weights grouped", (256, 128, 64)),
    Computed(BF, tkc.uint8, "weights b.T", (128, 256, 32), options=ALONE),
    Computed(BF, I8, "weights b.T", (256, 128, 64)),
]
EVERY_COMPUTED = pytest.mark.parametrize("case", COMPUTED + WEIGHTS, ids=lambda c: c.name)


@cache
def compiled_factor(case: Computed):
    BM, BN, BK = case.block
    loose = ArrayArgument(tkc.float32, ArrayFacts((Fact(),) * 2, (Fact(), Fact(exact=1)), 4))
    module = traced(
        computed,
        array(case.a, "a" in case.turned),
        array(case.b, "b" in case.turned),
        loose,
        result(BF),
        BM=BM,
        BN=BN,
        BK=BK,
        FORM=case.form,
    )
    return stages.compiled(module, **dict(case.options))


def check_factor(module, case: Computed, m: int, n: int, k: int, **how) -> None:
    compare_factor(case, m, n, k, partial(run, module, **how))


def compare_factor(case: Computed, m: int, n: int, k: int, launch) -> None:
    a = integers((k, m) if "a.T" in case.form else (m, k), case.a, 0, "a" in case.turned)
    b = integers((n, k) if "b.T" in case.form else (k, n), case.b, 1, "b" in case.turned)
    BK = case.block[2]
    s = (
        np.random.default_rng(2)
        .integers(-2, 3, (n if "grouped" in case.form else m, max(-(-k // BK), 1)))
        .astype(np.float32)
    )
    wide = -(-n // 16) * 16
    c = integers((m, wide), BF, 5)
    c[...] = 77
    launch([a, b, s, c], (-(-m // case.block[0]), -(-n // case.block[1]), 1))
    x, y = (
        np.float64(a.T if "a.T" in case.form else a),
        np.float64(b.T if "b.T" in case.form else b),
    )
    if "relu" in case.form:
        x = np.maximum(x, 0)
    if "scaled" in case.form or "after" in case.form:
        x = x * np.repeat(s, BK, 1)[:, :k]
    if "grouped" in case.form:
        y = y * np.repeat(s, BK, 1)[:, :k].T
    np.testing.assert_array_equal(c, np.pad(x @ y, ((0, 0), (0, wide - n))).astype(c.dtype))


def last_factor(case):
    return compiled_factor(case)[0][LAST]


@EVERY_COMPUTED
def test_computed_factors_at_every_level(case):
    modules, given = compiled_factor(case)
    assert given.plan.roles == "cooperative", given.decisions
    BM, BN, BK = case.block
    for module in distinct(modules):
        parses_back(module)
    for module in without_threads(modules):
        check_factor(module, case, BM + 5, BN - 7, 2 * BK - 7)
    for steps in sorted({0, 1, 2, given.plan.stages - 1, given.plan.stages + 1}):
        check_factor(last_factor(case), case, 2 * BM, BN + 9, steps * BK, seed=steps)
    for shape in (1, 1, 1), (7, 13, 31), (129, 65, 133):
        check_factor(last_factor(case), case, *shape, seed=1)


@EVERY_COMPUTED
def test_computed_factors_stay_in_registers(case):
    kernel = last_factor(case).body.block.first_op
    assert (
        count(kernel, threads.DotAsync) == compiled_factor(case)[1].plan.dots[0].parts[0]
        and count(kernel, threads.TmaLoad) == 2
        and count(kernel, shared.Read) == 1
        and not count(kernel, tile.Dot)
    )
    # bytes of neighbouring rows change places in a register
    moved = [
        movement(layout_of(op.operands[0]), layout_of(op.result))
        for op in kernel.walk()
        if isinstance(op, shared.Convert)
    ]
    assert set(moved) <= ({"registers"} if compiled_factor(case)[1].plan.dots[0].paired else set())
    assert compiled_factor(case)[1].plan.dots[0].swap == ("weights" in case.form)


@assembler
@EVERY_COMPUTED
def test_computed_factors_assemble_clean(case):
    assembles_clean(last_factor(case))


# --------------------------------------------------------------------------------------------------
SMALL = (("num_stages", 3), *ALONE)
LEADER = {
    f"leader alone: mbarrier_arrive empty in consumer{nth}"
    for nth in ("", ", 2")
    # the dots that read a stage are the work of the whole warpgroup, and the leader has waited for
    # them
}
# The fence in a step covers what that step has read, which is given back in the next, and of the
# last step behind the loop.
BEHIND_THE_LOOP = {
    f"{change}: fence async_shared in consumer, 2" for change in ("drop", "kind", "later")
}
MUTATED = [
    (Case(E4, E4, (64, 128, 32), "exact b.T", options=SMALL), LEADER),
    (
        Computed(I8, BF, "cast", (64, 64, 32), options=SMALL),
        LEADER | BEHIND_THE_LOOP | {"later: fence async_shared in consumer"},
    ),
    (Computed(I8, BF, "cast after b.T", (64, 128, 32), options=SMALL), LEADER),
]


@pytest.mark.parametrize(("case", "equivalent"), MUTATED, ids=lambda x: getattr(x, "name", ""))
def test_every_mutant_is_found(case, equivalent):
    module, check_one = (
        (last(case), check) if isinstance(case, Case) else (last_factor(case), check_factor)
    )
    BM, BN, BK = case.block
    number, missed = survivors(
        module,
        *(
            lambda m, seed=seed, steps=steps: check_one(
                m, case, 4 * BM, BN, steps * BK, seed=seed, resident=1
            )
            for seed, steps in enumerate((4, 5, 7))
        ),
        known=equivalent.__contains__,
    )
    assert number > 50 and not missed


def counted_columns(b, c, N: tkc.constexpr):
    """Bytes that the threads of a role put into columns for wgmma, of rows that are copied by
    panels of 16 bytes, the narrowest that a tensor map has.
    """
    ones = tkc.full((64, 64), 1, tkc.int8)
    once, twice = tkc.zeros((64, N), tkc.int32), tkc.zeros((64, N), tkc.int32)
    for k in tkc.range(0, b.shape[0], 64):
        y = tkc.load(b, (k, 0), (64, N))
        once, twice = tkc.dot(ones, y, once), tkc.dot(ones + ones, y, twice)
    tkc.store(c, (0, 0), once, mask=twice < 9)


def test_maps_with_panels_of_16_bytes():
    facts = ArrayFacts((Fact(), Fact(16)), (Fact(16), Fact(exact=1)), 16)
    module = traced(counted_columns, ArrayArgument(tkc.int8, facts), result(tkc.int32), N=96)
    stages.compiled(module, swap_dots=False, epilogue="tma")
    maps = [v.type for op in module.walk() for v in op.results if isinstance(v.type, MapType)]
    assert any(t.swizzle == 16 and t.panelled for t in maps)
    b = np.random.default_rng(0).integers(-2, 3, (130, 96)).astype(np.int8)
    whole = np.broadcast_to(b.sum(0, dtype=np.int32), (64, 96))
    machine.run(module, [b, got := np.full((64, 96), -99, np.int32)], (1, 1, 1))
    np.testing.assert_array_equal(got, np.where(2 * whole < 9, whole, -99))
