"""Conversions within a warp: swaps of bits of lanes with bits of registers where these suffice,
else fetches from other lanes.
"""

import numpy as np
import pytest

from tkc.ir.digits import Digit, copies
from tkc.ir.lanes import is_own, lane_pieces, warp_conversion
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
@pytest.mark.parametrize("swaps", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_series_of_swaps_is_found(registers, swaps, seed):
    src, dst = shuffled_bits(np.random.default_rng(seed), registers, min(swaps, registers))
    found = warp_conversion(src, dst)
    assert found is not None
    assert len(found.swaps) == min(swaps, registers)
    assert found.shuffles == 0
    held, wanted = elements_of_both(src, dst)
    for swap in found.swaps:
        held = exchanged(held, *swap)
    order = [row[0][0] for row in found.fetches]
    np.testing.assert_array_equal(held[:, order], wanted)


@pytest.mark.parametrize(
    "src, dst",
    [
        (blocked((128,), 2, 1), blocked((128,), 4, 1)),  # lanes change places with one another
        (blocked((96,), 3, 1), blocked((96,), 1, 1)),  # three registers
        (blocked((64, 4), 4, 2), blocked((64, 4), 4, 2, (0, 1))),  # between warps
    ],
    ids=["lanes", "no power of two", "warps"],
)
def test_others_are_not(src, dst):
    found = warp_conversion(src, dst)
    assert found is None or not found.swaps and not all(map(is_own, found.fetches))


def fetched(src: Layout, dst: Layout) -> np.ndarray:
    """What the threads hold when each lane has fetched its elements."""
    found = warp_conversion(src, dst)
    assert found is not None and not found.swaps
    held, _ = elements_of_both(src, dst)
    warps = held.reshape(-1, WARP, held.shape[1])
    registers, lanes = np.array(found.fetches).T  # [lanes, registers]
    return warps[:, lanes, registers].reshape(held.shape[0], -1)


@pytest.mark.parametrize(
    "src, dst, shuffles",
    [
        (blocked((16,), 1, 1), blocked((16,), 2, 1), 2),
        (blocked((128,), 2, 1), blocked((128,), 4, 1), 8),
        (  # lanes hold the same
            Layout((16,), (), (Digit(16, 0, 1), copies(2)), (copies(1),)),
            Layout((16,), (Digit(2, 0, 1),), (Digit(8, 0, 2), copies(4)), (copies(1),)),
            2,
        ),
    ],
    ids=["vector", "lanes", "copies"],
)
def test_others_are_fetched(src, dst, shuffles):
    np.testing.assert_array_equal(fetched(src, dst), elements_of_both(src, dst)[1])
    assert warp_conversion(src, dst).shuffles == shuffles


def test_the_lane_of_an_element():
    found = warp_conversion(blocked((16,), 1, 1), blocked((16,), 2, 1))
    assert [lane for _, lane in found.fetches[1]][:9] == [1, 3, 5, 7, 9, 11, 13, 15, 1]


def test_functions_of_the_lane_that_are_no_digits():
    assert lane_pieces([lane * 4 % 32 for lane in range(32)]) is not None
    assert lane_pieces([lane * lane % 32 for lane in range(32)]) is None


def test_both_halves_are_kept():
    """Every element is somewhere after a swap."""
    held = np.arange(WARP * 4).reshape(WARP, 4)
    assert sorted(exchanged(held, 4, 2).ravel().tolist()) == list(range(WARP * 4))
