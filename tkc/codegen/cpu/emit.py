"""LLVM IR as text: functions, loops with carried values, and sections into which hoisted code is
written later.

Text, because llvmlite's builder has neither bfloat nor vector intrinsics, and because parsing it is
fast. A type is its spelling: "float", "i64", "ptr"; `vec("float", 16)` is
"<16 x float>", `vec("float", 1)` is "float".
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np

LANES = 16  # widest vector of any code we write: one 512-bit register of float32

# what a scalar load reads where its mask says no
ZEROS = "@zeros = internal constant [64 x i8] zeroinitializer, align 64"
CALLED = re.compile(r'@"([^"]+)"')
# lines, and sections that are written later
Section: TypeAlias = "list[str | Section]"


def vec(t: str, width: int) -> str:
    return t if width == 1 else f"<{width} x {t}>"


def suffix(t: str, width: int) -> str:
    """How an intrinsic's name spells a type: v16f32."""
    short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(t, t)
    return short if width == 1 else f"v{width}{short}"


def literal(t: str, value: float | int | bool) -> str:
    """A scalar constant."""
    match t:
        case "float":
            with np.errstate(over="ignore"):
                value = float(np.float32(value))
            return f"0x{struct.unpack('>Q', struct.pack('>d', value))[0]:016X}"
        case "double":
            return f"0x{struct.unpack('>Q', struct.pack('>d', float(value)))[0]:016X}"
        case "half":
            return f"0xH{struct.unpack('>H', struct.pack('>e', float(value)))[0]:04X}"
        case "i1":
            return "true" if value else "false"
        case _:
            return str(int(value))


def constant(t: str, value: float | int | bool, width: int = 1) -> str:
    """A constant of `width` equal lanes."""
    return literal(t, value) if width == 1 else f"splat ({t} {literal(t, value)})"


def zero(t: str, width: int = 1) -> str:
    """The constant whose bits are all 0."""
    return literal(t, 0) if width == 1 else "zeroinitializer"


def iota(t: str, width: int, start: int = 0, step: int = 1) -> str:
    """The constant vector start, start + step, …"""
    if width == 1:
        return literal(t, start)
    return _vector(t, range(start, start + step * width, step) if step else [start] * width)


def _vector(t: str, numbers: Iterable[int]) -> str:
    return "<" + ", ".join(f"{t} {n}" for n in numbers) + ">"


class Module:
    """Functions of one compiled kernel, and the declarations they need. masks_short: whether the
    processor masks accesses to elements of one and two bytes, too.
    """

    def __init__(self, masks_short: bool) -> None:
        self.masks_short = masks_short
        self.functions: dict[str, Function] = {}
        self.declared: dict[str, str] = {}

    def function(
        self,
        name: str,
        result: str,
        parameters: Sequence[tuple[str, str]],
        attributes: str = "nounwind",
    ) -> Function:
        """A new function, empty so far; parameters are pairs of type and name."""
        f = self.functions[name] = Function(self, name, result, parameters, attributes)
        return f

    def __str__(self) -> str:
        return "\n".join([ZEROS, *self.declared.values(), *map(str, self.functions.values()), ""])

    def texts(self) -> dict[str, str]:
        """Of each function a module of its own, which declares what it calls: functions that two
        kernels have in common are equal texts.
        """
        return {name: self._alone(name, str(f)) for name, f in self.functions.items()}

    def _alone(self, name: str, text: str) -> str:
        called = dict.fromkeys(CALLED.findall(text))
        declared = [
            self.functions[x].declaration if x in self.functions else self.declared[x]
            for x in called
            if x != name
        ]
        return "\n".join([ZEROS, *declared, text, ""])


class Function:
    """One function under construction; `emit` appends to the current section."""

    def __init__(
        self,
        module: Module,
        name: str,
        result: str,
        parameters: Sequence[tuple[str, str]],
        attributes: str,
    ):
        self.module, self.name = module, name
        self.head = (
            f'define {result} @"{name}"({", ".join(f"{t} %{p}" for t, p in parameters)})'
            f" {attributes} {{"
        )
        self.declaration = f'declare {result} @"{name}"({", ".join(t for t, _ in parameters)})'
        self.lines: Section = ["entry:"]
        self.here, self.block, self.count = self.lines, "%entry", 0

    def __str__(self) -> str:
        return "\n".join([self.head, *_flatten(self.lines), "}"])

    # ----------------------------------------------------------------------------------------------
    def fresh(self, hint: str = "v") -> str:
        """A name that is used nowhere yet."""
        self.count += 1
        return f"%{hint}{self.count}"

    def do(self, text: str) -> None:
        """An instruction without a result."""
        self.here.append("  " + text)

    def emit(self, text: str) -> str:
        """The name of an instruction's result."""
        name = self.fresh()
        self.here.append(f"  {name} = {text}")
        return name

    def op(self, opcode: str, t: str, *args: str) -> str:
        return self.emit(f"{opcode} {t} {', '.join(args)}")

    def call(self, name: str, result: str, *args: tuple[str, str]) -> str:
        """The result of an intrinsic or another function, declared on first use."""
        return self.emit(self._call(name, result, args))

    def do_call(self, name: str, *args: tuple[str, str]) -> None:
        """A call without a result."""
        self.do(self._call(name, "void", args))

    def _call(self, name: str, result: str, args: Sequence[tuple[str, str]]) -> str:
        if name not in self.module.functions:
            # alignment is said at the call
            types = ", ".join(t.split(" align")[0] for t, _ in args)
            self.module.declared.setdefault(name, f'declare {result} @"{name}"({types})')
        return f'call {result} @"{name}"({", ".join(f"{t} {a}" for t, a in args)})'

    def select(
        self, condition: str, t: str, a: str, b: str, width: int = 1, uniform: bool = False
    ) -> str:
        """a where the condition holds, else b; of type `t` (`uniform`: one condition for all). One
        float is chosen as an integer: LLVM loads a choice between two constant floats from an array
        of both, whose bits it then takes for those of one (LLVM's issue 213251), and aborts.
        """
        if t in ("float", "double"):
            word = {"float": "i32", "double": "i64"}[t]
            a, b = (self.emit(f"bitcast {t} {x} to {word}") for x in (a, b))
            found = self.emit(f"select i1 {condition}, {word} {a}, {word} {b}")
            return self.emit(f"bitcast {word} {found} to {t}")
        kind = "i1" if uniform else vec("i1", width)
        return self.emit(f"select {kind} {condition}, {t} {a}, {t} {b}")

    def cast(self, opcode: str, a: str, x: str, b: str, width: int) -> str:
        """A value of type a as one of type b."""
        return x if a == b else self.emit(f"{opcode} {vec(a, width)} {x} to {vec(b, width)}")

    def gep(self, base: str, index: str, size: int, width: int = 1) -> str:
        """base + index elements of `size` bytes."""
        if index == "0":
            return base
        unit = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}.get(size) or f"[{size} x i8]"
        inbounds = "inbounds " if width == 1 else ""
        return self.emit(f"getelementptr {inbounds}{unit}, ptr {base}, {vec('i64', width)} {index}")

    def add(self, a: str, b: str) -> str:
        """a + b of i64."""
        if a == "0" or b == "0":
            return b if a == "0" else a
        return self.emit(f"add nsw i64 {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        """a · b of i64."""
        if a == "0" or b == "0":
            return "0"
        if a == "1" or b == "1":
            return b if a == "1" else a
        return self.emit(f"mul nsw i64 {a}, {b}")

    def splat(self, t: str, value: str, width: int) -> str:
        """A scalar in each of `width` lanes."""
        if width == 1:
            return value
        if not value.startswith("%"):
            return "zeroinitializer" if value == "null" else f"splat ({t} {value})"
        one = self.emit(f"insertelement {vec(t, width)} poison, {t} {value}, i64 0")
        return self.shuffle(t, one, [0] * width, width)

    def shuffle(
        self, t: str, value: str, lanes: Sequence[int], width: int, other: str = "poison"
    ) -> str:
        """Lanes of a vector by number, behind them those of another one."""
        pair = f"{vec(t, width)} {value}, {vec(t, width)} {other}"
        return self.emit(f"shufflevector {pair}, <{len(lanes)} x i32> {_vector('i32', lanes)}")

    def extract(self, t: str, value: str, lane: int, width: int) -> str:
        """One lane of a vector."""
        if width == 1:
            return value
        return self.emit(f"extractelement {vec(t, width)} {value}, i64 {lane}")

    def load(self, t: str, pointer: str, align: int, width: int = 1) -> str:
        """`width` elements of type t from memory; `align` in bytes."""
        return self.emit(f"load {vec(t, width)}, ptr {pointer}, align {align}")

    def store(self, t: str, value: str, pointer: str, align: int, width: int = 1) -> None:
        """`width` elements of type t to memory; `align` in bytes."""
        self.do(f"store {vec(t, width)} {value}, ptr {pointer}, align {align}")

    # ----------------------------------------------------------------------------------------------
    def section(self) -> Section:
        """A place in the current block to write straight-line code into later."""
        part: Section = []
        self.here.append(part)
        return part

    @contextmanager
    def at(self, part: Section) -> Iterator[None]:
        """Write straight-line code into a section."""
        saved, self.here = self.here, part
        yield
        self.here = saved

    def label(self, name: str) -> None:
        """The start of a block."""
        self.here.append(f"{name[1:]}:")
        self.block = name

    def branch(self, target: str) -> None:
        self.do(f"br label {target}")

    def branch_if(self, condition: str, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label {yes}, label {no}")

    def loop(
        self,
        stop: int | str,
        step: int,
        carried: Sequence[tuple[str, str]],
        body: Callable[..., Sequence[str] | None],
        start: int = 0,
    ) -> list[str]:
        """for i = start; i < stop; i += step, run at least once unless stop <= start is known.
        body(i, *values) gives the next carried values (None: there are none), the loop the last
        ones; `carried` are their types and first values.
        """
        if isinstance(stop, int) and stop <= start:
            return [v for _, v in carried]
        if isinstance(stop, int) and stop <= start + step:
            return list(body(str(start), *(v for _, v in carried)) or ())
        before, head, i = self.block, self.fresh("loop"), self.fresh("i")
        self.branch(head)
        self.label(head)
        phis = self.section()
        values = [self.fresh("c") for _ in carried]
        after = list(body(i, *values) or ())
        following = self.emit(f"add nuw nsw i64 {i}, {step}")
        more, done = self.emit(f"icmp slt i64 {following}, {stop}"), self.fresh("done")
        self.branch_if(more, head, done)
        phis.append(f"  {i} = phi i64 [{start}, {before}], [{following}, {self.block}]")
        for name, (t, first), new in zip(values, carried, after, strict=True):
            phis.append(f"  {name} = phi {t} [{first}, {before}], [{new}, {self.block}]")
        self.label(done)
        return after

    def when(self, condition: str, body: Callable[[], object]) -> None:
        """body() where the condition, an i1, holds."""
        yes, no = self.fresh("then"), self.fresh("end")
        self.branch_if(condition, yes, no)
        self.label(yes)
        body()
        self.branch(no)
        self.label(no)


def _flatten(lines: Section) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from _flatten(line)
