"""The threads of a cluster, and a launch: clusters that take turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from math import prod

import ml_dtypes
import numpy as np

from tkc.ir.interface import RECORD
from tkc.sim.errors import SimulationError
from tkc.sim.ptx.text import Instruction, Program, Unknown, parse

TYPES = {
    "b8": np.uint8,
    "u8": np.uint8,
    "s8": np.int8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s16": np.int16,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}
SIZE = {kind: np.dtype(t).itemsize for kind, t in TYPES.items()}
# what all threads of a warp must reach
TOGETHER = (
    "bar.",
    "shfl",
    "vote",
    "ldmatrix",
    "stmatrix",
    "mma",
    "wgmma",
    "elect",
    "setmaxnreg",
    "barrier.cluster",
)
# of a cluster in all, in a turn; times that a branch is taken back before others go first
STEPS, TURN, SPINS = (
    1_000_000,
    20_000,
    4,
)
NEVER = np.iinfo(np.int64).max
WARP, GROUP = 32, 128
RULES: dict[str, Callable] = {}


class Fault(SimulationError):
    """The program did what the hardware does not do, or what ours never do: a misaligned access,
    one outside memory, a register that nobody wrote, a wait without end.
    """


class Trapped(Exception):
    """A check of TKC_DEBUG: its site, the thread, and the sentence with its numbers."""

    def __init__(self, site, thread: int, numbers: list[int]):
        self.site, self.thread, self.said = site, thread, site.text.format(*numbers)
        super().__init__(self.said)


def require(holds: bool, message: str) -> None:
    if not holds:
        raise Fault(message)


def shortened(line: str) -> str:
    return line if len(line) <= 120 else f"{line[:80]} … {line[-36:]}"


def rule(*names: str) -> Callable:
    """Registers what the instructions of these names (the first words of their opcodes) do:
    rule(machine, instruction, threads that do it). A rule may give back threads that stay where
    they are.
    """

    def register(fn: Callable) -> Callable:
        for name in names:
            RULES[name] = fn
        return fn

    return register


def rule_of(name: str) -> Callable:
    for n in range(name.count(".") + 1, 0, -1):
        if found := RULES.get(".".join(name.split(".")[:n])):
            return found
    raise Unknown(f"the instruction {name}")


@lru_cache(64)
def decoded(text: str) -> Program:
    """A text with a rule at each instruction."""
    for family in ("memory", "arithmetic", "warps", "barriers", "tensor", "wgmma"):
        import_module(f"tkc.sim.ptx.{family}")
    program = parse(text)
    for i in program.code:
        i.rule = rule_of(i.name)
    return program


class Machine:
    """The threads of one cluster. front: where each goes on, NEVER while it waits (at `counters`)
    or after its end.
    """

    def __init__(self, launch, cluster: tuple[int, int, int]):
        from tkc.sim.ptx.memory import Shared

        interface, self.launch = launch.interface, launch
        self.code, self.program = launch.program.code, launch.program
        self.each, (across, down) = interface.threads, interface.cluster
        self.blocks = across * down
        self.n = self.each * self.blocks
        self.threads = np.arange(self.n)
        self.rank, self.lane = self.threads // self.each, self.threads % WARP
        self.front, self.counters = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        self.done, self.yielded = np.zeros(self.n, bool), np.zeros(self.n, bool)
        self.registers: dict[str, np.ndarray] = {}
        self.written: dict[
            str, np.ndarray
        ] = {}  # of registers of dots: the step of each thread's last write
        self.shared = Shared(self.blocks, interface.shared_bytes)
        self.landing: list[Callable[[], None]] = []  # copies that have not landed
        self.ended: list[Callable[[np.ndarray], None]] = []  # what looks at threads that end
        self.state: dict[str, object] = {}  # of the families
        self.steps, self.branch = 0, (0, 0)
        self.drift = (np.zeros(self.n, bool), 0)  # who goes on alone, for so many steps
        self.rng = np.random.default_rng((launch.seed or 0, *cluster))
        x, y = self.rank % across, self.rank // across
        grid = launch.physical
        self.special = launch.symbols | {
            self.program.shared: self.shared.start(self.rank),
            "%tid.x": self.threads % self.each,
            "%tid.y": 0,
            "%tid.z": 0,
            "%laneid": self.lane,
            "%warpid": self.threads % self.each // WARP,
            "%cluster_ctarank": self.rank,
            "%ctaid.x": cluster[0] * across + x,
            "%ctaid.y": cluster[1] * down + y,
            "%ctaid.z": cluster[2],
            **{f"%nctaid.{c}": v for c, v in zip("xyz", grid, strict=False)},
            "%ntid.x": self.each,
            **{f"%clusterid.{c}": v for c, v in zip("xyz", cluster, strict=False)},
            **{
                f"%nclusterid.{c}": v
                for c, v in zip("xyz", (grid[0] // across, grid[1] // down, grid[2]), strict=False)
            },
        }

    # ---- turns
    def turn(self) -> bool:
        """Goes on until nothing can, or for long enough; whether anything did."""
        self._again()
        began, end = self.steps, self.steps + TURN
        while self.steps < end:
            if self.step():
                continue
            landed = self.land()
            spun = self._again()
            if not landed:
                break
            if spun and not self.landing:
                break
        return self.steps > began

    def _again(self) -> bool:
        """Lets those go on who left others the turn."""
        if not self.yielded.any():
            return False
        self.front[self.yielded] = self.counters[self.yielded]
        self.yielded[:] = False
        return True

    def land(self) -> bool:
        if not self.landing:
            return False
        self.landing.pop(
            int(self.rng.integers(len(self.landing))) if self.launch.seed is not None else 0
        )()
        return True

    def step(self) -> bool:
        """The next instruction of those who stand furthest back."""
        front = self.front
        at = int(front.min())
        if at == NEVER:
            return False
        active = front == at
        if self.launch.seed is not None:
            at, active = self._drift(at, active)
        self.steps += 1
        require(self.steps < STEPS, f"no end within {STEPS} steps")
        require(at < len(self.code), "a thread runs past the end")
        i = self.code[at]
        try:
            if i.name.startswith(TOGETHER):
                active = self._gather(active, at, GROUP if i.name.startswith("wgmma") else WARP)
                if active is None:
                    return True
            np.copyto(front, at + 1, where=active)
            np.copyto(self.counters, at, where=active)
            mask = active if i.guard is None else active & (self.predicate(i.guard) ^ i.negated)
            if self.state.get("flying"):
                self._untouched(i, mask)
            if i.rule is branch:
                branch(self, i, mask, active, at)
            else:
                stay = i.rule(self, i, mask)
                if stay is not None:
                    self.wait(stay, at)
        except Fault as fault:
            raise Fault(f"{fault.message}: {shortened(i.line)}") from None
        return True

    def _drift(self, at: int, active: np.ndarray) -> tuple[int, np.ndarray]:
        """A copy lands now and then; for a while a warp goes on alone, or a block is held back."""
        if self.rng.random() < 0.02:
            self.land()
        ahead, steps = self.drift
        if not steps and self.rng.random() < 0.04:
            chosen = self.rng.random() < 0.5
            ahead = (
                self.threads // WARP == self.rng.integers(self.n // WARP)
                if chosen
                else self.rank != self.rng.integers(self.blocks)
            )
            steps = int(self.rng.geometric(1 / 40 if chosen else 1 / 200))
        first = int(np.where(ahead, self.front, NEVER).min()) if steps else NEVER
        if first == NEVER:
            self.drift = (ahead, 0)
            return at, active
        self.drift = (ahead, steps - 1)
        return first, ahead & (self.front == first)

    def _gather(self, active: np.ndarray, at: int, size: int) -> np.ndarray | None:
        """The warps (or warpgroups) of which all threads are here; the threads of others wait for
        theirs.
        """
        here = active.reshape(-1, size)
        if (here.all(1) == here.any(1)).all():
            return active
        parked = self.state.setdefault("parked", np.zeros(self.n, bool))
        here = (active | parked & (self.counters == at) & (self.front == NEVER)).reshape(-1, size)
        whole = (
            np.repeat((here | self.done.reshape(-1, size)).all(1) & here.any(1), size) & ~self.done
        )
        rest = active & ~whole
        self.wait(rest, at)
        parked |= rest
        parked &= ~whole
        return whole if whole.any() else None

    def _untouched(self, i: Instruction, mask: np.ndarray) -> None:
        """Registers that a dot in flight fills or reads are nobody else's."""
        if i.name.startswith("wgmma.mma_async"):
            return
        flying: dict[str, np.ndarray] = self.state["flying"]
        for r in i.registers & flying.keys():
            require(
                not (flying[r] & mask).any(),
                f"{r} belongs to an asynchronous dot that nobody has waited for",
            )

    def wait(self, mask: np.ndarray, at: int | None = None) -> None:
        """These threads stop, at an instruction that they try again (None: at the current one)."""
        np.copyto(self.counters, self.front if at is None else at, where=mask)
        np.copyto(self.front, NEVER, where=mask)

    def wake(self, mask: np.ndarray, on: int = 0) -> None:
        """Those who wait go on: at the same instruction, or `on` further."""
        mask = mask & ~self.done
        np.copyto(self.front, self.counters + on, where=mask)

    def exit(self, mask: np.ndarray) -> None:
        self.front[mask] = NEVER
        self.done |= mask
        for look in self.ended:
            look(mask)
        parked = self.state.get("parked")
        if parked is not None and parked.any():
            self.wake(parked.copy())
            parked[:] = False

    def stuck(self) -> str:
        """Who waits at what."""
        found = []
        for at in sorted(set(self.counters[~self.done].tolist())):
            which = np.flatnonzero(~self.done & (self.counters == at))
            many = (
                f"{len(which)} threads from {which[0]} on"
                if len(which) > 1
                else f"thread {which[0]}"
            )
            alone = (
                " (not all threads reach it)"
                if self.state.get("parked") is not None and self.state["parked"][which].any()
                else ""
            )
            found.append(f"{many} at '{shortened(self.code[at].line)}'{alone}")
        return "; ".join(found)

    # ---- operands
    def read(self, text: str, kind: str) -> np.ndarray:
        t, size = TYPES[kind], SIZE[kind]
        raw = self.registers.get(text)
        if raw is not None:
            if raw.dtype.itemsize == size:
                return raw.view(t)
            return raw.astype(
                (np.uint8, np.uint16, None, np.uint32, None, None, None, np.uint64)[size - 1]
            ).view(t)
        special = self.special.get(text)
        if special is not None:
            return np.broadcast_to(np.asarray(special), (self.n,)).astype(t)
        if text == "%globaltimer":
            self.launch.clock += 1000
            return np.full(self.n, self.launch.clock).astype(t)
        require(
            text not in self.program.holds and text[0] not in "%$",
            f"{text} is read before it is written",
        )
        if text.startswith("0f"):
            return np.full(self.n, int(text[2:], 16), np.uint32).view(t)
        if text.startswith("0d"):
            return np.full(self.n, int(text[2:], 16), np.uint64).view(t)
        try:
            number = int(text, 0)
        except ValueError:
            raise Unknown(f"the operand {text}") from None
        return np.full(self.n, number & (1 << size * 8) - 1, f"u{size}").view(t)

    def predicate(self, text: str) -> np.ndarray:
        require(text in self.registers, f"{text} is read before it is written")
        return self.registers[text]

    def write(self, name: str, value: np.ndarray, mask: np.ndarray) -> None:
        if name == "_":
            return
        value, holds = np.asarray(value), self.program.holds.get(name)
        if holds is None:
            raise Unknown(f"the register {name}")
        if holds is not np.bool_:
            if value.dtype.kind == "i":
                value = value.astype(np.int64).astype(np.uint64)
            elif value.dtype.kind != "u":
                value = value.view(
                    (np.uint8, np.uint16, None, np.uint32, None, None, None, np.uint64)[
                        value.dtype.itemsize - 1
                    ]
                )
        old = self.registers.get(name)
        if old is None:
            old = np.zeros(self.n, holds)
        self.registers[name] = np.where(mask, value.astype(holds, copy=False), old)
        if name in self.program.tensor_registers:
            if name not in self.written:
                self.written[name] = np.zeros(self.n, np.int64)
            self.written[name][mask] = self.steps

    def address(self, text: str) -> np.ndarray:
        base, _, offset = text[1:-1].partition("+")
        return self.read(
            base, "s64" if self.program.holds.get(base) is np.uint64 else "u32"
        ).astype(np.int64) + int(offset or 0)


# ---- control
# --------------------------------------------------------------------------------------------------
@rule("bra")
def branch(m: Machine, i: Instruction, mask: np.ndarray, active: np.ndarray, at: int) -> None:
    if not mask.any():
        return
    if i.operands[0] == "$trap":
        raise trapped(m, int(np.flatnonzero(mask)[0]))
    if ".uni" in i.name:
        taken, here = mask.reshape(-1, WARP), active.reshape(-1, WARP)
        require(
            (~taken.any(1) | (taken == here).all(1)).all(), "a branch that threads take differently"
        )
    target = m.program.labels[i.operands[0]]
    np.copyto(m.front, target, where=mask)
    if target > at:
        return
    m.branch = (at, m.branch[1] + 1 if m.branch[0] == at else 1)
    if m.branch[1] % SPINS == 0:
        m.wait(mask)
        m.yielded |= mask


@rule("ret")
def ret(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    m.exit(mask)


@rule("trap")
def trap(m: Machine, i: Instruction, mask: np.ndarray) -> None:
    require(not mask.any(), "a trap")


def trapped(m: Machine, thread: int) -> Trapped:
    """What the record would say, in place of the code that writes it."""
    # a kernel's own stores look alike
    text = "\n".join(i.line for i in m.code[m.program.labels["$trap"] :])
    site, *numbers = (
        re.search(rf"st\.global\.b\d+ \[%d\d+\+{at}\], (%\w+)", text)[1]
        for at in (RECORD["site"], RECORD["numbers"], RECORD["numbers"] + 8)
    )
    given = [
        int(m.registers[r][thread].astype(np.int64)) if r in m.registers else 0 for r in numbers
    ]
    return Trapped(m.launch.interface.sites[int(m.registers[site][thread])], thread, given)


# ---- the launch
# --------------------------------------------------------------------------------------------------
class Launch:
    """A program, its arguments in memory, and the clusters of its grid."""

    def __init__(
        self, program, arguments: Sequence, grid: Sequence[int], resident: int, seed: int | None
    ):
        from tkc.sim.ptx.memory import Memory
        from tkc.sim.ptx.tensor import tensor_map

        self.interface, self.program, self.seed, self.clock = (
            program.interface,
            decoded(program.text),
            seed,
            0,
        )
        self.memory, grid = Memory(), (*grid, 1, 1)[:3]
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        placed = iter(self.memory.put_all(arrays))
        self.places = [next(placed) if isinstance(a, np.ndarray) else None for a in arguments]
        self.maps: dict[int, object] = {}
        self.symbols = {
            name: self.memory.put(np.array(numbers, np.int64).astype(TYPES[kind]))
            for name, (kind, numbers) in self.program.tables.items()
        }
        self.parameters = []
        for p, name in zip(self.interface.parameters, self.program.parameters, strict=False):
            a = arguments[p.argument] if p.argument >= 0 else None
            match p.kind:
                case "pointer":
                    value = self.places[p.argument]
                case "shape":
                    value = a.shape[p.axis]
                case "stride":
                    value = a.strides[p.axis] // a.itemsize
                case "scalar":
                    value = a
                case "grid":
                    value = grid[p.axis]
                case "trap":
                    value = 0
                case "workspace":
                    value = self.memory.put(
                        np.zeros(max(p.bytes + p.each * prod(grid), 16), np.uint8)
                    )
                case "map":
                    value = self.symbols[name] = self.memory.put(np.zeros(128, np.uint8))
                    self.maps[value] = tensor_map(p, arguments, self.places[p.argument])
                case kind:
                    raise Unknown(f"a parameter of kind {kind}")
            self.parameters.append(value)
        (x, y), i = self.interface.cluster, self.interface
        size = x * y
        self.physical = (
            (min(resident, -(-prod(grid) * i.split // size)) * size, 1, 1)
            if i.persistent
            else (grid[0] * x, grid[1] * y, grid[2])
        )
        gx, gy, gz = self.physical
        self.clusters = [
            (cx, cy, cz) for cz in range(gz) for cy in range(gy // y) for cx in range(gx // x)
        ]

    def run(self) -> None:
        """Clusters take turns until all have ended."""
        alive = [Machine(self, c) for c in self.clusters] if len(self.clusters) <= 8 else None
        with np.errstate(all="ignore"):
            if alive is None:  # many: one after the other, where none waits for another
                alive = []
                for c in self.clusters:
                    m = Machine(self, c)
                    m.turn()
                    if not m.done.all():
                        alive.append(m)
            while alive:
                went = [m.turn() for m in alive]
                if not any(went):
                    raise Fault(f"everybody waits: {alive[0].stuck()}")
                alive = [m for m in alive if not m.done.all()]


def run(
    program,
    arguments: Sequence,
    grid: Sequence[int] = (1,),
    *,
    resident: int = 2,
    seed: int | None = None,
) -> list[np.ndarray]:
    """Runs a PtxProgram; arguments as the kernel's (arrays of any strides, numbers), which stay as
    they are. Gives the arrays afterwards.

    resident: clusters of a persistent kernel that are there at once. seed: a random order of warps
    and copies; None: the order that is fastest here. Raises Fault and Trapped, and Unknown where
    the program is beyond this machine.
    """
    launch = Launch(program, arguments, grid, resident, seed)
    launch.run()
    return [
        np.array(launch.memory.get(at, a))
        for at, a in zip(launch.places, arguments, strict=False)
        if at is not None
    ]
