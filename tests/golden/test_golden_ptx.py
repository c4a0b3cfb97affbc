"""The golden programs as PTX: they assemble clean, and the machine code of their steady loops is
the wgmma and little else.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import target
from tkc.ir.text import parse

HERE = Path(__file__).parent
HOPPER = ("cooperative_product", "pingpong_product", "attention_forward")
needs_tools = pytest.mark.skipif(
    not (ptxas.find("ptxas") and ptxas.find("nvdisasm")),
    reason="ptxas and nvdisasm are not installed",
)


@cache
def program(name):
    return emit(parse((HERE / f"{name}.mlir").read_text(), name), target("sm_90a"))


@cache
def assembled(name):
    return ptxas.assemble(program(name).text, "sm_90a")


def instructions(sass):
    """Machine instructions, and where labels stand among them."""
    found, labels = [], {}
    for line in sass.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif code := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            found.append(code[1].strip())
    return found, labels


def steady_loops(name):
    """The innermost loops with wgmma, as counts of opcodes."""
    found, labels = instructions(ptxas.disassemble(assembled(name).cubin))
    loops = []
    for n, code in enumerate(found):
        target_ = re.search(r"BRA\S*.*?(\.L_x_\d+)", code)
        if (
            target_
            and (start := labels.get(target_[1], n + 1)) <= n
            and any("HGMMA" in c for c in found[start:n])
        ):
            loops.append((start, n))
    inner = [
        (a, b)
        for a, b in loops
        if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)
    ]
    # a waiting loop placed behind the code
    inner = [(a, b) for a, b in inner if not any(found[i].startswith("EXIT") for i in range(a, b))]
    return [
        Counter(re.sub(r"^@!?U?P\w+\s+", "", c).split()[0].split(".")[0] for c in found[a : b + 1])
        for a, b in inner
    ]


@pytest.mark.parametrize("name", HOPPER)
def test_no_accumulator_is_copied(name):
    assert program(name).notes == []


@pytest.mark.parametrize(
    "name, threads, cluster, maps",
    [
        ("cooperative_product", 384, (2, 1), 3),
        ("pingpong_product", 384, (1, 1), 3),
        ("attention_forward", 384, (1, 1), 4),
    ],
)
def test_interface(name, threads, cluster, maps):
    i = program(name).interface
    assert (i.threads, i.cluster, i.persistent, sum(p.kind == "map" for p in i.parameters)) == (
        threads,
        cluster,
        True,
        maps,
    )
    assert i.shared_bytes <= target("sm_90a").shared_bytes


@needs_tools
@pytest.mark.parametrize("name", HOPPER)
def test_assembles_clean(name):
    a = assembled(name)
    assert a.clean and not a.notes and a.registers == 168  # at entry: 65536 / 384


@needs_tools
@pytest.mark.parametrize(
    "name, dots, most",
    [("cooperative_product", 4, 40), ("pingpong_product", 8, 52), ("attention_forward", 16, 456)],
)
def test_the_steady_step(name, dots, most):
    """As many instructions as the kernels written by hand for the same schedule (42, 57 and 472),
    none that leaves the uniform registers.
    """
    loops = [loop for loop in steady_loops(name) if loop["HGMMA"] == dots]
    assert loops
    for loop in loops:
        assert (
            loop["R2UR"] == 0
            and loop["WARPSYNC"] == 0
            and loop["CALL"] == 0
            and sum(loop.values()) <= most
        ), loop


@needs_tools
@pytest.mark.parametrize("name", HOPPER)
def test_nowhere_a_loop_over_lanes(name):
    sass = ptxas.disassemble(assembled(name).cubin)
    assert (
        "BRA.U.ANY" not in sass and "CALL" not in sass and "STL" not in sass and "LDL" not in sass
    )
    # an arrival that releases to the cluster would put one into every step
    assert "MEMBAR.ALL.GPU" not in sass
