"""Elements that lie in memory side by side, of which a mask says which are there.

A processor without AVX-512 masks accesses of four and eight bytes only. LLVM makes of any other one
a branch for each lane, where it stands: what took longest to compile, and to run. Such accesses are
functions, each written once in a kernel, that have no such branches where every element is there.

An access of more bytes than a register has is written as one of each half. LLVM would halve it,
too, but wrongly: of two equal loads whose second half has no element that is there, it reads that
half of the second as if all of it were, and where it makes smaller copies of halves it aborts the
process (LLVM 22).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tkc.codegen.cpu.emit import Function, suffix, vec


def masked_load(f: Function, t: str, pointer: str, mask: str, size: int, width: int) -> str:
    """`width` elements of type t, of `size` bytes each, from memory; 0 where the mask says no."""
    held = vec(t, width)
    if _is_wide(f, size, width):
        low = _half(width)
        halves = [
            masked_load(f, t, f.gep(pointer, str(first), size), there, size, low)
            for first, there in _masks_of_halves(f, mask, width)
        ]
        return f.shuffle(t, halves[0], range(width), low, halves[1])

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
    if _is_wide(f, size, width):
        low = _half(width)
        for first, there in _masks_of_halves(f, mask, width):
            half = f.shuffle(t, value, range(first, first + low), width)
            masked_store(f, t, half, f.gep(pointer, str(first), size), there, size, low)
        return

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
    return f.module.masks_short or size >= 4


def _is_wide(f: Function, size: int, width: int) -> bool:
    """Whether an access that is an instruction takes more than one."""
    return _is_instruction(f, size) and size * width > f.module.register


def _half(width: int) -> int:
    """Lanes of each half of a vector: a power of two, so that the second may have fewer."""
    return 1 << ((width - 1).bit_length() - 1)


def _masks_of_halves(f: Function, mask: str, width: int) -> Iterator[tuple[int, str]]:
    """Where each half of a vector begins and its mask, in which lanes behind the vector's last are
    not there.
    """
    low = _half(width)
    for first in (0, low):
        lanes = range(first, first + low)
        yield first, f.shuffle("i1", mask, lanes, width, "zeroinitializer")


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
