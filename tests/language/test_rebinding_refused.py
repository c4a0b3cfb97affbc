"""Rebindings that cannot be followed are refused by name, and a trace leaves nothing behind.
(test_rebinding.py: those that can.)
"""

import contextlib
import ctypes
import queue
from array import array as array_of_python

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tests.language.oracle import agrees

TRIPS = [(n, c) for n in (0, 1, 2, 5) for c in (0, 1)]
STATE = [0, 0]


# ------------------------------------------------------------------------------------------ refused
def refused(f, match):
    with pytest.raises(tkc.CompileError, match=match):
        traced(f, array(tkc.int32), i32(), i32())


def test_value_of_one_branch_only():
    def f(out, n, c):
        if c > 0:
            x = 1
        tkc.store(out, (0,), x)

    refused(f, "one branch")


def test_value_of_the_body_used_after():
    def f(out, n, c):
        for k in tkc.range(n):
            x = k
        tkc.store(out, (0,), x)

    refused(f, "only inside")


@pytest.mark.parametrize("number, type_name", [(300, "int8"), (-1, "uint8"), (2**40, "int32")])
def test_a_number_that_does_not_fit_the_type_of_later_values(number, type_name):
    element = getattr(tkc, type_name)

    def loop(x, out, n, c):
        v = number
        for _k in tkc.range(n):
            v = tkc.load(x.ptr)
        tkc.store(out, (0,), v)

    def branch(x, out, n, c):
        v = tkc.load(x.ptr)
        if c > 0:
            v = number
        tkc.store(out, (0,), v)

    def expression(x, out, n, c):
        tkc.store(out, (0,), number if c > 0 else tkc.load(x.ptr))

    for f in (loop, branch, expression):
        with pytest.raises(tkc.CompileError, match=f"{number} against {type_name}"):
            traced(f, array(element), array(tkc.int64), i32(), i32())


def test_loop_variable_used_after():
    def f(out, n, c):
        k = 3
        for k in tkc.range(n):
            pass
        tkc.store(out, (0,), k)

    refused(f, "variable of the loop")


def test_none_before_is_none_inside():
    def f(out, n, c):
        last = None
        for k in tkc.range(n):
            last = k if last is None else last + k

    refused(f, "`last`.*None")


def test_none_in_a_container():
    def f(out, n, c):
        last = [None]
        for k in tkc.range(n):
            if last[0] is None:
                last[0] = k
            else:
                last[0] = last[0] + k

    refused(f, r"`last\[0\]`")


def test_append():
    def f(out, n, c):
        xs = []
        for k in tkc.range(n):
            xs.append(k)

    refused(f, "`xs` changes its length")


def test_new_key():
    def f(out, n, c):
        d = {}
        if c > 0:
            d["x"] = n

    refused(f, "`d` changes its keys")


def test_generator_advanced():
    def f(out, n, c):
        g = (i for i in [1, 2, 3])
        for k in tkc.range(n):
            tkc.store(out, (k,), next(g))

    refused(f, "generator")


def test_iterator_advanced():
    def f(out, n, c):
        g = iter([1, 2, 3])
        for k in tkc.range(n):
            tkc.store(out, (k,), next(g))

    refused(f, "iterator")


def test_numpy_array_changed():
    counts = np.zeros(3)

    def f(out, n, c):
        for _k in tkc.range(n):
            counts[0] += 1

    refused(f, "`.*counts` .ndarray. changes")


BYTES = {
    "array": lambda: array_of_python("i", [1, 2]),
    "memoryview": lambda: memoryview(bytearray(2)),
    "bytearray": lambda: bytearray(2),
    "ctypes": lambda: (ctypes.c_int * 2)(1, 2),
}


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_changed(kind):
    def f(out, n, c):
        a = BYTES[kind]()
        if c > 0:
            a[0] = 7
        tkc.store(out, (0,), a[0])

    refused(f, "`a` .* changes inside a branch")


def test_order_of_keys_changed():
    def f(out, n, c):
        d = {"x": 1, "y": 2}
        if c > 0:
            d["x"] = d.pop("x")
        tkc.store(out, (0,), next(iter(d.values())))

    refused(f, "`d` changes its keys")


OVER = {"zip": zip, "map": lambda xs: map(abs, xs), "filter": lambda xs: filter(None, xs)}


@pytest.mark.parametrize("kind", OVER)
def test_iterator_over_another_advanced(kind):
    def f(out, n, c):
        g = OVER[kind]([1, 2, 3])
        if c > 0:
            next(g)
        tkc.store(out, (0,), n)

    refused(f, "iterator. changes")


def test_queue_changed():
    def f(out, n, c):
        q = queue.Queue()
        q.put(1)
        if c > 0:
            q.get()

    refused(f, "changes its length")


def test_combination_with_a_side_effect():
    calls = [0]

    def combine(a, b):
        calls[0] = calls[0] + 1
        return a + b

    def f(out, n, c):
        tkc.reduce(tkc.arange(4), 0, combine)

    refused(f, "combination")


def test_set_changed():
    def f(out, n, c):
        s = {1}
        for _k in tkc.range(n):
            s.add(2)

    refused(f, "`s`")


def test_alias_of_a_replaced_list():
    def f(out, n, c):
        a = [1, c]
        b = a
        for _k in tkc.range(n):
            a = [v + 1 for v in a]
        a[0] = 5
        tkc.store(out, (0,), b[0])

    refused(f, "`a`.*also refers")


def test_changed_in_place_and_replaced():
    def f(out, n, c):
        a = [1, c]
        for k in tkc.range(n):
            a[0] = k
            a = [v + 1 for v in a]
        tkc.store(out, (0,), a[0])

    refused(f, "`a`")


def test_changed_in_one_branch_and_replaced_in_the_other():
    def f(out, n, c):
        s = [1, 2]
        if c > 0:
            s[0] = n
        else:
            s = [5, 6]
        tkc.store(out, (0,), s[0])

    refused(f, "`s`")


def test_type_changes():
    def f(out, n, c):
        x = n
        for _k in tkc.range(n):
            x = x + 0.5
        tkc.store(out, (0,), x)

    refused(f, "`x`.*int32 against float32")


def test_shape_changes():
    def f(out, n, c):
        x = tkc.zeros((4,))
        for _k in tkc.range(n):
            x = x[None, :]

    refused(f, r"`x`.*float32\[4\] against float32\[1, 4\]")


def test_break_and_continue():
    def f(out, n, c):
        for k in tkc.range(n):
            if k > 2:
                break

    refused(f, "`break`.*test it in the head of the loop: `while")

    def h(out, n, c):
        for _k in range(3):
            if n > 2:
                break

    refused(h, "`break` under a traced condition")


def test_return_in_a_loop():
    def f(out, n, c):
        for k in tkc.range(n):
            if k > 2:
                return

    refused(f, "`return`")


def test_escape_through_an_unseen_place():
    class Hidden:
        __slots__ = ("__weakref__",)

    kept = {}
    hidden = Hidden()

    def f(out, n, c):
        for k in tkc.range(n):
            v = k + 1

            def g():
                return v

            holder = g
        tkc.store(out, (0,), holder())

    refused(f, "only inside")


def test_global_assigned():
    def f(out, n, c):
        global STATE
        STATE = 3

    refused(f, "global STATE")


def test_helper_without_source():
    scope = {}
    exec("def hidden(x):\n    if x > 1: return x\n    return 0", scope)
    hidden = scope["hidden"]

    def f(out, n, c):
        tkc.store(out, (0,), hidden(n))

    refused(f, "`hidden`")


def test_assignment_in_a_conditional_expression():
    s = [0]

    def f(out, n, c):
        tkc.store(out, (0,), s.__setitem__(0, n) or 1 if c > 0 else 2)

    refused(f, "conditional expression")


def test_a_lost_slot_that_is_not_read():
    def f(out, n, c):
        d = {"last": None, "sum": 0}
        for k in tkc.range(n):
            d["last"] = k
            d["sum"] = d["sum"] + k
            if k > 1:
                d["sum"] = d["sum"] + 1
        tkc.store(out, (0,), d["sum"])
        d["last"] = 3
        tkc.store(out, (1,), d["last"])

    agrees(lambda: f, *TRIPS)


# -------------------------------------------------------------------------------------- a trace lea
def test_no_traced_values_stay_in_globals():
    STATE[0], STATE[1] = 3, 4

    def good(out, n, c):
        STATE[0] = n

    def bad(out, n, c):
        for k in tkc.range(n):
            STATE[1] = k + tkc.arange(4)

    traced(good, array(tkc.int32), i32(), i32())
    with contextlib.suppress(tkc.CompileError):
        traced(bad, array(tkc.int32), i32(), i32())
    assert STATE == [3, 4]


def test_threads_do_not_share_a_trace():
    from concurrent.futures import ThreadPoolExecutor

    from tkc.ir.text import show

    def f(out, n, c):
        for k in tkc.range(n):
            tkc.store(out, (k,), k * c)

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: show(traced(f, array(tkc.int32), i32(), i32())), range(16)))
    assert len(set(texts)) == 1
