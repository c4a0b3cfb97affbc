"""Passes: each a module with `run(module, context)`, which changes the IR in place, or raises.

`PassContext` is all a pass knows besides the IR: the machine, the user's options, the plan
once it is made, and the list in which every pass writes what it decided and why, a sentence a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tkc.ir.plan import Plan
from tkc.ir.target import Target
from tkc.passes.analysis.remembered import Memory


@dataclass(frozen=True, match_args=False)
class LaunchOptions(Protocol):
    """What the user may narrow a plan with; None leaves it to the plan.
    (`tkc.language.signature.Options` is one.)
    """

    num_warps: int | None = None
    suggested_warps: int | None = None
    num_stages: int | None = None
    num_ctas: int = 1
    cluster: tuple[int, int] | None = None
    maxnreg: int | None = None
    roles: str | None = None
    programs: int | None = None
    raster: int | None = None
    serpentine: bool | None = None
    retain: bool | None = None
    split_k: int | None = None
    stream_k: int | None = None
    sum_parts: int | None = None
    persistent: bool | None = None
    register_transpose: bool | None = None
    relax: bool | None = None
    cross_tile_prologue: bool | None = None
    rotate: bool | None = None
    left_operand: str | None = None
    swap_dots: bool | None = None
    epilogue: str | None = None
    store_columns: int | None = None
    subtiles: int | None = None
    split_warps: tuple[int, int] | None = None
    dynamic_schedule: bool | None = None
    prefetch: bool | None = None
    row_parts: int | None = None
    dependent: bool | None = None
    beside: bool | None = None
    debug: int = 0


@dataclass(frozen=True)
class Free(LaunchOptions):
    """The options of a launch without any."""


@dataclass
class PassContext:
    """Shared by the passes of one compilation."""

    target: Target
    options: LaunchOptions = Free()
    plan: Plan | None = None
    # the plan of the program as it is now, where a pass has made it before `plan` runs
    early_plan: Plan | None = None
    decisions: list[str] = field(default_factory=list)
    # By `roles`: bytes of shared memory that such a plan must leave, since the passes after an
    # earlier one needed more than it had left.
    lack: dict[str, int] = field(default_factory=dict)
    # of the passes that plan the program
    memory: Memory = field(default_factory=Memory, repr=False, compare=False)

    def room(self, roles: str = "one") -> int:
        """Bytes of shared memory on which a plan may count."""
        return self.target.shared_bytes - self.lack.get(roles, 0)

    @property
    def has_roles(self) -> bool:
        """Whether the plan gives warps roles: a producer, consumers."""
        return self.plan is not None and self.plan.roles != "one"

    @property
    def overlaps(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of array arguments that share memory in this specialization."""
        return dict(getattr(self.options, "extra", ())).get("overlaps", ())
