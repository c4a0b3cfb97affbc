"""`@tkc.jit`: a Python function that runs as a kernel. `kernel[grid](*arguments, **options)`.

A launch is looked up in three caches, in this order:
    1. launch cache (`tkc/runtime/launch_cache.py`): a launch like it was made before; one look-up
       in machine code, then the driver, so that it costs little more than the driver's own call;
    2. compiled kernels in memory: the same specialization was compiled before; the launch is
       checked, packed and put into 1;
    3. disk cache, else the compiler; the result is put into 2.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from threading import get_ident
from typing import TYPE_CHECKING, Any

from tkc.compiler import Compiled, collector_paused, compile
from tkc.errors import CompileError, Error, LaunchError, MapError
from tkc.runtime import cache, fingerprint
from tkc.runtime.arrays import ArrayInfo, describe
from tkc.runtime.handed import assumed_target, hand, takers
from tkc.runtime.kernel import Remembered, Watch
from tkc.runtime.launch_cache import KernelCache, kernel_cache, kind, prepared, types_of
from tkc.runtime.specialize import (
    OPTIONS,
    Specialization,
    argument,
    debugging,
    facts,
    named,
    options_of,
    overlaps,
    signature,
    unspecialized,
    who_is_lost,
)
from tkc.runtime.specialize import given as given_at_run_time
from tkc.runtime.toolchain import digest, environment, host_cpu, toolchain
from tkc.runtime.tracebacks import hide_own_frames, hides_own_frames

if TYPE_CHECKING:
    from tkc.timing.predict import Prediction

MAX_LAUNCHERS = 4096  # of each kernel
MAX_COMPILED = 1024  # specializations in memory, of each kernel
MAX_KINDS = 64  # of calls, of each launcher
CACHE_FORMAT = b"1"
WITHOUT_MAPS = ("roles", "one")  # the option with which no plan has tensor maps
# variables are looked up at each launch, without decoding
_variables: Any = getattr(os.environ, "_data", os.environ)
_encoded = getattr(os.environ, "encodekey", str)


def variables(*names: str) -> tuple[Any, ...]:
    """Names of variables of the environment, as `watches` takes them: each the same object."""
    return tuple(map(_encoded, names))


# what a launch does, besides what it computes
_HOW = variables("TKC_DEBUG", "TKC_SIM", "TKC_VALIDATE", "TKC_INTERPRET")
# variables that the passes read
_READ_BY_PASSES = variables("TKC_RELAX")
_compiling = threading.RLock()  # a trace has one place in a process where it stands


def _forked() -> None:
    """In a child: another thread of the parent may have held the lock."""
    global _compiling
    _compiling = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def jit(
    fn: Callable | None = None,
    *,
    pointers: bool = False,
    do_not_specialize: Sequence[str | int] = (),
    **options: Any,
) -> Any:
    """Makes a kernel of a function. Options given here (`specialize.OPTIONS`: num_warps,
    num_stages, cluster, …) are defaults of its launches. pointers: every array argument is its
    address in the kernel, as one annotated `tkc.pointer` is. do_not_specialize: names, or numbers,
    of parameters that stay run-time integers of which nothing is known, whatever is passed.
    """
    if fn is None:
        return lambda f: JitFunction(f, options, pointers, do_not_specialize)
    return JitFunction(fn, options, pointers, do_not_specialize)


class Launchable:
    """What `f[grid](…)` launches: a kernel, or a tuned one."""

    chooses = False  # whether what is launched depends on the numbers among the arguments

    def __init__(self, fn: Callable, parameters: Sequence[inspect.Parameter], options: dict):
        self.fn = self.__wrapped__ = fn
        self.__name__: str = fn.__name__
        self.__qualname__: str = fn.__qualname__
        self.__module__: str = fn.__module__
        self.__doc__ = fn.__doc__
        self._bind = binder(fn.__name__, parameters, options)
        self._launchers: dict[Any, Launcher] = {}
        # grid -> the launcher, or the function of its launch cache that was made last
        self._quickest: dict[Any, Callable[..., Any]] = {}

    def __reduce__(self) -> str:
        """As of a function: its copy is itself, for what was compiled and what is watched for that
        belong together, and it is pickled by its name.
        """
        return self.__qualname__

    @property
    def kernel(self) -> Remembered:
        """The kernel whose code is launched."""
        raise NotImplementedError

    def bound(self, *args: Any, **kwargs: Any) -> tuple[tuple, dict]:
        """(values by parameter, options). Raises LaunchError where they are not those of the
        kernel.
        """
        try:
            return self._bind(*args, **kwargs)
        except TypeError as e:
            names = ", ".join(self.kernel.names)
            raise LaunchError(f"{e}; the parameters are {names}") from None

    def by_position(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments by name as a call's positional ones, and what remains: a parameter may have the
        name of an argument of `compile`, `prepare` or `predict`.
        """
        first = list(takewhile(values.__contains__, self.kernel.names))
        return [values[n] for n in first], {n: v for n, v in values.items() if n not in first}

    def made(self, args: Sequence, kwargs: dict[str, Any], grid: Any) -> Callable[[], None]:
        """The launch of such a call, compiled if need be."""
        raise NotImplementedError

    def watching(self) -> tuple[Watch, ...] | None:
        """What must stay as it is for launches that were made now; None where none may be
        remembered.
        """
        raise NotImplementedError

    def given_back(self, args: Sequence, kwargs: dict[str, Any]) -> Any:
        """What launches like this one give back, each the same object; it keeps no memory of
        arrays.
        """
        return None

    def extents(self, grid: Any, values: Sequence) -> tuple[int, int, int]:
        """A grid as three numbers; values: by parameter, for a grid that is a function of them."""
        if callable(grid):
            grid = grid(dict(zip(self.kernel.names, values, strict=True)))
        return normalized(grid, self.__name__)

    def forget_launches(self) -> None:
        """Launches are made anew from now on, with what was compiled."""
        self._launchers.clear()
        self._quickest.clear()
        self.kernel.forget_caches()

    def _launcher(self, extents: Any, grid: Any) -> Callable[..., Any]:
        """What calls on a grid go to. grid: as the caller names it."""
        launcher = self._made_launcher(extents, extents)
        launcher.places.add(grid)
        self.install(launcher)
        return launcher.quickest

    def _made_launcher(self, key: Any, grid: Any) -> Launcher:
        """The launcher that is found under a key, made where there is none."""
        if len(self._launchers) >= MAX_LAUNCHERS:
            self.forget_launches()
        return self._launchers.get(key) or self._launchers.setdefault(
            key, Launcher(self, grid, key)
        )

    def install(self, launcher: Launcher) -> None:
        """Makes calls on a grid go where they are launched quickest."""
        if self._launchers.get(launcher.key) is launcher:
            self._quickest |= dict.fromkeys(launcher.places, launcher.quickest)


class JitFunction(Launchable):
    """A kernel. `kernel[grid](…)` launches it, `compile` gives what the compiler makes of some
    arguments, `prepare` a launch with everything bound.
    """

    def __init__(
        self,
        fn: Callable,
        options: dict[str, Any] | None = None,
        pointers: bool = False,
        do_not_specialize: Sequence[str | int] = (),
    ):
        if not inspect.isfunction(fn) or fn.__name__ == "<lambda>":
            raise TypeError(
                "tkc.jit takes a function with a name, got"
                f" {'a lambda' if inspect.isfunction(fn) else type(fn).__name__}; write def"
            )
        self.parameters = tuple(inspect.signature(fn).parameters.values())
        for p in self.parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise LaunchError(
                    f"kernel {fn.__name__}: *{p.name} cannot be launched; name every parameter"
                )
        self.names = tuple(p.name for p in self.parameters)
        self.positional = sum(p.kind is not p.KEYWORD_ONLY for p in self.parameters)
        self.constexpr = tuple(_is_constexpr(p.annotation) for p in self.parameters)
        self.unspecialized = frozenset(
            _parameter(p, self.names, fn.__name__) for p in do_not_specialize
        )
        # which arrays the kernel has the addresses of
        self.pointers = tuple(pointers or _is_pointer(p.annotation) for p in self.parameters)
        self.peers = tuple(_is_peers(p.annotation) for p in self.parameters)
        self.options = options_of(options or {}, fn.__name__)
        super().__init__(fn, self.parameters, dict(self.options))
        self.epoch = object()  # another one where launch caches must look at something else
        self.rebindings = 0  # how often what was compiled had to be forgotten
        self._compiled: dict[tuple, Compiled] = {}
        self._loaded: dict[tuple, Any] = {}  # (compiled, device) -> the driver's function
        self._fingerprint: fingerprint.Fingerprint | None = None
        self._watched: tuple[Watch, ...] = ()
        # whether what the kernel reads may change without a name being rebound
        self.careful = False

    def __repr__(self) -> str:
        return f"<kernel {self.__module__}.{self.__qualname__}>"

    @hides_own_frames
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise LaunchError(
            f"call the kernel with a grid: {self.__name__}[grid](…); inside another kernel, make"
            " the helper a plain function"
        )

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launcher for a grid: an int, a tuple of up to three, or a function of the bound
        arguments (a dict) that gives one.
        """
        if takers and get_ident() in takers:
            return partial(hand, self, grid)
        try:
            launcher = self._quickest.get(grid)
        except TypeError:
            launcher, grid = None, normalized(grid, self.__name__)  # a list
        if launcher is not None:
            return launcher
        if callable(grid):
            return partial(_launch_on, self, grid)
        try:
            return self._launcher(normalized(grid, self.__name__), grid)
        except LaunchError as error:
            hide_own_frames(error)
            raise

    @property
    def kernel(self) -> JitFunction:
        return self

    # ----------------------------------------------------------------------------------------------
    @hides_own_frames
    def compile(self, *args: Any, target: str | None = None, **kwargs: Any) -> Compiled:
        """What the compiler makes of these arguments, for a target ("cpu", "sm_90a"; default: where
        the arrays are).

        Arrays may be texts such as "bf16[4096, 4096]", numbers "i32" or "f32". Raises CompileError,
        LaunchError.
        """
        values, options = self.bound(*args, **kwargs)
        infos = self._describe(values)
        return self._get(
            self._specialize(infos, tuple(options.items())),
            target or target_for(infos, self.__name__),
        )

    @hides_own_frames
    def prepare(
        self, *args: Any, grid: Any, target: str | None = None, **kwargs: Any
    ) -> Callable[[], None]:
        """A function of nothing that makes this one launch again and again; it keeps the arrays
        alive.

        target: compile for another GPU than the arrays' own, which must be able to run it (sm_80
        runs on every later one).
        """
        values, options = self.bound(*args, **kwargs)
        return prepared(self._prepare(values, options, self.extents(grid, values), target), values)

    @hides_own_frames
    def predict(
        self, *args: Any, grid: Any, target: str | None = None, **kwargs: Any
    ) -> Prediction:
        """How long a launch would take on a GPU, and which role uses which engine when: a
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
            self.extents(grid, [i if isinstance(i, ArrayInfo) else i.value for i in infos]),
            target or target_for(infos, self.__name__),
        )

    def _describe(self, values: Sequence) -> list:
        infos = []
        how = zip(self.names, self.constexpr, self.pointers, self.peers, strict=True)
        for v, (name, c, *kinds) in zip(values, how, strict=False):
            info = argument(v, f"argument {name} of {self.__name__}", c, *kinds)
            stays = name in self.unspecialized and not c
            infos.append(unspecialized(info) if stays else info)
        return infos

    def _specialize(self, infos: Sequence, options: tuple) -> Specialization:
        options = options_of({"debug": debugging(self.__name__)} | dict(options), self.__name__)
        return Specialization(
            tuple((name, facts(info)) for name, info in zip(self.names, infos, strict=False)),
            overlaps(given_at_run_time(infos)),
            options,
        )

    def _get(self, s: Specialization, target: str) -> Compiled:
        """From memory, from disk, or compiled: of what the kernel reads now."""
        self.forget_if_rebound()
        found = self._compiled.get(key := (_typed(s), target))
        if found is not None:
            return found
        with _compiling, collector_paused():
            if (found := self._compiled.get(key)) is not None:
                return found
            if len(self._compiled) >= MAX_COMPILED:
                self._forget()  # what is watched for functions that are no more, too
            return self._load_or_compile(s, target, key)

    def _load_or_compile(self, s: Specialization, target: str, key: tuple) -> Compiled:
        """Puts it into memory under a key, where what the kernel reads stays as it was."""
        disk, name = cache.disk(), self._key(s, target)

        def again(observe: Callable | None = None) -> Compiled:
            with _compiling:
                return compile(self.fn, signature(s), target, observe)

        if disk and name and not _set("TKC_DUMP") and (parts := disk.get(name)) is not None:
            try:
                compiled = Compiled.unpack(parts)
                compiled.again = again
                return self._compiled.setdefault(key, compiled)
            except (ValueError, KeyError, TypeError, CompileError):
                pass  # an entry of another make: compile
        compiled = again()
        compiled.again = again
        if name and self._is_rebound():
            return compiled  # by another thread, before or after it was read
        if disk and name and compiled.lasting:
            disk.put(name, compiled.pack())
        return self._compiled.setdefault(key, compiled)

    def _watch_constants(self, s: Specialization) -> fingerprint.Fingerprint:
        """What the kernel reads of compile-time values counts as what it reads of globals does."""
        found = fingerprint.Fingerprint(beside=self._fingerprint)
        for name, known in s.arguments:
            if known[0] == "constant":
                found.argument(self.fn, name, known[1])
        self._watch(found)
        return found

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

    def meaning(self, s: Specialization) -> list[tuple[str, bytes]] | None:
        """What the kernel and a specialization say, whatever compiles them for which machine; None
        if a value it depends on has no stable spelling.
        """
        try:
            own = self._fingerprint
            if own is None:
                own = fingerprint.Fingerprint(self.fn)
                self._watch(own)
            more = self._watch_constants(s)
            special = [
                ("specialization", more.spell([s.arguments, s.overlaps, s.options])),
                *more.fields,
            ]
            if own.unstable or more.unstable:
                return None
        except fingerprint.Unstable:
            return None
        return [*own.fields, *special]

    def _key(self, s: Specialization, target: str) -> str | None:
        """The name of the entry in the disk cache; None if it has none."""
        if (meaning := self.meaning(s)) is None:
            return None
        host = [("host", host_cpu())] if target == "cpu" else []
        return digest(
            [
                ("format", CACHE_FORMAT),
                *meaning,
                ("target", target.encode()),
                *toolchain(),
                *environment(),
                *host,
            ]
        )

    def made(self, args: Sequence, kwargs: dict[str, Any], grid: Any) -> Callable[[], None]:
        values, options = self.bound(*args, **kwargs)
        return self._prepare(values, options, self.extents(grid, values))

    def watching(self) -> tuple[Watch, ...]:
        return *self._watched, *watches(_HOW)

    def _watch(self, found: fingerprint.Fingerprint) -> None:
        """What a launch must look at from now on. Launch caches look at what was watched when they
        were made, so they are dropped.
        """
        own = self._fingerprint
        if own is None:
            own = self._fingerprint = found
            own.watched += watches(_READ_BY_PASSES)
        elif not own.join(found):
            return
        self._watched = tuple(own.watched)
        self.careful = own.careful
        self.epoch = object()

    def forget_caches(self) -> None:
        """Launch caches of before are not looked at any more."""
        self.epoch = object()

    def forget_if_rebound(self) -> None:
        """Where a global, a module's attribute or a closure's variable that the kernel reads was
        bound to something else, or a list changed, what was compiled is no longer this kernel.
        """
        if not self._is_rebound():
            return
        with _compiling:  # what another thread is compiling is put there before it is cleared
            if self._is_rebound():
                self._forget()

    def _forget(self) -> None:
        """Forgets what was compiled, and what that read."""
        self._compiled.clear()
        self._loaded.clear()
        self.forget_launches()
        self.rebindings += 1
        self._fingerprint, self._watched, self.careful = None, (), False

    def _is_rebound(self) -> bool:
        if any(namespace.get(name) is not value for namespace, name, value in self._watched):
            return True
        own = self._fingerprint
        return self.careful and own is not None and own.changed()

    # ----------------------------------------------------------------------------------------------
    def _prepare(
        self,
        values: Sequence,
        options: dict,
        extents: tuple[int, int, int],
        target: str | None = None,
    ) -> Callable[[], None]:
        """The launch of these arguments, compiled if need be: a function of nothing."""
        infos, given = self._describe(values), tuple(options.items())
        if _set("TKC_INTERPRET"):
            from tkc.runtime.interpret import interpreted

            return interpreted(self, infos, given, extents)
        if _set("TKC_VALIDATE"):
            from tkc.runtime.simulate import validate_once

            validate_once(self, infos, given, extents, target or target_for(infos, self.__name__))
        if _set("TKC_SIM"):
            from tkc.runtime.simulate import simulated

            return simulated(self, infos, given, extents)
        target = target or target_for(infos, self.__name__)
        compiled = self._get(self._specialize(infos, given), target)
        found = named(self.names, infos)
        names, passed = [n for n, _ in found], [i for _, i in found]
        if compiled.target == "cpu":
            from tkc.runtime.host import HostLaunch

            return HostLaunch(compiled, names, passed, extents, who_is_lost(infos))
        try:
            return self._gpu_launch(compiled, values, names, passed, extents)
        except MapError:
            # an array that the kernel makes: empty, or with a stride that is not positive
            compiled = self._get(self._specialize(infos, (*given, WITHOUT_MAPS)), target)
            return self._gpu_launch(compiled, values, names, passed, extents)

    def _gpu_launch(
        self,
        compiled: Compiled,
        values: Sequence,
        names: Sequence[str],
        passed: Sequence,
        extents: tuple[int, int, int],
    ) -> Callable[[], None]:
        """The launch of compiled code, loaded if need be."""
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


def watches(names: Sequence[Any]) -> list[Watch]:
    """Variables of the environment, as they are now."""
    return [(_variables, name, _variables.get(name)) for name in names]


def _set(variable: str) -> bool:
    """Whether a variable of the environment is set, and not 0."""
    return os.environ.get(variable, "0") not in ("", "0")


@hides_own_frames
def _launch_on(kernel: JitFunction, grid: Callable, /, *args: Any, **kwargs: Any) -> None:
    """Launches on a grid that is a function of the bound arguments."""
    values, _ = kernel.bound(*args, **kwargs)
    kernel[kernel.extents(grid, values)](*args, **kwargs)


class Launcher:
    """`kernel[grid]`, or `tuned[grid]`: call it with the arguments. key: under which the owner
    finds it; remembers: whether launches are remembered, if the arguments allow it.
    """

    __slots__ = ("owner", "grid", "key", "remembers", "caches", "places", "quickest")

    def __init__(self, owner: Launchable, grid: Any, key: Any, remembers: bool = True):
        self.owner, self.grid, self.key, self.remembers = owner, grid, key, remembers
        self.caches: dict[tuple, KernelCache | None] = {}  # by the kind of a call
        self.places: set = set()  # what the owner calls this grid
        self.quickest: Callable[..., Any] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Launches on the caller's current stream (CPU: runs to the end). Raises LaunchError,
        CompileError, DeviceError, TuningError.
        """
        kernel = self.owner.kernel
        if kernel.careful:
            kernel.forget_if_rebound()
        cache = self.caches.get(kind(args, kwargs))
        try:
            if cache is not None and cache.is_current():
                return cache.call(*args, **kwargs)
            return self.miss(args, kwargs)
        except Error as error:
            hide_own_frames(error)
            raise

    def watching(self) -> tuple[Watch, ...] | None:
        """What must stay as it is for launches that were made now: what the owner reads, and the
        grid where it is a function. None where none may be remembered.
        """
        own = self.owner.watching() if self.remembers else None
        if own is None or not callable(self.grid):
            return own
        found = fingerprint.Fingerprint(self.grid)
        self.remembers = not (found.careful or found.unstable)
        return (*own, *found.watched) if self.remembers else None

    def miss(self, args: Sequence, kwargs: dict[str, Any]) -> Any:
        """Launches in Python and stores the launch; gives what `given_back` says. (The key is
        written before and after: another thread may change an array meanwhile.)
        """
        self.owner.kernel.forget_if_rebound()
        self.owner.bound(*args, **kwargs)
        cache = self._cache(args, kwargs)
        written = cache.key(*args, **kwargs) if cache is not None else None
        launch = self.owner.made(args, kwargs, self.grid)
        given_back = self.owner.given_back(args, kwargs)
        launch()
        if cache is None or written is None or not getattr(launch, "reusable", False):
            return given_back
        # where the kernel was compiled, more is watched than before, but nothing changed meanwhile
        again = self._cache(args, kwargs) if cache.unchanged() else None
        if again is not None and again.key(*args, **kwargs) == written:
            again.store(written, launch, args, kwargs, given_back)
        return given_back

    def _cache(self, args: Sequence, kwargs: dict[str, Any]) -> KernelCache | None:
        """The cache of calls like this one, where there can be one. From now on `kernel[grid]` is
        its function, which calls `miss` for what it does not know.
        """
        of, owner = kind(args, kwargs), self.owner
        found = self.caches.get(of)
        if found is None or not found.is_current():
            if len(self.caches) >= MAX_KINDS:
                self.caches.clear()
            found = self.caches[of] = kernel_cache(self, args, kwargs)
        self.quickest = self if found is None or owner.kernel.careful else found.call
        owner.install(self)
        return found


def _is_constexpr(annotation) -> bool:
    """The annotation is tkc.constexpr, or spells it (`from __future__ import annotations`)."""
    if isinstance(annotation, str):
        return annotation.split(".")[-1].strip() == "constexpr"
    return (
        getattr(annotation, "__name__", "") == "constexpr"
        or getattr(annotation, "is_constexpr", False) is True
    )


def _parameter(given: str | int, names: Sequence[str], kernel: str) -> str:
    """The name of a parameter that is given by its name or number. Raises LaunchError."""
    if given in names:
        return str(given)
    if isinstance(given, int) and -len(names) <= given < len(names):
        return names[given]
    raise LaunchError(
        f"{kernel}: do_not_specialize names {given!r}, which is no parameter; they are"
        f" {', '.join(names)}"
    )


def _is_pointer(annotation: object) -> bool:
    """The annotation is tkc.pointer, or spells it."""
    if isinstance(annotation, str):
        return annotation.partition("(")[0].split(".")[-1].strip() == "pointer"
    return getattr(annotation, "is_pointer", False) is True


def _is_peers(annotation: object) -> bool:
    """The annotation is tkc.peers, or spells it."""
    if isinstance(annotation, str):
        return annotation.split(".")[-1].strip() == "peers"
    return getattr(annotation, "is_peers", False) is True


def _typed(s: Specialization) -> tuple:
    """The specialization as a key in which 1, 1.0 and True differ."""
    return s, tuple(types_of(a[1]) for _, a in s.arguments if a[0] == "constant")


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
    places = {i.device for i in given_at_run_time(infos) if isinstance(i, ArrayInfo)}
    if len(places) > 1:
        named = ", ".join("host memory" if d < 0 else f"cuda:{d}" for d in sorted(places))
        raise LaunchError(
            f"{kernel}: expected every array on one device, got {named}; move them to one"
        )
    if places <= {-1}:
        return assumed_target()
    from tkc.runtime import driver

    return driver.planned_for(places.pop())


def target_of(array: Any) -> str:
    """The target that a launch with this array (of torch, cupy, jax or NumPy) compiles for:
    "sm_90a" (with a device behind a colon where it is not the usual one), …, or "cpu" in host
    memory. Raises LaunchError for anything else, and where the device
    cannot be asked."""
    return target_for([describe(array)], "target_of")


__all__ = ["OPTIONS", "JitFunction", "Launcher", "jit", "target_of"]
