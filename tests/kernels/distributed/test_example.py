"""A layer of a Llama on two ranks is that of one rank."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import example

PROGRAM = Path(__file__).parents[3] / "examples" / "tensor_parallel.py"


def test_two_ranks_give_what_one_does():
    (case,) = example("tensor_parallel").cases("cpu")
    case["run"]()
    assert case["error"]() <= case["tolerance"]


def test_two_processes_give_what_one_does():
    """As torchrun starts them: what it would tell each is in its environment."""
    told = os.environ | {
        "WORLD_SIZE": "2",
        "MASTER_PORT": str(os.getpid()),
        "CUDA_VISIBLE_DEVICES": "",
    }
    started = [
        subprocess.Popen(
            [sys.executable, PROGRAM],
            env=told | {"RANK": str(r), "LOCAL_RANK": str(r)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for r in range(2)
    ]
    for r, process in enumerate(started):
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0 and f"rank {r} of 2: " in said, said


def test_on_gpus_torchrun_starts_it():
    assert not list(example("tensor_parallel").cases("cuda"))
