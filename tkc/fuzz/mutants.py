"""The mutation score: every change of the synchronisation of every program is found within a few
schedules, or declared equivalent with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import islice, pairwise

import numpy as np
from xdsl.dialects import scf
from xdsl.ir import Operation

from tkc.fuzz.programs import Program, programs
from tkc.ir import shared, threads
from tkc.ir.values import block_of, enclosing, operations_in
from tkc.passes.analysis.alias import kernel_around
from tkc.passes.analysis.folding import constant
from tkc.sim import level4
from tkc.sim.errors import SimulationError
from tkc.sim.mutants import Place, mutated, places

# Schedules of a mutant with one cluster at a time (a parity that depends on which warp is first is
# not wrong in each), then with two
LEAST_SCHEDULES = 4
SCHEDULES_OF_TWO = 2


def every(names: Iterable[str] | None = None) -> list[tuple[Program, Place]]:
    """The mutants of all programs (or of those named)."""
    return [
        (p, place)
        for p in programs().values()
        if names is None or p.name in names
        for place in places(p.module)
    ]


def trial(program: Program, number: int) -> tuple[tuple, int]:
    """The shape of a schedule, and how many clusters run at once."""
    return program.trials[number % len(program.trials)], (
        1 if number < schedules(program) - SCHEDULES_OF_TWO else 2
    )


def schedules(program: Program) -> int:
    """How many a mutant runs in."""
    return max(LEAST_SCHEDULES, len(program.trials)) + SCHEDULES_OF_TWO


@lru_cache(256)
def right(program: Program, number: int) -> tuple[bytes, ...]:
    """What the program itself computes in a trial."""
    shape, resident = trial(program, number)
    launch = program.launch(shape, number)
    level4.run(program.module, launch.arguments, launch.grid, number, resident)
    assert launch.right(), f"{program.name} {shape} is wrong by itself"
    return tuple(a.tobytes() for a in launch.arguments if isinstance(a, np.ndarray))


# --------------------------------------------------------------------------------------------------
def _released_by_a_leader(op: Operation, operator: str) -> bool:
    return operator == "leader alone"


def _of_an_instance(op: Operation, operator: str) -> bool:
    """A buffer that each instance of a role has for itself, by its own number."""
    role = enclosing(op, threads.Role)
    return (
        operator == "stage"
        and isinstance(op, shared.Stage)
        and role is not None
        and op.index[0] is role.instance
    )


def _drained(op: Operation, operator: str) -> bool:
    """A wait behind the producer's loop that is not the last on its ring."""
    role = op.parent_op()
    last = block_of(op).last_op
    if (
        operator != "drop"
        or not isinstance(op, threads.MbarrierWait)
        or not isinstance(role, threads.Role)
        or role.single is None
    ):
        return False
    while last is not None and last is not op:
        if isinstance(last, threads.MbarrierWait) and last.barriers is op.barriers:
            return True
        last = last.prev_op
    return False


def _number_of_a_program(op: Operation, operator: str) -> bool:
    """Of the ring by which a producer tells the number of the next program: the one whose arrivals
    bring no bytes.
    """
    if operator not in ("drop", "later", "earlier") or not isinstance(
        op, (threads.MbarrierWait, threads.MbarrierArrive)
    ):
        return False
    kernel = kernel_around(op)
    told = [
        o
        for role in operations_in(kernel, threads.Role)
        if role.single is not None
        for o in operations_in(
            role, (threads.MbarrierWait, threads.MbarrierExpect, threads.MbarrierArrive)
        )
    ]
    return op.barriers in {
        a.barriers
        for a, b in pairwise(told)
        if isinstance(a, threads.MbarrierWait) and isinstance(b, threads.MbarrierArrive)
    }


def _past_the_mask(op: Operation, operator: str) -> bool:
    """A look at the next stage in the second way through a step, which is the one with the mask
    (tkc.passes.warpgroups.tails).
    """
    branch = op.parent_op()
    return (
        operator == "parity"
        and isinstance(op, threads.MbarrierTest)
        and isinstance(branch, scf.IfOp)
        and isinstance(branch.parent_op(), scf.ForOp)
        and op.parent is branch.false_region.block
    )


def _fresh(op: Operation, operator: str) -> bool:
    """What a producer fills before its loop: stages that nobody has used."""
    role = op.parent_op()
    if not isinstance(role, threads.Role) or role.single is None:
        return False
    return (
        operator in ("drop", "later", "stage")
        and isinstance(op, threads.MbarrierWait)
        and _behind(op, threads.TmaLoad)
        or operator == "earlier"
        and isinstance(op, threads.MbarrierExpect)
    )


def _never_wraps(op: Operation, operator: str) -> bool:
    """A step from a stage that is known to a later one of the ring."""
    if operator != "stages + 1" or not isinstance(op, threads.RingNext):
        return False
    steps = 1 if op.steps is None else constant(op.steps)
    stage = constant(op.stage)
    return stage is not None and steps is not None and stage + steps < op.stages.value.data


def _behind(op: Operation, kind: type) -> bool:
    """Whether something of a kind comes behind an operation in its block, before any loop."""
    behind = op.next_op
    while behind is not None and not behind.regions:
        if isinstance(behind, kind):
            return True
        behind = behind.next_op
    return False


def _sent_first(op: Operation, operator: str) -> bool:
    """A producer's arrival for numbers that it broadcasts, if it asks for a copy behind it, which
    is waited for before they are read; and the wait for such numbers, if all are told so.
    """
    if operator not in ("drop", "later", "earlier") or not isinstance(
        op, (threads.MbarrierWait, threads.MbarrierArrive)
    ):
        return False
    kernel = kernel_around(op)
    arrivals = [
        o
        for o in operations_in(kernel, threads.MbarrierArrive)
        if o.barriers is op.barriers and isinstance(o.prev_op, threads.BroadcastStore)
    ]
    told = [o for o in arrivals if _behind(o, threads.TmaLoad)]
    return (
        op in told
        and operator == "earlier"
        or bool(arrivals)
        and told == arrivals
        and isinstance(op, threads.MbarrierWait)
        and operator != "earlier"
    )


RULES: tuple[tuple[Callable[[Operation, str], bool], str], ...] = (
    (
        _released_by_a_leader,
        (
            "an asynchronous dot is the work of a whole warpgroup: the leader that has waited for"
            " it knows that all warps are done"
        ),
    ),
    (_of_an_instance, "the instances exchange buffers of which each has its own"),
    (_drained, "whoever releases the last stage has released those before it"),
    (
        _past_the_mask,
        "only the last tile of a program goes through the mask, and nobody uses what is said there",
    ),
    (_fresh, "the first stages of a fresh ring are free"),
    (_never_wraps, "a step that does not come to the ring's end is the same in a longer ring"),
    (_sent_first, "what is posted before a copy is asked for is there when the copy is"),
    (
        _number_of_a_program,
        "a program's first factor has a ring too, as deep, which holds the producer back as well",
    ),
)


def equivalent(program: Program, place: Place) -> str | None:
    """Why no run can tell a mutant from its program, if that is so: declared for the program, or by
    a rule about what the compiler writes.
    """
    if place.label in program.equivalent:
        return program.equivalent[place.label]
    op = next(islice(program.module.walk(), place.number, None))
    return (
        None
        if program.golden
        else next((why for rule, why in RULES if rule(op, place.operator)), None)
    )


# --------------------------------------------------------------------------------------------------
def found(program: Program, place: Place) -> bool:
    """Whether one of the trials tells the mutant from the program: by a finding, or by what it
    computes.
    """
    module = mutated(program.module, place)
    for number in range(schedules(program)):
        (shape, resident), want = trial(program, number), right(program, number)
        launch = program.launch(shape, number)
        try:
            level4.run(module, launch.arguments, launch.grid, number, resident)
        except SimulationError:
            return True
        if tuple(a.tobytes() for a in launch.arguments if isinstance(a, np.ndarray)) != want:
            return True
    return False
