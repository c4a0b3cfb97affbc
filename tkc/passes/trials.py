"""A pass that plans a program as it is and as it could be, and keeps the better one: what such
passes share.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tkc.errors import CompileError
from tkc.ir import tile
from tkc.ir.plan import Plan
from tkc.ir.rewrite import before
from tkc.passes import PassContext
from tkc.passes.plan import plan

ONE_ROLE = "plan: one role with mma.sync: "


def planned(module: ModuleOp, context: PassContext) -> tuple[Plan | None, str]:
    """The plan of a module, if there is one, and why it has no warp roles."""
    try:
        made = plan(module, context)
    except CompileError as e:
        return None, str(e)
    if made.roles != "one":
        return made, ""
    reason = next((d for d in made.decisions if ONE_ROLE in d), "as asked")
    return made, reason.removeprefix(ONE_ROLE)


def with_roles(made: Plan | None) -> Plan | None:
    """A plan, where it has warp roles."""
    return None if made is None or made.roles == "one" else made


def put_in_place(kernel: tile.Kernel, new: tile.Kernel) -> None:
    """Puts the kernel of a trial, with what its plan marked on it, where the kernel stands."""
    new.detach()
    before(kernel, new)
    kernel.detach()
    kernel.erase()
