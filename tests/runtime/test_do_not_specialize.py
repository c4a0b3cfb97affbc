"""Integers that stay what they are at run time."""

import numpy as np
import pytest

import tkc


@tkc.jit(do_not_specialize=["n"])
def plain(x, n, m):
    tkc.store(x, (0,), n + m)


def test_one_compilation_for_all_values():
    x = np.zeros(1, np.int32)
    for n in (1, 16, 7, 0, -3, 1):
        plain[1](x, n, 5)
        assert x[0] == n + 5
    assert len(plain._compiled) == 1


def test_by_number_and_others_stay_specialized():
    def kernel(x, n, m):
        assert m == 1 and not isinstance(n, int)
        tkc.store(x, (0,), n)

    x = np.zeros(1, np.int32)
    tkc.jit(kernel, do_not_specialize=(1,))[1](x, 1, 1)
    assert x[0] == 1
    with pytest.raises(tkc.LaunchError, match="names 'k', which is no parameter; they are x, n, m"):
        tkc.jit(kernel, do_not_specialize=["k"])


def test_larger_integers_are_of_another_type():
    x = np.zeros(1, np.int64)
    plain[1](x, 1 << 40, 5)
    assert x[0] == (1 << 40) + 5


def test_tensors_launched_again():
    """The launch cache has a key of its own for tensors."""
    torch = pytest.importorskip("torch")
    x = torch.zeros(1, dtype=torch.int32)
    launcher = plain[1]
    for n in (7, 1, 1, 16, 1, 32, 1):
        launcher(x, n, 5)
        assert x[0] == n + 5
