"""What tkc.kernels.matmul takes without measuring, held to what was measured on an H200: the plans
of benchmarks/results, shape by shape.
"""

import csv
from functools import cache
from pathlib import Path

import pytest

from benchmarks.fit_costs import options
from benchmarks.sweep import read, spelled
from tests.passes.kernels import context
from tests.passes.test_cost import product
from tkc.kernels.matmul import TABLES, _grid, _product
from tkc.passes import plan as planning
from tkc.runtime.tuning import Config, Table

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
# of short turns; of turns of 100 ms, after which power decides
SWEEP, HOT = (
    RESULTS / "product_plans.csv",
    RESULTS / "product_plans_hot.csv",
)
CHOICES = RESULTS / "product_choices.csv"  # with the L2 cache flushed, and graphs of short ones
LOSS, MODEL = (
    1.03,
    1.05,
    # over the best plan measured: of what is shipped; of the model alone, for shapes that no table
    # has.
    # More where the sweep itself is less sure
)


@cache
def measured() -> dict[str, dict[str, float]]:
    """Microseconds by shape and plan."""
    found: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(SWEEP.open()):
        if row["us"] and not row["plan"].startswith("cuBLAS"):
            found.setdefault(row["shape"], {})[spelled(read(row["plan"]))] = float(row["us"])
    return found


def whole(options: dict) -> frozenset:
    """A plan with what is so where nothing is said."""
    return frozenset((dict(programs=1, cluster=(1, 1), raster=8, stream_k=0) | options).items())


def spread(config: Config) -> frozenset:
    """A configuration's plan, likewise; whether launches overlap is no part of it."""
    c = {name: value for name, value in config.items if name != "dependent"}
    return whole({"block": tuple(c.pop(n) for n in ("BM", "BN", "BK"))} | c)


@cache
def hot(shape: str) -> dict[tuple[str, frozenset], float]:
    """Speeds beside cuBLAS by race and plan, of the shapes that were raced hot."""
    return {
        (row["race"], whole(read(row["plan"]))): float(row["x cuBLAS"])
        for row in csv.DictReader(HOT.open())
        if row["shape"] == shape and not row["plan"].startswith("cuBLAS")
    }


# what the races of blocks leave to the launch
BESIDE_BLOCKS = "serpentine", "retain", "num_warps"


@cache
def raced(shape: str) -> dict[str, dict[frozenset, float]]:
    """Microseconds by race and plan, of races of blocks."""
    found: dict[str, dict[frozenset, float]] = {}
    for row in csv.DictReader(CHOICES.open()):
        explicit = row["plan"][0].isdigit() and ":" in row["plan"]
        if (row["shape"], row["majors"]) == (shape, "nn") and explicit:
            given = options(row["plan"])
            given["block"] = tuple(given.pop(name) for name in ("BM", "BN", "BK"))
            found.setdefault(row["protocol"], {})[bare(whole(given))] = float(row["us"])
    return found


def bare(plan: frozenset) -> frozenset:
    """A plan's block, programs and parts."""
    return frozenset((name, value) for name, value in plan if name not in BESIDE_BLOCKS)


@cache
def program(text: str) -> str:
    """What a plan's keywords come to: some clusters are refused, and two plans are one program."""
    options = read(text)
    bm, bn, bk = options.pop("block")
    made = planning.plan(product(bm, bn, bk), context("sm_90a", **options))
    if any(load.boxes > 1 for load in made.loads):
        # which was refused when this was measured
        made = planning.plan(
            product(bm, bn, bk), context("sm_90a", **options | {"cluster": (1, 1)})
        )
    return f"{bm}x{bn}x{bk} {made.to_text()}"


def doubt(shape: str) -> float:
    """How far apart the sweep has one program, measured twice."""
    times: dict[str, list[float]] = {}
    for text, us in measured()[shape].items():
        times.setdefault(program(text), []).append(us)
    return max(max(t) / min(t) for t in times.values())


def plan(config: Config) -> str:
    """A configuration as the sweep spells it."""
    c = dict(config.items)
    return spelled(
        dict(
            block=(c["BM"], c["BN"], c["BK"]),
            programs=c.get("programs", 1),
            cluster=c.get("cluster", (1, 1)),
        )
        | ({"raster": c["raster"]} if c.get("raster", 8) != 8 else {})
    )


@pytest.mark.parametrize("shape", measured())
def test_the_table_has_what_was_measured_best(shape):
    found = Table.read(TABLES).get("NVIDIA H200", "_product", f"bfloat16 {shape} nn")
    times, chosen = measured()[shape], plan(found.config)
    if speeds := hot(shape):  # the longer race decides
        wanted = spread(found.config)
        for race, _ in dict(speeds):
            of = {plan: speed for (r, plan), speed in speeds.items() if r == race}
            assert max(of.values()) <= LOSS * of.get(wanted, 99), (race, wanted)
        assert any(plan == wanted for _, plan in speeds), f"{wanted} was never raced hot"
        return
    assert times.get(chosen, 0) <= max(LOSS, doubt(shape)) * min(times.values()), (
        f"{chosen} took {times[chosen]} us"
    )
    assert chosen in times or found.seconds * 1e6 < min(times.values()), (
        f"{chosen} was never measured"
    )


# for 16 x 14336 x 4096 it takes blocks of fewer rows than the sweep has
@pytest.mark.parametrize(
    "shape", [shape for shape in measured() if shape != "16x14336x4096"], ids=str
)
def test_the_model_alone_is_not_far_off(shape):
    m, n, k = map(int, shape.split("x"))
    values, options = _product.bound(
        f"bf16[{m}, {k}]", f"bf16[{k}, {n}]", None, f"bf16[{m}, {n}]", ACTIVATION=None
    )
    config, times = (
        _product.candidates(values, options, _grid, "sm_90a")[0][0].config,
        measured()[shape],
    )
    chosen, wanted = plan(config), spread(config)
    races = [race for race, of in hot(shape) if of == wanted]
    for race in races:
        assert (
            max(speed for (r, _), speed in hot(shape).items() if r == race)
            <= MODEL * hot(shape)[race, wanted]
        ), (race, wanted)
    blocks = [race for race in raced(shape).values() if bare(wanted) in race]
    for race in blocks:
        assert race[bare(wanted)] <= MODEL * min(race.values()), chosen
    assert races or blocks or chosen in times, f"{chosen} was never measured"
    assert chosen not in times or times[chosen] <= max(MODEL, doubt(shape)) * min(times.values()), (
        f"{chosen} took {times[chosen]} us"
    )


def test_rows_that_cut_sectors_are_shared():
    """5000 x 3000 x 2000, whose b has rows of 6000 bytes: alone a block of 128 x 192 took 131 us on
    an H200, and two that share b, in three boxes, 90 (128 x 256: 97, 128 x 128: 114).
    """
    choice = _product.choose(
        "bf16[5000, 2000]",
        "bf16[2000, 3000]",
        None,
        "bf16[5000, 3000]",
        ACTIVATION=None,
        grid=_grid,
        target="sm_90a",
        measure=False,
    )
    made = dict(choice.config.items)
    assert (made["BM"], made["BN"], made["cluster"]) == (
        128,
        192,
        (2, 1),
    ) and 0.85 < choice.seconds * 1e6 / 90.3 < 1.1
