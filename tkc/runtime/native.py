"""Door 1 in machine code: a launch that was made before, of tensors whose library answers in C.
native.ll is that code.

A library that implements DLPack's C exchange API (torch >= 2.10) says through one C call where a
tensor lies, its extents, strides, element type and device, and through another which stream is
current. `door(launcher, …)` makes a builtin function that takes the place of `kernel[grid]` for
calls of one kind (so many positional arguments, these names, these types). It writes down in words
of 8 bytes what code and parameters may depend on, looks them up and calls the driver:

    words    of a tensor        its address modulo 16, device, rank and element type, extents and strides
             of a number        whether it is 1, a multiple of 16, needs 64 bits (of a constexpr: its value); of None, a bool, a str or a tuple: which object it is
             of the tensors     which share bytes; and the stream
    known    {words: entry}     entry: (record, what it needs …). The record has the driver's cuLaunchKernelEx, its arguments and the kernel's parameters, which are copied and
                                given the tensors' addresses and the numbers on the way; where
                                tensor maps hold addresses, ({addresses and numbers: entry},)

Whatever is not as it was, also a global that the kernel reads, TKC_DEBUG, a freed workspace, or an
error of the driver, goes the general way (`missed`), which also fills `known`. So nothing here
decides what a launch is; it can only say that one is like another. Where LLVM, the API or ordinary
CPython is missing, there is no such door, and Python's stays.
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

from tkc.runtime import driver
from tkc.runtime.arrays import describe
from tkc.runtime.launch import Launch
from tkc.runtime.specialize import overlaps

if TYPE_CHECKING:
    from tkc.runtime.jit import JitFunction, Launcher

API, MAJOR, KDLCUDA = "__dlpack_c_exchange_api__", 1, 2
WORDS, VALUES, BLOCK, PARAMETERS = (
    512,
    32,
    4096,
    256,
)  # of one call, at most; BLOCK: bytes of its parameters
LAST = 62  # words of the call that a door was asked for last, at most
KNOWN = 4096  # launches remembered by a door, and for each, values
TENSOR, NUMBER, REAL, INT, FLOAT, SAME, PLACE = range(
    7
    # arguments: NUMBER and REAL are given to the kernel, INT and FLOAT compiled into it; of a
    # PLACE, a
    # tensor, all but the address is known
)
GIVEN = TENSOR, NUMBER, REAL, PLACE
FULL, HALF, SHORT, STAYS = (
    0,
    1,
    2,
    255,
)  # how a value becomes a parameter: 8 bytes, the lower 4, a float32, not at all

FIELDS = (
    "positional",
    "named",
    "watched",
    "values",
    "device",
    "known",
    "slow",
    "none",
    "describe",
    "stream",
    "generation",
    "kinds",
    "names",
    "watches",
    "last",
)  # of a door, 8 bytes each


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


FASTCALL_KEYWORDS = 0x80 | 0x02
_content, _pointer, _builtin = (
    ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi))
    for name, *types in (
        ("PyBytes_AsString", ctypes.c_void_p, ctypes.py_object),
        ("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p),
        ("PyCFunction_NewEx", ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p),
    )
)


@cache
def _methods() -> tuple[_Method, ...] | None:
    """`launch`, `words` and `find` as methods for CPython, for as long as the process lives. None
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
            .export_symbol("words")
            .export_symbol("find")
            .link(engine(), "tkc_launcher")
        )
        methods = tuple(
            _Method(n, library[n.decode()], FASTCALL_KEYWORDS, None)
            for n in (b"launch", b"words", b"find")
        )
    except (ImportError, OSError, RuntimeError):
        return None
    _methods.library = library
    return methods


def _object() -> bytes:
    """The program's object code, from the disk cache where it was made before."""
    from tkc.codegen.cpu.running import host
    from tkc.runtime import cache, fingerprint

    llvm, machine, processor, _ = host()
    numbers = {f: i for i, f in enumerate(FIELDS)} | {
        n: globals()[n]
        for n in (
            "WORDS",
            "VALUES",
            "BLOCK",
            "PARAMETERS",
            "TENSOR",
            "NUMBER",
            "REAL",
            "INT",
            "FLOAT",
            "HALF",
            "SHORT",
            "PLACE",
            "LAST",
        )
    }
    numbers |= {
        "ENDS": 2 * VALUES,
        "ROOM": WORDS - 4 - 2 * 64 - 2 * VALUES,
        "type": object.__basicsize__ - 8,
    }  # where an argument may still begin; after the count of references
    program = reduce(
        lambda text, n: text.replace(f"{{{n}}}", str(numbers[n])),
        numbers,
        Path(__file__).with_suffix(".ll").read_text(),
    )
    disk, key = (
        cache.disk(),
        fingerprint.digest(
            [
                ("launcher", program.encode()),
                ("processor", processor.encode()),
                ("llvm", str(llvm.llvm_version_info).encode()),
            ]
        ),
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
    torch = sys.modules.get("torch")
    if kind is getattr(getattr(torch, "nn", None), "Parameter", None):
        kind = torch.Tensor
    try:
        address = _pointer(vars(kind)[API], b"dlpack_exchange_api")
    except (KeyError, ValueError):
        return None
    while address and ctypes.c_uint32.from_address(address).value != MAJOR:
        address = ctypes.c_void_p.from_address(address + 8).value  # a table of an older version
    found = address and tuple(ctypes.c_void_p.from_address(address + at).value for at in (40, 48))
    return found if found and all(found) else None


def kind(args: Sequence, kwargs: dict[str, Any]) -> tuple:
    return tuple(map(type, args)), *((n, type(v)) for n, v in kwargs.items())


def _itself(value) -> bool:
    """Whether a value is the same as long as it is the same object."""
    return (
        type(value) in (bool, int, float, str, type(None), FunctionType)
        or type(value) is tuple
        and all(map(_itself, value))
        or type(value).__module__ == "tkc.ir.dtypes"
    )


def door(
    launcher: Launcher,
    args: Sequence,
    kwargs: dict[str, Any],
    watched: Sequence[tuple[dict, Any, Any]],
    others: dict[tuple, Door | None],
) -> Door | None:
    """A door for calls like this one. watched: (namespace, name, value) that must stay so; others:
    doors for the same grid, by the kind of their calls. None where such calls cannot be told in
    words, or there is no machine code."""
    kinds, kernel = [], launcher.kernel
    given = {n for n, constant in zip(kernel.names, kernel.constexpr, strict=False) if not constant}
    for name, v in (*zip(kernel.names, args, strict=False), *kwargs.items()):
        what = (
            (NUMBER if name in given else INT)
            if type(v) is int
            else (
                (REAL if name in given else FLOAT)
                if type(v) is float
                else (
                    SAME if _itself(v) else TENSOR if name in given and _exchange(type(v)) else None
                )
            )
        )
        if what is None:
            return None
        kinds.append((type(v), what))
    exchanges = {_exchange(t) for t, k in kinds if k == TENSOR}
    if (
        len(exchanges) != 1
        or len(kinds) > VALUES
        or not all(type(space) is dict for space, *_ in watched)
        or driver.launch_entry() is None
        or not (methods := _methods())
    ):
        return None
    return Door(
        launcher,
        kinds,
        len(args),
        tuple(map(sys.intern, kwargs)),
        exchanges.pop(),
        tuple(watched),
        others,
        methods,
    )


def prepared(launch: Callable, values: Sequence) -> Callable[[], None] | None:
    """The launch as a builtin function of nothing, which keeps the values alive; None where there
    can be none.
    """
    exchange = next((e for v in values if (e := _exchange(type(v)))), None)
    if (
        type(launch) is not Launch
        or exchange is None
        or driver.launch_entry() is None
        or not (methods := _methods())
    ):
        return None
    return Prepared(launch, values, exchange, methods).launch


def teller(
    values: Sequence, varying: Sequence[bool] | None = None
) -> tuple[Callable[..., bytes | None], int, Callable, dict] | None:
    """A function of values like these that tells, as bytes, what launches of them depend on (None
    for values of other types), and where what follows tells only of this call: addresses, numbers
    that vary. Behind them a function that gives what a dictionary has under what a call of it
    depends on, or None, and that dictionary.

    Values: torch's tensors, numbers, texts (by identity) and None. varying: which numbers tell only
    whether they are 1, multiples of 16 or need 64 bits. None where there is no machine code for
    such values.
    """
    kinds = []
    for v, varies in zip(values, varying or [False] * len(values), strict=True):
        what = (
            (NUMBER if varies else INT)
            if type(v) is int
            else (
                (REAL if varies else FLOAT)
                if type(v) is float
                else SAME
                if _itself(v)
                else TENSOR
                if _exchange(type(v))
                else None
            )
        )
        if what is None:
            return None
        kinds.append((type(v), what))
    exchanges = {_exchange(t) for t, k in kinds if k == TENSOR}
    if len(exchanges) != 1 or len(kinds) > VALUES or not (methods := _methods()):
        return None
    made = Teller(
        kinds, len(kinds), (), (exchanges.pop()[0], 0), (), methods
    )  # no stream: a word of 0
    return made.words, -8 * (made.values + 1), made.find, made.known


def repeated(
    kernel: JitFunction,
    grid,
    args: Sequence,
    kwargs: dict[str, Any],
    given: Sequence,
    places: dict[str, tuple[int, tuple | None]],
) -> Repeated | None:
    """A launch of such arguments that is made again and again, of others given: `.launch` is a
    builtin function of them. given: tensors and numbers as they are now; later ones are like these,
    in their types and of tensors in all but the address, and share bytes where these do: who calls
    has looked. places: of arguments by name, which of those it is, and (extents, strides, elements
    before it) where it is a view of that; the other arguments stay what they are. None where there
    is no machine code for it, or where views are of tensors that share bytes, and may share some
    themselves, or not.
    """
    names = (*kernel.names[: len(args)], *kwargs)
    constant = dict(zip(kernel.names, kernel.constexpr, strict=False))
    kinds: list = [None] * len(given)
    for name, v in zip(names, (*args, *kwargs.values()), strict=False):
        if name not in places:
            if not _itself(v):
                return None
            continue
        at, view = places[name]
        x, fixed = given[at], constant.get(name, True)  # options are fixed too
        what = (
            (INT if fixed else NUMBER)
            if type(x) is int
            else (
                (FLOAT if fixed else REAL)
                if type(x) is float
                else PLACE
                if not fixed and _exchange(type(x))
                else None
            )
        )
        if (
            what is None
            or what == PLACE
            and not _there(x)
            or kinds[at] not in (None, (type(x), what))
        ):
            return None
        kinds[at] = type(x), what
    exchanges, tensors = (
        {_exchange(t) for t, k in kinds if k == PLACE},
        [describe(x) for x, (_, k) in zip(given, kinds, strict=False) if k == PLACE],
    )
    if any(view for _, view in places.values()) and overlaps(tensors):
        return None
    if (
        len(exchanges) != 1
        or len(kinds) > VALUES
        or not isinstance(grid, (int, tuple))
        or not all(type(space) is dict for space, *_ in kernel.watching() or [(None,)])
        or driver.launch_entry() is None
        or not (methods := _methods())
    ):
        return None
    return Repeated(
        kernel,
        grid,
        (tuple(args), dict(kwargs)),
        tuple(places.get(n) for n in names),
        kinds,
        exchanges.pop(),
        methods,
    )


class Known(dict):
    """What is known by words. last: what was asked for last, which machine code has by its address:
    gone when something else takes its place.
    """

    def __init__(self):
        super().__init__()
        self.last = ctypes.create_string_buffer(8 * (2 + LAST))

    def __setitem__(self, key, value) -> None:
        taken = (
            []
            # what goes lives until `last` has forgotten it: another thread may put something there,
            # or
            # ask for it, at any time
        )
        while super().setdefault(key, value) is not value:
            taken.append(super().pop(key, None))
            self.last[:8] = bytes(8)

    def clear(self) -> None:
        taken = []
        try:
            while True:
                taken.append(super().popitem())
        except KeyError:
            pass
        self.last[:8] = bytes(8)


class Machine:
    """`launch` is the builtin function; `words` gives what it would look up, as bytes (None: the
    call is of another kind); `missed` is what it calls where it does not know a launch.
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
        self.kinds, self.known, self.values, slow = (
            kinds,
            Known(),
            sum(k in GIVEN for _, k in kinds),
            self.missed,
        )
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
            "known": id(self.known),
            "slow": id(slow),
            "none": id(None),
            "describe": exchange[0],
            "stream": exchange[1],
            "generation": ctypes.addressof(driver.generation),
            **dict(zip(("kinds", "names", "watches"), map(_content, tables), strict=False)),
            "last": ctypes.addressof(self.known.last),
        }
        owner = (
            struct.pack(f"<{len(FIELDS)}Q", *(fields[f] for f in FIELDS)),
            tables,
            self.known,
            slow,
            kinds,
            names,
            watched,
        )  # all that its addresses are of
        self.exchange, self.methods = exchange, methods
        self.launch, self.words, self.find = (
            _builtin(ctypes.addressof(m), owner, None) for m in methods
        )

    def remember(
        self,
        written: bytes,
        launch: Launch,
        same: Sequence = (),
        moves: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """What was just launched, under its words. same: objects whose addresses are among them;
        moves: of each parameter, which value it is and how, and what is added (None: they stay as
        they are).
        """
        split = len(written) - 8 * self.values
        words, values = written[:split], written[split:]
        generation, stream = driver.generation.value, int.from_bytes(words[-8:], "little")
        call, packed = launch.calls.get(stream), launch.kept.get(stream)
        if (
            getattr(call, "native", None) is None
            or driver.poison
            or launch.epoch != launch.function.epoch
        ):
            return
        if len(self.known) >= KNOWN:
            self.known.clear()
        record = generation, *call.native
        if moves is not None and packed.size <= BLOCK and len(moves) <= PARAMETERS:
            tables = [
                struct.pack(f"<{len(t)}Q", *t)
                for t in (packed.places, [how for how, _ in moves], [step for _, step in moves])
            ]
            self.known[words] = (
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
        by_values = self.known.setdefault(words, ({},))[0]
        if len(by_values) >= KNOWN:
            by_values.clear()
        by_values[values] = struct.pack("<5Q", *record), call, packed, launch, same


class Door(Machine):
    """Calls of `kernel[grid]` of one kind."""

    def __init__(
        self,
        launcher: Launcher,
        kinds: list[tuple[type, int]],
        positional: int,
        names: tuple[str, ...],
        exchange: tuple[int, int],
        watched: tuple,
        others: dict[tuple, Door | None],
        methods: tuple[_Method, ...],
    ):
        super().__init__(kinds, positional, names, exchange, watched, methods)
        self.launcher, self.watched, self.others, self.names = (
            launcher,
            launcher.kernel._watched,
            others,
            (*launcher.kernel.names[:positional], *names),
        )

    def missed(self, *args, **kwargs) -> None:
        """The general way, remembered. (What a call is told by is asked before and after: another
        thread may change an array meanwhile.)
        """
        written = self.words(*args, **kwargs)
        if written is None and (other := self.others.get(kind(args, kwargs)) or self) is not self:
            return other.launch(*args, **kwargs)
        launch = self.launcher.found(args, kwargs)
        launch()
        if (
            written is None
            or type(launch) is not Launch
            or self.launcher.kernel._watched is not self.watched
            or self.words(*args, **kwargs) != written
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
    order = {
        i: values[n] for i, n in enumerate(launch.arguments[0]) if n in values
    }  # of each argument at run time; an integer that is 1 is none
    moves = []
    for p in launch.interface.parameters:
        how = (
            FULL
            if p.size == 8 and p.type[0] in "usb"
            else HALF
            if p.size == 4 and p.type[0] in "usb"
            else SHORT
            if p.type == "f32"
            else None
        )
        if p.kind == "map" or p.kind in ("pointer", "scalar") and how is None:
            return None
        which, step = (
            order.get(p.argument, (STAYS, 0)) if p.kind in ("pointer", "scalar") else (STAYS, 0)
        )
        moves.append((which if which == STAYS else which | how << 8, step))
    return moves


class Teller(Machine):
    """Calls that are only told apart."""

    def missed(self, *args) -> None:
        raise NotImplementedError


class Prepared(Machine):
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

    def missed(self) -> None:
        written = self.words()
        self.bound()
        if written is not None:
            self.remember(written, self.bound)


class Repeated(Machine):
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
        methods: tuple[_Method, ...],
    ):
        self.watched = kernel.watching()
        super().__init__(kinds, len(kinds), (), exchange, self.watched, methods)
        self.kernel, self.grid, self.places, self.place = kernel, grid, places, None
        self.arguments = (
            tuple(None if p else v for v, p in zip(values[0], places, strict=False)),
            {
                n: None if p else v
                for (n, v), p in zip(values[1].items(), places[len(values[0]) :], strict=False)
            },
        )  # keeps no tensor

    def missed(self, *given) -> None:
        """The general way, remembered."""
        kernel, (args, kwargs), written = self.kernel, self.arguments, self.words(*given)
        made = [
            v if p is None else _shown(given[p[0]], p[1])
            for v, p in zip((*args, *kwargs.values()), self.places, strict=False)
        ]
        args, kwargs = made[: len(args)], dict(zip(kwargs, made[len(args) :], strict=False))
        from tkc.runtime.jit import handing

        if handing():
            return kernel[self.grid](*args, **kwargs)
        launch = kernel.launcher(self.grid).found(args, kwargs)
        launch()
        if type(launch) is not Launch or (watched := kernel.watching()) is None:
            return
        if len(watched) != len(self.watched) or any(
            a is not b
            for one, other in zip(watched, self.watched, strict=False)
            for a, b in zip(one, other, strict=False)
        ):
            again = Repeated(
                kernel,
                self.grid,
                (args, kwargs),
                self.places,
                self.kinds,
                self.exchange,
                self.methods,
            )
            if place := self.place:
                again.place, place[0][place[1]] = place, again.launch
            return
        if written is None or self.words(*given) != written:
            return
        order = [i for i, (_, kind) in enumerate(self.kinds) if kind in GIVEN]
        names = (*kernel.names[: len(args)], *kwargs)
        self.remember(
            written,
            launch,
            (),
            _moves(
                launch,
                {
                    n: (order.index(p[0]), p[1][2] * given[p[0]].element_size() if p[1] else 0)
                    for n, p in zip(names, self.places, strict=False)
                    if p and p[0] in order
                },
            ),
        )


def _there(x) -> bool:
    return x.is_cuda


def _shown(x, view: tuple | None):
    """A tensor, or a view of it."""
    return x if view is None else x.as_strided(view[0], view[1], x.storage_offset() + view[2])
