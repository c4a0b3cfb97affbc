"""Loads, stores and atomics by pointers, by block pointers and by descriptors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tkc.ir import tile
from tkc.ir.host_values import host_pointer
from tkc.language import memory, values
from tkc.language.arrays import Array, array
from tkc.language.tracer import fail, tracer
from tkc.triton.language.constants import constexpr, tuple_, unwrap, unwrap_all
from tkc.triton.language.creation import shape_of
from tkc.triton.language.hints import multiple_of
from tkc.triton.language.types import block_type as BlockType
from tkc.triton.language.types import dtype, of_core, pointer_type
from tkc.triton.language.values import (
    Operand,
    broadcast,
    cast,
    common_shape,
    member,
    scalar,
    tensor,
    to_tensor,
    truth,
)

SCOPES = {None: None, "gpu": "gpu", "cta": "block", "sys": "system"}
HINTS = {
    "cache_modifier": ("", ".ca", ".cg", ".cv", ".wb", ".cs", ".wt"),
    "eviction_policy": ("", "evict_first", "evict_last", "evict_normal"),
    "padding_option": ("", "zero", "nan"),
}


def check_hints(**given: Any) -> None:
    """Words that Triton knows; they are hints, which tkc's planner decides without."""
    for name, value in given.items():
        word = unwrap(value) or ""
        if word not in HINTS[name]:
            known = ", ".join(repr(w) for w in HINTS[name] if w)
            fail(f"{name} is one of {known}, got {word!r}")


# ---- block pointers and descriptors: arrays made in the kernel, or given by the host
@dataclass(frozen=True, eq=False)
class BlockPointer:
    """A block of an array: where it begins, and its extents."""

    base: tensor
    array: Array
    offsets: tuple_
    block_shape: tuple_

    __triton_value__ = True

    @property
    def type(self) -> pointer_type:
        return pointer_type(BlockType(self.base.dtype.element_ty, self.block_shape))

    @property
    def dtype(self) -> dtype:
        return self.type

    @property
    def shape(self) -> tuple_:
        return tuple_()

    def advance(self, offsets: Any) -> BlockPointer:
        return advance(self, offsets)


def _integers(given: Any, what: str) -> tuple_:
    """Numbers, or scalars of integers."""
    given = unwrap(given)
    several = given if isinstance(given, (tuple, list)) else (given,)
    found = tuple_(tensor(x) if isinstance(x, values.Value) else unwrap(x) for x in several)
    for x in found:
        if isinstance(x, tensor) and not x.dtype.is_int() or not isinstance(x, (tensor, int)):
            fail(f"{what} are integers, got {x!r:.60}")
    return found


def make_block_ptr(
    base: tensor, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any
) -> BlockPointer:
    """A pointer to the block of `block_shape` at `offsets` of an array."""
    extents = shape_of(block_shape)
    if not isinstance(base, tensor) or not base.dtype.is_ptr() or base.value.shape:
        fail("the base of tl.make_block_ptr is a pointer")
    if sorted(shape_of(order)) != list(range(len(extents))):
        fail(f"order is a permutation of 0 to {len(extents) - 1}, got {unwrap_all(order)!r}")
    sizes, steps = _integers(shape, "extents"), _integers(strides, "strides")
    at = _integers(offsets, "offsets")
    if {len(sizes), len(steps), len(at)} != {len(extents)}:
        fail("shape, strides, offsets and block_shape of tl.make_block_ptr differ in length")
    return BlockPointer(base, _array(base, sizes, steps), at, tuple_(extents))


def advance(base: BlockPointer, offsets: Any) -> BlockPointer:
    """A block pointer moved by so many elements along each axis."""
    by = _integers(offsets, "offsets")
    moved = tuple_(_sum(a, b) for a, b in zip(base.offsets, by, strict=True))
    return replace(base, offsets=moved)


def _sum(a: Any, b: Any) -> Any:
    return a + b


@dataclass(frozen=True, eq=False)
class tensor_descriptor:
    """An array with the extents of the blocks that are read and written."""

    array: Array
    extents: tuple_
    strides_: tuple_
    blocks: tuple_
    padding: str = "zero"

    __triton_value__ = True

    @property
    def dtype(self) -> dtype:
        return of_core(self.array.dtype)

    @property
    def shape(self) -> tuple_:
        return tuple_(map(_as_operand, self.extents))

    @property
    def strides(self) -> tuple_:
        return tuple_(map(_as_operand, self.strides_))

    @property
    def block_shape(self) -> tuple_:
        return tuple_(map(constexpr, self.blocks))

    @property
    def block_type(self) -> Any:
        return BlockType(self.dtype, self.blocks)

    @property
    def type(self) -> Any:
        return self.block_type

    def load(self, offsets: Sequence, **hints: Any) -> tensor:
        """The block at these offsets."""
        at = _offsets(offsets, len(self.blocks))
        return _load_block(self.array, at, tuple(self.blocks), self.padding)

    def store(self, offsets: Sequence, value: Operand) -> None:
        """Writes the block at these offsets."""
        at = _offsets(offsets, len(self.blocks))
        found = cast(broadcast(to_tensor(value), tuple(self.blocks)), self.dtype)
        memory.store(self.array, at, found.value)

    def gather(self, x_offsets: tensor, y_offset: Any) -> tensor:
        """Rows at these places, of the block's columns."""
        rows, column = x_offsets.value, _offsets((y_offset,), 1)[0]
        extents = (rows.shape[0], self.blocks[-1])
        return _load_block(self.array, (rows, column), extents, self.padding)

    def scatter(self, value: tensor, x_offsets: tensor, y_offset: Any) -> None:
        """Writes rows at these places."""
        column = _offsets((y_offset,), 1)[0]
        memory.store(self.array, (x_offsets.value, column), cast(value, self.dtype).value)


# What copies of blocks add, compare and combine in memory
_WORDS = ("int32", "uint32", "uint64")
_REDUCED = {
    "add": (*_WORDS, "fp16", "bf16", "fp32"),
    **dict.fromkeys(("min", "max"), (*_WORDS, "int64", "fp16", "bf16")),
    **dict.fromkeys(("and", "or", "xor"), (*_WORDS, "int64")),
}


def _block_atomic(name: str) -> Callable:
    def method(self: tensor_descriptor, offsets: Sequence, value: Operand) -> None:
        if self.dtype.name not in _REDUCED[name]:
            fail(f"atomic_{name} of a descriptor takes {', '.join(_REDUCED[name])}: {self.dtype}")
        found = cast(to_tensor(value), self.dtype)
        atomic = getattr(memory, f"atomic_{name}")
        atomic(self.array, _offsets(offsets, len(self.blocks)), found.value)

    method.__name__ = f"atomic_{name}"
    method.__doc__ = f"Atomic {name} of the block at these offsets, without a result."
    return method


for _name in ("add", "min", "max", "and", "or", "xor"):
    setattr(tensor_descriptor, f"atomic_{_name}", _block_atomic(_name))


def _as_operand(x: Any) -> Any:
    return (
        x if isinstance(x, tensor) else tensor(x) if isinstance(x, values.Value) else constexpr(x)
    )


def make_tensor_descriptor(
    base: tensor, shape: Any, strides: Any, block_shape: Any, padding_option: str = "zero"
) -> tensor_descriptor:
    """A descriptor of an array at an address. The last stride is 1; the address and the other
    strides are multiples of 16 bytes, as Triton asks for.
    """
    extents, steps = _integers(shape, "extents"), _integers(strides, "strides")
    blocks, padding = tuple_(shape_of(block_shape)), unwrap(padding_option)
    check_hints(padding_option=padding)
    if not 1 <= len(blocks) <= 5 or {len(extents), len(steps)} != {len(blocks)}:
        fail("a descriptor has 1 to 5 axes, with an extent, a stride and a block's extent for each")
    if steps[-1] != 1 and not isinstance(steps[-1], tensor):
        fail(f"the last stride of a descriptor is 1, got {steps[-1]}")
    if blocks[-1] * base.dtype.element_ty.primitive_bitwidth < 128:
        fail("the last extent of a descriptor's block has 16 bytes at least")
    whole = tuple_(map(_of_16_bytes(base), steps[:-1])) + steps[-1:]
    array = _array(_aligned(base), extents, whole)
    return tensor_descriptor(array, extents, steps, blocks, padding)


def _of_16_bytes(base: tensor) -> Callable[[Any], Any]:
    """Makes a stride a promised multiple of 16 bytes of what a pointer points to."""
    count = max(128 // base.dtype.element_ty.primitive_bitwidth, 1)
    return lambda step: multiple_of(step, count) if isinstance(step, tensor) else step


def _aligned(base: tensor) -> tensor:
    """A pointer with the promise that it is a multiple of 16; one that the host knows as it is."""
    if host_pointer(base.value.ssa) is not None:
        return base
    promised = tile.Multiple(base.value.use(), 16)
    return tensor(values.wrap(tracer().emit(promised).result))


def load_tensor_descriptor(desc: tensor_descriptor, offsets: Sequence) -> tensor:
    """desc.load(offsets)."""
    return desc.load(offsets)


def store_tensor_descriptor(desc: tensor_descriptor, offsets: Sequence, value: tensor) -> None:
    """desc.store(offsets, value)."""
    desc.store(offsets, value)


def _array(base: tensor, extents: tuple_, strides: tuple_) -> Array:
    """The array of tkc at an address."""
    return array(base.value, base.dtype.element_ty.core, _plain(extents), _plain(strides))


def _plain(given: Sequence) -> tuple:
    return tuple(scalar(x) for x in given)


def _offsets(given: Any, rank: int) -> tuple:
    found = _plain(_integers(given, "offsets"))
    if len(found) != rank:
        fail(f"expected {rank} offsets, got {len(found)}")
    return found


def _load_block(source: Array, offsets: tuple, extents: tuple[int, ...], padding: str) -> tensor:
    """A block; what lies outside of the array reads as zeros, or as NaN."""
    other = float("nan") if padding == "nan" else None
    return tensor(memory.load(source, offsets, extents, other=other))


# ---- loads and stores
def _mask(mask: Any) -> Any:
    """A mask as truth values; None of none."""
    m = unwrap(mask)
    return None if m is None else to_tensor(truth(m))


def _pointers(pointer: Any, what: str) -> tensor:
    p = unwrap(pointer)
    if not isinstance(p, tensor) or not p.dtype.is_ptr():
        fail(f"tl.{what} takes pointers, got {p!r:.60}")
    return p


@member
def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> tensor:
    """What pointers point to. What is masked reads as `other` (0)."""
    check_hints(
        cache_modifier=cache_modifier,
        eviction_policy=eviction_policy,
        padding_option=padding_option,
    )
    pointer = unwrap(pointer)
    if isinstance(pointer, BlockPointer):
        if unwrap(mask) is not None or unwrap(other) is not None:
            fail("a load by a block pointer takes no mask and no other; use boundary_check")
        extents = tuple(pointer.block_shape)
        at = _offsets(pointer.offsets, len(extents))
        return _load_block(pointer.array, at, extents, unwrap(padding_option))
    if unwrap(boundary_check) or unwrap(padding_option):
        fail("boundary_check and padding_option are for block pointers (tl.make_block_ptr)")
    if unwrap(mask) is None and unwrap(other) is not None:
        fail("`other` cannot be provided without `mask`")
    return _load_pointers(_pointers(pointer, "load"), _mask(mask), unwrap(other), volatile)


def _load_pointers(p: tensor, m: tensor | None, other: Any, volatile: Any) -> tensor:
    element = p.dtype.element_ty
    fill = None if other is None else _filled(other, element)
    given = [x for x in (p, m, fill) if isinstance(x, tensor)]
    shape = common_shape(*given)
    if shape and not p.value.shape:
        fail("a mask or `other` of a scalar pointer is a scalar; broadcast the pointer")
    p = broadcast(p, shape)
    return tensor(
        memory.load(
            p.value,
            mask=None if m is None else m.value,
            other=fill.value if isinstance(fill, tensor) else fill,
            sem="relaxed" if unwrap(volatile) else None,
        )
    )


def _filled(other: Any, element: dtype) -> Any:
    """What masked places read as: a number that says the same in the element type, or a tensor."""
    if isinstance(other, tensor):
        return cast(other, element)
    if element.is_floating():
        return float(other)
    return bool(other) if element.is_bool() else cast(to_tensor(other), element)


@member
def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Writes to where pointers point, cast to what is there."""
    check_hints(cache_modifier=cache_modifier, eviction_policy=eviction_policy)
    pointer = unwrap(pointer)
    if isinstance(pointer, BlockPointer):
        if unwrap(mask) is not None:
            fail("a store by a block pointer takes no mask; use boundary_check")
        element, extents = pointer.base.dtype.element_ty, tuple(pointer.block_shape)
        found = broadcast(cast(to_tensor(value), element), extents)
        memory.store(pointer.array, _offsets(pointer.offsets, len(extents)), found.value)
        return
    if unwrap(boundary_check):
        fail("boundary_check is for block pointers (tl.make_block_ptr)")
    p, m = _pointers(pointer, "store"), _mask(mask)
    if p.dtype.is_const():
        fail("cannot store to a constant pointer")
    found = _value(value, p.dtype.element_ty)
    shape = common_shape(p, found, *([] if m is None else [m]))
    if shape != p.value.shape:
        fail(f"expected pointers of shape {list(shape)}, got {list(p.value.shape)}")
    memory.store(p.value, broadcast(found, shape).value, mask=None if m is None else m.value)


def _value(x: Any, element: dtype) -> tensor:
    """A value as an element; a number directly, without going through 32 bits."""
    x = unwrap(x)
    if isinstance(x, (int, float)) and element.is_floating():
        return tensor(values.number(float(x), element.core))
    return cast(to_tensor(x), element)


# ---- atomics
def _atomic(kind: str) -> Callable:
    def function(
        pointer: tensor, val: Operand, mask: Any = None, sem: Any = None, scope: Any = None
    ) -> tensor:
        p, m = _pointers(pointer, f"atomic_{kind}"), _mask(mask)
        element = p.dtype.element_ty
        _check_element(element, kind)
        found = _value(val, element)
        shape = p.value.shape
        if common_shape(p, found, *([] if m is None else [m])) != shape:
            fail(f"tl.atomic_{kind} of {found} at pointers of shape {list(shape)}")
        atomic = getattr(memory, f"atomic_{kind}")
        return tensor(
            atomic(
                p.value,
                broadcast(found, shape).value,
                mask=None if m is None else m.value,
                sem=unwrap(sem),
                scope=_scope(scope),
            )
        )

    function.__name__ = function.__qualname__ = f"atomic_{kind}"
    function.__doc__ = f"Atomic {kind}; gives what was there before."
    return member(function)


def _check_element(element: dtype, kind: str) -> None:
    if element.primitive_bitwidth < 16 or element.is_int() and element.int_bitwidth == 16:
        fail(f"tl.atomic_{kind} does not take {element}; cast to 32 bits")
    if kind not in ("add", "xchg") and element.name in ("fp16", "bf16"):
        fail(f"tl.atomic_{kind} does not take {element}; cast to float32")


def _scope(scope: Any) -> str | None:
    word = unwrap(scope)
    if word not in SCOPES:
        fail(f"scope is 'gpu', 'cta' or 'sys', got {word!r}")
    return SCOPES[word]


atomic_add, atomic_max, atomic_min = map(_atomic, ("add", "max", "min"))
atomic_and, atomic_or, atomic_xor, atomic_xchg = map(_atomic, ("and", "or", "xor", "xchg"))


@member
def atomic_cas(
    pointer: tensor, cmp: Operand, val: Operand, sem: Any = None, scope: Any = None
) -> tensor:
    """Where memory holds `cmp`, `val` is written; gives what was there before."""
    p = _pointers(pointer, "atomic_cas")
    element = p.dtype.element_ty
    if element.primitive_bitwidth not in (16, 32, 64):
        fail(f"tl.atomic_cas takes elements of 16, 32 or 64 bits, got {element}")
    expected, found = (broadcast(_value(x, element), p.value.shape) for x in (cmp, val))
    return tensor(
        memory.atomic_cas(
            p.value, expected.value, found.value, sem=unwrap(sem), scope=_scope(scope)
        )
    )


def debug_barrier() -> None:
    """Nothing: loads and stores of one program happen in its order."""
