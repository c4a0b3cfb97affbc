"""Warpgroups that take turns at the tensor cores wait for each other, as they do on a GPU."""

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


def test_each_waits_for_the_one_before():
    module = programs()[PROGRAM].module.clone()
    assert turns(module).keys() == {"start", "begin", "end"} and run(module)


def test_all_cannot_meet_within_the_turn_of_one():
    module = programs()[PROGRAM].module.clone()
    after(turns(module)["begin"], threads.BlockBarrier())
    with pytest.raises(SimulationError, match="deadlock.*the turn of warpgroup 1"):
        run(module)


@pytest.mark.parametrize("what", ["start", "end"])
def test_a_turn_that_nobody_hands_on_is_waited_for_in_vain(what):
    module = programs()[PROGRAM].module.clone()
    turn = turns(module)[what]
    turn.detach()
    turn.erase()
    with pytest.raises(SimulationError, match="deadlock.*the turn of warpgroup"):
        run(module)
