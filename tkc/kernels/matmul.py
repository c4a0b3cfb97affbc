"""Matrix products, with NumPy's rules for their shapes and an epilogue that costs nothing: activation(a @ b + bias).

The kernel is the plain block program of examples/matmul.py. Its blocks and schedule are chosen for the shapes by the compiler's cost model and the tables beside this
file (`tkc.autotune`, without measuring; TKC_AUTOTUNE=1 measures). Operands may be row- or column-major, in every combination, without a copy. Rows that do not start at
multiples of 16 bytes cannot be copied by the hardware's own engine: where the product is large, such an operand is copied to rows that do.
"""
from __future__ import annotations

from functools import cache
from math import prod
from pathlib import Path
from types import MappingProxyType

import tkc
from tkc.kernels.activations import FUNCTIONS, gelu_backward, silu_backward
from tkc.kernels.arrays import Array, dtype_of, empty, library, power, written_out
from tkc.kernels.operator import operator

TABLES = Path(__file__).parent / "tables" / "h200.json"
ACTIVATIONS = MappingProxyType({"relu": lambda x: tkc.maximum(x, 0), "tanh": tkc.tanh, "sigmoid": tkc.sigmoid} | {name: (lambda x, f=f: f(x, False)) for name, f in FUNCTIONS.items()})
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1, "float8_e4m3": 1, "float8_e5m2": 1}
THIN = ((16, 64), (16, 128), (16, 256), (32, 64), (32, 128))
TILES = ((128, 256), (256, 128), (128, 128), (128, 192), (256, 192), (64, 256), (64, 128), (64, 64), (128, 64))
WORTH, SHORT = 1 << 28, 16                     # multiply-adds, and rows or columns that share an operand, from which aligned copies of it pay
REMEMBERED = 4096
PROGRAMS, DEEPEST = 512, 256                    # programs that a product with a vector is cut into; k of a block, at most


def _configs(args: dict) -> list[tkc.Config]:
    """Blocks for a product: a first one for the CPU, then those of which the model takes its choice on a GPU."""
    (m, n), size = args["c"].shape[-2:], BYTES[dtype_of(args["a"])]
    line = min(max(32, 128 // size), max(64 // size, power(args["a"].shape[-1])))  # k of a block: 128 bytes, the widest swizzle, unless there is less
    tiles = [(bm, bn) for bm, bn in (*(THIN if m <= 32 else ()), *TILES) if bm <= max(64, power(m)) and bn <= max(64, power(n))]
    host = (min(256, power(m)), min(256, power(n)), 64)
    return [tkc.Config(BM=bm, BN=bn, BK=bk) for bm, bn, bk in dict.fromkeys([host, *((bm, bn, line) for bm, bn in tiles), *((bm, bn, 2 * line) for bm, bn in tiles if bm * bn <= 128 * 64)])]


def _grid(args: dict) -> tuple[int, int, int]:
    *batch, m, n = args["c"].shape
    return tkc.cdiv(m, args["BM"]), tkc.cdiv(n, args["BN"]), prod(batch)


def _key(args: dict) -> str:
    """What the choice depends on: "bfloat16 4096x512x64 nt", then the number of batches, and operands whose rows are not aligned. Not the epilogue."""
    a, b, c = args["a"], args["b"], args["c"]
    (*batch, m, n), k, kind = c.shape, a.shape[-1], dtype_of(a)
    order = "".join("n" if strides_of(x)[-1] == 1 else "t" for x in (a, b))
    odd = "".join(name for name, x in zip("abc", (a, b, c)) if any(s * BYTES.get(dtype_of(x), 4) % 16 for s, e in zip(strides_of(x), x.shape) if s != 1 and e != 1))
    return " ".join([kind, f"{m}x{n}x{k}", order, *([f"of {prod(batch)}"] if batch else []), *([f"odd {odd}"] if odd else [])])


@tkc.autotune(_configs, key=_key, measure=False, table=TABLES)
@tkc.jit
def _product(a, b, bias, c, ACTIVATION: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    a, b, c = (x[tkc.program_id(2)] if x.ndim == 3 else x for x in (a, b, c))
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    acc = tkc.zeros((BM, BN), tkc.float32 if a.dtype.is_float else tkc.int32)
    for k in tkc.range(0, a.shape[1], BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    if bias is not None: acc = acc + tkc.load(bias, (n,), (BN,)).to(acc.dtype)[None, :]
    if ACTIVATION is not None: acc = ACTIVATIONS[ACTIVATION](acc)
    tkc.store(c, (m, n), acc.to(c.dtype))


@tkc.autotune(_configs, key=_key, measure=False)
@tkc.jit
def _partial(a, b, c, DEPTH: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """The product in parts of DEPTH of its k, one matrix of c each: for few programs with long loops."""
    m, n, part = tkc.program_id(0) * BM, tkc.program_id(1) * BN, tkc.program_id(2)
    acc = tkc.zeros((BM, BN), tkc.float32)
    for k in tkc.range(part * DEPTH, tkc.minimum((part + 1) * DEPTH, a.shape[1]), BK):
        acc = tkc.dot(tkc.load(a, (m, k), (BM, BK)), tkc.load(b, (k, n), (BK, BN)), acc)
    tkc.store(c[part], (m, n), acc)


@tkc.jit
def _sum(parts, bias, out, ACTIVATION: tkc.constexpr, PARTS: tkc.constexpr, BM: tkc.constexpr, BN: tkc.constexpr):
    """The sum of the parts, always in the same order, all of them asked for at once."""
    m, n = tkc.program_id(0) * BM, tkc.program_id(1) * BN
    total = tkc.sum(tkc.load(parts, (0, m, n), (PARTS, BM, BN)), axis=0)
    if bias is not None: total = total + tkc.load(bias, (n,), (BN,)).to(tkc.float32)[None, :]
    if ACTIVATION is not None: total = ACTIVATIONS[ACTIVATION](total)
    tkc.store(out, (m, n), total.to(out.dtype))


@tkc.jit
def _vector(x, b, parts, STEPS: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """One row's x @ b, in parts of k: on the multiply-add units, which memory keeps waiting."""
    n, part = tkc.program_id(0) * BN, tkc.program_id(1)
    acc = tkc.zeros((BK, BN), tkc.float32)
    for k in tkc.range(part * STEPS * BK, tkc.minimum((part + 1) * STEPS * BK, b.shape[0]), BK):
        acc = acc + tkc.load(x, (k,), (BK,)).to(tkc.float32)[:, None] * tkc.load(b, (k, n), (BK, BN)).to(tkc.float32)
    tkc.store(parts, (part, n), tkc.sum(acc, axis=0)[None, :])


@tkc.jit
def _total(parts, bias, out, ACTIVATION: tkc.constexpr, PARTS: tkc.constexpr, BN: tkc.constexpr):
    """The sum of the parts, always in the same order."""
    n = tkc.program_id(0) * BN
    total = tkc.sum(tkc.load(parts, (0, n), (PARTS, BN)), axis=0)
    if bias is not None: total = total + tkc.load(bias, (n,), (BN,)).to(tkc.float32)
    if ACTIVATION is not None: total = ACTIVATIONS[ACTIVATION](total)
    tkc.store(out, (n,), total.to(out.dtype))


@tkc.jit
def _copy(x, out, ROWS: tkc.constexpr, COLUMNS: tkc.constexpr):
    i, j = tkc.program_id(0) * ROWS, tkc.program_id(1) * COLUMNS
    tkc.store(out, (i, j), tkc.load(x, (i, j), (ROWS, COLUMNS)))


# ------------------------------------------------------------------------------------------------------------ shapes
def _shape(a: Array, b: Array) -> tuple[int, ...]:
    """The shape of a @ b by NumPy's rules. Raises LaunchError."""
    if library(a) != library(b): raise tkc.LaunchError(f"matmul: a is an array of {library(a)}, b of {library(b)}; convert one")
    given = tuple(a.shape), tuple(b.shape), dtype_of(a), dtype_of(b)
    try: return _shape_of(*given)
    except TypeError: return _shape_of.__wrapped__(*given)                      # extents that torch traces are symbols, which have no hash


@cache
def _shape_of(a: tuple[int, ...], b: tuple[int, ...], *kinds: str) -> tuple[int, ...]:
    if not a or not b: raise tkc.LaunchError("matmul takes arrays of rank 1 and more, got a scalar; multiply with *")
    if kinds[0] != kinds[1] and not all(k.startswith("float8") for k in kinds): raise tkc.LaunchError(f"matmul: expected one element type, got {kinds[0]} and {kinds[1]}; convert one")
    if kinds[0] not in BYTES: raise tkc.LaunchError(f"matmul does not take {kinds[0]}; convert to one of {', '.join(BYTES)}")
    k, inner = a[-1], b[-2] if len(b) > 1 else b[0]
    if k != inner: raise tkc.LaunchError(f"matmul: a has {k} columns and b has {inner} rows ({list(a)} @ {list(b)}); transpose one")
    return (*_batch(a[:-2], b[:-2]), *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _batch(one, other) -> tuple[int, ...]:
    shape = [1] * (max(len(one), len(other)) - len(one)) + list(one)
    for i, n in enumerate(reversed(other), 1):
        if n != shape[-i] and 1 not in (n, shape[-i]): raise tkc.LaunchError(f"matmul: batches of {list(one)} and {list(other)} cannot be broadcast")
        shape[-i] = n if shape[-i] == 1 else shape[-i]
    return tuple(shape)


def result_dtype(a: Array, dtype: str | None) -> str:
    """Of the result: asked for, or that of a, int32 of integers and bfloat16 of 8-bit floats."""
    kind = dtype_of(a)
    return dtype or ("int32" if "int" in kind else "bfloat16" if kind.startswith("float8") else kind)


def strides_of(x: Array) -> tuple[int, ...]:
    """In elements."""
    if hasattr(x, "span"): return x.strides                                        # a description: what assembling is given
    if library(x) == "torch": return tuple(x.stride())
    if library(x) == "jax": return tuple(prod(x.shape[i + 1:]) for i in range(len(x.shape)))
    return tuple(s // x.dtype.itemsize for s in x.strides)


def _operand(x: Array, batch: tuple[int, ...]) -> Array:
    """An operand with the axes (batch, rows, columns), or without the first where it has none of its own."""
    if prod(x.shape[:-2]) == 1: return x if len(x.shape) == 2 else x.reshape(x.shape[-2:])
    if tuple(x.shape[:-2]) != batch: x = x.expand((*batch, *x.shape[-2:])) if library(x) == "torch" else _broadcast(x, (*batch, *x.shape[-2:]))
    return x if len(x.shape) == 3 else x.reshape((prod(batch), *x.shape[-2:]))


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    from importlib import import_module
    return import_module("jax.numpy" if library(x) == "jax" else library(x)).broadcast_to(x, shape)


def aligned(x: Array, shared: int, work: int) -> Array:
    """The matrix, or where it is worth while a copy whose rows start at multiples of 16 bytes. shared: how often each element is used."""
    size = BYTES[dtype_of(x)]
    if len(x.shape) != 2 or shared < SHORT or work < WORTH or _host(x): return x
    rows, columns = x.shape if strides_of(x)[1] == 1 or min(x.shape) == 1 else x.shape[::-1]
    turned = (rows, columns) != tuple(x.shape)
    plain = x.T if turned else x
    step = 16 // size
    if size >= 16 or strides_of(plain)[1] == 1 and strides_of(plain)[0] % step == 0 and _address(x) % 16 == 0: return x
    padded = empty(x, (rows, -(-columns // (8 * step)) * 8 * step))[:, :columns]    # whole lines of 128 bytes: rows that cut sectors are slow to copy
    _copy[tkc.cdiv(rows, 32), tkc.cdiv(columns, 256)](plain, padded, ROWS=32, COLUMNS=256)
    return padded.T if turned else padded


def _host(x: Array) -> bool: return library(x) == "numpy" or library(x) == "torch" and not x.is_cuda or library(x) == "jax"
def _address(x: Array) -> int: return x.data_ptr() if library(x) == "torch" else x.data.ptr


# ---------------------------------------------------------------------------------------------------------- products
_plain: set[tuple] = set()                      # what is known of products that are one launch of the arrays as they are


def facts_of(x: Array) -> tuple: return (x.shape, x.stride(), x.dtype, x.data_ptr() % 16) if hasattr(x, "data_ptr") else (x.shape, getattr(x, "strides", None), x.dtype)


def _launch(a: Array, b: Array, bias: Array | None, activation: str | None, out: Array) -> None:
    facts = facts_of(a), facts_of(b), facts_of(out), None if bias is None else bias.shape, activation
    if facts in _plain: return _product[_grid](a, b, bias, out, ACTIVATION=activation)
    given = a, b, out
    if activation is not None and activation not in ACTIVATIONS: raise tkc.LaunchError(f"activation is None or one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if bias is not None and tuple(bias.shape) != tuple(out.shape[-1:]): raise tkc.LaunchError(f"matmul: expected a bias of {list(out.shape[-1:])}, got {list(bias.shape)}")
    if 0 in out.shape: return
    views = library(out) != "jax"                                                  # jax would copy where others look at the same memory
    if not views and not len(a.shape) == len(b.shape) == len(out.shape) in (2, 3):
        raise tkc.LaunchError(f"matmul of jax arrays takes two matrices or two batches [B, ., .], got {list(a.shape)} @ {list(b.shape)}; reshape them")
    if len(a.shape) == 1: a, out = a[None, :], out[..., None] if len(b.shape) == 1 else out[..., None, :]
    if len(b.shape) == 1: b, out = b[:, None], out[..., None]
    batch = tuple(out.shape[:-2])
    if len(a.shape) > 2 and len(b.shape) == 2 and _dense(a) and _dense(out):       # rows of all batches are rows of one product
        a, out, batch = a.reshape((prod(a.shape[:-1]), a.shape[-1])), out.reshape((prod(out.shape[:-1]), out.shape[-1])), ()
    m, n, k = *out.shape[-2:], a.shape[-1]
    if views and not batch and _floats(a) and k and 1 in (m, n):
        if m == 1: return _row(a.reshape((k,)), b, bias, activation, out[0])
        if bias is None: return _row(b.reshape((k,)), a.T, None, activation, out[:, 0])
    if len(batch) > 1 and not _dense(out):                                         # axes that do not merge: a result of its own, copied
        result = empty(out)
        _launch(a, b, bias, activation, result)
        out[...] = result
        return
    a, b, c = _operand(a, batch), _operand(b, batch), out if len(batch) < 2 else out.reshape((prod(batch), m, n))
    if views and len(c.shape) == 3 and len(a.shape) == len(b.shape) == 2: c = c[0]
    work = m * n * k
    a, b = aligned(a, n, work), aligned(b, m, work)
    if len(c.shape) == 2 and _floats(a) and (count := _parts(m, n, k)) > 1:
        depth = tkc.cdiv(k, count * DEEPEST) * DEEPEST
        parts = empty(c, (tkc.cdiv(k, depth), m, n), "float32")
        _partial[_grid](a, b, parts, DEPTH=depth)
        held = power(parts.shape[0])
        rows = max(1, 64 // held)
        _sum[tkc.cdiv(m, rows), tkc.cdiv(n, 64)](parts, bias, c, ACTIVATION=activation, PARTS=held, BM=rows, BN=64)
        return
    if all(x is y for x, y in zip(given, (a, b, c))) and library(a) != "cupy":
        if len(_plain) >= REMEMBERED: _plain.clear()
        _plain.add(facts)
    _product[_grid](a, b, bias, c, ACTIVATION=activation)


def _parts(m: int, n: int, k: int) -> int:
    """Into how many parts k is cut: where blocks of C are few and k is long, so that there are programs for all multiprocessors."""
    side = 64 if m <= 64 else 128
    blocks = tkc.cdiv(m, side) * tkc.cdiv(n, side)
    return min(PROGRAMS // 2 // blocks, k // (4 * DEEPEST)) if blocks <= PROGRAMS // 8 else 1


def _row(x: Array, b: Array, bias: Array | None, activation: str | None, out: Array) -> None:
    columns = strides_of(b)[1] == 1 and b.shape[1] > 1                               # neighbours in memory: columns, or k
    k, n = b.shape
    bn = 64 if columns else min(16, power(n))
    bk = 4096 // bn
    steps, strips = tkc.cdiv(k, bk), tkc.cdiv(n, bn)
    each = power(tkc.cdiv(steps * strips, PROGRAMS))                               # steps of a program
    count = tkc.cdiv(steps, each)
    parts = empty(x, (count, n), "float32")
    _vector[strips, count](x, b, parts, STEPS=each, BN=bn, BK=bk)
    _total[tkc.cdiv(n, 64)](parts, bias, out, ACTIVATION=activation, PARTS=power(count), BN=64)


def _dense(x: Array) -> bool: return strides_of(x) == tuple(prod(x.shape[i + 1:]) for i in range(len(x.shape)))
def _floats(x: Array) -> bool: return dtype_of(x) in ("bfloat16", "float16", "float32")


@operator(name="matmul")
def _new(a: Array, b: Array, bias: Array | None = None, activation: str | None = None, dtype: str | None = None) -> Array:
    """matmul with a result of its own."""
    out = empty(a, _shape(a, b), result_dtype(a, dtype))
    yield out
    _launch(a, b, bias, activation, out)


@operator(name="matmul_", mutates="out")
def _into(out: Array, a: Array, b: Array, bias: Array | None = None, activation: str | None = None) -> None:
    """matmul into a given array."""
    if tuple(out.shape) != _shape(a, b): raise tkc.LaunchError(f"matmul: expected out of {list(_shape(a, b))}, got {list(out.shape)}")
    yield None
    _launch(a, b, bias, activation, out)


def matmul(a: Array, b: Array, bias: Array | None = None, activation: str | None = None, out: Array | None = None, dtype: str | None = None) -> Array:
    """activation(a @ b + bias), by NumPy's rules for shapes: vectors, matrices, and batches of them, broadcast.

    a, b: of one element type (the two float8 may mix), in any memory order; accumulated in float32 (float64 and integers in their own). bias: [N], added in the
    accumulator's precision. activation: None, "relu", "gelu" (by erf), "gelu_tanh", "silu", "tanh", "sigmoid". out: where the result goes, rounded to its element type; else a new
    array of `dtype`, by default that of a (int32 of integers, bfloat16 of 8-bit floats). Differentiable with torch. Raises LaunchError where shapes or types do not fit.
    """
    if out is None: return _new(a, b, bias, activation, dtype)
    _into(out, a, b, bias, activation)
    return out


@cache
def _turn(rank: int) -> tuple[int, ...]: return (*range(rank - 2), rank - 1, rank - 2)


def _summed(grad, shape):
    """A gradient summed over what was broadcast."""
    if len(grad.shape) > len(shape): grad = grad.sum(tuple(range(len(grad.shape) - len(shape))))
    for axis, n in enumerate(shape):
        if n == 1 and grad.shape[axis] != 1: grad = grad.sum(axis, keepdim=True)
    return grad


@_new.backward(saves="a b bias activation result")
def _(saved, grad):
    a, b, bias, activation = saved.a, saved.b, saved.bias, saved.activation
    if activation == "relu": grad = grad * (saved.result > 0)
    elif activation == "tanh": grad = grad * (1 - saved.result.float().square())
    elif activation == "sigmoid": grad = grad * (saved.result.float() * (1 - saved.result.float()))
    elif activation is not None:
        before = _new(a, b, bias, None, None)
        grad = silu_backward(grad, before) if activation == "silu" else gelu_backward(grad, before, "tanh" if activation == "gelu_tanh" else "none")
    grad = written_out(grad.to(a.dtype))
    left, right = a[None, :] if len(a.shape) == 1 else a, b[:, None] if len(b.shape) == 1 else b
    full = grad
    if len(a.shape) == 1: full = full.unsqueeze(-1 if len(b.shape) == 1 else -2)
    if len(b.shape) == 1: full = full.unsqueeze(-1)
    turn = lambda x: x.permute(_turn(len(x.shape)))
    da = _summed(_new(full, turn(right)), left.shape).reshape(a.shape) if saved.needs["a"] else None
    if not saved.needs["b"]: db = None
    elif len(right.shape) == 2 and len(left.shape) > 2: db = _new(left.reshape(-1, left.shape[-1]).T, full.reshape(-1, full.shape[-1])).reshape(b.shape)
    else: db = _summed(_new(turn(left), full), right.shape).reshape(b.shape)
    dbias = grad.reshape(-1, grad.shape[-1]).sum(0).to(bias.dtype) if bias is not None and saved.needs["bias"] else None
    return da, db, dbias, None, None
