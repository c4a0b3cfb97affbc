"""What reaches Hopper's engines: `python -m benchmarks.breadth` compiles the plain kernels of
plain_kinds.py for sm_90a and lists of each what multiplies and copies, registers, bytes spilled and
the predicted time on an H200; and of random kernels how many dots are on wgmma, and how many
operands tensor maps copy. Without a GPU.

    --only TEXT      kinds whose name contains it; no random kernels
    --kernels N      random kernels with a dot that wgmma could take (60)
    --seconds N      begin no random kernel after so long
    --write          the report into benchmarks/results/breadth.md
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from xdsl.dialects.builtin import ModuleOp

from benchmarks.plain_kinds import Kind, kinds
from tkc.compiler import Compiled
from tkc.errors import CompileError
from tkc.fuzz import check
from tkc.fuzz.grammar import Kernel
from tkc.fuzz.productions import kernel as random_kernel
from tkc.ir import tile
from tkc.ir.plan import Plan, number_of
from tkc.ir.ranges import divisor
from tkc.ir.target import target as target_named
from tkc.ir.types import TileType, bits
from tkc.ir.values import array_type, tile_type
from tkc.language.signature import Options
from tkc.passes import PassContext
from tkc.passes.analysis.mapped import ROW_ALIGNMENT, dense_axis, unmapped
from tkc.passes.pipeline import run, with_room
from tkc.passes.planning.gathers import why_by_consumers

RESULTS = Path(__file__).resolve().parent / "results" / "breadth.md"
TARGET = "sm_90a"
REFUSED = "plan: one role with mma.sync: "
M, N, K = 64, 16, 16  # least extents of a dot that is asked to be on wgmma
HEAD = f"""# What reaches Hopper's engines

Written by `python -m benchmarks.breadth --write`; no GPU takes part. Kernels as users write them,
for {TARGET}; times are predicted for an H200 ([timeline.md](../../docs/timeline.md)).

| kernel | multiplies | copies | registers | bytes spilled | predicted us | why not wgmma |
| --- | --- | --- | --- | --- | --- | --- |
"""


# ---- plain kernels
def row(kind: Kind) -> str:
    """A kind as a row of the table."""
    compiled = kind.kernel.compile(*kind.arguments, target=TARGET)
    resources = compiled.resources
    why = next((d.removeprefix(REFUSED) for d in compiled.decisions if d.startswith(REFUSED)), "")
    cells = (
        kind.name,
        "wgmma" if "wgmma.mma_async" in (compiled.ptx or "") else "mma.sync",
        copies(compiled),
        resources.registers,
        resources.spill_stores,
        _predicted(kind),
        why,
    )
    return f"| {' | '.join(map(str, cells))} |"


def copies(compiled: Compiled) -> str:
    """How a kernel's operands reach shared memory."""
    ptx = compiled.ptx or ""
    ways = {
        "tensor maps": "cp.async.bulk.tensor" in ptx,
        "cp.async": "cp.async.c" in ptx,
        "the consumers": any("the consumers load" in d for d in compiled.decisions),
    }
    return ", ".join(name for name, taken in ways.items() if taken) or "registers"


def _predicted(kind: Kind) -> str:
    """Microseconds, where the timeline does not depend on what the kernel computes."""
    try:
        seconds = kind.kernel.predict(*kind.arguments, grid=kind.grid, target=TARGET).seconds
    except CompileError:
        return ""
    return "" if seconds is None else f"{seconds * 1e6:.0f}"


# ---- random kernels
@dataclass
class Shares:
    """Of random kernels: dots that wgmma could take and those that it does, operands' blocks whose
    rows begin at multiples of 16 bytes and those that tensor maps copy; and why not the others.
    """

    kernels: int = 0
    dots: int = 0
    on_wgmma: int = 0
    aligned: int = 0
    by_maps: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    uncopied: Counter[str] = field(default_factory=Counter)

    def said(self) -> Iterator[str]:
        """As lines of a report."""
        dots, maps = _share(self.on_wgmma, self.dots), _share(self.by_maps, self.aligned)
        yield f"{self.kernels} random kernels: {dots} of {self.dots} dots of 16 or 8 bits and at"
        yield f"least {M} x {N} x {K} are on wgmma, and tensor maps copy {maps} of {self.aligned}"
        yield "operands whose rows begin at multiples of 16 bytes."
        if self.reasons:
            yield "\n| dots | why not wgmma |\n| --- | --- |"
        for reason, count in self.reasons.most_common():
            yield f"| {count} | {reason} |"
        if self.uncopied:
            yield "\n| operands | why no tensor map copies them |\n| --- | --- |"
        for reason, count in self.uncopied.most_common():
            yield f"| {count} | {reason} |"

    def add(self, kernel: Kernel) -> None:
        """Counts a kernel, if it has such a dot."""
        arguments = check.arguments(kernel)
        traced = check.traced(kernel, arguments)
        if not any(map(is_eligible, _dots(traced))):
            return
        overlaps = check.overlaps_of(arguments)
        seen: list[ModuleOp] = []

        def attempt(context: PassContext) -> PassContext:
            def observe(step: str, module: ModuleOp) -> None:
                if step == "plan":
                    seen[:] = [module.clone()]

            return run(traced.clone(), context.target, context.options, observe, context=context)

        options = Options(extra=(("overlaps", overlaps),) if overlaps else ())
        try:
            context = with_room(attempt, target_named(TARGET), options)
        except (
            Exception
        ) as e:  # a kernel of the grammar must compile: the report says which does not
            self.reasons[f"kernel {kernel.seed} fails: {type(e).__name__}: {e}"] += 1
            return
        assert context.plan is not None
        self._count(seen[0], context.plan, context.decisions)

    def _count(self, module: ModuleOp, plan: Plan, decisions: list[str]) -> None:
        dots = [dot for dot in _dots(module) if is_eligible(dot)]
        loads = {load for dot in dots for v in (dot.a, dot.b) if (load := _aligned_block(v))}
        self.kernels += bool(dots)
        self.dots += len(dots)
        self.aligned += len(loads)
        if plan.roles == "one" and dots:
            said = (d.removeprefix(REFUSED) for d in decisions if d.startswith(REFUSED))
            self.reasons[next(said, "no reason is given")] += len(dots)
        else:
            self.on_wgmma += len(dots)
        for load in loads:
            if plan.load(load).path == "tma":
                self.by_maps += 1
            else:
                why = why_by_consumers(load) or unmapped(load) or "its kernel has one role"
                self.uncopied[why] += 1


def _share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.0%}"


def _dots(module: ModuleOp) -> list[tile.Dot]:
    return [op for op in module.walk() if isinstance(op, tile.Dot)]


def is_eligible(dot: tile.Dot) -> bool:
    """Whether a dot is one that is asked to be on wgmma."""
    a, b = tile_type(dot.a), tile_type(dot.b)
    if a.rank != 2 or max(bits(a.element), bits(b.element)) > 16:
        return False
    return a.extents[0] >= M and b.extents[1] >= N and a.extents[1] >= K


def _aligned_block(operand: object) -> tile.Load | None:
    """The block that an operand shows, if its rows are known to begin at multiples of 16 bytes, at
    indices that are scalars, without a mask.
    """
    while isinstance(op := getattr(operand, "owner", None), tile.Transpose):
        operand = op.arg
    if not isinstance(op, tile.Load) or op.mask is not None or number_of(op) is None:
        return None
    facts, dense = array_type(op.array).facts, dense_axis(op.array)
    size = bits(tile_type(op.result).element) // 8
    steps = [s for axis, s in enumerate(facts.strides) if axis != dense]
    aligned = facts.align % ROW_ALIGNMENT == 0 and facts.strides[dense].exact == 1
    aligned &= all(s.divisible(ROW_ALIGNMENT // size) for s in steps)
    aligned &= divisor(op.offsets[dense]) * size % ROW_ALIGNMENT == 0
    return op if aligned and not any(isinstance(v.type, TileType) for v in op.offsets) else None


def shares(count: int, seconds: float = float("inf"), policy: str | None = None) -> Shares:
    """Of the first random kernels that count."""
    found, began, seed = Shares(), time.monotonic(), 0
    while found.kernels < count and time.monotonic() - began < seconds:
        found.add(random_kernel(seed, policy))
        seed += 1
    return found


@click.command(help=__doc__)
@click.option("--only", default="", help="kinds whose name contains this")
@click.option("--kernels", default=60, help="random kernels")
@click.option("--seconds", default=600.0, help="begin no random kernel after so long")
@click.option("--write", is_flag=True, help="write benchmarks/results/breadth.md")
def main(only: str, kernels: int, seconds: float, write: bool) -> None:
    lines = []
    for kind in kinds():
        if only in kind.name:
            lines.append(row(kind))
            print(lines[-1], flush=True)
    text = HEAD + "\n".join(lines) + "\n"
    if not only:
        for policy in ("roles", None):
            found = "\n".join(shares(kernels, seconds / 2, policy).said())
            print(found, flush=True)
            about = "Loops of dots (policy `roles`)" if policy else "Kernels of every kind"
            text += f"\n## {about}\n\n{found}\n"
    if write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
