"""This machine for LLVM: its processor, and the linker of object files."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llvmlite.binding import LLJIT, ResourceTracker, TargetMachine

_names = itertools.count()


@cache
def host(cpu: str | None = None) -> tuple[ModuleType, TargetMachine, str, bool]:
    """llvmlite, a target machine for this processor (or a named one), the processor's name with its
    features, and whether it has AVX-512.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    if cpu is None:
        cpu, known = llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
        wide = bool(known.get("avx512f"))
        if wide:
            known["prefer-256-bit"] = False
        features = known.flatten()
    else:
        features, wide = "", False
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=2, jit=True, reloc="pic", codemodel="default"
    )
    return llvm, machine, f"{cpu} {features}", wide


@cache
def engine() -> LLJIT:
    """LLVM's linker for code of this process. JITLink gives an object file memory in one piece;
    LLVM's older linker places sections one by one, and aborts the process where they come to lie
    more than 2 GB apart, as they may beside the address space that CUDA reserves.
    """
    llvm, *_ = host()
    return llvm.create_lljit_compiler(use_jit_link=True)


def link(images: Sequence[bytes], names: Sequence[str]) -> ResourceTracker:
    """Object files linked with one another into this process: `result[name]` is the address of a
    symbol. What it returns must stay alive as long as the code.
    """
    llvm, *_ = host()
    library = llvm.JITLibraryBuilder().add_current_process()
    for image in images:
        library.add_object_img(image)
    for name in names:
        library.export_symbol(name)
    return library.link(engine(), f"tkc{next(_names)}")
