"""Random kernels, a fixed budget of them; the generator and the reducer."""

import numpy as np
import pytest

from tkc.errors import Error
from tkc.fuzz.check import check
from tkc.fuzz.grammar import POLICIES
from tkc.fuzz.productions import KernelWriter, kernel
from tkc.fuzz.reducer import reduce
from tkc.ir import tile
from tkc.ir.text import parse, show


@pytest.mark.parametrize("batch", range(30))
def test_kernels_agree_at_every_level(batch):
    """Ten kernels of few statements each; `python -m tkc.fuzz kernels --seeds A:B` runs more and
    longer ones.
    """
    for seed in range(10 * batch, 10 * batch + 10):
        k = kernel(seed, steps=1 + seed // 3 % 4)
        assert not [str(f) for f in check(k, brief=True) if f.kind != "refused"], (
            f"seed {seed}\n{k.source}"
        )


def test_a_seed_is_a_kernel():
    for seed in range(20):
        a, b = kernel(seed), kernel(seed)
        assert a.source == b.source and a.grid == b.grid and a.numbers == b.numbers
        tables = {spec.name for spec in a.arrays if spec.order == "addresses"}
        for (name, x), y in zip(a.arguments().items(), b.arguments().values(), strict=True):
            assert name in tables or np.array_equal(x, y)
    assert len({kernel(seed).source for seed in range(50)}) == 50


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_writes_python(policy):
    for seed in range(30):
        compile(kernel(seed, policy).source, "k", "exec")


def test_a_loop_whose_statements_came_to_nothing(monkeypatch):
    monkeypatch.setattr(KernelWriter, "step", lambda self, depth=2: None)
    writer = KernelWriter(0)
    writer.loop_body(1, [], "for i in tkc.range(3):")
    writer.line("x = 1")
    compile("def kernel():\n" + "\n".join(writer.lines), "k", "exec")


# ruff: noqa: E501 (the text of IR)
BIG = """
builtin.module {
  tile.kernel @k(%x: !tile.array<?x?xf32>, %y: !tile.array<?x?xf32>, %n: i32) {level = 0 : i64, argument_names = ["x", "y", "n"]} {
    %zero = tile.constant 0 : i32
    %one = tile.constant 1 : i32
    %t = tile.load %x[%zero, %n] {extents = array<i64: 8, 32>} : (!tile.array<?x?xf32>, i32, i32) -> !tile.tile<8x32xf32>
    %u = tile.add %t, %t : !tile.tile<8x32xf32>
    %r = scf.for %i = %zero to %n step %one iter_args(%a = %u) -> (!tile.tile<8x32xf32>) : i32 {
      %b = tile.mul %a, %t : !tile.tile<8x32xf32>
      %s = tile.sort %b : (!tile.tile<8x32xf32>) -> !tile.tile<8x32xf32>
      scf.yield %s : !tile.tile<8x32xf32>
    }
    %v = tile.neg %r : !tile.tile<8x32xf32>
    tile.store %y[%zero, %zero] %v {extents = array<i64: 8, 32>} : (!tile.array<?x?xf32>, i32, i32, !tile.tile<8x32xf32>)
    tile.return
  }
}
"""


def test_reduction():
    """What is left of a module whose fault is the sort, and of one whose fault is a loop that
    multiplies.
    """

    def has(*kinds):
        return lambda m: all(any(op.name == k for op in m.walk()) for k in kinds)

    small = reduce(parse(BIG), has("tile.sort"))
    assert (
        len(show(small).splitlines()) <= 9
        and has("tile.sort")(small)
        and not any(op.name in ("scf.for", "tile.load", "tile.store") for op in small.walk())
    )
    assert len(next(op for op in small.walk() if isinstance(op, tile.Kernel)).arguments) == 0
    small = reduce(parse(BIG), has("scf.for", "tile.mul"))
    assert len(show(small).splitlines()) <= 16 and not any(
        op.name == "tile.sort" for op in small.walk()
    )


def test_what_is_not_interesting_is_refused():
    with pytest.raises(Error, match="not interesting"):
        reduce(parse(BIG), lambda m: False)
