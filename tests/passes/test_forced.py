"""Every choice of a plan by keyword: a plan has what is forced, means the same and assembles clean;
what cannot be had is said.
"""

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages, test_product_types, test_roles_attention, test_roles_sums
from tests.passes.stages import (
    LAST,
    assembler,
    assembles_clean,
    at_every_level,
    count,
    in_steps,
    overwritten,
    without_threads,
)
from tests.passes.test_product_types import Case
from tests.passes.test_roles import Form, array, check, compiled, last
from tests.passes.test_roles_sums import gated
from tests.passes.test_streaming import PERSISTENT, many, plan_of, stages_of
from tests.passes.test_streaming import run as run_rows
from tkc.ir import shared, threads, tile
from tkc.ir.plan import DotPlan, LoadPlan, Plan
from tkc.language.signature import Options
from tkc.passes import Free
from tkc.passes.plan import keywords

ROOT = Path(__file__).resolve().parents[2]
REGISTERS, SWAPPED, DIRECT, SHARED, ONE = (
    ("left_operand", "registers"),
    ("swap_dots", True),
    ("epilogue", "direct"),
    ("epilogue", "shared"),
    ("roles", "one"),
)
STAGES = ("num_stages", 2)


def is_refused(name, value, context) -> bool:
    return (
        sum(
            line.startswith(f"plan: {name} = {value!r} is not used: ") for line in context.decisions
        )
        == 1
    )


def is_forced(options, context) -> bool:
    said = keywords(context.plan) | {"num_ctas": 1}
    return all(
        said[name] == value
        and not any(f"{name} = " in line and "not used" in line for line in context.decisions)
        for name, value in options
    )


# --------------------------------------------------------------------------------------------------
FORMS = [
    Form((64, 64, 32), options=(REGISTERS, STAGES)),
    Form((128, 64, 32), "tt", options=(REGISTERS,)),
    Form((128, 128, 64), "tn", epilogue="bias relu", options=(REGISTERS, ("cluster", (2, 1)))),
    Form((64, 64, 32), options=(SWAPPED, STAGES)),
    Form((64, 128, 32), "tt", epilogue="second bias relu", options=(SWAPPED,)),
    Form((128, 64, 32), "nt", options=(SWAPPED, REGISTERS)),
    Form((128, 64, 64), options=(SWAPPED, ("store_columns", 16))),
    Form((16, 128, 64), options=(("swap_dots", False),)),
    Form((64, 64, 32), options=(DIRECT,)),
    Form((128, 128, 64), epilogue="second bias relu", options=(DIRECT, ("store_columns", 8))),
    Form((128, 64, 32), options=(DIRECT, ("split_k", 2), ("roles", "cooperative"))),
    Form((64, 64, 32), options=(SHARED,)),
    Form((128, 128, 64), epilogue="second bias relu", options=(SHARED, ("subtiles", 1))),
    Form((128, 64, 32), options=(SHARED, ("store_columns", 16), ("roles", "pingpong"))),
    Form((128, 64, 32), options=(SHARED, ("split_k", 2), ("roles", "cooperative"))),
    Form(
        (64, 128, 32),
        epilogue="bias",
        options=(("epilogue", "tma"), ("store_columns", 32), ("subtiles", 1)),
    ),
    Form((128, 64, 32), options=(("store_columns", 16), ("subtiles", 4))),
    Form((64, 64, 32), options=(("dynamic_schedule", True),)),
    Form((128, 128, 64), options=(("dynamic_schedule", True), ("num_stages", 3))),
    Form((64, 64, 32), options=(("dynamic_schedule", False), ("left_operand", "shared"))),
    Form((64, 64, 32), options=(ONE, ("split_warps", (1, 4)))),
    Form((64, 128, 32), "tt", options=(ONE, ("split_warps", (4, 2)))),
    Form((64, 64, 32), epilogue="bias", options=(("split_warps", (2, 2)),)),
    Form((64, 32, 16), dtype=tkc.float32, options=(("split_warps", (4, 1)),)),
]
EVERY = pytest.mark.parametrize("form", FORMS, ids=lambda f: f.name)


@EVERY
def test_a_product_is_computed_as_asked(form):
    made = compiled(form)
    assert is_forced(form.options, made[1]), made[1].decisions
    at_every_level(made[0], form, check)


@pytest.mark.parametrize(
    "form", [FORMS[0], FORMS[3], FORMS[5], FORMS[12], FORMS[13]], ids=lambda f: f.name
)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_trip_counts(form, steps):
    in_steps(compiled(form), form, check, steps, None)


@pytest.mark.parametrize(
    "form", [FORMS[0], FORMS[5], FORMS[8], FORMS[12], FORMS[13]], ids=lambda f: f.name
)
def test_what_the_text_computes(form):
    BM, BN, BK = form.block
    check(last(form), form, BM + 5, 2 * BN - 7, 3 * BK - 7, run=machine.run, seed=1)


@assembler
@EVERY
def test_it_assembles_clean(form):
    assembles_clean(last(form))


def test_where_things_are():
    """A left operand in registers is read from the ring by matrices, and stores take as many
    columns as asked, those from registers and those of a transpose, which tensor maps make.
    """
    held, plain = (
        last(Form((64, 64, 32), options=options))
        for options in ((REGISTERS,), (("roles", "cooperative"),))
    )
    assert count(held, shared.Read) == count(plain, shared.Read) + 1
    assert count(last(FORMS[8]), threads.TmaStore) == 0 < count(plain, threads.TmaStore)
    assert {
        op.value.type.extents for op in last(FORMS[9]).walk() if isinstance(op, tile.Store)
    } == {(64, 8)}
    rows, _, _ = FORMS[6].block
    assert count(last(FORMS[6]), threads.TmaStore) == rows // 16


@assembler
@pytest.mark.parametrize(
    "block",
    [(128, 256, 64), (64, 256, 64), (256, 128, 64), (128, 192, 128), (64, 128, 128)],
    ids=str,
)
@pytest.mark.parametrize(
    "options", [(REGISTERS,), (SWAPPED,), (SWAPPED, REGISTERS), (DIRECT,)], ids=str
)
def test_large_blocks_take_what_fits(block, options):
    """Whatever registers allow of it, nothing is spilled."""
    form = Form(block, epilogue="bias relu", options=options)
    assembles_clean(last(form))
    made = compiled(form)[1]
    assert all(is_forced([option], made) or is_refused(*option, made) for option in options)


@assembler
@pytest.mark.parametrize(
    "block", [(128, 256, 64), (64, 64, 32), (128, 64, 128), (256, 128, 64)], ids=str
)
@pytest.mark.parametrize("options", [(REGISTERS,), (SWAPPED, REGISTERS)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_a_left_operand_stays_until_its_dot_is_over(block, layout, options):
    """ptxas gives what is read for the next dot the registers from which this one still takes its
    own: on an H200 8192 x 4096 x 14336 in blocks of 128 x 256 x 64 came out as NaN.
    """
    assert not overwritten(last(Form(block, layout, options=options)))


# --------------------------------------------------------------------------------------------------
TYPES = [
    Case(
        tkc.float32, tkc.float32, (64, 64, 32), "fast b.T", precision="tf32", options=(REGISTERS,)
    ),
    Case(
        tkc.float32,
        tkc.float32,
        (64, 64, 32),
        "fast b.T",
        turned="a",
        precision="tf32",
        options=(REGISTERS,),
    ),
    Case(
        tkc.float32,
        tkc.float32,
        (64, 64, 32),
        "fast",
        precision="tf32",
        options=(SWAPPED, REGISTERS),
    ),
    Case(test_product_types.E4, test_product_types.E4, options=(REGISTERS,)),
    Case(test_product_types.E4, test_product_types.E4, turned="a", options=(REGISTERS,)),
    Case(test_product_types.E4, test_product_types.E5, (128, 64, 64), "fast", options=(SWAPPED,)),
    Case(tkc.int8, tkc.int8, (64, 64, 64), out=tkc.int32, options=(REGISTERS,)),
    Case(test_product_types.E4, test_product_types.E4, form="blocks b.T", options=(REGISTERS,)),
]


@assembler
@pytest.mark.parametrize("case", TYPES, ids=lambda c: c.name)
def test_other_element_types(case):
    """Read into registers, an operand may be dense along either axis, which wgmma's own reads of 32
    and 8 bits may not.
    """
    (BM, BN, BK), made = case.block, test_product_types.compiled(case)
    assert made[1].plan.roles != "one" and is_forced(case.options, made[1]), made[1].decisions
    for module in without_threads(made[0]):
        test_product_types.check(module, case, BM + 5, BN + 8, 2 * BK)
    test_product_types.check(made[0][LAST], case, BM + 5, BN + 8, 3 * BK, seed=1)
    test_product_types.check(made[0][LAST], case, BM + 5, BN + 8, 3 * BK, run=machine.run, seed=1)
    assembles_clean(made[0][LAST])
    assert not overwritten(made[0][LAST])


ATTENTION = [
    test_roles_attention.Form(block=(64, 64), options=(REGISTERS,)),
    test_roles_attention.Form(64, True, (128, 64), options=(REGISTERS, STAGES)),
    test_roles_attention.Form(64, True, (64, 64), options=(("dynamic_schedule", False),)),
    test_roles_attention.Form(block=(64, 64), options=(DIRECT, ("left_operand", "shared"))),
    test_roles_attention.Form(block=(64, 64), options=(ONE, ("left_operand", "shared"))),
    test_roles_attention.Form(block=(64, 64), options=(ONE, ("split_warps", (2, 2)))),
]


@assembler
@pytest.mark.parametrize("form", ATTENTION, ids=lambda f: f.name)
def test_attention(form):
    made = test_roles_attention.compiled(form)
    assert is_forced(form.options, made[1]), made[1].decisions
    assembles_clean(made[0][LAST])
    for module in without_threads(made[0]):
        test_roles_attention.check(module, form, form.block[0] + 3, 2 * form.block[1] + 5)
    for seed in range(2):
        test_roles_attention.check(
            made[0][LAST], form, 2 * form.block[0] + 3, 2 * form.block[1] + 5, heads=2, seed=seed
        )
    test_roles_attention.check(
        made[0][LAST], form, form.block[0] + 3, 2 * form.block[1] + 5, run=machine.run, seed=1
    )


@assembler
@pytest.mark.parametrize(
    "d, block",
    [
        (128, (128, 128)),
        (128, (128, 64)),
        (160, (128, 64)),
        (192, (128, 32)),
        (96, (128, 128)),
        (64, (128, 160)),
        (112, (128, 128)),
    ],
    ids=str,
)
def test_queries_in_registers_take_what_fits(d, block):
    """Also beside those of the next program."""
    form = test_roles_attention.Form(d, True, block, options=(REGISTERS,))
    stages_, made = test_roles_attention.compiled(form)
    assert is_forced(form.options, made) or is_refused(*REGISTERS, made)
    assembles_clean(stages_[LAST])


@assembler
@pytest.mark.parametrize(
    "form",
    [
        test_roles_sums.Form(gated, (128, 64, 32), (SWAPPED,)),
        test_roles_sums.Form(gated, (64, 64, 32), (DIRECT, ("store_columns", 32))),
    ],
    ids=lambda f: f.name,
)
def test_several_sums(form):
    made = test_roles_sums.compiled(form)
    assert is_forced(form.options, made[1]), made[1].decisions
    at_every_level(made[0], form, test_roles_sums.check)
    assembles_clean(made[0][LAST])


# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "form, reason",
    [
        (Form((128, 96, 64), options=(SWAPPED,)), "96x128x64 is not made of wgmma's 64"),
        (Form((64, 64, 32), options=(ONE, SWAPPED)), "mma.sync takes either operand as it is"),
        (Form((256, 128, 128), options=(REGISTERS,)), "do not fit 240"),
        (
            Form((64, 64, 32), options=(ONE, ("left_operand", "shared"))),
            "no loop reads an operand again",
        ),
        (Form(out=tkc.float32, options=(("epilogue", "tma"),)), "a matrix of 16-bit floats"),
        (Form(out=tkc.float32, options=(SHARED,)), "a matrix of 16-bit floats"),
        (Form((64, 64, 32), options=(SWAPPED, SHARED)), "a matrix of 16-bit floats"),
        (Form((64, 64, 32), options=(ONE, ("epilogue", "tma"))), "one role stores"),
        (Form((64, 64, 32), options=(DIRECT, ("subtiles", 2))), "stored from registers"),
        (Form((64, 64, 32), options=(("subtiles", 3),)), "no multiple of so many"),
        (
            Form((128, 128, 64), options=(("store_columns", 16), ("subtiles", 64))),
            "no multiple|two stages",
        ),
        (Form((64, 64, 32), options=(("store_columns", 8),)), "16 columns wide or more"),
        (Form((64, 64, 32), options=(ONE, ("store_columns", 16))), "one role stores whole tiles"),
        (
            Form((128, 192, 128), epilogue="bias relu", options=(DIRECT, ("store_columns", 64))),
            "there is room for 32",
        ),
        (
            Form((64, 64, 32), options=(("roles", "pingpong"), ("dynamic_schedule", True))),
            "programs of their own",
        ),
        (
            Form(
                (128, 128, 64),
                options=(("cluster", (2, 1)), ("roles", "cooperative"), ("dynamic_schedule", True)),
            ),
            "blocks share",
        ),
        (Form((64, 64, 32), options=(ONE, ("split_warps", (8, 1)))), "16 rows and 8 columns"),
        (
            Form(
                (64, 64, 32), options=(("num_warps", 4), ("roles", "one"), ("split_warps", (2, 1)))
            ),
            "or there are others",
        ),
        (
            Form((64, 64, 32), options=(("roles", "cooperative"), ("split_warps", (1, 4)))),
            "share a dot's rows",
        ),
        (Form((64, 64, 32), options=(("prefetch", True),)), "by num_stages"),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_what_cannot_be_had_is_said_once(form, reason):
    made = compiled(form)[1]
    name, value = form.options[-1]
    assert is_refused(name, value, made) and any(
        re.search(reason, line) for line in made.decisions if f"{name} = " in line
    ), made.decisions
    BM, BN, BK = form.block
    if BM * BN <= 64 * 64:
        check(last(form), form, BM + 5, BN + 9, 2 * BK, seed=1)


def test_attention_is_no_transpose():
    made = test_roles_attention.compiled(
        test_roles_attention.Form(block=(64, 64), options=(SWAPPED,))
    )[1]
    assert is_refused(*SWAPPED, made) and not any(dot.swap for dot in made.plan.dots)


def test_stages_beside_subtiles():
    """What is asked of both, and does not fit, is an error as ever."""
    with pytest.raises(tkc.CompileError, match="num_stages = 7 does not fit"):
        compiled(Form((128, 128, 64), options=(("num_stages", 7), ("subtiles", 4))))


def test_a_computed_factor_stays_in_registers():
    def doubled(a, b, c):
        acc = tkc.zeros((64, 64), tkc.float32)
        for k in tkc.range(0, a.shape[1], 32):
            acc = tkc.dot(
                tkc.load(a, (tkc.program_id(0) * 64, k), (64, 32)) * 2.0,
                tkc.load(b, (k, 0), (32, 64)),
                acc,
            )
        tkc.store(c, (tkc.program_id(0) * 64, 0), acc.to(c.dtype))

    def made(**options):
        return stages.compiled(traced(doubled, *(array(tkc.bfloat16) for _ in "abc")), **options)[1]

    assert is_refused("left_operand", "shared", made(left_operand="shared")) and is_forced(
        [REGISTERS], made(left_operand="registers")
    )
    # as the right one of the transposed dot it is written to shared memory
    turned = made(swap_dots=True)
    assert turned.plan.roles != "one" and turned.plan.dots[0].b == "written"


# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options", [dict(dynamic_schedule=False, num_stages=2), dict(prefetch=False)], ids=str
)
def test_rows_are_dealt_out_and_read_late(options):
    kernel, given, constants = many(PERSISTENT["short softmax"](), 5)
    found, made = plan_of(kernel, *given, **constants, num_warps=2, persistent=True, **options)
    free, _ = plan_of(
        kernel,
        *given,
        **constants,
        num_warps=2,
        persistent=True,
        **{k: v for k, v in options.items() if k == "num_stages"},
    )
    name = next(iter(options))
    assert (
        getattr(free, name)
        and not getattr(found, name)
        and not any("not used" in line for line in made.decisions)
    )
    want, got = ([a.copy() for a in given if isinstance(a, np.ndarray)] for _ in range(2))
    modules = stages_of(kernel, *given, **constants, num_warps=2, persistent=True, **options)
    run_rows(modules["plan"], want, [], (5,), 0)
    run_rows(modules[LAST], got, [], (5,), 1)
    for x, y in zip(got, want, strict=False):
        np.testing.assert_allclose(x, y, rtol=3e-5, atol=3e-5)


def test_options_of_dots_are_not_of_rows():
    kernel, given, constants = many(PERSISTENT["norm"](), 2)
    made = plan_of(
        kernel, *given, **constants, left_operand="registers", subtiles=2, split_warps=(1, 2)
    )[1]
    for name in "left_operand", "subtiles", "split_warps":
        assert (
            sum(f"{name} = " in line and "there are no dots" in line for line in made.decisions)
            == 1
            or name == "left_operand"
        )


# --------------------------------------------------------------------------------------------------
def test_every_option_is_known_everywhere():
    names = [f.name for f in fields(Options) if f.name != "extra"]
    assert set(names) == set(tkc.runtime.specialize.OPTIONS)
    # what operators mean is the tracer's business, and no plan's
    assert set(names) - {"semantics"} == {f.name for f in fields(Free)}
    assert set(keywords(Plan())) <= set(names)


def test_every_choice_of_a_plan_is_in_the_table():
    """docs/language.md says of each field what forces it, by an option that there is."""
    rows = [
        line.split("|")[1:-1]
        for line in (
            (ROOT / "docs" / "language.md")
            .read_text()
            .split("### What forces a choice")[1]
            .split("\n## ")[0]
            .splitlines()
        )
        if line.startswith("| `")
    ]
    told = [name for first, *_ in rows for name in first.replace("`", "").replace(",", " ").split()]
    assert sorted(told) == sorted(
        [f.name for f in fields(Plan) if f.compare and f.name not in ("dots", "loads")]
        + [f"dots.{f.name}" for f in fields(DotPlan)]
        + [f"loads.{f.name}" for f in fields(LoadPlan)]
    )
    asked = {name for *_, last in rows for name in re.findall(r"`(\w+)", last)}
    assert asked <= {f.name for f in fields(Options)}
