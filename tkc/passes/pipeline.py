"""The pass pipeline: which passes run, in which order, from level 0 to level 4."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from xdsl.dialects.builtin import ModuleOp

from tkc.errors import CompileError, RoomError
from tkc.ir.plan import Plan, written_on
from tkc.ir.target import Target
from tkc.ir.tile import Kernel
from tkc.ir.verify import Verified, verify
from tkc.passes import LaunchOptions, PassContext

PIPELINE = (
    "order-launches",
    "simplify",
    "unroll-loops",
    "merge-loads",
    "raise-pointers",
    "widen-float8",
    "fit-results",
    "fit-dots",
    "fit-rows",
    "match-heights",
    "stream-operands",
    "separate-operands",
    "shorten-exponentials",
    "plan",
    "swap-dots",
    "split-sums",  # level 0
    "split-masked-loops",
    "rotate-loops",
    "relax-stabilizers",
    "schedule-programs",
    "stagger-programs",
    "fetch-ahead",
    "select-layouts",
    "defer-reductions",  # level 1
    "swizzle-shared",  # level 2
    "pipeline-async-copies",  # level 3
    "schedule-warpgroups",
    "double-buffer-exchanges",
    "allocate-shared",
    "insert-synchronization",  # level 4
    "index-registers",
    "assign-registers",
)


# after these the compiler verifies: where layouts are chosen, and at the end
VERIFIED = frozenset(("defer-reductions", PIPELINE[-1]))
# the step whose program is the one that is planned: its loads and dots are those of the plan
BEFORE_PLAN = PIPELINE[PIPELINE.index("plan") - 1]
# four kinds of plans, each replanned once or twice with less shared memory
MAX_PLANNING_ROUNDS = 8
T = TypeVar("T")


def module_of(name: str) -> ModuleType:
    """The module of a pass: `swizzle-shared` is tkc.passes.swizzle_shared."""
    return import_module(f"tkc.passes.{name.replace('-', '_')}")


def uses_reals(name: str, module: ModuleOp) -> bool:
    """Whether a pass rewrites this module by facts of real numbers (0.5 + 0.5 is 1), which exact
    ring arithmetic does not share: the pass says `REAL = True`, or `REAL` is a function of the
    module.
    """
    if name not in PIPELINE:
        return False
    real = getattr(module_of(name), "REAL", False)
    return real(module) if callable(real) else real


def unordered(name: str) -> bool:
    """Whether a pass leaves level 4 without the barriers of insert-synchronization."""
    return name in PIPELINE and PIPELINE.index(name) < PIPELINE.index("insert-synchronization")


def planned(module: ModuleOp) -> Plan | None:
    """The plan that a kernel of the module carries."""
    return next(
        (
            plan
            for kernel in module.body.block.ops
            if isinstance(kernel, Kernel) and (plan := written_on(kernel)) is not None
        ),
        None,
    )


def resumes(name: str) -> bool:
    """Whether a pipeline that begins with this pass goes on with what was planned before."""
    return PIPELINE.index(name) > PIPELINE.index("plan")


def run(
    module: ModuleOp,
    target: Target,
    options: LaunchOptions,
    observe: Callable[[str, ModuleOp], None] | None = None,
    start: str | None = None,
    stop: str | None = None,
    context: PassContext | None = None,
    each: bool = True,
) -> PassContext:
    """Runs the passes (from `start` to `stop`, both included) over the module in place, verifying
    after each, or after those that are VERIFIED. One that starts behind `plan` goes by the plan
    that the kernel carries.

    `observe(name, module)` sees the module after every pass. Raises CompileError where the kernel
    cannot be compiled for the target, VerifyError where a pass left something broken.
    """
    context, verified = (
        context
        or PassContext(target, options, planned(module) if start and resumes(start) else None),
        Verified(),
    )
    names = PIPELINE[
        PIPELINE.index(start) if start else 0 : PIPELINE.index(stop) + 1 if stop else None
    ]
    for name in names:
        module_of(name).run(module, context)
        if each or name in VERIFIED:
            verify(module, f"after {name}", verified)
        if observe is not None:
            observe(name, module)
    return context


def with_room(attempt: Callable[[PassContext], T], target: Target, options: LaunchOptions) -> T:
    """What `attempt` makes under a context, of a module of its own each time. A plan goes by its
    own account of shared memory; where passes behind it need more than it left, the next attempt's
    plan leaves so much more. Raises the first refusal where the stages are as asked, or no plan is
    left."""
    context, first = PassContext(target, options), None
    seen: set[tuple[Plan, int]] = set()
    for _ in range(MAX_PLANNING_ROUNDS):
        try:
            return attempt(context)
        except RoomError as refusal:
            first, plan = first or refusal, context.plan
            asked = options.num_stages is not None
            if plan is None or asked or (plan, refusal.excess) in seen:
                break  # the user fixed the stages, or nothing that the plan can leave helps
            seen.add((plan, refusal.excess))
            lack = context.lack.get(plan.roles, 0) + max(0, plan.spare) + refusal.excess
            context = PassContext(target, options, lack=context.lack | {plan.roles: lack})
        except CompileError:
            if first is None:
                raise
            break
    assert first is not None  # every path here has caught a refusal
    raise first
