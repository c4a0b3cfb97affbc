"""Global memory between threads, proxies, blocks and GPUs: what orders two accesses, and what does
not.
"""

import pytest

from tests.sim.programs import ROW, S0
from tests.sim.test_findings import ARRAY, FLAT, body, data, found, load, program, store
from tkc.sim import ranks
from tkc.sim.errors import SimulationError
from tkc.sim.mutants import mutants
from tkc.sim.report import report_of

PTR = "!tile.ptr<i32>"
FLAG = f"%flags = tile.pointer %n : ({FLAT}) -> {PTR}"
SEEDS = range(8)


def signal(semantics="release", scope="system", value="one"):
    return (
        f'tile.store_pointers %flags, %{value} {{semantics = "{semantics}", scope = "{scope}"}} :'
        f" ({PTR}, i32)"
    )


def wait(semantics="acquire", scope="system", compare="lt", value="one"):
    return f"""%seen = scf.while (%i = %zero) : (i32) -> i32 {{
      %flag = tile.load_pointers %flags {{semantics = "{semantics}", scope = "{scope}"}}
        : ({PTR}) -> i32
      %none = tile.{compare} %flag, %{value} : i32
      scf.condition(%none) %flag : i32
    }} do {{
    ^bb0(%j: i32):
      scf.yield %j : i32
    }}"""


def blocks(first, second):
    """Block 0 does the first, block 1 the second."""
    return program(f"""{FLAG}
  %zeroth = tile.eq %p, %zero : i32
  scf.if %zeroth {{
    {first}
  }} else {{
    {second}
  }}""")


def verdict(modules, seed):
    """What two ranks, one block each, are found to do on a schedule."""
    x, o, n = data(2)
    try:
        ranks.run([[ranks.Given(m, [x, o, n], (1,))] for m in modules], seed)
    except SimulationError as e:
        return report_of(e).kind
    return "clean" if (o[32:] == x[:32]).all() else "value"


def of_ranks(*texts):
    """Over all schedules."""
    modules = [program(f"{FLAG}\n  {text}") for text in texts]
    return {verdict(modules, seed) for seed in SEEDS}


GIVE = body(load("x", "%zero"), store("o", "%zero"))
TAKE = body(load("o", "%zero", name="w"), store("o", "%width", name="w"))


# ---- one GPU
def test_a_release_comes_after_what_all_warps_have_stored():
    """The code of a release is a barrier of the block, then one thread's store."""
    module = blocks(body(GIVE, signal(scope="gpu")), body(wait(scope="gpu"), TAKE))
    assert found(module, data(2), (2,), 2) == {"clean"}


def test_a_release_of_one_warp_alone_is_found():
    module = blocks(body(GIVE, signal(scope="gpu")), body(wait(scope="gpu"), TAKE))
    release = next(
        op for op in module.walk() if op.name == "tile.store_pointers" and op.semantics is not None
    )
    release.attributes["alone"] = release.properties["semantics"]
    assert found(module, data(2), (2,), 2) == {"order"}


def test_a_scope_holds_both_blocks_or_orders_nothing():
    for out, into, kinds in (
        ("gpu", "gpu", {"clean"}),
        ("system", "gpu", {"clean"}),
        ("block", "gpu", {"order"}),
        ("gpu", "block", {"order"}),
    ):
        module = blocks(body(GIVE, signal(scope=out)), body(wait(scope=into), TAKE))
        assert found(module, data(2), (2,), 2) == kinds, (out, into)


def test_a_flag_orders_nothing_for_who_reads_another_flag():
    following = f"%next = tile.pointer_add %flags, %one : ({PTR}, i32) -> {PTR}"
    other = body(following, signal(semantics="relaxed").replace("%flags", "%next"))
    second = body(
        following,
        wait(scope="gpu").replace("tile.load_pointers %flags", "tile.load_pointers %next"),
        TAKE,
    )
    module = blocks(body(GIVE, signal(scope="gpu"), other), second)
    assert found(module, data(2), (2,), 2) == {"order"}


# ---- two GPUs
def test_a_signal_of_the_system_orders_two_gpus():
    assert of_ranks(body(GIVE, signal()), body(wait(), TAKE)) == {"clean"}


@pytest.mark.parametrize(
    "give, take",
    [
        (signal(scope="gpu"), wait()),
        (signal(), wait(scope="gpu")),
        (signal(semantics="relaxed"), wait()),
        (signal(), wait(semantics="relaxed")),
        (signal(scope="gpu"), wait(scope="gpu")),
    ],
)
def test_a_weaker_signal_or_wait_between_gpus_is_found(give, take):
    assert of_ranks(body(GIVE, give), body(take, TAKE)) == {"order"}


def test_a_signal_before_what_it_announces_is_found():
    assert "order" in of_ranks(body(signal(), GIVE), body(wait(), TAKE))


def test_a_wait_behind_the_load_is_found():
    late = body(load("o", "%zero", name="w"), wait(), store("o", "%width", name="w"))
    assert "order" in of_ranks(body(GIVE, signal()), late)


# ---- and the tensor memory accelerator
MAP = "!tile.map<32x32xf32, 0>"
GIVE_TMA = f"""%m = tile.tensor_map %o : ({ARRAY}) -> {MAP}
  %b = tile.alloc : !tile.shared<1, {S0}>
  {load("x", "%zero")}
  tile.write %b, %v : (!tile.shared<1, {S0}>, {ROW})
  tile.fence async_shared
  tile.block_barrier
  tile.tma_store %m[%zero, %zero] %b : ({MAP}, i32, i32, !tile.shared<1, {S0}>)
  tile.bulk_commit
  tile.bulk_wait 0
  {signal()}"""
FENCE = "tile.fence async_global"
TAKE_TMA = f"""%m = tile.tensor_map %o : ({ARRAY}) -> {MAP}
  %b = tile.alloc : !tile.shared<1, {S0}>
  %bar = tile.mbarriers : !tile.barriers<1>
  tile.mbarrier_init %bar {{count = 1 : i64}} : (!tile.barriers<1>)
  tile.fence mbarrier_init
  tile.block_barrier
  {wait()}
  {FENCE}
  tile.mbarrier_expect %bar[%zero] {{bytes = 4096 : i64}} : (!tile.barriers<1>, i32)
  tile.tma_load %m[%zero, %zero] %b, %bar[%zero]
      : ({MAP}, i32, i32, !tile.shared<1, {S0}>, !tile.barriers<1>, i32)
  tile.mbarrier_wait %bar[%zero] %zero : (!tile.barriers<1>, i32, i32)
  %w = tile.read %b : (!tile.shared<1, {S0}>) -> {ROW}
  {store("o", "%width", name="w")}"""
PAIRS = {
    "stores and loads": (body(GIVE, signal()), body(wait(), TAKE)),
    "stores, copied": (body(GIVE, signal()), TAKE_TMA),
    "copies, loaded": (GIVE_TMA, body(wait(), TAKE)),
    "copies, copied": (GIVE_TMA, TAKE_TMA),
}


@pytest.mark.parametrize("name", PAIRS)
def test_copies_between_gpus(name):
    assert of_ranks(*PAIRS[name]) == {"clean"}


# four faults of kernels that pass on a GPU most of the time
FAULTS = {
    "polls without an acquire, and copies without a proxy fence": (
        body(GIVE, signal()),
        TAKE_TMA.replace("acquire", "relaxed").replace(FENCE, ""),
        "order",
    ),
    "copies without a proxy fence": (
        body(GIVE, signal()),
        TAKE_TMA.replace(FENCE, ""),
        "missing proxy fence",
    ),
    "signals when the source was read, not when it is written": (
        GIVE_TMA.replace("bulk_wait 0", "bulk_wait 0 {read}"),
        body(wait(), TAKE),
        "order",
    ),
    "polls in the scope of one GPU": (body(GIVE, signal()), body(wait(scope="gpu"), TAKE), "order"),
    "waits until a count is equal, not at least": (
        body(GIVE, signal(), "%two = tile.constant 2 : i32", signal(value="two")),
        body(wait(compare="ne"), TAKE),
        "deadlock",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_others_are_found(name):
    *programs, kind = FAULTS[name]
    assert kind in of_ranks(*programs)


EQUIVALENT = {
    # of one signal: nothing but its number ever stands there
    "until equal: scf.while",
    # which warp made the mbarriers: the flag goes to all warps behind a barrier of theirs
    "drop: block_barrier",
    # the thread that issues copies waits for them and signals
    "alone: store_pointers",
}


@pytest.mark.parametrize("name", PAIRS)
def test_every_mutant_of_two_gpus_is_found(name):
    texts = PAIRS[name]
    originals = [program(f"{FLAG}\n  {text}") for text in texts]
    missed, count = [], 0
    for number, original in enumerate(originals):
        for label, mutant in mutants(original):
            count += 1
            pair = [mutant if i == number else m for i, m in enumerate(originals)]
            if all(verdict(pair, seed) == "clean" for seed in SEEDS):
                missed.append(label)
    declared = EQUIVALENT - ({"alone: store_pointers"} if name.startswith("stores") else set())
    assert count >= 8 and set(missed) <= declared, missed


def test_a_wait_that_no_rank_ends_is_a_deadlock():
    assert of_ranks(GIVE, body(wait(), TAKE)) == {"deadlock"}


def test_a_flag_that_must_equal_a_number_may_be_missed():
    """A second launch of the writer may come before the reader has looked."""
    twice = body(
        GIVE,
        "%two = tile.constant 2 : i32",
        signal(),
        signal(value="two"),
    )
    assert "deadlock" in of_ranks(twice, body(wait(compare="ne"), TAKE))
    assert of_ranks(twice, body(wait(), TAKE)) == {"clean"}


def test_launches_of_a_rank_come_one_after_the_other():
    x, o, n = data(2)
    first, second = (program(t) for t in (GIVE, TAKE))
    for seed in SEEDS:
        ranks.run([[ranks.Given(m, [x, o, n], (1,)) for m in (first, second)]], seed)
        ranks.run([[ranks.Given(m, [x, o.copy(), n], (1,))] for m in (first, second)], seed)
    with pytest.raises(SimulationError, match="GPUs run in any order"):
        for seed in SEEDS:
            ranks.run([[ranks.Given(m, [x, o, n], (1,))] for m in (first, second)], seed)
