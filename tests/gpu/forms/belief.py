"""A belief: one small kernel, its arrays before, and what they must be after."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tkc.ir.interface import Interface, Parameter

BELIEFS: dict[str, Belief] = {}
Expected = np.ndarray | Callable[[np.ndarray], str | None] | None
TARGET, ISA = "sm_90a", "8.4"
NANOSECONDS = "%globaltimer"


@dataclass(frozen=True)
class Belief:
    """text: the PTX. arrays: what its pointer parameters point at. expected: of each array what it
    must hold afterwards, or a function that
    says what is wrong with it (None: anything).  confirms: the forms of opcodes.py whose meaning
    the result depends on.
    """

    name: str
    text: str
    confirms: tuple[str, ...]
    arrays: tuple[np.ndarray, ...]
    expected: tuple[Expected, ...]
    interface: Interface
    grid: int = 1

    def wrong(self, found: Sequence[np.ndarray]) -> str | None:
        """What the results say against the belief."""
        for i, (got, want) in enumerate(zip(found, self.expected, strict=False)):
            if want is None:
                continue
            if callable(want):
                if said := want(got):
                    return f"array {i}: {said}"
            elif not np.array_equal(as_bits(got), as_bits(want)):
                at = np.flatnonzero(as_bits(got) != as_bits(want))
                return (
                    f"array {i}: {len(at)} of {got.size} elements differ, the first at {at[0]}:"
                    f" expected {want.reshape(-1)[at[0]]}, got {got.reshape(-1)[at[0]]}"
                )
        return None

    def told(self, found: Sequence[np.ndarray]) -> str | None:
        """Of a control: how many threads counted something wrong (the last array of threads that is
        not compared).
        """
        if not self.name.startswith("control_"):
            return None
        wrong = next(
            f
            for f, e in zip(reversed(found), reversed(self.expected), strict=False)
            if e is None and f.size <= 1024
        )
        return f"{int(np.count_nonzero(wrong))} of {wrong.size} threads saw what was not there"


def as_bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).reshape(-1).view(f"u{x.dtype.itemsize}")


def belief(
    name: str,
    body: str,
    arrays: Sequence[np.ndarray],
    expected: Sequence[Expected],
    confirms: Sequence[str],
    threads: int = 32,
    blocks: int = 1,
    cluster: int = 1,
    shared: int = 0,
    maps: Sequence[tuple[int, Parameter]] = (),
    before: str = "",
) -> None:
    """Registers a belief.

    The body finds: %t thread, %lane, %warp, %block, %rank (in the cluster), %s shared memory
    (1024-byte aligned), %a0 … the arrays, %m0 … the tensor maps, and
    registers %r (32 bits), %d (64), %h (16), %f (32), %p (predicates) by the hundred.  `before`:
    directives of the entry.
    """
    parameters = [Parameter("pointer", "u64", i) for i in range(len(arrays))] + [
        Parameter(
            "map",
            "b8[128]",
            a,
            element=p.element,
            box=p.box,
            order=p.order,
            swizzle=p.swizzle,
            panelled=p.panelled,
        )
        for a, p in maps
    ]
    declared = [f".param .u64 a{i}" for i in range(len(arrays))] + [
        f".param .align 64 .b8 m{i}[128]" for i in range(len(maps))
    ]
    clustered = f".explicitcluster\n.reqnctapercluster {cluster}, 1, 1\n" if cluster > 1 else ""
    loads = [f"ld.param.u64 %a{i}, [a{i}];" for i in range(len(arrays))] + [
        f"mov.b64 %m{i}, m{i}; cvta.param.u64 %m{i}, %m{i};" for i in range(len(maps))
    ]
    text = f""".version {ISA}
.target {TARGET}
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry {name}({", ".join(declared)})
.reqntid {threads}, 1, 1
{clustered}{before}
{{
    .reg .b32 %t, %lane, %warp, %block, %rank, %s, %r<600>; .reg .b64 %a<8>, %m<8>, %d<100>;
    .reg .b16 %h<100>; .reg .f32 %f<300>; .reg .pred %p<100>;
    mov.u32 %t, %tid.x; and.b32 %lane, %t, 31; shr.u32 %warp, %t, 5;
    shfl.sync.idx.b32 %warp, %warp, 0, 31, -1; mov.u32 %block, %ctaid.x;
    mov.u32 %rank, %cluster_ctarank; mov.u32 %s, memory;
    {" ".join(loads)}
{body.strip(chr(10))}
END:
    ret;
}}
"""
    assert name not in BELIEFS and re.fullmatch(r"\w+", name), name
    BELIEFS[name] = Belief(
        name,
        text,
        tuple(confirms),
        tuple(np.ascontiguousarray(a) for a in arrays),
        tuple(expected),
        Interface(name, TARGET, threads, shared, (cluster, 1), False, tuple(parameters)),
        blocks // cluster,
    )


# ---- macros: text of PTX -------------------------------------------------------------------------
_count = 0


def fresh() -> int:
    global _count
    _count += 1
    return _count


def put(array: int, index: int | str, register: str, width: int = 32, when: str = "") -> str:
    """array[index] = register; the index a number or a 32-bit register."""
    if isinstance(index, int):
        return f"{when} st.global.b{width} [%a{array}+{index * width // 8}], {register};"
    return (
        f"{{ .reg .b64 %at; mad.wide.u32 %at, {index}, {width // 8}, %a{array}; {when}"
        f" st.global.b{width} [%at], {register}; }}"
    )


def take(register: str, array: int, index: int | str, width: int = 32) -> str:
    if isinstance(index, int):
        return f"ld.global.b{width} {register}, [%a{array}+{index * width // 8}];"
    return (
        f"{{ .reg .b64 %at; mad.wide.u32 %at, {index}, {width // 8}, %a{array}; ld.global.b{width}"
        f" {register}, [%at]; }}"
    )


def truth(array: int, index: int | str, predicate: str, when: str = "") -> str:
    return (
        f"{{ .reg .b32 %v; selp.b32 %v, 1, 0, {predicate}; {put(array, index, '%v', when=when)} }}"
    )


def pause(nanoseconds: int | str) -> str:
    """So long by the clock."""
    n = fresh()
    return f"""{{ .reg .b64 %from, %now; .reg .pred %go; mov.u64 %from, {NANOSECONDS};
    add.u64 %from, %from, {nanoseconds};
PAUSE{n}: mov.u64 %now, {NANOSECONDS}; setp.lt.u64 %go, %now, %from; @%go bra PAUSE{n}; }}"""


def wait(place: str, parity: int | str) -> str:
    """As the emitter waits."""
    n = fresh()
    return (
        f"{{ .reg .pred %there;\nWAIT{n}: mbarrier.try_wait.parity.shared::cta.b64 %there, {place},"
        f" {parity}, 0x989680; @!%there bra WAIT{n}; }}"
    )


def only(thread: int | str, *lines: str) -> str:
    """A branch that one thread takes."""
    n = fresh()
    return (
        f"{{ .reg .pred %other; setp.ne.u32 %other, %t, {thread}; @%other bra ONLY{n};\n"
        + "\n".join(lines)
        + f"\n}}\nONLY{n}:"
    )


def loop(register: str, count: int, *lines: str) -> str:
    n = fresh()
    return (
        f"mov.u32 {register}, 0;\nLOOP{n}:\n"
        + "\n".join(lines)
        + f"\n{{ .reg .pred %more; add.u32 {register}, {register}, 1; setp.lt.u32 %more,"
        f" {register}, {count}; @%more bra LOOP{n}; }}"
    )


def fill(
    words: int, threads: int, array: int | None = None, value: str = "0xAAAAAAAA", at: int = 0
) -> str:
    """Shared memory from byte `at` on becomes an array's words, or one value."""
    n = fresh()
    source = (
        f"mad.wide.u32 %from, %i, 4, %a{array}; ld.global.b32 %v, [%from];"
        if array is not None
        else f"mov.b32 %v, {value};"
    )
    return f"""{{ .reg .b32 %i, %v, %to; .reg .b64 %from; .reg .pred %more; mov.u32 %i, %t;
FILL{n}: setp.ge.u32 %more, %i, {words}; @%more bra FILLED{n}; {source} mad.lo.u32 %to, %i, 4, %s;
st.shared.b32 [%to+{at}], %v; add.u32 %i, %i, {threads}; bra FILL{n};
FILLED{n}: }}"""


def dump(words: int, threads: int, array: int, at: int = 0, first: int | str = 0) -> str:
    """An array's words, from number `first` on, become shared memory from byte `at` on."""
    n = fresh()
    return f"""{{ .reg .b32 %i, %j, %v, %from; .reg .b64 %to; .reg .pred %more; mov.u32 %i, %t;
DUMP{n}: setp.ge.u32 %more, %i, {words}; @%more bra DUMPED{n}; mad.lo.u32 %from, %i, 4, %s;
ld.shared.b32 %v, [%from+{at}]; add.u32 %j, %i, {first}; mad.wide.u32 %to, %j, 4, %a{array};
st.global.b32 [%to], %v;
add.u32 %i, %i, {threads}; bra DUMP{n};
DUMPED{n}: }}"""


# ---- on a GPU ------------------------------------------------------------------------------------
def run(b: Belief) -> list[np.ndarray]:
    """The arrays after the kernel ran. Raises DeviceError."""
    from tkc.runtime import driver
    from tkc.runtime.arrays import ArrayInfo, contiguous
    from tkc.runtime.launch import launch

    d, i = driver.api(), b.interface
    with driver.context(0):
        function = driver.load(assembled(b.text), i.entry, 0, i.shared_bytes)
        infos = []
        for a in b.arrays:
            address = int(driver.check(d.cuMemAlloc(max(a.nbytes, 1 << 12)), "allocating"))
            driver.check(d.cuMemcpyHtoD(address, a.ctypes.data, a.nbytes), "copying")
            infos.append(
                ArrayInfo(
                    address,
                    a.shape,
                    contiguous(a.shape),
                    a.dtype.name.replace("float8_e4m3fn", "float8_e4m3"),
                    0,
                )
            )
        launch(i, function, infos, (b.grid, 1, 1))
        driver.check(d.cuCtxSynchronize(), b.name)
        found = []
        for a, info in zip(b.arrays, infos, strict=False):
            found.append(np.empty_like(a))
            driver.check(
                d.cuMemcpyDtoH(found[-1].ctypes.data, info.pointer, a.nbytes), "copying back"
            )
            driver.check(d.cuMemFree(info.pointer), "freeing")
    return found


def assembled(text: str) -> bytes:
    """By ptxas, as launches do where it is installed, else by the driver."""
    from tkc.codegen.ptx import ptxas

    return ptxas.assemble(text, TARGET).cubin if ptxas.find("ptxas") else text.encode()
