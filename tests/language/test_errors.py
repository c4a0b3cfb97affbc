"""Compile errors: the user's line, a caret, the call chain, expected and got, and one way out."""
import inspect

import pytest

import tkc
from tests.language.kernels import array, f32, i32, traced

ARGUMENTS = {"x": array(tkc.float32, 2), "v": array(tkc.float32), "n": i32(), "s": f32()}


def error(f) -> tkc.CompileError:
    with pytest.raises(tkc.CompileError) as caught: traced(f, **{p: ARGUMENTS[p] for p in inspect.signature(f).parameters})
    return caught.value


def marked(e: tkc.CompileError) -> str:
    """The text over the caret of the innermost place."""
    *_, line, caret = str(e).splitlines()
    return line[caret.index("^"):caret.rindex("^") + 1]


def test_place_and_caret():
    def f(v, n):
        a = tkc.arange(4)
        b = a + tkc.zeros((3,))
    e = error(f)
    assert e.location.file == __file__ and e.location.line == f.__code__.co_firstlineno + 2 and e.location.function == "f"
    assert marked(e) == "a + tkc.zeros((3,))" and "[4] and [3]" in e.message


def test_wide_characters():
    def f(n):
        Größe = "宽"; n = tkc.zeros((2, 3)) @ tkc.zeros((2, 3))
    e = error(f)
    line, caret = str(e).splitlines()[-2:]
    assert caret.index("^") == len("    Größe = ") + 4 + len("; n = ")           # 宽 takes two columns
    assert "3 columns" in e.message and "2 rows" in e.message


def inner(t): return t + tkc.zeros((7,))
def outer(t): return inner(t * 2)


def test_call_chain():
    def f(n): outer(tkc.arange(4))
    e = error(f)
    assert [c.function for c in e.location.calls] == ["f", "outer"] and e.location.function == "inner"
    text = str(e)
    assert text.index("in f") < text.index("in outer") < text.index("in inner") and marked(e) == "t + tkc.zeros((7,))"


def test_place_inside_an_operand_of_and():
    def f(n):
        ok = n > 1 and tkc.arange(4) + tkc.arange(3)
    e = error(f)
    assert marked(e) == "tkc.arange(4) + tkc.arange(3)" and e.location.function == "f" and not e.location.calls


def wrong(words):
    def put(f):
        def test():
            for w in words: assert w in error(f).message, error(f).message
        test.__name__ = f.__name__
        return test
    return put


@wrong(["tkc has no `associative_scan`", "tkc.scan"])
def test_another_systems_name(n): tkc.associative_scan(n)


@wrong(["tkc has no `zerso`", "tkc.zeros"])
def test_misspelling(n): tkc.zerso((4,))


@wrong(["int32[4]", ".foo"])
def test_unknown_attribute(n): tkc.arange(4).foo


@wrong(["use tkc.sum(tile)"])
def test_method_that_is_a_function(n): tkc.arange(4).sum()


@wrong(["rank 2", "2 offsets", "got 1"])
def test_wrong_number_of_offsets(x): tkc.load(x, (0,), (4,))


@wrong(["load()", "positional"])
def test_wrong_arity(x): tkc.load(x, (0, 0), (4, 4), 1, 2, 3)


@wrong(["compile time", "int32", "constexpr"])
def test_traced_shape(n): tkc.zeros((n, 4))


@wrong(["compile time", "constexpr"])
def test_traced_arange(n): tkc.zeros((4,)).reshape(n)


@wrong(["extents of a tile are 1 and more"])
def test_empty_tile(n): tkc.zeros((0, 4))


@wrong(["bool_[4]", "tkc.any", "&"])
def test_if_on_a_tile(n):
    if tkc.arange(4) < n: pass


@wrong(["`and`", "&"])
def test_and_on_tiles(n): (tkc.arange(4) < n) and (tkc.arange(4) > 1)


@wrong(["`or`", "|"])
def test_or_on_tiles(n): (tkc.arange(4) < n) or (tkc.arange(4) > 1)


@wrong(["`not`", "~"])
def test_not_on_a_tile(n): not (tkc.arange(4) < n)


@wrong(["tkc.where"])
def test_conditional_expression_on_a_tile(n): 1 if tkc.arange(4) < n else 2


@wrong(["(a < b) & (b < c)"])
def test_chained_comparison_of_tiles(n): 0 < tkc.arange(4) < n


@wrong(["max()", "tkc.maximum", "tkc.max(tile, axis)"])
def test_builtin_max_of_tiles(n): max(tkc.arange(4), tkc.arange(4))


@wrong(["float16 and float32", ".to()"])
def test_dot_of_two_dtypes(n): tkc.dot(tkc.zeros((4, 4), tkc.float16), tkc.zeros((4, 4)))


@wrong(["float32[4]", "int32", ".to(tkc.int32)"])
def test_store_of_floats_to_integers(n):
    out = tkc.array(tkc.num_programs(0).to(tkc.int64), tkc.int32, (n,))
    tkc.store(out, (0,), tkc.zeros((4,)))


@wrong(["[8]", "[4]"])
def test_store_of_another_shape(v): tkc.store(v.ptr + tkc.arange(4), tkc.zeros((8,)))


@wrong(["mask", "int32[4]"])
def test_mask_of_integers(v): tkc.load(v, (0,), (4,), mask=tkc.arange(4))


@wrong(["lives in memory", "tkc.load"])
def test_arithmetic_on_an_array(v): v + 1


@wrong(["tkc.store"])
def test_assignment_to_an_array(v): v[0] = 1.0


@wrong(["tkc.where"])
def test_assignment_to_a_tile(n):
    t = tkc.arange(4)
    t[0] = 1


@wrong(["constants"])
def test_traced_index_of_a_tile(n): tkc.arange(4)[n]


@wrong(["index 4 is outside an extent of 4"])
def test_index_out_of_range(n): tkc.arange(4)[4]


@wrong(["axis 2 of an array of rank 1"])
def test_axis_of_a_shape(v): v.shape[2]


@wrong(["traced range", "tkc.static_range"])
def test_comprehension_over_a_range(n): [k for k in tkc.range(n)]


@wrong(["assert", "tkc.device_assert"])
def test_assert(n): assert n > 0


@wrong(["static_assert failed: too small"])
def test_static_assert(n): tkc.static_assert(1 > 2, "too small")


@wrong(["returns nothing", "tkc.store"])
def test_kernel_that_returns(n): return n


@wrong(["without end"])
def test_endless_recursion(n): recursive(n)
def recursive(n): return recursive(n + 1)


@wrong(["name 'nothing' is not defined"])
def test_undefined_name(n): nothing + 1  # noqa: F821


@wrong(["ZeroDivisionError"])
def test_pythons_own_errors(n): 1 // 0


@wrong(["`n`", "int32 against float32", ".to()"])
def test_carried_type_changes(n):
    for k in tkc.range(4): n = n * 0.5


@wrong(["`acc`", "float16[4] against float32[4]"])
def test_carried_tile_changes(n):
    acc = tkc.zeros((4,), tkc.float16)
    while n > 0: acc = acc + tkc.zeros((4,)); n = n - 1


def test_wrong_parameters():
    from tkc.language.signature import Signature
    from tkc.language.trace import trace
    def f(x, BLOCK): pass
    with pytest.raises(tkc.CompileError, match="`x`, `BLOCK`"): trace(f, Signature(()))
    with pytest.raises(tkc.CompileError, match="no parameter `y`"): trace(f, Signature((("y", i32()),)))


def test_outside_a_kernel():
    with pytest.raises(tkc.Error, match="inside a kernel"): tkc.program_id(0)


def test_unknown_public_name():
    with pytest.raises(AttributeError, match="tkc.scan"): tkc.associative_scan
