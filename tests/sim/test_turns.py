"""Warpgroups take turns at the tensor cores: nothing within one may need the others."""

import pytest

from tkc.fuzz.programs import programs
from tkc.ir import threads
from tkc.ir.rewrite import after
from tkc.ir.values import operations_in
from tkc.sim import level4
from tkc.sim.errors import SimulationError

PROGRAM = "attention, sm_90a"


def run(module):
    program = programs()[PROGRAM]
    launch = program.launch(program.trials[0], 0)
    level4.run(module, launch.arguments, launch.grid, 0, 1)
    return launch.right()


def turns(module):
    return {op.what.data: op for op in operations_in(module, threads.Turn)}


def test_a_program_with_turns_runs():
    module = programs()[PROGRAM].module.clone()
    assert turns(module).keys() == {"start", "begin", "end"} and run(module)


@pytest.mark.parametrize("what", ["start", "end"])
def test_all_may_meet_outside_turns(what):
    module = programs()[PROGRAM].module.clone()
    after(turns(module)[what], threads.BlockBarrier())
    assert run(module)


def test_all_cannot_meet_within_the_turn_of_one():
    module = programs()[PROGRAM].module.clone()
    after(turns(module)["begin"], threads.BlockBarrier())
    with pytest.raises(SimulationError, match="deadlock.*within the turn of one warpgroup"):
        run(module)
