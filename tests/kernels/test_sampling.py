"""Sampling against probabilities in float64, by which tokens are kept and how often they are drawn;
argmax, stable sorts of rows of every length, rows of beams.
"""

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.kernels.checks import assembles, numbers
from tkc import kernels


def kept(x, temperature, top_k, top_p, min_p):
    """The probabilities of what is kept, by sorting; of equals the first."""
    x = x.astype(np.float64)
    p = np.exp((x - x.max()) / temperature)
    order = np.argsort(-x, kind="stable")
    order = order[: top_k or len(x)]
    mass = p[order] / p[order].sum()
    order = order[np.cumsum(mass) - mass < max(top_p, 1e-9)]
    order = order[p[order] >= min_p * p.max()]
    found = np.zeros(len(x))
    found[order] = p[order] / p[order].sum()
    return found


OPTIONS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.0, 0, 0.8, 0.0),
    (2.0, 9, 0.6, 0.0),
    (1.0, 0, 1.0, 0.3),
    (1.0, 3, 0.99, 0.5),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_are_drawn_as_often_as_they_are_probable(dtype):
    """Many rows that are equal, each with a draw of its own."""
    row, count = numbers((23,), dtype, scale=2), 4000
    row[5] = row[11] = row[2]  # equals, at a boundary of some
    logits = np.ascontiguousarray(np.broadcast_to(row, (count, 23)))
    for options in OPTIONS:
        tokens = kernels.sample(logits, 7, *options)
        share = np.bincount(tokens, minlength=23) / count
        want = kept(row, *options)
        assert not share[want == 0].any(), options
        assert np.abs(share - want).max() < 5 * np.sqrt(0.25 / count), options


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("columns", [6, 700, 40000])
def test_the_two_zeros_are_equal(dtype, columns):
    """The first is the largest, whichever has a sign; a top_k of 1 keeps one of them."""
    x = -1 - abs(numbers((64, columns), dtype))
    at = columns // 2
    x[:, at : at + 3] = -0.0, 0.0, -0.0
    assert (kernels.argmax(x) == at).all()
    assert (kernels.sample(x, 1, 0.0) == at).all()
    assert (kernels.sample(x, 1, 1.0, 1) == at).all()


def test_numbers_of_rows_and_seeds():
    logits = numbers((6, 5000), scale=3)
    assert np.array_equal(kernels.sample(logits, 1, 0.0), logits.argmax(1))
    options = [
        np.array([0, 0.5, 1, 1, 2, 1], np.float32),
        np.array([0, 1, 3, 0, 50, 9], np.int32),
        np.array([1, 1, 0.5, 0.2, 0.9, 0], np.float32),
        np.array([0, 0, 0, 0.1, 0, 0.9], np.float32),
    ]
    first = kernels.sample(logits, 3, 1.0, 0, 1.0, 0.0, *options)
    assert np.array_equal(first, kernels.sample(logits, 3, 1.0, 0, 1.0, 0.0, *options))
    assert first[0] == logits[0].argmax() and first[1] == logits[1].argmax()
    for row, token in enumerate(first[2:], 2):
        assert kept(logits[row], *(o[row] for o in options))[token] > 0
    drawn = {tuple(kernels.sample(logits, seed, 3.0)) for seed in range(5)}
    assert len(drawn) == 5
    with pytest.raises(tkc.LaunchError, match=r"top_ks: expected the shape \[6\]"):
        kernels.sample(logits, 1, top_ks=options[1][:3])
    with pytest.raises(tkc.LaunchError, match="convert the logits"):
        kernels.sample(logits.astype(np.float64), 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_first_of_equals_below_zero_are_kept(dtype):
    row = np.array([-3, -1, -1, -1, -5, -1], np.float32).astype(numbers((), dtype).dtype)
    drawn = kernels.sample(np.tile(row, (400, 1)), 3, top_k=2)
    assert set(drawn.tolist()) == {1, 2}
    drawn = kernels.sample(np.tile(row, (400, 1)), 3, top_p=0.5)
    assert set(drawn.tolist()) <= {1, 2, 3} and len(set(drawn.tolist())) > 1


def test_nothing_but_infinities():
    logits = np.full((2, 9), -np.inf, np.float32)
    logits[:, 4] = 0
    logits[1, 2] = np.nan
    assert kernels.sample(logits, 1, top_p=0.5).tolist() == [4, 4]
    assert kernels.sample(logits, 1).tolist() == [4, 4]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("tokens", [1, 9, 5000])
def test_rows_of_infinities(tokens, dtype):
    """A token of a row is one that it has; of the largest ones, where these are infinite."""
    logits = np.full((4, tokens), -np.inf, dtype)
    logits[1] = np.nan
    logits[2, tokens // 2 :] = np.inf
    logits[3, -1] = 3
    wanted = {}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.1}, {"top_k": 3, "top_p": 0.5}
    for given in (*wanted, *({"temperature": 0.0} | w for w in wanted)):
        first, second, third, fourth = kernels.sample(logits, 1, **given).tolist()
        assert 0 <= first < tokens and 0 <= second < tokens, given
        assert tokens // 2 <= third < tokens and fourth == tokens - 1, given
        if given.get("temperature") == 0:
            assert (first, second, third) == (0, 0, tokens // 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int32"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 31), (3, 513), (2, 4099)])
def test_sorts_and_largest(shape, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.random.default_rng(0).integers(-90, 90, shape).astype(kind)
    assert np.array_equal(kernels.argmax(x), x.astype(np.float64).argmax(-1))
    for descending in (False, True):
        values, indices = kernels.sort(x, descending=descending)
        key = -x.astype(np.int64) if descending else x.astype(np.int64)
        want = np.argsort(key, -1, kind="stable")
        assert np.array_equal(indices, want), (shape, descending)
        assert np.array_equal(values, np.take_along_axis(x, want, -1))


def test_nan_and_other_axes():
    x = numbers((40, 3))
    x[7, 1] = np.nan
    values, indices = kernels.sort(x, 0)
    assert np.isnan(values[-1, 1]) and indices[-1, 1] == 7
    assert kernels.argmax(x, 0)[1] == 7
    cube = numbers((4, 3, 2, 5))
    for axis in range(-4, 4):
        assert np.array_equal(kernels.argmax(cube, axis), cube.argmax(axis))
    assert np.isnan(kernels.sort(x, 0, True)[0][0, 1])
    with pytest.raises(tkc.LaunchError, match="32 bits or fewer"):
        kernels.sort(x.astype(np.float64))
    with pytest.raises(tkc.LaunchError, match="no elements"):
        kernels.argmax(np.empty((3, 0), np.float32))


def test_beams():
    x = numbers((2, 4, 5, 33), "bfloat16")
    parents = np.array([[3, 0, 0], [1, 1, 4]])
    got = kernels.beam_gather(x, parents)
    assert np.array_equal(got[0], x[0, [3, 0, 0]])
    assert np.array_equal(got[1, :2], x[1, [1, 1]]) and not got[1, 2].any()
    with pytest.raises(tkc.LaunchError, match="new beams"):
        kernels.beam_gather(x, parents[0])


def test_on_gpus():
    bf16 = numbers((), "bfloat16").dtype
    x = np.empty((64, 128256), bf16)

    def calls():
        kernels.sample(x, 1, 0.7, 50, 0.9)
        kernels.argmax(x)
        kernels.sort(np.empty((8, 5000), np.float32))
        kernels.beam_gather(np.empty((4, 8, 4096), bf16), np.empty((4, 8), np.int64))

    assembles(calls)


def test_gradients_of_torch():
    torch = pytest.importorskip("torch")
    from tests.kernels.test_torch import same_gradients, tensors

    same_gradients(lambda x: kernels.sort(x)[0], lambda x: x.sort().values, tensors((3, 31)))
