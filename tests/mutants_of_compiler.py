"""Mutants of the compiler: `python -m tests.mutants_of_compiler` disables, one at a time, each
check of legality of the passes, and says which mutants nothing finds.

A *site* is a condition: of an `if` that refuses (returns nothing, False or a reason, continues, or
raises), each operand of its `or`; of a predicate that returns `a and b`, each operand; `return not
a`, `return all(…)`; what a predicate of what must not be returns (`DANGERS`). At an active site the
condition never refuses. Where a loop does nothing but look for a reason to refuse, what skips the
rest of it is none: without it more is refused.

Not every site is a check of legality. `no_legality` says by rules which are not: guards of types,
of None and of lengths, without which programs stop with errors of Python; what ends a walk over
values that were seen; what was asked for or planned, where both answers are right; sizes and
thresholds; and the modules that weigh times (`CHOOSING`).

First the random kernels and the tests run once without a mutant, some at a time in a process of
their own, and what refuses in each is written to a file (`--reached`; tests/mutants_reached.py). A
later collection runs what is new: tests, and what runs functions whose checks are. A mutant is then
run on these alone, in a child process with a deadline that has compiled nothing before: on the
tests that are named as its module is, then on the kernels, then on other tests: a case of each
test, the quickest first, then another; before all these on what caught it in an earlier run
(`--known`). It is caught where a kernel computes something else, races,
or fails, or where a test fails, or where their process crashes or does not end, which without the
mutant does not.
Of a mutant that survives it is said whether any kernel was compiled to another program.

`--jobs` says how many processes run beside each other, `--limit` after how many seconds all of them
end. Either file is written as results come: the next run of the same files goes on with the rest.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import io
import json
import math
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from tests.mutants_reached import Kernel, Reached, Test, function_of, in_order, module_of

if TYPE_CHECKING:
    from tkc.fuzz.check import Comparison, Variant

    Run = tuple[Comparison, Variant]

# a key, a function, and seconds of the processor's time
Task = tuple[Any, Callable[[], Any], float]

ROOT = Path(__file__).resolve().parents[1]
PASSES = ROOT / "tkc" / "passes"
RESULTS = ROOT / "benchmarks" / "results" / "mutants_of_compiler.json"
SITE = "_mutation_site"  # the name under which instrumented modules find `Sites.value`
# kernels of a policy that are compiled; the numbers of statements keep them short
CORPUS = {"in_place": 60, "roles": 90, "large": 40, "pipelines": 40, "memory": 30, "layouts": 30}
STATEMENTS = 5
KERNELS_OF_A_MUTANT = 16
MIN_SECONDS = 0.05  # seconds that a test takes at least, what pytest does included
SECONDS_OF_TESTS = 60.0  # of a mutant, as they were measured without one
# Seconds of the processor's time after which a mutant is caught: to begin with, and how many for
# each second of its tests and for each kernel
DEADLINE, DEADLINE_OF_A_SECOND, DEADLINE_OF_A_KERNEL = 60, 4, 6
WALL = 10  # times as many seconds of the clock
COLLECTING = 3600  # seconds of the processor's time, of what one process collects
KERNELS_OF_A_PROCESS, TESTS_OF_A_PROCESS = 3, 20
WRITTEN_EACH = 20  # seconds, what was collected
# Parts of names of files, those whose checks keep an order of accesses to memory before those that
# ask whether a plan or a rewrite is right: what they let through is wrong and says nothing
FIRST = (
    "insert_synchronization",
    "analysis/alias",
    "allocate_shared",
    "fetch_ahead",
    "pipeline_async_copies",
    "schedule_warpgroups",
    "warpgroups/",
    "layouts/epilogue_subtiles",
    "select_layouts",
    "analysis/",
    "planning/",
)

# modules whose answers make programs slower or quicker, not wrong
CHOOSING = (
    "planning/attention.py",  # blocks, each of which is planned as any other
    "planning/products.py",
    "planning/cost.py",
    "planning/demands.py",
    "planning/pressure.py",
    "planning/stages.py",
    "programs/order.py",
    "assign_registers.py",
    "layouts/groups.py",  # any layout is right
    "layouts/movers.py",
    "analysis/values.py",
    "pipeline.py",
)
# functions whose answers do so in modules of which others refuse
CHOOSING_FUNCTIONS = (
    "fetch_ahead.py _feeds",
    "index_registers.py _gains",
    "merge_loads.py _may_gain",
    "planning/meetings.py multiplies_in_turn",
    "select_layouts.py _pays_to_load_again",
)
# of what was asked for, planned or is the target's: both answers give right programs
ASKED = {"options", "plan", "asked", "roles", "fp8", "wgmma"}
# where a walk may end: at values that were seen, at operations that use nothing it looks for
SEEN = {
    *("within", "seen", "known", "found", "done", "alive", "made"),
    *("search", "wanted", "ops", "axes", "as_it_was"),
}
# predicates that say what must not be: there True refuses, and one that is never True is the mutant
DANGERS = (
    "_bound",
    "_changes_around",
    "_is_far",
    "_is_handed_on",
    "_is_part",
    "_is_passed",
    "_is_written",
    "_may_be_none",
    "_may_lie_apart",
    "_may_wrap",
    "_meet",
    "_overlap",
    "may_lie_before",
    "meets",
)
LARGEST_NUMBER = 2  # greater ones are sizes
BITS_OF_A_NUMBER = 31  # but not where a range of integers ends
LIMITS = ("MAX", "MIN", "MOST", "LINE")  # names of constants


@dataclass(frozen=True)
class Site:
    """A condition of the compiler. refusing: the truth value with which it refuses; name: without
    the line.
    """

    file: str
    line: int
    function: str
    text: str
    refusing: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text[:160]}"

    @property
    def name(self) -> str:
        return f"{self.file} {self.function}: {self.text[:160]}"


def no_legality(site: Site) -> str | None:
    """Why a condition is no check of legality; None where it is one."""
    if site.file.removeprefix("tkc/passes/") in CHOOSING:
        return "a module that weighs times"
    if site.name.removeprefix("tkc/passes/").startswith(CHOOSING_FUNCTIONS):
        return "a function that weighs times"
    tree = ast.parse(site.text, mode="eval").body
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in ASKED:
                return "what was asked for or planned"
            case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE(), *_]):
                if any(_is_size(inner) for inner in ast.walk(node)):
                    return "a size or a threshold"
    if _asks_for_none(tree):
        return "a guard of None"
    match tree:
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[held]):
            if set(_words(held)) & SEEN:
                return "what ends a walk"
        case ast.Compare(left=ast.Call(func=ast.Name(id="len"))):
            return "a guard of a length"
        case ast.Attribute(attr="regions" | "results"):
            return "what ends a walk"
        case ast.UnaryOp(operand=ast.Attribute(attr="regions" | "results")):
            return "what ends a walk"
    return None


def _is_size(node: ast.AST) -> bool:
    """Whether an expression is a number of elements, bytes or the like, or a limit of one."""
    match node:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int(n)):
            return LARGEST_NUMBER < n != BITS_OF_A_NUMBER
        case ast.Name(id=name):
            return name.startswith(LIMITS) or name.endswith("_REGISTERS")
    return False


def _asks_for_none(node: ast.expr) -> bool:
    """Whether a condition asks for None and for nothing else."""
    match node:
        case ast.BoolOp(values=operands):
            return all(map(_asks_for_none, operands))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _asks_for_none(operand)
        case ast.Compare(left=left, comparators=[right]):
            if isinstance(right, ast.Constant) and right.value is None:
                return True
            return _asks_for_none(left) and _asks_for_none(right)
    return False


def _words(node: ast.expr) -> Iterator[str]:
    """The names in an expression."""
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield name


class Sites:
    """All sites of the modules imported so far, those that were asked and those that refused since
    the last `clear`, and the one that is disabled.
    """

    def __init__(self) -> None:
        self.all: list[Site] = []
        self.asked: set[int] = set()
        self.refused: set[int] = set()
        self.active: int | None = None

    def clear(self) -> None:
        """Forgets what was asked and what refused."""
        self.asked, self.refused = set(), set()

    def value(self, number: int, value: object) -> object:
        """What a condition gives at its site."""
        self.asked.add(number)
        refusing = self.all[number].refusing
        if bool(value) is not refusing:
            return value
        self.refused.add(number)
        return not refusing if number == self.active else value


SITES = Sites()


# ---- finding the sites
def _is_guard(node: ast.expr) -> bool:
    """Whether a condition asks for a type or for None."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return isinstance(node.operand, ast.Name) or _is_guard(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "isinstance"
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot))


def _refuses(body: list[ast.stmt], returns: str) -> bool:
    """Whether the suite of an `if` refuses. returns: the annotation of the function: where 0 is one
    answer among others, it is no refusal, nor is the end of a function that gives nothing, nor that
    there is no reason.
    """
    if len(body) != 1:
        return False
    if isinstance(body[0], ast.Return) and ast.unparse(body[0]) == "return ''":
        return False
    if isinstance(body[0], ast.Return) and body[0].value is None and returns == "None":
        return False
    if isinstance(body[0], ast.Return) and isinstance(body[0].value, ast.Constant):
        number = body[0].value.value
        if type(number) is int and returns != "int":
            return False
    match body[0]:
        case ast.Continue() | ast.Raise():
            return True
        case ast.Return(value=None | ast.Constant() | ast.JoinedStr()):
            return not (isinstance(body[0].value, ast.Constant) and body[0].value.value is True)
        case ast.Return(value=ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[])):
            return True
    return False


def _looks_for_a_reason(body: Sequence[ast.stmt], returns: str) -> bool:
    """Whether statements of a loop do nothing but refuse where something is found."""
    found = False
    for statement in body:
        if isinstance(statement, ast.If) and not statement.orelse:
            if not _refuses(statement.body, returns):
                return False
            found |= not isinstance(statement.body[0], ast.Continue)
        elif not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            return False
    return found


class _Instrument(ast.NodeTransformer):
    """Wraps each condition in a call of `Sites.value`."""

    def __init__(self, file: str) -> None:
        self.file, self.functions, self.returns = file, ["module"], [""]
        self.skips: set[ast.If] = set()  # what skips the rest of a loop that looks for a reason

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.functions.append(node.name)
        self.returns.append(ast.unparse(node.returns) if node.returns else "")
        self.generic_visit(node)
        self.functions.pop()
        self.returns.pop()
        return node

    def _site(self, node: ast.expr, refusing: bool) -> ast.expr:
        if _is_guard(node):
            return node
        number = len(SITES.all)
        text = " ".join(ast.unparse(node).split())
        SITES.all.append(Site(self.file, node.lineno, self.functions[-1], text, refusing))
        call = ast.Call(ast.Name(SITE, ast.Load()), [ast.Constant(number), node], [])
        return ast.copy_location(call, node)

    def _operands(self, node: ast.expr, kind: type[ast.boolop], refusing: bool) -> ast.expr:
        if isinstance(node, ast.BoolOp) and isinstance(node.op, kind):
            node.values = [self._site(v, refusing) for v in node.values]
            return node
        return self._site(node, refusing)

    def visit_For(self, node: ast.For) -> ast.For:
        for i, statement in enumerate(node.body):
            if (
                isinstance(statement, ast.If)
                and isinstance(statement.body[0], ast.Continue)
                and _looks_for_a_reason(node.body[i + 1 :], self.returns[-1])
            ):
                self.skips.add(statement)
        self.generic_visit(node)
        return node

    def _is_refusal(self, node: ast.If) -> bool:
        if self.functions[-1] in DANGERS:
            return len(node.body) == 1 and ast.unparse(node.body[0]) == "return True"
        return node not in self.skips and _refuses(node.body, self.returns[-1])

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        if self._is_refusal(node):
            node.test = self._operands(node.test, ast.Or, True)
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        self.generic_visit(node)
        if self.functions[-1] in DANGERS:
            if node.value is not None and not isinstance(node.value, ast.Constant):
                node.value = self._site(node.value, True)
            return node
        match node.value:
            case ast.BoolOp(op=ast.And()):
                node.value = self._operands(node.value, ast.And, False)
            case ast.UnaryOp(op=ast.Not()) | ast.Call(func=ast.Name(id="all")):
                node.value = self._site(node.value, False)
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with its sites."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(Path(path).read_text(), path)
        tree = _Instrument(str(Path(path).relative_to(ROOT))).visit(tree)
        return compile(ast.fix_missing_locations(tree), path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of tkc.passes for `_Loader`."""

    def find_spec(self, fullname, path=None, target=None):  # noqa: ANN001, ANN201
        if not fullname.startswith("tkc.passes."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def instrument() -> None:
    """Imports every pass with its sites. Nothing of tkc.passes may be imported yet."""
    import builtins
    import importlib

    assert not any(name.startswith("tkc.passes.") for name in sys.modules)
    sys.meta_path.insert(0, _Finder())
    setattr(builtins, SITE, SITES.value)
    for path in sorted(PASSES.rglob("*.py")):
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for name in ("pytest", "tkc.fuzz.check", "tkc.fuzz.productions"):  # once for all children
        importlib.import_module(name)


# ---- processes
@dataclass(frozen=True)
class Child:
    """A process that runs a function, and where it says what the function gave."""

    key: Any
    pid: int
    seconds: float
    pipe: Connection

    @staticmethod
    def begin(key: object, run: Callable[[], object], seconds: float) -> Child:
        """seconds: of the processor's time, after which the process ends."""
        source, target = multiprocessing.Pipe(duplex=False)
        pid = os.fork()
        if not pid:
            source.close()
            os.setpgid(0, 0)  # with what tests start
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
            signal.alarm(math.ceil(WALL * seconds))
            try:
                result = run()
            except BaseException as e:
                result = f"{type(e).__name__}: {e}"[:300]
            target.send(result)
            os._exit(0)
        target.close()
        return Child(key, pid, seconds, source)

    def result(self) -> object:
        """What the function gave; a text where it raised an error, crashed or did not end."""
        try:
            return self.pipe.recv()
        except EOFError:
            return f"no end within {self.seconds:g} s, or a crash"
        finally:
            self.end()

    def end(self) -> None:
        """Ends the process and what it started."""
        self.pipe.close()
        for kill in (os.kill, os.killpg):  # it may not lead a group yet
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def in_children(tasks: deque[Task], jobs: int, ends: float) -> Iterator[tuple[Any, Any]]:
    """What functions give, each in a process of its own, as they end. tasks: while these are run,
    others may be added. jobs: processes at a time. ends: when those that run are ended and no other
    begins, by time.monotonic.
    """
    running: dict[Connection, Child] = {}
    try:
        while True:
            while len(running) < jobs and tasks:
                child = Child.begin(*tasks.popleft())
                running[child.pipe] = child
            left = ends - time.monotonic()
            if not running or left <= 0:
                return
            for pipe in wait(list(running), None if math.isinf(left) else left):
                child = running.pop(pipe)  # type: ignore[call-overload]
                yield child.key, child.result()
    finally:
        for child in running.values():
            child.end()


def in_child(run: Callable[[], object], seconds: float) -> Any:
    """What a function gives in a process of its own."""
    return next(in_children(deque([(None, run, seconds)]), 1, math.inf))[1]


# ---- what runs without a mutant
def runs_of(policy: str, seed: int) -> list[Run]:
    """A random kernel and how it is compiled; none where it does not trace."""
    from tkc.fuzz.check import Comparison, arguments, default_target, traced, variants
    from tkc.fuzz.productions import kernel

    k = kernel(seed, policy, STATEMENTS)
    try:
        comparison = Comparison(traced(k, arguments(k)), lambda: arguments(k), k.grid)
    except Exception:
        return []
    return [
        (comparison, replace(variant, each=False, ptx=False))
        for variant in variants(k, default_target(k), False, None)
    ]


def kernels_reached(kernels: Sequence[tuple[str, int]]) -> Reached:
    """In which random kernels, of a policy and a seed, which sites refuse."""
    reached = Reached(done=[f"{policy} {seed}" for policy, seed in kernels])
    for policy, seed in kernels:
        asked: set[str] = set()
        began = time.monotonic()
        for number, (comparison, variant) in enumerate(runs_of(policy, seed)):
            SITES.clear()
            if not list(comparison.passes(variant)):
                asked |= functions_asked()
                for site in SITES.refused:
                    name = SITES.all[site].name
                    reached.kernels.setdefault(name, []).append((policy, seed, number))
        for function in asked:
            run = (time.monotonic() - began, f"{policy} {seed}")
            reached.functions.setdefault(function, []).append(run)
    return reached


def functions_asked() -> set[str]:
    """The functions of which sites were asked."""
    return {function_of(SITES.all[site].name) for site in SITES.asked}


class Recorder:
    """A plugin of pytest: in which tests which sites refuse."""

    def __init__(self) -> None:
        self.reached = Reached()

    def pytest_runtest_logreport(self, report) -> None:  # noqa: ANN001
        """After each part of a test; one that did not pass says nothing."""
        run = (report.duration, report.nodeid)
        if report.when == "call" and report.passed:
            for site in SITES.refused:
                self.reached.tests.setdefault(SITES.all[site].name, []).append(run)
            for function in functions_asked():
                self.reached.functions.setdefault(function, []).append(run)
        if report.failed:
            self.reached.failed.add(report.nodeid)
        if report.when != "setup":
            SITES.clear()


class Only:
    """A plugin of pytest: of the tests in some files those of some names, in their order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.place = {name: i for i, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place),
            key=lambda item: self.place[item.nodeid],
        )


def run_tests(names: Sequence[str], *options: str, plugins: Sequence[object] = ()) -> int:
    """Runs tests, as far as they are there, quietly; pytest's status."""
    import pytest

    os.environ["TKC_TEST_SEED"] = "all"
    files = [f for f in dict.fromkeys(n.partition("::")[0] for n in names) if Path(f).exists()]
    if not files:
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return int(
            pytest.main(
                ["-q", "-p", "no:cacheprovider", *options, *files],
                plugins=[Only(names), *plugins],
            )
        )


def tests_reached(tests: Sequence[str]) -> Reached:
    """In which tests, of these names, which sites refuse."""
    recorder = Recorder()
    run_tests(tests, plugins=[recorder])
    return replace(recorder.reached, done=list(tests))


def names_of(given: Sequence[str]) -> list[str]:
    """The tests in files and folders: every case, not of today's alone."""
    import pytest

    os.environ.setdefault("TKC_TEST_SEED", "all")
    names: list[str] = []

    class Names:
        def pytest_collection_finish(self, session) -> None:  # noqa: ANN001
            names.extend(item.nodeid for item in session.items)

    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", *given], plugins=[Names()])
    return names


# ---- one mutant
@dataclass(frozen=True)
class Finding:
    """What finds a mutant. run: the kernel, or the id of the test, that does."""

    run: Kernel | str
    text: str


@dataclass(frozen=True)
class Runs:
    """On what a mutant is run. first: what caught it before, a random kernel's policy and seed or
    the id of a test.
    """

    kernels: Sequence[Kernel] = ()
    tests: Sequence[Test] = ()
    first: tuple[str, int] | str | None = None


def run_of(text: str | None) -> tuple[str, int] | str | None:
    """The policy and seed of the random kernel, or the id of the test, that a result names; None
    where it names neither.
    """
    if (found := re.match(r"kernel (\w+) (\d+): ", text or "")) is not None:
        return found[1], int(found[2])
    if text is not None and text.startswith("test "):
        return text.removeprefix("test ").removesuffix(": cannot be collected")
    return None


def caught(number: int | None, runs: Runs) -> Finding | None:
    """What finds a mutant, or fails without one; None if nothing does."""
    SITES.active = number
    if (found := _caught_before(runs.first)) is not None:
        return found
    stem = Path(SITES.all[number].file).stem if number is not None else ""
    tests = [test for _, test in runs.tests]
    near = [name for name in tests if stem in name]
    far = [name for name in tests if stem not in name]
    return failing_test(near) or failing_kernel(runs.kernels) or failing_test(far)


def _caught_before(first: tuple[str, int] | str | None) -> Finding | None:
    if first is None:
        return None
    if isinstance(first, str):
        return failing_test([first])
    return failing_kernel([(*first, variant) for variant in range(len(runs_of(*first)))])


def failing_kernel(kernels: Sequence[Kernel]) -> Finding | None:
    """The first random kernel that fails, and how."""
    for policy, seed, variant in kernels:
        if variant >= len(compiled := runs_of(policy, seed)):
            continue  # the grammar was edited since
        comparison, how = compiled[variant]
        for failure in comparison.passes(how):
            if failure.kind != "refused":
                return Finding((policy, seed, variant), f"kernel {policy} {seed}: {failure}"[:300])
    return None


def failing_test(tests: Sequence[str]) -> Finding | None:
    """The first test that fails."""
    failed: list[Finding] = []

    class Failed:
        def pytest_runtest_logreport(self, report) -> None:  # noqa: ANN001
            if report.failed:
                failed.append(Finding(report.nodeid, f"test {report.nodeid}"))

        def pytest_collectreport(self, report) -> None:  # noqa: ANN001
            if report.failed:
                some = next(name for name in tests if name.startswith(report.nodeid))
                failed.append(Finding(some, f"test {some}: cannot be collected"))

    run_tests(tests, "-x", plugins=[Failed()])
    return failed[0] if failed else None


# ---- which mutants, and how they are run
def unlike(number: int, kernels: Sequence[Kernel]) -> str:
    """How many of the kernels a mutant compiles to another program."""
    from tkc.ir.text import show
    from tkc.passes.pipeline import PIPELINE, module_of

    def text(comparison: Comparison, variant: Variant) -> str:
        module, context = comparison.module.clone(), variant.context(comparison.overlaps)
        for name in PIPELINE:
            module_of(name).run(module, context)
        return show(module)

    different = 0
    for policy, seed, variant in kernels:
        run = runs_of(policy, seed)[variant]
        SITES.active = None
        one = text(*run)
        SITES.active = number
        different += text(*run) != one
    return f"{different} of {len(kernels)} kernels are other programs"


def chosen_of(reached: Reached, name: str, left: float, known: str | None = None) -> Runs:
    """On what a mutant is run. left: seconds of tests; known: what caught it in an earlier run."""
    kernels = reached.kernels.get(name, [])
    kernels = random.Random(0).sample(kernels, min(len(kernels), KERNELS_OF_A_MUTANT))
    tests: list[Test] = []
    for seconds, test in in_order(reached.tests.get(name, []), module_of(name)):
        left -= max(seconds, MIN_SECONDS)
        if left < 0 and tests:
            break
        tests.append((seconds, test))
    return Runs(kernels, tests, run_of(known))


def _parts(tests: Sequence[str], share: float, done: set[str]) -> Iterator[Callable[[], Reached]]:
    """What is to be collected, in parts for a process each."""
    kernels = [
        (policy, seed)
        for policy, count in CORPUS.items()
        for seed in range(round(share * count))
        if f"{policy} {seed}" not in done
    ]
    for i in range(0, len(kernels), KERNELS_OF_A_PROCESS):
        yield partial(kernels_reached, kernels[i : i + KERNELS_OF_A_PROCESS])
    names = in_child(lambda: names_of(tests), COLLECTING) if tests else []
    if isinstance(names, str):
        sys.exit(f"the tests cannot be listed: {names}")
    names = spread([name for name in names if name not in done])
    for i in range(0, len(names), TESTS_OF_A_PROCESS):
        yield partial(tests_reached, names[i : i + TESTS_OF_A_PROCESS])


def spread(names: Sequence[str]) -> list[str]:
    """Tests in the order in which a collection that is cut off tells most: the first case of each
    function, then the second; files stay together within each of these rounds.
    """
    cases: Counter[str] = Counter()
    order: list[tuple[int, str, int, str]] = []
    for name in names:
        function = name.partition("[")[0]
        cases[function] += 1
        order.append((cases[function].bit_length(), name.partition("::")[0], len(order), name))
    return [name for *_, name in sorted(order)]


def collect(path: Path, tests: Sequence[str], share: float, jobs: int, ends: float) -> None:
    """Writes what refuses in some tests and a share of the kernels, besides what the file has. A
    part that fails is named and left out.
    """
    found = Reached.read(path) if path.exists() else Reached()
    found.ask(site.name for site in SITES.all)
    parts = list(_parts(tests, share, set(found.done)))
    written = time.monotonic()
    for number, reached in in_children(
        deque((i, part, COLLECTING) for i, part in enumerate(parts)), jobs, ends
    ):
        if isinstance(reached, Reached):
            found.add(reached)
        else:
            what = parts[number].args[0]  # type: ignore[attr-defined]
            print(f"not collected: {what}: {reached}", flush=True)
        if time.monotonic() - written > WRITTEN_EACH:
            found.write(path)
            written = time.monotonic()
    found.write(path)
    for test in sorted(found.failed):
        print(f"fails: {test}")
    print(f"collected: {len(found.done)} kernels and tests", flush=True)


def _order(site: Site, seed: int) -> tuple[int, str]:
    """Where a site stands among all: what is edited elsewhere does not move it."""
    rank = next((i for i, part in enumerate(FIRST) if part in site.file), len(FIRST))
    return rank, hashlib.sha256(f"{seed} {site.name}".encode()).hexdigest()


def print_table(found: dict[str, str | None]) -> None:
    """How many mutants of each file were run and caught."""
    run: Counter[str] = Counter(name.partition(" ")[0] for name in found)
    dead = Counter(name.partition(" ")[0] for name, by in found.items() if by is not None)
    for file, count in sorted(run.items()):
        print(f"| {file.removeprefix('tkc/passes/')} | {count} | {dead[file]} |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--files", nargs="*", default=[], help="parts of names of files")
    parser.add_argument("--lines", nargs="*", type=int, default=[], help="of those files")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the mutants")
    parser.add_argument("--most", type=int, default=10_000, help="mutants, the first in that order")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds until all end")
    parser.add_argument("--tests", nargs="*", default=["tests/passes"], help="for --collect")
    parser.add_argument("--collect", action="store_true", help="what is reached; then end")
    parser.add_argument("--names", action="store_true", help="print the names of all sites; end")
    parser.add_argument("--kernels", type=float, default=1.0, help="share of them, for --collect")
    parser.add_argument("--each", type=float, default=SECONDS_OF_TESTS, help="seconds of tests")
    parser.add_argument("--reached", type=Path, default=ROOT / "out" / "mutants_reached.json")
    parser.add_argument("--out", type=Path, default=RESULTS, help="what was caught, and is kept")
    parser.add_argument("--known", type=Path, help="an earlier run's: what caught is run first")
    return parser.parse_args()


def chosen_sites(given: argparse.Namespace, reached: Reached) -> list[int]:
    """The numbers of the checks that were asked for and refuse somewhere, in the order in which
    they are disabled.
    """
    checks = {n: site for n, site in enumerate(SITES.all) if no_legality(site) is None}
    there = [n for n, s in checks.items() if s.name in reached.kernels or s.name in reached.tests]
    print(f"{len(SITES.all)} conditions, {len(checks)} checks of legality, {len(there)} refuse")
    chosen = [
        n
        for n in there
        if (not given.files or any(f in SITES.all[n].file for f in given.files))
        and (not given.lines or SITES.all[n].line in given.lines)
    ]
    return sorted(chosen, key=lambda n: _order(SITES.all[n], given.seed))[: given.most]


@dataclass(frozen=True)
class Unchanged:
    """The key of a run without a mutant of all that a mutant was run on, which crashed or hung."""

    number: int


class Trials:
    """Mutants at work, and what their findings are worth: what fails without a mutant, too, finds
    none. runs: what each is run on. found: what is known already, and what this adds.
    """

    def __init__(self, runs: dict[int, Runs], found: dict[str, str | None]) -> None:
        self.runs, self.found = runs, found
        self.tasks: deque[Task] = deque()
        self.sound: dict[Kernel | str, bool] = {}  # runs that pass without a mutant
        self.waiting: dict[Kernel | str, list[tuple[int, Finding]]] = {}  # until that is known
        self.crashes: dict[int, str] = {}  # how a mutant's process ended, until that is known

    def add(self, number: int) -> None:
        """A mutant is to be run."""
        runs, deadline = self._sound_runs(number)
        self.tasks.append((number, partial(caught, number, runs), deadline))

    def _sound_runs(self, number: int) -> tuple[Runs, float]:
        """On what a mutant is run, less what fails without one, and its deadline."""
        runs = self.runs[number]
        runs = Runs(
            [k for k in runs.kernels if self.sound.get(k, True)],
            [(s, test) for s, test in runs.tests if self.sound.get(test, True)],
            runs.first if self._is_sound(runs.first) else None,
        )
        deadline = (
            DEADLINE
            + DEADLINE_OF_A_SECOND * sum(seconds for seconds, _ in runs.tests)
            + DEADLINE_OF_A_KERNEL * len(runs.kernels)
        )
        return runs, deadline

    def _is_sound(self, first: tuple[str, int] | str | None) -> bool:
        """Whether what caught a mutant before is not known to fail without it."""
        if isinstance(first, tuple):
            return not any(run[:2] == first for run, passes in self.sound.items() if not passes)
        return first is None or self.sound.get(first, True)

    def run(self, jobs: int, ends: float, out: Path) -> None:
        """Writes what finds the mutants that were added."""
        began = time.monotonic()
        for key, gave in in_children(self.tasks, jobs, ends):
            if isinstance(key, Unchanged):
                self._judge_crash(key.number, gave)
            elif not isinstance(key, int):
                self._judge(key, gave is None)
            elif isinstance(gave, Finding):
                self._weigh(key, gave)
            elif gave is not None:
                self._weigh_crash(key, gave)
            else:
                self._keep(key, None)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(dict(sorted(self.found.items())), indent=1))
            done = time.monotonic() - began
            print(f"{done:.0f} s, {len(self.found)} known, {len(self.tasks)} to go", flush=True)

    def _weigh(self, number: int, finding: Finding) -> None:
        """A mutant was found."""
        run = finding.run
        if run in self.sound:
            self._settle(number, finding)
        elif run in self.waiting:
            self.waiting[run].append((number, finding))
        else:
            self.waiting[run] = [(number, finding)]
            alone = Runs((), [(0.0, run)]) if isinstance(run, str) else Runs([run])
            self.tasks.appendleft((run, partial(caught, None, alone), COLLECTING))

    def _judge(self, run: Kernel | str, passes: bool) -> None:
        """A kernel or a test was run without a mutant."""
        self.sound[run] = passes
        if not passes:
            print(f"fails without a mutant: {run}")
        for number, finding in self.waiting.pop(run):
            self._settle(number, finding)

    def _settle(self, number: int, finding: Finding) -> None:
        """What found a mutant is known to pass, or to fail, without one."""
        if self.sound[finding.run]:
            self._keep(number, finding.text)
        else:
            self.add(number)

    def _weigh_crash(self, number: int, how: str) -> None:
        """The process of a mutant ended otherwise than by a finding."""
        self.crashes[number] = how
        runs, deadline = self._sound_runs(number)
        self.tasks.appendleft((Unchanged(number), partial(caught, None, runs), deadline))

    def _judge_crash(self, number: int, gave: object) -> None:
        """The same was run without the mutant."""
        how = self.crashes.pop(number)
        if gave is None:
            self._keep(number, how)
        elif isinstance(gave, Finding):
            self.sound[gave.run] = False
            print(f"fails without a mutant: {gave.run}")
            self.add(number)
        else:
            print(f"fails without a mutant: what {SITES.all[number]} was run on: {gave}")
            self._keep(number, None)

    def _keep(self, number: int, by: str | None) -> None:
        self.found[SITES.all[number].name] = by
        print(f"{SITES.all[number]}: {(by or 'survives')[:160]}")


def main() -> None:
    """Prints what finds each mutant, each survivor, and how many mutants there were."""
    given = _arguments()
    ends = time.monotonic() + given.limit
    os.chdir(ROOT)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process keeps to its core
    instrument()
    if given.names:
        print(*(site.name for site in SITES.all), sep="\n")
        return
    if given.collect or not given.reached.exists():
        collect(given.reached, given.tests, given.kernels, given.jobs, ends)
        if given.collect:
            return
    reached = Reached.read(given.reached)
    chosen = chosen_sites(given, reached)
    earlier = json.loads(given.out.read_text()) if given.out.exists() else {}
    there = {site.name for site in SITES.all}
    found: dict[str, str | None] = {name: by for name, by in earlier.items() if name in there}
    known = json.loads(given.known.read_text()) if given.known else {}
    names = {n: SITES.all[n].name for n in chosen}
    runs = {n: chosen_of(reached, name, given.each, known.get(name)) for n, name in names.items()}
    trials = Trials(runs, found)
    for n in chosen:
        if found.get(SITES.all[n].name) is None:
            trials.add(n)
    trials.run(given.jobs, ends, given.out)
    alive = [n for n in chosen if found.get(SITES.all[n].name, "not run") is None]
    programs = deque((n, partial(unlike, n, runs[n].kernels), DEADLINE) for n in alive)
    how = dict(in_children(programs, given.jobs, ends))
    for n in alive:
        told = how.get(n, "programs not compared")
        print(f"survives: {SITES.all[n]} ({told}, {len(runs[n].tests)} tests)", flush=True)
    mine = set(names.values())
    print_table({name: by for name, by in found.items() if name in mine})
    print(
        f"{len(chosen)} mutants: {len(mine & found.keys()) - len(alive)} caught,"
        f" {len(alive)} survive, {len(mine - found.keys())} not run"
    )


if __name__ == "__main__":
    main()
