"""A stage and its parity, threaded through the whole program: each place that uses them hands those
of the next stage to whatever comes after it, around every loop and through every branch.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tkc.ir.rewrite import rebuild_for, rebuild_if, rebuild_while
from tkc.ir.values import terminator_of, yielded_by


class Carried:
    """Subclasses say which operations use the state (`inside`), and what it is behind a block
    (`thread`).
    """

    def inside(self, op: Operation) -> bool:
        raise NotImplementedError

    def thread(self, block: Block, state: list[SSAValue]) -> list[SSAValue]:
        raise NotImplementedError

    def around(self, op: Operation, state: list[SSAValue]) -> list[SSAValue]:
        """The state behind an operation with regions."""
        match op:
            case scf.ForOp() if self.inside(op):
                return self._loop(op, state)
            case scf.WhileOp() if self.inside(op):
                return self._while(op, state)
            case scf.IfOp() if self.inside(op):
                return self._branch(op, state)
        return state

    def _loop(self, loop: scf.ForOp, state: list[SSAValue]) -> list[SSAValue]:
        count, body = len(loop.iter_args), loop.body.block
        loop = rebuild_for(loop, range(count), state)
        self._body(body)
        return list(loop.results[-2:])

    def _while(self, loop: scf.WhileOp, state: list[SSAValue]) -> list[SSAValue]:
        loop = rebuild_while(loop, state)
        self._body(loop.after_region.block)
        return list(loop.results[-2:])

    def _body(self, body: Block) -> None:
        body.args[-2].name_hint, body.args[-1].name_hint = "stage", "parity"
        ends = self.thread(body, list(body.args[-2:]))
        terminator_of(body).operands = [*yielded_by(body), *ends]

    def _branch(self, branch: scf.IfOp, state: list[SSAValue]) -> list[SSAValue]:
        sides = [
            self.thread(region.block, state) if region.blocks else state
            for region in branch.regions
        ]
        return list(
            rebuild_if(branch, range(len(branch.results)), list(zip(*sides, strict=False))).results[
                -2:
            ]
        )
