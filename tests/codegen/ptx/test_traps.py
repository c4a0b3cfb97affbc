"""TKC_DEBUG=1: what the checks find, what they let pass, and that ptxas takes the kernels that have
them.
"""

from pathlib import Path

import numpy as np
import pytest

import tkc
from benchmarks.harness import example
from tests.codegen.ptx.test_hopper import RING, T, kernel, role
from tests.gpu.forms.opcodes import form_of, opcodes
from tests.language.kernels import add, array, i32, traced
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir.interface import Interface
from tkc.ir.target import target
from tkc.ir.text import parse
from tkc.language.signature import Options
from tkc.passes import pipeline
from tkc.sim.ptx import Fault, Trapped, run

needs_ptxas = pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")


def debugged(fn, *args, machine="sm_80", **constants):
    module = traced(fn, *args, **constants)
    pipeline.run(module, target(machine), Options(num_warps=1))
    return emit(module, target(machine), debug=10)


def trap(program, arguments, **how) -> Trapped:
    with pytest.raises(Trapped) as found:
        run(program, arguments, **how)
    return found.value


X = np.arange(100, dtype=np.float32)


def read_at(x, out, n, BLOCK: tkc.constexpr = 64):
    i = tkc.arange(BLOCK)
    tkc.store(out, (0,), tkc.load(x.ptr + i + n))


def test_pointers_stay_in_their_array():
    program = debugged(read_at, array(tkc.float32), array(tkc.float32), i32())
    assert run(program, [X, np.zeros(64, np.float32), 36])[1].tolist() == X[36:].tolist()
    found = trap(program, [X, np.zeros(64, np.float32), 40])
    assert (
        "reads 4 bytes at 400 bytes from the first of argument x, whose bytes end at 400"
        in found.said
    )
    assert (
        found.site.file.endswith("test_traps.py")
        and "tkc.load(x.ptr + i + n)"
        in Path(found.site.file).read_text().splitlines()[found.site.line - 1]
    )
    assert "at -4 bytes from the first" in trap(program, [X, np.zeros(64, np.float32), -1]).said


def test_masked_accesses_may_point_anywhere():
    program = debugged(
        add, array(tkc.float32), array(tkc.float32), array(tkc.float32), i32(), BLOCK=128
    )
    assert run(program, [X, X, X * 0, 100])[2].tolist() == (2 * X).tolist()
    assert "reads" in trap(program, [X, X, X * 0, 101]).said
    assert "writes 4 bytes at 200 bytes" in trap(program, [X, X, X[:50] * 0, 100]).said


def walk(x, out, steps, BLOCK: tkc.constexpr = 32):
    p, total = x.ptr + tkc.arange(BLOCK), tkc.zeros((BLOCK,))
    for _ in tkc.range(0, steps):
        total += tkc.load(p)
        p += BLOCK
    tkc.store(out, (0,), total)


def test_a_pointer_that_walks():
    program = debugged(walk, array(tkc.float32), array(tkc.float32), i32())
    run(program, [X, np.zeros(32, np.float32), 3])
    assert (
        "at 400 bytes from the first of argument x"
        in trap(program, [X, np.zeros(32, np.float32), 4]).said
    )


def test_an_empty_array_has_no_bytes():
    program = debugged(read_at, array(tkc.float32), array(tkc.float32), i32(), BLOCK=1)
    assert "whose bytes end at 0" in trap(program, [X[:0], np.zeros(1, np.float32), 0]).said


def atomics(x, n):
    tkc.atomic_add(x.ptr + n, 1.0)


def test_atomics():
    program = debugged(atomics, array(tkc.float32), i32())
    run(program, [X.copy(), 99])
    assert "updates 4 bytes at 400 bytes" in trap(program, [X.copy(), 100]).said


def promise(x, out, n, BLOCK: tkc.constexpr = 64):
    tkc.assume(n >= 0)
    tkc.assume(n < 32)
    tkc.store(out, (0,), tkc.load(x, (n,), (BLOCK,)))


def test_promises():
    program = debugged(promise, array(tkc.float32, shape=(128,)), array(tkc.float32), i32())
    x = np.arange(128, dtype=np.float32)
    run(program, [x, np.zeros(64, np.float32), 31])
    assert "tkc.assume promised" in trap(program, [x, np.zeros(64, np.float32), 32]).said


def multiples(x, out, n):
    tkc.store(out, (0,), tkc.load(x, (tkc.multiple_of(n, 4),), (4,)))


def test_multiples_that_are_none():
    program = debugged(multiples, array(tkc.float32), array(tkc.float32), i32())
    run(program, [X, np.zeros(4, np.float32), 8])
    assert (
        "expected a multiple of 4, as tkc.multiple_of or the arguments it was compiled for"
        " promised, got 9" in trap(program, [X, np.zeros(4, np.float32), 9]).said
    )


def asserting(x, n):
    v = tkc.load(x, (0,), (64,))
    tkc.device_assert(v < n, "small {enough}")
    tkc.device_assert(n > 0)


def test_assertions_say_which_and_where():
    program = debugged(asserting, array(tkc.float32), i32())
    run(program, [X, 64])
    # of elements 2 i and 2 i + 1, which a thread holds, the first ones are looked at first
    assert "failed: small {enough} at element [10]" in trap(program, [X, 9]).said
    assert not [s for s in emit(parse(kernel("")), target("sm_90a"), debug=10).interface.sites]


def in_order(x, out, M: tkc.constexpr, N: tkc.constexpr, BACK: tkc.constexpr):
    """Sums of what has to be positive, whose combination asserts that places are in order."""

    def add(a, i, b, j):
        tkc.device_assert((a > 0) & (b > 0), "positive")
        tkc.device_assert((i > j) if BACK else (i < j), "in order")
        return a + b, j

    row, at = tkc.load(x, (0, 0), (M, N)), tkc.broadcast_to(tkc.arange(N)[None, :], (M, N))
    tkc.store(out, (0, 0), tkc.scan((row, at), 1, add, reverse=BACK)[0])
    if not BACK:
        tkc.store(out, (0, N), tkc.reduce((row, at), 1, add)[0][:, None])


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(("m", "n", "warps"), [(3, 100, 1), (1, 1000, 4), (64, 5, 4)])
def test_assertions_of_combinations_hold_for_elements_alone(m, n, warps, back):
    """Neither for padding, nor where lanes combine what they throw away."""
    module = traced(in_order, *(array(tkc.float32, 2) for _ in range(2)), M=m, N=n, BACK=back)
    pipeline.run(module, target("sm_90a"), Options(num_warps=warps))
    for debug in (0, 10):
        program = emit(module, target("sm_90a"), debug=debug)
        x, out = np.ones((m, n), np.float32), np.zeros((m, n + 1), np.float32)
        _, found = run(program, [x, out])
        assert found[0].tolist() == [
            *(range(n, 0, -1) if back else range(1, n + 1)),
            (1 - back) * n,
        ]
        x[m - 1, 3] = -1
        with pytest.raises((Trapped, Fault), match="positive" if debug else "a trap"):
            run(program, [x, out])


WAIT = (
    RING + "tile.mbarrier_init %full {count = 1 : i64} : (!tile.barriers<4>)\ntile.fence"
    " mbarrier_init\ntile.block_barrier\n" + f"tile.mbarrier_wait %full[%2] %1 : {T}"
)


def test_waits_end():
    program = emit(parse(kernel(WAIT), "test"), target("sm_90a"), debug=7)
    (site,) = program.interface.sites
    assert (
        "waits for parity {1} of mbarrier full[{0}]" in site.text
        and "within 7 s" in site.text
        and "setp.gt.s64" in program.text
        and "7000000000" in program.text
    )
    assert "globaltimer" not in emit(parse(kernel(WAIT), "test"), target("sm_90a")).text


def spin(flag, out):
    while tkc.load(flag.ptr, sem="acquire", scope="gpu") == 0:
        pass
    tkc.store(out, (0,), 1)


def count(x, out, n):
    i = 0
    while i < n:
        i += 1
    tkc.store(out, (0,), i)


def test_loops_that_wait_for_others_end():
    program = debugged(spin, array(tkc.int32), array(tkc.int32))
    assert any(
        "waits for other programs has not ended within 10 s" in s.text
        and s.file.endswith("test_traps.py")
        for s in program.interface.sites
    )
    assert "globaltimer" not in debugged(count, array(tkc.int32), array(tkc.int32), i32()).text
    if ptxas.find("ptxas"):
        assert ptxas.assemble(program.text, "sm_80").clean


def test_a_role_is_named():
    program = emit(
        parse(
            kernel(
                RING
                + "tile.roles {\n"
                + role(f"tile.mbarrier_wait %full[%2] %1 : {T}", "reader")
                + "\n}"
            ),
            "test",
        ),
        target("sm_90a"),
        debug=1,
    )
    assert program.interface.sites[0].text.startswith("reader waits")


def test_interfaces_carry_sites():
    interface = debugged(read_at, array(tkc.float32), array(tkc.float32), i32()).interface
    assert (
        interface.debug == 10
        and len(interface.sites) == 4
        and Interface.from_json(interface.to_json()) == interface
    )


@needs_ptxas
@pytest.mark.parametrize("machine", ["sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("name", ["vector_add", "softmax", "matmul", "attention", "layer_norm"])
def test_examples_assemble_clean_with_checks_and_name_their_lines(name, machine):
    for example_kernel, arguments, _ in example(name).kernels():
        compiled = example_kernel.compile(**arguments, target=machine, debug=True)
        made = compiled.resources
        assert (
            made.clean
            and compiled.interface.sites
            and b".debug_line" in made.cubin
            and f"{name}.py".encode() in made.cubin
        ), made.notes
        assert not {o for o in opcodes(compiled.ptx) if form_of(o) is None}
