"""`triton.language.extra.cuda`: libdevice, and launches that depend on one another."""

from __future__ import annotations

from typing import NoReturn

from tkc.language.inline import inline_ptx
from tkc.language.operations import launch_dependents, wait_dependencies
from tkc.language.tracer import fail
from tkc.triton.language import types
from tkc.triton.language.extra import libdevice
from tkc.triton.language.values import tensor


def gdc_wait() -> None:
    """Waits until the launch before this one, which `launch_pdl=True` may overlap, has ended."""
    wait_dependencies()


def gdc_launch_dependents() -> None:
    """The next launch, if it has `launch_pdl=True`, may begin."""
    launch_dependents()


def globaltimer() -> tensor:
    """Nanoseconds of the device's clock."""
    found = inline_ptx("mov.u64 $0, %globaltimer;", result=types.int64.core)
    assert not isinstance(found, tuple)
    return tensor(found)


def smid() -> tensor:
    """The number of the multiprocessor that this program runs on."""
    found = inline_ptx("mov.u32 $0, %smid;", result=types.int32.core)
    assert not isinstance(found, tuple)
    return tensor(found)


def num_threads() -> NoReturn:
    """Refused: threads are the compiler's."""
    fail("tl.extra.cuda.num_threads: tkc's planner chooses threads; a program cannot ask for them")


def num_warps() -> NoReturn:
    """Refused: warps are the compiler's."""
    fail("tl.extra.cuda.num_warps: tkc's planner chooses warps; a program cannot ask for them")


__all__ = ["gdc_launch_dependents", "gdc_wait", "globaltimer", "libdevice", "smid"]
