"""From the arguments of a call to what its code may know of them.

A specialization is plain data (tuples of names and numbers), so that a warm cache needs neither
xDSL nor the tracer:
    ("array", dtype, extents, strides, align, wide)     each extent and stride a pair (divisor,
                                                        exact value or None), a negative stride with
                                                        a third, True
    ("array", …, "pointer")                             one of which the kernel has the address
    ("peers", world, rank, the array that each is)
    ("scalar", dtype, divisor, nonnegative)             of integers whose type has a sign: whether
                                                        it is known to be at least 0
    ("constant", value)
`signature` turns it into the tracer's Signature when something is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any

from tkc.errors import LaunchError
from tkc.ir.strides import share_elements
from tkc.runtime.arrays import (
    ITEMSIZE,
    SHORT_NAMES,
    ArrayInfo,
    as_pointer,
    describe,
    from_text,
    is_array,
)
from tkc.runtime.peers import Peers, PeersInfo, describe_peers

if TYPE_CHECKING:
    from tkc.language.signature import Signature

OPTIONS = (
    "num_warps",
    "suggested_warps",
    "num_stages",
    "num_ctas",
    "cluster",
    "maxnreg",
    "roles",
    "programs",
    "raster",
    "serpentine",
    "retain",
    "split_k",
    "stream_k",
    "sum_parts",
    "persistent",
    "register_transpose",
    "relax",
    "cross_tile_prologue",
    "rotate",
    "left_operand",
    "swap_dots",
    "split_warps",
    "epilogue",
    "store_columns",
    "subtiles",
    "dynamic_schedule",
    "prefetch",
    "row_parts",
    "dependent",
    "beside",
    "semantics",
    "debug",
)
DEBUG_WAIT_SECONDS = 10  # seconds that a wait may take where debug is True or TKC_DEBUG 1
PAIRS, BOOLEANS = (
    ("cluster", "split_warps"),
    (
        "relax",
        "cross_tile_prologue",
        "rotate",
        "persistent",
        "register_transpose",
        "serpentine",
        "retain",
        "swap_dots",
        "dynamic_schedule",
        "prefetch",
        "dependent",
        "beside",
    ),
)
MIN_NUMBER = {"subtiles": 0, "stream_k": 0}  # of numbers; of others 1
CHOICES = {
    "roles": ("one", "cooperative", "pingpong", "co_resident"),
    "left_operand": ("registers", "shared"),
    "epilogue": ("tma", "shared", "direct"),
    "semantics": ("torch", "triton"),
    "store_columns": (8, 16, 32, 64),
}


@dataclass(frozen=True)
class ScalarInfo:
    """A number passed at run time. divisor, nonnegative: what is known of an integer where its
    value does not say it (divisor None: it does).
    """

    value: Any
    dtype: str
    divisor: int | None = None
    nonnegative: bool = False


@dataclass(frozen=True)
class Constant:
    """A compile-time value."""

    value: Any


@dataclass(frozen=True)
class Specialization:
    """Names with their plain descriptions; overlaps: pairs of array arguments that share bytes;
    options in a fixed order.
    """

    arguments: tuple[tuple[str, tuple], ...]
    overlaps: tuple[tuple[int, int], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


def argument(
    value: Any, name: str, constexpr: bool, pointer: bool = False, peers: bool = False
) -> Any:
    """One argument as ArrayInfo, PeersInfo, ScalarInfo or Constant; pointer: an array as its
    address; peers: nothing but peers. Raises LaunchError.
    """
    if peers and not isinstance(value, (Peers, PeersInfo)):
        raise LaunchError(
            f"{name}: the kernel takes one array a rank, got {type(value).__name__}; pass"
            " tkc.peers(arrays, rank)"
        )
    if constexpr or value is None:
        return _constant(value, name)
    info = _at_run_time(value, name)
    return as_pointer(info, name) if pointer and isinstance(info, ArrayInfo) else info


def unspecialized(info: Any) -> Any:
    """An argument of which code knows the type alone, where it is an integer: 1 too."""
    if isinstance(info, Constant) and type(info.value) is int:
        return ScalarInfo(info.value, "int32", 1)
    return replace(info, divisor=1, nonnegative=False) if isinstance(info, ScalarInfo) else info


def _at_run_time(value: Any, name: str) -> Any:
    if isinstance(value, (ArrayInfo, PeersInfo, ScalarInfo, Constant)):
        return value
    if isinstance(value, Peers):
        return describe_peers(value, name)
    if isinstance(value, bool):
        return ScalarInfo(value, "bool_")
    if isinstance(value, int):
        if value == 1:
            return Constant(1)
        for kind, low, high in (
            ("int32", -1 << 31, 1 << 31),
            ("int64", -1 << 63, 1 << 63),
            ("uint64", 0, 1 << 64),
        ):
            if low <= value < high:
                return ScalarInfo(value, kind)
        raise LaunchError(f"{name}: {value} does not fit in 64 bits")
    if isinstance(value, float):
        return ScalarInfo(value, "float32")
    if isinstance(value, str):
        return _text(value, name)
    if is_array(value):
        return describe(value, name)
    if hasattr(value, "dtype") and hasattr(value, "item"):  # a NumPy scalar keeps its type
        from tkc.runtime.arrays import dtype_name

        return ScalarInfo(value.item(), dtype_name(value.dtype.name, name))
    if hasattr(value, "__index__"):
        return _at_run_time(int(value), name)
    return describe(value, name)


def _constant(value: object, name: str) -> Constant:
    """A value that code is compiled for. Raises LaunchError where it may change."""
    try:
        hash(value)
    except TypeError as e:
        raise LaunchError(
            f"{name}: a constexpr must be hashable ({e}); pass a tuple for a list"
        ) from None
    return Constant(value)


def _text(text: str, name: str):
    """Stand-ins for arguments: bf16[64, 64], i32, i32+ (at least 0), i32:16 (a multiple of 16),
    i32+:16, f32.
    """
    if "[" in text:
        return from_text(text, name)
    kind, _, divisor = text.partition(":")
    nonnegative = kind.endswith("+")
    kind = kind.removesuffix("+")
    kind = SHORT_NAMES.get(kind, kind)
    if (
        kind not in ITEMSIZE
        or (divisor and not divisor.isdigit())
        or (nonnegative and not kind.startswith("int"))
    ):
        raise LaunchError(
            f"{name}: {text!r} stands for no argument; write bf16[4096, 1024] for an array, i32,"
            " i32+ (at least 0), i32:16 (a multiple of 16) or f32 for a number"
        )
    return ScalarInfo(None, kind, int(divisor or 1), nonnegative)


def facts(info: Any) -> tuple:
    """What the code may know of an argument."""
    match info:
        case Constant(value):
            return "constant", value
        case ScalarInfo(value, dtype, None):
            divisor = 16 if "int" in dtype and value % 16 == 0 else 1
            return "scalar", dtype, divisor, dtype.startswith("int") and value >= 0
        case ScalarInfo(_, dtype, divisor, nonnegative):
            return "scalar", dtype, divisor, nonnegative
        case PeersInfo():
            own = facts(info.arrays[info.rank])
            return "peers", info.world, info.rank, (*own[:-2], info.align, own[-1])
    low, high = info.span
    if info.is_pointer:
        known = ((1, None),), ((1, 1),), gcd(info.pointer, 16), high >= 1 << 31
        return "array", info.dtype, *known, "pointer"
    return (
        "array",
        info.dtype,
        tuple(_fact(n, info.itemsize) for n in info.shape),
        tuple(_fact(s, info.itemsize) for s in info.strides),
        gcd(info.pointer, 16),
        _is_wide(info),
    )


def _is_wide(info: ArrayInfo) -> bool:
    """Whether 32 bits do not hold places in an array in bytes, an extent (also of rows that are all
    one row, and of none), or how far it is to a row beside its only one.
    """
    low, high = info.span
    steps = [abs(s) * info.itemsize for s in info.strides] if low < high else []
    return max(-low, high, *info.shape, *steps) >= 1 << 31


def _fact(n: int, itemsize: int) -> tuple:
    """Exactly 0 or 1, or the largest interesting divisor: 128, 64, 16, or what makes 16, 8 or 4
    bytes, which one access can move; of a negative number, that it is one.
    """
    if 0 <= n <= 1:
        return 1, n
    widths = [max(size // itemsize, 1) for size in (16, 8, 4)]
    divisor = next(d for d in (128, 64, 16, *widths, 1) if n % d == 0)
    return (divisor, None, True) if n < 0 else (divisor, None)


def given(infos: Sequence[Any]) -> list[Any]:
    """The arguments that a kernel has at run time, in its order: compile-time values left out, of
    peers one array a rank.
    """
    return [one for _, one in named([""] * len(infos), infos)]


def named(names: Sequence[str], infos: Sequence[Any]) -> list[tuple[str, Any]]:
    """As `given`, with what errors call each."""
    found: list[tuple[str, Any]] = []
    for name, info in zip(names, infos, strict=False):
        if isinstance(info, PeersInfo):
            found += [(f"{name}[{r}]", array) for r, array in enumerate(info.arrays)]
        elif not isinstance(info, Constant):
            found.append((name, info))
    return found


def who_is_lost(infos: Sequence[Any]) -> Callable[[], str | None] | None:
    """What tells of ranks that have died, where arguments have one that does."""
    asked = list(dict.fromkeys(i.lost for i in infos if isinstance(i, PeersInfo) and i.lost))
    if not asked:
        return None

    def lost() -> str | None:
        return next((found for ask in asked if (found := ask())), None)

    return lost


def overlaps(infos: list[ArrayInfo | Any]) -> tuple[tuple[int, int], ...]:
    """Pairs of argument numbers whose bytes meet, smaller first; an argument's number twice where
    several of its own elements do.
    """
    spans = sorted(
        (a.pointer + a.span[0], a.pointer + a.span[1], i)
        for i, a in enumerate(infos)
        if isinstance(a, ArrayInfo) and a.pointer
    )
    found: list[tuple[int, int]] = []
    open_: list[tuple[int, int]] = []  # (end, argument) of spans that may reach into the next
    for low, high, i in spans:
        open_ = [(h, j) for h, j in open_ if h > low]
        if high > low:
            found += [(min(i, j), max(i, j)) for _, j in open_]
            open_.append((high, i))
    found += [
        (i, i)
        for i, a in enumerate(infos)
        if isinstance(a, ArrayInfo)
        and a.pointer
        and share_elements(zip(a.strides, a.shape, strict=True))
    ]
    return tuple(sorted(found))


def options_of(given: dict[str, Any], kernel: str) -> tuple[tuple[str, Any], ...]:
    """Launch options as sorted pairs, checked. Raises LaunchError on an unknown name or a value
    that is none of the option.
    """
    for name, value in given.items():
        if name not in OPTIONS:
            raise LaunchError(
                f"{kernel}: {name!r} is neither a parameter nor an option; the options are"
                f" {', '.join(OPTIONS)}"
            )
        if value is not None and (expected := _expected(name, value)):
            raise LaunchError(f"{kernel}: {name} is expected to be {expected}, got {value!r}")
    if (warps := given.get("num_warps")) and warps > 32:
        raise LaunchError(f"{kernel}: num_warps is at most 32, got {warps}")
    options = {k: v for k, v in given.items() if v is not None and k != "debug"}
    if debug := given.get("debug"):
        options["debug"] = DEBUG_WAIT_SECONDS if debug == 1 else int(debug)  # seconds
    return tuple(sorted(options.items()))


def _expected(name: str, value: Any) -> str | None:
    """What the option is expected to be, where the value is something else."""
    if name in PAIRS:
        return None if _is_pair(value) else "a pair of numbers >= 1"
    if name == "debug":
        if isinstance(value, int) and value >= 0:
            return None
        return "True, False or the seconds that a wait may take"
    if name in CHOICES:
        *words, last = CHOICES[name]
        if value in CHOICES[name] and type(value) is type(last):
            return None
        return f"{', '.join(map(str, words))} or {last}"
    if name in BOOLEANS:
        return None if isinstance(value, bool) else "True or False"
    least = MIN_NUMBER.get(name, 1)
    return None if isinstance(value, int) and value >= least else f"a number >= {least}"


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(n, int) and n >= 1 for n in value)
    )


def debugging(kernel: str) -> int:
    """What TKC_DEBUG means for a launch: 0, or seconds. Raises LaunchError where it is no
    number.
    """
    asked = os.environ.get("TKC_DEBUG") or "0"
    if not asked.isdigit():
        raise LaunchError(
            f"{kernel}: TKC_DEBUG is 0, 1, or the seconds that a wait may take, got {asked!r}"
        )
    return int(asked)


def signature(s: Specialization) -> Signature:
    """The tracer's Signature (imports xDSL)."""
    from tkc.ir.types import ArrayFacts, Fact
    from tkc.language.dtypes import BY_NAME
    from tkc.language.signature import (
        ArrayArgument,
        ConstantArgument,
        Options,
        PeersArgument,
        ScalarArgument,
        Signature,
    )

    def one(plain):
        match plain:
            case "array", dtype, shape, strides, align, wide, *how:

                def pack(pairs):
                    return tuple(Fact(*p) for p in pairs)

                return ArrayArgument(
                    BY_NAME[dtype], ArrayFacts(pack(shape), pack(strides), align), wide, bool(how)
                )
            case "peers", world, rank, array:
                return PeersArgument(world, rank, one(array))
            case "scalar", dtype, divisor, nonnegative:
                return ScalarArgument(BY_NAME[dtype], divisor, nonnegative)
            case "constant", value:
                return ConstantArgument(value)

    extra = (("overlaps", s.overlaps),) if s.overlaps else ()
    return Signature(
        tuple((name, one(plain)) for name, plain in s.arguments),
        Options(**dict(s.options), extra=extra),
    )
