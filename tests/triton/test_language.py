"""What the language's functions and statements mean, each beside a table of what they give."""

import ml_dtypes
import numpy as np
import pytest

import tkc.triton as triton
import tkc.triton.language as tl
from tkc.errors import CompileError
from tkc.triton.language import types

N = 16
DTYPES = {
    "int1": np.bool_,
    **{f"{u}int{n}": np.dtype(f"{u}int{n}") for u in ("", "u") for n in (8, 16, 32, 64)},
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "fp64": np.float64,
}


@triton.jit
def unary(x, out, F: tl.constexpr, D: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    found = F(tl.load(x + at))
    tl.static_assert(found.dtype == D, "another type")
    tl.store(out + at, found)


@triton.jit
def binary(x, y, out, F: tl.constexpr, D: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    found = F(tl.load(x + at), tl.load(y + at))
    tl.static_assert(found.dtype == D, "another type")
    tl.store(out + at, found)


def numbers(values, dtype):
    found = np.zeros(N, DTYPES[dtype])
    found[: len(values)] = np.asarray(values).astype(DTYPES[dtype])
    return found


def run(kernel, function, arguments, result):
    """What a function gives of arguments, each a pair of a type and values."""
    arrays = [numbers(values, dtype) for dtype, values in arguments]
    out = np.zeros(N, DTYPES[result])
    kernel[(1,)](*arrays, out, F=function, D=types.dtype(result), N=N)
    return out[: len(arguments[0][1])]


# ---- promotion
@triton.jit
def add(x, y):
    return x + y


@triton.jit
def multiply(x, y):
    return x * y


@triton.jit
def divide(x, y):
    return x / y


@pytest.mark.parametrize(
    "a, b, function, result",
    [
        ("int8", "int32", add, "int32"),
        ("int32", "uint32", add, "uint32"),
        ("int64", "uint32", add, "int64"),
        ("uint8", "int8", add, "uint8"),
        ("fp16", "fp32", multiply, "fp32"),
        ("bf16", "fp32", multiply, "fp32"),
        ("fp16", "bf16", multiply, "fp16"),
        ("bf16", "bf16", multiply, "bf16"),
        ("bf16", "bf16", divide, "fp32"),
        ("fp16", "fp16", divide, "fp32"),
        ("fp32", "fp64", add, "fp64"),
        ("int32", "fp16", add, "fp16"),
        ("int32", "bf16", add, "fp32"),
        ("int1", "int8", add, "int8"),
        ("int32", "int32", divide, "fp32"),
    ],
)
def test_promotion(a, b, function, result):
    found = run(binary, function, [(a, [1, 1]), (b, [1, 1])], result)
    assert (found == (1 if function is not add else 2)).all()


@triton.jit
def weak(x):
    return x * 0.5


@triton.jit
def assigned(x):
    factor = 0.5
    return x * factor


@triton.jit
def constant(x):
    factor: tl.constexpr = 0.5
    return x * factor


def test_numbers_are_weak_until_they_are_assigned():
    assert (run(unary, weak, [("bf16", [3])], "bf16") == 1.5).all()
    assert (run(unary, constant, [("bf16", [3])], "bf16") == 1.5).all()
    assert (run(unary, assigned, [("bf16", [3])], "fp32") == 1.5).all()


@triton.jit
def negative(x):
    return -x


@triton.jit
def times_one(x):
    return x * 1.0


@triton.jit
def plus_zero(x):
    return x + 0.0


@triton.jit
def counted(x):
    return (x > 1) * 1 + (x > 2) * 1 + ((x > 3) + 0)


def test_a_number_that_changes_nothing_decides_the_type():
    most = 2**31 - 1
    assert run(unary, times_one, [("int32", [most, -7])], "fp32").tolist() == [2.0**31, -7]
    assert run(unary, plus_zero, [("int8", [5, -7])], "fp32").tolist() == [5, -7]
    assert run(unary, counted, [("int32", [1, 2, 3, 4])], "int32").tolist() == [0, 1, 2, 3]


@triton.jit
def below_a_tenth(x):
    return x < 0.1


@triton.jit
def below_300(x):
    return x < 300


@triton.jit
def positive(x):
    return tl.maximum(x, 0.0) * 60000.0


@triton.jit
def at_most_100(x):
    return tl.minimum(100, x) * 3


def test_comparisons_and_extremes_take_numbers_in_their_own_type():
    """A tenth as float16 is less than a tenth."""
    for dtype in ("fp16", "bf16"):
        tenth = np.float32(np.asarray(0.1, DTYPES[dtype]))
        found = run(unary, below_a_tenth, [(dtype, [0.1, 0.2])], "int1")
        assert found.tolist() == [bool(tenth < np.float32(0.1)), False]
    assert run(unary, below_300, [("uint8", [5, 255])], "int1").tolist() == [True, True]
    assert run(unary, positive, [("fp16", [-1, 2])], "fp32").tolist() == [0, 120000]
    assert run(unary, positive, [("bf16", [-1, 2])], "fp32").tolist() == [0, 120000]
    assert run(unary, at_most_100, [("int8", [90, 120, -9])], "int32").tolist() == [270, 300, -27]
    assert run(binary, maximum, [("bf16", [1, 4]), ("bf16", [2, 3])], "fp32").tolist() == [2, 4]


def test_the_negative_of_a_zero_has_the_other_sign():
    found = run(unary, negative, [("fp32", [0.0, -0.0, 2.0])], "fp32")
    assert np.signbit(found).tolist() == [True, False, True]


# ---- integers
@triton.jit
def quotient(x, y):
    return x // y


@triton.jit
def remainder(x, y):
    return x % y


def test_division_truncates():
    x, y = [7, -7, 7, -7, 0, 6], [2, 2, -2, -2, 5, -3]
    pairs = [("int32", x), ("int32", y)]
    assert run(binary, quotient, pairs, "int32").tolist() == [3, -3, -3, 3, 0, -2]
    assert run(binary, remainder, pairs, "int32").tolist() == [1, -1, 1, -1, 0, 0]
    found = run(binary, remainder, [("fp32", [5.5, -5.5, -0.25]), ("fp32", [2, 2, 1])], "fp32")
    assert found.tolist() == [1.5, -1.5, -0.25]


@triton.jit
def shifted(x):
    return (x >> 1) ^ (x << 2)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "uint8"])
def test_shifts_know_their_sign(dtype):
    x = numbers([-8 if dtype.startswith("int") else 248, 5], dtype)
    found = run(unary, shifted, [(dtype, x[:2])], dtype)
    with np.errstate(over="ignore"):
        assert (found == ((x >> x.dtype.type(1)) ^ (x << x.dtype.type(2)))[:2]).all()


@triton.jit
def shifted_by(x, y):
    return x >> y


def test_a_shift_has_the_sign_of_its_left_operand():
    found = run(binary, shifted_by, [("int16", [-8, 8]), ("uint32", [1, 1])], "uint32")
    assert found.view(np.int32).tolist() == [-4, 4]
    found = run(binary, shifted_by, [("uint8", [248, 8]), ("int32", [1, 2])], "int32")
    assert found.tolist() == [124, 2]


@triton.jit
def upper(x, y):
    return tl.umulhi(x, y)


def test_umulhi():
    x, y = [0xFFFFFFFF, 0x12345678], [0xFFFFFFFF, 0x9ABCDEF0]
    found = run(binary, upper, [("uint32", x), ("uint32", y)], "uint32")
    assert found.tolist() == [a * b >> 32 for a, b in zip(x, y, strict=True)]


# ---- NaN
@triton.jit
def maximum(x, y):
    return tl.maximum(x, y)


@triton.jit
def maximum_all(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def clamped(x, y):
    return tl.clamp(x, -1.0, y)


def test_extremes_drop_nan_unless_told_otherwise():
    nan = float("nan")
    pairs = [("fp32", [nan, 1, 2, nan]), ("fp32", [3, nan, 1, nan])]
    np.testing.assert_array_equal(run(binary, maximum, pairs, "fp32"), [3, 1, 2, nan])
    np.testing.assert_array_equal(run(binary, maximum_all, pairs, "fp32"), [nan, nan, 2, nan])
    found = run(binary, clamped, [("fp32", [-5, 0.5, 9]), ("fp32", [2, 2, 2])], "fp32")
    assert found.tolist() == [-1, 0.5, 2]


@triton.jit
def reduced(x, out, KIND: tl.constexpr, D: tl.constexpr, N: tl.constexpr):
    values = tl.load(x + tl.arange(0, N))
    if KIND == "max":
        found = tl.max(values)
    elif KIND == "min":
        found = tl.min(values, axis=0)
    elif KIND == "sum":
        found = tl.sum(values)
    elif KIND == "sum_as":
        found = tl.sum(values, dtype=D)
    elif KIND == "xor_sum":
        found = tl.xor_sum(values)
    elif KIND == "argmax":
        found = tl.argmax(values, axis=0)
    else:
        found = tl.argmin(values, axis=0)
    tl.static_assert(found.dtype == D, "another type")
    tl.store(out, found)


@pytest.mark.parametrize(
    "kind, dtype, result, values, expected",
    [
        ("max", "fp32", "fp32", [1, float("nan"), 3], 3),
        ("max", "fp16", "fp32", [1, 5, 3], 5),
        ("max", "int8", "int32", [1, -5, 3], 3),
        ("min", "bf16", "fp32", [1, -5, 3], -5),
        ("min", "int64", "int64", [1, -5, 3], -5),
        ("sum", "int8", "int32", [100, 100, 100], 300),
        ("sum", "uint8", "uint32", [200, 200], 400),
        ("sum", "fp16", "fp16", [1, 2, 3], 6),
        ("sum", "int1", "uint32", [1, 1, 0, 1], 3),
        ("xor_sum", "int32", "int32", [5, 3, 6], 0),
        ("sum_as", "int1", "int1", [1, 1, 0, 1], 1),
        ("argmax", "fp32", "int32", [1, 7, 7], 1),
        ("argmax", "fp32", "int32", [float("nan"), 6, 8], 2),
        ("argmin", "fp32", "int32", [5, float("nan"), -0.0, 0.0] + [1] * 12, 2),
        ("argmax", "bf16", "int32", [float("nan")] + [-float("inf")] * 15, 1),
        ("argmin", "fp64", "int32", [3, -1e300, -(2.0**1000), float("nan")], 2),
        ("argmin", "int32", "int32", [1, -7, 3], 1),
    ],
)
def test_reductions(kind, dtype, result, values, expected):
    out = np.zeros(1, DTYPES[result])
    reduced[(1,)](numbers(values, dtype), out, KIND=kind, D=types.dtype(result), N=N)
    assert out[0] == expected


# ---- casts
@triton.jit
def to_int(x):
    return x.to(tl.int32)


@triton.jit
def to_truth(x):
    return x.to(tl.int1)


@triton.jit
def by_method(x):
    return x.cast(tl.int32).cdiv(2)


@triton.jit
def towards_zero(x):
    return x.to(tl.bfloat16, fp_downcast_rounding="rtz")


@triton.jit
def to_nearest(x):
    return tl.cast(x, tl.bfloat16, fp_downcast_rounding="rtne")


@triton.jit
def to_its_own(x):
    return x.to(tl.float32, fp_downcast_rounding="rtne")


@triton.jit
def widened_by_rounding(x):
    return x.to(tl.float64, fp_downcast_rounding="rtne")


@triton.jit
def bits(x):
    return x.to(tl.int32, bitcast=True)


def test_casts():
    assert run(unary, to_int, [("fp32", [2.9, -2.9, 0.5])], "int32").tolist() == [2, -2, 0]
    assert run(unary, to_truth, [("fp32", [0.25, 0, -3])], "int1").tolist() == [True, False, True]
    assert run(unary, by_method, [("fp32", [3.5, 4.0])], "int32").tolist() == [2, 2]
    found = run(unary, towards_zero, [("fp32", [1.0078124, -1.0078124])], "bf16")
    assert found.astype(np.float32).tolist() == [1.0, -1.0]
    found = run(unary, to_nearest, [("fp32", [1.0078124, -1.00390625, 1.01171875])], "bf16")
    assert found.astype(np.float32).tolist() == [1.0078125, -1.0, 1.015625]
    assert run(unary, to_its_own, [("fp32", [1.0078124])], "fp32") == np.float32(1.0078124)
    with pytest.raises(CompileError, match="casts to a narrower floating type, got fp32 to fp64"):
        run(unary, widened_by_rounding, [("fp32", [1.0])], "fp64")
    assert run(unary, bits, [("fp32", [1.0])], "int32").tolist() == [0x3F800000]


@triton.jit
def stored(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at))


def test_stores_cast_to_what_is_there():
    x, out = numbers([1.75, -2.5, 0], "fp32"), np.zeros(N, np.int16)
    stored[(1,)](x, out, N=N)
    assert out[:3].tolist() == [1, -2, 0]


# ---- statements
@triton.jit
def loops(out, n, STEPS: tl.constexpr):
    total = 0
    for i in range(STEPS):
        total += i
    for i in tl.static_range(3):
        total += i * 100
    k = n
    while k > 0:
        total += 10000
        k -= 1
    for _ in range(n, 0, -1):
        total += 1000000
    tl.store(out, total)


def test_loops():
    out = np.zeros(1, np.int32)
    launched = loops[(1,)](out, 3, STEPS=5)
    assert out[0] == 3030310
    assert launched.asm["ttir"].count("scf.for") == 2  # range(STEPS) is a loop, static_range none


@triton.jit
def pick(x):
    if x > 2:
        return x * 10
    return x + 1


@triton.jit
def returns(out, n):
    if n == 7:
        return
    a = pick(n)
    b = a if n > 1 else -a
    if n > 3 and a < 100 or n == 0:
        b += 5
    tl.store(out, b)
    tl.store(out + 1, not (n > 3))


@pytest.mark.parametrize(
    "n, expected", [(7, [0, 0]), (4, [45, 0]), (2, [3, 1]), (1, [-2, 1]), (0, [4, 1])]
)
def test_early_returns_conditions_and_truth(n, expected):
    out = np.zeros(2, np.int32)
    returns[(1,)](out, n)
    assert out.tolist() == expected


@triton.jit
def leaves(out, a, b, MODE: tl.constexpr):
    value = 1
    if MODE == "nested":
        if a > 0:
            if b > 0:
                value = 2
            else:
                tl.store(out + 1, 5)
                return
        else:
            if b > 0:
                return
            value = 3
    tl.store(out, value)


@pytest.mark.parametrize(
    "a, b, mode, expected",
    [
        (2, 2, "nested", [2, 0]),
        (2, -2, "nested", [0, 5]),
        (-2, 2, "nested", [0, 0]),
        (-2, -2, "nested", [3, 0]),
        (2, -2, "flat", [1, 0]),
    ],
)
def test_returns_in_nested_branches(a, b, mode, expected):
    out = np.zeros(2, np.int32)
    leaves[(1,)](out, a, b, MODE=mode)
    assert out.tolist() == expected


@triton.jit
def half_returned(n):
    if n > 2:
        return n


@triton.jit
def some_ways(out, n):
    tl.store(out, half_returned(n))


def test_a_value_on_some_ways_is_refused():
    with pytest.raises(CompileError, match="some ways"):
        some_ways[(1,)](np.zeros(1, np.int32), 7)


@triton.jit
def masks(x, out, n, N: tl.constexpr):
    at = tl.arange(0, N)
    inside = (at < n) and (at > 1)
    outside = not inside
    tl.store(out + at, tl.where(inside or (at == 0), tl.load(x + at, mask=outside, other=7), -1))


def test_and_or_not_are_element_wise_on_blocks():
    x, out = np.arange(N, dtype=np.int32), np.zeros(N, np.int32)
    masks[(1,)](x, out, 5, N=N)
    at = np.arange(N)
    inside = (at < 5) & (at > 1)
    assert (out == np.where(inside | (at == 0), np.where(~inside, x, 7), -1)).all()


@triton.jit
def swap(pair):
    a, b = pair
    return b, a


@triton.jit
def tuples(pointers, numbers, out):
    x, y = swap((tl.load(pointers[0]), tl.load(pointers[1])))
    tl.store(out, x * 10 + y)
    tl.store(out + 1, numbers[0] + numbers[1][0])
    tl.store(out + 2, len(numbers))


def test_tuples():
    out = np.zeros(3, np.int32)
    a, b = np.array([3], np.int32), np.array([4], np.int32)
    tuples[(1,)]((a, b), (5, (6, None)), out)
    assert out.tolist() == [43, 11, 2]


FACTOR = tl.constexpr(3)


@triton.jit
def constants(out, A: tl.constexpr, NONE, T: tl.constexpr):
    tl.static_assert(A == 4 and NONE is None)
    B: tl.constexpr = A * 2 if A > 2 else 1
    block = tl.zeros((B,), dtype=T) + FACTOR.value * FACTOR
    tl.static_assert(block.shape[0] == 8)
    tl.static_assert(block.dtype == tl.float16)
    tl.store(out + tl.arange(0, B), block)


def test_constants():
    out = np.zeros(8, np.float16)
    constants[(1,)](out, 4, None, tl.float16)
    assert (out == 9).all()


@triton.jit
def specialised(out, n, m):
    tl.static_assert(isinstance(n, tl.constexpr))
    tl.static_assert(not isinstance(m, tl.constexpr))
    tl.store(out, n + m)


def test_one_is_a_constant_unless_told_otherwise():
    out = np.zeros(1, np.int32)
    triton.jit(specialised.fn, do_not_specialize=["m"])[(1,)](out, 1, 1)
    assert out[0] == 2


@triton.jit
def declared(out, shape: tl.constexpr, block):
    rows: tl.constexpr
    columns: tl.constexpr
    rows, columns = shape
    tl.static_assert(block[1].type == tl.constexpr_type(8))
    filled = tl.full((rows, columns), 3, tl.int32).reshape(block[1])
    tl.store(out + tl.arange(0, block[1]), filled)


def test_declared_constants_and_constants_in_tuples():
    out = np.zeros(8, np.int32)
    declared[(1,)](out, shape=(2, 4), block=(5, tl.constexpr(8)))
    assert (out == 3).all()


# ---- blocks
@triton.jit
def rows_of_a_descriptor(x, at, out, PADDING: tl.constexpr):
    rows = tl.make_tensor_descriptor(x, [10, 20], [20, 1], [1, 16], padding_option=PADDING)
    found = rows.gather(tl.load(at + tl.arange(0, 8)), 12)
    tl.store(out + tl.arange(0, 8)[:, None] * 16 + tl.arange(0, 16)[None, :], found)


@pytest.mark.parametrize("padding, outside", [("zero", 0), ("nan", float("nan"))])
def test_rows_outside_of_a_descriptor_are_padded_as_it_says(padding, outside):
    x = np.arange(200, dtype=np.float32).reshape(10, 20)
    at = np.array([3, -1, 9, 10, 0, 5, 100, 2], np.int32)
    out, want = np.zeros((8, 16), np.float32), np.full((8, 16), outside, np.float32)
    rows_of_a_descriptor[(1,)](x, at, out, PADDING=padding)
    inside = (at >= 0) & (at < 10)
    want[inside, :8] = x[at[inside], 12:]
    np.testing.assert_array_equal(out, want)


@triton.jit
def shapes(out):
    x = tl.arange(0, 8).reshape(2, 4)
    a, b = tl.split(tl.join(x, x + 100))
    y = tl.interleave(a, b)
    z = tl.trans(y)[None, :, :].broadcast_to(2, 8, 2)
    w = tl.sum(z, axis=0) // 2
    tl.store(out + tl.arange(0, 16).reshape(8, 2), tl.flip(w, 0))


def test_shapes():
    out = np.zeros((8, 2), np.int32)
    shapes[(1,)](out)
    x = np.arange(8).reshape(2, 4)
    y = np.stack([x, x + 100], -1).reshape(2, 8)
    assert (out == y.T[::-1]).all()


@triton.jit
def orders(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    values = tl.load(x + at)
    tl.store(out + at, tl.sort(values))
    tl.store(out + N + at, tl.cumsum(values, axis=0, reverse=True))
    tl.store(out + 2 * N + tl.arange(0, 4), tl.topk(values, 4))
    tl.store(out + 3 * N + at, tl.gather(values, (at + 1) % N, axis=0))
    tl.store(out + 4 * N + tl.arange(0, 4), tl.histogram(values & 3, 4))
    tl.store(out + 5 * N + tl.arange(0, 4), tl.topk(values, 4, descending=False))
    tl.store(out + 6 * N + tl.arange(0, 4), tl.topk(-values.to(tl.float32), 4, descending=False))


def test_orders():
    x = np.random.default_rng(1).integers(0, 100, N).astype(np.int32)
    out = np.zeros((7, N), np.int32)
    orders[(1,)](x, out, N=N)
    assert (out[0] == np.sort(x)).all() and (out[1] == x[::-1].cumsum()[::-1]).all()
    assert (out[2, :4] == np.sort(x)[::-1][:4]).all() and (out[3] == np.roll(x, -1)).all()
    assert (out[4, :4] == np.bincount(x & 3, minlength=4)).all()
    assert (out[5, :4] == np.sort(x)[:4]).all() and (out[6, :4] == np.sort(-x)[:4]).all()


@triton.jit
def largest_four(x):
    return tl.sum(tl.topk(x, 4))


@triton.jit
def largest_of_all(x):
    return tl.sum(tl.topk(x, 16))


def test_some_of_the_largest_have_the_type_of_an_extreme():
    values = [2048.0, 1.0, 1.0, 1.0] + [0.0] * 12
    assert (run(unary, largest_four, [("fp16", values)], "fp32") == 2051).all()
    assert (run(unary, largest_four, [("uint8", [200, 200, 3])], "int32") == 403).all()
    assert (run(unary, largest_of_all, [("fp16", values)], "fp16") == np.float16(2051)).all()


@triton.jit
def pair_max(a, i, b, j):
    better = (b > a) or ((b == a) and (j < i))
    return tl.where(better, b, a), tl.where(better, j, i)


@triton.jit
def combined(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    values = tl.load(x + at)
    best, place = tl.reduce((values, at), 0, pair_max)
    tl.store(out, best)
    tl.store(out + 1, place)
    tl.store(out + 2 + at, tl.associative_scan(values, 0, maximum))


def test_functions_of_the_user_reduce_and_scan():
    x = np.random.default_rng(2).integers(0, 20, N).astype(np.int32)
    out = np.zeros(2 + N, np.int32)
    combined[(1,)](x, out, N=N)
    assert out[:2].tolist() == [x.max(), x.argmax()]
    assert (out[2:] == np.maximum.accumulate(x)).all()


# ---- random numbers
@triton.jit
def uniform(out, bits_out, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(bits_out + at, tl.randint(seed, at))
    tl.store(out + at, tl.rand(seed, at))


def philox(seed, offset):
    """Philox 4x32-10 of Salmon et al., in Python's integers."""
    c, k = [offset, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        products = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            products[1] >> 32 ^ c[1] ^ k[0],
            products[1] & 0xFFFFFFFF,
            products[0] >> 32 ^ c[3] ^ k[1],
            products[0] & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0]


def test_random_numbers_are_philox_and_tritons_floats():
    out, bits_out = np.zeros(N, np.float32), np.zeros(N, np.uint32)
    uniform[(1,)](out, bits_out, 0x123456789, N=N)
    assert bits_out.tolist() == [philox(0x123456789, i) for i in range(N)]
    signed = bits_out.view(np.int32)
    folded = np.where(signed < 0, -signed.astype(np.int64) - 1, signed).astype(np.float32)
    assert (out == folded * np.float32(4.6566127342e-10)).all()


# ---- refusals
@triton.jit
def indexed(out):
    tl.store(out, tl.arange(0, 4)[0])


@triton.jit
def unknown(out):
    tl.store(out, tl.hypercube(3))


@triton.jit
def mixed(out):
    tl.store(out, tl.arange(0, 4).to(tl.uint32) // tl.arange(1, 5))


@triton.jit
def bits_of_a_float(out):
    tl.store(out, tl.arange(0, 4) & 1.5)


@pytest.mark.parametrize(
    "kernel, words",
    [(indexed, "unsupported tensor index"), (unknown, "no `hypercube`"), (mixed, "sign")]
    + [(bits_of_a_float, "invalid operands of type int32 and 1.5")],
)
def test_what_is_not_there_is_refused_by_name(kernel, words):
    with pytest.raises(CompileError, match=words) as caught:
        kernel[(1,)](np.zeros(4, np.int32))
    assert "tl.store" in str(caught.value)  # the user's line


# ---- PTX in kernels
@triton.jit
def funnel(x, y):
    return tl.inline_asm_elementwise(
        "shf.l.wrap.b32 $0, $1, $2, 7;", "=r,r,r", [x, y], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def packed_bytes(x):
    return tl.inline_asm_elementwise(
        "{ .reg .b32 t; and.b32 t, $1, 0x1F1F1F1F; shl.b32 $0, t, 3; }",
        "=r,r",
        [x],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )


@triton.jit
def selected(x):
    return tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.f32 p, $1, 0f3F800000; @p mov.b32 $0, 5; @!p mov.b32 $0, 6; }",
        "=r,r",
        [x],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def tanh_of_pairs(x):
    return tl.inline_asm_elementwise(
        "tanh.approx.f16x2 $0, $1;", "=r,r", [x], dtype=tl.float16, is_pure=True, pack=2
    )


@triton.jit
def power_of_pairs(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.bf16x2 $0, $1;", "=r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
    )


@triton.jit
def fused_pairs(x):
    return tl.inline_asm_elementwise(
        "fma.rn.relu.f16x2 $0, $1, $1, $1;", "=r,r", [x], dtype=tl.float16, is_pure=True, pack=2
    )


SOFTPLUS = tl.constexpr(
    " ".join(
        f"{{ .reg .pred p; setp.gt.f32 p, ${i}, 20.; @p mov.f32 ${o}, ${i};"
        f" @!p mul.f32 ${o}, ${i}, 1.4426950408889634; @!p ex2.approx.ftz.f32 ${o}, ${o};"
        f" @!p add.f32 ${o}, ${o}, 1.0; @!p lg2.approx.ftz.f32 ${o}, ${o};"
        f" @!p mul.f32 ${o}, ${o}, 0.6931471805599453; }}"
        for o, i in ((0, 2), (1, 3))
    )
)


@triton.jit
def softplus(x):
    return tl.inline_asm_elementwise(
        SOFTPLUS, "=r,=r,r,r", [x], dtype=tl.float32, is_pure=True, pack=2
    )


def test_packed_ptx_has_a_meaning_on_the_cpu():
    x = np.linspace(-3, 3, N)
    for function, expected, t, eps in [
        (tanh_of_pairs, np.tanh, "fp16", 2**-10),
        (power_of_pairs, np.exp2, "bf16", 2**-7),
        (fused_pairs, lambda x: np.maximum(x * x + x, 0), "fp16", 2**-10),
        (softplus, lambda x: np.log1p(np.exp(x)), "fp32", 2**-20),
    ]:
        given = x.astype(DTYPES[t]).astype(np.float64)
        found = run(unary, function, [(t, x)], t).astype(np.float64)
        np.testing.assert_allclose(found, expected(given), rtol=eps, atol=eps / 64)
    assert run(unary, softplus, [("fp32", [40.0])], "fp32").tolist() == [40.0]


def test_ptx_runs_on_the_cpu():
    x, y = [1, -5, 1 << 30], [7, 123456, -1]
    found = run(binary, funnel, [("int32", x), ("int32", y)], "int32")
    expected = [
        ((b & 0xFFFFFFFF) << 7 | (a & 0xFFFFFFFF) >> 25) & 0xFFFFFFFF
        for a, b in zip(x, y, strict=True)
    ]
    assert found.view(np.uint32).tolist() == expected
    assert run(unary, packed_bytes, [("uint8", [255, 3, 77])], "uint8").tolist() == [248, 24, 104]
    assert run(unary, selected, [("fp32", [0.5, 2.0])], "int32").tolist() == [6, 5]


# ---- conditions
@triton.jit
def joined_with_known(out, n, KNOWN: tl.constexpr):
    found = 0
    if n > 3 and KNOWN:
        found += 1
    if n > 3 or KNOWN:
        found += 2
    if KNOWN and n > 3:
        found += 4
    if KNOWN or n > 3:
        found += 8
    if n > 3 and n < 9 and KNOWN:
        found += 16
    both = n > 3 and KNOWN
    if not both:
        found += 32
    tl.store(out, found)


@pytest.mark.parametrize("known", [False, True, 0, 2, None])
@pytest.mark.parametrize("n", [2, 5])
def test_conditions_joined_with_what_is_known(n, known):
    out = np.zeros(1, np.int32)
    joined_with_known[(1,)](out, n, known)
    both, one = n > 3 and bool(known), n > 3 or bool(known)
    assert out[0] == 21 * both + 10 * one + 32 * (not both)
