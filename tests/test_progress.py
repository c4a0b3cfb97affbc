"""The line on the terminal about what takes long."""

import io
import time
from types import SimpleNamespace

import numpy as np
import pytest

import tkc
from tests.runtime.kernels import add
from tkc import progress as module
from tkc.progress import ERASE, progress
from tkc.runtime.jit import JitFunction


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Standard error, with lines after no time at all."""
    made = Terminal()
    # pytest puts its own in place of sys.stderr
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=made))
    monkeypatch.setattr(module, "DELAY_SECONDS", 0.001)
    monkeypatch.setattr(module, "PERIOD_SECONDS", 0.001)
    return made


def wait_for(terminal, text):
    end = time.monotonic() + 10
    while text not in terminal.getvalue():
        assert time.monotonic() < end, terminal.getvalue()
        time.sleep(0.001)


def test_a_line_says_what_is_done_and_is_erased(terminal):
    with progress("tuning k") as line:
        wait_for(terminal, "tkc: tuning k (0 s)")
        line.say("3 of 5")
        wait_for(terminal, "tkc: tuning k: 3 of 5 (0 s)")
        with progress("compiling k"):
            wait_for(terminal, "tkc: tuning k: 3 of 5, compiling k (0 s)")
    assert terminal.getvalue().endswith(ERASE)
    before = terminal.getvalue()
    time.sleep(0.01)
    assert terminal.getvalue() == before and not progress._open


def test_what_is_quick_says_nothing(terminal, monkeypatch):
    monkeypatch.setattr(module, "DELAY_SECONDS", 60)
    with progress("compiling k"):
        pass
    with pytest.raises(ZeroDivisionError), progress("compiling k"):
        1 / 0  # noqa: B018
    assert not terminal.getvalue() and not progress._open


def test_a_file_gets_no_line(terminal):
    terminal.isatty = lambda: False
    with progress("compiling k"):
        time.sleep(0.01)
    assert not terminal.getvalue()


def test_compiling_says_which_kernel_and_step(terminal, monkeypatch):
    monkeypatch.setenv("TKC_CACHE", "0")
    JitFunction(add.fn).compile(*["f32[64]"] * 3, "i32", target="sm_90a")
    assert "tkc: compiling add for sm_90a: " in terminal.getvalue()
    assert terminal.getvalue().endswith(ERASE)


def test_tuning_and_simulating_say_so(terminal, monkeypatch):
    monkeypatch.setenv("TKC_CACHE", "0")
    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    configs = [tkc.Config(BLOCK=n) for n in (32, 64)]
    tkc.autotune(configs, budget=0.1)(JitFunction(add.fn))[2](x, x, out, 64)
    assert "tkc: tuning add" in terminal.getvalue()
    monkeypatch.setenv("TKC_SIM", "1")
    # one that ends within a thread's turn has no line
    end = time.monotonic() + 10
    while "tkc: simulating add" not in terminal.getvalue():
        assert time.monotonic() < end, terminal.getvalue()
        JitFunction(add.fn)[256](x, x, out, 64)
