"""Lambda lifting: a Python function that captured arrays as a compile-time value, and the arrays.

`tkc.lambda_lift(f)` looks through what f reaches: closures, globals that its code names, defaults,
functools.partial, methods, attributes of objects, tuples, lists and dicts. Each array it finds
becomes a `Slot`, a number in its place; what is left is a constant of a kernel. In the kernel
`lifted.elements(a, b, …)` makes of the arrays, now the kernel's arguments, what the function
indexes (tkc/language/elements.py); `lifted.of(*elements)` is the function with these in the slots.

Two functions with the same code, the same captured numbers and arrays in the same places are equal:
a closure that is made anew for each call compiles nothing. What was captured is looked at in each
call of `lambda_lift`, so that a changed number makes another kernel.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tkc.errors import LaunchError
from tkc.objects import text_of
from tkc.runtime.arrays import is_array

if TYPE_CHECKING:
    from tkc.language.elements import Elements

_LIBRARIES = (
    "torch",
    "numpy",
    "jax",
    "jaxlib",
    "cupy",
    "ml_dtypes",
    "builtins",
    "math",
    "operator",
)
MAX_KNOWN = 4096  # lifted functions that are remembered


@dataclass(frozen=True)
class Slot:
    """Stands for the array of that number. scalar: of rank 0, passed with one element."""

    number: int
    scalar: bool


class Lifted:
    """A function without its arrays: a compile-time value. Equal ones compute the same."""

    __slots__ = ("function", "slots", "_key", "_text")

    def __init__(self, function: Callable, slots: tuple[Slot, ...], key: tuple):
        self.function, self.slots, self._key = function, slots, key
        self._text = ""

    @property
    def read_by_kernels(self) -> tuple[Callable, tuple[Slot, ...]]:
        """What code depends on (tkc/runtime/fingerprint.py)."""
        return self.function, self.slots

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lifted) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        """What it computes, spelled: a part of the key of a compiled kernel."""
        if not self._text:
            from tkc.runtime.fingerprint import Fingerprint, Unstable
            from tkc.runtime.toolchain import digest

            found = Fingerprint()
            try:
                text = found.spell(self.function)
                unstable = found.unstable
            except Unstable as e:
                text, unstable = b"", e
            name = uuid4().hex if unstable else digest([("function", text), *found.fields])
            self._text = f"Lifted({name}, {self.slots})"
        return self._text

    def elements(self, *arrays: Any) -> tuple[Elements, ...]:
        """In a kernel: what the function indexes, of the arrays that are the kernel's arguments, in
        the order of `lambda_lift`; further arguments do not count.
        """
        from tkc.language.elements import Elements

        return tuple(Elements(a, s.scalar) for s, a in zip(self.slots, arrays, strict=False))

    def of(self, *elements: Elements) -> Callable:
        """In a kernel: the function, reading these elements."""
        return _Rebuilt(lambda x: elements[x.number] if isinstance(x, Slot) else None).of(
            self.function
        )


class _Rebuilt:
    """Copies of values with something else in the place of some of what they reach."""

    def __init__(self, change: Callable[[Any], Any]):
        self.change = change
        self.memo: dict[int, Any] = {}
        self.kept: list[Any] = []  # so that no id is used again

    def of(self, value: Any) -> Any:
        if (changed := self.change(value)) is not None:
            return changed
        if _plain(value):
            return value
        if id(value) not in self.memo:
            self.kept.append(value)
            self.memo[id(value)] = value  # where it reaches itself
            self.memo[id(value)] = self._copy(value)
        return self.memo[id(value)]

    def _copy(self, value: Any) -> Any:
        match value:
            case FunctionType():
                return self._function(value)
            case tuple() | list():
                parts = [self.of(v) for v in value]
                if all(a is b for a, b in zip(parts, value, strict=True)):
                    return value
                return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
            case dict():
                found = {k: self.of(v) for k, v in value.items()}
                return value if all(found[k] is v for k, v in value.items()) else found
            case functools.partial():
                keywords = {k: self.of(v) for k, v in value.keywords.items()}
                return functools.partial(
                    self.of(value.func), *(self.of(v) for v in value.args), **keywords
                )
            case MethodType():
                return MethodType(self.of(value.__func__), self.of(value.__self__))
        return self._object(value)

    def _object(self, value: Any) -> Any:
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return value
        found = {n: self.of(v) for n, v in attributes.items()}
        if all(found[n] is v for n, v in attributes.items()):
            return value
        made = copy.copy(value)
        made.__dict__.update(found)
        return made

    def _function(self, f: FunctionType) -> FunctionType:
        cells = tuple(CellType(self.of(c.cell_contents)) if _is_set(c) else c for c in _cells(f))
        names = {n: self.of(f.__globals__[n]) for n in _names(f.__code__) if n in f.__globals__}
        space = {n: f.__globals__[n] for n in ("__builtins__", "__name__") if n in f.__globals__}
        made = FunctionType(f.__code__, space | names, f.__name__, self.of(f.__defaults__), cells)
        made.__kwdefaults__ = self.of(f.__kwdefaults__)
        made.__module__, made.__qualname__ = f.__module__, f.__qualname__
        return made


def _cells(f: FunctionType) -> tuple[CellType, ...]:
    return f.__closure__ or ()


def _is_set(cell: CellType) -> bool:
    return cell != CellType()


def _names(code: CodeType) -> list[str]:
    """Names that code, and code inside it, may read of its module."""
    found = dict.fromkeys(code.co_names)
    for c in code.co_consts:
        if isinstance(c, CodeType):
            found |= dict.fromkeys(_names(c))
    return list(found)


def _plain(value: Any) -> bool:
    """Whether a value leads to no array."""
    if value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, type, ModuleType, BuiltinFunctionType, Slot)
    ):
        return True
    if isinstance(value, FunctionType) and value.__closure__:
        return False  # a library's combination of functions of its user's
    kind = value if isinstance(value, FunctionType) else type(value)
    room = (getattr(kind, "__module__", None) or "").partition(".")
    return (
        room[0] in _LIBRARIES
        and not isinstance(value, (tuple, list, dict, MethodType))
        or (room[0] == "tkc" and not room[2].startswith("kernels"))
    )


def _key(value: Any, seen: dict[int, int]) -> Any:
    """What makes a value equal to another, by content."""
    if isinstance(value, float):
        return "float", text_of(value)
    if value is None or isinstance(value, (bool, int, str, bytes, Slot)):
        return type(value), value
    if isinstance(value, _Same):
        return value
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    parts = _parts(value)
    if parts is None:
        return _identity(value)
    return type(value), *(_key(part, seen) for part in parts)


def _parts(value: Any) -> Iterable[Any] | None:
    """What a value is made of; None where it is what it is."""
    match value:
        case FunctionType() if not _plain(value):
            return _parts_of_function(value)
        case tuple() | list():
            return value
        case dict():
            return [part for item in value.items() for part in item]
        case functools.partial():
            return value.func, value.args, value.keywords
        case MethodType():
            return value.__func__, value.__self__
    attributes = getattr(value, "__dict__", None)
    if not isinstance(attributes, dict) or _plain(value):
        return None
    return _Same(type(value)), attributes


def _parts_of_function(f: FunctionType) -> list[Any]:
    names = [n for n in _names(f.__code__) if n in f.__globals__]
    cells = [c.cell_contents for c in _cells(f) if _is_set(c)]
    globals_ = [f.__globals__[n] for n in names]
    return [_Same(f.__code__), *cells, *names, *globals_, f.__defaults__, f.__kwdefaults__]


def _identity(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value), _Same(value)
    return type(value), value


class _Same:
    """A value that leads to nothing else. Codes and classes are equal as Python says, others are
    equal to themselves alone.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        same = self.value is other.value
        return same or isinstance(self.value, CodeType) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value) if isinstance(self.value, CodeType) else id(self.value)


_known: dict[tuple, Lifted] = {}


def lambda_lift(function: Callable) -> tuple[Lifted, tuple[Any, ...]]:
    """A function as a compile-time value, and the arrays that it captured, each once.

    A kernel takes the first as a `tkc.constexpr` parameter and the arrays as others; in it
    `lifted.of(*lifted.elements(a, b, …))` is the function, in which a captured array `a` is read by
    index: `a[i, j]` of tiles, scalars and numbers, broadcast; a negative index counts from the end,
    and outside of the array it reads 0. Raises LaunchError for what cannot be called.
    """
    if not callable(function):
        raise LaunchError(
            f"tkc.lambda_lift takes a function, got {type(function).__name__}; pass a function of"
            " elements"
        )
    arrays: list[Any] = []
    slots: list[Slot] = []
    numbers: dict[int, int] = {}

    def change(value: Any) -> Slot | None:
        if not _holds_elements(value):
            return None
        if id(value) not in numbers:
            numbers[id(value)] = len(arrays)
            scalar = len(value.shape) == 0
            slots.append(Slot(len(arrays), scalar))
            arrays.append(value.reshape((1,)) if scalar else value)
        return slots[numbers[id(value)]]

    hollow = _Rebuilt(change).of(function)
    key = _key(hollow, {})
    if len(_known) >= MAX_KNOWN:
        _known.clear()
    lifted = _known.get(key) or _known.setdefault(key, Lifted(hollow, tuple(slots), key))
    return lifted, tuple(arrays)


def _holds_elements(value: Any) -> bool:
    return (
        not isinstance(value, (type, bytes, bytearray, memoryview))
        and hasattr(value, "shape")
        and hasattr(value, "dtype")
        and (is_array(value) or hasattr(value, "__array_interface__"))
    )
