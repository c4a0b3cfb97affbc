"""What the PTX means that we emit: a little machine that runs it, all threads of a block in lockstep, on NumPy, so that addresses, fragments and
registers are checked where there is no GPU.

It knows the instructions of kernels with one role: no mbarriers, tensor maps or wgmma. Copies land at once, and warps do not drift apart: races are for
level 4 to find.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import ml_dtypes
import numpy as np

from tkc.ir.fragments import mma_a, mma_accumulator, mma_b
from tkc.ir.interface import RECORD
from tkc.sim.errors import SimulationError

TYPES = {"b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16, "s16": np.int16, "b32": np.uint32, "u32": np.uint32, "s32": np.int32,
         "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f16": np.float16, "f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16, "tf32": np.float32,
         "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
HOLDS = {"%p": np.bool_, "%h": np.uint16, "%r": np.uint32, "%d": np.uint64}
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "neu": np.not_equal,
           "gtu": lambda a, b: ~(a <= b), "ltu": lambda a, b: ~(a >= b), "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "nan": lambda a, b: np.isnan(a) | np.isnan(b)}
UNKNOWN = ("mbarrier", "wgmma", "elect", "barrier.cluster", "mapa", "setmaxnreg", "cp.async.bulk", "cp.reduce", "prefetch.tensormap", "griddepcontrol", "fence.proxy", "fence.mbarrier_init")
TOGETHER = ("bar", "shfl", "vote", "ldmatrix", "stmatrix", "mma", "fence")                # what all threads of a warp must reach
STEPS = 400_000


class Fault(SimulationError):
    """The program did what the hardware does not do, or what ours never do: a misaligned access, one outside memory, a register that nobody wrote."""


class Unknown(SimulationError):
    """An instruction, or a parameter, that this machine does not know."""


def require(holds: bool, message: str) -> None:
    if not holds: raise Fault(message)


class Trapped(Exception):
    """A check of TKC_DEBUG: its site, the thread, and the sentence with its numbers."""

    def __init__(self, site, thread: int, numbers: list[int]):
        self.site, self.thread, self.said = site, thread, site.text.format(*numbers)
        super().__init__(self.said)


@dataclass
class Memory:
    """Global memory: arrays at addresses of their own."""
    bytes: np.ndarray = field(default_factory=lambda: np.zeros(1 << 24, np.uint8))
    used: int = 4096

    def put(self, array: np.ndarray) -> int:
        """Copies all bytes from an array's first to its last; the address of its first element, as aligned as the array's own is."""
        low, high, host = *(np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)), array.ctypes.data
        at = -(-self.used // 256) * 256 + 256 + low % 256
        self.used = at + high - low + 256
        if self.used > self.bytes.size: self.bytes = np.concatenate([self.bytes, np.zeros(self.used, np.uint8)])
        if array.size: self.bytes[at:at + high - low] = np.ndarray(high - low, np.uint8, _base(array), low - _base(array).ctypes.data)
        return at + (host - low if array.size else 0)

    def get(self, at: int, like: np.ndarray) -> np.ndarray:
        """An array of the same strides, where it lies here."""
        return np.ndarray(like.shape, like.dtype, self.bytes, at, like.strides) if like.size else like


def _base(array: np.ndarray) -> np.ndarray:
    """The bytes that an array lies in."""
    while isinstance(array.base, np.ndarray): array = array.base
    return array


def run(program, arguments: Sequence, grid: Sequence[int] = (1,)) -> list[np.ndarray]:
    """Runs a PtxProgram; arguments as the kernel's (arrays of any strides, numbers), which stay as they are. Gives the arrays afterwards.

    Raises Fault and Trapped, and Unknown where the program is beyond this machine.
    """
    memory, grid = Memory(), (*grid, 1, 1)[:3]
    places = [memory.put(a) if isinstance(a, np.ndarray) else None for a in arguments]
    parameters = []
    for p in program.interface.parameters:
        a = arguments[p.argument] if p.argument >= 0 else None
        known = {"pointer": lambda: places[p.argument], "shape": lambda: a.shape[p.axis], "stride": lambda: a.strides[p.axis] // a.itemsize,
                 "scalar": lambda: a, "grid": lambda: grid[p.axis], "trap": lambda: 0}
        if p.kind not in known: raise Unknown(f"a parameter of kind {p.kind}")
        parameters.append(known[p.kind]())
    symbols = {name: memory.put(table) for name, table in tables(program.text).items()}
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]): Machine(program, memory, parameters, (x, y, z), grid, symbols).run()
    return [np.array(memory.get(at, a)) for at, a in zip(places, arguments) if at is not None]


def tables(text: str) -> dict[str, np.ndarray]:
    """The arrays that a program declares with their contents."""
    return {name: np.array([int(n) for n in numbers.split(",")], np.int64).astype(TYPES[kind])
            for kind, name, numbers in re.findall(r"^\.global (?:\.align \d+ )?\.(\w+) (\w+)\[\d*\] = \{([^}]*)\};", text, re.M)}


@lru_cache(64)
def decoded(text: str) -> tuple[list, dict[str, int]]:
    """(line, negated, guard, name, operands) of each instruction of a program's entry, and where its labels stand."""
    lines = [l.strip() for l in text[text.index(".entry"):].split("{", 1)[1].splitlines()]
    lines = [l for l in lines if l and not l.startswith((".reg", "//", ".loc", "}"))]
    code = []
    for line in lines:
        if line.endswith(":"): code.append((line, None, None, "", ())); continue
        m = re.fullmatch(r"(?:@(!?)(%p\d+) )?([\w.:]+)(?: (.*))?;", line)
        if m is None: raise Unknown(line)
        negated, guard, name, rest = m.groups()
        found = re.findall(r"\{([^}]*)\}|(\[[^\]]*\])|([^,\s]+)", rest or "")
        code.append((line, bool(negated), guard, name, [[p.strip() for p in braced.split(",")] if braced else address or plain for braced, address, plain in found]))
    return code, {l[:-1]: i for i, l in enumerate(lines) if l.endswith(":")}


class Machine:
    """The threads of one block."""

    def __init__(self, program, memory: Memory, parameters: list, block, grid, symbols: dict[str, int]):
        self.n, self.memory, self.parameters = program.interface.threads, memory.bytes, parameters
        self.shared = np.zeros(max(program.interface.shared_bytes, 16) + 1024, np.uint8)
        self.limit = program.interface.shared_bytes
        self.sites = program.interface.sites
        self.registers: dict[str, np.ndarray] = {}
        self.special = symbols | {"shared": 0, "%tid.x": np.arange(self.n), **{f"%ctaid.{c}": v for c, v in zip("xyz", block)}, **{f"%nctaid.{c}": v for c, v in zip("xyz", grid)}}
        self.code, self.labels = decoded(program.text)

    def run(self) -> None:
        """Threads have their own program counters; the ones furthest back go first, so that they meet again."""
        counters, steps = np.zeros(self.n, int), 0
        while (at := counters.min()) < len(self.code):
            steps += 1
            require(steps < STEPS, f"no end within {STEPS} steps")
            (line, negated, guard, name, operands), active = self.code[at], counters == at
            counters[active] += 1
            if not name: continue
            mask = active if guard is None else active & (self.predicate(guard) ^ negated)
            if name == "ret": return
            require(name != "trap" or not mask.any(), "a trap")
            if name == "bra" and operands[0] == "$trap" and mask.any(): raise self.trapped(int(np.flatnonzero(mask)[0]))
            if name.startswith("bra"):
                require(".uni" not in name or not mask.any() or (mask == active).all(), f"a branch that threads take differently: {line}")
                counters[mask] = self.labels[operands[0]]
                continue
            require(active.all() or not name.startswith(TOGETHER), f"not all threads reach {line}")
            if name.startswith(UNKNOWN): raise Unknown(line)
            with np.errstate(all="ignore"): self.execute(name, operands, mask)

    def trapped(self, thread: int) -> Trapped:
        """What the record would say, in place of the code that writes it."""
        text = "\n".join(line for line, *_ in self.code[self.labels["$trap"]:])             # a kernel's own stores look alike
        site, *numbers = (re.search(rf"st\.global\.b\d+ \[%d\d+\+{at}\], (%\w+);", text)[1] for at in (RECORD["site"], RECORD["numbers"], RECORD["numbers"] + 8))
        given = [int(self.registers[r][thread].astype(np.int64)) if r in self.registers else 0 for r in numbers]
        return Trapped(self.sites[int(self.registers[site][thread])], thread, given)

    # ---- operands
    def read(self, text: str, kind: str) -> np.ndarray:
        t = TYPES[kind]
        if text[:2] in HOLDS and text in self.registers:
            raw = self.registers[text]
            size = np.dtype(t).itemsize
            return raw.view(t) if raw.dtype.itemsize == size else raw.astype({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]).view(t)
        require(text[:2] not in HOLDS or text in self.special, f"{text} is read before it is written")
        if text in self.special: return np.broadcast_to(np.asarray(self.special[text]), (self.n,)).astype(t)
        if text.startswith("0f"): return np.full(self.n, int(text[2:], 16), np.uint32).view(t)
        if text.startswith("0d"): return np.full(self.n, int(text[2:], 16), np.uint64).view(t)
        bits = np.dtype(t).itemsize * 8
        return np.full(self.n, int(text) & (1 << bits) - 1, f"u{bits // 8}").view(t)

    def predicate(self, text: str) -> np.ndarray:
        require(text in self.registers, f"{text} is read before it is written")
        return self.registers[text]

    def write(self, name: str, value: np.ndarray, mask: np.ndarray) -> None:
        value = np.broadcast_to(np.asarray(value), (self.n,))
        holds = HOLDS[name[:2]]
        if holds is not np.bool_:
            if value.dtype.kind == "i": value = value.astype(np.int64).astype(np.uint64)
            elif value.dtype.kind != "u": value = value.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[value.dtype.itemsize])
        value = value.astype(holds)
        old = self.registers.get(name, np.zeros(self.n, holds))
        self.registers[name] = np.where(mask, value, old)

    def address(self, text: str) -> np.ndarray:
        base, _, offset = text[1:-1].partition("+")
        return self.read(base, "s64" if base.startswith("%d") else "u32").astype(np.int64) + int(offset or 0)

    def space(self, name: str) -> np.ndarray: return self.shared if ".shared" in name else self.memory

    def check(self, space, at, size, mask) -> None:
        require((at[mask] % size == 0).all(), f"misaligned access of {size} bytes")
        end = self.limit if space is self.shared else len(space)
        require((at[mask] >= (0 if space is self.shared else 4096)).all() and (at[mask] + size <= end).all(), "an access outside memory")

    # ---- instructions
    def execute(self, name: str, ops: list, mask: np.ndarray) -> None:
        parts = name.split(".")
        head, kind = parts[0], parts[-1]
        if name.startswith(("ld.param",)):
            number = self.parameters[int(ops[1][2:-1])]
            t = TYPES[kind]
            value = np.array(number).astype(t) if not isinstance(number, (np.integer, int)) or t().dtype.kind == "f" else np.array(int(number) & (1 << np.dtype(t).itemsize * 8) - 1, f"u{np.dtype(t).itemsize}")
            return self.write(ops[0], np.full(self.n, value), mask)
        if head in ("ld", "st"): return self.move_memory(head, name, parts, ops, mask)
        if head == "mov": return self.mov(kind, ops, mask)
        if name.startswith("bar.red"):                             # all threads of the block, of which those that wait elsewhere are none
            everyone = {"and": np.all, "or": np.any}[parts[2]](self.predicate(ops[2])[mask])
            return self.write(ops[0], np.full(self.n, everyone), mask)
        if name.startswith(("bar", "fence", "membar", "cp.async.commit")): return None
        if name.startswith("cp.async.wait"): return None
        if name.startswith("cp.async"): return self.cp_async(ops, mask)
        if head in ("ldmatrix", "stmatrix"): return self.matrix(head, parts, ops)
        if head == "mma": return self.mma(parts, ops)
        if head == "shfl": return self.shuffle(parts, ops, mask)
        if head in ("atom", "red"): return self.atomic(head, parts, ops, mask)
        if head == "setp":
            found = COMPARE[parts[1]](self.read(ops[1], kind), self.read(ops[2], kind))
            if "and" in parts: found = found & self.predicate(ops[3])
            return self.write(ops[0], found, mask)
        if head == "vote":
            together = {"all": np.all, "any": np.any}[parts[2]](self.predicate(ops[1]).reshape(-1, 32), axis=1)
            return self.write(ops[0], np.repeat(together, 32), mask)
        if kind == "pred":
            a = self.predicate(ops[1])
            b = self.predicate(ops[2]) if len(ops) > 2 else None
            return self.write(ops[0], {"and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b, "not": lambda: ~a}[head](), mask)
        if head == "selp": return self.write(ops[0], np.where(self.predicate(ops[3]), self.read(ops[1], kind), self.read(ops[2], kind)), mask)
        if head == "cvt": return self.cvt(parts, ops, mask)
        if head == "prmt":
            both = self.read(ops[1], "u32").astype(np.uint64) | self.read(ops[2], "u32").astype(np.uint64) << np.uint64(32)
            selector, out = self.read(ops[3], "u32").astype(np.uint64), np.zeros(self.n, np.uint64)
            for i in range(4):
                nibble = selector >> np.uint64(4 * i) & np.uint64(15)
                byte = both >> (nibble & np.uint64(7)) * np.uint64(8) & np.uint64(255)
                byte = np.where(nibble & np.uint64(8), np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0)), byte)
                out |= byte << np.uint64(8 * i)
            return self.write(ops[0], out.astype(np.uint32), mask)
        if head in ("shl", "shr"):
            a, by, bits = self.read(ops[1], kind), self.read(ops[2], "u32").astype(np.int64), np.dtype(TYPES[kind]).itemsize * 8
            found = np.array([int(x) << int(s) if head == "shl" else int(x) >> int(s) for x, s in zip(a.astype(object), np.minimum(by, bits))], object)
            return self.write(ops[0], np.array([int(v) & (1 << bits) - 1 for v in found], np.uint64), mask)
        if head == "bfe":
            x, shift, width = (self.read(o, "u32") for o in ops[1:])
            return self.write(ops[0], x >> shift & (np.uint32(1) << width) - np.uint32(1), mask)
        if head == "bfi":
            x, into, shift, width = (self.read(o, "u32") for o in ops[1:])
            hole = (np.uint32(1) << width) - np.uint32(1) << shift
            return self.write(ops[0], into & ~hole | x << shift & hole, mask)
        if head in ("popc", "clz"):
            a, bits = self.read(ops[1], kind), np.dtype(TYPES[kind]).itemsize * 8
            return self.write(ops[0], np.array([bin(int(x)).count("1") if head == "popc" else bits - int(x).bit_length() for x in a], np.uint32), mask)
        if "wide" in parts:
            wide = f"{kind[0]}{2 * int(kind[1:])}"
            product = self.read(ops[1], kind).astype(TYPES[wide]) * self.read(ops[2], kind).astype(TYPES[wide])
            return self.write(ops[0], product + self.read(ops[3], wide) if len(ops) > 3 else product, mask)
        if head == "shf":
            low, high, by = self.read(ops[1], "u32").astype(np.uint64), self.read(ops[2], "u32").astype(np.uint64), self.read(ops[3], "u32").astype(np.uint64)
            by, both = by & np.uint64(31) if "wrap" in parts else np.minimum(by, np.uint64(32)), high << np.uint64(32) | low
            return self.write(ops[0], (both << by >> np.uint64(32) if parts[1] == "l" else both >> by).astype(np.uint32), mask)
        if "hi" in parts:
            a, b = (self.read(o, kind).astype(object) for o in ops[1:3])
            bits = np.dtype(TYPES[kind]).itemsize * 8
            return self.write(ops[0], np.array([(int(x) * int(y) >> bits) & (1 << bits) - 1 for x, y in zip(a, b)], np.uint64), mask)
        x = [self.read(o, kind) for o in ops[1:]]
        divide = (lambda: x[0] / x[1]) if kind[0] == "f" else (lambda: np.array([0 if b == 0 else abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(*x)], object).astype(np.uint64 if kind[0] == "u" else np.int64).astype(x[0].dtype))
        wide = (lambda v: v.astype(np.float64)) if kind == "f32" else (lambda v: v)
        rule = {"add": lambda: x[0] + x[1], "sub": lambda: x[0] - x[1], "mul": lambda: x[0] * x[1], "mad": lambda: x[0] * x[1] + x[2], "and": lambda: x[0] & x[1], "or": lambda: x[0] | x[1],
                "xor": lambda: x[0] ^ x[1], "not": lambda: ~x[0], "neg": lambda: -x[0], "abs": lambda: np.abs(x[0]), "copysign": lambda: np.copysign(x[1], x[0]), "min": lambda: np.minimum(x[0], x[1]), "max": lambda: np.maximum(x[0], x[1]),
                "div": divide, "rem": lambda: x[0] - divide() * x[1], "ex2": lambda: np.exp2(wide(x[0])), "lg2": lambda: np.log2(wide(x[0])), "rcp": lambda: 1 / x[0], "sqrt": lambda: np.sqrt(x[0]),
                "rsqrt": lambda: 1 / np.sqrt(wide(x[0])), "tanh": lambda: np.tanh(wide(x[0])), "sin": lambda: np.sin(wide(x[0])), "cos": lambda: np.cos(wide(x[0]))}
        if head == "fma":
            wider = wide if kind == "f32" else lambda v: v.astype(np.longdouble)                 # of float64 as near to one rounding as NumPy has it
            found = wider(x[0]) * wider(x[1]) + wider(x[2])
            if "rm" in parts:
                rounded = found.astype(np.float32)
                found = np.where(rounded > found, np.nextafter(rounded, np.float32(-np.inf)), rounded)
        else:
            if head not in rule: raise Unknown(name)
            found = rule[head]()
        self.write(ops[0], np.asarray(found).astype(TYPES[kind]), mask)

    def mov(self, kind, ops, mask) -> None:
        if isinstance(ops[0], list):
            raw, bits = self.read(ops[1], f"u{kind[1:]}"), int(kind[1:]) // len(ops[0])
            for i, r in enumerate(ops[0]): self.write(r, raw >> raw.dtype.type(i * bits) & raw.dtype.type((1 << bits) - 1), mask)
        elif isinstance(ops[1], list):
            bits = int(kind[1:]) // len(ops[1])
            self.write(ops[0], sum(self.read(r, f"u{bits}").astype(np.uint64) << np.uint64(i * bits) for i, r in enumerate(ops[1])), mask)
        else: self.write(ops[0], self.read(ops[1], f"u{kind[1:]}"), mask)

    def cvt(self, parts, ops, mask) -> None:
        target, source = parts[-2:]
        if target in ("bf16x2", "f16x2", "e4m3x2", "e5m2x2") and source == "f32":
            t = TYPES[target[:-2]]
            halves = [self.read(o, "f32") for o in ops[1:]]
            if target[0] == "e": halves = [np.clip(h, -float(ml_dtypes.finfo(t).max), float(ml_dtypes.finfo(t).max)) for h in halves]
            width = np.dtype(t).itemsize * 8
            high, low = (h.astype(t).view(f"u{width // 8}").astype(np.uint32) for h in halves)
            return self.write(ops[0], high << np.uint32(width) | low, mask)
        if target == "f16x2":
            raw = self.read(ops[1], "u16")
            low, high = ((raw >> s & 255).astype(np.uint8).view(TYPES[source[:-2]]).astype(np.float16).view(np.uint16).astype(np.uint32) for s in (0, 8))
            return self.write(ops[0], high << np.uint32(16) | low, mask)
        x, t = self.read(ops[1], source), TYPES[target]
        if target == "tf32": return self.write(ops[0], (x.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)), mask)
        if source[0] in "fb" and target[0] in "us":
            whole = np.nan_to_num({"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}[parts[1]](x.astype(np.float64)), nan=0.0, posinf=1e30, neginf=-1e30)
            info = np.iinfo(t)
            return self.write(ops[0], np.array([max(info.min, min(info.max, int(v))) for v in whole], object).astype(t), mask)
        if source == target and source[0] == "f": return self.write(ops[0], {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}[parts[1]](x), mask)
        self.write(ops[0], x.astype(t), mask)

    def move_memory(self, head, name, parts, ops, mask) -> None:
        size, space = int(parts[-1][1:]) // 8, self.space(name)
        registers, place = (ops[0], ops[1]) if head == "ld" else (ops[1], ops[0])
        registers = registers if isinstance(registers, list) else [registers]
        at = self.address(place)
        self.check(space, at, size * len(registers), mask)
        for i, r in enumerate(registers):
            index = np.where(mask, at + i * size, 0)[:, None] + np.arange(size)
            if head == "ld": self.write(r, space[index].view(f"u{size}")[:, 0], mask)
            else: space[index[mask]] = np.ascontiguousarray(self.read(r, f"u{8 * size}"))[mask].view(np.uint8).reshape(-1, size)

    def cp_async(self, ops, mask) -> None:
        target, source, size = self.address(ops[0]), self.address(ops[1]), int(ops[2])
        read = self.read(ops[3], "u32") if len(ops) > 3 else np.full(self.n, size)
        self.check(self.shared, target, size, mask)
        self.check(self.memory, source, size, mask & (read > 0))
        for i in np.flatnonzero(mask):
            self.shared[target[i]:target[i] + size] = 0
            if read[i]: self.shared[target[i]:target[i] + read[i]] = self.memory[source[i]:source[i] + read[i]]

    def shuffle(self, parts, ops, mask) -> None:
        value, lane, warp = self.read(ops[1], "u32"), np.arange(self.n) % 32, np.arange(self.n) // 32 * 32
        which = self.read(ops[2], "u32").astype(np.int64)
        source = lane ^ which if parts[2] == "bfly" else which & 31
        self.write(ops[0], value[warp + source], mask)

    def matrix(self, head, parts, ops) -> None:
        """Matrix i of a warp: row r at the address of lane 8 i + r; lane l has word l % 4 of row l / 4 (transposed: of column l / 4)."""
        registers, place = (ops[0], ops[1]) if head == "ldmatrix" else (ops[1], ops[0])
        at, trans = self.address(place), "trans" in parts
        for warp in range(0, self.n, 32):
            for i, r in enumerate(registers):
                rows = at[warp + 8 * i:warp + 8 * i + 8]
                self.check(self.shared, rows, 16, np.ones(8, bool))
                index = rows[:, None] + np.arange(16)
                if head == "ldmatrix":
                    block = self.shared[index].view(np.uint16)
                    words = (block.T if trans else block).copy().view(np.uint32).ravel()
                    self.write(r, np.concatenate([np.zeros(warp, np.uint32), words, np.zeros(self.n - warp - 32, np.uint32)]), np.arange(self.n) // 32 == warp // 32)
                else:
                    block = self.read(r, "u32")[warp:warp + 32].reshape(8, 4).copy().view(np.uint16)
                    self.shared[index] = (block.T if trans else block).copy().view(np.uint8)

    def mma(self, parts, ops) -> None:
        out, ta, tb, tc = parts[-4:]
        k = int(parts[3].partition("k")[2])
        a, b, c = (self.fragment(o, t, layout) for o, t, layout in ((ops[1], ta, mma_a(16, k, bits=256 // k)), (ops[2], tb, mma_b(k, 8, bits=256 // k)), (ops[3], tc, mma_accumulator(16, 8))))
        wide = np.int64 if out == "s32" else np.float64
        d = (np.einsum("wmk,wkn->wmn", a.astype(wide), b.astype(wide)) + c.astype(wide)).astype(TYPES[out])
        table = mma_accumulator(16, 8).table()[0]
        lanes = d[:, table[..., 0], table[..., 1]].reshape(self.n, -1)
        words = lanes.copy().view(np.uint32)
        for i, r in enumerate(ops[0]): self.write(r, words[:, i], np.ones(self.n, bool))

    def fragment(self, registers, kind, layout) -> np.ndarray:
        words = np.stack([self.read(r, "u32") for r in registers], 1)
        elements, table = words.view(TYPES[kind]).reshape(self.n // 32, 32, -1), layout.table()[0]
        matrix = np.zeros((self.n // 32, *layout.shape), elements.dtype)
        matrix[:, table[..., 0], table[..., 1]] = elements
        return matrix

    def atomic(self, head, parts, ops, mask) -> None:
        kind = parts[-1]
        operation = next(p for p in parts if p in ("add", "min", "max", "and", "or", "xor", "exch", "cas"))
        into, place, *values = ops if head == "atom" else (None, *ops)
        at, size, t, space = self.address(place), np.dtype(TYPES[kind]).itemsize, TYPES[kind], self.shared if "shared" in parts else self.memory
        self.check(space, at, size, mask)
        values, old = [self.read(v, kind) for v in values], np.zeros(self.n, t)
        for i in np.flatnonzero(mask):
            cell = space[at[i]:at[i] + size].view(t)
            old[i], v = cell[0], values[0][i]
            cell[0] = {"add": lambda: cell[0] + v, "min": lambda: min(cell[0], v), "max": lambda: max(cell[0], v), "and": lambda: cell[0] & v, "or": lambda: cell[0] | v, "xor": lambda: cell[0] ^ v,
                       "exch": lambda: v, "cas": lambda: values[1][i] if cell[0] == v else cell[0]}[operation]()
        if into: self.write(into, old, mask)
