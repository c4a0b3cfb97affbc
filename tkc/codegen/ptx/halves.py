"""Two elements of 16 bits by one instruction on the register that they share.

x + y, x - y, x * y    of floats: add.rn.bf16x2 …, or fma.rn.bf16x2 where there is nothing else for
                       bfloat16; by way of float32, which has more than twice their digits and two
                       more, they would be rounded alike
x & y, x | y, x ^ y    of integers: and.b32 …
(x >> 4) & 15          of integers: shr.u32, and.b32: the mask keeps no bit that another element
                       shifts in, nor one of a sign
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import Attribute, Operation, SSAValue

from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.integers import bitwise
from tkc.codegen.ptx.values import Tile
from tkc.codegen.ptx.writer import Integer
from tkc.ir import elementwise as ew
from tkc.ir.types import TileType, bf16, bits, f16, is_bool, is_float
from tkc.ir.values import tile_type

SUMS_AND_PRODUCTS = ("add", "sub", "mul")
BITWISE = ("and", "or", "xor")
HALF, ONES = 16, 0xFFFF
ONE, MINUS_ONE, MINUS_ZERO = 0x3F803F80, 0xBF80BF80, 0x80008000  # of bfloat16, twice


def together(
    e: Emitter,
    op: Operation,
    register: Callable[[SSAValue], Integer | None],
    into: str | None,
) -> Integer | None:
    """Two elements of a tile operation's result. register: where two elements of a value are,
    unless that is not one register; None where they have to be computed one by one.
    """
    if not isinstance(op, ew.Elementwise) or len(op.args) != 2:
        return None
    element, name = tile_type(op.result).element, op.fn.name
    if name in SUMS_AND_PRODUCTS and element in (f16, bf16):
        return arithmetic(e, name, element, [register(v) for v in op.args], into)
    if name in BITWISE and _is_integer(element):
        return _bitwise(e, name, element, [register(v) for v in op.args], into)
    return None


def _is_integer(element: Attribute) -> bool:
    return not is_float(element) and not is_bool(element) and bits(element) == HALF


def arithmetic(
    e: Emitter, name: str, element: Attribute, found: Sequence[Integer | None], into: str | None
) -> Integer | None:
    """A sum, difference or product of two registers of two elements each; None where there are no
    such registers, or constants alone.
    """
    pairs = [raw for raw in found if raw is not None]
    if len(pairs) < len(found) or not any(isinstance(raw, str) for raw in pairs):
        return None
    kind = "bf16x2" if element == bf16 else "f16x2"
    if element == bf16 and not e.target.bfloat16_sums:
        name, pairs = "fma", _as_fma(name, *pairs)
    elif element == bf16:
        e.need("7.8")
    held = [_in_register(e, raw) for raw in pairs]
    raw = e.w.op(f"{name}.rn.{kind}", "b32", *held, into=into)
    return raw if into else e.owned(raw)


def _as_fma(name: str, x: Integer, y: Integer) -> list[Integer]:
    """The operands of a fused multiply-add of bfloat16 that is x + y, x - y or x * y."""
    if name == "mul":
        return [x, y, MINUS_ZERO]
    return [x, ONE, y] if name == "add" else [y, MINUS_ONE, x]


def _in_register(e: Emitter, raw: Integer) -> str:
    """A register, or one with a constant, which a block of instructions has once."""
    return raw if isinstance(raw, str) else e.w.memo(("halves", raw), lambda: e.w.register(raw))


def _bitwise(
    e: Emitter, name: str, element: Attribute, found: Sequence[Integer | None], into: str | None
) -> Integer | None:
    """Not of elements that are known apart: what reads them need not unpack them."""
    pairs = [raw for raw in found if raw is not None and (raw, element) not in e.widened]
    if len(pairs) < len(found) or not any(isinstance(raw, str) for raw in pairs):
        return None
    raw = bitwise(e, name, pairs[0], pairs[1], into=into)
    return raw if into else e.owned(raw)


# ---- fields of bits
@dataclass(frozen=True)
class Field:
    """A mask of what a shift to the right makes. by: how far it shifts each register of `source`;
    kept: the bits of each that the mask leaves.
    """

    shift: ew.Elementwise
    source: Sequence[Integer]
    by: list[int]
    kept: list[int]

    def emit(self, e: Emitter, i: int, into: str | None) -> Integer:
        """The bits of both elements of the i-th register."""
        raw, by, kept = self.source[i], self.by[i], self.kept[i]
        if not isinstance(raw, str):
            return raw >> by & kept
        shifted = e.w.op("shr.u32", "b32", raw, by) if by else raw
        found = bitwise(e, "and", shifted, kept, into=into)
        return found if into else e.owned(found)


def field_of(e: Emitter, op: Operation) -> Field | None:
    """What an operation is as a field of whole registers. What is shifted must still be there:
    registers of other values' destinations change.
    """
    if not isinstance(op, ew.Elementwise) or op.fn.name != "and":
        return None
    if not isinstance(op.result.type, TileType) or not _is_integer(op.result.type.element):
        return None
    for term, mask in (op.args, op.args[::-1]):
        shift = term.owner
        if isinstance(shift, ew.Elementwise) and shift.fn.name == "shr":
            tiles = [_whole(e, v) for v in (*shift.args, mask)]
            if (found := _field(e, shift, *tiles)) is not None:
                return found
    return None


def _whole(e: Emitter, value: SSAValue) -> Tile | None:
    """A tile that is there, if two of its elements share a register."""
    found = e.values.get(value)
    return found if isinstance(found, Tile) and found.pack == 2 else None


def _field(
    e: Emitter, shift: ew.Elementwise, x: Tile | None, by: Tile | None, mask: Tile | None
) -> Field | None:
    """Where the two elements of each register are shifted alike and the mask leaves nothing but
    their own bits.
    """
    if x is None or by is None or mask is None:
        return None
    if not e.coalesced.isdisjoint(x.registers) or any(
        (raw, x.element) in e.widened for raw in x.registers
    ):
        return None
    field = Field(shift, x.registers, [], [])
    for number, kept in zip(by.registers, mask.registers, strict=True):
        if isinstance(number, str) or isinstance(kept, str):
            return None
        low, high = number & ONES, number >> HALF & ONES
        if low != high or low >= HALF or (kept & ONES | kept >> HALF & ONES) >> HALF - low:
            return None
        field.by.append(low)
        field.kept.append(kept)
    return field
