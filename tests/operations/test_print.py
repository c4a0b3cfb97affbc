"""tkc.print: the same line at level 0, on the CPU and in the format of the GPU's printf."""

import os
import re
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tkc


@tkc.jit
def telling(x, b, n, N: tkc.constexpr):
    tkc.print("n is", n, "{50%}", tkc.load(x, (0,), (N,)), n > 3, N, tkc.load(b, (0,), (N,)))


@pytest.mark.parametrize("how", ["cpu", "TKC_INTERPRET", "TKC_SIM"])
def test_values_stand_where_they_were_given(how, capfd, monkeypatch):
    if how != "cpu":
        monkeypatch.setenv(how, "1")
    telling[1](np.array([1, 2.5], np.float32), np.array([3, -4], ml_dtypes.bfloat16), 7, 2)
    assert capfd.readouterr().out.strip() == "n is 7 {50%} [1.  2.5] True 2 [3 -4]"


def formats(*arguments, **how) -> list[str]:
    """What the printf's of the PTX say."""
    ptx = telling.compile(*arguments, **how).ptx
    return [
        bytes(map(int, m[1].split(","))).decode().rstrip("\n\0")
        for m in re.finditer(r"\.b8 message\d+\[\d+\] = \{([\d, ]+)\}", ptx)
    ]


def test_the_lines_of_a_gpu():
    """An element a line, of each tile; a per cent sign of the text is none of printf's."""
    for target in ("sm_80", "sm_90a"):
        assert set(formats("f32[2]", "bf16[2]", "i32", 2, target=target)) == {
            "n is %d {50%%} [%d] %g %d 2 [...]",
            "n is %d {50%%} [...] %d 2 [%d] %g",
        }


def test_without_tiles_there_is_one_line():
    @tkc.jit
    def scalars(n, m):
        tkc.print(n, m, "100%")

    ptx = scalars.compile("i32", "u64", target="sm_80").ptx
    (data,) = re.findall(r"\.b8 message\d+\[\d+\] = \{([\d, ]+)\}", ptx)
    assert (
        bytes(map(int, data.split(","))) == b"%d %llu 100%%\n\0"
        and ptx.count("vprintf, (f, a)") == 1
    )


@pytest.mark.gpu
def test_what_a_gpu_prints():
    program = (
        "import torch\nfrom tests.operations.test_print import telling\ntelling[1](torch.tensor([1,"
        " 2.5], device='cuda'), torch.tensor([3, -4], device='cuda', dtype=torch.bfloat16), 7,"
        " 2)\ntorch.cuda.synchronize()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert sorted(done.stdout.splitlines()) == sorted(
        [
            "n is 7 {50%} [0] 1 1 2 [...]",
            "n is 7 {50%} [1] 2.5 1 2 [...]",
            "n is 7 {50%} [...] 1 2 [0] 3",
            "n is 7 {50%} [...] 1 2 [1] -4",
        ]
    ), done.stdout + done.stderr
