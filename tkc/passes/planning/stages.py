"""Which operations of a loop run one iteration late, and in what order: the schedule of least
predicted clocks, found by search.

A loop's body is a graph of groups: dots, which the tensor cores execute in order of issue, and
vector work, which a warpgroup does itself. An edge says that one group needs another, of the same
iteration (distance 0) or of the one before (1). Each group has a stage: 0, or 1 for one iteration
late. An iteration of the rotated loop has stage 0 of iteration n and stage 1 of iteration n - 1:

    s = q·k;  p = f(s);  o += p·v

    stages 0 0 0:    s ─ f ─ o          tensor cores wait for f
    stages 0 0 1:    s ─ f              o, of the iteration before, runs under f
                     └ o ┘

An edge within one stage, or from a late group to an early one of the next iteration, must hold
inside a rotated iteration; one from stage 0 to stage 1 is a loop-carried value; none leads back. A
warpgroup goes through its groups in one order: it waits for what a group needs, then issues a dot
and goes on, or does vector work. All dots have ended when the next iteration begins.

Vector work is late where it needs a late dot, and only there: what is carried is then what late
dots read or add to, which has registers of its own anyway. Vector work of one stage keeps its
order; the assembler schedules the rest.

`search` is exhaustive: over stages, and over orders by branch and bound. Least clocks win; within
CLOCKS_TOLERANCE fewer carried registers, then fewer late groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

CLOCKS_TOLERANCE = 0.01  # of an iteration's clocks: the model cannot tell less apart
MAX_LATE_DOTS = 6  # candidates of a loop; with more dots none is late
# for orders, over all choices of stages of a loop; the best order so far is then the answer
MAX_SEARCH_STEPS = 1200


@dataclass(frozen=True)
class Group:
    """A dot or vector work: clocks of the tensor cores or of the warpgroup; `fixed`: never late."""

    name: str
    tensor: float = 0.0
    vector: float = 0.0
    fixed: bool = False

    @property
    def clocks(self) -> float:
        return self.tensor or self.vector


@dataclass(frozen=True)
class Crossing:
    """A value that must be carried where a group of `users` is late and its source, a group, or a
    carried value (−1), is not; `frees`: a group whose lateness makes this carried value needless.
    """

    registers: int
    source: int
    users: frozenset[int]
    frees: int = -1


@dataclass(frozen=True)
class Body:
    """A loop's body. Groups in program order; edges (from, to, distance); loads with the clocks in
    which the cache gives them and the groups that read them, which load again what others have read
    an iteration ago. `result`: clocks from a dot's end to its registers. `free`: vector work of a
    loop of which nothing is late may stand in any order. `chained`: edges from a dot to the one
    that alone adds to its sum: the tensor cores take both in order, and threads do not wait."""

    groups: tuple[Group, ...]
    edges: frozenset[tuple[int, int, int]]
    crossings: tuple[Crossing, ...] = ()
    loads: tuple[tuple[float, frozenset[int]], ...] = ()
    result: float = 60.0
    free: bool = False
    chained: frozenset[tuple[int, int]] = frozenset()

    @cached_property
    def sorted(self) -> list[int]:
        """Groups behind what they need of their iteration, else in program order."""
        order, left = [], list(range(len(self.groups)))
        while left:
            i = next(
                i
                for i in left
                if not any(b == i and d == 0 and a in left for a, b, d in self.edges)
            )
            order.append(i)
            left.remove(i)
        return order

    def carried(self, late: frozenset[int]) -> int:
        """Registers more that the rotated loop carries than the loop as it is."""
        return sum(
            c.registers * ((c.source not in late and bool(c.users & late)) - (c.frees in late))
            for c in self.crossings
        )

    def copies(self, late: frozenset[int]) -> float:
        return sum(
            clocks * (1 + bool(users & late and users - late)) for clocks, users in self.loads
        )


@dataclass(frozen=True)
class Schedule:
    """Groups that run late, all groups in the order of a rotated iteration, and its clocks."""

    late: frozenset[int]
    order: tuple[int, ...]
    clocks: float
    carried: int

    def rank(self, best: float) -> tuple:
        return (
            self.clocks > best * (1 + CLOCKS_TOLERANCE),
            self.carried,
            len(self.late),
            self.clocks,
            sorted(self.late),
        )


def search(body: Body) -> list[Schedule]:
    """For each legal choice of late groups that may be the best its schedule; the best first, the
    loop as it is always among them.
    """
    found, best, effort = [], float("inf"), [MAX_SEARCH_STEPS]
    bounds = sorted(
        ((least(body, late), late) for late in choices(body)),
        key=lambda pair: (bool(pair[1]), pair[0], len(pair[1]), sorted(pair[1])),
    )
    for bound, late in bounds:
        if late and bound > best * (1 + CLOCKS_TOLERANCE):
            continue
        order, clocks = ordered(body, late, effort)
        clocks = max(clocks, body.copies(late))
        best = min(best, clocks)
        found.append(Schedule(late, order, clocks, body.carried(late)))
    return sorted(found, key=lambda s: s.rank(best))


def choices(body: Body) -> Iterator[frozenset[int]]:
    """Every legal set of late groups: dots as one likes, and what needs a late group of its
    iteration.
    """
    dots = [i for i, g in enumerate(body.groups) if g.tensor and not g.fixed]
    if len(dots) > MAX_LATE_DOTS:
        dots = []
    needs = [{a for a, b, d in body.edges if b == i and d == 0} for i in range(len(body.groups))]
    seen = set[frozenset[int]]()
    for mask in range(1 << len(dots)):
        late = _with_needing({dot for n, dot in enumerate(dots) if mask >> n & 1}, needs, body)
        if late not in seen and not any(body.groups[i].fixed for i in late):
            seen.add(late)
            yield late


def _with_needing(late: set[int], needs: list[set[int]], body: Body) -> frozenset[int]:
    """Late groups, and those that need one of them."""
    for i in body.sorted:
        if needs[i] & late:
            late.add(i)
    return frozenset(late)


def rotated(body: Body, late: frozenset[int]) -> list[set[int]]:
    """What each group needs of its rotated iteration; vector work of one stage also what stands
    before it, where some is late.
    """
    before: list[set[int]] = [set() for _ in body.groups]
    for a, b, d in body.edges:
        if d + (b in late) == (a in late):
            before[b].add(a)
    for stage in (True, False) if late or not body.free else ():
        line = [i for i in body.sorted if not body.groups[i].tensor and (i in late) == stage]
        for a, b in pairwise(line):
            before[b].add(a)
    return before


def _waits(body: Body, a: int, b: int, late: frozenset[int]) -> bool:
    """Whether threads wait for group a before b: not where its sum runs on in a dot."""
    return (a, b) not in body.chained or (a in late) != (b in late)


def _tails(body: Body, before: list[set[int]], late: frozenset[int]) -> list[float]:
    """Clocks of the longest way from a group's beginning to the end of the iteration."""
    after: list[list[int]] = [[] for _ in before]
    tails = [0.0] * len(before)
    for b, needed in enumerate(before):
        for a in needed:
            after[a].append(b)
    waiting = [len(x) for x in after]
    ready = [i for i, n in enumerate(waiting) if not n]
    while ready:
        i = ready.pop()
        g = body.groups[i]
        result = body.result if g.tensor else 0.0
        tails[i] = g.clocks + max(
            (tails[j] + result * _waits(body, i, j, late) for j in after[i]), default=result
        )
        for a in before[i]:
            waiting[a] -= 1
            if not waiting[a]:
                ready.append(a)
    return tails


def least(body: Body, late: frozenset[int]) -> float:
    """Clocks that no order goes below."""
    tensor = sum(g.tensor for g in body.groups)
    return max(
        tensor + body.result * bool(tensor),
        sum(g.vector for g in body.groups if not g.tensor),
        body.copies(late),
        *_tails(body, rotated(body, late), late),
    )


def ordered(body: Body, late: frozenset[int], effort: list[int]) -> tuple[tuple[int, ...], float]:
    """The order of least clocks of a rotated iteration, and these. Of orders alike the first in
    which a group that can go on early goes first.
    """
    search = _OrderSearch(body, late, effort)
    search.go(0, 0.0, 0.0, 0.0)
    return search.chosen, search.best


class _OrderSearch:
    """Branch and bound over the orders of a rotated iteration.

    effort: how many nodes may still be visited, of all searches. best: clocks of the chosen order.
    ends: when each group on the path ends. seen: of each set of groups that are done, in what
    states it was left.
    """

    def __init__(self, body: Body, late: frozenset[int], effort: list[int]):
        self.groups, self.late, self.effort = body.groups, late, effort
        self.result = body.result
        self.before = rotated(body, late)
        self.tails = _tails(body, self.before, late)
        # of them those that threads wait for
        self.awaited = [
            {a for a in needed if _waits(body, a, b, late)} for b, needed in enumerate(self.before)
        ]
        self.bound, self.best = least(body, late), float("inf")
        self.chosen: tuple[int, ...] = ()
        self.path: list[int] = []
        self.ends = [0.0] * len(self.groups)
        self.seen: dict[int, list[tuple[float, ...]]] = {}

    def go(self, done: int, now: float, tensor: float, last: float) -> None:
        """Tries the orders that go on behind the path. done: the set of its groups, as bits; now,
        tensor: clocks until threads and tensor cores are free; last: until the last dot's result.
        """
        if len(self.path) == len(self.groups):
            if (total := max(now, last)) < self.best:
                self.best, self.chosen = total, tuple(self.path)
            return
        if self.effort[0] <= 0 and self.chosen:
            return
        self.effort[0] -= 1
        left = [i for i in range(len(self.groups)) if not done >> i & 1]
        if self._least(left, now, tensor, last) >= self.best:
            return
        if self._is_dominated(done, left, (now, tensor, last)):
            return
        for i, start in self._ready(done, left, now):
            self.path.append(i)
            self._step(i, start, done, tensor, last)
            self.path.pop()
            if self.best <= self.bound:
                return

    def _least(self, left: list[int], now: float, tensor: float, last: float) -> float:
        """Clocks that no order of the groups left goes below."""
        return max(
            last,
            tensor + sum(self.groups[i].tensor for i in left),
            now + max(self.tails[i] for i in left),
            now + sum(self.groups[i].vector for i in left if not self.groups[i].tensor),
        )

    def _is_dominated(self, done: int, left: list[int], clocks: tuple[float, ...]) -> bool:
        """Whether the same groups were done before, each no later; remembers the state if not."""
        needed = [
            i
            for i in range(len(self.groups))
            if done >> i & 1 and any(i in self.before[j] for j in left)
        ]
        state = *clocks, *(self.ends[i] for i in needed)
        known = self.seen.setdefault(done, [])
        if any(all(a <= b for a, b in zip(other, state, strict=True)) for other in known):
            return True
        known.append(state)
        return False

    def _ready(self, done: int, left: list[int], now: float) -> list[tuple[int, float]]:
        """The groups that can go on, the best first, and when."""
        ready = [i for i in left if all(done >> a & 1 for a in self.before[i])]
        starts = {i: max([now, *(self.ends[a] for a in self.awaited[i])]) for i in ready}

        def rank(i: int) -> tuple:
            return starts[i], not self.groups[i].tensor, i in self.late, -self.tails[i], i

        return [(i, starts[i]) for i in sorted(ready, key=rank)]

    def _step(self, i: int, start: float, done: int, tensor: float, last: float) -> None:
        """Goes on behind group i."""
        group = self.groups[i]
        if group.tensor:
            over = max(start, tensor) + group.tensor
            self.ends[i] = over + self.result
            self.go(done | 1 << i, start, over, max(last, self.ends[i]))
        else:
            self.ends[i] = start + group.vector
            self.go(done | 1 << i, self.ends[i], tensor, last)
