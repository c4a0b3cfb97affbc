"""Cases that run on two GPUs (tests/gpu/ranks.py) are right of two processes of this host."""

from tests.gpu.ranks import outcomes

NAMES = ["memory", "peers", "signal", "all_reduce, two shots", "all_to_all", "dispatch and combine"]


def test_cases_are_right_of_processes():
    assert outcomes(NAMES, cpu=True) == dict.fromkeys(NAMES, "right")
