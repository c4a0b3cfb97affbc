"""`tkc opt`: reads IR text, runs passes over it, prints what comes out. Whatever the text, a wrong
one is one line and exit 2.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tkc.errors import CompileError, Error, VerifyError

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from tkc.ir.target import Target
    from tkc.passes import PassContext
    from tkc.sim.validate import Validator

MAX_SECONDS = 60  # that one file may take


def read(path: str) -> tuple[str, str]:
    """The text of a file ("-": standard input) and its name in messages. Raises tkc.Error."""
    from tkc.ir.text import MAX_BYTES

    try:
        if path == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1).decode(), "<stdin>"
        with open(path, "rb") as f:
            return f.read(MAX_BYTES + 1).decode(), path
    except OSError as e:
        raise Error(f"{path}: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise Error(f"{path}: not UTF-8 text, at byte {e.start}") from None


def optimize(
    text: str,
    name: str,
    target: str | None = None,
    passes: tuple[str, ...] = (),
    resume: str | None = None,
    stop: str | None = None,
    verify_only: bool = False,
    observe: Callable | None = None,
    validator: Callable[[ModuleOp], Validator] | None = None,
) -> str:
    """The text after the passes: those named, else the pipeline from `resume` to `stop` (none of
    the three: all of it). Raises tkc.Error.

    target: None for the one that the text is planned for, sm_90a if for none.
    validator: of the module makes an observer that is called before the first pass too.
    """
    from tkc.ir.text import parse, show
    from tkc.ir.verify import verify
    from tkc.passes import Free, pipeline

    first, last = _ends(passes, resume, stop)
    with deadline(MAX_SECONDS):
        asked = targeted(target) if target else None
        module = parse(text, name)
        verify(module, name)
        if verify_only:
            return ""
        planned_for = _target_in(module)
        if asked and planned_for not in (None, target) and pipeline.resumes(first):
            raise Error(
                f"{name} is planned for {planned_for}, not for {target}; leave out --target, or"
                " begin with plan"
            )
        machine = asked or targeted(planned_for or "sm_90a")

        def watched(module: ModuleOp) -> Callable | None:
            if not validator:
                return observe
            return _validating(validator(module), module, first, last, observe)

        def attempt(context: PassContext) -> ModuleOp:
            given = parse(text, name) if context.lack else module
            pipeline.run(given, machine, Free(), watched(given), resume, stop, context)
            return given

        if passes:
            _run_each(passes, module, machine, watched(module))
        elif resume and pipeline.resumes(resume):
            pipeline.run(module, machine, Free(), watched(module), resume, stop)
        else:
            module = pipeline.with_room(attempt, machine, Free())
        return show(module)


def _ends(passes: Sequence[str], resume: str | None, stop: str | None) -> tuple[str, str]:
    """The first and the last pass that run. Raises tkc.Error."""
    from tkc.passes import pipeline

    for given in (*passes, resume, stop):
        if given is not None and given not in pipeline.PIPELINE:
            raise Error(f"there is no pass {given!r}; there are {', '.join(pipeline.PIPELINE)}")
    if passes:
        return passes[0], passes[-1]
    first, last = resume or pipeline.PIPELINE[0], stop or pipeline.PIPELINE[-1]
    if pipeline.PIPELINE.index(first) > pipeline.PIPELINE.index(last):
        raise Error(f"{stop} comes before {resume}; nothing is to be run")
    return first, last


def _run_each(
    passes: Sequence[str], module: ModuleOp, machine: Target, seen: Callable | None
) -> None:
    """Runs passes that were named, in their order."""
    from tkc.ir.verify import verify
    from tkc.passes import Free, PassContext, pipeline

    context = PassContext(machine, Free(), pipeline.planned(module))
    for p in passes:
        pipeline.module_of(p).run(module, context)
        verify(module, f"after {p}")
        if seen:
            seen(p, module)


def _target_in(module: ModuleOp) -> str | None:
    """The target that a module says it is planned for."""
    from xdsl.dialects.builtin import StringAttr

    for kernel in module.body.block.ops:
        if isinstance(target := kernel.attributes.get("target"), StringAttr):
            return target.data
    return None


def _validating(
    check: Validator, module: ModuleOp, first: str, last: str, observe: Callable | None
) -> Callable:
    """An observer that runs a validator, which has seen the module before the first pass."""
    from tkc.passes import pipeline

    check.last = last
    before = pipeline.PIPELINE.index(first) - 1
    check(pipeline.PIPELINE[before] if before >= 0 else "the input", module)

    def observed(name: str, m: ModuleOp) -> None:
        check(name, m)
        if observe:
            observe(name, m)

    return observed


def targeted(name: str) -> Target:
    """The target of a name. Raises tkc.Error."""
    from tkc.ir.target import target

    try:
        return target(name)
    except ValueError as e:
        raise Error(str(e)) from None


def validator_of(
    module: ModuleOp, inputs: dict, grid: tuple[int, ...] | None, command: str = ""
) -> Validator:
    """A validator for a module of text: of the arrays of an .npz file, or of made-up ones. Raises
    tkc.Error.
    """
    from tkc.passes import pipeline
    from tkc.sim.inputs import made, unpacked
    from tkc.sim.level0 import kernel_of
    from tkc.sim.validate import Validator

    try:
        given = unpacked(inputs) if inputs else made(kernel_of(module))
    except (KeyError, TypeError, ValueError) as e:
        raise Error(f"--inputs: not a file of a reproducer ({one_line(e)})") from None
    grid = grid or tuple(int(n) for n in inputs.get("grid", (2, 2, 1)))
    validator = Validator(
        given,
        grid,
        pipeline.uses_reals,
        pipeline.unordered,
        seed=int(inputs.get("seed", 0)),
    )
    if command:
        validator.command = command
    return validator


def compared(
    one: tuple[str, str], other: tuple[str, str], inputs: dict, grid: tuple[int, ...] | None
) -> str:
    """Whether two texts compute the same; the report. Raises tkc.Error (ValidationError where they
    differ).
    """
    from tkc.ir.text import parse
    from tkc.ir.verify import verify
    from tkc.sim.validate import difference

    with deadline(MAX_SECONDS):
        modules = [parse(*t) for t in (one, other)]
        for module, (_, name) in zip(modules, (one, other), strict=False):
            verify(module, name)
        before, after = modules
        return difference(before, after, validator_of(before, inputs, grid))


def arrays(path: str | None) -> dict:
    """The arrays of an .npz file by name; pickles are refused. Raises tkc.Error."""
    from zipfile import BadZipFile

    import numpy as np

    if path is None:
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile) as e:
        why = getattr(e, "strerror", None)
        why = why or "not an .npz file of plain arrays, as numpy.savez writes it"
        raise Error(f"{path}: {why}") from None


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Raises tkc.Error after so long, where the system has timers."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def late(*_):
        raise Error(f"gave up after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def one_line(e: BaseException) -> str:
    """An exception in one line of a terminal."""
    match e:
        case CompileError(location=None):
            text = e.message
        case CompileError():
            text = f"{e.location}: {e.message}"
        case VerifyError() | Error():
            text = str(e)
        case RecursionError():
            text = "nested too deeply"
        case _:
            text = f"{type(e).__name__}: {e} (a bug of tkc; --debug shows where)"
    return " ".join(text.split())[:2000]


def write(text: str, path: str | None) -> None:
    if path is None:
        sys.stdout.write(text)
    else:
        try:
            Path(path).write_text(text)
        except OSError as e:
            raise Error(f"{path}: {e.strerror}") from None
