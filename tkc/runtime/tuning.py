"""What tuning needs and no launch: configurations, the key of a choice, the order in which
the model puts them, tables.

Config(BM=128, BN=256, cluster=(2, 1))           compile-time values and launch options together
key("matmul", …)                                 "a: bfloat16[4096, 512] b: bfloat16[512, 4096] …":
                                                 what the choice may depend on
rank(kernel, values, configs, …)                 each configuration with the plans it allows, by the
                                                 cost model's seconds
Table.read(path)                                 choices measured before, on a device of a name
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tkc.errors import CompileError, LaunchError, TuningError
from tkc.runtime.arrays import ArrayInfo, contiguous
from tkc.runtime.cache import write_whole
from tkc.runtime.peers import PeersInfo
from tkc.runtime.specialize import OPTIONS, Constant, given, signature

if TYPE_CHECKING:
    from tkc.runtime.kernel import Kernel

FORMAT = "tkc-table-1"


class NotMeasured(TuningError):
    """A kernel that cannot be launched again and again as if it had been launched once."""


class Config:
    """One configuration: compile-time values of the kernel's parameters, and launch options, by
    name. Equal ones are one. seconds: what whoever made it expects of it, if it is known.
    """

    __slots__ = ("items", "seconds")

    def __init__(self, **items: Any):
        # interned: launch caches compare names by identity
        self.items = tuple(
            sorted(
                (sys.intern(k), tuple(v) if isinstance(v, list) else v) for k, v in items.items()
            )
        )
        self.seconds: float | None = None

    def expected(self, seconds: float | None) -> Config:
        """The same, of which a launch is expected to take so many seconds by the cost model."""
        found = Config(**dict(self.items))
        found.seconds = seconds
        return found

    def __eq__(self, other):
        return isinstance(other, Config) and self.items == other.items

    def __hash__(self):
        return hash(self.items)

    def __repr__(self):
        return f"Config({', '.join(f'{k}={v!r}' for k, v in self.items)})"

    def __reduce__(self):
        return _config, (self.items,)

    @property
    def constants(self) -> dict[str, Any]:
        return {k: v for k, v in self.items if k not in OPTIONS}

    @property
    def options(self) -> dict[str, Any]:
        return {k: v for k, v in self.items if k in OPTIONS}


def _config(items) -> Config:
    return Config(**dict(items))


@dataclass(frozen=True)
class Choice:
    """A configuration and how it was come by. source: "model", "measured", "table" or "given";
    seconds: measured, or the model's; others: what it was compared with, a line each; traced:
    whether it was traced and planned, or taken for what is known of it.
    """

    config: Config
    source: str
    seconds: float | None = None
    others: tuple[str, ...] = field(default=(), compare=False)
    traced: bool = field(default=True, compare=False)


# --------------------------------------------------------------------------------------------------
def key(names: Sequence[str], infos: Sequence, tuned: Iterable[str]) -> str:
    """What a choice may depend on, readable: of arrays the element type, extents, and strides where
    they are not those of a contiguous array; numbers; constants.
    """
    parts, left_out = [], set(tuned)
    for name, info in zip(names, infos, strict=False):
        if name in left_out:
            continue
        if isinstance(info, PeersInfo):
            text = f"rank {info.rank} of {info.world} " + key(
                ["each"], [info.arrays[info.rank]], ()
            )
        elif isinstance(info, ArrayInfo):
            dense = info.strides == contiguous(info.shape)
            axes = (
                str(n) if dense else f"{n}:{s}"
                for n, s in zip(info.shape, info.strides, strict=False)
            )
            text = f"{info.dtype}[{', '.join(axes)}]" + (
                "" if info.pointer % 16 == 0 else f"@{info.pointer & -info.pointer}"
            )
        else:
            text = (
                repr(info.value)
                if isinstance(info, Constant) or not isinstance(info.value, float)
                else info.dtype
            )
        parts.append(f"{name}: {text}")
    return " ".join(parts)


# --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Candidate:
    """A configuration with every choice that matters made; seconds: the model's, None where it has
    none.
    """

    config: Config
    seconds: float | None


def rank(
    kernel: Kernel,
    values: Sequence,
    options: dict,
    configs: Sequence[Config],
    extents: Callable[[Sequence], tuple[int, int, int]],
    target: str,
    limit: int,
) -> tuple[list[Candidate], list[str]]:
    """At most `limit` candidates, the model's best first, and why configurations were left out. For
    the CPU, which has no model, in the given order.
    """
    found, reasons = [], []
    for config in configs:
        try:
            found += _candidates(
                kernel,
                merged(kernel, values, config),
                options | config.options,
                config,
                extents,
                target,
            )
        except (CompileError, LaunchError) as e:
            reasons.append(f"{config}: {str(e).splitlines()[0]}")
    found.sort(key=lambda c: c.seconds or 0)  # stable: without a model the order stays
    unique = list({c.config: c for c in reversed(found)}.values())[::-1]
    return unique[:limit], reasons


def merged(kernel: Kernel, values: Sequence, config: Config) -> list:
    """The values of a launch with the configuration's put in."""
    constants = config.constants
    return [constants.get(name, v) for name, v in zip(kernel.names, values, strict=False)]


def _candidates(
    kernel, values: Sequence, options: dict, config: Config, extents, target: str
) -> list[Candidate]:
    infos = kernel._describe(values)
    specialization = kernel._specialize(infos, tuple(options.items()))
    if target == "cpu":
        return [Candidate(config, None)]
    from tkc.ir.target import TARGETS
    from tkc.language.trace import trace
    from tkc.passes import PassContext
    from tkc.passes.plan import forcing, ranked
    from tkc.passes.planning.numbers import Sizes

    if target not in TARGETS:
        raise CompileError(f"unknown target {target!r}; there are {', '.join(TARGETS)} and cpu")
    described = signature(specialization)
    module = trace(kernel.fn, described)
    sizes = Sizes(
        extents(values),
        tuple(i.shape if isinstance(i, ArrayInfo) else i.value for i in given(infos)),
    )
    return [
        Candidate(Config(**config.constants, **forcing(plan) | config.options), cost.seconds)
        for cost, plan in ranked(module, PassContext(TARGETS[target], described.options), sizes)
    ]


# -------------------------------------------------------------------------------------------------
def changed(kernel: Kernel, infos: Sequence, options: dict[str, Any]) -> list[ArrayInfo]:
    """The array arguments that a kernel both reads and writes: launching it twice is not launching
    it once. Raises NotMeasured where it may read and write what is no argument's.
    """
    from tkc.ir.origin import makes_addresses
    from tkc.ir.types import ArrayType
    from tkc.language.trace import trace
    from tkc.passes.plan import kernel_of

    body = kernel_of(trace(kernel.fn, signature(kernel._specialize(infos, tuple(options.items())))))
    passed = given(infos)
    arrays = [v for v in body.arguments if isinstance(v.type, ArrayType)]
    touched = accessed(body)
    if all(None in found for found in touched) and any(map(makes_addresses, body.walk())):
        raise NotMeasured(
            f"{kernel.__name__} reads and writes memory by addresses that it makes or loads, which"
            " measuring would change: the cost model chooses"
        )
    read, written = (set(arrays) if None in found else found for found in touched)
    sources = [_bytes_of(passed[v.index]) for v in arrays if v in read]
    both: dict[tuple[int, int], ArrayInfo] = {}
    for v in arrays:  # also written as one argument, read as another
        low, high = _bytes_of(passed[v.index])
        if v in written and any(low < end and start < high for start, end in sources):
            both.setdefault((low, high), passed[v.index])
    return list(both.values())


def _bytes_of(i: ArrayInfo) -> tuple[int, int]:
    """The addresses of an array's elements: [low, high)."""
    return i.pointer + i.span[0], i.pointer + i.span[1]


def accessed(body: Any) -> tuple[set, set]:
    """The array arguments that a kernel reads, and those it writes; None among them where it is not
    known which.
    """
    from tkc.ir import tile
    from tkc.passes.analysis import alias

    both = tile.Atomic | tile.AtomicBlock
    reads, writes = tile.Load | tile.LoadPointers | both, tile.Store | tile.StorePointers | both
    ops = list(body.walk())
    read, written = (
        {alias.accessed(op) for op in ops if isinstance(op, kind)} for kind in (reads, writes)
    )
    return read, written


# --------------------------------------------------------------------------------------------------
class Table:
    """Choices by device, kernel and key. A file is one JSON object, written whole or not at all."""

    def __init__(self, entries: Iterable[dict] = ()):
        self.entries = {(e["device"], e["kernel"], e["key"]): e for e in entries}

    def get(self, device: str, kernel: str, key_: str) -> Choice | None:
        found = self.entries.get((device, kernel, key_))
        return Choice(Config(**found["config"]), "table", found.get("seconds")) if found else None

    def put(self, device: str, kernel: str, key_: str, choice: Choice) -> None:
        self.entries[device, kernel, key_] = {
            "device": device,
            "kernel": kernel,
            "key": key_,
            "config": dict(choice.config.items),
            "seconds": choice.seconds,
        }

    def write(self, path: str | Path) -> None:
        """Raises TuningError where the file cannot be written."""
        try:
            lines = ",\n".join(json.dumps(e) for e in self.entries.values())
            write_whole(
                Path(path), f'{{"format": "{FORMAT}", "entries": [\n{lines}\n]}}\n'.encode()
            )
        except (OSError, TypeError) as e:
            raise TuningError(
                f"the table {path} cannot be written: {e}; values of a configuration must be"
                " numbers, texts or tuples of them"
            ) from None

    @staticmethod
    def read(path: str | Path) -> Table:
        """Raises TuningError where the file is no table."""
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as e:
            raise TuningError(f"{path} is no table: {e}; write one with export_table") from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise TuningError(
                f"{path} is no table of this version of tkc ({FORMAT}); make it again with"
                " export_table"
            )
        try:
            return Table(data["entries"])
        except (KeyError, TypeError) as e:
            raise TuningError(f"{path} is no table: an entry has no {e}") from None
