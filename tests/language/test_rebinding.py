"""Tries to make the tracer lose a rebinding: each kernel must do what Python does, for zero, one
and more trips, or refuse.
"""

import contextlib
import copy
import functools
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import NamedTuple

import tkc
from tests.language import state_of_a_module
from tests.language.oracle import agrees
from tkc.language.state import Snapshot

TRIPS = [(n, c) for n in (0, 1, 2, 5) for c in (0, 1)]
STATE = [0, 0]
COUNTER = SimpleNamespace(n=0)


def kernel(f):
    """A test from a kernel of (out, n, c) that runs as plain Python too."""

    def test():
        agrees(lambda: f, *TRIPS)

    test.__name__ = f.__name__
    return test


def made(make):
    """As `kernel`, from a function that makes the kernel (for closures)."""

    def test():
        agrees(make, *TRIPS)

    test.__name__ = make.__name__
    return test


@kernel
def test_a_number_becomes_carried(out, n, c):
    i = 0
    for _k in tkc.range(n):
        i = i + 1
    tkc.store(out, (0,), i)


@kernel
def test_continue_in_a_nested_branch(out, n, c):
    while c < n:
        c = c + 1
        if c > 2:
            if n > 3:
                continue
            n = n - 1
        c = c + n
    tkc.store(out, (0,), c)
    tkc.store(out, (1,), n)


@kernel
def test_swap_of_two_carried_variables(out, n, c):
    a, b = n + 1, c + 7
    for _k in tkc.range(n):
        a, b = b, a
    tkc.store(out, (0,), a)
    tkc.store(out, (1,), b)


@kernel
def test_rotation_of_three_with_an_invariant(out, n, c):
    a, b, d, e = n + 1, c + 7, n * 3, c + 100
    for _k in tkc.range(n):
        a, b, d = b, d, a + e
    tkc.store(out, (0,), a)
    tkc.store(out, (1,), b)
    tkc.store(out, (2,), d)


@kernel
def test_copy_of_an_invariant(out, n, c):
    a, b = n + 1, c + 7
    for _k in tkc.range(n):
        a = b
    tkc.store(out, (0,), a)


@kernel
def test_augmented_assignment(out, n, c):
    a = c
    for k in tkc.range(n):
        a += k
        a *= 2
        a -= 1
        a ^= 3
    tkc.store(out, (0,), a)


@kernel
def test_nested_loops(out, n, c):
    a, b = 0, 1
    for i in tkc.range(n):
        for j in tkc.range(i, n):
            a, b = a + b, b + j
        b = b - a
    tkc.store(out, (0,), a)
    tkc.store(out, (1,), b)


@kernel
def test_inner_initialised_in_the_outer(out, n, c):
    total = 0
    for i in tkc.range(n):
        inner = i
        for j in tkc.range(i):
            inner = inner + j
        total = total + inner
    tkc.store(out, (0,), total)


@kernel
def test_conditional_assignment(out, n, c):
    a = 5
    if c > 0:
        a = n
    tkc.store(out, (0,), a)


@kernel
def test_conditional_in_a_loop(out, n, c):
    even, odd = 0, 0
    for k in tkc.range(n):
        if k % 2 == 0:
            even = even + k
        elif c == 0:
            odd = odd + k
        else:
            odd = odd - k
    tkc.store(out, (0,), even)
    tkc.store(out, (1,), odd)


@kernel
def test_both_branches_define(out, n, c):
    if n > 1:
        x = n
        y = 3
    else:
        x = c
        y = 4
    tkc.store(out, (0,), x + y)


@kernel
def test_list_elements(out, n, c):
    state = [0, 1, c]
    for _k in tkc.range(n):
        state[0] = state[0] + state[1]
        state[1] = state[1] + state[2] + 1
    tkc.store(out, (0,), state[0])
    tkc.store(out, (1,), state[1])
    tkc.store(out, (2,), state[2])


@kernel
def test_two_names_for_one_list(out, n, c):
    a = [c, 1]
    b = a
    for _k in tkc.range(n):
        a[0] = a[0] + b[1]
        b[1] = b[1] + a[0]
    tkc.store(out, (0,), a[0])
    tkc.store(out, (1,), b[0])
    tkc.store(out, (2,), a[1])
    tkc.store(out, (3,), b[1])


@kernel
def test_alias_of_a_scalar(out, n, c):
    a = c + 0
    b = a
    for _k in tkc.range(n):
        a = a + 1
    tkc.store(out, (0,), a)
    tkc.store(out, (1,), b)


@kernel
def test_nested_containers(out, n, c):
    s = {"x": [0, (1, [c])], "y": 2}
    for k in tkc.range(n):
        s["x"][1][1][0] = s["x"][1][1][0] + s["y"]
        s["y"] = s["y"] + k
    tkc.store(out, (0,), s["x"][1][1][0])
    tkc.store(out, (1,), s["y"])


@kernel
def test_a_list_in_a_branch(out, n, c):
    s = [1, 2]
    if c > 0:
        s[0] = n
    else:
        s[1] = n
    tkc.store(out, (0,), s[0])
    tkc.store(out, (1,), s[1])


@kernel
def test_a_fresh_list_each_time(out, n, c):
    s = [1, c]
    for k in tkc.range(n):
        s = [v + k for v in s]
    tkc.store(out, (0,), s[0])
    tkc.store(out, (1,), s[1])


@kernel
def test_a_tuple_each_time(out, n, c):
    s = (1, c)
    for k in tkc.range(n):
        s = (s[1], s[0] + k)
    tkc.store(out, (0,), s[0])
    tkc.store(out, (1,), s[1])


@kernel
def test_global_state(out, n, c):
    STATE[0], STATE[1] = c, 0
    for k in tkc.range(n):
        x = STATE[0]
        STATE[0] = x + 1
        tkc.store(out, (k,), x)
    tkc.store(out, (9,), STATE[0])


def bump(by):
    COUNTER.n = COUNTER.n + by


@kernel
def test_global_state_of_a_helper(out, n, c):
    COUNTER.n = 0
    for k in tkc.range(n):
        bump(k + 1)
    tkc.store(out, (0,), COUNTER.n)


@made
def test_nonlocal_of_an_outer_function():
    total = 0

    def add(v):
        nonlocal total
        total = total + v

    def kernel(out, n, c):
        nonlocal total
        total = c
        for k in tkc.range(n):
            add(k)
        tkc.store(out, (0,), total)

    return kernel


@made
def test_closure_not_named_by_the_kernel():
    cell = 0

    def add(v):
        nonlocal cell
        cell = cell + v

    def get():
        return cell

    def reset():
        nonlocal cell
        cell = 0

    def kernel(out, n, c):
        reset()
        for k in tkc.range(n):
            add(k + 1)
            tkc.store(out, (k,), get())
        tkc.store(out, (9,), get())

    return kernel


@kernel
def test_nonlocal_of_an_inner_function(out, n, c):
    total = c

    def add(v):
        nonlocal total
        total = total + v

    for k in tkc.range(n):
        add(k)
    if c > 0:
        add(10)
    tkc.store(out, (0,), total)


@kernel
def test_inner_function_reads_the_carried(out, n, c):
    a = 1

    def read():
        return a * 2

    for k in tkc.range(n):
        a = read() + k
    tkc.store(out, (0,), read())


class Point(NamedTuple):
    x: object
    y: object


@dataclass
class Box:
    x: object
    y: object


@dataclass(frozen=True)
class Frozen:
    x: object
    y: object


class Slotted:
    __slots__ = ("x",)


@kernel
def test_named_tuple(out, n, c):
    p = Point(0, c)
    for _k in tkc.range(n):
        p = p._replace(x=p.x + p.y, y=p.y + 1)
    tkc.store(out, (0,), p.x)
    tkc.store(out, (1,), p.y)


@kernel
def test_dataclass_fields(out, n, c):
    p = Box(0, c)
    q = p
    for _k in tkc.range(n):
        p.x += q.y
        q.y += 1
    tkc.store(out, (0,), q.x)
    tkc.store(out, (1,), p.y)


@kernel
def test_frozen_dataclass(out, n, c):
    p = Frozen(0, c)
    for k in tkc.range(n):
        p = replace(p, x=p.x + p.y, y=p.y + k)
    tkc.store(out, (0,), p.x)
    tkc.store(out, (1,), p.y)


@kernel
def test_slots(out, n, c):
    p = Slotted()
    p.x = c
    for k in tkc.range(n):
        p.x = p.x + k
    tkc.store(out, (0,), p.x)


def deep(s, k):
    s[0] = s[0] + k
    if k > 1:
        s[0] = s[0] + 100


@kernel
def test_helper_changes_its_argument(out, n, c):
    s = [c]
    for k in tkc.range(n):
        deep(s, k)
    tkc.store(out, (0,), s[0])


def loops_on_something_else(read, n):
    total = 0
    for k in tkc.range(n):
        total = total + read(k)
    return total


@kernel
def test_callers_state_changed_in_a_helpers_loop(out, n, c):
    s = [c]

    def read(k):
        s[0] = s[0] + 1
        return s[0] * k

    tkc.store(out, (0,), loops_on_something_else(read, n))
    tkc.store(out, (1,), s[0])


@kernel
def test_python_loop_inside_a_traced_one(out, n, c):
    a, b = [0, 0, 0], c
    for k in tkc.range(n):
        for i, step in enumerate([1, 2, 3]):
            a[i] = a[i] + step * k
            b = b + a[i]
    for i in range(3):
        tkc.store(out, (i,), a[i])
    tkc.store(out, (3,), b)


@kernel
def test_traced_loop_inside_a_python_one(out, n, c):
    a = c
    for i in range(3):
        for k in tkc.range(n):
            a = a + i * k
    tkc.store(out, (0,), a)


@kernel
def test_shadowed_name_in_a_comprehension(out, n, c):
    a, k = c, 0
    for i in tkc.range(n):
        parts = [k + i for k in (1, 2)]
        a = a + parts[0] * parts[1] + k
    tkc.store(out, (0,), a)


@kernel
def test_walrus(out, n, c):
    a = 0
    for k in tkc.range(n):
        b = (a := a + k) + 1
    tkc.store(out, (0,), a)


@kernel
def test_while(out, n, c):
    i, total = 0, c
    while i < n:
        total = total + i
        i = i + 1
    tkc.store(out, (0,), total)
    tkc.store(out, (1,), i)


@kernel
def test_while_whose_test_assigns(out, n, c):
    i = 0
    while (i := i + 1) < n:
        c = c + i
    tkc.store(out, (0,), c)
    tkc.store(out, (1,), i)


@kernel
def test_while_that_starts_in_python(out, n, c):
    i, total = 0, 0
    while i < 3 and total >= 0:
        total = total + n
        i = i + 1
    tkc.store(out, (0,), total)


@kernel
def test_while_over_a_list(out, n, c):
    s = [0, n]
    while s[0] < s[1] and s[0] < 3:
        s[0] = s[0] + 1
        s[1] = s[1] - c
    tkc.store(out, (0,), s[0])
    tkc.store(out, (1,), s[1])


@kernel
def test_backwards(out, n, c):
    a = 0
    for k in tkc.range(n, -2, -2):
        a = a * 3 + k
    tkc.store(out, (0,), a)


@kernel
def test_steps_and_starts(out, n, c):
    a = 0
    for k in tkc.range(c - 3, n + 4, 3):
        a = a * 3 + k
    for k in range(c, n, c + 1):
        a = a - k
    tkc.store(out, (0,), a)


@kernel
def test_flag(out, n, c):
    first, a = True, 0
    for _k in tkc.range(n):
        a = a + 10 if first else a + 1
        first = False
    tkc.store(out, (0,), a)


@kernel
def test_constant_set_again(out, n, c):
    BLOCK, a = 4, 0
    for _k in tkc.range(n):
        BLOCK = 4
        a = a + len([0] * BLOCK)
    tkc.store(out, (0,), a + len([0] * BLOCK))


@kernel
def test_early_return(out, n, c):
    tkc.store(out, (0,), 1)
    if n == 2:
        return
    tkc.store(out, (1,), 2)
    if c == 1:
        tkc.store(out, (2,), 3)
        return
    elif n == 1:
        return
    tkc.store(out, (3,), n)


def pick(a, b):
    if a > b:
        return a * 2
    if a == b:
        return a
    return b


@kernel
def test_helper_that_returns_by_branch(out, n, c):
    tkc.store(out, (0,), pick(n, c))
    tkc.store(out, (1,), pick(c, n) + pick(c, c))


@kernel
def test_boolean_operators(out, n, c):
    a = 0
    if n > 1 and c > 0:
        a = a + 1
    if n > 1 or c > 0:
        a = a + 2
    if not c:
        a = a + 4
    if 0 < n < 3:
        a = a + 8
    if n and not (c and n > 3):
        a = a + 16
    a = a + (32 if n > c else 64) + min(n, 3) * 128 + max(n, c, 1) * 1024
    tkc.store(out, (0,), a)


@kernel
def test_conditional_inside_conditional(out, n, c):
    a, b = 0, 0
    if n > 0:
        if c > 0:
            a = 1
        else:
            b = 2
        a = a + 10
    else:
        b = b + 5
    tkc.store(out, (0,), a)
    tkc.store(out, (1,), b)


@kernel
def test_loop_variable_rebound(out, n, c):
    a = 0
    for k in tkc.range(n):
        k = k * 2
        a = a + k
    tkc.store(out, (0,), a)


@kernel
def test_loop_else(out, n, c):
    a = 0
    for _k in tkc.range(n):
        a = a + 1
    else:
        a = a + 100
    for i in range(3):
        if i == 1:
            break
    else:
        a = a + 1000
    tkc.store(out, (0,), a)


@kernel
def test_defaults_and_deletion(out, n, c):
    a = 0
    for k in tkc.range(n):
        t = k + 1

        def f(x, t=t):
            return x + t

        a = f(a)
        del t
    tkc.store(out, (0,), a)


@kernel
def test_partial_update_in_a_branch_in_a_loop(out, n, c):
    s = [0, 0]
    t = s
    for k in tkc.range(n):
        if k > c:
            s[0] = t[1] + k
        t[1] = s[0] + 1
    tkc.store(out, (0,), s[0])
    tkc.store(out, (1,), s[1])


class Settings:
    x = 0


@kernel
def test_class_attribute(out, n, c):
    Settings.x = c
    for k in tkc.range(n):
        Settings.x = Settings.x + k
    tkc.store(out, (0,), Settings.x)


@kernel
def test_attribute_of_a_module(out, n, c):
    state_of_a_module.total = c
    for k in tkc.range(n):
        state_of_a_module.total = state_of_a_module.total + k
    tkc.store(out, (0,), state_of_a_module.total)


def counting():
    counting.calls = counting.calls + 1


@kernel
def test_attribute_of_a_function(out, n, c):
    counting.calls = c
    for _k in tkc.range(n):
        counting()
    tkc.store(out, (0,), counting.calls)


@kernel
def test_inner_function_of_a_name_first_bound_in_the_loop(out, n, c):
    def read():
        return t

    a = 0
    for k in tkc.range(n):
        t = k + a
        a = a + read()
    tkc.store(out, (0,), a)


@kernel
def test_deep_copies(out, n, c):
    s = {"x": [c, 0]}
    before = copy.deepcopy(s)
    for _k in tkc.range(n):
        s["x"][0] = s["x"][0] + before["x"][0] + 1
    tkc.store(out, (0,), s["x"][0])
    tkc.store(out, (1,), before["x"][0])


@kernel
def test_try_and_with(out, n, c):
    a = 0
    for k in tkc.range(n):
        with contextlib.nullcontext(k + 1) as x:
            try:
                a = a + x
            finally:
                a = a + 1
    tkc.store(out, (0,), a)


@kernel
def test_match(out, n, c):
    a = 0
    for mode in ("add", "subtract"):
        for k in tkc.range(n):
            match mode:
                case "add":
                    a = a + k
                case _:
                    a = a - 2 * k
    tkc.store(out, (0,), a)


@kernel
def test_star_unpacking(out, n, c):
    a, *rest = [c, 1, 2]
    for k in tkc.range(n):
        a, *rest = [*rest, a + k]
    tkc.store(out, (0,), a)
    tkc.store(out, (1,), rest[0])
    tkc.store(out, (2,), rest[1])


class Accumulator:
    """A stateful helper object with a method that branches."""

    def __init__(self, start):
        self.total, self.__hidden = start, 0

    def add(self, v):
        if v > 1:
            self.total = self.total + v
        self.__hidden = self.__hidden + 1
        return self

    def __call__(self):
        return self.total * 100 + self.__hidden


@kernel
def test_object_with_methods(out, n, c):
    box = Accumulator(c)
    for k in tkc.range(n):
        box.add(k).add(k + 1)
    tkc.store(out, (0,), box())


class Doubled:
    """An object with an attribute that is computed once."""

    def __init__(self, start):
        self.start = start

    @functools.cached_property
    def twice(self):
        return self.start * 2

    thrice = functools.partialmethod(lambda self, times: self.start * times, 3)


@kernel
def test_a_class_with_cached_properties(out, n, c):
    box = Doubled(c)
    total = box.twice
    for k in tkc.range(n):
        total = total + box.twice + Doubled(k).twice + box.thrice()
    tkc.store(out, (0,), total)


def test_what_changed_is_listed_in_the_order_of_the_names():
    """Loops carry it in this order: the code of a kernel does not depend on the seed of hashes."""
    names = [f"name{i}" for i in range(40)]
    snapshot = Snapshot.take(dict.fromkeys(names, 1), [])
    changed = snapshot.changes(dict.fromkeys(names, 2) | {"new": 2}, "a loop")
    assert [name for _, name in changed] == [*names, "new"]


class Named(list):
    """A list with attributes."""


class Table(dict):
    """A dict with attributes."""


class Pair(tuple):
    """A tuple with attributes."""


@kernel
def test_attributes_of_lists_dicts_and_tuples(out, n, c):
    a, d, p = Named([1, 2]), Table(x=1), Pair((3, 4))
    a.extra = d.extra = p.extra = 3
    if c > 0:
        a.extra = 7
        p.extra = n
    for k in tkc.range(n):
        d.extra = d.extra + k
        a[0] = a[0] + a.extra
        d["x"] = d["x"] + p.extra
    tkc.store(out, (0,), a[0] * 10 + a.extra)
    tkc.store(out, (1,), d["x"] * 10 + d.extra)
    tkc.store(out, (2,), p[0] + p.extra)


@made
def test_defaults_of_keywords():
    def f(out, n, c):
        def held(*, values=[1]):  # noqa: B006  # the one list is what is tested
            return values

        if c > 0:
            held()[0] = 5
        tkc.store(out, (0,), n + held()[0])

    return f


@made
def test_methods_of_a_list_that_nothing_else_holds():
    def methods():
        held = [1]
        return held.__setitem__, held.__getitem__

    put, get = methods()

    def f(out, n, c):
        put(0, 1)
        if c > 0:
            put(0, 5)
        for k in tkc.range(n):
            put(0, get(0) + k)
        tkc.store(out, (0,), get(0))

    return f
