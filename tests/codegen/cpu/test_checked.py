"""TKC_DEBUG=1 on the CPU: accesses outside of arrays, crooked addresses, broken promises and
assertions are TrapErrors with their line, before anything is touched.
"""

import numpy as np
import pytest

import tkc
from tkc.errors import TrapError


@tkc.jit
def by_pointers(x, o, n, N: tkc.constexpr = 64):
    i = tkc.program_id(0) * N + tkc.arange(N)
    tkc.store(o.ptr + i, tkc.load(x.ptr + i * x.strides[0], mask=i < n), mask=i < n)


@tkc.jit
def one_by_one(x, o, n):
    tkc.store(o.ptr + n, tkc.load(x.ptr + n))


@tkc.jit
def gathered(x, at, o):
    tkc.store(o, (0,), tkc.load(x.ptr + tkc.load(at.ptr + tkc.arange(8))))


@tkc.jit
def counted(x, o, n):
    tkc.atomic_add(o.ptr + tkc.arange(8) * n, tkc.load(x, (0,), (8,)))


@tkc.jit
def crooked(x, o, n):
    tkc.store(
        o,
        (0,),
        tkc.load(
            tkc.array(x.ptr.to(tkc.int64, bitcast=True) + n, tkc.float32, (8,)).ptr + tkc.arange(8)
        ),
    )


@tkc.jit
def promised(x, o, n):
    tkc.assume(n < 100)
    tkc.store(o, (0,), tkc.load(x, (tkc.multiple_of(n, 4),), (8,)))


@tkc.jit
def asserted(x, o, n):
    tkc.device_assert(tkc.load(x, (tkc.program_id(0) * 8,), (8,)) < n, "all are small")
    tkc.store(o, (0,), n)


def numbers(n, dtype=np.float32):
    return np.arange(n, dtype=dtype)


def trapped(kernel, *arguments, grid=1) -> TrapError:
    with pytest.raises(TrapError) as found:
        kernel[grid](*arguments, debug=True)
    assert (
        found.value.kernel == kernel.__name__
        and found.value.location.file == __file__
        and "^" in str(found.value).splitlines()[-1]
    )
    return found.value


WRONG = {
    "a read behind the end": (
        by_pointers,
        lambda: (numbers(100), np.zeros(128, np.float32), 101),
        "reads 4 bytes outside of argument x",
        (1, 0, 0),
    ),
    "a write behind the end": (
        by_pointers,
        lambda: (numbers(128), np.zeros(100, np.float32), 101),
        "writes 4 bytes outside of argument o",
        (1, 0, 0),
    ),
    "a read before the start": (
        one_by_one,
        lambda: (numbers(10), numbers(10), -1),
        "reads 4 bytes outside of argument x",
        (0, 0, 0),
    ),
    "a read before the start of what runs backwards": (
        by_pointers,
        lambda: (numbers(100)[::-1], np.zeros(128, np.float32), 128),
        "reads 4 bytes outside of argument x",
        (1, 0, 0),
    ),
    "one element": (
        one_by_one,
        lambda: (numbers(10, np.int8), numbers(10, np.int8), 10),
        "reads 1 bytes outside of argument x",
        (0, 0, 0),
    ),
    "a gather": (
        gathered,
        lambda: (numbers(10), np.array([1, 2, 3, 4, 5, 6, 7, 10], np.int32), numbers(8)),
        "reads 4 bytes outside of argument x",
        (0, 0, 0),
    ),
    "an empty array": (
        one_by_one,
        lambda: (numbers(0), numbers(10), 0),
        "reads 4 bytes outside of argument x",
        (0, 0, 0),
    ),
    "an atomic update": (
        counted,
        lambda: (numbers(8, np.int32), numbers(8, np.int32), 2),
        "updates 4 bytes outside of argument o",
        (0, 0, 0),
    ),
    "a crooked address": (
        crooked,
        lambda: (numbers(20), numbers(8), 2),
        "reads 4 bytes at an address that is no multiple of 4",
        (0, 0, 0),
    ),
    "an assumption": (
        promised,
        lambda: (numbers(200), numbers(8), 100),
        "a promise (tkc.assume) does not hold",
        (0, 0, 0),
    ),
    "a multiple": (
        promised,
        lambda: (numbers(200), numbers(8), 6),
        "promised to be a multiple of 4",
        (0, 0, 0),
    ),
    "an assertion": (
        asserted,
        lambda: (numbers(40), np.zeros(8, np.int32), 20),
        "tkc.device_assert failed: all are small",
        (2, 0, 0),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name):
    kernel, arguments, message, program = WRONG[name]
    e = trapped(
        kernel,
        *(given := arguments()),
        grid=3 if kernel is asserted else 2 if kernel is by_pointers else 1,
    )
    assert (
        message in str(e)
        and (e.block == program or kernel is asserted and e.block[0] == 2)
        and e.thread is None
        and f"program {e.block}" in str(e)
    )
    if name.startswith("a write"):
        assert not given[1][64:].any(), "the store of that program has not happened"


def test_what_is_right_runs_as_it_did(monkeypatch):
    monkeypatch.setenv("TKC_DEBUG", "1")
    for kernel, arguments in (
        (by_pointers, lambda: (numbers(100), np.zeros(100, np.float32), 100)),
        (by_pointers, lambda: (numbers(100)[::-1], np.zeros(100, np.float32), 100)),
        (one_by_one, lambda: (numbers(10), numbers(10), 9)),
        (gathered, lambda: (numbers(10), np.array([9] * 8, np.int32), numbers(8))),
        (counted, lambda: (numbers(8, np.int32), numbers(8, np.int32), 1)),
        (crooked, lambda: (numbers(20), numbers(8), 4)),
        (promised, lambda: (numbers(200), numbers(8), 96)),
        (asserted, lambda: (numbers(40), np.zeros(8, np.int32), 40)),
    ):
        checked, plain = arguments(), arguments()
        kernel[2 if kernel is by_pointers else 1](*checked)
        kernel[2 if kernel is by_pointers else 1](*plain, debug=False)
        for a, b in zip(checked[:2], plain[:2], strict=False):
            np.testing.assert_array_equal(a, b)


def test_arguments_that_overlap_are_checked_too():
    memory = numbers(200)
    e = trapped(by_pointers, memory[:100], memory[50:150], 101, grid=2)
    assert "outside of argument" in str(e)


@tkc.jit
def relayed(flag, x, n):
    i = tkc.program_id(0)
    while tkc.load(flag.ptr, sem="acquire") < i:
        pass
    tkc.device_assert(i < n, "few")
    tkc.store(flag.ptr, i + 1, sem="release")


def test_nobody_waits_for_a_program_that_has_failed():
    for debug in (False, True):
        with pytest.raises(TrapError, match="few"):
            relayed[50](np.zeros(1, np.int32), numbers(1), 3, debug=debug)
