"""What a Python object holds, whatever it is: its state as a region of a kernel may change it.

    slots     what can be read and written one by one: elements of lists, values of dicts,
              attributes, closure cells, globals that the code names
    the rest  what an object tells of itself to be copied (`__reduce_ex__`), the bytes that it
              lends, where a generator stands: it can be compared, not put back (`Frozen`)
    leads     the other objects that it refers to, as the garbage collector knows them

Modules, functions and classes of libraries hold no state of a kernel; their instances do. Of
objects of the compiler and of arrays on a GPU nothing is read.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any
from weakref import ReferenceType, WeakSet
from zlib import crc32

import numpy as np

from tkc.language.arrays import Array
from tkc.language.dtypes import DType
from tkc.language.tracer import fail, is_library
from tkc.language.values import BINARY, COMPARISONS, Pointer, Value
from tkc.objects import own_attributes, own_dict, slots_by_name, text_of

UNBOUND = type("Unbound", (), {"__repr__": lambda self: "<no value>"})()


class Lost:
    """Stands in a slot whose value is not known after (or inside) a region; any use is an error."""

    def __init__(self, reason: str):
        object.__setattr__(self, "_reason", reason)

    def __getattribute__(self, name):
        fail(object.__getattribute__(self, "_reason"))

    def __repr__(self):
        return "<no value>"


def _refuse(self, *args, **kwargs):
    fail(object.__getattribute__(self, "_reason"))


_REFUSED = (
    "neg pos abs invert bool index int float iter len getitem setitem contains call str format"
)
for _name in (
    *BINARY,
    *(f"r{name}" for name in BINARY),
    *COMPARISONS,
    *_REFUSED.split(),
    "hash",
    "setattr",
):
    setattr(Lost, f"__{_name}__", _refuse)


class Globals:
    """The names of a module that traced code mentions, as a container."""

    def __init__(self, table: dict):
        self.table = table
        self.names: set[str] = set()


class Frozen:
    """A content that can be compared but not put back. `kept` lives on: no id is used again."""

    def __init__(self, mark: object, kept: object = None):
        self.mark = mark
        self.kept = kept

    def __eq__(self, other):
        return isinstance(other, Frozen) and self.mark == other.mark

    __hash__ = None  # type: ignore[assignment]


# --------------------------------------------------------------------------------------------------
# Values that never change in place: of Python these classes themselves, as subclasses may have
# attributes; of tkc and NumPy all.
_EQUAL_CLASSES = (bool, int, complex, str, bytes, range, slice, type(None))
_CONSTANT_CLASSES = frozenset((*_EQUAL_CLASSES, float, type(Ellipsis), CodeType, FrameType))
_CONSTANTS = (DType, Pointer, Value, Array, np.generic, np.dtype, np.ufunc, Lost, type(UNBOUND))
# packages whose objects are the compiler's, or lie on a GPU
_UNREAD = ("tkc", "xdsl", "llvmlite", "cuda", "torch", "cupy", "jax", "jaxlib", "pytest", "_pytest")
# modules of Python whose objects hold what a user puts into them
_OPEN = ("types", "collections", "queue")
# names of a class that Python makes for itself, some of them late
_OF_CLASSES = ("__annotations__", "__annotations_cache__", "__doc__", "__dict__", "__weakref__")
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
# of Python, whose subclasses may have attributes, too
_HOLDERS = (list, dict, deque, set, tuple, frozenset, np.ndarray)
# objects of Python through which others are seen
_WINDOWS = (
    *map(type, ({}.keys(), {}.values(), {}.items())),
    *(MappingProxyType, MethodType, MethodWrapperType, property, classmethod, staticmethod),
)
# classes whose instances are their attributes and nothing else
_bare: WeakSet[type] = WeakSet()
REST = "what it tells of itself"
_COPIED_BY = ("__reduce_ex__", "__reduce__", "__getstate__")


def is_constant(obj: object) -> bool:
    """Whether an object has no state that could change. Python's table of modules counts as such:
    through it everything could be reached.
    """
    return type(obj) in _CONSTANT_CLASSES or isinstance(obj, _CONSTANTS) or obj is sys.modules


def is_users(f: FunctionType) -> bool:
    """A function that may take part in a kernel (not of a library); tkc's kernels count as the
    user's.
    """
    return not is_library(f.__module__)


def module_of(cls: type) -> str:
    """The module of a class; of classes of C that do not say it, Python's own."""
    module = cls.__module__
    return module if isinstance(module, str) else "builtins"


def is_unread(module: str) -> bool:
    """Whether nothing is read of objects whose class or name is of this module."""
    return is_library(module) and module.partition(".")[0] in _UNREAD


def traced_function(obj: object) -> FunctionType | None:
    """The function under an object of ours that wraps one (tkc.jit)."""
    if isinstance(obj, FunctionType) or not module_of(type(obj)).startswith("tkc."):
        return None
    try:
        found = vars(obj).get("__wrapped__", vars(obj).get("fn"))
    except TypeError:
        return None
    return found if isinstance(found, FunctionType) else None


# --------------------------------------------------------------------------------------------------
def contents(obj: Any) -> dict | None:
    """The slots of an object, and the rest of its state as one more; None where it has neither."""
    if is_constant(obj):
        return None
    for kinds, slots in _CONTENTS:
        if isinstance(obj, kinds):
            return slots(obj)
    module = module_of(type(obj))
    if is_unread(module):
        return _version(obj)
    rest = _rest(obj)
    found = {} if rest is None else {REST: rest}
    if not is_library(module):
        found["__class__"] = Frozen(id(type(obj)), type(obj))
    elif rest is not None and module not in _OPEN:
        return found
    return found | own_attributes(obj)


def _mark(mark: object) -> dict:
    """The one slot of a container whose content is only compared."""
    return {REST: Frozen(mark)}


def _of_array(array: np.ndarray) -> dict:
    if array.dtype.hasobject:
        return _mark(tuple(map(id, array.flat)))
    return _mark((array.shape, crc32(np.ascontiguousarray(array).tobytes())))


def _of_cell(cell: CellType) -> dict:
    try:
        return {"contents": cell.cell_contents}
    except ValueError:
        return {"contents": UNBOUND}


def _of_variable(variable: ContextVar) -> dict:
    value = variable.get(UNBOUND)
    return {"contents": Frozen(None) if value is UNBOUND else value}


def _of_generator(generator: Any) -> dict:
    """Where a generator or a coroutine stands, and what its names are bound to there."""
    ways = ("gi_frame", "cr_frame", "ag_frame")
    frame = next(getattr(generator, way) for way in ways if hasattr(generator, way))
    if frame is None:
        return _mark(None)
    names = dict(frame.f_locals)
    return {REST: Frozen((frame.f_lasti, _spelled(names, {})), names)}


def _of_function(f: FunctionType) -> dict | None:
    if not is_users(f):
        return None
    fixed = f.__code__, f.__defaults__, f.__kwdefaults__
    return dict(vars(f)) | {REST: Frozen(tuple(map(id, fixed)), fixed)}


def _of_class(cls: type) -> dict | None:
    if is_library(module_of(cls)):
        return None
    return {
        n: v
        for n, v in vars(cls).items()
        if n not in _OF_CLASSES and not isinstance(v, _DESCRIPTORS)
    }


def _of_globals(found: Globals) -> dict:
    return {n: found.table[n] for n in sorted(found.names) if n in found.table}


# The first row that fits; what fits none is an object with attributes, or one that tells of itself.
_CONTENTS: tuple[tuple[Any, Callable[[Any], dict | None]], ...] = (
    ((list, deque), lambda obj: dict(enumerate(obj))),
    (dict, dict),
    (set, lambda obj: _mark(frozenset(map(id, obj)))),
    (np.ndarray, _of_array),
    (CellType, _of_cell),
    (ContextVar, _of_variable),
    (threading.local, lambda obj: dict(vars(obj))),
    (Globals, _of_globals),
    ((GeneratorType, CoroutineType, AsyncGeneratorType), _of_generator),
    (FunctionType, _of_function),
    (type, _of_class),
    ((tuple, frozenset, ModuleType), lambda obj: None),
)


def _version(obj: Any) -> dict | None:
    """How often an array on a GPU was changed, where it counts that."""
    count = getattr(obj, "_version", None)
    return _mark(count) if isinstance(count, int) else None


def _rest(obj: Any) -> Frozen | None:
    """What can be compared of an object beside its attributes; None where it tells nothing."""
    kind = type(obj)
    if kind in _bare:
        return None
    try:
        with memoryview(obj) as view:
            return None if view.readonly else Frozen((view.nbytes, crc32(view.tobytes())))
    except TypeError:
        if not is_library(module_of(kind)) and not _is_copied_by_library(kind):
            _bare.add(kind)
            return None
    except (ValueError, BufferError):
        pass
    return _account(obj, kind)


def _account(obj: Any, kind: type) -> Frozen | None:
    """What an object tells, or what the garbage collector knows of an object of a library that has
    no attributes.
    """
    own_dict(obj)  # a dict that Python makes when it is asked for is there from now on
    held = _referents(obj)
    told = _told(obj)
    account = Frozen(_spelled(told, held), told)
    # one that differs though nothing has changed, as it holds objects made for it, says nothing
    if told is not None and account.mark == _spelled(_told(obj), held):
        return account
    if not is_library(module_of(kind)) or isinstance(obj, _WINDOWS) or own_attributes(obj):
        return None
    hidden = list(held.values())
    return Frozen((_spelled(hidden, {}), repr(obj)), hidden)


def _referents(obj: Any) -> dict[int, Any]:
    """What an object refers to, by identity."""
    return {id(x): x for x in gc.get_referents(obj)}


def _is_copied_by_library(kind: type) -> bool:
    """Whether a class of Python or of a library says how its instances are copied."""
    for cls in kind.__mro__[:-1]:
        if any(n in vars(cls) for n in _COPIED_BY):
            return is_library(module_of(cls))
    return False


def _told(obj: Any) -> Any:
    """What an object is copied by, where its class says that; of others where a stream stands. None
    where it tells nothing.
    """
    if not _is_copied_by_library(type(obj)):
        return _position(obj)
    try:
        found = obj.__reduce_ex__(4)
    except Exception:
        return _position(obj)
    if isinstance(found, str):
        return found
    # of iterators over its elements what they give
    return tuple(tuple(x) if hasattr(x, "__next__") and i > 2 else x for i, x in enumerate(found))


def _position(obj: Any) -> Any:
    try:
        return "position", obj.tell()
    except Exception:
        return None


def _spelled(told: Any, held: dict[int, Any]) -> object:
    """What an object tells, as something that compares by its content. What is held, which is what
    the object itself refers to, has a state of its own.
    """

    def spell(x: Any) -> object:
        kind = type(x)
        if kind is float:
            return kind, text_of(x)
        if kind in _EQUAL_CLASSES:
            return kind, x
        if id(x) in held:
            return id(x)
        if kind in (tuple, list):
            return kind, tuple(map(spell, x))
        if kind is dict:
            return kind, tuple((spell(k), spell(v)) for k, v in x.items())
        if kind is np.ndarray:
            return kind, _of_array(x)[REST].mark
        return id(x)

    return spell(told)


# --------------------------------------------------------------------------------------------------
def leads(obj: Any, slots: dict | None) -> list[tuple[Any, Any]]:
    """What an object leads to beside what is in its slots: (key of the way or None, object)."""
    if (inner := traced_function(obj)) is not None:
        return [("function", inner)]
    match obj:
        case FunctionType():
            return _of_closure(obj) if is_users(obj) else []
        case ModuleType() | Globals():
            return []
        case type():
            return [(None, c) for c in (type(obj), *obj.__bases__) if not is_library(module_of(c))]
        case ReferenceType():
            return [(None, obj())]
        case tuple():
            return [*enumerate(obj), *_of_class_and_attributes(obj)]
    if is_unread(module_of(type(obj))):
        return []
    return _elements(obj, slots or {}) + _of_class_and_attributes(obj)


def _of_closure(f: FunctionType) -> list[tuple[Any, Any]]:
    cells = zip(f.__code__.co_freevars, f.__closure__ or (), strict=False)
    named = [(f"closure {n}", c) for n, c in cells]
    return [*named, ("__defaults__", f.__defaults__), ("__kwdefaults__", f.__kwdefaults__)]


def _of_class_and_attributes(obj: Any) -> list[tuple[Any, Any]]:
    """The class of a user's object, and the attributes of one whose slots are its elements."""
    if is_library(module_of(type(obj))):
        return []
    held = [(None, own_dict(obj))] if isinstance(obj, _HOLDERS) else []
    return [*held, (None, type(obj))]


def _elements(obj: Any, slots: dict) -> list[tuple[Any, Any]]:
    """What an object refers to, as it tells or as the garbage collector knows."""
    if isinstance(obj, (list, deque)):
        return []
    if isinstance(obj, np.ndarray):
        return [(i, x) for i, x in enumerate(obj.flat)] if obj.dtype.hasobject else []
    rest = slots.get(REST)
    known = {id(v) for v in slots.values()} | {id(type(obj))}
    if rest is not None and is_library(module_of(type(obj))) and not isinstance(obj, set):
        found = [*_objects_of(rest.kept, _referents(obj)), own_dict(obj).get("__wrapped__")]
    else:
        found = gc.get_referents(obj)
        known.add(id(own_dict(obj)))
    return [(None, x) for x in found if id(x) not in known and not is_constant(x)]


def _objects_of(told: Any, held: dict[int, Any]) -> Iterable[Any]:
    """The objects within what an object tells: those that it holds, and what is no collection."""
    inner = None if id(told) in held else _collected(told)
    if inner is None:
        yield told
    else:
        for x in inner:
            yield from _objects_of(x, held)


def _collected(x: Any) -> list | None:
    """The elements of a collection; None of other objects."""
    if type(x) in (tuple, list):
        return list(x)
    return [*x.keys(), *x.values()] if type(x) is dict else None


def write(obj: Any, key: Any, value: object) -> None:
    """Rebinds one slot."""
    match obj:
        case list() | deque() | dict():
            obj[key] = value
        case CellType():
            if value is not UNBOUND:
                obj.cell_contents = value
            else:
                del obj.cell_contents
        case ContextVar():
            obj.set(value)
        case Globals():
            obj.table[key] = value
        case type() | threading.local():
            setattr(obj, key, value)
        case _ if key in (slots := slots_by_name(obj)):
            slots[key].__set__(obj, value)
        case _:
            object.__setattr__(obj, key, value)


def delete(obj: Any, key: Any) -> None:
    """Takes one slot away."""
    match obj:
        case list() | deque() | dict():
            del obj[key]
        case Globals():
            del obj.table[key]
        case type() | threading.local():
            delattr(obj, key)
        case _ if key in (slots := slots_by_name(obj)):
            slots[key].__delete__(obj)
        case _:
            object.__delattr__(obj, key)
