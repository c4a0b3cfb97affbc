"""Which blocks a tensor map can describe, and why others it cannot."""

import numpy as np
import pytest

import tkc
from tests.language.kernels import array as described_by
from tests.language.kernels import traced
from tkc.ir import tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.language.signature import ArrayArgument
from tkc.passes.analysis import mapped
from tkc.passes.analysis.mapped import unmapped
from tkc.passes.planning.gathers import uncopied


def block(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, COLUMNS)))


def column(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, None))[:, None])


def scattered(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    tkc.store(o, (0, 0), tkc.load(x, (tkc.arange(ROWS) * 2, 0), (ROWS, COLUMNS)))


def described(align: int, row: int, last: int | None = 1) -> ArrayArgument:
    """A matrix whose rows are a multiple of so many elements apart."""
    strides = (Fact(row), Fact(1) if last is None else Fact(exact=last))
    return ArrayArgument(tkc.float16, ArrayFacts((Fact(), Fact()), strides, align))


@pytest.mark.parametrize(
    "fn, columns, array, why",
    [
        (block, 64, described(16, 8), ""),
        (block, 64, described(8, 8), "multiples of 16 bytes"),
        (block, 64, described(16, 4), "multiples of 16 bytes"),
        (block, 8, described(16, 8), "narrower than a swizzle"),
        (block, 64, described(16, 8, None), "neither rows nor columns"),
        (column, 64, described(16, 8), "neither rows nor columns"),
        (block, 512, described(16, 8), ""),
    ],
)
def test_what_a_tensor_map_describes(fn, columns, array, why):
    module = traced(fn, array, array, ROWS=64, COLUMNS=columns)
    (load,) = [op for op in module.walk() if isinstance(op, tile.Load)]
    reason = unmapped(load)
    assert (why in reason) if why else not reason, reason


def test_rows_that_are_gathered_are_no_box():
    module = traced(scattered, described(16, 8), described(16, 8), ROWS=64, COLUMNS=64)
    (load,) = [op for op in module.walk() if isinstance(op, tile.Load)]
    assert unmapped(load)


def shifted(x, y, o, c, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    acc = tkc.zeros((ROWS, ROWS))
    for k in tkc.range(0, 64, COLUMNS):
        left = tkc.load(x, (0, k + c), (ROWS, COLUMNS))
        acc = tkc.dot(left, tkc.load(y, (0, k), (ROWS, COLUMNS)).T, acc)
    tkc.store(o, (0, 0), acc.to(o.dtype))


def stored(x, y, o, c, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    acc = tkc.zeros((ROWS, ROWS))
    for k in tkc.range(0, 64, COLUMNS):
        left = tkc.load(x, (0, k), (ROWS, COLUMNS))
        acc = tkc.dot(left, tkc.load(y, (0, k), (ROWS, COLUMNS)).T, acc)
    tkc.store(o, (0, tkc.maximum(c, 0)), acc.to(o.dtype))


def beside(n: int, monkeypatch) -> tuple[np.ndarray, np.ndarray]:
    """A result whose rows end after n columns of a wider array: (the array, what it should be)."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(n)
    x, y = (rng.integers(-2, 3, (64, 64)).astype(np.float16) for _ in range(2))
    whole = np.full((64, 80), 7, np.float16)
    tkc.jit(stored)[1](x, y, whole[:, :n], 0, ROWS=64, COLUMNS=32)
    want = np.full_like(whole, 7)
    want[:, : min(n, 64)] = (x.astype(np.float64) @ y.T.astype(np.float64))[:, :n]
    return whole, want


@pytest.mark.parametrize("n", (1, 7, 8, 15, 63, 64, 79))
def test_what_lies_behind_a_row_stays(n, monkeypatch):
    """A random kernel wrote to it on an H200: a store by a tensor map ends with 16 bytes."""
    got, want = beside(n, monkeypatch)
    np.testing.assert_array_equal(got, want)


def test_the_simulator_writes_16_bytes(monkeypatch):
    """Behind the last row, whatever is there."""
    monkeypatch.setattr(Fact, "divisible", lambda self, n: True)
    with pytest.raises(tkc.Error, match="tma_store.*which has bytes 0 to"):
        beside(15, monkeypatch)


def simulated(fn, c: int, monkeypatch):
    """(what a launch stores, what it should), of integers that sums keep exact."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    rng = np.random.default_rng(c)
    x, y = (rng.integers(-2, 3, (64, 128)).astype(np.float16) for _ in range(2))
    o = np.zeros((64, 128), np.float16)
    tkc.jit(fn)[1](x, y, o, c, ROWS=64, COLUMNS=32)
    want = np.zeros_like(o)
    first = c if fn is shifted else 0
    found = x[:, first : first + 64].astype(np.float64) @ y[:, :64].T.astype(np.float64)
    at = 0 if fn is shifted else c
    want[:, at : at + 64] = found.astype(np.float16)
    return o, want


@pytest.mark.parametrize("c", (1, 2, 4, 8, 16))
@pytest.mark.parametrize("fn", (shifted, stored))
def test_blocks_that_begin_anywhere_in_a_row(fn, c, monkeypatch):
    """Random kernels that did raised an illegal instruction on an H200: an accelerator's box begins
    at a multiple of 16 bytes.
    """
    got, want = simulated(fn, c, monkeypatch)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("fn", (shifted, stored))
def test_the_simulator_knows_where_boxes_begin(fn, monkeypatch):
    monkeypatch.setattr(mapped, "divisor", lambda value: 16)
    with pytest.raises(tkc.Error, match="multiple of 16 bytes of a row, not at element 3"):
        simulated(fn, 3, monkeypatch)


def before(x, o, ROW: tkc.constexpr, COLUMN: tkc.constexpr, ADD: tkc.constexpr):
    acc = tkc.zeros((64, 64))
    for k in tkc.range(0, 64, 32):
        left = tkc.load(x, (0, k), (64, 32))
        acc = tkc.dot(left, tkc.load(x, (0, k), (64, 32)).T, acc)
    if ADD:
        tkc.atomic_add(o, (ROW, COLUMN), acc.to(o.dtype))
    else:
        tkc.store(o, (ROW, COLUMN), acc.to(o.dtype))


def stored_before(row: int, column: int, add: bool, monkeypatch) -> tuple[np.ndarray, np.ndarray]:
    """What a launch makes of a block that begins before its array, and what it should."""
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    x = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    o = np.zeros((64, 128), np.float16)
    tkc.jit(before)[1](x, o, ROW=row, COLUMN=column, ADD=add)
    want, block = np.zeros_like(o), x.astype(np.float64) @ x.T.astype(np.float64)
    want[: 64 + row, : max(64 + column, 0)] = block[-row:, -column:]
    return o, want


@pytest.mark.parametrize("add", (False, True))
@pytest.mark.parametrize("row, column", ((-16, 0), (0, -16), (0, -64), (-5, -32)))
def test_blocks_that_begin_before_their_array(row, column, add, monkeypatch):
    """Random kernel 1137 raised an illegal instruction on an H200: a box may be read there, but not
    written.
    """
    got, want = stored_before(row, column, add, monkeypatch)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("add", (False, True))
def test_the_simulator_knows_what_is_before_an_array(add, monkeypatch):
    monkeypatch.setattr(mapped, "begins_inside", lambda op: True)
    with pytest.raises(tkc.Error, match="before its array"):
        stored_before(-16, 0, add, monkeypatch)


def grouped(x, o, groups, ADD: tkc.constexpr):
    """Programs in an order of their own: nothing says that none of them is before the array."""
    pid = tkc.program_id(0)
    row, column = (pid // groups - 1) * 64, (pid % groups - 1) * 64
    acc = tkc.zeros((64, 64))
    for k in tkc.range(0, x.shape[1], 32):
        left = tkc.load(x, (0, k), (64, 32))
        acc = tkc.dot(left, tkc.load(x, (0, k), (64, 32)).T, acc)
    if ADD:
        tkc.atomic_add(o, (row, column), acc.to(o.dtype))
    else:
        tkc.store(o, (row, column), acc.to(o.dtype))


@pytest.mark.parametrize("add", (False, True))
def test_blocks_that_lie_before_their_array_as_a_whole_are_stored_by_a_map(add, monkeypatch):
    kernel, types = tkc.jit(grouped), ("f16[64, 64]", "f16[64, 128]", 3)
    stores = f"cp.{'reduce.' * add}async.bulk.tensor.2d.global"
    assert stores in kernel.compile(*types, ADD=add, target="sm_90a").ptx
    monkeypatch.setenv("TKC_SIM", "1")
    monkeypatch.setenv("TKC_TARGET", "sm_90a")
    x = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    o = np.zeros((64, 128), np.float16)
    kernel[9](x, o, 3, ADD=add)
    np.testing.assert_array_equal(o, np.tile(x.astype(np.float64) @ x.T.astype(np.float64), 2))


def placed(x, o, row, column):
    acc = tkc.zeros((64, 64))
    for k in tkc.range(0, 64, 32):
        left = tkc.load(x, (0, k), (64, 32))
        acc = tkc.dot(left, tkc.load(x, (0, k), (64, 32)).T, acc)
    tkc.store(o, (tkc.program_id(0) * 64 + row, column * 16), acc.to(o.dtype))


def test_a_block_at_arguments_is_stored_by_a_map_where_they_are_not_negative():
    kernel = tkc.jit(placed)
    arrays = "f16[64, 64]", "f16[256, 128]"

    def instructions(row, column):
        return kernel.compile(*arrays, row, column, target="sm_90a").ptx

    assert "cp.async.bulk.tensor.2d.global" in instructions("i32+", "i32+")
    assert "cp.async.bulk.tensor.2d.global" in instructions(5, 0)
    for row, column in (("i32", "i32+"), ("i32+", "i32"), (5, -2), (-5, 2)):
        assert "cp.async.bulk.tensor.2d.global" not in instructions(row, column)


@pytest.mark.parametrize("target", ("cpu", "sm_80", "sm_90a"))
def test_a_later_negative_number_is_compiled_anew(target, monkeypatch):
    if target != "cpu":
        monkeypatch.setenv("TKC_SIM", "1")
        monkeypatch.setenv("TKC_TARGET", target)
    kernel = tkc.jit(placed)
    x = np.random.default_rng(0).integers(-2, 3, (64, 64)).astype(np.float16)
    block = (x.astype(np.float64) @ x.T.astype(np.float64)).astype(np.float16)
    for row, column in ((8, 2), (-8, 2), (8, -2), (3, 0), (-64, 0), (0, -4)):
        o, whole = np.zeros((256, 128), np.float16), np.zeros((512, 384), np.float16)
        kernel[1](x, o, row, column)
        at = 128 + row, 128 + column * 16
        whole[at[0] : at[0] + 64, at[1] : at[1] + 64] = block
        np.testing.assert_array_equal(o, whole[128:384, 128:256])


def filled(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    inside = tkc.arange(ROWS)[:, None] < 5
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, COLUMNS), mask=inside, other=1))


def masked(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    inside = tkc.arange(ROWS)[:, None] < 5
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, COLUMNS), mask=inside))


def masked_by_sums(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    sums = tkc.sum(tkc.load(o, (0, 0), (ROWS, COLUMNS)), axis=1)
    inside = (sums > 0)[:, None]
    tkc.store(o, (0, 0), tkc.load(x, (0, 0), (ROWS, COLUMNS), mask=inside))


def listed(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    sums = tkc.sum(tkc.load(o, (0, 0), (ROWS, COLUMNS)), axis=1).to(tkc.int32)
    tkc.store(o, (0, 0), tkc.load(x, (sums, 0), (ROWS, COLUMNS)))


def panels(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    views = tkc.array(x.ptr, x.dtype, (ROWS, ROWS, COLUMNS), (ROWS * COLUMNS, COLUMNS, 1))
    inside = (tkc.arange(ROWS) < 5)[None, :, None]
    block = tkc.load(views, (0, 0, 0), (2, ROWS, COLUMNS), mask=inside)
    tkc.store(o, (0, 0), tkc.sum(block, axis=0))


def at_an_address(x, o, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    """Rows of an array whose address only the program knows."""
    first = tkc.multiple_of(tkc.load(o.ptr).to(tkc.int32), 8)
    rows = tkc.array(x.ptr + first, x.dtype, (ROWS, COLUMNS), (COLUMNS, 1))
    tkc.store(o, (0, 0), tkc.load(rows, (0, 0), (ROWS, COLUMNS)))


def test_an_array_that_the_program_makes_has_no_map():
    module = traced(at_an_address, described(16, 8), described(16, 8), ROWS=64, COLUMNS=64)
    *_, load = (op for op in module.walk() if isinstance(op, tile.Load))
    assert "the host cannot describe" in unmapped(load)


@pytest.mark.parametrize(
    "fn, columns, array, why",
    [
        (masked, 64, described(16, 8), ""),
        (scattered, 64, described(16, 8), ""),
        (masked, 64, described(4, 2), ""),
        (filled, 64, described(16, 8), "is not zero"),
        (masked_by_sums, 64, described(16, 8), "tiles that other threads have parts of"),
        (listed, 64, described(16, 8), "tiles that other threads have parts of"),
        (masked, 64, described(16, 8, None), "neither rows nor columns"),
        (column, 64, described(16, 8), "neither rows nor columns"),
        (masked, 8, described(16, 8), "narrower than a swizzle"),
        (masked, 64, described(2, 8), "multiples of 4 bytes"),
        (masked, 64, described(16, 1), "multiples of 4 bytes"),
        (panels, 64, described(16, 8), "more axes than two"),
    ],
)
def test_what_threads_of_another_role_copy(fn, columns, array, why):
    module = traced(fn, array, described(16, 8), ROWS=64, COLUMNS=columns)
    *_, load = (op for op in module.walk() if isinstance(op, tile.Load))
    reason = uncopied(load).rpartition(", and ")[2]  # behind why no map can
    assert (why in reason) if why else not reason, reason


@pytest.mark.parametrize(
    "shape, strides, why",
    [
        ((None, None), (8, 1), ""),
        ((0, None), (8, 1), "an empty array"),
        ((None, None), (0, 1), "a stride that is 0 or negative"),
        ((None, None), (-8, 1), "a stride that is 0 or negative"),
        ((1, None), (0, 1), ""),
        ((None, None), (12, 1), "multiples of 16 bytes"),
    ],
)
def test_strides_of_a_map(shape, strides, why):
    x = described_by(tkc.float16, 2, shape=shape, strides=strides)
    module = traced(block, x, described(16, 8), ROWS=64, COLUMNS=64)
    (load,) = [op for op in module.walk() if isinstance(op, tile.Load)]
    reason = unmapped(load)
    assert (why in reason) if why else not reason, reason
