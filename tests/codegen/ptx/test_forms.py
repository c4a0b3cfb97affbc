"""Every instruction form that the emitter can spell has a belief in tests/gpu/forms, and those
assemble.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.harness import example
from tests.codegen.ptx.test_hopper import FORMS as DOTS
from tests.codegen.ptx.test_hopper import dot
from tests.gpu.forms import BELIEFS
from tests.gpu.forms.opcodes import FORMS, PLAIN, form_of, opcodes
from tkc.codegen.ptx import ptxas
from tkc.codegen.ptx.emit import emit
from tkc.errors import CompileError
from tkc.ir.target import target
from tkc.ir.text import parse

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "tkc/codegen/ptx").glob("*.py"))
# of loads and stores, whose opcodes are looked at in what is emitted
SPACES = (
    "shared::cluster",
    "shared::cluster.mbarrier::complete_tx::bytes",
    "global.L2::\0B",
)
needs_ptxas = pytest.mark.skipif(ptxas.find("ptxas") is None, reason="ptxas is not installed")


OPCODE = re.compile(
    r"[\t{]*(?:@!?\0 )?([a-z][a-z0-9]*(?:(?:\.|::)[A-Za-z0-9_:]*\0?[A-Za-z0-9_]*\0?)+)"
)


def documentation(tree: ast.Module) -> set[int]:
    """The ids of the docstrings' nodes."""
    return {
        id(n.body[0].value)
        for n in ast.walk(tree)
        if isinstance(n, (ast.Module, ast.FunctionDef, ast.ClassDef))
        and n.body
        and isinstance(n.body[0], ast.Expr)
    }


def template(node: ast.AST) -> str:
    """The text of a string, with a zero byte where it is filled in; "" of other nodes."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(values):
            return "".join(v.value if isinstance(v, ast.Constant) else "\0" for v in values)
    return ""


def templates(source: Path) -> list[tuple[int, str]]:
    """Line and text of each string in a file that begins as an instruction does, with `{}` where it
    is filled in.
    """
    tree = ast.parse(source.read_text())
    left_out = documentation(tree) | {
        id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values
    }
    return [
        (node.lineno, m[1])
        for node in ast.walk(tree)
        if id(node) not in left_out
        for line in template(node).split("\n")
        if (m := OPCODE.match(line.replace("{}", "\0")))
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_what_the_emitter_spells_is_known(source):
    """A template is known if it is of a plain instruction, or some known form fits it."""
    known = {o for b in BELIEFS.values() for o in opcodes(b.text)}
    for line, text in templates(source):
        head = text.split(".")[0]
        if head in PLAIN and not re.search(r"acquire|release|relaxed|volatile", text):
            continue
        if text in SPACES or re.search(r"\.(py|mlir|ptx|cubin)$|^(tkc|tile|e|w)\.", text):
            continue  # names of modules and files
        pattern = re.compile(
            re.escape(text).replace("\0", r"[\w.:]*")
            + ("" if text.endswith("\0") else r"(?![\w.:])")
        )
        assert any(pattern.match(o) for o in known if form_of(o)), (
            f"{source.name}:{line}: '{text.replace(chr(0), '{}')}' is of no form in"
            " tests/gpu/forms/opcodes.py with a belief"
        )


def unknown(text: str) -> set[str]:
    return {o for o in opcodes(text) if form_of(o) is None}


def test_golden_texts_have_known_forms_only():
    texts = sorted(ROOT.glob("tests/**/*.ptx"))
    assert len(texts) >= 5 and not {
        t.name: unknown(t.read_text()) for t in texts if unknown(t.read_text())
    }


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/golden").glob("*.mlir")), ids=lambda p: p.stem
)
def test_golden_programs_have_known_forms_only(path):
    assert not unknown(emit(parse(path.read_text(), path.name), target("sm_90a")).text)


@pytest.mark.parametrize("name", ["vector_add", "softmax", "matmul", "attention", "layer_norm"])
@pytest.mark.parametrize("machine", ["sm_80", "sm_89", "sm_90a"])
def test_examples_have_known_forms_only(name, machine):
    for kernel, arguments, _ in example(name).kernels():
        assert not unknown(kernel.compile(**arguments, target=machine).ptx)


@pytest.mark.parametrize("form", DOTS, ids=lambda f: " ".join(map(str, f.values())))
def test_dots_have_known_forms_only(form):
    assert not unknown(dot(**form))


def test_a_new_form_is_noticed():
    assert (
        unknown("\tst.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];")
        and unknown("\t@%p1 multimem.red.relaxed.sys.global.add.f32 [%d0], %r1;")
        and unknown("\tnanosleep.u32 20;")
    )
    assert (
        unknown("\tst.volatile.global.b32 [%d1], %r1;")
        and unknown("\tatom.acq_rel.gpu.global.add.s32 %r1, [%d1], 1;")
        and not unknown("\tadd.s32 %r1, %r2, %r3;\nFOR3:\n\t@!%p1 bra FOR3;")
    )


@cache
def confirmed() -> dict[str, list[str]]:
    """The beliefs of each form."""
    found: dict[str, list[str]] = {f: [] for f in FORMS}
    for b in BELIEFS.values():
        for name in b.confirms:
            found[form_of(name)].append(b.name)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_a_belief(form):
    assert confirmed()[form], f"nothing in tests/gpu/forms confirms {form}"


@pytest.mark.parametrize("name", BELIEFS)
def test_a_belief_uses_what_it_confirms(name):
    b = BELIEFS[name]
    assert set(b.confirms) <= opcodes(b.text) and all(form_of(c) for c in b.confirms)
    assert len(b.arrays) == len(b.expected) and (
        name.startswith("control_") or any(e is not None for e in b.expected)
    )


def test_the_host_makes_the_maps_of_beliefs():
    from tkc.runtime.arrays import ArrayInfo, contiguous
    from tkc.runtime.tensor_maps import describe

    for b in BELIEFS.values():
        for p in b.interface.parameters:
            if p.kind == "map":
                describe(
                    p,
                    ArrayInfo(
                        0x10000,
                        (a := b.arrays[p.argument]).shape,
                        contiguous(a.shape),
                        a.dtype.name,
                        0,
                    ),
                    b.name,
                )


@needs_ptxas
@pytest.mark.parametrize("part", range(8))
def test_beliefs_assemble(part):
    """In eight parts, for as many processes."""
    for b in list(BELIEFS.values())[part::8]:
        try:
            a = ptxas.assemble(b.text, "sm_90a")
        except CompileError as e:
            pytest.fail(f"{b.name}: {e}")
        assert a.clean, f"{b.name}: {a.notes}"
