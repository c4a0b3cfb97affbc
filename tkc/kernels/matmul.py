"""Matrix products, with NumPy's rules for their shapes and an epilogue that costs nothing:
activation(a @ b + bias).

The kernel is the plain block program of examples/matmul.py. Its blocks and schedule are chosen for
the shapes by the compiler's cost model and the tables beside this file (`tkc.autotune`, without
measuring; TKC_AUTOTUNE=1 measures). Operands may be row- or column-major, in every combination,
without a copy. Rows that do not start at multiples of 16 bytes cannot be copied by the hardware's
own engine: where the cost model finds it faster, such operands are copied to rows that do, both in
one launch. So it is with a long k and few blocks, which is cut in parts that a second launch adds
up, always in the same order; a matrix times a vector has launches of its own, and a result whose
rows start at odd elements may be computed as its transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import inf, prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tkc
from tkc.kernels.activations import FUNCTIONS, gelu_backward, silu_backward
from tkc.kernels.arrays import Array, dtype_of, empty, library, matrix, power, written_out
from tkc.kernels.copies import (
    BYTES,
    MIN_WEIGHED_WORK,
    Laid,
    at_once,
    copier,
    filled_shape,
    has_dense_columns,
    is_odd,
    narrow,
    odd_factors,
    on_host,
    padded_pitch,
    strides_of,
    unaligned,
)
from tkc.kernels.operator import operator

TABLES = Path(__file__).parent / "tables" / "h200.json"
ACTIVATIONS = MappingProxyType(
    {"relu": lambda x: tkc.maximum(x, 0), "tanh": tkc.tanh, "sigmoid": tkc.sigmoid}
    | {name: lambda x, f=f: f(x, False) for name, f in FUNCTIONS.items()}
)
THIN = ((16, 64), (16, 128), (16, 256), (32, 64), (32, 128))
THIN_EXTENT = 32  # rows or columns of a product that these are for
BESIDE = 4  # blocks of rows that read b together
ROWS_BESIDE = 64, 128  # of a block to which another matrix is added
# k from which programs there and back pay, in two waves or more
MIN_K_WALKED_BACK = 4096
TILES = (
    (128, 256),
    (256, 128),
    (128, 128),
    (128, 192),
    (256, 192),
    (64, 256),
    (64, 128),
    (64, 64),
    (128, 64),
)
MAX_REMEMBERED_SHAPES = 4096  # shapes
# a launch begins while the one before it ends: copies before the product, parts before their sum
OVERLAPPED = MappingProxyType({"dependent": True})
BLOCKS_RANKED = 3  # of which the first that can be compiled is taken
WHOLE_VECTOR = 8  # elements of 16 bits in the 16 bytes that a thread copies or stores at once
HOST_PLACES = 132  # programs that the threads of a CPU share, about
MIN_PART_K = 128  # k of a part, at least
HOST_PART_K = 256  # likewise where the CPU multiplies
# blocks of parts, where each multiprocessor has several
SMALL_TILES = ((16, 32), (32, 32), (32, 64))
REPRESENTATIVE_K = 1 << 14  # k that stands for all parts
MAX_CLUSTER_ROW = 1 << 17  # elements of a row that the blocks of a cluster hold
MAX_BLOCK_ROW = 1 << 13  # elements of a row that one block does best
ADDED_ELEMENTS = 1 << 14  # elements of parts that a program adds up, about
COLUMNS_ADDED, LEAST_COLUMNS_ADDED = (256, 128), 64  # of a program that does


def _configs(args: dict, target: str) -> list[tkc.Config]:
    """Blocks for a product: those that the planner puts first where there is wgmma, with their
    times; elsewhere one for the CPU, and those of which the model takes its choice on a GPU.
    """
    if not _is_planned(args, target):
        return _by_rule(args, target)
    return [_overlapped(config).expected(seconds) for seconds, config in planned(args, target)]


def _overlapped(config: tkc.Config) -> tkc.Config:
    """The same, of a launch that begins while the one before it ends."""
    return tkc.Config(**dict(config.items), **OVERLAPPED)


def _is_planned(args: dict, target: str) -> bool:
    """Whether a target has wgmma, and both operands have 16 bits an element and a dense axis."""
    if target == "cpu" or not tkc.target(target).wgmma:
        return False
    return all(BYTES[dtype_of(x)] == 2 and 1 in strides_of(x)[-2:] for x in (args["a"], args["b"]))


def product_of(args: dict) -> tkc.Product:
    """What a product of two matrices or of batches computes."""
    (*batch, m, n), k = args["c"].shape, args["a"].shape[-1]
    of_a, of_b, of_c = (strides_of(args[name])[-2:] for name in "abc")
    pitches, (a, b, c) = (2 * max(of_a), 2 * max(of_b)), (at_once(args[name]) for name in "abc")
    vectors = a, b, min(WHOLE_VECTOR, c) if of_c[-1] == 1 else 0
    dense = of_b[-1] == 1, of_a[-1] != 1
    return tkc.Product(
        *(m, n, k, prod(batch), dense[0], pitches, False, vectors, dense[1]),
        result_pitch=BYTES[dtype_of(args["c"])] * max(of_c),
    )


def planned(
    args: dict, target: str, allowed: Callable[[Any], bool] | None = None
) -> list[tuple[float, tkc.Config]]:
    """The planner's best blocks of those that are allowed, with the seconds of the bare product."""
    m, product = args["c"].shape[-2], product_of(args)
    # b is read once, where few blocks have all rows, which stand side by side: where not all fits
    # the cache anyway, it need not displace what others have there, unless neighbours need it
    once = len(args["b"].shape) == len(args["c"].shape) and not product.shares_sectors
    once = once and product.bytes > tkc.target(target).cache
    back = {"serpentine": True} if _walks_back(args, 2, target) else {}

    def kept(block: Any) -> dict:
        return {"retain": True} if once and m <= BESIDE * block.rows else {}

    found = tkc.product_blocks(product, target, BLOCKS_RANKED, allowed)
    return [
        (seconds, tkc.Config(**block.options, **back, **kept(block))) for seconds, block in found
    ]


def _places(target: str) -> int:
    """Programs that run at once, one on each multiprocessor."""
    return HOST_PLACES if target == "cpu" else tkc.target(target).multiprocessors


def _by_rule(args: dict, target: str) -> list[tkc.Config]:
    """A first one for the CPU, then blocks that any GPU takes."""
    (m, n), k, size = args["c"].shape[-2:], args["a"].shape[-1], BYTES[dtype_of(args["a"])]
    # b is read once, where few blocks have all rows, which stand side by side: it need not displace
    # what others have in the cache
    once = len(args["b"].shape) == len(args["c"].shape)
    # k of a block: 128 bytes, the widest swizzle, unless there is less
    line = min(max(32, 128 // size), max(64 // size, power(k)))
    back = {"serpentine": True} if _walks_back(args, size, target) else {}
    return [
        tkc.Config(
            BM=bm, BN=bn, BK=bk, **back, **({"retain": True} if once and m <= BESIDE * bm else {})
        )
        for bm, bn, bk in _tiles(m, n, line)
    ]


def _tiles(m: int, n: int, line: int) -> Iterable[tuple[int, int, int]]:
    """Extents of blocks, the CPU's first. line: k of most."""
    tiles = [
        (bm, bn)
        for bm, bn in (*_thin(m, n), *TILES)
        if bm <= max(64, power(m)) and bn <= max(64, power(n))
    ]
    host = (min(256, power(m)), min(256, power(n)), 64)
    deep = [(bm, bn, 2 * line) for bm, bn in tiles if bm * bn <= 128 * 64]
    return dict.fromkeys([host, *((bm, bn, line) for bm, bn in tiles), *deep])


def _thin(m: int, n: int) -> Iterable[tuple[int, int]]:
    """Blocks for few rows, or for few columns."""
    rows = THIN if m <= THIN_EXTENT else ()
    columns = [(bm, bn) for bn, bm in THIN] if n <= THIN_EXTENT else []
    return (*rows, *columns)


def _walks_back(args: dict, size: int, target: str) -> bool:
    """What is long walks there and back where there is room for waves of it, in blocks that read
    least.
    """
    m, n = args["c"].shape[-2:]
    is_matrix = len(args["c"].shape) == 2
    return (
        is_matrix
        and size == 2
        and args["a"].shape[-1] >= MIN_K_WALKED_BACK
        and m * n >= 2 * _places(target) * 2**15
    )


def _grid(args: dict) -> tuple[int, int, int]:
    *batch, m, n = args["c"].shape
    return tkc.cdiv(m, args["BM"]), tkc.cdiv(n, args["BN"]), prod(batch)


def _key(args: dict) -> str:
    """What the choice depends on: "bfloat16 4096x512x64 nt", then the number of batches, operands
    that all of these share, and arrays whose rows are not aligned or do not follow one another, by
    how many elements they are apart. Not the epilogue.
    """
    a, b, c = args["a"], args["b"], args["c"]
    apart = [(name, x, max(strides_of(x)[-2:])) for name, x in zip("abc", (a, b, c), strict=False)]
    (*batch, m, n), k, kind = c.shape, a.shape[-1], dtype_of(a)
    order = "".join("n" if strides_of(x)[-1] == 1 else "t" for x in (a, b))
    odd = "".join(name for name, x, _ in apart if is_odd(x))
    return " ".join(
        [
            kind,
            f"{m}x{n}x{k}",
            order,
            *([f"of {prod(batch)}"] if batch else []),
            *(f"one {name}" for name, x, _ in apart if len(x.shape) < len(c.shape)),
            *([f"odd {odd}"] if odd else []),
            *(f"{name} by {n}" for name, x, n in apart if n not in (*x.shape[-2:], 1)),
        ]
    )


def summed(dtype: Any) -> Any:
    """In what products are added up."""
    return tkc.int32 if not dtype.is_float else tkc.float64 if dtype.bits == 64 else tkc.float32


@tkc.autotune(_configs, key=_key, measure=False, table=TABLES)
@tkc.jit
def _product(
    a,
    b,
    bias,
    c,
    ACTIVATION: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
    gate=None,
    residual=None,
):
    """gate: a factor of each column of a batch; residual: what is added to that."""
    a, b, c = (x[tkc.program_id(2)] if x.ndim == 3 else x for x in (a, b, c))
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), summed(a.dtype))
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    if bias is not None:
        acc = acc + (
            tkc.load(bias, (n,), (BN,))[None, :]
            if bias.ndim == 1
            else tkc.load(bias, (m, 0), (BM, 1))
        ).to(acc.dtype)
    if ACTIVATION is not None:
        acc = ACTIVATIONS[ACTIVATION](acc)
    if gate is not None:
        acc = acc * tkc.load(gate[tkc.program_id(2)], (n,), (BN,)).to(acc.dtype)[None, :]
    if residual is not None:
        acc = acc + tkc.load(residual[tkc.program_id(2)], (m, n), (BM, BN)).to(acc.dtype)
    tkc.store(c, (m, n), acc.to(c.dtype))


def _configs_beside(args: dict, target: str) -> list[tkc.Config]:
    """Blocks for a product to which a matrix is added: threads read its rows as they lie, for 64
    columns of results at a time."""
    if not _is_planned(args, target):
        return _by_rule(args, target)
    found = planned(args, target, lambda block: block.warps or block.rows in ROWS_BESIDE)
    return [_overlapped(config) for _, config in found]


_beside = tkc.autotune(_configs_beside, key=_key, measure=False)(_product.kernel)


def gated_product(
    a: Array, b: Array, bias: Array | None, gate: Array, residual: Array, out: Array
) -> None:
    """out = residual + gate (a b + bias). a, residual and out: batches of matrices; gate: a row of
    each batch, or one of all, [1, columns]."""
    if gate.shape[0] == 1 < a.shape[0]:
        a, residual, out = (
            x.reshape((1, prod(x.shape[:2]), x.shape[2])) for x in (a, residual, out)
        )
    _beside[_grid](a, b, bias, out, ACTIVATION=None, gate=gate, residual=residual)


def _parts(args: dict, target: str) -> list[tkc.Config]:
    """Blocks for a product in parts, and k of a part."""
    found = _planned_parts(args, target) if _is_planned(args, target) else []
    return found or _parts_by_rule(args, target)


def _planned_parts(args: dict, target: str) -> list[tkc.Config]:
    """The planner's best blocks and parts."""
    product, machine = _apart(product_of(args)), tkc.target(target)
    found = tkc.product_blocks(product, target, BLOCKS_RANKED)
    return [
        tkc.Config(
            **{name: value for name, value in block.options.items() if name != "split_k"},
            **OVERLAPPED,
            DEPTH=tkc.cdiv(product.steps(block), block.split_k) * block.depth,
        ).expected(seconds - product.adding(block.split_k, machine))
        for seconds, block in found
    ]


def _apart(product: tkc.Product) -> tkc.Product:
    """A product whose parts a launch of its own adds up."""
    return replace(product, batches=1, apart=True)


def _parts_by_rule(args: dict, target: str) -> list[tkc.Config]:
    """As many parts as make about as many programs as multiprocessors, or twice as many; of small
    blocks up to three times.
    """
    (m, n), k, found = args["c"].shape[-2:], args["a"].shape[-1], []
    blocks, on_cpu = [config.constants for config in _by_rule(args, target)], target == "cpu"
    line = HOST_PART_K if on_cpu else 128 // BYTES[dtype_of(args["a"])]
    least = HOST_PART_K if on_cpu else MIN_PART_K
    small = () if on_cpu else SMALL_TILES
    for most, constants in (
        *((2, c) for c in blocks),
        *((3, {"BM": bm, "BN": bn, "BK": line}) for bm, bn in small),
    ):
        programs = tkc.cdiv(m, constants["BM"]) * tkc.cdiv(n, constants["BN"])
        counts = dict.fromkeys(
            min(waves * _places(target) // programs, k // least) for waves in range(1, most + 1)
        )
        whole = max(line, constants["BK"])  # a part ends where a step does
        found += [
            tkc.Config(**constants, DEPTH=tkc.cdiv(k, count * whole) * whole)
            for count in counts
            if count > 1
        ]
    return found or [
        tkc.Config(**constants, DEPTH=tkc.cdiv(k, least) * least) for constants in blocks
    ]


def _grid_of_parts(args: dict) -> tuple[int, int, int]:
    return (
        tkc.cdiv(args["c"].shape[1], args["BM"]),
        tkc.cdiv(args["c"].shape[2], args["BN"]),
        tkc.cdiv(args["a"].shape[1], args["DEPTH"]),
    )


@tkc.autotune(_parts, key=_key, measure=False)
@tkc.jit
def _partial(
    a, b, c, DEPTH: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr
):
    """The product in parts of DEPTH of its k, one matrix of c each: for few programs with long
    loops.
    """
    m, n, part = tkc.program_id(0) * BM, tkc.program_id(1) * BN, tkc.program_id(2)
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(part * DEPTH, tkc.minimum((part + 1) * DEPTH, a.shape[1]), BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c[part], (m, n), acc)


@tkc.jit
def _sum(
    parts,
    bias,
    out,
    ACTIVATION: tkc.constexpr,
    PARTS: tkc.constexpr,
    BM: tkc.constexpr,
    BN: tkc.constexpr,
):
    """The sum of the parts, always in the same order, all loaded at once."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    total = tkc.sum(tkc.load(parts, (0, m, n), (PARTS, BM, BN)), axis=0)
    if bias is not None:
        total = total + tkc.load(bias, (n,), (BN,)).to(tkc.float32)[None, :]
    if ACTIVATION is not None:
        total = ACTIVATIONS[ACTIVATION](total)
    tkc.store(out, (m, n), total.to(out.dtype))


@tkc.jit
def _rows(
    x,
    rows,
    bias,
    out,
    ACTIVATION: tkc.constexpr,
    STEPS: tkc.constexpr,
    BN: tkc.constexpr,
    BK: tkc.constexpr,
):
    """A vector times each row of a matrix: of rows that are dense, each whole in one program."""
    n = tkc.program_id(0) * BN

    def times(k):
        return tkc.load(rows, (n, k), (BN, BK)).to(tkc.float32) * tkc.load(x, (0, k), (1, BK)).to(
            tkc.float32
        )

    acc = times(0)
    if STEPS > 1:
        for k in tkc.range(BK, rows.shape[1], BK):
            acc = acc + times(k)
    total = tkc.sum(acc, axis=1)
    if bias is not None:
        total = total + tkc.load(bias, (n,), (BN,)).to(tkc.float32)
    if ACTIVATION is not None:
        total = ACTIVATIONS[ACTIVATION](total)
    tkc.store(out, (0, n), total.to(out.dtype)[None, :])


@tkc.jit
def _vector(x, b, parts, STEPS: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """One row's x @ b, in parts of k: on the multiply-add units, which memory keeps waiting."""
    n, part = tkc.program_id(0) * BN, tkc.program_id(1)
    acc = tkc.zeros((BK, BN), tkc.float32)
    for k in tkc.range(part * STEPS * BK, tkc.minimum((part + 1) * STEPS * BK, b.shape[0]), BK):
        acc = acc + tkc.load(x[0], (k,), (BK,)).to(tkc.float32)[:, None] * tkc.load(
            b, (k, n), (BK, BN)
        ).to(tkc.float32)
    tkc.store(parts, (part, n), tkc.sum(acc, axis=0)[None, :])


@tkc.jit
def _total(parts, bias, out, ACTIVATION: tkc.constexpr, PARTS: tkc.constexpr, BN: tkc.constexpr):
    """The sum of the parts, always in the same order."""
    n = tkc.program_id(0) * BN
    total = tkc.sum(tkc.load(parts, (0, n), (PARTS, BN)), axis=0)
    if bias is not None:
        total = total + tkc.load(bias, (n,), (BN,)).to(tkc.float32)
    if ACTIVATION is not None:
        total = ACTIVATIONS[ACTIVATION](total)
    tkc.store(out, (0, n), total.to(out.dtype)[None, :])


# --------------------------------------------------------------------------------------------------
def _shape(a: Array, b: Array) -> tuple[int, ...]:
    """The shape of a @ b by NumPy's rules. Raises LaunchError."""
    if library(a) != library(b):
        raise tkc.LaunchError(
            f"matmul: a is an array of {library(a)}, b of {library(b)}; convert one"
        )
    given = tuple(a.shape), tuple(b.shape), dtype_of(a), dtype_of(b)
    try:
        return _shape_of(*given)
    except TypeError:
        return _shape_of.__wrapped__(
            *given
        )  # extents that torch traces are symbols, which have no hash


@lru_cache(MAX_REMEMBERED_SHAPES)
def _shape_of(a: tuple[int, ...], b: tuple[int, ...], *kinds: str) -> tuple[int, ...]:
    if not a or not b:
        raise tkc.LaunchError(
            "matmul takes arrays of rank 1 and more, got a scalar; multiply with *"
        )
    if kinds[0] != kinds[1] and not all(k.startswith("float8") for k in kinds):
        raise tkc.LaunchError(
            f"matmul: expected one element type, got {kinds[0]} and {kinds[1]}; convert one"
        )
    if kinds[0] not in BYTES:
        raise tkc.LaunchError(
            f"matmul does not take {kinds[0]}; convert to one of {', '.join(BYTES)}"
        )
    k, inner = a[-1], b[-2] if len(b) > 1 else b[0]
    if k != inner:
        raise tkc.LaunchError(
            f"matmul: a has {k} columns and b has {inner} rows ({list(a)} @ {list(b)});"
            " transpose one"
        )
    return (*_batch(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _batch(one, other) -> tuple[int, ...]:
    shape = [1] * (max(len(one), len(other)) - len(one)) + list(one)
    for i, n in enumerate(reversed(other), 1):
        if n != shape[-i] and 1 not in (n, shape[-i]):
            raise tkc.LaunchError(
                f"matmul: batches of {list(one)} and {list(other)} cannot be broadcast"
            )
        shape[-i] = n if shape[-i] == 1 else shape[-i]
    return tuple(shape)


def result_dtype(a: Array, dtype: str | None) -> str:
    """Of the result: as given, or that of a, int32 of integers and bfloat16 of 8-bit floats."""
    kind = dtype_of(a)
    return dtype or (
        "int32" if "int" in kind else "bfloat16" if kind.startswith("float8") else kind
    )


def _operand(x: Array, batch: tuple[int, ...]) -> Array:
    """An operand with the axes (batch, rows, columns), or without the first where it has none of
    its own.
    """
    if prod(x.shape[:-2]) == 1:
        return x if len(x.shape) == 2 else x.reshape(x.shape[-2:])
    if tuple(x.shape[:-2]) != batch:
        x = (
            x.expand((*batch, *x.shape[-2:]))
            if library(x) == "torch"
            else _broadcast(x, (*batch, *x.shape[-2:]))
        )
    return x if len(x.shape) == 3 else x.reshape((prod(batch), *x.shape[-2:]))


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    from importlib import import_module

    return import_module("jax.numpy" if library(x) == "jax" else library(x)).broadcast_to(x, shape)


# --------------------------------------------------------------------------------------------------
def _launch(a: Array, b: Array, bias: Array | None, activation: str | None, out: Array) -> None:
    _check_epilogue(bias, activation, out)
    if 0 in out.shape:
        return
    a, b, out, batch = _as_matrices(a, b, out)
    if len(batch) > 1 and not _dense(out):  # axes that do not merge: a result of its own, copied
        result = empty(out)
        _launch(a, b, bias, activation, result)
        out[...] = result
        return
    a, b = _operand(a, batch), _operand(b, batch)
    c = out if len(batch) < 2 else out.reshape((prod(batch), *out.shape[-2:]))
    if len(c.shape) == 3 and len(a.shape) == len(b.shape) == 2:
        c = c[0]
    _launch_plan(a, b, bias, activation, c)(a, b, bias, c)


def _check_epilogue(bias: Array | None, activation: str | None, out: Array) -> None:
    if activation is not None and activation not in ACTIVATIONS:
        raise tkc.LaunchError(
            f"activation is None or one of {', '.join(ACTIVATIONS)}, got {activation!r}"
        )
    if bias is not None and tuple(bias.shape) != tuple(out.shape[-1:]):
        raise tkc.LaunchError(
            f"matmul: expected a bias of {list(out.shape[-1:])}, got {list(bias.shape)}"
        )


def _as_matrices(a: Array, b: Array, out: Array) -> tuple[Array, Array, Array, tuple[int, ...]]:
    """Operands and result with at least two axes, and the axes of the batch."""
    if len(a.shape) == 1:
        a, out = a[None, :], out[..., None] if len(b.shape) == 1 else out[..., None, :]
    if len(b.shape) == 1:
        b, out = b[:, None], out[..., None]
    if len(a.shape) > 2 and len(b.shape) == 2 and _dense(a) and _dense(out):
        # rows of all batches are rows of one product
        return _merged_rows(a), b, _merged_rows(out), ()
    return a, b, out, tuple(out.shape[:-2])


def _merged_rows(x: Array) -> Array:
    """All rows of a batch as one matrix."""
    return x.reshape((prod(x.shape[:-1]), x.shape[-1]))


def _launch_plan(
    a: Array, b: Array, bias: Array | None, activation: str | None, c: Array
) -> Callable[..., None]:
    """How a product of two matrices or of batches is launched: as it is, of copies whose rows are
    aligned, in parts of k, or as a vector's; of the candidates the cost model's choice.
    """
    if len(c.shape) != 2:
        return _whole(activation)
    (m, n), k = c.shape, a.shape[1]
    if n == 1 < m and bias is None and _floats(a) and k:
        return _of_transposes(_launch_plan(b.T, a.T, None, activation, c.T))
    if m == 1 and _floats(a) and k and (vectors := _vectors(b, n, k, activation)):
        return vectors
    return _best_plan(a, b, activation, c)


def _best_plan(a: Array, b: Array, activation: str | None, c: Array) -> Callable[..., None]:
    """The way to launch a product of two matrices that the cost model finds the quickest."""
    (m, n), k = c.shape, a.shape[1]
    part, target = HOST_PART_K if on_host(a) else MIN_PART_K, tkc.target_of(a)
    small = _floats(a) and _is_short_of_blocks(m, n, k, part, target)
    if not any(odd_factors(a, b, MIN_WEIGHED_WORK)) and not small and not narrow(c):
        return _whole(activation)
    if target == "cpu":
        return _parted(a, b, c, activation, "cpu")[1]()
    plans = _plans(a, b, activation, c, small)
    if narrow(c):
        # of the transpose a thread holds runs of a row
        least = min(seconds for seconds, _ in plans)
        turned = _plans(b.T, a.T, activation, c.T, in_parts=False, below=least)
        plans += [(seconds, _then(make, _of_transposes)) for seconds, make in turned]
    return min(plans, key=lambda plan: plan[0])[1]()


def _of_transposes(then: Callable[..., None]) -> Callable[..., None]:
    """cᵀ = bᵀ aᵀ."""

    def run(a, b, bias, c):
        then(b.T, a.T, None if bias is None else bias[:, None], c.T)

    return run


# seconds of a way to launch a product, by the cost model, and what gives the function that does
Way = tuple[float, Callable[[], Callable[..., None]]]


def _plans(
    a: Array, b: Array, activation: str | None, c: Array, in_parts: bool, below: float = inf
) -> list[Way]:
    """Ways to launch a product on a GPU: with or without copies of operands whose rows are not
    aligned, whole or, where `in_parts`, in parts of k. Of those that take more than `below`
    seconds, or than another, it need not be known how much.
    """
    odd = odd_factors(a, b, MIN_WEIGHED_WORK)
    columns, target = [has_dense_columns(a, 1), has_dense_columns(b, 0)], tkc.target_of(a)
    copied = [(x, t) for x, t, o in zip((a, b), columns, odd, strict=True) if o]

    def with_copies(then):
        copy = copier([x for x, _ in copied], [t for _, t in copied], filled=True)
        if all(odd):
            return lambda a, b, bias, c: then(*copy(a, b), bias, c)
        if odd[0]:
            return lambda a, b, bias, c: then(*copy(a), b, bias, c)
        return lambda a, b, bias, c: then(a, *copy(b), bias, c)

    laid = [_laid(x, t if o else None) for x, t, o in zip((a, b), columns, odd, strict=True)]
    plans: list[Way] = []
    for operands, copies in ([a, b], False), *([(laid, True)] if copied else []):
        elements = sum(prod(x.shape) for x, _ in copied) if copies else 0
        first = _later_launch(target, 2 * BYTES[dtype_of(a)] * elements, "copied") if copies else 0
        left, right = operands
        for way in (_whole_way, _parted)[: 1 + in_parts]:
            seconds, make = way(left, right, c, activation, target, below - first)
            plans.append((first + seconds, _then(make, with_copies) if copies else make))
            below = min(below, first + seconds)
    return plans


def _then(make: Callable[[], Any], change: Callable[[Any], Any]) -> Callable[[], Any]:
    """What makes something, and changes it."""
    return lambda: change(make())


def _whole_way(a: Any, b: Any, c: Any, activation: str | None, target: str, below: float) -> Way:
    """A product as it is."""
    return _seconds(a, b, c, activation, target, below), lambda: _whole(activation)


def _seconds(a: Any, b: Any, c: Any, activation: str | None, target: str, below: float) -> float:
    """The model's seconds of a product as it is, or of more than `below` any that are."""
    args = {"a": a, "b": b, "c": c}
    if _is_planned(args, target):
        return _least(product_of(args), target, below)
    choice = _product.choose(
        *map(str, (_laid(a), _laid(b))),
        None,
        str(_laid(c)),
        ACTIVATION=activation,
        grid=_grid,
        target=target,
    )
    return choice.seconds or 0.0


def _least(product: tkc.Product, target: str, below: float) -> float:
    """Seconds of the planner's best block; infinite where there is none, or each takes longer."""
    found = tkc.product_blocks(product, target, 1 if below < inf else BLOCKS_RANKED, None, below)
    return float(found[0][0]) if found else inf


def _whole(activation: str | None) -> Callable[..., None]:
    return lambda a, b, bias, c: _product[_grid](a, b, bias, c, ACTIVATION=activation)


def _parted(a: Any, b: Any, c: Any, activation: str | None, target: str, below: float = inf) -> Way:
    """A product in parts of k that are added up in a second launch."""
    args, made = {"a": a, "b": b, "c": c}, partial(_made_in_parts, a, b, c, activation, target)
    if _is_planned(args, target):
        return _least(_apart(product_of(args)), target, below), made
    choice, (m, n), k = _chosen_parts(a, b, c, target), c.shape, a.shape[1]
    count = tkc.cdiv(k, choice.config.constants["DEPTH"])
    return (choice.seconds or 0.0) + _later_launch(target, 4 * m * n * count, "added"), made


def _chosen_parts(a: Any, b: Any, c: Any, target: str) -> Any:
    """Blocks and k of parts."""
    return _partial.choose(
        *map(str, (_laid(a), _laid(b))),
        f"float32[{REPRESENTATIVE_K // MIN_PART_K}, {c.shape[0]}, {c.shape[1]}]",
        grid=_grid_of_parts,
        target=target,
    )


def _made_in_parts(
    a: Any, b: Any, c: Any, activation: str | None, target: str
) -> Callable[..., None]:
    (m, n), k = c.shape, a.shape[1]
    choice = _chosen_parts(a, b, c, target)
    config = dict(choice.config.items)
    count = tkc.cdiv(k, config["DEPTH"])
    grid, held = (tkc.cdiv(m, config["BM"]), tkc.cdiv(n, config["BN"]), count), power(count)
    rows = max(1, 64 // held)
    columns = _columns_added(m, n, rows, held, target)
    sums = tkc.cdiv(m, rows), tkc.cdiv(n, columns)

    def run(a, b, bias, c):
        parts = empty(c, (count, m, n), "float32")
        _partial.kernel[grid](a, b, parts, **config)
        options = {"PARTS": held, "BM": rows, "BN": columns}
        _sum[sums](parts, bias, c, ACTIVATION=activation, **options, **OVERLAPPED)

    return run


def _columns_added(m: int, n: int, rows: int, held: int, target: str) -> int:
    """Columns of a program that adds up so many rows of so many parts: as many as leave every
    multiprocessor a program.
    """
    most = max(LEAST_COLUMNS_ADDED, ADDED_ELEMENTS // held)
    widths = (n for n in COLUMNS_ADDED if n <= most)
    programs = tkc.cdiv(m, rows) * n
    return next((w for w in widths if programs >= w * _places(target)), LEAST_COLUMNS_ADDED)


def _later_launch(target: str, size: int, doing: str) -> float:
    """Seconds of a launch that follows another and moves so many bytes; doing: "copied" or "added".
    On a CPU nothing is weighed by it.
    """
    if target == "cpu":
        return 0.0
    device = tkc.target(target)
    reached = getattr(device.costs, doing) * device.memory * 1e9
    return float(device.costs.later_launch_seconds + size / reached)


def _is_short_of_blocks(m: int, n: int, k: int, part: int, target: str) -> bool:
    """Whether blocks of C may be too few to give every multiprocessor a program, and k is long
    enough to be cut in several parts of so much.
    """
    side = 64 if m <= 64 else 128
    return tkc.cdiv(m, side) * tkc.cdiv(n, side) <= _places(target) // 2 and k >= 8 * part


def _laid(x: Any, columns: bool | None = None) -> Laid:
    """What stands for a matrix where nothing is launched, or for an aligned copy of it, whose
    columns are dense or its rows.
    """
    if columns is None:
        return Laid(dtype_of(x), tuple(x.shape), strides_of(x))
    pitch = padded_pitch(x, columns)
    strides = (1, pitch) if columns else (pitch, 1)
    return Laid(dtype_of(x), filled_shape(x, columns), strides)


def _vectors(b: Array, n: int, k: int, activation: str | None) -> Callable | None:
    """How a row times a matrix is launched; None where that is an ordinary product: rows of the
    matrix that the hardware's own engine copies are best multiplied as they come.
    """
    places = _places(tkc.target_of(b))
    columns = strides_of(b)[1] == 1 and n > 1  # neighbours in memory: columns, or k
    if columns and n >= 64 and not on_host(b) and not unaligned(b):
        return None
    if not columns and not on_host(b) and (n >= 4 * places or k <= MAX_CLUSTER_ROW):
        bn, bk = (4, 2048) if k > MAX_BLOCK_ROW and n >= 4 * places else (1, power(k))
        grid, steps = tkc.cdiv(n, bn), tkc.cdiv(k, bk)
        warps = OVERLAPPED | ({"num_warps": 8} if 2048 <= bn * bk <= 8192 else {})
        return lambda a, b, bias, c: _rows[grid](
            a, b.T, bias, c, ACTIVATION=activation, STEPS=steps, BN=bn, BK=bk, **warps
        )
    bn = 64 if columns else min(16, power(n))
    bk = 4096 // bn
    steps, strips = tkc.cdiv(k, bk), tkc.cdiv(n, bn)
    each = power(tkc.cdiv(steps * strips, 4 * places))  # steps of a program
    count = tkc.cdiv(steps, each)

    def run(a, b, bias, c):
        parts = empty(c, (count, n), "float32")
        _vector[strips, count](a, b, parts, STEPS=each, BN=bn, BK=bk, **OVERLAPPED)
        options = {"PARTS": power(count), "BN": 64}
        _total[tkc.cdiv(n, 64)](parts, bias, c, ACTIVATION=activation, **options, **OVERLAPPED)

    return run


def _dense(x: Array) -> bool:
    return strides_of(x) == tuple(prod(x.shape[i + 1 :]) for i in range(len(x.shape)))


def _floats(x: Array) -> bool:
    return dtype_of(x) in ("bfloat16", "float16", "float32")


@operator(name="matmul")
def _new(
    a: Array,
    b: Array,
    bias: Array | None = None,
    activation: str | None = None,
    dtype: str | None = None,
) -> Iterator[Array]:
    """matmul with a result of its own."""
    out = empty(a, _shape(a, b), result_dtype(a, dtype))
    yield out
    _launch(a, b, bias, activation, out)


@operator(name="matmul_", mutates="out")
def _into(
    out: Array, a: Array, b: Array, bias: Array | None = None, activation: str | None = None
) -> Iterator[None]:
    """matmul into a given array."""
    if tuple(out.shape) != _shape(a, b):
        raise tkc.LaunchError(
            f"matmul: expected out of {list(_shape(a, b))}, got {list(out.shape)}"
        )
    yield None
    _launch(a, b, bias, activation, out)


def matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    activation: str | None = None,
    out: Array | None = None,
    dtype: str | None = None,
) -> Array:
    """activation(a @ b + bias), by NumPy's rules for shapes: vectors, matrices, and batches of
    them, broadcast.

    a, b: of one element type (the two float8 may mix), in any memory order; accumulated in float32
    (float64 and integers in their own). bias: [N], added in the accumulator's precision.
    activation: None, "relu", "gelu" (by erf), "gelu_tanh", "silu", "tanh", "sigmoid". out: where
    the result goes (not into a or b), rounded to its element type; else a new array of `dtype`, by
    default that of a (int32 of integers, bfloat16 of 8-bit floats). Differentiable with torch.
    Raises LaunchError where shapes or types do not fit.
    """
    try:
        if out is None:
            return _new(a, b, bias, activation, dtype)
        _into(out, a, b, bias, activation)
        return out
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise


@cache
def _turn(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _summed(grad, shape):
    """A gradient summed over what was broadcast."""
    if len(grad.shape) > len(shape):
        grad = grad.sum(tuple(range(len(grad.shape) - len(shape))))
    for axis, n in enumerate(shape):
        if n == 1 and grad.shape[axis] != 1:
            grad = grad.sum(axis, keepdim=True)
    return grad


def before_activation(
    grad: Any, activation: str | None, result: Any, compute: Callable[[], Any]
) -> Any:
    """The gradient of what an activation was applied to. compute: that, computed again."""
    if activation is None:
        return grad
    if activation == "relu":
        return grad * (result > 0)
    if activation == "tanh":
        return grad * (1 - result.float().square())
    if activation == "sigmoid":
        return grad * (result.float() * (1 - result.float()))
    if activation == "silu":
        return silu_backward(grad, compute())
    return gelu_backward(grad, compute(), "tanh" if activation == "gelu_tanh" else "none")


@_new.backward(saves="a b bias activation result")
def _(saved, grad):
    a, b, bias = saved.a, saved.b, saved.bias
    grad = before_activation(
        grad, saved.activation, saved.result, lambda: _new(a, b, bias, None, None)
    )
    grad = written_out(grad.to(a.dtype))
    left, right = a[None, :] if len(a.shape) == 1 else a, b[:, None] if len(b.shape) == 1 else b
    full = grad
    if len(a.shape) == 1:
        full = full.unsqueeze(-1 if len(b.shape) == 1 else -2)
    if len(b.shape) == 1:
        full = full.unsqueeze(-1)

    def turn(x):
        return x.permute(_turn(len(x.shape)))

    da = _summed(_new(full, turn(right)), left.shape).reshape(a.shape) if saved.needs["a"] else None
    if not saved.needs["b"]:
        db = None
    elif len(right.shape) == 2 and len(left.shape) > 2:
        db = _new(matrix(left).T, matrix(full)).reshape(b.shape)
    else:
        db = _summed(_new(turn(left), full), right.shape).reshape(b.shape)
    dbias = matrix(grad).sum(0) if saved.needs["bias"] else None
    return da, db, dbias
