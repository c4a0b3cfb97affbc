"""Co-resident programs in kernels unlike attention: what is computed of an iteration's last dot,
and arrays that programs change in place.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import i32, traced
from tests.passes import stages
from tests.passes.stages import LAST, run
from tests.passes.test_roles import array, integers

MATRIX, ROW, OUT = array(tkc.bfloat16), array(tkc.float32, 1), array(tkc.float32)


def behind_the_dot(q, k, v, o, high, D: tkc.constexpr, BN: tkc.constexpr):
    """Something is computed of the last dot of an iteration."""
    i, acc = tkc.program_id(0), tkc.zeros((64, D))
    rows = tkc.load(q, (i * 64, 0), (64, D))
    for n in tkc.range(0, tkc.minimum(k.shape[0], (i + 1) * high), BN):
        p = tkc.where(tkc.dot(rows, tkc.load(k, (n, 0), (BN, D)).T) > 0, 1.0, -1.0).to(tkc.bfloat16)
        acc = acc + tkc.dot(p, tkc.load(v, (n, 0), (BN, D))) * 2.0
    tkc.store(o, (i * 64, 0), acc)


@pytest.mark.parametrize(
    "d, options",
    [
        (128, {}),
        (64, dict(programs=3)),
        (64, dict(roles="co_resident", programs=2, cross_tile_prologue=True)),
        (64, dict(roles="co_resident", programs=3, cross_tile_prologue=False)),
    ],
    ids=str,
)
def test_what_is_computed_of_the_last_dot(d, options):
    """Results leave under the next program's first dot with all of it."""
    modules, given = stages.compiled(
        traced(behind_the_dot, MATRIX, MATRIX, MATRIX, OUT, i32(), D=d, BN=64), **options
    )
    q, k, v = (integers(n, d, dtype=tkc.bfloat16, seed=s) for s, n in enumerate((320, 256, 256)))
    o = np.full((320, d), np.nan, np.float32)
    run(modules[LAST], [q, k, v, o, 64], (5, 1, 1))
    x, y, z = map(np.float64, (q, k, v))
    np.testing.assert_array_equal(
        o,
        np.concatenate(
            [
                2
                * np.where(x[64 * i : 64 * i + 64] @ y[: 64 * i + 64].T > 0, 1.0, -1.0)
                @ z[: 64 * i + 64]
                for i in range(4)
            ]
            + [2 * np.where(x[256:] @ y.T > 0, 1.0, -1.0) @ z]
        ),
    )


def in_place(q, k, v, t, o, high, BN: tkc.constexpr):
    """A program reads a row of its own and replaces it."""
    i, acc = tkc.program_id(0), tkc.zeros((64, 64))
    rows, bias = tkc.load(q, (i * 64, 0), (64, 64)), tkc.load(t, (i * 64,), (64,))
    for n in tkc.range(0, tkc.minimum(k.shape[0], (i + 1) * high), BN):
        acc = tkc.dot(
            tkc.where(tkc.dot(rows, tkc.load(k, (n, 0), (BN, 64)).T) > 0, 1.0, -1.0).to(
                tkc.bfloat16
            ),
            tkc.load(v, (n, 0), (BN, 64)),
            acc,
        )
    tkc.store(o, (i * 64, 0), acc)
    tkc.store(t, (i * 64,), bias + tkc.sum(acc, axis=1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(programs=3),
        dict(roles="co_resident", programs=3, cross_tile_prologue=False),
        dict(roles="cooperative"),
    ],
    ids=str,
)
@pytest.mark.parametrize("places", [4, 5, 6, 7])
def test_padding_tiles_read_nothing_of_the_first_program(options, places):
    """What a program reads of its own and then replaces."""
    modules, _ = stages.compiled(
        traced(in_place, MATRIX, MATRIX, MATRIX, ROW, OUT, i32(), BN=32), **options
    )
    q, k, v = (
        integers(n, 64, dtype=tkc.bfloat16, seed=s) for s, n in enumerate((64 * places, 200, 200))
    )
    o, t = np.full((64 * places, 64), np.nan, np.float32), np.arange(64 * places, dtype=np.float32)
    run(modules[LAST], [q, k, v, t, o, 40], (places, 1, 1), resident=1)
