"""Products of indices of which no offset is computed wrap as all integers do: level 0 has nothing
to refuse, and nothing may be known of their signs.
"""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tests.operations.case import Case, rubbish, run
from tkc.sim import level0
from tkc.sim.errors import OffsetOverflow

HOWS = ("level 0", "cpu", "sm_80", "sm_89", "sm_90a")


def hashed_programs(remainders, signs, counts):
    """A polynomial of a program's number."""
    p = tkc.program_id(0)
    h = (((p * 31 + 7) * 31 + 5) * 31 + 3) * 31
    h = (h * 31 + 1) * 31
    tkc.store(remainders, (p,), h % 1000)
    tkc.store(signs, (p,), tkc.where(h < 0, 1, 0))
    tkc.store(counts, (p,), tkc.maximum(h, 0))


def hashed_counters(remainders, signs, counts, n):
    """The same of a loop's counter, through a branch and a carried sum."""
    total = negative = largest = 0
    for i in range(n):
        h = ((((i * 31 + 7) * 31 + 5) * 31 + 3) * 31 * 31 + 1) * 31
        total = total + (h % 1000 if i % 2 == 0 else h // 16)
        negative = negative + tkc.where(h < 0, 1, 0)
        largest = tkc.maximum(largest, tkc.maximum(-h, 0))
    tkc.store(remainders, (0,), total)
    tkc.store(signs, (0,), negative)
    tkc.store(counts, (0,), largest)


def _hash(i: np.ndarray) -> np.ndarray:
    i = i.astype(np.int32)
    h = (((i * 31 + 7) * 31 + 5) * 31 + 3) * 31
    return (h * 31 + 1) * 31


def _outputs(n: int) -> dict:
    return {k: rubbish(n, np.dtype(np.int32)) for k in ("remainders", "signs", "counts")}


def _programs(n: int) -> dict:
    h = _hash(np.arange(n))
    return dict(
        remainders=h % np.int32(1000), signs=(h < 0).astype(np.int32), counts=np.maximum(h, 0)
    )


def _counters(n: int) -> dict:
    h = _hash(np.arange(n))
    each = np.where(np.arange(n) % 2 == 0, h % np.int32(1000), h // np.int32(16))
    found = each.sum(dtype=np.int32), (h < 0).sum(dtype=np.int32), np.maximum(-h, 0).max()
    names = ("remainders", "signs", "counts")
    return {k: np.array([v], np.int32) for k, v in zip(names, found, strict=True)}


@pytest.mark.parametrize("how", HOWS)
def test_programs(how):
    n = 200
    case = Case("hash", hashed_programs, lambda r: _outputs(n), lambda a: _programs(n), (n,))
    run(case, how)


@pytest.mark.parametrize("how", HOWS)
def test_counters(how):
    n = 200
    case = Case(
        "hash of counters",
        hashed_counters,
        lambda r: dict(_outputs(1), n=n),
        lambda a: _counters(n),
    )
    run(case, how)


def masked_steps(x, out, first):
    """Masks of loads of a loop say numbers of which no address is made."""
    total = tkc.zeros((8,), tkc.float32)
    for i in tkc.range(0, 4):
        inside = first + i * 4 + tkc.arange(8) >= 0
        total = total + tkc.load(x.ptr + tkc.arange(8) + i, mask=inside, other=-1.0)
    tkc.store(out, (0,), total)


def masked_factor(x, out, first):
    """The same of a dot's operand, from either end."""
    r, k = tkc.arange(16), tkc.arange(16)
    above = first + r >= 0
    below = k - first < 0
    a = tkc.load(x.ptr + r[:, None] + k[None, :], mask=above[:, None] & below[None, :], other=0.0)
    tkc.store(out, (0, 0), tkc.dot(a, a.T))


def _at(first: int, n: int, by: int = 1) -> np.ndarray:
    return (np.int32(first) + np.arange(0, n * by, by, dtype=np.int32)).astype(np.int32)


def _steps(a: dict) -> dict:
    at = [_at(a["first"], 8) + np.int32(4 * i) for i in range(4)]
    return dict(out=sum(np.where(s >= 0, a["x"][i : i + 8], -1) for i, s in enumerate(at)))


def _factor(a: dict) -> dict:
    x = a["x"][np.arange(16)[:, None] + np.arange(16)]
    below = np.arange(16, dtype=np.int32) - np.int32(a["first"]) < 0
    m = np.where((_at(a["first"], 16) >= 0)[:, None] & below, x, 0).astype(np.float32)
    return dict(out=m @ m.T)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kernel, want", [(masked_steps, _steps), (masked_factor, _factor)])
@pytest.mark.parametrize("first", [2**31 - 4, 2**31 - 12, -(2**31), -3, 5])
def test_masks(kernel, want, first, how):
    def given(r):
        shape = (8,) if kernel is masked_steps else (16, 16)
        return dict(
            x=np.arange(1, 41, dtype=np.float32), out=np.zeros(shape, np.float32), first=first
        )

    run(Case(f"{kernel.__name__} {first}", kernel, given, want), how)


def loaded_less_places(x, out, numbers):
    """What is left behind a row, of a number that is loaded: it may be as low as numbers are."""
    r, k, n = tkc.arange(16), tkc.arange(16), tkc.load(numbers.ptr)
    a = tkc.load(x.ptr + r[:, None] * 16 + k[None, :], mask=(n - r > 0)[:, None], other=0.0)
    tkc.store(out, (0, 0), tkc.dot(a, a.T))


def argument_less_places(x, out, n):
    """The same of an argument and of places some of which are negative."""
    r, k = tkc.arange(16), tkc.arange(16)
    a = tkc.load(x.ptr + r[:, None] * 16 + k[None, :], mask=(n - (r - 8) > 0)[:, None], other=0.0)
    tkc.store(out, (0, 0), tkc.dot(a, a.T))


def stored_in_steps(x, out, first):
    """A loop that carries nothing counts what its masks bound."""
    for k in tkc.range(0, 4):
        i = k * 4 + tkc.arange(4)
        tkc.store(out.ptr + i, tkc.load(x.ptr + i), mask=first + i >= 0)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("number", [-(2**31) + 3, -1, 0, 3, 2**31 - 1])
def test_a_loaded_number_less_places(number, how):
    x, numbers = np.arange(256, dtype=np.float32) % 7, np.array([number], np.int32)
    with np.errstate(over="ignore"):
        inside = numbers - np.arange(16, dtype=np.int32) > 0
    a = np.where(inside[:, None], x.reshape(16, 16), 0)

    def given(r):
        return dict(x=x, out=np.zeros((16, 16), np.float32), numbers=numbers)

    run(Case("loaded", loaded_less_places, given, lambda _: dict(out=a @ a.T)), how)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("n", [2**31 - 1, 2**31 - 9, -12, 0, 3])
def test_an_argument_less_places_before(n, how):
    x = np.arange(256, dtype=np.float32) % 7
    with np.errstate(over="ignore"):
        inside = np.array([n], np.int32) - (np.arange(16, dtype=np.int32) - np.int32(8)) > 0
    a = np.where(inside[:, None], x.reshape(16, 16), 0)

    def given(r):
        return dict(x=x, out=np.zeros((16, 16), np.float32), n=n)

    run(Case("argument", argument_less_places, given, lambda _: dict(out=a @ a.T)), how)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("first", [0, -5, -16, 2**31 - 9])
def test_masks_of_a_loop_that_carries_nothing(first, how):
    def given(r):
        return dict(x=np.arange(1, 17, dtype=np.float32), out=np.zeros(16, np.float32), first=first)

    want = dict(out=np.where(_at(first, 16) >= 0, np.arange(1, 17), 0).astype(np.float32))
    run(Case("steps", stored_in_steps, given, lambda a: want), how)


def bounded(x, out, n):
    """A sum of an argument bounds the elements that are read."""
    i = tkc.arange(8)
    tkc.store(out.ptr + i, tkc.load(x.ptr + i, mask=(i >= 1) & (i < n + 5), other=-1.0))


def bounded_by_hash(x, out):
    """A number that wraps on purpose does."""
    i, p = tkc.arange(8), tkc.program_id(0)
    h = ((((p * 31 + 7) * 31 + 5) * 31 + 3) * 31 * 31 + 1) * 31
    tkc.store(out.ptr + p * 8 + i, tkc.load(x.ptr + i, mask=i + 3 < h, other=-1.0))


def _bounded_arguments(n: int) -> dict:
    return dict(x=np.arange(1, 9, dtype=np.float32), out=np.zeros(8, np.float32), n=n)


def test_a_bound_that_wraps_is_refused():
    """It is one as an offset is: what is compiled counts on it."""
    module = traced(bounded, *(array(tkc.float32, 1),) * 2, i32())
    for n in (-(2**31), 2, 2**31 - 6):
        given = list(_bounded_arguments(n).values())
        level0.run(module, given, (1,))
        i = np.arange(8)
        np.testing.assert_array_equal(given[1], np.where((i >= 1) & (i < n + 5), i + 1, -1))
    with pytest.raises(OffsetOverflow, match="a number that bounds the elements of an access"):
        level0.run(module, list(_bounded_arguments(2**31 - 5).values()), (1,))


@pytest.mark.parametrize("how", HOWS)
def test_a_hash_that_bounds(how):
    def given(r):
        return dict(x=np.arange(1, 9, dtype=np.float32), out=np.zeros((200, 8), np.float32))

    inside = np.arange(8) + 3 < _hash(np.arange(200))[:, None]
    want = dict(out=np.where(inside, np.arange(1, 9), -1).astype(np.float32))
    run(Case("hash", bounded_by_hash, given, lambda a: want, (200,)), how)


def hashed(p):
    """A hash by factors that indices have too."""
    h = ((p * 37 + p) * 29 + p) * 31 + p
    return (((h * 37 + p) * 37 + p) * 29 + p) * 37 + p


def a_hash_beside_a_dot(x, out):
    """The accumulator of a dot is no offset: what is added to it wraps."""
    p = tkc.program_id(0)
    h, i = hashed(p), tkc.load(x, (0, 0), (16, 16)).to(tkc.int32)
    product = tkc.dot(i, i) + h % 97 - tkc.where(h < 0, 1, 0)
    tkc.store(out[p], (0, 0), product.to(tkc.float32))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("options", [{}, {"num_warps": 1}, {"num_warps": 1, "num_stages": 1}])
def test_a_hash_beside_a_dot(options, how):
    x = np.arange(256, dtype=np.float32).reshape(16, 16) % 5
    p = np.arange(6, dtype=np.int32)
    with np.errstate(over="ignore"):
        h = hashed(p)
    assert (h < 0).any()
    places = (h % 97 - (h < 0))[:, None, None]

    def given(r):
        return dict(x=x, out=np.zeros((6, 16, 16), np.float32))

    want = dict(out=(x @ x + places).astype(np.float32))
    run(Case("dot", a_hash_beside_a_dot, given, lambda a: want, (6,), options=options), how)


def read_where_not_negative(x, out):
    p = tkc.program_id(0)
    h, v = hashed(p), tkc.full([8], 7.0, tkc.float32)
    if h >= 0:
        v = tkc.load(x, (h,), (8,))
    tkc.store(out, (p * 8,), v)


def read_outside_and_compared(x, out):
    p = tkc.program_id(0)
    h = hashed(p)
    v = tkc.load(x, (h,), (8,))
    tkc.store(out, (p * 8,), v + tkc.where(h < 0, 1.0, 0.0))


def read_in_no_iteration(x, out):
    p = tkc.program_id(0)
    h, v = hashed(p), tkc.zeros((8,), tkc.float32)
    for i in tkc.range(0, x.shape[0] - 16):
        v += tkc.load(x, (h + i,), (8,))
    tkc.store(out, (p * 8,), v + tkc.where(h < 0, 1.0, 0.0))


def masked_by_its_sign(x, out):
    p = tkc.program_id(0)
    at = hashed(p) + tkc.arange(8)
    v = tkc.load(x.ptr + at, mask=(at >= 0) & (at < x.shape[0]), other=5.0)
    tkc.store(out, (p * 8,), v)


def read_in_a_branch_beside_its_twin(x, out):
    """Both products are one where equal operations are joined."""
    p = tkc.program_id(0)
    h, g, v = hashed(p), hashed(p), tkc.zeros((8,), tkc.float32)
    if x.shape[0] > 16:
        v = tkc.load(x, (h,), (8,))
    tkc.store(out, (p * 8,), v + tkc.where(g < 0, 1.0, 0.0))


def a_sum_of_counters(x, out):
    total = 0
    for _ in tkc.range(0, 137 * x.shape[0] + tkc.program_id(0)):
        total = total + 1000003
    tkc.store(out, (0,), tkc.full((8,), tkc.where(total < 0, 1.0, 0.0), tkc.float32))


OF_OFFSETS = [
    read_in_a_branch_beside_its_twin,
    read_where_not_negative,
    read_outside_and_compared,
    read_in_no_iteration,
    masked_by_its_sign,
]


@pytest.mark.parametrize("kernel", OF_OFFSETS)
def test_an_integer_of_offsets_that_wraps_is_refused(kernel):
    """Also where nothing is accessed at it: what is compiled counts on its sign elsewhere."""
    module = traced(kernel, *(array(tkc.float32, 1),) * 2)
    given = [np.arange(16, dtype=np.float32), np.zeros(16, np.float32)]
    level0.run(module, given, (1,))
    with pytest.raises(OffsetOverflow, match="an integer that offsets may be made of wraps"):
        level0.run(module, given, (2,))


def stored_at_a_cast(x, out, numbers):
    """Two casts wrap: to another sign, and to fewer bits."""
    at = numbers[0].to(tkc.uint32).to(tkc.int32)
    tkc.store(out[64:128], (at,), tkc.load(x, (0,), (8,)))
    short = (numbers[0] & 0xFFFF).to(tkc.int16)
    tkc.store(out[192:], (short.to(tkc.int32),), tkc.load(x, (8,), (8,)))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("at", [-5, 9])
def test_an_offset_that_a_cast_wraps(at, how):
    """It is the number that the cast gives: a block there lies before a view's begin."""
    x = np.arange(1, 17, dtype=np.float32)
    out = np.zeros(256, np.float32)
    for begin, end, part in ((64, 128, x[:8]), (192, 256, x[8:])):
        inside = np.arange(begin + at, begin + at + 8)
        out[inside[(inside >= begin) & (inside < end)]] = part[(inside >= begin) & (inside < end)]

    def given(r):
        return dict(x=x, out=np.zeros(256, np.float32), numbers=np.array([at], np.int32))

    run(Case("cast", stored_at_a_cast, given, lambda a: dict(out=out)), how)


def data_in_a_while(y, out, n):
    x = y[0]
    i = s = 0
    while i < n:
        z = tkc.maximum(x, 0) + 5
        s = s + tkc.where(z < 0, 1, 0)
        x = z + y[i]
        i = i + 1
    tkc.store(out, (0,), tkc.full((8,), s, tkc.int32))


@pytest.mark.parametrize("how", HOWS)
def test_data_that_a_while_carries(how):
    """It is no index: what is added to it wraps."""

    def given(r):
        return dict(y=np.full(8, 2**31 - 1, np.int32), out=np.zeros(8, np.int32), n=2)

    run(Case("while", data_in_a_while, given, lambda _: dict(out=np.ones(8, np.int32))), how)


def read_where_a_wide_number_is_not_negative(x, out):
    p = tkc.program_id(0).to(tkc.int64)
    h = (((p * 50000 + 1) * 50000 + 1) * 50000 + 1) * 50000 + 1
    v = tkc.full((8,), 7.0, tkc.float32)
    if h >= 0:
        v = tkc.load(x, (h,), (8,))
    tkc.store(out, (tkc.program_id(0) * 8,), v)


@pytest.mark.parametrize("how", HOWS)
def test_a_product_of_64_bits_wraps(how):
    """Level 0 has no wider numbers to see it by."""
    p = np.arange(4, dtype=np.int64)
    with np.errstate(over="ignore"):
        h = (((p * 50000 + 1) * 50000 + 1) * 50000 + 1) * 50000 + 1
    assert (h < 0).any()

    def given(r):
        return dict(x=np.arange(1, 9, dtype=np.float32), out=np.zeros(32, np.float32))

    want = np.where(h < 0, 7, 0).repeat(8).astype(np.float32)
    case = Case(
        "wide", read_where_a_wide_number_is_not_negative, given, lambda a: dict(out=want), (4,)
    )
    run(case, how)


def test_a_sum_of_indices_that_wraps_is_refused():
    module = traced(a_sum_of_counters, *(array(tkc.float32, 1),) * 2)
    given = [np.arange(16, dtype=np.float32), np.zeros(16, np.float32)]
    with pytest.raises(OffsetOverflow, match="an integer that offsets may be made of wraps"):
        level0.run(module, given, (1,))


def extended_late(n):
    """Both are n + 5 and are extended, one of them when it may have wrapped."""
    return (n + 5).to(tkc.int64), n.to(tkc.int64) + 5


def extended_and_divided(n):
    return (n + 5).to(tkc.int64) // 2, (n.to(tkc.int64) + 5) // 2


def divided_then_extended(n):
    return ((n + 5) // 2).to(tkc.int64), (n.to(tkc.int64) + 5) // 2


def divided_apart(n):
    """The quotient of a product by its factor, unless the product wrapped."""
    return (n * 8 // 8).to(tkc.int64), n.to(tkc.int64)


def shifted_late(n):
    return (n << 4).to(tkc.int64), n.to(tkc.int64) << 4


STARTS = [extended_late, extended_and_divided, divided_then_extended, divided_apart, shifted_late]


def _counting(starts):
    def counted(out, n, trips):
        i, first = starts(n)
        total = tkc.zeros((8,), tkc.int64)
        for _ in tkc.range(first, first + trips):
            total, i = total + i, i + 1
        tkc.store(out, (0,), total)

    return counted


KERNELS = {starts: _counting(starts) for starts in STARTS}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("n", [5, 2**31 - 5, 2**31 - 3])
@pytest.mark.parametrize("starts", STARTS)
def test_a_number_beside_a_counter_that_wraps_before_it_is_extended(starts, n, how):
    def given(r):
        return dict(out=rubbish(8, np.dtype(np.int64)), n=n, trips=3)

    def narrow(x: int) -> int:
        return (x + 2**31) % 2**32 - 2**31

    first = {
        extended_late: narrow(n + 5),
        extended_and_divided: narrow(n + 5) // 2,
        divided_then_extended: narrow(n + 5) // 2,
        divided_apart: narrow(n * 8) // 8,
        shifted_late: narrow(n << 4),
    }[starts]
    want = dict(out=np.full(8, 3 * first + 3))
    run(Case(starts.__name__, KERNELS[starts], given, lambda a: want), how)
