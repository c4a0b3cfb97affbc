"""Operators, promotion, shapes, reductions and the rest of the functions, in the simulator against
NumPy.
"""

import operator

import ml_dtypes
import numpy as np
import pytest

import tkc
from tests.language.kernels import array, i32, traced
from tkc.language.dtypes import BY_NAME, BY_NUMPY
from tkc.sim.level0 import run

R = np.random.default_rng(1)


def evaluate(function, *inputs):
    """function(*tiles) of whole arrays, as NumPy arrays (a list of them for a tuple)."""
    shapes = []

    def probe(*arrays):
        got = function(*(tkc.load(a, (0,) * a.ndim, a.shape[:]) for a in arrays))
        for g in got if isinstance(got, tuple) else (got,):
            shapes.append((g.shape, g.dtype))

    arguments = [
        array(BY_NUMPY[x.dtype], x.ndim, shape=x.shape, strides=(None,) * x.ndim) for x in inputs
    ]
    _trace_many(probe, arguments)
    results = [np.zeros(s or (1,), d.numpy) for s, d in shapes]

    def write(*arrays):
        got = function(*(tkc.load(a, (0,) * a.ndim, a.shape[:]) for a in arrays[: len(inputs)]))
        for o, g in zip(
            arrays[len(inputs) :], got if isinstance(got, tuple) else (got,), strict=False
        ):
            tkc.store(o, (0,) * o.ndim, g)

    module = _trace_many(write, arguments + [array(BY_NUMPY[r.dtype], r.ndim) for r in results])
    run(module, [*inputs, *results], (1, 1, 1))
    results = [r if s else r[0] for r, (s, _) in zip(results, shapes, strict=False)]
    return results if isinstance(results, list) and len(results) > 1 else results[0]


def _trace_many(f, arguments):
    """Traces f(*arguments), whose number is not fixed."""
    names = ", ".join(f"a{k}" for k in range(len(arguments)))
    scope = {"f": f}
    exec(f"def kernel({names}): f({names})", scope)
    return traced(scope["kernel"], *arguments)


def same(got, want):
    assert got.dtype == np.asarray(want).dtype, (got.dtype, np.asarray(want).dtype)
    np.testing.assert_array_equal(got, want)


def near(got, want):
    np.testing.assert_allclose(
        np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=2e-6, atol=1e-6
    )


# --------------------------------------------------------------------------------------------------
TABLE = """
bool_ bool_ int32 | bool_ int8 int8 | bool_ float16 float16
int8 int8 int8 | int8 int16 int16 | int8 uint8 int16
uint8 int32 int32 | uint32 int32 int64
uint8 uint16 uint16 | int32 int64 int64 | int64 float16 float16
int32 float32 float32 | float16 float16 float16 | float16 bfloat16 float32
float16 float32 float32 | bfloat16 float32 float32 | float32 float64 float64
float8_e4m3 float8_e5m2 float32 | float8_e4m3 bfloat16 bfloat16
"""


def result_type(f) -> str:
    found = []

    def kernel():
        found.append(f().dtype.name)

    traced(kernel)
    return found[0]


@pytest.mark.parametrize(
    "row", [r.split() for line in TABLE.strip().splitlines() for r in line.split("|")], ids=" ".join
)
def test_promotion_of_two_tiles(row):
    a, b, want = row

    def tile(n):
        return tkc.zeros((4,), BY_NAME[n])

    assert result_type(lambda: tile(a) + tile(b)) == want == result_type(lambda: tile(b) * tile(a))


@pytest.mark.parametrize(
    "dtype, number, want",
    [
        ("int8", 1, "int8"),
        ("int8", 1.0, "float32"),
        ("bool_", True, "int32"),
        ("bool_", 2, "int32"),
        ("bool_", 0.5, "float32"),
        ("float16", 2, "float16"),
        ("bfloat16", 0.5, "bfloat16"),
        ("float64", 1.5, "float64"),
        ("uint8", True, "uint8"),
    ],
)
def test_python_numbers_are_weak(dtype, number, want):
    def tile():
        return tkc.zeros((4,), BY_NAME[dtype])

    assert result_type(lambda: tile() + number) == want == result_type(lambda: number * tile())


def test_a_tile_has_the_last_word_over_a_floating_scalar():
    half, scalar = lambda: tkc.zeros((4,), tkc.float16), lambda: tkc.sum(tkc.zeros((4,)))
    assert result_type(lambda: half() * scalar()) == "float16"
    assert result_type(lambda: tkc.arange(4) * scalar()) == "float32"
    assert result_type(lambda: tkc.arange(4).to(tkc.int8) + tkc.program_id(0)) == "int32"


def test_division_and_comparison():
    assert result_type(lambda: tkc.arange(4) / 2) == "float32"
    assert result_type(lambda: tkc.zeros((4,), tkc.float16) / 2) == "float16"
    assert result_type(lambda: tkc.arange(4) < 2) == "bool_"
    assert result_type(lambda: (tkc.arange(4) < 2) & True) == "bool_"


def test_a_number_that_does_not_fit():
    with pytest.raises(tkc.CompileError, match="300 does not fit uint8"):
        result_type(lambda: tkc.zeros((4,), tkc.uint8) + 300)
    with pytest.raises(tkc.CompileError, match="int64 and uint64"):
        result_type(lambda: tkc.zeros((4,), tkc.uint64) + tkc.zeros((4,), tkc.int64))


def test_divmod():
    x = np.array([7, -7, 5, -5], np.int32)
    for i, want in enumerate(np.divmod(x, 3)):
        same(evaluate(lambda a, i=i: divmod(a, 3)[i], x), want)
    for i, want in enumerate(np.divmod(17, x)):
        same(evaluate(lambda a, i=i: divmod(17, a)[i], x), want)


def test_numbers_are_folded():
    def kernel(out, n):
        assert n * 1 is n and n + 0 is n and 0 + n is n and n // 1 is n
        assert (
            tkc.cdiv(7, 2) == 4
            and tkc.maximum(2, 3) == 3
            and tkc.where(True, 1, 2) == 1
            and tkc.exp2(3.0) == 8.0
        )

    module = traced(kernel, array(tkc.int32), i32())
    assert len(list(module.body.block.first_op.body.block.ops)) == 1


# --------------------------------------------------------------------------------------------------
INTS = R.integers(-20, 20, (3, 5)).astype(np.int32)
OTHER = R.integers(1, 9, (5,)).astype(np.int32)
FLOATS = R.standard_normal((3, 5)).astype(np.float32)


@pytest.mark.parametrize(
    "op",
    [
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.and_,
        operator.or_,
        operator.xor,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
        operator.eq,
        operator.ne,
    ],
    ids=lambda o: o.__name__,
)
def test_integer_operators(op):
    same(evaluate(op, INTS, OTHER), op(INTS, OTHER))
    same(evaluate(lambda a: op(a, 3), INTS), op(INTS, np.int32(3)))
    same(evaluate(lambda a: op(7, a), OTHER), op(np.int32(7), OTHER))


def test_shifts_and_unary():
    same(evaluate(lambda a: a << 2, INTS), INTS << 2)
    same(evaluate(lambda a: a >> 1, INTS), INTS >> 1)
    wide = np.arange(28, 42, dtype=np.int64)
    same(evaluate(lambda a: 1 << a, wide), 1 << wide)
    same(
        evaluate(lambda a: 1 << a, wide[:4].astype(np.uint32)),
        np.uint32(1) << wide[:4].astype(np.uint32),
    )
    same(evaluate(lambda a: 1 << a, np.int8([0, 7, 8, 20])), np.int32([1, 128, 256, 1 << 20]))
    same(evaluate(lambda a: -a, INTS), -INTS)
    same(evaluate(lambda a: ~a, INTS), ~INTS)
    same(evaluate(abs, INTS), abs(INTS))
    same(evaluate(lambda a: ~(a > 0), INTS), ~(INTS > 0))
    near(evaluate(lambda a: a**3, FLOATS), FLOATS**3)
    near(evaluate(lambda a: a / 3, INTS), INTS / 3)


def test_casts():
    same(evaluate(lambda a: a.to(tkc.int32), FLOATS * 10), (FLOATS * 10).astype(np.int32))
    same(evaluate(lambda a: a.to(tkc.bfloat16), FLOATS), FLOATS.astype(ml_dtypes.bfloat16))
    same(evaluate(lambda a: a.to(tkc.int32, bitcast=True), FLOATS), FLOATS.view(np.int32))
    same(evaluate(lambda a: a.to(tkc.bool_), INTS), INTS != 0)


def test_shapes():
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    same(evaluate(lambda a: a.T, x), x.swapaxes(-1, -2))
    same(evaluate(lambda a: a.permute(2, 0, 1), x), x.transpose(2, 0, 1))
    same(evaluate(lambda a: a.reshape(6, -1), x), x.reshape(6, 4))
    same(evaluate(lambda a: a[:, None, 1:, ::2], x), x[:, None, 1:, ::2])
    same(evaluate(lambda a: a[1, -1, 2], x), x[1, -1, 2])
    same(evaluate(lambda a: a[1], x), x[1])
    same(evaluate(lambda a: a[..., 0], x), x[..., 0])
    same(evaluate(lambda a: tkc.flip(a, 1), x), x[:, ::-1])
    same(evaluate(lambda a: tkc.cat(a, a + 1, axis=1), x), np.concatenate([x, x + 1], 1))
    same(evaluate(lambda a: tkc.join(a, -a), x), np.stack([x, -x], -1))
    same(evaluate(lambda a: tkc.interleave(a, -a), x), np.stack([x, -x], -1).reshape(2, 3, 8))
    same(
        evaluate(lambda a: tkc.broadcast_to(a[:, None], 5, 2, 7, 3, 4), x),
        np.broadcast_to(x[:, None], (5, 2, 7, 3, 4)),
    )
    for got, want in zip(
        evaluate(lambda a: tkc.split(a.reshape(3, 4, 2)), x),
        (x.reshape(3, 4, 2)[..., 0], x.reshape(3, 4, 2)[..., 1]),
        strict=False,
    ):
        same(got, want)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_reductions(shape, axis):
    x, y = R.integers(-9, 9, shape).astype(np.int32), R.standard_normal(shape).astype(np.float32)
    same(evaluate(lambda a: tkc.max(a, axis), x), x.max(axis))
    same(evaluate(lambda a: tkc.min(a, axis, keep_dims=True), x), x.min(axis, keepdims=True))
    same(evaluate(lambda a: tkc.sum(a > 0, axis), x), (x > 0).sum(axis).astype(np.int32))
    same(evaluate(lambda a: tkc.argmax(a, axis), x), x.argmax(axis).astype(np.int32))
    same(evaluate(lambda a: tkc.argmin(a, axis), y), y.argmin(axis).astype(np.int32))
    same(evaluate(lambda a: tkc.any(a > 5, axis), x), (x > 5).any(axis))
    same(evaluate(lambda a: tkc.all(a, axis), x), (x != 0).all(axis))
    same(
        evaluate(lambda a: tkc.xor_sum(a, axis), x),
        np.bitwise_xor.reduce(x.reshape(-1) if axis is None else x, axis or 0),
    )
    near(evaluate(lambda a: tkc.sum(a, axis), y), y.sum(axis))
    near(evaluate(lambda a: tkc.prod(a, axis), y), y.prod(axis))


def test_scans_and_combinations():
    x = R.integers(-9, 9, (3, 6)).astype(np.int32)
    same(evaluate(lambda a: tkc.cumsum(a, 1), x), x.cumsum(1).astype(np.int32))
    same(
        evaluate(lambda a: tkc.cumsum(a, 0, reverse=True), x),
        x[::-1].cumsum(0)[::-1].astype(np.int32),
    )
    same(evaluate(lambda a: tkc.cumprod(a, -1), x), x.cumprod(1).astype(np.int32))
    same(evaluate(lambda a: tkc.reduce(a, 1, lambda u, v: tkc.maximum(u, v)), x), x.max(1))
    same(evaluate(lambda a: tkc.scan(a, 1, tkc.minimum), x), np.minimum.accumulate(x, 1))

    def larger(value, index, other, at):
        if other > value:
            return other, at
        return value, index

    got = evaluate(lambda a: tkc.reduce((a, tkc.broadcast_to(tkc.arange(6), 3, 6)), 1, larger), x)
    same(got[0], x.max(1))
    same(got[1], x.argmax(1).astype(np.int32))


def test_sorting_and_counting():
    x = R.integers(-9, 9, (3, 8)).astype(np.int32)
    same(evaluate(tkc.sort, x), np.sort(x))
    same(evaluate(lambda a: tkc.sort(a, 0, descending=True), x), np.sort(x, 0)[::-1])
    same(evaluate(lambda a: tkc.topk(a, 3), x), np.sort(x)[:, ::-1][:, :3])
    same(
        evaluate(lambda a: tkc.histogram(a, 5, mask=a != 2), x.reshape(-1)),
        np.bincount(x[(x >= 0) & (x < 5) & (x != 2)], minlength=5).astype(np.int32),
    )


@pytest.mark.parametrize("name", ["exp", "exp2", "sin", "cos", "tanh", "expm1"])
def test_functions(name):
    near(evaluate(getattr(tkc, name), FLOATS), getattr(np, name)(FLOATS))


def test_more_functions():
    positive = abs(FLOATS) + np.float32(0.1)
    for name in ("log", "log2", "log1p", "sqrt"):
        near(evaluate(getattr(tkc, name), positive), getattr(np, name)(positive))
    near(evaluate(tkc.rsqrt, positive), 1 / np.sqrt(positive))
    near(evaluate(tkc.sigmoid, FLOATS), 1 / (1 + np.exp(-FLOATS)))
    near(
        evaluate(lambda a: tkc.softmax(a).to(tkc.float32), FLOATS),
        np.exp(FLOATS) / np.exp(FLOATS).sum(1, keepdims=True),
    )
    near(evaluate(lambda a: tkc.fma(a, 2, 1), FLOATS), FLOATS * 2 + 1)
    same(evaluate(tkc.floor, FLOATS), np.floor(FLOATS))
    same(evaluate(tkc.ceil, FLOATS), np.ceil(FLOATS))
    same(
        evaluate(lambda a: tkc.where(a > 0, a, -1), FLOATS),
        np.where(FLOATS > 0, FLOATS, np.float32(-1)),
    )
    same(evaluate(lambda a: tkc.maximum(a, np.float32(0)), FLOATS), np.maximum(FLOATS, 0))


FLOAT_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)
INTEGER_OPERATORS = ("and_", "or_", "xor", "lshift", "rshift")


@pytest.mark.parametrize("zero_dim", [False, True])
@pytest.mark.parametrize("name", [*FLOAT_OPERATORS, *INTEGER_OPERATORS])
def test_operators_with_a_number_of_numpy_on_the_left(name, zero_dim):
    """NumPy's number hands them over, also where it makes an array of itself."""
    right = np.array([1, 2, 3, 5], np.int32 if name in INTEGER_OPERATORS else np.float32)
    left = right.dtype.type(3)
    function = getattr(operator, name)
    given = np.array(left) if zero_dim else left
    near(evaluate(lambda t: function(given, t), right), function(left, right))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
def test_dot(dtype):
    t = BY_NAME[dtype]
    a, b = (R.integers(-4, 4, s).astype(t.numpy) for s in ((3, 5), (5, 2)))
    got = evaluate(lambda x, y: tkc.dot(x, y), a, b)
    near(got, a.astype(np.float64) @ b.astype(np.float64))
    assert got.dtype == {"int8": np.int32, "float64": np.float64}.get(dtype, np.float32)


def test_batched_dot():
    a, b = (
        R.standard_normal((4, 1, 3, 5)).astype(np.float32),
        R.standard_normal((2, 5, 2)).astype(np.float32),
    )
    near(evaluate(lambda x, y: x @ y, a, b), a @ b)


def test_random_numbers():
    offsets = np.arange(4000, dtype=np.int32)
    u, again, normal, bits = (
        evaluate(f, offsets)
        for f in (
            lambda o: tkc.rand(7, o),
            lambda o: tkc.rand(7, o),
            lambda o: tkc.randn(7, o),
            lambda o: tkc.randint(8, o),
        )
    )
    same(u, again)
    assert (
        u.min() >= 0
        and u.max() < 1
        and abs(u.mean() - 0.5) < 0.02
        and abs(normal.mean()) < 0.06
        and abs(normal.std() - 1) < 0.05
        and len(set(bits.tolist())) > 3990
    )


def test_philox_known_answer():
    """Salmon et al.'s kat_vectors: counter and key zero."""
    got = evaluate(lambda o: tkc.philox(0, o), np.zeros(1, np.int32))
    assert [hex(int(g[0])) for g in got] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
