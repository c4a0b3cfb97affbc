"""Elements that lie in memory side by side, of which a mask says which are there.

A processor without AVX-512 masks accesses of four and eight bytes only. LLVM makes of any other one
a branch for each lane, where it stands: what took longest to compile, and to run. Such accesses are
functions, each written once in a kernel, that have no such branches where every element is there.

Loads of four and eight bytes are that processor's instruction by its name. LLVM makes of its own
masked load a plain one where it is read twice and some part of it, which it finds to have no
element, is not simplified at once: lanes that are not there are then what memory holds, or the
process is aborted over a load of unknown size (LLVM 22).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence

from tkc.codegen.cpu.emit import Function, suffix, vec

X86 = platform.machine() in ("x86_64", "AMD64")
REGISTER_BYTES = 32  # of AVX2
SMALLEST_MASKED = 4  # bytes of an element, of those that AVX2 masks
# AVX2's masked loads, by the type of an element: the family and the name
LOADS_BY_NAME = {
    "float": ("avx", "ps"),
    "double": ("avx", "pd"),
    "i32": ("avx2", "d"),
    "i64": ("avx2", "q"),
}


def masked_load(f: Function, t: str, pointer: str, mask: str, size: int, width: int) -> str:
    """`width` elements of type t, of `size` bytes each, from memory; 0 where the mask says no."""
    held = vec(t, width)
    if X86 and not f.module.masks_short and size >= SMALLEST_MASKED:
        word = "i64" if t == "ptr" else t
        found = _by_name(f, word, pointer, mask, size, width)
        return f.cast("inttoptr", word, found, t, width) if t == "ptr" else found

    def part(g: Function, at: str, lanes: str) -> str:
        return g.call(
            f"llvm.masked.load.{suffix(t, width)}.p0",
            held,
            (f"ptr align {size}", at),
            (vec("i1", width), lanes),
            (held, "zeroinitializer"),
        )

    if _is_instruction(f, size):
        return part(f, pointer, mask)
    name = _function(
        f,
        f"load.{suffix(t, width)}",
        held,
        [("ptr", "at"), (vec("i1", width), "mask")],
        lambda g: g.do(f"ret {held} {g.load(t, '%at', size, width)}"),
        lambda g: g.do(f"ret {held} {part(g, '%at', '%mask')}"),
    )
    return f.call(name, held, ("ptr", pointer), (vec("i1", width), mask))


def masked_store(
    f: Function, t: str, value: str, pointer: str, mask: str, size: int, width: int
) -> None:
    """`width` elements of type t, of `size` bytes each, to memory, where the mask says so."""
    held = vec(t, width)

    def part(g: Function, x: str, at: str, lanes: str) -> None:
        g.do_call(
            f"llvm.masked.store.{suffix(t, width)}.p0",
            (held, x),
            (f"ptr align {size}", at),
            (vec("i1", width), lanes),
        )

    def whole(g: Function) -> None:
        g.store(t, "%value", "%at", size, width)
        g.do("ret void")

    def some(g: Function) -> None:
        part(g, "%value", "%at", "%mask")
        g.do("ret void")

    if _is_instruction(f, size):
        part(f, value, pointer, mask)
        return
    parameters = [(held, "value"), ("ptr", "at"), (vec("i1", width), "mask")]
    name = _function(f, f"store.{suffix(t, width)}", "void", parameters, whole, some)
    f.do_call(name, (held, value), ("ptr", pointer), (vec("i1", width), mask))


def _is_instruction(f: Function, size: int) -> bool:
    """Whether the processor masks accesses to elements of so many bytes."""
    return f.module.masks_short or size >= SMALLEST_MASKED


def _by_name(f: Function, t: str, pointer: str, mask: str, size: int, width: int) -> str:
    """A masked load as AVX2's instructions, each of 16 or 32 bytes: in the lanes behind the last
    that is wanted nothing is there.
    """
    most = REGISTER_BYTES // size
    if width > most:
        low = 1 << ((width - 1).bit_length() - 1)
        halves = [
            _by_name(
                f,
                t,
                f.gep(pointer, str(first), size),
                f.shuffle("i1", mask, range(first, first + low), width, "zeroinitializer"),
                size,
                low,
            )
            for first in (0, low)
        ]
        return f.shuffle(t, halves[0], range(width), low, halves[1])
    lanes = most // 2 if 2 * width <= most else most
    there = f.shuffle("i1", mask, [min(i, width) for i in range(lanes)], width, "zeroinitializer")
    word = f"i{8 * size}"
    bits = f.emit(f"sext {vec('i1', lanes)} {there} to {vec(word, lanes)}")
    family, kind = LOADS_BY_NAME[t]
    name = f"llvm.x86.{family}.maskload.{kind}" + (".256" if lanes == most else "")
    whole = f.call(name, vec(t, lanes), ("ptr", pointer), (vec(word, lanes), bits))
    return whole if width == lanes else f.shuffle(t, whole, range(width), lanes)


def _function(
    f: Function,
    name: str,
    result: str,
    parameters: Sequence[tuple[str, str]],
    whole: Callable[[Function], None],
    part: Callable[[Function], None],
) -> str:
    """The name of a function whose last parameter is a mask, written where the module has none of
    that name: `whole` writes what it does where every lane is set, `part` what elsewhere.
    """
    if name not in f.module.functions:
        g = f.module.function(name, result, parameters, attributes="nounwind noinline")
        mask, lanes = parameters[-1]
        width = mask.split()[0][1:]
        every = g.call(f"llvm.vector.reduce.and.v{width}i1", "i1", (mask, f"%{lanes}"))
        g.branch_if(every, "%whole", "%part")
        g.label("%whole")
        whole(g)
        g.label("%part")
        part(g)
    return name
