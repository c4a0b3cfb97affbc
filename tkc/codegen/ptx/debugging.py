"""tile.assert and tile.print."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from tkc.codegen.ptx.access import bool_bits, both
from tkc.codegen.ptx.barriers import rejoin
from tkc.codegen.ptx.coordinates import coordinate, inside
from tkc.codegen.ptx.emitter import Emitter, emitter
from tkc.codegen.ptx.global_memory import one_thread, stores_once
from tkc.codegen.ptx.traps import check as check_site
from tkc.codegen.ptx.writer import Integer, Operand
from tkc.ir import tile
from tkc.ir.messages import literals
from tkc.ir.types import TileType, bits, i32, is_bool, is_float, is_unsigned
from tkc.ir.values import tile_type

Printed = tuple[Operand, Attribute]  # a number and its type


@emitter(tile.Assert)
def check(e: Emitter, op: tile.Assert) -> None:
    """Traps where the condition does not hold: the launch then fails."""
    t, w = op.condition.type, e.w
    if not isinstance(t, TileType):
        condition = e.operand(op.condition)
        if condition is True:
            return
        if e.debug or e.counts is not True:
            wrong = w.op("not.pred", "pred", condition) if isinstance(condition, str) else True
            return trap(e, both(e, wrong, e.counts), op.text.data)
        with w.predicated(condition, negate=True):
            w.emit("trap")
        return
    value = e.tile(op.condition)
    for r in range(value.count):
        holds, real = e.element(value, r), inside(e, value.layout, r)
        if holds is True or real is False:
            continue
        wrong = w.op("not.pred", "pred", holds) if isinstance(holds, str) else True
        if isinstance(real, str):
            wrong = real if wrong is True else w.op("and.pred", "pred", wrong, real)
        at = [coordinate(e, value.layout, r, a) for a in range(min(t.rank, 2))] if e.debug else []
        trap(e, wrong, op.text.data, *at)


def trap(e: Emitter, wrong: Operand, text: str, *at: Integer) -> None:
    """Traps. TKC_DEBUG=1: the assertion says which it was, and of which element (its first two
    coordinates).
    """
    if not e.debug:
        with e.w.predicated(wrong):
            e.w.emit("trap")
        return
    said = text.replace("{", "{{").replace("}", "}}")
    where = f" at element [{', '.join(f'{{{a}}}' for a in range(len(at)))}]" if at else ""
    check_site(e, wrong, f"tkc.device_assert failed{f': {said}' if said else ''}{where}", *at)


@emitter(tile.Print)
def show(e: Emitter, op: tile.Print) -> None:
    """One line by one thread; where there are tiles, a line for each element of one, with its
    coordinates, and others as [...].  (A call of the driver's printf: slow, and it keeps wgmma from
    running asynchronously, so it is for debugging only.)
    """
    parts = [part.replace("%", "%%") for part in literals(op.text.data, len(op.args))]
    tiles = [v for v in op.args if isinstance(v.type, TileType)]

    def line(
        held: Operand, shown: SSAValue | None = None, at: Sequence[Integer] = (), x: Operand = ""
    ) -> None:
        text = parts[0]
        values: list[Printed] = []
        for v, part in zip(op.args, parts[1:], strict=True):
            if v is shown:
                element = tile_type(v).element
                text += f"[{', '.join('%d' for _ in at)}] {_format(element)}"
                values += [*((a, i32) for a in at), (x, element)]
            elif v in tiles:
                text += "[...]"
            else:
                text += _format(v.type)
                values.append((e.operand(v), v.type))
            text += part
        _line(e, text, values, held)

    if not tiles:
        line(one_thread(e))
    for v in dict.fromkeys(tiles):
        value = e.tile(v)
        once = stores_once(e, value.layout)
        for r in range(value.count):
            held = both(e, inside(e, value.layout, r), once(r))
            if held is False:
                continue
            at = [coordinate(e, value.layout, r, a) for a in range(value.layout.rank)]
            line(held, v, at, e.element(value, r))


def _format(t: Attribute) -> str:
    """printf's conversion for a type."""
    if is_float(t):
        return "%g"
    return f"%{'ll' if bits(t) == 64 else ''}{'u' if is_unsigned(t) else 'd'}"


def _promoted(e: Emitter, x: Operand, t: Attribute) -> tuple[str, Operand]:
    """The PTX type and the value that vprintf reads for an argument: a float as a double."""
    w = e.w
    if is_float(t):
        if not isinstance(x, str):
            return "f64", w.register(float(x), "b64")
        return "f64", x if bits(t) == 64 else w.op("cvt.f64.f32", "b64", x)
    if is_bool(t):
        return "b32", bool_bits(e, x)
    return f"b{64 if bits(t) == 64 else 32}", x


VPRINTF = ".extern .func (.param .b32 printed) vprintf (.param .b64 format, .param .b64 arguments);"


def _line(e: Emitter, text: str, args: Sequence[Printed], held: Operand) -> None:
    """One call of vprintf: its arguments lie in local memory, 8 bytes each as far as they need
    them.
    """
    w, number = e.w, len(e.globals)
    data = [*text.encode(), 10, 0]
    e.globals.append(
        f".global .align 1 .b8 message{number}[{len(data)}] = {{{', '.join(map(str, data))}}};"
    )
    if VPRINTF not in e.globals:
        e.globals.insert(0, VPRINTF)
    past = w.label("quiet")
    if isinstance(held, str):
        w.branch(past, held, negate=True)
    w.raw(
        f"\t{{\n\t.local .align 8 .b8 line[{max(8 * len(args), 8)}];\n\t.reg .b64 %at,"
        " %to;\n\tmov.u64 %at, line;"
    )
    at = 0
    for argument, t in args:
        kind, x = _promoted(e, argument, t)
        size = 4 if kind == "b32" else 8
        at = -(-at // size) * size
        w.emit(f"st.local.{kind} [%at+{at}], {w.register(x, f'b{8 * size}')}")
        at += size
    w.raw(
        f"\tcvta.local.u64 %at, %at;\n\tmov.u64 %to, message{number};\n\tcvta.global.u64 %to, %to;"
    )
    w.raw(
        "\t{\n\t.param .b64 f;\n\t.param .b64 a;\n\t.param .b32 r;\n\tst.param.b64 [f],"
        " %to;\n\tst.param.b64 [a], %at;\n\tcall.uni (r), vprintf, (f, a);\n\t}\n\t}"
    )
    w.place(past)
    rejoin(e)
