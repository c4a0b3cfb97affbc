"""The costs of tkc/devices/h200.json that are fitted: those with which the cost model would have
chosen best among the plans that were measured.

    python -m benchmarks.fit_costs                        how good the device's numbers are
    python -m benchmarks.fit_costs --rounds 5             fits them to all products
    python -m benchmarks.fit_costs --rounds 5 --fold 0    to three of four, judged by the others

The plans are those of benchmarks/results/product_choices.csv (launches with the L2 cache flushed
between them, of the shortest products 20 in a CUDA graph) and product_plans_hot.csv (turns of 100
ms, where power decides). A set of costs is judged by two numbers of each product: how much slower
the plan is that the model puts first than the best one (of those within a percent of the first,
weighted), and the mean error of the times of the best plans. Of hot turns there is the first alone.
One number after the other is made larger or smaller while that helps.

Launches of a graph follow one another: operands are in the L2 cache where it holds them, so that
memory does not bound them, and what surrounds a launch is overlapped but for a part that is the
same for all (`Judge.queued`).
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, gcd, inf, log
from pathlib import Path
from typing import Any

from tkc.devices import Device
from tkc.ir.plan import Plan
from tkc.ir.target import Target, target
from tkc.passes.planning.cost import Work, cost
from tkc.passes.planning.products import RASTER, WARPGROUPS, Block, Product, plan_of, work_of

RESULTS = Path(__file__).parent / "results"
SHORT = {
    "p": "programs",
    "c": "cluster",
    "s": "split_k",
    "sk": "stream_k",
    "w": "num_warps",
    "st": "num_stages",
    "r": "raster",
    "z": "serpentine",
}
RATES = ("fabric", "l2")
ENGINES = ("partial_swizzle",)
COSTS = (
    *("copy_latency", "shared_copy_latency", "launch_clocks", "block_clocks", "restart_clocks"),
    *("store_tma", "store_subtile", "store_turned", "store_row", "store_part"),
    *("store_shared", "store_lane", "store_narrow", "async_load", "one_role", "staged_load"),
    *("split_k", "split_k_element", "part", "part_element", "cluster"),
    *("shared", "copied_line", "step", "cut_l2", "cut_line", "crowd", "filled", "together"),
    *("partly_filled", "storing_beside", "share", "share_element"),
    *("partial", "dirty", "overlap", "heat", "traffic", "warming"),
)
FITTED = (("rates", RATES), ("engines", ENGINES), ("costs", COSTS))
LINE = 64  # elements of 16 bits
TOP = 14  # plans of a product whose times are to be right
CLOSE = 0.01  # of the first plan's time: the model cannot tell less apart
MOST = 0.5  # logarithm of an error, beyond which it is no worse: a plan that does something else
FOLDS = 4  # of products


@dataclass(frozen=True)
class Measured:
    """A plan of a product and its seconds, or only something in proportion to them."""

    spelled: str
    work: Work
    plan: Plan
    seconds: float


@dataclass(frozen=True)
class Group:
    """Plans of one product that were measured together; how: "flushed", "graph" or "hot"."""

    shape: str
    majors: str
    how: str
    plans: tuple[Measured, ...]

    @property
    def name(self) -> str:
        return f"{self.shape} {self.majors} {self.how}"


def options(text: str) -> dict[str, Any]:
    """Constants and launch options of a spelled plan: "128x256x64:p1:c2x1", or with whole names."""
    block, *rest = text.split(":")
    found: dict[str, Any] = dict(zip(("BM", "BN", "BK"), map(int, block.split("x")), strict=True))
    for part in rest:
        name, _, value = part.rpartition("=")
        if not name:
            short, value = re.fullmatch(r"([a-z]+?)(\d.*)", part).groups()
            name = SHORT[short]
        if "x" in value:
            found[name] = tuple(map(int, value.split("x")))
        elif value in ("True", "False") or name == "serpentine":
            found[name] = value in ("True", "1")
        else:
            found[name] = int(value) if value.isdigit() else value
    return found


def product_like(shape: tuple[int, int, int], majors: str, padded: bool = False) -> Product:
    """Of bfloat16 matrices. padded: operands were copied to rows of whole lines before."""
    m, n, k = shape
    step = LINE if padded else 1
    of_a, of_b = (2 * (-(-x // step) * step) for x in (k, n if majors == "nn" else k))
    vectors = tuple(gcd(16, pitch) // 2 for pitch in (of_a, of_b, 2 * n))
    return Product(m, n, k, 1, majors == "nn", (of_a, of_b), vectors=vectors, result_pitch=2 * n)


def block_like(given: dict[str, Any]) -> Block | None:
    """The block that options make; None where these say what a block does not, or leave something
    open.
    """
    alone = given.get("roles") == "one"
    if given.get("raster", 0 if alone else RASTER) != RASTER or "operand" in given:
        return None
    if not alone and ("cluster" not in given or "num_stages" in given):
        return None
    cluster, parts = given.get("cluster", (1, 1)), given.get("split_k", 1)
    together = parts > 1 and cluster == (parts, 1)
    block = Block(
        given["BM"],
        given["BN"],
        given.get("programs", 1) == 2,
        given["BK"],
        (1, 1) if together else cluster,
        given.get("split_k", 1),
        given.get("stream_k", 0),
        given["num_warps"] if alone else 0,
        given.get("num_stages", 1) if alone else 0,
        together,
    )
    if not alone and (block.columns if block.transposed else block.rows) not in WARPGROUPS:
        return None
    groups = given.get("num_warps", 12 if block.warpgroups == 3 else 0) // 4
    return block if alone or groups in (0, block.warpgroups) else None


def rows() -> Iterator[tuple[str, str, str, str, float]]:
    """Shape, majors, how it was measured, the plan's spelling, and seconds."""
    with (RESULTS / "product_choices.csv").open() as table:
        for row in csv.DictReader(table):
            yield row["shape"], row["majors"], row["protocol"], row["plan"], float(row["us"]) / 1e6
    with (RESULTS / "product_plans_hot.csv").open() as table:
        for row in csv.DictReader(table):
            yield row["shape"], "nn", f"hot {row['race']}", row["plan"], 1 / float(row["x cuBLAS"])


def groups(machine: Target) -> list[Group]:
    """Everything that was measured of blocks."""
    found: dict[tuple[str, str, str], list[Measured]] = {}
    for shape, majors, how, spelled, seconds in rows():
        if not re.match(r"\d+x\d+x\d+:", spelled) or "operand" in spelled:
            continue
        given = options(spelled)
        block = block_like(given)
        m, n, k = map(int, shape.split("x"))
        product = product_like((m, n, k), majors, bool(given.get("padded")))
        if block is None or not product.takes(block, machine):
            continue
        made = Measured(spelled, work_of(product, block), plan_of(product, block, machine), seconds)
        found.setdefault((shape, majors, how), []).append(made)
    return [Group(*key, tuple(plans)) for key, plans in found.items() if len(plans) > 2]


# ---- how good a device's numbers are
@dataclass(frozen=True)
class Judge:
    """What a device's numbers say of what was measured."""

    machine: Target
    measured: Sequence[Group]

    @cached_property
    def warm(self) -> Target:
        """The device where memory is not in the way."""
        device = self.machine.device
        rates = replace(device.rates, memory=inf)
        return with_device(self.machine, replace(device, rates=rates))

    @cached_property
    def raw(self) -> list[list[float]]:
        """Seconds of each plan as the model has them."""
        found = []
        for group in self.measured:
            for_cache = group.how.startswith("graph")
            found.append(
                [
                    cost(
                        p.work,
                        p.plan,
                        self.warm
                        if for_cache and p.work.footprint < self.machine.cache
                        else self.machine,
                    ).seconds
                    for p in group.plans
                ]
            )
        return found

    @cached_property
    def queued(self) -> float:
        """Seconds by which a launch of a graph is shorter than one alone."""
        apart = [
            said - plan.seconds
            for group, times in zip(self.measured, self.raw, strict=True)
            if group.how.startswith("graph")
            for plan, said in zip(group.plans, times, strict=True)
        ]
        return statistics.median(apart) if apart else 0.0

    @cached_property
    def predicted(self) -> list[list[float]]:
        """Seconds of each plan, of a graph's in its queue."""
        return [
            [max(t - self.queued, t / 8) if group.how.startswith("graph") else t for t in times]
            for group, times in zip(self.measured, self.raw, strict=True)
        ]

    def of(self, number: int) -> tuple[float, float]:
        """(logarithm of how much slower the model's choice is than the best plan, mean error of
        the best plans) of a group.
        """
        group, said = self.measured[number], self.predicted[number]
        least, best = min(said), min(p.seconds for p in group.plans)
        weights = [exp(-log(t / least) / CLOSE) for t in said]
        slower = [min(MOST, log(p.seconds / best)) for p in group.plans]
        regret = sum(w * s for w, s in zip(weights, slower, strict=True)) / sum(weights)
        if group.how.startswith("hot"):
            return regret, 0.0
        quickest = sorted(zip(group.plans, said, strict=True), key=lambda x: x[0].seconds)[:TOP]
        errors = [min(MOST, abs(log(t / p.seconds))) for p, t in quickest]
        return regret, statistics.mean(errors)

    @cached_property
    def loss(self) -> float:
        both = [self.of(i) for i in range(len(self.measured))]
        return statistics.mean(2 * regret + error / 2 for regret, error in both)

    def report(self) -> str:
        """Regret and errors of all, and of the plans that the model would choose."""
        regrets, first, every = [], [], []
        for i, group in enumerate(self.measured):
            regrets.append(self.of(i)[0])
            if group.how.startswith("hot"):
                continue
            pairs = [(t, p.seconds) for t, p in zip(self.predicted[i], group.plans, strict=True)]
            first.append(min(pairs))
            every += pairs
        errors = [[abs(t / s - 1) for t, s in pairs] for pairs in (first, every)]
        return (
            f"{len(regrets)} groups: the model's choice is"
            f" {100 * (exp(statistics.mean(regrets)) - 1):.1f} % slower than the best plan"
            f" (of one in twenty {100 * (exp(sorted(regrets)[-len(regrets) // 20]) - 1):.0f} %"
            f" or more); error of its time {100 * statistics.median(errors[0]):.1f} %, of every"
            f" plan's {100 * statistics.median(errors[1]):.1f} % (medians), rank correlation"
            f" {rank_correlation(first):.3f}, {rank_correlation(every):.3f}"
        )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's, of what was said and what was measured."""
    places = []
    for side in (0, 1):
        order = sorted(range(len(pairs)), key=lambda i: pairs[i][side])
        place = [0] * len(pairs)
        for number, i in enumerate(order):
            place[i] = number
        places.append(place)
    return statistics.correlation(*places)


def with_device(machine: Target, device: Device) -> Target:
    """A target planned for another device."""
    other = replace(machine)
    other.__dict__["device"] = device
    return other


def changed(device: Device, section: str, name: str, factor: float) -> Device:
    """A device of which one number is another."""
    old = getattr(device, section)
    return replace(device, **{section: replace(old, **{name: getattr(old, name) * factor})})


def fit(
    measured: Sequence[Group], machine: Target, rounds: int, say: Callable[[str], None]
) -> Device:
    """The device with the costs that are best."""
    device, shuffle = machine.device, random.Random(0)
    numbers = [(section, name) for section, names in FITTED for name in names]
    steps, best = dict.fromkeys(numbers, 0.3), Judge(machine, measured).loss
    for turn in range(rounds):
        shuffle.shuffle(numbers)
        for number in numbers:
            for factor in (1 + steps[number], 1 / (1 + steps[number])):
                other = changed(device, *number, factor)
                if (found := Judge(with_device(machine, other), measured).loss) < best:
                    device, best = other, found
                    break
            else:
                steps[number] *= 0.6
        say(f"round {turn + 1}: {best:.5f}")
    return device


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--fold", type=int, help=f"products of {FOLDS} folds that are left out")
    given = parser.parse_args()
    machine = target(given.target)
    every = groups(machine)
    shapes = sorted({group.shape for group in every})
    random.Random(0).shuffle(shapes)
    left_out = set() if given.fold is None else set(shapes[given.fold :: FOLDS])
    fitted_to = [group for group in every if group.shape not in left_out]
    judged = [group for group in every if group.shape in left_out] or every
    print("before:", Judge(machine, judged).report(), flush=True)
    if given.rounds:
        device = fit(fitted_to, machine, given.rounds, lambda text: print(text, flush=True))
        machine = with_device(machine, device)
        for section, names in FITTED:
            print(*(f"{name} {getattr(getattr(device, section), name):.4g}" for name in names))
    judge = Judge(machine, judged)
    worst = sorted(range(len(judged)), key=lambda i: -judge.of(i)[0])
    for i in worst[:20]:
        regret, error = judge.of(i)
        print(
            f"{judged[i].name:40} {100 * (exp(regret) - 1):5.1f} % slower, error"
            f" {100 * error:5.1f} %"
        )
    print(judge.report())


if __name__ == "__main__":
    main()
