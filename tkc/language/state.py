"""What Python state a region (a loop body, a branch) changes, and how the changes become values of
the IR.

Tracing runs a region's body once, though it will run many times or not at all. So everything the
body can rebind is recorded before and compared after: the function's local names, and every
*slot* of every container reachable from the frames of the kernel (list elements, dict values,
attributes, closure cells, globals that the code names). A changed slot is

    carried    when old and new are numbers, values or equal structures of them: it becomes an
               iter_arg or a result;
    unbound    when they are not: the name is deleted (a slot gets a `Lost`), so that reading it is
               an error that says why;
    an error   when a container itself changes its structure (append, a new key), or a generator
               advances.

Nothing that the body rebinds is ever silently taken at its old value.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import Attribute, SSAValue

from tkc.ir.types import ArrayType, PointerType, is_float, is_integer
from tkc.ir.values import array_type
from tkc.language.arrays import Array
from tkc.language.dtypes import DType
from tkc.language.tracer import fail, frames, is_library, tracer
from tkc.language.values import (
    BINARY,
    COMPARISONS,
    Number,
    Plain,
    Pointer,
    Value,
    cast,
    describe,
    dtype_of,
    of_number,
    unpack,
    wrap,
)

MAX_OBJECTS = 200_000  # that a kernel may reach
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


# --------------------------------------------------------------------------------------------------
_PLAIN = (
    *Number,
    str,
    bytes,
    complex,
    type(None),
    DType,
    Pointer,
    Value,
    np.generic,
    CodeType,
    FrameType,
    Lost,
)


_METHODS = (MethodType, BuiltinFunctionType, MethodWrapperType)
# of Python, whose subclasses may have attributes, too
_HOLDERS = (list, dict, deque, set, tuple, frozenset, np.ndarray)


def is_users(f: FunctionType) -> bool:
    """A function that may take part in a kernel (not of a library); tkc's kernels count as the
    user's.
    """
    return not is_library(f.__module__)


def _global_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for c in code.co_consts:
        if isinstance(c, CodeType):
            names |= _global_names(c)
    return names


class Globals:
    """The names of a module that traced code mentions, as a container."""

    def __init__(self, table: dict):
        self.table = table
        self.names: set[str] = set()


class Frozen:
    """A content that can be compared but not put back."""

    def __init__(self, mark):
        self.mark = mark

    def __eq__(self, other):
        return isinstance(other, Frozen) and self.mark == other.mark


# modules of Python whose objects hold what a user puts into them
_OPEN = ("types", "collections", "queue")


def contents(obj: Any) -> dict | None:
    """The slots of a mutable container, or None for what is not one."""
    for kinds, slots in _CONTENTS:
        if isinstance(obj, kinds):
            return slots(obj)
    if hasattr(type(obj), "__next__"):
        return _iterator(obj)
    if (held := _bytes(obj)) is not None:
        return held
    module = type(obj).__module__
    if is_library(module) and module not in _OPEN:
        return None
    try:
        found = dict(object.__getattribute__(obj, "__dict__"))
    except AttributeError:
        found = {}
    for cls in type(obj).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for n in (slots,) if isinstance(slots, str) else slots:
            if n not in ("__dict__", "__weakref__") and hasattr(obj, n):
                found[n] = getattr(obj, n)
    return found


def _mark(mark: object) -> dict:
    """The one slot of a container whose content is only compared."""
    return {"contents": Frozen(mark)}


def _of_array(array: np.ndarray) -> dict:
    if array.dtype == object:
        return _mark(tuple(map(id, array.flat)))
    return _mark((array.shape, crc32(np.ascontiguousarray(array).tobytes())))


def _of_cell(cell: CellType) -> dict:
    try:
        return {"contents": cell.cell_contents}
    except ValueError:
        return {"contents": UNBOUND}


def _of_generator(generator: GeneratorType) -> dict:
    frame = generator.gi_frame
    return {"position": Frozen(frame.f_lasti if frame else None)}


def _of_class(cls: type) -> dict | None:
    if is_library(cls.__module__):
        return None
    descriptors = GetSetDescriptorType, MemberDescriptorType
    return {
        n: v
        for n, v in vars(cls).items()
        if not n.startswith("__") and not isinstance(v, descriptors)
    }


def _of_globals(found: Globals) -> dict:
    return {n: found.table[n] for n in sorted(found.names) if n in found.table}


# The first row that fits; what fits none is an object with attributes, or a library's.
_CONTENTS: tuple[tuple[Any, Callable[[Any], dict | None]], ...] = (
    ((list, deque), lambda obj: dict(enumerate(obj))),
    (dict, dict),
    (set, lambda obj: _mark(frozenset(map(id, obj)))),
    (np.ndarray, _of_array),
    (CellType, _of_cell),
    (Globals, _of_globals),
    (GeneratorType, _of_generator),
    (FunctionType, lambda obj: dict(vars(obj)) if is_users(obj) else None),
    (type, _of_class),
    ((*_METHODS, tuple, frozenset, Array, ModuleType, *_PLAIN), lambda obj: None),
)


def _bytes(obj: Any) -> dict | None:
    """The bytes of an object that lends its memory to be written; None of others."""
    try:
        with memoryview(obj) as view:
            return None if view.readonly else _mark((view.nbytes, crc32(view.tobytes())))
    except (TypeError, ValueError, BufferError):
        return None


def _iterator(obj) -> dict | None:
    """The position of an iterator that can be copied; None of others."""
    try:
        return {"position": Frozen(repr(obj.__reduce__()[1:]))}
    except Exception:
        return None


def parts(obj: Any) -> dict:
    """What an object leads to beside its slots."""
    found = _parts(obj)
    if isinstance(obj, _HOLDERS) and not is_library(type(obj).__module__):
        found |= {"attributes": getattr(obj, "__dict__", None)}
    return found


def _parts(obj: Any) -> dict:
    match obj:
        case tuple():
            return dict(enumerate(obj))
        case FunctionType() if is_users(obj):
            return {
                f"closure {n}": c
                for n, c in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=False)
            } | {"defaults": obj.__defaults__, "defaults of keywords": obj.__kwdefaults__}
        case MethodType():
            return {"self": obj.__self__, "function": obj.__func__}
        case BuiltinFunctionType() | MethodWrapperType():
            return {"self": obj.__self__}
    if hasattr(type(obj), "__next__"):
        return _iterated(obj)
    if isinstance(obj, functools.partial | functools.partialmethod):
        return {"function": obj.func, "arguments": obj.args, "keywords": obj.keywords}
    if isinstance(obj, functools.cached_property):
        return {"function": obj.func}
    if (inner := traced_function(obj)) is not None:
        return {"function": inner}
    return {}


def _iterated(obj: Any) -> dict:
    """What an iterator that can be copied goes over: containers, other iterators."""
    try:
        _, *held = obj.__reduce__()
    except Exception:
        return {}
    return dict(enumerate(x for part in held for x in (part if type(part) is tuple else (part,))))


def traced_function(obj: object) -> FunctionType | None:
    """The function under an object of ours that wraps one (tkc.jit)."""
    if isinstance(obj, FunctionType) or not type(obj).__module__.startswith("tkc."):
        return None
    try:
        found = vars(obj).get("__wrapped__", vars(obj).get("fn"))
    except TypeError:
        return None
    return found if isinstance(found, FunctionType) else None


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
        case Globals():
            obj.table[key] = value
        case type():
            setattr(obj, key, value)
        case _:
            object.__setattr__(obj, key, value)


def is_immutable_record(obj: object) -> bool:
    return (
        is_dataclass(obj)
        and not isinstance(obj, type)
        and type(obj).__dataclass_params__.frozen  # type: ignore[attr-defined]  # not in typeshed
        and not isinstance(obj, (DType, Pointer, Array))
    )


@dataclass
class Snapshot:
    """The state at one moment: local names, containers by identity with their slots, and how each
    is reached.
    """

    names: dict[str, Any]
    containers: dict[int, tuple[Any, dict]] = field(default_factory=dict)
    paths: dict[int, str] = field(default_factory=dict)
    edges: Counter = field(default_factory=Counter)
    mentioned: set[str] = field(default_factory=set)

    @staticmethod
    def take(names: dict[str, Any], within: list[FrameType] | None = None) -> Snapshot:
        """The state reachable from `names` (the locals of the innermost frame) and from the
        kernel's frames.
        """
        snapshot = Snapshot(names)
        tables: dict[int, Any] = {}
        modules: list[Any] = []
        stack: list[tuple[Any, str]] = [(v, n) for n, v in names.items()]
        for depth, frame in enumerate(frames(sys._getframe(1)) if within is None else within):
            snapshot._globals(tables, frame.f_globals, frame.f_code, stack)
            if depth:
                stack += [(v, n) for n, v in frame.f_locals.items() if not n.startswith("__tkc")]
        while stack or snapshot._modules(tables, modules, stack):
            obj, path = stack.pop()
            if not snapshot._is_new(obj, path):
                continue
            if isinstance(obj, FunctionType) and is_users(obj):
                snapshot._globals(tables, obj.__globals__, obj.__code__, stack)
            if isinstance(obj, ModuleType) and not is_library(obj.__name__):
                modules.append(obj)
            stack += [(v, _path(obj, path, k)) for k, v in snapshot._take(obj).items()]
        return snapshot

    def _is_new(self, obj: Any, path: str) -> bool:
        """Counts one more way to an object; whether it is the first way to one with slots."""
        if type(obj) is Lost or isinstance(obj, _PLAIN):
            return False
        self.edges[id(obj)] += 1
        if id(obj) in self.paths:
            return False
        self.paths[id(obj)] = path
        if len(self.paths) > MAX_OBJECTS:
            fail(
                f"more than {MAX_OBJECTS} objects are reachable from the kernel (through"
                f" {path}); pass what the kernel needs as arguments"
            )
        return True

    def _take(self, obj: Any) -> dict:
        """Adds the slots of an object, and gives all that it leads to."""
        slots = contents(obj)
        if slots is not None:
            self.containers[id(obj)] = (obj, slots)
        inner = parts(obj) | (slots or {})
        if isinstance(obj, GeneratorType) and obj.gi_frame:
            inner |= obj.gi_frame.f_locals
        return inner

    def _globals(self, tables: dict, table: dict, code: CodeType, stack: list) -> None:
        """Adds the globals that a code object names to the state."""
        self.mentioned |= (names := _global_names(code))
        self._mention(tables, table, names, stack)

    def _mention(self, tables: dict, table: dict, names: set[str], stack: list) -> None:
        holder = tables.setdefault(id(table), Globals(table))
        # in one order, whatever the seed of hashes: loops carry what changes in this order
        new = sorted({n for n in names if n in table} - holder.names)
        holder.names.update(new)
        self.containers[-id(table)] = (holder, contents(holder) or {})
        self.paths[-id(table)] = "global"
        stack += [(table[n], n) for n in new]

    def _modules(self, tables: dict, modules: list, stack: list) -> bool:
        """Adds attributes of modules of the user that the code mentions; whether any is new."""
        for m in modules:
            self._mention(tables, vars(m), self.mentioned, stack)
        return bool(stack)

    def restore(self) -> None:
        """Puts every container back as it was."""
        for obj, slots in self.containers.values():
            now = contents(obj) or {}
            for k, v in slots.items():
                if k not in now or not same(v, now[k]):
                    write(obj, k, v)

    def forget(self) -> None:
        """Takes traced values out of the user's containers again: a trace leaves none behind."""
        for obj, slots in self.containers.values():
            now = contents(obj) or {}
            for k, v in slots.items():
                if k in now and (type(now[k]) is Lost or isinstance(now[k], (Value, Array))):
                    write(obj, k, v)

    def changes(self, names: dict[str, Any], where: str) -> dict[tuple, tuple[Any, Any]]:
        """Slots whose content differs now, (0, name) or (id of the container, key): (old, new)."""
        found = {}
        for n in {**self.names, **names}:
            old, new = self.names.get(n, UNBOUND), names.get(n, UNBOUND)
            if not same(old, new):
                found[0, n] = old, new
        for key, (obj, slots) in self.containers.items():
            now, path = contents(obj) or {}, self.paths[key]
            if isinstance(obj, Globals):
                now = {n: obj.table[n] for n in slots if n in obj.table}
            if not _same_keys(obj, slots, now):
                fail(
                    f"`{path}` changes its {'length' if isinstance(obj, (list, deque)) else 'keys'}"
                    f" inside {where}; give it all its elements before, and assign to them inside"
                )
            for k in slots:
                if same(slots[k], now[k]):
                    continue
                if isinstance(slots[k], Frozen):
                    fail(
                        f"`{path}` ({type(obj).__name__}) changes inside {where}, where tracing"
                        " cannot carry it; use a list of fixed length"
                    )
                found[key, k] = tuple(UNBOUND if type(x) is Lost else x for x in (slots[k], now[k]))
        return found

    def label(self, slot: tuple) -> str:
        owner, key = slot
        if owner == 0:
            return "return" if key == "__returned__" else str(key)
        obj, path = self.containers[owner][0], self.paths[owner]
        return str(key) if isinstance(obj, Globals) else _path(obj, path, key)

    def rebind(self, slot: tuple, value: Any, names: dict[str, Any], reason: str) -> None:
        """Binds a slot, in `names` or in its container; UNBOUND with the reason."""
        owner, key = slot
        if owner == 0:
            names[key] = value
            if value is UNBOUND:
                tracer().reasons[key] = reason
        else:
            write(self.containers[owner][0], key, Lost(reason) if value is UNBOUND else value)


def _same_keys(obj: Any, old: dict, new: dict) -> bool:
    """Whether an object has the slots that it had: of a dict, in the same order."""
    return list(old) == list(new) if isinstance(obj, dict) else old.keys() == new.keys()


def _path(obj, path: str, key) -> str:
    if isinstance(obj, (list, tuple, dict, deque)):
        return f"{path}[{key!r}]"
    if isinstance(obj, CellType):
        return path.removeprefix("closure ")
    return key if isinstance(key, str) and key.startswith("closure ") else f"{path}.{key}"


def same(old: Any, new: Any) -> bool:
    """Nothing to carry: the same object, or equal plain constants."""
    if old is new or type(old) is type(new) is Lost:
        return True
    if type(old) is not type(new):
        return False
    match old:
        case float():
            return old.hex() == new.hex()
        case bool() | int() | str() | bytes() | frozenset():
            return old == new
        case tuple():
            return len(old) == len(new) and all(map(same, old, new))
        case Frozen():
            return old == new
    if is_immutable_record(old):
        return all(same(a, b) for a, b in zip(vars(old).values(), vars(new).values(), strict=False))
    return False


# --------------------------------------------------------------------------------------------------
class Mismatch(Exception):
    """Two contents of a slot that cannot be one value of the IR, and how they differ."""


@dataclass(frozen=True)
class Leaf:
    """A number or value: its IR type."""

    type: Attribute


@dataclass(frozen=True)
class Keep:
    """The same constant on both sides."""

    value: Any

    def __eq__(self, other):
        return isinstance(other, Keep) and same(self.value, other.value)


@dataclass(frozen=True)
class Tree:
    """A structure: rebuilt by `like` from parts."""

    like: Any
    parts: tuple

    def __eq__(self, other):
        return (
            isinstance(other, Tree)
            and type(self.like) is type(other.like)
            and self.parts == other.parts
        )


@dataclass(frozen=True)
class Parts:
    """An array, carried as what it is made of: its address, and the extents and strides that its
    type does not say.
    """

    type: ArrayType
    wide: bool = False


Spec: TypeAlias = Keep | Leaf | Parts | Tree


def _number_type(x) -> Attribute:
    return of_number(x).ir


def leaf(x: object) -> Leaf | Parts | None:
    """The leaf a number, value or array makes."""
    x = unpack(x)
    if isinstance(x, Array):
        return Parts(array_type(x.ssa), x.wide)
    if isinstance(x, Value):
        return Leaf(x.ssa.type)
    return Leaf(_number_type(x)) if isinstance(x, Number) else None


def merge(old: Any, new: Any, counts: Counter | None = None) -> Spec:
    """What carries `old` in one way into the region and `new` out of it. Raises Mismatch."""
    old, new = unpack(old), unpack(new)
    if same(old, new) and leaf(old) is None:
        return Keep(old)
    a, b = leaf(old), leaf(new)
    if a and b:
        return _merge_leaves(old, new, a, b)
    keys = _common_keys(old, new)
    if keys is None:
        raise Mismatch(f"{_words(old)} against {_words(new)}")
    mutable = not isinstance(old, tuple) and not is_immutable_record(old)
    if mutable and counts is not None and max(counts[id(old)], counts[id(new)]) > 1:
        raise Mismatch(
            f"a {type(old).__name__} that something else also refers to, or that is also"
            " changed in place, is replaced by another; assign to its elements"
        )
    return Tree(new, tuple(merge(_get(old, k), _get(new, k), counts) for k in keys))


def _common_keys(old: Any, new: Any) -> Sequence[Any] | None:
    """The keys of two structures of one kind; None where they are not such."""
    if type(old) is not type(new):
        return None
    if isinstance(old, (tuple, list)):
        return range(len(old)) if len(old) == len(new) else None
    if isinstance(old, dict):
        return list(old) if list(old) == list(new) else None
    is_record = is_dataclass(old) and not isinstance(old, type)
    return list(vars(old)) if is_record and vars(old).keys() == vars(new).keys() else None


def _words(x) -> str:
    return (
        "no value"
        if x is UNBOUND
        else (
            describe(x)
            if leaf(x) or isinstance(x, (str, type(None)))
            else f"a {type(x).__name__} {_structure(x)}".rstrip()
        )
    )


def _structure(x) -> str:
    return f"of {len(x)}" if isinstance(x, (list, tuple, dict)) else ""


def _get(obj, key):
    return obj[key] if isinstance(obj, (tuple, list, dict)) else getattr(obj, key)


def _merge_leaves(old: Any, new: Any, a: Leaf | Parts, b: Leaf | Parts) -> Leaf | Parts:
    if a == b:
        return a
    found: Leaf | Parts | None = None
    if isinstance(a, Parts) or isinstance(b, Parts):
        found = _either_array(a, b)
    elif isinstance(old, Number) and isinstance(new, Number):
        if isinstance(old, bool) == isinstance(new, bool):
            found = max(a, b, key=lambda leaf: (is_float(leaf.type), leaf.type == i64))
    elif isinstance(old, Number):
        found = _beside(old, b)
    elif isinstance(new, Number):
        found = _beside(new, a)
    if found is None:
        raise Mismatch(f"{describe(old)} against {describe(new)}")
    return found


def _either_array(a: Leaf | Parts, b: Leaf | Parts) -> Parts | None:
    """What carries one array or the other; None where nothing does."""
    if not isinstance(a, Parts) or not isinstance(b, Parts):
        return None
    if (a.type.rank, a.type.element) != (b.type.rank, b.type.element):
        return None
    facts = a.type.facts.either(b.type.facts)
    return Parts(ArrayType(a.type.rank, a.type.element, facts), a.wide or b.wide)


def _beside(number: Plain, typed: Leaf) -> Leaf | None:
    """What carries a Python number and a value; None where nothing does."""
    t = typed.type
    if isinstance(number, bool):
        return typed if t == i1 else None
    if is_float(t):
        return typed
    if not is_integer(t):
        return None
    if isinstance(number, float):
        return Leaf(_number_type(number))
    held = np.iinfo(dtype_of(t).numpy)
    return typed if held.min <= number <= held.max else None


def flatten(x: Any, spec: Spec) -> list[SSAValue]:
    """The IR values of a content, as its spec says."""
    match spec:
        case Keep():
            return []
        case Leaf(t):
            x = unpack(x)
            return [_as(x, t) if isinstance(x, Value) else tracer().constant(x, t)]
        case Parts(t, wide):
            return unpack(x).parts(t.facts, wide)
        case Tree(like):
            return [
                v
                for k, part in zip(_keys(like), spec.parts, strict=False)
                for v in flatten(_get(x, k), part)
            ]
    raise TypeError(f"unknown spec {spec!r}")


def _as(x, t: Attribute) -> SSAValue:
    """An integer that meets a float becomes one; otherwise the type is the spec's."""
    return x.use() if x.ssa.type == t else cast(x, dtype_of(t)).use()


def _keys(obj):
    return (
        range(len(obj))
        if isinstance(obj, (tuple, list))
        else list(obj)
        if isinstance(obj, dict)
        else list(vars(obj))
    )


def types(spec: Spec) -> list[Attribute]:
    match spec:
        case Keep():
            return []
        case Leaf(t):
            return [t]
        case Parts(t, wide):
            unknown = sum(f.exact is None for f in (*t.facts.shape, *t.facts.strides))
            return [PointerType(t.element), *[i64 if wide else i32] * unknown]
        case Tree():
            return [t for p in spec.parts for t in types(p)]
    raise TypeError(f"unknown spec {spec!r}")


def build(spec: Spec, ssa: Iterator[SSAValue]) -> Any:
    """A content from an iterator of IR values."""
    match spec:
        case Keep(value):
            return value
        case Leaf():
            return wrap(next(ssa))
        case Parts(t, wide):
            return Array.of_parts(t, wide, ssa)
        case Tree(like):
            made = [build(p, ssa) for p in spec.parts]
            if isinstance(like, tuple):
                return type(like)(*made) if hasattr(like, "_fields") else type(like)(made)
            if isinstance(like, list):
                return type(like)(made)
            if isinstance(like, dict):
                return type(like)(zip(like, made, strict=False))
            copy = object.__new__(type(like))
            for k, v in zip(_keys(like), made, strict=False):
                object.__setattr__(copy, k, v)
            return copy


def shared(changed: Iterable[tuple], *snapshots: Snapshot) -> Counter:
    """How often an object is referred to, at most, in these snapshots; one changed in place counts
    as shared.
    """
    counts: Counter[Any] = Counter()
    for p in snapshots:
        counts |= p.edges
    return counts | Counter({owner: 2 for owner, _ in changed if owner != 0})


def mutable_parts(x: Any) -> Iterator[Any]:
    """The mutable structures in a content."""
    if isinstance(x, (Value, Array)):
        return
    if (
        isinstance(x, (list, dict))
        or is_dataclass(x)
        and not isinstance(x, type)
        and not is_immutable_record(x)
    ):
        yield x
    for part in (
        x
        if isinstance(x, (tuple, list))
        else (
            x.values()
            if isinstance(x, dict)
            else vars(x).values()
            if is_dataclass(x) and not isinstance(x, type)
            else ()
        )
    ):
        yield from mutable_parts(part)
