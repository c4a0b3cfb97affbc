"""Swaps of bits of lanes with bits of registers: found where a conversion is a series of them."""

import numpy as np
import pytest

from tkc.ir.digits import Digit, copies
from tkc.ir.exchanges import lane_exchanges
from tkc.ir.layout import WARP, Layout, blocked, elements_of_both


def exchanged(held: np.ndarray, lane: int, register: int) -> np.ndarray:
    """What the threads hold when each lane has given away the half that is not its own."""
    found = held.copy()
    for thread in range(held.shape[0]):
        for number in range(held.shape[1]):
            if bool(thread & lane) != bool(number & register):
                found[thread, number] = held[thread ^ lane, number ^ register]
    return found


def shuffled_bits(rng: np.random.Generator, registers: int, swaps: int) -> tuple[Layout, Layout]:
    """Two layouts of a line whose bits lie in registers and lanes, of four warps: in the second
    some bits have changed places, and registers have another order.
    """
    bits = rng.permutation(registers + 5)
    held, lanes = list(bits[:registers]), list(bits[registers:])
    size = 1 << registers + 5

    def layout(held: list, lanes: list) -> Layout:
        digits = [tuple(Digit(2, 0, 1 << int(bit)) for bit in part) for part in (held, lanes)]
        return Layout((4 * size,), digits[0], digits[1], (Digit(4, 0, size),))

    before = layout(held, lanes)
    for at in rng.permutation(min(registers, 5))[:swaps]:
        other = int(rng.permutation(5)[0]) if swaps == 1 else int(at)
        held[at], lanes[other] = lanes[other], held[at]
    return before, layout([held[i] for i in rng.permutation(registers)], lanes)


@pytest.mark.parametrize("registers", [1, 2, 4])
@pytest.mark.parametrize("swaps", [0, 1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_series_of_swaps_is_found(registers, swaps, seed):
    src, dst = shuffled_bits(np.random.default_rng(seed), registers, min(swaps, registers))
    found = lane_exchanges(src, dst)
    assert found is not None
    steps, order = found
    assert len(steps) == min(swaps, registers)
    held, wanted = elements_of_both(src, dst)
    for step in steps:
        held = exchanged(held, *step)
    np.testing.assert_array_equal(held[:, order], wanted)


@pytest.mark.parametrize(
    "src, dst",
    [
        (blocked((128,), 2, 1), blocked((128,), 4, 1)),  # lanes change places with one another
        (blocked((96,), 3, 1), blocked((96,), 1, 1)),  # three registers
        (blocked((64, 4), 4, 2), blocked((64, 4), 4, 2, (0, 1))),  # between warps
        (  # copies: lanes hold the same
            Layout((16,), (), (Digit(16, 0, 1), copies(2)), (copies(1),)),
            Layout((16,), (Digit(2, 0, 1),), (Digit(8, 0, 2), copies(4)), (copies(1),)),
        ),
    ],
    ids=["lanes", "no power of two", "warps", "copies"],
)
def test_others_are_not(src, dst):
    assert lane_exchanges(src, dst) is None


def test_both_halves_are_kept():
    """Every element is somewhere after a swap."""
    held = np.arange(WARP * 4).reshape(WARP, 4)
    assert sorted(exchanged(held, 4, 2).ravel().tolist()) == list(range(WARP * 4))
