"""`triton.testing`: how long calls take, tables and pictures of it, comparisons."""

from __future__ import annotations

import csv
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tkc.ir.target import target
from tkc.runtime import driver as tkc_driver
from tkc.triton.runtime.driver import active, framework, properties

MODES = ("min", "max", "mean", "median", "all")


def _summary(times: Sequence[float], quantiles: Any, return_mode: str) -> Any:
    if return_mode not in MODES:
        raise ValueError(f"return_mode is one of {', '.join(MODES)}, got {return_mode!r}")
    if quantiles is not None:
        found = [float(q) for q in np.quantile(np.asarray(times), list(quantiles))]
        return found[0] if len(found) == 1 else found
    if return_mode == "all":
        return list(times)
    return float(
        {"min": min, "max": max}.get(return_mode, getattr(statistics, return_mode, min))(times)
    )


def _gpu_times(fn: Callable, warmup: float, rep: float, before: Callable[[], None]) -> list[float]:
    """Milliseconds between events, the L2 cache flushed before each call."""
    torch = framework()
    cache = active.get_empty_cache_for_benchmark()

    def timed(count: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for start, end in events:
            before()
            active.clear_cache(cache)
            start.record()
            fn()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    estimate = max(statistics.mean(timed(5)), 1e-3)
    for _ in range(max(1, int(warmup / estimate))):
        fn()
    return timed(max(1, int(rep / estimate)))


def _host_times(fn: Callable, warmup: float, rep: float, before: Callable[[], None]) -> list[float]:
    """Milliseconds by the clock."""

    def timed() -> float:
        before()
        began = time.perf_counter()
        fn()
        return (time.perf_counter() - began) * 1e3

    estimate = max(timed(), 1e-3)
    for _ in range(min(int(warmup / estimate), 1000)):
        fn()
    return [timed() for _ in range(max(1, min(int(rep / estimate), 1000)))]


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Any = None,
    quantiles: Any = None,
    return_mode: str = "mean",
) -> Any:
    """Milliseconds of a call: their mean, another statistic, or quantiles. warmup, rep:
    milliseconds of calls before, and that are measured.
    """
    fn()

    def before() -> None:
        for x in grad_to_none or ():
            x.grad = None

    on_gpu = tkc_driver.available() and framework().cuda.is_available()
    measured = _gpu_times if on_gpu else _host_times
    return _summary(measured(fn, warmup, rep, before), quantiles, return_mode)


def do_bench_cudagraph(
    fn: Callable[[], Any],
    rep: float = 20,
    grad_to_none: Any = None,
    quantiles: Any = None,
    return_mode: str = "mean",
) -> Any:
    """As do_bench: a launch of tkc costs the host little more than the driver's own call."""
    return do_bench(fn, rep, rep, grad_to_none, quantiles, return_mode)


# --------------------------------------------------------------------------------------------------
@dataclass
class Benchmark:
    """What is measured: a function over x_vals (named x_names), a line for each of line_vals."""

    x_names: Sequence[str]
    x_vals: Sequence[Any]
    line_arg: str
    line_vals: Sequence[Any]
    line_names: Sequence[str]
    plot_name: str
    args: dict[str, Any]
    xlabel: str = ""
    ylabel: str = ""
    x_log: bool = False
    y_log: bool = False
    styles: Any = None
    colors: Any = None
    rows: list[list[Any]] = field(default_factory=list)


class Mark:
    """A function with what is measured of it."""

    def __init__(self, fn: Callable, benchmarks: Any):
        self.fn, self.benchmarks = fn, benchmarks

    def _measured(self, bench: Benchmark, kwargs: dict[str, Any]) -> list[list[Any]]:
        rows = []
        for x in bench.x_vals:
            given = x if isinstance(x, (tuple, list)) else [x] * len(bench.x_names)
            row: list[Any] = list(given)
            for line in bench.line_vals:
                named = dict(zip(bench.x_names, given, strict=True)) | {bench.line_arg: line}
                found = self.fn(**named, **bench.args, **kwargs)
                row.append(found[0] if isinstance(found, (tuple, list)) else found)
            rows.append(row)
        return rows

    def run(
        self,
        show_plots: bool = False,
        print_data: bool = False,
        save_path: str = "",
        return_df: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Measures; prints, and writes a table (and a picture, with matplotlib) to save_path. Gives
        the rows, as pandas' tables where that is installed and return_df.
        """
        single = isinstance(self.benchmarks, Benchmark)
        tables = []
        for bench in [self.benchmarks] if single else self.benchmarks:
            bench.rows = self._measured(bench, kwargs)
            header = [*bench.x_names, *(f"{n} ({bench.ylabel})" for n in bench.line_names)]
            if print_data:
                print(f"{bench.plot_name}:")
                for row in [header, *bench.rows]:
                    print("  ".join(f"{_cell(c):>16}" for c in row))
            if save_path:
                _saved(bench, header, Path(save_path))
            tables.append(_table(header, bench.rows))
        if not return_df:
            return None
        return tables[0] if single else tables


def _cell(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _table(header: list[str], rows: list[list[Any]]) -> Any:
    if importlib.util.find_spec("pandas") is None:
        return [header, *rows]
    return importlib.import_module("pandas").DataFrame(rows, columns=header)


def _saved(bench: Benchmark, header: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{bench.plot_name}.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *bench.rows])
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.add_subplot()
    first = len(bench.x_names)
    for i, name in enumerate(bench.line_names):
        axes.plot([r[0] for r in bench.rows], [r[first + i] for r in bench.rows], label=name)
    axes.set(xlabel=bench.xlabel or bench.x_names[0], ylabel=bench.ylabel)
    axes.set_xscale("log" if bench.x_log else "linear")
    axes.set_yscale("log" if bench.y_log else "linear")
    axes.legend()
    figure.savefig(folder / f"{bench.plot_name}.png")


def perf_report(benchmarks: Any) -> Callable[[Callable], Mark]:
    """Marks a function as what benchmarks measure."""
    return lambda fn: Mark(fn, benchmarks)


# --------------------------------------------------------------------------------------------------
def assert_close(
    x: Any, y: Any, atol: float | None = None, rtol: float | None = None, err_msg: str = ""
) -> None:
    """Raises AssertionError where two arrays are not close: within 0.01 unless told otherwise."""
    left, right = (_numbers(v) for v in (x, y))
    np.testing.assert_allclose(
        left,
        right,
        atol=1e-2 if atol is None else atol,
        rtol=0.0 if rtol is None else rtol,
        err_msg=err_msg,
        equal_nan=True,
    )


def _numbers(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64)


def get_dram_gbps(device: int | None = None) -> float:
    """GB/s between memory and chip."""
    p = properties(device or 0)
    return p["mem_clock_rate"] * p["mem_bus_width"] * 2 / 1e6 / 8


def get_max_tensorcore_tflops(dtype: Any, clock_rate: float, device: int | None = None) -> float:
    """10¹² operations a second of the tensor cores, of 16-bit floats; twice as many of 8 bits, half
    as many of tf32. clock_rate: kHz.
    """
    chip = target("sm_90a").device.chip
    size = getattr(dtype, "itemsize", 2)
    rate = chip.tensor * 2 / size
    return chip.multiprocessors * clock_rate * 1e3 * rate * 2 * 1e-12
