"""What TKC_DEBUG=1 adds to a kernel: checks, each with a site of its own (interface.Site). What a
thread finds wrong goes to a record in host memory; then it traps.

    @!%p7 bra fine12;                       %p7: the address is outside its array
    mov.b32 %r90, 3; mov.b64 %d40, …; mov.b64 %d41, …; bra trap;         site 3, its two numbers
    fine12: … ret
    trap: the first of all threads that come here writes the record (RECORD says how), waits until
          the host can see it, and traps; the others wait for that

A trap ends the context; host memory outlives it, so that the runtime can say what happened
(tkc.runtime.driver).
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import SSAValue

from tkc.codegen.ptx.access import Group, both, either
from tkc.codegen.ptx.emitter import Emitter
from tkc.codegen.ptx.integers import add, displaced, wide
from tkc.codegen.ptx.values import Array
from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir.interface import RECORD, Parameter, Site
from tkc.ir.origin import origin
from tkc.ir.text import location_of

CLAIMED = ".global .align 4 .u32 claimed;"
LABEL = "$trap"


def check(e: Emitter, wrong: Operand, text: str, *numbers: Integer) -> None:
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
        w.branch(fine, wrong, negate=True)
    number, *values = registers(e)
    w.move(number, e.sites.index(site))
    for into, x in zip(values, numbers, strict=False):
        w.move(into, wide(e, x))
    w.branch(LABEL)
    w.place(fine)


def registers(e: Emitter) -> list[str]:
    """Site and numbers of the thread that traps."""
    return e.w.hoist("trap", lambda: [e.w.new("b32"), e.w.new("b64"), e.w.new("b64")], root=True)


def handler(e: Emitter) -> str:
    """The end of a kernel that has checks."""
    w, (site, *numbers), record = e.w, registers(e), e.parameter(Parameter("trap", "u64"))
    word, late = w.new("b32"), w.new("pred")
    where = {name: w.new("b32") for name in ("%ctaid.x", "%ctaid.y", "%ctaid.z", "%tid.x")}
    lines = [
        f"atom.relaxed.gpu.global.cas.b32 {word}, [claimed], 0, 1",
        f"setp.ne.b32 {late}, {word}, 0",
        f"@{late} bra {LABEL}_late",  # another thread was here before
        f"setp.eq.b64 {late}, {record}, 0",
        f"@{late} bra {LABEL}_now",  # no host reads the record
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
    now = [
        "fence.acq_rel.gpu",
        f"mov.b32 {word}, 2",
        f"st.release.gpu.global.b32 [claimed], {word}",
        "trap",
    ]
    waiting = [
        f"ld.relaxed.gpu.global.b32 {word}, [claimed]",
        f"setp.ne.b32 {late}, {word}, 2",
        f"@{late} bra {LABEL}_late",
        "trap",
        "ret",
    ]
    parts = {LABEL: lines, f"{LABEL}_now": now, f"{LABEL}_late": waiting}
    return "\n".join(
        line for label, body in parts.items() for line in (f"{label}:", *(f"\t{x};" for x in body))
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
    bounds = span_of(e, source)

    def checked(r: int) -> Group:
        found = group(r)
        if found.held is not False:
            access(e, found, size, verb, bounds)
        return found

    return checked


def access(
    e: Emitter, at: Group, size: int, verb: str, bounds: tuple[str, str, str] | None = None
) -> None:
    """Checks one access of `size` bytes: inside `bounds` (`span_of`), and aligned."""
    w = e.w
    address = add(e, at.address, at.offset, "s64")
    if bounds is not None:
        name, low, high = bounds
        before = w.op("setp.lt.u64", "pred", address, low)
        after = w.op("setp.gt.u64", "pred", w.op("add.s64", "b64", address, size), high)
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
        rest = w.op("and.b64", "b64", address, size - 1)
        wrong = both(e, w.op("setp.ne.b64", "pred", rest, 0), at.held)
        check(
            e,
            wrong,
            f"{verb} {size} bytes at the address {{0:#x}}, which is no multiple of {size}",
            address,
        )


def span_of(e: Emitter, source: SSAValue | None) -> tuple[str, str, str] | None:
    """Name, first byte and end of the array argument that a pointer or array is made from; None
    where there is none.
    """
    argument = origin(source) if source is not None else None
    return None if argument is None else span(e, argument.index)


def span(e: Emitter, number: int) -> tuple[str, str, str]:
    """Name, first byte and end of an array argument."""
    argument = e.kernel.arguments[number]
    name = argument.name_hint or str(number)
    return name, *e.w.hoist(("span", number), lambda: _ends(e, e.array(argument)), root=True)


def _ends(e: Emitter, array: Array) -> tuple[str, str]:
    """Addresses of an array's first byte and of the one behind its last; equal if it is empty."""
    w = e.w
    low = high = w.register(array.pointer(), "b64")
    empty: Operand = False
    for axis in range(array.rank):
        extent, stride = array.extent(axis), array.stride(axis)
        last = w.register(add(e, wide(e, extent), -1, "s64"), "b64")
        reach = w.register(displaced(e, 0, last, stride, array.itemsize), "b64")
        low = w.op("add.s64", "b64", low, w.op("min.s64", "b64", reach, 0))
        high = w.op("add.s64", "b64", high, w.op("max.s64", "b64", reach, 0))
        none = w.op("setp.eq.s32", "pred", extent, 0) if isinstance(extent, str) else extent == 0
        empty = either(e, empty, none)
    high = w.op("add.s64", "b64", high, array.itemsize)
    if isinstance(empty, str):
        return low, w.op("selp.b64", "b64", low, high, empty)
    return low, low if empty else high


def inside(e: Emitter, start: Integer, extent: Integer, n: int, axis: int) -> None:
    """Checks that a block which facts prove to lie inside an array along an axis does: a promise
    that was not kept shows here.
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
