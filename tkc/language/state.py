"""What Python state a region (a loop body, a branch) changes, and how the changes become values of
the IR.

Tracing runs a region's body once, though it will run many times or not at all. So everything the
body can rebind is recorded before and compared after: the function's local names, and every
*slot* of every object reachable from the frames of the kernel (list elements, dict values,
attributes, closure cells, globals that the code names; slots.py). A changed slot is

    carried    when old and new are numbers, values or equal structures of them: it becomes an
               iter_arg or a result;
    unbound    when they are not: the name is deleted (a slot gets a `Lost`), so that reading it is
               an error that says why;
    an error   when an object changes its structure (append, a new key), or state that can only be
               compared: a generator advances, random numbers are drawn, a stream is written.

Nothing that the body rebinds is ever silently taken at its old value.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass
from types import (
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
)
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import Attribute, SSAValue

from tkc.ir.types import ArrayType, PointerType, is_float, is_integer
from tkc.ir.values import array_type
from tkc.language.arrays import Array
from tkc.language.dtypes import DType
from tkc.language.slots import (
    UNBOUND,
    Frozen,
    Globals,
    Lost,
    contents,
    delete,
    is_constant,
    is_unread,
    is_users,
    leads,
    write,
)
from tkc.language.tracer import fail, frames, is_library, tracer
from tkc.language.values import (
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
from tkc.objects import text_of

MAX_OBJECTS = 200_000  # that a kernel may reach


def _global_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for c in code.co_consts:
        if isinstance(c, CodeType):
            names |= _global_names(c)
    return names


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
    visited: list = field(default_factory=list)  # lives on, so that no id is used again

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
            if snapshot._is_new(obj, path):
                if isinstance(obj, FunctionType) and is_users(obj):
                    snapshot._globals(tables, obj.__globals__, obj.__code__, stack)
                if isinstance(obj, ModuleType) and not is_unread(obj.__name__):
                    modules.append(obj)
                stack += snapshot._take(obj, path)
        return snapshot

    def _is_new(self, obj: Any, path: str) -> bool:
        """Counts one more way to an object; whether it is the first way to one with slots."""
        if is_constant(obj):
            return False
        self.edges[id(obj)] += 1
        if id(obj) in self.paths:
            return False
        self.paths[id(obj)] = path
        self.visited.append(obj)
        if len(self.paths) > MAX_OBJECTS:
            fail(
                f"more than {MAX_OBJECTS} objects are reachable from the kernel (through"
                f" {path}); pass what the kernel needs as arguments"
            )
        return True

    def _take(self, obj: Any, path: str) -> list[tuple[Any, str]]:
        """Adds the slots of an object, and gives all that it leads to, each with its path."""
        slots = contents(obj)
        if slots is not None:
            self.containers[id(obj)] = (obj, slots)
        held = ((k, v) for k, v in (slots or {}).items() if not isinstance(v, Frozen))
        found = (*leads(obj, slots), *held)
        return [(v, _path(obj, path, k)) for k, v in found if not is_constant(v)]

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
        """Adds attributes of modules that the code mentions; whether any is new. Of the modules
        that a library's module imports only its own parts.
        """
        for m in modules:
            found: list[tuple[Any, str]] = []
            self._mention(tables, vars(m), self.mentioned, found)
            own = not is_library(m.__name__)
            stack += [(v, n) for v, n in found if own or not _is_imported(v, m)]
        return bool(stack)

    def restore(self) -> None:
        """Puts every container back as it was."""
        for key, (obj, slots) in self.containers.items():
            now = contents(obj) or {}
            for k, v in slots.items():
                if k in now and same(v, now[k]):
                    continue
                if isinstance(v, Frozen):
                    fail(
                        f"`{self.paths[key]}` ({type(obj).__name__}) changes in what is traced"
                        " again, and cannot be put back; use a list of fixed length"
                    )
                write(obj, k, v)

    def forget(self) -> None:
        """Takes traced values out of the user's containers again: a trace leaves none behind."""
        for obj, slots in self.containers.values():
            now = contents(obj) or {}
            for k, v in reversed(now.items()):
                if type(v) is not Lost and not isinstance(v, (Value, Array)):
                    continue
                if k in slots:
                    write(obj, k, slots[k])
                else:
                    delete(obj, k)

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


def _is_imported(value: Any, module: ModuleType) -> bool:
    """Whether a value is a module that is no part of the package of another one."""
    return isinstance(value, ModuleType) and not value.__name__.startswith(f"{module.__name__}.")


def _same_keys(obj: Any, old: dict, new: dict) -> bool:
    """Whether an object has the slots that it had: of a dict, in the same order."""
    return list(old) == list(new) if isinstance(obj, dict) else old.keys() == new.keys()


def _path(obj, path: str, key) -> str:
    if key is None:
        return path
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
            return text_of(old) == text_of(new)
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
