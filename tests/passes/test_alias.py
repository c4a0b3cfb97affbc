"""What the analysis of memory says of loops over programs."""

import numpy as np
import pytest

import tkc
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import before
from tkc.ir.text import parse
from tkc.ir.threads import Identity
from tkc.kernels.scans import _cumsum
from tkc.passes.analysis.alias import is_of_programs


@tkc.jit
def doubled(x, out):
    at = tkc.program_id(0) * 1024
    tkc.store(out, (at,), tkc.load(x, (at,), (1024,)) * 2)


def loop_over_programs(compiled):
    """The loop of a kernel whose blocks take programs in turn."""
    module = parse(compiled.ir("schedule-programs"))
    identity = next(
        op for op in module.walk() if isinstance(op, Identity) and op.what.data == "cluster"
    )
    (loop,) = (use.operation for use in identity.result.uses)
    return loop


def plain():
    x = np.zeros(1 << 20, np.float32)
    return loop_over_programs(doubled.compile(x, x.copy(), target="sm_90a", persistent=True))


def test_programs_that_a_block_takes_in_turn():
    assert is_of_programs(plain())


@pytest.mark.parametrize("first", [False, True])
def test_a_cluster_and_any_number_is_no_program(first):
    loop = plain()
    some = before(loop, tile.ProgramId(1)).result
    given = (some, loop.lb) if first else (loop.lb, some)
    loop.operands[0] = before(loop, CLASSES["add"](*given)).result
    assert not is_of_programs(loop)


def test_programs_that_wait_for_others_are_ordered():
    given = "f32[1, 65536]", "f32[1, 65536]", "u64[1, 8]"
    compiled = _cumsum.compile(
        *given, REVERSE=False, N=8192, GROUP=4, target="sm_90a", persistent=True
    )
    assert not is_of_programs(loop_over_programs(compiled))
