"""Findings beyond shared memory's races: global memory within and between blocks, accumulators in
flight, bank conflicts, hardware barriers, what was never written.
"""

import numpy as np
import pytest

from tests.sim.programs import ROW, S0, TURNED, chain, ring, turns
from tests.sim.test_level4 import run_chain, run_ring, run_turns, verdict
from tkc.ir.text import parse
from tkc.ir.verify import verify
from tkc.sim import level4
from tkc.sim.errors import SimulationError
from tkc.sim.report import KINDS, Violation, report_of

SEEDS = range(6)
ARRAY, FLAT = "!tile.array<?x?xf32>", "!tile.array<?xi32>"


def program(body, arguments=f"%x: {ARRAY}, %o: {ARRAY}, %n: {FLAT}", attributes="warps = 4 : i64"):
    module = parse(f"""tile.kernel @k({arguments}) {{level = 4 : i64, {attributes}}} {{
  %zero = tile.constant 0 : i32
  %one = tile.constant 1 : i32
  %width = tile.constant 32 : i32
  %p = tile.program_id 0 : i32
  %row = tile.mul %p, %width : i32
  {body}
  tile.return
}}""")
    verify(module)
    return module


def found(module, arguments, grid, resident=2, **options) -> set:
    """Kinds over all schedules ("clean" for none)."""
    kinds = set()
    for seed in SEEDS:
        copies = [np.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
        try:
            level4.run(module, copies, grid, seed, resident, **options)
        except SimulationError as e:
            report = report_of(e)
            assert report.kind in KINDS and report.message and e.operation is not None
            kinds.add(report.kind)
        else:
            kinds.add("clean")
    return kinds


def load(array, row, t=ROW, name="v"):
    return (
        f"%{name} = tile.load %{array}[{row}, %zero] {{extents = array<i64: 32, 32>}} : ({ARRAY},"
        f" i32, i32) -> {t}"
    )


def store(array, row, t=ROW, name="v"):
    return (
        f"tile.store %{array}[{row}, %zero] %{name} {{extents = array<i64: 32, 32>}} : ({ARRAY},"
        f" i32, i32, {t})"
    )


def data(blocks=3):
    return [
        np.arange(32 * 32 * blocks, dtype=np.float32).reshape(-1, 32),
        np.zeros((32 * blocks, 32), np.float32),
        np.zeros(8, np.int32),
    ]


def body(*lines):
    return "\n".join(lines)


BETWEEN = {
    "each block its own rows": (body(load("x", "%row"), store("o", "%row")), {"clean"}),
    "in place": (body(load("x", "%row"), store("x", "%row")), {"clean"}),
    "all blocks the same rows": (body(load("x", "%row"), store("o", "%zero")), {"order"}),
    "all blocks the same bytes": (body(load("x", "%zero"), store("o", "%zero")), {"clean"}),
    "a stencil in place": (
        body(
            "%below = tile.add %row, %one : i32",
            load("x", "%below"),
            "tile.block_barrier",
            store("x", "%row"),
        ),
        {"order"},
    ),
    "the first block's result": (
        body(
            load("x", "%row"),
            store("o", "%row"),
            load("o", "%zero", name="w"),
            store("o", "%row", name="w"),
        ),
        {"order"},
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_programs_that_depend_on_each_others_order(name):
    text, kinds = BETWEEN[name]
    for resident in (1, 3):
        assert found(program(text), data(), (3,), resident) == kinds


def test_one_program_depends_on_nobody():
    assert found(program(BETWEEN["all blocks the same rows"][0]), data(1), (1,)) == {"clean"}


WITHIN = {
    "read back in the same layout": (
        body(
            load("x", "%row"),
            store("o", "%row"),
            load("o", "%row", name="w"),
            store("x", "%row", name="w"),
        ),
        {"clean"},
    ),
    "read back in another layout": (
        body(
            load("x", "%row"),
            store("o", "%row"),
            load("o", "%row", TURNED, "w"),
            store("x", "%row", TURNED, "w"),
        ),
        {"race"},
    ),
    "with a barrier between": (
        body(
            load("x", "%row"),
            store("o", "%row"),
            "tile.block_barrier",
            load("o", "%row", TURNED, "w"),
            store("x", "%row", TURNED, "w"),
        ),
        {"clean"},
    ),
    "overwritten before all have read": (
        body(load("x", "%row", TURNED), load("o", "%row", name="w"), store("x", "%row", name="w")),
        {"race"},
    ),
}


@pytest.mark.parametrize("name", WITHIN)
def test_warps_of_one_block_that_meet_in_global_memory(name):
    text, kinds = WITHIN[name]
    assert found(program(text), data(1), (1,)) == kinds


def locked(op):
    """Each program adds one to a counter, the last one sums what all have stored."""
    return f"""{load("x", "%row")}
  {store("o", "%row")}
  tile.block_barrier
  %base = tile.pointer %n : ({FLAT}) -> !tile.ptr<i32>
  {op}
  %many = tile.num_programs 0 : i32
  %before = tile.sub %many, %one : i32
  %last = tile.eq %old, %before : i32
  scf.if %last {{
    tile.block_barrier
    %sum = scf.for %i = %zero to %many step %one iter_args(%a = %v) -> ({ROW}) : i32 {{
      %r = tile.mul %i, %width : i32
      {load("o", "%r", name="w")}
      %b = tile.add %a, %w : {ROW}
      scf.yield %b : {ROW}
    }}
    {store("x", "%zero", name="sum")}
  }}"""


def test_an_atomic_counter_orders_blocks():
    # the last block reads what the others stored before they counted; it overwrites rows that block
    # 0 read before it counted
    module = program(locked("%old = tile.atomic add %base, %one : (!tile.ptr<i32>, i32) -> i32"))
    assert found(module, data(), (3,), 3) == {"clean"}


def test_a_counter_that_is_read_is_no_order():
    module = program(f"""{load("x", "%row")}
  {store("o", "%row")}
  %below = tile.add %row, %width : i32
  %c = tile.load %n[%zero] {{extents = array<i64: -1>}} : ({FLAT}, i32) -> i32
  %go = tile.eq %c, %zero : i32
  scf.if %go {{
    {load("o", "%below", name="w")}
    {store("x", "%row", name="w")}
  }}""")
    assert found(module, data(), (3,), 3) == {"order"}


# --------------------------------------------------------------------------------------------------
def test_an_accumulator_is_used_while_a_dot_adds_to_it():
    text = chain()
    wait = next(line for line in text.split("\n") if "%r = tile.dot_wait 0" in line)
    busy = text.replace(
        "%u = tile.dot_async %h, %vs acc %t1",
        "%t2 = tile.dot_wait 0 [%t1] : (!tile.pending<OUT>) -> OUT\n  %u = tile.dot_async %h, %vs"
        " acc %t2",
    )
    out = wait.split("-> ")[1]
    busy = (
        busy.replace("OUT", out)
        .replace("acc %t2 keep %use : (", "acc %t2 keep %use : (")
        .replace(f"{'!tile.pending<' + out + '>'}, i1) ->", f"{out}, i1) ->")
    )
    for seed in SEEDS:
        run_chain(busy, seed)
    touched = busy.replace(wait, f"  %touch = tile.neg %t2 : {out}\n{wait}")
    assert touched != busy
    for seed in SEEDS:
        assert verdict(run_chain, touched, seed) == "in flight"
    after = busy.replace(wait, f"{wait}\n  %touch = tile.neg %t2 : {out}")
    for seed in SEEDS:
        run_chain(after, seed)


# --------------------------------------------------------------------------------------------------
def test_bank_conflicts_other_than_claimed():
    line = next(line for line in ring().split("\n") if "tile.read" in line)

    def claimed(n):
        return ring().replace(line, line.replace(" : (", f" {{conflicts = {n} : i64}} : (", 1))

    degrees = {n for n in (1, 2, 4, 8, 16, 32) if verdict(run_ring, claimed(n), 5, 0) == "missed"}
    assert len(degrees) == 1 or degrees == {1, min(degrees - {1})}, degrees
    wrong = next(n for n in (1, 2, 4, 8, 16, 32) if n not in degrees)
    assert {verdict(run_ring, claimed(wrong), 5, seed) for seed in SEEDS} == {"conflicts"}


def test_shared_memory_that_nobody_wrote():
    body = (
        f"%b = tile.alloc : !tile.shared<1, {S0}>\n  %v = tile.read %b : (!tile.shared<1, {S0}>) ->"
        f" {ROW}\n  {store('o', '%row')}"
    )
    assert found(program(body), data(1), (1,)) == {"uninitialized"}


def test_copies_in_flight_at_the_end_of_a_block():
    body = (
        f"%b = tile.alloc : !tile.shared<1, {S0}>\n  tile.cp_async %x[%row, %zero] %b {{extents ="
        f" array<i64: 32, 32>}} : ({ARRAY}, i32, i32, !tile.shared<1, {S0}>)\n  tile.cp_commit"
    )
    assert found(program(body), data(1), (1,)) == {"pending at exit"}


@pytest.mark.parametrize(
    "number, kind",
    [(0, "barrier"), (1, "clean"), (13, "clean"), (14, "barrier"), (15, "barrier"), (16, "bounds")],
)
def test_named_barriers_and_those_of_instances(number, kind):
    """turns() has two workers; where each also meets on its own barrier, 15 and 14 are taken."""
    text = turns()
    body = text[text.index("^body(%who: i32):") :]
    met = text.replace(
        body,
        body.replace(
            "^body(%who: i32):",
            f"^body(%who: i32):\n      tile.block_barrier\n      %chosen = tile.constant {number} :"
            " i32\n      tile.barrier %chosen {threads = 256 : i64} : (i32)",
            1,
        ),
    )
    kinds = {
        ("clean" if (v := verdict(run_turns, met, 4, seed)) == "missed" else v) for seed in SEEDS
    }
    assert (
        kinds == {kind}
        or number == 1
        and kinds <= {"arrivals", "clean", "race", "value", "deadlock"}
    ), kinds


def test_every_kind_of_finding_has_a_sentence():
    assert all(isinstance(s, str) and s for s in KINDS.values()) and {
        "order",
        "in flight",
        "conflicts",
        "race",
        "deadlock",
    } <= set(KINDS)
    with pytest.raises(Violation) as caught:
        level4.run(program(BETWEEN["all blocks the same rows"][0]), data(), (3,), 0, 1)
    message = str(caught.value)
    assert (
        "block 1 (first warp) overwrites what block 0" in message
        and "argument 1 (o)" in message
        and "run in any order" in message
    )


def message_passing(store_as: str, load_as: str) -> str:
    """Block 0 stores a row and sets a flag; block 1 waits for the flag and reads the row."""
    return f"""%flags = tile.pointer %n : ({FLAT}) -> !tile.ptr<i32>
  %first = tile.eq %p, %zero : i32
  scf.if %first {{
    {load("x", "%zero")}
    {store("o", "%zero")}
    tile.block_barrier
    tile.store_pointers %flags, %one{store_as} : (!tile.ptr<i32>, i32)
  }} else {{
    %seen = scf.while (%i = %zero) : (i32) -> i32 {{
      %flag = tile.load_pointers %flags{load_as} : (!tile.ptr<i32>) -> i32
      %none = tile.eq %flag, %zero : i32
      scf.condition(%none) %flag : i32
    }} do {{
    ^bb0(%j: i32):
      scf.yield %j : i32
    }}
    tile.block_barrier
    {load("o", "%zero", name="w")}
    {store("o", "%width", name="w")}
  }}"""


@pytest.mark.parametrize(
    "store_as, load_as, kinds",
    [
        (' {semantics = "release"}', ' {semantics = "acquire"}', {"clean"}),
        (' {semantics = "relaxed"}', ' {semantics = "acquire"}', {"order"}),
        (' {semantics = "release"}', ' {semantics = "relaxed"}', {"order"}),
        ("", "", {"order"}),
    ],
)
def test_a_flag_orders_blocks_if_it_is_released_and_acquired(store_as, load_as, kinds):
    assert found(program(message_passing(store_as, load_as)), data(2), (2,), 2) == kinds
