"""Mutants of the compiler: `python -m tests.mutants_of_compiler` disables, one at a time, each
check of the passes that refuses something or keeps an order, and says which mutants nothing finds.

A *site* is a condition: of an `if` that refuses (returns nothing, False or a reason, continues, or
raises), each operand of its `or`; of a predicate that returns `a and b`, each operand; `return not
a`, `return all(…)`. At an active site the condition never refuses. Guards of types and of None are
no sites: without them programs stop with errors of Python.

First the random kernels and the tests of the passes run once without a mutant, and each notes the
sites that refuse in it. A mutant is then run on these alone, in a child process with a deadline: it
is caught where a kernel computes something else, is refused for no reason or fails, or where a test
fails.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
PASSES = ROOT / "tkc" / "passes"
SITE = "_mutation_site"  # the name under which instrumented modules find `Sites.value`
# kernels of a policy that are compiled; the numbers of statements keep them short
CORPUS = {"in_place": 60, "roles": 60, "large": 20, "pipelines": 30, "memory": 20, "layouts": 20}
STATEMENTS = 5
KERNELS_OF_A_MUTANT = 12
TESTS_OF_A_MUTANT = 12
DEADLINE = 90  # seconds of a mutant


@dataclass(frozen=True)
class Site:
    """A condition of the compiler. refusing: the truth value with which it refuses."""

    file: str
    line: int
    text: str
    refusing: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


class Sites:
    """All sites of the modules imported so far, those that refused since the last `clear`, and the
    one that is disabled.
    """

    def __init__(self) -> None:
        self.all: list[Site] = []
        self.refused: set[int] = set()
        self.active: int | None = None

    def value(self, number: int, value: object) -> object:
        """What a condition gives at its site."""
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


def _refuses(body: list[ast.stmt]) -> bool:
    """Whether the suite of an `if` refuses."""
    if len(body) != 1:
        return False
    match body[0]:
        case ast.Continue() | ast.Raise():
            return True
        case ast.Return(value=None | ast.Constant() | ast.JoinedStr()):
            return not (isinstance(body[0].value, ast.Constant) and body[0].value.value is True)
        case ast.Return(value=ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[])):
            return True
    return False


class _Instrument(ast.NodeTransformer):
    """Wraps each condition in a call of `Sites.value`."""

    def __init__(self, file: str) -> None:
        self.file = file

    def _site(self, node: ast.expr, refusing: bool) -> ast.expr:
        if _is_guard(node):
            return node
        number = len(SITES.all)
        text = " ".join(ast.unparse(node).split())[:160]
        SITES.all.append(Site(self.file, node.lineno, text, refusing))
        call = ast.Call(ast.Name(SITE, ast.Load()), [ast.Constant(number), node], [])
        return ast.copy_location(call, node)

    def _operands(self, node: ast.expr, kind: type[ast.boolop], refusing: bool) -> ast.expr:
        if isinstance(node, ast.BoolOp) and isinstance(node.op, kind):
            node.values = [self._site(v, refusing) for v in node.values]
            return node
        return self._site(node, refusing)

    def visit_If(self, node: ast.If) -> ast.If:
        self.generic_visit(node)
        if _refuses(node.body):
            node.test = self._operands(node.test, ast.Or, True)
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        self.generic_visit(node)
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


# ---- what runs without a mutant
def refused_by(run: Callable[[], object]) -> set[int]:
    """The sites that refuse while something runs."""
    SITES.refused = set()
    run()
    return SITES.refused


def kernels() -> dict[int, list]:
    """By site, runs of random kernels in which it refuses."""
    from dataclasses import replace

    from tkc.fuzz.check import Comparison, arguments, default_target, traced, variants
    from tkc.fuzz.productions import kernel

    by_site: dict[int, list] = defaultdict(list)
    for policy, count in CORPUS.items():
        for seed in range(count):
            k = kernel(seed, policy, STATEMENTS)
            try:
                runs = Comparison(traced(k, arguments(k)), lambda k=k: arguments(k), k.grid)
            except Exception:
                continue
            for variant in variants(k, default_target(k), False, None):
                run = (f"{policy} {seed}", runs, replace(variant, each=False, ptx=False))
                found: list = []
                sites = refused_by(lambda run=run, found=found: found.extend(run[1].passes(run[2])))
                if not found:
                    for site in sites:
                        by_site[site].append(run)
    return by_site


class Recorder:
    """A plugin of pytest: by site, tests in which it refuses."""

    def __init__(self) -> None:
        self.by_site: dict[int, list[str]] = defaultdict(list)

    def pytest_runtest_logreport(self, report) -> None:  # noqa: ANN001
        """After each test that passed."""
        if report.when == "call":
            for site in SITES.refused if report.passed else ():
                self.by_site[site].append(report.nodeid)
            SITES.refused = set()


def tested(folders: Sequence[str], seconds: float) -> dict[int, list[str]]:
    """By site, tests in which it refuses; some tests where the time is over."""
    import pytest

    recorder = Recorder()

    def over(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(int(seconds))
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main(["-q", "-p", "no:cacheprovider", *folders], plugins=[recorder])
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    return recorder.by_site


# ---- one mutant
def caught(number: int, runs: Sequence, tests: Sequence[str]) -> str | None:
    """What finds a mutant; None if nothing does."""
    SITES.active = number
    for name, comparison, variant in runs:
        for failure in comparison.passes(variant):
            if failure.kind != "refused":
                return f"kernel {name}: {failure}"[:300]
    if tests:
        import pytest

        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
        if status == 1:
            return f"a test of {len(tests)}, {tests[0]} …"
    return None


def in_child(run: Callable[[], str | None], seconds: float) -> str | None:
    """What a function gives in a process of its own; a crash, and no end in time, are findings."""
    source, target = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        signal.alarm(int(seconds))  # ends the process
        try:
            result = json.dumps(run())
        except BaseException as e:
            result = json.dumps(f"{type(e).__name__}: {e}"[:300])
        os.write(target, result.encode())
        os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return json.loads(data) if data else f"no end within {seconds:g} s, or a crash"


def results(
    numbers: Sequence[int], by_kernel: dict[int, list], by_test: dict[int, list[str]]
) -> Iterator[tuple[int, str | None]]:
    """Each mutant, and what finds it."""
    r = random.Random(0)
    for number in numbers:
        runs, tests = by_kernel.get(number, []), by_test.get(number, [])
        runs = r.sample(runs, min(len(runs), KERNELS_OF_A_MUTANT))
        tests = r.sample(tests, min(len(tests), TESTS_OF_A_MUTANT))
        yield number, in_child(lambda n=number, a=runs, b=tests: caught(n, a, b), DEADLINE)


def main() -> None:
    """Prints each survivor, and how many mutants there were."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--files", nargs="*", default=[], help="parts of names of files")
    parser.add_argument("--most", type=int, default=10_000, help="mutants")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no mutant after so long")
    parser.add_argument("--test-seconds", type=float, default=300, help="of the tests at first")
    parser.add_argument("--tests", nargs="*", default=["tests/passes"])
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants.json")
    given = parser.parse_args()
    began = time.monotonic()
    os.chdir(ROOT)
    instrument()
    by_kernel = kernels()
    by_test = tested(given.tests, given.test_seconds) if given.tests else {}
    reached = sorted(by_kernel.keys() | by_test.keys())
    chosen = [
        n for n in reached if not given.files or any(f in SITES.all[n].file for f in given.files)
    ]
    random.Random(1).shuffle(chosen)
    print(
        f"{len(SITES.all)} checks, {len(by_kernel)} refuse in kernels, {len(reached)} in all,"
        f" {time.monotonic() - began:.0f} s",
        flush=True,
    )
    found: dict[str, str | None] = {}
    for number, by in results(chosen[: given.most], by_kernel, by_test):
        found[str(SITES.all[number])] = by
        if by is None:
            print(f"survives: {SITES.all[number]}", flush=True)
        if time.monotonic() - began > given.seconds:
            break
    survivors = [site for site, by in found.items() if by is None]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    never = [str(site) for n, site in enumerate(SITES.all) if n not in reached]
    given.out.write_text(json.dumps({"found": found, "never refuse": never}, indent=1))
    print(f"{len(found)} mutants: {len(found) - len(survivors)} caught, {len(survivors)} survive")


if __name__ == "__main__":
    main()
