"""Every pass on every kernel of the library and of the examples, before and after, in both
arithmetics: launches with TKC_VALIDATE=1. tests/sim/test_validate.py has the kernels of the tests.
In a sample (tests/sampling.py) most of the last passes are compared together.
"""

import sys
from functools import partial

import pytest

from tests.gpu.sanitized import examples, library, numbers
from tests.sampling import sampled
from tkc.runtime import simulate
from tkc.runtime.jit import Launchable
from tkc.sim import validate

TARGETS = pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
# kernels with a while loop, which may not end in ring arithmetic
WITHOUT_RING = {
    "_candidates",
    "_cumsum",
    "_embedding_backward",
    "_sample",
    "_sparsemax",
    "cumulative_sum",
}
# Passes of whose programs a run takes the longest, and that use no facts of real numbers, which
# would leave out ring arithmetic for the others. Compared with the next one by name, each is one of
# seven days compared by itself: what one breaks is found, and TKC_TEST_SEED=all says which it was.
LONG = (
    "swizzle-shared",
    "pipeline-async-copies",
    "schedule-warpgroups",
    "allocate-shared",
    "insert-synchronization",
)


def unequal(reports: list[str]) -> list[str]:
    """Reports that do not say what they should."""

    def expected(kernel: str) -> str:
        rules = "ieee" if kernel in WITHOUT_RING else "ieee and ring"
        return f"passes change nothing in {rules} arithmetic"

    return [r for r in reports if expected(r.split()[1]) not in r]


def forget() -> None:
    """The launches that were made before: they would not look at the environment again."""
    simulate._validated.clear()
    for kernel in [
        v
        for module in list(sys.modules.values())
        for v in list(vars(module).values())
        if isinstance(v, Launchable)
    ]:
        kernel.forget_launches()


@pytest.fixture
def validated(monkeypatch, capfd):
    """Calls something for a target; gives the report of each launch."""

    def call(target, run):
        for name, value in (("TKC_VALIDATE", "1"), ("TKC_TARGET", target)):
            monkeypatch.setenv(name, value)
        together = frozenset(LONG).difference(sampled(LONG))
        made = partial(validate.Validator, together=together)
        monkeypatch.setattr(validate, "Validator", made)
        capfd.readouterr()
        forget()
        run()
        return [
            line for line in capfd.readouterr().err.splitlines() if line.startswith("validated ")
        ]

    return call


@TARGETS
@pytest.mark.parametrize("name", library())
def test_the_library(name, target, validated):
    reports = validated(target, lambda: library()[name](numbers))
    assert reports and not unequal(reports)


@TARGETS
@pytest.mark.parametrize("name", examples("cpu"))
def test_the_examples(name, target, validated):
    reports = validated(target, lambda: [case["run"]() for case in examples("cpu")[name]()])
    assert reports and not unequal(reports)
