"""Indices and numbers that wrap in their type, or round in a float on their way, in every way of
running them. Each was wrong somewhere once.
"""

import numpy as np
import pytest

import tkc
from tkc.fuzz.check import Comparison, Variant
from tkc.language.trace import trace
from tkc.runtime.specialize import ScalarInfo, Specialization, argument, facts, signature


def bytes_as_rows(x, o, n):
    tkc.store(o, (0,), tkc.load(x, (tkc.arange(0, 64).to(tkc.uint8) * 5,), (64,)))


def bytes_as_pointers(x, o, n):
    tkc.store(o, (0,), tkc.load(x.ptr + (tkc.arange(0, 64) - 2).to(tkc.uint8)))


def bytes_widened(x, o, n):
    tkc.store(o, (0,), tkc.load(x.ptr + (tkc.arange(0, 64) * 7 - 2).to(tkc.uint8).to(tkc.int32)))


def numbers_that_two_types_read(x, o, n):
    i = tkc.arange(0, 64).to(tkc.int8) * 4
    tkc.store(o, (0,), tkc.load(x, (i,), (64,)) + tkc.load(x, (i.to(tkc.uint8),), (64,)))


def rows_by_way_of_float16(x, o, n):
    tkc.store(
        o, (0,), tkc.load(x.ptr + ((tkc.arange(0, 64) + 2040).to(tkc.float16).to(tkc.int32) - 2040))
    )


def sums_of_bytes_below_zero(x, o, n):
    v = tkc.arange(64, 128).to(tkc.int8)
    tkc.store(o, (0,), tkc.where(v + v < 0, tkc.full((64,), 1, tkc.int32), 0))


def an_argument_and_more(x, o, n):
    tkc.store(o, (0,), ((tkc.arange(0, 64) + n).to(tkc.int64) // 16).to(tkc.int32))


def a_hash(x, o, n):
    tkc.store(
        o,
        (0,),
        tkc.where((tkc.arange(0, 64) * 1103 ^ 5) * 64123 < 0, tkc.full((64,), 1, tkc.int32), 0),
    )


def below_zero_unsigned(x, o, n):
    tkc.store(o, (0,), ((tkc.arange(0, 64) * -3).to(tkc.uint32).to(tkc.int64) >> 8).to(tkc.int32))


@pytest.mark.parametrize(
    "kernel",
    [
        bytes_as_rows,
        bytes_as_pointers,
        bytes_widened,
        numbers_that_two_types_read,
        rows_by_way_of_float16,
        sums_of_bytes_below_zero,
        an_argument_and_more,
        a_hash,
        below_zero_unsigned,
    ],
    ids=lambda k: k.__name__,
)
def test_every_way_agrees(kernel):
    def make():
        return {
            "x": np.arange(256, dtype=np.int32),
            "o": np.zeros(64, np.int32),
            "n": 2**31 - 20,
        }

    infos = {
        n: argument(v, n, False) if isinstance(v, np.ndarray) else ScalarInfo(v, "int32")
        for n, v in make().items()
    }
    runs = Comparison(
        trace(kernel, signature(Specialization(tuple((n, facts(i)) for n, i in infos.items())))),
        make,
        (1,),
    )
    assert runs.want["o"].any()
    assert not [
        str(f)
        for f in [
            runs.cpu(),
            *runs.passes(Variant("sm_80", 1, 2)),
            *runs.passes(Variant("sm_90a", 4, 2)),
        ]
        if f
    ]
