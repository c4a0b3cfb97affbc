"""A plugin of pytest that puts tkc in Triton's place before tests import it: `-p
tests.outside.place`.

    OUTSIDE_OUTCOMES   a file for outcomes, one a line: outcome, case, the error's first line. A
                       case that fails where it reads the text that Triton's compiler makes, or the
                       words of its errors, is "text" in place of "failed".
    OUTSIDE_MODULES    name=file, …: modules of a checkout that its tests import, and tkc lacks
    OUTSIDE_BARE       name=folder: a package whose `__init__` is not run
    OUTSIDE_EACH       cases of each test function that run (0: all), chosen by their names
    OUTSIDE_MIXED      1: cases run in an order by their names' hashes, so that the first ones of a
                       run that is stopped are a sample of all
    OUTSIDE_COLLECTED  a file for the names of all cases, before that choice
    OUTSIDE_TRITON     1: Triton itself stays in its place, to see what it passes

On a machine without a GPU, tests that were written for one run in host memory: what they allocate
on "cuda" is there, and they are told that kernels compile for Hopper.
"""

from __future__ import annotations

import contextlib
import importlib.util
import linecache
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tkc.runtime.driver
import tkc.triton
from tests.outside.cases import chosen, chosen_of_each
from tkc.triton.runtime.driver import GPUTarget, active, properties

ITSELF = os.environ.get("OUTSIDE_TRITON") == "1"
if not ITSELF:
    tkc.triton.install()


def load_modules(given: str) -> None:
    """Files of a checkout under the names by which its tests import them."""
    for pair in filter(None, given.split(os.pathsep)):
        name, _, path = pair.partition("=")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, pair
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def bare_package(given: str) -> None:
    """A package that has its modules, and nothing of its own."""
    name, _, folder = given.partition("=")
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = [folder]


def _on_host(device: Any) -> Any:
    """A device of torch, with the host in a GPU's place; what is no device is as it was."""
    import torch

    named = isinstance(device, (torch.device, str))
    return torch.device("cpu") if named and str(device).partition(":")[0] == "cuda" else device


def without_gpu() -> None:
    """Host memory in a GPU's place, for torch and for what tests ask of the driver."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Host(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            given = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                return args[0]
            if "device" in given:
                given["device"] = _on_host(given["device"])
            if func is torch.Tensor.to:
                args = (args[0], *map(_on_host, args[1:]))
            return func(*args, **given)

    Host().__enter__()
    torch.nn.Module.cuda = lambda module, device=None: module  # type: ignore[method-assign]
    chip = properties()
    cuda = torch.cuda
    cuda.synchronize = lambda device=None: None
    cuda.current_device = lambda: 0
    cuda.device = lambda device=None: contextlib.nullcontext()
    cuda.get_device_capability = lambda device=None: (9, 0)
    cuda.get_device_name = lambda device=None: "NVIDIA H100"
    numbers = {
        "name": "NVIDIA H100",
        "major": 9,
        "minor": 0,
        "multi_processor_count": chip["multiprocessor_count"],
        "shared_memory_per_block_optin": chip["max_shared_mem"],
        "total_memory": 80 << 30,
        "regs_per_multiprocessor": chip["max_num_regs"],
        "max_threads_per_multi_processor": 2048,
        "warp_size": chip["warpSize"],
        "gcnArchName": "",
    }
    found = type("Properties", (), numbers)
    cuda.get_device_properties = lambda device=None: found
    cuda.device_count = lambda: 1
    active.get_current_target = lambda: GPUTarget("cuda", 90, 32)  # type: ignore[method-assign]


if not tkc.runtime.driver.available():
    without_gpu()
if os.environ.get("OUTSIDE_BARE"):
    bare_package(os.environ["OUTSIDE_BARE"])
load_modules(os.environ.get("OUTSIDE_MODULES", ""))


# ---- which cases run
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps OUTSIDE_EACH cases of each function, and writes down the names of all."""
    names = [item.nodeid for item in items]
    listing = os.environ.get("OUTSIDE_COLLECTED")
    if listing and _worker(config) in ("", "gw0"):
        Path(listing).write_text("".join(f"{name}\n" for name in names))
    each = int(os.environ.get("OUTSIDE_EACH", "0"))
    if each:
        kept = set(chosen_of_each(names, each))
        items[:] = [item for item in items if item.nodeid in kept]
    if os.environ.get("OUTSIDE_MIXED") == "1":
        places = {name: i for i, name in enumerate(chosen(names, len(names)))}
        items.sort(key=lambda item: places[item.nodeid])


# ---- processes that share the cases (pytest-xdist)
def _worker(config: pytest.Config) -> str:
    """The name of the process that runs cases for another one; "" where there is one alone."""
    return getattr(config, "workerinput", {}).get("workerid", "")


_lost: list[str] = []  # cases after which this process's GPU context is of no more use
LOST_CONTEXT = re.compile(r"CUDA error|CUDA_ERROR|TrapError|illegal memory access")


def pytest_configure(config: pytest.Config) -> None:
    if _worker(config):
        config.pluginmanager.register(_Worker(), "tests-outside-worker")
        os.environ.pop("OUTSIDE_OUTCOMES", None)  # the process in charge writes them


class _Worker:
    """Ends a process whose GPU context an access has broken: xdist starts another."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and LOST_CONTEXT.search(str(report.longrepr)):
            _lost.append(report.nodeid)

    def pytest_runtest_logfinish(self) -> None:
        if _lost:
            os._exit(3)


# Lines of tests that read what Triton's own compiler writes
TEXTS = re.compile(r"\basm\b|\bptx\b|\bsass\b|\bttg?ir\b|\bllir\b|\bamdgcn\b")
WORDS = re.compile(r"__cause__|error_message|error_msg")


def _read_text(report: pytest.TestReport) -> str:
    """What of Triton's text a case failed to find; "" where it failed at something else."""
    trace = getattr(report.longrepr, "reprtraceback", None)
    for entry in trace.reprentries if trace else ():
        place = getattr(entry, "reprfileloc", None)
        line = linecache.getline(str(Path(place.path).resolve()), place.lineno) if place else ""
        if found := TEXTS.search(line):
            return f"reads the {found[0]} of Triton's compiler"
        if WORDS.search(line):
            return "reads the words of Triton's errors"
    return ""


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    text = str(report.longrepr).strip().splitlines() if report.longrepr else [""]
    errors = [line[2:].strip() for line in text if line.startswith("E  ")]
    return (errors or text[-1:])[0][:200]


def _write(outcome: str, case: str, reason: str) -> None:
    if path := os.environ.get("OUTSIDE_OUTCOMES"):
        with open(path, "a") as file:
            file.write("\t".join((outcome, case, reason)).rstrip("\t") + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    outcome, reason = report.outcome, ""
    if outcome == "failed" and (reason := _read_text(report)):
        outcome = "text"
    elif outcome != "passed":
        reason = _reason(report)
    _write(outcome, report.nodeid, reason)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file whose tests cannot be read counts as a failed case."""
    if report.failed:
        _write("failed", f"{report.nodeid}::", _reason(report))
