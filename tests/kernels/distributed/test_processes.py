"""Ranks as processes of one host, over shared memory; one that dies; gloo's, where torch is."""

import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

SUMS = """
import sys
import numpy as np
from tkc.kernels import distributed

name, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
group = distributed.Processes(name, rank, world, 300)
for turn in range(3):
    y = distributed.all_reduce(np.full(100, rank + turn, np.float32), group)
    assert (y == sum(r + turn for r in range(world))).all(), y
    {then}
group.close()
print("right")
"""
GLOO = """
import sys
import numpy as np
import torch.distributed as dist
from tkc.kernels import distributed

file, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world)
y = distributed.all_reduce(np.full(100, rank, np.float32), distributed.group_of_torch(None, 300))
assert (y == sum(range(world))).all(), y
print("right")
"""


def started(program, name, world=2):
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, name, str(rank), str(world)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]


def test_processes_share_memory():
    ranks = started(SUMS.format(then="pass"), f"tkc-{uuid.uuid4().hex}")
    for rank in ranks:
        said, _ = rank.communicate(timeout=300)
        assert rank.returncode == 0 and said.endswith("right\n"), said


def test_a_process_that_does_not_close_its_group_leaves_nothing():
    """No segment of shared memory, of which Python would warn, and no file."""
    name = f"tkc-{uuid.uuid4().hex}"
    for rank in started(SUMS.replace("group.close()", "").format(then="pass"), name):
        said, _ = rank.communicate(timeout=300)
        assert rank.returncode == 0 and said == "right\n", said
    assert not [*Path("/dev/shm").glob(f"{name}*"), *Path(tempfile.gettempdir()).glob(f"{name}*")]


def test_a_process_that_dies_ends_the_others():
    """However it dies: here without a word, between two calls."""
    dying = "import os; rank == 1 and turn == 1 and os._exit(7)"
    ranks = started(SUMS.format(then=dying), f"tkc-{uuid.uuid4().hex}")
    ranks[1].wait(300)
    died = time.monotonic()
    said, _ = ranks[0].communicate(timeout=300)
    assert ranks[1].returncode == 7 and ranks[0].returncode == 1
    assert "PeerError" in said and "rank 1 has died" in said, said
    assert time.monotonic() - died < 60  # a second of it is the watch, the rest a busy machine


def test_gloo_finds_them(tmp_path):
    pytest.importorskip("torch.distributed")
    for rank in started(GLOO, str(tmp_path / "store")):
        said, _ = rank.communicate(timeout=300)
        assert rank.returncode == 0 and said.endswith("right\n"), said
