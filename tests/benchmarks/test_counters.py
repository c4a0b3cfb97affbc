"""Bytes by the counters: what ncu prints, and what is made of it."""

from importlib import import_module

import pytest
from click.testing import CliRunner

from benchmarks import counters, memory_bound
from benchmarks.counters import CASES, counted, main

PRINTED = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "_softmax" - 0: 0%....50%....100% - 1 pass
==PROF== Disconnected from process 4711
"ID","Process ID","Kernel Name","Block Size",\
"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum"
"","","","","byte","byte","ns"
"0","4711","_softmax","(256, 1, 1)","540,016,640","{written}","273,664"
"""


def test_what_ncu_prints_is_read():
    assert counted(PRINTED.format(written="530,000,000")) == {
        counters.READ: 540016640.0,
        counters.WRITTEN: 530000000.0,
        counters.TIME: 273664.0,
    }
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        counted(
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU"
            " Performance Counters\n"
        )
    with pytest.raises(ValueError, match="no kernel"):
        counted("")


def fake(path, text):
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)
    return str(path)


def test_a_row_read_twice_fails(tmp_path, monkeypatch):
    header = f'"Kernel Name","{counters.READ}","{counters.WRITTEN}","{counters.TIME}"'
    once, twice = (
        f'{header}\n"_softmax","{n}","{1 << 29}","1000"' for n in ((1 << 29) + 1000, 1 << 30)
    )
    for text, status in (once, 0), (twice, 1), ("==ERROR== ERR_NVGPUCTRPERM", 2):
        monkeypatch.setenv("TKC_NCU", fake(tmp_path / "ncu", text))
        done = CliRunner().invoke(main, ["softmax-131072"])
        assert done.exit_code == status, done.output


def test_the_cases_are_operations_and_kernels_that_exist():
    names = {operation for operation, _, _ in memory_bound.OPERATIONS}
    kernels = {
        name
        for module in ("losses", "norms", "scans", "selection", "softmax")
        for name in vars(import_module(f"tkc.kernels.{module}"))
    }
    for name, case in CASES.items():
        assert case.operation in names and case.kernel in kernels, name
        assert f"regex:^{case.kernel}$" in CliRunner().invoke(main, ["--show", name]).output
