"""A layer of a Llama on two ranks is that of one rank."""

from benchmarks.harness import example


def test_two_ranks_give_what_one_does():
    (case,) = example("tensor_parallel").cases("cpu")
    case["run"]()
    assert case["error"]() <= case["tolerance"]


def test_on_gpus_torchrun_starts_it():
    assert not list(example("tensor_parallel").cases("cuda"))
