"""Which set bits an integer is the number of, where a program counts them by halves:

    x - ((x >> 1) & 0x55…)                 fields of 2 bits: how many of x are set there
    (f & 0x33…) + ((f >> 2) & 0x33…)       fields twice as wide, from neighbours
    (f + (f >> 4)) & 0x0f…                 likewise, where both fit the narrower field
    (f * 0x0101…) >> (n - 8)               the sum of all fields, at the top of n bits

A GPU has one instruction for all of it. Shifts of signed numbers count alike: what they bring in at
the top is masked, or zero.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import bits, element_of
from tkc.ir.values import defining_op


def counted(value: SSAValue) -> SSAValue | None:
    """The integer whose set bits a value is the number of."""
    width = bits(element_of(value.type))
    shifted = _beside_number(value, "shr")
    summed = None if shifted is None else _beside_number(shifted[0], "mul")
    if shifted is not None and summed is not None:
        found = _fields(summed[0])
        if found is None:
            return None
        x, field = found
        fits = width < 1 << (field - 1) and shifted[1] == width - field
        return x if fits and summed[1] == _repeated(1, field, width) else None
    found = _fields(value)
    return None if found is None or found[1] < width else found[0]


def _fields(value: SSAValue) -> tuple[SSAValue, int] | None:
    """(x, n) where each n bits of a value are how many of these bits of x are set."""
    width = bits(element_of(value.type))
    if (difference := defining_op(value, ew.CLASSES["sub"])) is not None:
        x, odd = difference.args
        is_pairs = _shifted_and_masked(odd) == (x, 1, _repeated(1, 2, width))
        return (x, 2) if is_pairs else None
    if (total := defining_op(value, ew.CLASSES["add"])) is not None:
        one, other = total.args
        return _of_masked(one, other) or _of_masked(other, one)
    masked = _beside_number(value, "and")
    total = None if masked is None else defining_op(masked[0], ew.CLASSES["add"])
    if masked is None or total is None:
        return None
    one, other = total.args
    return _of_sum(one, other, masked[1]) or _of_sum(other, one, masked[1])


def _of_masked(even: SSAValue, odd: SSAValue) -> tuple[SSAValue, int] | None:
    """Of (f & mask) + ((f >> n) & mask)."""
    low, high = _beside_number(even, "and"), _shifted_and_masked(odd)
    if low is None or high is None or low != (high[0], high[2]):
        return None
    f, by, mask = high
    width = bits(element_of(f.type))
    found = (f, 1) if by == 1 else _fields(f)
    if found is None or found[1] != by:
        return None
    return (found[0], 2 * by) if mask == _repeated((1 << by) - 1, 2 * by, width) else None


def _of_sum(f: SSAValue, high: SSAValue, mask: int) -> tuple[SSAValue, int] | None:
    """Of (f + (f >> n)) & mask, where the sum of two fields fits one."""
    shifted, found = _beside_number(high, "shr"), _fields(f)
    if found is None or shifted != (f, found[1]):
        return None
    x, field = found
    width, twice = bits(element_of(f.type)), 2 * field
    masks = [_repeated((1 << n) - 1, twice, width) for n in range(twice.bit_length(), field + 1)]
    return (x, twice) if mask in masks and twice <= width else None


def _shifted_and_masked(value: SSAValue) -> tuple[SSAValue, int, int] | None:
    """x, n and the mask of (x >> n) & mask."""
    masked = _beside_number(value, "and")
    shifted = None if masked is None else _beside_number(masked[0], "shr")
    return None if masked is None or shifted is None else (*shifted, masked[1])


def _beside_number(value: SSAValue, name: str) -> tuple[SSAValue, int] | None:
    """The operands of a function of which the second is a number, that without a sign."""
    op = defining_op(value, ew.CLASSES[name])
    if op is None or not isinstance(number := op.args[1].owner, tile.Constant):
        return None
    return op.args[0], int(number.number) & (1 << bits(element_of(value.type))) - 1


def _repeated(bits_of_field: int, field: int, width: int) -> int:
    """A number that has the same bits in each field of so many."""
    return sum(bits_of_field << at for at in range(0, width, field))
