"""Functions of several ranks on GPUs: every case of ranks.py, which runs them in processes that a
hang ends. Two processes without a GPU run the same cases in tests/kernels/distributed.
"""

import pytest

from tests.gpu.ranks import CASES, of_a_death, outcomes


@pytest.fixture(scope="module")
def became():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("takes two GPUs")
    return outcomes(list(CASES), cpu=False)


@pytest.mark.xdist_group("two_gpus")
@pytest.mark.parametrize("name", CASES)
def test_two_gpus(name, became):
    assert became[name] == "right"


@pytest.mark.xdist_group("two_gpus")
def test_a_rank_that_dies_ends_the_other(became):
    code, said = of_a_death(cpu=False)
    assert code == 1 and "PeerError: rank 1 has died" in said
