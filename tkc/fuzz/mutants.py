"""The mutation score: every change of the synchronisation of every program is found within a few schedules, or declared equivalent with the reason."""
from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from tkc.fuzz.programs import Program, programs
from tkc.sim import level4
from tkc.sim.errors import SimulationError
from tkc.sim.mutants import Place, mutated, places

SCHEDULES = 4                           # of a mutant: a parity that depends on who comes first is not wrong on each


def every(names: Iterable[str] | None = None) -> list[tuple[Program, Place]]:
    """The mutants of all programs (or of those named)."""
    return [(p, place) for p in programs().values() if names is None or p.name in names for place in places(p.module)]


def trial(program: Program, number: int) -> tuple[tuple, int]:
    """The shape of a schedule, and how many clusters run at once."""
    return program.trials[number % len(program.trials)], 1 + number % 2


@lru_cache(256)
def right(program: Program, number: int) -> tuple[bytes, ...]:
    """What the program itself computes in a trial."""
    shape, resident = trial(program, number)
    launch = program.launch(shape, number)
    level4.run(program.module, launch.arguments, launch.grid, number, resident)
    assert launch.right(), f"{program.name} {shape} is wrong by itself"
    return tuple(a.tobytes() for a in launch.arguments if isinstance(a, np.ndarray))


def found(program: Program, place: Place, schedules: int = SCHEDULES) -> bool:
    """Whether one of the trials tells the mutant from the program: by a finding, or by what it computes."""
    module = mutated(program.module, place)
    for number in range(schedules):
        (shape, resident), want = trial(program, number), right(program, number)
        launch = program.launch(shape, number)
        try: level4.run(module, launch.arguments, launch.grid, number, resident)
        except SimulationError: return True
        if tuple(a.tobytes() for a in launch.arguments if isinstance(a, np.ndarray)) != want: return True
    return False
