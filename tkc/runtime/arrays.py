"""What a launch sees of its arguments: `describe(value)` gives the address, extents, strides and
element type of any array.

Sources, in the order they are tried: torch tensors (by their methods: torch is never imported
here), `__cuda_array_interface__` (cupy, jax, numba), NumPy, DLPack, the buffer protocol. Element
types are named as in tkc: "bfloat16", "float8_e4m3", "bool_". A text such as "bf16[4096, 1024]"
stands for an array that is only compiled for.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tkc.errors import LaunchError

if TYPE_CHECKING:
    import numpy as np

ITEMSIZE = {
    "bool_": 1,
    **{f"{u}int{n}": n // 8 for u in ("", "u") for n in (8, 16, 32, 64)},
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}
FOREIGN = {
    "bool": "bool_",
    "float8_e4m3fn": "float8_e4m3",
}  # other libraries' names of our element types
# names of our element types that are another one's in other libraries, and theirs of ours
OWN_NAMES = {ours: theirs for theirs, ours in FOREIGN.items() if theirs != "bool"}
SHORT_NAMES = {
    "i1": "bool_",
    **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"uint{n}" for n in (8, 16, 32, 64)},
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3",
    "e5m2": "float8_e5m2",
    **{f"f{n}": f"float{n}" for n in (16, 32, 64)},
}


@dataclass(frozen=True)
class ArrayInfo:
    """An array argument. strides in elements; device: -1 for host memory, else the CUDA device's
    number.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int = -1
    writeable: bool = True
    owner: Any = None  # keeps the memory alive while the description is used
    # the kernel has its address alone: extents and strides are those of the memory it lies in
    is_pointer: bool = False

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def span(self) -> tuple[int, int]:
        """The bytes the elements lie in, relative to `pointer`: [low, high)."""
        if 0 in self.shape:
            return 0, 0
        reach = [
            (n - 1) * s * self.itemsize for n, s in zip(self.shape, self.strides, strict=False)
        ]
        return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + self.itemsize

    def numpy(self) -> np.ndarray:
        """The host array itself as a NumPy array (ml_dtypes for the short floats); writes go
        through.
        """
        import ml_dtypes
        import numpy as np

        name = {"bool_": "bool", "float8_e4m3": "float8_e4m3fn"}.get(self.dtype, self.dtype)
        dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
        low, high = self.span
        if low == high:
            return np.empty(self.shape, dtype)
        memory: Any = (ctypes.c_char * (high - low)).from_address(self.pointer + low)
        out = np.ndarray(
            self.shape, dtype, memory, -low, tuple(s * self.itemsize for s in self.strides)
        )
        out.flags.writeable = self.writeable
        return out


def is_array(value: Any) -> bool:
    return (
        hasattr(value, "data_ptr")
        or hasattr(value, "__cuda_array_interface__")
        or hasattr(value, "__array_interface__")
        and getattr(value, "ndim", 1) > 0
        or hasattr(value, "__dlpack__")
        or isinstance(value, (bytes, bytearray, memoryview))
    )


def describe(value: Any, name: str = "an argument") -> ArrayInfo:
    """The array behind a value. Raises LaunchError naming the argument where the element type or
    strides have no meaning in tkc.
    """
    if isinstance(value, ArrayInfo):
        return value
    if hasattr(value, "data_ptr"):
        return _torch(value, name)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(value, interface, name, _cuda_device(value, interface["data"][0]))
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        return _from_interface(value, interface, name, -1)
    if hasattr(value, "__dlpack__"):
        return _dlpack(value, name)
    try:
        memory = memoryview(value)
    except TypeError:
        raise LaunchError(
            f"{name}: expected an array (torch, cupy, jax, NumPy, DLPack or a buffer) or a number,"
            f" got {type(value).__name__}"
        ) from None
    import numpy as np

    return _from_interface(value, np.asarray(memory).__array_interface__, name, -1)


def as_pointer(info: ArrayInfo, name: str) -> ArrayInfo:
    """An array of which a kernel takes the address: the memory from its first element to its last.
    Raises LaunchError where elements lie before the first.
    """
    low, high = info.span
    if low < 0:
        raise LaunchError(
            f"{name}: the kernel takes a pointer, and a negative stride puts elements before the"
            " first; pass a copy"
        )
    return replace(info, shape=(high // info.itemsize,), strides=(1,), is_pointer=True)


def dtype_name(text: str, argument: str) -> str:
    """tkc's name of an element type from another library's."""
    name = FOREIGN.get(text, text)
    if name not in ITEMSIZE:
        raise LaunchError(
            f"{argument}: elements of type {text} are not supported; convert it to one of"
            f" {', '.join(ITEMSIZE)}"
        )
    return name


def _torch(t, name: str) -> ArrayInfo:
    if (device := t.device).type not in ("cpu", "cuda"):
        raise LaunchError(f"{name}: the tensor is on {device}; move it to cuda or cpu")
    if getattr(t, "is_sparse", False):
        raise LaunchError(f"{name}: expected a strided tensor, got a sparse one; use .to_dense()")
    if hasattr(t, "is_neg") and t.is_neg():
        raise LaunchError(
            f"{name}: a view of numbers of the other sign (of a conjugate's imaginary part); use"
            " .resolve_neg()"
        )
    return ArrayInfo(
        t.data_ptr(),
        tuple(t.shape),
        tuple(t.stride()),
        dtype_name(str(t.dtype).removeprefix("torch."), name),
        (device.index or 0) if device.type == "cuda" else -1,
        owner=t,
    )


def _from_interface(value, interface: dict, name: str, device: int) -> ArrayInfo:
    if interface.get("mask") is not None or hasattr(value, "mask") and hasattr(value, "filled"):
        raise LaunchError(
            f"{name}: an array with a mask, which kernels do not read; pass .filled(…) of it, or"
            " its data and its mask"
        )
    kind = dtype_name(_element(value, interface, name), name)
    pointer, readonly = interface["data"]
    shape, size = tuple(interface["shape"]), ITEMSIZE[kind]
    strides = interface.get("strides")
    if strides is None:
        return ArrayInfo(pointer, shape, contiguous(shape), kind, device, not readonly, value)
    if any(s % size for s, n in zip(strides, shape, strict=False) if n > 1):
        raise LaunchError(
            f"{name}: strides {tuple(strides)} bytes are no multiple of the {size}-byte element;"
            " pass a copy"
        )
    return ArrayInfo(
        pointer, shape, tuple(s // size for s in strides), kind, device, not readonly, value
    )


def _element(value, interface: dict, name: str) -> str:
    dtype = getattr(value, "dtype", None)
    text = getattr(dtype, "name", None) or str(dtype or "")
    if not text or text.startswith("void"):
        import numpy as np

        dtype = np.dtype(interface["typestr"])
        text = dtype.name
    if getattr(dtype, "byteorder", "=") == ">":
        raise LaunchError(
            f"{name}: big-endian elements; use .astype(value.dtype.newbyteorder('='))"
        )
    if text in OWN_NAMES and hasattr(dtype, "type"):
        raise LaunchError(
            f"{name}: elements of ml_dtypes.{text}, which has infinities; convert it to"
            f" {OWN_NAMES[text]}"
        )
    return text


def _cuda_device(value, pointer: int) -> int:
    device = getattr(value, "device", None)
    for number in (getattr(device, "id", None), getattr(device, "index", None), device):
        if isinstance(number, int) and not callable(number):
            return number
    from tkc.runtime import driver

    return driver.device_of(pointer)


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an array whose last axis is contiguous."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


# --------------------------------------------------------------------------------------------------
class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_NAMES = {
    0: "int{}",
    1: "uint{}",
    2: "float{}",
    4: "bfloat{}",
    6: "bool_",
    10: "float8_e4m3",
    12: "float8_e5m2",
}


def _dlpack(value, name: str) -> ArrayInfo:
    capsule = value.__dlpack__()  # its destructor frees the memory: the description keeps it
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = _DLTensor.from_address(get(capsule, b"dltensor"))
    if t.lanes != 1 or t.code not in _DL_NAMES:
        raise LaunchError(
            f"{name}: DLPack element type ({t.code}, {t.bits} bits, {t.lanes} lanes) is not"
            " supported"
        )
    if t.device not in (1, 2, 3, 13):
        raise LaunchError(
            f"{name}: DLPack device type {t.device} is neither a CPU nor a CUDA device"
        )
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else contiguous(shape)
    return ArrayInfo(
        (t.data or 0) + t.byte_offset,
        shape,
        strides,
        dtype_name(_DL_NAMES[t.code].format(t.bits), name),
        -1 if t.device in (1, 3) else t.device_id,
        owner=(value, capsule),
    )


# --------------------------------------------------------------------------------------------------
def from_text(text: str, name: str = "an argument") -> ArrayInfo:
    """ "bf16[4096, 1024]" -> a description of a contiguous, aligned array at address 0; "f32[64:1,
    128:64]" gives strides after colons.
    """
    m = re.fullmatch(r"\s*(\w+)\s*\[([^\]]*)\]\s*", text)
    if not m:
        raise LaunchError(
            f"{name}: {text!r} is no array; write an element type and extents, for example"
            " bf16[4096, 1024]"
        )
    kind = dtype_name(SHORT_NAMES.get(m[1], m[1]), name)
    try:
        parts = [tuple(int(n) for n in p.split(":")) for p in m[2].split(",") if p.strip()]
    except ValueError:
        raise LaunchError(
            f"{name}: the extents {m[2]!r} are no integers; write for example bf16[4096, 1024]"
        ) from None
    if any(len(p) > 2 or p[0] < 0 for p in parts):
        raise LaunchError(f"{name}: an extent is a number >= 0, or extent:stride; got {m[2]!r}")
    shape = tuple(p[0] for p in parts)
    strides = tuple(
        p[1] if len(p) == 2 else s for p, s in zip(parts, contiguous(shape), strict=False)
    )
    info = ArrayInfo(0, shape, strides, kind)
    low, high = info.span
    if max(high - low, *shape, *map(abs, strides), 0) >= 1 << 63:
        raise LaunchError(
            f"{name}: {text!r} would have more bytes than 64 bits can count; write smaller extents"
        )
    return info
