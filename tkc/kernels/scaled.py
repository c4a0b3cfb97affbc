"""Products of 8-bit factors with scales, as float8 is trained and served with: activation((a ·
a_scale) @ (b · b_scale) + bias).

    a scale that does not depend on k     (of a tensor, of a row of a, of a column of b) is a factor
                                          of the result: `_scaled`
    scales of blocks, of 128 along k      are factors of the partial sum of these 128: `_blocks`

What adds up is the caller's choice, for the two are not the same on a Hopper tensor core
(examples/float8_matmul.py): its own sums, which have fewer bits than float32, or float32 after each
128 of k. Blocks and schedule are the cost model's choice for the shapes. Factors that Hopper's
engines do not take as they lie (k is not their dense axis, rows do not start at multiples of 16
bytes) are copied first where that pays, and a result whose rows start at odd elements is computed
as its transpose where the cost model finds that faster, as in `matmul`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import tkc
from tkc.kernels.arrays import Array, dtype_of, empty, library, power
from tkc.kernels.blocks import grid_of
from tkc.kernels.copies import fitting, narrow
from tkc.kernels.matmul import ACTIVATIONS, BESIDE, summed
from tkc.kernels.operator import operator

BLOCK = 128  # of k, and of rows or columns, that share a scale
FACTORS, RESULTS = ("float8_e4m3", "float8_e5m2", "int8"), ("bfloat16", "float16", "float32")
THIN = ((16, 64), (16, 128), (32, 64), (32, 128))
TILES = ((256, 128), (128, 256), (128, 192), (128, 128), (64, 256), (64, 128), (64, 64))


def _configs(args: dict) -> list[tkc.Config]:
    """Blocks: a first one for the CPU, then those of which the model takes its choice. Where 128
    rows or columns share a scale, those of a program do.
    """
    (m, n), k, shared = args["c"].shape, args["a"].shape[1], (args.get("ROWS"), args.get("COLUMNS"))
    high, wide = (BLOCK if of == BLOCK else 256 for of in shared)
    if shared == (1, 1):
        wide = 192  # 128 x 256 have no registers for scales of rows and of columns
    line, host = min(BLOCK, max(64, power(k))), (min(BLOCK, power(m)), min(BLOCK, power(n)))
    tiles = [
        (bm, bn)
        for bm, bn in (*(THIN if m <= 32 else ()), *TILES)
        if bm <= min(high, max(64, power(m))) and bn <= min(wide, max(64, power(n)))
    ]

    def options(bm: int, bn: int) -> dict:
        retain = (
            {"retain": True} if m <= BESIDE * bm else {}
            # few blocks have all rows, which stand side by side: b need not displace what others
            # have in the cache
        )
        # two warps have no registers for scales of columns before sm_89
        return retain | ({"num_warps": 4} if (shared[1], bm, bn) == (1, 64, 64) else {})

    return [
        tkc.Config(BM=bm, BN=bn, BK=line, **options(bm, bn))
        for bm, bn in dict.fromkeys([host, *tiles])
    ]


def _stored(acc, bias, c, m, n, rows, columns, activation):
    """activation(acc + bias), to its place. bias: [N], or [M, 1] of a transpose."""
    if bias is not None:
        acc = acc + (
            tkc.load(bias, (n,), (columns,))[None, :]
            if bias.ndim == 1
            else tkc.load(bias, (m, 0), (rows, 1))
        ).to(acc.dtype)
    if activation is not None:
        acc = ACTIVATIONS[activation](acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


_grid = grid_of("c")


@tkc.autotune(_configs, measure=False)
@tkc.jit
def _scaled(
    a,
    b,
    a_scale,
    b_scale,
    bias,
    c,
    EXACT: tkc.constexpr,
    ACTIVATION: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """Scales that do not depend on k: a_scale [1] or [M, 1], b_scale [1] or [1, N]."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), summed(a.dtype))
    for k in tkc.range(0, a.shape[1], BK):
        x, y = tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN))
        acc = acc + tkc.dot(x, y) if EXACT else tkc.dot(x, y, acc)
    acc = acc.to(tkc.float32)
    if a_scale.ndim == b_scale.ndim == 1:
        acc = acc * (a_scale[0] * b_scale[0])
    else:
        acc = (
            acc
            * (a_scale[0] if a_scale.ndim == 1 else tkc.load(a_scale, (m, 0), (BM, 1)))
            * (b_scale[0] if b_scale.ndim == 1 else tkc.load(b_scale, (0, n), (1, BN)))
        )
    _stored(acc, bias, c, m, n, BM, BN, ACTIVATION)


@tkc.autotune(_configs, measure=False)
@tkc.jit
def _blocks(
    a,
    b,
    a_scale,
    b_scale,
    bias,
    c,
    ROWS: tkc.constexpr,
    COLUMNS: tkc.constexpr,
    ACTIVATION: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """Scales of blocks: a_scale of ROWS x 128, b_scale of 128 x COLUMNS; both are 1 or 128."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(0, a.shape[1], BK):
        x = (
            tkc.load(a_scale, (m, k // 128), (BM, None))[:, None]
            if ROWS == 1
            else a_scale[m // 128, k // 128]
        )
        y = (
            tkc.load(b_scale, (k // 128, n), (None, BN))[None, :]
            if COLUMNS == 1
            else b_scale[k // 128, n // 128]
        )
        part = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)))
        acc = acc + (part * x * y if ROWS == COLUMNS == 1 else part * (x * y))
    _stored(acc, bias, c, m, n, BM, BN, ACTIVATION)


# --------------------------------------------------------------------------------------------------
def _turned(name: str, *shape: int) -> tuple[int, ...]:
    return shape if name == "a" else shape[::-1]


def _readings(name: str, scale: Array, m: int, k: int) -> list[int]:
    """How many rows (or columns, of b) of a factor with m of them share a scale: 0 for all of them
    and k, -1 for one with all of its k, 1 or 128 for blocks of 128 of k. A shape may have several
    readings, which mean the same. Raises LaunchError."""
    if dtype_of(scale) != "float32":
        raise tkc.LaunchError(
            f"scaled_matmul: scales are float32, got {name}_scale of {dtype_of(scale)}; convert it"
        )
    shapes = {
        0: ((1,), (), (1, 1)),
        -1: ((m,), _turned(name, m, 1)),
        1: (_turned(name, m, tkc.cdiv(k, BLOCK)),),
        BLOCK: (_turned(name, tkc.cdiv(m, BLOCK), tkc.cdiv(k, BLOCK)),),
    }
    if found := [shared for shared, given in shapes.items() if tuple(scale.shape) in given]:
        return found
    whole, each, narrow, wide = (list(given[0]) for given in shapes.values())
    raise tkc.LaunchError(
        f"scaled_matmul: {name}_scale is {whole}, {each}, or of blocks {narrow} or {wide}, got"
        f" {list(scale.shape)}; quantize, quantize_rows and quantize_blocks make such scales"
    )


def _shared(a: Array, b: Array, a_scale: Array, b_scale: Array) -> tuple[int, int]:
    """The readings of both scales that go together: both of blocks, or neither."""
    found = [
        _readings(name, scale, m, a.shape[1])
        for name, scale, m in (("a", a_scale, a.shape[0]), ("b", b_scale, b.shape[1]))
    ]
    for blocks in (False, True):
        one, two = ([shared for shared in readings if (shared > 0) == blocks] for readings in found)
        if one and two:
            return one[0], two[0]
    raise tkc.LaunchError(
        "scaled_matmul: scales of blocks go with scales of blocks, got a_scale"
        f" {list(a_scale.shape)} and b_scale {list(b_scale.shape)}; quantize both factors with"
        " quantize_blocks"
    )


def _checked(
    a: Array, b: Array, a_scale: Array, b_scale: Array, bias: Array | None, activation: str | None
) -> tuple[int, int]:
    """What _shared says. Raises LaunchError where shapes or types do not fit."""
    given = {"a": a, "b": b, "a_scale": a_scale, "b_scale": b_scale} | (
        {} if bias is None else {"bias": bias}
    )
    if len({library(x) for x in given.values()}) > 1:
        raise tkc.LaunchError(
            "scaled_matmul:"
            f" {', '.join(f'{name} is of {library(x)}' for name, x in given.items())}; convert to"
            " arrays of one library"
        )
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise tkc.LaunchError(
            f"scaled_matmul takes a [M, K] and b [K, N], got {list(a.shape)} and {list(b.shape)};"
            " reshape them to matrices"
        )
    _check_operands(a, b)
    _check_epilogue(b, bias, activation)
    shared = _shared(a, b, a_scale, b_scale)
    if shared[0] > 0 and dtype_of(a) == "int8":
        raise tkc.LaunchError(
            "scaled_matmul: scales of blocks are those of float8 factors, got int8; quantize to"
            " float8_e4m3, or by rows"
        )
    return shared


def _check_operands(a: Array, b: Array) -> None:
    kinds = dtype_of(a), dtype_of(b)
    if any(kind not in FACTORS for kind in kinds) or "int8" in kinds and kinds[0] != kinds[1]:
        raise tkc.LaunchError(
            "scaled_matmul takes operands of float8_e4m3 and float8_e5m2, or both of int8, got"
            f" {kinds[0]} and {kinds[1]}; quantize them, or call matmul"
        )
    if a.shape[1] != b.shape[0]:
        raise tkc.LaunchError(
            f"scaled_matmul: a has {a.shape[1]} columns and b has {b.shape[0]} rows"
            f" ({list(a.shape)} @ {list(b.shape)}); transpose one"
        )


def _check_epilogue(b: Array, bias: Array | None, activation: str | None) -> None:
    if activation is not None and activation not in ACTIVATIONS:
        raise tkc.LaunchError(
            f"activation is None or one of {', '.join(ACTIVATIONS)}, got {activation!r}"
        )
    if bias is not None and tuple(bias.shape) != (b.shape[1],):
        raise tkc.LaunchError(
            f"scaled_matmul: expected a bias of {[b.shape[1]]}, got {list(bias.shape)}; give one"
            " number a column"
        )


# --------------------------------------------------------------------------------------------------
def _launch(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    bias: Array | None,
    activation: str | None,
    exact: bool,
    out: Array,
    shared: tuple[int, int],
) -> None:
    if 0 in out.shape:
        return
    a, b = fitting(a, b)
    rows, columns = shared
    if rows <= 0:
        a_scale, b_scale = (
            scale.reshape((1,) if one == 0 else _turned(name, math.prod(scale.shape), 1))
            for name, scale, one in (("a", a_scale, rows), ("b", b_scale, columns))
        )
    ways = [(a, b, a_scale, b_scale, bias, out, rows, columns)]
    if narrow(out):
        scales = (s if len(s.shape) == 1 else s.T for s in (b_scale, a_scale))
        turned = None if bias is None else bias[:, None]
        ways.append((b.T, a.T, *scales, turned, out.T, columns, rows))
    exact = exact and dtype_of(a) != "int8"

    def kernel_of(way):
        *arrays, rows, columns = way
        if rows <= 0:
            return _scaled, arrays, {"EXACT": exact, "ACTIVATION": activation}
        return _blocks, arrays, {"ROWS": rows, "COLUMNS": columns, "ACTIVATION": activation}

    found = [*map(kernel_of, ways)]
    kernel, arrays, constants = min(found, key=_seconds) if len(found) > 1 else found[0]
    kernel[_grid](*arrays, **constants)


def _seconds(way: tuple[Any, Sequence[Array | None], dict[str, Any]]) -> float:
    """The cost model's, of a kernel with its arrays and constants."""
    kernel, arrays, constants = way
    return kernel.choose(*arrays, **constants, grid=_grid).seconds or 0.0


@operator(name="scaled_matmul")
def _new(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    bias: Array | None = None,
    activation: str | None = None,
    dtype: str = "bfloat16",
    exact: bool = True,
) -> Iterator[Array]:
    """scaled_matmul with a result of its own."""
    shared = _checked(a, b, a_scale, b_scale, bias, activation)
    if dtype not in RESULTS:
        raise tkc.LaunchError(f"scaled_matmul: dtype is one of {', '.join(RESULTS)}, got {dtype!r}")
    out = empty(a, (a.shape[0], b.shape[1]), dtype)
    yield out
    _launch(a, b, a_scale, b_scale, bias, activation, exact, out, shared)


@operator(name="scaled_matmul_", mutates="out")
def _into(
    out: Array,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    bias: Array | None = None,
    activation: str | None = None,
    exact: bool = True,
) -> Iterator[None]:
    """scaled_matmul into a given array."""
    shared = _checked(a, b, a_scale, b_scale, bias, activation)
    if tuple(out.shape) != (a.shape[0], b.shape[1]):
        raise tkc.LaunchError(
            f"scaled_matmul: expected out of {[a.shape[0], b.shape[1]]}, got {list(out.shape)};"
            " give one of that shape, or none"
        )
    if dtype_of(out) not in RESULTS:
        raise tkc.LaunchError(
            f"scaled_matmul: out is of {', '.join(RESULTS)}, got {dtype_of(out)}; convert the"
            " result"
        )
    yield None
    _launch(a, b, a_scale, b_scale, bias, activation, exact, out, shared)


def scaled_matmul(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    bias: Array | None = None,
    activation: str | None = None,
    out: Array | None = None,
    dtype: str = "bfloat16",
    exact: bool = True,
) -> Array:
    """activation((a · a_scale) @ (b · b_scale) + bias) of 8-bit factors, as
    torch.nn.functional.scaled_mm has it.

    a [M, K] and b [K, N]: float8_e4m3 or float8_e5m2, which may mix, or both int8; in any memory
    order, best with k dense in both (weights [N, K] as w.T). Scales: float32, in any memory order,

        of a tensor           a_scale [1] or [], b_scale [1] or [] (quantize)
        of rows, columns      a_scale [M] or [M, 1], b_scale [N] or [1, N] (quantize_rows of a and
                              of w)
        of blocks             a_scale [M, ceil(K / 128)] or [ceil(M / 128), ceil(K / 128)],
                              b_scale [ceil(K / 128), ceil(N / 128)] or [ceil(K / 128), N]
                              (quantize_blocks of a and of w, whose scales are transposed as w is)

    the first two in any combination, those of blocks (not of int8) with one another. On a GPU
    scales of 1 x 128 blocks are read fastest where columns of a_scale are dense, as quantize_blocks
    makes them. exact: float8 is added up in float32 after each 128 of k (always with scales of
    blocks, and int8 is exact anyway); False leaves the whole sum to the tensor core, on Hopper with
    fewer bits than float32 and faster. bias: [N]. activation: as in `matmul`. out: where the result
    goes, rounded to its element type; else a new array of `dtype`: bfloat16, float16 or float32.
    Scales and bias are applied in float32. Raises LaunchError where shapes or types do not fit.
    """
    try:
        if out is None:
            return _new(a, b, a_scale, b_scale, bias, activation, dtype, exact)
        _into(out, a, b, a_scale, b_scale, bias, activation, exact)
        return out
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
