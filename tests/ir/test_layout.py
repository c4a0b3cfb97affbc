"""Register layouts: the number system, the algebra and the movement between layouts, against brute
force on `table`.
"""

from __future__ import annotations

import doctest
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tkc.ir.layout
from tkc.ir.fragments import parse_layout
from tkc.ir.layout import Digit, Layout, LayoutError, blocked, copies, movement, register_map, rows

quick = settings(deadline=None, max_examples=60)


RANKS, BOOLEANS = st.integers(1, 3), st.booleans()


@st.composite
def layouts(draw, rank=RANKS, padded=BOOLEANS, clustered=BOOLEANS) -> Layout:
    """Any layout: digits of all sections stacked on the axes in any order, then some of the last
    coordinates cut off.
    """
    rank = draw(rank)
    axis = st.integers(-1, rank - 1)
    wanted = [("lanes", 2, draw(axis)) for _ in range(5)]
    wanted += [
        ("registers", draw(st.sampled_from([2, 3, 4])), draw(axis))
        for _ in range(draw(st.integers(0, 3)))
    ]
    wanted += [
        ("warps", draw(st.sampled_from([2, 3])), draw(axis)) for _ in range(draw(st.integers(0, 2)))
    ]
    wanted += [("blocks", 2, draw(axis))] if draw(clustered) else []
    sizes, digits = [1] * rank, {name: [] for name in tkc.ir.layout.SECTIONS}
    for name, extent, a in draw(st.permutations(wanted)):
        if a < 0:
            digits[name].append(copies(extent))
        else:
            digits[name].append(Digit(extent, a, sizes[a]))
            sizes[a] *= extent
    sections = [draw(st.permutations(digits[name])) for name in tkc.ir.layout.SECTIONS]
    cut = draw(padded)
    return Layout(tuple(draw(st.integers(1, n)) if cut else n for n in sizes), *sections)


def held(layout: Layout, tile: np.ndarray, nothing: int = -1) -> np.ndarray:
    """[warps, lanes, registers]: the elements of a tile as the layout holds them; `nothing` in the
    padding.
    """
    box = np.full(layout.padded_shape, nothing, tile.dtype)
    box[tuple(slice(n) for n in tile.shape)] = tile
    at = layout.table()
    return (
        box[tuple(at[..., axis] for axis in range(layout.rank))]
        if layout.rank
        else np.broadcast_to(tile, at.shape[:-1])
    )


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(prod(shape)).reshape(shape)


def agree(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal wherever something is expected (-1: padding, anything will do)."""
    return bool(((found == expected) | (expected == -1)).all())


def test_the_docstring():
    failed, attempted = doctest.testmod(tkc.ir.layout)
    assert failed == 0 and attempted > 3


# ---- the map itself ------------------------------------------------------------------------------


@quick
@given(layouts())
def test_coords_table_and_owners_agree(layout):
    units = product(range(layout.num_blocks), range(layout.num_warps))
    owners: dict[tuple, set] = {}
    for unit, (block, warp) in enumerate(units):
        for lane, register in product(range(32), range(layout.num_registers)):
            at = layout.coords(register, lane, warp, block)
            assert at == tuple(layout.table()[unit, lane, register])
            owners.setdefault(at, set()).add((register, lane, warp, block))
    assert set(owners) == set(product(*map(range, layout.padded_shape)))
    copied = (
        layout.register_replication
        * layout.lane_replication
        * layout.warp_replication
        * layout.block_replication
    )
    for at, places in owners.items():
        assert len(places) == copied == len(layout.owners(at)) and places == set(layout.owners(at))


@quick
@given(layouts(rank=st.integers(0, 3)))
def test_text_round_trip(layout):
    assert Layout.parse(str(layout)) == layout
    assert hash(Layout.parse(str(layout))) == hash(layout)


def test_text():
    text = "64x256: 2:1@1 2:8@0 32:8@1 | 4:2@1 8:1@0 | 4:16@0"
    assert str(Layout.parse(text)) == text
    assert parse_layout("wgmma 64x256") == Layout.parse(text)
    assert str(Layout.parse("1: - | 32:* | -")) == "1: - | 32:* | -"
    assert str(Layout.parse("scalar: - | 32:* | 4:*")) == "scalar: - | 32:* | 4:*"
    assert (
        str(Layout.parse("128: - | 32:1@0 | 2:32@0 | 2:64@0"))
        == "128: - | 32:1@0 | 2:32@0 | 2:64@0"
    )
    assert parse_layout("blocked 32x128 vector 8 warps 4") == blocked((32, 128), 8, 4)
    assert parse_layout("blocked 32x128 vector 8 warps 2x2 order 0x1") == blocked(
        (32, 128), 8, (2, 2), (0, 1)
    )


def test_canonical_digits():
    by_hand = Layout(
        (64,),
        (Digit(1, 0, 7), Digit(2, 0, 1)),
        (Digit(4, 0, 2), Digit(8, 0, 8)),
        (Digit(1, -1, 3),),
    )
    assert str(by_hand) == "64: 2:1@0 | 32:2@0 | -"
    assert Layout((2,), (Digit(2, 0, 1),), (copies(4), Digit(8, -1, 99)), ()) == Layout.parse(
        "2: 2:1@0 | 32:* | -"
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("64: - | 16:1@0 | 4:16@0", "the lane digits must multiply to 32, but 16:1@0 give 16"),
        (
            "64: - | 32:1@0 | -",
            "the digits of axis 0 reach 32 coordinates, but the tile has 64 of them",
        ),
        (
            "64: 2:1@0 | 32:1@0 | -",
            "digit 32:1@0 leaves a gap or an overlap on axis 0: expected stride 2",
        ),
        (
            "64: 2:64@0 | 32:1@0 | -",
            "digit 2:64@0 leaves a gap or an overlap on axis 0: expected stride 32",
        ),
        ("0: - | 32:* | -", "a tile's extents are at least 1, but the shape is 0"),
        ("32: 2:1@1 | 32:1@0 | -", "2:1@1 is no digit of a tile of rank 1"),
        (
            "32: 2;1 | 32:1@0 | -",
            "cannot read the digit '2;1': expected extent:stride@axis or extent:*",
        ),
        ("32x: - | 32:1@0 | -", "cannot read the shape '32x': expected extents like 64x256"),
        (
            "32: 32:1@0 | -",
            (
                "a layout has sections 'registers | lanes | warps [| blocks]', but '32: 32:1@0 | -'"
                " has 2"
            ),
        ),
        (
            "wgnma 64x64",
            (
                "cannot read the layout 'wgnma 64x64': expected 'shape: registers | lanes | warps'"
                " or one of blocked, "
            ),
        ),
        ("wgmma 64x64 group 2", "cannot read the layout 'wgmma 64x64 group 2': "),
    ],
)
def test_errors_of_text(text, message):
    with pytest.raises(LayoutError) as error:
        parse_layout(text)
    assert str(error.value).startswith(message)


def test_errors_of_questions():
    acc = parse_layout("wgmma 64x64")
    for question, message in [
        (lambda: acc.coords(32, 0, 0), "the index into registers is beyond the 32 of this layout"),
        (lambda: acc.owners((64, 0)), "(64, 0) is no coordinate of a 64x64 tile"),
        (lambda: acc.transpose((0, 0)), "(0, 0) does not permute the 2 axes of a 64x64 tile"),
        (lambda: acc.drop(2), "a 64x64 tile has no axis 2"),
        (
            lambda: acc.slice((0, 4), (64, 8)),
            (
                "a slice at 4 along axis 1 cuts through lanes or warps: it must start at a multiple"
                " of 8"
            ),
        ),
        (lambda: acc.slice((0, 60), (64, 8)), "the slice [60, 68) leaves axis 1 of extent 64"),
        (
            lambda: acc.reshape((64, 65)),
            "a 64x64 tile cannot be reshaped to 64x65: the sizes differ",
        ),
        (lambda: acc.operand_of_broadcast((32, 1)), "a 32x1 tile does not broadcast to 64x64"),
        (
            lambda: register_map(acc, parse_layout("wgmma 64x64 groups 2")),
            "are in different threads",
        ),
        (
            lambda: rows((8, 64), 1, 4, 48),
            "48 threads do not share one row: a power of two up to 128 would",
        ),
        (
            lambda: blocked((8, 64), 1, 4, order=(1,)),
            "order (1,) does not list the 2 axes of a 8x64 tile",
        ),
    ]:
        with pytest.raises(LayoutError) as error:
            question()
        assert message in str(error.value)


# ---- vectors, padding, reductions ----------------------------------------------------------------


@quick
@given(layouts(), st.booleans(), st.sampled_from([None, 1, 2, 3, 4]))
def test_vector(layout, straddle, most):
    for axis in range(layout.rank):
        v = layout.vector(axis, most, straddle)
        at = layout.table().reshape(-1, v, layout.rank)
        assert v & (v - 1) == 0 and (most is None or v <= most)
        assert (at[:, 0, axis] % v == 0).all()
        assert (at == at[:, :1] + np.arange(v)[:, None] * (np.arange(layout.rank) == axis)).all()
        inside = (at < layout.shape).all(-1)
        assert straddle or (inside == inside[:, :1]).all()


@quick
@given(layouts())
def test_inside(layout):
    for register in range(layout.num_registers):
        real = {
            bool(all(c < n for c, n in zip(at, layout.shape, strict=False)))
            for at in layout.table()[:, :, register].reshape(-1, layout.rank)
        }
        assert layout.inside(register) == (real.pop() if len(real) == 1 else None)


@quick
@given(layouts(padded=st.just(False), clustered=st.just(False)), st.data())
def test_reduction(layout, data):
    """Sum over an axis the way a kernel does: registers, then butterflies, then between warps."""
    axis = data.draw(st.integers(0, layout.rank - 1))
    tile, result = numbered(layout.shape), layout.drop(axis)
    assert all(result.inside(r) for r in range(result.num_registers))
    mine = held(layout, tile)
    groups = layout.register_groups(axis)
    assert sum(len(set(g)) for g in groups) == layout.num_registers // layout.register_replication
    partial = np.stack([mine[:, :, list(g)].sum(-1) for g in groups], -1)
    for mask in layout.butterfly(axis):
        partial = partial + partial[:, np.arange(32) ^ mask]
    if layout.warps_along(axis) == 1:
        assert (partial == held(result, tile.sum(axis))).all()


@quick
@given(layouts())
def test_warps_along(layout):
    for axis in range(layout.rank):
        assert layout.num_warps == prod(d.extent for d in layout.warps)
        others = [tuple(np.delete(at, axis)) for at in layout.offsets("warps")]
        lines = {
            at: {
                int(o[axis])
                for o, other in zip(layout.offsets("warps"), others, strict=False)
                if other == at
            }
            for at in others
        }
        assert {len(line) for line in lines.values()} == {layout.warps_along(axis)}


# ---- algebra -------------------------------------------------------------------------------------


@quick
@given(layouts(), st.data())
def test_what_lanes_deal_out(layout, data):
    """Lanes along an axis have different elements where they had copies: together the same."""
    axis = data.draw(st.integers(0, layout.rank - 1))
    dealt, copied = layout.per_lane(axis), layout.per_warp(axis)
    assert dealt.shape == copied.shape
    for one, other in zip(dealt.table(), copied.table(), strict=True):  # of each warp
        assert {*map(tuple, one.reshape(-1, layout.rank).tolist())} == {
            *map(tuple, other.reshape(-1, layout.rank).tolist())
        }
    lanes = prod(d.extent for d in layout.lanes if d.axis == axis)
    least = max(1, copied.num_registers // lanes)
    assert least <= dealt.num_registers <= copied.num_registers


@quick
@given(layouts(), st.data())
def test_transpose(layout, data):
    perm = data.draw(st.permutations(range(layout.rank)))
    turned, tile = layout.transpose(perm), numbered(layout.shape)
    assert (held(turned, tile.transpose(perm)) == held(layout, tile)).all()
    assert turned.transpose(np.argsort(perm).tolist()) == layout


@quick
@given(layouts(), st.data())
def test_drop_and_expand(layout, data):
    axis = data.draw(st.integers(0, layout.rank - 1))
    row = layout.drop(axis)
    assert row.shape == layout.shape[:axis] + layout.shape[axis + 1 :]
    assert row.register_replication == 1
    assert row.expand(axis).drop(axis) == row
    tile = numbered(layout.shape)
    assert (
        held(row.expand(axis), tile.min(axis, keepdims=True)) == held(row, tile.min(axis))
    ).all()
    if layout.shape[axis] > 1:  # a row statistic meets its tile by choosing registers
        chosen = register_map(row.expand(axis), layout)
        assert chosen is not None
        least = np.broadcast_to(tile.min(axis, keepdims=True), tile.shape)
        assert agree(
            held(row.expand(axis), tile.min(axis, keepdims=True))[:, :, list(chosen)],
            held(layout, least),
        )


@quick
@given(layouts(), st.data())
def test_operand_of_broadcast(layout, data):
    lead = data.draw(st.integers(0, layout.rank))
    shape = tuple(data.draw(st.sampled_from([1, n])) for n in layout.shape[lead:])
    operand = layout.operand_of_broadcast(shape)
    chosen = register_map(operand, layout)
    assert operand.shape == shape and chosen is not None
    assert agree(
        held(operand, numbered(shape))[:, :, list(chosen)],
        held(layout, np.broadcast_to(numbered(shape), layout.shape)),
    )


@quick
@given(layouts(), st.integers(1, 5), st.data())
def test_broadcast(layout, extent, data):
    axis = data.draw(st.integers(0, layout.rank))
    one = layout.expand(axis)
    wide = one.broadcast(axis, extent)
    assert wide.shape[axis] == extent and register_map(one, wide) is not None


@quick
@given(layouts(), st.data())
def test_slice_and_concat(layout, data):
    """A slice holds the elements of the sub-tile in the registers it names; the slices joined again
    are the tile.
    """
    axis = data.draw(st.integers(0, layout.rank - 1))
    period, tile = layout.period(axis), numbered(layout.shape)
    cuts = sorted(data.draw(st.sets(st.integers(1, 8).map(lambda c: c * period), max_size=2)))
    edges = [0, *(c for c in cuts if c < layout.shape[axis]), layout.shape[axis]]
    parts, values = [], []
    for start, stop in zip(edges, edges[1:], strict=False):
        offsets = [start if a == axis else 0 for a in range(layout.rank)]
        sizes = [stop - start if a == axis else n for a, n in enumerate(layout.shape)]
        part, chosen = layout.slice(offsets, sizes)
        window = tile[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=False))]
        assert agree(held(layout, tile)[:, :, list(chosen)], held(part, window))
        parts.append(part)
        values.append(held(layout, tile)[:, :, list(chosen)])
    try:
        whole, sources = Layout.concat(parts, axis)
    except LayoutError:  # registers in different order: the parts do not continue each other
        assume(False)
    assert whole.shape == layout.shape
    assert agree(np.stack([values[p][:, :, r] for p, r in sources], -1), held(whole, tile))


def test_slices_of_fragments_keep_their_order():
    """One K step of a B operand is one instruction's registers, in its order."""
    b = parse_layout("mma_b 64x32 warps 1x1")
    part, chosen = b.slice((16, 8), (16, 8))
    assert part == parse_layout("mma_b 16x8") and chosen == (20, 21, 22, 23)
    acc = parse_layout("wgmma 64x64")
    part, chosen = acc.slice((0, 16), (64, 32))
    assert part == parse_layout("wgmma 64x32") and chosen == tuple(range(8, 24))
    whole, sources = Layout.concat([part, part, part], 1)
    assert whole == parse_layout("wgmma 64x96") and sources == tuple(
        (p, r) for p in range(3) for r in range(16)
    )


def test_stacking_is_expand_and_concat():
    row = blocked((256,), 2, 4)
    pair, sources = Layout.concat([row.expand(1), row.expand(1)], 1)
    assert pair.shape == (256, 2) and sources == ((0, 0), (0, 1), (1, 0), (1, 1))


@quick
@given(layouts(padded=st.just(False)), st.data())
def test_reshape(layout, data):
    """Where a reshape exists it moves nothing, and back again is the identity."""
    total = prod(layout.shape)
    first = data.draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    shape = data.draw(
        st.sampled_from([(total,), (first, total // first), (1, *layout.shape), (*layout.shape, 1)])
    )
    try:
        flat = layout.reshape(shape)
    except LayoutError:
        assume(False)
    assert (held(flat, numbered(shape)) == held(layout, numbered(layout.shape))).all()
    assert flat.reshape(layout.shape) == layout


@quick
@given(layouts(rank=st.just(2), padded=st.just(False)))
def test_merging_all_axes_always_works(layout):
    assert (
        held(layout.reshape((prod(layout.shape),)), numbered((prod(layout.shape),)))
        == held(layout, numbered(layout.shape))
    ).all()


def test_reshape_with_padding():
    seven = blocked((7, 32), 1, 2)
    assert (
        seven.reshape((7 * 32,)).shape == (224,)
        and seven.reshape((1, 7, 32)).reshape((7, 32)) == seven
    )
    with pytest.raises(LayoutError, match="axis 1 of .* is padded, so it cannot be merged"):
        blocked((32, 7), 1, 2).reshape((32 * 7,))
    with pytest.raises(LayoutError, match="does not divide among axes"):
        Layout.parse("96: 3:1@0 | 32:3@0 | -").reshape((48, 2))


@quick
@given(layouts(clustered=st.just(False)), st.sampled_from([2, 3]))
def test_across_blocks(layout, count):
    wide = layout.across_blocks(count)
    assert (
        wide.num_blocks == count and wide.block_replication == count and wide.shape == layout.shape
    )
    if not layout.is_padded:
        assert (
            layout.across_blocks(count, 0).owners((layout.shape[0],) + (0,) * (layout.rank - 1))[0][
                3
            ]
            == 1
        )


# ---- movement ------------------------------------------------------------------------------------


@quick
@given(st.data())
def test_movement_against_brute_force(data):
    """Two layouts of one tile: the map is right where it exists, and where it does not, no choice
    of registers works.
    """
    src = data.draw(layouts(rank=st.just(2), clustered=st.just(False)))
    dst = data.draw(
        st.one_of(
            st.just(src),
            layouts(rank=st.just(2), clustered=st.just(False)),
            st.permutations(src.registers).map(
                lambda r: Layout(src.shape, tuple(r), src.lanes, src.warps)
            ),
            st.permutations(src.lanes).map(
                lambda n: Layout(src.shape, src.registers, tuple(n), src.warps)
            ),
            st.permutations(src.warps).map(
                lambda w: Layout(src.shape, src.registers, src.lanes, tuple(w))
            ),
        )
    )
    assume(src.num_warps == dst.num_warps)
    shape = tuple(min(a, b) for a, b in zip(src.shape, dst.shape, strict=False))
    src, dst = (
        Layout(shape, layout.registers, layout.lanes, layout.warps) for layout in (src, dst)
    )
    have, want = held(src, numbered(shape)), held(dst, numbered(shape))
    chosen, scope = register_map(src, dst), movement(src, dst)
    if chosen is not None:
        assert agree(have[:, :, list(chosen)], want) and scope in ("none", "registers")
        assert (scope == "none") == (chosen == tuple(range(src.num_registers)))
        return
    columns = [
        [agree(have[:, :, s], want[:, :, d]) for s in range(src.num_registers)]
        for d in range(dst.num_registers)
    ]
    assert not all(any(column) for column in columns)
    local = all(set(want[w].ravel()) - {-1} <= set(have[w].ravel()) for w in range(src.num_warps))
    assert scope == ("lanes" if local else "warps")


def test_movement():
    acc = parse_layout("wgmma 64x64")
    same_warp = blocked((64, 64), 8, 4, threads_per=(4, 8))
    assert movement(acc, acc) == "none"
    assert movement(acc, same_warp) == "warps"
    assert (
        movement(parse_layout("mma 16x8"), Layout.parse("16x8: 4:1@1 | 2:4@1 16:1@0 | -"))
        == "lanes"
    )
    two = acc.across_blocks(2, 0)
    assert (
        movement(
            two,
            Layout(
                two.shape,
                two.registers,
                two.lanes,
                (Digit(2, 0, 64), Digit(2, 0, 32)),
                (Digit(2, 0, 16),),
            ),
        )
        == "blocks"
    )


def test_padding_asks_for_nothing():
    """One row held by all lanes serves as the 16 rows of a fragment of which one is real."""
    fragment = Layout(
        (1, 8), *(parse_layout("mma 16x8").registers, parse_layout("mma 16x8").lanes, ())
    )
    row = Layout.parse("1x8: 2:1@1 | 4:2@1 8:* | -")
    assert register_map(row, fragment) == (0, 1, 0, 0)
    assert register_map(fragment, row) is None


# ---- constructors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (1,),
        (7,),
        (96,),
        (1000,),
        (100003,),
        (1, 7),
        (96, 1),
        (64, 176),
        (3, 5, 7),
        (128, 64),
        (2, 2, 2, 2),
    ],
)
@pytest.mark.parametrize("vector", [1, 4, 8])
@pytest.mark.parametrize("warps", [1, 4, 12])
def test_blocked(shape, vector, warps):
    layout = blocked(shape, vector, warps)
    assert layout.shape == shape and layout.num_warps == warps
    busy = 32 * warps // (layout.lane_replication * layout.warp_replication)
    assert all(
        extent < 3 * n * vector for extent, n in zip(layout.padded_shape, shape, strict=False)
    )
    assert layout.num_registers * busy == prod(layout.padded_shape)
    if prod(shape) >= 4 * 32 * warps * vector and shape[-1] % vector == 0:
        assert layout.num_registers <= 1.5 * prod(shape) / (32 * warps)


def test_blocked_is_coalesced():
    assert str(blocked((32, 128), 8, 4)) == "32x128: 8:1@1 4:8@0 | 16:8@1 2:1@0 | 4:2@0"
    assert str(blocked((64, 96), 8, 4)) == "64x96: 8:1@1 3:32@1 2:32@0 | 4:8@1 8:1@0 | 4:8@0"
    assert str(blocked((4, 1000), 4, 4)) == "4x1000: 4:1@1 2:512@1 4:1@0 | 32:4@1 | 4:128@1"
    assert (
        str(blocked((128, 32), 8, 4, order=(0, 1)))
        == blocked((32, 128), 8, 4).transpose((1, 0)).__str__()
    )
    assert str(blocked((7,), 1, 4)) == "7: - | 8:1@0 4:* | 4:*"
    assert str(blocked((131072,), 4, 8)) == "131072: 4:1@0 128:1024@0 | 32:4@0 | 8:128@0"
    assert blocked((64, 64), 2, (2, 2), threads_per=(4, 8)).padded_shape == (64, 64)


@pytest.mark.parametrize(
    "shape, axis",
    [((4, 1000), -1), ((64, 128), -1), ((128, 64), 0), ((1, 4096), -1), ((3, 8, 96), 1), ((7,), 0)],
)
@pytest.mark.parametrize("threads", [1, 4, 32, 64, 128])
def test_rows(shape, axis, threads):
    layout = rows(shape, 4, 4, threads, axis)
    assert layout.shape == shape and layout.num_warps == 4
    lanes = 1 << len(layout.butterfly(axis))
    assert lanes * layout.warps_along(axis) == threads
