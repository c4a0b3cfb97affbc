"""Whatever a kernel reads of the host while it is traced, through any route: a later launch sees a
change, in this process and through the disk cache of another.
"""

import abc
import dataclasses
import enum
import functools
import io  # noqa: F401 (kernels of routes read it)
import os
import struct
import subprocess
import sys
import tempfile
import types
from collections.abc import Sized
from pathlib import Path

import numpy as np
import pytest

import tkc

ROOT = Path(__file__).parents[2]


class Held:
    """Attributes of an instance and of its class."""

    shared = 2.0

    def __init__(self, own):
        self.own = own

    def times(self, v):
        return v * self.own

    def __call__(self, v):
        return v * self.own * self.shared

    def scaled(self, v):
        return v * 2.0

    @classmethod
    def of_class(cls):
        return cls.shared

    @property
    def doubled(self):
        return self.own * 2


class Derived(Held):
    pass


class Slotted:
    __slots__ = ("own",)

    def __init__(self, own):
        self.own = own


class PrivateSlots:
    __slots__ = ("__own",)

    def __init__(self, own):
        self.put(own)

    def put(self, own):
        self.__own = own

    def get(self):
        return self.__own


class HiddenSlots(PrivateSlots):
    __slots__ = ("own",)

    def __init__(self, own):
        super().__init__(own)
        self.own = own


class HidingSlots(HiddenSlots):
    """A slot of its base has this name, and another content."""

    __slots__ = ("own",)

    def __init__(self, own):
        super().__init__(own)
        HiddenSlots.own.__set__(self, own)

    @property
    def below(self):
        return HiddenSlots.own.__get__(self)


@dataclasses.dataclass
class Record:
    own: float


class Kind(enum.Enum):
    TWO = 2.0


private, hiding = PrivateSlots(2.0), HidingSlots(2.0)
space = types.SimpleNamespace(x=2.0, inner=types.SimpleNamespace(y=2.0))
held, slotted, record, table = Held(2.0), Slotted(2.0), Record(2.0), {"x": 2.0}
listed, part, kind = [2.0], functools.partial(lambda a, b: a * b, 2.0), Kind.TWO
held.itself = held
derived = Derived(2.0)
number = 2.0


def helper(v):
    return v * space.x


def by_attribute(v):
    return v * by_attribute.factor


helper.factor = by_attribute.factor = 2.0
scaled = Held.scaled


def replaced(v, c=2.0, *, d=0.0):
    """Its code and its defaults are replaced in place, as reloading a module does."""
    return v * c + d


def length_of_name(of):
    return len(of.__name__)


class Renamed: ...


code, defaults = replaced.__code__, replaced.__defaults__
file = Path(tempfile.mkdtemp(prefix="tkc-test-")) / "factor.txt"


def _rebind(name, value):
    globals()[name] = value


# route -> (expression of a loaded tile v, how to change the factor from 2 to a number)
ROUTES = {
    "global": ("v * number", lambda n: _rebind("number", n)),
    "namespace": ("v * space.x", lambda n: setattr(space, "x", n)),
    "namespace in a namespace": ("v * space.inner.y", lambda n: setattr(space.inner, "y", n)),
    "another namespace there": (
        "v * space.inner.y",
        lambda n: setattr(space, "inner", types.SimpleNamespace(y=n)),
    ),
    "namespace handed on": ("v * getattr(space, 'x')", lambda n: setattr(space, "x", n)),
    "attribute of a function": ("v * helper.factor", lambda n: setattr(helper, "factor", n)),
    "attribute in a function": ("by_attribute(v)", lambda n: setattr(by_attribute, "factor", n)),
    "method of a class bound anew": (
        "derived.scaled(v)",
        lambda n: setattr(Held, "scaled", lambda self, v: v * n),
    ),
    "class method of a base": ("v * derived.of_class()", lambda n: setattr(Held, "shared", n)),
    "class": ("v * Held.shared", lambda n: setattr(Held, "shared", n)),
    "class by an instance": ("v * held.shared", lambda n: setattr(Held, "shared", n)),
    "instance": ("v * held.own", lambda n: setattr(held, "own", n)),
    "method": ("held.times(v)", lambda n: setattr(held, "own", n)),
    "property": ("v * held.doubled / 2", lambda n: setattr(held, "own", n)),
    "callable": ("held(v) / held.shared", lambda n: setattr(held, "own", n)),
    "handed on": ("getattr(held, 'own') * v", lambda n: setattr(held, "own", n)),
    "slot": ("v * slotted.own", lambda n: setattr(slotted, "own", n)),
    "private slot": ("v * private.get()", lambda n: private.put(n)),
    "hidden slot": ("v * hiding.below", lambda n: HiddenSlots.own.__set__(hiding, n)),
    "dataclass": ("v * record.own", lambda n: setattr(record, "own", n)),
    "dictionary": ("v * table['x']", lambda n: table.update(x=n)),
    "list": ("v * listed[0]", lambda n: listed.__setitem__(0, n)),
    "partial": ("part(v)", lambda n: _rebind("part", functools.partial(lambda a, b: a * b, n))),
    "helper": ("helper(v)", lambda n: setattr(space, "x", n)),
    "environment": (
        "v * float(os.environ.get('TKC_TEST_FACTOR', '2'))",
        lambda n: os.environ.__setitem__("TKC_TEST_FACTOR", str(n)),
    ),
    "code of a function": (
        "replaced(v)",
        lambda n: setattr(replaced, "__code__", eval(f"lambda v, c, *, d: v * {n}").__code__),
    ),
    "code of a function in a list": (
        "[replaced][0](v)",
        lambda n: setattr(replaced, "__code__", eval(f"lambda v, c, *, d: v * {n}").__code__),
    ),
    "defaults": ("replaced(v)", lambda n: setattr(replaced, "__defaults__", (n,))),
    "defaults by name": ("replaced(v)", lambda n: replaced.__kwdefaults__.update(d=n - 2)),
    "other defaults by name": (
        "replaced(v)",
        lambda n: setattr(replaced, "__kwdefaults__", {"d": n - 2}),
    ),
    "another dictionary of attributes": (
        "v * held.own",
        lambda n: setattr(held, "__dict__", held.__dict__ | {"own": n}),
    ),
    "another dictionary of a function": (
        "v * helper.factor",
        lambda n: setattr(helper, "__dict__", {"factor": n}),
    ),
    "name of a function": (
        "v * len(replaced.__name__)",
        lambda n: setattr(replaced, "__name__", "x" * int(n)),
    ),
    "name of a function handed on": (
        "v * length_of_name(replaced)",
        lambda n: setattr(replaced, "__name__", "x" * int(n)),
    ),
    "text of a function": (
        "v * len(replaced.__doc__)",
        lambda n: setattr(replaced, "__doc__", "x" * int(n)),
    ),
    "name of a class": (
        "v * len(Renamed.__qualname__)",
        lambda n: setattr(Renamed, "__qualname__", "x" * int(n)),
    ),
    "file by its path": ("v * float(file.read_text())", lambda n: file.write_text(str(n))),
    "file by another path": (
        "v * float((file.parent / file.name).read_bytes())",
        lambda n: file.write_text(str(n)),
    ),
    "file of another function": (
        "v * float(io.open(file).read())",
        lambda n: file.write_text(str(n)),
    ),
    "file of NumPy": ("v * float(np.loadtxt(file))", lambda n: file.write_text(str(n))),
    "size of a file": ("v * file.stat().st_size", lambda n: file.write_text("x" * int(n))),
    "other process": (
        "v * float(subprocess.check_output(['cat', str(file)]))",
        lambda n: file.write_text(str(n)),
    ),
    "enumeration": ("v * kind.value", lambda n: _rebind("kind", enum.Enum("K", {"A": n}).A)),
}


@pytest.fixture(autouse=True)
def as_it_was():
    """The host's state before and after each test."""
    file.write_text("2.")  # of two characters
    replaced.__name__ = replaced.__doc__ = Renamed.__qualname__ = "xx"
    yield
    _rebind("number", 2.0)
    _rebind("part", functools.partial(lambda a, b: a * b, 2.0))
    _rebind("kind", Kind.TWO)
    Held.scaled = scaled
    replaced.__code__, replaced.__defaults__ = code, defaults
    replaced.__kwdefaults__ = {"d": 0.0}
    replaced.__name__ = replaced.__doc__ = Renamed.__qualname__ = "xx"
    helper.factor = by_attribute.factor = 2.0
    space.x, space.inner = 2.0, types.SimpleNamespace(y=2.0)
    Held.shared = held.own = slotted.own = record.own = table["x"] = listed[0] = 2.0
    private.put(2.0)
    HiddenSlots.own.__set__(hiding, 2.0)
    os.environ.pop("TKC_TEST_FACTOR", None)


def kernel_of(route: str, tmp_path: Path):
    """A kernel in a file of its own, that sees this module's names."""
    text = f"def kernel(x):\n    v = tkc.load(x, (0,), (4,))\n    tkc.store(x, (0,), {route})\n"
    file = tmp_path / "kernel_of_a_route.py"
    file.write_text(text)
    exec(compile(text, str(file), "exec"), globals())
    return tkc.jit(globals().pop("kernel"))


def launched(kernel) -> float:
    x = np.ones(4, np.float32)
    kernel[1](x)
    assert (x == x[0]).all()
    return float(x[0])


@pytest.mark.parametrize("route", ROUTES)
def test_a_change_is_seen(route, tmp_path):
    expression, change = ROUTES[route]
    kernel = kernel_of(expression, tmp_path)
    assert launched(kernel) == launched(kernel) == 2
    for n in (5.0, 3.0, 5.0):
        change(n)
        assert launched(kernel) == launched(kernel) == n


class Base(abc.ABC): ...  # noqa: B024 (others are registered with it)


class DerivedBase(Base): ...


class Unsized: ...


@pytest.mark.parametrize(
    "expression, register",
    {
        "own": ("isinstance(unsized, DerivedBase)", DerivedBase.register),
        "one that derives": ("isinstance(unsized, Base)", DerivedBase.register),
        "of a library": ("isinstance(unsized, Sized)", Sized.register),
        "by its class": ("issubclass(type(unsized), Base)", Base.register),
    }.values(),
    ids=["own", "one that derives", "of a library", "by its class"],
)
def test_a_class_that_is_registered_with_an_abstract_one(expression, register, tmp_path):
    made = type("Unsized", (Unsized,), {"__module__": __name__})
    _rebind("unsized", made())
    kernel = kernel_of(f"v * (3 if {expression} else 2)", tmp_path)
    assert launched(kernel) == launched(kernel) == 2
    register(made)
    assert launched(kernel) == launched(kernel) == 3


PROGRAM = """
import sys, types, numpy as np, tkc
V = float(sys.argv[1])
space = types.SimpleNamespace(x=V)
class Shared:
    W = 0.0
Shared.W = V
class Held:
    def __init__(self, own): self.own = own
    def times(self, v): return v * self.own
held = Held(V)
@tkc.jit
def by_namespace(x): tkc.store(x, (0,), tkc.load(x, (0,), (4,)) * space.x)
@tkc.jit
def by_class(x): tkc.store(x, (0,), tkc.load(x, (0,), (4,)) * Shared.W)
@tkc.jit
def by_method(x): tkc.store(x, (0,), held.times(tkc.load(x, (0,), (4,))))
for kernel in (by_namespace, by_class, by_method):
    x = np.ones(4, np.float32)
    kernel[1](x)
    assert x[0] == V, (kernel, x)
"""


def test_another_process_sees_its_own(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    for value in ("2", "5", "2"):
        done = subprocess.run(
            [sys.executable, str(file), value],
            env=os.environ | {"TKC_CACHE_DIR": str(tmp_path / "c"), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


WRAPPED = pytest.mark.parametrize("wrap", [lambda c: c, lambda c: (c,)], ids=["number", "tuple"])
# bits of NaNs, and of the same ones as float32
NANS = {
    0x7FF8000000000000: 0x7FC00000,
    0xFFF8000000000000: 0xFFC00000,
    0x7FF8000020000000: 0x7FC00001,
}


@WRAPPED
def test_zeros_of_both_signs_are_other_constants(wrap):
    @tkc.jit
    def fill(x, C: tkc.constexpr):
        tkc.store(x, (0,), tkc.full((4,), C if isinstance(C, float) else C[0], tkc.float32))

    for value in (0.0, -0.0, 0.0, -0.0):
        x = np.ones(4, np.float32)
        fill[1](x, wrap(value))
        assert x[0] == 0 and np.signbit(x[0]) == np.signbit(value)


@WRAPPED
def test_nans_of_other_bits_are_other_constants(wrap):
    """As arguments, and as what a kernel reads."""

    @tkc.jit
    def fill(x, y, z, C: tkc.constexpr, c):
        tkc.store(x, (0,), tkc.full((4,), C if isinstance(C, float) else C[0], tkc.float32))
        tkc.store(y, (0,), tkc.full((4,), number, tkc.float32))
        tkc.store(z, (0,), tkc.full((4,), c, tkc.float32))

    for _ in range(2):
        for bits, wanted in NANS.items():
            (value,) = struct.unpack(">d", struct.pack(">Q", bits))
            _rebind("number", value)
            x, y, z = np.ones((3, 4), np.float32)
            fill[1](x, y, z, wrap(value), value)
            assert [int(found.view(np.uint32)[0]) for found in (x, y, z)] == [wanted] * 3
