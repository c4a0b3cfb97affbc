"""The random kernels find faults that users found first: each fix is taken out, and some kernel of
a bounded number then gives something else than it says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tkc.fuzz.check import Failure, check, default_target, variants
from tkc.fuzz.productions import kernel
from tkc.language import control
from tkc.passes import fetch_ahead, fit_dots, insert_synchronization, pipeline_async_copies
from tkc.passes.planning import hopper

MOST_KERNELS = 60  # that are run for a fault
STATEMENTS = 5  # of each


def found(policy: str, seeds: Iterable[int]) -> Failure | None:
    """The first failure of a random kernel, compiled for its own target and run at the end of the
    passes alone.
    """
    for seed in seeds:
        k = kernel(seed, policy, None if policy == "roles" else STATEMENTS)
        target = default_target(k)
        chosen = [replace(v, each=False, ptx=False) for v in variants(k, target, False, None)]
        failures = [f for f in check(k, chosen=chosen) if f.kind != "refused"]
        if failures:
            return failures[0]
    return None


# where a check stands that keeps an order, what it says where it is taken out, and the policy
CHECKS = {
    "copies ahead of stores": (pipeline_async_copies, "source_unchanged", True, "in_place"),
    "loads ahead of stores": (fetch_ahead, "unchanged", True, "in_place"),
    "tensor maps of what a program wrote": (hopper, "written_before", False, "roles"),
    "numbers looked up ahead of stores": (pipeline_async_copies, "unchanged", True, "roles"),
    "numbers that producers look up": (hopper, "unchanged", True, "roles"),
    "barriers between arguments": (insert_synchronization, "_stand_ins", {}, "in_place"),
    "loads moved into a loop over parts": (fit_dots, "unseen", True, "large"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_an_order_of_memory_that_is_not_kept(name, monkeypatch):
    module, check_, answer, policy = CHECKS[name]
    monkeypatch.setattr(module, check_, lambda *given, **options: answer)
    failure = found(policy, range(MOST_KERNELS))
    assert failure is not None and failure.kind in ("wrong", "Violation")


def test_steps_below_zero(monkeypatch):
    """Ranges were taken to count up where the sign of the step was not known."""
    monkeypatch.setattr(control, "counts_up", lambda step: True)
    kernels = (kernel(seed, "control", STATEMENTS) for seed in range(MOST_KERNELS))
    failure = next(f for k in kernels for f in check(k, chosen=()))
    assert failure.stage == "level 0"
    assert "Python" in failure.message or "step" in failure.message
