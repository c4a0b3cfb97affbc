"""The list of steps: what comes out, and what is said when a step of ours breaks."""

import gc
import re
from threading import Thread

import pytest

from tests.runtime.kernels import add
from tkc.compiler import Compiled, compile
from tkc.errors import CompileError, VerifyError
from tkc.ir import threads
from tkc.runtime.jit import JitFunction
from tkc.runtime.specialize import Specialization, argument, facts, signature

ARGUMENTS = {"x": "f32[64]", "y": "f32[64]", "out": "f32[64]", "n": "i32"}


@pytest.fixture
def described():
    return signature(
        Specialization(
            (
                *((n, facts(argument(t, n, False))) for n, t in ARGUMENTS.items()),
                ("BLOCK", ("constant", 64)),
            )
        )
    )


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90a"])
def test_every_target(described, target):
    c = compile(add.fn, described, target)
    assert (
        f".target {target}" in c.ptx and c.interface.target == target and c.interface.entry in c.ptx
    )
    again = Compiled.unpack(c.pack())
    assert (again.ptx, again.interface, again.decisions, again.cached) == (
        c.ptx,
        c.interface,
        c.decisions,
        True,
    )


def test_the_same_bytes_every_time(described):
    assert len({compile(add.fn, described, "sm_90a").ptx for _ in range(3)}) == 1


def test_the_collector_is_paused_and_resumes(described):
    """However many compile at once, and also where one fails; not where it was off before."""
    seen, rounds = [], 3

    def observe(step, module):
        seen.append(gc.isenabled())
        if step == "trace" and len(threads) < rounds:
            threads.append(Thread(target=compile, args=(add.fn, described, "sm_80", observe)))
            threads[-1].start()

    threads = []
    was = gc.isenabled()
    try:
        for on in (True, False):
            (gc.enable if on else gc.disable)()
            threads.clear()
            compile(add.fn, described, "sm_80", observe)
            while alive := [t for t in threads if t.is_alive()]:
                alive[0].join()
            with pytest.raises(CompileError):
                compile(add.fn, described, "sm_1")
            assert len(threads) == rounds and gc.isenabled() == on
    finally:
        (gc.enable if was else gc.disable)()
    assert seen and not any(seen)


def test_a_target_that_there_is_not(described):
    with pytest.raises(CompileError, match="unknown target 'sm_1'; there are sm_80"):
        compile(add.fn, described, "sm_1")


def test_every_stage_parses_back():
    from tkc.ir.text import parse, show
    from tkc.ir.verify import verify

    c = JitFunction(add.fn).compile(**ARGUMENTS, target="sm_90a")
    for text in c.stages.values():
        module = parse(text)
        verify(module)
        assert show(module) == text


@pytest.mark.parametrize(
    "error,kind",
    [
        (IndexError("list index out of range"), CompileError),
        (VerifyError("after plan: 'tile.dot': broken"), VerifyError),
    ],
)
def test_a_bug_of_ours_comes_with_a_reproducer(described, monkeypatch, error, kind):
    from tkc.ir.text import parse
    from tkc.passes import pipeline

    def broken(*a, **k):
        raise error

    monkeypatch.setattr(pipeline, "run", broken)
    with pytest.raises(kind, match="which is a bug of tkc") as e:
        compile(add.fn, described, "sm_90a")
    with open(re.search(r"tkc opt (\S+)", str(e.value))[1]) as f:
        assert "tile.kernel @add" in str(parse(f.read()))
    assert len(str(e.value).splitlines()) == 1 and e.value.__cause__ is error


def test_the_pass_that_broke_the_program_is_named(described, monkeypatch):
    """Although the program is verified where a level ends, three passes later."""
    from tkc.passes import stagger_programs

    def breaks(module, context):
        kernel = module.body.block.first_op
        kernel.body.block.insert_op_before(threads.ClusterWait(), kernel.body.block.first_op)

    monkeypatch.setattr(stagger_programs, "run", breaks)
    with pytest.raises(VerifyError, match="after stagger-programs: .*not permitted at level 0"):
        compile(add.fn, described, "sm_90a")


def test_a_mistake_of_the_user_is_not_called_ours(described):
    def kernel(x, y, out, n, BLOCK):
        return x.nothing

    with pytest.raises(CompileError) as e:
        compile(kernel, described, "sm_80")
    assert "bug" not in str(e.value)
