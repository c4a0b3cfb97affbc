"""`@tkc.jit`: a Python function that runs as a kernel. `kernel[grid](*arguments, **options)`.

A launch is looked up in three caches, in this order:
    1. launch cache: the same launch was made before (same addresses, extents, strides, numbers,
       grid): one look-up, then the driver;
    2. compiled kernels in memory: the same specialization was compiled before; the launch is
       checked, packed and put into 1;
    3. disk cache, else the compiler; the result is put into 2.
The key of the launch cache is made by a function written for the types of the arguments
(`key_function`), or by machine code (`tkc/runtime/native.py`), so that a launch costs little more
than the driver's own call.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

from tkc.compiler import Compiled, compile
from tkc.errors import CompileError, LaunchError
from tkc.runtime import cache, fingerprint
from tkc.runtime.arrays import ArrayInfo, describe
from tkc.runtime.specialize import (
    OPTIONS,
    Constant,
    Specialization,
    argument,
    debugging,
    facts,
    options_of,
    overlaps,
    signature,
)

if TYPE_CHECKING:
    from tkc.runtime.native import LaunchCache
    from tkc.timing.predict import Prediction

MAX_CACHED_LAUNCHES = 4096  # of each kernel
CACHE_FORMAT = b"1"
# TKC_DEBUG is read at each launch, without decoding
_variables: Any = getattr(os.environ, "_data", os.environ)
_DEBUG = getattr(os.environ, "encodekey", str)("TKC_DEBUG")
_counting = threading.Lock()
_compiling = threading.RLock()  # a trace has one place in a process where it stands
# by thread: the functions that its launches are handed to, the innermost last
_takers: dict[int, list[Callable]] = {}
_handing: bool | None = None  # True where there is one


def _forked() -> None:
    """In a child: another thread of the parent may have held a lock, or was handed launches."""
    global _compiling, _counting, _handing
    _compiling, _counting = threading.RLock(), threading.Lock()
    for thread in _takers.keys() - {get_ident()}:
        del _takers[thread]
    _handing = True if _takers else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def jit(fn: Callable | None = None, **options: Any) -> Any:
    """Makes a kernel of a function. Options given here (`specialize.OPTIONS`: num_warps,
    num_stages, cluster, …) are defaults of its launches.
    """
    if fn is None:
        return lambda f: JitFunction(f, options)
    return JitFunction(fn, options)


class JitFunction:
    """A kernel. `kernel[grid](…)` launches it, `compile` gives what the compiler makes of some
    arguments, `prepare` a launch with everything bound.
    """

    def __init__(self, fn: Callable, options: dict[str, Any] | None = None):
        if not inspect.isfunction(fn) or fn.__name__ == "<lambda>":
            raise TypeError(
                "tkc.jit takes a function with a name, got"
                f" {'a lambda' if inspect.isfunction(fn) else type(fn).__name__}; write def"
            )
        self.fn = self.__wrapped__ = fn
        self.__name__: str = fn.__name__
        self.__qualname__: str = fn.__qualname__
        self.__module__: str = fn.__module__
        self.__doc__ = fn.__doc__
        self.parameters = tuple(inspect.signature(fn).parameters.values())
        for p in self.parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise LaunchError(
                    f"kernel {fn.__name__}: *{p.name} cannot be launched; name every parameter"
                )
        self.names = tuple(p.name for p in self.parameters)
        self.positional = sum(p.kind is not p.KEYWORD_ONLY for p in self.parameters)
        self.constexpr = tuple(_is_constexpr(p.annotation) for p in self.parameters)
        self.options = options_of(options or {}, fn.__name__)
        self._bind = binder(fn.__name__, self.parameters, dict(self.options))
        # TKC_DEBUG and types -> (key function, {key: launch})
        self._launches: dict[tuple, tuple[Callable, dict]] = {}
        self._compiled: dict[tuple, Compiled] = {}
        self._loaded: dict[tuple, Any] = {}  # (compiled, device) -> the driver's function
        # grid -> Launcher, or the launch cache in machine code that was used last
        self._launchers: dict[Any, Callable] = {}
        # grid -> {kind of call: launch cache, None where there can be none}
        self._launch_caches: dict[tuple, dict[tuple, LaunchCache | None]] = {}
        # a class of this kernel: its `__call__` becomes `_specialized_call`
        self._launcher: Any = type(
            "Launcher", (Launcher,), {"__slots__": (), "__doc__": Launcher.__doc__}
        )
        self._fingerprint: fingerprint.Fingerprint | None = None
        self._watched: tuple[tuple[dict, str, Any], ...] = ()
        # whether what the kernel reads may change without a name being rebound
        self._careful = False

    def __repr__(self) -> str:
        return f"<kernel {self.__module__}.{self.__qualname__}>"

    def __call__(self, *args, **kwargs):
        raise LaunchError(
            f"call the kernel with a grid: {self.__name__}[grid](…); inside another kernel, make"
            " the helper a plain function"
        )

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launcher for a grid: an int, a tuple of up to three, or a function of the bound
        arguments (a dict) that gives one.
        """
        if _takers and get_ident() in _takers:
            return partial(_hand, self, grid)
        try:
            launcher = self._launchers.get(grid)
        except TypeError:
            launcher = None  # a list
        if launcher is not None:
            return launcher
        launcher = self._launcher(self, grid)
        if isinstance(grid, (int, tuple)):
            if len(self._launchers) >= MAX_CACHED_LAUNCHES:
                self._launchers.clear()
            self._launchers[launcher.grid] = launcher
        return launcher

    # ----------------------------------------------------------------------------------------------
    def bound(self, *args: Any, **kwargs: Any) -> tuple[tuple, dict]:
        """(values by parameter, options). Raises LaunchError where they are not those of the
        kernel.
        """
        try:
            return self._bind(*args, **kwargs)
        except TypeError as e:
            raise LaunchError(f"{e}; the parameters are {', '.join(self.names)}") from None

    def compile(self, *args: Any, target: str | None = None, **kwargs: Any) -> Compiled:
        """What the compiler makes of these arguments, for a target ("cpu", "sm_90a"; default: where
        the arrays are).

        Arrays may be texts such as "bf16[4096, 4096]", numbers "i32" or "f32". Raises CompileError,
        LaunchError.
        """
        values, options = self.bound(*args, **kwargs)
        self._forget_if_rebound()
        infos = self._describe(values)
        return self._get(
            self._specialize(infos, tuple(options.items())),
            target or target_for(infos, self.__name__),
        )

    def prepare(
        self, *args: Any, grid: Any, target: str | None = None, **kwargs: Any
    ) -> Callable[[], None]:
        """A function of nothing that makes this one launch again and again; it keeps the arrays
        alive.

        target: compile for another GPU than the arrays' own, which must be able to run it (sm_80
        runs on every later one).
        """
        values, options = self.bound(*args, **kwargs)
        launch = self._prepare(values, options, Launcher(self, grid).extents(values), target)
        from tkc.runtime import native

        return native.prepared(launch, values) or Prepared(launch, values)

    def predict(
        self, *args: Any, grid: Any, target: str | None = None, **kwargs: Any
    ) -> Prediction:
        """How long a launch would take on a GPU, and who uses which engine when: a
        tkc.timing.predict.Prediction, without a GPU. Arguments as of `compile`, but with every
        number.

        `compiled.report(prediction)` shows it, `tkc report --picture` draws it. Raises CompileError
        where its timeline depends on what the kernel computes.
        """
        from tkc.runtime.prediction import predicted

        values, options = self.bound(*args, **kwargs)
        infos = self._describe(values)
        return predicted(
            self,
            infos,
            tuple(options.items()),
            Launcher(self, grid).extents(
                [i if isinstance(i, ArrayInfo) else i.value for i in infos]
            ),
            target or target_for(infos, self.__name__),
        )

    def _describe(self, values: Sequence) -> list:
        return [
            argument(v, f"argument {name} of {self.__name__}", c)
            for v, name, c in zip(values, self.names, self.constexpr, strict=False)
        ]

    def _specialize(self, infos: Sequence, options: tuple) -> Specialization:
        options = options_of({"debug": debugging(self.__name__)} | dict(options), self.__name__)
        return Specialization(
            tuple((name, facts(info)) for name, info in zip(self.names, infos, strict=False)),
            overlaps([i for i in infos if not isinstance(i, Constant)]),
            options,
        )

    def _get(self, s: Specialization, target: str) -> Compiled:
        """From memory, from disk, or compiled."""
        try:
            found = self._compiled.get(key := (_typed(s), target))
        except TypeError as e:
            raise LaunchError(
                f"{self.__name__}: a constexpr must be hashable ({e}); pass a tuple for a list"
            ) from None
        if found is not None:
            return found
        with _compiling:
            return self._compiled.get(key) or self._compiled.setdefault(
                key, self._load_or_compile(s, target)
            )

    def _load_or_compile(self, s: Specialization, target: str) -> Compiled:
        disk, name = cache.disk(), self._key(s, target)

        def again(observe: Callable | None = None) -> Compiled:
            with _compiling:
                return compile(self.fn, signature(s), target, observe)

        dumping = os.environ.get("TKC_DUMP", "0") not in ("", "0")
        if disk and name and not dumping and (parts := disk.get(name)) is not None:
            try:
                compiled = Compiled.unpack(parts)
                compiled.again = again
                return compiled
            except (ValueError, KeyError, TypeError, CompileError):
                pass  # an entry of another make: compile
        compiled = again()
        compiled.again = again
        if disk and name and compiled.lasting:
            disk.put(name, compiled.pack())
        return compiled

    def adopt(self, s: Specialization, target: str, parts: dict[str, bytes]) -> Compiled:
        """Takes what another process compiled (the parts of `Compiled.pack`, and "image", a cubin)
        instead of compiling. Raises CompileError where it is of another make.
        """
        try:
            compiled = Compiled.unpack(parts)
        except (ValueError, KeyError, TypeError):
            raise CompileError(
                f"{self.__name__}: what was assembled is of another version of tkc; assemble it"
                " again"
            ) from None
        compiled.image = parts.get("image")
        return self._compiled.setdefault((_typed(s), target), compiled)

    def _key(self, s: Specialization, target: str) -> str | None:
        """The name of the entry in the disk cache; None if a value it depends on has no stable
        spelling.
        """
        try:
            own = self._fingerprint
            if own is None:
                own = fingerprint.Fingerprint(self.fn)
                self._watch(own)
            more = fingerprint.Fingerprint()  # of functions among the constants
            special = [
                ("specialization", more.spell([s.arguments, s.overlaps, s.options])),
                *more.fields,
            ]
            self._watch(more)
            if own.unstable or more.unstable:
                return None
        except fingerprint.Unstable:
            return None
        host = [("host", fingerprint.host_cpu())] if target == "cpu" else []
        return fingerprint.digest(
            [
                ("format", CACHE_FORMAT),
                *own.fields,
                *special,
                ("target", target.encode()),
                *fingerprint.toolchain(),
                *fingerprint.environment(),
                *host,
            ]
        )

    def launcher(self, grid: Any) -> Launcher:
        """One that says how a launch is made, and is not replaced by machine code."""
        return self._launcher(self, grid)

    def watching(self) -> tuple[tuple[dict, Any, Any], ...] | None:
        """What must stay as it is for launches made now, in whatever thread: (namespace, name,
        value). None where more may change than that tells.
        """
        if self._careful:
            return None
        return (
            *self._watched,
            (_variables, _DEBUG, _variables.get(_DEBUG)),
            (globals(), "_handing", None),
        )

    def _watch(self, found: fingerprint.Fingerprint) -> None:
        """What a launch must look at from now on. Launch caches look at what was watched when they
        were made, so they are dropped.
        """
        own = self._fingerprint
        if own is None:
            own = self._fingerprint = found
        else:
            known = {(id(space), name) for space, name, _ in self._watched}
            new = [w for w in found.watched if (id(w[0]), w[1]) not in known]
            if not (new or found.cells or found.mutable):
                return
            own.watched += new
            own.cells += found.cells
            own.mutable += found.mutable
        self._watched = tuple(own.watched)
        self._careful = bool(own.cells or own.mutable)
        self._launchers.clear()
        self._launch_caches.clear()

    def _forget_if_rebound(self) -> None:
        """Where a global, a module's attribute or a closure's variable that the kernel reads was
        bound to something else, or a list changed, what was compiled is no longer this kernel.
        """
        if self._is_rebound():
            self._launches.clear()
            self._compiled.clear()
            self._loaded.clear()
            self._launchers.clear()
            self._launch_caches.clear()
            self._launcher.__call__ = Launcher.__call__
            self._fingerprint, self._watched, self._careful = None, (), False

    def _is_rebound(self) -> bool:
        if any(namespace.get(name) is not value for namespace, name, value in self._watched):
            return True
        own = self._fingerprint
        return (
            self._careful
            and own is not None
            and (own.changed() or any(_contents(cell) is not value for cell, value in own.cells))
        )

    # ----------------------------------------------------------------------------------------------
    def _prepare(
        self,
        values: Sequence,
        options: dict,
        extents: tuple[int, int, int],
        target: str | None = None,
    ) -> Callable[[], None]:
        """The launch of these arguments, compiled if need be: a function of nothing."""
        if os.environ.get("TKC_INTERPRET", "0") not in ("", "0"):
            from tkc.runtime.interpret import interpreted

            return interpreted(self, self._describe(values), tuple(options.items()), extents)
        if os.environ.get("TKC_VALIDATE", "0") not in ("", "0"):
            from tkc.runtime.simulate import validate_once

            validate_once(
                self,
                infos := self._describe(values),
                tuple(options.items()),
                extents,
                target or target_for(infos, self.__name__),
            )
        if os.environ.get("TKC_SIM", "0") not in ("", "0"):
            from tkc.runtime.simulate import simulated

            return simulated(self, self._describe(values), tuple(options.items()), extents)
        infos = self._describe(values)
        target = target or target_for(infos, self.__name__)
        compiled = self._get(self._specialize(infos, tuple(options.items())), target)
        names = [n for n, i in zip(self.names, infos, strict=False) if not isinstance(i, Constant)]
        passed = [i for i in infos if not isinstance(i, Constant)]
        if compiled.target == "cpu":
            from tkc.runtime.host import HostLaunch

            return HostLaunch(compiled, names, passed, extents)
        from tkc.runtime import launch

        device = next(i.device for i in passed if isinstance(i, ArrayInfo))
        function = self._loaded.get((compiled, device)) or self._loaded.setdefault(
            (compiled, device), launch.load(compiled, device)
        )
        interface = compiled.interface
        assert interface is not None  # a GPU's code has one
        kind = launch.CheckedLaunch if interface.debug else launch.Launch
        return launch.ordered(
            kind(
                interface,
                function,
                names,
                passed,
                extents,
                launch.stream_source(values, device),
                self.__name__,
            ),
            values,
        )


class Launcher:
    """`kernel[grid]`: call it with the kernel's arguments."""

    __slots__ = ("kernel", "grid", "_constant")

    def __init__(self, kernel: JitFunction, grid: Any):
        self.kernel, self.grid = kernel, grid
        self._constant = None if callable(grid) else normalized(grid, kernel.__name__)

    def extents(self, values: Sequence) -> tuple[int, int, int]:
        if self._constant is not None:
            return self._constant
        return normalized(
            self.grid(dict(zip(self.kernel.names, values, strict=False))), self.kernel.__name__
        )

    def __call__(self, *args, **kwargs) -> None:
        """Launches on the caller's current stream (CPU: runs to the end). Raises LaunchError,
        CompileError, DeviceError.
        """
        self.found(args, kwargs)()

    def found(self, args: Sequence, kwargs: dict[str, Any]) -> Callable[[], None]:
        """The launch of such a call, as it was made before or as it is made now."""
        kernel = self.kernel
        try:
            values, options = kernel._bind(*args, **kwargs)
        except TypeError as e:
            raise LaunchError(f"{e}; the parameters are {', '.join(kernel.names)}") from None
        for namespace, name, value in kernel._watched:
            if namespace.get(name) is not value:
                kernel._forget_if_rebound()
                break
        if kernel._careful:
            kernel._forget_if_rebound()
        extents = self._constant or self.extents(values)
        types = (_variables.get(_DEBUG), *map(type, values))
        launch = None
        try:
            key_of, launches = kernel._launches[types]
            launch = launches[key_of(extents, options and tuple(options.items()), values)]
        except (KeyError, TypeError):
            pass  # not made before, or not hashable
        if launch is None:
            launch = self._made(values, options, extents, types, args, kwargs)
        if hasattr(launch, "calls") and not kernel._careful:
            self._install_launch_cache(launch, extents, args, kwargs, types)
        return launch

    def _made(
        self,
        values: Sequence,
        options: dict,
        extents: tuple[int, int, int],
        types: tuple,
        args: Sequence,
        kwargs: dict[str, Any],
    ) -> Callable[[], None]:
        kernel = self.kernel
        launch = kernel._prepare(values, options, extents)
        if getattr(launch, "reusable", False):
            if types not in kernel._launches:
                kernel._launches[types] = key_function(values, kernel.constexpr), {}
                kernel._launcher.__call__ = (
                    _specialized_call(
                        kernel, values, types, kernel._launches[types][1], len(args), tuple(kwargs)
                    )
                    or kernel._launcher.__call__
                )
            key_of, launches = kernel._launches[types]
            try:
                key = key_of(extents, options and tuple(options.items()), values)
            except (TypeError, AttributeError):
                key = None
            if len(launches) >= MAX_CACHED_LAUNCHES:
                launches.clear()
            # an unhashable constexpr was refused already; any other unhashable key is not cached
            with suppress(TypeError):
                launches[key] = launch
        return launch

    def _install_launch_cache(
        self,
        launch: Callable,
        extents: tuple[int, int, int],
        args: Sequence,
        kwargs: dict[str, Any],
        types: tuple,
    ) -> None:
        """From now on `kernel[grid]` is a launch cache in machine code, for calls like this one on
        a GPU; on a miss it calls `found`.
        """
        from tkc.runtime import native

        if type(launch) is not native.Launch:
            return  # one with checks
        kernel = self.kernel
        if len(kernel._launch_caches) >= MAX_CACHED_LAUNCHES:
            kernel._launch_caches.clear()
            kernel._launchers.clear()
        caches, kind = kernel._launch_caches.setdefault(extents, {}), native.kind(args, kwargs)
        if kind not in caches:
            caches[kind] = native.launch_cache(
                self if self._constant else Launcher(kernel, extents),
                args,
                kwargs,
                [*kernel._watched, (_variables, _DEBUG, types[0])],
                caches,
            )
        if (cached := caches[kind]) is None:
            return
        kernel._launchers[extents] = cached.launch
        if type(self.grid) in (int, tuple):
            kernel._launchers[self.grid] = cached.launch


class Prepared:
    """A launch with its arguments; call it."""

    __slots__ = ("_launch", "_arguments")

    def __init__(self, launch: Callable[[], None], arguments: Sequence):
        self._launch, self._arguments = launch, arguments

    def __call__(self) -> None:
        self._launch()


class handed:
    """`with tkc.handed(to): …`: within it, launches of this thread are handed to `to(kernel, grid,
    args, kwargs)`, who makes them (kernel[grid](*args, **kwargs)) or does not.

    Within another such block, what `to` launches is handed on to that one's. `tkc.handed.changes`
    counts how often tables of choices became others: who keeps a launch of a kernel that was tuned
    looks whether the choice may be another by now.
    """

    changes = 0

    def __init__(self, to: Callable[[JitFunction, Any, tuple, dict], None]):
        self.to = to

    def __enter__(self) -> None:
        _taking(self.to)

    def __exit__(self, *exception) -> None:
        _taken()


def handing() -> bool:
    """Whether somebody is to be handed launches of this thread."""
    return get_ident() in _takers


def _taking(to: Callable) -> None:
    """Somebody is from now on."""
    global _handing
    with _counting:
        _takers.setdefault(get_ident(), []).append(to)
        _handing = True


def _taken() -> Callable:
    """The last who was to be handed launches, who no longer is."""
    global _handing
    with _counting:
        takers = _takers[thread := get_ident()]
        to = takers.pop()
        if not takers:
            del _takers[thread]
        if not _takers:
            _handing = None
    return to


def _hand(kernel: JitFunction, grid, /, *args, **kwargs) -> None:
    """To who is there, who then launches for himself."""
    to = _taken()
    try:
        to(kernel, grid, args, kwargs)
    finally:
        _taking(to)


def _is_constexpr(annotation) -> bool:
    """The annotation is tkc.constexpr, or spells it (`from __future__ import annotations`)."""
    if isinstance(annotation, str):
        return annotation.split(".")[-1].strip() == "constexpr"
    return (
        getattr(annotation, "__name__", "") == "constexpr"
        or getattr(annotation, "is_constexpr", False) is True
    )


def _contents(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return None  # deleted


def _typed(s: Specialization) -> tuple:
    """The specialization as a key in which 1, 1.0 and True differ."""
    return s, tuple(_types(a[1]) for _, a in s.arguments if a[0] == "constant")


def _types(value: Any) -> Any:
    """What equal constants may still differ in: their types, and of floats the sign of zero."""
    if isinstance(value, (tuple, frozenset)):
        return tuple(map(_types, value))
    return value.hex() if type(value) is float else type(value)


def binder(
    name: str, parameters: Sequence[inspect.Parameter], defaults: dict[str, Any]
) -> Callable:
    """A function with the kernel's own parameters that gives (values, options): Python binds faster
    than inspect.
    """
    space: dict[str, Any] = {f"_d{i}": p.default for i, p in enumerate(parameters)}
    space["_defaults"] = defaults
    words: list[str] = []
    bare = False
    for i, p in enumerate(parameters):
        if p.kind is p.KEYWORD_ONLY and not bare:
            words.append("*")
            bare = True
        words.append(p.name if p.default is p.empty else f"{p.name}=_d{i}")
    rest = "_options" if "_options" not in {p.name for p in parameters} else "_options_"
    values = "(" + "".join(f"{p.name}, " for p in parameters) + ")"
    exec(
        f"def {name}({', '.join([*words, '**' + rest])}): return {values},"
        f" {f'_defaults | {rest}' if defaults else rest}",
        space,
    )
    return space[name]


SCALAR_MODULES = ("numpy", "ml_dtypes")  # of what is a number, not an array


def _key_parts(
    values: Sequence, constexpr: Sequence[bool], names: Sequence[str], anywhere: bool = False
) -> list[str] | None:
    """Expressions of what a launch depends on, for values of these types under these names: arrays
    count by address (its alignment, where they may lie anywhere), extents, strides and type. None
    where a value cannot be looked up."""
    parts: list[str] = []
    place = " & 15" if anywhere else ""
    for v, fixed, x in zip(values, constexpr, names, strict=False):
        if fixed:
            parts += [x] + ([f"_kinds({x})"] if isinstance(v, (tuple, frozenset, float)) else [])
        elif hasattr(v, "data_ptr"):
            parts += [
                f"{x}.data_ptr(){place}",
                f"{x}.shape",
                f"{x}.stride()",
                f"{x}.dtype",
                f"{x}.is_cuda",
            ]
        elif hasattr(v, "__cuda_array_interface__"):
            parts += [f"tuple({x}.__cuda_array_interface__.items())"]
        elif type(v).__module__ in SCALAR_MODULES and not hasattr(v, "ctypes"):
            parts.append(f"str({x})" if v.dtype.kind == "f" else f"{x}.item()")
        elif hasattr(v, "__array_interface__") and hasattr(v, "flags"):
            parts += [
                f"{x}.ctypes.data{place}",
                f"{x}.shape",
                f"{x}.strides",
                f"{x}.dtype",
                f"{x}.flags.writeable",
            ]
        elif isinstance(v, float):
            parts.append(f"{x} or str({x})")  # 0.0 and -0.0
        elif isinstance(v, (int, bool, str, type(None))):
            parts.append(x)
        else:
            return None
    return parts


def key_function(values: Sequence, constexpr: Sequence[bool], anywhere: bool = False) -> Callable:
    """A function (extents, options, values) -> key, for values of these types."""
    parts = _key_parts(values, constexpr, [f"v[{i}]" for i in range(len(values))], anywhere)
    if parts is None:
        return lambda extents, options, values: []  # not hashable: never remembered
    space: dict[str, Any] = {"_kinds": _types}
    exec(f"def key(e, o, v): return (e, o or None, {', '.join(parts)})", space)
    return space["key"]


def _specialized_call(
    kernel: JitFunction,
    values: Sequence,
    types: tuple,
    launches: dict,
    positional: int,
    named: Sequence[str],
) -> Callable | None:
    """`Launcher.__call__` for calls like the one that is being made: so many positional arguments,
    these names, values of these types. Binding, key and look-up are one function; whatever is not
    as it was goes the general way. None where such a call cannot be looked up.
    """
    names = kernel.names
    reserved = any(n.startswith("_") or n == "self" for n in names)
    if reserved or not set(named) <= set(names):
        return None
    if (parts := _key_parts(values, kernel.constexpr, names)) is None:
        return None
    space = {f"_d{i}": p.default for i, p in enumerate(kernel.parameters)} | {
        f"_t{i}": t for i, t in enumerate(types[1:])
    }
    space |= {
        "_type": type,
        "_kinds": _types,
        "_kernel": kernel,
        "_general": Launcher.__call__,
        "_get": launches.get,
        "_debugging": _variables.get,
        "_debug": types[0],
        "_launchers": kernel._launchers.get,
        "_builtin": BuiltinFunctionType,
    }
    by_name = [f"{n} = _named[{n!r}]" for n in named]
    defaults = [f"{n} = _d{i}" for i, n in enumerate(names) if i >= positional and n not in named]
    bound = "; ".join(
        [
            f"{', '.join(names[:positional])}, = _given" if positional else "pass",
            *by_name,
            *defaults,
        ]
    )
    same_types = " and ".join(f"_type({n}) is _t{i}" for i, n in enumerate(names)) or "True"
    values_by_name = "".join(n + ", " for n in names)
    key = f"_extents, {tuple(kernel.options) or None!r}, {', '.join(parts)}"
    exec(
        f"""def __call__(self, *_given, **_named):
    _launch = _cached = None
    if len(_given) == {positional} and len(_named) == {len(named)}:
        try:
            {bound}
            if {same_types} and _debugging({_DEBUG!r}) == _debug:
                for _space, _name, _value in _kernel._watched:
                    if _space.get(_name) is not _value: break
                else:
                    _extents = self._constant or self.extents(({values_by_name}))
                    _cached = _launchers(_extents)
                    if type(_cached) is not _builtin and not _kernel._careful:
                        _launch = _get(({key}))
        except (KeyError, TypeError): pass
    if type(_cached) is _builtin: return _cached(*_given, **_named)
    return _launch() if _launch is not None else _general(self, *_given, **_named)""",
        space,
    )
    return space["__call__"]


def normalized(grid: Any, kernel: str) -> tuple[int, int, int]:
    """A grid as three numbers. Raises LaunchError."""
    if type(grid) is int and grid >= 0:
        return grid, 1, 1
    if type(grid) is tuple and len(grid) == 1 and type(grid[0]) is int and grid[0] >= 0:
        return grid[0], 1, 1  # what most grids are, quickly
    given = grid if isinstance(grid, (tuple, list)) else (grid,)
    try:
        extents = tuple(n.__index__() for n in given)
    except (AttributeError, TypeError):
        raise LaunchError(
            f"{kernel}: a grid is an integer, up to three of them, or a function that gives them;"
            f" got {grid!r}"
        ) from None
    if not 1 <= len(extents) <= 3 or min(extents) < 0:
        raise LaunchError(f"{kernel}: a grid is one to three numbers >= 0, got {grid!r}")
    return (*extents, 1, 1)[:3]


def target_for(infos: Sequence, kernel: str) -> str:
    """ "cpu", or the target of the CUDA device that holds the arrays. Raises LaunchError where they
    are not in one place.
    """
    places = {i.device for i in infos if isinstance(i, ArrayInfo)}
    if len(places) > 1:
        named = ", ".join("host memory" if d < 0 else f"cuda:{d}" for d in sorted(places))
        raise LaunchError(
            f"{kernel}: expected every array on one device, got {named}; move them to one"
        )
    if places <= {-1}:
        return "cpu"
    from tkc.runtime import driver

    return driver.target_of(places.pop())


def target_of(array: Any) -> str:
    """The target that a launch with this array (of torch, cupy, jax or NumPy) compiles for:
    "sm_90a", …, or "cpu" in host memory. Raises LaunchError for anything else, and where the device
    cannot be asked."""
    return target_for([describe(array)], "target_of")


__all__ = ["OPTIONS", "JitFunction", "Launcher", "handed", "jit", "target_of"]
