"""What roles are asked for: a program's dots and loads, and what no plan with roles can do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from xdsl.dialects import scf

from tkc.ir import tile
from tkc.ir.plan import Plan
from tkc.passes import LaunchOptions, PassContext
from tkc.passes.analysis.alias import Overlaps
from tkc.passes.planning.converting import Conversion, converted
from tkc.passes.planning.gathers import copied_by_threads
from tkc.passes.planning.operands import (
    Sides,
    all_along_n,
    along_n,
    by_block,
    lay_by_consumers,
    narrow_panels,
    relaid_loads,
    why_not_wgmma,
)
from tkc.passes.planning.order import (
    OBSERVED,
    acquiring_loops,
    keep_in_order,
    observing_operations,
    operands_depend_on_others,
    why_not_claimed,
    work_claims,
)
from tkc.passes.planning.program import Program
from tkc.passes.planning.rings import operand_loads


class NoRoles(Exception):
    """A program has no plan with roles. The text is the reason, without a stop."""


@dataclass(frozen=True)
class RoleRequest:
    """A program, the options that narrow its plan, and what its roles must respect.

    plan: the one without roles. single: why a block has one program at a time, where that is known.
    copies_wait: producers wait for what consumers store. claims: programs take numbers from
    counters. waits: programs wait for signals, or observe one another by
    other operations.
    """

    program: Program
    context: PassContext
    plan: Plan
    options: LaunchOptions
    single: str
    copies_wait: bool
    claims: bool
    waits: bool

    @staticmethod
    def of(program: Program, context: PassContext, plan: Plan, single: str) -> RoleRequest:
        """Raises NoRoles where options, the target, the order of programs or a dot forbid roles.
        Marks loads that must stay where they are.
        """
        options, kernel = context.options, program.kernel
        if not context.target.wgmma:
            raise NoRoles(f"{context.target.name} has no wgmma")
        copies_wait = keep_in_order(kernel, program.loads, options, context.overlaps)
        observes = bool(observing_operations(kernel))
        if copies_wait and options.epilogue != "direct":
            # a store by a tensor map would have to be over before its threads say so
            options = replace(options, epilogue="shared")
        _check_options(options)
        if unclaimed := why_not_claimed(kernel, context.overlaps):
            raise NoRoles(unclaimed)
        if operands_depend_on_others(program.loads, kernel, context.overlaps):
            raise NoRoles(OBSERVED)
        lay_by_consumers(program.dots, options)
        narrow_panels(program.dots, options)
        for dot in program.dots:
            if reason := why_not_wgmma(dot, options):
                raise NoRoles(reason)
        return RoleRequest(
            program,
            context,
            plan,
            options,
            single,
            copies_wait,
            claims=bool(work_claims(kernel)) and not observes,
            waits=bool(acquiring_loops(kernel)) or observes,
        )

    @property
    def kernel(self) -> tile.Kernel:
        return self.program.kernel

    @property
    def dots(self) -> tuple[tile.Dot, ...]:
        return self.program.dots

    @property
    def overlaps(self) -> Overlaps:
        return self.context.overlaps

    @cached_property
    def heights(self) -> frozenset[int]:
        """Rows of the dots' results, as warpgroups hold them; not of the short ones."""
        by_rows = [dot for dot in self.dots if dot not in self.short_dots]
        return frozenset(self.sides(dot).m for dot in by_rows)

    @cached_property
    def short_dots(self) -> frozenset[tile.Dot]:
        """Those whose columns warpgroups share that share the rows of others."""
        if not self.by_rows:
            return frozenset()
        return frozenset(dot for dot in self.dots if along_n(dot, self.options) > 1)

    @cached_property
    def rows(self) -> int:
        """Of which each of these has a multiple."""
        return gcd(*self.heights)

    @cached_property
    def dots_by_block(self) -> list[list[tile.Dot]]:
        return by_block(self.dots)

    @cached_property
    def loops(self) -> list[scf.ForOp]:
        """The loops that dots stand in."""
        around = [here[0].parent_op() for here in self.dots_by_block]
        return [op for op in around if isinstance(op, scf.ForOp)]

    @property
    def lone_loop(self) -> scf.ForOp | None:
        """The one loop that has all dots, where there is one."""
        return self.loops[0] if self.loops and len(self.dots_by_block) == 1 else None

    @property
    def main_loop(self) -> scf.ForOp | None:
        """The one loop that has dots, where there is one; there may be dots outside of loops."""
        return self.loops[0] if len(self.loops) == 1 else None

    @property
    def by_rows(self) -> bool:
        """Whether warpgroups share the rows of some dots, not the columns of all."""
        return all_along_n(self.options) == 1

    @cached_property
    def operand_loads(self) -> list[tile.Load]:
        loads = operand_loads(self.dots, self.options)
        loads += [load for made in self.converted for load in made.loads]
        return list(dict.fromkeys(loads))

    @cached_property
    def converted(self) -> list[Conversion]:
        """What a role of its own computes for dots (planning/converting.py)."""
        return converted(self.dots, self.options, self.overlaps)

    @cached_property
    def relaid(self) -> list[tile.Load]:
        """What a role of its own relays for dots (layouts/relayout.py)."""
        found = (load for dot in self.dots for load, _ in relaid_loads(dot, self.options))
        return list(dict.fromkeys(found))

    @cached_property
    def copied_by_threads(self) -> list[tile.Load]:
        """What a role of threads copies, because tensor maps do not."""
        return [load for load in self.operand_loads if copied_by_threads(load)]

    @property
    def has_third_role(self) -> bool:
        """Whether there is a role beside producer and consumers."""
        return bool(self.relaid or self.converted or self.copied_by_threads)

    def sides(self, dot: tile.Dot) -> Sides:
        """How wgmma takes a dot."""
        return Sides.of(dot, self.options)


def _check_options(options: LaunchOptions) -> None:
    """Raises NoRoles where the options leave no roles."""
    if options.roles == "one":
        raise NoRoles("roles = 'one', as asked")
    if options.num_warps not in (None, 4, 8, 12, 16):
        raise NoRoles(f"num_warps = {options.num_warps}: roles have 4, 8, 12 or 16 compute warps")
    if options.split_warps and options.roles is None:
        raise NoRoles(f"split_warps = {options.split_warps}: one role, unless roles are asked for")
