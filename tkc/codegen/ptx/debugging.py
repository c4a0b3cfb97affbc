"""tile.assert and tile.print."""

from __future__ import annotations

from tkc.codegen.ptx.access import both
from tkc.codegen.ptx.coordinates import coordinate, inside
from tkc.codegen.ptx.emit import Emitter, emitter
from tkc.codegen.ptx.global_memory import one_thread, stores_once
from tkc.codegen.ptx.traps import check as check_site
from tkc.codegen.ptx.writer import Operand
from tkc.ir import tile
from tkc.ir.messages import literals
from tkc.ir.types import TileType, bits, is_bool, is_float, is_unsigned


@emitter(tile.Assert)
def check(e: Emitter, op: tile.Assert) -> None:
    """Traps where the condition does not hold; the launch then fails, and the location says where."""
    t, w = op.condition.type, e.w
    if not isinstance(t, TileType):
        condition = e.operand(op.condition)
        if condition is True:
            return
        if e.debug:
            return trap(
                e,
                w.op("not.pred", "pred", condition) if isinstance(condition, str) else True,
                op.text.data,
            )
        with w.predicated(None if condition is False else condition, negate=True):
            w.emit("trap")
        return
    value = e.tile(op.condition)
    for r in range(value.count):
        holds, real = e.element(value, r), inside(e, value.layout, r)
        if holds is True or real is False:
            continue
        wrong = True if holds is False else w.op("not.pred", "pred", holds)
        if isinstance(real, str):
            wrong = real if wrong is True else w.op("and.pred", "pred", wrong, real)
        if e.debug:
            trap(
                e,
                wrong,
                op.text.data,
                *(coordinate(e, value.layout, r, a) for a in range(min(t.rank, 2))),
            )
        else:
            with w.predicated(wrong if isinstance(wrong, str) else None):
                w.emit("trap")


def trap(e: Emitter, wrong: Operand, text: str, *at: Operand) -> None:
    """TKC_DEBUG=1: the assertion says which it was, and of which element (its first two
    coordinates).
    """
    said = text.replace("{", "{{").replace("}", "}}")
    where = f" at element [{', '.join(f'{{{a}}}' for a in range(len(at)))}]" if at else ""
    check_site(e, wrong, f"tkc.device_assert failed{f': {said}' if said else ''}{where}", *at)


@emitter(tile.Print)
def show(e: Emitter, op: tile.Print) -> None:
    """One line by one thread; where there are tiles, a line for each element of one, with its coordinates, and others as [...].  (A call of the driver's printf: slow, and it keeps
    wgmma from running asynchronously, so it is for looking at values only.)"""
    parts = [part.replace("%", "%%") for part in literals(op.text.data, len(op.args))]
    tiles = [v for v in op.args if isinstance(v.type, TileType)]

    def line(held: Operand, shown=None, at: tuple = (), element: Operand = "") -> None:
        text, values = parts[0], []
        for v, part in zip(op.args, parts[1:], strict=False):
            if v is shown:
                text, values = (
                    f"{text}[{', '.join('%d' for _ in at)}] {_format(v.type.element)}",
                    [
                        *values,
                        *((a, None) for a in at),
                        (element, v.type.element),
                    ],
                )
            elif v in tiles:
                text += "[...]"
            else:
                text, values = f"{text}{_format(v.type)}", [*values, (e.operand(v), v.type)]
            text += part
        _line(e, text, values, held)

    if not tiles:
        line(one_thread(e))
    for v in dict.fromkeys(tiles):
        value, t = e.tile(v), v.type
        once = stores_once(e, value.layout)
        for r in range(value.count):
            held = both(e, inside(e, value.layout, r), once(r))
            if held is False:
                continue
            line(
                held,
                v,
                tuple(coordinate(e, value.layout, r, a) for a in range(t.rank)),
                e.element(value, r),
            )


def _format(t) -> str:
    if is_float(t):
        return "%g"
    return (
        ("%llu" if is_unsigned(t) else "%lld")
        if bits(t) == 64
        else "%u"
        if is_unsigned(t)
        else "%d"
    )


def _line(e: Emitter, text: str, args: list[tuple[Operand, object]], held: Operand) -> None:
    """One call of vprintf: its arguments lie in local memory, 8 bytes each as far as they need
    them.
    """
    w, number, declared = (
        e.w,
        len(e.globals),
        ".extern .func (.param .b32 printed) vprintf (.param .b64 format, .param .b64 arguments);",
    )
    data = [*text.encode(), 10, 0]
    e.globals.append(
        f".global .align 1 .b8 message{number}[{len(data)}] = {{{', '.join(map(str, data))}}};"
    )
    if declared not in e.globals:
        e.globals.insert(0, declared)
    past = w.label("quiet")
    if isinstance(held, str):
        w.raw(f"\t@!{held} bra {past};")
    w.raw(
        f"\t{{\n\t.local .align 8 .b8 line[{max(8 * len(args), 8)}];\n\t.reg .b64 %at,"
        " %to;\n\tmov.u64 %at, line;"
    )
    at = 0
    for x, t in args:
        if t is not None and is_float(t):
            kind, x = (
                "f64",
                (
                    w.register(float(x), "b64")
                    if not isinstance(x, str)
                    else x
                    if bits(t) == 64
                    else w.op("cvt.f64.f32", "b64", x)
                ),
            )
        elif t is not None and bits(t) == 64:
            kind = "b64"
        else:
            kind, x = (
                "b32",
                (
                    w.op("selp.b32", "b32", 1, 0, x)
                    if t is not None and is_bool(t) and isinstance(x, str)
                    else x
                ),
            )
        size = 4 if kind == "b32" else 8
        at = -(-at // size) * size
        w.raw(
            f"\tst.local.{kind} [%at+{at}],"
            f" {w.register(int(x) if isinstance(x, bool) else x, 'b32' if size == 4 else 'b64')};"
        )
        at += size
    w.raw(
        f"\tcvta.local.u64 %at, %at;\n\tmov.u64 %to, message{number};\n\tcvta.global.u64 %to, %to;"
    )
    w.raw(
        "\t{\n\t.param .b64 f;\n\t.param .b64 a;\n\t.param .b32 r;\n\tst.param.b64 [f],"
        " %to;\n\tst.param.b64 [a], %at;\n\tcall.uni (r), vprintf, (f, a);\n\t}\n\t}"
    )
    w.place(past)
