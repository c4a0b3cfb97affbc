"""`tkc reduce FILE.mlir`: the smallest module found that still fails as the file does, or that a
command still accepts.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from tkc.errors import Error
from tkc.fuzz.check import Comparison, Failure, Variant, example_arguments, symptom
from tkc.fuzz.reducer import reduce
from tkc.ir.text import parse, show
from tkc.ir.verify import verify

COMMAND_SECONDS = 60


def reduced(
    text: str,
    name: str,
    test: str | None,
    target: str,
    warps: int | None,
    stages: int,
    grid: tuple[int, ...],
    tell: Callable[[str], None],
) -> str:
    """The text of the reduced module. `test`: a shell-like command that gets the file (at {} or as
    its last word) and ends with 0 where it is interesting; without one, what fails now has to fail
    in the same stage in the same way. Raises tkc.Error where nothing fails.
    """
    module = parse(text, name)
    verify(module, name)
    if test is not None:
        return show(reduce(module, _accepted(test), tell))
    first = failure(module, target, warps, stages, grid)
    if first is None:
        raise Error(
            f"{name} compiles for {target} and the CPU, and computes what level 0 says; give what"
            ' is interesting as --test "command"'
        )
    tell(str(first).splitlines()[0])
    return show(
        reduce(
            module,
            lambda m: (
                (f := failure(m, target, warps, stages, grid)) is not None
                and symptom(f) == symptom(first)
            ),
            tell,
        )
    )


def failure(
    module: ModuleOp, target: str, warps: int | None, stages: int, grid: tuple[int, ...]
) -> Failure | None:
    """The first way in which a module of level 0 fails; None where level 0 itself does."""
    try:
        runs = Comparison(module, lambda: example_arguments(module), grid, near=1e-2)
    except Exception:
        return None
    found = (
        runs.cpu()
        if target == "cpu"
        else next(runs.passes(Variant(target, warps, stages)), None) or runs.cpu()
    )
    return None if found is None or found.kind == "refused" else found


def _accepted(test: str) -> Callable[[ModuleOp], bool]:
    words = shlex.split(test)
    if not words:
        raise Error(
            "--test is an empty command; give one that ends with 0 where a file is interesting"
        )

    def accepted(module: ModuleOp) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "candidate.mlir"
            path.write_text(show(module))
            command = [w.replace("{}", str(path)) for w in words] + [str(path)] * ("{}" not in test)
            try:
                return (
                    subprocess.run(
                        command,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        timeout=COMMAND_SECONDS,
                    ).returncode
                    == 0
                )
            except subprocess.TimeoutExpired:
                return False
            except OSError as e:
                raise Error(f"--test: {words[0]}: {e.strerror}") from None

    return accepted
