"""The costs of tkc/devices/h200.json that are fitted: those with which the closed-form model would
have chosen best among the plans that were measured.

    python -m benchmarks.fit_costs --rounds 20            prints the numbers, and how good they are

The plans are those of benchmarks/results/product_choices.csv (launches with the L2 cache flushed
between them, of the shortest products 20 in a CUDA graph) and product_plans_hot.csv (turns of 100
ms, where power decides). A set of costs is judged by two numbers of each product: how much slower
the plan is that the model puts first than the best one (of those within a percent of the first,
weighted), and the mean error of the times of the best twenty; of graphs and of hot turns the first
alone. One number after the other is made larger or smaller while that helps.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from pathlib import Path
from typing import Any

from tkc.devices import Device
from tkc.ir.target import Target, target
from tkc.kernels.matmul import _product
from tkc.language.trace import trace
from tkc.passes import PassContext
from tkc.passes.plan import kernel_of, plan
from tkc.passes.planning.cost import Work, cost
from tkc.passes.planning.numbers import Sizes
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.specialize import Constant, signature

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
COSTS = (
    *(
        "copy_latency",
        "shared_copy_latency",
        "launch_clocks",
        "restart_clocks",
        "store_tma",
        "store_subtile",
    ),
    *("split_k", "split_k_element", "part", "part_element", "cluster"),
    *("shared", "copied_line", "step"),
    *("cut_l2", "cut_line", "crowd", "filled", "together"),
    *("store_row", "store_part", "overlap", "heat", "traffic"),
    *("store_shared", "store_lane", "store_narrow", "async_load"),
)
LINE = 64  # elements of 16 bits
TOP = 20  # plans of a product whose times are to be right
CLOSE = 0.01  # of the first plan's time: the model cannot tell less apart


@dataclass(frozen=True)
class Measured:
    """A plan and its seconds, or only something in proportion to them."""

    work: Work
    plan: Any
    seconds: float


@dataclass(frozen=True)
class Group:
    """Plans of one product that were measured together; exact: their times are seconds."""

    name: str
    plans: tuple[Measured, ...]
    exact: bool


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


@cache
def planned(specialization: Any, machine: Target) -> tuple[Any, Any]:
    """(kernel, plan) of a specialization of the product."""
    described = signature(specialization)
    module = trace(_product.kernel.fn, described)
    return kernel_of(module), plan(module, PassContext(machine, described.options))


def work_and_plan(
    shape: tuple[int, int, int], majors: str, given: dict[str, Any], machine: Target
) -> tuple[Work, Any]:
    """What a product's programs do, and the plan that options make."""
    (m, n, k), kernel = shape, _product.kernel
    given = dict(given)
    # operands that were copied to rows of whole lines before
    step = LINE if given.pop("padded", False) else 1
    of_k, of_n = (-(-extent // step) * step for extent in (k, n))
    b = f"bf16[{k}:{of_n}, {n}:1]" if majors == "nn" else f"bf16[{k}:1, {n}:{of_k}]"
    values, said = kernel.bound(
        f"bf16[{m}:{of_k}, {k}:1]", b, None, f"bf16[{m}, {n}]", ACTIVATION=None, **given
    )
    infos = kernel._describe(values)
    body, made = planned(kernel._specialize(infos, tuple(said.items())), machine)
    grid = -(-m // given["BM"]), -(-n // given["BN"]), 1
    arguments = tuple(
        i.shape if isinstance(i, ArrayInfo) else i.value
        for i in infos
        if not isinstance(i, Constant)
    )
    return Work.of(body, Sizes(grid, arguments)), made


def groups(machine: Target) -> Iterator[Group]:
    """Everything that was measured of plans with warp roles."""
    for file, by, exact in (
        ("product_choices.csv", ("shape", "majors", "protocol"), "flushed"),
        ("product_plans_hot.csv", ("shape", "race"), ""),
    ):
        found: dict[tuple[str, ...], list[Measured]] = {}
        with (RESULTS / file).open() as table:
            for row in csv.DictReader(table):
                if not re.match(r"\d+x\d+x\d+", row["plan"]) or "operand" in row["plan"]:
                    continue
                shape = tuple(map(int, row["shape"].split("x")))
                given = options(row["plan"])
                work, made = work_and_plan(shape, row.get("majors", "nn"), given, machine)
                if made.roles != "one":
                    seconds = float(row["us"]) / 1e6 if "us" in row else 1 / float(row["x cuBLAS"])
                    key = tuple(row[name] for name in by)
                    found.setdefault(key, []).append(Measured(work, made, seconds))
        for key, plans in found.items():
            if len(plans) > 2:
                yield Group(" ".join(key), tuple(plans), bool(exact) and key[-1].startswith(exact))


def judged(group: Group, machine: Target) -> tuple[float, float]:
    """(logarithm of how much slower the model's choice is than the best plan, mean error)."""
    predicted = [cost(m.work, m.plan, machine).seconds for m in group.plans]
    least, best = min(predicted), min(m.seconds for m in group.plans)
    weights = [exp(-log(p / least) / CLOSE) for p in predicted]
    slower = [log(m.seconds / best) for m in group.plans]
    regret = sum(w * s for w, s in zip(weights, slower, strict=True)) / sum(weights)
    if not group.exact:
        return regret, 0.0
    quickest = sorted(zip(group.plans, predicted, strict=True), key=lambda x: x[0].seconds)[:TOP]
    return regret, statistics.mean(abs(log(p / m.seconds)) for m, p in quickest)


def loss(measured: list[Group], machine: Target) -> float:
    """How bad a device's costs are."""
    both = [judged(group, machine) for group in measured]
    return statistics.mean(2 * regret + error / 2 for regret, error in both)


def changed(device: Device, section: str, name: str, factor: float) -> Device:
    """A device of which one number is another."""
    old = getattr(device, section)
    return replace(device, **{section: replace(old, **{name: getattr(old, name) * factor})})


def fit(measured: list[Group], machine: Target, rounds: int, say: Callable[[str], None]) -> Device:
    """The device with the costs that are best."""

    def tried(device: Device) -> float:
        other = replace(machine)
        other.__dict__["device"] = device
        return loss(measured, other)

    device, shuffle = machine.device, random.Random(0)
    numbers = [("rates", name) for name in RATES] + [("costs", name) for name in COSTS]
    steps, best = dict.fromkeys(numbers, 0.3), tried(device)
    for turn in range(rounds):
        shuffle.shuffle(numbers)
        for number in numbers:
            for factor in (1 + steps[number], 1 / (1 + steps[number])):
                other = changed(device, *number, factor)
                if (found := tried(other)) < best:
                    device, best = other, found
                    break
            else:
                steps[number] *= 0.6
        say(f"round {turn + 1}: {best:.5f}")
    return device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--rounds", type=int, default=0)
    given = parser.parse_args()
    machine = target(given.target)
    measured = list(groups(machine))
    device = fit(measured, machine, given.rounds, print)
    for section, names in (("rates", RATES), ("costs", COSTS)):
        print(*(f"{name} {getattr(getattr(device, section), name):.4g}" for name in names))
    fitted = replace(machine)
    fitted.__dict__["device"] = device
    both = [(group, *judged(group, fitted)) for group in measured]
    for group, regret, error in both:
        print(
            f"{group.name:40} {100 * (exp(regret) - 1):5.1f} % slower, error {100 * error:5.1f} %"
        )
    print(
        f"{len(both)} products: mean {100 * statistics.mean(r for _, r, _ in both):.2f} % slower"
        " than the best plan, median error"
        f" {100 * statistics.median(e for g, _, e in both if g.exact):.1f} %"
    )


if __name__ == "__main__":
    main()
