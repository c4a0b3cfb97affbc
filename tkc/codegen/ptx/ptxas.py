"""NVIDIA's assembler and disassembler, where they are installed: finding them, running them,
reading their output.

    pip install nvidia-cuda-nvcc nvidia-cuda-nvdisasm
puts them where `find` looks: TKC_PTXAS, PATH, the wheels, then CUDA_HOME.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tkc.codegen.ptx.inline_text import inline_texts
from tkc.errors import CompileError, Location
from tkc.ir.target import TARGETS

MAX_SECONDS = 300  # of one run of a tool
# ptxas allocates its memory in small steps, and much of its processor time goes into page faults:
# glibc is told to grow the heap by 16 MB at a time, in huge pages where Linux gives them
TUNABLES = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=16777216"


@dataclass(frozen=True)
class Assembled:
    """What `ptxas -v` says of one kernel. notes: its C75xx remarks (serialised or repaired wgmma)
    and warnings.
    """

    cubin: bytes = field(repr=False)
    registers: int
    spill_stores: int  # bytes
    spill_loads: int
    stack: int
    static_shared: int
    barriers: int
    notes: tuple[str, ...]
    log: str

    @property
    def clean(self) -> bool:
        """No spill, no local memory, no remark on wgmma."""
        return not (
            self.spill_stores
            or self.spill_loads
            or self.stack
            or any("C75" in n or "C76" in n for n in self.notes)
        )


def find(tool: str) -> str | None:
    """The path of ptxas or nvdisasm, None where it is not installed."""
    given = os.environ.get(f"TKC_{tool.upper()}")
    if given:
        return shutil.which(given)
    return shutil.which(tool) or next(
        (str(p) for p in _places(tool) if os.access(p, os.X_OK)), None
    )


@cache
def _places(tool: str) -> tuple[Path, ...]:
    spec = importlib.util.find_spec("nvidia")
    found: list[Path] = []
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        # nvidia/cu13/bin, nvidia/cuda_nvcc/bin
        found += sorted(Path(folder).glob(f"*/bin/{tool}"), reverse=True)
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            found.append(Path(home) / "bin" / tool)
    return tuple(found)


def require(tool: str) -> str:
    """Raises CompileError that says how to install it."""
    path = find(tool)
    if path is None:
        raise CompileError(
            f"{tool} is not installed; pip install"
            f" {'nvidia-cuda-nvcc' if tool == 'ptxas' else 'nvidia-cuda-nvdisasm'}, or set"
            f" TKC_{tool.upper()} to its path"
        )
    return path


@cache
def version(path: str) -> str:
    """The release of the assembler at `path`, such as "13.5.37"."""
    out = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=MAX_SECONDS
    ).stdout
    m = re.search(r"V(\d+(?:\.\d+)+)", out)
    return m[1] if m else "unknown"


def assemble(ptx: str, target: str, *options: str) -> Assembled:
    """Assembles PTX text for a target, whose device ptxas does not know. Raises CompileError with
    ptxas's first complaint and where the text is kept.
    """
    ptxas = require("ptxas")
    architecture, _, _ = target.partition(":")
    with tempfile.TemporaryDirectory(prefix="tkc-") as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        try:
            done = subprocess.run(
                [ptxas, "-v", f"-arch={architecture}", *options, str(source), "-o", str(cubin)],
                capture_output=True,
                text=True,
                timeout=MAX_SECONDS,
                env={"GLIBC_TUNABLES": TUNABLES} | os.environ,  # the user's own come first
            )
        except subprocess.TimeoutExpired:
            raise CompileError(
                f"ptxas did not finish within {MAX_SECONDS} s; please report the kernel"
            ) from None
        log = (done.stderr + done.stdout).replace(str(source), "kernel.ptx")
        if done.returncode:
            raise _refusal(log, done.returncode, ptx)
        return parse(log, cubin.read_bytes())


def roomy(text: str, threads: int, blocks: int = 1) -> str:
    """PTX of a block of so many threads of which so many share a multiprocessor. Without that
    directive ptxas aims at several, and may then spill a few values rather than take more
    registers: a spill is a reason to assemble this instead, unless the user limited the registers,
    or roles divide them.
    """
    if ".maxnreg" in text or "setmaxnreg" in text:
        return text
    if ".minnctapersm" in text:
        return re.sub(r"\.minnctapersm \d+", f".minnctapersm {blocks}", text, count=1)
    head, directive, rest = text.partition(f".reqntid {threads}, 1, 1\n")
    return f"{head}{directive}.minnctapersm {blocks}\n{rest}"


def fewer_blocks(text: str, target: str, threads: int) -> list[int]:
    """How many blocks may share a multiprocessor instead of as many as a text says, the most first:
    those with more registers a thread than with one block more, and one.
    """
    most = blocks_of(text)
    registers = {n: most_of(n, target, threads) for n in range(1, most + 1)}
    return [n for n in range(most - 1, 1, -1) if registers[n] > registers[n + 1]] + [1]


def unlimited(text: str) -> str:
    """PTX of one role without the number of blocks that its plan has share a multiprocessor: where
    ptxas takes few enough registers anyway, being told may make it spill, or compute values again.
    """
    if "setmaxnreg" in text:
        return text
    return re.sub(r"\.minnctapersm \d+\n", "", text, count=1)


def computes_again(text: str) -> bool:
    """Whether ptxas, being told of blocks that share a multiprocessor, is known to compute values
    again: of two blocks with dots.
    """
    return blocks_of(text) == 2 and re.search(r"\bmma\.sync\b", text) is not None


def blocks_of(text: str) -> int:
    """How many blocks a text says share a multiprocessor."""
    said = re.search(r"\.minnctapersm (\d+)", text)
    return int(said[1]) if said else 1


def most_of(blocks: int, target: str, threads: int) -> int:
    """Registers of a thread where so many blocks of so many share a multiprocessor."""
    architecture, _, _ = target.partition(":")
    return TARGETS[architecture].at_entry(blocks * threads)


def _refusal(log: str, code: int, ptx: str) -> CompileError:
    """What ptxas said first: of a user's inline PTX at its line, else of the text of tkc."""
    complaints = (line for line in log.splitlines() if "error" in line or "fatal" in line)
    first = next(complaints, f"it stopped with code {code}")
    m, lines = re.search(r"line (\d+)", first), ptx.splitlines()
    at = ""
    if m and 0 < int(m[1]) <= len(lines):
        number = int(m[1]) - 1
        at = f"; the line is `{lines[number].strip()}`"
        if (place := _inline_text(lines, number)) is not None:
            said = first.partition(": ")[2].partition("; ")[2].partition(": ")[2] or first
            refused = f"ptxas refuses the text of tkc.inline_ptx: {said.strip()}{at}"
            return CompileError(refused, place)
    handle, kept = tempfile.mkstemp(prefix="tkc-refused-", suffix=".ptx")
    with os.fdopen(handle, "w") as f:
        f.write(ptx)
    return CompileError(
        f"ptxas refused code that tkc made, which is a bug of tkc: {first.strip()}{at}; the text is"
        f" in {kept}"
    )


def _inline_text(lines: list[str], number: int) -> Location | None:
    """Where the user's text of inline PTX begins that a line is of; None for other lines."""
    return next((place for text, place in inline_texts(lines) if number in text), None)


def parse(log: str, cubin: bytes = b"") -> Assembled:
    """Reads the log of `ptxas -v`; of several kernels, the largest of each number."""

    def number(pattern: str) -> int:
        return max((int(n) for n in re.findall(pattern, log)), default=0)

    notes = tuple(
        dict.fromkeys(
            line.strip() for line in log.splitlines() if re.search(r"\bC7[56]\d\d\b|warning", line)
        )
    )
    return Assembled(
        cubin,
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes spill loads"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"),
        number(r"used (\d+) barriers"),
        notes,
        log,
    )


def disassemble(cubin: bytes, *options: str) -> str:
    """The machine code of a cubin as text; options: more of nvdisasm's. Raises CompileError where
    nvdisasm is missing or refuses.
    """
    nvdisasm = require("nvdisasm")
    with tempfile.NamedTemporaryFile(prefix="tkc-", suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        done = subprocess.run(
            [nvdisasm, "-c", *options, f.name], capture_output=True, text=True, timeout=MAX_SECONDS
        )
    if done.returncode:
        raise CompileError(
            "nvdisasm refused the cubin:"
            f" {done.stderr.strip().splitlines()[0] if done.stderr.strip() else done.returncode}"
        )
    return done.stdout
