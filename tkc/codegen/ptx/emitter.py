"""The emitter: what each SSA value of a level-4 kernel became, and the registry of the functions
that emit its operations.

Each family file registers its functions:

    @emitter(tile.ProgramId)
    def program_id(e: Emitter, op): e.set(op.result, …)

`e.operand(value)`, `e.tile(value)`, … return what an SSA value became (values.py says what that
is); `e.set` records it.  The registers of a tile that register coalescing has chosen are
`e.destination(value)`: an operation writes its result there, or `e.set` moves it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from xdsl.ir import Attribute, Block, Operation, SSAValue

from tkc.codegen.ptx import elements
from tkc.codegen.ptx.values import (
    Array,
    BarriersView,
    SharedView,
    TensorMap,
    Tile,
    Value,
    compute_class,
    from_bits,
    packing,
)
from tkc.codegen.ptx.writer import Integer, Operand, Writer, as_integer, class_of
from tkc.errors import CompileError
from tkc.ir.interface import Parameter, Site
from tkc.ir.known_elements import Found
from tkc.ir.ranges import Ranges
from tkc.ir.scratch import scratch_of
from tkc.ir.target import Target
from tkc.ir.text import location_of
from tkc.ir.threads import Identity
from tkc.ir.tile import Kernel
from tkc.ir.types import ArrayType, Fact, TileType, bits, is_bool, is_float
from tkc.ir.values import operations_in

EMITTERS: dict[type[Operation], Callable[[Emitter, Any], None]] = {}

# (how many operations from an index on are emitted together, what emits them)
RUNS: list[
    tuple[
        Callable[[Emitter, Sequence[Operation], int], int],
        Callable[[Emitter, Sequence[Operation]], None],
    ]
] = []

F = TypeVar("F", bound=Callable[..., None])
V = TypeVar("V")


def emitter(*classes: type[Operation]) -> Callable[[F], F]:
    """Registers a function `(emitter, operation)` for operation classes."""

    def register(function: F) -> F:
        EMITTERS.update(dict.fromkeys(classes, function))
        return function

    return register


@dataclass(frozen=True)
class Instance:
    """The warps that run an operation together: all of the block, or one copy of a role.

    first: their first warp in the block; barrier: the hardware barrier of their own.
    single: only one thread runs (the elected one of a role). copies, index: how many instances of a
    role run concurrently, at different programs, and which of them this is.
    """

    warps: int
    first: Integer = 0
    barrier: Integer = 0
    single: bool = False
    name: str = "block"
    copies: int = 1
    index: Integer = 0

    @property
    def threads(self) -> int:
        return 1 if self.single else 32 * self.warps


class Emitter:
    """The state of one kernel's emission."""

    def __init__(self, kernel: Kernel, target: Target, debug: int = 0):
        self.kernel, self.target, self.debug = kernel, target, debug
        self.w = Writer()
        self.sites: list[Site] = []  # checks of TKC_DEBUG so far
        self.instance = Instance(kernel.warps)
        self.values: dict[SSAValue, Value] = {}
        # registers that register coalescing has chosen for a tile, and all of them
        self.destinations: dict[SSAValue, list[str]] = {}
        self.coalesced: set[str] = set()
        # registers that are another operand plus a constant
        self.sums: dict[str, tuple[Integer, int]] = {}
        # scans over warps that wait for what other warps have, by the first of their prefixes
        self.scans: dict[SSAValue, Any] = {}
        # elements of packed integers in registers of their own, by register and type: what is
        # computed of them needs no unpacking, and ptxas drops a packing that nobody reads
        self.widened: dict[tuple[str, Attribute], list[Operand]] = {}
        self.parameters: dict[Parameter, str] = {}
        self.notes: list[str] = []
        self.threads = 32 * kernel.warps  # of the block; roles add theirs
        self.shared_bytes = kernel.integer("shared_bytes")
        # what operations take beside buffers, one after the other: bytes, and the place of each
        # instance's as (bytes, offset)
        self.most_scratch = scratch_of(kernel)
        self.own_places: dict[Instance, tuple[int, int]] = {}
        self.uses_shared = False
        # whether what is computed now is asked for: a region is also run on padding
        self.counts: Operand = True
        self.globals: list[str] = []  # declarations before the entry
        self.directives: list[str] = []  # of the entry, e.g. ".minnctapersm 1"
        self.isa = tuple(map(int, target.ptx.split(".")))
        self.ranges = Ranges()
        self.known: Found = {}  # elements of tiles, by known_elements
        self.op: Operation = kernel
        rows, columns = kernel.cluster
        self.cluster = rows, columns
        self.persistent = "persistent" in kernel.attributes
        # numbers of the array arguments whose extents may need 64 bits
        self.wide = kernel.integers("wide")
        self.nonzero = kernel.integers("nonzero")
        thread_ids = operations_in(kernel, Identity)
        diverges = any(op.what.data == "thread" for op in thread_ids)
        self.uniform = "" if diverges else ".uni"  # of branches

    # ---- what values are
    def _found(self, value: SSAValue, kind: type[V]) -> V:
        found = self.values[value]
        if not isinstance(found, kind):
            raise TypeError(f"expected {value} to be a {kind.__name__}, got {found!r}")
        return found

    def value(self, value: SSAValue) -> Value:
        """What a value became."""
        return self.values[value]

    def operand(self, value: SSAValue) -> Operand:
        """A scalar: a register or a number. Raises TypeError for other values."""
        found = self.values[value]
        if not isinstance(found, (str, int, float)):
            raise TypeError(f"expected {value} to be a scalar, got {found!r}")
        return found

    def integer(self, value: SSAValue) -> Integer:
        """An integer scalar: a register or a number. Raises TypeError for other values."""
        return as_integer(self.operand(value))

    def register(self, value: SSAValue) -> str:
        """A scalar in a register."""
        return self.w.register(self.operand(value), compute_class(value.type))

    def constant(self, value: SSAValue) -> int | float | None:
        """A scalar's number where it is known now."""
        found = self.values.get(value)
        return found if isinstance(found, (int, float)) else None

    def tile(self, value: SSAValue) -> Tile:
        """A tile's registers."""
        return self._found(value, Tile)

    def array(self, value: SSAValue) -> Array:
        """An array."""
        return self._found(value, Array)

    def view(self, value: SSAValue) -> SharedView:
        """A shared buffer."""
        return self._found(value, SharedView)

    def barriers(self, value: SSAValue) -> BarriersView:
        """A ring of mbarriers."""
        return self._found(value, BarriersView)

    def map(self, value: SSAValue) -> TensorMap:
        """A tensor map."""
        return self._found(value, TensorMap)

    def destination(self, value: SSAValue) -> list[str] | None:
        """The registers a tile has to be in, if register coalescing has chosen them."""
        return self.destinations.get(value)

    def set(self, value: SSAValue, found: Value, alias: bool = False) -> None:
        """Records what a value is.  A tile with a destination is moved there.  Registers that are
        another value's destination are copied, as they will change, unless `alias`: register
        coalescing has seen that they live as long as this value.
        """
        destination = self.destinations.get(value)
        if destination is not None:
            assert isinstance(found, Tile)
            self.w.moves(zip(destination, found.registers, strict=True))
            found = replace(found, registers=destination)
        elif not alias and self.coalesced:
            if isinstance(found, Tile):
                found = replace(found, registers=[self.owned(r) for r in found.registers])
            elif isinstance(found, str):
                found = self.owned(found)
        self.values[value] = found

    def free_destination(self, value: SSAValue, *operands: SSAValue | None) -> list[str] | None:
        """The value's destination, unless one of the operands, all of which are read while it is
        written, is in registers of it.
        """
        destination = self.destination(value)
        for operand in operands if destination else ():
            found = self.values.get(operand) if operand is not None else None
            if isinstance(found, Tile) and not set(destination or ()).isdisjoint(found.registers):
                return None
        return destination

    def owned(self, register: Integer) -> Integer:
        """The register, or a copy where it is another value's destination: it will change."""
        if register not in self.coalesced or not isinstance(register, str):
            return register
        copy = self.w.new(class_of(register))
        self.w.move(copy, register)
        return copy

    def fail(self, message: str) -> NoReturn:
        """Raises CompileError at the operation being emitted."""
        raise CompileError(message, location_of(self.op))

    def need(self, isa: str) -> None:
        """The instruction being written needs that ISA version."""
        self.isa = max(self.isa, tuple(map(int, isa.split("."))))

    def has_float8(self) -> bool:
        """Whether the target converts float8; the ISA version it needs is noted."""
        if self.target.fp8:
            self.need("8.1" if self.target.capability == 89 else "7.8")
        return self.target.fp8

    # ---- elements of tiles
    def element(self, tile: Tile, index: int) -> Operand:
        """Element `index` of this thread's part of a tile as a scalar (narrow ones widened; see
        values.py).
        """
        pack, raw = tile.pack, tile.registers[index // tile.pack]
        if isinstance(raw, str):
            return self.unpacked(raw, tile.element, index % pack)
        if is_bool(tile.element):
            return bool(raw)
        width = bits(tile.element)
        return from_bits(raw >> index % pack * width & (1 << width) - 1, tile.element)

    def elements(self, tile: Tile) -> list[Operand]:
        """All of this thread's elements of a tile."""
        return [self.element(tile, i) for i in range(tile.count)]

    def unpacked(self, raw: str, element: Attribute, part: int = 0) -> str:
        """Part `part` of a 32-bit register of narrow elements, widened."""
        if is_bool(element) or bits(element) >= 32:
            return raw
        known = self.widened.get((raw, element))
        if known is not None and isinstance(known[part], str):
            return str(known[part])
        return elements.widen(self, raw, element, part)

    def remember(self, raw: Integer, values: Sequence[Operand], element: Attribute) -> None:
        """Notes the elements of a packed register, extended as their integer type has them, unless
        the register, or one that holds an element, is another value's destination: it will change.
        """
        narrow = not is_bool(element) and not is_float(element) and bits(element) < 32
        if narrow and isinstance(raw, str) and self.coalesced.isdisjoint((raw, *values)):
            self.widened[raw, element] = list(values)

    def packed(
        self,
        values: Sequence[Operand],
        element: Attribute,
        into: str | None = None,
        exact: bool = False,
    ) -> Integer:
        """One register of a tile from its widened elements (one, two or four of them); exact: they
        are numbers of their type.
        """
        return elements.narrow(self, values, element, into, exact)

    def build(
        self,
        t: TileType,
        values: Sequence[Operand],
        into: Sequence[str] | None = None,
        exact: bool = False,
    ) -> Tile:
        """A tile from widened elements; exact: they are numbers of their type, extended as it has
        them.
        """
        p = packing(t.element, len(values))
        registers = [
            self.packed(values[i : i + p], t.element, into[i // p] if into else None, exact)
            for i in range(0, len(values), p)
        ]
        if exact and not into:
            for i, raw in enumerate(registers):
                self.remember(raw, values[i * p : (i + 1) * p], t.element)
        return Tile.of(t, registers)

    def nonnegative(self, value: SSAValue) -> bool:
        """Whether an integer is known not to be negative."""
        found = self.ranges.of(value)
        return found is not None and found.lo >= 0

    # ---- which thread this is
    def special(self, name: str) -> str:
        """A 32-bit special register such as %tid.x."""
        return self.w.hoist(("special", name), lambda: self.w.op("mov.u32", "b32", name), root=True)

    def thread(self) -> str:
        """This thread's number in its instance."""
        first = self.instance.first
        if first == 0:
            return self.special("%tid.x")

        def make() -> str:
            tid = self.special("%tid.x")
            start = first * 32 if isinstance(first, int) else self.w.op("shl.b32", "b32", first, 5)
            return self.w.op("sub.s32", "b32", tid, start)

        return self.w.hoist(("thread", self.instance), make)

    def lane(self) -> str:
        """This thread's number in its warp."""
        return self.w.hoist(
            "lane", lambda: self.w.op("and.b32", "b32", self.special("%tid.x"), 31), root=True
        )

    def lane_bit(self, mask: int) -> str:
        """Whether this lane's number has a bit."""

        def make() -> str:
            return self.w.op(
                "setp.ne.b32", "pred", self.w.op("and.b32", "b32", self.lane(), mask), 0
            )

        return self.w.hoist(("bit", mask), make, root=True)

    def warp(self) -> Integer:
        """This warp's number in its instance, known to be the same in its lanes."""
        if self.instance.warps == 1:
            return 0
        w, first = self.w, self.instance.first

        def in_block() -> str:
            number = w.op("shr.u32", "b32", self.special("%tid.x"), 5)
            return w.op("shfl.sync.idx.b32", "b32", number, 0, 31, -1)

        block = w.hoist("warp", in_block, root=True)
        if first == 0:
            return block
        return w.hoist(("warp", self.instance), lambda: w.op("sub.s32", "b32", block, first))

    # ---- parameters
    def parameter(self, p: Parameter) -> str:
        """A parameter of the entry in a register (a map: its generic address)."""

        def load() -> str:
            name = self.parameters.setdefault(p, f"p{len(self.parameters)}")
            if p.kind == "map":
                return self.w.op("cvta.param.u64", "b64", self.w.op("mov.b64", "b64", name))
            kind = {8: "b64", 2: "b16"}.get(p.size, "b32")
            return self.w.op(f"ld.param.{'u8' if p.type == 'b8' else p.type}", kind, f"[{name}]")

        return self.w.hoist(p, load, root=True)

    def array_argument(self, t: ArrayType, number: int) -> Array:
        """An array argument; what the specialization knows exactly is a number, the rest a
        parameter once it is read.  Of a wide array the extents of 32 bits are at most 2^31 - 1 (no
        32-bit index is beyond), those of 64 the real ones.
        """
        facts, wide = t.facts, number in self.wide

        def integer(kind: str, type: str, known: Sequence[Fact]) -> Callable[[int], Integer]:
            def at(axis: int) -> Integer:
                exact = known[axis].exact
                if exact is not None:
                    return exact
                return self.parameter(Parameter(kind, type, number, axis))

            return at

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

    # ---- shared memory
    def shared_base(self) -> str:
        """The start of dynamic shared memory."""
        self.uses_shared = True
        return self.w.hoist("shared", lambda: self.w.op("mov.u32", "b32", "shared"), root=True)

    def scratch(self, count: int) -> int:
        """Offset of `count` more bytes of shared memory, for the emitter's own use."""
        at = -(-self.shared_bytes // 16) * 16
        self.shared_bytes = at + count
        return at

    def own_scratch(self, count: int) -> tuple[str, int]:
        """The same for this instance alone, as (address, offset from it), until the next operation
        asks: whoever does has its threads meet before they write.
        """
        i, base = self.instance, self.shared_base()
        size, at = self.own_places.get(i, (0, 0))
        if count > size:
            size = -(-max(count, self.most_scratch) // 16) * 16
            at = self.scratch(size * i.copies)
            self.own_places[i] = size, at
        if i.copies > 1:
            base = self.w.op("mad.lo.s32", "b32", self.w.register(i.index), size, base)
        return base, at

    # ---- the walk
    def block(self, block: Block) -> None:
        """Every operation of a block, runs of them together where an emitter of runs takes them."""
        ops = list(block.ops)
        i = 0
        while i < len(ops):
            for length, emit_run in RUNS:
                if (n := length(self, ops, i)) > 1:
                    self.at(ops[i])
                    emit_run(self, ops[i : i + n])
                    i += n
                    break
            else:
                self.emit(ops[i])
                i += 1

    def at(self, op: Operation) -> None:
        """What follows is emitted for this operation."""
        self.op = op
        if (place := location_of(op)) is not None:
            self.w.location(place.file, place.line, place.column)

    def emit(self, op: Operation) -> None:
        """One operation. Raises CompileError where it has no PTX form."""
        self.at(op)
        function = EMITTERS.get(type(op))
        if function is None:
            self.fail(f"'{op.name}' has no PTX form at level 4; a pass should have replaced it")
        function(self, op)
