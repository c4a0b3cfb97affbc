"""Tiles that are read along one axis and written along another: transposed in registers, through
shared memory, stored in whole rows.
"""

import numpy as np
import pytest

import tkc
from tests.passes.kernels import BF16
from tests.passes.test_streaming import run
from tkc.codegen.ptx.emit import emit
from tkc.ir.target import TARGETS
from tkc.ir.text import parse
from tkc.kernels.movement import _transpose
from tkc.kernels.softmax import _softmax as tuned_softmax
from tkc.sim import ptx

_softmax = tuned_softmax.kernel  # without the choice of blocks


def test_transposed_columns_are_stored_as_a_whole_too():
    @tkc.jit
    def columns(x, out):
        tkc.store(out, (0, 0), tkc.load(x, (0, 0), (64, 96)).T)

    x = np.asfortranarray(np.random.default_rng(0).integers(-99, 99, (64, 96)).astype(np.float32))
    out = np.zeros((96, 64), np.float32, order="F")
    compiled = columns.compile(x, out, target="sm_90a", num_warps=4)
    run(parse(compiled.ir("assign-registers")), [x, out], [], (1, 1, 1), 0)
    np.testing.assert_array_equal(out, x.T)
    assert (
        any("in whole rows" in line for line in compiled.decisions)
        and compiled.interface.shared_bytes == x.nbytes
        and not any("conflicts" in line for line in compiled.decisions)
    )


@pytest.mark.parametrize(
    "shape, dtype, warps",
    [
        ((128, 64), BF16, 8),
        ((72, 200), BF16, 4),
        ((72, 200), BF16, 2),
        ((64, 128), np.float32, 4),
        ((40, 96), np.int8, 2),
        ((7, 64), BF16, 4),
    ],
)
def test_a_transpose_in_registers_means_the_same(shape, dtype, warps):
    x = np.random.default_rng(0).integers(-99, 99, (2, *shape)).astype(dtype)
    out = np.zeros((2, *shape[::-1]), dtype)
    compiled = _transpose.compile(
        x, out, ROWS=64, COLUMNS=64, target="sm_90a", register_transpose=True, num_warps=warps
    )
    grid = -(-shape[0] // 64), -(-shape[1] // 64), 2
    for stage in "select-layouts", "assign-registers":
        out[...] = 0
        run(parse(compiled.ir(stage)), [x, out], [], grid, 0)
        np.testing.assert_array_equal(out, x.transpose(0, 2, 1))
    out[...] = 0
    got = ptx.run(emit(parse(compiled.ir("assign-registers")), TARGETS["sm_90a"]), [x, out], grid)
    np.testing.assert_array_equal(got[-1], x.transpose(0, 2, 1))
    # whole vectors, and squares of them for all threads: what is transposed is stored in rows
    rows = (dtype, warps) in (
        (np.float32, 4),
        (BF16, 2),
    )

    def said(what):
        return any(what in line for line in compiled.decisions)

    if shape[0] % 4 == 0:
        assert (
            compiled.interface.shared_bytes == rows * out.itemsize * 64 * 64
            and said("between warps") == said("in whole rows") == rows
            and not said("conflicts")
        )
    assert compiled.resources.clean


def test_a_transpose_goes_through_shared_memory_by_option_or_where_rows_have_no_vectors():
    plain, asked = (
        _transpose.compile(
            "bf16[1, 128, 64]",
            "bf16[1, 64, 128]",
            ROWS=64,
            COLUMNS=64,
            target="sm_90a",
            register_transpose=register_transpose,
        )
        for register_transpose in (None, False)
    )
    odd = [
        _transpose.compile(
            f"bf16[1, {n}, {m}]", f"bf16[1, {m}, {n}]", ROWS=64, COLUMNS=64, target="sm_90a"
        )
        for n, m in ((127, 65), (128, 65), (127, 64))
    ]
    assert (
        not plain.interface.shared_bytes
        and asked.interface.shared_bytes
        and all(c.interface.shared_bytes for c in odd)
    )


def test_rows_of_half_vectors_are_not_stored_as_a_whole():
    compiled = _transpose.compile(
        "bf16[2, 68, 200]",
        "bf16[2, 200, 68]",
        ROWS=64,
        COLUMNS=64,
        target="sm_90a",
        register_transpose=True,
        num_warps=2,
    )
    assert not any("whole rows" in line for line in compiled.decisions)


def test_a_transpose_requests_two_lines_at_once():
    """On Hopper, where whole vectors of rows are read; nothing else does."""

    def of(kernel, *given, **options):
        return kernel.compile(*given, **options).ptx

    assert (
        of(
            _transpose,
            "bf16[1, 512, 512]",
            "bf16[1, 512, 512]",
            ROWS=128,
            COLUMNS=64,
            target="sm_90a",
        ).count("ld.global.L2::256B.v4.b32")
        == 8
    )
    for text in (
        of(
            _transpose,
            "bf16[1, 512, 512]",
            "bf16[1, 512, 512]",
            ROWS=128,
            COLUMNS=64,
            target="sm_80",
        ),
        of(
            _transpose,
            "bf16[1, 511, 511]",
            "bf16[1, 511, 511]",
            ROWS=128,
            COLUMNS=32,
            target="sm_90a",
        ),
        of(
            _transpose,
            "bf16[1, 512, 512]",
            "bf16[1, 512, 512]",
            ROWS=128,
            COLUMNS=64,
            target="sm_90a",
            register_transpose=False,
        ),
        of(
            _softmax,
            "bf16[64, 4096]",
            "bf16[64, 4096]",
            LOG=False,
            ROWS=1,
            COLUMNS=4096,
            target="sm_90a",
        ),
    ):
        assert "L2::" not in text
