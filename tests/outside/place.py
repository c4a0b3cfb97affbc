"""A plugin of pytest that puts tkc in Triton's place before tests import it: `-p
tests.outside.place`.

    OUTSIDE_OUTCOMES   a file for outcomes, one a line: outcome, case, the error's first line. A
                       case that fails where it reads the text that Triton's compiler makes, or the
                       words of its errors, is "text" in place of "failed".
    OUTSIDE_MODULES    name=file, …: modules of a checkout that its tests import, and tkc lacks

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
from typing import Any

import pytest

import tkc.runtime.driver
import tkc.triton
from tkc.triton.runtime.driver import GPUTarget, active, properties

tkc.triton.install()


def load_modules(given: str) -> None:
    """Files of a checkout under the names by which its tests import them."""
    for pair in filter(None, given.split(os.pathsep)):
        name, _, path = pair.partition("=")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, pair
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


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
    }
    found = type("Properties", (), numbers)
    cuda.get_device_properties = lambda device=None: found
    cuda.device_count = lambda: 1
    active.get_current_target = lambda: GPUTarget("cuda", 90, 32)  # type: ignore[method-assign]


if not tkc.runtime.driver.available():
    without_gpu()
load_modules(os.environ.get("OUTSIDE_MODULES", ""))


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


def _reason(report: pytest.TestReport) -> str:
    text = str(report.longrepr).strip().splitlines() if report.longrepr else [""]
    errors = [line[2:].strip() for line in text if line.startswith("E  ")]
    return (errors or text[-1:])[0][:200]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = os.environ.get("OUTSIDE_OUTCOMES")
    if not path or report.when != "call" and report.outcome == "passed":
        return
    outcome, reason = report.outcome, ""
    if outcome == "failed" and (reason := _read_text(report)):
        outcome = "text"
    elif outcome != "passed":
        reason = _reason(report)
    with open(path, "a") as file:
        file.write("\t".join((outcome, report.nodeid, reason)).rstrip("\t") + "\n")
        file.flush()
