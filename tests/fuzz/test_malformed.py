"""Broken texts of IR and broken command lines: refused in a sentence, or taken; `python -m tkc.fuzz
texts N` runs more.
"""

import random
import time
from functools import cache

import pytest
from click.testing import CliRunner

from tkc.fuzz.mutation import KERNEL, command_lines, corpus, fault, mutant
from tkc.tools.cli import main

texts = cache(corpus)


@pytest.mark.parametrize("seed", range(4))
def test_mutants_of_texts(seed):
    r = random.Random(seed)
    for _ in range(60):
        assert (problem := fault(text := mutant(r, texts()))) is None, f"{problem}\n{text}"


def test_mutants_through_the_passes():
    r = random.Random(99)
    for _ in range(25):
        assert (problem := fault(text := mutant(r, texts()[:1]), passes=True)) is None, (
            f"{problem}\n{text}"
        )


def kernel(body: str, arguments: str = "") -> str:
    return f"tile.kernel @k({arguments}) {{level = 0 : i64}} {{\n{body}\ntile.return\n}}"


MALFORMED = {
    "literal without end": '"' + "a" * 100_000,
    "regions in regions": "{" * 5000,
    "types in types": kernel("", "%x: " + "!tile.pending<" * 5000),
    "attributes in attributes": "[" * 100_000,
    "long number": kernel(f"%a = tile.constant {'9' * 100_000} : i32"),
    "long name": f"tile.kernel @{'k' * 100_000}(",
    "many braces": "{}" * 50_000,
    "no text": "",
    "zeros": "\0" * 1000,
    "extent of zero": kernel("%a = tile.constant 0 : !tile.tile<0xi32>"),
    "negative extent": kernel("%a = tile.constant 0 : !tile.tile<-4xi32>"),
    "huge tile": kernel("%a = tile.constant 0 : !tile.tile<1000000x1000000xf32>"),
    "huge rank": kernel(f"%a = tile.constant 0 : !tile.tile<{'1x' * 3000}f32>"),
    "huge arange": kernel("%a = tile.arange 0 : !tile.tile<4611686018427387904xi32>"),
    "axis": kernel(
        "%a = tile.constant 0 : !tile.tile<4xi32>\n%b = tile.flip %a {axis = 7 : i64} :"
        " (!tile.tile<4xi32>) -> !tile.tile<4xi32>"
    ),
    "grid": kernel("%a = tile.program_id 5 : i32"),
    "cycle": kernel("%a = tile.add %b, %b : i32\n%b = tile.add %a, %a : i32"),
    "twice": kernel("%a = tile.constant 0 : i32\n%a = tile.constant 1 : i32"),
    "concat": kernel(
        "%a = tile.constant 0 : !tile.tile<4xi32>\n%b = tile.concat[%a, %a] {axis = 0 : i64} :"
        " (!tile.tile<4xi32>, !tile.tile<4xi32>) -> !tile.tile<1xi32>"
    ),
    "reduction without region": kernel(
        "%a = tile.constant 0 : !tile.tile<4xi32>\n%b = tile.reduce combine[%a] {axis = 0 : i64} :"
        " (!tile.tile<4xi32>) -> i32"
    ),
    "tf32 of bf16": kernel(
        "%a = tile.constant 0.0 : !tile.tile<4x4xbf16>\n%c = tile.constant 0.0 :"
        ' !tile.tile<4x4xf32>\n%d = tile.dot %a, %a, %c {precision = "tf32"} :'
        " (!tile.tile<4x4xbf16>, !tile.tile<4x4xbf16>, !tile.tile<4x4xf32>) -> !tile.tile<4x4xf32>"
    ),
    "block": kernel("^bb1:\n%a = tile.constant 0 : i32"),
    "no terminator": "tile.kernel @k() {level = 0 : i64} {\n%a = tile.constant 0 : i32\n}",
    "dictionary": "builtin.module attributes {" + "a = {" * 200,
    "loc": "builtin.module {} loc(" + "fused[" * 200,
    "dense": "builtin.module attributes {a = dense<0> : tensor<99999999999x99999999999xi64>} {}",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name):
    """Through the command, as a user would."""
    began = time.perf_counter()
    done = CliRunner().invoke(
        main, ["opt", "--verify-only", "--target", "sm_80"], input=MALFORMED[name]
    )
    assert (
        done.exit_code in (0, 2)
        and len(done.stderr.strip().splitlines()) <= 1
        and "Traceback" not in done.output
        and "bug of tkc" not in done.stderr
    ), done.stderr[:300]
    assert time.perf_counter() - began < 4


@pytest.mark.parametrize(
    "name",
    [
        "extent of zero",
        "axis",
        "grid",
        "concat",
        "reduction without region",
        "tf32 of bf16",
        "cycle",
        "twice",
        "no terminator",
    ],
)
def test_what_cannot_be_meant_is_refused(name):
    assert CliRunner().invoke(main, ["opt", "--verify-only"], input=MALFORMED[name]).exit_code == 2


def test_command_lines(tmp_path, monkeypatch):
    here = tmp_path / "in" / "a" / "folder"  # some of the words lead out of it
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    (here / "k.py").write_text(KERNEL)
    (here / "k.mlir").write_text(kernel("%a = tile.constant 0 : !tile.tile<4xi32>"))
    for words in command_lines(0, 250):
        done = CliRunner().invoke(main, words, input="")
        assert (
            done.exit_code in (0, 1, 2)
            and "Traceback" not in done.output
            and "bug of tkc" not in done.output
        ), (words, done.output)


def test_reduce(tmp_path):
    (tmp_path / "k.mlir").write_text(
        kernel(
            "%a = tile.constant 0 : !tile.tile<4xi32>\n%b = tile.flip %a {axis = 0 : i64} :"
            " (!tile.tile<4xi32>) -> !tile.tile<4xi32>\n%c = tile.constant 3 : i32"
        )
    )
    done = CliRunner().invoke(main, ["reduce", str(tmp_path / "k.mlir"), "--test", "grep -q flip"])
    assert done.exit_code == 0 and "tile.flip" in done.stdout and "3 : i32" not in done.stdout, (
        done.output
    )
    for words, message in (
        (["--test", "false"], "not interesting"),
        (["--test", "/no/such/program"], "No such file"),
        ([], "computes what level 0 says"),
        (["--target", "sm_1"], "unknown target"),
        (["--grid", "x"], "--grid"),
    ):
        done = CliRunner().invoke(main, ["reduce", str(tmp_path / "k.mlir"), *words])
        assert (
            done.exit_code == 2
            and message in done.stderr
            and len(done.stderr.strip().splitlines()) == 1
        ), done.output
