"""Hopper's families: roles, mbarriers, TMA, wgmma.  What each operation becomes, in every form it
has; and that ptxas takes it.
"""

import itertools
import re

import pytest

from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.errors import CompileError
from tkc.ir.target import target
from tkc.ir.text import parse
from tkc.ir.verify import verify

needs_ptxas = pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")
CONSTANTS = "\n".join(f"%{n} = tile.constant {n} : i32" for n in (0, 1, 2, 3, 64, 128))


def kernel(body, arguments="", attributes="warps = 4 : i64"):
    return (
        f'builtin.module {{ tile.kernel @k({arguments}) {{level = 4 : i64, target = "sm_90a",'
        f" {attributes}}} {{\n{CONSTANTS}\n{body}\ntile.return }} }}"
    )


def ptx(body, arguments="", attributes="warps = 4 : i64"):
    module = parse(kernel(body, arguments, attributes), "test")
    verify(module)
    return emit(module, target("sm_90a")).text


def body_of(text):
    return [
        line.strip()
        for line in text.split("{", 1)[1].splitlines()
        if line.strip() and not line.strip().startswith(".reg")
    ]


def only(text, pattern):
    return [line for line in body_of(text) if re.search(pattern, line)]


def role(body, name="worker", warps=4, more=""):
    return f"tile.role {name} {{warps = {warps} : i64{more}}} {{\n^bb0(%who: i32):\n{body}\n}}"


# ---- roles ---------------------------------------------------------------------------------------
PAIR = (
    "tile.roles {\n"
    + role("tile.block_barrier", "one", 4, ", registers = 24 : i64, single")
    + role("tile.block_barrier", "two", 4, ", copies = 2 : i64, registers = 240 : i64")
    + "\n}"
)


def test_registers_move_to_the_workers():
    text = ptx(PAIR)
    assert ".reqntid 384, 1, 1" in text and ".minnctapersm 1" in text
    assert only(text, "setmaxnreg") == [
        "setmaxnreg.dec.sync.aligned.u32 24;",
        "setmaxnreg.inc.sync.aligned.u32 240;",
    ]
    assert text.index("setmaxnreg.dec") < text.index("elect.sync") < text.index("setmaxnreg.inc")
    # one thread has nobody to meet
    assert len(only(text, "bar.sync")) == 1 and ", 128;" in only(text, "bar.sync")[0]


@pytest.mark.parametrize(
    "block, registers", [(128, 255), (256, 255), (384, 168), (512, 128), (640, 96)]
)
def test_registers_at_entry(block, registers):
    assert target("sm_90a").at_entry(block) == registers


@pytest.mark.parametrize("more", [0, 8])
def test_registers_that_a_block_never_had(more):
    """Five warpgroups begin with 96 a thread: 480 to share out, though a multiprocessor's 65536
    would be 512. (Four consumers of 120 beside a producer of 32 waited for ever.)
    """
    parts = (
        "tile.roles {\n"
        + role("tile.block_barrier", "one", 4, f", registers = {32 + more} : i64, single")
        + role("tile.block_barrier", "two", 4, ", copies = 4 : i64, registers = 112 : i64")
        + "\n}"
    )
    if not more:
        assert only(ptx(parts), "setmaxnreg") == [
            "setmaxnreg.dec.sync.aligned.u32 32;",
            "setmaxnreg.inc.sync.aligned.u32 112;",
        ]
    else:
        with pytest.raises(
            CompileError, match="ask for 62464 registers, a block of 640 threads has 61440"
        ):
            ptx(parts)


@pytest.mark.parametrize(
    "more, message",
    [
        (", registers = 30 : i64", "multiple of 8"),
        (", registers = 16 : i64", "24 to 256"),
        (", copies = 3 : i64, registers = 240 : i64", "has 64512"),
    ],
)
def test_impossible_registers(more, message):
    with pytest.raises(CompileError, match=message):
        ptx("tile.roles {\n" + role("", "a", 4, more) + "\n}")


def test_fewer_than_four_warps_keep_their_registers():
    with pytest.raises(CompileError, match="groups of four"):
        ptx("tile.roles {\n" + role("", "a", 2, ", registers = 40 : i64") + "\n}")


def test_what_follows_the_roles_waits_for_them():
    assert only(ptx(PAIR + "\ntile.fence gpu"), "bar.sync 0;") and not only(
        ptx(PAIR), "bar.sync 0;"
    )


def test_an_instance_knows_itself():
    text = ptx(
        "%full = tile.mbarriers 0 : !tile.barriers<2>\ntile.roles {\n"
        + role(
            "tile.mbarrier_arrive %full[%who] : (!tile.barriers<2>, i32)",
            "a",
            4,
            ", copies = 2 : i64",
        )
        + "\n}"
    )
    assert only(text, "shfl.sync.idx") and only(
        text, r"@%p\d+ mbarrier.arrive.shared::cta.b64 _, \[%r\d+\+0\]"
    )


# ---- mbarriers -----------------------------------------------------------------------------------
RING = "%full = tile.mbarriers 1024 : !tile.barriers<4>\n"
T = "(!tile.barriers<4>, i32, i32)"


def test_initialisation_is_one_branch():
    text = ptx(
        RING + "tile.mbarrier_init %full {count = 3 : i64} : (!tile.barriers<4>)\ntile.fence"
        " mbarrier_init"
    )
    assert [re.sub(r"%r\d+", "B", line) for line in only(text, "mbarrier.init.sh")] == [
        f"mbarrier.init.shared::cta.b64 [B+{1024 + 8 * s}], 3;" for s in range(4)
    ]
    assert len(only(text, "bra")) == 1 and only(text, "fence.mbarrier_init.release.cluster")


def test_waits_are_loops():
    lines = body_of(ptx(RING + f"tile.mbarrier_wait %full[%2] %1 : {T}"))
    n = next(i for i, line in enumerate(lines) if "try_wait" in line)
    assert (
        lines[n - 1].endswith(":")
        and re.match(rf"@!%p\d+ bra {re.escape(lines[n - 1][:-1])};", lines[n + 1])
        and "+1040], 1, 0x989680" in lines[n]
    )


def test_a_test_spares_the_wait():
    lines = body_of(
        ptx(
            RING
            + f"%q = tile.mbarrier_test %full[%2] %0 : {T} -> i1\ntile.mbarrier_wait %full[%2] %0"
            " unless %q : (!tile.barriers<4>, i32, i32, i1)"
        )
    )
    n = next(i for i, line in enumerate(lines) if "test_wait" in line)
    skip = re.match(r"@(%p\d+) bra (\S+);", lines[n + 1])
    assert skip and skip[1] in lines[n] and f"{skip[2]}:" in lines


@pytest.mark.parametrize(
    "mask, threads", [("3", "setp.lt.u32"), ("1", "and.pred"), ("2", "and.pred")]
)
def test_arrivals_in_other_blocks(mask, threads):
    text = ptx(
        RING + f"tile.mbarrier_arrive %full[%0] to %{mask} : {T}",
        attributes="warps = 4 : i64, cluster = [2, 1]",
    )
    assert (
        only(text, r"@%p\d+ mbarrier.arrive.shared::cluster.b64 _, \[%r\d+\+1024\]")
        and only(text, "mapa.shared::cluster")
        and only(text, threads)
    )
    assert "release.cluster" not in text


def test_a_mask_alone_is_this_block():
    assert only(
        ptx(RING + f"tile.mbarrier_arrive %full[%0] to %1 : {T}"), r"arrive.shared::cta.b64"
    )


def test_every_warp_may_arrive():
    text = ptx(RING + 'tile.mbarrier_arrive %full[%0] {each = "warp"} : (!tile.barriers<4>, i32)')
    assert only(text, "setp.eq.s32") and only(text, "and.b32 %r\\d+, %r\\d+, 31")


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 7, 8, 13])
@pytest.mark.parametrize("steps", [None, 0, 1, 4, 9])
def test_ring_next(stages, steps):
    """By running the PTX: every stage and parity."""
    import numpy as np

    from tkc.sim import ptx as machine

    given = "" if steps is None else " steps %steps"
    text = kernel(
        f"%n, %q = tile.ring_next %s, %p{given} {{stages = {stages} : i64}} : (i32,"
        f" i32{', i32' if given else ''}) -> (i32, i32)\ntile.store %out[%0] %n {{extents ="
        " array<i64: -1>} : (!tile.array<?xi32>, i32, i32)\ntile.store %out[%1] %q {extents ="
        " array<i64: -1>} : (!tile.array<?xi32>, i32, i32)",
        "%out: !tile.array<?xi32>, %s: i32, %p: i32, %steps: i32",
        "warps = 1 : i64",
    )
    program = emit(parse(text, "test"), target("sm_90a"))
    by = 1 if steps is None else steps
    for stage, parity in itertools.product(range(stages), (0, 1)):
        (found,) = machine.run(program, [np.full(2, -1, np.int32), stage, parity, by])
        assert found.tolist() == [(stage + by) % stages, parity ^ (stage + by) // stages & 1]


# ---- TMA -----------------------------------------------------------------------------------------
def load(map_, buffer, memory, offsets, to="", hint="", rank=2, cluster="", role_=True):
    """One load by a producer thread."""
    array = "!tile.array<" + "?x" * rank + "bf16>"
    types = ", ".join(
        [
            f"!tile.map<{map_}>",
            *["i32"] * rank,
            f'!tile.shared<1, {buffer}xbf16, "{memory}">',
            "!tile.barriers<4>",
            "i32",
            *(["i32"] if to else []),
        ]
    )
    body = (
        RING + f"%m = tile.tensor_map %a : ({array}) -> !tile.map<{map_}>\n%b = tile.alloc 0 :"
        f' !tile.shared<1, {buffer}xbf16, "{memory}">\n'
    )
    mask = f" to {to}" if to else ""
    options = f' {{hint = "{hint}"}}' if hint else ""
    one = f"tile.tma_load %m[{', '.join(offsets)}] %b, %full[%0]{mask}{options} : ({types})"
    return ptx(
        body + ("tile.roles {\n" + role(one, more=", single") + "\n}" if role_ else one),
        f"%a: {array}, %given: i32",
        "warps = 4 : i64" + cluster,
    )


def test_a_box_in_array_order():
    (line,) = only(
        load("128x64xbf16, 128", "128x64", "128x64xb16 swizzle 128", ["%2", "%64"]), "bulk.tensor"
    )
    assert (
        ".2d.shared::cluster.global.mbarrier::complete_tx::bytes [" in line
        and "{64, 2}]" in line
        and not line.startswith("@")
    )


def test_panels_are_one_copy():
    (line,) = only(
        load(
            "1x128x1x128xbf16, 128, panelled",
            "128x128",
            "128x128xb16 swizzle 128",
            ["%1", "%2", "%3", "%64"],
            rank=4,
        ),
        "bulk.tensor",
    )
    assert ".5d." in line and "{0, 2, 1, 3, 1}]" in line


def test_a_wide_box_without_panels_is_several():
    lines = only(
        load("64x192xbf16, 128", "64x192", "64x192xb16 swizzle 128", ["%2", "%64"]), "bulk.tensor"
    )
    assert [re.search(r"\+(\d+)\], \[%d\d+, (\{.*?\})", line).groups() for line in lines] == [
        ("0", "{64, 2}"),
        ("8192", "{128, 2}"),
        ("16384", "{192, 2}"),
    ]


@pytest.mark.parametrize("offset", ["%1", "%given"])
def test_panels_start_at_panels(offset):
    with pytest.raises(CompileError, match="multiple of 64 columns"):
        load(
            "1x128x1x128xbf16, 128, panelled",
            "128x128",
            "128x128xb16 swizzle 128",
            ["%1", "%2", "%3", offset],
            rank=4,
        )


def test_multicast_and_hints():
    (line,) = only(
        load(
            "64x64xbf16, 128",
            "64x64",
            "64x64xb16 swizzle 128",
            ["%0", "%0"],
            to="%3",
            hint="evict_last",
            cluster=", cluster = [2, 1]",
        ),
        "bulk.tensor",
    )
    assert re.search(r"bytes\.multicast::cluster\.L2::cache_hint .*, %h\d+, %d\d+;", line)
    (line,) = only(
        load(
            "64x64xbf16, 128",
            "64x64",
            "64x64xb16 swizzle 128",
            ["%0", "%0"],
            to="%1",
            hint="evict_first",
        ),
        "bulk.tensor",
    )
    assert "multicast" not in line and "L2::cache_hint" in line  # one block: nobody else to send to


def test_one_thread_issues():
    (line,) = only(
        load("64x64xbf16, 128", "64x64", "64x64xb16 swizzle 128", ["%0", "%0"], role_=False),
        "bulk.tensor",
    )
    assert re.match(r"@%p\d+ cp.async", line)


def test_a_view_has_no_map():
    a = "!tile.array<?x?xbf16>"
    with pytest.raises(CompileError, match="array that the host can describe"):
        ptx(
            f'%v = tile.view %a[%0, %64] {{kinds = ["slice", "all"]}} : ({a}, i32, i32) -> {a}\n%m'
            f" = tile.tensor_map %v : ({a}) -> !tile.map<64x64xbf16, 128>",
            f"%a: {a}",
        )


@pytest.mark.parametrize(
    "reduce, name",
    [
        ("", "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"),
        ("add", "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group"),
    ],
)
def test_stores(reduce, name):
    a, b = "!tile.array<?x?xbf16>", '!tile.shared<1, 64x64xbf16, "64x64xb16 swizzle 128">'
    how = f' {{reduce = "{reduce}"}}' if reduce else ""
    text = ptx(
        f"%m = tile.tensor_map %a : ({a}) -> !tile.map<64x64xbf16, 128>\n%b = tile.alloc 0 :"
        f" {b}\ntile.tma_store %m[%1, %64] %b{how} : (!tile.map<64x64xbf16, 128>, i32, i32,"
        f" {b})\ntile.bulk_commit\ntile.bulk_wait 1 {{read}}\ntile.bulk_wait 0",
        f"%a: {a}",
    )
    assert re.search(rf"@%p\d+ {re.escape(name)} \[%d\d+, {{64, 1}}\]", text)
    assert [line.split(" ", 1)[1] for line in only(text, "bulk.(commit|wait)")] == [
        "cp.async.bulk.commit_group;",
        "cp.async.bulk.wait_group.read 1;",
        "cp.async.bulk.wait_group 0;",
    ]


@pytest.mark.parametrize("kind", ["max", "min"])
def test_reductions_that_the_accelerator_does_not_have(kind):
    a, b = "!tile.array<?x?xf32>", '!tile.shared<1, 64x32xf32, "64x32xb32 swizzle 128">'
    with pytest.raises(
        CompileError, match=f"has a {kind} of integers and of 16-bit floats, not of f32"
    ):
        ptx(
            f"%m = tile.tensor_map %a : ({a}) -> !tile.map<64x32xf32, 128>\n%b = tile.alloc 0 :"
            f' {b}\ntile.tma_store %m[%1, %64] %b {{reduce = "{kind}"}} : (!tile.map<64x32xf32,'
            f" 128>, i32, i32, {b})",
            f"%a: {a}",
        )


# ---- wgmma ---------------------------------------------------------------------------------------
def dot(
    m,
    n,
    k,
    element="bf16",
    bits=16,
    sums="f32",
    groups=1,
    a="shared",
    swizzle=128,
    across=False,
    acc=False,
    right="",
):
    """A whole program round one dot: A k-major, B (of elements `right`, or like A) k-major or
    (across) n-major.
    """
    names = {
        "bf16": "bf16",
        "f16": "f16",
        "f32": "f32",
        "f8e4m3": "f8E4M3FN",
        "f8e5m2": "f8E5M2",
        "i8": "i8",
        "ui8": "ui8",
    }
    name, other = names[element], names[right or element]
    ta = (
        f'!tile.shared<1, {m}x{k}x{name}, "{m}x{k}xb{bits} swizzle {swizzle}">'
        if a == "shared"
        else f'!tile.tile<{m}x{k}x{name}, "wgmma_a {m}x{k} groups {groups} bits {bits}">'
    )
    tb = f'!tile.shared<1, {k}x{n}x{other}, "{k}x{n}xb{bits} swizzle {swizzle}">'
    stored = (
        tb if across else f'!tile.shared<1, {n}x{k}x{other}, "{n}x{k}xb{bits} swizzle {swizzle}">'
    )
    turned = f'!tile.shared<1, {k}x{n}x{other}, "{k}x{n}xb{bits} swizzle {swizzle} order 0x1">'
    d = f'!tile.tile<{m}x{n}x{sums}, "wgmma {m}x{n} groups {groups}">'
    buffer = f'!tile.shared<1, {m}x{k}x{name}, "{m}x{k}xb{bits} swizzle {swizzle}">'
    lines = [
        *(
            [f"%a = tile.alloc 0 : {ta}"]
            if a == "shared"
            else [f"%a0 = tile.alloc 0 : {buffer}", f"%a = tile.read %a0 : ({buffer}) -> {ta}"]
        ),
        f"%b0 = tile.alloc 65536 : {stored}",
        (
            "%b = tile.stage %b0[%0] : (" + stored + ", i32) -> " + stored
            if across
            else (
                f"%b = tile.shared_transpose %b0 {{permutation = array<i64: 1, 0>}} : ({stored}) ->"
                f" {turned}"
            )
        ),
        *([f"%c = tile.constant {'0' if sums == 'i32' else '0.0'} : {d}"] if acc else []),
        "tile.fence dot",
        (
            f"%p = tile.dot_async %a, %b{' acc %c' if acc else ''} : ({ta},"
            f" {tb if across else turned}{f', {d}' if acc else ''}) -> !tile.pending<{d}>"
        ),
        "tile.dot_commit",
        f"%d = tile.dot_wait 0 [%p] : (!tile.pending<{d}>) -> {d}",
        (
            f"tile.store %out[%0, %0] %d {{extents = array<i64: {m}, {n}>}} :"
            f" (!tile.array<?x?x{sums}>, i32, i32, {d})"
        ),
    ]
    return ptx("\n".join(lines), f"%out: !tile.array<?x?x{sums}>", f"warps = {4 * groups} : i64")


FORMS = [
    dict(m=64, n=8, k=64),
    dict(m=64, n=256, k=64),
    dict(m=128, n=192, k=64),
    dict(m=64, n=320, k=64),
    dict(m=192, n=96, k=32, swizzle=64),
    dict(m=128, n=128, k=64, groups=2),
    dict(m=64, n=64, k=64, element="f16"),
    dict(m=64, n=64, k=64, element="f16", sums="f16"),
    dict(m=64, n=128, k=64, across=True),
    dict(m=64, n=192, k=64, across=True),
    dict(m=64, n=64, k=32, element="f32", bits=32),
    dict(m=64, n=64, k=128, element="f8e4m3", bits=8),
    dict(m=64, n=64, k=128, element="f8e5m2", bits=8),
    dict(m=64, n=64, k=128, element="f8e4m3", bits=8, right="f8e5m2"),
    dict(m=64, n=32, k=128, element="i8", bits=8, sums="i32"),
    dict(m=64, n=32, k=128, element="i8", bits=8, sums="i32", right="ui8"),
    dict(m=64, n=32, k=128, element="ui8", bits=8, sums="i32", right="i8"),
    dict(m=64, n=128, k=128, a="registers", across=True),
    dict(m=128, n=64, k=64, a="registers"),
    dict(m=64, n=16, k=16, swizzle=32),
]


@needs_ptxas
@pytest.mark.parametrize("form", FORMS, ids=lambda f: " ".join(map(str, f.values())))
@pytest.mark.parametrize("acc", [False, True])
def test_every_form_assembles_clean(form, acc):
    a = ptxas.assemble(dot(**form, acc=acc), "sm_90a")
    assert a.clean, a.notes


@pytest.mark.parametrize("form", FORMS, ids=lambda f: " ".join(map(str, f.values())))
def test_instructions(form):
    """Number, width and order: k outside, blocks of 64 rows inside; only the very first does not
    add.
    """
    lines = only(dot(**form), "wgmma.mma_async")
    blocks, steps = (
        form["m"] // 64 // form.get("groups", 1),
        form["k"] // (256 // form.get("bits", 16)),
    )
    columns = -(-form["n"] // 256)
    assert len(lines) == blocks * steps * columns and all(
        f".m64n{form['n'] // columns}k{256 // form.get('bits', 16)}." in line for line in lines
    )
    adds = [re.search(r"(?:%d\d+|\}), %d\d+, (\d)", line)[1] for line in lines]
    assert adds == ["0"] * (blocks * columns) + ["1"] * (blocks * (steps - 1) * columns)
    first = [re.search(r"\{(%r\d+)", line)[1] for line in lines]
    assert first == first[: blocks * columns] * steps  # one tuple a block, the same at every k


def test_descriptors_step_along_k():
    """A k-major operand of 64 x 128: 32 bytes a step, after four of them the next panel of 8192."""
    text = dot(64, 64, 128)
    base = re.search(r"wgmma.mma_async.*\}, (%d\d+), %d\d+, 0", text)[1]
    assert [int(m[1]) for m in re.finditer(rf"add.s64 %d\d+, {base}, (\d+);", text)] == [
        2,
        4,
        6,
        512,
        514,
        516,
        518,
    ]
    assert f", {0x40000040}}}" in text


@pytest.mark.parametrize(
    "form, message",
    [
        (dict(m=96, n=64, k=64), "rows by 64"),
        (dict(m=64, n=64, k=64, groups=2), "rows by 128"),
        (dict(m=64, n=64, k=64, swizzle=0), "wgmma reads"),
        (
            dict(m=64, n=64, k=128, element="f8e4m3", bits=8, across=True, swizzle=64),
            "16-bit elements",
        ),
    ],
)
def test_impossible_dots(form, message):
    with pytest.raises(CompileError, match=message):
        dot(**form)


def test_consumers_at_programs_of_their_own_share_no_scratch():
    """A histogram's counts: twice, where two consumers run side by side."""
    from pathlib import Path

    from tkc.ir.scratch import scratch
    from tkc.ir.threads import Role
    from tkc.language.signature import Options
    from tkc.passes import pipeline
    from tkc.sim.level0 import kernel_of

    kept = Path(__file__).parents[2] / "fuzz" / "kept" / "counts_of_two_programs_at_once.mlir"
    # in steps of whole rows, so that tensor maps copy both operands
    text = kept.read_text().replace("%7 = tile.constant 1 :", "%7 = tile.constant 48 :")
    module = parse(text)
    pipeline.run(module, target("sm_90a"), Options(roles="pingpong"))
    level4 = kernel_of(module)
    wanted = sum(
        scratch(op)
        * next((r.instances for r in level4.walk() if isinstance(r, Role) and op in r.walk()), 1)
        for op in level4.walk()
    )
    assert any(isinstance(r, Role) and r.instances == 2 for r in level4.walk())
    assert (
        wanted >= 32
        and emit(module, target("sm_90a")).interface.shared_bytes
        >= -(-level4.integer("shared_bytes") // 16) * 16 + wanted
    )
