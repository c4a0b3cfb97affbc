"""The frame of an emitted program: golden texts, parameters on demand, locations, errors, the speed
of emission.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.codegen.ptx.test_operations import emitted
from tests.passes.kernels import CASES, PIPELINE, context, through
from tkc.codegen.ptx.emit import emit
from tkc.codegen.ptx.writer import Writer
from tkc.errors import CompileError
from tkc.ir.target import target
from tkc.ir.text import parse

GOLDEN = Path(__file__).parent / "golden"
PROGRAMS = Path(__file__).parents[2] / "golden"


def without_places(text: str) -> str:
    return (
        "\n".join(line for line in text.splitlines() if not line.startswith(("\t.loc", ".file")))
        + "\n"
    )


def small(
    body: str, parameters: str = "%n: i32", attributes: str = "warps = 4 : i64, level = 4 : i64"
):
    return parse(
        f"builtin.module {{ tile.kernel @small({parameters}) {{{attributes}}} {{ {body} tile.return"
        " } }",
        "small.mlir",
    )


@pytest.mark.parametrize("name, machine", [("vector_add", "sm_80"), ("vector_add", "sm_90a")])
def test_golden_program(golden, name, machine):
    text = emit(
        parse((PROGRAMS / f"{name}.mlir").read_text(), f"{name}.mlir"), target(machine)
    ).text
    golden(GOLDEN / f"{name}.{machine}.ptx", without_places(text))


@pytest.mark.parametrize("name", ["softmax", "product", "attention"])
def test_golden_kernel(golden, name):
    """What the passes once made of a softmax of 7 columns, a product of 16 rows, attention with 4
    rows.
    """
    golden(
        GOLDEN / f"{name}.sm_80.ptx",
        without_places(
            emit(parse((GOLDEN / f"{name}.mlir").read_text(), f"{name}.mlir"), target("sm_80")).text
        ),
    )


def test_only_what_is_needed_becomes_a_parameter():
    program = emitted(CASES["add"].module())
    assert sorted((p.kind, p.argument) for p in program.interface.parameters) == [
        ("pointer", 0),
        ("pointer", 1),
        ("pointer", 2),
        ("scalar", 3),
    ]
    assert program.interface.threads == 128 and program.interface.shared_bytes == 0
    kinds = {p.kind for p in emitted(CASES["product"].module()).interface.parameters}
    assert {"pointer", "shape", "stride"} <= kinds <= {"pointer", "shape", "stride", "grid"}


def test_exact_facts_are_numbers():
    module = small(
        '%d = tile.dim %a, 0 : (!tile.array<?x?xf32, "shape =7 strides 8 =1">) -> i32 tile.store'
        " %o[%d] %d {extents = array<i64: -1>} : (!tile.array<?xi32>, i32, i32)",
        '%a: !tile.array<?x?xf32, "shape =7 strides 8 =1">, %o: !tile.array<?xi32>',
    )
    assert {(p.kind, p.argument) for p in emit(module, target("sm_80")).interface.parameters} == {
        ("pointer", 1),
        ("shape", 1),
        ("stride", 1),
    }


def test_lines_point_into_the_source():
    text = emitted(CASES["softmax"].module()).text
    assert '.file 1 "' in text and "kernels.py" in text
    places = [line for line in text.splitlines() if line.startswith("\t.loc")]
    assert len(places) > 4 and all(a != b for a, b in zip(places, places[1:], strict=False))


def test_the_isa_is_as_low_as_it_may_be():
    assert emitted(CASES["add"].module()).text.startswith(".version 7.0\n.target sm_80\n")


@pytest.mark.parametrize(
    "body, words",
    [
        (
            '%p = tile.program_id 0 : i32 %b = tile.alloc : !tile.shared<1, 8x8xf32, "8x8xb32">',
            "allocate-shared",
        ),
        (
            '%x = tile.arange 0 : !tile.tile<64xi32, "blocked 64 vector 1 warps 2">',
            "2 warps, but 4 run it",
        ),
        (
            (
                '%x = tile.arange 0 : !tile.tile<256xi32, "blocked 256 vector 1 warps 4"> %r ='
                ' tile.reduce sum [%x] {axis = 0 : i64} : (!tile.tile<256xi32, "blocked 256 vector'
                ' 1 warps 4">) -> i32'
            ),
            "shared memory",
        ),
    ],
)
def test_what_cannot_be_emitted_says_why(body, words):
    with pytest.raises(CompileError, match=words):
        emit(small(body), target("sm_80"))


def test_a_cycle_of_moves_keeps_every_value():
    w = Writer()
    a, b, c = w.many("b32", 3)
    w.moves([(a, b), (b, c), (c, a), (w.new("b32"), 7)])
    values = {a: "a", b: "b", c: "c"}
    for line in w.text().splitlines():
        if "mov.b32" in line:
            into, source = line.strip().rstrip(";").split(" ", 1)[1].split(", ")
            values[into] = values.get(source, source)
    assert (values[a], values[b], values[c]) == ("b", "c", "a")


def test_the_same_program_gives_the_same_text():
    """In another process too, where objects hash otherwise."""
    script = (
        "from tkc.codegen.ptx.emit import emit; from tkc.ir.text import parse; from tkc.ir.target"
        " import target; import hashlib, pathlib;text ="
        f" pathlib.Path({str(GOLDEN / 'attention.mlir')!r}).read_text();"
        " print(hashlib.sha256(emit(parse(text), target('sm_80')).text.encode()).hexdigest())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(seen) == 1


def test_emission_is_fast():
    """A product with its copies, fragments and epilogue: tens of milliseconds even on a slow
    machine.
    """
    module = CASES["product"].module()
    through(module, PIPELINE[-1], context())
    emit(module, target("sm_80"))
    best = min(_timed(module) for _ in range(3))
    assert best < 0.2, f"{best * 1e3:.0f} ms"


def _timed(module) -> float:
    start = time.perf_counter()
    emit(module, target("sm_80"))
    return time.perf_counter() - start
