"""Door 1 in machine code: a launch that was made before, of tensors whose library answers in C. native.ll is that code.

A library that implements DLPack's C exchange API (torch >= 2.10) says through one C call where a tensor lies, its extents, strides, element type and device, and through another which stream is
current. `door(launcher, …)` makes a builtin function that takes the place of `kernel[grid]` for calls of one kind (so many positional arguments, these names, these types). It writes down in
words of 8 bytes what code and parameters may depend on, looks them up and calls the driver:

    words    of a tensor        its address modulo 16, device, rank and element type, extents and strides
             of a number        its value; of None, a bool or a str: which object it is
             of the tensors     which share bytes; and the stream
    known    {words: entry}     entry: (record, what it needs …). The record has the driver's cuLaunchKernelEx, its arguments and the kernel's parameters, which are copied and
                                given the tensors' addresses on the way; where tensor maps hold addresses, ({addresses: entry},)

Whatever is not as it was, also a global that the kernel reads, TKC_DEBUG, a freed workspace, or an error of the driver, goes the general way (`missed`), which also fills `known`. So nothing here
decides what a launch is; it can only say that one is like another. Where LLVM, the API or ordinary CPython is missing, there is no such door, and Python's stays.
"""
from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.runtime import driver
from tkc.runtime.launch import Launch, Packed

if TYPE_CHECKING:
    from tkc.runtime.jit import Launcher

API, MAJOR = "__dlpack_c_exchange_api__", 1
WORDS, TENSORS, BLOCK, PARAMETERS = 512, 32, 4096, 256         # of one call, at most; BLOCK: bytes of its parameters
KNOWN = 4096                                    # launches remembered by a door, and for each, addresses
TENSOR, INT, FLOAT, SAME = range(4)

FIELDS = ("positional", "named", "watched", "tensors", "known", "slow", "none", "describe", "stream", "generation", "kinds", "names", "watches")             # of a door, 8 bytes each


class _Method(ctypes.Structure):
    """PyMethodDef."""
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


FASTCALL_KEYWORDS = 0x80 | 0x02
_content, _pointer, _builtin = (ctypes.PYFUNCTYPE(*types)((name, ctypes.pythonapi)) for name, *types in (
    ("PyBytes_AsString", ctypes.c_void_p, ctypes.py_object), ("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p),
    ("PyCFunction_NewEx", ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)))


@cache
def _methods() -> tuple[_Method, _Method] | None:
    """`launch` and `words` as methods for CPython, for as long as the process lives. None where they cannot be made: another Python, one without its lock, one that was built otherwise."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)() or (object.__basicsize__, ctypes.sizeof(ctypes.c_void_p)) != (16, 8): return None
    try:
        from tkc.codegen.cpu.running import engine, host
        llvm, *_ = host()
        library = llvm.JITLibraryBuilder().add_object_img(_object()).add_current_process().export_symbol("launch").export_symbol("words").link(engine(), "tkc_launcher")
    except (ImportError, OSError, RuntimeError): return None
    _methods.library = library
    return tuple(_Method(n, library[n.decode()], FASTCALL_KEYWORDS, None) for n in (b"launch", b"words"))


def _object() -> bytes:
    """The program's object code, from the disk cache where it was made before."""
    from tkc.codegen.cpu.running import host
    from tkc.runtime import cache, fingerprint
    llvm, machine, processor, _ = host()
    numbers = {f: i for i, f in enumerate(FIELDS)} | {n: globals()[n] for n in ("WORDS", "TENSORS", "BLOCK", "PARAMETERS", "TENSOR", "INT", "FLOAT")}
    numbers |= {"ENDS": 2 * TENSORS, "ROOM": WORDS - 4 - 2 * 64 - 2 * TENSORS, "type": object.__basicsize__ - 8}                                            # where an argument may still begin; after the count of references
    program = reduce(lambda text, n: text.replace(f"{{{n}}}", str(numbers[n])), numbers, Path(__file__).with_suffix(".ll").read_text())
    disk, key = cache.disk(), fingerprint.digest([("launcher", program.encode()), ("processor", processor.encode()), ("llvm", str(llvm.llvm_version_info).encode())])
    if disk and (found := disk.get(key)): return found["object"]
    module = llvm.parse_assembly(program)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    made = machine.emit_object(module)
    if disk: disk.put(key, {"object": made})
    return made


def _exchange(kind: type) -> tuple[int, int] | None:
    """The two C functions of a tensor type, what describes a tensor and what gives the stream; None where it has none. (A type derived from one may answer otherwise in Python; a Parameter does not.)"""
    torch = sys.modules.get("torch")
    if kind is getattr(getattr(torch, "nn", None), "Parameter", None): kind = torch.Tensor
    try: address = _pointer(vars(kind)[API], b"dlpack_exchange_api")
    except (KeyError, ValueError): return None
    while address and ctypes.c_uint32.from_address(address).value != MAJOR: address = ctypes.c_void_p.from_address(address + 8).value         # a table of an older version
    found = address and tuple(ctypes.c_void_p.from_address(address + at).value for at in (40, 48))
    return found if found and all(found) else None


def kind(args: Sequence, kwargs: dict[str, Any]) -> tuple: return tuple(map(type, args)), *((n, type(v)) for n, v in kwargs.items())


def door(launcher: Launcher, args: Sequence, kwargs: dict[str, Any], watched: Sequence[tuple[dict, Any, Any]], others: dict[tuple, Door | None]) -> Door | None:
    """A door for calls like this one. watched: (namespace, name, value) that must stay so; others: doors for the same grid, by the kind of their calls. None where such calls
    cannot be told in words, or there is no machine code."""
    if driver.launch_entry() is None: return None
    kinds, kernel = [], launcher.kernel
    fixed = {n for n, constant in zip(kernel.names, kernel.constexpr) if constant}
    for name, v in (*zip(kernel.names, args), *kwargs.items()):
        what = INT if type(v) is int else FLOAT if type(v) is float else SAME if type(v) in (bool, str, type(None)) else TENSOR if name not in fixed and _exchange(type(v)) else None
        if what is None: return None
        kinds.append((type(v), what))
    tensors = {_exchange(t) for t, k in kinds if k == TENSOR}
    if len(tensors) != 1 or len(args) + len(kwargs) > TENSORS or not all(type(space) is dict for space, *_ in watched) or (methods := _methods()) is None: return None
    return Door(launcher, kinds, len(args), tuple(map(sys.intern, kwargs)), tensors.pop(), tuple(watched), others, methods)


class Door:
    """`launch` is the builtin function, `words` another one that gives what it would look up (None: the call is of another kind)."""

    def __init__(self, launcher: Launcher, kinds: list[tuple[type, int]], positional: int, names: tuple[str, ...], exchange: tuple[int, int], watched: tuple, others: dict[tuple, Door | None],
                 methods: tuple[_Method, _Method]):
        self.launcher, self.kinds, self.watched, self.others, self.known = launcher, kinds, launcher.kernel._watched, others, {}
        tables = [b"".join(struct.pack(f"<{len(row)}Q", *row) for row in rows) for rows in ([(id(t), k) for t, k in kinds], [(id(n),) for n in names], [tuple(map(id, w)) for w in watched])]
        self.tensors, slow = sum(kind == TENSOR for _, kind in kinds), self.missed
        fields = {"positional": positional, "named": len(names), "watched": len(watched), "tensors": self.tensors, "known": id(self.known), "slow": id(slow), "none": id(None), "describe": exchange[0], "stream": exchange[1],
                  "generation": ctypes.addressof(driver.generation), **dict(zip(("kinds", "names", "watches"), map(_content, tables)))}
        owner = struct.pack(f"<{len(FIELDS)}Q", *(fields[f] for f in FIELDS)), tables, self.known, slow, kinds, names, watched          # all that its addresses are of
        self.launch, self.words = (_builtin(ctypes.addressof(m), owner, None) for m in methods)

    def missed(self, *args, **kwargs) -> None:
        """The general way, remembered. (What a call is told by is asked before and after: another thread may change an array meanwhile.)"""
        written = self.words(*args, **kwargs)
        if written is None and (other := self.others.get(kind(args, kwargs)) or self) is not self: return other.launch(*args, **kwargs)
        launch = self.launcher.found(args, kwargs)
        launch()
        if written is None or type(launch) is not Launch or self.launcher.kernel._watched is not self.watched: return
        words, addresses = written[:-8 * self.tensors], written[-8 * self.tensors:]
        generation, stream = driver.generation.value, int.from_bytes(words[-8:], "little")
        call, packed = launch.calls.get(stream), launch.kept.get(stream)
        if getattr(call, "native", None) is None or driver.poison or launch.epoch != launch.function.epoch or self.words(*args, **kwargs) != written: return
        if len(self.known) >= KNOWN: self.known.clear()
        same = [v for v, (_, kind) in zip((*args, *kwargs.values()), self.kinds) if kind == SAME]                                   # whose addresses are in the words
        record = generation, *call.native
        if (moves := self._moves(launch, packed, kwargs)) is not None:
            tables = [struct.pack(f"<{len(t)}Q", *t) for t in (packed.places, moves)]
            self.known[words] = struct.pack("<10Q", *record, packed.base, packed.size, len(packed.places), *map(_content, tables)), tables, call, packed, launch, same
            return
        by_address = self.known.setdefault(words, ({},))[0]
        if len(by_address) >= KNOWN: by_address.clear()
        by_address[addresses] = struct.pack("<5Q", *record), call, packed, launch, same

    def _moves(self, launch: Launch, packed: Packed, kwargs: dict[str, Any]) -> list[int] | None:
        """For each parameter the tensor whose address it is (TENSORS: it is none). None where addresses are elsewhere too, in tensor maps."""
        names, parameters = launch.arguments[0], launch.interface.parameters
        if any(p.kind == "map" or p.kind == "pointer" and p.size != 8 for p in parameters) or packed.size > BLOCK or len(parameters) > PARAMETERS: return None
        called = zip((*self.launcher.kernel.names[:len(self.kinds) - len(kwargs)], *kwargs), self.kinds)
        order = [names.index(n) for n, (_, kind) in called if kind == TENSOR]                                                      # of each tensor of the call, its number at run time
        return [order.index(p.argument) if p.kind == "pointer" else TENSORS for p in parameters]
