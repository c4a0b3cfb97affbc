"""split-masked-loops: a loop's masks are computed only in the iterations whose blocks they cut.

A mask made of comparisons of affine indices holds everywhere in most blocks of a loop: below a
causal diagonal, inside a window, before the end of a row. Whether it does is a scalar condition on
the ends of the indices' ranges, computed once an iteration:

    for %n = … {
      %cols = splat(%n) + arange(128)
      %keep = ge(broadcast(%rows), broadcast(%cols))
      %t = select(%keep, %s, -inf)
      …
    }
  becomes
    for %n = … {
      %all = %m >= %n + 127                              first row >= last column
      %t = scf.if %all { yield %s }
      else { %cols = …;  %keep = …;  yield select(%keep, %s, -inf) }
      …
    }

The ends follow from the mask's own operations: and, or, not; comparisons; sums, differences,
products with known signs, minima and maxima of splats, aranges and constants. A mask of loaded
data, or a sum that might wrap, has none and stays. What only the mask needs moves into its branch,
in a program of one role also the tiles of indices that were made before the loop.
The values are those of the select, so nothing is assumed about what is masked: infinities and NaN
pass as they did.

Only tiles large enough to be worth a branch are treated: 32 elements a thread of the plan. And in a
program of one role, whose warps issue dots and vector work in one order, only where no other dot of
the iteration could run beside what makes or reads the masked tile: a branch would part them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import before, erase, is_inside, stamp
from tkc.ir.types import TileType, bits, element_of, is_integer, is_unsigned
from tkc.ir.values import block_of, first_of, is_side_effect_free, operations_in, tile_type
from tkc.passes import PassContext
from tkc.passes.analysis.folding import fold
from tkc.passes.analysis.values import LEAVES, LOADS

MIN_ELEMENTS_PER_THREAD = 32
# Operations whose results have elements of their operand only.
VIEWS = (tile.Broadcast, tile.Reshape, tile.Transpose, tile.Slice, tile.Flip, tile.Multiple)
# Functions of integers whose ends follow from those of their operands.
MONOTONIC = ("add", "sub", "mul", "neg", "min", "max")
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def run(module: ModuleOp, context: PassContext) -> None:
    """Moves the masks of every kernel's loops into branches."""
    for kernel in tile.kernels_of(module):
        least = MIN_ELEMENTS_PER_THREAD * 32 * kernel.warps
        loops = operations_in(kernel, (scf.ForOp, scf.WhileOp))
        for loop in loops:
            for region in loop.regions:
                for op in list(region.block.ops):
                    if not isinstance(op, ew.Select) or not _is_masked_tile(op, least):
                        continue
                    if context.has_roles or not _has_dot_beside(op):
                        _split(op, context)
                    else:
                        _say_whole(op, "a branch would part the dots", context)


def _is_masked_tile(op: ew.Select, least: int) -> bool:
    """Whether a select masks a tile of at least so many elements."""
    t = op.result.type
    return isinstance(t, TileType) and t.size >= least and isinstance(op.condition.type, TileType)


def _has_dot_beside(op: ew.Select) -> bool:
    """Whether a dot of the same iteration neither makes what a select masks nor needs it."""
    block = block_of(op)
    ops = [other for other in block.ops if other is not block.last_op]
    reads = {o: {v.owner for inner in o.walk() for v in inner.operands} for o in ops}
    above, below = {op}, {op}
    for other in reversed(ops):
        if any(other in reads[user] for user in above if user in reads):
            above.add(other)
    for other in ops:
        if reads[other] & below:
            below.add(other)
    dots = {other for other in ops if isinstance(other, tile.Dot)}
    return bool(dots - above - below)


def _split(op: ew.Select, context: PassContext) -> None:
    holds = Question(op).all(op.condition)
    t = tile_type(op.result)
    if holds is None:
        return _say_whole(op, "its ends are not known", context)
    is_full = holds()
    if isinstance(is_full.owner, tile.Constant) and not is_full.owner.number:
        return  # the same mask in every iteration
    yes, no = Block([stamp(scf.YieldOp(op.if_true), op)]), Block()
    branch = before(op, scf.IfOp(is_full, [t], Region(yes), Region(no)))
    branch.results[0].name_hint = op.result.name_hint
    op.result.replace_all_uses_with(branch.results[0])
    op.detach()
    no.add_ops([op, stamp(scf.YieldOp(op.result), op)])
    _sink(block_of(branch), no)
    if not context.has_roles:
        _sink_indices(no)
    context.decisions.append(
        f"split-masked-loops: the mask of a {_shape(op)} select is computed only where it is not"
        " full"
    )


def _say_whole(op: ew.Select, why: str, context: PassContext) -> None:
    context.decisions.append(
        f"split-masked-loops: the mask of a {_shape(op)} select is computed in every iteration:"
        f" {why}"
    )


def _shape(op: ew.Select) -> str:
    return "x".join(map(str, tile_type(op.result).extents))


def _sink(outer: Block, inner: Block) -> None:
    """Moves into the inner block what only it needs of the outer one."""
    for op in reversed([op for op in outer.ops if not op.regions]):
        users = [use.operation for r in op.results for use in r.uses]
        if not users or any(user.parent is not inner for user in users):
            continue
        if is_side_effect_free(op) and not isinstance(op, (*LOADS, tile.Dot)):
            op.detach()
            inner.insert_op_before(op, first_of(inner))


def _sink_indices(inner: Block) -> None:
    """Computes in the branch the tiles of indices that it alone needs, of those made before the
    loop: they would be in registers all through it. (Roles' registers are planned without them.)
    """
    left = list(inner.ops)
    while left:
        for value in left.pop().operands:
            op = value.owner
            if not isinstance(op, (*LEAVES, *VIEWS, ew.Elementwise)) or op.parent is inner:
                continue
            users = [use.operation for r in op.results for use in r.uses]
            if _is_index(value) and all(user.parent is inner for user in users):
                op.detach()
                inner.insert_op_before(op, first_of(inner))
                left.append(op)


def _is_index(value: SSAValue) -> bool:
    return isinstance(value.type, TileType) and is_integer(element_of(value.type))


# Writes the operations of a scalar, once it is known to be used.
Make = Callable[[], SSAValue]
Ends = tuple[Make, Make]  # the least and the greatest element


class Question:
    """Whether a mask holds everywhere (or nowhere), as a scalar computed before an operation, or
    before the loop if nothing of the loop is in it.
    """

    def __init__(self, anchor: Operation):
        self.anchor, self.ranges = anchor, Ranges()

    def all(self, mask: SSAValue, wanted: bool = True) -> Make | None:
        """The scalar that says whether every element is `wanted`; it may be false too often. None
        if there is none.
        """
        op = mask.owner
        if isinstance(op, VIEWS):
            return self.all(op.arg, wanted)
        if isinstance(op, tile.Splat) or not isinstance(mask.type, TileType):
            scalar = op.arg if isinstance(op, tile.Splat) else mask
            return (lambda: scalar) if wanted else lambda: self._make(CLASSES["not"], scalar)
        if not isinstance(op, ew.Elementwise):
            return None
        name = op.fn.name
        if name == "not":
            return self.all(op.args[0], not wanted)
        if name in ("and", "or"):
            return self._combination((name == "and") is wanted, op, wanted)
        if not is_integer(element_of(op.args[0].type)):
            return None  # a comparison of floats, or a function of truth values
        return self._comparison(name if wanted else NEGATED[name], op)

    def _combination(self, both: bool, op: ew.Elementwise, wanted: bool) -> Make | None:
        """Whether both operands are `wanted` everywhere; or whether one is, as far as is known."""
        found = [made for v in op.args if (made := self.all(v, wanted)) is not None]
        if len(found) == 2:
            return self._both("and" if both else "or", found)
        return found[0] if found and not both else None

    def _comparison(self, name: str, op: ew.Elementwise) -> Make | None:
        """The scalar that says whether a comparison of two tiles of integers holds everywhere."""
        a, b = (self.ends(v) for v in op.args)
        if a is None or b is None:
            return None
        (a_lo, a_hi), (b_lo, b_hi) = a, b
        if name in ("lt", "le"):
            return self._both(name, [a_hi, b_lo])
        if name in ("gt", "ge"):
            return self._both(name, [a_lo, b_hi])
        if name == "ne":
            return self._both(
                "or", [self._both("lt", [a_hi, b_lo]), self._both("gt", [a_lo, b_hi])]
            )
        return None  # equal everywhere: two tiles of one value, which folding has seen

    def ends(self, value: SSAValue) -> Ends | None:
        """The least and the greatest element of an integer tile, or what bounds them."""
        op, t = value.owner, element_of(value.type)

        def constant(n: int | float) -> Make:
            return lambda: self._make(tile.Constant, n, t)

        def same(end: Make) -> Ends:
            return end, end

        if not isinstance(value.type, TileType):
            return same(lambda: value)
        match op:
            case tile.Splat():
                return same(lambda: op.arg)
            case tile.Constant() if op.number is not None:
                return same(constant(op.number))
            case tile.Arange():
                start = op.start.value.data
                return constant(start), constant(start + value.type.extents[0] - 1)
            case _ if isinstance(op, VIEWS):
                return self.ends(op.arg)
            case ew.Cast() if _is_widening(element_of(op.arg.type), t):
                found = self.ends(op.arg)
                if found is not None:
                    lo, hi = found
                    return (
                        lambda: self._make(ew.Cast, lo(), t),
                        lambda: self._make(ew.Cast, hi(), t),
                    )
            case ew.Elementwise() if op.fn.name in MONOTONIC and not is_unsigned(t):
                return self._function(op)
        return None

    def _function(self, op: ew.Elementwise) -> Ends | None:
        if self.ranges.overflow(op):
            return None
        # later nothing is known of where a program's place came from
        op.attributes["exact"] = UnitAttr()
        ends = [found for v in op.args if (found := self.ends(v)) is not None]
        if len(ends) < len(op.args):
            return None

        def make(name: str, *args: Make) -> Make:
            return lambda: self._make(CLASSES[name], *(a() for a in args))

        (a_lo, a_hi), (b_lo, b_hi) = ends[0], ends[-1]
        match op.fn.name:
            case "add" | "min" | "max" as name:
                return make(name, a_lo, b_lo), make(name, a_hi, b_hi)
            case "sub":
                return make("sub", a_lo, b_hi), make("sub", a_hi, b_lo)
            case "neg":
                return make("neg", a_hi), make("neg", a_lo)
        # a product with something of a known sign
        for (lo, hi), other, (x, y) in zip(ends, op.args[::-1], ends[::-1], strict=True):
            sign = self.ranges.of(other)
            if x is y and sign is not None:
                if sign.lo >= 0:
                    return make("mul", lo, x), make("mul", hi, x)
                if sign.hi <= 0:
                    return make("mul", hi, x), make("mul", lo, x)
        return None

    def _both(self, name: str, made: list[Make]) -> Make:
        return lambda: self._make(CLASSES[name], *(m() for m in made))

    def _make(self, kind: Callable[..., Operation], *args: Any) -> SSAValue:
        """An operation, before the outermost loop that does not change its operands."""
        op, place = kind(*args), self.anchor
        while isinstance(loop := place.parent_op(), (scf.ForOp, scf.WhileOp)):
            if any(is_inside(v, loop) for v in op.operands):
                break
            place = loop
        before(place, op)
        if (folded := fold(op, self.ranges)) is None:
            return op.results[0]
        erase(op)
        return folded[0]


def _is_widening(source: Attribute, t: Attribute) -> bool:
    """Whether a cast of signed integers keeps every value."""
    if not is_integer(source) or is_unsigned(source) or is_unsigned(t):
        return False
    return bits(t) >= bits(source)
