"""`torch.library.wrap_triton` and `triton_op` with tkc's kernels, eager and under torch.compile, in
host memory. Skipped where torch is not installed.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import tkc.triton

tkc.triton.install()

import torch
import torch._inductor.config as inductor
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton_op("wrapped::add", mutates_args={})
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), 128)
    return out


x, y = torch.randn(1000), torch.randn(1000)
torch.testing.assert_close(add(x, y), x + y)
inductor.cpu_backend = "triton"
torch.testing.assert_close(torch.compile(lambda a, b: add(a, b).sin())(x, y), (x + y).sin())
assert len(add_kernel.kernels) == 1
print("right")
"""


def test_operators_of_triton_kernels(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["right"], done.stderr[-3000:]
