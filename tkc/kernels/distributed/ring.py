"""Attention whose queries, keys and values are dealt out over ranks: each has some rows of each.

Every rank gives all others its keys and values, and begins with its own. What its rows make of each
rank's keys is an attention of its own (kernels.attention, with the log-sum-exp of each row), which
runs while the next keys arrive; a launch at the end merges two of them by those sums.

With `causal`, a rank has less to do the fewer rows are before its own. `balanced` deals rows out
otherwise: of 2 W pieces, rank r has those of the numbers r and 2 W - 1 - r. Then every rank sees
half of each other rank's pairs of a row and a key: of earlier ranks the first piece, by all rows;
of later ones both pieces, by the rows of its second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import tkc
from tkc.kernels.attention_call import attention, attention_backward
from tkc.kernels.distributed import exchange
from tkc.kernels.distributed.groups import Group

ROWS = 32  # of a program that merges or adds


@tkc.jit
def _merge(total, sums, part, part_sums, N: tkc.constexpr, D: tkc.constexpr):
    """total [H, n, D], attention of some keys, becomes that of those of `part` too. sums [H, n]:
    logarithms of what the powers of a row add up to.
    """
    h, at = tkc.program_id(1), tkc.program_id(0) * N
    one, two = (tkc.load(x, (h, at), (None, N)) for x in (sums, part_sums))
    high = tkc.maximum(one, two)
    base = tkc.where(high == -tkc.inf, 0, high)
    one, two = tkc.exp(one - base), tkc.exp(two - base)
    both = one + two
    weight = 1 / tkc.where(both > 0, both, 1)
    left, right = (tkc.load(x, (h, at, 0), (None, N, D)) for x in (total, part))
    value = left * (one * weight)[:, None] + right * (two * weight)[:, None]
    tkc.store(total, (h, at, 0), value.to(total.dtype)[None, :, :])
    tkc.store(sums, (h, at), (base + tkc.log(both))[None, :])


@tkc.jit
def _add(part, total, ALONE: tkc.constexpr, N: tkc.constexpr, D: tkc.constexpr):
    """total [H, n, D] += part; ALONE: = part."""
    at = tkc.program_id(1), tkc.program_id(0) * N, 0
    value = tkc.load(part, at, (None, N, D)).to(tkc.float32)
    if not ALONE:
        value = value + tkc.load(total, at, (None, N, D))
    tkc.store(total, at, value.to(total.dtype)[None, :, :])


class _Seen(NamedTuple):
    """What a rank's queries see of a rank's keys: rows from `first` on those before `last`; causal:
    in their order.
    """

    first: int
    last: int
    causal: bool = False


def _seen(rank: int, source: int, n: int, causal: bool, balanced: bool) -> _Seen | None:
    """What rank's rows see of source's keys; None: nothing."""
    if not causal or rank == source:
        return _Seen(0, n, causal)
    if balanced:
        return _Seen(0, n // 2) if source < rank else _Seen(n // 2, n)
    return _Seen(0, n) if source < rank else None


def ring_attention(
    q: Any,
    k: Any,
    v: Any,
    group: Group,
    causal: bool = False,
    balanced: bool = False,
    with_lse: bool = False,
) -> Any:
    """softmax(q kᵀ / √D) v over the keys of all ranks. q, k, v: [H, n, D], this rank's rows of W n;
    16-bit floats or float32. causal: a row sees the rows before it and itself, in the order of
    ranks; balanced: in that of 2 W pieces of n / 2 rows, of which rank r has those of the numbers r
    and 2 W - 1 - r. with_lse: also the log-sum-exp of each row, float32 of [H, n].
    """
    heads, n, _ = q.shape
    _check("ring_attention", (q, k, v), balanced)
    if n * heads == 0:
        y, sums = group.empty(q.shape, q.dtype), group.empty((heads, n), "float32")
        return (y, sums) if with_lse else y
    found = []
    for _, seen, keys, values in _arriving(k, v, group, causal, balanced):
        rows = q[None, :, seen.first :]
        part, part_sums = attention(
            rows, keys[None], values[None], causal=seen.causal, with_lse=True
        )
        found.append((seen.first, part[0], part_sums[0]))
    group.join()
    group.end()
    y, sums = _merged(found, group)
    return (y, sums) if with_lse else y


def _arriving(
    k: Any, v: Any, group: Group, causal: bool, balanced: bool
) -> Iterator[tuple[int, _Seen, Any, Any]]:
    """Gives all ranks keys and values. Yields a rank, what this one's rows see of its keys, and its
    keys and values as far as they see them; what is launched then has them, and runs beside what
    is launched at the next ones.
    """
    (heads, n, d), me = k.shape, group.rank
    memory = exchange.begun(group, "ring_attention", 2 * heads * n * d, k.dtype)
    for _, to, _ in exchange.others(group):
        exchange.give((k, v), to, memory, group)
    with group.beside(exchange.queue(0)):
        yield me, _Seen(0, n, causal), k, v
    for step, _, source in exchange.others(group):
        seen = _seen(me, source, n, causal, balanced)
        if seen is None:
            continue
        with group.beside(exchange.queue(step)):
            came = exchange.receive(source, memory, group).reshape(2, heads, n, d)
            yield source, seen, came[0, :, : seen.last], came[1, :, : seen.last]


def _merged(found: Sequence[tuple[int, Any, Any]], group: Group) -> tuple[Any, Any]:
    """The attention of all keys and its sums, of (first row, attention, sums) of each rank's."""
    (_, total, sums), *others = found
    heads, n, d = total.shape
    wide = 1 << (d - 1).bit_length()
    grid = tkc.cdiv(n, ROWS), heads
    exact = total
    if len(others) > 1:  # rounded once, at the end
        exact = group.empty(total.shape, "float32")
        _add[grid](total, exact, ALONE=True, N=ROWS, D=wide)
    for first, part, part_sums in others:
        rows = tkc.cdiv(n - first, ROWS), heads
        _merge[rows](exact[:, first:], sums[:, first:], part, part_sums, N=ROWS, D=wide)
    if exact is not total:
        _add[grid](exact, total, ALONE=True, N=ROWS, D=wide)
    return total, sums


def ring_attention_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    group: Group,
    causal: bool = False,
    balanced: bool = False,
    deterministic: bool = False,
) -> tuple[Any, Any, Any]:
    """The gradients of q, k and v, of their element type, for `out, lse = ring_attention(q, k, v,
    …, with_lse=True)`. grad: of out; the other arguments are those of ring_attention. What ranks
    make of a rank's keys is rounded to the element type and summed there in float32. deterministic:
    the same bits in every call, as of kernels.attention_backward.
    """
    heads, n, d = q.shape
    _check("ring_attention_backward", (q, k, v, grad, out), balanced)
    if n * heads == 0:
        return (
            group.empty(q.shape, q.dtype),
            group.empty(q.shape, q.dtype),
            group.empty(q.shape, q.dtype),
        )
    back = exchange.begun(group, "ring_attention_backward", 2 * heads * n * d, q.dtype)
    parts, made = [], {}  # what is given lives until it has been
    for source, seen, keys, values in _arriving(k, v, group, causal, balanced):
        rows = (x[None, :, seen.first :] for x in (grad, q, out, lse))
        change, queries, result, sums = rows
        dq, dk, dv = attention_backward(
            change,
            queries,
            keys[None],
            values[None],
            result,
            sums,
            causal=seen.causal,
            deterministic=deterministic,
        )
        parts.append((seen.first, dq[0]))
        made[source] = dk[0], dv[0]
        if source != group.rank:
            exchange.give(made[source], source, back, group)
    group.join()
    dk, dv = ([(0, x)] for x in made[group.rank])
    for _, _, source in exchange.others(group):
        if (by := _seen(source, group.rank, n, causal, balanced)) is not None:
            shape = 2, heads, by.last, d
            came = exchange.receive(source, back, group)[: prod(shape)].reshape(shape)
            dk.append((0, came[0]))
            dv.append((0, came[1]))
    group.end()
    return _summed(parts, group), _summed(dk, group), _summed(dv, group)


def _summed(parts: Sequence[tuple[int, Any]], group: Group) -> Any:
    """The sum of arrays [H, …, D], the first one's first row 0, each of the others' its own."""
    (_, first), *others = parts
    if not others:
        return first
    heads, n, d = first.shape
    wide, total = 1 << (d - 1).bit_length(), group.empty(first.shape, "float32")
    grid = tkc.cdiv(n, ROWS), heads
    _add[grid](first, total, ALONE=True, N=ROWS, D=wide)
    for at, part in others:
        rows = tkc.cdiv(part.shape[1], ROWS), heads
        _add[rows](part, total[:, at:], ALONE=False, N=ROWS, D=wide)
    _add[grid](total, first, ALONE=True, N=ROWS, D=wide)
    return first


def _check(what: str, arrays: Sequence[Any], balanced: bool) -> None:
    shape = tuple(arrays[0].shape)
    if len(shape) != 3 or any(tuple(x.shape) != shape for x in arrays):
        raise tkc.LaunchError(
            f"{what}: its arrays are [H, n, D] alike, got"
            f" {', '.join(str(tuple(x.shape)) for x in arrays)}"
        )
    if balanced and shape[1] % 2:
        raise tkc.LaunchError(
            f"{what}: balanced rows are two pieces a rank, got {shape[1]} rows; pad them"
        )
