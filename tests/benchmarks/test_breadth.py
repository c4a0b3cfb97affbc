"""The table of what reaches Hopper's engines: its rows, and the shares over random kernels."""

import pytest

from benchmarks import breadth
from benchmarks.plain_kinds import kinds

BY_NAME = {kind.name: kind for kind in kinds()}
QUICK = ("Gram-Schmidt", "under conditions", "contraction of rank 4", "tiles from a counter")


@pytest.mark.parametrize("name", QUICK)
def test_a_row_is_on_wgmma(name):
    """Its kernel multiplies by wgmma, copies by tensor maps and spills nothing."""
    _, _, multiplies, copies, _, spilled, _, why, _ = breadth.row(BY_NAME[name]).split("|")
    assert multiplies.strip() == "wgmma"
    assert "tensor maps" in copies
    assert not int(spilled)
    assert not why.strip()


def test_names_are_unlike():
    assert len(BY_NAME) == len(list(kinds()))


def test_many_dots_of_random_loops_are_on_wgmma():
    """Of the first loops of dots that the grammar writes, all of which compile; but for those that
    multiply what other programs may have written before they let this one on.
    """
    found = breadth.shares(8, policy="roles")
    assert found.kernels == 8
    observed = sum(n for reason, n in found.reasons.items() if "observe the order" in reason)
    assert observed < found.dots / 4 and found.on_wgmma >= 0.9 * (found.dots - observed)
    assert not any("fails" in reason for reason in found.reasons)
    assert found.by_maps <= found.aligned
    assert "are on wgmma" in " ".join(found.said())
