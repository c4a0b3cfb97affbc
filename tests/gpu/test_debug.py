"""TKC_DEBUG=1 on a GPU: what traps is a TrapError that names line, numbers, barrier and phase; what
is right runs as it did. Each trap ends a child process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.sanitized import examples
from tests.gpu.trapping import KERNELS

ROOT = Path(__file__).parents[2]


def child(*command: str, seconds: int = 60, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"TKC_DEBUG": "2", "PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


@pytest.mark.parametrize("name", KERNELS)
def test_what_traps_is_named(name):
    done = child("-m", "tests.gpu.trapping", name)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]


@pytest.mark.parametrize("name", examples("cuda"))
def test_examples_run_as_before(name, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("TKC_DEBUG", "1")
    for case in examples("cuda")[name]():
        case["run"]()
        torch.cuda.synchronize()
        assert case["error"]() <= case["tolerance"]


def test_a_graph_is_captured(monkeypatch):
    """Where a stream is captured a checked launch does not wait."""
    torch = pytest.importorskip("torch")
    from tests.runtime.kernels import add, grid

    monkeypatch.setenv("TKC_DEBUG", "1")
    x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    add[grid](x, x, out, 1000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add[grid](x, out, out, 1000)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), 3)
