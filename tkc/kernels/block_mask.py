"""Block masks: which blocks of the matrix of scores a mask leaves out, cuts, or lets through whole.

`create_block_mask` evaluates a mask_mod (attention_mods.py) once for every row and column, and
makes lists: of each block of rows the blocks of columns that are seen in part, and those that are
seen whole; and the same of each block of columns. Attention then walks over lists. The fields are
those of torch's BlockMask, of which each function here takes one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tkc
from tkc.kernels.arrays import Array, empty, power
from tkc.kernels.attention_modifiers import modifiers, named
from tkc.kernels.operator import operator

# rows whose mask a program evaluates at once
ROWS = 16


@dataclass(frozen=True, eq=False)
class BlockMask:
    """Lists of blocks, int32. kv_num_blocks, kv_indices: of [batch, heads, blocks of rows(, blocks
    of columns)], how many blocks of columns each sees in part, and which; full_…: those that it
    sees whole; q_…, full_q_…: likewise of each block of columns. Extents of 1 are for all. What
    stands behind a list's end does not matter.
    """

    seq_lengths: tuple[int, int]  # rows, columns
    kv_num_blocks: Array
    kv_indices: Array
    full_kv_num_blocks: Array | None
    full_kv_indices: Array | None
    q_num_blocks: Array | None
    q_indices: Array | None
    full_q_num_blocks: Array | None
    full_q_indices: Array | None
    BLOCK_SIZE: tuple[int, int]
    mask_mod: Callable[..., Any] | None


@tkc.jit
def _block_states(
    states,
    x0,
    x1,
    x2,
    x3,
    x4,
    x5,
    x6,
    x7,
    queries,
    keys,
    MODS: tkc.constexpr,
    M: tkc.constexpr,
    N: tkc.constexpr,
    ROWS: tkc.constexpr,
):
    """Of a block: 0 where nothing is seen, 1 a part, 2 all."""
    r, c, z = tkc.program_id(0), tkc.program_id(1), tkc.program_id(2)
    b, h, count = z // states.shape[1], z % states.shape[1], 0
    mask = MODS.of(*MODS.elements(x0, x1, x2, x3, x4, x5, x6, x7))()[1]
    last, cols = tkc.minimum(queries, (r + 1) * M), (c * N + tkc.arange(N))[None, :]
    for i in tkc.range(0, M, ROWS):
        rows = (r * M + i + tkc.arange(ROWS))[:, None]
        keep = tkc.broadcast_to(mask(b, h, rows, cols), ROWS, N)
        count = count + tkc.sum((keep & (rows < last) & (cols < keys)).to(tkc.int32))
    all_of_it = (last - r * M) * (tkc.minimum(keys, (c + 1) * N) - c * N)
    state = tkc.where(count == all_of_it, 2, tkc.where(count > 0, 1, 0))
    tkc.store(states[b, h, r], (c,), tkc.full((1,), 0) + state)


@tkc.jit
def _lists(states, counts, places, full_counts, full_places, C: tkc.constexpr):
    """Of a block of rows: the blocks of columns that are seen in part, and whole, in order."""
    r, h, b = tkc.program_id(0), tkc.program_id(1), tkc.program_id(2)
    cols = tkc.arange(C)
    state = tkc.load(states[b, h, r], (0,), (C,))
    for kind, count, which in ((1, counts, places), (2, full_counts, full_places)):
        chosen = (state == kind).to(tkc.int32)
        at = tkc.where(chosen == 1, tkc.cumsum(chosen) - 1, 0)
        tkc.store(which[b, h, r].ptr + at, cols, mask=chosen == 1)
        tkc.store(count[b, h], (r,), tkc.full((1,), 0) + tkc.sum(chosen))


@operator(name="attention_block_lists")
def block_lists(
    like: Array,
    mods: str,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    rows: int,
    columns: int,
    x0: Array | None = None,
    x1: Array | None = None,
    x2: Array | None = None,
    x3: Array | None = None,
    x4: Array | None = None,
    x5: Array | None = None,
    x6: Array | None = None,
    x7: Array | None = None,
) -> Iterator[tuple[Array, Array, Array, Array, Array, Array, Array, Array]]:
    """The lists of a mask of blocks of rows × columns, in the order of BlockMask's fields."""
    extents = tkc.cdiv(queries, rows), tkc.cdiv(keys, columns)

    def pair(n: int, most: int) -> tuple[Array, Array]:
        shape = batch, heads, n
        return empty(like, shape, "int32"), empty(like, (*shape, most), "int32")

    found = tuple(pair(*turned) for turned in (extents, extents, extents[::-1], extents[::-1]))
    yield tuple(x for one in found for x in one)
    if not (batch and heads and all(extents)):
        return
    states = empty(like, (batch, heads, *extents), "int32")
    _block_states[(*extents, batch * heads)](
        states,
        x0,
        x1,
        x2,
        x3,
        x4,
        x5,
        x6,
        x7,
        queries,
        keys,
        MODS=named(mods),
        M=rows,
        N=columns,
        ROWS=min(rows, ROWS),
    )
    for view, lists in ((states, found[:2]), (states.swapaxes(2, 3), found[2:])):
        given = [x for one in lists for x in one]
        _lists[view.shape[2], heads, batch](view, *given, C=power(view.shape[3]))


FIELDS = dict(
    kv_counts="kv_num_blocks",
    kv_places="kv_indices",
    full_kv_counts="full_kv_num_blocks",
    full_kv_places="full_kv_indices",
    q_counts="q_num_blocks",
    q_places="q_indices",
    full_q_counts="full_q_num_blocks",
    full_q_places="full_q_indices",
)


def blocks_of(
    mask_mod: Callable | None, block_mask: Any, extents: tuple[int, int, int, int]
) -> tuple[Callable | None, tuple[int, int], dict[str, Array | None]]:
    """(mask_mod, rows and columns of a block, lists by the names of attention_mods), of our
    BlockMask, of torch's or of None. extents: batch, heads, queries, keys. Raises LaunchError where
    a block mask is not for these.
    """
    if block_mask is None:
        return mask_mod, (0, 0), {}
    names = ("mask_mod", "BLOCK_SIZE", *FIELDS.values())
    if missing := [name for name in names if not hasattr(block_mask, name)]:
        raise tkc.LaunchError(
            "attention: block_mask is a BlockMask of create_block_mask or of torch, got"
            f" {type(block_mask).__name__}, which has no {missing[0]}"
        )
    rows, columns = block_mask.BLOCK_SIZE
    lists = {ours: getattr(block_mask, theirs) for ours, theirs in FIELDS.items()}
    if rows % 16 or columns % 16:
        raise tkc.LaunchError(
            "attention: a block mask's rows and columns are multiples of 16, got"
            f" {rows} and {columns}; make it with another block size"
        )
    batch, heads, queries, keys = extents
    most = batch, heads, tkc.cdiv(queries, rows), tkc.cdiv(keys, columns)
    got = tuple(lists["kv_places"].shape)
    fits = [n == m or i < 2 and n == 1 for i, (n, m) in enumerate(zip(got, most, strict=False))]
    if len(got) != 4 or not all(fits):
        raise tkc.LaunchError(
            f"attention: the block mask has lists of {list(got)}, and these queries and keys need"
            f" {list(most)} (or 1 for batch and heads); make one for {queries} queries and {keys}"
            " keys"
        )
    return block_mask.mask_mod if mask_mod is None else mask_mod, (rows, columns), lists


def create_block_mask(
    mask_mod: Callable[..., Any],
    batch: int | None,
    heads: int | None,
    queries: int,
    keys: int,
    block_size: int | tuple[int, int] = 128,
    like: Array | None = None,
) -> BlockMask:
    """The BlockMask of mask_mod(b, h, q_idx, kv_idx) for so many queries and keys.

    batch, heads: None where the mask is the same for all, which makes one list of them. block_size:
    of rows, and of columns (one number: both), multiples of 16. like: an array of the library and
    on the device where the lists are to be; by default the first array that mask_mod captured.
    Evaluating the mask takes batch · heads · queries · keys steps: make a block mask once, for many
    calls. Raises LaunchError where there is no such array, or for other block sizes.
    """
    try:
        rows, columns = block_size if isinstance(block_size, tuple) else (block_size, block_size)
        if min(rows, columns) < 16 or rows % 16 or columns % 16:
            raise tkc.LaunchError(
                "create_block_mask: a block's rows and columns are multiples of 16, got"
                f" {rows} and {columns}"
            )
        mods = modifiers(None, mask_mod)
        if like is None and not mods.captured:
            raise tkc.LaunchError(
                "create_block_mask: mask_mod captured no array that says where the lists are to be;"
                " pass like=q"
            )
        extents = batch or 1, heads or 1, queries, keys, rows, columns
        lists = block_lists(
            mods.captured[0] if like is None else like, mods.name, *extents, *mods.slots()
        )
        given = dict(zip(FIELDS.values(), lists, strict=True))
        return BlockMask(
            seq_lengths=(queries, keys), BLOCK_SIZE=(rows, columns), mask_mod=mask_mod, **given
        )
    except tkc.Error as error:
        tkc.hide_own_frames(error)
        raise
