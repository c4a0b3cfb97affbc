"""Element types, types of pointers and of blocks, as `triton.language` has them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from tkc.language import dtypes
from tkc.language.dtypes import DType
from tkc.language.tracer import fail
from tkc.language.values import Pointer
from tkc.triton.language.constants import tuple_, unwrap, unwrap_all

# name -> (bits, bits of the mantissa, bias of the exponent)
_FLOATS = {
    "fp8e4b15": (8, 3, 15),
    "fp8e4nv": (8, 3, 7),
    "fp8e4b8": (8, 3, 8),
    "fp8e5": (8, 2, 15),
    "fp8e5b16": (8, 2, 16),
    "fp16": (16, 10, 15),
    "bf16": (16, 7, 127),
    "fp32": (32, 23, 127),
    "fp64": (64, 52, 1023),
}
# Triton's names of tkc's element types; the others are refused where a value would have one
_CORE = {
    "int1": dtypes.bool_,
    **{f"{u}int{n}": dtypes.BY_NAME[f"{u}int{n}"] for u in ("", "u") for n in (8, 16, 32, 64)},
    "fp8e4nv": dtypes.float8_e4m3,
    "fp8e5": dtypes.float8_e5m2,
    "fp16": dtypes.float16,
    "bf16": dtypes.bfloat16,
    "fp32": dtypes.float32,
    "fp64": dtypes.float64,
}
_CODE_NAMES = {"bf16": "bfloat16"}


class dtype:
    """An element type."""

    never_changes = True  # so launches are remembered by which one is given

    SINT_TYPES = ["int8", "int16", "int32", "int64"]
    UINT_TYPES = ["int1", "uint8", "uint16", "uint32", "uint64"]
    FP_TYPES = list(_FLOATS)
    STANDARD_FP_TYPES = ["fp16", "bf16", "fp32", "fp64"]
    OTHER_TYPES = ["void"]

    class SIGNEDNESS(Enum):
        SIGNED = 0
        UNSIGNED = 1

    class KIND(Enum):
        BOOLEAN = 0
        INTEGRAL = 1
        FLOATING = 2

    def __init__(self, name: str):
        self.name = name = unwrap(name)
        if not dtype.is_dtype(name):
            raise ValueError(f"triton.language has no type {name!r}")
        if name in _FLOATS:
            self.primitive_bitwidth, self.fp_mantissa_width, self.exponent_bias = _FLOATS[name]
        elif name == "void":
            self.primitive_bitwidth = 0
        else:
            self.primitive_bitwidth = int(name.lstrip("uint"))
            self.int_bitwidth = self.primitive_bitwidth
            unsigned = name in dtype.UINT_TYPES
            self.int_signedness = dtype.SIGNEDNESS.UNSIGNED if unsigned else dtype.SIGNEDNESS.SIGNED
        self.itemsize = self.primitive_bitwidth // 8

    @property
    def core(self) -> DType:
        """tkc's element type. Raises CompileError where it has none."""
        if self.name not in _CORE:
            fail(
                f"tkc has no values of {self!r}; it has"
                f" {', '.join(repr(dtype(n)) for n in _CORE if n.startswith(('fp', 'bf')))} and"
                " integers"
            )
        return _CORE[self.name]

    @property
    def scalar(self) -> dtype:
        return self

    @staticmethod
    def is_dtype(name: str) -> bool:
        groups = dtype.SINT_TYPES, dtype.UINT_TYPES, dtype.FP_TYPES, dtype.OTHER_TYPES
        return any(name in group for group in groups)

    def is_fp8(self) -> bool:
        return self.name.startswith("fp8")

    def is_floating(self) -> bool:
        return self.name in dtype.FP_TYPES

    def is_standard_floating(self) -> bool:
        return self.name in dtype.STANDARD_FP_TYPES

    def is_int_signed(self) -> bool:
        return self.name in dtype.SINT_TYPES

    def is_int_unsigned(self) -> bool:
        return self.name in dtype.UINT_TYPES

    def is_int(self) -> bool:
        return self.is_int_signed() or self.is_int_unsigned()

    def is_bool(self) -> bool:
        return self.name == "int1"

    def is_void(self) -> bool:
        return self.name == "void"

    def is_block(self) -> bool:
        return False

    def is_ptr(self) -> bool:
        return False

    def is_const(self) -> bool:
        return False

    def kind(self) -> dtype.KIND:
        if self.is_bool():
            return dtype.KIND.BOOLEAN
        return dtype.KIND.INTEGRAL if self.is_int() else dtype.KIND.FLOATING

    def get_int_max_value(self) -> int:
        return 2 ** (self.int_bitwidth - self.is_int_signed()) - 1

    def get_int_min_value(self) -> int:
        return -(2 ** (self.int_bitwidth - 1)) if self.is_int_signed() else 0

    def with_element_ty(self, element_ty: dtype) -> dtype:
        return element_ty

    def codegen_name(self) -> str:
        if self.name in _CODE_NAMES:
            return _CODE_NAMES[self.name]
        return f"float{self.name[2:]}" if self.name.startswith("fp") else self.name

    @property
    def cache_key_part(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        other = unwrap(other)
        return isinstance(other, dtype) and type(self) is type(other) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"triton.language.{self.codegen_name()}"


def _asks(name: str):
    return lambda self: self.name == name


for _name in (*dtype.SINT_TYPES, *dtype.UINT_TYPES, *dtype.FP_TYPES):
    setattr(dtype, f"is_{_name}", _asks(_name))


class pointer_type(dtype):
    """The type of an address of elements (or, of a block pointer, of a block)."""

    def __init__(self, element_ty: dtype, address_space: int = 1, const: bool = False):
        self.element_ty, self.address_space, self.const = unwrap(element_ty), address_space, const
        self.name = f"{'const_' if const else ''}pointer<{self.element_ty}>"
        self.primitive_bitwidth, self.itemsize = 64, 8

    @property
    def core(self) -> DType:
        if isinstance(self.element_ty, pointer_type):
            fail(
                "tkc has no pointers to pointers: load the inner address as an int64 and cast it"
                " with .to(tl.pointer_type(...))"
            )
        return Pointer(self.element_ty.core)

    def is_ptr(self) -> bool:
        return True

    def is_const(self) -> bool:
        return self.const

    def __repr__(self) -> str:
        return self.name


class block_type(dtype):
    """The type of a block: its elements' type and its shape."""

    def __init__(self, element_ty: dtype, shape: Sequence[int]):
        self.element_ty, self.shape = unwrap(element_ty), tuple_(unwrap_all(shape))
        self.name = f"<{list(self.shape)}, {self.element_ty}>"
        self.numel = 1
        for n in self.shape:
            self.numel *= n
        self.primitive_bitwidth = self.element_ty.primitive_bitwidth

    @property
    def scalar(self) -> dtype:
        return self.element_ty

    @property
    def nbytes(self) -> int:
        return self.numel * self.element_ty.primitive_bitwidth // 8

    def is_block(self) -> bool:
        return True

    def get_block_shapes(self) -> tuple_:
        return self.shape

    def with_element_ty(self, element_ty: dtype) -> block_type:
        return block_type(element_ty, self.shape)

    def __repr__(self) -> str:
        return self.name


void = dtype("void")
int1, int8, int16, int32, int64 = (dtype(f"int{n}") for n in (1, 8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (dtype(f"uint{n}") for n in (8, 16, 32, 64))
float8e4b15, float8e4nv, float8e4b8 = dtype("fp8e4b15"), dtype("fp8e4nv"), dtype("fp8e4b8")
float8e5, float8e5b16 = dtype("fp8e5"), dtype("fp8e5b16")
float16, bfloat16, float32, float64 = dtype("fp16"), dtype("bf16"), dtype("fp32"), dtype("fp64")
pi32_t = pointer_type(int32)
_OF_CORE = {core.name: dtype(name) for name, core in _CORE.items()}


def of_core(core: DType) -> dtype:
    """Triton's type of a value of tkc."""
    return pointer_type(of_core(core.element)) if isinstance(core, Pointer) else _OF_CORE[core.name]


def get_int_dtype(bitwidth: int, signed: bool) -> dtype:
    """The integer of so many bits."""
    bits = unwrap(bitwidth)
    return int1 if bits == 1 else dtype(f"{'' if unwrap(signed) else 'u'}int{bits}")


# Names of types in signatures: "*fp32", "i32", "u8"
_SIGNATURE = {
    "i1": "int1",
    "u1": "int1",
    "B": "int1",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
}


def str_to_ty(name: Any, c: Any = None) -> Any:
    """The type that a signature names."""
    name = unwrap(name)
    if isinstance(name, tuple):
        return tuple_(str_to_ty(n, c) for n in name)
    if name.startswith("*"):
        const = name.startswith("*k")
        return pointer_type(str_to_ty(name[1 + const :], c), const=const)
    return dtype(_SIGNATURE.get(name, name))


def signature_name(element: dtype) -> str:
    """A type's name in a signature: fp32, i32, u8, i1."""
    if not element.is_int():
        return element.name
    sign = "u" if element.is_int_unsigned() and not element.is_bool() else "i"
    return f"{sign}{element.int_bitwidth}"


# Every name of a type, of torch and of Triton -> its name in a signature
type_canonicalisation_dict = {
    name: "u1" if t.is_bool() else signature_name(t)
    for t in map(dtype, (*dtype.SINT_TYPES, *dtype.UINT_TYPES, *dtype.FP_TYPES))
    for name in (t.name, t.codegen_name(), signature_name(t))
} | {
    "bool": "u1",
    "uint1": "u1",
    "u1": "u1",
    "half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "int": "i32",
    "uint": "u32",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2": "fp8e5",
    "float8_e5m2fnuz": "fp8e5b16",
    "void": "void",
}

type_names = {
    torch: ours
    for torch, ours in (
        ("bool", int1),
        ("float8_e4m3fn", float8e4nv),
        ("float8_e5m2", float8e5),
        ("float8_e4m3fnuz", float8e4b8),
        ("float8_e5m2fnuz", float8e5b16),
        *((t.codegen_name(), t) for t in (float16, bfloat16, float32, float64)),
        *((t.name, t) for t in (int8, int16, int32, int64, uint8, uint16, uint32, uint64)),
    )
}


def of_library(value: Any) -> dtype | None:
    """The type that a dtype of torch or NumPy names; None of other values."""
    kind = type(value)
    if kind is dtype or isinstance(value, dtype):
        return value
    if isinstance(value, DType):
        return of_core(value)
    if kind.__name__ == "dtype" and kind.__module__.partition(".")[0] in ("torch", "numpy"):
        return type_names.get(str(value).rpartition(".")[2])
    return None
