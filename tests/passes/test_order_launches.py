"""Launches that overlap: where a kernel waits for the one before, whatever its plan."""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tkc.codegen.ptx.emit import PtxProgram
from tkc.codegen.ptx.ptxas import assemble, find
from tkc.ir import tile
from tkc.ir.text import parse
from tkc.sim import ptx
from tkc.sim.level0 import run


@tkc.jit
def product(a, b, c):
    m, n = tkc.program_id(0) * 128, tkc.program_id(1) * 128
    acc = tkc.zeros((128, 128))
    for k in tkc.range(0, a.shape[1], 64):
        acc = tkc.dot(tkc.load(a, (m, k), (128, 64)), tkc.load(b, (k, n), (64, 128)), acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.jit
def scale(x, y):
    i = tkc.program_id(0) * 256
    tkc.store(y, i, tkc.load(x, i, (256,)) * 2.0)


@tkc.jit
def waits_late(x, y):
    i = tkc.program_id(0) * 256
    first = tkc.load(x, i, (256,))
    if i > 0:
        tkc.wait_dependencies()
    tkc.launch_dependents()
    tkc.store(y, i, first + tkc.load(y, i, (256,)))


@tkc.jit
def lets_begin(x, y):
    tkc.launch_dependents()
    tkc.store(y, 0, tkc.load(x, 0, (256,)))


TYPES = {product: ("bf16[4096, 4096]",) * 3}
ACCESSES = "ld.global", "st.global", "cp.async.bulk.tensor", "atom.global", "red.global"


def compiled(kernel, target="sm_90a", **options):
    return kernel.compile(*TYPES.get(kernel, ("f32[4096]",) * 2), target=target, **options)


def test_both_are_operations_of_level_0():
    module = parse(compiled(waits_late).ir("trace"))
    kinds = [op.kind.data for op in module.walk() if isinstance(op, tile.Dependency)]
    assert kinds == ["wait", "launch"]


def test_programs_run_in_order_where_nothing_overlaps():
    x, y = np.arange(512, dtype=np.float32), np.ones(512, np.float32)
    waits_late[2](x, y)
    assert (y == np.arange(512) + 1).all()
    again = np.ones(512, np.float32)
    run(parse(compiled(waits_late).ir("trace")), [x, again], (2,))
    assert (again == y).all()


@pytest.mark.parametrize(
    "kernel,options",
    [
        (product, {}),
        (product, {"cluster": (2, 1)}),
        (product, {"roles": "one"}),
        (product, {"split_k": 2}),
        (scale, {}),
        (waits_late, {}),
    ],
)
def test_a_kernel_waits_before_it_touches_memory(kernel, options):
    found = compiled(kernel, dependent=True, **options)
    assert found.ptx.count("griddepcontrol.wait;") == 1
    before = found.ptx[: found.ptx.index("griddepcontrol.wait")]
    assert "griddepcontrol.launch_dependents;" in before
    assert not any(access in before for access in ACCESSES)
    assert found.interface.dependent
    if find("ptxas"):
        assemble(found.ptx, "sm_90a")


@pytest.mark.parametrize("options", [{}, {"cluster": (2, 1)}, {"roles": "one"}, {"split_k": 2}])
def test_a_kernel_beside_another_waits_when_it_has_done_all(options):
    found = compiled(product, beside=True, **options)
    assert found.ptx.count("griddepcontrol.wait;") == 1 and found.interface.dependent
    behind = found.ptx[found.ptx.index("griddepcontrol.wait") :].partition("// ----")[0]
    assert not any(access in behind for access in ACCESSES)  # of the role that copies, or of all
    assert "mbarrier.try_wait" not in behind
    if find("ptxas"):
        assemble(found.ptx, "sm_90a")


def test_what_says_that_it_waits_does_so_last_beside_another():
    found = compiled(waits_late, beside=True)
    assert found.ptx.count("griddepcontrol.wait;") == 1
    assert found.ptx.index("st.global") < found.ptx.index("griddepcontrol.wait;")
    assert found.ptx.index("griddepcontrol.launch_dependents;") < found.ptx.index("ld.global")


def test_barriers_are_set_up_meanwhile():
    text = compiled(product, dependent=True).ptx
    assert 0 < text.index("mbarrier.init") < text.index("griddepcontrol.wait")


def test_the_option_alone_decides():
    assert "griddepcontrol" not in compiled(scale).ptx
    assert not compiled(scale).interface.dependent
    only = compiled(lets_begin)
    assert "griddepcontrol.launch_dependents" in only.ptx and "wait" not in only.ptx
    assert not only.interface.dependent  # it does not wait, so it may not begin early


def test_a_program_that_says_it_waits_may_begin_early():
    assert compiled(waits_late).interface.dependent


def test_older_targets_launch_one_after_the_other():
    found = compiled(waits_late, "sm_80", dependent=True)
    assert "griddepcontrol" not in found.ptx and not found.interface.dependent
    assert "order-launches: launches do not overlap on sm_80" in found.decisions


def test_every_stage_means_the_same(monkeypatch, capfd):
    """Levels 0 to 4 and their threads give what the kernel does without."""
    monkeypatch.setenv("TKC_VALIDATE", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    x, y = np.arange(512, dtype=np.float32), np.zeros(512, np.float32)
    scale[2](x, y, dependent=True)
    assert (y == 2 * x).all() and "validated scale" in capfd.readouterr().err


def test_the_ptx_runs():
    found = compiled(scale, dependent=True)
    x, y = np.arange(512, dtype=np.float32), np.zeros(512, np.float32)
    program = PtxProgram(found.ptx, found.interface, [])
    assert (ptx.run(program, [x, y], (2,))[1] == 2 * x).all()
