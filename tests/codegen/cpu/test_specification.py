"""The simulator's and the language's own tests, run by the compiled code: what they say of level 0
must hold here too.
"""

import inspect

import pytest

from tests.language import test_kernels as kernels
from tests.sim import building
from tests.sim import test_level0 as level0
from tkc.codegen.cpu import compile

ONLY_SIMULATED = {  # faults that the simulator names, and its choice of programs to run
    "test_a_view_that_does_not_exist_may_be_made_but_not_touched",
    "test_pointers_are_bounds_checked_where_not_masked",
    "test_programs_run_in_order_or_as_asked",
    "test_an_offset_that_wraps_is_an_error_only_where_it_is_used",
    "test_assertions_prints_and_bad_arguments",
    "test_arrays_must_have_what_the_kernel_is_made_for",
    # sums in float64 there, in float32 here: test_dots.py has its bounds
    "test_precisions_of_float32",
    "test_verified_and_round_trips",
    "test_attributes",
}


def run(module, arguments, grid, programs=None, *, buffers=(), out=print):
    compile(module).run(arguments, grid, out=out)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(kernels, "run", run)
    monkeypatch.setattr(building, "run", run)
    monkeypatch.setattr(level0.level0, "run", run)


for suite in (kernels, level0):
    for name, function in inspect.getmembers(suite, inspect.isfunction):
        if (
            name.startswith("test_")
            and function.__module__ == suite.__name__
            and name not in ONLY_SIMULATED
        ):
            globals()[f"{name}_{suite is level0 and 'level0' or 'kernels'}"] = function
