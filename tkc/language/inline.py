"""PTX inside a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tkc.ir.elementwise import InlinePtx, meaning_of, packed_registers
from tkc.language.dtypes import DType
from tkc.language.tracer import fail, tracer
from tkc.language.values import (
    Operand,
    Pointer,
    Value,
    broadcast_shapes,
    check,
    describe,
    lift,
    typed,
    wrap,
)


def inline_ptx(
    text: str,
    *args: Operand,
    result: DType | tuple[DType, ...] | None = None,
    meaning: Callable | None = None,
    isa: str = "8.0",
    pack: int = 1,
) -> Value | tuple[Value, ...]:
    """PTX of your own, run for every element of the operands (which are broadcast):
    `inline_ptx("lg2.approx.f32 $0, $1;", x)`.

    `$0`, `$1`, … are the results, then the operands; `$$` is a dollar. result: the dtype of the
    result (default: the first operand's), or a tuple of dtypes, which gives a tuple. A float16,
    bfloat16 or integer of 8 or 16 bits is in a 16-bit register as its bits, a truth value in a
    predicate. Names declared in the text are its own. isa: the PTX ISA version that the text needs.
    Elements of the padding run too, and copies of elements several times.

    pack: 2 or 4 elements at once. Each operand and result then has as many registers as they need:
    of 8 and 16 bits they share registers of 32, the first element lowest; of 32 and 64 bits, and of
    truth values, each has one of its own. The registers of the first result come first.

    meaning: a NumPy function of the operands' arrays that gives the results, for the CPU and the
    simulator, which otherwise run the text in the simulator of PTX, and refuse instructions that it
    does not know. Raises CompileError for a text that names an operand that is none.
    """
    if not isinstance(text, str):
        fail(f"tkc.inline_ptx takes the text of PTX first, got {describe(text)}")
    if not re.fullmatch(r"\d+\.\d+", isa):
        fail(f"isa is a version of the PTX ISA such as '8.0', got {isa!r}")
    if meaning is not None and not callable(meaning):
        fail(f"meaning is a NumPy function of the operands, got {describe(meaning)}")
    values = [check(x) for x in args]
    dtypes = _dtypes(result, values)
    operands = _operands(values)
    if pack not in (1, 2, 4):
        fail(f"pack is 1, 2 or 4, got {describe(pack)}")
    _check_names(text, *(_registers(ts, pack) for ts in (dtypes, [v.dtype for v in operands])))
    types = [typed(operands[0].shape if operands else (), t.ir) for t in dtypes]
    named = meaning_of(meaning) if meaning else None
    op = tracer().emit(InlinePtx(text, [v.use() for v in operands], types, isa, named, pack))
    found = tuple(map(wrap, op.results))
    return found if isinstance(result, tuple) else found[0]


def _registers(dtypes: Sequence[DType], pack: int) -> int:
    return sum(packed_registers(t.ir, pack) for t in dtypes)


def _operands(values: Sequence[Operand]) -> list[Value]:
    """Traced values of one shape."""
    shape = broadcast_shapes(*(v.shape for v in values if isinstance(v, Value)), ())
    operands = [lift(v, v.dtype if isinstance(v, Value) else None, shape) for v in values]
    if any(isinstance(v.dtype, Pointer) for v in operands) and shape:
        fail("tkc.inline_ptx takes tiles of numbers; pointers only one by one")
    return operands


def _dtypes(
    result: DType | tuple[DType, ...] | None, values: Sequence[Operand]
) -> tuple[DType, ...]:
    """Of each result."""
    results = result if isinstance(result, tuple) else (result,) if result is not None else ()
    for t in results:
        if not isinstance(t, DType):
            fail(
                "the result of tkc.inline_ptx is a dtype such as tkc.float32, or a tuple of them,"
                f" got {t!r:.60}"
            )
    if results:
        return results
    if not values or not isinstance(values[0], Value):
        fail(
            "tkc.inline_ptx needs result=, a dtype such as tkc.float32, where the first operand has"
            " none"
        )
    return (values[0].dtype,)


def _check_names(text: str, results: int, operands: int) -> None:
    """`$n` names a result or an operand; `$$` is a dollar."""
    count = results + operands
    for n in map(int, re.findall(r"(?<!\$)(?:\$\$)*\$(\d+)", text)):
        if n >= count:
            fail(
                f"the text names ${n}, but there are {results} results and {operands} operands: $0"
                f" to ${count - 1}, a register each"
            )
