"""What vector work asks of a multiprocessor's pipes, in clocks of one quarter (which has one warp
of each warpgroup).

    tile.exp2 of 64 registers a thread          mufu and issue
    tile.cast of 64 to bfloat16                 alu (in pairs), issue
    tile.mul whose only use is an add           nothing: the assembler fuses the two

Rates are those of `Engines` (tkc/devices/device.py). An operation that does not depend on the loop
around it is counted where it stands. A tile without a layout, as a plan sees it, is distributed
evenly, four lanes to a row, as in the results of dots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import ceil, log2

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Attribute, Operation, SSAValue

from tkc.ir import elementwise as ew
from tkc.ir import shared, threads, tile
from tkc.ir.layout import register_map
from tkc.ir.ranges import inverse
from tkc.ir.target import Engines
from tkc.ir.types import TileType, bits, element_of, is_float, is_integer
from tkc.ir.values import tile_type

PIPES = "fma", "alu", "mufu", "lsu", "shared"
ONE_INSTRUCTION = ("max", "min", "fmax", "fmin", "abs", "isnan", "isinf")  # of floats
FMA_FUNCTIONS = {"add", "sub", "mul", "fma", "neg"}  # of floats
# mufu, fma
MUFU_FUNCTIONS = {
    "exp2": (1, 0),
    "log2": (1, 2),
    "exp": (1, 1),
    "log": (1, 2),
    "rsqrt": (1, 0),
    "reciprocal": (1, 2),
    "sqrt": (1, 3),
    "tanh": (1, 0),
    "sin": (1, 1),
    "cos": (1, 1),
}
ASSUMED_BUTTERFLY_STEPS = 2  # between the threads of a row, where there is no layout yet
COUNTS_OF_BITS = {"popcount", "clz"}  # of integers, where functions are approximated
LIBRARY_FUNCTION = 2, 16  # mufu, fma: of a polynomial or a function of a library
FREE_OPERATIONS = (
    tile.Splat,
    tile.Broadcast,
    tile.Reshape,
    tile.Transpose,
    tile.Slice,
    tile.Extract,
    tile.Concat,
    tile.Constant,
    tile.Arange,
    ew.Bitcast,
    shared.Stage,
    *shared.VIEWS,
)


@dataclass
class Demand:
    """Clocks of each pipe and of issue, and the longest chain of latencies, of some vector work;
    `names` of its operations, the most expensive first.
    """

    pipes: dict[str, float] = field(default_factory=dict)
    issue: float = 0.0
    chain: float = 0.0
    names: dict[str, float] = field(default_factory=dict)

    def add(self, pipe: str, instructions: float, clocks: float, name: str = "") -> None:
        self.pipes[pipe] = self.pipes.get(pipe, 0.0) + clocks
        self.issue += instructions
        if name:
            self.names[name] = self.names.get(name, 0.0) + clocks

    @property
    def alone(self) -> float:
        """Clocks it takes where nothing else runs."""
        return max([self.issue, *self.pipes.values()]) + self.chain

    @property
    def what(self) -> str:
        most = sorted(self.names, key=lambda n: -self.names[n])[:2]
        return " ".join(most)

    @property
    def busiest(self) -> str:
        return max(self.pipes, key=lambda pipe: self.pipes[pipe], default="alu")


def of(ops: list[Operation], engines: Engines, warps: int) -> Demand:
    """Of a run of operations by an instance of so many warps; a warpgroup's share of them, since
    each quarter has one of its warps.
    """
    total = Demand()
    depth: dict[SSAValue, float] = {}
    for op in ops:
        before, issued = dict(total.pipes), total.issue
        _count(op, engines, warps, total)
        grown = next((p for p in PIPES if total.pipes.get(p, 0.0) > before.get(p, 0.0)), None)
        steps = (
            ceil(log2(max(2, registers(op.args[0].type, warps))))
            if isinstance(op, tile.Reduce) and isinstance(op.args[0].type, TileType)
            else 1
        )
        longest = max((depth.get(v, 0.0) for v in op.operands), default=0.0) + (
            _latency(engines, grown) * steps if grown else 0.0
        )
        for r in op.results:
            depth[r] = longest
        if issued == total.issue:
            continue
    total.chain = max(depth.values(), default=0.0)
    return total


def instructions(ops: list[Operation], warps: int) -> float:
    """That each of so many warps issues for a run of operations, at any rates."""
    return of(ops, _EVEN, warps).issue


# all rates alike, where only instructions are counted
_EVEN = Engines(*(1.0 for _ in fields(Engines)))


def _latency(engines: Engines, pipe: str) -> float:
    """Clocks until another instruction can use a pipe's result."""
    return float(getattr(engines, f"{pipe}_latency"))


def registers(t: Attribute, warps: int) -> int:
    """Elements that a thread of so many warps holds of a tile."""
    if not isinstance(t, TileType):
        return 1
    return (
        t.register_layout.num_registers
        if t.register_layout is not None
        else max(1, t.size // (32 * warps))
    )


def _count(op: Operation, e: Engines, warps: int, total: Demand) -> None:
    """Adds what an operation asks of the pipes."""
    result = op.results[0].type if op.results else None
    is_scalar = isinstance(op, ew.Elementwise) and not isinstance(result, TileType)
    if isinstance(op, FREE_OPERATIONS) or is_scalar:
        return
    for kinds, counter in COUNTERS:
        if isinstance(op, kinds):
            counter(op, e, warps, total)
            return


def _cast(op: ew.Cast, e: Engines, warps: int, total: Demand) -> None:
    """Two elements of 16 bits are packed at once; integers of few bits are put in the fraction of a
    number, two at a time, others are converted first.
    """
    result = op.results[0].type
    if not isinstance(result, TileType):
        return
    source, target = element_of(op.arg.type), element_of(result)
    if is_integer(source) and is_integer(target) and bits(source) <= 32 >= bits(target):
        return
    halves = bits(target) <= 16 and is_float(target)
    n = registers(result, warps) / (2 if halves else 1)
    if halves and is_integer(source):
        total.add("fma", n, n * e.fma)
        n *= 2
    total.add("alu", n, n * e.alu, "convert")


def _select(op: ew.Select, e: Engines, warps: int, total: Demand) -> None:
    n = registers(op.result.type, warps)
    total.add("alu", n, n * e.alu, "select")


def _vote(op: threads.Vote, e: Engines, warps: int, total: Demand) -> None:
    total.add("alu", 4, registers(op.arg.type, warps) * e.alu + 2 * e.lsu, "vote")


def _shared_access(op: Operation, e: Engines, warps: int, total: Demand) -> None:
    t = next(v.type for v in (*op.results, *op.operands) if isinstance(v.type, TileType))
    copies = t.register_layout.num_blocks if t.register_layout is not None else 1
    size = t.size * max(bits(t.element), 8) // 8 // copies
    conflicts = op.properties.get("conflicts")
    ways = conflicts.value.data if isinstance(conflicts, IntegerAttr) else 1
    warpgroups = max(1, warps / 4)
    clocks = size * max(1, ways) / e.shared / warpgroups
    total.add("shared", size / (512 * warpgroups), clocks, function_of(op))


def _global_access(op: Operation, e: Engines, warps: int, total: Demand) -> None:
    n = _most_registers(op, warps)
    total.add("lsu", n, n * e.lsu, function_of(op))


def _exchange(op: Operation, e: Engines, warps: int, total: Demand) -> None:
    """What threads hand to one another, through shared memory or by shuffles."""
    if isinstance(op, shared.Convert) and _stays_in_threads(op):
        return
    n = _most_registers(op, warps)
    total.add("lsu", 2 * n, n * e.lsu, function_of(op))


def _stays_in_threads(op: shared.Convert) -> bool:
    """Whether a conversion between layouts only names registers anew."""
    have, want = tile_type(op.arg).register_layout, tile_type(op.result).register_layout
    return have is not None and want is not None and register_map(have, want) is not None


def _most_registers(op: Operation, warps: int) -> int:
    return max(registers(v.type, warps) for v in (*op.operands, *op.results))


def _elementwise(op: ew.Elementwise, e: Engines, warps: int, total: Demand) -> None:
    name, element = function_of(op), element_of(op.operands[0].type)
    n, floats = registers(op.results[0].type, warps), is_float(element)
    if name == "and" and str(element) == "i1":
        return  # part of the comparison after it
    if name in COUNTS_OF_BITS:
        total.add("mufu", n, n * e.mufu, name)
    elif not floats:
        if not _is_put_in_a_float(op):
            total.add("alu", n, n * e.alu, "index")
    elif name == "mul" and _fuses(op.results[0]):
        return
    elif name in FMA_FUNCTIONS:
        instructions = n / 2 if bits(element) == 16 else n
        total.add("fma", instructions, instructions * e.fma, name)
    elif name in ("div", "div_rn"):
        _divide(op, e, warps, total)
    elif name in MUFU_FUNCTIONS or name not in (*ONE_INSTRUCTION, *ew.COMPARISONS):
        special, around = MUFU_FUNCTIONS.get(name, LIBRARY_FUNCTION)
        total.add("mufu", special * n, special * n * e.mufu, name)
        if around:
            total.add("fma", around * n, around * n * e.fma)
    else:
        total.add("alu", n, n * e.alu, name)


def _is_put_in_a_float(op: ew.Elementwise) -> bool:
    """Whether a mask or a sum with a constant is part of a conversion to floats of 16 bits."""
    has_constant = any(isinstance(v.owner, tile.Constant) for v in op.args)
    return has_constant and function_of(op) in ("and", "add", "sub") and _is_converted(op)


def _is_converted(op: Operation) -> bool:
    """Whether an operation's result, or views of it, are only cast to floats of 16 bits."""
    for use in op.results[0].uses:
        user = use.operation
        if isinstance(user, ew.Cast) and is_float(element_of(user.result.type)):
            if bits(element_of(user.result.type)) > 16:
                return False
        elif not isinstance(user, (ew.Cast, *FREE_OPERATIONS)) or not _is_converted(user):
            return False
    return op.results[0].first_use is not None


def _divide(op: ew.Elementwise, e: Engines, warps: int, total: Demand) -> None:
    n = registers(op.results[0].type, warps)
    if function_of(op) == "div" and inverse(op):
        total.add("mufu", n, n * e.mufu, "reciprocal")
        return
    divisor = op.operands[1].owner
    rows = registers(divisor.arg.type, warps) if isinstance(divisor, tile.Broadcast) else n
    total.add("mufu", rows, rows * e.mufu, "reciprocal")
    total.add("fma", 3 * n, 3 * n * e.fma, function_of(op))
    total.add("alu", 2 * n, 2 * n * e.alu)


def function_of(op: Operation) -> str:
    """The name of what an operation computes."""
    return op.name.removeprefix("tile.")


def _fuses(value: SSAValue) -> bool:
    """Whether a product is only added to something, or something subtracted from it."""
    return (
        all(
            isinstance(u.operation, ew.Elementwise) and function_of(u.operation) in ("add", "sub")
            for u in value.uses
        )
        and value.first_use is not None
    )


def _reduce(op: tile.Reduce, e: Engines, warps: int, total: Demand) -> None:
    arg, result = tile_type(op.args[0]), op.results[0].type
    have, left = registers(arg, warps), registers(result, warps)
    kind = op.kind.data
    floats = is_float(element_of(arg))
    pipe, each = ("fma", e.fma) if kind in ("sum", "prod") and floats else ("alu", e.alu)
    if have > left:
        total.add(pipe, have - left, (have - left) * each, kind)
    lanes = (
        len(arg.register_layout.butterfly(op.axis.value.data))
        if arg.register_layout is not None
        else ASSUMED_BUTTERFLY_STEPS
    )
    if lanes:
        total.add("lsu", lanes * left, lanes * left * e.lsu, "shuffle")
        total.add(pipe, lanes * left, lanes * left * each)


def _carry(op: shared.ScanCarry, e: Engines, warps: int, total: Demand) -> None:
    """What comes before a run, in front of each of its elements."""
    n = registers(op.results[0].type, warps)
    total.add("alu", n, n * e.alu, function_of(op))


# by the first that an operation is of
COUNTERS: tuple[tuple[tuple[type[Operation], ...], Callable[..., None]], ...] = (
    ((ew.Cast,), _cast),
    ((ew.Select,), _select),
    ((ew.Elementwise,), _elementwise),
    ((tile.Reduce,), _reduce),
    ((shared.ScanCarry,), _carry),
    ((threads.Vote,), _vote),
    ((shared.Read, shared.Write, shared.ReducePartial), _shared_access),
    (
        (
            tile.Load,
            tile.Store,
            tile.LoadPointers,
            tile.StorePointers,
            tile.Atomic,
            tile.AtomicBlock,
        ),
        _global_access,
    ),
    (
        (
            shared.Convert,
            tile.Scan,
            shared.ScanTotal,
            tile.Sort,
            shared.SortFirst,
            tile.Histogram,
            tile.Gather,
        ),
        _exchange,
    ),
)
