"""The threads of a cluster: where each stands in the program, their registers, and their turns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np

from tkc.ir.interface import RECORD, Interface
from tkc.ir.truths import every, some
from tkc.sim.ptx.faults import Fault, Trapped, Unknown, require, shortened
from tkc.sim.ptx.kinds import BITS_OF_BYTES, FLOATS, KIND_BYTES, KIND_TYPES
from tkc.sim.ptx.memory import Memory, Shared
from tkc.sim.ptx.tensor_maps import TensorMap
from tkc.sim.ptx.text import Instruction, Program

MAX_STEPS = 1_000_000  # of a cluster in all
MAX_TURN_STEPS = 20_000  # of a cluster before another one goes on
SPINS_BEFORE_YIELD = 4  # times that a branch is taken back before other threads go first
WAITS = np.iinfo(np.int64).max  # in place of the position of a thread that does not go on
WARP, WARPGROUP = 32, 128  # threads
TRAP_LABEL = "$trap"
Rule = Callable[..., np.ndarray | None]
RULES: dict[str, Rule] = {}
State = TypeVar("State")


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers what the instructions of these names (the first words of their opcodes) do:
    rule(machine, instruction, threads that do it). A rule may give back threads that stay where
    they are.
    """

    def register(fn: Rule) -> Rule:
        for name in names:
            RULES[name] = fn
        return fn

    return register


def rule_of(name: str) -> Rule:
    """The rule of an instruction. Raises Unknown where there is none."""
    for n in range(name.count(".") + 1, 0, -1):
        if found := RULES.get(".".join(name.split(".")[:n])):
            return found
    raise Unknown(f"the instruction {name}")


@dataclass(eq=False)
class LaunchState:
    """What all clusters of a launch share. grid: the blocks launched along each axis; parameters:
    of the entry, in order; maps: tensor maps by address; symbols: addresses by name; seed: of a
    random order of warps and copies, or None; clock: in nanoseconds.
    """

    interface: Interface
    program: Program
    memory: Memory
    grid: tuple[int, int, int]
    seed: int | None
    parameters: list[Any] = field(default_factory=list)
    maps: dict[int, TensorMap] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    clock: int = 0


class ClusterMachine:
    """The threads of one cluster. front: where each goes on, WAITS while it waits (at `counters`)
    or after its end.
    """

    def __init__(self, launch: LaunchState, cluster: tuple[int, int, int]):
        interface = launch.interface
        across, down = interface.cluster
        self.launch, self.program, self.code = launch, launch.program, launch.program.code
        self.each, self.blocks = interface.threads, across * down
        self.n = self.each * self.blocks
        self.everyone = np.ones(self.n, bool)
        self.everyone.flags.writeable = False
        self.threads = np.arange(self.n)
        self.rank, self.lane = self.threads // self.each, self.threads % WARP
        self.front, self.counters = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        self.done, self.yielded = np.zeros(self.n, bool), np.zeros(self.n, bool)
        self.parked = np.zeros(self.n, bool)  # threads that wait for the rest of their warp
        self.registers: dict[str, np.ndarray] = {}
        # of registers of dots: the step of each thread's last write
        self.written: dict[str, np.ndarray] = {}
        # of registers of dots in flight: the threads whose dots those are
        self.in_flight: dict[str, np.ndarray] = {}
        self.shared = Shared(self.blocks, interface.shared_bytes)
        self.copies: list[Callable[[], None]] = []  # copies under way
        self.ended: list[Callable[[np.ndarray], None]] = []  # called with threads that end
        self._states: dict[Callable[[ClusterMachine], object], object] = {}
        self.steps = 0
        self.branch = (0, 0)  # the last branch back, and how often it was taken in a row
        self.drift = (np.zeros(self.n, bool), 0)  # who goes on alone, for so many steps
        self.rng = np.random.default_rng((launch.seed or 0, *cluster))
        self.special = launch.symbols | self._special_registers(cluster, across, down)
        # operands that stay what they are, by text and kind
        self.fixed: dict[tuple[str, str], np.ndarray] = {}

    def _special_registers(
        self, cluster: tuple[int, int, int], across: int, down: int
    ) -> dict[str, Any]:
        """What a program reads without having written it. across, down: blocks of a cluster."""
        x, y = self.rank % across, self.rank // across
        grid = self.launch.grid
        clusters = (grid[0] // across, grid[1] // down, grid[2])
        return {
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
            "%ntid.x": self.each,
            **{f"%nctaid.{c}": n for c, n in zip("xyz", grid, strict=True)},
            **{f"%clusterid.{c}": n for c, n in zip("xyz", cluster, strict=True)},
            **{f"%nclusterid.{c}": n for c, n in zip("xyz", clusters, strict=True)},
        }

    def state_of(self, family: Callable[[ClusterMachine], State]) -> State:
        """What a family of instructions keeps about this cluster: one object of a class, made of
        the machine when it is first asked for.
        """
        found = self._states.get(family)
        if found is None:
            found = self._states[family] = family(self)
        return cast(State, found)

    # ---- turns
    def turn(self) -> bool:
        """Goes on until nothing can, or for long enough; whether anything did."""
        self._again()
        began, end = self.steps, self.steps + MAX_TURN_STEPS
        while self.steps < end:
            if self.step():
                continue
            landed = self.land()
            spun = self._again()
            if not landed:
                break
            if spun and not self.copies:
                break
        return self.steps > began

    def _again(self) -> bool:
        """Lets those go on who left others the turn."""
        if not some(self.yielded):
            return False
        self.front[self.yielded] = self.counters[self.yielded]
        self.yielded[:] = False
        return True

    def land(self) -> bool:
        """One copy lands; whether there was one."""
        if not self.copies:
            return False
        self.copies.pop(
            int(self.rng.integers(len(self.copies))) if self.launch.seed is not None else 0
        )()
        return True

    def step(self) -> bool:
        """The next instruction of those who stand furthest back."""
        front = self.front
        at = int(front[0])
        active = front == at
        if self.is_all(active):
            active = self.everyone
        else:
            at = int(front.min())
            active = front == at
        if at == WAITS:
            return False
        if self.launch.seed is not None:
            at, active = self._drift(at, active)
        self.steps += 1
        require(self.steps < MAX_STEPS, f"no end within {MAX_STEPS} steps")
        require(at < len(self.code), "a thread runs past the end")
        i = self.code[at]
        try:
            if i.together > 1:
                complete = self._gather(active, at, i.together)
                if complete is None:
                    return True
                active = complete
            if self.is_all(active):
                front.fill(at + 1)
                self.counters.fill(at)
            else:
                np.copyto(front, at + 1, where=active)
                np.copyto(self.counters, at, where=active)
            mask = active if i.guard is None else active & (self.predicate(i.guard) ^ i.negated)
            if self.in_flight:
                self._check_not_in_flight(i, mask)
            if i.rule is branch:
                branch(self, i, mask, active, at)
            else:
                stay = i.rule(self, i, mask)
                if stay is not None:
                    self.wait(stay, at)
        except Fault as fault:
            raise Fault(f"{fault.message}: {shortened(i.line)}") from None
        return True

    def is_all(self, mask: np.ndarray) -> bool:
        """Whether a mask has all threads."""
        return mask is self.everyone or every(mask)

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
        first = int(np.where(ahead, self.front, WAITS).min()) if steps else WAITS
        if first == WAITS:
            self.drift = (ahead, 0)
            return at, active
        self.drift = (ahead, steps - 1)
        return first, ahead & (self.front == first)

    def _gather(self, active: np.ndarray, at: int, size: int) -> np.ndarray | None:
        """The warps (or warpgroups) of which all threads are here; the threads of others wait for
        theirs.
        """
        here, parked = active.reshape(-1, size), self.parked
        if every(active) or every(here.all(1) == here.any(1)):
            return active
        here = (active | parked & (self.counters == at) & (self.front == WAITS)).reshape(-1, size)
        whole = (
            np.repeat((here | self.done.reshape(-1, size)).all(1) & here.any(1), size) & ~self.done
        )
        rest = active & ~whole
        self.wait(rest, at)
        parked |= rest
        parked &= ~whole
        return whole if some(whole) else None

    def _check_not_in_flight(self, i: Instruction, mask: np.ndarray) -> None:
        """Raises Fault where an instruction uses registers that a dot in flight fills or reads."""
        if i.name.startswith("wgmma.mma_async"):
            return
        for r in i.registers & self.in_flight.keys():
            require(
                not some(self.in_flight[r] & mask),
                f"{r} belongs to an asynchronous dot that nobody has waited for",
            )

    def wait(self, mask: np.ndarray, at: int | None = None) -> None:
        """These threads stop, at an instruction that they try again (None: at the current one)."""
        np.copyto(self.counters, self.front if at is None else at, where=mask)
        np.copyto(self.front, WAITS, where=mask)

    def wake(self, mask: np.ndarray, on: int = 0) -> None:
        """Those who wait go on: at the same instruction, or `on` further."""
        mask = mask & ~self.done
        np.copyto(self.front, self.counters + on, where=mask)

    def exit(self, mask: np.ndarray) -> None:
        """These threads end."""
        self.front[mask] = WAITS
        self.done |= mask
        for look in self.ended:
            look(mask)
        if some(self.parked):
            self.wake(self.parked.copy())
            self.parked[:] = False

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
            alone = " (not all threads reach it)" if self.parked[which].any() else ""
            found.append(f"{many} at '{shortened(self.code[at].line)}'{alone}")
        return "; ".join(found)

    # ---- operands
    def read(self, text: str, kind: str) -> np.ndarray:
        """[threads]: an operand as a kind of number. Raises Fault for a register without a value,
        Unknown for what is no operand.
        """
        if kind not in KIND_TYPES:
            raise Unknown(f"the type .{kind}")
        t, size = KIND_TYPES[kind], KIND_BYTES[kind]
        raw = self.registers.get(text)
        if raw is not None:
            if raw.dtype.itemsize == size:
                return raw.view(t)
            return raw.astype(BITS_OF_BYTES[size]).view(t)
        if text == "%globaltimer":
            self.launch.clock += 1000
            return np.full(self.n, self.launch.clock).astype(t)
        found = self.fixed.get((text, kind))
        if found is None:
            found = self.fixed[text, kind] = self._fixed(text, kind)
        return found

    def _fixed(self, text: str, kind: str) -> np.ndarray:
        """[threads]: a special register, the address of a symbol or a literal; read-only."""
        special = self.special.get(text)
        require(
            special is not None or text not in self.program.holds and text[0] not in "%$",
            f"{text} is read before it is written",
        )
        found = np.full(self.n, literal(text, kind) if special is None else special)
        found = found.astype(KIND_TYPES[kind], copy=False)
        found.flags.writeable = False
        return found

    def predicate(self, text: str) -> np.ndarray:
        """[threads]: a predicate register. Raises Fault where nobody wrote it."""
        require(text in self.registers, f"{text} is read before it is written")
        return self.registers[text]

    def write(self, name: str, value: np.ndarray, mask: np.ndarray) -> None:
        """Sets a register, as bits, in the threads of the mask."""
        if name == "_":
            return
        value, holds = np.asarray(value), self.program.holds.get(name)
        if holds is None:
            raise Unknown(f"the register {name}")
        if value.dtype.type is not holds:
            value = _as_bits(value, holds)
        if not self.is_all(mask):
            old = self.registers.get(name)
            value = np.where(mask, value, old if old is not None else np.zeros(self.n, holds))
        elif value.shape != (self.n,):
            value = np.broadcast_to(value, (self.n,))
        self.registers[name] = value
        if name in self.program.tensor_registers:
            if name not in self.written:
                self.written[name] = np.zeros(self.n, np.int64)
            self.written[name][mask] = self.steps

    def address(self, text: str) -> np.ndarray:
        """[threads]: the addresses that `[register+offset]` names."""
        base, _, offset = text[1:-1].partition("+")
        return self.read(
            base, "s64" if self.program.holds.get(base) is np.uint64 else "u32"
        ).astype(np.int64) + int(offset or 0)


def _as_bits(value: np.ndarray, holds: type[Any]) -> np.ndarray:
    """Numbers as a register of this type holds them."""
    if holds is not np.bool_:
        if value.dtype.kind == "i" and value.dtype.itemsize < KIND_BYTES["s64"]:
            value = value.astype(np.int64)
        if value.dtype.kind != "u":
            value = value.view(BITS_OF_BYTES[value.dtype.itemsize])
    return value.astype(holds, copy=False)


@lru_cache(maxsize=1 << 12)
def literal(text: str, kind: str) -> np.generic:
    """A number as an instruction spells it. Raises Unknown for what is none."""
    t, size = KIND_TYPES[kind], KIND_BYTES[kind]
    for prefix, bits, exact in (("0f", np.uint32, np.float32), ("0d", np.uint64, np.float64)):
        if text[:2].lower() == prefix:
            number = bits(int(text[2:], 16))
            return number.view(exact).astype(t) if kind in FLOATS else number.view(t)
    try:
        whole = int(text.rstrip("U"), 0)
    except ValueError:
        return _decimal(text, kind)
    return np.dtype(f"u{size}").type(whole & (1 << size * 8) - 1).view(t)


def _decimal(text: str, kind: str) -> np.generic:
    """A float in decimal digits, rounded to its type."""
    try:
        number = np.float64(text)
    except ValueError:
        raise Unknown(f"the operand {text}") from None
    if np.dtype(KIND_TYPES[kind]).kind in "iu":
        raise Unknown(f"the operand {text} of type .{kind}")
    return number.astype(KIND_TYPES[kind])


# ---- control
# --------------------------------------------------------------------------------------------------
@rule("bra")
def branch(
    m: ClusterMachine, i: Instruction, mask: np.ndarray, active: np.ndarray, at: int
) -> None:
    if not some(mask):
        return
    if i.operands[0] == TRAP_LABEL:
        raise trapped(m, int(np.flatnonzero(mask)[0]))
    if ".uni" in i.name:
        taken, here = mask.reshape(-1, WARP), active.reshape(-1, WARP)
        require(
            every(~taken.any(1) | (taken == here).all(1)), "a branch that threads take differently"
        )
    target = m.program.labels[i.operands[0]]
    np.copyto(m.front, target, where=mask)
    if target > at:
        return
    m.branch = (at, m.branch[1] + 1 if m.branch[0] == at else 1)
    if m.branch[1] % SPINS_BEFORE_YIELD == 0:
        m.wait(mask)
        m.yielded |= mask


@rule("ret")
def ret(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    m.exit(mask)


@rule("trap")
def trap(m: ClusterMachine, i: Instruction, mask: np.ndarray) -> None:
    require(not some(mask), "a trap")


def trapped(m: ClusterMachine, thread: int) -> Trapped:
    """What the record would say, in place of the code that writes it."""
    # only behind the label: a kernel's own stores look alike
    text = "\n".join(i.line for i in m.code[m.program.labels[TRAP_LABEL] :])
    site, *numbers = (
        re.findall(rf"st\.global\.b\d+ \[%d\d+\+{at}\], (%\w+)", text)[0]
        for at in (RECORD["site"], RECORD["numbers"], RECORD["numbers"] + 8)
    )
    given = [
        int(m.registers[r][thread].astype(np.int64)) if r in m.registers else 0 for r in numbers
    ]
    return Trapped(m.launch.interface.sites[int(m.registers[site][thread])], thread, given)
