"""constexpr, and what to suggest for names that tkc does not have."""

from __future__ import annotations

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


def suggestion(name: str, known: list[str]) -> str:
    """`; use tkc.x instead` for a name of another system or a misspelling."""
    if name in ELSEWHERE:
        return f"; use {ELSEWHERE[name]} instead"
    close = get_close_matches(name, known, 1)
    return f"; did you mean tkc.{close[0]}?" if close else ""
