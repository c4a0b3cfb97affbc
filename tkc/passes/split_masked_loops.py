"""split-masked-loops: a loop's masks are computed only in the iterations whose blocks they cut.

A mask made of comparisons of affine indices holds everywhere in most blocks of a loop: below a
causal diagonal, inside a window, before the end of a row. Whether it does is a scalar question
about the ends of the indices' ranges, asked once an iteration:

    for %n = … {                                            for %n = … {
      %cols = splat(%n) + arange(128)                         %all = %m >= %n + 127                            first row >= last column
      %keep = ge(broadcast(%rows), broadcast(%cols))          %t = scf.if %all { yield %s }
      %t = select(%keep, %s, -inf)                 ->         else { %cols = …;  %keep = …;  yield select(%keep, %s, -inf) }
      …                                                       …
    }                                                       }

The ends follow from the mask's own operations: and, or, not; comparisons; sums, differences,
products with known signs, minima and maxima of splats, aranges and constants. A mask of loaded
data, or a sum that might wrap, has none and stays. What only the mask needs moves into its branch.
The values are those of the select, so nothing is assumed about what is masked: infinities and NaN
pass as they did.

Only tiles large enough to be worth a branch are treated: 32 elements a thread of the plan.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import is_side_effect_free

from tkc.ir import elementwise as ew
from tkc.ir import tile
from tkc.ir.elementwise import CLASSES
from tkc.ir.ranges import Ranges
from tkc.ir.rewrite import before, is_inside, stamp
from tkc.ir.types import TileType, element_of, is_integer, is_unsigned
from tkc.passes import PassContext
from tkc.passes.analysis.values import LOADS

WORTH = 32  # elements of a thread
ALIKE = tile.Broadcast, tile.Reshape, tile.Transpose, tile.Slice, tile.Flip, tile.Multiple
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def run(module: ModuleOp, context: PassContext) -> None:
    for kernel in module.body.block.ops:
        threads = 32 * kernel.warps
        loops = [op for op in kernel.walk() if isinstance(op, (scf.ForOp, scf.WhileOp))]
        for loop in loops:
            for region in loop.regions:
                for op in [op for op in region.block.ops if isinstance(op, ew.Select)]:
                    if (
                        isinstance(op.result.type, TileType)
                        and op.result.type.size >= WORTH * threads
                        and isinstance(op.condition.type, TileType)
                    ):
                        _split(op, context)


def _split(op: ew.Select, context: PassContext) -> None:
    question = Question(op).all(op.condition)
    shape = "x".join(map(str, op.result.type.extents))
    if question is None:
        context.decisions.append(
            f"split-masked-loops: the mask of a {shape} select is computed in every iteration: its"
            " ends are not known"
        )
        return
    yes, no = Block([stamp(scf.YieldOp(op.if_true), op)]), Block()
    branch = before(op, scf.IfOp(question(), [op.result.type], Region(yes), Region(no)))
    branch.results[0].name_hint = op.result.name_hint
    op.result.replace_all_uses_with(branch.results[0])
    op.detach()
    no.add_ops([op, stamp(scf.YieldOp(op.result), op)])
    _sink(branch.parent, no)
    context.decisions.append(
        f"split-masked-loops: the mask of a {shape} select is computed only where it is not full"
    )


def _sink(outer: Block, inner: Block) -> None:
    """Moves into the inner block what only it needs of the outer one."""
    for op in reversed([op for op in outer.ops if not op.regions]):
        uses = [use for r in op.results for use in r.uses]
        if not uses or not is_side_effect_free(op) or isinstance(op, (*LOADS, tile.Dot)):
            continue
        if any(use.operation.parent is not inner for use in uses):
            continue
        op.detach()
        inner.insert_op_before(op, inner.first_op)


Make = Callable[[], SSAValue]  # writes the operations of a scalar, once it is known to be wanted


class Question:
    """Whether a mask holds everywhere (or nowhere), as a scalar computed before an operation, or
    before the loop if nothing of the loop is in it.
    """

    def __init__(self, anchor: Operation):
        self.anchor, self.ranges = anchor, Ranges()

    def all(self, mask: SSAValue, wanted: bool = True) -> Make | None:
        """The scalar that says whether every element is `wanted`; it may say no too often. None if
        there is none.
        """
        op = mask.owner
        if isinstance(op, ALIKE):
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
            found = [made for v in op.args if (made := self.all(v, wanted)) is not None]
            if (name == "and") is wanted:
                return self._both("and", found) if len(found) == 2 else None
            return self._both("or", found) if len(found) == 2 else found[0] if found else None
        if name not in NEGATED or not is_integer(element_of(op.args[0].type)):
            return None
        a, b = (self.ends(v) for v in op.args)
        if a is None or b is None:
            return None
        (a_lo, a_hi), (b_lo, b_hi) = a, b

        def compare(name, x, y):
            return lambda: self._make(CLASSES[name], x(), y())

        match name if wanted else NEGATED[name]:
            case "lt":
                return compare("lt", a_hi, b_lo)
            case "le":
                return compare("le", a_hi, b_lo)
            case "gt":
                return compare("gt", a_lo, b_hi)
            case "ge":
                return compare("ge", a_lo, b_hi)
            case "ne":
                return self._both("or", [compare("lt", a_hi, b_lo), compare("gt", a_lo, b_hi)])
            case _:
                return None  # equal everywhere: two tiles of one value, which folding has seen

    def ends(self, value: SSAValue) -> tuple[Make, Make] | None:
        """The least and the greatest element of an integer tile, or what bounds them."""
        op, t = value.owner, element_of(value.type)

        def constant(n):
            return lambda: self._make(tile.Constant, n, t)

        if not isinstance(value.type, TileType):
            return (lambda: value,) * 2
        match op:
            case tile.Splat():
                return (lambda: op.arg,) * 2
            case tile.Constant() if op.number is not None:
                return (constant(op.number),) * 2
            case tile.Arange():
                return constant(op.start.value.data), constant(
                    op.start.value.data + value.type.extents[0] - 1
                )
            case _ if isinstance(op, ALIKE):
                return self.ends(op.arg)
            case ew.Cast() if (
                is_integer(element_of(op.arg.type))
                and not is_unsigned(element_of(op.arg.type))
                and t.width.data >= element_of(op.arg.type).width.data
                and not is_unsigned(t)
            ):
                found = self.ends(op.arg)
                return found and tuple(
                    lambda end=end: self._make(ew.Cast, end(), t) for end in found
                )
            case ew.Elementwise() if op.fn.name in (
                "add",
                "sub",
                "mul",
                "neg",
                "min",
                "max",
            ) and not is_unsigned(t):
                return self._function(op)
        return None

    def _function(self, op: ew.Elementwise) -> tuple[Make, Make] | None:
        if self.ranges.overflow(op):
            return None
        # later nothing is known of where a program's place came from
        op.attributes["exact"] = UnitAttr()
        ends = [self.ends(v) for v in op.args]
        if None in ends:
            return None

        def make(name, *args):
            return lambda: self._make(CLASSES[name], *(a() for a in args))

        (a_lo, a_hi), (b_lo, b_hi) = ends[0], ends[-1]
        match op.fn.name:
            case "add" | "min" | "max" as name:
                return make(name, a_lo, b_lo), make(name, a_hi, b_hi)
            case "sub":
                return make("sub", a_lo, b_hi), make("sub", a_hi, b_lo)
            case "neg":
                return make("neg", a_hi), make("neg", a_lo)
            case _:  # a product with something of a known sign
                for (lo, hi), other, (x, y) in (
                    (ends[0], op.args[1], ends[1]),
                    (ends[1], op.args[0], ends[0]),
                ):
                    sign = self.ranges.of(other)
                    if x is not y:
                        continue
                    if sign.lo >= 0:
                        return make("mul", lo, x), make("mul", hi, x)
                    if sign.hi <= 0:
                        return make("mul", hi, x), make("mul", lo, x)
                return None

    def _both(self, name: str, made: list[Make]) -> Make:
        return lambda: self._make(CLASSES[name], *(m() for m in made))

    def _make(self, kind, *args) -> SSAValue:
        """An operation, before the outermost loop that does not change its operands."""
        op, place = kind(*args), self.anchor
        while (
            (loop := place.parent_op()) is not None
            and isinstance(loop, (scf.ForOp, scf.WhileOp))
            and not any(is_inside(v, loop) for v in op.operands)
        ):
            place = loop
        return before(place, op).results[0]
