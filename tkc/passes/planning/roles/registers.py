"""How many registers the threads of each role have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tkc.ir import tile
from tkc.ir.target import Target
from tkc.ir.types import bits
from tkc.ir.values import tile_type

# of a thread of the producer and of a consumer, by consumer warpgroups
ROLE_REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160), 4: (24, 112)}
# of a consumer's thread: with fewer there are none for what is computed ahead, and ptxas spills
MIN_LOOKAHEAD_REGISTERS = 160
# accumulators of more registers a thread take the second, of producer and consumer
LARGE_ACCUMULATOR_REGISTERS, LARGE_ROLE_REGISTERS = 176, (24, 240)
# where two blocks of one consumer warpgroup share a multiprocessor; and of a consumer's thread, for
# all tiles that are live at once
PAIRED_ROLE_REGISTERS, PAIRED_LIVE_REGISTERS = (24, 232), 216
# by which scores, accumulators and left operands may exceed a consumer's registers: they are not
# all live at once
SCORE_REGISTER_SLACK = 12
# where each has a third role: of producer, consumer and that, 3 x 80 together, which is what a
# thread of two blocks of 384 has at entry; and for a consumer's tiles, with 16 left beside them
PAIRED_THIRD_ROLE_REGISTERS, PAIRED_THIRD_LIVE_REGISTERS = (24, 144, 72), 128
# of a consumer's thread, for accumulators and left operands
MAX_OPERAND_REGISTERS = {1: 208, 2: 208, 3: 128, 4: 80}
# likewise, for a sum of parts of k and those that are on their way to it; at least two of them
PART_REGISTERS = 128
# of a thread of each warpgroup together, beside so many consumer warpgroups a producer and a third
# role: what ptxas gives all of them
THIRD_ROLE_ROOM = {1: 3 * 168, 2: 4 * 128}
THIRD_ROLE_REGISTERS = (24, 240)  # of producer and, at most, consumer, where there is a third role
SETMAXNREG_STEP = 8
# of a thread of the converter that relays: the second where it holds more than
# RELAYOUT_SMALL_REGISTERS of an operand
RELAYOUT_REGISTERS = 72, 88
RELAYOUT_SMALL_REGISTERS = 32
# of a thread of the converter that computes, at most
MAX_CONVERTER_REGISTERS = 168


def beside_third_role(groups: int, third: int) -> tuple[int, int, int]:
    """Registers of producer, consumer and a third role whose threads take so many, beside so many
    consumer warpgroups.
    """
    producer, most = THIRD_ROLE_REGISTERS
    left = (THIRD_ROLE_ROOM[groups] - producer - third) // groups
    return producer, min(most, left // SETMAXNREG_STEP * SETMAXNREG_STEP), third


# of producer, consumer and copier or relaying converter, by consumer warpgroups
RELAYOUT_ROLE_REGISTERS = {
    groups: (
        beside_third_role(groups, RELAYOUT_REGISTERS[0]),
        beside_third_role(groups, RELAYOUT_REGISTERS[1]),
    )
    for groups in THIRD_ROLE_ROOM
}


def parts_at_once(parts: Any, registers: Any) -> Any:
    """Parts of k that are asked for at once and added to a sum of so many registers a thread. Of
    one program a number, of arrays of programs an array.
    """
    return np.maximum(1, np.minimum(parts, PART_REGISTERS // registers) - 1)


def parts_fit(each: int, parts: int, in_cluster: bool, groups: int, target: Target) -> bool:
    """Whether threads of so many consumer warpgroups have room for a sum of so many registers
    beside another part of it; where parts are in a cluster, beside its own share.
    """
    if not in_cluster:
        return 2 * each <= MAX_OPERAND_REGISTERS[1]
    room = min(ROLE_REGISTERS[groups][1], target.at_entry(128 * (groups + 1)))
    return each + each // parts <= room


def most_members(operands: int, scores: int, asked: int | None = None) -> int:
    """Co-resident programs whose accumulators and left operands, of so many registers a thread, and
    the scores from which these are computed a block's registers hold: no more than are asked for; 1
    where they hold no two.
    """
    return max(
        (
            n
            for n in ROLE_REGISTERS
            if 1 < n <= (asked or n)
            and operands <= MAX_OPERAND_REGISTERS[n]
            and operands + scores <= ROLE_REGISTERS[n][1] + SCORE_REGISTER_SLACK
        ),
        default=1,
    )


def score_registers(dots: Sequence[tile.Dot], late: Collection[tile.Dot], warpgroups: int) -> int:
    """Registers of a thread for what the late dot's operand is computed from."""
    sizes = [
        tile_type(dot.acc).size * bits(tile_type(dot.acc).element)
        for dot in dots
        if dot not in late
    ]
    return max(sizes, default=0) // (32 * 128 * warpgroups)
