"""Shared-memory layouts: offsets, slices, descriptors and bank conflicts against formulas written
down independently.
"""

from __future__ import annotations

import doctest
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tkc.ir.shared_layout
from tkc.ir.fragments import wgmma_accumulator
from tkc.ir.layout import Layout, LayoutError, blocked
from tkc.ir.shared_layout import SharedLayout, conflicts, conflicts_of

quick = settings(deadline=None, max_examples=60)


@st.composite
def shared_layouts(draw) -> SharedLayout:
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.sampled_from([1, 2, 3, 7, 8, 16, 40, 64])) for _ in range(rank))
    swizzle = draw(st.sampled_from([0, 16, 32, 64, 128]))
    pad = draw(st.sampled_from([0, 8, 16])) if not swizzle else 0
    return SharedLayout(
        shape,
        draw(st.sampled_from([8, 16, 32, 64])),
        swizzle,
        tuple(draw(st.permutations(range(rank)))),
        pad,
    )


def test_the_docstring():
    failed, attempted = doctest.testmod(tkc.ir.shared_layout)
    assert failed == 0 and attempted > 2


# ---- offsets -------------------------------------------------------------------------------------


def by_hand(shape, bits, swizzle, order, pad, coord) -> int:
    """Panels, rows, chunks and bytes, one after the other, as TMA writes them."""
    size = bits // 8
    inner = coord[order[0]] * size
    row, rows = 0, 1
    for axis in order[1:]:
        row, rows = row + coord[axis] * rows, rows * shape[axis]
    if not swizzle:
        return row * (shape[order[0]] * size + pad) + inner
    eight_rows = -(-rows // 8) if swizzle > 16 else rows / 8
    address = int(inner // swizzle * eight_rows * 8 * swizzle) + row * swizzle + inner % swizzle
    chunk, line = address // 16, address // 128  # CuTe's Swizzle<B, 4, 3>
    return (chunk ^ line % {16: 1, 32: 2, 64: 4, 128: 8}[swizzle]) * 16 + address % 16


@quick
@given(shared_layouts(), st.data())
def test_offset(layout, data):
    coord = tuple(data.draw(st.integers(0, n - 1)) for n in layout.shape)
    at = layout.offset(coord)
    assert (
        at
        == by_hand(layout.shape, layout.bits, layout.swizzle, layout.order, layout.pad, coord)
        == layout.table()[coord]
    )
    assert at == layout.offsets(np.array(coord)) and isinstance(at, int)


@quick
@given(shared_layouts())
def test_no_two_elements_overlap(layout):
    table = np.sort(layout.table().ravel())
    assert (
        (np.diff(table) >= layout.itemsize).all()
        and table[0] == 0
        and table[-1] + layout.itemsize <= layout.bytes
    )
    if layout.shape[layout.fast] % layout.panel == 0 and layout.num_panels == 1:
        assert layout.bytes == layout.table().size // layout.shape[layout.fast] * (
            layout.swizzle or layout.shape[layout.fast] * layout.itemsize + layout.pad
        )


def test_swizzle_128_is_the_picture():
    tile = SharedLayout((8, 64), 16, 128)
    places = np.array(
        [[tile.offset((row, 8 * chunk)) % 128 // 16 for chunk in range(8)] for row in range(8)]
    )
    assert (places == np.arange(8)[:, None] ^ np.arange(8)).all()


def test_sizes():
    tile = SharedLayout((128, 64), 16, 128)
    assert (tile.bytes, tile.alignment, tile.panel, tile.num_panels, tile.strides) == (
        16384,
        1024,
        64,
        1,
        (128, 2),
    )
    assert [SharedLayout((64, 64), 16, w).alignment for w in (128, 64, 32, 16, 0)] == [
        1024,
        512,
        256,
        16,
        16,
    ]
    assert (
        SharedLayout((7, 128), 16, 128).panel_stride == 1024
        and SharedLayout((7, 128), 16, 128).bytes == 1024 + 7 * 128
    )
    assert SharedLayout((64, 64), 16, pad=16).bytes == 64 * 144
    assert [SharedLayout.widest((128, n), 16).swizzle for n in (256, 64, 96, 48, 40, 20)] == [
        128,
        128,
        64,
        32,
        16,
        0,
    ]
    assert SharedLayout.widest((64, 96), 16, (0, 1)) == SharedLayout((64, 96), 16, 128, (0, 1))


# ---- algebra -------------------------------------------------------------------------------------


@quick
@given(shared_layouts(), st.data())
def test_transpose(layout, data):
    perm = data.draw(st.permutations(range(len(layout.shape))))
    turned = layout.transpose(perm)
    assert (turned.table() == layout.table().transpose(perm)).all() and turned.bytes == layout.bytes
    assert turned.transpose(np.argsort(perm).tolist()) == layout


@quick
@given(shared_layouts(), st.data())
def test_slice(layout, data):
    offsets, sizes = [], []
    for axis, extent in enumerate(layout.shape):
        step, _ = layout.linear(axis)
        offsets.append(step * data.draw(st.integers(0, (extent - 1) // step)))
        sizes.append(data.draw(st.integers(1, extent - offsets[-1])))
    part, start = layout.slice(offsets, sizes)
    window = layout.table()[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=False))]
    assert start % layout.atom == 0 or not layout.swizzle
    assert (part.table() + start == window).all()
    assert SharedLayout.parse(str(part)) == part
    for axis, size in enumerate(sizes):
        if size == 1 and axis != part.fast:
            assert (part.drop(axis).table() == part.table().squeeze(axis)).all()


@quick
@given(shared_layouts())
def test_linear(layout):
    for axis in range(len(layout.shape)):
        step, stride = layout.linear(axis)
        moved, rest = (
            np.moveaxis(layout.table(), axis, 0)[s] for s in (slice(step, None), slice(None, -step))
        )
        assert (moved == rest + stride).all() and (stride % layout.atom == 0 or not layout.swizzle)


@quick
@given(shared_layouts())
def test_text_round_trip(layout):
    assert SharedLayout.parse(str(layout)) == layout


def test_text():
    assert str(SharedLayout((64, 128), 16, 128)) == "64x128xb16 swizzle 128"
    assert str(SharedLayout((64, 128), 16, 128, (0, 1))) == "64x128xb16 swizzle 128 order 0x1"
    assert str(SharedLayout((64, 128), 32, pad=16)) == "64x128xb32 pad 16"
    part, start = SharedLayout((64, 256), 16, 128).slice((8, 64), (16, 128))
    assert str(part) == "16x128xb16 swizzle 128 panel_stride 8192" and start == 8192 + 1024


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: SharedLayout((64,), 4),
            "elements in shared memory have 8, 16, 32, 64 or 128 bits, not 4",
        ),
        (
            lambda: SharedLayout((), 8),
            "a tile in shared memory has extents of at least 1, but the shape is scalar",
        ),
        (
            lambda: SharedLayout((64, 64), 16, 48),
            "a swizzle is 0, 16, 32, 64, 128 bytes wide, not 48",
        ),
        (
            lambda: SharedLayout((64, 64), 16, 128, pad=16),
            "a pad of 16 bytes does not go with swizzle 128",
        ),
        (
            lambda: SharedLayout((64, 64), 16, order=(1,)),
            "order (1,) does not list the 2 axes of a 64x64 tile",
        ),
        (
            lambda: SharedLayout((64, 64), 16, 128).slice((4, 0), (8, 64)),
            (
                "a slice at 4 along axis 0 cuts through a swizzle atom: it must start at a multiple"
                " of 8"
            ),
        ),
        (
            lambda: SharedLayout((64, 64), 16, 128).slice((0, 32), (8, 32)),
            (
                "a slice at 32 along axis 1 cuts through a swizzle atom: it must start at a"
                " multiple of 64"
            ),
        ),
        (
            lambda: SharedLayout((64, 64), 16).slice((0, 60), (64, 8)),
            "the slice [60, 68) leaves axis 1 of extent 64",
        ),
        (
            lambda: SharedLayout((64, 64), 16).descriptor("k"),
            "wgmma reads 2-D tiles in panels of 16, 32, 64 or 128 bytes, not 64x64xb16",
        ),
        (
            lambda: SharedLayout((64, 64), 8, 64).descriptor("mn"),
            "wgmma reads 8-bit operands K-major only; MN-major needs 16-bit elements",
        ),
        (lambda: SharedLayout((2, 64, 64), 16, 128).descriptor("k"), "wgmma reads 2-D tiles"),
        (
            lambda: SharedLayout((64, 64), 16, 128).descriptor("m"),
            "the major of a wgmma operand is 'k' or 'mn', not 'm'",
        ),
        (
            lambda: SharedLayout((8, 64), 16, 128).drop(1),
            "axis 1 of 8x64xb16 swizzle 128 cannot be dropped",
        ),
        (
            lambda: SharedLayout.parse("64x64 swizzle 128"),
            "cannot read the shared layout '64x64 swizzle 128': expected 64x128xb16",
        ),
        (
            lambda: SharedLayout.parse("64x64xb16 swizle 128"),
            "cannot read the shared layout '64x64xb16 swizle 128'",
        ),
        (
            lambda: conflicts(np.zeros(32, int), 12),
            "a lane accesses 1, 2, 4, 8 or 16 bytes of shared memory at once, not 12",
        ),
        (
            lambda: conflicts_of(blocked((64, 64), 2, 4), SharedLayout((64, 64), 16), 8),
            "does not hold 8 neighbours along axis 1",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(LayoutError) as error:
        make()
    assert message in str(error.value)


# ---- wgmma descriptors (HOPPER.md 1.7) -----------------------------------------------------------


def test_descriptor_k_major():
    for width, code in (128, 1), (64, 2), (32, 3):
        d = SharedLayout((128, 128), 16, width).descriptor("k")
        assert (d.sbo, d.code, d.rows64) == (8 * width, code, 64 * width)
        jump = 128 * width
        assert [d.k_offset(s) for s in range(8)] == [
            s * 32 // width * jump + s * 32 % width for s in range(8)
        ]
    assert SharedLayout((128, 64), 16, 128).descriptor("k").bits >> 32 == 0x40000040
    assert SharedLayout((64, 128), 8, 128).descriptor("k").k_offset(3) == 96
    none = SharedLayout((64, 32), 16, 16).descriptor("k")
    assert (none.lbo, none.sbo, none.code, none.k_offset(1), none.rows64) == (
        64 * 16,
        128,
        0,
        2 * 64 * 16,
        1024,
    )


def test_descriptor_mn_major():
    for width, code in (128, 1), (64, 2), (32, 3):
        d = SharedLayout((64, 128), 16, width).descriptor("mn")  # 64 of K, 128 of N
        assert (d.lbo, d.sbo, d.code) == (64 * width, 8 * width, code)
        assert [d.k_offset(s) for s in range(4)] == [s * 16 * width for s in range(4)]
        assert d.rows64 == 128 // width * 64 * width
    verified = SharedLayout((64, 128), 16, 128).descriptor("mn")  # prototypes/GEMM.md
    assert (verified.lbo, verified.sbo, verified.k_offset(1), verified.bits >> 32) == (
        8192,
        1024,
        2048,
        0x40000040,
    )


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_descriptors_find_every_element(width, major):
    """Walk the operand as CuTe's canonical layouts do, from the descriptor's fields alone, and meet
    `offset`.
    """
    wide, chunk = 64, width // 2
    layout = SharedLayout((64, wide), 16, width)
    d = layout.descriptor(major)
    for row, column in product(range(64), range(wide)):
        mn, k = (row, column) if major == "k" else (column, row)
        step, inner = divmod(k, 16)
        at = d.k_offset(step) + mn // 64 * d.rows64
        if major == "k":
            half = inner // 8 * d.lbo if width == 16 else inner // 8 * 16
            at += mn % 64 // 8 * d.sbo + mn % 8 * width + half + inner % 8 * 2
        else:
            lead, stride = (d.lbo, d.sbo) if width > 16 else (d.sbo, d.lbo)
            at += mn % 64 // chunk * lead + inner // 8 * stride + inner % 8 * width + mn % chunk * 2
        assert layout.swizzled(at) == layout.offset((row, column))


# ---- bank conflicts ------------------------------------------------------------------------------


def passes(addresses, access) -> int:
    """Phase by phase and bank by bank, with sets."""
    lanes, worst = 128 // max(access, 4), 1
    for start in range(0, 32, lanes):
        banks: dict[int, set[int]] = {}
        for address in addresses[start : start + lanes]:
            for byte in range(access if address >= 0 else 0):
                banks.setdefault((address + byte) // 4 % 32, set()).add((address + byte) // 4)
        worst = max([worst, *map(len, banks.values())])
    return worst


@quick
@given(st.sampled_from([1, 2, 4, 8, 16]), st.lists(st.integers(-1, 255), min_size=32, max_size=32))
def test_conflicts_against_sets(access, words):
    addresses = np.array([w * access if w >= 0 else -1 for w in words])
    assert conflicts(addresses, access) == passes(addresses.tolist(), access)
    assert conflicts(np.stack([addresses, np.zeros(32, int)]), access) == passes(
        addresses.tolist(), access
    )


def test_conflicts():
    column = np.stack([np.arange(32), np.zeros(32, int)], -1)
    assert SharedLayout((32, 32), 32).conflicts(column, 4) == 32
    assert SharedLayout((32, 32), 32, pad=4).conflicts(column, 4) == 1
    assert SharedLayout((32, 32), 32, 128).conflicts(column, 4) == 4
    assert conflicts(np.zeros(32, int), 16) == 1  # broadcast
    # ldmatrix: eight rows of 16 bytes a phase
    rows8 = np.stack([np.arange(32) % 8, np.arange(32) // 8 * 8], -1)
    assert [SharedLayout((8, 64), 16, w).conflicts(rows8, 16) for w in (0, 16, 32, 64, 128)] == [
        8,
        1,
        1,
        1,
        1,
    ]


@pytest.mark.parametrize(
    "layout, shared, vector",
    [
        (blocked((64, 64), 8, 4), SharedLayout((64, 64), 16, 128), 8),
        (blocked((64, 64), 8, 4), SharedLayout((64, 64), 16), 8),
        (wgmma_accumulator(64, 64), SharedLayout((64, 64), 32, 128), 2),
        (wgmma_accumulator(64, 64), SharedLayout((64, 64), 16), 2),
        (wgmma_accumulator(64, 64), SharedLayout((64, 64), 16, 128, (0, 1)), 1),
        (
            Layout.parse("64x64: 2:1@1 2:8@0 8:8@1 | 4:2@1 8:1@0 | 4:16@0"),
            SharedLayout((64, 64), 16, pad=16),
            2,
        ),
    ],
)
def test_conflicts_of(layout, shared, vector):
    worst = 1
    for warp, register in product(range(layout.num_warps), range(0, layout.num_registers, vector)):
        addresses = [shared.offset(layout.coords(register, lane, warp)) for lane in range(32)]
        worst = max(worst, passes(addresses, vector * shared.itemsize))
    assert conflicts_of(layout, shared, vector) == worst


def test_known_conflicts():
    """A swizzled tile takes 16-byte rows and the accumulator's pairs without a conflict; a plain
    one does not.
    """
    assert conflicts_of(blocked((64, 64), 8, 4), SharedLayout((64, 64), 16, 128), 8) == 1
    assert conflicts_of(wgmma_accumulator(64, 64), SharedLayout((64, 64), 16, 128), 2) == 1
    assert conflicts_of(wgmma_accumulator(64, 64), SharedLayout((64, 64), 16), 2) == 8


def test_padding_is_not_accessed():
    """Only the first of eight rows is real, so nothing collides."""
    layout = Layout(
        (1, 32),
        *(
            Layout.parse("8x32: 4:1@1 2:16@1 | 4:4@1 8:1@0 | -").registers,
            Layout.parse("8x32: 4:1@1 2:16@1 | 4:4@1 8:1@0 | -").lanes,
            (),
        ),
    )
    assert conflicts_of(layout, SharedLayout((1, 32), 32), 4) == 1
