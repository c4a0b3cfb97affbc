"""Level 4 to PTX: one walk over the kernel, one function an operation.

Each family file registers its functions in EMITTERS:

    @emitter(tile.ProgramId)
    def program_id(e: Emitter, op): e.set(op.result, …)

`e.operand(value)`, `e.tile(value)`, … give what an SSA value became (values.py says what that is); `e.set` records it.  A tile
that shares its registers with others from a loop's entry to its exit has a *home* (homes.py
decides): `e.home(value)` names the registers to write to, and `e.set` moves what was written
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from xdsl.dialects.builtin import DenseArrayBase, ModuleOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tkc.codegen.ptx.ptxas import roomy
from tkc.codegen.ptx.values import Array, Tile, compute_class, from_bits, packing
from tkc.codegen.ptx.writer import Operand, Writer, class_of
from tkc.errors import CompileError, RoomError
from tkc.ir.interface import Interface, Parameter, Site
from tkc.ir.ranges import Ranges
from tkc.ir.target import Target
from tkc.ir.text import location_of
from tkc.ir.threads import Identity
from tkc.ir.tile import Kernel
from tkc.ir.types import ArrayType, PointerType, TileType, bits, is_bool, is_float, is_unsigned

EMITTERS: dict[type[Operation], Callable] = {}
FAMILIES = (
    "scalars",
    "conversions",
    "control",
    "elementwise",
    "shape",
    "reduce",
    "global_memory",
    "atomics",
    "shared_views",
    "shared_memory",
    "cp_async",
    "mma",
    "barriers",
    "convert",
    "debugging",
    "sort",
    "wgmma",
    "tma",
    "mbarrier",
    "roles",
    "inline",
    "programs",
)


def emitter(*classes: type[Operation]):
    """Registers a function `(emitter, operation)` for operation classes."""

    def register(function):
        EMITTERS.update(dict.fromkeys(classes, function))
        return function

    return register


@dataclass(frozen=True)
class Instance:
    """The warps that run an operation together: all of the block, or one copy of a role.

    first: their first warp in the block; barrier: the hardware barrier on which they alone meet.
    single: only one thread runs (the elected one of a role). copies, who: how many of a role run
    side by side, at different programs, and which of them this is.
    """

    warps: int
    first: Operand = 0
    barrier: Operand = 0
    single: bool = False
    name: str = "block"
    copies: int = 1
    who: Operand = 0

    @property
    def threads(self) -> int:
        return 1 if self.single else 32 * self.warps


@dataclass(frozen=True)
class PtxProgram:
    """A kernel as PTX, how to launch it, and remarks of the emission (accesses that could not be
    vectorised, copies).
    """

    text: str
    interface: Interface
    notes: list[str]

    @property
    def roomy(self) -> str:
        """ptxas.roomy of the text."""
        return roomy(self.text, self.interface.threads)


class Emitter:
    def __init__(self, kernel: Kernel, target: Target, debug: int = 0):
        self.kernel, self.target, self.w, self.debug = kernel, target, Writer(), debug
        self.sites: list[Site] = []  # checks of TKC_DEBUG so far
        self.instance = Instance(kernel.warps)
        self.values: dict[SSAValue, object] = {}
        self.homes: dict[
            SSAValue, list[str]
        ] = {}  # registers a tile must live in; homes.py fills it
        self.home_registers: set[str] = set()
        self.sums: dict[str, tuple[str, int]] = {}  # registers that are another one and a constant
        self.parameters: dict[Parameter, str] = {}
        self.notes: list[str] = []
        self.threads = 32 * kernel.warps  # of the block; roles add theirs
        self.shared_bytes = kernel.integer("shared_bytes")
        self.uses_shared = False
        self.globals: list[str] = []  # declarations before the entry
        self.directives: list[str] = []  # of the entry, e.g. ".minnctapersm 1"
        self.isa = tuple(map(int, target.ptx.split(".")))
        self.ranges = Ranges()
        self.op: Operation = kernel
        self.cluster = _cluster(kernel)
        self.persistent = "persistent" in kernel.attributes
        self.wide = (
            tuple(kernel.attributes["wide"].get_values()) if "wide" in kernel.attributes else ()
        )  # arrays whose extents may need 64 bits
        self.uniform = (
            ""
            if any(isinstance(op, Identity) and op.what.data == "thread" for op in kernel.walk())
            else ".uni"
        )  # of branches

    # ---- what values are
    # ----------------------------------------------------------------------------------------
    def operand(self, value: SSAValue) -> Operand:
        """A scalar: a register or a number."""
        return self.values[value]

    def register(self, value: SSAValue) -> str:
        """A scalar in a register."""
        return self.w.register(self.values[value], compute_class(value.type))

    def constant(self, value: SSAValue) -> int | float | None:
        """A scalar's number where it is known now."""
        found = self.values.get(value)
        return None if isinstance(found, str) or not isinstance(found, (int, float)) else found

    def tile(self, value: SSAValue) -> Tile:
        return self.values[value]

    def value(self, value: SSAValue):
        return self.values[value]

    def home(self, value: SSAValue) -> list[str] | None:
        """The registers a tile has to be in, if it may not choose."""
        return self.homes.get(value)

    def set(self, value: SSAValue, found, alias: bool = False) -> None:
        """Records what a value is.  A tile with a home is moved there.  Registers that are some other value's home are copied,
        as they will change, unless `alias`: homes.py has seen that they live as long as this value.
        """
        home = self.homes.get(value)
        if home is not None:
            self.w.moves(list(zip(home, found.registers, strict=True)))
            found = replace(found, registers=home)
        elif not alias and self.home_registers:
            if isinstance(found, Tile):
                found = replace(found, registers=[self.owned(r) for r in found.registers])
            elif isinstance(found, str):
                found = self.owned(found)
        self.values[value] = found

    def free_home(self, value: SSAValue, *operands: SSAValue | None) -> list[str] | None:
        """The value's home, unless one of the operands, all of which are read while it is written,
        lives there too.
        """
        home = self.homes.get(value)
        if home and any(
            isinstance(t := self.values.get(v), Tile) and not set(home).isdisjoint(t.registers)
            for v in operands
        ):
            return None
        return home

    def owned(self, register: Operand) -> Operand:
        """The register, or a copy where it is a home: its value will change."""
        if register not in self.home_registers:
            return register
        copy = self.w.new(class_of(register))
        self.w.move(copy, register)
        return copy

    def fail(self, message: str):
        raise CompileError(message, location_of(self.op))

    def need(self, isa: str) -> None:
        """The instruction being written needs that ISA version."""
        self.isa = max(self.isa, tuple(map(int, isa.split("."))))

    # ---- elements of tiles
    # --------------------------------------------------------------------------------------
    def element(self, tile: Tile, index: int) -> Operand:
        """Element `index` of this thread's part of a tile as a scalar (narrow ones widened; see
        values.py).
        """
        pack, raw = tile.pack, tile.registers[index // tile.pack]
        if not isinstance(raw, str):
            if is_bool(tile.element):
                return bool(raw)
            return from_bits(
                raw >> index % pack * bits(tile.element) & (1 << bits(tile.element)) - 1,
                tile.element,
            )
        return self.unpacked(raw, tile.element, index % pack)

    def elements(self, tile: Tile) -> list[Operand]:
        return [self.element(tile, i) for i in range(tile.count)]

    def unpacked(self, raw: str, element: Attribute, part: int = 0) -> Operand:
        """Part `part` of a 32-bit register of narrow elements, widened."""
        from tkc.codegen.ptx.conversions import widen

        return raw if is_bool(element) or bits(element) >= 32 else widen(self, raw, element, part)

    def packed(
        self, elements: list[Operand], element: Attribute, into: str | None = None
    ) -> Operand:
        """One register of a tile from its widened elements (one, two or four of them)."""
        from tkc.codegen.ptx.conversions import narrow

        return narrow(self, elements, element, into)

    def build(self, t: TileType, elements: list[Operand], into: list[str] | None = None) -> Tile:
        """A tile from widened elements."""
        p = packing(t.element, len(elements))
        return Tile.of(
            t,
            [
                self.packed(elements[i : i + p], t.element, into[i // p] if into else None)
                for i in range(0, len(elements), p)
            ],
        )

    def nonnegative(self, value: SSAValue) -> bool:
        """Whether an integer is known not to be negative."""
        found = self.ranges.of(value)
        return found is not None and found.lo >= 0

    # ---- who we are
    # ---------------------------------------------------------------------------------------------
    def special(self, name: str) -> str:
        """A 32-bit special register such as %tid.x."""
        return self.w.hoist(("special", name), lambda: self.w.op("mov.u32", "b32", name), root=True)

    def thread(self) -> str:
        """This thread's number in its instance."""
        if self.instance.first == 0:
            return self.special("%tid.x")
        first = self.instance.first
        return self.w.hoist(
            ("thread", self.instance),
            lambda: self.w.op(
                "sub.s32",
                "b32",
                self.special("%tid.x"),
                first * 32 if isinstance(first, int) else self.w.op("shl.b32", "b32", first, 5),
            ),
        )

    def lane(self) -> str:
        return self.w.hoist(
            "lane", lambda: self.w.op("and.b32", "b32", self.special("%tid.x"), 31), root=True
        )

    def warp(self) -> Operand:
        """This warp's number in its instance, known to be the same in its lanes."""
        if self.instance.warps == 1:
            return 0
        w, first = self.w, self.instance.first
        block = w.hoist(
            "warp",
            lambda: w.op(
                "shfl.sync.idx.b32",
                "b32",
                w.op("shr.u32", "b32", self.special("%tid.x"), 5),
                0,
                31,
                -1,
            ),
            root=True,
        )
        return (
            block
            if first == 0
            else w.hoist(("warp", self.instance), lambda: w.op("sub.s32", "b32", block, first))
        )

    # ---- parameters
    # ---------------------------------------------------------------------------------------------
    def parameter(self, p: Parameter) -> str:
        """A parameter of the entry in a register (a map: its generic address)."""

        def load() -> str:
            name = self.parameters.setdefault(p, f"p{len(self.parameters)}")
            if p.kind == "map":
                return self.w.op("cvta.param.u64", "b64", self.w.op("mov.b64", "b64", name))
            kind = (
                "b64" if p.size == 8 else "b32" if p.size == 4 else "b16" if p.size == 2 else "b32"
            )
            return self.w.op(f"ld.param.{'u8' if p.type == 'b8' else p.type}", kind, f"[{name}]")

        return self.w.hoist(p, load, root=True)

    def array_argument(self, t: ArrayType, number: int) -> Array:
        """An array argument; what the specialization knows exactly is a number, the rest a parameter when it is asked for.  Of a wide array the extents of
        32 bits are at most 2^31 - 1 (no 32-bit index is beyond), those of 64 the real ones."""
        facts, wide = t.facts, number in self.wide

        def integer(kind: str, type: str, known) -> Callable[[int], Operand]:
            return lambda axis: (
                known[axis].exact
                if known[axis].exact is not None
                else self.parameter(Parameter(kind, type, number, axis))
            )

        return Array(
            t.element,
            facts,
            lambda: self.parameter(Parameter("pointer", "u64", number)),
            integer("shape", "s32" if wide else "u32", facts.shape),
            integer("stride", "u64", facts.strides),
            number,
            integer("shape", "u64", facts.shape) if wide else None,
            not wide,
        )

    def shared_base(self) -> str:
        """The start of dynamic shared memory."""
        self.uses_shared = True
        return self.w.hoist("shared", lambda: self.w.op("mov.u32", "b32", "shared"), root=True)

    def scratch(self, count: int) -> int:
        """Offset of more shared memory, for the emitter's own use."""
        at = -(-self.shared_bytes // 16) * 16
        self.shared_bytes = at + count
        return at

    def own_scratch(self, count: int) -> tuple[str, int]:
        """The same for this instance alone, as (address, offset from it)."""
        each, i = -(-count // 16) * 16, self.instance
        at, base = self.scratch(each * i.copies), self.shared_base()
        return (
            base
            if i.copies == 1
            else self.w.op("mad.lo.s32", "b32", self.w.register(i.who), each, base)
        ), at

    # ---- the walk
    # ----------------------------------------------------------------------------------------------
    def block(self, block: Block) -> None:
        """Every operation of a block; runs of element-wise tile operations go register by register."""
        from tkc.codegen.ptx.elementwise import emit_run, run_length

        ops = list(block.ops)
        i = 0
        while i < len(ops):
            n = run_length(self, ops, i)
            if n > 1:
                self.at(ops[i])
                emit_run(self, ops[i : i + n])
                i += n
                continue
            self.emit(ops[i])
            i += 1

    def at(self, op: Operation) -> None:
        self.op = op
        if (place := location_of(op)) is not None:
            self.w.location(place.file, place.line, place.column)

    def emit(self, op: Operation) -> None:
        self.at(op)
        function = EMITTERS.get(type(op))
        if function is None:
            self.fail(f"'{op.name}' has no PTX form at level 4; a pass should have replaced it")
        function(self, op)


@cache
def _load_families() -> None:
    """Family files register themselves when they are imported."""
    from importlib import import_module
    from importlib.util import find_spec

    for name in FAMILIES:
        if find_spec(f"tkc.codegen.ptx.{name}"):
            import_module(f"tkc.codegen.ptx.{name}")


def emit(module: ModuleOp | Kernel, target: Target, debug: int = 0) -> PtxProgram:
    """The PTX of a level-4 kernel (of a module: its only one). debug: with the checks of traps.py,
    where a wait may take so many seconds.

    Raises CompileError where an operation has no PTX form."""
    _load_families()
    kernel = module
    if isinstance(module, ModuleOp):
        kernels = [op for op in module.body.block.ops if isinstance(op, Kernel)]
        if len(kernels) != 1:
            raise CompileError(
                f"one kernel is emitted at a time, but the module has {len(kernels)}"
            )
        kernel = kernels[0]
    from tkc.codegen.ptx.register_coalescing import assign_homes

    e = Emitter(kernel, target, debug)
    for number, argument in enumerate(kernel.arguments):
        if isinstance(argument.type, ArrayType):
            e.values[argument] = e.array_argument(argument.type, number)
        elif argument.first_use is not None:
            e.values[argument] = _scalar_argument(e, argument.type, number)
    assign_homes(e, kernel)
    e.block(kernel.body.block)
    return _program(e)


def _scalar_argument(e: Emitter, t: Attribute, number: int) -> Operand:
    width = bits(t)
    type = (
        f"{'f' if width >= 32 else 'b'}{width}"
        if is_float(t)
        else (
            "u64"
            if isinstance(t, PointerType)
            else f"{'u' if is_unsigned(t) or is_bool(t) else 's'}{width}"
        )
    )
    raw = e.parameter(Parameter("scalar", type, number, element=str(t)))
    if is_bool(t):
        return e.w.hoist(
            ("truth", number), lambda: e.w.op("setp.ne.b32", "pred", raw, 0), root=True
        )
    if width == 16 and is_float(t):
        return e.w.hoist(
            ("wide", number), lambda: e.unpacked(e.w.op("cvt.u32.u16", "b32", raw), t), root=True
        )
    if width == 16:
        return e.w.hoist(
            ("wide", number), lambda: e.w.op(f"cvt.{type[0]}32.{type}", "b32", raw), root=True
        )
    if width == 8 and is_float(t):
        return e.w.hoist(("wide", number), lambda: e.unpacked(raw, t), root=True)
    return raw


def _cluster(kernel: Kernel) -> tuple[int, int]:
    given = kernel.attributes.get("cluster")
    if given is None:
        return (1, 1)
    numbers = (
        given.get_values() if isinstance(given, DenseArrayBase) else [n.value.data for n in given]
    )
    return tuple(map(int, numbers))


def _program(e: Emitter) -> PtxProgram:
    kernel, shape = e.kernel, e.cluster
    name = kernel.sym_name.data
    if e.shared_bytes > e.target.shared_bytes:
        raise RoomError(
            f"kernel {name} needs {e.shared_bytes} bytes of shared memory,"
            f" {e.shared_bytes - kernel.integer('shared_bytes')} of them for histograms and results"
            f" of atomics, and {e.target.name} has {e.target.shared_bytes}; use smaller tiles,"
            " fewer bins or fewer stages",
            location_of(kernel),
            e.shared_bytes - e.target.shared_bytes,
        )
    end, declarations = "", e.globals
    if e.sites:
        from tkc.codegen.ptx.traps import CLAIMED, handler

        end, declarations = handler(e), [*e.globals, CLAIMED]
    interface = Interface(
        name,
        e.target.name,
        e.threads,
        e.shared_bytes,
        shape,
        e.persistent,
        tuple(e.parameters),
        e.debug,
        tuple(e.sites),
        kernel.integer("split", 1),
        "together" in kernel.attributes,
    )
    declared = ",\n".join(
        f"\t.param .align 128 .b8 {n}[128]" if p.kind == "map" else f"\t.param .{p.type} {n}"
        for p, n in e.parameters.items()
    )
    directives = [f".reqntid {e.threads}, 1, 1", *e.directives]
    if not e.directives and (most := kernel.integer("maxnreg")):
        directives.append(f".maxnreg {most}")
    elif not e.directives and (blocks := kernel.integer("blocks")) > 1:
        directives.append(f".minnctapersm {blocks}")
    if shape != (1, 1):
        directives += [".explicitcluster", f".reqnctapercluster {shape[0]}, {shape[1]}, 1"]
    files = [f'.file {number} "{_quoted(file)}"' for file, number in e.w.files.items()]
    text = "\n".join(
        [
            f".version {e.isa[0]}.{e.isa[1]}",
            f".target {e.target.name}",
            ".address_size 64",
            *files,
            *([".extern .shared .align 1024 .b8 shared[];"] if e.uses_shared else []),
            *declarations,
            f".visible .entry {name}(",
            declared,
            ")",
            *directives,
            "{",
            e.w.text(),
            *filter(None, [end]),
            "}",
            "",
        ]
    )
    return PtxProgram(text, interface, e.notes)


def _quoted(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"')
