"""What a kernel's code depends on, as fields (toolchain.py): its source, its helpers' (reading.py),
and every outside value they use.

Comments, file names and hash seeds do not count. A value that cannot be written down makes
`Unstable`: the kernel is then compiled, not cached.
"""

from __future__ import annotations

import abc
import ast
import builtins
import dataclasses
import enum
import functools
import gc
import importlib.util
import inspect
import operator
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tkc.objects import own_attributes, own_dict, slots_of, text_of
from tkc.runtime.reading import Imported, Reading, reading_of
from tkc.runtime.toolchain import is_installed


class Unstable(Exception):
    """A value that the compiled code may depend on and that has no stable spelling."""


# what is read through these has no name that could be looked at
DYNAMIC = ("globals", "locals", "eval", "exec", "__import__", "open", "input")
# modules whose functions, and whose classes' objects, depend on more than their arguments
SYSTEM = ("posix", "nt", "time", "subprocess", "socket", "_socket", "mmap", "sqlite3")
# what gives the contents of files
READERS = frozenset({"fromfile", "genfromtxt", "load", "loadtxt", "memmap"})  # NumPy's
READS_OF_PATHS = frozenset(
    {
        *("cwd", "home", "absolute", "resolve", "expanduser", "readlink", "samefile"),
        *("open", "read_text", "read_bytes", "iterdir", "glob", "rglob", "walk"),
        *("exists", "stat", "lstat", "owner", "group", "is_dir", "is_file", "is_symlink"),
        *("is_mount", "is_socket", "is_fifo", "is_block_device", "is_char_device"),
    }
)
# what Python runs of a class that is called
CALLED = frozenset({"__new__", "__init__", "__post_init__"})
# by which attributes are found whose names values hold
FINDS_BY_TEXT = ("getattr", "hasattr")
# by which the class of an object is found
KINDS = ("type", "__class__")
# of kinds whose values never change in place
CONSTANTS = (
    *(bool, int, float, complex, str, bytes, range, slice),
    *(type(None), type(Ellipsis), type(NotImplemented)),
)
TORCH_CONSTANTS = ("dtype", "device", "layout", "memory_format", "Size")
# methods that Python calls where objects are made, copied and shown
NOT_OF_OPERATORS = (
    *("__new__", "__init__", "__post_init__", "__set_name__", "__del__"),
    *("__repr__", "__str__", "__format__", "__dir__", "__sizeof__"),
    *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__"),
    *("__copy__", "__deepcopy__", "__replace__", "__getnewargs_ex__"),
)
DEEPEST_OBJECT = 16  # objects within objects whose attributes are looked at


# Classes (kept alive, so that no id is used again) and their texts, by id, for a metaclass may
# allow no hash: to find one, Python parses all of its file
_texts: dict[int, tuple[type, bytes]] = {}


SIZE = "len()"  # no name of an entry
DICT = "__dict__"
# what functions and classes are called, which no dictionary of theirs holds
NAMES_OF_FUNCTIONS = ("__name__", "__qualname__", "__doc__", "__module__")
NAMES_OF_CLASSES = ("__name__", "__qualname__")


@cache
def _number(n: int) -> int:
    """A number as one object: what is watched is compared by identity."""
    return n


class Parts:
    """As a namespace: what a function is made of (`__code__`, `__defaults__`, `__kwdefaults__`; to
    reload a module in a running session may give a function those of its newer self), what a
    variable of a closure holds (`cell_contents`), a class's `__bases__`, what either is called, the
    dictionary of an object's attributes (`__dict__`), or how many entries a dictionary has
    (`len()`): a name that is in it now has another value where it is bound anew.
    """

    __slots__ = ("owner",)

    def __init__(self, owner: Any):
        self.owner = owner

    def get(self, name: str) -> Any:
        """The part; None of a variable that was deleted."""
        if isinstance(self.owner, dict):
            return _number(len(self.owner))
        if name == DICT:
            return own_dict(self.owner)
        try:
            return getattr(self.owner, name)
        except ValueError:
            return None


class Fingerprint:
    """Everything one function depends on; without one, what the values do that it spells.

    fields: for `digest`. watched: (namespace, name, value) of the outside names used, attributes of
    modules and variables of closures too, for noticing that one was rebound; `mutable`: values that
    can change in place, with their spelling. unstable: why there is no key, if there is none.

    Which function reads which member of a class no name says: of classes that are spelled, members
    count of whose name any function that was read names an attribute (`_follow`). beside: another
    one, whose functions may read members of these classes, and these ones members of its classes.
    """

    def __init__(self, function: Any = None, beside: Fingerprint | None = None):
        self.fields: list[tuple[str, bytes]] = []
        self.watched: list[tuple[dict | Parts, str, object]] = []
        self._places: set[tuple[Any, str]] = set()  # of what is watched
        self.mutable: list[tuple[object, bytes]] = []
        self.joined: list[Fingerprint] = []  # with values that can change in place
        self.unstable: Unstable | None = None
        # functions that were read, by code, cells and defaults: closures of one factory differ in
        # their cells alone; the number of each stands for it where a value holds it
        self._seen: dict[tuple[int, ...], int] = {}
        self._read: list[types.FunctionType] = []  # kept alive, so that no id is used again
        self._inside: list[int] = []  # objects whose attributes are being spelled
        self._within: list[int] = []  # lists and dictionaries that are
        # attributes that functions name, classes of users, and members of these that were read
        self._named: set[str] = set(beside._named) if beside else set()
        self._alike: dict[tuple[str, str], list[type]] = {}  # classes of one name
        self._texts: set[str] = set()  # that values hold
        self._asked: set[str] = set()  # functions that are called with nothing
        self._reaches_paths = False  # to files
        self._classes: dict[int, type] = dict(beside._classes) if beside else {}
        self._followed: set[tuple[int, str]] = set(beside._followed) if beside else set()
        if function is not None:
            self._function("", function)
            self._follow()

    def _function(self, path: str, fn) -> int:
        """Records a function and all it reaches; the number under which it stands."""
        if _is_kernel(fn):
            self._watch(own_dict(fn), "fn", fn.fn)
            fn = fn.fn
        parts = fn.__code__, fn.__defaults__, fn.__globals__, *(fn.__closure__ or ())
        mark = tuple(map(id, parts))
        if mark in self._seen:
            return self._seen[mark]
        number = self._seen[mark] = len(self._seen)
        self._read.append(fn)
        self._watch_parts(fn)
        reading = reading_of(fn.__code__)
        self._named |= reading.named
        if not reading.named.isdisjoint(KINDS):
            self._named |= CALLED
        self._asked |= reading.asked
        self.fields.append((f"source {path}{fn.__qualname__}", reading.text))
        self._value(
            f"defaults {path}{fn.__qualname__}",
            (fn.__defaults__, fn.__kwdefaults__ and tuple(fn.__kwdefaults__.items())),
        )
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False))
        for name in sorted(reading.names):
            if name in cells:
                value = self._enclosed(cells[name])
            elif name in fn.__globals__:
                value = fn.__globals__[name]
                if not _is_module_of_ours(value):
                    self._watch(fn.__globals__, name, value)
            else:
                value = self._builtin_named(path, name, fn.__globals__)
            if value is not _EMPTY:
                self._outside(path, name, value, *reading.of(name))
        for imported in reading.imports:
            self._imported(path, imported, reading, fn)
        return number

    def _enclosed(self, cell: types.CellType) -> Any:
        """What a variable of a closure holds; _EMPTY of one that is not assigned yet, and where it
        is the class of a method, whose members are followed.
        """
        try:
            value = cell.cell_contents
        except ValueError:
            return _EMPTY
        self._watch(Parts(cell), "cell_contents", value)
        return _EMPTY if isinstance(value, type) and id(value) in self._classes else value

    def _watch(self, space: dict | Parts, name: str, value: object) -> None:
        """Has a name compared from now on, once."""
        if (place := (_identity(space), name)) not in self._places:
            self._places.add(place)
            self.watched.append((space, name, value))

    def _watch_attribute(self, owner: object, name: str, value: object) -> None:
        """Has an attribute that an object holds itself compared from now on."""
        self._watch_dict(owner)
        self._watch(own_dict(owner), name, value)

    def _watch_dict(self, owner: object) -> None:
        """Has it compared which dictionary holds an object's attributes; a class and a module have
        the same one for good.
        """
        if not isinstance(owner, (type, types.ModuleType)):
            self._watch(Parts(owner), DICT, own_dict(owner))

    def _watch_entries(self, space: dict) -> None:
        """Has all that a dictionary holds compared from now on."""
        for name, value in [*space.items()]:
            self._watch(space, name, value)
        size = Parts(space)
        self._watch(size, SIZE, size.get(SIZE))

    def _builtin_named(self, path: str, name: str, space: dict[str, Any]) -> Any:
        """What was put among Python's own names, which a module may hide; _EMPTY of Python's own,
        and of locals.
        """
        self._watch(space, name, None)
        if name in DYNAMIC:
            self._value(f"builtin {path}{name}", _EMPTY)  # has no spelling
            return _EMPTY
        value = vars(builtins).get(name, _EMPTY)
        if value is _EMPTY or getattr(value, "__module__", None) == "builtins":
            return _EMPTY
        self._watch(vars(builtins), name, value)
        return value

    def _watch_parts(self, fn: types.FunctionType) -> None:
        """A function's code and default values, which can be replaced in place."""
        parts = Parts(fn)
        self._watch(parts, "__code__", fn.__code__)
        if fn.__defaults__ is not None:
            self._watch(parts, "__defaults__", fn.__defaults__)
        if (given := fn.__kwdefaults__) is not None:
            self._watch(parts, "__kwdefaults__", given)
            for name, value in given.items():
                self._watch(given, name, value)

    def _imported(self, path: str, of: Imported, reading: Reading, fn: types.FunctionType) -> None:
        """What a function imports itself counts as what it reads of globals does. For functions of
        libraries nothing is imported that is not there yet: what they import may depend on much.
        """
        find: Callable[[str], types.ModuleType] = importlib.import_module
        if _of_library(fn.__module__):
            find = sys.modules.__getitem__
        try:
            name = importlib.util.resolve_name(of.module, fn.__globals__.get("__package__"))
            if is_ours_by_name(name):
                return
            module = find(name)
            value: Any = module
            if of.attribute is not None:
                value = getattr(module, of.attribute, _EMPTY)
                if value is _EMPTY:
                    value = find(f"{name}.{of.attribute}")
        except Exception:  # of a module's own statements, too
            self._value(f"import {path}{of.module}", _EMPTY)  # has no spelling
            return
        if of.attribute is not None:
            self._watch(vars(module), of.attribute, value)
        elif not of.renamed:
            value = sys.modules[name.partition(".")[0]]
        self._outside(path, of.name, value, *reading.of(of.name))

    def _outside(
        self,
        path: str,
        name: str,
        value: object,
        chains: set[tuple[str, ...]],
        attributes_alone: bool,
    ) -> None:
        """What a function reads under a name. chains: through which attributes."""
        if isinstance(value, types.ModuleType):
            self._module(name, value, chains)
            if not attributes_alone:
                self._value(f"value {path}{name}", value)
        elif attributes_alone and _has_attributes(value):
            self._attributes(path + name, value, chains)
        else:
            self._value(f"value {path}{name}", value)
            if isinstance(value, types.FunctionType):
                self._attributes_of_function(path, value, chains)

    def _attributes_of_function(
        self, path: str, fn: types.FunctionType, chains: Iterable[tuple[str, ...]]
    ) -> None:
        """Attributes that users gave a function."""
        space = vars(fn)
        for name, attribute, *_ in sorted(chains):
            if attribute in space:
                self._watch_attribute(fn, attribute, space[attribute])
                self._value(f"value {path}{name}.{attribute}", space[attribute])

    def _attributes(self, label: str, root: object, chains: set[tuple[str, ...]]) -> None:
        """Of an object that is only read through attributes, these count."""
        for chain in sorted(chains):
            value = root
            for attribute in chain[1:]:
                space = own_dict(value)
                owner, value = value, getattr(value, attribute, None)
                if space.get(attribute) is value:
                    self._watch_attribute(owner, attribute, value)
                    self._watch_finding(type(owner), attribute)
                elif not isinstance(value, types.MethodType):  # a property, a slot, inherited
                    self._value(f"object {label}", owner)
                    self._finder(label, owner, attribute)
                if not _has_attributes(value) or isinstance(value, types.ModuleType):
                    break
            self._value(f"value {label}.{'.'.join(chain[1:])}", value)

    def _watch_finding(self, kind: type, attribute: str) -> None:
        """That a class leaves it to its objects what they hold under a name."""
        for cls in _of_users(kind):
            self._watch_shape(cls)
            space = own_dict(cls)
            if attribute in space:
                self._watch(space, attribute, space[attribute])

    def _finder(self, label: str, owner: object, attribute: str) -> None:
        """What an object's attribute is computed by, where something of its class computes it."""
        member = inspect.getattr_static(type(owner), attribute, None)
        if (getter := _getter(member)) is not None:
            self._function("", getter)
        elif hasattr(type(member), "__get__") and not _of_library(type(member).__module__):
            self._value(f"finder {label}.{attribute}", member)

    def argument(self, function: Callable[..., Any], name: str, value: object) -> None:
        """Records what a function reads of a value that is passed to it under a name."""
        self._outside("", name, value, *reading_of(function.__code__).of(name))
        self._follow()

    def read(self, label: str, value: object) -> None:
        """Records a value that is read as a whole."""
        self._value(label, value)
        self._follow()

    def _follow(self) -> None:
        """Reads the members of classes that are read, and what these read in turn."""
        while found := self._not_followed():
            for holder, name in found:
                self._followed.add((id(holder), name))
                self._member(holder, name)
        if self._reaches_paths and not self._named.isdisjoint(READS_OF_PATHS):
            self._value("files", _EMPTY)  # has no spelling

    def _not_followed(self) -> list[tuple[type | types.FunctionType, str]]:
        """Members of classes, and attributes of functions, that may be read and were not yet."""
        holders: list[type | types.FunctionType] = [*self._classes.values(), *self._read]
        return [
            (holder, name)
            for holder in holders
            for name in (*vars(holder), *_names_of(holder))
            if self._is_named(name) and (id(holder), name) not in self._followed
        ]

    def _is_named(self, name: str) -> bool:
        """Whether a function may read an attribute of this name."""
        return name in self._named or (
            name in self._texts and not self._named.isdisjoint(FINDS_BY_TEXT)
        )

    def _member(self, cls: type | types.FunctionType, name: str) -> None:
        """What a class holds under a name: a function, what computes an attribute, or a value; what
        was given to a function under one; what either is called.
        """
        label, held = f"member {cls.__qualname__}.{name}", vars(cls)
        if name not in held:
            self._value(label, getattr(cls, name))
            self._watch(Parts(cls), name, getattr(cls, name))
            return
        member = held[name]
        if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            return  # a slot, whose value the object has
        if (function := _getter(member) or _method(member)) is not None:
            self._function("", function)
        else:
            self._value(label, member)
        self._watch_attribute(cls, name, member)

    def _value(self, label: str, value) -> None:
        try:
            text = self.spell(value)
        except Unstable as e:
            self.unstable = self.unstable or e
            self.mutable.append((value, b""))  # whether it changes cannot be seen
            return
        self.fields.append((label, text))
        if not _lasting(value) and not any(known is value for known, _ in self.mutable):
            self.mutable.append((value, text))

    def changed(self) -> bool:
        """Whether a value has changed in place since."""
        try:
            if any(self.spell(value) != text for value, text in self.mutable):
                return True
        except Unstable:
            return True
        return any(other.changed() for other in self.joined)

    def join(self, other: Fingerprint) -> bool:
        """Watches what another one does, too; whether that is more than this one did. (Values that
        change in place stay with the other one, whose numbers of functions their texts hold.)
        """
        before = len(self.watched)
        for watch in other.watched:
            self._watch(*watch)
        compared = {_identity(value) for one in (self, *self.joined) for value, _ in one.mutable}
        more = any(_identity(value) not in compared for value, _ in other.mutable)
        if more:
            self.joined.append(other)
        return more or len(self.watched) > before

    @property
    def careful(self) -> bool:
        """Whether what was read may change without a name being rebound."""
        return bool(self.mutable or self.joined)

    def _module(self, name: str, module, chains) -> None:
        """Of a module only the attributes that are read count (of tkc none: the whole package is in
        the key).
        """
        if _is_ours(module):
            return
        self.fields.append(
            (f"module {name}", f"{module.__name__} {getattr(module, '__version__', '')}".encode())
        )
        for chain in sorted(c for c in chains if c[0] == name):
            value: Any = module
            read: object = None
            for attribute in chain[1:]:
                owner, value = value, getattr(value, attribute, None)
                read = value
                if isinstance(owner, type):
                    pass  # a class of a library, which stays as it is
                elif vars(owner).get(attribute) is not value:
                    read = _Found(owner, attribute)
                elif not _is_module_of_ours(value):
                    self._watch(vars(owner), attribute, value)
                if not isinstance(value, types.ModuleType) and not _is_class_of_library(value):
                    break
            if not isinstance(value, types.ModuleType):
                self._value(f"value {'.'.join(chain)}", read)

    def spell(self, value: object) -> bytes:
        """A value as bytes that mean the same in every process."""
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            if _reads_outside(value):
                raise Unstable(f"what {value.__name__}() gives")
            self._reaches_paths |= isinstance(value, type) and issubclass(value, Path)
        self._reaches_paths |= isinstance(value, Path)
        for spelled_as in (self._builtin, self._defined, self._function_of_c, self._library_data):
            if (spelled := spelled_as(value, type(value))) is not None:
                return spelled
        return self._object(value)

    def _builtin(self, value: Any, kind: type) -> bytes | None:
        """A number, a text or a collection; None of other values."""
        if kind is _Found:
            return self.spell(getattr(value.owner, value.attribute, None))
        if kind is str and value.isidentifier():
            self._texts.add(value)
        if value is None or kind in (bool, int, str, bytes, type(Ellipsis), range, slice):
            return f"{kind.__name__} {value!r}".encode()
        if kind is float:
            return f"float {text_of(value)}".encode()
        if kind is complex:
            return f"complex {text_of(value.real)} {text_of(value.imag)}".encode()
        if kind is tuple:
            return _join(kind.__name__, map(self.spell, value))
        if kind in (set, frozenset):
            return _join(kind.__name__, sorted(map(self.spell, value)))
        if kind in (list, dict, types.MappingProxyType):
            return self._may_hold_itself(value, kind)
        return None

    def _may_hold_itself(self, value: Any, kind: type) -> bytes:
        """A list or a dictionary."""
        if id(value) in self._within:
            return f"cycle of collections {self._within.index(id(value))}".encode()
        if (behind := _behind(value)) is not None:
            self._watch_entries(behind)
        self._within.append(id(value))
        try:
            if kind is list:
                return _join("list", map(self.spell, value))
            items = ((self.spell(k), self.spell(v)) for k, v in [*value.items()])
            return _join("dict", (_join("item", item) for item in items))
        finally:
            self._within.pop()

    def _defined(self, value: Any, kind: type) -> bytes | None:
        """A function, a module, a class or what is made of one of these; None of other values."""
        if isinstance(value, types.FunctionType) or _is_kernel(value):
            if _is_ours(value):
                return f"{value.__module__}.{value.__qualname__}".encode()
            number = self._function("", value)
            return f"function {getattr(value, 'fn', value).__qualname__} {number}".encode()
        if isinstance(value, types.ModuleType):
            if not _is_ours(value) and not _of_library(value.__name__):
                raise Unstable(f"the module {value.__name__}, read other than by its attributes")
            return f"module {value.__name__} {getattr(value, '__version__', '')}".encode()
        if kind is functools.partial:
            self._watch_entries(value.keywords)
            self._watch_dict(value)
            self._watch_entries(vars(value))
            parts = value.func, value.args, value.keywords, vars(value)
            return _join("partial", map(self.spell, parts))
        if isinstance(value, types.MethodType):
            return _join("method", map(self.spell, (value.__func__, value.__self__)))
        if isinstance(value, enum.Enum):
            return self._member_of_enumeration(value, kind)
        if (read := _read_of(value, kind)) is not None:
            return _join(kind.__name__, map(self.spell, read))
        if isinstance(value, type):
            self._register(type(value))
            self._named |= CALLED  # by who calls the class
            return _join("class of", map(self._class, (type(value), value)))
        return None

    def _member_of_enumeration(self, value: enum.Enum, kind: type) -> bytes:
        name = f"enum {kind.__qualname__}.{value.name}".encode()
        if id(value) in self._inside:
            return name
        self._register(kind)
        self._watch_dict(value)
        self._watch_entries(own_dict(value))
        self._inside.append(id(value))
        try:
            return name + _join("", map(self.spell, [value.value, _beside_value(value)]))
        finally:
            self._inside.pop()

    def _function_of_c(self, value: Any, kind: type) -> bytes | None:
        """A function that is not Python's, or a method of C; None of other values."""
        if isinstance(value, types.BuiltinFunctionType) and _is_bound(value):
            return _join("method", (value.__name__.encode(), self.spell(value.__self__)))
        if isinstance(value, types.BuiltinFunctionType) and value.__name__ in self._asked:
            raise Unstable(f"what {value.__name__}() gives")  # is not always the same
        if _is_function_of_library(value):
            return f"function {value.__module__}.{value.__name__}".encode()
        if isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
            module = getattr(value, "__module__", None)  # methods have none
            return f"builtin {module}.{value.__qualname__}".encode()
        return None

    def _library_data(self, value: Any, kind: type) -> bytes | None:
        """A record, a value of tkc, or a number, an array, a tensor or an element type of NumPy,
        ml_dtypes or torch; None of other values.
        """
        if dataclasses.is_dataclass(value):
            return self._object(value)
        if _is_ours(value):
            return f"{kind.__qualname__} {value!r}".encode()
        if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            if value.dtype.hasobject:
                return _join(f"numpy objects {value.shape}", map(self.spell, value.ravel()))
            return f"numpy {value.dtype} {value.shape} ".encode() + value.tobytes()
        if (torch := sys.modules.get("torch")) and isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return f"torch {value.dtype} {value.shape} ".encode() + flat.numpy().tobytes()
        if _is_constant_of_library(value):
            return f"{kind.__qualname__} {value!r}".encode()
        return None

    def _object(self, value: object) -> bytes:
        """An object: its class, what its attributes hold, and what a copy would be made of where it
        holds more (elements, the state of an iterator).
        """
        kind = type(value)
        held, reduces = own_attributes(value), _holds_more(kind)
        known = _is_users_object(value) or dataclasses.is_dataclass(value)
        if not held and not reduces and not known:
            raise Unstable(f"a value of type {kind.__qualname__}")
        if id(value) in self._inside:
            return f"cycle {self._inside.index(id(value))}".encode()
        if kind in (operator.attrgetter, operator.methodcaller):
            self._named.add("getattr")
        if len(self._inside) >= DEEPEST_OBJECT:
            raise Unstable(f"a value of type {kind.__qualname__}, whose attributes nest deeply")
        self._inside.append(id(value))
        try:
            parts = [self.spell((name, held[name])) for name in sorted(held)]
            if reduces:
                parts.append(self.spell(_reduced(value)))
            return _join(f"object {kind.__qualname__}", [self._class(kind), *parts])
        finally:
            self._inside.pop()

    def _class(self, cls: type) -> bytes:
        name = f"class {self._name_among_alike(cls)}"
        if isinstance(cls, abc.ABCMeta):
            name += f" or {sorted(map(self._name_among_alike, _registered(cls)))}"
        if cls.__module__ == "builtins" or _is_ours(cls):
            return name.encode()
        if _of_library(cls.__module__):
            return name.encode()
        self._register(cls)
        if id(cls) not in _texts:
            try:
                tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
            except (OSError, TypeError, SyntaxError):
                raise Unstable(f"the class {cls.__qualname__}, which has no source") from None
            _texts[id(cls)] = cls, ast.dump(tree).encode()
        data = {
            n: v
            for n, v in vars(cls).items()
            if not n.startswith("__") and isinstance(v, (int, float, str, tuple, list, dict))
        }
        codes, bases = self._methods(cls), [self._class(base) for base in cls.__bases__]
        return _join("class", [name.encode(), _texts[id(cls)][1], self.spell(data), *codes, *bases])

    def _methods(self, cls: type) -> list[bytes]:
        """Methods may be bound anew: their code, not all they read, which counts where a function
        names them; those of operators Python calls, and no name says where.
        """
        methods = [(name, f) for name, member in vars(cls).items() if (f := _method(member))]
        for name, f in methods:
            if _is_of_operator(name):
                self._function("", f)
                self._watch(own_dict(cls), name, vars(cls)[name])
        return [reading_of(f.__code__).text + self.spell(_numbers_of(f)) for _, f in methods]

    def _name_among_alike(self, cls: type) -> str:
        """A class's name, and how many other classes of this name were read before: a class that is
        made again is not the one whose objects are still there.
        """
        alike = self._alike.setdefault((cls.__module__, cls.__qualname__), [])
        if not any(known is cls for known in alike):
            alike.append(cls)
        number = next(i for i, known in enumerate(alike) if known is cls)
        return f"{cls.__module__}.{cls.__qualname__} {number or ''}"

    def _register(self, cls: type) -> None:
        """Has the members of a class of users, and of its bases, followed."""
        for base in _of_users(cls):
            if id(base) not in self._classes:
                self._classes[id(base)] = base
                self._watch_shape(base)

    def _watch_shape(self, cls: type) -> None:
        """What a class derives from, and that it gets no member under another name, which would
        hide what is found otherwise.
        """
        self._watch(Parts(cls), "__bases__", cls.__bases__)
        size = Parts(own_dict(cls))
        self._watch(size, SIZE, size.get(SIZE))


@dataclasses.dataclass(frozen=True)
class _Found:
    """An attribute that a module does not hold, but finds or computes whenever it is read."""

    owner: types.ModuleType
    attribute: str


def _of_users(cls: type) -> list[type]:
    """A class and those behind it that are neither tkc's nor a library's."""
    return [base for base in cls.__mro__ if not (_is_ours(base) or _of_library(base.__module__))]


def _names_of(holder: type | types.FunctionType) -> tuple[str, ...]:
    """Under which names a class or a function says what it is called."""
    return NAMES_OF_CLASSES if isinstance(holder, type) else NAMES_OF_FUNCTIONS


def _registered(cls: abc.ABCMeta) -> set[type]:
    """The classes that were registered as derived from an abstract one, or from one that derives
    from it: what is an instance of these is one of it.
    """
    classes: list[Any] = [cls]
    for known in classes:
        classes += (found for found in type.__subclasses__(known) if found not in classes)
    held = [abc._get_dump(c)[0] for c in classes if isinstance(c, abc.ABCMeta)]  # type: ignore[attr-defined]
    return {found for references in held for r in references if (found := r()) is not None}


def _identity(held: object) -> Any:
    """Equal of namespaces, and of values that change in place, that are the same."""
    if isinstance(held, _Found):
        return id(held.owner), held.attribute
    return id(held.owner if isinstance(held, Parts) else held)


def _getter(member: object) -> types.FunctionType | None:
    """The function that computes what a property gives, None of what is none."""
    function = getattr(member, "fget", None) or (
        member.func if isinstance(member, functools.cached_property) else None
    )
    return function if isinstance(function, types.FunctionType) else None


def _is_of_operator(name: str) -> bool:
    """Whether Python calls a method for an operator, a call, an element, a missing attribute."""
    return name.startswith("__") and name.endswith("__") and name not in NOT_OF_OPERATORS


def _method(member: object) -> types.FunctionType | None:
    """The function of a method, of whichever kind, None of what is none."""
    function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
    return function if isinstance(function, types.FunctionType) else None


def _numbers_of(fn: types.FunctionType) -> list[int | float | str]:
    """Numbers and texts that a closure holds."""
    cells = [cell for cell in fn.__closure__ or () if cell != types.CellType()]
    return [
        cell.cell_contents for cell in cells if type(cell.cell_contents) in (bool, int, float, str)
    ]


def _lasting(value: Any, inside: tuple[int, ...] = ()) -> bool:
    """Whether a value cannot change in place but for what is watched: of functions the parts, of
    mapping proxies, partials and members of enumerations what they hold. Of what is not known, no;
    of a class, the source counts. inside: the ids of values that hold it.
    """
    kind = type(value)
    if kind is _Found:
        return False
    if isinstance(value, types.BuiltinFunctionType):
        return not _is_bound(value)
    if isinstance(value, types.ModuleType):
        return _is_ours(value) or _of_library(value.__name__)
    if isinstance(value, type):  # of those of libraries only the name counts, and who registered
        named = value.__module__ == "builtins" or _is_ours(value) or _of_library(value.__module__)
        return named and not isinstance(value, abc.ABCMeta)
    if (held := _held_for_good(value, kind)) is None:
        return not dataclasses.is_dataclass(value) and _is_constant(value)
    within = (*inside, id(value))
    return id(value) in inside or all(_lasting(v, within) for v in held)


def _held_for_good(value: Any, kind: Any) -> Iterable[object] | None:
    """What a value holds from its beginning to its end, as far as is watched; None of others."""
    if kind is types.MappingProxyType:
        return None if _behind(value) is None else value.values()
    if kind in (tuple, frozenset):
        return value
    if (parts := _read_of(value, kind)) is not None:
        return parts
    if isinstance(value, enum.Enum):
        return [value.value, *_beside_value(value).values()]
    if dataclasses.is_dataclass(value):
        return own_attributes(value).values() if kind.__dataclass_params__.frozen else None
    if kind is functools.partial:
        return [value.func, *value.args, *value.keywords.values(), *vars(value).values()]
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    return None


def _read_of(value: Any, kind: type) -> tuple | None:
    """What kernels read of a value of tkc that holds what is its users' (a lifted function); None
    of others.
    """
    ours = is_ours_by_name(kind.__module__) and hasattr(kind, "read_by_kernels")
    return value.read_by_kernels if ours else None


def _behind(value: object) -> dict | None:
    """The dictionary that a mapping proxy shows; None of other values, and of other mappings."""
    if not isinstance(value, types.MappingProxyType):
        return None
    return next((d for d in gc.get_referents(value) if type(d) is dict), None)


def _beside_value(member: enum.Enum) -> dict[str, object]:
    """The attributes that a member of an enumeration has of its own."""
    held = own_attributes(member)
    return {n: held[n] for n in sorted(held) if not n.startswith("_")}


def _is_constant(value: object) -> bool:
    """Whether a value that holds no others is of a kind that never changes in place."""
    return (
        type(value) in CONSTANTS
        or isinstance(value, (types.FunctionType, types.MethodDescriptorType))
        or _is_ours(value)
        or _is_kernel(value)
        or _is_constant_of_library(value)
        or _is_function_of_library(value)
    )


def _is_constant_of_library(value: object) -> bool:
    """A number or an element type of NumPy (ml_dtypes) or torch."""
    import numpy as np

    kind = type(value)
    if isinstance(value, np.void):  # a record of an array, which may be written to
        return False
    return isinstance(value, (np.generic, np.dtype, np.ufunc)) or (
        kind.__module__ == "torch" and kind.__name__ in TORCH_CONSTANTS
    )


def _is_bound(function: types.BuiltinFunctionType) -> bool:
    """Whether a function of C is the method of an object."""
    return not isinstance(function.__self__, (types.ModuleType, type, type(None)))


def _of_library(module: str) -> bool:
    """Whether a module of this name is of Python's library or was installed."""
    return module.split(".")[0] in sys.stdlib_module_names or is_installed(
        getattr(sys.modules.get(module), "__file__", None)
    )


def _reads_outside(value: Any) -> bool:
    """Whether a function, or a class, gives what lies outside of the process: of clocks, files,
    other processes.
    """
    if value is open or value is os.popen:
        return True
    module: object = value.__module__
    if not isinstance(module, str):  # a class may say anything
        return False
    return module in SYSTEM or module.partition(".")[0] == "numpy" and value.__name__ in READERS


def _is_class_of_library(value: object) -> bool:
    return isinstance(value, type) and not _is_ours(value) and _of_library(value.__module__)


def _is_function_of_library(value: object) -> bool:
    """Whether a value stands in a module of a library under its own name, and can be called."""
    if not (callable(value) and _of_library(type(value).__module__)):
        return False
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    return (
        isinstance(module, str)
        and isinstance(name, str)
        and _of_library(module)
        and getattr(sys.modules.get(module), name, None) is value
    )


def contents(value: object) -> list[tuple[str, object]]:
    """What an object holds: its attributes with their names, and what a copy would be made of where
    it holds more (elements, a number, the state of an iterator). Raises Unstable where that cannot
    be found.
    """
    found: list[tuple[str, object]] = sorted(own_attributes(value).items())
    return [*found, ("", _reduced(value))] if _holds_more(type(value)) else found


HEAP_TYPE = 1 << 9  # of the flags of a class: it was made while the process ran


def _holds_more(kind: type) -> bool:
    """Whether values of a class hold more than attributes: what it copies itself, elements, a
    number, or whatever else a class of C holds that it derives from.
    """
    if kind is types.SimpleNamespace:
        return False
    own = kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__
    return own or next(c for c in kind.__mro__ if not c.__flags__ & HEAP_TYPE) is not object


def _reduced(value: object) -> object:
    """What a copy of a value is made of (the protocol of copy and pickle)."""
    try:
        found = value.__reduce_ex__(4)
    except Exception:
        raise Unstable(f"a value of type {type(value).__qualname__}") from None
    if isinstance(found, str):
        return found
    _, arguments, state, items, pairs, *_ = *found, None, None, None
    return [arguments, state, list(items or ()), list(pairs or ())]


_EMPTY = object()


def _is_users_object(value: object) -> bool:
    """Whether attributes of a value may be bound anew, as far as `spell` looks at them."""
    kind = type(value)
    return kind is types.SimpleNamespace or (
        kind.__module__ not in sys.builtin_module_names
        and kind.__module__.split(".")[0] not in ("numpy", "torch", "ml_dtypes", "tkc")
        and not isinstance(value, (types.FunctionType, types.ModuleType, enum.Enum))
        and not _is_kernel(value)
        and (kind.__dictoffset__ != 0 or any(map(slots_of, kind.__mro__)))
    )


def _has_attributes(value: object) -> bool:
    """Whether reads through attributes of a value are looked at one by one."""
    return not _is_ours(value) and (isinstance(value, type) or _is_users_object(value))


def _join(kind: str, parts: Iterable[bytes]) -> bytes:
    return kind.encode() + b"".join(len(p).to_bytes(8, "little") + p for p in parts)


def _is_ours(value) -> bool:
    module = (
        value.__name__
        if isinstance(value, types.ModuleType)
        else getattr(value, "__module__", None) or type(value).__module__
    )
    if module == "tkc" or not isinstance(module, str):
        return module == "tkc"
    return is_ours_by_name(module) and not _is_kernel(value)


def _is_kernel(value: object) -> bool:
    """Whether a value is an object of tkc that wraps a function of users (tkc.jit)."""
    return is_ours_by_name(type(value).__module__) and isinstance(
        own_dict(value).get("fn"), types.FunctionType
    )


def _is_module_of_ours(value: object) -> bool:
    return isinstance(value, types.ModuleType) and _is_ours(value)


def is_ours_by_name(module: str) -> bool:
    """Whether a module is tkc itself, whose kernels are written like users' own."""
    return f"{module}.".startswith("tkc.") and not module.startswith("tkc.kernels")
