"""The command line, called in this process; bad input is one line and exit 2."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tkc.passes.pipeline import PIPELINE
from tkc.tools.cli import main

ROOT = Path(__file__).resolve().parents[2]
KERNELS = f"{ROOT / 'tests' / 'runtime' / 'kernels.py'}"
ADD = (
    "compile",
    f"{KERNELS}:add",
    "x=f32[1024]",
    "y=f32[1024]",
    "out=f32[1024]",
    "n=i32",
    "--target",
    "sm_80",
)


def tkc(*words, text=None):
    return CliRunner().invoke(main, words, input=text)


def ok(*words, text=None) -> str:
    done = tkc(*words, text=text)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.stdout


def refused(*words, text=None) -> str:
    """The one line of an error."""
    done = tkc(*words, text=text)
    assert done.exit_code == 2, (done.exit_code, done.output)
    (line,) = done.stderr.strip().splitlines()
    assert (
        line.startswith("error: ")
        and "Traceback" not in done.output
        and "a bug of tkc" not in line
        and not done.stdout
    )
    return line


@pytest.fixture(scope="module")
def level_0() -> str:
    return ok(*ADD, "--emit", "ir")


def test_compile(tmp_path):
    assert ".target sm_80" in ok(*ADD)
    ok(*ADD, "-o", str(tmp_path / "a.ptx"))
    assert ".entry" in (tmp_path / "a.ptx").read_text()
    assert ".reqntid 256" in ok(*ADD, "--option", "num_warps=8")
    assert "define" in ok(*ADD[:-1], "cpu") and "together" in ok(*ADD, "--emit", "report")
    assert {Path(p).name for p in ok(*ADD, "-o", f"{tmp_path}/").split()} - {"add.sm_80.cubin"} == {
        "add.sm_80.ptx",
        "add.json",
        "add.h",
        "add.c",
    }


def test_a_signature_is_the_arguments_in_one_word():
    given = ("compile", f"{KERNELS}:add", "--target", "sm_80", "--signature")
    for text in (
        "x=f32[1024] y=f32[1024] out=f32[1024] n=i32",
        "f32[1024], f32[1024],f32[1024], i32",
        "f32[1024] f32[1024] f32[1024] i32 BLOCK=64",
        " f32[1024],f32[1024]  f32[1024], n=i32,BLOCK=64",
    ):
        assert ok(*given, text) == ok(*ADD), text
    assert (
        ok(*given, "f32[64, 16:1], f32[1024], f32[1024]", "n=i32", "--emit", "ir").count(
            "tile.array<?x?xf32"
        )
        >= 1
    )
    assert "takes x, y, out, n, BLOCK" in refused(
        *given, "i32 i32 i32 i32 i32 i32"
    ) and "x is given twice" in refused(*given, "f32[8]", "x=f32[8]")
    assert (
        "no parameter 'z'" in refused(*given, "z=f32[8]")
        and "f31" in refused(*given, "f31[8], f32[8], f32[8], i32")
        and "'f32[8 f32[8] f32[8] 3'"
        in refused(*given, "f32[8 f32[8] f32[8] 3", "y=f32[8]", "out=f32[8]", "n=i32")
    )


def test_what_would_be_ignored_is_refused(level_0, tmp_path):
    assert "is a directory" in refused(
        *ADD, "--emit", "ir", "-o", f"{tmp_path}/"
    ) and "x is given twice" in refused(*ADD, "x=f32[8]")
    assert "runs no passes" in refused(
        "opt", "--verify-only", "--validate", text=level_0
    ) and "names the passes" in refused(
        "opt", "-p", "simplify", "--stop-after", "plan", text=level_0
    )


def test_opt_does_what_the_compiler_does(level_0):
    final = ok(*ADD, "--emit", "ir", "--stage", "final")
    assert ok("opt", "--target", "sm_80", text=level_0) == final
    half = ok("opt", "--target", "sm_80", "--stop-after", PIPELINE[4], text=level_0)
    assert ok("opt", "--target", "sm_80", "--resume-from", PIPELINE[5], text=half) == final
    by_name = [w for p in PIPELINE for w in ("-p", p)]
    assert ok("opt", "--target", "sm_80", *by_name, text=level_0) == final


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
def test_opt_resumes_a_product_after_any_pass(machine):
    """With the plan, and for the target, that the text carries."""
    from tests.passes.kernels import CASES
    from tkc.ir.text import show

    text = show(CASES["product"].module())
    final = ok("opt", "--target", machine, text=text)
    printed = dict(
        zip(
            PIPELINE,
            re.split(
                r"^// after \S+\n", ok("opt", "--target", machine, "--print", text=text), flags=re.M
            )[1:],
            strict=False,
        )
    )
    for before, behind in zip(PIPELINE, PIPELINE[1:], strict=False):
        half = printed[before]
        given = () if PIPELINE.index(behind) > PIPELINE.index("plan") else ("--target", machine)
        assert ok("opt", "--resume-from", behind, *given, text=half) == final, behind
    other = "sm_89" if machine == "sm_80" else "sm_80"
    assert f"is planned for {machine}" in refused(
        "opt",
        "--resume-from",
        "select-layouts",
        "--target",
        other,
        text=ok("opt", "--target", machine, "--stop-after", "plan", text=text),
    )


def test_opt_prints_every_pass(level_0):
    assert [
        line[9:]
        for line in ok("opt", "--target", "sm_80", "--print", text=level_0).splitlines()
        if line.startswith("// after ")
    ] == list(PIPELINE)


def test_opt_lists_and_verifies(level_0, tmp_path):
    assert ok("opt", "--list").split() == list(PIPELINE)
    assert ok("opt", "--verify-only", text=level_0) == ""
    (tmp_path / "k.mlir").write_text(level_0)
    assert "tile.kernel" in ok("opt", str(tmp_path / "k.mlir"), "--stop-after", "simplify")


@pytest.mark.parametrize(
    "words,expected",
    [
        (("-p", "nonsense"), "there is no pass 'nonsense'"),
        (("--target", "sm_1"), "unknown target"),
        (("--resume-from", "assign-registers", "--stop-after", "plan"), "comes before"),
        (("/no/such/file",), "No such file"),
        (("/",), "directory"),
    ],
)
def test_opt_refuses(level_0, words, expected):
    assert expected in refused("opt", *words, text=level_0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "}",
        "builtin.module {",
        "import os",
        '"unterminated' + "a" * 60,
        "builtin.module { tile.kernel @k() { } }",
        "(" * 5000,
        "{" * 150,
        "9" * 10000,
        "\0\1\2",
        "builtin.module { func.func @f() { func.return } }",
        'builtin.module { "tile.nonsense"() : () -> () }',
        "builtin.module { tile.kernel @k() {level = 9 : i64} { tile.return } }",
        (
            "builtin.module { tile.kernel @k() {level = 0 : i64} { %a = tile.add %b, %b : i32"
            " tile.return } }"
        ),
    ],
)
def test_malformed_text_is_one_line(text):
    refused("opt", text=text)


def test_mutants_of_a_kernel_never_show_a_traceback(level_0):
    import random

    r = random.Random(1)
    for _ in range(120):
        at, n = r.randrange(len(level_0)), r.choice((1, 1, 3, 20))
        mutant = r.choice(
            (
                level_0[:at] + level_0[at + n :],
                level_0[:at] + r.choice('(){}<>%!@,:=xi"-0') + level_0[at + n :],
                level_0[:at] + level_0[at - 30 : at] + level_0[at:],
            )
        )
        done = tkc("opt", "--verify-only", text=mutant)
        assert (
            done.exit_code in (0, 2)
            and len(done.stderr.strip().splitlines()) <= 1
            and "bug of tkc" not in done.stderr
        ), (mutant, done.stderr)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "x.mlir").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refused("opt", str(tmp_path / "x.mlir"))


@pytest.mark.parametrize(
    "words,expected",
    [
        ((f"{KERNELS}:nothing",), "has no kernel 'nothing'; it has add"),
        ((KERNELS.replace(".py", ".txt") + ":add",), "no such file"),
        (("add",), "file.py:name"),
        ((f"{KERNELS}:add", "z=f32[4]"), "no parameter 'z'"),
        ((f"{KERNELS}:add", "x"), "no argument"),
        (
            (f"{KERNELS}:add", "x=f32[4]"),
            (
                "missing 3 required positional arguments: 'y', 'out', and 'n'; the parameters are"
                " x, y, out, n, BLOCK"
            ),
        ),
        ((f"{KERNELS}:add", "x=f31[4]", "y=f32[4]", "out=f32[4]", "n=i32"), "f31"),
        (
            (f"{KERNELS}:add", "x=f32[4]", "y=f32[4]", "out=f32[4]", "n=i32", "--target", "sm_1"),
            "sm_1",
        ),
    ],
)
def test_compile_refuses(words, expected):
    assert expected in refused("compile", *words)


def test_a_kernel_that_cannot_be_compiled_shows_its_line(tmp_path):
    (tmp_path / "bad.py").write_text(
        "import tkc\n\n@tkc.jit\ndef k(x):\n    tkc.store(x, (0,), nonsense)\n"
    )
    done = tkc("compile", f"{tmp_path / 'bad.py'}:k", "x=f32[4]")
    assert (
        done.exit_code == 2
        and "bad.py" in done.stderr
        and "^" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_debug_shows_the_traceback():
    done = subprocess.run(
        [sys.executable, "-m", "tkc.tools.cli", "--debug", "opt", "/no/such/file"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "Traceback" in done.stderr


def test_doctor():
    out = ok("doctor")
    for word in ("xdsl", "llvmlite", "ptxas", "torch", "cache"):
        assert word in out


def test_doctor_misses_what_is_needed(monkeypatch):
    from tkc.tools import doctor

    monkeypatch.setattr(doctor, "_version", lambda package: "" if package == "xdsl" else "1.0")
    done = tkc("doctor")
    assert done.exit_code == 1 and "pip install xdsl" in done.output


def test_help_of_every_command():
    for name in main.commands:
        assert ok(name, "--help")


# --------------------------------------------------------------------------------------------------
PRODUCT = (
    f"{ROOT / 'examples' / 'matmul.py'}:matmul",
    "a=f16[70,40]",
    "b=f16[40,50]",
    "c=f16[70,50]",
    "BM=32",
    "BN=32",
    "BK=16",
)


def test_check_of_a_clean_kernel():
    lines = ok("check", *PRODUCT).splitlines()
    assert [line.split(":")[0] for line in lines] == ["sm_80", "sm_89", "sm_90a"] and all(
        "nothing found in 8 schedules" in line for line in lines
    )


def test_check_finds_programs_that_depend_on_each_other(tmp_path):
    (tmp_path / "k.py").write_text(
        "import tkc\n\n@tkc.jit\ndef k(x, o):\n    v = tkc.load(x, (tkc.program_id(0) * 8,),"
        " (8,))\n    tkc.store(o, (tkc.program_id(0) * 4,), v)\n"
    )
    done = tkc(
        "check",
        f"{tmp_path / 'k.py'}:k",
        "x=f32[64]",
        "o=f32[64]",
        "--grid",
        "4",
        "--target",
        "sm_80",
    )
    assert done.exit_code == 1 and "k.py:6" in done.stdout and "order: block" in done.stdout, (
        done.output
    )


def test_check_refuses(tmp_path):
    (tmp_path / "k.py").write_text("import tkc\n\n@tkc.jit\ndef k(x): pass\n")
    assert "needs a grid" in refused("check", f"{tmp_path / 'k.py'}:k", "x=f32[8]")
    assert "'4,x' is no grid" in refused(
        "check", f"{KERNELS}:add", "x=f32[8]", "y=f32[8]", "out=f32[8]", "n=8", "--grid", "4,x"
    )
    assert "write n=1024" in refused(
        "check", f"{KERNELS}:add", "x=f32[8]", "y=f32[8]", "out=f32[8]", "n=i32", "--grid", "1"
    )
    assert "no such file" in refused("check", "nowhere.py:k").lower()
    assert "too many for the simulator" in refused(
        "check",
        f"{KERNELS}:add",
        "x=f32[9999999999]",
        "y=f32[8]",
        "out=f32[8]",
        "n=8",
        "--grid",
        "1",
    )


def test_opt_validates(level_0):
    done = tkc("opt", "--validate", "--target", "sm_80", text=level_0)
    assert (
        done.exit_code == 0
        and f"{len(PIPELINE)} passes change nothing in ieee and ring arithmetic" in done.stderr
        and "level = 4" in done.stdout
    )


def test_opt_compares_two_files(level_0, tmp_path):
    (tmp_path / "a.mlir").write_text(level_0)
    total = next(line for line in level_0.splitlines() if "tile.add" in line and "xf32>" in line)
    (tmp_path / "b.mlir").write_text(level_0.replace(total, total.replace("tile.add", "tile.sub")))
    assert "the same in ieee and ring" in ok(
        "opt", str(tmp_path / "a.mlir"), "--against", str(tmp_path / "a.mlir")
    )
    assert "differ" in refused(
        "opt", str(tmp_path / "a.mlir"), "--against", str(tmp_path / "b.mlir")
    )
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    assert "bad.npz" in refused(
        "opt", str(tmp_path / "a.mlir"), "--validate", "--inputs", str(tmp_path / "bad.npz")
    )


def test_report_with_a_picture(tmp_path):
    """Of a product for a launch: time, timeline, picture."""
    product = (
        f"{ROOT / 'examples' / 'matmul.py'}:matmul",
        "a=bf16[4096,512]",
        "b=bf16[512,4096]",
        "c=bf16[4096,4096]",
    )
    text = ok("report", *product, "--picture", str(tmp_path / "a.svg"))
    assert (
        "us for 1024 programs" in text
        and "consumer 0 dots" in text
        and (tmp_path / "a.svg").read_text().startswith("<?xml")
    )
    assert "is no grid" in refused("report", *product, "--grid", "1,x")
    assert "times are predicted for GPUs" in refused("report", *product, "--target", "cpu")
