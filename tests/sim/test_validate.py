"""Every pass on every kernel, before and after, in both arithmetics; and passes that are wrong,
which must be named.
"""

import subprocess
import sys

import numpy as np
import pytest
from xdsl.dialects.builtin import i32

from tests.passes.kernels import CASES, context
from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.types import TileType
from tkc.passes import pipeline
from tkc.sim import bounds, ring
from tkc.sim.inputs import clones, packed, unpacked
from tkc.sim.validate import ValidationError, Validator


def validated(case, machine, tmp_path, broken=None, **options):
    """Runs the pipeline with a validator; broken: (pass, change) to make after that pass."""
    v = Validator(
        clones(case.data()),
        case.grid,
        pipeline.uses_reals,
        pipeline.unordered,
        folder=tmp_path,
        **options,
    )
    module, given = case.module(), context(machine, **case.options)

    def observe(name, module):
        if broken and broken[0] == name:
            broken[1](module)
        v(name, module)

    observe("trace", module)
    given = pipeline.run(module, given.target, given.options, observe)
    return v


@pytest.mark.parametrize("machine", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_every_pass_of_every_kernel(name, machine, tmp_path):
    v = validated(CASES[name], machine, tmp_path)
    assert (
        len(v.passes) == len(pipeline.PIPELINE) + 1
        and "ieee" in v.arithmetics
        and (name == "conditional" or "ring" in v.arithmetics)
    ), str(v)
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------
def first(module, kind):
    return next(op for op in module.walk() if isinstance(op, kind))


def swap(kind):
    def change(module):
        op = first(module, kind)
        op.operands[0], op.operands[1] = op.operands[1], op.operands[0]

    return change


def shift(module):
    """The first load of the loop begins one element late."""
    load = first(module, tile.Load)
    one = tile.Constant(1, load.offsets[-1].type)
    add = ew.CLASSES["add"](load.offsets[-1], one.result)
    load.parent.insert_ops_before([one, add], load)
    load.operands[len(load.offsets)] = add.results[0]


def unmask(module):
    """Softmax without −inf beyond the row."""
    select = first(module, ew.Select)
    select.results[0].replace_all_uses_with(select.operands[1])


WRONG = {
    "a store of the wrong rows": ("product", "plan", shift),
    "a difference turned round": ("softmax of 7", "plan", swap(ew.CLASSES["sub"])),
    "a quotient turned round": ("softmax of 7", "schedule-programs", swap(ew.CLASSES["div"])),
    "a mask lost": ("softmax", "select-layouts", unmask),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mutated_pass_is_named_and_reproduced(name, tmp_path):
    case, at, change = WRONG[name]
    with pytest.raises(ValidationError) as caught:
        validated(CASES[case], "sm_80", tmp_path, (at, change))
    e = caught.value
    assert e.name == at and at in str(e) and e.folder.parent == tmp_path
    assert {p.name for p in e.folder.iterdir()} == {
        "before.mlir",
        "after.mlir",
        "inputs.npz",
        "README.txt",
    }
    command = [
        sys.executable,
        "-m",
        "tkc.tools.cli",
        "opt",
        str(e.folder / "before.mlir"),
        "--against",
        str(e.folder / "after.mlir"),
        "--inputs",
        str(e.folder / "inputs.npz"),
    ]
    if name == "a mask lost":
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and "differ" in done.stderr and not done.stdout, done.stderr
        again = subprocess.run(
            [
                *command[:5],
                "--pass",
                at,
                "--validate",
                "--inputs",
                command[-1],
                "--target",
                "sm_80",
            ],
            capture_output=True,
            text=True,
        )
        assert again.returncode == 0 and "change nothing" in again.stderr, (
            again.stderr
        )  # the pass itself is right


def test_without_time_passes_are_compared_together(tmp_path):
    """All of them at the last one, which is then said; what is wrong is still found, and the
    reproducer has the range.
    """
    v = validated(CASES["product"], "sm_90a", tmp_path, seconds=0.0, last=pipeline.PIPELINE[-1])
    assert (
        v.small == (1, 1)
        and len(v.passes) == len(pipeline.PIPELINE) + 1
        and "were compared together, for want of time" in str(v)
        and "plan, swap-dots" in str(v)
    )
    with pytest.raises(ValidationError) as caught:
        validated(
            CASES["product"],
            "sm_80",
            tmp_path,
            ("plan", shift),
            seconds=0.0,
            last=pipeline.PIPELINE[-1],
        )
    assert (
        caught.value.name == pipeline.PIPELINE[-1]
        and f"one of the passes {pipeline.PIPELINE[0]}, " in str(caught.value)
        and f"and {pipeline.PIPELINE[-1]} changes" in str(caught.value)
    )
    assert "--pass plan --pass swap-dots" in (caught.value.folder / "README.txt").read_text()


def test_passes_that_are_named_are_compared_with_the_next(tmp_path):
    """Others are compared by themselves, and what one of those that are named breaks is found."""
    first, *others, last = pipeline.PIPELINE[pipeline.PIPELINE.index("schedule-warpgroups") :]
    together = frozenset({first, *others})
    how = {"last": pipeline.PIPELINE[-1], "together": together}
    v = validated(CASES["product"], "sm_80", tmp_path, **how)
    names = ", ".join((first, *others))
    assert v.notes == [f"{names} and {last} were compared together"]
    assert len(v.passes) == len(pipeline.PIPELINE) + 1 and v.arithmetics == ["ieee", "ring"]
    turned = swap(ew.CLASSES["sub"])
    with pytest.raises(ValidationError, match=f"one of the passes {names} and {last}"):
        validated(CASES["softmax of 7"], "sm_80", tmp_path, ("allocate-shared", turned), **how)
    with pytest.raises(ValidationError, match="pass plan changes"):
        validated(CASES["softmax of 7"], "sm_80", tmp_path, ("plan", turned), **how)


def test_ring_arithmetic_sees_what_rounding_hides(tmp_path):
    """A term of 1e-9 beside one of 1: nothing in float32, everything modulo 2^32."""

    def lose(module):
        dot = first(module, tile.Dot)
        tiny, scaled = tile.Constant(1e-9, dot.acc.type), None
        scaled = ew.CLASSES["mul"](dot.acc, tiny.result)
        sum_ = ew.CLASSES["add"](dot.acc, scaled.results[0])
        dot.parent.insert_ops_before([tiny, scaled, sum_], dot)
        dot.operands[2] = sum_.results[0]

    with pytest.raises(ValidationError) as caught:
        validated(CASES["product, float32"], "sm_80", tmp_path, ("plan", lose))
    assert caught.value.arithmetic == "ring"


def test_a_kernel_that_is_itself_wrong_is_not_a_pass_that_is(tmp_path):
    case = CASES["pointers"]
    data = case.data()
    v = Validator([data[0], data[1][:10].copy(), 160], (1,), folder=tmp_path)
    with pytest.raises(Exception, match="byte") as caught:
        v("trace", case.module())
    assert not isinstance(caught.value, ValidationError)


def read_all(module):
    """What a mask of a load leaves out is read, and counts for nothing."""
    load = first(module, tile.LoadPointers)
    whole = tile.LoadPointers(load.pointers)
    nothing = tile.Constant(0.0, load.result.type)
    kept = ew.Select(load.mask, whole.result, nothing.result)
    load.parent.insert_ops_before([whole, nothing, kept], load)
    load.result.replace_all_uses_with(kept.results[0])
    load.detach()
    load.erase()


def write_beside(module):
    """What lies behind each element that is stored becomes 0, as it is."""
    store = first(module, tile.StorePointers)
    one = tile.Constant(1, TileType(store.pointers.type.extents, i32))
    there = ew.PointerAdd(store.pointers, one.result)
    zero = tile.Constant(0.0, store.value.type)
    beside = tile.StorePointers(there.results[0], zero.result)
    store.parent.insert_ops_before([one, there, zero, beside], store)


@pytest.mark.parametrize(
    ("change", "said"),
    [(read_all, r"byte 640 of x is read, and was not before"), (write_beside, "of o is written")],
)
def test_a_pass_touches_nothing_that_its_kernel_did_not(change, said, tmp_path):
    """Memory that is there, with values that change no result: a GPU may have none there."""
    case = CASES["pointers"]
    x, o = np.zeros((16, 256), np.float32), np.zeros((66, 24), np.float32)
    v = Validator([x, o[:, 4:20], 160], (1,), folder=tmp_path)
    module = case.module()
    v("trace", module)
    change(module)
    with pytest.raises(ValidationError, match=said):
        v("a pass", module)


# --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_the_ring_keeps_sums_products_and_powers(width):
    kind = np.dtype(f"i{width // 8}")
    x, y = (
        np.random.default_rng(s).integers(0, 256, (1000, kind.itemsize), np.uint8).view(kind)[:, 0]
        for s in (0, 1)
    )
    exp2, f = ring.FUNCTIONS["exp2"], ring.FUNCTIONS
    np.testing.assert_array_equal(exp2(x + y), exp2(x) * exp2(y))
    np.testing.assert_array_equal(f["exp"](x + y), f["exp"](x) * f["exp"](y))
    assert exp2(kind.type([0])) == 1 and f["div"](kind.type([0]), kind.type([5])) == 0
    for name in ("sin", "sqrt", "log", "tanh", "reciprocal"):
        assert len(set(f[name](np.arange(-128, 128).astype(kind)).tolist())) == 256, name
    values = [
        ring.embed(v, width) for v in (0.0, 1.0, -1.0, 2.0, 0.1, -0.1, float("inf"), -float("inf"))
    ]
    assert (
        values[:4] == [0, 1, -1, 2]
        and values[4] == -values[5] != 0
        and values[6] == 2 ** (width - 1) - 1
        and values[7] == -(2 ** (width - 1))
    )


def test_constants_are_the_same_in_every_type():
    assert ring.embed(0.1, 16) == (ring.embed(float(np.float16(0.1)), 64) + (1 << 15)) % (
        1 << 16
    ) - (1 << 15)


@pytest.mark.parametrize(
    "name", ["softmax", "product", "attention, causal", "layer norm backward", "mamba2", "shapes"]
)
def test_bounds_hold_for_other_roundings(name):
    """The same kernel with its float32 results jolted in their last bit stays within the bound, and
    the bound is no excuse.
    """
    from tkc.sim import level0

    case, rng = CASES[name], np.random.default_rng(3)

    class Jolted(level0.ProgramInterpreter):
        def execute(self, op):
            super().execute(op)
            for v in op.results:
                x = self.values.get(v)
                if (
                    isinstance(op, (ew.Elementwise, tile.Dot, tile.Reduce))
                    and isinstance(x, np.ndarray)
                    and x.dtype == np.float32
                ):
                    self.values[v] = np.where(
                        np.isfinite(x),
                        x * (1 + rng.integers(-1, 2, x.shape) * np.float32(2**-24)),
                        x,
                    ).astype(np.float32)

    module, data, jolted = case.module(), case.data(), case.data()
    programs = [p[::-1] for p in np.ndindex(*case.grid[::-1])]
    allowed = bounds.run(module, clones(data), case.grid, programs)
    level0.run(module, data, case.grid)
    level0.run(module, jolted, case.grid, interpreter=Jolted)
    for i in case.outputs:
        x, y = bounds.wide(data[i]), bounds.wide(jolted[i])
        assert np.isfinite(allowed[i]).all() and (np.abs(x - y) <= 2 * allowed[i]).all()
        assert np.median(allowed[i]) <= 0.05 * np.abs(x).max()


def test_inputs_travel_in_a_file(tmp_path):
    import ml_dtypes

    whole = np.arange(60).astype(ml_dtypes.bfloat16).reshape(6, 10)
    given = [whole[:, :7], 3, 0.5, np.zeros((2, 0), np.int8), np.array([True, False])]
    np.savez(tmp_path / "x.npz", **packed(given))
    with np.load(tmp_path / "x.npz", allow_pickle=False) as file:
        got = unpacked({k: file[k] for k in file.files})
    for x, y in zip(given, got, strict=True):
        if isinstance(x, np.ndarray):
            assert (
                x.dtype == y.dtype
                and x.shape == y.shape
                and (x == y).all()
                and (not x.size or x.strides == y.strides)
            )
        else:
            assert x == y
    assert type(got[1]) is int and type(got[2]) is float
