"""A kernel after every pass: run at any level, taken apart, assembled, broken on purpose. What the
tests of plans with roles share.
"""

import re
from collections.abc import Callable, Iterator

import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.codegen.ptx import machine
from tests.passes.kernels import context, through
from tests.sampling import sampled
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir import shared, threads
from tkc.ir.layout import movement
from tkc.ir.target import target
from tkc.ir.text import parse, show
from tkc.passes import PassContext
from tkc.passes.pipeline import PIPELINE
from tkc.sim import dataflow, level4
from tkc.sim.mutants import mutated, places
from tkc.sim.report import Violation

LAST = PIPELINE[-1]
assembler = pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")


def compiled(module, machine: str = "sm_90a", **options) -> tuple[dict, PassContext]:
    """(the module after every pass by the pass's name, the context); behind a pass that leaves it
    as it was, the same object.
    """
    stages, last = {}, None

    def observe(name, after):
        nonlocal last
        if last is None or not after.is_structurally_equivalent(last):
            last = after.clone()
        stages.setdefault(name, last)

    return stages, through(module, LAST, context(machine, **options), observe)


def distinct(stages: dict) -> list:
    """The modules that are not as the one before: what a pass left as it was is tested once."""
    return list({id(module): module for module in stages.values()}.values())


def parses_back(module) -> None:
    """Its text means the module."""
    assert parse(show(module)).is_structurally_equivalent(module)


def level(module) -> int:
    return module.body.block.first_op.level


def without_threads(stages: dict) -> list:
    return [module for module in distinct(stages) if level(module) < 4]


def run(module, arrays, grid, **how) -> None:
    (dataflow if level(module) < 4 else level4).run(module, arrays, grid, **how)


RAGGED = pytest.mark.parametrize(
    "shape", [(1, 1, 1), (7, 13, 31), (129, 65, 33), (193, 257, 40), (320, 8, 64)], ids=str
)
# of a loop through rings of three stages: none, one, and around the number of stages
STEPS = pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 7])


def at_every_level(modules: dict, form, check: Callable) -> None:
    """A form's block of BM x BN x BK, after each pass before there are threads and with them, where
    nothing fits: check(module, form, m, n, k) runs and compares.
    """
    BM, BN, BK = form.block
    for module in without_threads(modules):
        check(module, form, BM + 5, BN - 7, 2 * BK - 7)
    check(modules[LAST], form, BM + 5, BN + 9, 3 * BK - 7, seed=1)


def in_steps(
    compiled: tuple[dict, PassContext], form, check: Callable, steps: int, stages: int | None = 3
) -> None:
    """So many steps through rings of so many stages (None: of any), in programs that follow each
    other in a block, so that rings go on across them.
    """
    (modules, given), (BM, BN, BK) = compiled, form.block
    assert stages in (None, given.plan.stages)
    for seed in range(3):
        check(modules[LAST], form, 3 * BM, BN, steps * BK, seed=seed)


def ragged(module, form, check: Callable, shape: tuple[int, ...]) -> None:
    """Shapes that blocks do not fill, on grids of one block and of several."""
    for resident in (1, 2):
        for seed in range(2):
            check(module, form, *shape, seed=seed, resident=resident)


def in_text(module, form, check: Callable) -> None:
    """The PTX itself, on the machine of tkc.sim.ptx: ragged extents, several programs of a block,
    fewer steps than stages and more.
    """
    BM, BN, BK = form.block
    for seed, k in ((None, 3 * BK - 7), (1, BK)):
        check(module, form, BM + 5, BN + 9, k, run=machine.run, seed=seed, resident=1)


def count(where, *kinds) -> int:
    return sum(isinstance(op, kinds) for op in where.walk())


def role(module, name: str) -> threads.Role:
    return next(
        op for op in module.walk() if isinstance(op, threads.Role) and op.sym_name.data == name
    )


def exchanges_within_warps(module) -> bool:
    """Whether threads exchange something through shared memory, and each warp what it wrote itself.
    A barrier between then orders lanes of one warp, which the simulator runs together: it finds no
    mutant that drops one. The GPU needs it: lanes that go apart may read before others wrote.
    """
    exchanges = [
        (write.operation.value.type.register_layout, read.result.type.register_layout)
        for read in module.walk()
        if isinstance(read, shared.Read)
        for write in read.buffer.uses
        if isinstance(write.operation, shared.Write)
    ]
    return bool(exchanges) and all(movement(*layouts) == "lanes" for layouts in exchanges)


def assembles_clean(module, machine: str = "sm_90a"):
    """No spill, no stack, and wgmma neither serialised nor repaired. Gives the program."""
    program = emit(module, target(machine))
    assembled = ptxas.assemble(program.text, machine)
    assert assembled.clean, assembled.log
    return program


INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?\s*([A-Z][\w.]*)\s*([^;]*);")
# registers of an instruction's result, where they are several
WRITTEN = {
    ".M88.4": 4,
    ".128": 4,
    ".64": 2,
    ".WIDE": 2,
    ".M88.2": 2,
}


def overwritten(module, machine: str = "sm_90a") -> list[str]:
    """Instructions of the machine code that write registers from which a dot under way still takes
    its left operand. Each loop is walked twice.
    """
    ops, labels, found = [], {}, {}
    for line in ptxas.disassemble(
        ptxas.assemble(emit(module, target(machine)).text, machine).cubin
    ).splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(ops)
        elif op := INSTRUCTION.search(line):
            ops.append((op[1], op[2]))
    for last, (name, operands) in enumerate(ops):
        if (
            name != "BRA"
            or not (to := re.search(r"\.L_x_\d+", operands))
            or labels.get(to[0], last) >= last
        ):
            continue
        body, busy = ops[labels[to[0]] : last], set()
        for name, operands in body * 2 if any("GMMA" in name for name, _ in body) else ():
            result = re.match(r"R(\d+)\b", operands)
            if re.match("[A-Z]GMMA", name):
                busy |= {
                    int(left[1]) + i
                    for left in [re.match(r"[^,]*, R(\d+),", operands)]
                    if left
                    for i in range(4)
                }
            elif name.startswith("WARPGROUP.DEPBAR"):
                busy.clear()
            elif result and busy & {
                int(result[1]) + i
                for i in range(next((n for mark, n in WRITTEN.items() if mark in name), 1))
            }:
                found[f"{name} {operands}"] = None
    return list(found)


def mutants_of_converter(module: ModuleOp) -> Iterator[tuple[str, ModuleOp]]:
    """Labels and mutants of what the converter does, and of how often mbarriers are arrived at."""
    ops = list(module.walk())
    mine = {
        op
        for role in ops
        if isinstance(role, threads.Role) and role.sym_name.data == "converter"
        for op in role.walk()
    }
    for place in places(module):
        if ops[place.number] in mine or "mbarrier_init" in place.label:
            yield place.label, mutated(module, place)


def survivors(
    module: ModuleOp,
    *runs: Callable,
    among: Callable[[str], object] = bool,
    known: Callable[[str], object] = frozenset().__contains__,
) -> tuple[int, set[str]]:
    """How many mutants a module has, and the labels of those in which no run finds anything; of the
    mutants, those of the day are made and run (tests/sampling.py). among: of a label, whether the
    mutant counts; known: whether it is known to change nothing, so that no run need look for it.
    """
    every = [place for place in places(module) if among(place.label)]
    missed = set()
    for place in sampled(every):
        if known(place.label):
            continue
        mutant = mutated(module, place)
        for run_ in runs:
            try:
                run_(mutant)
            except (Violation, AssertionError):
                break
        else:
            missed.add(place.label)
    return len(every), missed
