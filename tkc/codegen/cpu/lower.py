"""A level 0 kernel as LLVM IR: one function a program, and one that hands out program ids to the
threads.

Scalars become registers, arrays their pointer, extents and strides; tiles are expressions until
`planning` says that they need a
buffer of the workspace.  Control flow stays control flow: a tile that a loop carries lives in one buffer all the while, so that an
accumulator is never copied.

    @run(args, grid, workspace, context)            every thread calls it; ids come from an atomic counter in the context
    @program(args, workspace, context, p0 … n2)     one program
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.codegen.cpu import numbers
from tkc.codegen.cpu.collective import Collective
from tkc.codegen.cpu.dot import Blocking, Dots
from tkc.codegen.cpu.emit import Function, Module
from tkc.codegen.cpu.entry import return_if_stopped, write_entry
from tkc.codegen.cpu.memory import Memory
from tkc.codegen.cpu.nest import ArrayValue, Buffer, Chunk, Index, Nest, moves_elements
from tkc.codegen.cpu.planning import (
    LIMIT,
    LOADS,
    WRITES,
    Planning,
    is_lazy,
    tiles,
)
from tkc.errors import CompileError
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.text import location_of
from tkc.ir.types import ArrayType, PointerType, TileType, is_unsigned
from tkc.ir.values import operands_first, tile_type

ALIGN = 64


class Lowering(Planning, Memory, Collective, Dots):
    """Writes one kernel. `module` afterwards holds the text, `workspace` the bytes a thread needs,
    `messages` what prints and asserts say.
    """

    def __init__(self, kernel: tile.Kernel, blocking: Blocking, careful: bool = False):
        self.blocking = blocking
        self.kernel, self.careful, self.waits = kernel, careful, tile.waits_for_programs(kernel)
        self.module, self.env, self.done, self.soon = Module(), {}, set(), {}
        self.lazy_loads: list[Operation] = []
        self.buffers: dict[
            SSAValue, Buffer
        ] = {}  # of the block being written: what liveness may give back
        self.free: list[tuple[int, int]] = []
        self.workspace, self.messages = 0, []
        self.carried: dict[
            SSAValue, Buffer
        ] = {}  # tiles that enter the next block as its arguments
        self.block: Block = kernel.body.block
        self.module.globals.append("@zeros = internal constant [64 x i8] zeroinitializer, align 64")
        ids = [("i32", f"p{a}") for a in range(3)] + [("i32", f"n{a}") for a in range(3)]
        self.f: Function = self.module.function(
            "program",
            "void",
            [("ptr noalias", "args"), ("ptr noalias", "workspace"), ("ptr", "context"), *ids],
        )
        write_entry(self.module)
        self.entry = self.f.section()
        self.bind()
        self.body(kernel.body.block)
        self.f.do("ret void")
        self.f.label("%over")
        self.f.do("ret void")

    # ----------------------------------------------------------------------------------------------
    def bind(self) -> None:
        """Arguments from their slots of 8 bytes: an array takes 1 + 2·rank, a scalar one."""
        f, slot = self.f, 0

        def word(t: str, size: int = 8):
            nonlocal slot
            at = f.gep("%args", str(slot), 8)
            slot += 1
            return f.load(t, at, size)

        with f.at(self.entry):
            for argument in self.kernel.arguments:
                t = argument.type
                if isinstance(t, ArrayType):
                    facts, pointer = t.facts, word("ptr")
                    extents = [word("i64") for _ in range(t.rank)]
                    strides = [word("i64") for _ in range(t.rank)]

                    def known(names, what):
                        return tuple(
                            str(x.exact) if x.exact is not None else n
                            for n, x in zip(names, what, strict=False)
                        )

                    self.env[argument] = ArrayValue(
                        pointer, known(extents, facts.shape), known(strides, facts.strides)
                    )
                elif isinstance(t, TileType):
                    raise self.error(self.kernel, f"a kernel's argument cannot be {t}")
                else:
                    raw = word(numbers.stored(t), 8)
                    self.env[argument] = numbers.unpack(f, t, raw, 1)

    def error(self, op: Operation, message: str) -> CompileError:
        return CompileError(message, location_of(op))

    # ----------------------------------------------------------------------------------------------
    def allocate(self, nbytes: int) -> int:
        nbytes = -(-nbytes // ALIGN) * ALIGN
        for i, (offset, room) in enumerate(self.free):
            if room >= nbytes:
                self.free[i : i + 1] = [(offset + nbytes, room - nbytes)] if room > nbytes else []
                return offset
        offset, self.workspace = self.workspace, self.workspace + nbytes
        return offset

    def release(self, offset: int, nbytes: int) -> None:
        """Give bytes back; neighbours in the free list join."""
        spans = sorted([*self.free, (offset, -(-nbytes // ALIGN) * ALIGN)])
        self.free = []
        for at, room in spans:
            if self.free and sum(self.free[-1]) == at:
                self.free[-1] = (self.free[-1][0], self.free[-1][1] + room)
            else:
                self.free.append((at, room))

    def scratch(self, nbytes: int) -> tuple[str, int]:
        """A name for fresh bytes of the workspace, and their offset (to be given back with
        `release`).
        """
        offset = self.allocate(nbytes)
        with self.f.at(self.entry):
            return self.f.gep("%workspace", str(offset), 1), offset

    def buffer(self, t: TileType) -> Buffer:
        pointer, offset = self.scratch(
            nbytes := max(1, t.size * numbers.size(t.element)) + ALIGN
        )  # wide chunks may read past the end
        return Buffer(pointer, t.extents, t.element, offset, nbytes)

    def own(self, v: SSAValue, b: Buffer) -> None:
        """v now lives in b."""
        self.env[v] = b
        self.buffers[v] = b

    def collect(self) -> None:
        """Give back the buffers nobody will read again."""
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
                self.select(op)
            case tile.Load() | tile.LoadPointers():
                self.load(op)
            case tile.Store() | tile.StorePointers():
                self.store(op)
            case tile.Atomic() | tile.AtomicBlock():
                self.atomic(op)
            case tile.Reduce():
                self.reduce(op)
            case tile.Scan():
                self.scan(op)
            case tile.Sort():
                self.sort(op)
            case tile.Histogram():
                self.histogram(op)
            case tile.Dot():
                self.dot(op)
            case tile.Extract():
                self.extract(op)
            case tile.Concat():
                self.concat(op)
            case tile.Dim():
                self.env[op.result] = self.narrow(
                    self.env[op.arg].extents[op.axis.value.data], op.result.type
                )
            case tile.Stride():
                self.env[op.result] = self.narrow(
                    self.env[op.arg].strides[op.axis.value.data], op.result.type
                )
            case tile.Pointer():
                self.env[op.result] = self.env[op.arg].pointer
            case tile.View():
                self.view(op)
            case tile.MakeArray():
                self.make_array(op)
            case tile.Print():
                self.print(op)
            case tile.Assert():
                self.check(op)
            case scf.ForOp():
                self.for_(op)
            case scf.IfOp():
                self.if_(op)
            case scf.WhileOp():
                self.while_(op)
            case _:
                raise NotImplementedError("an operation of another level")

    def select(self, op) -> None:
        """A scalar computation; an array or pointer may be selected too."""
        if isinstance(op.result.type, ArrayType):
            a, b = (self.env[v] for v in op.operands[1:])

            def pick(t, x, y):
                return x if x == y else self.f.select(self.env[op.operands[0]], t, x, y)

            self.env[op.result] = ArrayValue(
                pick("ptr", a.pointer, b.pointer),
                *(
                    tuple(pick("i64", x, y) for x, y in zip(p, q, strict=False))
                    for p, q in ((a.extents, b.extents), (a.strides, b.strides))
                ),
            )
        else:
            self.env[op.result] = (
                Nest(self.f, self.env).compute(op, [Chunk(self.env[v]) for v in op.operands]).base
            )

    def narrow(self, x: str, t) -> str:
        name = numbers.held(t)
        return (
            x if name == "i64" or not x.startswith("%") else self.f.emit(f"trunc i64 {x} to {name}")
        )

    def wide(self, v: SSAValue) -> str:
        """A scalar integer as i64."""
        x, t = self.env[v], numbers.held(v.type)
        return (
            x
            if t == "i64" or not x.startswith("%")
            else self.f.emit(f"{'zext' if is_unsigned(v.type) else 'sext'} {t} {x} to i64")
        )

    def view(self, op) -> None:
        f, array, offsets = self.f, self.env[op.array], iter(op.offsets)
        pointer, extents, strides, size = array.pointer, [], [], numbers.size(op.array.type.element)
        for kind, extent, stride in zip(
            (k.data for k in op.kinds), array.extents, array.strides, strict=False
        ):
            if kind != "all":
                start = self.wide(next(offsets))
                pointer = f.gep(pointer, f.mul(start, stride), size)
            if kind == "slice":
                stop = f.call(
                    "llvm.smin.i64", "i64", ("i64", self.wide(next(offsets))), ("i64", extent)
                )
                extent = f.call(
                    "llvm.smax.i64",
                    "i64",
                    ("i64", f.emit(f"sub nsw i64 {stop}, {start}")),
                    ("i64", "0"),
                )
            if kind != "index":
                extents.append(extent)
                strides.append(stride)
        self.env[op.result] = ArrayValue(pointer, tuple(extents), tuple(strides))

    def make_array(self, op) -> None:
        pointer = self.env[op.pointer]
        if not isinstance(op.pointer.type, PointerType):
            pointer = self.f.emit(f"inttoptr {numbers.held(op.pointer.type)} {pointer} to ptr")
        self.env[op.result] = ArrayValue(
            pointer, tuple(map(self.wide, op.shape)), tuple(map(self.wide, op.strides))
        )

    # ----------------------------------------------------------------------------------------------
    def fill(self, b: Buffer, v: SSAValue, shift: tuple[int, int] | None = None) -> None:
        """Compute a tile into a buffer (`shift`: along an axis, from an offset on)."""
        others = self.prepare([v])
        others.pop(v, None)
        nest = Nest(self.f, self.env)

        def chunk(index: tuple[Index, ...]):
            value, beside = (
                nest.eval(v, index),
                [(o, nest.eval(x, index)) for x, o in others.items()],
            )
            at = (
                index
                if shift is None
                else tuple(
                    nest.shift(i, 1, shift[1]) if a == shift[0] else i for a, i in enumerate(index)
                )
            )
            nest.keep(b, at, value, b.shape)
            for o, c in beside:
                nest.keep(o, index, c)

        nest.walk(tile_type(v).extents, chunk)
        for x, o in others.items():
            self.own(x, o)

    def materialize(self, v: SSAValue) -> Buffer:
        """The tile in a buffer."""
        for x in operands_first(v, lambda x: self.needs([x]), self.env):
            b = self.buffer(tile_type(x))
            self.fill(b, x)
            self.own(x, b)
        return self.env[v]

    def extract(self, op) -> None:
        self.done.add(op)
        self.prepare([op.arg], float("inf"))
        nest = Nest(self.f, self.env)
        self.env[op.result] = nest.eval(
            op.arg, tuple(Index(str(i)) for i in op.index.get_values())
        ).base

    def concat(self, op) -> None:
        b, at, axis = self.buffer(op.result.type), 0, op.axis.value.data
        for part in op.args:
            self.fill(b, part, (axis, at))
            at += part.type.extents[axis]
        self.own(op.result, b)

    # ----------------------------------------------------------------------------------------------
    def outside(self, op: Operation) -> list[SSAValue]:
        """Values of this and outer blocks that the regions of an operation use."""
        found: dict[SSAValue, None] = {}
        for inner in op.walk():
            for v in inner.operands:
                home = v.owner if isinstance(v.owner, Block) else v.owner.parent_block()
                top = home.parent_op()
                while top is not None and top is not op:
                    top = top.parent_op()
                if top is None:
                    found[v] = None
        return list(found)

    def enter(self, op: Operation) -> None:
        """Before a region: what it uses and should not compute again and again gets a buffer, as do
        loads whose memory it changes.
        """
        self.lazy_outside(op)
        writes = [
            w
            for w in op.walk()
            if isinstance(w, WRITES) or isinstance(w, tile.LoadPointers) and w.semantics is not None
        ]
        if any(isinstance(w, (tile.Atomic, tile.LoadPointers)) for w in writes):
            self.force_loads(op)
        elif writes:
            self.force_loads(op, writes)

    def lazy_outside(self, op: Operation) -> None:
        direct = set(op.operands)
        for v in tiles(self.outside(op)):
            nested = any(u.operation is not op for u in v.uses) if v in direct else True
            if (
                v not in self.env
                and nested
                and (self.costs_more([v], LIMIT // 2) or self.reads_memory(v) or not self.simple(v))
            ):
                self.materialize(v)

    def simple(self, v: SSAValue) -> bool:
        """No reshape that needs a buffer below a lazy tile."""
        return not any(
            self._is_computed(x) and moves_elements(x.owner)
            for x in operands_first(v, self._lazy_operands)
        )

    def initial(self, inits: Sequence[SSAValue]) -> list[Buffer]:
        """Buffers for the tiles that a loop carries, holding their first values."""
        out = []
        for init in tiles(inits):
            if init in self.buffers and not self.buffers[init].fixed and len(list(init.uses)) == 1:
                b = self.buffers.pop(init)
            else:
                b = self.buffer(init.type)
                self.fill(b, init)
            b.fixed = True
            out.append(b)
        return out

    def give(self, targets: Sequence[Buffer], values: Sequence[SSAValue]) -> None:
        """All values into their buffers at once: none is overwritten while another still needs it."""
        work = [(b, v) for b, v in zip(targets, values, strict=False) if self.env.get(v) is not b]
        while work:
            for n, (b, v) in enumerate(work):
                in_place = all(
                    same_index for x, same_index in self.leaves(v).items() if self.env.get(x) is b
                )
                if in_place and not any(
                    self.env.get(x) is b
                    for m, (_, o) in enumerate(work)
                    if m != n
                    for x in self.leaves(o)
                ):
                    break
            else:
                n = next((n for n, (b, v) in enumerate(work) if v not in self.env), None)
                if n is None:  # a cycle of plain buffers: copy one aside
                    b, v = work.pop(0)
                    aside = self.buffer(v.type)
                    self.fill(aside, v)
                    work.append((b, self.alias(aside)))
                    continue
                self.materialize(work[n][1])
                continue
            work.pop(n)
            self.fill(b, v)

    def alias(self, b: Buffer) -> SSAValue:
        """A value of no operation that stands for what b holds."""
        stand_in = Block(arg_types=[TileType(b.shape, b.element)]).args[0]
        self.env[stand_in] = b
        return stand_in

    def flat(self, v: SSAValue) -> list[tuple[str, str]]:
        """The registers of a scalar or array value, as (type, name)."""
        x = self.env[v]
        if isinstance(x, ArrayValue):
            return [("ptr", x.pointer), *(("i64", n) for n in (*x.extents, *x.strides))]
        return [(numbers.held(v.type), x)]

    def unflat(self, v: SSAValue, names: list[str]) -> None:
        """Bind a value to registers taken from the front of `names`."""
        if isinstance(v.type, ArrayType):
            r = v.type.rank
            self.env[v] = ArrayValue(
                names.pop(0),
                tuple(names.pop(0) for _ in range(r)),
                tuple(names.pop(0) for _ in range(r)),
            )
        else:
            self.env[v] = names.pop(0)

    def carry(
        self, values: Sequence[SSAValue], buffers: Sequence[Buffer]
    ) -> dict[SSAValue, Buffer]:
        """Block arguments (or results) of tile type bound to their buffers."""
        bound = dict(zip(tiles(values), buffers, strict=False))
        self.env.update(bound)
        return bound

    def for_(self, op: scf.ForOp) -> None:
        f, block = self.f, op.body.block
        self.enter(op)
        buffers = self.initial(op.iter_args)
        scalars = [v for v in op.iter_args if not isinstance(v.type, TileType)]
        first = [pair for v in scalars for pair in self.flat(v)]
        t = numbers.held(op.lb.type)
        low, high, step = (self.env[v] for v in (op.lb, op.ub, op.step))
        before, head, inside, done = f.block, f.fresh("for"), f.fresh("do"), f.fresh("end")
        f.branch(head)
        f.label(head)
        phis, i = f.section(), f.fresh("i")
        names = [f.fresh("c") for _ in first]
        f.branch_if(
            f.emit(f"icmp {'ult' if is_unsigned(op.lb.type) else 'slt'} {t} {i}, {high}"),
            inside,
            done,
        )
        f.label(inside)
        return_if_stopped(f)
        self.env[block.args[0]] = i
        left = list(names)
        for v in block.args[1:]:
            if not isinstance(v.type, TileType):
                self.unflat(v, left)
        last = self.loop_body(
            block, self.carry(block.args[1:], buffers), buffers, block.last_op.operands
        )
        following = f.emit(f"add {t} {i}, {step}")
        phis.append(f"  {i} = phi {t} [{low}, {before}], [{following}, {f.block}]")
        for name, (u, x), (_, y) in zip(names, first, last, strict=False):
            phis.append(f"  {name} = phi {u} [{x}, {before}], [{y}, {f.block}]")
        f.branch(head)
        f.label(done)
        self.results(op, buffers, list(names))

    def loop_body(
        self, block: Block, carried: dict, buffers: Sequence[Buffer], yielded: Sequence[SSAValue]
    ) -> list[tuple[str, str]]:
        """The body, then the yielded tiles into `buffers`; the registers of the yielded scalars."""
        self.carried = carried
        self.body(block)
        saved = self.block, self.buffers
        self.block, self.buffers = block, self.at_end
        self.give(buffers, tiles(yielded))
        last = [pair for v in yielded if not isinstance(v.type, TileType) for pair in self.flat(v)]
        for b in {id(b): b for b in self.buffers.values() if not b.fixed}.values():
            self.release(b.offset, b.bytes)
        for v in self.buffers:
            self.env.pop(v, None)  # also outer tiles that only this region computed
        self.block, self.buffers = saved
        return last

    def results(self, op: Operation, buffers: Sequence[Buffer], names: list[str]) -> None:
        for v in op.results:
            if not isinstance(v.type, TileType):
                self.unflat(v, names)
        for v, b in zip(tiles(op.results), buffers, strict=False):
            b.fixed = False
            self.own(v, b)

    def if_(self, op: scf.IfOp) -> None:
        f = self.f
        self.enter(op)
        buffers = [self.buffer(v.type) for v in tiles(op.results)]
        for b in buffers:
            b.fixed = True
        yes, no, end = f.fresh("then"), f.fresh("else"), f.fresh("end")
        f.branch_if(self.env[op.cond], yes, no)
        ends = []
        for label, region in ((yes, op.true_region), (no, op.false_region)):
            f.label(label)
            last = (
                self.loop_body(region.block, {}, buffers, region.block.last_op.operands)
                if region.blocks
                else []
            )
            ends.append((f.block, last))
            f.branch(end)
        f.label(end)
        names = [
            f.emit(f"phi {t} [{x}, {ends[0][0]}], [{y}, {ends[1][0]}]")
            for (t, x), (_, y) in zip(ends[0][1], ends[1][1], strict=False)
        ]
        self.results(op, buffers, names)

    def while_(self, op: scf.WhileOp) -> None:
        f, before, after = self.f, op.before_region.block, op.after_region.block
        self.enter(op)
        buffers = self.initial(op.arguments)
        passed = [self.buffer(v.type) for v in tiles(op.results)]
        for b in passed:
            b.fixed = True
        first = [
            pair for v in op.arguments if not isinstance(v.type, TileType) for pair in self.flat(v)
        ]
        start, head, inside, done = f.block, f.fresh("while"), f.fresh("do"), f.fresh("end")
        f.branch(head)
        f.label(head)
        phis, names = f.section(), [f.fresh("c") for _ in first]
        left = list(names)
        for v in before.args:
            if not isinstance(v.type, TileType):
                self.unflat(v, left)
        condition, *forwarded = before.last_op.operands
        return_if_stopped(f)
        through = self.loop_body(before, self.carry(before.args, buffers), passed, forwarded)
        f.branch_if(self.env[condition], inside, done)
        f.label(inside)
        left = [x for _, x in through]
        for v in after.args:
            if not isinstance(v.type, TileType):
                self.unflat(v, left)
        last = self.loop_body(
            after, self.carry(after.args, passed), buffers, after.last_op.operands
        )
        for name, (t, x), (_, y) in zip(names, first, last, strict=False):
            phis.append(f"  {name} = phi {t} [{x}, {start}], [{y}, {f.block}]")
        f.branch(head)
        f.label(done)
        self.results(op, passed, [x for _, x in through])
        for b in buffers:
            b.fixed = False
            self.release(b.offset, b.bytes)
