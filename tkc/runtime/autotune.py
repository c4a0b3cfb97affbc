"""`@tkc.autotune`: a kernel whose compile-time values and launch options are chosen for the
arguments of each launch.

    @tkc.autotune([tkc.Config(BM=128, BN=256), tkc.Config(BM=128, BN=128)])
    # or a function of the bound arguments that gives them
    @tkc.jit
    def matmul(a, b, c, BM: tkc.constexpr, BN: tkc.constexpr, BK: tkc.constexpr = 64): …

    matmul[grid](a, b, c)                       grid is a function of all arguments, chosen ones
                                                included
    matmul[grid](a, b, c, BM=128)               narrows the choice, like every launch option:
                                                cluster=(1, 1)

A choice is looked for in the tables, on disk, and then made: the cost model puts the
configurations, each with the plans it allows, in order; the best `limit` are compiled in processes
of their own and measured until `budget` seconds are over; what was found is kept on disk.
`measure=False` takes the model's first. What the choice may depend on is its key: element types,
extents and strides of the arrays, integers, the constants that were given, the device, and the
kernel's code.

    matmul.choose(a, b, c, grid=grid)           the Choice: configuration, where it is from, what it
                                                was compared with
    matmul.assemble("bf16[64, 64]", …, grid=grid, target="sm_90a", path="matmul.asm")
            compiled and assembled where no GPU is …
    matmul.measure("matmul.asm", a, b, c, grid=grid)
            … and measured where one is
    matmul.export_table("h200.json"), matmul.import_table("h200.json")
            choices, to be kept with the program

Arrays that a kernel both reads and writes are put back after measuring; one that reads and writes
memory by addresses that it makes or loads is not measured. TKC_AUTOTUNE=0 never measures, 1
measures also where measure=False.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import CO_NESTED, signature
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

from tkc.errors import CompileError, Error, LaunchError, TuningError
from tkc.progress import progress
from tkc.runtime import cache, fingerprint, workers
from tkc.runtime.arrays import ArrayInfo
from tkc.runtime.handed import handing, tables_changed, watch_handing, watch_tables
from tkc.runtime.jit import JitFunction, Launchable, Launcher, normalized, target_for
from tkc.runtime.kernel import Watch
from tkc.runtime.launch_cache import types_of
from tkc.runtime.peers import PeersInfo
from tkc.runtime.source_files import sources
from tkc.runtime.specialize import OPTIONS, Constant, Specialization, argument
from tkc.runtime.toolchain import digest, environment, host_cpu, package_hash, toolchain
from tkc.runtime.tuning import (
    Candidate,
    Choice,
    Config,
    NotMeasured,
    Table,
    changed,
    key,
    merged,
    rank,
)

MAX_MEASURED_CANDIDATES = 40
MEASURING_SECONDS = 2.0
# what the function of a grid may hold for its launches to be remembered
GRID_CONSTANTS = (bool, int, float, str, type(None))
ASSEMBLY = "tkc-assembly-2"


class _Unset:
    def __repr__(self) -> str:
        return "<to be chosen>"


UNSET = _Unset()
# one configuration, which leaves everything to the plans
PLANS_ALONE = (Config(),)


def autotune(
    configs: Iterable[Config | dict] | Callable[..., Iterable[Config | dict]] = PLANS_ALONE,
    *,
    key: Callable[[dict], Any] | None = None,
    measure: bool = True,
    limit: int = MAX_MEASURED_CANDIDATES,
    budget: float = MEASURING_SECONDS,
    table: str | Path | None = None,
) -> Callable[[JitFunction | Callable], Autotuned]:
    """Makes an Autotuned of a kernel (a decorator over @tkc.jit).

    configs: Config objects or dicts of compile-time values and launch options, or a function of the
    bound arguments (a dict), or of these and the target, that gives them. What a configuration
    leaves open, the plans of the compiler are candidates for. key: a function of the bound
    arguments whose value, as text, is the key of the choice instead of all of them. measure: False
    takes the model's choice. limit: candidates that are measured. budget: seconds of measuring.
    table: a file of choices, read when first needed.
    """

    def decorate(kernel: JitFunction | Callable) -> Autotuned:
        if isinstance(kernel, Autotuned):
            raise TypeError(
                "the kernel is autotuned already; give one tkc.autotune all the configurations"
            )
        return Autotuned(
            kernel if isinstance(kernel, JitFunction) else JitFunction(kernel),
            configs,
            key,
            measure,
            limit,
            budget,
            table,
        )

    return decorate


class Autotuned(Launchable):
    """A kernel with its configurations. `tuned[grid](…)` launches what is best for the arguments;
    `kernel` is the kernel without.
    """

    chooses = True

    def __init__(
        self,
        kernel: JitFunction,
        configs: Iterable[Config | dict] | Callable[..., Iterable[Config | dict]],
        key: Callable[[dict], Any] | None,
        measure: bool,
        limit: int,
        budget: float,
        table: str | Path | None,
    ):
        self._kernel, self.key, self.measuring = kernel, key, measure
        self.limit, self.budget = limit, budget
        self.__name__ = kernel.__name__
        self._configs = configs if callable(configs) else _as_configs(configs)
        if not callable(self._configs):
            self._check(self._configs)
        parameters, free = [], False
        for p, fixed in zip(kernel.parameters, kernel.constexpr, strict=True):
            has_default = p.default is not p.empty
            free = free or fixed or has_default
            # behind a parameter with a default, others need one
            unset = fixed or (free and not has_default and p.kind is not p.KEYWORD_ONLY)
            parameters.append(p.replace(default=UNSET if unset else p.default))
        super().__init__(kernel.fn, parameters, dict(kernel.options))
        self._given = tuple(i for i, fixed in enumerate(kernel.constexpr) if not fixed)
        self._choices: dict[tuple, Choice] = {}
        self.latest: Choice | None = None  # of the launch that was prepared last
        self._rebindings = 0  # of the kernel, when the choices were made
        self._table, self._path = Table(), table

    @property
    def kernel(self) -> JitFunction:
        return self._kernel

    def __repr__(self) -> str:
        return f"<autotuned {self.kernel!r}>"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.kernel(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launcher for a grid: an int, a tuple of up to three, or a function of the bound
        arguments, chosen ones included.
        """
        try:
            launcher = self._quickest.get(grid)
        except TypeError:
            launcher, grid = None, normalized(grid, self.__name__)  # a list
        if launcher is not None:
            return launcher
        if not callable(grid):
            return self._launcher(grid, grid)
        if not isinstance(grid, FunctionType):
            return Launcher(self, grid, None, remembers=False)
        if not (grid.__closure__ or grid.__code__.co_flags & CO_NESTED):
            return self._launcher(grid, grid)
        # a function that its caller makes for each call
        if (key := _parts_of(grid)) is None:
            return Launcher(self, grid, None, remembers=False)
        found = self._launchers.get(key) or self._made_launcher(key, _with_own_variables(grid))
        return found.quickest

    def made(self, args: Sequence, kwargs: dict[str, Any], grid: Any) -> Callable[[], None]:
        given, options = self.bound(*args, **kwargs)
        self.latest = self._choose(given, options, grid)
        try:
            return self._made_of(self.latest.config, given, options, grid)
        except CompileError:
            if self.latest.traced:
                raise
            # seconds may be known of what cannot be compiled
            self.latest = self._choose(given, options, grid, without=self.latest.config)
        return self._made_of(self.latest.config, given, options, grid)

    def _made_of(
        self, config: Config, given: Sequence, options: dict, grid: Any
    ) -> Callable[[], None]:
        """The launch of a configuration."""
        kernel = self.kernel
        values, options = merged(kernel, given, config), options | config.options
        extents = self.extents(grid, values)
        if not handing():
            return kernel._prepare(values, options, extents)
        plain = kernel.positional
        named = dict(zip(kernel.names[plain:], values[plain:], strict=True))
        return partial(kernel[extents], *values[:plain], **named, **options)

    def watching(self) -> tuple[Watch, ...] | None:
        if handing():
            return None
        return *self.kernel.watching(), watch_handing(), watch_tables()

    # ----------------------------------------------------------------------------------------------
    def choose(
        self,
        *args: Any,
        grid: Any,
        target: str | None = None,
        measure: bool | None = None,
        **kwargs: Any,
    ) -> Choice:
        """The choice for these arguments, made if need be; nothing is launched but measurements.
        Raises TuningError where no configuration fits them.
        """
        return self._choose(*self.bound(*args, **kwargs), grid, target, measure)

    def bound(self, *args: Any, **kwargs: Any) -> tuple[tuple, dict]:
        """(values by parameter, UNSET where they are to be chosen, options). Raises LaunchError."""
        values, options = super().bound(*args, **kwargs)
        texts = False
        for i in self._given:
            if (v := values[i]) is UNSET:
                raise LaunchError(
                    f"{self.__name__}() missing the argument {self.kernel.names[i]!r}; the"
                    f" parameters are {', '.join(self.kernel.names)}"
                )
            texts = texts or isinstance(v, str)
        if not texts:
            return values, options
        return (
            tuple(
                (
                    argument(v, f"argument {n} of {self.__name__}", False)
                    if isinstance(v, str) and not c
                    else v
                )
                for n, v, c in zip(self.kernel.names, values, self.kernel.constexpr, strict=False)
            ),
            options,
        )

    def _choose(
        self,
        values: Sequence,
        options: dict,
        grid,
        target: str | None = None,
        measure: bool | None = None,
        without: Config | None = None,
    ) -> Choice:
        """The choice, as it was made before; without: a configuration that it must not be, of
        others that are traced.
        """
        self.kernel.forget_if_rebound()
        if self._rebindings != self.kernel.rebindings:
            self._rebindings = self.kernel.rebindings
            self._choices.clear()
        infos = [
            Constant(UNSET) if v is UNSET else i
            for v, i in zip(values, self._described(values), strict=False)
        ]
        target = target or target_for(infos, self.__name__)
        device = _device(infos, target)
        name = self._named(values, infos, options)
        measure = self._measures(measure) and _may_be_measured(values, infos)
        at = (device, target, name, measure)
        how = (values, options, infos, grid, target, device, name, measure)
        if without is not None:
            self._choices[at] = self._make(*how, without)
        elif at not in self._choices:
            self._choices[at] = (
                self._from_table(device, name, values, options, target)
                or self._from_disk(device, target, name, grid, measure)
                or self._make(*how)
            )
        return self._choices[at]

    def _described(self, values: Sequence) -> list:
        kernel = self.kernel
        return kernel._describe([None if v is UNSET else v for v in values])

    def _named(self, values: Sequence, infos: Sequence, options: dict) -> str:
        chosen = [n for n, v in zip(self.kernel.names, values, strict=False) if v is UNSET]
        text = (
            key(self.kernel.names, infos, chosen)
            if self.key is None
            else str(self.key(self._arguments(values)))
        )
        return " ".join([text, *(f"{k}={v!r}" for k, v in sorted(options.items()))])

    def _arguments(self, values: Sequence) -> dict:
        return {n: v for n, v in zip(self.kernel.names, values, strict=False) if v is not UNSET}

    def _measures(self, asked: bool | None) -> bool:
        said = os.environ.get("TKC_AUTOTUNE", "")
        if said not in ("", "0", "1"):
            raise TuningError(
                "TKC_AUTOTUNE is 0 (never measure) or 1 (measure where it was told not to), got"
                f" {said!r}"
            )
        if said:
            return said == "1"
        return self.measuring if asked is None else asked

    def _from_table(
        self, device: str, name: str, values: Sequence, options: dict, target: str
    ) -> Choice | None:
        """A table's choice, if it still compiles for these arguments."""
        if self._path is not None:
            path, self._path = self._path, None
            self.import_table(path)
        found = self._table.get(device, self.__name__, name)
        if found is None:
            return None
        try:
            self.kernel._get(self._specialization(values, options, found.config), target)
        except Error:
            return None
        return found

    def _from_disk(
        self, device: str, target: str, name: str, grid: Any, measure: bool
    ) -> Choice | None:
        disk, at = cache.disk(), self._entry(device, target, name, grid, measure)
        parts = disk.get(at) if disk and at else None
        try:
            found = parts and json.loads(parts["choice"])
        except (ValueError, KeyError):
            return None
        if not found:
            return None
        return Choice(
            Config(**found["config"]), found["source"], found["seconds"], tuple(found["others"])
        )

    def _to_disk(
        self, device: str, target: str, name: str, grid: Any, measure: bool, choice: Choice
    ) -> Choice:
        disk, at = cache.disk(), self._entry(device, target, name, grid, measure)
        try:
            text = json.dumps(
                {
                    "config": dict(choice.config.items),
                    "source": choice.source,
                    "seconds": choice.seconds,
                    "others": choice.others,
                }
            )
        except TypeError:
            text = None  # a constant that JSON cannot say: made again in the next process
        if disk and at and text:
            disk.put(at, {"choice": text.encode()})
        return choice

    def _entry(self, device: str, target: str, name: str, grid: Any, measure: bool) -> str | None:
        """The name of a choice on disk, of all that it depends on; None where some of that has no
        spelling.
        """
        found = fingerprint.Fingerprint(self.kernel.fn)
        made_by = [
            sources(x) if callable(x) else repr(x).encode() for x in (self._configs, self.key)
        ]
        of_grid = fingerprint.Fingerprint()
        if callable(grid):
            of_grid.read("grid", grid)
        if found.unstable or of_grid.unstable or None in made_by:
            return None
        return digest(
            [
                ("autotune", b"measured" if measure else b"model"),
                *found.fields,
                ("device", device.encode()),
                ("target", target.encode()),
                ("key", name.encode()),
                ("limit", str(self.limit).encode()),
                *(("made by", text) for text in made_by if text is not None),
                *of_grid.fields,
                *toolchain(),
                *environment(),
            ]
        )

    def _make(
        self,
        values: Sequence,
        options: dict,
        infos: Sequence,
        grid,
        target: str,
        device: str,
        name: str,
        measure: bool,
        without: Config | None = None,
    ) -> Choice:
        """The choice, on disk too. Where none is to be left out, and nothing measured, those whose
        seconds are known are not traced.
        """
        traced = measure or without is not None
        with progress(f"choosing a configuration of {self.__name__}"):
            found, reasons = self.candidates(values, options, grid, target, traced, without)
        choice = None
        if measure and len(found) > 1:
            try:
                choice = self._measured(found, values, options, infos, grid, target, reasons)
                self._table.put(device, self.__name__, name, choice)
            except NotMeasured as e:
                reasons.append(str(e))
        if choice is None:
            others, known = tuple(_lines(found[1:]) + reasons), _are_known([found[0].config])
            choice = Choice(found[0].config, "model", found[0].seconds, others, traced or not known)
        return self._to_disk(device, target, name, grid, measure, choice)

    def candidates(
        self,
        values: Sequence,
        options: dict,
        grid: Any,
        target: str,
        traced: bool = True,
        without: Config | None = None,
    ) -> tuple[list[Candidate], list[str]]:
        """What the model would have measured, best first, and why other configurations are out.
        traced: also configurations whose seconds are known, which need not be; without: one that is
        left out. Raises TuningError if none is left.
        """
        given = {
            n: v
            for n, v, c in zip(self.kernel.names, values, self.kernel.constexpr, strict=False)
            if c and v is not UNSET
        } | options
        configs = self._configs
        if callable(configs):
            self._check(configs := _as_configs(self._made(configs, values, target)))
        full = [c for c in self._completed(configs, values, given) if c != without]
        if full and not traced and _are_known(full):
            known = (Candidate(c, c.seconds) for c in full)
            return sorted(known, key=lambda c: c.seconds or 0.0), []

        def extents(merged_values):
            return self.extents(grid, merged_values)

        found, reasons = rank(self.kernel, values, options, full, extents, target, self.limit)
        if not found:
            why = f": {reasons[0]}" if reasons else _asked_for(given)
            raise TuningError(
                f"{self.__name__}: none of {len(configs)} configurations fits these arguments on"
                f" {target}{why}; give tkc.autotune one that does"
            )
        return found, reasons

    def _completed(
        self, configs: Iterable[Config], values: Sequence, given: dict[str, Any]
    ) -> list[Config]:
        """Those that what is given leaves, with the defaults of constants."""
        fitting = [c for c in configs if all(given.get(k, v) == v for k, v in c.items)]
        return list(
            dict.fromkeys(
                Config(
                    **self._defaults(values) | {k: v for k, v in c.items if k not in given}
                ).expected(c.seconds)
                for c in fitting
            )
        )

    def _made(
        self, configs: Callable[..., Iterable[Config | dict]], values: Sequence, target: str
    ) -> Iterable[Config | dict]:
        """What a function of the bound arguments, and of the target if it takes two, gives."""
        arguments = self._arguments(values)
        takes_target = len(signature(configs).parameters) > 1
        return configs(arguments, target) if takes_target else configs(arguments)

    def _defaults(self, values: Sequence) -> dict:
        return {
            p.name: p.default
            for p, v, c in zip(self.kernel.parameters, values, self.kernel.constexpr, strict=False)
            if c and v is UNSET and p.default is not p.empty
        }

    def _check(self, configs: Sequence[Config]) -> None:
        constants = {n for n, c in zip(self.kernel.names, self.kernel.constexpr, strict=False) if c}
        if not configs:
            raise TuningError(f"{self.__name__}: tkc.autotune needs at least one configuration")
        for c in configs:
            if unknown := [k for k, _ in c.items if k not in constants and k not in OPTIONS]:
                raise TuningError(
                    f"{self.__name__}: {c} sets {unknown[0]!r}, which is neither a constexpr"
                    f" parameter ({', '.join(sorted(constants)) or 'there are none'}) nor an option"
                    f" ({', '.join(OPTIONS)})"
                )

    def _specialization(self, values: Sequence, options: dict, config: Config):
        return self.kernel._specialize(
            self.kernel._describe(merged(self.kernel, values, config)),
            tuple((options | config.options).items()),
        )

    # ----------------------------------------------------------------------------------------------
    def _measured(
        self,
        found: Sequence[Candidate],
        values: Sequence,
        options: dict,
        infos: Sequence,
        grid,
        target: str,
        reasons: Sequence[str],
    ) -> Choice:
        from tkc.runtime import timing

        kernel, said = self.kernel, list(reasons)
        written = self._changed([c.config for c in found], values, options)
        with progress(f"tuning {self.__name__}") as line:
            line.say(f"compiling {len(found)} candidates")
            specializations = [self._specialization(values, options, c.config) for c in found]
            errors = workers.compile_all(kernel, specializations, target)
            said += [f"{c.config}: {e}" for c, e in zip(found, errors, strict=True) if e]
            compiled = [c for c, e in zip(found, errors, strict=True) if not e]
            kept, launches = self._launches(compiled, values, options, grid, said)
            number = next((i.device for i in infos if isinstance(i, ArrayInfo)), -1)
            line.say(f"measuring {len(kept)} candidates")

            def failed(i: int, e: Exception) -> None:
                said.append(f"{kept[i].config}: {type(e).__name__}: {str(e).splitlines()[0]}")

            with _Restored(written, number):
                seconds = timing.measure(launches, number, self.budget, failed)
        ranked = sorted(
            (Candidate(c.config, s) for c, s in zip(kept, seconds, strict=False) if s is not None),
            key=lambda c: c.seconds or 0.0,
        )
        if not ranked:
            raise TuningError(
                f"{self.__name__}: none of {len(errors)} candidates ran on these arguments:"
                f" {said[0] if said else 'no reason is known'}"
            )
        return Choice(
            ranked[0].config, "measured", ranked[0].seconds, tuple(_lines(ranked[1:]) + said)
        )

    def _changed(
        self, configs: Sequence[Config], values: Sequence, options: dict
    ) -> list[ArrayInfo]:
        """The arrays that a configuration both reads and writes: one may store what others add up
        in memory.
        """
        kernel = self.kernel
        found: dict[tuple, ArrayInfo] = {}
        for constants in {tuple(c.constants.items()): c for c in configs}.values():
            infos = kernel._describe(merged(kernel, values, constants))
            found |= {(a.pointer, a.span): a for a in changed(kernel, infos, options)}
        return list(found.values())

    def _launches(
        self,
        found: Sequence[Candidate],
        values: Sequence,
        options: dict,
        grid: Any,
        said: list[str],
    ) -> tuple[list[Candidate], list[Callable[[], None]]]:
        """The candidates that can be launched, and their launches; `said`: why others cannot."""
        launches, kept = [], []
        for c in found:
            full = merged(self.kernel, values, c.config)
            extents = self.extents(grid, full)
            try:
                launches.append(self.kernel._prepare(full, options | c.config.options, extents))
                kept.append(c)
            except Error as e:
                said.append(f"{c.config}: {str(e).splitlines()[0]}")
        return kept, launches

    def assemble(
        self, *args: Any, grid: Any, target: str, path: str | Path, **kwargs: Any
    ) -> list[Config]:
        """Compiles and assembles the candidates for arguments (texts such as "bf16[64, 64]" will
        do) into a file for `measure`; no GPU is needed.

        Gives the configurations, the model's best first. Raises TuningError where none fits,
        CompileError without ptxas.
        """
        values, options = self.bound(*args, **kwargs)
        found, _ = self.candidates(values, options, grid, target)
        specializations = [self._specialization(values, options, c.config) for c in found]
        errors = workers.compile_all(self.kernel, specializations, target)
        parts: dict[str, bytes] = {}
        kept: list[dict[str, Any]] = []
        for c, s, e in zip(found, specializations, errors, strict=True):
            if e:
                continue
            compiled = self.kernel._get(s, target)
            parts |= {f"{len(kept)}.{k}": v for k, v in compiled.pack().items()}
            if target != "cpu":
                from tkc.runtime.launch import cubin

                parts[f"{len(kept)}.image"] = compiled.image or cubin(compiled)
            kept.append(
                {
                    "config": dict(c.config.items),
                    "seconds": c.seconds,
                    "meaning": self._meaning(s),
                }
            )
        if not kept:
            raise TuningError(
                f"{self.__name__}: none of {len(found)} candidates compiles for {target}:"
                f" {errors[0]}"
            )
        parts["index"] = json.dumps(
            {"format": ASSEMBLY, "kernel": self.__name__, "target": target, "candidates": kept}
        ).encode()
        cache.write_entry(Path(path), ASSEMBLY, parts)
        return [Config(**c["config"]) for c in kept]

    def _meaning(self, s: Specialization) -> str | None:
        """What compiled code is of, on whichever machine; None where that has no spelling."""
        meaning = self.kernel.meaning(s)
        made_by = ("tkc", package_hash().encode())
        return None if meaning is None else digest([*meaning, made_by])

    def measure(self, path: str | Path, *args: Any, grid: Any, **kwargs: Any) -> Choice:
        """Measures the candidates that `assemble` wrote, on these arguments, and remembers the
        choice. Raises TuningError where the file is for other arguments or another machine.
        """
        values, options = self.bound(*args, **kwargs)
        parts = cache.read_entry(Path(path), ASSEMBLY) or {}
        index = json.loads(parts["index"]) if parts else {}
        if index.get("kernel") != self.__name__:
            raise TuningError(
                f"{path} is no assembly of {self.__name__}; write one with {self.__name__}.assemble"
            )
        infos = [
            Constant(UNSET) if v is UNSET else i
            for v, i in zip(values, self._described(values), strict=False)
        ]
        target = target_for(infos, self.__name__)
        if index["target"].partition(":")[0] != target.partition(":")[0]:
            raise TuningError(
                f"{path} was assembled for {index['target']}, and the arrays are on {target};"
                f" assemble it with target={target!r}"
            )
        found = []
        for i, entry in enumerate(index["candidates"]):
            config = Config(**entry["config"])
            s = self._specialization(values, options, config)
            if (said := self._meaning(s)) is None or said != entry["meaning"]:
                continue
            self.kernel.adopt(
                s,
                target,
                {k.partition(".")[2]: v for k, v in parts.items() if k.startswith(f"{i}.")},
            )
            found.append(Candidate(config, entry["seconds"]))
        if not found:
            raise TuningError(
                f"{path} was assembled for other arguments (element types, extents that divide"
                " otherwise, constants), of another text of the kernel or by another tkc; assemble"
                " it again"
            )
        device, name = _device(infos, target), self._named(values, infos, options)
        choice = self._choices[device, target, name, True] = self._measured(
            found, values, options, infos, grid, target, ()
        )
        self._choices[device, target, name, False] = choice
        self._table.put(device, self.__name__, name, choice)
        tables_changed()
        return choice

    # ----------------------------------------------------------------------------------------------
    def export_table(self, path: str | Path) -> int:
        """Writes every choice that was measured or imported, with those a file already has; gives
        their number. Raises TuningError.
        """
        old = Table.read(path).entries if Path(path).exists() else {}
        made = Table()
        made.entries = old | self._table.entries
        made.write(path)
        return len(made.entries)

    def import_table(self, path: str | Path) -> int:
        """Reads choices; they come before the disk and the model. Gives their number. Raises
        TuningError.
        """
        entries = Table.read(path).entries
        self._table.entries |= entries
        self._choices.clear()
        tables_changed()
        return len(entries)


class _Restored:
    """Keeps the bytes of arrays while their kernel is measured, and puts them back."""

    def __init__(self, arrays: Sequence[ArrayInfo], device: int):
        self.arrays, self.device = [a for a in arrays if a.span != (0, 0)], device
        self.kept: list[Any] = []

    def __enter__(self):
        for a in self.arrays:
            low, high = a.span
            if self.device < 0:
                import ctypes

                self.kept.append(ctypes.string_at(a.pointer + low, high - low))
                continue
            from tkc.runtime import driver

            with driver.context(self.device):
                copy = int(
                    driver.check(
                        driver.api().cuMemAlloc(high - low),
                        "keeping an array while its kernel is measured",
                    )
                )
                self.kept.append(copy)
                driver.check(driver.api().cuCtxSynchronize(), "waiting for an array")
                driver.check(
                    driver.api().cuMemcpyDtoD(copy, a.pointer + low, high - low),
                    "keeping an array while its kernel is measured",
                )

    def __exit__(self, *exception) -> None:
        for a, copy in zip(self.arrays, self.kept, strict=False):
            low, high = a.span
            if self.device < 0:
                import ctypes

                ctypes.memmove(a.pointer + low, copy, high - low)
                continue
            from tkc.runtime import driver

            if driver.poison:
                return
            with driver.context(self.device):
                driver.check(
                    driver.api().cuMemcpyDtoD(a.pointer + low, copy, high - low),
                    "putting an array back",
                )
                driver.check(driver.api().cuMemFree(copy), "freeing an array's copy")


def _parts_of(function: FunctionType) -> tuple | None:
    """Equal of functions that do the same: of one code, whose variables and defaults hold the same
    constants. None where they hold something else.
    """
    defaults, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    try:
        held = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable that is not assigned yet
        return None
    found = (*held, *defaults, *named.values())
    if not all(type(v) in GRID_CONSTANTS for v in found):
        return None
    where = function.__code__, id(function.__globals__), len(held), len(defaults), *named
    return *where, found, tuple(map(types_of, found))


def _with_own_variables(function: FunctionType) -> FunctionType:
    """The same function, whose variables nobody else changes."""
    cells = tuple(CellType(cell.cell_contents) for cell in function.__closure__ or ())
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        cells or None,
    )
    copy.__kwdefaults__, copy.__module__ = function.__kwdefaults__, function.__module__
    copy.__qualname__ = function.__qualname__
    return copy


def _may_be_measured(values: Sequence, infos: Sequence) -> bool:
    """Whether arrays have storage to launch on, no stream is captured, and there is one rank: every
    rank would have to measure the same launches.
    """
    return (
        not any(isinstance(i, ArrayInfo) and not i.pointer and i.span != (0, 0) for i in infos)
        and not _captured(values, infos)
        and not any(isinstance(i, PeersInfo) for i in infos)
    )


def _captured(values: Sequence, infos: Sequence) -> bool:
    """Whether the caller's stream is being captured into a graph: then nothing can be measured, and
    the model's choice is taken.
    """
    number = next((i.device for i in infos if isinstance(i, ArrayInfo)), -1)
    if number < 0:
        return False
    from tkc.runtime import launch, timing

    return timing.capturing(launch.stream_source(values, number)())


def _device(infos: Sequence, target: str) -> str:
    """The name under which choices are kept: the GPU's, or the processor's kind."""
    number = next((i.device for i in infos if isinstance(i, ArrayInfo)), -1)
    if number >= 0:
        from tkc.runtime import driver

        return driver.name(number)
    return target if target != "cpu" else f"cpu {digest([('cpu', host_cpu())])[:12]}"


def _as_configs(configs: Iterable[Config | dict]) -> list[Config]:
    return [c if isinstance(c, Config) else Config(**c) for c in configs]


def _asked_for(given: dict[str, Any]) -> str:
    """What a launch asks for, where that leaves no configuration."""
    return f"; the launch asks for {', '.join(f'{k}={v!r}' for k, v in given.items())}" * bool(
        given
    )


def _are_known(configs: Iterable[Config]) -> bool:
    """Whether the seconds of all are known."""
    return all(c.seconds is not None for c in configs)


def _lines(found: Sequence[Candidate]) -> list[str]:
    return [
        (
            f"{c.config}: {c.seconds * 1e6:.2f} us"
            if c.seconds is not None
            else f"{c.config}: no model"
        )
        for c in found
    ]
