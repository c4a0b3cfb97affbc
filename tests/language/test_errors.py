"""Compile errors: the user's line, a caret, the call chain, expected and got, and one way out."""

import inspect
import math
from pathlib import Path

import numpy as np
import pytest

import tkc
from tests.language.kernels import array, f32, i32, traced
from tkc.language import tracer

ARGUMENTS = {
    "b": array(tkc.uint8),
    "x": array(tkc.float32, 2),
    "v": array(tkc.float32),
    "n": i32(),
    "s": f32(),
}


def error(f) -> tkc.CompileError:
    with pytest.raises(tkc.CompileError) as caught:
        traced(f, **{p: ARGUMENTS[p] for p in inspect.signature(f).parameters})
    return caught.value


def marked(e: tkc.CompileError) -> str:
    """The text over the caret of the innermost place."""
    *_, line, caret = str(e).splitlines()
    return line[caret.index("^") : caret.rindex("^") + 1]


def test_place_and_caret():
    def f(v, n):
        a = tkc.arange(4)
        b = a + tkc.zeros((3,))

    e = error(f)
    assert (
        e.location.file == __file__
        and e.location.line == f.__code__.co_firstlineno + 2
        and e.location.function == "f"
    )
    assert marked(e) == "a + tkc.zeros((3,))" and "[4] and [3]" in e.message


def test_wide_characters():
    def f(n):
        return ("宽", tkc.zeros((2, 3)) @ tkc.zeros((2, 3)))

    e = error(f)
    line, caret = str(e).splitlines()[-2:]
    assert line.index("tkc") == len('    return ("宽", ')
    assert caret.index("^") == len('    return ("宽", ') + 1  # 宽 takes two columns
    assert "3 columns" in e.message and "2 rows" in e.message


def inner(t):
    return t + tkc.zeros((7,))


def outer(t):
    return inner(t * 2)


def test_call_chain():
    def f(n):
        outer(tkc.arange(4))

    e = error(f)
    assert [c.function for c in e.location.calls] == [
        "f",
        "outer",
    ] and e.location.function == "inner"
    text = str(e)
    assert (
        text.index("in f") < text.index("in outer") < text.index("in inner")
        and marked(e) == "t + tkc.zeros((7,))"
    )


def test_place_inside_an_operand_of_and():
    def f(n):
        ok = n > 1 and tkc.arange(4) + tkc.arange(3)

    e = error(f)
    assert (
        marked(e) == "tkc.arange(4) + tkc.arange(3)"
        and e.location.function == "f"
        and not e.location.calls
    )


def shown(e: tkc.CompileError, f) -> None:
    """The place is in this file, inside the function (or what it calls), and its line stands there
    with a caret under an expression.
    """
    assert e.location.file == __file__ and e.location.line >= f.__code__.co_firstlineno
    *_, line, caret = str(e).splitlines()
    assert (
        set(caret.strip()) == {"^"}
        and marked(e).strip()
        and line.strip() in Path(__file__).read_text()
    )
    assert str(e).startswith(f"{__file__}:{e.location.line}:") and e.message.count("\n") == 0


KINDS: list[str] = []
OUTSIDE = np.zeros(4, np.float32)


def wrong(words):
    def put(f):
        KINDS.append(f.__name__)

        def test():
            e = error(f)
            for w in words:
                assert w in e.message, e.message
            shown(e, f)

        test.__name__ = f.__name__
        return test

    return put


@wrong(["numpy.exp does not take traced values", "tkc.exp"])
def test_function_of_numpy(v):
    np.exp(tkc.load(v, (0,), (8,)))


@wrong(["numpy.where does not take traced values", "tkc.where"])
def test_where_of_numpy(v):
    t = tkc.load(v, (0,), (8,))
    np.where(t > 0, t, 1)


@wrong(["numpy.add does not take traced values", "write the operator"])
def test_reduction_of_numpy(v):
    np.add.reduce(tkc.load(v, (0,), (8,)))


@wrong(["a NumPy array is no operand", "pass it as an argument"])
def test_array_of_numpy(v):
    tkc.load(v, (0,), (8,)) + np.zeros(8)


@wrong(["a NumPy array is no operand", "pass it as an argument"])
def test_array_of_numpy_on_the_left(v):
    np.zeros(8) * tkc.load(v, (0,), (8,))


@wrong(["has no `.astype`", "write .to(dtype)"])
def test_astype(v):
    tkc.load(v, (0,), (8,)).astype(tkc.int32)


@wrong(["axis 3 of float32[8]", "axes are -1 to 0"])
def test_axis_that_is_none(v):
    tkc.sum(tkc.load(v, (0,), (8,)), 3)


def test_loop_without_end(monkeypatch):
    """With a smaller limit, which is as far as this trace goes."""

    def f(v):
        t = tkc.load(v, (0,), (8,))
        while True:
            t = t + 1

    monkeypatch.setattr(tracer, "MOST_OPERATIONS", 1 << 10)
    e = error(f)
    for words in ("at most 1,024 operations", "has no end", "tkc.range"):
        assert words in e.message
    shown(e, f)


@wrong(["tkc has no `associative_scan`", "tkc.scan"])
def test_another_systems_name(n):
    tkc.associative_scan(n)


@wrong(["tkc has no `zerso`", "tkc.zeros"])
def test_misspelling(n):
    tkc.zerso((4,))


@wrong(["int32[4]", ".foo"])
def test_unknown_attribute(n):
    tkc.arange(4).foo


@wrong(["tkc has no `sign`", "tkc.where(x > 0, 1.0"])
def test_a_name_that_is_like_another_ones(n):
    tkc.sign(n)


@wrong(["has no `.unsqueeze`; use tile[:, None] instead"])
def test_method_of_another_system(n):
    tkc.arange(4).unsqueeze(1)


@wrong(["array of float32, rank 1 has no `.size`; use the product of .shape"])
def test_unknown_attribute_of_an_array(v):
    tkc.store(v, (0,), v.size)


@wrong(["an axis is a Python integer, got 0.5", "use tkc.maximum"])
def test_maximum_of_two(n):
    tkc.max(tkc.arange(4), 0.5)


@wrong(["got ndarray; pass it as an argument of the kernel"])
def test_an_array_that_is_no_argument(n):
    tkc.load(OUTSIDE, (0,), (4,))


@wrong(["use tkc.sum(tile)"])
def test_method_that_is_a_function(n):
    tkc.arange(4).sum()


@wrong(["a dtype of tkc, got 'float32'", "write tkc.float32"])
def test_a_dtype_by_name(x):
    tkc.zeros((4,), "float32")


@wrong(["a dtype of tkc", "numpy.int8", "write tkc.int8"])
def test_a_dtype_of_numpy(x):
    tkc.arange(4).to(np.int8)


@wrong(["a dtype of tkc", "there are bool_, int8"])
def test_a_dtype_of_nobody(x):
    tkc.full((4,), 1, "quad")


@wrong(["tkc.sqrt"])
def test_python_s_mathematics(x):
    math.sqrt(tkc.load(x, (0, 0), (None, None)))


@wrong(["rank-1 tile at 2 offsets", "tile[:, None]", "tile[None, :]"])
def test_a_row_or_a_column(x):
    tkc.store(x, (0, 0), tkc.zeros((4,)))


@wrong(["assert", "x == a or x == b"])
def test_comprehension(n):
    return [k for k in (1, 2) if n == k]


@wrong(["-1 does not fit uint8", "0 to 255", "without other=", "tile.to(tkc.int32), -1)"])
def test_a_fill_value_that_the_array_cannot_hold(n, b):
    tkc.load(b, n, 4, other=-1)


@wrong(["0.5 is not an integer", "without other=", "tile.to(tkc.float32), 0.5)"])
def test_a_fraction_to_fill_integers_with(n, b):
    tkc.load(b.ptr + n, mask=n > 0, other=0.5)


@wrong(["300 does not fit uint8", "an array has this dtype"])
def test_a_number_that_the_array_cannot_hold(n, b):
    tkc.store(b, n, 300)


@wrong(["key of a dict", "x in (a, b)"])
def test_a_traced_key(n):
    return {1: 2}[n]


@wrong(["tkc.round(x)", ".to(tkc.int32)"])
def test_rounded_by_python(s):
    return round(s)


@wrong(["tkc.print(x)"])
def test_formatted_by_python(n):
    return f"{n:d}"


@wrong(["`in` of tiles", "(x == a) | (x == b)"])
def test_membership_of_a_tile(n):
    return tkc.arange(4) in (1, 2)


@wrong(["rank 2", "2 offsets", "got 1"])
def test_wrong_number_of_offsets(x):
    tkc.load(x, (0,), (4,))


@wrong(["load()", "positional"])
def test_wrong_arity(x):
    tkc.load(x, (0, 0), (4, 4), 1, 2, 3)


@wrong(["compile time", "int32", "constexpr"])
def test_traced_shape(n):
    tkc.zeros((n, 4))


@wrong(["compile time", "constexpr"])
def test_traced_arange(n):
    tkc.zeros((4,)).reshape(n)


@wrong(["extents of a tile are 1 and more"])
def test_empty_tile(n):
    tkc.zeros((0, 4))


@wrong(["bool_[4]", "tkc.any", "&"])
def test_if_on_a_tile(n):
    if tkc.arange(4) < n:
        pass


@wrong(["`and`", "&"])
def test_and_on_tiles(n):
    (tkc.arange(4) < n) and (tkc.arange(4) > 1)


@wrong(["`or`", "|"])
def test_or_on_tiles(n):
    (tkc.arange(4) < n) or (tkc.arange(4) > 1)


@wrong(["`not`", "~"])
def test_not_on_a_tile(n):
    not (tkc.arange(4) < n)


@wrong(["tkc.where"])
def test_conditional_expression_on_a_tile(n):
    1 if tkc.arange(4) < n else 2


@wrong(["(a < b) & (b < c)"])
def test_chained_comparison_of_tiles(n):
    0 < tkc.arange(4) < n


@wrong(["max()", "tkc.maximum", "tkc.max(tile, axis)"])
def test_builtin_max_of_tiles(n):
    max(tkc.arange(4), tkc.arange(4))


@wrong(["float16 and float32", ".to()"])
def test_dot_of_two_dtypes(n):
    tkc.dot(tkc.zeros((4, 4), tkc.float16), tkc.zeros((4, 4)))


@wrong(["float32[4]", "int32", ".to(tkc.int32)"])
def test_store_of_floats_to_integers(n):
    out = tkc.array(tkc.num_programs(0).to(tkc.int64), tkc.int32, (n,))
    tkc.store(out, (0,), tkc.zeros((4,)))


@wrong(["[8]", "[4]"])
def test_store_of_another_shape(v):
    tkc.store(v.ptr + tkc.arange(4), tkc.zeros((8,)))


@wrong(["mask", "int32[4]"])
def test_mask_of_integers(v):
    tkc.load(v, (0,), (4,), mask=tkc.arange(4))


@wrong(["is in memory", "tkc.load"])
def test_arithmetic_on_an_array(v):
    v + 1


@wrong(["tkc.store"])
def test_assignment_to_an_array(v):
    v[0] = 1.0


@wrong(["tkc.where"])
def test_assignment_to_a_tile(n):
    t = tkc.arange(4)
    t[0] = 1


@wrong(["constants"])
def test_traced_index_of_a_tile(n):
    tkc.arange(4)[n]


@wrong(["index 4 is outside an extent of 4"])
def test_index_out_of_range(n):
    tkc.arange(4)[4]


@wrong(["axis 2 of an array of rank 1"])
def test_axis_of_a_shape(v):
    v.shape[2]


@wrong(["traced range", "tkc.static_range"])
def test_comprehension_over_a_range(n):
    [k for k in tkc.range(n)]


@wrong(["assert", "tkc.device_assert"])
def test_assert(n):
    assert n > 0


@wrong(["static_assert failed: too small"])
def test_static_assert(n):
    tkc.static_assert(1 > 2, "too small")


@wrong(["returns nothing", "tkc.store"])
def test_kernel_that_returns(n):
    return n


@wrong(["without end"])
def test_endless_recursion(n):
    recursive(n)


def recursive(n):
    return recursive(n + 1)


@wrong(["without end", "compile-time condition"])
def test_recursion_that_stops_on_a_traced_condition(n):
    stops_at_run_time(n, n)


def stops_at_run_time(x, n):
    if n == 0:
        return x
    return stops_at_run_time(x + 1, n - 1)


@wrong(["name 'nothing' is not defined"])
def test_undefined_name(n):
    nothing + 1  # noqa: F821


@wrong(["ZeroDivisionError"])
def test_pythons_own_errors(n):
    1 // 0


@wrong(["`n`", "int32 against float32", ".to()"])
def test_carried_type_changes(n):
    for _k in tkc.range(4):
        n = n * 0.5


@wrong(["`acc`", "float16[4] against float32[4]"])
def test_carried_tile_changes(n):
    acc = tkc.zeros((4,), tkc.float16)
    while n > 0:
        acc = acc + tkc.zeros((4,))
        n = n - 1


def tile(n: int = 4, dtype=None):
    return tkc.zeros((n,), dtype or tkc.float32)


# name -> (what a kernel says about x (rank 2), v (rank 1, float32), n and s; words of the message:
# what was expected, what was got, the way out)
SAYINGS = {
    "offsets for pointers": (
        lambda x, v, n, s: tkc.load(v.ptr + tkc.arange(4), (0,)),
        ["takes no offsets", "add the offsets to the pointers"],
    ),
    "a load without a shape": (
        lambda x, v, n, s: tkc.load(v, (0,)),
        ["needs offsets and a shape", "array.ptr"],
    ),
    "a number for an array": (
        lambda x, v, n, s: tkc.load(n),
        ["an array and offsets, or pointers", "int32"],
    ),
    "sem of a block": (
        lambda x, v, n, s: tkc.load(v, (0,), (4,), sem="acquire"),
        ["sem=", "array.ptr + offset"],
    ),
    "sem of a stored block": (
        lambda x, v, n, s: tkc.store(v, (0,), tile(), sem="release"),
        ["sem=", "array.ptr + offset"],
    ),
    "scope of an update of a block": (
        lambda x, v, n, s: tkc.atomic_add(v, (0,), tile(), scope="system"),
        ["scope=", "array.ptr + offset"],
    ),
    "a word that is no sem": (
        lambda x, v, n, s: tkc.load(v.ptr, sem="strong"),
        ["'acquire'", "got 'strong'"],
    ),
    "a word that is no scope": (
        lambda x, v, n, s: tkc.load(v.ptr, sem="acquire", scope="warp"),
        ["'block', 'gpu', 'system'", "got 'warp'"],
    ),
    "a store without a value": (
        lambda x, v, n, s: tkc.store(v, (0,)),
        ["takes an array, offsets and a value"],
    ),
    "a store to pointers with offsets": (
        lambda x, v, n, s: tkc.store(v.ptr, (0,), 3),
        ["takes pointers and a value"],
    ),
    "a store of too high a rank": (
        lambda x, v, n, s: tkc.store(v, (0,), tkc.zeros((4, 4))),
        ["rank 1", "float32[4, 4]", "reshape"],
    ),
    "too few offsets of a store": (
        lambda x, v, n, s: tkc.store(x, (0,), tile()),
        ["rank 2", "2 offsets", "got 1"],
    ),
    "a stored pointer": (
        lambda x, v, n, s: tkc.store(v.ptr, v.ptr),
        ["cannot store a pointer", "bitcast=True"],
    ),
    "a float offset": (
        lambda x, v, n, s: tkc.load(v, (s,), (4,)),
        ["offset 0 is an integer", "float32"],
    ),
    "a gather of another length": (
        lambda x, v, n, s: tkc.load(x, (tkc.arange(3), 0), (4, 4)),
        ["a tile of 3 integers", "must be 3", "got 4"],
    ),
    "offsets of rank 2": (
        lambda x, v, n, s: tkc.load(x, (tkc.zeros((2, 2), tkc.int32), 0), (2, 4)),
        ["rank-1 integer tile", "int32[2, 2]"],
    ),
    "a mask of too high a rank": (
        lambda x, v, n, s: tkc.load(v, (0,), (4,), mask=tkc.zeros((4, 4)) > 0),
        ["[4, 4]", "[4]"],
    ),
    "another extent of a mask": (
        lambda x, v, n, s: tkc.load(v, (0,), (4,), mask=tile(3) > 0),
        ["[3]", "[4]"],
    ),
    "an atomic of float8": (
        lambda x, v, n, s: tkc.atomic_add(tkc.array(v.ptr, tkc.float8_e4m3, (4,)), (0,), 1.0),
        ["atomic_add does not take float8_e4m3"],
    ),
    "bits of floats": (
        lambda x, v, n, s: tkc.atomic_and(v.ptr, 1.0),
        ["atomic_and takes integers", "float32"],
    ),
    "a swap of a block": (
        lambda x, v, n, s: tkc.atomic_cas(v, 0.0, 1.0),
        ["atomic_cas", "array.ptr + offset"],
    ),
    "a grid axis": (lambda x, v, n, s: tkc.program_id(3), ["0, 1 or 2", "got 3"]),
    "an empty range": (lambda x, v, n, s: tkc.arange(4, 4), ["is empty", "extents of 1 and more"]),
    "a traced range": (lambda x, v, n, s: tkc.arange(n), ["Python integers", "tkc.constexpr"]),
    "a tile for full": (
        lambda x, v, n, s: tkc.full((4,), tile()),
        ["takes a scalar", "float32[4]", "broadcast_to"],
    ),
    "a condition of integers": (
        lambda x, v, n, s: tkc.where(tkc.arange(4), 1, 2),
        ["truth values", "int32[4]", "c != 0"],
    ),
    "a broadcast that does not fit": (
        lambda x, v, n, s: tkc.broadcast_to(tile(3), (2, 4)),
        ["[3]", "[2, 4]", "use [:, None] or reshape"],
    ),
    "a reshape that does not fit": (
        lambda x, v, n, s: tile(6).reshape(4, 2),
        ["float32[6]", "6 elements", "[4, 2]"],
    ),
    "axes of permute": (
        lambda x, v, n, s: tkc.zeros((2, 3)).permute(0, 0),
        ["permute(0, 0)", "0 to 1 once"],
    ),
    "a transpose of rank 1": (lambda x, v, n, s: tile().T, ["rank of 2 or more", "float32[4]"]),
    "cat of two extents": (
        lambda x, v, n, s: tkc.cat(tkc.zeros((2, 3)), tkc.zeros((2, 4))),
        ["other extents differ", "float32[2, 3]", "float32[2, 4]"],
    ),
    "split of an odd extent": (
        lambda x, v, n, s: tkc.split(tkc.zeros((4, 3))),
        ["last extent is 2", "float32[4, 3]"],
    ),
    "an axis of flip": (
        lambda x, v, n, s: tkc.flip(tile(), 1),
        ["tkc.flip", "axis 1 of float32[4]"],
    ),
    "a traced axis": (lambda x, v, n, s: tkc.sum(tile(), axis=n), ["Python integer", "int32"]),
    "too many indices": (lambda x, v, n, s: tile()[0, 0], ["2 indices", "float32[4]"]),
    "a traced slice": (
        lambda x, v, n, s: tile()[:n],
        ["sliced by constants", "slice the array before loading"],
    ),
    "a backward slice": (lambda x, v, n, s: tile()[::-1], ["tkc.flip"]),
    "an empty slice": (lambda x, v, n, s: tile()[4:], ["is empty", "1 and more"]),
    "a truth value as an index": (lambda x, v, n, s: tile()[True], ["is no index", "tkc.where"]),
    "a step of a view": (lambda x, v, n, s: v[0:8:2], ["steps of 1"]),
    "too many indices of an array": (lambda x, v, n, s: v[0, 0], ["2 indices", "rank 1"]),
    "a tile as an index of an array": (
        lambda x, v, n, s: v[tkc.arange(4)],
        ["indexed by scalars", "tkc.load(array, (tile, …), shape)"],
    ),
    "a transposed array": (lambda x, v, n, s: x.T, ["no .T", "tkc.load(array, offsets, shape).T"]),
    "the length of an array": (lambda x, v, n, s: len(v), [".shape[0]"]),
    "the truth of an array": (lambda x, v, n, s: bool(v), ["no truth value", "compare its .shape"]),
    "iterating an array": (lambda x, v, n, s: list(v), ["cannot be iterated", "index it"]),
    "iterating a tile": (lambda x, v, n, s: list(tile()), ["cannot be iterated", "t[0]"]),
    "in": (lambda x, v, n, s: 1 in tile(), ["`in`", "tkc.any(tile == value)"]),
    "int of a value": (lambda x, v, n, s: int(n), [".to(tkc.int32)"]),
    "float of a value": (lambda x, v, n, s: float(s), [".to(tkc.float32)"]),
    "an index of a list": (
        lambda x, v, n, s: [1, 2][n],
        ["known at compile time", "tkc.constexpr"],
    ),
    "a cast to no dtype": (
        lambda x, v, n, s: tile().to("float16"),
        ["write tkc.float16", "'float16'"],
    ),
    "a bitcast of another width": (
        lambda x, v, n, s: tile().to(tkc.int16, bitcast=True),
        ["float32 as int16", "32 bits against 16"],
    ),
    "a number that does not fit": (
        lambda x, v, n, s: tile(4, tkc.int8) + 300,
        ["300 does not fit int8", "-128 to 127", ".to()"],
    ),
    "a float among integers' bits": (lambda x, v, n, s: tile() & 1, ["and does not take float32"]),
    "a pointer times two": (lambda x, v, n, s: v.ptr * 2, ["+ and - of integers only"]),
    "a pointer plus a float": (lambda x, v, n, s: v.ptr + 0.5, ["moves by integers", "0.5"]),
    "a text in arithmetic": (lambda x, v, n, s: tile() + "a", ["'a'"]),
    "dot of rank 1": (
        lambda x, v, n, s: tkc.dot(tile(), tile()),
        ["rank 2 and more", "float32[4]", "[None, :]"],
    ),
    "dot's precision": (
        lambda x, v, n, s: tkc.dot(tkc.zeros((4, 4)), tkc.zeros((4, 4)), precision="fast"),
        ["'ieee'", "got 'fast'"],
    ),
    "dot's accumulator": (
        lambda x, v, n, s: tkc.dot(tkc.zeros((4, 4)), tkc.zeros((4, 4)), tkc.zeros((4, 8))),
        ["[4, 4]", "[4, 8]", "use [:, None] or reshape"],
    ),
    "dot's accumulator of integers": (
        lambda x, v, n, s: tkc.dot(
            tkc.zeros((4, 4)), tkc.zeros((4, 4)), tkc.zeros((4, 4), tkc.int32)
        ),
        ["accumulates in float32", "int32[4, 4]"],
    ),
    "topk of too many": (lambda x, v, n, s: tkc.topk(tile(), 5), ["k is 1 to 4", "got 5"]),
    "a histogram of floats": (
        lambda x, v, n, s: tkc.histogram(tile(), 8),
        ["rank-1 tile of integers", "float32[4]"],
    ),
    "xor of floats": (lambda x, v, n, s: tkc.xor_sum(tile()), ["takes integers", "float32[4]"]),
    "a reduction of a scalar": (lambda x, v, n, s: tkc.sum(n), ["takes a tile", "int32"]),
    "a combination of too few": (
        lambda x, v, n, s: tkc.reduce((tile(), tile()), 0, lambda a, b, c, d: a + c),
        ["gives 2 values", "got 1"],
    ),
    "a combination of another type": (
        lambda x, v, n, s: tkc.reduce(tile(), 0, lambda a, b: (a + b).to(tkc.float16)),
        ["gives float32", "float16"],
    ),
    "a combination of two shapes": (
        lambda x, v, n, s: tkc.scan((tile(), tile(3)), 0, lambda a, b, c, d: (a, b)),
        ["tiles of one shape", "float32[3]"],
    ),
    "an assumption of a tile": (
        lambda x, v, n, s: tkc.assume(tile() > 0),
        ["scalar condition", "bool_[4]"],
    ),
    "an assumption that is false": (lambda x, v, n, s: tkc.assume(1 > 2), ["something false"]),
    "a multiple of nothing": (
        lambda x, v, n, s: tkc.multiple_of(n, 0),
        ["positive Python integer", "got 0"],
    ),
    "a multiple of a float": (
        lambda x, v, n, s: tkc.multiple_of(s, 4),
        ["takes integers", "float32"],
    ),
    "a traced static_assert": (
        lambda x, v, n, s: tkc.static_assert(n > 0),
        ["compile time", "tkc.device_assert"],
    ),
    "an address of 32 bits": (
        lambda x, v, n, s: tkc.array(n, tkc.float32, (4,)),
        ["64 bits", "int32"],
    ),
    "an array of no dtype": (lambda x, v, n, s: tkc.array(v.ptr, 4, (4,)), ["dtype", "got 4"]),
    "more elements than a tile has": (
        lambda x, v, n, s: tkc.zeros((100_000, 100_000)),
        ["less than 2^31 elements", "10,000,000,000", "in a loop"],
    ),
    "a sum of more elements than a tile has": (
        lambda x, v, n, s: tkc.arange(70_000)[:, None] + tkc.arange(70_000)[None, :],
        ["less than 2^31 elements", "4,900,000,000"],
    ),
    "tiles one after the other": (
        lambda x, v, n, s: tkc.cat(tkc.zeros((1 << 30,)), tkc.zeros((1 << 30,))),
        ["less than 2^31 elements"],
    ),
    "strides of an array": (
        lambda x, v, n, s: tkc.array(v.ptr, tkc.float32, (4, 4), (1,)),
        ["2 extents and 1 strides"],
    ),
}


@pytest.mark.parametrize("name", SAYINGS)
def test_saying(name):
    use, words = SAYINGS[name]

    def f(x, v, n, s):
        use(x, v, n, s)

    e = error(f)
    for w in words:
        assert w in e.message, e.message
    shown(e, use)


def test_there_are_many_kinds():
    assert len(KINDS) + len(SAYINGS) >= 109


def test_wrong_parameters():
    from tkc.language.signature import Signature
    from tkc.language.trace import trace

    def f(x, BLOCK):
        pass

    with pytest.raises(tkc.CompileError, match="`x`, `BLOCK`"):
        trace(f, Signature(()))
    with pytest.raises(tkc.CompileError, match="no parameter `y`"):
        trace(f, Signature((("y", i32()),)))


def test_outside_a_kernel():
    with pytest.raises(tkc.Error, match="inside a kernel"):
        tkc.program_id(0)


def test_unknown_public_name():
    with pytest.raises(AttributeError, match="tkc.scan"):
        _ = tkc.associative_scan


def test_the_same_text_in_two_files_keeps_its_own_places(tmp_path):
    """Code objects of both are equal."""
    text, places = "import tkc\ndef k(n):\n    for i in tkc.range(n): tkc.arange(4)[9]\n", []
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(text)
        space: dict = {}
        exec(compile(text, str(tmp_path / name), "exec"), space)
        with pytest.raises(tkc.CompileError) as e:
            traced(space["k"], n=i32())
        places.append(Path(e.value.location.file).name)
    assert places == ["first.py", "second.py"]
