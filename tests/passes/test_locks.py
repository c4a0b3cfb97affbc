"""What programs see of one another behind their dots (locks, who came last): consumers alone see
it, and the producer copies operands ahead as if it were not there.
"""

from __future__ import annotations

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.language.kernels import array, traced
from tests.passes.kernels import aligned, context, through
from tests.passes.stages import assembler, assembles_clean
from tkc.ir import threads, tile
from tkc.ir.types import ArrayFacts, Fact
from tkc.ir.values import operations_in
from tkc.language.signature import ArrayArgument
from tkc.passes.analysis.values import LOADS
from tkc.passes.pipeline import PIPELINE
from tkc.passes.planning import order
from tkc.sim import level4
from tkc.sim.level0 import kernel_of

BM, BN, BK = 128, 64, 64
H2, F2, N1 = aligned(tkc.float16, 2), aligned(tkc.float32, 2), array(tkc.int32, 1)


def part_of(a, b, z, SPLIT: tkc.constexpr):
    """A program's part of a product."""
    acc = tkc.zeros((BM, BN))
    for k in range(z * BK, a.shape[1], BK * SPLIT):
        x = tkc.load(a, (tkc.program_id(0) * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    return acc


def locked(a, b, c, w, locks, counts, bias, SPLIT: tkc.constexpr):
    """Programs add to a result one after the other, behind a lock; the first one stores."""
    i, z = tkc.program_id(0), tkc.program_id(1)
    acc = part_of(a, b, z, SPLIT)
    while tkc.atomic_cas(locks.ptr + i, 0, 1, sem="acquire") == 1:
        pass
    count = tkc.load(counts.ptr + i)
    if count == 0:
        tkc.store(c, (i * BM, 0), acc + tkc.load(bias, (i * BM, 0), (BM, BN)))
    else:
        tkc.store(c, (i * BM, 0), acc + tkc.load(c, (i * BM, 0), (BM, BN)))
    tkc.store(counts.ptr + i, count + 1)
    tkc.atomic_xchg(locks.ptr + i, 0, sem="release")


def last_adds(a, b, c, w, locks, counts, bias, SPLIT: tkc.constexpr):
    """Programs keep their parts in memory, and the last one adds them up in order."""
    i, z = tkc.program_id(0), tkc.program_id(1)
    acc = part_of(a, b, z, SPLIT)
    tkc.store(w, ((i * SPLIT + z) * BM, 0), acc)
    if tkc.atomic_add(counts.ptr + i, 1) == SPLIT - 1:
        total = tkc.load(bias, (i * BM, 0), (BM, BN))
        for other in range(SPLIT):
            total += tkc.load(w, ((i * SPLIT + other) * BM, 0), (BM, BN))
        tkc.store(c, (i * BM, 0), total)


def turns(a, b, c, w, locks, counts, bias, SPLIT: tkc.constexpr):
    """Programs add to a result in their order: each waits until the one before it has."""
    i, z = tkc.program_id(0), tkc.program_id(1)
    acc = part_of(a, b, z, SPLIT)
    seen = tkc.atomic_cas(counts.ptr + i, z, z, sem="acquire")
    while seen != z:
        seen = tkc.atomic_cas(counts.ptr + i, z, z, sem="acquire")
    if seen == 0:
        acc += tkc.load(bias, (i * BM, 0), (BM, BN))
    else:
        acc += tkc.load(c, (i * BM, 0), (BM, BN))
    tkc.store(c, (i * BM, 0), acc)
    tkc.atomic_xchg(counts.ptr + i, seen + 1, sem="release")


def always_adds(a, b, c, w, locks, counts, bias, SPLIT: tkc.constexpr):
    """The same behind a signal that is no acquire, to what is there."""
    i, z = tkc.program_id(0), tkc.program_id(1)
    acc = part_of(a, b, z, SPLIT)
    tries = 0
    while tkc.load(counts.ptr + i, sem="relaxed") != z:
        tries += 1
    tkc.atomic_add(counts.ptr + i, 0, sem="acquire")
    acc += tkc.load(c, (i * BM, 0), (BM, BN))
    tkc.store(c, (i * BM, 0), acc)
    tkc.atomic_xchg(counts.ptr + i, z + 1, sem="release")
    peeked = tkc.load(counts.ptr + i, sem="relaxed")
    tkc.store(locks.ptr + i, tkc.minimum(tries, 0) + tkc.load(a.ptr + peeked).to(tkc.int32))


def reads_beside_dots(a, b, c, w, locks, counts, bias, SPLIT: tkc.constexpr):
    """Behind a lock, rows beside the dots are what other programs have stored."""
    i, z = tkc.program_id(0), tkc.program_id(1)
    acc, own = tkc.zeros((BM, BN)), i * 2 * BM
    while tkc.atomic_cas(counts.ptr + i, z, z, sem="acquire") != z:
        pass
    for k in range(z * BK, a.shape[1], BK * SPLIT):
        x = tkc.load(a, (i * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
        acc += tkc.load(w, (own + k % 128 * 2, 0), (BM, BN))
    acc += tkc.load(c, (i * BM, 0), (BM, BN))
    tkc.store(w, (own, 0), tkc.full((BM, BN), z + 1, tkc.float32))
    tkc.store(w, (own + BM, 0), tkc.full((BM, BN), z + 1, tkc.float32))
    tkc.store(c, (i * BM, 0), acc)
    tkc.atomic_xchg(counts.ptr + i, z + 1, sem="release")


def compiled(fn, split: int, **options):
    module = traced(fn, H2, H2, F2, F2, N1, N1, F2, SPLIT=split)
    given = context("sm_90a", **options)
    through(module, PIPELINE[-1], given)
    return module, given


def operands(rows: int, split: int, k: int = 320) -> tuple[list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    m = rows * BM
    a = random.integers(-1, 2, (m, k)).astype(np.float16)
    b = random.integers(-1, 2, (k, BN)).astype(np.float16)
    bias = random.integers(-3, 4, (m, BN)).astype(np.float32)
    c, w = bias.copy(), np.zeros((m * max(split, 2), BN), np.float32)
    locks, counts = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    want = a.astype(np.float32) @ b.astype(np.float32) + bias
    return [a, b, c, w, locks, counts, bias], want


def beside(split: int, k: int = 320) -> int:
    """What the dots of the last kernel have beside them."""
    return sum(z * len(range(z * BK, k, BK * split)) for z in range(split))


KERNELS = (locked, last_adds, turns, always_adds, reads_beside_dots)


@pytest.mark.parametrize("split", [1, 3])
@pytest.mark.parametrize("fn", KERNELS)
def test_consumers_alone_see_other_programs(fn, split):
    module, given = compiled(fn, split)
    assert given.has_roles
    producer, *consumers = operations_in(module, threads.Role)
    assert not any(tile.watches(op) or isinstance(op, LOADS) for op in producer.walk())
    assert any(tile.watches(op) for role in consumers for op in role.walk())
    for seed in range(3):
        arguments, want = operands(2, split)
        level4.run(module, arguments, (2, split), seed)
        more = beside(split) if fn is reads_beside_dots else 0
        np.testing.assert_array_equal(arguments[2], want + more)


@pytest.mark.parametrize("fn", KERNELS)
@assembler
def test_the_ptx_computes_the_same(fn):
    module, _ = compiled(fn, 3)
    assembles_clean(module)
    arguments, want = operands(2, 3)
    machine.run(module, arguments, (2, 3))
    more = beside(3) if fn is reads_beside_dots else 0
    np.testing.assert_array_equal(arguments[2], want + more)


def behind_tries(a, b, c, locks, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr):
    """How often a program has looked counts."""
    i, z, acc = tkc.program_id(0), tkc.program_id(1), tkc.zeros((BM, BN))
    for k in range(z * BK, a.shape[1], 2 * BK):
        x = tkc.load(a, (i * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    tries = 0
    while tkc.load(locks.ptr + i, sem="relaxed") != z:
        tries += 1
    tkc.atomic_add(locks.ptr + i, 0, sem="acquire")
    tkc.store(c, (i * BM, 0), acc + tkc.load(c, (i * BM, 0), (BM, BN)) + tkc.minimum(tries, 0))
    tkc.atomic_xchg(locks.ptr + i, z + 1, sem="release")


ROWS_OF_8_BYTES = ArrayFacts((Fact(), Fact(4)), (Fact(4), Fact(exact=1)), 8)
OTHER_ROLES = {
    "relays": (tkc.float8_e4m3, aligned(tkc.float8_e4m3, 2), (64, 96, 32)),
    "copies": (tkc.float16, ArrayArgument(tkc.float16, ROWS_OF_8_BYTES), (128, 64, 32)),
}


@pytest.mark.parametrize("name", OTHER_ROLES)
def test_other_roles_see_nothing_either(name):
    dtype, right, block = OTHER_ROLES[name]
    bm, bn, bk = block
    sizes = dict(zip(("BM", "BN", "BK"), block, strict=True))
    module = traced(behind_tries, aligned(dtype, 2), right, F2, N1, **sizes)
    given = context("sm_90a", num_stages=3)
    through(module, PIPELINE[-1], given)
    roles = operations_in(module, threads.Role)
    assert len(roles) == 3, given.decisions
    for role in roles:
        sees = any(map(tile.watches, role.walk()))
        assert sees == role.sym_name.data.startswith("consumer")
    random, rows, k = np.random.default_rng(0), 2 * bm, 5 * bk
    a, b = (random.integers(-1, 2, shape).astype(dtype.numpy) for shape in ((rows, k), (k, bn)))
    for seed in range(2):
        c = np.zeros((rows, bn), np.float32)
        level4.run(module, [a, b, c, np.zeros(2, np.int32)], (2, 2), seed)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def longer_and_longer(a, b, c, flags):
    """Each program has more to do than the one for which it waits."""
    i, acc = tkc.program_id(0), tkc.zeros((BM, BN))
    for k in range(0, i * BK + BK, BK):
        x = tkc.load(a, (0, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    while tkc.load(flags.ptr, sem="acquire") != i:
        pass
    tkc.store(c, (0, 0), acc + tkc.load(c, (0, 0), (BM, BN)))
    tkc.atomic_xchg(flags.ptr, i + 1, sem="release")


@pytest.mark.parametrize("resident", [1, 2])
def test_programs_that_wait_keep_their_order(resident):
    """Fewer blocks than programs would wait for ever, were the longest programs first."""
    module, given = traced(longer_and_longer, H2, H2, F2, N1), context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles and not any("longest first" in line for line in given.decisions)
    (a, b, *_), _ = operands(1, 1)
    c = np.zeros((BM, BN), np.float32)
    level4.run(module, [a, b, c, np.zeros(1, np.int32)], (5,), resident=resident)
    whole = a.astype(np.float32), b.astype(np.float32)
    parts = [whole[0][:, : n * BK] @ whole[1][: n * BK] for n in range(1, 6)]
    np.testing.assert_array_equal(c, sum(parts))


def shorter_and_shorter(a, b, c, flags):
    """Each program has less to do than the one for which it waits, and tells the next one."""
    i, acc = tkc.program_id(0), tkc.zeros((BM, BN))
    for k in range(i * BK, 4 * BK, BK):
        x = tkc.load(a, (0, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    while tkc.load(flags.ptr, sem="acquire") != i:
        pass
    tkc.store(c, (0, 0), acc + tkc.load(c, (0, 0), (BM, BN)))
    tkc.atomic_xchg(flags.ptr, i + 1, sem="release")


def test_a_turn_that_is_over_before_the_producer_looks():
    """The consumers of a program end its turn: whoever looks later waits for ever."""
    module, given = traced(shorter_and_shorter, H2, H2, F2, N1), context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles and any("consumers alone" in line for line in given.decisions)
    (a, b, *_), _ = operands(1, 1)
    whole = a.astype(np.float32), b.astype(np.float32)
    parts = [whole[0][:, n * BK : 4 * BK] @ whole[1][n * BK : 4 * BK] for n in range(4)]
    for seed in range(8):
        c = np.zeros((BM, BN), np.float32)
        level4.run(module, [a, b, c, np.zeros(1, np.int32)], (4,), seed)
        np.testing.assert_array_equal(c, sum(parts))


def begins_later(a, b, c, locks, BK: tkc.constexpr):
    """The producer needs a loop and a branch of its own to know where a program begins."""
    i, first = tkc.program_id(0), 0
    while first * first < i:
        first += 1
    begin = first * BK if first > 1 else 0
    acc = tkc.zeros((BM, BN))
    for k in range(begin, a.shape[1], BK):
        x = tkc.load(a, (i * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    while tkc.atomic_cas(locks.ptr, 0, 1, sem="acquire") == 1:
        pass
    tkc.store(c, (0, 0), acc + tkc.load(c, (0, 0), (BM, BN)))
    tkc.atomic_xchg(locks.ptr, 0, sem="release")


def test_a_producer_keeps_its_own_loops_and_branches():
    module, given = traced(begins_later, H2, H2, F2, N1, BK=BK), context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert given.has_roles
    (a, b, *_), _ = operands(5, 1)
    c = np.zeros((BM, BN), np.float32)
    level4.run(module, [a, b, c, np.zeros(1, np.int32)], (5,))
    whole, want = a.astype(np.float32), np.zeros_like(c)
    for i, begin in enumerate((0, 0, 2 * BK, 2 * BK, 2 * BK)):
        want += whole[i * BM : i * BM + BM, begin:] @ b[begin:].astype(np.float32)
    np.testing.assert_array_equal(c, want)


def through_memory(a, b, c, flags):
    """A program reads what it has stored itself, and sees no other one."""
    acc, i = tkc.zeros((BM, BN)), tkc.program_id(0)
    for k in range(0, b.shape[0], BK):
        x = tkc.load(a, (i * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
        tkc.store(a, (i * BM, k + BK), acc.to(a.dtype))


def test_what_a_program_sees_of_itself_is_no_other_program():
    kernel = kernel_of(traced(through_memory, H2, H2, F2, N1))
    loads = operations_in(kernel, tile.Load)
    assert not order.operands_depend_on_others(loads, kernel, ())


def says_what_is_copied(a, b, c, flags):
    """What another program says is where an operand lies."""
    acc, row = tkc.zeros((BM, BN)), tkc.load(flags.ptr, sem="relaxed") * BM
    for k in range(0, a.shape[1], BK):
        x = tkc.load(a, (row, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (tkc.program_id(0) * BM, 0), acc)


def says_how_much(a, b, c, flags):
    """What another program says is how many operands there are."""
    acc = tkc.zeros((BM, BN))
    for k in range(0, tkc.load(flags.ptr, sem="relaxed"), BK):
        x = tkc.load(a, (0, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (tkc.program_id(0) * BM, 0), acc)


def says_whether(a, b, c, flags):
    """What another program says is whether anything is multiplied."""
    acc = tkc.zeros((BM, BN))
    if tkc.load(flags.ptr, sem="relaxed") > 0:
        for k in range(0, a.shape[1], BK):
            x = tkc.load(a, (0, k), (BM, BK))
            acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(c, (tkc.program_id(0) * BM, 0), acc)


def lets_others_write(a, b, c, flags):
    """What is copied is what other programs write before they let this one on."""
    i, acc = tkc.program_id(0), tkc.zeros((BM, BN))
    while tkc.atomic_cas(flags.ptr, i, i, sem="acquire") != i:
        pass
    for k in range(0, a.shape[1], BK):
        x = tkc.load(a, (i * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, 0), (BK, BN)), acc)
    tkc.store(a, (i * BM + BM, 0), acc.to(a.dtype))
    tkc.atomic_xchg(flags.ptr, i + 1, sem="release")


@pytest.mark.parametrize(
    "fn", [says_what_is_copied, says_how_much, says_whether, lets_others_write]
)
def test_what_operands_follow_from_keeps_one_role(fn):
    module, given = traced(fn, H2, H2, F2, N1), context("sm_90a")
    through(module, PIPELINE[-1], given)
    assert not given.has_roles
    assert any("observe the order" in line for line in given.decisions)


def one_by_one(a, b, c, flags, WAITS: tkc.constexpr):
    """A block of a product, which is stored once the program before has been."""
    i, j, acc = tkc.program_id(0), tkc.program_id(1), tkc.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        x = tkc.load(a, (i * BM, k), (BM, BK))
        acc = tkc.dot(x, tkc.load(b, (k, j * BN), (BK, BN)), acc)
    number = j * tkc.num_programs(0) + i
    if WAITS:
        while tkc.load(flags.ptr, sem="acquire") != number:
            pass
    tkc.store(c, (i * BM, j * BN), acc)
    if WAITS:
        tkc.atomic_xchg(flags.ptr, number + 1, sem="release")


@pytest.mark.parametrize("asked", [None, 4])
@pytest.mark.parametrize("waits", [False, True])
def test_programs_of_one_role_that_wait_keep_their_order(waits, asked):
    """In columns, programs would run before those for which they wait."""
    module, given = traced(one_by_one, H2, H2, F2, N1, WAITS=waits), context("sm_80", raster=asked)
    through(module, "plan", given)
    found = any("programs run in columns" in line for line in given.decisions)
    assert found == (not waits), given.decisions


def stored_before_a_lock(a, c, flags):
    """The operand of one dot, which no loop copies, is stored where the result is great."""
    x = tkc.load(a[tkc.program_id(0)], (0, 0), (64, 16))
    great = tkc.dot(x, tkc.full((16, 16), 1, tkc.float16)) > 2
    tkc.store(c[tkc.program_id(0)], (0, 0), x, mask=great)
    while tkc.atomic_cas(flags.ptr, 0, 0, sem="acquire") == 1:
        pass


def test_the_first_copies_stand_in_no_loop():
    """The ring is there before the buffer of the first program's copy is one of its stages."""
    a3 = aligned(tkc.float16, 3)
    module = traced(stored_before_a_lock, a3, array(tkc.float16, 3), N1)
    given = context("sm_90a", num_warps=4, num_stages=3, programs=3)
    through(module, PIPELINE[-1], given)
    a = np.random.default_rng(0).integers(-2, 3, (3, 64, 16)).astype(np.float16)
    want = np.where(a.astype(np.float32).sum(2, keepdims=True) > 2, a, 0)
    c = np.zeros((3, 64, 16), np.float16)
    level4.run(module, [a, c, np.zeros(1, np.int32)], (3,), 1)
    np.testing.assert_array_equal(c, want)
