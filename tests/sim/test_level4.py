"""The engine on small programs: right values and no alarm on clean ones, an alarm on every mutant,
under many schedules.
"""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.sim.programs import chain, exchange, product, ring, turns
from tkc.ir.text import parse
from tkc.ir.verify import verify
from tkc.sim import level4
from tkc.sim.memory import Areas
from tkc.sim.report import Violation

SEEDS = range(10)


@cache
def module_of(text):
    module = parse(text)
    verify(module)
    return module


def run_product(text, steps=5, tiles=1, seed=0, blocks=1, **options):
    """`tiles` of 64 rows a block."""
    tiles *= blocks
    rng = np.random.default_rng(1)
    a, b = (
        rng.integers(-3, 4, (64 * tiles, 64 * steps)).astype(ml_dtypes.bfloat16),
        rng.integers(-3, 4, (64 * steps, 32)).astype(ml_dtypes.bfloat16),
    )
    c = np.zeros((64 * tiles, 32), ml_dtypes.bfloat16)
    level4.run(module_of(text), [a, b, c, steps], (blocks,), seed, **options)
    np.testing.assert_array_equal(
        np.float32(c), np.float32((np.float32(a) @ np.float32(b)).astype(ml_dtypes.bfloat16))
    )


def run_ring(text, steps=5, seed=0, **options):
    x, o = (
        np.random.default_rng(2).integers(-9, 9, (32, 32 * steps)).astype(np.float32),
        np.zeros((32, 32), np.float32),
    )
    level4.run(module_of(text), [x, o, steps], (1,), seed, **options)
    np.testing.assert_array_equal(o, x.reshape(32, steps, 32).sum(1))


@pytest.mark.parametrize(
    "stages,steps,tiles", [(1, 3, 1), (2, 1, 1), (2, 5, 1), (3, 4, 2), (4, 2, 3)]
)
def test_the_product_is_clean(stages, steps, tiles):
    for seed in SEEDS:
        run_product(product(stages, tiles), steps, tiles, seed)


@pytest.mark.parametrize(
    "stages,steps,tiles,blocks", [(2, 4, 1, 2), (3, 5, 2, 2), (2, 1, 1, 4), (1, 2, 2, 4)]
)
def test_a_cluster_shares_its_loads(stages, steps, tiles, blocks):
    for seed in SEEDS:
        run_product(
            product(stages, tiles, cluster=2), steps, tiles, seed, blocks, resident=1 + seed % 2
        )


@pytest.mark.parametrize("stages,steps", [(2, 1), (2, 4), (3, 0), (3, 1), (3, 2), (3, 5)])
def test_the_ring_is_clean(stages, steps):
    for seed in SEEDS:
        run_ring(ring(stages), steps, seed)


def without(text, part, nth=0):
    """The text without the nth line that holds `part`."""
    lines = text.split("\n")
    hits = [i for i, line in enumerate(lines) if part in line]
    del lines[hits[nth]]
    return "\n".join(lines)


def moved(text, part, before):
    """The text with the line that holds `part` moved before the one that holds `before`."""
    lines = text.split("\n")
    taken = lines.pop(next(i for i, line in enumerate(lines) if part in line))
    lines.insert(next(i for i, line in enumerate(lines) if before in line), taken)
    return "\n".join(lines)


PRODUCT = product(2, 2)
MUTANTS = {
    "no wait for empty": (
        without(PRODUCT, "mbarrier_wait %empty"),
        {"race", "missing proxy fence", "lapped", "ambiguous", "arrivals"},
    ),
    "producer starts with the wrong parity": (
        PRODUCT.replace("%s0 = %zero, %p0 = %one", "%s0 = %zero, %p0 = %zero"),
        {"deadlock"},
    ),
    "producer's parity never turns": (
        PRODUCT.replace("scf.yield %sn, %pn : i32, i32", "scf.yield %sn, %p : i32, i32"),
        {"race", "deadlock", "lapped", "ambiguous", "arrivals"},
    ),
    "no wait for full": (without(PRODUCT, "mbarrier_wait %full"), {"race"}),
    "consumer's parity never turns": (
        PRODUCT.replace("scf.yield %done, %sn, %pn", "scf.yield %done, %sn, %p"),
        {"race", "deadlock", "lapped", "ambiguous"},
    ),
    "too few bytes": (PRODUCT.replace("bytes = 12288", "bytes = 8192"), {"race", "deadlock"}),
    "too many bytes": (PRODUCT.replace("bytes = 12288", "bytes = 12304"), {"deadlock"}),
    "empty counts two": (PRODUCT.replace("%empty {count = 1", "%empty {count = 2"), {"deadlock"}),
    "full counts two": (PRODUCT.replace("%full {count = 1", "%full {count = 2"), {"deadlock"}),
    "no expectation": (without(PRODUCT, "mbarrier_expect"), {"deadlock"}),
    "no arrival on empty": (without(PRODUCT, "mbarrier_arrive"), {"deadlock"}),
    "two arrivals on empty": (
        PRODUCT.replace(
            "tile.mbarrier_arrive %empty",
            "tile.mbarrier_arrive %empty[%s] : (!tile.barriers<2>, i32)\n         "
            " tile.mbarrier_arrive %empty",
        ),
        {"arrivals", "race", "lapped", "ambiguous", "deadlock"},
    ),
    "released before the dot is over": (
        moved(PRODUCT, "tile.mbarrier_arrive", "%done = tile.dot_wait"),
        {"race", "lapped", "ambiguous"},
    ),
    "a wait too shallow": (
        PRODUCT.replace("dot_wait 0", "dot_wait 1").replace(
            f"-> {'!tile.tile<64x32xf32'}", "-> !tile.tile<64x32xf32"
        ),
        {"not waited"},
    ),
    "no commit": (without(PRODUCT, "dot_commit"), {"not waited"}),
    "no dot fence": (without(PRODUCT, "fence dot"), {"missing dot fence"}),
    "loads into the wrong stage": (
        PRODUCT.replace("%ar = tile.stage %as[%s]", "%ar = tile.stage %as[%zero]", 1),
        {"race", "value", "uninitialized"},
    ),
    "dots from the wrong stage": (
        PRODUCT.replace(
            "%d = tile.dot_async %ar",
            '%wrong = tile.stage %as[%zero] : (!tile.shared<2, 64x64xbf16, "64x64xb16 swizzle'
            ' 128">, i32) -> !tile.shared<1, 64x64xbf16, "64x64xb16 swizzle 128">\n          %d ='
            " tile.dot_async %wrong",
        ),
        {"race", "value"},
    ),
    "waits on the wrong stage": (
        PRODUCT.replace("tile.mbarrier_wait %full[%s]", "tile.mbarrier_wait %full[%zero]"),
        {"race", "deadlock", "lapped", "ambiguous"},
    ),
    "no fence before the store": (without(PRODUCT, "fence async_shared"), {"missing proxy fence"}),
    "no barrier before the store": (without(PRODUCT, "block_barrier", 2), {"race"}),
    "no barrier before the write": (without(PRODUCT, "block_barrier", 1), {"race"}),
    "no wait before the write": (without(PRODUCT, "bulk_wait"), {"race"}),
    "no wait at the end": (without(PRODUCT, "bulk_wait", 1), {"pending at exit"}),
    "no commit of the store": (without(PRODUCT, "bulk_commit"), {"race"}),
    "no initialisation fence": (without(PRODUCT, "fence mbarrier_init"), {"barrier"}),
    "no barrier after the initialisation": (without(PRODUCT, "block_barrier"), {"barrier"}),
    "no initialisation": (without(PRODUCT, "mbarrier_init %empty"), {"barrier"}),
    "epilogue on top of the ring": (
        PRODUCT.replace("%as = tile.alloc :", "%as = tile.alloc 0 :").replace(
            "%cs = tile.alloc :", "%cs = tile.alloc 0 :"
        ),
        {"race", "missing proxy fence"},
    ),
    "buffer on top of the barriers": (
        PRODUCT.replace("%full = tile.mbarriers :", "%full = tile.mbarriers 0 :").replace(
            "%as = tile.alloc :", "%as = tile.alloc 0 :"
        ),
        {"barrier"},
    ),
    "fetches beyond the ring": (
        PRODUCT.replace("stages = 2 : i64", "stages = 3 : i64", 1),
        {"bounds"},
    ),
}


def verdict(function, *args, **kwargs) -> str:
    try:
        function(*args, **kwargs)
    except Violation as v:
        assert v.report.kind == v.kind and v.report.message and v.operation is not None
        return v.kind
    except AssertionError:
        return "value"
    return "missed"


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_of_the_product_are_found_on_every_schedule(name):
    text, kinds = MUTANTS[name]
    assert text != PRODUCT
    found = {verdict(run_product, text, 5, 2, seed) for seed in SEEDS}
    assert found <= kinds | ({"uninitialized"} if "race" in kinds else set()), found


RING = ring(3)
RING_MUTANTS = {
    "a wait too shallow": RING.replace("tile.cp_wait 1", "tile.cp_wait 2"),
    "no wait": without(RING, "cp_wait 1"),
    "no barrier": without(RING, "block_barrier"),
    "barrier before the wait": moved(RING, "block_barrier", "cp_wait 1"),
    "a commit too few": without(RING, "cp_commit"),
    "no commit in the loop": without(RING, "cp_commit", 2),
    "copies into the stage being read": RING.replace(
        "%free = tile.stage %ring[%f]", "%free = tile.stage %ring[%s]"
    ),
    "reads the stage being filled": RING.replace(
        "%here = tile.stage %ring[%s]", "%here = tile.stage %ring[%f]"
    ),
    "pending at the end": without(RING, "cp_wait 0"),
}


@pytest.mark.parametrize("name", RING_MUTANTS)
def test_mutants_of_the_ring_are_found_on_every_schedule(name):
    assert RING_MUTANTS[name] != RING
    found = {verdict(run_ring, RING_MUTANTS[name], 5, seed) for seed in SEEDS}
    assert found <= {"race", "pending at exit", "value", "uninitialized"}, found


CLUSTER = product(2, 2, cluster=2)
CLUSTER_MUTANTS = {
    "frees its own block alone": (
        CLUSTER.replace(
            "tile.mbarrier_arrive %empty[%s] to %everyone : (!tile.barriers<2>, i32, i32)",
            "tile.mbarrier_arrive %empty[%s] : (!tile.barriers<2>, i32)",
        ),
        {"deadlock"},
    ),
    "waits for its own consumer alone": (
        CLUSTER.replace("%empty {count = 2", "%empty {count = 1"),
        {"race", "lapped", "ambiguous", "arrivals"},
    ),
    "loads for itself alone": (
        CLUSTER.replace(
            "%full[%s] to %everyone",
            "%full[%s] to %one",
        ),
        {"race", "deadlock", "bytes", "uninitialized"},
    ),
    "leaves while its peer is at work": (
        without(without(CLUSTER, "cluster_arrive", 1), "cluster_wait", 1),
        {"pending at exit"},
    ),
    "no cluster barrier after the initialisation": (
        without(without(CLUSTER, "cluster_arrive"), "cluster_wait"),
        {"barrier"},
    ),
    "a barrier of the block alone": (
        without(CLUSTER, "cluster_wait").replace(
            "tile.cluster_arrive {relaxed}", "tile.block_barrier"
        ),
        {"barrier"},
    ),
    "relaxed without the fence": (without(CLUSTER, "fence mbarrier_init"), {"barrier"}),
    "expects half": (
        CLUSTER.replace("bytes = 12288", "bytes = 10240"),
        {"race", "deadlock", "bytes", "lapped", "ambiguous"},
    ),
}


@pytest.mark.parametrize("name", CLUSTER_MUTANTS)
def test_mutants_of_the_cluster_are_found(name):
    text, kinds = CLUSTER_MUTANTS[name]
    assert text != CLUSTER
    found = {verdict(run_product, text, 5, 2, seed, 2) for seed in SEEDS}
    if name.startswith("leaves"):
        found -= {"missed"}  # only where the peer is slow enough
    assert found and found <= kinds | ({"uninitialized"} if "race" in kinds else set()), found


FENCED = exchange(before="tile.fence async_shared")


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_ordinary_reads_before_a_release(steps):
    for seed in SEEDS:
        run_ring(FENCED, steps, seed)


def test_a_leader_that_releases_before_its_followers_have_read():
    for seed in SEEDS:
        assert verdict(run_ring, exchange(bar="", before="tile.fence async_shared"), 4, seed) in (
            "race",
            "lapped",
            "ambiguous",
        )
        assert verdict(run_ring, exchange(), 4, seed) == "missing proxy fence"
        run_ring(exchange(), 4, seed, strict_reads=False)


def run_chain(text, seed=0, use=True):
    rng = np.random.default_rng(3)
    a, b, v = (
        rng.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((64, 64), (64, 64), (60, 32))
    )  # 60 rows: four of zeros
    o = np.ones((64, 32), np.float32)
    level4.run(module_of(text), [a, b, v, o, use], (1,), seed)
    a, b, v = (np.float32(x) for x in (a, b, np.vstack([v, np.zeros((4, 32))])))
    np.testing.assert_array_equal(
        o, 1 + np.float32((a @ b.T).astype(ml_dtypes.bfloat16)) @ v + use * (a @ v)
    )


CHAIN_MUTANTS = {
    "reads the newer group": (
        chain().replace("dot_wait 1 [%s, %t]", "dot_wait 2 [%s, %t]"),
        "not waited",
    ),
    "no fence before a dot from registers": (without(chain(), "fence dot", 2), "missing dot fence"),
    "one group for both": (without(chain(), "dot_commit"), "not waited"),
    "no wait for the loads": (without(chain(), "mbarrier_wait"), ("race", "uninitialized")),
    "a fence of the wrong kind": (
        chain().replace("fence async_shared", "fence block"),
        "missing proxy fence",
    ),
    "a slice of bytes too many": (chain().replace("bytes = 20480", "bytes = 20496"), "deadlock"),
}


@pytest.mark.parametrize("use", [True, False])
def test_groups_of_dots_in_flight(use):
    for seed in SEEDS:
        run_chain(chain(), seed, use)


@pytest.mark.parametrize("name", CHAIN_MUTANTS)
def test_mutants_of_the_chain(name):
    text, kinds = CHAIN_MUTANTS[name]
    assert text != chain()
    for seed in SEEDS:
        assert verdict(run_chain, text, seed) in kinds


def run_turns(text, n=4, seed=0, resident=1):
    o = np.zeros((32 * n, 32), np.float32)
    level4.run(module_of(text), [o, n], (n,), seed, resident)
    np.testing.assert_array_equal(o[::32, 0], 3 * (1 + np.arange(n) // min(n, resident)))
    assert (o == np.repeat(o[::32, :1], 32, 0)).all()


@pytest.mark.parametrize("n,resident", [(1, 1), (4, 1), (5, 2)])
def test_two_roles_take_turns_by_named_barriers_in_persistent_blocks(n, resident):
    for seed in SEEDS:
        run_turns(turns(), n, seed, resident)


TURNS_MUTANTS = {
    "nobody starts": (
        turns().replace(
            "%second {\n        tile.barrier_arrive",
            "%second {\n        tile.fence block\n      }\n      %never = tile.lt %n, %zero : i32\n"
            "      scf.if %never {\n        tile.barrier_arrive",
        ),
        {"deadlock"},
    ),
    "both start": (
        turns().replace("%second = tile.eq %who, %one", "%second = tile.ge %who, %zero"),
        {"race", "value", "arrivals", "deadlock"},
    ),
    "no turn": (without(turns(), "tile.barrier %mine"), {"race", "value", "arrivals", "deadlock"}),
    "half of the threads": (
        turns().replace("tile.barrier %mine {threads = 256", "tile.barrier %mine {threads = 128"),
        {"arrivals", "race", "value"},
    ),
    "the same barrier for both": (
        turns()
        .replace("%mine = tile.add %who", "%mine = tile.add %zero")
        .replace("%theirs = tile.add %other", "%theirs = tile.add %zero"),
        {"arrivals", "race", "value", "deadlock"},
    ),
}


@pytest.mark.parametrize("name", TURNS_MUTANTS)
def test_mutants_of_the_turns(name):
    text, kinds = TURNS_MUTANTS[name]
    assert text != turns()
    found = {verdict(run_turns, text, 4, seed) for seed in SEEDS}
    assert found <= kinds, found


HELD = '!tile.tile<128x32xf32, "128x32: 4:1@1 4:4@0 | 8:4@1 4:1@0 | 8:16@0">'
BUFFER = '!tile.shared<1, 128x32xf32, "128x32xb32">'
TWO_WARPGROUPS = f"""
tile.kernel @copy(%x: !tile.array<?x?xf32>, %o: !tile.array<?x?xf32>) {{level = 4 : i64}} {{
  %zero = tile.constant 0 : i32
  %s = tile.alloc : {BUFFER}
  tile.roles {{
    tile.role consumer {{warps = 8 : i64}} {{
    ^body(%who: i32):
      %t = tile.load %x[%zero, %zero] {{extents = array<i64: 128, 32>}} \
          : (!tile.array<?x?xf32>, i32, i32) -> {HELD}
      tile.write %s, %t : ({BUFFER}, {HELD})
      %u = tile.read %s : ({BUFFER}) -> {HELD}
      tile.store %o[%zero, %zero] %u {{extents = array<i64: 128, 32>}} \
          : (!tile.array<?x?xf32>, i32, i32, {HELD})
      tile.bulk_wait 0 {{read, each = "warpgroup"}}
    }}
  }}
  tile.return
}}"""


def test_values_of_a_program_whose_barriers_are_not_placed_yet():
    """Validation runs level 4 before insert-synchronization: a read has what all warpgroups of a
    role wrote before it, though nothing orders the two yet.
    """
    x = np.random.default_rng(3).standard_normal((128, 32)).astype(np.float32)
    for seed in SEEDS:
        o = np.zeros_like(x)
        level4.run(module_of(TWO_WARPGROUPS), [x, o], (1,), seed, hazards=False)
        np.testing.assert_array_equal(o, x)


def test_a_run_is_replayed_from_its_seed():
    module = parse(PRODUCT)
    a, b, c = (np.ones(s, ml_dtypes.bfloat16) for s in ((128, 128), (128, 32), (128, 32)))
    steps = [level4.run(module, [a, b, c, 2], (1,), seed).steps for seed in (3, 3, 4)]
    assert steps[0] == steps[1]


def test_a_deadlock_says_who_waits_for_what():
    with pytest.raises(Violation) as caught:
        run_product(MUTANTS["too many bytes"][0], 5, 2)
    message = str(caught.value)
    assert (
        "block consumer (first warp) waits in 'tile.mbarrier_wait' for parity 0 of mbarrier full[0]"
        " in phase 0 (0 of 1 arrivals and 16 bytes missing)" in message
    )
    assert (
        "block producer waits in 'tile.mbarrier_wait' for parity 0 of mbarrier empty[0]" in message
    )


def test_a_race_names_both_sides_and_the_missing_edge():
    with pytest.raises(Violation) as caught:
        run_product(MUTANTS["no fence before the store"][0], 5, 2)
    report = caught.value.report
    assert (
        report.kind == "missing proxy fence"
        and "'tile.write'" in report.message
        and "a fence.proxy.async between them" in report.message
    )
    assert (
        any("consumer" in who for who in report.agents)
        and caught.value.operation.name == "tile.tma_store"
    )


def test_reports_carry_the_line_of_the_source():
    text = MUTANTS["no wait for full"][0].replace(
        "!tile.pending<!tile.tile<64x32xf32", "!tile.pending<!tile.tile<64x32xf32", 1
    )
    text = "\n".join(
        line + ' loc("user.py":7:3)' if "tile.dot_async" in line else line
        for line in text.split("\n")
    )
    with pytest.raises(Violation) as caught:
        run_product(text, 5, 2)
    assert caught.value.report.location.line == 7 and "user.py:7" in str(caught.value)


@tkc.jit
def columns_summed(a, o):
    x = tkc.load(a, (0, 0), (16, 16)).to(tkc.bfloat16)
    tkc.store(o, (0, 0), tkc.dot(tkc.full((64, 16), 1.0, tkc.bfloat16), x))


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_copies_by_threads_write_whole_elements(monkeypatch, dtype):
    """Until 2026-11-29 (random kernel 24001314) of elements of 8 bytes half was held to be
    unwritten. Rows in reverse order: a tensor map cannot copy them.
    """
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    a, o = np.arange(256, dtype=dtype).reshape(16, 16)[::-1], np.zeros((64, 16), np.float32)
    columns_summed[1](a, o, num_warps=4, num_stages=3)
    assert np.array_equal(o, np.broadcast_to(a.sum(0), o.shape))


def test_areas_of_shared_memory_are_what_cells_are_made_of():
    """Also of sets of cells that were asked for before others split their areas."""
    rng, areas = np.random.default_rng(0), Areas(200)
    sets = [np.unique(rng.integers(0, 100, n)) for n in (1, 3, 10, 30, 50, 60)]
    for _ in range(60):
        start, cells = 40 * int(rng.integers(0, 3)), sets[int(rng.integers(len(sets)))]
        found = areas.among(start, cells)
        np.testing.assert_array_equal(np.unique(areas.of[start + cells]), found)
        assert areas.sizes[found].sum() == len(cells)
