"""What arguments of attention must be, and the options of its kernels."""

from __future__ import annotations

import sys

import tkc
from tkc.kernels.arrays import Array, dtype_of, expect, full, is_traced, library
from tkc.kernels.attention_blocks import FLOAT8

# of a block of rows with a scale of its own, at least: what a program's block has
MIN_SCALED_ROWS = 64


def check(q: Array, k: Array, v: Array, mixed: bool = False) -> None:
    """Raises LaunchError where shapes or types do not fit together; mixed: k and v may be float8
    beside a q of 16 bits.
    """
    if len({library(x) for x in (q, k, v)}) > 1:
        raise tkc.LaunchError(
            "attention: q, k and v are arrays of different libraries; convert them to one"
        )
    if mixed and dtype_of(k) == dtype_of(v) == FLOAT8 and dtype_of(q) in ("bfloat16", "float16"):
        pass
    elif len({dtype_of(x) for x in (q, k, v)}) > 1 or dtype_of(q) not in (
        "bfloat16",
        "float16",
        "float32",
        FLOAT8,
    ):
        raise tkc.LaunchError(
            "attention: expected one element type of bfloat16, float16, float32 and"
            f" {FLOAT8}{f' (or k and v of {FLOAT8} beside a q of 16 bits)' * mixed}, got"
            f" {dtype_of(q)}, {dtype_of(k)} and {dtype_of(v)}; convert them"
        )
    if not len(q.shape) == len(k.shape) == len(v.shape):
        raise tkc.LaunchError(
            f"attention: expected arrays of one rank, got {list(q.shape)}, {list(k.shape)} and"
            f" {list(v.shape)}"
        )
    if q.shape[-1] != k.shape[-1]:
        raise tkc.LaunchError(
            f"attention: rows of q have {q.shape[-1]} elements, those of k {k.shape[-1]}; they must"
            " have as many"
        )
    if not (q.shape[-1] and v.shape[-1]):
        raise tkc.LaunchError(
            f"attention: rows of q have {q.shape[-1]} elements and those of v {v.shape[-1]}; it"
            " takes one or more"
        )
    if tuple(k.shape[:-1]) != tuple(v.shape[:-1]):
        raise tkc.LaunchError(
            f"attention: k is {list(k.shape)} and v {list(v.shape)}; they must have the same keys"
            " and heads"
        )


def group_of(queries: int, keys: int) -> int:
    if not keys or queries % keys:
        raise tkc.LaunchError(
            f"attention: {queries} heads of q cannot share {keys} of k and v; the first must be a"
            " multiple of the second"
        )
    return queries // keys


def check_scales(
    arrays: tuple[Array, Array, Array],
    heads: int,
    shared: int,
    scales: dict[str, Array | None],
    rows: tuple[int, int, int] | None = None,
) -> tuple[int, int, int]:
    """Of how many rows of q, k and v each of their scales is, 0 where one is a whole head's. rows:
    how many a head of each has, of [batch, heads, rows, D]; None: a scale is a head's. Raises
    LaunchError unless the scales are those of float8 arrays, float32.
    """
    found = []
    for i, (of, (name, x)) in enumerate(zip(arrays, scales.items(), strict=True)):
        found.append(0)
        if x is None:
            continue
        if dtype_of(of) != FLOAT8:
            raise tkc.LaunchError(
                f"attention: {name} is for arrays of {FLOAT8}, and {name[0]} is {dtype_of(of)};"
                " multiply by it before the call"
            )
        each = heads if name == "q_scale" else shared
        if rows is None or len(x.shape) != 3:
            expect(x, (each,), name)
        else:
            expect(x, (of.shape[0], each, x.shape[2]), name)
            found[-1] = _rows_of_scale(rows[i], x.shape[2], name)
        if dtype_of(x) != "float32":
            raise tkc.LaunchError(f"attention: {name} is float32, got {dtype_of(x)}; convert it")
    return found[0], found[1], found[2]


def _rows_of_scale(rows: int, scales: int, name: str) -> int:
    """The power of two that `rows` rows of so many scales have each, 64 at least. Raises
    LaunchError where there is none.
    """
    size = MIN_SCALED_ROWS
    while tkc.cdiv(rows, size) > scales:
        size *= 2
    if tkc.cdiv(rows, size) != scales:
        raise tkc.LaunchError(
            f"attention: {name} has {scales} scales for {rows} rows; give one to every"
            f" {MIN_SCALED_ROWS}, or to twice as many, or so on, or [heads]"
        )
    return size


def numbers_of(
    arrays: tuple[Array, Array, Array],
    scale: float | None,
    scales: dict[str, Array | float | None],
    shared: int,
) -> tuple[float | None, list[Array | None]]:
    """Scales of q and k that are numbers join that of the scores, one of v becomes an array."""
    if not (numbers := {name: x for name, x in scales.items() if isinstance(x, (int, float))}):
        return scale, list(scales.values())
    for of, name in zip(arrays, scales, strict=False):
        if name in numbers and dtype_of(of) != FLOAT8:
            raise tkc.LaunchError(
                f"attention: {name} is for arrays of {FLOAT8}, and {name[0]} is {dtype_of(of)};"
                " multiply by it before the call"
            )
    q, v = arrays[0], arrays[2]
    if {"q_scale", "k_scale"} & numbers.keys():
        scale = (
            (max(q.shape[-1], 1) ** -0.5 if scale is None else scale)
            * numbers.get("q_scale", 1)
            * numbers.get("k_scale", 1)
        )

    def each(name, x):
        return (
            x
            if name not in numbers
            else full(v, (shared,), x, "float32")
            if name == "v_scale"
            else None
        )

    return scale, [each(name, x) for name, x in scales.items()]


def result_type(q: Array) -> str:
    """The element type of a result: that of q, but bfloat16 for one of 8 bits."""
    return "bfloat16" if dtype_of(q) == FLOAT8 else dtype_of(q)


def masks_of(causal: bool, window: int | None, softcap: float, scale: float | None, d: int) -> dict:
    if window is not None and (window < 1 or not causal):
        raise tkc.LaunchError(
            f"attention: a window is a number of keys from 1 on, with causal=True; got {window}"
            f" with causal={causal}"
        )
    if softcap < 0:
        raise tkc.LaunchError(f"attention: a soft cap is positive, or 0 for none; got {softcap}")
    scale = max(d, 1) ** -0.5 if scale is None else scale
    if not scale > 0:
        raise tkc.LaunchError(
            f"attention: scale is positive, got {scale}; negate q for a negative one"
        )
    return dict(
        scale=float(scale),
        cap=float(softcap),
        window=window or 0,
        CAUSAL=causal,
        WINDOW=window is not None,
        CAP=softcap > 0,
    )


def check_sequences(q: Array, k: Array, cu_seqlens: Array, cu_seqlens_k: Array | None) -> None:
    """Raises LaunchError unless q and k are [tokens, heads, D], and where sequences begin is
    int32, of the keys' (None: the queries') as many.
    """
    if len(q.shape) != 3:
        raise tkc.LaunchError(
            "attention: expected q, k and v of [tokens, heads, D] beside cu_seqlens, got"
            f" {list(q.shape)} and {list(k.shape)}"
        )
    if cu_seqlens_k is None and q.shape[0] != k.shape[0]:
        raise tkc.LaunchError(
            f"attention: q has {q.shape[0]} tokens and k {k.shape[0]}; pass cu_seqlens_k and"
            " max_seqlen_k where they differ"
        )
    for name, x in dict(cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k).items():
        if x is None:
            continue
        if len(x.shape) != 1 or x.shape[0] < 1 or dtype_of(x) != "int32":
            raise tkc.LaunchError(
                f"attention: {name} is an array of int32 with one more element than sequences, got"
                f" {dtype_of(x)} {list(x.shape)}"
            )
    if cu_seqlens_k is not None:
        expect(cu_seqlens_k, cu_seqlens.shape, "cu_seqlens_k")


def check_together(
    cu_seqlens: Array | None,
    max_seqlen: int | None,
    cu_seqlens_k: Array | None,
    max_seqlen_k: int | None,
) -> None:
    """Raises LaunchError where one of the arguments of ragged batches lacks another."""
    if (cu_seqlens is None) != (max_seqlen is None):
        raise tkc.LaunchError("attention: cu_seqlens and max_seqlen come together")
    if (cu_seqlens_k is None) != (max_seqlen_k is None):
        raise tkc.LaunchError("attention: cu_seqlens_k and max_seqlen_k come together")
    if cu_seqlens_k is not None and cu_seqlens is None:
        raise tkc.LaunchError("attention: cu_seqlens_k comes beside cu_seqlens")


def check_heads(heads: int, **arrays: Array | None) -> None:
    """Raises LaunchError unless each array is float32, a number for each head of Q."""
    for name, x in arrays.items():
        expect(x, (heads,), name)
        if x is not None and dtype_of(x) != "float32":
            raise tkc.LaunchError(f"attention: {name} is float32, got {dtype_of(x)}; convert it")


def check_pages(q: Array, pages: Array | None, name: str) -> None:
    """Raises LaunchError unless pages (None: none) is a table of pages, a row for each of q's
    batches. name: the function's.
    """
    if pages is not None and (
        len(pages.shape) != 2
        or dtype_of(pages) != "int32"
        or len(q.shape) == 4
        and pages.shape[0] != q.shape[0]
    ):
        raise tkc.LaunchError(
            f"{name}: pages is int32 of [batch, pages of a sequence], got"
            f" {dtype_of(pages)} {list(pages.shape)}"
        )


def check_lengths(q: Array, lengths: Array, name: str) -> None:
    """Raises LaunchError unless lengths are int32, one for each of q's batches. name: the
    function's.
    """
    expect(lengths, q.shape[:1], "lengths")
    if dtype_of(lengths) != "int32":
        raise tkc.LaunchError(f"{name}: lengths are int32, got {dtype_of(lengths)}; convert them")


def wants_gradient(*arrays: Array | None) -> bool:
    """Whether autograd of torch records a call with these arrays, or jax traces it. Raises
    LaunchError for float8.
    """
    if not any(map(is_traced, arrays)) and not _is_recorded(arrays):
        return False
    if any(x is not None and dtype_of(x) == FLOAT8 for x in arrays):
        raise tkc.LaunchError(
            f"attention: {FLOAT8} has no gradient; pass q.detach() and so on, or bfloat16"
        )
    return True


def _is_recorded(arrays: tuple[Array | None, ...]) -> bool:
    """Whether autograd of torch records a call with these arrays."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return False
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in arrays)
