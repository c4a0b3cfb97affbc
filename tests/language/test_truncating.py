"""Division and remainder as in C, beside Python's."""

import numpy as np

import tkc


@tkc.jit
def divided(x, y, o, n):
    i = tkc.load(x, (0,), (8,))
    tkc.store(o, (0, 0), tkc.div_trunc(i, y)[None, :])
    tkc.store(o, (1, 0), tkc.rem_trunc(i, y)[None, :])
    tkc.store(o, (2, 0), tkc.div_trunc(n, y) + tkc.zeros((8,), tkc.int32)[None, :])
    tkc.store(o, (3, 0), tkc.rem_trunc(n, 4) + tkc.zeros((8,), tkc.int32)[None, :])


def test_signs_are_those_of_c():
    x, o = np.array([-9, -8, -1, 0, 1, 8, 9, -(2**31)], np.int32), np.zeros((4, 8), np.int32)
    for y in (3, -3, 0, -1):
        divided[1](x, y, o, -7)
        wide = x.astype(np.int64)
        want = np.trunc(wide / y).astype(np.int64).astype(np.int32) if y else 0 * x
        rest = np.fmod(wide, y) if y else 0 * wide
        assert (o[0] == want).all() and (o[1] == rest).all()
        assert (o[2] == (int(-7 / y) if y else 0)).all() and (o[3] == -3).all()


def test_python_numbers():
    assert tkc.div_trunc(-7, 2) == -3 and tkc.rem_trunc(-7, 2) == -1
    assert tkc.div_trunc(-7, 0) == 0 and tkc.rem_trunc(-7.5, 2) == -1.5
    assert tkc.div_trunc(-7.5, 2) == -3.0
    assert tkc.fmax(float("nan"), 2.0) == 2.0 and tkc.fmin(1.0, 2.0) == 1.0


@tkc.jit
def of_programs(x, n):
    pid = tkc.program_id(0)
    tkc.store(x, (tkc.div_trunc(pid, 4), tkc.rem_trunc(pid, 4)), 1.0)
    m = tkc.maximum(n, 1)
    tkc.store(x, (tkc.div_trunc(pid, m), tkc.rem_trunc(pid, m)), 1.0)


def test_of_numbers_that_are_not_negative_they_round_down():
    """So that everything that knows `//` and `%` knows these."""
    compiled = of_programs.compile("f32[16, 4]", "i32", target="sm_90a")
    assert "trunc" not in compiled.ir("simplify")
    assert compiled.ir("simplify").count("tile.floordiv") == 2
