"""The list that goes through compute-sanitizer has every function of the library; its calls run (on
the CPU here); findings are counted where they belong.
"""

import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from tests.gpu import recurrences, sanitize
from tests.gpu.sanitized import cases, examples, flat, library, numbers, unset
from tests.kernels.checks import launches
from tkc import kernels
from tkc.runtime import jit, specialize


def test_every_function_is_in_the_list():
    covered = {part for name in library() for part in name.split(" + ")}
    assert covered >= set(kernels.__all__), (
        f"give {sorted(set(kernels.__all__) - covered)} a call in tests/gpu/sanitized.py"
    )


def test_every_example_is_in_the_list():
    there = {
        p.stem
        for p in (Path(__file__).parents[2] / "examples").glob("*.py")
        if "\ndef cases(" in p.read_text()
    }
    # which starts processes, one a rank: tests/kernels/distributed/test_example.py
    there.discard("tensor_parallel")
    assert there == set(examples("cpu")), (
        f"give {sorted(there - set(examples('cpu')))} small sizes in tests/gpu/sanitized.py"
    )


@pytest.mark.parametrize("name", library())
def test_calls_run(name):
    assert all(r is not None for r in flat(library()[name](numbers)))


@pytest.mark.parametrize("of", recurrences.MODELS, ids=lambda of: str(of.width))
@pytest.mark.parametrize("name", recurrences.library())
def test_numbers_at_models_widths_say_something(name, of):
    """Nothing overflows or vanishes, so that a GPU that is near the CPU is right."""
    for array in flat(recurrences.library()[name](numbers, of)):
        found = np.asarray(array).astype(np.float64)
        assert np.isfinite(found).all() and (not found.size or found.any())


@pytest.mark.parametrize("name", library())
def test_checks_have_nothing_to_report(name, monkeypatch):
    """TKC_DEBUG=1 on the CPU: no access, promise or assertion of the library is one that a check
    would end.
    """
    monkeypatch.setenv("TKC_DEBUG", "1")
    assert all(r is not None for r in flat(library()[name](numbers)))


@pytest.mark.parametrize("name", library())
def test_nothing_depends_on_what_nobody_wrote(name):
    """Results are the same whatever their memory held before, and that of what is passed from
    launch to launch.
    """
    first, second = (called(name, byte) for byte in (0xFF, 0x5A))
    assert len(first) == len(second) and all(
        a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=False)
    )


def called(name: str, byte: int) -> list:
    with unset(byte):
        return flat(library()[name](numbers))


def test_what_nobody_wrote_is_noticed(monkeypatch):
    from tkc.kernels import movement

    # a launch of any grid leaves its result as it was
    monkeypatch.setattr(movement, "_embedding", defaultdict(lambda: lambda *args, **kwargs: None))
    first, second = (called("embedding", byte) for byte in (0xFF, 0x5A))
    assert not any(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=False))


def test_each_has_a_name_of_its_own():
    every = cases(numbers, "cpu")
    assert (
        len(every) == len(examples("cpu")) + len(library())
        and "examples/softmax" in every
        and "kernels.softmax + softmax_backward" in every
    )
    for name in ("examples/vector_add", "kernels.layer_norm"):
        every[name]()


@pytest.mark.parametrize("name", examples("cpu"))
def test_small_examples_are_right(name):
    for case in examples("cpu")[name]():
        case["run"]()
        assert case["error"]() <= case["tolerance"]


FAKE = """#!/bin/sh
while [ "$1" != tests.gpu.sanitized ]; do shift; done
shift
echo '========= COMPUTE-SANITIZER'
for name; do
    echo "== $name"
    case $name in
        *softmax)
            echo '========= Invalid __global__ read of size 4 bytes'
            echo '=========     at softmax';;
        *dropout) echo 'tkc.errors.DeviceError: gone'; exit 1;;
        *histogram) sleep 100;;
    esac
done
echo '== end'
echo '========= ERROR SUMMARY'
"""


def test_a_case_that_hangs_or_dies_loses_itself_alone(monkeypatch, tmp_path, capsys):
    fake = tmp_path / "compute-sanitizer"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    monkeypatch.setattr(sanitize, "find", lambda: str(fake))
    names = [
        "examples/vector_add",
        "examples/softmax",
        "examples/dropout",
        "examples/matmul",
        "examples/histogram",
        "examples/attention",
    ]
    found = sanitize.watched("memcheck", names, 0.5, time.monotonic() + 60)
    assert [str(found[n]) for n in names] == [
        "0",
        "1",
        "died",
        "0",
        "hung",
        "0",
    ] and "gone" in found[names[2]].said[-1]
    assert all(
        o.became == "not run"
        for o in sanitize.watched("memcheck", names, 1, time.monotonic()).values()
    )
    monkeypatch.setattr("sys.executable", str(fake))  # what runs without a tool, too
    monkeypatch.setattr("sys.argv", ["sanitize", "--tool", "memcheck", "--jobs", "2", *names[:2]])
    assert sanitize.main() == 1
    assert "memcheck: 1 of 2 are not clean" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["sanitize", "--tool", "memcheck", "--jobs", "3", names[0]])
    assert sanitize.main() == 0


@pytest.mark.parametrize("name", library())
def test_kernels_of_arrays_beyond_2_gib(name, monkeypatch):
    """They compile where extents and offsets have 64 bits, as those of small ones do."""

    def of_large(info):
        known = specialize.facts(info)
        return (*known[:5], True, *known[6:]) if known[0] == "array" else known

    with launches() as found:
        library()[name](numbers)
    monkeypatch.setattr(jit, "facts", of_large)
    for kernel, args, kwargs in found:
        kernel.compile(*args, target="cpu", **kwargs)
