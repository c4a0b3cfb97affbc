"""tkc.lambda_lift: where captured arrays are found, which functions are one, what a kernel reads
of them, and the gradients that it adds up.
"""

import collections
import functools
import types

import numpy as np
import pytest

import tkc

OF_THE_MODULE = np.array([2.0, 3.0], np.float32)
FACTOR = 1.0
HUNDREDS = np.array([1, 10, 100], np.float32)


@tkc.jit
def apply(out, a, b, c, d, F: tkc.constexpr, M: tkc.constexpr, N: tkc.constexpr):
    f = F.of(*F.elements(a, b, c, d))
    i, j = tkc.arange(M)[:, None], tkc.arange(N)[None, :]
    tkc.store(out, (0, 0), tkc.zeros((M, N)) + f(i, j))


def values(f, shape=(3, 5)):
    lifted, arrays = tkc.lambda_lift(f)
    out = np.zeros(shape, np.float32)
    apply[1](out, *arrays, *[None] * (4 - len(arrays)), lifted, *shape)
    return out


def grid(shape=(3, 5)):
    return np.indices(shape)


def test_a_closure():
    table = np.arange(15, dtype=np.float32).reshape(3, 5)

    def f(i, j):
        return table[i, j] * 2

    assert (values(f) == table * 2).all()


def test_a_global_a_default_and_a_partial():
    row = np.arange(5, dtype=np.float32)

    def want(i, j, factors):
        return j * factors[i % 2] + HUNDREDS[i] + 1

    def f(scale, i, j, column=HUNDREDS):
        return row[j] * scale[i % 2] + column[i] + OF_THE_MODULE[1]

    i, j = grid()
    factors = np.array([5, 7], np.float32)
    assert (values(lambda i, j: f(factors, i, j) - OF_THE_MODULE[0]) == want(i, j, factors)).all()
    found = values(functools.partial(f, factors))
    assert (found == want(i, j, factors) + 2).all()


class Table:
    def __init__(self, numbers):
        self.numbers, self.deeper = numbers, {"more": [numbers[:1]]}

    def __call__(self, i, j):
        return self.numbers[j] + self.deeper["more"][0][0]

    def of_rows(self, i, j):
        return self.numbers[i]


def test_an_object_and_its_method():
    table = Table(np.arange(5, dtype=np.float32) + 1)
    i, j = grid()
    assert (values(table) == j + 2).all()
    assert (values(table.of_rows) == i + 1).all()
    assert isinstance(table.numbers, np.ndarray)  # the object itself is as it was


def test_functions_within_functions():
    rows, columns = np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)

    def both(*parts):
        def f(i, j):
            return sum(p(i, j) for p in parts)

        return f

    i, j = grid()
    found = values(both(lambda i, j: rows[i] * 10, lambda i, j: columns[j]))
    assert (found == i * 10 + j).all()


def test_what_lies_outside_is_zero_and_negative_indices_count_from_the_end():
    row = np.arange(1, 4, dtype=np.float32)
    i, j = grid((4, 9))
    at = j - 3
    want = np.where((at >= -3) & (at < 3), row[np.clip(at, -3, 2)], 0)
    assert (values(lambda i, j: row[j - 3], (4, 9)) == want).all()


def test_fewer_indices_than_axes_and_rank_zero():
    table, half = np.arange(15, dtype=np.float32).reshape(3, 5), np.array(0.5, np.float32)
    assert (values(lambda i, j: table[1][j] * half + (half < 1)) == table[1] * 0.5 + 1).all()


def test_element_types():
    seen, many = np.array([True, False, True, False, True]), np.arange(5) * 1000
    i, j = grid()
    want = np.where(seen[j], many[j], -1)
    assert (values(lambda i, j: tkc.where(seen[j], many[j].to(tkc.float32), -1.0)) == want).all()


def made(factor):
    row = np.arange(5, dtype=np.float32)
    return lambda i, j: row[j] * factor


def test_equal_functions_are_one():
    first, second, other = (tkc.lambda_lift(made(n))[0] for n in (2, 2, 3))
    assert first is second and first != other and hash(first) == hash(second)
    assert repr(first) == repr(second) != repr(other)
    assert tkc.lambda_lift(made(2.0))[0] != first  # 2 and 2.0 are other code
    before = len(apply._compiled)
    values(made(4))
    values(made(4))
    assert len(apply._compiled) == before + 1


def test_a_rebound_number_is_another_function(monkeypatch):
    def f(i, j):
        return j * FACTOR

    i, j = grid()
    assert (values(f) == j).all()
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert (values(f) == j * 3).all()


def test_one_array_twice_is_one_argument():
    row = np.arange(5, dtype=np.float32)
    _, arrays = tkc.lambda_lift(lambda i, j: row[j] + row[i])
    assert len(arrays) == 1 and arrays[0] is row


@tkc.jit
def gradients(x, g, dx, a, b, c, da, db, dc, F: tkc.constexpr, M: tkc.constexpr, N: tkc.constexpr):
    elements = F.elements(a, b, c)
    i, j = tkc.arange(M)[:, None], tkc.arange(N)[None, :]
    _, pull = tkc.vjp(lambda s, *read: F.of(*read)(s, i, j), tkc.load(x, (0, 0), (M, N)), *elements)
    of_x, *of_arrays = pull(tkc.load(g, (0, 0), (M, N)))
    tkc.store(dx, (0, 0), of_x)
    for part, array in zip(of_arrays, (da, db, dc), strict=False):
        part.add_to(array)


def test_gradients_of_captured_arrays():
    """By index patterns: each element, a row shared by all, a number."""
    table = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    row, number = np.arange(4, dtype=np.float32), np.array(1.5, np.float32)

    def f(s, i, j):
        return s * table[i, j] + row[j - i] * row[j] * number

    lifted, arrays = tkc.lambda_lift(f)
    x, g = np.random.default_rng(1).standard_normal((2, 3, 5)).astype(np.float32)
    dx, found = np.zeros_like(x), [np.zeros(a.shape, np.float32) for a in arrays]
    gradients[1](x, g, dx, *arrays, *found, lifted, 3, 5)
    i, j = grid()

    def read(at):
        return np.where((at >= -4) & (at < 4), row[np.clip(at, -4, 3)], 0)

    want_row = np.zeros(4)
    for at, other in ((j - i, j), (j, j - i)):
        inside = (at >= -4) & (at < 4)
        np.add.at(want_row, at[inside] % 4, (g * read(other) * number)[inside])
    named = {a.shape: d for a, d in zip(arrays, found, strict=True)}
    np.testing.assert_allclose(dx, g * table, rtol=1e-6)
    np.testing.assert_allclose(named[3, 5], g * x, rtol=1e-6)
    np.testing.assert_allclose(named[4,], want_row, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(named[1,], (g * read(j - i) * read(j)).sum(), rtol=1e-5)


TABLE = np.zeros((3, 5), np.float32)
REFUSED = {
    "takes no part in arithmetic": lambda i, j: TABLE[i] + 1,
    "3 indices for a captured array of float32, rank 2": lambda i, j: TABLE[i, j, j],
    "indexed by integers, one an axis, got 0.5": lambda i, j: TABLE[i, 0.5],
    "indexed by integers, one an axis, got slice": lambda i, j: TABLE[i, :],
    "cannot be iterated": lambda i, j: [x for x in TABLE],
    "has no truth value": lambda i, j: 1 if TABLE else 2,
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message):
    with pytest.raises(tkc.CompileError, match=message):
        values(REFUSED[message])


def test_what_is_no_function():
    with pytest.raises(tkc.LaunchError, match="takes a function, got int"):
        tkc.lambda_lift(3)


def test_functions_and_methods_of_torch():
    torch = pytest.importorskip("torch")
    slopes = torch.tensor([0.5, 2.0, -1.0])

    def f(i, j):
        x = torch.where(i >= j, slopes[i], torch.tensor(0.25))
        return torch.tanh(x).abs() + (j - i).clamp(0, 2).float() * torch.div(
            j, 2, rounding_mode="floor"
        )

    i, j = grid()
    x = np.where(i >= j, slopes.numpy()[i], 0.25)
    np.testing.assert_allclose(
        values(f), abs(np.tanh(x)) + np.clip(j - i, 0, 2) * (j // 2), rtol=1e-6
    )
    with pytest.raises(tkc.CompileError, match="torch.cumsum of a traced value"):
        values(lambda i, j: torch.cumsum(j, 0))


class OfAClass:
    value = 2.0

    def method(self):
        return 2.0


class InASlot:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 2.0


def of_a_module():
    held = types.ModuleType("of_a_test")
    held.value = 2.0
    return held, lambda i, j: i + j * held.value, lambda to: setattr(held, "value", to)


def of_a_class():
    held = OfAClass()
    return held, lambda i, j: i + j * held.value, lambda to: setattr(OfAClass, "value", to)


def of_a_slot():
    held = InASlot()
    return held, lambda i, j: i + j * held.value, lambda to: setattr(held, "value", to)


def of_a_deque():
    held = collections.deque([2.0])
    return held, lambda i, j: i + j * held[0], lambda to: held.__setitem__(0, to)


def of_a_method():
    held = OfAClass()
    return (
        held,
        lambda i, j: i + j * held.method(),
        lambda to: setattr(OfAClass, "method", lambda self: to),
    )


@pytest.mark.parametrize("make", [of_a_module, of_a_class, of_a_slot, of_a_deque, of_a_method])
def test_what_a_function_reads_may_change_where_its_key_stays(make):
    _, f, change = make()
    i, j = grid()
    for value in (2.0, 3.0, 2.0):
        change(value)
        for _ in range(2):
            assert (values(f) == i + j * value).all()
