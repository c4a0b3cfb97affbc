"""The launch cache in machine code: launches that were made before, of tensors whose library has a
C interface. native.ll is that code.

A library that implements DLPack's C exchange API (torch >= 2.10) says through one C call where a
tensor lies, its extents, strides, element type and device, and through another which stream is
current. `launch_cache(launcher, …)` makes a builtin function that takes the place of `kernel[grid]`
for calls of one kind (number of positional arguments, names, types). It writes a key, looks it up
and calls the driver.

    key      in words of 8 bytes, all that code and parameters may depend on:
             of a tensor     its address modulo 16, device, rank and element type, extents, strides
             of a number     whether it is 1, a multiple of 16, needs 64 bits; of a constexpr: its
                             value; of None, a bool, a str or a tuple: its identity
             of the tensors  which share bytes
             of the call     the stream
    values   behind the key: the tensors' addresses and the numbers that are parameters
    entry    (record, what it keeps alive …). The record holds cuLaunchKernelEx, its arguments and
             the kernel's parameters; these are copied and patched with the values. Where tensor
             maps hold addresses, the entry is ({values: entry},)

Filled by `on_miss`, the general path in Python: it launches, and stores what it launched. A miss
is also what invalidates an entry: a global that the kernel reads was rebound, TKC_DEBUG changed, a
workspace was freed (`driver.generation`), the driver returned an error. So nothing here decides
what a launch is; it only finds an equal one. Where LLVM, the API or ordinary CPython is missing,
there is no such cache, and the one in Python (jit.py) is used.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache, reduce
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tkc.ir.interface import Parameter
from tkc.runtime import driver
from tkc.runtime.arrays import describe
from tkc.runtime.launch import Launch
from tkc.runtime.specialize import overlaps

if TYPE_CHECKING:
    from tkc.runtime.jit import JitFunction, Launcher

API, MAJOR, KDLCUDA = "__dlpack_c_exchange_api__", 1, 2
# limits of one call
MAX_KEY_WORDS = 512
MAX_ARGUMENTS = 32
MAX_PARAMETER_BYTES = 4096
MAX_PARAMETERS = 256
MAX_LAST_KEY_WORDS = 62  # of the key that was found last, which is compared first
MAX_ENTRIES = 4096  # launches in a cache; under each key, values

# Kinds of arguments. NUMBER and REAL are given to the kernel, INT and FLOAT compiled into it; of
# SAME the identity counts; of a PLACE, a tensor, all but the address is known.
TENSOR, NUMBER, REAL, INT, FLOAT, SAME, PLACE = range(7)
GIVEN = TENSOR, NUMBER, REAL, PLACE  # become parameters

# How a value becomes a parameter: 8 bytes, the lower 4, a float32, not at all.
BYTES_8, BYTES_4, AS_FLOAT32, UNCHANGED = 0, 1, 2, 255

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
        from tkc.codegen.cpu.running import engine, host

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
    from tkc.codegen.cpu.running import host
    from tkc.runtime import cache, fingerprint

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
            "MAX_LAST_KEY_WORDS",
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
    key = fingerprint.digest(
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


def _exchange(kind: type) -> tuple[int, int] | None:
    """The two C functions of a tensor type, what describes a tensor and what gives the stream; None
    where it has none. (A type derived from one may answer otherwise in Python; torch's Parameter
    does not.)
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
    return (describing, streaming) if describing and streaming else None


def kind(args: Sequence, kwargs: dict[str, Any]) -> tuple:
    """What calls of one launch cache share: types by position, names and types."""
    return tuple(map(type, args)), *((n, type(v)) for n, v in kwargs.items())


def _is_constant(value) -> bool:
    """Whether a value is the same as long as it is the same object."""
    return (
        type(value) in (bool, int, float, str, type(None), FunctionType)
        or (type(value) is tuple and all(map(_is_constant, value)))
        or type(value).__module__ == "tkc.ir.dtypes"
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


def _one_exchange(
    kinds: Sequence[tuple[type, int]], tensor: int = TENSOR
) -> tuple[int, int] | None:
    """The C functions that all tensors of these kinds share; None where they do not, there is no
    tensor, or there are too many arguments for a key.
    """
    exchanges = {_exchange(t) for t, k in kinds if k == tensor}
    return exchanges.pop() if len(exchanges) == 1 and len(kinds) <= MAX_ARGUMENTS else None


def _launching_methods(watched: Sequence[tuple]) -> tuple[_Method, ...] | None:
    """The methods, where machine code can launch and compare what is watched."""
    if not all(type(space) is dict for space, *_ in watched) or driver.launch_entry() is None:
        return None
    return _methods()


def launch_cache(
    launcher: Launcher,
    args: Sequence,
    kwargs: dict[str, Any],
    watched: Sequence[tuple[dict, Any, Any]],
    others: dict[tuple, LaunchCache | None],
) -> LaunchCache | None:
    """A launch cache for calls like this one. watched: (namespace, name, value) that must stay so;
    others: caches for the same grid, by the kind of their calls. None where a key cannot describe
    such calls, or there is no machine code.
    """
    kinds: list[tuple[type, int]] = []
    kernel = launcher.kernel
    given = {n for n, constant in zip(kernel.names, kernel.constexpr, strict=True) if not constant}
    for name, v in (*zip(kernel.names, args, strict=False), *kwargs.items()):
        what = _kind_of(v, name in given, name in given)
        if what is None:
            return None
        kinds.append((type(v), what))
    exchange = _one_exchange(kinds)
    methods = exchange and _launching_methods(watched)
    if exchange is None or not methods:
        return None
    names = tuple(map(sys.intern, kwargs))
    return LaunchCache(launcher, kinds, len(args), names, exchange, tuple(watched), others, methods)


def prepared(launch: Callable, values: Sequence) -> Callable[[], None] | None:
    """The launch as a builtin function of nothing, which keeps the values alive; None where there
    can be none.
    """
    exchange = next((e for v in values if (e := _exchange(type(v)))), None)
    if type(launch) is not Launch or exchange is None:
        return None
    methods = _launching_methods(())
    return Prepared(launch, values, exchange, methods).launch if methods else None


def launch_key(
    values: Sequence, varying: Sequence[bool] | None = None
) -> tuple[Callable[..., bytes | None], int, Callable, dict] | None:
    """The key of calls with values like these: (write, end, find, entries).

    write(*values) gives, as bytes, what launches of them depend on, None for values of other types;
    from `end` on the bytes are of this call only: addresses, numbers that vary. find(*values) gives
    what the dictionary `entries` has under the key of the call, or None.

    Values: torch's tensors, numbers, texts (by identity) and None. varying: of which numbers only
    counts whether they are 1, multiples of 16 or need 64 bits. None where there is no machine code
    for such values.
    """
    kinds: list[tuple[type, int]] = []
    for v, varies in zip(values, varying or [False] * len(values), strict=True):
        what = _kind_of(v, varies, True)
        if what is None:
            return None
        kinds.append((type(v), what))
    exchange = _one_exchange(kinds)
    methods = exchange and _methods()
    if exchange is None or not methods:
        return None
    # no function for the stream: its word is 0
    made = KeyedCache(kinds, len(kinds), (), (exchange[0], 0), (), methods)
    return made.key, -8 * (made.values + 1), made.find, made.entries


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
    kernel: JitFunction,
    grid: Any,
    args: Sequence,
    kwargs: dict[str, Any],
    given: Sequence,
    places: dict[str, tuple[int, tuple | None]],
) -> Repeated | None:
    """A launch of such arguments that is made again and again, of others given: `.launch` is a
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
    watched = kernel.watching()
    if kinds is None or watched is None or not isinstance(grid, (int, tuple)):
        return None
    tensors = [describe(x) for x, (_, k) in zip(given, kinds, strict=True) if k == PLACE]
    if any(view for _, view in places.values()) and overlaps(tensors):
        return None
    exchange = _one_exchange(kinds, PLACE)
    methods = exchange and _launching_methods(watched)
    if exchange is None or not methods:
        return None
    placed = tuple(places.get(n) for n in names)
    return Repeated(
        kernel, grid, (tuple(args), dict(kwargs)), placed, kinds, exchange, watched, methods
    )


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


class KeyedCache:
    """A cache of calls of one kind. `launch` is the builtin function that looks up and launches;
    `key` gives the key and the values of a call, as bytes (None: the call is of another kind);
    `find` gives the entry; `launch` calls `on_miss` where there is none.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[type, int]],
        positional: int,
        names: tuple[str, ...],
        exchange: tuple[int, int],
        watched: tuple,
        methods: tuple[_Method, ...],
        device: int = 0,
    ):
        self.kinds = kinds
        self.entries = Entries()
        self.values = sum(k in GIVEN for _, k in kinds)
        on_miss = self.on_miss
        tables = [
            b"".join(struct.pack(f"<{len(row)}Q", *row) for row in rows)
            for rows in (
                [(id(t), k) for t, k in kinds],
                [(id(n),) for n in names],
                [tuple(map(id, w)) for w in watched],
            )
        ]
        fields = {
            "positional": positional,
            "named": len(names),
            "watched": len(watched),
            "values": self.values,
            "device": KDLCUDA | device << 32,
            "entries": id(self.entries),
            "on_miss": id(on_miss),
            "none": id(None),
            "describe": exchange[0],
            "stream": exchange[1],
            "generation": ctypes.addressof(driver.generation),
            **dict(zip(("kinds", "names", "watches"), map(_content, tables), strict=False)),
            "last": ctypes.addressof(self.entries.last),
        }
        # all that the addresses are of
        owner = (
            struct.pack(f"<{len(FIELDS)}Q", *(fields[f] for f in FIELDS)),
            tables,
            self.entries,
            on_miss,
            kinds,
            names,
            watched,
        )
        self.exchange, self.methods = exchange, methods
        self.launch, self.key, self.find = (
            _builtin(ctypes.addressof(m), owner, None) for m in methods
        )

    def on_miss(self, *args: Any, **kwargs: Any) -> None:
        """Called by `launch` where there is no entry."""
        raise NotImplementedError

    def remember(
        self,
        written: bytes,
        launch: Launch,
        same: Sequence = (),
        moves: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Stores what was just launched under its key. same: objects whose addresses are in the
        key; moves: of each parameter, which value it is and how, and what is added (None: they stay
        as they are).
        """
        split = len(written) - 8 * self.values
        words, values = written[:split], written[split:]
        generation, stream = driver.generation.value, int.from_bytes(words[-8:], "little")
        call, packed = launch.calls.get(stream), launch.kept.get(stream)
        native = getattr(call, "native", None)
        if native is None or packed is None:
            return
        if driver.poison or launch.epoch != launch.function.epoch:
            return
        if len(self.entries) >= MAX_ENTRIES:
            self.entries.clear()
        record = generation, *native
        if (
            moves is not None
            and packed.size <= MAX_PARAMETER_BYTES
            and len(moves) <= MAX_PARAMETERS
        ):
            tables = [
                struct.pack(f"<{len(t)}Q", *t)
                for t in (packed.places, [how for how, _ in moves], [step for _, step in moves])
            ]
            self.entries[words] = (
                struct.pack(
                    "<11Q", *record, packed.base, packed.size, len(moves), *map(_content, tables)
                ),
                tables,
                call,
                packed,
                launch,
                same,
            )
            return
        by_values = self.entries.setdefault(words, ({},))[0]
        if len(by_values) >= MAX_ENTRIES:
            by_values.clear()
        by_values[values] = struct.pack("<5Q", *record), call, packed, launch, same


class LaunchCache(KeyedCache):
    """Calls of `kernel[grid]` of one kind."""

    def __init__(
        self,
        launcher: Launcher,
        kinds: list[tuple[type, int]],
        positional: int,
        names: tuple[str, ...],
        exchange: tuple[int, int],
        watched: tuple,
        others: dict[tuple, LaunchCache | None],
        methods: tuple[_Method, ...],
    ):
        super().__init__(kinds, positional, names, exchange, watched, methods)
        self.launcher, self.watched, self.others = launcher, launcher.kernel._watched, others
        self.names = (*launcher.kernel.names[:positional], *names)

    def on_miss(self, *args: Any, **kwargs: Any) -> None:
        """Launches in Python and stores the launch. (The key is written before and after: another
        thread may change an array meanwhile.)
        """
        written = self.key(*args, **kwargs)
        if written is None and (other := self.others.get(kind(args, kwargs)) or self) is not self:
            other.launch(*args, **kwargs)
            return
        launch = self.launcher.found(args, kwargs)
        launch()
        if (
            written is None
            or type(launch) is not Launch
            or self.launcher.kernel._watched is not self.watched
            or self.key(*args, **kwargs) != written
        ):
            return
        self.remember(
            written,
            launch,
            [
                v
                for v, (_, kind) in zip((*args, *kwargs.values()), self.kinds, strict=False)
                if kind == SAME
            ],
            self._moves(launch),
        )

    def _moves(self, launch: Launch) -> list[tuple[int, int]] | None:
        values = [n for n, (_, kind) in zip(self.names, self.kinds, strict=False) if kind in GIVEN]
        return _moves(launch, {n: (i, 0) for i, n in enumerate(values)})


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


class Prepared(KeyedCache):
    """One launch, again and again."""

    def __init__(
        self,
        launch: Launch,
        values: Sequence,
        exchange: tuple[int, int],
        methods: tuple[_Method, ...],
    ):
        super().__init__((), 0, (), exchange, (), methods, launch.function.device)
        self.bound, self.arguments = launch, values

    def on_miss(self, *args: Any, **kwargs: Any) -> None:
        written = self.key()
        self.bound()
        if written is not None:
            self.remember(written, self.bound)


class Repeated(KeyedCache):
    """One launch of a kernel on a grid, of some of its arguments, of which others may be views.
    place: (namespace, name) of `launch`, where another one takes its place when the kernel reads
    other things.
    """

    def __init__(
        self,
        kernel: JitFunction,
        grid,
        values: tuple[tuple, dict],
        places: Sequence[tuple[int, tuple | None] | None],
        kinds: Sequence[tuple[type, int]],
        exchange: tuple[int, int],
        watched: tuple[tuple[dict, Any, Any], ...],
        methods: tuple[_Method, ...],
    ):
        super().__init__(kinds, len(kinds), (), exchange, watched, methods)
        self.kernel, self.grid, self.places, self.watched = kernel, grid, places, watched
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
        from tkc.runtime.jit import handing

        if handing():
            kernel[self.grid](*args, **kwargs)
            return
        launch = kernel.launcher(self.grid).found(args, kwargs)
        launch()
        if type(launch) is not Launch or (watched := kernel.watching()) is None:
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

    def _replace(
        self, args: tuple, kwargs: dict[str, Any], watched: tuple[tuple[dict, Any, Any], ...]
    ) -> None:
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
            again.place, place[0][place[1]] = place, again.launch

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
