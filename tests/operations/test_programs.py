"""Programs that wait for programs, offsets beyond 32 bits, Philox, print, assertions and arguments
that overlap: on the CPU and on a GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tkc
from tests.operations.kernels import (
    beyond,
    chained,
    far,
    in_place,
    last_one,
    noisy,
    of_the_next,
    telling,
)
from tkc.errors import Error

ROOT = Path(__file__).resolve().parents[2]
PLACES = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]


@pytest.fixture(params=PLACES)
def place(request):
    """Arrays to where the test runs, and back."""
    if request.param == "cpu":
        yield lambda x: x, np.asarray
        return
    torch = pytest.importorskip("torch")
    yield (
        lambda x: (
            torch.from_numpy(x).cuda()
            if x.dtype.kind != "u"
            else torch.from_numpy(x.view(f"i{x.itemsize}"))
            .cuda()
            .view(getattr(torch, x.dtype.name))
        ),
        lambda t: (
            (t.view(torch.int32) if t.dtype == torch.uint32 else t)
            .cpu()
            .numpy()
            .view(np.dtype(str(t.dtype).removeprefix("torch.")))
        ),
    )


@pytest.mark.parametrize("n", [1, 2, 7, 40, 1000])
def test_programs_wait_for_the_one_before(place, n):
    to, back = place
    flag, out = to(np.zeros(1, np.int32)), to(np.zeros(n, np.int32))
    chained[n](flag, out, n)
    np.testing.assert_array_equal(back(out), 7 + 3 * np.arange(n))
    assert back(flag)[0] == n


@pytest.mark.parametrize("n", [1, 5, 300])
def test_launches_that_overlap_see_what_the_one_before_wrote(place, n):
    """Each program reads what the program after it wrote in the launch before."""
    to, back = place
    a, b = to(np.zeros(n * 256, np.int32)), to(np.zeros(n * 256, np.int32))
    for _ in range(20):
        of_the_next[n](a, b, dependent=True)
        of_the_next[n](b, a, dependent=True)
    assert (back(a) == 40).all() and (back(b) == 39).all()


@pytest.mark.parametrize("n", [1, 5, 64])
def test_the_last_program_sees_what_all_wrote(place, n):
    to, back = place
    x = np.random.default_rng(0).integers(-9, 9, n * 100).astype(np.float32)
    parts, arrived, total = (
        to(np.zeros(64, np.float32)),
        to(np.zeros(1, np.int32)),
        to(np.zeros(1, np.float32)),
    )
    for _ in range(3):
        last_one[n](parts, arrived, total, to(x), 100)
        assert back(total)[0] == x.sum() and back(arrived)[0] == 0


@pytest.mark.parametrize("dtype", [np.int8, np.float16])
def test_offsets_beyond_32_bits_on_the_cpu(dtype):
    """Rows 2^31 elements apart: the pages between are never touched."""
    memory = np.zeros((1 << 31) + 4096, dtype)
    x = np.lib.stride_tricks.as_strided(memory, (2, 64), (memory.itemsize << 31, memory.itemsize))
    x[1] = np.arange(64)
    out = np.zeros(32, dtype)
    far[1](x, out, 1)
    np.testing.assert_array_equal(out, np.tile(np.arange(16), 2))
    np.testing.assert_array_equal(x[1, :18], [0, *range(3, 19), 17])
    assert not x[0].any()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3])
def test_offsets_beyond_32_bits(rows):
    torch = pytest.importorskip("torch")
    x = torch.zeros((rows, 1 << 31), dtype=torch.int8, device="cuda")
    x[rows - 1, :64] = torch.arange(64, dtype=torch.int8, device="cuda")
    out = torch.zeros(32, dtype=torch.int8, device="cuda")
    far[1](x, out, rows - 1)
    assert (
        out.tolist() == [*range(16)] * 2
        and x[rows - 1, :18].tolist() == [0, *range(3, 19), 17]
        and not x[0, :64].any()
    )


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("n", [(1 << 31) + 20, (1 << 32) + 20])
def test_axes_beyond_32_bits(where, n):
    start, last = n - 20, np.arange(1, 21)
    want = np.concatenate([last, np.zeros(12), last, np.zeros(12), [20]])
    if where == "cpu":
        x, out = np.zeros(n, np.int8), np.zeros(65, np.int8)  # the pages between are never touched
        x[start:] = last
        beyond[1](x, out, start)
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(x[start:], [1] + [9] * 19)
        return
    torch = pytest.importorskip("torch")
    x, out = (
        torch.zeros(n, dtype=torch.int8, device="cuda"),
        torch.zeros(65, dtype=torch.int8, device="cuda"),
    )
    x[start:] = torch.from_numpy(last.astype(np.int8)).cuda()
    beyond[1](x, out, start)
    assert (
        out.tolist() == want.tolist() and x[start:].tolist() == [1] + [9] * 19 and not x[:64].any()
    )


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_extents_of_wide_arrays_are_64_bits(target):
    compiled = beyond.compile("i8[5000000000]", "i8[65]", "i64", target=target)
    kinds = {(p.kind, p.type) for p in compiled.interface.parameters if p.argument == 0}
    assert ("shape", "u64") in kinds and ("shape", "u32") not in kinds
    assert ("shape", "u32") in {
        (p.kind, p.type)
        for p in beyond.compile("i8[5000]", "i8[65]", "i32", target=target).interface.parameters
    }


def test_code_for_wide_arrays_does_the_same_for_short_ones():
    """The PTX of the specialization for long arrays, on the machine of tkc.sim.ptx."""
    from tkc.sim.ptx import run

    class Program:
        compiled = beyond.compile("i8[5000000000]", "i8[65]", "i64", target="sm_90a")
        text, interface = compiled.ptx, compiled.interface

    x, out = np.zeros(100, np.int8), np.zeros(65, np.int8)
    x[80:] = last = np.arange(1, 21)
    x, out = run(Program, [x, out, 80])
    np.testing.assert_array_equal(
        out, np.concatenate([last, np.zeros(12), last, np.zeros(12), [20]])
    )
    np.testing.assert_array_equal(x[80:], [1] + [9] * 19)


# Random123's known answer: philox4x32-10 of counter 0 and key 0, and of a counter of ones
KNOWN = {(0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)}


def philox(seed: int, offset: int) -> list[int]:
    c, k = [offset & 0xFFFFFFFF, offset >> 32, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & 0xFFFFFFFF, (p >> 32) ^ c[3] ^ k[1], p & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@tkc.jit
def bits_by_argument(seed, out):
    tkc.store(out, (0,), tkc.philox(seed, tkc.arange(8))[0])


@tkc.jit
def bits_by_constant(seed: tkc.constexpr, out):
    tkc.store(out, (0,), tkc.philox(seed, tkc.arange(8))[0])


@pytest.mark.parametrize(
    "seed", [0, 1, -1, -(1 << 31), (1 << 31) - 1, 1 << 31, -(1 << 31) - 1, -(1 << 63)]
)
def test_a_seed_gives_the_same_bits_as_a_constant(seed):
    found = [np.zeros(8, np.uint32) for _ in range(2)]
    for kernel, out in zip((bits_by_argument, bits_by_constant), found, strict=True):
        kernel[1](seed, out)
    assert (found[0] == found[1]).all()
    key = seed & 0xFFFFFFFF if -(1 << 31) <= seed < 1 << 31 else seed % (1 << 64)
    assert [philox(key, i)[0] for i in range(8)] == list(found[0])


def test_philox_has_the_published_answer():
    for (seed, offset), words in KNOWN.items():
        assert tuple(philox(seed, offset)) == words


@pytest.mark.parametrize("seed", [0, 12345, 2**40 + 17])
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_random_numbers(place, seed, n):
    to, back = place
    bits, uniform, normal = (
        to(np.zeros((4, n), np.uint32)),
        to(np.zeros(n, np.float32)),
        to(np.zeros(n, np.float32)),
    )
    noisy[1](1.0, seed, bits, uniform, normal, n)
    want = np.array([philox(seed, i) for i in range(n)], np.uint32).T
    np.testing.assert_array_equal(back(bits), want)
    u = (want >> 8).astype(np.float64) * 2.0**-24
    np.testing.assert_array_equal(back(uniform), u[0].astype(np.float32))
    np.testing.assert_allclose(
        back(normal),
        np.sqrt(-2 * np.log(np.maximum(u[0], 2.0**-25))) * np.cos(2 * np.pi * u[1]),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("shift", [0, 64, 100])
def test_arguments_may_overlap(place, shift):
    to, back = place
    memory = to(np.arange(1000, dtype=np.float32))
    in_place[1](memory[shift:], memory[:640], 640) if shift else in_place[1](memory, memory, 640)
    want = np.arange(1000, dtype=np.float32)
    for k in range(0, 640, 64):
        want[k : k + 64] = want[shift + k : shift + k + 64] + 1
    np.testing.assert_array_equal(back(memory), want)


def said(n: int, where: str) -> subprocess.CompletedProcess:
    make = (
        "torch.arange(2., device='cuda')" if where == "gpu" else "numpy.arange(2, dtype='float32')"
    )
    end = "driver.synchronize()" if where == "gpu" else "pass"
    program = (
        f"import {'torch' if where == 'gpu' else 'numpy'}\nfrom tests.operations.kernels import"
        f" telling\nfrom tkc.runtime import driver\ntelling[1]({make}, {n})\n{end}\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("where", PLACES)
def test_print_and_device_assert(where):
    done = said(5, where)
    assert not done.returncode, done.stderr
    assert "n is" in done.stdout and "5" in done.stdout, done.stdout
    done = said(500, where)
    assert done.returncode and (
        "n is small" in done.stderr or "dead until the process ends" in done.stderr
    ), done.stderr


def test_an_assertion_says_its_message(monkeypatch):
    for variable in ("", "TKC_INTERPRET", "TKC_SIM"):
        if variable:
            monkeypatch.setenv(variable, "1")
        with pytest.raises(Error, match="n is small"):
            telling[1](np.zeros(2, np.float32), 500)
        if variable:
            monkeypatch.delenv(variable)
