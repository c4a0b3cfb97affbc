"""Functions of several ranks on GPUs: every case of ranks.py, which runs them in processes that a
hang ends. Two processes without a GPU run the same cases in tests/kernels/distributed.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import ranks
from tests.gpu.ranks import CASES, of_a_death, outcomes

torch = pytest.importorskip("torch")

from tests.gpu import torch_ranks  # noqa: E402

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "tensor_parallel.py")


@pytest.fixture(scope="module")
def became():
    if torch.cuda.device_count() < 2:
        pytest.skip("takes two GPUs")
    return outcomes(list(CASES), cpu=False)


@pytest.mark.xdist_group("two_gpus")
@pytest.mark.parametrize("name", CASES)
def test_two_gpus(name, became):
    assert became[name] == "right"


@pytest.mark.xdist_group("two_gpus")
@pytest.mark.parametrize("in_a_graph", [False, True])
def test_a_rank_that_dies_ends_the_other(became, in_a_graph):
    code, said = of_a_death(cpu=False, in_a_graph=in_a_graph)
    assert code == 1 and "PeerError: rank 1 has died" in said


@pytest.fixture(scope="module")
def of_torch(became):  # one behind the other: both take two GPUs
    return torch_ranks.outcomes(list(torch_ranks.PARTS), cpu=False)


@pytest.mark.xdist_group("two_gpus")
@pytest.mark.parametrize("name", torch_ranks.PARTS)
def test_ops_of_torch(name, of_torch):
    assert of_torch[name] == "right"


@pytest.mark.xdist_group("two_gpus")
def test_the_example(became):
    """A layer of a Llama, by torchrun: each rank compares with what one computes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", EXAMPLE]
    done = subprocess.run(
        command, env=os.environ | ranks.OFF, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "rank 1 of 2: " in done.stdout, done.stdout + done.stderr
