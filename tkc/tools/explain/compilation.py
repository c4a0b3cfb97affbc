"""A compilation that keeps everything: the IR after each step with its locations, what came out of
it, and of one that failed how far it got and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tkc.compiler import Compiled, compile
from tkc.errors import Error
from tkc.runtime.specialize import signature
from tkc.tools.explain.listing import Listing, of_ir

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tkc.runtime.kernel import Kernel


@dataclass
class Compilation:
    """steps: the IR after each, by name; before_plan, final: the modules themselves, as far as the
    compilation got; compiled: None where it failed, with `error`.
    """

    steps: dict[str, Listing] = field(default_factory=dict)
    before_plan: ModuleOp | None = None
    final: ModuleOp | None = None
    compiled: Compiled | None = None
    error: Error | None = None

    @property
    def reached(self) -> str:
        """The last step that ended; "" where tracing failed."""
        return next(reversed(self.steps), "")


def compilation(kernel: Kernel, infos: Sequence, options: dict, target: str) -> Compilation:
    """Compiles anew, past every cache. Only errors of tkc are kept; others are raised."""
    from tkc.ir.text import show
    from tkc.passes.pipeline import BEFORE_PLAN

    made = Compilation()

    def observe(step: str, module: ModuleOp) -> None:
        if step == "trace":  # the first, or again with less shared memory
            made.steps.clear()
            made.before_plan = made.final = None
        if step == BEFORE_PLAN:
            made.before_plan = module.clone()
        made.final = module
        made.steps[step] = of_ir(show(module, locations=True))

    try:
        described = signature(kernel._specialize(infos, tuple(options.items())))
        made.compiled = compile(kernel.fn, described, target, observe)
        made.compiled.again = lambda seen: compile(kernel.fn, described, target, seen)
    except Error as error:
        made.error = error
    return made
