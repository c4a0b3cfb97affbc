"""Products with weights of 4 bits, decoded on their way to the tensor cores.

    y = x Wᵀ + bias,   W[n, k] = value(code[n, k]) · scale[n, k // group]
    int4    value(c) = c - 8, or c - zero[n, k // group]
    nf4     the 16 quantiles of a normal distribution (Dettmers et al., 2023)
    fp4     e2m1: ±0, ½, 1, 1½, 2, 3, 4, 6; mxfp4 and nvfp4 by their scales

Words of 16 bits hold four codes each, so that a thread of a tensor core finds in a word what it
multiplies, and two words beside one another are neighbours along k:

    word 8 g + 2 j + h of a row, bits 4 p … 4 p + 3:  k = 32 g + 16 (p // 2) + 8 (p % 2) + 2 j + h

A weight is computed in float32 and rounded to x's element type, in the registers from which the
tensor core reads its left factor: the product is taken as its transpose, W xᵀ. Where scales are of
x's element type, int4 is computed in that, two weights at a time: c - 8 is exact, and one rounding
is left, of the same product. Rows of float8 become bfloat16 first, which has all their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import tkc
from tkc.kernels.arrays import (
    Array,
    contiguous,
    dtype_of,
    empty,
    expect,
    floats,
    matrix,
    power,
)
from tkc.kernels.blocks import grid_of
from tkc.kernels.matmul import BESIDE, matmul
from tkc.kernels.operator import operator

KINDS = ("int4", "nf4", "fp4")
FORMS = ("codes", "gptq", "awq", "low_first", "high_first")
STEP = 32  # of k, whose codes are eight words
GROUPS = (16, 32, 64, 128, 256)
NF4_BELOW = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453)
NF4_LITTLE = (-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0)
NF4_MORE = (0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224)
NF4_MOST = (0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
NF4 = (*NF4_BELOW, *NF4_LITTLE, *NF4_MORE, *NF4_MOST)
LARGEST = MappingProxyType({"int4": 7.0, "nf4": 1.0, "fp4": 6.0})
# bits of a power of two whose last bits count ones, and that power
ONES = MappingProxyType(
    {
        tkc.float32: (0x4B000000, 2.0**23),
        tkc.bfloat16: (0x4300, 2.0**7),
        tkc.float16: (0x6400, 2.0**10),
    }
)
ROWS_OF_X = (16, 32, 64, 128, 256)
ELEMENTS = 4096  # of a block that is packed or decoded


# ---- codes and values ----------------------------------------------------------------------------
def _codes(words, K, kind):
    """Codes [N, K] of words [N, K / 4], integers of that kind."""
    rows, g = words.shape[0], K // STEP
    shift = (4 * tkc.arange(4)).to(kind).reshape(1, 1, 1, 1, 2, 2)
    held = words.to(kind).reshape(rows, g, 4, 2)[:, :, :, :, None, None]
    return ((held >> shift) & 15).permute(0, 1, 4, 5, 2, 3).reshape(rows, K)


def _count(codes, zero, dtype):
    """Codes less a number, as floats of so many bits: codes' bits behind those of a power of two,
    from which that is taken away.
    """
    bits, power_of_two = ONES[dtype]
    return (codes | bits).to(dtype, bitcast=True) - (power_of_two + zero)


def _value(codes, zero, KIND):
    """What codes stand for, in float32; zero: of int4."""
    if KIND == "int4":
        return _count(codes, zero, tkc.float32)
    if KIND == "fp4":  # exponent and fraction in their places of a float32, 2^126 too small
        size = ((codes & 7) << 22).to(tkc.float32, bitcast=True) * 2.0**126
        return tkc.where(codes >= 8, -size, size)
    values = list(NF4)
    for bit in range(4):
        odd = (codes >> bit) & 1 != 0
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [tkc.where(odd, high, low) for low, high in pairs]
    return values[0]


def _of_groups(array, n, k, BN, BK, G, dtype=tkc.float32):
    """One number a row and group of a block, as a tile that broadcasts to it."""
    if G >= BK:
        return tkc.load(array, (n, k // G), (BN, None)).to(dtype)[:, None]
    found = tkc.load(array, (n, k // G), (BN, BK // G)).to(dtype)
    return tkc.broadcast_to(found[:, :, None], (BN, BK // G, G)).reshape(BN, BK)


def _weights(words, scales, zeros, n, k, BN, BK, G, KIND):
    """A block of W, in float32."""
    codes = _codes(tkc.load(words, (n, k // 4), (BN, BK // 4)), BK, tkc.int32)
    values = _value(codes, 8.0 if zeros is None else 0.0, KIND)
    if zeros is not None:
        values = values - _of_groups(zeros, n, k, BN, BK, G)
    return values * _of_groups(scales, n, k, BN, BK, G)


def _short_weights(words, scales, n, k, BN, BK, G):
    """A block of W of int4 without zero points, in the 16-bit type of its scales."""
    codes = _codes(tkc.load(words, (n, k // 4), (BN, BK // 4)), BK, tkc.int16)
    values = _count(codes, 8.0, scales.dtype)
    return values * _of_groups(scales, n, k, BN, BK, G, scales.dtype)


def decoded(
    words: Any,
    scales: Any,
    zeros: Any,
    n: Any,
    k: Any,
    BN: int,
    BK: int,
    G: int,
    KIND: str,
    dtype: Any,
) -> Any:
    """A block of W [BN, BK], of float32 or of the element type of what it is multiplied with."""
    if KIND == "int4" and zeros is None and scales.dtype == dtype != tkc.float32:
        return _short_weights(words, scales, n, k, BN, BK, G)
    return _weights(words, scales, zeros, n, k, BN, BK, G, KIND)


def _configs(args: dict) -> list[tkc.Config]:
    """A first one for the CPU, then blocks of few and of many rows of x."""
    (m, n), k = args["y"].shape, args["x"].shape[1]
    # each block of rows decodes its weights anew
    rows = [r for r in ROWS_OF_X if r <= max(16, power(m))][-2:]
    host = (min(64, power(m)), min(128, max(16, power(n))), max(STEP, min(64, power(k))))
    blocks = [(bm, bn, bk) for bm in rows for bn in (64, 128) for bk in (64, 128)]
    fit = [b for b in blocks if b[0] * b[1] <= 256 * 128]
    retain = {"retain": True} if m <= BESIDE * rows[-1] else {}
    return [tkc.Config(BM=bm, BN=bn, BK=bk, **retain) for bm, bn, bk in dict.fromkeys([host, *fit])]


_grid = grid_of("y")


@tkc.autotune(_configs, measure=False)
@tkc.jit
def _packed(
    x,
    x_scales,
    words,
    scales,
    zeros,
    bias,
    y,
    KIND: tkc.constexpr,
    G: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN))
    for k in tkc.range(0, x.shape[1], BK):
        w = decoded(words, scales, zeros, n, k, BN, BK, G, KIND, x.dtype)
        acc = tkc.dot(tkc.load(x, (m, k), (BM, BK)), w.to(x.dtype).T, acc)
    if x_scales is not None:
        acc = acc * tkc.load(x_scales, (m,), (BM,)).to(tkc.float32)[:, None]
    if bias is not None:
        acc = acc + tkc.load(bias, (n,), (BN,)).to(tkc.float32)[None, :]
    tkc.store(y, (m, n), acc.to(y.dtype))


@tkc.jit
def _widen(x, out, N: tkc.constexpr):
    at = tkc.program_id(0) * N
    tkc.store(out, (at,), tkc.load(x, (at,), (N,)).to(out.dtype))


@tkc.jit
def _decode(
    words,
    scales,
    zeros,
    out,
    KIND: tkc.constexpr,
    G: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    n, k = tkc.program_id(0) * BN, tkc.program_id(1) * BK
    tkc.store(out, (n, k), _weights(words, scales, zeros, n, k, BN, BK, G, KIND).to(out.dtype))


@tkc.jit
def _encode(
    w,
    words,
    scales,
    zeros,
    KIND: tkc.constexpr,
    EXPONENTS: tkc.constexpr,
    G: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    n, k, parts = tkc.program_id(0) * BN, tkc.program_id(1) * BK, BK // G
    v = tkc.load(w, (n, k), (BN, BK)).to(tkc.float32).reshape(BN, parts, G)
    if zeros is None:
        scale = tkc.max(tkc.abs(v), axis=2) * (1 / LARGEST[KIND])
        if EXPONENTS:  # the least power of two that is as large
            bits = scale.to(tkc.int32, bitcast=True) + 0x7FFFFF
            scale = (bits & 0x7F800000).to(tkc.float32, bitcast=True)
    else:
        low, high = tkc.minimum(tkc.min(v, axis=2), 0), tkc.maximum(tkc.max(v, axis=2), 0)
        scale = (high - low) * (1 / 15)
    scale = tkc.where(scale > 0, scale, 1.0).to(scales.dtype).to(tkc.float32)
    tkc.store(scales, (n, k // G), scale.to(scales.dtype))
    v, zero = v / scale[:, :, None], 8.0
    if zeros is not None:
        middle = tkc.minimum(tkc.round(-low / scale), 15.0)
        tkc.store(zeros, (n, k // G), middle.to(zeros.dtype))
        zero = middle[:, :, None]
    tkc.store(words, (n, k // 4), _words(_nearest(v, zero, KIND).reshape(BN, BK)))


def _nearest(v, zero, KIND):
    """The codes whose values are nearest; of two the even one."""
    if KIND == "int4":
        return tkc.minimum(tkc.maximum(tkc.round(v) + zero, 0.0), 15.0).to(tkc.int32)
    if KIND == "nf4":
        return sum((v > (a + b) / 2).to(tkc.int32) for a, b in zip(NF4, NF4[1:], strict=False))
    size, code = tkc.abs(v), (v < 0).to(tkc.int32) << 3
    for i, middle in enumerate((0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)):
        code = code + (size >= middle if i % 2 else size > middle).to(tkc.int32)
    return code


def _words(codes):
    """Words [N, K / 4] of codes [N, K]."""
    rows, k = codes.shape
    apart = codes.reshape(rows, k // STEP, 2, 2, 4, 2).permute(0, 1, 4, 5, 2, 3)
    shifted = apart.reshape(rows, k // 4, 4) << (4 * tkc.arange(4))[None, None, :]
    return tkc.sum(shifted, axis=2).to(tkc.int16)


def _unpacked(words, shift, axis):
    """Codes of words that hold several along an axis of a matrix, the first at shift[0]."""
    count, (rows, columns) = shift.shape[0], words.shape
    if axis == 0:
        found = (words[:, None, :] >> shift[None, :, None]) & 15
        return found.reshape(rows * count, columns)
    return ((words[:, :, None] >> shift[None, None, :]) & 15).reshape(rows, columns * count)


def _awq_shift():
    """Where eight neighbours are in a word of AWQ: 0, 4, 1, 5, 2, 6, 3, 7."""
    i = tkc.arange(8)
    return 4 * (i // 2 + 4 * (i % 2))


@tkc.jit
def _pack(source, words, FORM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    n, k = tkc.program_id(0) * BN, tkc.program_id(1) * BK
    if FORM == "codes":
        codes = tkc.load(source, (n, k), (BN, BK)).to(tkc.int32)
    elif FORM == "gptq":
        held = tkc.load(source, (k // 8, n), (BK // 8, BN))
        codes = _unpacked(held, 4 * tkc.arange(8), 0).T
    elif FORM == "awq":
        held = tkc.load(source, (k, n // 8), (BK, BN // 8))
        codes = _unpacked(held, _awq_shift(), 1).T
    else:
        held = tkc.load(source, (n, k // 2), (BN, BK // 2)).to(tkc.int32)
        i = tkc.arange(2)
        codes = _unpacked(held, 4 * (i if FORM == "low_first" else 1 - i), 1)
    tkc.store(words, (n, k // 4), _words(codes))


@tkc.jit
def _unpack_zeros(source, zeros, FORM: tkc.constexpr, BN: tkc.constexpr, BG: tkc.constexpr):
    n, g = tkc.program_id(0) * BN, tkc.program_id(1) * BG
    held = tkc.load(source, (g, n // 8), (BG, BN // 8))
    codes = _unpacked(held, 4 * tkc.arange(8) if FORM == "gptq" else _awq_shift(), 1)
    more = 1 if FORM == "gptq" else 0  # GPTQ stores them less one
    tkc.store(zeros, (n, g), (codes + more).to(zeros.dtype).T)


# --------------------------------------------------------------------------------------------------
def words_of(k: int) -> int:
    """Words of a row of so many weights."""
    return tkc.cdiv(k, STEP) * (STEP // 4)


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise tkc.LaunchError(f"{name} is one of {', '.join(known)}, got {value!r}")


def check_kind(kind: str, group: int) -> None:
    """Raises LaunchError for what no weights of 4 bits are."""
    _one_of("kind", kind, KINDS)
    if group not in GROUPS:
        raise tkc.LaunchError(f"group is one of {', '.join(map(str, GROUPS))}, got {group}")


def _check_packed(
    words: Array, scales: Array, zeros: Array | None, kind: str, group: int, k: int
) -> None:
    check_kind(kind, group)
    if zeros is not None and kind != "int4":
        raise tkc.LaunchError(f"zero points are of int4, got some with {kind}; leave them out")
    if len(words.shape) != 2 or dtype_of(words) != "int16":
        raise tkc.LaunchError(
            f"packed weights are int16 [rows, words], got {dtype_of(words)} {list(words.shape)};"
            " pack_codes and quantize_packed make them"
        )
    expect(words, (words.shape[0], words_of(k)), "words")
    floats(scales, zeros)
    expect(scales, (words.shape[0], tkc.cdiv(k, group)), "scales")
    expect(zeros, scales.shape, "zeros")


def _is_float8(x: Array) -> bool:
    return dtype_of(x).startswith("float8")


def _packed_block(group: int) -> tuple[int, int]:
    """Of a program that packs or decodes: whole groups, whole words."""
    k = max(group, STEP)
    return max(8, ELEMENTS // k), k


@operator
def packed_matmul(
    x: Array,
    words: Array,
    scales: Array,
    zeros: Array | None = None,
    bias: Array | None = None,
    kind: str = "int4",
    group: int = 128,
    x_scales: Array | None = None,
) -> Iterator[Array]:
    """x Wᵀ + bias for W of 4 bits, [..., N], of x's element type; summed in float32.

    x: [..., K], bfloat16, float16 or float32; or float8 rows, which stand for x_scales times
    themselves, floats [...] (without: 1): then the result is bfloat16. words: int16 [N, 8 ⌈K / 32⌉]
    as pack_codes and quantize_packed make them; scales, and for "int4" zeros: floats
    [N, ⌈K / group⌉]; bias: [N]. kind: "int4", "nf4" or "fp4". group: 16, 32, 64, 128 or 256.
    Differentiable with torch for x that is not float8, and bias. Raises LaunchError where shapes,
    types or names do not fit.
    """
    floats(x, bias, x_scales)
    if not len(x.shape):
        raise tkc.LaunchError("packed_matmul: x is [..., K], got a scalar; give it a row")
    _check_packed(words, scales, zeros, kind, group, x.shape[-1])
    expect(bias, words.shape[:1], "bias")
    expect(x_scales, x.shape[:-1], "x_scales")
    if x_scales is not None and not _is_float8(x):
        raise tkc.LaunchError(
            f"packed_matmul: x_scales are of float8 rows, got {dtype_of(x)}; multiply the rows"
        )
    out = empty(x, (*x.shape[:-1], words.shape[0]), "bfloat16" if _is_float8(x) else dtype_of(x))
    yield out
    rows, result = matrix(contiguous(x)), matrix(out)
    if 0 in result.shape:
        return
    if _is_float8(x):
        short, rows = rows, empty(x, rows.shape, "bfloat16")
        count = rows.shape[0] * rows.shape[1]
        _widen[tkc.cdiv(count, ELEMENTS)](
            short.reshape((count,)), rows.reshape((count,)), N=ELEMENTS
        )
    of_rows = None if x_scales is None else contiguous(x_scales).reshape((rows.shape[0],))
    _packed[_grid](rows, of_rows, words, scales, zeros, bias, result, KIND=kind, G=group)


@operator
def dequantize_packed(
    words: Array,
    scales: Array,
    zeros: Array | None = None,
    width: int = 0,
    kind: str = "int4",
    group: int = 128,
    dtype: str = "bfloat16",
) -> Iterator[Array]:
    """The weights [N, width] that packed_matmul multiplies, in a float type; width 0: as many as
    the words have. Raises LaunchError where shapes, types or names do not fit.
    """
    width = width or 4 * words.shape[-1]
    _check_packed(words, scales, zeros, kind, group, width)
    out = empty(words, (words.shape[0], width), dtype)
    yield out
    height, block = _packed_block(group)
    _decode[tkc.cdiv(out.shape[0], height), tkc.cdiv(width, block)](
        words, scales, zeros, out, KIND=kind, G=group, BN=height, BK=block
    )


@operator
def quantize_packed(
    w: Array,
    kind: str = "int4",
    group: int = 128,
    zero_points: bool = False,
    exponents: bool = False,
    scale_dtype: str = "float32",
) -> Iterator[tuple[Array, Array, Array]]:
    """Weights [N, K] in 4 bits, to the nearest: words, scales and zeros (without elements unless
    zero_points), as packed_matmul takes them.

    A group's scale is its largest magnitude over that of a code (7, 1, 6); with zero_points, of
    "int4", its extent over 15; with exponents the next power of two (mxfp4: kind "fp4" and group
    32). scale_dtype: of scales and zeros. Raises LaunchError where shapes or names do not fit.
    """
    floats(w)
    _one_of("kind", kind, KINDS)
    if len(w.shape) != 2 or group not in GROUPS or zero_points and kind != "int4":
        raise tkc.LaunchError(
            "quantize_packed takes weights [N, K], a group of"
            f" {', '.join(map(str, GROUPS))}, and zero points for int4 alone, got"
            f" {list(w.shape)}, {group} and {kind}"
        )
    (n, k), groups = w.shape, tkc.cdiv(w.shape[1], group)
    words, scales = empty(w, (n, words_of(k)), "int16"), empty(w, (n, groups), scale_dtype)
    zeros = empty(w, (n, groups) if zero_points else (0,), scale_dtype)
    yield words, scales, zeros
    height, block = _packed_block(group)
    _encode[tkc.cdiv(n, height), tkc.cdiv(k, block)](
        contiguous(w),
        words,
        scales,
        zeros if zero_points else None,
        KIND=kind,
        EXPONENTS=exponents,
        G=group,
        BN=height,
        BK=block,
    )


@operator
def pack_codes(source: Array, form: str = "codes") -> Iterator[Array]:
    """Words of packed_matmul from codes as checkpoints have them. form:

    "codes"        [N, K] integers 0 … 15
    "gptq"         int32 [K / 8, N], eight along K from the lowest bits up (in the order of groups:
                   desc_act checkpoints need their g_idx sorted, and x's columns likewise, before)
    "awq"          int32 [K, N / 8], eight along N in AWQ's order
    "low_first"    uint8 [N, K / 2], the even one in the low bits (mxfp4)
    "high_first"   uint8 [N, K / 2], the even one in the high bits (bitsandbytes)

    Raises LaunchError where the form, shape or type does not fit.
    """
    _one_of("form", form, FORMS)
    kinds = {"codes": ("int8", "uint8", "int32", "int64"), "gptq": ("int32",), "awq": ("int32",)}
    if len(source.shape) != 2 or dtype_of(source) not in kinds.get(form, ("uint8",)):
        raise tkc.LaunchError(
            f"pack_codes: {form} are a matrix of {' or '.join(kinds.get(form, ('uint8',)))}, got"
            f" {dtype_of(source)} {list(source.shape)}"
        )
    rows, columns = source.shape
    n, k = {
        "codes": (rows, columns),
        "gptq": (columns, 8 * rows),
        "awq": (8 * columns, rows),
    }.get(form, (rows, 2 * columns))
    words = empty(source, (n, words_of(k)), "int16")
    yield words
    _pack[tkc.cdiv(n, 64), tkc.cdiv(k, 64)](contiguous(source), words, FORM=form, BN=64, BK=64)


@operator
def unpack_zeros(source: Array, form: str = "gptq", dtype: str = "bfloat16") -> Iterator[Array]:
    """Zero points of a checkpoint, int32 [K / group, N / 8], as packed_matmul takes them: floats
    [N, K / group]. form: "gptq" (stored less one) or "awq". Raises LaunchError where they do not
    fit.
    """
    _one_of("form", form, ("gptq", "awq"))
    if len(source.shape) != 2 or dtype_of(source) != "int32":
        raise tkc.LaunchError(
            f"unpack_zeros: zero points are int32 [K / group, N / 8], got {dtype_of(source)}"
            f" {list(source.shape)}"
        )
    zeros = empty(source, (8 * source.shape[1], source.shape[0]), dtype)
    yield zeros
    _unpack_zeros[tkc.cdiv(zeros.shape[0], 64), tkc.cdiv(zeros.shape[1], 16)](
        contiguous(source), zeros, FORM=form, BN=64, BG=16
    )


@packed_matmul.backward(
    saves="x words scales zeros kind group x_scales", without="scales zeros x_scales"
)
def _(saved, grad):
    x = saved.x
    if _is_float8(x):
        raise tkc.LaunchError(
            "packed_matmul: float8 rows have no gradient; give bfloat16 ones where one is wanted"
        )
    dx = of_bias = None
    if saved.needs["x"]:
        weights = dequantize_packed(
            saved.words,
            saved.scales,
            saved.zeros,
            x.shape[-1],
            saved.kind,
            saved.group,
            dtype_of(x),
        )
        dx = matmul(grad.to(x.dtype), weights)
    if saved.needs["bias"]:
        of_bias = matrix(grad).sum(0)
    return dict(x=dx, bias=of_bias)
