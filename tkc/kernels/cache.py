"""New keys, rotated, and new values into a cache of keys and values, dense or in pages, in one
launch: what `rotary` and two copies would do in three.

    k[b, t]      goes to position lengths[b] − tokens + t of sequence b, turned by the angles of
                 that position (`rotary`); v[b, t] goes there as it is
    8 bits       what is stored is divided by the scale by which attention multiplies
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import tkc
from tkc.kernels.arrays import Array, dtype_of, expect, floats, full, power
from tkc.kernels.attention_blocks import FLOAT8
from tkc.kernels.attention_checks import check_lengths, check_pages
from tkc.kernels.operator import operator

NAME = "append_to_cache_"


def _place(cache: Any, b: Any, at: Any, row: Any, size: int) -> Any:
    """The heads of position `at` of a sequence, [heads, D]. row: of its pages of `size` rows."""
    return cache[b, :, at] if row is None else cache[row[at // size], at % size]


def _scaled(value: Any, scale: Any, heads: int, out: Any) -> Any:
    """What is stored of a value: divided by its head's scale, in the element type of `out`."""
    if scale is not None:
        value = value.to(tkc.float32) / tkc.load(scale, (0,), (heads,), other=1.0)[:, None]
    return value.to(out.dtype)


def _copy(x: Any, out: Any, scale: Any, first: Any, heads: int, columns: int) -> None:
    """Stores columns from `first` on of all heads; x and out end where they do."""
    if columns:
        block = tkc.load(x, (0, first), (heads, columns))
        tkc.store(out, (0, first), _scaled(block, scale, heads, out))


def _turned(x: Any, c: Any, s: Any, heads: int, half: int, interleaved: bool) -> tuple[Any, Any]:
    """Both members of the pairs of all columns of x, turned; columns apart by 1 or by half."""
    r = x.shape[1] // 2
    if interleaved:
        pairs = tkc.load(x, (0, 0), (heads, 2 * half)).to(tkc.float32)
        a, b = tkc.split(pairs.reshape(heads, half, 2))
    else:
        a, b = (
            tkc.load(x[:, i * r : (i + 1) * r], (0, 0), (heads, half)).to(tkc.float32)
            for i in range(2)
        )
    return a * c - b * s, b * c + a * s


@tkc.jit
def _append(
    k,
    v,
    k_cache,
    v_cache,
    lengths,
    table,
    cos,
    sin,
    k_scale,
    v_scale,
    PAGE: tkc.constexpr,
    INTERLEAVED: tkc.constexpr,
    FIRST: tkc.constexpr,
    HALF: tkc.constexpr,
    REST: tkc.constexpr,
    DV: tkc.constexpr,
    HEADS: tkc.constexpr,
):
    """One token's keys and values of all heads."""
    t, b = tkc.program_id(0), tkc.program_id(1)
    at, row = lengths[b] - k.shape[1] + t, None if table is None else table[b]
    room = k_cache.shape[2] if table is None else table.shape[1] * PAGE
    if (at >= 0) & (at < room):
        x, out = k[b, t], _place(k_cache, b, at, row, PAGE)
        r = 0 if cos is None else cos.shape[1]
        _copy(x[:, 0:FIRST], out[:, 0:FIRST], k_scale, 0, HEADS, power(FIRST) if FIRST else 0)
        if HALF:
            c, s = (tkc.load(y[at], (0,), (HALF,)).to(tkc.float32)[None, :] for y in (cos, sin))
            x_r, out_r = (y[:, FIRST : FIRST + 2 * r] for y in (x, out))
            a, d = (
                _scaled(y, k_scale, HEADS, out)
                for y in _turned(x_r, c, s, HEADS, HALF, INTERLEAVED)
            )
            if INTERLEAVED:
                tkc.store(out_r, (0, 0), tkc.interleave(a, d))
            else:
                tkc.store(out_r[:, 0:r], (0, 0), a)
                tkc.store(out_r[:, r : 2 * r], (0, 0), d)
        _copy(x, out, k_scale, FIRST + 2 * r, HEADS, REST)
        if v is not None:
            _copy(v[b, t], _place(v_cache, b, at, row, PAGE), v_scale, 0, HEADS, DV)


def _check(x: Array, cache: Array, lengths: Array, pages: Array | None, name: str) -> None:
    """Raises LaunchError unless x, [batch, tokens, heads, D], fits the cache."""
    if len(x.shape) != 4 or len(cache.shape) != 4:
        raise tkc.LaunchError(
            f"{NAME}: expected {name} of [batch, tokens, heads, D] and a cache of [batch, heads,"
            f" capacity, D], or [pages, page size, heads, D] beside pages, got {list(x.shape)} and"
            f" {list(cache.shape)}"
        )
    batch, _, heads, d = x.shape
    want = (batch, heads, cache.shape[2], d) if pages is None else (*cache.shape[:2], heads, d)
    expect(cache, want, f"{name}_cache")
    check_pages(x, pages, NAME)
    check_lengths(x, lengths, NAME)


def _check_angles(x: Array, cos: Array | None, sin: Array | None, room: int, first: int) -> None:
    """Raises LaunchError unless cos and sin are angles of every position of pairs of columns of x
    from `first` on.
    """
    if (cos is None) != (sin is None):
        raise tkc.LaunchError(f"{NAME}: cos and sin come together")
    d = x.shape[-1]
    if not 0 <= first <= d:
        raise tkc.LaunchError(f"{NAME}: first is a column of k, from 0 to {d}, got {first}")
    if cos is None:
        return
    expect(sin, cos.shape, "sin")
    if len(cos.shape) != 2 or cos.shape[0] < room or first + 2 * cos.shape[1] > d:
        raise tkc.LaunchError(
            f"{NAME}: cos and sin are [positions >= {room}, R / 2 <= {(d - first) // 2}], got"
            f" {list(cos.shape)}"
        )


def _check_values(
    k: Array, v: Array, k_cache: Array, v_cache: Array, lengths: Array, pages: Array | None
) -> None:
    """Raises LaunchError where values and their cache do not go with the keys'."""
    _check(v, v_cache, lengths, pages, "v")
    both = (k.shape[:3], v.shape[:3]), (k_cache.shape[:3], v_cache.shape[:3])
    if any(tuple(a) != tuple(b) for a, b in both):
        raise tkc.LaunchError(
            f"{NAME}: k is {list(k.shape)} and v {list(v.shape)}, their caches"
            f" {list(k_cache.shape)} and {list(v_cache.shape)}; all but D must agree"
        )


@operator(name="append_to_cache_", mutates="k_cache v_cache")
def _appended(
    k: Array,
    v: Array | None,
    k_cache: Array,
    v_cache: Array | None,
    lengths: Array,
    cos: Array | None,
    sin: Array | None,
    pages: Array | None,
    interleaved: bool,
    first: int,
    k_scale: Array | None,
    v_scale: Array | None,
) -> Iterator[None]:
    """append_to_cache_ with scales as arrays."""
    _check(k, k_cache, lengths, pages, "k")
    if v is not None and v_cache is not None:
        _check_values(k, v, k_cache, v_cache, lengths, pages)
    size = 0 if pages is None else k_cache.shape[1]
    room = k_cache.shape[2] if pages is None else pages.shape[1] * size
    _check_angles(k, cos, sin, room, first)
    floats(k, v, cos, sin)
    (batch, tokens, heads, d), r = k.shape, 0 if cos is None else cos.shape[1]
    for scale, of in ((k_scale, k_cache), (v_scale, v_cache)):
        expect(scale, (heads,), "a scale")
        if scale is not None and dtype_of(of) != FLOAT8:
            raise tkc.LaunchError(
                f"{NAME}: scales are for caches of {FLOAT8}, and this one is {dtype_of(of)};"
                " divide before the call"
            )
    yield None
    if not prod(k.shape):
        return
    rest = d - first - 2 * r
    _append[tokens, batch](
        *(k, v, k_cache, v_cache, lengths, pages, cos, sin, k_scale, v_scale),
        PAGE=size,
        INTERLEAVED=interleaved,
        FIRST=first,
        HALF=power(r) if r else 0,
        REST=power(rest) if rest else 0,
        DV=0 if v is None or not v.shape[-1] else power(v.shape[-1]),
        HEADS=power(heads),
    )


def append_to_cache_(
    k: Array,
    v: Array | None,
    k_cache: Array,
    v_cache: Array | None,
    lengths: Array,
    cos: Array | None = None,
    sin: Array | None = None,
    pages: Array | None = None,
    interleaved: bool = False,
    first: int = 0,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
) -> None:
    """Writes new keys, rotated, and values into a cache that `attention_decode` reads, in place.

    k: [batch, tokens, heads, D], v: the same with a D of its own, or None with v_cache None. The
    caches: [batch, heads, capacity, D], or pools of [pages, page size, heads, D] with pages, int32
    of [batch, pages of a sequence]. lengths: int32 [batch], how many tokens a sequence has with the
    new ones: token t of n goes to position lengths − n + t; one whose position is negative, or
    behind the capacity, is left out. cos, sin: [positions, R / 2] as of `rotary`, read by position
    (None: keys are not turned); first: the first column that is turned, of R. Caches of float8_e4m3
    take k / k_scale and v / v_scale: numbers or float32 of [heads]. For a cache of latents
    (`attention_latent`) pass it with an axis for its one head, no v, and first = rank. Two tokens
    may not have one place. Raises LaunchError where shapes, types or options do not fit.
    """
    try:
        if (v is None) != (v_cache is None):
            raise tkc.LaunchError(f"{NAME}: v and v_cache come together")
        scales = (
            full(k, (k.shape[-2],), x, "float32") if isinstance(x, (int, float)) else x
            for x in (k_scale, v_scale)
        )
        given = k, v, k_cache, v_cache, lengths, cos, sin, pages
        _appended(*given, interleaved, first, *scales)
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
