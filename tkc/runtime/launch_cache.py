"""The launch cache: launches that were made before, found by a key. launch_cache.ll is its fast
path in machine code.

A library that implements DLPack's C exchange API (torch >= 2.10) says through one C call where a
tensor lies, its extents, strides, element type and device, and through another which stream is
current. For calls of one kind (number of positional arguments, names, types) a cache has a builtin
function, `call`, that takes the place of `kernel[grid]`: it writes the key, looks it up and
launches.

    key      in words of 8 bytes, all that code and parameters may depend on:
             of a tensor     its address modulo 16, device, rank and element type, extents, strides;
                             a view of numbers of the other sign has no key, and is refused
             of a number     whether it is 0, 1, a multiple of 16, negative, needs 64 bits; of a
                             constexpr, or where a configuration is chosen by it: its value; of
                             None, a bool, a str or a tuple: its identity
             of the tensors  which share bytes
             of the call     the stream
    values   behind the key: the tensors' addresses and the numbers that are parameters
    entry    (record, what it keeps alive …). The record holds cuLaunchKernelEx, its arguments, what
             the call gives back (None, or what the owner of the kernel says of such launches) and
             the kernel's parameters; these are copied and patched with the values. Where tensor
             maps hold addresses, and for what is no single call of the driver (a kernel on the CPU,
             one with checks), the entry is ({values: entry},)

Users: `kernel[grid]` and `tuned[grid]` (KernelCache), `kernel.prepare` (Prepared), and calls of
operators that were recorded (tkc/kernels/calls.py): the call itself (`launch_key`) and the launches
in it (Repeated).

Filled by `on_miss`, the general path in Python: it launches, and stores what it launched. A miss
is also what invalidates an entry: a global that the kernel reads was rebound, TKC_DEBUG changed, a
workspace was freed (`driver.generation`), the driver returned an error. So nothing here decides
what a launch is; it only finds an equal one. For other arrays (NumPy, cupy, jax), and where LLVM or
ordinary CPython is missing, the same cache has a key in Python, with the addresses in it.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import cache, reduce
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, NamedTuple

from tkc.errors import Error
from tkc.ir.interface import Parameter
from tkc.objects import text_of
from tkc.runtime import driver
from tkc.runtime.arrays import describe
from tkc.runtime.fingerprint import (
    DEEPEST_OBJECT,
    DICT,
    NAMES_OF_CLASSES,
    NAMES_OF_FUNCTIONS,
    SIZE,
    Parts,
    Unstable,
    contents,
)
from tkc.runtime.handed import handing, watch_handing, watch_tables
from tkc.runtime.kernel import CallLauncher, Kernel, Watch
from tkc.runtime.launch import Launch, Packed
from tkc.runtime.peers import Peers
from tkc.runtime.specialize import overlaps
from tkc.runtime.tracebacks import hide_own_frames, hides_own_frames

API, MAJOR, KDLCUDA, KDLFLOAT = "__dlpack_c_exchange_api__", 1, 2, 2
# limits of one call
MAX_KEY_WORDS = 1024
MAX_ARGUMENTS = 96
MAX_TENSORS = 64  # a word says with which of them one shares bytes
MAX_PARAMETER_BYTES = 4096
MAX_PARAMETERS = 256
MAX_LAST_KEY_WORDS = 62  # of the key that was found last, which is compared first
MAX_ENTRIES = 4096  # launches in a cache; under each key, values
SCALAR_MODULES = ("numpy", "ml_dtypes")  # of what is a number, not an array

# of constants that differ from all that are equal to them and of their type in nothing
SIMPLE = frozenset({bool, int, str, bytes, type(None), FunctionType})

# what others differ in beside that
TOLD_APART: dict[type, Callable[[Any], Any]] = {
    float: text_of,
    complex: lambda z: (text_of(z.real), text_of(z.imag)),
    range: lambda r: (r.start, r.stop, r.step),
}

# Kinds of arguments. NUMBER and REAL are given to the kernel, INT and FLOAT compiled into it; of
# SAME the identity counts; of a PLACE, a tensor, all but the address is known.
TENSOR, NUMBER, REAL, INT, FLOAT, SAME, PLACE = range(7)
GIVEN = TENSOR, NUMBER, REAL, PLACE  # become parameters

# How a value becomes a parameter: 8 bytes, the lower 4, a float32, not at all.
BYTES_8, BYTES_4, AS_FLOAT32, UNCHANGED = 0, 1, 2, 255
# In a record, in place of the driver's generation: the launch is a function in Python.
IN_PYTHON = (1 << 64) - 1

FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
CONTENTS = "cell_contents"  # what a variable of a closure holds
BASES = "__bases__"
# Fields of a cache as machine code reads it, 8 bytes each.
FIELDS = (
    "positional",
    "named",
    "watched",
    "values",
    "device",
    "entries",
    "on_miss",
    "none",
    "describe",
    "stream",
    "is_negated",
    "false",
    "generation",
    "kinds",
    "names",
    "watches",
    "last",
)


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


FASTCALL_KEYWORDS = 0x80 | 0x02
_content = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyBytes_AsString", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_builtin = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
# where CPython keeps the dictionary of an object's attributes
_dict_slot = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("_PyObject_GetDictPtr", ctypes.pythonapi)
)
_loaded: list = []  # libraries in memory, for as long as the process lives


@cache
def _methods() -> tuple[_Method, ...] | None:
    """`launch`, `key` and `find` as methods for CPython, for as long as the process lives. None
    where they cannot be made: another Python, one without its lock, one that was built otherwise.
    """
    if (
        sys.implementation.name != "cpython"
        or not getattr(sys, "_is_gil_enabled", lambda: True)()
        or (object.__basicsize__, ctypes.sizeof(ctypes.c_void_p)) != (16, 8)
    ):
        return None
    try:
        from tkc.codegen.cpu.host import engine, host

        llvm, *_ = host()
        library = (
            llvm.JITLibraryBuilder()
            .add_object_img(_object())
            .add_current_process()
            .export_symbol("launch")
            .export_symbol("key")
            .export_symbol("find")
            .link(engine(), "tkc_launcher")
        )
        methods = tuple(
            _Method(n, library[n.decode()], FASTCALL_KEYWORDS, None)
            for n in (b"launch", b"key", b"find")
        )
    except (ImportError, OSError, RuntimeError):
        return None
    _loaded.append(library)
    return methods


def _object() -> bytes:
    """The program's object code, from the disk cache where it was made before."""
    from tkc.codegen.cpu.host import host
    from tkc.runtime import cache
    from tkc.runtime.toolchain import digest

    llvm, machine, processor, _ = host()
    numbers = {f: i for i, f in enumerate(FIELDS)} | {
        n: globals()[n]
        for n in (
            "MAX_KEY_WORDS",
            "MAX_ARGUMENTS",
            "MAX_PARAMETER_BYTES",
            "MAX_PARAMETERS",
            "TENSOR",
            "NUMBER",
            "REAL",
            "INT",
            "FLOAT",
            "BYTES_4",
            "AS_FLOAT32",
            "PLACE",
            "KDLFLOAT",
            "MAX_LAST_KEY_WORDS",
            "IN_PYTHON",
        )
    }
    numbers |= {
        "MAX_SPAN_ENDS": 2 * MAX_ARGUMENTS,
        # the last word at which an argument may still begin
        "LAST_ARGUMENT_WORD": MAX_KEY_WORDS - 4 - 2 * 64 - 2 * MAX_ARGUMENTS,
        "type": object.__basicsize__ - 8,  # of an object, after the count of references
    }
    program = reduce(
        lambda text, n: text.replace(f"{{{n}}}", str(numbers[n])),
        numbers,
        Path(__file__).with_suffix(".ll").read_text(),
    )
    disk = cache.disk()
    key = digest(
        [
            ("launcher", program.encode()),
            ("processor", processor.encode()),
            ("llvm", str(llvm.llvm_version_info).encode()),
        ]
    )
    if disk and (found := disk.get(key)):
        return found["object"]
    module = llvm.parse_assembly(program)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    made = machine.emit_object(module)
    if disk:
        disk.put(key, {"object": made})
    return made


class Exchange(NamedTuple):
    """Addresses: of the two C functions of a tensor type, what describes a tensor and what gives
    the stream, and of the tensor's method that says whether its numbers are of the other sign. 0:
    there is none.
    """

    describe: int = 0
    stream: int = 0
    is_negated: int = 0


NO_EXCHANGE = Exchange()


def _exchange(kind: type) -> Exchange | None:
    """Of a tensor type; None where it has none. (A type derived from one may answer otherwise in
    Python; torch's Parameter does not.)
    """
    torch: Any = sys.modules.get("torch")
    if kind is getattr(getattr(torch, "nn", None), "Parameter", None):
        kind = torch.Tensor
    try:
        address = _pointer(vars(kind)[API], b"dlpack_exchange_api")
    except (KeyError, ValueError):
        return None
    while address and ctypes.c_uint32.from_address(address).value != MAJOR:
        address = ctypes.c_void_p.from_address(address + 8).value  # a table of an older version
    if not address:
        return None
    describing, streaming = (ctypes.c_void_p.from_address(address + at).value for at in (40, 48))
    if not (describing and streaming):
        return None
    is_negated = getattr(kind, "is_neg", None)
    return Exchange(describing, streaming, 0 if is_negated is None else id(is_negated))


def kind(args: Sequence, kwargs: dict[str, Any]) -> tuple:
    """What calls of one launch cache share: types by position, names and types."""
    return tuple(map(type, args)), *((n, type(v)) for n, v in kwargs.items())


def _is_constant(value) -> bool:
    """Whether a value is the same as long as it is the same object."""
    return (
        type(value) in (bool, int, float, str, type(None), FunctionType)
        or (type(value) is tuple and all(map(_is_constant, value)))
        or type(value).__module__ in ("tkc.ir.dtypes", "tkc.runtime.peers")
        or getattr(type(value), "never_changes", False) is True
        or type(value) is getattr(sys.modules.get("torch"), "dtype", None)
    )


def _number_kind(value: Any, given: bool) -> int | None:
    """The kind of a number, which is given to the kernel or compiled into it; None for others."""
    if type(value) is int:
        return NUMBER if given else INT
    if type(value) is float:
        return REAL if given else FLOAT
    return None


def _kind_of(value: Any, given: bool, tensor: bool) -> int | None:
    """The kind of an argument. given: numbers are given to the kernel; tensor: it may be a tensor.
    None where a key cannot describe it.
    """
    number = _number_kind(value, given)
    if number is not None:
        return number
    if _is_constant(value):
        return SAME
    return TENSOR if tensor and _exchange(type(value)) else None


def _one_exchange(kinds: Sequence[tuple[type, int]], tensor: int = TENSOR) -> Exchange | None:
    """The C functions that all tensors of these kinds share; None where they do not, there is no
    tensor, or there are too many arguments for a key.
    """
    exchanges = {_exchange(t) for t, k in kinds if k == tensor}
    fit = len(kinds) <= MAX_ARGUMENTS and sum(k == TENSOR for _, k in kinds) <= MAX_TENSORS
    return exchanges.pop() if len(exchanges) == 1 and fit else None


def _methods_for(watched: Sequence[Watch]) -> tuple[_Method, ...] | None:
    """The methods, where machine code can compare what is watched."""
    spaces = [space for space, *_ in watched]
    if not all(isinstance(space, (dict, Parts)) for space in spaces):
        return None
    parts = [(space.owner, name) for space, name, _ in watched if isinstance(space, Parts)]
    return _methods() if all(_place(*part) is not None for part in parts) else None


def _place(owner: Any, name: str) -> int | None:
    """Where an object holds a part, in bytes from its address; None where that is not known."""
    if name != DICT:
        return _places_of_parts().get((type if isinstance(owner, type) else type(owner), name))
    address = _dict_slot(owner)
    return None if address is None else address - id(owner)


@cache
def _places_of_parts() -> dict[tuple[type, str], int]:
    """Where CPython's functions, cells, classes and dictionaries hold what may be replaced, in
    bytes, as far as it is found.
    """

    def sample(_: int = 0, *, _named: int = 0) -> None:
        """A text of its own."""

    class Sample: ...

    owners: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (sample, (*FUNCTION_PARTS, *NAMES_OF_FUNCTIONS)),
        (CellType(object()), (CONTENTS,)),
        (Sample, (BASES, *NAMES_OF_CLASSES)),
    )
    found: dict[tuple[type, str], set[int]]
    found = {(type(o), n): _places(o, id(getattr(o, n))) for o, names in owners for n in names}
    found[dict, SIZE] = _places(dict.fromkeys(range(997)), 997)
    found[dict, SIZE] &= _places(dict.fromkeys(range(1009)), 1009)
    return {part: places.pop() for part, places in found.items() if len(places) == 1}


def _places(owner: object, word: int) -> set[int]:
    """Where an object holds a word, in bytes from its address."""
    size = type(owner).__basicsize__ // 8
    words = struct.unpack(f"<{size}Q", ctypes.string_at(id(owner), 8 * size))
    return {8 * i for i, found in enumerate(words) if found == word}


def _watched_words(space: Any, name: str, value: object) -> tuple[int, int, int]:
    """What is watched as machine code reads it: a dictionary, a name and the value; or the address
    of a part, 0 and the part: an object's address, or a number.
    """
    if isinstance(space, Parts):
        place = _place(space.owner, name)
        assert place is not None  # `_methods_for` has asked
        word = value if name == SIZE and isinstance(value, int) else id(value)
        return id(space.owner) + place, 0, word
    return id(space), id(name), id(value)


def kernel_cache(
    launcher: CallLauncher, args: Sequence, kwargs: dict[str, Any]
) -> KernelCache | None:
    """A cache for calls like this one, in machine code where it can be. None where nothing can be
    remembered now, or a key cannot describe such calls.
    """
    owner, kernel = launcher.owner, launcher.owner.kernel
    if (watched := launcher.watching()) is None:
        return None
    runtime = {n for n, fixed in zip(kernel.names, kernel.constexpr, strict=True) if not fixed}
    named = [*zip(kernel.names, args, strict=False), *kwargs.items()]
    kinds = [_kind_of(v, n in runtime and not owner.chooses, n in runtime) for n, v in named]
    typed = [(type(v), SAME if k is None else k) for (_, v), k in zip(named, kinds, strict=True)]
    call = typed, len(args), tuple(map(sys.intern, kwargs)), watched
    exchange = None if None in kinds else _one_exchange(typed)
    methods = exchange and _methods_for(watched)
    if exchange and methods:
        return KernelCache(launcher, *call, exchange, methods)
    parts = _key_parts(named, runtime)
    return None if parts is None else KernelCache(launcher, *call, python=parts)


def _tensor_parts(tensor: Any) -> list[str]:
    """What a launch depends on of a tensor."""
    parts = ["data_ptr()", "shape", "stride()", "dtype", "is_cuda"]
    return [*parts, "is_neg()"] if hasattr(tensor, "is_neg") else parts


def _key_parts(named: Sequence[tuple[str, Any]], runtime: set[str]) -> list[str] | None:
    """The key in Python: expressions of what a launch depends on, for values of these types, named
    x0, x1, …. None where a value cannot be looked up.
    """
    parts: list[str] = []
    for i, (name, v) in enumerate(named):
        x = f"x{i}"
        if name not in runtime:
            parts += [x] + ([] if type(v) in SIMPLE else [f"_kinds({x})"])
        elif hasattr(v, "data_ptr"):
            parts += [f"{x}.{part}" for part in _tensor_parts(v)]
        elif hasattr(v, "__cuda_array_interface__"):
            parts.append(f"tuple({x}.__cuda_array_interface__.items())")
        elif type(v).__module__ in SCALAR_MODULES and not hasattr(v, "ctypes"):
            parts.append(f"{x}.tobytes()")  # of zeros the sign, too
        elif hasattr(v, "__array_interface__") and hasattr(v, "flags"):
            parts += [f"{x}.{part}" for part in ("ctypes.data", "shape", "strides", "dtype")]
            parts.append(f"{x}.flags.writeable")
        elif isinstance(v, float):
            parts.append(f"_text_of({x})")  # 0.0 and -0.0
        elif isinstance(v, (int, bool, str, type(None), Peers)):
            parts.append(x)
        else:
            return None
    return parts


def _written_in_python(
    kinds: Sequence[tuple[type, int]],
    positional: int,
    names: Sequence[str],
    watched: Sequence[Watch],
    parts: Sequence[str],
) -> Callable:
    """The function that gives the key of a call in Python; None where it is of another kind."""
    given = "".join(f"x{i}, " for i in range(positional))
    by_name = "".join(f"        x{positional + i} = named[{n!r}]\n" for i, n in enumerate(names))
    types = "".join(f" or _type(x{i}) is not _t{i}" for i in range(len(kinds)))
    space: dict[str, Any] = {f"_t{i}": t for i, (t, _) in enumerate(kinds)}
    space |= {"_type": type, "_kinds": types_of, "_text_of": text_of, "_watched": watched}
    exec(
        f"""def key(*given, **named):
    try:
        {f"{given}= given" if given else "() = given"}
{by_name}    except (KeyError, ValueError):
        return None
    if len(named) != {len(names)}{types}:
        return None
    for space, name, value in _watched:
        if space.get(name) is not value:
            return None
    return ({"".join(f"{part}, " for part in parts)})""",
        space,
    )
    return space["key"]


def types_of(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """What equal constants may still differ in: their types, of floats the sign of zero, and of
    classes that say themselves what is equal, all that their objects hold. inside: the ids of
    objects that hold the value.
    """
    kind = type(value)
    if kind in SIMPLE:
        return kind
    if kind in (tuple, frozenset):
        return kind, *[types_of(v, inside) for v in value]
    if kind in TOLD_APART:
        return kind, TOLD_APART[kind](value)
    if kind.__eq__ is object.__eq__ or isinstance(value, (type, Enum)):
        return kind
    if kind.__module__ in SCALAR_MODULES:
        return (kind, value.tobytes()) if hasattr(value, "tobytes") else kind
    is_ours = kind.__module__.partition(".")[0] == "tkc"
    if id(value) in inside or is_ours and not is_dataclass(value):
        return kind
    if len(inside) == DEEPEST_OBJECT:
        return kind, _One(value)
    try:
        return kind, *(_whole(v, (*inside, id(value))) for v in contents(value))
    except Unstable:
        return kind, _One(value)


def _whole(value: Any, inside: tuple[int, ...]) -> Any:
    """Equal of values that are equal and differ in nothing."""
    kind = type(value)
    if kind in SIMPLE:
        return value, kind
    if kind in (list, tuple):
        return kind, *[_whole(v, inside) for v in value]
    if kind is dict:
        return kind, *((_whole(k, inside), _whole(v, inside)) for k, v in [*value.items()])
    try:
        hash(value)
    except TypeError:
        return _One(value)
    return value, types_of(value, inside)


class _One:
    """Equal of a value that is the same object."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _One and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def prepared(launch: Callable[[], None], values: Sequence) -> Callable[[], None]:
    """The launch as a function of nothing, which keeps the values alive."""
    exchange = next((e for v in values if (e := _exchange(type(v)))), None)
    if exchange and type(launch) is Launch and (methods := _methods_for(())):
        return Prepared(launch, values, exchange, methods).call

    def again(values: Sequence = values) -> None:
        launch()

    return again


def launch_key(values: Sequence, varying: Sequence[bool] | None = None) -> LaunchCache | None:
    """A cache of what is done for calls with values like these. `.key(*values)` gives, as bytes,
    what launches of them depend on, None for values of other types, or where tables of choices
    changed; `.words(key)` leaves out what is of one call only: addresses, numbers that vary.
    `.find(*values)` gives what the dictionary `.entries` has under the words of a call, or None.

    Values: torch's tensors, numbers, texts (by identity) and None. varying: of which numbers only
    counts whether they are 1, multiples of 16, negative or need 64 bits. None where there is no
    machine code for such values.
    """
    kinds: list[tuple[type, int]] = []
    for v, varies in zip(values, varying or [False] * len(values), strict=True):
        what = _kind_of(v, varies, True)
        if what is None:
            return None
        kinds.append((type(v), what))
    watched = (watch_tables(),)
    exchange = _one_exchange(kinds)
    methods = exchange and _methods_for(watched)
    if exchange is None or not methods:
        return None
    # no function for the stream: its word is 0
    return LaunchCache(kinds, len(kinds), (), watched, exchange._replace(stream=0), methods)


def _kinds_of_given(
    names: Sequence[str],
    values: Sequence,
    runtime_names: set[str],
    given: Sequence,
    places: dict[str, tuple[int, tuple | None]],
) -> list[tuple[type, int]] | None:
    """Of each value given to a repeated launch its kind; None where a key cannot describe it, or an
    argument that stays is no constant.
    """
    kinds: list[Any] = [None] * len(given)
    for name, v in zip(names, values, strict=True):
        if name not in places:
            if not _is_constant(v):
                return None
            continue
        at, _ = places[name]
        x, runtime = given[at], name in runtime_names  # options are compiled in too
        what = _number_kind(x, runtime)
        if what is None and runtime and _exchange(type(x)) and _on_gpu(x):
            what = PLACE
        if what is None or kinds[at] not in (None, (type(x), what)):
            return None
        kinds[at] = type(x), what
    return kinds


def repeated(
    kernel: Kernel,
    grid: Any,
    args: Sequence,
    kwargs: dict[str, Any],
    given: Sequence,
    places: dict[str, tuple[int, tuple | None]],
) -> Repeated | None:
    """A launch of such arguments that is made again and again, of others given: `.call` is a
    builtin function of them. given: tensors and numbers as they are now; later ones are like these,
    in their types and of tensors in all but the address, and share bytes where these do: the caller
    has looked. places: of arguments by name, which of those it is, and (extents, strides, elements
    before it) where it is a view of that; the other arguments stay what they are. None where there
    is no machine code for it, or where views are of tensors that share bytes, and may share some
    themselves, or not.
    """
    names = (*kernel.names[: len(args)], *kwargs)
    runtime_names = {
        n for n, constant in zip(kernel.names, kernel.constexpr, strict=True) if not constant
    }
    kinds = _kinds_of_given(names, (*args, *kwargs.values()), runtime_names, given, places)
    watched = _watched_again(kernel)
    if kinds is None or watched is None or not isinstance(grid, (int, tuple)):
        return None
    if any(view for _, view in places.values()) and _share_bytes(given, kinds):
        return None
    exchange = _one_exchange(kinds, PLACE)
    methods = exchange and driver.launch_entry() and _methods_for(watched)
    if exchange is None or not methods:
        return None
    placed = tuple(places.get(n) for n in names)
    return Repeated(
        kernel, grid, (tuple(args), dict(kwargs)), placed, kinds, exchange, watched, methods
    )


def _share_bytes(given: Sequence, kinds: Sequence[tuple[type, int]]) -> bool:
    """Whether any two of the tensors do."""
    tensors = [describe(x) for x, (_, k) in zip(given, kinds, strict=True) if k == PLACE]
    return any(a != b for a, b in overlaps(tensors))


def _watched_again(kernel: Kernel) -> tuple[Watch, ...] | None:
    """What must stay as it is for launches made now, in whatever thread. None where more may change
    than that tells.
    """
    return None if kernel.careful else (*kernel.watching(), watch_handing())


class Entries(dict):
    """Entries by key. last: the key and entry that were found last, which machine code has by
    address; cleared before an entry is released.
    """

    def __init__(self):
        super().__init__()
        self.last = ctypes.create_string_buffer(8 * (2 + MAX_LAST_KEY_WORDS))

    def __setitem__(self, key, value) -> None:
        # what is removed lives until `last` has forgotten it: another thread may put something
        # there, or look it up, at any time
        taken = []
        while super().setdefault(key, value) is not value:
            taken.append(super().pop(key, None))
            self._forget_last()

    def clear(self) -> None:
        taken = []
        try:
            while True:
                taken.append(super().popitem())
        except KeyError:
            pass
        self._forget_last()

    def _forget_last(self) -> None:
        ctypes.memset(self.last, 0, 8)


class LaunchCache:
    """A cache of calls of one kind. `call` looks up and launches; `key` gives the key and the
    values of a call (None: it is of another kind, or what is watched changed); `find` gives the
    entry; `call` calls `on_miss` where there is none.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[type, int]],
        positional: int,
        names: tuple[str, ...],
        watched: tuple[Watch, ...],
        exchange: Exchange = NO_EXCHANGE,
        methods: tuple[_Method, ...] = (),
        device: int = 0,
        python: Sequence[str] = (),
    ):
        self.kinds, self.watched = kinds, watched
        self.values = sum(k in GIVEN for _, k in kinds)
        self.entries: dict[Any, Any] = Entries() if methods else {}
        self.call: Callable[..., Any]
        self.key: Callable[..., Any]
        self.find: Callable[..., Any]
        if methods:
            data = self._data(positional, names, exchange, device)
            self.exchange, self.methods = exchange, methods
            self.call, self.key, self.find = (
                _builtin(ctypes.addressof(m), data, None) for m in methods
            )
        else:
            self.key = _written_in_python(kinds, positional, names, watched, python)
            self.call = self._call

    def _data(
        self, positional: int, names: tuple[str, ...], exchange: Exchange, device: int
    ) -> tuple:
        """The fields as machine code reads them, then all that their addresses are of."""
        on_miss = self.on_miss
        tables = [
            b"".join(struct.pack(f"<{len(row)}Q", *row) for row in rows)
            for rows in (
                [(id(t), k) for t, k in self.kinds],
                [(id(n),) for n in names],
                [_watched_words(*w) for w in self.watched],
            )
        ]
        fields = {
            "positional": positional,
            "named": len(names),
            "watched": len(self.watched),
            "values": self.values,
            "device": KDLCUDA | device << 32,
            "entries": id(self.entries),
            "on_miss": id(on_miss),
            "none": id(None),
            "describe": exchange.describe,
            "stream": exchange.stream,
            "is_negated": exchange.is_negated,
            "false": id(False),
            "generation": ctypes.addressof(driver.generation),
            **dict(zip(("kinds", "names", "watches"), map(_content, tables), strict=True)),
            "last": ctypes.addressof(vars(self.entries)["last"]),
        }
        words = struct.pack(f"<{len(FIELDS)}Q", *(fields[f] for f in FIELDS))
        return words, tables, self.entries, on_miss, self.kinds, names, self.watched

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        """`call` without machine code."""
        try:
            found = self.entries.get(self.key(*args, **kwargs))
        except TypeError:
            found = None  # a constexpr that is not hashable
        try:
            if found is None:
                return self.on_miss(*args, **kwargs)
            launch, given_back = found
            launch()
            return given_back
        except Error as error:
            hide_own_frames(error)
            raise

    def on_miss(self, *args: Any, **kwargs: Any) -> Any:
        """Called by `call` where there is no entry, in its place."""
        raise NotImplementedError

    def unchanged(self) -> bool:
        """Whether what is watched is what it was."""
        return all(space.get(name) is value for space, name, value in self.watched)

    def words(self, written: bytes) -> bytes:
        """A key as `find` looks for it: without the stream and the values."""
        return written[: -8 * (self.values + 1)]

    def remember(
        self,
        written: Any,
        launch: Callable[[], None],
        same: Sequence = (),
        moves: Sequence[tuple[int, int]] | None = None,
        given_back: Any = None,
    ) -> None:
        """Stores what was just launched under its key. same: objects whose addresses are in the
        key; moves: of each parameter, which value it is and how, and what is added (None: they stay
        as they are); given_back: what `call` gives back for such a launch.
        """
        if len(self.entries) >= MAX_ENTRIES:
            self.entries.clear()
        if not isinstance(written, bytes):
            with suppress(TypeError):  # a constexpr that is not hashable
                self.entries[written] = launch, given_back
            return
        split = len(written) - 8 * self.values
        words, values = written[:split], written[split:]
        if type(launch) is Launch and (driver.poison or launch.epoch != launch.function.epoch):
            return  # no longer valid
        if type(launch) is Launch and (kept := _record_of(launch, words)):
            record, call, packed = kept
            record = *record, id(given_back)
            if moves is not None and _fits_in_place(packed, moves):
                columns = packed.places, [how for how, _ in moves], [step for _, step in moves]
                tables = [struct.pack(f"<{len(t)}Q", *t) for t in columns]
                patched = packed.base, packed.size, len(moves), *map(_content, tables)
                data = struct.pack("<12Q", *record, *patched)
                self.entries[words] = data, tables, call, packed, launch, same, given_back
                return
            entry: tuple = struct.pack("<6Q", *record), call, packed, launch, same, given_back
        else:
            record = IN_PYTHON, 0, 0, 0, 0, id(given_back)
            entry = struct.pack("<6Q", *record), launch, same, given_back
        found = self.entries.get(words, ())
        if len(found) != 1:
            found = self.entries[words] = ({},)
        by_values = found[0]
        if len(by_values) >= MAX_ENTRIES:
            by_values.clear()
        by_values[values] = entry


def _record_of(launch: Launch, words: bytes) -> tuple[tuple[int, ...], Any, Any] | None:
    """The driver's call that a launch made in the stream of a key: numbers for machine code, the
    call, its parameters. None where machine code cannot make it.
    """
    stream = int.from_bytes(words[-8:], "little")
    call, packed = launch.calls.get(stream), launch.kept.get(stream)
    native = getattr(call, "native", None)
    if native is None or packed is None:
        return None
    return (driver.generation.value, *native), call, packed


def _fits_in_place(packed: Packed, moves: Sequence) -> bool:
    """Whether machine code has memory for a copy of the parameters."""
    return packed.size <= MAX_PARAMETER_BYTES and len(moves) <= MAX_PARAMETERS


class KernelCache(LaunchCache):
    """Calls of `kernel[grid]`, or `tuned[grid]`, of one kind."""

    def __init__(
        self,
        launcher: CallLauncher,
        kinds: Sequence[tuple[type, int]],
        positional: int,
        names: tuple[str, ...],
        *how: Any,
        **more: Any,
    ):
        super().__init__(kinds, positional, names, *how, **more)
        kernel = launcher.owner.kernel
        self.launcher, self.epoch = launcher, kernel.epoch
        self.names = (*kernel.names[:positional], *names)

    @hides_own_frames
    def on_miss(self, *args: Any, **kwargs: Any) -> Any:
        other = self.launcher.caches.get(kind(args, kwargs))
        if other is not None and other is not self and other.is_current():
            return other.call(*args, **kwargs)
        return self.launcher.miss(args, kwargs)

    def is_current(self) -> bool:
        """Whether launches may be found here: all is watched that must be, and unchanged."""
        return self.epoch is self.launcher.owner.kernel.epoch and self.unchanged()

    def store(
        self,
        written: Any,
        launch: Callable[[], None],
        args: Sequence,
        kwargs: dict[str, Any],
        given_back: Any,
    ) -> None:
        """Stores a launch that was just made of these arguments under the key written of them."""
        given = (*args, *kwargs.values())
        same = [v for v, (_, kind) in zip(given, self.kinds, strict=True) if kind == SAME]
        moves = None
        if type(launch) is Launch:
            values = [n for n, (_, k) in zip(self.names, self.kinds, strict=True) if k in GIVEN]
            moves = _moves(launch, {n: (i, 0) for i, n in enumerate(values)})
        self.remember(written, launch, same, moves, given_back)


def _moves(launch: Launch, values: dict[str, tuple[int, int]]) -> list[tuple[int, int]] | None:
    """For each parameter which value it is and how, and the bytes that are added. None where values
    are elsewhere too, in tensor maps. values: of arguments by name, the number of the value and
    those bytes.
    """
    # of each argument at run time; an integer that is 1 is none
    order = {i: values[n] for i, n in enumerate(launch.arguments[0]) if n in values}
    moves = []
    for p in launch.interface.parameters:
        if p.kind == "map":
            return None
        if p.kind not in ("pointer", "scalar"):
            moves.append((UNCHANGED, 0))
            continue
        how = _patching(p)
        if how is None:
            return None
        which, step = order.get(p.argument, (UNCHANGED, 0))
        moves.append((which if which == UNCHANGED else which | how << 8, step))
    return moves


def _patching(p: Parameter) -> int | None:
    """How a value becomes this parameter; None where machine code cannot write it."""
    if p.type == "f32":
        return AS_FLOAT32
    integers = {8: BYTES_8, 4: BYTES_4}
    return integers.get(p.size) if p.type[0] in "usb" else None


class Prepared(LaunchCache):
    """One launch, again and again."""

    def __init__(
        self,
        launch: Launch,
        values: Sequence,
        exchange: Exchange,
        methods: tuple[_Method, ...],
    ):
        super().__init__((), 0, (), (), exchange, methods, launch.function.device)
        self.bound, self.arguments = launch, values

    def on_miss(self, *args: Any, **kwargs: Any) -> None:
        written = self.key()
        self.bound()
        if written is not None:
            self.remember(written, self.bound)


class Repeated(LaunchCache):
    """One launch of a kernel on a grid, of some of its arguments, of which others may be views.
    place: (namespace, name) of `call`, where another one takes its place when the kernel reads
    other things.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: Any,
        values: tuple[tuple, dict],
        places: Sequence[tuple[int, tuple | None] | None],
        kinds: Sequence[tuple[type, int]],
        exchange: Exchange,
        watched: tuple[Watch, ...],
        methods: tuple[_Method, ...],
    ):
        super().__init__(kinds, len(kinds), (), watched, exchange, methods)
        self.kernel, self.grid, self.places = kernel, grid, places
        self.place: tuple[dict, str] | None = None
        args, kwargs = values
        # keeps no tensor
        self.arguments = (
            tuple(None if p else v for v, p in zip(args, places, strict=False)),
            {
                n: None if p else v
                for (n, v), p in zip(kwargs.items(), places[len(args) :], strict=True)
            },
        )

    def on_miss(self, *given: Any, **_: Any) -> None:
        """Launches in Python and stores the launch."""
        kernel, written = self.kernel, self.key(*given)
        args, kwargs = self._arguments_of(given)
        if handing():
            kernel[self.grid](*args, **kwargs)
            return
        launch = kernel.made(args, kwargs, self.grid)
        launch()
        if type(launch) is not Launch or (watched := _watched_again(kernel)) is None:
            return
        if not _all_same(watched, self.watched):
            self._replace(args, kwargs, watched)
        elif written is not None and self.key(*given) == written:
            self.remember(written, launch, (), _moves(launch, self._values_of(given)))

    def _arguments_of(self, given: Sequence) -> tuple[tuple, dict[str, Any]]:
        args, kwargs = self.arguments
        made = [
            v if p is None else _view_of(given[p[0]], p[1])
            for v, p in zip((*args, *kwargs.values()), self.places, strict=True)
        ]
        return tuple(made[: len(args)]), dict(zip(kwargs, made[len(args) :], strict=True))

    def _replace(self, args: tuple, kwargs: dict[str, Any], watched: tuple[Watch, ...]) -> None:
        """Puts a launch into `place` that watches what the kernel reads now."""
        again = Repeated(
            self.kernel,
            self.grid,
            (args, kwargs),
            self.places,
            self.kinds,
            self.exchange,
            watched,
            self.methods,
        )
        if place := self.place:
            again.place, place[0][place[1]] = place, again.call

    def _values_of(self, given: Sequence) -> dict[str, tuple[int, int]]:
        """Of arguments by name, the number of the value and the bytes before a view of it."""
        order = [i for i, (_, kind) in enumerate(self.kinds) if kind in GIVEN]
        args, kwargs = self.arguments
        found = {}
        for name, p in zip((*self.kernel.names[: len(args)], *kwargs), self.places, strict=True):
            if p and p[0] in order:
                at, view = p
                skipped = view[2] * given[at].element_size() if view else 0
                found[name] = order.index(at), skipped
        return found


def _all_same(one: Sequence[tuple], other: Sequence[tuple]) -> bool:
    """Whether two sequences of tuples hold the same objects."""
    return len(one) == len(other) and all(
        a is b
        for left, right in zip(one, other, strict=True)
        for a, b in zip(left, right, strict=True)
    )


def _on_gpu(x: Any) -> bool:
    return x.is_cuda


def _view_of(x: Any, view: tuple | None) -> Any:
    """A tensor, or a view of it."""
    return x if view is None else x.as_strided(view[0], view[1], x.storage_offset() + view[2])
