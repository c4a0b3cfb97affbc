"""A level 0 kernel as LLVM IR: one function a program; entry.py has the one that threads call.

Scalars become registers, arrays their pointer, extents and strides; tiles are expressions until
`planning` says that they need a buffer of the workspace. Control flow stays control flow.

    @program(args, workspace, context, p0 … n2)     one program
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tkc.codegen.cpu import numbers
from tkc.codegen.cpu.control import Control
from tkc.codegen.cpu.dot import Dots
from tkc.codegen.cpu.memory import Memory
from tkc.codegen.cpu.messages import Messages
from tkc.codegen.cpu.nest import Nest
from tkc.codegen.cpu.planning import LOADS, is_lazy
from tkc.codegen.cpu.sorting import Sorting
from tkc.codegen.cpu.state import Blocking
from tkc.codegen.cpu.values import ArrayValue, Chunk, Index
from tkc.errors import CompileError
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.text import location_of
from tkc.ir.types import ArrayType, Fact, PointerType, TileType
from tkc.ir.values import array_type, tile_type

WORD = 8  # bytes of an argument's slot


class Lowering(Control, Dots, Memory, Messages, Sorting):
    """Writes one kernel: `module` holds the text, `workspace` the bytes a thread needs, `messages`
    what prints and asserts say. Raises CompileError for what the back end does not do.
    """

    def __init__(
        self,
        kernel: tile.Kernel,
        blocking: Blocking,
        overlapping: bool = False,
        folded: bool = False,
    ):
        super().__init__(kernel, blocking, overlapping, folded)
        self.carried = {}
        self._bind_arguments()
        self.body(kernel.body.block)
        self.f.do("ret void")
        self.f.label("%over")
        self.f.do("ret void")

    def _bind_arguments(self) -> None:
        """Arguments from their slots of 8 bytes: an array takes 1 + 2·rank, a scalar one."""
        f, slot = self.f, 0

        def word(t: str) -> str:
            nonlocal slot
            at = f.gep("%args", str(slot), WORD)
            slot += 1
            return f.load(t, at, WORD)

        def words(facts: Sequence[Fact]) -> tuple[str, ...]:
            """One a fact: what is known of it, else what the launch says."""
            given = [word("i64") for _ in facts]
            pairs = zip(given, facts, strict=True)
            return tuple(n if x.exact is None else str(x.exact) for n, x in pairs)

        with f.at(self.entry):
            for argument in self.kernel.arguments:
                t = argument.type
                if isinstance(t, ArrayType):
                    pointer = word("ptr")
                    extents, strides = words(t.facts.shape), words(t.facts.strides)
                    self.env[argument] = ArrayValue(pointer, extents, strides)
                elif isinstance(t, TileType):
                    raise self.error(self.kernel, f"a kernel's argument cannot be {t}")
                else:
                    self.env[argument] = numbers.unpack(f, t, word(numbers.stored(t)), 1)

    def error(self, op: Operation, message: str) -> CompileError:
        """An error at an operation's source line."""
        return CompileError(message, location_of(op))

    def collect(self) -> None:
        """Release the buffers that are not read any more."""
        idle: set[SSAValue] = set()
        for v, b in list(self.buffers.items()):
            if not b.fixed and not self.pending(v, idle):
                del self.buffers[v]
                if all(b is not other for other in self.buffers.values()):
                    self.release(b.offset, b.bytes)

    # ----------------------------------------------------------------------------------------------
    def body(self, block: Block) -> None:
        """The operations of a block up to its terminator."""
        saved = self.block, self.lazy_loads, self.buffers
        self.block, self.lazy_loads, self.buffers = block, [], dict(self.carried)
        self.carried = {}
        for op in block.ops:
            if op is block.last_op:
                break
            self.operation(op)
        self.at_end = self.buffers
        self.block, self.lazy_loads, self.buffers = saved

    def operation(self, op: Operation) -> None:
        """One operation: written, or left to what uses it."""
        if is_lazy(op):
            if isinstance(op, LOADS):
                self.lazy_loads.append(op)
            return
        try:
            self.write(op)
        except NotImplementedError as e:
            raise self.error(op, f"the CPU back end does not do '{op.name}': {e}") from None
        self.done.add(op)
        self.collect()

    def write(self, op: Operation) -> None:
        """One operation that happens here and now."""
        written = (
            self._write_control(op)
            or self._write_scalar(op)
            or self._write_array(op)
            or self._write_tile(op)
        )
        if not written:
            raise NotImplementedError("an operation of another level")

    def _write_control(self, op: Operation) -> bool:
        """Regions and messages. Whether the operation is one of these."""
        match op:
            case scf.ForOp():
                self.for_(op)
            case scf.IfOp():
                self.if_(op)
            case scf.WhileOp():
                self.while_(op)
            case tile.Print():
                self.print(op)
            case tile.Assert():
                self.check(op)
            case tile.Dependency():
                pass  # launches on the CPU follow one another
            case _:
                return False
        return True

    def _write_scalar(self, op: Operation) -> bool:
        """What is computed in registers. Whether the operation is one of these."""
        match op:
            case tile.ProgramId():
                self.env[op.result] = f"%p{op.axis.value.data}"
            case tile.NumPrograms():
                self.env[op.result] = f"%n{op.axis.value.data}"
            case tile.Constant() | ew.PointerAdd():
                self.env[op.result] = Nest(self.f, self.env).result_of(op, ()).base
            case tile.Multiple() | tile.Assume():
                self.env.update({r: self.env[op.operands[0]] for r in op.results})
            case ew.Elementwise() | ew.Select() | ew.Cast() | ew.Bitcast():
                operands = [Chunk(self.env.register(v)) for v in op.operands]
                self.env[op.result] = Nest(self.f, self.env).compute(op, operands).base
            case tile.Extract():
                self.extract(op)
            case _:
                return False
        return True

    def _write_array(self, op: Operation) -> bool:
        """Arrays, and accesses. Whether the operation is one of these."""
        match op:
            case tile.Dim():
                extent = self.env.array(op.arg).extents[op.axis.value.data]
                self.env[op.result] = self.narrow(extent, op.result.type)
            case tile.Stride():
                stride = self.env.array(op.arg).strides[op.axis.value.data]
                self.env[op.result] = self.narrow(stride, op.result.type)
            case tile.Pointer():
                self.env[op.result] = self.env.array(op.arg).pointer
            case tile.View():
                self.view(op)
            case tile.MakeArray():
                self.make_array(op)
            case tile.Load() | tile.LoadPointers():
                self.load(op)
            case tile.Store() | tile.StorePointers():
                self.store(op)
            case tile.Atomic() | tile.AtomicBlock():
                self.atomic(op)
            case _:
                return False
        return True

    def _write_tile(self, op: Operation) -> bool:
        """What fills buffers. Whether the operation is one of these."""
        match op:
            case tile.Reduce():
                self.reduce(op)
            case tile.Scan():
                self.scan(op)
            case tile.Sort():
                self.sort(op)
            case tile.Histogram():
                self.histogram(op)
            case tile.Gather():
                self.gather(op)
            case tile.Dot():
                self.dot(op)
            case tile.Concat():
                self.concat(op)
            case _:
                return False
        return True

    # ----------------------------------------------------------------------------------------------
    def narrow(self, x: str, t: Attribute) -> str:
        """An i64 as an integer of type t."""
        name = numbers.held(t)
        if name == "i64" or not x.startswith("%"):
            return x
        return self.f.emit(f"trunc i64 {x} to {name}")

    def view(self, op: tile.View) -> None:
        """Part of an array, or one with fewer axes."""
        f, array, offsets = self.f, self.env.array(op.array), iter(op.offsets)
        pointer, extents, strides = array.pointer, [], []
        size = numbers.size(array_type(op.array).element)
        kinds = [k.data for k in op.kinds]
        for kind, extent, stride in zip(kinds, array.extents, array.strides, strict=True):
            start = "0"
            if kind != "all":
                start = self.wide(next(offsets))
                pointer = f.gep(pointer, f.mul(start, stride), size)
            if kind == "slice":
                stop = self.wide(next(offsets))
                stop = f.call("llvm.smin.i64", "i64", ("i64", stop), ("i64", extent))
                length = f.emit(f"sub nsw i64 {stop}, {start}")
                extent = f.call("llvm.smax.i64", "i64", ("i64", length), ("i64", "0"))
            if kind != "index":
                extents.append(extent)
                strides.append(stride)
        self.env[op.result] = ArrayValue(pointer, tuple(extents), tuple(strides))

    def make_array(self, op: tile.MakeArray) -> None:
        """An array from a pointer, extents and strides."""
        pointer = self.env.register(op.pointer)
        if not isinstance(op.pointer.type, PointerType):
            pointer = self.f.emit(f"inttoptr {numbers.held(op.pointer.type)} {pointer} to ptr")
        extents, strides = (tuple(map(self.wide, values)) for values in (op.shape, op.strides))
        self.env[op.result] = ArrayValue(pointer, extents, strides)

    def extract(self, op: tile.Extract) -> None:
        """One element of a tile."""
        self.done.add(op)
        self.prepare([op.arg], float("inf"))
        index = tuple(Index(str(i)) for i in op.index.get_values())
        self.env[op.result] = Nest(self.f, self.env).eval(op.arg, index).base

    def concat(self, op: tile.Concat) -> None:
        """Tiles behind one another along an axis."""
        b, at, axis = self.buffer_for(op.result), 0, op.axis.value.data
        for part in op.args:
            self.fill(b, part, (axis, at))
            at += tile_type(part).extents[axis]
        self.own(op.result, b)
