"""What plans_drawn.py draws, and the choices that it times, without a GPU."""

import pytest

from benchmarks import plans_drawn


@pytest.mark.parametrize("kind", plans_drawn.KINDS)
def test_a_seed_draws_the_same_calls(kind):
    first = plans_drawn.drawn(kind, 7, 5)
    assert first == plans_drawn.drawn(kind, 7, 9)[:5] != plans_drawn.drawn(kind, 8, 5)


@pytest.mark.parametrize("kind", plans_drawn.KINDS)
def test_choices_of_a_launch_compile(kind):
    case = plans_drawn.drawn(kind, 7, 2)[1]
    found = plans_drawn.choices(case, plans_drawn.blank, 4)
    assert len(found) == 5 and "" in found
    for launch in found.values():
        compiled = launch.kernel.compile(*launch.args, target="sm_90a", **launch.kwargs)
        assert compiled.ptx
    block = "BM" if kind == "attention" else "ROWS"
    extent = case.length if kind == "attention" else case.rows
    for launch in found.values():
        programs = launch.grid[0] if isinstance(launch.grid, tuple) else launch.grid
        assert programs == -(-extent // launch.kwargs[block])


def test_the_correlation_of_ranks():
    rising = [(1.0, 10.0), (2.0, 11.0), (5.0, 500.0)]
    assert plans_drawn.rank_correlation(rising) == pytest.approx(1)
    assert plans_drawn.rank_correlation([(-a, b) for a, b in rising]) == pytest.approx(-1)
