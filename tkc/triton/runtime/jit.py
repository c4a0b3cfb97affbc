"""`triton.jit`: a function that is launched as `kernel[grid](…)` and called by other kernels."""

from __future__ import annotations

import inspect
import linecache
import os
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from types import FunctionType, SimpleNamespace
from typing import Any

from tkc.errors import LaunchError
from tkc.language import operations
from tkc.language.tracer import tracer, tracing
from tkc.runtime.arrays import describe, is_array
from tkc.runtime.fingerprint import Parts
from tkc.runtime.handed import handing, takers
from tkc.runtime.jit import JitFunction, Launchable, normalized, variables, watches
from tkc.runtime.kernel import Watch
from tkc.runtime.launch_cache import FUNCTION_PARTS
from tkc.triton.errors import InvalidOption
from tkc.triton.language import import_all
from tkc.triton.language.constants import constexpr, tuple_, unwrap, unwrap_all
from tkc.triton.language.context import Settings, using
from tkc.triton.language.control import take_part, traced
from tkc.triton.language.memory import tensor_descriptor
from tkc.triton.language.types import of_library, signature_name, type_canonicalisation_dict
from tkc.triton.language.values import tensor
from tkc.triton.runtime import forms
from tkc.triton.runtime.arguments import MockTensor, TensorWrapper, reinterpret
from tkc.triton.runtime.compiled import HINTS, CompiledKernel
from tkc.triton.runtime.forms import Form, Parameter

__all__ = [
    "JITFunction",
    "KernelInterface",
    "MockTensor",
    "TensorWrapper",
    "constexpr_function",
    "jit",
    "reinterpret",
    "type_canonicalisation_dict",
]

# Options of a launch that shape Triton's code, and that tkc's planner decides without
IGNORED = (
    *("launch_cooperative_grid", "enable_fp_fusion", "extern_libs", "stream"),
    *("ir_override", "waves_per_eu", "matrix_instr_nonkdim", "kpack", "cluster_dims", "device"),
    *("allow_fp8e4nv", "max_num_imprecise_acc_default", "sanitize_overflow", "device_type"),
    *("instrumentation_mode", "supported_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes"),
    *("allowed_dot_input_precisions", "backend_name", "arch", "ptx_version", "ptx_options"),
    *("default_dot_input_precision", "minRegAutoWS", "maxRegAutoWS", "noinline"),
    "enable_reflect_ftz",
)
# of Triton; who asks for fewer means it
DEFAULT_WARPS = 4
# assertions: as under debug=True, without tkc's checks of every access
OWN = ("strict", "roles", "debug", "assertions", "launch_pdl")
READ = variables("TRITON_DEBUG")  # variables of the environment that launches depend on
# how tkc takes an argument of a form
_MARKS: dict[type, str] = {forms.Constant: "constexpr", forms.Pointer: "pointer"}
FORM = "_triton_form"  # a compile-time argument that tells kernels of other forms apart


_observers: list[Callable[[CompiledKernel], None]] = []


@contextmanager
def observed(observer: Callable[[CompiledKernel], None]) -> Iterator[None]:
    """Within it, each launch is told to a function before it is made."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


class KernelInterface:
    """What `f[grid](…)` launches: a kernel, or a tuned one."""

    fn: Any

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Compiles, and launches nothing. Arguments may be dtypes in place of arrays."""
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **kwargs)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)


@dataclass(frozen=True)
class KernelParam:
    """A parameter, as packages ask for it."""

    num: int
    name: str
    annotation: Any
    default: Any
    do_not_specialize: bool

    @property
    def is_constexpr(self) -> bool:
        text = self.annotation if isinstance(self.annotation, str) else ""
        name = text or getattr(self.annotation, "__name__", "")
        return name.strip().split(".")[-1].split("[")[0] == "constexpr"

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty


class JITFunction(KernelInterface, Launchable):
    """A function under triton.jit. To its launch caches it is the kernel; what they remember are
    launches of tkc's kernels, one for each form of arguments.
    """

    __triton_call__ = True
    never_changes = True  # so launches are remembered by which function is given

    def __init__(
        self,
        fn: Callable,
        version: Any = None,
        do_not_specialize: Any = None,
        do_not_specialize_on_alignment: Any = None,
        debug: bool | None = None,
        noinline: bool | None = None,
        repr: Callable | None = None,
        launch_metadata: Callable | None = None,
        strict: bool = False,
    ):
        if not isinstance(fn, FunctionType):
            raise TypeError(f"triton.jit takes a function, got {type(fn).__name__}")
        self.signature = inspect.signature(fn)
        super().__init__(fn, tuple(self.signature.parameters.values()), {})
        self.__globals__ = fn.__globals__
        self.module, self.noinline, self.version = fn.__module__, noinline, version
        self.repr = (lambda _: fn.__name__) if repr is None else repr
        self.arg_names = list(self.signature.parameters)
        fixed = {self.arg_names[n] if isinstance(n, int) else n for n in do_not_specialize or ()}
        self.params = [
            KernelParam(i, n, p.annotation, p.default, n in fixed)
            for i, (n, p) in enumerate(self.signature.parameters.items())
        ]
        self.constexprs = [p.num for p in self.params if p.is_constexpr]
        self.do_not_specialize, self.launch_metadata = do_not_specialize or (), launch_metadata
        self.debug, self.strict = debug, strict
        self.pre_run_hooks: list[Callable] = []
        # by form: the kernel, and what tells its form apart in caches
        self.kernels: dict[tuple, tuple[JitFunction, str]] = {}
        self.names = tuple(self.arg_names)
        self.constexpr = tuple(p.is_constexpr for p in self.params)
        self._epochs: tuple[tuple[object, ...], object] = (), object()
        self._source: str | None = None
        # what its kernels are copies of, which may be replaced in place
        self._parts = _parts_of(fn)
        self._marked = {p.name for p in self.params if p.is_constexpr}
        self._parameters = {
            p.name: Parameter(p.name, p.is_constexpr, not p.do_not_specialize) for p in self.params
        }
        take_part(fn)

    def __repr__(self) -> str:
        return f"JITFunction({self.module}:{self.fn.__qualname__})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """In a kernel: runs as a part of it."""
        if not tracing():
            raise RuntimeError(
                f"cannot call the triton.jit function {self.__name__} outside of a kernel; launch"
                f" it as {self.__name__}[grid](…)"
            )
        bound = self.signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if name in self._marked and isinstance(value, (bool, int, float, str)):
                bound.arguments[name] = constexpr(value)
        return traced(self.fn)(*bound.args, **bound.kwargs)

    # ---- what packages read of a kernel
    @property
    def src(self) -> str:
        """The source, from `def` on."""
        if self._source is None:
            text = textwrap.dedent(inspect.getsource(self.fn))
            self._source = text[text.index("def ") :]
        return self._source

    @property
    def raw_src(self) -> list[str]:
        return inspect.getsourcelines(self.fn)[0]

    @property
    def cache_key(self) -> str:
        return sha256(self.src.encode()).hexdigest()

    def _unsafe_update_src(self, text: str) -> None:
        """Another source for the same kernel."""
        name = f"<{self.__qualname__} changed {sha256(text.encode()).hexdigest()[:12]}>"
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        space = self.fn.__globals__ | _closed_over(self.fn)
        made: dict[str, Any] = {}
        exec(compile(text, name, "exec"), space, made)
        code, defaults = made[self.fn.__name__].__code__, made[self.fn.__name__].__defaults__
        fn = FunctionType(code, space, self.fn.__name__, defaults)
        fn.__module__, fn.__qualname__ = self.fn.__module__, self.fn.__qualname__
        self.fn, self._source, self._parts = fn, text, _parts_of(fn)
        self.kernels.clear()
        self.forget_launches()
        take_part(fn)

    def add_pre_run_hook(self, hook: Callable) -> None:
        """Called with the arguments of every launch before it."""
        self.pre_run_hooks.append(hook)

    # ---- what launch caches ask
    @property
    def kernel(self) -> JITFunction:
        return self

    @property
    def _own(self) -> list[JitFunction]:
        """tkc's kernels of the forms so far."""
        return [kernel for kernel, _ in self.kernels.values()]

    @property
    def careful(self) -> bool:
        """Whether what a kernel reads may change without a name being rebound."""
        return any(kernel.careful for kernel in self._own)

    @property
    def epoch(self) -> object:
        """Another object whenever launch caches must look at something else."""
        now = tuple(kernel.epoch for kernel in self._own)
        if now != self._epochs[0]:
            self._epochs = now, object()
        return self._epochs[1]

    def forget_caches(self) -> None:
        """Launch caches of before are not looked at any more."""
        self._epochs = (), object()

    def forget_if_rebound(self) -> None:
        if any(parts.get(name) is not value for parts, name, value in self._parts):
            self._parts = _parts_of(self.fn)
            self.kernels.clear()
            self.forget_launches()
        for kernel in self._own:
            kernel.forget_if_rebound()

    def watching(self) -> tuple[Watch, ...]:
        watched = *watches(READ), *self._parts
        found = {(id(space), name): (space, name, value) for space, name, value in watched}
        for kernel in self._own:
            found |= {(id(w[0]), w[1]): w for w in kernel.watching()}
        return tuple(found.values())

    def made(self, args: Sequence, kwargs: dict[str, Any], grid: Any) -> Callable[[], None]:
        """The launch of such a call. Of arguments that are several to tkc's kernel, or another
        view of what is given, its own cache remembers launches.
        """
        given, options = self.given(args, kwargs)
        kernel, flat, found = self._formed(given, options)
        values, more = [flat[n] for n in kernel.names], _options_in(flat, kernel)
        if all(isinstance(form, forms.Single) for _, form in found):
            return kernel.made(values, more, grid)
        return partial(kernel[grid], *values, **more)

    # ---- launches
    def given(
        self, args: Sequence, kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arguments by parameter, options). Raises LaunchError."""
        values, options = self.bound(*args, **kwargs)
        for name in options:
            if name not in HINTS and name not in IGNORED and name not in OWN:
                raise LaunchError(
                    f"{self.__name__}: keyword argument {name} is neither a parameter nor an"
                    f" option; the options are {', '.join((*HINTS, *OWN))}"
                )
        warps = options.get("num_warps")
        if warps is not None and (warps < 1 or warps & (warps - 1)):
            raise InvalidOption(f"{self.__name__}: num_warps must be a power of 2, got {warps}")
        return dict(zip(self.names, values, strict=True)), options

    def prepared(
        self, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[JitFunction, dict[str, Any]]:
        """The kernel of tkc for these arguments, and its arguments by name."""
        return self._formed(given, options)[:2]

    def _formed(
        self, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[JitFunction, dict[str, Any], tuple[tuple[str, Form], ...]]:
        """The same, with the form of each parameter."""
        flat: dict[str, Any] = {}
        found = tuple(
            (name, forms.form_of(given[name], p, flat)) for name, p in self._parameters.items()
        )
        checked = bool(options.get("debug") or self.debug or _debugging())
        settings = Settings(
            bool(options.get("strict", self.strict)), checked or bool(options.get("assertions"))
        )
        key = found, settings
        if key not in self.kernels:
            self.kernels[key] = self._kernel(found, settings), f"{found} {settings}"
        kernel, flat[FORM] = self.kernels[key]
        if settings.strict:
            flat |= {n: options[n] for n in (*HINTS, "roles") if options.get(n) is not None}
        elif (warps := options.get("num_warps")) and warps < DEFAULT_WARPS:
            flat["suggested_warps"] = warps
        if checked:
            flat["debug"] = True
        if options.get("launch_pdl"):
            flat["dependent"] = True
        return kernel, flat, found

    def _kernel(self, found: tuple[tuple[str, Form], ...], settings: Settings) -> JitFunction:
        """tkc's kernel of one form of arguments."""
        fn = self.fn
        copy = FunctionType(
            fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
        )
        copy.__kwdefaults__, copy.__module__ = fn.__kwdefaults__, fn.__module__
        copy.__qualname__ = fn.__qualname__
        marks = {leaf.name: _MARKS.get(type(leaf)) for _, f in found for leaf in forms.leaves(f)}
        copy.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what inspect reads
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    annotation=mark or inspect.Parameter.empty,
                )
                for name, mark in (marks | {FORM: "constexpr"}).items()
            ]
        )

        def run(**values: Any) -> Any:
            import_all()
            with using(settings):
                with tracer().at(fn.__code__.co_filename, fn.__code__.co_firstlineno):
                    seen = {name: forms.rebuilt(f, lambda p: _seen(p, values)) for name, f in found}
                return traced(fn)(**seen)

        copy.__traced_by__ = run  # type: ignore[attr-defined]  # what tkc's tracer reads
        return JitFunction(copy)

    def given_back(self, args: Sequence, kwargs: dict[str, Any]) -> CompiledKernel:
        values = [_without_memory(v) for v in (*args, *kwargs.values())]
        names = dict(zip(kwargs, values[len(args) :], strict=True))
        return CompiledKernel(self, tuple(values[: len(args)]), names)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """What launches on a grid. Hooks and observers that come later are not told of its
        launches.
        """
        if not (takers or _observers or self.pre_run_hooks):
            try:
                if (found := self._quickest.get(grid)) is not None:
                    return found
            except TypeError:  # a list
                pass
        if callable(grid) or _observers or self.pre_run_hooks:
            return partial(self.run, grid=grid)
        return self._on(grid)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> CompiledKernel:
        """Launches on a grid, or only compiles."""
        if warmup or _observers or self.pre_run_hooks:
            return self._told(args, kwargs, grid, warmup)
        if callable(grid):
            grid = grid(CompiledKernel(self, args, kwargs).meta)
        return self._on(grid)(*args, **kwargs)

    def _told(self, args: tuple, kwargs: dict[str, Any], grid: Any, warmup: bool) -> CompiledKernel:
        """`run`, with what is called before; or for a compilation, which takes stand-ins."""
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        if warmup:
            args = tuple(map(_described, args))
            kwargs = {n: _described(v) for n, v in kwargs.items()}
        launched = CompiledKernel(self, args, kwargs)
        if not warmup:
            launched.grid = extents(grid(launched.meta) if callable(grid) else grid)
        for observer in _observers:
            observer(launched)
        if warmup:
            _ = launched.compiled
        else:
            self._on(launched.grid)(*args, **kwargs)
        return launched

    def _on(self, grid: Any) -> Callable[..., CompiledKernel]:
        """What calls on a grid of numbers go to."""
        if handing():
            return partial(self._handed, grid)
        try:
            found = self._quickest.get(grid)
        except TypeError:  # a list
            found = None
        if found is not None:
            return found
        numbers = extents(grid)
        return self._launcher(normalized(numbers, self.__name__), numbers)

    def _handed(self, grid: Any, /, *args: Any, **kwargs: Any) -> CompiledKernel:
        """A launch that another function makes."""
        self.made(args, kwargs, extents(grid))()
        return CompiledKernel(self, args, kwargs)

    @property
    def constexpr_names(self) -> set[str]:
        """Of the parameters under tl.constexpr."""
        return self._marked

    def name_of(self, given: Mapping[str, Any]) -> str:
        """The kernel's name for these arguments, by `triton.jit(repr=...)`."""
        fixed = {
            n: v
            for n, v in given.items()
            if n in self._marked or v is None or _is_one(v) and self._parameters[n].specialized
        }
        said = SimpleNamespace(fn=self, signature=self.signature_of(given), constants=fixed)
        return self.repr(said)

    def signature_of(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Types by parameter, as Triton spells them: *fp32, i32, constexpr."""
        return {
            name: "constexpr" if name in self._marked else _type_name(value)
            for name, value in given.items()
        }


def _parts_of(fn: FunctionType) -> tuple[Watch, ...]:
    parts = Parts(fn)
    return tuple((parts, n, value) for n in FUNCTION_PARTS if (value := parts.get(n)) is not None)


def _is_one(value: Any) -> bool:
    return isinstance(value, int) and value == 1


def _closed_over(fn: FunctionType) -> dict[str, Any]:
    """What a function reads of the functions around it, as far as it is assigned already."""
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    return found


def _type_name(value: Any) -> str:
    element = of_library(getattr(value, "dtype", None))
    if element is not None:
        return f"*{signature_name(element)}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        if value >= 2**63:
            return "u64"
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "constexpr"


def _debugging() -> bool:
    return os.environ.get("TRITON_DEBUG", "0") not in ("", "0")


def _without_memory(value: Any) -> Any:
    """The description of an array in its place."""
    if isinstance(value, forms.Wrapped):
        return replace(forms.reinterpreted(value), owner=None)
    return replace(describe(value), owner=None) if is_array(value) else value


def _described(value: Any) -> Any:
    return value.described() if isinstance(value, MockTensor) else value


def extents(grid: Any) -> Any:
    """A grid of integers of any kind."""
    if isinstance(grid, (tuple, list)):
        return tuple([n if type(n) is int else int(unwrap(n)) for n in grid])
    return int(unwrap(grid))


def _options_in(flat: Mapping[str, Any], kernel: JitFunction) -> dict[str, Any]:
    """What is given besides the kernel's parameters: options of tkc's launch."""
    return {n: v for n, v in flat.items() if n not in kernel.names}


def _seen(form: Any, values: Mapping[str, Any]) -> Any:
    """What a kernel sees of an argument."""
    value = values[form.name]
    if isinstance(form, forms.Pointer):
        return tensor(value)
    if isinstance(form, forms.Descriptor):
        extents, strides = tuple_(value.shape), tuple_(value.strides)
        return tensor_descriptor(value, extents, strides, tuple_(form.block), form.padding)
    if isinstance(form, forms.Number):
        if isinstance(value, (bool, int, float)):
            return constexpr(value)
        if form.natural:
            operations.never_negative(value)
        return tensor(value)
    return value if value is None or isinstance(value, tuple) else constexpr(value)


def jit(fn: Callable | None = None, **options: Any) -> Any:
    """Makes a kernel of a function: a decorator, with or without options."""
    return (lambda f: JITFunction(f, **options)) if fn is None else JITFunction(fn, **options)


# of values in which there is no constexpr to unwrap
TYPES_WITHOUT_CONSTEXPR = frozenset({bool, int, float, str, type(None)})


class ConstexprFunction:
    """A function of compile-time values, called by kernels and by the host."""

    __triton_call__ = True

    def __init__(self, fn: Callable):
        self.fn = self.__wrapped__ = fn
        self.__name__, self.__module__, self.__doc__ = fn.__name__, fn.__module__, fn.__doc__

    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        return lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and TYPES_WITHOUT_CONSTEXPR.issuperset(map(type, args)) and not tracing():
            return self.fn(*args)  # as hosts call it for each launch
        found = self.fn(*map(unwrap_all, args), **{n: unwrap_all(v) for n, v in kwargs.items()})
        plain = not tracing() or found is None or isinstance(found, tuple)
        return found if plain else constexpr(found)


def constexpr_function(fn: Callable) -> ConstexprFunction:
    """A function that is evaluated while kernels are compiled."""
    return ConstexprFunction(fn)
