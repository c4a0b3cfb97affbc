"""Tuning: configurations of a kernel, which one is launched, and values computed from arguments.

On a GPU configurations are measured. Those that differ in hints alone are one: tkc plans warps and
stages itself. Beside that plan it measures one role with each of their numbers of warps. In host
memory the first one is taken, unless TKC_AUTOTUNE=1 or `do_bench=` says to measure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tkc.errors import Error, TuningError
from tkc.triton.errors import OutOfResources
from tkc.triton.language.constants import unwrap
from tkc.triton.runtime.driver import active, is_on_gpu
from tkc.triton.runtime.jit import JITFunction, KernelInterface

INFINITE = [float("inf")] * 3


class Config:
    """Compile-time values of a kernel's parameters, with hints."""

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable | None = None,
        ir_override: str | None = None,
        **hints: Any,
    ):
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
        self.num_ctas, self.maxnreg, self.pre_hook = num_ctas, maxnreg, pre_hook
        self.ir_override, self.hints = ir_override, hints

    def all_kwargs(self) -> dict[str, Any]:
        """Values and hints, as a launch takes them."""
        hints = {
            "num_warps": self.num_warps,
            "num_ctas": self.num_ctas,
            "num_stages": self.num_stages,
            "maxnreg": self.maxnreg,
            "ir_override": self.ir_override,
        }
        return self.kwargs | {n: v for n, v in hints.items() if v is not None}

    def __str__(self) -> str:
        own = ("num_warps", "num_ctas", "num_stages", "maxnreg")
        words = self.kwargs | {n: getattr(self, n) for n in own}
        return ", ".join(f"{n}: {v}" for n, v in words.items())

    def _key(self) -> tuple:
        return (*self.all_kwargs().items(), self.pre_hook)

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._key() == other._key()


class Strict(Config):
    """Compile-time values with a number of warps that the planner keeps, all of one role."""

    def all_kwargs(self) -> dict[str, Any]:
        return self.kwargs | {"num_warps": self.num_warps, "roles": "one", "strict": True}


class Autotuner(KernelInterface):
    """A kernel whose configuration is chosen by its arguments."""

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Config],
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Callable | None = None,
        post_hook: Callable | None = None,
        prune_configs_by: dict[str, Any] | None = None,
        warmup: Any = None,
        rep: Any = None,
        use_cuda_graph: bool = False,
        do_bench: Callable | None = None,
        cache_results: bool = False,
        **options: Any,
    ):
        self.fn, self.arg_names, self.keys = fn, arg_names, key
        self._names = [k for k in key if k in arg_names]
        self.configs = list(configs) or [Config({})]
        self.cache: dict[tuple, Config] = {}
        self.configs_timings: dict[Config, list[float]] = {}
        self.reset_to_zero, self.restore_value = (
            list(reset_to_zero or ()),
            list(restore_value or ()),
        )
        self.user_defined_pre_hook = pre_hook is not None
        self.user_defined_post_hook = post_hook is not None
        self.pre_hook = pre_hook or self._reset
        self.post_hook = post_hook or self._restore
        prune = prune_configs_by or {}
        self.perf_model, self.configs_top_k = prune.get("perf_model"), prune.get("top_k", 1.0)
        self.early_config_prune = prune.get("early_config_prune")
        self.num_warmups, self.num_reps, self.use_cuda_graph = warmup, rep, use_cuda_graph
        self._do_bench, self.cache_results = do_bench, cache_results
        self.base_fn = base_function(fn)
        self.__name__, self.__module__ = self.base_fn.__name__, self.base_fn.__module__
        self.nargs: dict[str, Any] | None = None
        self.best_config: Config | None = None
        self.bench_time = 0.0
        self._copies: dict[str, Any] = {}
        self._launched: Any = None  # what the last measured launch gave back

    def __repr__(self) -> str:
        return f"Autotuner({self.base_fn.__module__}:{self.base_fn.__name__})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    # ---- what a measurement writes is taken back
    def _reset(self, kwargs: Mapping[str, Any], reset_only: bool = False) -> None:
        for name in self.reset_to_zero:
            _zero(kwargs[name])
        if not reset_only:
            self._copies = {n: _copy(kwargs[n]) for n in self.restore_value}

    def _restore(self, kwargs: Mapping[str, Any], exception: Any = None) -> None:
        for name, kept in self._copies.items():
            _assign(kwargs[name], kept)
        self._copies = {}

    # ---- the choice
    @property
    def do_bench(self) -> Callable:
        return self._do_bench or active.get_benchmarker()

    def _bench(self, *args: Any, config: Config, **meta: Any) -> list[float]:
        """Milliseconds of a configuration: median, lower and upper fifth."""
        if conflicts := meta.keys() & config.kwargs.keys():
            raise TuningError(
                f"{self.__name__}: {', '.join(sorted(conflicts))} is given at the launch and by the"
                " configuration; leave one out"
            )
        current = meta | config.all_kwargs()
        full = (self.nargs or {}) | current

        def kernel_call() -> None:
            if config.pre_hook:
                config.pre_hook(full)
            self.pre_hook(full)
            try:
                self._launched = self.fn.run(*args, **current)
            except Exception as e:
                self.post_hook(full, exception=e)
                raise
            self.post_hook(full, exception=None)

        kernel_call.beside = isinstance(config, Strict)  # type: ignore[attr-defined]
        return _listed(self.do_bench(kernel_call, quantiles=(0.5, 0.2, 0.8)))

    def _key_of(self, args: Mapping[str, Any]) -> tuple:
        """What the choice depends on: the named arguments, and element types."""
        found = [args[n] for n in self.arg_names if n in args]
        types = [_hashable(v.dtype) for v in found if hasattr(v, "dtype")]
        return (*[_hashable(args[k]) for k in self._names if k in args], *types)

    def _measures(self, args: Mapping[str, Any]) -> bool:
        asked = os.environ.get("TKC_AUTOTUNE")
        if asked is not None:
            return asked != "0"
        return self._do_bench is not None or any(is_on_gpu(v) for v in args.values())

    def _choose(self, args: tuple, kwargs: dict[str, Any]) -> Config:
        configs = self.prune_configs(kwargs)
        if len(configs) == 1 or not self._measures((self.nargs or {}) | kwargs):
            return configs[0]
        began, failures = time.perf_counter(), {}
        timings: dict[Config, list[float]] = {}

        def measure(config: Config) -> None:
            try:
                timings[config] = self._bench(*args, config=config, **kwargs)
            except Error as e:
                timings[config], failures[config] = INFINITE, e

        for alike in _apart(configs):
            self._launched = None
            measure(alike[0])
            for config in _with_their_warps(alike, self._launched):
                measure(config)
        if len(failures) == len(timings):
            raise next(iter(failures.values()))
        self.bench_time, self.configs_timings = time.perf_counter() - began, timings
        return min(timings, key=lambda c: timings[c])

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launches the kernel in the configuration for these arguments."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        config = self.configs[0]
        if len(self.configs) > 1:
            key = self._key_of(self.nargs | kwargs)
            if key not in self.cache:
                self.cache[key] = self._choose(args, kwargs)
                chosen = self.cache[key].all_kwargs()
                self.pre_hook(self.nargs | kwargs | chosen, reset_only=True)
            config = self.cache[key]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook(self.nargs | kwargs | config.all_kwargs())
        result = self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.nargs = None
        return result

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        """The configurations that are left by the user's functions."""
        configs = list(self.configs)
        if self.early_config_prune:
            configs = list(self.early_config_prune(configs, self.nargs, **kwargs))
            if not configs:
                raise TuningError(
                    f"{self.__name__}: early_config_prune left no configuration; it must leave one"
                )
        if self.perf_model is None:
            return configs
        top = self.configs_top_k
        count = int(len(self.configs) * top) if isinstance(top, float) and top <= 1.0 else int(top)
        times = {
            c: self.perf_model(**(self.nargs or {}), **kwargs, **c.all_kwargs()) for c in configs
        }
        return sorted(times, key=lambda c: times[c])[: max(count, 1)]

    def warmup(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Compiles every configuration."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        found = [
            self.fn.warmup(*args, **kwargs, **c.all_kwargs()) for c in self.prune_configs(kwargs)
        ]
        self.nargs = None
        return found


def base_function(fn: Any) -> Any:
    """The function of Python under a kernel and what is around it."""
    while hasattr(fn, "fn"):
        fn = fn.fn
    return fn


def _apart(configs: Iterable[Config]) -> list[list[Config]]:
    """Configurations that differ in hints alone, together: those apart differ in values, or in what
    runs before them.
    """
    found: dict[Any, list[Config]] = {}
    for c in configs:
        found.setdefault((tuple(sorted(c.kwargs.items(), key=str)), c.pre_hook), []).append(c)
    return list(found.values())


def _with_their_warps(alike: Sequence[Config], planned: Any) -> list[Config]:
    """With the numbers of warps of these configurations, of one role, where the planner chose
    something else. planned: the planner's own kernel, launched.
    """
    if planned is None or planned.compiled.target == "cpu":
        return []
    return [
        Strict(alike[0].kwargs, warps, pre_hook=alike[0].pre_hook)
        for warps in sorted({c.num_warps for c in alike})
        if warps != planned.warps or planned.persistent
    ]


def _hashable(value: Any) -> Any:
    if type(value) is int:
        return value
    value = unwrap(value)
    try:
        hash(value)
    except TypeError:
        return str(value)
    return value


def _listed(times: Any) -> list[float]:
    return list(times) if isinstance(times, (tuple, list)) else [times] * 3


def _zero(array: Any) -> None:
    """Of torch, or of NumPy."""
    if hasattr(array, "zero_"):
        array.zero_()
    else:
        array[...] = 0


def _copy(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy()


def _assign(array: Any, kept: Any) -> None:
    if hasattr(array, "copy_"):
        array.copy_(kept)
    else:
        array[...] = kept


def autotune(
    configs: Sequence[Config],
    key: Sequence[str],
    prune_configs_by: dict[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    **options: Any,
) -> Callable[[Any], Autotuner]:
    """Tunes a kernel: `configs` are tried for each new combination of the arguments in `key`."""

    def decorate(fn: Any) -> Autotuner:
        return Autotuner(
            fn,
            fn.arg_names,
            configs,
            key,
            reset_to_zero,
            restore_value,
            prune_configs_by=prune_configs_by,
            **options,
        )

    return decorate


class Heuristics(KernelInterface):
    """A kernel with compile-time values that are computed from its arguments."""

    def __init__(self, fn: Any, arg_names: Sequence[str], values: Mapping[str, Callable]):
        self.fn, self.values, self.arg_names = fn, values, arg_names
        base = base_function(fn)
        self.__name__, self.__module__ = base.__name__, base.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launches the kernel with these values."""
        for name, compute in self.values.items():
            kwargs[name] = compute(dict(zip(self.arg_names, args, strict=False)) | kwargs)
        return self.fn.run(*args, **kwargs)


def heuristics(values: Mapping[str, Callable]) -> Callable[[Any], Heuristics]:
    """Computes compile-time values of a kernel from its arguments."""
    return lambda fn: Heuristics(fn, fn.arg_names, values)


__all__ = [
    "Autotuner",
    "Config",
    "Heuristics",
    "JITFunction",
    "OutOfResources",
    "autotune",
    "heuristics",
]
