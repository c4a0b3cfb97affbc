"""Passes: each a module with `run(module, context)`, which changes the IR in place, or raises.

`PassContext` is all a pass knows besides the IR: the machine, what the user asked for, the plan
once it is made, and the list in which every pass writes what it decided and why, a sentence a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tkc.ir.plan import Plan
from tkc.ir.target import Target


class LaunchOptions(Protocol):
    """What the user may narrow a plan with; None leaves it to the plan.
    (`tkc.language.signature.Options` is one.)
    """

    num_warps: int | None
    num_stages: int | None
    num_ctas: int
    cluster: tuple[int, int] | None
    maxnreg: int | None
    roles: str | None
    programs: int | None
    raster: int | None
    serpentine: bool | None
    retain: bool | None
    split_k: int | None
    stream_k: int | None
    sum_parts: int | None
    persistent: bool | None
    turned: bool | None
    relax: bool | None
    fuse: bool | None
    rotate: bool | None
    left_factor: str | None
    swap_dots: bool | None
    epilogue: str | None
    store_columns: int | None
    slabs: int | None
    split_warps: tuple[int, int] | None
    queue: bool | None
    prefetch: bool | None
    debug: int


@dataclass(frozen=True)
class Free:
    """Options of a user who asks for nothing."""

    num_warps: int | None = None
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
    turned: bool | None = None
    relax: bool | None = None
    fuse: bool | None = None
    rotate: bool | None = None
    left_factor: str | None = None
    swap_dots: bool | None = None
    epilogue: str | None = None
    store_columns: int | None = None
    slabs: int | None = None
    split_warps: tuple[int, int] | None = None
    queue: bool | None = None
    prefetch: bool | None = None
    debug: int = 0


@dataclass
class PassContext:
    """Shared by the passes of one compilation."""

    target: Target
    options: LaunchOptions = Free()
    plan: Plan | None = None
    decisions: list[str] = field(default_factory=list)
    lack: dict[str, int] = field(
        default_factory=dict
        # by `roles`: bytes of shared memory that such a plan must leave, since passes behind an
        # earlier
        # one were found to need more than it had left
    )

    def room(self, roles: str = "one") -> int:
        """Bytes of shared memory on which a plan may count."""
        return self.target.shared_bytes - self.lack.get(roles, 0)

    @property
    def overlaps(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of array arguments that share memory in this specialization."""
        return dict(getattr(self.options, "extra", ())).get("overlaps", ())
