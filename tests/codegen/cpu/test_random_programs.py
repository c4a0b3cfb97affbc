"""Random programs: compiled code and simulator agree to the bit, arguments apart or overlapping."""

import numpy as np
import pytest

from tests.codegen.cpu.random_programs import ARRAYS, program
from tkc.codegen.cpu import compile
from tkc.sim.level0 import run


def copy(arguments):
    return [a.copy(order="A") if isinstance(a, np.ndarray) else a for a in arguments]


def agree(module, arguments, seed):
    want = copy(arguments)
    run(module, want, (1,))
    compiled = compile(module)
    compiled.run(arguments, (1,))
    for i in range(ARRAYS):
        np.testing.assert_array_equal(arguments[i], want[i], err_msg=f"seed {seed}, array {i}")


@pytest.mark.parametrize("batch", range(10))
def test_random_program(batch):
    for seed in range(8 * batch, 8 * batch + 8):
        agree(*program(seed, 14), seed)


def test_arguments_that_are_one_array():
    for seed in range(1000, 1012):
        module, arguments = program(seed)
        if any(not a.flags.c_contiguous for a in arguments[:ARRAYS]):
            continue
        want, got = (a.copy() for a in (arguments[0], arguments[0]))
        run(module, [want] * ARRAYS + arguments[ARRAYS:], (1,))
        compile(module, overlapping=True).run([got] * ARRAYS + arguments[ARRAYS:], (1,))
        np.testing.assert_array_equal(got, want, err_msg=f"seed {seed}")
