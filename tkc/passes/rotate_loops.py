"""rotate-loops: a loop's last dot moves into the next iteration, beside that iteration's first: tensor cores and vector work overlap.

Where a dot's factor is computed from another dot of the same iteration, the two wait for each other with vector work between. Taken one
iteration late, the second dot has all it needs when an iteration begins, and both run while … the vector work of neither waits:

    for n:  s = q·k[n]                            if there is an iteration:
            p, r = softmax(s, …)                    s = q·k[0];  p, r = softmax(s, …);  t = o·r
            o = o·r + p·v[n]             ->         for n from 1:
                                                      s = q·k[n]                 these two do not depend
                                                      o = t + p·v[n − 1]         on each other
                                                      p, r = softmax(s, …);  t = o·r
                                                    o = t + p·v[last]

A dot is taken late if a factor of it comes from another dot of its iteration, its sum only goes round the loop, and what it alone
needs (its other factor's load) can be computed from the earlier iteration's counter. What crosses to the next iteration is carried.
Everything is data flow; the values are those of the loop as it was, bit for bit.
"""
from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue

from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.rewrite import before, clone_slice, counted_slice, defining_slice, replace, stamp
from tkc.passes import PassContext


def run(module: ModuleOp, context: PassContext) -> None:
    if context.plan is None or not context.plan.rotate: return
    for kernel in module.body.block.ops:
        for loop in [op for op in kernel.walk() if isinstance(op, scf.ForOp)]:
            late = late_dot(loop)
            if late is None: continue
            Rotation(loop, late, context.plan.fuse).run()
            context.decisions.append(f"rotate-loops: a dot of {late_shape(late)} runs beside the next iteration's")


def late_shape(dot: tile.Dot) -> str: return "x".join(map(str, (*dot.acc.type.extents, dot.a.type.extents[-1])))


def late_dot(loop: scf.ForOp) -> tile.Dot | None:
    """The dot of a loop that can be taken one iteration late; None if there is none, or more than one."""
    body = loop.body.block
    dots = [op for op in body.ops if isinstance(op, tile.Dot)]
    found = [d for d in dots if any(_reaches(other.result, d.a, body) for other in dots if other is not d)]
    if len(dots) != 2 or len(found) != 1: return None
    dot = found[0]
    if not dot.result.has_one_use() or dot.result.first_use.operation is not body.last_op: return None
    carried = body.args[1 + dot.result.first_use.index]
    own = [v for op in _own(dot) for v in op.operands if v.owner not in _own(dot)]
    if not _reaches(carried, dot.acc, body) or counted_slice(own, loop, lambda op: isinstance(op, tile.Load) and not op.regions) is None: return None
    return dot


def _reaches(start: SSAValue, end: SSAValue, body: Block) -> bool:
    work, seen = [end], set()
    while work:
        v = work.pop()
        if v is start: return True
        if v in seen or isinstance(v.owner, Block) or v.owner.parent is not body: continue
        seen.add(v)
        work += [o for op in v.owner.walk() for o in op.operands]
    return False


def _own(dot: tile.Dot) -> list[Operation]:
    """What a dot alone needs: its right factor's views and load, in order."""
    ops, value = [], dot.b
    while isinstance(value.owner, (tile.Transpose, tile.Load)) and value.has_one_use():
        ops.insert(0, value.owner)
        if isinstance(value.owner, tile.Load): break
        value = value.owner.arg
    return ops


class Rotation:
    def __init__(self, loop: scf.ForOp, dot: tile.Dot, fuse: bool = False):
        self.loop, self.dot, self.body, self.fuse = loop, dot, loop.body.block, fuse
        self.delayed = [*_own(dot), dot]
        self.index = dot.result.first_use.index                      # of the sum among the carried values
        self.others = [op for op in self.body.ops if op not in self.delayed and op is not self.body.last_op]
        self.needed = self._addresses()

    def _addresses(self) -> list[Operation]:
        """What the delayed operations' offsets are computed from: cheap, and computed again for the earlier counter."""
        return [op for op in defining_slice([v for op in self.delayed[:-1] for v in op.operands], self.body) if op not in self.delayed]

    def run(self) -> None:
        loop, body = self.loop, self.body
        some = before(loop, CLASSES["lt"](loop.lb, loop.ub)).result
        yes, no = Block(), Block([stamp(scf.YieldOp(*loop.iter_args), loop)])
        branch = scf.IfOp(some, [v.type for v in loop.iter_args], Region(yes), Region(no))
        anchor = stamp(scf.YieldOp(), loop)
        yes.add_op(anchor)
        # the first iteration, all but the late dot; its first dot harms nobody where there is no iteration, and may run ahead with the program before
        head, mapping = self._head(loop, loop.lb, list(loop.iter_args), [op for op in self.others if isinstance(op, tile.Dot)]) if self.fuse else (set(), {})
        yields, p, sum_ = self._vector(anchor, loop.lb, list(loop.iter_args), head, mapping)
        # the rest
        inner = Block(arg_types=[loop.lb.type, *(v.type for i, v in enumerate(loop.iter_args) if i != self.index), p.type, sum_.type, loop.lb.type])
        start = before(anchor, CLASSES["add"](loop.lb, loop.step)).result
        rest = [v for i, v in enumerate(yields) if i != self.index]
        for new, old in zip(inner.args[1:], [a for i, a in enumerate(body.args[1:]) if i != self.index]): new.name_hint = old.name_hint
        inner.args[0].name_hint = body.args[0].name_hint
        rotated = before(anchor, scf.ForOp(start, loop.ub, loop.step, [*rest, p, sum_, loop.lb], Region(inner)))
        end = stamp(scf.YieldOp(), loop)
        inner.add_op(end)
        *carried, p_before, sum_before, earlier = inner.args[1:]
        dots = [op for op in self.others if isinstance(op, tile.Dot)]
        arguments = [*carried[:self.index], None, *carried[self.index:]]
        head, mapping = self._head(end, inner.args[0], arguments, dots)
        total = self._late(end, earlier, p_before, sum_before)
        arguments[self.index] = total
        yields, p, sum_ = self._vector(end, inner.args[0], arguments, head, mapping)
        end.operands = [*(v for i, v in enumerate(yields) if i != self.index), p, sum_, inner.args[0]]
        # the last late dot
        *kept, p_last, sum_last, last = rotated.results
        total = self._late(anchor, last, p_last, sum_last)
        anchor.operands = [*kept[:self.index], total, *kept[self.index:]]
        before(loop, branch)
        replace(loop, list(branch.results))

    def _head(self, anchor: Operation, counter: SSAValue, arguments: list, dots: list[tile.Dot]) -> tuple[set[Operation], dict]:
        """The first dot and what it is computed from, at the start of an iteration."""
        first, mapping = set(defining_slice([dot.result for dot in dots], self.body)), self._mapping(counter, arguments)
        clone_slice((op for op in self.others if op in first), mapping, anchor)
        return first, mapping

    def _mapping(self, counter: SSAValue, arguments: list) -> dict[SSAValue, SSAValue]:
        return {self.body.args[0]: counter} | {a: v for a, v in zip(self.body.args[1:], arguments) if v is not None}

    def _vector(self, anchor: Operation, counter: SSAValue, arguments: list, done: set[Operation] = frozenset(), mapping: dict | None = None):
        """An iteration without its late dot: what it yields, the factor and the sum for that dot."""
        mapping = mapping if mapping is not None else {}
        mapping |= self._mapping(counter, arguments)
        clone_slice((op for op in self.others if op not in done), mapping, anchor)
        get = lambda v: mapping.get(v, v)
        return [get(v) for v in self.body.last_op.operands], get(self.dot.a), get(self.dot.acc)

    def _late(self, anchor: Operation, counter: SSAValue, factor: SSAValue, sum_: SSAValue) -> SSAValue:
        """The late dot of the iteration with that counter."""
        mapping = {self.body.args[0]: counter, self.dot.a: factor, self.dot.acc: sum_}
        clone_slice((*self.needed, *self.delayed), mapping, anchor)
        return mapping[self.dot.result]
