"""What only the code behind a loop uses is computed there: what moves, what must not, and that
kernels which would spill do not.
"""

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import traced
from tests.passes import stages
from tests.passes.test_roles import array
from tkc.codegen.ptx.ptxas import assemble, find
from tkc.codegen.ptx.sink import rematerialise, sink_to_uses

BEFORE = """\tmov.u32 %r0, %tid.x;
\tand.b32 %r1, %r0, 31;
\tand.b32 %r2, %r1, 3;
\tsetp.eq.s32 %p0, %r2, 0;
\tshl.b32 %r3, %r1, 2;
\tmov.u32 %r4, %clock64;
\tmov.b32 %r5, 0;
\tmov.b32 %r6, 7;
$while_1:
\tmov.b32 %r5, 0;
$for_2:
\tadd.s32 %r5, %r5, %r3;
\tsetp.lt.s32 %p1, %r5, 99;
\t@%p1 bra.uni $for_2;
\t@%p0 st.shared.b32 [%r1], %r5;
\tst.shared.b32 [%r1+4], %r4;
\tst.shared.b32 [%r1+8], %r5;
\tst.shared.b32 [%r1+8], %r6;
$wait_3:
\tmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], 0, 1000;
\t@!%p2 bra $wait_3;
\tst.shared.b32 [%r1+8], %r6;
\tbra.uni $while_1;
"""


def test_what_moves():
    """The lane's predicate and the place, with all they alone are made of; not what the loop reads,
    the clock, what is assigned twice or read in two blocks.
    """
    after, kept = sink_to_uses(BEFORE).splitlines(), [f"%r{i}" for i in (3, 4, 5, 6)]
    loop = after.index("$for_2:")
    assert sorted(after) == sorted(BEFORE.splitlines()) and all(
        any(line.split(",")[0].endswith(r) for line in after[:loop]) for r in kept
    )
    behind = after[after.index("\t@%p1 bra.uni $for_2;") + 1 :]
    assert behind[:2] == ["\tand.b32 %r2, %r1, 3;", "\tsetp.eq.s32 %p0, %r2, 0;"]


@pytest.mark.parametrize(
    "text", ["", "\tret;\n", BEFORE.replace("@%p0 st", "st").replace("$for_2", "$wait_2")]
)
def test_nothing_moves(text):
    assert sink_to_uses(text) == text


@pytest.mark.parametrize("reader", ["@%p0 fence.acq_rel.gpu;", "@%p0 trap;", "{ @!%p0 nop }"])
def test_what_has_no_operands_reads_its_predicate(reader):
    """It is a use as others are: the predicate is computed before it."""
    text = (
        "\tmov.u32 %r0, %tid.x;\n\tsetp.eq.s32 %p0, %r0, 0;\n$for_1:\n\tadd.s32 %r1, %r1, 1;\n"
        f"\t@%p1 bra $for_1;\n\t{reader}\n\t@%p0 st.shared.b32 [%r0], %r1;\n"
    )
    lines = sink_to_uses(text).splitlines()
    assert lines.index("\tsetp.eq.s32 %p0, %r0, 0;") < lines.index(f"\t{reader}")


# The user's own: a name that is declared there, a label before an instruction, a jump over a use.
BRACED = "{\n\t.reg .u32 t;\n\tadd.u32 t, $1, $2;\n\tmov.u32 $0, t;\n\t}"
LABELLED = """{
\t.reg .pred p;
\t.reg .u32 t;
\tmov.u32 t, 0;
\tsetp.eq.u32 p, $1, 0;
\tmov.u32 $0, $1;
\t@p bra SKIP;
\tadd.u32 $0, $0, $2;
SKIP: add.u32 t, t, 1;
\tadd.u32 $0, $0, $2;
\t} // ends with a comment"""
NOT_BRACED = ".reg .u32 t;\n\tadd.u32 t, $1, $2;\n\tmov.u32 $0, t;"


def with_own_text(n, out, TEXT: tkc.constexpr, EARLY: tkc.constexpr):
    i = tkc.program_id(0)
    b, acc, found = i * 3 + 5, tkc.zeros((128,), tkc.int32), 0
    if EARLY:
        found = tkc.inline_ptx(TEXT, i, b)
    for k in tkc.range(0, n[0], 1):
        acc = acc + k * (acc + i)
    if not EARLY:
        found = tkc.inline_ptx(TEXT, i, b)
    tkc.store(out, (i * 128,), acc + found)


@pytest.mark.parametrize("edit", [sink_to_uses, rematerialise])
@pytest.mark.parametrize(
    "own, early",
    [(BRACED, True), (LABELLED, False), (NOT_BRACED, True)],
    ids=["braced", "labelled", "not braced"],
)
def test_a_user_s_own_text_stays_as_it_is(own, early, edit):
    types = array(tkc.int32, 1), array(tkc.int32, 1)
    module = traced(with_own_text, *types, TEXT=own, EARLY=early)
    last = stages.compiled(module, num_warps=4)[0][stages.LAST]
    given, texts = [np.array([3], np.int32)], []

    def kept(text: str) -> str:
        texts.extend((text, edited := edit(text)))
        return edited

    results = [np.zeros(256, np.int32) for _ in range(2)]
    machine.run(last, [*given, results[0]], (2, 1, 1))
    machine.run(last, [*given, results[1]], (2, 1, 1), edit=kept)
    np.testing.assert_array_equal(*results)
    before, after = map(_own_texts, texts)
    assert len(before) == 1 and before == after
    assert all(each[-1].split("//")[0].endswith("}") for each in before)
    if find("ptxas"):
        assemble(texts[1], "sm_90a")


def _own_texts(text: str) -> list[list[str]]:
    """The lines of each of the user's own in a PTX text, with the comment before them."""
    parts = text.split("\t// tkc.inline_ptx, ")[1:]
    return [part.splitlines()[: 1 + int(part.split()[0])] for part in parts]


def test_an_instruction_behind_a_label_begins_a_block():
    text = (
        "\tmov.u32 %r0, %tid.x;\n\tadd.s32 %r1, %r0, 1;\n$for_1:\n\tst.shared.b32 [%r0], %r7;\n"
        "\t@%p0 bra $for_1;\n\t@%p1 bra OVER;\n\tst.shared.b32 [%r1], %r7;\n"
        "OVER: st.shared.b32 [%r7], %r7;\n\tst.shared.b32 [%r1], %r7;\n"
    )
    assert sink_to_uses(text) == text


def test_nothing_moves_into_a_loop():
    text = (
        "\tmov.u32 %r0, %tid.x;\n\tadd.s32 %r1, %r0, 1;\n$for_1:\n\tst.shared.b32 [%r0],"
        " %r0;\n\t@%p0 bra $for_1;\n$for_2:\n\tst.shared.b32 [%r1], %r0;\n\t@%p0 bra $for_2;\n"
    )
    assert sink_to_uses(text) == text


def test_what_an_outer_loop_reads_is_computed_in_it():
    """Before the inner loop: else it lives on through that one to the next round."""
    text = (
        "\tmov.u32 %r0, %tid.x;\n\tshr.u32 %r1, %r0, 2;\n$while_1:\n\tadd.s32 %r2, %r1,"
        " %r2;\n$for_2:\n\tst.shared.b32 [%r2], %r5;\n\t@%p0 bra $for_2;\n\t@%p1 bra $while_1;\n"
    )
    lines = text.splitlines()
    assert sink_to_uses(text).splitlines() == [lines[2], *lines[:2], *lines[3:]]


def test_what_is_computed_anew():
    """Each block that reads the lane's fourth makes it of the thread's number; not what a loop
    reads, what else is in it, what is made of more, or what one block alone reads.
    """
    text = """\t.reg .b32 %r<12>;
\tld.param.u32 %r9, [p0];
\tmov.u32 %r0, %tid.x;
\tand.b32 %r1, %r0, 31;
\tand.b32 %r2, %r1, 3;
\tadd.s32 %r3, %r1, %r9;
\tshl.b32 %r4, %r2, 1;
\tshr.u32 %r5, %r0, 5;
\tsetp.eq.s32 %p2, %r2, 0;
$for_1:
\tsetp.eq.s32 %p2, %r5, 0;
\t@%p0 bra.uni $for_1;
\t@%p1 bra.uni $end_2;
\tsetp.eq.s32 %p2, %r2, 0;
\tsetp.eq.s32 %p2, %r4, 0;
\tsetp.eq.s32 %p2, %r5, 0;
$end_2:
\tsetp.eq.s32 %p2, %r2, 0;
\tsetp.eq.s32 %p2, %r3, 0;
\t@%p1 bra.uni $end_3;
\tsetp.eq.s32 %p2, %r3, 0;
$end_3:
\tret;
"""
    after = rematerialise(text).splitlines()
    assert after[0] == "\t.reg .b32 %r<21>;" and sum("%tid.x" in line for line in after) == 4
    behind = after[after.index("$end_2:") + 1 :]
    assert behind[:5] == [
        "\tmov.u32 %r18, %tid.x;",
        "\tand.b32 %r19, %r18, 31;",
        "\tand.b32 %r20, %r19, 3;",
        "\tsetp.eq.s32 %p2, %r20, 0;",
        "\tsetp.eq.s32 %p2, %r3, 0;",
    ]
    assert (
        "\tsetp.eq.s32 %p2, %r17, 0;" in after
        and after.count("\tsetp.eq.s32 %p2, %r4, 0;") == 1
        and sum("%r5" in line for line in after) == 3
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\tret;\n",
        BEFORE,
        (
            "\t.reg .b32 %r<4>;\n\tmov.u32 %r0, %tid.x;\n\tand.b32 %r1, %r0, 31;\n\tst.shared.b32"
            " [%r2], %r1;\n"
        ),
    ],
)
def test_nothing_is_computed_anew(text):
    assert rematerialise(text) == text


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
@pytest.mark.parametrize(
    "options", [{}, dict(causal=True), dict(softcap=30.0), dict(with_lse=True)], ids=str
)
@pytest.mark.parametrize("keys", [2, 1003])
def test_ragged_keys_spill_nothing(keys, options, monkeypatch):
    """What a mask and the end of a row ask of the thread's number is the one register too many."""
    import ml_dtypes
    import numpy as np

    import tkc
    from tests.kernels.checks import launches
    from tkc import kernels

    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a", raising=False)
    with launches() as found:
        kernels.attention(
            np.zeros((1, 8, 1024, 64), ml_dtypes.bfloat16),
            *[np.zeros((1, 8, keys, 64), ml_dtypes.bfloat16)] * 2,
            rows=256,
            **options,
        )
    ((kernel, args, given),) = found
    assert (compiled := kernel.compile(*args, target="sm_90a", **given)).resources.clean, (
        compiled.resources.log
    )


@pytest.mark.skipif(find("ptxas") is None, reason="ptxas is not installed")
def test_a_kernel_that_would_spill_does_not(monkeypatch):
    """Four warpgroups of consumers, 112 registers each: ptxas spills one of the values that wait
    for the epilogue.
    """
    import ml_dtypes
    import numpy as np

    import tkc
    from tests.kernels.checks import launches
    from tkc import kernels

    monkeypatch.setattr(tkc, "target_of", lambda x: "sm_90a", raising=False)
    with launches() as found:
        kernels.attention(*[np.zeros((1, 8, 1024, 64), ml_dtypes.bfloat16)] * 3, rows=256)
    ((kernel, args, options),) = found
    compiled = kernel.compile(*args, target="sm_90a", **options)
    first = compiled.ptx
    assert compiled.resources.clean, compiled.resources.log
    assert (
        compiled.ptx == first
        or assemble(first, "sm_90a").spill_stores
        and compiled.ptx == sink_to_uses(first)
    )
