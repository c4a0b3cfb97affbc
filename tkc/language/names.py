"""constexpr, and what to suggest for names that tkc does not have."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class constexpr:
    """Annotation of a parameter whose value is known at compile time: `BLOCK: tkc.constexpr =
    1024`.
    """


ELSEWHERE = {
    "take_along_dim": "tkc.gather",
    "take_along_axis": "tkc.gather",
    "trans": "tile.T or tkc.permute",
    "expand_dims": "tile[:, None]",
    "associative_scan": "tkc.scan",
    "device_print": "tkc.print",
    "ravel": "tile.reshape(-1)",
    "view": "tkc.reshape",
    "broadcast": "tkc.broadcast_to",
    "make_block_ptr": "tkc.load(array, offsets, shape)",
    "advance": "offsets in tkc.load(array, offsets, shape)",
    "make_tensor_descriptor": "tkc.array, or the array argument itself",
    "load_tensor_descriptor": "tkc.load(array, offsets, shape)",
    "tensor": "no annotation",
    "int1": "tkc.bool_",
    "bool": "tkc.bool_",
    "float8e4nv": "tkc.float8_e4m3",
    "float8e5": "tkc.float8_e5m2",
    "clamp": "tkc.minimum(tkc.maximum(x, low), high)",
    "clip": "tkc.minimum(tkc.maximum(x, low), high)",
    "relu": "tkc.maximum(x, 0)",
    "square": "x * x",
    "sign": "tkc.where(x > 0, 1.0, tkc.where(x < 0, -1.0, 0.0))",
    "isfinite": "tkc.abs(x) < tkc.inf",
    "logsumexp": "tkc.log(tkc.sum(tkc.exp(x - m))) + m with m = tkc.max(x)",
    "norm": "tkc.sqrt(tkc.sum(x * x, axis))",
    "var": "tkc.sum((x - m) * (x - m), axis) / n with the mean m",
    "std": "tkc.sqrt of tkc.sum((x - m) * (x - m), axis) / n with the mean m",
    "linspace": "start + tkc.arange(n) * step",
    "tril": "tkc.where(rows[:, None] >= columns[None, :], x, 0) with tkc.arange for both",
    "triu": "tkc.where(rows[:, None] <= columns[None, :], x, 0) with tkc.arange for both",
    "eye": "tkc.where(tkc.arange(n)[:, None] == tkc.arange(n)[None, :], 1.0, 0.0)",
    "einsum": "tkc.dot, or products of broadcast tiles and tkc.sum",
    "outer": "a[:, None] * b[None, :]",
    "repeat": "tkc.broadcast_to(x[:, None], n, k).reshape(n * k)",
    "tile": "tkc.broadcast_to(x[None, :], k, n).reshape(k * n)",
    "stack": "tkc.cat of x[None, :], y[None, :], …",
    "roll": "tkc.cat(x[n - k:], x[:n - k]), or offsets in tkc.load",
    "squeeze": "tile[0] or tkc.reshape",
    "unsqueeze": "tile[:, None]",
    "flatten": "tile.reshape(-1)",
    "numel": "the product of .shape",
    "size": "the product of .shape",
    "concatenate": "tkc.cat",
    "concat": "tkc.cat",
    "transpose": "tkc.permute",
    "matmul": "tkc.dot",
    "mma": "tkc.dot",
    "ones": "tkc.full(shape, 1.0)",
    "select": "tkc.where",
    "mean": "tkc.sum(x, axis) / n",
    "logical_and": "&",
    "logical_or": "|",
    "logical_not": "~",
    "max_contiguous": "tkc.multiple_of",
    "debug_barrier": "nothing: tiles are values",
    "zeros_like": "tkc.zeros(x.shape, x.dtype)",
    "full_like": "tkc.full(x.shape, value, x.dtype)",
    "bid": "tkc.program_id",
    "num_blocks": "tkc.num_programs",
    "atomic_exchange": "tkc.atomic_xchg",
    "half": "tkc.float16",
    "float": "tkc.float32",
    "int": "tkc.int32",
    "float8_e4m3fn": "tkc.float8_e4m3",
}


# how alike a misspelling and the name are: "sign" is no "sin", and "view" no "device"
ALIKE = 0.8


def suggestion(name: str, known: Iterable[str], owner: str = "tkc") -> str:
    """`; use tkc.x instead` for a name of another system or a misspelling. owner: what stands
    before the dot of a known name.
    """
    if name in ELSEWHERE:
        return f"; use {ELSEWHERE[name]} instead"
    close = get_close_matches(name, known, 1, ALIKE)
    return f"; did you mean {owner}.{close[0]}?" if close else ""
