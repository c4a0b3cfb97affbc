"""Random programs of the host that change, between launches, what a kernel reads while it is
traced: globals, attributes, closures, entries, the environment, functions.

A program is a module with a kernel and a function of the same statements. After each change the
kernel is launched in one of the ways there are (`LAUNCHES`), and so is a new JitFunction of it,
which sees the disk cache as another process would; both must give the bits that Python itself
computes by the function. `check(program(seed))` gives what differs.

Not changed is what a kernel may take to stay (docs/language.md): what a partial holds, a frozen
dataclass.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType

import numpy as np

# Numbers that are equal, or of one hash, and still other constants, stand beside each other
NUMBERS = ("1", "1.0", "True", "0", "0.0", "-0.0", "False", "2", "2.0", "2.5", "3", "-1", "0.5")
POSITIVE = ("1", "2", "3")
VARIABLE = "FUZZ_FACTOR_{n}"  # of the environment
WIDTH = 4  # elements of the array


# ways to launch a kernel of one program on some arguments
LAUNCHES = {
    "kernel[1](…)": lambda kernel, *given: kernel[1](*given),
    "kernel[1, 1](…)": lambda kernel, *given: kernel[1, 1](*given),
    "kernel[function](…)": lambda kernel, *given: kernel[lambda bound: (1,)](*given),
    "kernel.prepare(…)()": lambda kernel, *given: kernel.prepare(*given, grid=1)(),
}


@dataclass(frozen=True)
class Holder:
    """A place where the host keeps a number {v} under the name {n}.

    setup: statements of the module; reads: expressions of the number, or of a tile v and the
    number; changes: statements after which the number is another one.
    """

    setup: str
    reads: tuple[str, ...]
    changes: tuple[str, ...]
    values: tuple[str, ...] = NUMBERS


CLASS = """class {n}T:
    x = {v}

    def __init__(self):
        self.y = {v}

    def method(self, v):
        return v * self.y

    def __call__(self, v):
        return v + self.y * self.x

    @property
    def read_only(self):
        return self.y + 1

    @classmethod
    def of_class(cls):
        return cls.x

    @staticmethod
    def plain(v):
        return v + {n}T.x

    def of_module(self, v):
        return v * {n}Number

    @property
    def of_all(self):
        return {n}Number


class {n}Derived({n}T):
    held = [{v}]


{n}, {n}Number = {n}Derived(), {v}


def {n}Made(of, v):
    return v * of().y


def {n}Handed(of, v):
    return of.of_module(v)


def {n}Asked(of, v):
    return v * of.of_all


def {n}Held(of, v):
    return v * of.held[0]
"""

HOLDERS: dict[str, Holder] = {
    "global": Holder("{n} = {v}", ("v * {n}",), ("{n} = {v}",)),
    "namespace": Holder(
        "{n} = types.SimpleNamespace(x={v}, inner=types.SimpleNamespace(y={v}))",
        ("v * {n}.x", "v * {n}.inner.y", "v * getattr({n}, 'x')", "v * vars({n})['x']"),
        (
            "{n}.x = {v}",
            "{n}.inner.y = {v}",
            "{n}.inner = types.SimpleNamespace(y={v})",
            "{n} = types.SimpleNamespace(x={v}, inner={n}.inner)",
            "setattr({n}, 'x', {v})",
            "{n}.__dict__['x'] = {v}",
            "vars({n}).update(x={v})",
        ),
    ),
    "class": Holder(
        CLASS,
        (
            "v * {n}.x",
            "v * {n}.y",
            "v * {n}T.x",
            "v * {n}Derived.x",
            "{n}.method(v)",
            "{n}(v)",
            "v * {n}.read_only",
            "v * {n}.of_class()",
            "{n}.plain(v)",
            "{n}Handed({n}, v)",
            "{n}Asked({n}, v)",
            "{n}Asked([{n}][0], v)",
            "{n}Held({n}, v)",
            "{n}Made({n}T, v)",
        ),
        (
            "{n}T.x = {v}",
            "{n}Derived.x = {v}",
            "{n}Number = {v}",
            "{n}.held[0] = {v}",
            "{n}Derived.held = [{v}]",
            "{n}.y = {v}",
            "{n}.x = {v}",
            "{n}.__dict__ = {n}.__dict__ | dict(x={v})",
            "{n} = {n}Derived()",
            "{n}T.plain = staticmethod(lambda v: v + {v})",
            "{n}T.method = lambda self, v: v - {v}",
            "{n}.__dict__.pop('x', None)",
        ),
    ),
    "object with a function": Holder(
        "class {n}T:\n    def __init__(self, fn, x):\n        self.fn, self.x = fn, x\n\n\n"
        "def {n}Handed(of, v):\n    return of.fn(v) * of.x\n\n\n"
        "{n} = {n}T(lambda v: v + 1, {v})",
        ("v * {n}.x", "{n}.fn(v)", "{n}Handed({n}, v)"),
        ("{n}.x = {v}", "{n}.fn = lambda v: v - {v}", "{n} = {n}T(lambda v: v, {v})"),
    ),
    "slots": Holder(
        "class {n}T:\n    __slots__ = ('x',)\n\n\n{n} = {n}T()\n{n}.x = {v}",
        ("v * {n}.x",),
        ("{n}.x = {v}", "{n} = {n}T()\n{n}.x = {v}"),
    ),
    "private slots": Holder(
        "class {n}B:\n    __slots__ = ('__x', 'y')\n\n"
        "    def get(self):\n        return self.__x\n\n"
        "    def put(self, x):\n        self.__x = x\n\n\n"
        "class {n}T({n}B):\n    __slots__ = ('y',)\n\n\n"
        "{n} = {n}T()\n{n}.put({v})\n{n}B.y.__set__({n}, {v})",
        ("v * {n}.get()", "v * {n}B.y.__get__({n})"),
        ("{n}.put({v})", "{n}B.y.__set__({n}, {v})"),
    ),
    "dataclass": Holder(
        "@dataclasses.dataclass\nclass {n}T:\n    x: float = {v}\n\n\n{n} = {n}T()\n"
        "{n}.y = {v}\n\n\ndef {n}Handed(of, v):\n    return v * getattr(of, 'y', 2)",
        ("v * {n}.x", "v * dataclasses.astuple({n})[0]", "{n}Handed({n}, v)"),
        ("{n}.x = {v}", "{n}.y = {v}", "{n} = {n}T({v})", "{n} = dataclasses.replace({n}, x={v})"),
    ),
    "frozen dataclass": Holder(
        "@dataclasses.dataclass(frozen=True)\nclass {n}T:\n    x: float\n\n\n{n} = {n}T({v})",
        ("v * {n}.x",),
        ("{n} = {n}T({v})",),
    ),
    "dictionary": Holder(
        "{n} = {{'x': {v}, 'list': [{v}]}}",
        (
            "v * {n}['x']",
            "v * {n}.get('x')",
            "v * {n}['list'][0]",
            "v * len({n}['list'])",
            "v * ({n}['y'] if 'y' in {n} else 2)",
        ),
        (
            "{n}['x'] = {v}",
            "{n}['list'][0] = {v}",
            "{n}['list'].append({v})",
            "{n} = {{'x': {v}, 'list': {n}['list']}}",
            "{n}.update(x={v})",
            "{n}['y'] = {v}",
            "{n}.pop('y', None)",
        ),
    ),
    "list": Holder(
        "{n} = [{v}, {v}]",
        ("v * {n}[0]", "v * {n}[-1]", "v * len({n})", "v + sum({n})"),
        ("{n}[0] = {v}", "{n}.append({v})", "{n} = [{v}]", "{n}.insert(0, {v})"),
    ),
    "kinds of lists": Holder(
        "class {n}T(list):\n    pass\n\n\n"
        "{n}, {n}Queue = {n}T([{v}]), collections.deque([{v}])\n"
        "{n}Pair = collections.namedtuple('{n}Pair', 'x y')([{v}], {v})",
        ("v * {n}[0]", "v * len({n})", "v * {n}Queue[-1]", "v * {n}Pair.x[0]"),
        ("{n}[0] = {v}", "{n}.append({v})", "{n}Queue.append({v})", "{n}Pair.x[0] = {v}"),
    ),
    "kinds of dictionaries": Holder(
        "{n} = collections.OrderedDict(x={v})\n{n}.y = {v}\n"
        "{n}Count, {n}Chain = collections.Counter(x={v}), collections.ChainMap({{'x': {v}}})",
        ("v * {n}['x']", "v * {n}.y", "v * {n}Count['x']", "v * {n}Chain['x']"),
        (
            "{n}['x'] = {v}",
            "{n}.y = {v}",
            "{n}.update(x={v})",
            "{n}Count['x'] = {v}",
            "{n}Chain['x'] = {v}",
        ),
    ),
    "bytes": Holder(
        "{n}, {n}Array = bytearray([int({v}), 1]), array.array('d', [{v}])\n"
        "{n}Number = ctypes.c_double({v})",
        ("v * {n}[0]", "v * {n}Array[0]", "v * {n}Number.value"),
        ("{n}[0] = int({v})", "{n}Array[0] = {v}", "{n}Number.value = {v}"),
        POSITIVE,
    ),
    "name that is looked up": Holder(
        "{n} = {v}\n{n}Module = types.ModuleType('{n}Module')\n{n}Module.x = {v}\n"
        "{n}Modules = {{'x': {n}Module}}",
        (
            "v * globals()['{n}']",
            "v * eval('{n}', globals())",
            "v * getattr({n}Module, 'x')",
            "v * {n}Modules['x'].x",
        ),
        ("{n} = {v}", "{n}Module.x = {v}"),
    ),
    "tuple": Holder("{n} = ({v}, {v})", ("v * {n}[0]",), ("{n} = ({v},)", "{n} = ([{v}], 1)[0]")),
    "closure": Holder(
        "def {n}T():\n    c = {v}\n\n    def read(v):\n        return v * c\n\n"
        "    def change(new):\n        nonlocal c\n        c = new\n\n    return read, change\n\n\n"
        "{n}, {n}Change = {n}T()",
        ("{n}(v)",),
        ("{n}Change({v})", "{n}, {n}Change = {n}T()", "{n}.__closure__[0].cell_contents = {v}"),
    ),
    "factory": Holder(
        "def {n}T(c):\n    return lambda v: v * c\n\n\n{n}, {n}Other = {n}T({v}), {n}T({v})",
        ("{n}(v)", "{n}Other(v)", "{n}({n}Other(v))"),
        ("{n} = {n}T({v})", "{n}, {n}Other = {n}Other, {n}", "{n}Other = {n}T({v})"),
    ),
    "lambdas of a line": Holder(
        "{n}, {n}Other = (lambda v: v + {v}), (lambda v: v * {v})",
        ("{n}(v)", "{n}Other(v)"),
        ("{n}, {n}Other = {n}Other, {n}", "{n} = lambda v: v - {v}"),
    ),
    "defaults": Holder(
        "def {n}(v, c={v}, *, d={v}):\n    return v * c + d",
        ("{n}(v)",),
        ("def {n}(v, c={v}, *, d={v}):\n    return v * c - d", "{n} = lambda v, c={v}: v * c"),
    ),
    "attribute of a function": Holder(
        "def {n}(v):\n    return v * {n}.factor\n\n\n{n}.factor = {v}",
        ("{n}(v)", "v * {n}.factor"),
        ("{n}.factor = {v}", "{n}.__dict__ = dict(factor={v})"),
    ),
    "code of a function": Holder(
        "def {n}(v):\n    return v * {v}",
        ("{n}(v)",),
        ("{n} = lambda v: v - {v}", "{n} = functools.partial(lambda c, v: v * c, {v})"),
    ),
    "parts of a function": Holder(
        "def {n}(v, c={v}, *, d={v}):\n    return v * c + d",
        ("{n}(v)", "v * {n}(2)", "[{n}][0](v)"),
        (
            "{n}.__code__ = (lambda v, c=1, *, d=1: v * {v} - c - d).__code__",
            "{n}.__defaults__ = ({v},)",
            "{n}.__kwdefaults__['d'] = {v}",
            "{n}.__kwdefaults__ = dict(d={v})",
        ),
    ),
    "what is called how": Holder(
        "def {n}(v):\n    'f{v}'\n    return v\n\n\nclass {n}T:\n    'c'\n\n\n"
        "def {n}Handed(of, v):\n    return v * len(of.__name__)",
        (
            "v * len({n}.__name__)",
            "v * len({n}.__qualname__)",
            "v * len({n}.__doc__)",
            "v * len({n}T.__name__)",
            "v * len({n}T.__qualname__)",
            "v * len({n}T.__doc__)",
            "{n}Handed({n}T, v)",
        ),
        (
            "{n}.__name__ = '{v}'",
            "{n}.__qualname__ = 'q{v}'",
            "{n}.__doc__ = 'd{v}'",
            "{n}T.__name__ = 't{v}'",
            "{n}T.__qualname__ = 'u{v}'",
            "{n}T.__doc__ = 'e{v}'",
        ),
    ),
    "abstract class": Holder(
        "class {n}T:\n    pass\n\n\nclass {n}Base(abc.ABC):\n    pass\n\n\n"
        "class {n}Derived({n}Base):\n    pass\n\n\n{n} = {n}T()",
        (
            "v + (2 if isinstance({n}, {n}Base) else 3)",
            "v + (2 if issubclass({n}T, {n}Derived) else 3)",
            "v + (2 if isinstance({n}, collections.abc.Sized) else 3)",
        ),
        (
            "{n}Base.register({n}T)",
            "{n}Derived.register({n}T)",
            "collections.abc.Collection.register({n}T)",
            "class {n}T:\n    pass\n\n\n{n} = {n}T()",
        ),
    ),
    "file": Holder(
        "{n} = pathlib.Path(__file__).parent / '{n}.txt'\n{n}.write_text('{v}')",
        (
            "v * float({n}.read_text())",
            "v * float(open({n}).read())",
            "v * float(io.open({n}).read())",
            "v * float(np.loadtxt({n}))",
            "v * {n}.stat().st_size",
        ),
        ("{n}.write_text('{v}')", "{n}.write_text('{v} ')"),
        POSITIVE,
    ),
    "helper of a helper": Holder(
        "{n}Factor = {v}\n\n\ndef {n}Inner(v):\n    return v * {n}Factor\n\n\n"
        "def {n}(v):\n    return {n}Inner(v)",
        ("{n}(v)",),
        ("{n}Factor = {v}", "{n}Inner = lambda v: v + {v}"),
    ),
    "partial": Holder(
        "def {n}T(c, v):\n    return v * c\n\n\n{n} = functools.partial({n}T, {v})",
        ("{n}(v)",),
        ("{n} = functools.partial({n}T, {v})", "{n} = functools.partial(lambda c, v: v - c, {v})"),
    ),
    "environment": Holder(
        f"os.environ['{VARIABLE}'] = '{{v}}'",
        (
            f"v * float(os.environ['{VARIABLE}'])",
            f"v * float(os.environ.get('{VARIABLE}', '2'))",
            f"v * float(os.getenv('{VARIABLE}', '2'))",
            f"v * (2 if '{VARIABLE}' in os.environ else 3)",
        ),
        (
            f"os.environ['{VARIABLE}'] = '{{v}}'",
            f"os.environ.update({VARIABLE}='{{v}}')",
            f"os.putenv('{VARIABLE}', '{{v}}')",
        ),
        POSITIVE,
    ),
    "module": Holder(
        "{n} = types.ModuleType('{n}')\n{n}.x, {n}.inner = {v}, types.SimpleNamespace(y={v})\n"
        "{n}.function = lambda v: v * {v}",
        ("v * {n}.x", "v * {n}.inner.y", "{n}.function(v)"),
        ("{n}.x = {v}", "{n}.inner.y = {v}", "{n}.function = lambda v: v + {v}"),
    ),
    "module that is imported": Holder(
        "sys.modules['{n}Imported'] = {n} = types.ModuleType('{n}Imported')\n{n}.x = {v}\n\n\n"
        "def {n}Whole(v):\n    import {n}Imported\n\n    return v * {n}Imported.x\n\n\n"
        "def {n}Part(v):\n    from {n}Imported import x as part\n\n    return v * part",
        ("{n}Whole(v)", "{n}Part(v)"),
        ("{n}.x = {v}",),
    ),
    "enumeration": Holder(
        "class {n}(enum.Enum):\n    A = {v}",
        ("v * {n}.A.value",),
        ("{n} = enum.Enum('{n}', {{'A': {v}}})",),
    ),
    "array of the host": Holder(
        "{n} = np.array([{v}, {v}], np.float64)",
        ("v * float({n}[0])", "v * {n}.shape[0]", "v * float({n}.sum())"),
        ("{n}[0] = {v}", "{n} = np.array([{v}], np.float64)", "{n}[:] = {v}"),
    ),
    "numpy number": Holder(
        "{n} = np.float32({v})", ("v * float({n})",), ("{n} = np.float32({v})",)
    ),
    "type": Holder(
        "{n} = {v}",
        ("v + (2 if isinstance({n}, bool) else 3 if isinstance({n}, int) else 4)",),
        ("{n} = {v}",),
    ),
    "NaN": Holder(
        "{n}, {n}Two = {v}, ({v}, {v})",
        ("v * math.copysign(2, {n})", "v + struct.pack('>d', {n})[6]", "v - _sign({n}Two[0])"),
        ("{n} = {v}", "{n}Two = ({v}, {v})"),
        ("math.nan", "-math.nan", "struct.unpack('>d', bytes([127, 248, 0, 0, 0, 0, 32, 0]))[0]"),
    ),
    "presence": Holder(
        "{n} = types.SimpleNamespace()",
        ("v + (2 if hasattr({n}, 'x') else 3)", "v * getattr({n}, 'x', 2)"),
        ("{n}.x = {v}", "{n}.__dict__.pop('x', None)", "{n} = types.SimpleNamespace(x={v})"),
    ),
    "loop over a list": Holder(
        "{n} = [{v}, {v}]",
        ("sum([v * c for c in {n}], v)", "v * max({n})"),
        ("{n}[1] = {v}", "{n} = [{v}, 1]", "{n}.sort()"),
    ),
    "set": Holder(
        "{n} = {{{v}}}",
        ("v * (2 if 2.5 in {n} else 3)", "v * len({n})"),
        ("{n}.add({v})", "{n} = {{{v}}}", "{n}.clear()"),
    ),
}

PREAMBLE = """import abc
import array
import collections
import collections.abc
import ctypes
import dataclasses
import enum
import functools
import io
import math
import os
import pathlib
import struct
import sys
import types

import numpy as np

import tkc


def _sign(number):
    return math.copysign(1, number)


"""


@dataclass(frozen=True)
class Action:
    """Statements that change the host's state, and the expressions of the arguments of the launch
    that follows.
    """

    change: str
    number: str
    function: str


@dataclass(frozen=True)
class HostProgram:
    """What a seed gives: the text of a module, and what happens after it is imported."""

    seed: int
    source: str
    actions: tuple[Action, ...]
    names: tuple[str, ...]

    def __str__(self) -> str:
        steps = [f"{a.change}\n# launch: {a.number}, {a.function}" for a in self.actions]
        return "\n".join([self.source, *steps])


FUNCTIONS = ("lambda v: v + {v}", "lambda v: v * {v}", "shifted({v})", "Scaled({v})", "named")


def program(seed: int) -> HostProgram:
    """The program of a seed: one to three holders, one to three statements that read them, and
    three to seven changes, each with a launch.
    """
    r = random.Random(seed)
    kinds = [r.choice(list(HOLDERS)) for _ in range(r.randint(1, 3))]
    named = {f"s{i}": HOLDERS[kind] for i, kind in enumerate(kinds)}

    def filled(text: str, name: str) -> str:
        return text.format(n=name, v=r.choice(named[name].values))

    setup = [filled(holder.setup, name) for name, holder in named.items()]
    setup.append(f"class Scaled:\n    def __init__(self, c):\n        self.c = c\n\n{_CALL}")
    setup.append(f"def shifted(c):\n    return lambda v: v + c\n\n\n{_NAMED}")
    reads = [filled(r.choice(named[n].reads), n) for n in (*named, *r.choices(list(named)))]
    statements = [f"v = {text}" for text in dict.fromkeys(reads)]
    if r.random() < 0.3:
        statements.append("v = F(v)")
    if r.random() < 0.3:
        statements.append("v = v * C")
    body = "\n".join(f"    {text}" for text in [*statements, "return v"])
    function = f"def statements(v, C, F):\n{body}"
    inside = ["v = statements(v, C, F)"] if r.random() < 0.2 else statements
    lines = [f"v = tkc.load(x, (0,), ({WIDTH},))", *inside, "tkc.store(x, (0,), v)"]
    kernel = "@tkc.jit\ndef kernel(x, C: tkc.constexpr, F: tkc.constexpr):\n" + "\n".join(
        f"    {text}" for text in lines
    )
    actions = []
    number, handed = r.choice(NUMBERS), r.choice(FUNCTIONS).format(v=r.choice(NUMBERS))
    for i in range(r.randint(3, 7)):
        name = r.choice(list(named))
        change = filled(r.choice(named[name].changes), name) if i else "pass"
        if r.random() < 0.2:
            number = r.choice(NUMBERS)
        if r.random() < 0.2:
            handed = r.choice(FUNCTIONS).format(v=r.choice(NUMBERS))
        actions.append(Action(change, number, handed))
    source = PREAMBLE + "\n\n".join([*setup, function, kernel]) + "\n"
    return HostProgram(seed, source, tuple(actions), tuple(named))


_CALL = "    def __call__(self, v):\n        return v * self.c\n"
_NAMED = "def named(v):\n    return v - 1\n"


# --------------------------------------------------------------------------------------------------
@dataclass
class Outcome:
    """Of a program: launches, those that were refused, and what is wrong."""

    launches: int = 0
    refused: int = 0
    faults: tuple[str, ...] = ()


def check(given: HostProgram) -> Outcome:
    """Runs a program up to its first fault."""
    from tkc.errors import Error

    outcome = Outcome()
    with _imported(given) as module:
        names = vars(module)
        for i, action in enumerate(given.actions):
            exec(action.change, names)
            number, function = eval(f"({action.number}, {action.function})", names)
            values = np.arange(1, WIDTH + 1, dtype=np.float32)
            want = np.asarray(module.statements(values, number, function), np.float32)
            new = type(module.kernel)(module.kernel.fn)
            way = random.Random(f"{given.seed} {i}").choice(list(LAUNCHES))
            for kernel, what in ((module.kernel, "the kernel"), (new, "a new JitFunction")):
                outcome.launches += 1
                got = values.copy()
                try:
                    LAUNCHES[way](kernel, got, number, function)
                except Error:
                    outcome.refused += 1
                    continue
                if got.tobytes() != want.tobytes():
                    how = f"launch {i} of {what} by {way}, after '{action.change}'"
                    fault = f"{how}: {got}, not {want}"
                    outcome.faults = (f"{fault}\n{given}",)
                    return outcome
    return outcome


@contextmanager
def _imported(given: HostProgram) -> Iterator[ModuleType]:
    """A program's module, imported from a file, with a disk cache of its own."""
    folder, before = Path(tempfile.mkdtemp(prefix="tkc-host-")), dict(os.environ)
    name = f"tkc_host_program_{given.seed}"
    file = folder / f"{name}.py"
    file.write_text(given.source)
    os.environ["TKC_CACHE_DIR"] = str(folder / "cache")
    try:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"no module in {file}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.modules.pop(name, None)
        for variable in chain(os.environ.keys() - before.keys(), before):
            if variable in before:
                os.environ[variable] = before[variable]
            else:
                del os.environ[variable]
        shutil.rmtree(folder, ignore_errors=True)
