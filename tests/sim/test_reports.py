"""What the simulator finds, one report each: its kind, the user's line, the agents, and what is
missing. FINDINGS are those that the docs promise by name; between them and OTHERS every kind is
shown.
"""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr

from tests.sim import test_level4 as level4_tests
from tests.sim.programs import ROW, S0
from tests.sim.test_findings import ARRAY, BETWEEN, FLAT, WITHIN, data, load, program, store
from tkc.ir.text import parse
from tkc.ir.verify import verify
from tkc.sim import level4
from tkc.sim.errors import SimulationError
from tkc.sim.report import KINDS, report_of

SHARED, PAIR = f"!tile.shared<1, {S0}>", "!tile.barriers<1>"
BUFFER = f"%b = tile.alloc : {SHARED}\n  "
SINGLE = (
    f"{BUFFER}%bar = tile.mbarriers : {PAIR}\n  tile.mbarrier_init %bar {{count = 1 : i64}} :"
    f" ({PAIR})\n  tile.fence mbarrier_init\n  tile.block_barrier\n  "
)
MAP = f"%m = tile.tensor_map %x : ({ARRAY}) -> !tile.map<32x32xf32, 0>\n  "
FAR = (
    "%far = tile.constant 1073741824 : i32\n  %twice = tile.add %far, %far : i32\n  %p1 ="
    f" tile.pointer %n : ({FLAT}) -> !tile.ptr<i32>\n  "
)
ARRIVE, WAIT = (
    f"tile.mbarrier_arrive %bar[%zero] : ({PAIR}, i32)",
    f"tile.mbarrier_wait %bar[%zero] %zero : ({PAIR}, i32, i32)",
)
COPY = (
    f"tile.cp_async %x[%row, %zero] %b {{extents = array<i64: 32, 32>}} : ({ARRAY}, i32, i32,"
    f" {SHARED})\n  tile.cp_commit\n  "
)
WRITE, READ = f"tile.write %b, %v : ({SHARED}, {ROW})", f"%w = tile.read %b : ({SHARED}) -> {ROW}"


def of(text: str, grid=(1,), attributes: str = "warps = 4 : i64", resident: int = 1):
    """A program by its body."""
    return lambda: (
        program(text, attributes=attributes),
        lambda module, seed: level4.run(module, data(2), grid, seed, resident),
    )


def mutant(text: str, run):
    return lambda: (parse(text), run)


PRODUCT = {
    name: mutant(
        level4_tests.MUTANTS[name][0],
        lambda module, seed: level4_tests.run_product(module, 5, 2, seed),
    )
    for name in level4_tests.MUTANTS
}
CLUSTER = {
    name: mutant(
        level4_tests.CLUSTER_MUTANTS[name][0],
        lambda module, seed: level4_tests.run_product(module, 5, 2, seed, 2),
    )
    for name in level4_tests.CLUSTER_MUTANTS
}

# what it is: (kind, the program, the sentence's words: who, what, the missing edge)
FINDINGS = {
    "a data race": (
        "race",
        of(WITHIN["read back in another layout"][0]),
        ("in argument", "(other warps)", "missing is a barrier"),
    ),
    "a missing proxy fence": (
        "missing proxy fence",
        of(
            f"{MAP}{BUFFER}{load('x', '%row')}\n  {WRITE}\n  tile.block_barrier\n  tile.tma_store"
            f" %m[%zero, %zero] %b : (!tile.map<32x32xf32, 0>, i32, i32, {SHARED})\n "
            " tile.bulk_commit\n  tile.bulk_wait 0"
        ),
        ("tma_store", "writes in 'tile.write'", "missing is a fence.proxy.async"),
    ),
    "memory that has not arrived": (
        "race",
        of(f"{BUFFER}{COPY}{READ}\n  {store('o', '%row', name='w')}\n  tile.cp_wait 0"),
        ("reads what", "cp_async", "missing is an arrival and a wait, or a barrier"),
    ),
    "a phase lapped": (
        "lapped",
        CLUSTER["waits for its own consumer alone"],
        ("can end before", "has seen the end of phase", "nobody who arrives waits for it"),
    ),
    "a wrong number of arrivals": (
        "arrivals",
        of(f"{SINGLE}tile.barrier %one {{threads = 64 : i64}} : (i32)"),
        ("threads are at barrier 1", "which takes 64"),
    ),
    "a wrong number of bytes": (
        "bytes",
        of(f"{SINGLE}tile.mbarrier_expect %bar[%zero] {{bytes = 1048576 : i64}} : ({PAIR}, i32)"),
        ("mbarrier bar[0]", "at most 1048575"),
    ),
    "a deadlock": (
        "deadlock",
        of(f"{SINGLE}{WAIT}"),
        ("(first warp) waits in 'tile.mbarrier_wait'", "1 of 1 arrivals and 0 bytes missing"),
    ),
    "use before initialisation": (
        "barrier",
        of(f"%bar = tile.mbarriers : {PAIR}\n  {ARRIVE}"),
        ("uses an mbarrier", "nobody has initialised"),
    ),
    "an exit with copies pending": (
        "pending at exit",
        of(f"{BUFFER}{COPY}"),
        ("ends with copies", "not waited for"),
    ),
    "an access outside of shared memory": (
        "bounds",
        of(
            f"{BUFFER}%c = tile.stage %b[%one] : ({SHARED}, i32) -> {SHARED}\n "
            f" {READ.replace('%b', '%c')}"
        ),
        ("stage 1 of a ring of 1",),
    ),
    "an access outside of global memory": (
        "bounds",
        of(
            f"%p1 = tile.pointer %n : ({FLAT}) -> !tile.ptr<i32>\n  %q = tile.pointer_add %p1,"
            " %width : (!tile.ptr<i32>, i32) -> !tile.ptr<i32>\n  tile.store_pointers %q, %one :"
            " (!tile.ptr<i32>, i32)"
        ),
        ("write of 4 bytes at byte 128", "(n), which has bytes 0 to 32"),
    ),
    "an int32 that wraps": (
        "wrap",
        of(
            f"{FAR}%q = tile.pointer_add %p1, %twice : (!tile.ptr<i32>, i32) -> !tile.ptr<i32>\n "
            " tile.store_pointers %q, %one : (!tile.ptr<i32>, i32)"
        ),
        ("wraps", "integer type"),
    ),
    "bank conflicts other than claimed": (
        "conflicts",
        of(
            f"{BUFFER}{load('x', '%row')}\n  tile.write %b, %v {{conflicts = 7 : i64}} : ({SHARED},"
            f" {ROW})"
        ),
        ("7-way bank conflicts are claimed", "that has"),
    ),
    "live buffers on the same bytes": (
        "race",
        PRODUCT["epilogue on top of the ring"],
        ("overwrites what", "missing is an arrival and a wait, or a barrier"),
    ),
    "programs that depend on each other's order": (
        "order",
        of(BETWEEN["all blocks the same rows"][0], (2,)),
        (
            "block 1 (first warp) overwrites what block 0 (first warp)",
            "blocks run in any order",
            "missing is an atomic operation",
        ),
    ),
}
OTHERS = {
    "memory that nobody wrote": (
        "uninitialized",
        of(f"{BUFFER}{READ}\n  {store('o', '%row', name='w')}"),
        ("reads shared memory", "nobody wrote"),
    ),
    "a wait that an earlier phase lets pass": (
        "ambiguous",
        of(f"{SINGLE}{ARRIVE}\n  {ARRIVE}\n  {WAIT.replace('%zero] %zero', '%zero] %one')}"),
        ("nothing tells it of the phase before", "same parity"),
    ),
    "an accumulator before its wait": (
        "not waited",
        PRODUCT["no commit"],
        ("reads an accumulator", "in flight, or not committed"),
    ),
    "a dot without a fence": (
        "missing dot fence",
        PRODUCT["no dot fence"],
        ("without a fence dot",),
    ),
    "registers of a dot in flight": (
        "in flight",
        mutant(level4_tests.chain(), None),
        ("while an asynchronous dot adds to its registers", "missing is a dot_wait"),
    ),
    "a promise broken": (
        "assertion",
        of("%bad = tile.eq %zero, %one : i32\n  tile.assume %bad : (i1)"),
        ("a promised condition does not hold",),
    ),
    "a block that may not have begun": (
        "not begun",
        of(
            f"{BUFFER}{load('x', '%zero')}\n  tile.write %b, %v {{everywhere}} : ({SHARED}, {ROW})",
            (2,),
            "warps = 4 : i64, cluster = array<i64: 2, 1>, spread = array<i64: 2, 32>",
        ),
        ("writes to shared memory of block", "missing is a barrier of the cluster"),
    ),
    "claims that do not add up": (
        "counter at exit",
        of(
            "%t = tile.constant 4 : i32\n  %next = tile.next_program %t : (i32) -> i32",
            (4,),
            "warps = 4 : i64, persistent",
        ),
        ("the next one would begin there", "missing is a block's claim"),
    ),
    "a loop without a step": (
        "meaning",
        of("scf.for %i = %zero to %one step %zero : i32 {\n    scf.yield\n  }"),
        ("a loop with step 0",),
    ),
    "a crooked address": (
        "alignment",
        of(
            f"{MAP}{SINGLE}%c = tile.alloc 16 : {SHARED}\n  tile.mbarrier_expect %bar[%zero]"
            f" {{bytes = 4096 : i64}} : ({PAIR}, i32)\n  tile.tma_load %m[%zero, %zero] %c,"
            f" %bar[%zero] : (!tile.map<32x32xf32, 0>, i32, i32, {SHARED}, {PAIR}, i32)"
        ),
        ("TMA needs shared memory", "not at 16"),
    ),
}


def touched() -> tuple:
    """The chain of dots whose first accumulator is used before its wait."""
    text = level4_tests.chain()
    wait = next(line for line in text.split("\n") if "%r = tile.dot_wait 0" in line)
    out = wait.split("-> ")[1]
    busy = text.replace(
        "%u = tile.dot_async %h, %vs acc %t1",
        f"%t2 = tile.dot_wait 0 [%t1] : (!tile.pending<{out}>) -> {out}\n  %u = tile.dot_async %h,"
        " %vs acc %t2",
    )
    busy = busy.replace(f"{'!tile.pending<' + out + '>'}, i1) ->", f"{out}, i1) ->").replace(
        wait, f"  %touch = tile.neg %t2 : {out}\n{wait}"
    )
    return parse(busy), lambda module, seed: level4_tests.run_chain(module, seed)


def placed(module):
    """Each operation with a line of its own."""
    for line, op in enumerate(module.walk()):
        op.location = FileLineColLoc(StringAttr("user.py"), IntAttr(line + 1), IntAttr(5))
    verify(module)
    return module


@pytest.mark.parametrize("what", [*FINDINGS, *OTHERS])
def test_a_finding_is_a_report_with_line_agents_and_what_is_missing(what, monkeypatch):
    kind, made, said = (FINDINGS | OTHERS)[what]
    monkeypatch.setattr(level4_tests, "module_of", lambda module: module)
    module, run = touched() if kind == "in flight" else made()
    placed(module)
    found = set()
    for seed in range(4):
        with pytest.raises(SimulationError) as caught:
            run(module, seed)
        report, op = report_of(caught.value), caught.value.operation
        found.add(report.kind)
        if report.kind != kind:
            continue
        assert all(s in report.message for s in said), str(report)
        assert (
            report.location.file == "user.py"
            and report.location.line == list(module.walk()).index(op) + 1
            and f"user.py:{report.location.line}" in str(report)
        )
        assert report.agents and all(
            re.search(r"block|launch|'tile\.|producer|consumer", a) for a in report.agents
        ), report
        assert any(a.partition(" (")[0] in report.message for a in report.agents), report
    assert kind in found and found <= {kind, "race", "uninitialized", "arrivals", "lapped"}, found


def test_every_kind_has_its_report():
    assert {kind for kind, *_ in (FINDINGS | OTHERS).values()} == set(KINDS) and all(KINDS.values())


def test_no_report_is_of_a_kind_that_is_not_listed():
    raised = set()
    for path in (Path(level4.__file__).parent).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Violation":
                raised |= {
                    c.value
                    for c in ast.walk(node.args[0])
                    if isinstance(c, ast.Constant) and isinstance(c.value, str)
                }
    assert raised <= set(KINDS) and len(raised) > 15


def test_agents_are_named_where_only_the_values_are_wrong():
    """Of two blocks the one that leaves its array."""
    module = program(
        load("x", "%row")
        + f"\n  %p1 = tile.pointer %n : ({FLAT}) -> !tile.ptr<i32>\n  %q = tile.pointer_add %p1,"
        " %row : (!tile.ptr<i32>, i32) -> !tile.ptr<i32>\n  tile.store_pointers %q, %one :"
        " (!tile.ptr<i32>, i32)"
    )
    with pytest.raises(SimulationError) as caught:
        level4.run(module, [*data(2)[:2], np.zeros(32, np.int32)], (2,), 0, 1)
    report = report_of(caught.value)
    assert report.agents == ("block 1 (first warp)",) and report.message.startswith(
        "block 1 (first warp): write of 4 bytes"
    ), report
