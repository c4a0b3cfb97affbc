"""What TKC_DEBUG=1 adds to a kernel: checks, each with a site of its own (interface.Site). What a
thread finds wrong goes to a record in host memory; then it traps.

    @!%p7 bra fine12;                       %p7: the address is outside its array
    mov.b32 %r90, 3; mov.b64 %d40, …; mov.b64 %d41, …; bra trap;         site 3, its two numbers
    fine12: … ret trap: the first of all threads that come here writes the record (RECORD says how),
    waits until the host can see it, and traps; the others wait for that

A trap ends the context; host memory outlives it, so that the runtime can say what happened
(tkc.runtime.driver).
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from tkc.codegen.ptx.access import Group, both
from tkc.codegen.ptx.emit import Emitter
from tkc.codegen.ptx.scalars import add, displaced, wide
from tkc.codegen.ptx.writer import Operand
from tkc.ir.interface import RECORD, Parameter, Site
from tkc.ir.origin import origin
from tkc.ir.text import location_of

CLAIMED = ".global .align 4 .u32 claimed;"
LABEL = "$trap"


def check(e: Emitter, wrong: Operand, text: str, *numbers: Operand) -> None:
    """Traps where `wrong` holds. text: a sentence, `{0}` and `{1}` for the numbers (64-bit, or
    32-bit and signed).
    """
    if wrong is False:
        return
    w, place = e.w, location_of(e.op)
    site = Site(text, place.file, place.line, place.column) if place is not None else Site(text)
    if site not in e.sites:
        e.sites.append(site)
    e.parameter(Parameter("trap", "u64"))
    fine = w.label("fine")
    if isinstance(wrong, str):
        w.raw(f"\t@!{wrong} bra {fine};")
    w.move(registers(e)[0], e.sites.index(site))
    for into, x in zip(registers(e)[1:], numbers, strict=False):
        w.move(into, wide(e, x))
    w.raw(f"\tbra {LABEL};")
    w.place(fine)


def registers(e: Emitter) -> list[str]:
    """Site and numbers of the thread that traps."""
    return e.w.hoist("trap", lambda: [e.w.new("b32"), e.w.new("b64"), e.w.new("b64")], root=True)


def handler(e: Emitter) -> str:
    """The end of a kernel that has checks."""
    w, (site, *numbers), record = e.w, registers(e), e.parameter(Parameter("trap", "u64"))
    word, late, where = (
        w.new("b32"),
        w.new("pred"),
        {name: w.new("b32") for name in ("%ctaid.x", "%ctaid.y", "%ctaid.z", "%tid.x")},
    )
    lines = [
        f"atom.relaxed.gpu.global.cas.b32 {word}, [claimed], 0, 1",
        f"setp.ne.b32 {late}, {word}, 0",
        f"@{late} bra {LABEL}_late",  # somebody was here before
        f"setp.eq.b64 {late}, {record}, 0",
        f"@{late} bra {LABEL}_now",  # no host that listens
        *(f"mov.u32 {r}, {name}" for name, r in where.items()),
        f"st.global.b32 [{record}+{RECORD['site']}], {site}",
        *(
            f"st.global.b32 [{record}+{RECORD['thread'] + 4 * i}], {r}"
            for i, r in enumerate(where.values())
        ),
        *(
            f"st.global.b64 [{record}+{RECORD['numbers'] + 8 * i}], {r}"
            for i, r in enumerate(numbers)
        ),
        f"mov.b32 {word}, 1",
        f"st.release.sys.global.b32 [{record}], {word}",
        "fence.acq_rel.sys",
        f"ld.relaxed.sys.global.b32 {word}, [{record}]",
    ]
    text = "".join(f"\t{line};\n" for line in lines)
    return (
        f"{LABEL}:\n{text}{LABEL}_now:\n\tfence.acq_rel.gpu;\n\tmov.b32 {word},"
        " 2;\n\tst.release.gpu.global.b32 [claimed],"
        f" {word};\n\ttrap;\n{LABEL}_late:\n\tld.relaxed.gpu.global.b32 {word},"
        f" [claimed];\n\tsetp.ne.b32 {late}, {word}, 2;\n\t@{late} bra"
        f" {LABEL}_late;\n\ttrap;\n\tret;"
    )


# ---- accesses
# --------------------------------------------------------------------------------------------------
def guarded(
    e: Emitter, group: Callable[[int], Group], size: int, verb: str, source: SSAValue | None = None
) -> Callable[[int], Group]:
    """`group`, with a check of each place before it is used: a multiple of its `size` bytes, and
    inside the array argument that `source`, a pointer or array, is made from.
    """
    if not e.debug:
        return group
    bounds = (
        span(e, argument.index)
        if source is not None and (argument := origin(source)) is not None
        else None
    )

    def checked(r: int) -> Group:
        found = group(r)
        if found.held is not False:
            access(e, found, size, verb, bounds)
        return found

    return checked


def access(
    e: Emitter, at: Group, size: int, verb: str, bounds: tuple[str, str, str] | None = None
) -> None:
    w = e.w
    address = add(e, at.address, at.offset, "s64")
    if bounds is not None:
        name, low, high = bounds
        before, after = (
            w.op("setp.lt.u64", "pred", address, low),
            w.op("setp.gt.u64", "pred", w.op("add.s64", "b64", address, size), high),
        )
        wrong = both(e, w.op("or.pred", "pred", before, after), at.held)
        check(
            e,
            wrong,
            f"{verb} {size} bytes at {{0}} bytes from the first of argument {name}, whose bytes end"
            " at {1}",
            w.op("sub.s64", "b64", address, low),
            w.op("sub.s64", "b64", high, low),
        )
    if size > 1:
        wrong = both(
            e, w.op("setp.ne.b64", "pred", w.op("and.b64", "b64", address, size - 1), 0), at.held
        )
        check(
            e,
            wrong,
            f"{verb} {size} bytes at the address {{0:#x}}, which is no multiple of {size}",
            address,
        )


def span(e: Emitter, number: int) -> tuple[str, str, str]:
    """Name, first byte and end of an array argument."""
    argument = e.kernel.arguments[number]
    array, w = e.values[argument], e.w

    def ends() -> tuple[str, str]:
        low = high = w.register(array.pointer(), "b64")
        empty: Operand = False
        for axis, (_n, _s) in enumerate(zip(array.facts.shape, array.facts.strides, strict=False)):
            extent, stride = array.extent(axis), array.stride(axis)
            last = add(e, wide(e, extent), -1, "s64")
            reach = displaced(e, 0, w.register(last, "b64"), stride, array.itemsize)
            if not isinstance(reach, str):
                reach = w.register(reach, "b64")
            low, high = (
                w.op("add.s64", "b64", low, w.op("min.s64", "b64", reach, 0)),
                w.op("add.s64", "b64", high, w.op("max.s64", "b64", reach, 0)),
            )
            none = (
                w.op("setp.eq.s32", "pred", extent, 0) if isinstance(extent, str) else extent == 0
            )
            empty = (
                none
                if empty is False
                else empty
                if none is False
                else w.op("or.pred", "pred", empty, none)
            )
        high = w.op("add.s64", "b64", high, array.itemsize)
        return low, (
            w.op("selp.b64", "b64", low, high, empty)
            if isinstance(empty, str)
            else low
            if empty
            else high
        )

    return argument.name_hint or str(number), *w.hoist(("span", number), ends, root=True)


def inside(e: Emitter, start: Operand, extent: Operand, n: int, axis: int) -> None:
    """What facts say must lie inside an array along an axis does: a promise that was not kept shows
    here.
    """
    if not isinstance(start, str) and not isinstance(extent, str):
        return
    w, at, end = e.w, e.w.register(wide(e, start), "b64"), wide(e, extent)
    wrong = w.op(
        "or.pred",
        "pred",
        w.op("setp.lt.s64", "pred", at, 0),
        w.op("setp.gt.s64", "pred", w.op("add.s64", "b64", at, n), end),
    )
    check(
        e,
        wrong,
        f"a block of {n} along axis {axis} starts at {{0}} of {{1}}: a promise (tkc.assume,"
        " tkc.multiple_of) that was not kept let its bounds go unchecked",
        at,
        w.register(end, "b64"),
    )
