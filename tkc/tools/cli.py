"""The command line `tkc`. Each command calls one function of tkc.tools or tkc.runtime."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from tkc.errors import Error
from tkc.tools.opt import one_line
from tkc.tools.words import pairs

if TYPE_CHECKING:
    from tkc.compiler import Compiled


class Careful(click.Group):
    """Any error is one line on standard error and exit 2; --debug shows the traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            sys.exit(1)
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as e:
            if ctx.params.get("debug"):
                raise
            whole = isinstance(e, Error) and ctx.invoked_subcommand == "compile"
            click.echo(f"error: {e if whole else one_line(e)}", err=True)
            sys.exit(2)


# parameters of several commands
KERNEL = click.argument("kernel", metavar="FILE.py:NAME")
ARGUMENTS = click.argument("arguments", nargs=-1, metavar="[NAME=ARGUMENT]...")
OPTIONS = click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="num_warps=8, num_stages=3, cluster=2,1 …",
)
GRID = click.option(
    "--grid", metavar="X[,Y[,Z]]", help="Default: what the function `grid` of the file gives."
)
TARGET = click.option("--target", default="sm_90a", show_default=True)
OUTPUT = click.option("-o", "--output", metavar="FILE")

# \b: click leaves the lines of the paragraph as they are
EXPLAIN_EXAMPLES = """Examples:

\b
tkc explain examples/attention.py:attention \\
    q=bf16[4,16,4096,128] k=bf16[4,16,4096,128] \\
    v=bf16[4,16,4096,128] o=bf16[4,16,4096,128] scale=0.088 \\
    CAUSAL=False D=128 BM=128 BN=128 --grid 32,16,4

A function of the library works too (--launch picks one of its launches):

\b
tkc explain tkc.kernels:softmax x=bf16[8192,4096]

The page is one file that loads nothing. Exit 1 where the kernel does not compile: the page then has
the steps it reached, and the error."""


@click.group(cls=Careful, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="tkc")
def main(debug: bool) -> None:
    """Tile kernels in Python: compile, look inside, measure."""


@main.command()
@click.argument("names", nargs=-1)
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="Default: cuda where there is a GPU."
)
@click.option(
    "--examples",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of the examples.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Where IR, PTX and C go.",
)
def demo(
    names: tuple[str, ...], device: str | None, examples: Path | None, out: Path | None
) -> None:
    """Run the examples (all, or NAMES), check them against float64, write IR, PTX and C."""
    from tkc.tools.demo import demo

    sys.exit(demo(device, examples, out, names))


@main.command()
def doctor() -> None:
    """What is installed, what is missing, how to get it."""
    from tkc.tools.doctor import doctor

    sys.exit(doctor(Console(width=None if sys.stdout.isatty() else 120)))


@main.command()
@click.option("--device", default=0, show_default=True, help="Number of the GPU.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the file. Default: what TKC_DEVICES names, else the current one.",
)
def calibrate(device: int, output: Path | None) -> None:
    """Measure the GPU at hand and write a file that describes it."""
    from tkc.tools.calibrate import calibrate

    folder = output or Path(os.environ.get("TKC_DEVICES", "."))
    path = calibrate(device, folder, lambda line: click.echo(line, err=True))
    click.echo(f"{path}; code is planned for it where TKC_DEVICES is {folder.resolve()}")


@main.command("compile")
@KERNEL
@ARGUMENTS
@click.option(
    "--signature",
    default="",
    metavar="TEXT",
    help="The arguments in one word, by name or by position: 'f32[1000], f32[1000], n=i32'.",
)
@TARGET
@OPTIONS
@click.option(
    "--emit",
    type=click.Choice(["ptx", "ir", "report", "sass", "llvm"]),
    default=None,
    help="What to print; default ptx (cpu: llvm).",
)
@click.option(
    "--stage",
    default="trace",
    show_default=True,
    help="With --emit ir: after which pass (final: the last).",
)
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    help="A file; a directory gets PTX, JSON and C as tkc.export writes them.",
)
def compile_(
    kernel: str,
    arguments: tuple[str, ...],
    signature: str,
    target: str,
    options: tuple[str, ...],
    emit: str | None,
    stage: str,
    output: str | None,
) -> None:
    """Compile a kernel for arguments such as x=f32[1000000], n=i32, BLOCK=1024."""
    from tkc.tools.opt import write

    function = find(kernel)
    given = pairs((*signed(signature, function), *arguments), options, function)
    if output and (Path(output).is_dir() or output.endswith("/")):
        if emit:
            raise Error(
                f"{output} is a directory, which gets PTX, JSON and C: leave --emit out, or name a"
                " file"
            )
        from tkc.runtime.export import export

        for path in export(function, **given, target=target, path=output, overwrite=True):
            click.echo(path)
        return
    args, rest = function.by_position(given)
    compiled = function.compile(*args, **rest, target=target)
    text = _emitted(compiled, emit or ("llvm" if target == "cpu" else "ptx"), stage)
    if not text:
        raise Error(f"a kernel for {target} has no {emit}; leave --emit out")
    write(text, output)


def _emitted(compiled: Compiled, what: str, stage: str) -> str:
    """What --emit names; "" where there is none."""
    match what:
        case "ptx":
            return compiled.ptx or ""
        case "ir":
            return compiled.ir(stage)
        case "report":
            return compiled.report()
        case "sass":
            return compiled.sass
    if compiled.target != "cpu" or compiled.again is None:
        return ""
    return compiled.again(None).program.llvm


@main.command("triton", context_settings={"ignore_unknown_options": True})
@click.argument("script", metavar="FILE.py", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
@TARGET
@click.option(
    "--beside/--alone",
    default=True,
    help="Run it with Triton itself too, where there is that and a GPU, for its times.",
)
def triton_(script: str, arguments: tuple[str, ...], target: str, beside: bool) -> None:
    """Runs a script of Triton's kernels on tkc; then a line about each kernel on the target: how
    it multiplies and copies, its registers, what is spilled, the time that the model predicts, and
    on a GPU the time that it takes, beside Triton's where Triton is installed.
    """
    from tkc.tools.triton import run

    for line in run(script, arguments, target, beside):
        click.echo(line)


@main.command()
@KERNEL
@ARGUMENTS
@GRID
@TARGET
@OPTIONS
@click.option(
    "--picture", metavar="FILE", help="Also draw the timeline (.svg, .png, .pdf); needs matplotlib."
)
def report(
    kernel: str,
    arguments: tuple[str, ...],
    grid: str | None,
    target: str,
    options: tuple[str, ...],
    picture: str | None,
) -> None:
    """The plan, resources, and predicted time of a launch, and which role uses which engine when;
    no GPU needed.
    """
    function = find(kernel)
    given = pairs(arguments, options, function)
    args, rest = function.by_position(given)
    prediction = function.predict(*args, **rest, grid=grid_for(grid, function), target=target)
    click.echo(function.compile(*args, **rest, target=target).report(prediction))
    if picture:
        from tkc.runtime.picture import draw

        draw(prediction, f"{function.__name__} for {target}", picture)


def find(spec: str) -> Any:
    """The kernel NAME of FILE.py. Raises tkc.Error."""
    from tkc.tools.named import kernel

    return kernel(spec)


@main.command(epilog=EXPLAIN_EXAMPLES)
@KERNEL
@ARGUMENTS
@GRID
@click.option("--target", default="sm_90a", show_default=True, help="A GPU's, or cpu.")
@OPTIONS
@click.option(
    "--launch", default=1, show_default=True, help="Of a function that makes several, which one."
)
@click.option(
    "--measure/--no-measure",
    default=True,
    help="Also run it, where there is such a GPU (or for the CPU).  [default: measure]",
)
@click.option(
    "-o", "--output", metavar="FILE.html", help="Default: NAME.TARGET.html in this directory."
)
def explain(
    kernel: str,
    arguments: tuple[str, ...],
    grid: str | None,
    target: str,
    options: tuple[str, ...],
    launch: int,
    measure: bool,
    output: str | None,
) -> None:
    """Write a page about a kernel: source beside the IR after each pass, PTX and machine code; what
    was chosen and what else would have cost; timeline, shared memory, layouts, registers, roofline.
    """
    from tkc.tools.explain.command import explain

    made = explain(kernel, arguments, options, grid_of(grid), target, launch, measure, output)
    click.echo(made.path)
    if made.error:
        click.echo(f"error: {made.error}", err=True)
        sys.exit(1)


def signed(text: str, function: Any) -> list[str]:
    """A signature as NAME=VALUE each: its parts, apart by commas or spaces outside of brackets,
    have names or stand in the order of the parameters. Raises tkc.Error.
    """
    depth, apart = 0, []
    for c in text:
        depth += (c in "[(") - (c in "])")
        apart.append("\n" if depth == 0 and (c == "," or c.isspace()) else c)
    parts = [part for part in "".join(apart).split("\n") if part]
    if len(parts) > len(function.names):
        raise Error(
            f"--signature has {len(parts)} arguments; {function.__name__} takes"
            f" {', '.join(function.names)}"
        )
    return [
        part if "=" in part else f"{name}={part}"
        for name, part in zip(function.names, parts, strict=False)
    ]


@main.command()
@KERNEL
@ARGUMENTS
@GRID
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="May be given again; default: sm_80, sm_89 and sm_90a.",
)
@OPTIONS
@click.option("--inputs", metavar="FILE.npz", help="Arrays by name (default: made-up elements).")
@click.option("--seconds", default=10.0, show_default=True, help="At most, for each target.")
def check(
    kernel: str,
    arguments: tuple[str, ...],
    grid: str | None,
    targets: tuple[str, ...],
    options: tuple[str, ...],
    inputs: str | None,
    seconds: float,
) -> None:
    """Look for races, deadlocks and accesses out of bounds in the compiled kernel, without a GPU: a
    few programs of the launch, over random schedules. Exit 1 on findings.
    """
    from tkc.runtime.simulate import check
    from tkc.tools.opt import arrays

    function = find(kernel)
    given = pairs(arguments, options, function)
    found = 0
    targets = targets or ("sm_80", "sm_89", "sm_90a")
    for target, checked in check(
        function, given, grid_for(grid, function), targets, arrays(inputs), seconds
    ):
        click.echo(f"{target}: {checked}")
        found += len(checked.findings)
    sys.exit(1 if found else 0)


@main.command()
@click.argument("path", metavar="FILE", default="-")
@click.option("--list", "listing", is_flag=True, help="Name the passes, in order.")
@click.option(
    "-p",
    "--pass",
    "passes",
    multiple=True,
    metavar="PASS",
    help="Run this pass (may be given again) instead of the pipeline.",
)
@click.option("--resume-from", metavar="PASS", help="Start the pipeline at this pass.")
@click.option("--stop-after", metavar="PASS", help="End it after this one.")
@click.option("--print", "printing", is_flag=True, help="Print the IR after every pass.")
@click.option("--verify-only", is_flag=True, help="Check the file and print nothing.")
@click.option(
    "--validate",
    is_flag=True,
    help=(
        "Run the program before and after each pass; stop at the first that changes what it"
        " computes."
    ),
)
@click.option("--against", metavar="FILE", help="Compare with this IR instead of running passes.")
@click.option(
    "--inputs",
    metavar="FILE.npz",
    help="What to run with, from a reproducer (default: made-up arrays).",
)
@click.option("--grid", metavar="X[,Y[,Z]]", help="The launch to validate (default: 2,2).")
@click.option("--target", show_default="what the file is planned for, or sm_90a")
@OUTPUT
def opt(
    path: str,
    listing: bool,
    passes: tuple[str, ...],
    resume_from: str | None,
    stop_after: str | None,
    printing: str | None,
    verify_only: bool,
    validate: bool,
    against: str | None,
    inputs: str | None,
    grid: str | None,
    target: str | None,
    output: str | None,
) -> None:
    """Run passes over IR text (FILE, default standard input)."""
    from tkc.tools.opt import arrays, compared, optimize, read, validator_of, write

    if listing:
        from tkc.passes.pipeline import PIPELINE

        for name in PIPELINE:
            click.echo(name)
        return

    def observe(name, module):
        from tkc.ir.text import show

        if printing:
            click.echo(f"// after {name}\n{show(module)}")

    given, extents, reports = arrays(inputs), grid_of(grid), []

    def validator(module):
        reports.append(
            validator_of(
                module,
                given,
                extents,
                "tkc opt {folder}/before.mlir --pass {name} --validate --inputs {folder}/inputs.npz"
                + (f" --target {target}" if target else ""),
            )
        )
        return reports[-1]

    if verify_only and validate:
        raise Error("--verify-only runs no passes; leave it out, or --validate")
    if passes and (resume_from or stop_after):
        raise Error("-p names the passes to run; leave --resume-from and --stop-after out")
    if against:
        click.echo(compared(read(path), read(against), given, extents))
        return
    text = optimize(
        *read(path),
        target,
        passes,
        resume_from,
        stop_after,
        verify_only,
        observe,
        validator if validate else None,
    )
    if validate:
        click.echo(str(reports[-1]), err=True)
    write("" if printing else text, output)


def grid_for(text: str | None, function: Any) -> Any:
    """The grid of a text, else what stands beside the kernel as `grid`. Raises tkc.Error."""
    grid = grid_of(text) or function.fn.__globals__.get("grid")
    if not callable(grid) and not isinstance(grid, tuple):
        raise Error(
            f"{function.__name__} needs a grid; write --grid 32,32, or a function `grid` beside the"
            " kernel"
        )
    return grid


def grid_of(text: str | None) -> tuple[int, ...] | None:
    """A grid as text. Raises tkc.Error."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}(,\d{1,9}){0,2}", text):
        raise Error(f"{text!r} is no grid; write one to three numbers, such as 32,16")
    return tuple(int(n) for n in text.split(","))


@main.command("reduce")
@click.argument("path", metavar="FILE")
@click.option(
    "--test",
    metavar="COMMAND",
    help=(
        "Ends with 0 where a file ({}, or its last word) is interesting. Default: it fails as FILE"
        " does."
    ),
)
@click.option(
    "--target",
    default="sm_90a",
    show_default=True,
    help="Without --test: what to compile for (cpu: the CPU alone).",
)
@click.option("--warps", type=click.IntRange(1, 32))
@click.option("--stages", type=click.IntRange(1, 16), default=2, show_default=True)
@click.option(
    "--grid",
    default="1",
    show_default=True,
    metavar="X[,Y[,Z]]",
    help="Programs to run in the simulator.",
)
@OUTPUT
def reduce_(
    path: str,
    test: str | None,
    target: str,
    warps: int | None,
    stages: int,
    grid: str,
    output: str | None,
) -> None:
    """Make a module of level 0 as small as it can be while it stays interesting."""
    from tkc.ir.target import TARGETS
    from tkc.tools.opt import read, write
    from tkc.tools.reduce import reduced

    if target != "cpu" and target not in TARGETS:
        raise Error(f"unknown target {target!r}; there are {', '.join(TARGETS)} and cpu")
    if not all(n.isdigit() and 0 < int(n) < 1000 for n in grid.split(",")) or grid.count(",") > 2:
        raise Error(f"--grid is one to three numbers such as 2,3, got {grid!r}")
    write(
        reduced(
            *read(path),
            test,
            target,
            warps,
            stages,
            tuple(map(int, grid.split(","))),
            lambda line: click.echo(line, err=True),
        ),
        output,
    )


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1)
def bench(arguments: tuple[str, ...]) -> None:
    """Run benchmarks by name, as benchmarks/run.py does."""
    script = next(
        (
            r / "benchmarks" / "run.py"
            for r in (Path.cwd(), Path(__file__).resolve().parent.parent.parent)
            if (r / "benchmarks" / "run.py").is_file()
        ),
        None,
    )
    if script is None:
        raise Error("there is no benchmarks/run.py here; run tkc bench in a checkout of tkc")
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
