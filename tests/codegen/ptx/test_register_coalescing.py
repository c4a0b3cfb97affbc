"""What a loop carries keeps its registers: no moves in the loop where data flow allows it, right
results where it does not.
"""

import re

import numpy as np
import pytest

import tkc
from tests.codegen.ptx import machine
from tests.codegen.ptx.test_operations import check, emitted
from tests.language.kernels import array, i32, traced
from tests.long_kernels import ARGUMENTS, elementwise
from tests.passes.kernels import CASES, PIPELINE, Case, context, through
from tests.passes.stages import LAST, compiled
from tkc.codegen.ptx import equal_readers, register_coalescing
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import target

STEPS = 200


def loops(text: str) -> list[str]:
    """The bodies of loops, innermost text between a label and the branch back to it."""
    return [m[2] for m in re.finditer(r"\$(for_\d+):\n((?:(?!\$for_).)*?)bra\S* \$\1;", text, re.S)]


def moves_in(body: str) -> int:
    return len(re.findall(r"\tmov\.b32 %r\d+, %r\d+;", body))


def test_accumulators_do_not_move():
    for name in ("product", "product, float32", "attention"):
        module, strict = CASES[name].module(), CASES[name].module()
        through(strict, PIPELINE[-1], context("sm_80", relax=False))
        # ring state and row statistics
        assert moves_in(max(loops(emit(strict, target("sm_80")).text), key=len)) <= 8
        body = max(loops(emitted(module).text), key=len)
        assert "mma.sync" in body or "fma.rn" in body
        moves = re.findall(r"\tmov\.b32 (%r\d+), (%r\d+);", body)
        written = [into for into, _ in moves]
        sums = {
            r
            for group in re.findall(r"mma\.sync\S* \{([^}]*)\}", body)
            for r in group.replace(" ", "").split(",")
        }
        assert not sums & {r for move in moves for r in move}, body
        # ring state and row statistics; what both arms of a branch give is moved in each
        assert sum(written.count(r) == 1 for r in written) <= 8, body


def test_rescaled_sums_stay():
    def decay(x, o, n, N: tkc.constexpr):
        acc = tkc.zeros((N,))
        for i in tkc.range(0, n):
            acc = acc * 0.5 + tkc.load(x, (i, 0), (None, N))
        tkc.store(o, (0,), acc)

    case = Case(decay, [array(tkc.float32, 2), array(tkc.float32), i32()], dict(N=1024), list, (1,))
    (body,) = loops(emitted(case.module()).text)
    loaded = set(
        re.findall(r"%r\d+", " ".join(re.findall(r"ld\.global\S* (\{[^}]*\}|%r\d+),", body)))
    )
    assert all(
        source in loaded for _, source in re.findall(r"\tmov\.b32 (%r\d+), (%r\d+);", body)
    ), body  # only what was asked for one iteration ahead takes its place
    check(decay, [np.ones((5, 64), np.float32), np.zeros(64, np.float32), 5], 1e-6, N=64)


def test_rescaled_sums_of_what_is_not_read_ahead_stay():
    """A view that the counter chooses: its loads arrive where they are used, and nothing moves."""

    def decay(x, o, n, N: tkc.constexpr):
        acc = tkc.zeros((N,))
        for i in tkc.range(0, n):
            acc = acc * 0.5 + tkc.load(x[i], (0,), (N,))
        tkc.store(o, (0,), acc)

    case = Case(decay, [array(tkc.float32, 2), array(tkc.float32), i32()], dict(N=1024), list, (1,))
    (body,) = loops(emitted(case.module()).text)
    assert moves_in(body) == 0, body
    check(decay, [np.ones((5, 64), np.float32), np.zeros(64, np.float32), 5], 1e-6, N=64)


def test_values_that_change_places():
    """Two carried tiles swap, one is needed after it changed, one start is used twice: copies where
    they must be.
    """

    def swap(x, o, p, q, n, N: tkc.constexpr):
        a, b = tkc.load(x, (0, 0), (None, N)), tkc.load(x, (1, 0), (None, N))
        c = d = a + b
        for i in tkc.range(0, n):
            a, b = b, a + 1
            old, c = c, c * 2
            d = d + old + c
            if i > 1:
                d = d - b
        tkc.store(o, (0,), a + b * 100)
        tkc.store(p, (0,), c)
        tkc.store(q, (0,), d)

    x = np.arange(80, dtype=np.float32).reshape(2, 40)
    for n in (0, 1, 2, 5):
        check(swap, [x, *(np.zeros(40, np.float32) for _ in range(3)), n], N=40)


def test_views_of_what_a_loop_carries():
    """A reshape shares registers with the accumulator: it must not see the next iteration's."""

    def alias(x, o, n, N: tkc.constexpr):
        acc, before = tkc.zeros((4, N)), tkc.zeros((N, 4))
        for _i in tkc.range(0, n):
            seen = acc.T
            acc = acc + tkc.load(x, (0, 0), (4, N))
            before = before * 2 + seen
        tkc.store(o, (0, 0), before + acc.T)

    check(
        alias,
        [np.arange(64, dtype=np.float32).reshape(4, 16), np.zeros((16, 4), np.float32), 4],
        N=16,
    )


def test_a_view_read_before_the_change():
    """A flipped view of the accumulator is read in the same run of operations that changes it."""

    def mirror(x, o, p, n, N: tkc.constexpr):
        acc, before = tkc.load(x, (0, 0), (4, N)), tkc.zeros((4, N))
        for _i in tkc.range(0, n):
            seen = tkc.flip(acc, axis=1)
            before = before * 2 + seen
            acc = acc + 1
        both = tkc.load(x, (0, 0), (4, N))
        for _i in tkc.range(0, n):
            both = both + tkc.flip(both, axis=1)
        tkc.store(o, (0, 0), before + acc)
        tkc.store(p, (0, 0), both)

    check(
        mirror,
        [
            np.arange(64, dtype=np.float32).reshape(4, 16),
            *(np.zeros((4, 16), np.float32) for _ in range(2)),
            4,
        ],
        N=16,
    )


def test_pointers_that_follow_each_other():
    """Each element's next index is loaded to where its index was."""

    def chase(links, o, n, N: tkc.constexpr):
        i = tkc.arange(N)
        for _ in tkc.range(0, n):
            i = tkc.load(links.ptr + i, mask=i >= 0, other=-1)
        tkc.store(o, (0,), i)

    links = np.random.default_rng(0).permutation(100).astype(np.int32) - 1
    check(chase, [links, np.zeros(100, np.int32), 4], N=100)


def test_nested_loops_and_branches():
    def nest(x, o, n, N: tkc.constexpr):
        total = tkc.zeros((N,))
        for i in tkc.range(0, n):
            inner = tkc.load(x, (0,), (N,))
            for j in tkc.range(0, i):
                inner = inner + total
                if j % 2 == 1:
                    total = total + inner
                else:
                    inner = inner - 1
            total = total + inner
        while tkc.max(total) > 1000:
            total = total * 0.5
        tkc.store(o, (0,), total)

    for n in (0, 1, 3, 6):
        check(nest, [np.arange(70, dtype=np.float32), np.zeros(70, np.float32), n], 1e-6, N=70)


def test_a_while_that_reads_what_the_loop_round_it_carries():
    def rounds(x, o, n, N: tkc.constexpr):
        acc = tkc.load(x, (0,), (N,))
        for i in tkc.range(0, n):
            v, j = acc * 0.5, 0
            while j < i + 2:
                v = v + acc
                j = j + 1
            acc = v - 1
        tkc.store(o, (0,), acc)

    check(rounds, [np.arange(64, dtype=np.float32), np.zeros(64, np.float32), 3], 1e-6, N=64)

    def direct(x, o, n, N: tkc.constexpr):
        acc = tkc.load(x, (0,), (N,))
        for i in tkc.range(0, n):
            v, j = acc * 0.5, 0
            while j < i + 2:
                v = v * 0.5 + acc
                j = j + 1
            acc = v
        tkc.store(o, (0,), acc)

    check(direct, [np.arange(64, dtype=np.float32), np.zeros(64, np.float32), 3], 1e-6, N=64)


def test_a_chain_asks_each_value_once_whether_a_dot_wrote_it(monkeypatch):
    """Its steps are one class, which was searched for each step that joined it."""
    asked, dot_of = [0], equal_readers.dot_of

    def counted(value):
        asked[0] += 1
        return dot_of(value)

    for module in (equal_readers, register_coalescing):
        monkeypatch.setattr(module, "dot_of", counted)
    monkeypatch.setenv("TKC_CACHE", "0")
    assert elementwise.compile(*ARGUMENTS[elementwise], STEPS, target="sm_90a").ptx
    assert STEPS < asked[0] < 8 * STEPS


def counted(y, N: tkc.constexpr):
    """A loop carries a tile that is counted as integers, each of which several elements share."""
    acc = ((tkc.arange(1)[:, None] + tkc.arange(N)[None, :]) % 4).to(tkc.float32)
    for _ in tkc.range(0, y.shape[0]):
        acc += tkc.dot(tkc.full((1, 32), 1.0, tkc.float16), tkc.full((32, N), 1.0, tkc.float16))
    tkc.store(y, (0, 0), acc)


@pytest.mark.parametrize("n", [3, 16])
def test_a_conversion_that_elements_share_keeps_its_register(n):
    """It was written to where the first of them belongs, and the others read what nobody wrote."""
    modules, _ = compiled(traced(counted, array(tkc.float32, 2), n), "sm_80", num_warps=4)
    y = np.zeros((1, n), np.float32)
    machine.run(modules[LAST], [y], (1, 1, 1))
    np.testing.assert_array_equal(y[0], np.arange(n) % 4 + 32)
