"""Whole random kernels: control flow around the other productions, and `kernel(seed)`."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tkc.fuzz.grammar import WHOLE, Kernel, Tile
from tkc.fuzz.sequence_productions import SequenceWriter
from tkc.fuzz.value_productions import COMPARE

MOST_CARRIED = 24  # the greatest number that a loop carries into its first iteration
MOST_TRIPS = 5
FAR_SHARE = 0.03  # of kernels that read far from an array's beginning
ROLLED_SHARE = 0.06  # of those that read rows in a circle
RECORDS_SHARE = 0.2  # of those that may read records by their parts
OLD_SHARE = 0.04  # of those that use what atomics have found
SHARED_SHARE = 0.03  # of those whose programs have one result together
STORED_SHARE = 0.05  # of those that store where they have stored, or read
HASHED_SHARE = 0.1  # of those that compute numbers that wrap
SEQUENCE_SHARE = 0.06  # of those of dots in sequence alone
TAKEN_SHARE = 0.015  # of those of dots of rows from a counter; of those that are alike
LIMIT_SHARE = 0.04  # of those of each production at the limits of what passes may believe


class KernelWriter(SequenceWriter):
    """Writes whole kernels."""

    def rebind(self, t: Tile, most: int) -> None:
        """Another value for a name in scope, of its dtype and shape."""
        other = self.small(self.tile(t.shape, t.dtype) if t.shape else self.like(t), most)
        texts = [other.name]
        if t.bound + other.bound <= most:
            texts.append(f"{t.name} + {other.name}")
        if t.dtype != "bool_":
            texts.append(f"tkc.maximum({t.name}, {other.name})")
        self.let(self.pick(texts), t.dtype, t.shape, most, t.name)

    def like(self, t: Tile) -> Tile:
        """A value in scope of the same shape and dtype."""
        return self.pick([v for v in self.pool if v.shape == t.shape and v.dtype == t.dtype])

    def changeable(self) -> list[Tile]:
        """Values whose names may be bound again here."""
        return [v for v in self.pool if v.name in self.mutable and v.dtype != "bool_"]

    def carried(self) -> list[Tile]:
        """One to three values for a loop to carry, made small under their own names."""
        found = self.changeable()
        chosen = self.random.sample(found, min(len(found), self.random.randint(1, 3)))
        return [self.small_in_place(v, MOST_CARRIED) for v in chosen]

    def small_in_place(self, t: Tile, most: int) -> Tile:
        """A value with a bound of at most `most`, under its own name."""
        most = min(most, WHOLE[t.dtype] // 2)
        if t.bound <= most:
            return t
        remainder = self.chance(0.5) or t.dtype.startswith("u")
        text = (
            f"{t.name} % {most}"
            if remainder
            else f"tkc.minimum(tkc.maximum({t.name}, {-most}), {most})"
        )
        return self.let(text, t.dtype, t.shape, most, t.name)

    def _hint(self, depth: int) -> None:
        """A promise, kept."""
        name = self.pick(self.numbers)
        value = self.numbers[name]
        divides = self.pick([d for d in range(1, 17) if value % d == 0])
        slack = self.random.randint(0, 3)
        fact = self.pick((f"<= {value + slack}", f">= {value - slack}", f"% {divides} == 0"))
        self.line(f"tkc.assume({name} {fact})")

    # ----------------------------------------------------------------------------------------------
    def loop_body(
        self,
        depth: int,
        carried: list[Tile],
        head: str,
        tail: str | None = None,
        index: tuple[str, int] | None = None,
    ) -> None:
        """A loop that changes these values; `index` is its variable and the greatest value of it,
        `tail` its last line.
        """
        bounds = {t.name: max(t.bound, 8) if WHOLE[t.dtype] > 16 else t.bound for t in carried}
        self._bound_by(bounds)
        self.line(head)
        saved = self.enter()
        if index:
            self.indices[index[0]] = (0, index[1])
        self.mutable = set(bounds)
        for _ in range(self.random.randint(1, 4)):
            self.step(depth - 1)
        self._change(carried, bounds)
        self._exchange_two(carried, bounds)
        if tail:
            self.line(tail)
        if self.lines[-1].endswith(head):
            self.line("pass")
        self.leave(saved)
        self._bound_by(bounds)

    def _bound_by(self, bounds: dict[str, int]) -> None:
        self.pool = [replace(v, bound=bounds.get(v.name, v.bound)) for v in self.pool]

    def _change(self, carried: list[Tile], bounds: dict[str, int]) -> None:
        """New values for most of what a loop carries, within what an iteration may begin with."""
        now = {v.name: v for v in self.pool}
        for t in carried:
            if self.chance(0.7):
                self.rebind(now[t.name], bounds[t.name])
        for t in carried:
            last, most = next(v for v in self.pool if v.name == t.name), bounds[t.name]
            if last.bound > most:
                text = f"{t.name} % {most}" if most else f"{t.name} * 0"
                self.let(text, t.dtype, t.shape, most, t.name)

    def _exchange_two(self, carried: list[Tile], bounds: dict[str, int]) -> None:
        """Now and then two values that a loop carries exchange their names."""
        kinds = {t.name: (t.dtype, t.shape, bounds[t.name]) for t in carried}
        pairs = [(a, b) for a in kinds for b in kinds if a < b and kinds[a] == kinds[b]]
        if pairs and self.chance(0.5):
            a, b = self.pick(pairs)
            self.line(f"{a}, {b} = {b}, {a}")

    def _loop(self, depth: int) -> None:
        i, (text, most, _) = self.fresh("i"), self.trips()
        head = f"for {i} in tkc.range({text}{self.stages()}):"
        self.loop_body(depth, self.carried(), head, index=(i, most))

    def _unroll(self, depth: int) -> None:
        """A loop that runs while the kernel is traced."""
        i, n = self.fresh("i"), self.random.randint(1, 4)
        head = self.pick((f"for {i} in tkc.static_range({n}):", f"for {i} in (0, {n - 1}):"))
        self.loop_body(depth, self.carried(), head, index=(i, n - 1))

    def _repeat(self, depth: int) -> None:
        j, n = self.fresh("j"), self.pick(self.numbers)
        if self.numbers[n] > MOST_TRIPS:
            return
        carried = self.carried()
        self.line(f"{j} = 0")
        self.loop_body(depth, carried, f"while {j} < {n}:", f"{j} = {j} + 1", (j, MOST_TRIPS))

    # ----------------------------------------------------------------------------------------------
    def condition(self) -> str:
        """A scalar truth value."""
        scalars = [v for v in self.pool if not v.shape]
        if not scalars or self.chance(0.6):
            return f"{self.index()} {self.pick(COMPARE)} {self.pick(self.indices)}"
        t = self.pick(scalars)
        return t.name if t.dtype == "bool_" else f"{t.name} > {self.random.randint(0, 3)}"

    def _branch(self, depth: int) -> None:
        condition, found = self.condition(), self.changeable()
        before, ends = list(self.pool), {v.name: v.bound for v in self.pool}
        for head in (f"if {condition}:", "else:")[: 2 if self.chance(0.6) else 1]:
            self.line(head)
            self.pool = list(before)
            saved = self.enter()
            for _ in range(self.random.randint(0, 2)):
                self.step(depth - 1)
            for t in self.random.sample(found, min(len(found), self.random.randint(0, 2))):
                now = next(v for v in self.pool if v.name == t.name)
                self.rebind(now, 8 if WHOLE[t.dtype] >= 16 else 2)
            self.line("pass")
            self.leave(saved)
            for v in self.pool:
                ends[v.name] = max(ends[v.name], v.bound)
        self.pool = [replace(v, bound=ends[v.name]) for v in before]


# --------------------------------------------------------------------------------------------------
def kernel(seed: int, policy: str | None = None, steps: int | None = None) -> Kernel:
    """The kernel of a seed; policy and steps (statements) instead of the seed's own."""
    w = KernelWriter(seed, policy, steps)
    if not _alone(w):
        _several(w)
    has_roles = w.policy == "roles"
    return Kernel(
        seed,
        w.policy,
        _source(w),
        list(w.arrays),
        w.numbers | w.extra_numbers | w.strides,
        w.grid,
        w.pick((None, None, 4, 8) if has_roles else (None, 1, 2, 4, 4, 8)),
        w.pick((1, 2, 2, 3, 4, 5)),
        w.constants,
        w.forced,
    )


def _is_drawn(name: str, seed: int, share: float) -> bool:
    """Whether a seed has a rare production; apart, so that other kernels stay what they were."""
    return Random(f"{name} {seed}").random() < share


def _alone(w: KernelWriter) -> bool:
    """Writes a production that stands alone where the seed has one; whether it has."""
    for name, share, write in (
        # by names that leave the kernels of tests what they were
        ("a kernel: dots in sequence", SEQUENCE_SHARE, w.dots_in_sequence),
        ("a kernel: rows at places", LIMIT_SHARE, w.rows_at_places),
        ("dots by counter", TAKEN_SHARE, w.dots_of_taken_work),
        ("alike: dots", TAKEN_SHARE, w.dots_alike),
    ):
        if _is_drawn(name, w.seed, share):
            write()
            return True
    return False


def _several(w: KernelWriter) -> None:
    """Writes statements of all kinds, then rare ones, and stores results."""
    has_roles = w.policy == "roles"
    if has_roles:
        w.dot_loop()
        if w.chance(0.3):
            w.epilogue()
    for _ in range(w.steps // (4 if has_roles or w.policy == "large" else 1)):
        w.step()
    rare = (
        ("far", FAR_SHARE, w.far),
        ("rolled", ROLLED_SHARE, w.rolled),
        ("stored", STORED_SHARE, w.stored_again),
        ("records", RECORDS_SHARE, w.records),
        ("old", OLD_SHARE, w.old_values),
        ("one result", SHARED_SHARE, w.one_result),
        ("wrapped numbers", HASHED_SHARE, w.hashes),
        ("wrapped masks", HASHED_SHARE, w.hashed_masks),
        # by names that leave the kernels of tests what they were
        ("near limits: wrapped numbers", 2 * LIMIT_SHARE, w.wrapped_numbers),
        ("a limit: promises", LIMIT_SHARE, w.promises),
        ("near limits: bounds below zero", LIMIT_SHARE, w.bounds_below_zero),
        ("far out: short offsets", LIMIT_SHARE, w.short_offsets),
        ("near limits: ends of types", LIMIT_SHARE, w.ends_of_types),
        ("at the limit: one in memory", LIMIT_SHARE, w.one_in_memory),
        ("apart: until loaded", LIMIT_SHARE, w.until_loaded),
        ("near limits: inline text", LIMIT_SHARE, w.inline_text),
    )
    for name, share, write in rare:
        if _is_drawn(name, w.seed, share):
            write()
    results = [v for v in w.pool if v.shape or w.chance(0.5)][-4:]
    for t in w.random.sample(results, min(len(results), 3)):
        w.store(t)
    if not results:
        w.store()


def _source(w: KernelWriter) -> str:
    """The text of a module with the kernel that was written."""
    program = "p0"
    if len(w.grid) > 1:
        outer = "tkc.program_id(1) + tkc.num_programs(1) * tkc.program_id(2)"
        program = f"p0 + tkc.num_programs(0) * ({outer})"
    parameters = [*(a.name for a in w.arrays), *w.numbers, *w.extra_numbers, *w.strides]
    parameters += [f"{name}: tkc.constexpr" for name in w.constants]
    head = f"def kernel({', '.join(parameters)}):"
    number = f"tkc.atomic_add({w.taken}.ptr, 1)" if w.taken else "tkc.program_id(0)"
    first = [f"p0 = {number}", f"p = {program}", *w.locals]
    lines = ["import tkc", "", *w.definitions, "", head]
    return "\n".join([*lines, *(f"    {text}" for text in first), *w.lines]) + "\n"
