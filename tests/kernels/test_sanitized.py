"""The list that goes through compute-sanitizer has every function of the library; its calls run (on the CPU here); findings are counted where they belong."""
from pathlib import Path

import pytest

from tests.gpu import sanitize
from tests.gpu.sanitized import cases, examples, flat, library, numbers
from tkc import kernels


def test_every_function_is_in_the_list():
    covered = {part for name in library() for part in name.split(" + ")}
    assert covered >= set(kernels.__all__), f"give {sorted(set(kernels.__all__) - covered)} a call in tests/gpu/sanitized.py"


def test_every_example_is_in_the_list():
    there = {p.stem for p in (Path(__file__).parents[2] / "examples").glob("*.py") if "\ndef cases(" in p.read_text()}
    assert there == set(examples("cpu")), f"give {sorted(there - set(examples('cpu')))} small sizes in tests/gpu/sanitized.py"


@pytest.mark.parametrize("name", library())
def test_calls_run(name): assert all(r is not None for r in flat(library()[name](numbers)))


def test_each_has_a_name_of_its_own():
    every = cases(numbers, "cpu")
    assert len(every) == len(examples("cpu")) + len(library()) and "examples/softmax" in every and "kernels.softmax + softmax_backward" in every
    for name in ("examples/vector_add", "kernels.layer_norm"): every[name]()


@pytest.mark.parametrize("name", examples("cpu"))
def test_small_examples_are_right(name):
    for case in examples("cpu")[name]():
        case["run"]()
        assert case["error"]() <= case["tolerance"]


def test_findings_are_counted_by_case(monkeypatch, tmp_path):
    fake = tmp_path / "compute-sanitizer"
    fake.write_text("#!/bin/sh\necho '========= COMPUTE-SANITIZER'; echo '== softmax'; echo '========= Invalid __global__ read of size 4 bytes'; echo '=========     at softmax'; echo '== sum'; echo '========= ERROR SUMMARY: 1 error'; exit 9\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sanitize, "find", lambda: str(fake))
    found, said, status = sanitize.sanitized("memcheck", [], 60)
    assert dict(found) == {"softmax": 1, "sum": 0} and status == 9 and "SUMMARY" in said[-1]
    monkeypatch.setattr("sys.argv", ["sanitize", "--tool", "memcheck"])
    assert sanitize.main() == 1
