"""tkc in Triton's place: imports, tuning, what a launch gives back, and the command."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl
from tests.triton import kernels
from tkc.errors import LaunchError, TuningError
from tkc.tools import triton as command
from tkc.tools import triton_itself
from tkc.triton.errors import Unsupported
from tkc.triton.runtime.jit import observed

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "from tkc.tools.cli import main; main()"
SCRIPT = """
import sys
import numpy as np
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice
from triton.runtime.autotuner import Autotuner, OutOfResources
from triton.compiler.errors import CompilationError


@triton.jit
def double(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) * 2)


x = np.ones(16, np.float32)
double[(1,)](x, N=16)
double[(1,)](x, N=16)
print(x[0], sys.argv[1:], triton.__version__)
"""

STAND_IN = """
class Parameter:
    def __init__(self, name):
        self.name, self.is_constexpr = name, name.isupper()


class JITFunction:
    def __init__(self, fn):
        self.fn, self.arg_names = fn, fn.__code__.co_varnames
        self.params = [Parameter(n) for n in self.arg_names]

    def run(self, *args, grid, warmup=False, **kwargs):
        pass


jit = JITFunction
"""


@triton.jit
def doubled(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, tl.load(x + at) * 2)


def test_the_command_runs_a_script_and_names_its_kernels(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "triton", str(script), "--fast"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    said = done.stdout.splitlines()
    assert said[0] == "4.0 ['--fast'] 3.7.1", done.stderr
    assert said[1].startswith("double: 2 launches; one role, ") and "0 bytes spilled" in said[1]
    # in host memory nothing is measured, on either side
    assert re.search(r", predicted \d+\.\d us$", said[1])


def test_a_line_has_triton_s_time_of_the_launch_with_such_arguments(monkeypatch):
    x = np.ones(16, np.float32)
    found = []
    with observed(found.append):
        doubled[(1,)](x, N=16)
    theirs = {"doubled(x=float32[16])": 2.5e-6, "doubled(x=float32[32])": 7e-6}
    assert "Triton" not in command.line(found[0], 1, "sm_90a", theirs)
    on_gpu = type("OnGpu", (), {"target": "sm_90a"})
    monkeypatch.setitem(vars(found[0]), "compiled", on_gpu)
    monkeypatch.setattr(found[0].kernel, "prepare", lambda *args, **given: None)
    monkeypatch.setattr(command.timing, "measure", lambda *given: [3.25e-6])
    said = command.line(found[0], 1, "sm_90a", theirs)
    assert said.endswith(", measured 3.2 us, Triton 2.5 us")


def test_times_of_triton_itself_are_by_the_same_names(tmp_path):
    """With a stand-in for Triton in the process that runs the script with it."""
    package = tmp_path / "triton"
    (package / "runtime").mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "language.py").write_text("")
    (package / "testing.py").write_text("def do_bench(run, **how):\n    run()\n    return 1.5\n")
    (package / "runtime" / "__init__.py").write_text("")
    (package / "runtime" / "jit.py").write_text("from triton import JITFunction\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, triton\n\n\n@triton.jit\ndef double(x, n, N):\n    pass\n\n\n"
        "double.run(np.ones(16, np.float32), 16, grid=(1,), N=8)\n"
        "double.run(np.ones(16, np.float32), 16, grid=(1,), N=16)\n"
    )
    assert triton_itself.times(str(script), []) == {"double(x=float32[16] n=16)": 1.5e-3}
    script.write_text("raise SystemExit(3)\n")
    assert triton_itself.times(str(script), []) == {}


@triton.autotune(
    [triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (4, 8)],
    key=["n"],
    reset_to_zero=["out"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def accumulate(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at) if EVEN else tl.load(x + at, mask=at < n, other=0.0)
    tl.atomic_add(out, tl.sum(values))


def test_tuning_measures_what_differs_and_takes_back_what_it_wrote(monkeypatch):
    x, out, tried = np.ones(1000, np.float32), np.zeros(1, np.float32), []
    monkeypatch.setenv("TKC_AUTOTUNE", "1")
    monkeypatch.setattr(
        accumulate, "_do_bench", lambda call, quantiles: [tried.append(call) or len(tried)] * 3
    )
    accumulate[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
    assert out[0] == 1000 and len(tried) == 2  # warps are the planner's: two configurations
    assert accumulate.best_config.kwargs == {"BLOCK": 64}
    with pytest.raises(TuningError, match="BLOCK is given"):
        accumulate.cache.clear()
        accumulate[(1,)](x, out, 1000, BLOCK=64)


@pytest.mark.parametrize("persistent, beside", [(False, [8]), (True, [4, 8])])
def test_tuning_measures_one_role_with_hinted_warps_beside_the_planners_choice(
    monkeypatch, persistent, beside
):
    """The planner has four warps; in blocks that take programs in turn, they have roles."""
    x, out, tried = np.ones(1000, np.float32), np.zeros(1, np.float32), []
    planned = SimpleNamespace(
        warps=4, persistent=persistent, compiled=SimpleNamespace(target="sm_90a")
    )
    monkeypatch.setenv("TKC_AUTOTUNE", "1")

    def run(*args, grid, **given):
        tried.append(given)
        return planned

    def measured(call, quantiles):
        call()
        return [0.0 if tried[-1].get("strict") else 1.0] * 3

    monkeypatch.setattr(accumulate, "fn", SimpleNamespace(run=run))
    monkeypatch.setattr(accumulate, "_do_bench", measured)
    monkeypatch.setattr(accumulate, "cache", {})
    accumulate[(1,)](x, out, 1000)
    alike = [(None, None)] + [("one", w) for w in beside]
    seen = [(g.get("roles"), g["num_warps"] if "strict" in g else None) for g in tried]
    assert seen[:-1] == 2 * alike, "each block size by the planner, and beside it"
    assert tried[-1] == tried[1], "what was best is launched"


def test_a_kernel_is_compiled_without_arrays():
    compiled = kernels.add.warmup(tl.float32, tl.float32, tl.float32, 100, BLOCK=64, grid=(1,))
    assert compiled.compiled_for("sm_90a").resources.clean
    assert set(compiled.asm) >= {"ttir", "ttgir"}


def test_a_program_learns_how_many_blocks_fit():
    given = {"BLOCK": 1024, "grid": (1,)}
    plain = kernels.add.warmup(tl.float32, tl.float32, tl.float32, 9000, **given)
    asked = kernels.add.warmup(tl.float32, tl.float32, tl.float32, 9000, num_warps=16, **given)
    block = plain.n_regs * plain.compiled_for("sm_90a").interface.threads
    assert 0 <= asked.n_regs * 32 * 16 - block < 32 * 16  # the same block, by more threads
    assert asked.metadata.shared > 0 and plain.n_spills == 0


def test_what_is_not_an_option_is_refused():
    x = np.zeros(4, np.float32)
    with pytest.raises(LaunchError, match="num_wraps is neither a parameter nor an option"):
        kernels.add[(1,)](x, x, x, 4, BLOCK=4, num_wraps=4)


def test_install_takes_triton_s_place_and_gives_it_back():
    triton.install()
    try:
        import triton as placed

        assert placed is triton
    finally:
        triton.uninstall()
    assert "triton" not in sys.modules


@triton.jit
def log2_of_a_number(out, N: tl.constexpr):
    tl.store(out, tl.standard._log2(N))
    tl.store(out + 1, tl.standard._log2(tl.arange(0, N).shape[0]))
    tl.store(out + 2, tl.standard._is_power_of_two(N - 1))


def test_helpers_of_tl_standard():
    out = np.zeros(3, np.int32)
    log2_of_a_number[(1,)](out, N=64)
    assert out.tolist() == [6, 6, 0]
    assert tl.standard._log2(100) == 6 and tl.standard._is_power_of_two(8)


def test_programs_speak_to_the_profiler_and_nothing_is_recorded():
    from tkc.triton import profiler
    from tkc.triton.profiler import viewer

    session = profiler.start("name", hook="triton")
    profiler.activate(session)
    with profiler.scope("part", {"flops": 2}), profiler.cpu_timed_scope("copy"):
        pass
    assert profiler.scope("whole")(lambda: 7)() == 7
    profiler.finalize(session)
    with pytest.raises(Unsupported, match="records nothing for Triton's profiler"):
        viewer.parse(["time/ms"], "name.hatchet")


def test_parts_of_triton_s_own_compiler_are_refused_when_used():
    from tkc.triton._C.libtriton import ir, nvidia

    assert nvidia.cublas.CublasLt(None).matmul
    with pytest.raises(Unsupported, match=r"libtriton\.ir\.context"):
        _ = ir.context


def test_the_driver_names_the_cpu_when_told_to():
    from tkc.triton.runtime import driver

    driver.set_active_to_cpu()
    try:
        assert driver.active.get_current_target().backend == "cpu"
    finally:
        driver.reset_active()


@triton.jit
def never_right(x, N: tl.constexpr):
    tl.static_assert(N == 3, "three of them")


def test_errors_have_triton_s_names():
    from tkc.triton.errors import CompileTimeAssertionFailure

    with pytest.raises(CompileTimeAssertionFailure, match="three of them"):
        never_right[(1,)](np.zeros(4, np.int32), N=4)
