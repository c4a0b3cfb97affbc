"""Tracebacks of errors show the user's frames; with TKC_TRACEBACK=1 tkc's own, too."""

import traceback
from pathlib import Path

import numpy as np
import pytest

import tkc
from tkc import kernels

PACKAGE = str(Path(tkc.__file__).parent)


def helper(x):
    return x.reshape(7)


@tkc.jit
def wrong_shape(x, B: tkc.constexpr = 8):
    v = tkc.load(x, 0, B)
    for _k in tkc.range(3):
        v = helper(v)


@tkc.jit
def wrong_key(x, B: tkc.constexpr = 8):
    if x.shape[0] > B:
        tkc.store(x, 0, {}["missing"])


@tkc.autotune([tkc.Config(B=8), tkc.Config(B=16)])
@tkc.jit
def tuned(x, B: tkc.constexpr):
    tkc.store(x, 0, helper(tkc.load(x, 0, B)))


def raised(call) -> BaseException:
    with pytest.raises(tkc.Error) as caught:
        call(np.zeros(32, np.float32))
    return caught.value


def functions(error: BaseException) -> list[str]:
    """Of each frame, behind the two of `raised`."""
    own, called, *rest = traceback.extract_tb(error.__traceback__)
    assert own.name == "raised"
    assert called.name == "<lambda>"
    assert not [frame for frame in rest if frame.filename.startswith(PACKAGE)]
    return [frame.name for frame in rest]


CALLS = {
    "launch": lambda x: wrong_shape[1](x),
    "a grid that is a function": lambda x: wrong_shape[lambda a: 1](x),
    "compile": lambda x: wrong_shape.compile(x),
    "for a GPU": lambda x: wrong_shape.compile("f32[32]", target="sm_90a"),
    "predict": lambda x: wrong_shape.predict("f32[32]", grid=1, target="sm_90a"),
    "prepare": lambda x: wrong_shape.prepare(x, grid=1),
}


@pytest.mark.parametrize("how", CALLS)
def test_errors_of_tracing_show_the_kernels_frames(how):
    error = raised(CALLS[how])
    assert functions(error) == ["wrong_shape", "helper"]
    assert error.location.function == "helper"


@pytest.mark.parametrize("how", ["TKC_INTERPRET", "TKC_SIM", "TKC_VALIDATE"])
def test_in_the_simulators_too(how, monkeypatch):
    monkeypatch.setenv(how, "1")
    assert functions(raised(lambda x: wrong_shape[1](x))) == ["wrong_shape", "helper"]


def test_what_python_objects_to_is_shown_as_the_cause():
    error = raised(lambda x: wrong_key[1](x))
    assert functions(error) == []
    assert isinstance(error.__cause__, KeyError)
    assert [f.name for f in traceback.extract_tb(error.__cause__.__traceback__)] == ["wrong_key"]


def test_errors_of_a_launch_end_at_the_call():
    assert functions(raised(lambda x: wrong_shape[1](x, x, x))) == []
    assert functions(raised(lambda x: wrong_shape["x"](x))) == []
    assert functions(raised(lambda x: wrong_shape(x))) == []


def test_a_tuned_kernel():
    names = functions(raised(lambda x: tuned[1](x)))
    assert not names or names[-1] == "helper"


def test_a_launch_that_was_made_before():
    """The error comes through what launches the second time."""
    x = np.zeros(32, np.float32)
    fine = tkc.jit(_stores)
    fine[1](x, 1)
    fine[1](x, 1)
    assert functions(raised(lambda x: fine[1](x, "no"))) == []
    assert functions(raised(lambda x: fine[1](x, helper, x))) == []


LIBRARY = {
    "an operator": lambda x: kernels.softmax(x, axis=5),
    "an operator of something else": lambda x: kernels.softmax(3),
    "a function that calls operators": lambda x: kernels.matmul(x, x.reshape(4, 8)),
    "a function that checks": lambda x: kernels.attention(x, x, x, max_seqlen=3),
}


@pytest.mark.parametrize("what", LIBRARY)
def test_calls_of_the_library_end_at_the_call(what):
    assert functions(raised(LIBRARY[what])) == []


def test_all_frames_of_the_library_where_they_are_asked_for(monkeypatch):
    monkeypatch.setenv("TKC_TRACEBACK", "1")
    error = raised(LIBRARY["an operator"])
    assert "_forward" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def _stores(x, n):
    tkc.store(x, 0, n)


def test_all_frames_where_they_are_asked_for(monkeypatch):
    monkeypatch.setenv("TKC_TRACEBACK", "1")
    frames = traceback.extract_tb(raised(lambda x: wrong_shape[1](x)).__traceback__)
    assert [frame for frame in frames if frame.filename.startswith(PACKAGE)]
