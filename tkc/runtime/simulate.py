"""The simulator behind launches: TKC_SIM=1 runs what the compiler made for a GPU, `tkc check` looks
for races in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tkc.compiler import Steps
from tkc.errors import CompileError, LaunchError
from tkc.progress import progress
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.specialize import ScalarInfo, given, named, signature

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tkc.ir.target import Target
    from tkc.runtime.kernel import Kernel
    from tkc.sim.check import Checked

MAX_ARRAY_BYTES = 4 << 30  # of one made-up array


def machine() -> Target:
    """The target of TKC_TARGET; sm_90a if unset. Raises CompileError."""
    from tkc.ir.target import target

    try:
        return target(os.environ.get("TKC_TARGET") or "sm_90a")
    except ValueError as e:
        raise CompileError(f"TKC_TARGET: {e}") from None


def level4_of(
    kernel: Kernel, infos: Sequence, options: tuple, target: Target, observe: Callable | None = None
) -> ModuleOp:
    """The kernel for these arguments after every pass."""
    from tkc.language.trace import trace
    from tkc.passes import pipeline

    s = signature(kernel._specialize(infos, options))

    def attempt(context):
        if context.lack:
            steps.again()
        module = trace(kernel.fn, s)
        steps.done("trace", module)
        pipeline.run(module, target, s.options, steps.done, context=context)
        return module

    with progress(f"compiling {kernel.__name__} for {target.name}") as line:
        steps = Steps(kernel.__name__, observe, line)
        return pipeline.with_room(attempt, target, s.options)


def simulated(
    kernel: Kernel, infos: Sequence, options: tuple, extents: tuple[int, int, int]
) -> Callable[[], None]:
    """The launch as a function of nothing: level 4 with threads, under the happens-before check.
    Arrays must be in host memory.
    """
    from tkc.sim.level4 import run

    if any(isinstance(i, ArrayInfo) and i.device >= 0 for i in given(infos)):
        raise LaunchError(
            f"{kernel.__name__}: TKC_SIM=1 runs on host memory, and an array is on a GPU; pass"
            " .cpu() copies, or unset TKC_SIM"
        )
    module = level4_of(kernel, infos, options, machine())
    passed = [i.numpy() if isinstance(i, ArrayInfo) else i.value for i in given(infos)]

    def simulate() -> None:
        with progress(f"simulating {kernel.__name__}"):
            run(module, passed, extents, in_place=True)

    return simulate


def simulate_ranks(
    world: int,
    run: Callable[[int], Any],
    target: str = "sm_90a",
    seeds: Sequence[int] = (0,),
    **options: Any,
) -> list[Any]:
    """Runs what `run(rank)` launches on each of `world` GPUs in one process: the compiled programs
    with their threads, ranks beside one another in random orders, under the happens-before check
    with scopes and proxies. Arrays are NumPy's; ranks share those that they share. Gives what `run`
    returned, a rank each.

    `run` is called for one rank after the other, and its launches wait until all have been made, so
    it may not depend on results. For each seed (a schedule) it is called anew. options: of
    tkc.sim.ranks.run. Raises what the simulator finds: a race, a deadlock, a missing fence.
    """
    from tkc.sim import ranks

    made: dict[Any, Any] = {}
    results: list[Any] = []
    for seed in seeds:
        results, launches, alive = rank_launches(world, run, target, made)
        ranks.run(launches, seed, **({"in_place": True} | options))
        del alive
    return results


def rank_launches(
    world: int, run: Callable[[int], Any], target: str, made: dict[Any, Any]
) -> tuple[list[Any], list[list[Any]], list[Any]]:
    """What `run(rank)` gives for each rank, its launches (tkc.sim.ranks.Given), which are not made,
    and what must stay alive until they have been: their arrays. made: kernels that were compiled
    already, by what they were compiled for.
    """
    from tkc.ir.target import target as named_target
    from tkc.runtime.handed import handed
    from tkc.sim.ranks import Given

    machine = named_target(target)
    results: list[Any] = []
    launches: list[list[Any]] = []
    alive: list[Any] = []

    def take(kernel: Any, grid: Any, args: tuple, kwargs: dict) -> None:
        values, chosen = kernel.bound(*args, **kwargs)
        infos, options = kernel._describe(values), tuple(chosen.items())
        how = kernel, kernel._specialize(infos, options)
        if how not in made:
            made[how] = level4_of(kernel, infos, options, machine)
        passed = [i.numpy() if isinstance(i, ArrayInfo) else i.value for i in given(infos)]
        alive.append(values)
        launches[-1].append(Given(made[how], passed, kernel.extents(grid, values)))

    for rank in range(world):
        launches.append([])
        with handed(take, target=target):
            results.append(run(rank))
    return results, launches, alive


def arguments_for(kernel: Kernel, infos: Sequence, seed: int = 0, exact: bool = False) -> list:
    """Arguments to run with, constants left out: arrays in host memory as they are, for others
    made-up ones of the same extents and strides. Raises LaunchError.
    """
    import numpy as np

    from tkc.sim import inputs

    rng, out = np.random.default_rng(seed), []
    for name, info in named(kernel.names, infos):
        match info:
            case ScalarInfo(value=None):
                raise LaunchError(
                    f"{kernel.__name__}: a run needs the number {name}; write {name}=1024 for"
                    f" {name}={info.dtype}"
                )
            case ScalarInfo():
                out.append(info.value)
            case ArrayInfo() if info.device < 0 and info.pointer:
                out.append(info.numpy())
            case ArrayInfo():
                low, high = info.span
                if high - low > MAX_ARRAY_BYTES:
                    raise LaunchError(
                        f"{kernel.__name__}: argument {name} has {high - low:,} bytes, too many for"
                        " the simulator; use smaller extents"
                    )
                array = inputs.blank(
                    info.shape,
                    info.strides,
                    ArrayInfo(0, (0,), (1,), info.dtype).numpy().dtype,
                    info.pointer,
                )
                inputs.fill(array, rng, exact)
                out.append(array)
    return inputs.clones(out)


def check(
    kernel: Kernel,
    arguments: dict,
    grid: Any,
    targets: Sequence[str],
    given: dict | None = None,
    seconds: float = 10.0,
) -> Iterator[tuple[str, Checked]]:
    """Yields (target, Checked) for the kernel compiled for each target. given: arrays by name,
    instead of made-up elements.
    """
    from tkc.ir.target import target as named
    from tkc.sim.check import check as look

    values, options = kernel.bound(**arguments)
    values = tuple(
        (given or {}).get(name, v) for name, v in zip(kernel.names, values, strict=False)
    )
    infos = kernel._describe(values)
    extents = kernel.extents(grid, [i if isinstance(i, ArrayInfo) else i.value for i in infos])
    for name in targets:
        try:
            machine = named(name)
        except ValueError as e:
            raise CompileError(str(e)) from None
        passed = arguments_for(kernel, infos)
        yield (
            name,
            look(
                level4_of(kernel, infos, tuple(options.items()), machine),
                passed,
                extents,
                seconds=seconds,
            ),
        )


def validate(
    kernel: Kernel, infos: Sequence, options: tuple, extents: tuple[int, int, int], target: Target
) -> str:
    """Compiles the kernel with every pass validated on these arguments (or made-up ones in place of
    a GPU's); gives the report. Raises ValidationError.
    """
    from tkc.passes import pipeline
    from tkc.sim.validate import Validator

    v = Validator(
        arguments_for(kernel, infos),
        extents,
        pipeline.uses_reals,
        pipeline.unordered,
        last=pipeline.PIPELINE[-1],
        command=(
            "tkc opt {folder}/before.mlir --pass {name} --validate --inputs"
            f" {{folder}}/inputs.npz --target {target.name}"
        ),
    )
    level4_of(kernel, infos, options, target, v)
    return f"{kernel.__name__} for {target.name}: {v}"


def validate_once(
    kernel: Kernel, infos: Sequence, options: tuple, extents: tuple[int, int, int], target: str
) -> None:
    """For TKC_VALIDATE=1: the report goes to standard error, once for each program and grid, a
    program being what the kernel is for these arguments while all that it reads stays as it is.
    target "cpu", which has no passes: that of TKC_TARGET.
    """
    from tkc.ir.target import target as named

    gpu = machine() if target == "cpu" else named(target)
    kernel.forget_if_rebound()
    name = kernel._key(kernel._specialize(infos, options), gpu.name)
    key = (name, extents)
    if name is not None and key in _validated:
        return
    print("validated", validate(kernel, infos, options, extents, gpu), file=sys.stderr)
    _validated.add(key)


_validated: set = set()
