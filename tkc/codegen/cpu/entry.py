"""The function that every thread of a launch calls, and how a launch ends early.

    @run(args, grid, workspace, context)     takes programs from a counter until there are none
    @stopped(workspace, context)             whether the launch is to end, after a look for signals

@run is called with Python's lock, and releases it while it runs (signals.py says why). Both are the
same for all kernels: an object file of their own, which a process compiles once.
"""

from __future__ import annotations

from functools import cache

from tkc.codegen.cpu.context import HANDLES_SIGNALS, STOPPED, THREAD_STATE, WORDS
from tkc.codegen.cpu.emit import Function, Module
from tkc.codegen.cpu.host import host


def word(f: Function, name: str) -> str:
    """The address of a word of the context."""
    return f.gep("%context", str(WORDS.index(name)), 8)


def return_if_stopped(f: Function) -> None:
    """Branches to the block %over where the launch is to end: once in every iteration of a loop."""
    _go_on_unless_stopped(f, f.fresh("go"), "%over")


def give_way(f: Function) -> None:
    """Lets another thread run, which may do what this one waits for."""
    f.emit(f"call i32 {f.load('ptr', word(f, 'give_way'), 8)}()")


def return_if_signalled(f: Function) -> None:
    """As `return_if_stopped`, with a look for signals in any case."""
    go = f.fresh("go")
    f.branch_if(_is_stopped(f), "%over", go)
    f.label(go)


def _go_on_unless_stopped(f: Function, go: str, over: str) -> None:
    look = f.fresh("look")
    attention = f.emit(f"load atomic i64, ptr {word(f, 'attention')} monotonic, align 8")
    f.branch_if(f.emit(f"icmp eq i64 {attention}, 0"), go, look)
    f.label(look)
    f.branch_if(_is_stopped(f), over, go)
    f.label(go)


def _is_stopped(f: Function) -> str:
    return f.call("stopped", "i1", ("ptr", "%workspace"), ("ptr", "%context"))


def _own_word(f: Function, offset: int) -> str:
    """The address of a word of this thread."""
    return f.emit(f"getelementptr i8, ptr %workspace, i64 {offset}")


def _release_interpreter(f: Function) -> None:
    release = f.load("ptr", word(f, "release"), 8)
    f.store("ptr", f.emit(f"call ptr {release}()"), _own_word(f, THREAD_STATE), 8)


def _take_interpreter(f: Function) -> None:
    take = f.load("ptr", word(f, "take"), 8)
    f.do(f"call void {take}(ptr {f.load('ptr', _own_word(f, THREAD_STATE), 8)})")


@cache
def entry() -> bytes:
    """The object file of @run and @stopped, to be linked with one that has @program."""
    llvm, machine, *_ = host()
    module = Module(masks_short=True)
    _write_stopped(module)
    _write_run(module)
    return machine.emit_object(llvm.parse_assembly(str(module)))


def _write_run(module: Module) -> None:
    f = module.function(
        "run",
        "void",
        [("ptr", name) for name in ("args", "grid", "workspace", "context")],
    )
    _release_interpreter(f)
    n = [f.load("i32", f.gep("%grid", str(a), 4), 4) for a in range(3)]
    total, grain = (f.load("i64", word(f, name), 8) for name in ("total", "grain"))
    counter = word(f, "counter")
    f.branch("%next")
    f.label("%next")
    low = f.emit(f"atomicrmw add ptr {counter}, i64 {grain} monotonic")
    f.branch_if(f.emit(f"icmp slt i64 {low}, {total}"), "%some", "%end")
    f.label("%some")
    end = f.emit(f"add i64 {low}, {grain}")
    high = f.call("llvm.smin.i64", "i64", ("i64", end), ("i64", total))
    f.branch("%each")
    f.label("%each")
    i = f.emit(f"phi i64 [{low}, %some], [%following, %go]")
    _go_on_unless_stopped(f, "%go", "%end")
    j = f.emit(f"trunc i64 {i} to i32")
    p0 = f.op("urem", "i32", j, n[0])
    j = f.op("udiv", "i32", j, n[0])
    p1 = f.op("urem", "i32", j, n[1])
    p2 = f.op("udiv", "i32", j, n[1])
    ids = (("i32", x) for x in (p0, p1, p2, *n))
    f.do_call("program", ("ptr", "%args"), ("ptr", "%workspace"), ("ptr", "%context"), *ids)
    f.do(f"%following = add i64 {i}, 1")
    f.branch_if(f.emit(f"icmp slt i64 %following, {high}"), "%each", "%next")
    f.label("%end")
    _take_interpreter(f)
    f.do("ret void")


def _write_stopped(module: Module) -> None:
    f = module.function(
        "stopped",
        "i1",
        [("ptr", "workspace"), ("ptr", "context")],
        attributes="nounwind noinline cold",
    )
    attention, error = word(f, "attention"), word(f, "error")
    main = f.load("i64", _own_word(f, HANDLES_SIGNALS), 8)
    f.branch_if(f.emit(f"icmp eq i64 {main}, 0"), "%judge", "%look")
    f.label("%look")
    # before `error` is read: what sets it sets `attention` later, which is then found
    f.do(f"store atomic i64 0, ptr {attention} seq_cst, align 8")
    _take_interpreter(f)
    raised = f.emit(f"call i32 {f.load('ptr', word(f, 'check_signals'), 8)}()")
    _release_interpreter(f)
    f.branch_if(f.emit(f"icmp slt i32 {raised}, 0"), "%raised", "%judge")
    f.label("%raised")
    f.do(f"cmpxchg ptr {error}, i64 0, i64 {STOPPED} seq_cst seq_cst")
    f.branch("%judge")
    f.label("%judge")
    found = f.emit(f"load atomic i64, ptr {error} seq_cst, align 8")
    f.branch_if(f.emit(f"icmp eq i64 {found}, 0"), "%no", "%yes")
    f.label("%no")
    f.do("ret i1 false")
    f.label("%yes")
    f.do(f"store atomic i64 1, ptr {attention} seq_cst, align 8")
    f.do("ret i1 true")
