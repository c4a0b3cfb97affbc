"""Whatever object of Python a traced region changes: the kernel does what Python does, or is
refused. Each kind of object is made, changed in a region and read behind it.
"""

import array
import collections
import contextlib
import contextvars
import copy
import ctypes
import enum
import functools
import io
import itertools
import operator
import os
import queue
import random
import tempfile
import threading
import types
import weakref
from dataclasses import dataclass

import numpy as np
import pytest

import tkc
from tests.language.kernels import array as array_type
from tests.language.kernels import i32, traced
from tests.language.oracle import agrees

TRIPS = [(0, 0), (0, 1), (5, 0), (5, 1)]
KINDS: dict[str, tuple] = {}


def kind(cls):
    """A class of three functions: make() -> object, change(object), read(object) -> number."""
    KINDS[cls.__name__] = cls.make, cls.change, cls.read
    return cls


def simple(name, make, change, read):
    KINDS[name] = make, change, read


class Holder:
    def __init__(self):
        self.value = 1

    def __call__(self):
        return 1


class Slots:
    __slots__ = ("value", "other")

    def __init__(self):
        self.value = 1


class PrivateSlots:
    """Python gives such a slot another name."""

    __slots__ = ("__value",)

    def __init__(self):
        self.__value = 1

    def put(self, value):
        self.__value = value

    def get(self):
        return self.__value


class HiddenSlots(Slots):
    """Its base has a slot of the same name, which holds something else."""

    __slots__ = ("value",)

    def put(self, value):
        Slots.value.__set__(self, value)

    def get(self):
        return Slots.value.__get__(self) * 10 + self.value

    def __init__(self):
        self.value = 2
        self.put(1)


class Meta(type):
    value = 1


class Error(Exception):
    def __init__(self):
        super().__init__(1)
        self.value = 1


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Record:
    values: list


def subclass(base):
    class Sub(base):
        pass

    return Sub


def counted():
    i = 1
    while True:
        yield i
        i += 1


def put(obj, value):
    obj.value = value


def value_of(obj):
    return obj.value


def first_put(obj):
    obj[0] = 5


def first(obj):
    return obj[0]


def advance(obj):
    next(obj)


def following(obj):
    return next(copy.copy(obj))


def new_class():
    return type("Fresh", (), {"value": 1})


# containers and memory
simple("list", lambda: [1, 2], first_put, first)
simple("list_reversed", lambda: [1, 2], lambda x: x.reverse(), first)
simple("dict", lambda: {0: 1}, first_put, first)
simple("dict_order", lambda: {1: 1, 2: 2}, lambda x: x.update({1: x.pop(1)}), lambda x: [*x][0])
simple("ordered", lambda: collections.OrderedDict(a=1, b=2), lambda x: x.move_to_end("a"),
       lambda x: [*x.values()][0])  # fmt: skip
simple("counter", lambda: collections.Counter("ab"), lambda x: x.update("a"), lambda x: x["a"])
simple("deque", lambda: collections.deque([1, 2, 3]), lambda x: x.rotate(1), first)
simple("user_list", lambda: collections.UserList([1]), first_put, first)
simple("set", lambda: {1}, lambda x: x.add(2), len)
simple("array", lambda: array.array("i", [1]), first_put, first)
simple("bytearray", lambda: bytearray([1]), first_put, first)
simple("memoryview", lambda: memoryview(bytearray([1])), first_put, first)
simple("c_number", lambda: ctypes.c_int(1), put, value_of)
simple("c_array", lambda: (ctypes.c_int * 2)(1, 2), first_put, first)
simple("numpy", lambda: np.ones(2, int), first_put, first)
simple("numpy_objects", lambda: np.ones(2, object), first_put, first)
simple("numpy_of_lists", lambda: np.array([[1], None], object), lambda x: first_put(x[0]),
       lambda x: first(x[0]))  # fmt: skip
simple("bytes_stream", lambda: io.BytesIO(b"abc"), lambda x: x.write(b"xyz"),
       lambda x: x.getvalue()[0])  # fmt: skip
simple("bytes_position", lambda: io.BytesIO(b"abc"), lambda x: x.read(1), lambda x: x.tell())
simple("text_stream", io.StringIO, lambda x: x.write("xx"), lambda x: len(x.getvalue()))
simple("queue", lambda: filled(queue.Queue()), lambda x: x.get(), lambda x: x.qsize())
simple("simple_queue", lambda: filled(queue.SimpleQueue()), lambda x: x.get(), lambda x: x.get())
simple("weak_dict", lambda: weakly(), lambda x: x[0].update({x[1]: 5}), lambda x: x[0][x[1]])


def filled(found):
    for i in (1, 2, 3):
        found.put(i)
    return found


def weakly():
    found, key = weakref.WeakKeyDictionary(), Holder()
    found[key] = 1
    return found, key


# iterators and generators
simple("list_iterator", lambda: iter([1, 2, 3]), advance, following)
simple("dict_iterator", lambda: iter({1: 1, 2: 2, 3: 3}), advance, following)
simple("set_iterator", lambda: iter({1, 2, 3}), advance, following)
simple("count", itertools.count, advance, following)
simple("cycle", lambda: itertools.cycle([1, 2, 3]), advance, following)
simple("slice", lambda: itertools.islice(itertools.count(), 9), advance, following)
simple("chain", lambda: itertools.chain([1], [2], [3]), advance, following)
simple("zip", lambda: zip([1, 2, 3], [4, 5, 6], strict=True), advance, lambda x: following(x)[0])
simple("map", lambda: map(abs, [1, 2, 3]), advance, following)
simple("enumerate", lambda: enumerate([1, 2, 3]), advance, lambda x: following(x)[0])
simple("range_iterator", lambda: iter(range(9)), advance, following)
simple("generator", counted, advance, next)
simple("generator_expression", lambda: (x for x in range(9)), advance, next)
simple("generator_in_a_generator", lambda: (x for x in counted()), advance, next)

# attributes
simple("instance", Holder, lambda x: put(x, 5), value_of)
simple("instance_dict", Holder, lambda x: vars(x).update(value=5), value_of)
simple("slots", Slots, lambda x: put(x, 5), value_of)
simple("private_slots", PrivateSlots, lambda x: x.put(5), lambda x: x.get())
simple("hidden_slots", HiddenSlots, lambda x: x.put(5), lambda x: x.get())
simple("slot_filled", Slots, lambda x: setattr(x, "other", 5), lambda x: hasattr(x, "other") * 3)
simple("namespace", lambda: types.SimpleNamespace(value=1), lambda x: put(x, 5), value_of)
simple("module", lambda: module(), lambda x: put(x, 5), value_of)
simple("class", new_class, lambda x: put(x, 5), value_of)
simple("class_of_instance", lambda: new_class()(), lambda x: put(type(x), 5), value_of)
simple("metaclass", lambda: Meta("Made", (), {}), lambda x: put(type(x), 5), value_of)
simple("base_class", lambda: type("Sub", (new_class(),), {}),
       lambda x: put(x.__base__, 5), value_of)  # fmt: skip
simple("operator_of_a_class", lambda: type("Called", (Holder,), {"__call__": lambda self: 1})(),
       lambda x: setattr(type(x), "__call__", lambda self: 5), lambda x: x())  # fmt: skip
simple("other_class", Holder, lambda x: setattr(x, "__class__", Five), value_of)
simple("exception", Error, lambda x: put(x, 5), value_of)
simple("exception_of_python", lambda: noted(ValueError(1)), lambda x: put(x, 5), value_of)
simple("arguments_of_exception", lambda: ValueError(1), lambda x: setattr(x, "args", (5,)),
       lambda x: x.args[0])  # fmt: skip
simple("enum_member", lambda: noted(Colour.RED), lambda x: setattr(x, "value_", 5),
       lambda x: x.value_)  # fmt: skip
simple("frozen_record", lambda: Record([1]), lambda x: first_put(x.values), lambda x: x.values[0])
simple("function", lambda: noted(lambda: 1), lambda x: put(x, 5), value_of)
simple("defaults", lambda: lambda v=1: v, lambda x: setattr(x, "__defaults__", (5,)), lambda x: x())
simple("default_list", lambda: lambda v=[1]: v, lambda x: first_put(x()), lambda x: first(x()))
simple("defaults_of_keywords", lambda: lambda *, v=1: v, lambda x: x.__kwdefaults__.update(v=5),
       lambda x: x())  # fmt: skip
simple("code", lambda: lambda: 1, lambda x: setattr(x, "__code__", (lambda: 5).__code__),
       lambda x: x())  # fmt: skip
for _base in (list, dict, tuple, set, frozenset, int, str, float, collections.deque, io.StringIO):
    simple(f"attribute_of_{_base.__name__}", lambda base=_base: noted(subclass(base)()),
           lambda x: put(x, 5), value_of)  # fmt: skip
simple("attribute_of_ndarray", lambda: noted(np.zeros(2).view(subclass(np.ndarray))),
       lambda x: put(x, 5), value_of)  # fmt: skip


class Five(Holder):
    value = property(lambda self: 5)


def noted(obj):
    setattr(obj, "value_" if isinstance(obj, enum.Enum) else "value", 1)
    return obj


def module():
    return noted(types.ModuleType("made_by_a_test"))


# what refers to others
simple("partial", lambda: functools.partial(operator.getitem, [1], 0),
       lambda x: first_put(x.args[0]), lambda x: x())  # fmt: skip
simple("bound_method", lambda: [1].__getitem__, lambda x: first_put(x.__self__), lambda x: x(0))
simple("weak_reference", lambda: (weakref.ref(h := Holder()), h), lambda x: put(x[0](), 5),
       lambda x: x[0]().value)  # fmt: skip
simple("mapping_proxy", lambda: proxied(), lambda x: first_put(x[1]), lambda x: x[0][0])
simple("frozenset_of_objects", lambda: frozenset([Holder()]), lambda x: [put(h, 5) for h in x],
       lambda x: [h.value for h in x][0])  # fmt: skip
simple("keys_of_a_dict", lambda: {Holder(): 0}, lambda x: [put(h, 5) for h in x],
       lambda x: [h.value for h in x][0])  # fmt: skip
simple("closure", lambda: closed(), lambda x: x[0](), lambda x: x[1]())
simple("cached_function", lambda: cached(), lambda x: x(1), lambda x: x(2))


def proxied():
    found = {0: 1}
    return types.MappingProxyType(found), found


def closed():
    value = 1

    def change():
        nonlocal value
        value = 5

    return change, lambda: value


def cached():
    calls = []

    @functools.lru_cache
    def call(v):
        calls.append(v)
        return len(calls)

    return call


# what Python or the process holds
simple("context_variable", lambda: contextvars.ContextVar("v", default=1), lambda x: x.set(5),
       lambda x: x.get())  # fmt: skip
simple("context_variable_set", lambda: given(contextvars.ContextVar("v")), lambda x: x.set(5),
       lambda x: x.get())  # fmt: skip
simple("thread_local", lambda: noted(threading.local()), lambda x: put(x, 5), value_of)
simple("lock", threading.Lock, lambda x: x.acquire(), lambda x: int(x.locked()))
simple("event", threading.Event, lambda x: x.set(), lambda x: int(x.is_set()))
simple("random", lambda: random.Random(3), lambda x: x.random(), lambda x: x.randrange(100))
simple("numpy_generator", lambda: np.random.default_rng(3), lambda x: x.random(),
       lambda x: int(x.integers(100)))  # fmt: skip
simple("numpy_random_state", lambda: np.random.RandomState(3), lambda x: x.rand(),
       lambda x: int(x.randint(100)))  # fmt: skip
simple("file", lambda: opened(), lambda x: x.read(1), lambda x: len(x.read()))


def given(variable):
    variable.set(1)
    return variable


def opened():
    found = tempfile.TemporaryFile("w+")  # noqa: SIM115  # read behind the region
    found.write("abcdef")
    found.seek(0)
    return found


@kind
class environment:
    def make():
        os.environ["TKC_TEST_OF_STATE"] = "1"

    def change(_):
        os.environ["TKC_TEST_OF_STATE"] = "5"

    def read(_):
        return int(os.environ["TKC_TEST_OF_STATE"])


@kind
class environment_from_a_function:
    make = environment.make
    change = environment.change

    def read(_):
        return int(os.getenv("TKC_TEST_OF_STATE"))


@kind
class random_of_python:
    def make():
        random.seed(3)

    def change(_):
        random.random()

    def read(_):
        return random.randrange(100)


@kind
class random_of_numpy:
    def make():
        np.random.seed(3)

    def change(_):
        np.random.rand()

    def read(_):
        return int(np.random.randint(100))


def in_a_branch(make, change, read):
    def kernel(out, n, c):
        obj = make()
        if c > 0:
            change(obj)
        tkc.store(out, (0,), n + read(obj))

    return kernel


def in_a_loop(make, change, read):
    def kernel(out, n, c):
        obj = make()
        for _k in tkc.range(c):
            change(obj)
        tkc.store(out, (0,), n + read(obj))

    return kernel


def in_a_nested_branch(make, change, read):
    def helper(obj, x):
        if x > 2:
            change(obj)

    def kernel(out, n, c):
        obj = make()
        if c > 0:
            helper(obj, n)
        tkc.store(out, (0,), n + read(obj))

    return kernel


def in_one_of_two(make, change, read):
    def kernel(out, n, c):
        obj = make()
        if c > 0:
            seen = read(obj)
        else:
            change(obj)
            seen = read(obj)
        tkc.store(out, (0,), n + seen)

    return kernel


@pytest.mark.parametrize("place", [in_a_branch, in_a_loop, in_a_nested_branch, in_one_of_two])
@pytest.mark.parametrize("name", KINDS)
def test_state_is_followed(name, place):
    kind = KINDS[name]
    with contextlib.suppress(tkc.CompileError):
        agrees(lambda: place(*kind), *TRIPS)


# these are carried, not refused
CARRIED = (
    *("list", "list_reversed", "dict", "user_list", "instance", "instance_dict", "slots"),
    *("private_slots", "hidden_slots"),
    *("namespace", "module", "class", "class_of_instance", "metaclass", "base_class", "exception"),
    *("exception_of_python", "frozen_record", "function", "default_list", "defaults_of_keywords"),
    *("partial", "bound_method", "weak_reference", "mapping_proxy", "frozenset_of_objects"),
    *("keys_of_a_dict", "closure", "context_variable_set", "thread_local", "weak_dict"),
    *(
        f"attribute_of_{base}"
        for base in ["list", "dict", "tuple", "set", "int", "str", "float", "ndarray"]
    ),
)


@pytest.mark.parametrize("name", CARRIED)
def test_carried(name):
    agrees(lambda: in_a_branch(*KINDS[name]), *TRIPS)
    agrees(lambda: in_a_loop(*KINDS[name]), *TRIPS)


def test_a_change_that_cannot_be_carried_names_the_object():
    with pytest.raises(tkc.CompileError, match=r"`obj` \(StringIO\) changes inside a branch"):
        agrees(lambda: in_a_branch(*KINDS["text_stream"]), (1, 1))


@pytest.mark.parametrize("name", ["list", "dict", "instance", "random", "text_stream", "lock"])
def test_what_is_only_read_needs_nothing(name):
    make, _, read = KINDS[name]
    agrees(lambda: in_a_branch(make, lambda obj: None, read), *TRIPS)


def test_a_trace_leaves_no_traced_value_behind():
    """Not in what it has added to containers of the user either."""
    held, listed, spaced = {"old": 1}, [1], types.SimpleNamespace(old=1)

    def kernel(out, n, c):
        held["new"] = n + 1
        listed.append(n)
        spaced.new = n * 2
        held["old"] = spaced.old = n
        tkc.store(out, (0,), held["new"] + listed[-1] + spaced.new)

    traced(kernel, array_type(tkc.int32), i32(), i32())
    assert (held, listed, vars(spaced)) == ({"old": 1}, [1], {"old": 1})
