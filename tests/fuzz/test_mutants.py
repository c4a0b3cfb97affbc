"""The mutation score of the golden programs and of what the compiler makes: a sample here, `make
fuzz` runs all.
"""

import pytest

from tkc.fuzz.mutants import equivalent, every, found
from tkc.fuzz.programs import programs
from tkc.sim import rank_mutants
from tkc.sim.mutants import OPERATORS

MAX_MUTANTS = 40  # of each program: what the time of a test allows


def test_there_are_twenty_operators():
    assert len(OPERATORS) >= 20


def test_programs_cover_the_operators_and_the_compiler():
    mutants = every()
    # those of several GPUs have programs of their own: tests/sim/test_global_order.py
    assert {place.operator for _, place in mutants} == set(OPERATORS) - set(rank_mutants.OPERATORS)
    assert len({(program.name, place.label) for program, place in mutants}) == len(mutants), (
        "a label is one mutant's"
    )
    assert (
        len(mutants) > 1500
        and sum(p.golden for p in programs().values()) == 4
        and len(programs()) >= 20
    )


@pytest.mark.parametrize("name", [n for n in programs() if n != "vector_add"])
def test_every_mutant_is_found(name):
    program, mutants = programs()[name], every([name])
    sample = mutants[:: -(-len(mutants) // MAX_MUTANTS)]
    assert (
        sample
        and program.equivalent.keys() <= {place.label for _, place in mutants}
        and all(program.equivalent.values())
    )
    assert not [
        place.label for p, place in sample if not found(p, place) and not equivalent(p, place)
    ]
