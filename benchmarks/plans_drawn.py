"""Attention and rows whose sizes nobody chose: what a call gets by default beside other legal
choices of its one kernel, and beside the time that the timeline predicts.

    python -m benchmarks.plans_drawn attention rows [--count 40] [--seed 7] [--out DIR]
    python -m benchmarks.plans_drawn attention --compile 3/14     a share of the kernels, no GPU
    python -m benchmarks.plans_drawn attention --predict DIR      beside what was measured there

Sizes are log-uniform, half of them multiples of 64. Of attention (bfloat16, S 64 … 32768, D 32 …
256, causal or not, heads shared by one to eight) the choices are blocks of a program, of rows
(softmax, norms, cross-entropy) rows of a program and plans; half of them are the model's best, half
of them random. All choices are timed in turns; then the best of them and the default take
turns again over 8 rounds, L2 flushed by writing before each launch, and that ratio is reported. A
launch that takes less than SHORT is a CUDA graph of GRAPH launches.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tkc
from benchmarks import harness
from benchmarks.product_drawn import GRAPH, SHORT, _rounds
from tkc import kernels

TARGET = "sm_90a"
MOST_FLOPS, MOST_ELEMENTS = 6e11, 1 << 28
CHOICES = 20  # beside the default
TURNS, ROUNDS = 3, 8
LONGEST_ROW = 1 << 17
OPERATIONS = "softmax", "layer_norm", "rms_norm", "cross_entropy"


def _log_uniform(source: random.Random, least: float, most: float) -> float:
    return math.exp(source.uniform(math.log(least), math.log(most)))


def _extent(source: random.Random, least: int, most: int) -> int:
    multiple = source.choice((64, 64, 8, 1))
    return max(1, round(_log_uniform(source, least, most) / multiple)) * multiple


@dataclass(frozen=True)
class Launch:
    """A launch as a call makes it, and with other arguments by name."""

    kernel: Any
    grid: Any
    args: tuple
    kwargs: dict[str, Any]

    def run(self) -> None:
        self.kernel[self.grid](*self.args, **self.kwargs)


@dataclass(frozen=True)
class Attention:
    """A call of `kernels.attention`."""

    batch: int
    heads: int
    shared: int
    length: int
    d: int
    causal: bool

    @classmethod
    def drawn(cls, source: random.Random) -> Attention:
        while True:
            length = _extent(source, 64, 32768)
            d = max(2, round(_log_uniform(source, 32, 256) / 16)) * 16
            heads, batch = (round(_log_uniform(source, 1, 64)) for _ in range(2))
            shared = max(1, heads // source.choice((1, 1, 4, 8)))
            found = cls(batch, heads // shared * shared, shared, length, d, source.random() < 0.5)
            if 4 * batch * found.heads * length**2 * d <= MOST_FLOPS * (1 + found.causal):
                return found

    def __str__(self) -> str:
        kind = "causal" if self.causal else "full"
        return f"{self.batch}x{self.heads}/{self.shared}x{self.length}x{self.d}-{kind}"

    def call(self, made: Callable[..., Any]) -> Any:
        q = made(self.batch, self.heads, self.length, self.d)
        k, v = (made(self.batch, self.shared, self.length, self.d) for _ in range(2))
        return kernels.attention(q, k, v, causal=self.causal)

    def others(
        self, launch: Launch, source: random.Random, count: int
    ) -> Iterator[tuple[str, Launch]]:
        """The estimate's best and as many random blocks of those that registers hold."""
        from tkc.kernels.attention_blocks import options_of
        from tkc.passes.planning import attention as planner

        machine, what = tkc.target(TARGET), self.described()
        found = sorted(
            planner.blocks(what, machine.shared_bytes),
            key=lambda block: planner.seconds(block, what, machine.device),
        )
        best, rest = found[: count // 2], found[count // 2 :]
        plain = {k: v for k, v in launch.kwargs.items() if k not in ("programs", "num_warps")}
        for block in [*best, *source.sample(rest, min(count - len(best), len(rest)))]:
            options = options_of(*launch.args[:2], block)
            width = block.width(self.d)
            options |= {"BM": block.rows, "BN": block.columns, "D": width, "DV": width}
            changed = Launch(
                launch.kernel,
                (tkc.cdiv(self.length, block.rows), *launch.grid[1:]),
                launch.args,
                plain | options,
            )
            yield self.chosen(changed), changed

    def predicted(self, launch: Launch, follows: bool) -> float:
        """Seconds by the estimate that chose. follows: one launch after another."""
        from tkc.passes.planning import attention as planner

        k, device = launch.kwargs, tkc.target(TARGET).device
        padded = (tkc.AttentionBlock(k["BM"], k["BN"], 1, n) for n in planner.STEPS)
        block = next(block for block in padded if block.width(self.d) == k["D"])
        block = block._replace(co_resident=k.get("programs", 1))
        times, seconds = device.attention, planner.seconds(block, self.described(), device)
        return seconds - follows * (times.launch - times.later_launch)

    def described(self) -> Any:
        """What is launched, as the estimate of blocks takes it."""
        moved = 4 * self.batch * self.length * (self.heads + self.shared) * self.d
        widths, sequences = (self.d, self.d), self.batch * self.heads
        return tkc.AttentionLaunch(
            sequences,
            self.length,
            self.length,
            self.length,
            self.causal,
            0,
            widths,
            moved,
        )

    def chosen(self, launch: Launch) -> str:
        k = launch.kwargs
        side = k.get("programs", 1)
        wide = f" D={k['D']}" if k["D"] != self.d else ""
        return f"{k['BM']}x{k['BN']}{f'x{side}' * (side > 1)}{wide}"


@dataclass(frozen=True)
class Rows:
    """A call of a function of rows."""

    operation: str
    rows: int
    columns: int

    @classmethod
    def drawn(cls, source: random.Random) -> Rows:
        while True:
            columns = _extent(source, 64, LONGEST_ROW)
            rows = _extent(source, 64, 65536)
            if 1 << 18 <= rows * columns <= MOST_ELEMENTS and columns <= LONGEST_ROW:
                return cls(source.choice(OPERATIONS), rows, columns)

    def __str__(self) -> str:
        return f"{self.operation}-{self.rows}x{self.columns}"

    def call(self, made: Callable[..., Any]) -> Any:
        x = made(self.rows, self.columns)
        if self.operation == "softmax":
            return kernels.softmax(x)
        if self.operation == "cross_entropy":
            return kernels.cross_entropy(x, made(self.rows, integer=True))
        w = made(self.columns)
        return kernels.layer_norm(x, w, w) if "layer" in self.operation else kernels.rms_norm(x, w)

    def others(
        self, launch: Launch, source: random.Random, count: int
    ) -> Iterator[tuple[str, Launch]]:
        """The model's best and as many random plans, of programs of one to sixteen rows."""
        from tkc.runtime.tuning import Config, rank

        plain = {k: v for k, v in launch.kwargs.items() if k in launch.kernel.names}
        values, options = launch.kernel.bound(*launch.args, **plain)
        block = launch.kwargs["COLUMNS"]
        most = max(launch.kwargs["ROWS"], min(16, (1 << 15) // block))
        configs = [Config(ROWS=1 << i) for i in range(5) if 1 << i <= most]
        at = launch.kernel.names.index("ROWS")

        def extents(given: Any) -> tuple[int, int, int]:
            return tkc.cdiv(self.rows, given[at]), 1, 1

        found, _ = rank(launch.kernel, values, options, configs, extents, TARGET, 1 << 30)
        # what was launched is a configuration, too
        found = [c for c in found if not dict(c.config.items).items() <= launch.kwargs.items()]
        best, rest = found[: count // 2], found[count // 2 :]
        for candidate in [*best, *source.sample(rest, min(count // 2, len(rest)))]:
            changed = dict(candidate.config.items)
            grid = tkc.cdiv(self.rows, changed["ROWS"])
            yield _said(changed), Launch(launch.kernel, grid, launch.args, plain | changed)

    def predicted(self, launch: Launch, follows: bool) -> float:
        """Seconds by the estimate that chose. follows: one launch after another."""
        with tkc.handed(lambda *_: None, target=TARGET):
            found = launch.kernel.predict(
                *launch.args, grid=launch.grid, target=TARGET, **launch.kwargs
            )
        times = tkc.target(TARGET).device.moving
        return found.seconds - follows * (times.launch - times.later_launch)

    def chosen(self, launch: Launch) -> str:
        chosen = "ROWS", "num_warps", "num_ctas", "persistent"
        return _said({k: v for k, v in launch.kwargs.items() if k in chosen})


KINDS = {"attention": Attention, "rows": Rows}


def _said(changed: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in changed.items())


def drawn(kind: str, seed: int, count: int) -> list[Any]:
    """The first calls of a seed."""
    source = random.Random(f"{kind} {seed}")
    return [KINDS[kind].drawn(source) for _ in range(count)]


def choices(case: Any, made: Callable[..., Any], count: int = CHOICES) -> dict[str, Launch]:
    """The default and the others by what they are; the default under "". Arrays in host memory
    count as being on the GPU.
    """
    found: list[Launch] = []

    def take(kernel: Any, grid: Any, args: tuple, kwargs: dict) -> None:
        first = kernel.constexpr.index(True)  # what is chosen is named
        named = dict(zip(kernel.names[first:], args[first:], strict=False))
        found.append(Launch(kernel, grid, args[:first], named | kwargs))

    with tkc.handed(take, target=TARGET):
        case.call(made)
        (launch,) = found
        return {"": launch, **dict(case.others(launch, random.Random(str(case)), count))}


def blank(*shape: int, integer: bool = False) -> Any:
    """An array in host memory that nobody reads."""
    import ml_dtypes

    return np.zeros(shape, np.int64 if integer else ml_dtypes.bfloat16)


# ---- without a GPU
def compile_share(cases: list[Any], count: int) -> None:
    """The kernels of all choices, assembled, into the disk cache."""
    from tkc.runtime.launch import cubin

    for name, launch in (pair for case in cases for pair in choices(case, blank, count).items()):
        try:
            values, options = launch.kernel.bound(*launch.args, **launch.kwargs)
            infos = launch.kernel._describe(values)
            made = launch.kernel._specialize(infos, tuple(options.items()))
            cubin(launch.kernel._get(made, TARGET))
        except tkc.Error as error:
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)


def predict(cases: list[Any], folder: Path) -> None:
    """Predicted beside measured: of the default, and of the best."""
    rows = {
        row["case"]: row
        for path in sorted(folder.glob("plans_drawn_*.jsonl"))
        for row in map(json.loads, path.read_text().splitlines())
    }
    pairs = []
    for case in cases:
        if (row := rows.get(str(case))) is None:
            continue
        found = case.predicted(choices(case, blank, 0)[""], row["graph"])
        pairs.append((found, row["seconds"][""]))
        print(f"{case!s:40} {pairs[-1][0] * 1e6:9.1f} us predicted, {pairs[-1][1] * 1e6:9.1f}")
    errors = [abs(p / m - 1) for p, m in pairs]
    print(
        f"{len(pairs)} launches: median error {statistics.median(errors):.3f}, rank correlation"
        f" {rank_correlation(pairs):.3f}"
    )


def rank_correlation(pairs: list[tuple[float, float]]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(column)) for column in zip(*pairs, strict=True)]
    return float(np.corrcoef(*ranks)[0, 1])


# ---- on a GPU
def on_gpu(*shape: int, integer: bool = False) -> Any:
    import torch

    if integer:
        return torch.zeros(shape, device="cuda", dtype=torch.int64)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def measured(case: Any, filler: Any, count: int) -> dict[str, Any]:
    """Seconds of each choice, and over rounds of the best beside the default."""
    runs: dict[str, Callable[[], Any]] = {}
    launches = choices(case, on_gpu, count)
    for name, launch in launches.items():
        try:
            launch.run()
        except tkc.Error:
            continue
        runs[name] = launch.run
    first = _medians(_rounds(runs, filler, 2, 1))
    short = first[""] < SHORT
    if short:
        runs = {name: harness.recorded(run, GRAPH).run for name, run in runs.items()}
    repeats = GRAPH if short else 1
    seconds = _medians(_rounds(runs, filler, TURNS, repeats))
    best = min(seconds, key=lambda name: seconds[name])
    again = _rounds({n: runs[n] for n in {"", best}}, filler, ROUNDS, repeats)
    ratio = statistics.median(a / b for a, b in zip(again[""], again[best], strict=True))
    return {
        "case": str(case),
        "chosen": case.chosen(launches[""]),
        "best": best,
        "ratio": ratio,
        "graph": short,
        "seconds": seconds | {"": statistics.median(again[""])},
    }


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def measure(kind: str, cases: list[Any], out: Path, until: float, count: int) -> str:
    """Times the calls one by one; gives the table."""
    import torch

    from benchmarks.harness import FLUSH_BYTES

    filler = torch.zeros(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    rows: list[dict[str, Any]] = []
    with (out / f"plans_drawn_{kind}.jsonl").open("a") as file:
        for case in cases:
            if time.monotonic() > until:
                print(f"no time for {case} and what follows", flush=True)
                break
            try:
                rows.append(measured(case, filler, count))
            except Exception as error:
                print(f"{case}: {type(error).__name__}: {error}".splitlines()[0], flush=True)
                continue
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    if not rows:
        return f"{kind}: nothing was measured"
    rows.sort(key=lambda row: row["ratio"])
    ratios = [row["ratio"] for row in rows]
    return "\n".join(
        [
            *(
                f"{r['case']:40} {r['chosen']:12} {r['seconds'][''] * 1e6:9.1f} us"
                f"  {r['ratio']:.3f} of {r['best']}"
                for r in rows
            ),
            f"{kind}, {len(rows)} calls: default / best: median {statistics.median(ratios):.3f},"
            f" worst {ratios[-1]:.3f}",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--choices", type=int, default=CHOICES, help="beside the default")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=300, help="no further call after so long")
    parser.add_argument("--compile", metavar="I/N", help="compile a share, without a GPU")
    parser.add_argument("--predict", type=Path, help="a folder with measured times")
    asked = parser.parse_args()
    began, tables = time.monotonic(), []
    for i, kind in enumerate(asked.kinds):
        cases = drawn(kind, asked.seed, asked.count)
        if asked.compile:
            share, of = map(int, asked.compile.split("/"))
            compile_share(cases[share::of], asked.choices)
        elif asked.predict:
            predict(cases, asked.predict)
        else:
            asked.out.mkdir(parents=True, exist_ok=True)
            until = began + asked.seconds * (i + 1) / len(asked.kinds)
            tables.append(measure(kind, cases, asked.out, until, asked.choices))
    print("\n\n".join(tables))


if __name__ == "__main__":
    sys.exit(main())
