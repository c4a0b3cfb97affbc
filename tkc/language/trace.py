"""trace(fn, signature): a Python function becomes a verified module with one tile.kernel at level
0.
"""

from __future__ import annotations

import inspect
import itertools
import re
from types import CodeType, FunctionType, TracebackType
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr

from tkc.errors import CompileError, Error, Location
from tkc.ir import tile
from tkc.ir.ranges import NONNEGATIVE
from tkc.ir.text import source
from tkc.ir.types import ArrayType
from tkc.ir.verify import verify
from tkc.language import foreign
from tkc.language.arrays import Array
from tkc.language.control import callable_in_kernel
from tkc.language.peers import PeerArrays
from tkc.language.signature import (
    Argument,
    ArrayArgument,
    ConstantArgument,
    PeersArgument,
    ScalarArgument,
    Signature,
)
from tkc.language.slots import Lost, traced_function
from tkc.language.state import Snapshot
from tkc.language.tracer import Tracer, activate, is_users_frame, locate
from tkc.language.values import describe, wrap

foreign.register()


def trace(fn: object, signature: Signature) -> ModuleOp:
    """The kernel of one specialization.

    Arrays and scalars of the signature become arguments, in its order; constants are plain Python
    values in the trace. Raises CompileError at the user's line for whatever the language does not
    allow.
    """
    fn = traced_function(fn) or fn
    if not isinstance(fn, FunctionType):
        raise CompileError(f"a kernel is a Python function, got {type(fn).__name__}")
    start = Location(fn.__code__.co_filename, fn.__code__.co_firstlineno, 0, None, fn.__name__)
    arguments: dict[str, Argument] = dict(signature.arguments)
    _check_parameters(fn, arguments, start)
    kernel = _kernel(fn, signature)
    kernel.location = source(start)
    with activate(Tracer(kernel.body.block)) as tracer:
        tracer.semantics = signature.options.semantics or "torch"
        tracer.place = start.file, start.line, 0
        values = _values(tracer, kernel, arguments)
        tracer.place = None
        before = Snapshot.take({"kernel": fn}, [])
        try:
            result = _guarded(fn, values, tracer, start)
        finally:
            before.forget()
        if result is not None and type(result) is not Lost:
            raise CompileError(
                f"a kernel returns nothing, `{fn.__name__}` returns {describe(result)}; write"
                " results with tkc.store",
                start,
            )
        tracer.place = start.file, start.line, 0
        tracer.emit(tile.Return())
    module = ModuleOp([kernel])
    verify(module, "the traced kernel")
    return module


def _kernel(fn: FunctionType, signature: Signature) -> tile.Kernel:
    """The kernel of these arguments, without a body."""
    dynamic = _dynamic(signature)
    types = [
        ArrayType(a.rank, a.dtype.ir, a.facts) if isinstance(a, ArrayArgument) else a.dtype.ir
        for a in dynamic.values()
    ]
    kernel = tile.Kernel(fn.__name__, types)
    kernel.set_integer("level", 0)
    if signature.options.num_warps is not None:
        kernel.set_integer("warps", signature.options.num_warps)
    kernel.attributes["argument_names"] = ArrayAttr(map(StringAttr, dynamic))
    wide = [i for i, a in enumerate(dynamic.values()) if isinstance(a, ArrayArgument) and a.wide]
    if wide:
        kernel.attributes["wide"] = tile.ints(wide)
    signs = [
        i for i, a in enumerate(dynamic.values()) if isinstance(a, ScalarArgument) and a.nonnegative
    ]
    if signs:
        kernel.attributes[NONNEGATIVE] = tile.ints(signs)
    return kernel


def _dynamic(signature: Signature) -> dict[str, ArrayArgument | ScalarArgument]:
    """The arguments that a kernel has at run time, in its order: of peers one array a rank."""
    found: dict[str, ArrayArgument | ScalarArgument] = {}
    for name, a in signature.arguments:
        if isinstance(a, PeersArgument):
            found |= {f"{name}[{r}]": a.array for r in range(a.world)}
        elif not isinstance(a, ConstantArgument):
            found[name] = a
    return found


def _values(tracer: Tracer, kernel: tile.Kernel, arguments: dict[str, Argument]) -> dict[str, Any]:
    """What the function is called with: constants, arrays and scalars by parameter."""
    values, given = {}, iter(kernel.arguments)
    for name, a in arguments.items():
        if isinstance(a, ConstantArgument):
            values[name] = a.value
            continue
        ssa = next(given)
        ssa.name_hint = name
        if isinstance(a, ArrayArgument):
            array = Array(ssa, a.wide)
            values[name] = array.ptr if a.pointer else array
        elif isinstance(a, PeersArgument):
            each = [ssa, *itertools.islice(given, a.world - 1)]
            for r, one in enumerate(each):
                one.name_hint = f"{name}_{r}"
            values[name] = PeerArrays(name, tuple(Array(one, a.array.wide) for one in each))
            tracer.place_among_ranks(a.rank, a.world, name)
        else:
            values[name] = _scalar(tracer, a, ssa, name)
    return values


def _check_parameters(fn: FunctionType, arguments: dict, start: Location) -> None:
    parameters = inspect.signature(fn).parameters
    for name in arguments:
        if name not in parameters:
            raise CompileError(
                f"`{fn.__name__}` has no parameter `{name}`; it has {', '.join(parameters)}", start
            )
    missing = [
        n
        for n, p in parameters.items()
        if n not in arguments
        and p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing:
        raise CompileError(
            f"`{fn.__name__}` needs a value for {', '.join(f'`{n}`' for n in missing)}", start
        )


def _scalar(tracer: Tracer, argument: ScalarArgument, ssa, name: str):
    if argument.divisor <= 1 or not argument.dtype.is_int:
        return wrap(ssa)
    op = tile.Multiple(ssa, argument.divisor)
    op.result.name_hint = name
    tracer.blocks[-1].add_op(op)
    return wrap(op.result)


def _guarded(fn: FunctionType, values: dict[str, Any], tracer: Tracer, start: Location):
    """Calls the kernel; what Python itself objects to becomes a CompileError at the user's line."""
    try:
        return _traced_call(fn, values)
    except Error:
        raise
    except RecursionError:
        raise CompileError(
            "the kernel's helpers call each other without end; recursion must stop on a"
            " compile-time condition",
            start,
        ) from None
    except Exception as e:
        raise CompileError(_words(e, tracer), _location(e.__traceback__) or start) from e


def _traced_call(fn: FunctionType, values: dict[str, Any]):
    """Runs the kernel. A function of another language says by `__traced_by__` what runs it."""
    run = getattr(fn, "__traced_by__", None)
    return run(**values) if run is not None else callable_in_kernel(fn)(**values)


def _words(e: Exception, tracer: Tracer) -> str:
    if isinstance(e, NameError) and (m := re.search(r"'(\w+)'", str(e))) and m[1] in tracer.reasons:
        return tracer.reasons[m[1]]
    text = str(e).replace("__tkc__.", "")
    return text if isinstance(e, (AttributeError, NameError)) else f"{type(e).__name__}: {text}"


def _location(tb: TracebackType | None) -> Location | None:
    chain: list[tuple[CodeType, int, int | None]] = []
    while tb is not None:
        if is_users_frame(tb.tb_frame):
            chain.append((tb.tb_frame.f_code, tb.tb_lasti, tb.tb_lineno))
        tb = tb.tb_next
    return locate(chain)
