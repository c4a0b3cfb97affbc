"""How the operands of a dot reach Hopper's tensor cores: which instruction takes them, where they
come from, which major they have.

wgmma reads its right operand in shared memory, its left one there or in registers. In shared memory
16-bit operands may be K-major or MN-major, 8-bit and tf32 ones only K-major: their K must be the
axis that is dense in memory. 8-bit ones that are not are relaid on their way
(layouts/relayout.py), by the consumers where several dots of a loop accumulate; a tf32 one is read
into registers, as the left one (`swap` where it is the right one).

    a  [M, K]  K-major    row-major
               MN-major   column-major, or the transpose of a row-major [K, M]
    b  [K, N]  K-major    column-major, or the transpose of a row-major [N, K]
               MN-major   row-major

An operand that is computed element by element (a dequantization, relu(a), a · scale) is made in
registers: the left one stays there. The blocks that it is computed from come through shared memory
like any operand. Where only the right one is computed and the sum just goes round its loop, or a
block has fewer rows than wgmma's 64 and its columns are a multiple of them, the dot is taken as its
own transpose (`swap`). Any other computed right operand, and a left one that is the transpose of
what other dots computed, is *written* to shared memory by the threads that have it, or by a role of
its own that computes it (converting.py).

`options` forces both: left_operand = "registers" has a loaded left operand read into registers, as
one that is computed is; swap_dots takes a dot as its transpose, or does not.

Float8 sums: the tensor core adds with fewer bits than float32 has. `dot(a, b, acc)` sums whole
loops so (fast); `acc + dot(a, b)` adds each iteration's dot in float32 (a *partial* sum, its
accumulator zero): as exact as the iteration is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from xdsl.dialects import scf
from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block, BlockArgument, Operation, SSAValue, Use

from tkc.ir import tile
from tkc.ir.fragments import Mma, instructions_for
from tkc.ir.registers import WARPGROUP_REGISTER
from tkc.ir.types import TileType, bits
from tkc.ir.values import (
    block_of,
    index_of,
    only_user,
    operations_in,
    owner_op,
    reached,
    tile_type,
    tiles,
    yielded_by,
)
from tkc.passes import LaunchOptions
from tkc.passes.analysis.mapped import (
    MAX_SWIZZLE_BYTES,
    MIN_SWIZZLE_BYTES,
    dense_of_block,
    lists_rows,
    narrow_panel,
    unmapped,
)
from tkc.passes.analysis.remembered import mark, remembered, unchanged
from tkc.passes.analysis.values import LOADS, POINTWISE, VIEWS, is_computed_by
from tkc.passes.cuts.axes import NotCut, needed
from tkc.passes.layouts.relayout import fits
from tkc.passes.planning.gathers import loaded_by_consumers, uncopied
from tkc.passes.planning.pressure import demand
from tkc.passes.split_sums import axis_of, chain_of


def source(value: SSAValue) -> tile.Load | None:
    """The load that an operand shows, transposed or not, and that a role copies for its dot."""
    owner = untransposed(value).owner
    if isinstance(owner, tile.Reshape) and lists_rows(owner):
        owner = owner.arg.owner
    if not isinstance(owner, tile.Load) or loaded_by_consumers(owner):
        return None
    return None if LAID_BY_CONSUMERS in owner.attributes else owner


# of a load that a role copies, but whose block the consumers lay out for its dot, as if they had
# computed it: the role that relays operands does that for one dot of a loop
LAID_BY_CONSUMERS = "laid_by_consumers"
# of an operation that makes an operand: the converter computes it (converting.py)
CONVERTED = "converted"
# of a thread that reads a block from which an operand is computed
ADDRESS_REGISTERS = 16
# of a small tile beside a dot: copied with its operands, or held by registers through an iteration
MAX_BESIDE_BYTES = 1024
# of a row of the widest swizzle
PANEL_BITS = 1024
# of a consumer's thread, for all tiles that are live at once, where no dot runs late: by consumer
# warpgroups
MAX_LIVE_REGISTERS = {1: 224, 2: 224, 3: 144, 4: 96}


@dataclass(frozen=True)
class Sides:
    """A dot as wgmma takes it: m x n, its left and right operand, and which axis of each is K.
    swapped: (bᵀ aᵀ)ᵀ; held: the left operand is in registers; written: whether consumers compute
    the left and the right operand, and write it to shared memory; converted: whether the converter
    does.
    """

    left: SSAValue
    right: SSAValue
    left_k: int
    right_k: int
    m: int
    n: int
    swapped: bool
    held: bool
    written: tuple[bool, bool]
    converted: tuple[bool, bool]

    @staticmethod
    def of(dot: tile.Dot, options: LaunchOptions) -> Sides:
        return _sides(dot, options.swap_dots, along_n(dot, options) > 1, options.left_operand)


@remembered
def _sides(dot: tile.Dot, swap: bool | None, shared: bool, left_operand: str | None) -> Sides:
    """A dot's sides; swap and left_operand: as asked; shared: its columns by several warpgroups."""
    m, n = tile_type(dot.acc).extents[-2:]
    swapped = _is_swapped(dot) if swap is None else swap
    left, right = (dot.b, dot.a) if swapped else (dot.a, dot.b)
    each_needs_all = shared or _is_turned_result(left)
    computed = source(left) is None and each_needs_all, source(right) is None
    by_role = computed[0] and _is_converted(left), computed[1] and _is_converted(right)
    written = computed[0] and not by_role[0], computed[1] and not by_role[1]
    left_k, right_k = (0, 1) if swapped else (1, 0)
    held = not computed[0] and _is_held(left, left_k, left_operand)
    m, n = (n, m) if swapped else (m, n)
    return Sides(left, right, left_k, right_k, m, n, swapped, held, written, by_role)


def _is_converted(operand: SSAValue) -> bool:
    """Whether the converter computes an operand that is not loaded."""
    made = untransposed(operand).owner
    return isinstance(made, Operation) and CONVERTED in made.attributes


def _is_swapped(dot: tile.Dot) -> bool:
    """Whether the transposes of a dot's operands in the other order are the better ones: wgmma
    takes a left operand from registers, and rows by 64.
    """
    m, n = tile_type(dot.acc).extents[-2:]
    if n % 64 or not simple(dot):
        return False
    if source(dot.a) is not None and (source(dot.b) is None or m % 64):
        return True
    return _turned(dot.b, 0) and not _turned(dot.a, 1)


def _is_held(left: SSAValue, k: int, asked: str | None) -> bool:
    """Whether a left operand is in registers, unless it is written to shared memory."""
    if source(left) is None or asked == "registers":
        return True
    return asked is None and _turned(left, k)


def all_along_n(options: LaunchOptions) -> int:
    """How many warpgroups are asked to share the columns of every dot, whose rows they all have."""
    warps_m, warps_n = options.split_warps or (4, 1)
    return warps_n if options.roles == "cooperative" and warps_m == 4 else 1


def along_n(dot: tile.Dot, options: LaunchOptions) -> int:
    """How many warpgroups share the columns of a dot: as asked of all, or two where those share the
    rows of the dots beside it, and it has rows for one.
    """
    if (asked := all_along_n(options)) > 1:
        return asked
    free = options.split_warps is None and options.programs in (None, 1)
    free = free and options.roles in (None, "cooperative") and options.num_warps in (None, 8)
    if not free or not _is_short(dot):
        return 1
    both = _sides(dot, options.swap_dots, True, options.left_operand)
    return 1 if _why_not_along_n(both, 2) else 2


@remembered
def _is_short(dot: tile.Dot) -> bool:
    """Whether a dot, which begins from zero, has rows for one warpgroup, and all dots beside it
    that add to what their loop carries have some for two.
    """
    block, rows = dot.parent, tile_type(dot.acc).extents[-2]
    if block is None or not zero(dot.acc) or rows % 128 != 64 or tile_type(dot.acc).rank != 2:
        return False
    others = [op for op in block.ops if isinstance(op, tile.Dot) and op is not dot]
    tall = [tile_type(other.acc).extents[-2] % 128 == 0 for other in others]
    return any(tall) and all(
        high or zero(other.acc) for high, other in zip(tall, others, strict=True)
    )


def _turned(value: SSAValue, k: int) -> bool:
    """Whether a loaded operand of 32 bits is not K-major: wgmma does not read it in shared memory,
    and a thread's registers take it either way round.
    """
    t = tile_type(value)
    if bits(t.element) != 32 or t.rank != 2 or (load := source(value)) is None:
        return False
    return not unmapped(load) and dense_of_operand(value) != k


@remembered
def _is_turned_result(value: SSAValue) -> bool:
    """Whether an operand is the transpose of what is computed of other dots' results: its rows lie
    in the registers of several threads each, where a left operand's columns should.
    """

    def behind(at: tuple[SSAValue, bool]) -> list[tuple[SSAValue, bool]]:
        owner = at[0].owner
        if isinstance(owner, Block) or not is_computed_by(owner.__class__):
            return []
        turned = at[1] or isinstance(owner, tile.Transpose)
        return [(v, turned) for v in tiles(owner.operands)]

    ends = reached([(value, False)], behind)
    return any(turned and isinstance(at.owner, (tile.Dot, Block)) for at, turned in ends)


@remembered
def made_by_converter(loop: scf.ForOp) -> frozenset[Operation]:
    """What the converter computes of a loop: to the consumers it is as good as loaded."""
    body = loop.body.block
    ends = [op.results[0] for op in body.ops if CONVERTED in op.attributes]
    made = (v.owner for v in reached(ends, lambda v: operands_here(v.owner, body)))
    return frozenset(op for op in made if isinstance(op, Operation) and op.parent is body)


def operands_here(owner: Operation | Block, body: Block) -> list[SSAValue]:
    """What an operation of a loop's body takes that the loop makes or carries."""
    if isinstance(owner, Block) or owner.parent is not body:
        return []
    return [
        v
        for v in owner.operands
        if v.owner is body or isinstance(v.owner, Operation) and v.owner.parent is body
    ]


def computed_from(dot: tile.Dot, options: LaunchOptions) -> list[tile.Load]:
    """The blocks beside a dot of which its computed operands, or a left one in registers, are made,
    and that a role copies; in program order.
    """
    return [
        op
        for op in made_from(dot, options)
        if isinstance(op, tile.Load) and op.parent is dot.parent and not loaded_by_consumers(op)
    ]


def made_from(dot: tile.Dot, options: LaunchOptions) -> list[tile.Load | tile.LoadPointers]:
    """All blocks in memory of which they are made in the dot's loop."""
    return _made_from(dot, Sides.of(dot, options))


@remembered
def _made_from(dot: tile.Dot, both: Sides) -> list[tile.Load | tile.LoadPointers]:
    loop = dot.parent_op()
    if loop is None:
        return []
    found = set[Operation]()
    for operand, is_made in (
        (both.left, both.held or both.written[0]),
        (both.right, both.written[1]),
    ):
        if is_made:
            found |= blocks_behind(operand)
    return [op for op in loop.walk() if op in found and isinstance(op, LOADS)]


@remembered
def blocks_behind(operand: SSAValue) -> frozenset[Operation]:
    """The loads of blocks from which an operand is computed: those of all its elements, and those
    of fewer (packed ones, or rows of which each is read for several) that are not small beside it.
    """

    def behind(value: SSAValue) -> list[SSAValue]:
        owner = value.owner
        if isinstance(owner, Block):
            return []
        is_computed = isinstance(owner, tile.Concat) or is_computed_by(owner.__class__)
        return tiles(owner.operands) if is_computed else []

    def counts(t: TileType) -> bool:
        return t.size == tile_type(operand).size or t.rank > 1 and t.bytes > MAX_BESIDE_BYTES

    loaded = (v for v in reached([operand], behind) if isinstance(v.owner, LOADS))
    return frozenset(owner_op(v) for v in loaded if counts(tile_type(v)))


def written_operands(dots: Sequence[tile.Dot], options: LaunchOptions) -> list[SSAValue]:
    """The tiles that are written to shared memory as operands of some dots, each once: operands
    without their transposes.
    """
    found: list[SSAValue] = []
    for dot in dots:
        both = Sides.of(dot, options)
        for operand, is_written in zip((both.left, both.right), both.written, strict=True):
            if is_written:
                found.append(untransposed(operand))
    return list(dict.fromkeys(found))


def untransposed(value: SSAValue) -> SSAValue:
    """A tile without the transposes at its end."""
    while isinstance(value.owner, tile.Transpose):
        value = value.owner.arg
    return value


def is_read_again(load: tile.Load) -> bool:
    """Whether a block of a loop has more readers than one dot: other dots, or threads that compute
    something of it. Threads that compute one operand of it read it once, and so does the converter,
    whatever it computes of it.
    """
    uses, loop = [use for use, _ in leaves(load.result)], load.parent_op()
    if len(uses) > 1 and isinstance(loop, scf.ForOp) and (own := made_by_converter(loop)):
        others = [use for use in uses if use.operation not in own]
        if len(others) < len(uses):
            return bool(others)
    return len(uses) > 1 and not _makes_one_operand(uses)


def _makes_one_operand(uses: Sequence[Use]) -> bool:
    """Whether all that is computed in these uses of a block ends in one operand of one dot."""
    ends, seen, work = set[tuple[Operation, int]](), set[Operation](), list(uses)
    while work:
        use = work.pop()
        op = use.operation
        if isinstance(op, tile.Dot):
            ends.add((op, use.index))
        elif isinstance(op, tile.Concat) or is_computed_by(op.__class__):
            if op not in seen:
                seen.add(op)
                work += op.results[0].uses
        else:
            return False
    return len(ends) == 1 and all(not isinstance(use.operation, tile.Dot) for use in uses)


def leaves(value: SSAValue) -> Iterator[tuple[Use, list[tile.Transpose | tile.Reshape]]]:
    """The uses of a value, and of its transposes and its rows with those on the way there."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, tile.Transpose) or isinstance(op, tile.Reshape) and lists_rows(op):
            for leaf, between in leaves(op.result):
                yield leaf, [op, *between]
        else:
            yield use, []


def dense_of_operand(value: SSAValue) -> int:
    """The axis of an operand that is dense in memory; of a computed one, whose rows are."""
    if not isinstance(value.owner, tile.Transpose):
        load = value.owner
        return dense_of_block(load) if isinstance(load, tile.Load) else tile_type(value).rank - 1
    return value.owner.permutation.get_values().index(dense_of_operand(value.owner.arg))


def permuted(dot: tile.Dot, options: LaunchOptions) -> bool:
    """Whether a dot counts K in the order of an accumulator's registers: its left operand, of 8
    bits, is computed of another dot's result. One that is written to shared memory could be in
    either order, and takes this one where the right operand is relaid anyway: a thread then has
    four neighbours to write.
    """
    both = Sides.of(dot, options)
    if (
        both.swapped
        or bits(tile_type(both.left).element) != 8
        or source(both.left) is not None
        or computed_from(dot, options)
        or source(both.right) is None
    ):
        return False
    dense = dense_of_operand(both.right)
    if both.written[0] and (dense == both.right_k or untransposed(both.left) is not both.left):
        return False
    return fits(tile_type(both.right).extents, both.right_k, dense)


def paired(dots: Sequence[tile.Dot], options: LaunchOptions) -> bool:
    """Whether threads have rows of their dots in pairs of neighbours: sums whose left operands are
    all made in registers, of blocks that are dense along those rows. A thread then reads two
    elements of a block at once. Those of 16 bits matrix instructions read as they are.
    """
    return all(summed(dot) and _is_made_of_columns(dot, options) for dot in dots)


def _is_made_of_columns(dot: tile.Dot, options: LaunchOptions) -> bool:
    """Whether a dot's left operand, in registers, is made of blocks that are dense along its rows,
    and of no other dot.
    """
    both = Sides.of(dot, options)
    if not both.held or source(both.left) is not None or not made_from(dot, options):
        return False
    blocks = blocks_behind(both.left)
    axes = list(_axes_of_loads(both.left, 1 - both.left_k))
    return blocks <= {load for load, _ in axes} and all(
        isinstance(load, tile.Load)
        and bits(tile_type(load.result).element) in (8, 32)
        and axis == dense_of_block(load)
        for load, axis in axes
        if load in blocks
    )


def _axes_of_loads(value: SSAValue, axis: int) -> Iterator[tuple[Operation, int]]:
    """The loads that a computed tile is made of, each with the axis that is one of the tile's."""
    seen, work = set[tuple[SSAValue, int]](), [(value, axis)]
    while work:
        at = work.pop()
        owner = at[0].owner
        if at in seen:
            continue
        seen.add(at)
        if isinstance(owner, LOADS):
            yield owner, at[1]
        elif isinstance(owner, (*VIEWS, *POINTWISE, tile.Concat)):
            for i, operand in enumerate(owner.operands):
                try:
                    before = needed(owner, i, at[1])
                except NotCut:
                    continue
                if before is not None:
                    work.append((operand, before))


def relaid_loads(dot: tile.Dot, options: LaunchOptions) -> list[tuple[tile.Load, bool]]:
    """The loaded operands of a dot that are relaid on their way to it, and whether each is the
    right one.
    """
    both, found = Sides.of(dot, options), []
    for operand, k in (both.left, both.left_k), (both.right, both.right_k):
        load = source(operand)
        if (
            load is None
            or both.held
            and operand is both.left
            or bits(tile_type(operand).element) != 8
            or not fits(tile_type(operand).extents, k, dense_of_operand(operand))
        ):
            continue
        if dense_of_operand(operand) != k or operand is both.right and permuted(dot, options):
            found.append((load, operand is both.right))
    return found


def lay_by_consumers(dots: Sequence[tile.Dot], options: LaunchOptions) -> None:
    """Marks the operands to be relaid of dots of which several accumulate in a loop."""
    for dot in dots:
        if sum(map(len, sums_around(dot))) > 1:
            for load, _ in relaid_loads(dot, options):
                if not is_read_again(load):
                    mark(load, LAID_BY_CONSUMERS, UnitAttr())


def narrow_panels(dots: Sequence[tile.Dot], options: LaunchOptions) -> None:
    """Says of the blocks of which warpgroups read columns that are dense in memory how wide a panel
    may be, so that each one's part begins with one; of others that any may be.
    """
    found = dict[tile.Load, int]()
    for dot in dots:
        both, groups = Sides.of(dot, options), along_n(dot, options)
        for operand in (both.left, both.right):
            if (load := source(operand)) is not None:
                found.setdefault(load, 0)
        right = source(both.right)
        if groups > 1 and right is not None and dense_of_operand(both.right) != both.right_k:
            part = both.n // groups * bits(tile_type(both.right).element) // 8
            panel = gcd(part, MAX_SWIZZLE_BYTES)
            found[right] = min(found[right] or panel, panel) % MAX_SWIZZLE_BYTES
    for load, panel in found.items():
        narrow_panel(load, panel)


def simple(dot: tile.Dot) -> bool:
    """Whether a dot's sum just goes round its loop, in which nothing else reads it."""
    loop, carried = dot.parent_op(), dot.acc
    if (
        not isinstance(loop, scf.ForOp)
        or not isinstance(carried, BlockArgument)
        or carried.block is not loop.body.block
    ):
        return False
    is_yielded = yielded_by(loop.body.block)[carried.index - 1] is dot.result
    return is_yielded and carried.has_one_use() and dot.result.has_one_use()


@remembered
def running_sums(loop: scf.ForOp) -> list[list[tile.Dot]]:
    """The dots of a loop, by the sums that they make: each goes round the loop, one dot after the
    other adding to it. Empty if a dot does anything else.
    """
    body = loop.body.block
    found: dict[SSAValue, list[tile.Dot]] = {}  # the dots of each sum, by its last partial sum
    for dot in operations_in(loop, tile.Dot):
        carried = isinstance(dot.acc, BlockArgument) and dot.acc.block is body and dot.acc.index > 0
        if (
            dot.parent is not body
            or not dot.acc.has_one_use()
            or not carried
            and dot.acc not in found
        ):
            return []
        found[dot.result] = [*found.pop(dot.acc, []), dot]
    return (
        list(found.values())
        if all(
            yielded_by(body)[index_of(made[0].acc) - 1] is end and end.has_one_use()
            for end, made in found.items()
        )
        else []
    )


def sums_around(dot: tile.Dot) -> list[list[tile.Dot]]:
    """The running sums of a dot's loop; none where it is in no loop."""
    return running_sums(loop) if isinstance(loop := dot.parent_op(), scf.ForOp) else []


def summed(dot: tile.Dot) -> bool:
    """Whether a loop's dots are sums that go round it, this one among them."""
    return bool(sums_around(dot))


def by_block(dots: Sequence[tile.Dot]) -> list[list[tile.Dot]]:
    """Dots, those of one block together: a loop's, or those of a program outside of its loops."""
    found: dict[Block, list[tile.Dot]] = {}
    for dot in dots:
        found.setdefault(block_of(dot), []).append(dot)
    return list(found.values())


def zero(value: SSAValue) -> bool:
    return isinstance(value.owner, tile.Constant) and value.owner.number == 0


def partial(dot: tile.Dot) -> bool:
    """Whether a dot in a loop starts from zero and adds its result to what the loop carries."""
    loop = dot.parent_op()
    if not isinstance(loop, scf.ForOp) or not zero(dot.acc):
        return False
    value = dot.result
    while value.has_one_use():
        op = only_user(value)
        if isinstance(op, scf.YieldOp):
            return op.parent is loop.body.block
        if not isinstance(op, POINTWISE):
            return False
        value = op.results[0]
    return False


def names(dot: tile.Dot) -> tuple[str, str, str]:
    """The element types of a, b and the sum as instructions call them."""
    a, b, acc = (str(tile_type(v).element) for v in (dot.a, dot.b, dot.acc))
    return (
        ("tf32", "tf32", acc) if dot.precision.data == "tf32" and a == b == "f32" else (a, b, acc)
    )


def wgmma_of(dot: tile.Dot) -> Mma | None:
    """wgmma's form for a dot's element types; None if there is none, or if its sums are shorter
    than 32 bits.
    """
    a, b, acc = names(dot)
    if acc not in ("f32", "i32"):
        return None
    return next((i for i in instructions_for(a, b, acc, 90) if i.name.startswith("wgmma")), None)


def why_not_wgmma(dot: tile.Dot, options: LaunchOptions) -> str:
    """Why wgmma cannot compute a dot; empty if it can."""
    acc, form = tile_type(dot.acc), wgmma_of(dot)
    if form is None:
        return f"wgmma of {' by '.join(names(dot)[:2])} into {names(dot)[2]} is not planned" + (
            ", its float32 is tf32" if names(dot)[0] == "f32" else ""
        )
    if acc.rank != 2:
        return "a dot has batch axes"
    both = Sides.of(dot, options)
    return (
        _why_not_along_n(both, along_n(dot, options))
        or _why_not_extents(dot, both, form, options)
        or _why_not_sums(dot, both, options)
        or _why_not_loaded(dot, both, form, options)
    )


def _why_not_extents(dot: tile.Dot, both: Sides, form: Mma, options: LaunchOptions) -> str:
    """Why a dot's extents are not wgmma's; empty if they are."""
    k = tile_type(dot.a).extents[1]
    if both.m % 64 or both.m > 256 or both.n // along_n(dot, options) not in form.n or k % form.k:
        return (
            f"{both.m}x{both.n}x{k} is not made of wgmma's 64 x {form.n[0]}..{form.n[-1]} x"
            f" {form.k}"
        )
    return ""


def _why_not_sums(dot: tile.Dot, both: Sides, options: LaunchOptions) -> str:
    """Why a dot cannot add to what its loop carries, as its operands come; empty if it can."""
    if both.swapped and not simple(dot):
        return "its dot's accumulator is not just loop-carried"
    sums = sums_around(dot)
    if sum(map(len, sums)) <= 1:
        return ""
    if relaid_loads(dot, options):
        return "one of several dots that accumulate in a loop has an operand that is relaid"
    return ""


def _why_not_loaded(dot: tile.Dot, both: Sides, form: Mma, options: LaunchOptions) -> str:
    """Why wgmma cannot read a dot's loaded operands; empty if it can."""
    for operand, axis in (both.left, both.left_k), (both.right, both.right_k):
        held = both.held and operand is both.left
        shown = source(operand)
        if shown is None:
            continue  # it is computed
        if reason := _unread(dot, shown):
            return reason
        if (
            not held
            and dense_of_operand(operand) != axis
            and "mn" not in form.majors
            and not any(shown is found for found, _ in relaid_loads(dot, options))
        ):
            return (
                f"wgmma reads {names(dot)[0]} K-major only: the {'left' if axis else 'right'}"
                f" operand is dense along {'nm'[axis]}, not k; pass its transpose (an array of"
                f" {'[M, K]' if axis else '[N, K]'}, loaded with .T for b)"
            )
    return ""


def _why_not_along_n(both: Sides, groups: int) -> str:
    """Why warpgroups cannot share a dot's columns; empty if they can."""
    if groups == 1:
        return ""
    if both.held:
        return "the left operand is in registers, and warpgroups share columns"
    # a descriptor begins at eight columns, or where a panel of those that are dense in memory does
    width = bits(tile_type(both.right).element)
    is_loaded = not (both.written[1] or both.converted[1])
    is_dense = dense_of_operand(both.right) != both.right_k and (width == 16 or is_loaded)
    unit = PANEL_BITS // width if is_dense else 8
    if is_dense and source(both.right) is not None:
        unit = 8 * MIN_SWIZZLE_BYTES // width
    if both.n % (unit * groups):
        return f"{both.n} columns do not divide by {unit} among {groups} warpgroups"
    return ""


def _unread(dot: tile.Dot, load: tile.Load) -> str:
    """Why a loaded operand cannot be read in shared memory, where a tensor map put it."""
    if reason := uncopied(load):
        return reason
    return "an operand is used elsewhere too" if _elsewhere(load, dot) else ""


def _elsewhere(load: tile.Load, dot: tile.Dot) -> bool:
    """Whether more reads a loaded operand than can read one stage of a ring: dots, and in a dot's
    own loop what is computed of it too.
    """
    if load.parent is dot.parent:
        return False
    return any(
        not isinstance(use.operation, tile.Dot)
        or use.index == 2
        or load.parent is dot.parent
        and use.operation.parent is not dot.parent
        for use, _ in leaves(load.result)
    )


def parts_of(dot: tile.Dot, groups: int, registers: int) -> tuple[int, int]:
    """In how many parts a partial dot is best added up, and how many are in flight at once: two
    together where the sum and the dot fit the registers, else as many in turn as make them fit."""
    (m, n), form = tile_type(dot.acc).extents, wgmma_of(dot)
    sum_ = n * m * bits(tile_type(dot.acc).element) // (32 * 128 * groups)
    if axis_of(dot, groups) == 0:
        count = m // (64 * groups)
        return (count, count) if 2 * sum_ <= registers else (count, 1)
    right = source(dot.b)
    if right is None or form is None:
        return 1, 1
    least = 128 * 8 // bits(tile_type(right.result).element) if dense_of_operand(dot.b) == 1 else 8
    for count in (2, 4):
        width = n // count
        if width not in form.n or width % least or not chain_of(dot):
            continue
        if count == 2 and 2 * sum_ <= registers:
            return (2, 2) if width >= 64 else (1, 1)
        if sum_ + sum_ // count <= registers:
            return count, 1
    return 1, 1


def live_registers(
    kernel: tile.Kernel, dots: Sequence[tile.Dot], groups: int, options: LaunchOptions
) -> int:
    """Registers of a consumer's thread for the tiles that are live at once: accumulators, scores,
    left operands. What dots read in shared memory takes none.
    """
    with unchanged():
        read = [
            load.result
            for dot in dots
            for operand in (dot.a, dot.b)
            if (load := source(operand)) is not None
            and not (Sides.of(dot, options).held and operand is Sides.of(dot, options).left)
        ]
        loops = {loop for dot in dots if isinstance(loop := dot.parent_op(), scf.ForOp)}
        read += [v for loop in loops for op in made_by_converter(loop) for v in op.results]
        return -(-demand(kernel, frozenset(read)) // (128 * groups))


def operand_registers(
    dots: Sequence[tile.Dot],
    rotated: bool,
    parts: list[tuple[int, int]],
    groups: int,
    options: LaunchOptions,
) -> int:
    """Registers of a consumer's thread for sums, those of partial dots and what the loop adds them
    to, and for left operands.
    """

    def registers(value: SSAValue) -> int:
        return tile_type(value).bytes // (WARPGROUP_REGISTER * groups)

    loop = dots[0].parent_op()
    some = [d for d in dots if partial(d)] if not rotated else []
    sums = sum(
        registers(d.acc) for d in dots if d not in some and not isinstance(d.acc.owner, tile.Dot)
    )
    if some and isinstance(loop, scf.ForOp):
        carried = [v for v in loop.iter_args if isinstance(v.type, TileType) and v.type.rank == 2]
        sums += max(
            registers(d.acc) * p[1] // p[0] for d, p in zip(dots, parts, strict=True) if d in some
        ) + sum(map(registers, carried))

    return sums + _operands_held(dots, rotated, registers, options)


def _operands_held(
    dots: Sequence[tile.Dot],
    rotated: bool,
    registers: Callable[[SSAValue], int],
    options: LaunchOptions,
) -> int:
    """Registers for left operands and for what operands are computed of: what several dots read, or
    are computed of, is held once. registers: of a tile.
    """
    lefts = dict.fromkeys(both.left for d in dots if (both := Sides.of(d, options)).held)
    total, seen = sum(map(registers, lefts)), set[Operation]()
    for d in dots:
        # what an operand is computed of while a dot reads the one before, and the left one itself
        # where that dot is not waited for first
        blocks = [op for op in made_from(d, options) if op not in seen]
        seen.update(blocks)
        if blocks:
            both = Sides.of(d, options)
            total += rotated * both.held * registers(both.left) + ADDRESS_REGISTERS
            total += sum(registers(op.result) for op in blocks)
    return total
