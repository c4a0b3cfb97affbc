"""Values of every kind that a kernel reads of the host, and that change in place: the next launch
sees it, also where nothing says how such a value is written down.
"""

import builtins
import decimal
import importlib.util
import pkgutil
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest

import tkc
import tkc.kernels
from tkc.runtime.fingerprint import Fingerprint, Parts
from tkc.runtime.jit import JitFunction

# by name: what a module sets up, what a kernel reads of it, and what is changed then
CHANGED = {
    "deque": ("d = collections.deque([1.0])", "d[0]", "d[0] = 2.0"),
    "ordered dictionary": ("d = collections.OrderedDict(a=1.0)", "d['a']", "d['a'] = 2.0"),
    "default dictionary": ("d = collections.defaultdict(float, a=1.0)", "d['a']", "d['a'] = 2.0"),
    "counter": ("d = collections.Counter(a=1)", "d['a']", "d['a'] = 2"),
    "chain of dictionaries": ("d = collections.ChainMap({'a': 1.0})", "d['a']", "d['a'] = 2.0"),
    "kind of list": ("class L(list): pass\nd = L([1.0])", "d[0]", "d[0] = 2.0"),
    "kind of dictionary": ("class L(dict): pass\nd = L(a=1.0)", "d['a']", "d['a'] = 2.0"),
    "kind of set": ("class L(set): pass\nd = L([1.0])", "float(2.0 in d)", "d.add(2.0)"),
    "list in a named tuple": (
        "N = collections.namedtuple('N', 'a b')\nd = N([1.0], 2)",
        "d.a[0]",
        "d.a[0] = 2.0",
    ),
    "bytes": ("d = bytearray([1])", "d[0]", "d[0] = 2"),
    "array of Python": ("d = array.array('d', [1.0])", "d[0]", "d[0] = 2.0"),
    "view of memory": ("b = bytearray([1]); d = memoryview(b)", "d[0]", "d[0] = 2"),
    "array of rank 0": ("d = np.array(1.0)", "float(d)", "d[...] = 2.0"),
    "array of objects": (
        "d = np.array([None, 1], object); d[0] = [1.0]",
        "d[0][0]",
        "d[0][0] = 2.0",
    ),
    "view that cannot be written": (
        "b = np.ones(3); d = b[1:]; d.flags.writeable = False",
        "float(d[0])",
        "b[1] = 2.0",
    ),
    "context variable": (
        "c = contextvars.ContextVar('c', default=1.0)",
        "c.get()",
        "c.set(2.0)",
    ),
    "value of a thread": ("c = threading.local(); c.v = 1.0", "c.v", "c.v = 2.0"),
    "attributes that a class finds": (
        "class A:\n"
        "    def __init__(self): self.__dict__['d'] = {'w': 1.0}\n"
        "    def __getattr__(self, name): return self.d[name]\n"
        "a = A()",
        "a.w",
        "a.d['w'] = 2.0",
    ),
    "slots beside attributes that a class finds": (
        "class A:\n"
        "    __slots__ = ('d',)\n"
        "    def __init__(self): self.d = {'w': 1.0}\n"
        "    def __getattr__(self, n): return object.__getattribute__(self, 'd')[n]\n"
        "a = A()",
        "a.w",
        "a.d['w'] = 2.0",
    ),
    "names by globals()": ("q = 1.0", "globals()['q']", "q = 2.0"),
    "names by eval": ("q = 1.0", "eval('q')", "q = 2.0"),
    "module by its name": (
        "sys.modules['of_a_test'] = m = types.ModuleType('of_a_test'); m.q = 1.0",
        "__import__('of_a_test').q",
        "m.q = 2.0",
    ),
    "module in a dictionary": (
        "m = types.ModuleType('of_a_test'); m.q = 1.0; d = {'m': m}",
        "d['m'].q",
        "m.q = 2.0",
    ),
    "attribute of a module by its name": (
        "m = types.ModuleType('of_a_test'); m.q = 1.0",
        "getattr(m, 'q')",
        "m.q = 2.0",
    ),
    "what a weak reference refers to": (
        "class A: pass\na = A(); a.v = 1.0; w = weakref.ref(a)",
        "w().v",
        "a.v = 2.0",
    ),
    "what a property reads": (
        "q = 1.0\nclass A:\n    @property\n    def v(self): return q\na = A()",
        "a.v",
        "q = 2.0",
    ),
    "what a cached property reads": (
        "q = 1.0\nclass A:\n    @functools.cached_property\n    def v(self): return q\na = A()",
        "a.v",
        "q = 2.0; del a.v",
    ),
    "what a descriptor reads": (
        "q = 1.0\n"
        "class D:\n    def __get__(self, of, kind=None): return q\n"
        "class A: v = D()\n"
        "a = A()",
        "a.v",
        "q = 2.0",
    ),
    "what an operator reads": (
        "q = {'w': 1.0}\nclass A:\n    def __add__(self, other): return other + q['w']\na = A()",
        "a + 0.0",
        "q['w'] = 2.0",
    ),
    "what a call reads": (
        "q = 1.0\nclass A:\n    def __call__(self): return q\na = A()",
        "a()",
        "q = 2.0",
    ),
    "what finds an element reads": (
        "q = 1.0\nclass A:\n    def __getitem__(self, i): return q\na = A()",
        "a[0]",
        "q = 2.0",
    ),
    "what an object holds beside a function": (
        "class A: pass\na = A(); a.fn, a.v = len, 1.0; a.fn = lambda v: v",
        "a.v",
        "a.v = 2.0",
    ),
    "what an object that is handed on holds beside a function": (
        "class A: pass\na = A(); a.fn, a.v = (lambda v: v), 1.0\ndef f(a): return a.fn(a.v)",
        "f(a)",
        "a.v = 2.0",
    ),
    "what a record holds beside its fields": (
        "@dataclasses.dataclass\nclass A:\n    x: float\n    y: dataclasses.InitVar[float]\n"
        "    def __post_init__(self, y): self.v = y\n"
        "a = A(0.0, 1.0)\ndef f(a): return a.v",
        "f(a)",
        "a.v = 2.0",
    ),
    "what a class of records holds": (
        "@dataclasses.dataclass(frozen=True)\nclass A:\n    x: float\n    v = None\n"
        "a = A(1.0)\ndef f(a): return a.x if a.v is None else a.v",
        "f(a)",
        "A.v = 2.0",
    ),
    "name of Python's that a module hides": ("", "max(1.0, 2.0)", "max = min"),
    "name that a module has by and by": (
        "def f():\n    try:\n        return q\n    except NameError:\n        return 1.0",
        "f()",
        "q = 2.0",
    ),
    "name among Python's": (
        "builtins.of_a_test = lambda: 1.0\ndef f(): return of_a_test()",
        "f()",
        "builtins.of_a_test = lambda: 2.0",
    ),
    "length that is bound anew": (
        "q = 1\n@dataclasses.dataclass(frozen=True)\nclass A:\n"
        "    def __len__(self): return q\na = A()\ndef f(a): return float(len(a))",
        "f(a)",
        "A.__len__ = lambda self: 2",
    ),
    "method that a class hides": (
        "class B:\n    def m(self): return 1.0\n"
        "@dataclasses.dataclass(frozen=True)\nclass A(B): pass\na = A()",
        "a.m()",
        "A.m = lambda self: 2.0",
    ),
    "what classes a class derives from": (
        "class O: pass\nclass B(O): v = 1.0\nclass C(O): v = 2.0\n"
        "@dataclasses.dataclass(frozen=True)\nclass A(B): pass\n"
        "a = A()\ndef f(a): return a.v",
        "f(a)",
        "A.__bases__ = (C,)",
    ),
    "operator that is bound anew": (
        "@dataclasses.dataclass(frozen=True)\nclass A:\n    def __add__(self, x): return x\n"
        "a = A()",
        "a + 1.0",
        "A.__add__ = lambda self, x: x + x",
    ),
    "operator that a class gets": (
        "@dataclasses.dataclass(frozen=True)\nclass A: pass\n"
        "a = A()\ndef f(a): return 1.0 if a else 2.0",
        "f(a)",
        "A.__bool__ = lambda self: False",
    ),
    "property before an attribute": (
        "class A: pass\na = A(); a.v = 1.0",
        "a.v",
        "A.v = property(lambda self: 2.0)",
    ),
    "property in place of a default": (
        "class A: v = 0.0\na = A(); a.v = 1.0",
        "a.v",
        "A.v = property(lambda self: 2.0)",
    ),
    "attribute that a class has by and by": (
        "@dataclasses.dataclass(frozen=True)\nclass A: pass\n"
        "a = A()\ndef f(a): return getattr(a, 'v', 1.0)",
        "f(a)",
        "A.v = 2.0",
    ),
    "what a method of an object that is handed on reads": (
        "q = 1.0\nclass A:\n    def m(self): return q\na = A()\ndef f(a): return a.m()",
        "f(a)",
        "q = 2.0",
    ),
    "what a method of an object in a list reads": (
        "q = 1.0\nclass A:\n    @classmethod\n    def m(cls): return cls.n()\n"
        "    @staticmethod\n    def n(): return q\nd = [A()]",
        "d[0].m()",
        "q = 2.0",
    ),
    "what a property of an object that is handed on reads": (
        "q = 1.0\nclass A:\n    @property\n    def v(self): return q\n"
        "a = A()\ndef f(a): return getattr(a, 'v')",
        "f(a)",
        "q = 2.0",
    ),
    "what a descriptor of an object that is handed on reads": (
        "q = 1.0\nclass D:\n    def __get__(self, of, kind=None): return q\n"
        "class A: v = D()\na = A()\ndef f(a): return a.v",
        "f(a)",
        "q = 2.0",
    ),
    "what makes an object reads": (
        "q = 1.0\nclass A:\n    def __init__(self): self.v = q",
        "A().v",
        "q = 2.0",
    ),
    "what makes an object of a kind reads": (
        "q = 1.0\nclass A:\n    def __init__(self): self.v = q\na = A()",
        "type(a)().v",
        "q = 2.0",
    ),
    "what a method of an enumeration reads": (
        "q = 1.0\nclass E(enum.Enum):\n    A = 3\n    def m(self): return q\n"
        "a = E.A\ndef f(a): return a.m()",
        "f(a)",
        "q = 2.0",
    ),
    "array that a class holds": (
        "class A: v = np.ones(2)\na = A()\ndef f(a): return float(a.v[0])",
        "f(a)",
        "A.v[0] = 2.0",
    ),
    "set that a class holds": (
        "class A: v = {1}\na = A()\ndef f(a): return len(a.v)",
        "f(a)",
        "a.v.add(2)",
    ),
    "class in a class": (
        "class A:\n    class B: v = 1.0\na = A()\ndef f(a): return a.B.v",
        "f(a)",
        "A.B.v = 2.0",
    ),
    "module that a function imports": (
        "sys.modules['of_a_test'] = m = types.ModuleType('of_a_test'); m.q = 1.0\n"
        "def f():\n    import of_a_test as other\n    return other.q",
        "f()",
        "m.q = 2.0",
    ),
    "name that a function imports": (
        "sys.modules['of_a_test'] = m = types.ModuleType('of_a_test'); m.q = 1.0\n"
        "def f():\n    from of_a_test import q as other\n    return other",
        "f()",
        "m.q = 2.0",
    ),
    "attribute that a module finds": (
        "m = types.ModuleType('of_a_test'); q = 1.0; m.__getattr__ = lambda name: q",
        "m.v",
        "q = 2.0",
    ),
    "attribute that a kind of module computes": (
        "q = 1.0\nclass M(types.ModuleType):\n    @property\n    def v(self): return q\n"
        "m = M('of_a_test')",
        "m.v",
        "q = 2.0",
    ),
    "how NumPy takes errors": (
        "np.seterr(over='warn')",
        "float(np.geterr()['over'] == 'ignore')",
        "np.seterr(over='ignore')",
    ),
    "context of decimals": (
        "decimal.getcontext().prec = 1",
        "decimal.getcontext().prec",
        "decimal.getcontext().prec = 2",
    ),
    "files of a folder": (
        "d = tempfile.mkdtemp()",
        "float(len(os.listdir(d)))",
        "open(d + '/file', 'w').close()",
    ),
    "text of a file": (
        "d = tempfile.mkdtemp() + '/file'; print(1.0, file=open(d, 'w'))\n"
        "def f():\n    with open(d) as file:\n        return float(file.read())",
        "f()",
        "print(2.0, file=open(d, 'w'), flush=True)",
    ),
    "function of tkc": ("f = tkc.exp2", "f(4.0)", "f = tkc.log2"),
    "element type of tkc": ("d = tkc.int8", "d.bits * 1.0", "d = tkc.int32"),
    "function of tkc in a module": (
        "m = types.ModuleType('of_a_test'); m.f = tkc.exp2",
        "m.f(4.0)",
        "m.f = tkc.log2",
    ),
    "number of C": ("c = ctypes.c_double(1.0)", "c.value", "c.value = 2.0"),
    "list that is a member of an enumeration": (
        "class E(enum.Enum): A = [1.0]\na = E.A\ndef f(a): return a.value[0]",
        "f(a)",
        "E.A.value[0] = 2.0",
    ),
    "attribute of a member of an enumeration": (
        "class E(enum.Enum):\n    A = 1\n"
        "    def __init__(self, _): self.v, self.other = 1.0, self\n"
        "a = E.A\ndef f(a): return a.other.v",
        "f(a)",
        "E.A.v = 2.0",
    ),
    "attribute that a member of an enumeration computes": (
        "q = 1.0\nclass E(enum.Enum):\n    A = 1\n    def __init__(self, _): self.v = q\na = E.A",
        "a.v",
        "E.A.v = q = 2.0",
    ),
    "arguments of a partial": (
        "p = functools.partial(lambda v: v, v=1.0)",
        "p()",
        "p.keywords['v'] = 2.0",
    ),
    "attribute of a partial": (
        "p = functools.partial(max, 0.0); p.v = 1.0\ndef f(p): return p.v",
        "f(p)",
        "p.v = 2.0",
    ),
    "what a mapping proxy shows": (
        "d = {'v': 1.0}; m = types.MappingProxyType(d)\ndef f(m): return m['v']",
        "f(m)",
        "d['v'] = 2.0",
    ),
    "what a mapping proxy shows by and by": (
        "d = {'a': 1.0}; m = types.MappingProxyType(d)",
        "len(m) + sum(m.values())",
        "d['b'] = 2.0",
    ),
    "mapping that a mapping proxy shows": (
        "d = collections.ChainMap({'v': 1.0}); m = types.MappingProxyType(d)",
        "m['v']",
        "d['v'] = 2.0",
    ),
    "record of an array": (
        "b = np.ones(1, [('v', 'f4')]); d = b[0]\ndef f(d): return float(d['v'])",
        "f(d)",
        "b['v'] = 2.0",
    ),
    "attribute of a function that is handed on": (
        "def g(): pass\ng.v = 1.0\ndef f(g): return g.v",
        "f(g)",
        "g.v = 2.0",
    ),
    "attribute of a method": (
        "class A:\n    def m(self): pass\n    m.v = 1.0\na = A()",
        "a.m.v",
        "A.m.v = 2.0",
    ),
    "attribute whose name a tuple holds": (
        "@dataclasses.dataclass(frozen=True)\nclass A:\n    v = 1.0\n"
        "    def m(self): return 1.0\na, names = A(), ('v', 'm')",
        "getattr(a, names[0]) + getattr(a, names[1])()",
        "A.m = lambda self: 2.0",
    ),
    "attribute that a function of the library finds": (
        "@dataclasses.dataclass(frozen=True)\nclass A: v = None, 1.0\n"
        "a, find = A(), operator.attrgetter('v')",
        "find(a)[1]",
        "A.v = None, 2.0",
    ),
    "element of a class": (
        "q = 1.0\nclass A:\n    def __class_getitem__(cls, i): return q",
        "A[0]",
        "q = 2.0",
    ),
    "element of a class that its own finds": (
        "q = 1.0\nclass M(type):\n    def __getitem__(cls, i): return q\n"
        "class A(metaclass=M): pass",
        "A[0]",
        "q = 2.0",
    ),
    "object of a class that was made again": (
        "class A: pass\na = A()\ndef f(): return 1.0 if isinstance(a, A) else 2.0",
        "f()",
        "class A: pass",
    ),
    "list that holds itself": ("d = [1.0]; d.append(d)", "d[1][1][0]", "d[0] = 2.0"),
    "dictionary that holds itself": ("d = {'v': 1.0}; d['d'] = d", "d['d']['v']", "d['v'] = 2.0"),
    "functions of one code and of two modules": (
        "q = 1.0\ndef f(): return q\ng = types.FunctionType(f.__code__, {'q': 3.0})",
        "f() + g()",
        "g.__globals__['q'] = 2.0",
    ),
    "kind of number": ("class N(int): pass\nn = N(1)", "float(n)", "n = N(2)"),
    "kind of text": ("class T(str): pass\nt = T('1')", "float(t)", "t = T('2')"),
    "kind of partial": (
        "class P(functools.partial): pass\np = P(len); p.v = 1.0\ndef f(p): return p.v",
        "f(p)",
        "p.v = 2.0",
    ),
    "static method beside a class": ("q = 1.0\ns = staticmethod(lambda: q)", "s()", "q = 2.0"),
}
# what gives another number each time
CONSUMED = {
    "random numbers": ("", "random.random()"),
    "a generator of random numbers": ("r = random.Random(3)", "r.random()"),
    "NumPy's random numbers": ("", "np.random.rand()"),
    "the time": ("", "time.perf_counter()"),
    "NumPy's generator": ("g = np.random.default_rng(3)", "g.normal()"),
    "iterator": ("it = iter([1.0, 2.0, 3.0])", "next(it)"),
    "generator": ("it = (float(i) for i in range(9))", "next(it)"),
    "count": ("it = itertools.count()", "next(it)"),
    "cycle": ("it = itertools.cycle([1.0, 2.0])", "next(it)"),
    "list that is emptied": ("d = [3.0, 2.0, 1.0, 0.5]", "d.pop()"),
}
HEAD = """import array, builtins, collections, contextvars, ctypes, dataclasses, decimal, enum
import functools, itertools, operator, os, random, sys, tempfile, threading, time, types, weakref
import numpy as np
import tkc
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module of what it sets up, with a kernel that stores what it reads."""

    def make(setup: str, read: str):
        file = tmp_path / "module_of_a_test.py"
        file.write_text(
            f"{HEAD}{setup}\n\n@tkc.jit\ndef kernel(x):\n"
            f"    tkc.store(x, (0,), tkc.full((4,), {read}, tkc.float32))\n"
        )
        spec = importlib.util.spec_from_file_location(file.stem, file)
        made = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, file.stem, made)
        spec.loader.exec_module(made)
        return made

    yield make
    sys.modules.pop("of_a_test", None)
    vars(builtins).pop("of_a_test", None)


def launched(module) -> float:
    x = np.zeros(4, np.float32)
    module.kernel[1](x)
    return float(x[0])


@pytest.mark.parametrize("name", CHANGED)
def test_a_change_in_place_is_seen(name, module):
    setup, read, change = CHANGED[name]
    made = module(setup, read)
    before = launched(made)
    exec(change, vars(made))
    after = launched(made)
    assert after == float(eval(read, vars(made))) != before


@pytest.mark.parametrize("name", CONSUMED)
def test_what_gives_another_number_each_time(name, module):
    made = module(*CONSUMED[name])
    assert launched(made) != launched(made)


# the same of torch
OF_TORCH = {
    "tensor": ("d = torch.ones(3)", "float(d[0])", "d[0] = 2.0"),
    "long tensor": ("d = torch.zeros(5000)", "float(d[2500])", "d[2500] = 2.0"),
    "tensor of bfloat16": ("d = torch.ones((), dtype=torch.bfloat16)", "float(d)", "d.fill_(2)"),
    "parameter of a module": (
        "d = torch.nn.Linear(2, 2).requires_grad_(False); d.bias.fill_(1)",
        "float(d.bias[0])",
        "d.bias.fill_(2)",
    ),
    "attribute of a module": ("d = torch.nn.Linear(2, 2)", "d.in_features", "d.in_features = 3"),
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_a_change_of_torchs_values_is_seen(name, module):
    pytest.importorskip("torch")
    setup, read, change = OF_TORCH[name]
    made = module(f"import torch\n{setup}", read)
    before = launched(made)
    exec(change, vars(made))
    after = launched(made)
    assert after == float(eval(read, vars(made))) != before


def test_limits_of_element_types_have_a_spelling(module):
    """Objects of NumPy's that hold numbers alone: a launch compares them and compiles nothing."""
    made = module("d, e = np.finfo(np.float32), np.iinfo(np.int8)", "float(d.eps) + e.max")
    assert launched(made) == np.float32(float(np.finfo(np.float32).eps) + 127)
    compiled = dict(made.kernel._compiled)
    launched(made)
    assert made.kernel._compiled == compiled and made.kernel.rebindings == 0


def test_a_value_that_cannot_change_is_looked_at_once(module):
    """Numbers, tuples, dtypes, functions of libraries: a launch need not look at them again."""
    made = module(
        "import math\nd = (1.0, (2, 'a'), None, np.float32(2), np.dtype('f4'), tkc.float32)",
        "d[0] + math.sqrt(4.0) + float(np.prod((2, 3))) + float(np.sqrt(4.0))",
    )
    assert launched(made) == 11.0
    own = made.kernel._fingerprint
    assert not own.mutable and own.unstable is None


def kernels_of_the_library() -> list[JitFunction]:
    modules = [
        importlib.import_module(f"tkc.kernels.{m.name}")
        for m in pkgutil.iter_modules(tkc.kernels.__path__)
        if m.name not in ("torch_ops", "jax_ops")  # have no kernels, and need torch and jax
    ]
    return [k for m in modules for k in vars(m).values() if isinstance(k, JitFunction)]


def test_the_library_reads_nothing_for_which_every_launch_compiles():
    kernels = kernels_of_the_library()
    assert len(kernels) > 20
    for kernel in kernels:
        own = Fingerprint(kernel.fn)
        assert own.unstable is None and all(text for _, text in own.mutable), kernel


@dataclass(frozen=True)
class Steps:
    """What a kernel is compiled for."""

    first: float
    others: tuple[float, ...] = ()

    def total(self) -> float:
        return self.first + sum(self.others)


@dataclass(frozen=True, eq=False)
class Held:
    """The same, with what may change in place."""

    values: list[float]


@tkc.jit
def stores_total(x, S: tkc.constexpr):
    tkc.store(x, (0,), tkc.full((4,), S.total(), tkc.float32))


@tkc.jit
def stores_sum(x, H: tkc.constexpr):
    tkc.store(x, (0,), tkc.full((4,), sum(H.values), tkc.float32))


class Named:
    """One like it is equal by name."""

    def __init__(self, name: str, value: float):
        self.name, self.value = name, value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Noted:
    """One like it is equal in all but a field."""

    name: str
    value: int = field(compare=False)


class Row(tuple):
    """A tuple with an attribute."""

    def __new__(cls, name: str, value: float):
        made = super().__new__(cls, (name,))
        made.value = value
        return made


@tkc.jit
def stores_value(x, V: tkc.constexpr):
    tkc.store(x, (0,), tkc.full((4,), float(V.value), tkc.float32))


@tkc.jit
def stores_text(x, V: tkc.constexpr):
    tkc.store(x, (0,), tkc.full((4,), float(len(str(V))), tkc.float32))


@pytest.mark.parametrize("cls", [Named, Noted, Row])
def test_constants_that_say_that_they_are_equal_are_told_apart(cls):
    x = np.zeros(4, np.float32)
    for value in (1, 2, 1, 2):
        stores_value[1](x, cls("one", value))
        assert (x == value).all()
    compiled = len(stores_value._compiled)
    stores_value[1](x, cls("one", 1))
    assert (x == 1).all() and len(stores_value._compiled) == compiled


@pytest.mark.parametrize(
    "one, other",
    [(decimal.Decimal("1"), decimal.Decimal("1.000")), (range(0, 3, 2), range(0, 4, 2))],
)
def test_equal_constants_of_the_library_are_told_apart(one, other):
    x = np.zeros(4, np.float32)
    for value in (one, other):
        stores_text[1](x, value)
        assert (x == len(str(value))).all()


def test_a_launch_looks_at_as_much_however_many_records_it_was_compiled_for():
    """A record of numbers never changes, whatever functions Python writes for its class; so machine
    code may launch, as it may for kernels in closures."""
    x, watched = np.zeros(4, np.float32), set()
    for first in range(5):
        steps = Steps(float(first), (1.0, 2.0))
        stores_total[1](x, steps)
        assert (x == first + 3).all() and not stores_total.careful
        watched.add(len(stores_total._watched))
    assert len(watched) == 1 and stores_total.rebindings == 0
    assert {type(space) for space, *_ in stores_total._watched} == {dict, Parts}


def test_what_changes_in_place_is_looked_at_once():
    x, many = np.zeros(4, np.float32), [Held([float(i)]) for i in range(3)]
    for held in many * 3:
        stores_sum[1](x, held)
        assert (x == held.values[0]).all()
    assert len(stores_sum._fingerprint.joined) == len(many)
    many[1].values[0] = 9.0
    stores_sum[1](x, many[1])
    assert (x == 9.0).all()


def test_a_variable_of_a_closure_is_seen_to_be_deleted():
    space: dict = {}
    exec(
        "import tkc\n"
        "def make(step):\n"
        "    def helper():\n"
        "        return step\n"
        "    def delete():\n"
        "        nonlocal step\n"
        "        del step\n"
        "    return helper, delete\n",
        space,
    )
    helper, delete = space["make"](2.0)
    parts = Parts(helper.__closure__[0])
    assert parts.get("cell_contents") == 2.0
    delete()
    assert parts.get("cell_contents") is None
