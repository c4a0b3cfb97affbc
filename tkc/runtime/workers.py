"""Compiling many specializations of a kernel at once, in processes of their own, into the disk
cache.

    errors = compile_all(kernel, [specialization, …], "sm_90a")
            what each raised, as text, or None

A worker is `python -m tkc.runtime.workers`: it imports the kernel's module, compiles what stdin
lists, has ptxas assemble it, and says what went wrong. What it made is in the disk cache, where the
caller finds it. Where the kernel cannot be imported by name (it stands in a script, a notebook or a
function), or nothing is cached, or there is little to do, the caller compiles here, and only ptxas
runs beside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from ast import literal_eval
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING

from tkc.compiler import Compiled
from tkc.errors import Error
from tkc.runtime import cache
from tkc.runtime.specialize import Specialization

if TYPE_CHECKING:
    from tkc.runtime.kernel import Kernel

MAX_COMPILED_HERE = 6  # specializations; for more, processes are started
WORKER_TIMEOUT_SECONDS = 300


def compile_all(
    kernel: Kernel, specializations: Sequence[Specialization], target: str
) -> list[str | None]:
    """Compiles and assembles each; afterwards kernel._get finds them without work. Never raises for
    one that cannot be compiled.
    """
    if (
        len(specializations) > MAX_COMPILED_HERE
        and cache.disk() is not None
        and _importable(kernel)
    ):
        _in_processes(kernel, specializations, target)
    made: list[Compiled] = []
    errors: list[str | None] = []
    for s in specializations:
        try:
            made.append(kernel._get(s, target))
            errors.append(None)
        except Error as e:
            errors.append(str(e).splitlines()[0])
    if target != "cpu":
        from tkc.codegen.ptx.ptxas import find

        if find("ptxas"):
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                list(pool.map(_assembled, made))
    return errors


def _assembled(compiled) -> None:
    from tkc.runtime.launch import cubin

    if compiled.image is None:
        compiled.image = cubin(compiled)


def _importable(kernel) -> bool:
    module = sys.modules.get(kernel.__module__)
    return (
        kernel.__module__ != "__main__"
        and getattr(module, "__file__", None) is not None
        and _found(module, kernel.__qualname__) is kernel
    )


def _found(module, name: str):
    """The kernel of that name in a module, also behind an autotuner."""
    value = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return getattr(value, "kernel", value)


def _in_processes(kernel, specializations: Sequence[Specialization], target: str) -> None:
    """A worker's failure is not reported: what it did not make is made here, where the error can be
    raised.
    """
    count = max(1, min(os.cpu_count() or 1, len(specializations) // 2))
    plain = [(s.arguments, s.overlaps, s.options) for s in specializations]
    try:
        same = literal_eval(repr(plain)) == plain
    except (ValueError, SyntaxError):
        same = False
    if not same:
        return  # a constexpr that has no spelling
    jobs = [
        repr((sys.path, kernel.__module__, kernel.__qualname__, plain[i::count], target)).encode()
        for i in range(count)
    ]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tkc.runtime.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        for _ in jobs
    ]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(_finish, running, jobs))


def _finish(process: subprocess.Popen, job: bytes) -> None:
    try:
        process.communicate(job, timeout=WORKER_TIMEOUT_SECONDS)
    except (subprocess.TimeoutExpired, OSError):
        process.kill()
        process.wait()


def main() -> None:
    path, module, name, specializations, target = literal_eval(sys.stdin.buffer.read().decode())
    sys.path[:] = path
    kernel = _found(import_module(module), name)
    for plain in specializations:
        try:
            compiled = kernel._get(Specialization(*plain), target)
            if target != "cpu":
                _assembled(compiled)
        except Error:
            pass


if __name__ == "__main__":
    main()
