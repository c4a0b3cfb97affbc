"""Loops and branches. A tile that a loop carries stays in one buffer, so that an accumulator is
never copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.codegen.cpu import numbers
from tkc.codegen.cpu.entry import give_way, return_if_stopped
from tkc.codegen.cpu.maths import Integers
from tkc.codegen.cpu.nest import moves_elements
from tkc.codegen.cpu.planning import MAX_RECOMPUTED_COST, WRITES, Planning
from tkc.codegen.cpu.values import Buffer
from tkc.ir import tile
from tkc.ir.ranges import Ranges
from tkc.ir.types import TileType, bits, is_unsigned
from tkc.ir.values import (
    block_of,
    operands_first,
    operations_in,
    owner_op,
    terminator_of,
    tiles,
    yielded_by,
)

Registers = list[tuple[str, str]]  # type and name of each


def scalars(values: Sequence[SSAValue]) -> list[SSAValue]:
    """Those of the values that are no tiles."""
    return [v for v in values if not isinstance(v.type, TileType)]


class Control(Planning):
    """The part of the lowering that writes operations with regions."""

    # tiles that enter the next block as its arguments
    carried: dict[SSAValue, Buffer]
    # of the block that was written last: what liveness may release
    at_end: dict[SSAValue, Buffer]

    # ----------------------------------------------------------------------------------------------
    def outside(self, op: Operation) -> list[SSAValue]:
        """Values of this and outer blocks that the regions of an operation use."""
        found: dict[SSAValue, None] = {}
        for inner in op.walk():
            for v in inner.operands:
                home = v.owner if isinstance(v.owner, Block) else block_of(v.owner)
                if not _is_inside(home, op):
                    found[v] = None
        return list(found)

    def enter(self, op: Operation) -> None:
        """Before a region: what it uses and should not compute again and again gets a buffer, as do
        loads whose memory it changes.
        """
        self.lazy_outside(op)
        acquires = [w for w in operations_in(op, tile.LoadPointers) if w.semantics is not None]
        writes = operations_in(op, WRITES)
        if acquires or any(isinstance(w, tile.Atomic) for w in writes):
            self.force_loads(op)
        elif writes:
            self.force_loads(op, writes)

    def lazy_outside(self, op: Operation) -> None:
        """Buffers for tiles of outer blocks that an operation's regions should not compute."""
        direct = set(op.operands)
        for v in tiles(self.outside(op)):
            nested = v not in direct or any(u.operation is not op for u in v.uses)
            if v in self.env or not nested:
                continue
            if (
                self.costs_more([v], MAX_RECOMPUTED_COST // 2)
                or self.reads_memory(v)
                or not self.simple(v)
            ):
                self.materialize(v)

    def simple(self, v: SSAValue) -> bool:
        """Whether a lazy tile is computed without a reshape that needs a buffer."""
        return not any(
            self._is_computed(x) and moves_elements(owner_op(x))
            for x in operands_first(v, self._lazy_operands)
        )

    def initial(self, inits: Sequence[SSAValue]) -> list[Buffer]:
        """Buffers for the tiles that a loop carries, holding their first values."""
        out = []
        for init in tiles(inits):
            if init in self.buffers and not self.buffers[init].fixed and len(list(init.uses)) == 1:
                b = self.buffers.pop(init)
            else:
                b = self.buffer_for(init)
                self.fill(b, init)
            b.fixed = True
            out.append(b)
        return out

    # ----------------------------------------------------------------------------------------------
    def give(self, targets: Sequence[Buffer], values: Sequence[SSAValue]) -> None:
        """All values into their buffers at once: none is overwritten that another needs."""
        pairs = zip(targets, values, strict=True)
        work = [(b, v) for b, v in pairs if self.env.get(v) is not b]
        while work:
            ready = next((n for n in range(len(work)) if self._may_be_given(work, n)), None)
            if ready is not None:
                self.fill(*work.pop(ready))
                continue
            computed = next((v for _, v in work if v not in self.env), None)
            if computed is not None:
                self.materialize(computed)
                continue
            # a cycle of plain buffers: copy one aside
            b, v = work.pop(0)
            aside = self.buffer_for(v)
            self.fill(aside, v)
            work.append((b, self.alias(aside)))

    def _may_be_given(self, work: list[tuple[Buffer, SSAValue]], n: int) -> bool:
        """Whether the n-th buffer may be overwritten: its own value reads it in place, if at all,
        and no other value does.
        """
        b, v = work[n]
        others = [o for m, (_, o) in enumerate(work) if m != n]
        return all(
            same_index for x, same_index in self.leaves(v).items() if self.env.get(x) is b
        ) and not any(self.env.get(x) is b for o in others for x in self.leaves(o))

    def flat(self, values: Sequence[SSAValue]) -> Registers:
        """The registers of scalars; tiles have none."""
        return [(numbers.held(v.type), self.env.register(v)) for v in scalars(values)]

    def unflat(self, values: Sequence[SSAValue], names: Sequence[str]) -> None:
        """The inverse of `flat`: binds scalars to registers, in their order."""
        self.env.update(zip(scalars(values), names, strict=True))

    def carry(
        self, values: Sequence[SSAValue], buffers: Sequence[Buffer]
    ) -> dict[SSAValue, Buffer]:
        """Block arguments (or results) of tile type bound to their buffers."""
        bound = dict(zip(tiles(values), buffers, strict=True))
        self.env.update(bound)
        return bound

    # ----------------------------------------------------------------------------------------------
    def for_(self, op: scf.ForOp) -> None:
        """A loop that counts."""
        f, block = self.f, op.body.block
        self.enter(op)
        buffers = self.initial(op.iter_args)
        first = self.flat(op.iter_args)
        t = numbers.held(op.lb.type)
        low, high, step = (self.env.register(v) for v in (op.lb, op.ub, op.step))
        last = self._last(op, t, high, step)
        before, head, inside, done = f.block, f.fresh("for"), f.fresh("do"), f.fresh("end")
        f.branch(head)
        f.label(head)
        phis, i = f.section(), f.fresh("i")
        names = [f.fresh("c") for _ in first]
        less = "ult" if is_unsigned(op.lb.type) else "slt"
        f.branch_if(f.emit(f"icmp {less} {t} {i}, {high}"), inside, done)
        f.label(inside)
        return_if_stopped(f)
        self.env[block.args[0]] = i
        self.unflat(block.args[1:], names)
        carried = self.carry(block.args[1:], buffers)
        yielded = self.loop_body(block, carried, buffers, yielded_by(block))
        following = f.emit(f"add {t} {i}, {step}")
        if last:
            more = f.emit(f"icmp {less} {t} {i}, {last}")
            following = f.emit(f"select i1 {more}, {t} {following}, {t} {high}")
        phis.append(f"  {i} = phi {t} [{low}, {before}], [{following}, {f.block}]")
        phis += _phis(names, before, first, f.block, yielded)
        f.branch(head)
        f.label(done)
        self.results(op, buffers, names)

    def _last(self, op: scf.ForOp, t: str, high: str, step: str) -> str:
        """What a loop's counter is less than where another iteration follows; nothing where it
        cannot wrap past its bound.
        """
        if not Ranges().may_wrap(op):
            return ""
        f, unsigned = self.f, is_unsigned(op.lb.type)
        i = Integers(f, 1, bits(op.lb.type))
        least = 0 if unsigned else -1 << bits(op.lb.type) - 1
        reached = i.op("add", step, least)
        is_beyond = i.test("ugt" if unsigned else "sgt", high, reached)
        return i.op("sub", i.pick(is_beyond, high, reached), step)

    def loop_body(
        self,
        block: Block,
        carried: dict[SSAValue, Buffer],
        buffers: Sequence[Buffer],
        yielded: Sequence[SSAValue],
    ) -> Registers:
        """The body, then the yielded tiles into `buffers`; the registers of the yielded scalars."""
        self.carried = carried
        self.body(block)
        saved = self.block, self.buffers
        self.block, self.buffers = block, self.at_end
        self.give(buffers, tiles(yielded))
        last = self.flat(yielded)
        for b in {id(b): b for b in self.buffers.values() if not b.fixed}.values():
            self.release(b.offset, b.bytes)
        for v in self.buffers:
            self.env.pop(v, None)  # also outer tiles that only this region computed
        self.block, self.buffers = saved
        return last

    def results(self, op: Operation, buffers: Sequence[Buffer], names: Sequence[str]) -> None:
        """The results of a loop or branch, in buffers and registers."""
        self.unflat(op.results, names)
        for v, b in zip(tiles(op.results), buffers, strict=True):
            b.fixed = False
            self.own(v, b)

    def _fixed_buffers(self, op: Operation) -> list[Buffer]:
        """Buffers for the tiles among an operation's results, that liveness does not release."""
        buffers = [self.buffer_for(v) for v in tiles(op.results)]
        for b in buffers:
            b.fixed = True
        return buffers

    def if_(self, op: scf.IfOp) -> None:
        """A branch."""
        f = self.f
        self.enter(op)
        buffers = self._fixed_buffers(op)
        yes, no, end = f.fresh("then"), f.fresh("else"), f.fresh("end")
        f.branch_if(self.env.register(op.cond), yes, no)
        ends: list[tuple[str, Registers]] = []
        for label, region in ((yes, op.true_region), (no, op.false_region)):
            f.label(label)
            last: Registers = []
            if region.blocks:
                last = self.loop_body(region.block, {}, buffers, yielded_by(region.block))
            ends.append((f.block, last))
            f.branch(end)
        f.label(end)
        (end_yes, from_yes), (end_no, from_no) = ends
        names = [f.fresh("c") for _ in from_yes]
        for line in _phis(names, end_yes, from_yes, end_no, from_no):
            f.do(line.strip())
        self.results(op, buffers, names)

    def while_(self, op: scf.WhileOp) -> None:
        """A loop that its own condition ends."""
        f, before, after = self.f, op.before_region.block, op.after_region.block
        self.enter(op)
        buffers = self.initial(op.arguments)
        passed = self._fixed_buffers(op)
        first = self.flat(op.arguments)
        start, head, inside, done = f.block, f.fresh("while"), f.fresh("do"), f.fresh("end")
        f.branch(head)
        f.label(head)
        phis, names = f.section(), [f.fresh("c") for _ in first]
        self.unflat(before.args, names)
        condition, *forwarded = terminator_of(before).operands
        return_if_stopped(f)
        carried = self.carry(before.args, buffers)
        through = [x for _, x in self.loop_body(before, carried, passed, forwarded)]
        f.branch_if(self.env.register(condition), inside, done)
        f.label(inside)
        if any(tile.watches(inner) for inner in op.walk()):
            give_way(f)
        self.unflat(after.args, through)
        last = self.loop_body(after, self.carry(after.args, passed), buffers, yielded_by(after))
        phis += _phis(names, start, first, f.block, last)
        f.branch(head)
        f.label(done)
        self.results(op, passed, through)
        for b in buffers:
            b.fixed = False
            self.release(b.offset, b.bytes)


def _is_inside(block: Block, op: Operation) -> bool:
    """Whether a block lies in a region of an operation."""
    parent = block.parent_op()
    while parent is not None and parent is not op:
        parent = parent.parent_op()
    return parent is op


def _phis(
    names: Sequence[str], block: str, values: Registers, other: str, others: Registers
) -> list[str]:
    """One line a name: the value that comes from a block, or from the other one."""
    return [
        f"  {name} = phi {t} [{x}, {block}], [{y}, {other}]"
        for name, (t, x), (_, y) in zip(names, values, others, strict=True)
    ]
